"""Which kernels begin and end a launch by themselves (runtime/device/meeting.py)."""

from __future__ import annotations

from tilelink.backend.dialects import Dialect
from tilelink.ir.program import Wait
from tilelink.ir.visitor import statements
from tilelink.schedule.bound import Bound, Kernel


def edges(bound: Bound, kernel: Kernel, dialect: Dialect) -> tuple[bool, bool]:
    """Whether a kernel begins the launch by itself, and ends it: where all kernels run one after the other, or all
    their programs are counted."""
    by_count = counted(bound, dialect) > 0
    if not dialect.meets or kernel.on_copy_engine or not (by_count or bound.in_line):
        return False, False
    begins = kernel.position == 0 and bound.ranks > 1 and any(one.needs_entry for one in bound.kernels)
    return begins, by_count or kernel.position == len(bound.kernels) - 1


def counted(bound: Bound, dialect: Dialect) -> int:
    """The programs of a launch, where they are counted as they end and nobody waits for its end; else 0.

    That is where peers read no inputs and write no outputs, and the kernels run beside each other, or there is one
    beside a copy engine, which it lets begin. A kernel alone is counted if it does not wait until a peer has finished
    an earlier launch; inputs that peers read must have a second buffer then: whoever enters a launch has finished the
    one before.
    """
    kernels = bound.on_sms
    if not dialect.meets or not kernels or (len(kernels) > 1 and bound.in_line):
        return 0
    first, programs = kernels[0], sum(one.programs for one in kernels)
    shared = [t for t in bound.tensors.values() if t.decl.symmetric and t.decl.space in ("in", "out")]
    if len(kernels) == 1 and first.stream == "main" and not first.reuse_lag and not feeds(bound):
        twice = all(t.decl.space == "in" and first.needs_entry and t.slots > 1 for t in shared)
        return programs if twice else 0
    if bound.ranks == 1 or shared or not any(one.stream == "main" for one in kernels):
        return 0
    if feeds(bound):
        return programs if len(kernels) == 1 and not first.reuse_lag else 0
    return programs if any(one.beside for one in kernels) else 0


def tells(kernel: Kernel) -> bool:
    """Whether it is the kernel that tells peers of the launches before: the first one of the caller's stream."""
    return kernel.stream == "main" and kernel.position == 0


def feeds(bound: Bound) -> bool:
    """Whether there is a copy engine."""
    return len(bound.on_sms) < len(bound.kernels)


def waits_for_products(bound: Bound) -> bool:
    """Whether the copy engine waits for what programs make; then it needs all of them to run."""
    queued = (bound.stages[name].stage for one in bound.kernels if one.on_copy_engine for name in one.stage_names)
    return any(isinstance(s, Wait) for stage in queued for s in statements(stage.body))
