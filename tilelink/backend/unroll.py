"""Unrolled loops over ranks, and loops with several iterations in flight.

A program should not wait for one peer before it has sent its request or its notify to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from tilelink.ir.program import Assign, Attend, Dot, For, If, Local, Notify, Reduce, Region, Scan, Transfer, UserCall
from tilelink.ir.scalar import Compare, Scalar
from tilelink.ir.visitor import reads, values

ITERATIONS = 8
ELEMENTS = 16384
"""Largest number of elements of all iterations together, which are in registers at the same time."""
ROUNDS_AHEAD = 3
"""Largest number of iterations in flight of a loop that loads.

Adding seven peers' 128x256 tiles takes 15 us with two to four in flight, and 22 us one by one (H200).
"""
TOGETHER = 32
"""Largest number of notifies that are issued together: one for each thread of a warp."""


def unrolled(loop: For, count: int, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """True if a loop of `count` iterations only loads and computes small tiles, so that all its loads may be in flight.

    Also true for loops that only send such tiles, which saves the loop. Loops with products, reductions, other stores
    or signals are not unrolled. shapes: shapes of the tiles of the stage's names, in elements.
    """
    elements = 0
    for statement in loop.body:
        if isinstance(statement, Transfer) and isinstance(statement.source, Local):
            elements = max(elements, prod(shapes[statement.source.name]))
            continue
        if not isinstance(statement, Assign):
            return False
        if any(isinstance(v, Dot | Attend | Reduce | Scan) for v in values(statement.value)):
            return False
        elements = max(elements, prod(shapes[statement.name]))
    return len(loop.indices) == 1 and count <= ITERATIONS and count * elements <= ELEMENTS


def rounds_ahead(loop: For, count: int, bytes_of: Callable[[Region], int], room: int) -> int:
    """Return how many iterations of a loop may have their loads in flight together; 1 if impossible or of no use.

    More than 1 needs a loop of assignments that load and compute elementwise: the order of any other statement matters.
    bytes_of: bytes of a region. room: bytes of shared memory, through which such loads go (Triton buffers those of one
    iteration less).
    """
    size = 0
    for statement in loop.body:
        if not isinstance(statement, Assign):
            return 1
        if any(isinstance(v, Dot | Attend | Reduce | Scan | UserCall) for v in values(statement.value)):
            return 1
        size += sum(bytes_of(region) for region in reads(statement.value))
    return max(1, min(ROUNDS_AHEAD, count, room // size)) if size and len(loop.indices) == 1 else 1


def notified_together(loop: For, count: int) -> tuple[Notify, Scalar | None] | None:
    """Return the notify that is the whole body of a loop, and its condition, or None: one instruction can issue all."""
    if len(loop.indices) != 1 or len(loop.body) != 1 or not 1 < count <= TOGETHER:
        return None
    match loop.body[0]:
        case Notify() as notify:
            return (notify, None) if notify.region.rank is not None else None
        case If(condition=Compare() as condition, then=(Notify() as notify,), orelse=()):
            return (notify, condition) if notify.region.rank is not None else None
        case _:
            return None
