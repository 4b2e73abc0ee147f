"""Tensors that are kept between launches: both front ends, printing, and mistakes."""

from __future__ import annotations

import pytest

import tilelink
from tilelink.errors import BindingError, SeveralErrors, TileLinkError
from tilelink.frontend.checker import check
from tilelink.ir.printer import print_program
from tilelink.language import (
    Dim,
    Index,
    consumer_tile_wait,
    peer_tile_notify,
    peer_tile_wait,
    producer_tile_notify,
    rank,
    tile_push_data,
)

TEXT = """
program averaged(M, N):
    x     : in             [M, N]
    mean  : kept           [M, N] f32 within 0.01
    total : kept           [N] f32 sum
    steps : kept           [] i32
    last  : kept symmetric [M, N]
    y     : out            [M, N]
    compute change(i: M, j: N):
        mean[i, j] = mean[i, j] * 0.5 + x[i, j]
        y[i, j] = last[i, j]
        total[j] += 1.0
        peer_tile_notify(last[i, j])
    compute count():
        steps[] = steps[] + 1
    comm free(i: M):
        peer_tile_wait(last[i, :])
        producer_tile_notify(last[i, :] @ (rank - 1))
    comm send(i: M):
        consumer_tile_wait(last[i, :])
        tile_push_data(last[i, :] @ (rank + 1), x[i, :])
"""


@tilelink.program
def averaged(M: Dim, N: Dim) -> None:
    x = tilelink.input(M, N)
    mean = tilelink.kept(M, N, dtype="f32", within=0.01)
    total = tilelink.kept(N, dtype="f32", sum=True)
    steps = tilelink.kept(dtype="i32")
    last = tilelink.kept(M, N, symmetric=True)
    y = tilelink.output(M, N)

    @tilelink.compute
    def change(i: Index = M, j: Index = N) -> None:
        mean[i, j] = mean[i, j] * 0.5 + x[i, j]
        y[i, j] = last[i, j]
        total[j] += 1.0
        peer_tile_notify(last[i, j])

    @tilelink.compute
    def count() -> None:
        steps[()] = steps[()] + 1

    @tilelink.comm
    def free(i: Index = M) -> None:
        peer_tile_wait(last[i, :])
        producer_tile_notify(last[i, :] @ (rank - 1))

    @tilelink.comm
    def send(i: Index = M) -> None:
        consumer_tile_wait(last[i, :])
        tile_push_data(last[i, :] @ (rank + 1), x[i, :])


def test_both_front_ends_and_the_printed_text_agree() -> None:
    program = tilelink.parse(TEXT).program()
    assert program == averaged == tilelink.parse(print_program(program)).program()
    assert check(program) is program
    kept = [t for t in program.tensors if t.space == "kept"]
    assert [(t.name, t.symmetric, t.sums) for t in kept] == [
        ("mean", False, False), ("total", False, True), ("steps", False, False), ("last", True, False)
    ]  # fmt: skip
    assert not any(t.is_given or t.is_result for t in kept) and all(t.in_place for t in kept)


def of(declaration: str, body: str = "x[i] = x[i] + 1.0") -> str:
    head = f"program p(M):\n    {declaration}\n    y : out [M]\n"
    return f"{head}    compute f(i: M):\n        {body}\n        y[i] = 1.0\n"


MISTAKES = [
    (of("x : kept [M] < M"), "ParseError", 2, "x has a bound, and entries of index tensors stay as they are"),
    (of("x : kept [M] i8 sum"), "ParseError", 2, "x cannot be a sum"),
    (of("x : kept [M] f32 from 0 to 1"), "ParseError", 2, "x has no range"),
    (of("x : kept [M[: 3]]"), "ParseError", 2, "a part of a dimension"),
    (of("x : kept [M] = 0"), "ParseError", 2, "only an input of the own rank may be left out"),
    (of("x : kpet [M]"), "ParseError", 2, "unknown 'kpet'"),
    (of("x : kept [M]", "v = x[i]"), "CoverageError", 5, "x is read here, and nothing writes it"),
    (
        of("x : kept [M]", "tile_push_data(x[i] @ (rank + 1), 1.0)"),
        "TileLinkError",
        5,
        "peers cannot reach x, which is kept",
    ),
]


@pytest.mark.parametrize(("text", "kind", "line", "message"), MISTAKES)
def test_mistakes(text: str, kind: str, line: int, message: str) -> None:
    with pytest.raises(TileLinkError) as caught:
        check(tilelink.parse(text).program())
    error = caught.value.errors[0] if isinstance(caught.value, SeveralErrors) else caught.value
    assert message in str(error) and error.hint
    assert error.location is not None and error.location.line == line
    assert kind in ("TileLinkError", type(error).__name__)
    if "peers cannot reach" in message:
        assert "declare it as x : kept symmetric [...]" in str(error)


def test_an_operator_has_no_state() -> None:
    text = of("x : kept [M]").replace("    y : out", "    v : in [M]\n    y : out")
    with pytest.raises(BindingError, match="p keeps x between launches") as caught:
        tilelink.op(tilelink.parse(text).program())
    assert caught.value.hint == "x : inout [...], which the caller keeps and gives with each call"
    assert caught.value.location is not None and caught.value.location.line == 2
