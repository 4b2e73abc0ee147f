# pyright: basic
"""Check that a device has room for the tensors of a call, before anything is allocated for it."""

from __future__ import annotations

import os
from math import prod

import torch

from tilelink.dtypes import DTYPES
from tilelink.errors import BindingError
from tilelink.ir.solve import extent
from tilelink.ops.partial_inputs import PartialInputs
from tilelink.ops.specialization import Specialization


def check_device_memory(form: Specialization, ranks: int, device: torch.device, given: PartialInputs) -> None:
    """Raise BindingError if a device has less memory than one of each tensor of a program takes."""
    memory = _memory(device)
    sizes: dict[str, int] = {}
    for one in form.program.tensors:
        shape = [extent(size, form.dims, ranks) for size in one.shape]
        sizes[one.name] = prod(shape) * DTYPES[one.dtype or form.dtype].itemsize
    if sum(sizes.values()) <= memory:
        return
    largest = max(sizes, key=sizes.__getitem__)
    bounds = [f"{part.size}={form.dims[part.size]}" for part in given.inputs if part.size in form.dims]
    message = f"{form.program.name} with {', '.join(dict.fromkeys(bounds))} takes {_gigabytes(sum(sizes.values()))}"
    message += f", of which {largest} {_gigabytes(sizes[largest])}, and {device} has {_gigabytes(memory)}"
    hint = "fix the largest number of rows that calls give: a kernel takes tensors of that size"
    raise BindingError(message, location=form.program.tensor(largest).location, hint=hint)


def _memory(device: torch.device) -> int:
    """Return the bytes of memory of a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
