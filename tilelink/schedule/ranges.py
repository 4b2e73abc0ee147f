"""What values integer expressions may have: kernels compute them in 32 bits, the plan in 64.

Intervals are found from those of ranks, indices and tables, so an expression may be refused that never gets so large.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilelink.errors import BindingError, Location
from tilelink.ir.printer import print_scalar
from tilelink.ir.scalar import Binary, Choose, Index, Int, Lookup, Param, Rank, Ranks, Scalar, children
from tilelink.ir.visitor import stage_scalars
from tilelink.schedule.bound import Bound, BoundStage
from tilelink.schedule.orders import TILE
from tilelink.schedule.transform import number_of

Range = tuple[int, int]
"""The least and the largest value."""
LEAST, MOST = -(2**31), 2**31 - 1


def check_ranges(bound: Bound) -> None:
    """Raises BindingError for an expression that may leave 32 bits, and for a division by zero."""
    tables: dict[str, Range] = {}
    for tensor in bound.program.tensors:
        if tensor.space == "table" and tensor.bound is not None:
            tables[tensor.name] = (0, max(0, number_of(tensor.bound, bound.numbers, bound.ranks) - 1))
    for stage in bound.stages.values():
        known = {name: (0, max(0, stage.count(name) - 1)) for name in stage.extents}
        for expr in stage_scalars(stage.stage):
            _Intervals(bound, stage, known, tables).of(expr)
        tiles = {TILE.name: (0, max(0, stage.total - 1))}
        for expr in stage.order.values() if stage.total else ():
            _Intervals(bound, stage, tiles, tables).of(expr)


class _Intervals:
    def __init__(
        self, bound: Bound, stage: BoundStage, indices: Mapping[str, Range], tables: Mapping[str, Range]
    ) -> None:
        self.bound, self.stage, self.indices, self.tables = bound, stage, indices, tables

    def of(self, expr: Scalar, place: Location | None = None) -> Range:
        """The interval of an expression; raises BindingError where it, or a part of it, has none of 32 bits."""
        place = expr.location or place
        below = [self.of(child, place) for child in children(expr)]
        match expr:
            case Int(value=value):
                found = (value, value)
            case Rank():
                found = (0, self.bound.ranks - 1)
            case Ranks() | Param():  # of an extent
                number = number_of(expr, self.bound.numbers, self.bound.ranks)
                found = (number, number)
            case Index(name=name):
                found = self.indices.get(name, (0, MOST))
            case Lookup(table=table):
                found = self.tables.get(table, (LEAST, MOST))
            case Choose(values=values):
                found = (min(values), max(values))
            case Binary(op=op):
                found = self._binary(op, below[0], below[1], expr, place)
            case _:
                found = (0, 1)
        if found[0] < LEAST or found[1] > MOST:
            message = f"{print_scalar(expr)} in stage {self.stage.name} may be {max(found, key=abs)}"
            raise BindingError(message, location=place, hint="integers have 32 bits")
        return found

    def _binary(self, op: str, left: Range, right: Range, expr: Scalar, place: Location | None) -> Range:
        if op in ("//", "%"):
            if right == (0, 0):
                message = f"{print_scalar(expr)} in stage {self.stage.name} divides by zero"
                raise BindingError(message, location=place, hint="the divisor must not be 0 with these numbers")
            return _quotient(left, right) if op == "//" else _remainder(left, right)
        if op in ("min", "max"):
            pick = min if op == "min" else max
            return pick(left[0], right[0]), pick(left[1], right[1])
        if op == "^":
            bits = max(abs(n) for n in (*left, *right)).bit_length()
            return (0 if min(left[0], right[0]) >= 0 else -(2**bits)), 2**bits - 1
        ends = [_ENDS[op](a, b) for a in left for b in right]
        return min(ends), max(ends)


_ENDS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def _divisors(right: Range) -> list[int]:
    """The divisors at which a quotient is least or largest."""
    return [n for n in {right[0], right[1], -1, 1} if n and right[0] <= n <= right[1]]


def _quotient(left: Range, right: Range) -> Range:
    ends = [a // b for a in left for b in _divisors(right)]
    return min(ends), max(ends)


def _remainder(left: Range, right: Range) -> Range:
    most = max(abs(right[0]), abs(right[1])) - 1
    if right[0] > 0 and left[0] >= 0:
        return (0, min(most, left[1])) if left[1] >= right[0] else left
    return (-most if right[0] < 0 else 0), (most if right[1] > 0 else 0)
