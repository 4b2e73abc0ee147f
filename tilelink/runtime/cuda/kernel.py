# pyright: basic
"""A program on one GPU rank: its memory, its compiled kernels, and a launch of them."""

from __future__ import annotations

from collections.abc import Collection

import torch
import torch.distributed as dist

from tilelink.errors import BindingError
from tilelink.generated import load_module
from tilelink.protocol import LaunchProtocol
from tilelink.runtime.cuda import tables
from tilelink.runtime.cuda.copy_stream import CopyEngine, may_be_begun
from tilelink.runtime.cuda.deadline import DebugBlock
from tilelink.runtime.cuda.device import agree, gpu_of, of_all
from tilelink.runtime.cuda.driver import library
from tilelink.runtime.cuda.functions import Address, Function, HelperKernel
from tilelink.runtime.cuda.graphs import GraphCache, graphs
from tilelink.runtime.cuda.heap import Heap
from tilelink.runtime.cuda.helper_kernels import await_outputs, close_launch, open_launch, turn_launch
from tilelink.runtime.cuda.offline import helper_options, recorded
from tilelink.runtime.cuda.operands import Operands, Tensors, check_apart
from tilelink.runtime.cuda.order import kernels_in_order
from tilelink.runtime.cuda.side_streams import SIDE_PRIORITY, Sides, new_stream
from tilelink.runtime.cuda.spec import Argument, GpuProgram
from tilelink.runtime.cuda.timeline import Timeline, Tracer
from tilelink.runtime.job import TensorLayout

SETS = 128
"""Sets of tensors that are remembered, and for which a launch is one graph."""


