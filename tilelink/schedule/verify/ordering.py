"""Rules 2 and 5: reads happen after the writes they need; no two unordered writes meet; only what peers can reach
is written remotely."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from tilelink.errors import ExclusiveWriteError, OrderingError, VerificationError
from tilelink.schedule.columns import expand
from tilelink.schedule.places import box
from tilelink.schedule.plan import NOTIFY, READ, WRITE, Ints, Plan
from tilelink.schedule.verify.astray import astray
from tilelink.schedule.verify.cells import Cells, groups
from tilelink.schedule.verify.happens_before import BySignals, HappensBefore
from tilelink.schedule.verify.in_place import onto_itself
from tilelink.schedule.verify.refusal import refuse, where

MOST_CELLS = 2**22
"""Cells of boxes that are looked at together: what bounds the memory that this takes."""


def ordering(plan: Plan) -> Iterator[VerificationError]:
    """Refusals of reads that nothing orders after a write of the same element by another task."""
    order = Orders(plan)
    yield from onto_itself(plan)
    yield from _inputs_of_peers(plan)
    yield from _unfinished_outputs(plan)
    for name, rank, rows in groups(plan):
        if plan.bound.tensors[name].decl.space in ("in", "table"):
            continue
        writes, reads = pairs(plan, rows, READ)
        yield from _check_reads(plan, order, name, rank, writes, reads)


def exclusive_writes(plan: Plan) -> Iterator[VerificationError]:
    """Refusals of unordered writes to one element, and of remote writes to what peers cannot reach."""
    order = Orders(plan)
    a = plan.accesses
    for name, rank, rows in groups(plan):
        tensor = plan.bound.tensors[name]
        ranks = _rank_of(plan, a.task[rows])
        far = rows[(a.kind[rows] == WRITE) & (ranks != a.peer[rows])]
        if len(far) and not tensor.decl.symmetric:
            message = f"writes {name} of rank {rank}, which is not symmetric"
            hint = f"declare {name} symmetric"
            task, statement = int(a.task[far[0]]), int(a.statement[far[0]])
            yield refuse(ExclusiveWriteError, plan, message, task=task, statement=statement, hint=hint)
        first, second = pairs(plan, rows, WRITE)
        yield from _check_writes(plan, order, name, rank, first, second)


class Orders:
    """What is ordered in a plan, and what would be by any other schedule too."""

    def __init__(self, plan: Plan) -> None:
        self.planned = HappensBefore(plan=plan)
        self._plan = plan

    @cached_property
    def _signals(self) -> BySignals:
        return BySignals(self._plan)

    def by_signals(self, first: Ints, second: Ints) -> np.ndarray:
        """For each pair of rows of the plan's accesses, whether signals alone order them; cheap where none is."""
        a = self._plan.accesses
        if not len(first):
            return np.zeros(0, bool)
        return self._signals.before(a.task[first], a.position[first], a.task[second], a.position[second])

    def unplanned(self, one: int, other: int) -> bool:
        """Whether not even the plan orders two accesses."""
        a = self._plan.accesses
        pair, back = np.array([one, other]), np.array([other, one])
        return not self.planned.before(a.task[pair], a.position[pair], a.task[back], a.position[back]).any()


def _rank_of(plan: Plan, tasks: Ints) -> Ints:
    ranks = np.array([rank for _, rank, _ in plan.lanes])
    return ranks[plan.lane[tasks]]


def _inputs_of_peers(plan: Plan) -> Iterator[VerificationError]:
    """A peer's input is ready once that peer has entered the launch."""
    a = plan.accesses
    numbers = [t.number for t in plan.bound.tensors.values() if t.decl.space == "in"]
    entry = np.array([k.needs_entry for k in plan.bound.kernels])
    kernel = np.array([n for n, _, _ in plan.lanes])[plan.lane[a.task]]
    far = np.isin(a.tensor, numbers) & (a.peer != _rank_of(plan, a.task)) & ~entry[kernel]
    for row in np.flatnonzero(far)[:1]:
        hint = "the kernel must wait for its peers' entry"
        message = "reads a peer's input before that peer has entered"
        yield refuse(OrderingError, plan, message, task=int(a.task[row]), statement=int(a.statement[row]), hint=hint)


