"""A launch of many tiles by some of them: what a search predicts, whose schedules differ in tenths and not in percent.

Of each kernel a few programs stay, one of each of as many equal parts (`Kept`), with the SMs and the share of links of
those for which they stand. Where a program has many tiles of a stage, one of each few stays and takes as long as all of
them. Waits stay those of the tiles that stay. All tiles notify, since anyone may wait for them: a notify of a tile that
is left out is sent by the tile before it that stays, in the order in which tiles begin. Counters that the same tiles
fill are one, and of a program's waits for one counter all but the first find it full. Where a launch executes very
much, some iterations of a loop stay too, unless it notifies or moves data to peers: each takes as long as those for
which it stands.

Copy engines stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.program import For, Notify, Statement, Transfer
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound, BoundStage, Kernel
from tilelink.lowering.columns import Ints, distinct_rows
from tilelink.lowering.events import NOTIFY, WAIT, Signals, number_channels, number_tasks
from tilelink.lowering.walk import Rows, Walk, executions, executions_of, length, on_ranks
from tilelink.planning.copy_queues import own_copies
from tilelink.planning.plan import Plan, count_thresholds, worker_columns, workers_of
from tilelink.planning.queue_order import in_queue_order
from tilelink.simulator.sampled import Sample, SampledPlan, Sampler, taken_tiles

MANY = 1 << 14
"""Executions of statements, of all tiles and ranks, up to which a launch is not thinned out."""
ROWS = 1 << 9
"""Executions of statements of a kernel on a rank that stay, about."""
PROGRAMS = 8
"""Programs of a kernel that stay at least."""
NOTIFIES = 1 << 20
"""Executions of statements of a stage up to which all of its tiles notify."""
TILES, FEW_TILES = 32, (1, 4)
"""Tiles of a stage, of a program, that stay at least; and in looks before that, which tell what is far slower."""
VERY_MANY = 1 << 20
"""Executions of statements, of all tiles and ranks, from which a launch gets these looks."""
NEAR = 0.85
"""A first look that takes less than this part of what ends the second one makes that needless."""
COSTLY, COSTLY_TILES = 1 << 16, 8
"""Operations of a look, most of them waits, from which on so many tiles stay at least instead of TILES."""
STEPS = 64
"""Iterations of a loop that stay at least."""


@dataclass(frozen=True, kw_only=True)
class Thinned:
    """The iterations of a loop that stay. begin, end: its positions in a tile. times: iterations for each of them."""

    loop: For
    begin: int
    end: int
    steps: Ints
    times: float


@dataclass(frozen=True, kw_only=True)
class ThinnedPlan(SampledPlan):
    """A plan of the tiles that stay. Tasks and channels that are left out have the place of what stands for them.

    repeats: task -> tiles of its program for which it stands, itself among them; 0 for one that is left out.
    load: task -> bytes on links for each byte of the tiles for which it stands.
    places: kernel -> programs for which one stands.
    passed: waits that find their counter full.
    loops: stage -> its loop of which some iterations stay.
    """

    repeats: Ints = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    load: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), repr=False)
    places: tuple[float, ...] = ()
    passed: Signals = field(default_factory=lambda: Signals.joined([]), repr=False)
    loops: Mapping[str, Thinned] = field(default_factory=dict)

    def times(self, tasks: Ints, positions: Ints) -> NDArray[np.float64]:
        """Return for how many executions, of its program's tiles and of their loops, each of some stands."""
        found = self.repeats[tasks].astype(np.float64)
        for name, one in self.loops.items():
            first, total = self.first_task[name], self.bound.ranks * self.bound.stages[name].total
            inside = (tasks >= first) & (tasks < first + total) & (positions >= one.begin) & (positions < one.end)
            found[inside] *= one.times
        return found


def few_taken(bound: Bound) -> bool:
    """True if a kernel's programs take few tiles each by a counter, of which some do not stand for all.

    The program that has two of the longest tiles decides how long the launch takes, and when the first one is free.
    """
    return any(map(partial(_takes_few, bound), bound.kernels))


def _takes_few(bound: Bound, kernel: Kernel) -> bool:
    return kernel.dynamic and bound.stages[kernel.name].total < TILES * kernel.programs


