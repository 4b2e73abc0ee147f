"""Simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983), restarted after each cooling.

It begins at the cheapest of the points that are nearest to declared schedules, if there are any.
"""

from __future__ import annotations

from collections.abc import Generator
from math import exp
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilelink.search.points import Candidate, Points

HOT, COLD = 0.2, 0.005
"""Temperatures at the start and the end of a run, as a fraction of the current cost."""
STEPS = 120
"""Steps of a run."""
STARTS = 40
"""Random points, at most, that are tried to find a starting point that is not refused."""


def annealing(space: Points, chance: Random) -> Generator[Candidate | tuple[Candidate, ...], Any, None]:
    """Yield neighbours: step to a cheaper one always, and to a dearer one with a probability that falls as it cools."""
    best: tuple[float, Candidate] | None = None
    for seed, seconds in zip(space.seeds, (yield space.seeds), strict=True):
        if seconds is not None and (best is None or seconds < best[0]):
            best = (seconds, seed)
    here, cost = (best[1], best[0]) if best else (None, None)
    while True:
        if here is None:
            here, cost = yield from _begin(space, chance, best)
        if here is None or cost is None:
            return
        for step in range(STEPS):
            if best is None or cost < best[0]:
                best = (cost, here)
            temperature = HOT * (COLD / HOT) ** (step / STEPS) * cost
            there = space.neighbour(here, chance)
            seconds = yield there
            if seconds is not None and (seconds <= cost or chance.random() < exp((cost - seconds) / temperature)):
                here, cost = there, seconds
        here = None


def _begin(
    space: Points, chance: Random, best: tuple[float, Candidate] | None
) -> Generator[Candidate, float | None, tuple[Candidate | None, float | None]]:
    """Return a starting point and its cost: a random point, or with probability 1/2 the best so far."""
    if best is not None and chance.random() < 0.5:
        return best[1], best[0]
    for _ in range(STARTS):
        candidate = space.random(chance)
        cost = yield candidate
        if cost is not None:
            return candidate, cost
    return (best[1], best[0]) if best else (None, None)
