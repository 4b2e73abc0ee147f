"""The enumerator of tiles: all reads, writes, waits and notifies of a bound program's tasks, as NumPy columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.errors import Location
from tilelink.facts.regions import PERHAPS
from tilelink.ir.mapping import TileMap
from tilelink.ir.printer import print_region, print_scalar
from tilelink.ir.program import (
    Assign,
    Barrier,
    For,
    If,
    IndexDecl,
    NetworkFence,
    NetworkQuiet,
    Notify,
    Read,
    Region,
    Statement,
    Store,
    Transfer,
    Value,
    Wait,
)
from tilelink.ir.scalar import Binary, Compare, Env, Index, Lookup, Scalar, at_launch, const, rewrite, walk
from tilelink.ir.simplify import simplify
from tilelink.ir.visitor import (
    closing_notifies,
    local_names,
    own_scalars,
    range_ends,
    read_unassigned,
    reads,
    received,
    statements,
)
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.columns import Ints, distinct_rows, expand
from tilelink.lowering.events import (
    FENCE,
    NOTIFY,
    QUIET,
    READ,
    WAIT,
    WRITE,
    Accesses,
    Barriers,
    ChannelBox,
    NetworkOrders,
    Signals,
    Substep,
    Transfers,
    number_channels,
    number_tasks,
)
from tilelink.lowering.guards import Branch, Guards, iterations_of, numbered, parts_of
from tilelink.lowering.hulls import hull, unknown
from tilelink.lowering.name_uses import NameUses
from tilelink.lowering.places import DECIDED, GUARD, Fault, box, chosen, divides, in_table, partial, reach
from tilelink.lowering.stored_entries import Execution, StoredEntries
from tilelink.lowering.value_numbering import is_fixed
from tilelink.lowering.walk import Rows, Walk, column, length


def signals_of(bound: Bound) -> tuple[Signals, dict[str, int]]:
    """Return the waits and notifies of all stages, and the first task of each stage.

    They are those of the plan of a program without tables.
    """
    first_task, _ = number_tasks(bound)
    collector = Enumerator(bound, first_task, number_channels(bound)[0], {})
    for stage in bound.stages.values():
        collector.stage(stage)
    return collector.signals(), first_task


class Enumerator(Walk):
    """Collects all reads, writes, waits, notifies, barriers and transfers of stages, and their faults."""

    def __init__(
        self,
        bound: Bound,
        first_task: Mapping[str, int],
        channel_base: Mapping[tuple[str, str], int],
        tables: Mapping[str, NDArray[Any]],
    ) -> None:
        super().__init__(bound, first_task, tables)
        self.channel_base = channel_base
        self.dims = max((len(t.shape) for t in bound.tensors.values()), default=1)
        self.faults: list[Fault] = []
        replicated = frozenset(name for name, t in bound.tensors.items() if "replicated" in t.decl.properties)
        decls = {name: t.decl for name, t in bound.tensors.items()}
        for name, decl in decls.items():
            if decl.bound is not None:
                decls[name] = replace(decl, bound=rewrite(decl.bound, bound.number))
        self.guards = Guards(tensors=decls, ranges=dict(bound.entries), replicated=replicated)
        self._stored_entries = StoredEntries(bound=bound, guards=self.guards)
        self._unsure: dict[str, NameUses] = {}
        self._uses: list[tuple[str, NameUses]] = []
        self._accesses: list[Accesses] = []
        self._signals: list[Signals] = []
        self.boxes: dict[ChannelBox, int] = {}
        """The boxes of channels of waits at places, numbered from 1 on."""
        self._transfers: list[Transfers] = []
        self._barriers: list[Barriers] = []
        self._network: list[NetworkOrders] = []

    def stage(self, stage: BoundStage) -> None:
        self._unsure = {name: NameUses() for name in sorted(read_unassigned(stage.stage.body, iterations=False))}
        super().stage(stage)
        self._uses += self._unsure.items()

    def enter(self, stage: BoundStage, number: int, indices: tuple[IndexDecl, ...], rows: Rows) -> Rows:
        """Take the ends of ranges."""
        ends, bounds = list(range_ends(indices)), self.bound.bounds(stage.name)
        of_tile = indices is stage.stage.indices
        always = {part for end in ends for part in walk(simplify(end, bounds))} if of_tile else set[Scalar]()
        return self._defined(stage, number, ends, rows, always)

    def chosen(
        self, stage: BoundStage, condition: Scalar, holds: bool, rows: Rows, open_rows: NDArray[np.bool_]
    ) -> Rows:
        if not open_rows.any():
            return rows
        guard = numbered(self.guards, [Branch(condition=condition, holds=holds)], rows.rank, rows.indices, rows.guard)
        return replace(rows, guard=np.where(open_rows, guard, rows.guard))

    def reached(self, number: int, statement: Statement, rows: Rows) -> Rows:
        exprs = () if isinstance(statement, For) else own_scalars(statement)
        return self._defined(self.bound.stages[self.statements[number][0]], number, exprs, rows)

    def _defined(
        self, stage: BoundStage, number: int, exprs: Iterable[Scalar], rows: Rows, always: Collection[Scalar] = ()
    ) -> Rows:
        """Return the rows in which expressions have values, and note the entries that they read.

        always: the entries that every tile reads, as of `_entry`.
        """
        for expr in partial(exprs):
            if not len(rows.task):
                break
            match expr:
                case Lookup(launch=True):
                    self._entry(stage, number, expr, rows, always=expr in always)
                case Lookup():
                    rows = self._looked_up(number, expr, rows)
                case _:
                    rows = self._divided(number, expr, rows)
        return rows

    def visit(self, stage: BoundStage, number: int, statement: Statement, rows: Rows) -> None:
        match statement:
            case Wait(kind=kind, region=region):
                self._signal(stage, number, WAIT, kind, region, rows)
            case Notify(kind=kind, region=region):
                self._signal(stage, number, NOTIFY, kind, region, rows)
            case Barrier():
                self._barrier(stage, rows)
            case NetworkFence() | NetworkQuiet():
                kind = FENCE if isinstance(statement, NetworkFence) else QUIET
                surely = rows.pick(rows.guard == 0)  # a branch that a launch decides may leave it out
                position = surely.position + Substep.READ
                self._network.append(NetworkOrders(task=surely.task, position=position, kind=_alike(kind, surely.task)))
            case Assign(value=value) | Store(value=value) | Transfer(source=value):
                self._data(stage, number, statement, value, rows)
            case _:
                pass

    def _entry(self, stage: BoundStage, number: int, lookup: Lookup, rows: Rows, *, always: bool = False) -> None:
        """Note the read of an entry, which waits for its word if it travels as one.

        always: True if every tile reads it, also one that is not there: for the ends of its own range. A kernel may do
        without another one, whose expression says the same without it.
        """
        region = Region(tensor=lookup.table, coords=lookup.coords, location=lookup.location)
        self._access(stage, number, READ, region, rows)
        if self.bound.tensors[lookup.table].packed:
            (kind,) = (kind for tensor, kind in self.bound.channels if tensor == lookup.table)
            if not always:
                known = {
                    old: self.guards.number((*self.guards.known[old], PERHAPS)) for old in set(rows.guard.tolist())
                }
                rows = replace(rows, guard=np.array([known[old] for old in rows.guard.tolist()], np.int64))
            self._signal(stage, number, WAIT, kind, region, rows, Substep.ARRIVED, by_words=())

    def _ends(self, exprs: Sequence[Scalar], env: Env, rows: int, end: int) -> Ints:
        """Return the smallest (0) or largest (1) values of expressions as columns: [rows, expressions]."""
        hulls = [hull(expr, env, self.bound.entries)[end] for expr in exprs]
        columns = [np.broadcast_to(np.asarray(one, dtype=np.int64), (rows,)) for one in hulls]
        return np.stack(columns, axis=1) if columns else np.zeros((rows, 0), np.int64)

    def _barrier(self, stage: BoundStage, rows: Rows) -> None:
        begin, end = _alike(-1, rows.task), _alike(-1, rows.task)
        if rows.begin is not None:
            begin, end = rows.begin, rows.begin + self._part
        elif any(decl.counted for decl in stage.stage.indices):
            begin, end = _alike(0, rows.task), _alike(1 + sum(length(stage, s) for s in stage.stage.body), rows.task)
        position = rows.position + Substep.READ
        self._barriers.append(Barriers(task=rows.task, position=position, begin=begin, end=end))

    def _executed(self, stage: BoundStage, rows: Rows) -> Ints:
        """Return the guards of executions of a statement: the branches and the iterations that it is in."""
        return numbered(self.guards, iterations_of((), stage, rows.indices), rows.rank, rows.indices, rows.guard)

    def _divided(self, number: int, expr: Binary, rows: Rows) -> Rows:
        """Return the rows whose divisor is not zero. The first other row is a fault."""
        if unknown(expr.right, self.env(rows)):
            low, high = hull(expr.right, self.env(rows), self.bound.entries)
            zero = np.broadcast_to((np.asarray(low) <= 0) & (np.asarray(high) >= 0), rows.task.shape)
            self._fault(number, zero, rows, f"{print_scalar(expr)} may divide by zero", "max(n, 1) is at least 1")
            return rows
        there = divides(expr, self.env(rows), len(rows.task))
        self._fault(number, ~there, rows, f"{print_scalar(expr)} divides by zero")
        return rows if there.all() else rows.pick(there)

    def _looked_up(self, number: int, lookup: Lookup, rows: Rows) -> Rows:
        """Return the rows whose entry is in the table. The first other row is a fault."""
        there, where = in_table(lookup, self.env(rows), len(rows.task))
        if there.all():
            return rows
        first = where[np.argmin(there)]
        entry = ", ".join(str(w) if isinstance(c, Scalar) else ":" for w, c in zip(first, lookup.coords, strict=True))
        shape = list(self.tables[lookup.table].shape[1:])
        self._fault(number, ~there, rows, f"looks up {lookup.table}[{entry}], outside of a table of shape {shape}")
        return rows.pick(there)

    def _data(self, stage: BoundStage, number: int, statement: Statement, value: Value, rows: Rows) -> None:
        """Note the accesses of a statement. value: the value that it computes."""
        for region in reads(value):
            self._access(stage, number, READ, region, rows)
        for read in received(value):
            assert read.signal is not None
            self._signal(stage, number, WAIT, read.signal, read.region, rows, Substep.ARRIVED, by_words=rows.indices)
        for name in self._unsure.keys() & local_names(value):
            self._unsure[name].read.append((number, rows.task, rows.position, self._executed(stage, rows)))
        if isinstance(statement, Assign):
            self._stored_entries.assigned(stage, number, statement)
        match statement:
            case Assign(name=name) if name in self._unsure:
                self._unsure[name].assigned.append((rows.task, rows.position, self._executed(stage, rows)))
            case Store(region=region):
                self._access(stage, number, WRITE, region, rows)
                self._written_entries(stage, statement, region, value, rows)
                self._stored(stage, region, value, rows, sure=not statement.adds)
            case Transfer(target=target, source=source):
                self._access(stage, number, WRITE, target, rows)
                self._written_entries(stage, statement, target, source, rows)
                self._stored(stage, target, source, rows)
                pulled = source.region if isinstance(source, Read) and target.rank is None else None
                moved = pulled if pulled is not None and statement.mode not in ("push", "put", "send") else target
                self._transfer(stage, moved, target, rows)
                if statement.signal is not None:
                    sent = rows.indices if statement.mode == "send" else None
                    self._signal(stage, number, NOTIFY, statement.signal, target, rows, by_words=sent)
            case _:
                pass

    def _bounds(self, tile_map: TileMap, rows: Rows) -> tuple[Ints, Ints, Ints]:
        env = self.env(rows)
        n = len(rows.task)
        lo = np.zeros((n, self.dims), np.int64)
        hi = np.ones((n, self.dims), np.int64)
        for d, span in enumerate(tile_map.spans):
            lo[:, d] = hull(span.start, env, self.bound.entries)[0]
            hi[:, d] = hull(span.stop, env, self.bound.entries)[1]
        return lo, hi, np.zeros(n, np.int64) if unknown(tile_map.rank, env) else column(tile_map.rank, env, n)

    def _written_entries(
        self, stage: BoundStage, statement: Statement, target: Region, value: Value, rows: Rows
    ) -> None:
        """Note what the entries of an index tensor are equal to that a statement writes."""
        if self.bound.tensors[target.tensor].decl.bound is None or not len(rows.task):
            return
        executions: list[Execution] = []
        if not rows.guard.any() and not stage.parts:
            for row, (task, rank) in enumerate(zip(rows.task.tolist(), rows.rank.tolist(), strict=True)):
                indices = {name: int(column[row]) for name, column in rows.indices.items()}
                executions.append(Execution(number=row, task=task, rank=rank, indices=indices))
        self._stored_entries.written(
            stage, statement, target, value, executions, lambda tile_map: self._bounds(tile_map, rows)
        )

    def _stored(self, stage: BoundStage, target: Region, value: Value, rows: Rows, *, sure: bool = True) -> None:
        """Note where what a statement writes is from. sure: False if other writes of the same elements count too."""
        tile_map = self.bound.tile_map(stage.name, target)
        there = (rows.guard == 0) & (sure and is_fixed(tile_map) and not stage.parts)
        self._stored_entries.stored(stage, target, value, there, lambda one: self._bounds(one, rows))

    def settle(self) -> None:
        """Note which values of entries are equal, and which names are read without a value, after all stages."""
        self._stored_entries.settle()
        for name, uses in self._uses:
            self.faults.extend(uses.faults(name, self.guards))

    def _access(self, stage: BoundStage, number: int, kind: int, region: Region, rows: Rows) -> None:
        tile_map = self.bound.tile_map(stage.name, region)
        if unknown(tile_map.rank, self.env(rows)):
            tile_map, rows = self._any_rank(number, kind, tile_map, rows)
        lo, hi, peer = self._bounds(tile_map, rows)
        peer = self._on_ranks(number, region, peer, rows)
        around = rows.indices if kind == WRITE or region.tensor in self._conditional else ()
        guard = self._guard(stage, tile_map, rows, around, self._bounded if kind == READ else ())
        for d, span in enumerate(tile_map.spans):
            if span.gather is None or span.gather.launch:
                continue
            source, first, last, twice = chosen(span.gather, self.env(rows), len(rows.task))
            if kind == WRITE:
                message = f"writes a row of {region.tensor} twice, for {span.gather.table} names it twice"
                self._fault(number, twice, rows, message, "write each row once")
            lo, hi, peer, rows = lo[source], hi[source], peer[source], rows.pick(source)
            guard = guard[source]
            lo[:, d], hi[:, d] = first, last
        self._inside(number, region, tile_map, rows, lo, hi)
        self._on_members(number, region, peer, rows)
        self._accesses.append(
            Accesses(
                task=rows.task,
                position=rows.position + (Substep.WRITE if kind == WRITE else Substep.READ),
                kind=_alike(kind, rows.task),
                peer=peer,
                tensor=_alike(self.bound.tensors[region.tensor].number, rows.task),
                statement=_alike(number, rows.task),
                guard=guard,
                lo=lo,
                hi=hi,
            )
        )

    def _any_rank(self, number: int, kind: int, tile_map: TileMap, rows: Rows) -> tuple[TileMap, Rows]:
        """Return a read on a rank that a launch decides as reads on all ranks that it may be. A write is a fault."""
        if kind == WRITE:
            hint = "loop over the ranks, and write what each one gets: (p: ranks, c: C[: count[p]])"
            everywhere = np.ones(len(rows.task), bool)
            self._fault(number, everywhere, rows, "writes on a rank that only a launch decides", hint)
            return replace(tile_map, rank=const(0)), rows
        name, ranks = "#rank", self.bound.ranks
        low, high = (
            np.broadcast_to(end, rows.task.shape) for end in hull(tile_map.rank, self.env(rows), self.bound.entries)
        )
        again = rows.pick(np.repeat(np.arange(len(rows.task)), ranks))
        peer = np.tile(np.arange(ranks, dtype=np.int64), len(rows.task))
        again.indices[name] = peer
        again = again.pick((np.repeat(low, ranks) <= peer) & (peer <= np.repeat(high, ranks)))
        chosen_rank = Branch(condition=Compare(op="==", left=tile_map.rank, right=Index(name=name)), holds=True)
        guard = numbered(self.guards, [chosen_rank], again.rank, again.indices, again.guard)
        return replace(tile_map, rank=Index(name=name)), replace(again, guard=guard)

    def _guard(
        self,
        stage: BoundStage,
        tile_map: TileMap,
        rows: Rows,
        around: Iterable[str],
        named: Collection[str] = (),
    ) -> Ints:
        """Return what a launch decides of an access, for each row.

        around: the indices whose iterations count too. Those of a read may be left out: then it is taken to be in more
        launches than it is. Those of a write or a wait may not, unless it is made where its iteration is not there.
        named: tables whose entries are places also where they can only be 0.
        """
        templates = [*parts_of(tile_map, stage, named), *iterations_of(tile_map.spans, stage, around)]
        return numbered(self.guards, templates, rows.rank, rows.indices, rows.guard)

    @cached_property
    def _bounded(self) -> frozenset[str]:
        """The index tensors with bounds that are entries: where there is such an entry, what bounds it is above 0."""
        decls = [tensor.decl for tensor in self.bound.tensors.values()]
        return frozenset(one.name for one in decls if one.bound is not None and at_launch(one.bound))

    @cached_property
    def _conditional(self) -> frozenset[str]:
        """The tensors that a statement writes, or waits for at a place, in iterations that a launch may leave out."""
        found: set[str] = set()

        def look(stage: BoundStage, body: tuple[Statement, ...], around: tuple[str, ...]) -> None:
            for statement in body:
                match statement:
                    case If(then=then, orelse=orelse):
                        look(stage, (*then, *orelse), around)
                    case For(indices=indices, body=inner):
                        look(stage, inner, (*around, *(decl.name for decl in indices)))
                    case Store(region=target) | Transfer(target=target):
                        if iterations_of(self.bound.tile_map(stage.name, target).spans, stage, around):
                            found.add(target.tensor)
                    case Wait(region=target) if self.bound.is_placed(stage.name, statement):
                        if iterations_of(self.bound.tile_map(stage.name, target).spans, stage, around):
                            found.add(target.tensor)
                    case _:
                        pass

        for stage in self.bound.stages.values():
            look(stage, stage.stage.body, tuple(decl.name for decl in stage.stage.indices))
        return frozenset(found)

    def _inside(self, number: int, region: Region, tile_map: TileMap, rows: Rows, lo: Ints, hi: Ints) -> None:
        """Note a fault if boxes extend beyond their tensor."""
        name = region.tensor
        leaves, ends = reach(tile_map, self.env(rows), lo, hi, self.bound.entries)
        if leaves.any():
            row, shape = int(np.argmax(leaves)), list(self.bound.tensors[name].shape)
            message = f"{name}{box(lo[row], ends[row], len(shape))} reaches outside {name}, whose shape is {shape}"
            env = self.env(rows)
            decided = any(unknown(end, env) for span in tile_map.spans for end in (span.start, span.stop))
            self._fault(number, leaves, rows, message, DECIDED if decided else GUARD, region.location)

    def _fault(
        self,
        number: int,
        wrong: NDArray[np.bool_],
        rows: Rows,
        message: str,
        hint: str = GUARD,
        location: Location | None = None,
    ) -> None:
        """Note a fault for the first of the wrong rows. location: of the part of the statement that is wrong."""
        for row in np.flatnonzero(wrong)[:1]:
            task = int(rows.task[row])
            self.faults.append(Fault(task=task, statement=number, message=message, hint=hint, location=location))

    def _on_ranks(self, number: int, region: Region, peer: Ints, rows: Rows) -> Ints:
        """Return the ranks of a region. A rank that there is not is a fault; binding takes ranks modulo their number.

        It is clipped, so that the region is not one of another rank or counter.
        """
        outside = (peer < 0) | (peer >= self.bound.ranks)
        if outside.any():
            there = int(peer[outside][0])
            message = f"{print_region(region)} is on rank {there}, and the ranks are 0 to {self.bound.ranks - 1}"
            self._fault(number, outside, rows, message, "a rank modulo their number: (rank + 1) % ranks")
            return np.clip(peer, 0, self.bound.ranks - 1)
        return peer

    def _on_members(self, number: int, region: Region, peer: Ints, rows: Rows) -> None:
        """Note a fault for a region of a tensor on a rank that does not have it."""
        tensor = self.bound.tensors[region.tensor]
        if tensor.members is None:
            return
        outside = (peer < tensor.members[0]) | (peer >= tensor.members[1])
        if outside.any():
            message = (
                f"{print_region(region)} is on rank {peer[outside][0]}, and {tensor.decl.on} alone has {tensor.name}"
            )
            hint = f"a stage of the group, comm NAME(...) on {tensor.decl.on}:, or a rank of it: @ {tensor.decl.on}[i]"
            self._fault(number, outside, rows, message, hint)

    def _transfer(self, stage: BoundStage, moved: Region, target: Region, rows: Rows) -> None:
        lo, _, peer = self._bounds(self.bound.memory_map(stage.name, moved), rows)
        peer = np.clip(peer, 0, self.bound.ranks - 1)
        shape = self.bound.tensors[moved.tensor].memory
        offset = np.zeros(len(rows.task), np.int64)
        for d, extent in enumerate(shape):
            offset = offset * extent + lo[:, d]
        low, high, _ = self._bounds(self.bound.tile_map(stage.name, target), rows)
        elements = np.prod(np.maximum(high - low, 0), axis=1)
        self._transfers.append(
            Transfers(
                task=rows.task,
                position=rows.position + Substep.ARRIVED,
                tensor=_alike(self.bound.tensors[moved.tensor].number, rows.task),
                peer=peer,
                offset=offset,
                elements=elements,
            )
        )

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
        """Note a signal. by_words: if words carry it, the indices without whose iterations it is not there."""
        key = (region.tensor, family)
        grid = self.bound.channels[key]
        tile_map = self.bound.tile_map(stage.name, region)
        env = self.env(rows)
        n = len(rows.task)
        lo, hi, _ = self._bounds(tile_map, rows)
        self._inside(number, region, tile_map, rows, lo, hi)
        ranges = tile_map.channel_range(grid)
        # An iteration that is not there makes its signals, but for waits for places. A tile that is not there takes no
        # iteration, and with it leaves out its waits (lowering/compact_tiles.py).
        placed = tile_map.placed(grid)
        left_out = kind == WAIT and stage.name in self.bound.compact_stages and not placed
        sure = rows if by_words is None else rows.pick(rows.guard == 0)
        self._check_signal(number, kind, region, sure, left_out or placed)
        unsure = left_out or placed or by_words is not None
        if unknown(tile_map.rank, env):
            return
        low = self._ends([one.low for one in ranges], env, n, 0)
        high = self._ends([one.high for one in ranges], env, n, 1)
        indices = [decl.name for decl in stage.stage.indices] if by_words is None else by_words
        around = rows.indices if placed else indices
        guard = self._guard(stage, tile_map, rows, around) if unsure else np.zeros(n, np.int64)
        # A signal outside of its tensor is a fault. It is clipped, so that it names no counter of another tensor.
        low, high = (np.clip(ends, 0, grid.counts) for ends in (low, high))
        packed = by_words is not None or self.bound.tensors[region.tensor].packed
        if kind == WAIT and placed and not packed and guard.any():
            source, channel, boxes = self._boxes(self.channel_base[key], grid.counts, low, high)
        else:
            source, channel = expand(low, high, grid.counts)
            channel, boxes = self.channel_base[key] + channel, _alike(0, source)
        peer = self._on_ranks(number, region, column(tile_map.rank, env, n), rows)
        self._on_members(number, region, peer, rows)
        task = rows.task[source]
        none = np.zeros_like(task)
        later, at = self._deferred(stage, number, task) if kind == NOTIFY else (none, none)
        self._signals.append(
            Signals(
                task=task,
                position=rows.position[source] + substep,
                kind=_alike(kind, task),
                peer=peer[source],
                channel=channel,
                statement=_alike(number, task),
                later=later,
                at=at,
                guard=guard[source],
                box=boxes,
            )
        )

    def _boxes(self, base: int, counts: tuple[int, ...], low: Ints, high: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the rows whose box of channels is not empty, the first channel of each, and the number of its box."""
        some = np.flatnonzero((high > low).all(axis=1))
        if not len(some):
            return some, some, some
        low, high = low[some], high[some]
        first, which = distinct_rows([*low.T, *high.T])
        boxes = [
            ChannelBox(base=base, counts=counts, low=tuple(begin), high=tuple(end))
            for begin, end in zip(low[first].tolist(), high[first].tolist(), strict=True)
        ]
        numbers = [self.boxes.setdefault(one, len(self.boxes) + 1) for one in boxes]
        channels = [int(one.channels[0]) for one in boxes]
        return some, np.array(channels, np.int64)[which], np.array(numbers, np.int64)[which]

    def _check_signal(self, number: int, kind: int, region: Region, rows: Rows, unsure: bool) -> None:
        """Note a fault for a signal whose execution or, for a notify, whose place a launch decides."""
        what = "waits" if kind == WAIT else "notifies"
        hint = "take the signal out of the branch: a counted range, (i: M[: n]), leaves out data and no signals"
        self._fault(number, rows.guard > 0, rows, f"{what} in a branch that only a launch decides", hint)
        if kind == NOTIFY and unsure:
            message = f"notifies {print_region(region)}, whose place only a launch decides"
            hint = "a range from 0 on, (i: M[: n]), notifies the same channels in every launch; "
            hint += f"of segments, notify all of the dimension: {region.tensor}[:, ...]"
            self._fault(number, np.ones(len(rows.task), bool), rows, message, hint)

    def _deferred(self, stage: BoundStage, number: int, task: Ints) -> tuple[Ints, Ints]:
        """Return which tasks leave a notify to their program's next tile, and its position there."""
        body, statement = stage.stage.body, self.statements[number][1]
        if stage.notified_in is None or not any(statement is one for one in closing_notifies(body)):
            return np.zeros_like(task), np.zeros_like(task)
        kernel = self.bound.kernel_of[stage.name]
        taking = next(loop.taking(kernel.programs) for loop in kernel.loops if stage.name in loop.stages)
        tile = (task - self.first_task[stage.name]) % stage.total
        at = sum(length(stage, before) for before in body[: stage.notified_in])
        return np.where(tile + taking < stage.total, 1, 0), np.full(len(task), at)

    def accesses(self) -> Accesses:
        none = np.zeros((0, self.dims), np.int64)
        return Accesses.joined(self._accesses, lo=none, hi=none)

    def signals(self) -> Signals:
        return Signals.joined(self._signals)

    def barriers(self) -> Barriers:
        return Barriers.joined(self._barriers)

    def network(self) -> NetworkOrders:
        return NetworkOrders.joined(self._network)

    def transfers(self) -> Transfers:
        return Transfers.joined(self._transfers)


class Partial(Enumerator):
    """Collects what some statements of all stages do, and passes over others. The program has no tables."""

    def __init__(self, bound: Bound, wanted: Callable[[str, Statement], bool]) -> None:
        """wanted: of a stage, by its name, and a statement."""
        super().__init__(bound, number_tasks(bound)[0], number_channels(bound)[0], {})
        self._wanted = wanted
        for stage in bound.stages.values():
            self.stage(stage)

    def _statement(self, stage: BoundStage, statement: Statement, rows: Rows) -> None:
        if any(self._wanted(stage.name, one) for one in statements((statement,))):
            super()._statement(stage, statement, rows)
        else:
            self._pass_over(stage, statements((statement,)))


def _alike(value: int, like: Ints) -> Ints:
    """Return a column of one value, as long as another one. It takes no memory before it is joined with others."""
    return np.broadcast_to(np.int64(value), like.shape)
