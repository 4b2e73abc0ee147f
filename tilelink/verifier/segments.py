"""Tensors of a rank that are written at places which a launch decides and read in the same launch, such as packed rows.

Such an element has coordinates in which no launch decides anything, and accesses are boxes of these in the place of the
dimension (`TensorAccesses`). In these the rules prove of such a tensor what they prove of others.

* Of a tensor that is written in segments, `r: T[starts[e] : starts[e + 1]]`: the number of the segment and the distance
  from where that begins, `T` elements for each segment, one segment after the other. A read in a segment is a box; one
  elsewhere, as at a place, is a box of all segments that are written, if it is proved to be in them.
* Of a tensor that is written through the entries of an index tensor, `rows[place[b, i]]`: the number of the entry. A
  read is a box of all entries.

Theorem: two accesses that share an element of the tensor share one in these coordinates. Segments share no element if
`starts` is `rising` or `offsets`, all of the elements from the begin of the first one to the end of the last one are in
one, and what is there of a segment is the same for all who name it by the same entries. Entries share no element if
they are `distinct`, and if there are as many as elements, each element is that of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilelink.errors import CoverageError, ExclusiveWriteError, VerificationError
from tilelink.facts.regions import Begun, Chosen, Ended, GuardPart, Listed, Place, Segment
from tilelink.ir.program import Store, Transfer
from tilelink.ir.scalar import Int, Lookup, Scalar
from tilelink.lowering.bound import BoundTensor
from tilelink.lowering.columns import Ints, distinct_rows
from tilelink.lowering.events import WRITE
from tilelink.planning.plan import Plan
from tilelink.verifier.guarded import refused, said

Starts = tuple[str, tuple[object, ...]]
"""An index tensor, and the coordinates of its entries but for the last one."""


def segment_of(part: GuardPart) -> tuple[Starts, int] | None:
    """Return the entries between which a segment is, and its number among them; None for another part of a guard."""
    if not isinstance(part, Segment):
        return None
    start, stop = part.start, part.stop
    if not (isinstance(start, Lookup) and isinstance(stop, Lookup)) or start.table != stop.table:
        return None
    (*others, number), (*same, after) = start.coords, stop.coords
    if others != same or not (isinstance(number, Int) and isinstance(after, Int)) or after.value != number.value + 1:
        return None
    return (start.table, tuple(others)), number.value


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """Why it is not known that writes are of different elements, and what the program may say."""

    message: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The numbers of the entries through which an access names its elements: [first, last) of `count`.

    list: what is numbered.
    """

    list: str
    first: int
    last: int
    count: int


def numbers_of(plan: Plan, tensor: BoundTensor, part: Listed | Place) -> Numbers | Unknown:
    """Return the numbers of distinct entries that name elements of a tensor, or why nothing is known."""
    match part:
        case Listed(entries=Lookup(coords=coords) as entries, along=along, first=first, last=last):
            found = _numbered(plan, tensor, entries, along, first, last, part.dim)
            if isinstance(found, Unknown) or (part.stop is None and coords[along + 1] == Int(value=0)):
                return found
            at: Scalar = entries
        case Place(at=Lookup(coords=(*others, Int(value=last))) as at) if others:  # the first one is the rank
            return _numbered(plan, tensor, at, len(others) - 1, last, last + 1, part.dim)
        case Place(at=at):
            pass
    message = f"writes {tensor.name} at {said(plan, at)}, and other writes may be there too"
    hint = "write through distinct entries: place : in [T] < T distinct, and y[place[i], :]"
    return Unknown(message=message, hint=hint)


