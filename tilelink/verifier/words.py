"""Rule `words`: a read of words lasts until exactly what it reads has been sent in this launch.

A word has data and a flag, the number of the launch, and is stored and loaded at once
(lowering/clauses/low_latency.py). A read of words lasts until each flag is that of its launch.

Theorem: such a read gives what was sent in this launch, and it ends when all of that has been sent. Assume the rules
of coverage (all that is read is written) and of reuse (no rank writes a buffer that may still be read for an earlier
launch) and this rule:

* The tensor is written by sends alone, and each of its elements is sent at most once in a launch. So a word with the
  flag of this launch has the data of the only send, whoever has sent it. An older flag is that of an earlier launch,
  whose number differs. No pattern of data is taken for a flag, because flags have bits of their own.
* It is read by reads of words alone. They need no wait before them, and no other statement notifies it or waits for it:
  there is no counter that anybody could wait for.
* Each access begins with a word, so that each word is stored by one send.
* A channel is inside of each access that touches it, and is notified once. So the plan waits for what the words are
  waited for, no less and no more: what the rules of progress and of reuse conclude of channels is true of words.

A word orders nothing but itself: happens-before has an edge from the write of a word to its read, and none between what
is before the one and after the other (planning/happens_before.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

import numpy as np

from tilelink.errors import VerificationError, WordsError
from tilelink.ir.printer import NOTIFY, WAIT, print_region
from tilelink.ir.program import Notify, Read, Statement, Transfer, Wait
from tilelink.ir.visitor import statements, value_of, values, written
from tilelink.lowering.bound import SWEEP_WINDOW, BoundTensor, KernelKind
from tilelink.lowering.events import WRITE
from tilelink.lowering.words import begins_anywhere, exact_sizes, lists, looks_up
from tilelink.planning.plan import Plan
from tilelink.verifier.cells import TensorAccesses, parts, rank_by_rank
from tilelink.verifier.refusal import refuse

_NOTIFY, _WAIT = NOTIFY["tile"], WAIT["tile"]


def words(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of accesses by words to other tensors, and of other accesses to tensors that travel by words."""
    for number, message, hint in _statements(plan):
        yield _at(plan, number, message, hint)
    for tensor in plan.bound.tensors.values():
        if tensor.packed:
            yield from _accesses(plan, tensor)
            yield from _channels(plan, tensor)
            yield from _swept(plan, tensor)
            yield from _entries(plan, tensor)
    packed = [tensor.number for tensor in plan.bound.tensors.values() if tensor.packed]
    for part in parts(plan, (plan.accesses.kind == WRITE) & plan.touching(packed)):
        yield from rank_by_rank(part, _sent_once)


def _at(plan: Plan, statement: int, message: str, hint: str) -> WordsError:
    """Return the refusal of a statement, at the first task that executes it."""
    a, s = plan.accesses, plan.signals
    tasks = np.concatenate([a.task[a.statement == statement], s.task[s.statement == statement]])
    return refuse(WordsError, plan, message, task=int(tasks.min()), statement=statement, hint=hint)


def _statements(plan: Plan) -> Iterator[tuple[int, str, str]]:
    """Yield (number, message, hint) of executed statements that words do not allow."""
    a, s = plan.accesses, plan.signals
    executed = {*np.unique(a.statement).tolist(), *np.unique(s.statement).tolist()}
    packed = {name for name, tensor in plan.bound.tensors.items() if tensor.packed}
    for number, (stage, statement) in enumerate(plan.statements):
        if number in executed:
            found = (*_signals(statement, packed), *_writes(plan, statement, packed), *_reads(plan, statement, packed))
            for message, hint in (*found, *_programs(plan, stage, statement, packed)):
                yield number, message, hint


