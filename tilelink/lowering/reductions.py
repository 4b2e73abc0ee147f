"""Reductions must see all of the reduced index: with a part of it, the result would depend on the schedule.

A sum, a matrix product or attention over an index of the stage's domain covers a single tile, so that index must have
one tile. Over an index of a loop each iteration gives a partial result (lowering/recurrences.py), and the iterations
must be independent in memory (lowering/dependences.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilelink.errors import TileSizeError
from tilelink.ir.program import Attend, Dot, For, Reduce, Scan, Value
from tilelink.ir.typing import StageTyping, Typing
from tilelink.ir.visitor import statements, value_of, values
from tilelink.lowering.bound import BoundStage
from tilelink.lowering.dependences import check_dependences
from tilelink.lowering.recurrences import check_iterations, holds_all


def check_reductions(stages: Mapping[str, BoundStage], typing: Typing, ranks: int) -> None:
    """Raise TileSizeError for a stage whose results depend on the tile size of an index."""
    for name, stage in stages.items():
        stage_typing = typing.stage(name)
        _check_domain(stage, stage_typing)
        for loop in statements(stage.stage.body):
            if isinstance(loop, For):
                for decl in loop.indices:
                    if stage.count(decl.name) > 1 and decl.name not in stage_typing.scalar_indices:
                        check_iterations(stage, stage_typing, loop, decl.name)
                        check_dependences(stage, ranks, loop, decl.name)


def reduced_indices(value: Value, typing: StageTyping) -> Iterator[tuple[str, str]]:
    """Yield (name of the operation, index) for each index along an axis that a value reduces."""
    match value:
        case Reduce(op=op, value=inner, axis=axis) | Scan(op=op, value=inner, axis=axis):
            axes = [(f"the {op}", typing.type_of(inner).axes[axis])]
        case Dot(left=left):
            axes = [("a product", typing.type_of(left).axes[-1])]
        case Attend(q=q, k=k, v=v):
            along = (typing.type_of(q).axes[-1], *typing.type_of(k).axes[-2:], typing.type_of(v).axes[-2])
            axes = [("attention", axis) for axis in along]
        case _:
            axes = []
    yield from ((what, axis.index) for what, axis in axes if axis.index is not None)


def _check_domain(stage: BoundStage, typing: StageTyping) -> None:
    domain = {decl.name for decl in stage.stage.indices}
    for statement in statements(stage.stage.body):
        value = value_of(statement)
        for node in values(value) if value is not None else ():
            for what, index in reduced_indices(node, typing):
                if index in domain and stage.count(index) > 1:
                    message = (
                        f"stage {stage.name} takes {what} over tiles of {index}, of {stage.tiles[index]} elements each"
                    )
                    hint = f"{holds_all(stage, index)}; or write `:`, or loop over {index} and add up"
                    raise TileSizeError(message, location=node.location or statement.location, hint=hint)