def _numbered(
    plan: Plan, tensor: BoundTensor, entries: Lookup, along: int, first: int, last: int, dim: int
) -> Numbers | Unknown:
    """Return the numbers of entries along a dimension of their tensor; those of rows follow one another."""
    table, shape = entries.table, plan.bound.tensors[entries.table].shape
    if "distinct" not in plan.bound.tensors[table].decl.properties:
        message = f"writes {tensor.name} through {table}, which may name an element twice"
        hint = f"if no two entries of {table} are alike, say so: {table} : {_space(plan, table)} [...] < M distinct"
        return Unknown(message=message, hint=hint)
    others = [str(coord) for at, coord in enumerate(entries.coords) if at != along + 1]  # the first one is the rank
    number, before, rows = shape[along], 0, entries.coords[1 : along + 1]
    last = min(last, number)
    if along == len(shape) - 1 and all(isinstance(one, Int) for one in rows):
        for size, one in zip(shape, rows, strict=False):
            before = before * size + (one.value if isinstance(one, Int) else 0)
        before, number, others = before * number, prod(shape), others[:1]
    if number != tensor.shape[dim]:
        message = f"writes {number} of the {tensor.shape[dim]} elements of {tensor.name} along dimension {dim}"
        hint = "all elements are written: entries of a permutation name each of them"
        return Unknown(message=message, hint=hint)
    return Numbers(list=f"{table} {others}", first=before + first, last=before + last, count=number)


def _space(plan: Plan, table: str) -> str:
    return plan.bound.tensors[table].decl.space


@dataclass(frozen=True, kw_only=True)
class InOrder:
    """Accesses of a tensor of `shape`, [rows, dims], in coordinates in which a launch decides nothing."""

    lo: Ints
    hi: Ints
    shape: tuple[int, ...]


def may_be_placed(tensor: BoundTensor) -> bool:
    """True for a tensor that a launch may write at places which it decides, and read."""
    return tensor.decl.space == "local"


def begin_of(plan: Plan, row: int) -> Scalar | None:
    """Return where the segment of an access begins; None of one that is in no segment alone."""
    return next((p.start for p in plan.guards.known[int(plan.accesses.guard[row])] if isinstance(p, Segment)), None)


def in_order(plan: Plan, tensor: BoundTensor, rows: Ints) -> InOrder | None:
    """Return accesses of a tensor in coordinates in which a launch decides nothing; None of one that it writes at no
    place that it decides.

    That nothing is known of some of them, is for `known_places` to refuse.
    """
    if not may_be_placed(tensor):
        return None
    found = _found(plan, tensor, rows)
    return found if isinstance(found, InOrder) else None


