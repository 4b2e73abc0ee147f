"""Overlapping accesses of a tensor: pairs of a write and another access that have an element in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilelink.lowering.columns import Ints, distinct_rows, expand
from tilelink.lowering.events import READ
from tilelink.verifier.cells import TensorAccesses

MAX_CELLS = 2**22
"""Cells of boxes that are expanded together, at most: this bounds the memory of the search."""


@dataclass(frozen=True, kw_only=True)
class Meetings:
    """Writes of a tensor and the distinct boxes of other accesses with which they overlap, as pairs (box, write).

    Of a box in which a launch decides what an access names, and which therefore is all of the tensor, there may be very
    many accesses: what is asked of the box is asked once for all of them.

    others: rows of plan.accesses, box by box; those of box n are `others[starts[n] : starts[n + 1]]`.
    """

    others: Ints
    starts: Ints
    box: Ints
    write: Ints
    """A row of plan.accesses."""

    def only(self, some: NDArray[np.bool_]) -> Meetings:
        """Return some of the pairs (box, write)."""
        return replace(self, box=self.box[some], write=self.write[some])

    def unlike(self, values: Ints) -> Meetings:
        """Return the first one of the others of each box that have one value. values: one for each of the others."""
        if not len(self.others):
            return self
        box = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        first = np.sort(distinct_rows([box, values])[0])
        return replace(self, others=self.others[first], starts=np.searchsorted(first, self.starts))

    def pairs(self) -> tuple[Ints, Ints]:
        """Return the rows of plan.accesses, (write, other), of all pairs."""
        begin, end = self.starts[self.box], self.starts[self.box + 1]
        source, at = expand(begin[:, None], end[:, None], (len(self.others),))
        return self.write[source], self.others[at]


def meetings(part: TensorAccesses, others: Ints) -> Meetings:
    """Return which writes overlap with other accesses, given by their numbers among part.rows."""
    rows = part.rows
    writes = np.flatnonzero(part.written)
    none = rows[:0]
    if not len(writes) or not len(others):
        return Meetings(others=none, starts=np.zeros(1, np.int64), box=none, write=none)
    low, high = part.boxes
    crowd, crowded = _crowded(part, writes)
    (first_low, first_high), group = _different(low[others], high[others], part.count.shape)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(first_low) + 1))
    where, owners = _owners(part, writes, first_low, first_high)
    if len(crowded):
        also, who = _crowds(part, crowd, crowded, first_low, first_high)
        where, owners = np.concatenate([where, also]), np.concatenate([owners, who])
        by_box = np.argsort(where, kind="stable")
        where, owners = where[by_box], owners[by_box]
    return Meetings(others=rows[others[order]], starts=starts, box=where, write=rows[owners])


def pairs(
    part: TensorAccesses, kind: int, *, same_task: bool = False, without: Ints | None = None
) -> tuple[Ints, Ints]:
    """Return the (write, other) rows of plan.accesses that overlap; `kind` is the kind of the other access.

    Two writes belong to different tasks. With `same_task`, pairs of writes of one task are returned too. without: rows
    of others that are left out.
    """
    if kind == READ:
        return meetings(part, reads_of(part, without)).pairs()
    first, second = meetings(part, _crowded(part, np.flatnonzero(part.written))[1]).pairs()
    a = part.plan.accesses
    apart = (first != second) if same_task else (a.task[first] != a.task[second])
    return first[apart], second[apart]


def reads_of(part: TensorAccesses, without: Ints | None = None) -> Ints:
    """Return the numbers of the reads among part.rows. without: rows of reads that are left out."""
    reads = np.flatnonzero(~part.written)
    return reads if without is None else reads[~np.isin(part.rows[reads], without)]


def _crowded(part: TensorAccesses, writes: Ints) -> tuple[np.ndarray, Ints]:
    """Return a mask of the cells with several writes, and those of some writes that cover one."""
    crowd = part.count > 1
    if not crowd.any():
        return crowd, writes[:0]
    low, high = part.boxes
    return crowd, writes[part.cells.sums(crowd, low[writes], high[writes]) > 0]


def _different(low: Ints, high: Ints, shape: tuple[int, ...]) -> tuple[tuple[Ints, Ints], Ints]:
    """Return the distinct boxes, in order, and for each box its number among them."""
    key = np.zeros(len(low), np.int64)
    for column, size in zip((*low.T, *high.T), (*shape, *(n + 1 for n in shape)), strict=True):
        key = key * size + column
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    return (low[first], high[first]), group.ravel()


def _owners(part: TensorAccesses, writes: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return sorted pairs (box [low, high) of cells, write) with each write that is alone in a cell of the box."""
    own_low, own_high = part.boxes
    owner = part.cells.paint(own_low[writes], own_high[writes], writes).reshape(-1)
    alone = part.count.reshape(-1) == 1
    found: list[Ints] = []
    for some in portions(np.prod(high - low, axis=1)):
        source, cell = expand(low[some], high[some], part.count.shape)
        mine = alone[cell]
        found.append(np.unique(some[source[mine]] * len(part.rows) + owner[cell[mine]]))
    keys = np.concatenate(found)
    return keys // len(part.rows), keys % len(part.rows)


def _crowds(part: TensorAccesses, crowd: np.ndarray, crowded: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return sorted pairs (box, write) with each crowded write that covers a crowded cell of the box.

    A crowded cell has several writes. The pairs are found cell by cell, or, if the boxes share too many crowded cells,
    by comparing each box with all crowded writes of its rank.
    """
    own_low, own_high = part.boxes[0][crowded], part.boxes[1][crowded]
    touching = np.flatnonzero(part.cells.sums(crowd, low, high))
    by_cell = part.cells.sums(np.where(crowd, part.count, 0), low[touching], high[touching])
    begin, end = (np.searchsorted(own_low[:, 0], low[touching, 0], side=side) for side in ("left", "right"))
    found: list[Ints] = []
    if int(by_cell.sum()) > int((end - begin).sum()):
        for some in portions(end - begin):
            source, who = expand(begin[some][:, None], end[some][:, None], (len(crowded),))
            box = touching[some[source]]
            meet = ((own_low[who] < high[box]) & (low[box] < own_high[who])).all(axis=1)
            found.append(box[meet] * len(crowded) + who[meet])
    else:
        source, cell = expand(own_low, own_high, crowd.shape)
        order = np.argsort(cell, kind="stable")
        by, cell = source[order], cell[order]
        for some in portions(by_cell):
            source, where = expand(low[touching[some]], high[touching[some]], crowd.shape)
            busy = crowd.reshape(-1)[where]
            box, where = touching[some[source[busy]]], where[busy]
            first, last = (np.searchsorted(cell, where, side=side) for side in ("left", "right"))
            source, at = expand(first[:, None], last[:, None], (len(by),))
            found.append(np.unique(box[source] * len(crowded) + by[at]))
    keys = np.concatenate(found) if found else crowded[:0]
    return keys // len(crowded), crowded[keys % len(crowded)]


def portions(sizes: Ints) -> Iterator[Ints]:
    """Yield 0, 1, ..., len(sizes) - 1 in portions whose sizes sum to about MAX_CELLS at most."""
    total = np.cumsum(sizes)
    yield from np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(total // MAX_CELLS)) + 1)
