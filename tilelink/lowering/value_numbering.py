"""Values that several tasks compute from the same data: which of them are equal in every launch.

A task may count for itself what another task, of another stage or rank, counts too. Two values are equal if they are
the same expression of the same elements and every operation gives one result, whatever the kernel: arithmetic of
integers, comparisons, `where`, minima and maxima. Sums of floats are not among them, because their order is that of a
kernel, nor are products and sums that one kernel may round once and another one twice.

An element is known by where it is from. An input does not change. An element that one statement writes once in a launch
is what it is when it is read: the rule of ordering proves that reads come after it. If the statement copies it, from an
input or a peer, it is that element. If it stores a value that another one stores too, computed alike, the two are one
element for what is computed from them: a sum of counts is the same wherever the counts are. Of a tensor that launches
change in place nothing is known: a read may come before the write, and then has what was there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import repeat
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.mapping import TileMap
from tilelink.ir.program import (
    INTEGER_OPS,
    Apply,
    Assign,
    Cast,
    Expand,
    FromScalar,
    Full,
    Literal,
    Local,
    Read,
    Reduce,
    Region,
    Scan,
    Store,
    Transfer,
    Value,
    WholePositions,
)
from tilelink.ir.scalar import Compare, Logic, Scalar, at_launch, const, walk
from tilelink.ir.typing import COMPARISONS, OF_INTEGERS, ONE, StageTyping
from tilelink.ir.visitor import local_names, reads, statements
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.columns import Ints

INTEGERS = ("i8", "u8", "i32", "i64", "bool")
ALWAYS_EXACT = ("minimum", "maximum", "where", "abs", "neg", *COMPARISONS)
"""Operations of floats that have one result."""
COMMUTATIVE = ("add", "mul", "minimum", "maximum", "eq", "ne", "and", "or", "bitand", "bitor", "bitxor")
MIRRORED = {"gt": "lt", "ge": "le"}
"""Comparison -> the one with the operands in the other order."""
ELEMENTS = 1 << 20
"""Elements of a tensor of a rank up to which it is known where they are from."""
UNKNOWN = -1

Element = tuple[str, int, tuple[int, ...]]
"""An element of a tensor: its name, the rank, the place."""
ValueKey = tuple[Any, ...]
"""An expression as nested tuples: equal ones have equal results."""


@dataclass(frozen=True, kw_only=True)
class Along:
    """A position that differs between elements of a tile, which have one key. column: which of their `Columns`."""

    column: int


At = tuple[int | Along | None, ...]
Columns = tuple[list[int], ...]
"""Positions of the elements of a tile, one list of them for each axis that they differ along."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """Elements of a tensor of a rank. axes: the dimensions along which they are a tile."""

    tensor: str
    rank: int
    lo: tuple[int, ...]
    hi: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.hi[d] - self.lo[d] for d in self.axes)

    def part(self, at: At) -> Box:
        """Return the elements at places along the axes; None, or a place that differs, for all along one."""
        lo, hi = [*self.lo], [*self.hi]
        for dim, place in zip(self.axes, at, strict=True):
            if isinstance(place, int):
                lo[dim], hi[dim] = lo[dim] + place, lo[dim] + place + 1
        axes = tuple(dim for dim, place in zip(self.axes, at, strict=True) if not isinstance(place, int))
        return Box(tensor=self.tensor, rank=self.rank, lo=tuple(lo), hi=tuple(hi), axes=axes)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(low, high) for low, high in zip(self.lo, self.hi, strict=True))


def box(bound: Bound, stage: BoundStage, region: Region, columns: tuple[Ints, Ints, Ints], row: int) -> Box:
    """Return the elements of a region in one execution. columns: their ends and ranks, in all executions."""
    lo, hi, peer = (column[row] for column in columns)
    typing, dims = bound.typing.stage(stage.name), len(bound.tensors[region.tensor].shape)
    axes = tuple(d for d, coord in enumerate(region.coords) if typing.has_axis(coord))
    ends = (tuple(int(n) for n in one[:dims]) for one in (lo, hi))
    return Box(tensor=region.tensor, rank=int(peer), lo=next(ends), hi=next(ends), axes=axes)


def is_fixed(tile_map: TileMap) -> bool:
    """True if no launch, and no table, decides which elements an access names."""
    return not at_launch(tile_map.rank) and not any(s.at_launch or s.gather is not None for s in tile_map.spans)


@dataclass(frozen=True, kw_only=True)
class _Written:
    """The elements that a statement writes in one execution. origin: the elements of which it is a copy, or None."""

    target: Box
    origin: Box | None
    sure: bool


@dataclass(kw_only=True)
class Origins:
    """The origins of the elements of the tensors that values of index tensors depend on."""

    bound: Bound
    watched: frozenset[str]
    _written: dict[tuple[str, int], list[_Written]] = field(default_factory=dict[Any, Any])
    _known: dict[tuple[str, int], NDArray[np.int64] | None] = field(default_factory=dict[Any, Any])
    _first: dict[tuple[str, int], int] = field(default_factory=dict[Any, Any])
    _merged: dict[tuple[str, int], dict[tuple[int, ...], int]] = field(default_factory=dict[Any, Any])

    @classmethod
    def of(cls, bound: Bound) -> Origins:
        return cls(bound=bound, watched=frozenset(_sources(bound)))

    def write(self, target: Box, origin: Box | None, sure: bool) -> None:
        """Note what a statement writes to a watched tensor. sure: it writes just these elements in every launch."""
        if origin is not None and not (sure and self._same_kind(target.tensor, origin.tensor)):
            origin = None  # where it may write is not where it writes: the two have different sizes
        row = _Written(target=target, origin=origin, sure=sure)
        self._written.setdefault((target.tensor, target.rank), []).append(row)

    def read(self, leaf: Leaf, columns: Columns) -> ValueKey | list[ValueKey | None] | None:
        """Return what the elements of a read are, or None if that is not known: one answer, or one for each place."""
        read, dtype = leaf.read, self.bound.tensors[leaf.read.tensor].dtype
        cells = self._cells(read.tensor, read.rank)
        if cells is None:
            return None
        found = cells[read.slices].reshape(read.shape)
        if any(isinstance(one, Along) for one in leaf.at):
            differing = [axis for axis, one in enumerate(leaf.at) if isinstance(one, Along)]
            found = np.moveaxis(found, differing, range(len(differing)))
            parts = found[tuple(columns[one.column] for one in leaf.at if isinstance(one, Along))]
            return [_elements(dtype, one) for one in parts]
        return _elements(dtype, found)

    def merge(self, groups: Iterable[Collection[Element]]) -> bool:
        """Note that the elements of each group have one value: they are one element. True if any of that is new.

        Of an element that is written more than once nothing is known all the same.
        """
        known: dict[tuple[str, int], dict[tuple[int, ...], int]] = {}
        for group in groups:
            number = self._number(min(group))
            for name, rank, place in group:
                known.setdefault((name, rank), {})[place] = number
        if known == self._merged:
            return False
        self._merged = known
        self._known.clear()
        return True

    def _number(self, element: Element) -> int:
        name, rank, place = element
        shape = self.bound.tensors[name].shape
        within = int(np.ravel_multi_index(place, shape)) if shape else 0
        return self._numbered((name, rank)) + within

    def _numbered(self, key: tuple[str, int]) -> int:
        """Return the number of the first element of a tensor of a rank."""
        return self._first.setdefault(key, len(self._first) * ELEMENTS)

    def _same_kind(self, one: str, other: str) -> bool:
        a, b = self.bound.tensors[one], self.bound.tensors[other]
        return a.dtype == b.dtype and self.bound.entries.get(one) == self.bound.entries.get(other)

    def _cells(self, name: str, rank: int) -> NDArray[np.int64] | None:
        """Return a number for each element of a tensor of a rank, which is that of the element that it is a copy of."""
        key, tensor = (name, rank), self.bound.tensors[name]
        if key not in self._known:
            self._known[key] = None  # of a tensor that is a copy of itself nothing is known
            if prod(tensor.shape) <= ELEMENTS and not (tensor.decl.in_place or tensor.decl.space == "table"):
                self._known[key] = self._found(key, tensor.shape, tensor.decl.space == "in")
        return self._known[key]

    def _found(self, key: tuple[str, int], shape: tuple[int, ...], given: bool) -> NDArray[np.int64]:
        cells = np.asarray(self._numbered(key) + np.arange(prod(shape), dtype=np.int64).reshape(shape))
        if given:
            return cells
        times = np.zeros(shape, np.int64)
        for row in self._written.get(key, []):
            there = row.target.slices
            times[there] += 1 if row.sure else 2
            source = None if row.origin is None else self._cells(row.origin.tensor, row.origin.rank)
            if source is not None and row.origin is not None and row.origin.shape == row.target.shape:
                cells[there] = source[row.origin.slices].reshape(cells[there].shape)
        for place, number in self._merged.get(key, {}).items():
            cells[place] = number
        return np.where(times == 1, cells, UNKNOWN)


def _elements(dtype: str, found: NDArray[np.int64]) -> ValueKey | None:
    """Return elements by their numbers, or None if one of them is not known."""
    if found.ndim == 0:
        return None if found == UNKNOWN else ("elements", dtype, int(found))
    if (found == UNKNOWN).any():
        return None
    return "elements", dtype, found.shape, sha256(found.tobytes()).digest()


def _sources(bound: Bound) -> set[str]:
    """Return the tensors that the values of index tensors are computed from, and those that these are copies of."""
    found: set[str] = set()
    copies: dict[str, set[str]] = {}
    for stage in bound.stages.values():
        body = [*statements(stage.stage.body)]
        named: dict[str, set[str]] = {}
        for _ in range(2):  # a name may be read before it is assigned to in the text, in a loop
            for one in body:
                if isinstance(one, Assign):
                    named.setdefault(one.name, set()).update(_read(one.value, named))
        for one in body:
            if isinstance(one, Store | Transfer):
                target, value = (one.region, one.value) if isinstance(one, Store) else (one.target, one.source)
                if bound.tensors[target.tensor].decl.bound is not None:
                    found |= _read(value, named)
                if isinstance(value, Read):
                    copies.setdefault(target.tensor, set()).add(value.region.tensor)
    while more := {source for name in found for source in copies.get(name, ())} - found:
        found |= more
    return found


def _read(value: Value, named: Mapping[str, set[str]]) -> set[str]:
    through = (named.get(name, set()) for name in local_names(value))
    return {region.tensor for region in reads(value)}.union(*through)


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """Elements that an expression reads, before it is known where they are from. at: along the axes of the box."""

    read: Box
    at: At = ()


@dataclass(frozen=True, kw_only=True)
class Decided:
    """An integer expression of entries of a launch."""

    scalar: Scalar


@dataclass(frozen=True, kw_only=True)
class ValueKeys:
    """Expressions of a stage as keys, in one execution of a statement.

    read: gives the elements of a region, or None if a launch decides which they are. settled: gives an integer
    expression with numbers for what this execution has.
    """

    bound: Bound
    stage: BoundStage
    read: Callable[[Region], Box | None]
    settled: Callable[[Scalar], Scalar]
    _known: dict[tuple[int | str, int, At], ValueKey | None] = field(default_factory=dict[Any, Any])
    """By the identities of a value and of the names: elements have most of what they are computed from in common.
    A name stands for itself, as who asks may make it for the question alone."""

    def of(self, value: Value, names: Mapping[str, Any], at: At) -> ValueKey | None:
        """Return the key of a part of a value, or None for a value that another kernel may compute otherwise.

        at: for each axis of the value the position of the part, or None for all of it; parts whose positions differ,
        `Along` columns of theirs, have one key. More axes in front are those of
        other values, with which it is broadcast. names: what is assigned to names, and what the names in that are then.
        """
        asked = value.name if isinstance(value, Local) else id(value), id(names), at
        if asked not in self._known:
            self._known[asked] = self._of(value, names, at)
        return self._known[asked]

    def _of(self, value: Value, names: Mapping[str, Any], at: At) -> ValueKey | None:
        kind = self._typing.type_of(value)
        if len(kind.axes) > len(at):
            return None
        own = tuple(
            0 if axis == ONE and one is not None else one
            for axis, one in zip(kind.axes, at[len(at) - len(kind.axes) :], strict=True)
        )
        match value:
            case Read(region=region):
                found = self.read(region)
                at = tuple(one for one in own if not isinstance(one, int))
                return None if found is None else ("read", Leaf(read=found.part(own), at=at))
            case Literal(value=number) if isinstance(number, int) and not isinstance(number, bool):
                return "integer", Decided(scalar=const(number))
            case Literal(value=number):
                return "number", type(number).__name__, repr(number)
            case Full(value=number, dtype=dtype):
                return "full", repr(number), dtype
            case FromScalar(scalar=scalar):
                if any(isinstance(e, Compare | Logic) for e in walk(scalar)):
                    return None
                return "integer", Decided(scalar=self.settled(scalar))
            case WholePositions(dim=dim):
                if isinstance(own[0], int):
                    return "integer", Decided(scalar=const(own[0]))
                return ("positions", dim) if own[0] is None else ("integer", own[0])
            case Local(name=name):
                return self._named(name, names, own)
            case Apply(op=op, args=args) if self._is_exact(op, args):
                return self._joined(("apply", op, kind.dtype), args, names, own)
            case Cast(value=inner, dtype=dtype):
                return self._joined(("cast", dtype), (inner,), names, own)
            case Expand(value=inner, pattern=pattern):
                return self._expanded(inner, pattern, names, own)
            case Reduce(op=op, value=inner, axis=axis) if op in ("max", "min") or self._dtype(inner) in INTEGERS:
                place = axis % (len(own) + 1)
                head = ("reduce", op, own[:place].count(None))
                return self._joined(head, (inner,), names, (*own[:place], None, *own[place:]))
            case Scan(op=op, value=inner, axis=axis) if self._dtype(inner) in INTEGERS:
                place = axis % len(own)
                head = ("scan", op, own[:place].count(None))
                found = self._joined(head, (inner,), names, (*own[:place], None, *own[place + 1 :]))
                return found if found is None or own[place] is None else ("item", *head, own[place], found)
            case _:
                return None

    @cached_property
    def _typing(self) -> StageTyping:
        return self.bound.typing.stage(self.stage.name)

    def _named(self, name: str, names: Mapping[str, Any], at: At) -> ValueKey | None:
        version = names.get(name)
        if version is None or version.value is None:
            return None
        kind, axes = self._typing.locals[name], self._typing.type_of(version.value).axes
        own = (*(ONE for _ in kind.axes[len(axes) :]), *axes)
        if any(one is None and a != b for a, b, one in zip(own, kind.axes, at, strict=True)):
            return None  # another assignment gives the name its elements along this axis
        found, dtype = self.of(version.value, version.before, at), kind.dtype
        return found if found is None or dtype == self._dtype(version.value) else ("cast", dtype, found)

    def _expanded(self, inner: Value, pattern: tuple[bool, ...], names: Mapping[str, Any], at: At) -> ValueKey | None:
        spare = len(at) - len(pattern)
        kept = (*at[:spare], *(one for one, is_kept in zip(at[spare:], pattern, strict=True) if is_kept))
        found = self.of(inner, names, kept)
        left = (*(one is None for one in at[:spare] if one is None),
                *(is_kept for one, is_kept in zip(at[spare:], pattern, strict=True) if one is None))  # fmt: skip
        return found if found is None or None not in kept or all(left) else ("expand", left, found)

    def _joined(self, head: ValueKey, args: tuple[Value, ...], names: Mapping[str, Any], at: At) -> ValueKey | None:
        found = [self.of(one, names, at) for one in args]
        return None if any(one is None for one in found) else (*head, *found)

    def _is_exact(self, op: str, args: tuple[Value, ...]) -> bool:
        of_integers = op in OF_INTEGERS or op in INTEGER_OPS
        return op in ALWAYS_EXACT or (of_integers and all(self._dtype(one) in INTEGERS for one in args))

    def _dtype(self, value: Value) -> str:
        return self._typing.type_of(value).dtype


Settled = int | list[int | None] | None


@dataclass(frozen=True, kw_only=True)
class SettledKeys:
    """Keys in terms of where elements are from: equal expressions of equal elements have one number.

    Keys share their parts, so each part is looked at once.
    """

    origins: Origins
    resolve: Callable[[Scalar], Scalar]
    _numbers: dict[ValueKey, int] = field(default_factory=dict[ValueKey, int])
    _known: dict[tuple[int, int], Settled] = field(default_factory=dict[Any, Any])
    """By the identities of keys and of columns, which their owner keeps."""
    _columns: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict[Any, Any])
    _rows: dict[tuple[Any, ...], list[int | None]] = field(default_factory=dict[Any, Any])
    """By what nodes are, and the identities of `_columns` that they are computed from."""

    def of(self, key: ValueKey, columns: Columns = ()) -> Settled:
        """Return the number of a key, or None if it is not known where one of its elements is from.

        columns: the places of the elements that the key is for: if it differs between them, one answer for each.
        """
        asked = id(key), id(columns)
        if asked not in self._known:
            self._known[asked] = self._of(key, columns)
        return self._known[asked]

    def _of(self, key: ValueKey, columns: Columns) -> Settled:
        parts: list[Any] = []
        for part in key:
            found = part
            if isinstance(part, Leaf):
                found = self.origins.read(part, columns)
            elif isinstance(part, Decided):
                found = self.resolve(part.scalar)
            elif isinstance(part, Along):
                found = columns[part.column]
                if key[0] == "integer":
                    found = [self.resolve(const(one)) for one in found]
            elif isinstance(part, tuple) and part and isinstance(part[0], str):
                found = self.of(part, columns)  # type: ignore[arg-type]
            if found is None:
                return None
            parts.append(found)
        if parts[0] == "apply" and parts[1] in MIRRORED:
            parts = ["apply", MIRRORED[parts[1]], parts[2], *parts[:2:-1]]
        commutes = parts[0] == "apply" and parts[1] in COMMUTATIVE
        if not any(isinstance(part, list) for part in parts):
            return self._numbered([tuple(parts)], commutes)[0]
        # What is computed from the same columns has the same ones: those of a tile are looked at once.
        own = [self._columns.setdefault(tuple(one), one) if isinstance(one, list) else one for one in parts]
        asked = tuple(id(one) if isinstance(one, list) else (one,) for one in own)
        if asked not in self._rows:
            rows = zip(*(one if isinstance(one, list) else repeat(one) for one in own), strict=False)
            self._rows[asked] = self._numbered(rows, commutes)
        return self._rows[asked]

    def _numbered(self, rows: Iterable[tuple[Any, ...]], commutes: bool) -> list[int | None]:
        """Return the numbers of nodes, None for one with a part of which nothing is known."""
        numbers, known = self._numbers, [None if None in row else row for row in rows]
        if commutes:
            known = [None if row is None else (*row[:3], *sorted(row[3:])) for row in known]
        return [None if row is None else numbers.setdefault(row, len(numbers)) for row in known]
