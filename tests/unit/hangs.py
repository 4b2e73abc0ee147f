"""Launches that hang: abstract executions of plans with one fault, until nothing goes on.

The execution knows programs, streams, launches and counters, and nothing of the diagnosis. What ranks would dump is
what is in its counters then, and, if wanted, where each program is.

    python -m tests.unit.hangs --faults 500 [--seed 1] [--programs NAME ...]
"""

from __future__ import annotations

import argparse
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tests.compiler import library
from tilelink import compiler
from tilelink.diagnose import Report, diagnose
from tilelink.dump import BEGIN, END, FINISH, Pad, ProgramSeen, Seen, WaitSeen
from tilelink.errors import TileLinkError
from tilelink.lowering.bound import Kernel
from tilelink.lowering.events import WAIT
from tilelink.planning.plan import Plan

KINDS = ("rank dies", "program stops", "notify lost", "one too many", "launch not begun", "kernel never begins")
LAUNCHES = 3


@dataclass(kw_only=True)
class Fault:
    """What goes wrong, in which launch: on a rank, in a program of a kernel, at a step of its own or at a signal."""

    kind: str
    launch: int
    rank: int
    kernel: int = -1
    program: int = -1
    step: int = 0
    row: int = -1
    happened: bool = False


@dataclass(kw_only=True)
class _Program:
    """A program of a rank's stream: its kernel in the stream, the tasks that are left of it, and what it does next."""

    rank: int
    stream: str
    number: int
    kernel: int = 0
    todo: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    done: int = 0
    ended: bool = False
    stopped: bool = False


