"""The launch protocol of a bound program: the cheapest that is right for its kernels (tilelink/artifact.py).

A program has HELPER_KERNELS from the start, with which the rules hold whatever passes do; this one, the last, asks
which kernels run one after the other, and who waits for peers.
"""

from __future__ import annotations

from dataclasses import replace

from tilelink.artifact import LaunchProtocol
from tilelink.ir.program import Wait
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound, Kernel


def choose_protocol(bound: Bound) -> Bound:
    """before: HELPER_KERNELS. after: the protocol that costs least."""
    return replace(bound, protocol=_protocol(bound))


def announces_entry(bound: Bound, kernel: Kernel, protocol: LaunchProtocol) -> bool:
    """True for the kernel that announces to peers that its rank has entered a launch, where peers wait for that."""
    first = not kernel.on_copy_engine and kernel.position == 0 and bound.ranks > 1
    return protocol.in_kernels and first and any(one.needs_entry for one in bound.kernels)


def ends_launch(bound: Bound, kernel: Kernel, protocol: LaunchProtocol) -> bool:
    """True for kernels whose programs end a launch, or are counted as they do."""
    last = protocol.counted or kernel.position == len(bound.kernels) - 1
    return protocol.in_kernels and not kernel.on_copy_engine and last


def announces_end(kernel: Kernel) -> bool:
    """True for the kernel that announces the end of earlier launches: the first one of the caller's stream."""
    return kernel.stream == "main" and kernel.position == 0


def waits_for_products(bound: Bound) -> bool:
    """True if the copy engine waits for what programs make; then it needs all of them to run."""
    queued = (bound.stages[name].stage for one in bound.kernels if one.on_copy_engine for name in one.stage_names)
    return any(isinstance(s, Wait) for stage in queued for s in statements(stage.body))


def _protocol(bound: Bound) -> LaunchProtocol:
    if (counted := _counted(bound)) is not None:
        return counted
    # The last kernel ends a launch before outputs are copied out of buffers that peers write to. Then peers must be
    # kept from the next launch by waiting for this rank's entry.
    copied_out = any(t.decl.symmetric and t.decl.space == "out" for t in bound.tensors.values())
    entered = any(one.needs_entry for one in bound.kernels if one.position == 0)
    if bound.kernels and bound.in_line and (entered or not copied_out):
        return LaunchProtocol.IN_KERNEL
    return LaunchProtocol.HELPER_KERNELS


def _counted(bound: Bound) -> LaunchProtocol | None:
    """A protocol without an end of launches, or None where a rank waits for one.

    No rank waits where peers read no inputs and write no outputs, and the kernels run beside each other, or there is
    one beside a copy engine, which it releases. A kernel alone is counted if it does not wait until a peer has finished
    an earlier launch; inputs that peers read must have a second buffer then: whoever enters a launch has finished the
    one before.
    """
    kernels, copies = bound.on_sms, len(bound.on_sms) < len(bound.kernels)
    if not kernels or (len(kernels) > 1 and bound.in_line):
        return None
    first = kernels[0]
    shared = [t for t in bound.tensors.values() if t.decl.symmetric and t.decl.space in ("in", "out")]
    if len(kernels) == 1 and first.stream == "main" and not first.reuse_lag and not copies:
        twice = all(t.decl.space == "in" and first.needs_entry and t.slots > 1 for t in shared)
        return LaunchProtocol.COUNTED if twice else None
    if bound.ranks == 1 or shared or not any(one.stream == "main" for one in kernels):
        return None
    if copies:
        return LaunchProtocol.COUNTED_WITH_COPIES if len(kernels) == 1 and not first.reuse_lag else None
    return LaunchProtocol.COUNTED_ANNOUNCED if any(one.beside for one in kernels) else None
