"""Loops over ranks as straight lines, or with several iterations under way: no peer should be waited for before the
next one is asked, or told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from tilelink.ir.program import Assign, Attend, Dot, For, If, Local, Notify, Reduce, Region, Transfer, UserCall
from tilelink.ir.scalar import Compare, Scalar
from tilelink.ir.visitor import reads, values

ITERATIONS = 8
ELEMENTS = 16384
"""Of all iterations together: they are in registers at the same time."""
ROUNDS_AHEAD = 3
"""Of a loop that loads. Seven peers' 128x256 tiles are added in 15 us with two to four, in 22 us one by one (H200)."""
TOGETHER = 32
"""Notifies that are given together at most: one for each thread of a warp."""


def unrolled(loop: For, count: int, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """True if a loop of `count` iterations only loads and computes small tiles, so that all its loads may be under way.

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
    return len(loop.indices) == 1 and count <= ITERATIONS and count * elements <= ELEMENTS


def rounds_ahead(loop: For, count: int, bytes_of: Callable[[Region], int], room: int) -> int:
    """How many iterations of a loop may have their loads under way at the same time, 1 if that cannot be or is no use.

    bytes_of: of what a region holds. room: bytes of shared memory, through which such loads go (Triton takes those of
    one iteration less). It is for loops of assignments that load and compute elementwise: what else is in a loop has an
    order of its own.
    """
    size = 0
    for statement in loop.body:
        if not isinstance(statement, Assign):
            return 1
        if any(isinstance(v, Dot | Attend | Reduce | UserCall) for v in values(statement.value)):
            return 1
        size += sum(bytes_of(region) for region in reads(statement.value))
    return max(1, min(ROUNDS_AHEAD, count, room // size)) if size and len(loop.indices) == 1 else 1


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
