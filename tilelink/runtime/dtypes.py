"""Tensors of an artifact in torch: their element types, stand-ins for them, and what fills uninitialised memory."""

from __future__ import annotations

from typing import Any

import torch

from tilelink.artifact import TensorSpec
from tilelink.dtypes import DTYPES


def dtype_of(tensor: TensorSpec) -> torch.dtype:
    """Return the element type of a tensor."""
    return DTYPES[tensor.dtype]


def stand_in(tensor: TensorSpec, device: torch.device) -> torch.Tensor:
    """Return what kernels of a rank get for a tensor that it does not have and that they do not access there.

    It has the shape [buffers, *shape] and one element in memory: descriptors take the shape, and no kernel of a rank is
    compiled anew.
    """
    return torch.zeros((), dtype=dtype_of(tensor), device=device).expand(tensor.buffers, *tensor.shape)


def poison(tensor: torch.Tensor) -> None:
    """Fill a tensor with values that no kernel computes, so that premature reads become visible."""
    fill: Any = float("nan") if tensor.dtype.is_floating_point else True
    if not tensor.dtype.is_floating_point and tensor.dtype != torch.bool:
        limits = torch.iinfo(tensor.dtype)
        fill = limits.min or limits.max
    tensor.fill_(fill)
