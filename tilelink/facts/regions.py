"""Regions whose places and ends entries of index tensors give, and the elements of them as formulas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tilelink.facts.encode import Encoder
from tilelink.facts.linear import ONE, All, Formula, Sum, at_least, equal, less, negated, plus
from tilelink.ir.scalar import Index, Lookup, Scalar, const


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Elements of a dimension before a stop that a launch decides."""

    dim: int
    stop: Scalar


@dataclass(frozen=True, kw_only=True)
class Begun:
    """Elements of a dimension from a start on that a launch decides."""

    dim: int
    start: Scalar


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A tile of the part [start, stop) of a dimension: elements [start + offset, start + offset + size), up to stop."""

    dim: int
    start: Scalar
    stop: Scalar | None
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Place:
    """One element, at a coordinate that a launch decides."""

    dim: int
    at: Scalar


@dataclass(frozen=True, kw_only=True)
class Listed:
    """The elements that entries [first, last) of an index tensor list, along a dimension of that tensor.

    entries: the look-up, with the entry as its coordinate along the list from which first and last count: 0, or what a
    launch decides. stop: the entry before which they end as well, where a launch decides that.
    """

    dim: int
    entries: Lookup
    along: int
    first: int
    last: int
    stop: Scalar | None


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A branch that a launch decides, or an iteration that may not be there."""

    condition: Scalar
    holds: bool


PERHAPS = Chosen(condition=const(1), holds=True)
"""Of an event that need not happen."""

GuardPart = Ended | Begun | Segment | Place | Listed | Chosen
Guard = tuple[GuardPart, ...]


@dataclass(frozen=True, kw_only=True)
class _Named:
    """The entry that lists an element of a region. at: its coordinate along the list."""

    part: Listed
    at: Sum
    value: Sum


class Elements:
    """The elements of regions as formulas of one question: x along each dimension, the same in all of them."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._along: dict[int, Sum] = {}
        self._named: dict[tuple[object, int], list[_Named]] = {}
        """(index tensor, dimension) -> the entries that a question names along it."""

    def along(self, dim: int) -> Sum:
        """Return the coordinate of the element along a dimension."""
        return self._along.setdefault(dim, self._encoder.variable(("x", dim)))

    def there(self) -> list[Formula]:
        """Return that no coordinate is negative."""
        return [at_least(along, {}) for along in self._along.values()]

    def inside(self, guard: Iterable[GuardPart], side: str) -> list[Formula]:
        """Return that the element is in a region. side: of the access that names it.

        Another access may name it at another position of a list. Regions of one side describe one access.
        """
        return [self._inside(part, f"{side} {number}") for number, part in enumerate(guard)]

    def outside(self, part: GuardPart) -> Formula:
        """Return that the element is not in a region, as far as one part is concerned.

        No entry of a list names it: that is said of those entries by which the question names it otherwise.
        """
        if not isinstance(part, Listed):
            return negated(self._inside(part, ""))
        found: list[Formula] = []
        for named in self._named.get((part.entries.table, part.dim), ()):
            if _at(named.part, const(0)) == _at(part, const(0)):
                found.append(negated(All((*self._listed(part, named.at), equal(self.along(part.dim), named.value)))))
        return All(tuple(found))

    def _inside(self, part: GuardPart, side: str) -> Formula:
        encode = self._encoder.sum
        match part:
            case Chosen() if part == PERHAPS:
                return at_least(self._encoder.variable("perhaps"), {ONE: 1})
            case Chosen(condition=condition, holds=holds):
                truth = self._encoder.truth(condition)
                return truth if holds else negated(truth)
            case Ended(dim=dim, stop=stop):
                return less(self.along(dim), encode(stop))
            case Begun(dim=dim, start=start):
                return at_least(self.along(dim), encode(start))
            case Segment(dim=dim, start=start, stop=stop, offset=offset, size=size):
                begin = plus(encode(start), {ONE: offset})
                ends = [plus(begin, {ONE: size}), *([] if stop is None else [encode(stop)])]
                return All((at_least(self.along(dim), begin), *(less(self.along(dim), end) for end in ends)))
            case Place(dim=dim, at=at):
                return equal(self.along(dim), encode(at))
            case Listed(dim=dim):
                at = Index(name=f"at {side}")
                named = _Named(part=part, at=encode(at), value=encode(_at(part, at)))
                self._named.setdefault((part.entries.table, dim), []).append(named)
                return All((*self._listed(part, named.at), equal(self.along(dim), named.value)))

    def _listed(self, part: Listed, at: Sum) -> list[Formula]:
        """Return that a list has an entry. at: its coordinate along the list."""
        begin = part.entries.coords[part.along + 1]
        assert isinstance(begin, Scalar)
        start = self._encoder.sum(begin)
        ends = [plus(start, {ONE: part.last}), *([] if part.stop is None else [self._encoder.sum(part.stop)])]
        return [at_least(at, plus(start, {ONE: part.first})), *(less(at, end) for end in ends)]


def _at(part: Listed, at: Scalar) -> Lookup:
    """Return an entry of a list. at: its coordinate along the list."""
    coords = part.entries.coords
    return replace(part.entries, coords=(*coords[: part.along + 1], at, *coords[part.along + 2 :]))
