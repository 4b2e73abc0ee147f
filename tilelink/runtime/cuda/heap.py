"""Memory of a GPU rank that its peers access: one symmetric allocation for all tensors and counters of a program."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory as symmetric

from tilelink.artifact import Artifact, LaunchProtocol, TensorSpec
from tilelink.device.debug import WORDS
from tilelink.runtime.dtypes import dtype_of

ALIGNMENT = 1024


class Heap:
    """The symmetric tensors [buffers, *shape], the signal pad (int32 counters, all 0) and a debug block of one rank.

    It belongs to one kernel, and no two parts of it share a byte. The number of a launch is that of this kernel, the
    counters count its notifies, and words of data and flag (lowering/clauses/low_latency.py) have that number as their
    flag. Data of another tensor, or words of another kernel, could have the flag of a word that has not come yet.

    Construction is collective: all ranks of the group build equal heaps in the same order. After it the counters of all
    ranks are zero. addresses(name)[rank] is the address of that rank's copy, as this process sees it.
    symmetric_bytes: bytes of its symmetric memory: 0 if ranks are independent, whose memory is ordinary.
    """

    def __init__(self, artifact: Artifact, group: dist.ProcessGroup, device: torch.device) -> None:
        self._offsets, self._debug_offset = _laid_out(artifact)
        self._board_offset = self._debug_offset + _padded(WORDS * 8)
        size, self.symmetric_bytes = self._board_offset + _board_bytes(artifact), heap_bytes(artifact)
        if self.symmetric_bytes:
            self.memory = symmetric.empty(size, dtype=torch.uint8, device=device)
            self.memory.zero_()
            self._handle: Any = symmetric.rendezvous(self.memory, group)
            self._bases = [int(base) for base in self._handle.buffer_ptrs]
            torch.cuda.synchronize(device)
            dist.barrier(group, device_ids=[device.index])
        else:  # no kernel accesses a peer
            self.memory = torch.zeros(size, dtype=torch.uint8, device=device)
            self._bases = [self.memory.data_ptr()] * artifact.ranks
        self.pad = self.memory[: artifact.pad_size * 4].view(torch.int32)
        self.debug = self.memory[self._debug_offset : self._debug_offset + WORDS * 8].view(torch.int64)
        self.board = self.memory[self._board_offset :].view(torch.int64)[: 2 * artifact.ranks]
        """int64: where ranks compare their launches (runtime/cuda/launch_checks.py)."""
        self.tensors = {t.name: self._view(t) for t in artifact.tensors if t.symmetric}

    def _view(self, tensor: TensorSpec) -> torch.Tensor:
        shape = (tensor.buffers, *tensor.shape)
        start = self._offsets[tensor.name]
        size = prod(shape) * dtype_of(tensor).itemsize
        return self.memory[start : start + size].view(dtype_of(tensor)).view(shape)

    def addresses(self, name: str) -> list[int]:
        """Return the address of each rank's copy of a symmetric tensor."""
        return [base + self._offsets[name] for base in self._bases]

    @property
    def pads(self) -> list[int]:
        """Return the address of each rank's signal pad."""
        return list(self._bases)

    @property
    def boards(self) -> list[int]:
        """Return the address of each rank's board."""
        return [base + self._board_offset for base in self._bases]

    @property
    def debugs(self) -> list[int]:
        """Return the address of each rank's debug block."""
        return [base + self._debug_offset for base in self._bases]


def heap_bytes(artifact: Artifact) -> int:
    """Return the bytes of a rank's symmetric memory: 0 if ranks are independent."""
    if artifact.protocol is LaunchProtocol.INDEPENDENT:
        return 0
    return _laid_out(artifact)[1] + _padded(WORDS * 8) + _board_bytes(artifact)


def _board_bytes(artifact: Artifact) -> int:
    return _padded(artifact.ranks * 2 * 8)


def _laid_out(artifact: Artifact) -> tuple[dict[str, int], int]:
    """Return where the tensors are in a heap, after the signal pad, and where the debug block is."""
    offsets: dict[str, int] = {}
    size = _padded(artifact.pad_size * 4)
    for tensor in artifact.tensors:
        if tensor.symmetric:
            offsets[tensor.name] = size
            size += _padded(tensor.buffers * prod(tensor.shape) * dtype_of(tensor).itemsize)
    return offsets, size


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
