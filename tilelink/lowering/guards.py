"""Symbols of an access that a launch decides: those for the places and ends that index tensors give it.

The plan has the box of all elements that an access may name, in any launch. Its guard says which of them it does name:
for each dimension that a launch decides about, where the access lies, in terms of entries of index tensors. Two
accesses with equal guards and equal boxes name the same elements, whatever the entries are. An entry is written once in
a launch, so its value does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain, islice

import numpy as np

from tilelink.facts.questions import Facts
from tilelink.facts.regions import (
    Begun,
    Chosen,
    Ended,
    Guard,
    GuardPart,
    Listed,
    Place,
    Segment,
)
from tilelink.ir.intervals import Bounds, Range
from tilelink.ir.mapping import CountedRange, Span, TileMap, listed
from tilelink.ir.mapping import Listed as Entries
from tilelink.ir.normal import MAX_SIZE, normal
from tilelink.ir.program import Tensor
from tilelink.ir.scalar import (
    Binary,
    Compare,
    Env,
    Index,
    Int,
    Lookup,
    Rank,
    Scalar,
    add,
    at_launch,
    binary,
    const,
    evaluate,
    indices_in,
    mul,
    rewrite,
    walk,
)
from tilelink.lowering.bound import BoundStage
from tilelink.lowering.columns import Ints, distinct_rows

Entry = tuple[str, int, tuple[int, ...]]
"""An entry of an index tensor: the tensor, the rank that holds it, its coordinates."""
_Shape = tuple[Guard, tuple[int, ...]]
"""A guard with indices in place of the numbers of entries, and these."""


@dataclass(kw_only=True)
class Guards:
    """The guards of a plan, numbered; 0 is that of an access about which a launch decides nothing.

    tensors: index tensors by name, with what they promise. ranges: table -> the smallest and the largest of its
    entries, known before an expression names it. replicated: index tensors of which all ranks have the same entries:
    those of rank 0 stand for all. copies: entry -> what it is equal to, an expression of other entries, where a program
    writes it as such (stored_entries.py); None if that is not known.
    """

    known: list[Guard] = field(default_factory=lambda: [()])
    tensors: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    ranges: dict[str, Range] = field(default_factory=dict[str, Range])
    replicated: frozenset[str] = frozenset()
    copies: dict[Entry, Scalar | None] = field(default_factory=dict[Entry, "Scalar | None"])
    numbered: dict[Decided, dict[tuple[int, ...], int]] = field(
        default_factory=dict["Decided", dict[tuple[int, ...], int]]
    )
    """What decides about an access -> rank, guard around it, values of its indices -> its number. A wait for a place
    and the read there are decided about alike."""
    _numbers: dict[Guard, int] = field(default_factory=lambda: {(): 0})
    _resolved_guards: dict[int, Guard] = field(default_factory=dict[int, Guard])
    _resolved_exprs: dict[Scalar, Scalar] = field(default_factory=dict[Scalar, Scalar])
    _origins: dict[Entry, Scalar] = field(default_factory=dict[Entry, "Scalar"])
    """Cache of `_origin_of_entry`."""
    _shapes: dict[int, _Shape] = field(default_factory=dict[int, "_Shape"])
    """Number of a guard -> its shape."""
    _alike: dict[Guard, Guard] = field(default_factory=dict[Guard, Guard])
    """Shapes, of which equal ones are one object: members of a family are found by its identity."""
    _cut: bool = False
    """True if an entry was met that is equal to an expression of itself."""

    def copy(self, entry: Entry, origin: Scalar | None) -> None:
        """Note what an entry is equal to, None for nothing known. Of one that is written twice nothing is known."""
        self.copies[entry] = origin if entry not in self.copies else None
        self._resolved_guards.clear()
        self._resolved_exprs.clear()
        self._origins.clear()
        self.facts.forget()

    def equal(self, entry: Entry, value: Scalar) -> None:
        """Note what an entry, or the value of a name, is equal to, after all that writes entries was noted."""
        self.copies[entry] = value
        self._resolved_guards.clear()
        self._origins.clear()
        self.facts.forget()

    @cached_property
    def bounds(self) -> Bounds:
        """The ranges of all that is in a guard: numbers and entries."""
        return Bounds(ranks=1, tables=self.ranges)

    def number(self, guard: Guard) -> int:
        """Return the number of a guard."""
        number = self._numbers.setdefault(guard, len(self.known))  # one hash of all of it
        if number == len(self.known):
            self.known.append(guard)
        return number

    def of(self, number: int) -> Guard:
        """Return a guard, in terms of entries that are no copies of others."""
        guard = self._resolved_guards.get(number)
        if guard is None:
            guard = self._resolved_guards[number] = self.resolved(self.known[number])
        return guard

    def families(self, numbers: Iterable[int]) -> list[Guard]:
        """Return guards of which each stands for some of those of the given numbers, and all of them for all.

        They have indices, `#0`, `#1` and so on, in place of numbers of entries that differ between these: what is known
        of one for all values of its indices is known of each guard for which it stands. Numbers that are equal in each
        of them are one index. Ranks stay numbers, and so does all that is no coordinate of an entry.
        """
        own = dict.fromkeys(numbers)
        for number in own.keys() - self._shapes.keys():
            self._shapes[number] = _shape(self.known[number], self._alike)
        return [guard for (guard,), _ in _families([(self._shapes[number],) for number in own])]

    def resolved(self, guard: Guard) -> Guard:
        """Return a guard in terms of entries that are no copies of others."""
        return tuple(self._resolved(part) for part in guard)

    @cached_property
    def facts(self) -> Facts:
        """What is known of the entries in guards."""
        return Facts(bounds=self.bounds, tensors=self.tensors, resolve=self.resolve)

    def resolve(self, expr: Scalar) -> Scalar:
        """Return the normal form of an expression, in terms of entries of which nothing more is known."""
        known = self._resolved_exprs.get(expr)
        if known is None:
            known = self._resolved_exprs[expr] = normal(self._origin(expr, frozenset()), self.bounds)
        return known

    def _origin(self, expr: Scalar, seen: frozenset[Entry]) -> Scalar:
        """Replace entries by what they are equal to. seen: the entries that are being replaced."""

        def change(part: Scalar) -> Scalar | None:
            if not isinstance(part, Lookup):
                return None
            inner = tuple(self._origin(c, seen) if isinstance(c, Scalar) else c for c in part.coords)
            lookup = replace(part, coords=tuple(normal(c, self.bounds) if isinstance(c, Scalar) else c for c in inner))
            lookup = self._of_any_rank(lookup)
            entry = entry_of(lookup)
            return lookup if entry is None else self._origin_of_entry(entry, lookup, seen)

        return rewrite(expr, change)

    def _origin_of_entry(self, entry: Entry, lookup: Lookup, seen: frozenset[Entry]) -> Scalar:
        """Return what an entry is equal to, or the entry itself: also where that would be a large expression."""
        source = self.copies.get(entry)
        if source is None or entry in seen:
            self._cut |= entry in seen
            return lookup
        if (known := self._origins.get(entry)) is not None:
            return known
        around, self._cut = self._cut, False
        found = normal(self._origin(source, seen | {entry}), self.bounds)
        if sum(1 for _ in islice(walk(found), MAX_SIZE + 1)) > MAX_SIZE:
            found = lookup
        if not self._cut:  # else it is another one where the entries around it are others
            self._origins[entry] = found
        self._cut |= around
        return found

    def _of_any_rank(self, lookup: Lookup) -> Lookup:
        """Return the entry of rank 0 for one of an index tensor that is alike on all ranks."""
        if lookup.table not in self.replicated:
            return lookup
        return replace(lookup, coords=(const(0), *lookup.coords[1:]))

    def _resolved(self, part: GuardPart) -> GuardPart:
        match part:
            case Ended(stop=stop):
                return replace(part, stop=self.resolve(stop))
            case Begun(start=start):
                return replace(part, start=self.resolve(start))
            case Segment(start=start, stop=stop):
                return replace(part, start=self.resolve(start), stop=None if stop is None else self.resolve(stop))
            case Place(at=at):
                return replace(part, at=self.resolve(at))
            case Chosen(condition=condition):
                return replace(part, condition=self.resolve(condition))
            case Listed(entries=entries, stop=stop):
                coords = tuple(self.resolve(c) if isinstance(c, Scalar) else c for c in entries.coords)
                entries = self._of_any_rank(replace(entries, coords=coords))
                return replace(part, entries=entries, stop=None if stop is None else self.resolve(stop))


def families(guards: Sequence[tuple[Guard, ...]]) -> list[tuple[tuple[Guard, ...], list[int]]]:
    """Return tuples of guards, as `Guards.families` does of guards, and the numbers of those for which each stands.

    Guards of a tuple are asked of together, so they share indices.
    """
    known, alike = dict[int, _Shape](), dict[Guard, Guard]()
    for one in chain(*guards):
        if id(one) not in known:
            known[id(one)] = _shape(one, alike)
    return _families([tuple(known[id(one)] for one in joint) for joint in guards])


def _families(shapes: Sequence[tuple[_Shape, ...]]) -> list[tuple[tuple[Guard, ...], list[int]]]:
    members: dict[tuple[int, ...], list[int]] = {}
    for number, joint in enumerate(shapes):
        members.setdefault(tuple(id(shape) for shape, _ in joint), []).append(number)
    return [(_family([shapes[one] for one in own]), own) for own in members.values()]


def _shape(guard: Guard, alike: dict[Guard, Guard]) -> _Shape:
    """Return the shape of a guard. alike: shapes, of which equal ones are one object."""
    numbers: list[int] = []

    def change(number: int) -> Index:
        numbers.append(number)
        return _hole(len(numbers) - 1)

    shape = tuple(_in_entries(part, change) for part in guard)
    return alike.setdefault(shape, shape), tuple(numbers)


def _family(members: Sequence[tuple[_Shape, ...]]) -> tuple[Guard, ...]:
    """Return the guards that stand for those of one shape. members: tuples of guards of the same shapes."""
    columns = [*zip(*(chain(*(numbers for _, numbers in joint)) for joint in members), strict=True)]
    names = {column: _hole(n) for n, column in enumerate(dict.fromkeys(columns))}
    values = iter([const(column[0]) if len({*column}) == 1 else names[column] for column in columns])
    own = [(shape, [*islice(values, len(numbers))]) for shape, numbers in members[0]]
    return tuple(tuple(_in_entries(part, some.__getitem__) for part in shape) for shape, some in own)


@lru_cache
def _hole(number: int) -> Index:
    return Index(name=f"#{number}")


def _in_entries(part: GuardPart, change: Callable[[int], Scalar]) -> GuardPart:
    """Return a part with the numbers of its entries, but ranks, changed: those from 0 on, or those of indices `#n`."""

    def number(expr: Scalar) -> Scalar | None:
        match expr:
            case Int(value=value) if value >= 0:  # an index stands for numbers from 0 on
                return change(value)
            case Index(name=name) if name.startswith("#"):
                return change(int(name[1:]))
            case Lookup():
                return entry(expr)
            case _:
                return None

    def entry(expr: Scalar) -> Scalar | None:
        return looked_up(expr) if isinstance(expr, Lookup) else None

    def looked_up(expr: Lookup) -> Lookup:
        rank, *coords = expr.coords
        inner = [rewrite(c, number) if isinstance(c, Scalar) else c for c in coords]
        return Lookup(table=expr.table, coords=(rank, *inner), launch=expr.launch)

    match part:
        case Ended(stop=stop):
            return replace(part, stop=rewrite(stop, entry))
        case Begun(start=start):
            return replace(part, start=rewrite(start, entry))
        case Segment(start=start, stop=stop):
            return replace(part, start=rewrite(start, entry), stop=None if stop is None else rewrite(stop, entry))
        case Place(dim=dim, at=at):
            return Place(dim=dim, at=rewrite(at, number if isinstance(at, Int | Index) else entry))
        case Chosen(condition=condition):
            return replace(part, condition=rewrite(condition, entry))
        case Listed(entries=entries, stop=stop):
            return replace(part, entries=looked_up(entries), stop=None if stop is None else rewrite(stop, entry))


def entry_of(lookup: Lookup) -> Entry | None:
    """Return the entry that a look-up of a guard names, or None if its coordinates are entries themselves."""
    if not all(isinstance(c, Int) for c in lookup.coords):
        return None
    rank, *coords = (c.value for c in lookup.coords if isinstance(c, Int))
    return lookup.table, rank, tuple(coords)


@dataclass(frozen=True, kw_only=True)
class Template:
    """Along one dimension, what a launch decides of an access.

    tile, extent: elements of a tile of the index, and of all of it.
    counted: the range of the index, if the coordinate is a number of that range, or entries along it.
    """

    dim: int
    span: Span
    scalars: frozenset[str]
    index: str | None
    tile: int
    extent: int
    counted: CountedRange | None = None

    @property
    def names(self) -> set[str]:
        """The indices that what a launch decides depends on."""
        span = self.span
        if self.counted is not None and span.gather is None:
            return indices_in(*_ends(self.counted))
        used = indices_in(_place(span), span.limit, span.gather, *_ends(self.counted))
        whole = span.gather is None and not at_launch(span.start)  # up to an end, whichever tile it is of
        return used - {str(span.index)} if whole else used | set(filter(None, [self.index]))

    def parts(self, rank: int, indices: Mapping[str, int]) -> Iterator[GuardPart]:
        """Yield what a launch decides for one rank and one set of indices."""
        if self.counted is None or self.span.gather is not None:
            yield self._of_span(rank, indices)
            return
        if self.counted.start is not None:
            yield Begun(dim=self.dim, start=settled(self.counted.start, rank, indices))
        if self.counted.stop is not None:
            yield Ended(dim=self.dim, stop=settled(self.counted.stop, rank, indices))

    def _of_span(self, rank: int, indices: Mapping[str, int]) -> GuardPart:
        span = self.span
        if span.kind == "point":
            return Place(dim=self.dim, at=settled(self._at, rank, indices))
        if span.gather is not None:
            return self._listed(span.gather, rank, indices)
        if span.index is None:
            return Segment(dim=self.dim, start=settled(span.start, rank, indices), stop=None, offset=0, size=span.size)
        stop = settled(span.limit or Int(value=span.extent), rank, indices)
        start = settled(span.start, rank, {**indices, str(span.index): 0})
        if not any(isinstance(e, Lookup) for e in walk(start)):
            return Ended(dim=self.dim, stop=stop)
        offset = indices[str(span.index)] * span.size
        return Segment(dim=self.dim, start=start, stop=stop, offset=offset, size=span.size)

    @cached_property
    def _at(self) -> Scalar:
        return _place(self.span)

    @cached_property
    def _entries(self) -> Entries:
        entries = listed(self.span.gather, self.scalars)
        assert entries is not None
        return entries

    def _listed(self, gather: Lookup, rank: int, indices: Mapping[str, int]) -> Listed:
        entries = self._entries
        begin, first = entries.offset, indices[entries.index] * self.tile
        last = min(first + self.tile, self.extent)
        start, stop = _ends(self.counted) or (None, None)
        stop = None if stop is None else settled(add(entries.offset, stop), rank, indices)
        if start is not None:  # tiles are cut from there on
            begin, last = add(begin, binary("max", start, const(0))), first + self.tile
            stop = stop or settled(add(entries.offset, const(self.extent)), rank, indices)
        if not any(isinstance(part, Lookup) for part in walk(begin)):
            at = int(evaluate(begin, Env(rank=rank, ranks=1, params={}, indices=indices)))
            begin, first, last = Int(value=0), first + at, last + at
        coords = (*gather.coords[: entries.dim], begin, *gather.coords[entries.dim + 1 :])
        lookup = settled(Lookup(table=gather.table, coords=coords), rank, indices)
        assert isinstance(lookup, Lookup)
        return Listed(dim=self.dim, entries=lookup, along=entries.dim, first=first, last=last, stop=stop)


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """An iteration of a counted index that a launch may leave out, and with it an access of which no dimension says so.

    tile: elements of a tile of the index, None for an index that is a number. extent: elements of its dimension.
    """

    index: str
    counted: CountedRange
    tile: int | None
    extent: int

    @property
    def names(self) -> set[str]:
        """The indices that it depends on."""
        return {self.index, *indices_in(*_ends(self.counted))}

    def parts(self, rank: int, indices: Mapping[str, int]) -> Iterator[Chosen]:
        """Yield the conditions for one rank and one set of indices."""
        start, stop, first = self.counted.start, self.counted.stop, Int(value=indices[self.index])
        if self.tile is None:
            if start is not None:
                yield self._if(start, "<=", first, rank, indices)
            if stop is not None:
                yield self._if(first, "<", stop, rank, indices)
            return
        begin, end = mul(first, const(self.tile)), const(self.extent)
        if start is None:  # every tile begins before the end of its dimension
            yield self._if(begin, "<", stop if stop is not None else end, rank, indices)
            return
        begin = add(binary("max", start, const(0)), begin)
        yield self._if(begin, "<", binary("min", stop, end) if stop is not None else end, rank, indices)

    def _if(self, left: Scalar, op: str, right: Scalar, rank: int, indices: Mapping[str, int]) -> Chosen:
        return Chosen(condition=settled(Compare(op=op, left=left, right=right), rank, indices), holds=True)


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A branch that a launch may not take, and with it an access."""

    condition: Scalar
    holds: bool

    @property
    def names(self) -> set[str]:
        """The indices that it depends on."""
        return indices_in(self.condition)

    def parts(self, rank: int, indices: Mapping[str, int]) -> Iterator[Chosen]:
        """Yield the condition for one rank and one set of indices."""
        yield Chosen(condition=settled(self.condition, rank, indices), holds=self.holds)


