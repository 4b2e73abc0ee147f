# pyright: basic
"""Attention by heads (Ulysses): each rank attends in some heads to the whole sequence, between two exchanges."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tilelink.ops import torch_attention
from tilelink.ops.consensus import CallKind, agree
from tilelink.ops.custom import Declaration, declare_graded
from tilelink.ops.groups import group_named
from tilelink.ops.torch_attention import edges_of, said_of

Tensor = torch.Tensor


def ulysses(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, scale: float, is_causal: bool, group: str
) -> Tensor:  # fmt: skip
    """The attention of `ops.attention`, whose tensors and result these are.

    Heads of queries are divided as evenly as may be. A rank is sent the heads of keys that its queries share, and
    several ranks may be sent the same. documents: where they begin in the sequence.
    """
    return _ulysses(q, k, v, documents, scale, is_causal, group)[0]


@dataclass(frozen=True, kw_only=True)
class _Division:
    """The heads of queries, and of keys, that each rank attends in: from, to. shared: queries for a head of keys."""

    queries: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, int], ...]
    shared: int

    @property
    def results(self) -> list[int]:
        """How many heads of results come from each rank."""
        return [last - first for first, last in self.queries]

    @property
    def operands(self) -> list[int]:
        """How many heads of queries, keys and values go to each rank."""
        of_keys = (last - first for first, last in self.keys)
        return [own + 2 * more for own, more in zip(self.results, of_keys, strict=True)]


def _divided(heads: int, of_keys: int, ranks: int) -> _Division:
    shared = heads // of_keys
    queries = tuple(pairwise(heads * n // ranks for n in range(ranks + 1)))
    keys = tuple((first // shared, -(-last // shared) if last > first else first // shared) for first, last in queries)
    return _Division(queries=queries, keys=keys, shared=shared)


def _exchange(x: Tensor, given: list[int], taken: list[int], group: ProcessGroup) -> Tensor:
    """Return what all ranks give this one: so many of its first places of x go to each, and so many come."""
    made = x.new_empty((sum(taken), *x.shape[1:]))
    dist.all_to_all_single(made, x.contiguous(), taken, given, group=group)
    return made


def _to_heads(x: Tensor, counts: list[int], is_causal: bool, group: ProcessGroup) -> Tensor:
    """Return [batch, own heads, rows of the sequence, depth] of [batch, heads for all ranks, own rows, depth]."""
    own, ranks = counts[group.rank()], group.size()
    every = _exchange(x.transpose(0, 1), counts, [own] * ranks, group)
    return _in_order(every.unflatten(0, (ranks, own)), is_causal)


def _to_rows(x: Tensor, counts: list[int], is_causal: bool, group: ProcessGroup) -> Tensor:
    """The inverse of `_to_heads`."""
    own, ranks = counts[group.rank()], group.size()
    return _exchange(_by_rank(x, ranks, is_causal).flatten(0, 1), [own] * ranks, counts, group).transpose(0, 1)


def _in_order(x: Tensor, is_causal: bool) -> Tensor:
    """Return [batch, heads, rows of the sequence, depth] of what each rank has, [ranks, heads, batch, rows, depth]."""
    made = x.new_empty((x.shape[2], x.shape[1], x.shape[0] * x.shape[3], x.shape[4]))
    for of_rank, part in zip(_ranks(made, x.shape[0], is_causal), x.unbind(), strict=True):
        of_rank.copy_(_chunks(part.transpose(0, 1), is_causal))
    return made


def _by_rank(x: Tensor, ranks: int, is_causal: bool) -> Tensor:
    """Return [ranks, heads, batch, rows, depth]: the inverse of `_in_order`."""
    made = x.new_empty((ranks, x.shape[1], x.shape[0], x.shape[2] // ranks, x.shape[3]))
    for of_rank, part in zip(_ranks(x, ranks, is_causal), made.unbind(), strict=True):
        _chunks(part.transpose(0, 1), is_causal).copy_(of_rank)
    return made


def _ranks(x: Tensor, ranks: int, is_causal: bool) -> list[Tensor]:
    """Return the rows of each rank in a sequence, as `_chunks` has them."""
    if not is_causal:
        return [*x.unflatten(2, (ranks, -1)).unbind(2)]
    chunks = x.unflatten(2, (2 * ranks, -1))
    return [chunks[:, :, rank :: 2 * (ranks - rank) - 1][:, :, :2] for rank in range(ranks)]


def _chunks(rows: Tensor, is_causal: bool) -> Tensor:
    return rows.unflatten(2, (2, -1)) if is_causal else rows


def _by_key_heads(first: int, last: int, shared: int) -> list[tuple[slice, slice]]:
    """Return heads of queries, and of keys that they share: those of whole groups together, those of a part alone."""
    found: list[tuple[slice, slice]] = []
    at = first
    while at < last:
        whole = (last - at) // shared if at % shared == 0 else 0
        until = at + whole * shared if whole else min((at // shared + 1) * shared, last)
        found.append((slice(at, until), slice(at // shared, at // shared + max(whole, 1))))
        at = until
    return found


def _run(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, scale: float, is_causal: bool, group: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the result, and what backward takes: operands, results and log-sums of the own heads in all rows."""
    members = group_named(group)
    said = q.dtype, ("scale", scale), "a mask" if is_causal else "no mask", ("keys", k.shape), "by heads"
    agree(CallKind("attention", (*said, *said_of(documents)), q.shape), members, q.device)
    division = _divided(q.shape[1], k.shape[1], members.size())
    sent = torch.cat([
        one
        for (a, b), (c, d) in zip(division.queries, division.keys, strict=True)
        for one in (q[:, a:b], k[:, c:d], v[:, c:d])
    ], 1)  # fmt: skip
    mine = _to_heads(sent, division.operands, is_causal, members)
    results = mine.new_empty((mine.shape[0], division.results[members.rank()], *mine.shape[2:]))
    lse = torch.empty(results.shape[:-1], dtype=torch_attention.wide(q.dtype), device=q.device)
    packed = _packed(documents, mine)
    for heads, queries, keys, values in _groups(mine, division, members.rank()):
        o, sums = torch_attention.attend(queries, keys, values, scale, is_causal, packed)
        results[:, heads], lse[:, heads] = (one.unflatten(0, (q.shape[0], -1)).flatten(1, 2) for one in (o, sums))
    return _to_rows(results, division.results, is_causal, members).contiguous(), mine, results, lse


