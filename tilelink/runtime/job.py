"""Arguments and results of a run on CPU ranks: plain values that are sent to another process."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilelink.artifact import Artifact
from tilelink.device.monitor import Event
from tilelink.device.spans import Span

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run: launch k takes inputs[k][rank][name] and there are len(inputs) of them, back to back.

    kept: [rank][name], what is in the tensors that are kept between launches before the first of these; zeros in those
    that are left out. source: file of the artifact's module. deadline_s: seconds that one wait may take. seed: of
    random delays of up to max_delay_s seconds before each wait, notify and transfer; None for no delays. trace: True to
    keep the events.
    """

    artifact: Artifact
    source: Path
    inputs: tuple[tuple[Tensors, ...], ...]
    deadline_s: float
    kept: tuple[Tensors, ...] = ()
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
    """outputs[launch][rank][name], the traces if requested, and the seconds that the launches took.

    kept: [rank][name], what the last launch has left in the tensors that are kept between launches.
    spans: measurements of kernels that were generated with tracing, in ns of time.perf_counter_ns.
    """

    outputs: tuple[tuple[dict[str, torch.Tensor], ...], ...]
    traces: tuple[WorkerTrace, ...] = ()
    spans: tuple[Span, ...] = ()
    seconds: float = 0.0
    kept: tuple[dict[str, torch.Tensor], ...] = ()


def pickled(value: object) -> bytes:
    """Return a value as bytes that `pickle.loads` reads in another process.

    Tensors of 8-bit floats are sent as their bits: torch writes them in a form that it does not read (2.13).
    """
    stream = io.BytesIO()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and obj.dtype.is_floating_point and obj.dtype.itemsize == 1:
            return _of_bits, (obj.view(torch.uint8), obj.dtype)
        return NotImplemented


def _of_bits(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return bits.view(dtype)
