"""Rule `tiles`: a kernel with compact numbers executes each tile that a launch has once, in the order of its stage.

Such a kernel deals the tiles that are there to its programs, and passes over the others (lowering/compact.py). The rule
shows for its numbers, for all entries of index tensors:

* `there` is the number of tiles of the counted index that have elements, in each segment.
* For each number of tiles that may be there, the numbers of a segment are those of the tiles that are there, in the
  order of the stage.

A launch then decides which program executes a tile. The other rules prove their theorems for all choices, with the
plans of `planning/any_program.py`. That takes for granted what this rule checks too:

* A tile that is not there has nothing to do: no notify, and no wait that something else needs.
* No tile reads what a tile of the kernel writes, so no barrier is needed between tiles.
* All programs of a rank are resident.

A kernel with a program for each tile, of which not all are resident, has the same plans. The rule checks what they take
for granted (lowering/dealt_tiles.py).

Four more facts are those of the kernels and not of what they compute, and the plan does not show them. No tile
observes that a flattened loop begins the next one early (lowering/flat_loops.py). Kernels of a stream are issued
in its order. The handshake of a launch is HELPER_KERNELS, which is correct for all programs, or the one that is
chosen for this program (lowering/launch_protocol.py). Copies that overtake others in the queue of a copy engine are
those that the plan has first, and change nothing that others copy; waits beside a queue wait for none of its copies
(planning/queue_order.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tilelink.errors import TilesError, VerificationError
from tilelink.ir.scalar import Binary, Env, Index, Int, Scalar, const, evaluate, mul, rewrite, walk
from tilelink.ir.simplify import simplify
from tilelink.lowering.bound import Bound, BoundStage, Kernel
from tilelink.lowering.columns import Ints
from tilelink.lowering.compact import SEGMENT, THERE, WITHIN, Compact
from tilelink.lowering.compact_tiles import MAX_TRIED, known_at_start, obstacle, tiles_there, with_numbers
from tilelink.lowering.dealt_tiles import dealing_reason, static_reason
from tilelink.lowering.events import NOTIFY, READ, WRITE
from tilelink.lowering.flat_loops import unobservable_reason
from tilelink.lowering.guards import settled
from tilelink.lowering.launch_protocol import fitting
from tilelink.lowering.orders import TILE
from tilelink.planning.copy_queues import OwnCopies, own_copies, waits_are_free
from tilelink.planning.plan import Plan

HINT = "compact numbers as the pass `compact` makes them, or none"


def tiles(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of compact numbers that are not those of the tiles of a launch, or that must not be used, and of
    kernels that run in another way than the plan has them."""
    yield from of_program(plan.bound, faults=bool(plan.faults))
    yield from of_events(plan)


def of_program(bound: Bound, *, faults: bool = False) -> Iterator[VerificationError]:
    """Yield refusals of what the kernels of a program say. faults: True if its plan has some: `coverage` says more."""
    for kernel in bound.kernels:
        if kernel.program_per_tile and (message := _not_per_tile(bound, kernel)) is not None:
            at = bound.stages[kernel.name].stage.location
            yield TilesError(
                f"{kernel.name}: {message}", location=at, hint="as many programs as fit, without `program_per_tile`"
            )
        if kernel.dynamic and (message := static_reason(bound, kernel)) is not None:
            at = bound.stages[kernel.name].stage.location
            yield TilesError(f"{kernel.name}: {message}", location=at, hint="tiles in turn, without `dynamic`")
        for loop in kernel.loops:
            if loop.compact is None or faults:
                continue
            stage = bound.stages[loop.stages[0]]
            message = obstacle(bound, kernel) or _differs(bound, stage, loop.compact)
            if message is not None:
                yield TilesError(f"{stage.name}: {message}", location=stage.stage.location, hint=HINT)
    yield from _of_kernels(bound)


def of_events(plan: Plan, copies: OwnCopies | None = None) -> Iterator[VerificationError]:
    """Yield refusals of events that tie tiles with compact numbers to others, or that a copy engine has in no order.

    copies: those within a rank, if the plan has not all that queues do.
    """
    compact = (plan.bound.stages[loop.stages[0]] for one in plan.bound.kernels for loop in one.loops if loop.compact)
    for stage in compact if not plan.faults else ():
        if (message := _tied(plan, stage)) is not None:
            yield TilesError(f"{stage.name}: {message}", location=stage.stage.location, hint=HINT)
    if (message := _not_in_queue_order(plan, copies)) is not None:
        hint = "own_copies_first and waits_aside as planning decides them, or neither"
        yield TilesError(message, location=plan.bound.schedule.location, hint=hint)


