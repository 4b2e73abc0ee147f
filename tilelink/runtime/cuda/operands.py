# pyright: basic
"""The tensors that a caller passes to a kernel, and the key of a launch with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tilelink.errors import BindingError
from tilelink.runtime.job import TensorLayout

Tensors = Mapping[str, torch.Tensor]
ALIGNED = 16
"""Bytes: where descriptors and vectors of a kernel begin."""


def checked(
    given: Tensors, wanted: Sequence[TensorLayout], device: torch.device, complete: bool = True
) -> dict[str, torch.Tensor]:
    """The given tensors as a kernel takes them: contiguous and aligned, inputs by a copy where they are not.

    complete: all that are wanted must be there. Raises BindingError for tensors that do not fit.
    """
    result: dict[str, torch.Tensor] = {}
    for tensor in wanted:
        value = given.get(tensor.name)
        if value is None:
            if complete:
                raise BindingError(f"there is no tensor {tensor.name!r}")
            continue
        if value.shape != tensor.shape or value.dtype != tensor.torch_dtype or value.device != device:
            got = f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device}"
            hint = f"it takes {list(tensor.shape)} {tensor.dtype} on {device}"
            raise BindingError(f"tensor {tensor.name!r} is {got}", hint=hint)
        if not value.is_contiguous() or value.data_ptr() % ALIGNED:
            if tensor.space == "out":
                raise BindingError(f"output {tensor.name!r} is not contiguous and aligned to {ALIGNED} bytes")
            value = value.clone(memory_format=torch.contiguous_format)
        result[tensor.name] = value
    if len(result) < len(given) and (unknown := sorted(given.keys() - result.keys())):
        hint = f"there are {', '.join(t.name for t in wanted)}"
        raise BindingError(f"there is no tensor {unknown[0]!r}", hint=hint)
    return result


def allocated(wanted: Sequence[TensorLayout], device: torch.device) -> dict[str, torch.Tensor]:
    """New tensors."""
    return {t.name: torch.empty(t.shape, dtype=t.torch_dtype, device=device) for t in wanted}
