"""The end of the pipeline on GPUs: a verified program as a callable on this rank's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilelink.backend import store
from tilelink.backend.emit import emit
from tilelink.compiler.cpu import DEADLINE_S
from tilelink.ir.program import Notify, Wait
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound, Kernel
from tilelink.planning.copy_queues import waits_are_free
from tilelink.planning.plan import Plan
from tilelink.planning.traces import most_spans

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tilelink.runtime.cuda.kernel import GpuKernel
    from tilelink.runtime.cuda.spec import GpuProgram
    from tilelink.runtime.job import Layout


def gpu_kernel(
    verified: Plan, layout: Layout, group: ProcessGroup, tables: Mapping[str, Any], deadline_s: float | None,
    trace: bool = False,
) -> GpuKernel:  # fmt: skip
    """A verified plan on this rank of a group of GPU ranks. Collective: every rank calls it.

    deadline_s: seconds that one wait may take (None: for ever). With a deadline each launch is waited for.
    trace: measure launches from inside the kernels; then there is always a deadline.
    Raises RankError if the ranks of the group compile different programs.
    """
    from tilelink.runtime.cuda.kernel import GpuKernel

    deadline = deadline_s or (DEADLINE_S if trace else None)
    return GpuKernel(gpu_program(verified, layout, tables, trace), group, deadline)


def gpu_program(
    verified: Plan, layout: Layout, tables: Mapping[str, Any] | None = None, trace: bool = False
) -> GpuProgram:
    """What GPU ranks run of a verified plan: the stored module and how its kernels are called. Needs no GPU.

    tables, trace: as `compiler.compile` takes them. Raises EmitError for what the dialect cannot express.
    """
    from tilelink.runtime.cuda.spec import Argument, GpuProgram
    from tilelink.runtime.cuda.spec import GpuKernel as Spec

    emitted = emit(verified.bound, verified.thresholds, dialect="traced" if trace else "triton")
    kernels = tuple(
        Spec(
            name=one.name,
            stream=one.kernel.stream,
            position=one.kernel.position,
            programs=one.kernel.programs,
            copy_engine=one.kernel.on_copy_engine,
            warps=one.warps,
            stages=one.kernel.stages,
            needs_entry=one.kernel.needs_entry,
            programs_per_cta=one.programs_per_cta,
            args=tuple(Argument(kind=a.kind, name=a.name, block=a.block, owner=a.owner) for a in one.args),
            awaits=_signals(verified.bound, one.kernel, Wait),
            notifies=_signals(verified.bound, one.kernel, Notify),
        )
        for one in emitted.kernels
    )
    lags = [one.kernel.reuse_lag for one in emitted.kernels if one.kernel.on_copy_engine and one.kernel.reuse_lag]
    lags += [t.slots for t in verified.bound.tensors.values() if t.decl.symmetric and t.decl.space == "in"]
    return GpuProgram(
        source=store.save(emitted.text),
        kernels=kernels,
        layout=layout,
        lag=min(lags, default=0),
        reuse_wait=verified.bound.schedule.reuse_wait,
        tables=dict(tables or {}),
        records=most_spans(verified) if trace else 0,
        branches=not trace and waits_are_free(verified),
        protocol=verified.bound.protocol,
    )


def _signals(bound: Bound, kernel: Kernel, kind: type[Wait] | type[Notify]) -> frozenset[tuple[str, str]]:
    """The signals, (tensor, kind), that a kernel's stages wait for or send."""
    bodies = (statements(bound.stages[stage].stage.body) for stage in kernel.stage_names)
    return frozenset((s.region.tensor, s.kind) for body in bodies for s in body if isinstance(s, kind))
