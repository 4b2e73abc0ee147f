"""Between which kernels a copy engine's operations are issued, so that a launch ends even with one hardware queue.

A GPU has a few queues, onto which CUDA maps streams and the branches of graphs. What stands in a queue behind a wait
waits too, whether or not it is of the same stream, and CUDA knows nothing of waits for counters (CUDA driver API
reference, "Stream Memory Operations"). So whatever notifies is issued before what waits for it. That a graph's branches
keep the order in which they were captured is not documented: it is what GPUs were seen to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilelink.artifact import Artifact, CopyProgram, KernelSpec, Signal
from tilelink.runtime.cuda.record_copies import Operation, StreamWait


def between_kernels(
    operations: Sequence[Operation],
    kernels: Sequence[KernelSpec],
    artifact: Artifact,
    queued: Sequence[CopyProgram] = (),
) -> list[list[Operation]]:
    """The operations of a copy engine before the first of these kernels, and those behind each of them.

    They stay in order. One is issued when all have been whose notifies it, or one before it, waits for: also those that
    a peer's copy engine waits for before it notifies. queued: the copy programs.
    """
    parts: list[list[Operation]] = [[] for _ in range(len(kernels) + 1)]
    place = 0
    for operation in operations:
        if isinstance(operation, StreamWait):
            signals = _behind(artifact.grid(operation.channel).signal, queued)
            place = max([place, *(at for at, k in enumerate(kernels, start=1) if signals & k.notifies)])
        parts[place].append(operation)
    return parts


def _behind(signal: Signal, queued: Sequence[CopyProgram]) -> set[Signal]:
    """The signal, and all that the copy engine waits for in the copy programs that send it."""
    found, left = {signal}, [signal]
    while left:
        one = left.pop()
        new = {s for k in queued if one in k.notifies for s in k.awaits} - found
        found |= new
        left += new
    return found
