"""Cases whose time can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.cases import COLLECT, IDEAL, SCALE, SHIFT, Fixed, planned
from tilelink.errors import MachineError
from tilelink.simulator import simulate

ROW = 256 * 4
"""Bytes of a row of 256 f32."""


@pytest.mark.parametrize(("rows", "waves"), [(16 * 8, 1), (16 * 9, 2), (16 * 17, 3)])
def test_tiles_run_in_waves(rows: int, waves: int) -> None:
    plan = planned(SCALE, ranks=1, sms=8, M=rows, N=16)
    result = simulate(plan, IDEAL, cost=Fixed(seconds=2.0))
    assert result.seconds == pytest.approx(2.0 * waves)
    tiles = rows // 16
    assert result.breakdowns[0].work == pytest.approx(2.0 * tiles / 8)
    assert result.breakdowns[0].tail == pytest.approx(2.0 * (waves - tiles / 8))


def test_a_kernel_takes_time_to_start() -> None:
    plan = planned(SCALE, ranks=1, M=16, N=16)
    result = simulate(plan, replace(IDEAL, kernel_start=0.5), cost=Fixed())
    assert result.seconds == pytest.approx(1.5)
    assert result.breakdowns[0].start_up == pytest.approx(0.5)


def test_copies_pay_their_calls_and_share_nothing() -> None:
    machine = replace(IDEAL, copy_start=14e-3, copy_call=3e-3, copy_signal=1e-3)
    result = simulate(planned(SHIFT, schedule="engine", M=256, N=256), machine, cost=Fixed(seconds=0.0))
    copies, signals = 4, 4
    sent = 14e-3 + 3 * 3e-3 + (copies * 64 * ROW) / 1e9 + signals * 1e-3
    assert result.seconds == pytest.approx(sent)
    assert result.bound.transfer == pytest.approx(256 * ROW / 1e9)


def test_a_wait_ends_one_signal_after_the_notify() -> None:
    machine = replace(IDEAL, signal_latency=0.25)
    result = simulate(planned(SHIFT, schedule="engine", M=64, N=256), machine, cost=Fixed(seconds=1.0))
    assert result.seconds == pytest.approx(64 * ROW / 1e9 + 0.25 + 1.0)
    assert result.breakdowns[0].start_up == pytest.approx(64 * ROW / 1e9 + 0.25)
    assert result.breakdowns[0].waiting == 0


def test_senders_share_the_way_into_their_target() -> None:
    """Three peers send to rank 0 at once, which its ingress serves one third each; its own copy needs no link."""
    result = simulate(planned(COLLECT, ranks=4, M=256, N=256), IDEAL, cost=Fixed(seconds=0.0))
    assert result.rank_seconds[0] == pytest.approx(3 * 256 * ROW / 1e9)
    assert result.rank_seconds[1] == pytest.approx(3 * 256 * ROW / 1e9)


def test_programs_that_copy_are_bound_by_their_own_rate() -> None:
    plan = planned(SHIFT, schedule="copy_sms", M=256, N=256)
    slow = simulate(plan, IDEAL, cost=Fixed(seconds=0.0, rate=1e8)).seconds
    assert slow == pytest.approx(256 * ROW / 4 / 1e8)
    fast = simulate(plan, IDEAL, cost=Fixed(seconds=0.0, rate=1e9)).seconds
    assert fast == pytest.approx(256 * ROW / 1e9)


def test_the_network_is_between_nodes() -> None:
    plan = planned(SHIFT, ranks=2, schedule="engine", M=64, N=256)
    machine = replace(IDEAL, node_ranks=1, network_latency=0.5)
    result = simulate(plan, machine, cost=Fixed(seconds=0.0))
    assert result.seconds == pytest.approx(64 * ROW / 1e8 + 0.5)
    assert result.bound.transfer == pytest.approx(64 * ROW / 1e8)


SENT = """program p(M, N):
    x : in [M, N]
    h : symmetric [M, N]
    y : out [M, N]

    comm send(i: M, j: N):
        tile_push_data(h[i, j] @ (rank + 1), x[i, j])
        producer_tile_notify(h[i, j] @ (rank + 1))

    compute add(i: M, j: N):
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j]

