"""Checks of the parts of a lowered program against the numbers that it was lowered with: shapes, counters, kernels.

Binding and the passes make these numbers of a program and its sizes. The plan and the rules take them as given, so a
lowered program from anywhere else, as from a text, must be checked before it is planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tilelink.artifact import LaunchProtocol
from tilelink.errors import did_you_mean
from tilelink.ir.printer import print_range
from tilelink.ir.scalar import Env, evaluate
from tilelink.ir.visitor import all_indices, awaited, notified, statements, two_ranges
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor, Kernel, KernelKind, Loop, Transport, packings
from tilelink.lowering.choose_transport import transport_of
from tilelink.lowering.clauses.defer_notify import deferred, undeferred_reason
from tilelink.lowering.launch_protocol import fitting
from tilelink.lowering.limits import check_size
from tilelink.lowering.orders import TILE
from tilelink.lowering.transform import number_of, shape_of
from tilelink.scheduling.schedule import CopyEngine, Fused

WARPS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A number that does not fit the rest. part: the tensor, stage, kernel or "TENSOR KIND" of a kind that it is of."""

    kind: str
    part: str
    message: str
    hint: str


def misfits(bound: Bound) -> Iterator[Misfit]:
    """Yield what does not fit, the parts in the order in which later ones need earlier ones.

    Raises ScheduleError for a program with too many tiles, whose order would take too long to check.
    """
    for number, tensor in enumerate(bound.tensors.values()):
        yield from _tensor(bound, tensor, number)
    yield from _channels(bound)
    for number, stage in enumerate(bound.stages.values()):
        yield from _stage(bound, stage, number)
    yield from _kernels(bound)
    check_size(bound)
    for stage in bound.stages.values():
        yield from _order(bound, stage)


def _differs(kind: str, part: str, word: str, found: object, wanted: object) -> Iterator[Misfit]:
    if found != wanted:
        message = f"{word} of {part} is {_shown(found)}, not {_shown(wanted)}" if part else f"{word} is {_shown(found)}"
        yield Misfit(kind=kind, part=part, message=message, hint=f"{word} {_shown(wanted)} fits the rest of the text")


def _shown(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple | list) else str(value)


def _tensor(bound: Bound, tensor: BoundTensor, number: int) -> Iterator[Misfit]:
    decl = tensor.decl
    kind = "i32" if decl.space == "table" else decl.dtype or bound.dtype
    yield from _differs("tensor", tensor.name, "number", tensor.number, number)
    yield from _differs("tensor", tensor.name, "shape", tensor.shape, shape_of(decl, bound.numbers, bound.ranks))
    yield from _differs("tensor", tensor.name, "dtype", tensor.dtype, kind)
    if tensor.buffers < 1 or (tensor.buffers > 1 and (not decl.symmetric or decl.in_place)):
        yield from _differs("tensor", tensor.name, "buffers", tensor.buffers, 1)
    if tensor.steps is not None:
        dim, slots = tensor.steps
        kept = decl.space in ("local", "symmetric") and decl.bound is None
        if not kept or not 1 <= slots < tensor.shape[dim]:
            yield from _differs("tensor", tensor.name, "memory", tensor.memory, tensor.shape)
    if tensor.packed and tensor.packed not in packings(tensor.dtype):
        yield from _differs("tensor", tensor.name, "packed", tensor.packed, packings(tensor.dtype)[0])
    if tensor.packed and (decl.space != "symmetric" or not tensor.shape or tensor.steps):
        message = f"{tensor.name} has `packed` and is no symmetric tensor that words can carry"
        yield Misfit(kind="tensor", part=tensor.name, message=message, hint="remove packed")
    if tensor.swept_by is not None and tensor.swept_by not in bound.stages:
        message = f"{tensor.name} is `swept_by` {tensor.swept_by}, which is no stage"
        yield Misfit(kind="tensor", part=tensor.name, message=message, hint="name a stage that reads its words")
    if tensor.credits is not None and (bound.tensors.get(tensor.credits, tensor).steps is None):
        message = f"{tensor.name} has the credits of {tensor.credits}, which has memory for all of its steps"
        yield Misfit(kind="tensor", part=tensor.name, message=message, hint="remove `credits`")


