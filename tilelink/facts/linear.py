"""Refutation of linear constraints over integers, alone or with a choice between some of them.

A sum maps variables, which are numbers from 1 on, to factors, and `ONE` to its constant. Constraints are refuted by
eliminating variables (Fourier and Motzkin), with coefficients divided by what they have in common, which is more than
rational numbers allow. All that is refuted is contradictory over the integers; a few contradictions are not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

Sum = dict[int, int]
ONE = 0
"""The variable that is 1."""
MAX_STEPS = 20_000
"""Constraints that are looked at or derived for a question, at most: choices inside of choices need many."""


@dataclass(frozen=True)
class AtLeast:
    """A sum that is 0 or more, by its terms in the order of the variables."""

    terms: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Equal:
    """A sum that is 0, by its terms in the order of the variables."""

    terms: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class All:
    """Formulas that all hold."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True)
class Some:
    """Formulas of which at least one holds."""

    parts: tuple[Formula, ...]


Formula = AtLeast | Equal | All | Some


def plus(left: Sum, right: Sum, factor: int = 1) -> Sum:
    """Return `left + factor * right`."""
    total = dict(left)
    for variable, times in right.items():
        total[variable] = total.get(variable, 0) + factor * times
    return {variable: times for variable, times in total.items() if times}


def at_least(left: Sum, right: Sum) -> AtLeast:
    """`left >= right`"""
    return AtLeast(tuple(sorted(plus(left, right, -1).items())))


def less(left: Sum, right: Sum) -> AtLeast:
    """`left < right`"""
    return at_least(right, plus(left, {ONE: 1}))


def equal(left: Sum, right: Sum) -> Equal:
    """`left == right`"""
    return Equal(tuple(sorted(plus(left, right, -1).items())))


def either(parts: Iterable[Formula]) -> Formula:
    """Return that one of some formulas holds, without those that are known to be false."""
    found: list[Formula] = []
    for part in parts:
        match part:
            case Some(parts=inner):
                found += inner
            case AtLeast(terms=() | ((0, _),) as terms) | Equal(terms=() | ((0, _),) as terms):
                constant = dict(terms).get(ONE, 0)
                if constant == 0 or (constant > 0 and isinstance(part, AtLeast)):
                    return All(())
            case _:
                found.append(part)
    return Some(tuple(found))


def negated(formula: Formula) -> Formula:
    """Return the opposite of a formula."""
    match formula:
        case AtLeast(terms=terms):
            return less(dict(terms), {})
        case Equal(terms=terms):
            return either((less(dict(terms), {}), less({}, dict(terms))))
        case All(parts=parts):
            return either(map(negated, parts))
        case Some(parts=parts):
            return All(tuple(map(negated, parts)))


class GaveUp(Exception):
    """A question needs more steps than are allowed."""


@lru_cache(maxsize=4096)
def refuted(formula: Formula) -> bool:
    """True if a formula is proved to hold for no integers.

    Questions about other entries with equal promises are one formula, so answers are kept.
    """
    try:
        return _Search().refuted(_System(), [formula], [])
    except GaveUp:
        return False


