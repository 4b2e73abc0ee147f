"""Selection of the schedules to measure: no two with the same kernels, and not only near copies of the best.

The model's errors are correlated between similar schedules, so measuring another similar one gives little information.
The next schedule is chosen by Carbonell and Goldstein's maximal marginal relevance (SIGIR 1998).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from tilelink.backend.emit import emit
from tilelink.errors import TileLinkError
from tilelink.planning.plan import Plan
from tilelink.search import Found, Tried

ALIKE = 0.2
"""Penalty of similarity: a schedule without any choice in common with those taken is preferred to a near copy of one if
it is predicted to be slower by at most this fraction. It equals the model's error on some of the best schedules."""


def distinct(found: Found, count: int) -> list[Tried]:
    """Return `count` of the schedules that a search has tried, best first: the best, and different ones nearly as fast.

    Schedules with the kernels of another one, or without kernels, are left out. Of two with the same kernels a declared
    one is preferred.
    """
    left, taken, known = list(found.rated), list[Tried](), set[str]()
    while left and len(taken) < count:
        chosen = min(left, key=lambda one: one.seconds * (1 + ALIKE * _alike(one, taken)))
        left.remove(chosen)
        kernels = _kernels(found, chosen)
        if kernels is None or kernels in known:
            continue
        known.add(kernels)
        twins = (one for one in left if one.declared and one.seconds == chosen.seconds)
        taken.append(replace(next((one for one in twins if _kernels(found, one) == kernels), chosen), proved=True))
    return sorted(taken, key=lambda one: one.seconds)


def _alike(one: Tried, others: Sequence[Tried]) -> float:
    """Return the fraction of choices, 0 to 1, that a schedule has in common with the most similar of `others`."""
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
    """Return a hash of the generated kernels of a plan and of their launch. Raises EmitError if emitting fails."""
    emitted = emit(plan.bound, plan.thresholds)
    lines = [line for line in emitted.text.splitlines() if not line.lstrip().startswith("#")]
    buffers = sorted((name, tensor.buffers) for name, tensor in plan.bound.tensors.items())
    return hashlib.sha256(repr((lines, emitted.kernels, buffers)).encode()).hexdigest()
