"""`roles(consumers=2, buffers=3)`: warps of a kernel have roles, so that loads, products and stores overlap.

One warp, the loader, waits for signals and loads the operands of products by the tensor memory accelerator (TMA) into a
ring of buffers in shared memory. Each consumer, a group of four warps, multiplies some rows of every tile from the
ring, and executes the waits after the product. Another warp, the storer, stores the results by TMA and notifies.
Results of another type than those of the kernel's rings are stored by the consumers, and the storer notifies. So the
operands of the next tile are loaded while consumers compute the results of a tile, and only the storer waits until
stores are visible to peers.

before: a program: wait; multiply, loading step by step; wait again; compute; store; notify; the next tile
after:  loader:    wait; load ...; wait for the next tile; load ...
        consumers:       multiply ...; wait again; compute; multiply the next tile ...
        storer:                                             store; notify; store the next tile ...

The plan keeps the order of one program, tile after tile, and the roles keep all of it but one part: waits and loads of
a tile, and its consumers' waits, may come before stores and notifies of the tiles before it. That cannot be observed.
No tile of the kernel writes what a loader loads. Consumers compute with what another stage of the kernel writes only
after a wait of their own tile, and signals order both, not the order of a program (verifier/loads_ahead.py). Whatever
else happens after a load or a wait of a tile happens after its stores too, which are in order. No notify depends on a
later tile's wait, and no role waits for one that executes a later statement of the plan, so roles never wait where the
plan does not.

Consumers execute all waits after the product before they compute, piece by piece. The plan does not show this,
where some waits follow loads: a tile that computes tells no one. A consumer may compute with what a loader has waited
for: it reads after it has found a buffer of its tile full, which the loader has had filled after its waits.

Entries of index tensors that are written while programs run have their values after the waits of a tile alone. So the
loader reads them, and hands them on in a ring of integers; other roles read none.

Tiles that are computed with next to the product come by TMA too, if they are boxes like those of the left operand. The
loader executes the waits after the product then, and loads pieces of these tiles into the ring, after the operands.

The clause is for stages with tiles of their own on SMs, which wait, multiply along a whole dimension or a slice of it,
once or twice the same left operand, may wait again, compute elementwise with the products, store one tile, at peers
too, and notify (lowering/straight_epilogue.py). It is also for stages whose tiles have one loop that carries a state,
such as online softmax (lowering/carried.py). A stage without a product may have the roles of a kernel with one: the
loader loads the tiles that it computes with into the ring of operands, and consumers take them from there. The sizes of
tiles decide the rest (lowering/role_sizes.py). On processors without the warpgroup products of `sm_90`, programs are
those of plain Triton, as without the clause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from tilelink.capabilities import has_warpgroups
from tilelink.errors import ScheduleError, did_you_mean
from tilelink.ir.products import products
from tilelink.ir.program import For, Program, Read, Stage, Wait
from tilelink.ir.typing import StageTyping
from tilelink.ir.visitor import statements, values
from tilelink.lowering.bound import Bound, BoundStage, Kernel, with_bodies
from tilelink.lowering.carried import carried, row_sums
from tilelink.lowering.choose_network import sends
from tilelink.lowering.clauses.clause import Choices, Clause, Phase, Ties, divides, said
from tilelink.lowering.clauses.flatten import FLATTEN
from tilelink.lowering.clauses.halve_tail import HALVE_TAIL
from tilelink.lowering.fragments import with_fragments
from tilelink.lowering.iterations import loop_of
from tilelink.lowering.limits import cut_tiles
from tilelink.lowering.masks import masks_of
from tilelink.lowering.prefetched import prefetched
from tilelink.lowering.reason import place_of, reason_at
from tilelink.lowering.rings import (
    Roles,
    fit_together,
    result_ring,
    wait_for_each_other,
    widest_of,
    without_addends,
)
from tilelink.lowering.role_sizes import (
    MAX_BUFFERS,
    MIN_BUFFERS,
    PIECE_BYTES,
    REGISTERS,
    is_direct,
    roles_of,
    types_of,
)
from tilelink.lowering.role_statements import (
    conflict,
    decided_reason,
    divided_reason,
    late_waits,
    launch_reason,
    multiplies,
    results_of,
    roles_reason,
    written_tables,
)
from tilelink.lowering.role_ways import ways_round
from tilelink.lowering.straight_epilogue import is_zero, once, straight, straightened
from tilelink.lowering.strength_reduction import reduced
from tilelink.lowering.summed import summed_body, with_sums
from tilelink.lowering.unfold import unfolded, unfolded_body
from tilelink.scheduling.schedule import RolesChoice, Schedule
from tilelink.scheduling.words import check_count


def _read(_: str, children: Sequence[Any]) -> RolesChoice:
    sizes = dict(children)
    needed, allowed = {"consumers", "buffers"}, {"consumers", "buffers", "in_flight"}
    if len(sizes) < len(children) or not needed <= sizes.keys() <= allowed:
        found = [str(name) for name, _ in children]
        hint = "roles(consumers=2, buffers=4), or with in_flight=1 as well"
        unknown = next((name for name in found if name not in allowed), None)
        if unknown is not None:
            raise ScheduleError(f"roles has no {unknown!r}", hint=did_you_mean(unknown, sorted(allowed), hint))
        missing = next((name for name in ("consumers", "buffers") if name not in sizes), None)
        twice = next((name for name in found if found.count(name) > 1), None)
        raise ScheduleError(f"roles has no {missing}" if missing else f"roles has {twice} twice", hint=hint)
    return RolesChoice(**{str(name): int(size) for name, size in sizes.items()})


def _show(choice: RolesChoice | None) -> str:
    return str(choice or "")


def _valid(owner: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, RolesChoice):
        raise ScheduleError(f"roles {value!r} of {owner}", hint="roles(consumers=2, buffers=3)")
    check_count("buffers of roles", owner, value.buffers, "a ring has two buffers or more")
    if value.consumers not in REGISTERS:
        hint = "2 or 3 consumers: others do not fill an SM"
        raise ScheduleError(f"{value.consumers!r} consumers of {owner}", hint=hint)
    if not MIN_BUFFERS <= value.buffers <= MAX_BUFFERS:
        hint = f"{MIN_BUFFERS} to {MAX_BUFFERS}: one is multiplied while another is loaded"
        raise ScheduleError(f"{value.buffers} buffers of {owner}", hint=hint)
    if value.in_flight not in (1, 2):
        raise ScheduleError(f"in_flight={value.in_flight!r} of {owner}", hint="1 or 2 products of a consumer")


def _apply(bound: Bound) -> Bound:
    """Return the bound program with the roles of every stage that has the clause, on a processor for them.

    Raises ScheduleError for a stage that cannot have them.
    """
    made = _straightened(bound)
    # Stages without a product take the rings of the others in their kernel.
    for name in sorted(made.stages, key=lambda name: not multiplies(made.stages[name])):
        made = _with_roles(made, name)
    return _with_shared_rings(made) if bound.capabilities.roles else bound


def _straightened(bound: Bound) -> Bound:
    """Return the bound program with stages as roles divide them: epilogues without loops, and loops unfolded."""
    for name in bound.stages:
        if bound.schedule.stage(_written(bound, name))[ROLES] is not None:
            bound = _with_early_waits(straightened(with_sums(bound, name), name), name)
            if bound.stages[name].has_loop:
                bound = reduced(unfolded(bound, name), name)
    return bound


def _with_early_waits(bound: Bound, name: str) -> Bound:
    """Return the bound program in which a stage begins with its waits if tiles need not be there, or are told where
    operands are: the loader executes the waits of a tile, there or not, and looks up what it hands on after them."""
    stage = bound.stages[name]
    if not written_tables(bound, stage) and not any(decl.counted for decl in stage.stage.indices):
        return bound
    first = takewhile(lambda s: isinstance(s, Wait) or is_zero(s), stage.stage.body)
    waits = (*(s for s in first if isinstance(s, Wait)), *late_waits(stage))
    rest = (s for s in stage.stage.body if not any(s is wait for wait in waits))
    return with_bodies(bound, {name: (*waits, *rest)})


def _with_roles(bound: Bound, name: str) -> Bound:
    """Return the bound program with the roles of a stage, if it has the clause. Raises ScheduleError if it cannot."""
    stage, choice = bound.stages[name], bound.schedule.stage(_written(bound, name))[ROLES]
    if choice is None:
        return bound
    if (reason := _reason(bound, stage)) is not None:
        raise _refusal(bound, stage, reason, tiles=False)
    made = roles_of(bound, stage, choice) if bound.capabilities.roles else None
    if isinstance(made, str):
        # a reason that is about sizes names them, and one about operands or their types does not
        raise _refusal(bound, stage, made, tiles=re.search(r"\b\d", made) is not None)
    return bound if made is None else replace(bound, stages={**bound.stages, name: replace(stage, roles=made)})


def _refusal(bound: Bound, stage: BoundStage, reason: str, *, tiles: bool) -> ScheduleError:
    """Return the refusal of a stage. tiles: True if their sizes may be the cause."""
    form = "a product" if multiplies(stage) else "tiles without a product"
    form = "a loop that carries a state" if stage.has_loop else form
    ways = ways_round(reason) or "docs/language.md (warps with roles) has what such a stage may have"
    hint = f"it is taken for {form}: change that, or take `roles` away; {ways}"
    if "are f32, " in reason and _of_no_type(bound, stage):
        hint = f'--dtype bf16 (in Python dtype="bf16"), or {hint}'
    if tiles and (cut := [*cut_tiles(bound, stage, _written(bound, stage.name))]):
        hint = f"{' and '.join(cut)}: give larger sizes (--set), smaller tiles, or take `roles` away"
    elif tiles and (sizes := ", ".join(f"{n}={stage.tiles[n]}" for n in stage.tiles if n not in stage.scalar_indices)):
        hint = f"{hint}; its tiles have {sizes}"
    location = bound.schedule.stage(_written(bound, stage.name)).at("roles")
    message = f"{stage.name} cannot have roles: {reason}"
    return ScheduleError(message, location=location, related=place_of(reason), hint=hint)


def _with_shared_rings(bound: Bound) -> Bound:
    """Return the bound program whose kernels each have the rings of their widest tiles.

    Raises ScheduleError if the roles of stages in a kernel do not fit together.
    """
    stages = dict(bound.stages)
    for kernel in bound.kernels:
        if not (found := bound.roles_in(kernel)):
            continue
        widest = widest_of(found.values())
        if widest.direct:
            raise _too_wide(bound, kernel)
        types = {types_of(bound, stages[name]) for name in found}
        for name, roles in found.items():
            ring = result_ring(buffers=widest.results.buffers, targets=len(results_of(stages[name])))
            own = replace(roles, results=ring)
            own = without_addends(own) if wait_for_each_other(own) else own
            stages[name] = replace(stages[name], roles=own)
            if not fit_together(own, widest) or len(types) > 1:
                message = f"the roles of {', '.join(kernel.stage_names)} in one kernel do not fit together"
                hint = "give them the same rows of tiles, blocks, consumers, buffers and type of operands, "
                hint += f"and tiles of {PIECE_BYTES} bytes of each row of a result or more"
                raise ScheduleError(message, location=bound.schedule.stage(kernel.name).at("roles"), hint=hint)
    made = replace(bound, stages=stages)
    every = (found for kernel in made.kernels for found in made.roles_in(kernel).items())
    loops = {name: _with_values(made, stages[name], roles) for name, roles in every if stages[name].has_loop}
    made = with_fragments(replace(made, stages={**stages, **loops}))
    ahead = {name: replace(stage, prefetched=prefetched(made, stage)) for name, stage in made.stages.items()}
    return replace(made, stages=ahead)


def _with_values(bound: Bound, stage: BoundStage, roles: Roles) -> BoundStage:
    """Return a stage with what its consumers leave out of the iterations of a loop that carries a state."""
    return replace(stage, masks=masks_of(bound, stage, roles), row_sums=frozenset(row_sums(loop_of(stage))))


def _too_wide(bound: Bound, kernel: Kernel) -> ScheduleError:
    """Return the refusal of a kernel whose widest tiles are stored by consumers: its rings have the sizes of these."""
    wide = next(one for one in (bound.stages[name] for name in kernel.stage_names) if is_direct(bound, one))
    message = f"{wide.name} has the widest tiles of its kernel, and its results have another type than those of "
    location = bound.schedule.stage(_written(bound, wide.name)).at("roles")
    hint = f"give {kernel.name} tiles of as many columns or more"
    return ScheduleError(f"{message}{kernel.name}", location=location, hint=hint)


def _written(bound: Bound, name: str) -> str:
    """Return the stage of the schedule that a stage was made from: a pass adds stages to the kernel of that."""
    return name if any(name == stage.name for stage in bound.source.stages) else bound.kernel_of[name].name


# Which stages can have roles ----------------------------------------------------------------------------------


def _reason(bound: Bound, stage: BoundStage) -> str | None:
    """Return why a stage cannot have roles on any processor, or None."""
    kernel = bound.kernel_of[stage.name]
    if kernel.on_copy_engine:
        return "it does not run on SMs"
    for loop in kernel.loops:
        name = loop.stages[0]
        if len(loop.stages) > 1:
            return f"{' and '.join(loop.stages)} run in its kernel tile by tile: roles take one stage at a time"
        if bound.schedule.stage(_written(bound, name))[ROLES] is None:
            text = f"{name} runs in its kernel without roles, and all stages of a kernel have the same"
            return reason_at(bound.stages[name].stage, text)
    for clause in said(bound.schedule.stage(_written(bound, stage.name))):
        if clause.without_roles:
            return f"it has `{clause.name}`, which is for programs without roles"
    if sends(stage):  # all threads of a program send together, and a role has some of them
        return "it sends to another node"
    return divided_reason(stage) or launch_reason(bound, stage) or conflict(bound, kernel, stage)


def _of_no_type(bound: Bound, stage: BoundStage) -> bool:
    """True if a stage multiplies tensors whose element type is that of the compilation."""
    dots = products(statements(stage.stage.body))
    read = (v.region.tensor for dot in dots for v in values(dot) if isinstance(v, Read))
    return any(bound.tensors[name].decl.dtype is None for name in read)


def _stage_reason(stage: Stage, _: StageTyping) -> str | None:
    if reason := decided_reason(stage):
        return reason
    body, sums = summed_body(stage.body)
    body = straight(body, once, frozenset(sums))
    if sums:
        return None
    if not any(isinstance(s, For) for s in body):
        if not products(body):
            return "a search gives roles to stages that multiply alone"
        return roles_reason(body)
    found = carried(unfolded_body(body, set()))
    return found if isinstance(found, str) else None


def _not_divided(_: Program, schedule: Schedule, stage: str) -> bool:
    """True if a stage has no clause for programs without roles, and none that divides its tiles.

    A split tail may be added after roles: it takes the halved one away, which they bring along.
    """
    part = schedule.stage(stage)
    return divides(part) is None and not any(clause.without_roles for clause in said(part))


CHOICES = {"by warps with roles": RolesChoice(consumers=2, buffers=4)}
"""The values that a search tries, next to none."""

ROLES: Clause[RolesChoice | None] = Clause(
    name="roles",
    default=None,
    rules={"roles": '"roles" "(" size ("," size)* ")"'},
    syntax="roles(..)",
    written="`roles(consumers=2, buffers=3)`",
    called="roles(...)",
    read=_read,
    show=_show,
    valid=_valid,
    apply=_apply,
    phase=Phase.BEFORE_BARRIERS,  # after waits have sunk: the loader executes them between its loads
    ties=Ties.SHOWN,
    capability="roles",
    choices=Choices(
        name="roles",
        labels=CHOICES,
        reason=_stage_reason,
        together=True,
        fits=_not_divided,
        on=has_warpgroups,
        joins=FLATTEN.name,
        along=((HALVE_TAIL, True),),
    ),
    manual=(
        "warps have roles: one waits and loads into a ring of buffers in shared memory, groups of four warps, the "
        "consumers, multiply their rows of each tile, and one stores and notifies. The next tile is loaded while "
        "results are computed and stored. 2 or 3 consumers, 2 to 6 buffers (4 as a rule). `in_flight=1`: consumers "
        "wait for each product before they start the next one; without it, or with 2, they start it while one is in "
        "flight. Needs `sm_90`; other processors run programs without roles, and `num_warps` is for these. [Which "
        "stages can have them](#warps-with-roles)"
    ),
)
