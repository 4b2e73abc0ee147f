"""The iterations that a tile has of a loop that carries a state (lowering/carried.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilelink.ir.intervals import Bounds
from tilelink.ir.scalar import Index, Scalar, add, binary, const, indices_in
from tilelink.ir.simplify import simplify
from tilelink.lowering.bound import BoundStage
from tilelink.lowering.carried import Carried, conditions

FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def loop_of(stage: BoundStage) -> Carried:
    """Return the parts of a tile of a stage whose warps have roles in such a loop."""
    assert isinstance(stage.carried, Carried), stage.carried
    return stage.carried


@dataclass(frozen=True, kw_only=True)
class Range:
    """The part of a loop's index that has iterations, from `start` up to `stop` (exclusive): `inner` for each.

    nonempty: True if it is proved that there is at least one.
    """

    index: str
    start: Scalar
    stop: Scalar
    inner: int
    nonempty: bool


def range_of(stage: BoundStage, bounds: Bounds) -> Range | str | None:
    """Return the iterations that a tile has, None if it has all, or why they are no range.

    bounds: of the stage.
    """
    tile = loop_of(stage)
    counted = [decl for decl in tile.loop.indices if decl.counted]
    if tile.guard is None and not counted:
        return None
    long = [decl.name for decl in tile.loop.indices if stage.count(decl.name) > 1 or decl.counted]
    index = long[0] if long else tile.loop.indices[0].name
    starts: list[Scalar] = [const(0)]
    stops: list[Scalar] = [const(stage.count(index))]
    for decl in counted:
        if tile.guard is not None:
            return "its loop leaves out iterations both by a condition and by a part that a launch decides"
        if decl.name != index or decl.name not in stage.scalar_indices:
            return (
                f"a launch decides which elements of {decl.name} its loop has, which is not its first index, one by one"
            )
        starts += [decl.start] if decl.start is not None else []
        stops += [decl.stop] if decl.stop is not None else []
    for one in conditions(tile.guard) if tile.guard is not None else ():
        op, left, right = one.op, one.left, one.right
        if right == Index(name=index):
            op, left, right = FLIPPED[op], right, left
        if left != Index(name=index) or indices_in(right) & {decl.name for decl in tile.loop.indices}:
            return f"a condition of its loop does not compare {index} alone, the first index, with numbers of the tile"
        if op in (">", ">="):
            starts.append(add(right, const(1)) if op == ">" else right)
        else:
            stops.append(add(right, const(1)) if op == "<=" else right)
    least = (bounds.of(simplify(binary("-", stop, start), bounds))[0] for start in starts for stop in stops)
    nonempty = all(one > 0 for one in least)
    start, stop = starts[0], stops[0]
    for other in starts[1:]:
        start = binary("max", start, other)
    for other in stops[1:]:
        stop = binary("min", stop, other)
    inner = math.prod(stage.count(name) for name in long[1:])
    start, stop = simplify(start, bounds), simplify(stop, bounds)
    return Range(index=index, start=start, stop=stop, inner=inner, nonempty=nonempty)
