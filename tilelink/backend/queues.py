"""Copy-engine stages as plain Python: what the host issues to a queue, one operation after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilelink.backend.regions import strides
from tilelink.backend.scalars import ScalarPrinter
from tilelink.backend.words import statement_comment
from tilelink.backend.writer import Writer
from tilelink.errors import EmitError
from tilelink.ir.mapping import ChannelGrid, TileMap
from tilelink.ir.program import For, If, Notify, Read, Region, Statement, Store, Transfer, Wait
from tilelink.schedule.bound import Bound, BoundStage


@dataclass(kw_only=True)
class QueueStatements:
    """Lowers one stage. `thresholds` as for Statements; None reads the module's table of the rank."""

    bound: Bound
    stage: BoundStage
    writer: Writer
    scalar: ScalarPrinter
    thresholds: Mapping[tuple[str, str], int | None]

    def body(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            self.writer.line(statement_comment(statement))
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Transfer(target=target, source=Read(region=source)):
                self._copy(target, source, "tile")
            case Store(region=target, value=Read(region=source)):
                self._copy(target, source, "tile, traced=False")
            case Notify(kind=kind, region=region):
                tile_map = self.bound.tile_map(self.stage.name, region)
                rank = self.scalar(tile_map.rank)
                self._channels(tile_map, self.bound.channels[region.tensor, kind], f"queue.notify({rank}, {{0}}")
            case Wait(kind=kind, region=region):
                self._wait(kind, region)
            case If(condition=condition, then=then, orelse=orelse):
                with self.writer.block(f"if {self.scalar(condition)}:"):
                    self.body(then)
                if orelse:
                    with self.writer.block("else:"):
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
        with self.writer.block(f"for {names[0]} in range({self.stage.count(names[0])}):"):
            self._loop(names[1:], body)

    def _copy(self, target: Region, source: Region, tile: str) -> None:
        if self._box(target) != self._box(source):
            hint = "to repeat or to reshape a region is for programs: run the stage on sm"
            raise EmitError("the copy engine copies boxes of equal sizes", location=target.location, hint=hint)
        ends = ", ".join(self._end(region) for region in (target, source))
        self.writer.line(f"queue.copy({ends}, {self.stage.number}, {tile})")

    def _box(self, region: Region) -> tuple[int, ...]:
        """The sizes of a region's box, without those of one element."""
        spans = self.bound.tile_map(self.stage.name, region).spans
        return tuple(span.size for span in spans if span.kind != "point" and span.size != 1)

    def _end(self, region: Region) -> str:
        """`"xs", rank, (low, ...), (size, ...)`."""
        tile_map = self.bound.tile_map(self.stage.name, region)
        low = "".join(f"{self.scalar(s.start)}, " for s in tile_map.spans)
        sizes: list[str] = []
        for span in tile_map.spans:
            if span.kind == "gather":
                hint = "rows chosen by a table are moved by programs: run the stage on sm"
                raise EmitError("the copy engine cannot gather", location=region.location, hint=hint)
            plain = span.kind != "tile" or (span.index is not None and self.stage.extents[span.index] % span.size == 0)
            sizes.append(str(span.size) if plain else f"{self.scalar(span.stop)} - ({self.scalar(span.start)})")
        return f"{region.tensor!r}, {self.scalar(tile_map.rank)}, ({low}), ({''.join(f'{s}, ' for s in sizes)})"

    def _wait(self, kind: str, region: Region) -> None:
        grid = self.bound.channels[region.tensor, kind]
        threshold = self.thresholds[region.tensor, kind]
        count = str(threshold) if threshold is not None else f"THRESHOLDS_{region.tensor}_{kind}[rank][{{1}}]"
        rounds = f"((epoch - 1) // {grid.slots} + 1)" if grid.slots > 1 else "epoch"
        tile_map = self.bound.tile_map(self.stage.name, region)
        self._channels(tile_map, grid, f"queue.wait({{0}}, {count} * {rounds}")

    def _channels(self, tile_map: TileMap, grid: ChannelGrid, call: str) -> None:
        """The call for every channel of an access; {0} is the place in the pad, {1} the number in the grid."""
        terms: list[str] = []
        loops: list[str] = []
        for channels, step in zip(tile_map.channel_range(grid), strides(grid.counts), strict=True):
            channel = self.scalar(channels.low, 6)
            if channels.count != 1:
                channel = self.writer.name("channel")
                loops.append(f"for {channel} in range({self.scalar(channels.low)}, {self.scalar(channels.high)})")
            if channel != "0":
                terms.append(channel if step == 1 else f"{channel} * {step}")
        slot = [f"(epoch - 1) % {grid.slots} * {grid.count}"] if grid.slots > 1 else []
        place = " + ".join([*([str(grid.base)] if grid.base else []), *slot, *terms]) or "0"
        text = f"{call.format(place, ' + '.join(terms) or '0')}, {self.stage.number}, tile)"
        depth = self.writer.depth
        for loop in loops:
            self.writer.line(f"{loop}:")
            self.writer.depth += 1
        self.writer.line(text)
        self.writer.depth = depth
