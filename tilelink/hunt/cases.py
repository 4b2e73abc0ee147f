"""The hunt: a strategy walks workloads; then the worst anomalies are shrunk to the conditions of their appearance."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from tilelink.errors import SearchError, TileLinkError
from tilelink.hunt.anomaly import LEAST, Anomaly, Rated, Subject
from tilelink.search import Candidate, Points, Strategy, walk
from tilelink.search.run import Ended

TOP = 10
"""Cases that are explained, without another number."""
REFUSED = 20
"""Proposals for each point that is to be rated, at most: others are of sizes that a program cannot have."""
WALK_SHARE = 0.6
"""Share of a hunt's seconds after which the strategy walks no more, and what it found is explained."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What a feature must be for an anomaly to appear, in words. every: whatever it is, as far as it was tried."""

    feature: str
    every: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """An anomaly, by its kind and its cause, at the simplest point at which it appears.

    worst: the largest ratio that was met. found: the number of the trial that met it first. conditions: of each
    feature; none of a case that was not explained.
    """

    subject: Subject
    anomaly: Anomaly
    choices: tuple[int, ...]
    worst: float
    found: int
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Hunted:
    """The result of a hunt: its cases, first the worst of each subject and kind; the first of them are explained.

    rated: points with a time. refused: why others have none -> how many. reasons: the first error of each of these.
    ended: the budget that was spent first.
    """

    cases: tuple[Case, ...]
    rated: int
    refused: Counter[str]
    reasons: Mapping[str, TileLinkError]
    ended: Ended
    elapsed: float


