# pyright: basic
"""The copy engine of a rank: its queues for every buffer in the cycle, and their issue in a launch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

import torch

from tilelink.runtime.cuda.graph_branches import Branches
from tilelink.runtime.cuda.graphs import Graphs, Replay
from tilelink.runtime.cuda.handles import SIDE_PRIORITY, Handles
from tilelink.runtime.cuda.offline import Recorded
from tilelink.runtime.cuda.queue import Bases, Places, Queue
from tilelink.runtime.cuda.record_copies import Operation, StreamWrite

Parts = dict[int, tuple[Replay, int | None]]
"""Number of issued kernels -> the operations to issue then, and their graph, if there is one."""


class CopyEngine:
    """The queues of a rank. In a launch they start at once, or when its kernel releases them (device/handshake.py)."""

    def __init__(
        self, found: Recorded, places: Places, pads: Sequence[int], rank: int, values: torch.Tensor,
        handles: Handles, *, branches: bool, timed: bool, replayed: bool, begun: bool,
    ) -> None:  # fmt: skip
        """pads: address of each rank's counters. values: values of the flags.

        branches: True if its waits may be a branch of a graph. timed: True to put events around every operation.
        replayed: True to issue it as graphs. begun: True if a kernel releases it, in launches that are not captured by
        a caller (`may_be_begun`).
        """
        self._device, self._handles = values.device, handles
        self._branches = self._branching() if branches and found.gated else None
        self._given = places, pads, rank, values.data_ptr(), partial(handles.event, timed=True) if timed else None
        self._replayed, self._graphs = replayed, Graphs(handles)
        self.begin = torch.zeros(1, dtype=torch.int32, device=values.device)
        """Word by which a kernel releases the copy engine."""
        rest = [[o for o in early if not (isinstance(o, StreamWrite) and o.rank == rank)] for early in found.early]
        self.early = [Queue(operations, *self._given) for operations in rest]
        """Operations of the main stream before the kernels, for each buffer."""
        captured = [self._queues(late, None) for late in found.late]
        self.late = [self._queues(defer_early_copies(late), self.begin) for late in found.late] if begun else captured
        """The other operations, for each buffer in parts: before the kernels, and after each of them."""
        self._captured_replays = self._replays_of(captured)
        self._replays = self._replays_of(self.late) if begun else self._captured_replays
        self.names = sorted({name for queue in chain(self.early, *self.late) for name in queue.names})
        """Names of the caller's tensors whose addresses it uses."""
        busy = any(any(late) for late in self.late)
        self.stream = handles.stream(self._device, SIDE_PRIORITY) if busy else None

    def _branching(self) -> Branches:
        """Return the object that puts the waits of captured queues into a branch, on a stream used for nothing else."""
        return Branches(self._handles, self._handles.stream(self._device, SIDE_PRIORITY))

    def _queues(self, parts: Sequence[Sequence[Operation]], begin: torch.Tensor | None) -> list[Queue]:
        """Return the queues of a buffer. The first one that is not empty waits for `begin`."""
        first = next((at for at, part in enumerate(parts) if part), None)
        word = None if begin is None else begin.data_ptr()
        return [
            Queue(part, *self._given, self._branches, word if at == first else None) for at, part in enumerate(parts)
        ]

    def _replays_of(self, queues: list[list[Queue]]) -> list[list[tuple[int, Replay]]]:
        def replay(queue: Queue) -> Replay:
            return Replay(queue, self._graphs, self._replayed)

        return [[(at, replay(one)) for at, one in enumerate(late) if one] for late in queues]

    def ready(self, slot: int, bases: Bases, captured: bool, callers: bool) -> Parts:
        """Return its operations in a launch with the buffers of `slot`. Graphs are created before any of them waits.

        captured: True if the streams are being captured. callers: True if the caller captures them.
        """
        if not self.stream:
            return {}
        replays = (self._captured_replays if callers else self._replays)[slot]
        return {at: (one, one.graph(self.stream, bases, captured)) for at, one in replays}

    def issue(self, parts: Parts, kernels: int, bases: Bases, captured: bool) -> None:
        """Issue the operations that follow a number of kernels."""
        if self.stream and kernels in parts:
            replay, graph = parts[kernels]
            replay.issue(self.stream, bases, graph, captured)


def may_be_begun(found: Recorded) -> bool:
    """True if a kernel may release a rank's copy engine: either every launch has operations for it or none has.

    Copies of the main stream before its kernels cannot wait for a release.
    """
    return not any(found.early) and len({any(late) for late in found.late}) == 1


def defer_early_copies(parts: Sequence[list[Operation]]) -> list[list[Operation]]:
    """Move the part before the first kernel to the part after it: [a, b, ...] -> [[], a + b, ...].

    That kernel releases all parts, so it must be issued first.
    """
    return [[], [*parts[0], *parts[1]], *parts[2:]]
