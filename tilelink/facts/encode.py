"""Integer expressions as sums of variables, with what is known of the variables as axioms.

An entry of an index tensor is a variable, the same one for equal coordinates; so is each index, quotient, minimum and
maximum, and each product that is no multiple. The axioms are those of the entries that are named, and of pairs of them.
No axiom has a quantifier.

The divisor of a quotient is a positive number, and what is divided may be negative: `//` rounds down. No intermediate
result overflows: that is asked of the program before (verifier/coverage.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from tilelink.facts.linear import ONE, All, Formula, Sum, at_least, either, equal, less, negated, plus
from tilelink.ir.intervals import Bounds
from tilelink.ir.program import Tensor
from tilelink.ir.scalar import (
    Binary,
    Compare,
    Coordinate,
    Int,
    Logic,
    Lookup,
    Scalar,
    at_launch,
    const,
    rewrite,
    walk,
)

MOST = 4096
"""Entries of which one, at a place that a launch decides, may be any."""

Known = list[tuple[tuple[int, ...], Scalar, tuple[Lookup, ...]]]
"""Coordinates of entries, what each entry is equal to, and the entries that it is computed from."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry that a question names. coords: of the rank that holds it, and along each dimension."""

    key: Hashable
    lookup: Lookup
    coords: tuple[Sum, ...]
    value: Sum


