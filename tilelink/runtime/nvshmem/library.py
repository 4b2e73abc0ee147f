# pyright: basic, reportMissingImports=false
"""NVSHMEM's host library, as far as the runtime needs it. All calls of nvshmem4py are here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from tilelink.errors import RankError, TileLinkError


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
    """The library of nvshmem4py for the ranks of a group. A process starts it once, for one group."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Start the library if this process has not. Collective over the group, whose ranks are its PEs.

        Raises RankError if the library is missing or does not start, or if it runs for other ranks.
        """
        core, bindings, Device = packages()
        self._core, self._bindings, self._rank = core, bindings, dist.get_rank(group)
        if _started(core):
            _check_group(core, group)
            return
        own: Any = Device(device.index)
        own.set_current()
        ids = [core.get_unique_id(empty=self._rank != 0)]
        dist.broadcast_object_list(ids, group=group, group_src=0)
        try:
            core.init(device=own, uid=ids[0], rank=self._rank, nranks=group.size(), initializer_method="uid")
        except Exception as error:
            hint = "see `tilelink doctor`, and run with NVSHMEM_DEBUG=INFO"
            raise RankError(f"NVSHMEM does not start: {error}", hint=hint) from error
        _started_for[:] = dist.get_process_group_ranks(group)

    def allocate(self, size: int) -> torch.Tensor:
        """Allocate as `Library` says. nvshmem4py keeps the memory until the process ends.

        Raises RankError if the heap has no room.
        """
        try:
            memory = self._core.tensor((size,), dtype=torch.uint8)
        except Exception as error:  # of nvshmem4py, whose classes differ between versions
            hint = (
                "set NVSHMEM_SYMMETRIC_SIZE to a larger heap, or compile fewer kernels: each keeps its memory until "
                "the process ends"
            )
            raise RankError(f"NVSHMEM's heap has no {size} bytes for a kernel: {error}", hint=hint) from error
        memory.zero_()
        return memory

    def address(self, memory: torch.Tensor, rank: int) -> int:
        if rank == self._rank:
            return memory.data_ptr()
        try:
            return self._core.get_peer_tensor(memory, rank).data_ptr()
        except Exception:  # nvshmem4py raises its own errors for a null pointer, which differ between versions
            return 0

    def register(self, module: int) -> None:
        self._bindings.cumodule_init(module)


def packages() -> tuple[Any, Any, Any]:
    """Return nvshmem4py's modules `core` and `bindings`, and CUDA's class Device. Raises RankError without them."""
    try:
        import nvshmem.bindings as bindings
        import nvshmem.core as core
        from cuda.core import Device
    except ImportError as error:
        hint = "pip install 'tilelink[nvshmem]', and see `tilelink doctor`"
        raise RankError(f"NVSHMEM is not installed: {error}", hint=hint) from error
    return core, bindings, Device


def on_every_rank(check: Callable[[], object], group: dist.ProcessGroup) -> None:
    """Make a check that raises a designed error on every rank, if it does on one: the others would wait for it.

    Collective. A rank raises its own error, or a RankError that tells that of the first rank which has one.
    """
    own: TileLinkError | None = None
    try:
        check()
    except TileLinkError as error:
        own = error
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, None if own is None else (own.message, own.hint), group=group)
    if own is not None:
        raise own
    for rank, said in enumerate(every):
        if said is not None:
            raise RankError(f"rank {rank} cannot build the kernel: {said[0]}", hint=said[1])


_started_for: list[int] = []
"""The ranks of all, in the order of the group for which this process has started the library; empty before."""


def _check_group(core: Any, group: dist.ProcessGroup) -> None:
    """Raise RankError if the library runs for other ranks than those of a group, or in another order."""
    wanted = dist.get_process_group_ranks(group)
    if _started_for:
        fits, there = _started_for == wanted, f"ranks {', '.join(map(str, _started_for))}"
    else:  # started by the caller's program
        fits = (core.my_pe(), core.n_pes()) == (dist.get_rank(group), group.size())
        there = f"{core.n_pes()} PEs"
    if not fits:
        hint = (
            "a process is in one group of several nodes: give all such kernels that group. Groups that lie inside a "
            "node run without NVSHMEM, with nodes=1"
        )
        raise RankError(f"NVSHMEM runs here for {there}, not for ranks {', '.join(map(str, wanted))}", hint=hint)


def _started(core: Any) -> bool:
    status = getattr(core, "init_status", None)
    return status is not None and int(status()) >= 2  # NVSHMEM_STATUS_IS_INITIALIZED
