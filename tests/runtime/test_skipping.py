# pyright: basic
"""What keeps ranks apart from each other's buffers: where replays skip launches, and while outputs are copied.

A model beside that of test_meeting.py: every rank pushes to every peer, into the buffer of the launch, and reads what
came. Programs of which signals alone keep ranks together (`reuse_wait off`) are safe while no launch is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests import artifacts
from tests.runtime.test_handshake import Node, Thread
from tilelink import compiler
from tilelink.artifact import Artifact, LaunchProtocol
from tilelink.compiler.cuda import gpu_artifact
from tilelink.frontend.parser import parse_text
from tilelink.runtime.cuda.kernel import GpuKernel
from tilelink.runtime.cuda.launch_driver import LaunchDriver
from tilelink.runtime.cuda.offline import EMPTY, helper_options, recorded

LAUNCHES = 8


@dataclass(kw_only=True)
class Pushing(Node):
    """captured: which launches are replays of one that was captured with `buffer`; skip_lag: LAG of their kernels."""

    captured: tuple[bool, ...]
    buffer: int
    reuse: bool
    skip_lag: int
    programs: int = 1
    kernels: int = 1
    lag: int = 0
    readers: tuple[int, ...] = ()
    begun: bool = False
    """A kernel lets pushes begin, and peers are told of a launch in the next one (meeting.begin_copies)."""
    skips: bool = True
    """There is a kernel before a captured launch, also where none is skipped."""
    late: bool = False
    """What came is read, as outputs that are copied are, only after peers were told that the launch is over."""
    held: list[list[list[int]]] = field(init=False)
    """[rank][buffer][who pushed]: the launch whose data lies there."""
    arrived: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.held = [[[0] * self.ranks for _ in range(self.buffers)] for _ in range(self.ranks)]
        self.arrived = [[0] * self.buffers for _ in range(self.ranks)]

    def stream(self, rank: int, begin: Callable[[Thread], Callable[[], bool]]) -> Thread:
        epoch = 1
        for captured in self.captured:
            skipped = (self.buffer - (epoch - 1)) % self.buffers if captured else 0
            if captured:
                if self.skips:
                    yield from self.skip(rank, epoch, skipped, 0)
                epoch += skipped
            elif self.begun:
                yield from self.tell(self.finished, rank, epoch - 1 - self.told[rank])
                self.told[rank] = epoch - 1
            yield from self.push(rank, own := epoch)
            if not self.late:
                yield from self.read(rank, own)
            epoch += 1
            if captured:
                skipped = self.buffers - 1 - skipped
                yield from self.skip(rank, epoch, skipped, 1)
                epoch += skipped
            elif not self.begun:
                yield from self.tell(self.finished, rank)
            if self.late:
                yield from self.read(rank, own)
            self.ended[rank] = epoch - 1

    def push(self, rank: int, epoch: int) -> Thread:
        slot = (epoch - 1) % self.buffers
        if self.reuse:
            yield lambda: min(self.finished[rank]) >= epoch - self.buffers
        for peer in range(self.ranks):
            yield None
            self.held[peer][slot][rank] = epoch
            yield None
            self.arrived[peer][slot] += 1
        target = self.ranks * ((epoch - 1) // self.buffers + 1)
        yield lambda: self.arrived[rank][slot] >= target

    def read(self, rank: int, epoch: int) -> Thread:
        slot = (epoch - 1) % self.buffers
        for peer in range(self.ranks):
            yield None
            if (seen := self.held[rank][slot][peer]) != epoch:
                self.wrong.append(f"rank {rank} read launch {seen} of rank {peer} in launch {epoch}")

    def skip(self, rank: int, first: int, skipped: int, done: int) -> Thread:
        """`done` launches and the skipped ones from `first` on end, as `helper_kernels._advance` says it."""
        for epoch in range(first, first + skipped):
            self.arrived[rank][(epoch - 1) % self.buffers] += self.ranks
        yield None
        following = first + skipped
        for _ in range(following - 1 - self.told[rank] if self.begun else done + skipped):
            yield from self.tell(self.finished, rank)
        self.told[rank] = following - 1
        if self.skip_lag:
            yield lambda: min(self.finished[rank]) >= first + skipped - self.skip_lag


def lag_of_replays(buffers: int, reuse: bool) -> int:
    """LAG of the kernels before and after a captured launch, which are the same."""
    tensors = (artifacts.tensor("y", buffers=buffers, symmetric=True, space="out"),)
    program = replace(artifacts.EMPTY, tensors=tensors, reuse_wait=reuse)
    found = helper_options(program, EMPTY, False)
    assert found.captured is not None and found.closing["LAG"] == 0, "others do not wait"
    (lag,) = {one["LAG"] for one in (found.captured, *found.skips)}
    return lag


def runs(buffers: int, replays: float, **other: Any) -> Iterator[Pushing]:
    """Interleavings of ranks, buffers and sequences of launches and replays."""
    for seed in range(60):
        chance = Random(seed)
        captured = tuple(chance.random() < replays for _ in range(LAUNCHES))
        ranks, buffer = 2 + seed % 2, chance.randrange(buffers)
        node = Pushing(ranks=ranks, buffers=buffers, captured=captured, buffer=buffer, **other)
        node.run(seed)
        yield node


@pytest.mark.parametrize("buffers", [2, 3])
@pytest.mark.parametrize("reuse", [True, False])
def test_nothing_is_overwritten_or_counted_for_another_launch(buffers: int, reuse: bool) -> None:
    for node in runs(buffers, 0.5, reuse=reuse, skip_lag=lag_of_replays(buffers, reuse)):
        assert node.wrong == []
        last = LAUNCHES + sum(node.captured) * (buffers - 1)
        assert node.ended == [last] * node.ranks and node.finished == [[last] * node.ranks] * node.ranks
        times = [len(range(slot, last, buffers)) * node.ranks for slot in range(buffers)]
        assert node.arrived == [times] * node.ranks


@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize("replays", [0.0, 0.5])
def test_peers_may_be_told_of_a_launch_in_the_next_one(buffers: int, replays: float) -> None:
    one, other = (runs(buffers, replays, reuse=True, skip_lag=lag, begun=True) for lag in (0, buffers))
    for node in (*one, *other):  # with a copy engine, which the kernel before a replay waits for too, or without
        assert node.wrong == []
        last = LAUNCHES + sum(node.captured) * (buffers - 1)
        told = last - (not node.captured[-1])
        assert node.ended == [last] * node.ranks and node.finished == [[told] * node.ranks] * node.ranks


def test_a_captured_launch_tells_peers_before_its_kernels_wait_for_them() -> None:
    """With one buffer none are skipped, and its kernels do not tell of the launch before, as others do."""
    with pytest.raises(AssertionError, match="nobody can go on"):
        list(runs(1, 0.5, reuse=True, skip_lag=0, begun=True, skips=False))


@pytest.mark.parametrize("buffers", [2, 3])
def test_signals_keep_ranks_together_unless_launches_are_skipped(buffers: int) -> None:
    assert not any(node.wrong for node in runs(buffers, 0.0, reuse=False, skip_lag=0))
    assert any(node.wrong for node in runs(buffers, 1.0, reuse=False, skip_lag=0))


@pytest.mark.parametrize(("buffers", "replays"), [(1, 0.0), (2, 1.0), (3, 1.0)])
def test_outputs_are_copied_before_peers_are_told(buffers: int, replays: float) -> None:
    known = {"reuse": True, "skip_lag": buffers}
    assert not any(node.wrong for node in runs(buffers, replays, **known))
    assert any(node.wrong for node in runs(buffers, replays, **known, late=True))


@pytest.mark.parametrize("capturing", [False, True])
@pytest.mark.parametrize("meets", [False, True])
def test_a_launch_copies_outputs_before_it_is_closed(capturing: bool, meets: bool) -> None:
    done: list[str] = []
    note = {
        name: lambda *_, name=name: done.append(name)
        for name in ("stage", "keep", "_await_outputs", "_close", "_close_captured")
    }
    engine = SimpleNamespace(names=[], early=[[]], ready=lambda *_: {}, issue=lambda *_: None)
    driver: Any = SimpleNamespace(
        skips=[], in_turn=False, _in_kernels=meets, slot=0, _engine=engine, _functions=[], _apart={},
        _needs_entry=False,
        _sides=SimpleNamespace(fork=lambda _: None, join=lambda _: done.append("join")), _copies_outputs=True, **note,
    )  # fmt: skip
    driver.issue = lambda *given: LaunchDriver.issue(driver, *given)
    driver.end_launch = lambda *given: LaunchDriver.end_launch(driver, *given)
    arguments = SimpleNamespace(staged=["x"], kept=["y"], make_kept=lambda results: done.append("make"), **note)
    rank: Any = SimpleNamespace(
        _arguments=arguments, _driver=driver, _graphs=SimpleNamespace(worth=False), _checks=None,
        artifact=SimpleNamespace(copies_outputs=True),
    )  # fmt: skip
    GpuKernel._launch(rank, {}, 7, capturing, {})
    itself = meets and not capturing
    ends = ["keep"] if itself else ["_await_outputs", "keep", "_close_captured" if capturing else "_close"]
    assert done == ["make", "stage", "join", *ends]


PUSHED = """program p(M, N):
    x : in {kind} [M, N]
    y : out symmetric [M, N]

    comm send(i: M):
        tile_push_data(y[i, :] @ (rank + 1), x[i, :]{peer})
        producer_tile_notify(y[i, :] @ (rank + 1))

