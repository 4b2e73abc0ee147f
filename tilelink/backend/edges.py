"""Which kernels begin and end a launch by themselves (runtime/device/meeting.py)."""

from __future__ import annotations

from tilelink.backend.dialects import Dialect
from tilelink.schedule.bound import Bound, Kernel


def edges(bound: Bound, kernel: Kernel, dialect: Dialect) -> tuple[bool, bool]:
    """Whether a kernel begins and ends the launch by itself: where all kernels run one after the other, or it is the
    only one beside a copy engine."""
    alone = counted(bound, kernel, dialect)
    if not dialect.meets or (not alone and any(one.stream != "main" for one in bound.kernels)):
        return False, False
    read = any(one.needs_entry for one in bound.kernels) and bound.ranks > 1
    return read and kernel.position == 0, alone or kernel.position == len(bound.kernels) - 1


def counted(bound: Bound, kernel: Kernel, dialect: Dialect) -> bool:
    """Whether a launch is this kernel alone, and no kernel waits until a peer has finished an earlier one.

    A copy engine may be beside it, which the kernel lets begin, if peers read no inputs and write no outputs. Else
    inputs that peers read have a second buffer: whoever enters a launch has finished the one before.
    """
    programs = [one for one in bound.kernels if not one.on_copy_engine]
    if not dialect.meets or programs != [kernel] or kernel.stream != "main" or kernel.reuse_lag:
        return False
    shared = [t for t in bound.tensors.values() if t.decl.symmetric and t.decl.space in ("in", "out")]
    if feeds(bound):
        return bound.ranks > 1 and not shared
    return all(t.decl.space == "in" and kernel.needs_entry and t.slots > 1 for t in shared)


def feeds(bound: Bound) -> bool:
    """Whether there is a copy engine."""
    return any(one.on_copy_engine for one in bound.kernels)
