"""Happens-before between events of a plan: worker order, stream order, and notify -> channel -> wait.

A wait that has passed means that all notifies of its channel happened, so a channel is one node of the graph. A
deferred notify counts as at the end of its tile: no bound on its delay is promised, so nothing is proved by it. Words
of data and flag order themselves alone: a word is written before it is read, and nothing else of the two programs is in
order because of it (`through_words` says where more is true). A wait of a tile that a launch may leave out orders what
the tile does, and nothing after it: such a tile has a second node, to which its waits lead (`_shadows`). What a put
reads and writes on another node happens after its place in the program, see network.py. Most pairs are answered
together by vectorised tests (same worker, earlier kernel, one notify away). The remaining pairs are answered by a
search of the graph, which is exact: from one event, or along a line from many at once (signal_order.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from tilelink.lowering.columns import Ints, distinct_rows
from tilelink.lowering.events import NOTIFY, SUBSTEPS, WAIT, Substep
from tilelink.planning.network import Put, Puts
from tilelink.planning.plan import Plan
from tilelink.planning.signal_order import AFTER_ALL, SignalOrder, topological_order

FEW = 4
"""Events from which the graph is searched one by one, at most."""


@dataclass(kw_only=True)
class HappensBefore:
    """The happens-before relation of one plan.

    through_words: True for an order of time alone. Then what comes after a read of words also comes after what was
    before them in the program that sent them. That is no order of memory: the sender's other stores may arrive later.
    """

    plan: Plan
    through_words: bool = False

    def key(self, task: Ints, position: Ints) -> Ints:
        """Return the keys of events, as `Plan.key`."""
        return self.plan.key(task, position)

    def before(self, task_a: Ints, at_a: Ints, task_b: Ints, at_b: Ints) -> np.ndarray:
        """Mask of the pairs of events (task, position) in which a is proved to happen before b."""
        late = self.puts.late(task_a, at_a)
        if late.any():
            known, rows = late.copy(), np.flatnonzero(~late)
            known[rows] = self._before(task_a[rows], at_a[rows], task_b[rows], at_b[rows])
            rows = np.flatnonzero(late)
            known[rows] = self._after_puts(task_a[rows], at_a[rows], task_b[rows], at_b[rows])
            return known
        return self._before(task_a, at_a, task_b, at_b)

    @cached_property
    def puts(self) -> Puts:
        """The puts of the plan."""
        return Puts(plan=self.plan)

    def _before(self, task_a: Ints, at_a: Ints, task_b: Ints, at_b: Ints) -> np.ndarray:
        """As `before`, for events a that have happened when their program is beyond them."""
        known = self._same_worker(task_a, at_a, task_b, at_b) | self._earlier_kernel(task_a, at_a, task_b, at_b)
        rest = np.flatnonzero(~known)
        known[rest] = self._one_hop(task_a[rest], at_a[rest], task_b[rest], at_b[rest])
        rest = np.flatnonzero(~known)
        known[rest] = self._by_word(task_a[rest], at_a[rest], task_b[rest], at_b[rest])
        rest = np.flatnonzero(~known)
        if len(rest):
            known[rest] = self._search(task_a[rest], at_a[rest], task_b[rest], at_b[rest])
        return known

    def _after_puts(self, task_a: Ints, at_a: Ints, task_b: Ints, at_b: Ints) -> np.ndarray:
        """As `before`, for events a that are reads and writes of puts."""
        result = np.zeros(len(task_a), bool)
        workers, keys = self._shadows[self.plan.worker[task_b]].tolist(), self.key(task_b, at_b).tolist()
        other = self.puts.late(task_b, at_b).tolist()
        reached: dict[tuple[int, int], dict[int, int]] = {}
        for pair, event in enumerate(zip(task_a.tolist(), at_a.tolist(), strict=True)):
            put = self.puts.at(*event)
            if event not in reached:
                reached[event] = self._reach_of(put)
            earliest = reached[event].get(workers[pair])
            result[pair] = earliest is not None and earliest < keys[pair]
            if not result[pair] and other[pair]:
                result[pair] = self.puts.in_line(put, self.puts.at(int(task_b[pair]), int(at_b[pair])))
        return result

    def _reach_of(self, put: Put) -> dict[int, int]:
        """Return what `reach` does for the read or the write of a put."""
        begin: dict[int, int] = {}
        quiet = self.puts.quiet_after(put)
        if quiet is not None:
            begin[put.worker] = quiet
        elif self.plan.bound.kernels[self.plan.workers[put.worker][0]].quiet:
            begin |= dict.fromkeys(self._successors.get(self._kernel_of[put.worker], ()), -1)
        return self._spread(begin, {int(self.plan.counters[row]) for row in self.puts.carriers(put)})

    @cached_property
    def _hidden(self) -> np.ndarray:
        """Mask of the signals that words carry and that order nothing but the words."""
        return self.plan.by_words & (not self.through_words)

    @cached_property
    def _word_events(self) -> tuple[Ints, Ints]:
        """The events whose words carry signals, sorted, and the rows of these signals."""
        s, plan = self.plan.signals, self.plan
        rows = np.flatnonzero(plan.by_words)
        events = plan.event(s.task[rows], s.position[rows])
        return np.unique(events), rows

    def _by_word(self, task_a: Ints, at_a: Ints, task_b: Ints, at_b: Ints) -> np.ndarray:
        """Mask of the pairs of the write of a word and a read that waits for it."""
        result = np.zeros(len(task_a), bool)
        events, rows = self._word_events
        if not len(rows) or not len(result):
            return result
        a, b = self.plan.event(task_a, at_a), self.plan.event(task_b, at_b)
        pairs = np.isin(a, events) & np.isin(b, events)
        pairs &= (at_a % SUBSTEPS == Substep.WRITE) & (at_b % SUBSTEPS == Substep.READ)
        for pair in np.flatnonzero(pairs):
            result[pair] = not self._counters_of(NOTIFY)[int(a[pair])].isdisjoint(self._counters_of(WAIT)[int(b[pair])])
        return result

    def _counters_of(self, kind: int) -> Mapping[int, set[int]]:
        """Return event -> the counters of the signals of a kind that its words carry."""
        if kind not in self._carried:
            s, found = self.plan.signals, defaultdict[int, set[int]](set)
            rows = np.flatnonzero(self.plan.by_words & (s.kind == kind))
            events = self.plan.event(s.task[rows], s.position[rows]).tolist()
            for event, counter in zip(events, self.plan.counters[rows].tolist(), strict=True):
                found[event].add(counter)
            self._carried[kind] = found
        return self._carried[kind]

    @cached_property
    def _carried(self) -> dict[int, defaultdict[int, set[int]]]:
        return {}

    @cached_property
    def _left_out(self) -> np.ndarray:
        """Mask of the waits that a launch leaves out with their tile, in tasks that are workers of their own."""
        plan = self.plan
        result = plan.left_out.copy()
        alone = np.bincount(plan.worker, minlength=len(plan.workers)) == 1
        result[result] = alone[plan.worker[plan.signals.task[result]]]
        return result

    @cached_property
    def _waiting(self) -> np.ndarray:
        """Mask of the waits that are edges of the graph."""
        s = self.plan.signals
        return (s.kind == WAIT) & ((s.guard == 0) | self._left_out) & ~self._hidden

    @cached_property
    def _shadows(self) -> Ints:
        """worker -> the node of what comes after its waits: itself, or a further one that nothing comes after.

        In a launch without its tile the worker does not wait, so what comes after its end does not come after what it
        would have waited for.
        """
        result = np.arange(len(self.plan.workers))
        own = np.unique(self.plan.worker[self.plan.signals.task[self._left_out]])
        result[own] = len(result) + np.arange(len(own))
        return result

    @cached_property
    def _nodes(self) -> int:
        """Number of nodes: the workers, then their shadows."""
        return max(len(self.plan.workers), int(self._shadows.max(initial=-1)) + 1)

    def _same_worker(self, task_a: Ints, at_a: Ints, task_b: Ints, at_b: Ints) -> np.ndarray:
        same = self.plan.worker[task_a] == self.plan.worker[task_b]
        return same & (self.key(task_a, at_a) < self.key(task_b, at_b))

    def _earlier_kernel(self, task_a: Ints, at_a: Ints, task_b: Ints, at_b: Ints) -> np.ndarray:
        a, b = self.plan.worker[task_a], self.plan.worker[task_b]
        stream, position, rank = self._worker_columns
        earlier = (stream[a] == stream[b]) & (rank[a] == rank[b]) & (position[a] < position[b])
        if len(self.plan.overtaking):
            earlier &= self.plan.overtakes(task_a, at_a) | ~self.plan.overtakes(task_b, at_b)
        return earlier

    @cached_property
    def _worker_columns(self) -> tuple[Ints, Ints, Ints]:
        kernels = self.plan.bound.kernels
        streams = list(dict.fromkeys(k.stream for k in kernels))
        columns = [(streams.index(kernels[n].stream), kernels[n].position, r) for n, r, _ in self.plan.workers]
        stream, position, rank = np.array(columns, dtype=np.int64).reshape(-1, 3).T
        return stream, position, rank

    @cached_property
    def _notifies(self) -> tuple[Ints, Ints, Ints]:
        """(task, key, channel) of all notifies, by task."""
        s = self.plan.signals
        rows = np.flatnonzero((s.kind == NOTIFY) & ~self._hidden)
        rows = rows[np.argsort(s.task[rows], kind="stable")]
        return s.task[rows], self.key(s.task[rows], s.position[rows]), self.plan.counters[rows]

    @cached_property
    def _first_notify(self) -> Ints:
        """task -> the number of its first notify among `_notifies`, with the number of all of them at the end."""
        return np.searchsorted(self._notifies[0], np.arange(self.plan.tasks + 1))

    @cached_property
    def _waits(self) -> tuple[Ints, Ints]:
        """(task x channel, first position) of all waits, by task x channel.

        A wait for channels that a launch decides orders nothing here (verifier/awaited.py).
        """
        s = self.plan.signals
        rows = np.flatnonzero(self._waiting)
        key = s.task[rows] * self._channels + self.plan.counters[rows]
        order = np.argsort(key, kind="stable")
        key = key[order]
        first = np.flatnonzero(np.diff(key, prepend=-1))
        return key[first], np.minimum.reduceat(s.position[rows[order]], first) if len(first) else first

    @property
    def _channels(self) -> int:
        return self.plan.bound.ranks * self.plan.channels

    def _one_hop(self, task_a: Ints, at_a: Ints, task_b: Ints, at_b: Ints) -> np.ndarray:
        """Mask of the pairs in which a's task notifies, after a, a channel that b's task waits for before b."""
        task, key, channel = self._notifies
        keys, first = self._waits
        result = np.zeros(len(task_a), bool)
        if not len(keys) or not len(task):
            return result
        start = self._first_notify[task_a]
        counts = self._first_notify[task_a + 1] - start
        pair = np.repeat(np.arange(len(task_a)), counts)
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        row = start[pair] + within
        wanted = task_b[pair] * self._channels + channel[row]
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        later = key[row] > self.key(task_a, at_a)[pair]
        good = (keys[found] == wanted) & later & (first[found] < at_b[pair])
        np.logical_or.at(result, pair[good], True)
        return result

    def _search(self, task_a: Ints, at_a: Ints, task_b: Ints, at_b: Ints) -> np.ndarray:
        """Mask of the pairs in order, by a search of the graph from every distinct event a.

        From many events the graph is searched once, along a line, which it has if nothing waits in a circle.
        """
        source_worker, source_key = self.plan.worker[task_a], self.key(task_a, at_a)
        target_worker, target_key = self._shadows[self.plan.worker[task_b]], self.key(task_b, at_b)
        first, group = distinct_rows([source_worker, source_key])
        line = self._line if len(first) > FEW else None
        if line is not None:
            sources = source_worker[first], source_key[first]
            return line.before(sources, group, (target_worker, target_key))
        result = np.zeros(len(task_a), bool)
        order = np.argsort(group, kind="stable")
        bounds = np.flatnonzero(np.diff(group[order], prepend=-1))
        for rows in np.split(order, bounds[1:]):
            reached = self._spread({int(source_worker[rows[0]]): int(source_key[rows[0]])}, set())
            for row in rows:
                earliest = reached.get(int(target_worker[row]))
                result[row] = earliest is not None and earliest < int(target_key[row])
        return result

    @cached_property
    def _line(self) -> SignalOrder | None:
        """All signals in a line, with begins and ends of workers; None if some wait in a circle."""
        s, workers = self.plan.signals, np.arange(len(self.plan.workers))
        notifies = np.flatnonzero((s.kind == NOTIFY) & ~self._hidden)
        waits, waiting = self._first_waits
        rows = np.concatenate([notifies, waits])
        gives = np.arange(len(rows)) < len(notifies)
        own, before = self._kernels
        begun, shadowed = before >= 0, self._shadows != workers
        none = int(own.max(initial=-1)) + 1  # a kernel that no other one comes after
        node = np.concatenate([workers, self._shadows[shadowed]])
        end = np.concatenate([own, np.full(int(shadowed.sum()), none)])
        start = np.concatenate([workers[begun], self._shadows[begun & shadowed]])
        after = np.concatenate([before[begun], before[begun & shadowed]])
        columns = [
            (np.concatenate([self.plan.worker[s.task[notifies]], waiting]), self._signal_keys[rows], gives,
             self.plan.counters[rows]),
            (node, np.full(len(node), AFTER_ALL), np.ones(len(node), bool), self._channels + end),
            (start, np.full(len(start), -1), np.zeros(len(start), bool), self._channels + after),
        ]  # fmt: skip
        worker, key, gives, channel = (np.concatenate(column) for column in zip(*columns, strict=True))
        return topological_order(worker, key, gives, channel)

    def reach(self, keys: Mapping[int, int]) -> dict[int, int]:
        """Return worker -> the earliest key after which every event of the worker happens after one of some events.

        Events of a tile that a launch may leave out are not among them where it is its waits that order them.
        keys: worker -> the key of such an event.
        """
        found = self._spread(dict(keys), set())
        return {other: first for other, first in found.items() if other < len(self.plan.workers)}

    def after_counters(self, counters: set[int]) -> Ints:
        """Return for each worker a key after which its events may happen after all notifies of one of some counters."""
        first = np.full(self._nodes, np.iinfo(np.int64).max)
        for node, key in self._spread({}, counters).items():
            first[node] = key
        return first[self._shadows]

    def _spread(self, earliest: dict[int, int], seen: set[int]) -> dict[int, int]:
        """Return what `reach` does for an event that is before these keys of workers and full channels."""
        done: dict[int, int] = {}
        todo = list(earliest)
        notifies, waits = self._graph
        ended: set[int] = set()
        for channel in seen:
            for other, key in waits.get(channel, ()):
                _visit(earliest, todo, other, key)
        while todo:
            here = todo.pop()
            begin, end = earliest[here], done.get(here)
            done[here] = begin
            keys, channels = notifies[here]
            stop = len(keys) if end is None else bisect_left(keys, end)
            for channel in channels[bisect_left(keys, begin) : stop]:
                if channel in seen:
                    continue
                seen.add(channel)
                for other, key in waits.get(channel, ()):
                    _visit(earliest, todo, other, key)
            if end is None and (kernel := self._kernel_of[here]) not in ended:
                ended.add(kernel)
                for other in self._successors.get(kernel, ()):
                    _visit(earliest, todo, other, -1)
        return earliest

    @cached_property
    def _graph(self) -> tuple[list[tuple[list[int], list[int]]], dict[int, list[tuple[int, int]]]]:
        """For each worker its notifies (keys, channels); for each channel its waits (worker, key)."""
        s = self.plan.signals
        worker, key, channel = self.plan.worker[s.task], self._signal_keys, self.plan.counters
        rows = np.flatnonzero((s.kind == NOTIFY) & ~self._hidden)
        rows = rows[np.lexsort((key[rows], worker[rows]))]
        bounds = np.searchsorted(worker[rows], np.arange(self._nodes + 1)).tolist()
        keys, channels = key[rows].tolist(), channel[rows].tolist()
        notifies = [(keys[begin:end], channels[begin:end]) for begin, end in pairwise(bounds)]
        rows, node = self._first_waits
        channels, bounds = np.unique(channel[rows], return_index=True)
        pairs = list(zip(node.tolist(), key[rows].tolist(), strict=True))
        ends = pairwise([*bounds.tolist(), len(rows)])
        return notifies, {one: pairs[begin:end] for one, (begin, end) in zip(channels.tolist(), ends, strict=True)}

    @cached_property
    def _first_waits(self) -> tuple[Ints, Ints]:
        """The waits that are edges of the graph, channel by channel, and the nodes that they lead to.

        Of a node and a channel the first one alone: later ones are for what has happened.
        """
        s, channel = self.plan.signals, self.plan.counters
        rows = np.flatnonzero(self._waiting)
        node = self._shadows[self.plan.worker[s.task[rows]]]
        order = np.lexsort((self._signal_keys[rows], node, channel[rows]))
        rows, node = rows[order], node[order]
        first = (np.diff(channel[rows], prepend=-1) != 0) | (np.diff(node, prepend=-1) != 0)
        return rows[first], node[first]

    @cached_property
    def _signal_keys(self) -> Ints:
        """The keys of signals, as the graph has them."""
        s = self.plan.signals
        key = self.key(s.task, s.position)
        # A statement may send some of its words before it has received the others.
        return np.where(self.plan.by_words & (s.kind == WAIT), key + SUBSTEPS - Substep.ARRIVED, key)

    @cached_property
    def _kernels(self) -> tuple[Ints, Ints]:
        """For each worker the number of its kernel on its rank, and of the one before it on its stream, or -1."""
        kernels = self.plan.bound.kernels
        places = [(kernels[number].stream, rank, kernels[number].position) for number, rank, _ in self.plan.workers]
        numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
        before = [numbers.get((stream, rank, position - 1), -1) for stream, rank, position in places]
        return np.array([numbers[place] for place in places], np.int64), np.array(before, np.int64)

    @cached_property
    def _kernel_of(self) -> list[int]:
        """For each node the number of its kernel, as `_kernels` has it; -1 for those that are no workers."""
        own = self._kernels[0].tolist()
        return own + [-1] * (self._nodes - len(own))

    @cached_property
    def _successors(self) -> dict[int, list[int]]:
        """For each kernel the nodes of the next one on its stream and rank."""
        after: dict[int, list[int]] = {}
        for worker, (before, shadow) in enumerate(zip(self._kernels[1].tolist(), self._shadows.tolist(), strict=True)):
            if before >= 0:
                after.setdefault(before, []).extend(dict.fromkeys((worker, shadow)))
        return after


class BySignals(HappensBefore):
    """Happens-before by signals and by program order inside a task alone, for any order of tiles, stages and kernels.

    Each task is a worker.
    """

    def __init__(self, plan: Plan) -> None:
        workers = tuple(plan.workers[worker] for worker in plan.worker.tolist())
        tasks = len(workers)
        super().__init__(
            plan=replace(plan, worker=np.arange(tasks), sequence=np.zeros(tasks, np.int64), workers=workers)
        )

    def _earlier_kernel(self, task_a: Ints, at_a: Ints, task_b: Ints, at_b: Ints) -> np.ndarray:
        return np.zeros(len(task_a), bool)

    @cached_property
    def _kernels(self) -> tuple[Ints, Ints]:
        return np.arange(len(self.plan.workers)), np.full(len(self.plan.workers), -1)


def _visit(earliest: dict[int, int], todo: list[int], worker: int, key: int) -> None:
    known = earliest.get(worker)
    if known is None or key < known:
        earliest[worker] = key
        todo.append(worker)
