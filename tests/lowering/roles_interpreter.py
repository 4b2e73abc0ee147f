"""The interpreter of lowered programs with kernels whose warps have roles: a loader and a consumer that run ahead, and
a storer.

A loader executes the waits before the product of a tile, reads its operands and multiplies, and goes on with the next
tile. If it loads what is added to the product, too, it executes the waits for that before it goes on. Otherwise the
consumer executes the waits after the product. The consumer computes what is stored. Both are ahead as far as their
waits allow, which is farther than any ring lets them be. The storer stores the results in order, and notifies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.lowering.interpreter import Machine, Program, Tile, _program
from tilelink.ir.program import Notify, Region, Statement, Wait
from tilelink.lowering.bound import Bound, BoundStage, Kernel
from tilelink.lowering.role_bodies import consumer_waits
from tilelink.lowering.role_statements import late_waits, multiplies
from tilelink.lowering.straight_epilogue import after_product
from tilelink.reference.walker import Task


def run_roles(bound: Bound, inputs: Sequence[Mapping[str, torch.Tensor]]) -> tuple[list[dict[str, torch.Tensor]], int]:
    """Run one launch. Return [rank][name], the outputs, and how many tiles a loader was ahead at most."""
    machine = machine_after(bound, inputs)
    machine.check_outputs([machine.defined(rank) for rank in range(bound.ranks)])
    outs = [t.name for t in bound.program.tensors if t.is_result]
    return [{name: tensors[name] for name in outs} for tensors in machine.tensors], machine.ahead


def machine_after(bound: Bound, inputs: Sequence[Mapping[str, torch.Tensor]]) -> RolesMachine:
    """Return the memory of all ranks after one launch."""
    machine = RolesMachine(
        program=bound.program, numbers=bound.numbers, ranks=bound.ranks, dtype=bound.dtype,
        typing=bound.typing, bound=bound,
    )  # fmt: skip
    machine.fill(inputs)
    machine.count()
    machine.run()
    return machine


def _loaded(stage: BoundStage) -> tuple[Statement, ...]:
    """The statements of a tile that the loader stands for: up to its product, or all if a loop carries a state.

    Without a product they are all waits.
    """
    if not multiplies(stage):
        return tuple(s for s in stage.stage.body if isinstance(s, Wait))
    return stage.stage.body[: after_product(stage.stage.body, stage.products) or len(stage.stage.body)]


@dataclass(kw_only=True)
class Computed:
    """The condition of a role: tile `number` of a program has its product, or its result."""

    results: list[RoleTile]
    number: int


@dataclass(kw_only=True)
class AnyOf:
    """The condition of roles that wait at the same time: one of their needs."""

    needs: list[Any]

    def __str__(self) -> str:
        return " or ".join(map(str, self.needs))


@dataclass(kw_only=True)
class RoleTile(Tile):
    """A tile whose stores are kept for the storer."""

    kept: list[tuple[Region, torch.Tensor]] = field(default_factory=list)

    def write(self, region: Region, value: torch.Tensor) -> None:
        self.kept.append((region, value.clone()))

    def store(self) -> None:
        for region, value in self.kept:
            Tile.write(self, region, value)


@dataclass(kw_only=True)
class RolesMachine(Machine):
    ahead: int = 0

    def satisfied(self, need: Any) -> bool:
        if isinstance(need, AnyOf):
            return any(map(self.satisfied, need.needs))
        return len(need.results) > need.number if isinstance(need, Computed) else super().satisfied(need)

    def program_of(self, kernel: Kernel, rank: int, number: int) -> Program:
        if self.bound.stages[kernel.loops[0].stages[0]].roles is None:
            return super().program_of(kernel, rank, number)
        products: list[RoleTile] = []
        results: list[RoleTile] = []
        found = Program(at=f"rank {rank}, {kernel.name}, program {number}")
        found.task = self.together(
            self.loader(kernel, rank, number, products),
            self.consumer(kernel, rank, number, products, results),
            self.storer(kernel, rank, number, results),
        )
        return found

    def together(self, *roles: Task) -> Any:
        """Run each role as far as it gets, again and again: each waits for itself."""
        waiting: list[tuple[Task, Any]] = [(role, None) for role in roles]
        while waiting:
            left: list[tuple[Task, Any]] = []
            moved = False
            for task, need in waiting:
                if need is not None and not self.satisfied(need):
                    left.append((task, need))
                    continue
                moved = True
                following = next((one for one in task if not self.satisfied(one)), None)
                if following is not None:
                    left.append((task, following))
            waiting = left
            if waiting and not moved:
                yield AnyOf(needs=[need for _, need in waiting if not isinstance(need, Computed)])  # type: ignore[misc]

    def own(self, kernel: Kernel, rank: int, number: int) -> list[tuple[BoundStage, int]]:
        """Return the tiles of a program, in order."""
        return [
            (self.bound.stages[loop.stages[0]], tile)
            for loop in kernel.loops
            for at, tile in enumerate(self.walked(loop, rank))
            if _program(loop, at, kernel.programs) == number
        ]

    def loader(self, kernel: Kernel, rank: int, number: int, products: list[RoleTile]) -> Task:
        for stage, tile in self.own(kernel, rank, number):
            plain = self.tile(stage, rank, tile)
            one = RoleTile(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})
            yield from one.begin()
            yield from one.statements(_loaded(stage))
            products.append(one)
            if stage.roles is not None and stage.roles.addends:
                yield from one.statements(late_waits(stage))

    def consumer(
        self, kernel: Kernel, rank: int, number: int, products: list[RoleTile], results: list[RoleTile]
    ) -> Task:
        for at, (stage, _) in enumerate(self.own(kernel, rank, number)):
            yield Computed(results=products, number=at)  # type: ignore[misc]
            rest = stage.stage.body[len(_loaded(stage)) if multiplies(stage) else 0 :]
            yield from products[at].statements(consumer_waits(self.bound, stage))
            yield from products[at].statements(tuple(s for s in rest if not isinstance(s, Notify | Wait)))
            results.append(products[at])

    def storer(self, kernel: Kernel, rank: int, number: int, results: list[RoleTile]) -> Task:
        for at, (stage, _) in enumerate(self.own(kernel, rank, number)):
            yield Computed(results=results, number=at)  # type: ignore[misc]
            self.ahead = max(self.ahead, len(results) - at)
            results[at].store()
            yield from results[at].statements(tuple(s for s in stage.stage.body if isinstance(s, Notify)))
