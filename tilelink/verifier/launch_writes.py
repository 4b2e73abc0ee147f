"""Writes at places that a launch decides, and what a launch leaves undefined.

Three theorems: of two promises of an index tensor, and of ranges with the same end.

* `offsets`: the segments [starts[e], starts[e + 1]) of e = 0, ..., E - 1 are disjoint, and together they are
  [0, starts[E]). So tiles that are cut from segments are disjoint, and cover the elements before `starts[E]`.
* `distinct`, with as many entries as the bound says: the entries are a permutation of the bound's range. So elements
  written through distinct entries are disjoint, and all entries together name each element once.
* A range [0, n) ends at the same element for everybody who takes the same n. An entry is written once in a launch, so
  its copies are equal to it. So a reader that stops at n reads nothing which a writer that stops at n left out.
  Ranges that begin at n, [n, M), do so alike. A write in an iteration that only a launch has, at a place that says
  nothing of the iteration, is read where the same iteration is known to be there.

In each case the elements are counted in the order of segments or entries, in which a launch decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tilelink.errors import CoverageError, ExclusiveWriteError, VerificationError
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import Store
from tilelink.ir.scalar import Binary, Coordinate, Int, Lookup, Param, Rank, Scalar, binary, const, rewrite, walk
from tilelink.lowering.bound import BoundTensor
from tilelink.lowering.columns import Ints, distinct_rows
from tilelink.lowering.enumerate import READ, WRITE
from tilelink.lowering.guards import Begun, Chosen, Ended, Guard, Listed, Place, Segment
from tilelink.lowering.guards import Part as GuardPart
from tilelink.lowering.stored_entries import named_entry
from tilelink.planning.plan import Plan
from tilelink.verifier.cells import Cells, of_tensors, parts
from tilelink.verifier.disjoint_places import repeated
from tilelink.verifier.overlaps import pairs
from tilelink.verifier.refusal import refuse, where

Decided = TypeVar("Decided", Ended, Begun, Chosen)


def placed_tensors(plan: Plan) -> list[str]:
    """Return the tensors that some access writes at a place that a launch decides."""
    a = plan.accesses
    rows = np.flatnonzero((a.kind == WRITE) & (a.guard > 0))
    if not len(rows):
        return []
    numbers = {
        int(tensor)
        for tensor, guard in np.unique(np.stack([a.tensor[rows], a.guard[rows]], axis=1), axis=0).tolist()
        if any(isinstance(part, Segment | Listed | Place) for part in plan.guards.known[guard])
    }
    return [tensor.name for tensor in plan.bound.tensors.values() if tensor.number in numbers]


def placed_writes(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of writes at places that a launch decides, unless their elements are disjoint and cover all that
    is defined, whatever the entries are."""
    a = plan.accesses
    for name in placed_tensors(plan):
        tensor = plan.bound.tensors[name]
        rows = np.flatnonzero((a.tensor == tensor.number) & (a.kind == WRITE))
        if tensor.decl.in_place:  # what is not written stays, and exclusive_writes asks whether writes are apart
            yield from _named_twice(plan, name, rows)
            continue
        others = np.flatnonzero((a.tensor == tensor.number) & (a.kind == READ))
        if tensor.decl.space != "out" or tensor.decl.symmetric or len(others):
            first = next(int(row) for row in rows if a.guard[row])
            what = "is read by this launch too" if len(others) else "is not an output of the own rank"
            message = f"writes {name} at a place that only a launch decides, and {name} {what}"
            hint = "write it in its order, by a range from 0 on, or write an output there"
            yield _of(plan, CoverageError, first, message, hint)
            continue
        for rank in np.unique(a.peer[rows]).tolist():
            yield from _Placed(plan=plan, tensor=tensor, rank=rank, rows=rows[a.peer[rows] == rank]).check()


