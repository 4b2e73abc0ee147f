"""Process groups, their names, which later groups have again after one was destroyed, and what is kept for a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _resolve_process_group  # pyright: ignore

from tilelink.errors import DeadlineError, RankError
from tilelink.runtime.cuda.device import check_member, no_group
from tilelink.runtime.cuda.kept import KeepingKernel
from tilelink.settings import settings

Group = ProcessGroup | DeviceMesh | str | None
"""A process group, its name, a mesh of one dimension, or None for all ranks."""

T = TypeVar("T")


def members_of(group: Group) -> ProcessGroup | str:
    """Return the group of a call, or its name if that was given.

    Raises RankError if there are no ranks, for a mesh of several dimensions, and for what is no group; callers need not
    be typed.
    """
    members = group if group is not None else dist.group.WORLD
    if type(members) is ProcessGroup:  # the usual case, in least time
        return members
    if members is None:
        hint = 'start with torchrun and call torch.distributed.init_process_group("nccl", device_id=...) first'
        raise RankError("this process is no rank of torch.distributed", hint=hint)
    if isinstance(members, DeviceMesh):
        return group_of(members)
    if not isinstance(members, str) and not hasattr(members, "group_name"):  # traced, a group has another type
        check_member(members)
        raise no_group(members)
    return members


def group_of(mesh: DeviceMesh) -> ProcessGroup:
    """Return the group of a mesh of one dimension. Raises RankError for others."""
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        hint = f'give one of them, as mesh["{names[-1]}"]' if names else "name them, and give one: mesh[name]"
        raise RankError(f"the mesh has {mesh.ndim} dimensions: {list(names or mesh.shape)}", hint=hint)
    return mesh.get_group()


def name_of(members: ProcessGroup | str) -> str:
    """Return the name of a group, as custom operators take it. Raises RankError for a rank outside of it."""
    check_member(members)
    return members if isinstance(members, str) else members.group_name


def group_named(name: str) -> ProcessGroup:
    """The group that has a name now. Raises RankError where none has."""
    try:
        return _resolve_process_group(name)  # type: ignore[arg-type]
    except RuntimeError:
        hint = "it was destroyed, or never made: give a group that torch.distributed has"
        raise RankError(f"there is no process group {name!r}", hint=hint) from None


def size_of(members: ProcessGroup | str) -> int:
    """Return the number of ranks of a group, or of the group of a name. Raises RankError where none has it."""
    return (group_named(members) if isinstance(members, str) else members).size()


def is_capturing() -> bool:
    """True if a CUDA graph captures what is issued."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def refuse_capture(message: str, hint: str) -> None:
    """Raise RankError while a CUDA graph is captured."""
    if is_capturing():
        raise RankError(message, hint=hint)


def wait_for(pending: Iterable[Any], like: torch.Tensor) -> None:
    """Wait for transfers that were begun: the stream of a GPU, or the host up to TILELINK_DEADLINE. like: one of them.

    Raises DeadlineError for one that takes longer.
    """
    seconds = settings().deadline
    try:
        for one in pending:
            wait_within(seconds, one, like)
    except RuntimeError as error:
        if seconds is None:
            raise
        hint = "all ranks of the group make the same calls in the same order"
        raise DeadlineError(f"a transfer did not end in {seconds} s", seconds=seconds, hint=hint) from error


def wait_within(seconds: float | None, transfer: Any, like: torch.Tensor) -> None:
    """Wait for a transfer of what is like a tensor: the stream of a GPU, or the host, so long; None: as torch does."""
    transfer.wait(*([] if seconds is None or like.is_cuda else [timedelta(seconds=seconds)]))


def is_destroyed(group: ProcessGroup) -> bool:
    """True if no group has the name any more, or another group has it."""
    try:
        return group_named(group.group_name) is not group
    except RankError:
        return True


_stores: list[OfGroups[Any]] = []


class OfGroups(Generic[T]):
    """A value for each group, made at its first use. It is kept with its group, so that no other group has its id.

    A group that comes after a destroyed one may have its name, and gets a value of its own.
    """

    def __init__(self, make: Callable[[ProcessGroup], T], free: Callable[[T, bool], int] | None = None) -> None:
        """free: frees what a value holds, as `close_kernels` does, and returns how many kernels it holds afterwards."""
        self._make, self._free = make, free
        self._kept: dict[int, tuple[ProcessGroup, T]] = {}
        _stores.append(self)

    def of(self, group: ProcessGroup | str) -> T:
        """Return the value of a group, or of the group that has a name.

        Raises RankError for a rank outside of it, and for a group that was destroyed.
        """
        kept = self._kept.get(id(group))
        return kept[1] if kept is not None else self._new(group)

    def _new(self, group: ProcessGroup | str) -> T:
        if isinstance(group, str):
            return self.of(group_named(group))
        check_member(group)
        for key in [key for key, (other, _) in self._kept.items() if is_destroyed(other)]:
            del self._kept[key]
        if is_destroyed(group):
            hint = "it was destroyed: give one that torch.distributed has"
            raise RankError(f"there is no process group {group.group_name!r} any more", hint=hint)
        value = self._make(group)
        self._kept[id(group)] = group, value
        return value

    def clear(self, captured: bool) -> int:
        """Free all values, as `clear` below. Return the number of kernels that are kept."""
        held = 0
        for key, (_, value) in [*self._kept.items()]:
            holds = self._free(value, captured) if self._free else 0
            if not holds:
                del self._kept[key]
            held += holds
        return held


def close_kernels(known: dict[Any, Any], captured: bool) -> int:
    """Close the kernels among the values of a dictionary, and empty it. Return the number of kernels that are kept.

    captured: True to close those too that were captured into CUDA graphs. Otherwise these are kept.
    """
    kernels = {key: one for key, one in known.items() if isinstance(one, KeepingKernel)}
    kept = {key: one for key, one in kernels.items() if one.captured and not captured}
    for key, one in kernels.items():
        if key not in kept:
            one.close()
    known.clear()
    known.update(kept)
    return len(kept)


def clear(*, captured: bool = False) -> int:
    """Forget the kernels and decisions of all groups, and free the memory of the kernels.

    Kernels that were captured into a CUDA graph are kept: a replay writes to the memory of peers. Return how many are.
    captured: True to free them as well, when no graph that holds one is replayed any more.
    Kernels of several nodes keep their memory: NVSHMEM frees it collectively, or when the process ends.

    All ranks call it, when no operator is running any more, and have captured the same operators.
    """
    return sum(store.clear(captured) for store in _stores)
