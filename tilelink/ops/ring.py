# pyright: basic
"""Ring attention: keys and values go from rank to rank, and each rank attends to what it has while it is sent on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tilelink.ops import torch_attention
from tilelink.ops.consensus import CallKind, agree
from tilelink.ops.custom import Declaration, declare_graded
from tilelink.ops.groups import group_named, wait_for

Tensor = torch.Tensor
Part = tuple[slice, slice, bool]
"""Rows, keys, and whether each row sees keys up to its own alone."""


def ring(q: Tensor, k: Tensor, v: Tensor, scale: float, is_causal: bool, group: str) -> Tensor:
    """The attention of `ops.attention`, whose tensors and result these are."""
    heads, shared = k.shape[0] * k.shape[1], q.shape[1] // k.shape[1]
    queries = q.reshape(heads, shared, *q.shape[2:])
    keys, values = (one.reshape(heads, *one.shape[2:]) for one in (k, v))
    return _ring(queries, keys, values, scale, is_causal, group)[0].reshape(q.shape)


def parts(rows: int, rank: int, source: int, is_causal: bool) -> list[Part]:
    """Return the parts of the own rows that see keys of a rank. In zigzag there are as many steps of work from each."""
    whole, early, late = slice(rows), slice(rows // 2), slice(rows // 2, rows)
    if not is_causal:
        return [(whole, whole, False)]
    if source == rank:
        return [(early, early, True), (late, early, False), (late, late, True)]
    return [(whole, early, False)] if source < rank else [(late, whole, False)]


def _passed(held: list[Tensor], group: ProcessGroup) -> tuple[list[Tensor], list[Any]]:
    """Send tensors to the next rank, and return what comes from the one before, with what has to be waited for."""
    coming = [torch.empty_like(one) for one in held]
    return coming, exchanged(held, 1, coming, -1, group)


def exchanged(sent: list[Tensor], to: int, taken: list[Tensor], source: int, group: ProcessGroup) -> list[Any]:
    """Send tensors so many ranks on, and fill others from a rank so many on. Return what is to be waited for."""
    ranks, rank = dist.get_process_group_ranks(group), group.rank()
    after, before = (ranks[(rank + step) % len(ranks)] for step in (to, source))
    leaving = [dist.P2POp(dist.isend, one, after, group) for one in sent]
    return dist.batch_isend_irecv([*leaving, *(dist.P2POp(dist.irecv, one, before, group) for one in taken)])


def _steps(k: Tensor, v: Tensor, group: ProcessGroup) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (rank, its keys, its values), the own ones first, while the next ones come."""
    held, coming, pending = [k.contiguous(), v.contiguous()], list[Tensor](), list[Any]()
    for step in range(group.size()):
        if step < group.size() - 1:
            coming, pending = _passed(held, group)
        yield (group.rank() - step) % group.size(), held[0], held[1]
        wait_for(pending, k)
        held, pending = coming, []


def _run(q: Tensor, k: Tensor, v: Tensor, scale: float, is_causal: bool, group: str) -> tuple[Tensor, Tensor]:
    """Results of parts are added up by their log-sums in f32, and rounded once."""
    members = group_named(group)
    said = q.dtype, ("scale", scale), "a mask" if is_causal else "no mask", ("keys", k.shape), "a ring"
    agree(CallKind("attention", said, q.shape), members, q.device)
    o = torch.zeros(q.shape, dtype=torch_attention.wide(q.dtype), device=q.device)
    lse = torch.full(q.shape[:-1], float("-inf"), dtype=o.dtype, device=q.device)
    for source, keys, values in _steps(k, v, members):
        for rows, seen, masked in parts(q.shape[2], members.rank(), source, is_causal):
            part, sums = torch_attention.attend(q[:, :, rows], keys[:, seen], values[:, seen], scale, masked)
            torch_attention.add_part(o[:, :, rows], lse[:, :, rows], part, sums)
    return o.to(q.dtype), lse


def _gradients(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, scale: float, is_causal: bool, group: str
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients. Those of keys and values follow them round the ring, in f32, a step behind."""
    members, sums = group_named(group), torch_attention.wide(q.dtype)
    agree(CallKind("attention", (q.dtype, "gradients", "a ring"), q.shape), members, q.device)
    dq = torch.zeros(q.shape, dtype=sums, device=q.device)
    following, pending = list[Tensor](), list[Any]()
    for source, keys, values in _steps(k, v, members):
        added = [torch.zeros(one.shape, dtype=sums, device=q.device) for one in (keys, values)]
        for rows, seen, masked in parts(q.shape[2], members.rank(), source, is_causal):
            made = torch_attention.gradients(
                q[:, :, rows], keys[:, seen], values[:, seen], o[:, :, rows], lse[:, :, rows], do[:, :, rows], scale,
                masked,
            )  # fmt: skip
            dq[:, :, rows] += made[0]
            for one, more in zip(added, made[1:], strict=True):
                one[:, seen] += more
        wait_for(pending, q)
        for one, more in zip(added, following, strict=False):
            one += more
        leaving = added  # in use until they have been waited for
        following, pending = _passed(leaving, members) if members.size() > 1 else (leaving, [])
    wait_for(pending, q)
    dk, dv = following
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


_ring = declare_graded(
    Declaration(
        name="tilelink::ring_attention",
        schema="(Tensor q, Tensor k, Tensor v, float scale, bool is_causal, str group) -> (Tensor, Tensor)",
        run=_run,
        shapes=torch_attention.empty_results,
    ),
    Declaration(
        name="tilelink::ring_attention_backward",
        schema="(Tensor do, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, float scale, bool is_causal, str group)"
        " -> (Tensor, Tensor, Tensor)",
        run=_gradients,
        shapes=torch_attention.empty_gradients,
    ),
    lambda inputs, outputs: ((*inputs[:3], *outputs), inputs[3:]),
)
