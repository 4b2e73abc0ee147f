"""Segments of which a few tiles stand for all: `r: T[starts[e] : starts[e + 1]]`, whose places a launch decides.

A launch that has fewer rows in a segment is as good an example as one with many. Take a launch of the whole program,
and whole tiles of its segments, before the last one that is looked at. Without the rows of these it is a launch too:
those after them move down, and the rows that were taken out are beyond the last segment, where nobody names them. A
tile with number t in its segment, of which k tiles before it are taken out, is then the one with number t - k, and has
the same rows. So of a segment's tile *number* nothing is known but which of two is larger, and the tiles of an index
are a repetition without dimensions (cutoff.py), if nothing else says where a row is. For each index tensor `starts`,

* it is `rising` or `offsets`, has one dimension, and its entries are nothing but ends of these ranges, the end of what
  is defined of a tensor along rows, and bounds of entries that name rows;
* the dimensions along which an index has rows, but those of inputs, have the extent of that index. Their other
  coordinates are `:`, an index over the same segments, on the own rank, or an entry. Signals are for all channels of
  them, or for the one that there is. They are of no table, hold no steps, and promise no order along rows;
* an entry that names a row is nothing else, and what is known of such entries, of `starts` and of index tensors with
  an entry for each row is what they promise (`Segments.holds`). A read by place of what is written in segments may be
  of any of their tiles: it is a box of all that there are (verifier/segments.py). In the launch without other tiles,
  its entry has moved down with the row, and entries whose rows are gone name any other row, so those that end with
  the segments are not `distinct`.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass

from tilelink.ir.program import IndexDecl, Notify, Read, Region, Transfer, Wait
from tilelink.ir.scalar import (
    RANK,
    Binary,
    Coordinate,
    Index,
    Int,
    Lookup,
    Scalar,
    Whole,
    add,
    children,
    const,
    walk,
)
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor
from tilelink.planning.plan import Plan

Dim = tuple[str, int]
"""A dimension of a tensor."""


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Indices over the segments of one index tensor, as (stage, index).

    rows: the dimensions along which they have rows. entries: index tensors whose entries name rows.
    """

    starts: str
    indices: frozenset[tuple[str, str]]
    rows: frozenset[Dim]
    entries: frozenset[str]

    def holds(self, plan: Plan) -> bool:
        """True if a plan knows no more of the entries than what they promise.

        An entry of `starts`, or one that names a row, may be equal to the value of a name that no other entry is equal
        to: then nothing is known of that.
        """
        own = {self.starts, *self.entries}
        listed = {name for name, _ in self.rows}
        private, known = set[str](), set[str]()
        for (table, _, _), origin in plan.guards.copies.items():
            if origin is None:
                continue
            if table in own:
                value = _clamped(origin)
                if value is None or value.table in plan.bound.tensors:
                    return False
                private.add(value.table)
            elif table in listed:
                return False
            else:
                known |= {part.table for part in walk(origin) if isinstance(part, Lookup)}
        return not known & (private | own | listed)


def _clamped(expr: Scalar) -> Lookup | None:
    """Return the entry that an expression is, but for numbers between which it is taken; None if it is another one."""
    match expr:
        case Lookup():
            return expr
        case Binary(op="min" | "max", left=Int(), right=inner) | Binary(op="min" | "max", left=inner, right=Int()):
            return _clamped(inner)
        case _:
            return None


@dataclass(frozen=True, kw_only=True)
class _Coord:
    """A coordinate, the stage or tensor that names it, and whether it is on the own rank."""

    coord: Scalar | Whole
    owner: str
    here: bool

    def over(self, indices: Container[tuple[str, str]]) -> bool:
        """True if it is one of some indices, (stage, index)."""
        return isinstance(self.coord, Index) and (self.owner, self.coord.name) in indices


