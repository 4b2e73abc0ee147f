"""Directions in which the sizes of a program can change: a dimension, with those that must change along with it.

A program may be valid only where dimensions agree, as `T = ranks * NB` blocks of keys of all ranks. Nothing declares
that, so it is tried: from sizes that are valid, each dimension is doubled, alone or with up to two others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

Sizes = Mapping[str, int | float | bool]
RANKS = "ranks"
FACTORS = tuple(
    sorted({Fraction(2) ** power * scale for power in range(-4, 7) for scale in (Fraction(1), Fraction(3, 2))})
)
"""By what a size is multiplied."""
LARGEST = 16384
"""Largest size of a dimension that is tried."""
TOGETHER = 2
"""Dimensions that change along with one, at most."""


@dataclass(frozen=True, kw_only=True)
class Direction:
    """Dimensions that grow together. driver: that by which it is named; "ranks" stands for the number of ranks."""

    driver: str
    along: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.driver, *self.along)


def directions(base: Sizes, dims: Sequence[str], ranks: int, valid: Callable[[Sizes, int], bool]) -> list[Direction]:
    """Return the directions of a program from valid sizes, with that of the ranks last.

    dims: the parameters that are dimensions. valid: tells whether a program can have sizes on so many ranks.
    A dimension that cannot change, or that changes with others only, has none of its own.
    """
    found: list[Direction] = []
    for driver in (*dims, RANKS):
        if any(driver in one.along for one in found):
            continue
        others = [name for name in dims if name != driver]
        for along in (subset for count in range(TOGETHER + 1) for subset in combinations(others, count)):
            direction = Direction(driver=driver, along=along)
            moved = scaled(base, ranks, {direction: Fraction(2)})
            if moved is not None and valid(*moved):
                found.append(direction)
                break
    return found


def scaled(base: Sizes, ranks: int, factors: Mapping[Direction, Fraction]) -> tuple[Sizes, int] | None:
    """Return sizes and ranks multiplied along directions, or None where one would be no whole number of 1 or more."""
    total: dict[str, Fraction] = {}
    for direction, factor in factors.items():
        for name in direction.names:
            total[name] = total.get(name, Fraction(1)) * factor
    made = {name: base[name] * factor if name != RANKS else ranks * factor for name, factor in total.items()}
    if any(Fraction(value).denominator != 1 or value < 1 for value in made.values()):
        return None
    return {**base, **{k: int(v) for k, v in made.items() if k != RANKS}}, int(made.get(RANKS, ranks))


def ladder(base: Sizes, direction: Direction) -> list[Fraction]:
    """Return the factors along a direction that leave all its dimensions whole numbers of 1 to LARGEST."""
    own = [int(base[name]) for name in direction.names if name != RANKS]
    return [f for f in FACTORS if all((n * f).denominator == 1 and 1 <= n * f <= LARGEST for n in own)]


def slightly_larger(sizes: Sizes, direction: Direction) -> Sizes | None:
    """Return sizes that are an eighth or less larger along a direction, or None if there are none."""
    names = direction.names
    if RANKS in names:
        return None
    if len(names) == 1:
        return {**sizes, names[0]: int(sizes[names[0]]) + 1} if int(sizes[names[0]]) >= 8 else None
    if any(int(sizes[name]) % 8 for name in names):
        return None
    return {**sizes, **{name: int(sizes[name]) * 9 // 8 for name in names}}