Deciding = Template | Iteration | Branch
"""What decides about an access, for all ranks and indices."""
Decided = tuple[tuple[Deciding, ...], tuple[str, ...]]
"""All that decides about an access, and the names of the indices of which its guard has values."""


def _ends(counted: CountedRange | None) -> tuple[Scalar | None, ...]:
    return (counted.start, counted.stop) if counted is not None else ()


def parts_of(tile_map: TileMap, stage: BoundStage, named: Collection[str] = ()) -> list[Template]:
    """Return what a launch decides of an access of a stage, along its dimensions.

    named: tables whose entries are places also where they can only be 0.
    """
    templates: list[Template] = []
    for dim, span in enumerate(tile_map.spans):
        if (number := _number(span, stage)) is not None:
            templates.append(_template(dim, span, stage, number, stage.parts[number]))
        elif span.at_launch or _tables(_place(span)) & {*named}:
            counted = stage.parts.get(str(span.index)) if span.gather is not None else None
            templates.append(_template(dim, span, stage, span.index, counted))
    return templates


def _template(dim: int, span: Span, stage: BoundStage, index: str | None, counted: CountedRange | None) -> Template:
    tile, extent = stage.tiles.get(str(index), 1), stage.extents.get(str(index), 1)
    return Template(
        dim=dim, span=span, scalars=stage.scalar_indices, index=index, tile=tile, extent=extent, counted=counted
    )


