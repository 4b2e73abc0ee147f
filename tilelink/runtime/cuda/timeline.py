"""The measured timeline of a rank's launches: the spans that its programs recorded, and the times of its copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from tilelink.artifact import Artifact
from tilelink.device.debug import STRIDE, TRACE
from tilelink.device.spans import COUNT, Span, decoded, empty
from tilelink.runtime.cuda.clock import Clocks, Offset, moved, stamp
from tilelink.runtime.cuda.functions import HelperKernel
from tilelink.runtime.cuda.queue import Queue
from tilelink.runtime.cuda.record_copies import Copy, Operation, StreamWait, StreamWrite

ANCHORS = 8


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The spans of all ranks on the clock of rank 0.

    resolution_ns: of the programs' clocks, the coarsest. ahead_ns, trip_ns: offset of each rank's clock to rank 0's,
    and the duration of the fastest exchange that measured it. dropped: number of spans that did not fit.
    """

    spans: list[Span]
    resolution_ns: int
    ahead_ns: tuple[float, ...]
    trip_ns: tuple[float, ...]
    dropped: int

    @property
    def clock(self) -> dict[str, Any]:
        """Return the properties of the clocks, for reports."""
        return {
            "clock": "%globaltimer", "resolution_ns": self.resolution_ns, "ahead_ns": list(self.ahead_ns),
            "trip_ns": list(self.trip_ns), "dropped": self.dropped,
        }  # fmt: skip


class Tracer:
    """Collects the spans of a rank, launch by launch. Construction and `timeline` are collective."""

    def __init__(
        self, artifact: Artifact, debug_block: torch.Tensor, clocks: Clocks, group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:  # fmt: skip
        """debug_block: that of the kernels, which is told where the spans are. clocks: those of the group's ranks."""
        self._artifact = artifact
        self._group = group
        self._rank = dist.get_rank(group)
        tracks = sum(kernel.programs for kernel in artifact.launched)
        self._words = torch.from_numpy(empty(tracks, artifact.spans)).to(device)
        debug_block[TRACE] = self._words.data_ptr()
        debug_block[STRIDE] = self._words.stride(0) * self._words.element_size()
        self._clocks = clocks
        self._first = self._clocks.offsets()
        self._times = torch.zeros(ANCHORS, 2, dtype=torch.int64, device=device)
        self._stamps = [HelperKernel(stamp, (row,), {"COUNT": 1}) for row in self._times]
        self._events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(ANCHORS)
        ]
        self._epoch = 0
        self._spans: list[Span] = []
        self._recorded: list[tuple[int, NDArray[np.int64]]] = []
        """(launch, words of its tracks), which `timeline` decodes: meanwhile the next launch would be late."""

    def begin(self, stream: torch.cuda.Stream) -> None:
        """Relate the time of events to the clock of programs, before a launch on this stream."""
        for write, (before, after) in zip(self._stamps, self._events, strict=True):
            before.record(stream)
            write(stream.cuda_stream)
            after.record(stream)

    def drain(self, queues: Iterable[Queue]) -> None:
        """Collect the spans of a completed launch that used these queues."""
        self._epoch += 1
        self._recorded.append((self._epoch, self._words.cpu().numpy()))
        self._words[:, COUNT] = 0
        for queue in queues:
            self._spans += self._copied(queue)

    def _copied(self, queue: Queue) -> Iterator[Span]:
        tracks = {one.name: one.track for one in self._artifact.launched}
        anchor = self._anchor() if queue.timed else None
        for operation, before, after in queue.timed:
            assert anchor is not None
            event, time = anchor
            begin, end = (time + round(queue.elapsed_ns(event, mark)) for mark in (before, after))
            kind, a, b = what(operation, self._rank, self._artifact)
            track = tracks[operation.kernel]
            yield Span(self._rank, track, kind, operation.stage, operation.tile, a, b, self._epoch, begin, end)

    def _anchor(self) -> tuple[int, int]:
        """Return an event's handle and its time: that of the stamp that followed it fastest."""
        gaps = [before.elapsed_time(after) for before, after in self._events]
        number = min(range(ANCHORS), key=gaps.__getitem__)
        return self._events[number][0].cuda_event, int(self._times[number, 0]) - round(gaps[number] * 1e6 / 2)

    def timeline(self) -> Timeline:
        """Return the spans that all ranks have recorded since the last call."""
        last = self._clocks.offsets()
        every: list[Any] = [None] * dist.get_world_size(self._group)
        lost = 0
        for epoch, words in self._recorded:
            spans, dropped = decoded(words, self._rank, epoch)
            self._spans += spans
            lost += dropped
        mine = [tuple(span) for span in self._spans], self._clocks.resolution, lost
        dist.all_gather_object(every, mine, group=self._group)
        spans = [
            aligned(Span(*span), first, final)
            for (rank_spans, _, _), first, final in zip(every, self._first, last, strict=True)
            for span in rank_spans
        ]
        self._first, self._spans, self._recorded = last, [], []
        return Timeline(
            spans=spans,
            resolution_ns=max(step for _, step, _ in every),
            ahead_ns=tuple(one.ahead for one in last),
            trip_ns=tuple(one.trip for one in last),
            dropped=sum(dropped for _, _, dropped in every),
        )


def what(operation: Operation, rank: int, artifact: Artifact) -> tuple[str, int, int]:
    """Return the kind, a and b of an operation's span on the copy engine of `rank`."""
    match operation:
        case StreamWait(channel=channel):
            return "wait", channel, 0
        case StreamWrite(rank=peer, channel=channel):
            return "notify", peer, channel
        case Copy(target=target, source=source):
            far = source if source.rank != rank else target
            return "transfer", far.rank, artifact.tensor(far.tensor).number


def aligned(span: Span, first: Offset, last: Offset) -> Span:
    """Return a span on the clock of rank 0. Its rank's clock was compared before and after it."""
    return span._replace(begin=moved(span.begin, first, last), end=moved(span.end, first, last))
