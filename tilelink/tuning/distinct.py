"""Which of a search's schedules are worth measuring: no two with the same kernels, and not only twins of the best.

The model's errors are much the same for schedules that are alike, so each measurement of one more twin tells little.
What comes next is chosen as in Carbonell and Goldstein's maximal marginal relevance (SIGIR 1998).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tilelink.backend.emit import emit
from tilelink.errors import TileLinkError
from tilelink.planning.plan import Plan
from tilelink.search import Found, Tried

ALIKE = 0.2
"""How much slower a schedule may be predicted that has nothing in common with those before it, to be taken before a
twin of theirs: as far off as the model was of some of the best schedules of a shape."""


def distinct(found: Found, count: int) -> list[Tried]:
    """So many of what a search has tried, best first: the best, and what is nearly as fast but differs.

    What emits the kernels of another one, or none at all, is passed over; of two with the same kernels a declared one
    is taken.
    """
    left, taken, known = list(found.ranking), list[Tried](), set[str]()
    while left and len(taken) < count:
        chosen = min(left, key=lambda one: one.seconds * (1 + ALIKE * _alike(one, taken)))
        left.remove(chosen)
        kernels = _kernels(found, chosen)
        if kernels is None or kernels in known:
            continue
        known.add(kernels)
        twins = (one for one in left if one.declared and one.seconds == chosen.seconds)
        taken.append(next((one for one in twins if _kernels(found, one) == kernels), chosen))
    return sorted(taken, key=lambda one: one.seconds)


def _alike(one: Tried, others: Sequence[Tried]) -> float:
    """The share of choices that one has in common with the most similar of others: 0 .. 1."""
    mine = one.candidate
    same = [
        sum(a == b for a, b in zip(mine.choices, other.candidate.choices, strict=True))
        for other in others
        if other.candidate.program == mine.program
    ]
    return max(same, default=0) / max(1, len(mine.choices))


def _kernels(found: Found, one: Tried) -> str | None:
    plan = found.space.plan_of(one.candidate.program, one.schedule)
    try:
        return kernels_of(plan) if plan is not None else None
    except TileLinkError:
        return None


def kernels_of(plan: Plan) -> str:
    """A hash of what is generated of a plan, and how it is launched. Raises EmitError."""
    emitted = emit(plan.bound, plan.thresholds, dialect="triton")
    lines = [line for line in emitted.text.splitlines() if not line.lstrip().startswith("#")]
    slots = sorted((name, tensor.slots) for name, tensor in plan.bound.tensors.items())
    return hashlib.sha256(repr((lines, emitted.kernels, slots)).encode()).hexdigest()
