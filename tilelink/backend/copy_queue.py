"""Copy-engine stages as plain Python: the operations that the host issues to a queue, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from tilelink.backend import nodes
from tilelink.backend.constants import LEVEL, Constants, scaled, total
from tilelink.backend.context import KernelContext, LoopContext
from tilelink.backend.frame import Frame
from tilelink.backend.scalars import ScalarPrinter
from tilelink.backend.shapes import strides
from tilelink.backend.words import statement_comment
from tilelink.backend.writer import Writer
from tilelink.errors import EmitError
from tilelink.ir.mapping import ChannelGrid, Span, TileMap
from tilelink.ir.program import For, If, Notify, Read, Region, Statement, Store, Transfer, Wait
from tilelink.ir.scalar import Scalar
from tilelink.lowering.bound import Bound, BoundStage


@dataclass(kw_only=True)
class QueueEmitter:
    """Lowers one stage. `thresholds` as for StatementEmitter; None reads the module's table of the rank."""

    bound: Bound
    stage: BoundStage
    writer: Writer
    scalar: ScalarPrinter
    constants: Constants
    thresholds: Mapping[tuple[str, str], int | None]

    def body(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            self.writer.add(nodes.Comment(text=statement_comment(statement)))
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Transfer(target=target, source=Read(region=source)):
                self._copy(target, source, is_transfer=True)
            case Store(region=target, value=Read(region=source), adds=False):
                self._copy(target, source, is_transfer=False)
            case Notify(kind=kind, region=region):
                tile_map = self.bound.tile_map(self.stage.name, region)
                self._notify(tile_map, self.bound.channels[region.tensor, kind])
            case Wait(kind=kind, region=region):
                self._wait(kind, region)
            case If(condition=condition, then=then, orelse=orelse):
                with self.writer.block(nodes.Branch(condition=self.scalar(condition))):
                    self.body(then)
                if orelse:
                    with self.writer.block(nodes.Otherwise()):
                        self.body(orelse)
            case For(indices=indices, body=body):
                self._loop(tuple(d.name for d in indices), body)
            case _:
                hint = "the copy engine copies regions, waits and notifies; run the stage on sm"
                raise EmitError("the copy engine cannot compute", location=statement.location, hint=hint)

    def _loop(self, names: tuple[str, ...], body: tuple[Statement, ...]) -> None:
        if not names:
            self.body(body)
            return
        with self.writer.block(nodes.Loop(index=names[0], over=f"range({self.constants.count(self.stage, names[0])})")):
            self._loop(names[1:], body)

    def _copy(self, target: Region, source: Region, *, is_transfer: bool) -> None:
        if self._sizes(target) != self._sizes(source):
            hint = "to repeat or to reshape a region is for programs: run the stage on sm"
            raise EmitError("the copy engine copies boxes of equal sizes", location=target.location, hint=hint)
        here, there = (self.bound.tensors[region.tensor].dtype for region in (source, target))
        if here != there:
            hint = "to convert elements is for programs: run the stage on sm"
            raise EmitError(f"the copy engine cannot turn {here} into {there}", location=target.location, hint=hint)
        more = () if is_transfer else ("traced=False",)  # no trace shows a copy within the rank
        number = str(self.stage.number)
        self.writer.call("queue.copy", *self._box(target), *self._box(source), number, "tile", *more)

    def _sizes(self, region: Region) -> tuple[int, ...]:
        """Return the sizes of a region's box, without dimensions of one element."""
        spans = self.bound.tile_map(self.stage.name, region).spans
        return tuple(span.size for span in spans if span.kind != "point" and span.size != 1)

    def _box(self, region: Region) -> tuple[str, ...]:
        """Return a region as arguments of a copy: tensor, rank, first coordinates and sizes, as the host computes."""
        tile_map = self.bound.memory_map(self.stage.name, region)
        low = [self.scalar(s.start) for s in tile_map.spans]
        sizes: list[str] = []
        for span, dim in zip(tile_map.spans, self.bound.tensors[region.tensor].decl.shape, strict=True):
            if span.kind == "gather":
                hint = "rows chosen by a table are moved by programs: run the stage on sm"
                raise EmitError("the copy engine cannot gather", location=region.location, hint=hint)
            plain = span.kind != "tile" or self.stage.extents[str(span.index)] % span.size == 0
            size = f"{self.scalar(span.stop)} - {self.scalar(span.start, LEVEL['*'])}"
            sizes.append(self._size(span, dim) if plain else size)
        several = (f"({', '.join(one)}{',' * (len(one) == 1)})" for one in (low, sizes))
        return f"'{region.tensor}'", self.scalar(tile_map.rank), *several

    def _size(self, span: Span, dim: Scalar) -> str:
        if span.kind == "block":
            return str(span.size)
        if span.kind == "tile":
            return self.constants.tile(self.stage, str(span.index))
        return "1" if span.kind == "point" else self.constants.size(dim)

    def _notify(self, tile_map: TileMap, grid: ChannelGrid) -> None:
        rank = self.scalar(tile_map.rank)

        def emit(channel: str, _: str) -> None:
            self.writer.call("queue.notify", rank, channel, str(self.stage.number), "tile")

        self._channels(tile_map, grid, emit)

    def _wait(self, kind: str, region: Region) -> None:
        grid = self.bound.channels[region.tensor, kind]
        threshold = self.thresholds[region.tensor, kind]
        generation = f"((epoch - 1) // {self._buffers(grid)} + 1)" if grid.buffers > 1 else "epoch"

        def emit(channel: str, linear: str) -> None:
            count = threshold if threshold is not None else f"THRESHOLDS_{region.tensor}_{kind}[rank][{linear}]"
            self.writer.call("queue.wait", channel, f"{count} * {generation}", str(self.stage.number), "tile")

        self._channels(self.bound.tile_map(self.stage.name, region), grid, emit)

    def _buffers(self, grid: ChannelGrid) -> str:
        return self.constants.buffers(self.bound.tensors[grid.tensor])

    def _channels(self, tile_map: TileMap, grid: ChannelGrid, emit: Callable[[str, str], None]) -> None:
        """Call `emit(pad offset, number in the grid)` for every channel of an access."""
        terms: list[str] = []
        loops: list[nodes.Loop] = []
        for channels, step in zip(tile_map.channel_range(grid), strides(grid.counts), strict=True):
            channel = self.scalar(channels.low, LEVEL["*"])
            if channels.count != 1:
                channel = self.writer.name("channel")
                over = f"range({self.scalar(channels.low)}, {self.scalar(channels.high)})"
                loops.append(nodes.Loop(index=channel, over=over))
            terms.append(scaled(channel, str(step)))
        buffer = f"(epoch - 1) % {self._buffers(grid)}" if grid.buffers > 1 else "0"
        offset = total([self.constants.signals(grid), scaled(buffer, self.constants.channels(grid)), *terms])
        with ExitStack() as around:
            for loop in loops:
                around.enter_context(self.writer.block(loop))
            emit(offset, total(terms))


def queue_kernel(frame: Frame) -> KernelContext:
    """Return the context of the function that issues the operations of a copy engine."""
    loops: list[LoopContext] = []
    for loop in frame.kernel.loops:
        writer = frame.writer()
        for name in loop.stages:
            stage = frame.bound.stages[name]
            scalar = frame.printer(stage, triton=False)
            frame.indices(stage, writer, scalar)
            writer.call("queue.tile_begin", str(stage.number), "tile")
            emitter = QueueEmitter(
                bound=frame.bound,
                stage=stage,
                writer=writer,
                scalar=scalar,
                constants=frame.constants,
                thresholds=frame.thresholds,
            )
            emitter.body(stage.stage.body)
            writer.add(nodes.QueueTileEnd(stage=stage.number))
        total = frame.constants.total(frame.bound.stages[loop.stages[0]])
        loops.append(LoopContext(total=total, body=tuple(writer.nodes)))
    return KernelContext(
        name=frame.kernel.name,
        template="kernels/queue.py.j2",
        constants=frame.constants,
        launch=frame.start,
        loops=tuple(loops),
    )
