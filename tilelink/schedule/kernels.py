"""Kernels: which stages run in the same programs, on which stream, with how many programs and which waits."""

from __future__ import annotations

from dataclasses import replace

from tilelink.errors import ScheduleError
from tilelink.ir.visitor import stage_regions
from tilelink.schedule.bound import Bound, BoundStage, Kernel, Loop, same_domain
from tilelink.schedule.transform import remote_reads, stage_writes
from tilelink.schedule.values import CopyEngine, Fused, Sm


def kernels_of(bound: Bound) -> tuple[Kernel, ...]:
    """The kernels of a bound program, in the order of their stages."""
    hosts = [s for s in bound.stages.values() if not isinstance(s.resource, Fused)]
    kernels: list[Kernel] = []
    positions: dict[str, int] = {}
    for host in hosts:
        stream = _stream(host)
        loops = _loops(bound, host)
        names = [n for loop in loops for n in loop.stages]
        position = positions.get(stream, 0)
        positions[stream] = position + 1
        total = max(bound.stages[n].total for n in names)
        remote = [t for n in names for t in _remote_tensors(bound, bound.stages[n])]
        entry = any(
            bound.tensors[r.tensor].decl.space == "in" for n in names for r in remote_reads(bound.stages[n].stage)
        )
        lag = min((bound.tensors[t].slots for t in remote), default=0)
        kernels.append(
            Kernel(
                name=host.name,
                stream=stream,
                position=position,
                programs=_programs(bound, host, total),
                loops=loops,
                warps=host.warps,
                stages=host.stages,
                reuse_lag=lag if bound.schedule.reuse_wait else 0,
                needs_entry=entry,
            )
        )
    return tuple(kernels)


def _stream(stage: BoundStage) -> str:
    if isinstance(stage.resource, CopyEngine):
        return "copy"
    own = isinstance(stage.resource, Sm) and stage.resource.programs is not None
    return stage.name if own else "main"


def _loops(bound: Bound, host: BoundStage) -> tuple[Loop, ...]:
    """Prologue stages, the host with the epilogues that share its domain, then the other epilogues."""
    before: list[Loop] = []
    same: list[str] = [host.name]
    after: list[Loop] = []
    for stage in bound.stages.values():
        if not isinstance(stage.resource, Fused) or stage.resource.stage != host.name:
            continue
        if stage.resource.place == "prologue":
            before.append(Loop(stages=(stage.name,)))
        elif same_domain(stage, host):
            same.append(stage.name)
        else:
            after.append(Loop(stages=(stage.name,)))
    loops: list[Loop] = []
    first = 0
    for loop in (*before, Loop(stages=tuple(same)), *after):
        loops.append(replace(loop, first=first))
        first += bound.stages[loop.stages[0]].total
    return tuple(loops)


def _programs(bound: Bound, host: BoundStage, total: int) -> int:
    """Programs of a kernel: what the schedule says, else what others leave free; capped by tiles and target."""
    if isinstance(host.resource, CopyEngine):
        return 1
    own = [
        s.resource.programs or 0
        for s in bound.stages.values()
        if isinstance(s.resource, Sm) and s.resource.programs is not None
    ]
    wanted = host.resource.programs if isinstance(host.resource, Sm) else None
    if wanted is None and bound.target.kind != "cpu" and sum(own) >= bound.target.slots:
        held = f"a rank of {bound.target} holds {bound.target.slots}"
        message = f"stages on SMs of their own take {sum(own)} programs, and {held}"
        hint = f"give them fewer, so that some are left for {host.stage.name}"
        raise ScheduleError(message, location=bound.schedule.location, hint=hint)
    programs = wanted or max(1, bound.target.slots - sum(own))
    cap = bound.target.max_programs
    return max(1, min(programs, total, cap or programs))


def _remote_tensors(bound: Bound, stage: BoundStage) -> list[str]:
    """Symmetric tensors that the stage shares with peers: it touches a peer's copy (data or signals), or it writes
    the own copy of one that peers read or write."""
    read = {r.tensor for s in bound.program.stages for r in remote_reads(s)}
    touched = read | {r.tensor for s in bound.program.stages for r in stage_writes(s) if r.rank is not None}
    written = [r.tensor for r in stage_writes(stage.stage) if r.rank is None and r.tensor in touched]
    return [r.tensor for r in stage_regions(stage.stage) if r.rank is not None] + written
