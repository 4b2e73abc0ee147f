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
from tilelink.lowering.clauses.backfill import BACKFILL
from tilelink.lowering.clauses.clause import Clause
from tilelink.lowering.clauses.defer_notify import DEFER_NOTIFY
from tilelink.lowering.clauses.flatten import FLATTEN
from tilelink.lowering.clauses.halve_tail import HALVE_TAIL
from tilelink.lowering.clauses.split_k_tail import SPLIT_K_TAIL
from tilelink.lowering.clauses.stream_k import STREAM_K
from tilelink.lowering.clauses.tma_copy import TMA_COPY
from tilelink.lowering.reductions import reduced_indices
from tilelink.scheduling.schedule import CopyEngine, Schedule

REASONS: dict[Clause[Any], tuple[str, str]] = {
    FLATTEN: (
        "a flat loop loads a tile before it is known whether the tile is there",
        "take flatten away: num_stages has several steps of a tile in flight, and dynamic deals uneven tiles",
    ),
    SPLIT_K_TAIL: (
        "only a launch knows which tiles its last wave has, and parts name whole tiles of operands",
        "take split_k_tail away: smaller tiles leave less of the last wave idle",
    ),
    STREAM_K: (
        "only a launch knows how many tiles there are, and their steps are divided when a kernel is compiled",
        "take stream_k away: with dynamic, programs take tiles by a counter",
    ),
    HALVE_TAIL: (
        "only a launch knows which tiles its last wave has",
        "take halve_tail away: smaller tiles, or dynamic, leave less of the last wave idle",
    ),
    BACKFILL: (
        "only a launch knows which CTAs have no tile in the last wave",
        "take backfill away: dynamic, or a stage on sm(n), uses idle CTAs",
    ),
    DEFER_NOTIFY: (
        "the notify of a tile waits for the product of the next one, which need not be there",
        "take defer_notify away",
    ),
    TMA_COPY: (
        "TMA copies whole boxes, whose places are known when a kernel is compiled",
        "take tma_copy away: on sm(n) with num_warps 8 copies by loads and stores",
    ),
}
"""Clause that needs to know the tiles or places of a stage when it is compiled -> why, and what to do."""
OF_TILES = (FLATTEN, HALVE_TAIL)
"""Clauses that need to know the tiles alone: a stage may gather and scatter."""


COMBINED = ("sum", "max", "min")
"""Reductions whose partial results are combined: an element that is not there counts as their neutral element."""


def allows(stage: Stage, clause: Clause[Any]) -> bool:
    """True if a clause may be said of a stage: whether it knows, when it is compiled, what the clause needs to know."""
    if clause not in REASONS or not any(map(at_launch, stage_scalars(stage))):
        return True
    loops = (decl for one in statements(stage.body) if isinstance(one, For) for decl in one.indices)
    return clause in OF_TILES and not any(decl.counted for decl in (*stage.indices, *loops))


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
            place = part.at("resource") or stage.stage.location
            raise ScheduleError(
                message, location=place, related=stage.stage.location, hint=f"{name} on sm, or on sm(8)"
            )
        for clause in REASONS:
            if part[clause] != clause.default and not allows(stage.stage, clause):
                why, hint = REASONS[clause]
                what = "tiles" if stage.parts else "places"
                message = f"{clause.name} for stage {name}, whose {what} only a launch decides: {why}"
                raise ScheduleError(message, location=part.at(clause.name), related=stage.stage.location, hint=hint)
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
