"""A condition under which the queues of copy engines may be reordered."""

from __future__ import annotations

import numpy as np

from tilelink.lowering.enumerate import NOTIFY, WAIT
from tilelink.planning.happens_before import HappensBefore
from tilelink.planning.plan import Plan


def waits_are_free(plan: Plan) -> bool:
    """True if no notify that a copy engine waits for depends on a notify by a copy engine, on any rank.

    Then no wait of a queue can block the entries after it for ever, even if they were issued before it.
    """
    signals, channel = plan.signals, plan.counters
    queued = np.array([plan.bound.kernels[number].on_copy_engine for number, _, _ in plan.workers], dtype=bool)
    by_queue = queued[plan.worker[signals.task]]
    awaited = np.unique(channel[by_queue & (signals.kind == WAIT)])
    if not len(awaited):
        return True
    rows = np.flatnonzero((signals.kind == NOTIFY) & np.isin(channel, awaited))
    if by_queue[rows].any():
        return False
    order = HappensBefore(plan=plan)
    key, worker = plan.signal_places, plan.worker[signals.task]
    for queue in np.flatnonzero(queued):
        flags = np.flatnonzero((worker == queue) & (signals.kind == NOTIFY))
        if not len(flags):
            continue
        earliest = np.full(len(plan.workers), np.iinfo(np.int64).max)
        for other, place in order.reach(int(queue), int(key[flags].min())).items():
            earliest[other] = place
        if (key[rows] > earliest[worker[rows]]).any():
            return False
    return True
