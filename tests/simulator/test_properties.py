"""What holds for every program: the parts add up, nothing beats the bound, more bandwidth never hurts."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.library import dims as library_dims
from tests.compiler.library import divisor, fitted, groups, has_roles, in_turn, is_own
from tests.simulator.cases import H200S, IDEAL, SHIFT, planned
from tests.tiers import one_in, thorough
from tilelink.compiler import library, samples
from tilelink.errors import ProgressError
from tilelink.ir.program import Program
from tilelink.lowering.bind import bind
from tilelink.lowering.events import NOTIFY
from tilelink.planning.plan import make_plan
from tilelink.reference.trial import random_tables
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator import Roofline, Simulated, seconds_within, simulate
from tilelink.simulator.engine import least_seconds
from tilelink.simulator.links import Port
from tilelink.simulator.machine import Machine
from tilelink.simulator.sampled import sampled
from tilelink.simulator.script import make_script
from tilelink.target import H200

SIZES = (256, 384, 512, 256, 128, 64)
RANKS = 4


@cache
def cases() -> list[tuple[Program, Schedule | None]]:
    return [(p, s) for m in library() for p in m.programs for s in (None, *m.schedules_of(p))]


@cache
def planned_with_launches(program: Program, schedule: Schedule | None) -> dict[str, Any]:
    """A plan of these ranks, with the tables and launches to simulate: all tests of this process share it."""
    own = {p.name: SIZES[n % len(SIZES)] for n, p in enumerate(program.params) if p.kind == "dim"}
    exampled = any(p.example is not None for p in program.params)  # these have sizes that fit together
    dims = library_dims(program, RANKS) if exampled else own
    dims |= groups(program, RANKS) | {p.name: 0.5 for p in program.params if p.kind == "f32"}
    if exampled or divisor(program) > 1:  # all schedules have the sizes that those with roles need
        with_roles = (case for case in cases() if case[0].name == program.name and has_roles(case))
        dims = fitted(next(with_roles, (program, schedule)), dims)
    tables = {k: v.numpy() for k, v in random_tables(program, ranks=RANKS, dims=dims, seed=0).items()}
    plan = make_plan(bind(program, schedule, dims, RANKS, H200, "bf16"), tables)
    drawn = samples.draw(program, ranks=RANKS, dims=dims, draws=1)
    return {"plan": plan, "tables": tables, "samples": samples.completed(plan, drawn, routing="uniform")}


def run(program: Program, schedule: Schedule | None, machine: Machine = H200S, **options: Any) -> Simulated:
    return simulate(**planned_with_launches(program, schedule), machine=machine, **options)


@thorough(unless=lambda program, schedule: is_own((program, schedule)) and one_in(3, program.name))
@pytest.mark.parametrize(("program", "schedule"), cases(), ids=lambda c: c.name if c else "default")
def test_the_library_runs_to_its_end_and_the_parts_add_up(program: Program, schedule: Schedule | None) -> None:
    result = run(program, schedule, offsets=[0.0, 5e-6, 1e-6, 0.0])
    for seconds, breakdown in zip(result.rank_seconds, result.breakdowns, strict=True):
        assert breakdown.total == pytest.approx(seconds, rel=1e-9)
        assert all(part >= -1e-12 for part in breakdown.parts().values())
    assert result.seconds >= result.bound.seconds > 0
    t = result.timeline
    assert (t.end >= t.begin).all()
    assert (t.begin >= 0).all()
    for rows in (np.flatnonzero(~t.script.stored_apart), np.flatnonzero(t.script.stored_apart)):
        worker, task, begin, end = (c[rows] for c in (t.script.worker, t.script.task, t.begin, t.end))
        after = worker[1:] == worker[:-1]
        after &= (task[1:] != task[:-1]) | ~t.script.stored_apart[rows[1:]]  # a storer starts all of a tile's transfers
        assert (begin[1:][after] >= end[:-1][after] - 1e-12).all()


@thorough(unless=lambda program: one_in(8, program.name))
@pytest.mark.parametrize(("program", "schedule"), in_turn(cases()), ids=lambda c: c.name if c else "default")
def test_a_time_within_a_limit_is_the_predicted_one(program: Program, schedule: Schedule | None) -> None:
    whole, given = run(program, schedule).seconds, planned_with_launches(program, schedule)
    assert seconds_within(**given, machine=H200S, limit=inf) == seconds_within(**given, machine=H200S, limit=whole)
    assert seconds_within(**given, machine=H200S, limit=whole) == whole
    assert seconds_within(**given, machine=H200S, limit=whole / 2) is None
    samples = given["samples"]
    launch = sampled(given["plan"], samples[0], given["tables"]) if samples else given["plan"]
    tables = {**given["tables"], **(samples[0] if samples else {})}
    script = make_script(launch, H200S, Roofline(), tables)
    assert (least_seconds(script) > 0) == (script.main > 0).any() and least_seconds(script) <= whole


@thorough(unless=lambda program: one_in(8, program.name))
@pytest.mark.parametrize(("program", "schedule"), in_turn(cases()), ids=lambda c: c.name if c else "default")
def test_the_same_arguments_give_the_same_times(program: Program, schedule: Schedule | None) -> None:
    first, again = run(program, schedule), planned_with_launches.__wrapped__(program, schedule)
    second = simulate(**again, machine=H200S)
    assert first == second
    assert np.array_equal(first.timeline.begin, second.timeline.begin)


@pytest.mark.parametrize("examples", [15, pytest.param(60, marks=pytest.mark.thorough)])
def test_less_bandwidth_is_never_faster(examples: int) -> None:
    """Sharing has anomalies: a transfer that starts earlier may take from one that matters. They stay small."""

    @settings(max_examples=examples, deadline=None)
    @given(
        case=st.integers(0, 10**6),
        field=st.sampled_from(["link_bandwidth", "memory_bandwidth", "matmul_flops", "cache_bandwidth"]),
        slower=st.floats(0.05, 0.9),
    )
    def is_not_faster(case: int, field: str, slower: float) -> None:
        program, schedule = cases()[case % len(cases())]
        machine = replace(H200S, copies_slow_compute=1.0)
        fast = run(program, schedule, machine)
        slow = run(program, schedule, replace(machine, **{field: getattr(machine, field) * slower}))
        assert slow.seconds >= fast.seconds * 0.98

    is_not_faster()


@settings(max_examples=100, deadline=None)
@given(arrivals=st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 3)), min_size=1, max_size=20))
def test_a_port_shares_its_bandwidth_evenly(arrivals: list[tuple[float, float]]) -> None:
    """Against the definition: step by step, everybody gets the same part of the bandwidth."""
    arrivals.sort()
    expected = _stepwise(arrivals)
    assert _by_port(arrivals) == pytest.approx(expected, abs=1e-9)


def _by_port(arrivals: list[tuple[float, float]]) -> list[float]:
    port = Port(1.0)
    done = [0.0] * len(arrivals)

    def drain(until: float) -> None:
        while port.served and port.due() <= until:
            time = port.due()
            done[port.leave(time)] = time

    for number, (time, size) in enumerate(arrivals):
        drain(time)
        port.join(time, number, size)
    drain(float("inf"))
    return done


def _stepwise(arrivals: list[tuple[float, float]]) -> list[float]:
    left = [size for _, size in arrivals]
    done: dict[int, float] = {}
    now = 0.0
    while len(done) < len(arrivals):
        here = [n for n, (time, _) in enumerate(arrivals) if time <= now and n not in done]
        later = [time - now for time, _ in arrivals if time > now]
        step = min([left[n] * len(here) for n in here] + later)
        now += step
        for n in here:
            left[n] -= step / len(here)
            if left[n] <= 1e-12:
                done[n] = now
    return [done[n] for n in range(len(arrivals))]


def test_a_plan_that_waits_for_ever_is_refused() -> None:
    plan = planned(SHIFT, schedule="engine", M=64, N=64)
    signals = plan.signals
    keep = np.flatnonzero(signals.kind != NOTIFY)
    columns = {f.name: getattr(signals, f.name)[keep] for f in fields(signals)}
    first = r"never ends: rank 0, add tile \(i=0, j=0\) waits for h channel \[0\, 0\] \(0 of 1 tile signals\); rank"
    with pytest.raises(ProgressError, match=first):
        simulate(replace(plan, signals=replace(signals, **columns)), IDEAL)
