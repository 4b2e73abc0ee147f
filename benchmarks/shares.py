"""A program that does on each of two ranks what it does on each of many: the share of one rank, between two GPUs.

A program that is the same on all ranks but for where they stand is written in the ranks' distances from oneself: the
index of a tensor over the ranks becomes the distance from the rank whose tensor it is, and a rank that is so far away
becomes the next one. What a rank computes, sends, receives and waits for stays as it was, tile for tile, and so does
the order; data comes from other places. What is not the same: on many ranks the links of several peers are used, and
nothing says here that a switch serves them as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilelink.ir.program import FromScalar, IndexDecl, Notify, Program, Region, Stage, Tensor, Value, Wait
from tilelink.ir.scalar import (
    RANK,
    Compare,
    Env,
    Index,
    Rank,
    Ranks,
    Scalar,
    add,
    binary,
    const,
    evaluate,
    rewrite,
    walk,
)
from tilelink.ir.visitor import map_loops, map_regions, map_scalars, map_values, statements
from tilelink.schedule.transform import all_indices, flip_direction
from tilelink.schedule.values import IndexOrder, Schedule, StageSchedule


def share(program: Program, schedule: Schedule, ranks: int) -> tuple[Program, Schedule]:
    """The program of one of so many ranks, and its schedule, to be run on two.

    Raises ValueError for a program that is not the same on all ranks but for where they stand.
    """
    tensors = tuple(_tensor(t, ranks) for t in program.tensors)
    stages = tuple(_Share(program, _directed(program, stage, schedule), ranks).stage() for stage in program.stages)
    parts = tuple(_ordered(program, part, ranks) for part in schedule.stages)
    return replace(program, tensors=tensors, stages=stages), replace(schedule, stages=parts)


def _tensor(tensor: Tensor, ranks: int) -> Tensor:
    return replace(tensor, shape=tuple(_from_here(n, ranks) for n in tensor.shape))


def _directed(program: Program, stage: Stage, schedule: Schedule) -> Stage:
    """The stage with who moves the data as its schedule says, which is told by its indices over the ranks."""
    part = schedule.stage(stage.name)
    return flip_direction(program, stage, part.direction, part.location) if part.direction else stage


def _from_here(expr: Scalar, ranks: int) -> Scalar:
    """As rank 0 of so many sees it."""

    def change(one: Scalar) -> Scalar | None:
        return const(0) if isinstance(one, Rank) else const(ranks) if isinstance(one, Ranks) else None

    return rewrite(expr, change)


def _ordered(program: Program, part: StageSchedule, ranks: int) -> StageSchedule:
    """A stage's part of a schedule whose sequences begin where they begin for rank 0."""
    if part.order is None:
        return part
    over = {d.name for d in program.stage(part.name).indices if d.over_ranks}

    def begun(one: IndexOrder) -> IndexOrder:
        if one.index in over and one.kind != "sequence":
            raise ValueError(f"the order of {one.index} in {part.name} is not one sequence from every rank on")
        return replace(one, start=_from_here(one.start, ranks)) if one.start is not None else one

    return replace(part, order=replace(part.order, nest=tuple(map(begun, part.order.nest))))


class _Share:
    """Rewrites one stage."""

    def __init__(self, program: Program, stage: Stage, ranks: int) -> None:
        self.program, self.old, self.ranks = program, stage, ranks
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
        coords = tuple(
            self._distance(c, owner) if isinstance(n, Ranks) and isinstance(c, Scalar) else c
            for c, n in zip(region.coords, shape, strict=True)
        )
        if region.rank is None:
            return replace(region, coords=coords)
        away = self._distance(owner, RANK)
        return replace(region, coords=coords, rank=add(RANK, binary("min", away, const(1))))

    def _distance(self, one: Scalar, other: Scalar) -> Scalar:
        """How many ranks the one lies behind the other, which must be the same seen from every rank."""
        if self._seen(one, other, 0) != self._seen(one, other, 1):
            raise ValueError(f"{self.old.name} does not do the same on all ranks")
        both = binary("-", _from_here(one, self.ranks), _from_here(other, self.ranks))
        return binary("%", both, const(self.ranks))

    def _seen(self, one: Scalar, other: Scalar, rank: int) -> list[int]:
        """The distance as a rank computes it, for some values of the indices."""
        found: list[int] = []
        for turn in range(3):
            own = {d.name: (turn + 2) * (number + 1) for number, d in enumerate(all_indices(self.old))}
            indices = {name: value + (rank if name in self.over else 0) for name, value in own.items()}
            env = Env(rank=rank, ranks=self.ranks, params=_Any(), indices=indices)
            found.append(int(evaluate(one, env) - evaluate(other, env)) % self.ranks)
        return found

    def _scalar(self, expr: Scalar) -> Scalar | None:
        if isinstance(expr, Ranks):
            return const(self.ranks)
        if isinstance(expr, Compare) and expr.op in ("==", "!=") and self._speaks_of_ranks(expr):
            return replace(expr, left=self._distance(expr.left, expr.right), right=const(0))
        return None

    def _speaks_of_ranks(self, expr: Scalar) -> bool:
        return any(isinstance(e, Rank) or (isinstance(e, Index) and e.name in self.over) for e in walk(expr))

    def _value(self, value: Value) -> Value | None:
        if isinstance(value, FromScalar) and self._speaks_of_ranks(value.scalar):
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
