"""Timelines as one HTML page that needs no network: the events of traces as columns, which timeline.html draws.

A page has panels, one above the other: the prediction, the measurement. Both come as the trace events of `trace.py` and
`measured.py`, so a page shows what a trace file has. Times are integers in nanoseconds.
"""

from __future__ import annotations

import html
import json
import zlib
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tilelink.data import save_output
from tilelink.simulator.result import Simulated
from tilelink.simulator.trace import Event, trace_events

TEMPLATE = Path(__file__).with_name("timeline.html")


class Slice(NamedTuple):
    """One activity. note: what a trace says of it, name -> value."""

    begin: int
    end: int
    kind: str
    what: str
    note: Mapping[str, Any]


@dataclass(kw_only=True)
class Lane:
    """A program, a copy engine, or transfers of a link that do not overlap: slices by their begin.

    group: the kernel, or the direction of the link.
    """

    rank: int
    group: str
    name: str
    slices: list[Slice] = field(default_factory=list[Slice])
    waits: list[int] = field(default_factory=list[int])
    """Slices that an arrow ends, in order."""

    def sort(self) -> None:
        self.slices.sort(key=lambda one: (one.begin, -one.end))

    @property
    def end(self) -> int:
        return max(one.end for one in self.slices)


class Arrow(NamedTuple):
    """From a notify to the wait that it ended: lane and slice of both."""

    lane: int
    notify: int
    waiting: int
    wait: int


def save_page(
    result: Simulated,
    path: str | Path,
    measured: Mapping[str, Iterable[Event]] | None = None,
    *,
    one_clock: bool = True,
) -> None:
    """Write the page of a prediction, and of what was measured below it. Raises OutputError if it cannot be written."""
    bound, us = result.plan.bound, result.seconds * 1e6
    title = f"{bound.program.name} with {bound.schedule.name} on {bound.ranks} ranks"
    bound_us = result.bound.seconds * 1e6
    heading = f"predicted for {result.machine.name}: {us:.1f} us (no schedule can take less than {bound_us:.1f} us)"
    panels = {heading: trace_events(result), **(measured or {})}
    save_output(path, page_text(title, panels, one_clock=one_clock))


def page_text(title: str, panels: Mapping[str, Iterable[Event]], *, one_clock: bool = True) -> str:
    """Return the page. panels: heading -> the trace events of one launch.

    one_clock: False to stretch each panel to the width of the page, if their times cannot be compared.
    """
    found = [_panel(heading, events) for heading, events in panels.items()]
    longest = max(panel["span"] for panel in found)
    for panel in found:
        panel["span"] = longest if one_clock else panel["span"]
    packed = b64encode(zlib.compress(json.dumps(found, separators=(",", ":")).encode())).decode()
    page = TEMPLATE.read_text(encoding="utf-8").replace("{{ title }}", html.escape(title))
    return page.replace("{{ data }}", packed)


def _panel(heading: str, events: Iterable[Event]) -> dict[str, Any]:
    """Return what the page has of a launch. Names and keys of notes are numbers in `names` and `keys`."""
    lanes, arrows = lanes_of(events)
    names: dict[str, int] = {}
    keys: dict[tuple[str, ...], int] = {}
    rows = [
        {
            "rank": lane.rank,
            "group": lane.group,
            "name": lane.name,
            "begin": [one.begin for one in lane.slices],
            "end": [one.end for one in lane.slices],
            "kind": [names.setdefault(one.kind, len(names)) for one in lane.slices],
            "what": [names.setdefault(one.what, len(names)) for one in lane.slices],
            "note": [[keys.setdefault(tuple(one.note), len(keys)), *one.note.values()] for one in lane.slices],
        }
        for lane in lanes
    ]
    span = max((lane.end for lane in lanes), default=1)
    return {"heading": heading, "span": span, "lanes": rows, "names": list(names), "keys": list(keys),
            "arrows": arrows, "critical": critical_path(lanes, arrows)}  # fmt: skip


def _ns(us: float) -> int:
    return round(us * 1000)