def _signals(statement: Statement, packed: set[str]) -> Iterator[tuple[str, str]]:
    if not isinstance(statement, Notify | Wait) or statement.region.tensor not in packed:
        return
    region = print_region(statement.region)
    if isinstance(statement, Notify):
        message = f"notifies {region}, which has `low_latency`, and has pushed nothing of it"
        yield message, "words carry their own signals: a tile notifies what it has pushed itself, after the push"
    else:
        message = f"waits for {region}, which has `low_latency`, and reads nothing of it afterwards"
        yield message, "words carry their own signals: a tile waits for what it reads itself, before the read"


def _writes(plan: Plan, statement: Statement, packed: set[str]) -> Iterator[tuple[str, str]]:
    region = written(statement)
    if region is None:
        return
    mode = statement.mode if isinstance(statement, Transfer) else "store"
    signal = statement.signal if isinstance(statement, Transfer) else None
    if mode == "send" and region.tensor not in packed:
        yield f"sends words to {region.tensor}, whose memory has none", f"push to {region.tensor}, and notify it"
    elif mode == "send" and (region.tensor, signal) not in plan.bound.channels:
        hint = f"tile_send_data({print_region(region)}, value, {_NOTIFY})"
        yield f"sends words of {print_region(region)} without a signal", hint
    elif mode == "push" and region.tensor in packed:
        message = f"pushes {print_region(region)}, which has `low_latency`, and does not notify all of it"
        yield message, f"notify what is pushed, after the push and in the same tile: {_NOTIFY}({print_region(region)})"
    elif mode != "send" and region.tensor in packed:
        message = f"writes {print_region(region)}, which has `low_latency`, without a push"
        yield message, f"push it, and notify it: tile_push_data({print_region(region)}, value)"


def _reads(plan: Plan, statement: Statement, packed: set[str]) -> Iterator[tuple[str, str]]:
    channels = plan.bound.channels
    for read in _all_reads(statement):
        region = read.region
        if read.signal is None and region.tensor in packed:
            message = f"reads {print_region(region)}, which has `low_latency`, and has not waited for all of it"
            yield message, f"wait for what is read, before it and in the same tile: {_WAIT}({print_region(region)})"
        elif read.signal is not None and region.tensor not in packed:
            yield f"waits for words of {region.tensor}, whose memory has none", "a wait, and then a read"
        elif read.signal is not None and (region.rank is not None or (region.tensor, read.signal) not in channels):
            hint = "read what is sent to the own rank, by the kind of its signals"
            yield f"waits for words of {print_region(region)}, which are not sent here", hint


def _programs(plan: Plan, name: str, statement: Statement, packed: set[str]) -> Iterator[tuple[str, str]]:
    stage, target = plan.bound.stages[name], written(statement)
    used = {read.region.tensor for read in _all_reads(statement)} | ({target.tensor} if target is not None else set())
    if used & packed and stage.kind is not KernelKind.TILES:
        message = f"accesses {min(used & packed)} by words, and its programs do not load and store"
        yield message, "a stage on SMs, without tma_copy and roles"


def _all_reads(statement: Statement) -> list[Read]:
    value = value_of(statement)
    return [part for part in values(value) if isinstance(part, Read)] if value is not None else []


def _accesses(plan: Plan, tensor: BoundTensor) -> Iterator[VerificationError]:
    a = plan.accesses
    own = a.tensor == tensor.number
    last = len(tensor.shape) - 1
    guards = np.unique(a.guard[own]).tolist() if tensor.packed > 1 else []
    anywhere = [number for number in guards if begins_anywhere(plan.guards.known[number], last)]
    within = (a.lo[:, last] % tensor.packed != 0) | np.isin(a.guard, anywhere)
    for row in np.flatnonzero(own & within)[:1]:
        begin = f"column {a.lo[row, last]}" if a.lo[row, last] % tensor.packed else "a column that a launch decides"
        message = f"accesses {tensor.name} from {begin} on, and words have {tensor.packed} elements"
        hint = (
            f"let tiles and slices along the last dimension begin at multiples of {tensor.packed}, as tiles of an even "
        )
        hint += (
            "size do; `low_latency` in a schedule takes words of fewer elements where they do not, which are more bytes"
        )
        yield refuse(WordsError, plan, message, task=int(a.task[row]), statement=int(a.statement[row]), hint=hint)


