"""Repetitions: indices and dimensions that are cut into blocks, in each of which a program does the same.

A *repetition* is a set of indices and of dimensions of tensors that are cut into equally many blocks, `count`. Their
sizes may differ: 4 heads of queries belong to 1 head of keys. The program is the same in each block if

* an index of the repetition is nothing but a coordinate of a dimension of it: as it is, as `h // 4` where the dimension
  is as much smaller, or as `b * T + t` where it is as much larger and t is below T. Or it is t in `x * T + t`, T
  numbers for each x, whatever that is: then what has all of these numbers has all blocks for each x, and T is smaller
  in the small program (`Repetition.outer`). Or it is one over segments, which are a repetition of their own
  (segment_tiles.py). In the order of its stage it is a digit, which no other index depends on, unless nothing depends
  on that order (`in_any_order`). A condition may compare two numbers of one repetition, `n <= b`, also below others,
  `x * R + n <= y * R + b` with both below R: a rising map keeps what is larger. And it may compare one with an entry,
  `x * R + n >= e`, or its opposite, if such entries serve for nothing else: e is then as good as the least number that
  is no less;
* a dimension of the repetition has no other coordinates, but for all of it. What its tensor promises or declares to be
  defined does not depend on it;
* tiles and channels end where blocks do; a tensor that is written has one dimension of it at most. Copy engines with an
  index of it wait for nothing, and tables have no dimension of it.

An event is then in one block for each index of it around the event. If there are m of these at most, and n around what
writes or notifies, two events, of which one writes or notifies, are in m + n blocks at most. These, `kept`, stand for
all. (2 m where warps have roles: what loads come ahead of are waits, too.) Blocks may have parts: some tiles and
channels are blocks, and others parts of them. Then as many parts of a block stand for all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from math import gcd, lcm

import numpy as np

from tilelink.ir.program import For, FromScalar, If, Notify, Region, Statement, Store, Transfer, Wait
from tilelink.ir.scalar import (
    Binary,
    Compare,
    Coordinate,
    Env,
    Index,
    Int,
    Logic,
    Lookup,
    Rank,
    Scalar,
    Whole,
    at_launch,
    children,
    const,
    evaluate,
    walk,
)
from tilelink.ir.visitor import all_indices, awaited, statements
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor, KernelKind
from tilelink.lowering.orders import TILE
from tilelink.lowering.places import partial
from tilelink.lowering.words import looks_up
from tilelink.planning.few_ranks import Under, names_places, writes_entries
from tilelink.planning.plan import Plan
from tilelink.planning.segment_tiles import Segments, segments_of

EVENTS = 2
"""Events that rules compare, at most."""
Member = tuple[str, str | int]
"""An index of a stage, or a dimension of a tensor."""


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """A set of indices and dimensions.

    sizes: of a block of each member, in elements. kept: how many of `count` stand for all. parts: (n, m) if all members
    have n equal parts in each block, of which m stand for all; (1, 1) where blocks stay as they are. outer: how many
    times a member has all blocks, one after the other: `count` of them for each number above its own; 1 if it is not
    there. segments: those whose tiles it has, if its members are indices over these. compared: index tensors with whose
    entries its indices are compared.
    """

    sizes: Mapping[Member, int]
    count: int
    kept: int
    parts: tuple[int, int] = (1, 1)
    outer: Mapping[Member, int] = field(default_factory=dict[Member, int])
    segments: Segments | None = None
    compared: frozenset[str] = frozenset()

    @property
    def small(self) -> Mapping[Member, int]:
        """The extents of the members in the small program."""
        many, few = self.parts
        return {
            member: self.outer.get(member, 1) * (size // many * few * self.kept) for member, size in self.sizes.items()
        }

    def tiles(self, stage: BoundStage, index: str) -> int:
        """Return how many tiles of an index all blocks have."""
        return stage.count(index) // self.outer.get((stage.name, index), 1)

    def holds(self, plan: Plan) -> bool:
        """True if a plan knows no more of the entries that are read as numbers of blocks than what they promise."""
        named = {part.table for origin in plan.guards.copies.values() if origin is not None
                 for part in walk(origin) if isinstance(part, Lookup)}  # fmt: skip
        return not named & self.compared and (self.segments is None or self.segments.holds(plan))

    def indices(self, stage: BoundStage) -> list[str]:
        """Return the indices of a stage that are members."""
        return [name for name in stage.extents if (stage.name, name) in self.sizes]


class Search:
    """The search for the repetitions of a bound program.

    high: members of which it is known that they are in one, if some are: in a coordinate `x * T + t` that has another
    x, t is the one that is looked at.
    """

    def __init__(self, bound: Bound, high: Collection[Member] | None = None) -> None:
        self._bound, self._high = bound, high
        self.digits: dict[tuple[str, Scalar], Member] = {}
        """Coordinates `x * T + t`, by their stage, with t a member."""
        self._in_body = False
        """True for what is in the body of a stage, not in its domain."""
        self._scaled: set[Member] = set()
        """Dimensions that have another number of elements for each of an index."""
        self._above: set[Member] = set()
        """Dimensions that have all of an index for each number above it."""
        self._parent: dict[Member, Member] = {}
        self._extents: dict[Member, int] = {}
        self._other: set[Member] = set()
        """Members of no repetition."""
        self._fixed = {stage.name for stage in bound.stages.values() if writes_entries(bound, stage)}
        """Stages that write index tensors: values that are computed alike are known by all that they are made of."""
        self._naming = {stage.name for stage in bound.stages.values() if names_places(bound, stage)}
        """Stages in which names say where accesses are, or whether they are: what they are in the iterations before."""
        self._entries: set[str] = set()
        """Index tensors whose entries are more than what numbers of blocks are compared with."""
        self._compared: dict[str, set[tuple[Member, int]]] = {}
        """Index tensor -> the indices that are compared with entries of it, and in what they count."""
        self._segments: dict[Member, Segments] = {
            one: segments for segments in segments_of(bound) for one in segments.indices
        }
        """Indices over segments, of which nothing is known but the order of their tiles."""
        for tensor in bound.tensors.values():
            self._extents |= {(tensor.name, dim): extent for dim, extent in enumerate(tensor.shape)}
            self._other |= {(tensor.name, dim) for dim in _distinguished(tensor)}
        for stage in bound.stages.values():
            self._extents |= {(stage.name, name): extent for name, extent in stage.extents.items()}
            self._other |= {(stage.name, name) for name in self._distinguished(stage)}
        for tensor in bound.tensors.values():
            for expr in (tensor.decl.bound, *tensor.decl.defined):
                self._visit(expr, tensor.name)
        for stage in bound.stages.values():
            self._in_body = False
            self._visit(stage.stage.indices, stage.name)
            self._in_body = True
            self._visit(stage.stage.body, stage.name)
        for table, indices in self._compared.items():
            if not self._ends(table) or len({(self._root(one), radix) for one, radix in indices}) > 1:
                self._other |= {one for one, _ in indices}
        for segments in {*self._segments.values()}:
            first, *others = sorted(segments.indices)
            for one in others:
                self._parent[self._root(one)] = self._root(first)
            self._root(first)

    def repetitions(self) -> list[Repetition]:
        """Return the repetitions that have more blocks than are kept."""
        groups: dict[Member, list[Member]] = {}
        for member in self._parent:
            groups.setdefault(self._root(member), []).append(member)
        found = (self._repetition(members) for members in groups.values() if not self._other & {*members})
        return [one for one in found if one is not None]

    def _distinguished(self, stage: BoundStage) -> Iterator[str]:
        """Yield the indices of a stage whose iterations are not alike, or not known to be."""
        bound = self._bound
        kernel = bound.kernel_of[stage.name]
        every, body = all_indices(stage.stage), [*statements(stage.stage.body)]
        tied = stage.tasks is not None or stage.name in self._fixed
        if kernel.on_copy_engine:  # a copy takes the notifies after it along, also those of the next tile
            engine = [s for name in kernel.stage_names for s in statements(bound.stages[name].stage.body)]
            tied |= any(isinstance(s, Wait) for s in engine) or not isinstance((*body, None)[0], Store | Transfer)
        own = {decl.name for decl in stage.stage.indices}
        for decl in every:
            plain = not decl.counted
            summed = decl.name not in own and stage.name in self._naming
            plain |= (stage.name, decl.name) in self._segments
            if tied or summed or not plain or decl.name in stage.ends_with_tensor:
                yield decl.name

    def _repetition(self, members: list[Member]) -> Repetition | None:
        bound, extents = self._bound, self._extents
        units = gcd(*(extents[one] for one in members))
        digits = bool(self._above & {*members})
        if digits and self._scaled & {*members}:
            return None
        above = {one: extents[one] // units for one in members} if digits else {}
        for name, part in members:
            if isinstance(part, str) and part in (stage := bound.stages[name]).order:
                if in_any_order(bound, stage):
                    continue
                if stage.count(part) % above.get((name, part), 1):
                    return None
                if digit(bound, stage, part, stage.count(part) // above.get((name, part), 1)) is None:
                    return None
        least = 1
        """Units of a block."""
        inside: dict[str, int] = {}
        for name, part in members:
            if isinstance(part, int):
                inside[name] = inside.get(name, 0) + 1
            scale = 1 if digits else extents[name, part] // max(units, 1)
            sizes = [grid.sizes[part] for key, grid in bound.channels.items()
                     if key[0] == name and isinstance(part, int) and grid.counts[part] > 1]  # fmt: skip
            if isinstance(part, str):
                sizes = [bound.stages[name].tiles[part]]
            for size in sizes:
                least = lcm(least, size // gcd(size, scale)) if size else 0
        alone = all(count == 1 or _only_read(bound.tensors[name]) for name, count in inside.items())
        kept = _kept(bound, {*members})
        segments = next((self._segments[one] for one in members if one in self._segments), None)
        if not kept or not alone or not least or (units % least and not self._may_end_within(members)):
            return None
        sizes = {one: least if digits else extents[one] // units * least for one in members}
        for key, grid in bound.channels.items():
            dims = [dim for dim in range(len(grid.counts)) if (key[0], dim) in sizes and grid.counts[dim] > 1]
            if any(grid.sizes[dim] * grid.counts[dim] != extents[key[0], dim] for dim in dims):
                return None
        compared = frozenset(table for table, used in self._compared.items() if {one for one, _ in used} & {*members})
        alike = segments is None and (digits or len({extents[one] for one in members}) == 1)
        parts, count = self._parts(members, least, kept) if alike else (1, 1), -(-units // least)
        if count <= kept and parts == (1, 1):
            return None
        return Repetition(
            sizes=sizes, count=count, kept=min(count, kept), parts=parts, outer=above, segments=segments,
            compared=compared,
        )  # fmt: skip

    def _may_end_within(self, members: list[Member]) -> bool:
        """True if the last block may have fewer tiles than others: tiles of segments, whose signals are all alike."""
        engines = (self._bound.kernel_of[name].on_copy_engine for name, _ in members if name in self._bound.stages)
        return all(one in self._segments for one in members) and not any(engines)

    def _parts(self, members: list[Member], size: int, kept: int) -> tuple[int, int]:
        """Return how many equal parts a block has, and how many of them stand for all.

        They do if tiles and channels are blocks, parts, or equal pieces of these: two events are in as many parts of
        one block, at most, as they are in blocks. All members have blocks of one size.
        """
        bound = self._bound
        sizes = {bound.stages[name].tiles[part] for name, part in members if isinstance(part, str)}
        for name, part in members:
            if isinstance(part, int):
                sizes |= {grid.sizes[part] for key, grid in bound.channels.items()
                          if key[0] == name and grid.counts[part] > 1}  # fmt: skip
        part = max(sizes - {size}, default=size)
        if any(part % one for one in sizes - {size}) or size // part <= kept:
            return 1, 1
        return size // part, kept

    def _root(self, member: Member) -> Member:
        while (above := self._parent.setdefault(member, member)) != member:
            member = above
        return member

    def _join(self, dim: Member, index: Member, ratio: tuple[int, int]) -> None:
        """Note that an index is a coordinate of a dimension. ratio: of the dimension's extent to that of the index."""
        if ratio != (1, 1):
            self._scaled.add(dim)
        if self._extents[dim] * ratio[1] != self._extents[index] * ratio[0]:
            self._other |= {dim, index}
        self._parent[self._root(dim)] = self._root(index)

    def _visit(self, node: object, owner: str) -> None:
        """Note how indices are used. owner: the stage, or the tensor whose coordinates are named.

        `pos(i)` names its index by a string, which is not seen. Nothing that rules compare is made of it: it is a value
        of elements, of which come no coordinates, conditions or ranges. Masks are made of it for roles, which are read
        off the whole program (verifier/cutoff.py).
        """
        match node:
            case Region(tensor=name, coords=coords, rank=rank):
                self._visit(rank, owner)
                self._coords(name, coords, owner)
            case Lookup(table=name, coords=coords):
                self._entries.add(name)
                self._coords(name, coords, owner)
            case If(condition=condition, then=then, orelse=orelse):
                self._condition(condition, owner)
                self._visit((*then, *orelse), owner)
            case FromScalar(scalar=scalar) if owner not in self._fixed | self._naming:
                for part in partial((scalar,)):  # a value of elements, as of `pos`
                    self._visit(part, owner)
            case Index(name=name):
                self._other.add((owner, name))
            case Coordinate(dim=dim):
                self._other.add((owner, dim))
            case Scalar():
                for child in children(node):
                    self._visit(child, owner)
            case tuple():
                for one in node:
                    self._visit(one, owner)
            case _ if is_dataclass(node):
                for one in fields(node):
                    if one.name != "location":
                        self._visit(getattr(node, one.name), owner)
            case _:
                pass

    def _condition(self, condition: Scalar, owner: str) -> None:
        """Note how a condition uses indices, which may compare those of one repetition."""
        match condition:
            case Logic(args=args):
                for one in args:
                    self._condition(one, owner)
            case Compare(op=op, left=left, right=right) if owner not in self._fixed | self._naming:
                one, other = self._counted(left, owner), self._counted(right, owner)
                if one is not None and other is not None and one.radix == other.radix:
                    self._visit((one.above, other.above), owner)
                    self._join(other.index, one.index, (1, 1))
                elif one is not None and isinstance(right, Lookup) and op in (">=", "<"):
                    self._with_entry(one, right, owner)
                elif other is not None and isinstance(left, Lookup) and op in ("<=", ">"):
                    self._with_entry(other, left, owner)
                else:
                    self._visit((left, right), owner)
            case _:
                self._visit(condition, owner)

    def _with_entry(self, one: _Counted, entry: Lookup, owner: str) -> None:
        if entry.table not in self._bound.tensors:
            self._visit((one.above, entry), owner)
            self._other.add(one.index)
            return
        self._compared.setdefault(entry.table, set()).add((one.index, one.radix))
        self._visit(one.above, owner)
        self._coords(entry.table, entry.coords, owner)
        self._root(one.index)

    def _counted(self, expr: Scalar, owner: str) -> _Counted | None:
        """Return the number that an expression is, `i` or `x * R + i` with i below R; None for another one."""
        if isinstance(expr, Index) and self._is_number(owner, expr.name):
            return _Counted(index=(owner, expr.name), above=const(0), radix=0)
        if (digits := digits_of(expr)) is None:
            return None
        above, radix, name = digits
        if not (self._is_number(owner, name) and _is_radix(radix, self._extents[owner, name])):
            return None
        return _Counted(index=(owner, name), above=above, radix=radix)

    def _ends(self, table: str) -> bool:
        """True if entries are nothing but that with which indices are compared, so that smaller ones do as well."""
        decl = self._bound.tensors[table].decl
        others = {"replicated", "rising", "offsets"}
        given = decl.space == "in" and not at_launch(decl.bound or const(0)) and not {*decl.properties} - others
        return given and table not in self._entries

    def _coords(self, name: str, coords: tuple[Scalar | Whole, ...], owner: str) -> None:
        if name not in self._bound.tensors:  # the value of a name
            self._visit(coords, owner)
            return
        if owner in self._fixed:
            self._other |= {(name, dim) for dim in range(len(coords))}
        for dim, coord in enumerate(coords):
            if isinstance(coord, Index) and (owner, coord.name) in self._segments:
                self._other.add((name, dim))
                continue
            low = self._low(coord, owner, self._extents[name, dim])
            if low is not None:
                assert isinstance(coord, Scalar)
                self.digits[owner, coord] = low
                self._above.add((name, dim))
                self._parent[self._root((name, dim))] = self._root(low)
                continue
            found = self._as_member(coord, owner)
            if found is not None:
                self._join((name, dim), *found)
            if found is None and not isinstance(coord, Whole):
                self._other.add((name, dim))
                self._visit(coord, owner)

    def _low(self, coord: Scalar | Whole, owner: str, extent: int) -> Member | None:
        """Return the index t of a coordinate `x * T + t` with t one of T, unless x is a number of blocks."""
        found = digits_of(coord)
        if self._high is None or found is None or not self._in_body:
            return None
        above, radix, name = found
        own = self._extents.get((owner, name), 0)
        if not _below(radix, own) or not own or extent % own or (owner, name) in self._segments:
            return None
        if isinstance(above, Index) and (owner, above.name) in self._high:
            return None
        self._visit(above, owner)
        return owner, name

    def _as_member(self, coord: Scalar | Whole, owner: str) -> tuple[Member, tuple[int, int]] | None:
        """Return the index that a coordinate is, and how many elements there are for how many of the index."""
        match coord:
            case Index(name=name):
                return (owner, name), (1, 1)
            case Coordinate(dim=dim):
                return (owner, dim), (1, 1)
            case Binary(op="//", left=Index(name=name), right=Int(value=by)) if by > 0 and self._is_number(owner, name):
                return (owner, name), (1, by)
            case Binary(op="+", left=left, right=right) if (found := self._radix(left, right, owner)) is not None:
                return found
            case Binary(op="+", left=left, right=right):
                return self._radix(right, left, owner)
            case _:
                return None

    def _radix(self, high: Scalar, low: Scalar, owner: str) -> tuple[Member, tuple[int, int]] | None:
        """Return the index b of a coordinate `b * T + t`, of which T elements are for each b, if t is one of T."""
        match high, low:
            case (
                Binary(op="*", left=Index(name=name), right=Int(value=by))
                | Binary(op="*", left=Int(value=by), right=Index(name=name)),
                Index(name=inner),
            ) if self._is_number(owner, name) and self._extents.get((owner, inner)) == by:
                self._other.add((owner, inner))
                return (owner, name), (by, 1)
            case _:
                return None

    def _is_number(self, owner: str, name: str) -> bool:
        stage = self._bound.stages.get(owner)
        return stage is not None and name in stage.scalar_indices


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """A number that is compared: above * radix + index, which is below the radix; the index alone if that is 0."""

    index: Member
    above: Scalar
    radix: int


