"""What accesses of a tensor that travels by words of data and flag need of the words and of their channels."""

from __future__ import annotations

from math import gcd

import numpy as np

from tilelink.facts.regions import Chosen, Ended, Guard
from tilelink.ir.program import Region, Stage
from tilelink.ir.scalar import Lookup, walk
from tilelink.ir.visitor import stage_regions, stage_scalars
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.columns import Ints


def looks_up(stage: Stage, name: str) -> bool:
    """True if a stage uses entries of a tensor as integers."""
    return any(isinstance(e, Lookup) and e.table == name for expr in stage_scalars(stage) for e in walk(expr))


def names_in(stage: Stage) -> set[str]:
    """Return the tensors that a stage accesses or signals, and those, and the names, that it uses as integers."""
    named = (part.table for expr in stage_scalars(stage) for part in walk(expr) if isinstance(part, Lookup))
    return {region.tensor for region in stage_regions(stage)} | {*named}


def lists(bound: Bound, stage: BoundStage, name: str) -> Region | None:
    """Return a region of places that a tile of entries of a tensor lists, or None."""
    for region in stage_regions(stage.stage):
        spans = bound.tile_map(stage.name, region).spans
        if any(span.gather is not None and span.gather.table == name for span in spans):
            return region
    return None


def begins_anywhere(guard: Guard, dim: int) -> bool:
    """True if a launch decides where an access begins along a dimension, or which elements it names there."""
    return any(not isinstance(part, Chosen | Ended) and part.dim == dim for part in guard)


def exact_sizes(lo: Ints, hi: Ints, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the largest channels of which each is inside of all boxes that touch it."""
    sizes: list[int] = []
    for dim, extent in enumerate(shape):
        ends = {*np.unique(lo[:, dim]).tolist(), *np.unique(hi[:, dim]).tolist()} - {extent}
        sizes.append(gcd(*ends) or extent if ends else max(1, extent))
    return tuple(sizes)