def _of_kernels(bound: Bound) -> Iterator[VerificationError]:
    """Yield refusals of what the plan does not show of kernels."""
    for kernel in bound.kernels:
        for loop in kernel.loops:
            for stage in (bound.stages[name] for name in loop.stages if bound.stages[name].flatten):
                if (reason := unobservable_reason(bound, kernel, loop, stage)) is not None:
                    message = f"{stage.name}: a flattened loop begins the next tile early, and {reason}"
                    yield TilesError(message, location=stage.stage.location, hint="the loop without `flatten`")
    positions: dict[str, int] = {}
    for kernel in sorted(bound.kernels, key=lambda one: one.issue_index):
        if kernel.position < positions.get(kernel.stream, 0):
            message = f"{kernel.name} is issued after a kernel that follows it on the stream {kernel.stream}"
            at = bound.stages[kernel.name].stage.location
            yield TilesError(message, location=at, hint="an `issue_index` that rises with the position in a stream")
        positions[kernel.stream] = kernel.position
    # On several nodes it is the rule `network` that knows.
    if bound.nodes == 1 and bound.protocol not in fitting(bound):
        message = f"its launches take the handshake {bound.protocol.name}, which is not that of such kernels"
        hint = f"protocol {' or '.join(one.name for one in fitting(bound))}"
        yield TilesError(message, location=bound.schedule.location, hint=hint)


def _not_in_queue_order(plan: Plan, copies: OwnCopies | None) -> str | None:
    """Return what the order of copy engines would change that the other rules do not see, or None.

    They see the plan in that order, where a copy that comes first cannot read what one after it in the queue writes.
    """
    engines = [kernel for kernel in plan.bound.kernels if kernel.on_copy_engine]
    first = {kernel.own_copies_first for kernel in engines}
    if not engines:
        return "copies come before others, and there is no copy engine" if len(plan.overtaking) else None
    copies = copies or own_copies(plan)
    wanted = copies.overtaking if first == {True} else copies.overtaking[:0]
    if len(first) > 1 or not np.array_equal(plan.overtaking, wanted):
        return "the plan has copies in another order than the copy engine"
    if first == {True} and copies.conflict:
        return "a copy within a rank comes before a copy that it overtakes, and one writes what the other accesses"
    if any(kernel.waits_aside for kernel in engines) and not waits_are_free(plan):
        return "a wait is issued beside the copies, and what it waits for comes after one of them"
    return None


def _not_per_tile(bound: Bound, kernel: Kernel) -> str | None:
    """Return why a kernel cannot have a program for each tile, or None."""
    if kernel.programs != bound.stages[kernel.name].total:
        return f"{kernel.programs} programs are not one for each tile"
    return dealing_reason(bound, kernel)


def _tied(plan: Plan, stage: BoundStage) -> str | None:
    """Return what ties the tiles of a stage to one another, or to others when they are not there."""
    first = plan.first_task[stage.name]
    last = first + stage.total * plan.bound.ranks
    s, a = plan.signals, plan.accesses
    signals = (first <= s.task) & (s.task < last)
    counted = (s.kind == NOTIFY) & ~plan.by_words  # words of a tile that is not there are not waited for
    if (signals & (counted | (s.guard == 0))).any():
        return "a tile that is not there has a signal to make"
    own = (first <= a.task) & (a.task < last)
    written = np.unique(a.tensor[own & (a.kind == WRITE)])
    if np.isin(a.tensor[own & (a.kind == READ)], written).any():
        return "a tile reads what another one writes"
    return None


def _differs(bound: Bound, stage: BoundStage, compact: Compact) -> str | None:
    """Return how compact numbers differ from those of the tiles that are there, or None."""
    index, size, segments = compact.index, compact.size, compact.segments
    if index not in stage.parts or index not in stage.order or stage.tasks is not None:
        return f"{index} is no counted index of its domain"
    if min(size, segments, compact.across) < 1 or segments * size != stage.total or size % compact.across:
        return f"{segments} segments of {size} tiles are not its {stage.total} tiles"
    if compact.most != stage.count(index):
        return f"a segment has {compact.most} tiles of {index}, which has {stage.count(index)}"
    if compact.most * size > MAX_TRIED:
        return f"a segment has {size} tiles, too many to compare for each number that there may be"
    steady = [name for name in stage.order if _steady(bound, stage, compact, name)]
    if not known_at_start(bound, stage, index, steady):
        return f"the ends of {index} are not known when the kernel begins, or change in a segment"
    return _wrong_counts(bound, stage, compact) or _wrong_tiles(bound, stage, compact)


def _steady(bound: Bound, stage: BoundStage, compact: Compact, name: str) -> bool:
    """True if an index is the same for all tiles of a segment."""
    values = _along(bound, stage, name).reshape(-1, compact.segments, compact.size)
    return bool((values == values[:, :, :1]).all())


