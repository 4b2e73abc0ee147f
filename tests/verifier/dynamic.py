"""An independent check of plans: runs a plan's tasks on abstract ranks in random interleavings and watches memory.

It shares the plan with the verifier and nothing else. Tensors are cut into cells between the edges of all accesses;
each cell knows its last write and its last reads as vector clocks (Fidge 1988; races as in Flanagan and Freund,
FastTrack, 2009). A failure that it reports can happen; that it reports none proves nothing. A program's own threads
meet at its waits and barriers alone: two statements that touch a cell between two meetings fail, if one writes it.

On several nodes a network is in between. What a program puts, and the signals that the network carries, lie in a bag of
that program until its agent delivers them, in any order: data is read and written then, by a thread of its own. A fence
keeps what one program sends to one rank in order, a quiet waits for all of it, and a signal that is put with data is
delivered right after the data. What reaches another node in another way fails.

Words of data and flag are stored in two parts at some time after their turn, and a read of words waits for the flags of
its cells. What a plan says of their signals is counted and tells nobody anything. A clock has two halves: what is known
by signals, and what is known in addition by words, in time alone. Only who writes words again makes use of that.

What it takes for granted: programs of a kernel are dispatched in their order, kernels of different streams in any;
a notify releases and a wait acquires; the host starts a launch of its rank after the one before has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NoReturn

import numpy as np

from tilelink.ir.program import Literal
from tilelink.ir.visitor import reads, received, value_of
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import NOTIFY, READ, WAIT, WRITE, Substep
from tilelink.planning.plan import Plan

KINDS = ("deadlock", "outside", "unwritten", "epoch", "step", "race", "threads", "output", "overshoot", "unreachable")
DATA = (READ, WRITE)
BARRIER, FENCE, QUIET, PUT = range(4, 8)
ADDED = -2
"""Stands for all additions to memory, each of which is made at once: `together` of such a write."""
TOGETHER = 32
"""Bits of a place's last load or store that say what was done together; those above say after which meeting it was."""
Condition = Callable[[], bool]
Steps = Generator[Condition | None]


_some = np.count_nonzero
"""Whether something is true of an array: of small ones it costs far less to count than to ask for any."""


def _ended() -> bool:
    """Stands for the end of a thread."""
    return False


def _holds(condition: Condition | None) -> bool:
    return condition is None or condition()


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What went wrong first in one interleaving. `kind` is one of KINDS."""

    kind: str
    launch: int
    rank: int
    what: str

    def __str__(self) -> str:
        return f"{self.kind} in launch {self.launch} on rank {self.rank}: {self.what}"


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


@dataclass(frozen=True, kw_only=True)
class _Op:
    """A step of a task. `cells`: of the tensor, for READ and WRITE. `number`: of the tensor or the channel.

    together: what else its threads do has the same number: the loads and stores of a statement, each element in one.
    carried: the network carries it. thread: of a PUT, which reads `source` and writes `cells`; signals: those with it.
    """

    kind: int
    peer: int
    number: int
    task: int
    cells: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    outside: bool = False
    together: int = -1
    carried: bool = False
    thread: int = -1
    source: _Op | None = None
    signals: tuple[int, ...] = ()
    words: bool = False
    """It is a send of words, or a read that waits for them."""
    step: int = 0
    """Of cells that hold some steps of a tensor at a time: the step that is meant."""


def _mixes(node: Any) -> bool:
    """Whether elements of a statement's value, or of a value, may come of elements at other places."""
    match type(node).__name__:
        case "Read" | "Local" | "Literal" | "FromScalar":
            return False
        case "Assign" | "Store" | "Cast":
            return _mixes(node.value)
        case "Transfer":
            return _mixes(node.source)
        case "Apply":
            return any(map(_mixes, node.args))
        case _:
            return True


def _carries(statement: Any) -> bool:
    """Whether words carry the signals of a statement."""
    value = value_of(statement)
    return getattr(statement, "mode", "") == "send" or (value is not None and bool(received(value)))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sent:
    """A put or a signal on its way to `peer`, or (op None) a step of a counter between hosts.

    fences: of its sender before it. clock: of its sender.
    """

    op: _Op | None
    launch: int
    peer: int
    fences: int
    clock: Ints
    counter: tuple[object, ...]


