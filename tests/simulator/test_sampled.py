"""Simulated launches of programs with index tensors: the work is that of the entries, and times are means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilelink
from tests.tiers import thorough
from tests.traces import differences
from tilelink.compiler.samples import completed, draw
from tilelink.errors import BindingError
from tilelink.ir.program import Program
from tilelink.reference import trial
from tilelink.simulator.sampled import sampled

ROWS = """
program rows(Ms = 64, N = 16, K = 16):
    m  : in        [] <= Ms
    x  : in        [Ms, K]
    w  : in        [N, K]
    ms : symmetric [ranks] <= Ms
    xs : symmetric [ranks, Ms, K]
    y  : out       [ranks, Ms[:ms], N]

    comm tell(p: ranks):
        tile_push_data(ms[rank] @ p, m)
        producer_tile_notify(ms[rank] @ p)
    comm gather(p: ranks, i: Ms[:m]):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)
    compute gemm(s: ranks, i: Ms[: ms[s]], j: N):
        consumer_tile_wait(ms[s])
        consumer_tile_wait(xs[s, i, :])
        y[s, i, j] = dot(xs[s, i, :], w[j, :].T)
"""
MOE = """
program moe(Ms = 32, K = 16, N = 16, E = 2, T = 32):
    x      : in        [Ms, K]
    w      : in        [E, N, K]
    rows   : in        [T] < ranks * Ms
    starts : in        [E + 1] <= T offsets
    xs     : symmetric [ranks * Ms, K]
    y      : out       [T[: starts[E]], N]

    comm gather(p: ranks, i: Ms):
        tile_push_data(xs[rank * Ms + i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank * Ms + i, :] @ p)
    compute experts(e: E, r: T[starts[e] : starts[e + 1]], j: N):
        consumer_tile_wait(xs[rows[r], :])
        y[r, j] = dot(xs[rows[r], :], w[e, j, :].T)
"""
ROWS_DIMS, MOE_DIMS = {"Ms": 64, "N": 16, "K": 16}, {"Ms": 32, "K": 16, "N": 16, "E": 2, "T": 32}


def program_of(text: str) -> Program:
    return tilelink.parse(text).program()


def test_transfers_are_those_of_the_rows_that_there_are() -> None:
    plan = tilelink.plan(program_of(ROWS), ranks=2, dims=ROWS_DIMS)
    (sample,) = completed(plan, [{"m": np.array([20, 0])}], routing="uniform")
    assert sample["ms"].tolist() == [[20, 0], [20, 0]]
    launch = sampled(plan, sample)
    number = plan.bound.tensors["xs"].number
    assert launch.transfers.elements[launch.transfers.tensor == number].sum() == 2 * 20 * 16
    assert len(launch.signals.task) == len(plan.signals.task)
    assert (plan.accesses.guard > 0).any() and not (launch.accesses.guard > 0).any()


def test_a_tile_of_places_waits_for_the_channels_that_its_entries_name() -> None:
    plan = tilelink.plan(program_of(MOE), ranks=2, dims=MOE_DIMS)
    rows = np.full((2, 32), 3)
    rows[:, 1] = 40
    starts = np.array([[0, 2, 2], [0, 0, 0]])
    launch = sampled(plan, {"rows": rows, "starts": starts})
    reads = launch.accesses.tensor == plan.bound.tensors["xs"].number
    reads &= launch.accesses.kind == 0
    assert launch.elements[reads].tolist() == [2 * 16]
    assert len(launch.signals.channel[launch.signals.kind == 2]) == 2


COUNTED = """
program counted(M = 20):
    f    : in        [M] i32
    mine : local     [] <= M
    told : symmetric [ranks] <= M
    half : symmetric [ranks] <= M
    x    : in        [M]
    y    : out       [M[: mine]]

    comm tell():
        k = sum(where(f[:] > 0, 1, 0), axis=0)
        mine[] = k
        producer_tile_notify(mine)
        for (p: ranks):
            tile_push_data(told[rank] @ p, k)
            tile_push_data(half[rank] @ p, k // 2)
            producer_tile_notify(told[rank] @ p)

    compute take(i: M[: mine]):
        consumer_tile_wait(mine)
        y[i] = x[i]

    compute wait():
        consumer_tile_wait(told[:])
"""


def test_what_a_stage_counts_is_drawn_once_for_all_who_are_told() -> None:
    plan = tilelink.plan(program_of(COUNTED), ranks=3, dims={"M": 20})
    (sample,) = completed(plan, [{}], routing="uniform", seed=5)
    assert len(set(sample["mine"].tolist())) > 1
    assert sample["told"].tolist() == [sample["mine"].tolist()] * 3
    assert sample["half"].tolist() == [(sample["mine"] // 2).tolist()] * 3


def test_times_are_means_and_follow_the_routing() -> None:
    program = program_of(ROWS)
    sizes = {"Ms": 2048, "N": 256, "K": 2048}
    full, empty, uniform = (
        tilelink.simulate(program, ranks=2, dims=sizes, routing=one) for one in ("full", "zeros", "uniform")
    )
    assert empty.seconds < uniform.seconds < full.seconds
    assert len(uniform.draws) == 3 and uniform.seconds == pytest.approx(sum(uniform.draws) / 3)
    assert empty.bound.seconds < uniform.bound.seconds < full.bound.seconds < full.seconds


def test_recorded_index_tensors(tmp_path: Path) -> None:
    program = program_of(ROWS)
    np.savez(tmp_path / "rows.npz", m=np.array([[5, 6], [7, 8]]))
    launches = draw(program, ranks=2, dims=ROWS_DIMS, routing=tmp_path / "rows.npz")
    assert [one["m"].tolist() for one in launches] == [[5, 6], [7, 8]]
    np.savez(tmp_path / "wrong.npz", m=np.array([5, 65]))
    with pytest.raises(BindingError, match="m of rank 1 is 65"):
        draw(program, ranks=2, dims=ROWS_DIMS, routing=tmp_path / "wrong.npz")
    with pytest.raises(BindingError, match="cannot be read"):
        draw(program, ranks=2, dims=ROWS_DIMS, routing=tmp_path / "none.npz")


@thorough(unless=lambda dims: dims is MOE_DIMS)
@pytest.mark.parametrize(("text", "dims"), [(ROWS, ROWS_DIMS), (MOE, MOE_DIMS)], ids=["rows", "moe"])
def test_traces_have_all_signals_and_no_other_data(text: str, dims: dict[str, int]) -> None:
    program = program_of(text)
    kernel = tilelink.compile(program, ranks=2, dims=dims)
    inputs = trial.random_inputs(program, ranks=2, dims=dims, dtype="f32", launches=2, seed=1)
    traces = kernel.run(inputs, trace=True).traces
    workers = {(one.rank, one.stream, one.program): list(one.events) for one in traces}
    assert differences(kernel.plan, workers, 2) == []
    key = next(key for key, events in workers.items() if any(event[0] == "notify" for event in events))
    gone = next(event for event in workers[key] if event[0] == "notify" and event[1] >= 0)
    assert differences(kernel.plan, {**workers, key: [e for e in workers[key] if e != gone]}, 2)
