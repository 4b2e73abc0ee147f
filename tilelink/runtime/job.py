"""What a run on CPU ranks is given and gives back: plain values that cross to a process of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tilelink.device.monitor import Event
from tilelink.device.spans import Span

TORCH_DTYPES: dict[str, torch.dtype] = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "i32": torch.int32,
    "bool": torch.bool,
}
"""Element types by the names that programs have for them."""

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class TensorLayout:
    """A tensor of every rank: `slots` buffers of `shape` elements behind one another. `number` is its trace number."""

    name: str
    number: int
    space: str
    symmetric: bool
    shape: tuple[int, ...]
    dtype: str
    slots: int

    @property
    def torch_dtype(self) -> torch.dtype:
        return TORCH_DTYPES[self.dtype]

    @property
    def is_input(self) -> bool:
        return self.space in ("in", "table")

    def slot(self, epoch: int) -> int:
        """The buffer that launch `epoch` uses."""
        return (epoch - 1) % self.slots


@dataclass(frozen=True, kw_only=True)
class GridLayout:
    """The counters of one (tensor, signal kind): pad[base + slot * count + linear].

    thresholds: notifies that reach each of them in one launch, int [ranks, count].
    """

    tensor: str
    kind: str
    base: int
    counts: tuple[int, ...]
    slots: int
    thresholds: NDArray[np.int64]

    @property
    def count(self) -> int:
        return prod(self.counts)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The memory of all ranks: tensors, and a signal pad of `pad_size` int32 counters.

    pulls: the numbers of the stages that fetch, so that traces name the source of a copy that stays on its rank.
    """

    ranks: int
    tensors: tuple[TensorLayout, ...]
    grids: tuple[GridLayout, ...]
    pad_size: int
    entered_base: int
    finished_base: int
    stages: tuple[str, ...]
    pulls: frozenset[int] = frozenset()

    def tensor(self, name: str) -> TensorLayout:
        return next(t for t in self.tensors if t.name == name)

    def grid(self, channel: int) -> GridLayout:
        """The grid of a counter. Raises KeyError for one of the runtime's own."""
        for grid in self.grids:
            if grid.base <= channel < grid.base + grid.slots * grid.count:
                return grid
        raise KeyError(channel)

    def describe(self, stage: int, channel: int) -> tuple[str, str]:
        """The names of a stage and of a counter, for messages."""
        name = self.stages[stage] if 0 <= stage < len(self.stages) else "the runtime"
        return name, self._channel(channel)

    def _channel(self, channel: int) -> str:
        if channel >= self.finished_base:
            return f"the end of rank {channel - self.finished_base}"
        if channel >= self.entered_base:
            return f"the entry of rank {channel - self.entered_base}"
        try:
            grid = self.grid(channel)
        except KeyError:
            return f"channel {channel}"
        slot, linear = divmod(channel - grid.base, grid.count)
        place = ", ".join(str(int(c)) for c in np.unravel_index(linear, grid.counts))
        return f"{grid.tensor} {grid.kind} channel [{place}] of buffer {slot}"


@dataclass(frozen=True, kw_only=True)
class CpuKernel:
    """A generated function and how it is called: `args` are (kind, name) pairs in the order of its parameters.

    Kernels of one stream run one after the other, by `position`. On the copy engine it is a Python function of
    (queue, rank, epoch), else a Triton kernel of `programs` programs.
    """

    name: str
    stream: str
    position: int
    programs: int
    copy_engine: bool
    args: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run: launch k takes inputs[k][rank][name] and there are len(inputs) of them, back to back.

    source: the generated module. deadline_s: seconds that one wait may take. seed: of random delays of up to
    max_delay_s before each wait, notify and transfer; None delays nothing. trace: keep the events.
    """

    source: Path
    kernels: tuple[CpuKernel, ...]
    layout: Layout
    inputs: tuple[tuple[Tensors, ...], ...]
    deadline_s: float
    seed: int | None = None
    max_delay_s: float = 0.0
    trace: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerTrace:
    """The events of one program of one stream of a rank, in the order in which they happened."""

    rank: int
    stream: str
    program: int
    events: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """outputs[launch][rank][name], the traces where they were asked for, and the seconds that the launches took.

    spans: what kernels measured that were generated to be traced, in ns of time.perf_counter_ns.
    """

    outputs: tuple[tuple[dict[str, torch.Tensor], ...], ...]
    traces: tuple[WorkerTrace, ...] = ()
    spans: tuple[Span, ...] = ()
    seconds: float = 0.0


def poison(tensor: torch.Tensor) -> None:
    """Fills a tensor with values that no kernel computes, so that what is read too early shows."""
    fill: Any = float("nan") if tensor.dtype.is_floating_point else True
    if tensor.dtype == torch.int32:
        fill = torch.iinfo(torch.int32).min
    tensor.fill_(fill)
