# pyright: basic
"""Attention of a decode step: a query or a few of each sequence, whose keys lie in pages of a cache on all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ProcessGroup

from tilelink.compiler.modules import DEFAULT
from tilelink.errors import BindingError, DtypeError, ShapeError, TileLinkError
from tilelink.ops import torch_attention, unfused
from tilelink.ops.consensus import CallKind, agree, refuse
from tilelink.ops.custom import Declaration, declare, is_differentiated, is_direct, refuse_dtensors, schedule_text
from tilelink.ops.groups import Group, group_named, is_capturing, members_of, name_of
from tilelink.ops.operators import UNFUSED
from tilelink.ops.own import of_library
from tilelink.ops.sms import target_of
from tilelink.ops.validate import check_floating, check_tensor
from tilelink.runtime.cuda.device import current_target
from tilelink.scheduling.schedule import Schedule
from tilelink.settings import settings

PROGRAM, WHOLE = "decode_attention", "decode_attention_whole"
DEPTHS = (64, 128, 256)
"""Elements of a head for which there is a schedule."""
MOST_QUERIES = 64
"""Queries that share a head of keys: a tile has all of them."""
FEWEST_TILES, MOST_TILES = 6, 24
"""Tiles of each SM: parts become shorter than PART_KEYS to have the first number, and longer to have no more than the
other."""
PART_KEYS = 2048
"""Keys of a part of the longest sequence that pages have room for, if there are tiles enough."""
SMALL_PAGE = 32
CPU_SMS = 8

Tensor = torch.Tensor


def decode_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cache_seqlens: Tensor, *,
    scale: float | None = None, return_lse: bool = False, group: Group = None, schedule: Schedule | str | None = None,
) -> Any:  # fmt: skip
    """Attention of a decode step to keys and values in pages of a cache, of which each rank has some of every sequence.

    q [batch, heads, depth], or [batch, queries, heads, depth] of a few tokens each: the same on all ranks.
    k_cache, v_cache [pages, page size, key heads, depth]: of this rank, contiguous. heads is a multiple of key heads:
    each is shared by as many in a row.
    page_table [batch, most pages], i32: where each page of a sequence is. Entries beyond its length may be any.
    cache_seqlens [batch], i32: how many keys of each sequence this rank has, or [batch, queries]: how many of them each
    query sees. Which ones a rank has does not matter. 0 is allowed: it takes next to no time, and so pads a batch.
    -> the results, of q's shape, on all ranks; with return_lse also the logs of the sums of exponentials, of q's shape
    without depth, in f32. Where no rank has a key they are 0 and -inf.

    scale: of products, 1 / sqrt(depth) if it is None. schedule: of decode_attention, which cuts sequences, or of
    decode_attention_whole ("decode_attention_whole:gpu"), or "unfused" for torch's products and the group's
    collectives.

    Lengths, pages and queries may change between replays of a CUDA graph: the GPU cuts each sequence into parts by its
    length. bf16 and f16 with heads of 64, 128 or 256 run by a generated kernel, others unfused. There are no gradients.

    Raises ShapeError, DtypeError and BindingError for tensors that do not fit, the latter also for lengths and pages
    that caches do not have, which the host sees on a CPU, and with TILELINK_CHECK=1 on a GPU, and UnknownNameError for
    a schedule that there is not.
    """
    given = q, k_cache, v_cache, page_table, cache_seqlens
    try:
        _check(*given)
    except TileLinkError as error:
        refuse(PROGRAM, members_of(group), q, error)
    factor: float = q.shape[-1] ** -0.5 if scale is None else float(scale)
    batch, heads, depth = q.shape[0], q.shape[-2], q.shape[-1]
    shared = heads // k_cache.shape[2]
    if not q.numel():
        if is_direct(()):  # else ranks that have some would wait for this one
            agree(CallKind(PROGRAM, ("no queries",), q.shape), members_of(group), q.device)
        made = torch_attention.empty_results(q)
        return made if return_lse else made[0]
    few = q.dim() == 4 and q.shape[1] > 1
    queries = q.reshape(batch, -1, k_cache.shape[2], shared, depth).transpose(1, 2).flatten(2, 3)
    lengths, seen = cache_seqlens, None
    if lengths.dim() == 2:
        lengths, seen = lengths.amax(1), lengths.repeat_interleave(shared, 1) if few else None
    tensors = (queries, k_cache, v_cache, page_table, lengths, seen)
    o, lse = _decode_attention(*tensors, factor, name_of(members_of(group)), schedule_text(schedule))
    if few:
        o, lse = (one.unflatten(2, (-1, shared)).transpose(1, 2) for one in (o, lse))
    o, lse = o.reshape(q.shape), lse.reshape(q.shape[:-1])
    return (o, lse) if return_lse else o


def _check(q: Tensor, k: Tensor, v: Tensor, pages: Tensor, lengths: Tensor) -> None:
    if type(q) is not torch.Tensor:
        refuse_dtensors(PROGRAM, (q, k, v, pages, lengths))
    for name, one in (("q", q), ("k_cache", k), ("v_cache", v), ("page_table", pages), ("cache_seqlens", lengths)):
        check_tensor(PROGRAM, name, one)
    if q.dim() not in (3, 4):
        raise ShapeError(f"q is {list(q.shape)}", hint="it is [batch, heads, depth] or [batch, queries, heads, depth]")
    if is_differentiated((q, k, v)):
        raise BindingError("decode_attention has no gradients", hint="call it in torch.no_grad()")
    check_floating(f"q of {PROGRAM}", q.dtype)
    batch, heads, depth = q.shape[0], q.shape[-2], q.shape[-1]
    if k.dim() != 4 or k.shape != v.shape or k.shape[-1] != depth:
        what = f"k_cache is {list(k.shape)} and v_cache {list(v.shape)}, next to q {list(q.shape)}"
        raise ShapeError(what, hint="both are [pages, page size, key heads, depth]")
    if not (k.numel() and heads):
        raise ShapeError(f"k_cache is {list(k.shape)}, and there are {heads} heads", hint="give one of each, or more")
    if heads % k.shape[2]:
        raise ShapeError(f"{heads} heads share {k.shape[2]} heads of keys", hint="as many each: give a multiple")
    for name, one in (("k_cache", k), ("v_cache", v)):
        if one.dtype != q.dtype or one.device != q.device:
            what = f"{name} is {one.dtype} on {one.device}, and q {q.dtype} on {q.device}"
            raise DtypeError(what, hint="queries and caches have one dtype, and are on one device")
        if not one.is_contiguous():
            hint = "kernels take contiguous caches, and a copy of one would take longer than the call"
            raise ShapeError(f"{name} is {list(one.shape)} with strides {list(one.stride())}", hint=hint)
    wanted = {(batch,), (batch, q.shape[1])} if q.dim() == 4 else {(batch,)}
    if pages.dim() != 2 or pages.shape[0] != batch or not pages.shape[1]:
        raise ShapeError(f"page_table is {list(pages.shape)}", hint=f"it is [{batch}, most pages of a sequence]")
    if tuple(lengths.shape) not in wanted:
        shapes = " or ".join(str(list(one)) for one in sorted(wanted, key=len))
        raise ShapeError(f"cache_seqlens is {list(lengths.shape)}", hint=f"it is {shapes}")
    for name, one in (("page_table", pages), ("cache_seqlens", lengths)):
        if one.dtype != torch.int32 or one.device != q.device:
            raise DtypeError(f"{name} is {one.dtype} on {one.device}", hint=f"it is torch.int32 on {q.device}")


def _check_places(k: Tensor, pages: Tensor, lengths: Tensor, seen: Tensor | None) -> None:
    """Raise BindingError for keys that lie nowhere, if the host sees that: on a CPU, and with TILELINK_CHECK=1."""
    if k.is_cuda and (is_capturing() or not settings().check):
        return
    room = pages.shape[1] * k.shape[1]
    least, most = int((lengths if seen is None else seen).min()), int(lengths.max())
    if least < 0 or most > room:
        raise BindingError(f"cache_seqlens is from {least} to {most}", hint=f"pages have room for 0 to {room} keys")
    read = torch.arange(0, room, k.shape[1], device=k.device) < lengths[:, None]
    wrong = pages[read & ((pages < 0) | (pages >= k.shape[0]))].tolist()
    if wrong:
        hint = f"there are pages 0 to {k.shape[0] - 1}; entries beyond a length may be any"
        raise BindingError(f"page_table has keys in page {wrong[0]}", hint=hint)


def _chosen(q: Tensor, k: Tensor, parts: int) -> str:
    """Return the schedule of a call that names none, with its program. q: as `_run` takes it."""
    if q.dtype not in (torch.bfloat16, torch.float16):
        return UNFUSED
    program = PROGRAM if parts > 1 else WHOLE
    if not q.is_cuda:
        return f"{program}:{DEFAULT}"
    page, depth, queries = k.shape[1], q.shape[-1], q.shape[2]
    if page % 16 or page & (page - 1) or depth not in DEPTHS or queries > MOST_QUERIES:
        return UNFUSED
    if depth > 128:
        return f"{program}:gpu_deep"
    if page <= SMALL_PAGE:
        return f"{program}:gpu_small"
    return f"{program}:gpu" if q.shape[0] > 1 else f"{PROGRAM}:gpu_few"


def _most_parts(batch: int, heads: int, pages: int, page: int, sms: int) -> int:
    """Return into how many parts a sequence of at most `pages` pages of `page` keys is cut at most.

    One sequence has a part on each SM.

    A launch ends with its longest tile, so lengths that differ ask for more parts; and a tile begins with loads that
    nothing hides, so sequences of one length are slower for being cut once there are tiles enough.
    """
    tiles = batch * heads
    if batch == 1:
        wanted = sms // tiles
    else:
        wanted = min(MOST_TILES * sms // tiles, max(pages * page // PART_KEYS, FEWEST_TILES * sms // tiles))
    return max(1, min((pages + 1) // 2, wanted))


def _unfused(
    q: Tensor, k: Tensor, v: Tensor, pages: Tensor, lengths: Tensor, seen: Tensor | None, scale: float,
    group: ProcessGroup,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same by torch's products over all keys that the pages have room for, and a gather of the ranks' results."""
    sums = torch_attention.wide(q.dtype)
    keys, values = (one[pages.clamp(0, k.shape[0] - 1).long()].flatten(1, 2).to(sums) for one in (k, v))
    place = torch.arange(keys.shape[1], device=q.device)
    held = place < lengths[:, None]
    values = values.masked_fill(~held[:, :, None, None], 0.0)  # what no sequence has may be no number, and 0 times it
    there = held[:, None, None]
    if seen is not None:
        there = there & (place < seen[:, :, None])[:, None]
    scores = torch.einsum("bhrd,bkhd->bhrk", q.to(sums), keys) * scale
    lse = torch.logsumexp(scores.masked_fill(~there, float("-inf")), -1)
    weights = torch.where(there, torch.exp(scores - lse.unsqueeze(-1)), 0.0)
    every = unfused.all_gather(torch.einsum("bhrk,bkhd->bhrd", weights, values)[None], group)
    of_ranks = unfused.all_gather(lse[None], group)
    total = torch.logsumexp(of_ranks, 0)
    shares = torch.where(of_ranks > float("-inf"), torch.exp(of_ranks - total), 0.0)
    return (shares.unsqueeze(-1) * every).sum(0).to(q.dtype), total


