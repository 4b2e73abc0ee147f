"""The memory of a GPU rank: the heap that its peers access, local tensors, tables and the number of the launch."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tilelink.artifact import Artifact, TensorSpec
from tilelink.runtime.cuda import tables
from tilelink.runtime.cuda.heap import Heap
from tilelink.runtime.dtypes import dtype_of, stand_in


class Memory:
    """The memory of a rank for an artifact (runtime/protocol.py). Construction is collective."""

    def __init__(self, artifact: Artifact, rank: int, group: dist.ProcessGroup, device: torch.device) -> None:
        self.heap = Heap(artifact, group, device)
        self.device = device
        self.rank = rank
        self.pad, self.pads = self.heap.pad, self.heap.pads
        self.own = dict(self.heap.tensors)
        """Tensors [buffers, *shape] by name, without those that a caller passes."""
        for tensor in artifact.tensors:
            if not tensor.on(rank) and not tensor.symmetric:
                self.own[tensor.name] = stand_in(tensor, device)
            elif not tensor.symmetric and tensor.space in ("kept", "local", "table"):
                self.own[tensor.name] = self._local(artifact, tensor)
        self.epoch = torch.tensor([1, 0, 0, 0], dtype=torch.int64, device=device)
        """State of launches, as kernels take it (device/handshake.py)."""
        self.counters = {one.name: torch.zeros(1, dtype=torch.int32, device=device) for one in artifact.kernels}
        """Counters by which programs take tiles, by kernel."""
        self.signal_table = torch.tensor(self.pads, dtype=torch.int64, device=device)
        self.peers = {
            name: torch.tensor(self.addresses(name), dtype=torch.int64, device=device) for name in self.heap.tensors
        }
        self.thresholds = {grid.signal: tables.thresholds(grid, rank, device) for grid in artifact.grids}

    def _local(self, artifact: Artifact, tensor: TensorSpec) -> torch.Tensor:
        if tensor.space == "table":
            return torch.as_tensor(artifact.tables[tensor.name][self.rank], dtype=torch.int32).to(self.device)[None]
        return torch.zeros((tensor.buffers, *tensor.shape), dtype=dtype_of(tensor), device=self.device)

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return the local copy of a tensor, [buffers, *shape], or None if a caller passes it."""
        return self.own.get(name)

    def addresses(self, name: str) -> list[int]:
        """Return the address of each rank's copy of a symmetric tensor, as this process accesses it."""
        return self.heap.addresses(name)

    def place(self, name: str, rank: int) -> int | None:
        """Return the address of a rank's copy of a tensor, or None if a caller passes it."""
        if name in self.heap.tensors:
            return self.addresses(name)[rank]
        return self.own[name].data_ptr() if name in self.own else None
