"""Process groups and their names, which groups that come after a destroyed one have again."""

from __future__ import annotations

from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group  # pyright: ignore

from tilelink.errors import RankError


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
