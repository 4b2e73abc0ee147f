"""`let`, `def`, `by 1` and `elif`: names are put in where they stand, and what is wrong with them is said there."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tilelink import compiler
from tilelink.errors import ParseError, TileLinkError
from tilelink.frontend.names import MAX_PARTS
from tilelink.ir.printer import print_program, print_statement
from tilelink.ir.program import For, If, Program
from tilelink.language import (
    Dim,
    Index,
    Int,
    by,
    consumer_tile_wait,
    f32,
    let,
    producer_tile_notify,
    rank,
    ranks,
    tile_push_data,
    tiles,
    zeros,
)
from tilelink.reference.trial import random_inputs

HEAD = """program zigzag(M, N):
    let chunks = 2 * ranks
    def chunk(s, h): return s * (1 - h) + (chunks - 1 - s) * h
    x : in        [chunks, M, N]
    h : symmetric [chunks, M, N]
    y : out       [chunks, M, N]
"""
SEND = """
    comm send(p: ranks, c: 2 by 1, i: M):
        let mine = chunk(rank, c)
        let sent = h[mine, i, :] @ p
        tile_push_data(sent, x[mine, i, :])
        producer_tile_notify(sent)
"""
TAKE = """
    compute take(s: chunks by 1, i: M):
        let row = h[s, i, :]
        consumer_tile_wait(row)
        if s == 0:
            y[s, i, :] = row
        elif s == 1:
            let twice = 2
            y[s, i, :] = row * twice
        else:
            y[s, i, :] = row + 1.0
"""
WRITTEN_OUT = """program zigzag(M, N):
    x : in        [2 * ranks, M, N]
    h : symmetric [2 * ranks, M, N]
    y : out       [2 * ranks, M, N]

    comm send(p: ranks, c: 2 by 1, i: M):
        tile_push_data(h[rank * (1 - c) + (2 * ranks - 1 - rank) * c, i, :] @ p,
                       x[rank * (1 - c) + (2 * ranks - 1 - rank) * c, i, :])
        producer_tile_notify(h[rank * (1 - c) + (2 * ranks - 1 - rank) * c, i, :] @ p)

    compute take(s: 2 * ranks by 1, i: M):
        consumer_tile_wait(h[s, i, :])
        if s == 0:
            y[s, i, :] = h[s, i, :]
        else:
            if s == 1:
                y[s, i, :] = h[s, i, :] * 2
            else:
                y[s, i, :] = h[s, i, :] + 1.0
"""


def parsed(text: str) -> Program:
    return compiler.check(compiler.parse(text, "names.tl").program())


@tilelink.program
def zigzag(M: Dim, N: Dim) -> None:
    chunks = let(2 * ranks)

    def chunk(s: Int, h: Int) -> Int:
        return s * (1 - h) + (chunks - 1 - s) * h

    x = tilelink.input(chunks, M, N)
    h = tilelink.symmetric(chunks, M, N)
    y = tilelink.output(chunks, M, N)

    @tilelink.comm
    def send(p: Index = ranks, c: Index = by(2, 1), i: Index = M) -> None:
        mine = let(chunk(rank, c))
        sent = let(h[mine, i, :] @ p)
        tile_push_data(sent, x[mine, i, :])
        producer_tile_notify(sent)

    @tilelink.compute
    def take(s: Index = by(chunks, 1), i: Index = M) -> None:
        row = let(h[s, i, :])
        consumer_tile_wait(row)
        if s == 0:
            y[s, i, :] = row
        elif s == 1:
            twice = let(2)
            y[s, i, :] = row * twice
        else:
            y[s, i, :] = row + 1.0


def test_names_are_put_in_where_they_stand() -> None:
    program = parsed(HEAD + SEND + TAKE)
    assert program == parsed(WRITTEN_OUT) == zigzag
    text = print_program(program)
    assert parsed(text) == program and print_program(parsed(text)) == text
    assert "elif s == 1:" in text and "take(s: 2 * ranks by 1, i: M):" in text and "let" not in text


def test_a_program_with_names_computes_what_it_says() -> None:
    program, dims = parsed(HEAD + SEND + TAKE), {"M": 8, "N": 4}
    kernel = compiler.compile(program, ranks=3, dims=dims)
    assert kernel.bound.stages["take"].tiles["s"] == 1
    (inputs,) = random_inputs(program, ranks=3, dims=dims, dtype="f32", launches=1, seed=1)
    outputs, expected = kernel(inputs), kernel.reference(inputs)
    assert all(torch.equal(got["y"], wanted["y"]) for got, wanted in zip(outputs, expected, strict=True))


def test_an_index_by_one_is_a_number() -> None:
    text = """program copied(M, E):
    x : in  [E, M]
    y : out [E, M]

    compute copy(e: E{by}, i: M):
        y[e, i] = x[e, i]
