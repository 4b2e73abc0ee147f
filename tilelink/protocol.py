"""How the ranks of a group begin and end a launch together."""

from __future__ import annotations

from enum import Enum, auto


class LaunchProtocol(Enum):
    """Who announces to the peers that a rank has entered a launch, and that it has finished it.

    ARCHITECTURE.md has a timeline of each.
    """

    HELPER_KERNELS = auto()
    """Kernels of the runtime, one before the program's and one after them. Right for every program."""
    IN_KERNEL = auto()
    """The first kernel announces the entry, the last program of the last one the end. For kernels of one stream."""
    COUNTED = auto()
    """Programs are counted as they end, which numbers launches. For one kernel whose end nobody waits for."""
    COUNTED_ANNOUNCED = auto()
    """As COUNTED, for kernels beside one another; the next launch announces the end of this one, before it waits."""
    COUNTED_WITH_COPIES = auto()
    """As COUNTED_ANNOUNCED, for one kernel with a copy engine beside it, which the kernel releases."""

    @property
    def in_kernels(self) -> bool:
        """True if the program's kernels do it, so that the runtime launches none of its own."""
        return self is not LaunchProtocol.HELPER_KERNELS

    @property
    def counted(self) -> bool:
        """True if programs are counted as they end, and no rank waits for the end of a launch."""
        return self in (
            LaunchProtocol.COUNTED, LaunchProtocol.COUNTED_ANNOUNCED, LaunchProtocol.COUNTED_WITH_COPIES,
        )  # fmt: skip

    @property
    def announces_late(self) -> bool:
        """True if peers wait for what the next launch announces."""
        return self in (LaunchProtocol.COUNTED_ANNOUNCED, LaunchProtocol.COUNTED_WITH_COPIES)
