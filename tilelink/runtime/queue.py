"""The copy engine of a CPU rank: does what a generated queue function issues, one operation after the other."""

from __future__ import annotations

from collections.abc import Sequence

from tilelink.runtime import host_signals, monitor
from tilelink.runtime.memory import Memory


class CopyQueue:
    """The queue of one rank in the launch `epoch`. Offsets and sizes are in elements of the tensors."""

    def __init__(self, memory: Memory, rank: int, epoch: int) -> None:
        self._memory = memory
        self._rank = rank
        self._epoch = epoch

    def tile_begin(self, stage: int, t: int) -> None:
        """Notes that tile t of a stage begins."""
        monitor.record("tile", stage, t, 0, 0)

    def wait(self, channel: int, target: int, stage: int, t: int) -> None:
        """Waits until the own counter `channel` reached `target`. Raises DeadlineError if that takes too long."""
        host_signals.wait(self._memory.pads[self._rank], channel, target, stage, t)

    def notify(self, rank: int, channel: int, stage: int, t: int) -> None:
        """Adds 1 to counter `channel` of `rank`, after all copies issued before."""
        host_signals.notify(self._memory.pads[rank], channel, rank, stage, t)
