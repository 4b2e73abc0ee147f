# pyright: basic
"""Compiled Triton functions with their arguments, ready to launch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any, Protocol

import torch
from triton import knobs
from triton.runtime import driver
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from tilelink.artifact import Artifact, Boxes, Described, Descriptor, KernelSpec, Parameter, TensorPointer
from tilelink.errors import BindingError, RankError
from tilelink.runtime.cuda.assembler import assembling
from tilelink.runtime.cuda.driver import library, with_context
from tilelink.runtime.cuda.keys import settled
from tilelink.runtime.cuda.launch import PreparedLaunch, Target, UnsupportedLaunch
from tilelink.runtime.cuda.report import check_all
from tilelink.runtime.dtypes import dtype_of

Argument = Callable[[KernelSpec, Parameter], Any]
"""Function that returns a kernel's argument for a parameter, or None if the caller passes it."""
Replacements = Mapping[type, torch.Tensor]
"""Replacement tensors for parameters, by their class."""


class Link(Protocol):
    """Requirements of a kernel that calls another library. options: Triton's, with the bitcode to link."""

    @property
    def options(self) -> Mapping[str, Any]: ...

    def loaded(self, compiled: Any) -> None:
        """Called with the kernel once it is on the GPU, before its first launch."""
        ...


_log = logging.getLogger("tilelink.runtime")


def launcher(compiled: Any, programs: int) -> Callable[..., None]:
    """Return a function of (stream, *arguments) that launches a compiled kernel by Triton's own launcher.

    It skips the look-up of the caller's stream and of hooks. If a profiler has set hooks before a program is compiled,
    the function takes the slower path that calls them.
    """
    if _hooked():
        run = compiled[(programs, 1, 1)]
        return lambda stream, *arguments: run(*arguments, stream=stream)
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    return lambda stream, *arguments: run(programs, 1, 1, stream, function, metadata, None, None, None, *arguments)


def _hooked() -> bool:
    """True if a profiler has hooks on launches. Newer Tritons have a chain of hooks, which may be empty."""
    hooks = (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)
    return any(hook is not None and bool(getattr(hook, "calls", True)) for hook in hooks)


class _Later:
    """Triton's launcher of a kernel, created on first use: Triton 3.6 runs a C compiler for each."""

    def __init__(self, make: Callable[..., Callable[..., None]], *arguments: Any) -> None:
        self._make = cache(lambda: make(*arguments))

    def __call__(self, *arguments: Any) -> None:
        self._make()(*arguments)


@contextmanager
def _launchers_later() -> Iterator[None]:
    """Make kernels that are loaded in this context create their launchers on first use."""
    active: Any = driver.active
    made = active.launcher_cls
    active.launcher_cls = partial(_Later, made)
    try:
        yield
    finally:
        active.launcher_cls = made


def _load(compiled: Any, name: str) -> None:
    """Load a compiled kernel onto the GPU. Raises BindingError if it needs more resources than an SM has."""
    try:
        with _launchers_later():
            compiled._init_handles()
    except OutOfResources as error:
        hint = "take smaller tiles, fewer stages, or `flatten` away"
        raise BindingError(f"kernel {name} does not fit the GPU: {error}", hint=hint) from None


def _prepared(compiled: Any, programs: int, arguments: Sequence[Any]) -> PreparedLaunch | None:
    """Return the kernel with its parameters, or None if they cannot be prepared."""
    if _hooked():
        return None
    try:
        return PreparedLaunch(library(), compiled, programs, arguments)
    except UnsupportedLaunch as reason:
        _log.debug("%s is launched by Triton: %s", compiled.metadata.name, reason)
        return None


def launch_prepared(kernel: PreparedLaunch, stream: int, name: str) -> None:
    """Launch a prepared kernel. Raises RankError if the driver fails."""
    if status := kernel(stream):
        status = with_context(library(), status, kernel, stream)
    if status:
        check_all()
        raise RankError(f"the CUDA driver did not launch {name}: error {status}", hint="see what failed before it")


class HelperKernel:
    """A helper kernel whose arguments are fixed, except for a tensor as its first one."""

    def __init__(
        self, function: Any, arguments: tuple[Any, ...], options: Mapping[str, Any], link: Link | None = None,
        programs: int = 1,
    ) -> None:  # fmt: skip
        linked = link.options if link else {}
        compiled = settled(function).warmup(*arguments, **options, **linked, grid=(programs,), num_warps=4)
        self._name = function.__name__
        _load(compiled, self._name)
        if link:
            link.loaded(compiled)
        self._run = launcher(compiled, programs)
        self._arguments = (*arguments, *(options[n] for n in function.arg_names[len(arguments) :]))
        self._prepared = _prepared(compiled, programs, self._arguments)
        self._first = self._prepared.target((0,)) if self._prepared is not None else None

    def __call__(self, stream: int, first: torch.Tensor | None = None) -> None:
        """Launch the kernel. first: a tensor in place of the first argument, aligned as that is."""
        if self._prepared is not None and self._first is not None:
            if first is not None:
                self._first.point(first.data_ptr())
            launch_prepared(self._prepared, stream, self._name)
        else:
            arguments = self._arguments if first is None else (first, *self._arguments[1:])
            self._run(stream, *arguments)


@dataclass(frozen=True)
class Aimed:
    """A kernel with its parameters, and those of them that are of the caller's tensors, by name."""

    launch: PreparedLaunch
    name: str
    targets: Mapping[str, Target]


