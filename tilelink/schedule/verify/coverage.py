"""Rule 1: every element of every output is written exactly once; every read finds something written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.errors import CoverageError, VerificationError
from tilelink.schedule.places import box
from tilelink.schedule.plan import READ, WRITE, Ints, Plan
from tilelink.schedule.verify.cells import Cells, groups
from tilelink.schedule.verify.refusal import refuse


def coverage(plan: Plan) -> Iterator[VerificationError]:
    """Refusals of what is outside a tensor or a table, outputs not written once, and reads of what nobody writes."""
    for fault in plan.faults:
        yield refuse(CoverageError, plan, fault.message, task=fault.task, statement=fault.statement, hint=fault.hint)
    if plan.faults:
        return
    touched: set[tuple[str, int]] = set()
    for name, rank, rows in groups(plan):
        touched.add((name, rank))
        yield from _covered(plan, name, rank, rows)
    for tensor in plan.bound.tensors.values():
        for rank in range(plan.bound.ranks):
            if tensor.decl.space == "out" and (tensor.name, rank) not in touched:
                message = f"output {tensor.name} of rank {rank} is never written"
                yield CoverageError(message, location=tensor.decl.location, hint="write every element exactly once")


def _covered(plan: Plan, name: str, rank: int, rows: Ints) -> Iterator[VerificationError]:
    tensor = plan.bound.tensors[name]
    if tensor.decl.space in ("in", "table"):
        return
    a, dims = plan.accesses, len(tensor.shape)
    rows = rows[(a.hi[rows, :dims] > a.lo[rows, :dims]).all(axis=1)]
    lo, hi = a.lo[rows, :dims], a.hi[rows, :dims]
    cells = Cells.between(lo, hi, tensor.shape)
    low, high = cells.locate(lo, hi)
    written = a.kind[rows] == WRITE
    count = cells.paint(low[written], high[written], np.ones(int(written.sum()), np.int64))
    if tensor.decl.space == "out":
        yield from _written_once(plan, name, rank, cells, count, rows, low, high)
    missing = cells.sums((count == 0).astype(np.int64), low, high)
    for row in rows[(missing > 0) & (a.kind[rows] == READ)][:1]:
        message = f"reads {name}{box(a.lo[row], a.hi[row], dims)} on rank {rank}, parts of which nobody writes"
        hint = "check the ranks and indices of the stage that fills it"
        yield refuse(CoverageError, plan, message, task=int(a.task[row]), statement=int(a.statement[row]), hint=hint)


def _written_once(
    plan: Plan, name: str, rank: int, cells: Cells, count: Ints, rows: Ints, low: Ints, high: Ints
) -> Iterator[VerificationError]:
    wrong = np.argwhere(count != 1)
    if not len(wrong):
        return
    cell = wrong[0]
    start = [int(cells.edges[d][c]) for d, c in enumerate(cell)]
    times = int(count[tuple(cell)])
    element = f"{name}[{', '.join(map(str, start))}] of rank {rank}"
    hint = "every element of an output is written exactly once"
    if times == 0:
        decl = plan.bound.tensors[name].decl
        yield CoverageError(f"{element} is never written", location=decl.location, hint=hint)
        return
    a = plan.accesses
    inside = ((low <= cell) & (cell < high)).all(axis=1) & (a.kind[rows] == WRITE)
    first, second = rows[inside][:2]
    yield refuse(
        CoverageError,
        plan,
        f"writes {element}, which is written {times} times",
        task=int(a.task[second]),
        statement=int(a.statement[second]),
        related=int(a.statement[first]),
        hint=hint,
    )
