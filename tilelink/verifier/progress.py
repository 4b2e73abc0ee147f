"""Rule `progress`: no cyclic wait, given in-order dispatch of tiles and the programs that are resident together.

Notifies only ever add. So running every worker as far as possible reaches the same state under any interleaving, and
workers that have not finished then are in a deadlock. If the kernels' programs do not all fit on the machine, the order
in which kernels become resident is open. Waiting programs can fill a rank only if there are at least as many of them as
the rank holds; with fewer the order does not matter. If they all belong to one stream, the worst case is that this
stream comes first. Otherwise the rule looks for a priority of streams that ends in a deadlock. The plan is refused even
if there is none, since programs may start in any mixture.

Where a launch decides which program executes a tile, the plan at hand has all tiles of the kernel in its first program
(planning/any_program.py). Any of the others may have one that waits, so they count as waiting, and stay resident
until the first one has ended.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from functools import cached_property
from itertools import islice, permutations

import numpy as np

from tilelink.errors import ProgressError, VerificationError
from tilelink.ir.program import Notify
from tilelink.ir.scalar import Env, evaluate, indices_in
from tilelink.lowering.bound import Kernel
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import WAIT
from tilelink.planning.any_program import assigns_in_launch
from tilelink.planning.plan import Plan
from tilelink.verifier.refusal import refuse, where

SEVERAL = 256
"""Waits of a program that are looked at together."""
MAX_ORDERS = 24
"""Priorities of the streams with waiting programs that are tried, at most."""


def progress(plan: Plan) -> Iterator[VerificationError]:
    """Yield a refusal for the first stream priority that ends in a deadlock, or if no priority is the worst case."""
    scripts = plan.scripts
    streams = list(dict.fromkeys(k.stream for k in plan.bound.kernels if not k.on_copy_engine))
    waiting = _waiting_programs(plan)
    resident = plan.bound.resident_programs
    full = plan.bound.together > resident and max(map(sum, (w.values() for w in waiting)), default=0) >= resident
    blocking = [s for s in streams if any(own.get(s) for own in waiting)]
    rest = [s for s in streams if s not in blocking]
    # With several blocking streams a full plan is refused below anyway: more orders only give a more specific message.
    first = islice(permutations(blocking), MAX_ORDERS) if full else [blocking]
    for priority in ((*order, *rest) for order in first):
        run = _Run(plan, scripts, priority, resident if full else len(plan.workers))
        run.go()
        if run.blocked:
            yield _refusal(plan, run, priority if full else None)
            return
    if full and len(blocking) > 1:
        names = ", ".join(_waiting_kernels(plan))
        message = f"programs of {names} wait for one another, and only {resident} programs fit on a rank"
        yield ProgressError(message, location=plan.bound.schedule.location, hint=FEWER)


def _waiting_programs(plan: Plan) -> list[dict[str, int]]:
    """Return per rank and stream the largest number of waiting programs of a kernel; those of one CTA count as one."""
    tasks = np.unique(plan.signals.task[plan.signals.kind == WAIT])
    workers, there = np.unique(plan.worker[tasks], return_counts=True)
    blocks = _blocks(plan)
    waiting = {blocks[worker] for worker in workers.tolist()}
    count = Counter((number, rank) for number, rank, _ in waiting)
    for worker, some in zip(workers.tolist(), there.tolist(), strict=True):
        number, rank, _ = plan.workers[worker]
        if assigns_in_launch(kernel := plan.bound.kernels[number]):
            count[number, rank] = min(some, kernel.blocks)
    result: list[dict[str, int]] = [{} for _ in range(plan.bound.ranks)]
    for (number, rank), programs in count.items():
        kernel = plan.bound.kernels[number]
        if not kernel.on_copy_engine:
            result[rank][kernel.stream] = max(programs, result[rank].get(kernel.stream, 0))
    return result


def _waiting_kernels(plan: Plan) -> list[str]:
    """Return the names of the kernels on SMs that wait, in the order of the program."""
    waiting = {plan.workers[worker][0] for worker in plan.worker[plan.signals.task[plan.signals.kind == WAIT]].tolist()}
    return [k.name for number, k in enumerate(plan.bound.kernels) if number in waiting and not k.on_copy_engine]


def _blocks(plan: Plan) -> list[tuple[int, int, int]]:
    """Return worker -> (kernel, rank, CTA): programs that share a CTA are resident together."""
    together = [kernel.programs_per_cta for kernel in plan.bound.kernels]
    return [(kernel, rank, program // together[kernel]) for kernel, rank, program in plan.workers]


class _Run:
    """One greedy execution."""

    def __init__(self, plan: Plan, scripts: list[Ints], priority: tuple[str, ...], resident: int) -> None:
        self.plan = plan
        s = plan.signals
        self.scripts = scripts
        waits = s.kind == WAIT
        every = np.concatenate(scripts) if scripts else np.zeros(0, np.int64)
        grids = [plan.thresholds[k].reshape(plan.bound.ranks, -1) for k in plan.bound.channels]
        self.need: list[int] = np.concatenate(grids, axis=1).ravel().tolist() if grids else []
        """counter -> the notifies that it needs. After the counters come boxes of channels, from which a launch chooses
        those of a wait: box -> the counters that it needs, which are all of them."""
        self.boxes: dict[int, list[int]] = {}
        """counter -> the boxes that it is in."""
        counters, waits = self._with_boxes()[every], waits[every]
        signs = np.where(waits, ~counters, counters)
        ends = np.cumsum([len(script) for script in scripts])
        notifies = np.append(-1, np.flatnonzero(~waits))
        last = notifies[np.searchsorted(notifies, ends) - 1].tolist()
        self.signals: list[list[int]] = []
        """worker -> until its last notify, the counters of its notifies and the complements of those of its waits."""
        self.waits: list[Ints] = []
        """worker -> the counters of its signals; after its last notify it only waits."""
        for begin, end, notify in zip([0, *ends.tolist()], ends.tolist(), last, strict=False):
            self.signals.append(signs[begin : notify + 1].tolist() if notify >= begin else [])
            self.waits.append(counters[begin:end])
        self.cursor = [0] * len(scripts)
        self.count = [0] * len(self.need)
        self.open = bytearray(wanted <= 0 for wanted in self.need)
        """counter or box -> 1 if all that it needs has come."""
        self.opened = np.frombuffer(self.open, np.uint8)
        """The same as an array."""
        kernels = plan.bound.kernels
        self.on_copy_engine = [kernel.on_copy_engine for kernel in kernels]
        self.in_launch = [assigns_in_launch(kernel) for kernel in kernels]
        self.sleepers: dict[int, list[int]] = {}
        self.ready: deque[int] = deque()
        self.free = [resident] * plan.bound.ranks
        self.blocks = _blocks(plan)
        self.running: dict[tuple[int, int, int], int] = {}
        """Resident CTAs -> the number of their programs that have not ended."""
        self.pending: list[list[deque[int]]] = self._pending(priority)
        self.unfinished = self._kernel_sizes()
        self.ended: set[tuple[int, int]] = set()
        """(kernel, rank) whose first program has ended, where it has all tiles."""
        self.held: dict[tuple[int, int], list[int]] = {}
        """(kernel, rank) -> programs without tiles that are resident until the kernel's first program has ended."""
        self.ended_of: dict[tuple[str, int], int] = {}
        """(stream, rank) -> number of its kernels known to have ended."""
        self.short = [False] * plan.bound.ranks
        """rank -> True if a worker that could start did not fit."""

    def _with_boxes(self) -> Ints:
        """Return the number of each signal's counter, or of its box, which comes after the counters."""
        plan, result = self.plan, self.plan.counters.copy()
        boxed = np.flatnonzero(plan.signals.box)
        boxes = plan.signals.peer[boxed] * len(plan.boxes) + plan.signals.box[boxed] - 1
        own, which = np.unique(boxes, return_inverse=True)
        result[boxed] = len(self.need) + which.ravel()
        for rank, number in zip(*(column.tolist() for column in divmod(own, max(len(plan.boxes), 1))), strict=True):
            counters = rank * plan.channels + plan.boxes[number].channels
            closed = [counter for counter in counters.tolist() if self.need[counter] > 0]
            for counter in closed:
                self.boxes.setdefault(counter, []).append(len(self.need))
            self.need.append(len(closed))
        return result

    def closed(self, wait: int) -> int:
        """Return the first counter that a wait, a row of plan.signals, still needs."""
        rows, channels = self.plan.each_channel(np.array([wait]))
        counters = self.plan.signals.peer[rows] * self.plan.channels + channels
        return int(counters[np.argmin(self.opened[counters])])

    def _pending(self, priority: tuple[str, ...]) -> list[list[deque[int]]]:
        """Return per rank and stream the workers that have not started, in the order in which they would."""
        kernels = self.plan.bound.kernels
        level = {stream: n for n, stream in enumerate(("copy", *priority))}
        waiting = [[deque[int]() for _ in level] for _ in range(self.plan.bound.ranks)]
        for worker in sorted(
            range(len(self.plan.workers)), key=lambda worker: kernels[self.plan.workers[worker][0]].position
        ):
            number, rank, _ = self.plan.workers[worker]
            waiting[rank][level[kernels[number].stream]].append(worker)
        return waiting

    def _kernel_sizes(self) -> dict[tuple[int, int], int]:
        return {(n, r): k.programs for n, k in enumerate(self.plan.bound.kernels) for r in range(self.plan.bound.ranks)}

    def go(self) -> None:
        for rank in range(self.plan.bound.ranks):
            self._admit(rank)
        while self.ready:
            self._advance(self.ready.popleft())

    @property
    def blocked(self) -> list[int]:
        """Workers that never finished."""
        asleep = [worker for workers in self.sleepers.values() for worker in workers]
        return asleep or [worker for streams in self.pending for waiting in streams for worker in waiting]

    @cached_property
    def _by_stream(self) -> dict[str, list[int]]:
        """The numbers of each stream's kernels, in order."""
        kernels = self.plan.bound.kernels
        numbers = sorted(range(len(kernels)), key=lambda number: kernels[number].position)
        return {k.stream: [n for n in numbers if kernels[n].stream == k.stream] for k in kernels if not k.position}

    def _started(self, worker: int) -> bool:
        """True if the earlier kernels on the worker's stream and rank have ended."""
        number, rank, _ = self.plan.workers[worker]
        kernel = self.plan.bound.kernels[number]
        order, done = self._by_stream[kernel.stream], self.ended_of.get((kernel.stream, rank), 0)
        while done < kernel.position and not self.unfinished[order[done], rank]:
            done += 1
        self.ended_of[kernel.stream, rank] = done
        return done >= kernel.position

    def _admit(self, rank: int) -> None:
        """Start the workers of a rank that can. Others can only when a kernel has ended there, or a CTA has."""
        self.short[rank] = False
        for waiting in self.pending[rank]:
            while waiting and self._started(waiting[0]):
                block = self.blocks[waiting[0]]
                free = self.on_copy_engine[block[0]] or block in self.running
                if not free and self.free[rank] <= 0:
                    # Those after it do not fit either: the programs of a CTA are in a row, and start together.
                    self.short[rank] = True
                    break
                self.free[rank] -= 0 if free else 1
                self.running.setdefault(block, self.plan.bound.kernels[block[0]].programs_per_cta)
                self.ready.append(waiting.popleft())

    def _advance(self, worker: int) -> None:
        asleep = self._signal(worker) if self.cursor[worker] < len(self.signals[worker]) else self._wait(worker)
        if asleep is not None:
            self.sleepers.setdefault(asleep, []).append(worker)
            return
        number, rank, program = self.plan.workers[worker]
        if self.in_launch[number]:
            if program and (number, rank) not in self.ended:
                self.held.setdefault((number, rank), []).append(worker)
                return
            if not program:
                self.ended.add((number, rank))
                for other in self.held.pop((number, rank), ()):
                    self._end(other)
        self._end(worker)
        if self.short[rank] or not self.unfinished[number, rank]:
            self._admit(rank)

    def _wait(self, worker: int) -> int | None:
        """Go on with a worker that only waits now. Return the counter that it has to wait for, or None at its end."""
        waits, begin, there = self.waits[worker], self.cursor[worker], self.opened
        for at in range(begin, len(waits), SEVERAL):
            seen = there[waits[at : at + SEVERAL]]
            first = int(seen.argmin())  # 0 is a closed one
            if not seen[first]:
                self.cursor[worker] = at + first
                return int(waits[self.cursor[worker]])
        self.cursor[worker] = len(waits)
        return None

    def _signal(self, worker: int) -> int | None:
        """As `_wait`, for a worker that has notifies left."""
        signals, begin = self.signals[worker], self.cursor[worker]
        count, need = self.count, self.need
        for at, key in enumerate(islice(signals, begin, None), begin):
            if key >= 0:
                count[key] += 1
                if count[key] >= need[key] and not self.open[key]:
                    self._open(key)
            elif count[~key] < need[~key]:
                self.cursor[worker] = at
                return ~key
        self.cursor[worker] = len(signals)
        return self._wait(worker) if len(signals) < len(self.waits[worker]) else None

    def _open(self, counter: int) -> None:
        """Let those go on that wait for a counter, or for a box of which it was the last one."""
        self.open[counter] = 1
        self.ready.extend(self.sleepers.pop(counter, ()))
        for box in self.boxes.get(counter, ()):
            self.count[box] += 1
            if self.count[box] == self.need[box]:
                self._open(box)

    def _end(self, worker: int) -> None:
        number, rank, _ = block = self.blocks[worker]
        self.unfinished[number, rank] -= 1
        self.running[block] -= 1
        if not self.running[block] and not self.on_copy_engine[number]:
            self.free[rank] += 1


