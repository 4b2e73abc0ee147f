# pyright: basic
"""Copies between tensors of callers and the buffers of a launch, which are chosen on the device."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from tilelink.artifact import TensorSpec
from tilelink.runtime.nvshmem.helper_kernels import empty_buffer, fill_buffer
from tilelink.runtime.nvshmem.memory import Memory

BLOCK = 4096
"""Elements that a program copies."""
Make = Callable[..., Any]


def filling(tensor: TensorSpec, memory: Memory, make: Make) -> Any:
    """Return a function of (stream, input) that copies an input into its buffer. make: the class of helper kernels."""
    return _copying(fill_buffer, tensor, memory, make)


def emptying(tensor: TensorSpec, memory: Memory, make: Make) -> Any:
    """Return a function of (stream, output) that copies an output out of its buffer. make: as of `filling`."""
    return _copying(empty_buffer, tensor, memory, make)


def _copying(function: Any, tensor: TensorSpec, memory: Memory, make: Make) -> Any:
    count, buffers = prod(tensor.shape), memory.own[tensor.name]
    options = {"COUNT": count, "BUFFERS": tensor.buffers, "BLOCK": BLOCK}
    arguments = (torch.empty_like(buffers[0]), buffers, memory.epoch)
    return make(function, arguments, options, None, -(-count // BLOCK))
