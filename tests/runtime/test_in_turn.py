# pyright: basic
"""Captured launches whose replays are the next launches, among eager ones and those of other kernels' graphs.

A model of launches whose programs are counted (tilelink/device/handshake.py), as those of test_handshake.py and
test_skipping.py: threads of all ranks, any of which may run next. Each launch pushes what it was given to all ranks,
and reads what came. It runs the interleavings that tests/gpu/interleavings.py draws for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tests.gpu.interleavings import GRAPHS, KERNELS, Action, drawn_actions, drawn_graphs
from tests.tiers import thorough

Thread = Generator[Callable[[], bool] | None]
BUFFERS, PROGRAMS = 2, 3


class Stopped(Exception):
    """A GPU has stopped, and says why."""


@dataclass(kw_only=True)
class Kernel:
    """A kernel of one rank. held: [buffer][program][peer], what lies there; arrived: [buffer]. board: [turn][peer]."""

    ranks: int
    counted: int = 0
    begun: int = 0
    ended: int = 0
    compared: int = 0
    held: list[list[list[object]]] = field(init=False)
    arrived: list[int] = field(default_factory=lambda: [0] * BUFFERS)
    board: list[list[tuple[int, object]]] = field(init=False)

    def __post_init__(self) -> None:
        self.held = [[[None] * self.ranks for _ in range(PROGRAMS)] for _ in range(BUFFERS)]
        self.board = [[(0, None)] * self.ranks for _ in range(2)]


@dataclass(kw_only=True)
class Model:
    """actions: those of each rank. joined: an action on another stream waits for the one before. checks: launches count
    that they begin, and look at that. compares: ranks compare what they launch."""

    seed: int
    actions: list[tuple[Action, ...]]
    joined: bool = True
    checks: bool = True
    compares: bool = False
    wrong: list[str] = field(default_factory=list)
    launches: int = 0

    def __post_init__(self) -> None:
        self.ranks = len(self.actions)
        self.kernels = [[Kernel(ranks=self.ranks) for _ in range(KERNELS)] for _ in range(self.ranks)]
        self.graphs = drawn_graphs(self.seed)

    def run(self) -> Model:
        """Runs all threads. Raises Stopped where a GPU stops, and TimeoutError if nobody can go on."""
        chance = Random(self.seed)
        self.waits: dict[Thread, Callable[[], bool] | None] = {}
        ended = [[False] * len(own) for own in self.actions]
        for rank, own in enumerate(self.actions):
            for stream in range(2):
                self.begin(self.stream(rank, [n for n, one in enumerate(own) if one.stream == stream], ended[rank]))
        pace: dict[Thread, float] = {}
        while self.waits:
            ready = [t for t, until in self.waits.items() if until is None or until()]
            if not ready:
                raise TimeoutError("nobody can go on")
            (thread,) = chance.choices(ready, [pace.setdefault(one, chance.choice((0.1, 1))) for one in ready])
            try:
                self.waits[thread] = next(thread)
            except StopIteration:
                del self.waits[thread]
        return self

    def begin(self, thread: Thread) -> Callable[[], bool]:
        self.waits[thread] = None
        return lambda: thread not in self.waits

    def stream(self, rank: int, numbers: list[int], ended: list[bool]) -> Thread:
        for number in numbers:
            if self.joined and number:
                yield lambda number=number: ended[number - 1]
            action = self.actions[rank][number]
            nodes = [n.kernel for n in self.graphs[action.which]] if action.replay else [action.which]
            for node, kernel in enumerate(nodes):
                # every launch is given something else
                what = (action.which + 1 if action.replay else 0, node, number)
                yield from self.launch(rank, kernel, what)
            ended[number] = True

    def launch(self, rank: int, kernel: int, what: tuple[int, int, int]) -> Thread:
        own = self.kernels[rank][kernel]
        if self.checks:
            own.begun += 1
            if own.begun - 1 != own.ended:
                raise Stopped("overlap")
            yield None
        if self.compares:
            yield from self.compare(rank, kernel, what[:2])
        self.launches += 1
        started = [0]
        running = [self.begin(self.program(rank, kernel, what, number, started)) for number in range(PROGRAMS)]
        yield lambda: all(one() for one in running)
        own.ended += 1

    def compare(self, rank: int, kernel: int, what: object) -> Thread:
        """As compare_launches of runtime/cuda/launch_checks.py."""
        own = self.kernels[rank][kernel]
        turn, number = own.compared % 2, own.compared + 1
        for peer in range(self.ranks):
            yield None
            self.kernels[peer][kernel].board[turn][rank] = number, what
        for peer in range(self.ranks):
            yield lambda peer=peer: own.board[turn][peer][0] == number
            if own.board[turn][peer][1] != what:
                raise Stopped("other launches")
        own.compared += 1

    def program(self, rank: int, kernel: int, what: tuple[int, int, int], number: int, started: list[int]) -> Thread:
        own = self.kernels[rank][kernel]
        yield lambda: started[0] >= number  # GPUs start programs in order
        epoch = 1 + own.counted // PROGRAMS
        started[0] += 1
        slot = (epoch - 1) % BUFFERS
        for peer in range(self.ranks):
            yield None
            self.kernels[peer][kernel].held[slot][number][rank] = what
            yield None
            self.kernels[peer][kernel].arrived[slot] += 1
        target = self.ranks * PROGRAMS * ((epoch - 1) // BUFFERS + 1)
        yield lambda: own.arrived[slot] >= target
        for peer in range(self.ranks):
            yield None
            if (seen := own.held[slot][number][peer]) != what:
                self.wrong.append(f"rank {rank} read {seen} of rank {peer} instead of {what}")
        own.counted += 1


def outcome(model: Model) -> str:
    """What becomes of a run: right, wrong, stuck, or why a GPU stopped."""
    try:
        return "wrong" if model.run().wrong else "right"
    except Stopped as reason:
        return str(reason)
    except TimeoutError:
        return "stuck"


def outcomes(ranks: int = 2, other: Callable[[tuple[Action, ...], int], tuple[Action, ...]] | None = None, **how: Any):
    """How often runs of many seeds come to each end. other: what the last rank does instead."""
    found: dict[str, int] = {}
    for seed in range(80):
        actions = [drawn_actions(seed, 6)] * ranks
        if other is not None:
            actions[-1] = other(actions[-1], seed)
        end = outcome(Model(seed=seed, actions=actions, **how))
        found[end] = found.get(end, 0) + 1
    return found


@thorough(unless=lambda ranks, compares: compares == (ranks == 3))
@pytest.mark.parametrize("compares", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_launches_in_turn_are_right(ranks: int, compares: bool) -> None:
    assert outcomes(ranks, compares=compares).keys() == {"right"}


def test_launches_that_overlap_are_never_taken_for_right() -> None:
    found = outcomes(joined=False)
    assert found.keys() <= {"right", "overlap"} and found["overlap"] > 20
    unseen = outcomes(joined=False, checks=False)
    assert unseen["wrong"] + unseen["stuck"] > 20 and unseen["wrong"], "and they would be"


def swapped(actions: tuple[Action, ...], seed: int) -> tuple[Action, ...]:
    """Two replays, one after the other, in the other order: of graphs with the same kernels, so that none waits."""
    graphs = drawn_graphs(seed)
    for first, second in pairwise(range(len(actions))):
        one, two = actions[first], actions[second]
        same = [n.kernel for n in graphs[one.which]] == [n.kernel for n in graphs[two.which]]
        if one.replay and two.replay and one.which != two.which and same:
            return (*actions[:first], two, one, *actions[second + 1 :])
    return actions


def eager(actions: tuple[Action, ...], seed: int) -> tuple[Action, ...]:
    """A replay as eager launches of the same kernels: nothing is wrong yet, but ranks do not agree any more."""
    graphs = drawn_graphs(seed)
    for number, one in enumerate(actions):
        if one.replay:
            more = [Action(replay=False, which=n.kernel, stream=one.stream) for n in graphs[one.which]]
            return (*actions[:number], *more, *actions[number + 1 :])
    return actions


def test_ranks_that_replay_graphs_in_other_orders_are_told_so() -> None:
    changed = sum(swapped(drawn_actions(seed, 6), seed) != drawn_actions(seed, 6) for seed in range(80))
    assert changed > 0
    assert outcomes(other=swapped).get("wrong", 0) == changed, "by nobody, if they are not compared"
    assert outcomes(other=swapped, compares=True) == {"right": 80 - changed, "other launches": changed}


def test_ranks_of_which_one_replays_and_one_does_not_are_told_so() -> None:
    assert all(eager(drawn_actions(seed, 6), seed) != drawn_actions(seed, 6) for seed in range(80))
    assert outcomes(other=eager, compares=True) == {"other launches": 80}


def test_what_is_drawn() -> None:
    graphs = [graph for seed in range(40) for graph in drawn_graphs(seed)]
    assert len(graphs) == 40 * GRAPHS and all(2 <= len(graph) <= 4 for graph in graphs)
    assert all(before.kernel == node.kernel for graph in graphs for before, node in pairwise(graph) if node.side)
    assert any(node.side for graph in graphs for node in graph) and not any(graph[0].side for graph in graphs)
    actions = [one for seed in range(40) for one in drawn_actions(seed)]
    assert {(one.replay, one.which, one.stream) for one in actions} == {
        (replay, which, stream) for replay in (False, True) for which in range(3) for stream in range(2)
    }
