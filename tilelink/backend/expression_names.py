"""Names of the numbers in integer expressions. Simplified expressions hold plain values; the use of a number names it.

before: s = (rank + 4 - tile // 6) % 4
after:  s = (rank + RANKS - tile // (TILES_I * TILES_J)) % RANKS
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilelink.backend.constants import COUNTS, FACTOR, Constants, times
from tilelink.ir.scalar import Index, Rank, Scalar, walk
from tilelink.lowering.bound import BoundStage
from tilelink.scheduling.schedule import Order

Named = Sequence[tuple[int, str]]
"""Numbers with their names, most likely first."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of the numbers in expressions of a stage. Its methods return None for a number without a name."""

    constants: Constants
    stage: BoundStage
    divisors: Named = ()
    moduli: Named = ()
    grouped: Named = ()
    """Numbers of a grouped order."""

    def counts_ranks(self, dividend: Scalar, divisor: int) -> bool:
        """True if `dividend % divisor` is a rank."""
        if divisor != self.constants.bound.ranks or divisor == 1:
            return False
        parts = walk(dividend)
        indices = {one.name for one in parts if isinstance(one, Index)}
        over_ranks = any(self.constants.over_ranks(self.stage, name) for name in indices)
        return over_ranks or any(isinstance(one, Rank) for one in parts)

    def rank(self, value: int) -> str | None:
        """Return the name of a number in a sum modulo the number of ranks."""
        ranks = self.constants.bound.ranks
        if value == ranks:
            return self.constants.ranks
        return f"{self.constants.ranks} - 1" if value == ranks - 1 > 1 else None

    def factor(self, other: Scalar, value: int) -> str | None:
        """Return the name of the number in `other * value`."""
        if isinstance(other, Index) and self.stage.tiles.get(other.name) == value > 1:
            return self.constants.tile(self.stage, other.name)
        return self.term(value)

    def divisor(self, value: int) -> str | None:
        """Return the name of the number in `tile // value`."""
        return _first(value, self.divisors)

    def modulus(self, value: int) -> str | None:
        """Return the name of the number in `tile % value`."""
        return _first(value, self.moduli)

    def term(self, value: int) -> str | None:
        """Return the name of a number in a sum or a minimum of an order."""
        return _first(value, self.grouped)


def _first(value: int, named: Named) -> str | None:
    return next((name for number, name in named if number == value), None)


def names_of_order(constants: Constants, stage: BoundStage, index: str) -> Names:
    """Return the names for the expression that computes an index of a stage from the tile number."""
    order = stage.nest
    indices = [one.name for one in stage.stage.indices]
    nest = _nest(order, indices)
    position = nest.index(index)
    runs = [nest[first : first + size] for size in range(1, len(nest) + 1) for first in range(len(nest) - size + 1)]
    below = [nest[position + 1 :], *(run for run in runs if index not in run)]
    within = [[index], nest[position:], *runs]

    def named(several: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
        sizes = [constants.counts(stage, tuple(run)) for run in several]
        return [(value, name) for value, name in sizes if value > 1]

    groups: list[tuple[int, str]] = []
    grouped: list[str] = []
    if order and order.group and order.group[0] in nest[-2:]:
        rows, size = order.group
        grouped = [rows]
        columns = next(name for name in nest[-2:] if name != rows)
        group = constants.number(COUNTS, size, f"GROUP_{rows.upper()}")
        groups = [(size, group), (size * stage.count(columns), times((group, constants.count(stage, columns, FACTOR))))]
    return Names(
        constants=constants,
        stage=stage,
        divisors=[*named(below), *groups],
        moduli=[*groups, *named(within)] if index in grouped else [*named(within), *groups],
        grouped=[*groups[:1], *named([[name] for name in grouped])],
    )


def _nest(order: Order | None, indices: Sequence[str]) -> list[str]:
    """Return the indices, outermost first. Of the two indices of a grouped order, the grouped one runs faster."""
    named = [term.index for term in order.nest if term.index in indices] if order else []
    nest = [*named, *(name for name in indices if name not in named)]
    if order and order.group and len(nest) > 1 and nest[-2] == order.group[0]:
        nest[-2:] = [nest[-1], nest[-2]]
    return nest
