"""Regularized evolution (Real, Aggarwal, Huang and Le, AAAI 2019): the oldest member is replaced, not the worst.

The first population contains the points that are nearest to declared schedules. With probability RETURNING the best
point of a random program has a child, so that no program dies out because another one improved first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from itertools import chain
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilelink.search.points import Candidate, Points

POPULATION = 24
CONTEST = 6
"""Members drawn, of which the best has a child."""
CROSSING = 0.3
"""The fraction of the remaining children that have two parents."""
RETURNING = 0.25
"""The fraction of children that come from a program's best point."""
STARTS = 400
"""Random points, at most, that are tried for a first population."""


def evolution(space: Points, chance: Random) -> Generator[Candidate, float | None, None]:
    """Yield a child of the best of CONTEST random members; each child replaces the oldest member."""
    members: deque[tuple[float, Candidate]] = deque(maxlen=POPULATION)
    first = chain(dict.fromkeys(space.seeds), (space.random(chance) for _ in range(STARTS)))
    for candidate in first:
        cost = yield candidate
        if cost is not None:
            members.append((cost, candidate))
        if len(members) == POPULATION:
            break
    best: dict[int, tuple[float, Candidate]] = {}
    for member in members:
        _keep(best, member)
    while members:
        child = _winner(members, chance)
        if chance.random() < RETURNING:
            child = best[chance.choice(sorted(best))][1]
        elif chance.random() < CROSSING:
            child = space.cross(child, _winner(members, chance), chance)
        child = space.neighbour(child, chance)
        cost = yield child
        if cost is not None:
            members.append((cost, child))
            _keep(best, members[-1])


def _keep(best: dict[int, tuple[float, Candidate]], member: tuple[float, Candidate]) -> None:
    """Record a member if it is the best of its program."""
    number = member[1].program
    if number not in best or member[0] < best[number][0]:
        best[number] = member


def _winner(members: deque[tuple[float, Candidate]], chance: Random) -> Candidate:
    drawn = chance.sample(range(len(members)), min(CONTEST, len(members)))
    return min((members[at] for at in drawn), key=lambda member: member[0])[1]