schedule whole for p:
    send on sm(1), tile(i=64, j=256)
    add on sm, tile(i=64, j=256)

schedule parts for p:
    send on sm(1), tile(i=64, j=128)
    add on sm, tile(i=64, j=256)
"""


@pytest.mark.parametrize(("schedule", "messages"), [("whole", 1), ("parts", 128)])
def test_an_adapter_sends_so_many_messages_in_a_second(schedule: str, messages: int) -> None:
    plan = planned(SENT, ranks=2, schedule=schedule, M=64, N=256)
    machine = replace(IDEAL, node_ranks=1, network_messages=1e3)
    seconds = simulate(plan, machine, cost=Fixed(seconds=0.0)).seconds
    assert seconds == pytest.approx(max(messages / 1e3, 64 * ROW / 1e8))
    assert simulate(plan, replace(machine, node_ranks=2), cost=Fixed(seconds=0.0)).seconds < seconds / 5


@pytest.mark.parametrize(("sharing", "nodes", "times"), [(1, 2, 1), (2, 2, 2), (3, 2, 2), (2, 4, 1)])
def test_ranks_that_share_an_adapter_share_its_bandwidth(sharing: int, nodes: int, times: int) -> None:
    far = SENT.replace("(rank + 1)", "((rank + 2) % ranks)")
    plan = planned(far, ranks=4, schedule="whole", M=64, N=256)
    machine = replace(IDEAL, node_ranks=4 // nodes, adapter_ranks=sharing)
    result = simulate(plan, machine, cost=Fixed(seconds=0.0))
    assert result.seconds == pytest.approx(times * 64 * ROW / 1e8)
    assert result.bound.transfer == pytest.approx(times * 64 * ROW / 1e8)


def test_ranks_that_launch_late_hold_up_those_that_wait_for_them() -> None:
    plan = planned(SHIFT, ranks=3, schedule="engine", M=64, N=256)
    result = simulate(plan, IDEAL, cost=Fixed(seconds=0.0), offsets=[0.0, 2.0, 0.0])
    sent = 64 * ROW / 1e9
    assert result.rank_seconds == pytest.approx((sent, 2.0 + sent, 2.0 + sent))
    with pytest.raises(MachineError, match="2 launch offsets for 3 ranks"):
        simulate(plan, IDEAL, offsets=[0.0, 1.0])


def test_a_rank_is_done_when_its_outputs_have_arrived() -> None:
    text = """\
