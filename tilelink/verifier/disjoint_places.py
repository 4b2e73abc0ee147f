"""Accesses at places that a launch decides, and that share no element, whatever the entries of index tensors are.

What makes them apart, along a dimension (tilelink/facts):

* `distinct`: no two entries of an index tensor are alike. So elements that different entries of it name are different.
* `offsets` or `rising`: segments [starts[e], starts[e + 1]) of different e share no element.
* Tiles that begin at different distances from the same entry, and do not reach one another, share no element.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilelink.facts.regions import Listed
from tilelink.lowering.columns import Ints
from tilelink.planning.plan import Plan


def disjoint(plan: Plan, first: Ints, second: Ints) -> NDArray[np.bool_]:
    """Mask of the pairs of rows of the plan's accesses that share no element, by the promises of index tensors."""
    a = plan.accesses
    result = np.zeros(len(first), bool)
    rows = np.flatnonzero((a.guard[first] > 0) & (a.guard[second] > 0))
    if not len(rows):
        return result
    guards = np.stack([a.guard[first[rows]], a.guard[second[rows]]], axis=1)
    known, where = np.unique(np.sort(guards, axis=1), axis=0, return_inverse=True)
    apart = [_apart(plan, one, other) for one, other in known.tolist()]
    result[rows] = np.array(apart, bool)[where.ravel()]
    return result


def repeated(plan: Plan, row: int) -> str | None:
    """Return the index tensor through which an access may name an element twice; None if there is none."""
    for part in plan.guards.of(int(plan.accesses.guard[row])):
        if isinstance(part, Listed) and "distinct" not in plan.bound.tensors[part.entries.table].decl.properties:
            return part.entries.table
    return None


def _apart(plan: Plan, one: int, other: int) -> bool:
    """True if two guards share no element: by the entries that the program names, which have the promises, and by those
    that these are copies of."""
    ours, theirs = ((plan.guards.known[guard], plan.guards.of(guard)) for guard in (one, other))
    return plan.guards.facts.apart(ours, theirs)
