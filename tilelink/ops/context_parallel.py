# pyright: basic
"""Attention whose rows, keys and values are spread over ranks: every rank has some rows of a sequence."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch.distributed import ProcessGroup

from tilelink import compiler
from tilelink.capabilities import has_warpgroups
from tilelink.errors import BindingError, DtypeError, ShapeError, UnknownNameError, UnknownTargetError
from tilelink.ops import torch_attention, unfused
from tilelink.ops.consensus import check_alike_once
from tilelink.ops.custom import Declaration, declare, is_direct, schedule_text
from tilelink.ops.groups import Group, group_named, members_of, name_of
from tilelink.ops.operators import UNFUSED
from tilelink.ops.own import Op, op
from tilelink.ops.ring import ring
from tilelink.ops.ulysses import ulysses
from tilelink.runtime.cuda.device import current_target
from tilelink.scheduling.schedule import Schedule

FILE = "ag_attention"
BLOCK = 128
"""Rows of a tile of warps with roles. Rows that are no multiple of it have another schedule."""
DEPTHS = (64, 128, 256)
"""Elements of a head for which warps have roles."""

LARGEST_SCALE = 1e6
"""Scales of kernels with a mask are less: -1e30 times the scale is still a number."""
FLAT = 4
"""Dimensions of queries without chunks, [H, G, M, D]; in zigzag they are [H, G, 2, N, B, D]."""

GATHER = "all_gather"
METHODS: dict[str, Any] = {GATHER: None, "ulysses": ulysses, "ring": ring}
"""Ways of attention over ranks, and what computes those that have no kernel."""

Tensor = torch.Tensor


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None, group: Group = None,
    method: str = GATHER, schedule: Schedule | str | None = None,
) -> Tensor:  # fmt: skip
    """Attention of the own rows to the keys and values of all ranks.

    q [batch, heads, rows, depth], k and v [batch, key heads, rows, depth] -> [batch, heads, rows, depth], as of
    torch.nn.functional.scaled_dot_product_attention. heads is a multiple of key heads: each is shared by as many in a
    row. All ranks have as many rows.

    is_causal: rows see those before them and themselves. A sequence has 2 * ranks chunks of as many rows, and rank r
    has chunk r and, after it, chunk 2 * ranks - 1 - r (`zigzag` and `from_zigzag`), so that all have equally much to
    do. scale: of products, 1 / sqrt(depth) if it is None. schedule: of the library's program, or "unfused" for the
    collectives of the group and torch's attention.

    bf16 and f16 run by generated kernels or unfused, other dtypes unfused; f64 has sums in f64, others in f32. Kernels
    keep two buffers of all ranks' keys and two of their values in symmetric memory, each [ranks, batch * key heads,
    rows, depth].

    Gradients are those of the sum of all ranks' losses, and computed unfused: backward gathers all keys and values
    again, and holds their gradients in f32 until those are scattered.

    method: "all_gather", as above; or by the group's collectives and torch's attention, with the same rows and results:
    "ulysses", where each rank attends in some heads to the whole sequence, between two exchanges, and keeps what it was
    sent for backward; or "ring", where keys and values go from rank to rank and results are added up in f32, so that a
    rank never holds more than its own keys and those of another one.

    Raises ShapeError and DtypeError for tensors that do not fit, and UnknownNameError for a schedule that there is not.
    """
    _check(q, k, v, is_causal)
    factor: float = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if method not in METHODS:
        raise UnknownNameError(f"no method {method!r}", hint=f"there are {', '.join(METHODS)}")
    if not q.numel():
        if is_direct(()):  # else ranks that have some would wait for this one
            check_alike_once("attention", ("no elements",), q, group_named(name_of(members_of(group))))
        return q + k.sum() + v.sum()  # no elements, and gradients of zeros
    if method != GATHER:
        if schedule not in (None, UNFUSED):
            raise BindingError(f"{method} has a schedule", hint=f"give none: it has no kernel, as {GATHER} has")
        return METHODS[method](q, k, v, factor, is_causal, name_of(members_of(group)))
    heads, groups = k.shape[0] * k.shape[1], q.shape[1] // k.shape[1]
    rows, depth = q.shape[2:]
    # In zigzag two chunks of whole blocks, or, where there are none, of one block each.
    block = BLOCK if rows // 2 % BLOCK == 0 else rows // 2
    parts = (2, rows // 2 // block, block) if is_causal else (rows,)
    queries = q.reshape(heads, groups, *parts, depth)
    keys, values = (one.reshape(heads, *parts, depth) for one in (k, v))
    text = schedule_text(schedule)
    call = _run if is_direct((q, k, v)) else _attention
    return call(queries, keys, values, factor, name_of(members_of(group)), text)[0].reshape(q.shape)


def zigzag(x: Tensor, ranks: int, rank: int, dim: int = 2) -> Tensor:
    """Return the rows of a rank of a whole sequence: chunk `rank` of 2 * ranks chunks, and as far from the end.

    Raises ShapeError unless the sequence has as many whole chunks.
    """
    chunks = 2 * ranks
    if x.shape[dim] % chunks:
        hint = "pad the sequence: padding at its end is seen by no row before it"
        raise ShapeError(f"{x.shape[dim]} rows are no {chunks} chunks of equally many", hint=hint)
    every = x.chunk(chunks, dim)
    return torch.cat((every[rank], every[chunks - 1 - rank]), dim)


def from_zigzag(parts: list[Tensor], dim: int = 2) -> Tensor:
    """Return the whole sequence whose rows in zigzag these are, those of all ranks."""
    first, last = zip(*(one.chunk(2, dim) for one in parts), strict=True)
    return torch.cat((*first, *reversed(last)), dim)


def _check(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> None:
    for name, one in (("q", q), ("k", k), ("v", v)):
        if one.dim() != 4:
            raise ShapeError(f"{name} is {list(one.shape)}", hint="it is [batch, heads, rows, depth]")
        if one.dtype != q.dtype or one.device != q.device:
            what = f"{name} is {one.dtype} on {one.device}, and q {q.dtype} on {q.device}"
            raise DtypeError(what, hint="q, k and v have one dtype, and are on one device")
    batch, heads, rows, depth = q.shape
    wanted = (batch, k.shape[1], rows, depth)
    if tuple(k.shape) != wanted or tuple(v.shape) != wanted:
        what = f"k is {list(k.shape)} and v {list(v.shape)}, next to q {list(q.shape)}"
        raise ShapeError(what, hint="k and v are [batch, key heads, rows, depth], of as many rows as q")
    if not (k.shape[1] and depth):
        raise ShapeError(f"k is {list(k.shape)}", hint="give one head of keys or more, of one element or more")
    if heads % k.shape[1]:
        raise ShapeError(f"{heads} heads share {k.shape[1]} heads of keys", hint="as many each: give a multiple")
    if is_causal and rows % 2:
        raise ShapeError(f"{rows} rows are no two chunks", hint="a rank has two chunks of as many rows: see zigzag")


def _chosen(q: Tensor) -> str:
    """Return the schedule of a call that names none, "" for the program's own. q: as `_attention` takes it."""
    if q.dtype not in (torch.bfloat16, torch.float16):
        return UNFUSED
    if not q.is_cuda:
        return ""
    rows, depth = prod(q.shape[2:-1]), q.shape[-1]
    if rows % (2 * BLOCK) or depth not in DEPTHS or not _has_roles(q.device):
        return UNFUSED  # kernels without roles take several times as long as torch's
    return "gpu_roles" if depth <= 128 else "gpu_roles_deep"


