"""`backfill n`: CTAs that are idle in the last wave of one stage start tiles of the next stage.

P CTAs execute the T tiles of a kernel's loops in ceil(T / P) waves. In the last wave only busy = T % P of them have a
tile. Without this clause the next stage is divided evenly among all CTAs. Those that are free a wave earlier finish it
a wave earlier, and then idle. With `backfill n` each idle CTA executes up to n tiles of that stage. All CTAs then share
the remaining tiles:

before: sums(t: S)          tile t: program (T + t) % P
after:  sums(t: F)          tile t: program busy + t % (P - busy),                 F <= n * (P - busy)
        sums_rest(t: S - F) tile F + t of the order: program t % P, because the wave is full

A tile that waits for data of the kernel's own last wave or later, directly or through other stages, would stall an idle
CTA. So F ends before the first such tile. The F tiles are executed one by one, without the `flatten` and the
`defer_notify` of the remaining ones. The result is two ordinary stages: no later pass knows that they were one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilelink.errors import ScheduleError
from tilelink.ir.program import Attend, Dot, Program, Stage, Store, Wait
from tilelink.ir.scalar import Lookup, add, const, substitute, walk
from tilelink.ir.typing import StageTyping
from tilelink.ir.visitor import stage_scalars, statements, value_of, values
from tilelink.lowering.bound import Bound, BoundStage, Kernel, Loop
from tilelink.lowering.clauses.clause import Choices, Clause, Known, Phase, Ties, count, divides
from tilelink.lowering.clauses.resource import RESOURCE
from tilelink.lowering.enumerate import signals_of
from tilelink.lowering.events import NOTIFY, WAIT, Signals
from tilelink.lowering.orders import TILE
from tilelink.lowering.transform import free_name
from tilelink.lowering.walk import executions
from tilelink.scheduling.schedule import Fused, Schedule

Bools = NDArray[np.bool_]
SEARCHED_TILES = 2
"""Largest n that a search tries."""
LISTED = 1 << 22
"""Executions of statements, at most, of a program whose signals are listed: they take about a gigabyte."""


def _apply(bound: Bound) -> Bound:
    """Return the bound program in which every stage with a `backfill` clause is split in two.

    Raises ScheduleError if a stage cannot be split.
    """
    stages = [name for kernel in bound.kernels for loop in kernel.loops for name in loop.stages]
    for name in stages:  # in the order of a kernel's loops, because a backfilled stage moves all loops after it
        part = bound.schedule.stage(name)
        most = part[BACKFILL]
        if most is None:
            continue
        kernel = bound.kernel_of[name]
        at = next(n for n, loop in enumerate(kernel.loops) if name in loop.stages)
        if reason := _reason(bound, kernel, at):
            message = f"{name} cannot fill a wave of other tiles: {reason}"
            hint = "take `backfill` away"
            if not at and len(kernel.loops[0].stages) == 1 and not kernel.on_copy_engine:
                hint += ", or run the stage after another one in its kernel: in STAGE epilogue"
            raise ScheduleError(message, location=part.at("backfill"), hint=hint)
        free = -kernel.loops[at].first % kernel.programs
        listed = executions(bound) <= LISTED
        if listed and (head := min(most * free, _ready(bound, kernel, at))):
            bound = _cut(bound, kernel, at, head)
        else:
            reason = "its tiles wait for those of the wave" if free else "every program has a tile in the wave before"
            reason = reason if listed else "the program has too many waits and notifies to look at each"
            bound = bound.leaving_out(BACKFILL.name, name, reason)
    return bound


def _reason(bound: Bound, kernel: Kernel, at: int) -> str | None:
    if len(kernel.loops[at].stages) > 1:
        return f"{kernel.name} and its epilogues of the same ranges execute each tile together"
    if kernel.on_copy_engine or not at:
        return "no tiles on SMs come before its own in a kernel"
    if divides(bound.schedule.stage(kernel.loops[at].stages[0])):
        return "its last tiles are divided"
    if any(isinstance(e, Lookup) for s in bound.program.stages for scalar in stage_scalars(s) for e in walk(scalar)):
        return "there is a table, and what its tiles wait for may depend on it"
    return None


def _ready(bound: Bound, kernel: Kernel, at: int) -> int:
    """Return how many of the first tiles wait, on no rank, for data of the kernel's last wave or later."""
    stage = bound.stages[kernel.loops[at].stages[0]]
    signals, first_task = signals_of(bound)
    late = np.zeros(sum(one.total for one in bound.stages.values()) * bound.ranks, bool)
    last = (kernel.loops[at].first - 1) // kernel.programs * kernel.programs
    for loop in kernel.loops:
        if loop.width:
            continue  # tiles of a backfilled stage run before the last wave, or that wave is full
        for name in loop.stages:
            position = loop.first + np.tile(np.arange(bound.stages[name].total), bound.ranks)
            late[first_task[name] + np.arange(len(position))] = position >= last
    held = _held(signals, late)
    waiting = held[first_task[stage.name] :][: stage.total * bound.ranks]
    return int(np.min(np.flatnonzero(waiting) % stage.total, initial=stage.total))


