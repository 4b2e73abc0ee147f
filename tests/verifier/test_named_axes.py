"""Declarations that name their axes: what bounds an entry, or ends what is defined, at coordinates in any order."""

from __future__ import annotations

from typing import Any

import pytest

import tilelink
from tests.lowered import parse_lowered
from tilelink import compiler
from tilelink.errors import TileLinkError
from tilelink.ir.printer import print_program
from tilelink.ir.program import Program
from tilelink.language import Dim, Index, by, f32, let, rank, ranks, silu, tile_push_data, tiles, zeros
from tilelink.lowering.listing import listing
from tilelink.reference.trial import compared, random_inputs, relative_error

LAYERS = """program layers(U, M, H, C, k):
    x     : in        [U, M, H]
    count : in        [U, ranks] <= C
    rows  : in        [U, ranks, C] < M
    owner : in        [U, M, k] < ranks
    slot  : in        [u: U, m: M, q: k] < count[u, owner]
    n     : symmetric [U, ranks] <= C
    got   : symmetric [U, ranks, C, H]
    back  : symmetric [U, ranks, C, H]
    y     : out       [U, M, H]
    z     : out       [s: ranks, u: U, C[: n[u, s]], H]

    comm tell(u: U, p: ranks):
        tile_push_data(n[u, rank] @ p, count[u, p])

    comm dispatch(u: U, p: ranks, c: C[: count[u, p]]):
        tile_push_data(got[u, rank, c, :] @ p, x[u, rows[u, p, c], :])

    compute work(u: U, s: ranks, c: C[: n[u, s]]):
        tile_push_data(back[u, rank, c, :] @ s, silu(got[u, s, c, :]))
        z[s, u, c, :] = got[u, s, c, :]

    compute combine(u: U, i: M by 1):
        total = zeros(f32)
        for (q: k):
            total += back[u, owner[u, i, q], slot[u, i, q], :]
        y[u, i, :] = total
"""
DIMS = {"U": 2, "M": 12, "H": 8, "C": 12, "k": 2}


@tilelink.program
def layers(U: Dim, M: Dim, H: Dim, C: Dim, k: Dim) -> None:
    x = tilelink.input(U, M, H)
    count = tilelink.input(U, ranks, at_most=C)
    rows = tilelink.input(U, ranks, C, bound=M)
    owner = tilelink.input(U, M, k, bound=ranks)
    slot = tilelink.input(u := U, m := M, q := k, bound=count[u, owner[u, m, q]])
    n = tilelink.symmetric(U, ranks, at_most=C)
    got = tilelink.symmetric(U, ranks, C, H)
    back = tilelink.symmetric(U, ranks, C, H)
    y = tilelink.output(U, M, H)
    z = tilelink.output(s := ranks, u := U, C[: n[u, s]], H)

    @tilelink.comm
    def tell(u: Index = U, p: Index = ranks) -> None:
        tile_push_data(n[u, rank] @ p, count[u, p])

    @tilelink.comm
    def dispatch(u: Index = U, p: Index = ranks, c: Index = C) -> None:
        c = C[: count[u, p]]
        tile_push_data(got[u, rank, c, :] @ p, x[u, rows[u, p, c], :])

    @tilelink.compute
    def work(u: Index = U, s: Index = ranks, c: Index = C) -> None:
        c = C[: n[u, s]]
        tile_push_data(back[u, rank, c, :] @ s, silu(got[u, s, c, :]))
        z[s, u, c, :] = got[u, s, c, :]

    @tilelink.compute
    def combine(u: Index = U, i: Index = by(M, 1)) -> None:
        total = zeros(f32)
        for q in tiles(k):
            result = let(back[u, owner[u, i, q], slot[u, i, q], :])
            total += result
        y[u, i, :] = total


def changed(old: str, new: str) -> Program:
    assert old in LAYERS
    return tilelink.parse(LAYERS.replace(old, new)).program()