class GpuKernel:
    """A compiled program of a group of GPU ranks: `kernel({"x": x})` launches it on the current stream.

    Building it is collective. Launches are asynchronous and ordered: one begins after the one before it, also when
    they are made on different streams, or one after the other by different threads. Tensors may be written, or freed on
    that stream, as soon as a call returns. May be captured into a CUDA graph once it was launched eagerly.
    """

    def __init__(self, program: GpuProgram, group: dist.ProcessGroup, deadline_s: float | None = None) -> None:
        """deadline_s: seconds that one wait may take; then every launch is waited for, and is slow. None: for ever.

        Raises RankError if the ranks build different programs, BindingError for a stage that its copy engine cannot do.
        """
        self._program = program
        self._rank, self._group = dist.get_rank(group), group
        self.device = gpu_of(group)
        with torch.cuda.device(self.device), torch.inference_mode(False):  # else nobody may write its buffers later
            self._build(deadline_s)

    def _build(self, deadline_s: float | None) -> None:
        program, group = self._program, self._group
        agree(program.fingerprint, group, self.device)
        layout = program.layout
        self._heap = Heap(layout, group, self.device)
        self._watch = DebugBlock(layout, self._rank, self.device, deadline_s, self._heap) if deadline_s else None
        self._tracer: Tracer | None = None
        if program.records and self._watch:
            self._tracer = Tracer(program, self._watch, group, self.device)
        self._own = dict(self._heap.tensors)
        for tensor in layout.tensors:
            if tensor.space in ("local", "table"):
                self._own[tensor.name] = self._local(tensor)
        self._inputs = [t for t in layout.tensors if t.space == "in"]
        self._staged = [t for t in self._inputs if t.symmetric]
        self._outputs = [t for t in layout.tensors if t.space == "out"]
        self._kept = [t for t in self._outputs if t.symmetric]
        self._keyed = [t.name for t in (*self._inputs, *self._outputs) if not t.symmetric]
        self._given, self._taken = Operands(self._inputs, self.device), Operands(self._outputs, self.device)
        self._ordinary = Operands([t for t in self._outputs if not t.symmetric], self.device)
        self._epoch = torch.tensor([1, 0, 0, 0], dtype=torch.int64, device=self.device)
        self._slot = 0
        self._last: torch.cuda.Stream | None = None
        self._callers: dict[int, torch.cuda.Stream] = {}
        self._end = torch.cuda.Event()
        self._record()
        self._compile()
        torch.cuda.synchronize(self.device)
        dist.barrier(group, device_ids=[self.device.index])

    def _local(self, tensor: TensorLayout) -> torch.Tensor:
        if tensor.space == "table":
            return torch.as_tensor(self._program.tables[tensor.name][self._rank], dtype=torch.int32).to(self.device)
        return torch.zeros((tensor.slots, *tensor.shape), dtype=tensor.torch_dtype, device=self.device)

    # Copy engine ---------------------------------------------------------------------------------------------

    def _record(self) -> None:
        """The queue of every buffer in the cycle, and the tables of the helper kernels."""
        found = recorded(self._program, self._rank)
        # All ranks or none: one that is told of a launch in the next one must not be waited for at this one's end.
        releases = self._program.protocol is LaunchProtocol.COUNTED_WITH_COPIES
        begun = releases and all(of_all(int(may_be_begun(found)), self._group, self.device))
        self._meets = self._program.protocol.in_kernels and begun == releases
        self._boundary = helper_options(self._program, found, begun)
        self._check_gates(found.gated)
        layout, device = self._program.layout, self.device
        rows = found.exits, found.counters, found.flags
        self._exits, self._counters, self._flags = (tables.int32(r, device) for r in rows)
        self._flag_values = tables.int32([row[1] for row in found.flags], device)
        for _, count, _, counter, _ in found.flags:
            if counter >= 0:
                self._heap.pad[counter] = count
        self._engine = CopyEngine(
            found, self._place, self._heap.pads, self._rank, self._flag_values, branches=self._program.branches,
            timed=self._tracer is not None, replayed=not self._watch, begun=begun,
        )  # fmt: skip
        self._gated = sorted(found.gated)
        self._thresholds = {(g.tensor, g.kind): tables.thresholds(g, self._rank, device) for g in layout.grids}

    def _check_gates(self, gated: Collection[int]) -> None:
        for grid in self._program.layout.grids:
            inside = any(grid.base <= channel < grid.base + grid.slots * grid.count for channel in gated)
            if inside and (grid.tensor, grid.kind) in self._program.awaited:
                hint = "run one of the stages on the other resource"
                raise BindingError(
                    f"programs and the copy engine wait for the same counters of {grid.tensor}", hint=hint
                )

    def _place(self, name: str, rank: int) -> int | None:
        """Where a rank's copy of a tensor begins; None for what the caller passes."""
        tensor = self._program.layout.tensor(name)
        if tensor.symmetric:
            return self._heap.addresses(name)[rank]
        return self._own[name].data_ptr() if name in self._own else None

    # Kernels -------------------------------------------------------------------------------------------------

    def _compile(self) -> None:
        module = load_module(self._program.source)
        layout, rank = self._program.layout, self._rank
        pads = torch.tensor(self._heap.pads, dtype=torch.int64, device=self.device)
        self._signal_table = pads
        self._peers = {
            name: torch.tensor(self._heap.addresses(name), dtype=torch.int64, device=self.device)
            for name in self._heap.tensors
        }
        watch = self._watch.words if self._watch else None
        self._edge, self._no_edge = self._edges()
        fixed = {
            "signals": self._heap.pad, "signal_table": pads, "epoch": self._epoch, "watch": watch, "rank": rank,
            "edge": self._edge if self._meets else self._no_edge,
        }  # fmt: skip
        order = kernels_in_order(self._program.kernels)
        names = sorted({one.stream for one in order} - {"main"})
        streams = {name: new_stream(library(), self.device, SIDE_PRIORITY) for name in names}
        self._functions = [
            (streams.get(one.stream), Function(one, getattr(module, one.name), fixed, self._value, layout))
            for one in order
        ]
        # Of kernels beside each other most were 6 to 24 us slower in a graph, where they seem to get other SMs.
        worth = (
            bool(self._engine.stream) and not streams and all(function.is_prepared for _, function in self._functions)
        )
        self._seen = GraphCache(graphs, worth and not self._watch, SETS)
        self._capturing = new_stream(library(), self.device)
        sides = [*streams.values(), *([self._engine.stream] if self._engine.stream else [])]
        self._sides = Sides(library(), [side.cuda_stream for side in sides])
        arguments = (self._heap.pad, pads, self._epoch, watch)
        prepared = (self._counters, self._flags, self._flag_values, rank)
        closing, turning = (*arguments, self._exits, *prepared), (*arguments, *prepared)
        options = self._boundary
        self._open = HelperKernel(open_launch, (*arguments, rank), options.opening)
        awaited = (self._heap.pad, self._epoch, watch, self._exits)
        self._await_outputs = HelperKernel(await_outputs, awaited, options.awaiting) if options.awaiting else None
        self._close = HelperKernel(close_launch, closing, options.closing)
        self._close_captured = (
            HelperKernel(close_launch, closing, options.captured) if options.captured else self._close
        )
        self._turns = [HelperKernel(turn_launch, turning, one) for one in options.turns]

    def _edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What kernels that end a launch by themselves are passed (device/handshake.py), and what tells them not to."""
        rows = len(self._exits) if self._exits.dim() == 2 else 0
        # Whoever has waited for all peers to enter a launch knows that they have finished the one before it.
        lag = 0 if self._program.needs_entry and self._program.lag > 1 else self._program.lag
        words = [1, 0, lag, rows, self._exits.data_ptr()]
        words += [len(self._flag_values), self._flags.data_ptr(), self._flag_values.data_ptr()]
        words.append(self._engine.begin.data_ptr())
        found = torch.tensor([words, [0] * len(words)], dtype=torch.int64, device=self.device)
        return found[0], found[1].clone()

    def _value(self, argument: Argument) -> torch.Tensor | Address | None:
        """What a kernel is passed for a tensor or table of the program; None for what changes with every launch."""
        name = argument.name
        match argument.kind:
            case "peers":
                return self._peers[name]
            case "thresholds":
                tensor, _, family = name.rpartition("_")
                return self._thresholds[tensor, family]
            case _ if argument.owner is not None:
                return Address(self._own[name], self._heap.addresses(name)[argument.owner])
            case _:
                return self._own.get(name)

    # Launches ------------------------------------------------------------------------------------------------

    def __call__(self, inputs: Tensors, out: Tensors | None = None) -> dict[str, torch.Tensor]:
        """One launch on the current stream; every rank of the group makes it.

        inputs: tensors of this rank, of the shapes and dtypes of the program. out: where outputs go, which share no
        memory with inputs or each other. Returns the outputs, which have no gradients.
        Raises BindingError for tensors that do not fit; with a deadline DeadlineError.
        """
        if self._elsewhere():
            with torch.cuda.device(self.device):
                return self(inputs, out)
        capturing = torch.cuda.is_current_stream_capturing()
        if self._watch:
            _check_captured(capturing, self._tracer is not None)
            self._watch.check()
        given = self._given.checked(inputs)
        results = self._taken.checked(out, complete=False) if out else {}
        if results:
            check_apart(results, given, self._heap.memory)
        stream = self._current()
        if not capturing and stream is not self._last:
            self._follow(stream)
        tensors = given | self._allocate(results)
        if self._tracer:
            self._tracer.begin(stream)
        self._launch(tensors, stream.cuda_stream, capturing, results)
        if not capturing:
            self._end_eager(stream)
        return {t.name: results.get(t.name, tensors.get(t.name)) for t in self._outputs}  # type: ignore[misc]

    def _end_eager(self, stream: torch.cuda.Stream) -> None:
        slot, self._slot = self._slot, (self._slot + 1) % self._program.cycle
        if self._watch:
            self._end.record(stream)
            self._watch.settle(self._end, self._gated)
        if self._tracer:
            self._tracer.drain((self._engine.early[slot], *self._engine.late[slot]))

    def _elsewhere(self) -> bool:
        """Whether the calling thread has another current GPU: its streams and its context are not this rank's."""
        return torch._C._cuda_getDevice() != self.device.index

    def _current(self) -> torch.cuda.Stream:
        """The current stream, always by the same object; asking for a new one costs more than a kernel's launch."""
        handle = torch._C._cuda_getCurrentRawStream(self.device.index)
        found = self._callers.get(handle)
        if found is None:
            found = self._callers[handle] = torch.cuda.current_stream(self.device)
        return found

    def _follow(self, stream: torch.cuda.Stream) -> None:
        """Lets a stream wait for the launches made on another one."""
        if self._last is not None:
            self._end.record(self._last)
            stream.wait_event(self._end)
        self._last = stream

    def _allocate(self, results: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs that are not symmetric: those given, or new ones."""
        made = self._ordinary.new(results)
        if not results:
            return made
        ordinary = [t.name for t in self._outputs if not t.symmetric]
        return {name: results[name] if name in results else made[name] for name in ordinary}

    def _keep(self, tensor: TensorLayout, results: dict[str, torch.Tensor]) -> None:
        """Copies a symmetric output out of the buffer of this launch, before a later launch of a peer writes there."""
        results[tensor.name].copy_(self._own[tensor.name][self._slot % tensor.slots])

    def _launch(self, tensors: Tensors, stream: int, capturing: bool, results: dict[str, torch.Tensor]) -> None:
        """Everything on a stream, by its handle. results: where the outputs go that are symmetric, or get there."""
        for tensor in self._kept:  # before anything is done: where there is no memory for it, nothing has happened yet
            if tensor.name not in results:
                results[tensor.name] = torch.empty_like(self._own[tensor.name][0])
        if capturing and self._turns:
            self._turns[self._slot](stream)
        self._stage(tensors)
        graph = self._whole(tensors) if self._seen.worth and not capturing else None
        if graph is None or not self._seen.launch(graph, stream):
            self._issue(tensors, stream, captured=capturing, callers=capturing)
        if self._kept:  # peers may write there again when they are told that the launch is closed
            for tensor in self._kept:
                self._keep(tensor, results)
            self._end_launch(stream, capturing)

    def _stage(self, tensors: Tensors) -> None:
        """Copies the inputs that peers read into the buffers of this launch, where they are not there already."""
        for tensor in self._staged:
            there = self._own[tensor.name][self._slot % tensor.slots]
            if there.data_ptr() != tensors[tensor.name].data_ptr():
                there.copy_(tensors[tensor.name])

    def _whole(self, tensors: Tensors) -> int | None:
        """The graph of all that `_issue` does for these tensors and this launch's buffers, if there is one."""
        key = (self._slot, *[tensors[name].data_ptr() for name in self._keyed])
        stream = self._capturing.cuda_stream
        return self._seen.find(key, lambda: self._issue(tensors, stream, captured=True, callers=False), stream)

    def _issue(self, tensors: Tensors, stream: int, captured: bool, callers: bool) -> None:
        """The kernels and copies of a launch, with what begins and, unless outputs are kept, ends it.

        captured: the stream is being captured; callers: by the caller, who may replay it at any time.
        """
        if self._program.needs_entry and (callers or not self._meets):
            self._open(stream)
        engine, slot = self._engine, self._slot
        bases = {name: tensors[name].data_ptr() for name in engine.names}
        if engine.early[slot]:
            engine.early[slot].issue(stream, bases)
        self._sides.fork(stream)
        instead = {"edge": self._no_edge} if self._meets and callers else None
        copies = engine.ready(slot, bases, captured, callers)
        engine.issue(copies, 0, bases, captured)
        for number, (side, function) in enumerate(self._functions, start=1):
            function(side.cuda_stream if side else stream, tensors, instead)
            engine.issue(copies, number, bases, captured)
        self._sides.join(stream)
        if self._await_outputs and (callers or not self._meets):
            self._await_outputs(stream)
        if not self._kept:
            self._end_launch(stream, callers)

    def _end_launch(self, stream: int, callers: bool) -> None:
        """Tells peers that the launch is over, where its kernels do not. callers: the caller captures it."""
        if callers:
            self._close_captured(stream)
        elif not self._meets:
            self._close(stream)

    def buffer(self, name: str) -> torch.Tensor:
        """Where the current stream may put an input of the next launch, so that it need not be copied.

        The symmetric buffer that the launch uses; a new tensor where that is not known yet, or the input has none.
        """
        if self._elsewhere():
            with torch.cuda.device(self.device):
                return self.buffer(name)
        tensor = self._program.layout.tensor(name)
        capturing = torch.cuda.is_current_stream_capturing()
        if not tensor.symmetric or (capturing and self._turns):
            return torch.empty(tensor.shape, dtype=tensor.torch_dtype, device=self.device)
        stream = self._current()
        if not capturing and stream is not self._last:
            self._follow(stream)
        # Detached: else what a caller writes there with gradients keeps its graph in the buffer, launch after launch.
        return self._own[name][self._slot % tensor.slots].detach()

    def empty_outputs(self) -> dict[str, torch.Tensor]:
        """New tensors for all outputs, so that a launch which is given them allocates nothing."""
        return self._taken.new()

    # Measuring -----------------------------------------------------------------------------------------------

    def timeline(self) -> Timeline:
        """What all ranks did in their launches since the last call. Collective, and only if compiled with trace.

        Raises BindingError if it was not.
        """
        if self._tracer is None:
            raise BindingError("this kernel does not measure its launches", hint="compile it with trace=True")
        with torch.cuda.device(self.device):
            return self._tracer.timeline()

    def preset(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The kernels of the main stream alone, with all signals set and nothing moved: what waiting costs nothing.

        The values of the outputs mean nothing. Needs no peer.
        """
        if self._elsewhere():
            with torch.cuda.device(self.device):
                return self.preset(inputs)
        tensors = self._given.checked(inputs) | self._allocate({})
        stream = torch.cuda.current_stream(self.device)
        pad, table = self._preset_pads()
        for side, function in self._functions:
            if side is None:
                function(stream.cuda_stream, tensors, {"signals": pad, "signal_table": table, "edge": self._no_edge})
        return {t.name: tensors[t.name] for t in self._outputs if t.name in tensors}

    def _preset_pads(self) -> tuple[torch.Tensor, torch.Tensor]:
        if not hasattr(self, "_presets"):
            pad = torch.full_like(self._heap.pad, 2**30)
            table = torch.full_like(self._signal_table, pad.data_ptr())
            self._presets = (pad, table)
        return self._presets


def _check_captured(capturing: bool, measured: bool) -> None:
    """Raises BindingError for a launch that is captured, of a kernel whose launches are waited for."""
    if capturing:
        what, hint = "with a deadline", "compile it without a deadline, and without TILELINK_DEADLINE"
        if measured:
            what, hint = "that is measured", "compile it without trace"
        raise BindingError(f"a launch {what} cannot be captured", hint=hint)
