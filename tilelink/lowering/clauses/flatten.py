"""`flatten`: a program starts its next tile before it has finished the current one.

A flattened loop has one software pipeline across all tiles of a program: the last steps of a tile's product overlap the
loads of the next tile's operands. The clause is accepted only if the overlap cannot be observed
(lowering/flat_loops.py).
"""

from __future__ import annotations

from dataclasses import replace

from tilelink.errors import ScheduleError
from tilelink.ir.program import Stage
from tilelink.ir.typing import StageTyping
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.clause import Choices, Clause, Known, Phase, Ties, switch
from tilelink.lowering.flat_loops import flat_reason, unobservable_reason


def _apply(bound: Bound) -> Bound:
    """Return the bound program with flat stages. Raises ScheduleError, with the reason, if a stage cannot be flat."""
    stages = dict(bound.stages)
    for kernel in bound.kernels:
        for loop in kernel.loops:
            for name in loop.stages:
                part = bound.schedule.stage(name)
                if not part[FLATTEN]:
                    continue
                if reason := unobservable_reason(bound, kernel, loop, stages[name]):
                    message, hint = f"{name} cannot be flattened: {reason}", "take `flatten` away"
                    raise ScheduleError(message, location=part.at("flatten"), hint=hint)
                stages[name] = replace(stages[name], flatten=True)
    return replace(bound, stages=stages)


def _stage_reason(stage: Stage, _: StageTyping) -> str | None:
    return flat_reason(stage.body)


FLATTEN: Clause[bool] = switch(
    "flatten",
    formerly="flat",
    apply=_apply,
    capability="flattened_loops",
    phase=Phase.TILES,  # first of all: it judges the stages that were written, not what splitting makes of them
    needs=Known(
        why="a flat loop loads a tile before it is known whether the tile is there",
        instead="take flatten away: num_stages has several steps of a tile in flight, and dynamic deals uneven tiles",
        tiles_alone=True,
    ),
    ties=Ties.SHOWN,
    without_roles=True,
    choices=Choices(
        name="pipeline", labels={"tile by tile": False, "through all tiles": True}, reason=_stage_reason, together=True
    ),
    manual=(
        "one software pipeline across all tiles of a program: the next tile's wait and first loads come before a "
        "tile's last steps and stores; for stages whose tiles begin with a product, after waits at most, and "
        "contain no other product and no loop; refused if it could be observed"
    ),
)