def _unfinished_outputs(plan: Plan) -> Iterator[VerificationError]:
    """What a peer writes into an output must be notified there, since the end of the launch waits for that."""
    a, s = plan.accesses, plan.signals
    outs = {t.number: t.name for t in plan.bound.tensors.values() if t.decl.space == "out"}
    far = np.flatnonzero((a.kind == WRITE) & np.isin(a.tensor, list(outs)) & (a.peer != _rank_of(plan, a.task)))
    if not len(far):
        return
    numbers = np.full(max(plan.channels, 1), -1)
    for (tensor, kind), grid in plan.bound.channels.items():
        base = plan.channel_base[tensor, kind]
        numbers[base : base + grid.count] = plan.bound.tensors[tensor].number
    rows = np.flatnonzero(s.kind == NOTIFY)
    ranks, count = plan.bound.ranks, len(plan.bound.tensors)
    key = (s.task[rows] * ranks + s.peer[rows]) * count + numbers[s.channel[rows]]
    last: dict[int, int] = {}
    for k, position in zip(key.tolist(), s.position[rows].tolist(), strict=True):
        last[k] = max(position, last.get(k, -1))
    wanted = (a.task[far] * ranks + a.peer[far]) * count + a.tensor[far]
    for row, k in zip(far, wanted.tolist(), strict=True):
        if last.get(k, -1) < a.position[row]:
            name = outs[int(a.tensor[row])]
            message = f"writes {name} of rank {a.peer[row]}, which cannot know when its output is complete"
            hint = f"notify the region of {name} @ that rank after the write"
            task, statement = int(a.task[row]), int(a.statement[row])
            yield refuse(OrderingError, plan, message, task=task, statement=statement, hint=hint)
            return


