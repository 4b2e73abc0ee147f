"""Result of a simulated launch: times per rank, the lower bound, and a breakdown of the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from tilelink.lowering.columns import Ints
from tilelink.planning.plan import Plan
from tilelink.simulator.engine import Timeline
from tilelink.simulator.lower_bound import Bound, bound_of
from tilelink.simulator.machine import Machine
from tilelink.simulator.script import AWAIT, COMPUTE, MOVE, Floats


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Breakdown of a rank's time in seconds, as the mean over the programs of its busiest stream. The parts add up.

    start_up: time until a program's first computation or transfer, with the waits before it. work: computation.
    epilogue: time before and after a tile's main loop. waiting: waits for data after the first tile, and for the
    numbers of tiles that programs take by a counter. copy: transfers, notifies, and the slowdown of computation by
    copies, in the same programs, as far as no other role of theirs goes on meanwhile. tail: idle time of programs
    that end before the last one of their kernel, and the rank's waits at the end of the launch.
    """

    start_up: float
    work: float
    epilogue: float
    waiting: float
    copy: float
    tail: float

    @property
    def total(self) -> float:
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """Return part name -> seconds."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A simulated launch, or the mean of several launches with other index tensors."""

    machine: Machine = field(repr=False)
    rank_seconds: tuple[float, ...]
    """rank -> seconds until it is done, from the launch of the first rank."""
    breakdowns: tuple[Breakdown, ...]
    bound: Bound
    timeline: Timeline = field(repr=False, compare=False)
    """Of the first launch."""
    draws: tuple[float, ...] = ()
    """The seconds of each launch of which this is the mean."""

    @property
    def seconds(self) -> float:
        """The time of the launch: that of its slowest rank."""
        return sum(self.draws) / len(self.draws) if self.draws else max(self.rank_seconds)

    @property
    def slowest(self) -> int:
        """The slowest rank; of equally slow ones the first."""
        return self.rank_seconds.index(max(self.rank_seconds))

    @property
    def plan(self) -> Plan:
        return self.timeline.script.plan


