"""The contract of runtimes: CPU ranks, a third runtime, and what can be seen of GPU ranks without a GPU keep to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from math import prod
from typing import Any, get_args

import numpy as np
import pytest
import torch

from tests import artifacts
from tests.compiler import library
from tests.runtime.contract import check_arguments, check_launches, check_memory
from tests.runtime.fake_gpu import FakeGpu
from tests.runtime.threads import Queue, RankArguments, RankMemory, Threads
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.artifact import Artifact, Boxes, Descriptor, LaunchProtocol, Parameter, TileCounterPointer
from tilelink.compiler.cuda import gpu_artifact
from tilelink.device.spans import Span
from tilelink.errors import BindingError, DeadlineError
from tilelink.reference import trial
from tilelink.runtime import protocol
from tilelink.runtime.cpu import copy_queue
from tilelink.runtime.cpu import memory as cpu
from tilelink.runtime.cuda import arguments, kernel, prepared, record_copies
from tilelink.runtime.cuda import memory as cuda
from tilelink.runtime.dtypes import dtype_of
from tilelink.target import target


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


RANKS = 3
LAUNCHES = 3
Tensors = dict[str, torch.Tensor]

CLASSES: dict[type, tuple[type, ...]] = {
    protocol.Memory: (cpu.RankMemory, cuda.Memory, RankMemory),
    protocol.Arguments: (cpu.Arguments, arguments.Arguments, prepared.StandIns, RankArguments),
    protocol.CopyQueue: (copy_queue.CopyQueue, record_copies.Recorder, Queue),
    protocol.Launcher: (compiler.Kernel, kernel.GpuKernel, Threads),
}


@pytest.mark.parametrize("wanted", CLASSES, ids=lambda one: one.__name__)
def test_the_classes_of_a_runtime_have_the_methods_that_the_contract_asks_for(wanted: type) -> None:
    methods = {n: one for n, one in vars(wanted).items() if callable(one) and (n == "__call__" or n[0] != "_")}
    assert methods
    for one in CLASSES[wanted]:
        for name, method in methods.items():
            needed = list(signature(method).parameters)
            assert list(signature(getattr(one, name)).parameters)[: len(needed)] == needed, (one, name)


def compiled(program: str, schedule: str, **sizes: int) -> compiler.Kernel:
    """A program of the library for CPU ranks, traced."""
    module = compiler.library_module(program)
    found = module.program(program)
    dims = {p.name: sizes[p.name] for p in found.params if p.kind == "dim"}
    return compiler.compile(found, module.schedule(schedule, found), ranks=RANKS, dims=dims, trace=True)


def given(kernel: compiler.Kernel, launches: int = LAUNCHES) -> list[list[Tensors]]:
    wanted = [t for t in kernel.artifact.tensors if t.space == "in"]
    return [[{t.name: torch.randn(t.shape) for t in wanted} for _ in range(RANKS)] for _ in range(launches)]


Outputs = Sequence[Sequence[Tensors]]
Run = Callable[[compiler.Kernel, list[list[Tensors]], float], tuple[Outputs, Sequence[Span]]]


def on_cpu(kernel: compiler.Kernel, inputs: list[list[Tensors]], deadline_s: float) -> tuple[Outputs, Sequence[Span]]:
    done = kernel.run(inputs, deadline_s=deadline_s)
    return done.outputs, done.spans


def on_threads(
    kernel: compiler.Kernel, inputs: list[list[Tensors]], deadline_s: float
) -> tuple[Outputs, Sequence[Span]]:
    launcher = Threads(kernel.artifact, kernel.path, deadline_s)
    return [launcher(one) for one in inputs], launcher.spans


RUNTIMES: dict[str, Run] = {"cpu": on_cpu, "threads": on_threads}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_launches_come_one_after_the_other_and_give_what_the_program_means(runtime: str) -> None:
    kernel = compiled("all_gather", "direct", Ms=40, K=16)
    inputs = given(kernel)
    outputs, spans = RUNTIMES[runtime](kernel, inputs, 20.0)
    for launch, one in enumerate(inputs):
        for expected, got in zip(kernel.reference(one), outputs[launch], strict=True):
            torch.testing.assert_close(got["y"], expected["y"], rtol=0, atol=0)
    check_launches(kernel.artifact, spans, LAUNCHES, range(RANKS))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("wanted", ["ag_gemm-h200", "ag_gemm-copy_sms", "gemm_rs_scatter-copy_engine"])
def test_kernels_and_copies_of_a_stream_run_in_their_order_in_every_launch(wanted: str, runtime: str) -> None:
    kernel = compiled(*wanted.split("-"), **dict.fromkeys(("M", "Ms", "N", "K", "Ks"), 24))
    _, spans = RUNTIMES[runtime](kernel, given(kernel), 20.0)
    check_launches(kernel.artifact, spans, LAUNCHES, range(RANKS))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_wait_that_outlives_its_deadline_says_which_it_was(runtime: str) -> None:
    kernel = compiled("all_gather", "direct", Ms=40, K=16)
    text = kernel.emitted.text.replace("queue.notify(", "(lambda *_: None)(")
    assert text != kernel.emitted.text
    silent = replace(kernel, emitted=replace(kernel.emitted, text=text))
    with pytest.raises(DeadlineError) as caught:
        RUNTIMES[runtime](silent, given(silent, 1), 0.5)
    error, artifact = caught.value, kernel.artifact
    assert error.rank in range(RANKS) and error.seconds == pytest.approx(0.5, abs=0.2)
    assert error.channel is not None and artifact.grid(error.channel).tensor == "y"
    assert error.seen == 0 and error.expected and error.expected > 0


# Memory and arguments ----------------------------------------------------------------------------------------


def told_apart(artifact: Artifact) -> Artifact:
    """The same with a table, and with thresholds that are another number for every counter of every rank."""
    ranks, routes = artifact.ranks, artifacts.tensor("routes", space="table", dtype="i32", shape=(5,))
    grids = tuple(replace(g, thresholds=np.arange(ranks * g.count).reshape(ranks, -1) + 1) for g in artifact.grids)
    tables = {**artifact.tables, "routes": np.arange(ranks * 5).reshape(ranks, 5)}
    return replace(artifact, grids=grids, tensors=(*artifact.tensors, routes), tables=tables)


def artifact_for(case: library.Case, machine: str) -> Artifact:
    program, schedule = case
    dims = library.sizes(case, RANKS)
    tables = trial.random_tables(program, ranks=RANKS, dims=dims, seed=0)
    plan = compiler.plan(program, schedule, ranks=RANKS, dims=dims, dtype="bf16", target=machine, tables=tables)
    return gpu_artifact(plan, tables)


@thorough(unless=lambda case: one_in(6, case[0].name))
@pytest.mark.parametrize("case", library.in_turn(library.cases()), ids=library.name)
def test_every_tensor_has_memory_and_every_parameter_its_argument(case: library.Case, fake_gpu: FakeGpu) -> None:
    artifact, gpus = (
        replace(told_apart(artifact_for(case, machine)), copy_programs=()) for machine in ("cpu", "sm_90")
    )
    everyone = cpu.Memory(artifact, 1)
    threads = Threads(artifact, None)  # type: ignore[arg-type]
    for rank in range(RANKS):
        own = everyone.of_rank(rank)
        for memory, passed in (
            (own, cpu.Arguments(own, 0)), (threads.memory[rank], threads.arguments(rank)),
        ):  # fmt: skip
            check_memory(artifact, rank, memory)
            check_arguments(artifact, rank, memory, passed)
        built = fake_gpu.built(gpus, rank)
        check_memory(gpus, rank, built._memory)
        check_arguments(gpus, rank, built._memory, built._arguments)
        shared = sum(t.buffers * prod(t.shape) * dtype_of(t).itemsize for t in gpus.tensors if t.symmetric)
        if gpus.protocol is LaunchProtocol.INDEPENDENT:
            assert not built.symmetric_bytes, "there is nothing that peers access"
        else:
            assert 0 <= built.symmetric_bytes - shared - 4 * gpus.pad_size < 1024 * (3 + len(gpus.tensors))
        assert built._memory.tensor("routes").tolist() == [gpus.tables["routes"][rank].tolist()]


def test_the_library_has_parameters_of_every_class(fake_gpu: FakeGpu) -> None:
    seen = {type(one) for kernel in taking_tiles().kernels for one in kernel.parameters}
    for case in CASES_WITH_BOXES + library.in_turn(library.cases()):
        artifact = artifact_for(case, "sm_90")
        seen |= {type(one) for kernel in artifact.kernels for one in kernel.parameters}
        if len(seen) == len(get_args(Parameter)):
            break
    assert seen == set(get_args(Parameter))


CASES_WITH_BOXES = [case for case in library.cases() if case[0].name == "all_gather" and "tma_copy" in str(case[1])]


def test_boxes_are_of_the_copy_of_their_owner(fake_gpu: FakeGpu) -> None:
    artifact = compiled_with_boxes()
    built = fake_gpu.built(artifact, 1)
    assert Boxes in check_arguments(artifact, 1, built._memory, built._arguments)


def taking_tiles() -> Artifact:
    """Return the artifact of kernels that take tiles by a counter: on a GPU with fewer SMs than tiles."""
    module = compiler.load("paged_decode")
    program = module.program()
    few = replace(target("sm_90"), sms=2)
    dims = {"B": 8, "P": 8, "T": 16, "H": 2, "G": 16, "D": 16, "S": 4, "C": 2, "scale": 0.25}
    return gpu_artifact(
        compiler.plan(program, module.schedule("by_length", program), ranks=RANKS, dims=dims, dtype="bf16", target=few)
    )


def test_counters_of_tiles_are_those_of_their_kernel(fake_gpu: FakeGpu) -> None:
    artifact = taking_tiles()
    built = fake_gpu.built(artifact, 1)
    assert TileCounterPointer in check_arguments(artifact, 1, built._memory, built._arguments)


def compiled_with_boxes() -> Artifact:
    program, schedule = CASES_WITH_BOXES[0]
    plan = compiler.plan(program, schedule, ranks=RANKS, dims={"Ms": 256, "K": 512}, dtype="bf16", target="sm_90")
    return gpu_artifact(plan)


def test_cpu_ranks_refuse_kernels_that_load_through_descriptors() -> None:
    memory = cpu.Memory(compiled("all_gather", "direct", Ms=40, K=16).artifact, 1).of_rank(0)
    kernel: Any = compiled("ag_gemm", "h200", Ms=16, N=24, K=32).artifact.kernels[0]
    with pytest.raises(BindingError, match="loads through descriptors, and CPU ranks have none") as caught:
        cpu.Arguments(memory, 0).argument(kernel, Descriptor(tensor="x", box=(8, 8)))
    assert caught.value.hint == "compile it for the target cpu"


# Launches of a GPU rank, as they are issued --------------------------------------------------------------------


@thorough(unless=lambda case: one_in(6, case[0].name))
@pytest.mark.parametrize("case", library.in_turn(library.cases()), ids=library.name)
def test_a_gpu_rank_issues_all_in_an_order_that_the_artifact_allows(case: library.Case, fake_gpu: FakeGpu) -> None:
    artifact = artifact_for(case, "sm_90")
    built = fake_gpu.built(artifact, 1)
    here = [t for t in artifact.tensors if t.on(1)]
    inputs = {t.name: torch.zeros(t.shape, dtype=dtype_of(t)) for t in here if t.is_given}
    for epoch in range(1, artifact.cycle + 2):
        fake_gpu.issued.clear()
        assert built._driver.slot == (epoch - 1) % artifact.cycle
        outputs = built(inputs)
        names = [one for one in fake_gpu.issued if one in {k.name for k in artifact.kernels}]
        assert sorted(names) == sorted(k.name for k in artifact.kernels)
        for stream in {k.stream for k in artifact.kernels}:
            places = [k.position for name in names for k in artifact.kernels if (k.name, k.stream) == (name, stream)]
            assert places == sorted(places)
        helpers = [one for one in fake_gpu.issued if one in ("open_launch", "close_launch")]
        ends = [] if built._driver._in_kernels else ["open_launch"] * artifact.needs_entry + ["close_launch"]
        assert helpers == ends
        assert {name: tuple(one.shape) for name, one in outputs.items()} == {
            t.name: t.shape for t in here if t.is_result
        }


def test_a_launch_of_independent_ranks_is_its_kernel_alone(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(one for one in library.cases() if one[0].name == "add_norm")
    monkeypatch.setattr("tilelink.runtime.cuda.heap.symmetric", None)  # no peer is asked for anything
    monkeypatch.setattr("tilelink.runtime.cuda.heap.dist", None)
    artifact = artifact_for(case, "sm_90")
    built = fake_gpu.built(artifact, 1)
    inputs = {t.name: torch.zeros(t.shape, dtype=dtype_of(t)) for t in artifact.tensors if t.is_given}
    for capturing in (False, True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda capturing=capturing: capturing)
        fake_gpu.issued.clear()
        built(inputs)
        assert fake_gpu.issued == ["finish"]
