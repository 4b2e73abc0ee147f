# pyright: basic
"""Side streams of a launch, without a GPU: a stand-in for the driver says what it was asked to do."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from tilelink.errors import RankError
from tilelink.runtime.cuda import driver, queue
from tilelink.runtime.cuda.copies import Flag
from tilelink.runtime.cuda.queue import Queue
from tilelink.runtime.cuda.sides import Sides

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
            self.calls.append((name, *arguments[-2:]) if name == "cuEventCreate" else (name, *arguments))
            return self.statuses.pop(0) if self.statuses else 0

        setattr(self, name, function)
        return function


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setattr(driver, "torch", SimpleNamespace(cuda=SimpleNamespace(current_device=lambda: 0)))
    return Library()


def test_sides_begin_behind_the_caller_and_it_goes_on_behind_them(library: Library) -> None:
    sides = Sides(library, SIDES)
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


def test_a_launch_on_one_stream_asks_for_nothing(library: Library) -> None:
    sides = Sides(library, ())
    sides.fork(CALLER)
    sides.join(CALLER)
    assert library.calls == []


def test_events_are_freed_with_their_launches(library: Library) -> None:
    sides = Sides(library, SIDES)
    library.calls.clear()
    del sides
    gc.collect()
    assert library.calls == [("cuEventDestroy_v2", event) for event in (101, 102, 103)]


def test_a_thread_without_a_context_gets_one(library: Library) -> None:
    sides = Sides(library, SIDES[:1])
    library.calls.clear()
    library.statuses = [201]
    sides.fork(CALLER)
    names = [name for name, *_ in library.calls]
    entered = ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    assert names == ["cuEventRecord", *entered, "cuEventRecord", "cuStreamWaitEvent"]


def test_a_copy_engine_too(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "library", lambda: library)
    monkeypatch.setattr(queue, "driver", lambda: driver.Driver(library))
    flag = Flag(number=0, rank=1, channel=3, step=1, count=1, slots=1)
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


@pytest.mark.parametrize("statuses", [[700], [201, 0, 0, 0, 700]])
def test_what_the_driver_refuses_is_reported(library: Library, statuses: list[int]) -> None:
    sides = Sides(library, SIDES)
    library.statuses = statuses
    with pytest.raises(RankError, match="does not order streams: error 700"):
        sides.fork(CALLER)
    library.statuses = [2]
    with pytest.raises(RankError, match="makes no event: error 2"):
        Sides(library, SIDES)
