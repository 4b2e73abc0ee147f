"""The words of the language as Python names: complete, typed, and refused outside of a program."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tilelink
from tilelink import language
from tilelink.errors import ParseError, StageError
from tilelink.frontend.declare import PRIMITIVES
from tilelink.frontend.expressions import REDUCTIONS
from tilelink.frontend.python import DECLARATIONS, STAGES
from tilelink.ir.printer import print_program
from tilelink.ir.program import DTYPES, ELEMENTWISE, INTEGER_OPS, SCANS
from tilelink.language import (
    Dim,
    Index,
    Int,
    attend,
    bf16,
    consumer_tile_wait,
    dot,
    f32,
    finish,
    maximum,
    online_softmax,
    pos,
    producer_tile_notify,
    rank,
    ranks,
    tile_push_data,
    tiles,
    where,
    zeros,
)

VALUES = ["dot", "zeros", "full", "pos", "online_softmax", "attend", "finish", "call"]
OPERATORS = {"add", "sub", "mul", "div", "neg", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not"}


@tilelink.program
def mixture(M: Dim, N: Dim, K: Dim, scale: float) -> None:
    x = tilelink.input(M, K)
    w = tilelink.input(N, K, dtype=bf16)
    owner = tilelink.table(ranks, bound=ranks)
    h = tilelink.symmetric(ranks, M, N)
    y = tilelink.output(M, N)
    o = tilelink.output(M, K)

    @tilelink.compute
    def send(p: Index = ranks, i: Index = M, j: Index = N) -> None:
        part = maximum(dot(x[i, :], w[j, :].T) * scale, 0.0)
        tile_push_data(h[rank, i, j] @ owner[p], part)
        producer_tile_notify(h[rank, i, j] @ owner[p])

    @tilelink.compute
    def add(i: Index = M, j: Index = N) -> None:
        total = zeros(f32)
        for s in tiles(ranks):
            consumer_tile_wait(h[s, i, j])
            if s != rank:
                total += h[s, i, j]
        y[i, j] = where(pos(i)[:, None] >= pos(j)[None, :], total, -total)

    @tilelink.compute
    def look(i: Index = M) -> None:
        state = online_softmax(f32)
        for j in tiles(M):
            state = attend(state, x[i, :], x[j, :], x[j, :], scale)
        o[i, :] = finish(state)


TEXT = """
program mixture(M, N, K, scale: f32):
    x : in [M, K]
    w : in [N, K] bf16
    owner : table [ranks] < ranks
    h : symmetric [ranks, M, N]
    y : out [M, N]
    o : out [M, K]

    compute send(p: ranks, i: M, j: N):
        part = maximum(dot(x[i, :], w[j, :].T) * scale, 0.0)
        tile_push_data(h[rank, i, j] @ owner[p], part)
        producer_tile_notify(h[rank, i, j] @ owner[p])

    compute add(i: M, j: N):
        total = zeros(f32)
        for (s: ranks):
            consumer_tile_wait(h[s, i, j])
            if s != rank:
                total += h[s, i, j]
        y[i, j] = where(pos(i)[:, None] >= pos(j)[None, :], total, -total)

    compute look(i: M):
        state = online_softmax(f32)
        for (j: M):
            state = attend(state, x[i, :], x[j, :], x[j, :], scale)
        o[i, :] = finish(state)
"""


def test_a_program_with_imported_names_equals_the_one_in_text() -> None:
    assert print_program(mixture) == print_program(tilelink.parse(TEXT).program())


def test_every_word_of_the_language_can_be_imported() -> None:
    words = {
        *PRIMITIVES,
        *(set(ELEMENTWISE) - OPERATORS - set(INTEGER_OPS)),
        *REDUCTIONS,
        *SCANS,
        *DTYPES,
        *VALUES,
        *DECLARATIONS,
        *STAGES,
    }
    words |= {"rank", "ranks", "tiles", "program"}
    assert words - {"bool"} <= {*language.__all__} <= {*dir(language)}
    undocumented = [name for name in language.__all__ if not getattr(language, name).__doc__]
    assert undocumented == []


USES: dict[str, Callable[[], object]] = {
    "rank": lambda: rank + 1,
    "an index": lambda: Index() == 3,
    "ranks": lambda: 2 * ranks,
    "f32": lambda: f32(1.0),
    "dot": lambda: dot(language.Tile(), language.Tile()),
    "a tile": lambda: language.Tile().T,
    "a tensor": lambda: language.Tensor()[0],
    "a table": lambda: language.Table()[0],
    "tiles": lambda: tiles(Dim()),
    "input": lambda: language.input(4),
}


@pytest.mark.parametrize("name", USES)
def test_a_word_used_outside_of_a_program_raises_an_error(name: str) -> None:
    with pytest.raises(StageError, match="a word of programs") as refused:
        USES[name]()
    assert refused.value.hint == "write it inside a function decorated with @tilelink.program"


def test_a_parameter_of_a_program_has_a_number_as_its_example() -> None:
    with pytest.raises(ParseError, match="no value of M"):

        @tilelink.program
        def p(M: Dim = None) -> None:  # type: ignore[assignment]
            y = tilelink.output(M)

            @tilelink.compute
            def f(i: Index = M) -> None:
                y[i] = 1.0


def test_integers_are_hashable() -> None:
    assert {rank: 1, ranks: 2}[rank] == 1 and hash(Int()) != hash(Int())
