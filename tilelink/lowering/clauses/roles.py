"""`roles(consumers=2, buffers=3)`: warps of a kernel have roles, so that loads, products and stores overlap.

One warp, the loader, waits for signals and loads the operands of products by the tensor memory accelerator (TMA) into a
ring of buffers in shared memory. Each consumer, a group of four warps, multiplies some rows of every tile from the
ring, and executes the waits after the product. Another warp, the storer, stores the results by TMA and notifies. So the
operands of the next tile are loaded while consumers compute the results of a tile, and only the storer waits until
stores are visible to peers.

before: a program: wait; multiply, loading step by step; wait again; compute; store; notify; the next tile
after:  loader:    wait; load ...; wait for the next tile; load ...
        consumers:       multiply ...; wait again; compute; multiply the next tile ...
        storer:                                             store; notify; store the next tile ...

The plan keeps the order of one program, tile after tile, and the roles keep all of it but one part: waits and loads of
a tile, and its consumers' waits, may come before stores and notifies of the tiles before it. That cannot be observed.
No tile of the kernel writes what a tile loads or computes with, and whatever else happens after a load or a wait of a
tile happens after its stores too, which are in order. No notify depends on a later tile's wait, and no role waits for
one that executes a later statement of the plan, so roles never wait where the plan does not.

Consumers execute all waits after the product before they compute, piece by piece. The plan does not show this,
where some waits follow loads: a tile that computes tells no one. A consumer may compute with what a loader has waited
for: it reads after it has found a buffer of its tile full, which the loader has had filled after its waits.

Tiles that are computed with next to the product come by TMA too, if they are boxes like those of the left operand. The
loader executes the waits after the product then, and loads pieces of these tiles into the ring, after the operands.

The clause is for stages with tiles of their own on SMs, which wait, multiply along a whole dimension, once or twice the
same left operand, may wait again, compute elementwise with the products, store one tile, at peers too, and notify
(lowering/straight_epilogue.py). It is also for stages whose tiles have one loop that carries a state, such as online
softmax (lowering/carried.py). On processors without the warpgroup products of `sm_90`, programs are those of plain
Triton, as without the clause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tilelink.capabilities import has_warpgroups
from tilelink.errors import ScheduleError, did_you_mean
from tilelink.ir.mapping import Span
from tilelink.ir.products import operand_region, products
from tilelink.ir.program import (
    ITEM_BYTES,
    Assign,
    For,
    Full,
    Notify,
    Program,
    Read,
    Region,
    Stage,
    Statement,
    Store,
    Wait,
)
from tilelink.ir.reach import elsewhere
from tilelink.ir.scalar import Index, Lookup, const, mul, walk
from tilelink.ir.sizes import power_of_two
from tilelink.ir.typing import StageTyping
from tilelink.ir.visitor import stage_scalars, statements, values
from tilelink.lowering.bound import Bound, BoundStage, Kernel
from tilelink.lowering.carried import carried, has_loop, parts, range_of, unfolded, unfolded_body
from tilelink.lowering.channel_waits import repeated
from tilelink.lowering.choose_network import sends
from tilelink.lowering.clauses.clause import Choices, Clause, Phase, Ties, said
from tilelink.lowering.clauses.flatten import FLATTEN
from tilelink.lowering.clauses.halve_tail import HALVE_TAIL
from tilelink.lowering.rings import (
    Roles,
    fit_together,
    kept_ring,
    loop_ring,
    operand_ring,
    result_ring,
    wait_for_each_other,
    widest_of,
    without_addends,
)
from tilelink.lowering.role_statements import (
    addends,
    decided_reason,
    divided_reason,
    late_waits,
    product_of,
    products_of_tile,
    results_of,
    roles_reason,
    stage_body,
    tile_addends,
)
from tilelink.lowering.straight_epilogue import once, straight, straightened
from tilelink.lowering.transform import stage_writes
from tilelink.scheduling.schedule import RolesChoice, Schedule
from tilelink.scheduling.words import check_count

GROUP_ROWS = 64
"""Rows of a product of one group of four warps (PTX ISA, wgmma)."""
COLUMNS = (16, 256)
"""Fewest and most columns of such a product."""
BLOCK_BYTES = (64, 128, 256)
"""Bytes of a row of a buffer, of contracted elements: TMA writes such rows as products read them."""
WIDE, NARROW = ("bf16", "f16"), ("f8e4m3", "f8e5m2")
"""Types of operands. Tensor cores add products of the narrow ones with fewer bits than f32 has: consumers add up those
of buffers."""
REGISTERS = {2: (232, 40), 3: (160, 32)}
"""Consumers -> registers of a thread of a consumer, and of the other roles.

