"""The order in which copy engines execute a plan: one decision, for the runtime and for the simulator."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.planning.copy_queues import own_copies, waits_are_free
from tilelink.planning.plan import Plan
from tilelink.verifier import refusals


@dataclass(frozen=True, kw_only=True)
class QueueOrder:
    """The operations of a copy engine that leave the order of its queue.

    own_first: copies within its rank, before its first wait, come before all others and before the kernels.
    waits_aside: waits are issued in parallel with the copies, so that none of those after them waits for issue.
    """

    own_first: bool
    waits_aside: bool


def queue_order(plan: Plan) -> QueueOrder:
    """Return the order of a verified plan: another one than that of the queues only where the plan stays safe and its
    results the same."""
    copies = own_copies(plan)
    return QueueOrder(
        own_first=not copies.conflict and not (len(copies.overtaken) and refusals(copies.first, limit=1)),
        # A measured timeline has the waits in the order of the queue.
        waits_aside=not plan.bound.capabilities.traced and waits_are_free(plan),
    )
