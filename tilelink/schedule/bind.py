"""Binding: program x schedule x shapes x ranks x target -> everything concrete that the plan and the emitter share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tilelink.errors import BindingError, ScheduleError, TileSizeError
from tilelink.ir.mapping import ChannelGrid, TileMap, map_region
from tilelink.ir.program import Notify, Program, Region, Stage, Tensor, Transfer, Wait
from tilelink.ir.scalar import Index, Param, Ranks, Scalar, const, rewrite, substitute
from tilelink.ir.typing import infer
from tilelink.ir.visitor import statements
from tilelink.schedule.orders import decode
from tilelink.schedule.transform import (
    Numbers,
    all_indices,
    check_numbers,
    concretize,
    flip_direction,
    number_of,
    remote_reads,
    shape_of,
    split_whole,
    stage_regions,
    stage_writes,
    whole_dim,
)
from tilelink.schedule.values import CopyEngine, Fused, Order, Resource, Schedule, Sm, StageSchedule
from tilelink.target import Target

DEFAULT_TILE = {"compute": 64, "comm": 128}
DEFAULT_BLOCK = 64


@dataclass(frozen=True, kw_only=True)
class BoundTensor:
    """A tensor with its numbers. `slots` buffers of `shape` elements lie behind one another."""

    decl: Tensor
    number: int
    shape: tuple[int, ...]
    dtype: str
    slots: int

    @property
    def name(self) -> str:
        return self.decl.name

    @property
    def size(self) -> int:
        """Elements in one slot."""
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class BoundStage:
    """A stage with its tile sizes and its order.

    `tiles`, `extents` and `counts` cover loop indices too; `order` gives each domain index from the tile number `t`.
    """

    number: int
    stage: Stage
    resource: Resource
    scalar_indices: frozenset[str]
    tiles: Mapping[str, int]
    extents: Mapping[str, int]
    order: Mapping[str, Scalar]
    block: int
    """Elements of a whole axis handled at once inside a contraction or reduction."""
    warps: int
    stages: int

    @property
    def name(self) -> str:
        return self.stage.name

    def count(self, index: str) -> int:
        """How many tiles an index has."""
        return -(-self.extents[index] // self.tiles[index])

    @cached_property
    def total(self) -> int:
        """How many tiles the domain has."""
        return prod(self.count(d.name) for d in self.stage.indices)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop of a kernel over the tiles of its first stage; further stages do the same tile after it."""

    stages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Stages that run in the same programs: `loops` one after the other, `programs` executors of a stream."""

    name: str
    stream: str
    position: int
    programs: int
    loops: tuple[Loop, ...]
    warps: int
    stages: int
    reuse_lag: int
    """Waits that every peer has finished launch e - reuse_lag; 0 waits for nothing."""
    needs_entry: bool
    """Waits that every peer has entered launch e (it reads their inputs)."""

    @property
    def on_copy_engine(self) -> bool:
        return self.stream == "copy"


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A scheduled program with all numbers in place; `program` is concrete (see transform.concretize)."""

    source: Program
    program: Program
    schedule: Schedule
    numbers: Mapping[str, int | float | bool]
    ranks: int
    dtype: str
    target: Target
    tensors: Mapping[str, BoundTensor]
    stages: Mapping[str, BoundStage]
    kernels: tuple[Kernel, ...]
    channels: Mapping[tuple[str, str], ChannelGrid]
    """(tensor, signal kind) -> its counters."""
    entered_base: int
    finished_base: int
    pad_size: int
    """int32 counters in one rank's signal pad."""

    def tile_map(self, stage: str, region: Region) -> TileMap:
        """f_S, f_R and f_C of an access made by a stage."""
        bound = self.stages[stage]
        return map_region(region, self.tensors[region.tensor].shape, bound.tiles, bound.scalar_indices)

    def tensor_numbered(self, number: int) -> BoundTensor:
        return next(t for t in self.tensors.values() if t.number == number)


def bind(
    program: Program, schedule: Schedule | None, numbers: Numbers, ranks: int, target: Target, dtype: str = "f32"
) -> Bound:
    """Resolve a program and a schedule for given shapes, ranks and target; `schedule` None takes defaults."""
    if ranks < 1:
        raise BindingError(f"{ranks} ranks", hint="a program runs on at least one rank")
    schedule = schedule or Schedule(name="default", program=program.name)
    _check_names(program, schedule)
    numbers = check_numbers(program.params, numbers)
    shaped = _apply(program, schedule)
    concrete = concretize(shaped, numbers, ranks)
    stages = _bind_stages(shaped, concrete, schedule, numbers, ranks)
    tensors = _bind_tensors(shaped, schedule, numbers, ranks, dtype)
    channels, used = _channels(concrete, schedule, stages, tensors)
    bound = Bound(
        source=program,
        program=concrete,
        schedule=schedule,
        numbers=numbers,
        ranks=ranks,
        dtype=dtype,
        target=target,
        tensors=tensors,
        stages=stages,
        kernels=(),
        channels=channels,
        entered_base=used,
        finished_base=used + ranks,
        pad_size=used + 2 * ranks,
    )
    return replace(bound, kernels=_kernels(bound))