def digits_of(coord: Scalar | Whole) -> tuple[Scalar, int, str] | None:
    """Return x, T and t of a coordinate `x * T + t`."""
    match coord:
        case (
            Binary(op="+", left=Binary(op="*", left=above, right=Int(value=radix)), right=Index(name=name))
            | Binary(op="+", left=Index(name=name), right=Binary(op="*", left=above, right=Int(value=radix)))
        ) if radix > 0:
            return above, radix, name
        case _:
            return None


def _below(radix: int, extent: int) -> bool:
    """True if the numbers below an extent are all digits of a radix, so that `x * radix + t` leaves none out."""
    return extent == radix


def _is_radix(radix: int, extent: int) -> bool:
    """True if numbers below an extent are digits of a radix, so that the greater of two has the greater number."""
    return extent <= radix


def _kept(bound: Bound, members: set[Member]) -> int:
    """Return how many blocks of a repetition two events are in, at most, of which one writes or notifies.

    So are an event and an element of words that is in a channel with some of its own, and need not be its own.
    """
    most, notifying = 0, int(any(name in bound.tensors and bound.tensors[name].packed for name, _ in members))
    roles = False
    for stage in bound.stages.values():
        own = frozenset(stage.order)
        none: Statement | None = None
        for statement, around, _ in ((none, own, ()), *scoped(stage.stage.body, own)):
            depth = sum((stage.name, name) in members for name in around)
            most = max(most, depth)
            if isinstance(statement, Store | Transfer | Notify):
                notifying = max(notifying, depth)
            roles |= stage.kind is KernelKind.ROLES and depth > 0
    return most * EVENTS if roles else most + notifying


