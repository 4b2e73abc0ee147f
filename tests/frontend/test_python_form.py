"""Python constructs that the language lacks are refused, and never silently ignored."""

import linecache
from typing import Any

import pytest

import tilelink
from tilelink.errors import TileLinkError
from tilelink.ir.program import Program

FORM = """\
@tilelink.program
def p(M, N):
    x = tilelink.input(M, N, symmetric=True)
    t = tilelink.table(M, bound=M)
    y = tilelink.output(M, N)

    {stage}
    def a({indices}):
        {body}
"""


def read(body: str = "y[i, j] = x[i, j]", indices: str = "i: M, j: N", stage: str = "@tilelink.compute") -> Program:
    text = FORM.format(body=body, indices=indices, stage=stage)
    linecache.cache["form.py"] = (len(text), None, text.splitlines(keepends=True), "form.py")
    names: dict[str, Any] = {"tilelink": tilelink, "M": None, "N": None, "Index": int, "ranks": None}
    exec(compile(text, "form.py", "exec"), names)
    return names["p"]


def test_the_form_itself_is_a_program() -> None:
    assert "y[i, j] = x[i, j]" in str(read(indices="i: Index = M, j=N"))


@pytest.mark.parametrize(
    ("body", "message", "column"),
    [
        ("y[i, j] = x[i, 0:j]", "a slice of j elements", 24),
        ("y[i, ::2] = x[i, j]", "a slice with a step", 14),
        ("y[:, j] = x[t[1:], j]", "a slice of t is no integer", 21),
        ("y[i, j] = max(x[i, :], axis=1)[:3, None]", "a slice of a value", 40),
        ("y[i, j] = x[i, j] @ 1 @ rank", "two ranks of one region", 19),
        ("y[i, j] = x[min(i, 1, key=2), j]", "min takes no argument key=", 31),
        ("y[i, j] = f32(x[i, j], 3)", "f32 takes 1 argument, not 2", 19),
        (
            "for s in tiles(ranks, start=1):\n            y[i, j] = x[i, j]",
            "tiles takes no argument start=",
            31,
        ),
    ],
)  # fmt: skip
def test_a_construct_that_the_language_lacks_is_refused_at_its_location(body: str, message: str, column: int) -> None:
    with pytest.raises(TileLinkError, match=message) as refused:
        read(body)
    place = refused.value.location
    assert place is not None and (place.line, place.column) == (9, column) and refused.value.hint


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"indices": "i: ranks = M, j: Index = N"}, "index i has two extents", "i: M, or i: Index = M"),
        ({"indices": "i: M, j: N, *k"}, "parameters are plain names", "def a(i: Index = M, s: Index = ranks)"),
        ({"stage": "@tilelink.compute()"}, "a is no stage", "one of them and without brackets"),
        ({"stage": "@tilelink.comm\n    @tilelink.compute"}, "a is no stage", "one of them and without brackets"),
    ],
)
def test_a_stage_and_its_indices_are_declared_once(given: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(TileLinkError, match=message) as refused:
        read(**given)
    assert hint in str(refused.value)