def _check_names(program: Program, schedule: Schedule) -> None:
    if schedule.program != program.name:
        message = f"schedule {schedule.name} is for {schedule.program}, not for {program.name}"
        raise ScheduleError(message, location=schedule.location, hint="choose a schedule of this program")
    stage_names = [s.name for s in program.stages]
    for stage in schedule.stages:
        if stage.name not in stage_names:
            hint = f"stages: {', '.join(stage_names)}"
            raise ScheduleError(f"no stage {stage.name!r}", location=stage.location, hint=hint)
        if isinstance(stage.resource, Fused) and stage.resource.stage not in stage_names:
            hint = f"stages: {', '.join(stage_names)}"
            raise ScheduleError(f"no stage {stage.resource.stage!r} to run in", location=stage.location, hint=hint)
    names = [t.name for t in program.tensors]
    for tensor in schedule.tensors:
        if tensor.name not in names:
            hint = f"tensors: {', '.join(names)}"
            raise ScheduleError(f"no tensor {tensor.name!r}", location=tensor.location, hint=hint)


def _apply(program: Program, schedule: Schedule) -> Program:
    """The rewrites that the schedule asks for: directions, and slices of whole dimensions."""
    stages: list[Stage] = []
    for stage in program.stages:
        part = schedule.stage(stage.name)
        if part.direction:
            stage = flip_direction(program, stage, part.direction, part.location)
        if stage.kind == "comm":
            names = {d.name for d in all_indices(stage)}
            for key, _ in part.tiles:
                if key not in names:
                    stage, _ = split_whole(program, stage, key, part.location)
        stages.append(stage)
    return replace(program, stages=tuple(stages))


def _resource(stage: Stage, part: StageSchedule) -> Resource:
    if part.resource is not None:
        return part.resource
    host = any(isinstance(s, Transfer) and s.mode == "copy" for s in statements(stage.body))
    return CopyEngine() if host and stage.kind == "comm" else Sm()


