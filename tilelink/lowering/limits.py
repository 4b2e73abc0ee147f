"""Limits of what can be compiled: the size of a value, the size of a plan, and what a dialect can express."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilelink.errors import EmitError, Location, ScheduleError, TileSizeError
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import F8, Assign, Cast, Read, Store, Transfer
from tilelink.ir.sizes import power_of_two
from tilelink.ir.typing import Axis, StageTyping, Typing
from tilelink.ir.visitor import all_indices, statements, value_of, values
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.transform import number_of
from tilelink.scheduling.words import word_called

MAX_RANKS = 1 << 16
"""Largest number of ranks, which is more than any machine has. Rules look at some of them one by one."""
MAX_TILES = 1 << 23
"""Largest number of tiles of all ranks in a plan. Such a plan takes minutes and gigabytes."""
MAX_CHANNELS = 1 << 26
MAX_DIMENSIONS = 16
"""Largest number of dimensions of a tensor. Proofs look at all corners of a box: twice as many for each dimension."""
MAX_ELEMENTS = 1 << 20
"""Largest number of elements of one value of a tile: Triton's limit for a tensor (TRITON_MAX_TENSOR_NUMEL)."""


def check_size(bound: Bound) -> None:
    """Raise ScheduleError for a program with too many dimensions or channels, before memory is allocated."""
    _check_dimensions(bound)
    channels = 0
    for (name, _), grid in bound.channels.items():
        channels += grid.count * bound.ranks
        if channels > MAX_CHANNELS:
            message = f"tensor {name} has {grid.count:,} channels on each of {bound.ranks:,} ranks"
            hint = f"a plan holds {MAX_CHANNELS:,} channels: make them coarser, or take smaller sizes or fewer ranks"
            raise ScheduleError(message, location=bound.tensors[name].decl.location, hint=hint)


def check_tiles(bound: Bound) -> None:
    """Raise ScheduleError for a program whose plan has too many tiles for any machine. Few ranks need no such plan."""
    tiles = 0
    for name, stage in bound.stages.items():
        tiles += stage.total * bound.ranks
        if tiles > MAX_TILES:
            message = f"stage {name} has {stage.total:,} tiles on each of {bound.ranks:,} ranks"
            hint = f"a plan holds {MAX_TILES:,} tiles: take larger tiles, smaller sizes or fewer ranks"
            raise ScheduleError(message, location=stage.stage.location, hint=hint)


def _check_dimensions(bound: Bound) -> None:
    for name, tensor in bound.tensors.items():
        if len(tensor.shape) > MAX_DIMENSIONS:
            message = f"tensor {name} has {len(tensor.shape)} dimensions"
            hint = f"a tensor has {MAX_DIMENSIONS} at most: make one of several, as x[i * N + j] for x[i, j]"
            raise ScheduleError(message, location=tensor.decl.location, hint=hint)


def check_capabilities(bound: Bound) -> None:
    """Raise EmitError for a program that the dialect of its kernels cannot express at all."""
    able = bound.capabilities
    if not able.waits_beyond and not bound.schedule.reuse_wait:
        hint = "leave `reuse_wait off` out of the schedule, or emit dialect triton"
        raise EmitError("waits for equality need the reuse wait: counters could run ahead", hint=hint)
    decided = next((one for one in bound.program.tensors if one.bound is not None), None)
    if decided is not None and not able.launch_decided:
        message = f"dialect {able.dialect} has no parts that a launch decides, as by {decided.name}"
        raise EmitError(message, location=decided.location, hint="emit dialect triton")
    _check_floats(bound)
    if bound.nodes > 1 and not able.several_nodes:
        hint = "emit dialect triton, whose kernels put between nodes"
        raise EmitError(f"dialect {able.dialect} is for one node, not for {bound.nodes}", hint=hint)


def _check_floats(bound: Bound) -> None:
    """Raise EmitError for an 8-bit float that the processor does not have."""
    if bound.capabilities.floats_of_8_bits:
        return
    hint = "bf16 and f16 hold all values of it; sm_89, sm_90 and CPU ranks have it"
    for tensor in bound.program.tensors:
        if tensor.dtype in F8:
            message = f"{tensor.name} is {tensor.dtype}, which {bound.target} does not have"
            raise EmitError(message, location=tensor.location, hint=hint)
    for stage in bound.stages.values():
        computed = (value for s in statements(stage.stage.body) if (value := value_of(s)) is not None)
        for part in (part for value in computed for part in values(value)):
            if isinstance(part, Cast) and part.dtype in F8:
                message = f"{bound.target} has no {part.dtype}"
                raise EmitError(message, location=part.location or stage.stage.location, hint=hint)


def check_elements(bound: Bound, typing: Typing) -> None:
    """Raise TileSizeError for a value that is too large for any kernel. Plain copies are made block by block."""
    for name, stage in bound.stages.items():
        stage_typing = typing.stage(name)
        for what, axes, location in _held(stage_typing):
            sizes = [length(bound, stage, axis) for axis in axes]
            if prod(map(power_of_two, sizes)) <= MAX_ELEMENTS:
                continue
            tiled = {a.index: n for a, n in zip(axes, sizes, strict=True) if a.index is not None and n > 1}
            largest = max(tiled, key=tiled.__getitem__, default=None)
            message = f"{what} of stage {name} has {' x '.join(f'{n:,}' for n in sizes)} elements in a tile, and one "
            message += f"value of a kernel {MAX_ELEMENTS:,} at most, with sizes rounded up to powers of two"
            hint = f"a smaller tile({largest}={tiled[largest]})" if largest else "loop over an index instead of `:`"
            stage_schedule = bound.schedule.stage(name)
            given = largest is not None and largest in dict(stage_schedule[word_called("tile")])
            where = stage_schedule.at(f"tile.{largest}") if given else location
            raise TileSizeError(message, location=where, related=location if given else None, hint=hint)


def _held(known: StageTyping) -> Iterator[tuple[str, tuple[Axis, ...], Location | None]]:
    """Yield the values that a stage names or stores: a description, their axes and their location."""
    for statement in statements(known.stage.body):
        match statement:
            case Assign(name=name):
                yield name, known.locals[name].axes, statement.location
            case Store(region=region, value=value) | Transfer(target=region, source=value):
                if not isinstance(value, Read):
                    yield f"what goes to {region.tensor}", known.region_type(region).axes, statement.location
            case _:
                pass


def length(bound: Bound, stage: BoundStage, axis: Axis) -> int:
    """Return the elements of an axis of a value in a tile of a stage."""
    if axis.index is not None:
        return stage.tiles[axis.index]
    return number_of(axis.dim, bound.numbers, bound.ranks) if axis.dim is not None else 1


def cut_tiles(bound: Bound, stage: BoundStage, written: str) -> Iterator[str]:
    """Yield which tiles of the schedule are larger than their dimensions, so that the stage has smaller ones.

    written: the stage of the schedule that it was made from.
    """
    decls = {decl.name: decl for one in bound.source.stages if one.name == stage.name for decl in all_indices(one)}
    for name, size in bound.schedule.stage(written)[word_called("tile")]:
        if stage.tiles.get(name, size) < size:
            why = f", as {print_scalar(decls[name].extent)} is {stage.extents[name]}" if name in decls else ""
            yield f"the tile {name}={size} is cut to {stage.tiles[name]}{why}"
