"""What traced launches leave behind, from the spans that their programs recorded, on CPU ranks and on GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilelink.ir.program import Assign, Store
from tilelink.ir.visitor import statements
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import NOTIFY
from tilelink.planning.plan import Plan
from tilelink.planning.traces import Pad
from tilelink.simulator.measured import RawSpan, fetching
from tilelink.stragglers.metrics import NUMBER, Floats, Table, keys_of, table_of

KINDS = {"tile": 0, "wait": 1, "notify": 2, "transfer": 3}
TILE, WAIT, TOLD, MOVED = range(4)


def table_of_spans(plan: Plan, spans: Sequence[RawSpan], first: int | None = None) -> Table:
    """Return what launches left. spans: as a run returns them, or `timeline()`; the clocks of ranks need not agree.

    first: the number of the first launch (None: launches are numbered by their epochs, from 0).
    """
    columns = [*zip(*spans, strict=True)]
    if not columns:
        return table_of([], first or 0)
    columns[2] = tuple(KINDS[kind] for kind in columns[2])  # pyright: ignore[reportArgumentType]
    return _Spans(plan, *(np.array(column, np.int64) for column in columns)).table(first)  # pyright: ignore


class _Spans:
    """Spans as columns. engine: mask of those of copy engines."""

    def __init__(
        self, plan: Plan, rank: Ints, track: Ints, kind: Ints, stage: Ints, tile: Ints, a: Ints, b: Ints, epoch: Ints,
        begin: Ints, end: Ints,
    ) -> None:  # fmt: skip
        self.plan, self.rank, self.track, self.kind, self.stage = plan, rank, track, kind, stage
        self.tile, self.a, self.b, self.begin, self.end = tile, a, b, begin, end
        self.zero = int(epoch.min())
        self.epoch = epoch - self.zero
        self.launches = int(self.epoch.max()) + 1
        self.seconds = (end - begin) * 1e-9
        kernels = [plan.bound.kernels[n] for n, r, _ in plan.workers if r == 0]
        self.on_engine = np.array([one.on_copy_engine for one in kernels], bool)
        self.first = np.array([one.position == 0 for one in kernels], bool) & ~self.on_engine
        """Masks of the tracks of a rank: of copy engines, and of kernels that wait for no other one."""
        self.engine = self.on_engine[track]

    def table(self, first: int | None) -> Table:
        found = [*self._work(), *self._moves(), *self._told(), *self._waits(), *self._whole()]
        keys, inverse = np.unique(np.concatenate([own for own, *_ in found]), return_inverse=True)
        flat = np.concatenate([epoch for _, epoch, *_ in found]) * len(keys) + inverse
        cells = self.launches * len(keys)
        total = np.bincount(flat, weights=np.concatenate([seconds for *_, seconds, _ in found]), minlength=cells)
        count = np.bincount(flat, weights=np.concatenate([counts for *_, counts in found]), minlength=cells)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = (total / count).astype(np.float32).reshape(self.launches, len(keys))
        counts = count.reshape(self.launches, len(keys)).max(axis=0).astype(np.float32)
        return Table(keys=keys, values=values, counts=counts, first=self.zero - 1 if first is None else first)

    def _rows(self, metric: str | Ints, rows: Ints, *, stage: bool = False, peer: Ints | int = -1, sm: bool = False,
              seconds: Floats | None = None, counts: float = 1.0) -> tuple[Ints, Ints, Floats, Floats]:  # fmt: skip
        """Return (columns, launches, seconds, counts) of some spans."""
        number = NUMBER[metric] if isinstance(metric, str) else metric
        keys = keys_of(number, self.rank[rows], self.stage[rows] if stage else -1, peer, self.track[rows] if sm else -1)
        own: Floats = self.seconds[rows].astype(np.float64) if seconds is None else seconds
        return keys, self.epoch[rows], own, np.full(len(rows), counts)

    def _work(self) -> list[tuple[Ints, Ints, Floats, Floats]]:
        """Return the tiles of stages that compute, without what they wait, notify and transfer."""
        computes = [
            stage.number
            for stage in self.plan.bound.stages.values()
            if any(isinstance(one, Assign | Store) for one in statements(stage.stage.body))
        ]
        mine = np.isin(self.stage, computes) & ~self.engine
        tiles, inside = np.flatnonzero(mine & (self.kind == TILE)), np.flatnonzero(mine & (self.kind != TILE))
        columns = (self.epoch, self.rank, self.track, self.stage, self.tile)
        place = np.ravel_multi_index(columns, [int(column.max()) + 1 for column in columns])
        _, at = np.unique(np.concatenate([place[tiles], place[inside]]), return_inverse=True)
        other = np.bincount(at[len(tiles) :], weights=self.seconds[inside], minlength=int(at.max(initial=0)) + 1)
        own = np.maximum(self.seconds[tiles] - other[at[: len(tiles)]], 0.0)
        return [self._rows("work", tiles, stage=True, sm=True, seconds=own)]

    def _moves(self) -> list[tuple[Ints, Ints, Floats, Floats]]:
        rows = np.flatnonzero(self.kind == MOVED)
        inward = np.isin(self.stage[rows], [*fetching(self.plan)]) & (self.a[rows] != self.rank[rows])
        metric = np.where(self.engine[rows], NUMBER["engine_out"], NUMBER["sm_out"]) + inward
        return [self._rows(metric, rows, stage=True, peer=self.a[rows])]

    def _told(self) -> list[tuple[Ints, Ints, Floats, Floats]]:
        """Return the notifies of programs, and what copy engines do besides waits and bytes: notifies and pauses."""
        rows = np.flatnonzero(self.engine & (self.kind != TILE))
        rows = rows[np.lexsort((self.begin[rows], self.track[rows], self.rank[rows], self.epoch[rows]))]
        same = np.ones(len(rows), bool)
        same[:1] = False
        for column in (self.epoch, self.rank, self.track):
            same[1:] &= column[rows[1:]] == column[rows[:-1]]
        pause = np.zeros(len(rows))
        pause[1:] = np.maximum(self.begin[rows[1:]] - self.end[rows[:-1]], 0) * 1e-9
        calls = np.where(same, pause, 0.0) + np.where(self.kind[rows] == TOLD, self.seconds[rows], 0.0)
        told = np.flatnonzero((self.kind == TOLD) & ~self.engine)
        return [self._rows("call", rows, seconds=calls), self._rows("notify", told)]

    def _waits(self) -> list[tuple[Ints, Ints, Floats, Floats]]:
        """Return the waits for other ranks, in each launch of the program that waits longest."""
        counted = ~self.engine if (~self.engine).any() else self.engine
        rows = np.flatnonzero((self.kind == WAIT) & counted)
        by = self._notifiers(rows)
        away = (by >= 0) & (by != self.rank[rows])
        rows, by = rows[away], by[away]
        ranks = self.plan.bound.ranks
        each = np.zeros((self.launches, ranks, int(self.track.max()) + 1, ranks))
        np.add.at(each, (self.epoch[rows], self.rank[rows], self.track[rows], by), self.seconds[rows])
        longest = each.max(axis=2)
        epoch, rank, peer = np.nonzero(longest)
        keys = keys_of(NUMBER["wait"], rank, -1, peer)
        return [(keys, epoch, longest[epoch, rank, peer], np.ones(len(epoch)))]

    def _notifiers(self, rows: Ints) -> Ints:
        """Return the rank that notified last for each of these waits, -1 if it is not known."""
        plan, pad = self.plan, Pad(self.plan)
        bound, signals = plan.bound, plan.signals
        told = np.flatnonzero(signals.kind == NOTIFY)
        whom, channels = plan.each_channel(told)
        sources: dict[tuple[int, int], set[int]] = {}
        own, target = plan.task_ranks[signals.task[whom]].tolist(), signals.peer[whom].tolist()
        for by, rank, channel in zip(own, target, channels.tolist(), strict=True):
            sources.setdefault((rank, channel), set()).add(by)
        order = np.argsort(self.end, kind="stable")
        order = order[self.kind[order] == TOLD]
        seen = zip(*(c[order].tolist() for c in (self.epoch, self.a, self.b, self.rank)), strict=True)
        last = {(epoch, rank, place): by for epoch, rank, place, by in seen}
        found: list[int] = []
        waits = zip(*(c[rows].tolist() for c in (self.epoch, self.rank, self.a)), strict=True)
        for epoch, rank, place in waits:
            if place >= min(bound.entered_base, bound.finished_base):
                base = max(b for b in (bound.entered_base, bound.finished_base) if b <= place)
                found.append(place - base if place - base < bound.ranks else -1)
                continue
            known = sources.get((rank, pad.place(place, epoch + self.zero)[0]), set[int]())
            found.append(next(iter(known)) if len(known) == 1 else last.get((epoch, rank, place), -1))
        return np.array(found, np.int64)

    def _whole(self) -> list[tuple[Ints, Ints, Floats, Floats]]:
        """Return the gaps before launches, of the program with the shortest one, the seconds of launches, and those
        until all programs that need not wait for other kernels have begun."""
        ranks, tracks = int(self.rank.max()) + 1, int(self.track.max()) + 1
        shape = (self.launches, ranks, tracks)
        begin, end = np.full(shape, np.inf), np.full(shape, -np.inf)
        at = (self.epoch, self.rank, self.track)
        zero = int(self.begin.min())
        np.minimum.at(begin, at, (self.begin - zero) * 1e-9)
        np.maximum.at(end, at, (self.end - zero) * 1e-9)
        gap = np.full((self.launches, ranks), np.nan)
        gap[1:] = np.maximum((begin[1:] - end[:-1]).min(axis=2), 0.0)
        took = end.max(axis=2) - begin.min(axis=2)
        first = np.where(np.isfinite(begin) & self.first[:tracks], begin, -np.inf).max(axis=2, initial=-np.inf)
        start = first - begin.min(axis=2)
        result: list[tuple[Ints, Ints, Floats, Floats]] = []
        for name, values in (("gap", gap), ("took", took), ("start", start)):
            epoch, rank = np.nonzero(np.isfinite(values))
            result.append((keys_of(NUMBER[name], rank), epoch, values[epoch, rank], np.ones(len(epoch))))
        return result
