"""Starting points of a search: the points of a space that are nearest to declared schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilelink.lowering.clauses import clauses
from tilelink.scheduling.schedule import Schedule
from tilelink.search.knobs import Knob


def nearest(
    knobs: Sequence[Knob], schedule: Schedule, dims: Mapping[str, int | float | bool], ranks: int
) -> tuple[int, ...]:
    """Return the choice of each knob that changes a schedule least; of equal choices the first."""
    choices: list[int] = []
    for knob in knobs:
        apart = [distance(schedule, change(schedule), dims, ranks) for change in knob.changes]
        choices.append(apart.index(min(apart)))
    return tuple(choices)


def distance(one: Schedule, other: Schedule, dims: Mapping[str, int | float | bool], ranks: int) -> float:
    """Return the distance of two schedules of a program: the sum over all clauses of all stages and tensors."""
    stages = dict.fromkeys(s.name for s in (*one.stages, *other.stages))
    tensors = dict.fromkeys(t.name for t in (*one.tensors, *other.tensors))
    pairs = [("stage", one.stage(name), other.stage(name)) for name in stages]
    pairs += [("tensor", one.tensor(name), other.tensor(name)) for name in tensors]
    every = clauses()
    return sum(
        clause.apart(mine[clause], theirs[clause], dims, ranks)
        for of, mine, theirs in pairs
        for clause in every
        if clause.of == of
    )
