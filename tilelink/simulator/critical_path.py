"""The critical path of a simulated launch: the operations of which each waited for the one before, and whose they are.

It is walked backwards from the end of the slowest rank: a wait leads to the notify that filled its counter, the first
operation of a kernel to the end of the kernel before it in its stream, and everything else to the operation before it
in its program.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilelink.simulator.result import Simulated
from tilelink.simulator.script import AWAIT, COMPUTE, MOVE, SIGNAL

PARTS = {COMPUTE: "computes", MOVE: "moves", SIGNAL: "signals", AWAIT: "waits"}
LAUNCH = ""
"""Stands for a stage where no stage runs: the start of the launch and of kernels, and its end."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Seconds of a path, in so many operations."""

    seconds: float
    count: int


def critical_path(result: Simulated) -> Mapping[tuple[str, str], Part]:
    """Return (stage, one of PARTS) -> its part of the critical path. The parts add up to the time of the launch."""
    timeline = result.timeline
    script, plan = timeline.script, result.plan
    first = script.first.tolist()
    begin, end, kind = timeline.begin.tolist(), timeline.end.tolist(), script.kind.tolist()
    names = sorted(plan.first_task, key=lambda name: plan.first_task[name])
    bases = [plan.first_task[name] for name in names]
    found: dict[tuple[str, str], list[float]] = {}

    def add(row: int | None, seconds: float) -> None:
        key = (LAUNCH, "")
        if row is not None:
            key = names[bisect_right(bases, int(script.task[row])) - 1], PARTS[kind[row]]
        own = found.setdefault(key, [0.0, 0])
        own[0] += max(0.0, seconds)
        own[1] += row is not None

    ends = np.where(script.worker_rank == result.slowest, timeline.worker_end, -1.0)
    worker, now = int(ends.argmax()), float(result.rank_seconds[result.slowest])
    add(None, now - float(ends[worker]))
    now, row = min(now, float(ends[worker])), first[worker + 1] - 1
    for _ in range(len(kind) + len(plan.workers)):
        if row < first[worker]:
            add(None, now - float(timeline.worker_begin[worker]))
            now = min(now, float(timeline.worker_begin[worker]))
            before = _before(result, worker)
            if before is None:
                break
            worker, row = before, first[before + 1] - 1
            add(None, now - float(timeline.worker_end[worker]))
            now = min(now, float(timeline.worker_end[worker]))
            continue
        counter = int(script.what[row])
        filler = int(timeline.filler[counter]) if kind[row] == AWAIT else -1
        if filler >= 0 and timeline.full[counter] > begin[row]:
            sent = end[filler]
            add(row, now - sent)
            now, row, worker = min(now, sent), filler, int(script.worker[filler])
            continue
        add(row, now - begin[row])
        now, row = min(now, begin[row]), row - 1
    add(None, now)
    return {key: Part(seconds=seconds, count=int(count)) for key, (seconds, count) in found.items() if seconds > 0}


def _before(result: Simulated, worker: int) -> int | None:
    """Return the worker that ends last of the kernel before that of a worker, on its stream and rank, or None."""
    plan = result.plan
    number, rank, _ = plan.workers[worker]
    kernel = plan.bound.kernels[number]
    place = kernel.stream, kernel.position - 1
    own = [w for w, (n, r, _) in enumerate(plan.workers) if r == rank and _place(result, n) == place]
    return max(own, key=lambda w: float(result.timeline.worker_end[w]), default=None)


def _place(result: Simulated, number: int) -> tuple[str, int]:
    kernel = result.plan.bound.kernels[number]
    return kernel.stream, kernel.position