program hand_on(M, N):
    x : in            [M, N]
    y : out symmetric [M, N]

    comm send(i: M):
        tile_push_data(y[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(y[i, :] @ (rank + 1))

schedule engine for hand_on:
    send on copy_engine, tile(i=64)
"""
    plan = planned(text, ranks=3, M=64, N=256)
    result = simulate(plan, replace(IDEAL, signal_latency=0.5), offsets=[0.0, 2.0, 0.0])
    sent = 64 * ROW / 1e9
    assert result.rank_seconds == pytest.approx((sent + 0.5, 2.0 + sent, 2.0 + sent + 0.5))
    assert result.breakdowns[2].tail == pytest.approx(2.0 + 0.5)


def test_operands_on_other_ranks_come_first() -> None:
    text = """\
program fetch(M, N):
    x : in symmetric [M, N]
    y : out          [M, N]

    compute add(i: M):
        acc = x[i, :]
        for (p: ranks):
            acc += x[i, :] @ p
        y[i, :] = acc

schedule one for fetch:
    add on sm, tile(i=64)
"""
    plan = planned(text, ranks=2, M=64, N=256)
    result = simulate(plan, replace(IDEAL, signal_latency=0.25), cost=Fixed(seconds=1.0), offsets=[0.0, 3.0])
    fetched, steps = 64 * ROW / 1e9, 4
    assert result.seconds == pytest.approx(3.0 + 0.25 + steps + fetched)
    assert result.breakdowns[0].copy == pytest.approx(fetched)


def test_a_loop_waits_for_what_its_next_step_needs() -> None:
    text = """\
program stream(M, N):
    x : in        [M, N]
    h : symmetric [ranks, M, N]
    y : out       [M, N]

    comm send(p: ranks, i: M):
        tile_push_data(h[rank, i, :] @ p, x[i, :])
        producer_tile_notify(h[rank, i, :] @ p)

    compute add(i: M):
        acc = zeros(f32)
        for (s: ranks):
            consumer_tile_wait(h[s, i, :])
            acc += h[s, i, :]
        y[i, :] = acc

schedule engine for stream:
    send on copy_engine, tile(i=64), order(p)
    add on sm, tile(i=64)
"""
    plan = planned(text, ranks=2, M=64, N=256)
    result = simulate(plan, replace(IDEAL, link_bandwidth=64 * ROW / 10), cost=Fixed(seconds=1.0))
    step, store, sent = 1, 1, 10  # a constant takes no time
    assert result.rank_seconds == pytest.approx((sent + step + store, sent + 2 * step + store), abs=1e-3)
    assert result.breakdowns[0].waiting == pytest.approx(sent - step, abs=1e-3)


def test_a_pull_goes_the_other_way() -> None:
    text = """\
program take(M, N):
    x : in symmetric [M, N]
    y : out          [ranks, M, N]

    comm get(s: ranks, i: M):
        tile_pull_data(y[s, i, :], x[i, :] @ s)

schedule engine for take:
    get on copy_engine, tile(i=64), order(s)
"""
    plan = planned(text, ranks=4, M=64, N=256)
    result = simulate(plan, IDEAL, cost=Fixed(seconds=0.0))
    moves = result.timeline.script.moves
    assert (moves.source[:4].tolist(), moves.target[:4].tolist()) == ([0, 1, 2, 3], [0, 0, 0, 0])
    assert result.bound.transfer == pytest.approx(3 * 64 * ROW / 1e9)


def test_computing_beside_copies_of_the_sms_is_slower() -> None:
    text = SHIFT.replace("        consumer_tile_wait(h[i, :])\n", "").replace(" + h[i, j]", "")
    plan = planned(text, schedule="copy_sms", M=256, N=256)
    free = simulate(plan, replace(IDEAL, copies_slow_compute=1.0), cost=Fixed(seconds=1.0))
    slow = simulate(plan, replace(IDEAL, copies_slow_compute=1.5), cost=Fixed(seconds=1.0))
    assert (free.seconds, slow.seconds) == pytest.approx((1.0, 1.5))
    assert slow.breakdowns[0].copy == pytest.approx(0.5)


def test_programs_that_do_not_fit_wait_for_a_place() -> None:
    text = SHIFT.replace("sm(4)", "sm(4)").replace("add on sm,", "add on sm(4),")
    plan = planned(text, schedule="copy_sms", sms=6, M=256, N=64)
    assert [k.programs for k in plan.bound.kernels] == [4, 4]
    result = simulate(plan, IDEAL, cost=Fixed(seconds=1.0, rate=1e9))
    sent = 256 * 64 * 4 / 1e9
    assert result.seconds == pytest.approx(1.0 + sent, rel=1e-3)
    assert result.timeline.worker_begin.max() > 0


def test_a_product_starts_with_its_first_slice() -> None:
    text = """\
program sliced(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    h : symmetric [M, K]
    y : out       [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute product(i: M, j: N):
        consumer_tile_wait(h[i, :])
        y[i, j] = dot(h[i, :], w[j, :].T)

schedule whole for sliced:
    send on copy_engine, tile(i=64)
    product on sm, tile(i=64, j=64, k=64)

schedule slices for sliced:
    send on copy_engine, tile(i=64, k=64)
    product on sm, tile(i=64, j=64, k=64)
    h channel(i=64, k=64)
"""
    sent = 64 * 256 * 4 / 1e9
    times = {
        name: simulate(planned(text, schedule=name, M=64, N=64, K=256), IDEAL, cost=Fixed(seconds=4 * sent)).seconds
        for name in ("whole", "slices")
    }
    assert times["whole"] == pytest.approx(5 * sent)
    assert times["slices"] == pytest.approx(4 * sent + sent / 4)
