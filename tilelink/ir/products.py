"""The products in the statements of a tile, and what they multiply."""

from __future__ import annotations

from collections.abc import Iterable

from tilelink.ir.program import (
    Apply,
    Cast,
    Dot,
    Expand,
    Positions,
    Read,
    Reduce,
    Region,
    Statement,
    Transpose,
    Value,
)
from tilelink.ir.typing import ONE, StageTyping
from tilelink.ir.visitor import value_of, values


def products_of(value: Value | None) -> list[Dot]:
    """The products in a value."""
    return [part for part in values(value) if isinstance(part, Dot)] if value is not None else []


def products(body: Iterable[Statement]) -> list[Dot]:
    """The products of statements, without those within loops and conditions among them."""
    return [dot for statement in body for dot in products_of(value_of(statement))]


def untransposed(value: Value, axis: int = -1) -> tuple[Value, int]:
    """A value without its transpositions, and where an axis of it (-1 or -2) is there."""
    if isinstance(value, Transpose):
        return untransposed(value.value, -3 - axis)
    return value, axis


def operands(dot: Dot) -> tuple[Value, Value]:
    """The operands of a product without their transpositions."""
    return untransposed(dot.left)[0], untransposed(dot.right)[0]


def has_steps(typing: StageTyping, dot: Dot) -> bool:
    """Whether a product can be computed in steps of what it contracts."""
    return divisible(typing, dot.left, -1) and divisible(typing, dot.right, -2)


def divisible(typing: StageTyping, value: Value, position: int) -> bool:
    """Whether the value can be computed slice by slice along an axis: not where it takes a name's whole tile."""
    axes = typing.type_of(value).axes
    if -position > len(axes) or axes[position] == ONE:
        return True
    match value:
        case Transpose(value=inner):
            return divisible(typing, inner, {-1: -2, -2: -1}.get(position, position))
        case Expand(value=inner, pattern=pattern):
            return divisible(typing, inner, position + pattern[position:].count(False))
        case Cast(value=inner):
            return divisible(typing, inner, position)
        case Apply(args=args):
            return all(divisible(typing, a, position) for a in args)
        case Dot(left=left, right=right):
            return divisible(typing, right if position == -1 else left, position)
        case Reduce(value=inner, axis=axis):
            return divisible(typing, inner, outside(position, axis, len(axes)))
        case _:
            return isinstance(value, Read | Positions)


def outside(position: int, axis: int, size: int) -> int:
    """Where an axis of a reduction's result (of `size` axes) is in what is reduced over `axis`, from the last."""
    axis = axis % (size + 1)
    forward = position + size
    return (forward if forward < axis else forward + 1) - size - 1


def contracted_dimension(dot: Dot, region: Region) -> int | None:
    """The dimension of a region that a product sums over, if the region is one of its two operands."""
    for operand, axis in ((dot.left, -1), (dot.right, -2)):
        inner, position = untransposed(operand, axis)
        if isinstance(inner, Read) and inner.region == region and len(region.coords) >= 2:
            return len(region.coords) + position
    return None
