"""Conversions between element types as kernels make them."""

from __future__ import annotations

import torch

from tilelink.dtypes import DTYPES
from tilelink.errors import DtypeError
from tilelink.ir.program import COMPUTED, F8, INTEGERS

F8_NAN = 0x7F
"""The bits of NaN in both types of 8 bits, as processors write it."""


def named_dtype(dtype: str | torch.dtype) -> str:
    """Return the name of an element type in the language. Raises DtypeError if it has none."""
    names = [n for n, d in DTYPES.items() if dtype in (n, d)]
    if not names:
        raise DtypeError(f"no element type {dtype}", hint="one of " + ", ".join(DTYPES))
    return names[0]


def converted(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return a tensor as elements of a type of the language, rounded to nearest even.

    Types of 8 bits and integers saturate: a number that they do not hold becomes the nearest one that they hold. For
    integers, what is after the point is dropped first, and NaN becomes 0. Of integers, i32 and i64 keep the low bits.
    """
    kind = DTYPES[dtype]
    if tensor.dtype == kind:
        return tensor
    if dtype in F8:
        single, largest = tensor.float(), torch.finfo(kind).max
        rounded = single.clamp(-largest, largest).to(kind)
        bits = rounded.view(torch.uint8)
        return torch.where(single.isnan(), torch.full_like(bits, F8_NAN), bits).view(kind)
    if dtype in ("i8", "u8"):
        held = INTEGERS[dtype]
        return wide(tensor).nan_to_num(nan=0.0).clamp(held.start, held.stop - 1).to(kind)
    if dtype in ("i32", "i64") and tensor.is_floating_point():
        held, number = INTEGERS[dtype], tensor.double().nan_to_num(nan=0.0)
        beyond = number >= held.stop  # a double holds 2**63 - 1 as 2**63
        return torch.where(beyond, held.stop - 1, number.clamp(held.start).masked_fill(beyond, 0.0).to(kind))
    return tensor.to(kind)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a value: float64 for floating-point numbers, and integers of 32 bits at least."""
    if tensor.is_floating_point():
        return tensor.double()
    return tensor.int() if tensor.dtype in (torch.int8, torch.uint8) else tensor


def typed(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return a tensor converted to the dtype of a name, which can hold it; integers in an f32 are rounded to f32."""
    if dtype in INTEGERS:
        return tensor.to(DTYPES[COMPUTED.get(dtype, dtype)])
    return single(tensor)


def single(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as operand of f32 arithmetic: integers are rounded to f32."""
    return tensor if tensor.is_floating_point() else tensor.float().double()
