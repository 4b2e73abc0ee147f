"""Queues of copy engines as graphs, without a GPU: a stand-in for the driver says what it was asked to do."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import pytest

from tilelink.errors import RankError
from tilelink.runtime.cuda import driver
from tilelink.runtime.cuda.graphs import ENOUGH, KEPT, Graphs, Replay
from tilelink.runtime.cuda.handles import Handles

STREAM = 7
BASES = {"x": 100, "w": 1}


class Function:
    def __init__(self, library: Library, name: str) -> None:
        self.library, self.name = library, name

    def __call__(self, *arguments: Any) -> int:
        self.library.calls.append(self.name)
        if self.name in self.library.without_context:
            self.library.without_context.remove(self.name)
            return 201
        if self.name in self.library.failing:
            return 1
        if self.name == "cuStreamEndCapture":
            arguments[1]._obj.value = 11
        if self.name == "cuGraphInstantiateWithFlags":
            self.library.made += 1
            arguments[0]._obj.value = 1000 + self.library.made
        if self.name == "cuGraphLaunch":
            self.library.launched.append(arguments[0])
        return 0


class Library:
    """What was called, and what is to fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.launched: list[int] = []
        self.failing: set[str] = set()
        self.without_context: set[str] = set()
        """Functions whose next call finds none."""
        self.made = 0

    def __getattr__(self, name: str) -> Function:
        function = Function(self, name)
        setattr(self, name, function)
        return function


class Queue:
    """Keeps the addresses of x that it was issued with."""

    names = frozenset({"x"})

    def __init__(self, operations: int = ENOUGH) -> None:
        self.operations, self.issued, self.captured = operations, list[int](), list[bool]()

    def __len__(self) -> int:
        return self.operations

    def issue(self, stream: int, bases: Mapping[str, int], captured: bool = False) -> None:
        assert stream == STREAM
        self.issued.append(bases["x"])
        self.captured.append(captured)


@pytest.fixture
def library() -> Library:
    return Library()


class Issued:
    """Issues a queue as a launch does."""

    def __init__(self, library: Library, queue: Queue) -> None:
        self._replay = Replay(queue, Graphs(Handles(library)))

    def issue(self, stream: int, bases: Mapping[str, int], capturing: bool) -> None:
        self._replay.issue(stream, bases, self._replay.graph(stream, bases, capturing), capturing)


def replay(library: Library, queue: Queue) -> Issued:
    return Issued(library, queue)


def test_the_third_launch_with_the_same_addresses_is_one_call(library: Library) -> None:
    queue = Queue()
    one = replay(library, queue)
    for w in range(5):  # not the queue's
        one.issue(STREAM, {"x": 100, "w": w}, False)
    assert queue.issued == [100, 100] and queue.captured == [False, True]  # itself, then into the graph
    assert library.launched == [1001] * 4
    captures = [
        "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphDestroy",
        "cuGraphUpload",
    ]  # fmt: skip
    assert library.calls == [*captures, *["cuGraphLaunch"] * 4]


def test_every_set_of_addresses_has_its_own_graph(library: Library) -> None:
    one = replay(library, Queue())
    for _ in range(3):
        for x in (100, 200):
            one.issue(STREAM, {"x": x}, False)
    assert library.launched == [1001, 1002, 1001, 1002]


def test_addresses_that_never_come_again_are_forgotten(library: Library) -> None:
    queue = Queue()
    one = replay(library, queue)
    for x in range(KEPT + 1):
        one.issue(STREAM, {"x": x}, False)
    one.issue(STREAM, {"x": 0}, False)
    assert library.launched == [] and len(queue.issued) == KEPT + 2
    one.issue(STREAM, {"x": KEPT}, False)
    assert library.launched == [1001]


@pytest.mark.parametrize("capturing", [True, False])
def test_captured_and_short_queues_are_issued_as_they_are(library: Library, capturing: bool) -> None:
    queue = Queue(ENOUGH if capturing else ENOUGH - 1)
    one = replay(library, queue)
    for _ in range(4):
        one.issue(STREAM, BASES, capturing)
    assert queue.issued == [100] * 4 and library.calls == []
    assert queue.captured == [capturing] * 4


def test_a_driver_that_uploads_nothing_launches_all_the_same(library: Library) -> None:
    library.failing.add("cuGraphUpload")
    one = replay(library, Queue())
    for _ in range(3):
        one.issue(STREAM, BASES, False)
    assert library.launched == [1001, 1001]


REFUSALS = {
    "cuStreamBeginCapture_v2": 4,
    "cuStreamEndCapture": 5,
    "cuGraphInstantiateWithFlags": 5,
    "cuGraphLaunch": 5,
}


@pytest.mark.parametrize(("failing", "issued"), REFUSALS.items())
def test_a_driver_that_refuses_gets_the_operations_themselves(library: Library, failing: str, issued: int) -> None:
    """Each launch is done once: what went into a graph that there is not was not done."""
    library.failing.add(failing)
    queue = Queue()
    one = replay(library, queue)
    for _ in range(4):
        one.issue(STREAM, BASES, False)
    assert len(queue.issued) == issued and library.launched == []
    assert library.calls.count(failing) == 1


def test_the_last_graphs_are_kept(library: Library) -> None:
    one = replay(library, Queue())
    for x in range(KEPT + 1):
        for _ in range(2):
            one.issue(STREAM, {"x": x}, False)
    assert library.calls.count("cuGraphExecDestroy") == 1 and library.made == KEPT + 1
    one.issue(STREAM, {"x": 1}, False)
    assert library.launched[-1] == 1002, "the first one went"
    for _ in range(2):
        one.issue(STREAM, {"x": 0}, False)
    assert library.launched[-1] == 1000 + KEPT + 2


def test_an_operation_that_cannot_be_captured_is_issued_instead(library: Library) -> None:
    class Refusing(Queue):
        def issue(self, stream: int, bases: Mapping[str, int], captured: bool = False) -> None:
            super().issue(stream, bases, captured)
            if captured:
                raise RankError("refused")

    queue = Refusing()
    one = replay(library, queue)
    for _ in range(4):
        one.issue(STREAM, BASES, False)
    assert queue.captured == [False, True, False, False, False] and library.launched == []
    ended = ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphDestroy"]
    assert library.calls == ended, "what was captured is thrown away, and it is not tried again"


def test_graphs_are_freed_with_their_queue(library: Library) -> None:
    one = replay(library, Queue())
    for _ in range(2):
        one.issue(STREAM, BASES, False)
    del one
    gc.collect()
    assert library.calls.count("cuGraphExecDestroy") == 1


@pytest.mark.parametrize("first", ["cuStreamBeginCapture_v2", "cuGraphLaunch"])
def test_a_thread_without_a_context_gets_one(first: str, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused for want of one, there would be no graphs from then on."""
    entered: list[int] = []
    monkeypatch.setattr(driver.torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(driver, "enter_context", lambda library, device: entered.append(device))
    library.without_context.add(first)
    queue = Queue()
    one = replay(library, queue)
    for _ in range(3):
        one.issue(STREAM, BASES, False)
    assert entered == [3] and library.launched == [1001, 1001] and queue.issued == [100, 100]
