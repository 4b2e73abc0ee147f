"""Addresses of a region's tile: pointer blocks with masks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilelink.backend.constants import LEVEL, Constants, scaled, total
from tilelink.backend.dialects import Dialect
from tilelink.backend.nodes import Peer
from tilelink.backend.scalars import ScalarPrinter
from tilelink.backend.writer import Writer
from tilelink.ir.mapping import Span
from tilelink.ir.program import Region
from tilelink.ir.scalar import Int, Lookup, Scalar, Whole, at_launch, const
from tilelink.ir.typing import Axis, StageTyping
from tilelink.lowering.blocks import axis_block, axis_extent
from tilelink.lowering.bound import Bound, BoundStage


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A part of an axis: `block` elements from `start` (source, relative to the axis). size: `block` in source."""

    start: str
    block: int
    size: str


Slices = Mapping[int, Slice]
"""Slices by position from the last axis (-1, -2, ...), because two axes of a tile may run along the same dimension."""


def along(part: Slice | None, size: str) -> str:
    """Return the positions of a block along an axis: from its start, or from the start of a part of the axis."""
    steps = f"tl.arange(0, {size})"
    return f"{part.start} + {steps}" if part else steps


@dataclass(frozen=True, kw_only=True)
class Block:
    """A rendered pointer block: source of the pointers, of the mask (or None), and its axes."""

    pointers: str
    mask: str | None
    axes: tuple[Axis, ...]