"""
    for by_one, tile in ((" by 1", 1), ("", 3)):
        bound = compiler.bound(parsed(text.format(by=by_one)), ranks=1, dims={"M": 8, "E": 3})
        assert bound.stages["copy"].tiles["e"] == tile


@tilelink.program
def looped(M: Dim, E: Dim) -> None:
    x = tilelink.input(E, M)
    y = tilelink.output(M)

    @tilelink.compute
    def add(i: Index = M) -> None:
        acc = zeros(f32)
        for e in tiles(by(E, 1)):
            acc = x[e, i]
        y[i] = acc


WRONG = {
    "a tile": ("let t = x[i, :] * 2.0", "let names an integer or a region", "x[i, :] * 2.0", "t = value gives"),
    "an unknown name": ("let t = mime + 1", "unknown name 'mime'", "mime", "did you mean mine?"),
    "a wrong region": ("let t = x[i, :, 0, 0]", "x has 3 dimensions, not 4", "x[i, :, 0, 0]", "one coordinate each"),
    "twice": ("let mine = 3", "mine is declared twice", "mine", "rename"),
    "like a tensor": ("let x = 3", "x is declared twice", "x", "rename"),
    "like an index": ("let i = 3", "i is declared twice", "i", "rename"),
    "like a word": ("let rank = 3", "rank is a word of the language", "rank", "rename"),
    "assigned": ("mine = x[0, i, :]", "mine cannot be assigned", "mine", "assign to a new name"),
    "added to": ("mine += 1", "mine cannot be assigned", "mine", "assign to a new name"),
    "a function alone": ("let t = chunk + 1", "chunk is a function", "chunk", "chunk(s, h)"),
    "too few arguments": ("let t = chunk(1)", "chunk takes 2 arguments, not 1", "chunk(1)", "chunk(s, h)"),
    "by name": ("let t = chunk(s=1, h=2)", "chunk takes its arguments by their places", "chunk(s=1, h=2)", ""),
    "out of its block": ("if p == 0:\n            let t = 3\n        tile_push_data(h[t, i, :] @ p, x[t, i, :])",
                         "unknown name 't'", "t", "known:"),
    "a region as a number": ("let t = x[0, i, :]\n        let u = t + 1", "let names an integer or a region",
                             "t + 1", "u = value"),
    "a loop by two": ("for (e: 4 by 2):\n            let t = e", "tiles of another size than 1", "e: 4 by 2",
                      "tile(e=2)"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_name_is_said_at_its_place(name: str) -> None:
    line, message, marked, hint = WRONG[name]
    text = (HEAD + SEND + TAKE).replace("        tile_push_data(sent,", f"        {line}\n        tile_push_data(sent,")
    with pytest.raises(TileLinkError) as caught:
        parsed(text)
    error = caught.value
    assert message in error.message and hint in (error.hint or "")
    assert error.location is not None and error.location.text is not None
    column = error.location.column - 1
    assert error.location.text[column:].startswith(marked)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("def twice(s): return twice(s) + 1", "unknown function 'twice'"),
        ("def twice(s, s): return s", "s is declared twice"),
        ("def twice(x): return x + rank", "x is declared twice"),
        ("def twice(rank): return rank", "rank is a word of the language"),
        ("def twice(s): return s + i", "unknown name 'i'"),
        ("def chunk(s): return s", "chunk is declared twice"),
        ("def exp(s): return s", "exp is a function of the language"),
        ("def twice(s):", "did not expect"),
        ("let late = later", "unknown name 'later'"),
        ("let if = 3", "if is a word of the language"),
    ],
)
def test_what_is_wrong_with_a_name_of_a_program_is_said(line: str, message: str) -> None:
    text = HEAD + f"    {line}\n    let later = 3\n" + SEND + TAKE
    with pytest.raises(TileLinkError) as caught:
        parsed(text)
    assert message in str(caught.value)


def test_a_wrong_name_is_reported_once() -> None:
    text = (HEAD + SEND + TAKE).replace("let mine = chunk(rank, c)", "let mine = chunk(rang, c)")
    with pytest.raises(TileLinkError) as caught:
        parsed(text)
    assert str(caught.value).count("Error: ") == 1 and "did you mean rank?" in str(caught.value)


def test_names_that_grow_for_ever_are_refused() -> None:
    lines = ["    let a0 = rank + ranks"] + [f"    let a{n + 1} = a{n} + a{n}" for n in range(40)]
    with pytest.raises(ParseError, match=f"of more than {MAX_PARTS} parts, with all names put in"):
        parsed(HEAD + "\n".join(lines) + "\n" + SEND + TAKE)
    lines = ["    def g0(a): return a + a"] + [f"    def g{n + 1}(a): return g{n}(g{n}(a))" for n in range(40)]
    with pytest.raises(ParseError, match=f"of more than {MAX_PARTS} parts, with all names put in"):
        parsed(HEAD + "\n".join(lines) + "\n" + SEND + TAKE)


def test_an_elif_is_an_if_in_an_else() -> None:
    stage = parsed(HEAD + SEND + TAKE).stage("take")
    branch = stage.body[-1]
    assert isinstance(branch, If) and isinstance(branch.orelse[0], If) and len(branch.orelse) == 1
    with pytest.raises(ParseError, match="did not expect"):
        parsed((HEAD + SEND + TAKE).replace("elif s == 1:", "elif:"))
    with pytest.raises(TileLinkError):
        parsed((HEAD + SEND + TAKE).replace("        if s == 0:", "        elif s == 0:"))


def test_a_loop_in_python_is_over_numbers_too() -> None:
    loop = looped.stage("add").body[1]
    assert isinstance(loop, For) and loop.indices[0].number and loop.indices[0].name == "e"
    assert parsed(print_program(looped)) == looped


def test_a_users_function_keeps_the_name_of_its_module() -> None:
    text = "program p(M):\n    x : in [M]\n    y : out [M]\n    let tests = rank\n    def user(a): return a\n\n"
    text += "    compute f(i: M):\n        y[i] = call tests.user.twice(x[user(i)])\n"
    (statement,) = compiler.parse(text).program().stage("f").body
    assert print_statement(statement) == ["y[i] = call tests.user.twice(x[i])"]


@pytest.mark.parametrize("name", ["min", "max"])
def test_minima_and_maxima_of_integers_are_of_any_number(name: str) -> None:
    text = HEAD + SEND + TAKE
    least = text.replace("chunk(rank, c)", f"{name}(rank, c, M, 3)")
    nested = text.replace("chunk(rank, c)", f"{name}({name}({name}(rank, c), M), 3)")
    assert least != text
    assert print_program(tilelink.parse(least).program()) == print_program(tilelink.parse(nested).program())
    with pytest.raises(ParseError, match="not an integer expression"):
        tilelink.parse(text.replace("chunk(rank, c)", f"{name}(rank)"))