def _run(
    q: Tensor, k: Tensor, v: Tensor, pages: Tensor, lengths: Tensor, seen: Tensor | None, scale: float, group: str,
    schedule: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    members = group_named(group)
    try:
        _check_places(k, pages, lengths, seen)
    except TileLinkError as error:
        refuse(PROGRAM, members, q, error)
    said = q.dtype, ("scale", scale), ("caches", k.shape), ("pages", pages.shape), schedule
    said = (*said, "lengths of queries" if seen is not None else "lengths")
    agree(CallKind(PROGRAM, said, q.shape), members, q.device)
    sms = (target_of(members) or current_target(members)).sms if q.is_cuda else CPU_SMS
    parts = _most_parts(q.shape[0], q.shape[1], pages.shape[1], k.shape[1], sms)
    schedule = schedule or _chosen(q, k, parts)
    if schedule == UNFUSED:
        return _unfused(q, k, v, pages, lengths, seen, scale, members)
    if not q.is_cuda:  # kernels on GPUs clamp entries as they read them; launches on CPU ranks refuse such ones
        pages, lengths = pages.clamp(0, k.shape[0] - 1), lengths.clamp(0, pages.shape[1] * k.shape[1])
    kernel = of_library((PROGRAM, WHOLE), schedule, L=parts)
    return tuple(kernel(q, k, v, pages, lengths, seen, scale=scale, group=members))


_decode_attention = declare(
    Declaration(
        name="tilelink::decode_attention",
        schema="(Tensor q, Tensor k_cache, Tensor v_cache, Tensor page_table, Tensor cache_seqlens, Tensor? seen,"
        " float scale, str group, str schedule) -> (Tensor, Tensor)",
        run=_run,
        shapes=torch_attention.empty_results,
    )
)
