"""Frame of a kernel: what kernels of all kinds have, from their parameters to the first lines of a tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tilelink.artifact import (
    HandshakePointer,
    LaunchProtocol,
    Parameter,
    PeersPointer,
    TensorPointer,
    ThresholdsPointer,
    TileCounterPointer,
)
from tilelink.backend.addresses import Addresses
from tilelink.backend.constants import Constants, scaled, total
from tilelink.backend.context import BufferContext, LaunchContext, SweepContext
from tilelink.backend.dialects import Dialect
from tilelink.backend.expression_names import Names, names_of_order
from tilelink.backend.names import user_names
from tilelink.backend.nodes import Comment, TileBegin, Token
from tilelink.backend.scalars import EntryWords, ScalarPrinter
from tilelink.backend.shapes import strides
from tilelink.backend.words import comment
from tilelink.backend.writer import Writer
from tilelink.ir.sizes import power_of_two
from tilelink.lowering.bound import Bound, BoundStage, Kernel
from tilelink.lowering.kernel_usage import KernelUsage, Signal


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A kernel with all that its source is made of.

    thresholds: (tensor, kind) -> the number of notifies of every awaited channel, or None if it differs between
    channels and a table is read. awaited_by_copy_engine: signals that copy engines wait for.
    """

    bound: Bound
    kernel: Kernel
    usage: KernelUsage
    dialect: Dialect
    thresholds: Mapping[Signal, int | None]
    awaited_by_copy_engine: frozenset[Signal]

    @cached_property
    def constants(self) -> Constants:
        """Return the constants of the kernel. They use none of its other names."""
        return Constants(bound=self.bound, stages=self.usage.stages, taken=self._user_names)

    @cached_property
    def _user_names(self) -> frozenset[str]:
        return frozenset[str]().union(*(user_names(self.bound, stage) for stage in self.usage.stages))

    def writer(self) -> Writer:
        """Return the writer of a loop. Its temporaries use no user names of the kernel and no dimensions."""
        return Writer(taken=self._user_names.union(one.name for one in self.bound.source.params))

    @cached_property
    def arguments(self) -> tuple[Parameter, ...]:
        """Return the parameters: the tensors that its stages access, in declaration order, and then the common ones."""
        tensors, usage = self.bound.tensors, self.usage
        found: list[Parameter] = [TensorPointer(tensor=name) for name in tensors if name in usage.tensors]
        if self.dialect.passes_addresses:
            found += [PeersPointer(tensor=name) for name in tensors if name in usage.remote]
        tables = (signal for signal in usage.waits if self.thresholds[signal] is None)
        found += [ThresholdsPointer(tensor=tensor, kind=kind) for tensor, kind in tables]
        handshake = [HandshakePointer()] if usage.handshake.takes_part else []
        counter = [TileCounterPointer()] if self.kernel.dynamic else []
        return (*found, *self.dialect.parameters, *handshake, *counter)

    # Launch --------------------------------------------------------------------------------------------------

    def launch(self) -> LaunchContext:
        """Return the launch context: buffers, the handshake with peers, and the initial waits."""
        constants, usage, handshake = self.constants, self.usage, self.usage.handshake
        buffers = tuple(
            BufferContext(
                tensor=t.name,
                count=constants.buffers(t),
                size=constants.elements(t),
                is_signalled=t.name in usage.signalled,
            )
            for t in self.bound.tensors.values()
            if t.name in usage.tensors and t.buffers > 1
        )
        return replace(
            self.start,
            numbered=self.bound.protocol is not LaunchProtocol.INDEPENDENT,
            counted=handshake.counted,
            buffers=buffers,
            announces_entry=handshake.announces_entry,
            begins_copies=handshake.begins_copies,
            first_begins_copies=handshake.first_begins_copies,
            announces_finished=handshake.announces_end,
            first_announces=handshake.first_announces,
            counts_programs=handshake.ends_launch and handshake.counted > 0,
            leaves=handshake.ends_launch and not handshake.counted,
            quiet=self.kernel.quiet,
            entered_base=constants.entered,
            finished_base=constants.finished,
            swept=tuple(
                SweepContext(tensor=t.name, words=t.words)
                for t in self.bound.tensors.values()
                if t.swept_by in self.kernel.stage_names
            ),
        )

    @property
    def start(self) -> LaunchContext:
        """Return the launch context of a copy queue: the initial waits alone."""
        return LaunchContext(
            track=self.usage.track,
            ranks=self.constants.ranks,
            block=power_of_two(self.bound.ranks),
            stages=len(self.bound.stages),
            waits=tuple(self._initial_waits()),
        )

    def _initial_waits(self) -> Iterator[tuple[str, int]]:
        """Yield (counter of rank 0, lag) for the initial waits: in launch `epoch` for peers' epoch - lag."""
        if self.bound.ranks > 1:
            if self.kernel.reuse_lag:
                yield self.constants.finished, self.kernel.reuse_lag
            if self.kernel.needs_entry:
                yield self.constants.entered, 0

    # Tiles ---------------------------------------------------------------------------------------------------

    def tile_head(self, stage: BoundStage, writer: Writer, *, awaits: bool = True, places: bool = True) -> Addresses:
        """Emit the first lines of a tile, and return the renderer of the regions after them.

        awaits, places: False for a role that executes no waits, or that does not depend on the place of a tile.
        """
        bound, scalar = self.bound, self.printer(stage)
        awaits = awaits and stage.name in self.usage.waiting
        if places:
            self.indices(stage, writer, scalar)
        scalar = replace(scalar, bases=self.bases(awaits=awaits), words=self._words(stage))
        if places:
            writer.add(TileBegin(stage=stage.number))
        if awaits:
            writer.add(Token())
        return Addresses(
            bound=bound,
            stage=stage,
            typing=bound.typing.stage(stage.name),
            writer=writer,
            scalar=scalar,
            dialect=self.dialect,
            constants=self.constants,
            waits=awaits,
        )

    def printer(self, stage: BoundStage, *, triton: bool = True) -> ScalarPrinter:
        """Return the printer of a stage's integer expressions, in Triton or in plain Python."""
        bound, constants = self.bound, self.constants
        tables = {name: constants.strides(bound.tensors[name]) for name in bound.tensors if name in bound.entries}
        names = Names(constants=constants, stage=stage)
        return ScalarPrinter(triton=triton, strides=tables, bounds=bound.bounds(stage.name), names=names)

    def indices(self, stage: BoundStage, writer: Writer, scalar: ScalarPrinter) -> None:
        """Emit the indices of a tile, computed from its number by the order of the stage."""
        if stage.nest is not None:
            writer.add(Comment(text=comment(str(stage.nest))))
        writer.forget()
        for decl in stage.stage.indices:
            of_order = replace(scalar, names=names_of_order(self.constants, stage, decl.name))
            writer.let(decl.name, of_order(stage.order[decl.name]))

    def _words(self, stage: BoundStage) -> dict[str, EntryWords]:
        """Return how a stage waits for the entries that travel as words."""
        found: dict[str, EntryWords] = {}
        for grid in self.bound.channels.values():
            if self.bound.tensors[grid.tensor].packed and grid.tensor in self.bound.entries:
                buffer = scaled(f"{grid.tensor}_buffer", self.constants.channels(grid)) if grid.buffers > 1 else "0"
                first = total([self.constants.signals(grid), *([buffer] if buffer != "0" else [])])
                places = tuple(map(int, strides(grid.counts)))
                found[grid.tensor] = EntryWords(channel=first, sizes=grid.sizes, strides=places, stage=stage.number)
        return found

    def bases(self, *, awaits: bool) -> dict[str, str]:
        """Return the pointers to the entries of index tensors, tied to the waits of a tile where others write them."""
        bases: dict[str, str] = {}
        for name, tensor in self.bound.tensors.items():
            if name in self.bound.entries and tensor.decl.space != "table":
                pointer = f"{name}_local" if tensor.buffers > 1 else name
                tied = awaits and tensor.decl.space != "in"
                bases[name] = self.dialect.after_waits(pointer, load=True) if tied else pointer
        return bases