class _System:
    """Constraints that hold together: those that are 0 are solved for a variable, which no other one names then."""

    def __init__(self) -> None:
        self.solved: dict[int, Sum] = {}
        self.rest: dict[tuple[tuple[int, int], ...], int] = {}
        """Terms but the constant of sums that are 0 or more -> the smallest constant."""
        self.wrong = False

    def copy(self) -> _System:
        other = _System()
        other.solved, other.rest, other.wrong = dict(self.solved), dict(self.rest), self.wrong
        return other

    def at_least(self, total: Sum) -> None:
        """Take a sum that is 0 or more."""
        total = self._substituted(total)
        constant = total.pop(ONE, 0)
        if not total:
            self.wrong |= constant < 0
            return
        common = gcd(*total.values())
        key = tuple(sorted((variable, times // common) for variable, times in total.items()))
        bound = constant // common
        if bound < self.rest.get(key, bound + 1):
            self.rest[key] = bound
            opposite = self.rest.get(tuple((variable, -times) for variable, times in key))
            self.wrong |= opposite is not None and bound + opposite < 0

    def equal(self, total: Sum) -> None:
        """Take a sum that is 0."""
        total = self._substituted(total)
        unit = next((variable for variable, times in total.items() if variable != ONE and abs(times) == 1), None)
        if unit is None:
            names = [times for variable, times in total.items() if variable != ONE]
            self.wrong |= total.get(ONE, 0) % gcd(*names) != 0 if names else bool(total)
            self.at_least(total)
            self.at_least({variable: -times for variable, times in total.items()})
            return
        times = total.pop(unit)
        value = {variable: -factor * times for variable, factor in total.items()}
        self.solved = {
            variable: plus({v: f for v, f in known.items() if v != unit}, value, known.get(unit, 0))
            for variable, known in self.solved.items()
        }
        self.solved[unit] = value
        before, self.rest = self.rest, {}
        for key, bound in before.items():
            self.at_least({**dict(key), ONE: bound})

    def _substituted(self, total: Sum) -> Sum:
        found = {variable: times for variable, times in total.items() if variable not in self.solved}
        for variable in total.keys() & self.solved.keys():
            found = plus(found, self.solved[variable], total[variable])
        return {variable: times for variable, times in found.items() if times}

    def contradicts(self, spend: Callable[[int], None]) -> bool:
        """True if the constraints contradict one another. spend: called with numbers of steps. Raises GaveUp."""
        if self.wrong:
            return True
        system = self.copy()
        while system.rest:
            spend(len(system.rest))
            uses: dict[int, list[int]] = {}
            for key in system.rest:
                for variable, times in key:
                    uses.setdefault(variable, [0, 0])[times > 0] += 1
            unit = min(uses, key=lambda one: (uses[one][0] * uses[one][1], one))
            spend(uses[unit][0] * uses[unit][1])
            lower: list[tuple[int, Sum]] = []
            upper: list[tuple[int, Sum]] = []
            others: dict[tuple[tuple[int, int], ...], int] = {}
            for key, bound in system.rest.items():
                times = dict(key).get(unit, 0)
                if times:
                    (lower if times > 0 else upper).append((abs(times), {**dict(key), ONE: bound}))
                else:
                    others[key] = bound
            system.rest = others
            for low, first in lower:
                for high, second in upper:
                    scaled = {variable: times * high for variable, times in first.items()}
                    system.at_least(plus(scaled, second, low))
            if system.wrong:
                return True
        return False


class _Search:
    def __init__(self) -> None:
        self.left = MAX_STEPS

    def _spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise GaveUp

    def refuted(self, system: _System, formulas: Iterable[Formula], clauses: Sequence[Some]) -> bool:
        """True if formulas, and one part of each clause, contradict what a system has."""
        clauses = [*clauses, *self._taken(system, formulas)]
        if system.contradicts(self._spend):
            return True
        while clauses:
            open_parts: list[tuple[Some, list[Formula]]] = []
            for clause in clauses:
                parts = [part for part in clause.parts if not self._with(system, part)]
                if not parts:
                    return True
                open_parts.append((clause, parts))
            single = [parts[0] for _, parts in open_parts if len(parts) == 1]
            rest = [Some(tuple(parts)) for _, parts in open_parts if len(parts) > 1]
            if single:  # nothing is left to choose
                rest += self._taken(system, single)
                if system.contradicts(self._spend):
                    return True
                clauses = rest
                continue
            first, *others = sorted(rest, key=lambda one: len(one.parts))
            return all(self.refuted(system.copy(), [part], others) for part in first.parts)
        return False

    def _taken(self, system: _System, formulas: Iterable[Formula]) -> list[Some]:
        """Add formulas to a system; return the choices among them."""
        clauses: list[Some] = []
        for formula in formulas:
            match formula:
                case AtLeast(terms=terms):
                    system.at_least(dict(terms))
                case Equal(terms=terms):
                    system.equal(dict(terms))
                case All(parts=parts):
                    clauses += self._taken(system, parts)
                case Some():
                    clauses.append(formula)
        return clauses

    def _with(self, system: _System, formula: Formula) -> bool:
        """True if a formula contradicts a system, as far as it has no choices."""
        system = system.copy()
        self._taken(system, [formula])
        return system.contradicts(self._spend)
