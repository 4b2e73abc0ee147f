# pyright: basic
"""Inputs of which a call gives a part: as many rows as its tensors have, up to the size that a kernel is compiled for.

    program rows(M, N, K):
        m : in  [] <= M
        x : in  [M[: m], K]
        w : in  [N, K]
        y : out [M[: m], N]

`op(program, M=8192)` has one kernel for any number of rows up to 8192. Its calls take x of so many rows. They take `m`
from x, from an integer of the host, or from a tensor on the GPU. torch.compile traces all of this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilelink.errors import BindingError, ShapeError
from tilelink.ir.program import Program
from tilelink.ir.scalar import Lookup, Param

WORDS_APART = 4
"""Integers from one entry of a table of integers to the next: kernels take tensors that are aligned to 16 bytes."""


@dataclass(frozen=True, kw_only=True)
class PartialDim:
    """A dimension of a tensor of which a launch has the first elements.

    size: the parameter that is its size. count: the input that says how many there are.
    """

    tensor: str
    dim: int
    size: str
    count: str


class PartialInputs:
    """The parts of inputs that calls of a program give, and of outputs that they define."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.inputs, self.outputs = _parts(program, "in"), _parts(program, "out")
        self.counts = tuple(dict.fromkeys(part.count for part in self.inputs))
        """Inputs that calls may leave out, or give as integers."""
        self._tables: dict[tuple[torch.device, int], torch.Tensor] = {}
        self._integers: dict[tuple[torch.device, int], torch.Tensor] = {}
        """(device, integer) -> its tensor."""

    def whole(self, values: Mapping[str, Any], *, direct: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a call for the kernel that is compiled for the largest size, and its counts that the host knows.

        direct: True if no other part of torch sees the call, so that an input may stand for the memory after it.
        Inputs with fewer elements stay where they are if that memory has all that the kernel takes; others are copied.
        Raises ShapeError for inputs that disagree, or are larger, and BindingError for a count that does not fit.
        """
        made = dict(values)
        counts: dict[str, Any] = {}
        most: dict[str, int] = {}
        for part in self.inputs:
            tensor, size = values[part.tensor], values.get(part.size)
            if size is None or tensor.dim() <= part.dim:
                continue  # the largest size is that of the tensor, as it is without parts
            rows = tensor.shape[part.dim]
            most[part.count] = min(rows, size, most.get(part.count, size))
            if rows > size:
                message = f"{part.tensor} of {self._program.name} is {list(tensor.shape)}, and {size} is the most"
                raise ShapeError(message, hint=f"dimension {part.dim} is one of 0 to {size}")
            if values.get(part.count) is None and counts.setdefault(part.count, rows) != rows:
                message = f"{part.tensor} has {rows} elements along dimension {part.dim}, others {counts[part.count]}"
                raise ShapeError(message, hint=f"give {part.count}, and tensors that have as many or more")
            if rows < size:
                made[part.tensor] = extended(made[part.tensor], part.dim, size, direct=direct)
        for name in self.counts:
            number = values.get(name)
            if isinstance(number, torch.Tensor):
                continue
            number = counts.get(name) if number is None else number
            if number is None:
                size = next(part.size for part in self.inputs if part.count == name)
                hint = f"or the largest size: tilelink.op({self._program.name}, {size}=8192)"
                raise BindingError(f"{self._program.name} is not given {name}", hint=hint)
            if name in most and isinstance(number, int) and not 0 <= number <= most[name]:
                hint = f"it is one of 0 to {most[name]}"
                raise BindingError(f"{name} of {self._program.name} is {number}", hint=hint)
            counts[name] = number
            if direct and name in most:
                made[name] = self.scalar(number, most[name], _device(values))
            else:
                made[name] = torch.full((), number, dtype=torch.int32, device=_device(values))
        return made, counts

    def largest(self, values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of a call as the kernel for the largest size takes them."""
        shapes = {
            name: list(value.shape)
            for name, value in values.items()
            if isinstance(value, torch.Tensor) and name not in self.counts
        }
        for part in self.inputs:
            size, shape = values.get(part.size), shapes.get(part.tensor, [])
            if size is not None and part.dim < len(shape):
                shape[part.dim] = size
        return {name: tuple(shape) for name, shape in shapes.items()}

    def cut(self, outputs: Mapping[str, torch.Tensor], counts: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the parts of outputs that are defined, as far as the host knows them."""
        made = dict(outputs)
        for part in self.outputs:
            if part.count in counts and made.get(part.tensor) is not None:
                made[part.tensor] = made[part.tensor].narrow(part.dim, 0, counts[part.count])
        return made

    def into(self, out: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return given outputs as the kernel writes them. Raises BindingError for one without room for all of it."""
        made = dict(out)
        for part in self.outputs:
            tensor, size = made[part.tensor], values.get(part.size)
            if size is not None and tensor.dim() > part.dim and tensor.shape[part.dim] < size:
                if not _has_room(tensor, part.dim, size):
                    hint = f"a part of a tensor with {size} elements along dimension {part.dim}, or none"
                    raise BindingError(f"out {part.tensor} has no room for all that a kernel may write", hint=hint)
                made[part.tensor] = extended(tensor, part.dim, size)
        return made

    def scalar(self, number: int, most: int, device: torch.device) -> torch.Tensor:
        """Return an integer of the host as a tensor, from a table of all integers: a launch copies none to the GPU."""
        known = self._integers.get((device, number))
        if known is None:
            if (device, most) not in self._tables:
                if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                    return torch.full((), number, dtype=torch.int32, device=device)  # of the graph, which fills it
                every = torch.arange(most + 1, dtype=torch.int32, device=device)
                self._tables[device, most] = every[:, None].repeat(1, WORDS_APART)
            known = self._integers[device, number] = self._tables[device, most][number, 0]
        return known


class Shortcut:
    """Calls by place alone that repeat an earlier one with another number of rows: what a launch of them takes.

    It serves operators with fixed sizes whose inputs are given, and outputs defined, in part along their first
    dimension. All others, and all that does not fit, is left to `PartialInputs`, which checks it.
    """

    def __init__(self, given: PartialInputs, inputs: Sequence[str], fixed: Mapping[str, Any]) -> None:
        """inputs: in the order of a call, the counts last."""
        parts = (*given.inputs, *given.outputs)
        self.works = bool(given.counts) and all(p.dim == 0 and type(fixed.get(p.size)) is int for p in parts)
        self._partial, self._inputs = given, tuple(inputs)
        if self.works:
            place, size = self._inputs.index, {part.count: fixed[part.size] for part in given.inputs}
            self._parts = tuple((place(p.tensor), fixed[p.size], p.count) for p in given.inputs)
            self._counts = tuple((place(name), size[name], name) for name in given.counts)
            self._cut = tuple((p.tensor, p.count) for p in given.outputs)

    def whole(self, tensors: Sequence[Any]) -> tuple[list[torch.Tensor | None], dict[str, int]] | None:
        """Return the tensors of a launch, in the order of inputs, and the counts that the host knows, or None."""
        made = [*tensors, *[None] * (len(self._inputs) - len(tensors))]
        counts: dict[str, int] = {}
        given: dict[str, int] = {}
        for place, size, count in self._parts:
            tensor = made[place]
            if not isinstance(tensor, torch.Tensor) or not tensor.dim():
                return None
            shape = tensor.shape
            rows = shape[0]
            if counts.setdefault(count, rows) != rows:
                return None
            given[count] = rows
            if rows != size:
                if not 1 < rows < size or not tensor.is_contiguous():
                    return None
                strides = tensor.stride()
                last = (tensor.storage_offset() + size * strides[0]) * tensor.element_size()
                if last > tensor.untyped_storage().nbytes():
                    return None
                made[place] = tensor.as_strided((size, *shape[1:]), strides)
        for place, size, count in self._counts:
            number = made[place]
            if number is None:
                number = counts[count]
            elif type(number) is int and 0 <= number <= min(size, given.get(count, size)):
                counts[count] = number
            elif isinstance(number, torch.Tensor):
                del counts[count]
                continue
            else:
                return None
            made[place] = self._partial.scalar(number, size, made[self._parts[0][0]].device)
        return None if int in map(type, made) else (made, counts)

    def cut(self, made: dict[str, torch.Tensor], counts: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Return the outputs of a launch, as far as they are defined where the host knows it."""
        for name, count in self._cut:
            if count in counts:
                made[name] = made[name][: counts[count]]
        return made


def _parts(program: Program, space: str) -> tuple[PartialDim, ...]:
    """Return the dimensions of tensors that end at an input of one integer."""
    found: list[PartialDim] = []
    for tensor in program.tensors:
        for dim, (size, end) in enumerate(zip(tensor.shape, tensor.defined, strict=False)):
            if tensor.space == space and isinstance(end, Lookup) and not end.coords and isinstance(size, Param):
                found.append(PartialDim(tensor=tensor.name, dim=dim, size=size.name, count=end.table))
    given = {one.name for one in program.tensors if one.space == "in"}
    return tuple(part for part in found if part.count in given)


def _device(values: Mapping[str, Any]) -> torch.device:
    return next(value.device for value in values.values() if isinstance(value, torch.Tensor))


def _strides(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return strides


def _has_room(tensor: torch.Tensor, dim: int, size: int) -> bool:
    """True if there is memory after a tensor for one with more elements along its first dimension."""
    if not tensor.is_contiguous() or any(n != 1 for n in tensor.shape[:dim]):
        return False
    shape = [*tensor.shape[:dim], size, *tensor.shape[dim + 1 :]]
    elements = tensor.storage_offset() + torch.Size(shape).numel()
    return elements * tensor.element_size() <= tensor.untyped_storage().nbytes()


def extended(tensor: torch.Tensor, dim: int, size: int, *, direct: bool = True) -> torch.Tensor:
    """Return a tensor with more elements along a dimension, of any value: the memory after it, or a copy.

    direct: as of `PartialInputs.whole`.
    """
    shape = [*tensor.shape[:dim], size, *tensor.shape[dim + 1 :]]
    if not direct:
        after = [0, 0] * (tensor.dim() - dim - 1)
        return torch.nn.functional.pad(tensor, [*after, 0, size - tensor.shape[dim]])
    if _has_room(tensor, dim, size):
        return tensor.as_strided(shape, _strides(shape))
    larger = tensor.new_empty(shape)
    larger.narrow(dim, 0, tensor.shape[dim]).copy_(tensor)
    return larger
