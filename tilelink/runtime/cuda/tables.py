"""Integer tables in device memory, for kernels and helper kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from tilelink.artifact import Artifact, SignalGrid
from tilelink.runtime.cuda.record_copies import StreamWrite


def int32(rows: Sequence[Sequence[int]] | Sequence[int], device: torch.device) -> torch.Tensor:
    """Return the rows on the device; a single zero if there are none, because a kernel takes no null pointer."""
    return torch.tensor(rows if len(rows) else [0], dtype=torch.int32, device=device)


def exits(artifact: Artifact, rank: int, gated: Collection[int]) -> list[tuple[int, int, int, int]]:
    """Return rows (first counter, buffers, counters of a buffer, threshold) of peers' notifies in symmetric outputs.

    Counters that the copy engine waits for and resets to zero are left out.
    """
    outputs = {t.name for t in artifact.tensors if t.symmetric and t.space == "out"}
    return [
        (grid.base + number, grid.buffers, grid.count, threshold)
        for grid in artifact.grids
        if grid.tensor in outputs
        for number, threshold in enumerate(grid.thresholds[rank].tolist())
        if threshold and grid.base + number not in gated
    ]


def counters(artifact: Artifact, rank: int, gated: set[int]) -> list[tuple[int, int, int]]:
    """Return rows (threshold, buffer, buffers) of the pad's counters.

    The threshold is 0 for counters that a wait of the copy engine resets to zero.
    """
    rows = [(0, 0, 1)] * artifact.entered_base
    for grid in artifact.grids:
        for buffer in range(grid.buffers):
            for number, threshold in enumerate(grid.thresholds[rank].tolist()):
                channel = grid.base + buffer * grid.count + number
                rows[channel] = (0 if channel in gated else threshold, buffer, grid.buffers)
    return rows


def flag_rows(
    flags: Sequence[StreamWrite], own: Collection[int], artifact: Artifact
) -> list[tuple[int, int, int, int, int]]:
    """Return rows (step, count, buffers, counter, counters of a buffer) of the copy engine's notifies, by number.

    own: numbers of those that the rank sends to itself before its kernels start. For all others the counter is -1. If a
    counter has several notifies, the last one counts.
    """
    last = {(f.rank, f.channel): f.number for f in flags}
    rows: list[tuple[int, int, int, int, int]] = []
    for flag in flags:
        grid = next(g for g in artifact.grids if g.base <= flag.channel < g.base + g.buffers * g.count)
        mine = flag.number in own and last[flag.rank, flag.channel] == flag.number
        counter = grid.base + (flag.channel - grid.base) % grid.count if mine else -1
        rows.append((flag.step, flag.count, flag.buffers, counter, grid.count))
    return rows


def thresholds(grid: SignalGrid, rank: int, device: torch.device) -> torch.Tensor:
    """Return the notifies of each counter of one buffer in a launch."""
    return int32(grid.thresholds[rank].tolist(), device)