An SM has 65536. Warps are allocated by fours, so 2 consumers are 12 warps with 168 registers a thread, and 3 are 16
with 128; what other roles do not need goes to the consumers (PTX ISA, setmaxnreg).
"""
LAUNCH_REGISTERS = {2: 168, 3: 128}
"""Consumers -> registers of a thread before roles begin, for which Triton has all of the kernel compiled."""
SPARE_REGISTERS = 26
"""Least number of them besides a consumer's part of the product: ptxas 12.8 needs 154 for 64 x 256 elements."""
LOOP_SPARE_REGISTERS = 28
"""The same of a loop that carries a state, besides its products and what it multiplies: of a consumer's registers."""
MAX_BUFFERS = 6
ALIGNMENT = 16
"""Alignment in bytes of rows of tensors (CUDA driver API, cuTensorMapEncodeTiled)."""
PIECE_BYTES = 128
"""Bytes of a row of a piece of the results: TMA stores one such piece at a time, see cuTensorMapEncodeTiled."""
MIN_RESULTS = 2
"""Least number of pieces in shared memory, if there are as many: one is computed while another is stored."""
BARRIER_BYTES = 8
SPARE_BYTES = 1024
"""Shared memory that Triton takes to start roles, and to align buffers."""


def _read(_: str, children: Sequence[Any]) -> RolesChoice:
    sizes = dict(children)
    needed, allowed = {"consumers", "buffers"}, {"consumers", "buffers", "in_flight"}
    if len(sizes) < len(children) or not needed <= sizes.keys() <= allowed:
        found = [str(name) for name, _ in children]
        hint = "roles(consumers=2, buffers=4), or with in_flight=1 as well"
        unknown = next((name for name in found if name not in allowed), None)
        if unknown is not None:
            raise ScheduleError(f"roles has no {unknown!r}", hint=did_you_mean(unknown, sorted(allowed), hint))
        raise ScheduleError(f"roles has {', '.join(found)}", hint=hint)
    return RolesChoice(**{str(name): int(size) for name, size in sizes.items()})


def _show(choice: RolesChoice | None) -> str:
    return str(choice or "")


def _valid(owner: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, RolesChoice):
        raise ScheduleError(f"roles {value!r} of {owner}", hint="roles(consumers=2, buffers=3)")
    check_count("buffers of roles", owner, value.buffers, "a ring has two buffers or more")
    if value.consumers not in REGISTERS:
        hint = "2 or 3 consumers: others do not fill an SM"
        raise ScheduleError(f"{value.consumers!r} consumers of {owner}", hint=hint)
    if not 2 <= value.buffers <= MAX_BUFFERS:
        hint = f"2 to {MAX_BUFFERS}: one is multiplied while another is loaded"
        raise ScheduleError(f"{value.buffers} buffers of {owner}", hint=hint)
    if value.in_flight not in (1, 2):
        raise ScheduleError(f"in_flight={value.in_flight!r} of {owner}", hint="1 or 2 products of a consumer")