class Execution:
    """Launches of a plan in a random order of events, with a fault; None for a run that is well.

    resets: as on GPUs, where the wait of a copy engine sets its counter back to 0.
    """

    def __init__(
        self, plan: Plan, fault: Fault | None, seed: int, *, launches: int = LAUNCHES, resets: bool = False
    ) -> None:
        self.plan, self.bound, self.fault, self.random = plan, plan.bound, fault, random.Random(seed)
        self.launches = launches
        self.pads = [[0] * plan.bound.pad_size for _ in range(plan.bound.ranks)]
        self.words: Counter[tuple[int, int, int]] = Counter()
        self.launch = [1] * plan.bound.ranks
        self.phase = ["begin"] * plan.bound.ranks
        self.taken: Counter[tuple[int, int]] = Counter()
        self.programs: dict[int, list[_Program]] = {}
        self.scripts: dict[int, list[int]] = defaultdict(list)
        keys = plan.signal_keys
        for row in sorted(range(len(keys)), key=lambda row: int(keys[row])):
            self.scripts[int(plan.worker[plan.signals.task[row]])].append(row)
        self.of_task: dict[int, list[int]] = defaultdict(list)
        for rows in self.scripts.values():
            for row in rows:
                self.of_task[int(plan.signals.task[row])].append(row)
        self.workers = {one: number for number, one in enumerate(plan.workers)}
        s = plan.signals
        engine = [k.on_copy_engine for k in plan.bound.kernels]
        reset = np.array([resets and engine[n] for n in plan.task_kernels[s.task].tolist()], bool) & (s.kind == WAIT)
        self.resets, self.reset = resets, {(int(s.peer[r]), int(s.channel[r])) for r in np.flatnonzero(reset).tolist()}
        self.grids = [(plan.channel_base[key], grid) for key, grid in plan.bound.channels.items()]

    # What happens ---------------------------------------------------------------------------------------------

    def run(self, events: int = 1 << 60) -> bool:
        """Run until all launches have ended or so many events have happened (True), or nothing goes on (False)."""
        while any(launch <= self.launches for launch in self.launch) and (events := events - 1) >= 0:
            able = [rank for rank in range(self.bound.ranks) if self.launch[rank] <= self.launches]
            self.random.shuffle(able)
            if not any(self._go_on(rank) for rank in able):
                return False
        return True

    def _go_on(self, rank: int) -> bool:
        if self._is(rank, "launch not begun") and self.phase[rank] == "begin":
            self.fault.happened = True  # type: ignore[union-attr]
            return False
        match self.phase[rank]:
            case "begin":
                return self._begin(rank)
            case "run":
                return self._step(rank)
            case _:
                return self._end(rank)

    def _is(self, rank: int, kind: str) -> bool:
        fault = self.fault
        return fault is not None and (fault.kind, fault.rank, fault.launch) == (kind, rank, self.launch[rank])

    def _begin(self, rank: int) -> bool:
        staged = [t.buffers for t in self.bound.tensors.values() if t.decl.symmetric and t.decl.space == "in"]
        before = self.launch[rank] - min(staged) if staged else 0
        if any(self.pads[rank][self.bound.finished_base + p] < before for p in range(self.bound.ranks) if p != rank):
            return False
        for pad in self.pads:
            pad[self.bound.entered_base + rank] += 1
        streams = {k.stream: max(o.programs for o in self.bound.kernels if o.stream == k.stream)
                   for k in self.bound.kernels}  # fmt: skip
        self.programs[rank] = [
            _Program(rank=rank, stream=s, number=n, kernel=-1) for s in streams for n in range(streams[s])
        ]
        for stream in streams:
            self._next_kernel(rank, stream, 0)
        self.phase[rank] = "run"
        return True

    def _next_kernel(self, rank: int, stream: str, position: int) -> None:
        number = next(
            (n for n, k in enumerate(self.bound.kernels) if (k.stream, k.position) == (stream, position)), None
        )
        for program in (p for p in self.programs[rank] if p.stream == stream):
            program.ended, program.kernel, program.todo, program.done = number is None, -1, [], 0
            if number is None:
                continue
            kernel = self.bound.kernels[number]
            program.kernel = number
            if program.number >= kernel.programs:
                program.ended = True
                continue
            if self._is(rank, "kernel never begins") and self.fault is not None and self.fault.kernel == number:
                program.stopped = self.fault.happened = True
            program.todo += [("entered", p) for p in range(self.bound.ranks) if kernel.needs_entry and p != rank]
            program.todo += [("finished", p) for p in range(self.bound.ranks) if kernel.reuse_lag and p != rank]
            if not (kernel.dynamic or kernel.program_per_tile):
                worker = self.workers.get((number, rank, program.number))
                program.todo += [("row", row) for row in self.scripts.get(worker, [])] if worker is not None else []

    def _step(self, rank: int) -> bool:
        """Let a random program of a rank go on, or its next kernels begin, or the launch end."""
        programs = self.programs[rank]
        for stream in {p.stream for p in programs}:
            own = [p for p in programs if p.stream == stream]
            if all(p.ended for p in own) and own[0].kernel >= 0:
                self._next_kernel(rank, stream, self.bound.kernels[own[0].kernel].position + 1)
                return True
        if all(p.ended for p in programs):
            self.phase[rank] = "end"
            return True
        able = [p for p in programs if not p.ended and not p.stopped]
        self.random.shuffle(able)
        return any(self._event(program) for program in able)

    def _event(self, program: _Program) -> bool:
        rank, fault = program.rank, self.fault
        if fault is not None and self.launch[rank] == fault.launch and fault.rank == rank and not fault.happened:
            if fault.kind == "rank dies":
                fault.step -= 1
                if fault.step < 0:
                    fault.happened = True
                    for one in self.programs[rank]:
                        one.stopped = True
                    return False
            if fault.kind == "program stops" and (fault.kernel, fault.program) == (program.kernel, program.number):
                fault.step -= 1
                if fault.step < 0:
                    fault.happened = program.stopped = True
                    return False
        if not program.todo and not self._take(program):
            program.ended = True
            return True
        what, number = program.todo[0]
        if not self._passes(program, what, number):
            return False
        program.todo.pop(0)
        program.done += 1
        return True

    def _take(self, program: _Program) -> bool:
        """Take the next tile of a kernel in which any program has any tile."""
        kernel, rank = self.bound.kernels[program.kernel], program.rank
        if not (kernel.dynamic or kernel.program_per_tile):
            return False
        name = kernel.loops[0].stages[0]
        number = self.taken[program.kernel, rank]
        if number >= self.bound.stages[name].total:
            return False
        self.taken[program.kernel, rank] += 1
        task = self.plan.first_task[name] + rank * self.bound.stages[name].total + number
        program.todo = [("row", row) for row in self.of_task[task]] or [("nothing", 0)]
        return True

    def _passes(self, program: _Program, what: str, number: int) -> bool:
        rank, launch, kernel = program.rank, self.launch[program.rank], self.bound.kernels[program.kernel]
        if what == "nothing":
            return True
        if what == "entered":
            return self.pads[rank][self.bound.entered_base + number] >= launch
        if what == "finished":
            return self.pads[rank][self.bound.finished_base + number] >= launch - kernel.reuse_lag
        s = self.plan.signals
        if s.kind[number] == WAIT:
            if s.guard[number] and self.random.random() < 0.5 / max(1, self.bound.ranks):
                return True  # a launch may leave it out
            _, channels = self.plan.each_channel(np.array([number]))
            if not all(self._there(number, channel, rank, launch) for channel in channels.tolist()):
                return False
            for channel in channels.tolist():
                if (rank, channel) in self.reset:
                    self.pads[rank][self._place(channel, launch)[0]] = 0
            return True
        peer, channel = int(s.peer[number]), int(s.channel[number])
        if self._is(rank, "notify lost") and self.fault is not None and self.fault.row == number:
            self.fault.happened = True
        elif self.plan.by_words[number]:
            self.words[peer, channel, launch] += 1
        else:
            self.pads[peer][self._place(channel, launch)[0]] += 1
        return True

    def _there(self, row: int, channel: int, rank: int, launch: int) -> bool:
        wanted = self._wanted(row, channel, rank, launch)
        if self.plan.by_words[row]:
            return self.words[rank, channel, launch] >= wanted
        return self.pads[rank][self._place(channel, launch)[0]] >= wanted

    def _wanted(self, row: int, channel: int, rank: int, launch: int) -> int:
        """Return the count that a wait is for."""
        need = self._threshold(rank, channel)
        extra = 0
        if self._is(rank, "one too many") and self.fault is not None and self.fault.row == row and need:
            self.fault.happened, extra = True, 1
        fresh = self.plan.by_words[row] or (rank, channel) in self.reset
        rounds = 0 if fresh else self._place(channel, launch)[1]
        return need * (rounds + 1) + extra

    def _threshold(self, rank: int, channel: int) -> int:
        for base, grid in self.grids:
            if base <= channel < base + grid.count:
                return int(self.plan.thresholds[grid.tensor, grid.kind][rank].ravel()[channel - base])
        raise KeyError(channel)

    def _place(self, channel: int, launch: int) -> tuple[int, int]:
        for base, grid in self.grids:
            if base <= channel < base + grid.count:
                rounds, buffer = divmod(launch - 1, grid.buffers)
                return grid.base + buffer * grid.count + channel - base, rounds
        raise KeyError(channel)

    def _end(self, rank: int) -> bool:
        launch = self.launch[rank]
        for base, grid in self.grids:
            decl = self.bound.tensors[grid.tensor].decl
            for channel in range(base, base + grid.count) if decl.symmetric and decl.space == "out" else ():
                if (rank, channel) in self.reset:
                    continue
                place, rounds = self._place(channel, launch)
                if self.pads[rank][place] < self._threshold(rank, channel) * (rounds + 1):
                    return False
        for pad in self.pads:
            pad[self.bound.finished_base + rank] += 1
        for key in [key for key in self.taken if key[1] == rank]:
            del self.taken[key]
        self.launch[rank] += 1
        self.phase[rank] = "begin"
        return True

    # What is left of it ---------------------------------------------------------------------------------------

    def seen(self, rank: int, *, states: bool) -> Seen:
        """Return what a rank dumps. states: also where its programs are."""
        late = self.fault is not None and self._is(rank, "launch not begun")
        launch = min(self.launch[rank] - late, self.launches)
        return Seen(
            rank=rank, time=0.0, launch=launch, pads=(Pad(rank=rank, counters=tuple(self.pads[rank])),),
            programs=tuple(self._states(rank, launch)) if states else (), resets=self.resets,
        )  # fmt: skip

    def _states(self, rank: int, launch: int) -> Iterator[ProgramSeen]:
        for one in self.programs.get(rank, []):
            if launch < self.launch[rank]:
                step = END
            elif self.phase[rank] != "run":
                step = BEGIN if self.phase[rank] == "begin" else FINISH
            elif one.ended and one.kernel < 0:
                step = END
            else:
                step = self.bound.kernels[one.kernel].position
            wait = None
            if step >= 0 and not one.ended and not one.stopped and one.todo and one.todo[0][0] == "row":
                wait = self._wait(rank, launch, one.todo[0][1])
            yield ProgramSeen(stream=one.stream, program=one.number, launch=launch, step=step, wait=wait,
                              ended=one.ended)  # fmt: skip

    def _wait(self, rank: int, launch: int, row: int) -> WaitSeen | None:
        """Return the wait at which a program is; None if it is none, or would pass."""
        s = self.plan.signals
        stage, _, tile = self.plan.task_name(int(s.task[row]))
        _, channels = self.plan.each_channel(np.array([row]))
        closed = [c for c in channels.tolist() if s.kind[row] == WAIT and not self._there(row, c, rank, launch)]
        if not closed:
            return None
        channel = closed[0]
        place = self._place(channel, launch)[0]
        return WaitSeen(
            stage=self.bound.stages[stage].number, tile=tile, channel=place, seen=self.pads[rank][place],
            expected=self._wanted(row, channel, rank, launch),
        )  # fmt: skip


