"""Waits that move into the loop of a product, slice by slice.

A schedule may give every slice of a contracted dimension a channel of its own. Where the product stands directly
after the wait for all of them, it need not wait for the last slice before it multiplies the first: the loop waits for
each slice when it comes to it. The wait only moves later, past nothing but other waits and loads of what nobody writes,
and stays before every load of what it guards; so what was proved for the task holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilelink.ir.products import contracted_dimension, operands, products_of
from tilelink.ir.program import Assign, Local, Region, Statement, Store, UserCall, Wait
from tilelink.ir.visitor import reads, value_of, values
from tilelink.schedule.bound import Bound


@dataclass(frozen=True, kw_only=True)
class LateWait:
    """A wait for a region whose dimension `dim` is contracted: `count` slices of `size` elements, a channel each."""

    kind: str
    region: Region
    dim: int
    size: int
    count: int


def late_wait(bound: Bound, stage: str, wait: Wait, following: Iterable[Statement]) -> LateWait | None:
    """The wait as it moves into the loop of the product after it, or None if it stays where it is.

    following: the statements after the wait in its body. The product's loop is in steps of the stage's block, so a
    slice is of whole steps.
    """
    product = next((s for s in following if not isinstance(s, Wait)), None)
    if not isinstance(product, Assign | Store):
        return None
    value = value_of(product)
    dots = products_of(value)
    if value is None or len(dots) != 1:
        return None
    # What else may be written during the launch may be guarded by the same wait.
    guarded = [r for r in reads(value) if r.rank is not None or not bound.tensors[r.tensor].constant]
    dim = contracted_dimension(dots[0], wait.region)
    if guarded != [wait.region] or dim is None:
        return None
    if any(isinstance(v, Local | UserCall) for side in operands(dots[0]) for v in values(side)):
        return None  # a name holds a whole tile, so its product has no loop over the contracted dimension
    tile_map, grid = bound.tile_map(stage, wait.region), bound.channels[wait.region.tensor, wait.kind]
    many = [d for d, channels in enumerate(tile_map.channel_range(grid)) if channels.count != 1]
    span, size, block = tile_map.spans[dim], grid.sizes[dim], bound.contraction_block(stage)
    if many != [dim] or span.kind != "whole" or size % block or span.extent <= block:
        return None
    return LateWait(kind=wait.kind, region=wait.region, dim=dim, size=size, count=grid.counts[dim])
