# pyright: basic, reportMissingImports=false
"""NVSHMEM's host library, as far as the runtime needs it. All calls of nvshmem4py are here."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

from tilelink.errors import RankError


class Library(Protocol):
    """Memory that ranks of all nodes reach, and modules that call the device library."""

    def allocate(self, size: int) -> torch.Tensor:
        """Return `size` bytes of zeros, uint8, at the same place of every rank's heap. Collective."""
        ...

    def address(self, memory: torch.Tensor, rank: int) -> int:
        """Return the address of a rank's copy of such memory, or 0 if this rank reaches it by the network alone."""
        ...

    def register(self, module: int) -> None:
        """Tell the device library about a module that has been loaded, by the driver's handle.

        Without that, its calls read an empty state.
        """
        ...


class Nvshmem:
    """The library of nvshmem4py. It is initialized once in a process, for all ranks of torch.distributed."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Collective. Raise RankError if the library is missing or does not start, or for a group of some ranks."""
        if group.size() != dist.get_world_size():
            hint = "compile it for all ranks; groups of ranks that lie inside a node run with device cuda"
            raise RankError(f"a group of {group.size()} of {dist.get_world_size()} ranks on several nodes", hint=hint)
        try:
            import nvshmem.bindings as bindings
            import nvshmem.core as core
            from cuda.core import Device
        except ImportError as error:
            hint = "pip install 'tilelink[nvshmem]', and see `tilelink doctor`"
            raise RankError(f"NVSHMEM is not installed: {error}", hint=hint) from error
        self._core, self._bindings = core, bindings
        if not _started(core):
            rank = dist.get_rank()
            own: Any = Device(device.index)
            own.set_current()
            ids = [core.get_unique_id(empty=rank != 0)]
            dist.broadcast_object_list(ids, src=0)
            try:
                core.init(device=own, uid=ids[0], rank=rank, nranks=dist.get_world_size(), initializer_method="uid")
            except Exception as error:
                hint = "see `tilelink doctor`, and run with NVSHMEM_DEBUG=INFO"
                raise RankError(f"NVSHMEM does not start: {error}", hint=hint) from error

    def allocate(self, size: int) -> torch.Tensor:
        memory = self._core.tensor((size,), dtype=torch.uint8)
        memory.zero_()
        return memory

    def address(self, memory: torch.Tensor, rank: int) -> int:
        if rank == dist.get_rank():
            return memory.data_ptr()
        try:
            return self._core.get_peer_tensor(memory, rank).data_ptr()
        except Exception:  # nvshmem4py raises its own errors for a null pointer, which differ between versions
            return 0

    def register(self, module: int) -> None:
        self._bindings.cumodule_init(module)


def _started(core: Any) -> bool:
    status = getattr(core, "init_status", None)
    return status is not None and int(status()) >= 2  # NVSHMEM_STATUS_IS_INITIALIZED
