"""Loads of the operands of products through tensor descriptors, as boxes (lowering/operand_boxes.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilelink.artifact import Descriptor
from tilelink.backend.addresses import Addresses, Slices
from tilelink.backend.constants import LEVEL, scaled, times, total
from tilelink.ir.mapping import Span
from tilelink.ir.program import Read, Region
from tilelink.lowering.operand_boxes import operand_box


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
    region, bound, stage = read.region, addresses.bound, addresses.stage
    if region.tensor not in stage.boxes:
        return None
    parts = {position: part.block for position, part in slices.items()}
    block = operand_box(bound, stage, region, contracted, parts)
    if block is None:
        return None
    spans = bound.memory_map(stage.name, region).spans
    parameter = descriptors.parameter(region.tensor, *block)
    row = _row(addresses, region, spans, slices)
    return Box(descriptor=parameter, row=row, column=_start(addresses, spans[-1], -1, slices))


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
