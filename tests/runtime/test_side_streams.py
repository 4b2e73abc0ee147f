# pyright: basic
"""Side streams of a launch, without a GPU: a stand-in for the driver says what it was asked to do."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilelink.errors import RankError
from tilelink.runtime.cuda import driver, queue
from tilelink.runtime.cuda.graph_branches import Branches
from tilelink.runtime.cuda.handles import Handles
from tilelink.runtime.cuda.queue import Queue
from tilelink.runtime.cuda.record_copies import Box, Copy, StreamWait, StreamWrite
from tilelink.runtime.cuda.side_streams import Sides

CALLER, SIDES = 7, (20, 30)


class Library:
    """Keeps its calls; a status in `statuses` is what the next of them returns."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.statuses: list[int] = []
        self.events = 100

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            if name == "cuEventCreate":
                self.events += 1
                arguments[0]._obj.value = self.events
            if name == "cuStreamCreateWithPriority":
                arguments[0]._obj.value = 500
            self.calls.append((name, *arguments[-2:]) if name == "cuEventCreate" else (name, *arguments))
            return self.statuses.pop(0) if self.statuses else 0

        setattr(self, name, function)
        return function


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setattr(driver, "torch", SimpleNamespace(cuda=SimpleNamespace(current_device=lambda: 0)))
    return Library()


def test_sides_begin_behind_the_caller_and_it_goes_on_behind_them(library: Library) -> None:
    sides = Sides(Handles(library), SIDES)
    library.calls.clear()
    sides.fork(CALLER)
    assert library.calls == [
        ("cuEventRecord", 101, CALLER), ("cuStreamWaitEvent", 20, 101, 0), ("cuStreamWaitEvent", 30, 101, 0)
    ]  # fmt: skip
    library.calls.clear()
    sides.join(CALLER)
    assert library.calls == [
        ("cuEventRecord", 102, 20), ("cuStreamWaitEvent", CALLER, 102, 0),
        ("cuEventRecord", 103, 30), ("cuStreamWaitEvent", CALLER, 103, 0),
    ]  # fmt: skip


