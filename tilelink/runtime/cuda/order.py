"""In which order a launch is issued, so that it ends even where all its streams share one hardware queue.

A GPU has a few queues, onto which CUDA maps streams and the branches of graphs. What stands in a queue behind a wait
waits too, whether or not it is of the same stream, and CUDA knows nothing of waits for counters (CUDA driver API
reference, "Stream Memory Operations"). So whatever notifies is issued before what waits for it. That a graph's branches
keep the order in which they were captured is not documented: it is what GPUs were seen to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilelink.runtime.cuda.record_copies import Operation, StreamWait
from tilelink.runtime.cuda.spec import GpuKernel, Signal
from tilelink.runtime.job import Layout


def kernels_in_order(kernels: Sequence[GpuKernel]) -> list[GpuKernel]:
    """Those on SMs. Without waits between them the side streams' come first, which have fewer programs.

    Kernels of one stream stay in order. Where kernels wait for one another, no order is better: all must run at once.
    """
    left = sorted((k for k in kernels if not k.copy_engine), key=lambda k: (k.stream == "main", k.position))
    found: list[GpuKernel] = []
    while left:
        heads = [k for k in left if not any(o.stream == k.stream and o.position < k.position for o in left)]
        free = [k for k in heads if not any(o is not k and o.notifies & k.awaits for o in left)]
        chosen = (free or heads)[0]
        left.remove(chosen)
        found.append(chosen)
    return found


def between_kernels(
    operations: Sequence[Operation], kernels: Sequence[GpuKernel], layout: Layout, queued: Sequence[GpuKernel] = ()
) -> list[list[Operation]]:
    """The operations of a copy engine before the first of these kernels, and those behind each of them.

    They stay in order. One is issued when all have been whose notifies it, or one before it, waits for: also those that
    a peer's copy engine waits for before it notifies. queued: the kernels of the copy engine.
    """
    parts: list[list[Operation]] = [[] for _ in range(len(kernels) + 1)]
    place = 0
    for operation in operations:
        if isinstance(operation, StreamWait):
            grid = layout.grid(operation.channel)
            signals = _behind((grid.tensor, grid.kind), queued)
            place = max([place, *(at for at, k in enumerate(kernels, start=1) if signals & k.notifies)])
        parts[place].append(operation)
    return parts


def _behind(signal: Signal, queued: Sequence[GpuKernel]) -> set[Signal]:
    """The signal, and all that the copy engine waits for in the kernels that send it."""
    found, left = {signal}, [signal]
    while left:
        one = left.pop()
        new = {s for k in queued if one in k.notifies for s in k.awaits} - found
        found |= new
        left += new
    return found
