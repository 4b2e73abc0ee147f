"""The products in the statements of a tile, and what they multiply."""

from __future__ import annotations

from collections.abc import Iterable

from tilelink.ir.program import Dot, Read, Region, Statement, Transpose, Value
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


def contracted_dimension(dot: Dot, region: Region) -> int | None:
    """The dimension of a region that a product sums over, if the region is one of its two operands."""
    for operand, axis in ((dot.left, -1), (dot.right, -2)):
        inner, position = untransposed(operand, axis)
        if isinstance(inner, Read) and inner.region == region and len(region.coords) >= 2:
            return len(region.coords) + position
    return None
