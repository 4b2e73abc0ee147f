"""Boxes of one tensor on several ranks, cut into the cells between all their edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from tilelink.errors import ScheduleError, VerificationError
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import WRITE
from tilelink.planning.plan import Plan
from tilelink.verifier.segments import InOrder, in_order

MAX_CELLS = 2**28
"""Cells of a tensor on a rank, at most. Their counts take gigabytes."""
MAX_ROWS = 2**18
"""Accesses of several ranks that are checked together, at most: this bounds the memory of the check."""
FEW_COORDINATES = 2**12
"""Coordinates of a dimension that are numbered one by one rather than searched for, besides some for each access."""
ROOMY = 8
"""Cells per access, at most, in a check of several ranks together. More cells mean that the tiles of these ranks have
different edges, and the ranks are checked apart."""


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A grid of cells for each of `ranks` ranks; `edges[d]` are the sorted coordinates along dimension d.

    Boxes in cell coordinates are [rows, 1 + dims]; column 0 is the position of the rank in the grid.
    """

    ranks: int
    edges: tuple[Ints, ...]

    @classmethod
    def between(cls, lo: Ints, hi: Ints, shape: tuple[int, ...], ranks: int = 1) -> Cells:
        """The cells between the edges of all boxes and of the tensor."""
        edges: list[Ints] = []
        for d, n in enumerate(shape):
            if n > FEW_COORDINATES + 4 * len(lo):
                edges.append(np.unique(np.concatenate([lo[:, d], hi[:, d], [0, n]])))
                continue
            there = np.zeros(max(n, int(hi[:, d].max(initial=0))) + 1, bool)
            there[lo[:, d]] = there[hi[:, d]] = there[0] = there[n] = True
            edges.append(np.flatnonzero(there))
        return cls(ranks=ranks, edges=tuple(edges))

    def _edge_numbers(self, d: int, ends: Ints) -> Ints:
        """Return for each coordinate along a dimension the number of the first edge that is not below it."""
        edges = self.edges[d]
        if edges[-1] > FEW_COORDINATES + 4 * len(ends):
            return np.searchsorted(edges, ends)
        return np.searchsorted(edges, np.arange(edges[-1] + 1))[ends]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.ranks, *(len(e) - 1 for e in self.edges))

    def locate(self, lo: Ints, hi: Ints, rank: Ints | int = 0) -> tuple[Ints, Ints]:
        """Return boxes in cell coordinates, (low, high); rank: the position in the grid of each box's rank."""
        low, high = (np.empty((len(lo), 1 + len(self.edges)), np.int64) for _ in range(2))
        low[:, 0] = rank
        high[:, 0] = low[:, 0] + 1
        for d in range(len(self.edges)):
            low[:, d + 1] = self._edge_numbers(d, lo[:, d])
            high[:, d + 1] = self._edge_numbers(d, hi[:, d])
        return low, high

    def covering(self, ends: Ints) -> Ints:
        """Return ends of boxes, [rows, dims], in cell coordinates; one inside a cell is that of the cell."""
        cells = np.empty((len(ends), len(self.edges)), np.int64)
        for d in range(len(self.edges)):
            cells[:, d] = self._edge_numbers(d, ends[:, d])
        return cells

    def paint(self, low: Ints, high: Ints, weight: Ints | int) -> Ints:
        """Return for each cell the sum of the weights of the boxes that cover it."""
        shape = (self.ranks, *(len(e) for e in self.edges))
        flat = np.zeros(prod(shape), np.int64)
        for corner, sign in _corners(low, high, shape):
            if isinstance(weight, int):
                flat += sign * weight * np.bincount(corner, minlength=len(flat))
            else:
                np.add.at(flat, corner, weight * sign)
        grid = flat.reshape(shape)
        for d in range(1, grid.ndim):
            np.cumsum(grid, axis=d, out=grid)
        return np.ascontiguousarray(grid[(slice(None), *(slice(0, -1) for _ in self.edges))])

    def sums(self, grid: np.ndarray, low: Ints, high: Ints) -> Ints:
        """Return the sum of a grid over each box."""
        total = np.zeros([self.ranks, *(len(e) for e in self.edges)], np.int64)
        total[(slice(None), *(slice(1, None) for _ in self.edges))] = grid
        for d in range(1, total.ndim):
            np.cumsum(total, axis=d, out=total)
        result = np.zeros(len(low), np.int64)
        for corner, sign in _corners(low, high, total.shape):
            result += total.reshape(-1)[corner] * (sign if len(self.edges) % 2 == 0 else -sign)
        return result


def _corners(low: Ints, high: Ints, shape: tuple[int, ...]) -> Iterator[tuple[Ints, int]]:
    """Yield every corner of boxes of a grid: its index in the raveled grid, and its sign, 1 for an even number of upper
    ends and -1 for an odd number."""
    steps = [prod(shape[d + 1 :]) for d in range(len(shape))]
    ends = [(low[:, d] * step, high[:, d] * step) for d, step in enumerate(steps) if d]
    for corner in product((0, 1), repeat=len(ends)):
        yield sum((pair[c] for pair, c in zip(ends, corner, strict=True)), low[:, 0] * steps[0]), (-1) ** sum(corner)


