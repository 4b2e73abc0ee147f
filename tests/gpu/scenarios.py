# pyright: basic
"""What tests of programs do on every rank: every program and schedule of the library, whatever fails on the way.

Most use one set of sizes, so that their kernels are compiled once for all of them.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from tests.compiler.library import cases, in_turn, name
from tests.exact_programs import Exact, differences, examples
from tests.gpu.cases import (
    EVEN,
    Case,
    Trial,
    built,
    dims_of,
    even_points,
    point,
    prepare,
    remembers,
    tail_points,
    traced_points,
    trial,
    uneven,
    uneven_dims,
    uneven_points,
)
from tests.gpu.cases import tails as tails_of_library
from tests.gpu.lockstep import CasesFailed, Checks, on_all, together
from tests.runtime.contract import check_arguments, check_launches, check_memory
from tilelink import compiler
from tilelink.dump import Seen
from tilelink.errors import DeadlineError, RankError
from tilelink.ir.program import Program
from tilelink.planning.plan import Plan
from tilelink.runtime.cuda.device import current_target
from tilelink.runtime.cuda.timeline import Timeline
from tilelink.simulator.measured import Measured, measured_text

EVENTS_NS = 10_000  # by which events of streams may be off
REPLAYS = 1000
FEWER_REPLAYS = 100
REPEATS = 60


def prepared() -> None:
    """Compiles what the other scenarios of programs launch. They find it if they have the same cache."""
    prepare([*even_points(), *uneven_points(), *traced_points(), *tail_points()])


def each(body: Callable[[Case, Checks], None]) -> None:
    """A scenario of every case with the common sizes, in which the same inputs always give the same outputs."""
    prepare(even_points())
    chosen = [case for case in cases() if not remembers(case[0])]
    together(chosen, body, lambda case: str(name(case)))


def kernel_of(case: Case, deadline_s: float | None = None) -> Any:
    return built(point(case, dims_of(case[0], EVEN)), deadline_s)


def trial_of(case: Case, launches: int = 3) -> Trial:
    return trial(case, dims_of(case[0], EVEN), launches)


def programs() -> None:
    """Several launches back to back without synchronisation, sizes even and uneven."""
    prepare([*even_points(), *uneven_points()])

    def chosen() -> Iterator[tuple[Case, dict[str, Any]]]:
        for number, case in enumerate(cases()):
            yield from ((case, dims) for dims in (dims_of(case[0], EVEN), uneven_dims(case, number)))

    def body(which: tuple[Case, dict[str, Any]], checks: Checks) -> None:
        case, dims = which
        is_even = dims == dims_of(case[0], EVEN)
        kernel = on_all(lambda: compiler.compile(*case, dims=dims, dtype="bf16", device="cuda"))
        known = trial(case, dims, 7 if remembers(case[0]) else 3 if is_even else 2)
        turns = 7 if remembers(case[0]) else 2
        ready = [known.given(launch) for launch in range(turns)]
        outputs = [kernel(ready[launch % turns]) for launch in range(7)]
        for launch in (0, 4, 5, 6):
            known.verify(launch % turns, outputs[launch], checks, f"launch {launch}")

    together(chosen(), body, lambda which: f"{name(which[0])} {which[1]}")


def tails() -> None:
    """Launches back to back, at sizes of which the last round is divided or filled; twice the same is equal."""
    prepare(tail_points())

    def body(which: tuple[Case, dict[str, Any]], checks: Checks) -> None:
        case, dims = which
        kernel = on_all(lambda: compiler.compile(*case, dims=dims, dtype="bf16", device="cuda"))
        known = trial(case, dims, 2)
        ready = [known.given(0), known.given(1)]
        outputs = [kernel(ready[launch % 2]) for launch in range(6)]
        for launch in (0, 5):
            known.verify(launch % 2, outputs[launch], checks, f"launch {launch}")
        for key, value in outputs[0].items():
            checks.expect(bool(torch.equal(value, outputs[4][key])), f"{key} differs from launch to launch")

    found = tails_of_library()
    if not found:
        raise RuntimeError("no schedule leaves a tail at these sizes")
    together(found, body, lambda which: f"{name(which[0])} {which[1]}")


def skew() -> None:
    """Ranks that come at different times, by up to ten milliseconds."""
    chance = random.Random(dist.get_rank())

    def body(case: Case, checks: Checks) -> None:
        kernel, known = kernel_of(case), trial_of(case)
        ready = [known.given(0), known.given(1)]
        outputs: list[Any] = []
        for launch in range(8):
            torch.cuda._sleep(chance.choice((0, 0, 200_000, 20_000_000)))
            if chance.random() < 0.3:
                time.sleep(0.005)
            outputs.append(kernel(ready[launch % 2]))
        for launch in range(8):
            known.verify(launch % 2, outputs[launch], checks, f"launch {launch}")

    each(body)


def streams() -> None:
    """Launches on other streams than the default one, by turns."""

    def body(case: Case, checks: Checks) -> None:
        kernel, known = kernel_of(case), trial_of(case)
        ready = known.given(0)
        side = [torch.cuda.Stream(), torch.cuda.Stream()]
        torch.cuda.synchronize()
        outputs: list[Any] = []
        for launch in range(6):
            with torch.cuda.stream(side[launch % 2]):
                outputs.append(kernel(ready))
        torch.cuda.synchronize()
        for launch, output in enumerate(outputs):
            known.verify(0, output, checks, f"launch {launch}")

    each(body)


def repeats() -> None:
    """The same tensors again and again, of which a launch may make one graph, with others now and then; ranks are apart
    by up to half a millisecond."""
    chance = random.Random(1000 + dist.get_rank())

    def body(case: Case, checks: Checks) -> None:
        kernel, known = kernel_of(case), trial_of(case)
        ready = [known.given(launch) for launch in range(3)]
        static, out = {key: value.clone() for key, value in ready[0].items()}, kernel.empty_outputs()
        kept: list[tuple[int, Any]] = []
        for launch in range(REPEATS):
            torch.cuda._sleep(chance.choice((0, 0, 0, 1_000_000)))
            for key, value in static.items():
                value.copy_(ready[launch % 3][key])
            found = kernel(static, out=out)  # with what it changes in place
            if launch % 6 == 5:
                kept.append((launch, {key: value.clone() for key, value in found.items()}))
            if launch % 11 == 10:
                kept.append((launch, kernel(ready[launch % 3])))
        for launch, found in kept:
            known.verify(launch % 3, found, checks, f"launch {launch}")

    each(body)


def graphs() -> None:
    """A captured launch, replayed with changing inputs, between eager launches: a thousand times for GPU schedules."""

    def body(case: Case, checks: Checks) -> None:
        kernel, known = kernel_of(case), trial_of(case)
        ready = [known.given(launch) for launch in range(3)]
        static = {key: value.clone() for key, value in ready[0].items()}
        for _ in range(3):
            kernel(static)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = kernel(static)
        replays = REPLAYS if case[1] is not None and case[1].name.startswith("h200") else FEWER_REPLAYS
        for replay in range(replays):
            for key, value in static.items():
                value.copy_(ready[replay % 3][key])
            graph.replay()
            if replay % 199 == 0:
                kept = {key: value.clone() for key, value in outputs.items()}
                known.verify(replay % 3, kept, checks, f"replay {replay}")
            if replay == replays // 2:
                known.verify(1, kernel(ready[1]), checks, "eager launch between replays")
        for launch in range(4):
            known.verify(launch % 3, kernel(ready[launch % 3]), checks, f"eager launch {launch} after replays")
        dist.barrier(device_ids=[torch.cuda.current_device()])

    each(body)


def deadlines() -> None:
    """A rank that makes no launch: the others raise and say what they waited for. None hangs."""
    rank = dist.get_rank()

    def body(case: Case, checks: Checks) -> None:
        kernel, ready = kernel_of(case, deadline_s=0.5), trial_of(case).given(0)
        dist.barrier(device_ids=[torch.cuda.current_device()])
        for _ in range(2):
            kernel(ready)
        if rank:
            begin = time.monotonic()
            late = checks.raises(DeadlineError, lambda: [kernel(ready) for _ in range(3)], "three launches alone")
            checks.expect(time.monotonic() - begin < 10, f"it took {time.monotonic() - begin:.1f} s")
            if late is not None:
                checks.expect(late.rank != 0, "it names the rank that waited for nobody")
                checks.expect(bool(late.channel_name), "it names no channel")
                pads = [{pad.rank for pad in one.pads} for one in late.witnesses if isinstance(one, Seen)]
                checks.expect(pads == [{*range(dist.get_world_size())}], f"it has the counters of {pads}")
            checks.raises(DeadlineError, lambda: kernel(ready), "a launch after a late one")
        torch.cuda.synchronize()
        dist.barrier(device_ids=[torch.cuda.current_device()])

    prepare(even_points())
    chosen = [case for case in cases() if not remembers(case[0]) and shares_memory(case[0])]
    together(chosen, body, lambda case: str(name(case)))


def shares_memory(program: Program) -> bool:
    """True if ranks address one another's memory. Those of other programs wait for nobody, and are never late."""
    return any(tensor.symmetric or tensor.space == "symmetric" for tensor in program.tensors)


