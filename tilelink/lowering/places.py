"""The exact elements that an access names, including those that do not exist and the rows that a table chooses.

The rules take an access as boxes inside of its tensor. An access that is no such box is a fault, which coverage
refuses: an element outside of its tensor, an entry outside of its table, a row that one statement writes twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from tilelink.errors import Location
from tilelink.ir.intervals import Range
from tilelink.ir.mapping import TileMap
from tilelink.ir.scalar import Binary, Env, Int, Lookup, Scalar, children, evaluate
from tilelink.lowering.columns import Ints, expand
from tilelink.lowering.hulls import hull

Bools = NDArray[np.bool_]
DECIDED = "a condition does not narrow what entries may be: take a remainder, (n + M - 1) % M, or a range (i: M[: n])"
"""Remedy for a place outside its tensor that a launch decides."""
GUARD = "guard the statement with an if, or shift it"
"""Usual remedy for a fault."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One execution of a statement that accesses an element which does not exist.

    hint: the remedy. location: of the part of the statement that is wrong, None for all of it.
    """

    task: int
    statement: int
    message: str
    hint: str
    location: Location | None = None


def box(lo: Ints, hi: Ints, dims: int) -> str:
    """Return elements as slices of a tensor, for example `[0:1, 16:32]`."""
    return "[" + ", ".join(f"{lo[d]}:{hi[d]}" for d in range(dims)) + "]"


def partial(exprs: Iterable[Scalar]) -> Iterator[Lookup | Binary]:
    """Yield the parts of expressions that may be undefined, look-ups and divisions, inner ones first."""
    for expr in exprs:
        yield from _inner_first(expr)


def _inner_first(expr: Scalar) -> Iterator[Lookup | Binary]:
    for child in children(expr):
        yield from _inner_first(child)
    match expr:
        case Lookup():
            yield expr
        case Binary(op="//" | "%", right=divisor) if not isinstance(divisor, Int) or not divisor.value:
            yield expr
        case _:
            pass


def divides(quotient: Binary, env: Env, rows: int) -> Bools:
    """Return True for each row whose divisor is not zero: [rows]."""
    return np.broadcast_to(np.asarray(evaluate(quotient.right, env)) != 0, (rows,))


def in_table(lookup: Lookup, env: Env, rows: int) -> tuple[Bools, Ints]:
    """Return True for each row whose look-up names an entry in its table, [rows], and the coordinates, [rows, dims]."""
    shape = env.tables[lookup.table].shape[1:]
    where = np.zeros((rows, len(shape)), np.int64)
    for d, coord in enumerate(lookup.coords):
        if isinstance(coord, Scalar):
            where[:, d] = evaluate(coord, env)
    return np.all((where >= 0) & (where < np.array(shape)), axis=1), where


def reach(
    tile_map: TileMap, env: Env, lo: Ints, hi: Ints, entries: Mapping[str, Range] | None = None
) -> tuple[Bools, Ints]:
    """Return True for each row whose access leaves its tensor, and the end (exclusive) of the elements that it names.

    lo, hi: [rows, dims], the elements that exist. An empty box leaves no tensor. entries: of index tensors.
    """
    ends, leaves, empty = hi.copy(), np.zeros(len(lo), bool), np.zeros(len(lo), bool)
    for d, span in enumerate(tile_map.spans):
        if not span.inside:
            ends[:, d] = hull(span.reach, env, entries or {})[1]
        empty |= ends[:, d] <= lo[:, d]
        leaves |= (lo[:, d] < 0) | (ends[:, d] > span.extent)
    return leaves & ~empty, ends


def chosen(lookup: Lookup, env: Env, rows: int) -> tuple[Ints, Ints, Ints, Bools]:
    """Return the entries of a look-up with a `:` as runs of consecutive ones.

    The arrays are the row of each run, its first entry and the end (exclusive), and for each row True if an entry
    occurs twice.
    """
    places = np.concatenate([np.broadcast_to(env.rank, rows)[:, None], in_table(lookup, env, rows)[1]], axis=1)
    distinct, which = np.unique(places, axis=0, return_inverse=True)
    where = (distinct[:, d + 1] if isinstance(c, Scalar) else slice(None) for d, c in enumerate(lookup.coords))
    entries = np.asarray(env.tables[lookup.table][(distinct[:, 0], *where)], np.int64)
    row, first, last, twice = _runs(entries.reshape(len(distinct), prod(entries.shape[1:])))
    begin = np.searchsorted(row, np.arange(len(distinct) + 1))
    source, at = expand(begin[which.ravel()][:, None], begin[which.ravel() + 1][:, None], (len(row),))
    return source, first[at], last[at], twice[which.ravel()]


def _runs(entries: Ints) -> tuple[Ints, Ints, Ints, Bools]:
    """Return the runs in entries [rows, n]: row, first entry, end (exclusive); and a mask of rows that repeat one."""
    ordered = np.sort(entries, axis=1)
    step = np.diff(ordered, axis=1)
    begins = np.ones(ordered.shape, bool)
    begins[:, 1:] = step > 1
    ends = np.ones(ordered.shape, bool)
    ends[:, :-1] = begins[:, 1:]
    row = np.nonzero(begins)[0]
    return row, ordered[begins], ordered[ends] + 1, (step == 0).any(axis=1)
