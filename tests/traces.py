"""Comparison of traced runs with the plan: tiles, waits, notifies and transfers, task by task and launch by launch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from tilelink.lowering.bound import BoundStage
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import WAIT
from tilelink.planning.any_program import of_any_program
from tilelink.planning.plan import Plan
from tilelink.planning.traces import Pad

TracedEvent = tuple[str, int, int, int, int, int, int]
"""(kind, stage number, tile, a, b, c, epoch), as the runtime's monitor records them."""

WorkerKey = tuple[int, str, int]
"""(rank, stream, program)."""


class PlanEvent(NamedTuple):
    """An event: kind "wait" (own rank, channel, expected count), "notify" (rank, channel) or "transfer" (rank, tensor,
    offset). Channels are numbered as in the plan: over all grids, without buffers."""

    kind: str
    rank: int
    what: int
    value: int = 0


def planned_events(plan: Plan) -> dict[int, list[PlanEvent]]:
    """Return task -> its events in the first launch, in the order of the plan."""
    rows: list[tuple[int, int, PlanEvent]] = []
    signals = plan.signals
    own = _own_ranks(plan)
    flat = plan.flat_thresholds
    every, channels = plan.each_channel(np.arange(len(signals.task)))
    columns = (signals.task, signals.position, signals.kind, signals.peer, plan.by_words)
    known = (column[every].tolist() for column in columns)
    for task, position, kind, peer, by_words, channel in zip(*known, channels.tolist(), strict=True):
        if by_words:
            continue  # words have no counters to look at
        if kind == WAIT:
            rank = int(own[task])
            event = PlanEvent("wait", rank, channel, int(flat[rank, channel]))
        else:
            event = PlanEvent("notify", peer, channel)
        rows.append((task, position, event))
    moves = plan.transfers
    columns = (moves.task, moves.position, moves.peer, moves.tensor, moves.offset)
    for task, position, peer, tensor, offset in zip(*(c.tolist() for c in columns), strict=True):
        rows.append((task, position, PlanEvent("transfer", peer, tensor, offset)))
    result: dict[int, list[PlanEvent]] = {task: [] for task in range(plan.tasks)}
    for task, _, event in sorted(rows, key=lambda row: (row[0], row[1])):
        result[task].append(event)
    return result


def stage_numbered(plan: Plan, number: int) -> BoundStage:
    """Return the stage that events of traces name by its number."""
    return next(stage for stage in plan.bound.stages.values() if stage.number == number)


