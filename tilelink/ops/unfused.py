"""The operators as the collectives of torch.distributed and torch's own products, one after the other.

Every function takes the operator's tensors and a process group and returns a new tensor. Works on any device and
dtype that the group and torch support.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

# Newer torch renames both, and warns at each call by the old name.
gather_into: Any = getattr(dist, "all_gather_single", None) or getattr(dist, "all_gather_into_tensor")  # noqa: B009
_scatter: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, "reduce_scatter_tensor")  # noqa: B009

ACTIVATIONS = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}
"""gelu is the exact one."""


def follow(y: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    """Return y with the bias added and the activation applied."""
    y = y if bias is None else y + bias
    return ACTIVATIONS[activation](y) if activation else y


def all_gather(x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    y = x.new_empty((group.size() * x.shape[0], *x.shape[1:]))
    gather_into(y, x.contiguous(), group=group)
    return y


def reduce_scatter(x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    y = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
    _scatter(y, x.contiguous(), group=group)
    return y


def all_reduce(x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, group=group)
    return y


def all_reduce_residual(x: torch.Tensor, residual: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    return all_reduce(x, group).add_(residual)


def all_reduce_norm(
    x: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor, eps: float, group: ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    return add_norm(all_reduce(x, group), residual, norm, eps, group)


def ag_gemm(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, activation: str, group: ProcessGroup
) -> torch.Tensor:
    if bias is not None:
        return follow(torch.addmm(bias, all_gather(x, group), w.t()), None, activation)
    return follow(torch.mm(all_gather(x, group), w.t()), None, activation)


def ag_gemm_gated(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    full = all_gather(x, group)
    return torch.nn.functional.silu(torch.mm(full, w_gate.t())).mul_(torch.mm(full, w_up.t()))


def ag_gemm_gathered(x: torch.Tensor, w: torch.Tensor, group: ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
    full = all_gather(x, group)
    return torch.mm(full, w.t()), full


def gemm_rs(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, activation: str, group: ProcessGroup
) -> torch.Tensor:
    return follow(reduce_scatter(torch.mm(x, w.t()), group), bias, activation)


def gemm_ar(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, activation: str, group: ProcessGroup
) -> torch.Tensor:
    y = torch.mm(x, w.t())
    dist.all_reduce(y, group=group)
    return follow(y, bias, activation)


def gemm_ar_residual(x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    return gemm_ar(x, w, None, "", group).add_(residual)


def gemm_ar_norm(
    x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor, eps: float, group: ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    return add_norm(gemm_ar(x, w, None, "", group), residual, norm, eps, group)


def add_norm(
    x: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor, eps: float, group: ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the RMS norm of the sum of two tensors, and the sum. It needs nothing of the group."""
    y = x + residual
    return torch.nn.functional.rms_norm(y, norm.shape, norm, eps), y


def gemm_rs_f32(x: torch.Tensor, w: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    return reduce_scatter(_product_f32(x, w), group).to(x.dtype)


def gemm_ar_f32(x: torch.Tensor, w: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    y = _product_f32(x, w)
    dist.all_reduce(y, group=group)
    return y.to(x.dtype)


def _product_f32(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x w^T, not rounded to their dtype."""
    if x.is_cuda and x.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(x, w.t(), out_dtype=torch.float32)
    return torch.mm(x.float(), w.float().t())
