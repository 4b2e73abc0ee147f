"""Interface of a runtime: what it must provide so that an artifact (tilelink/artifact.py) runs on its ranks.

`cpu`, `cuda` and `nvshmem` implement it, each in its own way. tests/runtime/test_contract.py tests them, and any other
runtime, against this description. Launches are numbered: epoch e = 1, 2, ... uses buffer (e - 1) % buffers of each
tensor and each grid of counters. A counter of a grid counts up to its threshold in each generation of its buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tilelink.artifact import Artifact, KernelSpec, Parameter
from tilelink.device.spans import Span

if TYPE_CHECKING:
    from tilelink.runtime import job
    from tilelink.runtime.cpu import copy_queue
    from tilelink.runtime.cpu import memory as cpu_memory
    from tilelink.runtime.cuda import arguments as cuda_arguments
    from tilelink.runtime.cuda import kernel as cuda_kernel
    from tilelink.runtime.cuda import memory as cuda_memory
    from tilelink.runtime.cuda import prepared, record_copies, timeline
    from tilelink.runtime.nvshmem import kernel as nvshmem_kernel
    from tilelink.runtime.nvshmem import memory as nvshmem_memory

Ints = Sequence[int]


class Memory(Protocol):
    """The memory of one rank for an artifact: allocated once, before its first launch, in the same way on every rank.

    All counters are 0 before any rank launches. A tensor with peers keeps its address for the lifetime of the memory.
    """

    @property
    def pad(self) -> torch.Tensor:
        """Return the local signal pad, int32 [pad_size]."""
        ...

    @property
    def pads(self) -> Ints:
        """Return the address of each rank's signal pad, as kernels of this rank access it.

        It is 0 for a rank of another node, to which kernels signal through the network.
        """
        ...

    def tensor(self, name: str) -> torch.Tensor | None:
        """Return the local copy of a tensor, [buffers, *shape].

        Return None if the caller passes the tensor with each launch. On a rank that does not have the tensor
        (`TensorSpec.members`), what is returned for one that is not symmetric stands for it: kernels take it and do not
        access it.
        """
        ...

    def addresses(self, name: str) -> Ints:
        """Return the address of each rank's copy of a symmetric tensor, as kernels of this rank access it.

        It may be 0 for a rank of another node, which kernels reach through the network.
        """
        ...


class Arguments(Protocol):
    """The arguments of the kernels of one rank."""

    def argument(self, kernel: KernelSpec, parameter: Parameter) -> Any:
        """Return the argument for a parameter, chosen by its class, the same in every launch of a kernel.

        It is a tensor for a pointer and an integer for a number. It is None for a tensor that callers pass, and for a
        debug block or a handshake that does not exist.
        """
        ...


class CopyQueue(Protocol):
    """The signals and copies of a rank's copy engine in one launch: the first argument of a copy program.

    Operations take effect in the order of the calls. Offsets and sizes are in elements and do not include buffers: the
    queue adds the buffer of its launch. stage, t: stage and tile of the operation, for traces and messages.
    """

    def wait(self, channel: int, target: int, stage: int, t: int) -> None:
        """Wait, with acquire, until the local counter `channel` has reached `target`.

        All that happened before its notifies is visible afterwards.
        """
        ...

    def notify(self, rank: int, channel: int, stage: int, t: int) -> None:
        """Add 1 to counter `channel` of a rank, after all earlier copies are complete there."""
        ...

    def copy(
        self, target: str, rank: int, low: Ints, sizes: Ints,
        source: str, source_rank: int, source_low: Ints, source_sizes: Ints,
        stage: int, t: int, traced: bool = True,
    ) -> None:  # fmt: skip
        """Copy a box of elements between tensors of any ranks. traced: True if it is a transfer of the plan."""
        ...

    def entry(self, table: str, offset: int) -> int:
        """Return the value at a linear offset of one of the rank's tables."""
        ...

    def trace(self, track: int) -> None:
        """Measure the operations after this call, as those of this track of the rank."""
        ...

    def tile_begin(self, stage: int, t: int) -> None:
        """Mark the start of a tile."""
        ...

    def tile_end(self, stage: int, t: int) -> None:
        """Mark the end of a tile."""
        ...


class Launcher(Protocol):
    """A compiled program, ready on the ranks of this process.

    One launch runs every kernel and copy program once on each of these ranks. Those of one stream run one after the
    other by `position`, streams run in parallel, and each launch runs after the one before it, with the next epoch. It
    begins and ends as the launch protocol says. If the protocol is in the kernels, the runtime adds nothing. Outputs
    are complete when the launch is.

    Deadline: if there is one, it limits each wait of a kernel, a copy program or the runtime. The first wait that
    exceeds it ends the launch with a DeadlineError, which names rank, stage, tile and counter, the value of the counter
    and the value that it had to reach.
    """

    @property
    def artifact(self) -> Artifact:
        """Return the artifact that is run."""
        ...

    def __call__(self, inputs: Any) -> Any:
        """Launch once with the inputs of the ranks of this process. Return their outputs, by name.

        Raises BindingError for tensors that do not fit, DeadlineError for a wait that exceeded its deadline.
        """
        ...


class Trace(Protocol):
    """The measurements of a traced artifact: start and end of each tile, wait, notify and transfer of its programs."""

    @property
    def spans(self) -> Sequence[Span]:
        """Return the spans of all ranks on one clock, in ns.

        A span names its rank, track (KernelSpec.track) and epoch.
        """
        ...


if TYPE_CHECKING:  # the type checker reports members that a runtime lacks
    MEMORIES: tuple[type[Memory], ...] = (cpu_memory.RankMemory, cuda_memory.Memory, nvshmem_memory.Memory)
    ARGUMENTS: tuple[type[Arguments], ...] = (cpu_memory.Arguments, cuda_arguments.Arguments, prepared.StandIns)
    QUEUES: tuple[type[CopyQueue], ...] = (copy_queue.CopyQueue, record_copies.Recorder)
    LAUNCHERS: tuple[type[Launcher], ...] = (cuda_kernel.GpuKernel, nvshmem_kernel.NvshmemKernel)
    TRACES: tuple[type[Trace], ...] = (job.RunResult, timeline.Timeline)