def pairs(plan: Plan, rows: Ints, kind: int) -> tuple[Ints, Ints]:
    """(write, other) rows of plan.accesses that overlap; others are of `kind`. Two writes belong to different tasks."""
    a = plan.accesses
    shape = plan.bound.tensor_numbered(int(a.tensor[rows[0]])).shape
    dims = len(shape)
    rows = rows[(a.hi[rows, :dims] > a.lo[rows, :dims]).all(axis=1)]
    lo, hi = a.lo[rows, :dims], a.hi[rows, :dims]
    writes = np.flatnonzero(a.kind[rows] == WRITE)
    if not len(writes):
        return rows[:0], rows[:0]
    cells = Cells.between(lo, hi, shape)
    low, high = cells.locate(lo, hi)
    ones = np.ones(len(writes), np.int64)
    count = cells.paint(low[writes], high[writes], ones)
    owner = cells.paint(low[writes], high[writes], writes)
    crowded = writes[cells.sums((count > 1).astype(np.int64), low[writes], high[writes]) > 0]
    others = np.flatnonzero(a.kind[rows] == kind) if kind == READ else crowded
    boxes = np.concatenate([low[others], high[others]], axis=1)
    unique, group = np.unique(boxes, axis=0, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    starts = np.searchsorted(group.ravel()[order], np.arange(len(unique) + 1))
    where, owners = _owners(unique[:, :dims], unique[:, dims:], count, owner)
    if len(crowded):
        meet = [np.flatnonzero(_meet(corners, low[crowded], high[crowded])) for corners in unique]
        where = np.concatenate([where, np.repeat(np.arange(len(unique)), [len(m) for m in meet])])
        owners = np.concatenate([owners, *(crowded[m] for m in meet)])
        by_box = np.argsort(where, kind="stable")
        where, owners = where[by_box], owners[by_box]
    source, at = expand(starts[where][:, None], starts[where + 1][:, None], (len(others),))
    first, second = rows[owners[source]], rows[others[order[at]]]
    if kind == READ:
        return first, second
    apart = a.task[first] != a.task[second]
    return first[apart], second[apart]


def _owners(low: Ints, high: Ints, count: Ints, owner: Ints) -> tuple[Ints, Ints]:
    """(box, who), in this order, for each of the boxes [low, high) of cells and all who alone own one of its cells."""
    boxes: list[Ints] = []
    found: list[Ints] = []
    volume = np.cumsum(np.prod(high - low, axis=1))
    parts = np.split(np.arange(len(low)), np.flatnonzero(np.diff(volume // MOST_CELLS)) + 1)
    for part in parts:
        source, cell = expand(low[part], high[part], count.shape)
        alone = count.ravel()[cell] == 1
        span = int(owner.max(initial=0)) + 1
        keys = np.unique(part[source[alone]] * span + owner.ravel()[cell[alone]])
        boxes.append(keys // span)
        found.append(keys % span)
    return np.concatenate(boxes), np.concatenate(found)


def _meet(corners: Ints, low: Ints, high: Ints) -> np.ndarray:
    """Which boxes have cells in common with the one between two corners."""
    dims = len(corners) // 2
    return np.logical_and((low < corners[dims:]).all(axis=1), (corners[:dims] < high).all(axis=1))


def _check_reads(
    plan: Plan, order: Orders, name: str, rank: int, writes: Ints, reads: Ints
) -> Iterator[VerificationError]:
    """Every write is before or after the read, and those before it fill all of it.

    Coverage has shown that somebody writes all of it: so a read with all its writes before it is filled.
    """
    a = plan.accesses
    before = order.planned.before(a.task[writes], a.position[writes], a.task[reads], a.position[reads])
    rest = np.flatnonzero(~before)
    after = order.by_signals(reads[rest], writes[rest])
    for pair in rest[~after][:3]:
        yield _refusal(plan, name, rank, int(writes[pair]), int(reads[pair]), order)
    late = reads[rest[after]]
    for read, first in zip(*np.unique(late, return_index=True), strict=True):
        if not _filled(plan, int(read), writes[before & (reads == read)]):
            yield _too_early(plan, name, rank, int(writes[rest[after][first]]), int(read))
            return


def _filled(plan: Plan, read: int, writes: Ints) -> bool:
    """Whether the boxes of these writes together cover the box of a read."""
    a = plan.accesses
    shape = plan.bound.tensor_numbered(int(a.tensor[read])).shape
    rows = np.append(writes, read)
    lo, hi = a.lo[rows, : len(shape)], a.hi[rows, : len(shape)]
    cells = Cells.between(lo, hi, shape)
    low, high = cells.locate(lo, hi)
    count = cells.paint(low[:-1], high[:-1], np.ones(len(writes), np.int64))
    return not cells.sums((count == 0).astype(np.int64), low[-1:], high[-1:]).any()


def _too_early(plan: Plan, name: str, rank: int, write: int, read: int) -> VerificationError:
    a = plan.accesses
    message = f"reads {name} of rank {rank} before {where(plan, int(a.task[write]))} writes it"
    task, statement, related = int(a.task[read]), int(a.statement[read]), int(a.statement[write])
    hint = f"read {name} after it is written"
    return refuse(OrderingError, plan, message, task=task, statement=statement, related=related, hint=hint)


def _check_writes(
    plan: Plan, order: Orders, name: str, rank: int, first: Ints, second: Ints
) -> Iterator[VerificationError]:
    """Of two writes of an element the program says which is the last one, not the schedule."""
    rest = np.flatnonzero(~order.by_signals(first, second))
    later = order.by_signals(second[rest], first[rest])
    for pair in rest[~later][:3]:
        yield _refusal(plan, name, rank, int(first[pair]), int(second[pair]), order)


def _refusal(plan: Plan, name: str, rank: int, write: int, other: int, order: Orders) -> VerificationError:
    what = "nothing" if order.unplanned(write, other) else "only the schedule"
    also = f"which {where(plan, int(plan.accesses.task[write]))} also writes, and {what} orders the two"
    if plan.accesses.kind[other] == READ:
        return _unordered_read(plan, name, rank, write, other, also)
    message = f"writes {name} of rank {rank}, {also}"
    hint = "let one task write each element, or order the writes by a notify and a wait"
    return _of_pair(ExclusiveWriteError, plan, message, write, other, hint)


def _unordered_read(plan: Plan, name: str, rank: int, write: int, read: int, other: str) -> VerificationError:
    """Says which signal misses, where the reader waits and the writer notifies already. other: of the write."""
    a, dims = plan.accesses, len(plan.bound.tensors[name].shape)
    missing = astray(plan, name, rank, write, read)
    if (wait := missing.wait) is not None:
        what = f"waits for {name}{wait} of rank {rank} and reads {name}{box(a.lo[read], a.hi[read], dims)}, {other}"
        hint = "wait for the region that is read" + (", and notify it after the write" if missing.notify else "")
        return _of_pair(OrderingError, plan, what, write, read, hint, related=wait.statement)
    if (notify := missing.notify) is not None:
        written = f"{name}{box(a.lo[write], a.hi[write], dims)}"
        message = f"reads {name} of rank {rank}, {other}: the write is of {written}, "
        message += f"the notify of {name}{notify} of rank {notify.rank}"
        hint = "notify the region that is written, on the rank where it is written"
        return _of_pair(OrderingError, plan, message, write, read, hint, related=notify.statement)
    hint = f"notify the region of {name} on rank {rank} after the write and wait for it before the read"
    return _of_pair(OrderingError, plan, f"reads {name} of rank {rank}, {other}", write, read, hint)


def _of_pair(
    kind: type[VerificationError],
    plan: Plan,
    message: str,
    write: int,
    other: int,
    hint: str,
    *,
    related: int | None = None,
) -> VerificationError:
    """A refusal of an access and the write that it meets; `related`: another statement to be seen than that write."""
    a = plan.accesses
    seen = int(a.statement[write]) if related is None else related
    task, statement = int(a.task[other]), int(a.statement[other])
    return refuse(kind, plan, message, task=task, statement=statement, related=seen, hint=hint)
