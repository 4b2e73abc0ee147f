"""Specifications of the functions of a generated module, as the artifact stores them."""

from __future__ import annotations

from tilelink.artifact import CopyProgram, KernelSpec, Signal
from tilelink.backend.context import KernelContext
from tilelink.ir.program import Notify, Wait
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound, Kernel

MIN_GLUON_WARPS = 4
"""Least number of warps of Gluon's default partition in a warp-specialized kernel."""


def kernel_spec(bound: Bound, kernel: Kernel, context: KernelContext) -> KernelSpec:
    """Return the specification of a kernel on SMs."""
    return KernelSpec(
        name=kernel.name,
        stream=kernel.stream,
        position=kernel.position,
        track=context.launch.track,
        needs_entry=kernel.needs_entry,
        awaits=_signals(bound, kernel, Wait),
        notifies=_signals(bound, kernel, Notify),
        programs=kernel.programs,
        num_warps=MIN_GLUON_WARPS if context.gluon else kernel.warps,
        num_stages=kernel.stages,
        programs_per_cta=context.tma_copy.programs_per_cta if context.tma_copy else 1,
        parameters=context.args,
    )


def copy_program(bound: Bound, kernel: Kernel, context: KernelContext) -> CopyProgram:
    """Return the specification of a kernel on the copy engine."""
    return CopyProgram(
        name=kernel.name,
        stream=kernel.stream,
        position=kernel.position,
        track=context.launch.track,
        needs_entry=kernel.needs_entry,
        awaits=_signals(bound, kernel, Wait),
        notifies=_signals(bound, kernel, Notify),
    )


def _signals(bound: Bound, kernel: Kernel, kind: type[Wait] | type[Notify]) -> frozenset[Signal]:
    """Return the signals that a kernel's stages wait for or notify."""
    bodies = (statements(bound.stages[stage].stage.body) for stage in kernel.stage_names)
    return frozenset((s.region.tensor, s.kind) for body in bodies for s in body if isinstance(s, kind))
