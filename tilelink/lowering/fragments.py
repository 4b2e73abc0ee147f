"""Tensors whose tiles lie in memory as the registers of consumers hold them: fragment order.

Consumers of a kernel whose warps have roles may store tiles that only consumers of the same kernel read, such as parts
of products over slices of the contracted dimension (lowering/clauses/split_k_tail.py). Nobody else sees where the
elements of such a tile are. So each thread stores the elements of a piece that it holds next to one another, in vectors
of four elements (16 bytes of f32), and a thread that computes with the piece loads the same ones. Adding parts of
128 x 256 elements took a fifth to a half of the time that it takes in rows and columns (one H100). CUTLASS keeps the
parts of stream-K products in such an order (cutlass/block_striped.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilelink.ir.program import Region
from tilelink.ir.scalar import const
from tilelink.ir.visitor import reads, statements, value_of
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.role_bodies import read_by_consumers
from tilelink.lowering.role_statements import results_of
from tilelink.lowering.transform import stage_writes


def with_fragments(bound: Bound) -> Bound:
    """Return the bound program in which all tensors that consumers store, and that can be, are in fragment order."""
    direct = {results_of(one)[0].tensor for one in bound.stages.values() if one.is_direct}
    kept = {name: replace(bound.tensors[name], fragments=True) for name in direct if not fragments_reason(bound, name)}
    return replace(bound, tensors={**bound.tensors, **kept})


def fragments_reason(bound: Bound, name: str) -> str | None:
    """Return why the tiles of a tensor cannot be in fragment order, or None."""
    tensor = bound.tensors[name]
    if tensor.decl.space != "local" or tensor.buffers > 1 or tensor.packed or tensor.memory != tensor.shape:
        return "it is not a local tensor of one buffer"
    accesses = [(stage, one) for stage in bound.stages.values() for one in _accesses(stage) if one.tensor == name]
    if not accesses:
        return "no stage accesses it"
    for stage, region in accesses:
        if not stage.rings or stage.has_loop or not _by_consumers(bound, stage, region):
            return f"others than consumers access it in {stage.name}"
        if not _is_tile(bound, stage, region):
            return f"{stage.name} does not access whole tiles of its last two dimensions"
    if len({bound.kernel_of[stage.name].name for stage, _ in accesses}) > 1:  # in one they divide all tiles alike
        return "consumers of several kernels access it"
    return None


def _accesses(stage: BoundStage) -> Iterator[Region]:
    yield from stage_writes(stage.stage)
    for statement in statements(stage.stage.body):
        if (value := value_of(statement)) is not None:
            yield from reads(value)


def _by_consumers(bound: Bound, stage: BoundStage, region: Region) -> bool:
    """True if the consumers of a stage store a region, or load it from memory."""
    if stage.is_direct and results_of(stage) == [region]:
        return True
    read = {one.region for one in read_by_consumers(bound, stage)}
    return region in read and region.tensor not in {one.tensor for one in results_of(stage)}


def _is_tile(bound: Bound, stage: BoundStage, region: Region) -> bool:
    """True for a point of all dimensions but the last two, and all of those: what the consumers have together."""
    tensor, result = bound.tensors[region.tensor], bound.tile_map(stage.name, results_of(stage)[0])
    *others, rows, columns = bound.tile_map(stage.name, region).spans
    if any(span.kind != "point" for span in others):
        return False
    sizes = tuple(span.size for span in result.spans[-2:])
    whole = all(span.kind == "tile" and span.start == const(0) and not span.counted for span in (rows, columns))
    return whole and (rows.size, columns.size) == sizes == tensor.shape[-2:]
