"""Copy-engine stages of a GPU rank: a generated queue function, recorded once for each buffer and then replayed.

No recorded operation depends on the number of the launch, so that a CUDA graph may hold it:
- a notify is a copy of a four-byte value that the rank's own GPU computed when it prepared the launch, in a helper
  kernel or in a kernel of the launch (device/handshake.py). The copy engine writes the counter; kernels add to it.
- a wait is for the threshold of one launch, and the stream resets the counter to zero. Later waits for it in the stream
  are left out: they would pass at once.

That nobody else uses these counters is proved (verifier/engine_counters.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tilelink.artifact import Artifact, SignalGrid
from tilelink.runtime.dtypes import dtype_of

Ints = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box of a rank's copy of a tensor: `rows` runs of `width` bytes, `pitch` apart, from byte `offset`."""

    tensor: str
    rank: int
    offsets: tuple[int, ...]
    width: int


@dataclass(frozen=True, kw_only=True)
class _Owned:
    """Stage and tile of an operation, for timelines. Two operations with the same effect are equal."""

    kernel: str = field(default="", compare=False)
    stage: int = field(default=-1, compare=False)
    tile: int = field(default=-1, compare=False)


@dataclass(frozen=True, kw_only=True)
class Copy(_Owned):
    """A copy with equally many runs of bytes on both sides."""

    target: Box
    source: Box


@dataclass(frozen=True, kw_only=True)
class StreamWrite(_Owned):
    """The number-th notify of the rank's copy engine in a launch, in the order of issue: counter `channel` of `rank`.

    step: notifies of that counter in a launch. count: notifies up to and including this one. buffers: of the counter.
    """

    number: int
    rank: int
    channel: int
    step: int
    count: int
    buffers: int


@dataclass(frozen=True, kw_only=True)
class StreamWait(_Owned):
    """A wait until the local counter `channel` has reached `threshold`. Then it becomes zero again."""

    channel: int
    threshold: int


Operation = Copy | StreamWrite | StreamWait


class Recorder:
    """Takes the place of a queue, and records what a generated function issues in launch `epoch`.

    before: what the stream has issued before it. Notifies are numbered on from those.
    """

    def __init__(self, artifact: Artifact, rank: int, epoch: int, kernel: str, before: Sequence[Operation]) -> None:
        self.operations: list[Operation] = []
        self._artifact = artifact
        self._rank = rank
        self._epoch = epoch
        self._flags = sum(isinstance(one, StreamWrite) for one in before)
        self._kernel = kernel
        self._notified: dict[tuple[int, int], int] = {}
        self._gates = {one.channel for one in before if isinstance(one, StreamWait)}

    def trace(self, track: int) -> None:
        """Do nothing: the operations themselves are timed."""

    def tile_begin(self, stage: int, t: int) -> None:
        """Do nothing: a stream has no tiles."""

    def tile_end(self, stage: int, t: int) -> None:
        """Do nothing, as tile_begin."""

    def wait(self, channel: int, target: int, stage: int, t: int) -> None:
        """Record a wait for a counter of the program. The runtime's own counters are handled before the launch."""
        if channel >= self._artifact.entered_base or channel in self._gates:
            return
        grid, linear = _place(self._artifact, channel)
        self._gates.add(channel)
        threshold = int(grid.thresholds[self._rank][linear])
        self.operations.append(
            StreamWait(channel=channel, threshold=threshold, kernel=self._kernel, stage=stage, tile=t)
        )

    def notify(self, rank: int, channel: int, stage: int, t: int) -> None:
        """Record a notify."""
        grid, linear = _place(self._artifact, channel)
        count = self._notified[rank, channel] = self._notified.get((rank, channel), 0) + 1
        step = int(grid.thresholds[rank][linear])
        flag = StreamWrite(
            number=self._flags, rank=rank, channel=channel, step=step, count=count, buffers=grid.buffers,
            kernel=self._kernel, stage=stage, tile=t,
        )  # fmt: skip
        self._flags += 1
        self.operations.append(flag)

    def entry(self, table: str, offset: int) -> int:
        """Return the value at a linear offset of one of the local tables."""
        return int(self._artifact.tables[table][self._rank].reshape(-1)[offset])

    def copy(
        self, target: str, rank: int, low: Ints, sizes: Ints,
        source: str, source_rank: int, source_low: Ints, source_sizes: Ints,
        stage: int, t: int, traced: bool = True,
    ) -> None:  # fmt: skip
        """Record a copy of a box of elements."""
        here, there = self._artifact.tensor(source), self._artifact.tensor(target)
        if not prod(sizes):
            return
        width = min(_run(here.shape, source_sizes), _run(there.shape, sizes))
        self.operations.append(
            Copy(
                target=self._box(target, rank, low, sizes, width),
                source=self._box(source, source_rank, source_low, source_sizes, width),
                kernel=self._kernel,
                stage=stage,
                tile=t,
            )
        )

    def _box(self, name: str, rank: int, low: Ints, sizes: Ints, width: int) -> Box:
        """Return the box as runs of `width` elements, which divides its longest contiguous run."""
        tensor = self._artifact.tensor(name)
        item = dtype_of(tensor).itemsize
        starts = _starts(tensor.shape, low, sizes, width) + tensor.buffer(self._epoch) * prod(tensor.shape)
        return Box(tensor=name, rank=rank, offsets=tuple((starts * item).tolist()), width=width * item)


