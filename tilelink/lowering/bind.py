"""Binding: combine program, schedule, shapes, ranks and target into the concrete program of the planner and emitter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral

from tilelink.capabilities import capabilities
from tilelink.errors import BindingError, DtypeError, ScheduleError, TileSizeError
from tilelink.ir.depth import deep
from tilelink.ir.groups import check_groups
from tilelink.ir.parameters import Numbers, check_numbers
from tilelink.ir.program import Notify, Program, Stage, Transfer, Wait
from tilelink.ir.scalar import Index, substitute
from tilelink.ir.typing import Typing, infer
from tilelink.ir.visitor import all_indices, statements
from tilelink.ir.words import foreign
from tilelink.lowering import default_tiles
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor, same_domain, with_channels
from tilelink.lowering.channel_grids import grids_of
from tilelink.lowering.clauses import clauses, lacking
from tilelink.lowering.clauses.buffers import BUFFERS
from tilelink.lowering.clauses.clause import tying
from tilelink.lowering.clauses.defer_notify import DEFER_NOTIFY
from tilelink.lowering.clauses.order import ORDER
from tilelink.lowering.clauses.pipeline import NUM_STAGES, NUM_WARPS
from tilelink.lowering.clauses.resource import RESOURCE
from tilelink.lowering.clauses.tile import TILE
from tilelink.lowering.launch_decided import check_launch_decided
from tilelink.lowering.limits import MAX_RANKS, check_capabilities, check_elements, check_size
from tilelink.lowering.orders import concrete_order, decode
from tilelink.lowering.passes import steps
from tilelink.lowering.ranges import check_declarations, check_ranges
from tilelink.lowering.reductions import check_reductions
from tilelink.lowering.slots import Slotted, with_slots
from tilelink.lowering.transform import (
    concretize,
    number_of,
    shape_of,
)
from tilelink.scheduling.schedule import CopyEngine, Fused, Resource, Schedule, Sm
from tilelink.scheduling.words import SchedulePart, StageSchedule, check_names, check_values
from tilelink.target import Target

FLOATS = ("f16", "bf16", "f32")
"""Element types that a program can be compiled for."""


@deep()
def bind(
    program: Program,
    schedule: Schedule | None,
    numbers: Numbers,
    ranks: int,
    target: Target,
    dtype: str = "f32",
    on_step: Callable[[str, Bound], None] | None = None,
    nodes: int = 1,
    dialect: str = "triton",
) -> Bound:
    """Return the lowered program for given shapes, ranks and target.

    If `schedule` is None, defaults are used.

    on_step: called with "bind" and the bound program, then with the name of each pass and the program after that pass.
    nodes: how many nodes the ranks fill one after the other.
    dialect: of the kernels to be generated. Passes leave out the forms of kernels that it lacks.
    """
    if not isinstance(ranks, Integral) or ranks < 1:  # callers may pass any type
        hint = "a program runs on at least one rank" if isinstance(ranks, Integral) else "an integer, as in ranks=4"
        raise BindingError(f"{ranks!r} ranks", hint=hint)
    if ranks > MAX_RANKS:
        raise BindingError(f"{ranks:,} ranks", hint=f"a program runs on {MAX_RANKS:,} ranks at most")
    ranks = int(ranks)  # NumPy's integers would overflow in the products below
    _check_nodes(nodes, ranks)
    if dtype not in FLOATS:
        raise DtypeError(f"unknown dtype {str(dtype)!r}", hint=f"one of {', '.join(FLOATS)}")
    schedule = schedule or Schedule(name="default", program=program.name)
    bound = _with_numbers(program, schedule, numbers, ranks, target, dtype, int(nodes), dialect)
    result = bound
    for name, result in steps(bound):
        if on_step is not None:
            on_step(name, result)
    return result


def _with_numbers(
    program: Program,
    schedule: Schedule,
    numbers: Numbers,
    ranks: int,
    target: Target,
    dtype: str,
    nodes: int,
    dialect: str,
) -> Bound:
    """Return the bound program before all passes: everything has a number, and no kernel is chosen."""
    _check_parts(program, schedule)
    numbers = check_numbers(program.params, numbers)
    check_groups(program, ranks, lambda expr: number_of(expr, numbers, ranks))
    slotted = with_slots(_apply(program, schedule), schedule, numbers, ranks)
    shaped = _in_order(slotted.program, schedule, target)
    concrete = concretize(shaped, infer(shaped), numbers, ranks)
    typing = infer(concrete)
    stages = _bind_stages(concrete, typing, schedule, numbers, ranks, nodes)
    check_launch_decided(stages, typing, schedule, nodes)
    check_reductions(stages, typing, ranks)
    able = capabilities(target, dialect)
    tensors = _bind_tensors(slotted, schedule, numbers, ranks, dtype)
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
        channels={},
        entered_base=0,
        finished_base=ranks,
        pad_size=2 * ranks,
        nodes=nodes,
        capabilities=able,
        left_out=(*lacking(schedule, able), *slotted.left_out),
    )
    bound = with_channels(bound, grids_of(bound))
    check_capabilities(bound)
    check_size(bound)
    check_ranges(bound)
    check_declarations(bound)
    check_elements(bound, typing)
    return bound


def _check_nodes(nodes: int, ranks: int) -> None:
    if not isinstance(nodes, Integral) or nodes < 1 or ranks % nodes:  # callers may pass any type
        hint = "nodes have equally many ranks: take a number of nodes that divides the number of ranks"
        raise BindingError(f"{ranks} ranks on {nodes!r} nodes", hint=hint)


def _check_parts(program: Program, schedule: Schedule) -> None:
    if not isinstance(schedule, Schedule):  # pyright: ignore[reportUnnecessaryIsInstance] - callers need not be typed
        hint = f"take it from its file: module.schedule({schedule!r}, program)"
        raise ScheduleError(f"{schedule!r} is not a schedule", hint=hint)
    if schedule.program != program.name:
        message = f"schedule {schedule.name} is for {schedule.program}, not for {program.name}"
        raise ScheduleError(message, location=schedule.location, hint="choose a schedule of this program")
    parts: tuple[SchedulePart, ...] = (*schedule.stages, *schedule.tensors)
    for part in parts:
        check_values(part)
    for error in foreign(schedule):
        raise ScheduleError(error.message, location=error.location or schedule.location, hint=error.hint)
    for part in parts:
        check_names(program, part)
    for part in schedule.stages:
        host = part[RESOURCE]
        if isinstance(host, Fused) and isinstance(schedule.stage(host.stage)[RESOURCE], Fused):
            message = f"{part.name} is to run in {host.stage}, which has no kernel of its own"
            raise ScheduleError(message, location=part.at("resource"), hint="name the stage whose kernel it is")


def _apply(program: Program, schedule: Schedule) -> Program:
    """Apply the rewrites of the schedule that need no numbers: directions, and indices over whole dimensions."""
    stages: list[Stage] = []
    for stage in program.stages:
        part = schedule.stage(stage.name)
        for clause in clauses():
            if part[clause] != clause.default:
                stage = clause.rewrite(program, stage, part)
        stages.append(stage)
    same = all(new is old for new, old in zip(stages, program.stages, strict=True))
    return program if same else replace(program, stages=tuple(stages))


def _resource(program: Program, stage: Stage, part: StageSchedule, nodes: int) -> Resource:
    """Return the resource that the schedule names, or the default.

    The default is the copy engine for host primitives, which does not reach other nodes, and otherwise the SMs, in the
    order of the stages. A stage that an earlier one waits for cannot run after it: it gets its own CTAs.
    """
    said = part[RESOURCE]
    if said is not None:
        return said
    copies = any(isinstance(s, Transfer) and s.mode == "copy" for s in statements(stage.body))
    if stage.kind == "comm" and copies and nodes == 1:
        return CopyEngine()
    earlier = program.stages[: [s.name for s in program.stages].index(stage.name)]
    return Sm(programs=1) if any(_awaited(one) & _notified(stage) for one in earlier) else Sm()


def _awaited(stage: Stage) -> set[str]:
    return {s.region.tensor for s in statements(stage.body) if isinstance(s, Wait)}


def _notified(stage: Stage) -> set[str]:
    return {s.region.tensor for s in statements(stage.body) if isinstance(s, Notify)}


def _in_order(program: Program, schedule: Schedule, target: Target) -> Program:
    """Return the program with its stages in the order of their signals, if the defaults would need more SMs than there
    are: a stage that an earlier one waits for gets one of its own.

    Nothing changes if a schedule says where some stage runs, or if stages wait for one another.
    """
    if any(schedule.stage(stage.name)[RESOURCE] is not None for stage in program.stages):
        return program
    pairs = [(a, b) for at, b in enumerate(program.stages) for a in program.stages[:at] if _awaited(a) & _notified(b)]
    if len({late.name for _, late in pairs}) < target.sms:
        return program
    left, ordered = [*program.stages], list[Stage]()
    while left:
        free = (s for s in left if not any(s is not other and _awaited(s) & _notified(other) for other in left))
        first = next(free, None)
        if first is None:
            return program
        left.remove(first)
        ordered.append(first)
    return replace(program, stages=tuple(ordered))


def _bind_stages(
    concrete: Program, typing: Typing, schedule: Schedule, numbers: Numbers, ranks: int, nodes: int
) -> dict[str, BoundStage]:
    bound: dict[str, BoundStage] = {}
    for number, stage in enumerate(concrete.stages):
        part = schedule.stage(stage.name)
        resource = _resource(concrete, stage, part, nodes)
        extents = {d.name: max(0, number_of(d.extent, numbers, ranks)) for d in all_indices(stage)}
        scalars = typing.scalar_indices(stage.name)
        sizes = default_tiles.default_sizes(typing.stage(stage.name), dict(part[TILE]), extents, numbers, ranks)
        tiles, block = _tiles(part, sizes, extents)
        counts = {d.name: -(-extents[d.name] // tiles[d.name]) for d in stage.indices}
        bound[stage.name] = BoundStage(
            number=number,
            stage=stage,
            resource=resource,
            scalar_indices=scalars,
            tiles=tiles,
            extents=extents,
            order=decode(concrete_order(part[ORDER], part, numbers, ranks), counts, part),
            nest=part[ORDER],
            block=block,
            num_warps=part[NUM_WARPS] or 4,
            num_stages=part[NUM_STAGES] or 3,
            defer_notify=part[DEFER_NOTIFY],
            tied=tying(schedule, stage.name),
        )
    return _match_fused(bound)


def _tiles(part: StageSchedule, sizes: Mapping[str, int], extents: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return the tile size of every index, and the block size of the contraction. Scalar indices have size 1."""
    given = dict(part[TILE])
    for name in extents:
        size = given.pop(name, None)
        if name not in sizes and size not in (None, 1):
            hint = f"{name} is used as a number (or runs over ranks), so its tiles have one element"
            message = f"tile({name}={size}) of stage {part.name}"
            raise TileSizeError(message, location=part.at(f"tile.{name}"), hint=hint)
    tiles = {name: sizes.get(name, 1) for name in extents}
    return tiles, [default_tiles.BLOCK, *given.values()][-1]


