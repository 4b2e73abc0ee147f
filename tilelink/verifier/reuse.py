"""Rule `reuse`: a later launch cannot overwrite what an earlier one still reads, or count its signals for it, and it
reads what earlier ones have left in tensors that are kept.

Launch e + B uses the buffer of launch e again, where B is the number of buffers. Two waits keep a rank from starting it
too early. A kernel waits until every peer has finished launch e + B - lag. A launch whose inputs peers may read waits
until they have finished the launch that used the same buffer of these inputs. A kernel that has waited for its peers'
entry knows that they have finished all earlier launches.

Without a wait that reaches far enough, the program's own signals must keep the ranks together. If the end of every
launch on r happens after the start of that launch on q, r is at most one launch ahead of q. An event that happens after
the start of a launch on q also happens after all earlier launches of q.

The rule relies on these guarantees of the runtime:

* A launch ends after its kernels and after the notifies of its outputs that peers write. Peers learn of the end only
  after these outputs have been copied out of their buffers. A GPU launch that announces its own end, before that copy,
  has a first kernel that waits for the entry of all ranks; a rank enters its next launch after the copy.
* Launch e uses buffer (e - 1) % B. A replay of a CUDA graph can only use the buffers of its capture. So it skips launch
  numbers until those buffers are next, and after it as many as restore the sequence. Skipped launches count as
  finished, and their signals as arrived, so waits for finished launches keep their meaning. But signals that were never
  sent do not keep ranks together. If launches may be skipped and `reuse_wait off` left waits out, the kernels before
  and after a captured launch wait until peers have finished all launches before the next one (LAG 1 in
  `runtime/cuda/offline.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilelink.errors import ReuseError, VerificationError
from tilelink.lowering.columns import Ints, distinct_rows
from tilelink.lowering.events import NOTIFY, READ, WRITE
from tilelink.planning.happens_before import HappensBefore
from tilelink.planning.plan import Plan
from tilelink.verifier.cells import of_tensors, parts
from tilelink.verifier.overlaps import pairs
from tilelink.verifier.refusal import refuse


@dataclass(frozen=True, kw_only=True)
class _Meeting:
    """The events of a rank's kernel in the buffers of one tensor, on memory that the ranks `others` access too."""

    kernel: int
    rank: int
    others: frozenset[int]
    tensor: int
    tasks: Ints
    positions: Ints
    statement: int


def reuse(plan: Plan, happens: HappensBefore) -> Iterator[VerificationError]:
    """Yield a refusal of an access that can overlap an earlier launch of a peer in the same buffer."""
    staged = [t.buffers for t in plan.bound.tensors.values() if t.decl.space == "in" and t.decl.symmetric]
    unprotected = np.zeros((len(plan.bound.kernels), len(plan.bound.tensors)), bool)
    for tensor in plan.bound.tensors.values():
        for number, kernel in enumerate(plan.bound.kernels):
            waits = [*staged, kernel.reuse_lag] if kernel.reuse_lag else staged
            unprotected[number, tensor.number] = not (kernel.needs_entry or (waits and min(waits) <= tensor.buffers))
    if not unprotected.any():
        return
    apart = _Apart(plan, happens)
    for meeting in _meetings(plan, unprotected, happens):
        tensor = plan.bound.tensor_numbered(meeting.tensor)
        lagging = [q for q in sorted(meeting.others) if not apart.finished(meeting, q, tensor.buffers)]
        if lagging:
            launch = "previous launch" if tensor.buffers == 1 else f"launch {tensor.buffers} before"
            message = f"accesses a buffer of {tensor.name} that rank {lagging[0]} may still use for the {launch}"
            hint = "drop `reuse_wait off`"
            if tensor.decl.in_place:
                message = f"accesses {tensor.name}, which rank {lagging[0]} may still use for the previous launch"
            else:
                hint += f", or give {tensor.name} more buffers"
            yield refuse(ReuseError, plan, message, task=int(meeting.tasks[0]), statement=meeting.statement, hint=hint)
            return


