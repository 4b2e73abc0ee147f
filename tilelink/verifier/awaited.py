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
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.mapping import ChannelGrid
from tilelink.lowering.columns import Ints, distinct_rows, expand
from tilelink.lowering.events import NOTIFY, WAIT
from tilelink.planning.network import Puts
from tilelink.planning.plan import Plan
from tilelink.verifier.cells import TensorAccesses
from tilelink.verifier.overlaps import meetings, portions, reads_of

Bools = NDArray[np.bool_]


class Awaited:
    """The waits of a plan for places that a launch decides."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def after_all(self, part: TensorAccesses) -> Ints:
        """Return the reads of a part, as rows of the plan's accesses, that come after all writes of what they read.

        They wait for all channels of their boxes, and all writes that overlap with such a box notify: that is asked
        once for each box.
        """
        a = self._plan.accesses
        reads, found = reads_of(part), list[Ints]()
        reads = reads[a.guard[part.rows[reads]] > 0]
        for key in self._grids(part.name):
            if not len(reads):
                break
            rows = part.rows[reads]
            met = meetings(part, reads[self._waited(rows, key)[2]])
            notified = self._all_notified(met.write, met.others[met.starts[met.box]], key)
            missed = np.zeros(len(met.starts) - 1, bool)
            missed[met.box[~notified]] = True
            found.append(met.others[~np.repeat(missed, np.diff(met.starts))])
            reads = reads[~np.isin(rows, found[-1])]
        return np.concatenate([part.rows[:0], *found])

    def before(self, writes: Ints, reads: Ints) -> Bools:
        """Mask of the pairs of accesses in which the reader waits for the place that it reads, and the writer
        notifies."""
        a = self._plan.accesses
        result = np.zeros(len(writes), bool)
        rows = np.flatnonzero(a.guard[reads] > 0)
        for number in np.unique(a.tensor[writes[rows]]).tolist():
            for key in self._grids(self._plan.bound.tensor_numbered(number).name):
                some = rows[(a.tensor[writes[rows]] == number) & ~result[rows]]
                if len(some):
                    result[some] = self._all_notified(writes[some], reads[some], key, waited=True)
        return result

    def _grids(self, tensor: str) -> list[tuple[str, str]]:
        """Return (tensor, kind) of the channels of a tensor for which a task waits at a place."""
        channels, base = np.unique(self._plan.signals.channel[self._waits[0]]), self._plan.channel_base
        return [
            key
            for key, grid in self._plan.bound.channels.items()
            if key[0] == tensor and ((base[key] <= channels) & (channels < base[key] + grid.count)).any()
        ]

    def _all_notified(self, writes: Ints, reads: Ints, key: tuple[str, str], *, waited: bool = False) -> Bools:
        """Mask of the pairs of accesses of which the writer notifies all channels of what both access.

        waited: the reader waits for all of them, too.
        """
        a, grid = self._plan.accesses, self._plan.bound.channels[key]
        low, high = _channels(np.maximum(a.lo[writes], a.lo[reads]), np.minimum(a.hi[writes], a.hi[reads]), grid)
        pair, cell = expand(low, high, grid.counts)
        good = self._notified(writes[pair], reads[pair], self._plan.channel_base[key] + cell)
        if waited:
            rows, which = np.unique(reads, return_inverse=True)
            sets, known, _ = self._waited(rows, key)
            good &= known.reshape(len(known), -1)[sets[which.ravel()[pair]], cell]
        missing = np.zeros(len(writes), bool)
        missing[pair[~good]] = True
        return ~missing

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

    def _waited(self, reads: Ints, key: tuple[str, str]) -> tuple[Ints, Bools, Bools]:
        """Return for each read the number of a set of channels, the sets, [sets, *counts of the grid], and whether all
        channels of its box are in it.

        They are the channels for which the reader's task has waited before at the place that it reads.
        """
        a, grid = self._plan.accesses, self._plan.bound.channels[key]
        low, high = _channels(a.lo[reads], a.hi[reads], grid)
        which, sets = self._sets(reads, key, self._waits_of(reads, alike=True))
        all_of = _covered(which, sets, low, high)
        rest = np.flatnonzero(~all_of)
        if len(rest):
            others, more = self._sets(reads[rest], key, self._waits_of(reads[rest], alike=False))
            which[rest], sets = len(sets) + others, np.concatenate([sets, more])
            all_of[rest] = _covered(others, more, low[rest], high[rest])
        return which, sets, all_of

    def _sets(self, reads: Ints, key: tuple[str, str], waits: tuple[Ints, Ints]) -> tuple[Ints, Bools]:
        """As `_waited`. waits: pairs (place in `reads`, wait)."""
        grid, base, s = self._plan.bound.channels[key], self._plan.channel_base[key], self._plan.signals
        read, wait = waits
        mine = (s.channel[wait] >= base) & (s.channel[wait] < base + grid.count)
        # waits with one number are for the same channels
        number = np.where(s.box[wait] > 0, self._plan.channels + s.box[wait], s.channel[wait])
        read, number, wait = (column[mine] for column in (read, number, wait))
        order = np.lexsort((number, read))
        read, number, wait = read[order], number[order], wait[order]
        new = np.ones(len(read), bool)
        new[1:] = (np.diff(read) != 0) | (np.diff(number) != 0)
        read, number, wait = read[new], number[new], wait[new]
        bounds = np.searchsorted(read, np.arange(len(reads) + 1)).tolist()
        known: dict[bytes, int] = {}
        which, sets = np.zeros(len(reads), np.int64), list[Bools]()
        for at, (begin, end) in enumerate(pairwise(bounds)):
            which[at] = known.setdefault(number[begin:end].tobytes(), len(sets))
            if which[at] == len(sets):
                sets.append(np.zeros(grid.count, bool))
                sets[-1][self._plan.each_channel(wait[begin:end])[1] - base] = True
        return which, np.array(sets, bool).reshape(len(sets), *grid.counts)

    def _waits_of(self, reads: Ints, *, alike: bool) -> tuple[Ints, Ints]:
        """Return pairs (place in `reads`, wait) of waits at the place of a read, before it in its task.

        alike: only those whose guard has the same number, which are found at once.
        """
        a, s, guards = self._plan.accesses, self._plan.signals, len(self._plan.guards.known)
        rows, keys = self._waits
        wanted = (a.task[reads] * self._plan.bound.ranks + a.peer[reads]) * guards
        first = wanted + a.guard[reads] if alike else wanted
        begin, end = np.searchsorted(keys, first), np.searchsorted(keys, first + (1 if alike else guards))
        found: list[tuple[Ints, Ints]] = [(rows[:0], rows[:0])]
        for some in portions(end - begin):
            read, at = expand(begin[some][:, None], end[some][:, None], (len(keys),))
            read, wait = some[read], rows[at]
            early = s.position[wait] < a.position[reads[read]]
            read, wait = read[early], wait[early]
            if len(read) and not alike:
                one, which = distinct_rows([s.guard[wait], a.guard[reads[read]]])
                same = [self._same(int(s.guard[wait[n]]), int(a.guard[reads[read[n]]])) for n in one.tolist()]
                read, wait = (column[np.array(same, bool)[which]] for column in (read, wait))
            found.append((read, wait))
        read, wait = (np.concatenate(ends) for ends in zip(*found, strict=True))
        return read, wait

    def _same(self, wait: int, read: int) -> bool:
        """True if a wait's place is the place that is read, in every launch: the read may be restricted further."""
        key = (wait, read)
        if key not in self._known:
            theirs = self._plan.guards.of(read)
            self._known[key] = all(self._plan.guards.facts.inside([theirs], one) for one in self._plan.guards.of(wait))
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
    def _waits(self) -> tuple[Ints, Ints]:
        """Waits for places that a launch decides, as rows of the plan's signals, and their keys, sorted.

        A key is (task x rank of the counter) x guard.
        """
        s = self._plan.signals
        rows = np.flatnonzero((s.kind == WAIT) & (s.guard > 0))
        key = (s.task[rows] * self._plan.bound.ranks + s.peer[rows]) * len(self._plan.guards.known) + s.guard[rows]
        order = np.argsort(key, kind="stable")
        return rows[order], key[order]


def _channels(lo: Ints, hi: Ints, grid: ChannelGrid) -> tuple[Ints, Ints]:
    """Return the boxes of channels of boxes of elements, [rows, dims]."""
    dims, sizes = len(grid.counts), np.array(grid.sizes, np.int64)
    return lo[:, :dims] // sizes, (hi[:, :dims] - 1) // sizes + 1


def _covered(which: Ints, sets: Bools, low: Ints, high: Ints) -> Bools:
    """Mask of the boxes of channels, [rows, dims], of which all are in a set. which: box -> number of its set."""
    first, like = distinct_rows([which, *low.T, *high.T])
    boxes = zip(low[first].tolist(), high[first].tolist(), strict=True)
    inside = [tuple(slice(*ends) for ends in zip(*box, strict=True)) for box in boxes]
    return np.array([sets[which[n]][box].all() for n, box in zip(first.tolist(), inside, strict=True)], bool)[like]
