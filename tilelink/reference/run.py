"""Execution of a program for all ranks: every task is a coroutine that stops at its waits; tiles are whole extents."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NoReturn

import numpy as np
import torch

from tilelink.errors import AccountingError, BindingError, CoverageError, Location, ProgressError
from tilelink.ir.depth import deep
from tilelink.ir.parameters import Numbers, check_numbers
from tilelink.ir.printer import print_region
from tilelink.ir.program import (
    Assign,
    Barrier,
    For,
    If,
    IndexDecl,
    NetworkFence,
    NetworkQuiet,
    Notify,
    Program,
    Region,
    Stage,
    Statement,
    Store,
    Tensor,
    Transfer,
    Wait,
)
from tilelink.ir.scalar import Lookup, Ranks, Scalar, Whole
from tilelink.ir.typing import Axis, StageTyping, Typing, infer
from tilelink.reference import boxes
from tilelink.reference.scalars import Scope, along_table, extent, tile
from tilelink.reference.values import DTYPES, Evaluator, named_dtype, typed

WRITES = "write"
Counters = dict[tuple[int, str, str], np.ndarray]
"""(rank, tensor, signal kind) -> number of notifies of each element, int64 of the tensor's shape. Writes are counted in
the same way, with the kind `WRITES`."""


@dataclass(frozen=True, kw_only=True)
class _Need:
    """The condition that a blocked task waits for: notifies of a kind, or the first write, of elements of a tensor.

    rank: the rank of the tensor. where: index of the elements. what: description for error messages.
    """

    rank: int
    tensor: str
    kind: str
    where: tuple[Any, ...]
    what: str
    location: Location | None


class _Unwritten(Exception):
    """A read of elements that have not been written yet."""

    def __init__(self, need: _Need) -> None:
        super().__init__(need.what)
        self.need = need


Task = Generator[_Need, None, None]
LISTED = 8
"""Maximum number of blocked tasks that an error lists."""


@deep()
def run(
    program: Program,
    inputs: Sequence[Mapping[str, torch.Tensor]],
    dims: Numbers,
    *,
    ranks: int | None = None,
    dtype: str | torch.dtype = "f32",
) -> list[dict[str, torch.Tensor]]:
    """Run a program and return [rank][name]: the outputs of every rank.

    inputs: [rank][name], tensors and tables of the declared shapes. dims: the program's parameters.
    ranks: optional; must equal the number of inputs. dtype: of the tensors that declare none.
    Arithmetic is in float64; stores round to the tensor's dtype. A read blocks until all its elements have been
    written once, whether or not the program orders it after the write.

    Raises BindingError if an input or a parameter is missing or does not fit. Raises CoverageError for a region or a
    lookup outside its tensor, for a read of elements that no task writes, and for an output element that is not
    written exactly once. Raises AccountingError for a wait without matching notifies, and ProgressError if all
    remaining tasks are blocked.
    """
    if ranks is not None and ranks != len(inputs):
        raise BindingError(f"inputs of {len(inputs)} ranks for {ranks} ranks", hint="one mapping for each rank")
    numbers = check_numbers(program.params, dims)
    machine = _Machine(
        program=program, numbers=numbers, ranks=len(inputs), dtype=named_dtype(dtype), typing=infer(program)
    )
    machine.fill(inputs)
    machine.count()
    machine.go()
    machine.check_outputs()
    outs = [t.name for t in program.tensors if t.space == "out"]
    return [{name: tensors[name] for name in outs} for tensors in machine.memory]


@dataclass(kw_only=True)
class _Machine:
    program: Program
    numbers: Numbers
    ranks: int
    dtype: str
    typing: Typing
    memory: list[dict[str, torch.Tensor]] = field(default_factory=list[dict[str, torch.Tensor]])
    tables: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    arrived: Counters = field(default_factory=dict[tuple[int, str, str], np.ndarray])
    expected: Counters = field(default_factory=dict[tuple[int, str, str], np.ndarray])

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.number(n) for n in self.program.tensor(name).shape)

    def number(self, expr: Scalar) -> int:
        return extent(expr, self.numbers, self.ranks)

    def fill(self, inputs: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Allocate every rank's tensors: copies of the inputs; the rest is NaN, or zero for integers."""
        self.memory = [
            {t.name: self._cells(t, given.get(t.name), rank) for t in self.program.tensors}
            for rank, given in enumerate(inputs)
        ]
        for tensor in self.program.tensors:
            if tensor.space == "table":
                self.tables[tensor.name] = np.stack([tensors[tensor.name].numpy() for tensors in self.memory])
                self._check_bound(tensor)

    def _cells(self, tensor: Tensor, given: torch.Tensor | None, rank: int) -> torch.Tensor:
        shape = self.shape(tensor.name)
        kind = DTYPES["i32" if tensor.space == "table" else (tensor.dtype or self.dtype)]
        if given is None and tensor.space in ("in", "table"):
            hint = f"give it as inputs[{rank}][{tensor.name!r}], of shape {list(shape)}"
            raise BindingError(f"rank {rank} has no {tensor.name}", location=tensor.location, hint=hint)
        if given is None:
            return torch.full(shape, torch.nan if kind.is_floating_point else 0, dtype=kind)
        if tuple(given.shape) != shape:
            message = f"{tensor.name} of rank {rank} has shape {list(given.shape)}, not {list(shape)}"
            raise BindingError(message, location=tensor.location, hint="shapes are those of one rank")
        return given.detach().cpu().to(kind, copy=True)

    def _check_bound(self, tensor: Tensor) -> None:
        table = self.tables[tensor.name]
        bound = self.number(tensor.bound) if tensor.bound is not None else None
        if bound is not None and table.size and not 0 <= table.min() <= table.max() < bound:
            message = f"table {tensor.name} holds {table.min()} to {table.max()}"
            hint = f"its entries lie in [0, {bound})"
            raise BindingError(message, location=tensor.location, hint=hint)

    def walkers(self) -> Iterator[_Walker]:
        """Yield a walker for each task of each rank."""
        for rank in range(self.ranks):
            for stage in self.program.stages:
                walker = _Walker(machine=self, stage=stage, typing=self.typing.stage(stage.name), rank=rank)
                yield from walker.over(stage.indices)

    def counters(self, table: Counters, rank: int, name: str, kind: str) -> np.ndarray:
        key = (rank, name, kind)
        if key not in table:
            table[key] = np.zeros(self.shape(name), np.int64)
        return table[key]

    def count(self) -> None:
        """Count in advance the notifies and writes of each element; control flow and coordinates depend on no data."""
        for walker in self.walkers():
            walker.count(walker.stage.body)

    def check_outputs(self) -> None:
        """Raise CoverageError for an element of an output that is not written exactly once."""
        for tensor, rank in product((t for t in self.program.tensors if t.space == "out"), range(self.ranks)):
            times = self.counters(self.expected, rank, tensor.name, WRITES)
            for wrong in np.argwhere(times != 1)[:1]:
                count = int(times[tuple(wrong)])
                state = f"written {count} times" if count else "never written"
                message = f"{tensor.name}{wrong.tolist()} of rank {rank} is {state}"
                hint = "every element of an output is written exactly once"
                raise CoverageError(message, location=tensor.location, hint=hint)

    def go(self) -> None:
        """Run all tasks to their end, resuming blocked tasks in turn. Raises ProgressError if none can continue."""
        pending = [(walker, walker.task(walker.stage.body)) for walker in self.walkers()]
        blocked = self._advance(pending)
        while blocked:
            ready = [(w, task) for w, task, need in blocked if self.satisfied(need)]
            if not ready:
                _deadlock([(w, need) for w, _, need in blocked])
            waiting = [entry for entry in blocked if not self.satisfied(entry[2])]
            blocked = waiting + self._advance(ready)

    def satisfied(self, need: _Need) -> bool:
        """True if a blocked task may continue: all expected notifies have arrived, or all elements are written."""
        arrived = self.counters(self.arrived, need.rank, need.tensor, need.kind)[need.where]
        if need.kind == WRITES:
            return bool((arrived > 0).all())
        return bool((arrived >= self.counters(self.expected, need.rank, need.tensor, need.kind)[need.where]).all())

    def _advance(self, tasks: list[tuple[_Walker, Task]]) -> list[tuple[_Walker, Task, _Need]]:
        """Run each task until it ends or blocks; return the blocked ones."""
        blocked: list[tuple[_Walker, Task, _Need]] = []
        for walker, task in tasks:
            need = next((need for need in task if not self.satisfied(need)), None)
            if need is not None:
                blocked.append((walker, task, need))
        return blocked


