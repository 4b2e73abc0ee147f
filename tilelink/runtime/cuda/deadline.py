"""Deadlines on a GPU rank: a wait that exceeds its budget ends the launch, and the launch is an error."""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace

import torch

from tilelink.artifact import Artifact
from tilelink.device.debug import TRIPPED, WORDS, Trip, armed, trip
from tilelink.dump import Seen, WaitSeen
from tilelink.errors import DeadlineError, RankError
from tilelink.runtime.cuda.driver import driver, library, with_context
from tilelink.runtime.cuda.memory import Memory
from tilelink.runtime.witness import LOOK, seen_of

_PATIENCE = 1.5
"""Multiple of the deadline after which waits of the copy engine, which has no clock, are released."""
_PRIORITY = -2
"""Priority of the side stream. It differs from that of a launch's streams, whose waits would block the release."""
_WRITTEN_S = 0.01
"""Time in seconds that a rank may take to write the report: it first writes that it was late, and then the details."""


class DebugBlock:
    """The debug block of a rank, which its peers read too. `words` (int64) is the argument of kernels."""

    _seen: Seen | None = None
    """What the rank has seen of its launch, if that is about to exceed the deadline."""

    def __init__(self, artifact: Artifact, memory: Memory, deadline_s: float) -> None:
        heap, device = memory.heap, memory.device
        self.words = heap.debug
        self.words.copy_(torch.tensor(armed(deadline_s), dtype=torch.int64))
        self._artifact, self._heap = artifact, heap
        self._rank, self._state = memory.rank, memory.epoch
        self._pads = torch.zeros(len(heap.pads), artifact.pad_size, dtype=torch.int32, device=device)
        self._issued = 0
        self._every = torch.zeros(len(heap.debugs), WORDS, dtype=torch.int64, device=device)
        self._seconds = deadline_s
        self._side = torch.cuda.Stream(device, _PRIORITY)
        self._host = torch.zeros(WORDS, dtype=torch.int64, pin_memory=True)

    def check(self) -> None:
        """Raise the DeadlineError of an earlier launch of this rank or of a peer.

        The results of a late kernel are invalid, but it runs to its end: it sends and notifies them, and a peer may
        wait for nothing else. Each rank that a late kernel may have notified finds the report here.
        """
        for rank, report in self._reports():
            if report is not None:
                error = self._error(rank, report)
                error.witnesses = (self._seen or self._look(),)
                if rank == self._rank:
                    late = WaitSeen(stage=report.stage, tile=report.tile, channel=report.channel, seen=report.seen,
                                    expected=report.expected)  # fmt: skip
                    error.witnesses = (replace(error.witnesses[0], late=late),)
                raise error

    def _reports(self) -> list[tuple[int, Trip | None]]:
        """Return the report in every rank's block, the local one first."""
        blocks = self._blocks()
        if any(block[TRIPPED] for block in blocks):
            time.sleep(_WRITTEN_S)
            blocks = self._blocks()
        others = [rank for rank in range(len(blocks)) if rank != self._rank]
        return [(rank, trip(blocks[rank])) for rank in (self._rank, *others)]

    def _blocks(self) -> list[list[int]]:
        """Return the words of every rank's block, by the side stream: a caller's stream may have more to do."""
        with torch.cuda.stream(self._side):
            for rank, address in enumerate(self._heap.debugs):
                if status := _copied(self._every[rank], address, self._side.cuda_stream):
                    what = f"the CUDA driver does not read what rank {rank} reports: error {status}"
                    raise RankError(what, hint="see what failed before it")
            return self._every.tolist()

    def _look(self) -> Seen:
        """Return the number of this rank's launch, and the counters of all ranks, as far as they can be read."""
        heap, pads = self._heap, dict[int, list[int]]()
        with torch.cuda.stream(self._side):
            state: list[int] = self._state.cpu().tolist()
            pads[self._rank] = heap.pad.cpu().tolist()
            for rank, address in enumerate(heap.pads):
                if rank != self._rank and not _copied(self._pads[rank], address, self._side.cuda_stream):
                    pads[rank] = self._pads[rank].cpu().tolist()
            spoiled = any(block[TRIPPED] for block in self._blocks())
        return seen_of(self._artifact, self._rank, pads, state, self._issued, spoiled)

    def _error(self, rank: int, report: Trip) -> DeadlineError:
        stage, channel = self._artifact.describe(report.stage, report.channel)
        message = (
            f"rank {rank}: tile {report.tile} of {stage} waited {self._seconds:g} s for {channel}: "
            f"it was {report.seen}, and {report.expected} is needed"
        )
        if rank != self._rank:
            message += f"; what rank {self._rank} was sent since is worthless"
        return DeadlineError(
            message, rank=rank, stage=report.stage, tile=report.tile, channel=report.channel, seen=report.seen,
            expected=report.expected, seconds=self._seconds, stage_name=stage, channel_name=channel,
            hint="did every rank make the same launches? A kernel that was late is of no further use: compile again",
        )  # fmt: skip

    def settle(self, done: torch.cuda.Event, gated: list[int]) -> None:
        """Wait for the end of a launch. Raises DeadlineError if a wait of it, or of a peer, exceeded its deadline."""
        begin = time.monotonic()
        self._issued += 1
        self._seen = None
        while not done.query():
            waited = time.monotonic() - begin
            if self._seen is None and waited > LOOK * self._seconds:
                self._seen = self._look()
            if waited > _PATIENCE * self._seconds:
                self._release(gated)
                done.synchronize()
            time.sleep(0.0005)
        self.check()

    def _release(self, gated: list[int]) -> None:
        """Release the copy engine's waits. If no kernel was late, report which of them was."""
        heap = self._heap
        pad = heap.pads[self._rank]
        with torch.cuda.stream(self._side):
            self._host.copy_(self.words, non_blocking=True)
            seen = heap.pad.to("cpu", non_blocking=True)
        self._side.synchronize()
        if trip(self._host.tolist()) is None and gated:
            late = min(gated, key=lambda channel: int(seen[channel]))
            words = [*armed(self._seconds)[:1], 1, len(self._artifact.stages), 0, late, int(seen[late]), 1, 0]
            with torch.cuda.stream(self._side):
                self.words[: len(words)].copy_(torch.tensor(words, dtype=torch.int64))
        stream = ctypes.c_void_p(self._side.cuda_stream)
        for channel in gated:
            write, arguments = driver().write(stream, ctypes.c_uint64(pad + 4 * channel), 2**30)
            write(*arguments)


def _copied(target: torch.Tensor, address: int, stream: int) -> int:
    """Copy from an address, also of a peer, to a tensor, on a stream. Return the driver's error number, 0 for none."""
    to, size = ctypes.c_uint64(target.data_ptr()), target.nbytes
    call, arguments = driver().copy(ctypes.c_void_p(stream), to, ctypes.c_uint64(address), size)
    if status := call(*arguments):
        status = with_context(library(), status, call, *arguments)
    return status
