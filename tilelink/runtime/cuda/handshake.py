"""Argument of kernels that perform the launch handshake: the state of their rank (device/handshake.py)."""

from __future__ import annotations

import torch

from tilelink.artifact import Artifact
from tilelink.runtime.cuda.copies import Copies


class HandshakeArguments:
    """Arguments for the `HandshakePointer` of a rank's kernels: `block` enables the handshake, `none` disables it."""

    def __init__(self, artifact: Artifact, copies: Copies, device: torch.device) -> None:
        exits = copies.exits
        rows = len(exits) if exits.dim() == 2 else 0
        # A rank that has waited for all peers to enter a launch knows that they have finished the one before it.
        lag = 0 if artifact.needs_entry and artifact.lag > 1 else artifact.lag
        words = [1, 0, lag, rows, exits.data_ptr()]
        words += [len(copies.flag_values), copies.flags.data_ptr(), copies.flag_values.data_ptr()]
        words.append(copies.engine.begin.data_ptr())
        blocks = torch.tensor([words, [0] * len(words)], dtype=torch.int64, device=device)
        self.block, self.none = blocks[0], blocks[1].clone()
        self.in_kernels = artifact.protocol.in_kernels and copies.releases_as_meant
        """True if the rank's kernels perform the handshake, in launches that are not captured by a caller."""

    @property
    def usual(self) -> torch.Tensor:
        """Return the argument of kernels in launches that are not captured."""
        return self.block if self.in_kernels else self.none
