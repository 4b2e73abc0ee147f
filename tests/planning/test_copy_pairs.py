"""Copies that overlap, as is asked of the queue of a copy engine: the right pairs, without a look at every pair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilelink import compiler
from tilelink.lowering.columns import Ints, expand
from tilelink.planning import copy_queues
from tilelink.planning.copy_queues import overlapping, own_copies
from tilelink.planning.plan import Plan

TEXT = """program parts(M, N):
    x : in        [M, N]
    p : symmetric [ranks, M, N]
    y : out       [M, N]

    comm send(q: ranks, i: M, j: N):
        tile_push_data(p[rank, i, j] @ q, x[i, j])
        producer_tile_notify(p[rank, i, j] @ q)

    compute add(i: M, j: N):
        consumer_tile_wait(p[:, i, j])
        y[i, j] = x[i, j] + p[0, i, j]

schedule engine for parts:
    send on copy_engine, tile(i=4, j=4), order(q = 0 step +1, i, j)
    p buffers 1
"""


def planned(size: int) -> Plan:
    module = compiler.parse(TEXT, "parts.tl")
    sizes = {"M": size, "N": size}
    return compiler.plan(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="f32", target="sm_90")


def with_boxes(plan: Plan, peer: Ints, lo: Ints, hi: Ints) -> Plan:
    """Return a plan whose accesses of one tensor have the given boxes."""
    a = plan.accesses
    rows = np.flatnonzero(a.tensor == plan.bound.tensors["p"].number)[: len(peer)]
    return replace(plan, accesses=replace(a.pick(rows), peer=peer, lo=lo, hi=hi))


@pytest.mark.parametrize("seed", range(12))
def test_pairs_are_those_of_a_comparison_of_all(seed: int) -> None:
    chance = np.random.default_rng(seed)
    n, dims = 80, 3
    lo = chance.integers(0, 12, (n, dims))
    longest = (1, 3, 12)[seed % 3]
    hi = lo + chance.integers(1, longest + 1, (n, dims))
    peer = chance.integers(0, 2, n)
    plan = with_boxes(planned(32), peer, lo, hi)
    one, other = np.arange(0, 30), np.arange(20, n)
    found = sorted(zip(*(rows.tolist() for rows in overlapping(plan, one, other)), strict=True))
    a = plan.accesses
    assert found == [
        (f, s)
        for f in range(30)
        for s in range(20, n)
        if a.peer[f] == a.peer[s] and (a.lo[f] < a.hi[s]).all() and (a.lo[s] < a.hi[f]).all()
    ]


def test_pairs_that_are_looked_at_grow_with_the_tiles_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []

    def counted(low: Ints, high: Ints, counts: tuple[int, ...]) -> tuple[Ints, Ints]:
        source, at = expand(low, high, counts)
        looked.append(len(source))
        return source, at

    monkeypatch.setattr(copy_queues, "expand", counted)
    plan = planned(64)
    own = own_copies(plan)
    assert len(own.overtaken) and not own.conflict
    tiles = plan.bound.stages["send"].total * plan.bound.ranks
    assert looked and sum(looked) <= 2 * tiles
