"""Blocks: the elements that a kernel holds of an axis of a tile, a power of two."""

from __future__ import annotations

from tilelink.ir.scalar import Env, Scalar, evaluate
from tilelink.ir.sizes import power_of_two
from tilelink.ir.typing import Axis
from tilelink.lowering.bound import Bound, BoundStage


def _number(bound: Bound, dim: Scalar) -> int:
    """Return the value of a dimension."""
    return int(evaluate(dim, Env(rank=0, ranks=bound.ranks, params=bound.numbers, indices={})))


def axis_extent(bound: Bound, stage: BoundStage, axis: Axis) -> int:
    """Return the logical elements of an axis within one tile."""
    if axis.kind == "tile":
        return stage.tiles[str(axis.index)]
    return 1 if axis.kind == "one" or axis.dim is None else _number(bound, axis.dim)


def axis_block(bound: Bound, stage: BoundStage, axis: Axis) -> int:
    """Return the elements of an axis in a block of a kernel."""
    if axis.kind == "one":
        return 1
    return max(power_of_two(axis_extent(bound, stage, axis)), bound.smallest_block(stage.name))


def block_shape(bound: Bound, stage: BoundStage, axes: tuple[Axis, ...]) -> tuple[int, ...]:
    """Return the shape of a block of a tile."""
    return tuple(axis_block(bound, stage, one) for one in axes)