def iterations_of(spans: Iterable[Span], stage: BoundStage, around: Iterable[str]) -> list[Iteration]:
    """Return the iterations around an access that a launch may leave out, as far as no dimension of it says so.

    spans: of its dimensions, none for a statement that is no access. around: the indices in scope.
    """
    said = {_number(span, stage) or (span.index if span.counted else None) for span in spans}
    left = [index for index in around if index in stage.parts and index not in said]
    return [
        Iteration(
            index=index,
            counted=stage.parts[index],
            tile=None if index in stage.scalar_indices else stage.tiles[index],
            extent=stage.extents[index],
        )
        for index in left
    ]


def _number(span: Span, stage: BoundStage) -> str | None:
    """Return the counted index that a coordinate is, as a number, or None."""
    if span.kind == "point" and isinstance(span.named, Index) and span.named.name in stage.parts:
        return span.named.name
    return None


def _tables(expr: Scalar) -> set[str]:
    return {part.table for part in walk(expr) if isinstance(part, Lookup)}


def _place(span: Span) -> Scalar:
    """Return where a span begins; for a point whose place does not need a launch, as the program names it."""
    return span.start if span.named is None or at_launch(span.start) else span.named


def settled(expr: Scalar, rank: int, indices: Mapping[str, int]) -> Scalar:
    """Return an expression with numbers for the rank and the indices; look-ups get the rank as first coordinate."""
    match expr:  # the forms of most places, of which a plan has many
        case Index(name=name):
            return _number_of(indices[name])
        case Int():
            return expr
        case Lookup(coords=coords):
            inner = (settled(c, rank, indices) for c in coords if isinstance(c, Scalar))
            return Lookup(table=expr.table, coords=(_number_of(rank), *inner), launch=True)
        case Binary(op=op, left=left, right=right):
            a, b = settled(left, rank, indices), settled(right, rank, indices)
            return expr if a is left and b is right else binary(op, a, b)
        case Compare(op=op, left=left, right=right):
            a, b = settled(left, rank, indices), settled(right, rank, indices)
            return Compare(op=op, left=a, right=b, location=expr.location)
        case Rank():
            return _number_of(rank)
        case _:
            return rewrite(expr, lambda part: settled(part, rank, indices) if part is not expr else None)


