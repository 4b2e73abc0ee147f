"""Loops over ranks as straight lines: no peer should be waited for before the next one is asked, or told."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilelink.ir.program import Assign, Attend, Dot, For, If, Local, Notify, Reduce, Transfer
from tilelink.ir.scalar import Compare, Scalar
from tilelink.ir.visitor import values

ROUNDS = 8
ELEMENTS = 16384
"""Of all rounds together: they are in registers at the same time."""
TOGETHER = 32
"""Notifies that are given together at most: one for each thread of a warp."""


def unrolled(loop: For, count: int, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a loop of `count` rounds only loads and computes small tiles, so that all its loads may be under way.

    The same for loops that only send such tiles, which saves the loop. shapes: of the tiles of the stage's names. Loops
    with products, reductions, other stores or signals stay loops.
    """
    elements = 0
    for statement in loop.body:
        if isinstance(statement, Transfer) and isinstance(statement.source, Local):
            elements = max(elements, prod(shapes[statement.source.name]))
            continue
        if not isinstance(statement, Assign):
            return False
        if any(isinstance(v, Dot | Attend | Reduce) for v in values(statement.value)):
            return False
        elements = max(elements, prod(shapes[statement.name]))
    return len(loop.indices) == 1 and count <= ROUNDS and count * elements <= ELEMENTS


def notified_together(loop: For, count: int) -> tuple[Notify, Scalar | None] | None:
    """The notify that is all a loop does, and the comparison that it depends on: one instruction can give them all."""
    if len(loop.indices) != 1 or len(loop.body) != 1 or not 1 < count <= TOGETHER:
        return None
    match loop.body[0]:
        case Notify() as notify:
            return (notify, None) if notify.region.rank is not None else None
        case If(condition=Compare() as condition, then=(Notify() as notify,), orelse=()):
            return (notify, condition) if notify.region.rank is not None else None
        case _:
            return None
