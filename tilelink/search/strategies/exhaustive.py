"""Exhaustive search: every point, in order."""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilelink.search.points import Candidate, Points

TOGETHER = 16
"""Points that are yielded together."""


def exhaustive(space: Points, chance: Random) -> Generator[tuple[Candidate, ...], Any, None]:
    """Yield every point, program by program; the last knob varies fastest."""
    points = iter(space)
    while some := tuple(islice(points, TOGETHER)):
        yield some
