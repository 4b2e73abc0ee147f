"""Order in which a runtime that issues kernels one by one issues them."""

from __future__ import annotations

from collections.abc import Sequence

from tilelink.artifact import KernelSpec


def kernels_in_order(kernels: Sequence[KernelSpec]) -> list[KernelSpec]:
    """Return the kernels in the order in which they are issued.

    If no kernel waits for another, those of side streams come first, because they have fewer programs. Kernels of one
    stream stay in order. If kernels wait for one another, no order is better: all must run concurrently.
    """
    left = sorted(kernels, key=lambda k: (k.stream == "main", k.position))
    ordered: list[KernelSpec] = []
    while left:
        heads = [k for k in left if not any(o.stream == k.stream and o.position < k.position for o in left)]
        free = [k for k in heads if not any(o is not k and o.notifies & k.awaits for o in left)]
        chosen = (free or heads)[0]
        left.remove(chosen)
        ordered.append(chosen)
    return ordered
