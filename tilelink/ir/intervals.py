"""Interval arithmetic on integer expressions: the smallest and the largest value that each may have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tilelink.ir.program import Tensor
from tilelink.ir.scalar import (
    Binary,
    Block,
    Choose,
    Compare,
    Env,
    Index,
    Int,
    Logic,
    Lookup,
    Param,
    Rank,
    Ranks,
    Scalar,
    const,
    evaluate,
    rewrite,
)

Range = tuple[int, int]
"""The smallest and the largest value, both included."""
MIN_INT32, MAX_INT32 = -(2**31), 2**31 - 1
UNKNOWN: Range = (-(2**63), 2**63)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Ranges of the rank, the indices and the table entries; indices and tables not listed are non-negative."""

    ranks: int
    indices: Mapping[str, Range] = field(default_factory=dict[str, Range])
    tables: Mapping[str, Range] = field(default_factory=dict[str, Range])
    simplified: dict[Scalar, Scalar] = field(
        default_factory=dict[Scalar, Scalar], init=False, compare=False, repr=False
    )
    """Cache of `simplify`: the expressions of a program are simplified by every step that maps or prints them."""
    normals: dict[Scalar, Scalar] = field(default_factory=dict[Scalar, Scalar], init=False, compare=False, repr=False)
    """Cache of `normal`: the normal form of a sum is made of those of its operands, again and again."""
    _intervals: dict[Scalar, Range] = field(default_factory=dict[Scalar, Range], init=False, compare=False, repr=False)
    """Cache of `of`."""

    def of(self, expr: Scalar) -> Range:
        """Return an interval that contains every value of the expression."""
        match expr:
            case Int(value=value):
                return value, value
            case Rank():
                return 0, self.ranks - 1
            case Index(name=name):
                return self.indices.get(name, (0, MAX_INT32))
            case Lookup(table=table):
                return self.tables.get(table, (0, MAX_INT32))
            case Choose(values=values):
                return min(values), max(values)
            case Binary():
                return self._of_binary(expr)
            case Compare() | Logic():
                return 0, 1
            case Block(start=start):
                return self.of(start)
            case _:
                return UNKNOWN

    def _of_binary(self, expr: Binary) -> Range:
        known = self._intervals.get(expr)
        if known is None:
            known = self._intervals[expr] = combined(expr.op, self.of(expr.left), self.of(expr.right))
        return known


@lru_cache(maxsize=64)
def shared_bounds(ranks: int, indices: tuple[tuple[str, Range], ...], tables: tuple[tuple[str, Range], ...]) -> Bounds:
    """Return these bounds, the same object if they were made lately, with what it knows of expressions."""
    return Bounds(ranks=ranks, indices=dict(indices), tables=dict(tables))


def ranges_of_entries(
    tensors: Iterable[Tensor], ranks: int, numbers: Mapping[str, int | float | bool]
) -> dict[str, Range]:
    """Return table or index tensor -> the smallest and the largest of its entries, to which kernels clamp them.

    tensors: in the order of their declarations, because a bound may be an entry of a tensor before.
    """

    def number(expr: Scalar) -> Scalar | None:
        if isinstance(expr, Param | Ranks):
            return const(int(evaluate(expr, Env(rank=0, ranks=ranks, params=numbers, indices={}))))
        return None

    found: dict[str, Range] = {}
    for tensor in tensors:
        if tensor.bound is not None:
            end = Bounds(ranks=ranks, tables=found).of(rewrite(tensor.bound, number))[1]
            found[tensor.name] = (0, max(0, end - 1))
        elif tensor.space == "table":
            found[tensor.name] = (MIN_INT32, MAX_INT32)
    return found


def combined(op: str, left: Range, right: Range) -> Range:
    """Return the interval of `left op right`; UNKNOWN if the divisor can only be 0."""
    match op:
        case "//" | "%" if right == (0, 0):
            return UNKNOWN
        case "//":
            ends = [a // b for a in left for b in _divisors(right)]
        case "%":
            return _remainder(left, right)
        case "min" | "max":
            pick = min if op == "min" else max
            return pick(left[0], right[0]), pick(left[1], right[1])
        case "^":
            bits = max(abs(n) for n in (*left, *right)).bit_length()
            return (0 if min(left[0], right[0]) >= 0 else -(2**bits)), 2**bits - 1
        case _:
            ends = [_ENDS[op](a, b) for a in left for b in right]
    return min(ends), max(ends)


_ENDS: dict[str, Callable[[int, int], int]] = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def _divisors(right: Range) -> list[int]:
    """The divisors at which a quotient is smallest or largest."""
    return [n for n in {right[0], right[1], -1, 1} if n and right[0] <= n <= right[1]]


def _remainder(left: Range, right: Range) -> Range:
    most = max(abs(right[0]), abs(right[1])) - 1
    if right[0] > 0 and left[0] >= 0:
        return (0, min(most, left[1])) if left[1] >= right[0] else left
    return (-most if right[0] < 0 else 0), (most if right[1] > 0 else 0)
