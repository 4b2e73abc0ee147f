"""Trace events of a measured launch, in the form of those of a simulated launch, for comparison side by side.

Ranks, tracks, names and counters are those of trace.py. The differences are: a tile is a slice that encloses its waits,
notifies and transfers; no slice is left out for being short; several launches follow each other, and arguments name the
launch. Arrows lead from the notify that filled a counter to the waits that had begun before it ended.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tilelink.ir.program import ITEM_BYTES, Read, Transfer
from tilelink.ir.visitor import statements
from tilelink.planning.plan import Plan
from tilelink.planning.traces import Pad
from tilelink.simulator.trace import Event, indices_of, names, track

NS_IN_US = 1e3


class Span(NamedTuple):
    """One activity of a worker: the fields of device/spans.py, with times in ns of one clock."""

    rank: int
    track: int
    kind: str
    stage: int
    tile: int
    a: int
    b: int
    epoch: int
    begin: int
    end: int


RawSpan = tuple[int, int, str, int, int, int, int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measured launches of a plan: their spans, and facts about the clock (JSON values)."""

    plan: Plan
    raw: Sequence[RawSpan]
    clock: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @cached_property
    def spans(self) -> list[Span]:
        """All spans by their begin, in ns from the first begin."""
        start = min((one[8] for one in self.raw), default=0)
        moved = (Span(*one[:8], one[8] - start, one[9] - start) for one in self.raw)
        return sorted(moved, key=lambda span: (span.begin, -span.end))

    @property
    def last(self) -> Measured:
        """The last launch alone."""
        launch = max((one[7] for one in self.raw), default=0)
        return replace(self, raw=[one for one in self.raw if one[7] == launch])

    @cached_property
    def workers(self) -> dict[tuple[int, int], int]:
        """(rank, program number over all kernels of the rank) -> worker of the plan."""
        found: dict[tuple[int, int], int] = {}
        counts: dict[int, int] = defaultdict(int)
        for worker, (_, rank, _) in enumerate(self.plan.workers):
            found[rank, counts[rank]] = worker
            counts[rank] += 1
        return found

    @property
    def launch_seconds(self) -> dict[int, float]:
        """launch -> seconds from its first begin to its last end, over all ranks."""
        found: dict[int, tuple[int, int]] = {}
        for span in self.spans:
            begin, end = found.get(span.epoch, (span.begin, span.end))
            found[span.epoch] = (min(begin, span.begin), max(end, span.end))
        return {epoch: (end - begin) * 1e-9 for epoch, (begin, end) in sorted(found.items())}


def measured_text(measured: Measured) -> str:
    """Return the timeline as JSON text for the viewers."""
    seconds = {str(epoch): seconds for epoch, seconds in measured.launch_seconds.items()}
    other = {"measured": True, "launch_seconds": seconds, **measured.clock}
    events = list(measured_events(measured))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other})


def measured_events(measured: Measured) -> Iterator[Event]:
    """Yield all events: names of processes and tracks first, then slices, arrows, transfers and counters."""
    yield from names(measured.plan)
    yield from _slices(measured)
    yield from _arrows(measured)
    yield from _transfers(measured)
    yield from _counters(measured)


def _slices(measured: Measured) -> Iterator[Event]:
    plan = measured.plan
    stages = tuple(plan.bound.stages)
    indices = {stage: indices_of(plan, stage) for stage in stages}
    pad = Pad(plan)
    for span in measured.spans:
        stage = stages[span.stage] if span.stage < len(stages) else "runtime"
        args: Event = {"stage": stage, "tile": span.tile, "launch": span.epoch}
        match span.kind:
            case "tile":
                row = span.rank * plan.bound.stages[stage].total + span.tile
                args |= {index: int(column[row]) for index, column in indices[stage].items()}
            case "wait":
                args |= _counter(plan, pad, span.rank, span.a, span.epoch)
            case "notify":
                args |= _counter(plan, pad, span.a, span.b, span.epoch)
            case _:
                args |= {"peer": span.a, "tensor": plan.bound.tensor_numbered(span.b).name}
        name = stage if span.kind == "tile" else span.kind
        yield {"ph": "X", "name": name, "cat": span.kind, **_place(measured, span), "ts": span.begin / NS_IN_US,
               "dur": (span.end - span.begin) / NS_IN_US, "args": args}  # fmt: skip


def _place(measured: Measured, span: Span) -> Event:
    return {"pid": span.rank, "tid": track(measured.workers[span.rank, span.track])}