@lru_cache(maxsize=1 << 14)
def _number_of(value: int) -> Int:
    return Int(value=int(value))


def numbered(
    guards: Guards, templates: Sequence[Deciding], rank: Ints, indices: Mapping[str, Ints], outer: Ints
) -> Ints:
    """Return the number of the guard of each row. outer: numbers of the guards of the branches around the access."""
    if not templates and not outer.any():
        return np.zeros(len(rank), np.int64)
    names = sorted({name for template in templates for name in template.names} & indices.keys())
    columns = [rank, outer, *(indices[name] for name in names)]
    if not len(rank):
        return np.zeros(0, np.int64)
    first, which = distinct_rows(columns)
    known = guards.numbered.setdefault((tuple(templates), tuple(names)), {})
    keys = [*zip(*(column[first].tolist() for column in columns), strict=True)]
    new = [number for number, key in enumerate(keys) if key not in known]
    if new:
        rows = first[new]
        own = {name: indices[name][rows] for name in names}
        each = [_of_rows(template, rank[rows], own) for template in templates]
        for number, *parts in zip(new, *each, strict=True):
            known[keys[number]] = guards.number((*guards.known[keys[number][1]], *chain(*parts)))
    return np.array([known[key] for key in keys], np.int64)[which]


def _of_rows(template: Deciding, rank: Ints, indices: Mapping[str, Ints]) -> list[tuple[GuardPart, ...]]:
    """Return for each row what a template says of it, which is the same where what it names is."""
    names = sorted(template.names & indices.keys())
    first, which = distinct_rows([rank, *(indices[name] for name in names)])
    own, rows = rank[first], {name: indices[name][first] for name in names}
    if isinstance(template, Branch):
        conditions = _settled_rows(template.condition, own, rows)
        found = [(Chosen(condition=one, holds=template.holds),) for one in conditions]
    else:
        each = zip(own.tolist(), *(rows[name].tolist() for name in names), strict=True)
        found = [tuple(template.parts(one, dict(zip(names, values, strict=True)))) for one, *values in each]
    return [found[row] for row in which.tolist()]


