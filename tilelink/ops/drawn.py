# pyright: basic
"""Calls of operators that choose by themselves, on tensors that are drawn: by sizes, for a rank of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilelink.ops.context_parallel import attention
from tilelink.ops.decode import decode_attention
from tilelink.ops.experts import EXPERTS, SLICES, expert_parallel, moe
from tilelink.ops.operators import UNFUSED

Tensor = torch.Tensor
Sizes = Mapping[str, int]
Draw = Callable[[Sizes, int, Mapping[str, Any]], tuple[tuple[Tensor, ...], Mapping[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """An operator. sizes: those of a rank's tensors, as models have them. ways: schedules besides the operator's own.

    draw: takes sizes, the number of ranks, and what tensors are like (device, dtype); returns operands and options.
    """

    call: Callable[..., Any]
    sizes: Mapping[str, tuple[int, ...]]
    draw: Draw
    ways: tuple[str, ...] = (UNFUSED,)


def _attention(sizes: Sizes, ranks: int, like: Mapping[str, Any]) -> Any:
    """Draw B sequences, H heads of keys with G of queries each, S rows of a rank, D elements of a head.

    Two chunks: rows see those before them, and ranks have theirs in zigzag.
    """
    B, H, G, S, D = (sizes[name] for name in "BHGSD")
    shapes = (B, H * G, S, D), (B, H, S, D), (B, H, S, D)
    return tuple(torch.randn(shape, **like) for shape in shapes), {"is_causal": sizes["chunks"] == 2}


def _decode(sizes: Sizes, ranks: int, like: Mapping[str, Any]) -> Any:
    """Draw B sequences with room for S keys on each rank, in pages of T: half of it and more is taken."""
    B, H, G, S, D, T = (sizes[name] for name in "BHGSDT")
    pages = -(-S // T)
    caches = (torch.randn(B * pages, T, H, D, **like) for _ in range(2))
    table = torch.randperm(B * pages, device=like["device"]).view(B, pages).int()
    lengths = torch.randint(S // 2, S + 1, (B,), device=like["device"]).int()
    q = torch.randn(B, H * G, D, **{**like, "generator": torch.Generator(like["device"]).manual_seed(1)})
    return (q, *caches, table, lengths), {}


def _experts(sizes: Sizes, experts: int, like: Mapping[str, Any]) -> Any:
    """Draw M tokens of H features for k of some experts each, of which a rank has E with I inner features."""
    M, H, inner, E, k = (sizes[name] for name in "MHIEk")
    x, w13, w2 = (torch.randn(shape, **like) for shape in ((M, H), (E, 2 * inner, H), (E, H, inner)))
    ids = torch.rand(M, experts, device=like["device"]).argsort(1)[:, :k].int()
    return (x, ids, torch.rand(M, k, device=like["device"]), w13 * H**-0.5, w2 * inner**-0.5), {}


_HEADS = {"B": (1, 2, 8), "H": (1, 2, 4, 8), "G": (1, 4, 8), "D": (64, 128)}
_LAYER = {"H": (2048, 4096, 7168), "I": (512, 1024, 2048), "k": (1, 2, 4, 8)}
DRAWN: Mapping[str, Drawn] = {
    "attention": Drawn(
        call=attention,
        sizes={**_HEADS, "S": (256, 512, 1000, 1024, 2048, 4096), "chunks": (1, 2)},
        draw=_attention,
    ),
    "decode_attention": Drawn(
        call=decode_attention,
        sizes={**_HEADS, "B": (1, 2, 8, 32, 64), "S": (256, 1024, 4096, 16384), "T": (16, 64)},
        draw=_decode,
    ),
    EXPERTS: Drawn(
        call=expert_parallel,
        sizes={"M": (1, 4, 16, 64, 128, 256, 1024, 4096), **_LAYER, "E": (4, 8, 16)},
        draw=lambda sizes, ranks, like: _experts(sizes, ranks * sizes["E"], like),
        ways=(UNFUSED, "moe_decode:gpu", "moe:gpu"),
    ),
    SLICES: Drawn(
        call=moe,
        sizes={"M": (1, 4, 16, 64, 256, 1024, 4096), **_LAYER, "E": (8, 16)},
        draw=lambda sizes, ranks, like: _experts(sizes, sizes["E"], like),
        ways=(UNFUSED, "moe:gpu"),
    ),
}  # fmt: skip
"""Operators by their names in `tilelink.ops`."""
