"""`dynamic`: programs that take the next tile by a counter when they have finished one.

Usually a kernel with P programs executes tiles p, p + P, and so on in program p. That is best if tiles take equally
long and all programs run equally fast. If waits for peers or unequal tiles delay some programs, others could execute
their tiles. With this clause the programs share a counter. Each adds 1 to it to take a tile, in the order of the stage.
It is the dynamic tile scheduler of persistent kernels (CUTLASS: "dynamic persistent").

before: program p executes tiles p, p + P, ...
after:  a program that has finished a tile executes the next tile that no program has taken

Which program executes a tile differs from launch to launch. What the rules prove holds for every choice of a program
for a tile (planning/any_program.py). A program takes its next tile before it begins with the one that it has, so that
the counter's answer is there in time. It executes the tiles that it has taken in rising order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilelink.errors import ScheduleError
from tilelink.ir.program import Attend, Dot, For, If, Program, Stage, Statement
from tilelink.ir.scalar import Index, Scalar, at_launch, walk
from tilelink.ir.typing import StageTyping
from tilelink.ir.visitor import statements, value_of, values
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.clause import Choices, Clause, Phase, Ties, said, switch
from tilelink.lowering.clauses.program_per_tile import PROGRAM_PER_TILE
from tilelink.lowering.clauses.resource import RESOURCE
from tilelink.lowering.dealt_tiles import static_reason
from tilelink.scheduling.schedule import CopyEngine, Fused, Schedule
from tilelink.scheduling.words import StageSchedule


def _apply(bound: Bound) -> Bound:
    """Return the bound program whose kernels take tiles by a counter where the schedule says so.

    Raises ScheduleError for a kernel that cannot. A kernel with at most one tile for each program stays as it is.
    """
    for part in bound.schedule.stages:
        if not part[DYNAMIC]:
            continue
        if part[PROGRAM_PER_TILE]:  # also where sizes, CPU ranks or a dialect leave one of them without effect
            raise _refusal(part, "`program_per_tile` gives each tile a program of its own")
        if not bound.capabilities.dynamic_tiles:
            continue
        kernel = bound.kernel_of[part.name]
        if reason := static_reason(bound, kernel):
            raise _refusal(part, reason)
        if bound.stages[part.name].total > kernel.programs:
            taken = replace(kernel, dynamic=True)
            bound = replace(bound, kernels=tuple(taken if one is kernel else one for one in bound.kernels))
        else:
            bound = bound.leaving_out(DYNAMIC.name, part.name, "no program has a second tile")
    return bound


def _refusal(part: StageSchedule, reason: str) -> ScheduleError:
    message = f"the programs of {part.name} cannot take tiles by a counter: {reason}"
    return ScheduleError(message, location=part.at("dynamic"), hint="take `dynamic` away")


def alike_reason(stage: Stage, _: StageTyping) -> str | None:
    """Return why tiles of a stage take equally long, as far as its program says, or None if they do not.

    They differ if a launch decides what there is of them, or if a condition decides which of them multiply, loop, or
    leave out iterations of a loop.
    """
    domain = frozenset(decl.name for decl in stage.indices)
    if any(decl.counted for decl in stage.indices) or _unlike(stage.body, domain, inside=False):
        return None
    return "its tiles take equally long: no index is counted, and no condition leaves out products or iterations"


def _unlike(body: tuple[Statement, ...], domain: frozenset[str], *, inside: bool) -> bool:
    """True if tiles have different work in a body. inside: it is that of a loop."""
    for statement in body:
        match statement:
            case For(indices=indices, body=inner):
                if any(decl.counted for decl in indices) or _unlike(inner, domain, inside=True):
                    return True
            case If(condition=condition, then=then, orelse=orelse):
                differ = _works(then, inside=inside) != _works(orelse, inside=inside)
                if differ and (at_launch(condition) or any(e.name in domain for e in _indices(condition))):
                    return True
                if _unlike(then, domain, inside=inside) or _unlike(orelse, domain, inside=inside):
                    return True
            case _:
                pass
    return False


def _indices(condition: Scalar) -> Iterator[Index]:
    return (part for part in walk(condition) if isinstance(part, Index))


def _works(body: tuple[Statement, ...], *, inside: bool) -> bool:
    """True if statements multiply or loop, or, inside of a loop, compute."""
    for statement in statements(body):
        value = value_of(statement)
        computes = value is not None and (inside or any(isinstance(part, Dot | Attend) for part in values(value)))
        if isinstance(statement, For) or computes:
            return True
    return False


def _kernel_alone(program: Program, schedule: Schedule, stage: str) -> bool:
    """True if a stage has a kernel of its own on SMs, without a clause that may tie the tiles of a program to one
    another, or give the kernel other stages or programs."""
    places = {one.name: schedule.stage(one.name)[RESOURCE] for one in program.stages}
    joined = [stage, *(place.stage for place in places.values() if isinstance(place, Fused))].count(stage) > 1
    own = not isinstance(places[stage], Fused | CopyEngine)
    return own and not joined and all(clause.ties is Ties.NOWHERE for clause in said(schedule.stage(stage)))


DYNAMIC: Clause[bool] = switch(
    "dynamic",
    apply=_apply,
    capability="dynamic_tiles",
    phase=Phase.AFTER_BARRIERS,  # after what ties tiles of a program to one another, which it cannot have
    choices=Choices(
        name="tiles",
        labels={"in turn": False, "by a counter": True},
        reason=alike_reason,
        fits=_kernel_alone,
    ),
    manual=(
        "each program takes the next tile by a counter when it has finished one, where otherwise program p of P "
        "executes tiles p, p + P, and so on. For tiles or waits that take unequally long. For a stage with a kernel "
        "of its own, without roles, `flatten`, `defer_notify` and `program_per_tile`"
    ),
)
