"""The errors of wrong programs: message, location with a caret, and hint."""

from __future__ import annotations

import pytest

from tilelink.errors import (
    DtypeError,
    DuplicateNameError,
    ParseError,
    SeveralErrors,
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
    (f"y[i, j] = x[i, {'9' * 40}]", ParseError, "a number that is too large", 24),
    (f"y[i, j] = x[i, j] * {'9' * 5000}", ParseError, "a number that is too large", 29),
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
    ("tile_push_data(y[i, j], x[i, j], scope=1)", ParseError, "tile_push_data takes no argument scope=", 42),
    ("y[i, j] = exp(x[i, j], base=2)", ParseError, "exp takes no argument base=", 32),
    ("y[i, j] = max(x[i, :], axis=1, initial=0.0)[:, None]", ParseError, "max takes no argument initial=", 40),
    ("y[i, j] = f16(x[i, j], rounding=1)", ParseError, "f16 takes no argument rounding=", 32),
    ("y[i, j] = call m.f(x[i, j], eps=1)", ParseError, "call takes no argument eps=", 37),
    ("if x[i, j] > 0: y[i, j] = 1", ParseError, "did not expect 'y' here", 25),
]


@pytest.mark.parametrize(("line", "kind", "message", "column"), CASES, ids=[c[0] for c in CASES])
def test_the_caret_marks_the_wrong_statement(
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


def test_the_most_similar_name_is_suggested() -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_text(HEAD + "        y[i, j] = silo(x[i, j])\n")
    assert caught.value.hint == "did you mean silu?"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("for t in range(ranks):", "for (s: ranks, j: M): a loop over tiles; its block is indented"),
        ("y[i, j] = x[i, j] if rank == 0 else 1.0", "where(condition, a, b), or an if around statements"),
        ("y[i, j] = x[i, j] ** 2", "there is no power: multiply, or exp and log"),
    ],
)
def test_a_python_construct_that_the_language_lacks_gets_a_hint(line: str, hint: str) -> None:
    with pytest.raises(TileLinkError) as caught:
        parse_text(HEAD + "        " + line + "\n            y[i, j] = 1.0\n", "wrong.tl")
    assert hint in str(caught.value)


def test_a_slice_has_a_fixed_length() -> None:
    parse_text(HEAD + "        y[i, j] = x[i:i + 1, j]\n", "right.tl")
    with pytest.raises(ParseError, match=r"a slice of i . 2 - 3 elements") as caught:
        parse_text(HEAD + "        y[i, j] = x[i + 3:i * 3, j]\n", "wrong.tl")
    assert caught.value.hint is not None and "an index runs over a part: (i: M[a : b])" in caught.value.hint


def test_a_name_declared_twice_is_refused() -> None:
    with pytest.raises(DuplicateNameError, match="M is declared twice"):
        parse_text("program p(M):\n    M : in [M]\n")


PROGRAM = """\
program p(M, N):
    x : in [M, N]
    h : symmetric [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute add(
        i: M
    ):
        consumer_tile_wait(h[i, :])
        y[i, :] = h[i, :]
    y : out [M, N]
"""
SPACES = "a tensor is in, out, inout, kept, local, symmetric or table"

MISSPELT = [
    ("comm", "com", 5, 5, "did you mean comm?"),
    ("compute", "compue", 9, 5, "did you mean compute?"),
    ("compute", "kernel", 9, 5, "a stage is comm or compute"),
    ("in", "inn", 2, 9, f"did you mean in? {SPACES}"),
    ("symmetric", "f32", 3, 9, SPACES),
    ("symmetric", "in symetric", 3, 12, f"did you mean symmetric? {SPACES}"),
    ("program", "progam", 1, 1, "did you mean program?"),
    ("program", "class", 1, 1, "a file has programs and schedules"),
]


