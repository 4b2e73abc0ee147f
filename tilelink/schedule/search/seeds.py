"""Where a search may begin: the points of a space that are nearest to schedules that somebody wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

from tilelink.ir.scalar import Env, Scalar, evaluate
from tilelink.schedule.search.knobs import Knob
from tilelink.schedule.values import CopyEngine, Fused, IndexOrder, Order, Resource, Schedule, Sm, StageSchedule

FAR = 8.0
"""How far apart two things are that have nothing in common; a doubled size is one apart."""


def nearest(
    knobs: Sequence[Knob], schedule: Schedule, dims: Mapping[str, int | float | bool], ranks: int
) -> tuple[int, ...]:
    """The choice of each knob that changes a schedule least; of equal ones the first."""
    choices: list[int] = []
    for knob in knobs:
        apart = [distance(schedule, change(schedule), dims, ranks) for change in knob.changes]
        choices.append(apart.index(min(apart)))
    return tuple(choices)


def distance(one: Schedule, other: Schedule, dims: Mapping[str, int | float | bool], ranks: int) -> float:
    """How far apart two schedules of a program are. Sizes that only one of them says count for nothing."""
    names = dict.fromkeys(s.name for s in (*one.stages, *other.stages))
    tensors = dict.fromkeys(t.name for t in (*one.tensors, *other.tensors))
    total = sum(_stages(one.stage(name), other.stage(name), dims, ranks) for name in names)
    return total + sum(_ratio(one.tensor(name).buffers, other.tensor(name).buffers) for name in tensors)


def _stages(one: StageSchedule, other: StageSchedule, dims: Mapping[str, int | float | bool], ranks: int) -> float:
    tiles = dict(other.tiles)
    apart = _resources(one.resource or Sm(), other.resource or Sm()) + (one.flat != other.flat)
    apart += (bool(one.split_tail) != bool(other.split_tail)) + (one.defer_notify != other.defer_notify)
    apart += (bool(one.bulk) != bool(other.bulk)) + (bool(one.fill) != bool(other.fill))
    apart += sum(_ratio(size, tiles.get(name)) for name, size in one.tiles)
    apart += (_ratio(one.warps, other.warps) + _ratio(one.stages, other.stages)) / FAR
    mine, others = one.order or Order(), other.order or Order()
    if _turns(mine, dims, ranks) != _turns(others, dims, ranks):
        apart += 1
    bands = [order.group[1] if order.group else 1 for order in (mine, others)]
    return apart + _ratio(*bands)


def _resources(one: Resource, other: Resource) -> float:
    if isinstance(one, Sm) and isinstance(other, Sm) and one.programs and other.programs:
        return min(_ratio(one.programs, other.programs) / FAR, 1.0)
    if isinstance(one, CopyEngine) and isinstance(other, CopyEngine):
        return 0.0
    if isinstance(one, Fused) and isinstance(other, Fused) and one.place == other.place:
        return 0.0 if one.stage == other.stage else 1.0
    return 0.0 if one == other else FAR


def _ratio(one: int | None, other: int | None) -> float:
    return abs(log2(one / other)) if one and other else 0.0


def _turns(order: Order, dims: Mapping[str, int | float | bool], ranks: int) -> set[tuple[object, ...]]:
    """What an order says of its indices, with numbers in place of expressions."""

    def start(value: Scalar | None) -> tuple[int, ...]:
        known = (Env(rank=rank, ranks=ranks, params=dict(dims), indices={}) for rank in range(ranks))
        return tuple(int(evaluate(value, env)) for env in known) if value is not None else ()

    def said(term: IndexOrder) -> tuple[object, ...]:
        return (term.index, term.kind, start(term.start), term.step, term.values, term.group)

    return {said(term) for term in order.nest if term.kind != "natural"}
