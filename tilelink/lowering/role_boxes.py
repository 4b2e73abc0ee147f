"""The boxes of warps with roles: which regions TMA moves or consumers read, from where their spans start and end."""

from __future__ import annotations

from collections.abc import Sequence

from tilelink.ir.mapping import Span
from tilelink.ir.program import ITEM_BYTES, Region
from tilelink.ir.scalar import Index, const, mul
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.operand_boxes import ALIGNMENT
from tilelink.lowering.reason import reason_at


def unaligned(bound: Bound, regions: Sequence[Region]) -> str | None:
    """Return which tensor has rows that TMA can neither load nor store, or None."""
    for region in regions:
        if bound.tensors[region.tensor].shape[-1] * item_bytes(bound, region) % ALIGNMENT:
            return reason_at(region, f"rows of {region.tensor} are not multiples of {ALIGNMENT} bytes")
    return None


def is_box(bound: Bound, stage: BoundStage, region: Region, dtype: str) -> bool:
    """True if TMA can load a tile of rows and columns of a tensor of this type. It may reach beyond the tensor."""
    *others, rows, columns = bound.tile_map(stage.name, region).spans
    tiled = rows.kind == columns.kind == "tile" and not rows.counted and not columns.counted
    aligned = bound.tensors[region.tensor].dtype == dtype and unaligned(bound, (region,)) is None
    return tiled and aligned and all(span.kind == "point" for span in others)


def read_reason(
    bound: Bound, stage: BoundStage, region: Region, shapes: Sequence[list[str | None]], of_loop: bool = True
) -> str | None:
    """Return why consumers cannot load a region whose indices are those of one of some shapes, or None.

    The index of a whole dimension is None. of_loop: True for what iterations compute with, which may be integers.
    """
    tensor, spans = bound.tensors[region.tensor], bound.tile_map(stage.name, region).spans
    if tensor.decl.space == "table" or tensor.packed:
        return reason_at(region, f"it computes with {region.tensor}, which is not in memory as it is")
    if tensor.dtype not in ("f16", "bf16", "f32", *(["i32"] if of_loop else [])):
        return reason_at(region, f"it computes with {region.tensor}, which holds {tensor.dtype}")
    tiled = [span for span in spans if span.kind != "point"]
    plain = all(
        span.kind == "whole"
        or (span.kind == "tile" and span.gather is None and (span.counted or _ends_with_index(stage, span)))
        for span in tiled
    )
    if not plain or [span.index for span in tiled] not in shapes:
        what = "the rows or columns of its tiles, and no tile"
        what = "the rows of its tiles or the columns of an iteration, and no tile of both" if of_loop else what
        return reason_at(region, f"it computes with {region.tensor}, which is no vector along {what}")
    return None


def item_bytes(bound: Bound, region: Region) -> int:
    """Return the bytes of an element of the tensor of a region."""
    return ITEM_BYTES[bound.tensors[region.tensor].dtype]


def outer_size(bound: Bound, stage: BoundStage, region: Region, n_major: bool = False) -> int | None:
    """Return the rows of an operand's tile, or None if it is not `[points, tile of rows, :]`, or a slice of `:`.

    Boxes may reach beyond the rows of the tile: what comes from there is not stored. n_major: return the columns of
    `[points, :, tile of columns]`, whose boxes reach beyond no contracted row, where another matrix may begin.
    """
    *others, rows, inner = bound.tile_map(stage.name, region).spans
    if n_major:
        rows, inner = inner, rows
        if inner.kind != "whole" or inner.extent % bound.contraction_block(stage.name):
            return None
    points = all(span.kind == "point" for span in others)
    along = inner.kind == "whole" or _is_slice(stage, inner, bound.contraction_block(stage.name))
    return rows.size if points and rows.kind == "tile" and along else None


def _is_slice(stage: BoundStage, inner: Span, block: int) -> bool:
    """True if a span is a slice of the whole contracted dimension, or of fixed length.

    A slice consists of whole blocks, so that no block has elements of the next slice. The last slice may end beyond the
    tensor, where TMA loads zeros.
    """
    if inner.kind == "block":
        return inner.size % block == 0
    if inner.kind != "tile" or inner.counted or inner.gather is not None:
        return False
    name = str(inner.index)
    whole = inner.start == mul(Index(name=name), const(inner.size)) and stage.extents[name] == inner.extent
    return whole and name not in stage.scalar_indices and inner.size % block == 0


def store_reason(bound: Bound, stage: BoundStage, region: Region, *, whole: bool = False) -> str | None:
    """Return why a tile of results is no box, or None. A box may end beyond the tensor, but not beyond a tile.

    whole: True for tiles of whole rows.
    """
    tensor = bound.tensors[region.tensor]
    *others, rows, columns = bound.tile_map(stage.name, region).spans
    kind = "whole" if whole else "tile"
    if not all(span.kind == "point" for span in others) or rows.kind != "tile" or columns.kind != kind:
        what = "whole rows" if whole else "rows and columns"
        return reason_at(region, f"it does not store tiles of {what} of {region.tensor}")
    if rows.counted or columns.counted:
        reason = _cut_reason(region, rows, columns, whole=whole)
        if reason is not None:
            return reason
    if not (rows.counted or _ends_with_index(stage, rows)) or not (whole or _ends_with_index(stage, columns)):
        return reason_at(region, f"its tiles of {region.tensor} start at an offset, and the last one is cut")
    if not whole and not uncut(stage, columns) and stage.extents[str(columns.index)] != columns.extent:
        return reason_at(region, f"the end of {columns.index} cuts a tile of {region.tensor}")
    alone = tensor.buffers == 1 and all(size == 1 for size in tensor.shape[:-2])
    with_tensor = may_end_with_tensor(stage, rows)
    ends = alone and (with_tensor or stage.extents[str(rows.index)] == rows.extent)
    if not rows.counted and (with_tensor or not uncut(stage, rows)) and not ends:
        text = f"the end of {rows.index} cuts a tile of {region.tensor}, and other rows follow it in memory"
        return reason_at(region, text)
    return None if tensor.dtype in ("bf16", "f16", "f32") else reason_at(region, f"it stores {tensor.dtype}")


def _cut_reason(region: Region, rows: Span, columns: Span, *, whole: bool) -> str | None:
    """Return why consumers cannot store the rows of a tile that ends where a launch decides, or None."""
    if columns.counted:
        return f"only a launch decides where the columns of its tiles of {region.tensor} end"
    if whole:
        return f"only a launch decides where the rows of its tiles of {region.tensor} end, and its loop carries a state"
    if rows.end is not None:
        return f"its rows of {region.tensor} may end beyond the dimension"
    return None


def may_end_with_tensor(stage: BoundStage, span: Span) -> bool:
    """True if a tile of an index within a tile may end with the tensor. It does not if the tensor holds whole tiles."""
    whole = span.start == const(0) and span.size <= span.extent
    return str(span.index) in stage.ends_with_tensor and not whole


def uncut(stage: BoundStage, span: Span) -> bool:
    """True if no tile of an index is cut by the end of the index."""
    return stage.extents[str(span.index)] % span.size == 0


def _ends_with_index(stage: BoundStage, span: Span) -> bool:
    """True if the last tile, where it is cut, ends at the extent of its index.

    That is so if tiles start with the dimension, or if none is cut.
    """
    steps = mul(Index(name=str(span.index)), const(span.size))
    in_steps = span.start in (steps, const(0)) and stage.extents[str(span.index)] <= span.extent
    return in_steps or uncut(stage, span)
