"""Integer expressions as the language means them, one task at a time, on Python's integers.

Ranks count modulo `ranks`, and a table has no entries outside of it. The plan and the kernels have another reading of
the same expressions (`ir/scalar.py`), of which nothing is used here: what checks the other must not share its mistakes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilelink.errors import BindingError, CoverageError
from tilelink.ir.parameters import Numbers
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import Tensor
from tilelink.ir.scalar import (
    Binary,
    Compare,
    Index,
    Int,
    Logic,
    Lookup,
    Param,
    Rank,
    Ranks,
    Scalar,
    Whole,
)

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "^": operator.xor,
    "min": min,
    "max": max,
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What names stand for in a task: `over_ranks` are indices that run over the ranks, `who` names the task."""

    rank: int
    ranks: int
    numbers: Numbers
    indices: Mapping[str, int] = field(default_factory=dict[str, int])
    over_ranks: frozenset[str] = frozenset()
    tables: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    entries: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    who: object = ""

    def value(self, expr: Scalar) -> Any:
        """The value of an expression. Raises CoverageError for an entry outside of a table."""
        match expr:
            case Int(value=value):
                return value
            case Param(name=name):
                return self.numbers[name]
            case Rank():
                return self.rank
            case Ranks():
                return self.ranks
            case Index(name=name):
                return self.indices[name]
            case Binary():
                return self._arithmetic(expr)
            case Compare(op=op, left=left, right=right):
                pair = self.value(left), self.value(right)
                if op in ("==", "!=") and (self._of_ranks(left) or self._of_ranks(right)):
                    pair = pair[0] % self.ranks, pair[1] % self.ranks
                return _COMPARISONS[op](*pair)
            case Logic(op=op, args=args):
                truths = [bool(self.value(a)) for a in args]
                return not truths[0] if op == "not" else all(truths) if op == "and" else any(truths)
            case Lookup():
                return int(self.entry(expr))
            case _:
                raise TypeError(f"not a scalar expression of a program: {expr!r}")

    def entry(self, lookup: Lookup) -> np.ndarray:
        """The entries that a look-up names: one, or those along its `:` coordinates."""
        table = self.tables[lookup.table]
        own = self.entries[lookup.table][self.rank]
        where: list[int | slice] = []
        for coord, dim, extent in zip(lookup.coords, table.shape, own.shape, strict=True):
            if isinstance(coord, Whole):
                where.append(slice(None))
                continue
            place = int(self.value(coord))
            if isinstance(dim, Ranks):
                place %= self.ranks
            if not 0 <= place < extent:
                message = f"{self.who} looks up {print_scalar(lookup)}, where {print_scalar(coord)} is {place}"
                hint = f"{lookup.table} has {extent} entries there: guard the look-up with an if, or shift it"
                raise CoverageError(message, location=lookup.location, hint=hint)
            where.append(place)
        return own[tuple(where)]

    def _arithmetic(self, expr: Binary) -> Any:
        left, right = self.value(expr.left), self.value(expr.right)
        if expr.op in ("//", "%") and right == 0:
            message = f"{print_scalar(expr)} divides by zero"
            raise BindingError(message, location=expr.location, hint=f"{print_scalar(expr.right)} is 0 here")
        return _ARITHMETIC[expr.op](left, right)

    def _of_ranks(self, expr: Scalar) -> bool:
        """Whether an expression is made of ranks: `rank`, or an index that runs over them; no entry of a table is."""
        return any(isinstance(e, Rank) or (isinstance(e, Index) and e.name in self.over_ranks) for e in _parts(expr))


def extent(expr: Scalar, numbers: Numbers, ranks: int) -> int:
    """The value of an expression of parameters and ranks alone, as a shape has."""
    return int(Scope(rank=0, ranks=ranks, numbers=numbers).value(expr))


def along_table(coord: Scalar | Whole) -> bool:
    """Whether a coordinate is a row of a table, `table[:]`."""
    return isinstance(coord, Lookup) and any(isinstance(c, Whole) for c in coord.coords)


def tile(coord: Scalar, numbers: frozenset[str]) -> tuple[Scalar | None, str] | None:
    """(offset, index) of a coordinate that is an index's tile, moved by an offset or not; None for a number.

    numbers: the indices that are numbers.
    """
    match coord:
        case Index(name=name) if name not in numbers:
            return None, name
        case Binary(op="+", left=offset, right=Index(name=name)) if name not in numbers:
            return offset, name
        case Binary(op="+", left=Index(name=name), right=offset) if name not in numbers:
            return offset, name
        case _:
            return None


def _parts(expr: Scalar) -> Iterator[Scalar]:
    """What a number is computed from; entries of tables are looked up, whatever their place is computed from."""
    yield expr
    match expr:
        case Binary(left=left, right=right) | Compare(left=left, right=right):
            inner: tuple[Scalar, ...] = (left, right)
        case Logic(args=args):
            inner = args
        case _:
            inner = ()
    for one in inner:
        yield from _parts(one)
