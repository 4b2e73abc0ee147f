"""Entries of index tensors that a program writes, as expressions of other entries: what makes two of them equal.

An entry is written at most once in a launch, and kernels clamp it to its bound where it serves as an integer. So an
entry that a statement writes is, for everybody who reads it as one, the value of the statement, clamped: another entry,
an integer expression of entries, or the value of a name. The last is the same for all statements of a task that store
the name, if nothing is assigned to it between them; of a tile, element by element, where it is stored along its own
axes. Other values are equal if they are computed alike (value_numbering.py).

Whoever reads an entry as a value reads what was stored, which is not clamped. Of an input both are the same, by its
bound. Of a tensor that the program writes, the stored number is an entry of a table of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice, repeat
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.intervals import MAX_INT32, MIN_INT32
from tilelink.ir.mapping import TileMap, selects_many
from tilelink.ir.program import Apply, Assign, For, FromScalar, Literal, Local, Read, Region, Statement, Value
from tilelink.ir.scalar import Binary, Compare, Int, Logic, Lookup, Scalar, Whole, binary, const, walk
from tilelink.ir.typing import ONE, Axis
from tilelink.ir.visitor import local_names, reads, stage_scalars, statements, value_of
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.columns import Ints, distinct_rows
from tilelink.lowering.guards import Entry, Guards, settled
from tilelink.lowering.value_numbering import (
    Along,
    At,
    Box,
    Columns,
    Origins,
    SettledKeys,
    ValueKey,
    ValueKeys,
    box,
    is_fixed,
)

OPERATIONS = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "minimum": "min", "maximum": "max",
}  # fmt: skip
"""Operation of values -> that of integer expressions."""
LONGEST = 256
"""Parts of an expression of entries, at most: names of names can double them again and again. Longer ones are only
compared with others that are computed alike."""
OF_STATEMENT = "#"
"""In a guard, the value of a name is an entry of a table of its own: the name, this, and what assigned it. So is what
is stored in an index tensor: the tensor, this, and nothing."""
Boxes = Callable[[TileMap], tuple[Ints, Ints, Ints]]
"""The elements of an access and their rank, in each of the executions of a statement."""

SHORT = 1 << 10
"""Entries of an index tensor that are compared, whoever asks for them."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One execution of a statement. number: which one it is among those of the statement."""

    number: int
    task: int
    rank: int
    indices: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Element:
    """An element of what a value is written to, by its number among so many.

    places: where all of them are along the axes of the value, None if that is not known.
    """

    number: int
    of: int
    places: Columns | None


@dataclass(frozen=True, kw_only=True)
class _Version:
    """The last value assigned to a name. statement: its number. value: None in a branch or a loop."""

    statement: int
    value: Value | None
    before: Mapping[str, _Version]


@dataclass(frozen=True, kw_only=True)
class _Noted:
    """Entries that are equal to the elements of a value, in their order. columns: where these are, for the key."""

    entries: Sequence[Entry]
    key: ValueKey
    columns: Columns

    def place(self, number: int) -> tuple[int, ...]:
        return tuple(column[number] for column in self.columns)


