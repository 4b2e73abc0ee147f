"""Evaluation of integer expressions with the semantics of the language, one task at a time, on Python's integers.

Ranks count modulo `ranks`, and an access outside a table is an error. The plan and the kernels evaluate the same
expressions with the code of `ir/scalar.py`. This module does not use it: the reference must not share its mistakes.
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
    """The values of all names in a task. over_ranks: indices that run over the ranks; who: the task, for errors.

    tables: declarations of the tables; entries: their values, int arrays [ranks, *table shape].
    """

    rank: int
    ranks: int
    numbers: Numbers
    indices: Mapping[str, int] = field(default_factory=dict[str, int])
    over_ranks: frozenset[str] = frozenset()
    tables: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    entries: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    who: object = ""

    def value(self, expr: Scalar) -> Any:
        """Return the value of an expression.

        Raises CoverageError for a lookup outside a table, BindingError for a division by zero.
        """
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
        """Return the entries of a lookup: a single one, or those along its `:` coordinates.

        Raises CoverageError if a coordinate lies outside the table.
        """
        table = self.tables[lookup.table]
        entries = self.entries[lookup.table][self.rank]
        where: list[int | slice] = []
        for coord, dim, extent in zip(lookup.coords, table.shape, entries.shape, strict=True):
            if isinstance(coord, Whole):
                where.append(slice(None))
                continue
            position = int(self.value(coord))
            if isinstance(dim, Ranks):
                position %= self.ranks
            if not 0 <= position < extent:
                message = f"{self.who} looks up {print_scalar(lookup)}, where {print_scalar(coord)} is {position}"
                hint = f"{lookup.table} has {extent} entries there: guard the look-up with an if, or shift it"
                raise CoverageError(message, location=lookup.location, hint=hint)
            where.append(position)
        return entries[tuple(where)]

    def _arithmetic(self, expr: Binary) -> Any:
        left, right = self.value(expr.left), self.value(expr.right)
        if expr.op in ("//", "%") and right == 0:
            message = f"{print_scalar(expr)} divides by zero"
            raise BindingError(message, location=expr.location, hint=f"{print_scalar(expr.right)} is 0 here")
        return _ARITHMETIC[expr.op](left, right)

    def _of_ranks(self, expr: Scalar) -> bool:
        """True if an expression contains `rank` or an index over the ranks, except inside a table lookup."""
        return any(isinstance(e, Rank) or (isinstance(e, Index) and e.name in self.over_ranks) for e in _parts(expr))


def extent(expr: Scalar, numbers: Numbers, ranks: int) -> int:
    """Return the value of an expression of parameters and `ranks`, such as an extent of a shape."""
    return int(Scope(rank=0, ranks=ranks, numbers=numbers).value(expr))


def along_table(coord: Scalar | Whole) -> bool:
    """True if a coordinate is a row of a table, `table[:]`."""
    return isinstance(coord, Lookup) and any(isinstance(c, Whole) for c in coord.coords)


def tile(coord: Scalar, numbers: frozenset[str]) -> tuple[Scalar | None, str] | None:
    """Return (offset, index) if a coordinate is the tile of an index, else None. offset: None if there is none.

    numbers: the indices that are plain numbers.
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
    """Yield an expression and its subexpressions, except the coordinates of table lookups."""
    yield expr
    match expr:
        case Binary(left=left, right=right) | Compare(left=left, right=right):
            inner: tuple[Scalar, ...] = (left, right)
        case Logic(args=args):
            inner = args
        case _:
            inner = ()
    for child in inner:
        yield from _parts(child)
