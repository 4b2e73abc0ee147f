"""What a launch does besides its tiles: copies for the caller, the order of its copy engine, looks at counters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulator.cases import IDEAL, SHIFT, Fixed, planned
from tilelink import compiler
from tilelink.planning.queue_order import with_queue_order
from tilelink.simulator import simulate
from tilelink.simulator.cost import Move, MoveTime, Roofline
from tilelink.simulator.engine import simulate_script
from tilelink.simulator.machine import Machine, load_machine
from tilelink.simulator.script import AWAIT, MOVE, SIGNAL, Script, make_script

SIZE = 64 * 256 * 4
"""Bytes of x."""
HAND_ON = """\
program hand_on(M, N):
    x : in {x} [M, N]
    y : out symmetric [M, N]

    comm send(i: M):
        tile_push_data(y[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(y[i, :] @ (rank + 1))

schedule engine for hand_on:
    send on copy_engine, tile(i=64)
"""
GATHER = """\
program gather(M, N):
    x  : in        [M, N]
    xs : symmetric [ranks, M, N]
    y  : out       [ranks, M, N]

    comm send(p: ranks, i: M):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)

    compute take(s: ranks, i: M):
        consumer_tile_wait(xs[s, i, :])
        y[s, i, :] = xs[s, i, :]

schedule local_last for gather:
    send on copy_engine, tile(i=64), order(p = rank + 1 step +1)
    take on sm, tile(i=64), order(s = rank step +1)

schedule own_first for gather:
    send on copy_engine, tile(i=64), order(p = rank step +1)
    take on sm, tile(i=64), order(s = rank step +1)
"""


class Copying(Fixed):
    """As Fixed, but copies within a rank have the given rate."""

    def move(self, move: Move, machine: Machine) -> MoveTime:
        return MoveTime(rate=self.rate if move.reach == "local" else float("inf"))


def test_symmetric_tensors_of_the_caller_are_copied() -> None:
    """Out of the buffer after the launch, and into it before: each pays its bytes and a kernel."""
    machine = replace(IDEAL, kernel_gap=0.25)
    cost = Copying(seconds=0.0, rate=1e6)
    sent, copied = SIZE / 1e9, 0.25 + SIZE / 1e6
    for x, copies in (("", 1), ("symmetric", 2)):
        plan = planned(HAND_ON.format(x=x), ranks=2, M=64, N=256)
        assert simulate(plan, machine, cost=cost).seconds == pytest.approx(sent + copies * copied)
    inner = planned(SHIFT, schedule="engine", M=64, N=256)
    assert simulate(inner, machine, cost=cost).seconds == pytest.approx(sent)


def test_where_peers_read_inputs_a_small_kernel_opens_the_launch() -> None:
    text = """\
program take(M, N):
    x : in symmetric [M, N]
    y : out          [M, N]

    comm get(i: M):
        tile_pull_data(y[i, :], x[i, :] @ (rank + 1))

schedule one for take:
    get on sm(1), tile(i=64)
"""
    plan = planned(text, ranks=2, M=64, N=256)
    staged = 0.25 + SIZE / 1e6
    machine, cost = replace(IDEAL, kernel_gap=0.25), Copying(seconds=0.0, rate=1e6)
    beside = 2 * 0.25  # the only kernel has a stream of its own
    opened = staged + 0.25 + SIZE / 1e9 + beside
    assert simulate(plan, machine, cost=cost).seconds == pytest.approx(opened)
    late = simulate(plan, machine, cost=cost, offsets=[0.0, 3.0])
    assert late.rank_seconds[0] == pytest.approx(3.0 + opened - 0.25)  # it had begun by then


def test_kernels_beside_the_callers_stream_begin_and_are_joined_a_kernel_later() -> None:
    plan, cost = planned(SHIFT, schedule="copy_sms", M=64, N=256), Fixed(seconds=0.0, rate=1e8)
    alone = simulate(plan, IDEAL, cost=cost)
    beside = simulate(plan, replace(IDEAL, kernel_gap=0.25), cost=cost)
    assert beside.seconds == pytest.approx(alone.seconds + 2 * 0.25)
    assert beside.breakdowns[0].tail == pytest.approx(alone.breakdowns[0].tail + 0.25)
    engine = planned(SHIFT, schedule="engine", M=64, N=256)
    for gap in (0.0, 0.25):
        result = simulate(engine, replace(IDEAL, kernel_gap=gap), cost=Fixed(seconds=0.0))
        assert result.seconds == pytest.approx(SIZE / 1e9)


MADE = """\
program make(M, N):
    x : in        [M, N]
    c : local     [M, N]
    y : symmetric [M, N]
    z : out       [M, N]

    compute work(i: M):
        c[i, :] = x[i, :] + 1
        producer_tile_notify(c[i, :])

    comm send(i: M):
        consumer_tile_wait(c[i, :])
        tile_push_data(y[i, :] @ (rank + 1), c[i, :])
        producer_tile_notify(y[i, :] @ (rank + 1))

    compute take(i: M):
        consumer_tile_wait(y[i, :])
        z[i, :] = y[i, :]

schedule engine for make:
    work on sm, tile(i=64)
    send on copy_engine, tile(i=64)
    take on sm, tile(i=64)

schedule engine_at_once for make:
    work on sm, tile(i=64)
    send on copy_engine, tile(i=256)
    take on sm, tile(i=64)
    c channel(i=64)
"""


def test_a_copy_engine_that_waited_goes_on_later() -> None:
    """For the first tile it waits; the second one is there by the time that the first has been sent."""
    plan = planned(MADE, schedule="engine", sms=2, M=128, N=256)
    at_once = simulate(plan, IDEAL, cost=Fixed(seconds=1e-6)).seconds
    assert at_once == pytest.approx(1e-6 + 2 * SIZE / 1e9 + 1e-6)
    later = simulate(plan, replace(IDEAL, copy_wait=0.5), cost=Fixed(seconds=1e-6)).seconds
    assert later == pytest.approx(at_once + 0.5)


def ended(script: Script) -> float:
    """When the last worker ends."""
    return float(simulate_script(script, [0.0] * script.plan.bound.ranks).worker_end.max())


def test_waits_of_a_copy_engine_are_over_while_it_copies() -> None:
    """Beside its copies, one after the other; in line where they may not be."""
    waiting = replace(IDEAL, copy_signal=1e-6)
    plan = planned(MADE, schedule="engine", sms=2, M=256, N=256)
    script = make_script(plan, waiting, Fixed(seconds=0.0))
    copies = 4 * SIZE / 1e9
    aside, in_line = (ended(replace(script, waits_aside=on)) for on in (True, False))
    assert script.waits_aside
    assert aside == pytest.approx(copies + 1e-6 + 4 * 1e-6)  # the first wait, and a flag behind each copy
    assert in_line == pytest.approx(copies + 4 * 1e-6 + 4 * 1e-6)
    plan = planned(MADE, schedule="engine_at_once", sms=2, M=256, N=256)
    script = make_script(plan, waiting, Fixed(seconds=0.0))
    assert ended(script) == pytest.approx(copies + 4 * 1e-6 + 1e-6), "four waits, one after the other, and a flag"


def test_a_notify_takes_its_program_until_its_stores_are_seen() -> None:
    """On its own rank as well as on another one."""
    plan = planned(MADE, schedule="engine", sms=2, M=64, N=256)
    at_once, later = (simulate(plan, replace(IDEAL, fence=f), cost=Fixed(seconds=0.0)).seconds for f in (0.0, 0.25))
    assert later == pytest.approx(at_once + 0.25)


def test_a_copy_engine_begins_with_what_stays_on_its_rank() -> None:
    machine = replace(IDEAL, copy_signal=0.5)
    results = {
        name: simulate(planned(GATHER, ranks=3, schedule=name, M=64, N=256), machine, cost=Fixed(seconds=1.0))
        for name in ("local_last", "own_first")
    }
    assert results["local_last"].seconds == pytest.approx(results["own_first"].seconds)
    timeline = results["local_last"].timeline
    script = timeline.script
    worker = next(
        n for n, (kernel, _, _) in enumerate(script.plan.workers) if script.plan.bound.kernels[kernel].on_copy_engine
    )
    rows = slice(script.first[worker], script.first[worker + 1])
    moves = script.what[rows][script.kind[rows] == MOVE]
    assert script.moves.reach[moves].tolist() == [0, 1, 1]
    assert script.kind[rows].tolist() == [MOVE, SIGNAL] * 3
    assert script.early[rows].tolist() == [False, True, False, False, False, False]
    signals = (timeline.end - timeline.begin)[rows][script.kind[rows] == SIGNAL]
    assert signals.tolist() == pytest.approx([0.0, 0.5, 0.5])


def test_a_copy_engine_that_waits_keeps_what_comes_behind_in_order() -> None:
    text = """\
program behind(M, N):
    x : in        [M, N]
    c : local     [ranks, M, N]
    h : symmetric [ranks, M, N]
    y : out       [ranks, M, N]

    compute make(s: ranks, i: M):
        c[s, i, :] = x[i, :]
        producer_tile_notify(c[s, i, :])

    comm send(s: ranks, i: M):
        consumer_tile_wait(c[s, i, :])
        tile_push_data(h[rank, i, :] @ s, c[s, i, :])
        producer_tile_notify(h[rank, i, :] @ s)

    compute take(s: ranks, i: M):
        consumer_tile_wait(h[s, i, :])
        y[s, i, :] = h[s, i, :]

schedule engine for behind:
    make on sm, tile(i=64)
    send on copy_engine, tile(i=64), order(s = rank + 1 step +1)
    take on sm, tile(i=64)
"""
    script = simulate(planned(text, ranks=3, M=64, N=256), IDEAL).timeline.script
    moves = script.what[(script.kind == MOVE) & (script.rank == 0)]
    assert script.moves.reach[moves].tolist() == [1, 1, 0]
    assert not script.early.any()


def test_a_look_at_a_full_counter_takes_time_and_the_end_of_a_wait_does_not() -> None:
    machine = replace(IDEAL, bare_wait=0.125)
    plan = planned(GATHER, ranks=2, schedule="own_first", sms=1, M=64, N=256)
    with_looks, without = (
        simulate(plan, m, cost=Copying(seconds=1.0, rate=1e6)).seconds for m in (machine, IDEAL)
    )  # fmt: skip
    first_waited_for, looks = 1, 1
    assert len(plan.bound.stages["take"].order) == 2 and first_waited_for + looks == 2
    assert with_looks - without == pytest.approx(looks * 0.125)


LOOKS = """
program halves(M, N):
    x : in        [M, N]
    g : symmetric [ranks, M, N]
    y : out       [M, {columns}]

    comm send(p: ranks, i: M):
        tile_push_data(g[rank, i, :] @ p, x[i, :])
        producer_tile_notify(g[rank, i, :] @ p)

    compute took(i: M):
        consumer_tile_wait(g[:, i, :])
        y[i, :] = {value}

schedule few for halves on sm_90:
    send on copy_engine, tile(i=16)
    took on sm, tile(i={rows})
"""


@pytest.mark.parametrize(
    ("rows", "value", "columns", "looks"),
    [
        (16, "sum(g[:, i, :], axis=0)", "N", (0, 1)),  # the counters of ranks are polled together
        (32, "sum(g[:, i, :], axis=0)", "N", (0, 2 * 2)),  # those of ranks and rows are not
        (16, "dot(g[0, i, :], g[1, :, :].T)", "M", (2, 0)),  # a product goes on meanwhile
    ],
)
def test_a_look_takes_longer_where_nothing_is_multiplied(
    rows: int, value: str, columns: str, looks: tuple[int, int]
) -> None:
    text = LOOKS.format(rows=rows, value=value, columns=columns)
    plan = planned(text, ranks=2, sms=1, dtype="bf16", M=64, N=64)
    script = make_script(plan, replace(IDEAL, wait=0.5, bare_wait=8.0), Roofline())
    tiles = np.isin(script.task, np.arange(plan.first_task["took"], plan.tasks)) & (script.kind == AWAIT)
    between, bare = looks
    every = plan.bound.ranks * plan.bound.stages["took"].total
    assert script.overhead[tiles].sum() == every * (0.5 * between + 8.0 * bare)


def test_loaders_wait_for_a_channel_once_in_a_tile() -> None:
    """Each tile attends to all keys of 2 ranks, which are in 8 or in 2 channels of each of 2 tensors."""
    module = compiler.load("ag_attention")
    dims = {"H": 1, "G": 1, "M": 512, "D": 64, "scale": 0.125}
    for rows, awaited in (128, 16), (512, 4):
        text = f"schedule own for ag_attention like gpu_roles:\n    ks channel(j={rows})\n    vs channel(j={rows})\n"
        (way,) = compiler.parse(f"{module.program()}\n{module.schedules[0]}\n{text}").schedules[1:]
        plan = compiler.plan(module.program(), way, ranks=2, dims=dims, dtype="bf16", target="sm_90")
        script = make_script(with_queue_order(plan), load_machine("8xH200"), Roofline())
        tiles = np.isin(script.task, np.arange(plan.first_task["attn"], plan.tasks))
        assert np.count_nonzero(tiles & (script.kind == AWAIT)) == awaited * plan.bound.stages["attn"].total * 2


def test_fewer_warps_copy_more_slowly() -> None:
    def rate(warps: int, **changes: float) -> float:
        return Roofline().move(Move(engine="push", reach="node", warps=warps), replace(IDEAL, **changes)).rate

    machine = {"sm_push_rate": 3e10, "sm_bandwidth": 8e10}
    assert rate(16, **machine) == pytest.approx(3e10)
    assert 1 / rate(4, **machine) - 1 / rate(8, **machine) == pytest.approx(4 / 8e10 / 8)
    assert rate(32, sm_push_rate=8e10, sm_bandwidth=8e10) == pytest.approx(8e10)


@pytest.mark.parametrize(("tile", "programs"), [(64, 1), (16, 4)])
def test_programs_without_a_tile_take_no_memory_bandwidth(tile: int, programs: int) -> None:
    text = GATHER.replace("on copy_engine, tile(i=64), order(p = rank step +1)", f"in take prologue, tile(i={tile})")
    text = text.replace("take on sm, tile(i=64)", "take on sm, tile(i=1)")
    plan = planned(text, ranks=1, schedule="own_first", M=64, N=256)
    assert [k.programs for k in plan.bound.kernels] == [64]
    moves = simulate(plan, replace(IDEAL, memory_bandwidth=1e8)).timeline.script.moves
    assert moves.rate.tolist() == pytest.approx([1e8 / 2 / programs] * programs)


def test_kernels_get_places_on_sms_in_the_order_in_which_they_are_issued() -> None:
    text = """\
program two(M, N):
    x : in  [M, N]
    y : out [M, N]
    z : out [M, N]

    compute first(i: M):
        y[i, :] = x[i, :] + 1

    compute second(i: M):
        z[i, :] = x[i, :] + 2

schedule apart for two:
    second on sm(1)
"""
    plan = planned(text, ranks=1, sms=2, M=64, N=64)
    bound = plan.bound
    assert {kernel.name: kernel.issue_index for kernel in bound.kernels} == {"first": 1, "second": 0}
    for indices in ((1, 0), (0, 1)):
        kernels = tuple(replace(k, issue_index=index) for k, index in zip(bound.kernels, indices, strict=True))
        one = replace(plan, bound=replace(bound, kernels=kernels, target=replace(bound.target, sms=1)))
        result = simulate_script(make_script(one, IDEAL, Fixed()), [0.0])
        begins = {bound.kernels[kernel].name: result.worker_begin[n] for n, (kernel, _, _) in enumerate(plan.workers)}
        assert (begins["second"] < begins["first"]) == (indices == (1, 0))
