"""A program that does on each of few ranks what it does on each of many: the share of one rank, between some GPUs.

A program that is the same on all ranks but for where they stand is written in the ranks' distances from oneself: the
index of a tensor over the ranks becomes the distance from the rank whose tensor it is, and a rank that is so far away
becomes the next one, or where there are more than two, all others by turns. What a rank computes, sends, receives and
waits for stays as it was, tile for tile, and so does the order; data comes from other places. What is not the same: on
many ranks the links of more peers are used, and nothing says here that a switch serves them as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilelink.ir.program import FromScalar, IndexDecl, Notify, Program, Region, Stage, Tensor, Value, Wait
from tilelink.ir.scalar import (
    RANK,
    Compare,
    Env,
    Index,
    Lookup,
    Rank,
    Ranks,
    Scalar,
    Whole,
    add,
    binary,
    const,
    evaluate,
    rewrite,
    walk,
)
from tilelink.ir.visitor import map_loops, map_regions, map_scalars, map_values, statements
from tilelink.lowering.clauses.direction import DIRECTION
from tilelink.lowering.clauses.order import ORDER
from tilelink.lowering.transform import all_indices, flip_direction
from tilelink.scheduling.schedule import Schedule
from tilelink.scheduling.words import StageSchedule

DRAWS = 256
"""Values of the indices for which ranks are compared."""


def standing_for(away: int, gpus: int) -> int:
    """How far away the GPU is that stands for the rank so far away."""
    return away and 1 + (away - 1) % (gpus - 1)


def share(program: Program, schedule: Schedule, ranks: int, gpus: int = 2) -> tuple[Program, Schedule]:
    """The program of one of so many ranks, and its schedule, to be run on some GPUs, two or more.

    Raises ValueError for a program that is not the same on all ranks but for where they stand.
    """
    tensors = tuple(_tensor(t, ranks) for t in program.tensors)
    stages = tuple(
        _Share(program, _directed(program, stage, schedule), ranks, gpus).stage() for stage in program.stages
    )
    parts = tuple(_ordered(program, schedule.stage(stage.name), ranks) for stage in program.stages)
    return replace(program, tensors=tensors, stages=stages), replace(schedule, stages=parts)


def _tensor(tensor: Tensor, ranks: int) -> Tensor:
    return replace(tensor, shape=tuple(_from_here(n, ranks) for n in tensor.shape))


def _directed(program: Program, stage: Stage, schedule: Schedule) -> Stage:
    """The stage with who moves the data as its schedule says, which is told by its indices over the ranks."""
    part = schedule.stage(stage.name)
    direction = part[DIRECTION]
    return flip_direction(program, stage, direction, part.location) if direction else stage


def _from_here(expr: Scalar, ranks: int) -> Scalar:
    """As rank 0 of so many sees it."""

    def change(one: Scalar) -> Scalar | None:
        return const(0) if isinstance(one, Rank) else const(ranks) if isinstance(one, Ranks) else None

    return rewrite(expr, change)


def _ordered(program: Program, part: StageSchedule, ranks: int) -> StageSchedule:
    """A stage's part of a schedule whose sequences begin where they begin for rank 0.

    Raises ValueError where a rank does not take the ranks in the order of their distances.
    """
    over = {d.name for d in program.stage(part.name).indices if d.over_ranks}
    order = part[ORDER]
    nest = {one.index: one for one in order.nest} if order else {}
    for name in over:
        one = nest.get(name)
        rotates = one is not None and one.kind == "sequence" and one.start is not None and _rotates(one.start, ranks)
        if not rotates:
            raise ValueError(f"the order of {name} in {part.name} is not one sequence from every rank on")
    for one in nest.values():
        if one.index not in over and one.start is not None and _speaks_of_ranks(one.start, over):
            raise ValueError(f"the order of {one.index} in {part.name} is not the same on all ranks")
    if order is None:
        return part
    begun = (replace(n, start=_from_here(n.start, ranks)) if n.start is not None else n for n in order.nest)
    return part.saying(ORDER, replace(order, nest=tuple(begun)))


def _rotates(start: Scalar, ranks: int) -> bool:
    """Whether a sequence begins one rank later for the next rank."""
    env = [Env(rank=rank, ranks=ranks, params=_Any(), indices={}) for rank in range(ranks)]
    return len({(int(evaluate(start, env[rank])) - rank) % ranks for rank in range(ranks)}) == 1


def _speaks_of_ranks(expr: Scalar, over: set[str]) -> bool:
    return any(isinstance(e, Rank) or (isinstance(e, Index) and e.name in over) for e in walk(expr))


class _Share:
    """Rewrites one stage."""

    def __init__(self, program: Program, stage: Stage, ranks: int, gpus: int) -> None:
        self.program, self.old, self.ranks, self.gpus = program, stage, ranks, gpus
        self.over = {d.name for d in all_indices(stage) if d.over_ranks}

    def stage(self) -> Stage:
        for one in statements(self.old.body):
            if isinstance(one, Notify | Wait) and one.kind == "rank":
                raise ValueError(f"{self.old.name} signals whole ranks")
        body = map_values(map_regions(self.old.body, self._region), self._value)
        body = map_scalars(map_loops(body, self._index), self._scalar)
        return replace(self.old, indices=tuple(map(self._index, self.old.indices)), body=body)

    def _index(self, index: IndexDecl) -> IndexDecl:
        return replace(index, extent=_from_here(index.extent, self.ranks))

    def _region(self, region: Region) -> Region:
        owner = region.rank if region.rank is not None else RANK
        shape = self.program.tensor(region.tensor).shape
        coords = tuple(self._coordinate(c, n, owner) for c, n in zip(region.coords, shape, strict=True))
        if region.rank is None:
            return replace(region, coords=coords)
        return replace(region, coords=coords, rank=add(RANK, self._standing_for(self._distance(owner, RANK))))

    def _standing_for(self, away: Scalar) -> Scalar:
        """`standing_for` of a distance."""
        other = binary("min", away, const(1))
        if self.gpus == 2:
            return other
        rotated = binary("%", add(away, const(self.gpus - 2)), const(self.gpus - 1))
        return add(other, binary("*", other, rotated))

    def _coordinate(self, coord: Scalar | Whole, extent: Scalar, owner: Scalar) -> Scalar | Whole:
        if isinstance(coord, Whole):
            return coord
        if isinstance(extent, Ranks):
            return self._distance(coord, owner)
        if _speaks_of_ranks(coord, self.over):
            raise ValueError(f"{self.old.name} finds a place within a tensor by the number of a rank")
        return coord

    def _distance(self, one: Scalar, other: Scalar) -> Scalar:
        """How many ranks the one lies behind the other, which must be the same seen from every rank."""
        if any(isinstance(e, Lookup) for e in (*walk(one), *walk(other))):
            raise ValueError(f"{self.old.name} looks ranks up in a table")
        if len({self._seen(one, other, rank) for rank in range(self.ranks)}) > 1:
            raise ValueError(f"{self.old.name} does not do the same on all ranks")
        both = binary("-", _from_here(one, self.ranks), _from_here(other, self.ranks))
        return binary("%", both, const(self.ranks))

    def _seen(self, one: Scalar, other: Scalar, rank: int) -> tuple[int, ...]:
        """The distance as a rank computes it, for many values of the indices."""
        random = np.random.default_rng(0)
        own = {d.name: random.integers(0, self.ranks, DRAWS) for d in all_indices(self.old)}
        indices = {name: (n + rank) % self.ranks if name in self.over else n for name, n in own.items()}
        env = Env(rank=rank, ranks=self.ranks, params=_Any(), indices=indices)
        found = (evaluate(one, env) - evaluate(other, env)) % self.ranks
        return tuple(np.broadcast_to(found, DRAWS).tolist())

    def _scalar(self, expr: Scalar) -> Scalar | None:
        if isinstance(expr, Ranks):
            return const(self.ranks)
        if not isinstance(expr, Compare) or not _speaks_of_ranks(expr, self.over):
            return None
        if expr.op not in ("==", "!="):
            raise ValueError(f"{self.old.name} compares the numbers of ranks")
        return replace(expr, left=self._distance(expr.left, expr.right), right=const(0))

    def _value(self, value: Value) -> Value | None:
        if isinstance(value, FromScalar) and _speaks_of_ranks(value.scalar, self.over):
            raise ValueError(f"{self.old.name} computes with the number of its rank")
        return None


class _Any(Mapping[str, Any]):
    """Some number for every parameter."""

    def __getitem__(self, key: str) -> int:
        return 3 + len(key)

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0
