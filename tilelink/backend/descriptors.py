"""Loads through tensor descriptors (TMA): operands of products as boxes of rows and columns.

A tensor is treated as rows of its last dimension. All other dimensions and the buffers are folded into the rows. A box
may extend beyond its shard's last row into the next shard. That is harmless for an axis that the product keeps, because
the results of those rows are masked when they are stored or reduced. A contracted axis must fit exactly or end with the
tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilelink.artifact import Descriptor
from tilelink.backend.addresses import Addresses, Slices
from tilelink.backend.constants import LEVEL, scaled, times, total
from tilelink.ir.mapping import Span
from tilelink.ir.program import Read, Region
from tilelink.ir.scalar import Index, const, mul
from tilelink.ir.typing import Axis

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i8": 1}
"""Element types that may be loaded through descriptors -> bytes."""
MAX_BOX = 256
"""Largest number of elements along an axis of a box (CUDA driver API, cuTensorMapEncodeTiled)."""
ALIGNMENT = 16
"""Alignment in bytes of rows and boxes (ibid.)."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box of a tensor: the parameter that holds its descriptor, and the first row and column of the box."""

    descriptor: str
    row: str
    column: str


@dataclass(kw_only=True)
class Descriptors:
    """The descriptors that the stages of one kernel load through."""

    args: dict[tuple[str, int, int], Descriptor] = field(default_factory=dict[tuple[str, int, int], Descriptor])

    def parameter(self, tensor: str, rows: int, columns: int) -> str:
        """Return the name of the parameter that holds the descriptor of a tensor with boxes of this size."""
        key = (tensor, rows, columns)
        return self.args.setdefault(key, Descriptor(tensor=tensor, box=(rows, columns))).name


def box_of(descriptors: Descriptors, addresses: Addresses, read: Read, contracted: int, slices: Slices) -> Box | None:
    """Return the box that a product's operand is loaded from, or None if it is loaded through pointers.

    contracted: axis that the product sums over, -1 or -2. slices: current parts of the axes.
    """
    region = read.region
    tensor = addresses.bound.tensors[region.tensor]
    axes = addresses.typing.region_type(region).axes
    spans = addresses.bound.memory_map(addresses.stage.name, region).spans
    width = ELEMENT_BYTES.get(tensor.dtype)
    folded = region.rank is None and len(axes) == 2 and [s.kind != "point" for s in spans[-2:]] == [True, True]
    possible = addresses.bound.target.tma and addresses.dialect.descriptors
    if not possible or width is None or not folded or tensor.packed or any(s.kind == "gather" for s in spans):
        return None
    block = addresses.shape(axes, slices)
    if tensor.shape[-1] * width % ALIGNMENT or block[1] * width % ALIGNMENT or max(block) > MAX_BOX:
        return None
    if not _contracts(addresses, axes[contracted], spans[contracted], contracted, slices):
        return None
    parameter = descriptors.parameter(region.tensor, *block)
    row = _row(addresses, region, spans, slices)
    return Box(descriptor=parameter, row=row, column=_start(addresses, spans[-1], -1, slices))


def _contracts(addresses: Addresses, axis: Axis, span: Span, position: int, slices: Slices) -> bool:
    """True if a box holds only elements of the contracted axis, or zeros beyond the end of the tensor."""
    if span.counted:  # beyond the end of a counted range are elements of the tensor
        return False
    part = slices.get(position)
    block, extent = addresses.block(axis, part), addresses.extent(axis)
    if extent % block == 0 and (span.kind in ("whole", "block") or _whole_tiles(addresses, span)):
        return True
    # beyond the end of the last dimension the elements are zeros
    return position == -1 and (span.kind == "whole" or _to_the_end(addresses, span, block))


def _whole_tiles(addresses: Addresses, span: Span) -> bool:
    """True if the end of a span's index cuts no tile."""
    return span.index is not None and addresses.stage.extents[span.index] % span.size == 0


def _to_the_end(addresses: Addresses, span: Span, block: int) -> bool:
    """True if the tiles cover the whole dimension, and each but the last consists of whole boxes."""
    if span.index is None or addresses.stage.extents[span.index] != span.extent:
        return False
    tiles = mul(Index(name=span.index), const(span.size))
    return span.start == const(0) or (span.start == tiles and span.size % block == 0)


def _row(addresses: Addresses, region: Region, spans: tuple[Span, ...], slices: Slices) -> str:
    """Return the first row of the box: leading coordinates and the buffer folded in, after the waits of the task."""
    tensor = addresses.bound.tensors[region.tensor]
    shape = addresses.constants.shape(tensor)
    terms = [scaled(f"{tensor.name}_buffer", times(shape[:-1]))] if tensor.buffers > 1 else []
    for dim, span in enumerate(spans[:-2]):
        terms.append(scaled(addresses.start(span, LEVEL["*"]), times(shape[dim + 1 : -1])))
    row = total([*terms, _start(addresses, spans[-2], -2, slices)])
    return addresses.after_waits(region, row)


def _start(addresses: Addresses, span: Span, position: int, slices: Slices) -> str:
    part = slices.get(position)
    start = addresses.start(span, 5)
    if part is None:
        return start
    return part.start if start == "0" else f"{start} + {part.start}"
