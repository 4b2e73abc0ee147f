# pyright: basic
"""Issue of a GPU rank's launches: kernels, copies and helper kernels on their streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tilelink.artifact import Artifact, HandshakePointer, SignalsPointer, SignalTablePointer
from tilelink.generated import file_of, load_module
from tilelink.runtime.cuda.arguments import Arguments
from tilelink.runtime.cuda.captures import Captures
from tilelink.runtime.cuda.copies import Copies
from tilelink.runtime.cuda.functions import Aimed, Function, HelperKernel
from tilelink.runtime.cuda.handles import SIDE_PRIORITY, Handles
from tilelink.runtime.cuda.handshake import HandshakeArguments
from tilelink.runtime.cuda.helper_kernels import await_outputs, close_launch, open_launch, skip_launches
from tilelink.runtime.cuda.memory import Memory
from tilelink.runtime.cuda.operands import Tensors
from tilelink.runtime.cuda.side_streams import Sides
from tilelink.runtime.order import kernels_in_order


class LaunchDriver:
    """Issues launches with the protocol and streams of a program, on a caller's stream, given by its handle.

    slot: number of the next launch in the cycle of buffers. skips: helper kernels before a captured launch, by slot.
    in_turn: True if a replay of a captured launch is the next launch (Artifact.replays_in_turn). capturing: a stream,
    by its handle, on which whole launches are captured. gains: True if one graph is faster than issuing a launch's
    operations one by one.
    """

    def __init__(
        self, artifact: Artifact, memory: Memory, arguments: Arguments, copies: Copies, handshake: HandshakeArguments,
        debug_block: torch.Tensor | None, handles: Handles,
    ) -> None:  # fmt: skip
        """Compile the kernels. Raises BindingError for one that does not fit the GPU."""
        self._memory, self._copies = memory, copies
        self._engine = copies.engine
        self._in_kernels = handshake.in_kernels
        self._apart = {HandshakePointer: handshake.none}
        self._preset: dict[type, torch.Tensor] | None = None
        self._needs_entry, self._copies_outputs = artifact.needs_entry, artifact.copies_outputs
        self.slot, self.cycle, self.in_turn = 0, artifact.cycle, artifact.replays_in_turn
        self.last: torch.cuda.Stream | None = None
        """Stream of the last launch."""
        self.last_handle = 0
        self._callers: dict[int, torch.cuda.Stream] = {}
        self.end = torch.cuda.Event()
        module = load_module(file_of(artifact.source))
        order = kernels_in_order(artifact.kernels)
        names = sorted({one.stream for one in order} - {"main"})
        streams = {name: handles.stream(memory.device, SIDE_PRIORITY) for name in names}
        self._functions = [
            (streams.get(one.stream), Function(one, getattr(module, one.name), arguments.argument, artifact))
            for one in order
        ]
        # Most launches with kernels in parallel were 6 to 24 us slower in a graph, where they seem to get other SMs.
        self.gains = bool(self._engine.stream) and not streams and all(one.prepared for _, one in self._functions)
        self.capturing = handles.stream(memory.device)
        engine = [self._engine.stream] if self._engine.stream else []
        self.captures = Captures(handles)
        self._sides = Sides(handles, [*streams.values(), *engine])
        self._compile_helpers(debug_block)

    def _compile_helpers(self, debug_block: torch.Tensor | None) -> None:
        memory, copies, options = self._memory, self._copies, self._copies.options
        arguments = (memory.pad, memory.signal_table, memory.epoch, debug_block)
        prepared = (copies.counters, copies.flags, copies.flag_values, memory.rank)
        closing, skipping = (*arguments, copies.exits, *prepared), (*arguments, *prepared)
        self._open = HelperKernel(open_launch, (*arguments, memory.rank), options.opening)
        awaited = (memory.pad, memory.epoch, debug_block, copies.exits)
        self._await_outputs = HelperKernel(await_outputs, awaited, options.awaiting) if options.awaiting else None
        self._close = HelperKernel(close_launch, closing, options.closing)
        captured = options.captured
        self._close_captured = HelperKernel(close_launch, closing, captured) if captured else self._close
        self.skips = [HelperKernel(skip_launches, skipping, one) for one in options.skips]

    # Callers' streams ----------------------------------------------------------------------------------------

    def current(self) -> torch.cuda.Stream:
        """Return the current stream, always as the same object.

        Asking torch for a new one costs more than a kernel's launch.
        """
        handle = torch._C._cuda_getCurrentRawStream(self._memory.device.index)
        stream = self._callers.get(handle)
        if stream is None:
            stream = self._callers[handle] = torch.cuda.current_stream(self._memory.device)
        return stream

    def follow(self, stream: torch.cuda.Stream) -> None:
        """Make a stream wait for the launches made on another one."""
        if self.last is not None:
            self.end.record(self.last)
            stream.wait_event(self.end)
        self.last, self.last_handle = stream, stream.cuda_stream

    def order(self, stream: torch.cuda.Stream, capturing: bool) -> None:
        """Make a stream wait for the launches made, or captured, on another one."""
        if capturing:
            self.captures.follow(stream.cuda_stream)
        elif stream is not self.last:
            self.follow(stream)

    # Launches ------------------------------------------------------------------------------------------------

    def alone(self, sizes: Mapping[str, Sequence[int]] | None) -> list[Aimed] | None:
        """Return the kernels of a launch that is only them, each a driver call on the caller's stream, else None.

        sizes: shapes of tensors with other numbers of rows than the program's, by name: for launches of their own.
        """
        engine, functions = self._engine, [one for side, one in self._functions if side is None]
        others = len(functions) < len(self._functions) or engine.stream is not None or any(engine.early)
        if others or not (self._in_kernels and self.in_turn) or self._copies_outputs:
            return None
        kernels = [one.prepared if sizes is None else one.of_sizes(sizes) for one in functions]
        return None if None in kernels else [one for one in kernels if one is not None]

    def issue(self, tensors: Tensors, stream: int, captured: bool, callers: bool) -> None:
        """Issue the kernels and copies of a launch, with its start and, unless outputs are copied out, its end.

        captured: True if the stream is being captured. callers: True if the caller captures it, and its replays skip
        launches. Then helper kernels perform the handshake.
        """
        if self._needs_entry and (callers or not self._in_kernels):
            self._open(stream)
        engine, slot = self._engine, self.slot
        bases = {name: tensors[name].data_ptr() for name in engine.names}
        if engine.early[slot]:
            engine.early[slot].issue(stream, bases)
        self._sides.fork(stream)
        instead = self._apart if self._in_kernels and callers else None
        copies = engine.ready(slot, bases, captured, callers)
        engine.issue(copies, 0, bases, captured)
        for number, (side, function) in enumerate(self._functions, start=1):
            function(side or stream, tensors, instead)
            engine.issue(copies, number, bases, captured)
        self._sides.join(stream)
        if self._await_outputs and (callers or not self._in_kernels):
            self._await_outputs(stream)
        if not self._copies_outputs:
            self.end_launch(stream, callers)

    def end_launch(self, stream: int, callers: bool) -> None:
        """Announce the end of the launch to peers, if its kernels do not. callers: as for `issue`."""
        if callers:
            self._close_captured(stream)
        elif not self._in_kernels:
            self._close(stream)

    def preset(self, tensors: Tensors, stream: int) -> None:
        """Issue only the kernels of the caller's stream. They find all signals set and perform no handshake."""
        if self._preset is None:
            pad = torch.full_like(self._memory.pad, 2**30)
            table = torch.full_like(self._memory.signal_table, pad.data_ptr())
            self._preset = {SignalsPointer: pad, SignalTablePointer: table, **self._apart}
        for side, function in self._functions:
            if side is None:
                function(stream, tensors, self._preset)
