"""Facts on which all ranks of a group agree: the GPU, what was measured on such GPUs, and the nodes that have them.

Ranks must take the same implementation, and one may read the database of tuning results before another has written to
it. So rank 0 reads it, once, and tells the others; from then on every decision is a function of what all of them have.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore, _get_process_group_store  # pyright: ignore

from tilelink.errors import DeadlineError, RankError, ShapeError, TileLinkError
from tilelink.ops import unfused
from tilelink.ops.custom import is_direct
from tilelink.ops.groups import OfGroups, is_capturing, refuse_capture, wait_within
from tilelink.ops.nodes import is_one_node
from tilelink.settings import settings
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
    refuse_capture(
        "the ranks choose an implementation together, which a CUDA graph cannot hold",
        "call the operator once before the capture, on all ranks, or give it a schedule",
    )
    said = of_first(_own(group.size()) if group.rank() == 0 else None, group)
    return replace(said, one_node=is_one_node(group))


def of_first(own: Any, group: ProcessGroup) -> Any:
    """Return what rank 0 gives. Collective."""
    said = [own]
    if group.size() > 1:
        dist.broadcast_object_list(said, group=group, group_src=0)
    return said[0]


_agreed = OfGroups(_agreed_by)


class CallKind(NamedTuple):
    """A kind of calls, which all ranks make alike: the operator's name, parts, and the first sizes of x.

    said: each part is words, or (name, value), or a dtype.
    """

    op: str
    said: tuple[Any, ...] = ()
    shape: tuple[int, ...] = ()

    def words(self) -> tuple[str, ...]:
        return tuple(" ".join(map(_word, one)) if isinstance(one, tuple) else _word(one) for one in self.said)


def _word(part: Any) -> str:
    return str(list(part) if isinstance(part, torch.Size) else part)


def agree(
    call: CallKind, members: ProcessGroup | str, device: torch.device, refusal: TileLinkError | None = None
) -> None:  # fmt: skip
    """Compare a call with those that the other ranks make, before any of them sends.

    Calls on a GPU are compared once, as far as this rank knows, and with TILELINK_CHECK=1 each time. Other calls are
    compared each time: then a rank that makes another call than its peers is told so, and so are they. Nothing is
    compared while a CUDA graph is captured, which cannot hold it.

    refusal: why this rank cannot make the call; it is raised after the others have been told, who need not listen.
    Raises RankError on ranks that could make the call if another one cannot, ShapeError if the calls differ, and
    DeadlineError if some rank compares none for TILELINK_DEADLINE, or where that is not set for torch's usual timeout.
    """
    (group, known), each = _compared.of(members), compares_each(device)
    if not each and refusal is None and call in known:
        return
    if group.size() == 1 or is_capturing():
        if refusal is not None:
            raise refusal
        return
    try:
        if not each or not _are_equal(call, group, device, refusal):
            _compare(call, group, refusal)
    except RuntimeError as error:
        raise _without_answer(call, group, error) from error
    if not each:
        known.add(call)


def refuse(op: str, members: ProcessGroup | str, x: Any, refusal: TileLinkError) -> NoReturn:
    """Raise why this rank cannot make a call with an operand x, after the others have been told.

    Raises the error alone where torch traces the call.
    """
    if is_direct(()):
        device = x.device if isinstance(x, torch.Tensor) else torch.device("cpu")
        agree(CallKind(op), members, device, refusal)
    raise refusal


class _Compared:
    """A function whose calls are compared each time, but for the first one, which has been."""

    def __init__(self, run: Callable[..., Any], *agreed: Any) -> None:
        self._run, self._agreed, self._fresh = run, agreed, True

    def __call__(self, *operands: Any, **named: Any) -> Any:
        if self._fresh:
            self._fresh = False
        else:
            agree(*self._agreed)
        return self._run(*operands, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def compared(run: Callable[..., Any], call: CallKind, group: ProcessGroup, device: torch.device) -> Callable[..., Any]:
    """Return what runs a call that ranks have agreed on: further calls are compared too, if those on its device are."""
    return _Compared(run, call, group, device) if group.size() > 1 and compares_each(device) else run


def compares_each(device: torch.device) -> bool:
    """True if calls on a device are compared each time."""
    return device.type != "cuda" or settings().check


def _are_equal(call: CallKind, group: ProcessGroup, device: torch.device, refusal: TileLinkError | None) -> bool:
    """Return True if all ranks can make the same call: by one exchange of eight bytes. Collective."""
    digest = hashlib.blake2b(repr(call).encode(), digest_size=8).digest()
    own = torch.tensor([-1 if refusal is not None else int.from_bytes(digest, "big") >> 1])
    own = own.to(device if device.type == "cuda" else "cpu")
    every = own.new_empty(group.size())
    wait_within(settings().deadline, unfused.gather_into(every, own, group=group, async_op=True), own)
    return own.item() >= 0 and bool((every == own).all())


_comparisons = Counter[str]()
"""How many calls this rank has compared with those of others by notes, by the name of the group: groups that have one
name after each other have one store."""


def _told(call: CallKind, group: ProcessGroup, refusal: TileLinkError | None) -> list[Any]:
    """Tell the other ranks a call, and return what each tells in as many comparisons as this one. Raises the refusal.

    They are notes in the store of the group. A rank may be the only one that compares, while others make calls that
    they know: a collective would be taken for another one of theirs, and the rank that refuses would wait for them.
    """
    _comparisons[group.group_name] += 1
    prefix, ranks = f"tilelink/{_comparisons[group.group_name]}", [str(rank) for rank in range(group.size())]
    store = PrefixStore(prefix, _get_process_group_store(group))
    store.set(ranks[group.rank()], json.dumps([call.op, call.words(), call.shape, str(refusal or "")]))
    if refusal is not None:
        raise refusal
    seconds = settings().deadline
    store.wait(ranks, default_pg_timeout if seconds is None else timedelta(seconds=seconds))
    return [json.loads(one) for one in store.multi_get(ranks)]


def _compare(call: CallKind, group: ProcessGroup, refusal: TileLinkError | None) -> None:
    """Raise what `agree` says, by an exchange of the calls in words."""
    every = _told(call, group, refusal)
    own, op, what = group.rank(), call.op, [*call.words()]
    for rank, (*_, text) in enumerate(every):
        if text:
            message = f"rank {rank} cannot make the call of {op} that this rank makes"
            raise RankError(message, details=text, hint=f"mend the call of rank {rank}: all ranks make the same one")
    for rank, (other, said, *_) in enumerate(every):
        if other != op:
            raise ShapeError(f"rank {own} calls {op}, and rank {rank} calls {other}", hint=SAME)
        if said != what:
            sides = ([part for part in one if part and part not in two] for one, two in ((what, said), (said, what)))
            mine, others = (f"with {', '.join(parts)}" if parts else "without that" for parts in sides)
            raise ShapeError(f"rank {own} calls {op} {mine}, and rank {rank} {others}", hint=SAME)
    sizes = [tuple(shape) for _, _, shape, _ in every]
    if len({*sizes}) > 1:
        of = {size: [str(rank) for rank, one in enumerate(sizes) if one == size] for size in sorted({*sizes})}
        told = (
            f"{size[0]} rows" + (f" of {list(size[1:])}" if len(size) > 1 else "")
            + f" on rank{'s' * (len(those) > 1)} {', '.join(those)}"
            for size, those in of.items()
        )  # fmt: skip
        hint = "every rank of the group gives as many: pad to the largest, and cut the result"
        raise ShapeError(f"x of {op} has {'; '.join(told)}", hint=hint)


def _without_answer(call: CallKind, group: ProcessGroup, error: RuntimeError) -> TileLinkError:
    """Return what is raised where other ranks did not compare their calls with this one."""
    what = f"rank {group.rank()} calls {call.op}, and another rank"
    if "timed out" not in str(error).lower() and not isinstance(error, dist.DistStoreError):
        return RankError(f"{what} has ended, or calls something else", details=str(error), hint=SAME)
    seconds = settings().deadline or default_pg_timeout.total_seconds()
    return DeadlineError(f"{what} makes no call in {seconds} s", rank=group.rank(), seconds=seconds, hint=SAME)


_compared = OfGroups[tuple[ProcessGroup, set[CallKind]]](lambda group: (group, set()))
"""Calls that all ranks of a group were found to make alike."""


def _own(ranks: int) -> Consensus:
    gpu, versions = here()
    fitting = (r for r in Database().records() if (r.key.gpu, r.key.versions, r.key.ranks) == (gpu, versions, ranks))
    return Consensus(gpu=gpu, versions=versions, records={r.key: replace(r, evidence=()) for r in fitting})
