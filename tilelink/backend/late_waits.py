"""Waits that move into the loop of a product, slice by slice.

A schedule may give every slice of a contracted dimension a channel of its own. Where the product stands directly
behind the wait for all of them, it need not wait for the last slice before it multiplies the first: the loop waits for
each slice when it comes to it. The wait only moves later, past nothing but other waits and loads of what nobody writes,
and stays before every load of what it guards; so what was proved for the task holds.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from tilelink.ir.mapping import ChannelGrid, TileMap
from tilelink.ir.program import Assign, Dot, Read, Region, Statement, Store, Transpose, Value, Wait
from tilelink.ir.visitor import reads, value_of, values


@dataclass(frozen=True, kw_only=True)
class LateWait:
    """A wait for a region whose dimension `dim` is contracted, in slices of `size` elements."""

    kind: str
    region: Region
    dim: int
    size: int


def late_wait(
    wait: Wait, behind: tuple[Statement, ...], tile_map: TileMap, grid: ChannelGrid, block: int, constant: Set[str]
) -> LateWait | None:
    """The wait as it moves into the loop of the product behind it, in steps of `block` elements; None if it stays.

    constant: tensors that nobody writes. Whatever else the product reads may be guarded by the same wait.
    """
    product = next((s for s in behind if not isinstance(s, Wait)), None)
    if not isinstance(product, Assign | Store):
        return None
    value = value_of(product)
    dots = [v for v in values(value) if isinstance(v, Dot)] if value is not None else []
    if value is None or len(dots) != 1:
        return None
    guarded = [r for r in reads(value) if r.tensor not in constant or r.rank is not None]
    if guarded != [wait.region]:
        return None
    dim = _contracted(dots[0], wait.region)
    if dim is None:
        return None
    many = [d for d, channels in enumerate(tile_map.channel_range(grid)) if channels.count != 1]
    span, size = tile_map.spans[dim], grid.sizes[dim]
    if many != [dim] or span.kind != "whole" or size % block or span.extent <= block:
        return None
    return LateWait(kind=wait.kind, region=wait.region, dim=dim, size=size)


def _contracted(dot: Dot, region: Region) -> int | None:
    """The dimension of the region that the product sums over, if the region is one of its two operands."""
    for operand, axis in ((dot.left, -1), (dot.right, -2)):
        inner, position = _bare(operand, axis)
        if isinstance(inner, Read) and inner.region == region and len(region.coords) >= 2:
            return len(region.coords) + position
    return None


def _bare(value: Value, axis: int) -> tuple[Value, int]:
    if isinstance(value, Transpose):
        return _bare(value.value, -3 - axis)
    return value, axis


def operands(dot: Dot) -> tuple[Value, Value]:
    """The operands of a product without their transpositions."""
    return _bare(dot.left, -1)[0], _bare(dot.right, -2)[0]
