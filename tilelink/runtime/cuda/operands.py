# pyright: basic
"""The tensors that a caller passes to a kernel, or that are made for it: every launch looks at them, so it is quick."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import torch

from tilelink.errors import BindingError
from tilelink.runtime.job import TensorLayout

Tensors = Mapping[str, torch.Tensor]
ALIGNED = 16
"""Bytes: where descriptors and vectors of a kernel begin."""


class Operands:
    """Inputs or outputs of a kernel, as its program declares them."""

    def __init__(self, wanted: Sequence[TensorLayout], device: torch.device) -> None:
        self._device = device
        self._rows = [(t.name, torch.Size(t.shape), t.torch_dtype, t) for t in wanted]
        # To make one like another takes half as long as to make one of a shape; these have one element in memory.
        self._models = [
            (t.name, torch.empty((), dtype=t.torch_dtype, device=device).expand(t.shape)) for t in wanted
        ]  # fmt: skip

    def new(self, but: Container[str] = ()) -> dict[str, torch.Tensor]:
        """New tensors for all, but for some."""
        contiguous = torch.contiguous_format
        return {n: torch.empty_like(m, memory_format=contiguous) for n, m in self._models if n not in but}

    def checked(self, given: Tensors, complete: bool = True) -> dict[str, torch.Tensor]:
        """The given tensors as a kernel takes them: contiguous and aligned, inputs by a copy where they are not.

        complete: all must be there. Raises BindingError for tensors that do not fit.
        """
        result: dict[str, torch.Tensor] = {}
        device = self._device
        for name, shape, dtype, tensor in self._rows:
            value = given.get(name)
            if value is None:
                if complete:
                    raise BindingError(f"there is no tensor {name!r}")
                continue
            if value.shape != shape or value.dtype is not dtype or value.device != device:
                raise self._misfit(tensor, value)
            if value.data_ptr() % ALIGNED or not value.is_contiguous():
                value = _placed(tensor, value)
            result[name] = value
        if len(result) < len(given) and (unknown := sorted(given.keys() - result.keys())):
            hint = f"there are {', '.join(name for name, *_ in self._rows)}"
            raise BindingError(f"there is no tensor {unknown[0]!r}", hint=hint)
        return result

    def _misfit(self, tensor: TensorLayout, value: torch.Tensor) -> BindingError:
        got = f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device}"
        hint = f"it takes {list(tensor.shape)} {tensor.dtype} on {self._device}"
        return BindingError(f"tensor {tensor.name!r} is {got}", hint=hint)


def _placed(tensor: TensorLayout, value: torch.Tensor) -> torch.Tensor:
    """A copy of an input that is contiguous and aligned. Raises BindingError for an output."""
    if tensor.space == "out":
        raise BindingError(f"output {tensor.name!r} is not contiguous and aligned to {ALIGNED} bytes")
    return value.clone(memory_format=torch.contiguous_format)