@dataclass(kw_only=True)
class Addresses:
    """Renders the regions of one stage into a writer."""

    bound: Bound
    stage: BoundStage
    typing: StageTyping
    writer: Writer
    scalar: ScalarPrinter
    dialect: Dialect
    constants: Constants
    waits: bool = False
    """True if the stage waits. Then `token` holds its token, and loads of data from other tasks are tied to it."""

    def extent(self, axis: Axis) -> int:
        """Return the logical elements of an axis within one tile."""
        return axis_extent(self.bound, self.stage, axis)

    def block(self, axis: Axis, part: Slice | None) -> int:
        """Return the elements of the axis, or of a part of it, in the current block."""
        return part.block if part and axis.kind != "one" else axis_block(self.bound, self.stage, axis)

    def shape(self, axes: tuple[Axis, ...], slices: Slices) -> tuple[int, ...]:
        return tuple(self.block(a, slices.get(p - len(axes))) for p, a in enumerate(axes))

    def size(self, axis: Axis, part: Slice | None) -> str:
        """Return `block` in source."""
        return part.size if part else self.constants.block(self.stage, axis, self.block(axis, None))

    def dims(self, axes: tuple[Axis, ...], slices: Slices) -> str:
        """Return the shape of a block in source."""
        sizes = [self.size(a, slices.get(p - len(axes))) for p, a in enumerate(axes)]
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"

    def base(self, region: Region, *, load: bool) -> str:
        """Return the pointer to the buffer of the tensor on the region's rank."""
        return self.after_waits(region, self._copy(region), load=load)

    def after_waits(self, region: Region, place: str, *, load: bool = True) -> str:
        """Return the base pointer or coordinate of a load or a store of the region, tied to the earlier waits."""
        decl = self.bound.tensors[region.tensor].decl
        if not self.waits or (decl.space in ("in", "table") and region.rank is None):
            return place
        return self.dialect.after_waits(place, load=load)

    def _copy(self, region: Region) -> str:
        if region.rank is None:
            return f"{region.tensor}_local" if self.bound.tensors[region.tensor].buffers > 1 else region.tensor
        name = self.writer.name(f"{region.tensor}_remote")
        offset = f"{region.tensor}_offset" if self.bound.tensors[region.tensor].buffers > 1 else None
        rank = self.bound.memory_map(self.stage.name, region).rank
        self.writer.add(Peer(name=name, tensor=region.tensor, rank=self.scalar(rank), offset=offset))
        return name

    def region(self, region: Region, slices: Slices, *, load: bool) -> Block:
        """Return the pointers of a region's tile, restricted to slices of its axes, for a load or a store."""
        tile_map = self.bound.memory_map(self.stage.name, region)
        tensor = self.bound.tensors[region.tensor]
        axes = self.typing.region_type(region).axes
        terms: list[str] = []
        masks: list[str] = []
        position = 0
        dims = zip(tile_map.spans, tensor.decl.shape, self.constants.strides(tensor), strict=True)
        for span, dim, stride in dims:
            if span.kind == "point":
                terms.append(scaled(self._point(region, span), stride))
                continue
            name, mask = self._offsets(region, span, dim, axes[position], slices.get(position - len(axes)))
            view = _view(position, len(axes))
            position += 1
            terms.append(scaled(f"{name}{view}", stride))
            if mask:
                masks.append(f"({mask}){view}" if view else mask)
        pointers = total([self.base(region, load=load), *terms])
        return Block(pointers=pointers, mask=" & ".join(masks) or None, axes=axes)

    def _point(self, region: Region, span: Span) -> str:
        """Return a coordinate as a factor, in 64 bits if the offset may need them."""
        wide = self._wide(region) and not isinstance(span.start, Int)
        return f"tl.cast({self.start(span)}, tl.int64)" if wide else self.start(span, LEVEL["*"])

    def start(self, span: Span, level: int = 0) -> str:
        """Return the first element of a tile along a dimension, under a name if it reads an index tensor."""
        if not at_launch(span.start):
            return self.scalar(span.start, level)
        return self.writer.shared(f"first_{span.index}" if span.index else "place", self.scalar(span.start))

    def look_up(self, region: Region, slices: Slices, later: Collection[int]) -> None:
        """Read the entries that give a region its place, before loops over slices of the axes `later`."""
        axes = self.typing.region_type(region).axes
        position = 0
        for span in self.bound.memory_map(self.stage.name, region).spans:
            place, position = position - len(axes), position + (span.kind != "point")
            if span.kind == "point":
                self.start(span)
            elif span.gather is not None and span.gather.launch and place not in later:
                self._listed(span.gather, slices.get(place))
            elif span.kind in ("tile", "block"):
                self.start(span)

    def _offsets(
        self, region: Region, span: Span, dim: Scalar, axis: Axis, part: Slice | None
    ) -> tuple[str, str | None]:
        """Return the element positions along one axis, of a dimension, and the mask of those that exist."""
        block = self.block(axis, part)
        steps = along(part, self.size(axis, part))
        wide = self._wide(region)
        if span.gather is not None and span.gather.launch:
            name, mask = self._listed(span.gather, part)
            return f"{name}{wide}", mask
        if span.gather is not None:
            name, mask = self._gathered(span.gather, steps, self.constants.elements_of(self.stage, axis))
            return f"{name}{wide}", mask
        start = self.start(span, 5)
        places = steps if start == "0" else f"{start} + {steps}"
        value = f"({places}){wide}" if wide and " + " in places else f"{places}{wide}"
        name = self.writer.shared(f"offs_{axis.index}" if axis.index else "offs", value)
        limits: list[str] = []
        own = span.kind in ("tile", "block")  # the axis may be shorter than the dimension
        size = self.extent(axis) if own else span.extent
        if block > size or (part and size % block):
            elements = self.constants.elements_of(self.stage, axis) if own else self.constants.size(dim)
            limits.append(f"{steps if wide or start != '0' else name} < {elements}")
        if span.counted:
            limits.append(f"{name} < {self.end(span)}")
        elif span.kind == "tile" and not self._divides(span):
            limits.append(f"{name} < {self._limit(span, dim)}")
        return name, both(limits)

    def end(self, span: Span) -> str:
        """Return the name of the end (exclusive) of a counted range, as an element of a dimension."""
        assert span.limit is not None
        return self.shared_number(f"end_{span.index}", span.limit)

    def shared_number(self, stem: str, expr: Scalar) -> str:
        """Return an integer expression, under a name if it reads an index tensor."""
        return self.writer.shared(stem, self.scalar(expr)) if at_launch(expr) else self.scalar(expr, LEVEL["*"])

    def _listed(self, gather: Lookup, part: Slice | None) -> tuple[str, str]:
        """Return the elements that an index tensor lists along a tile, and the mask of those that there are."""
        region = Region(tensor=gather.table, coords=gather.coords)
        block = self.region(region, {-1: part} if part else {}, load=True)
        mask = block.mask or f"tl.full({self.dims(block.axes, {-1: part} if part else {})}, 1, tl.int1)"
        last = self.bound.entries[gather.table][1]
        return self.writer.shared(gather.table, f"tiles.entries({block.pointers}, {mask}, last={last})"), mask

    def listed_channels(self, gather: Lookup, size: int) -> tuple[str, str]:
        """Return the channels, of `size` elements each, that the elements along a tile belong to, and their mask."""
        name, mask = self._listed(gather, None)
        return (name if size == 1 else f"{name} // {size}"), mask

    def _wide(self, region: Region) -> str:
        tensor = self.bound.tensors[region.tensor]
        return ".to(tl.int64)" if tensor.size >= 2**31 else ""

    def _limit(self, span: Span, dim: Scalar) -> str:
        """Return the end (exclusive) of a tile axis.

        It is the end of its index, or of the dimension if the index cuts no tile.
        """
        whole = self.stage.extents[str(span.index)] % span.size == 0
        if span.limit is None or whole or span.limit == const(span.extent):
            return self.constants.size(dim, LEVEL["+"])
        if span.limit == const(self.stage.extents[str(span.index)]):
            return self.constants.extent(self.stage, str(span.index))
        return self.scalar(span.limit, LEVEL["+"])

    def _divides(self, span: Span) -> bool:
        """True if all tiles of an axis are certainly inside the dimension and none is cut."""
        if span.index is None or self.stage.extents[span.index] % span.size:
            return False
        first, last = self.bound.bounds(self.stage.name).of(span.start)
        return first >= 0 and last + span.size <= span.extent

    def _gathered(self, gather: Lookup, steps: str, size: str) -> tuple[str, str]:
        """Return the positions that a table of `size` entries names, and the mask of those that exist."""
        table = self.constants.strides(self.bound.tensors[gather.table])
        name = self.writer.name(gather.table)
        inner = next(n for c, n in zip(gather.coords, table, strict=True) if isinstance(c, Whole))
        offset = self.scalar.lookup(gather).removeprefix("tl.load(").removesuffix(")")
        mask = f"{steps} < {size}"
        places = steps if inner == "1" else scaled(f"({steps})", inner)
        self.writer.load(name, f"{offset} + {places}", mask)
        return name, mask


def both(conditions: Sequence[str]) -> str | None:
    """Return the conjunction of conditions, or None if there are none."""
    if len(conditions) < 2:
        return next(iter(conditions), None)
    return " & ".join(f"({one})" for one in conditions)


def _view(position: int, rank: int) -> str:
    """Return `[:, None]` and the like: a vector as axis `position` of a block of `rank` axes."""
    if rank == 1:
        return ""
    return "[" + ", ".join(":" if p == position else "None" for p in range(rank)) + "]"