def known_places(plan: Plan, tensor: BoundTensor) -> Iterator[VerificationError]:
    """Yield a refusal of a tensor that is written at places which a launch decides, unless its writes are apart in all
    launches, what is read is written in all, and a launch decides of no write more than its place."""
    a = plan.accesses
    rows = np.flatnonzero(a.tensor == tensor.number)
    found = _found(plan, tensor, rows)
    if found is None:
        found = _elsewhere(plan, tensor, next(row for row in rows.tolist() if a.kind[row] == WRITE and a.guard[row]))
    if isinstance(found, VerificationError):
        yield found


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where an access is along the dimension of segments: from `first` to `last`, from the begin of one on."""

    starts: Starts
    dim: int
    number: int
    first: int
    last: int

    @property
    def list(self) -> tuple[Starts, int]:
        """The segments of which it is one, and their dimension."""
        return self.starts, self.dim

    def ends(self, size: int) -> tuple[int, int]:
        """Return where it begins and ends, if each segment has `size` elements: what is beyond them is in no launch."""
        return self.number * size + min(self.first, size), self.number * size + min(self.last, size)


_Kinds = Sequence[tuple[int, int, int]]
"""(row, rank, guard) of the first of accesses that are alike in all that is asked here."""


def _found(plan: Plan, tensor: BoundTensor, rows: Ints) -> InOrder | VerificationError | None:
    """Return accesses in coordinates in which a launch decides nothing, or the refusal of one; None if there are none
    for the writes."""
    a = plan.accesses
    written = a.kind[rows] == WRITE
    first, which = distinct_rows([a.peer[rows], a.guard[rows], written])
    kinds = [(row, int(a.peer[row]), int(a.guard[row])) for row in rows[first].tolist()]
    wrote = written[first].tolist()
    writes = [one for one, w in zip(kinds, wrote, strict=True) if w]
    parts = [part for _, _, guard in writes for part in plan.guards.known[guard]]
    if any(isinstance(part, Segment) for part in parts):
        found = _in_segments(plan, tensor, kinds, wrote)
    elif any(isinstance(part, Listed | Place) for part in parts):
        found = _in_entries(plan, tensor, kinds, wrote)
    else:
        return None
    if isinstance(found, VerificationError):
        return found
    dim, ends, size = found
    shape = tensor.shape
    lo, hi = a.lo[rows, : len(shape)].copy(), a.hi[rows, : len(shape)].copy()
    lo[:, dim], hi[:, dim] = (np.array(column, np.int64)[which] for column in zip(*ends, strict=True))
    new = tuple(size if d == dim else n for d, n in enumerate(shape))
    return InOrder(lo=lo, hi=hi, shape=new)


_Ends = tuple[int, list[tuple[int, int]], int]
"""A dimension, the (begin, end) of accesses along it, and its size."""


def _in_entries(plan: Plan, tensor: BoundTensor, kinds: _Kinds, wrote: Sequence[bool]) -> _Ends | VerificationError:
    """Return the numbers of the entries through which accesses are written; of reads, all of them."""
    known: dict[int, tuple[str, int]] = {}
    dims: set[int] = set()
    ends: list[tuple[int, int]] = []
    for (row, rank, guard), write in zip(kinds, wrote, strict=True):
        if not write:
            ends.append((0, -1))
            continue
        own, same = plan.guards.known[guard], plan.guards.of(guard)
        if len(own) != 1 or not isinstance(own[0], Listed | Place):
            return _elsewhere(plan, tensor, row)
        found = numbers_of(plan, tensor, own[0])  # the entry that the program names has the promise
        if isinstance(found, Unknown) and len(same) == 1 and isinstance(same[0], Listed | Place):
            copied = numbers_of(plan, tensor, same[0])  # or what it is a copy of
            found = found if isinstance(copied, Unknown) else copied
        if isinstance(found, Unknown):
            return refused(plan, ExclusiveWriteError, row, found.message, found.hint)
        dims.add(own[0].dim)
        if known.setdefault(rank, (found.list, own[0].dim)) != (found.list, own[0].dim) or len(dims) > 1:
            return _elsewhere(plan, tensor, row)
        ends.append((found.first, found.last))
    (dim,) = dims
    size = tensor.shape[dim]
    return dim, [(begin, size if end < 0 else end) for begin, end in ends], size


def _in_segments(plan: Plan, tensor: BoundTensor, kinds: _Kinds, wrote: Sequence[bool]) -> _Ends | VerificationError:
    """Return where accesses are in segments, with the begins of these as multiples of the size of the dimension."""
    lists: dict[int, tuple[Starts, int]] = {}
    written: dict[int, dict[int, Segment]] = {}
    for (row, rank, guard), write in zip(kinds, wrote, strict=True):
        if not write:
            continue
        place, known = next(_places(plan, guard), None), plan.guards.known[guard]
        if place is None or len(known) != 1 or tensor.decl.bound is not None:
            return _elsewhere(plan, tensor, row)
        if lists.setdefault(rank, place.list) != place.list:
            return _elsewhere(plan, tensor, row)
        table = place.starts[0]
        if not {"rising", "offsets"} & {*plan.bound.tensors[table].decl.properties}:
            return _shared(plan, tensor, row, table)
        written.setdefault(rank, {})[place.number] = _segment(plan, guard)
    own: list[_Place | None] = []
    for row, rank, guard in kinds:
        place = next((one for one in _places(plan, guard) if one.list == lists.get(rank)), None)
        if place is None and rank not in lists:
            return _read_elsewhere(plan, tensor, row)
        own.append(place)
    dims = {dim for _, dim in lists.values()}
    if len(dims) != 1:
        return _elsewhere(plan, tensor, kinds[0][0])
    (dim,) = dims
    size = _longest(plan, tensor, dim)
    all_of: dict[int, tuple[int, int]] = {}
    for rank, some in written.items():
        first, last = min(some), max(some)
        anywhere = [one for one, place in zip(kinds, own, strict=True) if place is None and one[1] == rank]
        if (row := _outside(plan, dim, some[first], some[last], anywhere)) is not None:
            return _read_elsewhere(plan, tensor, row)
        all_of[rank] = first * size, (last + 1) * size
    ends = [all_of[rank] if one is None else one.ends(size) for one, (_, rank, _) in zip(own, kinds, strict=True)]
    return dim, ends, max(-(-end // size) for _, end in ends) * size


def _longest(plan: Plan, tensor: BoundTensor, dim: int) -> int:
    """Return how many elements of a segment are written: those of a few tiles, if a few stand for all (cutoff.py)."""
    a, bound = plan.accesses, plan.bound
    rows = (a.tensor == tensor.number) & (a.kind == WRITE)
    longest = 0
    for number in np.unique(a.statement[rows]).tolist():
        name, statement = plan.statements[number]
        assert isinstance(statement, Store | Transfer)
        target = statement.region if isinstance(statement, Store) else statement.target
        stage, index = bound.stages[name], str(bound.tile_map(name, target).spans[dim].index)
        few = stage.cutoff.get(index)
        longest = max(longest, tensor.shape[dim] if few is None else few * stage.tiles[index])
    return longest


def _outside(plan: Plan, dim: int, first: Segment, last: Segment, kinds: _Kinds) -> int | None:
    """Return an access of some that is not proved to be between the begin of one segment and the end of another one."""
    assert last.stop is not None
    within = [Begun(dim=dim, start=first.start), Ended(dim=dim, stop=last.stop)]

    def proved(guard: tuple[GuardPart, ...]) -> bool:
        return all(plan.guards.facts.inside((plan.guards.resolved(guard), guard), part) for part in within)

    if all(map(proved, plan.guards.families(guard for _, _, guard in kinds))):
        return None
    return next((row for row, _, guard in kinds if not proved(plan.guards.known[guard])), None)


def _segment(plan: Plan, guard: int) -> Segment:
    """Return the segment in which a write is, by the entries that the program names."""
    return next(part for part in plan.guards.known[guard] if isinstance(part, Segment))


def _places(plan: Plan, guard: int) -> Iterator[_Place]:
    """Yield where a guard says that an access is in segments: by the entries that the program names, and by those that
    these are copies of."""
    known = plan.guards.known[guard]
    if not any(isinstance(part, Segment) for part in known):
        return
    for parts in (lambda: known, lambda: plan.guards.of(guard)):  # the second one takes long
        for part in parts():
            if isinstance(part, Segment) and (segment := segment_of(part)) is not None:
                starts, number = segment
                last = part.offset + part.size
                yield _Place(starts=starts, dim=part.dim, number=number, first=part.offset, last=last)


def _elsewhere(plan: Plan, tensor: BoundTensor, row: int) -> VerificationError:
    name = tensor.name
    message = f"writes {name} at a place that only a launch decides, and {name} is read by this launch too"
    hint = "write it in its order, by a range from 0 on, or all of it by segments, (e: E, r: T[starts[e] : "
    hint += "starts[e + 1]]), or through the entries of a permutation, place : in [T] < T distinct; or write an output"
    return refused(plan, CoverageError, row, message, hint)


def _shared(plan: Plan, tensor: BoundTensor, row: int, table: str) -> VerificationError:
    message = f"writes {tensor.name} in segments of {table}, which may share elements"
    hint = f"if no entry is below the one before it, say so: {table} : in [...] <= M rising, or offsets"
    return refused(plan, ExclusiveWriteError, row, message, hint)


def _read_elsewhere(plan: Plan, tensor: BoundTensor, row: int) -> VerificationError:
    parts = [part for part in plan.guards.known[int(plan.accesses.guard[row])] if not isinstance(part, Chosen)]
    where = f", from {said(plan, parts[0].start)} on" if parts and isinstance(parts[0], Segment) else ""
    message = f"reads {tensor.name} elsewhere than in the segments in which it is written{where}"
    hint = "read it in a range with the same ends: (e: E, r: T[starts[e] : starts[e + 1]]); or at places that are "
    hint += "before the end of the last one: place : in [...] < starts[E], or if place[i] < starts[E]:"
    return refused(plan, CoverageError, row, message, hint)
