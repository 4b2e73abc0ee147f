"""Runs a program rank by rank: every task a coroutine that stops at its waits, whole extents as tiles."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import torch

from tilelink.errors import AccountingError, ProgressError
from tilelink.ir.mapping import tile_index
from tilelink.ir.printer import print_region
from tilelink.ir.program import (
    Assign,
    For,
    If,
    IndexDecl,
    Notify,
    Program,
    Region,
    Stage,
    Statement,
    Store,
    Transfer,
    Wait,
)
from tilelink.ir.scalar import Compare, Env, Lookup, Ranks, Scalar, Whole, children, evaluate, mentions_rank
from tilelink.ir.typing import StageTyping, infer
from tilelink.reference.values import DTYPES, Evaluator

Task = Generator[tuple[int, Wait, np.ndarray, tuple[Any, ...]], None, None]
Numbers = Mapping[str, int | float | bool]


def run(
    program: Program, inputs: Sequence[Mapping[str, torch.Tensor]], dims: Numbers, *, dtype: str = "f32"
) -> list[dict[str, torch.Tensor]]:
    """The outputs of every rank.

    inputs[rank][name]: tensors and tables of the declared shapes. dims: the program's parameters. Arithmetic is in
    float64; stores round to the tensor's dtype. Raises AccountingError for a wait that nobody ends, ProgressError
    when tasks wait for each other.
    """
    machine = _Machine(program=program, numbers=dims, ranks=len(inputs), dtype=dtype)
    machine.fill(inputs)
    machine.count_notifies()
    machine.go()
    outs = [t.name for t in program.tensors if t.space == "out"]
    return [{name: own[name] for name in outs} for own in machine.memory]


@dataclass(kw_only=True)
class _Machine:
    program: Program
    numbers: Numbers
    ranks: int
    dtype: str
    memory: list[dict[str, torch.Tensor]] = field(default_factory=list[dict[str, torch.Tensor]])
    tables: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    arrived: dict[tuple[int, str, str], np.ndarray] = field(default_factory=dict[tuple[int, str, str], np.ndarray])
    expected: dict[tuple[int, str, str], np.ndarray] = field(default_factory=dict[tuple[int, str, str], np.ndarray])

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.number(n) for n in self.program.tensor(name).shape)

    def number(self, expr: Scalar) -> int:
        return int(evaluate(expr, Env(rank=0, ranks=self.ranks, params=self.numbers, indices={})))

    def fill(self, inputs: Sequence[Mapping[str, torch.Tensor]]) -> None:
        for own in inputs:
            cells: dict[str, torch.Tensor] = {}
            for tensor in self.program.tensors:
                kind = "i32" if tensor.space == "table" else (tensor.dtype or self.dtype)
                given = own.get(tensor.name)
                cells[tensor.name] = given.clone() if given is not None else self._blank(tensor.name, kind)
            self.memory.append(cells)
        for tensor in self.program.tensors:
            if tensor.space == "table":
                self.tables[tensor.name] = np.stack([own[tensor.name].numpy() for own in self.memory])

    def _blank(self, name: str, kind: str) -> torch.Tensor:
        blank = torch.zeros(self.shape(name), dtype=DTYPES[kind])
        return blank.fill_(torch.nan) if blank.is_floating_point() else blank

    def walkers(self) -> Iterator[_Walker]:
        """One for each task of each rank."""
        typing = infer(self.program)
        for rank in range(self.ranks):
            for stage in self.program.stages:
                walker = _Walker(machine=self, stage=stage, typing=typing.stage(stage.name), rank=rank)
                yield from walker.over(stage.indices)

    def counters(self, table: dict[tuple[int, str, str], np.ndarray], rank: int, name: str, kind: str) -> np.ndarray:
        key = (rank, name, kind)
        if key not in table:
            table[key] = np.zeros(self.shape(name), np.int64)
        return table[key]

    def count_notifies(self) -> None:
        """How often each element will be notified: conditions and coordinates do not depend on data."""
        for walker in self.walkers():
            walker.count(walker.stage.body)

    def go(self) -> None:
        waiting = [(walker, walker.task(walker.stage.body)) for walker in self.walkers()]
        blocked: list[tuple[_Walker, Task, tuple[int, Wait, np.ndarray, tuple[Any, ...]]]] = []
        for walker, task in waiting:
            self._advance(walker, task, blocked)
        while blocked:
            before, blocked = blocked, []
            moved = False
            for walker, task, need in before:
                if self._satisfied(need):
                    moved = True
                    self._advance(walker, task, blocked)
                else:
                    blocked.append((walker, task, need))
            if not moved:
                _deadlock(blocked)

    def _satisfied(self, need: tuple[int, Wait, np.ndarray, tuple[Any, ...]]) -> bool:
        rank, wait, expected, where = need
        arrived = self.counters(self.arrived, rank, wait.region.tensor, wait.kind)
        return bool((arrived[where] >= expected[where]).all())

    def _advance(self, walker: _Walker, task: Task, blocked: list[Any]) -> None:
        for need in task:
            if not self._satisfied(need):
                blocked.append((walker, task, need))
                return


def _deadlock(blocked: list[Any]) -> None:
    lines = [f"rank {w.rank}, {w.stage.name} {w.values} waits for {print_region(n[1].region)}" for w, _, n in blocked]
    first = blocked[0][2][1]
    hint = "a notify comes too late, or never: " + "; ".join(lines[1:4])
    raise ProgressError(f"deadlock: {lines[0]}", location=first.location, hint=hint)


@dataclass(kw_only=True)
class _Walker:
    """One task (or, during loops, one iteration of it): knows its indices."""

    machine: _Machine
    stage: Stage
    typing: StageTyping
    rank: int
    values: dict[str, int] = field(default_factory=dict[str, int])
    locals: dict[str, Any] = field(default_factory=dict[str, Any])

    def over(self, indices: tuple[IndexDecl, ...]) -> Iterator[_Walker]:
        """A walker for each point: numbers run over their extent, tile indices have one tile."""
        sizes = [self.machine.number(d.extent) if d.name in self.typing.scalar_indices else 1 for d in indices]
        for point in product(*(range(n) for n in sizes)):
            named = {d.name: p for d, p in zip(indices, point, strict=True)}
            shared = self.locals if self.values or not indices else {}
            yield replace(self, values={**self.values, **named}, locals=shared)

    # Scalars and regions -------------------------------------------------------------------------------------

    def number(self, expr: Scalar) -> Any:
        """The value of an expression; == and != between ranks are modulo ranks."""
        machine = self.machine
        over_ranks = frozenset(n for n, d in self.typing.indices.items() if isinstance(d.extent, Ranks))
        if isinstance(expr, Compare) and expr.op in ("==", "!="):
            left, right = self.number(expr.left), self.number(expr.right)
            if mentions_rank(expr.left, over_ranks) or mentions_rank(expr.right, over_ranks):
                left, right = left % machine.ranks, right % machine.ranks
            return left == right if expr.op == "==" else left != right
        if any(isinstance(c, Compare) for c in children(expr)):
            values = [self.number(c) for c in children(expr)]
            return {"and": all(values), "or": any(values)}.get(getattr(expr, "op", ""), not values[0])
        env = Env(
            rank=self.rank, ranks=machine.ranks, params=machine.numbers, indices=self.values, tables=machine.tables
        )
        return evaluate(expr, env)

    def owner(self, region: Region) -> int:
        return self.rank if region.rank is None else int(self.number(region.rank)) % self.machine.ranks

    def where(self, region: Region) -> tuple[Any, ...]:
        """The region as an index of its tensor: slices, and rows of a table as an array (see numpy.ix_)."""
        shape = self.machine.shape(region.tensor)
        dims = self.machine.program.tensor(region.tensor).shape
        return tuple(
            self._coordinate(c, n, isinstance(d, Ranks)) for c, n, d in zip(region.coords, shape, dims, strict=True)
        )

    def _coordinate(self, coord: Scalar | Whole, extent: int, over_ranks: bool) -> Any:
        if isinstance(coord, Whole):
            return slice(0, extent)
        if isinstance(coord, Lookup) and any(isinstance(c, Whole) for c in coord.coords):
            return np.asarray(self.number(coord))
        tile = tile_index(coord, self.typing.scalar_indices)
        if tile is not None:
            start = int(self.number(tile[0]))
            size = self.machine.number(self.typing.indices[tile[1]].extent)
            return slice(start, min(start + size, extent))
        value = int(self.number(coord))
        return value % self.machine.ranks if over_ranks else value

    def read(self, region: Region) -> torch.Tensor:
        tile = self.machine.memory[self.owner(region)][region.tensor]
        for d, part in reversed(list(enumerate(self.where(region)))):
            if isinstance(part, np.ndarray):
                tile = tile.index_select(d, torch.as_tensor(part.ravel()).long())
            else:
                tile = tile[(*(slice(None),) * d, part)]
        return tile

    def write(self, region: Region, value: torch.Tensor) -> None:
        target = self.machine.memory[self.owner(region)][region.tensor]
        parts = self.where(region)
        box = target[tuple(p if not isinstance(p, np.ndarray) else slice(None) for p in parts)]
        rows = [p for p in parts if isinstance(p, np.ndarray)]
        if not rows:
            box.copy_(value.to(target.dtype).expand(box.shape))
            return
        kept = [p for p in parts if not isinstance(p, int)]
        axis = next(d for d, p in enumerate(kept) if isinstance(p, np.ndarray))
        shape = (*box.shape[:axis], rows[0].size, *box.shape[axis + 1 :])
        box.index_copy_(axis, torch.as_tensor(rows[0].ravel()).long(), value.to(target.dtype).expand(shape))

    # Statements ----------------------------------------------------------------------------------------------

    def count(self, body: tuple[Statement, ...]) -> None:
        """Count the notifies of a body."""
        for statement in body:
            match statement:
                case Notify(kind=kind, region=region):
                    self._notify(self.machine.expected, kind, region)
                case If(condition=condition, then=then, orelse=orelse):
                    self.count(then if self.number(condition) else orelse)
                case For(indices=indices, body=inner):
                    for walker in self.over(indices):
                        walker.count(inner)
                case _:
                    pass

    def _notify(self, table: dict[tuple[int, str, str], np.ndarray], kind: str, region: Region) -> None:
        counters = self.machine.counters(table, self.owner(region), region.tensor, kind)
        counters[self.where(region)] += 1

    def task(self, body: tuple[Statement, ...]) -> Task:
        """Run a body; yields what it waits for."""
        for statement in body:
            match statement:
                case Wait():
                    yield self._need(statement)
                case If(condition=condition, then=then, orelse=orelse):
                    yield from self.task(then if self.number(condition) else orelse)
                case For(indices=indices, body=inner):
                    for walker in self.over(indices):
                        walker.locals = self.locals
                        yield from walker.task(inner)
                case _:
                    self._do(statement)

    def _need(self, wait: Wait) -> tuple[int, Wait, np.ndarray, tuple[Any, ...]]:
        region = wait.region
        expected = self.machine.counters(self.machine.expected, self.rank, region.tensor, wait.kind)
        where = self.where(region)
        if not (expected[where] > 0).all():
            message = f"rank {self.rank}, {self.stage.name} waits for {print_region(region)}, which nobody notifies"
            hint = "notify every part of the region, with the primitive that matches the wait"
            raise AccountingError(message, location=wait.location, hint=hint)
        return self.rank, wait, expected, where

    def _do(self, statement: Statement) -> None:
        evaluator = Evaluator(
            number=self.number,
            read=self.read,
            positions=self._positions,
            params=self.machine.numbers,
            locals=self.locals,
        )
        match statement:
            case Assign(name=name, value=value):
                self.locals[name] = evaluator(value)
            case Store(region=region, value=value) | Transfer(target=region, source=value):
                self.write(region, evaluator(value))
            case Notify(kind=kind, region=region):
                self._notify(self.machine.arrived, kind, region)
            case _:
                raise TypeError(f"unknown statement {type(statement).__name__}")

    def _positions(self, index: str) -> torch.Tensor:
        return torch.arange(self.machine.number(self.typing.indices[index].extent))
