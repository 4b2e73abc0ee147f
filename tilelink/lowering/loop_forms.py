"""The pass that gives loops inside of tiles the form in which a program executes them.

A program should not wait for one peer before it has sent its request or its notify to the next. So short loops over
ranks that only load or send small tiles are unrolled, longer ones that load have several iterations in flight, and a
loop of notifies is one instruction. In a loop that waits, notifies or stores, each iteration comes after the one
before: loads of the next one must not overtake that.

before: stage total: on sm, ...
after:  stage total: on sm, ..., loops[unrolled, in order]
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from types import UnionType

from tilelink.errors import EmitError
from tilelink.ir.program import (
    ITEM_BYTES,
    Assign,
    Attend,
    Barrier,
    Dot,
    For,
    If,
    Local,
    Notify,
    Reduce,
    Scan,
    Statement,
    Store,
    Transfer,
    UserCall,
    Value,
)
from tilelink.ir.scalar import Compare, Scalar
from tilelink.ir.visitor import awaited, on_ranks, only_signals, reads, statements, values
from tilelink.lowering.blocks import block_shape
from tilelink.lowering.bound import Bound, BoundStage, KernelKind
from tilelink.lowering.sink_waits import sliced_product

ITERATIONS = 8
ELEMENTS = 16384
"""Largest number of elements of all iterations of an unrolled loop, which are in registers at the same time."""
ITERATIONS_AHEAD = 3
"""Number of iterations in flight of a loop that loads, if it has so many.