def _match_fused(stages: dict[str, BoundStage]) -> dict[str, BoundStage]:
    """Give a stage fused into the epilogue of one with the same domain the tiles and the order of that stage."""
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
        nest = host.nest and host.nest.renamed({h.name: b.name for b, h in pairs})
        tiles = {**bound.tiles, **{b.name: host.tiles[h.name] for b, h in pairs}}
        result[name] = replace(bound, tiles=tiles, order=order, nest=nest)
    return result


def _bind_tensors(
    slotted: Slotted, schedule: Schedule, numbers: Numbers, ranks: int, dtype: str
) -> dict[str, BoundTensor]:
    tensors: dict[str, BoundTensor] = {}
    for number, decl in enumerate(slotted.program.tensors):
        part = schedule.tensor(slotted.credits.get(decl.name, decl.name))
        buffers = (part[BUFFERS] or 2) if decl.symmetric and not decl.in_place else 1
        kind = "i32" if decl.space == "table" else (decl.dtype or dtype)
        shape = shape_of(decl, numbers, ranks)
        group = None if decl.on is None else slotted.program.group(decl.on)
        ends = None if group is None else tuple(number_of(end, numbers, ranks) for end in (group.start, group.stop))
        members = None if ends is None or ends == (0, ranks) else (ends[0], ends[1])
        tensors[decl.name] = BoundTensor(
            decl=decl,
            number=number,
            shape=shape,
            dtype=kind,
            buffers=buffers,
            steps=slotted.steps.get(decl.name),
            credits=slotted.credits.get(decl.name),
            members=members,
        )
    return tensors
