"""Sets of columns that one cause would slow down together, and which of them explains most of what is slow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tilelink.lowering.columns import Ints
from tilelink.stragglers.evidence import Bools, Evidence, by_place, lower, mean_of, numbers, spread
from tilelink.stragglers.metrics import MOVES, Floats

SLOWER = 0.06
"""Slowdown that is a cause, at least, as a logarithm, or in the seconds of a launch for gaps and waits."""
SLOWER_HOSTS = 0.02
"""The same for hosts: what a gap is longer than those of other ranks, the launch is longer."""
SLOWER_LINKS = 0.1
"""The same for links, whose transfers take longer if they meet others."""
LEAST = {"link": SLOWER_LINKS, "port": SLOWER_LINKS, "host": SLOWER_HOSTS, "start": SLOWER_HOSTS}
UNLIKE = 3.0
"""How much it speaks against a suspect that its columns are not equally slow, by what speaks for it."""
MOSTLY = 0.6
"""Part of a suspect's columns that must be slow."""
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


def suspects(evidence: Evidence) -> Iterator[Suspect]:
    """Yield all suspects but groups of SMs."""
    work, moves = evidence.of("work"), evidence.of(*MOVES)
    inward = evidence.of("sm_in", "engine_in")
    source, target = np.where(inward, evidence.peer, evidence.rank), np.where(inward, evidence.rank, evidence.peer)
    engine = evidence.of("engine_out", "engine_in")
    away = moves & (evidence.peer != evidence.rank) & evidence.matters
    for rank in range(evidence.ranks):
        mine = evidence.rank == rank
        follows = np.flatnonzero(mine & (evidence.of("sm_out", "sm_in", "notify")))
        yield from _one("rank", rank, mine & work, explains=follows)
        stages, local = np.unique(evidence.stage[mine & work]).tolist(), mine & moves & ~away
        for stage in stages if len(stages) > 1 else []:
            yield from _one("rank", rank, mine & work & (evidence.stage == stage), stage=stage)
        for stage in stages if local.any() else []:  # what its memory does
            yield from _one("rank", rank, mine & work & (evidence.stage == stage) | local, stage=stage)
        if stages and local.any():
            yield from _one("rank", rank, mine & work | local)
        yield from _one("copy engine", rank, mine & (engine | evidence.of("call")))
        yield from _one("copy engine", rank, mine & evidence.of("call"))
        for call in np.unique(evidence.stage[mine & evidence.of("call")]).tolist():
            yield from _one("copy engine", rank, mine & evidence.of("call") & (evidence.stage == call))
        yield from _one("host", rank, mine & evidence.of("gap"))
        yield from _one("start", rank, mine & evidence.of("start"))
        yield from _one("signals", rank, mine & evidence.of("notify"))
        if evidence.ranks > 2:
            yield from _one("signals", rank, evidence.of("signal") & (mine | (evidence.peer == rank)))
        for some in (away, away & evidence.far, away & ~evidence.far) if evidence.far.any() else (away,):
            out, into = some & (source == rank), some & (target == rank)
            for direction, own in (("out", out), ("in", into), ("both", out | into)):
                if len(np.unique(np.where(source[own] == rank, target[own], source[own]))) > 1:
                    yield from _one("port", rank, own, direction=direction)
    for one, other, column in _pairs(evidence):
        yield Suspect(kind="signals", rank=one, peer=other, columns=column)
    pairs = np.unique(np.stack([source[away], target[away]]), axis=1).T.tolist()
    for one, other in pairs:
        yield from _one("link", one, away & (source == one) & (target == other), peer=other)


def _pairs(evidence: Evidence) -> Iterator[tuple[int, int, Ints]]:
    """Yield (from, to, column) of the round trips of notifies: those of which the other rank waits longer.

    It does so longer than in other launches, or than its likes, if that is always so.
    """
    waits = np.flatnonzero(evidence.of("wait"))
    longer = np.zeros(len(evidence.metric))
    longer[waits] = np.nan_to_num(evidence.slower[waits]).max(axis=1)
    for own in evidence.classes(evidence.of("wait"), evidence.distance):
        longer[own] += np.nan_to_num(evidence.level[own] - lower(evidence.level[own, None])[0])
    for column in np.flatnonzero(evidence.of("signal")).tolist():
        yield *evidence.way(int(evidence.rank[column]), int(evidence.peer[column]), longer), np.array([column])


def _one(kind: str, rank: int, columns: Bools, **more: object) -> Iterator[Suspect]:
    if columns.any():
        yield Suspect(kind=kind, rank=rank, columns=np.flatnonzero(columns), **more)  # pyright: ignore


def best(
    evidence: Evidence, left: Floats, suspects: list[Suspect], a: int, b: int, *, sms: bool
) -> tuple[Suspect, float, float]:
    """Return the suspect that explains most of what is slow in some windows, how slow it is, and how sure that is."""
    mean = np.nan_to_num(mean_of(left[:, a:b].T))
    every = [*suspects, *(_group(evidence, mean, rank) for rank in evidence.sms if sms)]
    gains = np.array([_gain(mean[one.columns]) for one in every])
    least = np.array([LEAST.get(one.kind, SLOWER) for one in every])
    slow = np.array([float(mean[one.columns].mean()) for one in every])
    mostly = np.array([float((mean[one.columns] > at / 3).mean()) for one, at in zip(every, slow, strict=True)])
    gains[(slow <= least) | (mostly < MOSTLY)] = 0.0
    first = int(np.argmax(gains))
    chosen = every[first]
    series = np.nan_to_num(mean_of(left[chosen.columns]))
    inside = series[a:b]
    lasting = float((inside > slow[first] / 2).mean())
    sure = float(slow[first] / max(float(spread(series[None])[0]), 1e-3) * np.sqrt(b - a))
    confidence = lasting * (1.0 - np.exp(-sure / 4))
    if not gains[first]:
        return chosen, 0.0, 0.0
    return chosen, float(slow[first]), round(min(float(confidence), 0.999), 3)


def _group(evidence: Evidence, mean: Floats, rank: int) -> Suspect:
    """Return the neighbouring SMs of a rank that explain most, or the rank if they are nearly all."""
    names, place = evidence.sms[rank]
    columns = evidence.work_of(rank)
    each = by_place(mean[columns, None], place)[:, 0]
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
    by_sm = np.isin(evidence.metric[own], numbers(("sm_out", "sm_in", "notify")))
    programs = np.array([len(evidence.sms[r][0]) if r in evidence.sms else 16 for r in evidence.rank[own].tolist()])
    busiest = np.bincount(evidence.rank[own], weights=np.where(by_sm, seconds / programs, seconds))
    return max(float(busiest.max()), float((usual * np.expm1(slower)).max()))  # a program has one at least
