"""Discrete-event simulation: workers run their operations in order, wait for counters, and share links."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import overload

import numpy as np

from tilelink.artifact import LaunchProtocol
from tilelink.errors import ProgressError
from tilelink.lowering.bound import Kernel
from tilelink.lowering.columns import Ints
from tilelink.simulator.links import Port
from tilelink.simulator.machine import Machine
from tilelink.simulator.script import AWAIT, COMPUTE, FAR, MOVE, SIGNAL, Floats, Script
from tilelink.simulator.thinned import places_of, repeats_of
from tilelink.verifier.refusal import where

NEARLY = 1e-6
"""Rounding error of numbers of programs, where each stands for several."""

NAMED = 3
"""Tiles that an error names, of those that wait for ever."""

RESUME, ARRIVE, LEAVE, BEGIN, PART, STORED = range(6)
"""Events: a worker resumes; a notify reaches its counter; a port finishes a transfer; a transfer begins; a transfer
finishes at its own maximum rate; the storer of a worker has finished a transfer."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Times of all operations, in seconds from the launch of the first rank."""

    script: Script = field(repr=False)
    begin: Floats
    end: Floats
    """operation -> its end. A notify ends when it is sent."""
    moved: Floats
    """move -> time at which its last byte left the link."""
    started: Floats
    """move -> time at which its first byte entered the link."""
    worker_begin: Floats
    worker_end: Floats
    worker_sm: Ints
    """worker -> the SM on which it ran, or -1 for a copy engine."""
    prepared: Floats
    """rank -> the time at which its kernels begin if they need not wait for peers to launch."""
    counting: Floats
    """worker -> the seconds in which it waits for the numbers of the tiles that it takes by a counter."""
    full: Floats
    """counter -> time at which its last notify arrived."""
    filler: Ints
    """counter -> the notify (operation) that arrived last, or -1."""


@overload
def simulate_script(script: Script, offsets: Sequence[float]) -> Timeline: ...


@overload
def simulate_script(script: Script, offsets: Sequence[float], limit: float) -> Timeline | None: ...


def simulate_script(script: Script, offsets: Sequence[float], limit: float = inf) -> Timeline | None:
    """Run a script, and return its times, or None if something happens after `limit` seconds.

    offsets: seconds after which each rank launches. Raises ProgressError for a deadlock.
    """
    engine = _Engine(script, offsets)
    return engine.timeline() if engine.run(limit) else None


def least_seconds(script: Script) -> float:
    """Return a time that a run of a script takes at least: that in which the kernels of a stream compute.

    A kernel takes at least as long as its program that computes longest, unless programs take its tiles by a counter,
    and as all of them together on as many programs as a rank holds. All of them are taken to be on the fastest SMs.
    """
    bound, machine = script.plan.bound, script.machine
    sms = range(int(machine.sms))
    clocks = [max(machine.clock(rank, sm) for sm in sms) if machine.deviations else 1.0 for rank in range(bound.ranks)]
    rows = np.flatnonzero(script.kind == COMPUTE)
    costs = (script.main + script.overhead)[rows]
    busy = np.bincount(script.worker[rows], costs, minlength=len(script.plan.workers)).tolist()
    places = places_of(script.plan)
    longest, together = defaultdict[tuple[int, int], float](float), defaultdict[tuple[int, int], float](float)
    for (number, rank, _), cost in zip(script.plan.workers, busy, strict=True):
        seconds = cost / clocks[rank]
        longest[number, rank] = max(longest[number, rank], 0.0 if bound.kernels[number].dynamic else seconds)
        at_a_time = bound.resident_programs * bound.kernels[number].programs_per_cta
        together[number, rank] += places[number] * seconds / at_a_time
    streams = defaultdict[tuple[object, int], float](float)
    for (number, rank), seconds in longest.items():
        streams[bound.kernels[number].stream, rank] += max(seconds, together[number, rank])
    return max(streams.values(), default=0.0)


