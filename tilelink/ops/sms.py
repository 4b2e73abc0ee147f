"""How many SMs the kernels of a group's operators take, so that kernels of others can run beside them."""

from __future__ import annotations

from dataclasses import replace

import torch

from tilelink.errors import BindingError
from tilelink.ops.groups import Group, OfGroups, group_named, members_of
from tilelink.runtime.cuda.device import current_target
from tilelink.target import Target

_counts = OfGroups[dict[str, int]](lambda group: {})


def use_sms(count: int | None, *, group: Group = None) -> None:
    """Let the kernels of a group's operators that are compiled from now on take at most `count` SMs; None: all.

    Kernels wait for peers on their SMs. A collective of another group on another stream, as of FSDP, may wait for an SM
    of one rank and hold one of another, so that neither goes on: leave it some. Any number above 0 is enough for NCCL
    to make progress, as many as it has channels for its full speed.
    All ranks of the group call it alike, before the first calls of operators; `clear` forgets it. It does not hold for
    schedules with `program_per_tile`, whose tiles run wherever there is room. Raise BindingError for a number that the
    GPU does not have.
    """
    if count is not None and (type(count) is not int or count < 1):
        raise BindingError(f"use_sms({count!r})", hint="give the number of SMs that kernels take, or None for all")
    if count is not None and torch.cuda.is_available() and count > (there := current_target().sms):
        raise BindingError(f"kernels cannot take {count} SMs", hint=f"this GPU has {there}")
    members = members_of(group)
    known = _counts.of(group_named(members) if isinstance(members, str) else members)
    known.clear()
    if count is not None:
        known["sms"] = count


def target_of(group: torch.distributed.ProcessGroup) -> Target | None:
    """Return the processor for which kernels of a group are compiled, or None if it is the GPU as it is."""
    count = _counts.of(group).get("sms")
    return None if count is None else replace(current_target(group), sms=count)