schedule s for p:
    send on sm, tile(i=32)
"""


@pytest.mark.parametrize(("kind", "peer", "meets"), [("", "", False), ("symmetric", " + x[i, :] @ (rank + 1)", True)])
def test_kernels_that_peers_write_outputs_of_end_a_launch_only_if_entry_is_waited_for(
    kind: str, peer: str, meets: bool
) -> None:
    program = gpu_of(PUSHED.format(kind=kind, peer=peer))
    expected = LaunchProtocol.IN_KERNEL if meets else LaunchProtocol.HELPER_KERNELS
    assert program.copies_outputs and program.protocol is expected
    awaiting = helper_options(program, recorded(program, 0), False).awaiting
    assert awaiting is not None and awaiting["EXITS"] == 2
    other = gpu_of(SHARED)
    assert other.protocol.in_kernels and not other.copies_outputs
    assert helper_options(other, EMPTY, False).awaiting is None


def gpu_of(text: str) -> Artifact:
    """The program and schedule of a text on two ranks."""
    module = parse_text(text, "test.tl")
    dims = {"M": 64, "N": 64}
    plan = compiler.plan(module.programs[0], module.schedules[0], ranks=2, dims=dims, dtype="bf16", target="sm_90")
    return gpu_artifact(plan)


SHARED = """program p(M, N):
    x : in [M, N]
    h : symmetric [ranks, M, N]
    y : out [ranks, M, N]

    comm send(i: M):
        for (q: ranks):
            tile_push_data(h[rank, i, :] @ q, x[i, :])
        for (q: ranks):
            producer_tile_notify(h[rank, i, :] @ q)

    compute keep(s: ranks, i: M):
        consumer_tile_wait(h[s, i, :])
        y[s, i, :] = h[s, i, :]

schedule s for p:
    send on sm, tile(i=32)
    keep on sm, tile(i=32)
    h channel(i=32), buffers 2
"""


@pytest.mark.parametrize(("more", "lag"), [("", 2), ("    reuse_wait off\n", 1)], ids=["reuse wait", "none"])
def test_a_schedule_says_what_replays_wait_for(more: str, lag: int) -> None:
    assert not helper_options(gpu_of(SHARED + more), EMPTY, False).skips
    copied_in = SHARED.replace("x : in [", "x : in symmetric [").replace("h channel", "x buffers 2\n    h channel")
    assert helper_options(gpu_of(copied_in + more), EMPTY, False).skips[0]["LAG"] == lag