def thinned(
    bound: Bound, tables: Mapping[str, NDArray[Any]], sample: Sample, tiles: int = TILES, *, all_taken: bool = False
) -> ThinnedPlan | None:
    """Return the plan of some tiles of a launch, or None if it has few of them, or a statement with a fault.

    tiles: of a stage, of a program, that stay at least.
    all_taken: True if all programs stay of the kernels of `few_taken`. None too for kernels that go through steps: a
    tile of one step must not stand for one of another.
    """
    if any(kernel.steps > 1 for kernel in bound.kernels):
        return None
    if executions(bound) <= MANY:
        return None
    whole = _without_events(bound)
    entries = {**tables, **sample}
    if sample:
        worker, sequence = taken_tiles(whole, entries)
        whole = replace(whole, worker=worker, sequence=sequence)
    kept = _Kept(whole, tiles, all_taken)
    base = whole.channel_base
    loops = _loops(bound) if executions(bound) > VERY_MANY else {}
    stay = _Staying(bound, whole.first_task, base, entries, kept.repeats, loops)
    notify = _Notifies(bound, whole.first_task, base, entries, kept.repeats, loops)
    for stage in bound.stages.values():
        stay.stage(stage)
        notify.stage(stage)
    if stay.faults or notify.faults:
        return None
    signals, passed = _joined(whole, kept, stay.signals(), notify.signals())
    number = np.full(len(whole.workers), -1)
    number[kept.workers] = np.arange(len(kept.workers))
    known = {name: value for name, value in vars(whole).items() if name in Plan.__dataclass_fields__}
    known |= {
        "statements": tuple(stay.statements),
        "accesses": stay.accesses(),
        "signals": signals,
        "transfers": stay.transfers(),
        "guards": stay.guards,
        "thresholds": count_thresholds(bound, signals, base, whole.channels),
        "worker": number[whole.worker[kept.by]],
        "workers": tuple(whole.workers[n] for n in kept.workers.tolist()),
    }
    plan = ThinnedPlan(
        **known, elements=stay.elements(), shares=stay.shares(), repeats=kept.repeats, load=kept.load,
        places=kept.places, passed=passed, loops=loops,
    )  # fmt: skip
    return _in_queue_order(plan)


def kept_tiles(stage: BoundStage, ranks: int, first: int, repeats: Ints) -> Ints:
    """Return the tiles of a stage that stay, counted rank by rank. first: its first task. repeats: see ThinnedPlan."""
    return np.flatnonzero(repeats[first : first + ranks * stage.total])


def kept_steps(loops: Mapping[str, Thinned], stage: BoundStage, loop: For) -> Ints | None:
    """Return the iterations of a loop of a stage that stay; None if all do."""
    kept = loops.get(stage.name)
    return kept.steps if kept is not None and kept.loop is loop else None


def weights_of(plan: Plan, tasks: Ints, positions: Ints) -> NDArray[np.float64] | float:
    """Return for how many executions, of its rank's tiles and of loops, each stands: 1 in a plan of all tiles."""
    return plan.times(tasks, positions) * plan.load[tasks] if isinstance(plan, ThinnedPlan) else 1.0


def times_of(plan: Plan, tasks: Ints, positions: Ints) -> NDArray[np.float64] | int:
    """Return for how many executions, of its program's tiles and of loops, each stands: 1 in a plan of all tiles."""
    return plan.times(tasks, positions) if isinstance(plan, ThinnedPlan) else 1


def repeats_of(plan: Plan, tasks: Ints) -> Ints | int:
    """Return for how many tiles of its program each of some tasks stands: 1 in a plan of all tiles."""
    return plan.repeats[tasks] if isinstance(plan, ThinnedPlan) else 1


def places_of(plan: Plan) -> tuple[float, ...]:
    """Return for how many programs of its kernel a program stands, kernel by kernel: 1 in a plan of all tiles."""
    return plan.places if isinstance(plan, ThinnedPlan) else (1,) * len(plan.bound.kernels)


