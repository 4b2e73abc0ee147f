"""Refusals for a stage whose tiles or places a launch decides.

A copy engine is told by the host where to copy, and the host does not know what a launch decides. The clauses that
rearrange tiles count them when the program is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tilelink.errors import BindingError, ScheduleError, TileSizeError
from tilelink.ir.program import Dot, For, Reduce, Stage, Value
from tilelink.ir.scalar import at_launch
from tilelink.ir.typing import Typing
from tilelink.ir.visitor import stage_regions, stage_scalars, statements, value_of, values
from tilelink.lowering.bound import BoundStage
from tilelink.lowering.clauses.clause import Clause, said
from tilelink.lowering.reductions import reduced_indices
from tilelink.scheduling.schedule import CopyEngine, Schedule

COMBINED = ("sum", "max", "min")
"""Reductions whose partial results are combined: an element that is not there counts as their neutral element."""


def allows(stage: Stage, clause: Clause[Any]) -> bool:
    """True if a clause may be said of a stage: whether it knows, when it is compiled, what the clause needs to know."""
    if clause.needs is None or not any(map(at_launch, stage_scalars(stage))):
        return True
    loops = (decl for one in statements(stage.body) if isinstance(one, For) for decl in one.indices)
    return clause.needs.tiles_alone and not any(decl.counted for decl in (*stage.indices, *loops))


def check_launch_decided(stages: Mapping[str, BoundStage], typing: Typing, schedule: Schedule, nodes: int = 1) -> None:
    """Raise ScheduleError for a clause of a stage about which a launch decides, and TileSizeError for a reduction over
    a counted range. On several nodes, raise BindingError for a peer that a launch decides: how to reach it depends on
    its node."""
    for name, stage in stages.items():
        if not any(map(at_launch, stage_scalars(stage.stage))):
            continue
        for region in stage_regions(stage.stage) if nodes > 1 else ():
            if region.rank is not None and at_launch(region.rank):
                message = f"stage {name} reaches a rank that only a launch decides, and {nodes} nodes are asked for"
                hint = "loop over the ranks, with a count for each: (p: ranks, c: C[: count[p]])"
                raise BindingError(message, location=region.location or stage.stage.location, hint=hint)
        part = schedule.stage(name)
        if isinstance(stage.resource, CopyEngine):
            message = f"stage {name} copies what only a launch decides, and a copy engine is told by the host"
            location = part.at("resource") or stage.stage.location
            raise ScheduleError(
                message, location=location, related=stage.stage.location, hint=f"{name} on sm, or on sm(8)"
            )
        for clause in said(part):
            if (needs := clause.needs) is not None and not allows(stage.stage, clause):
                what = "tiles" if stage.parts else "places"
                message = f"{clause.name} for stage {name}, whose {what} only a launch decides: {needs.why}"
                location = part.at(clause.name)
                raise ScheduleError(message, location=location, related=stage.stage.location, hint=needs.instead)
        _check_reductions(stage, typing)


def _check_reductions(stage: BoundStage, typing: Typing) -> None:
    """Raise TileSizeError for a reduction over a counted index of the domain.

    Over one of a loop, sums, products, maxima and minima are those of what is there; others are refused.
    """
    known = typing.stage(stage.name)
    domain = {decl.name for decl in stage.stage.indices}
    for statement in statements(stage.stage.body):
        value = value_of(statement)
        for node in _all(value):
            for what, index in reduced_indices(node, known):
                combines = isinstance(node, Dot) or (isinstance(node, Reduce) and node.op in COMBINED)
                if index in stage.parts and (index in domain or not combines):
                    message = f"stage {stage.name} takes {what} over the counted range of {index}"
                    hint = f"loop over it: for ({index}: M[: n]): acc += sum(x[{index}, j], axis=0)"
                    if not combines:
                        hint = f"loop over it by 1, or take all of it, and a mask for what is beyond: pos({index}) < n"
                    raise TileSizeError(message, location=node.location or statement.location, hint=hint)


def _all(value: Value | None) -> Iterator[Value]:
    if value is not None:
        yield from values(value)
