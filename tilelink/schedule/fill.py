"""Programs without a tile in the last round of a kernel's products do tiles of what comes behind them meanwhile.

P programs do the T tiles of a kernel's loops in ceil(T / P) rounds, and in the last one only busy = T % P of them have
work. The next stage is dealt out evenly all the same: programs that are free a round earlier are done with it a round
earlier, and wait. With `fill n` they do up to n tiles of that stage each before all programs share the rest of it:

before: sums(t: S)          tile t: program (T + t) % P
after:  sums(t: F)          tile t: program busy + t % (P - busy),                 F <= n * (P - busy)
        sums_rest(t: S - F) tile F + t of the order: program (T + F + t) % P

Tiles that wait for what the kernel itself makes in its last round or later would hold them up, so F ends before the
first of these. What comes out are stages with tiles like all others: nobody else knows that they were one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilelink.errors import ScheduleError
from tilelink.ir.scalar import Lookup, add, const, substitute, walk
from tilelink.ir.visitor import stage_scalars
from tilelink.schedule.bound import Bound, BoundStage, Kernel, Loop
from tilelink.schedule.orders import TILE
from tilelink.schedule.plan import NOTIFY, WAIT, signals_of


def fill_rounds(bound: Bound) -> Bound:
    """The bound program with all stages cut in two that its schedule lets fill a round. Raises ScheduleError where one
    cannot."""
    for part in bound.schedule.stages:
        if part.fill is None:
            continue
        kernel = next(k for k in bound.kernels if part.name in k.stage_names)
        at = next(n for n, loop in enumerate(kernel.loops) if part.name in loop.stages)
        if reason := _reason(bound, kernel, at):
            message = f"{part.name} cannot fill a round of other tiles: {reason}"
            raise ScheduleError(message, location=part.location, hint="take `fill` away")
        free = -kernel.loops[at].first % kernel.programs
        if head := min(part.fill * free, _ready(bound, kernel, at)):
            bound = _cut(bound, kernel, at, head)
    return bound


def _reason(bound: Bound, kernel: Kernel, at: int) -> str | None:
    part = bound.schedule.stage(kernel.loops[at].stages[0])
    if len(kernel.loops[at].stages) > 1:
        return "other stages do its tiles with it"
    if kernel.on_copy_engine or not at:
        return "no tiles on SMs come before its own in a kernel"
    if part.split_tail:
        return "its last tiles are divided"
    stages = (bound.stages[name].stage for name in kernel.stage_names)
    if any(isinstance(e, Lookup) for stage in stages for scalar in stage_scalars(stage) for e in walk(scalar)):
        return "a table says what its tiles wait for, which is not known yet"
    return None


def _ready(bound: Bound, kernel: Kernel, at: int) -> int:
    """How many of its first tiles wait, on every rank, for nothing that the kernel makes in its last round or later."""
    stage = bound.stages[kernel.loops[at].stages[0]]
    signals, first_task = signals_of(bound, kernel.stage_names)
    last = (kernel.loops[at].first - 1) // kernel.programs * kernel.programs
    late: list[int] = []
    for loop in kernel.loops:
        for name in loop.stages:
            task = signals.task - first_task[name]
            own = (task >= 0) & (task < bound.stages[name].total * bound.ranks) & (signals.kind == NOTIFY)
            behind = loop.first + task % max(1, bound.stages[name].total) >= last
            late += _cells(bound, signals.peer[own & behind], signals.channel[own & behind]).tolist()
    task = signals.task - first_task[stage.name]
    waits = (task >= 0) & (task < stage.total * bound.ranks) & (signals.kind == WAIT)
    held = waits & np.isin(_cells(bound, signals.peer, signals.channel), np.array(late, dtype=np.int64))
    return int(np.min(task[held] % stage.total, initial=stage.total))


def _cells(bound: Bound, rank: np.ndarray, channel: np.ndarray) -> np.ndarray:
    """Numbers for the channels of all ranks."""
    return channel * bound.ranks + rank


def _cut(bound: Bound, kernel: Kernel, at: int, tiles: int) -> Bound:
    """The first tiles of a loop's stage for the programs that are free, and a stage and a loop for the others."""
    loop = kernel.loops[at]
    stage = bound.stages[loop.stages[0]]
    busy = loop.first % kernel.programs
    head = replace(stage, tasks=tiles, flat=False, defer_notify=False)
    early = replace(loop, begin=busy, width=kernel.programs - busy)
    if tiles == stage.total:
        return _with(bound, kernel, (head,), at, (early,))
    rest = _behind(bound, stage, tiles)
    late = Loop(stages=(rest.name,), first=loop.first + tiles)
    return _with(bound, kernel, (head, rest), at, (early, late))


def _behind(bound: Bound, stage: BoundStage, tiles: int) -> BoundStage:
    """The stage without its first tiles, by another name."""
    name = f"{stage.name}_rest"
    while name in {*bound.stages, *bound.tensors, *(p.name for p in bound.program.params), *stage.extents}:
        name += "_"
    place = {TILE.name: add(TILE, const(tiles))}
    return replace(
        stage,
        number=len(bound.stages),
        stage=replace(stage.stage, name=name),
        order={index: substitute(place_of, place) for index, place_of in stage.order.items()},
        tasks=stage.total - tiles,
    )


def _with(bound: Bound, kernel: Kernel, stages: tuple[BoundStage, ...], at: int, loops: tuple[Loop, ...]) -> Bound:
    """The bound program with stages of which the last may be new, and other loops in the place of one."""
    known = {*bound.stages}
    new = tuple(one.stage for one in stages if one.name not in known)
    changed = replace(kernel, loops=(*kernel.loops[:at], *loops, *kernel.loops[at + 1 :]))
    return replace(
        bound,
        program=replace(bound.program, stages=(*bound.program.stages, *new)),
        stages={**bound.stages, **{one.name: one for one in stages}},
        kernels=tuple(changed if k.name == kernel.name else k for k in bound.kernels),
    )
