"""A plan as the operations of its workers, in order: compute, wait, notify, move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilelink.errors import CostError, foreign
from tilelink.ir.program import ITEM_BYTES, Attend, Dot, Read, Transfer, Wait
from tilelink.ir.scalar import Int
from tilelink.ir.visitor import statements, value_of, values
from tilelink.lowering.bound import KernelKind, Transport
from tilelink.lowering.columns import Columns, Ints
from tilelink.lowering.events import NOTIFY, READ, WAIT, WRITE, Signals, Substep
from tilelink.lowering.messages import parts
from tilelink.planning.any_program import by_one, taken
from tilelink.planning.copy_queues import own_copies
from tilelink.planning.plan import Plan
from tilelink.simulator.cost import CostModel, Engine, Move, MoveTime, TileTime
from tilelink.simulator.machine import Machine
from tilelink.simulator.sampled import elements_of
from tilelink.simulator.thinned import ThinnedPlan, repeats_of, times_of
from tilelink.simulator.work import Executions, WorkOf, executions

Floats = NDArray[np.float64]
COMPUTE, AWAIT, SIGNAL, MOVE = range(4)
"""Kinds of operations."""
REACHES = ("local", "node", "network")
FAR = 2
"""Number of the network among them."""
_ENGINES: Mapping[Transport, Engine] = {Transport.COPY_ENGINE: "copy", Transport.TMA: "bulk"}


@dataclass(frozen=True, kw_only=True)
class Moves(Columns):
    """Transfers, one row each. latency, rate, efficiency and setup are as in cost.MoveTime; `size` is in bytes.

    data: the bytes without the flags of words.
    least: bytes as which a transfer counts at an adapter at least, for its messages; 0 inside a node.
    """

    source: Ints
    target: Ints
    size: Ints
    data: Ints
    reach: Ints
    by_copy_engine: NDArray[np.bool_]
    setup: Floats
    latency: Floats
    rate: Floats
    efficiency: Floats
    least: Floats


@dataclass(frozen=True, kw_only=True)
class Script:
    """Operations sorted by worker, then by execution order: worker n has rows first[n]:first[n+1].

    Tasks that programs take by a counter are in the order of their numbers, as rows of their kernel's first program,
    until a simulation knows which program takes them (`assigned`).

    `what`: the counter of a wait or notify (rank * channels + channel), the row of a move in `moves`, else -1.
    main, overhead: seconds of a computation, from the cost model; of a wait, overhead is what it takes if it finds its
    counter full.
    """

    plan: Plan = field(repr=False)
    machine: Machine
    worker: Ints
    task: Ints
    kind: Ints
    what: Ints
    main: Floats
    overhead: Floats
    first: Ints
    moves: Moves
    need: Ints
    """counter -> notifies that fill it."""
    least: Floats
    """[ranks, 3]: flops of products (for 16-bit operands; twice as many for 32-bit ones), elementwise operations, and
    special functions, without the parts of tiles beyond an edge."""
    early: NDArray[np.bool_]
    """Mask of the notifies of a copy engine to its own rank that cost nothing: they are sent before the launch."""
    waits_aside: bool
    """True if copy engines wait in parallel with their copies: a wait ends a fixed time after its counter fills."""
    staging: float
    """Seconds for copies of a rank's symmetric inputs into their buffers, before its kernels."""
    keeping: float
    """Seconds for copies of a rank's symmetric outputs out of their buffers, after its kernels."""

    @cached_property
    def worker_rank(self) -> Ints:
        """worker -> its rank."""
        return np.array([rank for _, rank, _ in self.plan.workers], dtype=np.int64)

    @cached_property
    def queues(self) -> Mapping[tuple[int, int], tuple[tuple[int, int], ...]]:
        """(kernel, rank) -> the first row of each tile that programs take by a counter, and one past its last row."""
        found: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
        for worker, (number, rank, program) in enumerate(self.plan.workers):
            kernel = self.plan.bound.kernels[number]
            if not kernel.dynamic or program:
                continue
            total = self.plan.bound.stages[kernel.name].total
            tasks = self.plan.first_task[kernel.name] + rank * total + np.arange(total)
            tasks = tasks[np.broadcast_to(repeats_of(self.plan, tasks), tasks.shape) > 0]
            begin, end = self.first[worker], self.first[worker + 1]
            rows = [*(begin + np.searchsorted(self.task[begin:end], tasks)).tolist(), int(end)]
            found[number, rank] = tuple(pairwise(rows))
        return found

    def assigned(self, worker: Ints) -> tuple[Script, Ints]:
        """Return the script whose operations are those of other workers, and the order of its rows in this one."""
        if not self.queues:
            return self, np.arange(len(worker))
        order = np.argsort(worker, kind="stable")
        columns = {name: getattr(self, name)[order] for name in ("task", "kind", "what", "main", "overhead", "early")}
        first = np.searchsorted(worker[order], np.arange(len(self.plan.workers) + 1))
        return replace(self, worker=worker[order], first=first, **columns), order

    @cached_property
    def rank(self) -> Ints:
        """operation -> its rank."""
        return self.worker_rank[self.worker]

    @cached_property
    def stored_apart(self) -> NDArray[np.bool_]:
        """Mask of the transfers and notifies that a storer executes while other warps of its program multiply."""
        found = np.zeros(len(self.task), bool)
        for name, stage in self.plan.bound.stages.items():
            if stage.kind is KernelKind.ROLES:
                first = self.plan.first_task[name]
                found |= (self.task >= first) & (self.task < first + stage.total * self.plan.bound.ranks)
        return found & ((self.kind == MOVE) | (self.kind == SIGNAL))


