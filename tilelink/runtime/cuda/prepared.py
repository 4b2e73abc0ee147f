# pyright: reportMissingTypeStubs=false
"""Compilation of kernels into Triton's cache before ranks launch them, by a process that touches no GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from tilelink.artifact import (
    Artifact,
    Boxes,
    DebugBlockPointer,
    Descriptor,
    IntegersPointer,
    KernelSpec,
    Number,
    NumPrograms,
    Parameter,
    TensorPointer,
)
from tilelink.dtypes import DTYPES
from tilelink.generated import file_of, load_module
from tilelink.runtime.cuda.assembler import assembling
from tilelink.runtime.cuda.copy_stream import may_be_begun
from tilelink.runtime.cuda.functions import Argument, described
from tilelink.runtime.cuda.helper_kernels import await_outputs, close_launch, open_launch, skip_launches
from tilelink.runtime.cuda.keys import settled
from tilelink.runtime.cuda.offline import HelperOptions, helper_options, recorded
from tilelink.runtime.dtypes import dtype_of
from tilelink.target import Target

SOME = 16
"""Elements of a stand-in tensor: Triton asks only for its type and for the alignment of its address."""


class Absent:
    """Stand-in for Triton's driver of a GPU that this process does not touch."""

    def __init__(self, machine: Target) -> None:
        self._machine = machine

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(self._machine.kind, self._machine.architecture, self._machine.warp_size)


def compile_ahead(artifact: Artifact, machine: Target, deadlines: Collection[bool] = (False, True)) -> list[int]:
    """Compile all kernels that ranks launch for a program, including helper kernels, with and without a deadline.

    Return the bytes of shared memory of its own kernels. Only for processes that use no GPU afterwards: Triton's driver
    is replaced permanently. Raises what Triton raises, and BindingError for a stage that the copy engine does not
    support.
    """
    driver.set_active(Absent(machine))  # type: ignore[arg-type]
    different: list[HelperOptions] = []
    for rank in range(artifact.ranks):
        copies = recorded(artifact, rank)
        releases = artifact.protocol.releases_copies
        options = helper_options(artifact, copies, releases and may_be_begun(copies))
        different += [options] if options not in different else []
    shared: list[int] = []
    for deadline in deadlines:
        stand_ins = StandIns(artifact, deadline=deadline)
        shared += [compile_kernel(artifact, kernel, stand_ins.argument) for kernel in artifact.kernels]
        for options in different:
            _compile_helpers(options, stand_ins.debug_block)
    return shared


def placeholder(dtype: torch.dtype) -> torch.Tensor:
    """Return a stand-in for a tensor."""
    return torch.empty(SOME, dtype=dtype)


class StandIns:
    """Stand-ins for a rank's arguments (runtime/protocol.py), with the same types."""

    def __init__(self, artifact: Artifact, *, deadline: bool) -> None:
        """deadline: True if the waits of its kernels have one."""
        self._artifact = artifact
        self.debug_block = placeholder(torch.int64) if deadline else None

    def argument(self, kernel: KernelSpec, parameter: Parameter) -> Any:
        """Return the stand-in for the argument of a kernel."""
        match parameter:
            case NumPrograms():
                return kernel.programs
            case Number():
                return 0
            case DebugBlockPointer():
                return self.debug_block
            case IntegersPointer():
                return placeholder(DTYPES[parameter.element])
            case TensorPointer(tensor=name):
                return placeholder(dtype_of(self._artifact.tensor(name)))
            case Descriptor() | Boxes():
                tensor = self._artifact.tensor(parameter.tensor)
                buffers = tensor.buffers if tensor.symmetric else 1
                return described(placeholder(dtype_of(tensor))[:1].expand(buffers, *tensor.shape), parameter)


def compile_kernel(
    artifact: Artifact, kernel: KernelSpec, argument: Argument, linked: Mapping[str, Any] | None = None
) -> int:
    """Compile a kernel with arguments like those of a rank. Return its bytes of shared memory.

    linked: options of Triton with what it is linked with. Raises BindingError if ptxas fails.
    """
    arguments = [argument(kernel, parameter) for parameter in kernel.parameters]
    function = getattr(load_module(file_of(artifact.source)), kernel.name)
    options: dict[str, Any] = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, **(linked or {})}
    with assembling(kernel.name):
        compiled = settled(function).warmup(*arguments, grid=(1,), **options)
    return int(compiled.metadata.shared)


def _compile_helpers(options: HelperOptions, debug_block: torch.Tensor | None) -> None:
    """Compile the helper kernels, with arguments as `runtime.cuda.launch_driver` passes them."""
    common = (placeholder(torch.int32), placeholder(torch.int64), placeholder(torch.int64), debug_block)
    rows = [placeholder(torch.int32) for _ in range(4)]
    calls: list[tuple[Any, tuple[Any, ...], Any]] = [(open_launch, (*common, 0), options.opening)]
    if options.awaiting:
        calls.append((await_outputs, (common[0], common[2], debug_block, rows[0]), options.awaiting))
    closings = [options.closing, *([options.captured] if options.captured else [])]
    calls += [(close_launch, (*common, *rows, 0), one) for one in closings]
    calls += [(skip_launches, (*common, *rows[1:], 0), one) for one in options.skips]
    for function, arguments, constants in calls:
        settled(function).warmup(*arguments, **constants, grid=(1,), num_warps=4)
