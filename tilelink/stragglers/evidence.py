"""Evidence of launches: how much slower each column is than it should be, in windows of launches and in each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilelink.lowering.columns import Ints
from tilelink.stragglers.metrics import MOVES, NUMBER, Floats, Traces, split

Bools = NDArray[np.bool_]
WINDOWS = 48
"""Windows of launches, at most."""
SHORTEST = 10
"""Launches of a window, at least."""
HEALTHY = 0.15
"""Quantile of windows that shows how fast a part is when nothing slows it down."""
AROUND = 3
"""Windows before and after that say what is usual in one."""
NEGLIGIBLE = 0.05
"""Part of the seconds of the dearest transfers of a rank up to which others of it tell nothing."""
COSTS = 0.005
"""Part of a launch that a cause takes, at least."""
COSTS_TRACED = 0.05
"""The same of traced launches: records take time themselves, and clocks of copy engines are good for microseconds."""


class Evidence:
    """Evidence of launches: how much slower each column is than it should be, in windows of launches."""

    def __init__(self, traces: Traces) -> None:
        self.traces, table = traces, traces.table
        self.metric, self.rank, self.stage, self.peer, self.sm = split(table.keys)
        self.ranks = traces.ranks
        waits = self.of("wait")
        self.values, self.counts = table.values.copy(), table.counts.astype(np.float64)
        self.values[:, waits] = np.nan_to_num(self.values[:, waits])  # a launch without waits has no number of them
        self._apart()
        self.launches = len(table.values)
        windows = max(1, min(WINDOWS, self.launches // SHORTEST))
        self.edges = np.linspace(0, self.launches, windows + 1).astype(np.int64)
        self.additive = self.of("gap", "wait", "took", "start")
        self.far = self._far()
        took = table.values[:, self.metric == NUMBER["took"]]
        self.took = float(np.nanmedian(took)) if np.isfinite(took).any() else 1.0
        self.least = COSTS_TRACED if traces.programs else COSTS

    def _apart(self) -> None:
        """Take from the gaps of each launch what most ranks have: hosts that wait for each launch begin it together."""
        own = np.flatnonzero(self.of("gap"))
        self.gap = 0.0
        """Seconds of the gaps that most ranks have in common."""
        if len(own):
            common = np.nan_to_num(lower(self.values[:, own].T.astype(np.float64)))
            self.values[:, own] -= common[:, None].astype(np.float32)
            self.gap = float(np.median(common))

    def _far(self) -> Bools:
        """Mask of the columns of transfers between nodes."""
        machine = self.traces.machine
        entry = machine.get("node_ranks") if machine is not None else None
        node = int(entry["value"]) if isinstance(entry, dict) else self.ranks
        return np.isin(self.metric, numbers(MOVES)) & (self.peer // node != self.rank // node)

    def of(self, *names: str) -> Bools:
        return np.isin(self.metric, numbers(names))

    @cached_property
    def norm(self) -> NDArray[np.float32]:
        """Seconds of each column in the predicted launch; where there is none 1, or 0 of gaps and waits."""
        norm, keys = np.where(self.additive, 0.0, 1.0).astype(np.float32), self.traces.table.keys
        if (predicted := self.traces.norm) is not None and len(predicted.keys):
            at = np.minimum(np.searchsorted(predicted.keys, keys), len(predicted.keys) - 1)
            known = (predicted.keys[at] == keys) & (predicted.values[0, at] > 0)
            norm[known] = predicted.values[0, at[known]]
        return norm

    @cached_property
    def scaled(self) -> NDArray[np.float32]:
        """[launches, columns]: logarithms of the seconds, by those of the norm; of gaps and waits in launches."""
        result = np.empty_like(self.values)
        result[:, self.additive] = (self.values[:, self.additive] - self.norm[self.additive]) / self.took
        with np.errstate(divide="ignore", invalid="ignore"):
            result[:, ~self.additive] = np.log(self.values[:, ~self.additive] / self.norm[~self.additive])
        result[~np.isfinite(result)] = np.nan
        return result

    @cached_property
    def medians(self) -> Floats:
        """[columns, windows]: medians of `scaled`, NaN where nothing is known."""
        edges = zip(self.edges[:-1], self.edges[1:], strict=True)
        return np.stack([median(self.scaled[a:b]) for a, b in edges], axis=1)

    @cached_property
    def slower(self) -> Floats:
        """[columns, windows]: by how much columns are slower than their likes, NaN where nothing is known.

        Waits, and how long launches take, are compared with other launches alone: the predicted one begins on all ranks
        at once, which launches that follow each other do not.
        """
        self.level = low(self.medians, HEALTHY)
        self.offset = np.where(self.of("wait", "took"), self.level, self._likes(self.level))
        self.shift = self.shared(self.medians - self.level[:, None])
        return self.medians - self.offset[:, None] - self.shift

    @cached_property
    def rest(self) -> NDArray[np.float32]:
        """[launches, columns]: by how much single launches are slower than those around them; 0 if it is not known."""
        return np.nan_to_num(self.scaled - self.around(self.medians).astype(np.float32))

    def around(self, medians: Floats) -> Floats:
        """Return [launches, n], from the medians [n, windows]: those of some windows around each launch.

        So a burst of slow launches that fills a window or two stands out, and a lasting change does not.
        """
        count = medians.shape[1]
        near = [medians[:, max(0, at - AROUND) : at + AROUND + 1].T for at in range(count)]
        return np.repeat(np.stack([median(one) for one in near]), np.diff(self.edges), axis=0)

    @cached_property
    def unexplained(self) -> Floats:
        """[waits, windows]: by how much waits are longer than in other launches, without what a start is later."""
        begins, waits = np.flatnonzero(self.of("gap", "start")), np.flatnonzero(self.of("wait"))
        late = np.zeros((self.launches, self.ranks))
        for at in begins.tolist():
            late[:, self.rank[at]] += np.nan_to_num(self.values[:, at])
        later = np.maximum(late[:, self.peer[waits]] - late[:, self.rank[waits]], 0.0)
        left = np.maximum(self.values[:, waits] - later, 0.0) / self.took
        each = np.stack([median(left[a:b]) for a, b in zip(self.edges[:-1], self.edges[1:], strict=True)], axis=1)
        return each - low(each, HEALTHY)[:, None]

    def shared(self, rest: Floats) -> Floats:
        """Return [columns, n]: what most ranks have of `rest` in common, such as another size of the work.

        It is sought for each stage, and then, if all are slower, for each SM. Of transfers it is what the faster ones
        have in common, for one rank has a part in most of them, if they are few. Most ranks may be victims, so waits
        have nothing in common.
        """
        shift = np.zeros_like(rest)
        moves, signals = self.of(*MOVES), self.of("signal")
        for own in self.classes(~(moves | signals | self.of("wait", "took")), self.metric):
            shift[own] = self._common(rest, own)
        for own in self.classes(self.of("work", "call"), self.metric, self.stage):
            if len(np.unique(self.rank[own])) > 1:
                shift[own] = self._common(rest, own)
        away = (self.peer != self.rank) & (self.ranks > 2)
        work = shift[self.of("work")].mean(axis=0) if self.of("work").any() else np.zeros(rest.shape[1])
        for own in self.classes(moves | signals, self.metric, self.stage, away, self.far):
            shift[own] = np.nan_to_num(low(rest[own].T, 0.25))
            if self.ranks == 2 and not (self.peer[own] == self.rank[own]).any():  # one port has them all
                shift[own] = np.clip(shift[own], np.minimum(work, 0.0), np.maximum(work, 0.0))
        left = rest - shift
        for own in self.classes(self.of("work"), self.stage, self.sm):
            if len(np.unique(self.rank[own])) > 1:
                shift[own] += np.maximum(np.nan_to_num(lower(left[own])), 0.0)
        return shift

    def _common(self, rest: Floats, own: Ints) -> Floats:
        each = [median(rest[own[self.rank[own] == rank]]) for rank in np.unique(self.rank[own]).tolist()]
        return np.nan_to_num(lower(np.stack(each)))

    @cached_property
    def distance(self) -> Ints:
        return np.where(self.peer >= 0, (self.peer - self.rank) % self.ranks, -1)

    def classes(self, counted: Bools, *parts: Ints | Bools) -> Iterator[Ints]:
        """Yield the places of the columns that are alike in some parts."""
        places = np.flatnonzero(counted)
        _, of = np.unique(np.stack(parts)[:, places], axis=1, return_inverse=True)
        of = of.ravel()
        order = np.argsort(of, kind="stable")
        yield from (places[own] for own in np.split(order, np.flatnonzero(np.diff(of[order])) + 1) if len(own))

    def _likes(self, level: Floats) -> Floats:
        """Return for each column how slow its likes on other ranks are; its own level if it has none.

        Notifies of two ranks have the norm alone.
        """
        offset = level.copy()
        for own in self.classes(np.ones(len(level), np.bool_), self.metric, self.stage, self.sm, self.distance):
            if len(np.unique(self.rank[own])) > 1:
                offset[own] = lower(level[own, None])[0]
            elif self.traces.norm is not None:
                at = own[0]
                others = self.metric == self.metric[at]
                alike = others & (self.stage == self.stage[at]) & (self.far == self.far[at])
                others = alike if len(np.unique(self.rank[alike])) > 1 else others
                offset[own] = min(float(level[at]), lower(level[others, None])[0])
                if self.ranks == 2:
                    offset[own] = np.where(self.of("signal")[own], np.minimum(offset[own], 0.0), offset[own])
        for own in self.classes(self.of(*MOVES), self.metric, self.stage, self.far):
            if self.traces.norm is not None and len(np.unique(self.rank[own])) > 1:
                offset[own] = np.maximum(offset[own], lower(level[own, None])[0])  # one that met none is no standard
        return offset

    @cached_property
    def matters(self) -> Bools:
        """Mask of the columns whose seconds are not far less than those of the stage of a rank that has most."""
        usual, moves = np.zeros(len(self.norm)), np.flatnonzero(self.of(*MOVES))
        usual[moves] = np.nan_to_num(np.exp(median(self.scaled[:, moves])) * self.norm[moves] * self.counts[moves])
        result = np.ones(len(usual), np.bool_)
        for own in self.classes(self.of(*MOVES), self.rank):
            result[own] = usual[own] > NEGLIGIBLE * usual[own].max()
        return result

    def way(self, one: int, other: int, longer: Floats) -> tuple[int, int]:
        """Return two ranks so that notifies of the first one reach the second one late, by how much longer waits are.

        The second one waits longer for the first, and is late itself, so that others wait longer for it.
        """
        waits = self.of("wait")

        def late(by: int, rank: int) -> float:
            for_it = waits & (self.peer == rank) & (self.rank != by)
            direct = longer[waits & (self.rank == rank) & (self.peer == by)].max(initial=0.0)
            return float(direct + (longer[for_it].mean() if for_it.any() else 0.0))

        return (other, one) if late(other, one) > late(one, other) else (one, other)

    @cached_property
    def sms(self) -> dict[int, tuple[Ints, NDArray[np.int64]]]:
        """rank -> (its SMs that compute, for each of its columns of work the place of the SM among them)."""
        found: dict[int, tuple[Ints, Ints]] = {}
        for rank in range(self.ranks):
            own = np.flatnonzero(self.of("work") & (self.rank == rank))
            if len(own):
                found[rank] = np.unique(self.sm[own], return_inverse=True)
        return found

    def work_of(self, rank: int) -> Ints:
        return np.flatnonzero(self.of("work") & (self.rank == rank))

    def groups(self, rank: int) -> Iterator[tuple[int, int]]:
        """Yield groups of neighbouring SMs of a rank, as (first, one past the last) of their places."""
        count, size = len(self.sms[rank][0]), 1
        while size < count:
            for first in range(0, count - size + 1, max(1, size // 2)):
                yield first, first + size
            size *= 2


# Medians that leave out what is not known ----------------------------------------------------------------------


def median(values: NDArray[np.floating]) -> Floats:
    """Return the medians over the first axis."""
    if not np.isnan(values).any():
        return np.median(values, axis=0).astype(np.float64)
    known = ~np.isnan(values).all(axis=0)
    result = np.full(values.shape[1:], np.nan)
    result[known] = np.nanmedian(values[:, known], axis=0)
    return result


def low(values: Floats, quantile: float) -> Floats:
    """Return a quantile of each row."""
    known = ~np.isnan(values).all(axis=1)
    result = np.full(len(values), np.nan)
    result[known] = np.nanquantile(values[known], quantile, axis=1)
    return result


def lower(values: Floats) -> Floats:
    """Return the medians over the first axis, of two the lower one: most parts are well, and none is too fast."""
    ordered = np.sort(values, axis=0)
    count = (~np.isnan(ordered)).sum(axis=0)
    at = np.maximum(count - 1, 0) // 2
    return np.take_along_axis(ordered, at[None], axis=0)[0]


def mean_of(values: Floats) -> Floats:
    """Return the means over the first axis."""
    known = ~np.isnan(values)
    return np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)


def by_place(values: Floats, place: Ints) -> Floats:
    """Return the mean of the rows of each place."""
    count = int(place.max(initial=0)) + 1
    total, known = np.zeros((count, values.shape[1])), np.zeros((count, values.shape[1]))
    np.add.at(total, place, np.nan_to_num(values))
    np.add.at(known, place, ~np.isnan(values))
    return total / np.maximum(known, 1)


def spread(series: Floats) -> Floats:
    """Return the standard deviation of each row around its level, which may change a few times."""
    if series.shape[1] < 3:
        return np.full(len(series), 0.01)
    steps = np.abs(np.diff(series, axis=1))
    return np.median(steps, axis=1) / 0.6745 / np.sqrt(2.0)


def numbers(names: tuple[str, ...]) -> list[int]:
    return [NUMBER[name] for name in names]
