"""Rule `network`: what reaches another node is what the network has: puts, gets and signals of the network, by programs
on SMs.

The rules of ordering, of exclusive writes and of reuse then take from `planning/network.py` when a put has happened.
This rule proves what that and the runtime rely on:

* A rank reads another node's memory by gets alone, writes it by puts alone, and its notifies there are signals of the
  network. There is no other access between nodes.
* Puts and gets move elements as they are, between memories that the runtime holds. A put with a signal is one message
  with one counter.
* A counter of a rank is added to by the network alone, or from inside its node alone. An adapter's additions are atomic
  among themselves, and so are those of GPUs, but one of two that meet may be lost. The counters of the launch's
  announcements have one sender each.
* All threads of a program put and signal together. So a stage that sends has no roles, and no copies by single warps.
* A program waits until its puts have arrived before its rank announces the end of a launch: its kernel ends with a
  quiet, or the program has one after them. So a rank that is finished has nothing on its way, neither data nor signals.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.errors import NetworkError
from tilelink.ir.program import Read, Region, Transfer
from tilelink.lowering.bound import KernelKind
from tilelink.lowering.choose_network import sends
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import NOTIFY, QUIET, READ, WRITE
from tilelink.lowering.messages import axes, contiguous, is_held, is_plain, one_message
from tilelink.lowering.places import box
from tilelink.planning.network import Puts
from tilelink.planning.plan import Plan
from tilelink.verifier.refusal import refuse, where

FETCH = "fetch the region first: tile_pull_data(a local region, ... @ rank), then read that"
APART = "give senders channels of their own: a dimension of the tensor for the rank, or the node, that sends"
PUSH = "write to another node with tile_push_data, and let the transport pass choose what carries it"


def network(plan: Plan) -> Iterator[NetworkError]:
    """Yield refusals of what reaches another node in another way than the network has."""
    bound = plan.bound
    if bound.nodes == 1:
        return
    if bound.protocol.in_kernels:
        message = f"kernels announce entry and end by themselves ({bound.protocol.name}), which reaches one node only"
        yield NetworkError(message, hint="on several nodes the protocol is HELPER_KERNELS")
    if bound.target.kind != "cpu" and (queued := [k for k in bound.kernels if k.on_copy_engine]):
        message = f"{queued[0].stage_names[0]} is on the copy engine, which GPUs of several nodes do not use"
        yield NetworkError(message, hint=f"put it on SMs: {queued[0].stage_names[0]} on sm(1)")
    for stage in bound.stages.values():
        if sends(stage) and stage.kind in (KernelKind.ROLES, KernelKind.TMA_COPY):
            message = f"{stage.name} sends to another node from some of its program's warps"
            yield NetworkError(message, hint="all threads of a program send together: no roles, and no copies by TMA")
    rank = np.array([r for _, r, _ in plan.workers], np.int64)
    puts = Puts(plan=plan)
    yield from _accesses(plan, rank, puts)
    yield from _signals(plan, rank, puts)
    yield from _shared(plan, puts)
    yield from _messages(plan, puts)
    yield from _unfinished(plan, puts)


def _accesses(plan: Plan, rank: Ints, puts: Puts) -> Iterator[NetworkError]:
    a, bound = plan.accesses, plan.bound
    every = [s for _, s in plan.statements]
    gets = np.array([isinstance(s, Transfer) and s.mode == "get" for s in every], bool)
    own = rank[plan.worker[a.task]]
    away = bound.node_of(own) != bound.node_of(a.peer)
    carried = (gets[a.statement] & (a.kind == READ)) | (puts.statements[a.statement] & (a.kind == WRITE))
    for row in np.flatnonzero(away & ~carried)[:3]:
        name = bound.tensor_numbered(int(a.tensor[row])).name
        does, hint = ("reads", FETCH) if a.kind[row] == READ else ("writes", PUSH)
        message = f"{does} {name} of rank {a.peer[row]}, on another node, by its address"
        yield refuse(NetworkError, plan, message, task=int(a.task[row]), statement=int(a.statement[row]), hint=hint)
    queued = np.array([bound.kernels[number].on_copy_engine for number, _, _ in plan.workers], bool)
    for row in np.flatnonzero((gets | puts.statements)[a.statement] & queued[plan.worker[a.task]])[:1]:
        message = "puts or gets on the copy engine, which does not reach the network"
        hint = "put the stage on SMs: on sm(1)"
        yield refuse(NetworkError, plan, message, task=int(a.task[row]), statement=int(a.statement[row]), hint=hint)


def _signals(plan: Plan, rank: Ints, puts: Puts) -> Iterator[NetworkError]:
    s, bound = plan.signals, plan.bound
    away = (s.kind == NOTIFY) & (bound.node_of(rank[plan.worker[s.task]]) != bound.node_of(s.peer))
    for row in np.flatnonzero(puts.by_network & (s.later > 0))[:1]:
        message = "defers a signal of the network to its next tile"
        hint = "the network's signals are sent where they stand"
        yield refuse(NetworkError, plan, message, task=int(s.task[row]), statement=int(s.statement[row]), hint=hint)
    for row in np.flatnonzero(away & ~puts.by_network)[:3]:
        tensor, _, cell = plan.channel_name(int(s.channel[row]))
        message = f"notifies {tensor} channel {list(cell)} of rank {s.peer[row]}, on another node, by its address"
        hint = "a signal between nodes is one of the network: by_network, or put with its data"
        yield refuse(NetworkError, plan, message, task=int(s.task[row]), statement=int(s.statement[row]), hint=hint)
    notifies = puts.statements[s.statement] & (s.kind == NOTIFY) if len(s.task) else np.zeros(0, bool)
    rows = np.flatnonzero(notifies)
    events = np.stack([s.task[rows], s.statement[rows], s.position[rows]], axis=1)
    _, first, count = np.unique(events, axis=0, return_index=True, return_counts=True)
    for at, number in zip(first[count > 1][:1].tolist(), count[count > 1][:1].tolist(), strict=True):
        row = rows[at]
        message = f"puts one message with signals of {number} counters"
        hint = "put it alone, then network_fence() and a notify; or let a channel cover the whole tile"
        yield refuse(NetworkError, plan, message, task=int(s.task[row]), statement=int(s.statement[row]), hint=hint)


def _shared(plan: Plan, puts: Puts) -> Iterator[NetworkError]:
    """Yield a refusal of a counter that is added to by the network and from inside its node."""
    s = plan.signals
    notifies = np.flatnonzero(s.kind == NOTIFY)
    carried = puts.by_network[notifies]
    _, counter = np.unique(np.stack([s.peer[notifies], s.channel[notifies]]), axis=1, return_inverse=True)
    counter = counter.ravel()
    both = np.intersect1d(counter[carried], counter[~carried])
    for one in both[:1]:
        row, near = (notifies[(counter == one) & mask][0] for mask in (carried, ~carried))
        tensor, _, cell = plan.channel_name(int(s.channel[row]))
        message = (
            f"notifies {tensor} channel {list(cell)} of rank {s.peer[row]} by the network, and "
            f"{where(plan, int(s.task[near]))} notifies it from inside the node: one of two additions may be lost"
        )
        task, statement, related = int(s.task[row]), int(s.statement[row]), int(s.statement[near])
        yield refuse(NetworkError, plan, message, task=task, statement=statement, related=related, hint=APART)


def _halves(plan: Plan, puts: Puts) -> Ints:
    """Return the rows of the plan's accesses that are one half of a put, a read or a write, without the other."""
    a, rows = plan.accesses, puts.rows
    writes = a.kind[rows] == WRITE
    key = np.stack([a.task[rows], a.statement[rows], a.position[rows] - writes], axis=1)
    _, event, count = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    both = np.zeros(len(count), np.int64)
    np.add.at(both, event.ravel(), np.where(writes, 1, -1))
    return rows[(count != 2)[event.ravel()] | (both != 0)[event.ravel()]]


