"""Products whose steps several programs share: all steps of a tile come together exactly once.

A loop over `tiles(K, begin, end)` sums some steps of the product of a tile. The sum is handed on, by a store of its
name, or it is completed: parts that others have handed on are added to it, and then it is used. What is proved, for
each task that completes a sum: its own steps, and those of the parts that it adds, are all steps of the product, none
twice; the parts are of the same tile and product; and each part that is handed on is added by one task. That a part is
read after it is written is proved by the rule of ordering, and that all elements of an output are written, by that of
coverage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tilelink.errors import CoverageError, VerificationError
from tilelink.ir.printer import print_statement
from tilelink.ir.program import Apply, Assign, Dot, For, Full, Local, Read, Statement, Store
from tilelink.ir.scalar import Env, Index, Scalar, evaluate, walk
from tilelink.ir.visitor import local_names, reads, statements, value_of
from tilelink.lowering.bound import BoundStage
from tilelink.lowering.events import READ, WRITE
from tilelink.lowering.orders import TILE
from tilelink.planning.plan import Plan
from tilelink.verifier.refusal import refuse

HINT = "of the steps of a tile, each program has those between its first and that of the next program"
Steps = tuple[int, int]
Box = tuple[int, ...]


@dataclass(kw_only=True)
class _Sum:
    """A name that sums some steps of a product, with the statements of its stage that are about it, by their numbers.

    adds: of a part that another task has handed on. hands: stores of the sum, for another task. uses: all others.
    """

    stage: BoundStage
    loop: For
    name: str
    product: Dot
    number: int
    adds: list[int] = field(default_factory=list[int])
    hands: list[int] = field(default_factory=list[int])
    uses: list[int] = field(default_factory=list[int])


def iterations(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of products of which a step is left out or taken twice."""
    for stage in plan.bound.stages.values():
        loops = [s for s in statements(stage.stage.body) if isinstance(s, For) and s.indices[0].begin is not None]
        for loop in loops:
            found = _sum(plan, stage, loop)
            if isinstance(found, str):
                message = f"{stage.name}: {found}, in a loop over some tiles of {loop.indices[0].name}"
                yield CoverageError(message, location=loop.location or stage.stage.location, hint=HINT)
            else:
                yield from _complete(plan, found)


def _sum(plan: Plan, stage: BoundStage, loop: For) -> _Sum | str:
    """Return the sum of a loop, or why it is none."""
    own = [(number, one) for number, (name, one) in enumerate(plan.statements) if name == stage.name]
    numbers = {id(one): number for number, one in own}
    *_, last = (None, *loop.body)
    match last:
        case Assign(name=name, value=Apply(op="add", args=(Local(name=before), Dot() as product))) if before == name:
            found = _Sum(stage=stage, loop=loop, name=name, product=product, number=numbers[id(loop)])
        case _:
            return "nothing is summed"
    if loop.indices[1:] or loop.indices[0].name not in stage.slices:
        return "its index is not one of the slices of a product"
    if not _begins_with_zero(stage.stage.body, loop, found.name):
        return f"{found.name} is not 0 before it"
    handed = _handed(own, found.name)
    added = numbers[id(last)]
    for number, one in own:
        value = value_of(one)
        if number == added or value is None or found.name not in local_names(value) | _assigned(one):
            continue
        match one:
            case Assign(value=Full()) if number < found.number:
                continue  # the zero before it
            case Assign(name=name) if name == found.name:
                if _part(one, found.name) is None:
                    return f"{print_statement(one)[0]} is no sum of its steps"
                found.adds.append(number)
            case Store(region=region, value=Local()) if region.tensor in handed:
                found.hands.append(number)
            case _:
                found.uses.append(number)
    if min([*found.adds, *found.hands, *found.uses], default=found.number) < found.number:
        return f"{found.name} is used before it"
    if found.adds and min(found.uses, default=max(found.adds) + 1) < max(found.adds):
        return f"{found.name} is used before all parts are added"
    again = [s for s in statements(stage.stage.body) if isinstance(s, For) and any(_in(plan, s, n) for n in found.adds)]
    if any(_in(plan, one, number) for one in again for number in (*found.uses, *found.hands)):
        return f"{found.name} is used before all parts are added"
    return found


def _in(plan: Plan, loop: For, number: int) -> bool:
    """True if a statement, by its number, is in a loop."""
    return any(plan.statements[number][1] is one for one in statements(loop.body))


def _assigned(statement: Statement) -> set[str]:
    return {statement.name} if isinstance(statement, Assign) else set()


def _part(statement: Statement, name: str) -> Read | None:
    """Return the part that a statement adds to a sum, `name = name + part[...]`, or None."""
    match statement:
        case Assign(name=own, value=Apply(op="add", args=(Local(name=before), Read() as part))) if (
            own == before == name
        ):
            return part
        case _:
            return None


def _handed(own: list[tuple[int, Statement]], name: str) -> set[str]:
    """Return the tensors in which parts of a sum are handed on."""
    return {part.region.tensor for _, one in own if (part := _part(one, name)) is not None}


