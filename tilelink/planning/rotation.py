"""One rank stands for all, where each does what the rank before it does, with all numbers of ranks one further.

A number *turns* if it is that of a rank, from 0 on, and one more on the next rank, around the ring: `(rank + q + 1) %
ranks`, with q the same on both. Turned by one rank, a program is itself if

* what follows `@` turns, and so do all coordinates of some dimensions, but for `:`, that have as many elements as there
  are ranks, and one counter for each of them or for all;
* an index of tiles is the same for tile t of each rank, or a number that turns. All else that is made of ranks is the
  same on each of them: conditions are, that compare two numbers that turn, or what has nothing to do with ranks;
* there are no entries, tables, words of data and flag, groups of ranks, credits of slots, or nodes.

**Theorem.** What takes tile t, with all that is around its statements, from each rank to the next, and an element and a
counter to the one whose coordinates that turn are one more, takes events to events, and keeps what they access, wait
for and notify, and their order in programs, kernels and streams. So what is true of the memory and the counters of rank
0 is true of all.

If it is so but for the order of tiles on SMs, they are looked at in another order, in which those along ranks begin one
further on each rank. Each tile is a program of its own in the plan, so nothing but progress depends on the order. That
is asked of the places that tiles have (verifier/turns.py): a wait is for an earlier kernel, or for what is at the same
place on other ranks, and tiles that are turned into one another wait in no circle.

Few ranks use these if all that follows `@` is one of few ranks further, as in a ring. The *plan of a rank* has all
accesses to its memory, and all signals on its counters; of the signals between these few ranks, those on counters that
one of them notifies and one waits for. An order that it has is one of the whole program, and what it lacks is taken to
be in no order (verifier/cutoff.py). Each of these ranks has in it what it does in all steps, so that no argument over
steps is needed: the proof is of one number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.program import FromScalar, IndexDecl, Region
from tilelink.ir.scalar import (
    RANK,
    Binary,
    Compare,
    Coordinate,
    Env,
    Index,
    Int,
    Lookup,
    Param,
    Rank,
    Scalar,
    add,
    binary,
    children,
    const,
    evaluate,
    walk,
)
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor
from tilelink.lowering.columns import Ints
from tilelink.lowering.enumerate import Enumerator
from tilelink.lowering.events import NOTIFY, WAIT, Accesses, Barriers, Signals, number_channels, number_tasks
from tilelink.lowering.limits import check_tiles
from tilelink.lowering.orders import TILE
from tilelink.lowering.places import partial
from tilelink.planning.copy_queues import OwnCopies, own_copies
from tilelink.planning.plan import Plan, count_thresholds, workers_of
from tilelink.planning.queue_order import with_queue_order

Key = tuple[str, str]
"""A tensor with counters, and their kind."""
Kind = tuple[int, bool]
"""(c, True) of a number that turns c times, 0 or 1, (c, False) of one that does so but for multiples of all ranks."""
SAME: Kind = (0, True)
TURNS: Kind = (1, True)


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """A program that is itself if it is turned by one rank. dims: dimensions with coordinates that turn.

    ordered: the same tiles in the order of the program, if `bound` has them in another one.
    """

    bound: Bound
    dims: frozenset[tuple[str, int]]
    ordered: Bound | None = None

    def __str__(self) -> str:
        return f"each of {self.bound.ranks} ranks does as rank 0"

    @property
    def statement(self) -> str:
        """The part of the whole program of which the proof by one rank is made, in words."""
        return f"turned: {sorted(self.dims)}{'' if self.ordered is None else ', in another order'}"

    def turned(self, key: Key, counters: Ints, ranks: int) -> Ints:
        """Return numbers that counters of a rank have, [*counts], on the rank that is so many ranks further."""
        axes = [dim for dim, count in enumerate(counters.shape) if count > 1 and (key[0], dim) in self.dims]
        return np.roll(counters, [ranks] * len(axes), axes) if axes else counters

    def of_all(self, key: Key, counters: Ints) -> Ints:
        """Return what counters of all ranks have, [ranks, *counts], from those of rank 0."""
        return np.stack([self.turned(key, counters, rank) for rank in range(self.bound.ranks)])

    def plan(self) -> Plan | None:
        """Return the plan of rank 0; None if many ranks use what it has, or a launch decides something.

        Raises ScheduleError if there are too many tiles.
        """
        bound, one = self.bound, _OfRank(self.bound)
        a, s, barriers = one.accesses(), one.signals(), one.barriers()
        decided = a.guard.any() or s.guard.any() or (barriers.begin >= 0).any() or len(one.network().task)
        users = one.users
        if one.faults or decided or 2 * len(users) > bound.ranks:
            return None
        check_tiles(few := _on_few(bound, len(users)))
        first, tasks = number_tasks(few)
        base, channels = number_channels(few)
        every = range(len(users))
        signals = Signals.joined([self._signals(s, one, users, number) for number in every])
        signals = signals.pick(_whole(signals, channels))
        barriers = [replace(barriers, task=one.on(number, barriers.task, len(users))) for number in every]
        worker, sequence, workers = workers_of(few, first, tasks, alone=True)
        plan = Plan(
            bound=few,
            statements=tuple(one.statements),
            first_task=first,
            tasks=tasks,
            accesses=Accesses.joined([self._accesses(a, one, users, number) for number in every]),
            signals=signals,
            transfers=one.transfers().pick(np.zeros(0, np.int64)),
            barriers=Barriers.joined(barriers),
            channel_base=base,
            channels=channels,
            thresholds=count_thresholds(few, signals, base, channels),
            worker=worker,
            sequence=sequence,
            workers=workers,
            guards=one.guards,
        )
        # There may be more that waits of queues depend on. Without it they are free: that is asked before it is said.
        return with_queue_order(plan, self.copies(plan))

    def copies(self, plan: Plan) -> OwnCopies:
        """Return the copies within a rank that overtake others in queues, on each rank of a plan as on rank 0.

        The plan lacks what queues do to memory of others than rank 0.
        """
        one, ranks = _OfRank(self.bound), plan.bound.ranks
        own, each = own_copies(one.plan()), plan.event(np.array([1]), np.array([0]))

        def of_all(events: Ints) -> Ints:
            task, within = np.divmod(events, each)
            return np.sort(np.concatenate([one.on(number, task, ranks) * each + within for number in range(ranks)]))

        return OwnCopies(plan=plan, events=of_all(own.events), overtaken=of_all(own.overtaken))

    def places(self, plan: Plan) -> Ints:
        """Return the numbers that the tasks of a plan of rank 0 have in the order of the program."""
        places, users, ordered = np.zeros(plan.tasks, np.int64), _OfRank(self.bound).users, self.ordered or self.bound
        for name, first in plan.first_task.items():
            keys = [_tiles_of(bound, bound.stages[name], users) for bound in (self.bound, ordered)]
            own, number = (np.argsort(key, axis=1) for key in keys)
            found = np.empty_like(own)
            np.put_along_axis(found, own, number, axis=1)
            places[first : first + found.size] = found.ravel()
        return places

    def _accesses(self, a: Accesses, one: _OfRank, users: Ints, number: int) -> Accesses:
        """Return the accesses of a rank to the memory of rank 0. a: those of rank 0. number: that of the rank."""
        bound, rank = self.bound, users[number]
        a = a.pick((a.peer + rank) % bound.ranks == 0)
        lo, hi = a.lo.copy(), a.hi.copy()
        for name, dim in self.dims:
            rows = np.flatnonzero((a.tensor == bound.tensors[name].number) & (hi[:, dim] - lo[:, dim] == 1))
            lo[rows, dim] = (lo[rows, dim] + rank) % bound.ranks
            hi[rows, dim] = lo[rows, dim] + 1
        return replace(a, task=one.on(number, a.task, len(users)), peer=np.zeros_like(a.peer), lo=lo, hi=hi)

    def _signals(self, s: Signals, one: _OfRank, users: Ints, number: int) -> Signals:
        """Return the signals of a rank on counters of some ranks. s: those of rank 0. number: that of the rank."""
        rank, channels = users[number], np.arange(one.channels)
        for key, base in one.channel_base.items():
            grid = self.bound.channels[key]
            some = slice(base, base + grid.count)
            channels[some] = self.turned(key, channels[some].reshape(grid.counts), -rank).reshape(-1)
        peer = (s.peer + rank) % self.bound.ranks
        kept = np.isin(peer, users)
        s, peer = s.pick(kept), np.searchsorted(users, peer[kept])
        return replace(s, task=one.on(number, s.task, len(users)), peer=peer, channel=channels[s.channel])


class _OfRank(Enumerator):
    """Collects what rank 0 does. Its tasks have the numbers of those of a program on one rank."""

    def __init__(self, bound: Bound) -> None:
        first, self.tasks = number_tasks(replace(bound, ranks=1))
        base, self.channels = number_channels(bound)
        super().__init__(bound, first, base, {})
        for stage in bound.stages.values():
            self.stage(stage)
        self.settle()

    def tiles(self, stage: BoundStage) -> Ints:
        return np.arange(stage.total, dtype=np.int64)

    @property
    def users(self) -> Ints:
        """The ranks that use memory or counters of rank 0. It comes first itself."""
        return np.unique(-np.concatenate([self.accesses().peer, self.signals().peer, [0]]) % self.bound.ranks)

    def plan(self) -> Plan:
        """Return the plan of all that the rank does, whatever others do."""
        own = replace(self.bound, ranks=1)
        worker, sequence, workers = workers_of(own, self.first_task, self.tasks)
        return Plan(
            bound=own, statements=tuple(self.statements), first_task=self.first_task, tasks=self.tasks,
            accesses=self.accesses(), signals=self.signals(), transfers=self.transfers(), barriers=self.barriers(),
            channel_base=self.channel_base, channels=self.channels, thresholds={}, worker=worker, sequence=sequence,
            workers=workers,
        )  # fmt: skip

    def on(self, number: int, tasks: Ints, ranks: int) -> Ints:
        """Return the numbers of tasks on one of some ranks."""
        first = np.zeros(self.tasks, np.int64)
        for stage in self.bound.stages.values():
            begin = self.first_task[stage.name]
            first[begin : begin + stage.total] = begin * (ranks - 1) + stage.total * number
        return first[tasks] + tasks


def _on_few(bound: Bound, ranks: int) -> Bound:
    """Return a program on some ranks of which the first one alone has memory."""
    tensors = {name: replace(tensor, members=(0, 1)) for name, tensor in bound.tensors.items()}
    return replace(bound, ranks=ranks, tensors=tensors)


def _whole(s: Signals, channels: int) -> NDArray[np.bool_]:
    """Mask of the signals on counters of rank 0, and on those of others that some notify and some wait for."""
    counter = s.peer * channels + s.channel
    both = np.intersect1d(counter[s.kind == NOTIFY], counter[s.kind == WAIT])
    return (s.peer == 0) | np.isin(counter, both)


def rotation(bound: Bound) -> Rotation | None:
    """Return how a program is itself if it is turned by one rank, in its order of tiles or in another one; or None."""
    other = _begun_further(bound)
    for one in (bound, *(() if other is None else (other,))):
        search = _Search(one)
        if search.turns:
            return Rotation(bound=one, dims=frozenset(search.turning), ordered=None if one is bound else bound)
    return None


def _begun_further(bound: Bound) -> Bound | None:
    """Return a program whose tiles along ranks, of kernels on SMs, begin one further on each rank; None if none do."""
    stages = dict(bound.stages)
    for name, stage in bound.stages.items():
        if bound.kernel_of[name].on_copy_engine or stage.tasks is not None:
            continue
        along = [index for index, expr in stage.order.items() if index in stage.scalar_indices
                 and stage.count(index) == bound.ranks and RANK not in walk(expr)]  # fmt: skip
        order = {index: binary("%", add(RANK, stage.order[index]), const(bound.ranks)) for index in along}
        stages[name] = replace(stage, order={**stage.order, **order})
    return replace(bound, stages=stages) if stages != bound.stages else None


def _tiles_of(bound: Bound, stage: BoundStage, ranks: Ints) -> Ints:
    """Return a number for the indices of each tile, the same in any order, [ranks, tiles]."""
    env = Env(rank=ranks[:, None], ranks=bound.ranks, params={}, indices={TILE.name: np.arange(stage.total)[None, :]})
    found = np.zeros((len(ranks), stage.total), np.int64)
    for name, expr in sorted(stage.order.items()):
        found = found * stage.count(name) + np.asarray(evaluate(expr, env))
    return found


class _Search:
    """Looks at all numbers of a bound program. turns: False if it may not be itself when it is turned."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._indices: dict[str, Kind | None] = {}
        self.turning: set[tuple[str, int]] = set()
        self._other: set[tuple[str, int]] = set()
        self.turns = bound.nodes == 1 and all(map(_is_plain, bound.tensors.values()))
        for stage in bound.stages.values() if self.turns else ():
            self._indices = {}
            self._indices = {name: self._kind(order) for name, order in stage.order.items()}
            for name, kind in self._indices.items():
                one = kind == TURNS and stage.tiles[name] == 1 and name in stage.scalar_indices
                self.turns &= kind == SAME or one
            self._visit((stage.stage.indices, stage.stage.body))
        self.turns = self.turns and not self.turning & self._other and all(map(self._is_cut, self.turning))

    def _is_cut(self, place: tuple[str, int]) -> bool:
        """True if each rank has a place along a dimension, with counters of its own unless all have one."""
        name, dim = place
        tensor, ranks = self._bound.tensors[name], self._bound.ranks
        grids = [(grid.counts[dim], grid.sizes[dim]) for key, grid in self._bound.channels.items() if key[0] == name]
        own = tensor.steps is not None and tensor.steps[0] == dim
        return tensor.shape[dim] == ranks and not own and all(
            count == 1 or (count, size) == (ranks, 1) for count, size in grids
        )  # fmt: skip

    def _visit(self, node: object) -> None:
        match node:
            case Region(tensor=name, coords=coords, rank=rank):
                self.turns &= rank is None or self._kind(rank) == TURNS
                for dim, coord in enumerate(coords):
                    if isinstance(coord, Scalar):
                        kind = self._kind(coord)
                        self.turns &= kind in (SAME, TURNS)
                        (self.turning if kind == TURNS else self._other).add((name, dim))
            case IndexDecl(start=start, stop=stop):
                self._visit((start, stop))
            case FromScalar(scalar=scalar):
                self._visit(tuple(partial((scalar,))))  # of values of elements come no places
            case Scalar():
                self.turns &= self._kind(node) == SAME
            case tuple():
                for one in node:
                    self._visit(one)
            case _ if is_dataclass(node):
                self._visit(tuple(getattr(node, one.name) for one in fields(node) if one.name != "location"))
            case _:
                pass

    def _kind(self, expr: Scalar) -> Kind | None:
        """Return how often a number turns; None if that is not known."""
        ranks = self._bound.ranks
        match expr:
            case Rank():
                return TURNS
            case Index(name=name):
                return self._indices.get(name, SAME)
            case Lookup() | Coordinate() | Param():
                return None
            case _:
                kinds = [self._kind(one) for one in children(expr)]
        if all(kind == SAME for kind in kinds):
            return SAME
        if len(kinds) != 2 or (one := kinds[0]) is None or (other := kinds[1]) is None:
            return None
        match expr:
            case Binary(op="%", right=Int(value=value)) if value == ranks:
                return (one[0] % ranks, True) if one[0] % ranks in (0, 1) else None
            case Binary(op="+" | "-" as op):
                return one[0] + (other[0] if op == "+" else -other[0]), False
            case Binary(op="*", left=Int(value=times)):
                return times * other[0], False
            case Binary(op="*", right=Int(value=times)):
                return times * one[0], False
            case Compare(op="==" | "!=") if one == other == TURNS:
                return SAME
            case _:
                return None


def _is_plain(tensor: BoundTensor) -> bool:
    """True if elements of a tensor are all defined, and have no entries, words or signals of their own."""
    decl = tensor.decl
    special = decl.space == "table" or decl.bound is not None or tensor.members is not None or tensor.packed
    return not special and tensor.credits is None and not tensor.fragments and not any(decl.defined)
