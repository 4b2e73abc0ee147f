"""`lockstep t`: the stages of a kernel go through an index together, step by step.

Usually a kernel runs the loops of its stages one after the other: all tiles of the first, then all of the next. Stages
in a circle over layers or micro-batches cannot have that: the first one needs what the last one made a step before.
With this clause of the stage that the kernel is named after, each program executes its tiles of step 0 of all stages,
in their order, then those of step 1, and so on: a persistent kernel of a whole model ("megakernel").

before: for tile in all tiles of a; for tile in all tiles of b
after:  for each t: for tile in those of a with this t; for tile in those of b with this t

Stages may have numbers of steps that differ; one without further steps has no tiles in them. The plan has the tiles of
a program in this order, so every rule judges what runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilelink.errors import ScheduleError, did_you_mean
from tilelink.ir.program import Program
from tilelink.ir.scalar import Env, evaluate
from tilelink.lowering.bound import Bound, BoundStage, Kernel, Loop
from tilelink.lowering.clauses.clause import Clause, Phase, Ties, said
from tilelink.lowering.orders import TILE
from tilelink.scheduling.words import SchedulePart, StageSchedule


def _apply(bound: Bound) -> Bound:
    """Return the bound program whose kernels go through steps where the schedule says so. Raises ScheduleError."""
    for part in bound.schedule.stages:
        index = part[LOCKSTEP]
        if index is None:
            continue
        kernel = next((one for one in bound.kernels if one.name == part.name), None)
        if kernel is None:
            raise _refusal(part, "it runs in the kernel of another stage", "say it of the stage that runs on sm")
        if reason := _reason(bound, kernel, index):
            raise _refusal(part, reason, f"{index} of each stage of the kernel, by 1 and first in `order`")
        steps = max(bound.stages[name].count(index) for name in kernel.stage_names)
        if len(kernel.stage_names) == 1 or steps <= 1:
            why = "no other stage runs in its kernel" if steps > 1 else f"{index} has one step"
            bound = bound.leaving_out(LOCKSTEP.name, part.name, why)
            continue
        loops: list[Loop] = []
        first = 0
        for loop in kernel.loops:
            stage = bound.stages[loop.stages[0]]
            each = stage.total // max(1, stage.count(index))
            loops.append(replace(loop, first=first, each=each))
            first += each
        programs = min(kernel.programs, max(1, *(loop.each or 0 for loop in loops)))
        made = replace(kernel, loops=tuple(loops), steps=steps, programs=programs)
        bound = replace(bound, kernels=tuple(made if one is kernel else one for one in bound.kernels))
    return bound


def _refusal(part: StageSchedule, reason: str, hint: str) -> ScheduleError:
    message = f"the kernel of {part.name} cannot go through steps: {reason}"
    return ScheduleError(message, location=part.at("lockstep"), hint=hint)


def _reason(bound: Bound, kernel: Kernel, index: str) -> str | None:
    if kernel.on_copy_engine:
        return "it is a queue of a copy engine"
    for stage in (bound.stages[name] for name in kernel.stage_names):
        if index not in stage.order:
            return f"{stage.name}, which runs in it, has no index {index}"
        if not _outermost(bound, stage, index):
            return f"the order of {stage.name} does not take the numbers of {index} one after the other"
        tying = next((one.name for one in said(bound.schedule.stage(stage.name)) if one.ties is not Ties.NOWHERE), None)
        if tying is not None:
            return f"{stage.name} has `{tying}`, which is about the tiles of all steps"
    return None


def _outermost(bound: Bound, stage: BoundStage, index: str) -> bool:
    """True if the tiles of a stage come number by number of an index, on every rank."""
    each = stage.total // max(1, stage.count(index))
    numbers = np.arange(stage.total)
    env = Env(rank=np.arange(bound.ranks)[:, None], ranks=bound.ranks, params={}, indices={TILE.name: numbers})
    return not stage.total or bool((np.asarray(evaluate(stage.order[index], env)) == numbers // each).all())


def _check(program: Program, part: SchedulePart) -> None:
    names, index = [decl.name for decl in program.stage(part.name).indices], part[LOCKSTEP]
    if index is not None and index not in names:
        message = f"{part.name} has no index {index!r} in `lockstep`"
        hint = did_you_mean(index, names, f"indices: {', '.join(names)}")
        raise ScheduleError(message, location=part.at("lockstep"), hint=hint)


def _read(_: str, children: Sequence[Any]) -> str:
    return str(children[0])


def _show(value: str | None) -> str:
    return f"lockstep {value}"


LOCKSTEP: Clause[str | None] = Clause(
    name="lockstep",
    default=None,
    rules={"lockstep": '"lockstep" NAME'},
    syntax="lockstep t",
    written="lockstep t",
    read=_read,
    show=_show,
    check=_check,
    apply=_apply,
    phase=Phase.TILES,  # before the others of its phase, which count the tiles of whole loops: it refuses them
    without_roles=True,
    manual=(
        "the stages of its kernel, which run `in` it, go through index t together: a program executes its tiles of "
        "step 0 of each stage, in their order, then those of step 1. For stages in a circle over layers or "
        "micro-batches, with all SMs for each of them. t is `by 1` or has tiles, and comes first in each `order`; a "
        "stage with fewer steps has no tiles in the others. Without `roles`, `flatten` and what divides last waves"
    ),
)
