"""The order of the queues of copy engines, decided before the rules prove it: for the runtime and for the simulator.

before: kernel gather: stream copy, position 0, programs 1
after:  kernel gather: stream copy, position 0, programs 1, own_copies_first, waits_aside

Copies within a rank overtake the rest of its queue unless that changes what is read, or takes an order away that two
accesses have. The rules prove the plan in the order that is decided here, whatever the reasons were. The rule of
ordering also proves the order of the program, so that no program is safe by what overtakes alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilelink.lowering.bound import Bound
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import NOTIFY, WRITE
from tilelink.planning.any_program import apart
from tilelink.planning.copy_queues import OwnCopies, overlapping, own_copies, waits_are_free
from tilelink.planning.happens_before import BySignals, HappensBefore
from tilelink.planning.plan import Plan


def with_queue_order(plan: Plan, copies: OwnCopies | None = None) -> Plan:
    """Return the plan with the order of its copy engines: that of the queues where another one could be observed.

    copies: those within a rank, if the plan has not all that queues do.
    """
    if not any(kernel.on_copy_engine for kernel in plan.bound.kernels):
        return plan
    copies = copies or own_copies(plan)
    queued = HappensBefore(plan=copies.plan)
    first = not copies.conflict and _keeps_order(copies, queued)
    # A measured timeline has the waits in the order of the queue.
    aside = not plan.bound.capabilities.traced and waits_are_free(plan, queued)
    return _ordered(plan, copies.overtaking if first else None, own_first=first, waits_aside=aside)


def in_queue_order(plan: Plan, *, own_first: bool, waits_aside: bool) -> Plan:
    """Return the plan with an order of its copy engines, whether or not it is a safe one."""
    return _ordered(
        plan, own_copies(plan).overtaking if own_first else None, own_first=own_first, waits_aside=waits_aside
    )


def _ordered(plan: Plan, overtaking: Ints | None, *, own_first: bool, waits_aside: bool) -> Plan:
    overtaking = np.zeros(0, np.int64) if overtaking is None else overtaking
    bound = with_order(plan.bound, own_first=own_first, waits_aside=waits_aside)
    return replace(plan, bound=bound, overtaking=overtaking)


def with_order(bound: Bound, *, own_first: bool, waits_aside: bool) -> Bound:
    """Return the bound program that says an order of its copy engines."""
    kernels = tuple(
        replace(kernel, own_copies_first=own_first, waits_aside=waits_aside) if kernel.on_copy_engine else kernel
        for kernel in bound.kernels
    )
    return replace(bound, kernels=kernels)


def _keeps_order(copies: OwnCopies, in_queues: HappensBefore) -> bool:
    """True if copies that overtake others leave each two accesses in order that the queues have in order.

    Whatever comes after an overtaken copy because of a notify that overtakes it is looked at. in_queues: the order of
    the queues.
    """
    plan, a = copies.plan, copies.plan.accesses
    if not len(copies.overtaken):
        return True
    if not plan.bound.schedule.reuse_wait:
        return False  # the rule of reuse concludes from the order of a launch how far ranks are apart
    number, s = plan.event(a.task, a.position), plan.signals
    queued, first = (apart(one) for one in (plan, copies.first))
    alone, first = apart(plan), HappensBefore(plan=apart(copies.first))
    queued = in_queues if alone is plan else HappensBefore(plan=alone)
    notifies = np.flatnonzero((s.kind == NOTIFY) & np.isin(plan.event(s.task, s.position), copies.events))
    earliest = queued.after_counters(set(plan.counters[notifies].tolist()))
    reached = queued.key(a.task, a.position) >= earliest[queued.plan.worker[a.task]]
    overtaken = np.flatnonzero(np.isin(number, copies.overtaken))
    for tensor in np.unique(a.tensor[overtaken]).tolist():
        late, after = (rows[a.tensor[rows] == tensor] for rows in (overtaken, np.flatnonzero(reached)))
        if not (a.kind[late] == WRITE).any() and not (a.kind[after] == WRITE).any():
            continue
        one, other = overlapping(plan, late, after)
        written = (a.kind[one] == WRITE) | (a.kind[other] == WRITE)
        pairs = one[written], other[written]
        if _lost(queued, first, *pairs) or _lost(BySignals(plan), BySignals(copies.first), *pairs):
            return False
    return True


def _lost(before: HappensBefore, after: HappensBefore, one: Ints, other: Ints) -> bool:
    """True if an access comes before another one in one relation, and not in another relation."""
    a = before.plan.accesses
    pair = a.task[one], a.position[one], a.task[other], a.position[other]
    lost = np.flatnonzero(~after.before(*pair))
    return bool(before.before(*(column[lost] for column in pair)).any())
