# pyright: basic
"""Deadlines on a rank of several nodes: the debug block of its kernels, and the host's wait for each launch."""

from __future__ import annotations

import time
from typing import Any

import torch

from tilelink.artifact import Artifact
from tilelink.device.debug import TRIPPED, WORDS, armed, trip
from tilelink.dump import Seen
from tilelink.errors import DeadlineError, RankError
from tilelink.runtime.cuda.handles import Handles
from tilelink.runtime.nvshmem.memory import Memory
from tilelink.runtime.witness import LOOK, seen_of

PATIENCE = 20.0
"""Multiple of the deadline after which the host gives a launch up: its waits end in time, a wait for puts may not."""
MIN_SECONDS = 30.0
"""Seconds that a launch has at least before that."""


class Watch:
    """The debug block of a rank, int64 `words`, as kernels take it.

    Peers do not read it: debug blocks do not cross the network. A rank whose peer is late learns of it by its own
    waits.
    """

    def __init__(self, artifact: Artifact, memory: Memory, handles: Handles, deadline_s: float) -> None:
        """deadline_s: seconds that one wait may take."""
        device = memory.device
        self.words = torch.zeros(WORDS, dtype=torch.int64, device=device)
        self.words.copy_(torch.tensor(armed(deadline_s), dtype=torch.int64))
        self._artifact, self._rank, self._seconds = artifact, memory.rank, deadline_s
        self._memory, self._issued = memory, 0
        self._seen: Seen | None = None
        self._side = torch.cuda.ExternalStream(handles.stream(device), device)

    def check(self) -> None:
        """Raise the DeadlineError of an earlier launch: what came after it is worthless."""
        with torch.cuda.stream(self._side):
            block = self.words.cpu().tolist()
        if block[TRIPPED]:
            error = self._error(block)
            error.witnesses = (self._seen or self._look(),)
            raise error

    def _look(self) -> Seen:
        """Return the number of this rank's launch, and its counters."""
        with torch.cuda.stream(self._side):
            state, pad = self._memory.epoch.cpu().tolist(), self._memory.pad.cpu().tolist()
            spoiled = bool(self.words.cpu()[TRIPPED])
        return seen_of(self._artifact, self._rank, {self._rank: pad}, state, self._issued, spoiled)

    def settle(self, done: Any) -> None:
        """Wait for the end of a launch. Raises DeadlineError if one of its waits exceeded the deadline.

        done: an event after the launch. Raises RankError if the launch does not end, although no wait was late or
        long after one was: then the network does not deliver what a program has put.
        """
        begin = time.monotonic()
        self._issued += 1
        self._seen = None
        while not done.query():
            waited = time.monotonic() - begin
            if self._seen is None and waited > LOOK * self._seconds:
                self._seen = self._look()
            if waited > max(MIN_SECONDS, PATIENCE * self._seconds):
                self.check()
                hint = "look for errors of the transport with NVSHMEM_DEBUG=INFO, and start the ranks anew"
                message = f"rank {self._rank}: a launch waits for its puts, which the network does not deliver"
                raise RankError(message, hint=hint)
            time.sleep(0.0005)
        self.check()

    def _error(self, block: list[int]) -> DeadlineError:
        report = trip(block)
        assert report is not None
        stage, channel = self._artifact.describe(report.stage, report.channel)
        return DeadlineError(
            f"rank {self._rank}: tile {report.tile} of {stage} waited {self._seconds:g} s for {channel}: "
            f"it was {report.seen}, and {report.expected} is needed",
            rank=self._rank, stage=report.stage, tile=report.tile, channel=report.channel, seen=report.seen,
            expected=report.expected, seconds=self._seconds, stage_name=stage, channel_name=channel,
            hint="did every rank make the same launches? A kernel that was late is of no further use: compile again",
        )  # fmt: skip
