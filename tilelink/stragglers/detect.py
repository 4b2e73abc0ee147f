"""The detector: which part is slower than its likes, in which launches, and who only waits for it.

Three comparisons, as monitors of training clusters make them. *Between ranks*: a column is compared with those of other
ranks that do the same, after both are divided by the predicted launch, if there is one; what most ranks have in common
is taken away. *Over time*: medians of windows of launches, so that single late launches do not count, and a cause must
last for several windows; then the launches in which a part is far slower than around them, if its likes never are.
*With the plan*: what a rank does itself (computing, transfers, launching) is recorded apart from its waits for others,
so victims, which only wait, are never slow themselves.

A *suspect* is a set of columns that one cause would slow down together: the tiles of a rank or of some SMs, the
transfers of a link, of a rank's port or of its copy engine, the gaps of a host. The one that explains most is a cause;
what it explains is taken away, and the rest is searched again. Waits name a rank only if nothing else is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.lowering.columns import Ints
from tilelink.stragglers.metrics import MOVES, NUMBER, Floats, Traces, split

Bools = NDArray[np.bool_]
WINDOWS = 48
"""Windows of launches, at most."""
SHORTEST = 10
"""Launches of a window, at least."""
LASTS = 4
"""Windows that a cause lasts, at least."""
SLOWER = 0.06
"""Slowdown that is a cause, at least, as a logarithm, or in the seconds of a launch for gaps and waits."""
SLOWER_HOSTS = 0.02
"""The same for hosts: what a gap is longer than those of other ranks, the launch is longer."""
SLOWER_LINKS = 0.1
"""The same for links, whose transfers take longer if they meet others."""
LEAST = {"link": SLOWER_LINKS, "port": SLOWER_LINKS, "host": SLOWER_HOSTS}
UNLIKE = 3.0
"""How much it speaks against a suspect that its columns are not equally slow, by what speaks for it."""
SURE = 7.0
"""Standard errors by which it must exceed that."""
HEALTHY = 0.15
"""Quantile of windows that shows how fast a part is when nothing slows it down."""
BEYOND = 1.2
"""By how many times its usual scatter between launches a suspect must be slower."""
LATE = 0.15
"""Part of a launch that others wait longer for a rank that is late, at least."""
CHANGED = 0.05
"""Part of a launch by which, if most ranks take longer or shorter without their waits, waits are not compared."""
ALONE = 0.3
"""Part of a slowdown by which other ranks may change at the same time, at most, each in its own way."""
MOSTLY = 0.6
"""Part of a suspect's columns that must be slow."""
COSTS = 0.005
"""Part of a launch that a cause takes, at least."""
COSTS_TRACED = 0.05
"""The same of traced launches: records take time themselves, and clocks of copy engines are good for microseconds."""
LESSER = 0.05
"""Part of what the first cause takes that another one must take to be said."""
SHARED = 0.4
"""The same for links."""
MOST = 6
"""Causes that are searched."""
CERTAIN = 0.7
"""Confidence of a cause, at least."""
FAST = 0.97
"""Part of its calibrated rate from which no part is slow."""
ROUGHLY = 0.88
"""The same for links, if nothing changes."""
SELDOM = 8
"""Launches that are slow, at least, where a part is slow in some alone."""
AROUND = 3
"""Windows before and after that say what is usual in one."""
RARELY = 2.5
"""By how many times the slowest launches of most of its likes, as many, are to be exceeded by them."""
SLOWER_SELDOM = 0.1
"""Slowdown in them, at least, as SLOWER."""
LIKES = 0.5
"""Quantile of the likes of a part that stands for them, of which one cause may slow down several."""
USUAL, ABOVE = 0.97, 1.25
"""Quantile of the launches of its likes, and by how many times slower than that a launch is."""
LATE_SELDOM = 0.03
"""The same for hosts."""
TAIL = 4.0
"""Standard deviations of a suspect between launches beyond which one is slow."""
LONGER = 0.03
"""Part of a launch that these launches take longer, at least."""
SURE_SELDOM = 5.0
"""Standard errors by which they do."""
COSTS_SELDOM = 0.01
"""Part of the mean launch that this is, at least."""
NEGLIGIBLE = 0.05
"""Part of the seconds of the dearest transfers of a rank up to which others of it tell nothing."""
NEARLY = 0.9
"""Part of a rank's SMs from which the whole rank is slow."""


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """Columns that one cause would slow down together. columns: their places. explains: those that follow from it."""

    kind: str
    rank: int
    columns: Ints
    peer: int | None = None
    sms: tuple[int, int] | None = None
    direction: str | None = None
    stage: int | None = None
    explains: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, kw_only=True)
class Found:
    """A cause. slower: mean of the logarithm of how much longer its columns take, or of the part of a launch that they
    take longer. since, until: launches; until is None if it lasts to the end. seconds: what it costs, roughly, in each.
    share: the part of these launches that are slow.
    """

    suspect: Suspect
    slower: float
    since: int
    until: int | None
    confidence: float
    seconds: float
    share: float = 1.0