def each_channel(plan: Plan) -> Plan:
    """Return an equal plan, in which a wait for channels that a launch decides has a row for each of its box."""
    rows, channels = plan.each_channel(np.arange(len(plan.signals.task)))
    return replace(plan, signals=replace(plan.signals.pick(rows), channel=channels, box=np.zeros_like(rows)))


class Script:
    """A plan unrolled for execution: the steps of every worker, cells of tensors, thresholds of channels."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan = each_channel(plan)
        self.bound = bound = plan.bound
        self.ranks = bound.ranks
        self.tensors = {t.number: t for t in bound.tensors.values()}
        self.absent = {(t.number, r) for t in bound.tensors.values() for r in range(bound.ranks) if not t.on(r)}
        self.nodes = [int(bound.node_of(np.array(rank))) for rank in range(bound.ranks)]
        self.buffers = {t.number: t.buffers for t in bound.tensors.values()}
        self.edges = self._edges()
        self.cells = {n: int(np.prod([len(e) - 1 for e in edges])) for n, edges in self.edges.items()}
        self.base: dict[int, int] = {}
        self.places = 0
        for number, cells in self.cells.items():
            self.base[number] = self.places
            self.places += cells * self.ranks * self.buffers[number]
        self.all = {number: np.arange(cells) for number, cells in self.cells.items()}
        self._at: dict[tuple[int, int, int, int], slice | Ints] = {}
        self.channel_slots = np.ones(max(plan.channels, 1), np.int64)
        self.threshold = np.zeros((self.ranks, max(plan.channels, 1)), np.int64)
        self.awaited = np.zeros((self.ranks, max(plan.channels, 1)), bool)
        self.exits: list[int] = []
        self._channels()
        self.puts = 0
        """Puts of all workers, each of which has a thread of its own."""
        self.workers = self._workers()
        self.added = {op.number for ops in self.workers for op in ops if op.together == ADDED}
        """The tensors with additions: nobody has to look for those to others."""

    def _edges(self) -> dict[int, list[Ints]]:
        a, edges = self.plan.accesses, {}
        for tensor in self.bound.tensors.values():
            rows = a.tensor == tensor.number
            edges[tensor.number] = [
                np.unique(np.concatenate([np.clip(a.lo[rows, d], 0, n), np.clip(a.hi[rows, d], 0, n), [0, n]]))
                for d, n in enumerate(tensor.shape)
            ]
            if tensor.steps is not None:
                edges[tensor.number][tensor.steps[0]] = np.arange(tensor.steps[1] + 1)
        return edges

    def _step(self, number: int, lo: Sequence[int]) -> tuple[int, int]:
        """(step, its slot) of a box of a tensor that holds some steps at a time, else zeros."""
        steps = self.tensors[number].steps
        return (lo[steps[0]], lo[steps[0]] % steps[1]) if steps is not None else (0, 0)

    def _channels(self) -> None:
        plan = self.plan
        for key, grid in self.bound.channels.items():
            here = slice(plan.channel_base[key], plan.channel_base[key] + grid.count)
            self.channel_slots[here] = grid.buffers
            self.threshold[:, here] = plan.thresholds[key].reshape(self.ranks, -1)
            decl = self.bound.tensors[grid.tensor].decl
            if decl.space == "out" and decl.symmetric:
                self.exits += range(here.start, here.stop)
        waits = plan.signals.kind == WAIT
        self.awaited[plan.signals.peer[waits], plan.signals.channel[waits]] = True
        self.awaited[:, self.exits] = True

    def _workers(self) -> list[list[_Op]]:
        plan = self.plan
        steps: dict[int, list[tuple[int, int, _Op]]] = defaultdict(list)
        numbers: dict[object, int] = {}
        puts: dict[tuple[int, int, int], list[_Op]] = defaultdict(list)
        a, s = plan.accesses, plan.signals
        boxes = np.concatenate([a.tensor[:, None], a.lo, a.hi], axis=1).tolist()
        dims = a.lo.shape[1]
        known = {box: self._locate(box[0], box[1 : 1 + dims], box[1 + dims :]) for box in set(map(tuple, boxes))}
        columns = (a.task, a.position, a.kind, a.peer, a.statement)
        for box, task, position, kind, peer, statement in zip(boxes, *(c.tolist() for c in columns), strict=True):
            number, (cells, outside) = box[0], known[tuple(box)]
            step, _ = self._step(number, box[1 : 1 + dims])
            execution = (task, statement, position - (kind == WRITE), _mixes(plan.statements[statement][1]) and kind)
            together = numbers.setdefault(execution, len(numbers))
            adds = kind == WRITE and getattr(plan.statements[statement][1], "adds", False)
            op = _Op(
                kind=kind, peer=peer, number=number, task=task, cells=cells, outside=outside,
                together=ADDED if adds else together, step=step,
                words=self._by_words(kind, number, plan.statements[statement][1]),
            )  # fmt: skip
            mode = getattr(plan.statements[statement][1], "mode", "")
            if mode == "put":
                puts[task, statement, position - (Substep.WRITE if kind == WRITE else Substep.READ)].append(op)
                continue
            steps[task].append((0, position, replace(op, carried=mode == "get" and kind == READ)))
        told = self._told_with_puts(puts)
        for (task, statement, position), (read, *writes) in puts.items():
            for write in writes:
                own = tuple(told.pop((task, statement, position), ()))
                op = replace(write, kind=PUT, carried=True, thread=self.puts, source=read, signals=own)
                steps[task].append((0, position + Substep.WRITE, op))
                self.puts += 1
        network = plan.network
        for task, position, kind in zip(
            *(c.tolist() for c in (network.task, network.position, network.kind)), strict=True
        ):
            steps[task].append((0, position, _Op(kind=QUIET if kind else FENCE, peer=0, number=0, task=task)))
        for task, position in zip(plan.barriers.task.tolist(), plan.barriers.position.tolist(), strict=True):
            steps[task].append((0, position, _Op(kind=BARRIER, peer=0, number=0, task=task)))
        columns = (s.task, np.where(s.later > 0, s.at, s.position), s.kind, s.peer, s.channel, s.later, s.statement)
        for row, (task, position, kind, peer, number, later, statement) in enumerate(
            zip(*(c.tolist() for c in columns), strict=True)
        ):
            if row in self.with_data:
                continue
            one = plan.statements[statement][1]
            carried = getattr(one, "by_network", False) or getattr(one, "mode", "") == "put"
            op = _Op(kind=kind, peer=peer, number=number, task=task, carried=carried and kind == NOTIFY,
                     words=_carries(one))  # fmt: skip
            steps[task].append((later, position, op))
        workers: list[list[tuple[int, int, _Op]]] = [[] for _ in plan.workers]
        for task, own in steps.items():  # what is done later is done in the program's next task
            sequence = int(plan.sequence[task])
            workers[plan.worker[task]] += [(sequence + later, position, op) for later, position, op in own]
        return [[op for *_, op in sorted(own, key=lambda step: step[:2])] for own in workers]

    def _by_words(self, kind: int, number: int, statement: Any) -> bool:
        """Whether an access is one of words."""
        if not self.bound.tensor_numbered(number).packed:
            return False
        if kind == WRITE:
            return getattr(statement, "mode", "") == "send"
        name, value = self.bound.tensor_numbered(number).name, value_of(statement) or Literal(value=0)
        if not any(one.tensor == name for one in reads(value)):
            return True  # an entry that is looked up, which a kernel waits for wherever it does so
        return any(one.region.tensor == name for one in received(value))

    def _told_with_puts(self, puts: Mapping[tuple[int, int, int], list[_Op]]) -> dict[tuple[int, int, int], list[int]]:
        """The channels that are signalled with each put (task, statement, position); their rows are `with_data`."""
        s, there = self.plan.signals, {place: {op.peer for op in ops[1:]} for place, ops in puts.items()}
        told: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.with_data: set[int] = set()
        columns = (c.tolist() for c in (s.task, s.statement, s.position, s.kind, s.channel, s.peer))
        for row, (task, statement, position, kind, channel, peer) in enumerate(zip(*columns, strict=True)):
            place = (task, statement, position - Substep.SIGNAL)
            if kind == NOTIFY and peer in there.get(place, ()):
                told[place].append(channel)
                self.with_data.add(row)
        return told

    def _locate(self, number: int, lo: Sequence[int], hi: Sequence[int]) -> tuple[Ints, bool]:
        """(cells of a box, whether it leaves the tensor)."""
        shape, steps = self.tensors[number].shape, self.tensors[number].steps
        linear = np.zeros(1, np.int64)
        for d, edges in enumerate(self.edges[number]):
            if steps is not None and d == steps[0]:
                first = self._step(number, lo)[1]
                last = first + 1
            else:
                first, last = np.searchsorted(edges, [max(lo[d], 0), min(hi[d], shape[d])])
            linear = (linear[:, None] * (len(edges) - 1) + np.arange(first, last)).ravel()
        outside = any(lo[d] < 0 or hi[d] > n for d, n in enumerate(shape))
        return linear, outside

    def place(self, number: int, rank: int, launch: int) -> int:
        """Where the cells of a tensor's buffer begin."""
        buffers = self.buffers[number]
        return self.base[number] + (rank * buffers + (launch - 1) % buffers) * self.cells[number]

    def at(self, number: int, rank: int, cells: Ints, launch: int) -> slice | Ints:
        """Where cells of a tensor are in a launch: a slice if they are one after another, which costs far less."""
        key = (id(cells), number, rank, (launch - 1) % self.buffers[number])
        if (found := self._at.get(key)) is None:
            found = cells + self.place(number, rank, launch)
            if len(found) and (np.diff(found) == 1).all():
                found = slice(int(found[0]), int(found[-1]) + 1)
            self._at[key] = found
        return found