def _apply(bound: Bound) -> Bound:
    """Return the bound program with the roles of every stage that has the clause, on a processor for them.

    Raises ScheduleError for a stage that cannot have them.
    """
    given = bound
    for name in bound.stages:
        if bound.schedule.stage(_written(bound, name))[ROLES] is not None:
            bound = straightened(bound, name)
            if has_loop(bound.stages[name]):
                bound = unfolded(bound, name)
    stages = dict(bound.stages)
    for name, stage in bound.stages.items():
        part = bound.schedule.stage(_written(bound, name))
        if (choice := part[ROLES]) is None:
            continue
        reason = _reason(bound, stage)
        if reason is None and bound.capabilities.roles:
            made = loop_roles_of(bound, stage, choice) if has_loop(stage) else roles_of(bound, stage, choice)
            if isinstance(made, Roles):
                stages[name] = replace(stage, roles=made)
                continue
            reason = made
        if reason:
            hint = "take `roles` away, or see docs/language.md for the stages that can have them"
            if "are f32, " in reason and _of_no_type(bound, stage):
                hint = f'--dtype bf16 (in Python dtype="bf16"), or {hint}'
            raise ScheduleError(f"{name} cannot have roles: {reason}", location=part.at("roles"), hint=hint)
    if not bound.capabilities.roles:
        return given
    for kernel in bound.kernels:
        found = {name: roles for name in kernel.stage_names if (roles := stages[name].roles) is not None}
        if not found:
            continue
        widest = widest_of(found.values())
        for name, roles in found.items():
            buffers, targets = widest.results.buffers, len(results_of(stages[name]))
            ring = result_ring(buffers=buffers, targets=targets)
            own = replace(roles, results=ring)
            own = without_addends(own) if wait_for_each_other(own) else own
            stages[name] = replace(stages[name], roles=own)
            types = {types_of(bound, stages[other]) for other in found}
            if not fit_together(own, widest) or len(types) > 1:
                message = f"the roles of {', '.join(kernel.stage_names)} in one kernel do not fit together"
                hint = "give them the same rows of tiles, blocks, roles, and types of operands and results, "
                hint += f"and tiles of {PIECE_BYTES} bytes of each row of a result or more"
                raise ScheduleError(message, location=bound.schedule.stage(kernel.name).at("roles"), hint=hint)
    return replace(bound, stages=stages)


def _written(bound: Bound, name: str) -> str:
    """Return the stage of the schedule that a stage was made from: a pass adds stages to the kernel of that."""
    return name if any(name == stage.name for stage in bound.source.stages) else bound.kernel_of[name].name


# Which stages can have roles ----------------------------------------------------------------------------------


def _reason(bound: Bound, stage: BoundStage) -> str | None:
    """Return why a stage cannot have roles on any processor, or None."""
    kernel = bound.kernel_of[stage.name]
    if kernel.on_copy_engine:
        return "it does not run on SMs"
    first = [_written(bound, loop.stages[0]) for loop in kernel.loops]
    if any(len(loop.stages) > 1 for loop in kernel.loops) or not all(bound.schedule.stage(n)[ROLES] for n in first):
        return "another stage runs in its kernel, without roles or with the same tiles"
    for clause in said(bound.schedule.stage(_written(bound, stage.name))):
        if clause.without_roles:
            return f"it has `{clause.name}`, which is for programs without roles"
    if sends(stage):  # all threads of a program send together, and a role has some of them
        return "it sends to another node"
    return divided_reason(stage) or launch_reason(bound, stage) or conflict(bound, kernel, stage)


def _of_no_type(bound: Bound, stage: BoundStage) -> bool:
    """True if a stage multiplies tensors whose element type is that of the compilation."""
    dots = products(statements(stage.stage.body))
    read = (v.region.tensor for dot in dots for v in values(dot) if isinstance(v, Read))
    return any(bound.tensors[name].decl.dtype is None for name in read)


def launch_reason(bound: Bound, stage: BoundStage) -> str | None:
    """Return why roles cannot have what only a launch decides of a stage, or None."""
    found = [e for scalar in stage_scalars(stage.stage) for e in walk(scalar) if isinstance(e, Lookup)]
    for one in found:
        if not bound.tensors[one.table].constant:
            return f"its roles read {one.table} at different times, and it is written while programs run"
    if any(decl.counted for decl in stage.stage.indices):
        if late_waits(stage):
            return "it waits after its product, also for tiles that are not there"
        # The storer does not wait for the loader of a tile that is not there.
        kernel = bound.kernel_of[stage.name]
        waits = any(isinstance(s, Wait) for name in kernel.stage_names for s in _statements(bound, name))
        if waits and any(isinstance(s, Notify) for s in statements(stage.stage.body)):
            return "a tile that is not there would notify before the waits that come before it"
    return decided_reason(stage.stage)


def _statements(bound: Bound, stage: str) -> Iterator[Statement]:
    return statements(bound.stages[stage].stage.body)


