"""The matrix products in the statements of a tile, and their operands."""

from __future__ import annotations

from collections.abc import Iterable

from tilelink.ir.program import (
    Apply,
    Attend,
    Cast,
    Dot,
    Expand,
    Positions,
    Read,
    Reduce,
    Region,
    Scan,
    Statement,
    Transpose,
    Value,
    WholePositions,
)
from tilelink.ir.typing import ONE, StageTyping
from tilelink.ir.visitor import map_value, value_of, values


def products_of(value: Value | None) -> list[Dot]:
    """Return the products in a value."""
    return [node for node in values(value) if isinstance(node, Dot)] if value is not None else []


def products(body: Iterable[Statement]) -> list[Dot]:
    """Return the products in the values of the given statements, not of statements nested in them."""
    return [dot for statement in body for dot in products_of(value_of(statement))]


def outermost_products(statement: Statement) -> list[Dot]:
    """Return the products that a statement computes once, each in its own loop.

    Not those nested in a product, a reduction or an `attend`.
    """
    dots: list[Dot] = []

    def outermost(value: Value) -> Value | None:
        if isinstance(value, Dot):
            dots.append(value)
        return value if isinstance(value, Dot | Reduce | Attend) else None

    if (value := value_of(statement)) is not None:
        map_value(value, outermost)
    return dots


def untransposed(value: Value, axis: int = -1) -> tuple[Value, int]:
    """Strip transpositions from a value; return the inner value and the position there of the given axis (-1 or -2)."""
    if isinstance(value, Transpose):
        return untransposed(value.value, -3 - axis)
    return value, axis


def operands(dot: Dot) -> tuple[Value, Value]:
    """Return the operands of a product, stripped of transpositions."""
    return untransposed(dot.left)[0], untransposed(dot.right)[0]


def has_steps(typing: StageTyping, dot: Dot) -> bool:
    """True if a product can be computed slice by slice along its reduction dimension."""
    return divisible(typing, dot.left, -1) and divisible(typing, dot.right, -2)


def divisible(typing: StageTyping, value: Value, position: int) -> bool:
    """True if a value can be computed slice by slice along an axis.

    A value that reads a name cannot: the name holds its whole tile.
    """
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
        case Scan(value=inner, axis=axis):
            return axis % len(axes) - len(axes) != position and divisible(typing, inner, position)
        case _:
            return isinstance(value, Read | Positions | WholePositions)


def outside(position: int, axis: int, size: int) -> int:
    """Map an axis of a reduction's result (`size` axes) to the axis of its operand, which is reduced over `axis`.

    position and the result count from the last axis (-1).
    """
    axis = axis % (size + 1)
    forward = position + size
    return (forward if forward < axis else forward + 1) - size - 1


def operand_region(operand: Value) -> Region:
    """Return the region that an operand of a product is, transposed or not."""
    inner = operand.value if isinstance(operand, Transpose) else operand
    assert isinstance(inner, Read)
    return inner.region


def is_n_major(dot: Dot) -> bool:
    """True if the right operand of a product, [K, N], lies in memory as that: if not, it lies as [N, K], K-major."""
    return not isinstance(dot.right, Transpose)


def contracted_dimension(dot: Dot, region: Region) -> int | None:
    """Return the dimension of a region that a product reduces, or None if the region is not one of its operands."""
    for operand, axis in ((dot.left, -1), (dot.right, -2)):
        inner, position = untransposed(operand, axis)
        if isinstance(inner, Read) and inner.region == region and len(region.coords) >= 2:
            return len(region.coords) + position
    return None
