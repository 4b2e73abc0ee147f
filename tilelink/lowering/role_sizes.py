"""The roles of a stage, from the sizes and places of its tiles: how consumers divide a tile, and what rings have room.

A stage whose statements can be divided (lowering/role_statements.py) has roles if its operands, what it computes with,
and its results are boxes that TMA moves, if consumers can divide its tiles, and if sums fit registers and rings fit
shared memory. The clause (lowering/clauses/roles.py) takes what `roles_of` makes of them, and the
rule (verifier/roles.py) asks the same of a lowered program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilelink.ir.products import is_n_major, operand_region, products
from tilelink.ir.program import ITEM_BYTES, Assign, Full, Notify, Read, Reduce, Region, Wait
from tilelink.ir.sizes import power_of_two
from tilelink.ir.visitor import local_names, reads, statements, value_of, values
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.carried import Carried, stored_at
from tilelink.lowering.channel_waits import repeated
from tilelink.lowering.iterations import loop_of, range_of
from tilelink.lowering.reason import reason_at
from tilelink.lowering.rings import (
    Ring,
    Roles,
    Step,
    kept_ring,
    least_buffers,
    loop_ring,
    number_ring,
    operand_ring,
    result_ring,
    wait_for_each_other,
    widest_of,
    with_further,
    without_addends,
)
from tilelink.lowering.role_boxes import is_box, item_bytes, outer_size, read_reason, store_reason, unaligned, uncut
from tilelink.lowering.role_statements import (
    addends,
    entries_of,
    hands_on,
    late_waits,
    multiplies,
    product_of,
    products_of_tile,
    results_of,
    stage_body,
    tile_addends,
    writers_of,
)
from tilelink.lowering.summed import summed_of
from tilelink.lowering.transform import stage_writes
from tilelink.scheduling.schedule import RolesChoice

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
LOOP_SPARE_REGISTERS = 24
"""The same of a loop that carries a state, besides its products and what it multiplies: of a consumer's registers."""
MIN_BUFFERS, MAX_BUFFERS = 2, 6
PIECE_BYTES = 128
"""Bytes of a row of a piece of the results: TMA stores one such piece at a time, see cuTensorMapEncodeTiled."""
MIN_RESULTS = 2
"""Least number of pieces in shared memory, if there are as many: one is computed while another is stored."""
BARRIER_BYTES = 8
NUMBER_BYTES = 16
"""Bytes that an integer in shared memory takes at most, with its alignment."""
SPARE_BYTES = 1024
"""Shared memory that Triton takes to start roles, and to align buffers."""


def types_of(bound: Bound, stage: BoundStage) -> tuple[str, str]:
    """Return the element types of the buffers of operands and of results that a stage has with others of its kernel.

    Those of operands have the type of the tiles that are loaded, where the stage has no product. Those of results have
    the type that the stage stores from which the kernel has its name, if that stores anything; those of a loop that
    carries a state have its own.
    """
    if stage.has_loop:
        return bound.tensors[loop_of(stage).kept[0].tensor].dtype, _stored_type(bound, stage)
    loaded = operand_region(product_of(stage).left) if multiplies(stage) else tile_addends(bound, stage)[0]
    first = bound.stages[bound.kernel_of[stage.name].name]
    return bound.tensors[loaded.tensor].dtype, _stored_type(bound, first if stage_writes(first.stage) else stage)


def _stored_type(bound: Bound, stage: BoundStage) -> str:
    return bound.tensors[stage_writes(stage.stage)[0].tensor].dtype


def is_direct(bound: Bound, stage: BoundStage) -> bool:
    """True if consumers store a stage's results themselves: they have another type than those of its kernel's rings."""
    return not stage.has_loop and _stored_type(bound, stage) != types_of(bound, stage)[1]


def is_cut(bound: Bound, stage: BoundStage) -> bool:
    """True if a launch decides where the rows of a stage's tiles of results end."""
    return not stage.has_loop and any(
        bound.tile_map(stage.name, region).spans[-2].counted for region in results_of(stage)
    )