def _loops(bound: Bound) -> dict[str, Thinned]:
    """Return the loops of stages of which some iterations stay: at most one of each, which nobody else waits for."""
    found: dict[str, Thinned] = {}
    for name, stage in bound.stages.items():
        position = 0
        for one in on_ranks(stage.stage)[1]:
            begin, position = position, position + length(stage, one)
            if not isinstance(one, For) or any(isinstance(s, (Notify, Transfer)) for s in statements(one.body)):
                continue
            steps = prod(stage.count(decl.name) for decl in one.indices)
            if steps >= 2 * STEPS and name not in found:
                parts = np.linspace(0, steps, STEPS + 1)
                # Any one of each part: those that are as far apart as a part is long would be alike.
                within = np.random.default_rng(steps).random(STEPS)
                walked = (parts[:-1] + within * np.diff(parts)).astype(np.int64)
                found[name] = Thinned(loop=one, begin=begin, end=position, steps=walked, times=steps / STEPS)
    return found


def _without_events(bound: Bound) -> Plan:
    (first_task, tasks), (base, channels) = number_tasks(bound), number_channels(bound)
    worker, sequence, workers = workers_of(bound, first_task, tasks)
    nothing = Sampler(bound, first_task, base, {})
    return Plan(
        bound=bound, statements=(), first_task=first_task, tasks=tasks, accesses=nothing.accesses(),
        signals=nothing.signals(), transfers=nothing.transfers(), barriers=nothing.barriers(), channel_base=base,
        channels=channels, thresholds={}, worker=worker, sequence=sequence, workers=workers,
    )  # fmt: skip


