"""Thread synchronisation between two accesses of a program: its order of tiles and statements does not order threads.

Threads synchronise at barriers and at waits, also those for the network, as far as a launch executes them: a barrier in
a branch or an iteration that a launch may leave out is executed with what is in that branch or iteration. A read of
words ends with a barrier, but what its statement reads besides comes before it: such a barrier does not count. A
statement that loads and stores an element does both in one thread, unless it mixes elements. A statement that stores an
element twice stores it twice in one thread.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.visitor import mixes, value_of
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import QUIET, WAIT, WRITE
from tilelink.planning.network import Puts
from tilelink.planning.plan import SHIFT, Plan

Bools = NDArray[np.bool_]


class Threads:
    """The programs of a plan as threads."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._puts = plan, Puts(plan=plan)

    def apart(self, first: Ints, second: Ints) -> Bools:
        """Mask of the pairs of accesses that one program makes without its threads synchronising in between."""
        a, worker = self._plan.accesses, self._plan.worker
        if not self._plan.bound.many_threads:
            return np.zeros(len(first), bool)
        found = (worker[a.task[first]] == worker[a.task[second]]) & self._many[worker[a.task[first]]]
        rows = np.flatnonzero(found)
        if len(rows):
            found[rows] = self._met_before(first[rows]) == self._met_before(second[rows])
        rows = np.flatnonzero(found)
        if len(rows):
            found[rows] = ~self._met_in_part(first[rows], second[rows])
        for one in (first, second):  # what a put writes, no thread writes: a message does
            found &= ~(self._puts.late(a.task[one], a.position[one]) & (a.kind[one] == WRITE))
        found &= ~self._in_words[a.tensor[first]]  # a word orders its store and its loads itself, of any thread
        rows = np.flatnonzero(found)
        return found & ~self._one_thread(first, second, rows)

    def _one_thread(self, first: Ints, second: Ints, rows: Ints) -> Bools:
        """Mask of the pairs that one execution of a statement makes in one thread; False outside of `rows`."""
        a = self._plan.accesses
        result = np.zeros(len(first), bool)
        same = (a.task[first[rows]] == a.task[second[rows]]) & (a.statement[first[rows]] == a.statement[second[rows]])
        same &= np.abs(a.position[first[rows]] - a.position[second[rows]]) <= 1
        stores = a.kind[first[rows]] == a.kind[second[rows]]
        result[rows] = same & (stores | ~self._mixing[a.statement[first[rows]]])
        return result

    @cached_property
    def _many(self) -> Bools:
        """worker -> True if it is a program of several threads, not a queue of a copy engine."""
        kernels = self._plan.bound.kernels
        return np.array([not kernels[number].on_copy_engine for number, _, _ in self._plan.workers], bool)

    @cached_property
    def _in_words(self) -> Bools:
        """tensor -> True if it travels by words of data and flag."""
        return np.array([tensor.packed > 0 for tensor in self._plan.bound.tensors.values()], bool)

    @cached_property
    def _mixing(self) -> Bools:
        """statement -> True if an element of its value may depend on elements at other positions."""
        stored = [value_of(statement) for _, statement in self._plan.statements]
        return np.array([value is not None and mixes(value) for value in stored], bool)

    def _met_before(self, rows: Ints) -> Ints:
        """Return the number of synchronisations before accesses, counted worker by worker in the order of their tasks.

        Two accesses of one worker have the same number if its threads do not synchronise in between.
        """
        return np.searchsorted(self._meetings, self._places(rows), side="right")

    def _places(self, rows: Ints) -> Ints:
        """Return where accesses are in the order of all tasks, worker by worker."""
        a = self._plan.accesses
        return (self._number[a.task[rows]] << SHIFT) | a.position[rows]

    def _met_in_part(self, first: Ints, second: Ints) -> Bools:
        """Mask of the pairs between which a barrier is that a launch may leave out, but not without one of the two."""
        keys, begin, end = self._left_out
        low, high = np.sort(np.stack([self._places(first), self._places(second)]), axis=0)
        start, stop = (np.searchsorted(keys, one, side="right") for one in (low, high))
        met = np.zeros(len(first), bool)
        for row in np.flatnonzero(start < stop).tolist():
            some = slice(start[row], stop[row])
            for place in (low[row], high[row]):
                met[row] |= bool(((begin[some] <= place) & (place < end[some])).any())
        return met

    @cached_property
    def _left_out(self) -> tuple[Ints, Ints, Ints]:
        """The barriers that a launch may leave out, in order, and with each of them where that part begins and ends."""
        barriers = self._plan.barriers
        rows = np.flatnonzero(barriers.begin >= 0)
        task, columns = self._number[barriers.task[rows]] << SHIFT, (barriers.position, barriers.begin, barriers.end)
        keys, begin, end = (task | column[rows] for column in columns)
        order = np.argsort(keys)
        return keys[order], begin[order], end[order]

    @cached_property
    def _number(self) -> Ints:
        """task -> its number among all tasks, worker by worker."""
        plan = self._plan
        number = np.empty(plan.tasks, np.int64)
        number[np.lexsort((plan.sequence, plan.worker))] = np.arange(plan.tasks)
        return number

    @cached_property
    def _meetings(self) -> Ints:
        """The synchronisations of all programs, in order."""
        plan, s = self._plan, self._plan.signals
        waits = np.flatnonzero((s.kind == WAIT) & (s.guard == 0) & ~plan.by_words)
        quiets = np.flatnonzero(plan.network.kind == QUIET)
        sure = np.flatnonzero(plan.barriers.begin < 0)
        task = np.concatenate([s.task[waits], plan.barriers.task[sure], plan.network.task[quiets]])
        position = np.concatenate([s.position[waits], plan.barriers.position[sure], plan.network.position[quiets]])
        return np.sort((self._number[task] << SHIFT) | position)
