"""Facts on which all ranks of a group agree: the GPU, what was measured on such GPUs, and the nodes that have them.

Ranks must take the same implementation, and one may read the database of tuning results before another has written to
it. So rank 0 reads it, once, and tells the others; from then on every decision is a function of what all of them have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tilelink.errors import RankError, ShapeError, TileLinkError
from tilelink.ops.groups import OfGroups
from tilelink.ops.nodes import is_one_node
from tilelink.tuning import Database, Key, Record, here

SAME = "all ranks of the group make the same calls in the same order"


@dataclass(frozen=True, kw_only=True)
class Consensus:
    """gpu, versions: of rank 0, as keys of records have them. records: for these and the group's ranks alone.

    one_node: True if all ranks are on one, so that they reach each other's memory.
    """

    gpu: str
    versions: str
    records: Mapping[Key, Record]
    one_node: bool = True


def consensus(group: ProcessGroup) -> Consensus:
    """Return the consensus of the ranks of a group. The first call is collective, and waits for rank 0.

    Raises RankError for a first call that a CUDA graph captures.
    """
    return _agreed.of(group)


def _agreed_by(group: ProcessGroup) -> Consensus:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        hint = "call the operator once before the capture, on all ranks, or give it a schedule"
        raise RankError("the ranks choose an implementation together, which a CUDA graph cannot hold", hint=hint)
    said: list[Any] = [_own(group.size()) if group.rank() == 0 else None]
    if group.size() > 1:
        dist.broadcast_object_list(said, group=group, group_src=0)
    return replace(said[0], one_node=is_one_node(group))


_agreed = OfGroups(_agreed_by)


def check_alike(op: str, call: tuple[str, ...], shape: torch.Size, alike: int, group: ProcessGroup) -> None:
    """Raise ShapeError, on all ranks, where their calls or the first `alike` sizes of x differ; collective.

    call: what else all ranks give alike, in words. Nothing is compared while a CUDA graph captures, which cannot hold
    it.
    """
    if group.size() == 1 or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, (op, call, list(shape)), group=group)
    own = group.rank()
    if others := [rank for rank, (other, *_) in enumerate(every) if other != op]:
        message = f"rank {own} calls {op}, and rank {others[0]} calls {every[others[0]][0]}"
        raise ShapeError(message, hint=SAME)
    _same_calls(op, [parts for _, parts, _ in every], group)
    sizes = {tuple(one[:alike]) for *_, one in every}
    if len(sizes) > 1:
        of = {size: [str(r) for r, one in enumerate(every) if tuple(one[-1][:alike]) == size] for size in sorted(sizes)}
        said = (
            f"{size[0]} rows" + (f" of {list(size[1:])}" if alike > 1 else "") + f" on rank{'s' * (len(those) > 1)} "
            f"{', '.join(those)}"
            for size, those in of.items()
        )
        hint = "every rank of the group gives as many: pad to the largest, and cut the result"
        raise ShapeError(f"x of {op} has {'; '.join(said)}", hint=hint)


def check_alike_once(op: str, call: tuple[str, ...], x: torch.Tensor, group: ProcessGroup) -> None:
    """Compare calls as `check_alike` does, and all sizes of x: once for each kind of call."""
    if (kind := (op, call, x.shape)) not in (known := _compared.of(group)):
        check_alike(op, call, x.shape, x.dim(), group)
        known.add(kind)


_compared = OfGroups[set[Any]](lambda group: set())
"""Kinds of calls that all ranks of a group were found to make alike."""


def gathered(
    op: str, what: tuple[str, ...], group: ProcessGroup, own: Any = None, refusal: TileLinkError | None = None
) -> list[Any]:
    """Return what every rank gives, if all ranks make the same call; collective.

    op: the operator's name. what: the call in words, part by part. own: what this rank gives. refusal: why this rank
    cannot make the call; it is raised after the others have been told.

    Raises RankError on ranks that could make the call if another one cannot, ShapeError if the calls differ.
    """
    every: list[Any] = [(what, str(refusal or ""), own)]
    if group.size() > 1:
        every = [None] * group.size()
        dist.all_gather_object(every, (what, str(refusal or ""), own), group=group)
    if refusal is not None:
        raise refusal
    for rank, (_, text, _) in enumerate(every):
        if text:
            message = f"rank {rank} cannot make the call of {op} that this rank makes"
            raise RankError(message, details=text, hint=f"mend the call of rank {rank}: all ranks make the same one")
    _same_calls(op, [other for other, *_ in every], group)
    return [given for *_, given in every]


def _same_calls(op: str, calls: Sequence[tuple[str, ...]], group: ProcessGroup) -> None:
    """Raise ShapeError if a rank makes another call than this one. calls: of all ranks, part by part."""
    what = calls[group.rank()]
    if different := [rank for rank, other in enumerate(calls) if other != what]:
        rank, other = different[0], calls[different[0]]
        own_parts, others = ([part for part in one if part not in two] for one, two in ((what, other), (other, what)))
        sides = [", ".join(parts) or "without that" for parts in (own_parts, others)]
        message = f"rank {group.rank()} calls {op} with {sides[0]}, and rank {rank} with {sides[1]}"
        raise ShapeError(message, hint=SAME)


def _own(ranks: int) -> Consensus:
    gpu, versions = here()
    fitting = (r for r in Database().records() if (r.key.gpu, r.key.versions, r.key.ranks) == (gpu, versions, ranks))
    return Consensus(gpu=gpu, versions=versions, records={r.key: replace(r, evidence=()) for r in fitting})
