# pyright: basic
"""When a launch is one graph: with a stand-in for the driver, and for what a launch issues."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import artifacts
from tests.runtime.test_graphs import Library
from tilelink.runtime.cuda.arguments import Arguments
from tilelink.runtime.cuda.graphs import GraphCache, Graphs
from tilelink.runtime.cuda.handles import Handles
from tilelink.runtime.cuda.kernel import GpuKernel
from tilelink.runtime.cuda.launch_driver import LaunchDriver

CALLER, OWN = 1, 9


class Rank:
    """A rank's kernel, as far as a launch goes; `done` says what was issued, in order."""

    def __init__(self, library: Library, *, keeps: bool = False, meets: bool = False, worth: bool = True) -> None:
        self.done: list[str] = []
        note = self.done.append
        self.driver: Any = SimpleNamespace(
            _in_kernels=meets, in_turn=False, skips=[], slot=0, capturing=OWN, issue=self._issue,
            _close=lambda stream: note(f"close on {stream}"),
            _close_captured=lambda stream: note(f"close of a graph on {stream}"),
        )  # fmt: skip
        self.driver.end_launch = lambda *given: LaunchDriver.end_launch(self.driver, *given)
        self.arguments: Any = SimpleNamespace(
            staged=[], kept=[artifacts.tensor("y", symmetric=True)] if keeps else [], keyed=["x", "y"],
            _memory=SimpleNamespace(own={"y": torch.zeros(1, 4)}), keep=lambda results, slot: note("keep y"),
        )  # fmt: skip
        self.arguments.make_kept = lambda results: Arguments.make_kept(self.arguments, results)
        self._own: Any = SimpleNamespace(
            _driver=self.driver, _arguments=self.arguments, _graphs=GraphCache(Graphs(Handles(library)), worth),
            artifact=SimpleNamespace(copies_outputs=keeps), _checks=None,
        )  # fmt: skip
        self._own._whole = lambda *given: GpuKernel._whole(self._own, *given)

    def _issue(self, tensors: Any, stream: int, captured: bool, callers: bool) -> None:
        self.done.append(f"all on {stream}" + ", captured" * captured)
        if not self.arguments.kept:
            self.driver.end_launch(stream, callers)

    def launch(self, *tensors: torch.Tensor, slot: int = 0, capturing: bool = False) -> list[str]:
        """What one launch issues."""
        self.done.clear()
        self.driver.slot, self.arguments.keyed = slot, ["x", "y"][: len(tensors)]
        self.results: dict[str, torch.Tensor] = {}
        GpuKernel._launch(self._own, dict(zip("xy", tensors, strict=False)), CALLER, capturing, self.results)
        return list(self.done)


@pytest.fixture
def library() -> Library:
    return Library()


def test_from_the_second_time_on_a_launch_is_a_graph(library: Library) -> None:
    rank, x, y = Rank(library), torch.zeros(1), torch.zeros(1)
    assert rank.launch(x, y) == ["all on 1", "close on 1"] and not library.launched
    assert rank.launch(x, y) == ["all on 9, captured", "close on 9"] and library.launched == [1001]
    assert rank.launch(x, y) == [] and library.launched == [1001, 1001]


def test_other_tensors_and_other_buffers_are_other_graphs(library: Library) -> None:
    rank, x, y = Rank(library), torch.zeros(1), torch.zeros(1)
    for _ in range(2):
        rank.launch(x, y)
    assert rank.launch(y, x) == rank.launch(x, y, slot=1) == ["all on 1", "close on 1"]
    rank.launch(x, y, slot=1)
    assert library.launched == [1001, 1002]
    assert rank.launch(x, y) == [] and library.launched[-1] == 1001


def test_a_callers_capture_takes_the_operations_themselves(library: Library) -> None:
    rank, x = Rank(library, meets=True), torch.zeros(1)
    for _ in range(3):
        assert rank.launch(x, capturing=True) == ["all on 1, captured", "close of a graph on 1"]
    assert library.calls == []
    assert rank.launch(x) == ["all on 1"] and rank.launch(x) == ["all on 9, captured"], "kernels close it"


def test_a_capture_is_as_a_launch_where_replays_are_launches_in_turn(library: Library) -> None:
    """No helper kernel is before or after it: replays skip nothing."""
    rank, x = Rank(library, meets=True), torch.zeros(1)
    rank.driver.in_turn = True
    assert rank.launch(x, capturing=True) == ["all on 1, captured"], "its kernels end it"
    rank.driver._in_kernels = False
    assert rank.launch(x, capturing=True) == ["all on 1, captured", "close on 1"]


def test_outputs_are_kept_behind_a_graph_and_before_the_launch_is_closed(library: Library) -> None:
    rank, x = Rank(library, keeps=True), torch.zeros(1)
    assert rank.launch(x) == ["all on 1", "keep y", "close on 1"]
    assert rank.launch(x) == ["all on 9, captured", "keep y", "close on 1"]
    assert rank.launch(x) == ["keep y", "close on 1"] and library.launched == [1001, 1001]


def test_what_is_not_worth_a_graph_has_none(library: Library) -> None:
    rank, x = Rank(library, worth=False), torch.zeros(1)
    assert [rank.launch(x) for _ in range(3)] == [["all on 1", "close on 1"]] * 3 and library.calls == []


def test_a_graph_that_the_driver_refuses_is_issued_instead_and_is_the_last(library: Library) -> None:
    rank, x = Rank(library), torch.zeros(1)
    rank.launch(x)
    library.failing.add("cuGraphLaunch")
    assert rank.launch(x) == ["all on 9, captured", "close on 9", "all on 1", "close on 1"]
    library.failing.clear()
    assert [rank.launch(x) for _ in range(2)] == [["all on 1", "close on 1"]] * 2


def test_only_what_a_graph_holds_is_in_its_key(library: Library) -> None:
    """A staged input is copied before."""
    rank, x, y = Rank(library), torch.zeros(1), torch.zeros(1)
    rank.arguments.keyed = ["y"]
    key = {"x": x, "y": y}
    assert [GpuKernel._whole(rank._own, key) for _ in range(2)] == [None, 1001]
    assert GpuKernel._whole(rank._own, {**key, "x": torch.zeros(1)}) == 1001


def test_memory_for_what_is_kept_is_asked_for_before_anything_is_done(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its kernels a launch could not be taken back: peers would wait for its end."""
    rank, x = Rank(library, keeps=True), torch.zeros(1)
    assert rank.launch(x) == ["all on 1", "keep y", "close on 1"] and rank.results["y"].shape == (4,)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "empty_like", full)
    with pytest.raises(torch.OutOfMemoryError):
        rank.launch(x)
    assert rank.done == []
