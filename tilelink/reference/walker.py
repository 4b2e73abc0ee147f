"""One task of a program: a coroutine that evaluates the statements of a tile and stops at its waits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeVar

import numpy as np
import torch

from tilelink.errors import AccountingError, CoverageError, OrderingError
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
    Region,
    Stage,
    Statement,
    Store,
    Transfer,
    Wait,
)
from tilelink.ir.scalar import Block, Int, Lookup, Ranks, Scalar, Whole
from tilelink.ir.typing import Axis, StageTyping
from tilelink.ir.visitor import on_ranks
from tilelink.reference import boxes
from tilelink.reference.dtypes import converted, typed
from tilelink.reference.memory import WRITES, Counters, Memory, Need, Unwritten
from tilelink.reference.races import Seen, Where
from tilelink.reference.scalars import Scope, along_table, at_launch, indices_of, tile
from tilelink.reference.values import Evaluator

T = TypeVar("T")
Task = Generator[Need, None, None]


def _signals(body: tuple[Statement, ...]) -> Iterator[Wait | Notify]:
    """Yield the signals of a body."""
    for statement in body:
        match statement:
            case Wait() | Notify():
                yield statement
            case If(then=then, orelse=orelse):
                yield from _signals((*then, *orelse))
            case For(body=inner):
                yield from _signals(inner)
            case _:
                pass


@dataclass(kw_only=True)
class Walker:
    """One task, or one iteration of a loop in it, with the values of its indices and names.

    values: numbers of indices. parts: the elements of the tiles of other indices. there: False outside of a counted
    range, where a task only signals.
    decided: False where a launch decides whether a statement is executed, or how often. seen: the accesses that come
    before what the task does next.
    """

    memory: Memory
    stage: Stage
    typing: StageTyping
    rank: int
    values: dict[str, int] = field(default_factory=dict[str, int])
    parts: dict[str, slice] = field(default_factory=dict[str, slice])
    there: bool = True
    decided: bool = True
    locals: dict[str, Any] = field(default_factory=dict[str, Any])
    seen: Seen = field(default_factory=Seen)

    def over(self, indices: tuple[IndexDecl, ...]) -> Iterator[Walker]:
        """Yield a walker without names for each point: number indices run over their extent, others have one tile."""
        numbers = [d for d in indices if d.name in self.typing.scalar_indices]
        decided = self.decided and not any(d.counted for d in indices)
        for point in product(*(range(self._size(d)) for d in numbers)):
            named = {d.name: p for d, p in zip(numbers, point, strict=True)}
            one = replace(self, values={**self.values, **named}, decided=decided, locals={})
            one.parts = {**self.parts, **{d.name: one._whole(d) for d in indices if d.name not in named}}
            yield one

    def _size(self, index: IndexDecl) -> int:
        return max(0, self.memory.number(index.extent))

    def _whole(self, index: IndexDecl) -> slice:
        """Return the tile of an index up to the end of its dimension, from where the range begins if that is known."""
        size, start = self._size(index), index.start
        first = 0 if start is None or self._placed(start) else max(0, int(self.number(start)))
        return slice(min(first, size), size)

    def enter(self, indices: tuple[IndexDecl, ...]) -> None:
        """Read the ends of counted ranges. Raises Unwritten if an entry has not been written yet."""
        values, parts = dict(self.values), dict(self.parts)
        for decl in (d for d in indices if d.counted):
            scope = replace(self._scope(), indices=values)
            start = max(0, int(scope.value(decl.start))) if decl.start is not None else 0
            stop = self._size(decl)
            stop = min(stop, int(scope.value(decl.stop))) if decl.stop is not None else stop
            if decl.name in values:
                there = start <= values[decl.name] < stop
            else:
                parts[decl.name] = slice(start, max(start, stop))
                there = start < stop
            if not there:
                self.there = False
                return  # further ranges may depend on entries that are not there
        self.values, self.parts = values, parts

    # Scalars and regions -------------------------------------------------------------------------------------

    def number(self, expr: Scalar) -> Any:
        """Return the value of an expression."""
        return expr.value if isinstance(expr, Int) else self._scope().value(expr)

    def _scope(self) -> Scope:
        return self.memory.scope(
            self.rank, self, indices=self.values, over_ranks=self.typing.over_ranks, part=self._part
        )

    def _part(self, coord: Scalar) -> slice | None:
        """Return the elements of the tile that a coordinate stands for, None for a number."""
        along = tile(coord, self.typing.scalar_indices)
        if along is None:
            return None
        offset, index = along
        start = int(self.number(offset)) if offset is not None else 0
        part = self.parts[index]
        return slice(start + part.start, start + part.stop)

    def owner(self, region: Region) -> int:
        return self.rank if region.rank is None else int(self.number(region.rank)) % self.memory.ranks

    def box(self, region: Region, verb: str) -> boxes.Coordinates:
        """Return the box of elements that a region names. Raises CoverageError if some of them do not exist."""
        if not self._placed(region.rank):
            self.memory.require_there(self.owner(region), verb, region, self)
        dims, shape = self.memory.program.tensor(region.tensor).shape, self.memory.shape(region.tensor)
        triples = zip(region.coords, shape, dims, strict=True)
        parts = tuple(self._coordinate(c, n, isinstance(d, Ranks)) for c, n, d in triples)
        if not boxes.inside(parts, shape):
            message = f"{self} {verb} {print_region(region)} outside {region.tensor}, of shape {list(shape)}"
            raise CoverageError(message, location=region.location, hint="guard the access with an if, or shift it")
        return parts

    def _coordinate(self, coord: Scalar | Whole, extent: int, over_ranks: bool) -> boxes.Coordinate:
        if isinstance(coord, Whole):
            return slice(0, extent)
        if isinstance(coord, Block):
            start = int(self.number(coord.start))
            return slice(start, start + self.memory.number(coord.size))
        if isinstance(coord, Lookup) and (along_table(coord) or self._lists(coord)):
            rows = self._scope().entry(coord).ravel()
            return rows % self.memory.ranks if over_ranks else rows
        if (part := self._part(coord)) is not None:
            return part
        value = int(self.number(coord))
        return value % self.memory.ranks if over_ranks else value

    def _lists(self, lookup: Lookup) -> bool:
        """True if a look-up has an entry for each element of a tile."""
        numbers = self.typing.scalar_indices
        return any(isinstance(c, Scalar) and tile(c, numbers) is not None for c in lookup.coords)

    def _placed(self, coord: Scalar | Whole | None) -> bool:
        """True if only a launch decides the value of a coordinate, or where its tile begins."""
        if coord is None or isinstance(coord, Whole):
            return False
        tiles = (self.typing.indices[name].start for name in indices_of(coord) - self.typing.scalar_indices)
        return at_launch(coord) or any(map(self._placed, tiles))

    def read(self, region: Region) -> torch.Tensor:
        """Return a copy of a region. Raises Unwritten if an element has not been written yet.

        Raises CoverageError if no task writes some of its elements.
        """
        rank, parts, memory = self.owner(region), self.box(region, "reads"), self.memory
        memory.require_there(rank, "reads", region, self)
        where = boxes.index(parts)
        tensor = memory.program.tensor(region.tensor)
        if not tensor.is_given and not tensor.known_early and not tensor.in_place:
            what = f"reads {print_region(region)}" + (f" of rank {rank}" if rank != self.rank else "")
            memory.require_written(rank, region.tensor, where, what, region.location, self)
        if tensor.in_place:
            self._ordered(memory.races.read(self.seen, rank, tensor.name, where), "reads", region)
        return boxes.read(memory.tensors[rank][region.tensor], parts)

    def write(self, region: Region, value: torch.Tensor) -> None:
        memory, name, rank, parts = self.memory, region.tensor, self.owner(region), self.box(region, "writes")
        where = boxes.index(parts)
        if memory.program.tensor(name).in_place:
            self._ordered(memory.races.write(self.seen, rank, name, where), "writes", region)
        boxes.write(memory.tensors[rank][name], parts, converted(value, memory.dtype_of(name)))
        memory.check_stored(rank, name, where, region.location)
        self._count(memory.arrived, WRITES, region, where)

    def add(self, region: Region, value: torch.Tensor) -> None:
        """Add a value to a region, to an element as often as it is named."""
        memory, name, parts = self.memory, region.tensor, self.box(region, "adds to")
        where = boxes.index(parts)
        self._ordered(memory.races.add(self.seen, self.rank, name, where), "adds to", region)
        boxes.add(memory.tensors[self.rank][name], parts, value)
        self._count(memory.arrived, WRITES, region, where)

    def _ordered(self, ordered: bool, does: str, region: Region) -> None:
        """Raise OrderingError for an access of an element that another task accesses too, without an order."""
        if not ordered:
            message = (
                f"{self} {does} {print_region(region)}, and no signal orders this after what another task does there"
            )
            hint = "notify and wait: a read of what is written comes after the write, one of what was there before it"
            raise OrderingError(message, location=region.location, hint=hint)

    def _told(self, kind: str, region: Region, where: Where) -> None:
        """Keep what a waiter for this notify knows."""
        self.memory.races.told(self.seen, (self.owner(region), region.tensor, kind), where)

    def __str__(self) -> str:
        point = ", ".join(f"{n} = {v}" for n, v in self.values.items() if n in self.typing.scalar_indices)
        return f"rank {self.rank}, {self.stage.name}" + (f" at {point}" if point else "")

    # Counting ------------------------------------------------------------------------------------------------

    def count(self, body: tuple[Statement, ...]) -> None:
        """Add the notifies of a body to the expected counters, and the writes that it may make.

        Raises AccountingError for a signal about which only a launch decides.
        """
        for statement in body:
            match statement:
                case Notify(kind=kind, region=region):
                    self._require_known(statement)
                    self._count(self.memory.expected, kind, region, boxes.index(self._signalled(region, "notifies")))
                case Store(region=region) | Transfer(target=region):
                    self._count_write(region)
                    if isinstance(statement, Transfer) and statement.signal is not None:
                        self._mark(self.memory.expected, statement.signal, region, "notifies")
                case If(condition=condition, then=then, orelse=orelse) if self._open(condition):
                    for signal in _signals((*then, *orelse)):
                        verb = "waits for" if isinstance(signal, Wait) else "notifies"
                        message = f"{self} {verb} {print_region(signal.region)} in a branch that only a launch decides"
                        hint = "take the signal out: a counted range, (i: M[: n]), leaves out data and no signals"
                        raise AccountingError(message, location=signal.location, hint=hint)
                    replace(self, decided=False).count((*then, *orelse))
                case If(condition=condition, then=then, orelse=orelse):
                    self.count(then if self._scope().ends(condition, self.memory.largest)[0] else orelse)
                case For(indices=indices, body=inner):
                    for walker in self.over(indices):
                        walker.count(inner)
                case _:
                    pass

    def _open(self, condition: Scalar) -> bool:
        """True if a launch decides whether a condition holds."""
        low, high = self._scope().ends(condition, self.memory.largest)
        return low != high

    def _require_known(self, notify: Notify) -> None:
        region = notify.region
        if any(map(self._placed, (*region.coords, region.rank))):
            message = f"{self} notifies {print_region(region)}, whose place only a launch decides"
            hint = "a range from 0 on, (i: M[: n]), notifies the same elements in every launch"
            raise AccountingError(message, location=notify.location, hint=hint)

    def _count_write(self, region: Region) -> None:
        """Mark the elements that a statement may write: the very ones, unless a launch decides about them."""
        places = (*region.coords, region.rank)
        if self.decided and not any(map(self._placed, places)):
            self._mark(self.memory.expected, WRITES, region, "writes")
            return
        dims, shape = self.memory.program.tensor(region.tensor).shape, self.memory.shape(region.tensor)
        parts: list[slice] = []
        for coord, size, dim in zip(region.coords, shape, dims, strict=True):
            part: boxes.Coordinate = slice(0, size)
            if not self._placed(coord) and not (isinstance(coord, Lookup) and along_table(coord)):
                part = self._coordinate(coord, size, isinstance(dim, Ranks))
            first, last = (part.start, part.stop) if isinstance(part, slice) else (int(part), int(part) + 1)
            parts.append(slice(min(max(0, first), size), min(max(0, last), size)))
        anywhere = self._placed(region.rank)
        for rank in range(self.memory.ranks) if anywhere else (self.owner(region),):
            self.memory.counters(self.memory.expected, rank, region.tensor, WRITES)[tuple(parts)] += 1

    def _mark(self, table: Counters, kind: str, region: Region, verb: str) -> None:
        self._count(table, kind, region, boxes.index(self.box(region, verb)))

    def _count(self, table: Counters, kind: str, region: Region, where: Where) -> None:
        counters = self.memory.counters(table, self.owner(region), region.tensor, kind)
        np.add.at(counters, where, 1)  # a row of a table may name an element twice

    def _signalled(self, region: Region, verb: str) -> boxes.Coordinates:
        """Return the box of a signal: of whole tiles of counted ranges, as far as the tensor has them.

        Entries are those of the elements that are there.
        """
        if self.decided:
            return self.box(region, verb)
        listing = {name for c in region.coords if isinstance(c, Lookup) for name in indices_of(c)}
        whole = {n: self._whole(self.typing.indices[n]) for n in self.parts.keys() - listing}
        shape, dims = self.memory.shape(region.tensor), self.memory.program.tensor(region.tensor).shape
        every = replace(self, parts={**self.parts, **whole})
        triples = zip(region.coords, shape, dims, strict=True)
        parts = [every._coordinate(c, n, isinstance(d, Ranks)) for c, n, d in triples]
        return tuple(boxes.clipped(part, size) for part, size in zip(parts, shape, strict=True))

    # Statements ----------------------------------------------------------------------------------------------

    def task(self) -> Task:
        """Run the task as a coroutine that yields each condition it waits for.

        The ends of its ranges are read once they are written, whether or not waits at its start order that, and on the
        ranks that execute it.
        """
        branch, body = on_ranks(self.stage)
        if branch is not None and not self.number(branch.condition):
            return
        yield from self._once_written(lambda: self.enter(self.stage.indices))
        yield from self._body(body)

    def _body(self, body: tuple[Statement, ...]) -> Task:
        """Run statements; only the signals of those that are not there."""
        for statement in body:
            match statement:
                case Wait():
                    need = yield from self._once_written(lambda wait=statement: self._need(wait))
                    if need is not None:
                        yield need
                        key = (need.rank, need.tensor, need.kind)
                        self.memory.races.awaited(self.seen, key, need.where)
                case Notify(kind=kind, region=region):
                    if self.there and not self.decided:
                        self.box(region, "notifies")
                    where = boxes.index(self._signalled(region, "notifies"))
                    self._told(kind, region, where)
                    self._count(self.memory.arrived, kind, region, where)
                case If(condition=condition, then=then, orelse=orelse) if self.there or any(_signals((*then, *orelse))):
                    chosen = yield from self._once_written(lambda scalar=condition: self.number(scalar))
                    yield from self._body(then if chosen else orelse)
                case For(indices=indices, body=inner) if self.there or any(_signals(inner)):
                    for walker in self.over(indices):
                        walker.locals = self.locals
                        if self.there:
                            yield from walker._once_written(lambda one=walker, own=indices: one.enter(own))
                        yield from walker._body(inner)
                case If() | For():
                    pass
                case _ if self.there:
                    yield from self._once_written(lambda one=statement: self._do(one))
                case _:
                    pass

    def _once_written(self, attempt: Callable[[], T]) -> Generator[Need, None, T]:
        """Return the result of an attempt once everything that it reads is written. A failed attempt has no effect."""
        while True:
            try:
                return attempt()
            except Unwritten as unwritten:
                yield unwritten.need

    def _need(self, wait: Wait) -> Need | None:
        region = wait.region
        if not self.there and any(map(self._placed, region.coords)):
            return None  # entries beyond the end of a range name nothing
        if self.there and not self.decided:
            self.box(region, "waits for")
        expected = self.memory.counters(self.memory.expected, self.rank, region.tensor, wait.kind)
        where = boxes.index(self._signalled(region, "waits for"))
        if not (expected[where] > 0).all():
            message = f"{self} waits for {print_region(region)}, which no stage notifies"
            hint = "notify every part of the region, with the primitive that matches the wait"
            raise AccountingError(message, location=wait.location, hint=hint)
        what = f"waits for {print_region(region)}"
        return Need(
            rank=self.rank, tensor=region.tensor, kind=wait.kind, where=where, what=what, location=wait.location
        )

    def _do(self, statement: Statement) -> None:
        evaluator = Evaluator(
            typing=self.typing,
            element=self.memory.dtype,
            number=self.number,
            read=self.read,
            positions=self._positions,
            locals=self.locals,
        )
        match statement:
            case Assign(name=name, value=value):
                self.locals[name] = self._shaped(name, evaluator(value))
            case Store(region=region, value=value, adds=True):
                self.add(region, evaluator(value))
            case Store(region=region, value=value) | Transfer(target=region, source=value):
                self.write(region, evaluator(value))
                if isinstance(statement, Transfer) and statement.signal is not None:
                    self._told(statement.signal, region, boxes.index(self._signalled(region, "notifies")))
                    self._mark(self.memory.arrived, statement.signal, region, "notifies")
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
            part = self.parts.get(axis.index)
            return part.stop - part.start if part is not None else self._size(self.typing.indices[axis.index])
        return self.memory.number(axis.dim) if axis.dim is not None else 1

    def _positions(self, index: str) -> torch.Tensor:
        if index in self.typing.scalar_indices:
            return torch.tensor([self.values[index]])
        part = self.parts[index]
        return torch.arange(part.start, part.stop)
