"""What tests on GPUs do on every rank. All ranks know all inputs, so each computes what it should get."""

import json
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.compiler.library import cases, groups, name
from tilelink import compiler
from tilelink.errors import DeadlineError, RankError
from tilelink.ir.program import Program
from tilelink.reference.trial import random_inputs
from tilelink.runtime.cuda.device import current_target
from tilelink.schedule.simulate.measured import Measured, measured_text
from tilelink.schedule.values import Schedule

TOLERANCE = 1e-2  # |out - ref| / |ref| for bf16 (Frobenius)
EVEN = (512, 768, 640, 384)
EVENTS_NS = 10_000  # by which events of streams may be off

Case = tuple[Program, Schedule | None]
Inputs = list[list[dict[str, torch.Tensor]]]


def dims_of(program: Program, sizes: tuple[int, ...]) -> dict[str, Any]:
    spare = [p.name for p in program.params if p.kind == "dim"]
    values: dict[str, Any] = {dim: sizes[k % len(sizes)] for k, dim in enumerate(spare)}
    values |= {p.name: {"f32": 0.5, "bool": True}[p.kind] for p in program.params if p.kind in ("f32", "bool")}
    return values | groups(program, dist.get_world_size())


def uneven(seed: int) -> tuple[int, ...]:
    """Sizes that no tile divides; multiples of 8, as rows of bf16 that descriptors take must be."""
    chance = random.Random(seed)
    return tuple(8 * chance.randint(3, 80) for _ in range(4))


def compiled(case: Case, dims: Mapping[str, Any], deadline_s: float | None = 20.0) -> Any:
    return compiler.compile(*case, dims=dims, dtype="bf16", device="cuda", deadline_s=deadline_s)


def given(inputs: Inputs, launch: int) -> dict[str, torch.Tensor]:
    return {key: value.cuda() for key, value in inputs[launch][dist.get_rank()].items()}


def inputs_of(program: Program, dims: Mapping[str, Any], launches: int, seed: int = 0) -> Inputs:
    return random_inputs(program, ranks=dist.get_world_size(), dims=dims, dtype="bf16", launches=launches, seed=seed)


def verify(case: Case, dims: Mapping[str, Any], inputs: Any, outputs: Mapping[str, torch.Tensor], note: str) -> None:
    expected = compiler.reference(case[0], inputs, dims=dims, dtype="bf16")[dist.get_rank()]
    for key, value in outputs.items():
        error = (value.cpu().float() - expected[key].float()).norm() / expected[key].float().norm()
        assert error < TOLERANCE, f"{name(case)} {dict(dims)} {note}: {key} is off by {error:.2e}"


def chosen() -> Iterator[tuple[Case, dict[str, Any]]]:
    for number, case in enumerate(cases()):
        for sizes in (EVEN, uneven(number)):
            yield case, dims_of(case[0], sizes)


def programs() -> None:
    """Every program and schedule, several launches back to back without synchronisation."""
    for case, dims in chosen():
        kernel = compiled(case, dims, deadline_s=None)
        inputs = inputs_of(case[0], dims, 2)
        ready = [given(inputs, 0), given(inputs, 1)]
        outputs = [kernel(ready[launch % 2]) for launch in range(7)]
        for launch in (0, 4, 5, 6):
            verify(case, dims, inputs[launch % 2], outputs[launch], f"launch {launch}")


def skew() -> None:
    """Ranks that come at different times, by up to ten milliseconds."""
    chance = random.Random(dist.get_rank())
    for case in cases():
        dims = dims_of(case[0], EVEN)
        kernel = compiled(case, dims, deadline_s=None)
        inputs = inputs_of(case[0], dims, 2)
        ready = [given(inputs, 0), given(inputs, 1)]
        outputs: list[Any] = []
        for launch in range(8):
            torch.cuda._sleep(chance.choice((0, 0, 200_000, 20_000_000)))
            if chance.random() < 0.3:
                time.sleep(0.005)
            outputs.append(kernel(ready[launch % 2]))
        for launch in range(8):
            verify(case, dims, inputs[launch % 2], outputs[launch], f"launch {launch}")


def streams() -> None:
    """Launches on other streams than the default one, by turns."""
    for case in cases():
        dims = dims_of(case[0], EVEN)
        kernel = compiled(case, dims, deadline_s=None)
        inputs = inputs_of(case[0], dims, 1)
        ready = given(inputs, 0)
        side = [torch.cuda.Stream(), torch.cuda.Stream()]
        torch.cuda.synchronize()
        outputs: list[Any] = []
        for launch in range(6):
            with torch.cuda.stream(side[launch % 2]):
                outputs.append(kernel(ready))
        torch.cuda.synchronize()
        for launch, output in enumerate(outputs):
            verify(case, dims, inputs[0], output, f"launch {launch}")


