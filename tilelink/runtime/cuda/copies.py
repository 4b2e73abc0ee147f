"""The copy engine of a GPU rank, with the tables from which kernels count and signal for it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tilelink.artifact import Artifact
from tilelink.runtime.cuda import tables
from tilelink.runtime.cuda.copy_stream import CopyEngine, may_be_begun
from tilelink.runtime.cuda.device import of_all
from tilelink.runtime.cuda.handles import Handles
from tilelink.runtime.cuda.memory import Memory
from tilelink.runtime.cuda.offline import HelperOptions, helper_options, recorded


class Copies:
    """The operations of a rank's copy engine in a launch, for every buffer in the cycle. Construction is collective."""

    engine: CopyEngine
    options: HelperOptions
    """Options of the rank's helper kernels."""
    waits: list[int]
    """Counters that the copy engine waits for."""
    exits: torch.Tensor
    counters: torch.Tensor
    flags: torch.Tensor
    flag_values: torch.Tensor
    """Tables of the helper kernels, int32 (helper_kernels.close_launch)."""
    releases_as_meant: bool
    """False if the protocol makes a kernel release the copy engine, but some rank's copies begin before that kernel."""

    def __init__(
        self, artifact: Artifact, memory: Memory, group: dist.ProcessGroup, handles: Handles,
        *, timed: bool, replayed: bool,
    ) -> None:  # fmt: skip
        """handles: own what the driver makes for it.

        timed: True to put events around every operation. replayed: True to issue operations as graphs.
        """
        rank, device = memory.rank, memory.device
        found = recorded(artifact, rank)
        # All ranks or none: if a rank is notified of a launch's end only in the next launch, its peers must not wait
        # for it at the end of this one.
        releases = artifact.protocol.releases_copies
        begun = releases and all(of_all(int(may_be_begun(found)), group, device))
        self.releases_as_meant = begun == releases
        self.options = helper_options(artifact, found, begun)
        self.waits = sorted(found.gated)
        self.exits, self.counters, self.flags = (
            tables.int32(rows, device) for rows in (found.exits, found.counters, found.flags)
        )
        self.flag_values = tables.int32([row[1] for row in found.flags], device)
        for _, count, _, counter, _ in found.flags:
            if counter >= 0:
                memory.pad[counter] = count
        self.engine = CopyEngine(
            found, memory.place, memory.pads, rank, self.flag_values, handles,
            branches=artifact.free_waits, timed=timed, replayed=replayed, begun=begun,
        )  # fmt: skip
