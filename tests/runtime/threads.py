"""A third runtime, for tests of the contract: ranks are threads, and memory is that of one process.

Copy programs run as they are. A kernel computes nothing: it waits for all that it awaits, and then gives the notifies
of all counters of this rank that it notifies. So programs of copies alone come out right, and of others the order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tilelink.artifact import (
    Artifact,
    Boxes,
    CopyProgram,
    DebugBlockPointer,
    Descriptor,
    EpochPointer,
    FirstProgram,
    HandshakePointer,
    KernelSpec,
    NumPrograms,
    Parameter,
    PeersPointer,
    Rank,
    SignalsPointer,
    SignalTablePointer,
    TensorPointer,
    ThresholdsPointer,
    TileCounterPointer,
)
from tilelink.device.spans import Span
from tilelink.errors import DeadlineError
from tilelink.generated import load_module
from tilelink.runtime.dtypes import dtype_of, poison

Ints = Sequence[int]
Tensors = dict[str, torch.Tensor]


class RankMemory:
    def __init__(self, artifact: Artifact, rank: int) -> None:
        self.pad = torch.zeros(artifact.pad_size, dtype=torch.int32)
        self.own = {
            t.name: torch.empty(
                (t.buffers, *(size if t.on(rank) or t.symmetric else 0 for size in t.shape)), dtype=dtype_of(t)
            )
            for t in artifact.tensors
        }
        for value in self.own.values():
            poison(value)
        self.every: list[RankMemory] = []

    @property
    def pads(self) -> Ints:
        return [one.pad.data_ptr() for one in self.every]

    def tensor(self, name: str) -> torch.Tensor | None:
        return self.own[name]

    def addresses(self, name: str) -> Ints:
        return [one.own[name].data_ptr() for one in self.every]


class RankArguments:
    def __init__(self, artifact: Artifact, rank: int, memory: RankMemory) -> None:
        self._artifact, self._rank, self._memory = artifact, rank, memory
        self._epoch = torch.zeros(1, dtype=torch.int64)

    def argument(self, kernel: KernelSpec, parameter: Parameter) -> Any:
        memory = self._memory
        match parameter:
            case Rank():
                return self._rank
            case FirstProgram():
                return 0
            case NumPrograms():
                return kernel.programs
            case SignalsPointer():
                return memory.pad
            case SignalTablePointer():
                return torch.tensor(memory.pads)
            case EpochPointer():
                return self._epoch
            case DebugBlockPointer() | HandshakePointer():
                return None
            case TileCounterPointer():
                return torch.zeros(1, dtype=torch.int32)
            case PeersPointer(tensor=name):
                return torch.tensor(memory.addresses(name))
            case ThresholdsPointer(tensor=name, kind=kind):
                row = self._artifact.grid_of((name, kind)).thresholds[self._rank]
                return torch.tensor(row.tolist(), dtype=torch.int32)
            case Boxes(tensor=name, owner=int(owner)):
                return memory.every[owner].own[name]
            case TensorPointer(tensor=name) | Descriptor(tensor=name) | Boxes(tensor=name):
                return memory.own[name]


class Queue:
    """A copy program's, of one rank in one launch."""

    def __init__(self, launcher: Threads, rank: int, epoch: int) -> None:
        self._launcher, self._rank, self._epoch, self._track, self._begun = launcher, rank, epoch, 0, 0

    def trace(self, track: int) -> None:
        self._track = track

    def tile_begin(self, stage: int, t: int) -> None:
        self._begun = time.perf_counter_ns()

    def tile_end(self, stage: int, t: int) -> None:
        self._launcher.measured(self._rank, self._track, stage, t, self._epoch, self._begun)

    def wait(self, channel: int, target: int, stage: int, t: int) -> None:
        self._launcher.wait(self._rank, channel, target, stage, t)

    def notify(self, rank: int, channel: int, stage: int, t: int) -> None:
        self._launcher.notify(rank, channel, 1)

    def entry(self, table: str, offset: int) -> int:
        return int(self._launcher.artifact.tables[table][self._rank].reshape(-1)[offset])

    def copy(
        self, target: str, rank: int, low: Ints, sizes: Ints,
        source: str, source_rank: int, source_low: Ints, source_sizes: Ints,
        stage: int, t: int, traced: bool = True,
    ) -> None:  # fmt: skip
        there, here = self._box(target, rank, low, sizes), self._box(source, source_rank, source_low, source_sizes)
        there.copy_(here.reshape(there.shape))

    def _box(self, name: str, rank: int, low: Ints, sizes: Ints) -> torch.Tensor:
        launcher = self._launcher
        buffer = launcher.artifact.tensor(name).buffer(self._epoch)
        place = tuple(slice(start, start + size) for start, size in zip(low, sizes, strict=True))
        return launcher.memory[rank].own[name][buffer][place]