def _held(signals: Signals, late: Bools) -> Bools:
    """Return a mask of the tasks that wait for late tasks, directly or through other tasks."""
    cell = signals.channel * (int(signals.peer.max(initial=0)) + 1) + signals.peer
    notify, wait = signals.kind == NOTIFY, signals.kind == WAIT
    held, previous = np.zeros_like(late), -1
    while (count := int(held.sum())) > previous:
        previous = count
        made = cell[notify & (late | held)[signals.task]]
        held[signals.task[wait & np.isin(cell, made)]] = True
    return held


def _cut(bound: Bound, kernel: Kernel, at: int, tiles: int) -> Bound:
    """Split a loop: its first tiles go to the idle programs, and a new stage and loop get the others."""
    loop = kernel.loops[at]
    stage = bound.stages[loop.stages[0]]
    busy = loop.first % kernel.programs
    stages = [replace(stage, tasks=tiles, flatten=False, defer_notify=False)]
    loops = [replace(loop, begin=busy, width=kernel.programs - busy)]
    full = loop.first - busy + kernel.programs
    if tiles < stage.total:
        stages.append(_after(bound, stage, tiles))
        loops.append(Loop(stages=(stages[1].name,), first=full))
    moved = full - loop.first - tiles
    later = (replace(one, first=one.first + moved) for one in kernel.loops[at + 1 :])
    changed = replace(kernel, loops=(*kernel.loops[:at], *loops, *later))
    return replace(
        bound,
        program=replace(bound.program, stages=(*bound.program.stages, *(one.stage for one in stages[1:]))),
        stages={**bound.stages, **{one.name: one for one in stages}},
        kernels=tuple(changed if k.name == kernel.name else k for k in bound.kernels),
    )


def _after(bound: Bound, stage: BoundStage, tiles: int) -> BoundStage:
    """Return the stage without its first tiles, under another name."""
    taken = {*bound.stages, *bound.tensors, *(p.name for p in bound.program.params), *stage.extents}
    name = free_name(f"{stage.name}_rest", taken)
    shifted = {TILE.name: add(TILE, const(tiles))}
    return replace(
        stage,
        number=len(bound.stages),
        stage=replace(stage.stage, name=name),
        order={index: substitute(place_of, shifted) for index, place_of in stage.order.items()},
        tasks=stage.total - tiles,
    )


def _stage_reason(stage: Stage, typing: StageTyping) -> str | None:
    """Return why a search does not try it, or None. It suits stages that consume other tiles, such as sums."""
    body = list(statements(stage.body))
    computed = [value for s in body if (value := value_of(s)) is not None]
    if any(isinstance(v, Dot | Attend) for value in computed for v in values(value)):
        return "it multiplies"
    if stage.kind == "comm" and not any(isinstance(s, Store) for s in body):
        return "it only moves data"
    if sum(d.name not in typing.scalar_indices for d in stage.indices) < 2:
        return "its tiles are no blocks"
    return None if any(isinstance(s, Wait) for s in body) else "it waits for nothing"


def _after_other_tiles(_: Program, schedule: Schedule, stage: str) -> bool:
    resource = schedule.stage(stage)[RESOURCE]
    return isinstance(resource, Fused) and resource.place == "epilogue"


BACKFILL: Clause[int | None] = count(
    "backfill",
    "a program does at least one tile",
    formerly="fill",
    apply=_apply,
    phase=Phase.TILES,  # after all that changes the last wave, whose idle programs it gives tiles
    needs=Known(
        why="only a launch knows which CTAs have no tile in the last wave",
        instead="take backfill away: dynamic, or a stage on sm(n), uses idle CTAs",
    ),
    ties=Ties.SHOWN,
    without_roles=True,
    choices=Choices(
        name="begins",
        labels={"with all programs": None, "with those free a wave earlier": SEARCHED_TILES},
        reason=_stage_reason,
        fits=_after_other_tiles,
    ),
    manual=(
        "CTAs that are idle in the last wave of the previous stages of their kernel execute up to n tiles of this "
        "stage each, then all CTAs share the rest. Only tiles that do not wait for data of that wave qualify. They "
        "are executed one by one, without `flatten` and `defer_notify`. For a stage after others in a kernel that "
        "shares its tiles with none, without `roles`, in programs without tables; no effect if every CTA has a tile, "
        "or if the first tiles have to wait"
    ),
)
