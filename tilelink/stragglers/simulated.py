"""What a simulated launch leaves behind, and launches that follow each other on ranks that need not be alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilelink.lowering.columns import Ints
from tilelink.planning.plan import Plan
from tilelink.simulator import simulate
from tilelink.simulator.cost import CostModel
from tilelink.simulator.machine import Machine
from tilelink.simulator.result import Simulated
from tilelink.simulator.sampled import Sample
from tilelink.simulator.script import AWAIT, COMPUTE, MOVE, SIGNAL
from tilelink.stragglers.metrics import NUMBER, Means, Row, keys_of, means, row_of


def row_of_simulated(result: Simulated, gap: Sequence[float] | None = None, *, programs: bool = False) -> Row:
    """Return what a simulated launch leaves. gap: seconds of each rank since its launch before (None: 0).

    programs: True to name programs, as traced launches do, where others name SMs.
    """
    timeline, plan = result.timeline, result.plan
    ranks = np.arange(plan.bound.ranks)
    took = np.array(result.rank_seconds) - timeline.prepared
    parts = [
        *_work(result, programs), *_moves(result), *_calls(result), *_waits(result), *_signals(result),
        means(keys_of(NUMBER["gap"], ranks), np.zeros(len(ranks)) if gap is None else np.array(gap, np.float64)),
        means(keys_of(NUMBER["took"], ranks), took),
    ]  # fmt: skip
    return row_of(parts)


def tracks(plan: Plan) -> Ints:
    """Return the number of each worker among those of its rank, as spans number them."""
    ranks = np.array([rank for _, rank, _ in plan.workers], np.int64)
    order = np.argsort(ranks, kind="stable")
    result = np.empty(len(ranks), np.int64)
    result[order] = np.arange(len(ranks)) - np.searchsorted(ranks[order], ranks[order])
    return result


def _stages(plan: Plan, tasks: Any) -> Any:
    """Return the number of the stage of each task."""
    starts = sorted((first, plan.bound.stages[name].number) for name, first in plan.first_task.items())
    first, number = np.array(starts, np.int64).T
    return number[np.searchsorted(first, tasks, side="right") - 1]


def _work(result: Simulated, programs: bool) -> list[Means]:
    t, s = result.timeline, result.timeline.script
    rows = np.flatnonzero(s.kind == COMPUTE)
    if not len(rows):
        return []
    place = tracks(result.plan) if programs else t.worker_sm
    keys = keys_of(NUMBER["work"], s.rank[rows], _stages(result.plan, s.task[rows]), -1, place[s.worker[rows]])
    new = np.ones(len(rows), np.int64)
    new[1:] = s.task[rows[1:]] != s.task[rows[:-1]]  # of a task with several pieces the first
    return [means(keys, t.end[rows] - t.begin[rows], new)]


def _moves(result: Simulated) -> list[Means]:
    t, s = result.timeline, result.timeline.script
    rows = np.flatnonzero(s.kind == MOVE)
    if not len(rows):
        return []
    move = s.what[rows]
    out = s.moves.source[move] == s.rank[rows]
    peer = np.where(out, s.moves.target[move], s.moves.source[move])
    metric = np.where(s.moves.by_copy_engine[move], NUMBER["engine_out"], NUMBER["sm_out"]) + ~out
    keys = keys_of(metric, s.rank[rows], _stages(result.plan, s.task[rows]), peer)
    return [means(keys, t.moved[move] - t.started[move])]


FLAG, FIRST, FURTHER, WOKEN = -1, 0, 1, 2
"""Calls of a copy engine that take times of their own: flags, copies directly after a wait, others, ends of waits."""


def _calls(result: Simulated) -> list[Means]:
    t, s = result.timeline, result.timeline.script
    engine, seconds = t.worker_sm[s.worker] < 0, t.end - t.begin
    notifies, moves, waits = s.kind == SIGNAL, s.kind == MOVE, s.kind == AWAIT
    seconds[moves] = t.started[s.what[moves]] - t.begin[moves]
    full = np.zeros(len(seconds))
    full[waits] = np.nan_to_num(t.full[s.what[waits]])
    slept = waits & (full > t.begin)
    seconds[slept] = t.end[slept] - full[slept]
    rows = np.arange(len(seconds))
    before = np.maximum.accumulate(np.where(moves, rows, -1))
    before = np.concatenate([[-1], before[:-1]])
    first = (before < s.first[s.worker]) | (np.maximum.accumulate(np.where(slept, rows, -1)) > before)
    kind = np.select([moves & first, moves, waits], [FIRST, FURTHER, WOKEN], FLAG)
    woken = slept & (not s.waits_aside)  # else waits are late for each other
    own = np.flatnonzero(engine & (moves | (notifies & ~s.early) | woken))
    told = np.flatnonzero(~engine & notifies & (seconds > 0))
    found = [means(keys_of(NUMBER["call"], s.rank[own], kind[own]), seconds[own])] if len(own) else []
    return [*found, means(keys_of(NUMBER["notify"], s.rank[told]), seconds[told])] if len(told) else found


def _waits(result: Simulated) -> list[Means]:
    """Return the waits of programs for other ranks: for notifies, and before the first tile for the last to launch."""
    t, s, plan = result.timeline, result.timeline.script, result.plan
    on_sm = t.worker_sm >= 0
    counted = on_sm if on_sm.any() else ~on_sm
    filler, waits = np.full(len(s.kind), -1), s.kind == AWAIT
    filler[waits] = t.filler[s.what[waits]]
    rows = np.flatnonzero((filler >= 0) & counted[s.worker])
    by = s.rank[filler[rows]]
    away = by != s.rank[rows]
    rows, by = rows[away], by[away]
    worker, waited = [s.worker[rows]], [t.end[rows] - t.begin[rows]]
    first = np.array([plan.bound.kernels[n].position == 0 for n, _, _ in plan.workers], bool) & counted
    late = int(np.argmax(t.prepared))
    entered = np.flatnonzero(first & (s.worker_rank != late))
    entered = entered[[plan.bound.kernels[plan.workers[one][0]].needs_entry for one in entered.tolist()]]
    worker.append(entered)
    waited.append(np.maximum(0.0, t.worker_begin[entered] - t.prepared[s.worker_rank[entered]]))
    ranks = plan.bound.ranks
    of = np.concatenate(worker) * ranks + np.concatenate([by, np.full(len(entered), late)])
    each = np.bincount(of, weights=np.concatenate(waited), minlength=ranks * len(plan.workers)).reshape(-1, ranks)
    longest = np.zeros((ranks, ranks))
    np.maximum.at(longest, s.worker_rank, each)
    rank, peer = np.nonzero(longest)
    return [means(keys_of(NUMBER["wait"], rank, -1, peer), longest[rank, peer])] if len(rank) else []


def _signals(result: Simulated) -> list[Means]:
    """Return the round trips of notifies between two ranks: they do not depend on the difference of their clocks."""
    t, s, ranks = result.timeline, result.timeline.script, result.plan.bound.ranks
    counters = np.flatnonzero(t.filler >= 0)
    there, by = counters // max(result.plan.channels, 1), s.rank[t.filler[counters]]
    fastest = np.full((ranks, ranks), np.inf)
    np.minimum.at(fastest, (by, there), t.full[counters] - t.end[t.filler[counters]])
    both = np.triu(fastest + fastest.T, 1)
    rank, peer = np.nonzero(np.isfinite(both) & (both > 0))
    return [means(keys_of(NUMBER["signal"], rank, -1, peer), both[rank, peer])] if len(rank) else []


class Series:
    """Launches of a plan that follow each other: a rank begins one when its last one has ended and its host is ready.

    machine: of the norm. tables, samples, cost: as `simulator.simulate` takes them. programs: as row_of_simulated.
    """

    def __init__(
        self, plan: Plan, machine: Machine, *, cost: CostModel | None = None,
        tables: Mapping[str, Any] | None = None, samples: Sequence[Sample] = (), programs: bool = False,
    ) -> None:  # fmt: skip
        self.plan, self.machine = plan, machine
        self._options: dict[str, Any] = {"cost": cost, "tables": tables, "samples": samples}
        self._ended, self._programs = np.zeros(plan.bound.ranks), programs

    def launch(self, machine: Machine | None = None, late: Sequence[float] | None = None) -> Row:
        """Simulate the next launch, and return what it leaves.

        machine: of this launch, with the deviations of its ranks, links and SMs (None: that of the norm). late: seconds
        after the end of each rank's launch before at which its host has the next one ready (None: at once).
        """
        ready = self._ended + (0.0 if late is None else np.array(late, np.float64))
        begin = float(ready.min())
        result = simulate(self.plan, machine or self.machine, offsets=(ready - begin).tolist(), **self._options)
        gap = begin + result.timeline.prepared - self._ended
        self._ended = begin + np.array(result.rank_seconds)
        self._ended -= self._ended.min()
        return row_of_simulated(result, gap.tolist(), programs=self._programs)