@dataclass(frozen=True, kw_only=True)
class _Operations(Columns):
    """Operations in any order. sub: their order within a position of a task. The others are as in Script."""

    task: Ints
    position: Ints
    sub: Ints
    kind: Ints
    what: Ints
    main: Floats
    overhead: Floats


def _operations(
    kind: int, task: Ints, position: Ints, *, sub: int = 0, what: Ints | int = -1,
    main: Floats | float = 0.0, overhead: Floats | float = 0.0,
) -> _Operations:  # fmt: skip
    n = len(task)
    return _Operations(
        task=task,
        position=position,
        sub=np.full(n, sub, np.int64),
        kind=np.full(n, kind, np.int64),
        what=np.broadcast_to(np.asarray(what, np.int64), (n,)),
        main=np.broadcast_to(np.asarray(main, np.float64), (n,)),
        overhead=np.broadcast_to(np.asarray(overhead, np.float64), (n,)),
    )


def make_script(
    plan: Plan,
    machine: Machine,
    cost: CostModel,
    tables: Mapping[str, NDArray[Any]] | None = None,
) -> Script:
    """Return the operations of every worker, with their costs.

    tables: those that the plan was made with, and the entries of index tensors, if it is that of a launch.
    """
    engines = [kernel for kernel in plan.bound.kernels if kernel.on_copy_engine]
    own_first = all(kernel.own_copies_first for kernel in engines)
    builder = _Builder(plan, machine, cost, tables)
    for one in executions(plan, tables):
        builder.statement(one)
    builder.signals()
    every = _Operations.joined(builder.operations, main=np.zeros(0), overhead=np.zeros(0))
    times = times_of(plan, every.task, every.position)
    times = np.where(every.kind == COMPUTE, times, 1.0)  # waits of tiles that are left out are operations of their own
    every = replace(every, main=every.main * times, overhead=every.overhead * times)
    in_line = by_one(plan, np.flatnonzero(taken(plan)))
    worker = in_line.worker[every.task]
    early = np.isin(plan.event(every.task, every.position), own_copies(plan).events) & own_first
    order = np.lexsort((every.sub, every.position, in_line.sequence[every.task], ~early, worker))
    ordered = every.pick(order)
    keep, main, overhead = _merged(ordered)
    worker, task, kind, what = (c[keep] for c in (worker[order], ordered.task, ordered.kind, ordered.what))
    rank = np.array([r for _, r, _ in plan.workers], dtype=np.int64)[worker]
    return Script(
        plan=plan,
        machine=machine,
        worker=worker,
        task=task,
        kind=kind,
        what=what,
        main=main,
        overhead=overhead,
        first=np.searchsorted(worker, np.arange(len(plan.workers) + 1)),
        moves=_for_all(plan, builder.moves(), every),
        need=_needs(plan),
        least=builder.least,
        early=early[order][keep] & (kind == SIGNAL) & (what // max(plan.channels, 1) == rank),
        waits_aside=all(kernel.waits_aside for kernel in engines),
        staging=_copied(plan, "in", machine, cost),
        keeping=_copied(plan, "out", machine, cost),
    )


def _for_all(plan: Plan, moves: Moves, operations: _Operations) -> Moves:
    """Return the moves of the tasks of a plan with the times of all for which they stand."""
    if not isinstance(plan, ThinnedPlan) or not len(moves.size):
        return moves
    rows = operations.kind == MOVE
    task, position = (np.zeros(len(moves.size), np.int64) for _ in range(2))
    task[operations.what[rows]], position[operations.what[rows]] = operations.task[rows], operations.position[rows]
    times, load = plan.times(task, position), plan.load[task]
    return replace(
        moves, size=moves.size * times, data=moves.data * times, setup=moves.setup * times,
        latency=moves.latency * times, efficiency=moves.efficiency / load, least=moves.least * times * load,
    )  # fmt: skip


def _merged(operations: _Operations) -> tuple[Ints, Floats, Floats]:
    """Merge neighbouring computations of a task; return (rows that stay, their main, their overhead)."""
    task, kind, main, overhead = operations.task, operations.kind, operations.main, operations.overhead
    if not len(task):
        return np.zeros(0, np.int64), main, overhead
    same = (task[1:] == task[:-1]) & (kind[1:] == COMPUTE) & (kind[:-1] == COMPUTE)
    keep = np.flatnonzero(np.concatenate([[True], ~same]))
    return keep, np.add.reduceat(main, keep), np.add.reduceat(overhead, keep)


def _copied(plan: Plan, space: str, machine: Machine, cost: CostModel) -> float:
    """Return the seconds of the copies, one by one, between a rank's symmetric tensors and those of its caller."""
    move = _asked(cost, "move", (Move(engine="copy", reach="local"), machine), MoveTime)
    sizes = [
        t.size * ITEM_BYTES[t.dtype] for t in plan.bound.tensors.values() if t.decl.space == space and t.decl.symmetric
    ]
    return sum(machine.kernel_gap + move.setup + size / move.rate + move.latency for size in sizes)


def _needs(plan: Plan) -> Ints:
    grids = [plan.thresholds[key].reshape(plan.bound.ranks, -1) for key in plan.bound.channels]
    return np.concatenate(grids, axis=1).ravel() if grids else np.zeros(0, np.int64)


Time = TypeVar("Time", TileTime, MoveTime)


def _asked(cost: CostModel, method: Literal["tile", "move"], about: tuple[Any, ...], kind: type[Time]) -> Time:
    """Return the answer of a cost model. Raises CostError if it is not a `kind`: models need not be typed."""
    name = type(cost).__name__
    with foreign(f"{method} of the cost model {name} failed", CostError):
        time = getattr(cost, method)(*about)
    if not isinstance(time, kind):
        raise CostError(f"{name} returns {time!r}", hint=f"return a {kind.__name__}")
    return time


class _Builder:
    """Builds the operations of statements, with their costs, one statement after the other."""

    def __init__(
        self, plan: Plan, machine: Machine, cost: CostModel, tables: Mapping[str, NDArray[Any]] | None
    ) -> None:
        self.plan = plan
        self.machine = machine
        self.kinds, self.kind_of = machine.by_rank(plan.bound.ranks)
        self.cost = cost
        self.operations: list[_Operations] = []
        self.work_of = WorkOf(plan, tables)
        self.elements = elements_of(plan)
        self.kernel_of = {name: kernel for kernel in plan.bound.kernels for name in kernel.stage_names}
        self.items = self.work_of.items
        self.least = np.zeros((plan.bound.ranks, 3))
        self.transfers_seen = 0
        self.moves_made = 0
        self.move_parts: list[Moves] = []

    def statement(self, one: Executions) -> None:
        """Add the operations of a statement that computes or moves; `signals` adds all waits and notifies."""
        moves = isinstance(one.statement, Transfer)
        if not moves:
            self._remote_reads(one)
        for alike, work in self.work_of.works(one):
            if moves and not (work.products or work.elementwise or work.special):
                continue
            self._count(alike, work.item)
            times = [_asked(self.cost, "tile", (work, kind), TileTime) for kind in self.kinds]
            each = np.array([(time.main, time.overhead) for time in times]) / self.work_of.slices(alike)
            main, overhead = each[self.kind_of[self._ranks(alike, alike.task)]].T
            self.operations.append(_operations(COMPUTE, alike.task, alike.position, main=main, overhead=overhead))
        if moves:
            self._transfer(one)

    def _count(self, one: Executions, item: int) -> None:
        operations = self.work_of.least(one) * np.array([item / 2, 1.0, 1.0])
        np.add.at(self.least, self._ranks(one, one.task), operations)

    def _remote_reads(self, one: Executions) -> None:
        """Add transfers for operands on other ranks, which precede the computation."""
        rows = self.work_of.accesses(one.number)
        a = self.plan.accesses
        rows = rows[a.kind[rows] == READ]
        own = self._ranks(one, a.task[rows])
        rows, own = rows[a.peer[rows] != own], own[a.peer[rows] != own]
        if len(rows):
            what = self._move(one, "pull", own, a.peer[rows], own, self.elements[rows], a.tensor[rows])
            self.operations.append(_operations(MOVE, a.task[rows], a.position[rows], sub=-1, what=what))

    def _ranks(self, one: Executions, task: Ints) -> Ints:
        return (task - self.plan.first_task[one.stage.name]) // one.stage.total

    def _transfer(self, one: Executions) -> None:
        assert isinstance(one.statement, Transfer)
        t = self.plan.transfers
        rows = np.arange(self.transfers_seen, self.transfers_seen + len(one.task))
        self.transfers_seen += len(one.task)
        own = self._ranks(one, one.task)
        source, target = own, t.peer[rows]
        fetched = isinstance(one.statement.source, Read) and one.statement.target.rank is None
        engine: Engine = "push"
        if fetched and one.statement.mode != "push":
            source, target, engine = target, own, "pull"
        messages = self._messages(one, rows, READ if engine == "pull" else WRITE) if len(rows) else None
        what = self._move(one, engine, own, source, target, t.elements[rows], t.tensor[rows], messages)
        self.operations.append(_operations(MOVE, one.task, t.position[rows], what=what))

    def _messages(self, one: Executions, rows: Ints, kind: int) -> Ints:
        """Return the messages of transfers, by their rows: contiguous parts of what they access on the other rank.

        kind: that access, READ or WRITE.
        """
        a, t = self.plan.accesses, self.plan.transfers
        there = self.work_of.accesses(one.number)
        there = there[a.kind[there] == kind]
        shape = self.plan.bound.tensor_numbered(int(t.tensor[rows[0]])).shape
        there = there[a.tensor[there] == t.tensor[rows[0]]]
        key, wanted = self.plan.event(a.task[there], a.position[there]), self.plan.event(t.task[rows], t.position[rows])
        order = np.argsort(wanted, kind="stable")
        at = order[np.minimum(np.searchsorted(wanted[order], key), len(rows) - 1)]
        own = wanted[at] == key
        found = np.ones(len(rows), np.int64)
        np.maximum.at(found, at[own], parts(a.lo[there[own]], a.hi[there[own]], shape))
        return found

    def _least(self, messages: Ints) -> Floats:
        return messages.astype(np.float64) * (self.machine.network_bandwidth / self.machine.network_messages)

    def _move(
        self, one: Executions, engine: Engine, own: Ints, source: Ints, target: Ints, elements: Ints, tensor: Ints,
        messages: Ints | None = None,
    ) -> Ints:  # fmt: skip
        """Add moves of elements of tensors, with costs by engine and reach, and return their rows.

        own: the ranks that execute them. messages: None for one each.
        """
        if not len(elements):
            return np.empty(0, np.int64)  # as with one rank: a stage without tiles has no mean size of a move
        size, data = elements * self.items[tensor], elements * self.work_of.data[tensor]
        kernel = self.kernel_of[one.stage.name]
        node = self.machine.node_ranks
        reach = np.where(source == target, 0, np.where(source // node == target // node, 1, 2))
        by_copy = one.stage.transport is Transport.COPY_ENGINE
        engine = _ENGINES.get(one.stage.transport, engine)
        busy = min(kernel.programs_per_cta, -(-one.stage.total // kernel.blocks))
        moves = [
            Move(engine=engine, reach=far, programs=self.work_of.programs[one.stage.name], warps=kernel.num_warps,
                 workers=kernel.programs_per_cta, busy=busy, size=float(size.mean()))
            for far in REACHES
        ]  # fmt: skip
        times = [[_asked(self.cost, "move", (move, kind), MoveTime) for move in moves] for kind in self.kinds]
        table = np.array([[(t.setup, t.latency, t.rate, t.efficiency) for t in own_times] for own_times in times])
        setup, latency, rate, efficiency = table[self.kind_of[own], reach].T
        least = self._least(np.ones(len(size), np.int64) if messages is None else messages) * (reach == FAR)
        self.move_parts.append(
            Moves(
                source=source,
                target=target,
                size=size,
                data=data,
                reach=reach,
                by_copy_engine=np.full(len(size), by_copy),
                setup=setup,
                latency=latency,
                rate=rate,
                efficiency=efficiency,
                least=least,
            )
        )
        what = np.arange(self.moves_made, self.moves_made + len(size))
        self.moves_made += len(size)
        return what

    def moves(self) -> Moves:
        none = np.zeros(0)
        return Moves.joined(
            self.move_parts,
            by_copy_engine=none.astype(bool),
            setup=none,
            latency=none,
            rate=none,
            efficiency=none,
            least=none,
        )

    def signals(self) -> None:
        """Add all waits and notifies."""
        s, what = self.plan.signals, self.plan.counters
        for kind, signal in ((AWAIT, WAIT), (SIGNAL, NOTIFY)):
            rows = np.flatnonzero(s.kind == signal)
            rows = rows[~self._left_out(s.pick(rows))] if signal == WAIT else rows
            # a statement computes with words when it has waited for them
            earlier = np.where(self.plan.by_words[rows] & (signal == WAIT), Substep.ARRIVED + 1, 0)
            look = self._look(s.pick(rows)) if signal == WAIT else 0.0
            position = s.position[rows] - earlier
            self.operations.append(_operations(kind, s.task[rows], position, what=what[rows], overhead=look))
        if isinstance(self.plan, ThinnedPlan):
            self._looks(self.plan)

    def _looks(self, plan: ThinnedPlan) -> None:
        """Add what waits take that find their counter full, and those of tiles for which others stand."""
        waits = plan.signals.pick(plan.signals.kind == WAIT)
        left = self._left_out(Signals.joined([waits, plan.passed]))
        for some, out, awaited in ((waits, left[: len(waits.task)], 1), (plan.passed, left[len(waits.task) :], 0)):
            times = plan.times(some.task, some.position)
            looks = np.where(self._once[plan.task_kernels[some.task]], plan.repeats[some.task], times) - awaited
            rows = np.flatnonzero(~out & (looks > 0))
            look = self._look(some)[rows] * (looks / times)[rows]
            self.operations.append(_operations(COMPUTE, some.task[rows], some.position[rows], sub=1, overhead=look))

    def _look(self, waits: Signals) -> Floats:
        """Return what each wait takes that finds its counter full. Counters along one dimension are polled together."""
        kind = self.kind_of[self.plan.task_ranks[waits.task]]
        between, bare = np.array([(one.wait, one.bare_wait) for one in self.kinds])[kind].T
        alone, together = self._bare[waits.statement].T
        order = np.lexsort((waits.statement, waits.position, waits.task))
        key, again = np.stack([waits.task, waits.position, waits.statement])[:, order], np.zeros(len(order), bool)
        again[order[1:]] = (np.diff(key) == 0).all(axis=0)
        return np.where(alone, np.where(together & again, 0.0, bare), between)

    @cached_property
    def _bare(self) -> NDArray[np.bool_]:
        """[statement, 2]: True of a wait of a stage that multiplies nothing, and of one for counters in a row."""
        bound, found = self.plan.bound, np.zeros((len(self.plan.statements), 2), bool)
        for number, (name, statement) in enumerate(self.plan.statements):
            if not isinstance(statement, Wait):
                continue
            computed = [value for one in statements(bound.stages[name].stage.body) if (value := value_of(one))]
            multiplies = any(isinstance(part, Dot | Attend) for value in computed for part in values(value))
            grid = bound.channels[statement.region.tensor, statement.kind]
            many = [one for one in bound.tile_map(name, statement.region).channel_range(grid) if one.count != 1]
            row = len(many) == 1 and many[0].count is not None and isinstance(many[0].low, Int)
            found[number] = not multiplies, row
        return found

    @cached_property
    def _once(self) -> NDArray[np.bool_]:
        """kernel -> True if its loader leaves out waits of iterations."""
        stages, kernels = self.plan.bound.stages, self.plan.bound.kernels
        return np.array([any(stages[name].skips_repeated_waits for name in one.stage_names) for one in kernels], bool)

    def _left_out(self, waits: Signals) -> NDArray[np.bool_]:
        """Mask of the waits that loaders leave out, taken to be those for a channel that their tile has awaited."""
        channel = waits.peer * self.plan.channels + waits.channel
        order = np.lexsort((waits.position, channel, waits.task))
        again = (np.diff(waits.task[order]) == 0) & (np.diff(channel[order]) == 0)
        left = np.zeros(len(order), bool)
        left[order[1:][again]] = True
        return left & self._once[self.plan.task_kernels[waits.task]]
