# pyright: basic
"""Checks of the launches of a kernel, with TILELINK_CHECK=1: small kernels around each of them, in CUDA graphs too.

Launches of one kernel must not overlap, since both would take one number (device/handshake.py) or access the same
memory (Artifact.shares_memory), and all ranks make them in one order. The host orders launches outside of graphs, and
those of one capture (captures.py); it does not see replays. So a kernel before each launch counts that it begins, and
one after it that it has ended: a launch that begins while another one has not ended stops the GPU, whatever the
program. Then ranks tell each other what they launch, unless they need nothing from each other.

Without TILELINK_CHECK there is none of this: counting inside of the kernels took 0.7 to 1.4 us of a launch of 10 us.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tilelink import device as dl
from tilelink.artifact import Artifact
from tilelink.runtime.cuda import report
from tilelink.runtime.cuda.functions import HelperKernel
from tilelink.runtime.cuda.memory import Memory
from tilelink.runtime.cuda.report import Report

IDENTITY, COMPARED, BEGUN, ENDED, REPORT = (tl.constexpr(n) for n in range(5))
"""Words of the state, int64: what is launched (report.identity), how many launches were compared, have begun and have
ended, and the address of the report."""
OVERLAPPED, DIFFERENT = tl.constexpr(report.OVERLAPPED), tl.constexpr(report.DIFFERENT)


class LaunchChecks:
    """The checks of a kernel's launches. report: what its GPU has found."""

    def __init__(self, artifact: Artifact, memory: Memory) -> None:
        """Compile the kernels. All ranks of the group do, or none."""
        self.report = Report(artifact.program, memory.rank, memory.device)
        state = torch.tensor([0, 0, 0, 0, self.report.address], dtype=torch.int64, device=memory.device)
        self._identity, self._compare = state[:1], None
        self._begin = HelperKernel(begin_checked, (state,), {})
        if memory.heap.symmetric_bytes:
            boards = torch.tensor(memory.heap.boards, dtype=torch.int64, device=memory.device)
            options = {"RANKS": artifact.ranks, "BLOCK": 1 << (artifact.ranks - 1).bit_length()}
            self._compare = HelperKernel(compare_launches, (memory.heap.board, boards, state, memory.rank), options)
        self._end = HelperKernel(end_checked, (state,), {})

    def before(self, stream: int, identity: int) -> None:
        """Issue what comes before a launch. stream: torch's current one, by its handle. identity: report.identity."""
        self._begin(stream)
        if self._compare is not None:
            self._identity.fill_(identity)  # of no other launch, for none has begun
            self._compare(stream)

    def after(self, stream: int) -> None:
        """Issue what comes after all of a launch."""
        self._end(stream)


@triton.jit
def begin_checked(state):
    """Count that a launch begins. Stop the GPU if the one before has not ended."""
    begun = tl.atomic_add(state + BEGUN, tl.cast(1, tl.int64), sem="acq_rel", scope="gpu")
    ended = tl.atomic_add(state + ENDED, tl.cast(0, tl.int64), sem="acq_rel", scope="gpu")
    if begun != ended:
        stop(state, OVERLAPPED, begun, ended, begun * 0)


@triton.jit
def end_checked(state):
    """Count that a launch has ended."""
    tl.atomic_add(state + ENDED, tl.cast(1, tl.int64), sem="acq_rel", scope="gpu")


@triton.jit(do_not_specialize=["rank"])
def compare_launches(board, boards, state, rank, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """Stop the GPU if a peer's launch after as many others is not the same.

    board: int64 [2, RANKS], where ranks write what they launch, for two launches by turns: a rank that writes the next
        but one has found all others at the next one, so they have read this one. boards: int64 [RANKS], the addresses.
    """
    mine, turn = tl.load(state + IDENTITY), tl.load(state + COMPARED)
    peers = tl.arange(0, BLOCK)
    there, row = peers < RANKS, turn % 2 * RANKS
    number = (turn + 1) % 2147483648
    targets = tl.load(boards + peers, mask=there, other=0).to(tl.pointer_type(tl.int64)) + row + rank
    tl.atomic_xchg(targets, number * 4294967296 + mine + peers * 0, mask=there, sem="release", scope="sys")
    seen = _written(board + row + peers, there)
    while tl.sum(tl.where(there & (seen // 4294967296 != number), 1, 0)) > 0:
        seen = _written(board + row + peers, there)
    tl.debug_barrier()
    tl.store(state + COMPARED, turn + 1)
    theirs = seen % 4294967296
    peer = tl.max(tl.where(there & (theirs != mine), peers, -1))
    if peer >= 0:
        other = tl.max(tl.where(peers == peer, theirs, 0))
        stop(state, DIFFERENT, mine, other, peer.to(tl.int64))


@triton.jit
def _written(words, mask):
    return tl.atomic_add(words, tl.zeros_like(words.to(tl.int64)), mask=mask, sem="acquire", scope="sys")


@triton.jit
def stop(state, kind: tl.constexpr, first, second, peer):
    """Write a report (words as in report.py) to memory of the host, and stop the GPU."""
    told = tl.load(state + REPORT).to(tl.pointer_type(tl.int64))
    tl.store(told + 1, first)
    tl.store(told + 2, second)
    tl.store(told + 3, peer)
    dl.fence()
    tl.store(told, tl.cast(kind, tl.int64))
    dl.fence()
    dl.trap()
