"""Element types of tensors, and the values that fill uninitialised memory."""

from __future__ import annotations

from typing import Any

import torch

from tilelink.artifact import TensorSpec

TORCH_DTYPES: dict[str, torch.dtype] = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
"""Element types by their names in programs and artifacts."""


def dtype_of(tensor: TensorSpec) -> torch.dtype:
    """Return the element type of a tensor."""
    return TORCH_DTYPES[tensor.dtype]


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
