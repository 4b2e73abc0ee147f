"""Default tile sizes, for indices that a schedule does not name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from tilelink.ir.parameters import Numbers
from tilelink.ir.program import Scan
from tilelink.ir.sizes import power_of_two
from tilelink.ir.typing import Axis, StageTyping
from tilelink.ir.visitor import statements, value_of, values
from tilelink.lowering.transform import number_of

SIZES = {"compute": 64, "comm": 128}
"""Default tile size in elements, by the kind of the stage."""
BLOCK = 64
"""Default block of the contracted dimension, in elements."""
ELEMENTS = 8192
"""Largest number of elements of one value of a tile: 64 registers for each of 128 threads.

Whole dimensions count in full.
"""


def default_sizes(
    typing: StageTyping, given: Mapping[str, int], extents: Mapping[str, int], numbers: Numbers, ranks: int
) -> dict[str, int]:
    """Return the tile size in elements of every index of a stage except scalar ones.

    A given size is kept. Otherwise it starts at the default of the stage's kind. While a value that the body names, or
    sums along an axis, has too many elements, the largest default is halved.
    """
    sizes = {
        name: min(given.get(name, SIZES[typing.stage.kind]), max(extent, 1))
        for name, extent in extents.items()
        if name not in typing.scalar_indices
    }

    def length(axis: Axis) -> int:
        if axis.kind == "tile":
            return power_of_two(sizes.get(axis.index or "", 1))
        return power_of_two(number_of(axis.dim, numbers, ranks)) if axis.dim is not None else 1

    for axes in _held(typing):
        free = [a.index for a in axes if a.index is not None and a.index in sizes and a.index not in given]
        while prod(map(length, axes)) > ELEMENTS and any(sizes[name] > 1 for name in free):
            largest = max(free, key=sizes.__getitem__)
            sizes[largest] = power_of_two(sizes[largest]) // 2
    return sizes


def _held(typing: StageTyping) -> Iterator[tuple[Axis, ...]]:
    """Yield the axes of values that a tile holds as a whole: those that it names, and operands of scans."""
    for kind in typing.locals.values():
        yield kind.axes
    for statement in statements(typing.stage.body):
        value = value_of(statement)
        for node in values(value) if value is not None else ():
            if isinstance(node, Scan):
                yield typing.type_of(node).axes
