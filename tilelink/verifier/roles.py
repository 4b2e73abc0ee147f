"""Rule `roles`: warps with roles keep the order of their program, and each buffer between them is full when it is read.

The other rules take the plan's order: a program executes the statements of a tile, then those of the next. Roles
execute them in parallel (tilelink/lowering/clauses/roles.py). This rule shows that no other program can observe that:
roles may divide the statements of a tile, no tile loads what a tile of the kernel writes, or computes with it without
a wait of its own, and the rings between roles are right (verifier/rings.py), with buffers of the sizes that the tiles
have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod

from tilelink.errors import RolesError, VerificationError
from tilelink.ir.products import operand_region
from tilelink.ir.program import ITEM_BYTES
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.carried import row_sums
from tilelink.lowering.fragments import fragments_reason
from tilelink.lowering.iterations import loop_of, range_of
from tilelink.lowering.masks import masks_of
from tilelink.lowering.rings import (
    ADDEND,
    CARRY,
    COMPUTE,
    EXPECT,
    KEPT,
    LEADING,
    LOAD,
    MULTIPLY,
    STORE,
    SUM,
    TRAILING,
    LoopOrder,
    Ring,
    Roles,
    fit_together,
    numbered,
    of_tile,
    result_ring,
    right_operand,
    target_of,
    wait_for_each_other,
    widest_of,
)
from tilelink.lowering.role_sizes import (
    MAX_BUFFERS,
    MIN_RESULTS,
    REGISTERS,
    every_roles_of,
    is_cut,
    is_direct,
    is_summed,
    types_of,
)
from tilelink.lowering.role_statements import (
    conflict,
    divided_reason,
    launch_reason,
    multiplies,
    product_of,
    products_of_tile,
    results_of,
    tile_addends,
)
from tilelink.lowering.summed import summed_of
from tilelink.verifier.rings import wrong, wrong_between, wrong_together

SM_REGISTERS = 65536
ITERATIONS = 3
"""Iterations of a loop of which the order of steps is checked: the first one, and further ones, which are alike."""


def roles(bound: Bound) -> Iterator[VerificationError]:
    """Yield refusals of roles that stages cannot have, and of fragment order that tensors cannot have."""
    wrong_stages = list(_wrong_stages(bound))
    yield from wrong_stages
    for tensor in bound.tensors.values() if not wrong_stages else ():
        if tensor.fragments and (reason := fragments_reason(bound, tensor.name)) is not None:
            message = f"{tensor.name} is not in fragment order: {reason}"
            yield RolesError(message, location=tensor.decl.location, hint="take `fragments` away")


def _wrong_stages(bound: Bound) -> Iterator[VerificationError]:
    for stage in bound.stages.values():
        if stage.roles is not None and stage.total:
            reason = _reason(bound, stage, stage.roles)
            if reason is not None:
                hint = "the pass `roles` makes rings without this mistake: tilelink show FILE --after roles"
                yield RolesError(f"{stage.name}: {reason}", location=stage.stage.location, hint=hint)
        elif stage.masks or stage.row_sums:
            text = f"{stage.name} has masks or sums of rows, and no warps with roles that have iterations"
            yield RolesError(text, location=stage.stage.location, hint="take `mask` and `row_sums` away")


def _reason(bound: Bound, stage: BoundStage, found: Roles) -> str | None:
    if not bound.capabilities.roles:
        return f"dialect {bound.capabilities.dialect} has no roles of warps on {bound.target}"
    if reason := divided_reason(stage):
        return reason
    kernel = bound.kernel_of[stage.name]
    every = bound.roles_in(kernel)
    for loop in kernel.loops:
        neighbour, other = bound.stages[loop.stages[0]], every.get(loop.stages[0])
        if (
            len(loop.stages) > 1
            or loop.width is not None
            or other is None
            or not fit_together(found, other)
            or divided_reason(neighbour) is not None
            or types_of(bound, neighbour) != types_of(bound, stage)
        ):
            return "another stage in its kernel has no roles that fit together with its own"
    if widest_of(every.values()).direct:
        return "no stage of its kernel with tiles of as many columns stores its results from the rings"
    if not 2 <= found.operands.buffers <= MAX_BUFFERS or found.consumers not in REGISTERS:
        return f"a kernel has no {found.consumers} consumers with a ring of {found.operands.buffers} buffers"
    if found.pieces < 1 or found.results.buffers < 1:
        return f"a result has no {found.pieces} pieces in a ring of {found.results.buffers} buffers"
    reason = launch_reason(bound, stage) or conflict(bound, kernel, stage)
    reason = reason or _iterations(bound, stage)
    if stage.has_loop != (found.kept is not None):
        carried = "carries a state" if stage.has_loop else "carries no state"
        return f"its loop {carried}, and its rings are those of the other kind of tiles"
    if multiplies(stage) != (found.products > 0):
        return f"its tiles have {'a' if multiplies(stage) else 'no'} product, and its roles {found.products}"
    if found.kept is not None:
        reason = reason or _loop_sizes(bound, stage, found, found.kept) or _loop_rings(bound, stage, found, found.kept)
        reason = reason or _values_reason(bound, stage, found)
    else:
        reason = reason or _sizes(bound, stage, found) or _rings(bound, stage, found)
        if stage.masks or stage.row_sums:
            reason = reason or "it has masks or sums of rows, and its tiles have no iterations"
    return reason or _unlike_made(bound, stage, found)


def _values_reason(bound: Bound, stage: BoundStage, found: Roles) -> str | None:
    """Return what consumers leave out of the iterations of a loop that need it, or None."""
    needed = masks_of(bound, stage, found)
    if [one.statement for one in stage.masks] != [one.statement for one in needed]:
        return "its masks are not those of its choices by positions"
    for said, least in zip(stage.masks, needed, strict=True):
        if said.first not in (True, least.first) or said.further not in (True, least.further):
            name = loop_of(stage).compute[said.statement].name
            return f"no proof says that {name} needs no other mask than that of statement {said.statement}"
    if more := stage.row_sums - row_sums(loop_of(stage)).keys():
        return f"{min(more)} does more than to sum up rows until its loop has ended"
    return None


def _unlike_made(bound: Bound, stage: BoundStage, found: Roles) -> str | None:
    """Return how roles differ from all that the clause makes of a stage, or None: kernels have no others.

    What was explored may be right in another form, which templates do not know.
    """
    targets = 1 if stage.has_loop else len(results_of(stage))
    results = result_ring(buffers=found.results.buffers, targets=targets)
    every = every_roles_of(bound, stage, consumers=found.consumers, buffers=found.operands.buffers)
    if isinstance(every, str):
        return every
    if all(found != replace(made, results=results) for made in every):
        return "its rings have other steps or numbers than any kernel with such tiles"
    kernel = bound.kernel_of[stage.name]
    if found == widest_of(bound.roles_in(kernel).values()):
        least, most = min(found.pieces, MIN_RESULTS), every[0].results.buffers
        if not least <= found.results.buffers <= most:
            return f"{found.results.buffers} buffers of results are not {least} to {most}, which an SM has room for"
    return None


def _iterations(bound: Bound, stage: BoundStage) -> str | None:
    """Return why the tiles of a loop do not have iterations, or None."""
    if not stage.has_loop:
        return None
    found = range_of(stage, bound.bounds(stage.name))
    return found if isinstance(found, str) else None


def _sizes(bound: Bound, stage: BoundStage, found: Roles) -> str | None:
    """Return which number of the roles is not that of the tiles, or None."""
    of_product = _product_sizes(bound, stage, found) if multiplies(stage) else ()
    every = (*_tile_sizes(bound, stage, found), *of_product, *_common(found))
    return next((what for wrong_one, what in every if wrong_one), None)


def _tile_sizes(bound: Bound, stage: BoundStage, found: Roles) -> Iterator[tuple[bool, str]]:
    """Yield what is checked of tiles with a product and without: True if it is wrong, and what that is."""
    rows, columns = (span.size for span in bound.tile_map(stage.name, results_of(stage)[0]).spans[-2:])
    added, targets = tile_addends(bound, stage), len(results_of(stage))
    piece = rows * columns // found.pieces * ITEM_BYTES[types_of(bound, stage)[0]]
    loaded = [(step.what, step.number) for step in found.operands.writer.after if step.word in (EXPECT, LOAD)]
    fewest = 0 if multiplies(stage) else len(added)  # the loader need not load what is computed with next to a product
    yield found.rows * found.consumers != rows, f"its consumers compute {found.rows} rows each, of {rows}"
    yield found.columns != columns, f"its consumers compute {found.columns} columns, of {columns}"
    yield (
        found.cut != is_cut(bound, stage),
        "its consumers store the rows of tiles that are cut, and none is"
        if found.cut
        else "a launch cuts its tiles, and its consumers do not store the rows of a tile that is cut",
    )
    yield (
        found.direct != is_direct(bound, stage),
        "`direct` is said of it, and its results have the type of its kernel's rings"
        if found.direct
        else "its results have another type than its kernel's rings, and its consumers do not store them themselves",
    )
    yield (
        stored_at(found.results) != [target_of(number, targets) for number in range(targets)],
        f"its storer stores {', '.join(stored_at(found.results)) or 'nothing'}, of {targets} places",
    )
    yield (
        found.addends not in (fewest, len(added)) or found.operands.writer.further != found.addends * found.pieces,
        f"its loader loads {found.addends} tiles besides operands in {found.operands.writer.further} pieces",
    )
    yield (
        found.addends > 0 and loaded != [("full", piece), (ADDEND, piece)],
        f"a piece of a tile that is computed with has {piece} bytes, and its loads are {loaded}",
    )


def _product_sizes(bound: Bound, stage: BoundStage, found: Roles) -> Iterator[tuple[bool, str]]:
    """Yield what is checked of tiles with a product: True if it is wrong, and what that is."""
    dot, dots = product_of(stage), products_of_tile(stage)
    axes = bound.typing.stage(stage.name).type_of(dot).axes
    rows, columns = (stage.tiles[str(axis.index)] for axis in axes)
    block = bound.contraction_block(stage.name)
    left, right = (ITEM_BYTES[bound.tensors[operand_region(one).tensor].dtype] for one in (dot.left, dot.right))
    loads = {step.what: step.number for step in found.operands.writer.steps if step.word == LOAD}
    wanted = {"left": rows * block * left}
    wanted |= {right_operand(number): columns * block * right for number in range(len(dots))}
    expected = sum(step.number for step in found.operands.writer.steps if step.word == EXPECT)
    yield found.block != block, f"its buffers have {found.block} contracted elements, and a step {block}"
    yield found.products != len(dots), f"its consumers compute {found.products} products, of {len(dots)}"
    yield (
        summed(found.operands) != is_summed(bound, stage),
        "its consumers add up products of 8-bit floats in f32, one of a buffer at a time, and those of no others",
    )
    yield (
        loads != wanted or expected != sum(loads.values()),
        f"its loads are {loads}, of which a barrier expects {expected} bytes",
    )


def summed(ring: Ring) -> bool | None:
    """True if roles add the product of each place to the sums of a tile, None if they do so in another way."""
    words = [step.word for step in ring.reader.steps if step.word in (MULTIPLY, SUM)]
    elsewhere = (*(ring.reader.first or ()), *(ring.reader.last or ()), *ring.reader.after)
    others = [step.word for step in elsewhere if step.word in (MULTIPLY, SUM)]
    if SUM not in (*words, *others):
        return False
    return True if words == [MULTIPLY, SUM] and not others else None


def stored_at(ring: Ring) -> list[str]:
    """Return the places at which a storer stores each piece of a result, in its order."""
    return [step.what for step in ring.reader.every if step.word == STORE]


def _common(found: Roles) -> Iterator[tuple[bool, str]]:
    """Yield what is checked of all roles: True if it is wrong, and what that is."""
    threads = 4 * 32 * (found.consumers + 1)
    held = 4 * 32 * (found.consumers * found.registers[0] + found.registers[1])
    groups = {found.operands.reader.groups, *([found.kept.reader.groups] if found.kept else [])}
    yield (
        groups != {found.consumers} or found.results.reader.groups != 1,
        f"{found.consumers} consumers are not those of its rings",
    )
    yield found.columns % found.pieces != 0, f"{found.pieces} pieces of {found.columns} columns"
    yield held > SM_REGISTERS // threads // 8 * 8 * threads, f"its warps take {held} registers"


def _loop_sizes(bound: Bound, stage: BoundStage, found: Roles, kept: Ring) -> str | None:
    """Return which number of the roles is not that of a loop that carries a state, or None."""
    tile = loop_of(stage)
    names = {numbered(KEPT, number): region for number, region in enumerate(tile.kept)}
    names |= dict(zip(tile.order.operands, tile.streamed, strict=True))
    spans = {name: bound.tile_map(stage.name, region).spans[-2:] for name, region in names.items()}
    bytes_of = {
        name: rows.size * columns.extent * ITEM_BYTES[bound.tensors[names[name].tensor].dtype]
        for name, (rows, columns) in spans.items()
    }
    loads = {(step.what, step.number) for step in (*found.operands.writer.every, *kept.writer.every)
             if step.word == LOAD}  # fmt: skip
    rows, depth, block = spans[KEPT][0].size, spans[KEPT][1].extent, spans[LEADING][0].size
    for wrong_one, what in (
        (found.rows * found.consumers != rows, f"its consumers multiply {found.rows} rows each, of {rows}"),
        (found.columns != depth, f"its consumers multiply {found.columns} columns, of {depth}"),
        (found.block != block, f"its buffers have {found.block} rows, and an iteration {block}"),
        (loads != set(bytes_of.items()), f"its loads are {sorted(loads)}"),
        (
            not takes_in_order(found.operands, tile.order),
            "an iteration does not multiply, compute, and multiply the results in its order",
        ),
        *_common(found),
    ):
        if wrong_one:
            return what
    return None


def takes_in_order(ring: Ring, order: LoopOrder) -> bool:
    """True if products multiply what is loaded at their places, and if iterations multiply and compute in their order.

    An iteration starts its leading products, computes what needs the first of them, and so on, brings what is carried
    up when it has computed an operand, and multiplies that. No iteration begins what another one before it has not yet
    used. In every order of the roles products are complete by then (verifier/rings.py).
    """
    loaded = {place: step.what for place, step in of_tile(ring.writer, ITERATIONS) if step.word == LOAD}
    steps = [*of_tile(ring.reader, ITERATIONS)]
    products, names = [(place, step.what) for place, step in steps if step.word == MULTIPLY], dict(order.products)
    if any(name not in names or loaded.get(place) != order.operands[names[name]] for place, name in products):
        return False
    if {place for place, _ in products} != loaded.keys():
        return False
    at: dict[str, list[int]] = {}
    for number, (_, step) in enumerate(steps):
        if step.word in (MULTIPLY, COMPUTE, CARRY):
            at.setdefault(step.what or numbered(step.word, step.number), []).append(number)
    levels = range(len(order.leading))
    carries = [(numbered(CARRY, number), level) for number, (_, level) in enumerate(order.trailing)]
    wanted = {*names, *(numbered(COMPUTE, level) for level in levels), *(carry for carry, _ in carries)}
    if at.keys() != wanted or any(len(one) != ITERATIONS for one in at.values()):
        return False
    last = numbered(COMPUTE, levels[-1])
    before = [(numbered(LEADING, level), numbered(COMPUTE, level)) for level in levels]
    before += pairwise(numbered(COMPUTE, level) for level in levels)
    before += [(numbered(COMPUTE, level), carry) for carry, level in carries]
    before += [(carry, numbered(TRAILING, number)) for number, (carry, _) in enumerate(carries)]
    after = [(used, numbered(LEADING, level)) for level in levels for used in (last, *(carry for carry, _ in carries))]
    after += [(numbered(TRAILING, number), carry) for number, (carry, _) in enumerate(carries)]
    return all(a < b for one, other in before for a, b in zip(at[one], at[other], strict=True)) and all(
        a < b for one, other in after for a, b in zip(at[one], at[other][1:], strict=False)
    )


def _loop_rings(bound: Bound, stage: BoundStage, found: Roles, kept: Ring) -> str | None:
    """Return what may go wrong in the rings of a loop that carries a state, or None."""
    most = prod(stage.count(decl.name) for decl in loop_of(stage).loop.indices)
    some = range_of(stage, bound.bounds(stage.name))
    assert not isinstance(some, str)
    least = most if some is None else int(some.nonempty)
    for iterations in sorted({most, *range(max(least, 1), min(ITERATIONS, most) + 1)}):
        if (reason := wrong_together(found.operands, kept, iterations, least=least)) is not None:
            return f"in the rings of {found.operands.name} and of what is kept, {reason}"
    if (reason := wrong(found.results, found.pieces)) is not None:
        return f"in the ring of {found.results.name}, {reason}"
    return None


def _rings(bound: Bound, stage: BoundStage, found: Roles) -> str | None:
    """Return what may go wrong in a ring, or None. A tile reads one buffer of operands for each step of its product."""
    if wait_for_each_other(found):
        return "its consumers wait for each other: some need results stored before they take what others wait for"
    steps = _steps(bound, stage, found)
    numbers = [(found.numbers, 1)] if found.numbers else []
    for ring, number in (*numbers, (found.operands, steps), (found.results, found.pieces)):
        if (reason := wrong(ring, number)) is not None:
            return f"in the ring of {ring.name}, {reason}"
    if not steps:
        for name, other in bound.roles_in(bound.kernel_of[stage.name]).items():
            number = _steps(bound, bound.stages[name], other)
            if number and (reason := wrong_between(found.operands, other.operands, number)) is not None:
                return f"in the ring of {found.operands.name}, next to tiles of {name}, {reason}"
    return None


def _steps(bound: Bound, stage: BoundStage, found: Roles) -> int:
    """Return the buffers that the product of a tile takes, 0 without one."""
    if not multiplies(stage):
        return 0
    inner, summed = bound.tile_map(stage.name, operand_region(product_of(stage).left)).spans[-1], summed_of(stage)
    return -(-inner.size // found.block) * (summed.count(stage) if summed is not None else 1)
