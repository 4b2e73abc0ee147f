# pyright: basic
"""A GPU rank's kernel without a GPU: memory of the host in the place of the heap, and launches that are only noted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilelink.artifact import Artifact, KernelSpec
from tilelink.runtime.cuda import copies, copy_stream, driver, heap, kernel, launch_checks, launch_driver, queue
from tilelink.runtime.cuda.kernel import GpuKernel

CALLER = 1


class FakeGpu:
    """Builds kernels of any rank. issued: the names of generated and helper kernels, in order.

    stream: the caller's current one. capture: the number of the capture in which it is, 0 for none.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.issued: list[str] = []
        self.rank, self.ranks = 0, 1
        self.stream, self.capture = CALLER, 0
        library = self.library = FakeDriver()
        library.capture = lambda: self.capture
        patch.setattr(heap, "symmetric", SimpleNamespace(empty=_aligned, rendezvous=self._rendezvous))
        patch.setattr(heap.dist, "barrier", lambda *_, **__: None)
        patch.setattr(torch.cuda, "synchronize", lambda *_: None)
        patch.setattr(torch.cuda, "device", lambda _: nullcontext())
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capture != 0)
        patch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=self.stream))
        patch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda _: None))
        patch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: self.stream, raising=False)
        patch.setattr(kernel.dist, "get_rank", lambda _: self.rank)
        patch.setattr(kernel, "gpu_of", lambda _: torch.device("cpu"))
        patch.setattr(kernel, "agree", lambda *_: None)
        patch.setattr(copies, "of_all", lambda own, *_: [own] * self.ranks)
        for module in (kernel, queue):
            patch.setattr(module, "library", lambda: library)
        patch.setattr(queue, "driver", lambda: driver.Driver(library))
        for module in (copy_stream, kernel):
            patch.setattr(module, "Graphs", lambda _: SimpleNamespace(captured=lambda *_: None))
        patch.setattr(launch_driver, "Sides", lambda *_: SimpleNamespace(fork=lambda _: None, join=lambda _: None))
        patch.setattr(launch_driver, "Function", self._function)
        for module in (launch_checks, launch_driver):
            patch.setattr(module, "HelperKernel", self._helper)

    def built(self, artifact: Artifact, rank: int) -> Any:
        """The kernel of a rank."""
        self.rank, self.ranks = rank, artifact.ranks
        group: Any = None
        return GpuKernel(artifact, group)

    def _rendezvous(self, memory: torch.Tensor, group: object) -> Any:
        bases = [memory.data_ptr() + (one - self.rank) * 2**40 for one in range(self.ranks)]
        return SimpleNamespace(buffer_ptrs=bases)

    def _function(self, spec: KernelSpec, function: Any, argument: Any, artifact: Artifact) -> Any:
        for parameter in spec.parameters:
            argument(spec, parameter)

        def launch(stream: int, tensors: Any, instead: Any = None) -> None:
            self.issued.append(spec.name)

        launch.prepared = None  # type: ignore[attr-defined]
        return launch

    def _helper(self, function: Any, arguments: Any, options: Any) -> Any:
        return lambda stream: self.issued.append(function.__name__)


class FakeDriver:
    """The driver, which does nothing. Handles are numbers; created, destroyed: all of them.

    ordered: the events that were recorded and waited for, as "FUNCTION STREAM EVENT". capture: the number of the
    capture of all streams.
    """

    def __init__(self) -> None:
        self.ordered: list[str] = []
        self.capture: Callable[[], int] = lambda: 0
        self.created: list[int] = []
        self.destroyed: list[int] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name in ("cuEventCreate", "cuStreamCreateWithPriority"):
                self.created.append(CALLER + 1 + len(self.created))
                arguments[0]._obj.value = self.created[-1]
            if name == "cuEventRecord":
                self.ordered.append(f"{name} {arguments[1]} {arguments[0]}")
            if name == "cuStreamWaitEvent":
                self.ordered.append(f"{name} {arguments[0]} {arguments[1]}")
            if name == "cuStreamGetCaptureInfo_v2":
                arguments[2]._obj.value = self.capture()
            if name in ("cuEventDestroy_v2", "cuStreamDestroy_v2", "cuGraphExecDestroy"):
                self.destroyed.append(arguments[0])
            return 0

        setattr(self, name, call)
        return call


def _aligned(size: int, dtype: torch.dtype, device: object) -> torch.Tensor:
    memory = torch.empty(size + 1024, dtype=dtype)
    return memory[-memory.data_ptr() % 1024 :][:size]
