# pyright: basic
"""Compiled Triton functions with their arguments in place, launched without Triton's own look-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from triton import knobs
from triton.tools.tensor_descriptor import TensorDescriptor

from tilelink.runtime.cuda.spec import Argument, GpuKernel
from tilelink.runtime.job import Layout

Values = Callable[[str, str], Any]


def launcher(compiled: Any, programs: int) -> Callable[..., None]:
    """A function of (stream, *arguments) that launches a compiled kernel.

    It calls Triton's own launcher directly, without the look-up of its caller's stream and of hooks, which costs more
    than the launch; profilers that set hooks before a program is compiled get the longer way.
    """
    compiled._init_handles()
    if _hooked(knobs.runtime.launch_enter_hook) or _hooked(knobs.runtime.launch_exit_hook):
        run = compiled[(programs, 1, 1)]
        return lambda stream, *arguments: run(*arguments, stream=stream)
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    return lambda stream, *arguments: run(programs, 1, 1, stream, function, metadata, None, None, None, *arguments)


def _hooked(hook: Any) -> bool:
    """Whether a profiler listens: newer Tritons have a chain of hooks, which may be empty."""
    return hook is not None and bool(getattr(hook, "calls", True))


class Boundary:
    """A boundary kernel of one program, all of whose arguments are fixed."""

    def __init__(self, function: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        compiled = function.warmup(*arguments, **options, grid=(1,), num_warps=4)
        self._run = launcher(compiled, 1)
        self._arguments = (*arguments, *(options[n] for n in function.arg_names[len(arguments) :]))

    def __call__(self, stream: int) -> None:
        self._run(stream, *self._arguments)


class Function:
    """A generated kernel. What changes from launch to launch are the tensors that a caller passes."""

    def __init__(
        self, kernel: GpuKernel, function: Any, fixed: Mapping[str, Any], value: Values, layout: Layout
    ) -> None:
        """fixed: values by kind; value(kind, name): the others, None for what the caller passes."""
        own = {**fixed, "first_program": 0, "num_programs": kernel.programs}
        self._arguments: list[Any] = []
        self._changing: list[tuple[int, Argument]] = []
        self._kinds = [argument.kind for argument in kernel.args]
        for position, argument in enumerate(kernel.args):
            given = own[argument.kind] if argument.kind in own else value(argument.kind, argument.name)
            if argument.kind not in own and given is None:
                self._changing.append((position, argument))
                tensor = layout.tensor(argument.name)
                given = torch.empty(tensor.shape, dtype=tensor.torch_dtype, device="cuda")
            self._arguments.append(descriptor(given, argument.block) if argument.kind == "descriptor" else given)
        grid = (kernel.programs, 1, 1)
        compiled = function.warmup(*self._arguments, grid=grid, num_warps=kernel.warps, num_stages=kernel.stages)
        self._run = launcher(compiled, kernel.programs)
        self.compiled = compiled
        for position, _ in self._changing:
            self._arguments[position] = None
        self._descriptors: dict[int, tuple[int, Any]] = {}

    def __call__(
        self, stream: int, tensors: Mapping[str, torch.Tensor], instead: Mapping[str, Any] | None = None
    ) -> None:
        """Launches it; instead: other values for kinds of parameters."""
        arguments = list(self._arguments)
        for position, argument in self._changing:
            tensor = tensors[argument.name]
            is_descriptor = argument.kind == "descriptor"
            arguments[position] = self._described(position, tensor, argument.block) if is_descriptor else tensor
        if instead:
            arguments = [instead.get(kind, a) for kind, a in zip(self._kinds, arguments, strict=True)]
        self._run(stream, *arguments)

    def _described(self, position: int, tensor: torch.Tensor, block: tuple[int, ...]) -> Any:
        """The descriptor of a tensor; that of the last launch if it begins at the same address."""
        address = tensor.data_ptr()
        known = self._descriptors.get(position)
        if known is None or known[0] != address:
            known = self._descriptors[position] = (address, descriptor(tensor, block))
        return known[1]


class _Address:
    """Stands for a tensor in a descriptor without keeping it alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self._address = tensor.data_ptr()

    def data_ptr(self) -> int:
        return self._address


def descriptor(tensor: torch.Tensor, block: tuple[int, ...]) -> Any:
    """The tensor as rows of its last dimension, in blocks of rows and columns."""
    columns = tensor.shape[-1]
    return TensorDescriptor(_Address(tensor), [tensor.numel() // columns, columns], [columns, 1], list(block))
