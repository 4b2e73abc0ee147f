"""What the GPU runtime is given: the generated module and how its kernels are called."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np

from tilelink.protocol import LaunchProtocol
from tilelink.runtime.job import Layout

Signal = tuple[str, str]
"""Counters of the program: of which tensor, and of which kind."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A parameter of a kernel, of a kind that `backend.context.Arg` lists.

    block: of a descriptor, rows and columns. owner: the rank whose copy of the tensor it describes, None for the own.
    """

    kind: str
    name: str
    block: tuple[int, ...] = ()
    owner: int | None = None


@dataclass(frozen=True, kw_only=True)
class GpuKernel:
    """A generated function. Kernels of one stream run one after the other, by `position`.

    awaits, notifies: signals of the program, (tensor, kind), that its stages wait for and send.
    programs_per_cta: programs of one warp each that share a CTA, in a kernel written in Gluon; else 0.
    """

    name: str
    stream: str
    position: int
    programs: int
    copy_engine: bool
    warps: int
    stages: int
    needs_entry: bool
    args: tuple[Argument, ...] = ()
    awaits: frozenset[Signal] = frozenset()
    notifies: frozenset[Signal] = frozenset()
    programs_per_cta: int = 0

    @property
    def grid(self) -> int:
        """Blocks of threads of a launch."""
        return self.programs // max(1, self.programs_per_cta)


@dataclass(frozen=True, kw_only=True)
class GpuProgram:
    """A module for all ranks of a group.

    lag: a rank may prepare launch e, or let its copy engine begin, once all peers have finished launch e - lag, because
    its copy engine and its staged inputs then write to them; 0 waits for nobody. reuse_wait: whether kernels wait for
    peers' earlier launches, not only for the program's own signals. tables: int32 values [ranks, *shape] of the dynamic
    mappings. records: how many spans a program has in a launch at most, where kernels write them down; else 0.
    branches: whether the waits of a copy engine may be a branch of a graph beside its copies, see
    verifier/copy_queues.py.
    """

    source: Path
    kernels: tuple[GpuKernel, ...]
    layout: Layout
    lag: int
    reuse_wait: bool = True
    tables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    records: int = 0
    branches: bool = False
    protocol: LaunchProtocol = LaunchProtocol.HELPER_KERNELS

    @cached_property
    def fingerprint(self) -> int:
        """60 bits that ranks share if they compile the same: the module, what its counters count to, and its tables."""
        found = hashlib.blake2b(f"{self.source.stem} {self.lag} {self.records}".encode(), digest_size=8)
        for grid in self.layout.grids:
            found.update(np.ascontiguousarray(grid.thresholds, np.int64).tobytes())
        for name in sorted(self.tables):
            found.update(np.ascontiguousarray(self.tables[name], np.int32).tobytes())
        return int.from_bytes(found.digest(), "big") >> 4

    @cached_property
    def awaited(self) -> frozenset[Signal]:
        """The signals that kernels on SMs wait for."""
        return frozenset[Signal]().union(*(k.awaits for k in self.kernels if not k.copy_engine))

    @cached_property
    def cycle(self) -> int:
        """Launches after which every tensor is at the same buffer again."""
        return lcm(*(t.slots for t in self.layout.tensors), *(g.slots for g in self.layout.grids), 1)

    @cached_property
    def counted(self) -> int:
        """The programs of a launch, where they are counted to number launches; else 0."""
        return sum(k.programs for k in self.kernels if not k.copy_engine) if self.protocol.counted else 0

    @cached_property
    def keeps(self) -> bool:
        """Whether outputs are copied out of buffers that peers may write to."""
        return any(t.symmetric and t.space == "out" for t in self.layout.tensors)

    @cached_property
    def needs_entry(self) -> bool:
        """Whether peers read this rank's inputs, and so must be told that they are there."""
        return any(k.needs_entry for k in self.kernels)