def is_summed(bound: Bound, stage: BoundStage) -> bool:
    """True if consumers add the products of buffers, or what iterations make of them, to the sums of a tile, in f32."""
    summed = summed_of(stage)
    return (summed is not None and summed.scaled) or bound.tensors[
        operand_region(product_of(stage).left).tensor
    ].dtype in NARROW


def roles_of(bound: Bound, stage: BoundStage, choice: RolesChoice) -> Roles | str:
    """Return the roles of a stage, or why its tiles do not allow them."""
    if stage.has_loop:
        return _loop_roles(bound, stage, choice)
    return (_product_roles if multiplies(stage) else _roles_without_product)(bound, stage, choice)


def _product_roles(bound: Bound, stage: BoundStage, choice: RolesChoice) -> Roles | str:
    """Return the roles of a stage that multiplies along a whole dimension, or why its tiles do not allow them."""
    dots, targets, direct = products_of_tile(stage), results_of(stage), is_direct(bound, stage)
    n_major = is_n_major(dots[0])
    left, rights = operand_region(dots[0].left), [operand_region(one.right) for one in dots]
    rows, columns, *others = (
        outer_size(bound, stage, left), *(outer_size(bound, stage, one, n_major) for one in rights),
    )  # fmt: skip
    if rows is None or columns is None or any(other != columns for other in others):
        if n_major:
            return reason_at(rights[0], "it is N-major, and its rows are not all of a dimension, in whole blocks")
        return "an operand of its product is not rows of whole dimensions, or of slices of them, block after block"
    if reason := _operands_reason(bound, (left, *rights), targets):
        return reason
    if n_major and bound.tensors[left.tensor].dtype not in WIDE:
        return reason_at(rights[0], "products of 8-bit floats contract the last dimension of both operands")
    block, consumers = bound.contraction_block(stage.name), choice.consumers
    item, stored = item_bytes(bound, left), ITEM_BYTES[types_of(bound, stage)[1]]
    reason = _tile_reason(rows, columns, consumers, len(dots)) or _block_reason(block, item)
    reason = reason or _summed_reason(bound, stage, block, item)
    if reason := reason or _epilogue_reason(bound, stage, targets) or (direct and _direct_reason(bound, stage)):
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
    needed += choice.buffers * _number_bytes(bound, stage)
    results = _results(there - needed, pieces, piece, consumers)
    if not results:
        return _too_large(needed + min(pieces, MIN_RESULTS) * piece, there, choice.buffers, place)
    added = 0
    if columns // pieces == block and not (late_waits(stage) and _written_vectors(bound, stage)):
        added = _loadable_addends(bound, stage, bound.tensors[left.tensor].dtype)
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
        direct=direct,
        addends=added,
        reads_early=_reads_early(bound, stage),
        numbers=_numbers(bound, stage, choice),
        n_major=n_major,
    )


def _reads_early(bound: Bound, stage: BoundStage) -> bool:
    """True if an iteration of a sum of products may load what the next one scales its product with.

    That is so if all of it is there all the time. Without any wait, kernels before have written what others write.
    """
    summed, kernel = summed_of(stage), bound.kernel_of[stage.name]
    if summed is None or not summed.scaled or not summed.reads_alone or summed.count(stage) == 1:
        return False
    body = (s for name in kernel.stage_names for s in statements(bound.stages[name].stage.body))
    return not any(isinstance(s, Wait) for s in body) or _are_constant(bound, summed.reads)


def _are_constant(bound: Bound, regions: Sequence[Region]) -> bool:
    """True if nobody writes what some regions are of."""
    return all(bound.tensors[region.tensor].constant for region in regions)


def _numbers(bound: Bound, stage: BoundStage, choice: RolesChoice) -> Ring | None:
    """Return the ring in which the loader hands on what a launch decides of a tile, if it does."""
    return number_ring(buffers=choice.buffers, consumers=choice.consumers) if hands_on(bound, stage) else None


def _number_bytes(bound: Bound, stage: BoundStage) -> int:
    """Return the bytes of a position of that ring in the kernel of a stage, 0 if it has none."""
    every = (bound.stages[name] for name in bound.kernel_of[stage.name].stage_names)
    numbers = max((len(entries_of(one)) for one in every if hands_on(bound, one)), default=0)
    return numbers * NUMBER_BYTES + 2 * BARRIER_BYTES if numbers else 0