@dataclass(frozen=True, kw_only=True)
class TensorAccesses:
    """The accesses of one tensor on several ranks, as rows of plan.accesses, rank by rank."""

    plan: Plan
    name: str
    every: Ints
    """All accesses, with the empty ones, which `rows` leaves out."""

    @property
    def dims(self) -> int:
        return len(self.plan.bound.tensors[self.name].shape)

    @cached_property
    def in_order(self) -> InOrder | None:
        """All accesses in coordinates in which a launch decides nothing, if it decides where the tensor is written."""
        return in_order(self.plan, self.plan.bound.tensors[self.name], self.every)

    @cached_property
    def _coordinates(self) -> InOrder:
        """All accesses as boxes."""
        a, tensor = self.plan.accesses, self.plan.bound.tensors[self.name]
        return self.in_order or InOrder(lo=a.lo[self.every], hi=a.hi[self.every], shape=tensor.shape)

    def box_of(self, rows: Ints) -> InOrder:
        """Return some accesses, rows of plan.accesses, as boxes."""
        order = np.argsort(self.every)
        at = order[np.searchsorted(self.every, rows, sorter=order)]
        found = self._coordinates
        return InOrder(lo=found.lo[at, : self.dims], hi=found.hi[at, : self.dims], shape=found.shape)

    @cached_property
    def ranks(self) -> Ints:
        return np.flatnonzero(np.bincount(self.plan.accesses.peer[self.every]))

    @cached_property
    def rows(self) -> Ints:
        return self.every[self._there]

    @cached_property
    def _there(self) -> np.ndarray:
        found = self._coordinates
        return np.all(found.hi[:, : self.dims] > found.lo[:, : self.dims], axis=1)

    @cached_property
    def written(self) -> np.ndarray:
        """Mask of the writes among `rows`."""
        return self.plan.accesses.kind[self.rows] == WRITE

    @cached_property
    def cells(self) -> Cells:
        tensor, found = self.plan.bound.tensors[self.name], self._coordinates
        cells = Cells.between(found.lo[self._there], found.hi[self._there], found.shape, len(self.ranks))
        if len(self.ranks) == 1 and (count := prod(cells.shape)) > MAX_CELLS:  # several ranks are taken apart first
            message = f"the edges of tiles cut {self.name} into {count:,} parts"
            hint = f"a proof holds {MAX_CELLS:,}: take the same tiles in all stages that access it, or larger ones"
            raise ScheduleError(message, location=tensor.decl.location, hint=hint)
        return cells

    @cached_property
    def boxes(self) -> tuple[Ints, Ints]:
        """`rows` in cell coordinates."""
        return self._located(np.ones(len(self.rows), bool))

    @cached_property
    def count(self) -> Ints:
        """Number of writes of each cell."""
        return self.cells.paint(*self._located(self.written), 1)  # reads are often far more

    def _located(self, some: np.ndarray) -> tuple[Ints, Ints]:
        """Return some of `rows` in cell coordinates, by a mask."""
        ranks = np.searchsorted(self.ranks, self.plan.accesses.peer[self.rows[some]])
        lo, hi = (ends[self._there][some] for ends in (self._coordinates.lo, self._coordinates.hi))
        return self.cells.locate(lo, hi, ranks)

    @property
    def fits(self) -> bool:
        """True if the ranks can be checked together: one rank, or few enough accesses and cells."""
        if len(self.ranks) == 1:
            return True
        return len(self.every) <= MAX_ROWS and prod(self.cells.shape) <= ROOMY * len(self.every)

    def halves(self) -> Iterator[TensorAccesses]:
        """Yield the accesses of the first half of the ranks, then those of the second half."""
        cut = np.searchsorted(self.plan.accesses.peer[self.every], self.ranks[len(self.ranks) // 2])
        for rows in (self.every[:cut], self.every[cut:]):
            yield TensorAccesses(plan=self.plan, name=self.name, every=rows)


def parts(plan: Plan, chosen: np.ndarray) -> Iterator[TensorAccesses]:
    """Yield the chosen accesses tensor by tensor, in the order of ranks. Ranks whose tiles have the same edges stay
    together."""
    a = plan.accesses
    names = {t.number: name for name, t in plan.bound.tensors.items()}
    order = plan.by_memory[chosen[plan.by_memory]]
    starts = np.flatnonzero(np.diff(a.tensor[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else ():
        todo = [TensorAccesses(plan=plan, name=names[int(a.tensor[rows[0]])], every=rows)]
        while todo:
            part = todo.pop()
            if part.fits:
                yield part
            else:
                todo.extend(reversed([*part.halves()]))


def of_tensors(plan: Plan, *spaces: str) -> np.ndarray:
    """Mask of the accesses whose tensor is in one of `spaces`."""
    return plan.touching([t.number for t in plan.bound.tensors.values() if t.decl.space in spaces])


Check = Callable[[TensorAccesses], Iterator[VerificationError]]


def rank_by_rank(part: TensorAccesses, check: Check) -> Iterator[VerificationError]:
    """Yield the refusals of a check of each rank's accesses, in the order of ranks.

    The check runs once on all ranks together, and rank by rank only if that is refused. It must refuse the accesses of
    several ranks exactly if it refuses those of one of them.
    """
    if len(part.ranks) == 1:
        yield from check(part)
    elif next(check(part), None) is not None:
        for half in part.halves():
            yield from rank_by_rank(half, check)
