"""Conditions under which the queues of copy engines may be reordered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilelink.lowering.columns import Ints, expand
from tilelink.lowering.events import NOTIFY, WAIT, WRITE, Accesses
from tilelink.planning.happens_before import HappensBefore
from tilelink.planning.plan import Plan, worker_columns
from tilelink.planning.steps import in_memory

Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class OwnCopies:
    """The copies within a rank that its copy engine does before it waits for anything, with the notifies after them.

    SMs may do such a copy, and kernels that wait for it may take all SMs. So it is done before the kernels.
    """

    plan: Plan
    events: Ints
    """Their numbers in the plan, sorted."""
    overtaken: Ints
    """The numbers of the copies and notifies that one of them comes after in its queue, sorted."""

    @cached_property
    def conflict(self) -> bool:
        """True if one of the copies and a copy that it overtakes touch an element that one of them writes."""
        plan, a = self.plan, self.plan.accesses
        number = plan.event(a.task, a.position)
        early = np.flatnonzero(np.isin(number, self.events))
        late = np.flatnonzero(np.isin(number, self.overtaken))
        queued = _queue_order(plan, a.task, a.position)
        for tensor in np.intersect1d(a.tensor[early], a.tensor[late]):
            one, other = (rows[a.tensor[rows] == tensor] for rows in (late, early))
            if not (a.kind[one] == WRITE).any() and not (a.kind[other] == WRITE).any():
                continue
            first, second = overlapping(plan, one, other)
            written = (a.kind[first] == WRITE) | (a.kind[second] == WRITE)
            if (written & (queued[first] < queued[second])).any():
                return True
        return False

    @property
    def overtaking(self) -> Ints:
        """The numbers of the copies, and of the notifies after them, if there is something that they overtake."""
        return self.events if len(self.overtaken) else self.overtaken

    @property
    def first(self) -> Plan:
        """The plan in which they overtake the rest of their queues."""
        return replace(self.plan, overtaking=self.overtaking)


def own_copies(plan: Plan) -> OwnCopies:
    """Return the copies within a rank for which no queue waits, with the plan in the order of the queues."""
    plan = replace(plan, overtaking=np.zeros(0, np.int64))
    if not any(kernel.on_copy_engine for kernel in plan.bound.kernels):
        return OwnCopies(plan=plan, events=np.zeros(0, np.int64), overtaken=np.zeros(0, np.int64))
    task, position, copies, waits, own = _queue_events(plan)
    kernel, rank = _columns(plan, task)
    number = plan.event(task, position)
    order = np.lexsort((plan.key(task, position), kernel, rank))
    events, overtaken = [number[:0]], [number[:0]]
    for rows in np.split(order, np.flatnonzero(np.diff(rank[order])) + 1):
        waiting = np.flatnonzero(waits[rows])
        queue = rows[: waiting[0]] if len(waiting) else rows
        last = np.maximum.accumulate(np.where(copies[queue], np.arange(len(queue)), -1))
        early = (last >= 0) & own[queue[last]]
        before_last = np.arange(len(queue)) < np.flatnonzero(early).max(initial=-1)
        events.append(number[queue[early]])
        overtaken.append(number[queue[~early & before_last]])
    return OwnCopies(plan=plan, events=np.sort(np.concatenate(events)), overtaken=np.sort(np.concatenate(overtaken)))


def _queue_events(plan: Plan) -> tuple[Ints, Ints, Bools, Bools, Bools]:
    """Return (task, position, is a copy, is a wait, is a copy within its rank) of all that copy engines do."""
    s, a = plan.signals, plan.accesses
    engines = np.array([kernel.on_copy_engine for kernel in plan.bound.kernels], bool)
    queued = engines[worker_columns(plan.workers)[0]]
    there = (a.kind == WRITE) & (a.lo < a.hi).all(axis=1)  # by transfers and by stores; an empty copy is none
    moved = np.flatnonzero(queued[plan.worker[a.task]] & there)
    signalled = np.flatnonzero(queued[plan.worker[s.task]])
    task = np.concatenate([a.task[moved], s.task[signalled]])
    position = np.concatenate([a.position[moved], s.position[signalled]])
    copies = np.arange(len(task)) < len(moved)
    waits = np.concatenate([np.zeros(len(moved), bool), s.kind[signalled] == WAIT])
    away = a.peer != _columns(plan, a.task)[1]
    own = copies & ~np.isin(plan.event(task, position), plan.event(a.task[away], a.position[away]))
    return task, position, copies, waits, own


def _columns(plan: Plan, task: Ints) -> tuple[Ints, Ints]:
    """Return the positions of the kernels on their streams and the ranks of tasks."""
    position = np.array([kernel.position for kernel in plan.bound.kernels], np.int64)
    kernels, ranks, _ = worker_columns(plan.workers)
    return position[kernels[plan.worker[task]]], ranks[plan.worker[task]]


def _queue_order(plan: Plan, task: Ints, position: Ints) -> Ints:
    """Return numbers that order the events of copy engines as their queues do."""
    kernel, _ = _columns(plan, task)
    order = np.lexsort((plan.key(task, position), kernel))
    result = np.empty(len(order), np.int64)
    result[order] = np.arange(len(order))
    return result


def overlapping(plan: Plan, one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Return the pairs of rows of `one` and of `other`, accesses of one tensor, that have an element in common."""
    a = in_memory(plan).accesses
    lo, hi = a.lo, a.hi
    near_one, near_other = _neighbourhoods(a, one, other)
    dim = int(np.argmax([len(np.unique(lo[other, d])) for d in range(lo.shape[1])]))
    widest = int((hi[other, dim] - lo[other, dim]).max(initial=0))
    # The places of a dimension, of each neighbourhood after those of the one before.
    low = min(int(lo[rows, dim].min(initial=0)) for rows in (one, other)) - widest
    extent = max(int(hi[rows, dim].max(initial=0)) for rows in (one, other)) - low + 1
    starts = near_other * extent + lo[other, dim] - low
    order = np.argsort(starts, kind="stable")
    other, starts = other[order], starts[order]
    base = near_one * extent - low
    begin = np.searchsorted(starts, base + lo[one, dim] - widest, side="right")
    end = np.searchsorted(starts, base + hi[one, dim], side="left")
    source, at = expand(begin[:, None], end[:, None], (len(other),))
    first, second = one[source], other[at]
    meet = ((lo[first] < hi[second]) & (lo[second] < hi[first])).all(axis=1) & (a.peer[first] == a.peer[second])
    return first[meet], second[meet]