class _Engine:
    """One run. Columns are plain lists, since access to single elements of arrays is slow."""

    def __init__(self, script: Script, offsets: Sequence[float]) -> None:
        plan, machine = script.plan, script.machine
        ranks = plan.bound.ranks
        self.script, self.machine, self.ranks = script, machine, ranks
        self.programs = _Programs(script, offsets)
        self.machines = self.programs.machines
        self.kind: list[int] = script.kind.tolist()
        self.what: list[int] = script.what.tolist()
        self.main: list[float] = script.main.tolist()
        self.overhead: list[float] = script.overhead.tolist()
        self.task: list[int] = script.task.tolist()
        self.cursor: list[int] = script.first[:-1].tolist()
        self.stop: list[int] = script.first[1:].tolist()
        self.worker_rank: list[int] = script.worker_rank.tolist()
        self.on_copy = [plan.bound.kernels[n].on_copy_engine for n, _, _ in plan.workers]
        self.fresh = [True] * len(plan.workers)
        self.waited = [0.0] * len(plan.workers)
        self.stored_apart: list[bool] = script.stored_apart.tolist()
        self.storers: dict[int, _Storer] = {}
        """worker -> what its storer has begun and not finished."""
        self.sent, self.delay = _signal_costs(script)
        self.need: list[int] = script.need.tolist()
        self.count = [0] * len(self.need)
        self.full = [float("nan")] * len(self.need)
        self.filler = [-1] * len(self.need)
        self.sleepers: dict[int, list[int]] = {}
        self.begin = [-1.0] * len(self.kind)
        self.end = [0.0] * len(self.kind)
        self.ports = [Port(own.link_bandwidth) for own in 2 * self.machines]
        self.ports += [Port(own.network_bandwidth) for own in 2 * self.machines]
        self._take_moves()
        self.copying = [0] * ranks
        self.watches = bool((script.moves.reach[~script.moves.by_copy_engine] > 0).any())
        self.events: list[tuple[float, int, int, int, int]] = []
        self.serial = 0
        self.now = 0.0
        self._make_queues()

    def _make_queues(self) -> None:
        """Give the tiles that programs take by a counter to their queues. No program has one of them yet."""
        self.queues = {
            (number, rank): _Queue(tiles=tiles) for (number, rank), tiles in self.script.queues.items() if tiles
        }
        self.counting = [0.0] * len(self.programs.workers)
        self.by: list[int] = self.script.worker.tolist()
        for worker, (number, rank, _) in enumerate(self.programs.workers):
            if (number, rank) in self.queues:
                self.cursor[worker] = self.stop[worker] = 0

    def _take_moves(self) -> None:
        moves, ranks = self.script.moves, self.ranks
        far, adapters = moves.reach == FAR, self.machine.adapters
        self.out: list[int] = np.where(far, 2 * ranks + adapters(moves.source), moves.source).tolist()
        self.into: list[int] = np.where(far, 3 * ranks + adapters(moves.target), ranks + moves.target).tolist()
        self.source: list[int] = moves.source.tolist()
        self.target: list[int] = moves.target.tolist()
        self.reach: list[int] = moves.reach.tolist()
        self.by_copy: list[bool] = moves.by_copy_engine.tolist()
        self.share: list[float] = np.maximum(moves.size / moves.efficiency, moves.least).tolist()
        self.alone: list[float] = (moves.size / moves.rate).tolist()
        self._take_links()
        self.setup: list[float] = moves.setup.tolist()
        self.latency: list[float] = moves.latency.tolist()
        self.left = [0] * len(self.out)
        self.mover = [-1] * len(self.out)
        self.row = [-1] * len(self.out)
        self.started = [0.0] * len(self.out)
        self.moved = [0.0] * len(self.out)

    def _take_links(self) -> None:
        """Make ports of the links that are not like others: their transfers pass a third one."""
        moves, links = self.script.moves, self.machine.links("link_bandwidth", self.ranks)
        self.passes: list[tuple[int, ...]] = list(zip(self.out, self.into, strict=True))
        for source, target in np.argwhere(links != 1.0).tolist():
            own = np.flatnonzero((moves.source == source) & (moves.target == target) & (moves.reach != FAR))
            for move in own.tolist():
                self.passes[move] = (*self.passes[move], len(self.ports))
            self.ports.append(Port(self.machine.link_bandwidth * float(links[source, target])))

    def at(self, time: float, event: int, a: int, b: int = 0) -> None:
        self.serial += 1
        heappush(self.events, (time, self.serial, event, a, b))

    def run(self, limit: float) -> bool:
        """Process events until none is left: True; or until one is later than `limit`, in seconds: False.

        Raises ProgressError if there is none and a worker has not finished.
        """
        self._start(self.programs.launch())
        while self.events:
            self.now, _, event, a, b = heappop(self.events)
            if self.now > limit:
                return False
            if event == RESUME:
                self._advance(a)
            elif event == ARRIVE:
                self._arrive(a, b)
            elif event == LEAVE:
                self._leave(a, b)
            elif event == BEGIN:
                self._begin(a)
            elif event == STORED:
                self._stored(a, b)
            else:
                self._part(a)
        if self.sleepers or self.programs.without_end:
            hint = "`tilelink check` says which notify is missing, or comes too late"
            raise ProgressError(f"the simulated launch never ends: {self._stuck()}", hint=hint)
        return True

    def _stuck(self) -> str:
        """Return the tiles that wait for ever, the first few of them, or the kernels that do not end."""
        plan, texts = self.script.plan, list[str]()
        waits = sorted((worker, counter) for counter, workers in self.sleepers.items() for worker in workers)
        for worker, counter in waits[:NAMED]:
            tensor, kind, cell = plan.channel_name(counter % plan.channels)
            tile, there = where(plan, self.task[self.cursor[worker]]), f"{self.count[counter]} of {self.need[counter]}"
            texts.append(f"{tile} waits for {tensor} channel {list(cell)} ({there} {kind} signals)")
        if not waits:
            return f"programs of {', '.join(self.programs.without_end)} do not end"
        return "; ".join([*texts, *([f"and {len(waits) - NAMED} more"] if len(waits) > NAMED else [])])

    def _start(self, workers: list[tuple[int, float]]) -> None:
        for worker, time in workers:
            self.at(max(time, self.now), RESUME, worker)

    # Workers -------------------------------------------------------------------------------------------------------

    def _advance(self, worker: int) -> None:
        """Run a worker from now on. It may run ahead of the events as long as no event can change its times."""
        i, stop, now = self.cursor[worker], self.stop[worker], self.now
        # Names of this function are faster than attributes: most operations are waits that find their counter full.
        kinds, apart, what, count, need = self.kind, self.stored_apart, self.what, self.count, self.need
        begin, end, overhead, by_copy = self.begin, self.end, self.overhead, self.on_copy[worker]
        while i < stop:
            kind = kinds[i]
            if apart[i]:
                if not self._store(worker, i, now):
                    return
            elif kind == COMPUTE:
                if self.watches and now > self.now:
                    return self._later(worker, i, now)
                begin[i] = now
                busy = self.watches and self.copying[self.worker_rank[worker]] > 0
                took = self.main[i] * (self.machine.copies_slow_compute if busy else 1.0) + overhead[i]
                now += took / self.programs.clock[worker]
                end[i] = now
            elif kind == AWAIT:
                counter = what[i]
                if count[counter] < need[counter]:
                    return self._later(worker, i, now) if now > self.now else self._sleep(worker, i)
                slept = begin[i] >= 0
                if not slept:
                    begin[i] = now
                if by_copy:
                    now += self._resumed(worker, slept, now, self.full[counter])
                elif not slept:
                    now += overhead[i]
                end[i] = now
            elif kind == SIGNAL:
                begin[i] = now
                now += self.sent[i]
                end[i] = now
                self.at(now + self.delay[i], ARRIVE, what[i], i)
            else:
                now = self._move(worker, i, now)
                if now < 0:
                    return
            i += 1
        if now > self.now:
            return self._later(worker, i, now)
        self.cursor[worker] = i
        queue = self.queues.get(self.programs.workers[worker][:2])
        if queue is None or not self._take(worker, queue):
            if storer := self.storers.get(worker):
                storer.awaited = True
                return
            self._start(self.programs.ended(worker, now))

    def _take(self, worker: int, queue: _Queue) -> bool:
        """Let a worker that has no operations left go on with the tile that it has taken, and take the next one.

        Return False if there is none. The number of a tile that is taken arrives after the machine's time for it.
        """
        first = worker not in queue.taken
        answer = self.machines[self.worker_rank[worker]].tile_counter
        if first:
            queue.take(worker, self.now + answer)
        tile, answered = queue.taken[worker]
        if first or answered > self.now:  # all programs take their first tile before one of them takes a second
            self.counting[worker] += answered - self.now
            self._later(worker, self.cursor[worker], answered)
            return True
        if tile >= len(queue.tiles):
            return False
        queue.take(worker, self.now + answer)
        self.cursor[worker], self.stop[worker] = begin, end = queue.tiles[tile]
        self.by[begin:end] = [worker] * (end - begin)
        self.at(self.now, RESUME, worker)
        return True

    def _resumed(self, worker: int, slept: bool, now: float, full: float) -> float:
        """Return the seconds from `now`, when a copy engine waits for what filled at `full`, until it resumes."""
        machine = self.machines[self.worker_rank[worker]]
        if self.script.waits_aside:  # waits are serialised with each other, but not with copies
            begun = max(self.waited[worker], self.programs.begin[worker], full + machine.copy_wait)
            self.waited[worker] = begun + machine.copy_signal
            return max(0.0, self.waited[worker] - now)
        return machine.copy_signal + (machine.copy_wait if slept else 0.0)

    def _later(self, worker: int, i: int, now: float) -> None:
        self.cursor[worker] = i
        self.at(now, RESUME, worker)

    def _sleep(self, worker: int, i: int) -> None:
        self.begin[i] = self.now
        self.cursor[worker] = i
        self.fresh[worker] = True
        self.sleepers.setdefault(self.what[i], []).append(worker)

    def _arrive(self, counter: int, notify: int) -> None:
        self.count[counter] += 1
        if self.count[counter] == self.need[counter]:
            self.full[counter] = self.now
            self.filler[counter] = notify
            for worker in self.sleepers.pop(counter, ()):
                self._advance(worker)

    # Storers ----------------------------------------------------------------------------------------------------

    def _store(self, worker: int, i: int, now: float) -> bool:
        """Hand a transfer or a notify to the storer of a worker, which goes on meanwhile.

        Return False if the worker has to wait: the storer has not finished what it stores of an earlier tile.
        """
        storer = self.storers.get(worker)
        if storer is not None and storer.task != self.task[i]:
            if now > self.now:  # it may have finished by then
                self._later(worker, i, now)
            else:
                storer.awaited = True
                self.cursor[worker] = i
            return False
        if self.kind[i] == MOVE:
            move = self.what[i]
            self.storers.setdefault(worker, _Storer(task=self.task[i])).moves += 1
            self.begin[i] = now
            self.mover[move], self.row[move] = worker, i
            now += self.setup[move]
            if self.reach[move]:
                self.at(now, BEGIN, move)
            else:
                self.started[move] = now
                self.moved[move] = self.end[i] = now + self._alone(move) + self.latency[move]
                self.at(self.end[i], STORED, worker, move)
        elif storer is not None:
            storer.notifies.append(i)
        else:
            self._notify(i, now)
        return True

    def _notify(self, i: int, now: float) -> None:
        self.begin[i] = self.end[i] = now
        self.at(now + self.delay[i], ARRIVE, self.what[i], i)

    def _stored(self, worker: int, move: int) -> None:
        """Count a transfer of a storer as done. After the last one it notifies, and its worker may go on."""
        storer = self.storers[worker]
        storer.moves -= 1
        if storer.moves:
            return
        for i in storer.notifies:
            self._notify(i, self.now)
        del self.storers[worker]
        if storer.awaited:
            self.at(self.now, RESUME, worker)

    # Transfers ---------------------------------------------------------------------------------------------------

    def _move(self, worker: int, i: int, now: float) -> float:
        """Begin a transfer. Return its end if nothing can delay it, else -1."""
        move = self.what[i]
        self.begin[i] = now
        now += self.setup[move]
        if self.on_copy[worker]:
            own = self.machines[self.worker_rank[worker]]
            now += own.copy_start if self.fresh[worker] else own.copy_call
            self.fresh[worker] = False
        self.mover[move], self.row[move] = worker, i
        self.cursor[worker] = i
        if self.reach[move] == 0:
            self.started[move] = now
            now += self._alone(move) + self.latency[move]
            self.moved[move] = self.end[i] = now
            return now
        if now > self.now:
            self.at(now, BEGIN, move)
        else:
            self._begin(move)
        return -1.0

    def _begin(self, move: int) -> None:
        self.started[move] = now = self.now
        self.left[move] = 1 + len(self.passes[move])
        self.at(now + self._alone(move), PART, move)
        for number in self.passes[move]:
            port = self.ports[number]
            port.join(now, move, self.share[move])
            self.at(port.due(), LEAVE, number, port.version)
        if not self.by_copy[move]:
            self.copying[self.source[move]] += 1
            self.copying[self.target[move]] += 1

    def _alone(self, move: int) -> float:
        """Return the seconds of a transfer at its own maximum rate: that of its SM, if a program executes it."""
        return self.alone[move] / (1.0 if self.by_copy[move] else self.programs.clock[self.mover[move]])

    def _leave(self, number: int, version: int) -> None:
        port = self.ports[number]
        if version == port.version:
            move = port.leave(self.now)
            if port.served:
                self.at(port.due(), LEAVE, number, port.version)
            self._part(move)

    def _part(self, move: int) -> None:
        """Count a transfer as done at one of its ports or at its own rate; end it when all of them are done."""
        self.left[move] -= 1
        if self.left[move]:
            return
        if not self.by_copy[move]:
            self.copying[self.source[move]] -= 1
            self.copying[self.target[move]] -= 1
        worker, i = self.mover[move], self.row[move]
        self.moved[move] = self.now
        self.end[i] = self.now + self.latency[move]
        if self.stored_apart[i]:
            self.at(self.end[i], STORED, worker, move)
        else:
            self._later(worker, i + 1, self.end[i])

    def timeline(self) -> Timeline:
        script, order = self.script.assigned(np.array(self.by, np.int64))
        filler, now_at = np.array(self.filler, np.int64), np.argsort(order)
        filler[filler >= 0] = now_at[filler[filler >= 0]]
        return Timeline(
            script=script,
            begin=np.array(self.begin)[order],
            end=np.array(self.end)[order],
            moved=np.array(self.moved),
            started=np.array(self.started),
            worker_begin=np.array(self.programs.begin),
            worker_end=np.array(self.programs.end),
            worker_sm=np.array(self.programs.sm, np.int64),
            prepared=np.array(self.programs.prepared),
            counting=np.array(self.counting),
            full=np.array(self.full),
            filler=filler,
        )