def _only_read(tensor: BoundTensor) -> bool:
    """True if no two accesses of a tensor, nor two of its elements, have anything to do with one another."""
    return tensor.decl.space == "in" and tensor.decl.bound is None


def _distinguished(tensor: BoundTensor) -> Iterator[int]:
    """Yield the dimensions along which elements of a tensor are not alike."""
    decl, own = tensor.decl, {tensor.steps[0]} if tensor.steps is not None else set[int]()
    entries = decl.bound is not None and (decl.space != "in" or {*decl.properties} - {"replicated"})
    for dim in range(len(tensor.shape)):
        ended = bool(decl.defined) and decl.defined[dim] is not None
        shares = tensor.packed > 1 and dim == len(tensor.shape) - 1  # elements along it share words
        if decl.space == "table" or entries or ended or dim in own or tensor.fragments or shares:
            yield dim


def in_any_order(bound: Bound, stage: BoundStage) -> bool:
    """True if nothing depends on the order of a stage's tiles: they are a kernel on SMs that waits for nothing."""
    kernel = bound.kernel_of[stage.name]
    alone = len(kernel.stage_names) == 1 and not kernel.on_copy_engine and stage.tasks is None
    words = any(tensor.packed and looks_up(stage.stage, tensor.name) for tensor in bound.tensors.values())
    return alone and stage.total > 0 and not words and not any(map(awaited, statements(stage.stage.body)))


