# pyright: basic
"""Why ranks that meet at the begin of a launch need not wait at its end: launches in many random interleavings.

A model of what kernels of one stream do that begin and end a launch by themselves (tilelink/device/handshake.py):
threads are generators, a yield is a place where any other thread may run. Each rank stages its input in the buffer of
the launch; in every launch each program of some kernel reads the inputs of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import artifacts
from tests.compiler.library import cases, name
from tests.runtime.test_order import gpu_of
from tests.tiers import one_in, thorough
from tilelink.artifact import Artifact
from tilelink.device import handshake
from tilelink.runtime.cuda.handshake import HandshakeArguments
from tilelink.runtime.cuda.offline import recorded

LAUNCHES = 7
LAG, EXITS = handshake.LAG.value, handshake.EXITS.value
Thread = Generator[Callable[[], bool] | None]
"""It yields what it waits for, or None where it can go on at once."""


@dataclass(kw_only=True)
class Node:
    """All ranks; [rank][buffer] and [rank][peer] tables."""

    ranks: int
    buffers: int
    programs: int
    kernels: int
    lag: int
    readers: tuple[int, ...]
    """The kernels that read inputs, and so wait until peers have entered."""
    reads_first: bool = False
    """Programs do not wait until peers have entered: they read inputs whenever they run."""
    counted: bool = False
    """Programs are counted as they end, which numbers launches, and peers are told of a launch in the next one."""
    staged: list[list[int]] = field(init=False)
    entered: list[list[int]] = field(init=False)
    finished: list[list[int]] = field(init=False)
    left: list[int] = field(init=False)
    ended: list[int] = field(init=False)
    ahead: int = 0
    """The most launches that one rank has been in front of another."""
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.staged = [[0] * self.buffers for _ in range(self.ranks)]
        self.entered, self.finished = ([[0] * self.ranks for _ in range(self.ranks)] for _ in range(2))
        self.left, self.ended = [0] * self.ranks, [0] * self.ranks
        self.number, self.told = [1] * self.ranks, [0] * self.ranks

    def stream(self, rank: int, begin: Callable[[Thread], Callable[[], bool]]) -> Thread:
        """A rank's launches, one behind the other; `begin` starts a thread and returns whether it has ended."""
        for epoch in range(1, LAUNCHES + 1):
            self.staged[rank][(epoch - 1) % self.buffers] = epoch
            yield None
            for kernel in range(self.kernels):
                running = [begin(self.program(rank, epoch, kernel, p)) for p in range(self.programs)]
                yield lambda running=running: all(ended() for ended in running)
            self.ended[rank] = epoch if self.counted else self.ended[rank]
            if self.ended[rank] != epoch:
                self.wrong.append(f"launch {epoch} of rank {rank} was not ended")

    def program(self, rank: int, epoch: int, kernel: int, number: int, handshake_block: bool = True) -> Thread:
        if self.counted:
            yield None
            if (found := self.number[rank] + self.left[rank] // self.programs) != epoch:
                self.wrong.append(f"launch {epoch} of rank {rank} takes itself for {found}")
        if handshake_block and kernel == 0 and number == 0:
            yield from self.tell(self.entered, rank)
        if handshake_block and self.counted and number == self.programs - 1:
            yield from self.tell(self.finished, rank, epoch - 1 - self.told[rank])
            self.told[rank] = epoch - 1
        peers = range(self.ranks if kernel in self.readers else 0)
        for peer in peers:
            if not self.reads_first:
                yield lambda peer=peer: self.entered[rank][peer] >= epoch
        for peer in peers:
            yield None
            if (seen := self.staged[peer][(epoch - 1) % self.buffers]) != epoch:
                self.wrong.append(f"rank {rank} read input {seen} of rank {peer} in launch {epoch}")
        if handshake_block and kernel == self.kernels - 1:
            yield None
            self.left[rank] += 1
            if not self.counted and self.left[rank] % self.programs == 0:
                yield from self.end(rank, epoch)

    def end(self, rank: int, epoch: int) -> Thread:
        yield from self.tell(self.finished, rank)
        if self.lag:
            yield lambda: min(self.finished[rank]) >= epoch + 1 - self.lag
        self.ended[rank] = epoch
        self.ahead = max(self.ahead, epoch - min(self.ended))

    def tell(self, counters: list[list[int]], rank: int, by: int = 1) -> Thread:
        for peer in range(self.ranks):
            yield None
            counters[peer][rank] += by

    def run(self, seed: int) -> Node:
        """Runs every rank's launches; in each step a thread that can go on is chosen, some more often than others."""
        chance = Random(seed)
        threads: list[tuple[Thread, float]] = []
        waits: dict[Thread, Callable[[], bool] | None] = {}
        weights = [chance.choice((0.05, 0.3, 1.0)) for _ in range(self.ranks)]

        def starter(rank: int) -> Callable[[Thread], Callable[[], bool]]:
            def begin(thread: Thread) -> Callable[[], bool]:
                waits[thread] = None
                threads.append((thread, weights[rank] * chance.choice((0.2, 1.0))))
                return lambda: thread not in waits

            return begin

        for rank in range(self.ranks):
            begin = starter(rank)
            begin(self.stream(rank, begin))
        while waits:
            ready = [(t, w) for t, w in threads if t in waits and ((until := waits[t]) is None or until())]
            assert ready, "nobody can go on"
            (thread,) = chance.choices([t for t, _ in ready], [w for _, w in ready])
            try:
                waits[thread] = next(thread)
            except StopIteration:
                del waits[thread]
            threads = [one for one in threads if one[0] in waits]
        return self


@dataclass(kw_only=True)
class Replaying(Node):
    """Some launches are replays of one that was captured with a certain buffer: they have kernels before and after them
    (runtime/cuda/helper_kernels.py), which skip launches so that the next one has this buffer, and tell the peers."""

    captured: tuple[bool, ...]
    buffer: int

    def stream(self, rank: int, begin: Callable[[Thread], Callable[[], bool]]) -> Thread:
        epoch = 1
        for captured in self.captured:
            skipped = (self.buffer - (epoch - 1)) % self.buffers
            if captured:
                yield from self.advance(rank, skipped, 0, epoch + skipped)
                epoch += skipped
            self.staged[rank][(epoch - 1) % self.buffers] = epoch
            yield None
            if captured:
                yield from self.tell(self.entered, rank)
            for kernel in range(self.kernels):
                programs = range(self.programs)
                running = [begin(self.program(rank, epoch, kernel, p, handshake_block=not captured)) for p in programs]
                yield lambda running=running: all(ended() for ended in running)
            epoch += 1
            if captured:
                skipped = self.buffers - 1 - skipped
                yield from self.advance(rank, skipped, 1, epoch + skipped)
                epoch += skipped
                self.ended[rank] = epoch - 1

    def advance(self, rank: int, skipped: int, done: int, following: int) -> Thread:
        """Launches are skipped and done; `following` comes next, and overwrites what was staged for one before it."""
        yield from self.tell(self.entered, rank, skipped)
        yield from self.tell(self.finished, rank, following - 1 - self.told[rank] if self.counted else done + skipped)
        self.told[rank] = following - 1
        lag = 1 if self.counted else self.buffers  # with nothing but its own signals a captured launch waits longer
        yield lambda: min(self.finished[rank]) >= following - lag
        self.number[rank], self.left[rank] = following, 0


def told(artifact: Artifact, exits: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernels of a rank without copies are told, and what has them not meet their peers."""
    none = torch.zeros(0, dtype=torch.int32)
    copies: Any = SimpleNamespace(
        exits=none if exits is None else exits, flags=none, flag_values=none, releases_as_meant=True,
        engine=SimpleNamespace(begin=torch.zeros(1, dtype=torch.int32)),
    )  # fmt: skip
    handshake = HandshakeArguments(artifact, copies, torch.device("cpu"))
    return handshake.block, handshake.none


def lag_of(slots: int, *, entry: bool = True) -> int:
    """The launches that the end of a launch waits for, as a rank's kernels are told."""
    on, off = told(replace(artifacts.EMPTY, lag=slots, kernels=(artifacts.kernel("k", needs_entry=entry),)))
    assert on[0] == 1 and off.tolist() == [0] * len(on)
    return int(on[2])


def nodes(**other: int | bool) -> Iterator[Node]:
    """Interleavings of ranks, programs and kernels."""
    readers = ((0,), (0, 1), (0,), (1,))
    for seed, (ranks, programs, own) in enumerate(list(product((2, 3), (1, 2), readers)) * 4):
        kernels = 1 if seed % 4 == 0 else 2
        node = Node(ranks=ranks, programs=programs, kernels=kernels, readers=own, **other)  # type: ignore[arg-type]
        yield node.run(seed)


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_inputs_stay_until_all_peers_have_read_them(buffers: int) -> None:
    found = list(nodes(buffers=buffers, lag=lag_of(buffers)))
    assert not [wrong for node in found for wrong in node.wrong]
    assert all(node.ended == [LAUNCHES] * node.ranks for node in found)
    assert max(node.ahead for node in found) == 1, "ranks do run apart"


def test_only_one_buffer_needs_the_wait_at_the_end() -> None:
    assert [lag_of(n) for n in (0, 1, 2, 3)] == [0, 1, 0, 0]
    assert [lag_of(n, entry=False) for n in (0, 1, 2)] == [0, 1, 2]


@pytest.mark.parametrize(("buffers", "other"), [(1, {}), (2, {"reads_first": True})], ids=["one buffer", "no entry"])
def test_inputs_would_be_overwritten_without(buffers: int, other: dict[str, bool]) -> None:
    assert any(node.wrong for node in nodes(buffers=buffers, lag=0, **other))


@pytest.mark.parametrize("buffers", [2, 3])
def test_programs_that_are_counted_number_launches(buffers: int) -> None:
    """Whoever reads inputs has a second buffer for them, and then nobody waits for what is finished."""
    found = [alone(buffers, Random(seed)).run(seed) for seed in range(40)]
    assert not [wrong for node in found for wrong in node.wrong]
    assert all(node.left == [LAUNCHES * node.programs] * node.ranks for node in found)
    assert all(node.finished == [[LAUNCHES - 1] * node.ranks] * node.ranks for node in found), "of all but the last"


def alone(buffers: int, chance: Random) -> Node:
    """Launches of one kernel, of which programs are counted."""
    ranks, programs = chance.choice((2, 3)), chance.choice((1, 2, 3))
    return Node(buffers=buffers, ranks=ranks, programs=programs, kernels=1, lag=0, readers=(0,), counted=True)


@pytest.mark.parametrize("buffers", [2, 3])
def test_replays_between_launches_that_are_counted(buffers: int) -> None:
    for seed in range(40):
        chance = Random(seed)
        captured = tuple(chance.random() < 0.5 for _ in range(LAUNCHES))
        mixed = Replaying(
            ranks=chance.choice((2, 3)), programs=chance.choice((1, 2, 3)), kernels=1, lag=0, readers=(0,),
            counted=True, buffers=buffers, captured=captured, buffer=chance.randrange(buffers),
        )  # fmt: skip
        mixed.run(seed)
        assert not mixed.wrong
        last = LAUNCHES + sum(captured) * (buffers - 1)
        assert mixed.entered == [[last] * mixed.ranks] * mixed.ranks
        told = last - (not captured[-1])
        assert mixed.finished == [[told] * mixed.ranks] * mixed.ranks, "of all but an eager last one"


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_replays_between_launches_keep_inputs_too(buffers: int) -> None:
    chance = Random(buffers)
    for node in nodes(buffers=buffers, lag=lag_of(buffers)):
        captured = tuple(chance.random() < 0.5 for _ in range(LAUNCHES))
        own = {"ranks": node.ranks, "programs": node.programs, "kernels": node.kernels, "readers": node.readers}
        mixed = Replaying(buffers=buffers, lag=node.lag, captured=captured, buffer=chance.randrange(buffers), **own)
        mixed.run(chance.randrange(1 << 30))
        assert not mixed.wrong
        last = LAUNCHES + sum(captured) * (buffers - 1)
        assert mixed.ended == [last] * mixed.ranks
        assert mixed.finished == mixed.entered == [[last] * mixed.ranks] * mixed.ranks


@thorough(unless=lambda case: one_in(4, name(case)))
@pytest.mark.parametrize("case", [c for c in cases() if "reuse_wait off" in str(c[1])], ids=name)
def test_what_is_counted_has_nothing_to_wait_for_at_its_end(case: Any) -> None:
    """Kernels are generated so where the runtime, which reckons by itself, would not wait either."""
    program = gpu_of(case)
    if program.counted:
        on, _ = told(program, torch.tensor(recorded(program, 0).exits))
        assert program.protocol.in_kernels and on[LAG] == on[EXITS] == 0
    else:
        assert len(program.kernels) > 1 or program.copies_outputs


def test_the_library_has_launches_that_are_counted() -> None:
    assert gpu_of(next(c for c in cases() if name(c) == "all_gather_kept-few")).counted > 0
