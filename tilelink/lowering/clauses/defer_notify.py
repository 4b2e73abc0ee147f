"""`defer_notify`: a program notifies a tile while it multiplies its next tile.

before: for tile:  c[i, j] = dot(x[i, :], w[j, :].T)
                   producer_tile_notify(c[i, j])
after:  for tile:  c[i, j] = dot(x[i, :], w[j, :].T), which issues the notify of the previous tile in its third step
        and after the loop the notify of the last tile

A notify waits until the stores of the program are visible to other ranks, which takes almost a microsecond between two
tiles. A few steps into the next product they are visible anyway. Deferral does not change anything that verification
relies on:

- The stage executes no wait, or executes waits only after its last product. So the program executes no wait between the
  end of a tile and the middle of the next. The deferred notify cannot deadlock, and no later statement relies on the
  notify having been sent.
- It notifies its own rank at the end of a tile, one counter each time, so the program can keep the notify until then.
- Its tiles have a product outside of conditions, loops and other reductions, so that a given step runs once per tile.
  No other stage shares the loop over tiles.
"""

from __future__ import annotations

from dataclasses import replace

from tilelink.errors import ScheduleError
from tilelink.ir.products import has_steps, outermost_products
from tilelink.ir.program import Attend, Dot, For, If, Notify, Stage, Statement, Wait
from tilelink.ir.typing import Axis, StageTyping
from tilelink.ir.visitor import closing_notifies, statements, value_of, values
from tilelink.lowering.bound import Bound, BoundStage, Kernel, Loop
from tilelink.lowering.clauses.clause import Choices, Clause, Known, Phase, Ties, divides, switch, without
from tilelink.lowering.transform import number_of

NOTIFY_STEP = 2
"""Step of a product in which the previous tile is notified. It saved 0.5 us of each 128x256 tile.

Steps 1 and 4 saved 0.4 us (measured on an H200).
"""


def deferred_reason(body: tuple[Statement, ...]) -> str | None:
    """Return why the statements of a tile do not allow its notifies to be deferred, or None."""
    last = closing_notifies(body)
    if not last:
        return "its tiles do not end with a notify"
    every = [*statements(body)]
    if sum(isinstance(s, Notify) for s in every) > len(last):
        return "it also notifies before the end of a tile"
    if any(isinstance(s, Wait) for s in statements(_before_last_product(body))):
        return "it waits before its last product is over, and what it waits for may need the notify"
    if any(s.region.rank is not None for s in last):
        return "it notifies peers"
    if any(isinstance(s, If | For) for s in body):
        return "its tiles have conditions or loops"
    if not any(outermost_products(s) for s in body):
        return "its tiles have no product, or only one within another sum or an `attend`"
    return None


def deferred(bound: Bound, stage: BoundStage) -> BoundStage:
    """Return a stage with the first product of a tile that has enough steps to notify the previous tile, if any."""
    if not bound.capabilities.deferred_notifies:
        return stage
    typing, block = bound.typing.stage(stage.name), bound.contraction_block(stage.name)
    for number, statement in enumerate(stage.stage.body):
        for product, dot in enumerate(outermost_products(statement)):
            extent = _extent(typing.type_of(dot.left).axes[-1], bound, stage)
            if has_steps(typing, dot) and extent > NOTIFY_STEP * block:
                return replace(stage, notified_in=number, notified_product=product, notified_step=NOTIFY_STEP)
    return stage


def _extent(axis: Axis, bound: Bound, stage: BoundStage) -> int:
    """Return the number of elements of a contracted axis."""
    if axis.index is not None:
        return stage.tiles[axis.index]
    return number_of(axis.dim, bound.numbers, bound.ranks) if axis.dim is not None else 1


def _before_last_product(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return the statements of a tile before its last matrix product, or all if there is none.

    Products within sums and attention count too.
    """
    computed = [value_of(s) for s in body]
    multiply = [
        at
        for at, value in enumerate(computed)
        if value is not None and any(isinstance(v, Dot | Attend) for v in values(value))
    ]
    return body[: multiply[-1]] if multiply else body


def undeferred_reason(bound: Bound, kernel: Kernel, loop: Loop, stage: BoundStage) -> str | None:
    """Return why a stage whose tiles a loop executes cannot defer its notifies, or None."""
    if kernel.on_copy_engine or len(loop.stages) > 1:
        return "it has no tiles of its own on SMs"
    if divides(bound.schedule.stage(stage.name)):
        return "its last tiles are divided"
    if carried := _carried(bound, stage):
        return f"words carry its notifies of {carried}, which has `low_latency`"
    if reason := deferred_reason(stage.stage.body):
        return reason
    for notify in closing_notifies(stage.stage.body):
        tile_map = bound.tile_map(stage.name, notify.region)
        grid = bound.channels[notify.region.tensor, notify.kind]
        if not all(channels.count == 1 for channels in tile_map.channel_range(grid)):
            return f"a tile touches several channels of {notify.region.tensor}"
    return None


def _carried(bound: Bound, stage: BoundStage) -> str | None:
    """Return a tensor that a stage notifies as it is written, and no more, because words carry the signals; or None."""
    own = next((one for one in bound.source.stages if one.name == stage.name), None)
    if own is None or any(isinstance(s, Notify) for s in statements(stage.stage.body)):
        return None
    notified = (s.region.tensor for s in statements(own.body) if isinstance(s, Notify))
    return next((name for name in notified if bound.tensors[name].packed), None)


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
