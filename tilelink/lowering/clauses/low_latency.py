"""`low_latency`: data that travels as words, each of which has its own flag, as in NCCL's protocol LL.

A push and its notify cost a fence between them, and the receiver loads a counter before it loads the data. A word has
64 bits: 32 of data, and 32 of flag, the number of the launch. It is stored at once, so whoever reads a flag of this
launch has the data next to it. Nothing else needs to be ordered: no fence, no counter. This pass makes that visible for
each tensor with the clause `low_latency`:

before: comm send(q: ranks, i: M, j: N):
            tile_push_data(parts[rank, i, j] @ q, x[i, j])
            producer_tile_notify(parts[rank, i, j] @ q)
        compute reduce(i: M, j: N):
            consumer_tile_wait(parts[:, i, j])
            acc = zeros(f32)
            for (s: ranks):
                acc += parts[s, i, j]
            y[i, j] = acc
after:  comm send(q: ranks, i: M, j: N):
            tile_send_data(parts[rank, i, j] @ q, x[i, j], producer_tile_notify)
        compute reduce(i: M, j: N):
            acc = zeros(f32)
            for (s: ranks):
                acc += received(parts[s, i, j], consumer_tile_wait)
            y[i, j] = acc

* A push becomes a send if its tile notifies afterwards all that it pushes. A read is one of what is received if its
  tile has waited before for all that it reads. These notifies and waits go. What is left over (a push that nobody is
  told of, a read without a wait, a wait for nothing that is read) stays, and the rule `words` refuses it.
* A read lasts until the words of its region have come, and of those alone. So channels are cut anew, as large as they
  can be if each of them is inside of the regions that touch it. No counter of theirs counts: they are what the plan
  names the words by.
* Elements of less than 32 bits share a word (`BoundTensor.packed`), if every access begins with a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import numpy as np

from tilelink.errors import Location, ScheduleError
from tilelink.ir.mapping import ChannelGrid
from tilelink.ir.printer import print_region
from tilelink.ir.program import (
    Assign,
    For,
    If,
    Notify,
    Program,
    Read,
    Region,
    Statement,
    Store,
    Tensor,
    Transfer,
    Value,
    Wait,
)
from tilelink.ir.sizes import power_of_two
from tilelink.ir.typing import Typing
from tilelink.ir.visitor import map_value, reads, statements, value_of, written
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor, packings, with_bodies, with_channels
from tilelink.lowering.clauses.clause import Clause, Numbers, Phase, TensorChoices, said, switch
from tilelink.lowering.clauses.roles import ROLES
from tilelink.lowering.columns import Ints, expand
from tilelink.lowering.enumerate import Partial
from tilelink.lowering.events import NOTIFY, READ, WAIT, WRITE, Accesses, Signals, channels_of
from tilelink.lowering.guards import Guards
from tilelink.lowering.transform import number_of
from tilelink.lowering.words import begins_anywhere, exact_sizes, lists, looks_up, names_in
from tilelink.scheduling.schedule import CopyEngine
from tilelink.scheduling.words import SchedulePart

FEW_ELEMENTS = 16384
"""Largest number of elements of a tensor for which a search tries words: with more, twice the bytes cost more than the
fences and signals that they save."""


def _apply(bound: Bound) -> Bound:
    """Return the bound program in which the tensors of the clause have words. Raises ScheduleError if one cannot."""
    if not bound.capabilities.low_latency:
        return bound
    chosen = {part.name: part.at("low_latency") for part in bound.schedule.tensors if part[LOW_LATENCY]}
    sent = {name for name in chosen if bound.ranks > 1 or any(tensor == name for tensor, _ in bound.channels)}
    for name, place in chosen.items():
        if name in sent:
            _refuse(bound.tensors[name], place, _reasons(bound, bound.tensors[name]))
    bound = _with_words(bound, {name: place for name, place in chosen.items() if name in sent})
    for name in chosen:
        if name not in sent:
            bound = bound.leaving_out(LOW_LATENCY.name, name, "nothing is sent on one rank")
        elif "channel" in {clause.name for clause in said(bound.schedule.tensor(name))}:
            bound = bound.leaving_out("channel", name, "each of its words carries a signal of its own")
    return bound


def _with_words(bound: Bound, chosen: Mapping[str, Location | None]) -> Bound:
    """Return the bound program in which some tensors have words. chosen: where the schedule says so."""
    if not chosen:
        return bound
    walker = _walked(bound, chosen)
    if walker.faults:  # the rule `coverage` refuses them, and has to see the signals that words would replace
        return bound
    accesses, signals = walker.accesses(), walker.signals()
    every = [_Seen(bound, walker, bound.tensors[name], accesses, signals) for name in chosen]
    for seen in every:
        _refuse(seen.tensor, chosen[seen.tensor.name], seen.looked_up_early())
    carrying = _Carrying(every={seen.tensor.name: seen for seen in every})
    bodies = {name: carrying.body(stage.stage.body) for name, stage in bound.stages.items()}
    packed = {seen.tensor.name: replace(
        seen.tensor,
        packed=_packed(bound, seen),
        swept_by=_reader(bound, seen.tensor.name) if _may_leave_unsent(seen.accesses) else None,
    ) for seen in every}  # fmt: skip
    result = with_bodies(replace(bound, tensors={**bound.tensors, **packed}), bodies)
    for seen in every:
        result = _laid_out(result, seen)
    return result


def _walked(bound: Bound, sent: Iterable[str]) -> Partial:
    """Return all executions of statements that have to do with tensors that are sent, or with entries."""
    sent = frozenset(sent)
    stages = {stage.name: stage.stage for stage in bound.stages.values()}
    wholly = {
        name for name, stage in stages.items()
        if {_target(one) for one in statements(stage.body)} & bound.entries.keys()
        or names_in(stage) - bound.tensors.keys()
    }  # fmt: skip

    def wanted(stage: str, statement: Statement) -> bool:
        return stage in wholly or not sent.isdisjoint(names_in(replace(stages[stage], indices=(), body=(statement,))))

    return Partial(bound, wanted)


def _may_leave_unsent(a: Accesses) -> bool:
    """True if a launch may leave out elements that are sent in others."""
    return bool((a.guard[a.kind == WRITE] > 0).any())


def _reader(bound: Bound, name: str) -> str | None:
    """Return the first stage that reads a tensor."""
    stages = [stage.stage for stage in bound.stages.values()]
    return next(
        (one.name for one in stages if looks_up(one, name) or any(_read(s, name) for s in statements(one.body))), None
    )


def _may_travel(tensor: Tensor) -> bool:
    """True if words can carry a tensor, as far as its declaration says."""
    return tensor.space == "symmetric" and not tensor.sums and bool(tensor.shape)


def _may_have_words(program: Program, tensor: Tensor) -> bool:
    """True if what a program says of a tensor lets words carry it, as far as that is known without a schedule."""
    if not _may_travel(tensor):
        return False
    if any(other.space == "table" for other in program.tensors):
        return False
    every = [s for stage in program.stages for s in statements(stage.body)]
    kinds = {s.kind for s in every if isinstance(s, Notify | Wait) and s.region.tensor == tensor.name}
    return len(kinds) == 1 and not any(next(_of_statement("a stage", s, tensor.name), None) for s in every)


@dataclass(frozen=True, kw_only=True)
class _Refused:
    """A reason for which a tensor cannot have words."""

    reason: str
    hint: str
    statement: Statement | None = None


def _refuse(tensor: BoundTensor, location: Location | None, reasons: Iterator[_Refused]) -> None:
    """Raise ScheduleError for the first reason."""
    for refused in reasons:
        message = f"{tensor.name} cannot have `low_latency`: {refused.reason}"
        related = refused.statement.location if refused.statement is not None else None
        raise ScheduleError(message, location=location, related=related, hint=refused.hint)


def _reasons(bound: Bound, tensor: BoundTensor) -> Iterator[_Refused]:
    name = tensor.name
    if bound.nodes > 1:
        hint = "take `low_latency` away: between nodes a put carries a signal with its data"
        yield _Refused(reason="words are stored, and nodes are reached by the network", hint=hint)
    if tensor.steps is not None:
        hint = "take `slots` or `low_latency` away"
        yield _Refused(reason="its slots hold several steps of a launch, and a flag has the launch alone", hint=hint)
    for other in bound.source.tensors:
        if other.space == "table":  # the pass looks at the accesses of all tiles
            hint = f"take `low_latency` away, or give the entries with each launch: {other.name} : in [..] < N"
            yield _Refused(reason=f"entries of the table {other.name} are not known to this clause", hint=hint)
    kinds = [kind for tensor, kind in bound.channels if tensor == name]
    if len(kinds) != 1:
        what = f"it has signals of the kinds {' and '.join(kinds)}" if kinds else "no stage notifies it or waits for it"
        yield _Refused(reason=what, hint="notify what is pushed, and wait for it, with one kind of signals")
    for stage in bound.stages.values():
        yield from _of_stage(bound, stage, name)


def _of_stage(bound: Bound, stage: BoundStage, name: str) -> Iterator[_Refused]:
    every = list(statements(stage.stage.body))
    for statement in every:
        yield from _of_statement(stage.name, statement, name)
    used = looks_up(stage.stage, name) or any(_target(s) == name or _read(s, name) for s in every)
    if (region := lists(bound, stage, name)) is not None:
        reason = f"{stage.name} takes a tile of its entries as places, {print_region(region)}"
        hint = "read one entry at a time, with an index `by 1`; or copy them to a local tensor, and read that"
        yield _Refused(reason=reason, hint=hint)
    if used and (reason := _not_plain(bound, stage)) is not None:
        yield _Refused(reason=f"{stage.name} {reason}", hint="let the stage load and store: on sm, without that clause")


def _of_statement(stage: str, statement: Statement, name: str) -> Iterator[_Refused]:
    pushes = isinstance(statement, Transfer) and statement.mode == "push"
    if _target(statement) == name and not pushes:
        adds = isinstance(statement, Store) and statement.adds
        what = "adds to it" if adds else "writes it without a push"
        hint = f"tile_push_data({name}[..] @ rank, value), and a notify of it"
        yield _Refused(reason=f"{stage} {what}", hint=hint, statement=statement)
    if any(region.rank is not None for region in _read(statement, name)):
        hint = f"push it to the rank that reads it, and wait there: consumer_tile_wait({name}[..])"
        yield _Refused(reason=f"{stage} reads that of a peer", hint=hint, statement=statement)


def _read(statement: Statement, name: str) -> list[Region]:
    """Return the regions of a tensor that a statement reads."""
    value = value_of(statement)
    return [region for region in reads(value) if region.tensor == name] if value is not None else []


def _not_plain(bound: Bound, stage: BoundStage) -> str | None:
    """Return why the programs of a stage cannot store or poll words, or None."""
    if isinstance(stage.resource, CopyEngine):
        return "is on the copy engine, which moves data as it is"
    if stage.tma_copy is not None:
        return "copies by TMA, which moves data as it is"
    if bound.schedule.stage(stage.name)[ROLES] is not None and bound.capabilities.roles:
        return "has warps with roles, which load by TMA"
    return None


def _target(statement: Statement) -> str | None:
    return region.tensor if (region := written(statement)) is not None else None


# What words carry ------------------------------------------------------------------------------------------------


class _Seen:
    """The accesses and signals of a tensor in all tiles.

    kind: of its signals. accesses: of the tensor. guards: what a launch decides of them. carried: the pushes and reads
    that words can carry, and the notifies and waits that they replace, by the numbers that the enumerator gives
    statements. A wait may be for more than is read: a tile that is not there reads nothing, nor does a program that
    computes a part of a product.
    """

    def __init__(self, bound: Bound, walker: Partial, tensor: BoundTensor, a: Accesses, s: Signals) -> None:
        base = walker.channel_base
        ((_, kind),) = (key for key in bound.channels if key[0] == tensor.name)
        self.tensor, self.kind, self.guards = tensor, kind, walker.guards
        grid = bound.channels[tensor.name, kind]
        its = np.flatnonzero(a.tensor == tensor.number)
        of_tensor = (s.channel >= base[tensor.name, kind]) & (s.channel < base[tensor.name, kind] + grid.count)
        self.accesses = a.pick(its)
        dims = len(tensor.shape)
        source, channel = _channels(self.accesses, grid, dims)
        # (task, rank, channel) -> numbers; of accesses with several channels there is one row for each
        keys = (self.accesses.task[source] * bound.ranks + self.accesses.peer[source]) * grid.count + channel
        self.carried: set[int] = set()
        bad = set[int]()
        guard = self.accesses.guard[source]
        for_place = _ForPlace(walker.guards)
        for access, signal in ((WRITE, NOTIFY), (READ, WAIT)):
            # only the columns that are asked for: a wait for a place may be for very many channels
            rows, channels = channels_of(s, tuple(walker.boxes), np.flatnonzero(of_tensor & (s.kind == signal)))
            signal_keys = (s.task[rows] * bound.ranks + s.peer[rows]) * grid.count + channels - base[tensor.name, kind]
            mine = self.accesses.kind[source] == access
            at = self.accesses.position[source]
            # a notify comes after the push, a wait before the read: the last one, or the first one, decides
            sign = 1 if signal == NOTIFY else -1
            own = keys[mine], sign * at[mine], guard[mine]
            events = signal_keys, sign * s.position[rows], s.guard[rows]
            covered = reached(own, events, lambda access, one: for_place(one, access))
            used = reached(_backwards(events), _backwards(own), for_place)
            number = self.accesses.statement[source[mine]]
            bad |= set(number[~covered].tolist())
            self.carried |= set(number.tolist()) | set(s.statement[rows[used]].tolist())
        self.carried -= bad
        self._early = [walker.statements[number] for number in sorted(bad)]
        self.carried.update(_copies(walker.statements, set(self.carried)))

    def looked_up_early(self) -> Iterator[_Refused]:
        """Yield statements that look up entries and have not waited: later, nothing says that these are words."""
        for stage, statement in self._early:
            if _target(statement) != self.tensor.name and not _read(statement, self.tensor.name):
                reason = f"{stage} looks up entries of it and has not waited for them"
                hint = "wait for what is looked up, before it and in the same tile"
                yield _Refused(reason=reason, hint=hint, statement=statement)


def _copies(every: Sequence[tuple[str, Statement]], carried: set[int]) -> Iterator[int]:
    """Yield the numbers of waits of which words carry another copy: programs that compute parts have them too."""
    waits = {number: one.location for number, (_, one) in enumerate(every) if isinstance(one, Wait)}
    known = {waits[number] for number in carried & waits.keys()} - {None}
    yield from (number for number, location in waits.items() if location in known)


def _channels(a: Accesses, grid: ChannelGrid, dims: int) -> tuple[Ints, Ints]:
    """Return (row, channel) pairs: the channels that the boxes of accesses touch."""
    sizes = np.array(grid.sizes)
    low, high = a.lo[:, :dims] // sizes, -(-a.hi[:, :dims] // sizes)
    counts = np.array(grid.counts)
    return expand(np.clip(low, 0, counts), np.clip(high, 0, counts), grid.counts)


_Places = tuple[Ints, Ints, Ints]
"""(key, place, guard) of accesses or of signals."""


def _backwards(rows: _Places) -> _Places:
    """Return rows with places that fall where theirs rise."""
    return rows[0], -rows[1], rows[2]


def reached(rows: _Places, others: _Places, matches: Callable[[int, int], bool]) -> np.ndarray:
    """Mask of the rows of which another row with the same key has a larger place, and a guard that matches its own.

    A guard matches itself, which is asked first and of all rows at once: mostly a signal is for just the place of an
    access, and the many others of its key are not gone through.
    """
    kinds = 1 + max(int(one[2].max(initial=0)) for one in (rows, others))
    known, last = _largest(others[0] * kinds + others[2], others[1])
    wanted = rows[0] * kinds + rows[2]
    at = np.searchsorted(known, wanted)
    at[at == len(known)] = 0
    result = (known[at] == wanted) & (last[at] > rows[1]) if len(known) else np.zeros(len(wanted), bool)
    left = np.flatnonzero(~result)
    begin, end = (np.searchsorted(known, (rows[0][left] + more) * kinds) for more in (0, 1))
    matches = cache(matches)  # many keys have the same pairs of guards
    while len(left := left[begin < end]):  # the next one of its key, for all that are left
        begin, end = (column[begin < end] for column in (begin, end))
        pairs, own = np.unique(rows[2][left] * kinds + known[begin] % kinds, return_inverse=True)
        later = last[begin] > rows[1][left]
        asked = np.bincount(own[later], minlength=len(pairs)) > 0
        fits = [
            some and matches(*divmod(pair, kinds)) for pair, some in zip(pairs.tolist(), asked.tolist(), strict=True)
        ]
        found = later & np.array(fits, bool)[own]
        result[left[found]] = True
        left, begin, end = left[~found], begin[~found] + 1, end[~found]
    return result


def _largest(names: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct names, in order, and the largest value of each."""
    order = np.lexsort((values, names))
    names, values = names[order], values[order]
    ends = np.append(names[1:] != names[:-1], True)[: len(names)]
    return names[ends], values[ends]


