"""Deadlines on a GPU rank: a wait that outlives its budget ends the launch, and the launch is an error."""

from __future__ import annotations

import ctypes
import time

import torch

from tilelink.errors import DeadlineError
from tilelink.runtime.cuda.driver import driver
from tilelink.runtime.cuda.heap import Heap
from tilelink.runtime.device.debug import WORDS, armed, trip
from tilelink.runtime.job import Layout

_PATIENCE = 1.5
"""Times the deadline after which waits of the copy engine, which has no clock, are let go."""
_PRIORITY = -2
"""Not that of a launch's streams, whose waits would hold up what lets them go."""


class Watch:
    """The debug block of a rank; `words` (int64 on the device) is what kernels take as `watch`."""

    def __init__(self, layout: Layout, rank: int, device: torch.device, deadline_s: float) -> None:
        self.words = torch.tensor(armed(deadline_s), dtype=torch.int64, device=device)
        self._layout = layout
        self._rank = rank
        self._seconds = deadline_s
        self._side = torch.cuda.Stream(device, _PRIORITY)
        self._host = torch.zeros(WORDS, dtype=torch.int64, pin_memory=True)

    def check(self) -> None:
        """Raises the DeadlineError of an earlier launch again: what its kernels left behind is worthless."""
        report = trip(self.words.tolist())
        if report is None:
            return
        stage, channel = self._layout.describe(report.stage, report.channel)
        message = (
            f"rank {self._rank}: tile {report.tile} of {stage} waited {self._seconds:g} s for {channel}: "
            f"it was {report.seen}, and {report.expected} is needed"
        )
        raise DeadlineError(
            message, rank=self._rank, stage=report.stage, tile=report.tile, channel=report.channel, seen=report.seen,
            expected=report.expected, seconds=self._seconds, stage_name=stage, channel_name=channel,
            hint="did every rank make the same launches? A kernel that was late is of no further use: compile again",
        )  # fmt: skip

    def settle(self, done: torch.cuda.Event, heap: Heap, gated: list[int]) -> None:
        """Waits for the end of a launch. Raises DeadlineError if one of its waits was too long."""
        begin = time.monotonic()
        while not done.query():
            if time.monotonic() - begin > _PATIENCE * self._seconds:
                self._release(heap, gated)
                done.synchronize()
            time.sleep(0.0005)
        self.check()

    def _release(self, heap: Heap, gated: list[int]) -> None:
        """Lets the copy engine's waits pass, and says which one it was if no kernel was late."""
        pad = heap.pads[self._rank]
        with torch.cuda.stream(self._side):
            self._host.copy_(self.words, non_blocking=True)
            seen = heap.pad.to("cpu", non_blocking=True)
        self._side.synchronize()
        if trip(self._host.tolist()) is None and gated:
            late = min(gated, key=lambda channel: int(seen[channel]))
            words = [*armed(self._seconds)[:1], 1, len(self._layout.stages), 0, late, int(seen[late]), 1, 0]
            with torch.cuda.stream(self._side):
                self.words[: len(words)].copy_(torch.tensor(words, dtype=torch.int64))
        stream = ctypes.c_void_p(self._side.cuda_stream)
        for channel in gated:
            write, arguments = driver().write(stream, ctypes.c_uint64(pad + 4 * channel), 2**30)
            write(*arguments)
