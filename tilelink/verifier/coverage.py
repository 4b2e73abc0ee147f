"""Rule `coverage`: every element of every output is written exactly once, and every element that is read is given or
written.

A tensor that is read and written in place is given: its elements may be written any number of times, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.errors import CoverageError, VerificationError
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import WRITE
from tilelink.lowering.places import box
from tilelink.lowering.transform import stage_writes
from tilelink.planning.plan import Plan
from tilelink.verifier.cells import TensorAccesses, of_tensors, parts, rank_by_rank
from tilelink.verifier.guarded import said, within_parts
from tilelink.verifier.launch_writes import chosen_outputs, ended_outputs, placed_tensors, placed_writes
from tilelink.verifier.refusal import refuse, where
from tilelink.verifier.segments import begin_of, known_places, may_be_placed
from tilelink.verifier.undefined_reads import surely_undefined, undefined_reads, ungiven_reads


def coverage(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of accesses outside a tensor or a table, of output elements that are not written exactly once,
    and of reads of elements that no stage writes."""
    for fault in plan.faults:
        yield refuse(
            CoverageError,
            plan,
            fault.message,
            task=fault.task,
            statement=fault.statement,
            hint=fault.hint,
            location=fault.location,
        )
    if plan.faults:
        return
    placed = placed_tensors(plan)
    yield from ended_outputs(plan)  # which says what to declare, where elements are never written
    touched = _touched(plan, placed)
    tensors = [plan.bound.tensors[name] for name in placed]
    for tensor in filter(may_be_placed, tensors):
        yield from known_places(plan, tensor)
    numbers = [one.number for one in tensors if not may_be_placed(one)]
    for part in parts(plan, ~of_tensors(plan, "in", "inout", "kept", "table") & ~plan.touching(numbers)):
        touched |= {(part.name, rank) for rank in part.ranks.tolist()}
        yield from rank_by_rank(part, _covered)
    for tensor in plan.bound.tensors.values():
        for rank in range(plan.bound.ranks):
            if tensor.decl.space == "out" and tensor.on(rank) and (tensor.name, rank) not in touched:
                message = f"output {tensor.name} of rank {rank} is never written"
                hint = _without_tiles(plan, tensor.name) or "write every element exactly once"
                yield CoverageError(message, location=tensor.decl.location, hint=hint)
    yield from placed_writes(plan)
    yield from chosen_outputs(plan)
    yield from undefined_reads(plan)
    yield from ungiven_reads(plan)


def _touched(plan: Plan, names: list[str]) -> set[tuple[str, int]]:
    """Return (tensor, rank) of all accesses to these tensors."""
    a = plan.accesses
    return {
        (name, int(rank)) for name in names for rank in np.unique(a.peer[a.tensor == plan.bound.tensors[name].number])
    }


def _covered(part: TensorAccesses) -> Iterator[VerificationError]:
    plan, a, dims = part.plan, part.plan.accesses, part.dims
    if plan.bound.tensors[part.name].decl.space == "out":
        yield from _written_once(part)
    yield from _entries_once(part)
    empty = part.count == 0
    if not empty.any():
        return
    low, high = part.boxes  # a range that a launch ends may be known to end before the dimension does
    guarded = np.flatnonzero((a.guard[part.rows] > 0) & ~part.written)
    if part.in_order is None:
        ends = within_parts(plan, part.rows[guarded], a.hi[part.rows[guarded], :dims])
        high = high.copy()
        high[guarded, 1:] = np.maximum(low[guarded, 1:], part.cells.covering(ends))
    missing = part.cells.sums(empty, low, high)
    for row in part.rows[(missing > 0) & ~part.written][:1]:
        reads = f"{part.name}{box(a.lo[row], a.hi[row], dims)} on rank {a.peer[row]}"
        begin = None if part.in_order is None else begin_of(plan, int(row))
        if begin is not None:
            reads += f", in the segment from {said(plan, begin)} on"
        message = f"reads {reads}, parts of which no stage writes"
        writer, hint = _written_instead(part, int(a.peer[row]))
        yield refuse(
            CoverageError, plan, message, task=int(a.task[row]), statement=int(a.statement[row]),
            related=writer, hint=hint,
        )  # fmt: skip


