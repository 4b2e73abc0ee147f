"""Rules 2 and 5: reads happen after the writes they need; no two unordered writes overlap; only symmetric tensors are
written remotely."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from tilelink.errors import ExclusiveWriteError, OrderingError, VerificationError
from tilelink.ir.program import Store
from tilelink.lowering.bound import Bound
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import NOTIFY, READ, WRITE
from tilelink.lowering.places import box
from tilelink.planning.any_program import apart
from tilelink.planning.happens_before import BySignals, HappensBefore
from tilelink.planning.network import Puts
from tilelink.planning.plan import Plan
from tilelink.verifier.awaited import Awaited
from tilelink.verifier.cells import Cells, TensorAccesses, of_tensors, parts, rank_by_rank
from tilelink.verifier.disjoint_places import disjoint
from tilelink.verifier.families import Families
from tilelink.verifier.in_place import onto_itself
from tilelink.verifier.launch_writes import placed_tensors
from tilelink.verifier.mismatched_signals import mismatched_signals
from tilelink.verifier.overlaps import pairs
from tilelink.verifier.refusal import refuse, where
from tilelink.verifier.threads import Threads


def ordering(plan: Plan, order: Orders) -> Iterator[VerificationError]:
    """Yield refusals of reads that nothing orders after a write of the same element by another task."""
    yield from onto_itself(plan)
    yield from _inputs_of_peers(plan)
    yield from _unfinished_outputs(plan)
    left = np.unique(plan.accesses.tensor[(plan.accesses.kind == READ) & ~order.settled])
    for part in parts(plan, plan.touching(left) & ~of_tensors(plan, "in", "table")):
        yield from rank_by_rank(part, lambda one: _check_reads(one, order))


def exclusive_writes(plan: Plan, order: Orders) -> Iterator[VerificationError]:
    """Yield refusals of unordered writes to one element, and of remote writes to tensors that are not symmetric."""
    ranks = plan.task_ranks[plan.accesses.task]
    placed = [t for t in map(plan.bound.tensors.get, placed_tensors(plan)) if t is not None]
    placed = [t.number for t in placed if t.decl.space == "out"]  # the rule `coverage` shows that these are apart
    for part in parts(plan, (plan.accesses.kind == WRITE) & ~plan.touching(placed)):
        yield from rank_by_rank(part, lambda one: _check_writes(one, order, ranks))


class Orders:
    """The order of accesses in a plan: by the plan as scheduled, and by its signals alone, as under any schedule."""

    def __init__(self, plan: Plan, whole: Bound | None = None) -> None:
        """whole: the program of which that of the plan has a few blocks that stand for all, if it does (cutoff.py)."""
        self.planned = HappensBefore(plan=apart(plan))
        self._plan, self._whole = plan, whole

    @cached_property
    def _signals(self) -> BySignals:
        return BySignals(self._plan)

    @cached_property
    def families(self) -> Families | None:
        """The order of all accesses of two statements; None for a plan that is not as its program has it."""
        return Families(self._plan, whole=self._whole) if self._plan.as_enumerated else None

    @cached_property
    def settled(self) -> np.ndarray:
        """Mask of the accesses that are reads after all writes of their elements, as their statements show."""
        if self.families is None:
            return np.zeros(len(self._plan.accesses.task), bool)
        return self.families.settled

    @cached_property
    def awaited(self) -> Awaited:
        """The order by waits for places that a launch decides."""
        return Awaited(self._plan)

    @cached_property
    def threads(self) -> Threads:
        """The programs as threads."""
        return Threads(self._plan)

    def by_signals(self, first: Ints, second: Ints) -> np.ndarray:
        """Mask of the pairs of rows of the plan's accesses that signals alone order; cheap if there are no pairs."""
        a = self._plan.accesses
        if not len(first):
            return np.zeros(0, bool)
        return self._signals.before(a.task[first], a.position[first], a.task[second], a.position[second])

    def adds(self, rows: Ints) -> np.ndarray:
        """Mask of the rows of the plan's accesses that add to what is there."""
        return self._adding[self._plan.accesses.statement[rows]]

    @cached_property
    def _adding(self) -> np.ndarray:
        return np.array([isinstance(one, Store) and one.adds for _, one in self._plan.statements], bool)

    def late(self, rows: Ints) -> np.ndarray:
        """Mask of the rows of the plan's accesses that puts make, at any time after their place in the program."""
        a = self._plan.accesses
        return self.planned.puts.late(a.task[rows], a.position[rows])

    def unplanned(self, one: int, other: int) -> bool:
        """True if not even the plan orders two accesses."""
        a = self._plan.accesses
        pair, back = np.array([one, other]), np.array([other, one])
        return not self.planned.before(a.task[pair], a.position[pair], a.task[back], a.position[back]).any()


