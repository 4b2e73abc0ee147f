# pyright: basic, reportArgumentType=false
"""Clocks of GPUs: their resolution, the offsets between ranks, and the times of stream events.

A rank's clock is %globaltimer, one for all SMs of a GPU, in ns. Ranks' clocks differ by a constant and drift slowly. A
rank answers rank 0's ping with the time of its arrival (Cristian, "Probabilistic clock synchronization", 1989). The
ping is assumed to arrive halfway between its sending and its answer, and the fastest of many exchanges have the
smallest error. Both directions are a store to the peer and a poll of local memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.distributed import _symmetric_memory as symmetric

from tilelink.device.assembly import PING, PONG
from tilelink.errors import RankError
from tilelink.runtime.cuda.functions import HelperKernel

ROUNDS = 64
BUDGET_NS = 5_000_000_000
STAMPS = 2048


@triton.jit
def ping(own, there, answers, budget, ROUNDS: tl.constexpr):
    """Send ROUNDS words to a peer and wait for each answer. Give up after `budget` ns in total.

    own, there: addresses of int64 [ROUNDS], zeros, on this GPU and on the peer. answers: int64 [ROUNDS, 3], the time
    sent, the peer's time, the time received; zeros if no answer came.
    """
    limit = now() + budget
    for i in range(ROUNDS):
        place = answers.to(tl.int64) + i * 24
        tl.inline_asm_elementwise(
            PING, "=r,l,l,l,l", [own + i * 8, there + i * 8, place, limit], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def pong(own, there, budget, ROUNDS: tl.constexpr):
    """Answer ROUNDS words of a peer with the time at which each came (arguments as of `ping`)."""
    limit = now() + budget
    for i in range(ROUNDS):
        tl.inline_asm_elementwise(
            PONG, "=r,l,l,l", [own + i * 8, there + i * 8, limit], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def stamp(times, COUNT: tl.constexpr):
    """Write the time, COUNT times, to int64 [COUNT]."""
    for i in range(COUNT):
        tl.store(times + i, now())


@triton.jit
def now():
    """Return the time of the GPU, in nanoseconds."""
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@dataclass(frozen=True, kw_only=True)
class Offset:
    """Clock offset: at `time` (ns of its own clock) a rank's clock was `ahead` ns ahead of rank 0's.

    trip: duration of the exchange in ns; half of it is the uncertainty.
    """

    time: float = 0.0
    ahead: float = 0.0
    trip: float = 0.0


def offset(answers: Sequence[Sequence[int]]) -> Offset:
    """Return the offset from exchanges (sent, the peer's time, received): the median of their fastest quarter.

    Raises RankError if one of them was not answered.
    """
    if not all(peer for _, peer, _ in answers):
        hint = "see that the processes of all ranks run, and start them again"
        raise RankError("the ranks' clocks cannot be compared: a peer did not answer", hint=hint)
    fastest = sorted(answers, key=lambda one: one[2] - one[0])[: max(len(answers) // 4, 1)]
    sent, peer, received = fastest[0]
    # The numbers exceed 2**53, so they are subtracted before any division.
    ahead = statistics.median(there - first - (last - first) / 2 for first, there, last in fastest)
    return Offset(time=float(peer), ahead=ahead, trip=float(received - sent))


def moved(time: int, first: Offset, last: Offset) -> int:
    """Convert a rank's time (ns) to the clock of rank 0. Drift is spread evenly between two measured offsets."""
    whole = last.time - first.time
    fraction = min(max((time - first.time) / whole, 0.0), 1.0) if whole > 0 else 0.0
    return time - round(first.ahead + fraction * (last.ahead - first.ahead))


def resolution(times: Sequence[int]) -> int:
    """Return the smallest step between times in ns, or 0 if all are equal."""
    return min((b - a for a, b in pairwise(times) if b > a), default=0)


class Clocks:
    """The clocks of a group of ranks, which compare them by exchanges. `offsets` is collective.

    mail: memory of this rank in which messages arrive. answers: int64 [ranks, ROUNDS, 3], as `ping` writes them.
    exchanges: the helper kernels of this rank that exchange messages, one after the other.
    """

    def __init__(
        self, group: dist.ProcessGroup, device: torch.device, mail: torch.Tensor, answers: torch.Tensor,
        exchanges: Sequence[HelperKernel],
    ) -> None:  # fmt: skip
        self._group, self._device = group, device
        self._mail, self._answers, self._exchanges = mail, answers, exchanges
        times = torch.zeros(STAMPS, dtype=torch.int64, device=device)
        HelperKernel(stamp, (times,), {"COUNT": STAMPS})(torch.cuda.current_stream(device).cuda_stream)
        self.resolution = resolution(times.tolist())

    def offsets(self) -> list[Offset]:
        """Measure the current offset of every rank. Raises RankError on all ranks if one of them does not answer."""
        self._mail.zero_()
        self._answers.zero_()
        torch.cuda.synchronize(self._device)
        dist.barrier(self._group, device_ids=[self._device.index])
        stream = torch.cuda.current_stream(self._device).cuda_stream
        for exchange in self._exchanges:
            exchange(stream)
        torch.cuda.synchronize(self._device)
        every: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(every, self._answers.tolist(), group=self._group)
        return [Offset(), *(offset(answers) for answers in every[0][1:])]


class PointerClocks(Clocks):
    """The clocks of ranks that reach each other's memory by pointers. Construction is collective."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        mail = symmetric.empty(ranks * ROUNDS, dtype=torch.int64, device=device)
        mail.zero_()
        self._handle: Any = symmetric.rendezvous(mail, group)
        bases = [int(base) for base in self._handle.buffer_ptrs]
        answers = torch.zeros(ranks, ROUNDS, 3, dtype=torch.int64, device=device)
        exchanges: list[HelperKernel] = []
        for peer in range(1, ranks):
            row = 8 * ROUNDS * peer
            if rank == 0:
                arguments = (bases[0] + row, bases[peer] + row, answers[peer], BUDGET_NS)
                exchanges.append(HelperKernel(ping, arguments, {"ROUNDS": ROUNDS}))
            elif rank == peer:
                arguments = (bases[peer] + row, bases[0] + row, BUDGET_NS)
                exchanges.append(HelperKernel(pong, arguments, {"ROUNDS": ROUNDS}))
        super().__init__(group, device, mail, answers, exchanges)