def _meetings(plan: Plan, unprotected: np.ndarray, happens: HappensBefore) -> Iterator[_Meeting]:
    """Yield the accesses to a peer's memory, then the accesses to local memory that a peer may still use.

    unprotected: [kernels, tensors], True if no wait of the kernel protects the tensor.
    """
    a, s = plan.accesses, plan.signals
    notify = np.flatnonzero(s.kind == NOTIFY)
    events = (a.task, a.position, a.peer, a.tensor, a.statement)
    notifies = (s.task, s.position, s.peer, plan.channel_tensors[s.channel], s.statement)
    both = [
        _of_peers(plan, unprotected, *events),
        _of_peers(plan, unprotected, *(column[notify] for column in notifies)),
    ]
    task, position, peer, tensor, statement = (np.concatenate(column) for column in zip(*both, strict=True))
    partners = _partners(plan, plan.task_ranks[a.task]) if len(task) else {}
    columns = [plan.task_kernels[task], plan.task_ranks[task], peer, tensor]
    first, group = distinct_rows(columns) if len(task) else (task, task)
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(len(first) + 1))
    for n, (number, here, there, which) in enumerate(zip(*(column[first].tolist() for column in columns), strict=True)):
        mine = order[bounds[n] : bounds[n + 1]]
        yield _Meeting(
            kernel=number,
            rank=here,
            others=(partners.get((which, there, here), frozenset()) | {there}) - {here},
            tensor=which,
            tasks=task[mine],
            positions=position[mine],
            statement=int(statement[first[n]]),
        )
    yield from _own_memory(plan, unprotected, plan.task_kernels[a.task], plan.task_ranks[a.task], happens)


def _of_peers(
    plan: Plan, unprotected: np.ndarray, task: Ints, position: Ints, peer: Ints, tensor: Ints, statement: Ints
) -> tuple[Ints, ...]:
    """Return those of some events (task, position, peer, tensor, statement) that are in unprotected memory of peers."""
    far = np.flatnonzero((plan.task_ranks[task] != peer) & unprotected[plan.task_kernels[task], tensor])
    return tuple(column[far] for column in (task, position, peer, tensor, statement))