def conflict(bound: Bound, kernel: Kernel, stage: BoundStage) -> str | None:
    """Return what a tile loads or computes with that the kernel writes, or None.

    It may be read before the tiles before it are stored.
    """
    written = {
        region.tensor
        for other in (bound.stages[name] for name in kernel.stage_names)
        for region in stage_writes(other.stage)
        if region.rank is None or not elsewhere(region.rank, bound.ranks, _numbers(other))
    }
    dots = products(statements(stage.stage.body)) if has_loop(stage) else products(stage_body(stage))
    for dot in dots:
        for read in (v for v in values(dot) if isinstance(v, Read)):
            if read.region.tensor in written:
                return f"it multiplies {read.region.tensor}, which its own tiles write"
    for read in addends(stage) if not has_loop(stage) else ():
        if read.region.tensor in written:
            return f"it computes with {read.region.tensor}, which its own tiles write"
    return None


def types_of(bound: Bound, stage: BoundStage) -> tuple[str, str]:
    """Return the element types of a stage's operands and of its results, whose buffers stages of a kernel share."""
    operand = parts(stage).kept if has_loop(stage) else operand_region(product_of(stage).left)
    return bound.tensors[operand.tensor].dtype, bound.tensors[results_of(stage)[0].tensor].dtype


def is_cut(bound: Bound, stage: BoundStage) -> bool:
    """True if a launch decides where the rows of a stage's tiles of results end."""
    return not has_loop(stage) and any(
        bound.tile_map(stage.name, region).spans[-2].counted for region in results_of(stage)
    )


def is_summed(bound: Bound, stage: BoundStage) -> bool:
    """True if consumers add the products of buffers to the sums of a tile, in f32."""
    return bound.tensors[operand_region(product_of(stage).left).tensor].dtype in NARROW


def _numbers(stage: BoundStage) -> dict[str, int]:
    """Return the numbers of values of a stage's indices that are numbers."""
    return {name: stage.extents[name] for name in stage.scalar_indices if name not in stage.parts}


# How their work is divided ------------------------------------------------------------------------------------