def launches_for(plan: Plan) -> int:
    """Three, or as many as it takes to use a buffer for the second time."""
    return max(3, 1 + max(t.buffers for t in plan.bound.tensors.values()))


def check(plan: Plan | Script, seeds: Iterable[int] = range(6), launches: int | None = None) -> list[Failure]:
    """The failures met in the interleavings of these seeds, at most one for each; it stops at the first."""
    script = plan if isinstance(plan, Script) else Script(plan)
    for seed in seeds:
        try:
            Execution(script, seed, launches or launches_for(script.plan)).run()
        except _Failed as failed:
            return [failed.failure]
    return []


class Execution:
    """One interleaving of some launches. Threads are the plan's workers and a host for each rank."""

    def __init__(self, script: Script, seed: int, launches: int) -> None:
        self.script, self.plan, self.bound = script, script.plan, script.bound
        self.launches, self.ranks = launches, script.ranks
        self.random = Random(seed)
        self.workers = len(self.plan.workers)
        self.hosts = self.workers + self.ranks
        threads = self.hosts + script.puts
        self.sent_away: list[list[_Sent]] = [[] for _ in range(self.hosts)]
        """Messages that each worker and host has sent through the network and that are not delivered."""
        self.fences = [0] * self.hosts
        self.arrived: dict[tuple[int, int], list[tuple[int, Ints]]] = defaultdict(list)
        """(thread, rank) -> (number of fences before it, clock) of what was delivered since the last quiet."""
        self.threads = threads
        self.clock = np.zeros((threads, 2 * threads), np.int64)
        np.fill_diagonal(self.clock, 1)
        slots = int(script.channel_slots.max())
        self.count = np.zeros((self.ranks, slots, script.channel_slots.size), np.int64)
        self.sent: dict[tuple[object, ...], Ints] = {}
        self.entered, self.finished = ([[0] * self.ranks for _ in range(self.ranks)] for _ in range(2))
        self.opened = [0] * self.ranks
        self.done = [0] * self.workers
        self.in_threads = [
            self.bound.many_threads and not self.bound.kernels[number].on_copy_engine
            for number, *_ in self.plan.workers
        ]
        self.admitted = [0] * self.workers
        self.free = [self.bound.resident_programs] * self.ranks
        self.writer = np.zeros(script.places, np.int64)
        self.written = np.zeros(script.places, np.int64)
        self.epoch = np.zeros(script.places, np.int64)
        self.flag = np.zeros(script.places, np.int64)
        """Of words: the launch that sent them, and what was known in time then."""
        self.known = np.zeros((script.places, threads), np.int64)
        for tensor in (t for t in self.bound.tensors.values() if t.decl.space == "kept"):
            first = script.base[tensor.number]  # zeros, from before any launch
            self.epoch[first : first + script.cells[tensor.number] * self.ranks] = -1
        self.times = np.zeros(script.places, np.int64)
        self.step = np.zeros(script.places, np.int64)
        self.reader = np.zeros((script.places, threads), np.int64)
        self.adder = np.zeros((script.places, threads), np.int64)
        self.meeting = 0
        """Counts the meetings of the threads of all workers; `met` is each worker's last one."""
        self.met = [0] * threads
        self.stored = np.full(script.places, -1)
        self.loaded = np.full((script.places, threads), -1)
        """Of a place, meeting and `together` of the last store, and of the last load of each worker."""

    # Scheduling ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises _Failed at the first failure."""
        steps = [self._worker(n) for n in range(self.workers)] + [self._host(r) for r in range(self.ranks)]
        if self.bound.nodes > 1:
            steps += [self._agent(n) for n in range(self.hosts)]
        waiting: dict[int, Condition | None] = dict.fromkeys(range(len(steps)))
        order = self._priorities(len(steps))
        while min(waiting, default=self.hosts) < self.hosts or any(self.sent_away):
            ready = (n for n in order() if n in waiting and _holds(waiting[n]))
            thread = next(ready, None)
            if thread is None:
                self._deadlock()
            else:
                self._burst(thread, steps[thread], waiting)
        self._totals()

    def _burst(self, thread: int, steps: Steps, waiting: dict[int, Condition | None]) -> None:
        """Some steps of one thread, until it has to wait."""
        for _ in range(self.random.choice((1, 2, 5, 1000))):
            condition = next(steps, _ended)
            if condition is _ended:
                del waiting[thread]
                return
            waiting[thread] = condition
            if not _holds(condition):
                return

    def _priorities(self, threads: int) -> Callable[[], list[int]]:
        """In which order threads are asked: at random, or by priorities that sometimes change, of threads or ranks."""
        order = list(range(threads))
        self.random.shuffle(order)
        rank = [r for _, r, _ in self.plan.workers] + list(range(self.ranks))
        rank += rank  # agents
        style = self.random.choice(("any", "thread", "rank"))
        if style == "rank":
            favour = self.random.sample(range(self.ranks), self.ranks)
            order.sort(key=lambda thread: favour.index(rank[thread]))

        def ask() -> list[int]:
            if style == "any":
                self.random.shuffle(order)
            elif self.random.random() < 0.01:
                order.append(order.pop(0))
            return order

        return ask

    def _deadlock(self) -> NoReturn:
        stuck = [n for n in range(self.workers) if self.done[n] < self.launches]
        number, rank, program = self.plan.workers[stuck[0]] if stuck else (0, 0, 0)
        name = self.bound.kernels[number].name
        launch = self.done[stuck[0]] + 1 if stuck else self.launches
        what = f"program {program} of {name} and {len(stuck) - 1} more never end" if stuck else "a host never ends"
        raise _Failed(Failure(kind="deadlock", launch=launch, rank=rank, what=what))

    def _totals(self) -> None:
        for slot in range(self.count.shape[1]):
            rounds = (self.launches - slot - 1) // self.script.channel_slots + 1
            wrong = (self.count[:, slot] != self.script.threshold * rounds) & self.script.awaited
            wrong &= slot < self.script.channel_slots
            for rank, channel in np.argwhere(wrong)[:1]:
                what = f"{self.plan.channel_name(int(channel))} has {self.count[rank, slot, channel]} notifies"
                raise _Failed(Failure(kind="overshoot", launch=self.launches, rank=int(rank), what=what))

    # Threads -------------------------------------------------------------------------------------------------

    def _host(self, rank: int) -> Steps:
        me = self.workers + rank
        tensors = [tensor for tensor in self.bound.tensors.values() if tensor.on(rank)]
        inputs = [t for t in tensors if t.decl.space in ("in", "table")]
        outputs = [t for t in tensors if t.decl.space in ("out", "inout")]
        kept = [t for t in tensors if t.decl.space == "inout"]
        lag = min((t.buffers for t in inputs if t.decl.symmetric), default=0)
        own = [n for n in range(self.workers) if self.plan.workers[n][1] == rank]
        for launch in range(1, self.launches + 1):
            if lag:
                yield from self._peers(me, rank, self.finished, launch - lag)
            for tensor in inputs + (kept if launch == 1 else []):
                self._write(me, rank, tensor.number, self.script.all[tensor.number], launch, "the host stages an input")
            self._tell(me, rank, self.entered)
            self.opened[rank] = launch
            yield lambda launch=launch: all(self.done[n] >= launch for n in own)
            for worker in own:
                np.maximum(self.clock[me], self.clock[worker], out=self.clock[me])
            for channel in self.script.exits:
                yield from self._await(me, rank, channel, launch)
            for tensor in outputs:
                self._output(me, rank, tensor.number, launch)
            self._tell(me, rank, self.finished)

    def _worker(self, worker: int) -> Steps:
        number, rank, program = self.plan.workers[worker]
        kernel = self.bound.kernels[number]
        before = [
            n
            for n, (k, r, _) in enumerate(self.plan.workers)
            if r == rank and self.bound.kernels[k].stream == kernel.stream
            and self.bound.kernels[k].position < kernel.position
        ]  # fmt: skip
        earlier = [n for n, (k, r, p) in enumerate(self.plan.workers) if (k, r) == (number, rank) and p < program]
        for launch in range(1, self.launches + 1):
            yield (
                lambda launch=launch: (
                    self.opened[rank] >= launch
                    and all(self.done[n] >= launch for n in before)
                    and (kernel.on_copy_engine or self.free[rank] > 0)
                    and all(self.admitted[n] >= launch for n in earlier)
                )
            )
            self.admitted[worker] = launch
            self._meet(worker)
            self.free[rank] -= 0 if kernel.on_copy_engine else 1
            for other in (self.workers + rank, *before):
                np.maximum(self.clock[worker], self.clock[other], out=self.clock[worker])
            if kernel.reuse_lag:
                yield from self._peers(worker, rank, self.finished, launch - kernel.reuse_lag)
            if kernel.needs_entry:
                yield from self._peers(worker, rank, self.entered, launch)
            for op in self.script.workers[worker]:
                if op.kind in DATA and not (op.words or op.outside or self._unreachable(rank, op)):
                    yield None  # whatever comes between the signals and the data
                    self._access(worker, op, launch)
                else:
                    yield from self._step(worker, rank, op, launch)
            if kernel.quiet:
                yield from self._quiet(worker)
            self.clock[worker, worker] += 1
            self.done[worker] = launch
            self.free[rank] += 0 if kernel.on_copy_engine else 1

    def _step(self, me: int, rank: int, op: _Op, launch: int) -> Steps:
        if op.outside:
            self._fail("outside", launch, rank, op.number, op.task)
        if op.kind == WAIT:
            yield from self._await(me, rank, op.number, launch, op.words)
            if not op.words:
                self._meet(me)
        elif op.kind == BARRIER:
            self._meet(me)
        elif op.kind == FENCE:
            self.fences[me] += 1
        elif op.kind == QUIET:
            yield from self._quiet(me)
        elif self._unreachable(rank, op):
            what = f"{self._who(op.task)} reaches rank {op.peer} on another node by its address"
            raise _Failed(Failure(kind="unreachable", launch=launch, rank=rank, what=what))
        elif op.kind == PUT or (op.kind == NOTIFY and op.carried):
            if op.kind == PUT and self.bound.many_threads:
                assert op.source is not None
                self._touch(me, op.source, launch)
            self._send_away(me, op, launch)
            yield None
        elif op.kind == NOTIFY:
            self._notify(me, op, launch)
            yield None
        else:
            yield from self._words(me, op, launch)

    def _access(self, me: int, op: _Op, launch: int) -> None:
        if self.in_threads[me]:
            self._touch(me, op, launch)
        if op.kind == READ:
            self._read(me, op.peer, op.number, op.cells, launch, op.task, op.step)
        else:
            self._write(me, op.peer, op.number, op.cells, launch, op.task, op.step, adds=op.together == ADDED)

    # The network ---------------------------------------------------------------------------------------------

    def _node(self, rank: int) -> int:
        return self.script.nodes[rank]

    def _unreachable(self, rank: int, op: _Op) -> bool:
        nodes = self.script.nodes
        return nodes[rank] != nodes[op.peer] and not op.carried

    def _send_away(self, me: int, op: _Op | None, launch: int, counter: tuple[object, ...] = (), peer: int = 0) -> None:
        peer = peer if op is None else op.peer
        sent = _Sent(
            op=op, launch=launch, peer=peer, fences=self.fences[me], clock=self.clock[me].copy(), counter=counter
        )
        self.sent_away[me].append(sent)
        self.clock[me, me] += 1

    def _quiet(self, me: int) -> Steps:
        yield lambda: not self.sent_away[me]
        for (thread, _), known in self.arrived.items():
            if thread == me:
                for _, clock in known:
                    np.maximum(self.clock[me], clock, out=self.clock[me])
                known.clear()
        self._meet(me)

    def _agent(self, owner: int) -> Steps:
        """Delivers what a worker or a host has sent, in any order that its fences allow."""
        bag = self.sent_away[owner]
        while True:
            yield lambda: bool(bag)
            free = [one for one in bag if not any(o.peer == one.peer and o.fences < one.fences for o in bag)]
            sent = self.random.choice(free)
            bag.remove(sent)
            self._deliver(owner, sent)

    def _deliver(self, owner: int, sent: _Sent) -> None:
        op, clock = sent.op, sent.clock
        for fences, known in self.arrived[owner, sent.peer]:
            if fences < sent.fences:
                clock = np.maximum(clock, known)
        if op is not None and op.kind == PUT:
            thread = self.hosts + op.thread
            np.maximum(self.clock[thread], clock, out=self.clock[thread])
            self.clock[thread, thread] += 1
            source = op.source
            assert source is not None
            if op.outside or source.outside:
                self._fail("outside", sent.launch, op.peer, op.number, op.task)
            self._read(thread, source.peer, source.number, source.cells, sent.launch, op.task, source.step)
            self._write(thread, op.peer, op.number, op.cells, sent.launch, op.task, op.step)
            clock = self.clock[thread].copy()
            self.clock[thread, thread] += 1
        for channel in () if op is None else op.signals if op.kind == PUT else (op.number,):
            slot = (sent.launch - 1) % int(self.script.channel_slots[channel])
            self.count[sent.peer, slot, channel] += 1
            self._known((sent.peer, slot, channel), clock)
        if op is None:
            counters = self.entered if sent.counter[0] == id(self.entered) else self.finished
            counters[sent.peer][int(str(sent.counter[2]))] += 1
            self._known(sent.counter, clock)
        self.arrived[owner, sent.peer].append((sent.fences, clock))

    def _known(self, counter: tuple[object, ...], clock: Ints) -> None:
        known = self.sent.get(counter)
        self.sent[counter] = clock.copy() if known is None else np.maximum(known, clock)

    # Signals -------------------------------------------------------------------------------------------------

    def _peers(self, me: int, rank: int, counters: list[list[int]], launch: int) -> Steps:
        for peer in range(self.ranks if launch > 0 else 0):
            if peer != rank:
                yield lambda peer=peer: counters[rank][peer] >= launch
                self._receive(me, (id(counters), rank, peer))

    def _tell(self, me: int, rank: int, counters: list[list[int]]) -> None:
        for peer in range(self.ranks):
            if self._node(peer) != self._node(rank):
                self._send_away(me, None, 0, (id(counters), peer, rank), peer)
                continue
            counters[peer][rank] += 1
            self._send(me, (id(counters), peer, rank))

    def _await(self, me: int, rank: int, channel: int, launch: int, words: bool = False) -> Steps:
        rounds, slot = divmod(launch - 1, int(self.script.channel_slots[channel]))
        target = int(self.script.threshold[rank, channel]) * (rounds + 1)
        cell = self.count[rank, slot]
        yield lambda: bool(cell[channel] >= target)
        if cell[channel] > target:
            what = f"{self.plan.channel_name(channel)} has {cell[channel]} notifies where {target} are awaited"
            raise _Failed(Failure(kind="overshoot", launch=launch, rank=rank, what=what))
        if not words:
            self._receive(me, (rank, slot, channel))

    def _notify(self, me: int, op: _Op, launch: int) -> None:
        slot = (launch - 1) % int(self.script.channel_slots[op.number])
        self.count[op.peer, slot, op.number] += 1
        if not op.words:
            self._send(me, (op.peer, slot, op.number))

    def _send(self, me: int, counter: tuple[object, ...]) -> None:
        known = self.sent.get(counter)
        self.sent[counter] = self.clock[me].copy() if known is None else np.maximum(known, self.clock[me])
        self.clock[me, me] += 1

    def _receive(self, me: int, counter: tuple[object, ...]) -> None:
        known = self.sent.get(counter)
        if known is not None:
            np.maximum(self.clock[me], known, out=self.clock[me])

    # Words ---------------------------------------------------------------------------------------------------

    def _words(self, me: int, op: _Op, launch: int) -> Steps:
        at = op.cells + self.script.place(op.number, op.peer, launch)
        if op.kind == READ:
            yield lambda: bool((self.flag[at] == launch).all())
            later = self.clock[me, self.threads :]
            np.maximum(later, self.known[at].max(axis=0, initial=0), out=later)
            self.reader[at, me] = self.clock[me, me]
            return
        order = self.random.sample(range(len(at)), len(at))
        for part in (order[::2], order[1::2]):
            yield None
            seen = self._in_time(me)
            here = at[part]
            if (self.reader[here] > seen).any() or (self.flag[here] == launch).any():
                self._fail("race", launch, op.peer, op.number, op.task)
            self.flag[here] = self.epoch[here] = launch
            self.known[here] = seen
            self.writer[here], self.written[here], self.step[here] = me, self.clock[me, me], op.step
        self.clock[me, me] += 1

    def _in_time(self, me: int) -> Ints:
        """What a thread knows to have happened, in time."""
        return np.maximum(self.clock[me, : self.threads], self.clock[me, self.threads :])

    # Memory --------------------------------------------------------------------------------------------------

    def _meet(self, worker: int) -> None:
        self.meeting += 1
        self.met[worker] = self.meeting

    def _touch(self, worker: int, op: _Op, launch: int) -> None:
        """An access by one of a program's threads, which others of them may overtake."""
        at = self.script.at(op.number, op.peer, op.cells, launch)
        meeting = self.met[worker]
        first = meeting << TOGETHER
        now = first + op.together - ADDED
        seen = (self.stored[at],) if op.kind == READ else (self.stored[at], self.loaded[at, worker])
        for own in seen:  # most are of earlier meetings
            if _some(own >= first) and _some((own != now) & (own >> TOGETHER == meeting)):
                self._fail("threads", launch, op.peer, op.number, op.task)
        if op.kind == READ:
            self.loaded[at, worker] = now
        else:
            self.stored[at] = now

    def _there(self, rank: int, number: int, launch: int, who: int | str) -> None:
        if (number, rank) in self.script.absent:
            self._fail("outside", launch, rank, number, who)

    def _read(self, me: int, rank: int, number: int, cells: Ints, launch: int, who: int | str, step: int = 0) -> None:
        self._there(rank, number, launch, who)
        at = self.script.at(number, rank, cells, launch)
        found, tensor, clock = self.epoch[at], self.script.tensors[number], self.clock[me]
        if _some(found != launch):
            if _some(found == 0):
                self._fail("unwritten", launch, rank, number, who)
            if not tensor.decl.in_place:
                self._fail("epoch", launch, rank, number, who)
        if tensor.steps is not None and _some(self.step[at] != step):
            self._fail("step", launch, rank, number, who)
        if _some(self.written[at] > clock[self.writer[at]]):
            self._fail("race", launch, rank, number, who)
        if number in self.script.added and _some(self.adder[at] > clock[: self.threads]):
            self._fail("race", launch, rank, number, who)
        self.reader[at, me] = clock[me]

    def _write(
        self, me: int, rank: int, number: int, cells: Ints, launch: int, who: int | str, step: int = 0,
        adds: bool = False,
    ) -> None:  # fmt: skip
        """A write, or an addition: one needs no order with others."""
        self._there(rank, number, launch, who)
        at = self.script.at(number, rank, cells, launch)
        seen = self.clock[me, : self.threads]
        if _some(self.written[at] > seen[self.writer[at]]) or _some(self.reader[at] > seen):
            self._fail("race", launch, rank, number, who)
        if adds:
            self.adder[at, me] = seen[me]
            return
        if number in self.script.added and _some(self.adder[at] > seen):
            self._fail("race", launch, rank, number, who)
        tensor = self.script.tensors[number]
        if tensor.decl.space == "out":
            self.times[at] = np.where(self.epoch[at] == launch, self.times[at] + 1, 1)
        if tensor.packed:
            self.flag[at] = 0  # what is not sent by words has no flag
        if tensor.steps is not None:
            self.step[at] = step
        self.writer[at], self.written[at], self.epoch[at] = me, seen[me], launch

    def _output(self, me: int, rank: int, number: int, launch: int) -> None:
        """The host takes an output away: all of it written, once, before. What is not written in place stays."""
        cells = self.script.all[number]
        if self.bound.tensor_numbered(number).decl.space == "inout":
            self._read(me, rank, number, cells, launch, "the host takes an output")
            return
        at = self.script.at(number, rank, cells, launch)
        if ((self.epoch[at] != launch) | (self.times[at] != 1)).any():
            self._fail("output", launch, rank, number, "the host takes what was not written once")
        self._read(me, rank, number, cells, launch, "the host takes an output")

    def _who(self, task: int) -> str:
        stage, rank, tile = self.plan.task_name(task)
        return f"{stage} tile {tile} of rank {rank}"

    def _fail(self, kind: str, launch: int, rank: int, number: int, who: int | str) -> None:
        doer = who if isinstance(who, str) else self._who(who)
        what = f"{self.script.tensors[number].name}: {doer}"
        raise _Failed(Failure(kind=kind, launch=launch, rank=rank, what=what))
