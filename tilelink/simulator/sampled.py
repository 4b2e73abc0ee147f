"""A plan with values for its index tensors: what one launch does of all that it may do.

A plan has the box of all elements that an access may name in any launch. With a sample of the index tensors, the
elements, the channels and the tiles that are there are known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.mapping import Span, TileMap
from tilelink.ir.program import Notify, Region, Statement, Wait
from tilelink.ir.scalar import Env, evaluate, indices_in
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.columns import Ints
from tilelink.lowering.compact import SEGMENT, THERE, WITHIN, Compact
from tilelink.lowering.enumerate import Enumerator
from tilelink.lowering.events import WAIT, Substep
from tilelink.lowering.walk import Rows, column
from tilelink.planning.plan import SHIFT, Plan, count_thresholds

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Sample = Mapping[str, Ints]
"""Index tensor -> its entries on every rank, [ranks, *shape]."""


@dataclass(frozen=True, kw_only=True)
class SampledPlan(Plan):
    """The plan of a launch in which the index tensors have known entries."""

    elements: Ints = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """Access -> the number of elements that it names: fewer than those of its box if entries of a tensor list them."""
    shares: Floats = field(default_factory=lambda: np.zeros((0, 0)), repr=False)
    """[ranks, tensors]: the fraction of a tensor that accesses by lists name, or 1 if there are other accesses."""


def launch_tensors(bound: Bound) -> list[str]:
    """Return the index tensors whose entries are known only in a launch."""
    decls = (tensor.decl for tensor in bound.tensors.values())
    return [decl.name for decl in decls if decl.bound is not None and not decl.known_early]


def sampled(plan: Plan, sample: Sample, tables: Mapping[str, NDArray[Any]] | None = None) -> SampledPlan:
    """Return the plan of a launch. tables: those that the plan was made with."""
    walk_ = Sampler(plan.bound, plan.first_task, plan.channel_base, {**(tables or {}), **sample})
    for stage in plan.bound.stages.values():
        walk_.stage(stage)
    known: dict[str, Any] = {f.name: getattr(plan, f.name) for f in fields(Plan)}
    known |= {
        "accesses": walk_.accesses(),
        "signals": walk_.signals(),
        "transfers": walk_.transfers(),
        "barriers": walk_.barriers(),
        "guards": walk_.guards,
    }
    sent = count_thresholds(plan.bound, walk_.signals(), plan.channel_base, plan.channels)
    words = {key for key in sent if plan.bound.tensors[key[0]].packed}  # one that is not sent is not waited for
    known["thresholds"] = {key: sent[key] if key in words else counts for key, counts in plan.thresholds.items()}
    known["worker"], known["sequence"] = taken_tiles(plan, walk_.tables)
    return SampledPlan(**known, elements=walk_.elements(), shares=walk_.shares())


def taken_tiles(plan: Plan, entries: Mapping[str, NDArray[Any]]) -> tuple[Ints, Ints]:
    """Return the worker of each task and its place in the sequence of that, in a launch with these entries.

    Tasks that are not there come last in the sequence of a worker, and do nothing.
    """
    bound, worker, sequence = plan.bound, plan.worker.copy(), plan.sequence.copy()
    first = {(number, rank): n for n, (number, rank, program) in enumerate(plan.workers) if program == 0}
    for number, kernel in enumerate(bound.kernels):
        for loop in kernel.loops:
            if loop.compact is None:
                continue
            stage = bound.stages[loop.stages[0]]
            for rank in range(bound.ranks):
                task = plan.first_task[stage.name] + rank * stage.total
                tiles = tiles_of(loop.compact, Env(rank=rank, ranks=bound.ranks, params={}, indices={}, tables=entries))
                sequence[task : task + stage.total] += stage.total
                compact = np.arange(len(tiles))
                worker[task + tiles] = first[number, rank] + compact % kernel.programs
                sequence[task + tiles] = compact // kernel.programs
    return worker, sequence


def tiles_of(compact: Compact, env: Env) -> Ints:
    """Return the tiles of a stage that a launch has on a rank, by their numbers in its order. env: with all entries."""
    segment = np.arange(compact.segments)
    there = evaluate(compact.there, replace(env, indices={SEGMENT.name: segment}))
    there = np.broadcast_to(np.asarray(there, np.int64), segment.shape)
    counts = there * compact.across
    own = np.repeat(segment, counts)
    within = np.arange(len(own)) - (np.cumsum(counts) - counts)[own]
    indices = {SEGMENT.name: own, WITHIN.name: within, THERE.name: there[own]}
    return column(compact.tile, replace(env, indices=indices), len(own))


def elements_of(plan: Plan) -> Ints:
    """Return the number of elements that each access of a plan names."""
    if isinstance(plan, SampledPlan):
        return plan.elements
    return np.prod(np.maximum(plan.accesses.hi - plan.accesses.lo, 0), axis=1)


def shares_of(plan: Plan) -> Floats:
    """Return the fractions of tensors that a plan's accesses can name, [ranks, tensors]."""
    if isinstance(plan, SampledPlan):
        return plan.shares
    return np.ones((plan.bound.ranks, len(plan.bound.tensors)))


