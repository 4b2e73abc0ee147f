"""Ranges of stages of a group: their ends are read on the ranks that execute the stage, after its first waits."""

from __future__ import annotations

from typing import Any

import pytest

import tilelink
from tests.lowered import parse_lowered
from tilelink import compiler
from tilelink.errors import TileLinkError
from tilelink.ir.printer import print_program
from tilelink.ir.program import If, Program, Wait
from tilelink.language import Dim, Index, rank, ranks, silu, tile_push_data
from tilelink.lowering.listing import listing
from tilelink.reference.trial import compared, random_inputs, relative_error

TOLD = """program told(A, C, K) over attention = ranks[0 : A], experts = ranks[A :]:
    x     : in        [experts, C, K] on attention
    count : in        [experts] <= C on attention
    n     : symmetric [attention] <= C on experts
    got   : symmetric [attention, C, K] on experts
    y     : out       [attention, C[: n], K] on experts

    comm tell(e: experts) on attention:
        tile_push_data(n[rank.attention] @ experts[e], count[e])
        notify(n[rank.attention] @ experts[e])

    comm dispatch(e: experts, c: C[: count[e]]) on attention:
        tile_push_data(got[rank.attention, c, :] @ experts[e], x[e, c, :])
        notify(got[rank.attention, c, :] @ experts[e])

    compute expert(s: attention, c: C[: n[s]]) on experts:
        wait(n[s])
        wait(got[s, c, :])
        y[s, c, :] = silu(got[s, c, :])
"""
ALONE = """program alone(A, M, N) over few = ranks[0 : A], others = ranks[A :]:
    n : in  [] <= M on others
    x : in  [M, N]
    y : out [M[: n], N] on others

    compute double(i: M[: n], j: N) on others:
        y[i, j] = x[i, j] * 2.0
"""
"""Tiles of it may have compact numbers, which a kernel computes at its start, if each rank has what they are from."""
DIMS = {"A": 2, "C": 12, "K": 8, "M": 40, "N": 8}


@tilelink.program
def told(A: Dim, C: Dim, K: Dim) -> None:
    attention = ranks[0:A]
    experts = ranks[A:]
    x = tilelink.input(experts, C, K, on=attention)
    count = tilelink.input(experts, at_most=C, on=attention)
    n = tilelink.symmetric(attention, at_most=C, on=experts)
    got = tilelink.symmetric(attention, C, K, on=experts)
    y = tilelink.output(attention, C[:n], K, on=experts)

    @tilelink.comm(on=attention)
    def tell(e: Index = experts) -> None:
        tile_push_data(n[rank.attention] @ experts[e], count[e])

    @tilelink.comm(on=attention)
    def dispatch(e: Index = experts, c: Index = C) -> None:
        c = C[: count[e]]
        tile_push_data(got[rank.attention, c, :] @ experts[e], x[e, c, :])

    @tilelink.compute(on=experts)
    def expert(s: Index = attention, c: Index = C) -> None:
        c = C[: n[s]]
        y[s, c, :] = silu(got[s, c, :])


def dims_of(program: Program) -> dict[str, int]:
    return {one.name: DIMS[one.name] for one in program.params}


def changed(old: str, new: str, text: str = TOLD) -> Program:
    assert old in text
    return tilelink.parse(text.replace(old, new)).program()


@pytest.mark.parametrize("program", [tilelink.parse(TOLD).program(), told, tilelink.parse(ALONE).program()], ids=str)
@pytest.mark.parametrize("number", [3, 4])
def test_it_runs(program: Program, number: int) -> None:
    dims = dims_of(program)
    kernel = tilelink.compile(program, dims=dims, ranks=number)
    options: dict[str, Any] = {"ranks": number, "dims": dims, "dtype": "f32", "launches": 1}
    routings = ("uniform", "full", "empty", "zipf:1.2")
    launches = [random_inputs(program, **options, seed=n, routing=one)[0] for n, one in enumerate(routings)]
    for given, outputs in zip(launches, kernel.run(launches, seed=1, max_delay_s=0.0005).outputs, strict=True):
        assert relative_error(*compared(outputs, kernel.reference(given), "y")) < 1e-5


