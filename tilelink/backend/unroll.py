"""Which loops are written out: what reads a little from everywhere should not wait for one answer after the other."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilelink.ir.program import Assign, Attend, Dot, For, Reduce
from tilelink.ir.visitor import values

ROUNDS = 8
ELEMENTS = 16384
"""Of all rounds together: they are in registers at the same time."""


def unrolled(loop: For, count: int, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a loop of `count` rounds only loads and computes small tiles, so that all its loads may be under way.

    shapes: of the tiles of the stage's names. Loops with products, reductions, stores or signals stay loops.
    """
    elements = 0
    for statement in loop.body:
        if not isinstance(statement, Assign):
            return False
        if any(isinstance(v, Dot | Attend | Reduce) for v in values(statement.value)):
            return False
        elements = max(elements, prod(shapes[statement.name]))
    return len(loop.indices) == 1 and count <= ROUNDS and count * elements <= ELEMENTS
