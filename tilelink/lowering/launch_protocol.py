"""Choice of the launch protocol of a bound program: the cheapest correct one (tilelink/artifact.py).

A program starts with HELPER_KERNELS, which is correct whatever the passes do. This pass is the last. It considers which
kernels run one after the other, and which ranks wait for peers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.artifact import LaunchProtocol
from tilelink.ir.visitor import awaited
from tilelink.lowering.bound import Bound, Kernel
from tilelink.lowering.issue_order import signals


def choose_protocol(bound: Bound) -> Bound:
    """Return the bound program with the cheapest protocol in place of HELPER_KERNELS."""
    return replace(bound, protocol=_protocol(bound))


def fitting(bound: Bound) -> tuple[LaunchProtocol, ...]:
    """Return the protocols that are correct for a program which all passes before this one have lowered."""
    return tuple(dict.fromkeys((_protocol(bound), LaunchProtocol.HELPER_KERNELS)))


@dataclass(frozen=True, kw_only=True)
class KernelHandshake:
    """The part of a kernel in the launch protocol of its program.

    announces_entry: it announces to peers that its rank has entered a launch. None does if no peer waits for that.
    ends_launch: its programs end the launch, or are counted as they exit.
    announces_end: it announces the end of earlier launches. first_announces: its first program does, not its last.
    begins_copies: it lets the copies of the launch begin. first_begins_copies: its first program does, not its last.
    counted: programs of a launch if they are counted as they exit, else 0.
    """

    announces_entry: bool = False
    ends_launch: bool = False
    announces_end: bool = False
    first_announces: bool = False
    begins_copies: bool = False
    first_begins_copies: bool = False
    counted: int = 0

    @property
    def takes_part(self) -> bool:
        """True if the kernel reads or writes the state of the handshake."""
        return self.announces_entry or self.ends_launch


def handshake_of(bound: Bound, kernel: Kernel, *, copies_wait: bool) -> KernelHandshake:
    """Return the part of a kernel in the launch protocol. A copy engine has none: the runtime sees to it.

    copies_wait: True if the copy engine waits for data that programs produce. Then all programs must be resident before
    it begins.
    """
    protocol = bound.protocol
    if kernel.on_copy_engine or protocol is LaunchProtocol.INDEPENDENT:
        return KernelHandshake()
    several, first = bound.ranks > 1, kernel.position == 0
    last = protocol.counted or kernel.position == len(bound.kernels) - 1
    begins_copies = protocol.releases_copies
    return KernelHandshake(
        announces_entry=protocol.in_kernels and first and several and any(one.needs_entry for one in bound.kernels),
        ends_launch=protocol.in_kernels and last,
        announces_end=protocol.counted and several and first and kernel.stream == "main",
        first_announces=kernel.program_per_tile,  # the last program of such a kernel may wait for those that are told
        begins_copies=begins_copies,
        first_begins_copies=begins_copies and not copies_wait,
        counted=sum(one.programs for one in bound.on_sms) if protocol.counted else 0,
    )


def _protocol(bound: Bound) -> LaunchProtocol:
    if bound.nodes > 1:  # a rank is finished when the network has delivered all it put, which helper kernels come after
        return LaunchProtocol.HELPER_KERNELS
    if _independent(bound):
        return LaunchProtocol.INDEPENDENT
    if not bound.capabilities.handshakes:
        return LaunchProtocol.HELPER_KERNELS
    if (counted := _counted(bound)) is not None:
        return counted
    # The last kernel ends a launch before outputs are copied out of buffers that peers write to. So the wait for this
    # rank's entry must keep peers from writing in the next launch.
    copied_out = any(t.decl.symmetric and t.decl.space == "out" for t in bound.tensors.values())
    entered = any(one.needs_entry for one in bound.kernels if one.position == 0)
    if bound.kernels and bound.in_line and (entered or not copied_out):
        return LaunchProtocol.IN_KERNEL
    return LaunchProtocol.HELPER_KERNELS


def _independent(bound: Bound) -> bool:
    """True if no program waits for another one, and no rank accesses another one's memory."""
    apart = all(not t.decl.symmetric and t.buffers == 1 for t in bound.tensors.values())
    return apart and not bound.channels and len(bound.on_sms) == len(bound.kernels)


def _counted(bound: Bound) -> LaunchProtocol | None:
    """Return a protocol without an end of launches, or None if a rank waits for that end.

    No rank waits for it if peers read no inputs and write no outputs, and if the kernels run concurrently, or if there
    is one kernel next to a copy engine, which it releases. A single kernel is counted if it does not wait until a peer
    has finished an earlier launch. Inputs that peers read must then have a second buffer: a rank that enters a launch
    has finished the one before.
    """
    kernels, copies = bound.on_sms, len(bound.on_sms) < len(bound.kernels)
    if not kernels or (len(kernels) > 1 and bound.in_line):
        return None
    first = kernels[0]
    shared = [t for t in bound.tensors.values() if t.decl.symmetric and t.decl.space in ("in", "out")]
    if len(kernels) == 1 and first.stream == "main" and not first.reuse_lag and not copies:
        twice = all(t.decl.space == "in" and first.needs_entry and t.buffers > 1 for t in shared)
        return LaunchProtocol.COUNTED if twice else None
    if bound.ranks == 1 or shared or not any(one.stream == "main" for one in kernels):
        return None
    if copies:
        # Where copies wait for programs, the last program to start lets them begin. It starts after others have ended
        # if not all are resident, and those may wait for copies.
        late = first.program_per_tile and any(
            signals(bound, one, awaited) for one in bound.kernels if one.on_copy_engine
        )
        one_releases = len(kernels) == 1 and not first.reuse_lag and not late
        return LaunchProtocol.COUNTED_WITH_COPIES if one_releases else None
    return LaunchProtocol.COUNTED_ANNOUNCED if any(one.on_side_stream for one in kernels) else None
