"""Mutants of programs, schedules, lowered programs and plans: one small mistake each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.program import (
    SIGNAL_KINDS,
    Barrier,
    For,
    If,
    NetworkFence,
    NetworkQuiet,
    Notify,
    Program,
    Read,
    Region,
    Statement,
    Store,
    Transfer,
    Wait,
)
from tilelink.ir.scalar import RANK, Index, Scalar, add, const, walk
from tilelink.ir.visitor import all_indices, closing_notifies, map_regions, statements
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound, with_bodies
from tilelink.lowering.clauses.resource import RESOURCE
from tilelink.lowering.clauses.tile import TILE
from tilelink.lowering.events import NOTIFY, READ, SUBSTEPS, WAIT, WRITE, Accesses, Barriers, NetworkOrders, Signals
from tilelink.planning.plan import Plan, make_plan
from tilelink.scheduling.schedule import Fused, IndexOrder, Schedule, Sm
from tilelink.target import CPU, Target

Body = tuple[Statement, ...]
Rows = NDArray[np.int64]
T = TypeVar("T", Signals, Accesses, Barriers, NetworkOrders)
OfPeers = TypeVar("OfPeers", Signals, Accesses)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A scheduled program with its numbers."""

    program: Program
    schedule: Schedule | None
    numbers: dict[str, int | float | bool]
    ranks: int
    target: Target = CPU
    nodes: int = 1

    @property
    def name(self) -> str:
        nodes = f"-{self.nodes}" if self.nodes > 1 else ""
        return f"{self.program.name}-{self.schedule.name if self.schedule else 'default'}-{self.ranks}{nodes}"

    def bound(self) -> Bound:
        """Raises as bind does."""
        return bind(self.program, self.schedule, self.numbers, self.ranks, self.target, nodes=self.nodes)

    def plan(self) -> Plan:
        """Raises as bind does."""
        return make_plan(self.bound())


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """level: program, schedule, lowered or plan; kind: the class of mistake; what: where it was made; make: its plan.

    `make` raises a TileLinkError where the mistake is seen before there is a plan.
    """

    level: str
    kind: str
    what: str
    make: Callable[[], Plan]


def mutants(case: Case, per_kind: int | None = None, seed: int = 0) -> Iterator[Mutant]:
    """All mutants of a case, or a sample with at most `per_kind` of each kind."""
    found: dict[tuple[str, str], list[Mutant]] = {}
    chance = random.Random(f"{seed} {case.name}")
    levels = program_mutants(case), schedule_mutants(case), lowered_mutants(case), plan_mutants(case, chance)
    for mutant in (one for level in levels for one in level):
        found.setdefault((mutant.level, mutant.kind), []).append(mutant)
    for group in found.values():
        yield from group if per_kind is None or len(group) <= per_kind else chance.sample(group, per_kind)


# Programs ----------------------------------------------------------------------------------------------------


def program_mutants(case: Case) -> Iterator[Mutant]:
    """One primitive dropped, repeated, moved, or with another kind or rank."""
    seen = {case.program}
    for number, stage in enumerate(case.program.stages):
        for kind, what, body in _bodies(stage.body):
            stages = list(case.program.stages)
            stages[number] = replace(stage, body=body)
            program = replace(case.program, stages=tuple(stages))
            if program not in seen:
                seen.add(program)
                yield Mutant(
                    level="program", kind=kind, what=f"{stage.name}: {what}", make=replace(case, program=program).plan
                )


def _bodies(body: Body) -> Iterator[tuple[str, str, Body]]:
    """(kind, what, body) for each way to spoil one statement of a body, at any depth."""
    for k, statement in enumerate(body):
        before, after = body[:k], body[k + 1 :]
        for kind, new in _spoiled(statement, before, after):
            yield kind, f"{_word(statement)} {k}", new
        match statement:
            case If(then=then, orelse=orelse):
                for kind, what, new in _bodies(then):
                    yield kind, what, (*before, replace(statement, then=new), *after)
                for kind, what, new in _bodies(orelse):
                    yield kind, what, (*before, replace(statement, orelse=new), *after)
                yield "drop condition", f"{_word(statement)} {k}", (*before, *then, *after)
            case For(body=inner):
                for kind, what, new in _bodies(inner):
                    yield kind, what, (*before, replace(statement, body=new), *after)
            case _:
                pass