def _along(bound: Bound, stage: BoundStage, name: str) -> np.ndarray:
    """Return the values of an index in the order of a stage, [ranks, tiles]."""
    ranks, numbers = np.arange(bound.ranks)[:, None], np.arange(stage.total)[None, :]
    env = Env(rank=ranks, ranks=bound.ranks, params={}, indices={TILE.name: numbers})
    return np.broadcast_to(np.asarray(evaluate(stage.order[name], env)), (bound.ranks, stage.total))


def _wrong_counts(bound: Bound, stage: BoundStage, compact: Compact) -> str | None:
    """Return a segment for which `there` is another expression of entries than the number of tiles with elements."""
    if _as_counted(bound, stage, compact):
        return None
    for rank in range(bound.ranks):
        for segment in range(compact.segments):
            number = Int(value=segment * compact.size)
            wanted = tiles_there(stage, compact.index, {TILE.name: number})
            pair = [_settled(bound, stage, expr, rank, segment) for expr in (wanted, compact.there)]
            if pair[0] != pair[1]:
                return f"`there` is not the number of tiles of {compact.index} in segment {segment} of rank {rank}"
    return None


def _as_counted(bound: Bound, stage: BoundStage, compact: Compact) -> bool:
    """True if `there` is the number of tiles for a segment by its name: the same for all ranks and segments at once."""
    bounds = with_numbers(bound.bounds(stage.name), compact)
    first = mul(SEGMENT, const(compact.size)) if compact.segments > 1 else const(0)
    wanted = simplify(tiles_there(stage, compact.index, {TILE.name: first}), bounds)
    there = simplify(compact.there, bounds)
    return wanted == there and not any(isinstance(e, Index) and e != SEGMENT for e in walk(there))


def _settled(bound: Bound, stage: BoundStage, expr: Scalar, rank: int, segment: int) -> Scalar | None:
    """Return an expression of entries alone for one segment, simplified; None if it has other names."""
    if any(isinstance(e, Index) and e != SEGMENT for e in walk(expr)):
        return None
    return simplify(settled(expr, rank, {SEGMENT.name: segment}), bound.bounds(stage.name))


def _wrong_tiles(bound: Bound, stage: BoundStage, compact: Compact) -> str | None:
    """Return a number of tiles that may be there for which the numbers are not those of its tiles."""
    numbers = np.arange(compact.segments)[:, None] * compact.size
    whole = _along(bound, stage, compact.index).reshape(-1, compact.segments, compact.size)
    if (whole != whole[:1, :1]).any():
        return f"the order of {compact.index} is not the same in all segments"
    own = whole[0, 0]
    few = np.arange(1 if _shifted(compact) else compact.segments)
    within = {SEGMENT.name: few[:, None], WITHIN.name: np.arange(compact.size)[None, :]}
    tile, columns = _apart_from_there(compact.tile, within)
    for there in range(1, compact.most + 1):
        wanted = np.flatnonzero(own < there)
        count = len(wanted)
        if count != there * compact.across:
            return f"{there} tiles of {compact.index} are not {there * compact.across} of a segment"
        known = {name: column[:, :count] for name, column in columns.items()}
        env = Env(rank=0, ranks=bound.ranks, params={}, indices={**known, THERE.name: there})
        if (np.asarray(evaluate(tile, env)) != numbers[few] + wanted).any():
            return f"`tile` does not name the tiles of a segment in order where {there} of {compact.index} are there"
    return None


def _apart_from_there(tile: Scalar, indices: Mapping[str, Ints]) -> tuple[Scalar, dict[str, Ints]]:
    """Return an expression with indices in place of its parts that do not depend on how many tiles are there, and their
    values, [segments, tiles]. indices: the values of its own ones."""
    env, shape = Env(rank=0, ranks=1, params={}, indices=indices), np.broadcast(*indices.values()).shape
    names: dict[Scalar, str] = {}
    columns: dict[str, Ints] = {}

    def change(part: Scalar) -> Scalar | None:
        if isinstance(part, Int) or THERE in walk(part):
            return None
        if part not in names:
            names[part] = f"#{len(names)}"
            columns[names[part]] = np.broadcast_to(np.asarray(evaluate(part, env)), shape)
        return Index(name=names[part])

    return rewrite(tile, change), columns


def _shifted(compact: Compact) -> bool:
    """True if the number of a tile is that of the first one of its segment, plus what does not depend on this."""
    first = mul(SEGMENT, const(compact.size))
    terms = [*_terms(compact.tile)]
    return terms.count(first) == 1 and not any(SEGMENT in walk(term) for term in terms if term != first)


def _terms(expr: Scalar) -> Iterator[Scalar]:
    match expr:
        case Binary(op="+", left=left, right=right):
            yield from _terms(left)
            yield from _terms(right)
        case _:
            yield expr
