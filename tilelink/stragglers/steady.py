"""Parts that are slow in all launches of some windows, and ranks for which others wait though nothing says why."""

from __future__ import annotations

import numpy as np

from tilelink.stragglers.evidence import Evidence, by_place, lower, mean_of, median, spread
from tilelink.stragglers.metrics import Floats
from tilelink.stragglers.suspects import SLOWER, SLOWER_HOSTS, Found, Suspect, best, cost

LASTS = 4
"""Windows that a cause lasts, at least."""
SURE = 7.0
"""Standard errors by which it must exceed that."""
BEYOND = 1.2
"""By how many times its usual scatter between launches a suspect must be slower."""
LATE = 0.15
"""Part of a launch that others wait longer for a rank that is late, at least."""
CHANGED = 0.05
"""Part of a launch by which, if most ranks take longer or shorter without their waits, waits are not compared."""
ALONE = 0.3
"""Part of a slowdown by which other ranks may change at the same time, at most, each in its own way."""
MOST = 6
"""Causes that are searched."""
CERTAIN = 0.7
"""Confidence of a cause, at least."""


def causes_of(evidence: Evidence, suspects: list[Suspect], *, sms: bool) -> list[Found]:
    """Return the causes among some suspects, and among groups of SMs."""
    left = evidence.slower.copy()
    causes: list[Found] = []
    least = SLOWER if sms else SLOWER_HOSTS
    for _ in range(MOST):
        interval = _interval(evidence, left, suspects, least, sms=sms)
        if interval is None:
            break
        suspect, slower, confidence = best(evidence, left, suspects, *interval, sms=sms)
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
    changes = median(others[:, inside].T) - median(others[:, ~inside].T)
    return float(mean_of(np.abs(changes))) < ALONE * slower


def late(evidence: Evidence) -> Found | None:
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
    changed = lower(np.median(alone[:, inside], axis=1)[:, None] - np.median(alone[:, ~inside], axis=1)[:, None])
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
    sure = float(net[rank, a:b].mean() / max(float(spread(net[[rank]])[0]), 1e-3) * np.sqrt(b - a))
    confidence = round(float(1.0 - np.exp(-sure / 8)) * 0.9, 3)
    if confidence < CERTAIN:
        return None
    return Found(suspect=suspect, slower=slower, since=since, until=until, seconds=slower * evidence.took,
                 confidence=confidence)  # fmt: skip


def _slowest(series: Floats, least: float) -> tuple[int, int, float] | None:
    """Return the windows (first, one past the last) in which some series is slow most surely, and how surely."""
    windows = series.shape[1]
    scatter = np.maximum(spread(series), 1e-3)
    grid = np.unique(np.linspace(0, windows, min(windows, 16) + 1).astype(np.int64))
    total = np.concatenate([np.zeros((len(series), 1)), np.cumsum(series, axis=1)], axis=1)
    best, chosen = SURE, None
    for a in grid.tolist():
        for b in grid[grid >= a + LASTS].tolist():
            mean = (total[:, b] - total[:, a]) / (b - a)
            sure = np.where(mean > least, mean / scatter * np.sqrt(b - a), 0.0)
            if sure.max(initial=0.0) > best:
                best = float(sure.max())
                chosen = (a, b, best)
    return chosen


def _interval(
    evidence: Evidence, left: Floats, suspects: list[Suspect], least: float, *, sms: bool
) -> tuple[int, int] | None:
    """Return the windows in which some suspect is slow most surely, or None if no suspect is slow."""
    means = [mean_of(left[one.columns]) for one in suspects]
    for rank, (_, place) in evidence.sms.items() if sms else ():
        each = by_place(left[evidence.work_of(rank)], place)
        sums = np.concatenate([np.zeros((1, each.shape[1])), np.cumsum(each, axis=0)])
        means += [(sums[b] - sums[a]) / (b - a) for a, b in evidence.groups(rank)]
    if not means:
        return None
    found = _slowest(np.nan_to_num(np.concatenate([np.atleast_2d(own) for own in means])), least)
    return None if found is None else found[:2]


def _bounds(
    evidence: Evidence, suspect: Suspect, slower: float, interval: tuple[int, int]
) -> tuple[int, int | None, float]:
    """Return the launches in which a cause begins and ends (None: it lasts), and the scatter between launches."""
    own, edges = suspect.columns, evidence.edges
    shift = np.repeat(evidence.shift[own], np.diff(edges), axis=1).T
    each = median((evidence.scaled[:, own] - evidence.offset[own] - shift).T)
    gain = np.clip(np.nan_to_num(each, nan=slower / 2) - slower / 2, -slower, slower)
    total = np.concatenate([[0.0], np.cumsum(gain)])
    a, b = (int(edges[at]) for at in interval)  # it contains the middle of the windows in which it is slow most surely
    middle = (a + b) // 2
    begin = middle - int(np.argmin(total[middle::-1]))
    end = middle + int(np.argmax(total[middle:]))
    near = max(2, evidence.launches // 50)
    first = evidence.traces.table.first
    since = 0 if begin < near else begin
    scatter = float(spread(each[None, ~np.isnan(each)])[0])
    return first + since, None if end >= evidence.launches - near else first + end, scatter
