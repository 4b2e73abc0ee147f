"""In which order a runtime that issues kernels one by one does so."""

from __future__ import annotations

from collections.abc import Sequence

from tilelink.artifact import KernelSpec


def kernels_in_order(kernels: Sequence[KernelSpec]) -> list[KernelSpec]:
    """Kernels as they are issued. Without waits between them the side streams' come first, which have fewer programs.

    Kernels of one stream stay in order. Where kernels wait for one another, no order is better: all must run at once.
    """
    left = sorted(kernels, key=lambda k: (k.stream == "main", k.position))
    found: list[KernelSpec] = []
    while left:
        heads = [k for k in left if not any(o.stream == k.stream and o.position < k.position for o in left)]
        free = [k for k in heads if not any(o is not k and o.notifies & k.awaits for o in left)]
        chosen = (free or heads)[0]
        left.remove(chosen)
        found.append(chosen)
    return found
