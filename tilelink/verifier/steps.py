"""Rule `steps`: a slot holds one step at a time, so whoever reads a step reads what was written of that step.

A tensor with `slots` has fewer parts in memory than steps: step l is in slot l % slots. The other rules name accesses
by their steps, as if memory held all of them. This rule makes that true.

Theorem: a read of an element of step l gives the last write of that element *of step l* that is before the read. Assume
the rule of ordering (the writes of the element of step l that it needs are before the read, and all others are not
concurrent with it) and this rule: of two accesses to one place in memory that belong to different steps, of which one
is a write, that of the smaller step happens before the other. Proof: a write of a smaller step to this place is before
every write of step l to it, because both are writes. A write of a larger step is after the read. So the last write
before the read is one of step l.

The order is transitive, so nothing is asked of two accesses between whose steps another one writes the box of one of
them in every launch: that write meets both, and is after the one and before the other. With a write that a launch
leaves out, it may leave out the barriers and waits that order it.

Both accesses of a pair may be those of one program, whose threads have to synchronise in between.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.errors import StepsError, VerificationError
from tilelink.lowering.columns import Ints, distinct_rows
from tilelink.lowering.events import READ, WRITE
from tilelink.lowering.places import box
from tilelink.planning.plan import Plan
from tilelink.planning.steps import in_memory
from tilelink.verifier.cells import TensorAccesses, parts, rank_by_rank
from tilelink.verifier.ordering import Orders
from tilelink.verifier.overlaps import pairs
from tilelink.verifier.refusal import refuse, where

NEVER = np.iinfo(np.int64).max


def steps(plan: Plan, order: Orders) -> Iterator[VerificationError]:
    """Yield refusals of accesses that name several steps, and of those that use a slot too early for another step."""
    stepped = [tensor.number for tensor in plan.bound.tensors.values() if tensor.steps is not None]
    if not stepped:
        return
    chosen = plan.touching(stepped)
    many = [*_several_steps(plan)]
    if many:
        yield from many
        return
    for part in parts(in_memory(plan), chosen):
        yield from rank_by_rank(part, lambda one: _apart(plan, one, order))


def _several_steps(plan: Plan) -> Iterator[StepsError]:
    a = plan.accesses
    for tensor in plan.bound.tensors.values():
        if tensor.steps is None:
            continue
        dim, slots = tensor.steps
        rows = np.flatnonzero(a.tensor == tensor.number)
        for row in rows[a.hi[rows, dim] - a.lo[rows, dim] != 1][:1]:
            steps_ = f"steps {a.lo[row, dim]} to {a.hi[row, dim] - 1} of {tensor.name} at a time"
            message = f"accesses {steps_}, and memory has {slots} slots"
            hint = "name one step: an index that is a number, known before the launch"
            yield refuse(StepsError, plan, message, task=int(a.task[row]), statement=int(a.statement[row]), hint=hint)


def _apart(plan: Plan, part: TensorAccesses, order: Orders) -> Iterator[VerificationError]:
    """Yield a refusal of the first pair of accesses to one place whose steps are not in order. part: in memory."""
    a, tensor = plan.accesses, plan.bound.tensors[part.name]
    assert tensor.steps is not None
    dim, slots = tensor.steps
    step = a.lo[:, dim]
    both = [_of_two_steps(part, kind, step) for kind in (READ, WRITE)]
    first, second = (np.concatenate(rows) for rows in zip(*both, strict=True))
    if not len(first):
        return
    asked = step[second] <= _written_between(part, first, second, step)
    first, second = first[asked], second[asked]
    known = order.planned.before(a.task[first], a.position[first], a.task[second], a.position[second])
    known &= ~order.threads.apart(first, second)
    for at in np.flatnonzero(~known)[:1]:
        yield _refusal(plan, part.name, int(first[at]), int(second[at]), slots)


def _of_two_steps(part: TensorAccesses, kind: int, step: Ints) -> tuple[Ints, Ints]:
    """Return the pairs of accesses of different steps at one place, at least one a write; the smaller step first."""
    write, other = pairs(part, kind, same_task=True)
    differ = step[write] != step[other]
    write, other = write[differ], other[differ]
    forward = step[write] < step[other]
    return np.where(forward, write, other), np.where(forward, other, write)


def _written_between(part: TensorAccesses, first: Ints, second: Ints, step: Ints) -> Ints:
    """Return for each pair a step after that of the first access, in which the box of one of both is surely written.

    If it is before that of the second access, both are in order if all other pairs are: that write meets both, so it is
    in pairs with them, of steps that are less far apart. Of the steps that are known the first one is returned.
    """
    a, box = part.plan.accesses, np.zeros(len(step), np.int64)
    box[part.rows] = distinct_rows([a.peer[part.rows], *a.lo[part.rows].T, *a.hi[part.rows].T])[1]
    boxes = int(box.max()) + 1
    later = np.flatnonzero((a.kind[second] == WRITE) & (a.guard[second] == 0))
    later = later[np.argsort(step[second[later]], kind="stable")]
    written, at = np.unique(first[later] * boxes + box[second[later]], return_index=True)
    steps_ = np.append(step[second[later[at]]], NEVER)
    found = np.full(len(first), NEVER)
    for other in (first, second):
        wanted = first * boxes + box[other]
        row = np.searchsorted(written, wanted)
        row[np.append(written, -1)[row] != wanted] = len(written)
        found = np.minimum(found, steps_[row])
    return found


def _refusal(plan: Plan, name: str, early: int, late: int, slots: int) -> VerificationError:
    a, dims = plan.accesses, len(plan.bound.tensors[name].shape)
    what, before = ("writes" if a.kind[late] == WRITE else "reads"), ("written" if a.kind[early] == WRITE else "read")
    regions = [f"{name}{box(a.lo[row], a.hi[row], dims)}" for row in (late, early)]
    message = f"{what} {regions[0]} of rank {a.peer[late]}, in whose slot, one of {slots}, is {regions[1]}, which"
    message += f" {where(plan, int(a.task[early]))} may not have {before} yet"
    hint = f"wait until that has been {before}, or give {name} more slots"
    return refuse(
        StepsError,
        plan,
        message,
        task=int(a.task[late]),
        statement=int(a.statement[late]),
        related=int(a.statement[early]),
        hint=hint,
    )
