"""Shared memory of a kernel's matrix products: the least that they take, and an estimate of what they take."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilelink.errors import TileSizeError
from tilelink.ir.program import ITEM_BYTES, Dot, Read, Stage, Transpose, Value, Wait
from tilelink.ir.sizes import power_of_two
from tilelink.ir.visitor import statements, value_of, values
from tilelink.lowering.bound import Bound, BoundStage, Kernel, KernelKind
from tilelink.lowering.transform import stage_writes

ALIGNMENT = 16
"""Alignment in bytes of rows whose loads certainly go through shared memory."""
GROUP_ROWS, GROUP_WARPS = 64, 4
"""Rows and warps of the smallest product of a warpgroup with operands in shared memory (wgmma)."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Need of shared memory, in bytes: `buffers` blocks of each operand of a stage's product, in flight together."""

    stage: BoundStage
    buffers: int
    block: int

    @property
    def bytes(self) -> int:
        return self.buffers * self.block


def check_memory(bound: Bound) -> None:
    """Raise TileSizeError for products whose operands exceed the shared memory of any program of the target."""
    room = bound.target.shared_memory
    need = max(least(bound), key=lambda one: one.bytes, default=None)
    if bound.target.kind == "cpu" or need is None or need.bytes <= room:
        return
    raise _too_large(bound, need)


def _too_large(bound: Bound, need: Need, results: int = 0) -> TileSizeError:
    """Return the error of a stage whose operands, together with its results, exceed the shared memory of a program."""
    name, stage, room = need.stage.name, need.stage, bound.target.shared_memory
    tiles = ", ".join(f"{index}={size}" for index, size in stage.tiles.items() if index not in stage.scalar_indices)
    message = f"stage {name} takes {need.bytes + results:,} bytes of shared memory or more, "
    message += f"{need.buffers} times {need.block:,} for the operands of a product"
    message += f" and {results:,} for results" if results else ""
    message += f", and a program of {bound.target} has {room:,}"
    hint = f"smaller tiles than {tiles}, a smaller block than {stage.block} of what is contracted, or fewer stages"
    return TileSizeError(message, location=bound.schedule.stage(name).at("tile") or stage.stage.location, hint=hint)


def does_not_fit(bound: Bound) -> TileSizeError | None:
    """Return the error of a bound program that a processor's shared memory will probably not hold, or None.

    The estimate covers its products and the buffers of results that are stored.
    """
    if bound.target.kind != "cpu":
        for need in least(bound):
            stage = bound.stages[need.stage.name]
            results = _beside(bound, stage) if stage.flatten and need.buffers > 1 else 0
            if need.bytes + results > bound.target.shared_memory:
                return _too_large(bound, need, results)
    return None


def least(bound: Bound) -> list[Need]:
    """Return the least need of each product. Stages of one kernel run in turn, and so do the products of a stage."""
    return [
        need
        for kernel in bound.kernels
        if not kernel.on_copy_engine
        for loop in kernel.loops
        for name in loop.stages
        for need in _of_stage(bound, kernel, bound.stages[name])
    ]


def _of_stage(bound: Bound, kernel: Kernel, stage: BoundStage) -> list[Need]:
    needs: list[Need] = []
    if stage.kind is KernelKind.ROLES:  # the clause has counted what its rings take
        return needs
    for statement in statements(stage.stage.body):
        value = value_of(statement)
        for node in values(value) if value is not None else ():
            if isinstance(node, Dot) and (need := _of_product(bound, kernel, stage, node)) is not None:
                needs.append(need)
    return needs


def _of_product(bound: Bound, kernel: Kernel, stage: BoundStage, product: Dot) -> Need | None:
    """Return the need of a product along a whole dimension, whose loop Triton pipelines.

    Return None for other products, which may keep operands in registers.
    """
    left, right = (_operand(bound, stage, one) for one in (product.left, product.right))
    if left is None or right is None or left.whole != (False, True) or right.whole != (True, False):
        return None
    if bound.target.kind == "hip" and any(isinstance(s, Wait) for s in statements(stage.stage.body)):
        return None  # a wait in the loop prevents its loads from being pipelined there
    contracted, block = left.sizes[1], power_of_two(stage.block)
    by_groups = bound.target.tma and max(left.item, right.item) <= 2
    by_groups = by_groups and power_of_two(left.sizes[0]) >= GROUP_ROWS and kernel.num_warps % GROUP_WARPS == 0
    rows, columns = power_of_two(left.sizes[0]) * left.item, power_of_two(right.sizes[1]) * right.item
    if (
        contracted <= block or kernel.num_stages < 2
    ):  # no loop, or no block in flight: the left operand may be in registers
        return Need(stage=stage, buffers=1, block=columns * min(block, power_of_two(contracted))) if by_groups else None
    return Need(stage=stage, buffers=kernel.num_stages - (0 if by_groups else 1), block=(rows + columns) * block)


@dataclass(frozen=True, kw_only=True)
class _Operand:
    """An operand of a product.

    sizes: elements of its two axes in a tile, rows first. whole: True for each axis that is a whole dimension. item:
    bytes of an element.
    """

    sizes: tuple[int, int]
    whole: tuple[bool, bool]
    item: int


def _operand(bound: Bound, stage: BoundStage, value: Value) -> _Operand | None:
    """Return an operand that is read in its memory layout, in rows that asynchronous copies can load; or None."""
    if isinstance(value, Transpose):
        inner = _operand(bound, stage, value.value)
        if inner is None:
            return None
        (a, b), (c, d) = inner.sizes, inner.whole
        return _Operand(sizes=(b, a), whole=(d, c), item=inner.item)
    if not isinstance(value, Read) or value.region.rank is not None:
        return None
    tensor = bound.tensors[value.region.tensor]
    if tensor.packed:
        return None  # its words are polled into registers
    item = ITEM_BYTES[tensor.dtype]
    spans = [span for span in bound.tile_map(stage.name, value.region).spans if span.kind != "point"]
    if any(span.kind not in ("tile", "whole") for span in spans):
        return None
    sizes = [span.extent if span.kind == "whole" else span.size for span in spans]
    whole = [span.kind == "whole" for span in spans]
    if len(sizes) != 2 or tensor.shape[-1] * item % ALIGNMENT or sizes[-1] * item % ALIGNMENT:
        return None
    return _Operand(sizes=(sizes[0], sizes[1]), whole=(whole[0], whole[1]), item=item)


def _beside(bound: Bound, stage: BoundStage) -> int:
    """Return an estimate of the bytes that Triton takes to buffer results that are stored.

    A flattened loop needs them in addition to its operands.
    """
    own: Stage = stage.stage
    stored = [bound.tensors[r.tensor].dtype for r in stage_writes(own)]
    return prod(stage.tiles[d.name] for d in own.indices) * (4 if "f32" in stored else 1)