@dataclass(kw_only=True)
class StoredEntries:
    """Notes the entries that the statements of a program write, in the order of a walk over its stages."""

    bound: Bound
    guards: Guards
    _names: Mapping[str, _Version] = field(default_factory=dict[str, "_Version"])
    """Names of a stage, so far. Each assignment makes another mapping: keys are made later, of names as they were."""
    _stage: str = ""
    _origins: Origins = field(init=False)
    _noted: list[_Noted] = field(default_factory=list[_Noted])
    _where: dict[Entry, tuple[_Noted, int]] = field(default_factory=dict[Entry, "tuple[_Noted, int]"])
    """The first that was noted of an entry, and which of its entries it is."""
    _twice: set[Entry] = field(default_factory=set[Entry])
    _later: list[tuple[Sequence[Entry], Callable[[], ValueKey | None], Columns]] = field(default_factory=list[Any])
    """Entries that `settle` notes: keys that nobody asks for are not made."""

    def __post_init__(self) -> None:
        self._origins = Origins.of(self.bound)

    @cached_property
    def _asked(self) -> frozenset[str]:
        """The index tensors, and names, of which a single entry is an integer or a value, or bounds one.

        Of the others tiles are lists of places, and nobody asks what an entry of a list is equal to.
        """
        found = set[str]()
        for stage in self.bound.stages.values():
            for expr in stage_scalars(stage.stage):
                listed = isinstance(expr, Lookup) and selects_many(expr, stage.scalar_indices)
                parts = (part for part in walk(expr) if not (listed and part is expr))
                found |= {part.table for part in parts if isinstance(part, Lookup)}
            every = (value_of(one) for one in statements(stage.stage.body))
            found |= {region.tensor for value in every if value is not None for region in reads(value)}
        for tensor in self.bound.tensors.values():
            ends = (expr for expr in (tensor.decl.bound, *tensor.decl.defined) if expr is not None)
            found |= {part.table for expr in ends for part in walk(expr) if isinstance(part, Lookup)}
        return frozenset(found)

    def _is_asked(self, stage: BoundStage, table: str) -> bool:
        """True if it may matter what the entries are equal to that a stage writes, or names that are stored there.

        Those of a short list are compared too, which costs little: the simulator draws equal ones alike.
        """
        asked = table in self._asked or any(one in self._asked for one in self.bound.typing.stage(stage.name).locals)
        return asked or prod(self.bound.tensors[table].shape) <= SHORT

    def assigned(self, stage: BoundStage, number: int, statement: Assign) -> None:
        """Take an assignment."""
        if stage.name != self._stage:
            self._stage, self._names = stage.name, {}
        always = any(statement is one for one in stage.stage.body)
        value = statement.value if always else None
        version = _Version(statement=number, value=value, before=self._names)
        self._names = {**self._names, statement.name: version}

    def written(
        self, stage: BoundStage, statement: Statement, target: Region, value: Value, executions: list[Execution],
        boxes: Boxes,
    ) -> None:  # fmt: skip
        """Take a statement that writes entries. executions: those of it, none if a launch decides which there are."""
        if not self._is_asked(stage, target.tensor):
            return
        tensor = self.bound.tensors[target.tensor].decl
        tile_map = self.bound.tile_map(stage.name, target)
        lo, hi, peer = boxes(tile_map)
        dims = len(tensor.shape)
        in_order = executions and is_fixed(tile_map)
        stored = f"{target.tensor}{OF_STATEMENT}"
        self.guards.ranges[stored] = (MIN_INT32, MAX_INT32)
        sources = _Sources(
            entries=self,
            stage=stage,
            boxes=boxes,
            axes=_long(self.bound.typing.stage(stage.name).region_type(target).axes),
            carried=_assigned_around(stage, statement),
        )
        whole = self._axes(stage, target, value)
        names = self._names if stage.name == self._stage else {}
        rows = range(len(lo))
        if not in_order and len(lo):  # of entries at places that a launch decides nothing is known, whichever these are
            rows = distinct_rows([peer, *lo[:, :dims].T, *hi[:, :dims].T])[0].tolist()
        for row in rows:
            sizes, holder = (hi[row, :dims] - lo[row, :dims]).tolist(), int(peer[row])
            steps = np.indices(sizes).reshape(dims, prod(sizes))
            places = [*map(tuple, (steps.T + lo[row, :dims]).tolist())]
            columns = None if whole is None else tuple(steps[d].tolist() for d in whole)
            origins: list[Scalar | None] = [None] * len(places)
            if in_order:
                for at in range(len(places)):
                    element = Element(number=at, of=len(places), places=columns)
                    origins[at] = sources.of(value, executions[row], element, names)
                computed = [at for at, origin in enumerate(origins) if origin is None]
                if columns is not None and computed:
                    key = partial(sources.key, value, executions[row], names, _differing(columns))
                    entries = [(stored, holder, places[at]) for at in computed]
                    self.note(entries, key, tuple([column[at] for at in computed] for column in columns))
            for place, origin in zip(places, origins, strict=True):
                self.guards.copy((stored, holder, place), origin)
                clamped = None if origin is None else self._clamped(target.tensor, origin)
                self.guards.copy((target.tensor, holder, place), clamped)

    def stored(
        self, stage: BoundStage, target: Region, value: Value, sure: NDArray[np.bool_], boxes: Boxes
    ) -> None:  # fmt: skip
        """Take a statement that writes to any tensor. sure: its executions that write just what they name."""
        if target.tensor not in self._origins.watched:
            return
        targets, sources, pure = boxes(self.bound.tile_map(stage.name, target)), None, False
        if isinstance(value, Read):
            tile_map = self.bound.tile_map(stage.name, value.region)
            sources, pure = boxes(tile_map), is_fixed(tile_map)
        for row in range(len(sure)):
            origin = None
            if isinstance(value, Read) and sources is not None and pure:
                origin = box(self.bound, stage, value.region, sources, row)
            self._origins.write(box(self.bound, stage, target, targets, row), origin, bool(sure[row]))

    def settle(self) -> None:
        """Note which values are equal, after all stages: what is computed alike from equal values is equal too."""
        for entries, key, columns in self._later:
            self._note(entries, key(), columns)
        self._later.clear()
        classes = self._equal()
        while self._origins.merge(self._stored_elements(classes)):
            classes = self._equal()
        for number, entries in enumerate(classes):
            table, rank, place = entries[0]
            name = f"{table}={number}"
            value = Lookup(table=name, coords=tuple(map(const, (rank, *place))), launch=True)
            self.guards.ranges[name] = (MIN_INT32, MAX_INT32)
            for entry in entries:
                self.guards.equal(entry, value)
                if _is_stored(entry[0]):  # what was stored in it: the entry is that, clamped
                    tensor = entry[0].removesuffix(OF_STATEMENT)
                    self.guards.equal((tensor, *entry[1:]), self._clamped(tensor, value))

    def _equal(self) -> list[list[Entry]]:
        """Return the entries and names that are equal, as far as it is known which elements are."""
        classes: dict[int, list[Entry]] = {}
        settled_keys = SettledKeys(origins=self._origins, resolve=self.guards.resolve)
        for noted in self._noted:
            found = settled_keys.of(noted.key, noted.columns)
            for entry, number in zip(noted.entries, found if isinstance(found, list) else repeat(found), strict=False):
                if number is not None and entry not in self._twice:
                    classes.setdefault(number, []).append(entry)
        return [entries for entries in classes.values() if len(entries) > 1]

    def note(self, entries: Sequence[Entry], key: Callable[[], ValueKey | None], columns: Columns = ()) -> None:
        """Note the key of the value of whose elements entries are equal. columns: where these are, for the key."""
        self._later.append((entries, key, columns))

    def _note(self, entries: Sequence[Entry], key: ValueKey | None, columns: Columns) -> None:
        noted = _Noted(entries=entries, key=key or (), columns=columns)
        new: list[int] = []
        for number, entry in enumerate(entries):
            if entry not in self._where:
                new.append(number)
                continue
            known, at = self._where[entry]
            if known.key != noted.key or known.place(at) != noted.place(number):
                self._twice.add(entry)
        if key is None or not new:
            return
        if len(new) < len(entries):
            columns = tuple([column[number] for number in new] for column in columns)
            noted = _Noted(entries=[entries[number] for number in new], key=key, columns=columns)
        self._noted.append(noted)
        self._where.update((entry, (noted, number)) for number, entry in enumerate(noted.entries))

    def _stored_elements(self, classes: Sequence[Sequence[Entry]]) -> Iterator[list[Entry]]:
        """Yield the elements in which equal values are stored, of tensors that other values are computed from."""
        for entries in classes:
            found = [(table[: -len(OF_STATEMENT)], rank, place) for table, rank, place in entries if _is_stored(table)]
            stored = [one for one in found if one[0] in self._origins.watched]
            if len(stored) > 1:
                yield stored

    def _axes(self, stage: BoundStage, target: Region, value: Value) -> tuple[int, ...] | None:
        """Return the dimensions of a target along which a value has its axes, or None if it is stretched along some."""
        typing = self.bound.typing.stage(stage.name)
        axes = tuple(d for d, coord in enumerate(target.coords) if typing.has_axis(coord))
        kind = typing.type_of(value).axes
        return () if not kind else axes if len(axes) == len(kind) and ONE not in kind else None

    def _clamped(self, name: str, value: Scalar) -> Scalar:
        low, high = self.bound.entries[name]
        match value:
            case Lookup(table=table) if (source := table.removesuffix(OF_STATEMENT)) in self.bound.entries:
                least, largest = self.bound.entries[source]
                if least <= low and high <= largest:  # what is clamped twice is clamped to the smaller range
                    value = replace(value, table=source)
            case Binary(op="min" | "max" as op, left=left, right=right):
                return binary(op, self._clamped(name, left), self._clamped(name, right))
            case _:
                pass
        return binary("min", binary("max", value, const(low)), const(high))