def _word(statement: Statement) -> str:
    return type(statement).__name__.lower()


def _spoiled(statement: Statement, before: Body, after: Body) -> Iterator[tuple[str, Body]]:
    if not isinstance(statement, Wait | Notify | Transfer | Store):
        return
    word = _word(statement)
    yield f"drop {word}", (*before, *after)
    yield f"repeat {word}", (*before, statement, statement, *after)
    yield f"repeat {word} at the end", (*before, statement, *after, statement)
    yield f"move {word} first", (statement, *before, *after)
    yield f"move {word} last", (*before, *after, statement)
    for kind, new in _changed(statement):
        yield kind, (*before, new, *after)


def _changed(statement: Wait | Notify | Transfer | Store) -> Iterator[tuple[str, Statement]]:
    word = _word(statement)
    if isinstance(statement, Wait | Notify):
        other = SIGNAL_KINDS[(SIGNAL_KINDS.index(statement.kind) + 1) % len(SIGNAL_KINDS)]
        yield f"{word} of another kind", replace(statement, kind=other)
    if isinstance(statement, Notify):
        yield "notify another rank", replace(statement, region=_elsewhere(statement.region))
        yield "notify here", replace(statement, region=replace(statement.region, rank=None))
    if isinstance(statement, Transfer):
        yield "transfer to another rank", replace(statement, target=_elsewhere(statement.target))


def _elsewhere(region: Region) -> Region:
    return replace(region, rank=add(region.rank or RANK, const(1)))


# Schedules ---------------------------------------------------------------------------------------------------


def schedule_mutants(case: Case) -> Iterator[Mutant]:
    """Other orders, tiles, channels, buffers, programs, and machines that hold fewer programs."""
    schedule = case.schedule or Schedule(name="default", program=case.program.name)
    for kind, what, new in _schedules(case, schedule):
        yield Mutant(level="schedule", kind=kind, what=what, make=replace(case, schedule=new).plan)
    for slots in range(1, case.target.resident_programs):
        few = replace(case.target, sms=slots, max_programs=None, programs_per_sm=1, grows=False)
        smaller = replace(case, target=few)
        yield Mutant(level="schedule", kind="fewer resident programs", what=f"{slots}", make=smaller.plan)


def _schedules(case: Case, schedule: Schedule) -> Iterator[tuple[str, str, Schedule]]:
    yield "no reuse wait", "reuse_wait off", schedule.without_reuse_wait()
    for tensor in case.program.tensors:
        if tensor.symmetric:
            for count in (1, 2, 3):
                what = f"{tensor.name} buffers {count}"
                yield "other buffers", what, schedule.buffers(tensor.name, count)
                yield "other buffers, no reuse wait", what, schedule.buffers(tensor.name, count).without_reuse_wait()
    for stage in case.program.stages:
        for decl in stage.indices:
            rest = [IndexOrder(index=d.name) for d in stage.indices if d.name != decl.name]
            orders = [IndexOrder(index=decl.name, kind="sequence", start=const(0), step=-1)]
            if decl.over_ranks:
                orders += [IndexOrder(index=decl.name, kind="sequence", start=RANK, step=s) for s in (1, -1)]
            for order in orders:
                yield "other order", f"{stage.name} {order}", schedule.order(stage.name, order, *rest)
                yield "other order", f"{stage.name} {order}, innermost", schedule.order(stage.name, *rest, order)
            if not decl.over_ranks:
                yield "other tiles", f"{stage.name} {decl.name}=7", schedule.tile(stage.name, **{decl.name: 7})
        sizes = {**dict(schedule.stage(stage.name)[TILE]), "k": 2}
        yield "split_k_tail", stage.name, schedule.tile(stage.name, **sizes).split_k_tail(stage.name, 2)
        yield "backfill", stage.name, schedule.backfill(stage.name, 2)
        if not isinstance(schedule.stage(stage.name)[RESOURCE], Fused):
            for programs in (1, 3):
                yield "other programs", f"{stage.name} sm({programs})", schedule.on(stage.name, Sm(programs=programs))


