"""Messages of the network: the contiguous parts of a region that a put or a get moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.mapping import Span
from tilelink.ir.program import Read, Region, Transfer
from tilelink.ir.scalar import const
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.columns import Ints


def is_plain(bound: Bound, stage: BoundStage, move: Transfer) -> bool:
    """True if a transfer moves a region as it is: the same axes and elements on both sides, and no rows of a table."""
    if not isinstance(move.source, Read):
        return False
    source, target = move.source.region, move.target
    typing = bound.typing.stage(stage.name)
    if bound.tensors[source.tensor].dtype != bound.tensors[target.tensor].dtype:
        return False
    if typing.region_type(source).axes != typing.region_type(target).axes:
        return False
    return not any(span.kind == "gather" for span in (*axes(bound, stage, source), *axes(bound, stage, target)))


def is_held(bound: Bound, region: Region) -> bool:
    """True if the runtime holds the memory of a region, so that the network may read and write it."""
    decl = bound.tensors[region.tensor].decl
    return decl.symmetric or decl.space in ("local", "symmetric")


def axes(bound: Bound, stage: BoundStage, region: Region) -> list[Span]:
    """Return the spans of a region that are axes, outermost first."""
    return [span for span in bound.tile_map(stage.name, region).spans if span.kind != "point"]


def message_axes(bound: Bound, stage: BoundStage, regions: Sequence[Region]) -> int:
    """Return how many of the axes, from the last one back, are contiguous in all regions: those of one message.

    The axes before them are loops of messages.
    """
    return min(_contiguous(bound, stage, region) for region in regions)


def one_message(bound: Bound, stage: BoundStage, move: Transfer) -> bool:
    """True if a put or a get is one message."""
    assert isinstance(move.source, Read)
    regions = [move.target, move.source.region]
    return all(len(axes(bound, stage, one)) == message_axes(bound, stage, regions) for one in regions)


def _contiguous(bound: Bound, stage: BoundStage, region: Region) -> int:
    found = 0
    for span in reversed(bound.tile_map(stage.name, region).spans):
        if span.kind == "point":
            if span.extent != 1:
                return found
            continue
        found += 1
        if not _whole(stage, span):
            return found
    return found


def _whole(stage: BoundStage, span: Span) -> bool:
    """True if a span is all of its dimension in every tile."""
    if span.kind == "whole":
        return True
    if span.kind != "tile" or span.index is None or span.counted:
        return False
    return stage.count(span.index) == 1 and span.start == const(0) and stage.extents[span.index] == span.extent


def contiguous(lo: Ints, hi: Ints, shape: Sequence[int]) -> NDArray[np.bool_]:
    """Mask of the boxes, [rows, dims], that are contiguous in a tensor of that shape."""
    dims = len(shape)
    size = hi[:, :dims] - lo[:, :dims]
    good = np.ones(len(lo), bool)
    whole = np.ones(len(lo), bool)
    for d in reversed(range(dims)):
        good &= (size[:, d] == 1) | whole
        whole &= size[:, d] == shape[d]
    return good


def parts(lo: Ints, hi: Ints, shape: Sequence[int]) -> Ints:
    """Return the number of contiguous parts of each box, [rows, dims], of a tensor of that shape."""
    dims = len(shape)
    size = hi[:, :dims] - lo[:, :dims]
    count = np.ones(len(lo), np.int64)
    whole = np.ones(len(lo), bool)
    for d in reversed(range(dims)):
        count *= np.where(whole, 1, size[:, d])
        whole &= size[:, d] == shape[d]
    return count