class _Kept:
    """Which tasks of a plan stay. by: task -> the one that stands for it. The others are as in ThinnedPlan."""

    def __init__(self, plan: Plan, tiles: int, all_taken: bool) -> None:
        self._plan, self._tiles, self._all_taken = plan, tiles, all_taken
        kernel_of, _, self._program = worker_columns(plan.workers)
        self.by = np.arange(plan.tasks)
        self.repeats = np.ones(plan.tasks, np.int64)
        self.load = np.ones(plan.tasks)
        places: list[float] = []
        stay = np.ones(len(plan.workers), bool)
        for number, kernel in enumerate(plan.bound.kernels):
            programs = self._programs(kernel)
            places.append(kernel.programs / len(programs))
            stay[kernel_of == number] = np.isin(self._program[kernel_of == number], programs)
            if len(programs) < kernel.programs or (kernel.programs_per_cta == 1 and not kernel.on_copy_engine):
                for name in kernel.stage_names:
                    self._thin(kernel, name, programs)
        self.places = tuple(places)
        self.workers = np.flatnonzero(stay)

    def _tasks(self, name: str) -> Ints:
        stage = self._plan.bound.stages[name]
        first = self._plan.first_task[name]
        return np.arange(first, first + self._plan.bound.ranks * stage.total)

    def _programs(self, kernel: Kernel) -> Ints:
        """Return the programs of a kernel that stay."""
        bound, every = self._plan.bound, np.arange(kernel.programs)
        stages = [bound.stages[name] for name in kernel.stage_names]
        rows = sum(stage.total * executions_of(stage) for stage in stages)
        if rows <= ROWS or kernel.on_copy_engine or kernel.programs_per_cta > 1:
            return every
        if self._all_taken and _takes_few(bound, kernel):
            return every
        count = max(PROGRAMS, kernel.programs * ROWS // rows)
        if kernel.program_per_tile:  # as many of them run at a time
            count = max(count, min(-(-PROGRAMS * kernel.programs // bound.resident_programs), PROGRAMS * self._tiles))
        chosen = [np.zeros(1, np.int64)]
        for loop in kernel.loops:
            some = np.unique(self._program[self._plan.worker[self._tasks(loop.stages[0])]])
            if len(some):
                parts = np.linspace(0, len(some), min(count, len(some)) + 1)
                # The first of all, which has most tiles, and of each other part any one: tiles that are as far apart
                # as parts are long would be alike.
                within = np.random.default_rng(len(some)).random(len(parts) - 1) * (np.arange(len(parts) - 1) > 0)
                chosen.append(some[(parts[:-1] + within * np.diff(parts)).astype(np.int64)])
        return np.unique(np.concatenate(chosen))

    def _thin(self, kernel: Kernel, name: str, programs: Ints) -> None:
        """Choose the tasks of a stage that stay, and the one that stands for each."""
        plan, stage, tasks = self._plan, self._plan.bound.stages[name], self._tasks(name)
        loop = next(one for one in kernel.loops if name in one.stages)
        if not len(tasks):  # a stage that sizes or a schedule leave no tiles
            return
        turn = (tasks - tasks[0]) % stage.total // loop.taking(kernel.programs)
        if loop.compact is not None:
            turn = plan.sequence[tasks]
        worker, rank = plan.worker[tasks], (tasks - tasks[0]) // stage.total
        most = -(-stage.total // loop.taking(kernel.programs))
        rows = len(programs) * most * executions_of(stage)
        together = max(1, min(-(-rows // ROWS), most // self._tiles))
        groups = int(turn.max(initial=0)) // together + 1
        in_turn = np.lexsort((turn, worker))
        group = (worker * groups + turn // together)[in_turn]
        first, size = np.unique(group, return_index=True, return_counts=True)[1:]
        # Any one of a group, again: the same of all would have the same column, where a row has as many tiles.
        within = np.random.default_rng(groups).random(groups)[group[first] % groups]
        repeats = np.zeros(len(tasks), np.int64)
        repeats[in_turn[first + (within * size).astype(np.int64)]] = size
        repeats[~np.isin(self._program[worker], programs)] = 0
        # That which stays and begins last of those that do not begin later.
        order = np.lexsort((self._program[worker], turn // together, rank))
        stays = np.flatnonzero(repeats[order] > 0)
        if not len(stays):
            return
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        before = np.maximum(np.searchsorted(stays, place, side="right") - 1, 0)
        by = order[stays[before]]
        after = order[stays[np.minimum(before + 1, len(stays) - 1)]]
        by = np.where(rank[by] == rank, by, after)
        self.by[tasks], self.repeats[tasks] = tasks[by], repeats
        counted = np.bincount(rank, repeats, minlength=plan.bound.ranks)
        self.load[tasks] = stage.total / np.maximum(counted, 1)[rank]


class _Staying(Sampler):
    """Collects what tasks do that stay."""

    def __init__(
        self, bound: Bound, first_task: Mapping[str, int], channel_base: Mapping[tuple[str, str], int],
        tables: Mapping[str, NDArray[Any]], repeats: Ints, loops: Mapping[str, Thinned],
    ) -> None:  # fmt: skip
        super().__init__(bound, first_task, channel_base, tables)
        self._repeats, self._loops = repeats, loops

    def tiles(self, stage: BoundStage) -> Ints:
        return kept_tiles(stage, self.bound.ranks, self.first_task[stage.name], self._repeats)

    def steps(self, stage: BoundStage, loop: For) -> Ints | None:
        return kept_steps(self._loops, stage, loop)


class _Notifies(_Staying):
    """Collects the notifies of all tasks; of a stage that has too many, those of tasks that stay."""

    def tiles(self, stage: BoundStage) -> Ints:
        many = self.bound.ranks * stage.total * executions_of(stage) > NOTIFIES
        return super().tiles(stage) if many else Walk.tiles(self, stage)

    def visit(self, stage: BoundStage, number: int, statement: Statement, rows: Rows) -> None:
        match statement:
            case Notify():
                super().visit(stage, number, statement, rows)
            case Transfer(signal=str(signal), target=target):
                self._signal(stage, number, NOTIFY, signal, target, rows)
            case _:
                pass

    def _statement(self, stage: BoundStage, statement: Statement, rows: Rows) -> None:
        inside = [*statements((statement,))]
        if any(isinstance(s, Notify) or (isinstance(s, Transfer) and s.signal is not None) for s in inside):
            super()._statement(stage, statement, rows)
        else:
            self._pass_over(stage, inside)


def _joined(plan: Plan, kept: _Kept, own: Signals, notifies: Signals) -> tuple[Signals, Signals]:
    """Return the waits of tasks that stay and the notifies of what stands for all, and the waits that find all done.

    own: the signals of tasks that stay. notifies: the notifies of all.
    """
    waits = own.pick(own.kind == WAIT)
    counters = plan.bound.ranks * max(plan.channels, 1)
    counter = notifies.peer * plan.channels + notifies.channel
    awaited = np.zeros(counters, bool)
    awaited[waits.peer * plan.channels + waits.channel] = True
    notifies = notifies.pick(awaited[counter] | (kept.repeats[notifies.task] > 0))
    counter = notifies.peer * plan.channels + notifies.channel
    task = kept.by[notifies.task]
    # Counters that the same tasks fill, by sums of random numbers of these.
    grid = np.zeros(max(plan.channels, 1), np.int64)
    for place, key in enumerate(plan.bound.channels):
        grid[plan.channel_base[key] : plan.channel_base[key] + plan.bound.channels[key].count] = place
    pair = np.unique(counter * plan.tasks + task)
    marks = np.random.default_rng(0).integers(1, 1 << 40, size=plan.tasks)
    sums = np.zeros(counters, np.int64)
    np.add.at(sums, pair // max(plan.tasks, 1), marks[pair % max(plan.tasks, 1)])
    one, used = np.arange(counters), np.flatnonzero(sums)
    if len(used):
        rank = used // max(plan.channels, 1)
        first, which = distinct_rows([sums[used], rank, grid[used % max(plan.channels, 1)]])
        one[used] = used[first][which]
    # Of a task's notifies for a counter the last one counts.
    order = np.lexsort((notifies.position, one[counter], task))
    key = task[order] * counters + one[counter][order]
    last = order[np.append(key[1:] != key[:-1], True)] if len(key) else order
    notifies = replace(notifies, task=task).pick(last)
    notifies = _on(plan, notifies, one[counter[last]])
    waits = _on(plan, waits, one[waits.peer * plan.channels + waits.channel])
    worker, kernel = plan.worker[waits.task], plan.task_kernels[waits.task]
    order = np.lexsort((waits.position, plan.sequence[waits.task], worker))
    key = worker[order] * counters + (waits.peer * plan.channels + waits.channel)[order]
    earliest = np.zeros(len(order), bool)
    earliest[order[np.unique(key, return_index=True)[1]]] = True
    # Of copy engines all stay, and of kernels whose programs take tiles by a counter a launch decides what comes first.
    all_stay = np.array([one.on_copy_engine or one.dynamic for one in plan.bound.kernels], bool)
    passed = ~earliest & ~all_stay[kernel]
    return Signals.joined([waits.pick(~passed), notifies]), waits.pick(passed)


def _on(plan: Plan, signals: Signals, counter: Ints) -> Signals:
    channels = max(plan.channels, 1)
    return replace(signals, peer=counter // channels, channel=counter % channels)


def _in_queue_order(plan: ThinnedPlan) -> ThinnedPlan:
    """Return the plan with an order of its copy engines: what `with_queue_order` says, as far as stages show it."""
    bound = plan.bound
    if not any(kernel.on_copy_engine for kernel in bound.kernels):
        return plan
    by_queue = {name for kernel in bound.kernels if kernel.on_copy_engine for name in kernel.stage_names}
    notifies: dict[str, set[int]] = {name: set() for name in bound.stages}
    waits: dict[str, set[int]] = {name: set() for name in bound.stages}
    names = [name for name, _ in plan.statements]
    for kind, found in ((NOTIFY, notifies), (WAIT, waits)):
        rows = plan.signals.kind == kind
        pairs = plan.signals.statement[rows] * len(bound.tensors) + plan.channel_tensors[plan.signals.channel[rows]]
        for statement, tensor in (divmod(pair, len(bound.tensors)) for pair in np.unique(pairs).tolist()):
            found[names[statement]].add(tensor)
    after = set(by_queue)  # stages that wait, through others, for what a queue notifies
    while more := {n for n in waits if n not in after and any(waits[n] & notifies[other] for other in after)}:
        after |= more
    awaited = set[int]().union(*(waits[name] for name in by_queue))
    aside = not bound.capabilities.traced and not any(awaited & notifies[name] for name in after)
    first = bound.schedule.reuse_wait and not own_copies(plan).conflict
    found = in_queue_order(plan, own_first=first, waits_aside=aside)
    assert isinstance(found, ThinnedPlan)
    return found