# Lowered programs --------------------------------------------------------------------------------------------


def lowered_mutants(case: Case) -> Iterator[Mutant]:
    """One statement of what the passes made dropped or moved, or a tile's notifies deferred to a later place."""
    bound = case.bound()
    seen = {(stage.name, stage.stage.body) for stage in bound.stages.values()}
    for name, stage in bound.stages.items():
        for kind, what, body in _shifts(stage.stage.body):
            if (name, body) not in seen:
                seen.add((name, body))
                make = partial(make_plan, with_bodies(bound, {name: body}))
                yield Mutant(level="lowered", kind=kind, what=f"{name}: {what}", make=make)
        for kind, what, body in _carried_otherwise(bound, stage.stage.body):
            make = partial(make_plan, with_bodies(bound, {name: body}))
            yield Mutant(level="lowered", kind=kind, what=f"{name}: {what}", make=make)
        if not closing_notifies(stage.stage.body):
            continue
        for place in range(len(stage.stage.body) + 1):
            late = {**bound.stages, name: replace(stage, notified_in=place)}
            if place != stage.notified_in:
                make = partial(make_plan, replace(bound, stages=late))
                yield Mutant(level="lowered", kind="defer notify", what=f"{name}: before {place}", make=make)


def _shifts(body: Body) -> Iterator[tuple[str, str, Body]]:
    """(kind, what, body) for each way to drop a statement of a body, or to swap two neighbours, at any depth."""
    for k, statement in enumerate(body):
        before, after = body[:k], body[k + 1 :]
        word = _word(statement)
        if isinstance(statement, Wait | Notify | Barrier | NetworkFence | NetworkQuiet):
            yield f"drop {word}", f"{word} {k}", (*before, *after)
        if after:
            yield f"{word} after the next statement", f"{word} {k}", (*before, after[0], statement, *after[1:])
        for field in ("then", "orelse", "body"):
            for kind, what, new in _shifts(getattr(statement, field, ())):
                yield kind, f"{word} {k}, {what}", (*before, replace(statement, **{field: new}), *after)
        if isinstance(statement, For):
            for n, inner in enumerate(statement.body):
                rest = replace(statement, body=(*statement.body[:n], *statement.body[n + 1 :]))
                if not isinstance(inner, Wait | Notify | Barrier | NetworkFence | NetworkQuiet) or not rest.body:
                    continue
                if isinstance(inner, Wait | Notify) and _names(inner.region) & {d.name for d in statement.indices}:
                    continue  # outside of the loop its place has no meaning
                out = "before" if isinstance(inner, Notify) else "after"
                new = (*before, inner, rest, *after) if out == "before" else (*before, rest, inner, *after)
                yield f"{_word(inner)} {out} its loop", f"for {k}, {_word(inner)} {n}", new


def _names(region: Region) -> set[str]:
    """The indices that a region names."""
    scalars = [part for part in (*region.coords, region.rank) if isinstance(part, Scalar)]
    return {part.name for scalar in scalars for part in walk(scalar) if isinstance(part, Index)}


def _carried_otherwise(bound: Bound, body: Body) -> Iterator[tuple[str, str, Body]]:
    """(kind, what, body) for each way to spoil how the network carries one statement of a body, at any depth."""
    for k, statement in enumerate(body):
        before, after = body[:k], body[k + 1 :]
        for kind, new in _uncarried(bound, statement):
            yield kind, f"{_word(statement)} {k}", (*before, *new, *after)
        for field in ("then", "orelse", "body"):
            for kind, what, new in _carried_otherwise(bound, getattr(statement, field, ())):
                yield kind, f"{_word(statement)} {k}, {what}", (*before, replace(statement, **{field: new}), *after)
    everywhere = map_regions(body, partial(_at_zero, bound))
    if everywhere != body and any(isinstance(s, Transfer) and s.mode == "put" for s in statements(body)):
        yield "one memory for all that is put", "", everywhere


