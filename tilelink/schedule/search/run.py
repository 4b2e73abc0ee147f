"""A search: a strategy proposes, a cost judges, and everything that was tried is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from tilelink.schedule.plan import Plan
from tilelink.schedule.search.space import Candidate, Space
from tilelink.schedule.search.strategies import Strategy
from tilelink.schedule.values import Schedule

PATIENCE = 10_000
"""Proposals in a row that were all tried before, after which a search ends."""

Cost = Callable[[Plan], float]
"""What a verified plan costs, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A point that was judged, and its cost in seconds.

    trial: its number, from 1, refused points counted. at: when it was done, in seconds from the begin of the search.
    """

    candidate: Candidate
    schedule: Schedule
    seconds: float
    trial: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search has tried, in the order of its trials, and why it refused the rest."""

    tried: tuple[Tried, ...]
    refused: Mapping[str, int]
    size: int
    elapsed: float

    @property
    def ranking(self) -> tuple[Tried, ...]:
        """Best first; of equals the one that was tried first."""
        return tuple(sorted(self.tried, key=lambda one: one.seconds))

    def progress(self) -> list[Tried]:
        """The points that were better than all before them: the curve of the best so far."""
        line: list[Tried] = []
        for one in self.tried:
            if not line or one.seconds < line[-1].seconds:
                line.append(one)
        return line


def search(
    space: Space,
    cost: Cost,
    strategy: Strategy,
    *,
    budget_s: float | None = None,
    trials: int | None = None,
    seed: int = 0,
    progress: Callable[[Tried | None], None] | None = None,
) -> Found:
    """Tries points until strategy, seconds, trials (distinct points, refused ones too) or points are spent.

    A point that comes again costs nothing; a strategy that proposes nothing new for PATIENCE times is taken as done.
    The same arguments without budget_s find the same, always. progress is called after every trial, with None for a
    refused point.
    """
    begin = time.monotonic()
    known: dict[Candidate, float | None] = {}
    tried: list[Tried] = []
    proposals = strategy(space, Random(seed))
    judged: float | None = None
    repeated = 0
    while repeated < PATIENCE and len(known) < space.size:
        try:
            candidate = proposals.send(judged) if known else next(proposals)
        except StopIteration:
            break
        repeated = repeated + 1 if candidate in known else 0
        if not repeated:
            late = budget_s is not None and time.monotonic() - begin > budget_s
            if late or (trials is not None and len(known) >= trials):
                break
            plan = space.plan(candidate)
            seconds = known[candidate] = None if plan is None else cost(plan)
            if seconds is not None:
                at, schedule = time.monotonic() - begin, space.schedule(candidate)
                tried.append(Tried(candidate=candidate, schedule=schedule, seconds=seconds, trial=len(known), at=at))
            if progress is not None:
                progress(tried[-1] if seconds is not None else None)
        judged = known[candidate]
    elapsed = time.monotonic() - begin
    return Found(tried=tuple(tried), refused=dict(space.refused), size=space.size, elapsed=elapsed)
