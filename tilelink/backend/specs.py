"""Specifications of the functions of a generated module, as the artifact stores them."""

from __future__ import annotations

from tilelink.artifact import CopyProgram, KernelSpec
from tilelink.backend.context import KernelContext
from tilelink.ir.program import NetworkFence, NetworkQuiet, Notify, Statement, Transfer, Wait
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound, Kernel
from tilelink.lowering.issue_order import signals

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
        awaits=signals(bound, kernel, Wait),
        notifies=signals(bound, kernel, Notify),
        programs=kernel.programs,
        num_warps=MIN_GLUON_WARPS if context.gluon else kernel.warps,
        num_stages=kernel.stages,
        programs_per_cta=context.tma_copy.programs_per_cta if context.tma_copy else 1,
        turn=kernel.turn,
        parameters=context.args,
        uses_network=any(map(_of_network, _statements(bound, kernel))),
    )


def copy_program(bound: Bound, kernel: Kernel, context: KernelContext) -> CopyProgram:
    """Return the specification of a kernel on the copy engine."""
    return CopyProgram(
        name=kernel.name,
        stream=kernel.stream,
        position=kernel.position,
        track=context.launch.track,
        needs_entry=kernel.needs_entry,
        awaits=signals(bound, kernel, Wait),
        notifies=signals(bound, kernel, Notify),
    )


def _statements(bound: Bound, kernel: Kernel) -> list[Statement]:
    return [s for stage in kernel.stage_names for s in statements(bound.stages[stage].stage.body)]


def _of_network(statement: Statement) -> bool:
    match statement:
        case Transfer(mode="put" | "get") | Notify(by_network=True) | NetworkFence() | NetworkQuiet():
            return True
        case _:
            return False
