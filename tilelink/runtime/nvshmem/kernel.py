# pyright: basic
"""A program on one rank of several nodes: its memory, its kernels with NVSHMEM's library, and its launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tilelink.artifact import Artifact, KernelSpec, Parameter, SignalsPointer
from tilelink.device.debug import TRIPPED, WORDS, armed, trip
from tilelink.errors import BindingError, DeadlineError
from tilelink.generated import file_of, load_module
from tilelink.runtime.cuda import tables
from tilelink.runtime.cuda.arguments import Arguments as OfOneNode
from tilelink.runtime.cuda.device import agree, gpu_of
from tilelink.runtime.cuda.driver import library as cuda_driver
from tilelink.runtime.cuda.functions import Function, HelperKernel
from tilelink.runtime.cuda.operands import Tensors, check_apart
from tilelink.runtime.cuda.side_streams import SIDE_PRIORITY, Sides, new_stream
from tilelink.runtime.nvshmem.bitcode import libraries
from tilelink.runtime.nvshmem.helper_kernels import await_outputs, close_launch, open_launch
from tilelink.runtime.nvshmem.library import Library, Nvshmem
from tilelink.runtime.nvshmem.memory import Memory
from tilelink.runtime.order import kernels_in_order


class Arguments(OfOneNode):
    """The arguments of the kernels of a rank (runtime/protocol.py): counters are words of 64 bits."""

    def argument(self, kernel: KernelSpec, parameter: Parameter) -> Any:
        """Return the argument for a parameter, the same in every launch; None if a caller passes it."""
        if isinstance(parameter, SignalsPointer):
            return self._memory.words  # type: ignore[attr-defined]
        return super().argument(kernel, parameter)


class Linked:
    """Compiling and loading of kernels that use the network: with the bitcode, and registered one by one."""

    def __init__(self, library: Library, find: Callable[[], dict[str, str]]) -> None:
        self._library, self._find = library, find

    @property
    def options(self) -> dict[str, Any]:
        """Return what Triton links."""
        return {"extern_libs": self._find()}

    def loaded(self, compiled: Any) -> None:
        """Register the module of a kernel that is on the GPU."""
        self._library.register(int(compiled.module))


class NvshmemKernel:
    """A compiled program of all ranks of several nodes: `kernel({"x": x})` launches it on the current stream.

    Construction is collective. Launches are asynchronous, and each begins after the one before. A launch cannot be
    captured into a CUDA graph.
    """

    def __init__(
        self, artifact: Artifact, group: dist.ProcessGroup, deadline_s: float | None = None,
        library: Library | None = None,
    ) -> None:  # fmt: skip
        """deadline_s: seconds that one wait may take; then every launch is waited for. None: no limit.

        Raise RankError if the ranks build different programs or NVSHMEM does not start, BindingError for a program with
        stages on copy engines, or without the device library.
        """
        if artifact.copy_programs:
            hint = "put them on SMs, `on sm(1)`: copy engines are for programs of one node"
            raise BindingError(f"stages on copy engines: {artifact.copy_programs[0].name}", hint=hint)
        self.artifact, self.device = artifact, gpu_of(group)
        self._rank, self._seconds = dist.get_rank(group), deadline_s
        with torch.cuda.device(self.device), torch.inference_mode(False):
            agree(artifact.fingerprint, group, self.device)
            self._library = library or Nvshmem(group, self.device)
            self._memory = Memory(artifact, self._rank, self._library, self.device)
            self._words = self._debug_block() if deadline_s else None
            self._arguments: Any = Arguments(artifact, self._memory, self._words, None)  # type: ignore[arg-type]
            self._compile()
            torch.cuda.synchronize(self.device)
            dist.barrier(group, device_ids=[self.device.index])

    def _debug_block(self) -> torch.Tensor:
        return torch.zeros(WORDS, dtype=torch.int64, device=self.device)

    def _compile(self) -> None:
        artifact, memory = self.artifact, self._memory
        link = Linked(self._library, lambda: libraries(_capability(self.device)))
        module, order = load_module(file_of(artifact.source)), kernels_in_order(artifact.kernels)
        names = sorted({one.stream for one in order} - {"main"})
        streams = {name: new_stream(cuda_driver(), self.device, SIDE_PRIORITY) for name in names}
        self._functions = [
            (
                streams.get(one.stream),
                Function(
                    one, getattr(module, one.name), self._arguments.argument, artifact,
                    link if one.uses_network else None,
                ),
            )
            for one in order
        ]  # fmt: skip
        self._sides = Sides(cuda_driver(), [side.cuda_stream for side in streams.values()])
        rows = tables.exits(artifact, self._rank, ())
        exits = tables.int32(rows, self.device)
        who = {"RANKS": artifact.ranks, "NODE": artifact.ranks // artifact.nodes}
        stage, words = len(artifact.stages), self._words
        told = (memory.words, memory.signal_table)
        self._open = self._close = self._await = None
        if artifact.needs_entry:
            options = {**who, "ENTERED": artifact.entered_base}
            self._open = HelperKernel(open_launch, (*told, memory.rank), options, link)
        if rows and artifact.copies_outputs:
            waited = (memory.words, memory.epoch, words, exits)
            self._await = HelperKernel(await_outputs, waited, {"EXITS": len(rows), "STAGE": stage})
        options = {
            **who, "BLOCK": 1 << (artifact.ranks - 1).bit_length(), "FINISHED": artifact.finished_base,
            "EXITS": len(rows), "LAG": artifact.lag, "STAGE": stage,
        }  # fmt: skip
        self._close = HelperKernel(close_launch, (*told, memory.epoch, words, exits, memory.rank), options, link)
        self._slot, self._last = 0, None
        self._end = torch.cuda.Event()

    def __call__(self, inputs: Tensors, out: Tensors | None = None) -> dict[str, torch.Tensor]:
        """Launch once on the current stream. Every rank makes the launch.

        inputs: tensors of this rank. out: tensors for outputs. Return the outputs. Raise BindingError for tensors that
        do not fit and for a launch that is captured; with a deadline DeadlineError.
        """
        with torch.cuda.device(self.device):
            if torch.cuda.is_current_stream_capturing():
                hint = "capture what is around it; programs of one node (device cuda) may be captured"
                raise BindingError("a launch on several nodes cannot be captured", hint=hint)
            arguments = self._arguments
            given = arguments.given.checked(inputs)
            results = arguments.taken.checked(out, complete=False) if out else {}
            if results:
                check_apart(results, given, self._memory.heap)
            stream: Any = torch.cuda.current_stream(self.device)
            if self._last is not None and stream.cuda_stream != self._last.cuda_stream:
                self._end.record(self._last)
                stream.wait_event(self._end)
            tensors = given | arguments.allocate(results)
            if self._words is not None:
                self._words.copy_(torch.tensor(armed(self._seconds or 0.0), dtype=torch.int64))
            self._launch(tensors, stream.cuda_stream, results)
            self._last, self._slot = stream, (self._slot + 1) % self.artifact.cycle
            if self._words is not None:
                self._settle(stream)
            return {t.name: results.get(t.name, tensors.get(t.name)) for t in arguments.outputs}  # type: ignore[misc]

    def _launch(self, tensors: Tensors, stream: int, results: dict[str, torch.Tensor]) -> None:
        arguments = self._arguments
        if arguments.kept:
            arguments.make_kept(results)
        if arguments.staged:
            arguments.stage(tensors, self._slot)
        if self._open is not None:
            self._open(stream)
        self._sides.fork(stream)
        for side, function in self._functions:
            function(side.cuda_stream if side else stream, tensors)
        self._sides.join(stream)
        if self._await is not None:
            self._await(stream)
        if arguments.kept:  # peers may write there again once the end of the launch is announced
            arguments.keep(results, self._slot)
        assert self._close is not None
        self._close(stream)

    def _settle(self, stream: Any) -> None:
        """Wait for the launch. Raise DeadlineError if one of its waits exceeded the deadline.

        A rank of another node learns of it by its own deadline: debug blocks are not read through the network.
        """
        stream.synchronize()
        assert self._words is not None
        block = self._words.tolist()
        if not block[TRIPPED]:
            return
        report = trip(block)
        assert report is not None
        stage, channel = self.artifact.describe(report.stage, report.channel)
        seconds = self._seconds or 0.0
        raise DeadlineError(
            f"rank {self._rank}: tile {report.tile} of {stage} waited {seconds:g} s for {channel}: "
            f"it was {report.seen}, and {report.expected} is needed",
            rank=self._rank, stage=report.stage, tile=report.tile, channel=report.channel, seen=report.seen,
            expected=report.expected, seconds=seconds, stage_name=stage, channel_name=channel,
            hint="did every rank make the same launches? A kernel that was late is of no further use: compile again",
        )  # fmt: skip


def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
