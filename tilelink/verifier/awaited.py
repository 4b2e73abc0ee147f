"""Order of a write and a read at a place that a launch decides, where the reader waits for that very place.

Theorem: a task waits for the channels of `h[p[i], :]` and then reads `h[p[i], :]`. If every task that may have written
an element of `h` notifies the channel of that element after the write, then whatever element p[i] names, its write
comes before the read. Proof: the wait lasts until all notifies of that channel have arrived, and so has that of the
task that wrote the element. Both name the element through the same entries, and an entry is written once in a launch.
Between nodes a notify is after the write of a put only if it follows that on the network (planning/network.py).

Such a wait orders nothing else: a launch decides which channels it is for, and an iteration that is not there leaves it
out. So its guard has the iterations around it and the end of its entries, and so has that of the read.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilelink.lowering.columns import Ints, distinct_rows, expand
from tilelink.lowering.events import NOTIFY, WAIT
from tilelink.planning.network import Puts
from tilelink.planning.plan import Plan

Bools = NDArray[np.bool_]


class Awaited:
    """The waits of a plan for places that a launch decides."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def before(self, writes: Ints, reads: Ints, asked: Bools) -> Bools:
        """Mask of the pairs of accesses in which the reader waits for the place that it reads, and the writer notifies.

        Pairs that are not asked for are False.
        """
        a = self._plan.accesses
        result = np.zeros(len(writes), bool)
        rows = np.flatnonzero(asked & (a.guard[reads] > 0))
        if not len(rows) or not (self._plan.signals.guard > 0).any():
            return result
        for (tensor, kind), grid in self._plan.bound.channels.items():
            number, dims = self._plan.bound.tensors[tensor].number, len(grid.counts)
            some = rows[(a.tensor[writes[rows]] == number) & ~result[rows]]
            if not len(some):
                continue
            write, read = writes[some], reads[some]
            sizes = np.array(grid.sizes, np.int64)
            lo = np.maximum(a.lo[write, :dims], a.lo[read, :dims]) // sizes
            hi = (np.minimum(a.hi[write, :dims], a.hi[read, :dims]) - 1) // sizes + 1
            pair, cell = expand(lo, hi, grid.counts)
            channel = self._plan.channel_base[tensor, kind] + cell
            good = self._notified(write[pair], read[pair], channel) & self._waited(read[pair], channel)
            missing = np.zeros(len(some), np.int64)
            np.add.at(missing, pair[~good], 1)
            result[some] = missing == 0
        return result

    def _notified(self, write: Ints, read: Ints, channel: Ints) -> Bools:
        """Mask of the writes after which their task notifies a channel of the reader's rank.

        After the write of a put that is a signal that follows it on the network.
        """
        plan, a = self._plan, self._plan.accesses
        late = self._puts.late(a.task[write], a.position[write])
        if late.any():
            result, rows = np.zeros(len(write), bool), np.flatnonzero(~late)
            result[rows] = self._notified(write[rows], read[rows], channel[rows])
            for row in np.flatnonzero(late).tolist():
                counter = int(a.peer[read[row]]) * plan.channels + int(channel[row])
                result[row] = counter in self._followers(int(write[row]))
            return result
        keys, last = self._notifies
        wanted = a.task[write] * self._counters + a.peer[read] * plan.channels + channel
        at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        if not len(keys):
            return np.zeros(len(write), bool)
        return (keys[at] == wanted) & (last[at] > a.position[write])

    def _followers(self, write: int) -> frozenset[int]:
        """Return the counters of the signals that follow the write of a put."""
        if write not in self._following:
            a = self._plan.accesses
            put = self._puts.at(int(a.task[write]), int(a.position[write]))
            rows = self._puts.carriers(put)
            self._following[write] = frozenset(int(self._plan.counters[row]) for row in rows)
        return self._following[write]

    @cached_property
    def _puts(self) -> Puts:
        return Puts(plan=self._plan)

    @cached_property
    def _following(self) -> dict[int, frozenset[int]]:
        return {}

    def _waited(self, read: Ints, channel: Ints) -> Bools:
        """Mask of the reads whose task waited before for the same place, of which a channel may be one."""
        a = self._plan.accesses
        keys, first, guards = self._waits
        if not len(keys):
            return np.zeros(len(read), bool)
        wanted = a.task[read] * self._counters + a.peer[read] * self._plan.channels + channel
        begin, end = np.searchsorted(keys, wanted), np.searchsorted(keys, wanted, side="right")
        row, at = expand(begin[:, None], end[:, None], (len(keys),))
        before = first[at] < a.position[read[row]]
        row, wait = row[before], guards[at[before]]
        good = np.zeros(len(read), bool)
        if not len(row):
            return good
        one, which = distinct_rows([wait, a.guard[read[row]]])
        same = [self._same(int(wait[pair]), int(a.guard[read[row[pair]]])) for pair in one.tolist()]
        good[row[np.array(same, bool)[which]]] = True
        return good

    def _same(self, wait: int, read: int) -> bool:
        """True if a wait's place is the place that is read, in every launch: the read may be restricted further."""
        key = (wait, read)
        if key not in self._known:
            theirs = self._plan.guards.of(read)
            self._known[key] = all(self._plan.guards.holds(part, theirs) for part in self._plan.guards.of(wait))
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[int, int], bool]:
        return {}

    @property
    def _counters(self) -> int:
        return self._plan.bound.ranks * self._plan.channels

    @cached_property
    def _notifies(self) -> tuple[Ints, Ints]:
        """(task x counter, last position) of notifies, sorted. Those that a program issues late are left out."""
        s = self._plan.signals
        rows = np.flatnonzero((s.kind == NOTIFY) & (s.later == 0))
        key = s.task[rows] * self._counters + self._plan.counters[rows]
        order = np.lexsort((-s.position[rows], key))
        keys, first = np.unique(key[order], return_index=True)
        return keys, s.position[rows][order][first]

    @cached_property
    def _waits(self) -> tuple[Ints, Ints, Ints]:
        """(task x counter, position, guard) of waits for places that a launch decides, sorted."""
        s = self._plan.signals
        rows = np.flatnonzero((s.kind == WAIT) & (s.guard > 0))
        key = s.task[rows] * self._counters + self._plan.counters[rows]
        order = np.lexsort((s.position[rows], key))
        return key[order], s.position[rows][order], s.guard[rows][order]
