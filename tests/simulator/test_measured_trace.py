"""Measured spans as trace events, from spans that were made up."""

from __future__ import annotations

import pytest

from tests.simulator.cases import SHIFT, planned
from tilelink.planning.plan import Plan
from tilelink.simulator.measured import Measured, RawSpan, measured_events

START = 10**18


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(SHIFT, ranks=2, schedule="copy_sms", M=256, N=128)


def test_arrows_lead_from_the_last_notify_to_waits_that_began_before_it_was_over(plan: Plan) -> None:
    send, add = (plan.bound.stages[name].number for name in ("send", "add"))
    first = plan.bound.kernels[0].programs
    spans: list[RawSpan] = [
        (1, first, "wait", add, 0, 0, 0, 1, START + 1000, START + 9000),
        (1, first + 1, "wait", add, 1, 0, 0, 1, START + 8500, START + 8600),
        (0, 1, "notify", send, 1, 1, 0, 1, START + 6000, START + 8000),
        (0, 0, "notify", send, 0, 1, 0, 1, START, START + 3000),
        (0, 0, "notify", send, 0, 1, 0, 3, START + 7000, START + 8700),
    ]
    arrows = [e for e in measured_events(Measured(plan=plan, raw=spans)) if e["ph"] in "sf"]
    assert [(e["ph"], e["pid"], e["tid"], e["ts"]) for e in arrows] == [
        ("s", 0, 2, 6.0),
        ("f", 1, arrows[1]["tid"], 9.0),
    ]
    number, rank, program = plan.workers[arrows[1]["tid"] - 1]
    assert (plan.bound.kernels[number].name, rank, program) == ("add", 1, 0)


def test_programs_that_wait_do_not_compute(plan: Plan) -> None:
    add, first = plan.bound.stages["add"].number, plan.bound.kernels[0].programs
    entered = plan.bound.entered_base + 1
    spans: list[RawSpan] = [
        (0, first, "wait", len(plan.bound.stages), 0, entered, 0, 1, START, START + 1000),
        (0, first, "tile", add, 0, 0, 0, 1, START + 1000, START + 9000),
        (0, first, "wait", add, 0, 0, 0, 1, START + 1000, START + 4000),
        (0, first + 1, "tile", add, 1, 0, 0, 1, START + 2000, START + 3000),
    ]
    found = list(measured_events(Measured(plan=plan, raw=spans)))
    counted = [(e["ts"], e["args"]["compute"], e["args"]["wait"]) for e in found if e["ph"] == "C"]
    assert counted == [(0, 0, 1), (1, 0, 1), (2, 1, 1), (3, 0, 1), (4, 1, 0), (9, 0, 0)]
    runtime = next(e for e in found if e["ph"] == "X" and e["args"]["stage"] == "runtime")
    assert runtime["args"] == {"stage": "runtime", "tile": 0, "launch": 1, "rank": 0, "signal": "entered", "of": 1}


def test_launches_are_measured_from_their_first_begin_to_their_last_end(plan: Plan) -> None:
    spans: list[RawSpan] = [
        (0, 0, "tile", 0, 0, 0, 0, 2, START + 5000, START + 6000),
        (1, 0, "tile", 0, 0, 0, 0, 1, START + 1000, START + 3000),
        (0, 0, "tile", 0, 0, 0, 0, 1, START, START + 2000),
    ]
    assert Measured(plan=plan, raw=spans).launch_seconds == pytest.approx({1: 3e-6, 2: 1e-6})


FETCH = (
    SHIFT.replace("h : symmetric     [M, N]", "h : local         [M, N]")
    .replace("x : in            [M, N]", "x : in symmetric  [M, N]")
    .replace("tile_push_data(h[i, :] @ (rank + 1), x[i, :])", "tile_pull_data(h[i, :], x[i, :] @ (rank + 1))")
    .replace("producer_tile_notify(h[i, :] @ (rank + 1))", "producer_tile_notify(h[i, :])")
)


@pytest.mark.parametrize(("text", "source", "target"), [(SHIFT, 0, 1), (FETCH, 1, 0)])
def test_transfers_are_on_the_links_of_both_ranks(text: str, source: int, target: int) -> None:
    plan = planned(text, ranks=2, schedule="copy_sms", M=256, N=128)
    send, first = plan.bound.stages["send"].number, plan.bound.tensors["h"].number
    spans: list[RawSpan] = [
        (0, 0, "transfer", send, 3, 1, first, 1, START, START + 3000),
        (0, 1, "transfer", send, 4, 0, first, 1, START, START + 3000),
    ]
    found = [e for e in measured_events(Measured(plan=plan, raw=spans)) if e["ph"] == "b"]
    assert [(e["cat"], e["pid"], e["name"], e["args"]) for e in found] == [
        ("link out", source, f"to {target}", {"bytes": 16 * 128 * 4}),
        ("link in", target, f"from {source}", {"bytes": 16 * 128 * 4}),
    ]