def _place(artifact: Artifact, channel: int) -> tuple[SignalGrid, int]:
    """Return the grid of a counter and its number in the grid."""
    grid = artifact.grid(channel)
    return grid, (channel - grid.base) % grid.count


def _run(shape: Ints, sizes: Ints) -> int:
    """Return the contiguous elements of a box: its last dimensions as far as they are whole, and one more."""
    run = 1
    for extent, size in zip(reversed(shape), reversed(sizes), strict=True):
        run *= size
        if size != extent:
            break
    return run


def _starts(shape: Ints, low: Ints, sizes: Ints, width: int) -> Any:
    """Return the offsets of every width-th element of a box in its tensor.

    The others are many, and are not computed.
    """
    within = np.arange(0, prod(sizes), width, dtype=np.int64)
    starts, stride = np.zeros_like(within), 1
    for extent, start, size in zip(reversed(shape), reversed(low), reversed(sizes), strict=True):
        within, at = np.divmod(within, size)
        starts += (start + at) * stride
        stride *= extent
    return starts


def record(
    function: Callable[..., None], artifact: Artifact, rank: int, epoch: int, before: Sequence[Operation] = ()
) -> list[Operation]:
    """Return what a generated queue function issues in launch `epoch`. before: what the stream has issued before it."""
    recorder = Recorder(artifact, rank, epoch, function.__name__, before)
    function(recorder, rank, epoch)
    return recorder.operations


def before_kernels(
    operations: Sequence[Operation], rank: int, *, own_first: bool
) -> tuple[list[Operation], list[Operation]]:
    """Return the operations that are issued before the kernels, and the rest of a queue.

    A copy within one GPU may be executed by its SMs. Those may all be taken by a kernel that waits for this very copy.
    So copies within local memory that precede all waits are issued before the kernels, with the notifies after them.
    own_first: True if they overtake the rest (`Artifact.own_copies_first`); otherwise all operations before them are
    issued with them.
    """
    waits = (at for at, one in enumerate(operations) if isinstance(one, StreamWait))
    end = next(waits, len(operations))
    early: list[bool] = []
    own = False
    for operation in operations[:end]:
        if isinstance(operation, Copy):
            own = operation.target.rank == operation.source.rank == rank
        early.append(own)
    if not own_first:
        last = max((at for at, one in enumerate(early) if one), default=-1)
        early = [at <= last for at in range(end)]
    taken = [one for one, before in zip(operations, early, strict=False) if before]
    left = [one for one, before in zip(operations, early, strict=False) if not before]
    return taken, [*left, *operations[end:]]