def _refusal(plan: Plan, run: _Run, priority: tuple[str, ...] | None) -> VerificationError:
    asleep = [worker for workers in run.sleepers.values() for worker in workers]
    if not asleep:
        return ProgressError("kernels wait for programs that never end", hint="give each stage fewer programs")
    rows = [run.scripts[worker][run.cursor[worker]] for worker in sorted(asleep)]
    s = plan.signals
    first = rows[0]
    tensor, kind, cell = plan.channel_name(run.closed(int(first)) % plan.channels)
    others = "; ".join(
        f"{where(plan, int(s.task[r]))} waits for {plan.channel_name(int(s.channel[r]))[0]}" for r in rows[1:4]
    )
    who, hint = _missing(plan, run, int(first))
    freed = plan.bound.tensors[tensor].credits
    if freed is not None:
        hint = STEPS.format(freed)
    message = f"waits for ever for {tensor} channel {list(cell)} ({kind} signals){who}"
    message += f"; {others}" if others and hint != CYCLE else ""
    if priority is not None:
        hint = f"{plan.bound.resident_programs} programs fit on a rank; {FEWER}"
    return refuse(ProgressError, plan, message, task=int(s.task[first]), statement=int(s.statement[first]), hint=hint)


def _refilled(plan: Plan, rows: list[int]) -> tuple[int, int] | None:
    """Return two notifies of a channel, rows of plan.signals, for two steps of an index that map to one region.

    An example is a buffer that is used several times, with `l % 2`: each step would have to wait for its own notify
    alone.
    """
    seen: dict[tuple[int, ...], tuple[int, dict[str, int]]] = {}
    for row in rows[:SEEN]:
        task, statement = int(plan.signals.task[row]), int(plan.signals.statement[row])
        stage, node = plan.statements[statement]
        if not isinstance(node, Notify):
            continue
        rank, indices = plan.task_name(task)[1], plan.tile_indices(task)
        env = Env(rank=rank, ranks=plan.bound.ranks, params={}, indices=indices)
        try:
            spans = plan.bound.tile_map(stage, node.region).spans
            begin = tuple(int(evaluate(span.start, env)) for span in spans)
        except (KeyError, TypeError):  # it depends on a loop or on a table
            continue
        first, others = seen.setdefault((statement, rank, *begin), (row, indices))
        if any(others[name] != indices[name] for name in indices_in(*node.region.coords) & indices.keys()):
            return first, row
    return None


