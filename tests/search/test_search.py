"""The space of a program's schedules, the strategies that walk it, and what a search keeps."""

import multiprocessing
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from math import inf
from random import Random
from typing import Any

import pytest

from tests.tiers import one_in, thorough
from tilelink import compiler, schedule
from tilelink.errors import (
    BindingError,
    CostError,
    DtypeError,
    ProgressError,
    ScheduleError,
    SearchError,
    UnknownNameError,
)
from tilelink.frontend.parser import parse_text
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.ir.products import products
from tilelink.ir.program import Program, Stage, Wait
from tilelink.ir.scalar import Env, evaluate
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound
from tilelink.lowering.carried import Carried, carried
from tilelink.lowering.clauses.flatten import FLATTEN
from tilelink.lowering.clauses.order import ORDER
from tilelink.lowering.clauses.roles import ROLES
from tilelink.lowering.flat_loops import flat_reason
from tilelink.lowering.role_statements import decided_reason, roles_reason
from tilelink.lowering.straight_epilogue import once, straight
from tilelink.lowering.summed import summed_body
from tilelink.lowering.unfold import unfolded_body
from tilelink.planning.plan import Plan
from tilelink.scheduling.schedule import Schedule
from tilelink.search import STRATEGIES, Candidate, Found, Space, Tried, processes, run, search, strategy
from tilelink.search.knobs import Knob, knobs
from tilelink.target import target
from tilelink.tuning import distinct

DIMS = {"Ms": 64, "N": 64, "K": 48}


def without_waits(stage: Stage) -> Stage:
    return replace(stage, body=tuple(s for s in stage.body if not isinstance(s, Wait)))


def space_of(*names: str, dims: dict[str, int] = DIMS, machine: str = "cpu") -> Space:
    programs = [compiler.load(name).program(name) for name in names]
    return Space.of(programs, dims=dims, ranks=2, target=target(machine), dtype="bf16")


def narrow(*names: str, knobs: int) -> Space:
    """A space of the first knobs of each program alone."""
    space = space_of(*names, dims={name: n for name, n in DIMS.items() if name in sizes(*names)})
    return replace(space, knobs=tuple(own[:knobs] for own in space.knobs))


def sizes(*names: str) -> set[str]:
    return {param.name for name in names for param in compiler.load(name).program(name).params}


@cache
def distance(*names: str, knobs: int) -> Callable[[Plan], float]:
    """A cost with one best point, that of the last choices: the steps that the choices are away from these."""
    space = narrow(*names, knobs=knobs)
    costs = {str(space.schedule(c)): float(sum(len(k.labels) - 1 - at for k, at in zip(own, c.choices, strict=True)))
             for number, own in enumerate(space.knobs) for c in space if c.program == number}  # fmt: skip
    return lambda plan: 1.0 + costs[str(plan.bound.schedule)]


def test_a_space_has_every_combination_once() -> None:
    space = narrow("ag_gemm", "gemm_rs_ring", knobs=5)
    points = list(space)
    assert len(points) == len(set(points)) == space.size > 100
    assert {p.program for p in points} == {0, 1}
    assert len({str(space.schedule(p)) for p in points}) == space.size


def test_schedules_of_points_are_schedules_of_the_language() -> None:
    space = space_of("gemm_rs_slots")
    for point in list(space)[:: space.size // 50]:
        schedule = space.schedule(point)
        text = f"{space.programs[0]}\n{schedule}"
        assert parse_text(text, "<text>").schedules[0] == schedule
        assert set(space.describe(point)) == {knob.name for knob in space.knobs[0]}


@cache
def library_knobs() -> list[tuple[Program, Knob]]:
    """Every knob of every program, for a GPU."""
    sizes = {"dim": 4096, "f32": 0.5, "bool": True, "i32": 2}
    programs = [program for module in compiler.library() for program in module.programs]
    return [
        (p, knob) for p in programs for knob in knobs(p, {q.name: sizes[q.kind] for q in p.params}, 4, target("sm_90"))
    ]


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.thorough)])
def test_every_choice_alone_is_a_schedule_of_the_language(share: int) -> None:
    """share: one in so many programs."""
    for program, knob in ((p, knob) for p, knob in library_knobs() if one_in(share, p.name)):
        for change in knob.changes:
            schedule = change(Schedule(name="one", program=program.name))
            assert parse_schedule(str(schedule)) == schedule