class Evidence:
    """What launches left, as how much slower each column is than it should be, in windows of launches."""

    def __init__(self, traces: Traces) -> None:
        self.traces, table = traces, traces.table
        self.metric, self.rank, self.stage, self.peer, self.sm = split(table.keys)
        self.ranks = traces.ranks
        waits = self.of("wait")
        self.values, self.counts = table.values.copy(), table.counts.astype(np.float64)
        self.values[:, waits] = np.nan_to_num(self.values[:, waits])  # a launch without waits has no number of them
        self._apart()
        self.launches = len(table.values)
        windows = max(1, min(WINDOWS, self.launches // SHORTEST))
        self.edges = np.linspace(0, self.launches, windows + 1).astype(np.int64)
        self.additive = np.isin(self.metric, [NUMBER["gap"], NUMBER["wait"], NUMBER["took"]])
        self.far = self._far()
        took = table.values[:, self.metric == NUMBER["took"]]
        self.took = float(np.nanmedian(took)) if np.isfinite(took).any() else 1.0
        self.least = COSTS_TRACED if traces.programs else COSTS

    def _apart(self) -> None:
        """Take from the gaps of each launch what most ranks have: hosts that wait for each launch begin it together."""
        own = np.flatnonzero(self.of("gap"))
        if len(own):
            common = _lower(self.values[:, own].T.astype(np.float64))
            self.values[:, own] -= np.nan_to_num(common)[:, None].astype(np.float32)

    def _far(self) -> Bools:
        """Mask of the columns of transfers between nodes."""
        machine = self.traces.machine
        entry = machine.get("node_ranks") if machine is not None else None
        node = int(entry["value"]) if isinstance(entry, dict) else self.ranks
        return np.isin(self.metric, _numbers(MOVES)) & (self.peer // node != self.rank // node)

    def of(self, *names: str) -> Bools:
        return np.isin(self.metric, _numbers(names))

    @cached_property
    def norm(self) -> NDArray[np.float32]:
        """Seconds of each column in the predicted launch; where there is none 1, or 0 of gaps and waits."""
        norm, keys = np.where(self.additive, 0.0, 1.0).astype(np.float32), self.traces.table.keys
        if (predicted := self.traces.norm) is not None and len(predicted.keys):
            at = np.minimum(np.searchsorted(predicted.keys, keys), len(predicted.keys) - 1)
            known = (predicted.keys[at] == keys) & (predicted.values[0, at] > 0)
            norm[known] = predicted.values[0, at[known]]
        return norm

    @cached_property
    def scaled(self) -> NDArray[np.float32]:
        """[launches, columns]: logarithms of the seconds, by those of the norm; of gaps and waits in launches."""
        result = np.empty_like(self.values)
        result[:, self.additive] = (self.values[:, self.additive] - self.norm[self.additive]) / self.took
        with np.errstate(divide="ignore", invalid="ignore"):
            result[:, ~self.additive] = np.log(self.values[:, ~self.additive] / self.norm[~self.additive])
        result[~np.isfinite(result)] = np.nan
        return result

    @cached_property
    def medians(self) -> Floats:
        """[columns, windows]: medians of `scaled`, NaN where nothing is known."""
        edges = zip(self.edges[:-1], self.edges[1:], strict=True)
        return np.stack([_median(self.scaled[a:b]) for a, b in edges], axis=1)

    @cached_property
    def slower(self) -> Floats:
        """[columns, windows]: by how much columns are slower than their likes, NaN where nothing is known.

        Waits, and how long launches take, are compared with other launches alone: the predicted one begins on all ranks
        at once, which launches that follow each other do not.
        """
        self.level = _low(self.medians, HEALTHY)
        self.offset = np.where(self.of("wait", "took"), self.level, self._likes(self.level))
        self.shift = self.shared(self.medians - self.level[:, None])
        return self.medians - self.offset[:, None] - self.shift

    @cached_property
    def rest(self) -> NDArray[np.float32]:
        """[launches, columns]: by how much single launches are slower than those around them; 0 if it is not known."""
        return np.nan_to_num(self.scaled - self.around(self.medians).astype(np.float32))

    def around(self, medians: Floats) -> Floats:
        """Return [launches, n], from the medians [n, windows]: those of some windows around each launch.

        So a burst of slow launches that fills a window or two stands out, and a lasting change does not.
        """
        count = medians.shape[1]
        near = [medians[:, max(0, at - AROUND) : at + AROUND + 1].T for at in range(count)]
        return np.repeat(np.stack([_median(one) for one in near]), np.diff(self.edges), axis=0)

    @cached_property
    def unexplained(self) -> Floats:
        """[waits, windows]: by how much waits are longer than in other launches, without what a host is later."""
        gaps, waits = np.flatnonzero(self.of("gap")), np.flatnonzero(self.of("wait"))
        late = np.zeros((self.launches, self.ranks))
        late[:, self.rank[gaps]] = np.nan_to_num(self.values[:, gaps])
        later = np.maximum(late[:, self.peer[waits]] - late[:, self.rank[waits]], 0.0)
        left = np.maximum(self.values[:, waits] - later, 0.0) / self.took
        each = np.stack([_median(left[a:b]) for a, b in zip(self.edges[:-1], self.edges[1:], strict=True)], axis=1)
        return each - _low(each, HEALTHY)[:, None]

    def shared(self, rest: Floats) -> Floats:
        """Return [columns, n]: what most ranks have of `rest` in common, such as another size of the work.

        It is sought for each stage, and then, if all are slower, for each SM. Of transfers it is what the faster ones
        have in common, for one rank has a part in most of them, if they are few. Most ranks may be victims, so waits
        have nothing in common.
        """
        shift = np.zeros_like(rest)
        moves, signals = self.of(*MOVES), self.of("signal")
        for own in self._classes(~(moves | signals | self.of("wait", "took")), self.metric):
            shift[own] = self._common(rest, own)
        for own in self._classes(self.of("work", "call"), self.metric, self.stage):
            if len(np.unique(self.rank[own])) > 1:
                shift[own] = self._common(rest, own)
        away = (self.peer != self.rank) & (self.ranks > 2)
        work = shift[self.of("work")].mean(axis=0) if self.of("work").any() else np.zeros(rest.shape[1])
        for own in self._classes(moves | signals, self.metric, self.stage, away, self.far):
            shift[own] = np.nan_to_num(_low(rest[own].T, 0.25))
            if self.ranks == 2 and not (self.peer[own] == self.rank[own]).any():  # one port has them all
                shift[own] = np.clip(shift[own], np.minimum(work, 0.0), np.maximum(work, 0.0))
        left = rest - shift
        for own in self._classes(self.of("work"), self.stage, self.sm):
            if len(np.unique(self.rank[own])) > 1:
                shift[own] += np.maximum(np.nan_to_num(_lower(left[own])), 0.0)
        return shift

    def _common(self, rest: Floats, own: Ints) -> Floats:
        each = [_median(rest[own[self.rank[own] == rank]]) for rank in np.unique(self.rank[own]).tolist()]
        return np.nan_to_num(_lower(np.stack(each)))

    @cached_property
    def distance(self) -> Ints:
        return np.where(self.peer >= 0, (self.peer - self.rank) % self.ranks, -1)

    def _classes(self, counted: Bools, *parts: Ints | Bools) -> Iterator[Ints]:
        """Yield the places of the columns that are alike in some parts."""
        places = np.flatnonzero(counted)
        _, of = np.unique(np.stack(parts)[:, places], axis=1, return_inverse=True)
        of = of.ravel()
        order = np.argsort(of, kind="stable")
        yield from (places[own] for own in np.split(order, np.flatnonzero(np.diff(of[order])) + 1) if len(own))

    def _likes(self, level: Floats) -> Floats:
        """Return for each column how slow its likes on other ranks are; its own level if it has none.

        Notifies of two ranks have the norm alone.
        """
        offset = level.copy()
        for own in self._classes(np.ones(len(level), np.bool_), self.metric, self.stage, self.sm, self.distance):
            if len(np.unique(self.rank[own])) > 1:
                offset[own] = _lower(level[own, None])[0]
            elif self.traces.norm is not None:
                at = own[0]
                others = self.metric == self.metric[at]
                alike = others & (self.stage == self.stage[at]) & (self.far == self.far[at])
                others = alike if len(np.unique(self.rank[alike])) > 1 else others
                offset[own] = min(float(level[at]), _lower(level[others, None])[0])
                offset[own] = np.where(self.of("signal")[own], np.minimum(offset[own], 0.0), offset[own])
        for own in self._classes(self.of(*MOVES), self.metric, self.stage, self.far):
            if self.traces.norm is not None and len(np.unique(self.rank[own])) > 1:
                offset[own] = np.maximum(offset[own], _lower(level[own, None])[0])  # one that met none is no standard
        return offset

    @cached_property
    def matters(self) -> Bools:
        """Mask of the columns whose seconds are not far less than those of the stage of a rank that has most."""
        usual, moves = np.zeros(len(self.norm)), np.flatnonzero(self.of(*MOVES))
        usual[moves] = np.nan_to_num(np.exp(_median(self.scaled[:, moves])) * self.norm[moves] * self.counts[moves])
        result = np.ones(len(usual), np.bool_)
        for own in self._classes(self.of(*MOVES), self.rank):
            result[own] = usual[own] > NEGLIGIBLE * usual[own].max()
        return result

    # Suspects --------------------------------------------------------------------------------------------------

    def suspects(self) -> Iterator[Suspect]:
        """Yield all suspects but groups of SMs."""
        work, moves = self.of("work"), self.of(*MOVES)
        inward = self.of("sm_in", "engine_in")
        source, target = np.where(inward, self.peer, self.rank), np.where(inward, self.rank, self.peer)
        engine = self.of("engine_out", "engine_in")
        away = moves & (self.peer != self.rank) & self.matters
        for rank in range(self.ranks):
            mine = self.rank == rank
            follows = np.flatnonzero(mine & (self.of("sm_out", "sm_in", "notify")))
            yield from _one("rank", rank, mine & work, explains=follows)
            stages, local = np.unique(self.stage[mine & work]).tolist(), mine & moves & ~away
            for stage in stages if len(stages) > 1 else []:
                yield from _one("rank", rank, mine & work & (self.stage == stage), stage=stage)
            for stage in stages if local.any() else []:  # what its memory does
                yield from _one("rank", rank, mine & work & (self.stage == stage) | local, stage=stage)
            if stages and local.any():
                yield from _one("rank", rank, mine & work | local)
            yield from _one("copy engine", rank, mine & (engine | self.of("call")))
            yield from _one("copy engine", rank, mine & self.of("call"))
            for call in np.unique(self.stage[mine & self.of("call")]).tolist():
                yield from _one("copy engine", rank, mine & self.of("call") & (self.stage == call))
            yield from _one("host", rank, mine & self.of("gap"))
            yield from _one("signals", rank, mine & self.of("notify"))
            if self.ranks > 2:
                yield from _one("signals", rank, self.of("signal") & (mine | (self.peer == rank)))
            for some in (away, away & self.far, away & ~self.far) if self.far.any() else (away,):
                out, into = some & (source == rank), some & (target == rank)
                for direction, own in (("out", out), ("in", into), ("both", out | into)):
                    if len(np.unique(np.where(source[own] == rank, target[own], source[own]))) > 1:
                        yield from _one("port", rank, own, direction=direction)
        for one, other, column in self._pairs():
            yield Suspect(kind="signals", rank=one, peer=other, columns=column)
        pairs = np.unique(np.stack([source[away], target[away]]), axis=1).T.tolist()
        for one, other in pairs:
            yield from _one("link", one, away & (source == one) & (target == other), peer=other)

    def _pairs(self) -> Iterator[tuple[int, int, Ints]]:
        """Yield (from, to, column) of the round trips of notifies: those of which the other rank waits longer."""
        waits = np.flatnonzero(self.of("wait"))
        longer = np.zeros(len(self.metric))
        longer[waits] = np.nan_to_num(self.slower[waits]).max(axis=1)
        for column in np.flatnonzero(self.of("signal")).tolist():
            yield *self.way(int(self.rank[column]), int(self.peer[column]), longer), np.array([column])

    def way(self, one: int, other: int, longer: Floats) -> tuple[int, int]:
        """Return two ranks so that the second one waits longer for the first, by how much longer columns are."""
        waits = self.of("wait")
        for_one, for_other = (
            float(longer[waits & (self.rank == a) & (self.peer == b)].max(initial=0.0))
            for a, b in ((other, one), (one, other))
        )
        return (other, one) if for_other > for_one else (one, other)

    @cached_property
    def sms(self) -> dict[int, tuple[Ints, NDArray[np.int64]]]:
        """rank -> (its SMs that compute, for each of its columns of work the place of the SM among them)."""
        found: dict[int, tuple[Ints, Ints]] = {}
        for rank in range(self.ranks):
            own = np.flatnonzero(self.of("work") & (self.rank == rank))
            if len(own):
                found[rank] = np.unique(self.sm[own], return_inverse=True)
        return found

    def work_of(self, rank: int) -> Ints:
        return np.flatnonzero(self.of("work") & (self.rank == rank))

    def groups(self, rank: int) -> Iterator[tuple[int, int]]:
        """Yield groups of neighbouring SMs of a rank, as (first, one past the last) of their places."""
        count, size = len(self.sms[rank][0]), 1
        while size < count:
            for first in range(0, count - size + 1, max(1, size // 2)):
                yield first, first + size
            size *= 2


def find(evidence: Evidence) -> list[Found]:
    """Return the causes, the one that costs most first; none if no part is slower than its likes for long enough.

    What a rank does itself comes first. Waits tell who is late only where nothing else is found.
    """
    every = list(evidence.suspects())
    hosts = [one for one in every if one.kind == "host"]  # their seconds are compared with those of a launch
    others = [one for one in every if one.kind != "host"]
    causes = _causes(evidence, hosts, sms=False) + _causes(evidence, others, sms=True)
    causes = [one for one in causes if one.seconds > evidence.least * evidence.took and not _fast(evidence, one)]
    if (seldom := _seldom(evidence, hosts, others)) is not None:
        causes.append(seldom)
    late = _late(evidence)
    told = late is not None and any(one.suspect.rank == late.suspect.rank for one in causes)
    if late is not None and not told and all(_shares(one) and _minor(one, late) for one in causes):
        causes.append(late)
    direct = not all(_shares(one) for one in causes)
    causes.sort(key=lambda one: -one.seconds * (SHARED if _shares(one) and direct else 1.0))
    return [one for n, one in enumerate(causes) if not (n and _minor(one, causes[0]))]


def speed(evidence: Evidence, cause: Found) -> float:
    """Return how fast a part is, in the speed of the norm; of gaps and waits, what a launch takes of its time then."""
    own = cause.suspect.columns
    if bool(evidence.additive[own].all()):
        return 1.0 / (1.0 + cause.slower)
    usual = np.nan_to_num(evidence.offset[own]) if evidence.traces.norm is not None else np.zeros(1)
    return float(np.exp(-cause.slower - usual.mean()))


def _fast(evidence: Evidence, cause: Found) -> bool:
    """True if a part is as fast as it is calibrated to be: then its likes are faster, by chance or by their work.

    Transfers that meet fewer others than those of the norm are faster; one that always takes what it should is well.
    """
    always = _shares(cause) and cause.since == evidence.traces.table.first
    return evidence.traces.norm is not None and speed(evidence, cause) > (ROUGHLY if always else FAST)


def _minor(cause: Found, first: Found) -> bool:
    """True if a cause need not be said after the first one: it takes little, or may come from it.

    Transfers share links, so a rank that comes at another time than usual changes how long those of others take.
    """
    return cause.seconds < (SHARED if _shares(cause) else LESSER) * first.seconds


def _shares(cause: Found) -> bool:
    return cause.suspect.kind in ("link", "port")


def _causes(evidence: Evidence, suspects: list[Suspect], *, sms: bool) -> list[Found]:
    """Return the causes among some suspects, and among groups of SMs."""
    left = evidence.slower.copy()
    causes: list[Found] = []
    least = SLOWER if sms else SLOWER_HOSTS
    for _ in range(MOST):
        interval = _interval(evidence, left, suspects, least, sms=sms)
        if interval is None:
            break
        suspect, slower, confidence = _best(evidence, left, suspects, *interval, sms=sms)
        if slower <= least:
            break
        since, until, scatter = _bounds(evidence, suspect, slower, interval)
        if slower > BEYOND * scatter and confidence >= CERTAIN and _differs(evidence, suspect, slower, *interval):
            causes.append(
                Found(suspect=suspect, slower=slower, since=since, until=until, confidence=confidence,
                      seconds=cost(evidence, suspect, slower))
            )  # fmt: skip
        explained = np.concatenate([suspect.columns, suspect.explains])
        left[explained] = np.minimum(left[explained], 0.0)
    return causes


def _differs(evidence: Evidence, suspect: Suspect, slower: float, a: int, b: int) -> bool:
    """True unless what other ranks compute changes too in these windows: then it is the work that changes.

    Ranks that are unlike by their plan change each in its own way, so they have little in common.
    """
    others = evidence.slower[evidence.of("work") & (evidence.rank != suspect.rank)]
    inside = np.zeros(others.shape[1], np.bool_)
    inside[a:b] = True
    if suspect.kind not in ("rank", "sms") or not len(others) or inside.all():
        return True
    changes = _median(others[:, inside].T) - _median(others[:, ~inside].T)
    return float(_mean(np.abs(changes))) < ALONE * slower


def _late(evidence: Evidence) -> Found | None:
    """Return the rank for which others wait longer than before, or None. A victim is waited for too, but waits itself.

    Where the work of all ranks changes, so do waits.
    """
    wait = np.flatnonzero(evidence.of("wait"))
    excess = np.nan_to_num(evidence.unexplained)
    by, whom = evidence.peer[wait], evidence.rank[wait]
    net = np.zeros((evidence.ranks, excess.shape[1]))
    np.add.at(net, by, excess)
    alone = np.zeros_like(net)
    np.add.at(net, whom, -excess)
    found = _slowest(net, LATE) if len(wait) else None
    if found is None or not found[0] or found[1] - found[0] < net.shape[1] / 4:
        return None
    a, b, _ = found
    for rank in range(evidence.ranks):
        took = np.flatnonzero(evidence.of("took") & (evidence.rank == rank))
        alone[rank] = np.nan_to_num(evidence.slower[took]).sum(axis=0) - excess[whom == rank].max(axis=0, initial=0.0)
    inside = np.zeros(net.shape[1], np.bool_)
    inside[a:b] = True
    changed = _lower(np.median(alone[:, inside], axis=1)[:, None] - np.median(alone[:, ~inside], axis=1)[:, None])
    shared = evidence.shift[~evidence.of("wait", "took")]
    drift = np.abs(shared[:, inside].mean(axis=1) - shared[:, ~inside].mean(axis=1)).mean() if len(shared) else 0.0
    rank = int(np.argmax(net[:, a:b].mean(axis=1)))
    suspect = Suspect(kind="late", rank=rank, columns=wait[by == rank])
    slower = float(excess[by == rank][:, a:b].mean(axis=1).max())
    since, until, scatter = _bounds(evidence, suspect, slower, (a, b))
    if since == evidence.traces.table.first or slower <= BEYOND * scatter:
        return None
    if max(abs(float(changed[0])), float(drift)) > CHANGED:
        return None
    sure = float(net[rank, a:b].mean() / max(float(_spread(net[[rank]])[0]), 1e-3) * np.sqrt(b - a))
    confidence = round(float(1.0 - np.exp(-sure / 8)) * 0.9, 3)
    if confidence < CERTAIN:
        return None
    return Found(suspect=suspect, slower=slower, since=since, until=until, seconds=slower * evidence.took,
                 confidence=confidence)  # fmt: skip


def _seldom(evidence: Evidence, hosts: list[Suspect], others: list[Suspect]) -> Found | None:
    """Return what is slow in some launches alone, or None: medians of windows do not see it.

    The launches are those in which some suspect is far slower than around them, more often than its likes on other
    ranks. The cause is what explains most in them. What it costs is how much longer they take.
    """
    launches, rest = evidence.launches, evidence.rest
    period = np.zeros(launches)
    for name in ("took", "gap"):
        own = evidence.of(name)
        period += np.nan_to_num(evidence.values[:, own]).sum(axis=1) / max(1, int(own.sum())) / evidence.took
    usual = [float(np.median(period[a:b])) for a, b in zip(evidence.edges[:-1], evidence.edges[1:], strict=True)]
    period -= evidence.around(np.array([usual]))[:, 0]
    for slow in _tails(evidence, [*hosts, *others])[:MOST]:
        longer = float(np.median(period[slow]) - np.median(period[~slow]))
        noise = float(np.median(np.abs(period)) / 0.6745 * 1.25 / np.sqrt(slow.sum()))
        begin, end = _dense(slow)
        share = float(slow[begin:end].mean())
        if longer < max(LONGER, SURE_SELDOM * noise) or longer * share < max(COSTS_SELDOM, evidence.least):
            continue
        if end - begin < launches // 10:
            continue
        delta = np.median(rest[slow], axis=0).astype(np.float64)[:, None]
        delta -= evidence.shared(delta)
        host = max(hosts, key=lambda one: float(delta[one.columns].mean()), default=None)
        late = 0.0 if host is None else float(delta[host.columns].mean())
        suspect, slower, _ = _best(evidence, delta, others, 0, 1, sms=True)
        if host is not None and late > longer / 2:
            suspect, slower = host, late
        if slower <= LEAST.get(suspect.kind, SLOWER):
            continue
        if suspect.kind == "signals" and suspect.peer is not None:
            first_rank, peer = evidence.way(suspect.rank, suspect.peer, delta[:, 0])
            suspect = replace(suspect, rank=first_rank, peer=peer)
        near, first = max(2, launches // 50, round(2 / share)), evidence.traces.table.first
        return Found(
            suspect=suspect, slower=slower, since=first + (0 if begin < near else begin), share=share,
            until=None if end >= launches - near else first + end, seconds=longer * share * evidence.took,
            confidence=round(min(0.999, 1.0 - float(np.exp(-longer / max(noise, 1e-3) / 4))), 3),
        )  # fmt: skip
    return None


def _tails(evidence: Evidence, suspects: list[Suspect]) -> list[Bools]:
    """Return masks of launches in which a suspect is far slower than around them, more so than its likes ever are.

    The surest ones come first.
    """
    launches = evidence.launches
    tails: list[tuple[float, Bools]] = []
    for kind, series in _alike(evidence, suspects):
        common = np.maximum(np.quantile(series, 0.25, axis=0, method="lower"), 0.0) if len(series) > 1 else 0.0
        own = series - common
        scatter = np.maximum(np.median(np.abs(own), axis=1) / 0.6745, 0.005)
        least = LATE_SELDOM if kind == "host" else SLOWER_SELDOM
        usual = np.quantile(own, USUAL, axis=1)
        likes = [np.quantile(np.delete(usual, n), LIKES) if len(own) > 1 else 0.0 for n in range(len(own))]
        slow = own > np.maximum(np.maximum(least, TAIL * scatter), np.array(likes) * ABOVE)[:, None]
        counts = slow.sum(axis=1)
        highest = np.cumsum(np.sort(own, axis=1)[:, ::-1], axis=1)
        for n in np.flatnonzero((counts >= SELDOM) & (counts < launches / 2)).tolist():
            likes = np.delete(highest[:, counts[n] - 1], n)
            if len(likes) and highest[n, counts[n] - 1] < RARELY * np.quantile(likes, LIKES, method="lower"):
                continue
            tails.append((float(own[n, slow[n]].sum() / scatter[n]), slow[n]))
    return [slow for _, slow in sorted(tails, key=lambda one: -one[0])]


def _alike(evidence: Evidence, suspects: list[Suspect]) -> Iterator[tuple[str, Floats]]:
    """Yield (kind, [suspects, launches]) of those that are alike on other ranks: how much slower each launch is."""
    groups: dict[tuple[Any, ...], list[Floats]] = {}
    for one in suspects:
        metrics = tuple(np.unique(evidence.metric[one.columns]).tolist())
        own = np.median(evidence.rest[:, one.columns], axis=1)
        groups.setdefault((one.kind, metrics, one.stage, one.direction), []).append(own)
    for rank, (names, place) in evidence.sms.items():
        each = _by_place(evidence.rest[:, evidence.work_of(rank)].T.astype(np.float64), place)
        sums = np.concatenate([np.zeros((1, each.shape[1])), np.cumsum(each, axis=0)])
        for a, b in evidence.groups(rank):
            if b - a >= len(names) / 32:
                groups.setdefault(("sms", b - a), []).append((sums[b] - sums[a]) / (b - a))
    yield from ((key[0], np.stack(each)) for key, each in groups.items())


def _dense(slow: Bools) -> tuple[int, int]:
    """Return the launches (first, one past the last) among which there are most slow ones."""
    begin, end = 0, len(slow)
    for _ in range(2):
        total = np.concatenate([[0.0], np.cumsum(slow - slow[begin:end].mean() / 2)])
        low = np.minimum.accumulate(total)
        end = int(np.argmax(total - low))
        begin = int(np.flatnonzero(total[: end + 1] == low[end])[-1])
    return begin, end


def _slowest(series: Floats, least: float) -> tuple[int, int, float] | None:
    """Return the windows (first, one past the last) in which some series is slow most surely, and how surely."""
    windows = series.shape[1]
    spread = np.maximum(_spread(series), 1e-3)
    grid = np.unique(np.linspace(0, windows, min(windows, 16) + 1).astype(np.int64))
    total = np.concatenate([np.zeros((len(series), 1)), np.cumsum(series, axis=1)], axis=1)
    best, chosen = SURE, None
    for a in grid.tolist():
        for b in grid[grid >= a + LASTS].tolist():
            mean = (total[:, b] - total[:, a]) / (b - a)
            sure = np.where(mean > least, mean / spread * np.sqrt(b - a), 0.0)
            if sure.max(initial=0.0) > best:
                best = float(sure.max())
                chosen = (a, b, best)
    return chosen


def _interval(
    evidence: Evidence, left: Floats, suspects: list[Suspect], least: float, *, sms: bool
) -> tuple[int, int] | None:
    """Return the windows in which some suspect is slow most surely, or None if no suspect is slow."""
    means = [_mean(left[one.columns]) for one in suspects]
    for rank, (_, place) in evidence.sms.items() if sms else ():
        each = _by_place(left[evidence.work_of(rank)], place)
        sums = np.concatenate([np.zeros((1, each.shape[1])), np.cumsum(each, axis=0)])
        means += [(sums[b] - sums[a]) / (b - a) for a, b in evidence.groups(rank)]
    if not means:
        return None
    found = _slowest(np.nan_to_num(np.concatenate([np.atleast_2d(own) for own in means])), least)
    return None if found is None else found[:2]


def _best(
    evidence: Evidence, left: Floats, suspects: list[Suspect], a: int, b: int, *, sms: bool
) -> tuple[Suspect, float, float]:
    """Return the suspect that explains most of what is slow in some windows, how slow it is, and how sure that is."""
    mean = np.nan_to_num(_mean(left[:, a:b].T))
    every = [*suspects, *(_group(evidence, mean, rank) for rank in evidence.sms if sms)]
    gains = np.array([_gain(mean[one.columns]) for one in every])
    least = np.array([LEAST.get(one.kind, SLOWER) for one in every])
    slow = np.array([float(mean[one.columns].mean()) for one in every])
    mostly = np.array([float((mean[one.columns] > at / 3).mean()) for one, at in zip(every, slow, strict=True)])
    gains[(slow <= least) | (mostly < MOSTLY)] = 0.0
    first = int(np.argmax(gains))
    chosen = every[first]
    series = np.nan_to_num(_mean(left[chosen.columns]))
    inside = series[a:b]
    lasting = float((inside > slow[first] / 2).mean())
    sure = float(slow[first] / max(float(_spread(series[None])[0]), 1e-3) * np.sqrt(b - a))
    confidence = lasting * (1.0 - np.exp(-sure / 4))
    if not gains[first]:
        return chosen, 0.0, 0.0
    return chosen, float(slow[first]), round(min(float(confidence), 0.999), 3)


def _group(evidence: Evidence, mean: Floats, rank: int) -> Suspect:
    """Return the neighbouring SMs of a rank that explain most, or the rank if they are nearly all."""
    names, place = evidence.sms[rank]
    columns = evidence.work_of(rank)
    each = _by_place(mean[columns, None], place)[:, 0]
    sums = np.concatenate([[0.0], np.cumsum(each)])
    first, last = np.triu_indices(len(each))
    total = sums[last + 1] - sums[first]
    gains = np.where(total > 0, total**2 / (last + 1 - first), 0.0)
    at = int(np.argmax(gains))
    a, b = int(first[at]), int(last[at])
    if b + 1 - a >= NEARLY * len(each):
        return Suspect(kind="rank", rank=rank, columns=columns)
    own = columns[(place >= a) & (place <= b)]
    return Suspect(kind="sms", rank=rank, columns=own, sms=(int(names[a]), int(names[b])))


def _gain(mean: Floats) -> float:
    """Return how much one slowdown of all these columns explains of them."""
    level = float(mean.mean())
    return max(0.0, len(mean) * level * level - UNLIKE * float(((mean - level) ** 2).sum())) if level > 0 else 0.0


def _bounds(
    evidence: Evidence, suspect: Suspect, slower: float, interval: tuple[int, int]
) -> tuple[int, int | None, float]:
    """Return the launches in which a cause begins and ends (None: it lasts), and the scatter between launches."""
    own, edges = suspect.columns, evidence.edges
    shift = np.repeat(evidence.shift[own], np.diff(edges), axis=1).T
    each = _median((evidence.scaled[:, own] - evidence.offset[own] - shift).T)
    gain = np.clip(np.nan_to_num(each, nan=slower / 2) - slower / 2, -slower, slower)
    total = np.concatenate([[0.0], np.cumsum(gain)])
    a, b = (int(edges[at]) for at in interval)  # it contains the middle of the windows in which it is slow most surely
    middle = (a + b) // 2
    begin = middle - int(np.argmin(total[middle::-1]))
    end = middle + int(np.argmax(total[middle:]))
    near = max(2, evidence.launches // 50)
    first = evidence.traces.table.first
    since = 0 if begin < near else begin
    scatter = float(_spread(each[None, ~np.isnan(each)])[0])
    return first + since, None if end >= evidence.launches - near else first + end, scatter


def cost(evidence: Evidence, suspect: Suspect, slower: float) -> float:
    """Return about how many seconds of a launch a cause takes: what its busiest part does longer."""
    own = suspect.columns
    if bool(evidence.additive[own].all()):
        return slower * evidence.took
    usual = np.exp(evidence.offset[own]) * evidence.norm[own]
    seconds = usual * np.expm1(slower) * evidence.counts[own]
    if suspect.kind in ("rank", "sms"):
        busy = evidence.sm[own] >= 0
        return float(np.bincount(evidence.sm[own][busy], weights=seconds[busy]).max(initial=0.0))
    by_sm = np.isin(evidence.metric[own], _numbers(("sm_out", "sm_in", "notify")))
    programs = np.array([len(evidence.sms[r][0]) if r in evidence.sms else 16 for r in evidence.rank[own].tolist()])
    busiest = np.bincount(evidence.rank[own], weights=np.where(by_sm, seconds / programs, seconds))
    return max(float(busiest.max()), float((usual * np.expm1(slower)).max()))  # a program has one at least


# Medians that leave out what is not known ----------------------------------------------------------------------


def _numbers(names: tuple[str, ...]) -> list[int]:
    return [NUMBER[name] for name in names]


def _one(kind: str, rank: int, columns: Bools, **more: object) -> Iterator[Suspect]:
    if columns.any():
        yield Suspect(kind=kind, rank=rank, columns=np.flatnonzero(columns), **more)  # pyright: ignore


def _median(values: NDArray[np.floating]) -> Floats:
    """Return the medians over the first axis."""
    if not np.isnan(values).any():
        return np.median(values, axis=0).astype(np.float64)
    known = ~np.isnan(values).all(axis=0)
    result = np.full(values.shape[1:], np.nan)
    result[known] = np.nanmedian(values[:, known], axis=0)
    return result


def _low(values: Floats, quantile: float) -> Floats:
    """Return a quantile of each row."""
    known = ~np.isnan(values).all(axis=1)
    result = np.full(len(values), np.nan)
    result[known] = np.nanquantile(values[known], quantile, axis=1)
    return result


def _lower(values: Floats) -> Floats:
    """Return the medians over the first axis, of two the lower one: most parts are well, and none is too fast."""
    ordered = np.sort(values, axis=0)
    count = (~np.isnan(ordered)).sum(axis=0)
    at = np.maximum(count - 1, 0) // 2
    return np.take_along_axis(ordered, at[None], axis=0)[0]


def _mean(values: Floats) -> Floats:
    """Return the means over the first axis."""
    known = ~np.isnan(values)
    return np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)


def _by_place(values: Floats, place: Ints) -> Floats:
    """Return the mean of the rows of each place."""
    count = int(place.max(initial=0)) + 1
    total, known = np.zeros((count, values.shape[1])), np.zeros((count, values.shape[1]))
    np.add.at(total, place, np.nan_to_num(values))
    np.add.at(known, place, ~np.isnan(values))
    return total / np.maximum(known, 1)


def _spread(series: Floats) -> Floats:
    """Return the standard deviation of each row around its level, which may change a few times."""
    if series.shape[1] < 3:
        return np.full(len(series), 0.01)
    steps = np.abs(np.diff(series, axis=1))
    return np.median(steps, axis=1) / 0.6745 / np.sqrt(2.0)