# The campaign ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Result:
    """A drawn fault with its diagnosis. exact: the first root is the fault. among: it is one of several candidates."""

    name: str
    fault: Fault
    report: Report
    exact: bool
    among: bool


def drawn_fault(plan: Plan, kind: str, launches: int, draw: random.Random) -> Fault | None:
    """Return a random fault of a kind; None if the plan has no place for it."""
    s = plan.signals
    fault = Fault(kind=kind, launch=draw.randint(1, launches), rank=draw.randrange(plan.bound.ranks))
    if kind in ("notify lost", "one too many"):
        wanted = (s.kind == WAIT) == (kind == "one too many")
        rows = np.flatnonzero(wanted & ~plan.by_words & (s.guard == 0))
        if not len(rows):
            return None
        fault.row = int(draw.choice(rows.tolist()))
        worker = int(plan.worker[s.task[fault.row]])
        fault.kernel, fault.rank, fault.program = plan.workers[worker]
    elif kind == "rank dies":
        own = int((plan.task_ranks[s.task] == fault.rank).sum())
        fault.step = draw.randint(0, own)
    elif kind != "launch not begun":
        fault.kernel = draw.randrange(len(plan.bound.kernels))
        kernel = plan.bound.kernels[fault.kernel]
        fault.program = draw.randrange(kernel.programs)
        worker = plan.workers.index((fault.kernel, fault.rank, fault.program))
        fault.step = draw.randint(0, max(0, int((plan.worker[s.task] == worker).sum()) - 1))
    else:
        fault.launch = draw.randint(2, launches)
    return fault


