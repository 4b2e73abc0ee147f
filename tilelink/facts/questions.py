"""Three questions about regions, for all entries that keep their promises: inside, apart, equal.

Each asks whether an element, and integers, can be otherwise, and is answered yes if that is refuted. What is not
refuted is not proved, which is no proof of the opposite: a rule then says what may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product

from tilelink.facts.encode import Encoder, Known
from tilelink.facts.linear import ONE, All, Formula, at_least, either, less, refuted
from tilelink.facts.regions import Elements, Guard, GuardPart, Place
from tilelink.ir.intervals import Bounds
from tilelink.ir.program import Tensor
from tilelink.ir.scalar import Int, Lookup, Scalar

At = tuple[tuple[int, int, int], ...]
"""Dimensions along which something is known of the element: (dimension, lo, hi) for a coordinate in [lo, hi)."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Known facts about integers of every launch. bounds: of entries and indices. tensors: index tensors by name.

    resolve: returns an expression in terms of entries of which nothing more is known.
    """

    bounds: Bounds
    tensors: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    resolve: Callable[[Scalar], Scalar] = lambda expr: expr
    _answers: dict[object, bool] = field(default_factory=dict[object, bool], repr=False, compare=False)
    _known: dict[Lookup, Known] = field(default_factory=dict[Lookup, Known], repr=False, compare=False)

    def forget(self) -> None:
        """Forget what was answered, as more is known."""
        self._answers.clear()
        self._known.clear()

    def _encoder(self) -> Encoder:
        return Encoder(self.bounds, self.tensors, self.resolve, self._known)

    def inside(self, guards: Sequence[Guard], part: GuardPart, at: At = ()) -> bool:
        """True if an element that is in all of some regions is in another one, as far as one part is concerned.

        An access names the element by these regions, so the entries in them are there, and below their bounds.
        """
        if any(part in guard for guard in guards):
            return True
        key = (part, at, *guards)
        if key not in self._answers:
            self._answers[key] = self._covered(guards, [[part]], at)
        return self._answers[key]

    def covered(self, guard: Guard, others: Sequence[Guard]) -> bool:
        """True if an element that is in a region is in one of some others."""
        return self._covered([guard], others, ())

    def apart(self, guards: Sequence[Guard], others: Sequence[Guard]) -> bool:
        """True if no element that is in all of some regions is in all of some others. Accesses name it by both."""
        if any(self._other_entries(*pair) for pair in product(chain(*guards), chain(*others))):
            return True
        encoder = self._encoder()
        elements = Elements(encoder)
        formulas = [one for guard in guards for one in elements.inside(guard, "one")]
        formulas += [one for guard in others for one in elements.inside(guard, "other")]
        encoder.below_bounds()
        return _impossible(encoder, [*formulas, *elements.there()])

    def _other_entries(self, one: GuardPart, other: GuardPart) -> bool:
        """True if two parts are different entries of a tensor without two alike, which many pairs of accesses are."""
        match one, other:
            case (
                Place(dim=dim, at=Lookup(table=table, coords=(rank, *coords))),
                Place(dim=same, at=Lookup(table=again, coords=(holder, *places))),
            ) if (dim, table, rank) == (same, again, holder) and coords != places:
                tensor = self.tensors.get(table)
                known = all(isinstance(c, Int) for c in (rank, *coords, *places))
                return known and tensor is not None and "distinct" in tensor.properties
            case _:
                return False

    def at_most(self, left: Scalar, right: Scalar) -> bool:
        """True if one expression is no more than another one."""
        key = ("<=", left, right)
        if key not in self._answers:
            encoder = self._encoder()
            self._answers[key] = _impossible(encoder, [less(encoder.sum(right), encoder.sum(left))])
        return self._answers[key]

    def equal(self, left: Scalar, right: Scalar) -> bool:
        """True if two expressions have one value."""
        return left == right or (self.at_most(left, right) and self.at_most(right, left))

    def _covered(self, guards: Sequence[Guard], others: Sequence[Sequence[GuardPart]], at: At) -> bool:
        encoder = self._encoder()
        elements = Elements(encoder)
        formulas = [one for guard in guards for one in elements.inside(guard, "")]
        encoder.below_bounds()
        for dim, lo, hi in at:
            formulas += [at_least(elements.along(dim), {ONE: lo}), less(elements.along(dim), {ONE: hi})]
        formulas += [either(elements.outside(part) for part in other) for other in others]
        return _impossible(encoder, [*formulas, *elements.there()])


def _impossible(encoder: Encoder, formulas: list[Formula]) -> bool:
    promised = encoder.promised()  # which may name minima and maxima, of which axioms say what they are
    return refuted(All((*formulas, *encoder.axioms, *promised)))
