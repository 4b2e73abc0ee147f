"""Reductions need all of what they reduce: a tile of it would make the result depend on the schedule."""

from __future__ import annotations

from collections.abc import Mapping

from tilelink.errors import TileSizeError
from tilelink.ir.program import Reduce
from tilelink.ir.typing import Typing
from tilelink.ir.visitor import statements, value_of, values
from tilelink.schedule.bound import BoundStage
from tilelink.schedule.defaults import padded


def check_reductions(stages: Mapping[str, BoundStage], typing: Typing) -> None:
    """Raises TileSizeError for a reduction over an index of the domain that has several tiles.

    Over an index of a loop it is one step of a reduction that the loop goes on with.
    """
    for name, stage in stages.items():
        known = typing.stage(name)
        domain = {decl.name for decl in stage.stage.indices}
        for statement in statements(stage.stage.body):
            value = value_of(statement)
            for part in values(value) if value is not None else ():
                if not isinstance(part, Reduce):
                    continue
                index = known.type_of(part.value).axes[part.axis].index
                if index in domain and stage.count(str(index)) > 1:
                    size, whole = stage.tiles[str(index)], padded(stage.extents[str(index)])
                    message = f"stage {name} takes the {part.op} over tiles of {index}, of {size} elements each"
                    hint = f"tile({index}={whole}) holds all of it; or write `:`, or loop over {index} and add up"
                    raise TileSizeError(message, location=part.location or statement.location, hint=hint)
