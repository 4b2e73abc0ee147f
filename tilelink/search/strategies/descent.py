"""Coordinate descent: all choices of one knob after the other, from the best point so far.

It is for few trials: where most random points are refused, the neighbours of one that is not are better than those.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilelink.search.points import Candidate, Points

GAIN = 1e-3
"""Part of the cost by which a point must be better to be the next one to begin from."""
SHAKEN = 3
"""Choices of the best point that are changed at random after a pass through all knobs that gained nothing."""
STARTS = 400
"""Random points, at most, that are tried to find one that is not refused, if all seeds are."""


def descent(space: Points, chance: Random) -> Generator[Candidate | tuple[Candidate, ...], Any, None]:
    """Yield the choices of one knob of the best point after the other, the knobs in a random order."""
    best: tuple[float, Candidate] | None = None
    seeds = tuple(dict.fromkeys(space.seeds))
    for seed, cost in zip(seeds, (yield seeds), strict=True):
        if cost is not None and (best is None or cost < best[0]):
            best = (cost, seed)
    for _ in range(STARTS if best is None else 0):
        start = space.random(chance)
        cost = yield start
        if cost is not None:
            best = (cost, start)
            break
    if best is None:
        return
    here = best
    while True:
        before, order = here, range(len(space.knobs[here[1].program]))
        for at in chance.sample(order, len(order)):
            from_here = here[1]
            others = [n for n in range(len(space.knobs[from_here.program][at].labels)) if n != from_here.choices[at]]
            around = tuple(
                replace(from_here, choices=(*from_here.choices[:at], choice, *from_here.choices[at + 1 :]))
                for choice in chance.sample(others, len(others))
            )
            for there, cost in zip(around, (yield around), strict=True):
                if cost is not None and cost < here[0] * (1 - GAIN):
                    here = (cost, there)
        if here[0] < best[0]:
            best = here
        if here is before:
            there = best[1]
            for _ in range(SHAKEN):
                there = space.neighbour(there, chance)
            cost = yield there
            here = (inf if cost is None else cost, there)
