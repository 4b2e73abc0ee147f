"""Reads that come after the writes that fill them by the schedule alone.

A schedule may order more than the signals of a program do: kernels of one stream run one after the other, and so do the
tiles of one program. The rule of ordering accepts that, because it is about the plan at hand. With another schedule the
same program is refused. Tensors whose signals the schedule itself takes away (`kernel_order`) are not named.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from tilelink.errors import ScheduleError
from tilelink.ir.program import Notify, Wait
from tilelink.ir.visitor import statements
from tilelink.lowering.columns import distinct_rows
from tilelink.lowering.events import READ
from tilelink.planning.plan import Plan
from tilelink.verifier.cells import of_tensors, parts
from tilelink.verifier.families import BY_PROGRAM
from tilelink.verifier.ordering import Orders
from tilelink.verifier.overlaps import pairs


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """A tensor that one stage writes and another one reads, or the same one in another tile, in no order by signals.

    one_kernel: True if both stages are in one kernel.
    """

    tensor: str
    writer: str
    reader: str
    one_kernel: bool

    def __str__(self) -> str:
        if self.writer == self.reader:
            what = f"tiles of {self.reader} read {self.tensor} after others have written it"
            why = "a program takes its tiles in turn"
        else:
            what = f"{self.reader} reads {self.tensor} after {self.writer} has written it"
            why = "both are in one kernel" if self.one_kernel else "their kernels run one after the other"
        return f"{what}, because {why}: no signal says so, and a schedule that changes that is refused"


def by_schedule(plan: Plan) -> list[Scheduled]:
    """Return what the schedule alone orders in a plan that is safe, in the order of stages."""
    found = dict.fromkeys(_found(plan.small))
    if found and not plan.small.as_enumerated:  # of one rank, which may lack signals that show an order
        with suppress(ScheduleError):  # all ranks may have more tiles than a plan holds
            found = dict.fromkeys(_found(plan))
    order = [*plan.bound.stages]
    return sorted(found, key=lambda one: (order.index(one.reader), order.index(one.writer), one.tensor))


def _unsignalled(plan: Plan) -> set[str]:
    """Return the tensors whose signals the schedule takes away in so many words: it says itself what it orders."""
    every = (one for stage in plan.bound.source.stages for one in statements(stage.body))
    signalled = {one.region.tensor for one in every if isinstance(one, Notify | Wait)}
    return signalled - {tensor for tensor, _ in plan.bound.channels}


def _found(plan: Plan) -> Iterator[Scheduled]:
    """Yield each tensor with its stages. Tensors that are written in place are ordered by signals, and passes answer
    for those that they make."""
    a, order = plan.accesses, Orders(plan)
    own = {tensor.name for tensor in plan.bound.source.tensors} - _unsignalled(plan)
    settled = np.zeros(len(a.task), bool) if order.families is None else order.families.after(BY_PROGRAM)
    left = plan.touching(np.unique(a.tensor[(a.kind == READ) & ~settled]))
    for part in parts(plan, left & ~of_tensors(plan, "in", "table", "inout", "kept")):
        if part.name not in own:
            continue
        known = np.concatenate([order.awaited.after_all(part), part.every[settled[part.every]]])
        writes, reads = pairs(part, READ, without=known)
        apart = np.flatnonzero(a.task[writes] != a.task[reads])
        writes, reads = writes[apart], reads[apart]
        rest = np.flatnonzero(~order.awaited.before(writes, reads))
        rest = rest[~order.by_signals(writes[rest], reads[rest])]
        rest = rest[~order.by_signals(reads[rest], writes[rest])]
        if not len(rest):
            continue
        writes, reads = writes[rest], reads[rest]
        for pair in distinct_rows([a.statement[writes], a.statement[reads]])[0].tolist():
            write, read = int(writes[pair]), int(reads[pair])
            yield Scheduled(
                tensor=part.name,
                writer=plan.statements[int(a.statement[write])][0],
                reader=plan.statements[int(a.statement[read])][0],
                one_kernel=bool(plan.task_kernels[a.task[write]] == plan.task_kernels[a.task[read]]),
            )
