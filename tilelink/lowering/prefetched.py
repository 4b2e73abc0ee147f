"""Tensors that consumers of a stage with roles load before they need them (lowering/clauses/roles.py).

While the last buffer of a tile is multiplied, they start to load the first piece of a tile that they compute with, and
all pieces of a vector along its columns; further pieces of a tile while they compute the one before.
"""

from __future__ import annotations

from tilelink.ir.program import ITEM_BYTES, Region
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.role_bodies import read_by_consumers
from tilelink.lowering.role_boxes import may_end_with_tensor
from tilelink.lowering.role_statements import results_of

TILES = 2
"""Most tiles of which pieces are prefetched: a piece takes 32 registers of a thread."""
VECTOR_BYTES = 512
"""Most bytes of vectors along the columns that are loaded for all pieces at once: they take 32 registers of a thread,
which has a fourth of the columns."""


def prefetched(bound: Bound, stage: BoundStage) -> frozenset[str]:
    """Return the tensors that consumers prefetch: tiles if they are few, and vectors along the columns."""
    if not stage.rings or stage.has_loop:
        return frozenset()
    typing, room = bound.typing.stage(stage.name), VECTOR_BYTES
    result = results_of(stage)[0]
    column, columns = typing.region_type(result).axes[-1].index, bound.tile_map(stage.name, result).spans[-1].size
    axes = {read.region: typing.region_type(read.region).axes for read in read_by_consumers(bound, stage)}
    tiles = [region for region, own in axes.items() if len(own) > 1]
    found = {one.tensor for one in tiles if len(tiles) <= TILES and may_be_prefetched(bound, stage, one)}
    for region, own in axes.items():
        size = columns * ITEM_BYTES[bound.tensors[region.tensor].dtype]
        if len(own) == 1 and own[0].index == column and size <= room:
            room -= size
            found.add(region.tensor)
    return frozenset(found)


def may_be_prefetched(bound: Bound, stage: BoundStage, region: Region) -> bool:
    """True for a tile that is not in fragment order, and of which no tile has fewer elements than others."""
    spans = [span for span in bound.memory_map(stage.name, region).spans if span.kind != "point"]
    return not bound.tensors[region.tensor].fragments and not any(
        one.counted or stage.extents[str(one.index)] % one.size or may_end_with_tensor(stage, one) for one in spans
    )
