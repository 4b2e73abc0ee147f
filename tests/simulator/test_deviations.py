"""Machines whose ranks, links and SMs are not alike: only what differs takes another time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.stragglers.cases import MACHINE, deviation, plan
from tilelink.errors import MachineError
from tilelink.simulator import simulate
from tilelink.simulator.engine import least_seconds
from tilelink.simulator.machine import Deviation, load_machine, machine_of, save_machine
from tilelink.simulator.result import Simulated
from tilelink.simulator.script import COMPUTE


def simulated(*changes: Deviation) -> Simulated:
    return simulate(plan(3), replace(MACHINE, deviations=changes))


def computing(result: Simulated) -> np.ndarray[Any, Any]:
    """[ranks, SMs]: the seconds of computations."""
    t, s = result.timeline, result.timeline.script
    rows = np.flatnonzero(s.kind == COMPUTE)
    seconds = np.zeros((3, int(t.worker_sm.max()) + 1))
    np.add.at(seconds, (s.rank[rows], t.worker_sm[s.worker[rows]]), t.end[rows] - t.begin[rows])
    return seconds


def moving(result: Simulated) -> dict[tuple[int, int], float]:
    """(from, to) -> the seconds in which its bytes are on the link."""
    t, moves = result.timeline, result.timeline.script.moves
    pairs = zip(moves.source.tolist(), moves.target.tolist(), (t.moved - t.started).tolist(), strict=True)
    return {(source, target): seconds for source, target, seconds in pairs if source != target}


def test_a_slow_clock_slows_down_the_sms_of_a_rank() -> None:
    usual, slow = computing(simulated()), computing(simulated(deviation("clock", 0.5, 1)))
    np.testing.assert_allclose(slow, usual * np.array([[1], [2], [1]]))


def test_some_sms_of_a_rank_may_be_slow() -> None:
    usual, slow = computing(simulated()), computing(simulated(deviation("clock", 0.25, 2, sms=(3, 5))))
    assert usual[2, 3:6].all()
    usual[2, 3:6] *= 4
    np.testing.assert_allclose(slow, usual)


def test_a_slow_link_slows_down_its_own_transfers() -> None:
    usual, slow = moving(simulated()), moving(simulated(deviation("link_bandwidth", 0.1, 0, peer=2)))
    size = next(m for m in simulated().timeline.script.moves.size.tolist() if m)
    assert slow[0, 2] == pytest.approx(size / (0.1 * MACHINE.link_bandwidth), rel=0.01)
    assert slow[2, 0] < 3 * usual[2, 0]


def test_a_slow_port_slows_down_both_directions() -> None:
    usual, slow = moving(simulated()), moving(simulated(deviation("link_bandwidth", 0.1, 1)))
    assert all(seconds > 4 * usual[pair] for pair, seconds in slow.items() if 1 in pair)


@pytest.mark.parametrize(
    ("field", "factor"),
    [("copy_start", 9.0), ("copy_signal", 9.0), ("kernel_start", 3.0), ("signal_latency", 9.0),
     ("matmul_flops", 0.2), ("memory_bandwidth", 0.05)],
)  # fmt: skip
def test_any_number_of_a_rank_can_differ(field: str, factor: float) -> None:
    assert simulated(deviation(field, factor, 0)).seconds > 1.05 * simulated().seconds


def test_deviations_of_all_ranks_are_another_machine() -> None:
    changes = tuple(deviation("copy_start", 3.0, rank) for rank in range(3))
    other = simulate(plan(3), replace(MACHINE, copy_start=3.0 * MACHINE.copy_start))
    assert simulated(*changes).rank_seconds == pytest.approx(other.rank_seconds)


def test_a_file_has_deviations(tmp_path: Path) -> None:
    changes = (deviation("link_bandwidth", 0.61, 0, peer=3), deviation("clock", 0.8, 1, sms=(0, 15)))
    machine = replace(MACHINE, deviations=changes)
    save_machine(machine, tmp_path / "mine.json")
    assert load_machine(tmp_path / "mine.json") == machine
    short = {"base": "8xH200", "deviations": [{"field": "link_bandwidth", "factor": 0.61, "rank": 0, "peer": 3}]}
    assert machine_of(short).deviations == changes[:1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"field": "speed", "factor": 0.5, "rank": 0}, "a rank cannot differ in 'speed'"),
        ({"field": "sms", "factor": 0.5, "rank": 0}, "a rank cannot differ in 'sms'"),
        ({"field": "matmul_flops", "factor": 0.5, "rank": 0, "peer": 1}, "a link cannot differ in 'matmul_flops'"),
        ({"field": "copy_start", "factor": 2.0, "rank": 0, "sms": [0, 3]}, "SMs cannot differ in 'copy_start'"),
        ({"field": "clock", "factor": 0.0, "rank": 0}, "clock of rank 0 is 0.0 times another"),
        ({"field": "clock", "rank": 0}, "factor"),
        (3, "a deviation"),
    ],
)  # fmt: skip
def test_a_deviation_that_is_none_is_refused(given: object, message: str) -> None:
    with pytest.raises(MachineError) as caught:
        machine_of({"base": "8xH200", "deviations": [given]})
    assert message in str(caught.value)


def test_the_least_time_of_a_launch_knows_fast_clocks() -> None:
    """No launch is left out of a search for a bound that it can beat."""
    usual = simulated().timeline.script
    result = simulated(*[deviation("clock", 64.0, rank) for rank in range(3)])
    least = least_seconds(result.timeline.script)
    assert 0 < least <= result.seconds and least == pytest.approx(least_seconds(usual) / 64)
