"""Compact numbers of tiles: those that a launch has are counted without gaps, and the others are passed over.

The order of a stage falls into segments: one for each choice of the indices outside of a counted index. `there` tiles
of the counted index are there in a segment, which is known when the kernel begins. For example, 2 of 4 tiles of an
expert's rows in its segment (`#`), with 3 tiles of columns for each:

    order of the stage   0#  1#  2#  3#  4#  5#  6  7  8  9  10  11 | 12# 13# ...
    compact numbers      0   1   2   3   4   5                      | 6   7   ...
"""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.ir.scalar import Index, Scalar

SEGMENT = Index(name="segment")
"""Number of a segment of an order."""
WITHIN = Index(name="within")
"""Number of a tile among those of its segment that are there."""
THERE = Index(name="there")
"""Tiles of the counted index that are there in a segment."""


@dataclass(frozen=True, kw_only=True)
class Compact:
    """Compact numbers for the tiles of a stage, whose order has `segments` of `size` tiles each.

    index: the counted index; each of its tiles is `across` tiles of a segment. there: how many of its tiles are there
    in a segment, an expression over SEGMENT and `rank`. tile: the number of a tile in the order of the stage, an
    expression over SEGMENT, WITHIN and THERE; it rises with SEGMENT and WITHIN.
    """

    index: str
    segments: int
    size: int
    across: int
    there: Scalar
    tile: Scalar

    @property
    def most(self) -> int:
        """Tiles of the counted index in a segment, if all of them are there."""
        return self.size // self.across