def existing(bound: Bound, stage: BoundStage, statement: Statement, rows: Rows, env: Env) -> Bools:
    """Return the executions of a statement that a launch has. env: with the entries of all index tensors.

    A tile that is not there makes its notifies and those of its waits whose places are known before the launch, unless
    its kernel passes it over (compact numbers). An iteration that is not there does nothing.
    """
    there = np.ones(len(rows.task), bool)
    for name in stage.parts.keys() & rows.indices.keys():
        if _signals_anyway(bound, stage, statement) and any(d.name == name for d in stage.stage.indices):
            continue
        first, stop = part_of(stage, name, env)
        there &= np.asarray(first < stop)
    return there


def part_of(stage: BoundStage, index: str, env: Env) -> tuple[Any, Any]:
    """Return the first element of a tile of an index, and one past the last element that the index reaches."""
    first, extent, part = env.indices[index] * stage.tiles[index], stage.extents[index], stage.parts.get(index)
    if part is not None and part.start is not None:
        first = first + np.maximum(evaluate(part.start, env), 0)
    return first, extent if part is None or part.stop is None else np.minimum(evaluate(part.stop, env), extent)


def _signals_anyway(bound: Bound, stage: BoundStage, statement: Statement) -> bool:
    match statement:
        case Wait():
            return stage.name not in bound.compact_stages and not bound.is_placed(stage.name, statement)
        case _:
            return isinstance(statement, Notify)


