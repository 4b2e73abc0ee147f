# pyright: basic
"""The memory of a rank of several nodes: one allocation in NVSHMEM's heap for all that the network may touch."""

from __future__ import annotations

from math import prod

import torch

from tilelink.artifact import Artifact, TensorSpec
from tilelink.errors import RankError
from tilelink.runtime.cuda import tables
from tilelink.runtime.dtypes import dtype_of, stand_in
from tilelink.runtime.nvshmem.library import Library

ALIGNMENT = 1024
WORD = 8
"""Bytes of a counter: NVSHMEM adds to words of 64 bits. The low 32 bits count."""


class Memory:
    """The memory of a rank for an artifact (runtime/protocol.py). Construction is collective.

    The heap has the symmetric tensors and the counters, and the local tensors too, from which programs put. words: the
    counters as kernels take them, int64.
    """

    def __init__(self, artifact: Artifact, rank: int, library: Library, device: torch.device) -> None:
        self.rank, self.device = rank, device
        held = [t for t in artifact.tensors if t.symmetric or t.space in ("kept", "local")]
        size, self._offsets = _padded(artifact.pad_size * WORD), dict[str, int]()
        for tensor in held:
            self._offsets[tensor.name] = size
            size += _padded(tensor.buffers * prod(tensor.shape) * dtype_of(tensor).itemsize)
        self.heap = library.allocate(size)
        self._bases = [library.address(self.heap, one) for one in range(artifact.ranks)]
        self._check_nodes(artifact)
        self.words = self.heap[: artifact.pad_size * WORD].view(torch.int64)
        self.own = {t.name: self._view(t) for t in held}
        """Tensors [buffers, *shape] by name, without those that a caller passes."""
        for tensor in artifact.tensors:
            if not tensor.on(rank) and tensor.is_passed:
                self.own[tensor.name] = stand_in(tensor, device)
            if tensor.space == "table":
                rows = torch.as_tensor(artifact.tables[tensor.name][rank], dtype=torch.int32)
                self.own[tensor.name] = rows.to(device)[None]
        self.epoch = torch.tensor([1, 0, 0, 0], dtype=torch.int64, device=device)
        self.counters = {one.name: torch.zeros(1, dtype=torch.int32, device=device) for one in artifact.kernels}
        self.signal_table = torch.tensor(self.pads, dtype=torch.int64, device=device)
        symmetric = [t.name for t in artifact.tensors if t.symmetric]
        self.peers = {n: torch.tensor(self.addresses(n), dtype=torch.int64, device=device) for n in symmetric}
        self.thresholds = {grid.signal: tables.thresholds(grid, rank, device) for grid in artifact.grids}

    def _check_nodes(self, artifact: Artifact) -> None:
        """Raise RankError if a rank of the own node is not reached by a pointer: its kernels would need one."""
        size = artifact.ranks // artifact.nodes
        first = self.rank // size * size
        missing = [one for one in range(first, first + size) if not self._bases[one]]
        if missing:
            hint = f"a node of this program has {size} ranks; start as many on each machine, or give it more nodes"
            raise RankError(f"rank {self.rank} reaches rank {missing[0]} by the network alone", hint=hint)

    def _view(self, tensor: TensorSpec) -> torch.Tensor:
        shape, start = (tensor.buffers, *tensor.shape), self._offsets[tensor.name]
        size = prod(shape) * dtype_of(tensor).itemsize
        return self.heap[start : start + size].view(dtype_of(tensor)).view(shape)

    @property
    def pad(self) -> torch.Tensor:
        """Return the local signal pad, int32 [pad_size]: the half of each word that counts."""
        return self.words.view(torch.int32)[::2]

    @property
    def pads(self) -> list[int]:
        """Return the address of each rank's signal pad, 0 for those on other nodes."""
        return list(self._bases)

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return the local copy of a tensor, [buffers, *shape], or None if a caller passes it."""
        return self.own.get(name)

    def addresses(self, name: str) -> list[int]:
        """Return the address of each rank's copy of a symmetric tensor, 0 for those on other nodes."""
        return [base + self._offsets[name] if base else 0 for base in self._bases]


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
