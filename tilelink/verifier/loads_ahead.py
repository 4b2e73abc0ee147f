"""Loads of warps with roles that come before waits of earlier tiles.

A program executes the waits of a tile before all of the next tile, and so the plan has it. With roles, consumers
execute the waits after the product of a tile, and a loader that is ahead loads the next tile before them. So what a
loader loads must be ordered without these waits: this is the order of the plan from which they are taken away. The
loader executes the other waits before its loads, tile after tile, as the plan does.

    tile t:      wait(xs[0]); multiply xs[0]; wait(xs[1]); store
    tile t + 1:  multiply xs[1]; ...          ordered after its writes in the plan, but loaded before that wait

Entries that the loader hands on it looks up after the waits with which a tile begins, so they must be ordered without
the others, such as those in a loop.

What consumers compute with they load from memory after the waits of their tile, and the storer may still be at an
earlier tile of the program. So what a tile of their kernel writes must be ordered before by signals alone: this is the
order of the plan in which each tile of the kernel has a program of its own.

    tile t:      part[1] = ...                no notify follows
    tile t + 1:  wait(part[0]); compute with part[1]; ...    ordered in the plan, but perhaps not stored yet
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial

import numpy as np

from tilelink.errors import RolesError, VerificationError
from tilelink.ir.products import operand_region
from tilelink.ir.program import Statement, Wait
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound, BoundStage, Kernel, KernelKind
from tilelink.lowering.events import READ, WAIT
from tilelink.lowering.role_bodies import consumer_waits, loaded_tiles
from tilelink.lowering.role_statements import (
    addends,
    hands_on,
    products_of_tile,
    writers_of,
    written_tables,
)
from tilelink.planning.any_program import apart, each_alone
from tilelink.planning.happens_before import HappensBefore
from tilelink.planning.plan import Plan
from tilelink.verifier.cells import TensorAccesses, parts, rank_by_rank
from tilelink.verifier.families import Families
from tilelink.verifier.ordering import Orders
from tilelink.verifier.overlaps import pairs
from tilelink.verifier.refusal import refuse

AHEAD = "loads {}, for which only a wait after the product of an earlier tile waits: its loader is ahead"
AHEAD_HINT = "wait for {} in the same tile before it is loaded, or take `roles` away"
HANDED = "looks up {}, for which only a later wait waits: its loader looks it up after the first waits of a tile"
HANDED_HINT = "begin the tile with the wait for {}, or take `roles` away"


def loads_ahead(plan: Plan, order: Orders) -> Iterator[VerificationError]:
    """Yield refusals of loads of roles that come before writes which come before them in the plan."""
    yield from _of_loaders(plan, order)
    yield from _of_entries(plan, order)
    for kernel in plan.bound.kernels:
        yield from _of_consumers(plan, order, kernel)


def _of_consumers(plan: Plan, order: Orders, kernel: Kernel) -> Iterator[VerificationError]:
    """Yield refusals of what consumers compute with that their kernel writes, if no signal orders both."""
    bound = plan.bound
    stages = _with_roles(bound, kernel.stage_names)
    read = {read.region.tensor for one in stages if not one.has_loop for read in addends(one)}
    own = read and read & set(writers_of(bound, kernel))
    if not own:
        return
    tasks = _tasks_of(plan, [one.name for one in stages])
    alone = HappensBefore(plan=each_alone(apart(plan), np.flatnonzero(tasks)))
    message = "computes with {}, which its kernel writes, and only the order of tiles in a program orders both"
    hint = "notify {0} after it is written, and wait for it before it is read, or take `roles` away"
    for tensor in sorted(own):
        for part in parts(plan, plan.touching([bound.tensors[tensor].number])):
            check = partial(
                _early, order=order, ahead=alone, tasks=tasks, settled=order.settled, message=message, hint=hint
            )
            yield from rank_by_rank(part, check)


def _of_loaders(plan: Plan, order: Orders) -> Iterator[VerificationError]:
    """Yield refusals of loads that only a wait after the product of an earlier tile orders after a write."""
    bound = plan.bound
    stages = [name for kernel in bound.kernels for name in _with_later_waits(bound, kernel.stage_names)]
    if not stages:
        return
    later = [wait for name in stages for wait in consumer_waits(bound, bound.stages[name])]
    every = {name: bound.stages[name] for name in stages}
    loaded = {n: {*_operands(one), *_added(bound, one), *written_tables(bound, one)} for n, one in every.items()}
    yield from _without_waits(plan, order, later, loaded, AHEAD, AHEAD_HINT)


def _of_entries(plan: Plan, order: Orders) -> Iterator[VerificationError]:
    """Yield refusals of entries that only a later wait of a tile orders: the loader hands them on after the first."""
    bound = plan.bound
    every = [one for one in _with_roles(bound, bound.stages) if hands_on(bound, one)]
    written = {one.name: written_tables(bound, one) for one in every}
    rest = [one.stage.body[bound.first_waits(one.name) :] for one in every if written[one.name]]
    later = [s for body in rest for s in statements(body) if isinstance(s, Wait)]
    if later:
        yield from _without_waits(plan, order, later, written, HANDED, HANDED_HINT)


def _without_waits(
    plan: Plan,
    order: Orders,
    waits: Collection[Statement],
    loaded: Mapping[str, Collection[str]],
    message: str,
    hint: str,
) -> Iterator[VerificationError]:
    """Yield refusals of loads that only some waits order after a write. loaded: the tensors that a stage loads."""
    bound, numbers = plan.bound, _numbers(plan, waits)
    ahead = HappensBefore(plan=apart(_without(plan, numbers)))
    settled = Families(plan, without=numbers).settled if plan.as_enumerated else order.settled
    for tensor in sorted(set().union(*loaded.values())):
        tasks = _tasks_of(plan, [name for name, own in loaded.items() if tensor in own])
        for part in parts(plan, plan.touching([bound.tensors[tensor].number])):
            check = partial(_early, order=order, ahead=ahead, tasks=tasks, settled=settled, message=message, hint=hint)
            yield from rank_by_rank(part, check)


def _tasks_of(plan: Plan, stages: Collection[str]) -> np.ndarray:
    """Return which tasks are of some stages."""
    tasks = np.zeros(plan.tasks, bool)
    for name in stages:
        first = plan.first_task[name]
        tasks[first : first + plan.bound.stages[name].total * plan.bound.ranks] = True
    return tasks


def _operands(stage: BoundStage) -> Iterator[str]:
    """Yield the tensors that a stage multiplies."""
    yield from (operand_region(one).tensor for dot in products_of_tile(stage) for one in (dot.left, dot.right))


def _added(bound: Bound, stage: BoundStage) -> Iterator[str]:
    """Yield the tensors that its loader loads next to them."""
    yield from (region.tensor for region in loaded_tiles(bound, stage))


def _with_later_waits(bound: Bound, names: Collection[str]) -> list[str]:
    """Return the stages of a kernel whose warps have roles, if consumers of one of them wait after its product."""
    own = [one for one in _with_roles(bound, names) if not one.has_loop]
    return [one.name for one in own] if any(consumer_waits(bound, one) for one in own) else []


def _with_roles(bound: Bound, names: Iterable[str]) -> list[BoundStage]:
    """Return the stages among some that have tiles, and whose warps have roles."""
    every = (bound.stages[name] for name in names)
    return [one for one in every if one.kind is KernelKind.ROLES and one.total]


def _numbers(plan: Plan, some: Collection[Statement]) -> list[int]:
    return [number for number, (_, one) in enumerate(plan.statements) if any(one is other for other in some)]


def _without(plan: Plan, waits: Collection[int]) -> Plan:
    """Return a plan without the waits of some statements."""
    s = plan.signals
    kept = ~((s.kind == WAIT) & np.isin(s.statement, list(waits)))
    return replace(plan, signals=replace(s, **{one.name: getattr(s, one.name)[kept] for one in fields(s)}))


def _early(
    part: TensorAccesses,
    order: Orders,
    ahead: HappensBefore,
    tasks: np.ndarray,
    settled: np.ndarray,
    message: str,
    hint: str,
) -> Iterator[VerificationError]:
    """Yield refusals of reads of some tasks that come after a write in the plan and not in another order, `ahead`.

    settled: mask of the reads that are known to come after all writes in that order too.
    """
    plan, a = part.plan, part.plan.accesses
    writes, reads = pairs(part, READ, without=part.every[settled[part.every]])
    some = tasks[a.task[reads]]
    writes, reads = writes[some], reads[some]

    def before(known: HappensBefore) -> np.ndarray:
        return known.before(a.task[writes], a.position[writes], a.task[reads], a.position[reads])

    early = before(order.planned) & ~before(ahead)
    for n in np.flatnonzero(early)[:3]:
        yield refuse(
            RolesError, plan, message.format(part.name), task=int(a.task[reads[n]]),
            statement=int(a.statement[reads[n]]), related=int(a.statement[writes[n]]), hint=hint.format(part.name),
        )  # fmt: skip