def judged(plan: Plan, name: str, fault: Fault, report: Report) -> Result:
    """Return whether a diagnosis names the fault: its rank, its kernel if it has one, and a kind that fits."""
    root = report.root
    if root is None:
        return Result(name=name, fault=fault, report=report, exact=False, among=False)
    kinds = {"notify lost": {"lost", "late"}, "one too many": {"beyond", "late"},
             "launch not begun": {"not begun", "late"}}.get(fault.kind, {"late", "silent", "not begun"})  # fmt: skip
    kernel: Kernel | None = plan.bound.kernels[fault.kernel] if fault.kernel >= 0 else None
    same = root.kernel is None or kernel is None or kernel.name in (root.kernel, *root.before)
    exact = root.rank == fault.rank and root.kind in kinds and same
    among = root.kind == "lost" and fault.rank in root.others
    return Result(name=name, fault=fault, report=report, exact=exact, among=exact or among)


def hang(plan: Plan, name: str, draw: random.Random, *, states: bool, resets: bool) -> Result | None:
    """Draw a fault, run, and diagnose; None if nothing hangs."""
    kind = draw.choice(KINDS)
    fault = drawn_fault(plan, kind, LAUNCHES, draw)
    if fault is None:
        return None
    run = Execution(plan, fault, draw.randrange(1 << 30), resets=resets)
    if run.run() or not fault.happened:
        return None
    silent = kind == "rank dies" and draw.random() < 0.5
    seen = [run.seen(rank, states=states) for rank in range(plan.bound.ranks) if not (silent and rank == fault.rank)]
    return judged(plan, name, fault, diagnose(plan, seen))