def _summed_reason(bound: Bound, stage: BoundStage, block: int, item: int) -> str | None:
    """Return why consumers cannot scale the products that a loop adds up, or None. block: contracted in a buffer."""
    summed = summed_of(stage)
    if summed is None or not summed.scaled:
        return None
    inner = bound.tile_map(stage.name, operand_region(summed.dot.left)).spans[-1].size
    if inner != block:
        most = max(BLOCK_BYTES) // item
        text = f"an iteration scales a product of {inner} contracted elements, and a buffer holds {block}"
        return reason_at(summed.dot, f"{text}, of at most {most}")
    rows, columns = (span.index for span in bound.tile_map(stage.name, results_of(stage)[0]).spans[-2:])
    shapes: tuple[list[str | None], ...] = ([], [rows], [columns], [rows, columns])
    return next(filter(None, (read_reason(bound, stage, region, shapes) for region in summed.reads)), None)


def _operands_reason(bound: Bound, operands: Sequence[Region], targets: Sequence[Region]) -> str | None:
    """Return why operands cannot be multiplied by groups of warps, or not be loaded or stored by TMA, or None."""
    if reason := unaligned(bound, (*operands, *targets)):
        return reason
    types = {bound.tensors[region.tensor].dtype for region in operands}
    if len(types) > 1 or not types <= {*WIDE, *NARROW}:
        return f"its operands are {' and '.join(sorted(types))}, not both {' or '.join((*WIDE, *NARROW))}"
    return None


def _tile_reason(rows: int, columns: int, consumers: int, products: int) -> str | None:
    """Return why consumers cannot divide a tile of so many rows and columns, or None."""
    if reason := _rows_reason(rows, consumers):
        return reason
    if columns != power_of_two(columns) or not COLUMNS[0] <= columns <= COLUMNS[1] // products:
        return f"{columns} columns of a tile are no power of two from {COLUMNS[0]} to {COLUMNS[1] // products}"
    return None


def _rows_reason(rows: int, consumers: int) -> str | None:
    """Return why consumers cannot divide so many rows of a tile, or None."""
    own, fewest = rows // consumers, GROUP_ROWS * consumers
    if rows % fewest == 0 and own == power_of_two(own):
        return None
    return f"{rows} rows of a tile are not {consumers} times a power of two from {GROUP_ROWS} on, such as {fewest}"