def _named_twice(plan: Plan, name: str, rows: Ints) -> Iterator[VerificationError]:
    """Yield a refusal of a write that may name an element twice."""
    for row in rows[plan.accesses.guard[rows] > 0].tolist():
        statement = plan.statements[int(plan.accesses.statement[row])][1]
        if isinstance(statement, Store) and statement.adds:
            continue
        if (table := repeated(plan, row)) is not None:
            message = f"writes {name} through {table}, which may name an element twice"
            hint = f"if no two entries of {table} are alike, declare {table} [...] < M distinct; "
            space = plan.bound.tensors[name].decl.space
            hint += f"to add where some are, declare a sum: {name} : {space} [...] f32 sum"
            yield _of(plan, ExclusiveWriteError, row, message, hint)
            return


def ended_outputs(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of outputs that are written up to another element than the one up to which they are defined."""
    for tensor, row, part in _decided_writes(plan, Ended):
        error = _ends_right(plan, tensor, row, part)
        if error is not None:
            yield error
            return
    for tensor, row, part in _decided_writes(plan, Begun):
        if plan.guards.bounds.of(part.start)[1] > 0:
            message = f"writes {tensor.name} from {_said(plan, part.start)} on, and what is before is to be defined too"
            hint = "let the range begin at 0: where(c, a, b) chooses a value for each element"
            yield _of(plan, CoverageError, row, message, hint)
            return


def chosen_outputs(plan: Plan) -> Iterator[VerificationError]:
    """Yield a refusal of an output that is written in some launches only."""
    for tensor, row, part in _decided_writes(plan, Chosen):
        message = f"writes {tensor.name} in some launches only: {_said(plan, part.condition)}"
        hint = "write it in every launch: where(c, a, b) chooses a value, and 0 is one"
        yield _of(plan, CoverageError, row, message, hint)
        return


def _decided_writes(plan: Plan, kind: type[Decided]) -> Iterator[tuple[BoundTensor, int, Decided]]:
    """Yield (output, write, part of its guard) for the parts of a kind, of outputs that are written in their order."""
    a = plan.accesses
    placed = placed_tensors(plan)
    for tensor in plan.bound.tensors.values():
        if tensor.decl.space != "out" or tensor.name in placed:
            continue
        for row in np.flatnonzero((a.tensor == tensor.number) & (a.kind == WRITE) & (a.guard > 0)).tolist():
            yield from ((tensor, row, part) for part in _guard(plan, row) if isinstance(part, kind))


def undefined_reads(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of reads of elements that a launch may leave unwritten."""
    a = plan.accesses
    guarded = np.unique(a.tensor[(a.kind == WRITE) & (a.guard > 0)])
    for part in parts(plan, plan.touching(guarded) & ~of_tensors(plan, "in", "table", "inout", "kept")):
        writes, reads = pairs(part, READ)
        some = np.flatnonzero(a.guard[writes] > 0)
        for write, read in _unlike(plan, writes[some], reads[some]):
            if (left := _left_out(plan, write, read)) is not None:
                yield _undefined(plan, part.name, write, read, left)
                return


def _unlike(plan: Plan, writes: Ints, reads: Ints) -> Iterator[tuple[int, int]]:
    """Yield the first of the pairs of accesses that are alike in all that `_left_out` looks at."""
    if not len(writes):
        return
    a = plan.accesses
    ours, theirs = a.guard[writes], a.guard[reads]
    dims = sorted(set[int]().union(*(_placed(plan.guards.of(guard)) for guard in np.unique(theirs).tolist())))
    columns = [ours, theirs, *(_one_element(plan, writes, dim) for dim in dims)]
    first, _ = distinct_rows(columns)
    yield from zip(writes[np.sort(first)].tolist(), reads[np.sort(first)].tolist(), strict=True)


def _placed(guard: Guard) -> set[int]:
    """Return the dimensions along which an access names a place, where it matters what a write's box is there."""
    return {part.dim for part in guard if isinstance(part, Place)}


def _one_element(plan: Plan, writes: Ints, dim: int) -> Ints:
    """Return where writes are along a dimension if they have one element there, and -1 otherwise.

    Also -1 for those that a launch ends along this dimension alone: no bound of another one is asked for (`_bound_at`).
    """
    a = plan.accesses
    lo, guards = a.lo[writes, dim], a.guard[writes]
    known, number = np.unique(guards, return_inverse=True)
    ends = [{part.dim for part in plan.guards.of(guard) if isinstance(part, Ended)} for guard in known.tolist()]
    asked = np.array([bool(own - {dim}) for own in ends], bool)[number.ravel()]
    return np.where(asked & (a.hi[writes, dim] == lo + 1), lo, -1)


def ungiven_reads(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of reads beyond the part of an input that is given."""
    a = plan.accesses
    for tensor in plan.bound.tensors.values():
        if tensor.decl.space != "in" or not tensor.decl.defined:
            continue
        rows = np.flatnonzero((a.tensor == tensor.number) & (a.kind == READ))
        dims = len(tensor.shape)
        boxes = np.concatenate([a.guard[rows, None], a.peer[rows, None], a.lo[rows, :dims], a.hi[rows, :dims]], axis=1)
        _, first = np.unique(boxes, axis=0, return_index=True)
        for row in rows[np.sort(first)].tolist():
            for dim, end in enumerate(tensor.decl.defined):
                stop = None if end is None else _stop_of(plan, row, tensor, dim, end)
                if stop is not None and not any(_ends_before(plan, part, dim, stop) for part in _guard(plan, row)):
                    message = f"reads {tensor.name}, of which a launch gives what is before {_said(plan, stop)}"
                    hint = (
                        "read it in a range with that end, (i: M[: m]), or through entries below it: rows : in [T] < m"
                    )
                    yield _of(plan, CoverageError, row, message, hint)
                    return


def surely_undefined(plan: Plan, tensor: BoundTensor, rank: int, lo: Sequence[int], hi: Sequence[int]) -> bool:
    """True if a box of an output is beyond what is declared to be defined of it, in every launch."""
    for dim, end in enumerate(tensor.decl.defined):
        if end is not None:
            inner = plan.guards.resolve(_there(plan, end, rank, lo, hi))
            if plan.guards.bounds.of(inner)[1] <= lo[dim]:
                return True
    return False


def within_parts(plan: Plan, rows: Ints, hi: Ints) -> Ints:
    """Return the ends of accesses, [rows, dims], without elements that no launch has in the parts that they name."""
    ends = hi.copy()
    for at in np.flatnonzero(plan.accesses.guard[rows] > 0).tolist():
        for part in _guard(plan, int(rows[at])):
            if isinstance(part, Ended):
                ends[at, part.dim] = min(ends[at, part.dim], max(0, plan.guards.bounds.of(part.stop)[1]))
    return ends


def _guard(plan: Plan, row: int) -> Guard:
    return plan.guards.of(int(plan.accesses.guard[row]))


def _ends_before(plan: Plan, part: GuardPart, dim: int, stop: Scalar) -> bool:
    """True if an access names, along a dimension, only elements before `stop`, by this part of its guard."""
    if isinstance(part, Chosen) or part.dim != dim:
        return False
    match part:
        case Ended(stop=own):
            return plan.guards.at_most(own, stop)
        case Listed(entries=entry, along=along) if _has_bound_along(plan, entry, along):
            return False  # another one for each entry
        case Place(at=Lookup() as entry) | Listed(entries=entry):
            bound = _bound_of_entry(plan, entry)
            if bound is None or any(isinstance(e, Coordinate) for e in walk(bound)):
                return False
            return plan.guards.at_most(plan.guards.resolve(bound), stop)
        case Segment(stop=Lookup(table=table, coords=(*others, Int(value=number)))):
            match stop:
                case Lookup(table=other, coords=(*same, Int(value=last))):
                    rises = {"rising", "offsets"} & {*plan.bound.tensors[table].decl.properties}
                    return other == table and same == others and number <= last and bool(rises)
                case _:
                    return False
        case _:
            return False


def _left_out(plan: Plan, write: int, read: int) -> GuardPart | None:
    """Return what a launch decides of a write, by which it may leave out an element of its box that a read names."""
    a = plan.accesses
    read_guard = int(a.guard[read])
    named = plan.guards.of(read_guard), plan.guards.known[read_guard]  # the entry that the program names has the bound
    ours = plan.guards.of(int(a.guard[write]))
    return next((part for part in ours if not _leaves_out_nothing(plan, write, part, named)), None)


def _leaves_out_nothing(plan: Plan, write: int, part: GuardPart, named: tuple[Guard, Guard]) -> bool:
    """True if a read names only elements that a write has, as far as one part of the write's guard is concerned.

    named: the guard of the read, in terms of entries that are no copies of others, and as the program says it.
    """
    theirs = named[0]
    if part in theirs:
        return True
    if isinstance(part, Begun):
        return any(
            isinstance(o, Begun) and o.dim == part.dim and plan.guards.at_most(part.start, o.start) for o in theirs
        )
    if not isinstance(part, Ended):
        return False
    left = binary("max", part.stop, const(0))  # no element is before an end below 0, and entries say 0 then
    if any(isinstance(o, Ended) and o.dim == part.dim and plan.guards.at_most(o.stop, left) for o in theirs):
        return True
    return any(_bounded_before(plan, part, guard) or _placed_before(plan, write, part, guard) for guard in named)


def _bounded_before(plan: Plan, part: Ended, theirs: Guard) -> bool:
    """True if a read ends at an entry whose own bound is no more than the end of a write."""
    for other in theirs:
        if isinstance(other, Ended) and other.dim == part.dim and isinstance(other.stop, Lookup):
            bound = _bound_of_entry(plan, other.stop)
            if bound is not None and plan.guards.at_most(plan.guards.resolve(binary("-", bound, const(1))), part.stop):
                return True
    return False


def _placed_before(plan: Plan, write: int, part: Ended, theirs: Guard) -> bool:
    """True if a read is at a place that the bound of an entry keeps before the end of a write."""
    for other in theirs:
        if isinstance(other, Place) and other.dim == part.dim and isinstance(other.at, Lookup):
            bound = _bound_of_entry(plan, other.at)
            for place in theirs:
                if isinstance(place, Place) and place.dim != part.dim:
                    bound = _bound_at(plan, bound, place, write)
            if bound is not None and plan.guards.at_most(plan.guards.resolve(bound), part.stop):
                return True
    return False


def _has_bound_along(plan: Plan, entries: Lookup, along: int) -> bool:
    bound = plan.bound.tensors[entries.table].decl.bound
    return bound is not None and any(isinstance(e, Coordinate) and e.dim == along for e in walk(bound))


def _bound_of_entry(plan: Plan, entry: Lookup) -> Scalar | None:
    """Return the exclusive bound of an entry, if the tensor's bound is the entry of another tensor."""
    bound = plan.bound.tensors[entry.table].decl.bound
    rank, *coords = entry.coords
    if bound is None or not isinstance(rank, Scalar):
        return None

    def change(expr: Scalar) -> Scalar | None:
        match expr:
            case Coordinate(dim=dim):
                coordinate = coords[dim]
                return coordinate if isinstance(coordinate, Scalar) else None
            case Lookup(table=table, coords=inner):
                low, high = plan.bound.entries[table]
                if low == high:
                    return Int(value=low)
                settled = tuple(rewrite(c, change) for c in inner if isinstance(c, Scalar))
                return replace(expr, coords=(rank, *settled))
            case _:
                return None

    return rewrite(bound, change)


def _bound_at(plan: Plan, bound: Scalar | None, place: Place, write: int) -> Scalar | None:
    """Return a bound for the launches in which a place is the one element that a write has along its dimension."""
    a, dim = plan.accesses, place.dim
    if bound is None or a.hi[write, dim] != a.lo[write, dim] + 1:
        return bound
    value = Int(value=int(a.lo[write, dim]))
    return rewrite(bound, lambda expr: value if expr == place.at else None)


def _undefined(plan: Plan, name: str, write: int, read: int, left: GuardPart) -> VerificationError:
    a = plan.accesses
    writer = where(plan, int(a.task[write]))
    what = "in some launches only"
    if isinstance(left, Ended | Begun):
        what = f"up to {_said(plan, left.stop)}" if isinstance(left, Ended) else f"from {_said(plan, left.start)} on"
    message = f"reads {name} of rank {a.peer[read]}, which {writer} writes {what}" + _own_end(plan, read, left)
    hint = "read the same part: a range with the same end here, which a peer may have sent along, or which is computed"
    hint += " alike: the same expression of integers, comparisons, minima and maxima, of the same elements; entries"
    hint += " that all ranks are given alike are replicated: m : in [] <= M replicated"
    if isinstance(left, Ended):
        hint += "; or a place whose bound is that end: slot : in [...] < count[owner]"
    task, statement, related = int(a.task[read]), int(a.statement[read]), int(a.statement[write])
    return refuse(CoverageError, plan, message, task=task, statement=statement, related=related, hint=hint)


def _own_end(plan: Plan, read: int, left: GuardPart) -> str:
    """Return what a launch decides of a read along the dimension in which a write leaves something out, as text."""
    if not isinstance(left, Ended | Begun):
        return ""
    for part in _guard(plan, read):
        match part:
            case Ended(dim=left.dim, stop=stop) if isinstance(left, Ended):
                return f", and reads up to {_said(plan, stop)}"
            case Begun(dim=left.dim, start=start) if isinstance(left, Begun):
                return f", and reads from {_said(plan, start)} on"
            case Place(dim=left.dim, at=at):
                return f", and reads at {_said(plan, at)}"
            case _:
                pass
    return ", and reads all of that dimension"


def _ends_right(plan: Plan, tensor: BoundTensor, row: int, part: Ended) -> VerificationError | None:
    """Return the refusal of a write to an output that is not all of what is defined, or None."""
    name, decl = tensor.name, tensor.decl
    end = decl.defined[part.dim] if decl.defined else None
    if end is None:
        message = f"writes {name} up to {_said(plan, part.stop)} only, and all of dimension {part.dim} is to be defined"
        sizes = [print_scalar(n) + ("[: n]" if d == part.dim else "") for d, n in enumerate(decl.shape)]
        hint = f"say which part is defined: {name} : out [{', '.join(sizes)}], with n as in the range"
        return _of(plan, CoverageError, row, message, hint)
    defined = _stop_of(plan, row, tensor, part.dim, end)
    if defined == part.stop:
        return None
    text, here = print_scalar(end), _said(plan, defined)
    message = f"writes {name} up to {_said(plan, part.stop)}, and it is to be defined up to {text}"
    message += f", here {here}" if here != text else ""
    return _of(plan, CoverageError, row, message, "let both have the same end")


def _stop_of(plan: Plan, row: int, tensor: BoundTensor, dim: int, end: Scalar) -> Scalar:
    """Return up to where a tensor is defined or given, where an access is: ends are clamped, as those of ranges are."""
    return plan.guards.resolve(binary("min", _at(plan, row, end), const(tensor.shape[dim])))


def _at(plan: Plan, row: int, end: Scalar) -> Scalar:
    """Return what is defined, where a write is."""
    a = plan.accesses
    return _there(plan, end, int(a.peer[row]), a.lo[row].tolist(), a.hi[row].tolist())


def _there(plan: Plan, end: Scalar, rank: int, lo: Sequence[int], hi: Sequence[int]) -> Scalar:
    """Return what is defined on a rank, where a box is: by its coordinates along dimensions with one element."""

    def change(expr: Scalar) -> Scalar | None:
        match expr:
            case Rank():
                return Int(value=rank)
            case Coordinate(dim=dim):
                return Int(value=lo[dim]) if hi[dim] == lo[dim] + 1 else None
            case Lookup(coords=coords):
                inner = tuple(rewrite(c, change) for c in coords if isinstance(c, Scalar))
                return replace(expr, coords=(Int(value=rank), *inner))
            case _:
                return plan.bound.number(expr)

    return rewrite(end, change)


@dataclass(frozen=True, kw_only=True)
class _Unknown:
    """Why it is not known that writes are of different elements, and what the program may say."""

    message: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """The writes of one rank's output at places that a launch decides."""

    plan: Plan
    tensor: BoundTensor
    rank: int
    rows: Ints

    def check(self) -> Iterator[VerificationError]:
        a, guards = self.plan.accesses, self.plan.guards
        counted: list[tuple[int, int, int]] = []
        first: tuple[int, str, int] | None = None
        for row in self.rows.tolist():
            own = guards.known[int(a.guard[row])]
            if len(own) != 1 or not isinstance(own[0], Segment | Listed | Place):
                yield self._mixed(row)
                return
            found = self._order(row, own[0])  # the entry that the program names has the promise
            (same,) = guards.of(int(a.guard[row]))
            if isinstance(found, _Unknown) and isinstance(same, Segment | Listed | Place):  # or what it is a copy of
                copied = self._order(row, same)
                found = found if isinstance(copied, _Unknown) else copied
            if isinstance(found, _Unknown):
                yield _of(self.plan, ExclusiveWriteError, row, found.message, found.hint)
                return
            kind, begin, end, total = found
            first = first or (own[0].dim, kind, total)
            if first != (own[0].dim, kind, total):
                yield self._mixed(row)
                return
            counted.append((row, begin, end))
        if first is not None:
            yield from self._once(first[0], first[2], counted)

    def _mixed(self, row: int) -> VerificationError:
        message = f"writes {self.tensor.name} in several ways, or in a part of the launches"
        hint = "write all of it in one way: by the segments of one tensor, or through the entries of one"
        return _of(self.plan, ExclusiveWriteError, row, message, hint)

    def _order(self, row: int, part: Segment | Listed | Place) -> tuple[str, int, int, int] | _Unknown:
        """Return (what orders the elements, first, end, number of all), or why nothing is known."""
        match part:
            case Segment():
                return self._segment(row, part)
            case Listed(entries=Lookup() as entries, along=along, first=first, last=last):
                number = self.plan.bound.tensors[entries.table].shape[along]
                return self._entries(entries.table, str(entries), along, first, min(last, number), part.dim)
            case Place(at=Lookup(coords=coords) as at) if all(isinstance(c, Int) for c in coords) and len(coords) > 1:
                *others, last = (c.value for c in coords if isinstance(c, Int))  # the first one is the rank
                return self._entries(at.table, f"{at.table} {others}", len(others) - 1, last, last + 1, part.dim)
            case Place(at=at):
                message = f"writes {self.tensor.name} at {_said(self.plan, at)}, and other writes may be there too"
                hint = "write through distinct entries: place : in [T] < T distinct, and y[place[i], :]"
                return _Unknown(message=message, hint=hint)

    def _entries(
        self, table: str, which: str, along: int, first: int, last: int, dim: int
    ) -> tuple[str, int, int, int] | _Unknown:
        tensor, number = self.plan.bound.tensors[table], self.plan.bound.tensors[table].shape[along]
        if "distinct" not in tensor.decl.properties:
            message = f"writes {self.tensor.name} through {table}, which may name an element twice"
            hint = f"if no two entries of {table} are alike, say so: {table} : in [...] < M distinct"
            return _Unknown(message=message, hint=hint)
        if number != self.tensor.shape[dim]:
            size = self.tensor.shape[dim]
            message = f"writes {number} of the {size} elements of {self.tensor.name} along dimension {dim}"
            hint = "all elements of an output are written: entries of a permutation name each of them"
            return _Unknown(message=message, hint=hint)
        return which, first, last, number

    def _segment(self, row: int, part: Segment) -> tuple[str, int, int, int] | _Unknown:
        name = self.tensor.name
        unknown = f"writes {name} from {_said(self.plan, part.start)} on, where other segments may be too"
        match part.start, part.stop:
            case Lookup(table=table, coords=(*others, Int(value=number))), Lookup(coords=(*same, Int(value=after))) if (
                others == same and after == number + 1 and part.stop.table == table
            ):
                pass
            case _:
                hint = "cut it into segments: (e: E, i: M[starts[e] : starts[e + 1]]), "
                hint += "with starts : in [E + 1] <= M offsets"
                return _Unknown(message=unknown, hint=hint)
        decl = self.plan.bound.tensors[table].decl
        if "offsets" not in decl.properties:
            hint = f"if the segments of {table} follow one another from 0 on, say so: {table} : in [...] <= M offsets"
            return _Unknown(message=unknown, hint=hint)
        end = self.tensor.decl.defined[part.dim] if self.tensor.decl.defined else None
        last = _at(self.plan, row, end) if end is not None else None
        match last:
            case Lookup(table=other, coords=(*before, Int(value=segments))) if other == table and before == others:
                pass
            case _:
                message = f"writes {name} up to the end of the last segment of {table} only"
                hint = f"say which part is defined: {name} : out [M[: {table}[E]], ...]"
                return _Unknown(message=message, hint=hint)
        tiles = -(-self.tensor.shape[part.dim] // part.size)
        at = number * tiles + part.offset // part.size
        return f"{table} {others} {part.size}", at, at + 1, segments * tiles

    def _once(self, dim: int, total: int, counted: Sequence[tuple[int, int, int]]) -> Iterator[VerificationError]:
        """Yield a refusal unless each element is written once, counted in their order along a dimension."""
        a, dims = self.plan.accesses, len(self.tensor.shape)
        rows = np.array([row for row, _, _ in counted], np.int64)
        lo, hi = a.lo[rows, :dims].copy(), a.hi[rows, :dims].copy()
        lo[:, dim], hi[:, dim] = ([one[end] for one in counted] for end in (1, 2))
        shape = tuple(total if d == dim else n for d, n in enumerate(self.tensor.shape))
        cells = Cells.between(lo, hi, shape)
        low, high = cells.locate(lo, hi, np.zeros(len(rows), np.int64))
        wrong = np.argwhere(cells.paint(low, high, 1) != 1)
        if not len(wrong):
            return
        cell = wrong[0]
        inside = ((low <= cell) & (cell < high)).all(axis=1)
        place = [int(edges[c]) for edges, c in zip(cells.edges, cell[1:], strict=True)]
        times = int(inside.sum())
        message = f"{self.tensor.name} of rank {self.rank} is written {times} times at {place}"
        message += ", counted in segments or entries"
        hint = "every element of an output is written exactly once"
        if times:
            yield _of(self.plan, CoverageError, int(rows[inside][-1]), message, hint)
        else:
            yield CoverageError(message, location=self.tensor.decl.location, hint=hint)


def _said(plan: Plan, expr: Scalar) -> str:
    """Return an expression of a guard as text: an entry with the rank that holds it, without its clamp to its bound."""

    def unclamped(part: Scalar) -> Scalar:
        match part:
            case (
                Binary(op="min" | "max" as op, left=Int(value=end), right=inner)
                | Binary(op="min" | "max" as op, left=inner, right=Int(value=end))
            ):
                entry = unclamped(inner)
                ends = plan.bound.entries.get(named_entry(entry)[0]) if isinstance(entry, Lookup) else None
                return entry if ends is not None and end == ends[op == "min"] else part
            case _:
                return part

    def change(part: Scalar) -> Scalar | None:
        match part:
            case Binary(op="min" | "max") if isinstance(entry := unclamped(part), Lookup):
                return change(entry)
            case Lookup(coords=(Int(), *_)):
                name, coords = named_entry(part)
                inner = tuple(rewrite(c, change) for c in coords if isinstance(c, Scalar))
                return replace(part, table=name, coords=inner) if inner else Param(name=name)
            case _:
                return None

    ranks = {e.coords[0].value for e in walk(expr) if isinstance(e, Lookup) and isinstance(e.coords[0], Int)}
    text = print_scalar(rewrite(expr, change))
    return f"{text} of rank {', '.join(map(str, sorted(ranks)))}" if ranks else text


def _of(plan: Plan, kind: type[VerificationError], row: int, message: str, hint: str) -> VerificationError:
    a = plan.accesses
    return refuse(kind, plan, message, task=int(a.task[row]), statement=int(a.statement[row]), hint=hint)