def _inputs_of_peers(plan: Plan) -> Iterator[VerificationError]:
    """Yield a refusal of a read of a peer's input before that peer has entered the launch."""
    a = plan.accesses
    numbers = [t.number for t in plan.bound.tensors.values() if t.decl.space == "in"]
    entry = np.array([k.needs_entry for k in plan.bound.kernels])
    reads = np.flatnonzero(plan.touching(numbers))
    far = (a.peer[reads] != plan.task_ranks[a.task[reads]]) & ~entry[plan.task_kernels[a.task[reads]]]
    for row in reads[far][:1]:
        hint = "the kernel must wait for its peers' entry"
        message = "reads a peer's input before that peer has entered"
        yield refuse(OrderingError, plan, message, task=int(a.task[row]), statement=int(a.statement[row]), hint=hint)


def _unfinished_outputs(plan: Plan) -> Iterator[VerificationError]:
    """Yield a refusal of a remote write to an output without a notify after it: the end of a launch waits for that."""
    a, s = plan.accesses, plan.signals
    outs = {t.number: t.name for t in plan.bound.tensors.values() if t.decl.space == "out"}
    far = np.flatnonzero((a.kind == WRITE) & plan.touching(outs) & (a.peer != plan.task_ranks[a.task]))
    if not len(far):
        return
    rows = np.flatnonzero(s.kind == NOTIFY)
    ranks, count = plan.bound.ranks, len(plan.bound.tensors)
    key = (s.task[rows] * ranks + s.peer[rows]) * count + plan.channel_tensors[s.channel[rows]]
    last: dict[int, int] = {}
    for k, notified in zip(key.tolist(), plan.key(s.task[rows], s.position[rows]).tolist(), strict=True):
        last[k] = max(notified, last.get(k, notified))
    wanted = (a.task[far] * ranks + a.peer[far]) * count + a.tensor[far]
    keys = plan.key(a.task[far], a.position[far]).tolist()
    puts = Puts(plan=plan)
    late = puts.late(a.task[far], a.position[far]).tolist()
    for row, k, written, put in zip(far, wanted.tolist(), keys, late, strict=True):
        if k not in last or last[k] < written or (put and not _followed(plan, puts, int(row), last[k])):
            name = outs[int(a.tensor[row])]
            message = f"writes {name} of rank {a.peer[row]}, which cannot know when its output is complete"
            hint = f"notify the region of {name} @ that rank after the write"
            hint += ": a signal that is put with the data, or comes after a network_fence()" if put else ""
            task, statement = int(a.task[row]), int(a.statement[row])
            yield refuse(OrderingError, plan, message, task=task, statement=statement, hint=hint)
            return


def _followed(plan: Plan, puts: Puts, row: int, last: int) -> bool:
    """True if a signal of the output follows the write of a put. last: key of its last notify there by the task."""
    a, s = plan.accesses, plan.signals
    put = puts.at(int(a.task[row]), int(a.position[row]))
    notified = np.fromiter(puts.carriers(put), np.int64)
    same = (s.task[notified] == a.task[row]) & (plan.channel_tensors[s.channel[notified]] == a.tensor[row])
    quiet = puts.quiet_after(put)
    return bool((same & (s.peer[notified] == a.peer[row])).any()) or (quiet is not None and quiet < last)


