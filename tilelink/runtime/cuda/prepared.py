# pyright: reportMissingTypeStubs=false
"""Kernels compiled into Triton's cache ahead of the ranks that launch them, by a process that touches no GPU."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from tilelink.generated import load_module
from tilelink.protocol import LaunchProtocol
from tilelink.runtime.cuda.copy_stream import may_be_begun
from tilelink.runtime.cuda.functions import described
from tilelink.runtime.cuda.helper_kernels import await_outputs, close_launch, open_launch, turn_launch
from tilelink.runtime.cuda.keys import settled
from tilelink.runtime.cuda.offline import HelperOptions, helper_options, recorded
from tilelink.runtime.cuda.spec import GpuKernel, GpuProgram
from tilelink.target import Target

SOME = 16
"""Elements of a tensor that stands for another one: Triton asks for its type, and whether its address is aligned."""


class _Absent:
    """Stands for Triton's driver of a GPU that this process does not touch."""

    def __init__(self, machine: Target) -> None:
        self._machine = machine

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(self._machine.kind, self._machine.architecture, self._machine.warp_size)


def compile_ahead(program: GpuProgram, machine: Target, deadlines: Collection[bool] = (False, True)) -> list[int]:
    """Compiles all that ranks launch of a program, its helper kernels included, as it is without and with a deadline.

    Returns the bytes of shared memory of its own kernels. Only for processes that use no GPU afterwards: Triton's
    driver is replaced for good. Raises what Triton raises, BindingError for what a copy engine cannot do.
    """
    driver.set_active(_Absent(machine))  # type: ignore[arg-type]
    different: list[HelperOptions] = []
    for rank in range(program.layout.ranks):
        found = recorded(program, rank)
        releases = program.protocol is LaunchProtocol.COUNTED_WITH_COPIES
        options = helper_options(program, found, releases and may_be_begun(found))
        different += [options] if options not in different else []
    shared: list[int] = []
    for deadline in deadlines:
        watch = _some(torch.int64) if deadline else None
        shared += [_compiled(program, one, watch) for one in program.kernels if not one.copy_engine]
        for options in different:
            _compile_helpers(options, watch)
    return shared


def _some(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(SOME, dtype=dtype)


def _compiled(program: GpuProgram, kernel: GpuKernel, watch: torch.Tensor | None) -> int:
    """Compiles a kernel with arguments as a rank has them; returns its bytes of shared memory."""
    numbers = {"watch": watch, "rank": 0, "first_program": 0, "num_programs": kernel.programs}
    types = {
        "signals": torch.int32, "signal_table": torch.int64, "epoch": torch.int64, "edge": torch.int64,
        "peers": torch.int64, "thresholds": torch.int32,
    }  # fmt: skip
    arguments: list[Any] = []
    for one in kernel.args:
        if one.kind in numbers:
            arguments.append(numbers[one.kind])
        elif one.kind in types:
            arguments.append(_some(types[one.kind]))
        else:
            tensor = program.layout.tensor(one.name)
            flat = _some(tensor.torch_dtype)
            whole = flat[:1].expand(tensor.slots if tensor.symmetric else 1, *tensor.shape)
            arguments.append(described(whole, one) if one.block else flat)
    function = getattr(load_module(program.source), kernel.name)
    compiled = settled(function).warmup(*arguments, grid=(1,), num_warps=kernel.warps, num_stages=kernel.stages)
    return int(compiled.metadata.shared)


def _compile_helpers(options: HelperOptions, watch: torch.Tensor | None) -> None:
    """Compiles what runs before and after the kernels, with arguments as `runtime.cuda.kernel` passes them."""
    common = (_some(torch.int32), _some(torch.int64), _some(torch.int64), watch)
    rows = [_some(torch.int32) for _ in range(4)]
    calls: list[tuple[Any, tuple[Any, ...], Any]] = [(open_launch, (*common, 0), options.opening)]
    if options.awaiting:
        calls.append((await_outputs, (common[0], common[2], watch, rows[0]), options.awaiting))
    closings = [options.closing, *([options.captured] if options.captured else [])]
    calls += [(close_launch, (*common, *rows, 0), one) for one in closings]
    calls += [(turn_launch, (*common, *rows[1:], 0), one) for one in options.turns]
    for function, arguments, constants in calls:
        settled(function).warmup(*arguments, **constants, grid=(1,), num_warps=4)
