"""Back end for GPUs: a verified program as a callable on this rank's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilelink.artifact import Artifact
from tilelink.backend import store
from tilelink.backend.emit import emit
from tilelink.compiler.artifact import artifact_of
from tilelink.compiler.cpu import DEADLINE_S
from tilelink.compiler.postmortem import explain
from tilelink.planning.plan import Plan

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tilelink.runtime.cuda.kernel import GpuKernel
    from tilelink.runtime.nvshmem.kernel import NvshmemKernel
    from tilelink.runtime.witness import Explain


def gpu_kernel(verified: Plan, group: ProcessGroup, tables: Mapping[str, Any], deadline_s: float | None) -> GpuKernel:
    """Return the kernel of a verified plan on this rank of a group of GPU ranks. Collective.

    deadline_s: seconds that one wait may take (None: no limit). With a deadline the host waits for each launch. Traced
        kernels always have one.

    Raises RankError if the ranks of the group compile different programs.
    """
    from tilelink.runtime.cuda.kernel import GpuKernel

    deadline = _deadline(verified, deadline_s)
    return GpuKernel(gpu_artifact(verified, tables), group, deadline, _explain(verified, tables, deadline))


def nodes_kernel(
    verified: Plan, group: ProcessGroup, tables: Mapping[str, Any], deadline_s: float | None
) -> NvshmemKernel:
    """Return the kernel of a verified plan on this rank of several nodes. Collective. Arguments as for `gpu_kernel`."""
    from tilelink.runtime.nvshmem.kernel import NvshmemKernel

    deadline, artifact = _deadline(verified, deadline_s), gpu_artifact(verified, tables)
    return NvshmemKernel(artifact, group, deadline, explain=_explain(verified, tables, deadline))


def _explain(verified: Plan, tables: Mapping[str, Any], deadline_s: float | None) -> Explain | None:
    """Return what explains late waits; it keeps the plan. None without a deadline."""
    return (lambda error: explain(error, verified, tables, deadline_s)) if deadline_s else None


def _deadline(verified: Plan, given: float | None) -> float | None:
    """Return the seconds that one wait may take: as given, or the usual limit for traced kernels, which need one."""
    return given or (DEADLINE_S if verified.bound.capabilities.traced else None)


def gpu_artifact(verified: Plan, tables: Mapping[str, Any] | None = None) -> Artifact:
    """Return the artifact of a verified plan for GPU ranks, with its module in the store. No GPU is needed.

    tables: as for `compiler.compile`. Raises EmitError for a program that kernels cannot express.
    """
    emitted = emit(verified.bound, verified.thresholds)
    store.save(emitted.text)
    return artifact_of(verified, emitted, tables or {})
