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
    """A schedule that was judged, and its cost in seconds.

    candidate: its point, or the one that is nearest to a declared schedule. trial: its number, from 1, refused points
    counted. at: when it was done, in seconds from the begin of the search.
    """

    candidate: Candidate
    schedule: Schedule
    seconds: float
    trial: int
    at: float
    declared: bool = False


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search has tried, in the order of its trials, and why it refused the rest."""

    space: Space
    tried: tuple[Tried, ...]
    refused: Mapping[str, int]
    elapsed: float

    @property
    def size(self) -> int:
        """How many points the space has."""
        return self.space.size

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

    The space's declared schedules are judged first, whatever the budget, and count as trials. A point that comes again
    costs nothing; a strategy that proposes nothing new for PATIENCE times is taken as done.
    The same arguments without budget_s find the same, always. progress is called after every trial, with None for a
    refused point.
    """
    judge = _Judge(space, cost, progress)
    for schedule, nearest in zip(space.declared, space.seeds, strict=True):
        judge(nearest, schedule)
    known: dict[Candidate, float | None] = {}
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
            late = budget_s is not None and judge.elapsed > budget_s
            if late or (trials is not None and judge.trials >= trials):
                break
            known[candidate] = judge(candidate)
        judged = known[candidate]
    return Found(space=space, tried=tuple(judge.tried), refused=dict(space.refused), elapsed=judge.elapsed)


class _Judge:
    """Asks for plans and costs, and keeps what came of it."""

    def __init__(self, space: Space, cost: Cost, progress: Callable[[Tried | None], None] | None) -> None:
        self._space, self._cost, self._progress = space, cost, progress
        self._begin = time.monotonic()
        self.trials, self.tried = 0, list[Tried]()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begin

    def __call__(self, candidate: Candidate, declared: Schedule | None = None) -> float | None:
        """The cost of a point, or of a declared schedule near to it, in seconds; None if it is refused."""
        schedule = declared or self._space.schedule(candidate)
        plan = self._space.plan_of(candidate.program, schedule)
        seconds = None if plan is None else self._cost(plan)
        self.trials += 1
        one = None
        if seconds is not None:
            one = Tried(
                candidate=candidate, schedule=schedule, seconds=seconds, trial=self.trials, at=self.elapsed,
                declared=declared is not None,
            )  # fmt: skip
            self.tried.append(one)
        if self._progress is not None:
            self._progress(one)
        return seconds
