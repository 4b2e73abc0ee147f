"""Entries of index tensors that a program writes, as expressions of other entries: what makes two of them equal.

An entry is written at most once in a launch, and kernels clamp it to its bound where it serves as an integer. So an
entry that a statement writes is, for everybody who reads it as one, the value of the statement, clamped: another entry,
an integer expression of entries, or the value of a name. The last is the same for all statements of a task that store
the name, if nothing is assigned to it between them; of a tile, element by element, where it is stored along its own
axes.

Whoever reads an entry as a value reads what was stored, which is not clamped. Of an input both are the same, by its
bound. Of a tensor that the program writes, the stored number is an entry of a table of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from tilelink.ir.intervals import MAX_INT32, MIN_INT32
from tilelink.ir.mapping import TileMap
from tilelink.ir.program import Apply, Assign, For, FromScalar, Literal, Local, Read, Region, Statement, Value
from tilelink.ir.scalar import Binary, Compare, Int, Logic, Lookup, Scalar, at_launch, binary, const, walk
from tilelink.ir.typing import Axis
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.columns import Ints
from tilelink.lowering.guards import Guards, settled

OPERATIONS = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "minimum": "min", "maximum": "max",
}  # fmt: skip
"""Operation of values -> that of integer expressions."""
OF_STATEMENT = "#"
"""In a guard, the value of a name is an entry of a table of its own: the name, this, and what assigned it. So is what
is stored in an index tensor: the tensor, this, and nothing."""
Boxes = Callable[[TileMap], tuple[Ints, Ints, Ints]]
"""The elements of an access and their rank, in each of the executions of a statement."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One execution of a statement. number: which one it is among those of the statement."""

    number: int
    task: int
    rank: int
    indices: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class _Version:
    """The last value assigned to a name. statement: its number. value: None in a branch or a loop."""

    statement: int
    value: Value | None
    before: Mapping[str, _Version]


