"""Regions of copy engines: neighbouring tiles of a stage that a copy engine executes become one tile.

A copy engine takes microseconds for any copy and for any flag, so it should move megabytes at a time, whatever tiles a
program has. Tiles are merged along an index of the domain or of a loop as far as they share their channels:

before: gather(p: ranks, h: H by 1, n: NB by 1), channels of 4 heads and 8 blocks
            tile_push_data(ks[h, rank * NB + n, :, :] @ p, k[h, n, :, :]); notify(ks[h, rank * NB + n, :, :] @ p)
after:  gather(p: ranks, h: H, n: NB), tiles of 4 heads and 8 blocks, with the same statements

Each merged tile
- signals and awaits one channel in each of its statements, so that no wait comes before a copy that did not need it.
  Boxes of tiles have the order of their last tiles, so that no channel is complete later than without merging;
- is one call of the driver for each copy: equally many runs of bytes on both sides, with one distance on either side.

An index declared `by 1` gets tiles if it is used as a place only, and if no tile may see what another one copies. The
result is an ordinary stage with larger tiles: the plan counts what its channels await.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd, prod

from tilelink.errors import Mistakes
from tilelink.ir.mapping import Span, TileMap
from tilelink.ir.program import For, If, IndexDecl, Notify, Region, Stage, Statement, Wait
from tilelink.ir.scalar import Binary, Index, Scalar, add, binary, const, indices_in, walk
from tilelink.ir.typing import infer
from tilelink.ir.visitor import copied, map_loops, map_regions, statements
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.orders import concrete_order, decode, nest
from tilelink.lowering.transform import all_indices
from tilelink.scheduling.schedule import CopyEngine, Fused, IndexOrder, Order


def merge_copies(bound: Bound) -> Bound:
    """Return the bound program whose copy engines copy regions as large as their channels."""
    for name, stage in bound.stages.items():
        if isinstance(stage.resource, CopyEngine):
            bound = _merged(bound, name)
    return bound


def small_channels(bound: Bound, name: str) -> list[tuple[str, int]]:
    """Return the (tensor, dimension)s along which a stage would copy larger regions if channels were larger."""
    shapes = {key: bound.tensors[grid.tensor].shape for key, grid in bound.channels.items()}
    whole = {key: replace(g, sizes=shapes[key], counts=(1,) * len(g.counts)) for key, g in bound.channels.items()}
    merged, tiles = _merged(replace(bound, channels=whole), name), bound.stages[name].tiles
    larger = [index for index, size in merged.stages[name].tiles.items() if size > tiles[index]]
    regions = [region for region, _ in _signals(merged.stages[name].stage)]
    maps = [(region.tensor, merged.tile_map(name, region)) for region in regions]
    return sorted({(tensor, dim) for tensor, one in maps for index in larger for dim in _dims(one, index)})


def _merged(bound: Bound, name: str) -> Bound:
    """Return the bound program with the tiles of a stage merged along each index that allows it."""
    merged = bound
    hosts = {s.resource.stage for s in bound.stages.values() if isinstance(s.resource, Fused)}
    if not bound.stages[name].total or name in hosts:  # others have its tiles
        return bound
    for index in _places(bound.stages[name].stage):
        merged = next(_along(merged, name, index), merged)
    return bound if merged is bound else _in_order(merged, name)


def _places(stage: Stage) -> list[str]:
    """Return the indices of a stage by the dimension of what is copied to along which they run, the last one first.

    Return none if a statement is one that copy engines do not have.
    """
    inner: dict[str, int] = {}
    for statement in statements(stage.body):
        both = copied(statement)
        if both is None and not isinstance(statement, Notify | Wait | If | For):
            return []
        for dim, coord in enumerate(both[0].coords if both is not None else ()):
            inner.update((name, max(dim, inner.get(name, 0))) for name in indices_in(coord))
    counted = {decl.name for decl in all_indices(stage) if decl.counted}
    return sorted(inner.keys() - counted, key=lambda name: (inner[name], name), reverse=True)


def _along(bound: Bound, name: str, index: str) -> Iterator[Bound]:
    """Yield the bound programs with merged tiles of a stage along an index, the largest tiles first."""
    stage = bound.stages[name]
    tile, extent = stage.tiles[index], stage.extents[index]
    free = _with_tiles(bound, name, index)
    if tile >= extent or free is None:
        return
    shared = [
        grid.sizes[dim]
        for region, kind in _signals(free.stages[name].stage)
        for grid in (bound.channels[region.tensor, kind],)
        for dim in _dims(free.tile_map(name, region), index)
        if grid.counts[dim] > 1
    ]
    common = gcd(*shared)
    for size in (extent, *(n for n in range(min(common, extent - 1), tile, -1) if common % n == n % tile == 0)):
        sized = _with_size(free, name, index, size)
        if _allows(sized.stages[name], bound, index) and _fits(sized, name, index):
            yield sized


def _with_tiles(bound: Bound, name: str, index: str) -> Bound | None:
    """Return the bound program in which an index of a stage has tiles, or None if it is a number for other reasons than
    that it is declared one."""
    stage = bound.stages[name]
    if index not in stage.scalar_indices:
        return bound
    if not _independent(stage.stage.body):
        return None

    def tiled(decl: IndexDecl) -> IndexDecl:
        return replace(decl, number=False) if decl.name == index else decl

    def placed(region: Region) -> Region:
        return replace(region, coords=tuple(_as_place(c, index) if isinstance(c, Scalar) else c for c in region.coords))

    body = map_regions(map_loops(stage.stage.body, tiled), placed)
    new = replace(stage.stage, indices=tuple(map(tiled, stage.stage.indices)), body=body)
    program = replace(bound.program, stages=tuple(new if one.name == name else one for one in bound.program.stages))
    typing = infer(program, mistakes := Mistakes(), lowered=True)
    scalars = stage.scalar_indices - {index}
    if mistakes.errors or typing.scalar_indices(name) != scalars:
        return None
    stages = {**bound.stages, name: replace(stage, stage=new, scalar_indices=scalars)}
    return replace(bound, program=program, stages=stages)


def _independent(body: tuple[Statement, ...]) -> bool:
    """True if a stage cannot observe the order in which it copies: no copy reads or writes what another one writes.

    A program may rely on the order of the tiles of an index that is declared `by 1`.
    """
    read = {both[1].tensor for s in statements(body) if (both := copied(s)) is not None}
    written = _writes(body)
    return not read & written.keys() and all(number == 1 for number in written.values())


def _writes(body: tuple[Statement, ...]) -> Counter[str]:
    """Return how many statements of a body, of those that one tile executes, write each tensor."""
    found = Counter[str]()
    for statement in body:
        match statement:
            case If(then=then, orelse=orelse):
                found += _writes(then) | _writes(orelse)
            case For(body=inner):
                found += _writes(inner)
            case _:
                found.update(both[0].tensor for both in (copied(statement),) if both is not None)
    return found


def _as_place(coord: Scalar, index: str) -> Scalar:
    """Return a coordinate as an offset to which an index is added, if it is one; else as it is."""
    offset = _offset(coord, index)
    if offset is None:
        return coord
    return Index(name=index) if offset == const(0) else Binary(op="+", left=offset, right=Index(name=index))


def _offset(expr: Scalar, index: str) -> Scalar | None:
    """Return the difference of an expression and an index if the index is added in it once, else None."""
    match expr:
        case Index(name=name) if name == index:
            return const(0)
        case Binary(op="+" | "-" as op, left=left, right=right) if not _mentions(right, index):
            offset = _offset(left, index)
            return None if offset is None else binary(op, offset, right)
        case Binary(op="+", left=left, right=right) if not _mentions(left, index):
            offset = _offset(right, index)
            return None if offset is None else add(left, offset)
        case _:
            return None


def _mentions(expr: Scalar, index: str) -> bool:
    return Index(name=index) in walk(expr)


def _with_size(bound: Bound, name: str, index: str, size: int) -> Bound:
    stage = bound.stages[name]
    return replace(bound, stages={**bound.stages, name: replace(stage, tiles={**stage.tiles, index: size})})


def _allows(stage: BoundStage, bound: Bound, index: str) -> bool:
    """True if boxes of tiles along an index have the order of their last tiles."""
    domain = {decl.name: stage.count(decl.name) for decl in stage.stage.indices}
    if index not in domain:  # a loop counts upwards
        return True
    terms = nest(stage.nest, domain, bound.schedule.stage(stage.name))
    if stage.nest and stage.nest.group and index in [term.index for term in terms[-2:]]:
        return False
    return domain[index] == 1 or all(term.kind == "natural" for term in terms if term.index == index)


def _fits(bound: Bound, name: str, index: str) -> bool:
    """True if the tiles of a stage have one channel along an index, and one call of the driver for each copy."""
    stage = bound.stages[name].stage
    for region, kind in _signals(stage):
        tile_map = bound.tile_map(name, region)
        ranges = tile_map.channel_range(bound.channels[region.tensor, kind])
        if any(ranges[dim].count != 1 for dim in _dims(tile_map, index)):
            return False
    return all(_one_call(bound, name, index, both) for s in statements(stage.body) if (both := copied(s)) is not None)


def _signals(stage: Stage) -> Iterator[tuple[Region, str]]:
    """Yield the regions that a stage signals or awaits, with the kind of signal."""
    for statement in statements(stage.body):
        if isinstance(statement, Notify | Wait):
            yield statement.region, statement.kind


def _dims(tile_map: TileMap, index: str) -> list[int]:
    """Return the dimensions of an access along which an index runs."""
    return [dim for dim, span in enumerate(tile_map.spans) if span.index == index]


def _one_call(bound: Bound, name: str, index: str, regions: tuple[Region, Region]) -> bool:
    """True if a tile's copy between two regions along an index is one contiguous or two-dimensional copy."""
    stage, sides = bound.stages[name], list[list[tuple[int, int]]]()
    for region in regions:
        tensor, tile_map = bound.tensors[region.tensor], bound.memory_map(name, region)
        dims = _dims(tile_map, index)
        if len(dims) != 1 or tile_map.spans[dims[0]].kind != "tile" or (tensor.steps and tensor.steps[0] == dims[0]):
            return False
        sides.append(_runs(tensor.memory, [_size(span, stage.extents) for span in tile_map.spans]))
    width = min(runs[0][0] for runs in sides)
    return all(len(_divided(runs, width)) <= 2 for runs in sides)


