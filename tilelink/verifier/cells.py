"""Boxes of one tensor on some ranks cut into the cells between all their edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from tilelink.errors import VerificationError
from tilelink.lowering.columns import Ints
from tilelink.lowering.enumerate import WRITE
from tilelink.planning.plan import Plan

MOST_ROWS = 2**18
"""Accesses of several ranks that are looked at together: what bounds the memory that this takes."""
ROOMY = 8
"""Cells for each access that ranks may have together: more have ranks whose tiles have edges of their own."""


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A grid of cells for each of some ranks; `edges[d]` are the sorted coordinates along dimension d.

    Boxes in cell coordinates are [rows, 1 + dims]: the first one says which of the ranks.
    """

    ranks: int
    edges: tuple[Ints, ...]

    @classmethod
    def between(cls, lo: Ints, hi: Ints, shape: tuple[int, ...], ranks: int = 1) -> Cells:
        """The cells between the edges of all boxes and of the tensor."""
        edges = [np.unique(np.concatenate([lo[:, d], hi[:, d], [0, n]])) for d, n in enumerate(shape)]
        return cls(ranks=ranks, edges=tuple(edges))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.ranks, *(len(e) - 1 for e in self.edges))

    def locate(self, lo: Ints, hi: Ints, rank: Ints | int = 0) -> tuple[Ints, Ints]:
        """Boxes in cell coordinates; rank: which of the ranks each is on."""
        low, high = (np.empty((len(lo), 1 + len(self.edges)), np.int64) for _ in range(2))
        low[:, 0] = rank
        high[:, 0] = low[:, 0] + 1
        for d, edges in enumerate(self.edges):
            low[:, d + 1] = np.searchsorted(edges, lo[:, d])
            high[:, d + 1] = np.searchsorted(edges, hi[:, d])
        return low, high

    def paint(self, low: Ints, high: Ints, weight: Ints | int) -> Ints:
        """Per cell the sum of the weights of the boxes that cover it."""
        grid = np.zeros([self.ranks, *(len(e) for e in self.edges)], np.int64)
        for place, sign in _corners(low, high, grid.shape):
            np.add.at(grid.reshape(-1), place, weight * sign)
        for d in range(1, grid.ndim):
            np.cumsum(grid, axis=d, out=grid)
        return np.ascontiguousarray(grid[(slice(None), *(slice(0, -1) for _ in self.edges))])

    def sums(self, grid: np.ndarray, low: Ints, high: Ints) -> Ints:
        """The sum of a grid over each box."""
        total = np.zeros([self.ranks, *(len(e) for e in self.edges)], np.int64)
        total[(slice(None), *(slice(1, None) for _ in self.edges))] = grid
        for d in range(1, total.ndim):
            np.cumsum(total, axis=d, out=total)
        result = np.zeros(len(low), np.int64)
        for place, sign in _corners(low, high, total.shape):
            result += total.reshape(-1)[place] * (sign if len(self.edges) % 2 == 0 else -sign)
        return result


def _corners(low: Ints, high: Ints, shape: tuple[int, ...]) -> Iterator[tuple[Ints, int]]:
    """Every corner of boxes of a grid: its place in the raveled grid, and 1 or -1 as it is of an even or odd number of
    upper ends."""
    steps = [prod(shape[d + 1 :]) for d in range(len(shape))]
    ends = [(low[:, d] * step, high[:, d] * step) for d, step in enumerate(steps) if d]
    for corner in product((0, 1), repeat=len(ends)):
        yield sum((pair[c] for pair, c in zip(ends, corner, strict=True)), low[:, 0] * steps[0]), (-1) ** sum(corner)


@dataclass(frozen=True, kw_only=True)
class Part:
    """The accesses of one tensor on some ranks, as rows of plan.accesses, rank by rank."""

    plan: Plan
    name: str
    every: Ints
    """Also those of nothing, which `rows` leaves out."""

    @property
    def dims(self) -> int:
        return len(self.plan.bound.tensors[self.name].shape)

    @cached_property
    def ranks(self) -> Ints:
        return np.unique(self.plan.accesses.peer[self.every])

    @cached_property
    def rows(self) -> Ints:
        a, dims = self.plan.accesses, self.dims
        return self.every[(a.hi[self.every, :dims] > a.lo[self.every, :dims]).all(axis=1)]

    @cached_property
    def written(self) -> np.ndarray:
        """Which of `rows` are writes."""
        return self.plan.accesses.kind[self.rows] == WRITE

    @cached_property
    def cells(self) -> Cells:
        a, rows = self.plan.accesses, self.rows
        shape = self.plan.bound.tensors[self.name].shape
        return Cells.between(a.lo[rows], a.hi[rows], shape, len(self.ranks))

    @cached_property
    def boxes(self) -> tuple[Ints, Ints]:
        """`rows` in cell coordinates."""
        a, rows = self.plan.accesses, self.rows
        return self.cells.locate(a.lo[rows], a.hi[rows], np.searchsorted(self.ranks, a.peer[rows]))

    @cached_property
    def count(self) -> Ints:
        """How many writes each cell has."""
        low, high = self.boxes
        return self.cells.paint(low[self.written], high[self.written], 1)

    @property
    def fits(self) -> bool:
        """Whether it is small enough to be looked at in one piece."""
        if len(self.ranks) == 1:
            return True
        return len(self.every) <= MOST_ROWS and prod(self.cells.shape) <= ROOMY * len(self.every)

    def halves(self) -> Iterator[Part]:
        """Half of its ranks, then the others."""
        cut = np.searchsorted(self.plan.accesses.peer[self.every], self.ranks[len(self.ranks) // 2])
        for rows in (self.every[:cut], self.every[cut:]):
            yield Part(plan=self.plan, name=self.name, every=rows)


def parts(plan: Plan, chosen: np.ndarray) -> Iterator[Part]:
    """Some accesses: tensor by tensor, with ranks together whose tiles have the same edges, in the order of ranks."""
    a, rows = plan.accesses, np.flatnonzero(chosen)
    names = {t.number: name for name, t in plan.bound.tensors.items()}
    order = rows[np.argsort(a.tensor[rows] * plan.bound.ranks + a.peer[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(a.tensor[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else ():
        todo = [Part(plan=plan, name=names[int(a.tensor[rows[0]])], every=rows)]
        while todo:
            part = todo.pop()
            if part.fits:
                yield part
            else:
                todo.extend(reversed([*part.halves()]))


def of_tensors(plan: Plan, *spaces: str) -> np.ndarray:
    """Which accesses are of tensors of some spaces."""
    numbers = [t.number for t in plan.bound.tensors.values() if t.decl.space in spaces]
    return np.isin(plan.accesses.tensor, numbers)


Check = Callable[[Part], Iterator[VerificationError]]


def rank_by_rank(part: Part, check: Check) -> Iterator[VerificationError]:
    """The refusals of a check of each rank's accesses, in the order of ranks; where all is well, one look at them all.

    The check must refuse something of several ranks if it does of one of them, and only then.
    """
    if len(part.ranks) == 1:
        yield from check(part)
    elif next(check(part), None) is not None:
        for half in part.halves():
            yield from rank_by_rank(half, check)
