"""Regularized evolution (Real, Aggarwal, Huang and Le, AAAI 2019): the oldest member is replaced, not the worst.

The first population contains the points that are nearest to declared schedules. With probability RETURNING the best
point of a random program has a child, so that no program dies out because another one improved first. CHILDREN have
their parents among the same members, so that several processes can rate them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from itertools import chain, islice
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilelink.search.points import Candidate, Points

POPULATION, CHILDREN = 24, 8
CONTEST = 6
"""Members drawn, of which the best has a child."""
CROSSING = 0.3
"""The fraction of the remaining children that have two parents."""
RETURNING = 0.25
"""The fraction of children that come from a program's best point."""
STARTS = 400
"""Random points, at most, that are tried for a first population."""


def evolution(space: Points, chance: Random) -> Generator[tuple[Candidate, ...], Any, None]:
    """Yield children of the best of CONTEST random members; each child replaces the oldest member."""
    members: deque[tuple[float, Candidate]] = deque(maxlen=POPULATION)
    first = chain(dict.fromkeys(space.seeds), (space.random(chance) for _ in range(STARTS)))
    best: dict[int, tuple[float, Candidate]] = {}
    # Few at first, too: those that come next are not followed further than the best so far makes sensible.
    while (left := min(CHILDREN, POPULATION - len(members))) and (some := tuple(islice(first, left))):
        _take(some, (yield some), members, best)
    while members:
        children = tuple(_child(space, members, best, chance) for _ in range(CHILDREN))
        _take(children, (yield children), members, best)


def _child(
    space: Points, members: deque[tuple[float, Candidate]], best: dict[int, tuple[float, Candidate]], chance: Random
) -> Candidate:
    child = _winner(members, chance)
    if chance.random() < RETURNING:
        child = best[chance.choice(sorted(best))][1]
    elif chance.random() < CROSSING:
        child = space.cross(child, _winner(members, chance), chance)
    return space.neighbour(child, chance)


def _take(
    some: tuple[Candidate, ...], costs: tuple[float | None, ...], members: deque[tuple[float, Candidate]],
    best: dict[int, tuple[float, Candidate]],
) -> None:  # fmt: skip
    for cost, candidate in zip(costs, some, strict=True):
        if cost is not None:
            members.append((cost, candidate))
            number = candidate.program
            if number not in best or cost < best[number][0]:
                best[number] = members[-1]


def _winner(members: deque[tuple[float, Candidate]], chance: Random) -> Candidate:
    drawn = chance.sample(range(len(members)), min(CONTEST, len(members)))
    return min((members[at] for at in drawn), key=lambda member: member[0])[1]
