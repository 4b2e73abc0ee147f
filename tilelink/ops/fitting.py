"""Whether an operator's tensors and activation fit each other, which is checked before anything is sent."""

from __future__ import annotations

import torch

from tilelink.errors import DtypeError, ShapeError, UnknownNameError
from tilelink.ops.unfused import ACTIVATIONS


def check_follows(op: str, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, activation: str) -> None:
    """Raises UnknownNameError, DtypeError or ShapeError for what cannot follow a product of x and w."""
    check_activation(activation)
    if bias is not None:
        check_kind(op, "bias", bias, x)
        check_shape(op, "bias", bias, list(w.shape[:1]))


def check_activation(activation: str) -> None:
    if activation and activation not in ACTIVATIONS:
        raise UnknownNameError(f"no activation {activation!r}", hint=f"there are {', '.join(ACTIVATIONS)}")


def check_kind(op: str, name: str, tensor: torch.Tensor, x: torch.Tensor) -> None:
    if tensor.dtype != x.dtype or tensor.device != x.device:
        message = f"{name} of {op} is {tensor.dtype} on {tensor.device}, x {x.dtype} on {x.device}"
        raise DtypeError(message, hint="operands have one dtype and lie on one device")


def check_shape(op: str, name: str, tensor: torch.Tensor, fitting: list[int]) -> None:
    if list(tensor.shape) != fitting:
        raise ShapeError(f"{name} of {op} is {list(tensor.shape)}", hint=f"beside the others it is {fitting}")
