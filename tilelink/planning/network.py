"""Puts of a plan on several nodes: what of them has happened when, by the rules of the network.

A put is issued where its statement stands, and everything before that has happened. But it reads its source and writes
its target at any time after that. Three things follow the write:

* the signal that was put with it: what waits for that signal comes after the write;
* after a `network_fence()` of the same program: its signals, and its puts, to the same rank;
* after a `network_quiet()` of the same program, or at the end of a kernel that ends with one: all that comes later.

Only a quiet follows the read of the source. No other statement follows either: a notify that is not one of these may
arrive before the put, and so may all that happens after it. A signal itself is issued in the program's order, and
whoever has waited for it comes after all that the program had done before it, but for its puts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from tilelink.ir.program import Notify, Transfer
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import FENCE, NOTIFY, QUIET, WRITE
from tilelink.planning.plan import SHIFT, Plan

SIGNAL_AFTER_WRITE = 2
"""Positions from the write of a put to its own signal (lowering/enumerate.py)."""


@dataclass(frozen=True, kw_only=True)
class Put:
    """The read or the write of a put. worker, key: where it is issued. peer: the rank of the memory."""

    row: int
    writes: bool
    worker: int
    key: int
    peer: int


@dataclass(kw_only=True)
class Puts:
    """The puts of a plan. plan: may have other workers than that of the program, as for an order by signals alone."""

    plan: Plan

    @cached_property
    def statements(self) -> np.ndarray:
        """statement -> True if it is a put."""
        every = (s for _, s in self.plan.statements)
        return np.array([isinstance(s, Transfer) and s.mode == "put" for s in every], bool)

    @cached_property
    def rows(self) -> Ints:
        """The rows of the plan's accesses that puts make: the reads of their sources, and the writes."""
        a = self.plan.accesses
        if not len(self.statements) or not self.statements.any():
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.statements[a.statement])

    def late(self, task: Ints, position: Ints) -> np.ndarray:
        """Mask of the events that are the reads and writes of puts."""
        if not len(self.rows):
            return np.zeros(len(task), bool)
        return np.isin((task << SHIFT) | position, self._keys)

    @cached_property
    def _keys(self) -> Ints:
        a = self.plan.accesses
        return (a.task[self.rows] << SHIFT) | a.position[self.rows]

    @cached_property
    def _put_at(self) -> Mapping[int, Put]:
        a, rows = self.plan.accesses, self.rows
        keys = self.plan.key(a.task[rows], a.position[rows]).tolist()
        workers = self.plan.worker[a.task[rows]].tolist()
        columns = (rows.tolist(), (a.kind[rows] == WRITE).tolist(), workers, keys, a.peer[rows].tolist())
        puts = [Put(row=r, writes=k, worker=w, key=p, peer=q) for r, k, w, p, q in zip(*columns, strict=True)]
        return dict(zip(self._keys.tolist(), puts, strict=True))

    def at(self, task: int, position: int) -> Put:
        """Return the put whose read or write is that event."""
        return self._put_at[(task << SHIFT) | position]

    def quiet_after(self, put: Put) -> int | None:
        """Return the key of the first quiet of the program after a put, None if there is none."""
        return _first_after(self._orders[QUIET].get(put.worker, []), put.key)

    def fence_after(self, put: Put) -> int | None:
        """Return the key of the first fence of the program after a put, None if there is none."""
        return _first_after(self._orders[FENCE].get(put.worker, []), put.key)

    @cached_property
    def _orders(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """For fences and for quiets: worker -> their keys, sorted."""
        n = self.plan.network
        result: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
        keys = self.plan.key(n.task, n.position)
        for row in np.argsort(keys, kind="stable").tolist():
            worker = int(self.plan.worker[n.task[row]])
            result[int(n.kind[row])].setdefault(worker, []).append(int(keys[row]))
        return result

    def carriers(self, put: Put) -> Iterator[int]:
        """Yield the rows of the plan's signals that follow the write of a put, to the rank where it writes."""
        a = self.plan.accesses
        if not put.writes:
            return
        own = self._own.get((int(a.task[put.row]), int(a.statement[put.row]), int(a.position[put.row])), [])
        yield from (row for row in own if self.plan.signals.peer[row] == put.peer)
        fence = self.fence_after(put)
        if fence is not None:
            keys, rows = self._signals.get((put.worker, put.peer), ([], []))
            yield from islice(rows, bisect_right(keys, fence), None)

    @cached_property
    def _own(self) -> dict[tuple[int, int, int], list[int]]:
        """(task, statement, position of its write) of a put -> the rows of its own signal."""
        s = self.plan.signals
        result: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        if not self.statements.any():
            return result
        for row in np.flatnonzero((s.kind == NOTIFY) & self.statements[s.statement]).tolist():
            key = (int(s.task[row]), int(s.statement[row]), int(s.position[row]) - SIGNAL_AFTER_WRITE)
            result[key].append(row)
        return result

    @cached_property
    def by_network(self) -> np.ndarray:
        """signal -> True if the network carries it."""
        s = self.plan.signals
        own = [isinstance(one, Notify) and one.by_network for _, one in self.plan.statements]
        carried = np.array(own, bool) | self.statements
        return carried[s.statement] & (s.kind == NOTIFY) if len(own) else np.zeros(len(s.task), bool)

    @cached_property
    def _signals(self) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
        """(worker, rank) -> keys and rows of the signals of the network to that rank, in the order of keys."""
        s = self.plan.signals
        rows = np.flatnonzero(self.by_network)
        keys = self.plan.key(s.task[rows], s.position[rows])
        result: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for at in np.argsort(keys, kind="stable").tolist():
            row = int(rows[at])
            key = (int(self.plan.worker[s.task[row]]), int(s.peer[row]))
            known = result.setdefault(key, ([], []))
            known[0].append(int(keys[at]))
            known[1].append(row)
        return result

    def in_line(self, first: Put, second: Put) -> bool:
        """True if the write of one put arrives before that of another one, which a fence orders after it."""
        fence = self.fence_after(first)
        same = (first.worker, first.peer) == (second.worker, second.peer)
        return same and first.writes and second.writes and fence is not None and fence < second.key


def _first_after(keys: list[int], key: int) -> int | None:
    at = bisect_right(keys, key)
    return keys[at] if at < len(keys) else None