def _messages(plan: Plan, puts: Puts) -> Iterator[NetworkError]:
    """Yield refusals of puts and gets that change elements, and of a put with a signal that is several messages."""
    a, bound = plan.accesses, plan.bound
    for row in _halves(plan, puts)[:1]:
        message = "puts without reading what it puts, or reads what it does not put"
        hint = "a put reads its source where it writes its target"
        yield refuse(NetworkError, plan, message, task=int(a.task[row]), statement=int(a.statement[row]), hint=hint)
    for number, (name, statement) in enumerate(plan.statements):
        if not isinstance(statement, Transfer) or statement.mode not in ("put", "get"):
            continue
        rows = np.flatnonzero(a.statement == number)
        if not len(rows):
            continue
        task = int(a.task[rows[0]])
        if not is_plain(bound, bound.stages[name], statement) or _away(statement):
            message = "puts or gets another region, type or shape than it reads"
            hint = "put a region of the own rank as it is: store a computed value to a local tensor first"
            yield refuse(NetworkError, plan, message, task=task, statement=number, hint=hint)
            continue
        own = statement.target if statement.mode == "get" else _source(statement)
        if not is_held(bound, own):
            message = f"puts or gets {own.tensor}, which callers pass: the network does not know its memory"
            hint = f"copy it to a local tensor first, or declare it symmetric: {own.tensor} : in symmetric [...]"
            yield refuse(NetworkError, plan, message, task=task, statement=number, hint=hint)
            continue
        if statement.signal is None:
            continue
        in_part = any(span.counted for span in axes(bound, bound.stages[name], statement.target))
        if in_part and not one_message(bound, bound.stages[name], statement):
            message = "puts tiles with a signal that are several messages where a launch has only a part of them"
            hint = "let the counted index be the first axis of what is put, before whole ones"
            yield refuse(NetworkError, plan, message, task=task, statement=number, hint=hint)
            continue
        for row in rows:
            shape = bound.tensor_numbered(int(a.tensor[row])).shape
            if not contiguous(a.lo[[row]], a.hi[[row]], shape)[0]:
                tensor = bound.tensor_numbered(int(a.tensor[row])).name
                part = box(a.lo[row], a.hi[row], len(shape))
                message = f"puts {tensor}{part} with a signal, which is several messages: its rows are apart in memory"
                hint = "put it alone, then network_fence() and a notify; or let tiles have whole rows"
                yield refuse(NetworkError, plan, message, task=int(a.task[row]), statement=number, hint=hint)
                break


