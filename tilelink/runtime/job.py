"""What a run on CPU ranks is given and gives back: plain values that cross to a process of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tilelink.artifact import Artifact
from tilelink.device.monitor import Event
from tilelink.device.spans import Span

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run: launch k takes inputs[k][rank][name] and there are len(inputs) of them, back to back.

    source: the file of the artifact's module. deadline_s: seconds that one wait may take. seed: of random delays of up
    to max_delay_s before each wait, notify and transfer; None delays nothing. trace: keep the events.
    """

    artifact: Artifact
    source: Path
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
