"""The channels of a bound program: a grid of counters for each (tensor, kind) that is notified or awaited."""

from __future__ import annotations

from tilelink.errors import TileSizeError
from tilelink.ir.intervals import Bounds
from tilelink.ir.mapping import ChannelGrid, map_region
from tilelink.ir.program import Notify, Region, Wait
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.clauses.channel import CHANNEL, dims_called
from tilelink.lowering.transform import number_of


def grids_of(bound: Bound) -> dict[tuple[str, str], ChannelGrid]:
    """Return a grid for every (tensor, kind) that is notified or awaited: first those that are notified."""
    grids: dict[tuple[str, str], ChannelGrid] = {}
    for kind_of in (Notify, Wait):
        for stage in bound.stages.values():
            for statement in statements(stage.stage.body):
                if not isinstance(statement, kind_of) or (statement.region.tensor, statement.kind) in grids:
                    continue
                tensor, kind = statement.region.tensor, statement.kind
                sizes = _sizes(bound, stage, statement.region)
                counts = tuple(-(-n // g) for n, g in zip(bound.tensors[tensor].shape, sizes, strict=True))
                buffers = bound.tensors[tensor].buffers
                grids[tensor, kind] = ChannelGrid(
                    tensor=tensor, kind=kind, sizes=sizes, counts=counts, base=0, buffers=buffers
                )
    return grids


def _sizes(bound: Bound, stage: BoundStage, region: Region) -> tuple[int, ...]:
    """Return the elements that share a counter: those of a tile of the stage, or what the schedule says."""
    tensor = bound.tensors[region.tensor]
    spans = map_region(
        region,
        tensor.shape,
        stage.tiles,
        stage.extents,
        stage.scalar_indices,
        bounds=Bounds(ranks=bound.ranks),
        number=lambda size: number_of(size, bound.numbers, bound.ranks),
    ).spans
    sizes = [max(1, s.size) for s in spans]
    part = bound.schedule.tensor(tensor.name)
    for key, size in part[CHANNEL]:
        dims = dims_called(bound.program, tensor.decl, key)
        if not dims:
            hint = "name a dimension, or an index that runs along one"
            message = f"channel({key}={size}): {tensor.name} has no dimension {key!r}"
            raise TileSizeError(message, location=part.at(f"channel.{key}"), hint=hint)
        for d in dims:
            sizes[d] = max(1, min(size, tensor.shape[d]))  # a dimension may have no elements
    return tuple(sizes)
