"""Integer expressions over ranks, indices, dimensions and tables: the arithmetic of the tile-centric mapping.

The plan evaluates an expression over NumPy arrays and the emitter prints the same expression as source.
`//` and `%` round toward negative infinity, as in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """A parameter of the program: a dimension, a number or a flag."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Rank(Scalar):
    """`rank`: the rank that evaluates the expression."""


@dataclass(frozen=True, kw_only=True)
class Ranks(Scalar):
    """`ranks`: the number of ranks."""


@dataclass(frozen=True, kw_only=True)
class Index(Scalar):
    """The number of a tile along one index of a stage or loop."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Binary(Scalar):
    """An integer operation. op: one of `+ - * // % min max ^`."""

    op: str
    left: Scalar
    right: Scalar


@dataclass(frozen=True, kw_only=True)
class Compare(Scalar):
    """A comparison. op: one of `== != < <= > >=`."""

    op: str
    left: Scalar
    right: Scalar


@dataclass(frozen=True, kw_only=True)
class Logic(Scalar):
    """A logical operation. op: one of `and or not`."""

    op: str
    args: tuple[Scalar, ...]


@dataclass(frozen=True, kw_only=True)
class Whole:
    """`:` as a coordinate: the whole extent of a dimension."""


@dataclass(frozen=True, kw_only=True)
class Block(Scalar):
    """`start : start + size` as a coordinate: that many elements from a place on.

    size: as the extent of a dimension is declared; it stays so when a program is bound, as extents do.
    """

    start: Scalar
    size: Scalar


@dataclass(frozen=True, kw_only=True)
class Lookup(Scalar):
    """An entry of an index tensor, or a row of entries of a table if one coordinate is `:`.

    launch: the tensor is not a table, so the value is known only when a kernel runs. Kernels clamp it to its bound.
    """

    table: str
    coords: tuple[Scalar | Whole, ...]
    launch: bool = False


@dataclass(frozen=True, kw_only=True)
class Coordinate(Scalar):
    """The coordinate, along a dimension of its tensor, of the element that a declaration is about.

    name: that of the axis in the declaration, None if it has none.
    """

    dim: int
    name: str | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class Choose(Scalar):
    """The constant `values[selector]`, for example of an explicit permutation."""

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
    """Return `left op right` with constants and neutral elements folded."""
    divides = op not in ("//", "%") or right != const(0)  # a division by zero is kept, to be refused with its location
    if isinstance(left, Int) and isinstance(right, Int) and divides:
        of_numbers = {"min": min, "max": max}.get(op, _BINARY[op])  # those of arrays end at 64 bits
        return const(int(of_numbers(left.value, right.value)))
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
    """Return the direct operands of an expression."""
    match expr:
        case Binary(left=a, right=b) | Compare(left=a, right=b):
            return (a, b)
        case Logic(args=args):
            return args
        case Lookup(coords=coords):
            return tuple(c for c in coords if isinstance(c, Scalar))
        case Choose(selector=s):
            return (s,)
        case Block(start=start):
            return (start,)
        case _:
            return ()


def walk(expr: Scalar) -> list[Scalar]:
    """Return the expression and all its subexpressions, in preorder."""
    nodes = [expr]
    for child in children(expr):
        nodes.extend(walk(child))
    return nodes


def indices_in(*exprs: Scalar | Whole | None) -> set[str]:
    """Return the names of the indices in expressions. `:` has none, and neither has what is not there."""
    return {e.name for expr in exprs if isinstance(expr, Scalar) for e in walk(expr) if isinstance(e, Index)}


def rewrite(expr: Scalar, change: Callable[[Scalar], Scalar | None]) -> Scalar:
    """Replace, top down, each node for which `change` returns something.

    An operation whose operands did not change is returned as it is, not simplified.
    """
    new = change(expr)
    if new is not None:
        return new
    match expr:
        case Binary(op=op, left=a, right=b):
            left, right = rewrite(a, change), rewrite(b, change)
            return expr if left is a and right is b else binary(op, left, right)
        case Compare(op=op, left=a, right=b):
            return Compare(op=op, left=rewrite(a, change), right=rewrite(b, change), location=expr.location)
        case Logic(op=op, args=args):
            return Logic(op=op, args=tuple(rewrite(a, change) for a in args), location=expr.location)
        case Lookup(coords=coords):
            new_coords = tuple(rewrite(c, change) if isinstance(c, Scalar) else c for c in coords)
            same = all(a is b for a, b in zip(coords, new_coords, strict=True))
            return expr if same else replace(expr, coords=new_coords)
        case Choose(selector=s, values=values):
            return Choose(selector=rewrite(s, change), values=values)
        case Block(start=start):
            return replace(expr, start=rewrite(start, change))
        case _:
            return expr


def is_gather(coord: object) -> TypeGuard[Lookup]:
    """True if a coordinate is a row of a table, `table[:]`, which selects several elements."""
    return isinstance(coord, Lookup) and any(isinstance(c, Whole) for c in coord.coords)


def at_launch(expr: Scalar) -> bool:
    """True if the value of an expression is known only when a kernel runs."""
    return any(isinstance(e, Lookup) and e.launch for e in walk(expr))


def substitute(expr: Scalar, indices: Mapping[str, Scalar]) -> Scalar:
    """Replace indices by expressions."""
    return rewrite(expr, lambda e: indices.get(e.name) if isinstance(e, Index) else None)


def mentions_rank(expr: Scalar, rank_indices: frozenset[str]) -> bool:
    """True if the expression contains `rank` or an index over the ranks, except inside a table lookup."""
    if isinstance(expr, Lookup):
        return False
    is_rank = isinstance(expr, Rank) or (isinstance(expr, Index) and expr.name in rank_indices)
    return is_rank or any(mentions_rank(child, rank_indices) for child in children(expr))


@dataclass(frozen=True, kw_only=True)
class Env:
    """Values of the variables of an expression: ints, or integer arrays that broadcast together."""

    rank: Any
    ranks: int
    params: Mapping[str, Any]
    indices: Mapping[str, Any]
    tables: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """Table name -> int array of shape [ranks, *table shape]."""


def evaluate(expr: Scalar, env: Env) -> Any:
    """Return the value of an expression: an int, or an array if the environment holds arrays."""
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