@dataclass(frozen=True, kw_only=True)
class _Lists:
    """The entries that tiles of places list. which: execution -> its list; entries: [lists, tile], -1 for none."""

    which: Ints
    entries: Ints

    def ends(self) -> tuple[Ints, Ints, Ints]:
        """Return the smallest entry, one past the largest, and the number of distinct ones, for each execution."""
        ordered = np.sort(self.entries, axis=1)
        begins = ordered >= 0
        begins[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
        largest = ordered[:, -1]
        smallest = np.where(self.entries < 0, np.maximum(largest, 0)[:, None], self.entries).min(axis=1)
        return smallest[self.which], largest[self.which] + 1, begins.sum(axis=1)[self.which]

    def channels(self, size: int, count: int) -> Bools:
        """Return which of the channels of a dimension each list names: [lists, count]."""
        named = np.zeros((len(self.entries), count), bool)
        row, at = np.nonzero(self.entries >= 0)
        named[row, np.minimum(self.entries[row, at] // size, count - 1)] = True
        return named


class Sampler(Enumerator):
    """Collects what one launch does. Its tables are those of the plan and the entries of all index tensors."""

    def __init__(
        self,
        bound: Bound,
        first_task: Mapping[str, int],
        channel_base: Mapping[tuple[str, str], int],
        tables: Mapping[str, NDArray[Any]],
    ) -> None:
        super().__init__(bound, first_task, channel_base, tables)
        self._elements: list[Ints] = []
        self._otherwise = np.zeros((bound.ranks, len(bound.tensors)), bool)
        self._named: dict[tuple[int, int], Bools] = {}

    def elements(self) -> Ints:
        return np.concatenate(self._elements) if self._elements else np.zeros(0, np.int64)

    def shares(self) -> Floats:
        result = np.ones(self._otherwise.shape)
        tensors = {tensor.number: tensor for tensor in self.bound.tensors.values()}
        for (number, dim), named in self._named.items():
            by_lists = named.sum(axis=1) / tensors[number].shape[dim]
            result[:, number] = np.where(self._otherwise[:, number], 1.0, by_lists)
        return result

    def visit(self, stage: BoundStage, number: int, statement: Statement, rows: Rows) -> None:
        there = existing(self.bound, stage, statement, rows, self.env(rows))
        if there.any():
            super().visit(stage, number, statement, rows if there.all() else rows.pick(there))

    def _guard(
        self,
        stage: BoundStage,
        tile_map: TileMap,
        rows: Rows,
        around: Iterable[str] = (),
        named: Collection[str] = (),
    ) -> Ints:
        return np.zeros(len(rows.task), np.int64)  # nothing is left to a launch

    def _access(self, stage: BoundStage, number: int, kind: int, region: Region, rows: Rows) -> None:
        super()._access(stage, number, kind, region, rows)
        noted = self._accesses[-1]
        peer, lo, hi = noted.peer, noted.lo, noted.hi
        elements = np.prod(np.maximum(hi - lo, 0), axis=1)
        spans = self._list_spans(stage, region)
        if not spans:
            self._otherwise[peer, noted.tensor] = True
        at = _source(rows, noted.task, noted.position)
        for dim, span in spans.items():
            lists = self._lists(stage, span, rows)
            smallest, stop, count = lists.ends()
            elements = elements // max(span.size, 1) * count[at]
            lo[:, dim], hi[:, dim] = smallest[at], stop[at]
            self._name(lists, at, peer, (self.bound.tensors[region.tensor].number, dim))
        self._elements.append(elements)

    def _name(self, lists: _Lists, at: Ints, peer: Ints, key: tuple[int, int]) -> None:
        """Note the elements that lists name on the ranks of accesses. at: access -> execution."""
        shape = next(tensor.shape for tensor in self.bound.tensors.values() if tensor.number == key[0])
        named = self._named.setdefault(key, np.zeros((self.bound.ranks, shape[key[1]]), bool))
        pairs = np.unique(np.stack([peer, lists.which[at]], axis=1), axis=0)
        entries = lists.entries[pairs[:, 1]]
        row, place = np.nonzero((entries >= 0) & (entries < shape[key[1]]))
        named[pairs[row, 0], entries[row, place]] = True

    def _transfer(self, stage: BoundStage, moved: Region, target: Region, rows: Rows) -> None:
        super()._transfer(stage, moved, target, rows)
        noted = self._transfers[-1]
        elements = noted.elements
        for span in self._list_spans(stage, target).values():
            elements = elements // max(span.size, 1) * self._lists(stage, span, rows).ends()[2]
        self._transfers[-1] = replace(noted, elements=elements)

    def _signal(
        self,
        stage: BoundStage,
        number: int,
        kind: int,
        family: str,
        region: Region,
        rows: Rows,
        substep: Substep = Substep.SIGNAL,
        *,
        by_words: Iterable[str] | None = None,
    ) -> None:
        super()._signal(stage, number, kind, family, region, rows, substep, by_words=by_words)
        grid = self.bound.channels[region.tensor, family]
        for dim, span in self._list_spans(stage, region).items() if kind == WAIT else ():
            if grid.counts[dim] == 1:
                continue
            noted = self._signals[-1]
            lists = self._lists(stage, span, rows)
            named = lists.channels(grid.sizes[dim], grid.counts[dim])
            channel = np.unravel_index(noted.channel - self.channel_base[region.tensor, family], grid.counts)[dim]
            self._signals[-1] = noted.pick(named[lists.which[_source(rows, noted.task, noted.position)], channel])

    def _list_spans(self, stage: BoundStage, region: Region) -> dict[int, Span]:
        """Return the dimensions along which entries of an index tensor list what a region has."""
        spans = enumerate(self.bound.tile_map(stage.name, region).spans)
        return {d: s for d, s in spans if s.gather is not None and s.gather.launch and s.index is not None}

    def _lists(self, stage: BoundStage, span: Span, rows: Rows) -> _Lists:
        assert span.gather is not None and span.index is not None
        part = stage.parts.get(span.index)
        used = indices_in(span.gather, part and part.start, part and part.stop) | {span.index}
        names = sorted(used & rows.indices.keys())
        columns = np.stack([rows.rank, *(rows.indices[name] for name in names)], axis=1)
        distinct, which = np.unique(columns, axis=0, return_inverse=True)
        indices = {name: distinct[:, 1 + k] for k, name in enumerate(names)}
        env = Env(rank=distinct[:, 0], ranks=self.bound.ranks, params={}, indices=indices, tables=self.tables)
        first, stop = (np.broadcast_to(one, len(distinct)) for one in part_of(stage, span.index, env))
        at = first[:, None] + np.arange(stage.tiles[span.index])
        inside = at < stop[:, None]
        across = {name: column[:, None] for name, column in indices.items()}
        across[span.index] = np.minimum(at, np.maximum(stop[:, None] - 1, 0))
        env = Env(rank=distinct[:, :1], ranks=self.bound.ranks, params={}, indices=across, tables=self.tables)
        entries = np.broadcast_to(np.asarray(evaluate(span.gather, env), np.int64), at.shape)
        return _Lists(which=which.ravel(), entries=np.where(inside, entries, -1))


def _source(rows: Rows, task: Ints, position: Ints) -> Ints:
    """Return the execution to which each row of the plan belongs, by its task and the statement's position."""
    own, other = (rows.task << SHIFT) | rows.position, (task << SHIFT) | position
    order = np.argsort(own, kind="stable")
    return order[np.searchsorted(own[order], other, side="right") - 1]
