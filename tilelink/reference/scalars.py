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
from tilelink.ir.scalar import (
    Binary,
    Block,
    Compare,
    Coordinate,
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


Where = tuple[int | slice, ...]
"""A coordinate for each dimension of a tensor: a position, or several in a row."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The values of all names in a task. over_ranks: indices that run over the ranks; who: the task, for errors.

    dims: index tensor -> the extents of its dimensions, as declared. fetch: returns entries of an index tensor of the
    rank. part: returns the elements of the tile that a coordinate stands for, None if it is a number. coordinates: of
    the element that a declaration is about.
    """

    rank: int
    ranks: int
    numbers: Numbers
    indices: Mapping[str, int] = field(default_factory=dict[str, int])
    over_ranks: frozenset[str] = frozenset()
    dims: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict[str, tuple[Scalar, ...]])
    fetch: Callable[[Lookup, Where], np.ndarray] | None = None
    part: Callable[[Scalar], slice | None] = lambda _: None
    coordinates: tuple[int, ...] = ()
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
            case Coordinate(dim=dim):
                return self.coordinates[dim]
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

    def ends(self, expr: Scalar, largest: Mapping[str, int]) -> tuple[int, int]:
        """Return the smallest and the largest value that an expression may have, whatever the entries of a launch are.

        largest: index tensor -> the largest of its entries. What is not known well is wider than it needs to be.
        """
        if not at_launch(expr):
            value = int(self.value(expr))
            return value, value
        match expr:
            case Lookup(table=table):
                return 0, largest[table]
            case Binary(op=op, left=left, right=right) | Compare(op=op, left=left, right=right):
                low, high = self.ends(right, largest)
                if op == "%" and low > 0:
                    return 0, high - 1
                if op not in ("//", "^", "%", "==", "!=") or (op == "//" and low > 0):  # between those of the ends
                    found = [
                        (_ARITHMETIC | _COMPARISONS)[op](one, by)
                        for one in self.ends(left, largest)
                        for by in (low, high)
                    ]
                    return int(min(found)), int(max(found))
            case _:
                pass
        return (-(2**63), 2**63) if isinstance(expr, Binary) else (0, 1)

    def entry(self, lookup: Lookup) -> np.ndarray:
        """Return the entries of a look-up: a single one, or those along its `:` coordinates and its tiles.

        Raises CoverageError if a coordinate lies outside the index tensor.
        """
        where: list[int | slice] = []
        for coord, dim in zip(lookup.coords, self.dims[lookup.table], strict=True):
            extent = int(self.value(dim))
            if isinstance(coord, Whole):
                where.append(slice(0, extent))
            elif (part := self.part(coord)) is not None:
                if part.start < part.stop and not 0 <= part.start <= part.stop <= extent:
                    raise self._outside(lookup, coord, f"{part.start} to {part.stop - 1}", extent)
                where.append(part)
            else:
                position = int(self.value(coord))
                if isinstance(dim, Ranks):
                    position %= self.ranks
                if not 0 <= position < extent:
                    raise self._outside(lookup, coord, str(position), extent)
                where.append(position)
        assert self.fetch is not None
        return self.fetch(lookup, tuple(where))

    def _outside(self, lookup: Lookup, coord: Scalar, position: str, extent: int) -> CoverageError:
        message = f"{self.who} looks up {print_scalar(lookup)}, where {print_scalar(coord)} is {position}"
        hint = f"{lookup.table} has {extent} entries there: guard the look-up with an if, or shift it"
        return CoverageError(message, location=lookup.location, hint=hint)

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


def at_launch(expr: Scalar | Whole) -> bool:
    """True if an expression contains an entry that is known only in a launch."""
    match expr:
        case Lookup(launch=launch, coords=coords):
            return launch or any(map(at_launch, coords))
        case Binary(left=left, right=right) | Compare(left=left, right=right):
            return at_launch(left) or at_launch(right)
        case Logic(args=args):
            return any(map(at_launch, args))
        case Block(start=start):
            return at_launch(start)
        case _:
            return False


def tables_of(expr: Scalar | Whole) -> set[str]:
    """Return the tables and index tensors in an expression."""
    match expr:
        case Lookup(table=table, coords=parts):
            return {table} | {name for part in parts for name in tables_of(part)}
        case Logic(args=parts):
            return {name for part in parts for name in tables_of(part)}
        case Binary(left=left, right=right) | Compare(left=left, right=right):
            return tables_of(left) | tables_of(right)
        case _:
            return set()


def indices_of(expr: Scalar | Whole) -> set[str]:
    """Return the indices in an expression."""
    match expr:
        case Index(name=name):
            return {name}
        case Lookup(coords=parts) | Logic(args=parts):
            return {name for part in parts for name in indices_of(part)}
        case Binary(left=left, right=right) | Compare(left=left, right=right):
            return indices_of(left) | indices_of(right)
        case Block(start=start):
            return indices_of(start)
        case _:
            return set()


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
        case Binary(op="-", left=Index(name=name), right=offset) if name not in numbers:
            return Binary(op="-", left=Int(value=0), right=offset), name
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
