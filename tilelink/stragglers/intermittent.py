"""Parts that are slow in some launches alone, which medians of windows do not see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tilelink.stragglers.evidence import Bools, Evidence, by_place
from tilelink.stragglers.metrics import Floats
from tilelink.stragglers.suspects import LEAST, SLOWER, Found, Suspect, best

TRIED = 6
"""Sets of launches that are looked at."""
SELDOM = 8
"""Launches that are slow, at least, where a part is slow in some alone."""
PAUSES, PAUSED = 4, 10.0
"""The same of a host that pauses: its launches are late by so many times what counts as late."""
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


def intermittent(evidence: Evidence, hosts: list[Suspect], others: list[Suspect]) -> Found | None:
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
    for slow in _tails(evidence, [*hosts, *others])[:TRIED]:
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
        suspect, slower, _ = best(evidence, delta, others, 0, 1, sms=True)
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
        limit = np.maximum(np.maximum(least, TAIL * scatter), np.array(likes) * ABOVE)[:, None]
        highest = np.cumsum(np.sort(own, axis=1)[:, ::-1], axis=1)
        pauses = [(own > PAUSED * limit, PAUSES)] if kind == "host" else []
        for slow, few in ((own > limit, SELDOM), *pauses):
            counts = slow.sum(axis=1)
            for n in np.flatnonzero((counts >= few) & (counts < launches / 2)).tolist():
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
        each = by_place(evidence.rest[:, evidence.work_of(rank)].T.astype(np.float64), place)
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
