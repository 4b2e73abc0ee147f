"""Order in which a runtime that issues kernels one by one issues them."""

from __future__ import annotations

from collections.abc import Sequence

from tilelink.artifact import KernelSpec


def kernels_in_order(kernels: Sequence[KernelSpec]) -> list[KernelSpec]:
    """Return the kernels in the order in which they are issued (lowering/issue_order.py)."""
    return sorted(kernels, key=lambda kernel: kernel.issue_index)