def different_programs() -> None:
    """Ranks that compile different programs are told so, all of them."""

    def body(case: Case, checks: Checks) -> None:
        dims = dims_of(case[0], EVEN if dist.get_rank() else uneven(3))
        error = checks.raises(
            RankError, lambda: compiler.compile(*case, dims=dims, dtype="bf16", device="cuda"), "different sizes"
        )
        checks.expect(error is None or "compile different programs" in str(error), f"it says {error}")

    together([next(case for case in cases() if case[1] is not None)], body, lambda case: str(name(case)))


def exact() -> None:
    """Selecting, sorting, operations of integers, and sums of 16 bits that many programs add to, bit by bit."""

    def body(example: Exact, checks: Checks) -> None:
        module = compiler.parse(example.text)
        program = module.program()
        schedule = module.schedule(example.schedule, program) if example.schedule else None
        kernel = on_all(lambda: compiler.compile(program, schedule, dims=example.dims, dtype="bf16", device="cuda"))
        for launch in range(5):
            found = kernel({name: value.cuda() for name, value in example.given.items()})
            for output in differences(found, example.wanted):
                checks.expect(False, f"launch {launch}: {output} differs")

    together(examples(dist.get_rank()), body, str)


# Timelines ---------------------------------------------------------------------------------------------------


