"""`kernel_order`: a tensor without signals, because kernels that run one after the other are order enough.

What one kernel of a stream has written the next one reads: no counter has to say so again for each tile. This pass
takes the notifies and waits of a tensor away. Nothing is taken on trust: the plan is made of what is left, and the
rules refuse it where the order of kernels does not suffice, as between kernels of two streams, or tiles of one. Signals
that name what is not there stay, so that they are refused as with any other schedule.

before: compute widen(i: M, f: F):
            hidden[i, f] = silu(dot(x[i, :], up[f, :].T))
            producer_tile_notify(hidden[i, f])
        compute narrow(i: M, j: N):
            consumer_tile_wait(hidden[i, :])
            y[i, j] = dot(hidden[i, :], down[j, :].T)
after:  compute widen(i: M, f: F):
            hidden[i, f] = silu(dot(x[i, :], up[f, :].T))
        compute narrow(i: M, j: N):
            y[i, j] = dot(hidden[i, :], down[j, :].T)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from tilelink.errors import ScheduleError
from tilelink.ir.program import For, If, Notify, Program, Region, Statement, Wait
from tilelink.ir.scalar import Rank, Whole, at_launch
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound, BoundStage, with_bodies, with_channels
from tilelink.lowering.clauses.clause import Clause, Phase, switch
from tilelink.lowering.enumerate import Partial
from tilelink.lowering.insert_barriers import accesses
from tilelink.lowering.words import names_in
from tilelink.scheduling.words import SchedulePart


def _apply(bound: Bound) -> Bound:
    """Return the bound program without the signals of the tensors that have the clause."""
    names = {part.name for part in bound.schedule.tensors if part[KERNEL_ORDER]}
    for name in sorted(names):
        if not any(tensor == name for tensor, _ in bound.channels):
            bound = bound.leaving_out(KERNEL_ORDER.name, name, "it has no signals")
    if any(_by_tables(bound, stage, names) for stage in bound.stages.values()):
        place = next(part.at("kernel_order") for part in bound.schedule.tensors if part[KERNEL_ORDER])
        hint = "take `kernel_order` away: where the table's entries are known, signals that they place are checked"
        raise ScheduleError("kernel_order of a tensor whose signals a table places", location=place, hint=hint)
    alone = {name: {*map(id, _alone(bound, name, stage.stage.body, names))} for name, stage in bound.stages.items()}
    if not names or (any(alone.values()) and Partial(bound, lambda stage, one: id(one) in alone[stage]).faults):
        return bound  # the rule `coverage` refuses signals outside of their tensor
    bodies = {name: tuple(_without(stage.stage.body, names)) for name, stage in bound.stages.items()}
    grids = {key: grid for key, grid in bound.channels.items() if key[0] not in names}
    return with_channels(with_bodies(bound, bodies), grids)


def _is_signal(statement: Statement, names: Collection[str]) -> bool:
    return isinstance(statement, Notify | Wait) and statement.region.tensor in names


def _alone(bound: Bound, stage: str, body: tuple[Statement, ...], names: set[str]) -> Iterator[Statement]:
    """Yield the signals of some tensors that may be outside of them though all accesses are inside (`coverage`).

    The others stand beside an access with the same coordinates. Places of notifies, and branches with signals, are
    nothing that is asked of accesses.
    """
    accessed = {region for region, _ in accesses(tuple(one for one in body if not isinstance(one, For | If)))}

    def beside(region: Region) -> bool:
        alike = (one.coords for one in accessed if (one.tensor, one.rank) == (region.tensor, region.rank))
        return any(all(c == other or isinstance(c, Whole) for c, other in zip(region.coords, coords, strict=True))
                   for coords in alike)  # fmt: skip

    for one in body:
        match one:
            case If(condition=condition, then=then, orelse=orelse) if at_launch(condition):
                yield from (inner for inner in statements((*then, *orelse)) if _is_signal(inner, names))
            case If(then=then, orelse=orelse):
                yield from (*_alone(bound, stage, then, names), *_alone(bound, stage, orelse, names))
            case For(body=inner):
                yield from _alone(bound, stage, inner, names)
            case Notify(region=region, kind=kind) if _is_signal(one, names):
                placed = bound.tile_map(stage, region).placed(bound.channels[region.tensor, kind])
                if placed or not beside(region):
                    yield one
            case Wait(region=region) if _is_signal(one, names) and not beside(region):
                yield one
            case _:
                pass


def _by_tables(bound: Bound, stage: BoundStage, names: Collection[str]) -> bool:
    """True if a stage has signals of some tensors, and looks up a table."""
    tables = {name for name, tensor in bound.tensors.items() if tensor.decl.space == "table"}
    signals = any(_is_signal(one, names) for one in statements(stage.stage.body))
    return bool(tables) and signals and not tables.isdisjoint(names_in(stage.stage))


def _without(body: tuple[Statement, ...], names: set[str]) -> Iterator[Statement]:
    """Yield the statements without the signals of some tensors, and without loops and branches of those alone."""
    for statement in body:
        match statement:
            case Notify() | Wait() if _is_signal(statement, names):
                pass
            case If(then=then, orelse=orelse):
                then, orelse = tuple(_without(then, names)), tuple(_without(orelse, names))
                if then or orelse:
                    yield replace(statement, then=then, orelse=orelse)
            case For(body=inner):
                if inner := tuple(_without(inner, names)):
                    yield replace(statement, body=inner)
            case _:
                yield statement


def _is_reached(program: Program, tensor: str) -> bool:
    """True if a program accesses a tensor of another rank than that of its own, as far as the text says so."""
    regions = (region for stage in program.stages for region, _ in accesses(stage.body))
    return any(region.tensor == tensor and region.rank not in (None, Rank()) for region in regions)


def _check(program: Program, part: SchedulePart) -> None:
    tensor = program.tensor(part.name)
    if tensor.symmetric and _is_reached(program, tensor.name):
        message = f"kernel_order of {tensor.name}, which peers reach: their kernels are not in the order of this rank's"
        hint = "take `kernel_order` away: it is for tensors of one rank"
        raise ScheduleError(message, location=part.at("kernel_order"), related=tensor.location, hint=hint)


KERNEL_ORDER: Clause[bool] = switch(
    "kernel_order",
    of="tensor",
    check=_check,
    apply=_apply,
    phase=Phase.BEFORE_KERNELS,  # which are chosen, and dealt tiles, by the signals that tiles have
    manual=(
        "the tensor has no signals: kernels that write it run before those that read it, one after the other on one "
        "stream, as those `on sm` do. Tiles then neither wait nor notify, so many small ones take less time, and may "
        "have `program_per_tile`. For tensors that no peer reaches; refused where the order of kernels does not suffice"
    ),
)