def traced_events(plan: Plan, rank: int, events: Iterable[TracedEvent]) -> dict[tuple[int, int], list[PlanEvent]]:
    """Return (epoch, task) -> the events of a worker of `rank`, in order; counts are divided down to one launch's."""
    result: dict[tuple[int, int], list[PlanEvent]] = {}
    pad = Pad(plan)
    for kind, stage, tile, a, b, c, epoch in events:
        if stage < 0 or (kind == "wait" and a >= plan.bound.entered_base):
            continue  # events of the runtime, and of a kernel before its first tile
        bound = stage_numbered(plan, stage)
        task = plan.first_task[bound.name] + rank * bound.total + tile
        own = result.setdefault((epoch, task), [])
        if kind == "wait":
            channel, rounds = pad.place(a, epoch)
            own.append(PlanEvent("wait", rank, channel, b // rounds if b % rounds == 0 else -b))
        elif kind == "notify":
            own.append(PlanEvent("notify", a, pad.place(b, epoch)[0]))
        elif kind == "transfer":
            own.append(PlanEvent("transfer", b, a, c))
    return result


def differences(plan: Plan, workers: Mapping[WorkerKey, Iterable[TracedEvent]], launches: int) -> list[str]:
    """Return the differences between a traced run of `launches` launches and the plan, one line each.

    Tasks must run in the planned workers and order, once in each launch. Those of a kernel with compact numbers are run
    in turn by its programs, as many as there are. The events of a task must come in the planned order, except that
    neighbouring events of one kind may come in any order. Of a stage of which a launch decides parts, a task must make
    all signals whose places are known before; its transfers and other waits are some of the planned ones, or at most as
    many if a launch decides their places.
    """
    wanted = planned_events(plan)
    order = _planned_order(plan)
    open_waits, loose = _open_waits(plan), _loose_tasks(plan)
    found: list[str] = []
    dealt_of: dict[tuple[int, int], set[int]] = defaultdict(set)
    floating = {task for task, any_program in enumerate(of_any_program(plan).tolist()) if any_program}
    for task in floating:
        dealt_of[plan.workers[int(plan.worker[task])][:2]].add(task)
    ran: dict[tuple[int, int], list[tuple[int, list[int]]]] = defaultdict(list)
    for key, events in workers.items():
        done = traced_events(plan, key[0], events)
        for epoch in range(1, launches + 1):
            tasks = [task for at, task in done if at == epoch]
            fixed, planned = ([t for t in own if t not in floating] for own in (tasks, order[key]))
            if fixed != planned:
                found.append(f"launch {epoch}, {key}: ran tasks {fixed}, planned {planned}")
            found += [_difference(plan, epoch, t, done[epoch, t], wanted[t], open_waits, loose) for t in tasks]
            for kernel in {plan.workers[int(plan.worker[t])][0] for t in floating.intersection(order[key])}:
                own = dealt_of[kernel, key[0]]
                ran[epoch, kernel * plan.bound.ranks + key[0]].append((key[2], [t for t in tasks if t in own]))
    found += [_misdealt(plan, epoch, which, programs) for (epoch, which), programs in ran.items()]
    missing = order.keys() - workers.keys()
    return [line for line in found if line] + [f"{key} ran nothing" for key in sorted(missing)]


def _misdealt(plan: Plan, epoch: int, which: int, ran: list[tuple[int, list[int]]]) -> str:
    """Return how the tiles of a kernel were assigned to its programs, if not in turn: those with compact numbers are.

    Programs that take tiles by a counter execute theirs in rising order, and all of them each tile once.

    which: its number times the ranks, plus the rank. ran: programs with the tasks that they ran.
    """
    kernel, rank = divmod(which, plan.bound.ranks)
    programs = plan.bound.kernels[kernel].programs
    tasks = sorted(task for _, own in ran for task in own)
    if plan.bound.kernels[kernel].dynamic:
        name, first = plan.bound.kernels[kernel].name, plan.first_task[plan.bound.kernels[kernel].name]
        total = plan.bound.stages[name].total
        if tasks != [*range(first + rank * total, first + (rank + 1) * total)]:
            return f"launch {epoch}, rank {rank} {name}: ran tasks {tasks}, not each of its tiles once"
        back = [(program, own) for program, own in ran if own != sorted(own)]
        return f"launch {epoch}, rank {rank} {name}: not in rising order {back}" if back else ""
    for program, own in ran:
        if own != tasks[program::programs]:
            name = plan.bound.kernels[kernel].name
            wanted = tasks[program::programs]
            return f"launch {epoch}, rank {rank} {name} program {program}: ran tasks {own}, not {wanted}"
    return ""


def _difference(
    plan: Plan, epoch: int, task: int, done: list[PlanEvent], wanted: list[PlanEvent],
    open_waits: set[tuple[int, int]], loose: set[str],
) -> str:  # fmt: skip
    if _canonical(done) == _canonical(wanted):
        return ""
    if plan.task_name(task)[0] in loose and _within(done, wanted, {what for at, what in open_waits if at == task}):
        return ""
    stage, rank, tile = plan.task_name(task)
    return f"launch {epoch}, rank {rank} {stage} tile {tile}: did {done}, planned {wanted}"


def _within(done: list[PlanEvent], wanted: list[PlanEvent], open_channels: set[int]) -> bool:
    """True if a task of which a launch decides parts did what it must, and nothing that it may not."""
    fixed = [[e for e in own if e.kind != "transfer" and not _is_open(e, open_channels)] for own in (done, wanted)]
    waits = [{e for e in own if _is_open(e, open_channels)} for own in (done, wanted)]
    moves = [[(e.rank, e.what) for e in own if e.kind == "transfer"] for own in (done, wanted)]
    at_most = all(moves[0].count(move) <= moves[1].count(move) for move in moves[0])
    return _canonical(fixed[0]) == _canonical(fixed[1]) and waits[0] <= waits[1] and at_most


def _is_open(event: PlanEvent, open_channels: set[int]) -> bool:
    return event.kind == "wait" and event.what in open_channels


def _open_waits(plan: Plan) -> set[tuple[int, int]]:
    """Return (task, channel) of the waits for places that a launch decides."""
    s = plan.signals
    rows, channels = plan.each_channel(np.flatnonzero((s.kind == WAIT) & (s.guard > 0)))
    return set(zip(s.task[rows].tolist(), channels.tolist(), strict=True))


def _loose_tasks(plan: Plan) -> set[str]:
    """Return the stages of which a launch decides parts: tiles, iterations, places or branches."""
    guarded = np.unique(plan.accesses.statement[plan.accesses.guard > 0]).tolist()
    waits = np.unique(plan.signals.statement[plan.signals.guard > 0]).tolist()
    counted = {name for name, stage in plan.bound.stages.items() if stage.parts}
    return counted | {plan.statements[number][0] for number in (*guarded, *waits)}


def _canonical(events: list[PlanEvent]) -> list[PlanEvent]:
    """Return the same events, with runs of one kind sorted."""
    result: list[PlanEvent] = []
    run: list[PlanEvent] = []
    for event in events:
        if run and run[-1].kind != event.kind:
            result += sorted(run)
            run = []
        run.append(event)
    return result + sorted(run)


def _planned_order(plan: Plan) -> dict[WorkerKey, list[int]]:
    kernels = plan.bound.kernels
    rows: dict[WorkerKey, list[tuple[int, int, int]]] = defaultdict(list)
    for task in range(plan.tasks):
        number, rank, program = plan.workers[int(plan.worker[task])]
        kernel = kernels[number]
        rows[rank, kernel.stream, program].append((kernel.position, int(plan.sequence[task]), task))
    return {key: [task for _, _, task in sorted(own)] for key, own in rows.items()}


def _own_ranks(plan: Plan) -> Ints:
    own = np.zeros(plan.tasks, np.int64)
    for name, stage in plan.bound.stages.items():
        first = plan.first_task[name]
        own[first : first + stage.total * plan.bound.ranks] = np.repeat(np.arange(plan.bound.ranks), stage.total)
    return own