def roles_of(bound: Bound, stage: BoundStage, choice: RolesChoice) -> Roles | str:
    """Return the roles of a stage, or why its tiles do not allow them."""
    dots, targets = products_of_tile(stage), results_of(stage)
    left, rights = operand_region(dots[0].left), [operand_region(one.right) for one in dots]
    rows, columns, *others = (_along(bound, stage, region) for region in (left, *rights))
    if rows is None or columns is None or any(other != columns for other in others):
        return "an operand of its product is not rows of whole dimensions, one block after the other"
    if reason := _operands_reason(bound, (left, *rights), targets):
        return reason
    block, consumers, item, stored = (
        bound.contraction_block(stage.name), choice.consumers, _item(bound, left), _item(bound, targets[0])
    )  # fmt: skip
    reason = _tile_reason(rows, columns, consumers, len(dots)) or _block_reason(block, item)
    if reason := reason or _epilogue_reason(bound, stage, targets):
        return reason
    own, sums = rows // consumers, is_summed(bound, stage)
    held = own * columns * len(dots) * (1 + sums) // 128
    limit = REGISTERS[consumers][0] if sums else LAUNCH_REGISTERS[consumers]
    if held + SPARE_REGISTERS > limit:
        return f"its consumers hold {held} values in each thread, and {limit - SPARE_REGISTERS} fit its registers"
    sizes = rows * block * item, columns * block * item
    place = sizes[0] + len(dots) * sizes[1]
    pieces = max(1, columns * stored // PIECE_BYTES)
    piece = rows * columns * stored // pieces
    needed, there = choice.buffers * (place + 2 * BARRIER_BYTES) + SPARE_BYTES, bound.target.shared_memory
    results = _results(there - needed, pieces, piece, consumers)
    if not results:
        return _too_large(needed + min(pieces, MIN_RESULTS) * piece, there)
    added = _loadable_addends(bound, stage, columns // pieces)
    return Roles(
        consumers=consumers,
        rows=own,
        columns=columns,
        block=block,
        pieces=pieces,
        registers=REGISTERS[consumers],
        operands=operand_ring(
            buffers=choice.buffers,
            consumers=consumers,
            ahead=choice.in_flight - 1,
            left=sizes[0],
            right=sizes[1],
            products=len(dots),
            sums=sums,
            further=added * pieces,
            piece=rows * columns // pieces * item,
        ),
        products=len(dots),
        results=result_ring(buffers=results, targets=len(targets)),
        cut=is_cut(bound, stage),
        addends=added,
    )


def _operands_reason(bound: Bound, operands: Sequence[Region], targets: Sequence[Region]) -> str | None:
    """Return why operands cannot be multiplied by groups of warps, or not be loaded or stored by TMA, or None."""
    for region in (*operands, *targets):
        if bound.tensors[region.tensor].shape[-1] * _item(bound, region) % ALIGNMENT:
            return f"rows of {region.tensor} are not multiples of {ALIGNMENT} bytes"
    types = {bound.tensors[region.tensor].dtype for region in operands}
    if len(types) > 1 or not types <= {*WIDE, *NARROW}:
        return f"its operands are {' and '.join(sorted(types))}, not both {' or '.join((*WIDE, *NARROW))}"
    return None


def _tile_reason(rows: int, columns: int, consumers: int, products: int) -> str | None:
    """Return why consumers cannot divide a tile of so many rows and columns, or None."""
    if rows % (GROUP_ROWS * consumers):
        return f"{rows} rows of a tile are not {consumers} times a multiple of {GROUP_ROWS}"
    if columns != power_of_two(columns) or not COLUMNS[0] <= columns <= COLUMNS[1] // products:
        return f"{columns} columns of a tile are no power of two from {COLUMNS[0]} to {COLUMNS[1] // products}"
    own = rows // consumers
    return None if own == power_of_two(own) else f"{own} rows of a consumer are no power of two"


def _block_reason(block: int, item: int) -> str | None:
    """Return why a buffer cannot have rows of so many contracted elements of `item` bytes, or None."""
    fitting = ", ".join(str(size // item) for size in BLOCK_BYTES)
    return None if block * item in BLOCK_BYTES else f"a block of {block} contracted elements is none of {fitting}"


def _loadable_addends(bound: Bound, stage: BoundStage, width: int) -> int:
    """Return the number of tiles that the loader loads next to the operands of a product: all of its addends, or 0.

    A piece of each, of `width` columns, must be a box like one of the left operand, whose buffer it gets. The loader
    executes the waits after the product then, and consumers do not wait for it before they read vectors from memory: if
    there are such waits, the vectors must be inputs, which nobody writes.
    """
    tiles, left = tile_addends(bound, stage), bound.tensors[operand_region(product_of(stage).left).tensor]
    boxed = width == bound.contraction_block(stage.name) and not is_cut(bound, stage)
    if not boxed or not all(_is_box(bound, stage, region, left.dtype) for region in tiles):
        return 0
    vectors = (read.region.tensor for read in addends(stage) if read.region not in tiles)
    unwritten = all(bound.tensors[name].decl.space == "in" for name in vectors)
    return len(tiles) if unwritten or not late_waits(stage) else 0


def _is_box(bound: Bound, stage: BoundStage, region: Region, dtype: str) -> bool:
    """True if TMA can load a tile of rows and columns of a tensor of this type. It may reach beyond the tensor."""
    tensor, (*others, rows, columns) = bound.tensors[region.tensor], bound.tile_map(stage.name, region).spans
    tiled = rows.kind == columns.kind == "tile" and not rows.counted and not columns.counted
    aligned = tensor.shape[-1] * ITEM_BYTES[tensor.dtype] % ALIGNMENT == 0
    return tiled and aligned and tensor.dtype == dtype and all(span.kind == "point" for span in others)


def _epilogue_reason(bound: Bound, stage: BoundStage, targets: Sequence[Region]) -> str | None:
    """Return why results cannot be computed or stored at some places, or None."""
    target = targets[0]
    for region in targets:
        if reason := _stored(bound, stage, region):
            return reason
        if bound.tensors[region.tensor].dtype != bound.tensors[target.tensor].dtype:
            return f"{region.tensor} has other elements than {target.tensor}, and both get the same results"
    reasons = (_addend(bound, stage, read.region, target) for read in addends(stage))
    return next(filter(None, reasons), None) or _broadcast_reason(bound, stage)


def _broadcast_reason(bound: Bound, stage: BoundStage) -> str | None:
    """Return which name has values of fewer dimensions than others, or None. Pieces of it would have several forms."""
    typing = bound.typing.stage(stage.name)
    for statement in stage_body(stage):
        if isinstance(statement, Assign) and not isinstance(statement.value, Full) and not products((statement,)):
            axes = typing.type_of(statement.value).axes
            if axes != typing.locals[statement.name].axes:
                return f"{statement.name} is a vector or a number at first and a tile later: use two names"
    return None


def every_roles_of(bound: Bound, stage: BoundStage, *, consumers: int, buffers: int) -> list[Roles] | str:
    """Return all roles of a stage with so many consumers and buffers, or why its tiles do not allow them."""
    every: list[Roles] = []
    reason = ""
    for in_flight in (1, 2):
        choice = RolesChoice(consumers=consumers, buffers=buffers, in_flight=in_flight)
        made = loop_roles_of(bound, stage, choice) if has_loop(stage) else roles_of(bound, stage, choice)
        if isinstance(made, str):
            reason = made
        else:
            every += [made, without_addends(made)] if made.addends else [made]
    return every or reason


def loop_roles_of(bound: Bound, stage: BoundStage, choice: RolesChoice) -> Roles | str:
    """Return the roles of a stage whose loop carries a state, or why its tiles do not allow them."""
    found = parts(stage)
    (target,) = (s.region for s in found.after if isinstance(s, Store))
    iterations = range_of(stage, found, bound.bounds(stage.name))
    if isinstance(iterations, str):
        return iterations
    operands = (found.kept, found.leading, found.trailing)
    spans = [bound.tile_map(stage.name, region).spans[-2:] for region in operands]
    sizes = [_along(bound, stage, region) for region in operands]
    rows, block, other = sizes
    depth = spans[0][1].extent
    if rows is None or block is None or other is None:
        return "an operand of its products is not rows of whole dimensions, one block after the other"
    if spans[2][1].extent != depth or block != other:
        return f"its loop multiplies tiles of {block} x {depth} and {other} x {spans[2][1].extent} elements"
    types = {bound.tensors[region.tensor].dtype for region in operands}
    if len(types) > 1 or not types <= {"bf16", "f16"}:
        return f"its operands are {' and '.join(sorted(types))}, not all bf16 or f16"
    consumers, ahead = choice.consumers, choice.in_flight > 1
    if rows % (GROUP_ROWS * consumers) or (own := rows // consumers) != power_of_two(own):
        return f"{rows} rows of a tile are not {consumers} times a power of two from {GROUP_ROWS} on"
    for size, what in ((block, f"{block} rows of an iteration"), (depth, f"{depth} columns of an operand")):
        if size != power_of_two(size) or not COLUMNS[0] <= size <= COLUMNS[1]:
            return f"{what} are no power of two from {COLUMNS[0]} to {COLUMNS[1]}"
    for region, (streamed, _) in zip(operands[1:], spans[1:], strict=True):
        if not _uncut(stage, streamed):
            return f"the end of {streamed.index} cuts a tile of {region.tensor}"
    if reason := _stored(bound, stage, target, whole=True):
        return reason
    held = own // GROUP_ROWS * (depth // 2 + block // 2 + (block // 4 if ahead else 0))
    limit = REGISTERS[consumers][0] - LOOP_SPARE_REGISTERS
    if held > limit:
        return f"its consumers hold {held} values in each thread, and {limit} fit its registers"
    item, stored = _item(bound, found.kept), _item(bound, target)
    place, pieces = block * depth * item, max(1, depth * stored // PIECE_BYTES)
    piece = rows * depth * stored // pieces
    there = bound.target.shared_memory
    needed = choice.buffers * (place + 2 * BARRIER_BYTES) + rows * depth * item + SPARE_BYTES
    results = _results(there - needed, pieces, piece, consumers)
    if not results:
        return _too_large(needed + min(pieces, MIN_RESULTS) * piece, there)
    return Roles(
        consumers=consumers,
        rows=own,
        columns=depth,
        block=block,
        pieces=pieces,
        registers=REGISTERS[consumers],
        operands=loop_ring(buffers=choice.buffers, consumers=consumers, ahead=ahead, size=place),
        results=result_ring(buffers=results),
        kept=kept_ring(consumers=consumers, size=rows * depth * item),
        skips_repeated_waits=bool(repeated(bound, stage, found)),
    )


def _results(room: int, pieces: int, piece: int, consumers: int) -> int:
    """Return the buffers for results of a consumer: as many as have room, 0 if fewer than MIN_RESULTS have.

    room: bytes for the buffers of all consumers. pieces: of a result, of `piece` bytes for all consumers together.
    """
    most = min(pieces, room // (piece + 2 * consumers * BARRIER_BYTES))
    return most if most >= min(pieces, MIN_RESULTS) else 0


def _too_large(least: int, there: int) -> str:
    return f"its buffers and results take {least:,} bytes of shared memory, and an SM has {there:,} for a program"


def _item(bound: Bound, region: Region) -> int:
    return ITEM_BYTES[bound.tensors[region.tensor].dtype]


def _along(bound: Bound, stage: BoundStage, region: Region) -> int | None:
    """Return the rows of an operand's tile, or None if it is not `[points, tile of rows, :]`.

    Boxes may reach beyond the rows of the tile: what comes from there is not stored.
    """
    *others, rows, whole = bound.tile_map(stage.name, region).spans
    points = all(span.kind == "point" for span in others)
    return rows.size if points and rows.kind == "tile" and whole.kind == "whole" else None


def _addend(bound: Bound, stage: BoundStage, region: Region, target: Region) -> str | None:
    """Return why consumers cannot load a region to compute with it, or None."""
    tensor, spans = bound.tensors[region.tensor], bound.tile_map(stage.name, region).spans
    if tensor.decl.space == "table" or tensor.packed:
        return f"it computes with {region.tensor}, which is not in memory as it is"
    if tensor.dtype not in ("f16", "bf16", "f32"):
        return f"it computes with {region.tensor}, which holds {tensor.dtype}"
    made = [span.index for span in bound.tile_map(stage.name, target).spans[-2:]]
    tiled = [span for span in spans if span.kind != "point"]
    plain = all(one.kind == "tile" and one.gather is None and (one.counted or _in_steps(stage, one)) for one in tiled)
    if not plain or [span.index for span in tiled] not in (made, made[:1], made[1:]):
        return (
            f"it computes with {region.tensor}, which is no vector along the rows or columns of its tiles, and no tile"
        )
    return None


def _stored(bound: Bound, stage: BoundStage, region: Region, *, whole: bool = False) -> str | None:
    """Return why a tile of results is no box, or None. A box may end beyond the tensor, but not beyond a tile.

    whole: True for tiles of whole rows.
    """
    tensor = bound.tensors[region.tensor]
    *others, rows, columns = bound.tile_map(stage.name, region).spans
    kind = "whole" if whole else "tile"
    if not all(span.kind == "point" for span in others) or rows.kind != "tile" or columns.kind != kind:
        return f"it does not store tiles of {'whole rows' if whole else 'rows and columns'} of {region.tensor}"
    if rows.counted or columns.counted:
        reason = _cut_reason(region, rows, columns, whole=whole)
        if reason is not None:
            return reason
    if not (rows.counted or _in_steps(stage, rows)) or not (whole or _in_steps(stage, columns)):
        return f"its tiles of {region.tensor} do not begin with the dimensions"
    if not whole and not _uncut(stage, columns) and stage.extents[str(columns.index)] != columns.extent:
        return f"the end of {columns.index} cuts a tile of {region.tensor}"
    alone = tensor.buffers == 1 and all(size == 1 for size in tensor.shape[:-2])
    ends = alone and stage.extents[str(rows.index)] == rows.extent
    if not rows.counted and not _uncut(stage, rows) and not ends:
        return f"the end of {rows.index} cuts a tile of {region.tensor}, and other rows follow it in memory"
    return None if tensor.dtype in ("bf16", "f16", "f32") else f"it stores {tensor.dtype}"


def _cut_reason(region: Region, rows: Span, columns: Span, *, whole: bool) -> str | None:
    """Return why consumers cannot store the rows of a tile that ends where a launch decides, or None."""
    if columns.counted:
        return f"only a launch decides where the columns of its tiles of {region.tensor} end"
    if whole:
        return f"only a launch decides where the rows of its tiles of {region.tensor} end, and its loop carries a state"
    if rows.end is not None:
        return f"its rows of {region.tensor} may end beyond the dimension"
    if region.rank is not None:
        return f"it stores in a peer's memory, and only a launch decides where its rows of {region.tensor} end"
    return None


def _uncut(stage: BoundStage, span: Span) -> bool:
    return stage.extents[str(span.index)] % span.size == 0


def _in_steps(stage: BoundStage, span: Span) -> bool:
    """True if its tiles follow one another from the start of the dimension."""
    steps = mul(Index(name=str(span.index)), const(span.size))
    return span.start in (steps, const(0)) and stage.extents[str(span.index)] <= span.extent


def _stage_reason(stage: Stage, _: StageTyping) -> str | None:
    if reason := decided_reason(stage):
        return reason
    tables = {e.table for scalar in stage_scalars(stage) for e in walk(scalar) if isinstance(e, Lookup)}
    if any(isinstance(s, Wait) and s.region.tensor in tables for s in statements(stage.body)):
        return "its tiles wait for the entries that decide which of them there are"
    body = straight(stage.body, once)
    if not any(isinstance(s, For) for s in body):
        return roles_reason(body)
    found = carried(unfolded_body(body, set()))
    return found if isinstance(found, str) else None


def _none_without_roles(_: Program, schedule: Schedule, stage: str) -> bool:
    """True if a stage has no clause for programs whose warps have no roles."""
    return not any(clause.without_roles for clause in said(schedule.stage(stage)))


CHOICES = {"by warps with roles": RolesChoice(consumers=2, buffers=4)}
"""The values that a search tries, next to none."""

ROLES: Clause[RolesChoice | None] = Clause(
    name="roles",
    default=None,
    rules={"roles": '"roles" "(" size ("," size)* ")"'},
    syntax="roles(..)",
    written="`roles(consumers=2, buffers=3)`",
    called="roles(...)",
    read=_read,
    show=_show,
    valid=_valid,
    apply=_apply,
    phase=Phase.BEFORE_BARRIERS,  # after waits have sunk: the loader executes them between its loads
    ties=Ties.SHOWN,
    choices=Choices(
        name="roles",
        labels=CHOICES,
        reason=_stage_reason,
        together=True,
        fits=_none_without_roles,
        on=has_warpgroups,
        joins=FLATTEN.name,
        along=((HALVE_TAIL, True),),
    ),
    manual=(
        "warps have roles: one waits and loads into a ring of buffers in shared memory, groups of four warps, the "
        "consumers, multiply their rows of each tile, and one stores and notifies. The next tile is loaded while "
        "results are computed and stored. For stages with a kernel of their own whose tiles wait, multiply along "
        "a whole dimension, once or twice the same left operand, may wait again, compute elementwise with it and with "
        "vectors of rows or columns and tiles of their own rank that the kernel does not write (loops over up to 16 "
        "numbers are unrolled), store one result, at peers too, and notify, on several nodes no rank of another one. "
        "Or whose tiles have one loop that carries a state: an iteration waits, multiplies what all of them have in "
        "common, computes elementwise and along rows, and adds the product of the result and another operand to a "
        "name (online softmax is such a loop; `if t <= n:` around all of an iteration may leave it out). A launch "
        "may decide where the rows of tiles begin and end, by tensors given with it: consumers store the rows of a "
        "tile that is cut, in memory of their own rank. Needs `sm_90`, operands of 16 bits or 8-bit floats, and "
        "tiles of 64 rows or a multiple for each consumer; other processors run programs without roles. 2 or 3 "
        "consumers, 2 to 6 buffers (4 as a rule), and tiles whose columns are a power of two from 16 to 256, or to "
        "128 with two products; `num_warps` is for the programs of other processors. Products of 8-bit floats are "
        "added up in f32 for each buffer, of up to 256 elements, in registers of their own: 64 x 128 elements a "
        "consumer. `in_flight=1`: consumers wait for each product before they start the next one"
    ),
)
