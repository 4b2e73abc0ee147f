# pyright: basic
"""Validation of the tensors that a caller passes, and allocation of others. Every launch runs it, so it is fast."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, NoReturn

import torch

from tilelink.artifact import TensorSpec
from tilelink.errors import BindingError
from tilelink.runtime.dtypes import dtype_of

Tensors = Mapping[str, torch.Tensor]
ALIGNED = 16
"""Alignment in bytes that descriptors and vector accesses of a kernel need."""


class Operands:
    """Inputs or outputs of a kernel, as its program declares them."""

    def __init__(self, wanted: Sequence[TensorSpec], device: torch.device) -> None:
        self._device = device
        self._rows = [(t.name, torch.Size(t.shape), dtype_of(t), t) for t in wanted]
        # To make one like another takes half as long as to make one of a shape; these have one element in memory.
        self._models = [
            (t.name, torch.empty((), dtype=dtype_of(t), device=device).expand(t.shape)) for t in wanted
        ]  # fmt: skip

    def new(self, but: Container[str] = ()) -> dict[str, torch.Tensor]:
        """Return new tensors for all operands, except those in `but`."""
        contiguous = torch.contiguous_format
        return {n: torch.empty_like(m, memory_format=contiguous) for n, m in self._models if n not in but}

    def checked(self, given: Tensors, complete: bool = True) -> dict[str, torch.Tensor]:
        """Return the given tensors as a kernel takes them: contiguous and aligned. Inputs are copied if they are not.

        Inputs are returned without their gradients, which a kernel does not have. complete: True if all operands must
        be given. Raises BindingError for tensors that do not fit, and for an output that would need a gradient.
        """
        if type(given) is not dict and not isinstance(given, Mapping):
            hint = f"as {{name: tensor}}; there are {', '.join(name for name, *_ in self._rows)}"
            raise BindingError(f"tensors are passed by name, not as {type(given).__name__}", hint=hint)
        result: dict[str, torch.Tensor] = {}
        device = self._device
        for name, shape, dtype, tensor in self._rows:
            value = given.get(name)
            if value is None:
                if complete:
                    raise BindingError(f"there is no tensor {name!r}", hint=f"give it: {list(shape)} {dtype}")
                continue
            try:
                fits = value.shape == shape and value.dtype is dtype and value.device == device
                plain = fits and not (value.data_ptr() % ALIGNED or not value.is_contiguous() or value.requires_grad)
            except (AttributeError, RuntimeError):  # not a tensor, or a sparse or a fake one
                raise self._unusable(tensor, value) from None
            if not plain:
                value = _placed(tensor, value) if fits else self._refuse(tensor, value)
            result[name] = value
        if len(result) < len(given) and (unknown := sorted(given.keys() - result.keys())):
            hint = f"there are {', '.join(name for name, *_ in self._rows)}"
            raise BindingError(f"there is no tensor {unknown[0]!r}", hint=hint)
        return result

    def _refuse(self, tensor: TensorSpec, value: Any) -> NoReturn:
        """Raise BindingError for a value that is not a tensor of that shape and dtype on that device."""
        if not isinstance(value, torch.Tensor):
            raise self._unusable(tensor, value)
        got = f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device}"
        raise BindingError(f"tensor {tensor.name!r} is {got}", hint=self._takes(tensor))

    def _unusable(self, tensor: TensorSpec, value: Any) -> BindingError:
        what = f"is a {type(value).__name__}"
        if isinstance(value, torch.Tensor):
            layout = str(value.layout).removeprefix("torch.")
            what += f" ({layout}) without elements in memory, one after the other"
        return BindingError(f"tensor {tensor.name!r} {what}", hint=self._takes(tensor))

    def _takes(self, tensor: TensorSpec) -> str:
        return f"it takes {list(tensor.shape)} {tensor.dtype} on {self._device}"


def check_apart(outputs: Tensors, inputs: Tensors, own: torch.Tensor) -> None:
    """Raise BindingError for an output that shares memory with an input, another output, or the kernel's own buffers.

    outputs: among them the tensors that a launch reads and writes in place. Tiles of an output would be written before
    other tiles, or peers, have read the old values.
    """
    others = {"the buffers of the kernel": own, **{f"input {name!r}": tensor for name, tensor in inputs.items()}}
    if found := overlapping({f"output {name!r}": tensor for name, tensor in outputs.items()}, others):
        hint = "give it memory of its own; an output that is not given is a new tensor"
        raise BindingError(f"{found[0]} shares memory with {found[1]}", hint=hint)


def overlapping(results: Tensors, others: Tensors) -> tuple[str, str] | None:
    """Return a result that shares memory with another tensor or an earlier result, and that one; None if none does."""
    taken = {name: _extent(tensor) for name, tensor in others.items()}
    for name, tensor in results.items():
        first, last = _extent(tensor)
        for other, (begin, end) in taken.items():
            if first < end and begin < last:
                return name, other
        taken[name] = first, last
    return None


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first address of a tensor and the one after its last."""
    first, size = tensor.data_ptr(), tensor.nbytes
    if size and not tensor.is_contiguous():
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        size = (last + 1) * tensor.element_size()
    return first, first + size


def _placed(tensor: TensorSpec, value: torch.Tensor) -> torch.Tensor:
    """Return an input without its gradient, copied if it is not contiguous and aligned, or a result as it is.

    Raises BindingError for a result that is not contiguous and aligned, or whose gradient would be wrong.
    """
    unfit = bool(value.data_ptr() % ALIGNED) or not value.is_contiguous()
    if not tensor.is_result:
        value = value.detach()
        return value.clone(memory_format=torch.contiguous_format) if unfit else value
    if unfit:
        message = f"output {tensor.name!r} is not contiguous and aligned to {ALIGNED} bytes"
        raise BindingError(message, hint="kernels write into it: give a tensor with memory of its own, not a view")
    if value.requires_grad and torch.is_grad_enabled():
        hint = "pass `.detach()` of it, or call the kernel in torch.no_grad()"
        raise BindingError(f"output {tensor.name!r} requires a gradient, and kernels have none", hint=hint)
    return value
