"""Statements that write a tensor which they read: what they read must be what they write, or nothing of it.

A large tile is copied in blocks, and the threads of a program store while others still load. So a copy onto a part of
itself would read some of what it has just stored. To read into a name first is safe: between two statements of a tile
the emitter puts a barrier where one is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.errors import OrderingError
from tilelink.ir.program import Region, Statement, Store, Transfer
from tilelink.ir.scalar import is_gather
from tilelink.ir.visitor import reads
from tilelink.lowering.columns import Ints, expand
from tilelink.lowering.enumerate import WRITE
from tilelink.lowering.places import box
from tilelink.planning.plan import Plan
from tilelink.verifier.refusal import refuse


def onto_itself(plan: Plan) -> Iterator[OrderingError]:
    """Refusals of statements that read a part, but not just all, of what they write, or all of it in another order."""
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
            hint = "read it into a name before, as another statement"
            yield refuse(OrderingError, plan, message, task=int(a.task[write]), statement=number, hint=hint)


def _reads_of_target(statement: Statement) -> list[tuple[Region, Region]]:
    """The region that a statement writes, with each that it reads of the same tensor."""
    match statement:
        case Store(region=region, value=value) | Transfer(target=region, source=value):
            return [(region, one) for one in reads(value) if one.tensor == region.tensor]
        case _:
            return []


def _same_order(target: Region, source: Region) -> bool:
    """Whether equal boxes of two regions have their elements in the same order: a table gives rows in any."""
    pairs = zip(target.coords, source.coords, strict=True)
    return all(a == b for a, b in pairs if is_gather(a) or is_gather(b))


def _same_time(plan: Plan, written: Ints, read: Ints) -> tuple[Ints, Ints]:
    """The (write, read) rows of one tensor on one rank in one execution of a statement."""
    a = plan.accesses
    steps = int(a.position.max(initial=0)) + 2

    def key(rows: Ints, position: Ints) -> Ints:
        place = (a.task[rows] * steps + position) * plan.bound.ranks + a.peer[rows]
        return place * len(plan.bound.tensors) + a.tensor[rows]

    wanted, found = key(written, a.position[written] - 1), key(read, a.position[read])
    order = np.argsort(found, kind="stable")
    low, high = (np.searchsorted(found[order], wanted, side=side)[:, None] for side in ("left", "right"))
    source, at = expand(low, high, (len(read),))
    return written[source], read[order[at]]