class Encoder:
    """The variables of one question.

    bounds: the ranges of entries and indices. tensors: the index tensors by name. resolve: returns an expression in
    terms of entries of which nothing more is known. known: what it says of all entries that one at a place that a
    launch decides may be, which questions share.
    """

    def __init__(
        self,
        bounds: Bounds,
        tensors: Mapping[str, Tensor],
        resolve: Callable[[Scalar], Scalar] = lambda expr: expr,
        known: dict[Lookup, Known] | None = None,
    ) -> None:
        self._bounds = bounds
        self._tensors = tensors
        self._resolve = resolve
        self._known = {} if known is None else known
        self._numbers: dict[Hashable, int] = {}
        self._entries: list[Entry] = []
        self._supposed: set[Hashable] = set()
        """Entries that nothing but bounds of others name so far: a program may leave them unwritten."""
        self._in_bound = False
        self._limits: list[Lookup] = []
        """Entries that bound others."""
        self.axioms: list[Formula] = []

    def variable(self, key: Hashable) -> Sum:
        """Return the variable of a key."""
        return {self._numbers.setdefault(key, len(self._numbers) + 1): 1}

    def sum(self, expr: Scalar) -> Sum:
        """Return an expression as a sum."""
        match expr:
            case Int(value=value):
                return {ONE: value} if value else {}
            case Binary(op="+" | "-" as op, left=left, right=right):
                return plus(self.sum(left), self.sum(right), 1 if op == "+" else -1)
            case Binary(op="*", left=Int(value=times), right=other):
                return plus({}, self.sum(other), times)
            case Binary(op="*", left=other, right=Int(value=times)):
                return plus({}, self.sum(other), times)
            case Binary(op="//", left=left, right=Int(value=by)) if by > 0:
                return self._quotient(self.sum(left), by)
            case Binary(op="%", left=left, right=Int(value=by)) if by > 0:
                dividend = self.sum(left)
                return plus(dividend, self._quotient(dividend, by), -by)
            case Binary(op="min" | "max" as op, left=left, right=right):
                return self._extreme(op, self.sum(left), self.sum(right))
            case Lookup(coords=coords) if all(isinstance(c, Scalar) for c in coords):
                return self._entry(expr)
            case _:
                known = expr in self._numbers
                value = self.variable(expr)
                return value if known else self._within(value, self._bounds.of(expr))

    def _entry(self, lookup: Lookup) -> Sum:
        coords = [self.sum(c) for c in lookup.coords if isinstance(c, Scalar)]
        if "replicated" in self._words(lookup.table):
            coords[0] = {}
        key = (lookup.table, *(tuple(sorted(c.items())) for c in coords))
        known = key in self._numbers
        value = self.variable(key)
        if not self._in_bound:
            self._supposed.discard(key)
        if not known:
            self._within(value, self._bounds.of(lookup))
            self._entries.append(Entry(key=key, lookup=lookup, coords=tuple(coords), value=value))
            if self._in_bound and not self._given(lookup.table):
                self._supposed.add(key)
        return value

    def _words(self, table: str) -> frozenset[str]:
        tensor = self._tensors.get(table)
        return frozenset(tensor.properties) if tensor is not None else frozenset()

    def _given(self, table: str) -> bool:
        """True if all entries of an index tensor are there, and checked, before a launch."""
        tensor = self._tensors.get(table)
        return tensor is not None and tensor.space in ("in", "table")

    def truth(self, condition: Scalar) -> Formula:
        """Return a condition as a formula."""
        match condition:
            case Compare(op=op, left=left, right=right):
                one, other = self.sum(left), self.sum(right)
                if op in ("==", "!="):
                    return equal(one, other) if op == "==" else negated(equal(one, other))
                if op in ("<", ">"):
                    return less(one, other) if op == "<" else less(other, one)
                return at_least(other, one) if op == "<=" else at_least(one, other)
            case Logic(op="not", args=(inner,)):
                return negated(self.truth(inner))
            case Logic(op=op, args=args):
                parts = tuple(map(self.truth, args))
                return All(parts) if op == "and" else either(parts)
            case _:
                return negated(equal(self.sum(condition), {}))

    def _within(self, value: Sum, ends: tuple[int, int]) -> Sum:
        self.axioms += [at_least(value, {ONE: ends[0]}), at_least({ONE: ends[1]}, value)]
        return value

    def _quotient(self, dividend: Sum, by: int) -> Sum:
        exact = {variable: times // by for variable, times in dividend.items() if times % by == 0}
        rest = {variable: times for variable, times in dividend.items() if times % by}
        if not rest.keys() - {ONE}:
            return plus(exact, {ONE: rest.get(ONE, 0) // by})
        key = ("//", by, *sorted(rest.items()))
        known, value = key in self._numbers, self.variable(key)
        if not known:
            scaled = plus({}, value, by)
            self.axioms += [at_least(rest, scaled), less(rest, plus(scaled, {ONE: by}))]
        return plus(exact, value)

    def _extreme(self, op: str, one: Sum, other: Sum) -> Sum:
        key = (op, frozenset([tuple(sorted(one.items())), tuple(sorted(other.items()))]))
        known, value = key in self._numbers, self.variable(key)
        if not known:
            for side in (one, other):
                self.axioms.append(at_least(side, value) if op == "min" else at_least(value, side))
            self.axioms.append(either((equal(value, one), equal(value, other))))
        return value

    # Promises ------------------------------------------------------------------------------------------------

    def below_bounds(self) -> None:
        """Add that entries named so far are below the entries that bound them.

        That is promised of entries that there are: of those that an access names which is made.
        """
        for entry in list(self._entries):
            bound = self._bound(entry.lookup)
            if bound is not None:
                self._in_bound = True
                limit = self._resolve(bound)
                self.axioms.append(less(entry.value, self.sum(limit)))
                self._limits += [part for part in walk(limit) if isinstance(part, Lookup)]
                self._in_bound = False

    def _one_of(self, lookup: Lookup) -> Iterator[Formula]:
        """Yield that an entry at a place that a launch decides is what the one there is equal to.

        Entries at known places are told, or computed alike: that is asked of those whose values the question names.
        """
        known = self._known.get(lookup)
        if known is None:
            known = self._known[lookup] = [*self._told(lookup)]
        named = {entry.lookup for entry in self._entries}
        coords = [c for c in lookup.coords if isinstance(c, Scalar)]
        for numbers, value, parts in known:
            if named.issuperset(parts):
                there = [equal(self.sum(c), {ONE: at} if at else {}) for c, at in zip(coords, numbers, strict=True)]
                yield _if(there, equal(self.sum(lookup), self.sum(value)))

    def _told(self, lookup: Lookup) -> Iterator[tuple[tuple[int, ...], Scalar, tuple[Lookup, ...]]]:
        """Yield all entries that one at a place that a launch decides may be, if they are few and equal to others."""
        coords = [c for c in lookup.coords if isinstance(c, Scalar)]
        ends = [self._bounds.of(c) for c in coords]
        if all(isinstance(c, Int) for c in coords) or prod(high - low + 1 for low, high in ends) > MOST:
            return
        for numbers in product(*(range(low, high + 1) for low, high in ends)):
            one = replace(lookup, coords=tuple(map(const, numbers)))
            value = self._resolve(one)
            if value != one:
                yield numbers, value, tuple(part for part in walk(value) if isinstance(part, Lookup))

    def _bound(self, entry: Lookup) -> Scalar | None:
        tensor, (rank, *coords) = self._tensors.get(entry.table), entry.coords
        if tensor is None or tensor.bound is None or not at_launch(tensor.bound):
            return None

        def change(expr: Scalar) -> Scalar | None:
            match expr:
                case Coordinate(dim=dim):
                    coord = coords[dim]
                    return coord if isinstance(coord, Scalar) else None
                case Lookup(coords=inner):
                    own = (rewrite(c, change) for c in inner if isinstance(c, Scalar))
                    return replace(expr, coords=(rank, *own))
                case _:
                    return None

        return rewrite(tensor.bound, change)

    def promised(self) -> list[Formula]:
        """Return what index tensors promise of all pairs of entries that are named, and that there are."""
        found = [one for limit in self._limits for one in self._one_of(limit)]
        for number, entry in enumerate(self._entries):
            words = self._words(entry.lookup.table) if entry.key not in self._supposed else frozenset[str]()
            if "offsets" in words and len(entry.coords) > 1:
                found.append(_if([equal(entry.coords[-1], {})], equal(entry.value, {})))
            for other in self._entries[:number]:
                if other.lookup.table == entry.lookup.table:
                    own = words if other.key not in self._supposed else frozenset[str]()
                    found += _of_pair(own, entry, other)
        return found


def _of_pair(words: frozenset[str], one: Entry, other: Entry) -> list[Formula]:
    """Return what is known of two entries of an index tensor: an entry has one value, and what is promised."""
    alike = [equal(a, b) for a, b in zip(one.coords, other.coords, strict=True)]
    found = [_if(alike, equal(one.value, other.value))]
    if one.coords[0] != other.coords[0]:  # promises are of the entries of one rank
        return found
    if "distinct" in words:
        found.append(_if([equal(one.value, other.value)], All(tuple(alike))))
    if words & {"rising", "offsets"}:
        for low, high in ((one, other), (other, one)):
            rises = [*alike[:-1], at_least(high.coords[-1], low.coords[-1])]
            found.append(_if(rises, at_least(high.value, low.value)))
    return found


def _if(conditions: Sequence[Formula], result: Formula) -> Formula:
    return either((*map(negated, conditions), result))
