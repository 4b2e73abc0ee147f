"""Memory of CPU ranks: an arena that all their processes share, and the arguments of kernels in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
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
    SignalGrid,
    SignalsPointer,
    SignalTablePointer,
    TensorPointer,
    TensorSpec,
    ThresholdsPointer,
    TileCounterPointer,
)
from tilelink.errors import BindingError
from tilelink.runtime.cpu.arena import Arena, size_for
from tilelink.runtime.dtypes import dtype_of, poison


class Memory:
    """Tensors, signal pads and tables of all ranks, and memory for the outputs of `launches` launches.

    Memory that kernels may write is filled with poison, counters are 0. `of_rank` gives the memory of one rank.
    """

    def __init__(self, artifact: Artifact, launches: int) -> None:
        self.artifact = artifact
        ranks, tensors = range(artifact.ranks), artifact.tensors
        outputs = [t for t in tensors if t.is_result]
        counted = [one.name for one in artifact.kernels]
        wanted = [((artifact.pad_size,), torch.int32) for _ in ranks] + [
            ((1,), torch.int32) for _ in counted for _ in ranks
        ]
        for rank in ranks:
            wanted += [((t.buffers, *t.shape), dtype_of(t)) for t in tensors if t.on(rank) or t.symmetric]
            wanted += [((launches, *t.shape), dtype_of(t)) for t in outputs if t.on(rank)]
        arena = Arena(size_for(wanted))
        self.tensors = [{t.name: _of_rank(arena, t, rank) for t in tensors} for rank in ranks]
        self.results = [{t.name: _poisoned(arena, t, launches) for t in outputs if t.on(rank)} for rank in ranks]
        self.pads = [arena.allocate((artifact.pad_size,), torch.int32) for _ in ranks]
        self.counters = [{name: arena.allocate((1,), torch.int32) for name in counted} for _ in ranks]
        names = [t.name for t in tensors if t.symmetric]
        self.peers = {n: _addresses([own[n] for own in self.tensors]) for n in names}
        self.signal_table = _addresses(self.pads)
        self.thresholds = {grid.signal: _rows(grid) for grid in artifact.grids}

    def keep(self, kept: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Fill the tensors that are kept between launches: with values of each rank, or 0 where there are none."""
        for rank, tensor in product(range(self.artifact.ranks), self.artifact.tensors):
            if tensor.space == "kept":
                value = kept[rank].get(tensor.name) if kept else None
                self.tensors[rank][tensor.name][0].copy_(torch.tensor(0) if value is None else value)

    def left(self) -> tuple[dict[str, torch.Tensor], ...]:
        """Return copies of the tensors that are kept between launches, [rank][name]."""
        names = [t for t in self.artifact.tensors if t.space == "kept"]
        ranks = range(self.artifact.ranks)
        return tuple({t.name: self.tensors[rank][t.name][0].clone() for t in names if t.on(rank)} for rank in ranks)

    def of_rank(self, rank: int) -> RankMemory:
        return RankMemory(self, rank)


class RankMemory:
    """The memory of one rank (runtime/protocol.py)."""

    def __init__(self, memory: Memory, rank: int) -> None:
        self.all, self.rank = memory, rank
        self.pad = memory.pads[rank]

    @property
    def pads(self) -> Sequence[int]:
        """Return the address of each rank's signal pad."""
        return self.all.signal_table.tolist()

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return the local copy of a tensor, [buffers, *shape]. A caller's tensors are copied there, too."""
        return self.all.tensors[self.rank][name]

    def addresses(self, name: str) -> Sequence[int]:
        """Return the address of each rank's copy of a symmetric tensor."""
        return self.all.peers[name].tolist()


class Arguments:
    """The arguments of the kernels of one program of a rank (runtime/protocol.py). epoch: int64 [1]."""

    def __init__(self, memory: RankMemory, program: int) -> None:
        self._memory, self._program = memory, program
        self.epoch = torch.zeros(1, dtype=torch.int64)

    def argument(self, kernel: KernelSpec, parameter: Parameter) -> Any:
        """Return a kernel's argument for a parameter, the same in every launch."""
        memory, rank = self._memory.all, self._memory.rank
        match parameter:
            case Rank():
                return rank
            case FirstProgram():
                return self._program
            case NumPrograms():
                return kernel.programs
            case SignalsPointer():
                return self._memory.pad
            case SignalTablePointer():
                return memory.signal_table
            case EpochPointer():
                return self.epoch
            case DebugBlockPointer() | HandshakePointer():
                return None
            case TileCounterPointer():
                return memory.counters[rank][kernel.name]
            case PeersPointer(tensor=name):
                return memory.peers[name]
            case ThresholdsPointer(tensor=name, kind=kind):
                return memory.thresholds[name, kind][rank]
            case TensorPointer(tensor=name):
                return memory.tensors[rank][name]
            case Descriptor() | Boxes():
                hint = "compile it for the target cpu"
                raise BindingError(f"{kernel.name} loads through descriptors, and CPU ranks have none", hint=hint)


def _of_rank(arena: Arena, tensor: TensorSpec, rank: int) -> torch.Tensor:
    """Return the copy of a tensor that a rank has. Without one, kernels get a tensor without elements.

    Symmetric memory is the same on all ranks: a rank finds a peer's by its own.
    """
    if not tensor.on(rank) and not tensor.symmetric:
        return torch.empty((tensor.buffers, *(0 for _ in tensor.shape)), dtype=dtype_of(tensor))
    return _poisoned(arena, tensor, tensor.buffers)


def _poisoned(arena: Arena, tensor: TensorSpec, copies: int) -> torch.Tensor:
    memory = arena.allocate((copies, *tensor.shape), dtype_of(tensor))
    poison(memory)
    return memory


def _addresses(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64)


def _rows(grid: SignalGrid) -> list[torch.Tensor]:
    return [torch.tensor(row.tolist(), dtype=torch.int32) for row in grid.thresholds]
