# pyright: basic
"""The GPU of this rank, its group, and checks that the ranks of the group build the same thing."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from tilelink.errors import RankError, UnknownTargetError
from tilelink.target import TARGETS, Target


def gpu_of(group: dist.ProcessGroup) -> torch.device:
    """Return the GPU that the group, or that of all ranks, is bound to, else the current one.

    A thread's current GPU is the first one until the thread changes it, whichever GPU the rank has.
    """
    for one in (group, dist.group.WORLD):
        bound: torch.device | None = getattr(one, "bound_device_id", None)
        if bound is not None and bound.type == "cuda" and bound.index is not None:
            return bound
    return torch.device("cuda", torch.cuda.current_device())


def current_target(group: dist.ProcessGroup | None = None) -> Target:
    """Return the target of this rank's GPU: the current one, or that of a group.

    Raises RankError if there is none.
    """
    if not torch.cuda.is_available():
        raise RankError("there is no GPU here", hint="compile(...) runs the same program on CPU ranks")
    properties = torch.cuda.get_device_properties(torch.cuda.current_device() if group is None else gpu_of(group))
    name = f"sm_{properties.major}{properties.minor}"
    family = [t for t in TARGETS if t.kind == "cuda" and t.name == name]
    if not family:
        names = ", ".join(t.name for t in TARGETS if t.kind == "cuda")
        raise UnknownTargetError(f"{properties.name} is {name}", hint=f"the targets with kernels are {names}")
    return replace(family[0], sms=properties.multi_processor_count)


def group_of(group: dist.ProcessGroup | None, ranks: int | None = None) -> dist.ProcessGroup:
    """Return the group, or that of all ranks.

    Raises RankError if there is none, if this rank is not in it, if it has another number of ranks, and for what is no
    group; callers need not be typed.
    """
    if not dist.is_initialized():
        hint = 'start with torchrun and call torch.distributed.init_process_group("nccl", device_id=...) first'
        raise RankError("this process is no rank of torch.distributed", hint=hint)
    members = group if group is not None else dist.group.WORLD
    check_member(members)
    if not isinstance(members, dist.ProcessGroup | None):
        raise no_group(members)
    if members is None or ranks not in (None, members.size()):
        hint = "start as many processes, pass a group of as many ranks, or leave the number out"
        raise RankError(f"the group has {members.size() if members else 0} ranks, not {ranks}", hint=hint)
    return members


def check_member(group: object) -> None:
    """Raise RankError for the placeholder that torch returns to ranks outside of a group."""
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise RankError("this rank is not in the group", hint="only the ranks that a group is made of can use it")


def no_group(given: object) -> RankError:
    """Return the error for what is given as a group and is none."""
    hint = (
        "group takes one that torch.distributed.new_group returned, or None for all ranks; operators its name or a "
        "mesh, too"
    )
    return RankError(f"the group is of type {type(given).__name__}, which is no process group", hint=hint)


def agree(number: int, group: dist.ProcessGroup, device: torch.device) -> None:
    """Raise RankError on every rank if their programs have different numbers: they would deadlock. Collective."""
    every = of_all(number, group, device)
    different = [rank for rank, one in enumerate(every) if one != number]
    if different:
        hint = (
            "call compile with the same program, schedule, sizes and tables on all ranks, in the same order, and set "
            "TILELINK_CHECK on all or none"
        )
        raise RankError(f"rank {dist.get_rank(group)} and rank {different[0]} compile different programs", hint=hint)


def of_all(number: int, group: dist.ProcessGroup, device: torch.device) -> list[int]:
    """Return the numbers of all ranks. Collective."""
    local = torch.tensor([number], dtype=torch.int64, device=device)
    every = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(every, local, group=group)
    return every.tolist()
