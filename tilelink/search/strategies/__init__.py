"""Search strategies: generators that yield points and receive their costs (seconds, or None for a refused point).

One that yields a tuple of points receives a tuple of their costs; several processes may rate them.
A new strategy is a function of (space, chance). Add it to STRATEGIES, or pass it to `search` directly.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import TYPE_CHECKING, Any

from tilelink.errors import UnknownNameError
from tilelink.search.strategies.annealing import annealing
from tilelink.search.strategies.descent import descent
from tilelink.search.strategies.evolution import evolution
from tilelink.search.strategies.exhaustive import exhaustive
from tilelink.search.strategies.sampling import sampling

if TYPE_CHECKING:
    from tilelink.search.points import Candidate

Strategy = Callable[[Any, Random], Generator["Candidate | tuple[Candidate, ...]", Any, None]]
"""Takes the points that it walks (`tilelink.search.Points`; a Space is one kind) and what draws its random numbers."""

STRATEGIES: dict[str, Strategy] = {
    "exhaustive": exhaustive,
    "random": sampling,
    "annealing": annealing,
    "evolution": evolution,
    "descent": descent,
}


def strategy(name: str) -> Strategy:
    """Return the strategy of a name. Raises UnknownNameError, which lists the known names, for any other name."""
    if name not in STRATEGIES:
        raise UnknownNameError(f"no strategy {name!r}", hint=f"one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
