"""What a simulated launch says: times per rank, the bound, and where the difference goes."""

from __future__ import annotations

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
    """Where a rank's time goes, in seconds: the mean over the programs of its busiest stream. The parts add up.

    start_up: until a program's first computation or transfer, with the waits before it.
    work: computing. epilogue: before and after a tile's main loop. waiting: for data, after the first tile.
    copy: transfers, notifies, and computing slowed down by copies, in the same programs.
    tail: programs that are done before the last one of their kernel, and what the rank waits for at its end.
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
        """name -> seconds."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A simulated launch."""

    machine: Machine = field(repr=False)
    rank_seconds: tuple[float, ...]
    """rank -> when it is done, counted from the launch of the first rank."""
    breakdowns: tuple[Breakdown, ...]
    bound: Bound
    timeline: Timeline = field(repr=False, compare=False)

    @property
    def seconds(self) -> float:
        """The time of the launch: that of its slowest rank."""
        return max(self.rank_seconds)

    @property
    def slowest(self) -> int:
        """The first rank that is as slow as any."""
        return self.rank_seconds.index(self.seconds)

    @property
    def plan(self) -> Plan:
        return self.timeline.script.plan


def summarize(timeline: Timeline) -> Simulated:
    """The result of a run."""
    ends = _rank_ends(timeline)
    return Simulated(
        machine=timeline.script.machine,
        rank_seconds=tuple(ends.tolist()),
        breakdowns=_breakdowns(timeline, ends),
        bound=bound_of(timeline.script),
        timeline=timeline,
    )


def _rank_ends(timeline: Timeline) -> Floats:
    """A rank is done when its programs are and everything that peers write into its outputs is there and copied out.

    Where kernels ran on streams of their own, the caller's stream then still has to go on behind them.
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
    joined = timeline.script.machine.kernel_gap if any(kernel.beside for kernel in plan.bound.kernels) else 0.0
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
    """part -> seconds of each worker; they add up to the worker's time."""
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
    columns["copy"] = took - sum(columns.values(), np.zeros(len(took)))
    workers = len(script.first) - 1
    return {name: _sums(script.worker, c, workers) for name, c in columns.items()}


def _sums(group: Ints, weights: Floats, groups: int) -> Floats:
    return np.bincount(group, weights=weights, minlength=groups).astype(np.float64)


def _first_work(kind: Ints, first: Ints) -> Ints:
    """worker -> its first computation or transfer; where it ends, if it has none."""
    works = np.flatnonzero((kind == COMPUTE) | (kind == MOVE))
    found = np.searchsorted(works, first[:-1])
    return np.minimum(np.append(works, len(kind))[found], first[1:])


def _busiest_stream(timeline: Timeline) -> list[int]:
    """The kernels of the stream that computes most; of the one that moves most, where none computes."""
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