def _partners(plan: Plan, own: Ints) -> Mapping[tuple[int, int, int], frozenset[int]]:
    """Return (tensor, rank that holds it, rank that accesses it) -> the ranks whose accesses conflict with its own."""
    a = plan.accesses
    shared = [t.number for t in plan.bound.tensors.values() if t.decl.symmetric]
    rows = np.flatnonzero(plan.touching(shared))
    columns = [column[rows] for column in (a.tensor, a.peer, own, a.kind)]
    first = distinct_rows(columns)[0] if len(rows) else rows
    kinds: dict[tuple[int, int], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for tensor, owner, who, kind in zip(*(column[first].tolist() for column in columns), strict=True):
        kinds[tensor, owner][who].add(kind)
    return {
        (*memory, who): frozenset(q for q, theirs in touch.items() if q != who and WRITE in mine | theirs)
        for memory, touch in kinds.items()
        for who, mine in touch.items()
    }


def _own_memory(
    plan: Plan, unprotected: np.ndarray, kernel: Ints, own: Ints, happens: HappensBefore
) -> Iterator[_Meeting]:
    """Yield local writes of memory that a peer reads, or that it writes without an order before the local write.

    A tensor that is kept also has local reads, of what a peer writes without an order before them: these come from the
    launch before.
    """
    a = plan.accesses
    here = (own == a.peer) & unprotected[kernel, a.tensor]
    writes = (a.kind == WRITE) & here
    kept = here & of_tensors(plan, "kept")
    shared = np.intersect1d(a.tensor[writes | kept], a.tensor[own != a.peer])  # tensors that a peer accesses
    for part in parts(plan, plan.touching(shared) & ~of_tensors(plan, "in")):
        number = plan.bound.tensors[part.name].number
        first, second = pairs(part, WRITE)
        if plan.bound.tensors[part.name].decl.in_place:
            first, second = (np.concatenate(ends) for ends in zip((first, second), pairs(part, READ), strict=True))
        far = (own[first] != a.peer[first]) & (writes | kept)[second]
        first, second = first[far], second[far]
        known = happens.before(a.task[first], a.position[first], a.task[second], a.position[second])
        first, second = first[~known], second[~known]
        begins = np.searchsorted(a.peer[part.every], part.ranks)
        for owner, rows in zip(part.ranks.tolist(), np.split(part.every, begins[1:]), strict=True):
            mine = rows[writes[rows]]
            late = {q: mine for q in np.unique(own[rows[a.kind[rows] == READ]]).tolist() if q != owner}
            here = a.peer[first] == owner
            for q, before in zip(own[first[here]].tolist(), second[here], strict=True):
                late[q] = np.append(late.get(q, mine[:0]), before)
            for q, events in late.items():
                yield from _by_kernel(plan, kernel, owner, q, number, events)


def _by_kernel(plan: Plan, kernel: Ints, owner: int, other: int, tensor: int, rows: Ints) -> Iterator[_Meeting]:
    a = plan.accesses
    for number in np.unique(kernel[rows]).tolist():
        mine = rows[kernel[rows] == number]
        yield _Meeting(
            kernel=number,
            rank=owner,
            others=frozenset({other}),
            tensor=tensor,
            tasks=a.task[mine],
            positions=a.position[mine],
            statement=int(a.statement[mine[0]]),
        )


class _Apart:
    """The distance in launches that the program's own signals allow between ranks."""

    def __init__(self, plan: Plan, happens: HappensBefore) -> None:
        self.plan = plan
        # A kernel begins after the last one has ended, with all its loads and stores: an order of time is enough.
        self.order = HappensBefore(plan=happens.plan, through_words=True) if plan.by_words.any() else happens

    def finished(self, meeting: _Meeting, other: int, slots: int) -> bool:
        """True if rank `other` is proved to have finished the launch whose buffer these events use again."""
        if np.linalg.matrix_power(self.together, slots - 1)[meeting.rank, other] > 0:
            return True
        key = self.order.key(meeting.tasks, meeting.positions)
        after = [self.started[other].get(int(worker), None) for worker in self.plan.worker[meeting.tasks]]
        return all(first is not None and first < at for first, at in zip(after, key.tolist(), strict=True))

    @cached_property
    def started(self) -> list[dict[int, int]]:
        """rank -> worker -> the earliest key in that worker after the rank's start of the launch."""
        begun: list[dict[int, int]] = [{} for _ in range(self.plan.bound.ranks)]
        for worker, (_, rank, _) in enumerate(self.plan.workers):
            begun[rank][worker] = -1
        return [self.order.reach(workers) for workers in begun]

    @cached_property
    def together(self) -> np.ndarray:
        """[r, q]: the start of a launch on q happens before its end on r."""
        result = np.eye(self.plan.bound.ranks, dtype=np.int64)
        for q, reached in enumerate(self.started):
            for worker in reached:
                result[self.plan.workers[worker][1], q] = 1
            for worker, key, r in self.last_notifies:
                result[r, q] |= reached.get(worker, key) < key
        return result

    @cached_property
    def last_notifies(self) -> list[tuple[int, int, int]]:
        """(worker, its last key, rank): the notifies that the end of a launch on that rank waits for."""
        s = self.plan.signals
        awaited = np.zeros(max(self.plan.channels, 1), bool)
        for (tensor, kind), grid in self.plan.bound.channels.items():
            decl = self.plan.bound.tensors[tensor].decl
            base = self.plan.channel_base[tensor, kind]
            awaited[base : base + grid.count] = decl.space == "out" and decl.symmetric
        rows = np.flatnonzero((s.kind == NOTIFY) & awaited[s.channel])
        last: dict[tuple[int, int], int] = {}
        workers, keys = self.plan.worker[s.task[rows]], self.order.key(s.task[rows], s.position[rows])
        for worker, key, rank in zip(workers.tolist(), keys.tolist(), s.peer[rows].tolist(), strict=True):
            last[worker, rank] = max(key, last.get((worker, rank), key))
        return [(worker, key, rank) for (worker, rank), key in last.items()]