@dataclass(frozen=True, kw_only=True)
class _Sources:
    """Values of a statement as expressions of entries.

    axes: those of what it writes, None if its elements are not those of a box in their order.
    carried: names that a loop around it assigns to.
    """

    entries: StoredEntries
    stage: BoundStage
    boxes: Boxes
    axes: tuple[Axis, ...] | None
    carried: frozenset[str]
    _known: dict[Region, tuple[Ints, Ints, Ints] | None] = field(
        default_factory=dict[Region, "tuple[Ints, Ints, Ints] | None"]
    )
    _keys: dict[int, ValueKeys] = field(default_factory=dict[int, ValueKeys])
    """By the number of an execution."""
    _tiles: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """What was assigned to a name, by its identity, and the number of an execution whose elements of it were noted."""
    _named: dict[int, tuple[tuple[int, int], Scalar | None]] = field(default_factory=dict[Any, Any])
    """By the identity of what is assigned to a name, the last execution and element that asked, and the answer."""

    def of(self, value: Value, at: Execution, element: Element, names: Mapping[str, _Version]) -> Scalar | None:
        """Return an element of a value, or None if it is not known."""
        match value:
            case Read(region=region):
                return self._entry(region, at, element)
            case Literal(value=number) if isinstance(number, int) and not isinstance(number, bool):
                return const(number)
            case FromScalar(scalar=scalar) if not any(isinstance(e, Compare | Logic) for e in walk(scalar)):
                return self._fitting(settled(scalar, at.rank, at.indices))
            case Apply(op=op, args=args) if op in OPERATIONS:
                left = self.of(args[0], at, element, names)
                right = None if left is None else self.of(args[1], at, element, names)
                if left is None or right is None or next(islice(walk(left), LONGEST, None), None) is not None:
                    return None
                if op in ("floordiv", "mod") and not (isinstance(right, Int) and right.value > 0):
                    return None
                return self._fitting(binary(OPERATIONS[op], left, right))
            case Local(name=name) if name in names and name not in self.carried:
                return self._name(name, at, element, names)
            case _:
                return None

    def key(self, value: Value, at: Execution, names: Mapping[str, _Version], place: At) -> ValueKey | None:
        """Return what elements of a value are computed from, or None if others may compute them otherwise."""

        def read(region: Region) -> Box | None:
            known = self._boxes(region)
            return None if known is None else box(self.entries.bound, self.stage, region, known, at.number)

        if self.carried and self.carried & _names_in(value, names):
            return None
        if at.number not in self._keys:
            self._keys[at.number] = ValueKeys(
                bound=self.entries.bound, stage=self.stage, read=read,
                settled=lambda one: settled(one, at.rank, at.indices),
            )  # fmt: skip
        return self._keys[at.number].of(value, names, place)

    def _fitting(self, value: Scalar) -> Scalar | None:
        """Return an expression that kernels compute as it stands: without an overflow."""
        guards = self.entries.guards
        low, high = guards.bounds.of(guards.resolve(value))
        return value if low >= MIN_INT32 and high <= MAX_INT32 else None

    def _boxes(self, region: Region) -> tuple[Ints, Ints, Ints] | None:
        """Return the boxes of a region in all executions, or None if a launch decides about them."""
        if region not in self._known:
            tile_map = self.entries.bound.tile_map(self.stage.name, region)
            self._known[region] = self.boxes(tile_map) if is_fixed(tile_map) else None
        return self._known[region]

    def _entry(self, region: Region, at: Execution, element: Element) -> Scalar | None:
        tensor = self.entries.bound.tensors[region.tensor].decl
        if tensor.bound is None or tensor.known_early:
            return None
        known = self._boxes(region)
        if known is None:
            return None
        lo, hi, peer = (column[at.number] for column in known)
        dims = len(tensor.shape)
        sizes = (hi[:dims] - lo[:dims]).tolist()
        if prod(sizes) not in (1, element.of):
            return None
        step = np.unravel_index(element.number if prod(sizes) > 1 else 0, sizes) if sizes else ()
        place = tuple(int(first + n) for first, n in zip(lo[:dims], step, strict=True))
        table = region.tensor if tensor.space == "in" else f"{region.tensor}{OF_STATEMENT}"
        self.entries.guards.ranges.setdefault(table, (MIN_INT32, MAX_INT32))
        return Lookup(table=table, coords=tuple(const(n) for n in (int(peer), *place)), launch=True)

    def _name(self, name: str, at: Execution, element: Element, names: Mapping[str, _Version]) -> Scalar | None:
        asked, version = (at.number, element.number), names[name]
        known, found = self._named.get(id(version), (None, None))
        if known != asked:
            found = self._assigned(name, version, at, element, names)
            self._named[id(version)] = asked, found
        return found

    def _assigned(
        self, name: str, version: _Version, at: Execution, element: Element, names: Mapping[str, _Version]
    ) -> Scalar | None:
        if version.value is not None:
            known = self.of(version.value, at, element, version.before)
            if known is not None:
                return known
        axes = self.entries.bound.typing.stage(self.stage.name).locals[name].axes
        one = not axes or element.of == 1
        if not one and _long(axes) != self.axes:  # how they are broadcast is not followed
            return None
        table = f"{name}{OF_STATEMENT}{version.statement}"
        self.entries.guards.ranges[table] = (MIN_INT32, MAX_INT32)
        entry = (at.task,) if one else (at.task, element.number)  # a tile is cut alike wherever it has these axes
        if one:
            key = partial(self.key, Local(name=name), at, names, (0,) * len(axes))
            self.entries.note([(table, at.rank, entry)], key)
        elif element.places is not None and (id(version), at.number) not in self._tiles:
            self._tiles.add((id(version), at.number))
            key = partial(self.key, Local(name=name), at, names, _differing(element.places))
            entries = [(table, at.rank, (at.task, number)) for number in range(element.of)]
            self.entries.note(entries, key, element.places)
        return Lookup(table=table, coords=tuple(map(const, (at.rank, *entry))), launch=True)