def test_derived_waits_stand_in_the_part_of_the_group() -> None:
    (branch,) = told.stage("expert").body
    assert isinstance(branch, If) and [type(one) for one in branch.then[:2]] == [Wait, Wait]
    printed = print_program(told)
    assert tilelink.parse(printed).program() == told
    written = tilelink.parse(TOLD).program()
    assert print_program(written).replace("program told", "") == printed.replace("program told", "")


def test_the_lowered_program_is_read_back() -> None:
    bound = compiler.bound(tilelink.parse(TOLD).program(), dims=dims_of(told), ranks=3)
    assert listing(parse_lowered(listing(bound))) == listing(bound)


def test_ranks_without_the_integers_do_not_read_them_at_the_start_of_a_kernel() -> None:
    program = tilelink.parse(ALONE).program()
    bound = compiler.bound(program, dims=dims_of(program), ranks=3)
    assert not bound.compact_stages
    everywhere = changed("<= M on others", "<= M", ALONE)
    assert compiler.bound(everywhere, dims=dims_of(program), ranks=3).compact_stages


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("        wait(n[s])\n", "", "expert tile .* reads n .* nothing orders the two"),
        (
            "        wait(n[s])\n        wait(got[s, c, :])\n",
            "        wait(got[s, c, :])\n        wait(n[s])\n",
            "reads n",
        ),
        ("wait(n[s])", "wait(n[0])", "reads n"),
        ("c: C[: n[s]]", "c: C[: n[s] + 1]", "writes y up to"),
        ("c: C[: n[s]]", "c: C[: n[0]]", "writes y up to"),
        ("c: C[: n[s]]", "c: C", "reads got .* reads all of that dimension"),
        ("c: C[: count[e]]) on attention", "c: C[: count[e] - 1]) on attention", "parts of which no stage writes"),
        ("c: C[: count[e]]) on attention", "c: C[: count[e]])", "outside of attention has no place"),
        ("c: C[: n[s]]) on experts", "c: C[: n[s]])", "experts alone has n"),
        ("c: C[: n[s]]) on experts", "c: C[: n[s]]) on attention", "experts alone has n"),
        ("e: experts) on attention", "e: experts)", "outside of attention has no place"),
        ("n[rank.attention] @ experts[e], count[e]", "n[rank.attention] @ experts[e + 1], count[e]", "up to count"),
        ("        notify(n[rank.attention] @ experts[e])\n", "", "no producer_tile_notify of the program names"),
    ],
)
def test_mutants_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(TileLinkError, match=message):
        tilelink.plan(changed(old, new), dims=dims_of(told), ranks=4)


def test_a_condition_by_hand_is_that_of_a_group() -> None:
    by_hand = changed(
        ") on experts:\n        wait(n[s])\n        wait(got[s, c, :])\n        y[s, c, :] = silu(got[s, c, :])\n",
        "):\n        if rank >= A:\n            wait(n[s])\n            wait(got[s, c, :])\n"
        "            y[s, c, :] = silu(got[s, c, :])\n",
    )
    assert by_hand == tilelink.parse(TOLD).program()


def test_a_condition_with_something_beside_it_is_none_of_the_whole_stage() -> None:
    """Then every rank reads the ends of the range, and n is there on some alone."""
    text = changed(
        ") on experts:\n        wait(n[s])\n        wait(got[s, c, :])\n        y[s, c, :] = silu(got[s, c, :])\n",
        "):\n        if rank >= A:\n            wait(n[s])\n            wait(got[s, c, :])\n"
        "            y[s, c, :] = silu(got[s, c, :])\n        t = 1.0\n",
    )
    with pytest.raises(TileLinkError, match="experts alone has n"):
        tilelink.plan(text, dims=dims_of(told), ranks=3)
