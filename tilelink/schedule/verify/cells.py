"""Boxes of one tensor on one rank cut into the cells between all their edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from tilelink.schedule.plan import Ints, Plan


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A grid of cells; `edges[d]` are the sorted coordinates along dimension d."""

    edges: tuple[Ints, ...]

    @classmethod
    def between(cls, lo: Ints, hi: Ints, shape: tuple[int, ...]) -> Cells:
        """The cells between the edges of all boxes and of the tensor."""
        edges = [np.unique(np.concatenate([lo[:, d], hi[:, d], [0, n]])) for d, n in enumerate(shape)]
        return cls(edges=tuple(edges))

    def locate(self, lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
        """Boxes in cell coordinates, [rows, dims]."""
        low = [np.searchsorted(e, lo[:, d]) for d, e in enumerate(self.edges)]
        high = [np.searchsorted(e, hi[:, d]) for d, e in enumerate(self.edges)]
        return np.stack(low, axis=1), np.stack(high, axis=1)

    def paint(self, low: Ints, high: Ints, weight: Ints) -> Ints:
        """Per cell the sum of the weights of the boxes that cover it."""
        grid = np.zeros([len(e) for e in self.edges], np.int64)
        for corner in product((0, 1), repeat=len(self.edges)):
            ends = tuple(np.where(c, high[:, d], low[:, d]) for d, c in enumerate(corner))
            np.add.at(grid, ends, weight * (-1) ** sum(corner))
        for d in range(grid.ndim):
            grid = np.cumsum(grid, axis=d)
        return grid[tuple(slice(0, -1) for _ in self.edges)]

    def sums(self, grid: Ints, low: Ints, high: Ints) -> Ints:
        """The sum of a grid over each box."""
        total = np.pad(grid, [(1, 0)] * grid.ndim)
        for d in range(grid.ndim):
            total = np.cumsum(total, axis=d)
        result = np.zeros(len(low), np.int64)
        for corner in product((0, 1), repeat=grid.ndim):
            ends = tuple(np.where(c, high[:, d], low[:, d]) for d, c in enumerate(corner))
            result += total[ends] * (-1) ** (grid.ndim - sum(corner))
        return result


def groups(plan: Plan) -> Iterator[tuple[str, int, Ints]]:
    """(tensor, rank it lies on, rows of plan.accesses) for every tensor of every rank that is touched."""
    accesses = plan.accesses
    if not len(accesses.task):
        return
    names = {t.number: name for name, t in plan.bound.tensors.items()}
    key = accesses.tensor * plan.bound.ranks + accesses.peer
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        number, rank = divmod(int(key[rows[0]]), plan.bound.ranks)
        yield names[number], rank, rows