def hunt(
    subjects: Sequence[Subject],
    strategy: Strategy,
    *,
    points: int | None = None,
    budget_s: float | None = None,
    seed: int = 0,
    least: float = LEAST,
    top: int = TOP,
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Hunted:
    """Walk the workloads of subjects until so many points are rated or seconds spent; explain the worst `top` cases.

    Points that explain cases count for the seconds alone. Without budget_s the same arguments always give the same
    result. least: the ratio from which on a launch is an anomaly. progress: called before every point with what was
    done so far, in words. An interrupt (Ctrl-C) ends the walk, and leaves its cases unexplained. clock: seconds, the
    same on all ranks that hunt together.

    Raises SearchError for no subjects or no budget, and what the features of a subject raise.
    """
    if not subjects:
        raise SearchError("nothing to hunt in", hint="give a program or an operator")
    if points is None and budget_s is None:
        raise SearchError("a hunt without an end", hint="give points or seconds")
    if not least > 1:
        raise SearchError(f"an anomaly of {least:g} times", hint="a ratio above 1, such as 1.15")
    hunter = _Hunter(subjects, points, budget_s, least, progress or (lambda _: None), clock)
    try:
        ended = walk(points_of(subjects), hunter, strategy, seed)
        cases = hunter.explained(top)
    except KeyboardInterrupt:
        ended, cases = "interrupt", hunter.ranking()
    return Hunted(
        cases=tuple(cases), rated=hunter.rated, refused=hunter.refused, reasons=hunter.reasons, ended=ended,
        elapsed=hunter.elapsed,
    )  # fmt: skip


def points_of(subjects: Sequence[Subject]) -> Points:
    """Return the points of subjects, which a strategy walks."""
    return Points(
        knobs=tuple(tuple(one.features) for one in subjects),
        seeds=tuple(
            Candidate(program=number, choices=choices)
            for number, one in enumerate(subjects)
            for choices in product(*(range(len(f.labels)) if f.each else (f.plain,) for f in one.features))
        ),
    )


@dataclass(kw_only=True)
class _Met:
    """An anomaly at the worst point at which it was met so far."""

    subject: Subject
    anomaly: Anomaly
    choices: tuple[int, ...]
    found: int


class _Hunter:
    """Rates points for a strategy: the further a launch is from what it should be, the less its cost.

    An anomaly that is known attracts no more, so that the strategy goes on to others.
    """

    def __init__(
        self, subjects: Sequence[Subject], points: int | None, budget_s: float | None, least: float,
        progress: Callable[[str], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._subjects, self._points, self._budget_s, self._least = subjects, points, budget_s, least
        self._progress, self._clock, self._begin = progress, clock, clock()
        self._met, self.refused = dict[tuple[int, str, tuple[str, str]], _Met](), Counter[str]()
        self.reasons: dict[str, TileLinkError] = {}
        self.trials = self.rated = 0
        self._explaining = ""

    @property
    def elapsed(self) -> float:
        return self._clock() - self._begin

    @property
    def spent(self) -> Ended | None:
        if self._points is not None and (self.rated >= self._points or self.trials >= REFUSED * self._points):
            return "trials"
        return "seconds" if self._budget_s is not None and self.elapsed > WALK_SHARE * self._budget_s else None

    def __call__(self, candidate: Candidate, /) -> float | None:
        subject, choices = self._subjects[candidate.program], candidate.choices
        self.trials += 1
        rated = self._rated(subject, choices)
        if rated is None:
            return None
        for anomaly in rated.worst(self._least):
            key = candidate.program, anomaly.kind, anomaly.cause.key
            known = self._met.get(key)
            if known is None:
                self._met[key] = _Met(subject=subject, anomaly=anomaly, choices=choices, found=self.trials)
            elif anomaly.ratio > known.anomaly.ratio:
                known.anomaly, known.choices = anomaly, choices
        new = [a.ratio for a in rated.anomalies if (candidate.program, a.kind, a.cause.key) not in self._met]
        return 1 / max([*new, 0.5])

    def _rated(self, subject: Subject, choices: Sequence[int], *, every: bool = False) -> Rated | None:
        wanted = f" of {self._points}" if self._points is not None and not self._explaining else ""
        said = f"{self.rated}{wanted} points rated, {self.refused.total()} refused, {len(self._met)} anomalies met"
        self._progress(f"{self._explaining}{said}")
        try:
            rated = subject.rated(choices, every=every)
        except TileLinkError as error:
            self.refused[type(error).__name__] += 1
            self.reasons.setdefault(type(error).__name__, error)
            return None
        self.rated += 1
        return rated

    def ranking(self) -> list[Case]:
        """Return what was met: first the worst of each subject and kind, then the others; of these the worst first."""
        met = sorted(self._met.values(), key=lambda one: -one.anomaly.ratio)
        heads = {(id(one.subject), one.anomaly.kind): one for one in reversed(met)}
        met.sort(key=lambda one: one is not heads[id(one.subject), one.anomaly.kind])
        return [
            Case(
                subject=one.subject, anomaly=one.anomaly, choices=one.choices, worst=one.anomaly.ratio, found=one.found
            )
            for one in met
        ]  # fmt: skip

    def explained(self, top: int) -> list[Case]:
        """Return what was met, with the first `top` explained."""
        ranking = self.ranking()
        for number, case in enumerate(ranking[:top]):
            self._explaining = f"explaining case {number + 1} of {min(top, len(ranking))}: "
            ranking[number] = self._explained(case)
        return ranking

    def _explained(self, case: Case) -> Case:
        late = self._budget_s is not None and self.elapsed > self._budget_s
        if late:
            return case
        # In a sample a jump would come and go with choices that have nothing to do with it.
        return _Shrinker(case, partial(self._rated, every=case.anomaly.kind == "jump"), self._least).case()


class _Shrinker:
    """Shrinks a case to the simplest point at which it appears, and to the choices of each feature at which it does."""

    def __init__(self, case: Case, rate: Callable[[Subject, Sequence[int]], Rated | None], least: float) -> None:
        self._case, self._rate, self._least = case, rate, least
        self._features = case.subject.features
        self._known: dict[tuple[int, ...], bool | None] = {case.choices: True}

    def case(self) -> Case:
        simple = list(self._case.choices)
        for at, feature in enumerate(self._features):
            nearer = _towards(simple[at], feature.plain) if feature.ordered else []
            for choice in dict.fromkeys((feature.plain, *nearer)):
                if choice == simple[at] or self._appears(simple, at, choice):
                    simple[at] = choice
                    break
        shown = self._case.anomaly
        if tuple(simple) != self._case.choices:
            shown = self._same(self._rate(self._case.subject, simple)) or shown
        conditions = tuple(self._condition(simple, at) for at in range(len(simple)))
        return Case(
            subject=self._case.subject, anomaly=shown, choices=tuple(simple), worst=self._case.worst,
            found=self._case.found, conditions=conditions,
        )  # fmt: skip

    def _same(self, rated: Rated | None) -> Anomaly | None:
        """Return the anomaly of the same kind and cause that a launch has, or None."""
        wanted = self._case.anomaly.kind, self._case.anomaly.cause.key
        there = rated.worst(self._least) if rated is not None else []
        return next((one for one in there if (one.kind, one.cause.key) == wanted), None)

    def _appears(self, choices: Sequence[int], at: int, choice: int) -> bool | None:
        """True if the anomaly appears with another choice of a feature, None if there is no such launch."""
        key = (*choices[:at], choice, *choices[at + 1 :])
        if key not in self._known:
            rated = self._rate(self._case.subject, key)
            self._known[key] = None if rated is None else self._same(rated) is not None
        return self._known[key]

    def _condition(self, choices: Sequence[int], at: int) -> Condition:
        """Return at which choices of a feature the anomaly appears, with all others as they are.

        Of an ordered feature these are taken to be a range, whose ends are found by bisection.
        """
        feature, here, last = self._features[at], choices[at], len(self._features[at].labels) - 1
        if not feature.ordered:
            held = {choice: choice == here or self._appears(choices, at, choice) for choice in range(last + 1)}
            names = [self._said(choices, at, choice) for choice, there in held.items() if there]
            every = all(there is not False for there in held.values())
            return Condition(feature=feature.name, every=every, text=f"{feature.name} {' or '.join(names)}")
        low, below = self._end(choices, at, 0)
        high, above = self._end(choices, at, last)
        first, final = self._said(choices, at, low), self._said(choices, at, high)
        text = f"{feature.name} {first} to {final}"
        if low == high and not (below and above):
            text = f"{feature.name} {first}"
        elif above and not below:
            text = f"{feature.name} from {first} on"
        elif below and not above:
            text = f"{feature.name} up to {final}"
        return Condition(feature=feature.name, every=below and above, text=text)

    def _end(self, choices: Sequence[int], at: int, there: int) -> tuple[int, bool]:
        """Return the choice farthest towards another one up to which the anomaly appears, and True if none is known
        beyond it at which it does not: there is no such launch."""
        good, bad = choices[at], there
        if good == there or self._appears(choices, at, there):
            return there, True
        while abs(bad - good) > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if self._appears(choices, at, middle) else (good, middle)
        return good, self._appears(choices, at, bad) is None

    def _said(self, choices: Sequence[int], at: int, choice: int) -> str:
        return self._case.subject.said((*choices[:at], choice, *choices[at + 1 :]))[self._features[at].name]


def _towards(here: int, plain: int) -> list[int]:
    """Return choices between a plain one and this one, nearest to the plain one first: halves of the way."""
    found, low = list[int](), plain
    while abs(here - low) > 1:
        low = (low + here) // 2 if here > low else -(-(low + here) // 2)
        found.append(low)
    return found