def lanes_of(events: Iterable[Event]) -> tuple[list[Lane], list[Arrow]]:
    """Return the lanes that have slices, rank by rank, and the arrows between them."""
    programs: dict[tuple[int, int], Lane] = {}
    links: dict[tuple[int, str], list[Slice]] = {}
    opened: dict[Any, Event] = {}
    ends: list[tuple[Event, Event]] = []
    for event in events:
        place = event["pid"], event.get("tid", 0)
        match event["ph"]:
            case "M" if event["name"] == "thread_name":
                programs[place] = Lane(rank=event["pid"], group=event["args"]["group"], name=event["args"]["name"])
            case "X":
                begin, end = _ns(event["ts"]), _ns(event["ts"] + event["dur"])
                programs[place].slices.append(Slice(begin, end, event["cat"], event["name"], event["args"]))
            case "b":
                opened[event["pid"], event["id"]] = event
            case "e":
                first = opened.pop((event["pid"], event["id"]))
                moved = Slice(_ns(first["ts"]), _ns(event["ts"]), "transfer", event["name"], first["args"])
                links.setdefault((event["pid"], event["cat"]), []).append(moved)
            case "s":
                opened[event["id"]] = event
            case "f":
                ends.append((opened.pop(event["id"]), event))
            case _:
                pass
    own = {place: lane for place, lane in programs.items() if lane.slices}
    for lane in own.values():
        lane.sort()
    beside = [lane for (rank, way), moves in sorted(links.items()) for lane in _beside(rank, way, moves)]
    lanes = sorted([*own.values(), *beside], key=lambda lane: lane.rank)
    number = {id(lane): n for n, lane in enumerate(lanes)}
    arrows: list[Arrow] = []
    for start, end in ends:
        source, target = own[start["pid"], start["tid"]], own[end["pid"], end["tid"]]
        notify = _found(source, _ns(start["ts"]), lambda one, time: one.kind == "notify" and one.begin == time)
        wait = _found(target, _ns(end["ts"]), lambda one, time: one.kind == "wait" and abs(one.end - time) <= 1)
        if notify is not None and wait is not None:
            target.waits.append(wait)
            arrows.append(Arrow(number[id(source)], notify, number[id(target)], wait))
    for lane in lanes:
        lane.waits.sort()
    return lanes, arrows


def _found(lane: Lane, time: int, fits: Callable[[Slice, int], bool]) -> int | None:
    """Return the last slice that has begun at a time and fits."""
    row = bisect_right(lane.slices, time, key=lambda one: one.begin) - 1
    while row >= 0 and not fits(lane.slices[row], time):
        row -= 1
    return row if row >= 0 else None


def _beside(rank: int, way: str, moves: list[Slice]) -> list[Lane]:
    """Return as few lanes as transfers that overlap need."""
    lanes: list[Lane] = []
    for move in sorted(moves, key=lambda one: (one.begin, one.end)):
        free = next((lane for lane in lanes if lane.slices[-1].end <= move.begin), None)
        if free is None:
            free = Lane(rank=rank, group=way, name=f"{way} {len(lanes)}")
            lanes.append(free)
        free.slices.append(move)
    return lanes


def critical_path(lanes: Sequence[Lane], arrows: Iterable[Arrow]) -> list[tuple[int, int, int]]:
    """Return (lane, begin, end) of the chain of activities that ends last, from its end to its begin.

    A lane is followed back to its last wait that a notify ended, and from there the lane that notified. From the first
    activity of a lane the chain goes on with the one that ended last before it on its rank: the kernel before it.
    Of a lane that takes no time none of this says which comes first, so from no first activity it goes on twice.
    """
    programs = [n for n, lane in enumerate(lanes) if not lane.group.startswith("link ")]
    causes = {(arrow.waiting, arrow.wait): arrow for arrow in arrows}
    found: list[tuple[int, int, int]] = []
    begun = set[int]()
    """Lanes that were followed to their first activity."""
    lane = max(programs, key=lambda n: lanes[n].end, default=None)
    time = lanes[lane].end if lane is not None else 0
    while lane is not None and time > 0:
        own = lanes[lane]
        row = bisect_right(own.waits, time, key=lambda wait: own.slices[wait].end) - 1
        begin = own.slices[own.waits[row]].end if row >= 0 else own.slices[0].begin
        found.append((lane, begin, time))
        if row >= 0:
            arrow = causes[lane, own.waits[row]]
            lane, time = arrow.lane, min(begin - 1, lanes[arrow.lane].slices[arrow.notify].begin)
        else:
            begun.add(lane)
            before = [n for n in programs if n not in begun and lanes[n].rank == own.rank and lanes[n].end <= begin]
            lane = max(before, key=lambda n: lanes[n].end, default=None)
            time = lanes[lane].end if lane is not None else 0
    return found
