"""Columns of the plan: numpy arrays with one row for each task, access or signal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def join(parts: list[tuple[Ints, ...]], columns: int, dims: int) -> list[Ints]:
    if parts:
        return [np.concatenate([p[c] for p in parts]) for c in range(columns)]
    empty: list[Ints] = [np.zeros(0, np.int64) for _ in range(columns)]
    if dims:
        return [*empty[:-2], np.zeros((0, dims), np.int64), np.zeros((0, dims), np.int64)]
    return empty


def expand(low: Ints, high: Ints, counts: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Return all cells of boxes [low, high): the row that each comes from, and its linear index."""
    source = np.arange(len(low))
    linear = np.zeros(len(low), np.int64)
    for d, count in enumerate(counts):
        sizes = np.maximum(high[source, d] - low[source, d], 0)
        first = np.cumsum(sizes) - sizes
        steps = np.arange(int(sizes.sum())) - np.repeat(first, sizes)
        linear = np.repeat(linear, sizes) * count + np.repeat(low[source, d], sizes) + steps
        source = np.repeat(source, sizes)
    return source, linear
