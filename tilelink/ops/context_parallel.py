# pyright: basic
"""Attention whose rows, keys and values are spread over ranks: every rank has some rows of a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import torch
from torch.distributed import ProcessGroup

from tilelink.errors import BindingError, DtypeError, RankError, ShapeError, TileLinkError, UnknownNameError
from tilelink.ops import torch_attention, unfused
from tilelink.ops.calls import has_roles
from tilelink.ops.consensus import CallKind, agree, consensus, refuse
from tilelink.ops.custom import Declaration, declare_graded, is_direct, refuse_dtensors, schedule_text
from tilelink.ops.graded_attention import FLAT, ROLES, bound_gradients, chosen, program_of
from tilelink.ops.groups import Group, group_named, members_of, name_of, wait_for
from tilelink.ops.operators import UNFUSED
from tilelink.ops.own import of_library
from tilelink.ops.ring import Part, exchanged, parts, ring
from tilelink.ops.specialization import name_of_type
from tilelink.ops.torch_attention import edges_of, said_of
from tilelink.ops.ulysses import ulysses
from tilelink.ops.validate import check_floating, check_tensor
from tilelink.runtime.cuda.device import current_target
from tilelink.scheduling.schedule import Schedule
from tilelink.target import target

BLOCK = 128
"""Rows of a tile of warps with roles. Rows that are no multiple of it have another schedule."""
DEPTHS = (64, 128, 256)
"""Elements of a head for which warps have roles."""

LARGEST_SCALE = 1e6
"""Scales of kernels with a mask are less: -1e30 times the scale is still a number."""
GRADED_DEPTH = 128
"""Elements of a head for which gradients by a kernel were measured beside unfused ones."""

GATHER, ULYSSES, RING = "all_gather", "ulysses", "ring"
METHODS = (GATHER, ULYSSES, RING)
"""Ways of attention over ranks. The first one alone has kernels."""

Tensor = torch.Tensor


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None, group: Group = None,
    method: str = GATHER, cu_seqlens: Tensor | None = None, schedule: Schedule | str | None = None,
    gradients: Schedule | str | None = None,
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

    cu_seqlens: where documents begin that are packed one after the other in the sequence, and where the last one ends,
    [documents + 1], i32, the same on all ranks, as flash_attn_varlen_func takes it: rows see keys of their own document
    alone. Some may have no row, and rows after the last one are one more. With is_causal they run by a kernel.

    Gradients are those of the sum of all ranks' losses. Backward gathers all keys and values again, attends to its own
    ones meanwhile, and sends the gradients of those of a rank while it computes others. They are added up in f32. Those
    of documents are added up on each rank before they are scattered. A group of one rank has them at once. gradients:
    "unfused", as that, by the collectives of the group and torch's kernels; or a schedule of the library's program of
    gradients, which computes them in one launch in an order that is always the same, sends them in f32, and keeps as
    much symmetric memory again, and one buffer of both in f32; of calls without documents. If it is None, that kernel
    is taken where the model predicts it to be clearly faster, for heads of 128 on GPUs that it knows, and where
    `schedule` is not "unfused".

    method: "all_gather", as above; or by the group's collectives and torch's attention, with the same rows and results:
    "ulysses", where each rank attends in some heads to the whole sequence, between two exchanges, and keeps what it was
    sent for backward; or "ring", where keys and values go from rank to rank and results are added up in f32, so that a
    rank never holds more than its own keys and those of another one. A ring takes no documents.

    Raises ShapeError and DtypeError for tensors that do not fit, BindingError for DTensors (give to_local() of them,
    with rows in zigzag), for a schedule of what has no kernel, and for a cu_seqlens that falls or ends after the
    sequence, which the host sees on a CPU, and with TILELINK_CHECK=1 on a GPU, and UnknownNameError for a schedule that
    there is not.
    """
    try:
        _check(q, k, v, is_causal, cu_seqlens)
        _check_ways(method, schedule, gradients, cu_seqlens)
    except TileLinkError as error:
        refuse("attention", members_of(group), q, error)
    factor: float = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if not q.numel():
        if is_direct(()):  # else ranks that have some would wait for this one
            agree(CallKind("attention", ("no elements",), q.shape), members_of(group), q.device)
        return q + k.sum() + v.sum()  # no elements, and gradients of zeros
    if method != GATHER:
        name = name_of(members_of(group))
        if method == ULYSSES:
            return ulysses(q, k, v, cu_seqlens, factor, is_causal, name)
        return ring(q, k, v, factor, is_causal, name)
    gradients = UNFUSED if gradients is None and schedule == UNFUSED else gradients
    ways = schedule_text(schedule), schedule_text(gradients)
    given = *as_kernels_take(q, k, v, is_causal), cu_seqlens, factor, name_of(members_of(group)), *ways
    return _attention(*given)[0].reshape(q.shape)


