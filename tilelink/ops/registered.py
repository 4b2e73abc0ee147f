# pyright: basic
"""The operators as torch sees them: custom operators with shapes for tracing and with gradients.

Gradients are those of the sum of all ranks' losses: what a loss on one rank owes to rows of another comes back to it.
Groups go by their names, activations and schedules by "" where there is none.
"""

from typing import Any

import torch

from tilelink.errors import BindingError
from tilelink.ops import calls
from tilelink.ops.choice import UNFUSED
from tilelink.ops.groups import group_named

Tensor = torch.Tensor


def _size(group: str) -> int:
    return group_named(group).size()


# Operators ---------------------------------------------------------------------------------------------------


@torch.library.custom_op("tilelink::ag_gemm", mutates_args=())
def ag_gemm(x: Tensor, w: Tensor, bias: Tensor | None, activation: str, group: str, schedule: str) -> Tensor:
    return calls.run("ag_gemm", (x, w, bias), activation, group, schedule or None)


@torch.library.custom_op("tilelink::ag_gemm_gated", mutates_args=())
def ag_gemm_gated(x: Tensor, w_gate: Tensor, w_up: Tensor, group: str, schedule: str) -> Tensor:
    return calls.run("ag_gemm_gated", (x, w_gate, w_up), "", group, schedule or None)


@torch.library.custom_op("tilelink::ag_gemm_gathered", mutates_args=())
def ag_gemm_gathered(x: Tensor, w: Tensor, group: str, schedule: str) -> tuple[Tensor, Tensor]:
    return calls.run("ag_gemm_gathered", (x, w), "", group, schedule or None)


@torch.library.custom_op("tilelink::gemm_rs", mutates_args=())
def gemm_rs(x: Tensor, w: Tensor, bias: Tensor | None, activation: str, group: str, schedule: str) -> Tensor:
    return calls.run("gemm_rs", (x, w, bias), activation, group, schedule or None)


@torch.library.custom_op("tilelink::gemm_ar", mutates_args=())
def gemm_ar(x: Tensor, w: Tensor, bias: Tensor | None, activation: str, group: str, schedule: str) -> Tensor:
    return calls.run("gemm_ar", (x, w, bias), activation, group, schedule or None)


@torch.library.custom_op("tilelink::gemm_rs_f32", mutates_args=())
def gemm_rs_f32(x: Tensor, w: Tensor, group: str, schedule: str) -> Tensor:
    return calls.run("gemm_rs_f32", (x, w), "", group, schedule or None)


@torch.library.custom_op("tilelink::gemm_ar_f32", mutates_args=())
def gemm_ar_f32(x: Tensor, w: Tensor, group: str, schedule: str) -> Tensor:
    return calls.run("gemm_ar_f32", (x, w), "", group, schedule or None)


@torch.library.custom_op("tilelink::all_gather", mutates_args=())
def all_gather(x: Tensor, group: str, schedule: str) -> Tensor:
    return calls.run("all_gather", (x,), "", group, schedule or None)


@torch.library.custom_op("tilelink::reduce_scatter", mutates_args=())
def reduce_scatter(x: Tensor, group: str, schedule: str) -> Tensor:
    return calls.run("reduce_scatter", (x,), "", group, schedule or None)


@torch.library.custom_op("tilelink::all_reduce", mutates_args=())
def all_reduce(x: Tensor, group: str, schedule: str) -> Tensor:
    return calls.run("all_reduce", (x,), "", group, schedule or None)


# Shapes ------------------------------------------------------------------------------------------------------


@ag_gemm.register_fake
def _(x, w, bias, activation, group, schedule):
    return x.new_empty(x.shape[0] * _size(group), w.shape[0])


@ag_gemm_gated.register_fake
def _(x, w_gate, w_up, group, schedule):
    return x.new_empty(x.shape[0] * _size(group), w_gate.shape[0])


@ag_gemm_gathered.register_fake
def _(x, w, group, schedule):
    rows = x.shape[0] * _size(group)
    return x.new_empty(rows, w.shape[0]), x.new_empty(rows, x.shape[1])