class Function:
    """A generated kernel. Only the tensors that a caller passes change from launch to launch."""

    def __init__(
        self, kernel: KernelSpec, function: Any, argument: Argument, artifact: Artifact, link: Link | None = None
    ) -> None:
        """Compile the kernel. Raises BindingError if ptxas fails or it does not fit the GPU."""
        self._name, self._artifact = kernel.name, artifact
        self._arguments: list[Any] = []
        self._changing: list[tuple[int, TensorPointer | Described, str]] = []
        self._kinds = [type(parameter) for parameter in kernel.parameters]
        for position, parameter in enumerate(kernel.parameters):
            given = argument(kernel, parameter)
            if isinstance(parameter, TensorPointer | Described):
                if given is None:
                    self._changing.append((position, parameter, parameter.tensor))
                    given = self._some(parameter.tensor)
                given = described(given, parameter)
            self._arguments.append(given)
        grid = (kernel.grid, 1, 1)
        options: dict[str, Any] = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
        options |= link.options if link else {}
        with assembling(kernel.name):
            compiled = settled(function).warmup(*self._arguments, grid=grid, **options)
        _load(compiled, kernel.name)
        if link:
            link.loaded(compiled)
        self._run = launcher(compiled, kernel.grid)
        self._positions: dict[str, list[int]] = {}
        for position, _, name in self._changing:
            self._positions.setdefault(name, []).append(position)
        self._prepared = self._aimed(_prepared(compiled, kernel.grid, self._arguments))
        self._grid, self._others = kernel.grid, dict[tuple[Any, ...], Aimed | None]()
        self.compiled = compiled
        for position, _, _ in self._changing:
            self._arguments[position] = None

    def _some(self, name: str, shape: Sequence[int] | None = None) -> torch.Tensor:
        """Return a tensor as a caller passes it. shape: if it differs from that of the program."""
        tensor = self._artifact.tensor(name)
        return torch.empty(tensor.shape if shape is None else tuple(shape), dtype=dtype_of(tensor), device="cuda")

    def of_sizes(self, sizes: Mapping[str, Sequence[int]]) -> Aimed | None:
        """Return a launch of its own for tensors of a caller with other numbers of rows, where descriptors end then.

        sizes: their shapes by name. None where Triton, or hooks of a profiler, take part in launches.
        """
        tensors = {name: self._some(name, sizes.get(name)) for name in self._positions}
        return self._aimed(_prepared(self.compiled, self._grid, self._all(tensors, None)))

    def _aimed(self, kernel: PreparedLaunch | None) -> Aimed | None:
        if kernel is None:
            return None
        return Aimed(kernel, self._name, {name: kernel.target(at) for name, at in self._positions.items()})

    @property
    def prepared(self) -> Aimed | None:
        """The launch as a single driver call, or None where Triton, or hooks of a profiler, take part."""
        return self._prepared

    def __call__(self, stream: int, tensors: Mapping[str, torch.Tensor], instead: Replacements | None = None) -> None:
        """Launch the kernel. instead: replacements, from a small set that recurs.

        If the driver cannot describe a tensor that a caller passes, Triton performs this launch and all later ones.
        """
        kernel = self._prepared if instead is None else self._other(tensors, instead)
        if kernel is not None:
            try:
                for name, target in kernel.targets.items():
                    target.point(tensors[name].data_ptr())
            except UnsupportedLaunch as reason:
                _log.warning("%s is launched by Triton from now on, which takes longer: %s", self._name, reason)
                self._prepared = None
            else:
                launch_prepared(kernel.launch, stream, self._name)
                return
        self._run(stream, *self._all(tensors, instead))

    def _all(self, tensors: Mapping[str, torch.Tensor], instead: Replacements | None) -> list[Any]:
        arguments = list(self._arguments)
        for position, parameter, name in self._changing:
            arguments[position] = described(tensors[name], parameter)
        if instead:
            arguments = [instead.get(kind, a) for kind, a in zip(self._kinds, arguments, strict=True)]
        return arguments

    def _other(self, tensors: Mapping[str, torch.Tensor], instead: Replacements) -> Aimed | None:
        """Return the kernel with replaced arguments, or None if they cannot be prepared."""
        if self._prepared is None:
            return None
        key = tuple((kind, value.data_ptr()) for kind, value in instead.items())
        if key not in self._others:
            self._others[key] = self._aimed(_prepared(self.compiled, self._grid, self._all(tensors, instead)))
        return self._others[key]


class Address:
    """Stand-in for a contiguous tensor in a descriptor that does not keep the tensor alive.

    address: its address, if it differs from that of the tensor.
    """

    def __init__(self, tensor: torch.Tensor, address: int | None = None) -> None:
        self.dtype = tensor.dtype
        self.shape = tensor.shape
        self._address = tensor.data_ptr() if address is None else address

    def data_ptr(self) -> int:
        return self._address


def described(tensor: torch.Tensor | Address, parameter: TensorPointer | Described) -> Any:
    """Return a kernel's argument for a tensor: the tensor, or a descriptor as rows of its last dimension, in boxes."""
    if isinstance(parameter, TensorPointer):
        return tensor
    columns = tensor.shape[-1]
    shape, strides = [prod(tensor.shape) // columns, columns], [columns, 1]
    base = tensor if isinstance(tensor, Address) else Address(tensor)
    if isinstance(parameter, Descriptor):
        return TensorDescriptor(base, shape, strides, list(parameter.box))
    # only kernels in Gluon need these, and the import is slow
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    swizzle = parameter.swizzle if isinstance(parameter, Boxes) else 0
    layout = NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=8 * tensor.dtype.itemsize, rank=2)
    return GluonDescriptor(base, shape, strides, list(parameter.box), layout)