def _begins_with_zero(body: tuple[Statement, ...], loop: For, name: str) -> bool:
    """True if the statement before a loop, in the block that it is in, makes a name 0."""
    blocks = [body, *(block for s in statements(body) for block in _blocks(s))]
    block = next(block for block in blocks if any(one is loop for one in block))
    at = next(number for number, one in enumerate(block) if one is loop)
    match block[at - 1] if at else None:
        case Assign(name=zero, value=Full(value=value)):
            return zero == name and value == 0
        case _:
            return False


def _blocks(statement: Statement) -> Iterator[tuple[Statement, ...]]:
    for name in ("then", "orelse", "body"):
        if (block := getattr(statement, name, None)) is not None:
            yield block


def _complete(plan: Plan, found: _Sum) -> Iterator[VerificationError]:
    """Yield refusals of tasks whose parts of a sum are not all steps of the product, each once."""
    summed, stage = plan.summed, found.stage
    own: dict[int, Steps] = {}
    every = stage.count(found.loop.indices[0].name)
    for row in np.flatnonzero(summed.statement == found.number).tolist():
        task = int(summed.task[row])
        if task in own:
            yield _refused(plan, found, task, f"sums its steps into {found.name} twice")
            return
        own[task] = max(0, int(summed.begin[row])), min(every, int(summed.end[row]))
    tiles = _tiles(plan, found)
    parts: dict[tuple[int, int, Box], int] = {}
    for task, place in _accesses(plan, found.hands, WRITE):
        if place in parts:
            yield _refused(plan, found, task, "hands on its part in the place of another one")
            return
        parts[place] = task
    handing = set(parts.values())
    added: dict[int, list[int]] = {task: [task] for task in own}
    taken: set[int] = set()
    for task, place in _accesses(plan, found.adds, READ):
        other = parts.get(place)
        if other is None or task not in added:
            yield _refused(plan, found, task, "adds what no task has handed on")
            return
        if other in taken:
            yield _refused(plan, found, task, f"adds a part that is added already, of {_named(plan, other)}")
            return
        if tiles[other] != tiles[task]:
            yield _refused(plan, found, task, f"adds a part of another tile, of {_named(plan, other)}")
            return
        taken.add(other)
        added[task].append(other)
    for task in sorted(handing - taken):
        yield _refused(plan, found, task, "hands on a part that no task adds")
        return
    users = set(summed.task[np.isin(summed.statement, found.uses)].tolist())
    for task in sorted(users - own.keys()):
        yield _refused(plan, found, task, f"uses {found.name} without steps of its own")
        return
    for task, of in added.items():
        if task in handing:
            if task in users or len(of) > 1:
                yield _refused(plan, found, task, "hands on a part, and uses it")
                return
            continue
        if (wrong := _wrong([own[one] for one in of], every)) is not None:
            yield _refused(plan, found, task, wrong)
            return


def _wrong(parts: list[Steps], every: int) -> str | None:
    """Return what is wrong with the parts of a sum of all steps, or None."""
    at = 0
    for begin, end in sorted(part for part in parts if part[0] < part[1]):
        if begin != at:
            return f"leaves out steps {at} to {begin - 1}" if begin > at else f"takes step {begin} twice"
        at = end
    return None if at == every else f"leaves out steps {at} to {every - 1}"


def _accesses(plan: Plan, numbers: list[int], kind: int) -> Iterator[tuple[int, tuple[int, int, Box]]]:
    """Yield (task, (tensor, rank, box)) for each access of some statements, in the order of the tasks."""
    a = plan.accesses
    rows = np.flatnonzero(np.isin(a.statement, numbers) & (a.kind == kind))
    boxes = np.concatenate([a.lo[rows], a.hi[rows]], axis=1).tolist()
    for row, place in zip(rows.tolist(), boxes, strict=True):
        yield int(a.task[row]), (int(a.tensor[row]), int(a.peer[row]), tuple(place))


def _tiles(plan: Plan, found: _Sum) -> Mapping[int, tuple[int, ...]]:
    """Return task -> its rank and the values of the indices that the product names: what it multiplies."""
    stage, ranks = found.stage, plan.bound.ranks
    coords = [c for region in reads(found.product) for c in (*region.coords, region.rank) if isinstance(c, Scalar)]
    named = {part.name for coord in coords for part in walk(coord) if isinstance(part, Index)}
    names = [decl.name for decl in stage.stage.indices if decl.name in named]
    rank, tile = np.divmod(np.arange(ranks * stage.total), max(stage.total, 1))
    env = Env(rank=rank, ranks=ranks, params={}, indices={TILE.name: tile})
    columns = [np.broadcast_to(np.asarray(evaluate(stage.order[name], env)), rank.shape) for name in names]
    first = plan.first_task[stage.name]
    return {first + n: tuple(row) for n, row in enumerate(np.stack([rank, *columns], axis=1).tolist())}


def _named(plan: Plan, task: int) -> str:
    stage, rank, tile = plan.task_name(task)
    return f"tile {tile} of {stage} on rank {rank}"


def _refused(plan: Plan, found: _Sum, task: int, message: str) -> VerificationError:
    return refuse(CoverageError, plan, message, task=task, statement=found.number, hint=HINT)