def graphs() -> None:
    """A captured launch, replayed a thousand times with changing inputs, between eager launches."""
    for case in cases():
        print(name(case), flush=True)
        dims = dims_of(case[0], EVEN)
        kernel = compiled(case, dims, deadline_s=None)
        inputs = inputs_of(case[0], dims, 3)
        ready = [given(inputs, launch) for launch in range(3)]
        static = {key: value.clone() for key, value in ready[0].items()}
        for _ in range(3):
            kernel(static)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = kernel(static)
        for replay in range(1000):
            for key, value in static.items():
                value.copy_(ready[replay % 3][key])
            graph.replay()
            if replay % 199 == 0:
                kept = {key: value.clone() for key, value in outputs.items()}
                verify(case, dims, inputs[replay % 3], kept, f"replay {replay}")
            if replay == 500:
                verify(case, dims, inputs[1], kernel(ready[1]), "eager launch between replays")
        for launch in range(4):
            verify(case, dims, inputs[launch % 3], kernel(ready[launch % 3]), f"eager launch {launch} after replays")
        dist.barrier(device_ids=[torch.cuda.current_device()])


def deadlines() -> None:
    """A rank that makes no launch: the others raise and say what they waited for. None hangs."""
    rank = dist.get_rank()
    for case in cases():
        dims = dims_of(case[0], EVEN)
        kernel = compiled(case, dims, deadline_s=0.5)
        ready = given(inputs_of(case[0], dims, 1), 0)
        for _ in range(2):
            kernel(ready)
        if rank:
            begin = time.monotonic()
            with pytest.raises(DeadlineError) as caught:
                for _ in range(3):
                    kernel(ready)
            assert time.monotonic() - begin < 10, f"{name(case)} took {time.monotonic() - begin:.1f} s"
            assert caught.value.rank == rank
            assert caught.value.channel_name, name(case)
            with pytest.raises(DeadlineError):
                kernel(ready)
        torch.cuda.synchronize()
        dist.barrier(device_ids=[torch.cuda.current_device()])


def different_programs() -> None:
    """Ranks that compile different programs are told so, all of them."""
    case = next(case for case in cases() if case[1] is not None)
    dims = dims_of(case[0], EVEN)
    if dist.get_rank() == 0:
        dims = dims_of(case[0], uneven(3))
    with pytest.raises(RankError, match="compile different programs"):
        compiled(case, dims)


def timelines() -> None:
    """Launches that are measured give the same results; tiles are there once, and no wait ends before its notify."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for case in cases():
        dims = dims_of(case[0], EVEN)
        inputs = inputs_of(case[0], dims, 2)
        kernel = compiler.compile(*case, dims=dims, dtype="bf16", device="cuda", trace=True)
        for launch in range(2):
            outputs = kernel(given(inputs, launch))
            verify(case, dims, inputs[launch], outputs, "measured")
        found = kernel.timeline()
        assert found.dropped == 0 and 0 < found.resolution_ns <= 2000, (name(case), found.clock)
        if rank:
            continue
        plan = compiler.plan(*case, ranks=ranks, dims=dims, dtype="bf16", target=current_target())
        kernels = [kernel for kernel in plan.bound.kernels if not kernel.on_copy_engine]
        tiles = sum(plan.bound.stages[stage].total for kernel in kernels for stage in kernel.stage_names)
        spans = Measured(plan=plan, raw=found.spans).spans
        assert all(span.begin <= span.end for span in spans), name(case)
        own = [(s.epoch, s.rank, s.stage, s.tile) for s in spans if s.kind == "tile"]
        assert len(own) == len(set(own)) == 2 * ranks * tiles, name(case)
        doubt = max(found.trip_ns) + 2 * found.resolution_ns + EVENTS_NS
        last = {(s.epoch, s.a, s.b): s.begin for s in spans if s.kind == "notify"}
        for span in spans:
            if span.kind == "wait" and (begun := last.get((span.epoch, span.rank, span.a))) is not None:
                assert span.end + doubt > begun, f"{name(case)}: {span} ended {begun - span.end} ns before its notify"
        text = measured_text(Measured(plan=plan, raw=found.spans, clock=found.clock))
        assert json.loads(text)["traceEvents"], name(case)