@dataclass(kw_only=True)
class Told:
    """Notes the entries that the statements of a program write, in the order of a walk over its stages."""

    bound: Bound
    guards: Guards
    _names: dict[str, _Version] = field(default_factory=dict[str, "_Version"])
    _stage: str = ""

    def assigned(self, stage: BoundStage, number: int, statement: Assign) -> None:
        """Take an assignment."""
        if stage.name != self._stage:
            self._stage, self._names = stage.name, {}
        always = any(statement is one for one in stage.stage.body)
        value = statement.value if always else None
        self._names[statement.name] = _Version(statement=number, value=value, before=dict(self._names))

    def written(
        self, stage: BoundStage, statement: Statement, target: Region, value: Value, executions: list[Execution],
        boxes: Boxes,
    ) -> None:  # fmt: skip
        """Take a statement that writes entries. executions: those of it, none if a launch decides which there are."""
        tensor = self.bound.tensors[target.tensor].decl
        tile_map = self.bound.tile_map(stage.name, target)
        lo, hi, peer = boxes(tile_map)
        dims = len(tensor.shape)
        in_order = executions and _in_order(tile_map)
        stored = f"{target.tensor}{OF_STATEMENT}"
        self.guards.ranges[stored] = (MIN_INT32, MAX_INT32)
        sources = _Sources(
            told=self,
            stage=stage,
            boxes=boxes,
            axes=_long(self.bound.typing.stage(stage.name).region_type(target).axes),
            carried=_assigned_around(stage, statement),
        )
        for row in range(len(lo)):
            places = [*np.ndindex(*(hi[row, :dims] - lo[row, :dims]).tolist())]
            for at, step in enumerate(places):
                place = int(peer[row]), tuple(int(n) for n in lo[row, :dims] + np.array(step))
                origin = None
                if in_order:
                    names = self._names if stage.name == self._stage else {}
                    origin = sources.of(value, executions[row], at, len(places), names)
                self.guards.copy((stored, *place), origin)
                clamped = None if origin is None else self._clamped(target.tensor, origin)
                self.guards.copy((target.tensor, *place), clamped)

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

    told: Told
    stage: BoundStage
    boxes: Boxes
    axes: tuple[Axis, ...] | None
    carried: frozenset[str]
    _known: dict[Region, tuple[Ints, Ints, Ints] | None] = field(
        default_factory=dict[Region, "tuple[Ints, Ints, Ints] | None"]
    )

    def of(
        self, value: Value, at: Execution, element: int, elements: int, names: Mapping[str, _Version]
    ) -> Scalar | None:
        """Return an element of a value, or None if it is not known. elements: of what the value is written to."""
        match value:
            case Read(region=region):
                return self._entry(region, at, element, elements)
            case Literal(value=number) if isinstance(number, int) and not isinstance(number, bool):
                return const(number)
            case FromScalar(scalar=scalar) if not any(isinstance(e, Compare | Logic) for e in walk(scalar)):
                return self._fitting(settled(scalar, at.rank, at.indices))
            case Apply(op=op, args=args) if op in OPERATIONS:
                left, right = (self.of(one, at, element, elements, names) for one in args)
                if left is None or right is None:
                    return None
                if op in ("floordiv", "mod") and not (isinstance(right, Int) and right.value > 0):
                    return None
                return self._fitting(binary(OPERATIONS[op], left, right))
            case Local(name=name) if name in names and name not in self.carried:
                return self._name(name, at, element, elements, names)
            case _:
                return None

    def _fitting(self, value: Scalar) -> Scalar | None:
        """Return an expression that kernels compute as it stands: without an overflow."""
        guards = self.told.guards
        low, high = guards.bounds.of(guards.resolve(value))
        return value if low >= MIN_INT32 and high <= MAX_INT32 else None

    def _entry(self, region: Region, at: Execution, element: int, elements: int) -> Scalar | None:
        tensor = self.told.bound.tensors[region.tensor].decl
        if tensor.bound is None or tensor.known_early:
            return None
        if region not in self._known:
            tile_map = self.told.bound.tile_map(self.stage.name, region)
            self._known[region] = self.boxes(tile_map) if _in_order(tile_map) else None
        known = self._known[region]
        if known is None:
            return None
        lo, hi, peer = (column[at.number] for column in known)
        dims = len(tensor.shape)
        sizes = (hi[:dims] - lo[:dims]).tolist()
        if prod(sizes) not in (1, elements):
            return None
        step = np.unravel_index(element if prod(sizes) > 1 else 0, sizes) if sizes else ()
        place = tuple(int(first + n) for first, n in zip(lo[:dims], step, strict=True))
        table = region.tensor if tensor.space == "in" else f"{region.tensor}{OF_STATEMENT}"
        self.told.guards.ranges.setdefault(table, (MIN_INT32, MAX_INT32))
        return Lookup(table=table, coords=tuple(const(n) for n in (int(peer), *place)), launch=True)

    def _name(
        self, name: str, at: Execution, element: int, elements: int, names: Mapping[str, _Version]
    ) -> Scalar | None:
        version = names[name]
        if version.value is not None:
            known = self.of(version.value, at, element, elements, version.before)
            if known is not None:
                return known
        axes = _long(self.told.bound.typing.stage(self.stage.name).locals[name].axes)
        if axes and elements > 1 and axes != self.axes:  # how they are broadcast is not followed
            return None
        table = f"{name}{OF_STATEMENT}{version.statement}"
        self.told.guards.ranges[table] = (MIN_INT32, MAX_INT32)
        place = (const(element),) if axes and elements > 1 else ()  # the tile is cut alike wherever it has these axes
        return Lookup(table=table, coords=(const(at.rank), const(at.task), *place), launch=True)


def name_of_value(table: str) -> str | None:
    """Return the name whose value is an entry of a table of a guard; None for an index tensor."""
    name, sign, _ = table.partition(OF_STATEMENT)
    return name if sign else None


def _in_order(tile_map: TileMap) -> bool:
    """True if the elements of an access are those of its box, in their order, whatever a launch brings."""
    return not at_launch(tile_map.rank) and not any(one.at_launch or one.gather is not None for one in tile_map.spans)


def _long(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return the axes that may have more than one element: values with the same ones have the same order."""
    return tuple(axis for axis in axes if axis.kind != "one")


def _assigned_around(stage: BoundStage, statement: Statement) -> frozenset[str]:
    """Return the names that are assigned to in a loop around a statement."""
    loops = (one for one in statements(stage.stage.body) if isinstance(one, For))
    inside = (loop for loop in loops if any(statement is inner for inner in statements(loop.body)))
    return frozenset(one.name for loop in inside for one in statements(loop.body) if isinstance(one, Assign))
