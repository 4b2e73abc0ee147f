"""The tile-centric mapping: tile -> slice of a tensor (f_S), -> rank (f_R), -> channels (f_C).

One `TileMap` per access gives all three as scalar expressions. The plan evaluates them and the emitter prints them, so
the data slice and the signal index of a tile cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from tilelink.ir.intervals import Bounds
from tilelink.ir.program import Region
from tilelink.ir.scalar import (
    RANK,
    Binary,
    Block,
    Index,
    Int,
    Lookup,
    Scalar,
    Whole,
    add,
    at_launch,
    binary,
    const,
    is_gather,
    mul,
)
from tilelink.ir.simplify import simplify


@dataclass(frozen=True, kw_only=True)
class Span:
    """One dimension of a slice: elements [start, min(start + size, limit)).

    limit: one past the last element that the index reaches, clipped to the extent.
    kind: "tile" follows a tile index, "whole" is `:`, "block" is a slice of fixed length, "point" is one element whose
    axis is dropped, "gather" takes the
    elements listed in a row of a table or, with an index, those that an index tensor has along a tile of the index. The
    start and size of a gather cover all elements that it may name.
    """

    kind: str
    start: Scalar
    size: int
    extent: int
    index: str | None = None
    gather: Lookup | None = None
    limit: Scalar | None = None
    end: Scalar | None = None
    """One past the last element that the index reaches, possibly beyond the dimension; None if it surely is not."""
    counted: bool = False
    """True if a launch decides where it ends, or where it begins."""
    named: Scalar | None = None
    """The one element of a point as the program names it: what a launch decides is known of the index or the entry in
    it. `start` is simpler, 0 for one that can only be 0."""

    @property
    def at_launch(self) -> bool:
        """True if a launch decides which elements it has."""
        return self.counted or at_launch(self.start) or (self.gather is not None and self.gather.launch)

    @property
    def every(self) -> Scalar:
        """One past the last element that there is in any launch."""
        if not self.counted:
            return self.stop
        return binary("min", add(self.start, const(self.size)), const(self.extent))

    @property
    def stop(self) -> Scalar:
        """One past the last element, clipped to the limit."""
        if self.kind == "point":
            return add(self.start, const(1))
        if self.kind == "gather" and self.index is not None:
            return const(self.size)
        if self.kind not in ("tile", "block"):
            return const(self.extent)
        end = add(self.start, const(self.size))
        return binary("min", end, const(self.extent) if self.limit is None else self.limit)

    @property
    def reach(self) -> Scalar:
        """One past the last element that the program names, possibly beyond the dimension."""
        if self.end is None:
            return self.stop
        return binary("min", add(self.start, const(self.size)), self.end)

    @property
    def inside(self) -> bool:
        """True if the span lies in its dimension for all values of its indices."""
        if self.kind == "gather":
            return self.size <= self.extent
        return self.kind == "whole" or (self.kind == "tile" and self.end is None)


@dataclass(frozen=True, kw_only=True)
class ChannelGrid:
    """The channels of one (tensor, signal kind): a counter for each box of `sizes` elements per dimension.

    base: the offset of the first counter in the signal pad; the counters of buffer b begin at base + b * count.
    """

    tensor: str
    kind: str
    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    base: int = 0
    buffers: int = 1

    @property
    def count(self) -> int:
        return prod(self.counts)


@dataclass(frozen=True, kw_only=True)
class ChannelRange:
    """The channels of an access along one dimension: `low` is the first, `high` one past the last.

    count: `high - low` if it is the same for every tile, else None.
    """

    low: Scalar
    high: Scalar
    count: int | None


@dataclass(frozen=True, kw_only=True)
class TileMap:
    """f_S, f_R and f_C of one access, as simplified expressions."""

    tensor: str
    spans: tuple[Span, ...]
    bounds: Bounds
    rank: Scalar = RANK
    remote: bool = False
    _channels: dict[ChannelGrid, tuple[ChannelRange, ...]] = field(
        default_factory=dict[ChannelGrid, tuple[ChannelRange, ...]], init=False, compare=False, repr=False
    )

    def channel_range(self, grid: ChannelGrid) -> tuple[ChannelRange, ...]:
        """Return the channels that the access touches, one range per dimension."""
        if grid not in self._channels:
            ranges = (_range(s, g, n) for s, g, n in zip(self.spans, grid.sizes, grid.counts, strict=True))
            self._channels[grid] = tuple(self._simplified(low, high) for low, high in ranges)
        return self._channels[grid]

    def placed(self, grid: ChannelGrid) -> bool:
        """True if a launch decides which channels the access touches."""
        ranges = self.channel_range(grid)
        listed_spans = any(span.gather is not None and span.gather.launch for span in self.spans)
        return listed_spans or any(at_launch(one.low) or at_launch(one.high) for one in ranges) or at_launch(self.rank)

    def _simplified(self, low: Scalar, high: Scalar) -> ChannelRange:
        low, high = simplify(low, self.bounds), simplify(high, self.bounds)
        count = simplify(binary("-", high, low), self.bounds)
        return ChannelRange(low=low, high=high, count=count.value if isinstance(count, Int) else None)


def _range(span: Span, size: int, count: int) -> tuple[Scalar, Scalar]:
    if count == 1 or not span.size:  # there is one, or nothing of the tensor
        return const(0), const(count and 1)
    low = binary("//", span.start, const(size))
    if span.kind == "point" or (size % span.size == 0 and _multiple(span.start, span.size)):
        return low, add(low, const(1))
    last = binary("//", binary("-", span.every, const(1)), const(size))
    return low, add(last, const(1))


def _multiple(expr: Scalar, size: int) -> bool:
    """True if the expression is a multiple of size for all values of its indices."""
    match expr:
        case Int(value=value):
            return value % size == 0
        case Binary(op="+" | "-", left=a, right=b):
            return _multiple(a, size) and _multiple(b, size)
        case Binary(op="*", left=a, right=b):
            return _multiple(a, size) or _multiple(b, size)
        case _:
            return size == 1


@dataclass(frozen=True, kw_only=True)
class Listed:
    """The entries of an index tensor along a tile: those at `offset + index` in dimension `dim` of the tensor."""

    dim: int
    offset: Scalar
    index: str


def listed(coord: object, scalar_indices: frozenset[str]) -> Listed | None:
    """Return the tile of entries that a coordinate such as `rows[i]` stands for; None if it is something else."""
    if not isinstance(coord, Lookup) or not coord.launch:
        return None
    for dim, inner in enumerate(coord.coords):
        tile = tile_index(inner, scalar_indices)
        if tile is not None:
            return Listed(dim=dim, offset=tile[0], index=tile[1])
    return None


def selects_many(coord: Scalar | Whole, scalar_indices: frozenset[str]) -> bool:
    """True if a coordinate names elements that index tensors or tables list."""
    return is_gather(coord) or listed(coord, scalar_indices) is not None


@dataclass(frozen=True, kw_only=True)
class CountedRange:
    """The elements of a dimension that a counted index runs over: from `start`, up to `stop` (exclusive)."""

    start: Scalar | None
    stop: Scalar | None


def map_region(
    region: Region,
    shape: tuple[int, ...],
    tiles: Mapping[str, int],
    extents: Mapping[str, int],
    scalar_indices: frozenset[str],
    *,
    bounds: Bounds,
    ends_with_tensor: frozenset[str] = frozenset(),
    counted: Mapping[str, CountedRange] | None = None,
    number: Callable[[Scalar], int] | None = None,
) -> TileMap:
    """Return the mapping of an access.

    shape: of the tensor, in elements.
    tiles, extents: the tile size and the extent of every index in scope, in elements.
    bounds: ranges of the indices, ranks and table entries in the coordinates.
    ends_with_tensor: indices whose last tile ends at the end of the tensor.
    counted: the parts of their dimensions that counted indices run over.
    number: the value of an extent as it is declared; needed for slices of fixed length.
    """
    known = (tiles, extents, scalar_indices, ends_with_tensor, counted or {}, bounds)
    pairs = zip(region.coords, shape, strict=True)
    spans = tuple(_simplified(_block(c, n, number) or _span(c, n, *known), bounds) for c, n in pairs)
    remote = region.rank is not None and region.rank != RANK
    rank = simplify(region.rank, bounds) if region.rank is not None else RANK
    return TileMap(tensor=region.tensor, spans=spans, bounds=bounds, rank=rank, remote=remote)


def _simplified(span: Span, bounds: Bounds) -> Span:
    limit = span.limit and simplify(span.limit, bounds)
    end = span.end and simplify(span.end, bounds)
    return replace(span, start=simplify(span.start, bounds), limit=limit, end=end)


def _block(coord: Scalar | Whole, extent: int, number: Callable[[Scalar], int] | None) -> Span | None:
    if not isinstance(coord, Block):
        return None
    assert number is not None
    size = number(coord.size)
    return Span(kind="block", start=coord.start, size=size, extent=extent, end=add(coord.start, const(size)))


def _span(
    coord: Scalar | Whole,
    extent: int,
    tiles: Mapping[str, int],
    extents: Mapping[str, int],
    scalars: frozenset[str],
    ends_with_tensor: frozenset[str],
    counted: Mapping[str, CountedRange],
    bounds: Bounds,
) -> Span:
    if isinstance(coord, Whole):
        return Span(kind="whole", start=const(0), size=extent, extent=extent)
    if is_gather(coord):
        return Span(kind="gather", start=const(0), size=extent, extent=extent, gather=coord)
    if (entries := listed(coord, scalars)) is not None and isinstance(coord, Lookup):
        named = bounds.of(coord)[1] + 1
        return Span(kind="gather", start=const(0), size=named, extent=extent, gather=coord, index=entries.index)
    tile = tile_index(coord, scalars)
    if tile is None:
        return Span(kind="point", start=coord, size=1, extent=extent, named=coord)
    offset, name = tile
    start = add(offset, mul(Index(name=name), const(tiles[name])))
    if name in counted:
        return _counted_span(counted[name], start, offset, tiles[name], extents[name], extent, name)
    end = add(offset, const(extents[name]))
    limit = binary("min", end, const(extent))
    exists = name in ends_with_tensor or (isinstance(end, Int) and isinstance(offset, Int) and limit == end)
    exists = exists and not (isinstance(offset, Int) and offset.value < 0)
    return Span(
        kind="tile", start=start, size=tiles[name], extent=extent, index=name, limit=limit, end=None if exists else end
    )


def _counted_span(
    part: CountedRange, start: Scalar, offset: Scalar, size: int, index_extent: int, extent: int, name: str
) -> Span:
    """Return the span of a tile of a counted index: cut from the start of the part, and ended by its stop."""
    if part.start is not None:
        start = add(binary("max", part.start, const(0)), start)
    stop = const(index_extent) if part.stop is None else binary("min", part.stop, const(index_extent))
    limit = add(offset, stop)
    inside = isinstance(offset, Int) and 0 <= offset.value <= extent - index_extent
    return Span(
        kind="tile",
        start=start,
        size=size,
        extent=extent,
        index=name,
        limit=limit if inside else binary("min", limit, const(extent)),
        end=None if inside else limit,
        counted=True,
    )


def tile_index(coord: Scalar | Whole, scalar_indices: frozenset[str]) -> tuple[Scalar, str] | None:
    """Return (offset, index name) if the coordinate is a tile index, or one to which a number is added or from which
    one is subtracted, else None."""
    match coord:
        case Index(name=name) if name not in scalar_indices:
            return const(0), name
        case Binary(op="+", left=offset, right=Index(name=name)) if name not in scalar_indices:
            return offset, name
        case Binary(op="+", left=Index(name=name), right=offset) if name not in scalar_indices:
            return offset, name
        case Binary(op="-", left=Index(name=name), right=offset) if name not in scalar_indices:
            return binary("-", const(0), offset), name
        case _:
            return None
