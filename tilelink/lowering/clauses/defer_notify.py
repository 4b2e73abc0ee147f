"""`defer_notify`: a program notifies a tile while it multiplies its next tile.

before: for tile:  c[i, j] = dot(x[i, :], w[j, :].T)
                   producer_tile_notify(c[i, j])
after:  for tile:  c[i, j] = dot(x[i, :], w[j, :].T), which issues the notify of the previous tile in its third step
        and after the loop the notify of the last tile

A notify waits until the stores of the program are visible to other ranks, which takes almost a microsecond between two
tiles. A few steps into the next product they are visible anyway. Deferral does not change anything that verification
relies on (lowering/deferred_notifies.py).
"""

from __future__ import annotations

from dataclasses import replace

from tilelink.errors import ScheduleError
from tilelink.ir.program import Stage
from tilelink.ir.typing import StageTyping
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.clause import Choices, Clause, Known, Phase, Ties, switch, without
from tilelink.lowering.deferred_notifies import NOTIFY_STEP, deferred, deferred_reason, undeferred_reason


def _apply(bound: Bound) -> Bound:
    """Return the bound program with the product and the step in which each deferred notify is issued.

    Raises ScheduleError for a notify that cannot be deferred.
    """
    stages = dict(bound.stages)
    for kernel in bound.kernels:
        for loop in kernel.loops:
            for name in loop.stages:
                stage = bound.stages[name]
                if stage.defer_notify and (reason := undeferred_reason(bound, kernel, loop, stage)):
                    location, hint = bound.schedule.stage(name).at("defer_notify"), "take `defer_notify` away"
                    raise ScheduleError(f"{name} cannot defer its notifies: {reason}", location=location, hint=hint)
                if stage.defer_notify:
                    stages[name] = deferred(bound, stage)
                    if stages[name] == stage and bound.capabilities.deferred_notifies:
                        few = f"its products have at most {NOTIFY_STEP} steps"
                        bound = bound.leaving_out(DEFER_NOTIFY.name, name, few)
    return replace(bound, stages=stages)


def _stage_reason(stage: Stage, _: StageTyping) -> str | None:
    return deferred_reason(stage.body)


DEFER_NOTIFY: Clause[bool] = switch(
    "defer_notify",
    apply=_apply,
    capability="deferred_notifies",
    phase=Phase.AFTER_BARRIERS,  # a notify is issued in a statement of a number
    needs=Known(
        why="the notify of a tile waits for the product of the next one, which need not be there",
        instead="take defer_notify away",
    ),
    ties=Ties.SHOWN,
    without_roles=True,
    choices=Choices(
        name="notified",
        labels={"at its end": False, "in the next product": True},
        reason=_stage_reason,
        together=True,
        fits=without("roles"),
    ),
    manual=(
        "a tile is notified while its program multiplies the next one, because a notify waits for the tile's stores "
        "and delays the next product. For stages with tiles of their own that wait for nothing, or only after their "
        "last product, that have no conditions or loops, and that end with a notify of their own rank, one counter "
        "per tile; not with `split_k_tail`; no effect if products have two steps or fewer"
    ),
)