@gemm_rs.register_fake
def _(x, w, bias, activation, group, schedule):
    return x.new_empty(x.shape[0] // _size(group), w.shape[0])


@gemm_ar.register_fake
def _(x, w, bias, activation, group, schedule):
    return x.new_empty(x.shape[0], w.shape[0])


@gemm_rs_f32.register_fake
def _(x, w, group, schedule):
    return x.new_empty(x.shape[0] // _size(group), w.shape[0])


@gemm_ar_f32.register_fake
def _(x, w, group, schedule):
    return x.new_empty(x.shape[0], w.shape[0])


@all_gather.register_fake
def _(x, group, schedule):
    return x.new_empty(x.shape[0] * _size(group), *x.shape[1:])


@reduce_scatter.register_fake
def _(x, group, schedule):
    return x.new_empty(x.shape[0] // _size(group), *x.shape[1:])


@all_reduce.register_fake
def _(x, group, schedule):
    return x.new_empty(x.shape)


# Gradients ---------------------------------------------------------------------------------------------------


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """For products: x, w, bias, activation, group, schedule."""
    x, w, _, activation, group, schedule = inputs
    if activation:
        raise BindingError("an activation inside the operator has no gradient", hint="tilelink.ops takes it outside")
    ctx.save_for_backward(x, w)
    ctx.group, ctx.way = group, UNFUSED if schedule == UNFUSED else ""


def _bias_gradient(ctx: Any, dy: Tensor) -> Tensor | None:
    return dy.sum(0) if ctx.needs_input_grad[2] else None


def _ag_gemm_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, w = ctx.saved_tensors
    dy = dy.contiguous()
    dx = gemm_rs(dy, w.t().contiguous(), None, "", ctx.group, ctx.way) if ctx.needs_input_grad[0] else None
    dw = dy.t() @ all_gather(x, ctx.group, ctx.way) if ctx.needs_input_grad[1] else None
    return dx, dw, _bias_gradient(ctx, dy), None, None, None


def _gemm_rs_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, w = ctx.saved_tensors
    dy, dx, dw = dy.contiguous(), None, None
    if ctx.needs_input_grad[0] and ctx.needs_input_grad[1]:
        dx, full = ag_gemm_gathered(dy, w.t().contiguous(), ctx.group, ctx.way)
        dw = full.t() @ x
    elif ctx.needs_input_grad[0]:
        dx = ag_gemm(dy, w.t().contiguous(), None, "", ctx.group, ctx.way)
    elif ctx.needs_input_grad[1]:
        dw = all_gather(dy, ctx.group, ctx.way).t() @ x
    return dx, dw, _bias_gradient(ctx, dy), None, None, None


def _gemm_ar_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, w = ctx.saved_tensors
    full = all_reduce(dy.contiguous(), ctx.group, ctx.way)
    dx = full @ w if ctx.needs_input_grad[0] else None
    dw = full.t() @ x if ctx.needs_input_grad[1] else None
    return dx, dw, _bias_gradient(ctx, dy), None, None, None


def _keep_operands(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """For products whose sums are f32: x, w, group, schedule."""
    x, w, ctx.group, schedule = inputs
    ctx.save_for_backward(x, w)
    ctx.way = UNFUSED if schedule == UNFUSED else ""


def _keep_group(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """For collectives: x, group, schedule."""
    _, ctx.group, schedule = inputs
    ctx.way = UNFUSED if schedule == UNFUSED else ""


ag_gemm.register_autograd(_ag_gemm_backward, setup_context=_keep)
gemm_rs.register_autograd(_gemm_rs_backward, setup_context=_keep)
gemm_ar.register_autograd(_gemm_ar_backward, setup_context=_keep)
for forward, plain in ((gemm_rs_f32, _gemm_rs_backward), (gemm_ar_f32, _gemm_ar_backward)):

    def _f32_backward(ctx: Any, dy: Tensor, plain: Any = plain) -> tuple[Any, ...]:
        return *plain(ctx, dy)[:2], None, None

    forward.register_autograd(_f32_backward, setup_context=_keep_operands)
for forward, reverse in ((all_gather, reduce_scatter), (reduce_scatter, all_gather), (all_reduce, all_reduce)):

    def _collective_backward(ctx: Any, dy: Tensor, reverse: Any = reverse) -> tuple[Any, None, None]:
        return reverse(dy.contiguous(), ctx.group, ctx.way), None, None

    forward.register_autograd(_collective_backward, setup_context=_keep_group)