Adding seven peers' 128x256 tiles takes 15 us with two to four in flight, and 22 us one by one (H200).
"""
MOST_AHEAD, BYTES_AHEAD = 8, 32768
"""Largest number of iterations in flight if these load little, and the bytes that they load together: however few
bytes are asked for, memory answers after as long."""
TOGETHER_COUNT = 32
"""Largest number of notifies that are issued together: one for each thread of a warp."""
PLAIN, UNROLLED, IN_ORDER, TOGETHER, AHEAD = "plain", "unrolled", "in order", "together", "ahead"
"""Forms of loops: as the compiler likes; written out; one iteration after the other; one instruction that makes the
notifies of all iterations; with the loads of so many iterations in flight (`ahead 3`)."""
FORM = re.compile(rf"{PLAIN}|{UNROLLED}|{IN_ORDER}|{TOGETHER}|{AHEAD} [1-9]\d*")


@dataclass(frozen=True, kw_only=True)
class TileLoop:
    """A loop in a tile of a stage. inner: True if it is inside of another one."""

    loop: For
    inner: bool


def decide_loops(bound: Bound) -> Bound:
    """before: loops without forms. after: stages with those of their loops, where programs execute tile after tile."""
    stages = dict(bound.stages)
    for name, stage in bound.stages.items():
        if stage.kind not in (KernelKind.ROLES, KernelKind.COPY_QUEUE):
            forms = tuple(_form(bound, stage, one) for one in loops_of(bound, stage))
            stages[name] = replace(stage, loops=forms if set(forms) - {PLAIN} else ())
    return replace(bound, stages=stages)


def loops_of(bound: Bound, stage: BoundStage) -> Collection[TileLoop]:
    """Return the loops that kernels of a stage have, in the order of its statements: those that are alike are one.

    A tile or an iteration that is not there makes its signals alone, in loops of their own. Of a loop over several
    indices of which one is counted, those after it are a loop of their own.
    """
    counted = any(decl.counted for decl in stage.stage.indices)
    _, body = on_ranks(stage.stage)
    found = [*_loops(bound, stage, body, False)]
    if counted:
        body = body[bound.first_waits(stage.name) :]
        found += _loops(bound, stage, _signals(bound, stage, body), False)
    return dict.fromkeys(found)


def forms_of(bound: Bound, stage: BoundStage) -> Mapping[TileLoop, str]:
    """Return the form of each loop. Raises EmitError for a stage that has others than when they were decided."""
    loops, message = loops_of(bound, stage), ""
    if stage.loops and len(stage.loops) != len(loops):
        message = f"stage {stage.name} has {len(loops)} loops inside of tiles, and forms of {len(stage.loops)}"
    if unknown := [form for form in stage.loops if not FORM.fullmatch(form)]:
        message = f"loops inside of tiles of stage {stage.name} have no form {unknown[0]!r}"
    if message:
        raise EmitError(message, location=stage.stage.location, hint="emit what all passes return")
    return dict(zip(loops, stage.loops or (PLAIN,) * len(loops), strict=True))


def _signals(bound: Bound, stage: BoundStage, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return only_signals(body, lambda wait: bound.is_placed(stage.name, wait))


def _loops(bound: Bound, stage: BoundStage, body: tuple[Statement, ...], inner: bool) -> Iterator[TileLoop]:
    for statement in body:
        match statement:
            case If(then=then, orelse=orelse):
                yield from _loops(bound, stage, (*then, *orelse), inner)
            case For() if sliced_product(stage, statement) is None:
                yield from _nest(bound, stage, statement, inner)
            case _:
                pass


def _nest(bound: Bound, stage: BoundStage, loop: For, inner: bool) -> Iterator[TileLoop]:
    yield TileLoop(loop=loop, inner=inner)
    at = next((n for n, decl in enumerate(loop.indices) if decl.name in stage.parts), None)
    body = loop.body
    if at is not None:
        body = (replace(loop, indices=loop.indices[at + 1 :]),) if loop.indices[at + 1 :] else body
        yield from _loops(bound, stage, _signals(bound, stage, body), True)
    yield from _loops(bound, stage, body, True)


def _form(bound: Bound, stage: BoundStage, one: TileLoop) -> str:
    """Return the form of a loop."""
    loop, (first, *more) = one.loop, one.loop.indices
    whole = not more and first.name not in stage.parts
    if whole and may_notify_together(bound, stage, loop):
        return TOGETHER
    if whole and _is_short(bound, stage, loop):
        return UNROLLED
    if is_sequential(loop):
        return IN_ORDER
    # A product has its own pipeline stages. Their buffers are free after the product, but not in a flattened loop.
    if not more and not one.inner and not stage.flatten and bound.target.kind == "cuda":
        ahead = _iterations_ahead(bound, stage, loop)
        return f"{AHEAD} {ahead}" if ahead > 1 else PLAIN
    return PLAIN


def is_sequential(loop: For) -> bool:
    """True if the iterations of a loop must follow one another, so that it may not be software-pipelined.

    Loads of the next iteration must not overtake this iteration's stores and notifies, and Triton's pipeliner does not
    accept waits that loads depend on. A read that waits for its words is such a wait. Only loops inside of such a loop,
    or without any of these, are software-pipelined.
    """
    return any(isinstance(s, Store | Transfer | Notify | Barrier) or awaited(s) for s in statements(loop.body))


def _is_short(bound: Bound, stage: BoundStage, loop: For) -> bool:
    """True if a loop has few iterations that only load and compute small tiles, so that all loads may be in flight.

    Also true for loops that only send such tiles, which saves the loop. Loops with products, reductions, other stores
    or signals are not unrolled.
    """
    count, elements, typing = stage.count(loop.indices[0].name), 0, bound.typing.stage(stage.name).locals
    for statement in loop.body:
        match statement:
            case Transfer(source=Local(name=name)):
                pass
            case Assign(name=name, value=value) if not _has(value, Dot | Attend | Reduce | Scan):
                pass
            case _:
                return False
        elements = max(elements, prod(block_shape(bound, stage, typing[name].axes)))
    return count <= ITERATIONS and count * elements <= ELEMENTS


def _iterations_ahead(bound: Bound, stage: BoundStage, loop: For) -> int:
    """Return how many iterations of a loop may have their loads in flight together; 1 if impossible or of no use.

    More than 1 needs a loop of assignments that load and compute elementwise, as a reduction of one element does: the
    order of any other statement matters.
    Such loads go through shared memory, in which Triton buffers those of one iteration less.
    """
    size, typing = 0, bound.typing.stage(stage.name)
    for statement in loop.body:
        if not isinstance(statement, Assign) or _has(statement.value, Dot | Attend | Scan | UserCall):
            return 1
        sums = (one for one in values(statement.value) if isinstance(one, Reduce))
        if any(block_shape(bound, stage, typing.axes_of(one.value))[one.axis] > 1 for one in sums):
            return 1
        for region in reads(statement.value):
            shape = block_shape(bound, stage, typing.region_type(region).axes)
            size += prod(shape) * ITEM_BYTES[bound.tensors[region.tensor].dtype]
    count = stage.count(loop.indices[0].name)
    if not size:
        return 1
    wanted = max(ITERATIONS_AHEAD, min(MOST_AHEAD, BYTES_AHEAD // size))
    return max(1, min(wanted, count, bound.target.shared_memory // size))


def _has(value: Value, kinds: UnionType) -> bool:
    return any(isinstance(one, kinds) for one in values(value))


def notified_together(loop: For) -> tuple[Notify, Scalar | None] | None:
    """Return the notify at peers that is the whole body of a loop, and its condition, or None."""
    match loop.body:
        case (Notify() as notify,):
            condition = None
        case (If(condition=Compare() as condition, then=(Notify() as notify,), orelse=()),):
            pass
        case _:
            return None
    return (notify, condition) if notify.region.rank is not None else None


def may_notify_together(bound: Bound, stage: BoundStage, loop: For) -> bool:
    """True if one instruction can make the notifies of all iterations of a loop, each of one counter."""
    found = notified_together(loop) if len(loop.indices) == 1 else None
    if found is None or not bound.capabilities.notifies_together:
        return False
    region, kind = found[0].region, found[0].kind
    channels = bound.tile_map(stage.name, region).channel_range(bound.channels[region.tensor, kind])
    return 1 < stage.count(loop.indices[0].name) <= TOGETHER_COUNT and all(one.count == 1 for one in channels)
