"""The GPU of this rank and the group it belongs to."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from tilelink.errors import RankError, UnknownTargetError
from tilelink.target import TARGETS, Target


def current_target() -> Target:
    """What generated kernels are compiled for on this rank's GPU. Raises RankError where there is none."""
    if not torch.cuda.is_available():
        raise RankError("there is no GPU here", hint="compile(...) runs the same program on CPU ranks")
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    name = f"sm_{properties.major}{properties.minor}"
    family = [t for t in TARGETS if t.kind == "cuda" and t.name == name]
    if not family:
        known = ", ".join(t.name for t in TARGETS if t.kind == "cuda")
        raise UnknownTargetError(f"{properties.name} is {name}", hint=f"the targets with kernels are {known}")
    return replace(family[0], sms=properties.multi_processor_count)


def group_of(group: dist.ProcessGroup | None, ranks: int | None = None) -> dist.ProcessGroup:
    """The group, or that of all ranks. Raises RankError if there is none, or if it has another number of ranks."""
    if not dist.is_initialized():
        hint = 'start with torchrun and call torch.distributed.init_process_group("nccl", device_id=...) first'
        raise RankError("this process is no rank of torch.distributed", hint=hint)
    members = group if group is not None else dist.group.WORLD
    if members is None or ranks not in (None, members.size()):
        raise RankError(f"the group has {members.size() if members else 0} ranks, not {ranks}")
    return members
