# pyright: basic
"""A program on one rank of several nodes: its memory, its kernels with NVSHMEM's library, and its launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tilelink.artifact import Artifact, KernelSpec, Parameter, SignalsPointer
from tilelink.errors import BindingError
from tilelink.generated import file_of, load_module
from tilelink.runtime.cuda import tables
from tilelink.runtime.cuda.arguments import Arguments as OfOneNode
from tilelink.runtime.cuda.captures import Captures
from tilelink.runtime.cuda.device import agree, gpu_of
from tilelink.runtime.cuda.driver import library as cuda_driver
from tilelink.runtime.cuda.functions import Function, HelperKernel
from tilelink.runtime.cuda.graphs import check_captured
from tilelink.runtime.cuda.handles import SIDE_PRIORITY, Handles
from tilelink.runtime.cuda.measured_kernel import MeasuredKernel
from tilelink.runtime.cuda.operands import Tensors
from tilelink.runtime.cuda.side_streams import Sides
from tilelink.runtime.cuda.timeline import Tracer
from tilelink.runtime.dtypes import dtype_of
from tilelink.runtime.nvshmem.bitcode import libraries
from tilelink.runtime.nvshmem.buffers import emptying, filling
from tilelink.runtime.nvshmem.clock import NetworkClocks
from tilelink.runtime.nvshmem.deadline import Watch
from tilelink.runtime.nvshmem.helper_kernels import await_outputs, close_launch, open_launch
from tilelink.runtime.nvshmem.library import Library, Nvshmem, on_every_rank, packages
from tilelink.runtime.nvshmem.memory import Memory
from tilelink.runtime.order import kernels_in_order
from tilelink.runtime.promises import check_promises
from tilelink.runtime.witness import Explain, explained
from tilelink.settings import settings


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


class NvshmemKernel(MeasuredKernel):
    """A compiled program of ranks of several nodes: `kernel({"x": x})` launches it on the current stream.

    Construction is collective. Launches are asynchronous, and each begins after the one before, also if they are made
    on different streams. A launch may be captured into a CUDA graph, and each replay is the next launch.
    """

    def __init__(
        self, artifact: Artifact, group: dist.ProcessGroup, deadline_s: float | None = None,
        library: Library | None = None, explain: Explain | None = None,
    ) -> None:  # fmt: skip
        """deadline_s: seconds that one wait may take; then every launch is waited for. None: no limit.
        explain: called with the error of a wait that takes longer.

        Raises RankError if the ranks build different programs, if NVSHMEM does not start for them, or if another rank
        lacks a part of it, and BindingError for a program with stages on copy engines, or without the device library.
        """
        if artifact.copy_programs:
            hint = "put them on SMs, `on sm(1)`: copy engines are for programs of one node"
            raise BindingError(f"stages on copy engines: {artifact.copy_programs[0].name}", hint=hint)
        self.artifact, self.device = artifact, gpu_of(group)
        self._handles = Handles(cuda_driver())
        self._rank, self._group, self._explain = dist.get_rank(group), group, explain
        with torch.cuda.device(self.device), torch.inference_mode(False):
            agree(artifact.fingerprint, group, self.device)
            if library is None:
                on_every_rank(lambda: (packages(), libraries(_capability(self.device))), group)
                library = Nvshmem(group, self.device)
            self._library = library
            self._link = Linked(self._library, lambda: libraries(_capability(self.device)))
            memory = self._memory = Memory(artifact, self._rank, self._library, self.device)
            self._watch = None
            if deadline_s:
                self._watch = Watch(artifact, memory, self._handles, deadline_s)
            self._tracer = self._traced() if artifact.spans and self._watch else None
            words = self._watch.words if self._watch else None
            self._arguments: Any = Arguments(artifact, memory, words, None)  # type: ignore[arg-type]
            self._compile(words)
            self._promises = artifact.promises if settings().check else ()
            torch.cuda.synchronize(self.device)
            dist.barrier(group, device_ids=[self.device.index])

    def _traced(self) -> Tracer:
        assert self._watch is not None
        clocks = NetworkClocks(self._group, self.device, self._library, self._link)
        return Tracer(self.artifact, self._watch.words, clocks, self._group, self.device)

    def _compile(self, words: torch.Tensor | None) -> None:
        artifact, memory, link = self.artifact, self._memory, self._link
        module, order = load_module(file_of(artifact.source)), kernels_in_order(artifact.kernels)
        names = sorted({one.stream for one in order} - {"main"})
        streams = {name: self._handles.stream(self.device, SIDE_PRIORITY) for name in names}
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
        self._sides = Sides(self._handles, [*streams.values()])
        self._fill = {one.name: filling(one, memory, HelperKernel) for one in self._arguments.staged}
        self._keep = {one.name: emptying(one, memory, HelperKernel) for one in self._arguments.kept}
        self._compile_handshake(words, link if artifact.nodes > 1 else None)
        self._last: Any = None
        self._end = torch.cuda.Event()
        self._captures = Captures(self._handles)

    def _compile_handshake(self, words: torch.Tensor | None, link: Linked | None) -> None:
        """link: None if no rank is on another node."""
        artifact, memory = self.artifact, self._memory
        rows = tables.exits(artifact, self._rank, ())
        exits = tables.int32(rows, self.device)
        who = {"RANKS": artifact.ranks, "NODE": artifact.ranks // artifact.nodes}
        stage, told = {"STAGE": len(artifact.stages)}, (memory.words, memory.signal_table)
        self._open = self._await = None
        if artifact.needs_entry:
            self._open = HelperKernel(open_launch, (*told, memory.rank, artifact.entered_base), who, link)
        if rows and artifact.copies_outputs:
            self._await = HelperKernel(await_outputs, (memory.words, memory.epoch, words, exits, len(rows)), stage)
        numbers = (memory.rank, len(rows), artifact.finished_base, artifact.lag)
        options = {**who, **stage, "BLOCK": 1 << (artifact.ranks - 1).bit_length()}
        self._close = HelperKernel(close_launch, (*told, memory.epoch, words, exits, *numbers), options, link)

    # Launches ------------------------------------------------------------------------------------------------

    def __call__(self, inputs: Tensors, out: Tensors | None = None) -> dict[str, torch.Tensor]:
        """Launch once on the current stream. Every rank makes the launch.

        inputs: tensors of this rank. out: tensors for outputs. Return the outputs. Raises BindingError for tensors that
        do not fit, and for a captured launch with a deadline; with a deadline DeadlineError.
        """
        self._check_open()
        with torch.cuda.device(self.device):
            capturing = torch.cuda.is_current_stream_capturing()
            self.captured |= capturing
            if self._watch:
                check_captured(capturing, self._tracer is not None)
                with explained(self._explain, self.artifact, self._rank, {}):
                    self._watch.check()
            arguments = self._arguments
            given = arguments.given.checked(inputs)
            if self._promises and not capturing:
                check_promises(self._promises, given, self._rank, self._group)
            results = arguments.taken.checked(out, complete=False) if out else {}
            if results or arguments.in_place:
                arguments.check_apart(given, results, self._memory.heap)
            stream: Any = torch.cuda.current_stream(self.device)
            if capturing:
                self._captures.follow(stream.cuda_stream)
            else:
                self._follow(stream)
            tensors = given | arguments.allocate(results)
            arguments.make_kept(results)
            self._launch(tensors, stream.cuda_stream, results)
            if capturing:
                self._captures.done(stream.cuda_stream)
            if self._watch:
                with explained(self._explain, self.artifact, self._rank, given):
                    self._settle(self._watch, stream)
            return {t.name: results.get(t.name, tensors.get(t.name)) for t in arguments.outputs}  # type: ignore[misc]

    def _follow(self, stream: Any) -> None:
        """Make a stream wait for the launches made on another one."""
        if self._last is not None and stream.cuda_stream != self._last.cuda_stream:
            self._end.record(self._last)
            stream.wait_event(self._end)
        self._last = stream

    def _launch(self, tensors: Tensors, stream: int, results: Tensors) -> None:
        for name, fill in self._fill.items():
            fill(stream, tensors[name])
        if self._open is not None:
            self._open(stream)
        self._sides.fork(stream)
        for side, function in self._functions:
            function(side or stream, tensors)
        self._sides.join(stream)
        if self._await is not None:
            self._await(stream)
        for name, keep in self._keep.items():  # peers may write there again once the end of the launch is announced
            keep(stream, results[name])
        self._close(stream)

    def _settle(self, debug_block: Watch, stream: Any) -> None:
        self._end.record(stream)
        debug_block.settle(self._end)
        if self._tracer:
            self._tracer.drain(())

    def buffer(self, name: str) -> torch.Tensor:
        """Return a new tensor for an input. Its buffer is not known to the host: replays are launches too."""
        tensor = self.artifact.tensor(name)
        return torch.empty(tensor.shape, dtype=dtype_of(tensor), device=self.device)

    @property
    def symmetric_bytes(self) -> int:
        """Return the bytes of NVSHMEM's heap that this rank holds for the kernel, as each of its peers does."""
        return self._memory.heap.nbytes


def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