def _bind_stages(
    shaped: Program, concrete: Program, schedule: Schedule, numbers: Numbers, ranks: int
) -> dict[str, BoundStage]:
    typing = infer(shaped)
    bound: dict[str, BoundStage] = {}
    for number, stage in enumerate(concrete.stages):
        part = schedule.stage(stage.name)
        resource = _resource(stage, part)
        extents = {d.name: number_of(d.extent, numbers, ranks) for d in all_indices(stage)}
        scalars = typing.scalar_indices(stage.name)
        tiles, block = _tiles(shaped, stage, part, scalars, extents)
        counts = {d.name: -(-extents[d.name] // tiles[d.name]) for d in stage.indices}
        bound[stage.name] = BoundStage(
            number=number,
            stage=stage,
            resource=resource,
            scalar_indices=scalars,
            tiles=tiles,
            extents=extents,
            order=decode(_concrete_order(part.order, numbers, ranks), counts, part.location),
            block=block,
            warps=part.warps or 4,
            stages=part.stages or 3,
        )
    return _match_fused(bound)


def _concrete_order(order: Order | None, numbers: Numbers, ranks: int) -> Order | None:
    def change(expr: Scalar) -> Scalar | None:
        if isinstance(expr, Ranks):
            return const(ranks)
        return const(int(numbers[expr.name])) if isinstance(expr, Param) else None

    if order is None:
        return None
    terms = (replace(t, start=rewrite(t.start, change)) if t.start is not None else t for t in order.nest)
    return replace(order, nest=tuple(terms))


def _tiles(
    program: Program, stage: Stage, part: StageSchedule, scalars: frozenset[str], extents: Mapping[str, int]
) -> tuple[dict[str, int], int]:
    given = dict(part.tiles)
    tiles: dict[str, int] = {}
    for name, extent in extents.items():
        size = given.pop(name, None)
        if name in scalars:
            if size not in (None, 1):
                hint = f"{name} is used as a number (or runs over ranks), so its tiles have one element"
                raise TileSizeError(f"tile({name}={size}) of stage {stage.name}", location=part.location, hint=hint)
            tiles[name] = 1
        else:
            tiles[name] = min(size or DEFAULT_TILE[stage.kind], extent)
    block = DEFAULT_BLOCK
    for key, size in given.items():
        if whole_dim(program, stage, key) is None:
            hint = f"its indices are {', '.join(extents)}"
            message = f"stage {stage.name} has nothing named {key!r} to tile"
            raise TileSizeError(message, location=part.location, hint=hint)
        block = size
    return tiles, block


def _match_fused(stages: dict[str, BoundStage]) -> dict[str, BoundStage]:
    """A stage fused into the epilogue of one with the same domain takes that stage's tiles and order."""
    result = dict(stages)
    for name, bound in stages.items():
        if not isinstance(bound.resource, Fused) or bound.resource.place != "epilogue":
            continue
        host = stages[bound.resource.stage]
        if not same_domain(bound, host):
            continue
        pairs = list(zip(bound.stage.indices, host.stage.indices, strict=True))
        renamed = {h.name: Index(name=b.name) for b, h in pairs}
        order = {b.name: substitute(host.order[h.name], renamed) for b, h in pairs}
        tiles = {**bound.tiles, **{b.name: host.tiles[h.name] for b, h in pairs}}
        result[name] = replace(bound, tiles=tiles, order=order)
    return result


def same_domain(left: BoundStage, right: BoundStage) -> bool:
    """Whether two stages have as many indices with the same extents and the same use as numbers."""
    a, b = left.stage.indices, right.stage.indices
    return len(a) == len(b) and all(
        left.extents[x.name] == right.extents[y.name]
        and (x.name in left.scalar_indices) == (y.name in right.scalar_indices)
        for x, y in zip(a, b, strict=True)
    )


def _bind_tensors(
    program: Program, schedule: Schedule, numbers: Numbers, ranks: int, dtype: str
) -> dict[str, BoundTensor]:
    tensors: dict[str, BoundTensor] = {}
    for number, decl in enumerate(program.tensors):
        part = schedule.tensor(decl.name)
        slots = (part.buffers or 2) if decl.symmetric else 1
        kind = "i32" if decl.space == "table" else (decl.dtype or dtype)
        shape = shape_of(decl, numbers, ranks)
        tensors[decl.name] = BoundTensor(decl=decl, number=number, shape=shape, dtype=kind, slots=slots)
    return tensors


def _channels(
    program: Program, schedule: Schedule, stages: Mapping[str, BoundStage], tensors: Mapping[str, BoundTensor]
) -> tuple[dict[tuple[str, str], ChannelGrid], int]:
    """Lay out the counters: a grid for every (tensor, kind) that is notified or waited on."""
    grids: dict[tuple[str, str], ChannelGrid] = {}
    used = 0
    for kind_of in (Notify, Wait):
        for stage in program.stages:
            for statement in statements(stage.body):
                if not isinstance(statement, kind_of) or (statement.region.tensor, statement.kind) in grids:
                    continue
                key = (statement.region.tensor, statement.kind)
                sizes = _channel_sizes(program, schedule, stages[stage.name], statement.region, tensors)
                shape = tensors[key[0]].shape
                counts = tuple(-(-n // g) for n, g in zip(shape, sizes, strict=True))
                slots = tensors[key[0]].slots
                grids[key] = ChannelGrid(tensor=key[0], kind=key[1], sizes=sizes, counts=counts, base=used, slots=slots)
                used += grids[key].count * slots
    return grids, used


def _channel_sizes(
    program: Program, schedule: Schedule, stage: BoundStage, region: Region, tensors: Mapping[str, BoundTensor]
) -> tuple[int, ...]:
    tensor = tensors[region.tensor]
    spans = map_region(region, tensor.shape, stage.tiles, stage.scalar_indices).spans
    sizes = [max(1, s.size) for s in spans]
    part = schedule.tensor(tensor.name)
    for key, size in part.channel:
        dims = dims_called(program, tensor.decl, key)
        if not dims:
            hint = "name a dimension, or an index that runs along one"
            raise TileSizeError(f"channel({key}={size}) of {tensor.name}", location=part.location, hint=hint)
        for d in dims:
            sizes[d] = min(size, tensor.shape[d])
    return tuple(sizes)


def dims_called(program: Program, tensor: Tensor, key: str) -> list[int]:
    """The dimensions of a tensor that a schedule means by a name: of the dimension, or of an index along it."""
    named = [d for d, n in enumerate(tensor.shape) if getattr(n, "name", "ranks").lower() == key.lower()]
    if named:
        return named[:1]
    for stage in program.stages:
        for region in stage_regions(stage):
            if region.tensor == tensor.name:
                for d, coord in enumerate(region.coords):
                    if isinstance(coord, Index) and coord.name == key:
                        return [d]
    return []


def _kernels(bound: Bound) -> tuple[Kernel, ...]:
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
    return (*before, Loop(stages=tuple(same)), *after)


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
    programs = wanted or max(1, bound.target.slots - sum(own))
    cap = bound.target.max_programs
    return max(1, min(programs, total, cap or programs))


def _remote_tensors(bound: Bound, stage: BoundStage) -> list[str]:
    """Symmetric tensors that the stage shares with peers: it touches a peer's copy (data or signals), or it writes
    the own copy of one that peers read."""
    pulled = {r.tensor for s in bound.program.stages for r in remote_reads(s)}
    written = [r.tensor for r in stage_writes(stage.stage) if r.rank is None and r.tensor in pulled]
    return [r.tensor for r in stage_regions(stage.stage) if r.rank is not None] + written