def _source(statement: Transfer) -> Region:
    assert isinstance(statement.source, Read)
    return statement.source.region


def _away(statement: Transfer) -> bool:
    """True if the side of a put or a get that must be on the own rank is not."""
    return (statement.target if statement.mode == "get" else _source(statement)).rank is not None


def _unfinished(plan: Plan, puts: Puts) -> Iterator[NetworkError]:
    """Yield a refusal of a program that ends without waiting for what it put, or for a signal that it sent."""
    a, s, bound = plan.accesses, plan.signals, plan.bound
    quiet = np.array([bound.kernels[number].quiet for number, _, _ in plan.workers], bool)
    last = np.full(len(plan.workers), np.iinfo(np.int64).min)
    n = plan.network
    rows = np.flatnonzero(n.kind == QUIET)
    np.maximum.at(last, plan.worker[n.task[rows]], plan.key(n.task[rows], n.position[rows]))
    notifies = np.flatnonzero(puts.by_network)
    task = np.concatenate([a.task[puts.rows], s.task[notifies]])
    position = np.concatenate([a.position[puts.rows], s.position[notifies]])
    statement = np.concatenate([a.statement[puts.rows], s.statement[notifies]])
    worker = plan.worker[task]
    late = ~quiet[worker] & (plan.key(task, position) > last[worker])
    for row in np.flatnonzero(late)[:1]:
        message = "sends to another node, and its program ends before that has arrived"
        hint = "the kernel must end with a wait for the network: `quiet`"
        yield refuse(NetworkError, plan, message, task=int(task[row]), statement=int(statement[row]), hint=hint)
