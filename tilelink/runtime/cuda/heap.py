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

    Construction is collective: all ranks of the group build equal heaps in the same order. After it the counters of all
    ranks are zero. addresses(name)[rank] is the address of that rank's copy, as this process sees it.
    symmetric_bytes: bytes of its symmetric memory: 0 if ranks are independent, whose memory is ordinary.
    """

    def __init__(self, artifact: Artifact, group: dist.ProcessGroup, device: torch.device) -> None:
        self._offsets, self._debug_offset = _laid_out(artifact)
        size, self.symmetric_bytes = self._debug_offset + _padded(WORDS * 8), heap_bytes(artifact)
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
    def debugs(self) -> list[int]:
        """Return the address of each rank's debug block."""
        return [base + self._debug_offset for base in self._bases]


def heap_bytes(artifact: Artifact) -> int:
    """Return the bytes of a rank's symmetric memory: 0 if ranks are independent."""
    return 0 if artifact.protocol is LaunchProtocol.INDEPENDENT else _laid_out(artifact)[1] + _padded(WORDS * 8)


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
