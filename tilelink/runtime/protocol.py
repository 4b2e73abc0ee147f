"""What a runtime provides so that an artifact (tilelink/artifact.py) runs on its ranks.

`cpu` and `cuda` provide it, each in its own way. tests/runtime/test_contract.py holds them, and a runtime of its own,
to what is said here. Launches are numbered: epoch e = 1, 2, ... uses buffer (e - 1) % buffers of each tensor and each
grid of counters, and a counter of a grid counts up to its threshold in each generation of its buffer.
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

Ints = Sequence[int]


class Memory(Protocol):
    """What one rank has of an artifact's memory: made once, before its first launch, alike on every rank.

    All counters are 0 before any rank launches. A tensor with peers lies at one place for the life of the memory.
    """

    @property
    def pad(self) -> torch.Tensor:
        """The own signal pad, int32 [pad_size]."""
        ...

    @property
    def pads(self) -> Ints:
        """Where each rank's signal pad begins, as kernels of this rank reach it."""
        ...

    def tensor(self, name: str) -> torch.Tensor | None:
        """The own copy of a tensor, [buffers, *shape]; None if kernels take what a caller passes with each launch."""
        ...

    def addresses(self, name: str) -> Ints:
        """Where each rank's copy of a symmetric tensor begins, as kernels of this rank reach it."""
        ...


class Arguments(Protocol):
    """What the kernels of one rank are passed."""

    def argument(self, kernel: KernelSpec, parameter: Parameter) -> Any:
        """The argument for a parameter, chosen by its class, the same in every launch of a kernel.

        Tensors for pointers, integers for numbers. None for a tensor that callers pass, and for a debug block or
        handshake that there is not.
        """
        ...


class CopyQueue(Protocol):
    """The signals and copies of a rank's copy engine in one launch: what a copy program is called with.

    Operations take effect in the order of the calls. Places and sizes are in elements, without buffers: the queue adds
    the buffer of its launch. stage, t: which tile it is of, for traces and messages.
    """

    def wait(self, channel: int, target: int, stage: int, t: int) -> None:
        """Goes on once the own counter `channel` has reached `target`; sees all that was done before its notifies."""
        ...

    def notify(self, rank: int, channel: int, stage: int, t: int) -> None:
        """Adds 1 to counter `channel` of a rank, after all copies before it are complete there."""
        ...

    def copy(
        self, target: str, rank: int, low: Ints, sizes: Ints,
        source: str, source_rank: int, source_low: Ints, source_sizes: Ints,
        stage: int, t: int, traced: bool = True,
    ) -> None:  # fmt: skip
        """Copies a box of elements between tensors of any ranks. traced: it is a transfer of the plan."""
        ...

    def entry(self, table: str, offset: int) -> int:
        """The value at a linear offset of one of the rank's tables."""
        ...

    def trace(self, track: int) -> None:
        """From here on the operations are measured, as those of this track of the rank."""
        ...

    def tile_begin(self, stage: int, t: int) -> None:
        """A tile begins."""
        ...

    def tile_end(self, stage: int, t: int) -> None:
        """A tile ends."""
        ...


class Launcher(Protocol):
    """A compiled program, ready on the ranks that this process has.

    One launch runs every kernel and copy program once on each of them: those of one stream one after the other by
    `position`, streams in parallel, and one launch after the other with the epoch one higher. It begins and ends as the
    launch protocol says; where the protocol is in the kernels, the runtime adds nothing. Outputs are complete when the
    launch is.

    Deadline: with one, no wait of a kernel, a copy program or the runtime takes longer. The first that does ends the
    launch with a DeadlineError, which names rank, stage, tile and counter, what the counter was and what it had to be.
    """

    @property
    def artifact(self) -> Artifact:
        """What it runs."""
        ...

    def __call__(self, inputs: Any) -> Any:
        """One launch with the inputs of the ranks of this process; returns their outputs, by name.

        Raises BindingError for tensors that do not fit, DeadlineError for a wait that outlived its deadline.
        """
        ...


class Trace(Protocol):
    """What a traced artifact measured: when its programs began and ended each tile, wait, notify and transfer."""

    @property
    def spans(self) -> Sequence[Span]:
        """Of all ranks on one clock, in ns. A span names its rank, track (KernelSpec.track) and epoch."""
        ...


if TYPE_CHECKING:  # the type checker says what a runtime lacks
    MEMORIES: tuple[type[Memory], ...] = (cpu_memory.RankMemory, cuda_memory.Memory)
    ARGUMENTS: tuple[type[Arguments], ...] = (cpu_memory.Arguments, cuda_arguments.Arguments, prepared.StandIns)
    QUEUES: tuple[type[CopyQueue], ...] = (copy_queue.CopyQueue, record_copies.Recorder)
    LAUNCHERS: tuple[type[Launcher], ...] = (cuda_kernel.GpuKernel,)
    TRACES: tuple[type[Trace], ...] = (job.RunResult, timeline.Timeline)
