"""Statements that read and write the same tensor: the two regions must be equal or disjoint.

A large tile is copied in blocks, and some threads of a program store while other threads still load. So a copy onto an
overlapping region would read elements that it has just stored. Reading into a name first is safe: the emitter inserts a
barrier between two statements of a tile where one is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.errors import OrderingError
from tilelink.ir.program import Region, Statement, Store, Transfer
from tilelink.ir.scalar import Scalar, Whole, at_launch, is_gather
from tilelink.ir.visitor import reads
from tilelink.lowering.columns import Ints, expand
from tilelink.lowering.events import WRITE, Substep
from tilelink.lowering.places import box
from tilelink.planning.plan import Plan
from tilelink.verifier.refusal import refuse


def onto_itself(plan: Plan) -> Iterator[OrderingError]:
    """Yield refusals of statements whose reads overlap what they write without being equal to it, or read the same
    elements in another order."""
    a = plan.accesses
    for number, (_, statement) in enumerate(plan.statements):
        sources = _reads_of_target(statement)
        if not sources:
            continue
        rows = np.flatnonzero(a.statement == number)
        writes, others = _same_time(plan, rows[a.kind[rows] == WRITE], rows[a.kind[rows] != WRITE])
        meet = (np.maximum(a.lo[writes], a.lo[others]) < np.minimum(a.hi[writes], a.hi[others])).all(axis=1)
        equal = (a.lo[writes] == a.lo[others]).all(axis=1) & (a.hi[writes] == a.hi[others]).all(axis=1)
        in_order = all(_same_order(target, source) for target, source in sources)
        for at in np.flatnonzero(meet & ~(equal & in_order))[:1]:
            write, other = int(writes[at]), int(others[at])
            tensor = plan.bound.tensor_numbered(int(a.tensor[write]))
            target, source = (box(a.lo[row], a.hi[row], len(tensor.shape)) for row in (write, other))
            message = f"reads {tensor.name}{source} while it writes {tensor.name}{target} of the same rank"
            message += ", in another order" if equal[at] else ""
            hint = "read it into a name first, in a statement before this one"
            yield refuse(OrderingError, plan, message, task=int(a.task[write]), statement=number, hint=hint)


def _reads_of_target(statement: Statement) -> list[tuple[Region, Region]]:
    """Return pairs (region written, region read) for each region of the written tensor that a statement reads."""
    match statement:
        case Store(region=region, value=value) | Transfer(target=region, source=value):
            return [(region, source) for source in reads(value) if source.tensor == region.tensor]
        case _:
            return []


def _same_order(target: Region, source: Region) -> bool:
    """True if equal boxes of two regions have their elements in the same order.

    A table gives rows in any order, and so do the entries that a launch brings.
    """
    pairs = zip(target.coords, source.coords, strict=True)
    return all(a == b for a, b in pairs if _any_order(a) or _any_order(b))


def _any_order(coord: Scalar | Whole) -> bool:
    return is_gather(coord) or (isinstance(coord, Scalar) and at_launch(coord))


def _same_time(plan: Plan, written: Ints, read: Ints) -> tuple[Ints, Ints]:
    """Return the (write, read) rows of the same tensor, rank and execution of a statement."""
    a = plan.accesses
    steps = int(a.position.max(initial=0)) + 2

    def key(rows: Ints, position: Ints) -> Ints:
        place = (a.task[rows] * steps + position) * plan.bound.ranks + a.peer[rows]
        return place * len(plan.bound.tensors) + a.tensor[rows]

    wanted, found = key(written, a.position[written] - (Substep.WRITE - Substep.READ)), key(read, a.position[read])
    order = np.argsort(found, kind="stable")
    low, high = (np.searchsorted(found[order], wanted, side=side)[:, None] for side in ("left", "right"))
    source, at = expand(low, high, (len(read),))
    return written[source], read[order[at]]
