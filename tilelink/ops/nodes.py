"""The nodes of a group's ranks: which of them reach each other's memory by pointers."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

from tilelink.errors import RankError
from tilelink.ops.groups import OfGroups, refuse_capture
from tilelink.settings import settings


def nodes_of(group: ProcessGroup) -> int:
    """Return the number of nodes that the ranks of a group fill, one after the other and equally many in each.

    A node is a host, or as many ranks as TILELINK_NODE_RANKS says on rank 0. The first call of a group is collective.
    Raises RankError, on all ranks, for ranks that lie in another way, and for a first call that a CUDA graph captures.
    """
    sizes = _sizes.of(group)
    if len(set(sizes)) > 1:
        hint = (
            "put ranks of one host next to each other in the group, equally many of each; or give "
            'schedule="unfused", which takes any group'
        )
        raise RankError(
            f"the ranks of the group lie in nodes of {', '.join(map(str, sizes))}, in this order", hint=hint
        )
    return len(sizes)


def is_one_node(group: ProcessGroup) -> bool:
    """Return True if all ranks of a group are in one node. The first call of a group is collective."""
    return len(_sizes.of(group)) == 1


def sizes_of(hosts: Sequence[str], chosen: int | None) -> list[int]:
    """Return the numbers of ranks of the nodes. hosts: of each rank. chosen: ranks of a node, None for hosts.

    A host that occurs again after another one is two nodes.
    """
    if chosen is None:
        return [len(list(ranks)) for _, ranks in groupby(hosts)]
    whole, rest = divmod(len(hosts), chosen)
    return [*([chosen] * whole), *([rest] if rest else [])]


def _sizes_by(group: ProcessGroup) -> list[int]:
    refuse_capture(
        "the ranks tell each other their hosts, which a CUDA graph cannot hold",
        "call the operator once before the capture, on all ranks, with as many rows as here",
    )
    mine = (_host(), settings().node_ranks)
    every: list[Any] = [mine] * group.size()
    if group.size() > 1:
        dist.all_gather_object(every, mine, group=group)
    return sizes_of([host for host, _ in every], every[0][1])


_sizes = OfGroups(_sizes_by)


def _host() -> str:
    """Return what tells hosts apart, also those of one name."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"