def _entries(plan: Plan, tensor: BoundTensor) -> Iterator[VerificationError]:
    """Yield refusals of stages that cannot wait for the entries that they look up."""
    for stage in plan.bound.stages.values():
        if not looks_up(stage.stage, tensor.name):
            continue
        if stage.kind is not KernelKind.TILES:
            message = f"{stage.name} looks up entries of {tensor.name} by words, and its programs do not load and store"
            hint = "a stage on SMs, without tma_copy and roles"
            yield WordsError(message, location=stage.stage.location, hint=hint)
        if (region := lists(plan.bound, stage, tensor.name)) is not None:
            message = f"{stage.name} waits for no tile of entries of {tensor.name}, {print_region(region)}"
            yield WordsError(message, location=stage.stage.location, hint="read one entry at a time")


def _swept(plan: Plan, tensor: BoundTensor) -> Iterator[VerificationError]:
    """Yield a refusal if words that a launch may leave unsent keep their flags until the numbers come again."""
    a, stages = plan.accesses, plan.bound.stages
    unsent = np.flatnonzero((a.tensor == tensor.number) & (a.kind == WRITE) & (a.guard > 0))
    if not len(unsent):
        return
    task, statement = (int(column[unsent[0]]) for column in (a.task, a.statement))
    readers = [
        name
        for name, stage in stages.items()
        if looks_up(stage.stage, tensor.name)
        or any(r.region.tensor == tensor.name for s in statements(stage.stage.body) for r in _all_reads(s))
    ]
    if tensor.swept_by not in readers:
        message = f"sends words of {tensor.name} that other launches leave out, and nothing replaces their old flags"
        hint = f"swept_by {readers[0]}" if readers else "read what is sent"
        yield refuse(WordsError, plan, message, hint=hint, task=task, statement=statement)
    cycle = lcm(*(one.buffers for one in plan.bound.tensors.values()))
    if cycle > SWEEP_WINDOW:
        message = f"sends words of {tensor.name} that other launches leave out, and launches in a CUDA graph may skip "
        message += (
            f"up to {cycle - 1} numbers, of which {SWEEP_WINDOW} in a row have to include one that replaces old flags"
        )
        hint = "give symmetric tensors the same few `buffers`"
        yield refuse(WordsError, plan, message, hint=hint, task=task, statement=statement)


def _channels(plan: Plan, tensor: BoundTensor) -> Iterator[VerificationError]:
    a, dims = plan.accesses, len(tensor.shape)
    own = np.flatnonzero(a.tensor == tensor.number)
    if not len(own):
        return
    exact = exact_sizes(a.lo[own, :dims], a.hi[own, :dims], tensor.shape)
    for key, grid in plan.bound.channels.items():
        if key[0] != tensor.name:
            continue
        if any(size % part for size, part in zip(exact, grid.sizes, strict=True)):
            message = (
                f"channels of {tensor.name} of {list(grid.sizes)} elements are not inside of what is read and sent"
            )
            yield WordsError(message, location=tensor.decl.location, hint=f"sizes{list(exact)}")


def _sent_once(part: TensorAccesses) -> Iterator[VerificationError]:
    """Yield the refusal of an element that is sent twice. part: the writes of a tensor."""
    if not (part.count > 1).any():
        return
    low, high = part.boxes
    twice = np.flatnonzero(part.cells.sums(part.count > 1, low, high) > 0)
    first, second = (int(part.rows[row]) for row in (twice[0], twice[-1]))
    plan, a = part.plan, part.plan.accesses
    message = f"sends elements of {part.name} of rank {a.peer[first]} that are sent twice in a launch"
    hint = "a flag has the number of the launch alone: push each element once, or take `low_latency` away"
    yield refuse(
        WordsError,
        plan,
        message,
        task=int(a.task[first]),
        statement=int(a.statement[first]),
        related=int(a.statement[second]),
        hint=hint,
    )