def _check_reads(part: TensorAccesses, order: Orders) -> Iterator[VerificationError]:
    """Yield refusals unless every write is before or after the read, and the writes before it fill all of it.

    The rule `coverage` has shown that all of it is written. So a read with all its writes before it is filled. What is
    read of a tensor that is written in place is there before any write. So each read of it, before a write or after
    it, is ordered by signals: otherwise the schedule would decide what is read.
    """
    plan, a = part.plan, part.plan.accesses
    in_place = plan.bound.tensors[part.name].decl.in_place
    waited = order.awaited.after_all(part)  # but for barriers, between accesses of one program
    worker, written = plan.worker[a.task], part.rows[part.written]
    settled = waited[~np.isin(worker[waited], worker[written])]
    settled = np.concatenate([settled, part.every[order.settled[part.every]]])
    writes, reads = _meeting(plan, *pairs(part, READ, without=settled), in_place=in_place)
    before = np.isin(reads, waited)
    rest = np.flatnonzero(~before)  # of a place the other orders know nothing, and take long to say so
    before[rest] = order.awaited.before(writes[rest], reads[rest])
    rest = np.flatnonzero(~before)
    write, read = writes[rest], reads[rest]
    if in_place:
        before[rest] = order.by_signals(write, read)
    else:
        before[rest] = order.planned.before(a.task[write], a.position[write], a.task[read], a.position[read])
    rest = np.flatnonzero(~before)
    after = order.by_signals(reads[rest], writes[rest])
    for pair in rest[~after][:3]:
        yield _refusal(plan, part.name, int(writes[pair]), int(reads[pair]), order)
    early = None if in_place else _unfilled(part, writes, reads, before, rest[after])
    if early is not None:
        yield early
        return
    yield from _without_barrier(plan, part.name, writes, reads, order)


def _meeting(plan: Plan, writes: Ints, others: Ints, *, in_place: bool) -> tuple[Ints, Ints]:
    """Return the pairs of accesses without those that no launch lets meet."""
    if not in_place:
        return writes, others
    some = ~disjoint(plan, writes, others)
    return writes[some], others[some]


def _unfilled(
    part: TensorAccesses, writes: Ints, reads: Ints, before: np.ndarray, after: Ints
) -> VerificationError | None:
    """Return the refusal of a read that comes before a write, and that the writes before it do not fill, or None.

    before: mask of the pairs whose write is before the read. after: the pairs whose read is before the write.
    """
    late, first = np.unique(reads[after], return_index=True)
    filling = np.flatnonzero(before & np.isin(reads, late))
    filling = filling[np.argsort(reads[filling], kind="stable")]
    bounds = np.searchsorted(reads[filling], late), np.searchsorted(reads[filling], late, side="right")
    for read, pair, begin, end in zip(late, after[first], *bounds, strict=True):
        if not _filled(part, int(read), writes[filling[begin:end]]):
            return _too_early(part.plan, part.name, int(writes[pair]), int(read))
    return None


def _filled(part: TensorAccesses, read: int, writes: Ints) -> bool:
    """True if the boxes of these writes together cover the box of a read."""
    found = part.box_of(np.append(writes, read))
    cells = Cells.between(found.lo, found.hi, found.shape)
    low, high = cells.locate(found.lo, found.hi)
    return not cells.sums(cells.paint(low[:-1], high[:-1], 1) == 0, low[-1:], high[-1:]).any()


def _too_early(plan: Plan, name: str, write: int, read: int) -> VerificationError:
    a, rank, dims = plan.accesses, plan.accesses.peer[read], len(plan.bound.tensors[name].shape)
    one, other = (box(a.lo[access], a.hi[access], dims) for access in (read, write))
    message = f"reads {name}{one} of rank {rank} before {where(plan, int(a.task[write]))} writes {name}{other}"
    task, statement, related = int(a.task[read]), int(a.statement[read]), int(a.statement[write])
    hint = f"read {name} after it is written"
    if a.task[write] == a.task[read]:
        hint += "; an iteration of a loop covers a whole tile, or one element if its index is used as a number"
    return refuse(OrderingError, plan, message, task=task, statement=statement, related=related, hint=hint)


