# pyright: basic
"""Measurements of a compiled program on GPU ranks, the same for ranks of one node and of several."""

from __future__ import annotations

from typing import Any

import torch

from tilelink.errors import BindingError
from tilelink.runtime.cuda.kept import KeepingKernel
from tilelink.runtime.cuda.operands import Tensors
from tilelink.runtime.cuda.timeline import Timeline, Tracer
from tilelink.runtime.cuda.timing import SAMPLES, WARMUPS, Sampler, Timing


class MeasuredKernel(KeepingKernel):
    """A compiled program whose launches can be timed and traced. Subclasses launch it, and set these members."""

    _arguments: Any
    _tracer: Tracer | None

    def __call__(self, inputs: Tensors, out: Tensors | None = None) -> dict[str, torch.Tensor]:
        """Launch the program on the current stream. Return its outputs by name."""
        raise NotImplementedError

    def empty_outputs(self) -> dict[str, torch.Tensor]:
        """Return new tensors for all outputs, so that a launch that is given them allocates nothing."""
        return self._arguments.taken.new()

    def bench(
        self, inputs: Tensors, out: Tensors | None = None, *, samples: int = SAMPLES, warmups: int = WARMUPS
    ) -> Timing:
        """Return the time of a launch with these tensors (runtime/cuda/timing.py). Collective.

        out: tensors for outputs; others are made once, so that no launch allocates any. Launches change copies of the
        tensors that the program reads and writes in place, one launch after the other; the given ones stay as they are.
        What is kept between launches is afterwards as before.
        Raises what a launch raises, and BindingError for no samples.
        """
        with torch.cuda.device(self.device):
            outputs = {**self.empty_outputs(), **(out or {})}
            given = {**inputs, **self._arguments.in_copies(self._arguments.given.checked(inputs))}
            runs = {self.artifact.program: lambda: self(given, outputs)}
            kept = self.state()
            try:
                return Sampler(self._group, self.device).timings(runs, samples, warmups)[self.artifact.program]
            finally:
                self._refill(kept)

    def timeline(self) -> Timeline:
        """Return what all ranks did in their launches since the last call. Collective.

        Raises BindingError if the kernel was not compiled with trace.
        """
        if self._tracer is None:
            raise BindingError("this kernel does not measure its launches", hint="compile it with trace=True")
        with torch.cuda.device(self.device):
            return self._tracer.timeline()