AROUND = 4
"""Waits of a cycle that are named, at most."""
SEEN = 256
"""Notifies of a channel that `_refilled` compares, at most."""
FEWER = "reserve fewer SMs (`on sm(n)`), or run a stage in another one's kernel, so that all programs are resident"
ORDER = (
    "change the order of tiles so that the notifying tile comes earlier, or the channel so that it needs fewer notifies"
)
STEPS = (
    "a slot of {0} is free when its step has been read: make the step the outermost index in the order of every stage "
    "that accesses {0}, let stages that write {0} run in parallel with those that read it (`on sm(n)`), or give {0} "
    "more slots"
)


CYCLE = (
    "in any order of tiles each of these waits for the next one: let one of them notify before it waits, or wait only "
    "where it reads what the other writes"
)


def _notifies(plan: Plan, run: _Run, wait: int) -> list[int]:
    """Return the notifies, rows of plan.signals, of the counter that a wait still needs."""
    return np.flatnonzero((plan.signals.kind != WAIT) & (plan.counters == run.closed(wait))).tolist()


def _late(plan: Plan, run: _Run, rows: list[int]) -> list[int]:
    """Return those of some notifies that their workers have not reached."""
    task = plan.signals.task
    return [row for row in rows if row in run.scripts[worker := int(plan.worker[task[row]])][run.cursor[worker] :]]


