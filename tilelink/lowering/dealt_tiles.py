"""Which kernels let a launch decide the programs of their tiles: of `dynamic` and of `program_per_tile`."""

from __future__ import annotations

from tilelink.ir.program import Notify, Transfer
from tilelink.ir.visitor import awaited, notified, statements
from tilelink.lowering.bound import Bound, Kernel, KernelKind, Transport
from tilelink.lowering.issue_order import signals


def static_reason(bound: Bound, kernel: Kernel) -> str | None:
    """Return why the programs of a kernel must know their tiles when they begin, or None."""
    stage = bound.stages[kernel.name]
    if kernel.on_copy_engine or stage.transport is not Transport.STORES or stage.tma_copy is not None:
        return "its programs are not those of a kernel of tiles"
    if stage.kind is KernelKind.ROLES:
        return "its warps have roles, and each role counts the tiles"
    if len(kernel.stage_names) > 1 or kernel.loops[0].width is not None:
        return "another stage runs in its kernel"
    if kernel.program_per_tile:
        return "it has a program for each tile"
    if stage.flatten:
        return "its pipeline goes through all tiles of a program"
    if stage.notified_in is not None:
        return "a tile is notified by the next one of its program"
    if (clause := bound.stages[kernel.name].tied) is not None:
        return f"`{clause}` ties the tiles of a program to one another"
    return None


def dealing_reason(bound: Bound, kernel: Kernel) -> str | None:
    """Return why the tiles of a kernel cannot each have a program of their own, or None."""
    if kernel.on_copy_engine or bound.stages[kernel.name].transport is not Transport.STORES:
        return "it does not run in CTAs of its own"
    if len(kernel.stage_names) > 1 or kernel.loops[0].width is not None:
        return "another stage runs in its kernel"
    if any(one.stream != "main" for one in bound.on_sms):
        return "another kernel runs on SMs at the same time"
    if bound.nodes > 1:
        return "its rank is one of several nodes"
    if (clause := bound.stages[kernel.name].tied) is not None:
        return f"`{clause}` ties the tiles of a program to one another"
    body = list(statements(bound.stages[kernel.name].stage.body))
    if any(isinstance(one, Notify | Transfer) for one in body) and _is_after_waits(bound, kernel):
        return "its tiles wait for what may come after other tiles that wait"
    return None


def _is_after_waits(bound: Bound, kernel: Kernel) -> bool:
    """True if what the tiles of a kernel wait for is told by kernels that wait, or that come after such ones.

    Else it is told whichever tiles have begun.
    """
    wanted = signals(bound, kernel, awaited)
    told_by = [one for one in bound.kernels if wanted & signals(bound, one, notified)]
    return any(
        signals(bound, one, awaited)
        for other in told_by
        for one in bound.kernels
        if one.stream == other.stream and one.position <= other.position
    )
