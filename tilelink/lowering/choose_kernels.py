"""Division of stages into kernels: their streams, numbers of CTAs and the waits at their start."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count

from tilelink.errors import ScheduleError
from tilelink.ir.program import Assign, For, Local, Stage, Statement, Value
from tilelink.ir.visitor import map_statements, map_values, stage_regions, statements
from tilelink.lowering.bound import Bound, BoundStage, Kernel, Loop, same_domain, with_bodies
from tilelink.lowering.clauses.clause import said
from tilelink.lowering.transform import remote_reads, stage_writes
from tilelink.scheduling.schedule import CopyEngine, Fused, Sm


def kernels_of(bound: Bound) -> tuple[Kernel, ...]:
    """Return the kernels of a bound program, in the order of their stages."""
    hosts = [s for s in bound.stages.values() if not isinstance(s.resource, Fused)]
    loops_of = {host.name: _loops(bound, host) for host in hosts}
    programs = _programs(bound, hosts, {name: _tiles(bound, loops) for name, loops in loops_of.items()})
    kernels: list[Kernel] = []
    positions: dict[str, int] = {}
    touched = _touched(bound)
    for host in hosts:
        stream = _stream(host)
        loops = loops_of[host.name]
        names = [n for loop in loops for n in loop.stages]
        position = positions.get(stream, 0)
        positions[stream] = position + 1
        remote = [t for n in names for t in _remote_tensors(bound, touched, bound.stages[n])]
        entry = any(
            bound.tensors[r.tensor].decl.space == "in" for n in names for r in remote_reads(bound.stages[n].stage)
        )
        lag = min((bound.tensors[t].buffers for t in remote), default=0)
        kernels.append(
            Kernel(
                name=host.name,
                stream=stream,
                position=position,
                programs=programs[host.name],
                loops=loops,
                num_warps=host.num_warps,
                num_stages=host.num_stages,
                reuse_lag=lag if bound.schedule.reuse_wait else 0,
                needs_entry=entry,
                programs_per_cta=_programs_per_cta(host),
            )
        )
    return tuple(kernels)


def with_own_names(bound: Bound) -> Bound:
    """Return the bound program in which stages that share a loop of a kernel share no names of values.

    The loop is one scope of the generated kernel: Triton refuses a branch or an inner loop that gives a name of it
    another shape or type.
    """
    bodies: dict[str, tuple[Statement, ...]] = {}
    for stages in ([bound.program.stage(name) for name in loop.stages] for k in bound.kernels for loop in k.loops):
        taken = {*bound.tensors, *(name for one in stages for name in (*_indices(one), *_values(one)))}
        used = {name for one in stages for name in _indices(one)} if len(stages) > 1 else set[str]()
        for stage in stages:
            new: dict[str, str] = {}
            for name in (name for name in _values(stage) if name in used):
                new[name] = next(one for number in count(1) if (one := f"{name}_{number}") not in taken)
                taken.add(new[name])
            used.update(_values(stage))
            bodies[stage.name] = _renamed(stage.body, new) if new else stage.body
    return with_bodies(bound, bodies)


def _values(stage: Stage) -> Collection[str]:
    return dict.fromkeys(s.name for s in statements(stage.body) if isinstance(s, Assign))


def _indices(stage: Stage) -> Collection[str]:
    loops = (s for s in statements(stage.body) if isinstance(s, For))
    return {decl.name for decl in (*stage.indices, *(decl for loop in loops for decl in loop.indices))}


def _renamed(body: tuple[Statement, ...], new: Mapping[str, str]) -> tuple[Statement, ...]:
    def on_value(value: Value) -> Value | None:
        return replace(value, name=new.get(value.name, value.name)) if isinstance(value, Local) else None

    def on_statement(statement: Statement) -> Statement:
        if isinstance(statement, Assign):
            return replace(statement, name=new.get(statement.name, statement.name))
        return statement

    return map_statements(map_values(body, on_value), on_statement)


def _own(stage: BoundStage) -> int | None:
    """Return the number of SMs that the schedule reserves for the stage, or None if it takes the remaining ones."""
    return stage.resource.programs if isinstance(stage.resource, Sm) else None


def _programs_per_cta(stage: BoundStage) -> int:
    """Return how many programs of the stage share an SM."""
    return stage.tma_copy.programs if stage.tma_copy else 1


def _stream(stage: BoundStage) -> str:
    if isinstance(stage.resource, CopyEngine):
        return "copy"
    if _own(stage) is None:
        return "main"
    return f"own {stage.name}" if stage.name in ("main", "copy") else stage.name


def _loops(bound: Bound, host: BoundStage) -> tuple[Loop, ...]:
    """Return the loops of a kernel.

    They are the prologue stages, the host with the epilogues that share its domain, and the other epilogues.
    """
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


def _tiles(bound: Bound, loops: tuple[Loop, ...]) -> int:
    """Return the largest useful number of programs: the most tiles, or parts of tiles, of any loop."""
    return max(bound.stages[n].total * _parts(bound, n) for loop in loops for n in loop.stages)


def _parts(bound: Bound, stage: str) -> int:
    """Return into how many parts at most clauses divide the product of a tile."""
    part = bound.schedule.stage(stage)
    return max((clause.parts(part[clause]) for clause in said(part) if clause.parts is not None), default=1)


def _programs(bound: Bound, hosts: list[BoundStage], tiles: Mapping[str, int]) -> dict[str, int]:
    """Return the number of programs of each kernel.

    It is the number that the schedule asks for, or else the number that those kernels leave free. It is at most the
    number of tiles, and the latter at most the limit of the target, as is the former where its places are limited. If
    a stage is too small to use all of its reserved SMs, the others may use the rest.
    """
    cap = bound.target.max_programs
    most = {host.name: min(tiles[host.name], cap or tiles[host.name]) for host in hosts}
    own = tiles if bound.target.grows else most
    reserved = {
        host.name: max(1, min(asked, -(-own[host.name] // _programs_per_cta(host))))
        for host in hosts if (asked := _own(host)) is not None
    }  # fmt: skip
    resident, taken = bound.target.resident_programs, sum(reserved.values())
    result: dict[str, int] = {}
    for host in hosts:
        on_copy_engine = isinstance(host.resource, CopyEngine)
        if host.name not in reserved and not on_copy_engine and bound.target.kind != "cpu" and taken >= resident:
            message = f"stages on SMs of their own take {taken} programs, and a rank of {bound.target} holds {resident}"
            hint = f"give them fewer, so that some are left for {host.stage.name}"
            raise ScheduleError(message, location=bound.schedule.location, hint=hint)
        room = most[host.name] if bound.target.grows else resident - taken
        left = max(1, min(room, most[host.name]))
        on_sms = reserved[host.name] * _programs_per_cta(host) if host.name in reserved else left
        result[host.name] = 1 if on_copy_engine else on_sms
    return result


def _touched(bound: Bound) -> frozenset[str]:
    """Return the tensors of which some stage reads or writes a peer's copy."""
    read = {r.tensor for s in bound.program.stages for r in remote_reads(s)}
    return frozenset(read | {r.tensor for s in bound.program.stages for r in stage_writes(s) if r.rank is not None})


def _remote_tensors(bound: Bound, touched: frozenset[str], stage: BoundStage) -> list[str]:
    """Return the symmetric tensors that the stage shares with peers.

    The stage accesses a peer's copy (data or signals), or it writes the local copy of a tensor that peers read or
    write. Of a tensor that launches keep, it also reads what a peer may have written in the launch before.
    """
    regions = list(stage_regions(stage.stage))
    written = [r.tensor for r in stage_writes(stage.stage) if r.rank is None and r.tensor in touched]
    kept = [r.tensor for r in regions if r.tensor in touched and bound.tensors[r.tensor].decl.in_place]
    return [r.tensor for r in regions if r.rank is not None] + written + kept
