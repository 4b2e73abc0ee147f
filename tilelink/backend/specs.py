"""Specifications of the functions of a generated module, as the artifact stores them."""

from __future__ import annotations

from tilelink.artifact import CopyProgram, KernelSpec
from tilelink.backend.context import KernelContext, TmaCopyContext
from tilelink.backend.frame import Frame

MIN_GLUON_WARPS = 4
"""Least number of warps of Gluon's default partition in a warp-specialized kernel."""


def kernel_spec(frame: Frame, context: KernelContext) -> KernelSpec:
    """Return the specification of a kernel on SMs."""
    kernel, usage = frame.kernel, frame.usage
    return KernelSpec(
        name=kernel.name,
        stream=kernel.stream,
        position=kernel.position,
        track=usage.track,
        needs_entry=kernel.needs_entry,
        awaits=frozenset(usage.waits),
        notifies=usage.notifies,
        programs=kernel.programs,
        num_warps=MIN_GLUON_WARPS if context.gluon else kernel.num_warps,
        num_stages=kernel.num_stages,
        programs_per_cta=context.warps.programs_per_cta if isinstance(context.warps, TmaCopyContext) else 1,
        issue_index=kernel.issue_index,
        parameters=context.args,
        uses_network=usage.uses_network,
    )


def copy_program(frame: Frame) -> CopyProgram:
    """Return the specification of a kernel on the copy engine."""
    kernel, usage = frame.kernel, frame.usage
    return CopyProgram(
        name=kernel.name,
        stream=kernel.stream,
        position=kernel.position,
        track=usage.track,
        needs_entry=kernel.needs_entry,
        awaits=frozenset(usage.waits),
        notifies=usage.notifies,
    )