def _uncarried(bound: Bound, statement: Statement) -> Iterator[tuple[str, Body]]:
    if isinstance(statement, Notify) and statement.by_network:
        yield "signal by address", (replace(statement, by_network=False),)
        yield "fence after the signal", (statement, NetworkFence())
    if not isinstance(statement, Transfer) or statement.mode not in ("put", "get"):
        return
    yield "move by address", (replace(statement, mode={"put": "push", "get": "pull"}[statement.mode], signal=None),)
    if statement.mode == "get":
        return
    source = statement.source
    assert isinstance(source, Read)
    if bound.tensors[source.region.tensor].decl.space != "in":
        yield "write the source early", (statement, Store(region=source.region, value=source))
        quiet = (statement, NetworkQuiet(), Store(region=source.region, value=source))
        yield "write the source after a quiet", quiet
    if statement.signal is None:
        return
    signal = Notify(kind=statement.signal, region=statement.target, by_network=True)
    alone = replace(statement, signal=None)
    yield "signal apart from its data", (alone, signal)
    yield "signal before its data", (signal, alone)
    yield "signal of the data before", (alone, replace(statement, source=source), signal)
    yield "signal after a fence", (alone, NetworkFence(), signal)
    yield "signal after a quiet", (alone, NetworkQuiet(), signal)


def _at_zero(bound: Bound, region: Region) -> Region:
    """The first part of memory from which values are put, in place of that of a tile or an iteration."""
    if not region.tensor.endswith(("_sent", "_got")):
        return region
    numbers = {d.name for s in bound.program.stages for d in all_indices(s) if d.number or d.over_ranks}
    coords = (const(0) if isinstance(c, Index) and c.name in numbers else c for c in region.coords)
    return replace(region, coords=tuple(coords))


# Plans -------------------------------------------------------------------------------------------------------


def plan_mutants(case: Case, chance: random.Random, rows: int = 4) -> Iterator[Mutant]:
    """One signal, access, task, threshold or kernel of the plan changed: `rows` of each kind, chosen by chance."""
    plan = with_room(case.plan())

    def mutant(kind: str, what: str, make: Callable[[], Plan]) -> Mutant:
        return Mutant(level="plan", kind=kind, what=what, make=make)

    for kind, column, change in SIGNAL_CHANGES:
        for row in _some(np.flatnonzero(plan.signals.kind == column), rows, chance):
            yield mutant(kind, f"signal {row}", lambda row=row, change=change: _with_signals(plan, change, row))
    for kind, column, change in ACCESS_CHANGES:
        for row in _some(_written_or_read(plan, column), rows, chance):
            yield mutant(kind, f"access {row}", lambda row=row, change=change: _with_accesses(plan, change, row))
    for row in _some(_followed(plan), rows, chance):
        for where, at in (("at the beginning", 0), ("at the end", 1 << 30)):
            yield mutant(
                f"notify in the next task, {where}", f"signal {row}", lambda row=row, at=at: _deferred(plan, row, at)
            )
    for kind, change in (("lose barrier", _without), ("barrier first", _first), ("barrier last", _last)):
        for row in _some(np.arange(len(plan.barriers.task)), rows, chance):
            yield mutant(kind, f"barrier {row}", lambda row=row, change=change: _with_barriers(plan, change, row))
    for kind, change in (("lose fence", _without), ("fence first", _first), ("fence last", _last)):
        for row in _some(np.arange(len(plan.network.task)), rows, chance):
            yield mutant(kind, f"fence {row}", lambda row=row, change=change: _with_network(plan, change, row))
    for first, second in _neighbours(plan, rows, chance):
        yield mutant("swap tasks", f"{first} {second}", lambda f=first, s=second: _swapped(plan, f, s))
    for task in _some(np.arange(plan.tasks), rows, chance):
        yield mutant("task in another program", f"{task}", lambda task=task: _other_worker(plan, task))
    for key, counts in plan.thresholds.items():
        for place in _some(np.flatnonzero(counts), rows, chance):
            for kind, more in (("threshold too low", -1), ("threshold too high", 1)):
                yield mutant(
                    kind, f"{key} {place}", lambda key=key, place=place, more=more: _counted(plan, key, place, more)
                )
    for number, kernel in enumerate(plan.bound.kernels):
        if kernel.reuse_lag:
            late = {"reuse_lag": kernel.reuse_lag + 1}
            yield mutant("waits for too early a launch", kernel.name, lambda n=number, c=late: _kernel(plan, n, c))
        if kernel.quiet:
            hasty = {"quiet": False}
            yield mutant("no quiet at the end", kernel.name, lambda n=number, c=hasty: _kernel(plan, n, c))
        if kernel.needs_entry:
            blind = {"needs_entry": False}
            yield mutant("no wait for entry", kernel.name, lambda n=number, c=blind: _kernel(plan, n, c))


