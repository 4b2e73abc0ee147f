"""A simulated launch as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Ranks are processes. Each program of a kernel is a track, named after the kernel, and its storer is another one. Each
direction of a rank's link has asynchronous slices, since transfers overlap there. A counter per kernel shows the
numbers of programs that compute and wait. Arrows lead from the notify that filled a counter to the wait that it ended,
and there is none to a wait that found it full.
Times are in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tilelink.data import save_output
from tilelink.ir.scalar import Env, evaluate
from tilelink.lowering.bound import KernelKind
from tilelink.lowering.columns import Ints
from tilelink.lowering.orders import TILE
from tilelink.planning.plan import Plan
from tilelink.simulator.result import Simulated
from tilelink.simulator.script import AWAIT, COMPUTE, MOVE, SIGNAL

US = 1e6
CATEGORIES = {COMPUTE: "compute", AWAIT: "wait", SIGNAL: "notify", MOVE: "transfer"}
SHORTEST = 1e-9
"""Seconds; a shorter wait or notify is left out, since it delayed nothing."""
Event = dict[str, Any]


def trace_text(result: Simulated) -> str:
    """Return the trace as JSON text for the viewers."""
    other = {"machine": result.machine.name, "seconds": result.seconds, "bound": result.bound.seconds}
    return json.dumps({"traceEvents": list(trace_events(result)), "displayTimeUnit": "ns", "otherData": other})


def save_trace(result: Simulated, path: str | Path) -> None:
    """Write the trace to a file. Raises OutputError if the file cannot be written."""
    save_output(path, trace_text(result))


def trace_events(result: Simulated) -> Iterator[Event]:
    """Yield all events: names of processes and tracks first, then slices, arrows, transfers and counters."""
    yield from names(result.plan)
    yield from _slices(result)
    yield from _arrows(result)
    yield from _transfers(result)
    yield from _counters(result)


def names(plan: Plan) -> Iterator[Event]:
    """Yield the names of the processes and tracks of a plan: a track for every worker."""
    for rank in range(plan.bound.ranks):
        yield _meta("process_name", rank, 0, name=f"rank {rank}")
        yield _meta("process_sort_index", rank, 0, sort_index=rank)
    for worker, (number, rank, program) in enumerate(plan.workers):
        kernel = plan.bound.kernels[number]
        where = "copy engine" if kernel.on_copy_engine else f"program {program}"
        yield _meta("thread_name", rank, track(worker), name=f"{kernel.name} {where}", group=kernel.name)
        yield _meta("thread_sort_index", rank, track(worker), sort_index=track(worker))
        if plan.bound.stages[kernel.name].kind is KernelKind.ROLES:
            storer = storer_track(plan, worker)
            yield _meta(
                "thread_name", rank, storer, name=f"{kernel.name} {where} storer", group=f"{kernel.name} storers"
            )
            yield _meta("thread_sort_index", rank, storer, sort_index=track(worker))


def _meta(what: str, rank: int, track: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": track, "args": args}


def track(worker: int) -> int:
    """Return the track number of a worker."""
    return worker + 1


def storer_track(plan: Plan, worker: int) -> int:
    """Return the track number of the storer of a worker."""
    return track(len(plan.workers) + worker)


def _shown(result: Simulated) -> Ints:
    """Return the operations that took time, and the notifies that ended a wait."""
    t = result.timeline
    took = t.end - t.begin > SHORTEST
    took[t.filler[t.filler >= 0]] = True
    return np.flatnonzero(took)


def _slices(result: Simulated) -> Iterator[Event]:
    t = result.timeline
    script, plan = t.script, result.plan
    indices = {stage: indices_of(plan, stage) for stage in plan.bound.stages}
    for row in _shown(result).tolist():
        kind, task = int(script.kind[row]), int(script.task[row])
        stage, rank, tile = plan.task_name(task)
        name = stage if kind == COMPUTE else CATEGORIES[kind]
        args: Event = {"stage": stage, "tile": tile}
        if kind == COMPUTE:
            args |= {index: int(column[task - plan.first_task[stage]]) for index, column in indices[stage].items()}
        elif kind == MOVE:
            move = int(script.what[row])
            args |= {"from": int(script.moves.source[move]), "to": int(script.moves.target[move])}
            args["bytes"] = int(script.moves.size[move])
        else:
            peer, channel = divmod(int(script.what[row]), max(plan.channels, 1))
            tensor, signal, place = plan.channel_name(channel)
            args |= {"rank": peer, "tensor": tensor, "signal": signal, "channel": list(place)}
        begin, end = float(t.begin[row]) * US, float(t.end[row]) * US
        where = _track_of(result, row)
        yield {"ph": "X", "name": name, "cat": CATEGORIES[kind], "pid": rank, "tid": where, "ts": begin,
               "dur": end - begin, "args": args}  # fmt: skip


def _track_of(result: Simulated, row: int) -> int:
    script, worker = result.timeline.script, int(result.timeline.script.worker[row])
    return storer_track(script.plan, worker) if script.stored_apart[row] else track(worker)


def indices_of(plan: Plan, name: str) -> dict[str, Ints]:
    """Return index -> its value for each task of a stage, rank by rank."""
    stage, ranks = plan.bound.stages[name], plan.bound.ranks
    rank = np.repeat(np.arange(ranks, dtype=np.int64), stage.total)
    t = np.tile(np.arange(stage.total, dtype=np.int64), ranks)
    env = Env(rank=rank, ranks=ranks, params={}, indices={TILE.name: t})
    values = {d.name: evaluate(stage.order[d.name], env) for d in stage.stage.indices}
    return {index: np.broadcast_to(np.asarray(v, dtype=np.int64), t.shape) for index, v in values.items()}


def _arrows(result: Simulated) -> Iterator[Event]:
    t = result.timeline
    script = t.script
    waits = np.flatnonzero((script.kind == AWAIT) & (t.end - t.begin > SHORTEST))
    waits = waits[t.full[script.what[waits]] > t.begin[waits]]
    for number, wait in enumerate(waits.tolist()):
        notify = int(t.filler[script.what[wait]])
        if notify < 0:
            continue
        for phase, row, time in (("s", notify, t.begin[notify]), ("f", wait, t.end[wait])):
            event = {"ph": phase, "id": number, "name": "signal", "cat": "signal", "pid": int(script.rank[row]),
                     "tid": _track_of(result, row), "ts": float(time) * US}  # fmt: skip
            yield event | ({"bp": "e"} if phase == "f" else {})


def _transfers(result: Simulated) -> Iterator[Event]:
    t = result.timeline
    moves = t.script.moves
    for move in np.flatnonzero(moves.reach > 0).tolist():
        source, target, size = (int(c[move]) for c in (moves.source, moves.target, moves.size))
        for rank, name, way in ((source, f"to {target}", "link out"), (target, f"from {source}", "link in")):
            same = {"name": name, "cat": way, "pid": rank, "tid": 0, "id": f"{way} {move}"}
            yield {**same, "ph": "b", "ts": float(t.started[move]) * US, "args": {"bytes": size}}
            yield {**same, "ph": "e", "ts": float(t.moved[move]) * US}


def _counters(result: Simulated) -> Iterator[Event]:
    """Yield the numbers of programs of a kernel that compute and wait, at every time at which they change."""
    t = result.timeline
    script, plan = t.script, result.plan
    kernel_of_worker = np.array([n for n, _, _ in plan.workers], dtype=np.int64)
    for number, kernel in enumerate(plan.bound.kernels):
        for rank in range(plan.bound.ranks):
            rows = np.flatnonzero((kernel_of_worker[script.worker] == number) & (script.rank == rank))
            times, busy = levels(result, rows)
            for time, (computing, waiting) in zip(times.tolist(), busy.tolist(), strict=True):
                yield {"ph": "C", "name": f"{kernel.name} programs", "pid": rank, "ts": time * US,
                       "args": {"compute": computing, "wait": waiting}}  # fmt: skip


def levels(result: Simulated, rows: Ints) -> tuple[Any, Ints]:
    """Return (times, [times, 2]: programs that compute and wait from each time on) for some operations."""
    t = result.timeline
    kind = t.script.kind[rows]
    stamps = np.concatenate([t.begin[rows], t.end[rows]])
    change = np.zeros((2 * len(rows), 2), np.int64)
    for column, wanted in enumerate((COMPUTE, AWAIT)):
        change[: len(rows), column] = kind == wanted
        change[len(rows) :, column] = -(kind == wanted).astype(np.int64)
    times, inverse = np.unique(stamps, return_inverse=True)
    total = np.zeros((len(times), 2), np.int64)
    np.add.at(total, inverse, change)
    return times, total.cumsum(axis=0)
