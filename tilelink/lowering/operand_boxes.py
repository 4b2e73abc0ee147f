"""The pass that says which operands of products are loaded as boxes of rows and columns, by tensor descriptors (TMA).

A tensor is treated as rows of its last dimension. All other dimensions and the buffers are folded into the rows. A box
may extend beyond its shard's last row into the next shard. That is harmless for an axis that the product keeps, because
the results of those rows are masked when they are stored or reduced. A contracted axis must fit exactly or end with the
tensor.

before: stage gemm: on sm, ...
after:  stage gemm: on sm, ..., boxes[w, x]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilelink.ir.mapping import Span
from tilelink.ir.products import has_steps, untransposed
from tilelink.ir.program import Attend, Dot, For, If, Read, Region, Statement, Transpose
from tilelink.ir.scalar import Index, Ranks, const, mul
from tilelink.ir.typing import Axis
from tilelink.ir.visitor import value_of, values
from tilelink.lowering.blocks import axis_block, axis_extent
from tilelink.lowering.bound import Bound, BoundStage, KernelKind
from tilelink.lowering.sink_waits import sliced_product

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i8": 1}
"""Element types that may be loaded through descriptors -> bytes."""
MAX_BOX = 256
"""Largest number of elements along an axis of a box (CUDA driver API, cuTensorMapEncodeTiled)."""
ALIGNMENT = 16
"""Alignment in bytes of rows and boxes (ibid.)."""


def choose_boxes(bound: Bound) -> Bound:
    """before: products. after: products with the tensors of the operands that are loaded as boxes, where there are."""
    if not bound.capabilities.descriptors:
        return bound
    stages = dict(bound.stages)
    for name, stage in bound.stages.items():
        if stage.kind is not KernelKind.ROLES:
            found = (one[0].tensor for one in _operands(bound, stage) if operand_box(bound, stage, *one) is not None)
            stages[name] = replace(stage, boxes=frozenset(found))
    return replace(bound, stages=stages)


def _operands(bound: Bound, stage: BoundStage) -> Iterator[tuple[Region, int, Mapping[int, int]]]:
    """Yield each operand that a stage reads, the position of its contracted axis, and of the parts that it is read in,
    their elements."""
    typing = bound.typing.stage(stage.name)
    for dot in _products(stage, stage.stage.body):
        axis = typing.type_of(dot.left).axes[-1]
        over_ranks = axis.kind == "whole" and isinstance(axis.dim, Ranks)
        block = 1 if over_ranks else bound.contraction_block(stage.name)
        cut = has_steps(typing, dot) and axis_extent(bound, stage, axis) > block
        for value, contracted in ((dot.left, -1), (dot.right, -2)):
            inner, position = untransposed(value, contracted)
            if isinstance(inner, Read):
                yield inner.region, position, {position: block} if cut else {}


def _products(stage: BoundStage, body: tuple[Statement, ...]) -> Iterator[Dot]:
    for statement in body:
        match statement:
            case For() if (product := sliced_product(stage, statement)) is not None:
                yield product.whole
            case For(body=inner):
                yield from _products(stage, inner)
            case If(then=then, orelse=orelse):
                yield from _products(stage, (*then, *orelse))
            case _:
                computed = value_of(statement)
                for value in values(computed) if computed is not None else ():
                    if isinstance(value, Attend):
                        yield Dot(left=value.q, right=Transpose(value=value.k))
                    elif isinstance(value, Dot):
                        yield value


def operand_box(
    bound: Bound, stage: BoundStage, region: Region, contracted: int, parts: Mapping[int, int]
) -> tuple[int, int] | None:
    """Return the rows and columns of the box that an operand may be loaded as, or None.

    contracted: axis that the product sums over, -1 or -2. parts: elements of the current parts of the axes.
    """
    tensor, axes = bound.tensors[region.tensor], bound.typing.stage(stage.name).region_type(region).axes
    spans, width = bound.memory_map(stage.name, region).spans, ELEMENT_BYTES.get(tensor.dtype)
    folded = region.rank is None and len(axes) == 2 and [s.kind != "point" for s in spans[-2:]] == [True, True]
    if width is None or not folded or tensor.packed or any(span.kind == "gather" for span in spans):
        return None
    rows, columns = (parts.get(p, axis_block(bound, stage, axis)) for p, axis in ((-2, axes[0]), (-1, axes[1])))
    if tensor.shape[-1] * width % ALIGNMENT or columns * width % ALIGNMENT or max(rows, columns) > MAX_BOX:
        return None
    block = (rows, columns)[contracted]
    return (rows, columns) if _contracts(bound, stage, axes[contracted], spans[contracted], contracted, block) else None


def _contracts(bound: Bound, stage: BoundStage, axis: Axis, span: Span, position: int, block: int) -> bool:
    """True if a box holds only elements of the contracted axis, or zeros beyond the end of the tensor."""
    if span.counted:  # beyond the end of a counted range are elements of the tensor
        return False
    whole = span.index is not None and stage.extents[span.index] % span.size == 0  # the end of the index cuts no tile
    if axis_extent(bound, stage, axis) % block == 0 and (span.kind in ("whole", "block") or whole):
        return True
    # beyond the end of the last dimension the elements are zeros
    return position == -1 and (span.kind == "whole" or _to_the_end(stage, span, block))


def _to_the_end(stage: BoundStage, span: Span, block: int) -> bool:
    """True if the tiles cover the whole dimension, and each but the last consists of whole boxes."""
    if span.index is None or stage.extents[span.index] != span.extent:
        return False
    tiles = mul(Index(name=span.index), const(span.size))
    return span.start == const(0) or (span.start == tiles and span.size % block == 0)
