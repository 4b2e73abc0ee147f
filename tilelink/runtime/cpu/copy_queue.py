"""Copy engine of a CPU rank: executes the operations of a generated queue function, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilelink.device import monitor
from tilelink.runtime.cpu import host_signals
from tilelink.runtime.cpu.memory import Memory

Ints = Sequence[int]


class CopyQueue:
    """The queue of one rank in the launch `epoch`. Offsets and sizes are in elements, without buffers."""

    def __init__(self, memory: Memory, rank: int, epoch: int) -> None:
        self._memory = memory
        self._rank = rank
        self._epoch = epoch
        self._track: int | None = None

    def trace(self, track: int) -> None:
        """Record the spans of the operations after this call, as that track of the rank."""
        self._track = track

    def tile_begin(self, stage: int, t: int) -> None:
        """Record that tile t of a stage begins."""
        monitor.record("tile", stage, t, 0, 0)
        monitor.begin("tile")

    def tile_end(self, stage: int, t: int) -> None:
        """Record that tile t of a stage ends."""
        self._end("tile", stage, t, 0, 0)

    def _end(self, kind: str, stage: int, t: int, a: int, b: int) -> None:
        if self._track is not None:
            monitor.end(self._track, kind, stage, t, a, b)

    def wait(self, channel: int, target: int, stage: int, t: int) -> None:
        """Wait until the local counter `channel` has reached `target`. Raises DeadlineError if that takes too long."""
        monitor.begin("wait")
        host_signals.wait(self._memory.pads[self._rank], channel, target, stage, t)
        self._end("wait", stage, t, channel, 0)

    def notify(self, rank: int, channel: int, stage: int, t: int) -> None:
        """Add 1 to counter `channel` of `rank`, after all copies issued before."""
        monitor.begin("notify")
        host_signals.notify(self._memory.pads[rank], channel, rank, stage, t)
        self._end("notify", stage, t, rank, channel)

    def entry(self, table: str, offset: int) -> int:
        """Return the value at a linear offset of one of the local tables."""
        return int(self._memory.tensors[self._rank][table].flatten()[offset])

    def copy(
        self, target: str, rank: int, low: Ints, sizes: Ints,
        source: str, source_rank: int, source_low: Ints, source_sizes: Ints,
        stage: int, t: int, traced: bool = True,
    ) -> None:  # fmt: skip
        """Copy a box of elements between two tensors of any ranks, and convert to the target's dtype.

        low, sizes: one number per dimension. traced: True if it is a transfer of the plan, False for a plain store. The
        event names the remote end: the source if data is fetched, else the target.
        """
        own = rank == self._rank
        pulled = source_rank != self._rank or (own and stage in self._memory.artifact.pulls)
        name, peer, place = (source, source_rank, source_low) if pulled else (target, rank, low)
        tensor = self._memory.artifact.tensor(name)
        offset = 0
        for extent, start in zip(tensor.shape, place, strict=True):
            offset = offset * extent + start
        if traced:
            monitor.record("transfer", stage, t, tensor.number, peer, offset)
        monitor.begin("transfer")
        there = self._box(target, rank, low, sizes)
        there.copy_(self._box(source, source_rank, source_low, source_sizes).reshape(there.shape))
        if traced:
            self._end("transfer", stage, t, peer, tensor.number)

    def _box(self, name: str, rank: int, low: Ints, sizes: Ints) -> torch.Tensor:
        buffer = self._memory.artifact.tensor(name).buffer(self._epoch)
        box = self._memory.tensors[rank][name][buffer]
        return box[tuple(slice(start, start + size) for start, size in zip(low, sizes, strict=True))]