def _signal_costs(script: Script) -> tuple[list[float], list[float]]:
    """Return for each operation the seconds that a notify costs its program, and the seconds until it arrives."""
    machine, channels = script.machine, max(script.plan.channels, 1)
    rank, ranks = script.rank, script.plan.bound.ranks
    kinds, kind_of = machine.by_rank(ranks)
    fence, flag, away_s, home_s, far_s = np.array(
        [(m.fence, m.copy_signal, m.signal_latency, m.local_signal_latency, m.network_latency) for m in kinds]
    )[kind_of][rank].T
    peer = np.where(script.kind == SIGNAL, script.what // channels, rank)
    again = np.zeros(len(peer), bool)
    again[1:] = (script.kind[1:] == SIGNAL) & (script.kind[:-1] == SIGNAL) & (script.task[1:] == script.task[:-1])
    away = peer != rank
    far = peer // machine.node_ranks != rank // machine.node_ranks
    fence = fence * repeats_of(script.plan, script.task)
    sent = np.where(again | _deferred(script) | script.stored_apart, 0.0, fence)
    # Words need no fence: what they signal arrives with them.
    carried = (script.kind == SIGNAL) & np.isin(script.what, script.plan.counters[script.plan.by_words])
    sent = np.where(carried, 0.0, sent)
    by_copy = np.array([script.plan.bound.kernels[n].on_copy_engine for n, _, _ in script.plan.workers])[script.worker]
    sent = np.where(by_copy, np.where(script.early, 0.0, flag), sent)
    away_s = away_s * machine.links("signal_latency", ranks)[rank, peer]
    delay = np.where(away, away_s, home_s) + far * far_s
    return sent.tolist(), delay.tolist()


def _deferred(script: Script) -> np.ndarray:
    """Mask of the operations of tasks with a deferred notify, which is sent long after its stores have arrived."""
    signals = script.plan.signals
    return np.isin(script.task, signals.task[signals.later > 0])


@dataclass(kw_only=True)
class _Storer:
    """The transfers of a task that the storer of a worker has begun, and the rows of the notifies after them.

    awaited: True if the worker waits until all of it is done.
    """

    task: int
    moves: int = 0
    notifies: list[int] = field(default_factory=list[int])
    awaited: bool = False


@dataclass(kw_only=True)
class _Queue:
    """The tiles that the programs of a kernel take by a counter, by the rows of their operations."""

    tiles: tuple[tuple[int, int], ...]
    counter: int = 0
    taken: dict[int, tuple[int, float]] = field(default_factory=dict[int, tuple[int, float]])
    """worker -> the number that it has taken last, and the time at which it knows it."""

    def take(self, worker: int, answered: float) -> None:
        self.taken[worker] = self.counter, answered
        self.counter += 1


class _Programs:
    """The running workers: kernels of a stream run one after the other, programs as far as they fit on the rank."""

    def __init__(self, script: Script, offsets: Sequence[float]) -> None:
        plan, self.machine = script.plan, script.machine
        self.kernels = plan.bound.kernels
        self.workers = plan.workers
        kinds, kind_of = self.machine.by_rank(plan.bound.ranks)
        self.machines: list[Machine] = [kinds[number] for number in kind_of.tolist()]
        self.gaps = [own.kernel_gap for own in self.machines]
        ranks = range(plan.bound.ranks)
        self.free: list[float] = [plan.bound.resident_programs for _ in ranks]
        self.taking = places_of(plan)
        self.places = [[*range(plan.bound.resident_programs)] for _ in ranks]
        """rank -> a heap of the places for CTAs that are free. SMs take turns in them."""
        self.place_of: dict[tuple[int, int, int], int] = {}
        """CTA -> its place."""
        self.sm = [-1] * len(self.workers)
        self.clock = [1.0] * len(self.workers)
        self.together: dict[tuple[int, int, int], int] = {}
        """CTA, which holds an SM until its last program ends -> number of its programs that have not ended."""
        self.begin = [0.0] * len(self.workers)
        self.end = [0.0] * len(self.workers)
        self.waiting: dict[tuple[int, int], deque[int]] = {}
        for worker, (kernel, rank, _) in enumerate(self.workers):
            self.waiting.setdefault((kernel, rank), deque()).append(worker)
        self.running = {key: len(workers) for key, workers in self.waiting.items()}
        self.ready: dict[tuple[int, int], float] = {}
        announced = plan.bound.protocol is LaunchProtocol.HELPER_KERNELS and any(k.needs_entry for k in self.kernels)
        begun = [o + script.staging + (gap if announced else 0.0) for o, gap in zip(offsets, self.gaps, strict=True)]
        entered = max(begun) + self.machine.signal_latency
        self.prepared = [b + own.kernel_start for b, own in zip(begun, self.machines, strict=True)]
        for number, kernel in enumerate(self.kernels):
            for rank in ranks if kernel.position == 0 else ():
                own = self.prepared[rank] + (self.gaps[rank] if kernel.on_side_stream else 0.0)
                self.ready[number, rank] = max(own, entered) if kernel.needs_entry else own

    @property
    def without_end(self) -> list[str]:
        """The kernels with programs that have not ended."""
        return [*dict.fromkeys(self.kernels[number].name for (number, _), left in self.running.items() if left)]

    def launch(self) -> list[tuple[int, float]]:
        """Return the first programs of every rank, with their start times."""
        return [start for rank in range(len(self.free)) for start in self._admit(rank, 0.0)]

    def ended(self, worker: int, now: float) -> list[tuple[int, float]]:
        """End a program, and return the programs that start after it, with their start times."""
        number, rank, _ = self.workers[worker]
        self.end[worker] = now
        kernel = self.kernels[number]
        block = number, rank, self.workers[worker][2] // kernel.programs_per_cta
        self.together[block] = self.together.get(block, kernel.programs_per_cta) - 1
        if not self.together[block] and not kernel.on_copy_engine:
            self.free[rank] += self.taking[number]
            heappush(self.places[rank], self.place_of[block])
        self.running[number, rank] -= 1
        if self.running[number, rank] == 0:
            for after in self._successors(kernel):
                self.ready[after, rank] = now + self.gaps[rank]
        return self._admit(rank, now)

    def _successors(self, kernel: Kernel) -> list[int]:
        place = (kernel.stream, kernel.position + 1)
        return [n for n, k in enumerate(self.kernels) if (k.stream, k.position) == place]

    def _admit(self, rank: int, now: float) -> list[tuple[int, float]]:
        """Start programs while they fit, in the order of their kernels; return them with their start times."""
        started: list[tuple[int, float]] = []
        for number in sorted(range(len(self.kernels)), key=lambda n: self.kernels[n].issue_index):
            waiting = self.waiting[number, rank]
            if (number, rank) not in self.ready or not waiting:
                continue
            kernel = self.kernels[number]
            taken = len(waiting)
            if not kernel.on_copy_engine:
                taken = min(int(self.free[rank] / self.taking[number] + NEARLY) * kernel.programs_per_cta, taken)
            for worker in (waiting.popleft() for _ in range(taken)):
                self.begin[worker] = max(now, self.ready[number, rank])
                started.append((worker, self.begin[worker]))
                if not kernel.on_copy_engine:
                    self._place(worker, kernel)
            self.free[rank] -= 0 if kernel.on_copy_engine else taken // kernel.programs_per_cta * self.taking[number]
        return started

    def _place(self, worker: int, kernel: Kernel) -> None:
        """Give a worker the SM of its CTA, for which there is room."""
        number, rank, program = self.workers[worker]
        block = number, rank, program // kernel.programs_per_cta
        if block not in self.place_of:
            self.place_of[block] = heappop(self.places[rank])
        self.sm[worker] = self.place_of[block] % int(self.machine.sms)
        if self.machine.deviations:
            self.clock[worker] = self.machine.clock(rank, self.sm[worker])
