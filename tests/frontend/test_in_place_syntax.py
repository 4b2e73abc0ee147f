"""Tensors that are read and written in place: both front ends, printing, and mistakes."""

from __future__ import annotations

import pytest

import tilelink
from tilelink.errors import SeveralErrors, TileLinkError
from tilelink.frontend.checker import check
from tilelink.ir.printer import print_program
from tilelink.ir.program import Store
from tilelink.language import Dim, Index, sum

TEXT = """
program decayed(M, N):
    v    : in    [M, N]
    x    : inout [M, N] f32 from -1 to 1 within 0.01
    seen : inout [N] i32
    total : inout [N] f32 sum from 0 to 1
    compute f(i: M, j: N):
        x[i, j] = x[i, j] * 0.5 + v[i, j]
    compute count(j: N):
        seen[j] = seen[j] + 1
    compute add(i: M, j: N):
        total[j] += sum(v[i, j], axis=0)
"""


@tilelink.program
def decayed(M: Dim, N: Dim) -> None:
    v = tilelink.input(M, N)
    x = tilelink.inout(M, N, dtype="f32", low=-1, high=1, within=0.01)
    seen = tilelink.inout(N, dtype="i32")
    total = tilelink.inout(N, dtype="f32", sum=True, low=0, high=1)

    @tilelink.compute
    def f(i: Index = M, j: Index = N) -> None:
        x[i, j] = x[i, j] * 0.5 + v[i, j]

    @tilelink.compute
    def count(j: Index = N) -> None:
        seen[j] = seen[j] + 1

    @tilelink.compute
    def add(i: Index = M, j: Index = N) -> None:
        total[j] += sum(v[i, j], axis=0)


def test_both_front_ends_and_the_printed_text_agree() -> None:
    program = tilelink.parse(TEXT).program()
    assert program == decayed == tilelink.parse(print_program(program)).program()
    assert check(program) is program
    x, seen = program.tensor("x"), program.tensor("seen")
    assert (x.space, x.symmetric, x.dtype, x.within) == ("inout", False, "f32", 0.01)
    assert [t.name for t in program.tensors if t.is_given] == ["v", "x", "seen", "total"]
    assert [t.name for t in program.tensors if t.is_result] == ["x", "seen", "total"] and seen.dtype == "i32"
    assert [t.name for t in program.tensors if t.sums] == ["total"]
    stored = [s for stage in program.stages for s in stage.body if isinstance(s, Store)]
    assert [one.adds for one in stored] == [False, False, True]


def of(declaration: str, body: str = "v = x[i]") -> str:
    head = f"program p(M):\n    {declaration}\n    y : out [M]\n"
    return f"{head}    compute f(i: M):\n        {body}\n        y[i] = 1.0\n"


def test_what_no_stage_writes_stays() -> None:
    check(tilelink.parse(of("x : inout [M]")).program())


MISTAKES = [
    (of("x : inout symmetric [M]"), "ParseError", 2, "an inout tensor is never symmetric"),
    (of("x : inout [M] < M"), "ParseError", 2, "x has a bound, and entries of index tensors stay as they are"),
    (of("x : inout [M] i8 sum"), "ParseError", 2, "x cannot be a sum"),
    (of("x : inout [M] i32 sum"), "ParseError", 2, "x cannot be a sum"),
    (of("x : inout [M] f8e4m3 sum"), "ParseError", 2, "x cannot be a sum"),
    (of("x : local [M] f32 sum"), "ParseError", 2, "x cannot be a sum"),
    (of("x : inout [M[: 3]]"), "ParseError", 2, "a part of a dimension"),
    (of("x : inout [M] = 0"), "ParseError", 2, "only an input of the own rank may be left out"),
    (of("x : inuot [M]"), "ParseError", 2, "unknown 'inuot'"),
    (of("x : inout [M]", "v = x[i] @ (rank + 1)"), "TileLinkError", 5, "peers cannot reach x, which is inout"),
    (of("x : inout [M]", "tile_push_data(x[i] @ (rank + 1), 1.0)"), "TileLinkError", 5, "peers cannot reach x"),
    (of("x : in [M]", "x[i] = 0.0"), "TileLinkError", 5, "x is an input"),
]


@pytest.mark.parametrize(("text", "kind", "line", "message"), MISTAKES)
def test_mistakes(text: str, kind: str, line: int, message: str) -> None:
    with pytest.raises(TileLinkError) as caught:
        check(tilelink.parse(text).program())
    error = caught.value.errors[0] if isinstance(caught.value, SeveralErrors) else caught.value
    assert message in str(error) and error.hint
    assert error.location is not None and error.location.line == line
    assert kind in ("TileLinkError", type(error).__name__)
    if message == "x is an input":
        assert "or declare x : inout [...], to change it in place" in str(error)


def test_link_orders_a_write_before_reads_that_stand_after_it() -> None:
    text = of("x : inout [M]").replace("compute f", "compute g(i: M):\n        x[i] = 2.0\n    compute f")
    linked = tilelink.link(tilelink.parse(text).program())
    assert "producer_tile_notify(x[i])" in str(linked) and "consumer_tile_wait(x[i])" in str(linked)
    assert tilelink.link(linked) == linked
    tilelink.plan(linked, ranks=2, dims={"M": 4})


def test_link_leaves_other_orders_to_the_program() -> None:
    """Whether a read is meant before a write or after it, the data alone does not say."""
    program = tilelink.parse(TEXT.replace("seen[j] + 1", "i32(x[0, j])")).program()
    other = tilelink.parse(of("x : inout [M]") + "    compute g(i: M):\n        x[i] = 2.0\n").program()
    assert tilelink.link(program) == program and tilelink.link(other) == other
    with pytest.raises(TileLinkError, match="only the schedule orders the two"):
        tilelink.plan(other, ranks=2, dims={"M": 4})