def _counter(plan: Plan, pad: Pad, rank: int, place: int, epoch: int) -> Event:
    """Return the name of a counter; those of the runtime count the launches that a rank has entered or finished."""
    bound = plan.bound
    for signal, base in (("finished", bound.finished_base), ("entered", bound.entered_base)):
        if place >= base:
            return {"rank": rank, "signal": signal, "of": place - base}
    channel, _ = pad.place(place, epoch)
    tensor, signal, coordinates = plan.channel_name(channel)
    return {"rank": rank, "tensor": tensor, "signal": signal, "channel": list(coordinates)}


def _arrows(measured: Measured) -> Iterator[Event]:
    filler: dict[tuple[int, int, int], Span] = {}
    for span in measured.spans:
        if span.kind == "notify":
            key = (span.epoch, span.a, span.b)
            last = filler.get(key)
            filler[key] = span if last is None or span.end > last.end else last
    number = 0
    for wait in measured.spans:
        notify = filler.get((wait.epoch, wait.rank, wait.a)) if wait.kind == "wait" else None
        if notify is None or notify.end < wait.begin:
            continue
        for phase, span, time in (("s", notify, notify.begin), ("f", wait, wait.end)):
            event = {"ph": phase, "id": number, "name": "signal", "cat": "signal", **_place(measured, span),
                     "ts": time / NS_IN_US}  # fmt: skip
            yield event | ({"bp": "e"} if phase == "f" else {})
        number += 1


def _transfers(measured: Measured) -> Iterator[Event]:
    """Yield transfers over links, at both ends: from the first load to the last store, which may arrive later."""
    sizes, inward = _sizes(measured.plan), fetching(measured.plan)
    done: dict[tuple[int, int, int, int], int] = defaultdict(int)
    moves = [span for span in measured.spans if span.kind == "transfer"]
    for move, span in enumerate(moves):
        key = (span.rank, span.stage, span.tile, span.epoch)
        number, done[key] = done[key], done[key] + 1
        if span.a == span.rank:
            continue
        known = sizes.get(key[:3], [])
        args = {"bytes": known[number]} if number < len(known) else {}
        source, target = (span.a, span.rank) if span.stage in inward else (span.rank, span.a)
        for rank, name, way in ((source, f"to {target}", "link out"), (target, f"from {source}", "link in")):
            same = {"name": name, "cat": way, "pid": rank, "tid": 0, "id": f"{way} {move}"}
            yield {**same, "ph": "b", "ts": span.begin / NS_IN_US, "args": args}
            yield {**same, "ph": "e", "ts": span.end / NS_IN_US}


def _sizes(plan: Plan) -> dict[tuple[int, int, int], list[int]]:
    """Return (rank, stage number, tile) -> the bytes of its transfers, in order."""
    found: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    rows = plan.transfers
    for row in np.lexsort((rows.position, rows.task)).tolist():
        stage, rank, tile = plan.task_name(int(rows.task[row]))
        item = ITEM_BYTES[plan.bound.tensor_numbered(int(rows.tensor[row])).dtype]
        found[rank, plan.bound.stages[stage].number, tile].append(int(rows.elements[row]) * item)
    return found


def fetching(plan: Plan) -> set[int]:
    """Return the numbers of the stages whose transfers load from a peer."""
    return {
        stage.number
        for stage in plan.bound.stages.values()
        for s in statements(stage.stage.body)
        if isinstance(s, Transfer) and s.mode != "push" and s.target.rank is None and isinstance(s.source, Read)
    }


def _counters(measured: Measured) -> Iterator[Event]:
    """Yield the numbers of programs of a kernel that compute and wait, at every time at which they change."""
    plan = measured.plan
    changes: dict[tuple[int, int], dict[int, list[int]]] = {}
    opened: dict[tuple[int, int], int] = {}
    for span in measured.spans:
        if span.kind not in ("tile", "wait"):
            continue
        worker = measured.workers[span.rank, span.track]
        own = changes.setdefault((plan.workers[worker][0], span.rank), defaultdict(lambda: [0, 0]))
        if span.kind == "tile":
            opened[span.rank, span.track] = span.end
        inside = span.kind == "wait" and span.begin < opened.get((span.rank, span.track), 0)
        for time, sign in ((span.begin, 1), (span.end, -1)):
            own[time][0] += sign if span.kind == "tile" else -sign * inside
            own[time][1] += sign * (span.kind == "wait")
    for (number, rank), steps in sorted(changes.items()):
        computing = waiting = 0
        for time in sorted(steps):
            computing, waiting = computing + steps[time][0], waiting + steps[time][1]
            yield {"ph": "C", "name": f"{plan.bound.kernels[number].name} programs", "pid": rank,
                   "ts": time / NS_IN_US, "args": {"compute": computing, "wait": waiting}}  # fmt: skip
