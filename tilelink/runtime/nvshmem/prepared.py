# pyright: basic
"""Compilation of what ranks of several nodes launch, by a process that touches no GPU (runtime/cuda/prepared.py)."""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Any

import torch
from triton.runtime import driver

from tilelink.artifact import Artifact, HandshakePointer, KernelSpec, Parameter, SignalsPointer
from tilelink.errors import BindingError
from tilelink.runtime.cuda import prepared
from tilelink.runtime.cuda.clock import ROUNDS
from tilelink.runtime.cuda.keys import settled
from tilelink.runtime.cuda.prepared import Absent, compile_kernel, placeholder
from tilelink.runtime.dtypes import dtype_of
from tilelink.runtime.nvshmem.bitcode import libraries
from tilelink.runtime.nvshmem.buffers import BLOCK
from tilelink.runtime.nvshmem.clock import WORDS, ping, pong
from tilelink.runtime.nvshmem.helper_kernels import (
    await_outputs,
    close_launch,
    empty_buffer,
    fill_buffer,
    open_launch,
)
from tilelink.target import Target

Call = tuple[Any, tuple[Any, ...], dict[str, Any], bool]
"""A helper kernel: the function, its arguments and constants, and True if it is linked with the library."""


def compile_ahead(artifact: Artifact, machine: Target, deadlines: Collection[bool] = (False, True)) -> list[int]:
    """Compile all kernels that ranks launch for a program of several nodes, with and without a deadline.

    Return the bytes of shared memory of its own kernels. Only for processes that use no GPU afterwards. Raises what
    Triton raises, and BindingError for stages on copy engines, and without the device library.
    """
    if artifact.copy_programs:
        name, hint = artifact.copy_programs[0].name, "copy engines do not reach other nodes: run the stage on sm"
        raise BindingError(f"{name} is on the copy engine, in a program of several nodes", hint=hint)
    driver.set_active(Absent(machine))  # type: ignore[arg-type]
    linked = {"extern_libs": libraries(int(machine.architecture))}
    shared: list[int] = []
    for deadline in deadlines:
        stand_ins = StandIns(artifact, deadline=deadline)
        shared += [
            compile_kernel(artifact, kernel, stand_ins.argument, linked if kernel.uses_network else None)
            for kernel in artifact.kernels
        ]
        for function, arguments, constants, network in helpers(artifact, stand_ins.debug_block):
            more = linked if network else {}
            settled(function).warmup(*arguments, **constants, **more, grid=(1,), num_warps=4)
    return shared


class StandIns(prepared.StandIns):
    """Stand-ins for a rank's arguments (runtime/protocol.py): counters are words of 64 bits."""

    def argument(self, kernel: KernelSpec, parameter: Parameter) -> Any:
        """Return the stand-in for the argument of a kernel."""
        match parameter:
            case SignalsPointer():
                return placeholder(torch.int64)
            case HandshakePointer():
                return None
            case _:
                return super().argument(kernel, parameter)


def helpers(artifact: Artifact, debug_block: torch.Tensor | None) -> list[Call]:
    """Return the helper kernels of a program, with arguments as `runtime.nvshmem.kernel` passes them."""
    words, exits = placeholder(torch.int64), placeholder(torch.int32)
    who = {"RANKS": artifact.ranks, "NODE": artifact.ranks // artifact.nodes}
    stage = {"STAGE": len(artifact.stages)}
    ending = {**who, **stage, "BLOCK": 1 << (artifact.ranks - 1).bit_length()}
    found: list[Call] = [(close_launch, (words, words, words, debug_block, exits, 0, 0, 0, 0), ending, True)]
    if artifact.needs_entry:
        found.append((open_launch, (words, words, 0, 0), who, True))
    if artifact.copies_outputs:
        found.append((await_outputs, (words, words, debug_block, exits, 0), stage, False))
    for tensor in artifact.tensors:
        if tensor.symmetric and tensor.space in ("in", "out"):
            function = fill_buffer if tensor.space == "in" else empty_buffer
            values, count = placeholder(dtype_of(tensor)), prod(tensor.shape)
            constants = {"COUNT": count, "BUFFERS": tensor.buffers, "BLOCK": BLOCK}
            found.append((function, (values, values, words), constants, False))
    for peer in range(1, artifact.ranks if artifact.spans and debug_block is not None else 1):
        rows = {"ROW": WORDS * peer, "ROUNDS": ROUNDS}
        found += [(ping, (words, words, words, 0), rows, True), (pong, (words, words, words, 0), rows, True)]
    return found
