"""`halve_tail`: the tiles of the last, partial wave are halved, so that more CTAs share them.

P CTAs execute T tiles in ceil(T / P) waves. In the last wave only R = T % P of them have a tile. If R is at most half
of P, the last R tiles become 2 R tiles of half the columns: the last wave takes half as long. Unlike `split_k_tail` it
adds no sums and no memory; the tiles are the same elements in smaller pieces.

before: gemm(i: M, j: N)        tile t
after:  gemm, its first T - R tiles; and then, in the same kernel
        gemm_rest(i: M, j: N)   tiles of half the size along j: the left halves of the R tiles, then the right ones

The result is two ordinary stages with tiles, waits and notifies: no later pass knows that they were one. Where the end
of the index cuts a tile to less than half, it has no right half. Such tiles must be the last ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilelink.errors import ScheduleError
from tilelink.ir.scalar import Env, add, binary, const, evaluate, mul, substitute
from tilelink.lowering.bound import Bound, BoundStage, Kernel, Loop
from tilelink.lowering.clauses.backfill import BACKFILL
from tilelink.lowering.clauses.clause import Clause, Known, Phase, Ties, switch
from tilelink.lowering.clauses.split_k_tail import SPLIT_K_TAIL
from tilelink.lowering.orders import TILE
from tilelink.lowering.transform import free_name

MIN_COLUMNS = 32
"""Least number of elements of a tile that is halved."""


def _apply(bound: Bound) -> Bound:
    """Return the bound program with every tail halved that the schedule names and that gains by it.

    Raises ScheduleError for a tail that cannot be halved.
    """
    for part in bound.schedule.stages:
        if not part[HALVE_TAIL]:
            continue
        stage, kernel = bound.stages[part.name], bound.kernel_of[part.name]
        if kernel.loops[-1].stages[0] != part.name and all(len(loop.stages) == 1 for loop in kernel.loops):
            bound = bound.leaving_out(HALVE_TAIL.name, part.name, "tiles that follow in its kernel fill its last wave")
            continue
        if reason := _reason(bound, kernel, stage):
            message = f"the tail of {part.name} cannot be halved: {reason}"
            raise ScheduleError(message, location=part.at("halve_tail"), hint="take `halve_tail` away")
        index, left = _last_index(stage), _left(kernel, stage)
        if index is None or stage.count(index) < 2 or not left:
            reason = "there are no halves for all programs" if index is None or left else "it saves no time"
            bound = bound.leaving_out(HALVE_TAIL.name, part.name, reason)
            continue
        missing = _missing(bound, stage, index, left)
        if missing is None:
            reason = "a tile of which the end leaves no right half is followed by another one, or on some ranks alone"
            bound = bound.leaving_out(HALVE_TAIL.name, part.name, reason)
        else:
            bound = _halved(bound, kernel, stage, index, left, missing)
    return bound


def _reason(bound: Bound, kernel: Kernel, stage: BoundStage) -> str | None:
    part = bound.schedule.stage(stage.name)
    if kernel.on_copy_engine:
        return "it has no tiles of its own on SMs"
    if kernel.loops[-1].stages != (stage.name,):
        return "another stage shares its tiles or those of its kernel"
    for clause in (SPLIT_K_TAIL, BACKFILL):
        if part[clause] is not None:
            return f"it has `{clause.name}`"
    index = _last_index(stage)
    if index is None:
        return "its tiles are single elements"
    size = stage.tiles[index]
    if stage.count(index) > 1 and (size < MIN_COLUMNS or size % 2):
        return f"its tiles have {size} elements along {index}, not an even number of at least {MIN_COLUMNS}"
    return None


def _last_index(stage: BoundStage) -> str | None:
    """Return the index along which tiles are halved: the last one of the domain that is no number."""
    tiled = [decl.name for decl in stage.stage.indices if decl.name not in stage.scalar_indices]
    return tiled[-1] if tiled else None


def _left(kernel: Kernel, stage: BoundStage) -> int:
    """Return the number of tiles in the last wave, or 0 if halving them saves no time."""
    busy = (kernel.loops[-1].first + stage.total) % kernel.programs
    left = min(busy, stage.total)
    return left if 2 * left <= kernel.programs - (busy - left) else 0


def _missing(bound: Bound, stage: BoundStage, index: str, left: int) -> int | None:
    """Return how many of the last tiles have no right half, or None if such a tile is followed by one that has."""
    tiles = np.arange(stage.total - left, stage.total)
    size, extent = stage.tiles[index] // 2, stage.extents[index]
    found: set[int] = set()
    for rank in range(bound.ranks):
        env = Env(rank=rank, ranks=bound.ranks, params={}, indices={TILE.name: tiles})
        column = np.broadcast_to(np.asarray(evaluate(stage.order[index], env)), tiles.shape)
        there = (2 * column + 1) * size < extent
        count = int(there.sum())
        if not there[:count].all():
            return None
        found.add(left - count)
    return found.pop() if len(found) == 1 else None


def _halved(bound: Bound, kernel: Kernel, stage: BoundStage, index: str, left: int, missing: int) -> Bound:
    """Return the bound program whose last `left` tiles of a stage are halved."""
    taken = {*bound.stages, *bound.tensors, *(p.name for p in bound.program.params), *stage.extents}
    head = replace(stage, tasks=stage.total - left)
    tile = {TILE.name: add(binary("%", TILE, const(left)), const(stage.total - left))}
    order = {name: substitute(place_of, tile) for name, place_of in stage.order.items()}
    order[index] = add(mul(order[index], const(2)), binary("//", TILE, const(left)))
    rest = replace(
        stage,
        number=len(bound.stages),
        stage=replace(stage.stage, name=free_name(f"{stage.name}_rest", taken)),
        tiles={**stage.tiles, index: stage.tiles[index] // 2},
        order=order,
        tasks=2 * left - missing,
    )
    whole = kernel.loops[-1]
    loops = (*kernel.loops, Loop(stages=(rest.name,), first=whole.first + head.total))
    return replace(
        bound,
        program=replace(bound.program, stages=(*bound.program.stages, rest.stage)),
        stages={**bound.stages, head.name: head, rest.name: rest},
        kernels=tuple(replace(k, loops=loops) if k.name == kernel.name else k for k in bound.kernels),
    )


HALVE_TAIL: Clause[bool] = switch(
    "halve_tail",
    apply=_apply,
    phase=Phase.TILES,  # before backfill, as it changes the last wave, too
    needs=Known(
        why="only a launch knows which tiles its last wave has",
        instead="take halve_tail away: smaller tiles, or dynamic, leave less of the last wave idle",
        tiles_alone=True,
    ),
    ties=Ties.SHOWN,
    manual=(
        "the tiles of the last, partial wave of CTAs are halved along their last index if at most half of the CTAs "
        "have one, so that the wave takes half as long. Not with `split_k_tail` and `backfill`, and not in a "
        "kernel whose stages share tiles; no effect if it saves no time, if tiles of other stages follow in the "
        "kernel, or if the end of the index cuts a tile to less than half before the last ones"
    ),
)