def _size(span: Span, extents: Mapping[str, int]) -> int:
    """Return the elements of a span in a tile that no edge cuts."""
    return span.size if span.index is None else min(span.size, extents[span.index])


def _runs(shape: tuple[int, ...], sizes: list[int]) -> list[tuple[int, int]]:
    """Return a box in memory as (number, distance) of runs inside runs, the innermost first: one of elements."""
    runs = [(1, 1)]
    for dim in reversed(range(len(shape))):
        number, distance = runs[-1]
        stride = prod(shape[dim + 1 :])
        if number * distance == stride:
            runs[-1] = number * sizes[dim], distance
        elif sizes[dim] > 1:
            runs.append((sizes[dim], stride))
    return runs


def _divided(runs: list[tuple[int, int]], width: int) -> list[tuple[int, int]]:
    """Return runs whose innermost ones are divided into runs of `width` elements."""
    number, *outer = runs
    return [(width, 1), *([] if number[0] == width else [(number[0] // width, width)]), *outer]


def _in_order(bound: Bound, name: str) -> Bound:
    """Return the bound program with the order of a stage for the tiles that it has now."""
    stage, part = bound.stages[name], bound.schedule.stage(name)
    counts = {decl.name: stage.count(decl.name) for decl in stage.stage.indices}
    order = stage.nest
    if order is not None:  # a single tile has no sequence
        terms = (IndexOrder(index=term.index) if counts[term.index] == 1 else term for term in order.nest)
        order = Order(nest=tuple(terms), group=order.group)
    places = decode(concrete_order(order, part, bound.numbers, bound.ranks), counts, part)
    return replace(bound, stages={**bound.stages, name: replace(stage, order=places, nest=order)})