def mean_of(launches: Sequence[Simulated]) -> Simulated:
    """Return the means of the times of launches. The bound is that of their mean work: it is below the mean time."""
    parts = [[breakdown.parts() for breakdown in one.breakdowns] for one in launches]
    return Simulated(
        machine=launches[0].machine,
        rank_seconds=tuple(_mean(own) for own in zip(*(one.rank_seconds for one in launches), strict=True)),
        breakdowns=tuple(
            Breakdown(**{name: _mean([own[name] for own in of_rank]) for name in of_rank[0]})
            for of_rank in zip(*parts, strict=True)
        ),
        bound=Bound(
            compute=_mean([one.bound.compute for one in launches]),
            transfer=_mean([one.bound.transfer for one in launches]),
        ),
        timeline=launches[0].timeline,
        draws=tuple(one.seconds for one in launches),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def summarize(timeline: Timeline) -> Simulated:
    """Return the result of a run."""
    ends = rank_ends(timeline)
    return Simulated(
        machine=timeline.script.machine,
        rank_seconds=tuple(ends.tolist()),
        breakdowns=_breakdowns(timeline, ends),
        bound=bound_of(timeline.script),
        timeline=timeline,
    )


def rank_ends(timeline: Timeline) -> Floats:
    """Return the time at which each rank is done: its programs have ended, and all that peers write into its outputs
    has arrived and is copied out.

    If kernels ran on side streams, the time until the caller's stream resumes after them is added.
    """
    plan = timeline.script.plan
    ends = np.zeros(plan.bound.ranks)
    np.maximum.at(ends, timeline.script.worker_rank, timeline.worker_end)
    full = np.nan_to_num(timeline.full.reshape(plan.bound.ranks, -1))
    for (tensor, _), grid in plan.bound.channels.items():
        decl = plan.bound.tensors[tensor].decl
        if decl.space == "out" and decl.symmetric:
            base = plan.channel_base[tensor, _]
            ends = np.maximum(ends, full[:, base : base + grid.count].max(axis=1, initial=0.0))
    joined = timeline.script.machine.kernel_gap if any(kernel.on_side_stream for kernel in plan.bound.kernels) else 0.0
    return ends + timeline.script.keeping + joined


# Where the time goes -----------------------------------------------------------------------------------------


def _breakdowns(timeline: Timeline, ends: Floats) -> tuple[Breakdown, ...]:
    parts = _worker_parts(timeline)
    kernels = _busiest_stream(timeline)
    plan = timeline.script.plan
    workers = {
        key: np.flatnonzero([n == key[0] and r == key[1] for n, r, _ in plan.workers])
        for key in ((n, r) for n in kernels for r in range(plan.bound.ranks))
    }
    return tuple(
        _rank_breakdown(timeline, parts, [workers[n, rank] for n in kernels], float(ends[rank]))
        for rank in range(plan.bound.ranks)
    )


def _rank_breakdown(timeline: Timeline, parts: dict[str, Floats], kernels: list[Ints], end: float) -> Breakdown:
    total: dict[str, float] = {f.name: 0.0 for f in fields(Breakdown)}
    before = 0.0
    for workers in kernels:
        done = float(timeline.worker_end[workers].max())
        total["start_up"] += float(timeline.worker_begin[workers].mean()) - before
        total["tail"] += done - float(timeline.worker_end[workers].mean())
        for name, column in parts.items():
            total[name] += float(column[workers].mean())
        before = done
    total["tail"] += end - before
    return Breakdown(**total)


def _worker_parts(timeline: Timeline) -> dict[str, Floats]:
    """Return part -> seconds of each worker; the parts add up to the worker's time."""
    script = timeline.script
    took = timeline.end - timeline.begin
    compute = script.kind == COMPUTE
    early = (script.kind == AWAIT) & (np.arange(len(took)) < _first_work(script.kind, script.first)[script.worker])
    columns = {
        "start_up": np.where(early, took, 0.0),
        "work": np.where(compute, script.main, 0.0),
        "epilogue": np.where(compute, script.overhead, 0.0),
        "waiting": np.where((script.kind == AWAIT) & ~early, took, 0.0),
    }
    workers = len(script.first) - 1
    sums = {name: _sums(script.worker, c, workers) for name, c in columns.items()}
    sums["waiting"] += timeline.counting
    known = sum(sums.values(), np.zeros(workers))
    sums["copy"] = np.maximum(0.0, timeline.worker_end - timeline.worker_begin - known)
    return sums


def _sums(group: Ints, weights: Floats, groups: int) -> Floats:
    return np.bincount(group, weights=weights, minlength=groups).astype(np.float64)


def _first_work(kind: Ints, first: Ints) -> Ints:
    """Return worker -> the row of its first computation or transfer, or the end of its rows if it has none."""
    works = np.flatnonzero((kind == COMPUTE) | (kind == MOVE))
    following = np.searchsorted(works, first[:-1])
    return np.minimum(np.append(works, len(kind))[following], first[1:])


def _busiest_stream(timeline: Timeline) -> list[int]:
    """Return the kernels of the stream that computes most, or, if none computes, of the stream that moves most."""
    script = timeline.script
    kernels = script.plan.bound.kernels
    kernel_of_worker = np.array([n for n, _, _ in script.plan.workers], dtype=np.int64)
    took = timeline.end - timeline.begin
    for wanted in (COMPUTE, MOVE):
        weights = np.where(script.kind == wanted, took, 0.0)
        per_kernel = np.bincount(kernel_of_worker[script.worker], weights=weights, minlength=len(kernels))
        streams = {k.stream: 0.0 for k in kernels}
        for number, kernel in enumerate(kernels):
            streams[kernel.stream] += float(per_kernel[number])
        best = max(streams, key=lambda name: streams[name])
        if streams[best] > 0:
            return [n for n, k in enumerate(kernels) if k.stream == best]
    return list(range(min(1, len(kernels))))
