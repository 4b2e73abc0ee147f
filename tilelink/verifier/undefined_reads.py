"""Reads of what a launch leaves undefined: elements that nothing writes, or that are not given.

A range [0, n) ends at the same element for everybody who takes the same n. An entry is written once in a launch, so its
copies are equal to it. So a reader that stops at n reads nothing which a writer that stops at n left out. Ranges that
begin at n, [n, M), do so alike. A write in an iteration that only a launch has, at a place that says nothing of the
iteration, is read where the same iteration is known to be there. A condition on numbers, `if b < n:`, is about the
elements of the box that is read or written under it, so it is as good as the range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from tilelink.errors import CoverageError, VerificationError
from tilelink.facts.questions import At
from tilelink.facts.regions import Begun, Chosen, Ended, Guard, GuardPart, Place
from tilelink.ir.scalar import Scalar, const
from tilelink.lowering.bound import BoundTensor
from tilelink.lowering.columns import Ints, distinct_rows
from tilelink.lowering.events import READ, WRITE
from tilelink.lowering.guards import families
from tilelink.planning.plan import Plan
from tilelink.verifier.cells import of_tensors, parts
from tilelink.verifier.guarded import end_there, guard_of, refused, said, stop_of
from tilelink.verifier.launch_writes import placed_tensors
from tilelink.verifier.overlaps import Meetings, meetings, reads_of
from tilelink.verifier.refusal import refuse, where

FEW = 4
"""Reads of a box, with different guards, that are asked of one by one, at most."""


def undefined_reads(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of reads of elements that a launch may leave unwritten."""
    a = plan.accesses
    guarded = np.unique(a.tensor[(a.kind == WRITE) & (a.guard > 0)])
    apart = [plan.bound.tensors[name].number for name in placed_tensors(plan)]  # launch_writes.py asks of these
    guarded = guarded[~np.isin(guarded, apart)]
    answers: dict[object, bool] = {}
    for part in parts(plan, plan.touching(guarded) & ~of_tensors(plan, "in", "table", "inout", "kept")):
        found = meetings(part, reads_of(part))
        found = found.only(a.guard[found.write] > 0).unlike(a.guard[found.others])
        alike = [*_alike(plan, *_unproved(plan, found, answers).pairs())]
        for writes, reads in alike if len(alike) <= FEW else _open(plan, alike):
            wrong = _left_out_of_one(plan, writes, reads)
            if wrong is not None:
                yield _undefined(plan, part.name, *wrong)
                return


def _unproved(plan: Plan, found: Meetings, answered: dict[object, bool]) -> Meetings:
    """Return the pairs of a box and a write without those of which no read of the box needs to be asked.

    Of a box with many reads the guards differ in numbers of entries alone, and what is proved for any numbers there is
    proved for those of each read.
    """
    a = plan.accesses
    many = np.flatnonzero(np.diff(found.starts) > FEW)
    if not np.isin(found.box, many).any():
        return found
    proved = np.zeros(len(found.box), bool)
    by_guards: dict[bytes, list[tuple[Guard, Guard]]] = {}  # boxes side by side are read under the same guards
    for box in many.tolist():
        rows = np.flatnonzero(found.box == box)
        if not len(rows):
            continue
        reads = found.others[found.starts[box] : found.starts[box + 1]]
        guards = np.unique(a.guard[reads])
        if (named := by_guards.get(guards.tobytes())) is None:
            named = [_named(plan, guard) for guard in plan.guards.families(guards.tolist())]
            by_guards[guards.tobytes()] = named
        first, which = distinct_rows(_asked(plan, found.write[rows], a.guard[reads]))
        answers: list[bool] = []
        for row in found.write[rows[first]].tolist():
            lo, hi = (ends[row].tolist() for ends in (a.lo, a.hi))
            keys = [(int(a.guard[row]), *lo, *hi, one) for one in named]
            for key, one in zip(keys, named, strict=True):
                if key not in answered:
                    answered[key] = _left_out(plan, row, one) is None
            answers.append(all(answered[key] for key in keys))
        proved[rows] = np.array(answers, bool)[which]
    return found.only(~proved)


