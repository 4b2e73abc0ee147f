"""Tensors of a rank that are written by segments and read by segments in the same launch, such as packed rows.

Where segments begin and end, a launch decides: `r: T[starts[e] : starts[e + 1]]`. An element is named by the number of
its segment and its distance from where that begins, which no launch decides. So accesses are boxes of such coordinates:
`T` elements for each segment, one segment after the other, in the place of the dimension (`TensorAccesses`). In these
the rules prove of such a tensor what they prove of others.

Theorem: two accesses that share an element of the tensor share one in these coordinates, if `starts` is `rising` or
`offsets` and all of them are in segments of it. For segments share no element then, and what is there of a segment is
the same for all who name it by the same entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilelink.errors import CoverageError, ExclusiveWriteError, VerificationError
from tilelink.facts.regions import Chosen, GuardPart, Segment
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
    match part:
        case Segment(
            start=Lookup(table=table, coords=(*others, Int(value=number))),
            stop=Lookup(table=again, coords=(*same, Int(value=after))),
        ) if table == again and others == same and after == number + 1:
            return (table, tuple(others)), number
        case _:
            return None


@dataclass(frozen=True, kw_only=True)
class InSegments:
    """Accesses of a tensor of `shape`, [rows, dims], in coordinates of its segments."""

    lo: Ints
    hi: Ints
    shape: tuple[int, ...]


def may_have_segments(tensor: BoundTensor) -> bool:
    """True for a tensor of one rank that is no index tensor, of which each entry is to be written once."""
    return tensor.decl.space == "local" and tensor.decl.bound is None


def begin_of(plan: Plan, row: int) -> Scalar:
    """Return where the segment of an access begins."""
    return next(p.start for p in plan.guards.known[int(plan.accesses.guard[row])] if isinstance(p, Segment))


def in_segments(plan: Plan, tensor: BoundTensor, rows: Ints) -> InSegments | None:
    """Return accesses of a tensor in coordinates of its segments; None of one that is not written in segments.

    That some of them are in none, is for `segmented` to refuse.
    """
    if not may_have_segments(tensor):
        return None
    found = _found(plan, tensor, rows)
    return found if isinstance(found, InSegments) else None


def segmented(plan: Plan, tensor: BoundTensor) -> Iterator[VerificationError]:
    """Yield a refusal of a tensor that is written at places which a launch decides, unless all of its accesses are in
    segments that share no element, and a launch decides of no write more than that."""
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


def _found(plan: Plan, tensor: BoundTensor, rows: Ints) -> InSegments | VerificationError | None:
    """Return accesses in coordinates of segments, or the refusal of one; None if none is a write in segments."""
    a, shape = plan.accesses, tensor.shape
    written = a.kind[rows] == WRITE
    first, which = distinct_rows([a.peer[rows], a.guard[rows], written])
    kinds = [(row, int(a.peer[row]), int(a.guard[row])) for row in rows[first].tolist()]
    writes = [one for one, wrote in zip(kinds, written[first].tolist(), strict=True) if wrote]
    if not any(isinstance(part, Segment) for _, _, guard in writes for part in plan.guards.known[guard]):
        return None
    lists: dict[int, tuple[Starts, int]] = {}
    for row, rank, guard in writes:
        places = _places(plan, guard)
        surely = len(plan.guards.known[guard]) == 1
        if not surely or not places or lists.setdefault(rank, places[0].list) != places[0].list:
            return _elsewhere(plan, tensor, row)
        table = places[0].starts[0]
        if not {"rising", "offsets"} & {*plan.bound.tensors[table].decl.properties}:
            return _shared(plan, tensor, row, table)
    own: list[_Place] = []
    for row, rank, guard in kinds:
        place = next((one for one in _places(plan, guard) if one.list == lists.get(rank)), None)
        if place is None:
            return _read_elsewhere(plan, tensor, row)
        own.append(place)
    dim, size = own[0].dim, shape[own[0].dim]
    if any(one.dim != dim for one in own):
        return _elsewhere(plan, tensor, int(rows[0]))
    lo, hi = a.lo[rows, : len(shape)].copy(), a.hi[rows, : len(shape)].copy()
    # what is beyond the dimension is in no launch
    lo[:, dim] = np.array([one.number * size + min(one.first, size) for one in own], np.int64)[which]
    hi[:, dim] = np.array([one.number * size + min(one.last, size) for one in own], np.int64)[which]
    segments = max(one.number for one in own) + 1
    return InSegments(lo=lo, hi=hi, shape=tuple(segments * n if d == dim else n for d, n in enumerate(shape)))


def _places(plan: Plan, guard: int) -> list[_Place]:
    """Return where a guard says that an access is in segments: by the entries that the program names, and by those that
    these are copies of."""
    found: list[_Place] = []
    for part in (*plan.guards.known[guard], *plan.guards.of(guard)):
        if isinstance(part, Segment) and (segment := segment_of(part)) is not None:
            starts, number = segment
            last = part.offset + part.size
            found.append(_Place(starts=starts, dim=part.dim, number=number, first=part.offset, last=last))
    return found


def _elsewhere(plan: Plan, tensor: BoundTensor, row: int) -> VerificationError:
    name = tensor.name
    message = f"writes {name} at a place that only a launch decides, and {name} is read by this launch too"
    hint = "write it in its order, by a range from 0 on, or all of it by segments, (e: E, r: T[starts[e] : "
    hint += "starts[e + 1]]), and read it in the same ones; or write an output there"
    return refused(plan, CoverageError, row, message, hint)


def _shared(plan: Plan, tensor: BoundTensor, row: int, table: str) -> VerificationError:
    message = f"writes {tensor.name} in segments of {table}, which may share elements"
    hint = f"if no entry is below the one before it, say so: {table} : in [...] <= M rising, or offsets"
    return refused(plan, ExclusiveWriteError, row, message, hint)


def _read_elsewhere(plan: Plan, tensor: BoundTensor, row: int) -> VerificationError:
    parts = [part for part in plan.guards.known[int(plan.accesses.guard[row])] if not isinstance(part, Chosen)]
    where = f", from {said(plan, parts[0].start)} on" if parts and isinstance(parts[0], Segment) else ""
    message = f"reads {tensor.name} elsewhere than in the segments in which it is written{where}"
    hint = "read it in a range with the same ends: (e: E, r: T[starts[e] : starts[e + 1]]); for rows by place, "
    hint += "give experts a dimension: h[e, c, :] with c: C[: count[e]], and places slot : in [...] < count[owner]"
    return refused(plan, CoverageError, row, message, hint)
