"""Writes at places that a launch decides, and outputs of which it decides a part.

Two theorems, of two promises of an index tensor:

* `offsets`: the segments [starts[e], starts[e + 1]) of e = 0, ..., E - 1 are disjoint, and together they are
  [0, starts[E]). So tiles that are cut from segments are disjoint, and cover the elements before `starts[E]`.
* `distinct`, with as many entries as the bound says: the entries are a permutation of the bound's range. So elements
  written through distinct entries are disjoint, and all entries together name each element once.

In both cases the elements are counted in the order of segments or entries, in which a launch decides nothing. What
launches leave undefined is not read: undefined_reads.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tilelink.errors import CoverageError, ExclusiveWriteError, VerificationError
from tilelink.facts.regions import Begun, Chosen, Ended, Listed, Place, Segment
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import Store, Transfer
from tilelink.ir.scalar import Coordinate, Int, Lookup, walk
from tilelink.lowering.bound import BoundTensor
from tilelink.lowering.columns import Ints, distinct_rows
from tilelink.lowering.events import READ, WRITE
from tilelink.planning.plan import Plan
from tilelink.verifier.cells import Cells
from tilelink.verifier.disjoint_places import repeated
from tilelink.verifier.guarded import end_at, guard_of, refused, said, stop_of
from tilelink.verifier.segments import Unknown, may_be_placed, numbers_of, segment_of

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
        if may_be_placed(tensor):  # the rule `coverage` asks of it with its reads (segments.py)
            continue
        others = np.flatnonzero((a.tensor == tensor.number) & (a.kind == READ))
        if tensor.decl.space != "out" or tensor.decl.symmetric or len(others):
            first = next(int(row) for row in rows if a.guard[row])
            what = "is read by this launch too" if len(others) else "is not an output of the own rank"
            message = f"writes {name} at a place that only a launch decides, and {name} {what}"
            hint = (
                "write it in its order, by a range from 0 on; or write an output there, or, in segments, a local tensor"
            )
            yield refused(plan, CoverageError, first, message, hint)
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
            yield refused(plan, ExclusiveWriteError, row, message, hint)
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
            message = f"writes {tensor.name} from {said(plan, part.start)} on, and what is before is to be defined too"
            hint = "let the range begin at 0: where(c, a, b) chooses a value for each element"
            yield refused(plan, CoverageError, row, message, hint)
            return


def chosen_outputs(plan: Plan) -> Iterator[VerificationError]:
    """Yield a refusal of an output that is written in some launches only."""
    for tensor, row, part in _decided_writes(plan, Chosen):
        if _chosen_right(plan, tensor, row):
            continue
        message = f"writes {tensor.name} in some launches only: {said(plan, part.condition)}"
        hint = "write it in every launch: where(c, a, b) chooses a value, and 0 is one; "
        hint += f"or say that just this is defined: {tensor.name} : out [M[: n], ...] for if i < n:"
        yield refused(plan, CoverageError, row, message, hint)
        return


def _chosen_right(plan: Plan, tensor: BoundTensor, row: int) -> bool:
    """True if a write to an output, in some launches only, is made in those in which its elements are defined."""
    a, facts, dims = plan.accesses, plan.guards.facts, range(len(tensor.shape))
    ends = [(dim, end) for dim, end in enumerate(tensor.decl.defined) if end is not None]
    defined = tuple(Ended(dim=dim, stop=stop_of(plan, row, tensor, dim, end)) for dim, end in ends)
    own, box = guard_of(plan, row), tuple((dim, int(a.lo[row, dim]), int(a.hi[row, dim])) for dim in dims)
    written = all(facts.inside([defined], part, box) for part in own)
    return bool(defined) and written and all(facts.inside([own], part, box) for part in defined)


def _decided_writes(plan: Plan, kind: type[Decided]) -> Iterator[tuple[BoundTensor, int, Decided]]:
    """Yield (output, write, part of its guard) for the parts of a kind, of outputs that are written in their order.

    Of writes on one rank of which a launch decides the same, the first one stands for all: of one box, if what is asked
    depends on that.
    """
    a = plan.accesses
    placed = placed_tensors(plan)
    for tensor in plan.bound.tensors.values():
        if tensor.decl.space != "out" or tensor.name in placed:
            continue
        rows = np.flatnonzero((a.tensor == tensor.number) & (a.kind == WRITE) & (a.guard > 0))
        if not len(rows):
            continue
        named = {e.dim for end in tensor.decl.defined if end for e in walk(end) if isinstance(e, Coordinate)}
        dims = range(len(tensor.shape)) if kind is Chosen else sorted(named)
        box = [side[rows, dim] for dim in dims for side in (a.lo, a.hi)]
        for row in np.sort(rows[distinct_rows([a.guard[rows], a.peer[rows], *box])[0]]).tolist():
            yield from ((tensor, row, part) for part in guard_of(plan, row) if isinstance(part, kind))


def _ends_right(plan: Plan, tensor: BoundTensor, row: int, part: Ended) -> VerificationError | None:
    """Return the refusal of a write to an output that is not all of what is defined, or None."""
    name, decl = tensor.name, tensor.decl
    end = decl.defined[part.dim] if decl.defined else None
    if end is None:
        message = f"writes {name} up to {said(plan, part.stop)} only, and all of dimension {part.dim} is to be defined"
        sizes = [print_scalar(n) + ("[: n]" if d == part.dim else "") for d, n in enumerate(decl.shape)]
        hint = f"say which part is defined: {name} : out [{', '.join(sizes)}], with n as in the range"
        return refused(plan, CoverageError, row, message, hint)
    defined = stop_of(plan, row, tensor, part.dim, end)
    if plan.guards.facts.equal(defined, part.stop):
        return None
    text, here = print_scalar(end), said(plan, defined)
    message = f"writes {name} up to {said(plan, part.stop)}, and it is to be defined up to {text}"
    message += f", here {here}" if here != text else ""
    return refused(plan, CoverageError, row, message, "let both have the same end")


_Order = tuple[str, int, int, int]
"""What orders the elements of a write, the number of the first one, the end, and the number of all."""


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
        by_place = any(isinstance(e, Coordinate) for end in self.tensor.decl.defined if end for e in walk(end))
        answers: dict[tuple[int, ...], _Order | Unknown | None] = {}
        for row in self.rows.tolist():
            guard = int(a.guard[row])
            key = (guard, *a.lo[row].tolist(), *a.hi[row].tolist()) if by_place else (guard,)
            if key not in answers:
                answers[key] = self._found(row)
            found = answers[key]
            if isinstance(found, Unknown):
                yield refused(self.plan, ExclusiveWriteError, row, found.message, found.hint)
                return
            if found is None:
                yield self._mixed(row)
                return
            part, (kind, begin, end, total) = guards.known[guard][0], found
            assert not isinstance(part, Chosen)
            first = first or (part.dim, kind, total)
            if first != (part.dim, kind, total):
                yield self._mixed(row)
                return
            counted.append((row, begin, end))
        if first is not None:
            yield from self._once(first[0], first[2], counted)

    def _found(self, row: int) -> _Order | Unknown | None:
        """Return the order of a write's elements; None if its place is not decided in one way."""
        guards, guard = self.plan.guards, int(self.plan.accesses.guard[row])
        own = guards.known[guard]
        if len(own) != 1 or not isinstance(own[0], Segment | Listed | Place):
            return None
        found = self._order(row, own[0])  # the entry that the program names has the promise
        (same,) = guards.of(guard)
        if isinstance(found, Unknown) and isinstance(same, Segment | Listed | Place):  # or what it is a copy of
            copied = self._order(row, same)
            found = found if isinstance(copied, Unknown) else copied
        return found

    def _mixed(self, row: int) -> VerificationError:
        message = f"writes {self.tensor.name} in several ways, or in a part of the launches"
        hint = "write all of it in one way: by the segments of one tensor, or through the entries of one"
        return refused(self.plan, ExclusiveWriteError, row, message, hint)

    def _order(self, row: int, part: Segment | Listed | Place) -> _Order | Unknown:
        """Return the order of a write's elements, or why nothing is known."""
        match part:
            case Segment():
                return self._segment(row, part)
            case Listed() | Place():
                found = numbers_of(self.plan, self.tensor, part)
                return found if isinstance(found, Unknown) else (found.list, found.first, found.last, found.count)

    def _segment(self, row: int, part: Segment) -> _Order | Unknown:
        name = self.tensor.name

        def unknown(hint: str) -> Unknown:
            message = f"writes {name} from {said(self.plan, part.start)} on, where other segments may be too"
            return Unknown(message=message, hint=hint)

        if (found := segment_of(part)) is None:
            hint = (
                "cut it into segments: (e: E, i: M[starts[e] : starts[e + 1]]), with starts : in [E + 1] <= M offsets"
            )
            return unknown(hint)
        (table, others), number = found
        decl = self.plan.bound.tensors[table].decl
        if "offsets" not in decl.properties:
            hint = f"if the segments of {table} follow one another from 0 on, say so: {table} : in [...] <= M offsets"
            return unknown(hint)
        end = self.tensor.decl.defined[part.dim] if self.tensor.decl.defined else None
        last = end_at(self.plan, row, end) if end is not None else None
        match last:
            case Lookup(table=other, coords=(*before, Int(value=segments))) if (
                other == table and tuple(before) == others
            ):
                pass
            case _:
                message = f"writes {name} up to the end of the last segment of {table} only"
                hint = f"say which part is defined: {name} : out [M[: {table}[E]], ...]"
                return Unknown(message=message, hint=hint)
        stage, statement = self.plan.statements[int(self.plan.accesses.statement[row])]
        assert isinstance(statement, Store | Transfer)
        target = statement.region if isinstance(statement, Store) else statement.target
        index = self.plan.bound.tile_map(stage, target).spans[part.dim].index
        few = self.plan.bound.stages[stage].cutoff
        tiles = few.get(str(index), -(-self.tensor.shape[part.dim] // part.size))
        at = number * tiles + part.offset // part.size
        return f"{table} {[*others]} {part.size}", at, at + 1, segments * tiles

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
            yield refused(self.plan, CoverageError, int(rows[inside][-1]), message, hint)
        else:
            yield CoverageError(message, location=self.tensor.decl.location, hint=hint)
