"""How far each program of a launch has come, at most and at least, by the counters that ranks have seen.

What a launch decides is not known: a wait that it may leave out, or that a copy engine resets, counts as one that has
not passed until the counters show that the program is beyond it. Where a launch decides which program has a tile, each
tile stands for itself, and those after as many waiting tiles as there are programs are not begun. Words of data and
flag have no counters: a read of them is taken for passed unless its program says that it waits there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilelink.dump import BEGIN, ProgramSeen, Seen, WaitSeen
from tilelink.lowering.bound import Kernel
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import NOTIFY, WAIT
from tilelink.planning.any_program import apart, assigns_in_launch
from tilelink.planning.plan import Plan

Bools = NDArray[np.bool_]
Node = tuple[str, int]
"""A part of a launch that waits: ("program", worker), ("begin", rank) before its kernels, ("end", rank) after them."""


class Progress:
    """How far each program has come, at most and at least, by the counters that ranks have seen."""

    def __init__(self, plan: Plan, seen: Mapping[int, Seen]) -> None:
        self.plan, self.seen = apart(plan), seen
        self.bound = plan.bound
        self.ranks = range(plan.bound.ranks)
        self.resets = any(one.resets for one in seen.values())
        self.pads: dict[int, Ints] = {}
        """rank -> its counters, by whoever saw them first: after its deadline a rank notifies what it has not done."""
        for one in sorted(seen.values(), key=lambda one: (one.spoiled, one.time)):
            for pad in one.pads:
                self.pads.setdefault(pad.rank, np.array(pad.counters, np.int64))
        self.launch = {rank: self._launch(rank) for rank in self.ranks}
        s = self.plan.signals
        self.rank = self.plan.task_ranks[s.task]
        """signal -> its rank."""
        self.worker = self.plan.worker[s.task]
        self.scripts = self.plan.scripts
        self.at = np.zeros(len(s.task), np.int64)
        """signal -> its place in the script of its worker."""
        for script in self.scripts:
            self.at[script] = np.arange(len(script))
        self.passed_over = np.zeros(len(s.task), bool)
        """Waits that a program is beyond, although they are not satisfied."""
        self.cursor = np.zeros(len(self.scripts), np.int64)
        """worker -> the signals that it has come through, at most."""
        self.lower = np.zeros(len(self.scripts), np.int64)
        """worker -> the signals that it has come through, at least."""
        self.blocked: dict[Node, str] = {}
        """Node -> why it waits: "signal", "launch", "kernel" (before it), "taken" (its program, by another tile)."""
        self.reported = dict(self._reported())
        self.beyond = {w: wait for w, (row, wait) in self.reported.items() if wait.expected > self.target(row)}
        """worker -> its wait, if that is for more notifies than the plan has."""
        self._walk()
        while self._relax():
            self._walk()
        self._blame()

    # What is known --------------------------------------------------------------------------------------------

    def _launch(self, rank: int) -> int:
        """Return the number of a rank's launch; of one without a dump as its peers see it."""
        if rank in self.seen:
            return self.seen[rank].launch
        entered = max((int(pad[self.bound.entered_base + rank]) for pad in self.pads.values()), default=0)
        return entered or max((one.launch for one in self.seen.values()), default=1)

    def counter(self, base: int, rank: int) -> int | None:
        """Return how often a rank has announced its entry or its end, as any pad has it; None if none can be read."""
        values = [int(pad[base + rank]) for pad in self.pads.values()]
        return max(values) if values else None

    @cached_property
    def _grids(self) -> tuple[Ints, Ints, Ints, Ints]:
        """channel -> first counter of its grid, counters and number of buffers of it, and its number in the grid."""
        columns = np.zeros((4, self.plan.channels), np.int64)
        for key, first in self.plan.channel_base.items():
            grid = self.bound.channels[key]
            columns[:3, first : first + grid.count] = np.array([[grid.base], [grid.count], [grid.buffers]])
            columns[3, first : first + grid.count] = np.arange(grid.count)
        return columns[0], columns[1], columns[2], columns[3]

    def place(self, channel: Ints, launch: Ints) -> Ints:
        """Return the places in a pad of the counters of channels in launches."""
        base, count, buffers, linear = (column[channel] for column in self._grids)
        return base + (launch - 1) % buffers * count + linear

    def rounds(self, channel: Ints, launch: Ints) -> Ints:
        """Return how many launches before these had the same counters."""
        return (launch - 1) // self._grids[2][channel]

    @cached_property
    def reset(self) -> Bools:
        """Mask of the counters that a copy engine resets when its wait has passed."""
        result = np.zeros(self.bound.ranks * self.plan.channels, bool)
        if self.resets:
            queued = np.array([kernel.on_copy_engine for kernel in self.bound.kernels], bool)
            s = self.plan.signals
            result[self.plan.counters[(s.kind == WAIT) & queued[self.plan.task_kernels[s.task]]]] = True
        return result

    @cached_property
    def soft(self) -> Bools:
        """Mask of the waits of which the counters do not say whether they have passed."""
        s = self.plan.signals
        return (s.kind == WAIT) & ((s.guard > 0) | (s.box > 0) | self.reset[self.plan.counters])

    def target(self, row: int) -> int:
        """Return the count that a wait is for."""
        s = self.plan.signals
        launch, channel = self.launch[int(self.rank[row])], int(s.channel[row])
        rounds = 0 if self.reset[self.plan.counters[row]] else int(self.rounds(s.channel[[row]], np.array(launch))[0])
        return int(self.plan.flat_thresholds[int(s.peer[row]), channel]) * (rounds + 1)

    @cached_property
    def lacking(self) -> dict[int, list[tuple[int, int, int]]]:
        """wait -> (counter, notifies that it has, notifies that it needs), of one launch, of those that lack some."""
        s, plan = self.plan.signals, self.plan
        rows, channels = plan.each_channel(np.flatnonzero((s.kind == WAIT) & ~plan.by_words))
        rank = s.peer[rows]
        launch = np.array([self.launch[r] for r in self.ranks], np.int64)[self.rank[rows]]
        places, counters = self.place(channels, launch), rank * plan.channels + channels
        need = plan.flat_thresholds[rank, channels]
        have = need.copy()
        for one, pad in self.pads.items():
            own = np.flatnonzero(rank == one)
            have[own] = pad[places[own]]
        before = np.where(self.reset[counters], 0, self.rounds(channels, launch) * need)
        known = np.isin(rank, list(self.pads))
        result: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for k in np.flatnonzero(known & (have - before < need)).tolist():
            result[int(rows[k])].append((int(counters[k]), int(have[k] - before[k]), int(need[k])))
        return dict(result)

    def _reported(self) -> Iterator[tuple[int, tuple[int, WaitSeen]]]:
        """Yield worker -> the wait at which it said to be: a row of the signals, and what it saw."""
        s = self.plan.signals
        waits = np.flatnonzero(s.kind == WAIT)
        names = list(self.bound.stages)
        for rank, one in self.seen.items():
            programs = [p.wait for p in one.programs if p.launch == one.launch] if one.programs else [one.late]
            for wait in (wait for wait in programs if wait is not None):
                if not 0 <= wait.stage < len(names) or wait.channel >= self.bound.entered_base:
                    continue
                stage = self.bound.stages[names[wait.stage]]
                task = self.plan.first_task[stage.name] + rank * stage.total + wait.tile
                rows, channels = self.plan.each_channel(waits[s.task[waits] == task])
                same = rows[self.place(channels, np.array(one.launch)) == wait.channel].tolist()
                if same:
                    row = min(same, key=lambda row: self.at[row])
                    yield int(self.worker[row]), (row, wait)

    @cached_property
    def _programs(self) -> dict[int, dict[tuple[str, int], ProgramSeen]]:
        return {r: {(p.stream, p.program): p for p in one.programs} for r, one in self.seen.items()}

    def ended(self, worker: int) -> bool:
        """True if a program is known to have ended its part of its kernel."""
        number, rank, _ = self.plan.workers[worker]
        kernel, launch = self.bound.kernels[number], self.launch[rank]
        if (self.counter(self.bound.finished_base, rank) or 0) >= launch:
            return True
        programs = self._programs.get(rank, {})
        own = [p for p in programs.values() if p.stream == kernel.stream]
        if not assigns_in_launch(kernel):
            own = [p for p in own if p.program == self.plan.workers[worker][2]]
        return bool(own) and all(
            p.launch > launch or p.step > kernel.position or p.step < BEGIN or (p.step == kernel.position and p.ended)
            for p in own
        )

    def busy(self, rank: int) -> list[Kernel]:
        """Return the kernels of a rank of which a program is known to compute, or to be dead."""
        own = [p for p in self._programs.get(rank, {}).values() if p.launch == self.launch[rank]]
        at = {(p.stream, p.step) for p in own if not p.wait and not p.ended}
        return [kernel for kernel in self.bound.kernels if (kernel.stream, kernel.position) in at]

    # How far programs have come -------------------------------------------------------------------------------

    def _walk(self) -> None:
        """Let each program come to its first wait that is not satisfied."""
        s = self.plan.signals
        closed = np.zeros(len(s.task), bool)
        closed[list(self.lacking)] = True
        closed &= ~self.passed_over
        self.blocked = {("begin", rank): "launch" for rank in self.ranks if self._before(rank)}
        order = sorted(range(len(self.scripts)), key=lambda w: self.bound.kernels[self.plan.workers[w][0]].position)
        held: dict[tuple[str, int], int] = {}
        """(stream, rank) -> position of the first of its kernels that has not ended."""
        for rank in self.ranks:
            for kernel in self.busy(rank):
                held[kernel.stream, rank] = min(held.get((kernel.stream, rank), kernel.position), kernel.position)
        taken: Counter[tuple[int, int]] = Counter()
        for worker in order:
            number, rank, _ = self.plan.workers[worker]
            kernel, script, node = self.bound.kernels[number], self.scripts[worker], ("program", worker)
            first = np.flatnonzero(closed[script])
            self.cursor[worker] = first[0] if len(first) else len(script)
            in_launch = assigns_in_launch(kernel)
            stuck = 1 if any(loop.compact for loop in kernel.loops) else kernel.programs
            if self.ended(worker):
                self.cursor[worker] = len(script)
                continue
            if worker in self.reported:
                self.cursor[worker] = self.at[self.reported[worker][0]]
                self.blocked[node] = "signal"
            elif held.get((kernel.stream, rank), kernel.position) < kernel.position or ("begin", rank) in self.blocked:
                self.cursor[worker], self.blocked[node] = 0, "kernel"
            elif self._entry(worker):
                self.cursor[worker], self.blocked[node] = 0, "launch"
            elif in_launch and taken[number, rank] >= stuck:
                self.cursor[worker], self.blocked[node] = 0, "taken"
                continue
            elif self.cursor[worker] < len(script):
                self.blocked[node] = "signal"
            else:
                continue
            taken[number, rank] += 1
            held.setdefault((kernel.stream, rank), kernel.position)
        busy = {self.plan.workers[number][1] if kind == "program" else number for kind, number in self.blocked}
        self.blocked |= {("end", rank): "signal" for rank in self.ranks if rank not in busy and self.exits(rank)}

    def _before(self, rank: int) -> list[tuple[int, int]]:
        """Return the (peer, launch) that a rank waits for before its kernels, if it has not come to them."""
        programs = self._programs.get(rank, {}).values()
        if not programs or any(p.step != BEGIN or p.launch != self.launch[rank] for p in programs):
            return []
        staged = [t.buffers for t in self.bound.tensors.values() if t.decl.symmetric and t.decl.space == "in"]
        return self._unfinished(rank, self.launch[rank] - min(staged)) if staged else []

    def _entry(self, worker: int) -> list[tuple[int, int]]:
        """Return the (peer, launch) that a kernel waits for before its first tile."""
        number, rank, _ = self.plan.workers[worker]
        kernel, launch = self.bound.kernels[number], self.launch[rank]
        found = self._unfinished(rank, launch - kernel.reuse_lag) if kernel.reuse_lag else []
        if kernel.needs_entry and rank in self.pads:
            entered = self.pads[rank][self.bound.entered_base :]
            found += [(peer, launch) for peer in self.ranks if peer != rank and entered[peer] < launch]
        return found

    def _unfinished(self, rank: int, launch: int) -> list[tuple[int, int]]:
        if rank not in self.pads or launch < 1:
            return []
        finished = self.pads[rank][self.bound.finished_base :]
        return [(peer, launch) for peer in self.ranks if peer != rank and finished[peer] < launch]

    def awaited(self, node: Node) -> list[tuple[int, int]]:
        """Return the (peer, launch) whose entry or end something waits for."""
        return self._entry(node[1]) if node[0] == "program" else self._before(node[1])

    def exits(self, rank: int) -> list[tuple[int, int, int]]:
        """Return (counter, notifies that it has, notifies that it needs) of outputs that peers have not written."""
        plan, found = self.plan, list[tuple[int, int, int]]()
        if rank not in self.pads or (self.counter(self.bound.finished_base, rank) or 0) >= self.launch[rank]:
            return found
        launch = np.array(self.launch[rank])
        for (tensor, kind), grid in self.bound.channels.items():
            decl = self.bound.tensors[tensor].decl
            if not decl.symmetric or decl.space != "out":
                continue
            first = plan.channel_base[tensor, kind]
            channels = np.arange(first, first + grid.count)
            need = plan.flat_thresholds[rank, channels]
            have = self.pads[rank][self.place(channels, launch)] - self.rounds(channels, launch) * need
            found += [
                (rank * plan.channels + int(channels[k]), int(have[k]), int(need[k]))
                for k in np.flatnonzero((have < need) & ~self.reset[rank * plan.channels + channels]).tolist()
            ]
        return found

    @cached_property
    def notifies(self) -> Ints:
        """The notifies that counters count."""
        return np.flatnonzero((self.plan.signals.kind == NOTIFY) & ~self.plan.by_words)

    @cached_property
    def _notified_at(self) -> Ints:
        """signal -> the place of its counter in the pad of its peer."""
        launch = np.array([self.launch[r] for r in self.ranks], np.int64)
        return self.place(self.plan.signals.channel, launch[self.rank])

    def passed(self, rows: Ints) -> Bools:
        """Mask of the signals that are presumed to have happened."""
        return self.at[rows] < self.cursor[self.worker[rows]]

    def _short(self) -> dict[int, Ints]:
        """Return rank -> for each counter of its pad, how many more notifies are presumed than there are."""
        s, rows = self.plan.signals, self.notifies
        launch = np.array([self.launch[r] for r in self.ranks], np.int64)[self.rank[rows]]
        base, count, buffers, linear = (column[s.channel[rows]] for column in self._grids)
        presumed = {rank: np.zeros(self.bound.pad_size, np.int64) for rank in self.pads}
        now, fresh = self.passed(rows), self.reset[self.plan.counters[rows]]
        for buffer in range(int(buffers.max(initial=1))):
            before = np.where(buffer < buffers, (launch - 1 - buffer + buffers - 1) // buffers, 0)
            times = np.where(fresh, 0, before) + (now & ((launch - 1) % buffers == buffer))
            for rank, pad in presumed.items():
                own = (s.peer[rows] == rank) & (buffer < buffers)
                np.add.at(pad, (base + buffer * count + linear)[own], times[own])
        result = {rank: presumed[rank] - self.pads[rank] for rank in self.pads}
        waits = np.flatnonzero(self.reset[self.plan.counters] & (s.kind == WAIT))
        for row in waits[self.passed(waits)].tolist():  # it is 0 again
            result.get(int(s.peer[row]), np.zeros(self.bound.pad_size))[self._notified_at[row]] = 0
        for pad in result.values():
            pad[self.bound.entered_base :] = 0
        return result

    def _relax(self) -> bool:
        """Pass over a wait that may be left out, if a notify after it has come. Return whether there was one."""
        short = self._short()
        s, rows = self.plan.signals, self.notifies
        known = rows[np.isin(s.peer[rows], list(self.pads)) & ~self.passed(rows)]
        more = [row for row in known.tolist() if short[int(s.peer[row])][self._notified_at[row]] < 0]
        for row in sorted(more, key=lambda row: int(self.at[row])):
            worker = int(self.worker[row])
            stop = int(self.scripts[worker][self.cursor[worker]])
            if self.blocked.get(("program", worker)) == "signal" and self.soft[stop] and worker not in self.reported:
                self.passed_over[stop] = True
                return True
        return False

    # Who is late ----------------------------------------------------------------------------------------------

    def _blame(self) -> None:
        """Find the presumed notifies that are missing, of late programs (`late`) and of others (`lost`)."""
        s, rows = self.plan.signals, self.notifies
        rows = rows[self.passed(rows) & np.isin(s.peer[rows], list(self.pads))]
        self.short = self._short()
        lack = np.array([self.short[int(s.peer[r])][self._notified_at[r]] for r in rows.tolist()], np.int64)
        silent = np.isin(self.rank[rows], [r for r in self.ranks if r not in self.seen])
        there = rows[lack <= 0]
        np.maximum.at(self.lower, self.worker[there], self.at[there] + 1)
        for worker in range(len(self.scripts)):
            if worker in self.reported:
                self.lower[worker] = self.at[self.reported[worker][0]]
            elif self.ended(worker):
                self.lower[worker] = len(self.scripts[worker])
        self.begun = self._begun()
        """(stream, rank) -> position of the last of its kernels that has notified: those before it have ended."""
        open_rows = rows[(lack > 0) & ((self.at[rows] >= self.lower[self.worker[rows]]) | silent)]
        counters = defaultdict[tuple[int, int], list[int]](list)
        for row in open_rows.tolist():
            counters[int(s.peer[row]), int(self._notified_at[row])].append(row)
        self.late = counters
        """(rank, place in its pad) -> notifies that are missing there, or some of which are."""
        self.lost: dict[tuple[int, int], list[int]] = {}
        """(rank, place in its pad) -> notifies of which one has not come, although its program is beyond it."""
        for row in rows[lack > 0].tolist():
            key = int(s.peer[row]), int(self._notified_at[row])
            if self.short[key[0]][key[1]] > len(counters.get(key, ())):
                self.lost.setdefault(key, []).append(row)

    def _begun(self) -> dict[tuple[str, int], int]:
        last = dict[tuple[str, int], int]()
        for worker in np.flatnonzero(self.lower > 0).tolist():
            number, rank, _ = self.plan.workers[worker]
            kernel = self.bound.kernels[number]
            last[kernel.stream, rank] = max(last.get((kernel.stream, rank), 0), kernel.position)
        return last