def with_room(plan: Plan) -> Plan:
    """The same plan with room for a statement before the first one of each task, for mutants to move events to.

    Statements keep their own positions: which event of a statement one is, is said by what is left of its position.
    """
    a, s = plan.accesses, plan.signals
    accesses = replace(a, position=a.position + SUBSTEPS)
    barriers = replace(plan.barriers, position=plan.barriers.position + SUBSTEPS)
    signals = replace(s, position=s.position + SUBSTEPS, at=s.at + SUBSTEPS)
    network = replace(plan.network, position=plan.network.position + SUBSTEPS)
    return replace(plan, accesses=accesses, signals=signals, barriers=barriers, network=network)


def _some(rows: Rows, count: int, chance: random.Random) -> list[int]:
    return sorted(chance.sample(rows.tolist(), min(count, len(rows))))


def _written_or_read(plan: Plan, kind: int) -> Rows:
    """Rows of accesses to what the program itself fills."""
    own = [t.number for t in plan.bound.tensors.values() if t.decl.space not in ("in", "table")]
    return np.flatnonzero((plan.accesses.kind == kind) & np.isin(plan.accesses.tensor, own))


SignalChange = Callable[[Plan, Signals, int], Signals]
AccessChange = Callable[[Plan, Accesses, int], Accesses]
BarrierChange = Callable[[Plan, Barriers, int], Barriers]
NetworkChange = Callable[[Plan, NetworkOrders, int], NetworkOrders]


def _with_signals(plan: Plan, change: SignalChange, row: int) -> Plan:
    return replace(plan, signals=change(plan, plan.signals, row))


def _with_accesses(plan: Plan, change: AccessChange, row: int) -> Plan:
    return replace(plan, accesses=change(plan, plan.accesses, row))


def _followed(plan: Plan) -> Rows:
    """The notifies of tasks after which their program has another one."""
    last = np.zeros(len(plan.workers), np.int64)
    np.maximum.at(last, plan.worker, plan.sequence)
    s = plan.signals
    return np.flatnonzero((s.kind == NOTIFY) & (plan.sequence[s.task] < last[plan.worker[s.task]]))


def _deferred(plan: Plan, row: int, at: int) -> Plan:
    later = _with_value(plan.signals, "later", row, 1)
    return replace(plan, signals=_with_value(later, "at", row, at))


def _with_barriers(plan: Plan, change: BarrierChange, row: int) -> Plan:
    return replace(plan, barriers=change(plan, plan.barriers, row))


def _with_network(plan: Plan, change: NetworkChange, row: int) -> Plan:
    return replace(plan, network=change(plan, plan.network, row))


def _picked(columns: T, rows: Rows) -> T:
    return replace(columns, **{name: getattr(columns, name)[rows] for name in columns.__dataclass_fields__})


def _without(plan: Plan, columns: T, row: int) -> T:
    return _picked(columns, np.delete(np.arange(len(columns.task)), row))