def _written_instead(part: TensorAccesses, rank: int) -> tuple[int | None, str]:
    """Return a statement that writes a tensor elsewhere than a rank reads it, or None, and a hint."""
    plan, a, name = part.plan, part.plan.accesses, part.name
    rows = np.flatnonzero((a.tensor == plan.bound.tensors[name].number) & (a.kind == WRITE))
    if not len(rows):
        return None, _without_tiles(plan, name) or f"no stage writes {name} at all: write it, or declare it as an input"
    here = rows[a.peer[rows] == rank]
    if not len(here):
        one = rows[0]
        whom = f"{where(plan, int(a.task[one]))} writes {name} of rank {a.peer[one]}"
        return int(a.statement[one]), f"no tile writes {name} of rank {rank}, and {whom}: check the rank after `@`"
    one = here[0]
    there = f"{name}{box(a.lo[one], a.hi[one], part.dims)} on rank {rank}"
    return int(a.statement[one]), f"{where(plan, int(a.task[one]))} writes {there}: check its indices"


def _without_tiles(plan: Plan, name: str) -> str:
    """Return a hint if a stage that writes a tensor in the text has nothing to do with these sizes; else nothing."""
    for stage in plan.bound.stages.values():
        none = [index for index, extent in stage.extents.items() if not extent]
        if none and any(region.tensor == name for region in stage_writes(stage.stage)):
            what = f"has no elements along {none[0]} with these sizes"
            return f"{stage.name}, which writes {name}, {what}: give larger ones"
    return ""


def _entries_once(part: TensorAccesses) -> Iterator[VerificationError]:
    """Yield a refusal of an index tensor whose entries change in a launch: each is written once at most."""
    plan, a = part.plan, part.plan.accesses
    decl = plan.bound.tensors[part.name].decl
    if decl.bound is None or not (part.count > 1).any():
        return
    cell = np.argwhere(part.count > 1)[0]
    low, high = part.boxes
    inside = ((low <= cell) & (cell < high)).all(axis=1) & part.written
    first, second = part.rows[inside][:2]
    message = f"writes an entry of {part.name} again, and the entries of index tensors stay as they are for a launch"
    hint = f"write each entry of {part.name} once: give it a dimension for the writers"
    task, statement, related = int(a.task[second]), int(a.statement[second]), int(a.statement[first])
    yield refuse(CoverageError, plan, message, task=task, statement=statement, related=related, hint=hint)


def _left_out(part: TensorAccesses, cell: Ints) -> bool:
    """True if a cell of an output that no rank writes is not defined in any launch."""
    if part.count[tuple(cell)]:
        return False
    tensor, rank = part.plan.bound.tensors[part.name], int(part.ranks[cell[0]])
    lo, hi = ([int(edges[c + n]) for edges, c in zip(part.cells.edges, cell[1:], strict=True)] for n in (0, 1))
    return surely_undefined(part.plan, tensor, rank, lo, hi)


def _written_once(part: TensorAccesses) -> Iterator[VerificationError]:
    plan = part.plan
    cell = next((cell for cell in np.argwhere(part.count != 1) if not _left_out(part, cell)), None)
    if cell is None:
        return
    start = [int(edges[c]) for edges, c in zip(part.cells.edges, cell[1:], strict=True)]
    times = int(part.count[tuple(cell)])
    element = f"{part.name}[{', '.join(map(str, start))}] of rank {part.ranks[cell[0]]}"
    hint = "every element of an output is written exactly once"
    if times == 0:
        decl = plan.bound.tensors[part.name].decl
        yield CoverageError(f"{element} is never written", location=decl.location, hint=hint)
        return
    a, (low, high) = plan.accesses, part.boxes
    inside = ((low <= cell) & (cell < high)).all(axis=1) & part.written
    first, second = part.rows[inside][:2]
    if a.guard[first] and a.guard[second]:
        hint = "where a launch decides which branch is taken, give a name its value in each, and store it after them"
    yield refuse(
        CoverageError,
        plan,
        f"writes {element}, which is written {times} times",
        task=int(a.task[second]),
        statement=int(a.statement[second]),
        related=int(a.statement[first]),
        hint=hint,
    )