def contract() -> None:
    """Memory, arguments and measured launches of GPU ranks are what every runtime is held to."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chosen = in_turn(cases())
    prepare([point(case, dims_of(case[0], EVEN), trace=True) for case in chosen])

    def body(case: Case, checks: Checks) -> None:
        known, kernel = trial_of(case), built(point(case, dims_of(case[0], EVEN), trace=True), 20.0)
        for launch in range(3):
            known.verify(launch, kernel(known.given(launch)), checks, "measured")
        found = kernel.timeline()
        memory, doubt = kernel._memory, 2 * found.resolution_ns + EVENTS_NS
        for held in (
            lambda: check_memory(kernel.artifact, rank, memory),
            lambda: check_arguments(kernel.artifact, rank, memory, kernel._arguments),
            lambda: check_launches(kernel.artifact, found.spans, 3, range(ranks), doubt),
        ):
            try:
                held()
            except AssertionError as error:
                checks.expect(False, f"{error}")

    together(chosen, body, lambda case: str(name(case)))


def timelines() -> None:
    """Launches that are measured give the same results; tiles are there once, and no wait ends before its notify."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    prepare(traced_points())
    kept: dict[int, Timeline] = {}  # each rank looks at some of them, once all are measured

    def measure(which: tuple[int, Case], checks: Checks) -> None:
        number, case = which
        known, kernel = trial_of(case), built(point(case, dims_of(case[0], EVEN), trace=True), 20.0)
        for launch in range(2):
            known.verify(launch, kernel(known.given(launch)), checks, "measured")
        found = kernel.timeline()
        checks.expect(found.dropped == 0, f"{found.dropped} spans were dropped")
        checks.expect(0 < found.resolution_ns <= 2000, f"clocks: {found.clock}")
        if number % ranks == rank:
            kept[number] = found

    def report(which: tuple[int, Case], checks: Checks) -> None:
        checks.failures += judged.get(which[0], [])

    failed: list[str] = []
    judged: dict[int, list[str]] = {}
    numbered = list(enumerate(cases()))
    try:
        together(numbered, measure, lambda which: str(name(which[1])))
    except CasesFailed as error:
        failed.append(str(error))
    judged |= {number: judge(cases()[number], found) for number, found in kept.items()}
    try:
        together(numbered, report, lambda which: f"the timeline of {name(which[1])}")
    except CasesFailed as error:
        failed.append(str(error))
    if failed:
        raise CasesFailed("\n".join(failed))


def judge(case: Case, found: Timeline) -> list[str]:
    """What is wrong with the spans of two launches of a case. Calls no other rank."""
    checks = Checks()
    try:
        _judge(case, found, checks)
    except Exception as error:
        checks.expect(False, f"{type(error).__name__}: {error}")
    return checks.failures


def _judge(case: Case, found: Timeline, checks: Checks) -> None:
    ranks, dims = dist.get_world_size(), dims_of(case[0], EVEN)
    judge_spans(compiler.plan(*case, ranks=ranks, dims=dims, dtype="bf16", target=current_target()), found, checks)


def judge_spans(plan: Plan, found: Timeline, checks: Checks) -> None:
    """Check the spans of two launches of a plan. Calls no other rank."""
    kernels = [kernel for kernel in plan.bound.kernels if not kernel.on_copy_engine]
    tiles = sum(plan.bound.stages[stage].total for kernel in kernels for stage in kernel.stage_names)
    spans = Measured(plan=plan, raw=found.spans).spans
    checks.expect(all(span.begin <= span.end for span in spans), "a span ends before it begins")
    own = [(s.epoch, s.rank, s.stage, s.tile) for s in spans if s.kind == "tile"]
    there = (len(own), len(set(own)), 2 * plan.bound.ranks * tiles)
    checks.expect(there[0] == there[1] == there[2], f"tiles, different ones, expected: {there}")
    doubt = max(found.trip_ns) + 2 * found.resolution_ns + EVENTS_NS
    last = {(s.epoch, s.a, s.b): s.begin for s in spans if s.kind == "notify"}
    for span in spans:
        if span.kind == "wait" and (begun := last.get((span.epoch, span.rank, span.a))) is not None:
            early = f"{span} ended {begun - span.end} ns before its notify"
            checks.expect(span.end + doubt > begun, early)
    text = measured_text(Measured(plan=plan, raw=found.spans, clock=found.clock))
    checks.expect(bool(json.loads(text)["traceEvents"]), "no events")
