# pyright: basic
"""Launches with the least work of the host: of programs that need nothing but kernels on the caller's stream.

What does not change from call to call is decided once: which parameters of which kernels have the address of which
tensor, and the sizes of outputs. A call checks only what may differ between tensors of the same shape and type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from tilelink.runtime.cuda.functions import Aimed, launch_prepared
from tilelink.runtime.cuda.kept import KeepingKernel
from tilelink.runtime.cuda.launch import UnsupportedLaunch
from tilelink.runtime.cuda.launch_driver import LaunchDriver
from tilelink.runtime.cuda.operands import ALIGNED
from tilelink.runtime.dtypes import dtype_of

_compiler: Any = torch._C
_empty: Any = getattr(_compiler._dynamo.guards, "_empty_strided_cuda", None)
"""The allocator of code that torch.compile generates: a third of the host time of torch.empty. Private, so optional."""

Sizes = tuple[int, ...]


class DirectLaunch:
    """Launches of a kernel by the places of its tensors: `made = launch((x, w))`.

    Tensors have as many elements as the program declares, and its types: the caller has checked that. The result is a
    list of new outputs, or None for a launch that this class does not make, of which nothing was done: for tensors that
    are not contiguous, aligned and on this rank's GPU, and where the stream or the GPU is another one than before.
    `GpuKernel.__call__` makes that launch, or says what is wrong with it.
    """

    def __init__(
        self, owner: KeepingKernel, driver: LaunchDriver, kernels: Sequence[Aimed], inputs: Mapping[str, int],
        outputs: Sequence[tuple[str, Sizes]], fixed: Mapping[str, torch.Tensor],
    ) -> None:  # fmt: skip
        """inputs: all inputs, with their places in calls. outputs: names of all outputs, with the shapes wanted.

        fixed: inputs that are the same in all launches, of kernels that nobody else launches.
        """
        self._owner, self._driver, self._handles = owner, driver, owner._handles
        self._device = owner.device.index
        self._kernels = [(one.launch, one.name) for one in kernels]

        def points(name: str) -> list[Callable[[int], None]]:
            return [one.targets[name].point for one in kernels if name in one.targets]

        self._inputs = [(place, points(name)) for name, place in inputs.items()]
        self._fixed = fixed
        for name, tensor in fixed.items():
            for point in points(name):
                point(tensor.data_ptr())
        self._outputs = [(_allocation(owner, name, shape), points(name)) for name, shape in outputs]

    def __call__(self, tensors: Sequence[Any]) -> list[torch.Tensor] | None:
        device = self._device
        if self._handles.closed or torch._C._cuda_getDevice() != device:
            return None
        stream = torch._C._cuda_getCurrentRawStream(device)
        capturing = torch.cuda.is_current_stream_capturing()
        if stream != self._driver.last_handle and not capturing:
            return None
        aims: list[tuple[int, list[Callable[[int], None]]]] = []
        for place, points in self._inputs:
            tensor = tensors[place]
            address = tensor.data_ptr()
            if address % ALIGNED or tensor.get_device() != device or not tensor.is_contiguous():
                return None
            aims.append((address, points))
        made: list[torch.Tensor] = []
        for allocate, points in self._outputs:
            made.append(tensor := allocate())
            aims.append((tensor.data_ptr(), points))
        try:
            for address, points in aims:
                for point in points:
                    point(address)
        except UnsupportedLaunch:
            return None
        if capturing:
            self._owner.captured = True
            self._driver.captures.follow(stream)
        for kernel, name in self._kernels:
            launch_prepared(kernel, stream, name)
        if capturing:
            self._driver.captures.done(stream)
        return made


def _allocation(owner: KeepingKernel, name: str, shape: Sizes) -> Callable[[], torch.Tensor]:
    """Return a function that returns a new contiguous tensor for an output."""
    dtype = dtype_of(owner.artifact.tensor(name))
    if _empty is not None and owner.device.type == "cuda":
        strides = torch.empty(shape, device="meta").stride()
        return partial(_empty, shape, strides, dtype)
    return partial(torch.empty, shape, dtype=dtype, device=owner.device)