def _check_writes(part: TensorAccesses, order: Orders, ranks: Ints) -> Iterator[VerificationError]:
    """Yield refusals of two writes of an element that the program's signals do not order: the schedule must not decide
    which is the last one.

    ranks: the rank that makes each access.
    """
    plan, a, name = part.plan, part.plan.accesses, part.name
    far = part.every[ranks[part.every] != a.peer[part.every]]
    if len(far) and not plan.bound.tensors[name].decl.symmetric:
        message = f"writes {name} of rank {a.peer[far[0]]}, which is not symmetric"
        hint = f"declare {name} symmetric"
        task, statement = int(a.task[far[0]]), int(a.statement[far[0]])
        yield refuse(ExclusiveWriteError, plan, message, task=task, statement=statement, hint=hint)
    in_place = plan.bound.tensors[name].decl.in_place
    first, second = _meeting(plan, *pairs(part, WRITE, same_task=True), in_place=in_place)
    several = ~(order.adds(first) & order.adds(second))  # which of two additions comes last makes no difference
    first, second = first[several], second[several]
    apart = (a.task[first] != a.task[second]) | order.late(first) | order.late(second)
    rest = np.flatnonzero(apart & ~order.by_signals(first, second))
    later = order.by_signals(second[rest], first[rest])
    for pair in rest[~later][:3]:
        yield _refusal(plan, name, int(first[pair]), int(second[pair]), order)
    yield from _without_barrier(plan, name, first, second, order)


def _without_barrier(plan: Plan, name: str, writes: Ints, others: Ints, order: Orders) -> Iterator[VerificationError]:
    """Yield a refusal of a write and another access of an element by one program without a barrier in between."""
    a = plan.accesses
    for pair in np.flatnonzero(order.threads.apart(writes, others))[:1]:
        write, other = int(writes[pair]), int(others[pair])
        does = "reads" if a.kind[other] == READ else "writes"
        whose = "" if a.task[write] == a.task[other] else f", which {where(plan, int(a.task[write]))} writes"
        message = f"{does} {name} of rank {a.peer[other]}{whose}, and no barrier is in between"
        yield _of_pair(
            OrderingError, plan, message, write, other, "a compiler pass must place a program_barrier() there"
        )


def _refusal(plan: Plan, name: str, write: int, other: int, order: Orders) -> VerificationError:
    rank = int(plan.accesses.peer[write])
    what = "nothing" if order.unplanned(write, other) else "only the schedule"
    also = f"which {where(plan, int(plan.accesses.task[write]))} also writes, and {what} orders the two"
    if (of_puts := _of_puts(plan, name, rank, write, other, order)) is not None:
        return of_puts
    if plan.accesses.kind[other] == READ:
        return _unordered_read(plan, name, rank, write, other, also)
    message = f"writes {name} of rank {rank}, {also}"
    hint = "let one task write each element, or order the writes by a notify and a wait"
    return _of_pair(ExclusiveWriteError, plan, message, write, other, hint)


def _of_puts(plan: Plan, name: str, rank: int, write: int, other: int, order: Orders) -> VerificationError | None:
    """Return the refusal of two accesses of which a put makes one that its program is already beyond; None if none."""
    a = plan.accesses
    put, source = order.late(np.array([write, other]))
    reads = a.kind[other] == READ
    who = where(plan, int(a.task[write]))
    if source and reads and order.unplanned(write, other):
        message = f"puts {name} of rank {rank}, which {who} may write before the put has read it"
        hint = f"wait for {name} before it is passed on, if what is written there should be put; if what was there "
        hint += "before should be, let each tile and iteration have its own part, since a put reads its source late"
        return _of_pair(OrderingError, plan, message, write, other, hint)
    if put and order.unplanned(write, other):
        does, kind = ("reads", OrderingError) if reads else ("writes", ExclusiveWriteError)
        message = f"{does} {name} of rank {rank}, where {who} puts from another node, and no signal follows that put"
        hint = f"notify {name} @ that rank in the stage that pushes it, after the push, and wait for {name} in the one "
        hint += f"that {does} it; two pushes to one region are in no order: push to it once, or to regions apart"
        return _of_pair(kind, plan, message, write, other, hint)
    return None


def _unordered_read(plan: Plan, name: str, rank: int, write: int, read: int, other: str) -> VerificationError:
    """Name the mismatched signal if the reader waits and the writer notifies already. other: text about the write."""
    a, dims = plan.accesses, len(plan.bound.tensors[name].shape)
    missing = mismatched_signals(plan, name, rank, write, read)
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
    if plan.bound.tensors[name].decl.in_place:
        hint += ", to read what is written; or notify it after the read and wait for it before the write, to read what "
        hint += "was there before"
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
    """Return a refusal of an access that overlaps a write; `related`: a statement to show instead of the write."""
    a = plan.accesses
    seen = int(a.statement[write]) if related is None else related
    task, statement = int(a.task[other]), int(a.statement[other])
    return refuse(kind, plan, message, task=task, statement=statement, related=seen, hint=hint)
