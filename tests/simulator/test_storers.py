"""Kernels whose warps have roles, simulated: their storers push results while other warps multiply the next tile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulator.cases import IDEAL, Fixed, planned
from tilelink.simulator import Simulated, simulate
from tilelink.simulator.script import COMPUTE, MOVE, SIGNAL
from tilelink.simulator.trace import trace_events

TEXT = """program relay(M, N, K):
    x : in            [M, K]
    w : in            [N, K]
    y : out symmetric [2, M, N]

    compute gemm(i: M, j: N):
        acc = dot(x[i, :], w[j, :].T)
        tile_push_data(y[0, i, j] @ (rank + 1), acc)
        tile_push_data(y[1, i, j] @ (rank + 1), acc)
        producer_tile_notify(y[0, i, j] @ (rank + 1))
        producer_tile_notify(y[1, i, j] @ (rank + 1))

schedule one for relay:
    gemm on sm, tile(i=128, j=256, k=64), num_warps 8{more}
"""
TILES = 4
TILE = 100e-6
BYTES = 2 * 128 * 256 * 2
"""What a tile pushes."""


def simulated(store: float, more: str = ", roles(consumers=2, buffers=4)") -> Simulated:
    """Tiles on one SM of each of two ranks, of which a product takes TILE seconds and the pushes `store`."""
    plan = planned(TEXT.format(more=more), sms=1, dtype="bf16", M=128 * TILES, N=256, K=64)
    machine = replace(IDEAL, roles_overhead=0.0, link_bandwidth=BYTES / store)
    return simulate(plan, machine, cost=Fixed(seconds=TILE))


@pytest.mark.parametrize("store", [0.25 * TILE, 0.75 * TILE])
def test_short_pushes_are_hidden_but_for_the_last(store: float) -> None:
    result = simulated(store)
    assert result.seconds == pytest.approx(TILES * TILE + store)
    assert simulated(store, more="").seconds == pytest.approx(TILES * (TILE + store))


def test_a_product_waits_for_the_storer_of_the_tile_before() -> None:
    store = 1.5 * TILE
    result = simulated(store)
    assert result.seconds == pytest.approx(TILE + TILES * store)
    t = result.timeline
    products = np.flatnonzero((t.script.kind == COMPUTE) & (t.script.rank == 0))
    begins = [0, TILE, TILE + store, TILE + 2 * store]
    assert t.begin[products].tolist() == pytest.approx(begins)


def test_a_notify_follows_the_pushes_of_its_tile() -> None:
    store = 0.5 * TILE
    t = simulated(store).timeline
    for kind, after in ((MOVE, store), (SIGNAL, store)):
        rows = np.flatnonzero((t.script.kind == kind) & (t.script.rank == 0))
        ends = sorted(set(np.round(t.end[rows] / TILE, 6).tolist()))
        assert ends == pytest.approx([(n + 1) + after / TILE for n in range(TILES)])
    assert np.nanmin(t.full) == pytest.approx(TILE + store)


@pytest.mark.parametrize("store", [0.5 * TILE, 1.5 * TILE])
def test_the_parts_of_the_time_add_up_and_only_what_is_not_hidden_is_a_transfer(store: float) -> None:
    result = simulated(store)
    for seconds, breakdown in zip(result.rank_seconds, result.breakdowns, strict=True):
        assert breakdown.total == pytest.approx(seconds)
        assert breakdown.work == pytest.approx(TILES * TILE)
        assert breakdown.copy == pytest.approx(seconds - TILES * TILE)


def test_a_storer_has_a_track_of_its_own() -> None:
    events = list(trace_events(simulated(0.5 * TILE)))
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 0}
    shown = {(tracks[e["tid"]], e["cat"]) for e in events if e["ph"] == "X" and e["pid"] == 0}
    assert shown >= {("gemm program 0", "compute"), ("gemm program 0 storer", "transfer")}
    assert ("gemm program 0", "transfer") not in shown
