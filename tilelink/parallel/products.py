# pyright: basic
"""Products of tensor parallelism with the gradients that DTensor has: each rank has the same loss.

x lies as models have it, [..., K], and is spread along a dimension `dim`, or is the same on all ranks. Weights are
[N, K]. A dimension that is spread has equally many rows on all ranks. Groups go by their names.

`tilelink.ops` takes gradients of the sum of all ranks' losses. The difference matters where a result is the same on all
ranks: its gradient is, too, and is not summed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from tilelink import ops
from tilelink.ops import registered
from tilelink.ops.custom import is_differentiated

Tensor = torch.Tensor


def _product(op: str, x: Tensor, w: Tensor, group: str) -> Any:
    """Call an operator without its own gradients."""
    return registered.call(op, (x, w) if op == GATHER else (x, w, None), group, None)


GATHER, SCATTER, REDUCE = "ag_gemm_gathered", "gemm_rs", "gemm_ar"


class _Gathered(torch.autograd.Function):
    """All ranks' rows times the own weights, next to each other. The gathered rows are kept, as those of a plain
    product are, and the weights as they are: both in one would be a copy from here to backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str, *weights: Tensor) -> Tensor:
        y, rows = _product(GATHER, x, _together(weights), group)
        ctx.save_for_backward(rows, *weights)
        ctx.group = group
        return y

    @staticmethod
    @once_differentiable  # another time products would be of one rank's rows, and say nothing
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return _column_gradients(ctx, dy, SCATTER)


class _Replicated(torch.autograd.Function):
    """Rows that all ranks have times the own columns: the gradient of the rows is summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, *weights)
        ctx.group = group
        return x @ _together(weights).t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return _column_gradients(ctx, dy, REDUCE)


def _together(weights: tuple[Tensor, ...]) -> Tensor:
    return weights[0] if len(weights) == 1 else torch.cat(weights)


def _column_gradients(ctx: Any, dy: Tensor, op: str) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, group, *weights. op: how the gradient of the rows is summed."""
    rows, *weights = ctx.saved_tensors
    dy, dx = dy.contiguous(), None
    if ctx.needs_input_grad[0]:
        turned = [one.t() for one in weights]
        w = torch.cat(turned, 1) if len(turned) > 1 else turned[0]
        dx = _product(op, dy, w.contiguous(), ctx.group)
    dw: Any = [None] * len(weights)
    if any(ctx.needs_input_grad[2:]):
        dw = (dy.t() @ rows).split([one.shape[0] for one in weights])
    return dx, None, *dw


class _Reduced(torch.autograd.Function):
    """The sum of all ranks' products on every rank: the gradient of the sum is there already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, group: str) -> Tensor:
        ctx.save_for_backward(x, w)
        return _product(REDUCE, x, w, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        dx = dy @ w if ctx.needs_input_grad[0] else None
        dw = dy.t() @ x if ctx.needs_input_grad[1] else None
        return dx, dw, None


class _Scattered(torch.autograd.Function):
    """The own rows of the sum of all ranks' products: the gradient is gathered, for both factors at once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, group: str) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.group = group
        return _product(SCATTER, x, w, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        dx, dy_of_all = _product(GATHER, dy.contiguous(), w.t().contiguous(), ctx.group)
        return dx, dy_of_all.t() @ x if ctx.needs_input_grad[1] else None, None


class _SummedGradient(torch.autograd.Function):
    """A tensor that all ranks have and use on rows of their own: its gradient is summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return ops.all_reduce(dx.contiguous(), group=ctx.group), None


def columns(x: Tensor, w: Tensor | tuple[Tensor, ...], bias: Tensor | None, group: str, dim: int | None) -> Tensor:
    """Return x W^T + b for the own columns: [..., K], [N, K] -> [..., N], with all rows.

    w: a weight, or several whose columns are next to each other. dim: along which x is spread, or None if all ranks
    have all of it.
    """
    weights = w if isinstance(w, tuple) else (w,)
    rows = by_rows(x, dim)
    flat = rows.reshape(-1, x.shape[-1])
    if not is_differentiated((x, *weights, bias)):
        w = _together(weights)
        y = linear(flat, w, bias) if dim is None else ops.ag_gemm(flat, w, bias=bias, group=group)
    else:
        y = (_Replicated if dim is None else _Gathered).apply(flat, group, *weights)
        y = y if bias is None else y + bias
    return of_rows(y, rows, dim)


def sums(x: Tensor, w: Tensor, bias: Tensor | None, group: str, dim: int | None) -> Tensor:
    """Return the sum over ranks of x W^T, + b: the own columns [..., K], [N, K] -> [..., N].

    dim: along which the result is spread, or None if all ranks get all of it.
    """
    rows = by_rows(x, dim)
    flat = rows.reshape(-1, x.shape[-1])
    if is_differentiated((x, w)):
        y = (_Reduced if dim is None else _Scattered).apply(flat, w, group)
    else:
        y = _product(REDUCE if dim is None else SCATTER, flat, w, group)
    if bias is not None and dim is not None:
        bias = _SummedGradient.apply(bias, group)
    return of_rows(y if bias is None else y + bias, rows, dim)


def gated(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, activation: Any, group: str, dim: int | None
) -> Tensor:  # fmt: skip
    """Return down(activation(gate(x)) * up(x)). x and the result are spread along dim, or the same on all ranks."""
    rows = by_rows(x, dim)
    flat = rows.reshape(-1, x.shape[-1])
    if dim is not None and activation is torch.nn.functional.silu and not is_differentiated((x, w_gate, w_up)):
        between = ops.ag_gemm_gated(flat, w_gate, w_up, group=group)
    else:
        gate, up = columns(flat, (w_gate, w_up), None, group, None if dim is None else 0).chunk(2, -1)
        between = activation(gate) * up
    return of_rows(sums(between, w_down, None, group, None if dim is None else 0), rows, dim)


def by_rows(x: Tensor, dim: int | None) -> Tensor:
    """Return x with the dimension that is spread in front, so that the rows of a rank lie together."""
    return x if dim is None else x.movedim(dim, 0)


def of_rows(y: Tensor, rows: Tensor, dim: int | None) -> Tensor:
    """Return a product [M, N] with the dimensions of x, where `rows` is what `by_rows` made of x."""
    if dim is None:
        return y.view(*rows.shape[:-1], y.shape[-1])
    return y.view(-1, *rows.shape[1:-1], y.shape[-1]).movedim(0, dim).contiguous()