def differs_by_rank(stage: BoundStage) -> bool:
    """True if the order of a stage's tiles may differ from rank to rank."""
    return any(isinstance(part, Rank | Lookup) for expr in stage.order.values() for part in walk(expr))


def digit(bound: Bound, stage: BoundStage, name: str, count: int) -> int | None:
    """Return of how many tiles a step of an index is, if its last `count` numbers are a digit of the tile number that
    nothing else depends on: no other index, and no number above it; else None."""
    if not stage.total:
        return None
    several = bound.ranks if differs_by_rank(stage) else 1
    ranks, numbers = np.arange(several)[:, None], np.arange(stage.total)[None, :]
    env = Env(rank=ranks, ranks=bound.ranks, params={}, indices={TILE.name: numbers})
    shape = (several, stage.total)
    columns = {one: np.broadcast_to(np.asarray(evaluate(expr, env)), shape) for one, expr in stage.order.items()}
    above, own = np.divmod(columns.pop(name), count)
    steps = np.flatnonzero(own[0] != own[0, 0])
    width = int(steps[0]) if len(steps) else stage.total
    if stage.total % (width * count):
        return None
    parts = [one.reshape(several, -1, count, width) for one in (above, *columns.values())]
    alone = all((one == one[:, :, :1]).all() for one in parts)
    own = own.reshape(several, -1, count, width)
    return width if alone and (own == np.arange(count)[None, None, :, None]).all() else None


def notified(statement: Statement) -> tuple[tuple[str, str], Region] | None:
    match statement:
        case Notify(kind=kind, region=region) | Transfer(signal=str(kind), target=region):
            return (region.tensor, kind), region
        case _:
            return None


def scoped(
    body: tuple[Statement, ...], around: frozenset[str], under: tuple[Under, ...] = ()
) -> Iterator[tuple[Statement, frozenset[str], tuple[Under, ...]]]:
    """Yield the statements of a body in the order of their numbers, with the indices and the conditions around them."""
    for statement in body:
        yield statement, around, under
        match statement:
            case If(condition=condition, then=then, orelse=orelse):
                yield from scoped(then, around, (*under, (condition, True)))
                yield from scoped(orelse, around, (*under, (condition, False)))
            case For(indices=indices, body=inner):
                yield from scoped(inner, around | {decl.name for decl in indices}, under)
            case _:
                pass
