"""The pass that lets kernels walk the tiles that a launch has, so that their waves are full.

A tile of a counted range that is not there would take an iteration of its program, which does nothing in it. With
compact numbers the tiles that are there are assigned to the programs one by one. Which program executes a tile is then
known only in a launch. The rule `tiles` (verifier/tiles.py) says what is proved of such a kernel, and under which
conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from tilelink.ir.intervals import Bounds
from tilelink.ir.program import Notify, Region, Wait
from tilelink.ir.scalar import Index, Lookup, Scalar, add, binary, const, mul, substitute, walk
from tilelink.ir.simplify import simplify
from tilelink.ir.visitor import reads, scalars_of, statements, value_of
from tilelink.lowering.bound import Bound, BoundStage, Kernel, Transport
from tilelink.lowering.compact import SEGMENT, THERE, WITHIN, Compact
from tilelink.lowering.orders import TILE, nest
from tilelink.lowering.transform import stage_writes

MAX_SEGMENTS = 1024
"""Segments of an order, at most: a program keeps two numbers for each of them in registers."""
MAX_TRIED = 2**25
"""Tiles that the rule `tiles` tries, at most: those of a segment, for each number of them that may be there."""


def compact_tiles(bound: Bound) -> Bound:
    """before: kernels that walk all tiles of a domain. after: kernels that walk those of a launch, where they can."""
    kernels = tuple(_compact(bound, kernel) for kernel in bound.kernels)
    return bound if kernels == bound.kernels else replace(bound, kernels=kernels)


def _compact(bound: Bound, kernel: Kernel) -> Kernel:
    if obstacle(bound, kernel) is not None:
        return kernel
    (loop,) = kernel.loops
    compact = _numbers(bound, bound.stages[loop.stages[0]])
    return kernel if compact is None else replace(kernel, loops=(replace(loop, compact=compact),))


def obstacle(bound: Bound, kernel: Kernel) -> str | None:
    """Return what keeps the tiles of a kernel from being executed by any of its programs, or None."""
    if len(kernel.stage_names) != 1:
        return "it has several stages"
    if kernel.dynamic:
        return "its programs take tiles by a counter"
    stage = bound.stages[kernel.stage_names[0]]
    if stage.transport is not Transport.STORES or stage.flatten or stage.notified_in is not None:
        return "its programs do not execute a tile after the other"
    if (clause := stage.tied) is not None:
        return f"`{clause}` ties the tiles of a program to one another"
    if not stage.total or kernel.loops[0].width is not None:
        return "not all of its programs have tiles"
    if bound.coresident_throughout > bound.resident_programs:
        return "the programs of a rank do not all fit"
    for statement in statements(stage.stage.body):
        if isinstance(statement, Notify):
            return "a tile notifies, also if it is not there"
        if isinstance(statement, Wait) and not bound.is_placed(stage.name, statement):
            if not any(statement is one for one in stage.stage.body):
                return "a tile waits in a loop or a branch, also if it is not there"
            if why := _waited_for(bound, kernel):
                return why
    written = {region.tensor for region in stage_writes(stage.stage)}
    if any(name in written for name in _read(stage)):
        return "a tile may read what another one writes"
    return None


def _waited_for(bound: Bound, kernel: Kernel) -> str | None:
    """Return what else may need the waits of a kernel's tiles, which leaves out those of tiles that are not there."""
    if any(one.stream == kernel.stream and one.position > kernel.position for one in bound.kernels):
        return "a later kernel on its stream may need the waits of tiles that are not there"
    if not bound.schedule.reuse_wait:
        return "waits of tiles that are not there may keep launches apart (reuse_wait off)"
    return None


def _read(stage: BoundStage) -> Iterator[str]:
    """Yield the tensors that a stage reads."""
    for statement in statements(stage.stage.body):
        value = value_of(statement)
        regions: list[Region] = reads(value) if value is not None else []
        yield from (region.tensor for region in regions)
        yield from (e.table for expr in scalars_of(statement) for e in walk(expr) if isinstance(e, Lookup))