def _cycle(plan: Plan, run: _Run, wait: int) -> list[int] | None:
    """Return waits, of which each is for a notify that comes after the next one in its tile, and so around; or None."""
    task, seen = plan.signals.task, list[int]()
    waiting = {worker for workers in run.sleepers.values() for worker in workers}
    while wait not in seen:
        seen.append(wait)
        late = _late(plan, run, _notifies(plan, run, wait))
        worker = int(plan.worker[task[late[0]]]) if late else -1
        if worker not in waiting:
            return None
        asleep = int(run.scripts[worker][run.cursor[worker]])
        if task[asleep] != task[late[0]]:
            return None
        wait = asleep
    return seen[seen.index(wait) :] if seen[0] == wait and len(seen) > 1 else None


def _waits_for(plan: Plan, kernel: Kernel, other: Kernel) -> bool:
    """True if a kernel waits for signals of another one."""
    s, kernels = plan.signals, plan.task_kernels[plan.signals.task]
    numbers = [plan.bound.kernels.index(one) for one in (kernel, other)]
    awaited = plan.counters[(s.kind == WAIT) & (kernels == numbers[0])]
    notified = plan.counters[(s.kind != WAIT) & (kernels == numbers[1])]
    return bool(np.isin(awaited, notified).any())


def _missing(plan: Plan, run: _Run, wait: int) -> tuple[str, str]:
    """Return the text about the task that has not notified what a row of plan.signals waits for, and a hint."""
    s, rows = plan.signals, _notifies(plan, run, wait)
    if (again := _refilled(plan, rows)) is not None:
        first, second = (where(plan, int(s.task[row])) for row in again)
        tensor = plan.channel_name(int(s.channel[wait]))[0]
        who = f", which is notified again and again in a launch, by {first} and by {second}, and the wait is for all"
        return (
            who,
            f"give {tensor} a dimension over these steps, and tiles of one step, so that each has a channel of its own",
        )
    late = _late(plan, run, rows)
    if not late:
        return "", ORDER
    own = next((row for row in late if s.task[row] == s.task[wait]), None)
    if own is not None:
        hint = "give it smaller tiles along the region that it waits for, or notify before the wait"
        return ", which the same tile notifies later", hint
    if (around := _cycle(plan, run, wait)) is not None:
        names = [f"{where(plan, int(s.task[r]))} waits for {plan.channel_name(int(s.channel[r]))[0]}" for r in around]
        around_text = ", and ".join([*names[:AROUND], *(["so on"] if len(names) > AROUND else [])])
        return f", which {where(plan, int(s.task[late[0]]))} notifies later: {around_text}", CYCLE
    later = next((row for row in late if plan.worker[s.task[row]] == plan.worker[s.task[wait]]), None)
    if later is not None:
        return f", which {where(plan, int(s.task[later]))} notifies, after it in the same program", ORDER
    notifier = int(s.task[late[0]])
    who = f", which {where(plan, notifier)} has not notified"
    first, second = (plan.bound.kernel_of[plan.task_name(task)[0]] for task in (int(s.task[wait]), notifier))
    if first.stream == second.stream and first.position < second.position:
        hint = f"declare {second.name} before {first.name}, or give {second.name} SMs of its own: `on sm(n)`"
        if _waits_for(plan, second, first):
            hint = "each of the two waits for the other, so no order of them helps: "
            hint += f"give {first.name} and {second.name} SMs of their own, `on sm(n)` each"
        return f"{who}: the kernel of {second.name} runs after that of {first.name}", hint
    return who, ORDER
