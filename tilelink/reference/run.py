"""Execution of a program for all ranks: every task is a coroutine that stops at its waits; tiles are whole extents."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch

from tilelink.dtypes import DTYPES
from tilelink.errors import AccountingError, BindingError, CoverageError, Location, OrderingError, ProgressError
from tilelink.ir.depth import deep
from tilelink.ir.groups import check_groups
from tilelink.ir.parameters import Numbers, check_numbers
from tilelink.ir.printer import print_region, print_scalar
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
from tilelink.ir.scalar import Block, Lookup, Ranks, Scalar, Whole
from tilelink.ir.typing import Axis, StageTyping, Typing, infer
from tilelink.reference import boxes
from tilelink.reference.dtypes import converted, named_dtype, typed
from tilelink.reference.promises import check_computed, check_promises
from tilelink.reference.races import Races, Seen
from tilelink.reference.scalars import Scope, Where, along_table, at_launch, extent, indices_of, tile
from tilelink.reference.values import Evaluator

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


T = TypeVar("T")
Task = Generator[_Need, None, None]
LISTED = 8
"""Maximum number of blocked tasks that an error lists."""


class Outputs(dict[str, torch.Tensor]):
    """The outputs of a rank by their names.

    defined: the mask of the elements that are defined, for each output of which a launch decides how much is defined.
    Other elements are NaN, or -1 for integers, and are not compared with anything.
    kept: what the launch has left in the tensors that are kept between launches, by their names.
    added: how often an element was written at most, for each tensor that is added to in any order.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        defined: Mapping[str, torch.Tensor],
        kept: Mapping[str, torch.Tensor] | None = None,
        added: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(tensors)
        self.defined = dict(defined)
        self.kept = dict(kept or {})
        self.added = dict(added or {})


@deep()
def run(
    program: Program,
    inputs: Sequence[Mapping[str, torch.Tensor]],
    dims: Numbers,
    *,
    ranks: int | None = None,
    dtype: str | torch.dtype = "f32",
    kept: Sequence[Mapping[str, torch.Tensor]] | None = None,
) -> list[Outputs]:
    """Run a program and return [rank][name]: the outputs of every rank.

    inputs: [rank][name], tensors and tables of the declared shapes, those of a group on its ranks alone.
    dims: the program's parameters.
    ranks: optional; must equal the number of inputs. dtype: of the tensors that declare none.
    kept: [rank][name], what the launch before has left (`outputs[rank].kept`); None, or a tensor that is left out,
    stands for zeros, as before the first launch.
    Arithmetic is in float64; stores round to the tensor's dtype. A read blocks until all its elements have been
    written once, whether or not the program orders it after the write. A read of a tensor that is written in place
    does not: it has what was there before, or what a write before it has left.

    Entries of index tensors that stages write are clamped to their bounds where they are used as integers.

    Raises BindingError if an input or a parameter is missing or does not fit, or if an index tensor breaks a promise of
    its declaration. Raises CoverageError for a region or a lookup outside its tensor, for a read of elements that no
    task writes, and for a defined output element that is not written exactly once. Raises OrderingError for an access
    to a tensor that is written in place, if no signal orders it and that of another task. Raises AccountingError for a
    wait without matching notifies, and for a signal that only a launch decides about, and ProgressError if all
    remaining tasks are blocked.
    """
    if ranks is not None and ranks != len(inputs):
        raise BindingError(f"inputs of {len(inputs)} ranks for {ranks} ranks", hint="one mapping for each rank")
    numbers = check_numbers(program.params, dims)
    check_groups(program, len(inputs), lambda expr: extent(expr, numbers, len(inputs)))
    machine = _Machine(
        program=program, numbers=numbers, ranks=len(inputs), dtype=named_dtype(dtype), typing=infer(program)
    )
    if kept is not None and len(kept) != len(inputs):
        raise BindingError(
            f"kept tensors of {len(kept)} ranks for {len(inputs)} ranks", hint="one mapping for each rank"
        )
    machine.fill(inputs, kept)
    machine.count()
    machine.go()
    machine.check_computed()
    masks = [machine.defined(rank) for rank in range(machine.ranks)]
    machine.check_outputs(masks)
    outs = [t.name for t in program.tensors if t.is_result]
    stay = [t.name for t in program.tensors if t.space == "kept"]
    return [
        Outputs(
            {name: tensors[name] for name in outs if name in tensors},
            defined,
            {name: tensors[name] for name in stay if name in tensors},
            {
                t.name: int(machine.counters(machine.arrived, rank, t.name, WRITES).max(initial=0))
                for t in program.tensors
                if t.sums and t.name in tensors
            },
        )
        for rank, (tensors, defined) in enumerate(zip(machine.memory, masks, strict=True))
    ]


