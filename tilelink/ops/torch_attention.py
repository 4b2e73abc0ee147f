# pyright: basic
"""Attention of some rows to some keys with its log-sums, and its gradients, by the fastest of torch's kernels.

Queries are [H, G, M, D] and keys and values [H, S, D]: G heads of queries share one of keys. masked: the rows are those
of the keys, and see them up to their own. documents: where each document begins among the rows, and among the keys, and
where the last one ends, i32: rows see keys of theirs, and if they are masked, they are the last ones of these.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from tilelink.errors import BindingError
from tilelink.ops.groups import is_capturing
from tilelink.settings import settings

Tensor = torch.Tensor
Documents = tuple[Tensor, Tensor]
aten: Any = torch.ops.aten
CUDNN, FLASH = "cudnn", "flash"
DEEPEST = 256
"""Elements of a head that flash attention takes."""


def kernel_for(q: Tensor) -> str:
    """Return which kernels compute with such queries, or "" for products and exponentials."""
    if not q.is_cuda or q.dtype not in (torch.bfloat16, torch.float16) or q.shape[-1] % 8 or q.shape[-1] > DEEPEST:
        return ""
    newer = torch.cuda.get_device_capability(q.device)[0] >= 9
    return CUDNN if newer and q.shape[-1] <= 128 else FLASH


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums, of log-sums, of gradients of keys and of weights of choices: f32, or f64 for f64."""
    return torch.promote_types(dtype, torch.float32)