def test_both_front_ends_and_the_printed_form_are_one_program() -> None:
    program = tilelink.parse(LAYERS).program()
    assert program == layers
    printed = print_program(program)
    assert "[u: U, m: M, q: k] < count[u, owner]" in printed and "[s: ranks, u: U, C[:n[u, s]], H]" in printed
    assert tilelink.parse(printed).program() == program
    bound = compiler.bound(program, dims=DIMS, ranks=2)
    assert listing(parse_lowered(listing(bound))) == listing(bound)


def test_it_runs_for_every_routing() -> None:
    kernel = tilelink.compile(layers, dims=DIMS, ranks=3)
    options: dict[str, Any] = {"ranks": 3, "dims": DIMS, "dtype": "f32", "launches": 1}
    routings = ("uniform", "full", "zipf:1.2", "uniform")
    launches = [random_inputs(layers, **options, seed=n, routing=one)[0] for n, one in enumerate(routings)]
    for given, outputs in zip(launches, kernel.run(launches, seed=1, max_delay_s=0.0005).outputs, strict=True):
        expected = kernel.reference(given)
        for name in ("y", "z"):
            assert relative_error(*compared(outputs, expected, name)) < 1e-5


def test_an_entry_beyond_the_bound_at_its_own_coordinates_is_refused() -> None:
    """The count of the other layer is large enough."""
    kernel = tilelink.compile(layers, dims=DIMS, ranks=2)
    given = random_inputs(layers, ranks=2, dims=DIMS, dtype="f32", launches=1)[0]
    given[1]["count"][0] = 3
    given[1]["count"][1] = 12
    given[1]["slot"][0] = 2
    kernel(given)
    given[1]["slot"][0, 5, 1] = 3
    with pytest.raises(TileLinkError, match="slot"):
        kernel(given)
    with pytest.raises(TileLinkError, match="slot"):
        kernel.reference(given)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count[u, owner]", "count[u, owner] + 1", "reaches outside back"),
        ("count[u, owner]", "count[q, owner]", "and reads at slot"),
        ("count[u, owner]", "count[u, q]", "and reads at slot"),
        ("count[u, owner]", "count[u, owner[u, m, 0]]", "and reads at slot"),
        ("count[u, owner]", "count[u, owner[0, m, q]]", "and reads at slot"),
        ("count[u, owner]", "count[m, owner]", r"looks up count\[m, owner\], where m may be 11"),
        ("count[u, owner]", "count[u + 1, owner]", r"looks up count\[u \+ 1, owner\], where u \+ 1 may be 2"),
        ("slot[u, i, q], :]", "slot[1 - u, i, q], :]", "and reads at slot"),
        ("owner[u, i, q], slot", "owner[u, i, 0], slot", "and reads at slot"),
        ("C[: n[u, s]], H]", "C[: n[1 - u, s]], H]", "writes z up to"),
        ("C[: n[u, s]], H]", "C[: n[u, s] + 1], H]", "writes z up to"),
        ("[s: ranks, u: U, C[: n[u, s]], H]", "[s: ranks, u: U, C[: n[u, h]], h: H]", "h is no axis before this one"),
        ("[s: ranks, u: U, C[: n[u, s]], H]", "[s: ranks, s: U, C[: n[0, s]], H]", "s is declared twice"),
        ("q: k] <", "count: k] <", "count is declared twice"),
        ("q: k] <", "rank: k] <", "rank is a word of the language"),
        ("count[u, owner]", "count[v, owner]", "unknown name 'v'"),
    ],
)
def test_mutants_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(TileLinkError, match=message):
        tilelink.plan(changed(old, new), dims=DIMS, ranks=3)


@pytest.mark.parametrize(("bound", "message"), [("count[:, owner]", "all of count"), ("count", "which entry of count")])
def test_a_bound_at_unnamed_coordinates_is_told_to_name_them(bound: str, message: str) -> None:
    with pytest.raises(TileLinkError, match=message) as caught:
        text = LAYERS.replace("[u: U, m: M, q: k] < count[u, owner]", f"[U, M, k] < {bound}")
        tilelink.parse(text.replace("count : in        [U, ranks]", "count : in        [U, ranks, 1, 1]"))
    assert caught.value.hint is not None and "slot : in [u: U, m: M] < count[u, ...]" in caught.value.hint
