"""Columns of the plan: numpy arrays with one row for each task, access or signal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MAX_KEY = 2**62
"""Bound of the keys that stand for rows of several columns."""


def join(parts: list[tuple[Ints, ...]], columns: int, dims: int) -> list[Ints]:
    if parts:
        return [np.concatenate([p[c] for p in parts]) for c in range(columns)]
    empty: list[Ints] = [np.zeros(0, np.int64) for _ in range(columns)]
    if dims:
        return [*empty[:-2], np.zeros((0, dims), np.int64), np.zeros((0, dims), np.int64)]
    return empty


def distinct_rows(columns: list[Ints]) -> tuple[Ints, Ints]:
    """Return the first row of each distinct one, in lexicographic order, and for each row the place of its like.

    columns: of equal length, at least one row. As np.unique with an axis, which compares rows of bytes and takes
    about ten times as long.
    """
    keys, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low = int(column.min())
        width = int(column.max()) - low + 1
        if size * width > MAX_KEY:
            keys = np.unique(keys, return_inverse=True)[1]
            size = int(keys.max()) + 1
        keys, size = keys * width + (column - low), size * width
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return first, which


def expand(low: Ints, high: Ints, counts: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Return all cells of boxes [low, high): the row that each comes from, and its linear index."""
    source = np.arange(len(low))
    linear = np.zeros(len(low), np.int64)
    if bool(((high - low) == 1).all()):  # as most are, of channels that are no smaller than tiles
        for d, count in enumerate(counts):
            linear = linear * count + low[:, d]
        return source, linear
    for d, count in enumerate(counts):
        sizes = np.maximum(high[source, d] - low[source, d], 0)
        first = np.cumsum(sizes) - sizes
        steps = np.arange(int(sizes.sum())) - np.repeat(first, sizes)
        linear = np.repeat(linear, sizes) * count + np.repeat(low[source, d], sizes) + steps
        source = np.repeat(source, sizes)
    return source, linear
