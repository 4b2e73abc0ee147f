"""`serpentine`: each second row of tiles, or group of rows, runs backwards along the other of the two inner indices.

The last tiles of a row, or of a group, and the first of the next one have that index in common, and so an operand of a
product, which may still be in the L2 cache. CUTLASS visits the parts of a warp's product in such an order.

before: i = tile // 3, j = tile % 3         (0, 0) (0, 1) (0, 2)  (1, 0) (1, 1) (1, 2)
after:  j = 2 - tile % 3 in each second i   (0, 0) (0, 1) (0, 2)  (1, 2) (1, 1) (1, 0)

With `group(i, g)` a group of g tiles of i is what a row is without it.
"""

from __future__ import annotations

from dataclasses import replace

from tilelink.errors import ScheduleError
from tilelink.ir.scalar import add, binary, const, mul
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.clauses.clause import Clause, Known, Phase, switch
from tilelink.lowering.orders import nest
from tilelink.scheduling.schedule import IndexOrder


def _apply(bound: Bound) -> Bound:
    """Return the bound program whose stages run to and fro where the schedule says so.

    Raises ScheduleError for a stage that has no such order.
    """
    stages = dict(bound.stages)
    for part in bound.schedule.stages:
        if not part[SERPENTINE]:
            continue
        stage = stages[part.name]
        if reason := _reason(bound, stage):
            message = f"{part.name} cannot run in a serpentine: {reason}"
            raise ScheduleError(message, location=part.at("serpentine"), hint="take `serpentine` away")
        stages[part.name] = _to_and_fro(bound, stage)
    return replace(bound, stages=stages)


def _reason(bound: Bound, stage: BoundStage) -> str | None:
    if any(stage.name in loop.stages and len(loop.stages) > 1 for loop in bound.kernel_of[stage.name].loops):
        return "another stage shares its tiles"
    terms = _inner(bound, stage)
    if len(terms) < 2:
        return "its tiles have one index"
    other = next((term.index for term in terms if term.kind != "natural"), None)
    return None if other is None else f"its order says where {other} begins, or in which steps it goes on"


def _inner(bound: Bound, stage: BoundStage) -> list[IndexOrder]:
    """Return the two innermost indices of a stage's nest, or fewer if it has no two."""
    counts = {name: stage.count(name) for name in stage.order}
    return nest(stage.nest, counts, bound.schedule.stage(stage.name))[-2:]


def _to_and_fro(bound: Bound, stage: BoundStage) -> BoundStage:
    row, column = (term.index for term in _inner(bound, stage))
    rows = 1
    if stage.nest is not None and stage.nest.group is not None:
        grouped, rows = stage.nest.group
        row, column = (row, column) if grouped == row else (column, row)
    number = binary("//", stage.order[row], const(rows))
    last = const(stage.count(column) - 1)
    turned = binary("-", binary("-", last, stage.order[column]), stage.order[column])
    backwards = mul(binary("%", number, const(2)), turned)
    return replace(stage, order={**stage.order, column: add(stage.order[column], backwards)})


SERPENTINE: Clause[bool] = switch(
    "serpentine",
    apply=_apply,
    phase=Phase.TILES,  # before tails are cut off, which are the last tiles of this order
    needs=Known(
        why="its order is one of all tiles",
        instead="take serpentine away: the tiles that are there keep their order",
        tiles_alone=True,
    ),
    manual=(
        "each second row of tiles of the two innermost indices, or each second `group`, runs backwards along the "
        "other index, so that consecutive tiles have an operand in common there, which may still be in the L2 cache. "
        "Not for tiles that another stage shares, and not with a sequence of one of these indices"
    ),
)
