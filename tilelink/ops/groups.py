"""Process groups, their names, which later groups have again after one was destroyed, and what is kept for a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group  # pyright: ignore

from tilelink.errors import RankError
from tilelink.runtime.cuda.device import check_member, no_group

Group = ProcessGroup | str | None
"""A process group, its name, or None for all ranks."""

T = TypeVar("T")


def members_of(group: Group) -> ProcessGroup | str:
    """Return the group of a call, or its name if that was given.

    Raises RankError if there are no ranks, and for what is no group; callers need not be typed.
    """
    members = group if group is not None else dist.group.WORLD
    if members is None:
        hint = 'start with torchrun and call torch.distributed.init_process_group("nccl", device_id=...) first'
        raise RankError("this process is no rank of torch.distributed", hint=hint)
    if not isinstance(members, str) and not hasattr(members, "group_name"):  # traced, a group has no type
        check_member(members)
        raise no_group(members)
    return members


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

    def __init__(self, make: Callable[[ProcessGroup], T]) -> None:
        self._make = make
        self._kept: dict[int, tuple[ProcessGroup, T]] = {}
        _stores.append(self)

    def of(self, group: ProcessGroup) -> T:
        """Return the value of a group.

        Raises RankError for a rank outside of it, and for a group that was destroyed.
        """
        kept = self._kept.get(id(group))
        return kept[1] if kept is not None else self._new(group)

    def _new(self, group: ProcessGroup) -> T:
        check_member(group)
        for key in [key for key, (other, _) in self._kept.items() if is_destroyed(other)]:
            del self._kept[key]
        if is_destroyed(group):
            hint = "it was destroyed: give one that torch.distributed has"
            raise RankError(f"there is no process group {group.group_name!r} any more", hint=hint)
        value = self._make(group)
        self._kept[id(group)] = group, value
        return value

    def clear(self) -> None:
        self._kept.clear()


def clear() -> None:
    """Forget all kernels and decisions of all groups, and free the memory of the kernels.

    Kernels of several nodes keep theirs: NVSHMEM frees it collectively, or when the process ends.

    All ranks call it, when no operator is running any more.
    """
    for store in _stores:
        store.clear()