def _alike(plan: Plan, writes: Ints, reads: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield the pairs of accesses that are alike in all that `_left_out` looks at, in the order of the first ones."""
    if not len(writes):
        return
    theirs = plan.accesses.guard[reads]
    first, which = distinct_rows([theirs, *_asked(plan, writes, theirs)])
    order = np.argsort(which, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
    for number in np.argsort(first, kind="stable").tolist():
        yield writes[groups[number]], reads[groups[number]]


def _open(plan: Plan, alike: Sequence[tuple[Ints, Ints]]) -> list[tuple[Ints, Ints]]:
    """Return pairs that are alike without those that are proved with others, which differ in numbers of entries."""
    a, guards, inside = plan.accesses, plan.guards, plan.guards.facts.inside
    left: list[tuple[Ints, Ints]] = []
    asked: list[tuple[Guard, ...]] = []
    for writes, reads in alike:
        write, number = int(writes[0]), int(a.guard[reads[0]])
        ours, theirs, said = guards.of(int(a.guard[write])), guards.of(number), guards.known[number]
        if not all(part in theirs or part in said for part in ours):
            places = tuple(Place(dim=dim, at=const(place)) for dim, place in _element(plan, write, theirs))
            left.append((writes, reads))
            asked.append((ours, theirs, said, places))
    found = families(asked)
    open_ones = chain(*(own for (ours, *named), own in found if not all(inside(named, part) for part in ours)))
    return [left[number] for number in sorted(open_ones)]


def _left_out_of_one(plan: Plan, writes: Ints, reads: Ints) -> tuple[int, int, GuardPart] | None:
    """Return the first of some pairs (write, read) of whose write an element may be left out, with the reason.

    The pairs are alike but for their boxes, which are looked at if a condition may say something of their elements.
    """
    a = plan.accesses
    number = int(a.guard[reads[0]])
    named = plan.guards.of(number), plan.guards.known[number]
    left = _left_out(plan, int(writes[0]), named)
    if left is None:
        return None
    guards = (*named, plan.guards.of(int(a.guard[writes[0]])))
    if not any(isinstance(part, Chosen) for guard in guards for part in guard):
        return int(writes[0]), int(reads[0]), left
    dims = sorted({part.dim for guard in guards for part in guard if not isinstance(part, Chosen)})
    boxes = [np.maximum(a.lo[writes], a.lo[reads])[:, dims], np.minimum(a.hi[writes], a.hi[reads])[:, dims]]
    first, _ = distinct_rows([column for ends in boxes for column in ends.T]) if dims else (np.zeros(1, np.int64), None)
    for pair in np.sort(first).tolist():
        at = tuple((dim, int(boxes[0][pair, n]), int(boxes[1][pair, n])) for n, dim in enumerate(dims))
        left = _left_out(plan, int(writes[pair]), named, at)
        if left is not None:
            return int(writes[pair]), int(reads[pair]), left
    return None


def _asked(plan: Plan, writes: Ints, theirs: Ints) -> list[Ints]:
    """Return, as columns, what `_left_out` looks at of writes. theirs: the guards of the reads."""
    dims = sorted(set[int]().union(*(_placed(plan.guards.known[guard]) for guard in np.unique(theirs).tolist())))
    return [plan.accesses.guard[writes], *(_one_element(plan, writes, dim) for dim in dims)]


def _placed(guard: Guard) -> set[int]:
    """Return the dimensions along which an access names a place, where it matters what a write's box is there."""
    return {part.dim for part in guard if isinstance(part, Place)}


def _one_element(plan: Plan, writes: Ints, dim: int) -> Ints:
    """Return where writes are along a dimension if they have one element there, and -1 otherwise.

    Also -1 for those that a launch ends along this dimension alone: `_left_out` does not take their place.
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
                stop = None if end is None else stop_of(plan, row, tensor, dim, end)
                if stop is not None and not _ends_before(plan, row, dim, stop):
                    message = f"reads {tensor.name}, of which a launch gives what is before {said(plan, stop)}"
                    hint = (
                        "read it in a range with that end, (i: M[: m]), or through entries below it: rows : in [T] < m"
                    )
                    yield refused(plan, CoverageError, row, message, hint)
                    return


def surely_undefined(plan: Plan, tensor: BoundTensor, rank: int, lo: Sequence[int], hi: Sequence[int]) -> bool:
    """True if a box of an output is beyond what is declared to be defined of it, in every launch."""
    for dim, end in enumerate(tensor.decl.defined):
        if end is not None:
            inner = plan.guards.resolve(end_there(plan, end, rank, lo, hi))
            if plan.guards.bounds.of(inner)[1] <= lo[dim]:
                return True
    return False


def _ends_before(plan: Plan, row: int, dim: int, stop: Scalar) -> bool:
    """True if an access names, along a dimension, only elements before `stop`."""
    a, facts = plan.accesses, plan.guards.facts
    named, part = _named(plan, plan.guards.known[int(a.guard[row])]), Ended(dim=dim, stop=stop)
    box = ((dim, int(a.lo[row, dim]), int(a.hi[row, dim])),)
    return facts.inside(named, part) or facts.inside(named, part, box)


def _named(plan: Plan, guard: Guard) -> tuple[Guard, Guard]:
    """Return a guard in terms of entries that are no copies of others, and as the program says it: the entry that the
    program names has the bound."""
    return plan.guards.resolved(guard), guard


def _left_out(plan: Plan, write: int, named: tuple[Guard, Guard], box: At = ()) -> GuardPart | None:
    """Return what a launch decides of a write, by which it may leave out an element of its box that a read names.

    named: the guard of the read, as `_named` returns it. box: what is known of the elements that both name.
    """
    ours = plan.guards.of(int(plan.accesses.guard[write]))
    at = box or tuple((dim, place, place + 1) for dim, place in _element(plan, write, named[0]))
    return next((part for part in ours if not plan.guards.facts.inside(named, part, at)), None)


def _element(plan: Plan, write: int, theirs: Guard) -> list[tuple[int, int]]:
    """Return the dimensions along which a write is of one element and a read at a place, with where the write is."""
    a, ours = plan.accesses, plan.guards.of(int(plan.accesses.guard[write]))
    ended = {part.dim for part in ours if isinstance(part, Ended)}
    return [(dim, int(a.lo[write, dim])) for dim in sorted(_placed(theirs))
            if ended - {dim} and a.hi[write, dim] == a.lo[write, dim] + 1]  # fmt: skip


def _undefined(plan: Plan, name: str, write: int, read: int, left: GuardPart) -> VerificationError:
    a = plan.accesses
    writer = where(plan, int(a.task[write]))
    what = "in some launches only"
    if isinstance(left, Ended | Begun):
        what = f"up to {said(plan, left.stop)}" if isinstance(left, Ended) else f"from {said(plan, left.start)} on"
    message = f"reads {name} of rank {a.peer[read]}, which {writer} writes {what}" + _own_end(plan, read, left)
    hint = (
        "read the same part: a range with the same end here, or if i < n:, with an end that a peer may have sent along,"
    )
    hint += " or that is computed alike: the same expression of integers, comparisons, minima and maxima, of the same"
    hint += " elements; entries that all ranks are given alike are replicated: m : in [] <= M replicated"
    if isinstance(left, Ended):
        hint = _bounded(plan, read, left, hint)
    task, statement, related = int(a.task[read]), int(a.statement[read]), int(a.statement[write])
    return refuse(CoverageError, plan, message, task=task, statement=statement, related=related, hint=hint)


def _bounded(plan: Plan, read: int, left: Ended, hint: str) -> str:
    """Return a hint with what a read at a place may do: first if the read is at one, last if it could be."""
    own = [said(plan, part.at) for part in guard_of(plan, read) if isinstance(part, Place) and part.dim == left.dim]
    place, end = (text.partition("[")[0] for text in (own[0] if own else "", said(plan, left.stop)))
    if place.isidentifier() and end.isidentifier():
        return f"bound the place by that end, {place} : ... < {end}[...], where its row went; or {hint}"
    return f"{hint}; or a place whose bound is that end: slot : in [...] < count[owner]"


def _own_end(plan: Plan, read: int, left: GuardPart) -> str:
    """Return what a launch decides of a read along the dimension in which a write leaves something out, as text."""
    if not isinstance(left, Ended | Begun):
        return ""
    own = guard_of(plan, read)
    for part in own:
        match part:
            case Ended(dim=left.dim, stop=stop) if isinstance(left, Ended):
                return f", and reads up to {said(plan, stop)}"
            case Begun(dim=left.dim, start=start) if isinstance(left, Begun):
                return f", and reads from {said(plan, start)} on"
            case Place(dim=left.dim, at=at):
                return f", and reads at {said(plan, at)}"
            case _:
                pass
    for part in own:
        if isinstance(part, Chosen):
            return f", and reads {'if' if part.holds else 'unless'} {said(plan, part.condition)}"
    return ", and reads all of that dimension"