@cache
def _has_roles(device: torch.device) -> bool:
    with suppress(UnknownTargetError), torch.cuda.device(device):
        return has_warpgroups(current_target())
    return False


# Parts, as torch computes them ------------------------------------------------------------------------------
#
# A part is the attention of some rows to some keys, to all or in a square with a mask. Results of parts are added up by
# their log-sums, and gradients as they are, for the log-sums of the whole.


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Rows of a rank, keys of the sequence that they see, and whether only those up to the row.

    more: True if the rows see keys of an earlier part, too.
    """

    rows: slice
    keys: slice
    masked: bool
    more: bool = False


def _parts(q: Tensor, keys: int, group: ProcessGroup) -> list[_Part]:
    """Return the parts of a rank. keys: of the sequence."""
    if q.dim() == FLAT:
        return [_Part(rows=slice(None), keys=slice(keys), masked=False)]
    size = keys // (2 * group.size())
    found: list[_Part] = []
    for number, chunk in enumerate((group.rank(), 2 * group.size() - 1 - group.rank())):
        rows, start = slice(number * size, (number + 1) * size), chunk * size
        found.append(_Part(rows=rows, keys=slice(start, start + size), masked=True))
        if chunk:
            found.append(_Part(rows=rows, keys=slice(start), masked=False, more=True))
    return found


def _sequence(x: Tensor, group: ProcessGroup) -> Tensor:
    """Return [heads, rows of the sequence, depth] of all ranks' keys, [H, M, D] or [H, 2, N, B, D] of each."""
    every = unfused.all_gather(x.unsqueeze(0), group)
    if x.dim() > FLAT - 1:
        every = every.flatten(3, 4)
        every = torch.cat((every[:, :, 0], every[:, :, 1].flip(0)))
    return every.transpose(0, 1).flatten(1, 2)


def _own(x: Tensor, like: Tensor, group: ProcessGroup) -> Tensor:
    """Return the own part of the ranks' sum of [heads, rows of the sequence, depth], as `like`: the inverse order."""
    ranks = group.size()
    if like.dim() > FLAT - 1:
        chunks = x.unflatten(1, (2 * ranks, -1)).transpose(0, 1)
        every = torch.stack((chunks[:ranks], chunks[ranks:].flip(0)), 2)
    else:
        every = x.unflatten(1, (ranks, -1)).transpose(0, 1)
    return unfused.reduce_scatter(every, group).reshape(like.shape)


