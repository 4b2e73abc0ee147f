# pyright: basic
"""A program that is kept on a GPU rank between launches: its tensors that the host reads and resets, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from tilelink.artifact import Artifact
from tilelink.errors import BindingError
from tilelink.runtime.cuda.handles import Handles


class KeepingKernel:
    """A compiled program whose kept tensors the host reads and resets. Subclasses launch it, and set these members.

    captured: True once a launch was captured into a CUDA graph, which may be replayed at any time.
    """

    artifact: Artifact
    device: torch.device
    captured = False
    _handles: Handles
    _group: dist.ProcessGroup
    _memory: Any

    def close(self) -> None:
        """Free what the driver made for the kernel.

        Afterwards it cannot be launched, and no graph that holds it may be replayed. It waits for this rank's launches.
        All ranks close a kernel when no rank launches it any more.
        """
        if not self._handles.closed:
            torch.cuda.synchronize(self.device)
            self._handles.close()

    def _check_open(self) -> None:
        """Raise BindingError if the kernel is closed."""
        if self._handles.closed:
            hint = "compile it again; tilelink.ops.clear() closes the kernels of operators"
            raise BindingError(f"the kernel of {self.artifact.program} is closed", hint=hint)

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of the tensors that are kept between launches, as all launches so far leave them.

        It waits for these launches. Collective if peers reach such a tensor: then for those of all ranks. Raise
        BindingError while a launch is captured.
        """
        self._meet()
        found = {name: tensor.clone() for name, tensor in self._kept().items()}
        self._meet()
        return found

    def reset_state(self) -> None:
        """Fill the tensors that are kept between launches with zeros. It waits as `state` does, and raises the same."""
        self._refill({})

    def _refill(self, values: Mapping[str, torch.Tensor]) -> None:
        """Fill the kept tensors with values, those without one with zeros."""
        self._meet()
        for name, tensor in self._kept().items():
            tensor.copy_(values[name]) if name in values else tensor.zero_()
        self._meet()

    def _kept(self) -> dict[str, torch.Tensor]:
        own, rank = self._memory.own, self._memory.rank
        return {t.name: own[t.name][0] for t in self.artifact.tensors if t.space == "kept" and t.on(rank)}

    def _meet(self) -> None:
        """Wait for all launches so far, and for those of all ranks if peers reach a kept tensor."""
        self._check_open()
        if torch.cuda.is_current_stream_capturing():
            hint = "read or reset it between launches: a graph replays launches alone"
            raise BindingError("what is kept between launches, while a launch is captured", hint=hint)
        torch.cuda.synchronize(self.device)
        if any(t.space == "kept" and t.symmetric for t in self.artifact.tensors):
            dist.barrier(self._group, device_ids=[self.device.index])
