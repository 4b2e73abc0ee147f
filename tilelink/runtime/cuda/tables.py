"""Integer tables in device memory that kernels and helper kernels read."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from tilelink.artifact import Artifact, SignalGrid
from tilelink.runtime.cuda.record_copies import StreamWrite


def int32(rows: Sequence[Sequence[int]] | Sequence[int], device: torch.device) -> torch.Tensor:
    """The rows on the device; one zero where there are none, since a kernel takes no null pointer."""
    return torch.tensor(rows if len(rows) else [0], dtype=torch.int32, device=device)


def exits(artifact: Artifact, rank: int, gated: Collection[int]) -> list[tuple[int, int, int, int]]:
    """(first counter, buffers, counters of a buffer, threshold) of all that peers notify in symmetric outputs.

    But for the counters that the copy engine waits for and puts back to zero.
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
    """(threshold, buffer, buffers) of each counter of the pad; 0 notifies for those that are zeroed by a gate."""
    rows = [(0, 0, 1)] * artifact.entered_base
    for grid in artifact.grids:
        for slot in range(grid.buffers):
            for number, threshold in enumerate(grid.thresholds[rank].tolist()):
                channel = grid.base + slot * grid.count + number
                rows[channel] = (0 if channel in gated else threshold, slot, grid.buffers)
    return rows


def flag_rows(
    flags: Sequence[StreamWrite], own: Collection[int], artifact: Artifact
) -> list[tuple[int, int, int, int, int]]:
    """(step, count, buffers, counter, counters of a buffer) of the copy engine's notifies, by their numbers.

    own: the numbers of those that the rank sends itself before its kernels start; of others the counter is -1. The
    last of several notifies of a counter is the one that counts.
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
    """The notifies of each counter of one buffer in a launch."""
    return int32(grid.thresholds[rank].tolist(), device)
