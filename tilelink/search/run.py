"""A search run: a strategy proposes points, a cost function rates them, and all trials are recorded."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Any, Literal, Protocol

from tilelink.errors import CostError, ProgressError, SearchError, foreign
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import Plan
from tilelink.scheduling.schedule import Schedule
from tilelink.search import processes
from tilelink.search.points import Candidate, Points
from tilelink.search.space import Space
from tilelink.search.strategies import Strategy

ALONE_S = 1.0
"""Seconds of a search after which other processes are forked: a short one does not pay for them."""

PATIENCE = 10_000
"""Consecutive proposals that were all tried before, after which a search ends."""

DECLARED_SHARE, DECLARED_S = 0.5, 10.0
"""The fraction of a search's seconds that declared schedules may take, and the seconds that they may always take."""
NO_TIME = "no time for so many tiles"
"""The reason that is counted for declared schedules that would take longer."""

SETTLED = 8
"""The trials after which the best so far is proved first, and again at twice as many, and so on."""

SLOWER = "far slower than the best"
"""The reason that is counted for points without a cost."""

_log = logging.getLogger("tilelink.search")

Ended = Literal["trials", "seconds", "strategy", "points", "interrupt"]

Cost = Callable[[Plan], float | None]
"""The cost of a verified plan, in seconds; None for one that is so much slower than others that it does not matter."""
Guess = Callable[[Bound], float | None]
"""The cost of a program that is not proved; infinity for one that is far slower; None if that takes a plan to say."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A schedule that was rated, and its cost in seconds.

    candidate: its point, or the point that is nearest to a declared schedule. trial: its number, from 1; refused points
    count. at: the time of the trial, in seconds from the start of the search. proved: False if nobody asked whether it
    is safe, since others were faster.
    """

    candidate: Candidate
    schedule: Schedule
    seconds: float
    trial: int
    at: float
    declared: bool = False
    proved: bool = True


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of a search: the schedules tried, in the order of the trials, and the refused ones by reason.

    ended: the budget that was spent first: trials, seconds, the strategy's proposals or the points; or "interrupt".
    """

    space: Space
    tried: tuple[Tried, ...]
    refused: Counter[str]
    elapsed: float
    ended: Ended = "strategy"

    @property
    def size(self) -> int:
        """Number of points of the space."""
        return self.space.size

    @property
    def ranking(self) -> tuple[Tried, ...]:
        """The schedules tried that were proved, best first; of equal costs the one that was tried first."""
        return tuple(one for one in self.rated if one.proved)

    @property
    def rated(self) -> tuple[Tried, ...]:
        """The schedules tried, best first. `Space.plan_of` asks whether one is safe that was not proved."""
        return tuple(sorted(self.tried, key=lambda trial: trial.seconds))

    def progress(self) -> list[Tried]:
        """Return the trials that were better than all before them: the curve of the best so far."""
        line: list[Tried] = []
        for trial in self.tried:
            if not line or trial.seconds < line[-1].seconds:
                line.append(trial)
        return line


def search(
    space: Space,
    cost: Cost,
    strategy: Strategy,
    *,
    guess: Guess | None = None,
    budget_s: float | None = None,
    trials: int | None = None,
    seed: int = 0,
    progress: Callable[[Tried | None], None] | None = None,
    keep_interrupted: bool = False,
    incumbent: Callable[[float], None] | None = None,
    jobs: int = 1,
) -> Found:
    """Search until the strategy's proposals, the seconds, the trials or the points are spent, and return the result.

    guess: what a point costs, before there is a plan of it. A point is then planned and proved only if it is declared,
    or the best when the number of trials has doubled and in the end. Once one of these was refused, all that are better
    than those before them are proved at once.
    trials: distinct points, including refused ones. The space's declared schedules are rated first, in the order of
    their numbers of tiles, and count as trials. A declared schedule is left out if it would exceed both DECLARED_S
    seconds and DECLARED_SHARE of the budget. A point that is proposed again costs nothing. The strategy counts as done
    after PATIENCE consecutive proposals that are not new.

    Without budget_s, the same arguments always give the same result. progress is called after every trial, with None
    for a refused point. keep_interrupted: an interrupt (Ctrl-C) ends the search, and the result so far is returned.
    incumbent: is called before a point is rated, in the process that rates it, with the cost of the best point that
    there was when it was proposed, or infinity.
    jobs: processes that rate what the strategy proposes together, forked from this one after ALONE_S seconds. The
    result does not depend on how many there are. If one is killed, this one goes on alone.

    Raises SearchError if budget_s is not a number of seconds or the strategy proposes something other than a point,
    and CostError if a cost is not a finite number of seconds.
    """
    if budget_s is not None and not budget_s >= 0:
        raise SearchError(f"a search of {budget_s!r} s", hint="give seconds, 0 or more, or None for no limit")
    judge = _Judge(space, cost, guess, progress, budget_s, trials, incumbent, jobs)
    known: dict[Candidate, float | None] = {}
    try:
        ended = _declared(space, judge, budget_s, known) or walk(space, judge, strategy, seed, known, judge.next)
    except KeyboardInterrupt:
        if not keep_interrupted:
            raise
        ended = "interrupt"
    finally:
        judge.close()
    judge.settle()
    return Found(
        space=space, tried=tuple(judge.tried), refused=Counter(space.refused), elapsed=judge.elapsed, ended=ended
    )  # fmt: skip


def _begun(strategy: Strategy, space: Points, seed: int) -> Generator[Candidate | tuple[Candidate, ...], Any]:
    with foreign(f"the strategy {_name(strategy)} failed", SearchError):
        proposals = strategy(space, Random(seed))
    if not isinstance(proposals, Generator):  # pyright: ignore[reportUnnecessaryIsInstance] - strategies need not be typed
        raise SearchError(
            f"{_name(strategy)} is not a strategy: it returns {type(proposals).__name__}", hint="yield points"
        )
    return proposals


def _name(strategy: object) -> str:
    return getattr(strategy, "__name__", repr(strategy))


def _declared(
    space: Space, judge: _Judge, budget_s: float | None, known: dict[Candidate, float | None]
) -> Ended | None:
    """Rate the declared schedules as far as time allows. Return the budget that is spent with them, if any is.

    known: gets the costs of those that are points.
    """
    pairs = [(space.tiles(near.program, one), one, near) for one, near in zip(space.declared, space.seeds, strict=True)]
    done = 0.0
    for tiles, schedule, nearest in sorted(pairs, key=lambda pair: pair[0]):
        needed = judge.elapsed * (1 + tiles / done) if done and tiles < inf else 0.0
        if budget_s is not None and needed > max(DECLARED_S, DECLARED_SHARE * budget_s):
            space.refused[NO_TIME] += 1
            continue
        if judge.spent == "trials":
            return "trials"
        judge.next(())
        seconds = judge(nearest, schedule)
        if space.schedule(nearest) == schedule:
            known[nearest] = seconds
        done += tiles if tiles < inf else 0.0
    return None


class Judge(Protocol):
    """Rates points. spent: the budget that is spent, or None."""

    @property
    def spent(self) -> Ended | None: ...

    def __call__(self, candidate: Candidate, /) -> float | None: ...


def walk(
    space: Points,
    judge: Judge,
    strategy: Strategy,
    seed: int,
    known: dict[Candidate, float | None] | None = None,
    ahead: Callable[[Sequence[Candidate]], None] | None = None,
) -> Ended:
    """Rate what a strategy proposes until it, the points or the judge's budget are spent. Return why it ended.

    known: costs of points that were rated before. ahead: is called with the new ones of the points that are proposed
    together, which are then rated in order. Raises SearchError for a proposal that is no point.
    """
    proposals = _begun(strategy, space, seed)
    known, begun = known or {}, False
    judged: float | tuple[float | None, ...] | None = None
    repeated = 0
    while repeated < PATIENCE and len(known) < space.size:
        try:
            with foreign(f"the strategy {_name(proposals)} failed", SearchError):
                proposed = proposals.send(judged) if begun else next(proposals)
        except StopIteration:
            return "strategy"
        begun = True
        together = proposed if isinstance(proposed, tuple) else (proposed,)
        for candidate in together:
            space.check(candidate)
        new = [candidate for candidate in dict.fromkeys(together) if candidate not in known]
        repeated = 0 if new else repeated + max(1, len(together))
        if ahead is not None:
            ahead(new)
        for candidate in new:
            if ended := judge.spent:
                return ended
            known[candidate] = judge(candidate)
        judged = tuple(known[candidate] for candidate in together)
        if proposed is not together:
            judged = judged[0]
    return "points" if len(known) >= space.size else "strategy"


class _Judge:
    """Makes plans, asks for their costs, and records the trials."""

    def __init__(
        self, space: Space, cost: Cost, guess: Guess | None, progress: Callable[[Tried | None], None] | None,
        budget_s: float | None, trials: int | None, incumbent: Callable[[float], None] | None, jobs: int,
    ) -> None:  # fmt: skip
        self._space, self._cost, self._guess, self._progress = space, cost, guess, progress
        self._begin, self._budget_s, self._most = time.monotonic(), budget_s, trials
        self.trials, self.tried = 0, list[Tried]()
        self._settled, self._refused = SETTLED, False
        self._incumbent, self._best = incumbent, inf
        self._jobs, self._pool = jobs, None
        self._asked = dict[Candidate, Future[Any]]()
        self._known_there = frozenset[int]()

    @property
    def spent(self) -> Ended | None:
        """The budget that is spent, trials or seconds, or None."""
        if self._most is not None and self.trials >= self._most:
            return "trials"
        return "seconds" if self._budget_s is not None and self.elapsed > self._budget_s else None

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begin

    def next(self, candidates: Sequence[Candidate]) -> None:
        """Let processes rate what is asked next. Its limits depend on what was rated before all of it."""
        self._best = min((one.seconds for one in self.tried), default=inf)
        left = candidates if self._most is None else candidates[: max(0, self._most - self.trials)]
        if self._pool is None and self.tried and self._jobs > 1 < len(left) and self.elapsed > ALONE_S:
            # What the first rating of a program finds out for the others, these processes do not tell one another.
            self._known_there = frozenset(one.candidate.program for one in self.tried)
            self._pool = processes.forked(self._jobs, self._apart)
        if self._pool is not None:
            try:
                there = [one for one in left if one.program in self._known_there]
                self._asked = {one: processes.asked(self._pool, one, self._best) for one in there}
            except BrokenProcessPool:
                self._alone()

    def close(self) -> None:
        """End the other processes."""
        if self._pool is not None:
            processes.kill(self._pool)
        self._pool, self._asked = None, {}

    def _alone(self) -> None:
        _log.warning("a process of the search was killed, maybe for its memory: the search goes on in one process")
        self._jobs = 1
        self.close()

    def _apart(self, candidate: Candidate, best: float) -> Any:
        """In another process: return the cost of a point, whether it is proved, and what is counted of it."""
        self._space.refused.clear()
        self._space.reasons.clear()
        rated = self._rated(candidate.program, self._space.schedule(candidate), best, wanted=False)
        return rated, self._space.refused, self._space.reasons

    def _answered(self, candidate: Candidate) -> tuple[float | None, bool] | None:
        """Return what another process says of a point, or None if none was asked, or if one was killed."""
        if (asked := self._asked.pop(candidate, None)) is None:
            return None
        try:
            rated, refused, reasons = asked.result()
        except BrokenProcessPool:
            return self._alone()
        self._space.refused.update(refused)
        self._space.reasons.update(reasons | self._space.reasons)
        return rated

    def __call__(self, candidate: Candidate, declared: Schedule | None = None) -> float | None:
        """Return the cost in seconds of a point, or of a declared schedule near it; None if it is refused."""
        schedule = declared or self._space.schedule(candidate)
        answer = self._answered(candidate) if declared is None else None
        seconds, proved = answer or self._rated(
            candidate.program, schedule, self._best, wanted=declared is not None
        )  # fmt: skip
        if seconds is not None and self._refused and not proved and all(seconds < one.seconds for one in self.tried):
            proved = self._space.plan_of(candidate.program, schedule) is not None
            seconds = seconds if proved else None
        if seconds is not None and not 0 <= seconds < inf:
            hint = "a cost is a finite number of seconds, 0 or more"
            raise CostError(f"{schedule.name} of {schedule.program} costs {seconds!r}", hint=hint)
        self.trials += 1
        one = None
        if seconds is not None:
            one = Tried(
                candidate=candidate, schedule=schedule, seconds=seconds, trial=self.trials, at=self.elapsed,
                declared=declared is not None, proved=proved,
            )  # fmt: skip
            self.tried.append(one)
        if self.trials >= self._settled:
            self._settled *= 2
            self.settle()
        if self._progress is not None:
            self._progress(one)
        return seconds

    def settle(self) -> None:
        """Prove the best that was tried; as long as one is refused, the next best."""
        while self.tried and not (best := min(self.tried, key=lambda one: one.seconds)).proved:
            number = self.tried.index(best)
            bound = self._space.bound_of(best.candidate.program, best.schedule)
            if bound is not None and self._space.proved(bound) is not None:
                self.tried[number] = replace(best, proved=True)
            else:
                self._refused = True
                del self.tried[number]

    def _rated(self, number: int, schedule: Schedule, best: float, *, wanted: bool) -> tuple[float | None, bool]:
        """Return the cost of a program, by its number, and whether it is proved. wanted: it has to be.

        best: the cost of the best so far.
        """
        if self._incumbent is not None:
            self._incumbent(best)
        bound = self._space.bound_of(number, schedule)
        if bound is None:
            return None, False
        guessed = None
        try:
            guessed = self._guess(bound) if self._guess is not None else None
        except ProgressError as error:
            if not wanted:
                return self._space.refuse(type(error).__name__, error), False
        except MemoryError:
            return self._space.lacks_memory(), False
        seconds = None if guessed == inf else guessed
        if proved := guessed is None or wanted:
            plan = self._space.proved(bound)
            if plan is None:
                return None, False
            try:
                seconds = self._cost(plan) if guessed is None else seconds
            except MemoryError:
                return self._space.lacks_memory(), False
        if seconds is None:
            self._space.refused[SLOWER] += 1
        return seconds, proved
