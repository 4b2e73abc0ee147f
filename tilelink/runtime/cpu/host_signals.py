# pyright: basic
"""Signals of the runtime itself and of copy engines on CPU ranks: the device library's, a kernel for each.

Kernels notify and wait on the same counters, so the atomics must be the same. Interpreted mode only.
"""

import torch
import triton

from tilelink import device as dl

RUNTIME = -1
"""Stage number of the runtime's own waits and notifies."""


@triton.jit
def _wait(signals, channel, target, stage, t):
    dl.wait(signals, channel, target, None, stage, t)


@triton.jit
def _notify(pad, channel, rank, stage, t):
    dl.notify(pad, channel, rank, None, stage, t, True)


def wait(pad: torch.Tensor, channel: int, target: int, stage: int = RUNTIME, t: int = -1) -> None:
    """Wait until pad[channel] (int32) has reached `target`. Raises DeadlineError if that takes too long."""
    _wait[(1,)](pad, channel, target, stage, t)


def notify(pad: torch.Tensor, channel: int, rank: int, stage: int = RUNTIME, t: int = -1) -> None:
    """Add 1 to pad[channel] of `rank`, with release: a rank that sees it sees all earlier stores."""
    _notify[(1,)](pad, channel, rank, stage, t)