def _is_stored(table: str) -> bool:
    """True if a table of a guard has the numbers that are stored in an index tensor."""
    return table.endswith(OF_STATEMENT)


def named_entry(lookup: Lookup) -> tuple[str, tuple[Scalar | Whole, ...]]:
    """Return an entry of a guard as a program names it: a name or an index tensor, and the coordinates."""
    name, sign, statement = lookup.table.partition(OF_STATEMENT)
    assigned = sign and statement.partition("=")[0]
    return name, lookup.coords[2 if assigned else 1 :]  # the rank comes first, and of a name then the task


def _differing(columns: Columns) -> At:
    """Return the positions of elements that differ along all axes of a value."""
    return tuple(Along(column=number) for number in range(len(columns)))


def _long(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return the axes that may have more than one element: values with the same ones have the same order."""
    return tuple(axis for axis in axes if axis.kind != "one")


def _names_in(value: Value, names: Mapping[str, _Version]) -> set[str]:
    """Return the names that a value is computed from, and those that these are."""
    found, known, left = set[str](), set[int](), [(value, names)]
    while left:
        value, names = left.pop()
        found |= local_names(value)
        for version in filter(None, map(names.get, local_names(value))):
            if version.value is not None and id(version) not in known:
                known.add(id(version))
                left.append((version.value, version.before))
    return found


def _assigned_around(stage: BoundStage, statement: Statement) -> frozenset[str]:
    """Return the names that are assigned to in a loop around a statement."""
    loops = (one for one in statements(stage.stage.body) if isinstance(one, For))
    inside = (loop for loop in loops if any(statement is inner for inner in statements(loop.body)))
    return frozenset(one.name for loop in inside for one in statements(loop.body) if isinstance(one, Assign))