def test_streams_are_nobody_elses_and_freed(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    handles = Handles(library)
    assert handles.stream(torch.device("cuda:0"), -1) == 500 and library.calls[-1][0] == "cuStreamCreateWithPriority"
    assert library.calls[-1][2:] == (1, -1), "it does not wait for the default stream"
    library.statuses = [2]
    with pytest.raises(RankError, match="cannot make a stream: error 2"):
        handles.stream(torch.device("cuda:0"))
    del handles
    gc.collect()
    assert library.calls[-1] == ("cuStreamDestroy_v2", 500)


def test_a_launch_on_one_stream_asks_for_nothing(library: Library) -> None:
    sides = Sides(Handles(library), ())
    sides.fork(CALLER)
    sides.join(CALLER)
    assert library.calls == []


def test_events_are_freed_with_their_launches(library: Library) -> None:
    sides = Sides(Handles(library), SIDES)
    library.calls.clear()
    del sides
    gc.collect()
    assert library.calls == [("cuEventDestroy_v2", event) for event in (101, 102, 103)]


def test_a_thread_without_a_context_gets_one(library: Library) -> None:
    sides = Sides(Handles(library), SIDES[:1])
    library.calls.clear()
    library.statuses = [201]
    sides.fork(CALLER)
    names = [name for name, *_ in library.calls]
    entered = ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    assert names == ["cuEventRecord", *entered, "cuEventRecord", "cuStreamWaitEvent"]


def test_a_copy_engine_too(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "library", lambda: library)
    monkeypatch.setattr(queue, "driver", lambda: driver.Driver(library))
    flag = StreamWrite(number=0, rank=1, channel=3, step=1, count=1, buffers=1)
    copies = Queue([flag], lambda *_: None, [1000, 2000], 0, 64)
    library.statuses = [201]
    copies.issue(SIDES[0], {})
    names = [name for name, *_ in library.calls]
    copy = "cuMemcpyDtoDAsync_v2"
    assert names == [copy, "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", copy]
    assert [cell.value for cell in library.calls[-1][1:]] == [2000 + 4 * 3, 64, 4, SIDES[0]]
    library.statuses = [201, 0, 0, 0, 700]
    with pytest.raises(RankError, match="refused an operation of a copy engine: error 700"):
        copies.issue(SIDES[0], {})


WAITS = 40


def queue_of(library: Library, monkeypatch: pytest.MonkeyPatch, kinds: str) -> Queue:
    """A queue of gates (g), copies (c) and flags (f), with a branch for its waits."""
    monkeypatch.setattr(queue, "library", lambda: library)
    monkeypatch.setattr(queue, "driver", lambda: driver.Driver(library))
    box = Box(tensor="x", rank=0, offsets=(0,), width=64)
    made = {
        "g": StreamWait(channel=0, threshold=1), "c": Copy(target=box, source=box),
        "f": StreamWrite(number=0, rank=1, channel=3, step=1, count=1, buffers=1),
    }  # fmt: skip
    branches = Branches(Handles(library), WAITS)
    return Queue([made[kind] for kind in kinds], lambda *_: 0, [0, 0], 0, 0, branches=branches)


def graph_of(calls: list[tuple[Any, ...]], stream: int) -> list[tuple[str, set[int]]]:
    """Every operation with the numbers of those that it comes behind, as a capture of these calls makes them.

    -1 is what was on the stream before.
    """
    done: dict[int, set[int]] = {stream: {-1}, WAITS: set()}
    events: dict[int, set[int]] = {}
    found: list[tuple[str, set[int]]] = []
    for call, *arguments in calls:
        values = [getattr(one, "value", one) for one in arguments]
        if call == "cuEventRecord":
            events[values[0]] = set(done[values[1]])
        elif call == "cuStreamWaitEvent":
            done[values[0]] |= events[values[1]]
        elif call.startswith(("cuMemcpy", "cuStreamBatchMemOp")):
            on = values[0] if "Batch" in call else values[-1]
            kind = "g" if "Batch" in call else "f" if values[2] == 4 else "c"
            found.append((kind, set(done[on])))
            done[on].add(len(found) - 1)
    found.append(("end", set(done[stream])))
    return found


@pytest.mark.parametrize("kinds", ["gcfgcf", "cfcf", "ggcfcgf", "gf", "cg"])
def test_captured_waits_are_a_branch(library: Library, monkeypatch: pytest.MonkeyPatch, kinds: str) -> None:
    one = queue_of(library, monkeypatch, kinds)
    library.calls.clear()
    one.issue(SIDES[0], {}, True)
    *nodes, (_, behind) = graph_of(library.calls, SIDES[0])
    assert "".join(kind for kind, _ in nodes) == kinds
    for at, (kind, before) in enumerate(nodes):
        assert before == {-1} | {n for n in range(at) if kind != "g" or kinds[n] == "g"}, "only waits leave the line"
    assert behind == {-1, *range(len(kinds))}, "nothing is left behind"
    assert any(call == ("cuStreamWaitEvent", WAITS) for call in (c[:2] for c in library.calls)) == ("g" in kinds), (
        "a stream that joins a capture must be joined again"
    )


def test_waits_are_in_line_where_nothing_is_captured(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    one = queue_of(library, monkeypatch, "gcf")
    for captured in (True, False):
        library.calls.clear()
        one.issue(SIDES[0], {}, captured)
    assert [name for name, *_ in library.calls] == ["cuStreamBatchMemOp_v2", *["cuMemcpyDtoDAsync_v2"] * 2]
    assert library.calls[0][1].value == SIDES[0]


@pytest.mark.parametrize("statuses", [[700], [201, 0, 0, 0, 700]])
def test_what_the_driver_refuses_is_reported(library: Library, statuses: list[int]) -> None:
    sides = Sides(Handles(library), SIDES)
    library.statuses = statuses
    with pytest.raises(RankError, match="does not order streams: error 700"):
        sides.fork(CALLER)
    library.statuses = [2]
    with pytest.raises(RankError, match="cannot make an event: error 2"):
        Sides(Handles(library), SIDES)
