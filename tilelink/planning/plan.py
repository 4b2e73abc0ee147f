"""The plan: every tile task of every rank with its reads, writes, waits and notifies, as numpy columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.depth import deep
from tilelink.ir.program import Statement, Wait
from tilelink.ir.scalar import Env, evaluate
from tilelink.lowering.bound import Bound, Kernel
from tilelink.lowering.columns import Ints
from tilelink.lowering.enumerate import Enumerator
from tilelink.lowering.events import (
    NOTIFY,
    SUBSTEPS,
    Accesses,
    Barriers,
    ChannelBox,
    NetworkOrders,
    Signals,
    Transfers,
    channels_of,
    number_channels,
    number_tasks,
)
from tilelink.lowering.guards import Guards
from tilelink.lowering.limits import check_tiles
from tilelink.lowering.orders import TILE
from tilelink.lowering.places import Fault

SHIFT = 32
"""The key of an event, in the order of its worker, is (sequence of its task) << SHIFT | position in the task."""
BEFORE_ALL = 1 << 62
"""The number subtracted from the keys of events that happen before all others of their worker."""


_NONE = np.zeros(0, np.int64)


@lru_cache(maxsize=4)
def worker_columns(workers: tuple[tuple[int, int, int], ...]) -> Ints:
    """Return kernels, ranks and programs of workers, [3, workers]. Plans that are made of one another share them."""
    return np.array(workers, np.int64).reshape(-1, 3).T.copy()


@dataclass(frozen=True, kw_only=True)
class Representatives:
    """The blocks and ranks of a program that represent all of them, in words; nothing if all were asked.

    rotation: how ranks do as one of them does. few: those that represent any number of them.
    """

    rotation: str = ""
    few: str = ""

    def __bool__(self) -> bool:
        return bool(self.rotation or self.few)

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.rotation, self.few)))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The tasks of a bound program and their events.

    Tasks are numbered stage by stage, rank by rank, tile by tile: first_task[stage] + rank * total + t.
    """

    bound: Bound
    statements: tuple[tuple[str, Statement], ...]
    """statement number -> (stage name, statement)."""
    first_task: Mapping[str, int]
    tasks: int
    accesses: Accesses
    signals: Signals
    transfers: Transfers
    barriers: Barriers
    channel_base: Mapping[tuple[str, str], int]
    channels: int
    thresholds: Mapping[tuple[str, str], Ints] = field(repr=False)
    """(tensor, kind) -> notifies that reach each channel in one launch, [ranks, *grid counts]."""
    worker: Ints
    """task -> the sequential executor (kernel, rank, program) that runs it."""
    sequence: Ints
    """task -> its index in the sequence of its worker."""
    workers: tuple[tuple[int, int, int], ...]
    """worker -> (kernel number, rank, program)."""
    # Defaults come from factories: a plain one would be an attribute of the class too, which `LaterPlan.__getattr__` is
    # never asked for.
    guards: Guards = field(default_factory=Guards, repr=False, compare=False)
    """Parts of accesses and waits that launches decide, by the numbers in their columns `guard`."""
    boxes: tuple[ChannelBox, ...] = field(default_factory=tuple)
    """Of waits for channels that a launch decides; `Signals.box` numbers them from 1 on."""
    faults: tuple[Fault, ...] = field(default_factory=tuple)
    """Statements with an access outside of a tensor or a table; such a plan is refused."""
    network: NetworkOrders = field(default_factory=lambda: NetworkOrders(task=_NONE, position=_NONE, kind=_NONE))
    """Fences and quiets, which order the puts of programs on several nodes."""
    overtaking: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Events, as `event` numbers them, that happen before all others of their worker's stream (copy_queues.py)."""
    enumerated: tuple[object, ...] = field(default_factory=tuple, repr=False, compare=False)
    """The columns that the bound program has, as `_columns` takes them; none if that is not known."""

    @property
    def as_enumerated(self) -> bool:
        """True if its columns are those of its bound program, so that what is true of the program is true of it."""
        own = _columns(self.accesses, self.signals, self.barriers, self.worker)
        return len(self.enumerated) == len(own) and all(map(is_, self.enumerated, own))

    @property
    def small(self) -> Plan:
        """The plan of its representatives: the same is true of accesses and their order as of this one."""
        return self

    @property
    def representatives(self) -> Representatives:
        """What of its program was asked, if that represents the rest; nothing otherwise."""
        return Representatives()

    def task_name(self, task: int) -> tuple[str, int, int]:
        """Return (stage, rank, tile number) of a task."""
        name = self._starts[int(np.searchsorted(self._start_values, task, side="right")) - 1]
        return name, *divmod(int(task) - self.first_task[name], self.bound.stages[name].total)

    def tile_indices(self, task: int) -> dict[str, int]:
        """Return the domain indices of a task, index -> value."""
        name, rank, number = self.task_name(task)
        stage = self.bound.stages[name]
        env = Env(rank=rank, ranks=self.bound.ranks, params={}, indices={TILE.name: number})
        return {d.name: int(evaluate(stage.order[d.name], env)) for d in stage.stage.indices}

    def channel_name(self, channel: int) -> tuple[str, str, tuple[int, ...]]:
        """Return (tensor, kind, channel coordinates) of a channel number."""
        for key, base in reversed(list(self.channel_base.items())):
            if channel >= base:
                counts = self.bound.channels[key].counts
                return (*key, tuple(int(c) for c in np.unravel_index(channel - base, counts)))
        raise KeyError(channel)

    def key(self, task: Ints, position: Ints) -> Ints:
        """Return the keys of events, which order those of one worker (see SHIFT)."""
        keys = (self.sequence[task] << SHIFT) | position
        return np.where(self.overtakes(task, position), keys - BEFORE_ALL, keys) if len(self.overtaking) else keys

    def overtakes(self, task: Ints, position: Ints) -> NDArray[np.bool_]:
        """Mask of the events that happen before all others of their worker's stream."""
        return np.isin(self.event(task, position), self.overtaking)

    @staticmethod
    def event(task: Ints, position: Ints) -> Ints:
        """Return a number for each event: that of the execution of a statement to which it belongs."""
        return ((task << SHIFT) | position) // SUBSTEPS

    @cached_property
    def signal_keys(self) -> Ints:
        """The keys of signals; of a deferred notify, the latest one at which it is sent."""
        s = self.signals
        keys = self.key(s.task, s.position)
        return np.where(s.later > 0, ((self.sequence[s.task] + 1) << SHIFT) | s.at, keys)

    @cached_property
    def scripts(self) -> list[Ints]:
        """worker -> its signals in the order in which it executes them."""
        worker = self.worker[self.signals.task]
        order = np.lexsort((self.signal_keys, worker))
        bounds = np.searchsorted(worker[order], np.arange(len(self.workers) + 1))
        return [order[bounds[i] : bounds[i + 1]] for i in range(len(self.workers))]

    @cached_property
    def flat_thresholds(self) -> Ints:
        """[ranks, channels]: the notifies that reach each channel in one launch."""
        flat = np.zeros((self.bound.ranks, self.channels), np.int64)
        for key, base in self.channel_base.items():
            count = self.bound.channels[key].count
            flat[:, base : base + count] = self.thresholds[key].reshape(self.bound.ranks, -1)
        return flat

    def touching(self, tensors: Collection[int]) -> NDArray[np.bool_]:
        """Mask of the accesses of these tensors, by their numbers."""
        chosen = np.zeros(len(self.bound.tensors), bool)
        chosen[list(tensors)] = True
        return chosen[self.accesses.tensor]

    @cached_property
    def by_memory(self) -> Ints:
        """The accesses tensor by tensor, those of a tensor rank by rank."""
        memory = self.accesses.tensor * self.bound.ranks + self.accesses.peer
        few = len(self.bound.tensors) * self.bound.ranks < 2**15  # numbers of 16 bits are sorted in linear time
        return np.argsort(memory.astype(np.int16) if few else memory, kind="stable")

    @cached_property
    def task_ranks(self) -> Ints:
        """task -> the rank that runs it."""
        return worker_columns(self.workers)[1][self.worker]

    @cached_property
    def task_kernels(self) -> Ints:
        """task -> the number of its kernel."""
        return worker_columns(self.workers)[0][self.worker]

    @cached_property
    def counters(self) -> Ints:
        """The counter of each signal, numbered rank by rank and channel by channel; the first one of a box."""
        return self.signals.peer * self.channels + self.signals.channel

    @cached_property
    def channel_counts(self) -> Ints:
        """For each signal the number of its channels, or of those of its box."""
        return np.array([1, *(len(box.channels) for box in self.boxes)], np.int64)[self.signals.box]

    def each_channel(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return signals and channels, rising: for each of these signals its channel, or all of those of its box."""
        return channels_of(self.signals, self.boxes, rows)

    def with_channel(self, some: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mask of the signals that have a channel, or one in their box, of which `some`, [ranks, channels], is True."""
        s = self.signals
        result = some[s.peer, s.channel]
        boxed = np.flatnonzero(s.box)
        if len(boxed):
            each = np.array([some[:, box.channels].any(axis=1) for box in self.boxes])
            result[boxed] = each[s.box[boxed] - 1, s.peer[boxed]]
        return result

    @cached_property
    def channel_tensors(self) -> Ints:
        """channel -> the number of its tensor."""
        tensors = np.zeros(self.channels, np.int64)
        for (tensor, kind), grid in self.bound.channels.items():
            base = self.channel_base[tensor, kind]
            tensors[base : base + grid.count] = self.bound.tensors[tensor].number
        return tensors

    @cached_property
    def by_words(self) -> NDArray[np.bool_]:
        """Mask of the signals that words carry with their data (lowering/clauses/low_latency.py)."""
        packed = np.array([tensor.packed > 0 for tensor in self.bound.tensors.values()], bool)
        if not packed.any():
            return np.zeros(len(self.signals.task), bool)
        return packed[self.channel_tensors[self.signals.channel]]

    @cached_property
    def left_out(self) -> NDArray[np.bool_]:
        """Mask of the waits that a launch leaves out with their tile: of kernels with compact numbers."""
        compact = self.bound.compact_stages
        if not compact:
            return np.zeros(len(self.signals.task), bool)
        waits = [name in compact and isinstance(one, Wait) and not self.bound.is_placed(name, one)
                 for name, one in self.statements]  # fmt: skip
        return np.array(waits, bool)[self.signals.statement]

    @cached_property
    def _starts(self) -> list[str]:
        return [name for name, _ in sorted(self.first_task.items(), key=lambda item: item[1])]

    @cached_property
    def _start_values(self) -> Ints:
        return np.array([self.first_task[name] for name in self._starts])


class LaterPlan(Plan):
    """A plan whose columns are made when they are first asked for: what is known of it was not read off them."""

    @classmethod
    def of(
        cls,
        bound: Bound,
        thresholds: Mapping[tuple[str, str], Ints],
        small: Callable[[], Plan] | None,
        representatives: Representatives,
        make: Callable[[], Plan],
    ) -> LaterPlan:
        """Return the plan that `make` makes.

        small: makes the plan of its representatives, if there are any.
        """
        plan = cls.__new__(cls)
        (first_task, tasks), (base, channels) = number_tasks(bound), number_channels(bound)
        known = {"first_task": first_task, "tasks": tasks, "channel_base": base, "channels": channels, "_make": make}
        vars(plan).update(known, bound=bound, thresholds=thresholds, _small=small, _representatives=representatives)
        return plan

    @property
    def small(self) -> Plan:
        make = vars(self).get("_small")
        return self if make is None else make()

    @property
    def representatives(self) -> Representatives:
        return vars(self).get("_representatives", Representatives())

    def __getattr__(self, name: str) -> Any:
        if name not in _COLUMNS or "_make" not in vars(self):
            raise AttributeError(name)
        made = vars(self)["_make"]()
        vars(self).update({one: getattr(made, one) for one in _COLUMNS - vars(self).keys()})
        vars(self).pop("_make", None)  # only now: what there was no memory for can be asked for again
        return getattr(self, name)


_COLUMNS = frozenset(one.name for one in fields(Plan))


@deep()
def make_plan(bound: Bound, tables: Mapping[str, NDArray[Any]] | None = None, *, alone: bool = False) -> Plan:
    """Return the plan of a bound program. `tables`: name -> int array [ranks, *shape] for its dynamic mappings.

    alone: each tile on SMs is a program of its own (cutoff.py). Raises ScheduleError if there are too many tiles.
    """
    check_tiles(bound)
    first_task, tasks = number_tasks(bound)
    channel_base, channels = number_channels(bound)
    enumerator = Enumerator(bound, first_task, channel_base, tables or {})
    for stage in bound.stages.values():
        enumerator.stage(stage)
    enumerator.settle()
    accesses, signals, barriers = enumerator.accesses(), enumerator.signals(), enumerator.barriers()
    worker, sequence, workers = workers_of(bound, first_task, tasks, alone=alone)
    return Plan(
        bound=bound,
        statements=tuple(enumerator.statements),
        first_task=first_task,
        tasks=tasks,
        accesses=accesses,
        signals=signals,
        transfers=enumerator.transfers(),
        barriers=barriers,
        network=enumerator.network(),
        channel_base=channel_base,
        channels=channels,
        thresholds=count_thresholds(bound, signals, channel_base, channels),
        worker=worker,
        sequence=sequence,
        workers=workers,
        guards=enumerator.guards,
        boxes=tuple(enumerator.boxes),
        faults=tuple(enumerator.faults),
        enumerated=_columns(accesses, signals, barriers, worker),
    )


def _columns(*columns: Accesses | Signals | Barriers | Ints) -> tuple[object, ...]:
    """Return what of a plan follows from its bound program, and what a proof of the program is about."""
    return columns


def count_thresholds(
    bound: Bound, signals: Signals, channel_base: Mapping[tuple[str, str], int], channels: int
) -> dict[tuple[str, str], Ints]:
    """Return (tensor, kind) -> notifies that reach each channel in one launch, [ranks, *grid counts]."""
    notified = signals.kind == NOTIFY
    key = signals.peer[notified] * channels + signals.channel[notified]
    counts = np.bincount(key, minlength=bound.ranks * max(channels, 1)).reshape(bound.ranks, -1)
    result: dict[tuple[str, str], Ints] = {}
    for name, grid in bound.channels.items():
        base = channel_base[name]
        result[name] = counts[:, base : base + grid.count].reshape(bound.ranks, *grid.counts)
    return result


def workers_of(
    bound: Bound, first_task: Mapping[str, int], tasks: int, *, alone: bool = False
) -> tuple[Ints, Ints, tuple[tuple[int, int, int], ...]]:
    """Return worker, sequence and workers of a plan. alone: as for `make_plan`."""
    worker = np.zeros(tasks, np.int64)
    sequence = np.zeros(tasks, np.int64)
    workers: list[tuple[int, int, int]] = []
    for number, kernel in enumerate(bound.kernels):
        base = len(workers)
        if alone and not kernel.on_copy_engine:
            for name in kernel.stage_names:
                total, base = bound.stages[name].total, len(workers)
                workers += [(number, rank, t) for rank in range(bound.ranks) for t in range(total)]
                worker[first_task[name] : first_task[name] + bound.ranks * total] = np.arange(base, len(workers))
            continue
        workers += [(number, rank, p) for rank in range(bound.ranks) for p in range(kernel.programs)]
        _place(bound, kernel, base, first_task, worker, sequence)
    return worker, sequence, tuple(workers)


def _place(
    bound: Bound, kernel: Kernel, base: int, first_task: Mapping[str, int], worker: Ints, sequence: Ints
) -> None:
    ranks = np.arange(bound.ranks)[:, None]
    totals = [bound.stages[loop.stages[0]].total for loop in kernel.loops]
    eaches = [loop.each or max(1, total) for loop, total in zip(kernel.loops, totals, strict=True)]
    turns = [-(-each // loop.taking(kernel.programs)) * len(loop.stages)
             for loop, each in zip(kernel.loops, eaches, strict=True)]  # fmt: skip
    for number, (loop, total, each) in enumerate(zip(kernel.loops, totals, eaches, strict=True)):
        t = np.arange(total)[None, :]
        own = (t % each // loop.taking(kernel.programs)) * len(loop.stages)
        before = t // each * sum(turns) + sum(turns[:number])
        for place, name in enumerate(loop.stages):
            where = first_task[name] + ranks * total + t
            worker[where] = base + ranks * kernel.programs + loop.program(t, kernel.programs)
            sequence[where] = before + own + place
