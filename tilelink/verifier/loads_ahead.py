"""Loads of warps with roles that come before waits of earlier tiles.

A program executes the waits of a tile before all of the next tile, and so the plan has it. With roles, consumers
execute the waits after the product of a tile, and a loader that is ahead loads the next tile before them. So what a
loader loads must be ordered without these waits: this is the order of the plan from which they are taken away. The
loader executes the other waits before its loads, tile after tile, as the plan does.

    tile t:      wait(xs[0]); multiply xs[0]; wait(xs[1]); store
    tile t + 1:  multiply xs[1]; ...          ordered after its writes in the plan, but loaded before that wait
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields, replace
from functools import partial

import numpy as np

from tilelink.errors import RolesError, VerificationError
from tilelink.ir.products import operand_region
from tilelink.ir.program import Statement
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.carried import has_loop
from tilelink.lowering.events import READ, WAIT
from tilelink.lowering.role_statements import consumer_waits, loaded_addends, products_of_tile
from tilelink.planning.any_program import apart
from tilelink.planning.happens_before import HappensBefore
from tilelink.planning.plan import Plan
from tilelink.verifier.cells import TensorAccesses, parts, rank_by_rank
from tilelink.verifier.ordering import Orders
from tilelink.verifier.overlaps import pairs
from tilelink.verifier.refusal import refuse


def loads_ahead(plan: Plan, order: Orders) -> Iterator[VerificationError]:
    """Yield refusals of loads that only a wait after the product of an earlier tile orders after a write."""
    bound = plan.bound
    stages = [name for kernel in bound.kernels for name in _with_later_waits(bound, kernel.stage_names)]
    if not stages:
        return
    later = [wait for name in stages for wait in consumer_waits(bound.stages[name])]
    ahead = HappensBefore(plan=apart(_without(plan, _numbers(plan, later))))
    loaded = {name: {*_operands(bound.stages[name]), *_added(bound, bound.stages[name])} for name in stages}
    for tensor in sorted(set().union(*loaded.values())):
        tasks = np.zeros(plan.tasks, bool)
        for name in stages:
            first = plan.first_task[name]
            tasks[first : first + bound.stages[name].total * bound.ranks] = tensor in loaded[name]
        for part in parts(plan, plan.touching([bound.tensors[tensor].number])):
            yield from rank_by_rank(part, partial(_early, order=order, ahead=ahead, tasks=tasks))


def _operands(stage: BoundStage) -> Iterator[str]:
    """Yield the tensors that a stage multiplies."""
    yield from (operand_region(one).tensor for dot in products_of_tile(stage) for one in (dot.left, dot.right))


def _added(bound: Bound, stage: BoundStage) -> Iterator[str]:
    """Yield the tensors that its loader loads next to them."""
    yield from (region.tensor for region in loaded_addends(bound, stage))


def _with_later_waits(bound: Bound, names: Collection[str]) -> list[str]:
    """Return the stages of a kernel whose warps have roles, if consumers of one of them wait after its product."""
    stages = [bound.stages[name] for name in names]
    own = [one for one in stages if one.roles is not None and one.total and not has_loop(one)]
    return [one.name for one in own] if any(consumer_waits(one) for one in own) else []


def _numbers(plan: Plan, some: Collection[Statement]) -> list[int]:
    return [number for number, (_, one) in enumerate(plan.statements) if any(one is other for other in some)]


def _without(plan: Plan, waits: Collection[int]) -> Plan:
    """Return a plan without the waits of some statements."""
    s = plan.signals
    kept = ~((s.kind == WAIT) & np.isin(s.statement, list(waits)))
    return replace(plan, signals=replace(s, **{one.name: getattr(s, one.name)[kept] for one in fields(s)}))


def _early(part: TensorAccesses, order: Orders, ahead: HappensBefore, tasks: np.ndarray) -> Iterator[VerificationError]:
    plan, a = part.plan, part.plan.accesses
    writes, reads = pairs(part, READ)
    some = tasks[a.task[reads]]
    writes, reads = writes[some], reads[some]

    def before(known: HappensBefore) -> np.ndarray:
        return known.before(a.task[writes], a.position[writes], a.task[reads], a.position[reads])

    early = before(order.planned) & ~before(ahead)
    yield from (_refusal(plan, part.name, int(writes[n]), int(reads[n])) for n in np.flatnonzero(early)[:3])


def _refusal(plan: Plan, name: str, write: int, read: int) -> VerificationError:
    a = plan.accesses
    message = f"loads {name}, for which only a wait after the product of an earlier tile waits: its loader is ahead"
    hint = f"wait for {name} in the same tile before it is loaded, or take `roles` away"
    task, statement = int(a.task[read]), int(a.statement[read])
    return refuse(RolesError, plan, message, task=task, statement=statement, related=int(a.statement[write]), hint=hint)