@dataclass(kw_only=True)
class _Machine:
    program: Program
    numbers: Numbers
    ranks: int
    dtype: str
    typing: Typing
    memory: list[dict[str, torch.Tensor]] = field(default_factory=list[dict[str, torch.Tensor]])
    arrived: Counters = field(default_factory=dict[tuple[int, str, str], np.ndarray])
    expected: Counters = field(default_factory=dict[tuple[int, str, str], np.ndarray])

    @cached_property
    def races(self) -> Races:
        """The order of the accesses to tensors that are written in place."""
        return Races({t.name: self.shape(t.name) for t in self.program.tensors}, self._in_place)

    @property
    def _in_place(self) -> bool:
        return any(t.in_place for t in self.program.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.number(n) for n in self.program.tensor(name).shape)

    def dtype_of(self, name: str) -> str:
        tensor = self.program.tensor(name)
        return "i32" if tensor.space == "table" else tensor.dtype or self.dtype

    def number(self, expr: Scalar) -> int:
        return extent(expr, self.numbers, self.ranks)

    def fill(
        self, inputs: Sequence[Mapping[str, torch.Tensor]], kept: Sequence[Mapping[str, torch.Tensor]] | None = None
    ) -> None:
        """Allocate every rank's tensors: copies of the inputs, as far as they are given, and of what is kept.

        What is not kept yet is 0. The rest is NaN, or -1.
        """
        self.memory = [
            {
                t.name: self._cells(t, (left if t.space == "kept" else given).get(t.name), rank)
                for t in self.program.tensors
                if self.has(rank, t)
            }
            for rank, (given, left) in enumerate(zip(inputs, kept or [{} for _ in inputs], strict=True))
        ]
        for rank in range(self.ranks):
            present = [t for t in self.program.tensors if self.has(rank, t)]
            check_promises(present, self.memory[rank], self.scope(rank))
            for name, mask in self._masks(rank, "in").items():
                cells = self.memory[rank][name]
                cells[~mask] = torch.nan if cells.dtype.is_floating_point else -1

    def has(self, rank: int, tensor: Tensor) -> bool:
        """True if a rank has a tensor: it is in the group whose ranks have it, if there is one."""
        if tensor.on is None:
            return True
        group = self.program.group(tensor.on)
        return self.number(group.start) <= rank < self.number(group.stop)

    def require_there(self, rank: int, name: str, what: str, location: Location | None, who: object) -> None:
        """Raise CoverageError if a rank does not have a tensor."""
        tensor = self.program.tensor(name)
        if not self.has(rank, tensor):
            message = f"{who} {what} on rank {rank}, and {tensor.on} alone has {name}"
            hint = f"a stage of the group, or a rank of it: @ {tensor.on}[i]"
            raise CoverageError(message, location=location, related=tensor.location, hint=hint)

    def _cells(self, tensor: Tensor, given: torch.Tensor | None, rank: int) -> torch.Tensor:
        shape = self.shape(tensor.name)
        kind = DTYPES[self.dtype_of(tensor.name)]
        if given is None and (tensor.is_given or tensor.known_early):
            hint = f"give it as inputs[{rank}][{tensor.name!r}], of shape {list(shape)}"
            raise BindingError(f"rank {rank} has no {tensor.name}", location=tensor.location, hint=hint)
        if given is None and tensor.space == "kept":
            return torch.zeros(shape, dtype=kind)
        if given is None:
            return torch.full(shape, torch.nan if kind.is_floating_point else -1, dtype=torch.float32).to(kind)
        if tuple(given.shape) != shape:
            message = f"{tensor.name} of rank {rank} has shape {list(given.shape)}, not {list(shape)}"
            raise BindingError(message, location=tensor.location, hint="shapes are those of one rank")
        return given.detach().cpu().to(kind, copy=True)

    def scope(self, rank: int, who: object = "") -> Scope:
        """Return the values of a rank: its number, the parameters, and entries of its index tensors."""
        return Scope(
            rank=rank,
            ranks=self.ranks,
            numbers=self.numbers,
            dims=self._index_tensors,
            fetch=lambda lookup, where: self.fetch(rank, lookup, where, who),
            who=who,
        )

    @cached_property
    def _index_tensors(self) -> dict[str, tuple[Scalar, ...]]:
        return {t.name: t.shape for t in self.program.tensors if t.bound is not None}

    def fetch(self, rank: int, lookup: Lookup, where: Where, who: object) -> np.ndarray:
        """Return entries of an index tensor of a rank, those that a stage writes clamped to the bound.

        Raises _Unwritten or CoverageError as a read does.
        """
        tensor = self.program.tensor(lookup.table)
        self.require_there(rank, tensor.name, f"looks up {print_scalar(lookup)}", lookup.location, who)
        entries = self.memory[rank][tensor.name].numpy()[where]
        if tensor.space in ("in", "table") or tensor.bound is None:
            return entries  # within their bounds: that is checked before the launch
        self.require_written(rank, tensor.name, where, f"looks up {print_scalar(lookup)}", lookup.location, who)
        return np.clip(entries, 0, self.largest[tensor.name])

    @cached_property
    def largest(self) -> dict[str, int]:
        """index tensor -> the largest of its entries where they serve as integers, below the largest of its bounds."""
        found: dict[str, int] = {}

        def fetch(lookup: Lookup, _: Where) -> np.ndarray:
            return np.array(found[lookup.table])

        for tensor in self.program.tensors:
            if tensor.bound is not None:
                scope = replace(self.scope(0), fetch=fetch)
                end = int(replace(scope, coordinates=(0,) * len(tensor.shape)).value(tensor.bound))
                found[tensor.name] = max(0, end - 1)
        return found

    def check_computed(self) -> None:
        """Raise CoverageError if an index tensor that stages have written breaks a promise of its declaration."""
        for rank, memory in enumerate(self.memory):
            index = [t for t in self.program.tensors if t.name in self._index_tensors and self.has(rank, t)]
            raw = {t.name: memory[t.name].numpy().astype(np.int64) for t in index}
            entries = {name: np.clip(values, 0, self.largest[name]) for name, values in raw.items()}
            given = {t.name for t in index if t.is_given or t.known_early}
            written = {
                name: values >= 0 if name in given else self.counters(self.arrived, rank, name, WRITES) > 0
                for name, values in raw.items()
            }
            check_computed(index, entries, written, self.scope(rank))

    def require_written(
        self, rank: int, name: str, where: tuple[Any, ...], what: str, location: Location | None, who: object
    ) -> None:
        """Raise _Unwritten for elements that have not been written yet, CoverageError if no task ever writes some."""
        if not (self.counters(self.expected, rank, name, WRITES)[where] > 0).all():
            message, hint = f"{who} {what}, parts of which no stage writes", "write it, or read less of it"
            raise CoverageError(message, location=location, hint=hint)
        what += ", before it is written"
        need = _Need(rank=rank, tensor=name, kind=WRITES, where=where, what=what, location=location)
        if not self.satisfied(need):
            raise _Unwritten(need)

    def walkers(self) -> Iterator[_Walker]:
        """Yield a walker for each task of each rank."""
        for rank in range(self.ranks):
            for stage in self.program.stages:
                walker = _Walker(machine=self, stage=stage, typing=self.typing.stage(stage.name), rank=rank)
                yield from (replace(one, seen=Seen()) for one in walker.over(stage.indices))

    def counters(self, table: Counters, rank: int, name: str, kind: str) -> np.ndarray:
        key = (rank, name, kind)
        if key not in table:
            table[key] = np.zeros(self.shape(name), np.int64)
        return table[key]

    def count(self) -> None:
        """Count the notifies of each element in advance, and mark all elements that a task may write.

        A launch decides about no notify, and so about no wait. It may decide about writes, which are counted as they
        happen; those in parts and at places that it decides may be any within the dimension.
        """
        for walker in self.walkers():
            walker.count(walker.stage.body)

    def defined(self, rank: int) -> dict[str, torch.Tensor]:
        """Return the masks of the defined elements, of the outputs that are declared to be defined in part."""
        return self._masks(rank, "out")

    def _masks(self, rank: int, space: str) -> dict[str, torch.Tensor]:
        """Return the masks of the elements that are defined or given, of tensors that are so in part."""
        masks: dict[str, torch.Tensor] = {}
        for tensor in self.program.tensors:
            if not tensor.defined or tensor.space != space or not self.has(rank, tensor):
                continue
            shape = self.shape(tensor.name)
            mask = masks[tensor.name] = torch.ones(shape, dtype=torch.bool)
            scope = self.scope(rank, f"{tensor.name} of rank {rank}")
            for dim, end in enumerate(tensor.defined):
                for before in np.ndindex(shape[:dim]) if end is not None else ():
                    try:
                        stop = int(replace(scope, coordinates=before).value(end)) if end is not None else 0
                    except _Unwritten as unwritten:
                        message = f"{scope.who} is defined up to an entry that no stage writes in this launch"
                        hint = f"{unwritten.need.tensor} is written in every launch"
                        raise CoverageError(message, location=tensor.location, hint=hint) from None
                    mask[(*before, slice(max(0, stop), None))] = False
        return masks

    def check_outputs(self, masks: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Raise CoverageError for a defined element of an output that is not written exactly once, or another twice."""
        for tensor, rank in product((t for t in self.program.tensors if t.space == "out"), range(self.ranks)):
            if not self.has(rank, tensor):
                continue
            times = self.counters(self.arrived, rank, tensor.name, WRITES)
            mask = masks[rank][tensor.name].numpy() if tensor.name in masks[rank] else True
            for wrong in np.argwhere((times > 1) | ((times == 0) & mask))[:1]:
                count = int(times[tuple(wrong)])
                state = f"written {count} times" if count else "never written"
                message = f"{tensor.name}{wrong.tolist()} of rank {rank} is {state}"
                hint = "every element of an output is written exactly once"
                raise CoverageError(message, location=tensor.location, hint=hint)

    def go(self) -> None:
        """Run all tasks to their end, resuming blocked tasks in turn. Raises ProgressError if none can continue."""
        pending = [(walker, walker.task()) for walker in self.walkers()]
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
    left = {name for walker, _ in blocked for name in _written(walker.stage.body)}
    for walker, need in blocked:
        if need.kind == WRITES and need.tensor not in left:
            what = need.what.replace(", before it is written", ", parts of which no stage writes in this launch")
            hint = f"read as much of {need.tensor} as is written: by a range with the same end, or bounded entries"
            raise CoverageError(f"{walker} {what}", location=need.location, hint=hint)
    lines = [f"{w} {need.what}" for w, need in blocked]
    rest = [f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    message = "no task can go on:\n    " + "\n    ".join(lines[:LISTED] + rest)
    hint = "each waits for a notify or for data that another blocked task provides only later"
    raise ProgressError(message, location=blocked[0][1].location, hint=hint)


def _written(body: tuple[Statement, ...]) -> set[str]:
    """Return the tensors that a body writes."""
    names: set[str] = set()
    for statement in body:
        match statement:
            case Store(region=region) | Transfer(target=region):
                names.add(region.tensor)
            case If(then=then, orelse=orelse):
                names |= _written((*then, *orelse))
            case For(body=inner):
                names |= _written(inner)
            case _:
                pass
    return names


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
class _Walker:
    """One task, or one iteration of a loop in it, with the values of its indices and names.

    values: numbers of indices; that of a counted range is a step from its start until the range is entered. parts: the
    elements of the tiles of other indices. there: False beyond the end of a counted range, where a task only signals.
    decided: False where a launch decides whether a statement is executed, or how often. seen: the accesses that come
    before what the task does next.
    """

    machine: _Machine
    stage: Stage
    typing: StageTyping
    rank: int
    values: dict[str, int] = field(default_factory=dict[str, int])
    parts: dict[str, slice] = field(default_factory=dict[str, slice])
    there: bool = True
    decided: bool = True
    locals: dict[str, Any] = field(default_factory=dict[str, Any])
    seen: Seen = field(default_factory=Seen)

    def over(self, indices: tuple[IndexDecl, ...]) -> Iterator[_Walker]:
        """Yield a walker without names for each point: number indices run over their extent, others have one tile."""
        sizes = [self._size(d) if d.name in self.typing.scalar_indices else 1 for d in indices]
        decided = self.decided and not any(d.counted for d in indices)
        whole = {d.name: slice(0, self._size(d)) for d in indices if d.name not in self.typing.scalar_indices}
        for point in product(*(range(n) for n in sizes)):
            named = {d.name: p for d, p in zip(indices, point, strict=True) if d.name not in whole}
            yield replace(
                self, values={**self.values, **named}, parts={**self.parts, **whole}, decided=decided, locals={}
            )

    def _size(self, index: IndexDecl) -> int:
        return max(0, self.machine.number(index.extent))

    def enter(self, indices: tuple[IndexDecl, ...]) -> None:
        """Read the ends of counted ranges. Raises _Unwritten if an entry has not been written yet."""
        values, parts = dict(self.values), dict(self.parts)
        for decl in (d for d in indices if d.counted):
            scope = replace(self._scope(), indices=values)
            start = max(0, int(scope.value(decl.start))) if decl.start is not None else 0
            stop = self._size(decl)
            stop = min(stop, int(scope.value(decl.stop))) if decl.stop is not None else stop
            if decl.name in values:
                values[decl.name] += start
                there = values[decl.name] < stop
            else:
                parts[decl.name] = slice(start, max(start, stop))
                there = start < stop
            if not there:
                self.there = False
                return  # further ranges may depend on an index that has no value
        self.values, self.parts = values, parts

    # Scalars and regions -------------------------------------------------------------------------------------

    def number(self, expr: Scalar) -> Any:
        """Return the value of an expression."""
        return self._scope().value(expr)

    def _scope(self) -> Scope:
        over_ranks = frozenset(n for n, d in self.typing.indices.items() if isinstance(d.extent, Ranks))
        scope = self.machine.scope(self.rank, self)
        return replace(scope, indices=self.values, over_ranks=over_ranks, part=self._part)

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
        return self.rank if region.rank is None else int(self.number(region.rank)) % self.machine.ranks

    def box(self, region: Region, verb: str) -> boxes.Parts:
        """Return the box of elements that a region names. Raises CoverageError if some of them do not exist."""
        if not self._placed(region.rank):
            what = f"{verb} {print_region(region)}"
            self.machine.require_there(self.owner(region), region.tensor, what, region.location, self)
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
        if isinstance(coord, Block):
            start = int(self.number(coord.start))
            return slice(start, start + self.machine.number(coord.size))
        if isinstance(coord, Lookup) and (along_table(coord) or self._lists(coord)):
            rows = self._scope().entry(coord).ravel()
            return rows % self.machine.ranks if over_ranks else rows
        if (part := self._part(coord)) is not None:
            return part
        value = int(self.number(coord))
        return value % self.machine.ranks if over_ranks else value

    def _lists(self, lookup: Lookup) -> bool:
        """True if a look-up has an entry for each element of a tile."""
        numbers = self.typing.scalar_indices
        return any(isinstance(c, Scalar) and tile(c, numbers) is not None for c in lookup.coords)

    def _placed(self, coord: Scalar | Whole | None) -> bool:
        """True if only a launch decides the value of a coordinate, or where its tile begins."""
        if coord is None or isinstance(coord, Whole):
            return False
        declared = self.typing.indices
        return at_launch(coord) or any(declared[name].start is not None for name in indices_of(coord))

    def read(self, region: Region) -> torch.Tensor:
        """Return a copy of a region. Raises _Unwritten if an element has not been written yet.

        Raises CoverageError if no task writes some of its elements.
        """
        rank, parts, machine = self.owner(region), self.box(region, "reads"), self.machine
        machine.require_there(rank, region.tensor, f"reads {print_region(region)}", region.location, self)
        tensor = machine.program.tensor(region.tensor)
        if not tensor.is_given and not tensor.known_early and not tensor.in_place:
            what = f"reads {print_region(region)}" + (f" of rank {rank}" if rank != self.rank else "")
            machine.require_written(rank, region.tensor, boxes.index(parts), what, region.location, self)
        if tensor.in_place:
            self._ordered(machine.races.read(self.seen, rank, tensor.name, boxes.index(parts)), "reads", region)
        return boxes.read(machine.memory[rank][region.tensor], parts)

    def write(self, region: Region, value: torch.Tensor) -> None:
        if self.machine.program.tensor(region.tensor).in_place:
            where = boxes.index(self.box(region, "writes"))
            ordered = self.machine.races.write(self.seen, self.owner(region), region.tensor, where)
            self._ordered(ordered, "writes", region)
        memory, dtype = self.machine.memory[self.owner(region)][region.tensor], self.machine.dtype_of(region.tensor)
        boxes.write(memory, self.box(region, "writes"), converted(value, dtype))
        self._mark(self.machine.arrived, WRITES, region, "writes")

    def add(self, region: Region, value: torch.Tensor) -> None:
        """Add a value to a region, to an element as often as it is named."""
        where = boxes.index(self.box(region, "adds to"))
        self._ordered(self.machine.races.add(self.seen, self.rank, region.tensor, where), "adds to", region)
        boxes.add(self.machine.memory[self.rank][region.tensor], self.box(region, "adds to"), value)
        self._mark(self.machine.arrived, WRITES, region, "adds to")

    def _ordered(self, ordered: bool, does: str, region: Region) -> None:
        """Raise OrderingError for an access of an element that another task accesses too, without an order."""
        if not ordered:
            message = (
                f"{self} {does} {print_region(region)}, and no signal orders this after what another task does there"
            )
            hint = "notify and wait: a read of what is written comes after the write, one of what was there before it"
            raise OrderingError(message, location=region.location, hint=hint)

    def _told(self, kind: str, region: Region) -> None:
        """Keep what a waiter for this notify knows."""
        where = boxes.index(self._whole().box(region, "notifies"))
        self.machine.races.told(self.seen, (self.owner(region), region.tensor, kind), where)

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
                    self._mark(self.machine.expected, kind, region, "notifies")
                case Store(region=region) | Transfer(target=region):
                    self._count_write(region)
                    if isinstance(statement, Transfer) and statement.signal is not None:
                        self._mark(self.machine.expected, statement.signal, region, "notifies")
                case If(condition=condition, then=then, orelse=orelse) if self._placed(condition):
                    for signal in _signals((*then, *orelse)):
                        verb = "waits for" if isinstance(signal, Wait) else "notifies"
                        message = f"{self} {verb} {print_region(signal.region)} in a branch that only a launch decides"
                        hint = "take the signal out: a counted range, (i: M[: n]), leaves out data and no signals"
                        raise AccountingError(message, location=signal.location, hint=hint)
                    replace(self, decided=False).count((*then, *orelse))
                case If(condition=condition, then=then, orelse=orelse):
                    self.count(then if self.number(condition) else orelse)
                case For(indices=indices, body=inner):
                    for walker in self.over(indices):
                        walker.count(inner)
                case _:
                    pass

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
            self._mark(self.machine.expected, WRITES, region, "writes")
            return
        dims, shape = self.machine.program.tensor(region.tensor).shape, self.machine.shape(region.tensor)
        parts: list[slice] = []
        for coord, size, dim in zip(region.coords, shape, dims, strict=True):
            part: boxes.Part = slice(0, size)
            if not self._placed(coord) and not (isinstance(coord, Lookup) and along_table(coord)):
                part = self._coordinate(coord, size, isinstance(dim, Ranks))
            first, last = (part.start, part.stop) if isinstance(part, slice) else (int(part), int(part) + 1)
            parts.append(slice(min(max(0, first), size), min(max(0, last), size)))
        anywhere = self._placed(region.rank)
        for rank in range(self.machine.ranks) if anywhere else (self.owner(region),):
            self.machine.counters(self.machine.expected, rank, region.tensor, WRITES)[tuple(parts)] += 1

    def _mark(self, table: Counters, kind: str, region: Region, verb: str) -> None:
        counters = self.machine.counters(table, self.owner(region), region.tensor, kind)
        np.add.at(counters, boxes.index(self.box(region, verb)), 1)  # a row of a table may name an element twice

    # Statements ----------------------------------------------------------------------------------------------

    def task(self) -> Task:
        """Run the task as a coroutine that yields each condition it waits for.

        The ends of its ranges are read once they are written, whether or not waits at its start order that.
        """
        yield from self._once_written(lambda: self.enter(self.stage.indices))
        yield from self._body(self.stage.body)

    def _body(self, body: tuple[Statement, ...]) -> Task:
        """Run statements; only the signals of those that are not there."""
        for statement in body:
            match statement:
                case Wait():
                    need = yield from self._once_written(lambda wait=statement: self._need(wait))
                    if need is not None:
                        yield need
                        key = (need.rank, need.tensor, need.kind)
                        self.machine.races.awaited(self.seen, key, need.where)
                case Notify(kind=kind, region=region):
                    self._told(kind, region)
                    self._whole()._mark(self.machine.arrived, kind, region, "notifies")
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

    def _once_written(self, attempt: Callable[[], T]) -> Generator[_Need, None, T]:
        """Return the result of an attempt once everything that it reads is written. A failed attempt has no effect."""
        while True:
            try:
                return attempt()
            except _Unwritten as unwritten:
                yield unwritten.need

    def _whole(self) -> _Walker:
        """Return this walker with whole tiles of counted ranges from 0 on: signals are for these."""
        declared = self.typing.indices
        whole = {n: slice(0, self._size(declared[n])) for n in self.parts if declared[n].start is None}
        return replace(self, parts={**self.parts, **whole})

    def _need(self, wait: Wait) -> _Need | None:
        region = wait.region
        if not self.there and any(map(self._placed, region.coords)):
            return None  # entries beyond the end of a range name nothing
        expected = self.machine.counters(self.machine.expected, self.rank, region.tensor, wait.kind)
        where = boxes.index(self._whole().box(region, "waits for"))
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
            case Store(region=region, value=value, adds=True):
                self.add(region, evaluator(value))
            case Store(region=region, value=value) | Transfer(target=region, source=value):
                self.write(region, evaluator(value))
                if isinstance(statement, Transfer) and statement.signal is not None:
                    self._told(statement.signal, region)
                    self._mark(self.machine.arrived, statement.signal, region, "notifies")
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
        return self.machine.number(axis.dim) if axis.dim is not None else 1

    def _positions(self, index: str) -> torch.Tensor:
        if index in self.typing.scalar_indices:
            return torch.tensor([self.values[index]])
        part = self.parts[index]
        return torch.arange(part.start, part.stop)