class Threads:
    """Launches an artifact on all its ranks; `spans` is what it measured."""

    def __init__(self, artifact: Artifact, source: Path, deadline_s: float = 10.0) -> None:
        self.artifact, self.deadline_s = artifact, deadline_s
        self.memory = [RankMemory(artifact, rank) for rank in range(artifact.ranks)]
        for one in self.memory:
            one.every = self.memory
        self.spans: list[Span] = []
        self._functions = vars(load_module(source)) if artifact.copy_programs else {}
        self._changed, self._errors, self._epoch = threading.Condition(), list[Exception](), 0

    def arguments(self, rank: int) -> RankArguments:
        return RankArguments(self.artifact, rank, self.memory[rank])

    def __call__(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        self._epoch += 1
        outputs: list[Tensors] = [{} for _ in inputs]
        self._together([(self._rank, rank, given, outputs[rank]) for rank, given in enumerate(inputs)])
        return outputs

    def _together(self, calls: Sequence[tuple[Any, ...]]) -> None:
        """Makes all calls at once. Raises the first error of one."""

        def guarded(call: Any, *given: Any) -> None:
            try:
                call(*given)
            except Exception as error:
                with self._changed:
                    self._errors.append(error)
                    self._changed.notify_all()

        threads = [threading.Thread(target=guarded, args=call) for call in calls]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        if self._errors:
            raise self._errors[0]

    def _rank(self, rank: int, given: Tensors, kept: Tensors) -> None:
        artifact, memory, epoch = self.artifact, self.memory[rank], self._epoch
        staged = [t.buffers for t in artifact.tensors if t.space == "in" and t.symmetric]
        if staged:
            self._await_all(rank, artifact.finished_base, epoch - min(staged))
        for t in artifact.tensors:
            if t.is_given and t.on(rank):
                memory.own[t.name][t.buffer(epoch)].copy_(given[t.name])
        self._tell(rank, artifact.entered_base)
        streams = {one.stream for one in artifact.launched}
        self._together([(self._stream, rank, stream) for stream in sorted(streams)])
        written = {t.name for t in artifact.tensors if t.symmetric and t.space == "out"}
        for grid in artifact.grids:
            if grid.tensor in written:
                self._await_grid(rank, grid.signal, len(artifact.stages), 0)
        for t in artifact.tensors:
            if t.is_result and t.on(rank):
                kept[t.name] = memory.own[t.name][t.buffer(epoch)].clone()
        self._tell(rank, artifact.finished_base)

    def _stream(self, rank: int, stream: str) -> None:
        own = [one for one in self.artifact.launched if one.stream == stream]
        for one in sorted(own, key=lambda one: one.position):
            if isinstance(one, CopyProgram):
                self._functions[one.name](Queue(self, rank, self._epoch), rank, self._epoch)
            else:
                self._kernel(rank, one)

    def _kernel(self, rank: int, kernel: KernelSpec) -> None:
        begun, stage = time.perf_counter_ns(), self.artifact.stages.index(kernel.name)
        for signal in sorted(kernel.awaits):
            self._await_grid(rank, signal, stage, 0)
        for signal in sorted(kernel.notifies):
            grid = self.artifact.grid_of(signal)
            first = grid.base + (self._epoch - 1) % grid.buffers * grid.count
            for linear, count in enumerate(grid.thresholds[rank].tolist()):
                self.notify(rank, first + linear, count)
        for program in range(kernel.programs):
            self.measured(rank, kernel.track + program, stage, program, self._epoch, begun)

    # Signals -------------------------------------------------------------------------------------------------

    def notify(self, rank: int, channel: int, count: int) -> None:
        with self._changed:
            self.memory[rank].pad[channel] += count
            self._changed.notify_all()

    def wait(self, rank: int, channel: int, target: int, stage: int, t: int) -> None:
        pad = self.memory[rank].pad
        with self._changed:
            if self._changed.wait_for(lambda: self._errors or int(pad[channel]) >= target, self.deadline_s):
                return
            names = self.artifact.describe(stage, channel)
            raise DeadlineError(
                f"rank {rank}: {names[0]} waited for {names[1]}", rank=rank, stage=stage, tile=t, channel=channel,
                seen=int(pad[channel]), expected=target, seconds=self.deadline_s,
            )  # fmt: skip

    def _await_grid(self, rank: int, signal: tuple[str, str], stage: int, t: int) -> None:
        grid = self.artifact.grid_of(signal)
        generation, buffer = divmod(self._epoch - 1, grid.buffers)
        for linear, threshold in enumerate(grid.thresholds[rank].tolist()):
            channel = grid.base + buffer * grid.count + linear
            self.wait(rank, channel, threshold * (generation + 1), stage, t)

    def _await_all(self, rank: int, base: int, epoch: int) -> None:
        for peer in range(self.artifact.ranks):
            if peer != rank:
                self.wait(rank, base + peer, epoch, len(self.artifact.stages), 0)

    def _tell(self, rank: int, base: int) -> None:
        for peer in range(self.artifact.ranks):
            self.notify(peer, base + rank, 1)

    def measured(self, rank: int, track: int, stage: int, tile: int, epoch: int, begun: int) -> None:
        self.spans.append(Span(rank, track, "tile", stage, tile, 0, 0, epoch, begun, time.perf_counter_ns()))
