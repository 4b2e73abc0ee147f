# pyright: basic
"""Gradients of the operators: those of the sum of all ranks' losses.

What a loss on one rank owes to rows of another comes back to it. Each function takes the context of torch's autograd,
with the group's name, the implementation (UNFUSED or "") and for products x and w, and the gradient of the result; it
gives the gradients of the operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
Gradient = Callable[[Any, Tensor], tuple[Tensor | None, ...]]


def ag_gemm(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    dy = dy.contiguous()
    dx, dw = None, None
    if ctx.needs_input_grad[0]:
        dx = torch.ops.tilelink.gemm_rs(dy, w.t().contiguous(), None, "", ctx.group, ctx.implementation)
    if ctx.needs_input_grad[1]:
        dw = dy.t() @ torch.ops.tilelink.all_gather(x, ctx.group, ctx.implementation)
    return dx, dw, _bias(ctx, dy)


def gemm_rs(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    dy, dx, dw = dy.contiguous(), None, None
    if ctx.needs_input_grad[0] and ctx.needs_input_grad[1]:
        dx, full = torch.ops.tilelink.ag_gemm_gathered(dy, w.t().contiguous(), ctx.group, ctx.implementation)
        dw = full.t() @ x
    elif ctx.needs_input_grad[0]:
        dx = torch.ops.tilelink.ag_gemm(dy, w.t().contiguous(), None, "", ctx.group, ctx.implementation)
    elif ctx.needs_input_grad[1]:
        dw = torch.ops.tilelink.all_gather(dy, ctx.group, ctx.implementation).t() @ x
    return dx, dw, _bias(ctx, dy)


def gemm_ar(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    full = torch.ops.tilelink.all_reduce(dy.contiguous(), ctx.group, ctx.implementation)
    dx = full @ w if ctx.needs_input_grad[0] else None
    dw = full.t() @ x if ctx.needs_input_grad[1] else None
    return dx, dw, _bias(ctx, dy)


def all_gather(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    return (torch.ops.tilelink.reduce_scatter(dy.contiguous(), ctx.group, ctx.implementation),)


def reduce_scatter(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    return (torch.ops.tilelink.all_gather(dy.contiguous(), ctx.group, ctx.implementation),)


def all_reduce(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    return (torch.ops.tilelink.all_reduce(dy.contiguous(), ctx.group, ctx.implementation),)


def _bias(ctx: Any, dy: Tensor) -> Tensor | None:
    return dy.sum(0) if ctx.needs_input_grad[2] else None