def _deadlock(blocked: list[tuple[_Walker, _Need]]) -> NoReturn:
    lines = [f"{w} {need.what}" for w, need in blocked]
    rest = [f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    message = "no task can go on:\n    " + "\n    ".join(lines[:LISTED] + rest)
    hint = "each waits for a notify or for data that another blocked task provides only later"
    raise ProgressError(message, location=blocked[0][1].location, hint=hint)


@dataclass(kw_only=True)
class _Walker:
    """One task, or one iteration of a loop in it, with the values of its indices and names."""

    machine: _Machine
    stage: Stage
    typing: StageTyping
    rank: int
    values: dict[str, int] = field(default_factory=dict[str, int])
    locals: dict[str, Any] = field(default_factory=dict[str, Any])

    def over(self, indices: tuple[IndexDecl, ...]) -> Iterator[_Walker]:
        """Yield a walker without names for each point: number indices run over their extent, others have one tile."""
        sizes = [self.machine.number(d.extent) if d.name in self.typing.scalar_indices else 1 for d in indices]
        for point in product(*(range(n) for n in sizes)):
            named = {d.name: p for d, p in zip(indices, point, strict=True)}
            yield replace(self, values={**self.values, **named}, locals={})

    # Scalars and regions -------------------------------------------------------------------------------------

    def number(self, expr: Scalar) -> Any:
        """Return the value of an expression."""
        return self._scope().value(expr)

    def _scope(self) -> Scope:
        machine = self.machine
        return Scope(
            rank=self.rank,
            ranks=machine.ranks,
            numbers=machine.numbers,
            indices=self.values,
            over_ranks=frozenset(n for n, d in self.typing.indices.items() if isinstance(d.extent, Ranks)),
            tables={t.name: t for t in machine.program.tensors if t.space == "table"},
            entries=machine.tables,
            who=self,
        )

    def owner(self, region: Region) -> int:
        return self.rank if region.rank is None else int(self.number(region.rank)) % self.machine.ranks

    def box(self, region: Region, verb: str) -> boxes.Parts:
        """Return the box of elements that a region names. Raises CoverageError if some of them do not exist."""
        dims, shape = self.machine.program.tensor(region.tensor).shape, self.machine.shape(region.tensor)
        triples = zip(region.coords, shape, dims, strict=True)
        parts = tuple(self._coordinate(c, n, isinstance(d, Ranks)) for c, n, d in triples)
        if not boxes.inside(parts, shape):
            message = f"{self} {verb} {print_region(region)} outside {region.tensor}, of shape {list(shape)}"
            raise CoverageError(message, location=region.location, hint="guard the access with an if, or shift it")
        return parts

    def _coordinate(self, coord: Scalar | Whole, extent: int, over_ranks: bool) -> boxes.Part:
        if isinstance(coord, Whole):
            return slice(0, extent)
        if isinstance(coord, Lookup) and along_table(coord):
            rows = self._scope().entry(coord).ravel()
            return rows % self.machine.ranks if over_ranks else rows
        along = tile(coord, self.typing.scalar_indices)
        if along is not None:
            offset, index = along
            start = int(self.number(offset)) if offset is not None else 0
            return slice(start, start + max(0, self.machine.number(self.typing.indices[index].extent)))
        value = int(self.number(coord))
        return value % self.machine.ranks if over_ranks else value

    def read(self, region: Region) -> torch.Tensor:
        """Return a copy of a region. Raises _Unwritten if an element has not been written yet.

        Raises CoverageError if no task writes some of its elements.
        """
        rank, parts, machine = self.owner(region), self.box(region, "reads"), self.machine
        if machine.program.tensor(region.tensor).space not in ("in", "table"):
            what = f"reads {print_region(region)}" + (f" of rank {rank}" if rank != self.rank else "")
            expected = machine.counters(machine.expected, rank, region.tensor, WRITES)
            where = boxes.index(parts)
            if not (expected[where] > 0).all():
                message, hint = f"{self} {what}, parts of which no stage writes", "write it, or read less of it"
                raise CoverageError(message, location=region.location, hint=hint)
            what += ", before it is written"
            need = _Need(rank=rank, tensor=region.tensor, kind=WRITES, where=where, what=what, location=region.location)
            if not machine.satisfied(need):
                raise _Unwritten(need)
        return boxes.read(machine.memory[rank][region.tensor], parts)

    def write(self, region: Region, value: torch.Tensor) -> None:
        boxes.write(self.machine.memory[self.owner(region)][region.tensor], self.box(region, "writes"), value)
        self._mark(self.machine.arrived, WRITES, region, "writes")

    def __str__(self) -> str:
        point = ", ".join(f"{n} = {v}" for n, v in self.values.items() if n in self.typing.scalar_indices)
        return f"rank {self.rank}, {self.stage.name}" + (f" at {point}" if point else "")

    # Statements ----------------------------------------------------------------------------------------------

    def count(self, body: tuple[Statement, ...]) -> None:
        """Add the notifies and writes of a body to the expected counters."""
        for statement in body:
            match statement:
                case Notify(kind=kind, region=region):
                    self._mark(self.machine.expected, kind, region, "notifies")
                case Store(region=region) | Transfer(target=region):
                    self._mark(self.machine.expected, WRITES, region, "writes")
                    if isinstance(statement, Transfer) and statement.signal is not None:
                        self._mark(self.machine.expected, statement.signal, region, "notifies")
                case If(condition=condition, then=then, orelse=orelse):
                    self.count(then if self.number(condition) else orelse)
                case For(indices=indices, body=inner):
                    for walker in self.over(indices):
                        walker.count(inner)
                case _:
                    pass

    def _mark(self, table: Counters, kind: str, region: Region, verb: str) -> None:
        counters = self.machine.counters(table, self.owner(region), region.tensor, kind)
        np.add.at(counters, boxes.index(self.box(region, verb)), 1)  # a row of a table may name an element twice

    def task(self, body: tuple[Statement, ...]) -> Task:
        """Run a body as a coroutine that yields each condition it waits for."""
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
                    yield from self._when_written(statement)

    def _when_written(self, statement: Statement) -> Task:
        """Execute a statement once everything that it reads is written; a failed attempt has no effect."""
        while True:
            try:
                return self._do(statement)
            except _Unwritten as unwritten:
                yield unwritten.need

    def _need(self, wait: Wait) -> _Need:
        region = wait.region
        expected = self.machine.counters(self.machine.expected, self.rank, region.tensor, wait.kind)
        where = boxes.index(self.box(region, "waits for"))
        if not (expected[where] > 0).all():
            message = f"{self} waits for {print_region(region)}, which no stage notifies"
            hint = "notify every part of the region, with the primitive that matches the wait"
            raise AccountingError(message, location=wait.location, hint=hint)
        what = f"waits for {print_region(region)}"
        return _Need(
            rank=self.rank, tensor=region.tensor, kind=wait.kind, where=where, what=what, location=wait.location
        )

    def _do(self, statement: Statement) -> None:
        evaluator = Evaluator(
            typing=self.typing,
            element=self.machine.dtype,
            number=self.number,
            read=self.read,
            positions=self._positions,
            locals=self.locals,
        )
        match statement:
            case Assign(name=name, value=value):
                self.locals[name] = self._shaped(name, evaluator(value))
            case Store(region=region, value=value) | Transfer(target=region, source=value):
                self.write(region, evaluator(value))
                if isinstance(statement, Transfer) and statement.signal is not None:
                    self._mark(self.machine.arrived, statement.signal, region, "notifies")
            case Notify(kind=kind, region=region):
                self._mark(self.machine.arrived, kind, region, "notifies")
            case Barrier() | NetworkFence() | NetworkQuiet():
                pass  # a task is one thread here, and what it writes is there at once
            case _:
                raise TypeError(f"unknown statement {type(statement).__name__}")

    def _shaped(self, name: str, value: Any) -> Any:
        """A value assigned to a name, converted to the name's dtype and expanded to its shape."""
        kind = self.typing.locals[name]
        if not isinstance(value, torch.Tensor):
            return value
        return typed(value, kind.dtype).expand([self._extent(axis) for axis in kind.axes])

    def _extent(self, axis: Axis) -> int:
        if axis.index is not None:
            return max(0, self.machine.number(self.typing.indices[axis.index].extent))
        return self.machine.number(axis.dim) if axis.dim is not None else 1

    def _positions(self, index: str) -> torch.Tensor:
        if index in self.typing.scalar_indices:
            return torch.tensor([self.values[index]])
        return torch.arange(self.machine.number(self.typing.indices[index].extent))