def test_the_pipeline_knob_makes_loops_flat_where_they_can_be() -> None:
    offered = {p.name: (p, knob) for p, knob in library_knobs() if knob.name.endswith(" pipeline")}
    assert offered["ag_gemm"][1].name == "gemm pipeline" and "gemm_rs_ring" not in offered
    programs = {p.name: p for p, _ in library_knobs()}
    able = {name: {s.name for s in p.stages if flat_reason(s.body) is None} for name, p in programs.items()}
    decided = {name for name, p in programs.items() if any(tensor.bound is not None for tensor in p.tensors)}
    assert {"grouped_gemm", "ag_gemm_rows"} <= decided  # their products rearrange no tiles, which a launch decides
    with_roles = {
        name: {
            s.name
            for s in p.stages
            if (products(statements(s.body)) and roles_reason(straight(s.body, once)) is None)
            or isinstance(carried(unfolded_body(s.body, set())), Carried)
            or summed_body(s.body)[1]
        }
        for name, p in programs.items()
    }
    told = {name: {s.name for s in p.stages if decided_reason(s) is None} for name, p in programs.items()}
    # A launch decides the rows of these: roles alone may have that.
    cut = {name for name in decided if with_roles[name] & told[name]}
    assert {"ag_gemm_batch", "low_latency_experts"} < cut
    assert set(offered) == {name for name in programs if able[name] or with_roles[name]} - decided | cut
    assert not able["ag_gemm_gated"] and with_roles["ag_gemm_gated"]  # two products of one left operand
    for program, knob in offered.values():
        flat, roles = able[program.name] if program.name not in cut else set[str](), with_roles[program.name]
        others = [*(["through all tiles"] if flat else []), *(["by warps with roles"] if roles else [])]
        assert knob.labels == ("tile by tile", *others)
        said = dict(zip(knob.labels, (c(Schedule(name="one", program="p")) for c in knob.changes), strict=True))
        for label, one in said.items():
            assert {s.name for s in one.stages if s[FLATTEN]} == (flat if label == "through all tiles" else set())
            assert {s.name for s in one.stages if s[ROLES]} == (roles if label == "by warps with roles" else set())


def test_orders_over_all_other_ranks_may_run_backwards() -> None:
    own = {knob.name: knob for program, knob in library_knobs() if program.name == "ag_gemm_in_place"}
    assert "q backwards" in own["gather order"].labels
    at = own["gather order"].labels.index("q backwards")
    order = own["gather order"].changes[at](Schedule(name="one", program="p")).stage("gather")[ORDER]
    assert order is not None and str(order) == "order(q = ranks - 1 - 1 step -1)"
    for ranks in (2, 4, 8):
        start = order.nest[0].start
        assert start is not None
        first = evaluate(start, Env(rank=0, ranks=ranks, params={}, indices={}))
        assert [(int(first) - t) % (ranks - 1) for t in range(ranks - 1)] == [*range(ranks - 2, -1, -1)]
    assert not any("backwards" in label for p, k in library_knobs() if p.name == "ag_gemm" for label in k.labels)