def _twice(plan: Plan, columns: T, row: int) -> T:
    return _picked(columns, np.append(np.arange(len(columns.task)), row))


def _with_value(columns: T, name: str, row: int, value: object) -> T:
    column = getattr(columns, name).copy()
    column[row] = value
    return replace(columns, **{name: column})


def _first(plan: Plan, columns: T, row: int) -> T:
    return _with_value(columns, "position", row, 0)


def _last(plan: Plan, columns: T, row: int) -> T:
    return _with_value(columns, "position", row, 1 << 30)


def _next_peer(plan: Plan, columns: OfPeers, row: int) -> OfPeers:
    return _with_value(columns, "peer", row, (columns.peer[row] + 1) % plan.bound.ranks)


def _next_channel(plan: Plan, columns: Signals, row: int) -> Signals:
    return _with_value(columns, "channel", row, (columns.channel[row] + 1) % plan.channels)


def _narrow(plan: Plan, columns: Accesses, row: int) -> Accesses:
    return _with_value(columns, "hi", row, np.maximum(columns.lo[row], columns.hi[row] - 1))


def _wide(plan: Plan, columns: Accesses, row: int) -> Accesses:
    shape = plan.bound.tensor_numbered(int(columns.tensor[row])).shape
    high = columns.hi[row].copy()
    high[: len(shape)] = np.minimum(high[: len(shape)] + 1, shape)
    return _with_value(columns, "hi", row, high)


SIGNAL_CHANGES: tuple[tuple[str, int, SignalChange], ...] = (
    ("lose notify", NOTIFY, _without),
    ("repeat notify", NOTIFY, _twice),
    ("notify first", NOTIFY, _first),
    ("notify another rank", NOTIFY, _next_peer),
    ("notify another channel", NOTIFY, _next_channel),
    ("lose wait", WAIT, _without),
    ("wait last", WAIT, _last),
    ("wait for another channel", WAIT, _next_channel),
)
ACCESS_CHANGES: tuple[tuple[str, int, AccessChange], ...] = (
    ("lose write", WRITE, _without),
    ("repeat write", WRITE, _twice),
    ("write last", WRITE, _last),
    ("write to another rank", WRITE, _next_peer),
    ("write less", WRITE, _narrow),
    ("write more", WRITE, _wide),
    ("read first", READ, _first),
    ("read more", READ, _wide),
)


def _neighbours(plan: Plan, count: int, chance: random.Random) -> list[tuple[int, int]]:
    """Pairs of tasks that follow one another in a worker."""
    order = np.lexsort((plan.sequence, plan.worker))
    pairs = [(int(a), int(b)) for a, b in pairwise(order) if plan.worker[a] == plan.worker[b]]
    return chance.sample(pairs, min(count, len(pairs)))


def _swapped(plan: Plan, first: int, second: int) -> Plan:
    sequence = plan.sequence.copy()
    sequence[[first, second]] = sequence[[second, first]]
    return replace(plan, sequence=sequence)


def _other_worker(plan: Plan, task: int) -> Plan:
    """The task at the end of its kernel's next program (the same one where it has only one)."""
    number, rank, program = plan.workers[int(plan.worker[task])]
    worker, sequence = plan.worker.copy(), plan.sequence.copy()
    worker[task] = plan.workers.index((number, rank, (program + 1) % plan.bound.kernels[number].programs))
    sequence[task] = sequence.max() + 1
    return replace(plan, worker=worker, sequence=sequence)


def _counted(plan: Plan, key: tuple[str, str], place: int, more: int) -> Plan:
    counts = plan.thresholds[key].copy()
    counts.flat[place] += more
    return replace(plan, thresholds={**plan.thresholds, key: counts})


def _kernel(plan: Plan, number: int, change: Mapping[str, int | bool]) -> Plan:
    kernels = list(plan.bound.kernels)
    kernels[number] = replace(kernels[number], **change)
    return replace(plan, bound=replace(plan.bound, kernels=tuple(kernels)))
