"""Placement of a copy engine's operations between kernels, such that a launch ends even with one hardware queue.

A GPU has a few hardware queues, onto which CUDA maps streams and the branches of graphs. An operation in a queue after
a wait is blocked too, even if it belongs to another stream, and CUDA does not track waits for counters (CUDA driver API
reference, "Stream Memory Operations"). So each notify is issued before the operations that wait for it. It is not
documented that a graph's branches keep the order in which they were captured, but GPUs were observed to keep it.
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
    """Return the operations of a copy engine before the first of these kernels, and those after each of them.

    They stay in order. An operation is issued once all kernels are whose notifies it, or an earlier one, waits for.
    These include notifies that a peer's copy engine waits for before its own. queued: the copy programs.
    """
    parts: list[list[Operation]] = [[] for _ in range(len(kernels) + 1)]
    position = 0
    for operation in operations:
        if isinstance(operation, StreamWait):
            signals = _needed_for(artifact.grid(operation.channel).signal, queued)
            position = max([position, *(at for at, k in enumerate(kernels, start=1) if signals & k.notifies)])
        parts[position].append(operation)
    return parts


def _needed_for(signal: Signal, queued: Sequence[CopyProgram]) -> set[Signal]:
    """Return the signal, and all signals that the copy engine waits for in the copy programs that send it."""
    signals, left = {signal}, [signal]
    while left:
        one = left.pop()
        new = {s for k in queued if one in k.notifies for s in k.awaits} - signals
        signals |= new
        left += new
    return signals
