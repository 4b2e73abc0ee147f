"""Integer expressions over ranks, indices, dimensions and tables: the arithmetic of the tile-centric mapping.

One expression serves everybody: the plan evaluates it over numpy arrays, the emitter renders it as source.
`//` and `%` are Python's (floor).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

from tilelink.errors import Location


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """An integer (or truth value) known when a tile starts."""

    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Int(Scalar):
    value: int


@dataclass(frozen=True, kw_only=True)
class Param(Scalar):
    """A parameter of the program: a dimension, or a number or flag."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Rank(Scalar):
    """The own rank."""


@dataclass(frozen=True, kw_only=True)
class Ranks(Scalar):
    """How many ranks there are."""


@dataclass(frozen=True, kw_only=True)
class Index(Scalar):
    """The number of a tile along one index of a stage or loop."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Binary(Scalar):
    """op in `+ - * // % min max ^`."""

    op: str
    left: Scalar
    right: Scalar


@dataclass(frozen=True, kw_only=True)
class Compare(Scalar):
    """op in `== != < <= > >=`; `modular` compares modulo the number of ranks."""

    op: str
    left: Scalar
    right: Scalar


@dataclass(frozen=True, kw_only=True)
class Logic(Scalar):
    """op in `and or not`."""

    op: str
    args: tuple[Scalar, ...]


@dataclass(frozen=True, kw_only=True)
class Whole:
    """`:` as a coordinate: the whole extent of a dimension."""


@dataclass(frozen=True, kw_only=True)
class Lookup(Scalar):
    """An entry (or, with a `:` coordinate, a row of entries) of a table tensor."""

    table: str
    coords: tuple[Scalar | Whole, ...]


@dataclass(frozen=True, kw_only=True)
class Choose(Scalar):
    """The selector-th of some constants (an explicit permutation)."""

    selector: Scalar
    values: tuple[int, ...]


RANK = Rank()
RANKS = Ranks()

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "^": lambda a, b: a ^ b,
    "min": np.minimum,
    "max": np.maximum,
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def const(value: int) -> Int:
    return Int(value=value)


def binary(op: str, left: Scalar, right: Scalar) -> Scalar:
    """`left op right`, folding constants and neutral elements."""
    divides = op not in ("//", "%") or right != const(0)  # what divides by zero stays, to be refused with its place
    if isinstance(left, Int) and isinstance(right, Int) and divides:
        return const(int(_BINARY[op](left.value, right.value)))
    if isinstance(right, Int) and (op, right.value) in {("+", 0), ("-", 0), ("*", 1), ("//", 1)}:
        return left
    if isinstance(left, Int) and (op, left.value) in {("+", 0), ("*", 1)}:
        return right
    if op == "*" and const(0) in (left, right):
        return const(0)
    return Binary(op=op, left=left, right=right)


def add(left: Scalar, right: Scalar) -> Scalar:
    return binary("+", left, right)


def mul(left: Scalar, right: Scalar) -> Scalar:
    return binary("*", left, right)


def children(expr: Scalar) -> tuple[Scalar, ...]:
    """The direct operands of an expression."""
    match expr:
        case Binary(left=a, right=b) | Compare(left=a, right=b):
            return (a, b)
        case Logic(args=args):
            return args
        case Lookup(coords=coords):
            return tuple(c for c in coords if isinstance(c, Scalar))
        case Choose(selector=s):
            return (s,)
        case _:
            return ()


def walk(expr: Scalar) -> list[Scalar]:
    """The expression and everything below it."""
    found = [expr]
    for child in children(expr):
        found.extend(walk(child))
    return found


def rewrite(expr: Scalar, change: Callable[[Scalar], Scalar | None]) -> Scalar:
    """Replace, top down, each node for which `change` returns something."""
    new = change(expr)
    if new is not None:
        return new
    match expr:
        case Binary(op=op, left=a, right=b):
            return binary(op, rewrite(a, change), rewrite(b, change))
        case Compare(op=op, left=a, right=b):
            return Compare(op=op, left=rewrite(a, change), right=rewrite(b, change), location=expr.location)
        case Logic(op=op, args=args):
            return Logic(op=op, args=tuple(rewrite(a, change) for a in args), location=expr.location)
        case Lookup(table=table, coords=coords):
            new_coords = tuple(rewrite(c, change) if isinstance(c, Scalar) else c for c in coords)
            return Lookup(table=table, coords=new_coords, location=expr.location)
        case Choose(selector=s, values=values):
            return Choose(selector=rewrite(s, change), values=values)
        case _:
            return expr


def is_gather(coord: object) -> TypeGuard[Lookup]:
    """Whether a coordinate is a row of a table, `table[:]`, and so names many elements."""
    return isinstance(coord, Lookup) and any(isinstance(c, Whole) for c in coord.coords)


def substitute(expr: Scalar, indices: Mapping[str, Scalar]) -> Scalar:
    """Replace indices by expressions."""
    return rewrite(expr, lambda e: indices.get(e.name) if isinstance(e, Index) else None)


def mentions_rank(expr: Scalar, rank_indices: frozenset[str]) -> bool:
    """Whether the expression is made of ranks: `rank`, or an index that runs over the ranks; no entry of a table is."""
    if isinstance(expr, Lookup):
        return False
    own = isinstance(expr, Rank) or (isinstance(expr, Index) and expr.name in rank_indices)
    return own or any(mentions_rank(child, rank_indices) for child in children(expr))


@dataclass(frozen=True, kw_only=True)
class Env:
    """Values for evaluation: ints or integer arrays that broadcast together."""

    rank: Any
    ranks: int
    params: Mapping[str, Any]
    indices: Mapping[str, Any]
    tables: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """table name -> int array [ranks, *table shape]."""


def evaluate(expr: Scalar, env: Env) -> Any:
    """The value of an expression: an int, or an array where the environment holds arrays."""
    match expr:
        case Int(value=value):
            return value
        case Param(name=name):
            return env.params[name]
        case Rank():
            return env.rank
        case Ranks():
            return env.ranks
        case Index(name=name):
            return env.indices[name]
        case Binary(op=op, left=a, right=b):
            return _BINARY[op](evaluate(a, env), evaluate(b, env))
        case Compare(op=op, left=a, right=b):
            return _COMPARE[op](evaluate(a, env), evaluate(b, env))
        case Logic(op=op, args=args):
            return _logic(op, [evaluate(a, env) for a in args])
        case Lookup(table=table, coords=coords):
            where = tuple(evaluate(c, env) if isinstance(c, Scalar) else slice(None) for c in coords)
            return env.tables[table][(env.rank, *where)]
        case Choose(selector=s, values=values):
            return np.asarray(values)[evaluate(s, env)]
        case _:
            raise TypeError(f"not a scalar expression: {expr!r}")


def _logic(op: str, values: Sequence[Any]) -> Any:
    if op == "not":
        return np.logical_not(values[0])
    combine = np.logical_and if op == "and" else np.logical_or
    result = values[0]
    for value in values[1:]:
        result = combine(result, value)
    return result