def _numbers(bound: Bound, stage: BoundStage) -> Compact | None:
    """Return compact numbers for the tiles of a stage, or None if its order has no segments.

    It has if the ends of one counted index are known when the kernel begins and depend on the indices outside of it.
    """
    counted = [decl.name for decl in stage.stage.indices if decl.counted]
    if len(counted) != 1 or stage.tasks is not None:
        return None
    (index,) = counted
    counts = {decl.name: stage.count(decl.name) for decl in stage.stage.indices}
    order = stage.nest
    terms = nest(order, counts, bound.schedule.stage(stage.name))
    names = [term.index for term in terms]
    if terms[names.index(index)].kind != "natural":
        return None
    group = order.group if order is not None else None
    outside, size, tile = _segments(names, index, counts, group)
    segments = prod(counts[name] for name in outside)
    if segments > MAX_SEGMENTS or counts[index] * size > MAX_TRIED:
        return None
    if not known_at_start(bound, stage, index, outside):
        return None
    first = mul(SEGMENT, const(size)) if segments > 1 else const(0)
    there = tiles_there(stage, index, {TILE.name: first})
    across = size // counts[index]
    raw = Compact(index=index, segments=segments, size=size, across=across, there=there, tile=add(first, tile))
    bounds = with_numbers(bound.bounds(stage.name), raw)
    return replace(raw, there=simplify(there, bounds), tile=simplify(raw.tile, bounds))


def _segments(
    names: list[str], index: str, counts: Mapping[str, int], group: tuple[str, int] | None
) -> tuple[list[str], int, Scalar]:
    """Return the indices outside of a counted one, the tiles of a segment, and the number in it of tile WITHIN."""
    if group is None or index not in names[-2:]:
        position = names.index(index)
        return names[:position], prod(counts[name] for name in names[position:]), WITHIN
    outside, (grouped, height) = names[:-2], group
    other = names[-1] if names[-2] == index else names[-2]
    size = counts[index] * counts[other]
    if index != grouped:  # a band has a row of all its heights for each tile of the index: the first ones are there
        band = binary("//", WITHIN, mul(const(height), THERE))
        rest = binary("%", WITHIN, mul(const(height), THERE))
        return outside, size, add(mul(band, const(height * counts[index])), rest)
    # The last band that is there is lower than it could be.
    columns = counts[other]
    band, rest = binary("//", WITHIN, const(height * columns)), binary("%", WITHIN, const(height * columns))
    first = mul(band, const(height))
    there = binary("min", binary("-", THERE, first), const(height))
    full = binary("min", binary("-", const(counts[index]), first), const(height))
    row = add(mul(binary("//", rest, there), full), binary("%", rest, there))
    return outside, size, add(mul(band, const(height * columns)), row)


def known_at_start(bound: Bound, stage: BoundStage, index: str, outside: list[str]) -> bool:
    """True if the ends of a counted index are known when a kernel begins, and depend on these other indices alone."""
    part = stage.parts[index]
    for expr in (e for end in (part.start, part.stop) if end is not None for e in walk(end)):
        if isinstance(expr, Index) and expr.name not in outside:
            return False
        if isinstance(expr, Lookup):
            table = bound.tensors[expr.table]
            if not table.constant or not all(map(table.on, range(bound.ranks))):  # each rank would read it
                return False
    return True


def tiles_there(stage: BoundStage, index: str, at: Mapping[str, Scalar]) -> Scalar:
    """Return how many tiles of a counted index are there. at: the number of some tile, by the name `tile`."""
    part, size = stage.parts[index], stage.tiles[index]
    order = {name: substitute(expr, at) for name, expr in stage.order.items()}
    stop: Scalar = const(stage.extents[index])
    stop = stop if part.stop is None else binary("min", substitute(part.stop, order), stop)
    length = stop if part.start is None else binary("-", stop, binary("max", substitute(part.start, order), const(0)))
    return binary("//", add(binary("max", length, const(0)), const(size - 1)), const(size))


def with_numbers(bounds: Bounds, compact: Compact) -> Bounds:
    """Return bounds of a stage with those of the names in compact numbers."""
    own = {SEGMENT.name: (0, compact.segments - 1), WITHIN.name: (0, compact.size - 1), THERE.name: (1, compact.most)}
    return Bounds(ranks=bounds.ranks, indices={**bounds.indices, **own}, tables=bounds.tables)
