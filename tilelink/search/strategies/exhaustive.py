"""Exhaustive search: every point, in order."""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilelink.search.points import Candidate, Points


def exhaustive(space: Points, chance: Random) -> Generator[Candidate, float | None, None]:
    """Yield every point, program by program; the last knob varies fastest."""
    yield from space