def _neighbourhoods(a: Accesses, one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Return numbers of two sets of accesses. Those that have an element in common have the same number.

    Along each dimension accesses are neighbours if a chain of overlapping ones leads from one to the other. Tiles of
    one grid have each a neighbourhood of their own: a number of pairs that grows with that of tiles, not its square.
    """
    rows = np.concatenate([one, other])
    number = np.unique(a.peer[rows], return_inverse=True)[1]
    for d in range(a.lo.shape[1]):
        lo, hi = a.lo[rows, d], a.hi[rows, d]
        order = np.argsort(lo, kind="stable")
        begins = np.zeros(len(rows), np.int64)
        begins[1:] = lo[order[1:]] >= np.maximum.accumulate(hi[order])[:-1]
        chain = np.empty(len(rows), np.int64)
        chain[order] = np.cumsum(begins)
        number = np.unique(number * (int(chain.max(initial=0)) + 1) + chain, return_inverse=True)[1]
    return number[: len(one)], number[len(one) :]


def waits_are_free(plan: Plan, order: HappensBefore | None = None) -> bool:
    """True if no notify that a copy engine waits for depends on a notify by a copy engine, on any rank.

    That is asked of the order of the queues (`order`, if the caller has it). Then no wait of a queue can block the
    entries after it for ever, even if they were issued before it.
    """
    signals, channel = plan.signals, plan.counters
    engines = np.array([kernel.on_copy_engine for kernel in plan.bound.kernels], bool)
    queued = engines[worker_columns(plan.workers)[0]]
    by_queue = queued[plan.worker[signals.task]]
    awaited = np.unique(channel[by_queue & (signals.kind == WAIT)])
    if not len(awaited):
        return True
    rows = np.flatnonzero((signals.kind == NOTIFY) & np.isin(channel, awaited))
    if by_queue[rows].any():
        return False
    plan = replace(plan, overtaking=np.zeros(0, np.int64)) if order is None else order.plan
    order = order or HappensBefore(plan=plan)
    key, worker = plan.signal_keys, plan.worker[signals.task]
    for queue in np.flatnonzero(queued):
        flags = np.flatnonzero((worker == queue) & (signals.kind == NOTIFY))
        if not len(flags):
            continue
        earliest = np.full(len(plan.workers), np.iinfo(np.int64).max)
        for other, first in order.reach({int(queue): int(key[flags].min())}).items():
            earliest[other] = first
        if (key[rows] > earliest[worker[rows]]).any():
            return False
    return True