def _channels(bound: Bound) -> Iterator[Misfit]:
    every = [s for stage in bound.stages.values() for s in statements(stage.stage.body)]
    signals = dict.fromkeys(signal for s in every for signal in (*notified(s), *awaited(s)))
    for tensor, kind in signals:
        if (tensor, kind) not in bound.channels:
            hint = f"channel {tensor} {kind}: base, counts, sizes, buffers"
            yield Misfit(kind="channel", part="", message=f"{tensor} has no channels of kind {kind}", hint=hint)
    used = 0
    for grid in bound.channels.values():
        part, tensor = f"{grid.tensor} {grid.kind}", bound.tensors[grid.tensor]
        if any(size < 1 for size in grid.sizes):
            yield Misfit(kind="channel", part=part, message=f"sizes of {part} are not positive", hint="sizes[1, 1]")
            return
        counts = tuple(-(-extent // size) for extent, size in zip(tensor.shape, grid.sizes, strict=True))
        yield from _differs("channel", part, "counts", grid.counts, counts)
        yield from _differs("channel", part, "buffers", grid.buffers, tensor.buffers)
        yield from _differs("channel", part, "base", grid.base, used)
        used += grid.count * grid.buffers
    yield from _differs("signal_pad", "", "entered", bound.entered_base, used)
    yield from _differs("signal_pad", "", "finished", bound.finished_base, used + bound.ranks)
    yield from _differs("signal_pad", "", "size", bound.pad_size, used + 2 * bound.ranks)


def _stage(bound: Bound, stage: BoundStage, number: int) -> Iterator[Misfit]:
    numbers = sorted(bound.typing.scalar_indices(stage.name))
    yield from _differs("stage", stage.name, "number", stage.number, number)
    yield from _differs("stage", stage.name, "numbers", sorted(stage.scalar_indices), numbers)
    for decl in all_indices(stage.stage):
        extent = max(0, number_of(decl.extent, bound.numbers, bound.ranks))
        yield from _differs("stage", stage.name, f"extent {decl.name}", stage.extents[decl.name], extent)
    for first, decl in two_ranges(stage.stage):
        yield from _differs("stage", stage.name, f"the range of {decl.name}", print_range(decl), print_range(first))
    for index in numbers:
        yield from _differs("stage", stage.name, f"tile {index}", stage.tiles[index], 1)
    for word, value, least in (
        ("block", stage.block, 1),
        ("num_stages", stage.num_stages, 1),
        ("tiles", stage.total, 0),
    ):
        if value < least:
            yield from _differs("stage", stage.name, word, value, least)
    if stage.num_warps not in WARPS:
        yield from _differs("stage", stage.name, "num_warps", stage.num_warps, 4)
    if isinstance(stage.resource, Fused) and stage.resource.stage not in bound.stages:
        message = f"{stage.name} is to run in {stage.resource.stage}, which is no stage"
        yield Misfit(
            kind="stage",
            part=stage.name,
            message=message,
            hint=did_you_mean(stage.resource.stage, bound.stages, "in STAGE prologue"),
        )


def _kernels(bound: Bound) -> Iterator[Misfit]:
    """Yield what does not fit in the kernels; before the pass `kernels` a program has none."""
    if not bound.kernels:
        return
    times = Counter(name for kernel in bound.kernels for name in kernel.stage_names)
    for name in bound.stages:
        if times[name] != 1:
            message = f"{times[name]} kernels run {name}"
            yield Misfit(kind="stage", part=name, message=message, hint="each stage is in one loop of one kernel")
            return
    positions: Counter[str] = Counter()
    for kernel in bound.kernels:
        yield from _differs("kernel", kernel.name, "position", kernel.position, positions[kernel.stream])
        positions[kernel.stream] += 1
        yield from _kernel(bound, kernel)
    placed = bound.many_threads or any(stage.transport is not Transport.STORES for stage in bound.stages.values())
    for stage in bound.stages.values() if placed else ():  # before the pass `transport` all of them say STORES
        wanted = transport_of(bound, stage).name
        yield from _differs("stage", stage.name, "transport", stage.transport.name, wanted)
    able = bound.capabilities
    for stage in bound.stages.values():  # before the pass `loops` a flat loop is only asked for
        if (stage.flatten and bound.many_threads and not able.flattened_loops) or (
            stage.tma_copy and not able.tma_copies
        ):
            word = "flatten" if stage.flatten else "tma_copy"
            message = f"{stage.name} has `{word}`, which dialect {able.dialect} does not have on {bound.target}"
            yield Misfit(kind="stage", part=stage.name, message=message, hint=f"remove {word}")
    if bound.protocol not in (fitting(bound) if bound.many_threads else (LaunchProtocol.HELPER_KERNELS,)):
        yield from _differs("launch", "", "protocol", bound.protocol.name, LaunchProtocol.HELPER_KERNELS.name)


def _kernel(bound: Bound, kernel: Kernel) -> Iterator[Misfit]:
    queued = {isinstance(bound.stages[name].resource, CopyEngine) for name in kernel.stage_names}
    boxes = bound.stages[kernel.stage_names[0]].tma_copy
    if kernel.name not in kernel.stage_names:
        yield from _differs("kernel", kernel.name, "name", kernel.name, kernel.stage_names[0])
    if queued != {kernel.on_copy_engine}:
        hint = "stages `on copy_engine`, and no others, are on the stream `copy`"
        message = f"kernel {kernel.name} is on the stream {kernel.stream}, and its stages are not"
        yield Misfit(kind="kernel", part=kernel.name, message=message, hint=hint)
    yield from _differs(
        "kernel", kernel.name, "programs_per_cta", kernel.programs_per_cta, boxes.programs if boxes else 1
    )
    if (
        kernel.programs < 1
        or kernel.programs % kernel.programs_per_cta
        or (kernel.on_copy_engine and kernel.programs > 1)
    ):
        yield from _differs("kernel", kernel.name, "programs", kernel.programs, kernel.programs_per_cta)
    if kernel.num_warps not in WARPS or kernel.num_stages < 1 or kernel.reuse_lag < 0:
        message = f"num_warps, num_stages or reuse_lag of {kernel.name} are none"
        yield Misfit(kind="kernel", part=kernel.name, message=message, hint="num_warps 4, num_stages 3")
    for loop in kernel.loops:
        yield from _loop(bound, kernel, loop)


def _order(bound: Bound, stage: BoundStage) -> Iterator[Misfit]:
    """Yield the indices that some tile has where none of their tiles is. The plan reads each of them as a place."""
    env = Env(
        rank=np.arange(bound.ranks)[:, None], ranks=bound.ranks, params={}, indices={TILE.name: np.arange(stage.total)}
    )
    for index, expr in stage.order.items() if stage.total else ():
        count = stage.count(index)
        message = f"the order of {index} leaves the {count} tiles that {index} has"
        try:
            with np.errstate(divide="raise"):
                places = np.asarray(evaluate(expr, env))
        except (ArithmeticError, IndexError):  # of a division by zero, or of a choice that there is not
            places = np.array(-1)
        if (places < 0).any() or (places >= count).any():
            yield Misfit(kind="stage", part=stage.name, message=message, hint=f"{index} is one of 0 to {count - 1}")


def _in_steps(bound: Bound, kernel: Kernel, loop: Loop) -> bool:
    """True if the kernel of a loop can go through it in steps: they have all tiles, and nothing ties tiles together."""
    stages = [bound.stages[name] for name in loop.stages]
    other = any(
        one.flatten or one.kind is KernelKind.ROLES or one.tma_copy or one.notified_in is not None for one in stages
    )
    other |= kernel.dynamic or kernel.program_per_tile or kernel.on_copy_engine or loop.width is not None
    return not other and loop.compact is None and kernel.steps * max(0, loop.each or 0) >= stages[0].total


def _misplaced(bound: Bound, kernel: Kernel, loop: Loop, stage: BoundStage) -> bool:
    """True if a stage says that its notifies are deferred to a step to which the pass would not defer them."""
    plain = replace(stage, notified_in=None, notified_product=0, notified_step=0)
    if stage == plain:
        return False
    return undeferred_reason(bound, kernel, loop, stage) is not None or stage != deferred(bound, plain)


def _loop(bound: Bound, kernel: Kernel, loop: Loop) -> Iterator[Misfit]:
    for name in loop.stages:
        if _misplaced(bound, kernel, loop, bound.stages[name]):
            stage = bound.stages[name]
            where = f"step {stage.notified_step} of product {stage.notified_product} of statement {stage.notified_in}"
            message = f"{name} cannot notify a tile in {where} of the next one"
            hint = "remove notified_in, notified_product and notified_step: it notifies at the end of a tile"
            yield Misfit(kind="stage", part=name, message=message, hint=hint)
    tiles = [bound.stages[name].total for name in loop.stages]
    if (kernel.steps, loop.each) != (1, None) and not _in_steps(bound, kernel, loop):
        message = f"{loop.stages[0]} does not have its {tiles[0]} tiles in {kernel.steps} steps of {loop.each}"
        hint = "steps 1 and loops without `each`, or as many steps as tiles need in turn"
        yield Misfit(kind="kernel", part=kernel.name, message=message, hint=hint)
    if len(set(tiles)) > 1:
        message = f"{', '.join(loop.stages)} of one loop have {', '.join(map(str, tiles))} tiles"
        yield Misfit(kind="kernel", part=kernel.name, message=message, hint="stages of one loop have as many tiles")
    end = loop.begin if loop.width is None else loop.begin + max(1, loop.width)
    if min(loop.first, loop.begin) < 0 or loop.width == 0 or end > (0 if loop.width is None else kernel.programs):
        message = f"the programs of the loop of {loop.stages[0]} are not among those of {kernel.name}"
        hint = f"first 0, or begin and width of {kernel.programs} programs"
        yield Misfit(kind="kernel", part=kernel.name, message=message, hint=hint)