def _unfused(q: Tensor, k: Tensor, v: Tensor, scale: float, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """The attention of a rank to gathered keys, as the generated kernel takes and returns it."""
    keys, values = _sequence(k, group), _sequence(v, group)
    queries = q.reshape(*q.shape[:2], -1, q.shape[-1])
    o, lse = (
        queries.new_empty(queries.shape),
        queries.new_empty(queries.shape[:-1], dtype=torch_attention.wide(q.dtype)),
    )
    for part in _parts(q, keys.shape[1], group):
        rows = part.rows
        own, sums = torch_attention.attend(
            queries[:, :, rows], keys[:, part.keys], values[:, part.keys], scale, part.masked
        )
        if part.more:
            total = torch.logaddexp(lse[:, :, rows], sums)
            old, new = (torch.exp(one - total).unsqueeze(-1) for one in (lse[:, :, rows], sums))
            own, sums = o[:, :, rows] * old + own * new, total
        o[:, :, rows], lse[:, :, rows] = own, sums
    return o.reshape(q.shape), lse.reshape(q.shape[:-1])


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, scale: float, group: str
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the own rows, and of the own keys and values, which all ranks see."""
    members = group_named(group)
    keys, values = _sequence(k, members), _sequence(v, members)
    queries, results, given = (one.reshape(*q.shape[:2], -1, q.shape[-1]) for one in (q, o, do))
    sums = lse.reshape(queries.shape[:-1])
    dq = queries.new_empty(queries.shape)
    dk, dv = (torch.zeros_like(one, dtype=torch_attention.wide(k.dtype)) for one in (keys, values))
    for part in _parts(q, keys.shape[1], members):
        rows, seen = part.rows, part.keys
        made = torch_attention.gradients(
            queries[:, :, rows], keys[:, seen], values[:, seen], results[:, :, rows], sums[:, :, rows],
            given[:, :, rows], scale, part.masked,
        )  # fmt: skip
        dq[:, :, rows] = dq[:, :, rows] + made[0] if part.more else made[0]
        dk[:, seen] += made[1]
        dv[:, seen] += made[2]
    dk, dv = (_own(one, k, members).to(k.dtype) for one in (dk, dv))
    return dq.reshape(q.shape), dk, dv


# The operator ------------------------------------------------------------------------------------------------


def _run(q: Tensor, k: Tensor, v: Tensor, scale: float, group: str, schedule: str) -> tuple[Tensor, Tensor]:
    members, causal = group_named(group), q.dim() != FLAT
    said = (f"{q.dtype}", f"scale {scale}", "a mask" if causal else "no mask", f"keys {list(k.shape)}", schedule)
    check_alike_once("attention", said, q, members)
    if causal and not 0 < scale < LARGEST_SCALE:  # kernels put the mask's number in before they scale
        if schedule not in ("", UNFUSED):
            raise BindingError(f"schedule {schedule} has a scale of {scale:g}", hint="one above 0, or no schedule")
        schedule = UNFUSED
    schedule = schedule or _chosen(q)
    if schedule == UNFUSED:
        return _unfused(q, k, v, scale, members)
    return tuple(
        _operator("ag_attention" if q.dim() == FLAT else "zigzag_attention", schedule)(
            q, k, v, scale=scale, group=group
        )
    )


@cache
def _operator(program: str, schedule: str) -> Op:
    return op(compiler.load(FILE).program(program), schedule or None)


def _shapes(q: Tensor, k: Tensor, v: Tensor, scale: float, group: str, schedule: str) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch_attention.wide(q.dtype))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *operands, ctx.scale, ctx.group, _ = inputs
    ctx.save_for_backward(*operands, *output)


def _backward(ctx: Any, do: Tensor, dlse: Tensor) -> tuple[Any, ...]:
    # `attention` returns no log-sums, so that none depends on them: dlse is zero.
    return *_backwards(*ctx.saved_tensors, do, ctx.scale, ctx.group), None, None, None


_backwards = declare(
    Declaration(
        name="tilelink::attention_backward",
        schema="(Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor do, float scale, str group)"
        " -> (Tensor, Tensor, Tensor)",
        run=_gradients,
        shapes=lambda q, k, v, *_: tuple(one.new_empty(one.shape) for one in (q, k, v)),
    )
)
_attention = declare(
    Declaration(
        name="tilelink::attention",
        schema="(Tensor q, Tensor k, Tensor v, float scale, str group, str schedule) -> (Tensor, Tensor)",
        run=_run,
        shapes=_shapes,
        keep=_keep,
        backward=_backward,
    )
)