@dataclass(kw_only=True)
class _Uses:
    """How a program uses indices, dimensions and entries."""

    bound: Bound
    ranges: Mapping[tuple[str, str], str]
    """(stage, index) -> the index tensor of whose segments it is over."""
    coords: list[tuple[Dim, _Coord]] = field(default_factory=list[tuple[Dim, "_Coord"]])
    """Coordinates of dimensions."""
    signals: list[Region] = field(default_factory=list[Region])
    indices: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Indices that are more than coordinates."""
    along: set[Dim] = field(default_factory=set[Dim])
    """Dimensions whose coordinates declarations name."""
    named: list[tuple[str, Dim]] = field(default_factory=list[tuple[str, Dim]])
    """Entries that are coordinates of a dimension."""
    ends: list[tuple[str, Dim]] = field(default_factory=list[tuple[str, Dim]])
    """Entries that end what is defined along a dimension; "" for other ends."""
    bounds: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Entries that bound those of a tensor."""
    entries: set[str] = field(default_factory=set[str])
    """Index tensors whose entries are used in other ways."""

    def __post_init__(self) -> None:
        for tensor in self.bound.tensors.values():
            decl = tensor.decl
            if isinstance(decl.bound, Lookup):
                self.bounds.append((decl.bound.table, tensor.name))
                self._coordinates(decl.bound.table, decl.bound.coords, tensor.name, None)
            else:
                self.visit(decl.bound, tensor.name)
            for dim, end in enumerate(decl.defined):
                if isinstance(end, Lookup):
                    self.ends.append((end.table, (tensor.name, dim)))
                    self._coordinates(end.table, end.coords, tensor.name, None)
                elif end is not None:
                    self.ends.append(("", (tensor.name, dim)))
                    self.visit(end, tensor.name)
        for stage in self.bound.stages.values():
            self.visit(stage.stage.indices, stage.name)
            self.visit(stage.stage.body, stage.name)

    def visit(self, node: object, owner: str) -> None:
        match node:
            case IndexDecl(name=name, start=Lookup() as start, stop=Lookup() as stop) if (owner, name) in self.ranges:
                self._coordinates(start.table, start.coords, owner, None)
                self._coordinates(stop.table, stop.coords, owner, None)
            case Region(tensor=name, coords=coords, rank=rank):
                self.visit(rank, owner)
                self._coordinates(name, coords, owner, rank)
            case Lookup(table=name, coords=coords):
                self.entries.add(name)
                self._coordinates(name, coords, owner, None)
            case Index(name=name):
                self.indices.add((owner, name))
            case Coordinate(dim=dim):
                self.along.add((owner, dim))
            case Scalar():
                for child in children(node):
                    self.visit(child, owner)
            case tuple():
                for one in node:
                    self.visit(one, owner)
            case _ if is_dataclass(node):
                self._signal(node)
                for one in fields(node):
                    if one.name != "location":
                        self.visit(getattr(node, one.name), owner)
            case _:
                pass

    def _signal(self, node: object) -> None:
        match node:
            case Notify(region=region) | Wait(region=region) | Transfer(signal=str(), target=region):
                self.signals.append(region)
            case Read(signal=str(), region=region):
                self.signals.append(region)
            case _:
                pass

    def _coordinates(self, name: str, coords: Iterable[Scalar | Whole], owner: str, rank: Scalar | None) -> None:
        for dim, coord in enumerate(coords):
            here = rank is None or rank == RANK
            self.coords.append(((name, dim), _Coord(coord=coord, owner=owner, here=here)))
            match coord:
                case Index(name=index) if (owner, index) in self.ranges:
                    pass
                case Lookup(table=table, coords=inner):
                    self.named.append((table, (name, dim)))
                    self._coordinates(table, inner, owner, None)
                case Scalar():
                    self.visit(coord, owner)
                case Whole():
                    pass


def segments_of(bound: Bound) -> list[Segments]:
    """Return the indices over segments of which a few tiles stand for all; none of a program with words, which a tile
    that is not there does not send."""
    if any(tensor.packed for tensor in bound.tensors.values()):
        return []
    ranges = {
        (stage.name, decl.name): table
        for stage in bound.stages.values()
        for decl in stage.stage.indices
        if (table := _table(bound, stage, decl)) is not None
    }
    if not ranges:
        return []
    uses = _Uses(bound=bound, ranges=ranges)
    found = (_segments(uses, table) for table in sorted({*ranges.values()}))
    return [one for one in found if one is not None]