def plans(draw: random.Random, names: list[str] | None = None) -> Iterator[tuple[str, Plan]]:
    """Yield random programs of the library with a schedule, planned for a random number of ranks."""
    from tilelink.cli.options import dims_of, random_tables

    cases = [case for case in library.cases() if not names or case[0].name in names]
    while True:
        program, schedule = draw.choice(cases)
        ranks = draw.choice([2, 3, 4])
        try:
            dims = dims_of(program, None, library.SIZES)
            tables = random_tables(program, dims, ranks)
            plan = compiler.plan(program, schedule, ranks=ranks, dims=dims, dtype="f32", target="cpu", tables=tables)
        except TileLinkError:
            continue
        if (plan.signals.kind == WAIT).any():
            yield f"{program.name} {schedule.name if schedule else 'default'} x{ranks}", plan


def campaign(
    faults: int, seed: int, *, states: bool, resets: bool = False, names: list[str] | None = None, each: int = 3
) -> list[Result]:
    """Return so many diagnosed hangs, `each` of a plan at most."""
    draw, found = random.Random(seed), list[Result]()
    for name, plan in plans(draw, names):
        for _ in range(each):
            if (result := hang(plan, name, draw, states=states, resets=resets)) is not None:
                found.append(result)
            if len(found) == faults:
                return found
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", nargs="*")
    parser.add_argument("--each", type=int, default=3, help="hangs of one plan")
    parser.add_argument("--resets", action="store_true", help="copy engines reset counters, as on GPUs")
    parser.add_argument("--show", type=int, default=5)
    options = parser.parse_args()
    for states in (True, False):
        given = {"resets": options.resets, "names": options.programs, "each": options.each}
        found = campaign(options.faults, options.seed, states=states, **given)
        named, among = (sum(which) / len(found) for which in ([r.exact for r in found], [r.among for r in found]))
        print(f"{'with' if states else 'without'} states of programs: {len(found)} hangs")
        print(f"  named first {named:.1%}, among what counters do not tell apart {among:.1%}")
        programs = [r for r in found if r.fault.kernel >= 0 and r.report.root is not None]
        kernels = [r.report.root.kernel for r in programs if r.report.root is not None and not r.report.root.before]
        print(
            f"  of {len(programs)} faults of a kernel its name is said of {sum(map(bool, kernels)) / len(programs):.1%}"
        )
        for kind in KINDS:
            own = [r for r in found if r.fault.kind == kind]
            print(f"  {kind}: {sum(r.exact for r in own)} and {sum(r.among for r in own)} of {len(own)}")
        for one in [r for r in found if not r.among][: options.show]:
            print(f"--- {one.name}: {one.fault}\n{one.report}")


if __name__ == "__main__":
    main()
