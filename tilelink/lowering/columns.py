"""Columns of the plan: numpy arrays with one row for each task, access or signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MAX_KEY = 2**62
"""Bound of the keys that stand for rows of several columns."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Rows of some kind, as a dataclass whose fields are their columns: arrays of equal length."""

    @classmethod
    def joined(cls, parts: Sequence[Self], **empty: NDArray[Any]) -> Self:
        """Return the rows of all parts. empty: columns without rows that are not integers, for no parts at all."""
        names = [one.name for one in fields(cls)]
        if not parts:
            return cls(**{name: empty.get(name, np.zeros(0, np.int64)) for name in names})
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    def pick(self, rows: NDArray[np.bool_] | Ints) -> Self:
        """Return some of the rows: those of a mask, or with the given numbers."""
        return type(self)(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})


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