def _table(bound: Bound, stage: BoundStage, decl: IndexDecl) -> str | None:
    """Return the index tensor of whose segments an index is over, or None."""
    match decl.start, decl.stop:
        case Lookup(table=table, coords=(Scalar() as first,), launch=True), Lookup(table=again, coords=(after,)) if (
            table == again and after == add(first, const(1))
        ):
            plain = decl.name not in stage.scalar_indices | stage.ends_with_tensor
            rising = {"rising", "offsets"} & {*bound.tensors[table].decl.properties}
            return table if plain and rising else None
        case _:
            return None


def _segments(uses: _Uses, table: str) -> Segments | None:
    """Return the indices over the segments of an index tensor, if nothing else says where a row is."""
    bound, indices = uses.bound, {one for one, own in uses.ranges.items() if own == table}
    extents = {bound.stages[stage].extents[name] for stage, name in indices}
    rows = {dim for dim, one in uses.coords if one.over(indices) and not _given(bound.tensors.get(dim[0]))}
    entries = {name for name, dim in uses.named if dim in rows}
    tensors = {name: bound.tensors[name] for name, _ in rows if name in bound.tensors}
    lists = [tensors[name] for name, _ in rows if name in tensors and tensors[name].decl.bound is not None]
    alike = [bound.tensors[name] for name in entries if name in bound.tensors] + lists
    wrong = (
        len(extents) > 1
        or indices & uses.indices
        or rows & uses.along
        or table in entries
        or (entries | {table}) & uses.entries
        or any(dim in rows and not _names_row(uses, table, coord) for dim, coord in uses.coords)
        or any(name in entries and dim not in rows for name, dim in uses.named)
        or any((name == table) != (dim in rows) for name, dim in uses.ends)
        or any(name in entries or (name == table and own not in entries) for name, own in uses.bounds)
        or any(name == table and "distinct" in bound.tensors[own].decl.properties for name, own in uses.bounds)
        or any(not _has_rows(uses, tensors.get(name), dim, extents) for name, dim in rows)
        or any({*one.decl.properties} - {"distinct", "replicated"} for one in alike)
        or ("replicated" not in bound.tensors[table].decl.properties and _replicated(alike))
    )
    if wrong:
        return None
    return Segments(starts=table, indices=frozenset(indices), rows=frozenset(rows), entries=frozenset(entries))


def _given(tensor: BoundTensor | None) -> bool:
    """True if all of a tensor is given to be read, and is no place of anything: any of its elements are alike."""
    return tensor is not None and tensor.decl.space == "in" and tensor.decl.bound is None and not tensor.decl.defined


def _replicated(tensors: Collection[BoundTensor]) -> bool:
    return any("replicated" in tensor.decl.properties for tensor in tensors)


def _names_row(uses: _Uses, table: str, one: _Coord) -> bool:
    """True if a coordinate along rows is `:`, an index over the segments of a table on the own rank, or an entry."""
    match one.coord:
        case Whole():
            return True
        case Index(name=name):
            return one.here and uses.ranges.get((one.owner, name)) == table
        case Lookup(table=entry, launch=True):
            return one.here and entry in uses.bound.tensors
        case _:
            return False


def _has_rows(uses: _Uses, tensor: BoundTensor | None, dim: int, extents: set[int]) -> bool:
    """True if the rows of a tensor may be any along a dimension, and its channels say nothing of them."""
    if tensor is None or tensor.shape[dim] not in extents or tensor.decl.space == "table":
        return False
    if tensor.fragments or (tensor.steps is not None and tensor.steps[0] == dim):
        return False
    grids = [grid for key, grid in uses.bound.channels.items() if key[0] == tensor.name]
    notified = [region.coords[dim] for region in uses.signals if region.tensor == tensor.name]
    return all(grid.counts[dim] == 1 for grid in grids) or all(isinstance(one, Whole) for one in notified)