def test_plans_are_verified_and_refusals_counted() -> None:
    space = space_of("gemm_rs_slots")
    plans = [space.plan(point) for point in list(space)[:: space.size // 30]]
    assert any(plans) and None in plans
    assert sum(space.refused.values()) == plans.count(None)
    assert "ProgressError" in space.refused
    large = space_of("ag_gemm", dims={"Ms": 512, "N": 512, "K": 512}, machine="sm_89")
    for point in list(large)[:: large.size // 30]:
        large.plan(point)
    assert large.refused["shared memory"]
    assert "bytes of shared memory" in large.reasons["shared memory"].message


def test_points_that_would_spill_are_refused() -> None:
    """Two products of 128 x 256 elements take 256 registers of 256 threads, unless warps have roles."""
    space = space_of("ag_gemm_gated", dims={"Ms": 1024, "N": 2048, "K": 2048}, machine="sm_90")
    said = {"128x256x64, 8 warps, 3 stages", "tile by tile"}
    large = [one for one in islice(space, 0, None, 1009) if said <= set(space.describe(one).values())]
    assert large and not any(map(space.plan, large[:8]))
    assert space.refused["registers"] and "256 registers" in space.reasons["registers"].message


def test_clauses_that_change_nothing_are_left_out() -> None:
    space = space_of("ag_gemm", machine="sm_90", dims={"Ms": 512, "N": 1024, "K": 1024})
    plain = schedule(space.programs[0], "found").tile("gemm", i=128, j=128, k=64).on("gather", "copy_engine")
    said = plain.knobs("gemm", num_warps=8, num_stages=3).buffers("xs", 2)
    warps = plain.knobs("gemm", num_warps=8)
    assert said != warps and space.without_idle(0, said) == warps
    assert space.without_idle(0, said.buffers("xs", 1)) == warps.buffers("xs", 1)
    few = warps.tile("gemm", i=512, j=64, k=64)
    assert space.without_idle(0, few.order("gemm", "s", group=("i", 4))) == few, "a comment alone names its order"
    assert not space.refused


def test_neighbours_differ_in_one_choice() -> None:
    space, chance = space_of("ag_gemm"), Random(0)
    here = space.random(chance)
    around = list(space.neighbours(here))
    assert len(set(around)) == len(around) == sum(len(knob.labels) - 1 for knob in space.knobs[0])
    assert all(sum(a != b for a, b in zip(here.choices, p.choices, strict=True)) == 1 for p in around)
    for _ in range(50):
        there = space.neighbour(here, chance)
        assert sum(a != b for a, b in zip(here.choices, there.choices, strict=True)) == 1
        child = space.cross(here, there, chance)
        assert all(c in pair for c, *pair in zip(child.choices, here.choices, there.choices, strict=True))


@thorough(unless=lambda name: name == "evolution")
@pytest.mark.parametrize(
    ("name", "trials", "close"),
    [("annealing", 150, 1.5), ("evolution", 150, 1.5), ("random", 150, 4.0), ("descent", 150, 1.5)],
)
def test_strategies_find_cheap_points(name: str, trials: int, close: float) -> None:
    space = narrow("ag_gemm", knobs=7)
    found = search(space, distance("ag_gemm", knobs=7), strategy(name), trials=trials, seed=3)
    assert found.ranking[0].seconds <= 1.0 + close
    assert len(found.tried) + sum(found.refused.values()) <= trials < space.size


def test_exhaustive_search_finds_the_best() -> None:
    space = narrow("reduce_scatter", knobs=4)
    found = search(space, distance("reduce_scatter", knobs=4), strategy("exhaustive"))
    assert space.size > 100
    assert found.ranking[0].seconds == 1.0 and len(found.tried) + sum(found.refused.values()) == space.size


@pytest.mark.parametrize("name", STRATEGIES)
def test_searches_end_when_every_point_was_tried(name: str) -> None:
    space = space_of("reduce_scatter", dims={"Ms": 16, "N": 16})
    space = replace(space, knobs=(space.knobs[0][:2],))
    found = search(space, lambda _: 1.0, strategy(name), trials=10 * space.size)
    assert len(found.tried) + sum(found.refused.values()) == space.size


def test_points_that_are_proposed_together_have_their_costs_and_limits_together() -> None:
    given, limits = list[Any](), list[float]()

    def together(space: Space, chance: Random) -> Generator[Candidate | tuple[Candidate, ...], Any, None]:
        one, two, three = islice(space, 3)
        given.append((yield (one, two, one)))
        given.append((yield ()))
        given.append((yield three))

    costs = iter([3.0, 2.0, 4.0])
    found = search(
        narrow("ag_gemm", knobs=2), lambda _: 1.0, together, guess=lambda _: next(costs), incumbent=limits.append
    )  # fmt: skip
    assert given == [(3.0, 2.0, 3.0), (), 4.0] and limits == [inf, inf, 2.0]
    assert [one.trial for one in found.tried] == [1, 2, 3] and found.ended == "strategy"


def test_a_strategy_that_proposes_nothing_new_is_done() -> None:
    def stubborn(space: Space, chance: Random) -> Generator[Candidate, float | None, None]:
        here = space.random(chance)
        while True:
            yield here

    space = space_of("ag_gemm")
    assert len(search(space, lambda _: 1.0, stubborn).tried) == 1


@thorough(unless=lambda name: name in ("evolution", "exhaustive"))
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_search_is_the_same_every_time(name: str) -> None:
    def once() -> list[tuple[Candidate, float]]:
        found = search(narrow("ag_gemm", knobs=7), distance("ag_gemm", knobs=7), strategy(name), trials=40, seed=7)
        return [(one.candidate, one.seconds) for one in found.tried]

    tried = once()
    assert tried == once()
    assert len({candidate for candidate, _ in tried}) == len(tried)


def test_budgets_and_progress() -> None:
    space, seen = space_of("ag_gemm"), list[Tried | None]()
    found = search(space, lambda _: 1.0, strategy("random"), trials=12, progress=seen.append)
    assert len(seen) == 12 and [one for one in seen if one] == list(found.tried)
    assert found.progress() == [found.tried[0]] and found.tried[-1].trial <= 12
    assert found.ended == "trials"
    spent = search(space, lambda _: 1.0, strategy("random"), budget_s=0.0)
    assert not spent.tried and spent.ended == "seconds"


def test_declared_schedules_of_many_tiles_are_left_out_where_there_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiler.load("gemm_rs").program("gemm_rs_slots")
    known = [schedule(program, f"s{size}").tile("gemm", i=size, j=size) for size in (4, 64, 16)]
    space = Space.of([program], dims=DIMS, ranks=2, target=target("cpu"), declared=known)
    seconds = iter([0.0, 1.0, 2.0, *[2.5] * 20])  # begin, and after a schedule of 64 x 64 it is known what a tile takes
    monkeypatch.setattr(run.time, "monotonic", lambda: next(seconds))
    found = search(space, lambda _: 1.0, strategy("random"), budget_s=6.0, trials=2)
    assert [one.schedule.name for one in found.tried] == ["s64", "found"]
    assert found.refused == {run.NO_TIME: 2}


Proposals = Generator[Candidate, float | None, None]


def proposing(what: Any) -> Callable[[Space, Random], Proposals]:
    def strategy(space: Space, chance: Random) -> Any:
        yield what(space) if callable(what) else what

    return strategy


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (proposing(None), "proposes None"),
        (proposing(Candidate(program=7, choices=())), "proposes program 7 of 1"),
        (proposing(Candidate(program=-1, choices=())), "proposes program -1 of 1"),
        (proposing(Candidate(program=0, choices=(0,))), "proposes 1 choices for "),
        (proposing(lambda s: Candidate(program=0, choices=(99,) * len(s.knobs[0]))), "proposes choice 99 of "),
        (proposing(lambda s: Candidate(program=0, choices=(-1,) * len(s.knobs[0]))), "proposes choice -1 of "),
        (proposing(lambda s: Candidate(program=0, choices=[0] * len(s.knobs[0]))), "choices=[0, "),  # type: ignore[arg-type]
        (lambda space, chance: [], "is not a strategy: it returns list"),
        (3.14, "the strategy 3.14 failed: TypeError: 'float' object is not callable"),
        (proposing(lambda s: {}["knob"]), "the strategy strategy failed: KeyError: 'knob'"),
    ],
)
def test_what_is_no_point_is_refused(strategy: Any, says: str) -> None:
    with pytest.raises(SearchError, match=re.escape(says)):
        search(space_of("ag_gemm"), lambda _: 1.0, strategy, trials=3)


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0])
def test_a_cost_that_is_no_time_is_an_error(cost: float) -> None:
    with pytest.raises(CostError, match=f"costs {cost}"):
        search(space_of("ag_gemm"), lambda _: cost, strategy("random"), trials=3)


