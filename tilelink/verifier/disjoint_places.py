"""Accesses at places that a launch decides, and that share no element, whatever the entries of index tensors are.

Three theorems, of two accesses along one dimension:

* `distinct`: no two entries of an index tensor are alike. So elements that different entries of it name are different.
* `offsets` or `rising`: segments [starts[e], starts[e + 1]) of different e share no element.
* Tiles that begin at different distances from the same entry, and do not reach one another, share no element.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.scalar import Int, Lookup, Scalar
from tilelink.lowering.columns import Ints
from tilelink.lowering.guards import Guard, GuardPart, Listed, Place, Segment
from tilelink.planning.plan import Plan

Entries = tuple[str, tuple[tuple[int, int], ...]]
"""An index tensor, and a box of its entries: (first, end) of the rank that holds it, and of each dimension."""


def disjoint(plan: Plan, first: Ints, second: Ints) -> NDArray[np.bool_]:
    """Mask of the pairs of rows of the plan's accesses that share no element, by the promises of index tensors."""
    a = plan.accesses
    result = np.zeros(len(first), bool)
    rows = np.flatnonzero((a.guard[first] > 0) & (a.guard[second] > 0))
    if not len(rows):
        return result
    guards = np.stack([a.guard[first[rows]], a.guard[second[rows]]], axis=1)
    known, where = np.unique(guards, axis=0, return_inverse=True)
    apart = [_apart(plan, one, other) for one, other in known.tolist()]
    result[rows] = np.array(apart, bool)[where.ravel()]
    return result


def repeated(plan: Plan, row: int) -> str | None:
    """Return the index tensor through which an access may name an element twice; None if there is none."""
    for part in plan.guards.of(int(plan.accesses.guard[row])):
        if isinstance(part, Listed) and not _promises(plan, part.entries.table, "distinct"):
            return part.entries.table
    return None


def _apart(plan: Plan, one: int, other: int) -> bool:
    """True if the parts of two guards are apart along a dimension, by the entries that the program names, which have
    the promises, or by those that these are copies of."""
    known = plan.guards.known
    pairs = [*_pairs(known[one], known[other]), *_pairs(plan.guards.of(one), plan.guards.of(other))]
    return any(_different_entries(plan, *pair) or _different_segments(plan, *pair) for pair in pairs)


def _pairs(one: Guard, other: Guard) -> list[tuple[GuardPart, GuardPart]]:
    """Return the pairs of parts that are about one dimension."""
    every = ((ours, theirs) for ours in one for theirs in other)
    return [pair for pair in every if getattr(pair[0], "dim", None) == getattr(pair[1], "dim", -1)]


def _different_entries(plan: Plan, one: GuardPart, other: GuardPart) -> bool:
    """True if two parts name elements through different entries of a tensor without two alike."""
    ours, theirs = _entries(one), _entries(other)
    if ours is None or theirs is None or ours[0] != theirs[0] or not _promises(plan, ours[0], "distinct"):
        return False
    (rank, *boxes), (same, *others) = ours[1], theirs[1]
    return rank == same and any(
        end <= begin or last <= first for (first, end), (begin, last) in zip(boxes, others, strict=True)
    )


def _entries(part: GuardPart) -> Entries | None:
    """Return the entries that name the elements of a part, or None if a launch decides that too."""
    match part:
        case Place(at=Lookup(table=table, coords=coords)):
            points = _numbers(coords)
            return None if points is None else (table, tuple((n, n + 1) for n in points))
        case Listed(entries=Lookup(table=table, coords=coords), along=along, first=first, last=last):
            points = _numbers(coords)
            if points is None:
                return None
            boxes = [(n, n + 1) for n in points]
            boxes[along + 1] = (first, last)
            return table, tuple(boxes)
        case _:
            return None


def _numbers(coords: tuple[object, ...]) -> list[int] | None:
    numbers = [c.value for c in coords if isinstance(c, Int)]
    return numbers if len(numbers) == len(coords) else None


def _different_segments(plan: Plan, one: GuardPart, other: GuardPart) -> bool:
    """True if two parts are tiles of different segments, or different tiles of one."""
    if not isinstance(one, Segment) or not isinstance(other, Segment):
        return False
    if one.start == other.start:
        return one.offset + one.size <= other.offset or other.offset + other.size <= one.offset
    ours, theirs = _segment(one.start, one.stop), _segment(other.start, other.stop)
    if ours is None or theirs is None or ours[:2] != theirs[:2]:
        return False
    return _promises(plan, ours[0], "rising", "offsets") and ours[2] != theirs[2]


def _segment(start: Scalar, stop: Scalar | None) -> tuple[str, tuple[object, ...], int] | None:
    """Return (tensor, its coordinates but the last one, number) of a segment between two entries, None for another."""
    match start, stop:
        case Lookup(table=table, coords=(*others, Int(value=number))), Lookup(coords=(*same, Int(value=after))) if (
            stop.table == table and others == same and after == number + 1
        ):
            return table, tuple(others), number
        case _:
            return None


def _promises(plan: Plan, table: str, *words: str) -> bool:
    return not {*words}.isdisjoint(plan.bound.tensors[table].decl.properties)