def as_kernels_take(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return q as [heads of keys, heads that share one, rows, depth], k and v as [heads of keys, rows, depth].

    In zigzag rows are two chunks of blocks, whole ones, or, where there are none, one in each chunk.
    """
    heads, groups = k.shape[0] * k.shape[1], q.shape[1] // k.shape[1]
    rows, depth = q.shape[2:]
    block = BLOCK if rows // 2 % BLOCK == 0 else rows // 2
    shape = (2, rows // 2 // block, block) if is_causal else (rows,)
    return q.reshape(heads, groups, *shape, depth), k.reshape(heads, *shape, depth), v.reshape(heads, *shape, depth)


def check_method(method: str) -> None:
    if method not in METHODS:
        raise UnknownNameError(f"no method {method!r}", hint=f"there are {', '.join(METHODS)}")


def zigzag(x: Tensor, ranks: int, rank: int, dim: int = 2) -> Tensor:
    """Return the rows of a rank of a whole sequence: chunk `rank` of 2 * ranks chunks, and as far from the end.

    dim: that of the rows of x, as of [batch, heads, rows, depth]. The result has a part of them, 1 of `ranks`.
    Raises ShapeError unless the sequence has as many whole chunks, RankError for a rank that there is not.
    """
    if not 0 <= rank < ranks:
        raise RankError(f"there is no rank {rank} of {ranks}", hint="ranks are 0, 1, ..., as of the group")
    chunks = 2 * ranks
    if x.shape[dim] % chunks:
        hint = "pad the sequence: padding at its end is seen by no row before it"
        raise ShapeError(f"{x.shape[dim]} rows are no {chunks} chunks of equally many", hint=hint)
    every = x.chunk(chunks, dim)
    return torch.cat((every[rank], every[chunks - 1 - rank]), dim)


def from_zigzag(parts: list[Tensor], dim: int = 2) -> Tensor:
    """Return the whole sequence whose rows in zigzag these are: `parts` of all ranks, rising, with rows along `dim`.

    Raises ShapeError unless all have two chunks of as many rows.
    """
    if len({one.shape[dim] for one in parts}) != 1 or parts[0].shape[dim] % 2:
        what = f"parts have {', '.join(str(one.shape[dim]) for one in parts) or 'no'} rows"
        raise ShapeError(what, hint="give those of all ranks, in their order: each has two chunks of as many rows")
    first, last = zip(*(one.chunk(2, dim) for one in parts), strict=True)
    return torch.cat((*first, *reversed(last)), dim)


def _check_ways(method: str, schedule: Any, gradients: Any, documents: Tensor | None) -> None:
    check_method(method)
    named = [one not in (None, UNFUSED) for one in (schedule, gradients)]
    if documents is not None and named[1]:
        raise BindingError("documents have gradients by a schedule", hint="leave gradients out")
    if method != GATHER and any(named):
        raise BindingError(f"{method} has a schedule", hint=f"give none: it has no kernel, as {GATHER} has")
    if documents is not None and method == RING:
        raise BindingError("a ring has no documents", hint=f"leave method out, or take {ULYSSES!r}")


def _check(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, documents: Tensor | None) -> None:
    if type(q) is not torch.Tensor:
        refuse_dtensors("attention", (q, k, v, documents))
    for name, one in (("q", q), ("k", k), ("v", v)):
        check_tensor("attention", name, one)
        if one.dim() != 4:
            raise ShapeError(f"{name} is {list(one.shape)}", hint="it is [batch, heads, rows, depth]")
        if one.dtype != q.dtype or one.device != q.device:
            what = f"{name} is {one.dtype} on {one.device}, and q {q.dtype} on {q.device}"
            raise DtypeError(what, hint="q, k and v have one dtype, and are on one device")
    check_floating("q of attention", q.dtype)
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
    if documents is not None:
        check_tensor("attention", "cu_seqlens", documents)
        if documents.dim() != 1 or not len(documents):
            raise ShapeError(f"cu_seqlens is {list(documents.shape)}", hint="it is [documents + 1]")
        if documents.dtype != torch.int32 or documents.device != q.device:
            what = f"cu_seqlens is {documents.dtype} on {documents.device}"
            raise DtypeError(what, hint=f"it is torch.int32 on {q.device}")


def _chosen(q: Tensor) -> str:
    """Return the schedule of a call that names none, "" for the program's own. q: as `_attention` takes it."""
    if q.dtype not in (torch.bfloat16, torch.float16):
        return UNFUSED
    if not q.is_cuda:
        return ""
    rows, depth = prod(q.shape[2:-1]), q.shape[-1]
    if rows % (2 * BLOCK) or depth not in DEPTHS or not has_roles(q.device):
        return UNFUSED  # kernels without roles take several times as long as torch's
    return ROLES if depth <= 128 else "gpu_roles_deep"


def _chosen_gradients(q: Tensor, documents: Tensor | None, group: ProcessGroup) -> str:
    """Return the schedule of gradients of a call that names none. The first call of a group is collective."""
    if documents is not None or group.size() == 1 or q.shape[-1] != GRADED_DEPTH or _chosen(q) != ROLES:
        return UNFUSED
    said = consensus(group)
    return chosen(tuple(q.shape), group.size(), name_of_type(q.dtype), said.gpu) if said.one_node else UNFUSED


# Parts, as torch computes them ------------------------------------------------------------------------------
#
# A part is the attention of some rows to some keys, to all or in a square with a mask. Results of parts are added up by
# their log-sums, and gradients as they are, for the log-sums of the whole.


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Rows of a rank, keys of the sequence that they see, and whether only those up to the row.

    documents: as of `torch_attention`. more: True if the rows see keys of an earlier part, too.
    """

    rows: slice
    keys: slice
    masked: bool
    documents: torch_attention.Documents | None = None
    more: bool = False


def _parts(q: Tensor, keys: int, documents: Tensor | None, group: ProcessGroup) -> list[_Part]:
    """Return the parts of a rank. keys: of the sequence. documents: where they begin in it."""
    own, edges = keys // group.size(), None if documents is None else edges_of(documents, keys)
    if q.dim() == FLAT:
        begin = own * group.rank()
        packed = None if edges is None else ((edges - begin).clamp(0, own), edges)
        return [_Part(rows=slice(own), keys=slice(keys), masked=False, documents=packed)]
    size = own // 2
    found: list[_Part] = []
    for number, chunk in enumerate((group.rank(), 2 * group.size() - 1 - group.rank())):
        rows, start = slice(number * size, (number + 1) * size), chunk * size
        if edges is not None:
            packed = ((edges - start).clamp(0, size), edges.clamp(max=start + size))
            found.append(_Part(rows=rows, keys=slice(start + size), masked=True, documents=packed))
            continue
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


def _unfused(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, scale: float, group: ProcessGroup
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The attention of a rank to gathered keys, as the generated kernel takes and returns it."""
    keys, values = _sequence(k, group), _sequence(v, group)
    queries = q.reshape(*q.shape[:2], -1, q.shape[-1])
    o, lse = torch_attention.empty_results(queries)
    for part in _parts(q, keys.shape[1], documents, group):
        rows = part.rows
        own, sums = torch_attention.attend(
            queries[:, :, rows], keys[:, part.keys], values[:, part.keys], scale, part.masked, part.documents
        )
        if part.more:
            torch_attention.add_part(o[:, :, rows], lse[:, :, rows], own, sums)
        else:
            o[:, :, rows], lse[:, :, rows] = own, sums
    return o.reshape(q.shape), lse.reshape(q.shape[:-1])


def _gradients(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, documents: Tensor | None, scale: float,
    group: str, schedule: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the own rows, and of the own keys and values, which all ranks see."""
    members, flat = group_named(group), (*q.shape[:2], -1, q.shape[-1])
    agree(CallKind("attention", (q.dtype, "gradients"), q.shape), members, q.device)
    schedule = schedule or _chosen_gradients(q, documents, members)
    if schedule != UNFUSED:
        kernel = of_library(program_of(tuple(q.shape)), schedule)
        return tuple(kernel(do, q, k, v, o, lse, scale=scale, group=group))
    queries, results, given = (one.reshape(flat) for one in (q, o, do))
    sums = lse.reshape(queries.shape[:-1])
    if documents is None:
        keys, values = (one.reshape(len(k), -1, k.shape[-1]) for one in (k, v))
        if members.size() == 1:  # in zigzag too the rows are those of the sequence, in its order
            made = torch_attention.gradients(queries, keys, values, results, sums, given, scale, q.dim() != FLAT)
            dq, dk, dv = (one.to(like.dtype).reshape(like.shape) for one, like in zip(made, (q, k, v), strict=True))
            return dq, dk, dv
        rank = _Rank(queries, torch.stack((keys, values)), results, sums, given, scale, q.dim() != FLAT, members)
        dq, dk, dv = rank.gradients()
        return dq.reshape(q.shape), dk.reshape(k.shape), dv.reshape(v.shape)
    keys, values = _sequence(k, members), _sequence(v, members)
    dq = queries.new_empty(queries.shape)
    dk, dv = (torch.zeros_like(one, dtype=torch_attention.wide(k.dtype)) for one in (keys, values))
    for part in _parts(q, keys.shape[1], documents, members):
        rows, seen = part.rows, part.keys
        dq[:, :, rows], of_keys, of_values = torch_attention.gradients(
            queries[:, :, rows], keys[:, seen], values[:, seen], results[:, :, rows], sums[:, :, rows],
            given[:, :, rows], scale, part.masked, part.documents,
        )  # fmt: skip
        dk[:, seen] += of_keys
        dv[:, seen] += of_values
    dk, dv = (_own(one, k, members).to(k.dtype) for one in (dk, dv))
    return dq.reshape(q.shape), dk, dv


@dataclass(frozen=True)
class _Rank:
    """Rows of a rank in backward, [H, G, M, D], and its keys and values, held [2, H, M, D]."""

    q: Tensor
    held: Tensor
    o: Tensor
    lse: Tensor
    do: Tensor
    scale: float
    is_causal: bool
    group: ProcessGroup
    dense: dict[tuple[int, int], tuple[Tensor, ...]] = field(default_factory=dict)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of the rows, and of the keys and values.

        Some of those of own keys are computed while other keys come, and the others while the last gradients leave. In
        each step every rank computes for another one, and sends it what is of its keys, rounded as they are.
        """
        ranks, rank = self.group.size(), self.group.rank()
        every = self.held.new_empty((ranks, *self.held.shape))
        coming = unfused.gather_into(every.flatten(0, 1), self.held, group=self.group, async_op=True)
        dq = torch.zeros(self.q.shape, dtype=torch_attention.wide(self.q.dtype), device=self.q.device)
        mine = [torch.zeros_like(one, dtype=dq.dtype) for one in self.held]
        first, *rest = self._parts(rank)
        self._own(first, dq, mine)
        wait_for([coming], self.held)
        taken, leaving, pending = list[tuple[slice, list[Tensor]]](), list[list[Tensor]](), list[Any]()
        for step in range(1, ranks):
            source, other = (rank - step) % ranks, (rank + step) % ranks
            (part,) = self._parts(source)
            made = self._made(part, every[source], dq)
            leaving.append([one.to(self.held.dtype).contiguous() for one in made])  # in use until all has left
            (_, seen, _), of_other = parts(self.q.shape[2], other, rank, self.is_causal)[0], mine[0]
            taken.append((seen, [torch.empty_like(of_other[:, seen], dtype=self.held.dtype) for _ in range(2)]))
            pending += exchanged(leaving[-1], -step, taken[-1][1], step, self.group)
        for part in rest:
            self._own(part, dq, mine)
        wait_for(pending, self.held)
        for seen, more in taken:
            for one, other in zip(mine, more, strict=True):
                one[:, seen] += other
        dk, dv = (one.to(self.held.dtype) for one in mine)
        return dq.to(self.q.dtype), dk, dv

    def _parts(self, source: int) -> list[Part]:
        """Return the parts with keys of a rank, those with own keys in two or more."""
        rows = self.q.shape[2]
        if source != self.group.rank() or self.is_causal:
            return parts(rows, self.group.rank(), source, self.is_causal)
        half = (rows + 1) // 2
        return [(some, slice(rows), False) for some in (slice(half), slice(half, rows)) if some.start != rows]

    def _dense(self, rows: slice) -> tuple[Tensor, ...]:
        """Return some rows of queries, results, log-sums and gradients, densely: several parts take them."""
        name = rows.start or 0, rows.stop
        if name not in self.dense:
            self.dense[name] = tuple(one[:, :, rows].contiguous() for one in (self.q, self.o, self.lse, self.do))
        return self.dense[name]

    def _own(self, part: Part, dq: Tensor, dkv: list[Tensor]) -> None:
        """Add the gradients of a part with own keys to those of its rows, and of its keys and values."""
        for one, more in zip(dkv, self._made(part, self.held, dq), strict=True):
            one[:, part[1]] += more

    def _made(self, part: Part, held: Tensor, dq: Tensor) -> tuple[Tensor, Tensor]:
        """Add the gradients of a part's rows, and return those of its keys and values."""
        rows, seen, masked = part
        q, o, lse, do = self._dense(rows)
        keys, values = held[:, :, seen]
        more, dk, dv = torch_attention.gradients(q, keys, values, o, lse, do, self.scale, masked)
        dq[:, :, rows] += more
        return dk, dv


# The operator ------------------------------------------------------------------------------------------------


def _run(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, scale: float, group: str, schedule: str, gradients: str
) -> tuple[Tensor, Tensor]:  # fmt: skip
    members, causal = group_named(group), q.dim() != FLAT
    said = q.dtype, ("scale", scale), "a mask" if causal else "no mask", ("keys", k.shape), schedule, gradients
    agree(CallKind("attention", (*said, *said_of(documents)), q.shape), members, q.device)
    if gradients not in ("", UNFUSED):  # what a kernel cannot have is told by this call, not by backward
        processor = current_target(members) if q.is_cuda else target("cpu")
        bound_gradients(tuple(q.shape), gradients, members.size(), name_of_type(q.dtype), processor)
    if causal and not 0 < scale < LARGEST_SCALE:  # kernels put the mask's number in before they scale
        if schedule not in ("", UNFUSED):
            raise BindingError(f"schedule {schedule} has a scale of {scale:g}", hint="one above 0, or no schedule")
        schedule = UNFUSED
    if documents is not None and not causal:
        if schedule not in ("", UNFUSED):
            what = f"schedule {schedule} has documents without a mask"
            raise BindingError(what, hint="give is_causal=True, or no schedule")
        schedule = UNFUSED
    schedule = schedule or _chosen(q)
    if schedule == UNFUSED:
        return _unfused(q, k, v, documents, scale, members)
    if documents is None:
        kernel = of_library("zigzag_attention" if causal else "ag_attention", schedule)
        return tuple(kernel(q, k, v, scale=scale, group=group))
    since, first = _begins(documents, q, members)
    return tuple(of_library("document_attention", schedule)(q, k, v, since, first, scale=scale, group=group))


def _begins(documents: Tensor, q: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Return the first key that each of the own rows sees, [2, N, B], and the block of the first one of each block."""
    shape = q.shape[2:-1]
    places = _places(prod(shape) // 2, group.size(), group.rank(), q.device).view(shape)
    edges = edges_of(documents, places.numel() * group.size())
    since = edges[torch.searchsorted(edges[1:], places, right=True)]
    return since, since[..., 0] // shape[-1]


@cache
def _places(rows: int, ranks: int, rank: int, device: torch.device) -> Tensor:
    """Return where the own rows are in the sequence: those of two chunks of so many rows."""
    begins = torch.tensor([[rank * rows], [(2 * ranks - 1 - rank) * rows]], device=device)
    return (begins + torch.arange(rows, device=device)).int()


_attention = declare_graded(
    Declaration(
        name="tilelink::attention",
        schema="(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens, float scale, str group, str schedule,"
        " str gradients) -> (Tensor, Tensor)",
        run=_run,
        shapes=torch_attention.empty_results,
    ),
    Declaration(
        name="tilelink::attention_backward",
        schema="(Tensor do, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? cu_seqlens, float scale,"
        " str group, str schedule) -> (Tensor, Tensor, Tensor)",
        run=_gradients,
        shapes=torch_attention.empty_gradients,
    ),
    # `attention` returns no log-sums, so that none depends on them.
    lambda inputs, outputs: ((*inputs[:3], *outputs, inputs[3]), (*inputs[4:6], inputs[7])),
)
