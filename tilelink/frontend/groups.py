"""Names of `over`: the coordinates of the grid that the ranks form, and groups of consecutive ranks.

Expressions that use them become arithmetic of `rank` and `ranks`, so the rest of the compiler knows only that. The
program keeps the declarations, because binding checks them: the grid has as many places as there are ranks, and no
group is empty.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from tilelink.errors import Location, ParseError
from tilelink.frontend.syntax import GridSyntax, GroupSyntax, Source
from tilelink.ir.program import GridDim, Group
from tilelink.ir.scalar import Binary, Compare, Index, Int, Logic, Lookup, Rank, Ranks, Scalar

GRID = "over (dp, tp = 4): each dimension but the first has a size"
GROUP = "over attention = ranks[0 : A], experts = ranks[A :]"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The meaning of a name of `over`: a coordinate in the grid, or a group.

    size: how many places there are. own: the place of this rank. first: the first rank of a group, None of a
    coordinate. stride: how far apart the ranks of neighbouring places of a coordinate are.
    """

    name: str
    size: Scalar
    own: Scalar
    stride: Scalar
    first: Scalar | None = None

    @property
    def is_group(self) -> bool:
        return self.first is not None

    def wrapped(self, place: Scalar, surely_within: bool) -> Scalar:
        """Return a place modulo the size."""
        if surely_within or place == self.own:
            return place
        if isinstance(place, Binary) and (place.op, place.right) == ("%", self.size):
            return place
        if isinstance(place, Int) and 0 <= place.value < (self.size.value if isinstance(self.size, Int) else 1):
            return place
        return Binary(op="%", left=place, right=self.size, location=place.location)

    def member(self, place: Scalar) -> Scalar:
        """Return the rank at a place of a group."""
        return place if self.first is None else _plus(self.first, place)


Number = Callable[[ast.expr], Scalar]
"""Converts an integer expression."""


def grid_of(syntax: Sequence[GridSyntax], number: Number, source: Source) -> tuple[GridDim, ...]:
    """Return the grid that a program declares. Raises ParseError if more than its first dimension has no size."""
    dims: list[GridDim] = []
    for position, one in enumerate(syntax):
        location = source.location(one.node)
        if one.size is None and position:
            raise ParseError(f"{one.name} has no size", location=location, hint=GRID)
        dims.append(GridDim(name=one.name, size=None if one.size is None else number(one.size), location=location))
    return tuple(dims)


def group_of(syntax: GroupSyntax, number: Number, source: Source) -> Group:
    """Return a group that a program declares. Raises ParseError for what is no part of the ranks."""
    match syntax.part:
        case ast.Subscript(value=ast.Name(id="ranks"), slice=ast.Slice(lower=lower, upper=upper, step=None)) if (
            lower is not None or upper is not None
        ):
            start = Int(value=0) if lower is None else number(lower)
            stop = Ranks() if upper is None else number(upper)
            return Group(name=syntax.name, start=start, stop=stop, location=source.location(syntax.node))
        case _:
            message = f"{syntax.name} is no part of the ranks"
            raise ParseError(message, location=source.location(syntax.part), hint=GROUP)


def axes_of_grid(grid: Sequence[GridDim]) -> dict[str, Axis]:
    """Return the coordinates of a grid. The last one varies fastest."""
    axes: list[Axis] = []
    stride: Scalar = Int(value=1)
    for position in range(len(grid) - 1, -1, -1):
        dim = grid[position]
        size = _quotient(Ranks(), stride) if dim.size is None else dim.size
        own = _quotient(Rank(), stride)
        own = own if position == 0 else Binary(op="%", left=own, right=size)
        axes.append(Axis(name=dim.name, size=size, own=own, stride=stride))
        stride = _times(stride, size)
    return {axis.name: axis for axis in reversed(axes)}


def axis_of_group(group: Group) -> Axis:
    """Return the axis of a group: its ranks from the first on."""
    size, own = _minus(group.stop, group.start), _minus(Rank(), group.start)
    return Axis(name=group.name, size=size, own=own, stride=Int(value=1), first=group.start)


def membership(group: Group, location: Location) -> Scalar | None:
    """Return the condition that holds on the ranks of a group alone, None if it holds on all."""
    conditions: list[Scalar] = []
    if group.start != Int(value=0):
        conditions.append(Compare(op=">=", left=Rank(), right=group.start, location=location))
    if group.stop != Ranks():
        conditions.append(Compare(op="<", left=Rank(), right=group.stop, location=location))
    if len(conditions) < 2:
        return next(iter(conditions), None)
    return Logic(op="and", args=tuple(conditions), location=location)


def rank_at(axes: Mapping[str, Axis], places: Mapping[str, Scalar], location: Location) -> Scalar:
    """Return the rank at these places of the grid, and at the places of this rank otherwise.

    Neighbouring coordinates that stay as they are make one term: `rank % (a * b)`, `rank // a * a`.
    """
    grid = [axis for axis in axes.values() if not axis.is_group]
    terms: list[Scalar] = []
    position = 0
    while position < len(grid):
        end = position
        while end < len(grid) and grid[end].name not in places:
            end += 1
        if end > position:
            terms.append(_kept(grid, position, end))
            position = end
        else:
            axis = grid[position]
            terms.append(_times(places[axis.name], axis.stride))
            position += 1
    total = terms[0]
    for term in terms[1:]:
        total = Binary(op="+", left=total, right=term, location=location)
    return total


def _kept(grid: Sequence[Axis], start: int, stop: int) -> Scalar:
    """Return what the coordinates from `start` to `stop` of this rank contribute to its number."""
    value: Scalar = Rank()
    if start:
        value = Binary(op="%", left=value, right=grid[start - 1].stride)
    stride = grid[stop - 1].stride
    return _times(_quotient(value, stride), stride)


def _is_one(expr: Scalar) -> TypeGuard[Int]:
    return isinstance(expr, Int) and expr.value == 1


def _times(left: Scalar, right: Scalar) -> Scalar:
    if _is_one(left):
        return right
    return left if _is_one(right) else Binary(op="*", left=left, right=right)


def _quotient(left: Scalar, right: Scalar) -> Scalar:
    return left if _is_one(right) else Binary(op="//", left=left, right=right)


def _plus(left: Scalar, right: Scalar) -> Scalar:
    return right if left == Int(value=0) else Binary(op="+", left=left, right=right)


def _minus(left: Scalar, right: Scalar) -> Scalar:
    if isinstance(left, Int) and isinstance(right, Int):
        return Int(value=left.value - right.value)
    return left if right == Int(value=0) else Binary(op="-", left=left, right=right)


def is_arithmetic(expr: Scalar) -> bool:
    """True if a coordinate may be taken modulo: it is no tile of an index, and no entry of an index tensor."""
    return not isinstance(expr, Index | Lookup)
