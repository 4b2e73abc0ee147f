# pyright: basic
"""Arguments of a GPU rank's kernels: memory of the rank, and tensors of the caller."""

from __future__ import annotations

from typing import Any

import torch

from tilelink.artifact import (
    Artifact,
    Boxes,
    DebugBlockPointer,
    Descriptor,
    EpochPointer,
    FirstProgram,
    HandshakePointer,
    KernelSpec,
    NumPrograms,
    Parameter,
    PeersPointer,
    Rank,
    SignalsPointer,
    SignalTablePointer,
    TensorPointer,
    ThresholdsPointer,
    TileCounterPointer,
)
from tilelink.runtime.cuda.functions import Address
from tilelink.runtime.cuda.memory import Memory
from tilelink.runtime.cuda.operands import Operands, Tensors, check_apart


class Arguments:
    """The arguments of a rank's kernels (runtime/protocol.py), and the inputs and outputs of its launches.

    given: all inputs that the rank has, as callers pass them, with the tensors that a launch reads and writes in place.
    taken: all outputs that callers may pass. outputs: what a launch returns, these and those in place. made: outputs
    that are not symmetric.
    staged: inputs that peers read, from a buffer. kept: outputs that peers write, into a buffer.
    keyed: names of the tensors whose addresses kernels take.
    """

    def __init__(
        self, artifact: Artifact, memory: Memory, debug_block: torch.Tensor | None, handshake: torch.Tensor
    ) -> None:
        """debug_block, handshake: arguments of kernels for the parameters of that name."""
        self._memory, self._debug_block, self._handshake = memory, debug_block, handshake
        here = [t for t in artifact.tensors if t.on(memory.rank)]
        inputs = [t for t in here if t.is_given]
        written = [t for t in here if t.space == "out"]
        self.outputs = [t for t in here if t.is_result]
        self.in_place = [t.name for t in self.outputs if t.is_given]
        ordinary = [t for t in written if not t.symmetric]
        self.staged = [t for t in inputs if t.symmetric]
        self.kept = [t for t in written if t.symmetric]
        self.keyed = [t.name for t in (*inputs, *written) if t.is_passed]
        self.given, self.taken = Operands(inputs, memory.device), Operands(written, memory.device)
        self.made = Operands(ordinary, memory.device)
        self._ordinary = [t.name for t in ordinary]

    def argument(self, kernel: KernelSpec, parameter: Parameter) -> Any:
        """Return the argument for a parameter, the same in every launch; None if a caller passes it."""
        memory = self._memory
        match parameter:
            case Rank():
                return memory.rank
            case FirstProgram():
                return 0
            case NumPrograms():
                return kernel.programs
            case SignalsPointer():
                return memory.pad
            case SignalTablePointer():
                return memory.signal_table
            case EpochPointer():
                return memory.epoch
            case DebugBlockPointer():
                return self._debug_block
            case HandshakePointer():
                return self._handshake
            case TileCounterPointer():
                return memory.counters[kernel.name]
            case PeersPointer(tensor=name):
                return memory.peers[name]
            case ThresholdsPointer(tensor=name, kind=kind):
                return memory.thresholds[name, kind]
            case Boxes(tensor=name, owner=int(owner)):
                return Address(memory.own[name], memory.addresses(name)[owner])
            case TensorPointer() | Descriptor() | Boxes():
                return memory.tensor(parameter.tensor)

    def check_apart(self, given: Tensors, results: Tensors, own: torch.Tensor) -> None:
        """Raise BindingError for an output, or a tensor in place, that shares memory with another tensor of a launch.

        own: the kernel's buffers.
        """
        if self.in_place:
            results = {**{name: given[name] for name in self.in_place}, **results}
            given = {name: tensor for name, tensor in given.items() if name not in self.in_place}
        check_apart(results, given, own)

    def in_copies(self, given: Tensors) -> dict[str, torch.Tensor]:
        """Return copies of the tensors that a launch reads and writes in place."""
        return {name: given[name].clone() for name in self.in_place}

    def allocate(self, results: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the outputs that are not symmetric: those in `results`, or new ones."""
        made = self.made.new(results)
        if not results:
            return made
        return {name: results[name] if name in results else made[name] for name in self._ordinary}

    def stage(self, tensors: Tensors, slot: int) -> None:
        """Copy the inputs that peers read into the buffers of a launch, unless they are already there."""
        for tensor in self.staged:
            there = self._memory.own[tensor.name][slot % tensor.buffers]
            if there.data_ptr() != tensors[tensor.name].data_ptr():
                there.copy_(tensors[tensor.name])

    def make_kept(self, results: dict[str, torch.Tensor]) -> None:
        """Add new tensors for the outputs that are copied out of buffers, unless the caller has given them."""
        for tensor in self.kept:
            if tensor.name not in results:
                results[tensor.name] = torch.empty_like(self._memory.own[tensor.name][0])

    def keep(self, results: Tensors, slot: int) -> None:
        """Copy symmetric outputs out of the buffers of a launch, before a later launch of a peer writes there."""
        for tensor in self.kept:
            results[tensor.name].copy_(self._memory.own[tensor.name][slot % tensor.buffers])
