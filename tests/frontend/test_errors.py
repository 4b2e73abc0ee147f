"""The errors of wrong programs: what, where with a caret, and what to do."""

from __future__ import annotations

import pytest

from tilelink.errors import (
    DtypeError,
    DuplicateNameError,
    ParseError,
    ShapeError,
    StageError,
    TileLinkError,
    UnknownNameError,
)
from tilelink.frontend.parser import parse_text
from tilelink.ir.typing import infer

HEAD = """\
program p(M, N):
    x : in [M, N]
    h : symmetric [ranks, M, N]
    y : out [M, N]
    compute c(i: M, j: N, s: ranks):
"""

CASES = [
    ("y[i, j] = z[i, j]", UnknownNameError, "unknown name 'z'", 19),
    ("y[i, j] = x[i, k]", UnknownNameError, "unknown name 'k'", 24),
    ("y[i, j] = sillu(x[i, j])", UnknownNameError, "unknown function 'sillu'", 19),
    ("tile_wait(h[s])", UnknownNameError, "unknown primitive 'tile_wait'", 9),
    ("y[i, j] = x[j, i]", ShapeError, "index j runs over N, but that dimension of x is M", 19),
    ("y[i, j] = x[i, :]", ShapeError, "shapes [i, j] and [i, :N] do not fit", 9),
    ("y[i, j] = dot(x[i, :], x[i, :])", ShapeError, "dot contracts :N of T[i, :N] with i of T[i, :N]", 19),
    ("y[i, j] = h[s, i, j, 0]", ShapeError, "h has 3 dimensions, not 4", 19),
    ("y[i, j] = sum(x[i, j])", ParseError, "sum of which axis?", 19),
    ("y[i, j] = online_softmax(f32)", DtypeError, "a softmax state cannot be stored", 9),
    ("y[i, j] @ s = x[i, j]", ParseError, "did not expect '=' here", 21),
    ("y[i, j] = x[i, j", ParseError, "'[' is never closed", 20),
    ("i = 3", DuplicateNameError, "i cannot be assigned", 9),
    ("tile_pull_data(y[i, j], x[i, j] + 1)", StageError, "tile_pull_data copies a region", 9),
    ("tile_push_data(y[i, j])", ParseError, "tile_push_data takes 2 arguments, not 1", 9),
    ("if x[i, j] > 0: y[i, j] = 1", ParseError, "did not expect 'y' here", 25),
]


@pytest.mark.parametrize(("line", "kind", "message", "column"), CASES, ids=[c[0] for c in CASES])
def test_a_wrong_statement_is_pointed_at(
    line: str, kind: type[TileLinkError], message: str, column: int | None
) -> None:
    with pytest.raises(TileLinkError) as caught:
        infer(parse_text(HEAD + "        " + line + "\n", "wrong.tl").programs[0])
    error = caught.value
    assert type(error) is kind
    assert error.message == message
    assert error.hint
    assert error.location is not None
    if column is not None:
        assert (error.location.line, error.location.column) == (6, column)
        assert f"wrong.tl:6:{column}" in str(error)
        assert "\n    " + " " * (column - 1) + "^" in str(error)


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_text(HEAD + "        y[i, j] = silo(x[i, j])\n")
    assert caught.value.hint == "did you mean silu?"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("for t in range(ranks):", "for (s: ranks, j: M): a loop over tiles; its block is indented"),
        ("y[i, j] = x[i:i + 1, j]", "a coordinate is :, an index, offset + i, or a number; no slices"),
        ("y[i, j] = x[i, j] if rank == 0 else 1.0", "where(condition, a, b), or an if around statements"),
        ("y[i, j] = x[i, j] ** 2", "there is no power: multiply, or exp and log"),
    ],
)
def test_what_python_has_and_the_language_has_not_is_hinted_at(line: str, hint: str) -> None:
    with pytest.raises(TileLinkError) as caught:
        parse_text(HEAD + "        " + line + "\n            y[i, j] = 1.0\n", "wrong.tl")
    assert hint in str(caught.value)


def test_names_declared_twice() -> None:
    with pytest.raises(DuplicateNameError, match="M is declared twice"):
        parse_text("program p(M):\n    M : in [M]\n")
