"""Waits of a loop with roles: an iteration leaves out a wait for the channel that the one before has waited for.

before: for t in iterations:  wait(ks[s, t, :]); ...       # a channel of ks holds what four iterations load
after:  for t in iterations:  if channel of t is not that of the iteration before: wait(ks[s, t, :]); ...

A counter only grows in a launch, so what a tile has awaited once would pass at once. The plan has all waits. A wait
that is left out is for the same counter, and the same number of arrivals, as the last one of this tile.
"""

from __future__ import annotations

from tilelink.ir.program import Wait
from tilelink.ir.scalar import Index, Scalar, walk
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.carried import Carried


def repeated(bound: Bound, stage: BoundStage, tile: Carried) -> tuple[Wait, ...]:
    """Return the waits of a loop with which several iterations may wait for the same channel."""
    single = (wait for wait in tile.awaited if _has_one_channel(bound, stage, wait))
    return tuple(wait for wait in single if _recurs(bound, stage, tile, wait))


def _has_one_channel(bound: Bound, stage: BoundStage, wait: Wait) -> bool:
    """True if a wait is for one channel, whose number the indices of the tile give."""
    tile_map = bound.tile_map(stage.name, wait.region)
    if any(span.gather is not None and span.gather.launch for span in tile_map.spans):
        return False
    return all(one.count == 1 for one in tile_map.channel_range(bound.channels[wait.region.tensor, wait.kind]))


def _recurs(bound: Bound, stage: BoundStage, tile: Carried, wait: Wait) -> bool:
    """True if the channel of a wait need not change from one iteration to the next.

    With `ks[t // N, t % N, :]` it does not while several values of `t % N` are in a channel, and with `ks[r, j, :]` not
    while the last index that has several tiles goes on, if it is neither.
    """
    sizes = bound.channels[wait.region.tensor, wait.kind].sizes
    varying = [decl.name for decl in tile.loop.indices if stage.count(decl.name) > 1]
    for name in varying:
        index, coords = Index(name=name), enumerate(wait.region.coords)
        dims = [dim for dim, coord in coords if isinstance(coord, Scalar) and index in walk(coord)]
        if any(sizes[dim] > stage.tiles[name] for dim in dims) or (not dims and name == varying[-1]):
            return True
    return False
