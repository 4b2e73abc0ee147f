"""Random search: the baseline for every other strategy."""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import TYPE_CHECKING, Any

from tilelink.search.strategies.exhaustive import TOGETHER

if TYPE_CHECKING:
    from tilelink.search.points import Candidate, Points

PATIENCE = 1000
"""Consecutive points seen before, after which the space counts as exhausted."""


def sampling(space: Points, chance: Random) -> Generator[tuple[Candidate, ...], Any, None]:
    """Yield random points as drawn by `Space.random`, none twice."""
    seen: set[Candidate] = set()
    some: list[Candidate] = []
    missed = 0
    while missed < PATIENCE and len(seen) < space.size:
        candidate = space.random(chance)
        missed = missed + 1 if candidate in seen else 0
        if not missed:
            seen.add(candidate)
            some.append(candidate)
        if len(some) == TOGETHER:
            yield tuple(some)
            some = []
    yield tuple(some)