def _settled_rows(expr: Scalar, rank: Ints, indices: Mapping[str, Ints]) -> list[Scalar]:
    """Return `settled` for each row. What names no entry is evaluated for all of them at once."""
    match expr:
        case Compare(op=op, left=left, right=right):
            pairs = zip(*(_settled_rows(side, rank, indices) for side in (left, right)), strict=True)
            return [Compare(op=op, left=a, right=b, location=expr.location) for a, b in pairs]
        case _ if all(map(_is_computed, walk(expr))):
            values = np.asarray(evaluate(expr, Env(rank=rank, ranks=1, params={}, indices=indices)))
            return [_number_of(value) for value in np.broadcast_to(values, rank.shape).tolist()]
        case _:
            names = sorted(indices_in(expr))
            first, which = distinct_rows([rank, *(indices[name] for name in names)])
            rows = zip(rank[first].tolist(), *(indices[name][first].tolist() for name in names), strict=True)
            found = [settled(expr, own, dict(zip(names, values, strict=True))) for own, *values in rows]
            return [found[row] for row in which.tolist()]


def _is_computed(part: Scalar) -> bool:
    """True if a part of an expression has a value for each rank and all indices."""
    match part:
        case Binary(op="//" | "%", right=right):
            return isinstance(right, Int) and right.value != 0
        case _:
            return isinstance(part, Int | Index | Rank | Binary)