def test_a_search_without_an_end_is_refused() -> None:
    with pytest.raises(SearchError, match="a search of nan s"):
        search(space_of("ag_gemm"), lambda _: 1.0, strategy("random"), budget_s=float("nan"))


def test_points_without_a_cost_are_counted() -> None:
    costs = iter([2.0, None, 1.0])
    found = search(space_of("gemm_rs_slots"), lambda _: next(costs, None), strategy("random"), trials=25, seed=1)
    assert [one.seconds for one in found.tried] == [2.0, 1.0]
    assert found.refused[run.SLOWER] > 1 and sum(found.refused.values()) == 23


@pytest.mark.parametrize("refused", [False, True])
def test_the_best_is_proved_now_and_then_and_in_the_end(monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    """And from where one is refused on all that are better than those before."""
    guesses = iter([5.0, 7.0, 3.0, inf, 4.0, *[6.0] * 6, 2.0, 1.5, *[6.0] * 100])
    asked = list[Bound]()

    def proved(space: Space, bound: Bound) -> Plan | None:
        asked.append(bound)
        return None if refused and len(asked) == 1 else plan_of(space, bound)

    def costs(_: Plan) -> float:
        raise AssertionError("a point that was guessed has its cost")

    plan_of = Space.proved
    monkeypatch.setattr(Space, "proved", proved)
    guess = partial(next, guesses)
    found = search(space_of("ag_gemm"), costs, strategy("random"), guess=lambda _: guess(), trials=25, seed=1)
    assert found.refused[run.SLOWER] == 1 and len(found.rated) == len(found.tried) > 4
    assert len(asked) == (4 if refused else 2)
    assert [one.seconds for one in found.ranking] == ([1.5, 2.0, 4.0] if refused else [1.5, 3.0])
    assert [one.seconds for one in found.tried[:4]] == [5.0, 7.0, 4.0, 6.0] if refused else [5.0, 7.0, 3.0, 4.0]
    assert [one.seconds for one in distinct(found, 2)] == [1.5, 2.0] and all(one.proved for one in distinct(found, 2))


def test_what_is_refused_is_no_result_however_fast_it_is_guessed_to_be() -> None:
    space = space_of("ag_gemm")
    unsafe = replace(space.programs[0], stages=tuple(without_waits(one) for one in space.programs[0].stages))
    found = search(
        replace(space, programs=(unsafe,), refused=Counter[str]()), lambda _: 1.0, strategy("random"),
        guess=lambda _: 1e-9, trials=5,
    )  # fmt: skip
    assert not found.tried and found.refused["OrderingError"] > 0, found.refused


def test_a_guess_that_waits_for_ever_refuses_a_point_and_asks_again_of_a_declared_one() -> None:
    def guess(_: Bound) -> float:
        raise ProgressError("never ends")

    declared = compiler.load("gemm_rs").schedules_of(compiler.load("gemm_rs").program("gemm_rs_slots"))[:1]
    space = replace(space_of("gemm_rs_slots"), declared=tuple(declared), refused=Counter[str]())
    space = replace(space, seeds=tuple(space.random(Random(0)) for _ in declared))
    found = search(space, lambda _: 2.0, strategy("random"), guess=guess, trials=4)
    assert [one.declared for one in found.tried] == [True] and found.refused["ProgressError"] > 0


@pytest.mark.parametrize("of", ["safe_plan", "bind"])
def test_a_plan_that_is_too_large_for_the_machine_is_a_refused_point(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object, **__: object) -> Plan:
        raise MemoryError

    space = space_of("ag_gemm")
    monkeypatch.setattr(f"tilelink.search.space.{of}", too_large)
    found = search(space, lambda _: 1.0, strategy("random"), trials=3)
    assert found.refused == {"memory": 3}


@pytest.mark.parametrize("guessed", [False, True])
def test_a_prediction_that_is_too_large_for_the_machine_refuses_its_point_alone(guessed: bool) -> None:
    asked = Counter[str]()

    def cost(_: object) -> float:
        asked["times"] += 1
        if asked["times"] % 2:
            raise MemoryError
        return 1.0

    found = search(space_of("ag_gemm"), cost, strategy("random"), guess=cost if guessed else None, trials=4)
    assert found.refused["memory"] == 2 and len(found.tried) == 2


def all_ended() -> bool:
    """True if the processes of a search end, which are killed and not waited for."""
    deadline = time.monotonic() + 10
    # The thread of the pool reaps them too: until it has said so, a process that has ended counts as an active one.
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not multiprocessing.active_children()


@pytest.mark.parametrize("name", ["evolution", "descent"])
def test_a_search_is_the_same_with_any_number_of_processes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And rates its points in the others: of this process it asks none after the first population."""
    monkeypatch.setattr(run, "ALONE_S", 0.0)
    here = os.getpid()

    def once(jobs: int) -> tuple[Found, list[int]]:
        space, least, asked = narrow("ag_gemm", knobs=7), [inf], list[int]()
        cost, incumbent = distance("ag_gemm", knobs=7), partial(least.__setitem__, 0)

        def limited(plan: Plan) -> float | None:
            asked.append(os.getpid())
            seconds = cost(plan)
            return seconds if seconds < 1.5 * least[0] else None

        return search(space, limited, strategy(name), trials=60, seed=7, incumbent=incumbent, jobs=jobs), asked

    (alone, _), (several, asked) = once(1), once(2)
    assert [(one.candidate, one.seconds, one.trial) for one in alone.tried] == [
        (one.candidate, one.seconds, one.trial) for one in several.tried
    ]
    assert alone.refused == several.refused and alone.refused[run.SLOWER] > 0
    assert {kind: str(error) for kind, error in alone.space.reasons.items()} == {
        kind: str(error) for kind, error in several.space.reasons.items()
    }
    assert set(asked) == {here} and len(asked) < 40
    assert all_ended()


def test_a_search_goes_on_alone_if_one_of_its_processes_is_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run, "ALONE_S", 0.0)
    here = os.getpid()

    def cost(_: Plan) -> float:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0

    found = search(space_of("ag_gemm"), cost, strategy("random"), trials=40, jobs=2)
    assert len(found.tried) + sum(found.refused.values()) == 40 and found.tried
    assert [record.message for record in caplog.records if "was killed" in record.message]
    assert all_ended()


def test_an_error_of_another_process_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ALONE_S", 0.0)
    here = os.getpid()

    def cost(_: Plan) -> float:
        if os.getpid() != here:
            raise CostError("no cost there")
        return 1.0

    with pytest.raises(CostError, match="no cost there"):
        search(space_of("ag_gemm"), cost, strategy("random"), trials=40, jobs=2)
    assert all_ended()


def test_a_process_that_may_not_fork_searches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: range(64))
    assert processes.available() == processes.MOST
    with monkeypatch.context() as nested:
        nested.setattr(processes.multiprocessing, "parent_process", object)
        assert processes.available() == 1
    found = list[int]()
    thread = threading.Thread(target=lambda: found.append(processes.available()))
    thread.start()
    thread.join()
    assert found == [1]
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert processes.available() == 1


@pytest.mark.parametrize("keep", [False, True])
def test_an_interrupt_ends_a_search_that_keeps_what_it_has(keep: bool) -> None:
    costs = iter([3.0, 2.0])

    def cost(_: Plan) -> float:
        try:
            return next(costs)
        except StopIteration:
            raise KeyboardInterrupt from None

    def run() -> Found:
        return search(space_of("ag_gemm"), cost, strategy("random"), trials=30, keep_interrupted=keep)

    if keep:
        found = run()
        assert [one.seconds for one in found.ranking] == [2.0, 3.0] and found.ended == "interrupt"
    else:
        with pytest.raises(KeyboardInterrupt):
            run()


@pytest.mark.parametrize(
    ("changed", "error"),
    [({"dims": {"Ms": 64, "N": 64}}, BindingError), ({"dims": {**DIMS, "Ms": 0}}, BindingError),
     ({"dims": {**DIMS, "Ms": float("nan")}}, BindingError), ({"ranks": 0}, BindingError),
     ({"dtype": "int8"}, DtypeError)],
)  # fmt: skip
def test_sizes_that_no_schedule_can_have_are_an_error_at_once(changed: dict[str, Any], error: type[Exception]) -> None:
    options: dict[str, Any] = {"dims": DIMS, "ranks": 2, "target": target("cpu"), "dtype": "bf16", **changed}
    with pytest.raises(error):
        Space.of([compiler.load("ag_gemm").program("ag_gemm")], **options)


def test_the_best_so_far() -> None:
    space, costs = space_of("gemm_rs_slots"), iter([5.0, 7.0, 3.0, 3.0, 1.0])
    found = search(space, lambda _: next(costs, 9.0), strategy("random"), trials=25, seed=1)
    better = found.progress()
    assert [one.seconds for one in better] == [5.0, 3.0, 1.0]
    numbers = [one.trial for one in found.tried]
    assert numbers == sorted(set(numbers)) and len(numbers) + sum(found.refused.values()) == 25 > len(numbers)
    assert [one.at for one in better] == sorted(one.at for one in better)


def test_names_that_there_are_not() -> None:
    with pytest.raises(UnknownNameError, match="no strategy 'best'"):
        strategy("best")
    with pytest.raises(ScheduleError, match="no program to search"):
        Space.of([], dims={}, ranks=2, target=target("cpu"))


def test_evolution_returns_to_every_program() -> None:
    """A program that is the dearer one by far still has children, of its best point."""
    space = space_of("ag_gemm", "gemm_rs_ring")
    found = search(space, lambda plan: 1.0 + (plan.bound.source.name == "ag_gemm"), strategy("evolution"), trials=250)
    first = next(one.candidate for one in found.ranking if one.candidate.program == 0)
    tried = {one.candidate for one in found.tried}
    around = [there for there in space.neighbours(first) if space.plan(there)]
    assert sum(there in tried for there in around) > 0.6 * len(around) > 5