def _block_reason(block: int, item: int) -> str | None:
    """Return why a buffer cannot have rows of so many contracted elements of `item` bytes, or None."""
    fitting = ", ".join(str(size // item) for size in BLOCK_BYTES)
    return None if block * item in BLOCK_BYTES else f"a block of {block} contracted elements is none of {fitting}"


def _roles_without_product(bound: Bound, stage: BoundStage, choice: RolesChoice) -> Roles | str:
    """Return the roles of a stage without a product, or why its tiles do not allow them.

    They have the rings of the stages of its kernel that multiply, which have their roles already. The loader loads the
    tiles that are computed with into the ring of operands.
    """
    every = bound.roles_in(bound.kernel_of[stage.name])
    others = {name: one for name, one in every.items() if multiplies(bound.stages[name])}
    if not others:
        return "no stage of its kernel multiplies"
    widest, dtype = widest_of(others.values()), types_of(bound, bound.stages[next(iter(others))])[0]
    if (widest.consumers, widest.operands.buffers) != (choice.consumers, choice.buffers):
        numbers = f"{widest.consumers} consumers and {widest.operands.buffers} buffers"
        return f"it has no product, and the tiles of its kernel that have one are for {numbers}"
    if reason := _reason_without_product(bound, stage, widest, dtype):
        return reason
    targets, added = results_of(stage), len(tile_addends(bound, stage))
    columns, piece = bound.tile_map(stage.name, targets[0]).spans[-1].size, widest.columns // widest.pieces
    pieces, size = columns // piece, widest.rows * widest.consumers * piece * ITEM_BYTES[dtype]
    made = replace(
        widest,
        columns=columns,
        pieces=pieces,
        products=0,
        cut=False,
        direct=False,
        addends=added,
        reads_early=False,
        numbers=_numbers(bound, stage, choice),
        operands=with_further(widest.operands, further=added * pieces, piece=size),
        results=result_ring(buffers=widest.results.buffers, targets=len(targets)),
    )
    if wait_for_each_other(made):
        text = f"its consumers would wait for each other: it computes with {added} tiles, in {pieces} pieces each"
        return f"{text}; take tiles with fewer columns, or fewer buffers, which leave room for more pieces of results"
    return made


def _reason_without_product(bound: Bound, stage: BoundStage, widest: Roles, dtype: str) -> str | None:
    """Return why tiles without a product do not fit next to those of a kernel's products, or None.

    widest: the roles of the latter. dtype: of their operands.
    """
    targets, tiles, piece = results_of(stage), tile_addends(bound, stage), widest.columns // widest.pieces
    if not tiles:
        return reason_at(targets[0], "it has no product, and computes with no tile")
    if reason := unaligned(bound, targets) or _epilogue_reason(bound, stage, targets):
        return reason
    if widest.kept is not None:
        return "it has no product, and tiles of its kernel have loops that carry a state"
    if is_direct(bound, stage):
        own, others = _stored_type(bound, stage), types_of(bound, stage)[1]
        return reason_at(targets[0], f"it has no product, and stores {own} where its kernel stores {others}")
    rows, columns = (span.size for span in bound.tile_map(stage.name, targets[0]).spans[-2:])
    if rows != widest.rows * widest.consumers or columns % piece or columns > widest.columns:
        text = f"its tiles have {rows} rows and {columns} columns, next to tiles with a product of "
        return f"{text}{widest.rows * widest.consumers} rows and up to {widest.columns} columns, a multiple of {piece}"
    for region in tiles:
        if (own := bound.tensors[region.tensor].dtype) != dtype:
            text = (
                f"it computes with {region.tensor}, which holds {own}, and the loader loads what the products of its "
            )
            return reason_at(region, f"{text}kernel multiply, {dtype}")
    if piece != widest.block:
        text = f"a piece of its kernel's results has {piece} columns, {PIECE_BYTES} bytes, and a buffer of operands "
        return f"{text}{widest.block}: next to tiles without a product take k={piece}"
    if not _loadable_addends(bound, stage, dtype):
        return reason_at(tiles[0], "a tile that it computes with is cut, or no tile of rows and columns")
    return None


def _loadable_addends(bound: Bound, stage: BoundStage, dtype: str) -> int:
    """Return the number of tiles that the loader loads to compute with: all of its addends, or 0.

    A piece of each must be a box like one of the left operand of the kernel's products, whose buffer it gets. dtype: of
    that operand. Consumers read what the kernel writes: the accelerator would need a fence after the wait for it.
    """
    tiles = tile_addends(bound, stage)
    written = writers_of(bound, bound.kernel_of[stage.name])
    if any(region.tensor in written for region in tiles):
        return 0
    boxed = not is_cut(bound, stage) and all(is_box(bound, stage, region, dtype) for region in tiles)
    return len(tiles) if boxed else 0


def _written_vectors(bound: Bound, stage: BoundStage) -> bool:
    """True if consumers compute with vectors that somebody writes.

    The loader executes the waits after the product if it loads tiles to compute with, and consumers do not wait for it
    before they read vectors from memory.
    """
    tiles = tile_addends(bound, stage)
    vectors = (read.region.tensor for read in addends(stage) if read.region not in tiles)
    return any(bound.tensors[name].decl.space != "in" for name in vectors)


def _epilogue_reason(bound: Bound, stage: BoundStage, targets: Sequence[Region]) -> str | None:
    """Return why results cannot be computed or stored at some places, or None."""
    target = targets[0]
    for region in targets:
        if reason := store_reason(bound, stage, region):
            return reason
        if bound.tensors[region.tensor].dtype != bound.tensors[target.tensor].dtype:
            text = f"{region.tensor} has other elements than {target.tensor}, and both get the same results"
            return reason_at(region, text)
    made = [span.index for span in bound.tile_map(stage.name, target).spans[-2:]]
    shapes = (made, made[:1], made[1:])
    reasons = (read_reason(bound, stage, read.region, shapes, of_loop=False) for read in addends(stage))
    return next(filter(None, reasons), None) or _broadcast_reason(bound, stage)


def _broadcast_reason(bound: Bound, stage: BoundStage) -> str | None:
    """Return which name has values of fewer dimensions than others, or None. Pieces of it would have several forms."""
    typing = bound.typing.stage(stage.name)
    for statement in stage_body(stage):
        if isinstance(statement, Assign) and not isinstance(statement.value, Full) and not products((statement,)):
            axes = typing.type_of(statement.value).axes
            if axes != typing.locals[statement.name].axes:
                text = f"{statement.name} is a vector or a number at first and a tile later: use two names"
                return reason_at(statement, text)
    return None


def every_roles_of(bound: Bound, stage: BoundStage, *, consumers: int, buffers: int) -> list[Roles] | str:
    """Return all roles of a stage with so many consumers and buffers, or why its tiles do not allow them."""
    every: list[Roles] = []
    reason = ""
    for in_flight in (1, 2):
        choice = RolesChoice(consumers=consumers, buffers=buffers, in_flight=in_flight)
        made = roles_of(bound, stage, choice)
        if isinstance(made, str):
            reason = made
        else:
            every += [made, without_addends(made)] if made.addends and made.products else [made]
    return every or reason


def _loop_roles(bound: Bound, stage: BoundStage, choice: RolesChoice) -> Roles | str:
    """Return the roles of a stage whose loop carries a state, or why its tiles do not allow them."""
    found, targets = loop_of(stage), [stored_at(store) for store in loop_of(stage).results]
    iterations = range_of(stage, bound.bounds(stage.name))
    if isinstance(iterations, str):
        return iterations
    operands = (*found.kept, *found.streamed)
    sizes = [(outer_size(bound, stage, one), bound.tile_map(stage.name, one).spans[-1].extent) for one in operands]
    (rows, depth), (block, _) = sizes[0], sizes[len(found.kept)]
    if rows is None or block is None or any(size is None for size, _ in sizes):
        return "an operand of its products is not rows of whole dimensions, one block after the other"
    wanted = [(rows, depth)] * len(found.kept) + [(block, depth)] * len(found.streamed)
    if others := [size for size, one in zip(sizes, wanted, strict=True) if size != one]:
        return f"its loop multiplies tiles of {block} x {depth} and {others[0][0]} x {others[0][1]} elements"
    types = {bound.tensors[region.tensor].dtype for region in operands}
    if len(types) > 1 or not types <= {"bf16", "f16"}:
        return f"its operands are {' and '.join(sorted(types))}, not all bf16 or f16"
    consumers, ahead = choice.consumers, choice.in_flight > 1
    if reason := _rows_reason(rows, consumers):
        return reason
    own = rows // consumers
    for size, what in ((block, f"{block} rows of an iteration"), (depth, f"{depth} columns of an operand")):
        if size != power_of_two(size) or not COLUMNS[0] <= size <= COLUMNS[1]:
            return f"{what} are no power of two from {COLUMNS[0]} to {COLUMNS[1]}"
    for region in found.streamed:
        if not uncut(stage, streamed := bound.tile_map(stage.name, region).spans[-2]):
            return reason_at(region, f"the end of {streamed.index} cuts a tile of {region.tensor}")
    if reason := _results_reason(bound, stage, targets) or _stored_rows_reason(bound, stage, found):
        return reason
    if reason := _reads_reason(bound, stage, found):
        return reason
    ring = loop_ring(
        buffers=choice.buffers, consumers=consumers, ahead=ahead, size=block * depth * item_bytes(bound, found.kept[0]),
        order=found.order,
    )  # fmt: skip
    if (least := least_buffers(ring)) > choice.buffers:
        return f"an iteration of its loop has {least} operands in buffers at a time: take buffers={least}"
    held = own // GROUP_ROWS * (len(found.trailing) * depth // 2 + _held(bound, stage, found, ring, block))
    limit = REGISTERS[consumers][0] - LOOP_SPARE_REGISTERS
    if held > limit:
        return f"its consumers hold {held} values in each thread, and {limit} fit its registers"
    item, stored = item_bytes(bound, found.kept[0]), item_bytes(bound, targets[0])
    vectors = [region for s in found.vectors for region in reads(s.value)]
    place, pieces = block * depth * item, max(1, depth * stored // PIECE_BYTES)
    piece = rows * depth * stored // pieces
    there = bound.target.shared_memory
    needed = choice.buffers * (place + 2 * BARRIER_BYTES) + len(found.kept) * rows * depth * item + SPARE_BYTES
    results = _results(there - needed, pieces, piece, consumers)
    if not results:
        return _too_large(needed + min(pieces, MIN_RESULTS) * piece, there, choice.buffers, place)
    return Roles(
        consumers=consumers,
        rows=own,
        columns=depth,
        block=block,
        pieces=pieces,
        registers=REGISTERS[consumers],
        operands=ring,
        results=result_ring(buffers=results),
        kept=kept_ring(consumers=consumers, size=rows * depth * item, several=len(found.kept)),
        skips_repeated_waits=bool(repeated(bound, stage, found)),
        reads_early=bool(vectors) and _are_constant(bound, vectors),
    )


def _results_reason(bound: Bound, stage: BoundStage, targets: Sequence[Region]) -> str | None:
    """Return why the results of a loop cannot be stored one after the other from the same buffers, or None."""
    for region in targets:
        if reason := store_reason(bound, stage, region, whole=True):
            return reason
        if bound.tensors[region.tensor].dtype != bound.tensors[targets[0].tensor].dtype:
            text = f"{region.tensor} has other elements than {targets[0].tensor}, and results share buffers"
            return reason_at(region, text)
    return None


def _held(bound: Bound, stage: BoundStage, tile: Carried, ring: Ring, block: int) -> int:
    """Return how many values a thread has of 64 rows at most in an iteration, besides sums: products, tiles that are
    computed, and operands.

    What is computed takes the place of what is used for the last time, and an operand is used until its product is
    complete. block: columns of a tile.
    """
    typing = bound.typing.stage(stage.name).locals
    wide = {name for name, kind in typing.items() if [axis.kind for axis in kind.axes] == ["tile", "tile"]}
    steps = ring.reader.steps
    live, most = set[str](), 0
    for made, used in reversed([*_made_and_used(tile, (*steps, *steps))]):
        needed = live | made, live - made | used
        live = needed[1]
        held = (
            sum(block // 2 if name in wide else block // 4 * (name in _operands(tile)) for name in one)
            for one in needed
        )
        most = max(most, *held)
    return most


def _operands(tile: Carried) -> dict[str, str]:
    """Return the name of a trailing product's operand -> the name of the product among the steps of a ring."""
    return {f"operand of {what}": what for what, _ in tile.order.products[len(tile.leading) :]}


def _made_and_used(tile: Carried, steps: Sequence[Step]) -> Iterator[tuple[set[str], set[str]]]:
    """Yield the names that each step of a consumer makes, and those that it uses."""
    products = dict(zip((what for what, _ in tile.order.products), tile.products, strict=True))
    operands, flying = list(_operands(tile)), list[str]()
    for step in steps:
        match step.word:
            case "multiply":
                flying.append(step.what)
                yield {products[step.what].name}, set()
            case "retire":
                done, flying = flying[: len(flying) - step.number], flying[len(flying) - step.number :]
                yield set(), {one for one, what in _operands(tile).items() if what in done}
            case "compute":
                for statement, level in zip(tile.compute, tile.levels, strict=True):
                    if level == step.number:
                        yield {statement.name}, local_names(statement.value)
            case "carry":
                yield {operands[step.number]}, local_names(tile.trailing[step.number].dot.left)
            case _:
                pass


def _reads_reason(bound: Bound, stage: BoundStage, tile: Carried) -> str | None:
    """Return what consumers of a loop cannot compute with, or None.

    That is anything but numbers, vectors of the rows of a tile or of the columns of an iteration, and tiles of both;
    before the loop vectors of rows, and whole dimensions of which each row makes a number.
    """
    typing = bound.typing.stage(stage.name)
    row, column = (bound.tile_map(stage.name, region).spans[-2].index for region in (tile.kept[0], tile.streamed[0]))
    of_rows: tuple[list[str | None], ...] = ([], [row])
    for statement in tile.vectors:
        axes = typing.locals[statement.name].axes
        if [axis.index for axis in axes] not in of_rows:
            text = f"before its loop it computes {statement.name}, which is no number of each {row}"
            return reason_at(statement, text)
        for region in reads(statement.value):
            if reason := read_reason(bound, stage, region, (*of_rows, [None])):
                return reason
        for one in values(statement.value):
            if isinstance(one, Reduce) and [axis.kind for axis in typing.type_of(one.value).axes] != ["tile", "whole"]:
                return reason_at(one, "before its loop it reduces what is no whole dimension for each of its rows")
    factors = [one.added_to for one in tile.trailing]
    for value in tile.computed:
        shapes = (*of_rows, [column], [row, column])
        of_columns = of_rows if any(value is one for one in factors) else shapes
        for region in reads(value):
            if reason := read_reason(bound, stage, region, of_columns):
                return reason
    for statement in tile.after:
        if (value := value_of(statement)) is not None and (found := reads(value)):
            text = f"after its loop it computes with {found[0].tensor}, which is no vector of an input"
            return reason_at(found[0], text)
    return None


def _stored_rows_reason(bound: Bound, stage: BoundStage, tile: Carried) -> str | None:
    """Return why consumers cannot store a number for each row next to the result of a loop, or None.

    They store it in memory themselves, and no notify of the storer's says when it is there. So nothing else of the
    program may read it.
    """
    row = bound.tile_map(stage.name, tile.kept[0]).spans[-2].index
    notified = {s.region.tensor for s in stage.stage.body if isinstance(s, Notify)}
    every = (value_of(s) for other in bound.stages.values() for s in statements(other.stage.body))
    read = {one.region.tensor for value in every if value for one in values(value) if isinstance(one, Read)}
    for region in (store.region for store in tile.stored):
        spans = [span for span in bound.tile_map(stage.name, region).spans if span.kind != "point"]
        if [(span.kind, span.index) for span in spans] != [("tile", row)]:
            return reason_at(region, f"before its last store its tiles store no vector of a number for each {row}")
        if bound.tensors[region.tensor].decl.space != "out" or region.tensor in notified:
            return reason_at(region, f"its consumers store {region.tensor}, which is no output, and notify nobody")
        if region.tensor in read:
            return reason_at(region, f"its consumers store {region.tensor} and notify nobody, and a stage reads it")
    return None


def _results(room: int, pieces: int, piece: int, consumers: int) -> int:
    """Return the buffers for results of a consumer: as many as have room, 0 if fewer than MIN_RESULTS have.

    room: bytes for the buffers of all consumers. pieces: of a result, of `piece` bytes for all consumers together.
    """
    most = min(pieces, room // (piece + 2 * consumers * BARRIER_BYTES))
    return most if most >= min(pieces, MIN_RESULTS) else 0


def _too_large(least: int, there: int, buffers: int, place: int) -> str:
    """Return that rings do not fit shared memory, and how many buffers would.

    least, there: bytes that they take, and that there are. place: bytes of one of the buffers.
    """
    what = f"its buffers and results take {least:,} bytes of shared memory, and an SM has {there:,} for a program"
    fitting = buffers - -(-(least - there) // (place + 2 * BARRIER_BYTES))
    return f"{what}: {fitting} buffers fit" if fitting >= MIN_BUFFERS else f"{what}: take smaller tiles"


def _direct_reason(bound: Bound, stage: BoundStage) -> str | None:
    """Return why consumers cannot store all results of a stage in memory themselves, or None."""
    (target, *others), kernel = results_of(stage), bound.kernel_of[stage.name]
    own = f"it stores {_stored_type(bound, stage)}, and {kernel.name} in the same kernel {types_of(bound, stage)[1]}"
    if others or target.rank is not None:
        return reason_at(target, f"{own}, and it stores at several places or in a peer's memory")
    if is_cut(bound, stage):
        return reason_at(target, f"{own}, and a launch decides where its tiles end")
    return None
