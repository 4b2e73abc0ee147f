"""An interpreter of lowered programs: the programs of each kernel execute their tiles in order, on real tensors.

It takes the meaning of statements from the reference, and from a lowered program only what its print says: kernels
with their loops, the order and the sizes of tiles, and the statement in which a deferred notify is issued. It shares no
code with the plan or the emitter.

A program is a coroutine, which a wait suspends. Programs of one stream begin when those of the kernel before have
ended. A read blocks until its elements are written, as in the reference, so a missing wait is not seen: the rules see
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch

from tilelink.errors import ProgressError
from tilelink.ir.program import IndexDecl, Notify, Region, Statement, Tensor
from tilelink.ir.typing import Typing
from tilelink.lowering.bound import Bound, BoundStage, Kernel, Loop
from tilelink.reference import boxes
from tilelink.reference.memory import WRITES, Memory
from tilelink.reference.scalars import Scope
from tilelink.reference.walker import Task, Walker


def run_lowered(bound: Bound, inputs: Sequence[Mapping[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """Run one launch and return [rank][name]: the outputs. Raises ProgressError if all programs are blocked."""
    machine = Machine(
        program=bound.program,
        numbers=bound.numbers,
        ranks=bound.ranks,
        dtype=bound.dtype,
        typing=bound.typing,
        bound=bound,
    )
    machine.fill(inputs)
    machine.count()
    machine.run()
    machine.check_outputs([machine.defined(rank) for rank in range(bound.ranks)])
    outs = [t.name for t in bound.program.tensors if t.is_result]
    return [{name: tensors[name] for name in outs if name in tensors} for tensors in machine.tensors]


@dataclass(kw_only=True)
class Machine(Memory):
    typing: Typing
    bound: Bound

    def _cells(self, tensor: Tensor, given: torch.Tensor | None, rank: int) -> torch.Tensor:
        """Allocate a tensor; of one with slots, only those."""
        cells, steps = super()._cells(tensor, given, rank), self.bound.tensors[tensor.name].steps
        return cells if steps is None else cells.narrow(steps[0], 0, steps[1]).clone()

    def walkers(self) -> Iterator[Walker]:
        for stage, rank in product(self.bound.stages.values(), range(self.ranks)):
            for number in range(stage.total):
                yield self.tile(stage, rank, number)

    def tile(self, stage: BoundStage, rank: int, number: int) -> Tile:
        """Return a tile of a stage, by its number in the order."""
        scope = Scope(rank=rank, ranks=self.ranks, numbers=self.numbers, indices={"tile": number})
        values = {name: int(scope.value(expr)) for name, expr in stage.order.items()}
        typing = self.typing.stage(stage.name)
        return Tile(memory=self, stage=stage.stage, typing=typing, rank=rank, bound=stage).at(values)

    def count(self) -> None:
        """Count the notifies of each element in advance, and mark all elements that a tile may write."""
        for walker in self.walkers():
            walker.count(walker.stage.body)

    def run(self) -> None:
        """Run all programs to their end, the kernels of a stream one after the other."""
        left = {
            (kernel.name, rank, number): self.program_of(kernel, rank, number)
            for kernel in self.bound.kernels
            for rank in range(self.ranks)
            for number in range(kernel.programs)
        }
        while left:
            busy = {(self.kernel(name).stream, self.kernel(name).position, rank) for name, rank, _ in left}
            blocked: list[tuple[Any, Any]] = []
            before = len(left)
            moved = False
            for key, steps in [*left.items()]:
                kernel = self.kernel(key[0])
                if any((kernel.stream, n, key[1]) in busy for n in range(kernel.position)):
                    continue
                moved |= self.advance(key, steps, left, blocked)
            if not moved and len(left) == before:
                raise ProgressError("no task can go on:\n" + "\n".join(f"{at} {need.what}" for at, need in blocked))

    def kernel(self, name: str) -> Kernel:
        return next(one for one in self.bound.kernels if one.name == name)

    def advance(self, key: Any, steps: Program, left: dict[Any, Program], blocked: list[tuple[Any, Any]]) -> bool:
        """Resume a program until it waits or ends. Return True if it has got further."""
        if steps.need is not None and not self.satisfied(steps.need):
            blocked.append((steps.at, steps.need))
            return False
        for need in steps.task:
            if not self.satisfied(need):
                steps.need = need
                return True
        del left[key]
        return True

    def program_of(self, kernel: Kernel, rank: int, number: int) -> Program:
        found = Program(at=f"rank {rank}, {kernel.name}, program {number}")
        found.task = self.tiles(kernel, rank, number)
        return found

    def tiles(self, kernel: Kernel, rank: int, number: int) -> Task:
        for loop in kernel.loops:
            held: Task | None = None
            walked = enumerate(self.walked(loop, rank))
            for t in (t for index, t in walked if _program(loop, index, kernel.programs) == number):
                for name in loop.stages:
                    stage = self.bound.stages[name]
                    one = self.tile(stage, rank, t)
                    yield from one.begin()
                    if stage.notified_in is None:
                        yield from one.statements(stage.stage.body)
                        continue
                    body, closing = _split(stage.stage.body)
                    for at, statement in enumerate(body):
                        if at == stage.notified_in and held is not None:
                            yield from held
                            held = None
                        yield from one.statements((statement,))
                    assert held is None, "a notify of the tile before was not issued"
                    held = one.statements(closing)
            if held is not None:
                yield from held

    def walked(self, loop: Loop, rank: int) -> Iterator[int]:
        """Yield the tiles of a loop in the order in which programs take them."""
        if loop.compact is None:
            yield from range(self.bound.stages[loop.stages[0]].total)
            return
        scope = self.scope(rank)
        for segment in range(loop.compact.segments):
            there = int(replace(scope, indices={"segment": segment}).value(loop.compact.there))
            for within in range(there * loop.compact.across):
                known = {"segment": segment, "within": within, "there": there}
                yield int(replace(scope, indices=known).value(loop.compact.tile))


@dataclass(kw_only=True)
class Program:
    at: str
    task: Any = None
    need: Any = None


def _program(loop: Loop, tile: int, programs: int) -> int:
    return loop.begin + tile % loop.width if loop.width else (loop.first + tile) % programs


def _split(body: tuple[Statement, ...]) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """Return the statements of a tile, and the notifies at its end."""
    end = len(body)
    while end and isinstance(body[end - 1], Notify):
        end -= 1
    return body[:end], body[end:]


@dataclass(kw_only=True)
class Tile(Walker):
    """A tile, with the sizes of the lowered program; the tiles at an edge are smaller.

    tiles: the elements of the tiles of indices, those of a counted range from its start on.
    """

    bound: BoundStage
    tiles: dict[str, slice] = field(default_factory=dict[str, slice])

    def at(self, point: Mapping[str, int]) -> Tile:
        """Return this tile at a point: the number of each index's tile."""
        tiled = {name: number for name, number in point.items() if name not in self.typing.scalar_indices}
        parts = {name: self._elements(name, number) for name, number in tiled.items()}
        values = {**self.values, **{name: number for name, number in point.items() if name not in tiled}}
        return replace(self, values=values, parts={**self.parts, **parts}, tiles={**self.tiles, **parts}, locals={})

    def _elements(self, index: str, number: int) -> slice:
        size, extent = self.bound.tiles[index], self.bound.extents[index]
        return slice(number * size, max(number * size, min(number * size + size, extent)))

    def over(self, indices: tuple[IndexDecl, ...]) -> Iterator[Walker]:
        sizes = [-(-self.bound.extents[d.name] // self.bound.tiles[d.name]) for d in indices]
        for point in product(*(range(n) for n in sizes)):
            yield self.at({d.name: p for d, p in zip(indices, point, strict=True)})

    def enter(self, indices: tuple[IndexDecl, ...]) -> None:
        super().enter(indices)
        for decl in indices:
            if decl.counted and decl.name in self.tiles and self.there:
                entered, tile = self.parts[decl.name], self.tiles[decl.name]
                start = entered.start + tile.start
                self.parts[decl.name] = slice(start, max(start, min(entered.stop, entered.start + tile.stop)))
                self.there = start < entered.stop

    def _whole(self, index: IndexDecl) -> slice:
        whole, tile = super()._whole(index), self.tiles.get(index.name)
        return whole if tile is None else slice(whole.start + tile.start, min(whole.stop, whole.start + tile.stop))

    def read(self, region: Region) -> torch.Tensor:
        if self._steps(region) is None:
            return super().read(region)
        rank, parts = self.owner(region), self.box(region, "reads")
        self.memory.require_written(rank, region.tensor, boxes.index(parts), "reads", region.location, self)
        return boxes.read(self.memory.tensors[rank][region.tensor], self._slots(region, parts))

    def write(self, region: Region, value: torch.Tensor) -> None:
        if self._steps(region) is None:
            super().write(region, value)
            return
        parts = self._slots(region, self.box(region, "writes"))
        boxes.write(self.memory.tensors[self.owner(region)][region.tensor], parts, value)
        self._mark(self.memory.arrived, WRITES, region, "writes")

    def _steps(self, region: Region) -> tuple[int, int] | None:
        assert isinstance(self.memory, Machine)
        return self.memory.bound.tensors[region.tensor].steps

    def _slots(self, region: Region, parts: boxes.Coordinates) -> boxes.Coordinates:
        """Return where a step is in memory."""
        steps = self._steps(region)
        assert steps is not None
        step = parts[steps[0]]
        assert isinstance(step, int)
        return (*parts[: steps[0]], step % steps[1], *parts[steps[0] + 1 :])

    def begin(self) -> Task:
        """Read the ends of the tile's ranges."""
        yield from self._once_written(lambda: self.enter(self.stage.indices))

    def statements(self, body: tuple[Statement, ...]) -> Task:
        """Run some statements of the tile."""
        yield from self._body(body)
