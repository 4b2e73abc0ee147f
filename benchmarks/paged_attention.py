# pyright: basic
"""Attention of one query a request over keys that lie in pages: the same kernel for all variants of a layer."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

PAGE = 64
"""Keys of a page."""

HEAD = 128
PART_KEYS = 512
"""Keys that one program reads at least."""


@triton.jit
def _part(
    q, stride, keys, values, pages, parts, lse, length,
    GROUP: tl.constexpr, KV: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The result and the log-sum-exp of one part of the keys, for the heads that share them."""
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads, d, at = tl.arange(0, 16), tl.arange(0, HEAD), tl.arange(0, PAGE)  # 16: the fewest rows of a product
    query = tl.load(
        q + row * stride + (head * GROUP + heads)[:, None] * HEAD + d[None, :], mask=(heads < GROUP)[:, None], other=0
    )
    most = tl.full((16,), float("-inf"), tl.float32)
    total, out = tl.zeros((16,), tl.float32), tl.zeros((16, HEAD), tl.float32)
    count = length // PAGE // PARTS
    for number in range(part * count, (part + 1) * count):
        page = tl.load(pages + row * (length // PAGE) + number).to(tl.int64)
        where = ((page * PAGE + at) * KV + head)[:, None] * HEAD + d[None, :]
        scores = tl.dot(query, tl.load(keys + where).trans()) * (HEAD**-0.5 * 1.4426950408889634)
        high = tl.maximum(most, tl.max(scores, axis=1))
        weights, keep = tl.exp2(scores - high[:, None]), tl.exp2(most - high)
        total = total * keep + tl.sum(weights, axis=1)
        out = out * keep[:, None] + tl.dot(weights.to(tl.bfloat16), tl.load(values + where))
        most = high
    to = (row * KV + head) * PARTS + part
    tl.store(parts + (to * 16 + heads)[:, None] * HEAD + d[None, :], out / total[:, None])
    tl.store(lse + to * 16 + heads, most + tl.log2(total))


@triton.jit
def _merge(
    parts, lse, out, whole, GROUP: tl.constexpr, KV: tl.constexpr, HEAD: tl.constexpr, PARTS: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    row, head, d = tl.program_id(0), tl.program_id(1), tl.arange(0, HEAD)
    to = ((row * KV + head // GROUP) * PARTS + tl.arange(0, PARTS)) * 16 + head % GROUP
    weights = tl.exp2(tl.load(lse + to) - tl.max(tl.load(lse + to)))
    value = tl.sum(tl.load(parts + to[:, None] * HEAD + d[None, :]) * weights[:, None], axis=0) / tl.sum(weights)
    tl.store(out + (row * KV * GROUP + head) * HEAD + d, value)
    if WHOLE:
        high = tl.max(tl.load(lse + to))
        tl.store(whole + row * KV * GROUP + head, (high + tl.log2(tl.sum(weights))) * 0.6931471805599453)


class Cache:
    """Keys and values [pages, PAGE, kv, HEAD] in bf16 of `batch` requests, `length` each, in pages of random order."""

    def __init__(self, batch: int, kv: int, length: int, chance: torch.Generator) -> None:
        count, like = batch * length // PAGE, {"device": chance.device, "generator": chance}
        self.kv, self.length = kv, length
        self.keys, self.values = (torch.randn(count, PAGE, kv, HEAD, dtype=torch.bfloat16, **like) for _ in range(2))
        self.pages = torch.randperm(count, **like).to(torch.int32).view(batch, -1)
        """[batch, length / PAGE]: the page that holds so many keys of a request."""

    def attend(self, q: torch.Tensor, with_lse: bool = False) -> Any:
        """Return attention [batch, heads * HEAD] of queries of the same shape, whose rows may be strided.

        with_lse: and the logarithms of the sums of exponentials [batch, heads], f32.
        """
        batch, heads = q.shape[0], q.shape[1] // HEAD
        blocks: Any = triton.next_power_of_2(-(-264 // (batch * self.kv)))
        count = max(1, min(self.length // PART_KEYS, blocks))
        parts = torch.empty(batch, self.kv, count, 16, HEAD, device=q.device)
        lse = torch.empty(batch, self.kv, count, 16, device=q.device)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        whole = torch.empty(batch, heads, device=q.device)
        first: Any = _part[(batch, self.kv, count)]
        group = heads // self.kv
        stored = self.keys, self.values, self.pages
        first(q, q.stride(0), *stored, parts, lse, self.length, group, self.kv, HEAD, PAGE, count)
        merge: Any = _merge[(batch, heads)]
        merge(parts, lse, out, whole, group, self.kv, HEAD, count, with_lse)
        return (out, whole) if with_lse else out