def empty_results(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Return a result and log-sums of any value, for queries of any dimensions."""
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=wide(q.dtype))


def empty_gradients(_: Tensor, *operands: Any) -> tuple[Tensor, ...]:
    """Return gradients of any value of q, k and v, the first operands after the gradient of the result."""
    return tuple(one.new_empty(one.shape) for one in operands[:3])


def edges_of(documents: Tensor, keys: int) -> Tensor:
    """Return where documents begin in a sequence, and its end, as `ops.attention` is told by its cu_seqlens.

    Raises BindingError for numbers that are none of that, if they are on the CPU, and with TILELINK_CHECK=1 on a GPU.
    """
    if documents.device.type == "cpu" or (settings().check and not is_capturing()):
        told = documents.tolist()
        wrong = next((at for at, (one, two) in enumerate(pairwise(told)) if two < one), None)
        if wrong is not None:
            what = f"cu_seqlens falls from {told[wrong]} to {told[wrong + 1]}, at {wrong + 1}"
            raise BindingError(what, hint="it has where each document ends, after a 0: the sums of their lengths")
        if told[0] or told[-1] > keys:
            what = f"cu_seqlens is from {told[0]} to {told[-1]}, of a sequence of {keys} rows of all ranks"
            raise BindingError(what, hint="it begins with 0, and ends with the rows of the sequence or fewer")
    edges = torch.nn.functional.pad(documents[1:].clamp(0, keys), (1, 1))
    edges[-1] = keys
    return edges


def said_of(documents: Tensor | None) -> tuple[Any, ...]:
    """Return what ranks compare of documents: how many, and where they begin if the host sees that."""
    if documents is None:
        return ()
    seen = documents.device.type == "cpu" or (settings().check and not is_capturing())
    return (("documents", documents.shape), *((("ending at", *documents.tolist()),) if seen else ()))


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, masked: bool, documents: Documents | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the result [H, G, M, D] and the log-sums [H, G, M] in `wide`."""
    kind = kernel_for(q)
    if not kind:
        weights, lse = _weights(q, k, scale, masked, documents, None)
        return torch.einsum("hgms,hsd->hgmd", weights, v.to(weights.dtype)).to(q.dtype), lse
    q, k, v = map(_in_rows, (q, k, v))
    if documents is not None:
        packed = (one.transpose(0, 1) for one in (q.flatten(0, 1), k, v))
        o, lse = aten._flash_attention_forward(
            *packed, *documents, q.shape[2], k.shape[1], 0.0, masked, False, scale=scale
        )[:2]
        return o.transpose(0, 1).reshape(q.shape), lse.reshape(q.shape[:-1])
    queries, keys, values = q.flatten(0, 1)[None], k[None], v[None]
    if kind == CUDNN:
        o, lse = aten._scaled_dot_product_cudnn_attention(
            queries, keys, values, None, True, 0.0, masked, False, scale=scale
        )[:2]
    else:
        o, lse = aten._scaled_dot_product_flash_attention(
            queries, *_repeated(q, keys, values), 0.0, masked, False, scale=scale
        )[:2]
    return o[0].reshape(q.shape), lse.reshape(q.shape[:-1])


def add_part(o: Tensor, lse: Tensor, more: Tensor, sums: Tensor) -> None:
    """Add the result of more keys, and its log-sums, to those of the same rows, in place."""
    total = torch.logaddexp(lse, sums)
    old, new = (torch.exp(one - total).unsqueeze(-1) for one in (lse, sums))
    o.copy_(o * old + more * new)
    lse.copy_(total)


def gradients(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, scale: float, masked: bool,
    documents: Documents | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q, k and v. o, lse: of the rows and all keys that they see, these and others."""
    kind = kernel_for(q)
    if not kind:
        return _computed(q, k, v, o, lse, do, scale, masked, documents)
    q, k, v = map(_in_rows, (q, k, v))
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    rows, seen = q.shape[2], k.shape[1]
    if documents is not None:
        given, queries, keys, values, results = (
            one.transpose(0, 1) for one in (do.flatten(0, 1), q.flatten(0, 1), k, v, o.flatten(0, 1))
        )
        made = aten._flash_attention_backward(
            given, queries, keys, values, results, lse.flatten(0, 1).contiguous(), *documents, rows, seen, 0.0, masked,
            seed, seed, scale=scale,
        )  # fmt: skip
        dq, dk, dv = (one.transpose(0, 1) for one in made)
        return dq.reshape(q.shape), dk, dv
    # torch keeps cuDNN's plans by the strides of q, k and v alone, and a plan for other strides of o and do would read
    # wrong elements: all are dense, as they are for other callers with a dense q.
    given, queries, results, sums = (one.flatten(0, 1)[None].contiguous() for one in (do, q, o, lse))
    if kind == CUDNN:
        dq, dk, dv = aten._scaled_dot_product_cudnn_attention_backward(
            given, queries, k[None], v[None], results, sums.unsqueeze(-1), seed, seed, None, None, None, rows, seen,
            0.0, masked, scale=scale,
        )  # fmt: skip
        return dq[0].reshape(q.shape), dk[0], dv[0]
    dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(
        given, queries, *_repeated(q, k[None], v[None]), results, sums, None, None, rows, seen, 0.0, masked, seed, seed,
        scale=scale,
    )  # fmt: skip
    dk, dv = (one[0].unflatten(0, q.shape[:2]).sum(1, dtype=torch.float32) for one in (dk, dv))
    return dq[0].reshape(q.shape), dk, dv


def _in_rows(x: Tensor) -> Tensor:
    """Return a tensor, or a copy of one whose rows have gaps between their elements: torch's kernels refuse those."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _repeated(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values [1, H, S, D] once for each head of queries."""
    groups = q.shape[1]
    return (k, v) if groups == 1 else (k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))


def _weights(
    q: Tensor, k: Tensor, scale: float, masked: bool, documents: Documents | None, lse: Tensor | None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    sums = wide(q.dtype)
    scores = torch.einsum("hgmd,hsd->hgms", q.to(sums), k.to(sums)) * scale
    rows, keys = (torch.arange(size, device=q.device) for size in scores.shape[-2:])
    if documents is not None:
        of_row, of_key = (
            torch.searchsorted(begins[1:], one, right=True, out_int32=True)
            for begins, one in zip(documents, (rows, keys), strict=True)
        )
        scores.masked_fill_(of_row[:, None] != of_key, float("-inf"))
        ends = [begins[1:][of_row] for begins in documents]
        rows += ends[1] - ends[0]  # its last row sees its last key
    if masked:
        scores.masked_fill_(rows[:, None] < keys, float("-inf"))
    lse = torch.logsumexp(scores, -1) if lse is None else lse
    return torch.exp(scores - lse.unsqueeze(-1)), lse


def _computed(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, scale: float, masked: bool,
    documents: Documents | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    weights, _ = _weights(q, k, scale, masked, documents, lse)
    q, k, v, o, do = (one.to(weights.dtype) for one in (q, k, v, o, do))
    dv = torch.einsum("hgms,hgmd->hsd", weights, do)
    own = (do * o).sum(-1, keepdim=True)
    dscores = weights * (torch.einsum("hgmd,hsd->hgms", do, v) - own) * scale
    dq = torch.einsum("hgms,hsd->hgmd", dscores, k)
    return dq, torch.einsum("hgms,hgmd->hsd", dscores, q), dv
