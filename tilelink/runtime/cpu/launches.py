"""Launches of a job: the assignment of kernels to processes, and the work of a rank before and after its kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from tilelink.artifact import CopyProgram, KernelSpec, SignalGrid
from tilelink.device import network
from tilelink.dump import Pad, ProgramSeen, Seen, WaitSeen
from tilelink.generated import load_module
from tilelink.runtime.cpu import host_signals, interpreter
from tilelink.runtime.cpu.copy_queue import CopyQueue
from tilelink.runtime.cpu.memory import Arguments, Memory
from tilelink.runtime.cpu.processes import Process, run_processes
from tilelink.runtime.cpu.processes.values import Step
from tilelink.runtime.dtypes import poison
from tilelink.runtime.job import Job, RunResult, WorkerTrace
from tilelink.runtime.promises import broken_promise


def run_job(job: Job) -> RunResult:
    """Run a job in this process, in which Triton interprets. Raises as run_processes does."""
    artifact = job.artifact
    module = load_module(job.source)
    interpreter.rewrite(module)
    memory = Memory(artifact, len(job.inputs))
    memory.keep(job.kept)  # of all ranks, before any of them begins: peers may write there
    processes = [process for rank in range(artifact.ranks) for process in _processes(module, memory, rank)]
    launch = _Launch(job, memory)
    report = run_processes(
        processes,
        launches=len(job.inputs),
        begin=launch.begin,
        finish=launch.finish,
        deadline_s=job.deadline_s,
        seed=job.seed,
        max_delay_s=job.max_delay_s,
        trace=job.trace,
        describe=artifact.describe,
        observe=launch.observe,
    )
    outputs = tuple(
        tuple({name: value[k].clone() for name, value in own.items()} for own in memory.results)
        for k in range(len(job.inputs))
    )
    named = zip(processes, report.traces, strict=True)
    traces = tuple(WorkerTrace(rank=n.rank, stream=n.stream, program=n.program, events=e) for n, e in named)
    spans = tuple(span for own in report.spans for span in own)
    return RunResult(
        outputs=outputs, traces=traces if job.trace else (), spans=spans, seconds=report.seconds, kept=memory.left()
    )


def _processes(module: ModuleType, memory: Memory, rank: int) -> Iterator[Process]:
    """Yield one process for each program of each stream. If a kernel has fewer programs, the others skip it."""
    launched = memory.artifact.launched
    for stream in dict.fromkeys(one.stream for one in launched):
        steps_of = sorted((one for one in launched if one.stream == stream), key=lambda one: one.position)
        for program in range(max(one.programs for one in steps_of)):
            steps = (_step(one, module, memory, rank, program) if program < one.programs else None for one in steps_of)
            yield Process(rank=rank, stream=stream, program=program, steps=tuple(steps))


def _step(launched: KernelSpec | CopyProgram, module: ModuleType, memory: Memory, rank: int, program: int) -> Step:
    """Return one program of a kernel, or a copy program, as a function of the epoch."""
    function: Any = getattr(module, launched.name)
    if isinstance(launched, CopyProgram):
        return lambda epoch: function(CopyQueue(memory, rank, epoch), rank, epoch)
    arguments = Arguments(memory.of_rank(rank), program)
    passed = [arguments.argument(launched, parameter) for parameter in launched.parameters]

    def step(epoch: int) -> None:
        arguments.epoch.fill_(epoch)
        function[(1,)](*passed)

    return step


class _Launch:
    """The work of a rank around its kernels: stages inputs, notifies its peers, completes and keeps outputs."""

    def __init__(self, job: Job, memory: Memory) -> None:
        self._job = job
        self._artifact = job.artifact
        self._memory = memory
        symmetric = [t for t in job.artifact.tensors if t.symmetric]
        self._exits = [g for g in job.artifact.grids if g.tensor in {t.name for t in symmetric if t.space == "out"}]
        self._staged = [t for t in symmetric if t.space == "in"]

    def begin(self, rank: int, epoch: int) -> None:
        """Store the inputs, poison memory that only this rank writes, and announce the entry to all ranks.

        A tensor that is written in place stays as the previous launch left it unless this one is given it.
        """
        if self._staged:
            self._await_peers(rank, epoch - min(t.buffers for t in self._staged))
        inputs = self._job.inputs[epoch - 1][rank]
        for tensor in (t for t in self._artifact.tensors if t.on(rank)):
            place = self._memory.tensors[rank][tensor.name][tensor.buffer(epoch)]
            if tensor.name in inputs:
                place.copy_(inputs[tensor.name])
            elif not tensor.symmetric and not tensor.in_place:
                poison(place)
        self._tell(rank, self._artifact.entered_base)

    def finish(self, rank: int, epoch: int) -> None:
        """Wait for peers' writes to outputs, keep the outputs, and announce the end to all ranks."""
        for grid in self._exits:
            self._await_grid(grid, rank, epoch)
        for name, kept in self._memory.results[rank].items():
            buffer = self._artifact.tensor(name).buffer(epoch)
            kept[epoch - 1].copy_(self._memory.tensors[rank][name][buffer])
        self._tell(rank, self._artifact.finished_base)

    def observe(
        self, programs: Mapping[int, Sequence[ProgramSeen]], late: WaitSeen | None, victim: int | None
    ) -> tuple[Seen, ...]:
        """Return what each rank knows of a hang, from its programs, its counters and its index tensors."""
        return tuple(self._seen(rank, own, late if rank == victim else None) for rank, own in programs.items())

    def _seen(self, rank: int, programs: Sequence[ProgramSeen], late: WaitSeen | None) -> Seen:
        launch = min(one.launch for one in programs)
        counters = tuple(int(n) for n in self._memory.pads[rank].tolist())
        broken = broken_promise(self._artifact.promises, self._job.inputs[launch - 1][rank], rank)
        return Seen(
            rank=rank, time=time.time(), launch=launch, late=late,
            pads=(Pad(rank=rank, counters=counters),), programs=tuple(programs),
            broken=str(broken.error()) if broken else "",
        )  # fmt: skip

    def _await_peers(self, rank: int, epoch: int) -> None:
        """Wait until all peers have finished launch `epoch`. Below 1 there is nothing to wait for."""
        for peer in range(self._artifact.ranks if epoch > 0 else 0):
            if peer != rank:
                host_signals.wait(self._memory.pads[rank], self._artifact.finished_base + peer, epoch)

    def _await_grid(self, grid: SignalGrid, rank: int, epoch: int) -> None:
        rounds, buffer = divmod(epoch - 1, grid.buffers)
        first = grid.base + buffer * grid.count
        for linear, threshold in enumerate(grid.thresholds[rank].tolist()):
            if threshold:
                host_signals.wait(self._memory.pads[rank], first + linear, threshold * (rounds + 1))

    def _tell(self, rank: int, base: int) -> None:
        """Add 1 to the counter of this rank in every pad, the local one included."""
        size = self._artifact.ranks // self._artifact.nodes
        for peer in range(self._artifact.ranks):
            if peer // size != rank // size:
                network.installed().signal(peer, self._memory.pads[peer][base + rank :].data_ptr())
                continue
            host_signals.notify(self._memory.pads[peer], base + rank, peer)
