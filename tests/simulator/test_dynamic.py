"""Tiles that programs take by a counter: who executes them in the model, how long it takes, and what a search tries."""

from __future__ import annotations

import json
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np
import pytest

import tilelink
from tests.simulator.cases import IDEAL, Fixed, planned
from tilelink import compiler
from tilelink.ir.typing import infer
from tilelink.lowering.clauses.dynamic import DYNAMIC, alike_reason
from tilelink.scheduling.schedule import Schedule
from tilelink.search import Space
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine
from tilelink.simulator.result import Simulated
from tilelink.simulator.trace import trace_text
from tilelink.target import target

UNEVEN = """\
program uneven(T, N):
    x : in  [T, N]
    y : out [T, N]

    compute work(t: T by 1, j: N):
        total = x[t, j] * 2.0
        for (q: 12 by 1):
            if q < t * 5 % 13:
                total += x[t, j]
        y[t, j] = total

schedule taken for uneven:
    work on sm, tile(j=16), dynamic

schedule turns for uneven:
    work on sm, tile(j=16)
"""
TILES = 11


def run(schedule: str, programs: int, counter: float = 0.0, ranks: int = 1) -> Simulated:
    plan = planned(UNEVEN, ranks=ranks, schedule=schedule, sms=programs, T=TILES, N=16)
    return simulate(plan, replace(IDEAL, tile_counter=counter), cost=Fixed(seconds=1.0))


def by_hand(programs: int, counter: float) -> float:
    """The time of a launch whose programs take each tile when they begin with the one before."""
    seconds = [2.0 + tile * 5 % 13 for tile in range(TILES)]
    taken, events = 0, list[tuple[float, int, int]]()
    for number in range(programs):
        heappush(events, (counter, number, number))  # (when it begins, order, its tile)
        taken += 1
    end, order = 0.0, programs
    while events:
        now, _, tile = heappop(events)
        if tile >= TILES:
            end = max(end, now)
            continue
        heappush(events, (max(now + seconds[tile], now + counter), order, taken))
        taken, order = taken + 1, order + 1
    return end


@pytest.mark.parametrize("programs", [1, 2, 3, 4, 20])
@pytest.mark.parametrize("counter", [0.0, 0.25, 5.0])
def test_a_launch_takes_as_long_as_its_tiles_are_dealt(programs: int, counter: float) -> None:
    found = run("taken", programs, counter)
    if programs < TILES:
        assert found.seconds == pytest.approx(by_hand(programs, counter))
    else:  # no program takes a second tile, so none takes any
        assert found.seconds == run("turns", programs).seconds
    assert found.breakdowns[0].total == pytest.approx(found.rank_seconds[0])


def test_unequal_tiles_take_less_time_than_in_turn() -> None:
    assert run("taken", 3).seconds < run("turns", 3).seconds
    assert run("taken", 3).breakdowns[0].tail < run("turns", 3).breakdowns[0].tail


def test_waits_for_the_counter_are_in_the_breakdown() -> None:
    slow, fast = run("taken", 3, 5.0).breakdowns[0], run("taken", 3, 0.0).breakdowns[0]
    assert fast.waiting == 0.0 and slow.waiting >= 5.0


def test_the_timeline_says_who_executed_a_tile() -> None:
    found = run("taken", 3, 0.25, ranks=2)
    script, timeline = found.timeline.script, found.timeline
    for rank in range(2):
        tasks = [np.unique(script.worker[script.task == task]) for task in range(rank * TILES, (rank + 1) * TILES)]
        assert all(len(own) == 1 for own in tasks) and len({int(own[0]) for own in tasks}) == 3
    for worker in range(len(script.first) - 1):
        rows = slice(script.first[worker], script.first[worker + 1])
        assert (script.worker[rows] == worker).all() and (np.diff(script.task[rows]) >= 0).all()
        assert (timeline.begin[rows][1:] >= timeline.end[rows][:-1]).all()
    slices = [one for one in json.loads(trace_text(found))["traceEvents"] if one.get("cat") == "compute"]
    assert {(one["pid"], one["args"]["tile"]) for one in slices} == {(r, t) for r in range(2) for t in range(TILES)}


def test_what_waits_is_simulated_too() -> None:
    """The tiles of a product wait for rows that peers send in another order."""
    module = tilelink.load("ag_gemm")
    program = module.program("ag_gemm")
    machine = load_machine("8xH200")
    schedule = module.schedule("copy_engine", program).dynamic("gemm")
    schedule = schedule.flatten("gemm", False).split_k_tail("gemm", None)
    dims = {"Ms": 256, "N": 512, "K": 256}
    small = replace(machine.processor, sms=6)
    plan = compiler.plan(program, schedule, ranks=3, dims=dims, dtype="bf16", target=small)
    assert plan.bound.kernel_of["gemm"].dynamic
    found = simulate(plan, machine)
    assert found.seconds > 0 and [one.total for one in found.breakdowns] == pytest.approx(list(found.rank_seconds))
    filled = found.timeline.filler[found.timeline.filler >= 0]
    assert (found.timeline.script.what[filled] == np.flatnonzero(found.timeline.filler >= 0)).all()


def test_a_launch_with_counts_is_simulated() -> None:
    module = tilelink.load("paged_decode")
    program = next(one for one in module.programs if any("dynamic" in str(s) for s in module.schedules_of(one)))
    schedule = next(s for s in module.schedules_of(program) if "dynamic" in str(s))
    dims = {p.name: p.example if p.example is not None else 4 for p in program.params}
    found = tilelink.simulate(program, schedule, ranks=2, dims=dims, machine="8xH200", draws=2)
    assert found.seconds > 0


# Search ------------------------------------------------------------------------------------------------------


def test_a_search_tries_it_where_tiles_differ() -> None:
    program = compiler.parse(UNEVEN).program()
    space = Space.of([program], dims={"T": 64, "N": 64}, ranks=2, target=target("sm_90"))
    (knob,) = [one for one in space.knobs[0] if one.name == "work tiles"]
    assert knob.labels == ("in turn", "by a counter")
    start = Schedule(name="a", program="uneven")
    assert knob.changes[1](start).stage("work")[DYNAMIC]
    assert not knob.changes[0](start.dynamic("work")).stage("work")[DYNAMIC]
    for other in (start.on("work", "copy_engine"), start.flatten("work"), start.halve_tail("work")):
        assert not knob.changes[1](other).stage("work")[DYNAMIC]


@pytest.mark.parametrize(
    ("old", "new", "differ"),
    [
        ("", "", True),
        ("if q < t * 5 % 13:", "if q < 5:", False),  # some iterations of a loop, but the same ones in all tiles
        ("t: T by 1", "t: T[: n] by 1", True),
        ("        for (q: 12 by 1):\n            if q < t * 5 % 13:\n                total += x[t, j]\n", "", False),
    ],
)
def test_tiles_that_take_equally_long_are_taken_in_turn(old: str, new: str, differ: bool) -> None:
    text = UNEVEN.replace("    x : in", "    n : in  [] <= T\n    x : in")
    text = text.replace("out [T", "out [T[: n]") if "n]" in new else text
    program = compiler.parse(text.replace(old, new)).program()
    reason = alike_reason(program.stages[0], infer(program).stage("work"))
    assert (reason is None) == differ
    assert differ or "its tiles take equally long" in str(reason)