def _packed(documents: Tensor | None, mine: Tensor) -> torch_attention.Documents | None:
    """Return the documents of rows and of keys, which are both the whole sequence."""
    if documents is None:
        return None
    edges = edges_of(documents, mine.shape[2])
    return edges, edges


def _groups(mine: Tensor, division: _Division, rank: int) -> list[tuple[slice, Tensor, Tensor, Tensor]]:
    """Return the own heads, their queries [H, G, rows, depth], and their keys and values [H, rows, depth]."""
    (first, last), begin = division.queries[rank], division.keys[rank][0]
    queries, keys, values = _split(mine, division, rank)
    found: list[tuple[slice, Tensor, Tensor, Tensor]] = []
    for heads, some in _by_key_heads(first, last, division.shared):
        count = some.stop - some.start
        seen = slice(some.start - begin, some.stop - begin)
        own = slice(heads.start - first, heads.stop - first)
        asked = queries[:, own].reshape(mine.shape[0] * count, -1, *mine.shape[2:])
        found.append((own, asked, keys[:, seen].flatten(0, 1), values[:, seen].flatten(0, 1)))
    return found


def _gradients(
    do: Tensor, mine: Tensor, results: Tensor, lse: Tensor, documents: Tensor | None, scale: float, is_causal: bool,
    group: str, heads: int, of_keys: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the own rows. Those of a head of keys that several ranks have are added up in f32."""
    members, batch = group_named(group), mine.shape[0]
    agree(CallKind("attention", (do.dtype, "gradients", "by heads"), do.shape), members, do.device)
    division = _divided(heads, of_keys, members.size())
    given, made = _to_heads(do, division.results, is_causal, members), torch.empty_like(mine)
    dqueries, dkeys, dvalues = _split(made, division, members.rank())
    first, begin = division.queries[members.rank()][0], division.keys[members.rank()][0]
    packed = _packed(documents, mine)
    for own, queries, keys, values in _groups(mine, division, members.rank()):
        o, of_group = (one[:, own].reshape(queries.shape) for one in (results, given))
        sums = lse[:, own].reshape(queries.shape[:-1])
        dq, dk, dv = torch_attention.gradients(
            queries, keys, values, o, sums, of_group, scale, is_causal, packed
        )  # fmt: skip
        dqueries[:, own] = dq.unflatten(0, (batch, -1)).flatten(1, 2)
        seen = slice((own.start + first) // division.shared - begin, -(-(own.stop + first) // division.shared) - begin)
        dkeys[:, seen], dvalues[:, seen] = (one.unflatten(0, (batch, -1)) for one in (dk, dv))
    back = _to_rows(made, division.operands, is_causal, members)
    dq = back.new_empty((batch, heads, *back.shape[2:]))
    dk, dv = (
        torch.zeros((batch, of_keys, *back.shape[2:]), dtype=torch_attention.wide(do.dtype), device=do.device)
        for _ in range(2)
    )
    for rank, part in enumerate(back.split(division.operands, 1)):
        (a, b), (c, d) = division.queries[rank], division.keys[rank]
        dq[:, a:b], of_k, of_v = _split(part, division, rank)
        dk[:, c:d] += of_k
        dv[:, c:d] += of_v
    return dq, dk.to(do.dtype), dv.to(do.dtype)


def _split(x: Tensor, division: _Division, rank: int) -> tuple[Tensor, ...]:
    """Return the heads of queries, keys and values of a rank."""
    (first, last), (begin, end) = division.queries[rank], division.keys[rank]
    return x.split((last - first, end - begin, end - begin), 1)


def _shapes(q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    members = group_named(rest[-1])
    division, rows = _divided(q.shape[1], k.shape[1], members.size()), q.shape[2] * members.size()
    own, all_operands = division.results[members.rank()], division.operands[members.rank()]
    batch, depth = q.shape[0], q.shape[-1]
    mine, results = (q.new_empty((batch, heads, rows, depth)) for heads in (all_operands, own))
    return q.new_empty(q.shape), mine, results, q.new_empty((batch, own, rows), dtype=torch_attention.wide(q.dtype))


def _gradient_shapes(do: Tensor, mine: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, rows, depth = do.shape
    keys = (batch, rest[-1], rows, depth)
    return do.new_empty((batch, heads, rows, depth)), do.new_empty(keys), do.new_empty(keys)


_ulysses = declare_graded(
    Declaration(
        name="tilelink::ulysses_attention",
        schema="(Tensor q, Tensor k, Tensor v, Tensor? documents, float scale, bool is_causal, str group)"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        run=_run,
        shapes=_shapes,
    ),
    Declaration(
        name="tilelink::ulysses_attention_backward",
        schema="(Tensor do, Tensor mine, Tensor results, Tensor lse, Tensor? documents, float scale, bool is_causal,"
        " str group, int heads, int of_keys) -> (Tensor, Tensor, Tensor)",
        run=_gradients,
        shapes=_gradient_shapes,
    ),
    lambda inputs, outputs: (
        (*outputs[1:], inputs[3]), (*inputs[4:], inputs[0].shape[1], inputs[1].shape[1])
    ),
)  # fmt: skip