@pytest.mark.parametrize(("word", "wrong", "line", "column", "hint"), MISSPELT, ids=[m[1] for m in MISSPELT])
def test_a_misspelt_keyword_is_one_mistake_at_its_location(
    word: str, wrong: str, line: int, column: int, hint: str
) -> None:
    text: list[str] = list(PROGRAM.splitlines())
    text[line - 1] = text[line - 1].replace(word, wrong, 1)
    with pytest.raises(ParseError) as caught:
        parse_text("\n".join(text) + "\n", "wrong.tl")
    unknown = wrong.split()[-1]
    assert (caught.value.message, caught.value.hint) == (f"unknown {unknown!r}", hint)
    assert caught.value.location is not None
    assert (caught.value.location.line, caught.value.location.column) == (line, column)
    assert f"\n    {' ' * (column - 1)}{'^' * len(unknown)}\n" in str(caught.value)


def test_the_rest_of_a_program_with_a_misspelt_stage_is_still_checked() -> None:
    text = PROGRAM.replace("compute", "compue").replace("x[i, :])", "z[i, :])")
    text += "    compute last(i: M):\n        # why\n        y[i, :] = w\nschedul s for p:\n    default\n"
    with pytest.raises(SeveralErrors) as caught:
        parse_text(text, "wrong.tl")
    found = [(e.message, e.location.line) for e in caught.value.errors if e.location]
    assert found == [
        ("unknown name 'z'", 6),
        ("unknown 'compue'", 9),
        ("unknown name 'w'", 17),
        ("unknown 'schedul'", 18),
    ]


def test_the_caret_marks_a_line_that_is_indented_too_deep() -> None:
    with pytest.raises(ParseError, match="did not expect a deeper indent here") as caught:
        parse_text(PROGRAM.replace("    h :", "      h :").replace("h[i, :]", "x[i, :]"), "wrong.tl")
    assert caught.value.location is not None
    assert (caught.value.location.line, caught.value.location.column) == (3, 7)


def test_a_block_that_begins_with_too_small_an_indent_is_named() -> None:
    text = "program f(M):\n    x : in [M]\n    y : out [M]\n\n    compute a(i: M):\n      v = x[i]  # two spaces\n"
    text += "\n        if rank > 0:\n            y[i] = v\n"
    with pytest.raises(ParseError, match="did not expect a deeper indent here") as caught:
        parse_text(text, "wrong.tl")
    assert caught.value.location is not None and caught.value.location.line == 8
    assert caught.value.related is not None and (caught.value.related.line, caught.value.related.column) == (6, 7)
    assert caught.value.hint == "the lines of a block are indented alike: line 6 has 6 spaces, and this one 8"


def test_a_semicolon_does_not_end_a_statement() -> None:
    with pytest.raises(ParseError, match="did not expect ';' here") as caught:
        parse_text(PROGRAM.replace("= h[i, :]", "= h[i, :];"), "wrong.tl")
    assert caught.value.hint == "a statement ends with its line: leave the semicolon out"


@pytest.mark.parametrize(
    ("declaration", "message", "column", "hint"),
    [
        (
            "symmetric [M, N] fp32",
            "unknown dtype 'fp32'",
            26,
            "did you mean f32? one of f16, bf16, f32, f8e4m3, f8e5m2, i8, u8, i32, i64, bool",
        ),
        (
            "symmetric [M, N] long",
            "unknown dtype 'long'",
            26,
            "one of f16, bf16, f32, f8e4m3, f8e5m2, i8, u8, i32, i64, bool",
        ),
        ("table [M, N] bf16 < M", "a table of bf16", 22, "leave the dtype out: a table holds i32 values"),
    ],
)
def test_a_wrong_dtype_is_underlined(declaration: str, message: str, column: int, hint: str) -> None:
    with pytest.raises(DtypeError) as caught:
        parse_text(PROGRAM.replace("symmetric [M, N]", declaration), "wrong.tl")
    error, word = caught.value, message.split()[-1].strip("'")
    assert (error.message, error.hint) == (message, hint)
    assert error.location is not None
    assert (error.location.line, error.location.column, error.location.length) == (3, column, len(word))
