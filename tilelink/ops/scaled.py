"""Products of 8-bit floats with scales, as torch._scaled_mm has them, for operators that communicate next to them."""

from __future__ import annotations

from typing import Any

import torch

from tilelink.errors import BindingError, DtypeError, ShapeError
from tilelink.ops.custom import is_differentiated
from tilelink.ops.validate import check_activation, check_tensor

DTYPE = torch.float8_e4m3fn
"""Element type of both operands."""
RESULT = torch.bfloat16
"""Element type of products."""
ALIGNMENT = 16
"""Elements to which rows must be aligned for torch._scaled_mm."""


_multiply: Any = getattr(torch, "_scaled_mm")  # noqa: B009  (there is no public one in all versions)


def scales_of(
    op: str, x: torch.Tensor, w: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None,
    bias: torch.Tensor | None, activation: str | None, **others: object,
) -> tuple[torch.Tensor, torch.Tensor] | None:  # fmt: skip
    """Return the scales of a product, or None if it has none.

    Raises DtypeError, ShapeError or BindingError for operands that do not fit.
    bias, activation: what follows the product. others: options that products with scales do not have.
    """
    if scale_a is None or scale_b is None:
        try:  # each call comes here: others than tensors are looked for where something is wrong
            lacks = scale_a is not scale_b or DTYPE in (x.dtype, w.dtype)
        except AttributeError:
            _check_tensors(op, x=x, w=w)
            raise
        if lacks:
            hint = f"products of {DTYPE} take scale_a of x and scale_b of w, as torch._scaled_mm does"
            raise BindingError(f"{op} of {x.dtype} and {w.dtype} lacks a scale", hint=hint)
        return None
    _check_tensors(op, x=x, w=w, scale_a=scale_a, scale_b=scale_b)
    if is_differentiated((x, w, scale_a, scale_b)):
        raise BindingError(f"{op} with scales has no gradients", hint="call it in torch.no_grad()")
    for name, value in others.items():
        if value is not None and value is not False:
            raise BindingError(f"{op} with scales has no {name}", hint=f"leave {name} or the scales out")
    for name, tensor, dtype in (
        ("x", x, DTYPE), ("w", w, DTYPE), ("scale_a", scale_a, torch.float32), ("scale_b", scale_b, torch.float32),
        ("bias", bias, RESULT),
    ):  # fmt: skip
        if tensor is not None and (tensor.dtype != dtype or tensor.device != x.device):
            hint = f"with scales x and w are {DTYPE}, scales torch.float32, and a bias is {RESULT}, on one device"
            raise DtypeError(f"{name} of {op} is {tensor.dtype} on {tensor.device}", hint=hint)
    if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[1]:
        raise ShapeError(f"x and w of {op} are {list(x.shape)} and {list(w.shape)}", hint="they are [M, K] and [N, K]")
    if w.shape[0] % ALIGNMENT or w.shape[1] % ALIGNMENT:
        raise ShapeError(f"w of {op} is {list(w.shape)}", hint=f"N and K are multiples of {ALIGNMENT}")
    if bias is not None and bias.shape != w.shape[:1]:
        raise ShapeError(f"bias of {op} is {list(bias.shape)}", hint=f"it is {[w.shape[0]]}")
    check_activation(activation or "")
    rows, columns = [x.shape[0], 1], [1, w.shape[0]]
    if (list(scale_a.shape), list(scale_b.shape)) != (rows, columns) and (scale_a.numel(), scale_b.numel()) != (1, 1):
        message = f"scale_a and scale_b of {op} are {list(scale_a.shape)} and {list(scale_b.shape)}"
        raise ShapeError(message, hint=f"they are {rows} and {columns}, or both have one element")
    return scale_a, scale_b


def _check_tensors(op: str, **given: object) -> None:
    for name, one in given.items():
        check_tensor(op, name, one)


def product(x: torch.Tensor, w: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """Return (x * scale_a) (w * scale_b)^T [M, N] in bf16: x [M, K], w [N, K], scales as `scales_of` has them."""
    if not x.is_cuda:  # torch 2.11 multiplies there with one scale of each alone
        return ((x.float() * scale_a) @ (w.float().t() * scale_b)).to(RESULT)
    scales = {"scale_a": scale_a.contiguous(), "scale_b": scale_b.contiguous()}  # torch refuses expanded ones
    return _multiply(x.contiguous(), w.contiguous().t(), **scales, out_dtype=RESULT)


def of_rows(
    x: torch.Tensor, w: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return scales of all rows of x and w, [M, 1] and [1, N]: one for all of x may differ from rank to rank."""
    return scale_a.reshape(-1, 1).expand(len(x), 1).contiguous(), scale_b.reshape(1, -1).expand(1, len(w)).contiguous()
