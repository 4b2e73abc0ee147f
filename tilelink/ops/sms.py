"""How many SMs the kernels of a group's operators take, so that kernels of others can run beside them.

NCCL launches clusters of CTAs from sm_90 on, four each unless NCCL_CGA_CLUSTER_SIZE says otherwise, and a cluster lies
in one part of a GPU (GPC). On H200s a collective of several channels did not begin beside kernels that left 16 SMs, two
in each part, and began beside some that left 20. With 25 there is a part that has four, wherever the kernels lie.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from tilelink.errors import BindingError
from tilelink.ops.groups import Group, OfGroups, members_of
from tilelink.runtime.cuda.device import current_target
from tilelink.settings import variable
from tilelink.target import Target

_PARTS = 8
"""Parts in which clusters lie, at most."""

_counts = OfGroups[dict[str, int | None]](lambda group: {})


def use_sms(count: int | None, *, group: Group = None) -> None:
    """Let the kernels of a group's operators that are compiled from now on take at most `count` SMs; None: all.

    Kernels wait for peers on their SMs. A collective of another group on another stream, as of FSDP, may wait for SMs
    of one rank and hold those of another, so that neither goes on. So kernels of a group that is not all ranks leave
    some unless this says otherwise: `sms_of_collectives`.
    All ranks of the group call it alike, before the first calls of operators; `clear` forgets it. It does not hold for
    schedules with `program_per_tile`, whose tiles run wherever there is room. Raise BindingError for a number that the
    GPU does not have.
    """
    if count is not None and (type(count) is not int or count < 1):
        raise BindingError(f"use_sms({count!r})", hint="give the number of SMs that kernels take, or None for all")
    if count is not None and torch.cuda.is_available() and count > (there := current_target().sms):
        raise BindingError(f"kernels cannot take {count} SMs", hint=f"this GPU has {there}")
    _counts.of(members_of(group))["sms"] = count


def sms_of_collectives(processor: Target) -> int:
    """Return how many SMs have to be free for a collective of NCCL to begin, whichever they are."""
    said = variable("NCCL_CGA_CLUSTER_SIZE") or ""
    size = int(said) if said.isdecimal() else 4 if processor.tma else 1
    return _PARTS * (max(size, 1) - 1) + 1


def target_of(group: dist.ProcessGroup) -> Target | None:
    """Return the processor for which kernels of a group are compiled, or None if it is the GPU as it is."""
    said = _counts.of(group)
    if said.get("sms", 0) is None or (not said and group.size() == dist.get_world_size()):
        return None
    there = current_target(group)
    return replace(there, sms=said.get("sms") or max(1, there.sms - sms_of_collectives(there)))
