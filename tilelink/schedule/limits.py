"""How large a plan may get: every tile and every channel of every rank is a row of it."""

from __future__ import annotations

from tilelink.errors import ScheduleError
from tilelink.schedule.bound import Bound

MOST_TILES = 1 << 22
"""A plan of so many takes minutes and gigabytes."""
MOST_CHANNELS = 1 << 26


def check_size(bound: Bound) -> None:
    """Raises ScheduleError for a program that no machine could plan, before any memory is asked for."""
    tiles = channels = 0
    for name, stage in bound.stages.items():
        tiles += stage.total * bound.ranks
        if tiles > MOST_TILES:
            message = f"stage {name} has {stage.total:,} tiles on each of {bound.ranks:,} ranks"
            hint = f"a plan holds {MOST_TILES:,} tiles: take larger tiles, smaller sizes or fewer ranks"
            raise ScheduleError(message, location=stage.stage.location, hint=hint)
    for (name, _), grid in bound.channels.items():
        channels += grid.count * bound.ranks
        if channels > MOST_CHANNELS:
            message = f"tensor {name} has {grid.count:,} channels on each of {bound.ranks:,} ranks"
            hint = f"a plan holds {MOST_CHANNELS:,} channels: make them coarser, or take smaller sizes or fewer ranks"
            raise ScheduleError(message, location=bound.tensors[name].decl.location, hint=hint)
