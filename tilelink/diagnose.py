"""Post-mortem of a launch that hangs: what the ranks have seen, joined with the plan in a graph of waits with a root.

Notifies only ever add, and the order of a program is that of the plan. So each program has come, at most, to its first
wait that the counters do not satisfy: all notifies before it are *presumed*. A counter that has fewer notifies than are
presumed is short of those of a program that is *late*: it waits for nothing, so it computes, is dead, or is slow. A
program some later notify of which has come has sent the earlier ones, so one that is missing then is *lost*. What a
wait lacks otherwise is of programs that wait themselves, and so on to a root: a late program, a lost notify, a rank
that has not begun the launch, has died or has written no dump, a wait for more than there is, or a circle of waits.

What a launch decides is not known: a wait that it may leave out, or that a copy engine resets, counts as one that has
not passed until the counters show that the program is beyond it. Where a launch decides which program has a tile, each
tile stands for itself, and those after as many waiting tiles as there are programs are not begun. Words of data and
flag have no counters: a read of them is taken for passed unless its program says that it waits there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.dump import BEGIN, END, Dump, ProgramSeen, Seen, WaitSeen
from tilelink.lowering.bound import Kernel
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import NOTIFY, WAIT
from tilelink.planning.any_program import apart, assigns_in_launch
from tilelink.planning.plan import Plan

Bools = NDArray[np.bool_]
Node = tuple[str, int]
"""What waits: ("program", worker), ("begin", rank) before its kernels, ("end", rank) after them."""
LONGEST = 12
"""Waits of a chain that are said, at most."""
CERTAIN = ("died", "promise")
"""Kinds of roots that ranks know of by themselves; what else is late may be so because of them."""
SAID = 3
"""Places of a kind that are said, at most."""


@dataclass(frozen=True, kw_only=True)
class Root:
    """What holds a launch up.

    kind: "differs" (other programs), "promise", "died", "silent" (no dump), "not begun", "late", "lost" (a notify),
    "beyond" (a wait for more than there is), "circle".
    rank, kernel, program: where; None if it is more than one. others: ranks, if the counters do not tell which it is.
    before: kernels before it on its stream that may hold it up as well, for nothing shows that they have ended.
    explains: number of waits that come from it.
    """

    kind: str
    rank: int | None
    text: str
    kernel: str | None = None
    program: int | None = None
    others: tuple[int, ...] = ()
    before: tuple[str, ...] = ()
    explains: int = 0


@dataclass(frozen=True, kw_only=True)
class Report:
    """The diagnosis: roots, the likeliest first, the chain of waits that leads to it, and a line for each rank."""

    roots: tuple[Root, ...]
    chain: tuple[str, ...]
    ranks: tuple[str, ...]

    @property
    def root(self) -> Root | None:
        return self.roots[0] if self.roots else None

    def __str__(self) -> str:
        first = [self.root.text if self.root else "nothing is missing: every wait has what it waits for"]
        certain = self.root is not None and self.root.kind in CERTAIN
        further = [f"also: {root.text}" for root in self.roots[1:SAID] if root.explains and not certain]
        return "\n".join([*first, *further, *(f"  {line}" for line in self.chain), *self.ranks])

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "roots": [{name: getattr(root, name) for name in root.__dataclass_fields__} for root in self.roots],
            "chain": list(self.chain),
            "ranks": list(self.ranks),
        }


def of_dumps(dumps: Sequence[Dump], plan: Plan) -> Report:
    """Return the diagnosis of a hang from the dumps of its ranks. plan: of the program that most of them run."""
    usual = Counter(dump.fingerprint for dump in dumps).most_common()
    if len(usual) > 1:
        odd = [dump for dump in dumps if dump.fingerprint != usual[0][0]]
        tie = usual[0][1] == usual[1][1]
        runs = "runs" if len(odd) == 1 else "run"
        text = f"{_ranks([d.seen.rank for d in odd])} {runs} another program than the others: {odd[0].program} "
        text += f"{odd[0].fingerprint}, not {dumps[0].program if tie else _named(dumps, usual[0][0])} {usual[0][0]}"
        root = Root(kind="differs", rank=odd[0].seen.rank if len(odd) == 1 else None, text=text,
                    others=tuple(d.seen.rank for d in odd), explains=len(dumps))  # fmt: skip
        lines = [f"rank {d.seen.rank}: {d.program} {d.fingerprint}, launch {d.seen.launch}" for d in dumps]
        return Report(roots=(root,), chain=(), ranks=tuple(lines))
    return diagnose(plan, [dump.seen for dump in dumps])


def _named(dumps: Sequence[Dump], fingerprint: str) -> str:
    return next(dump.program for dump in dumps if dump.fingerprint == fingerprint)


def diagnose(plan: Plan, seen: Iterable[Seen], *, whole: bool = True) -> Report:
    """Return the diagnosis of a hang from what some of its ranks have seen, all of one plan.

    whole: False if other ranks may have seen more, so that none of them is taken for dead.
    """
    graph = _Graph(_Execution(plan, {one.rank: one for one in seen}), whole=whole)
    return graph.report()


class _Execution:
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
        """What waits, and why: "signal", "launch", "kernel" (before it), "taken" (its program, by another tile)."""
        self.reported = dict(self._reported())
        self.beyond = {w: wait for w, (row, wait) in self.reported.items() if wait.expected > self._target(row)}
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

    def _target(self, row: int) -> int:
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
    def _notifies(self) -> Ints:
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
        s, rows = self.plan.signals, self._notifies
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
        s, rows = self.plan.signals, self._notifies
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
        s, rows = self.plan.signals, self._notifies
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


@dataclass(kw_only=True)
class _Cause:
    """A root in the making: its kind and rank, the programs and the missing notifies that it has."""

    kind: str
    rank: int
    rows: set[int] = field(default_factory=set[int])
    counter: tuple[int, int] | None = None
    launch: int = 0
    worker: int = -1


class _Graph:
    """What waits, for what that is, and what is at the end."""

    def __init__(self, run: _Execution, *, whole: bool) -> None:
        self.run, self.plan, self.whole = run, run.plan, whole
        self.causes: dict[tuple[Any, ...], _Cause] = {}
        self.edges: dict[Node, tuple[list[Node], list[tuple[Any, ...]]]] = {}
        self.by_counter: dict[int, list[int]] = defaultdict(list)
        for row in run._notifies.tolist():  # pyright: ignore[reportPrivateUsage]
            self.by_counter[int(self.plan.counters[row])].append(row)
        for node in run.blocked:
            self.edges[node] = self._edges(node)

    def _edges(self, node: Node) -> tuple[list[Node], list[tuple[Any, ...]]]:
        """Return what a node waits for: other nodes, and causes."""
        run, plan, why = self.run, self.plan, self.run.blocked[node]
        nodes, causes = dict[Node, None](), dict[tuple[Any, ...], None]()
        if node[0] == "program":
            number, rank, _ = plan.workers[node[1]]
            kernel = run.bound.kernels[number]
            if node[1] in run.beyond:
                return [], [self._cause(("beyond", node[1]), kind="beyond", rank=rank, worker=node[1])]
            if why in ("kernel", "taken"):
                for other in run.blocked:
                    if other == ("begin", rank):
                        nodes[other] = None
                    elif other[0] == "program" and other != node:
                        n, r, _ = plan.workers[other[1]]
                        one = run.bound.kernels[n]
                        before = one.stream == kernel.stream and one.position < kernel.position
                        if r == rank and (n == number and run.blocked[other] != why if why == "taken" else before):
                            nodes[other] = None
                for one in run.busy(rank):
                    if one.stream == kernel.stream and one.position < kernel.position:
                        causes[self._late_rank(rank)] = None
        if why == "launch":
            for peer, launch in run.awaited(node):
                self._launch(peer, launch, nodes, causes)
        if why == "signal":
            for counter, launch in self.counters(node):
                self._signal(counter, launch, nodes, causes)
        return list(nodes), list(causes)

    def counters(self, node: Node) -> list[tuple[int, int]]:
        """Return the (counter, launch) that a node waits for and that lack notifies; of words, all."""
        run = self.run
        if node[0] == "end":
            return [(counter, run.launch[node[1]]) for counter, _, _ in run.exits(node[1])]
        row = int(run.scripts[node[1]][run.cursor[node[1]]])
        launch = run.launch[int(run.rank[row])]
        if row in run.lacking:
            return [(counter, launch) for counter, _, _ in run.lacking[row]]
        return [(int(self.plan.counters[row]), launch)]

    def _launch(self, peer: int, launch: int, nodes: dict[Node, None], causes: dict[tuple[Any, ...], None]) -> None:
        """Add what keeps a rank from entering or ending a launch."""
        run = self.run
        own = [n for n in run.blocked if (self.plan.workers[n[1]][1] if n[0] == "program" else n[1]) == peer]
        nodes |= dict.fromkeys(own)
        late = [row for rows in run.late.values() for row in rows if int(run.rank[row]) == peer]
        if late:
            for row in late:
                causes[self._late(row)] = None
        elif not own:
            open_end = any(one.ends for one in run.seen.values()) and not self._has_ended(peer)
            kind = "late" if open_end or run.launch[peer] >= launch else "not begun"
            key = self._late_rank(peer) if kind == "late" else self._cause(
                (kind, peer), kind=self._kind(kind, peer), rank=peer, launch=launch)  # fmt: skip
            causes[key] = None

    def _has_ended(self, rank: int) -> bool:
        programs = self.run.seen[rank].programs if rank in self.run.seen else ()
        if programs and all(p.launch > self.run.launch[rank] or p.step == END for p in programs):
            return True
        return (self.run.counter(self.run.bound.finished_base, rank) or 0) >= self.run.launch[rank]

    def _signal(self, counter: int, launch: int, nodes: dict[Node, None], causes: dict[tuple[Any, ...], None]) -> None:
        """Add what keeps the notifies of a counter from coming."""
        run = self.run
        peer, channel = divmod(counter, self.plan.channels)
        key = peer, int(run.place(np.array([channel]), np.array(launch))[0])
        words = not len(self.by_counter[counter])
        rows = self._words(counter) if words else self.by_counter[counter]
        for row in rows:
            rank, worker = int(run.rank[row]), int(run.worker[row])
            if run.launch[rank] < launch:
                self._launch(rank, launch, nodes, causes)
            elif (
                run.launch[rank] == launch and ("program", worker) in run.blocked and run.at[row] >= run.cursor[worker]
            ):
                nodes["program", worker] = None
            elif words and run.launch[rank] == launch and run.at[row] >= run.lower[worker]:
                causes[self._late(row)] = None
        for row in run.late.get(key, ()):
            causes[self._late(row)] = None
        gone = [row for row in rows if run.launch[int(run.rank[row])] > launch]
        lost = [*run.lost.get(key, ()), *gone]
        more = peer in run.short and run.short[peer][key[1]] > len(run.late.get(key, ()))
        if lost and (more or (gone and run.reset[counter])):  # what was reset says nothing of earlier launches
            first = self._cause(("lost", *key), kind="lost", rank=int(run.rank[lost[0]]), counter=key)
            self.causes[first].rows.update(lost)
            causes[first] = None

    def _words(self, counter: int) -> list[int]:
        s = self.plan.signals
        return np.flatnonzero((s.kind == NOTIFY) & (self.plan.counters == counter)).tolist()

    def _late(self, row: int) -> tuple[Any, ...]:
        key = self._late_rank(int(self.run.rank[row]))
        self.causes[key].rows.add(row)
        return key

    def _late_rank(self, rank: int) -> tuple[Any, ...]:
        return self._cause(("late", rank), kind=self._kind("late", rank), rank=rank)

    def _kind(self, kind: str, rank: int) -> str:
        """Return the kind of a cause, if more is known of its rank: "silent", "died" or "promise"."""
        if rank not in self.run.seen:
            return "silent" if self.whole else kind
        seen = self.run.seen[rank]
        if any(program.died for program in seen.programs):
            return "died"
        return "promise" if seen.broken else kind

    def _cause(self, key: tuple[Any, ...], **fields: Any) -> tuple[Any, ...]:
        self.causes.setdefault(key, _Cause(**fields))
        return key

    # What comes of it -----------------------------------------------------------------------------------------

    def report(self) -> Report:
        """Return the diagnosis."""
        waiting = self._waiting()
        for rank, seen in self.run.seen.items():
            certain = seen.broken or any(program.died for program in seen.programs)
            if certain and all(cause.rank != rank for cause in self.causes.values()):
                self._cause(("known", rank), kind=self._kind("late", rank), rank=rank)
        if not self.causes and not self.edges:
            self._nobody_waits()
        strength = {"beyond": 2, "silent": 2, "not begun": 1, "late": 1, "lost": 0}
        found = sorted(
            self.causes, key=lambda key: (self.causes[key].kind not in CERTAIN, -len(waiting.get(key, ())),
                                          -strength.get(self.causes[key].kind, 0), self.causes[key].rank)
        )  # fmt: skip
        roots = [self._root(self.causes[key], len(waiting.get(key, ()))) for key in found]
        chain = self._chain(found[0], waiting.get(found[0], set())) if found else []
        if not roots and self.edges:
            circle = self._circle()
            text = f"{self._who(circle[0])} waits in a circle, in which no program can go on: the program is not proved"
            rank = self._rank(circle[0])
            roots, chain = (
                [Root(kind="circle", rank=rank, text=text, explains=len(self.edges))],
                list(map(self._says, circle)),
            )
        return Report(roots=tuple(roots), chain=tuple(chain), ranks=tuple(map(self._line, self.run.ranks)))

    def _is_silent(self, rank: int) -> bool:
        return self.whole and rank not in self.run.seen

    def _nobody_waits(self) -> None:
        """Find the ranks that a host waits for, if no program waits: without a dump, behind, or not at their end."""
        run, last = self.run, max(self.run.launch.values())
        behind = [rank for rank in run.ranks if run.launch[rank] < last or self._is_silent(rank)]
        ends = any(one.ends for one in run.seen.values())
        for rank in behind or run.ranks:
            if self._is_silent(rank) or (not self._has_ended(rank) and (ends or run.busy(rank))):
                self._late_rank(rank)
            elif run.launch[rank] < last:
                self._cause(("not begun", rank), kind=self._kind("not begun", rank), rank=rank, launch=last)

    def _waiting(self) -> dict[tuple[Any, ...], set[Node]]:
        """Return cause -> the nodes that wait because of it."""
        back = defaultdict[Node, list[Node]](list)
        for node, (others, _) in self.edges.items():
            for other in others:
                back[other].append(node)
        result: dict[tuple[Any, ...], set[Node]] = {}
        for key in self.causes:
            stack = [node for node, (_, causes) in self.edges.items() if key in causes]
            seen = set(stack)
            while stack:
                for node in back[stack.pop()]:
                    if node not in seen:
                        seen.add(node)
                        stack.append(node)
            result[key] = seen
        return result

    def _chain(self, key: tuple[Any, ...], waiting: set[Node]) -> list[str]:
        """Return waits, each for what the next one holds up, the last one for the root."""
        reached = {node: None for node in waiting if key in self.edges[node][1]}
        after: dict[Node, Node | None] = dict(reached)
        stack = list(reached)
        for node in stack:  # breadth first: the shortest chains
            for other, (targets, _) in self.edges.items():
                if node in targets and other not in after:
                    after[other] = node
                    stack.append(other)
        victims = {("program", worker) for worker, (_, wait) in self.run.reported.items()
                   if any(one.late == wait for one in self.run.seen.values())}  # fmt: skip
        begin = next((node for node in after if node in victims), stack[-1] if stack else None)
        lines: list[str] = []
        while begin is not None:
            if self.run.blocked[begin] in ("signal", "launch") or not lines:
                lines.append(self._says(begin))
            begin = after[begin]
        return lines if len(lines) <= LONGEST else [*lines[:4], f"... {len(lines) - 8} more ...", *lines[-4:]]

    def _circle(self) -> list[Node]:
        node, seen = next(iter(self.edges)), list[Node]()
        while node not in seen:
            seen.append(node)
            if not self.edges[node][0]:
                return seen
            node = self.edges[node][0][0]
        return seen[seen.index(node) :]

    # Words ----------------------------------------------------------------------------------------------------

    def _rank(self, node: Node) -> int:
        return self.plan.workers[node[1]][1] if node[0] == "program" else node[1]

    def tile(self, task: int) -> str:
        """Return a tile in words."""
        name, _, _ = self.plan.task_name(task)
        indices = ", ".join(f"{index}={value}" for index, value in self.plan.tile_indices(task).items())
        return f"tile ({indices}) of `{name}`"

    def region(self, counter: int) -> str:
        """Return the part of a tensor that a counter is for, as `xs[1, 1024:2048] of rank 3`."""
        rank, channel = divmod(counter, self.plan.channels)
        tensor, kind, cell = self.plan.channel_name(channel)
        grid, shape = self.run.bound.channels[tensor, kind], self.run.bound.tensors[tensor].shape
        parts = [
            str(at) if size == 1 else f"{at * size}:{min((at + 1) * size, extent)}"
            for at, size, extent in zip(cell, grid.sizes, shape, strict=True)
        ]
        return f"{tensor}[{', '.join(parts)}] of rank {rank}"

    def _who(self, node: Node) -> str:
        rank = self._rank(node)
        if node[0] != "program":
            return f"rank {rank}, at the {node[0]} of launch {self.run.launch[rank]},"
        script = self.run.scripts[node[1]]
        cursor = int(self.run.cursor[node[1]])
        if cursor >= len(script) or self.run.blocked[node] != "signal":
            return f"rank {rank}, program {self.plan.workers[node[1]][2]} of {self._kernel(node[1])},"
        return f"rank {rank}, {self.tile(int(self.plan.signals.task[script[cursor]]))}"

    def _kernel(self, worker: int) -> str:
        kernel = self.run.bound.kernels[self.plan.workers[worker][0]]
        return f"its copy queue (`{kernel.name}`)" if kernel.on_copy_engine else f"`{kernel.name}`"

    def _says(self, node: Node) -> str:
        """Return what a node waits for, as a sentence."""
        why, who = self.run.blocked[node], self._who(node)
        if why == "launch":
            peer, launch = self.run.awaited(node)[0]
            return f"{who} waits for rank {peer} to come to launch {launch}"
        if why != "signal":
            return f"{who} has not begun"
        if node[1] in self.run.beyond and node[0] == "program":
            wait = self.run.beyond[node[1]]
            return f"{who} waits for {wait.expected} notifies, of {self.run._target(self.run.reported[node[1]][0])}"  # pyright: ignore[reportPrivateUsage]
        counter = self.counters(node)[0][0]
        lacking = self.run.exits(node[1]) if node[0] == "end" else self.run.lacking.get(
            int(self.run.scripts[node[1]][self.run.cursor[node[1]]]), [])  # fmt: skip
        there = f", {lacking[0][1]} of {lacking[0][2]} notifies are there" if lacking else ", words that have not come"
        return f"{who} waits for {self.region(counter)}{there}"

    def _root(self, cause: _Cause, explains: int) -> Root:
        run, rank = self.run, cause.rank
        launch = run.launch[rank]
        head = f"rank {rank}"
        workers = sorted({int(run.worker[row]) for row in cause.rows})
        own = [run.bound.kernels[run.plan.workers[w][0]] for w in workers]
        if cause.kind != "lost" and (busy := run.busy(rank)):
            own = busy
            workers = [w for w in workers if run.bound.kernels[run.plan.workers[w][0]] in busy]
        kernels = sorted({kernel.name for kernel in own})
        before = list[str]()
        if len(kernels) == 1 and not run.busy(rank):
            stream, last = own[0].stream, own[0].position
            first = run.begun.get((stream, rank), 0)
            before = [k.name for k in run.bound.kernels if k.stream == stream and first <= k.position < last]
        alone = self.plan.workers[workers[0]][2] if len(workers) == 1 else None
        kernel = kernels[0] if len(kernels) == 1 else None
        others: tuple[int, ...] = ()
        match cause.kind:
            case "beyond":
                node = ("program", cause.worker)
                kernel, alone = (
                    run.bound.kernels[self.plan.workers[cause.worker][0]].name,
                    self.plan.workers[cause.worker][2],
                )
                text = f"{self._says(node)}, and no more come: its kernel is not the one that was planned"
            case "not begun":
                issued = run.seen[rank].issued if rank in run.seen else None
                host = f", and its host has issued {issued} launches" if issued is not None else ""
                text = f"{head} has ended its launch {launch}{host}, and never began {max(cause.launch, launch + 1)}"
            case "lost":
                assert cause.counter is not None
                ranks = sorted({int(run.rank[row]) for row in cause.rows})
                others = tuple(ranks) if len(ranks) > 1 else ()
                row = min(cause.rows)
                what = self.region(int(self.plan.counters[row]))
                who = f"{head}, {self.tile(int(self.plan.signals.task[row]))}" if len(cause.rows) == 1 else (
                    f"one of {len(cause.rows)} tiles of {_ranks(ranks)} ({_names(kernels)})")  # fmt: skip
                text = f"a notify of {what} is lost in launch {launch}: {who} has gone on without it"
            case _:
                text = f"{head} {self._late_text(cause, workers, kernels, before)}"
        return Root(kind=cause.kind, rank=None if others else rank, text=text, kernel=kernel, program=alone,
                    others=others, before=tuple(before), explains=explains)  # fmt: skip

    def _late_text(self, cause: _Cause, workers: list[int], kernels: list[str], before: list[str]) -> str:
        run, rank = self.run, cause.rank
        seen, launch = run.seen.get(rank), run.launch[rank]
        where = ""
        if workers:
            rows = [row for row in cause.rows if int(run.worker[row]) in workers]
            first = min(rows, key=lambda row: (int(run.at[row]), row))
            task = int(self.plan.signals.task[first])
            named = self._kernel(workers[0]) if len(kernels) == 1 else _names(kernels)
            number = f"program {self.plan.workers[workers[0]][2]} of {named}" if len(workers) == 1 else (
                f"{len(workers)} programs of {named}")  # fmt: skip
            begun = run.lower[int(run.worker[first])] > 0
            gone = "whose next notify has not come" if begun else "none of whose notifies has come"
            what = self.region(int(self.plan.counters[first]))
            where = f"{number}, {gone} in launch {launch}: {self.tile(task)} is to notify {what}"
            where += f" (or {_names(before)} before it on its stream)" if before else ""
        elif kernels:
            where = f"{_names(kernels)} in launch {launch}"
        if cause.kind == "silent":
            ended = run.counter(run.bound.finished_base, rank)
            known = f", and its peers saw it end launch {ended}" if ended else ""
            return f"has written no dump: it is dead or cannot be reached{known}{f' ({where})' if where else ''}"
        if cause.kind == "died":
            assert seen is not None
            died = next(p for p in seen.programs if p.died)
            return f"died: program {died.program} of its stream {died.stream} {died.died} in launch {died.launch}"
        if cause.kind == "promise":
            assert seen is not None
            return f"breaks a promise of its index tensors in launch {launch}: {seen.broken}"
        if rank not in run.pads:
            what = f": {where}" if where else ""
            return f"has not sent what is missing, and what it waits for is in its own dump{what}"
        if not where:
            return f"has not come to the end of launch {launch}, and waits for nothing: it computes or is dead"
        lost = "" if run.busy(rank) else ", or its notify is lost"
        return f"waits for nothing, and computes or is dead{lost}: {where}"

    def _line(self, rank: int) -> str:
        """Return the state of a rank."""
        run = self.run
        if rank not in run.seen:
            return f"rank {rank}: no dump"
        seen = run.seen[rank]
        issued = f" of {seen.issued} issued" if seen.issued is not None else ""
        waiting = [n for n in run.blocked if self._rank(n) == rank and run.blocked[n] in ("signal", "launch")]
        late = {int(run.worker[row]) for rows in run.late.values() for row in rows if int(run.rank[row]) == rank}
        said = [f"{len(waiting)} programs wait: {self._says(waiting[0]).partition(', ')[2]}"] if waiting else []
        said += [f"{len(late)} programs wait for nothing and have notifies left"] if late else []
        said += [f"program {p.program} of {p.stream} {p.died}" for p in seen.programs if p.died]
        return f"rank {rank}: launch {seen.launch}{issued}: {'; '.join(said) or 'no program waits'}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _names(kernels: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in kernels)
