"""The end of the pipeline on GPUs: a verified program as a callable on this rank's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilelink.artifact import Artifact
from tilelink.backend import store
from tilelink.backend.emit import emit
from tilelink.compiler.artifact import artifact_of
from tilelink.compiler.cpu import DEADLINE_S
from tilelink.planning.plan import Plan

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tilelink.runtime.cuda.kernel import GpuKernel


def gpu_kernel(
    verified: Plan, group: ProcessGroup, tables: Mapping[str, Any], deadline_s: float | None, trace: bool = False
) -> GpuKernel:
    """A verified plan on this rank of a group of GPU ranks. Collective: every rank calls it.

    deadline_s: seconds that one wait may take (None: for ever). With a deadline each launch is waited for.
    trace: measure launches from inside the kernels; then there is always a deadline.
    Raises RankError if the ranks of the group compile different programs.
    """
    from tilelink.runtime.cuda.kernel import GpuKernel

    deadline = deadline_s or (DEADLINE_S if trace else None)
    return GpuKernel(gpu_artifact(verified, tables, trace), group, deadline)


def gpu_artifact(verified: Plan, tables: Mapping[str, Any] | None = None, trace: bool = False) -> Artifact:
    """What GPU ranks run of a verified plan, with its module in the store. Needs no GPU.

    tables, trace: as `compiler.compile` takes them. Raises EmitError for what the dialect cannot express.
    """
    emitted = emit(verified.bound, verified.thresholds, dialect="traced" if trace else "triton")
    store.save(emitted.text)
    return artifact_of(verified, emitted, tables or {})