@dataclass(frozen=True)
class _ForPlace:
    """Whether a signal is for the place of an access. A launch may decide more of the access."""

    guards: Guards

    def __call__(self, signal: int, access: int) -> bool:
        known = self.guards.known
        return not signal or all(self.guards.facts.inside([known[access]], part) for part in known[signal])


@dataclass(kw_only=True)
class _Carrying:
    """Rewrites the bodies of all stages, in the order of the enumerator. every: the tensors with words, by name."""

    every: Mapping[str, _Seen]
    number: int = 0

    def body(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        done: list[Statement] = []
        for statement in body:
            done += self._statement(statement)
        return tuple(done)

    def _statement(self, statement: Statement) -> list[Statement]:
        mine = {name: seen.kind for name, seen in self.every.items() if self.number in seen.carried}
        self.number += 1
        match statement:
            case If(then=then, orelse=orelse):
                then, orelse = self.body(then), self.body(orelse)
                return [replace(statement, then=then, orelse=orelse)] if then or orelse else []
            case For(body=body):
                inner = self.body(body)
                return [replace(statement, body=inner)] if inner or not body else []
            case Notify(region=region) | Wait(region=region) if region.tensor in mine:
                return []
            case Assign(value=value) | Store(value=value) if mine:
                return [replace(statement, value=_received(value, mine))]
            case Transfer(source=source, target=target) if mine:
                moved = replace(statement, source=_received(source, mine))
                kind = mine.get(target.tensor)
                return [moved if kind is None else replace(moved, mode="send", signal=kind)]
            case _:
                return [statement]


def _received(value: Value, kinds: Mapping[str, str]) -> Value:
    """Return a value whose reads of words wait for them. kinds: of the signals of the tensors with words."""

    def on_value(one: Value) -> Value | None:
        if not (isinstance(one, Read) and one.region.rank is None and one.region.tensor in kinds):
            return None
        return replace(one, signal=kinds[one.region.tensor])

    return map_value(value, on_value)


# Memory and channels -----------------------------------------------------------------------------------------------


def _packed(bound: Bound, seen: _Seen) -> int:
    """Return how many elements a word has: as many as fit, if every access begins with a word."""
    tensor, a = seen.tensor, seen.accesses
    last = len(tensor.shape) - 1
    if any(begins_anywhere(seen.guards.known[number], last) for number in np.unique(a.guard).tolist()):
        return 1
    blocks = [power_of_two(size) for size in _columns(bound, tensor.name)]
    for number in packings(tensor.dtype):
        if not (a.lo[:, last] % number).any() and min(blocks, default=number) >= number:
            return number
    return 1


def _columns(bound: Bound, name: str) -> Iterator[int]:
    """Yield the elements of each tile of a tensor along its last dimension."""
    for stage in bound.stages.values():
        for statement in statements(stage.stage.body):
            value = value_of(statement)
            regions = list(reads(value)) if value is not None else []
            if isinstance(statement, Store | Transfer):
                regions.append(statement.region if isinstance(statement, Store) else statement.target)
            for region in regions:
                if region.tensor == name:
                    span = bound.tile_map(stage.name, region).spans[-1]
                    yield 1 if span.kind == "point" else span.size


def _laid_out(bound: Bound, seen: _Seen) -> Bound:
    """Return the bound program with channels for the regions of a tensor, and its counters laid out anew."""
    tensor, kind = seen.tensor.name, seen.kind
    shape, grid = bound.tensors[tensor].shape, bound.channels[tensor, kind]
    sizes = exact_sizes(seen.accesses.lo, seen.accesses.hi, shape)
    counts = tuple(-(-extent // size) for extent, size in zip(shape, sizes, strict=True))
    return with_channels(bound, {**bound.channels, (tensor, kind): replace(grid, sizes=sizes, counts=counts)})


# The clause -----------------------------------------------------------------------------------------------------


def _labels(program: Program, _: Typing, tensor: Tensor, dims: Numbers, ranks: int) -> dict[str, bool]:
    few = prod(number_of(n, dims, ranks) for n in tensor.shape) <= FEW_ELEMENTS
    return {"signals": False, "words": True} if few and _may_have_words(program, tensor) else {}


def _check(program: Program, part: SchedulePart) -> None:
    tensor = program.tensor(part.name)
    if _may_travel(tensor):
        return
    kind = "declared sum" if tensor.sums else tensor.space
    what = kind if tensor.shape else "a single element"
    message = f"{tensor.name}, which is {what}, cannot have `low_latency`"
    hint = "words carry what is pushed to a symmetric tensor and read there: push it to one, and store what is read"
    raise ScheduleError(message, location=part.at("low_latency"), related=tensor.location, hint=hint)


LOW_LATENCY: Clause[bool] = switch(
    "low_latency",
    of="tensor",
    check=_check,
    apply=_apply,
    capability="low_latency",
    phase=Phase.BEFORE_TRANSPORT,  # which asks for plain pushes, and before waits sink into products
    tensor_choices=TensorChoices(name="low_latency", labels=_labels),
    manual=(
        "what is pushed to the tensor travels as words of 32 bits of data and 32 bits of flag, each stored at once; "
        "the reads after a wait poll the words themselves, see [low latency](#low-latency). It saves a fence and a "
        "signal, and takes twice the bytes: for messages of some kilobytes. For symmetric tensors that are written by "
        "pushes alone, each of which its own tile notifies, and read after waits of the same tile; on one node, from "
        "stages on SMs. No effect on AMD and with dialect triton_dist"
    ),
)
