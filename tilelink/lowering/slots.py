"""Slots: memory for fewer steps of a tensor than it has, and the credits that keep a slot until its step has been read.

It is a rewrite of the program, before anything has a number, like the change of a direction and after it: what it adds
are declarations and statements of the language, so binding lays out their counters, and all passes and rules see them.

before: comm gather(l: L, q: ranks, j: Ds):
            tile_push_data(weights[l, rank, j, :] @ q, shard[l, j, :])
            producer_tile_notify(weights[l, rank, j, :] @ q)
        compute layer(l: L, i: M, q: ranks, j: Ds):
            consumer_tile_wait(weights[l, q, j, :])
            y[l, q, i, j] = dot(x[i, :], weights[l, q, j, :].T)
after:  weights_free : symmetric [L, ranks] i32
        comm gather(l: L by 1, q: ranks, j: Ds):
            if l >= 2:
                consumer_tile_wait(weights_free[l - 2, q])
            tile_push_data(weights[l, rank, j, :] @ q, shard[l, j, :])
            producer_tile_notify(weights[l, rank, j, :] @ q)
        compute layer(l: L by 1, i: M, q: ranks, j: Ds):
            consumer_tile_wait(weights[l, q, j, :])
            y[l, q, i, j] = dot(x[i, :], weights[l, q, j, :].T)
            producer_tile_notify(weights_free[l, rank] @ q)

A wait is for signals of the own rank, so a reader sends its credit to the rank that wrote what it has read. That rank
follows from how the memory is written (`_Writer`): by its own rank, by a rank at a fixed distance (`@ (rank + 1)`), or
by the rank that a coordinate over the ranks names (`[..., rank, ...] @ q`).

The credits of a writer are counted for each step and for the coordinates over the ranks. How many reads there are is
counted by the plan, as for any signal. That the credits are enough is what the rule `steps` proves, of the program with
them; nothing is taken for granted because of this rewrite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilelink.errors import Location, ScheduleError, TileLinkError, TileSizeError
from tilelink.ir.parameters import Numbers
from tilelink.ir.program import (
    Apply,
    Cast,
    For,
    FromScalar,
    Full,
    If,
    IndexDecl,
    Literal,
    Local,
    Notify,
    Program,
    Read,
    Region,
    Stage,
    Statement,
    Store,
    Tensor,
    Transfer,
    Wait,
)
from tilelink.ir.scalar import (
    RANK,
    Binary,
    Compare,
    Env,
    Index,
    Int,
    Param,
    Rank,
    Ranks,
    Scalar,
    Whole,
    add,
    at_launch,
    binary,
    const,
    evaluate,
    indices_in,
    is_gather,
    walk,
)
from tilelink.ir.typing import Typing, infer
from tilelink.ir.visitor import all_indices, map_loops, reads, stage_regions, statements, value_of, values
from tilelink.lowering.bound import LeftOut
from tilelink.lowering.clauses.channel import dims_called
from tilelink.lowering.clauses.slots import SLOTS
from tilelink.lowering.transform import free_name, number_of
from tilelink.scheduling.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Slotted:
    """A program with its credits.

    steps: tensor -> (dimension of steps, slots). credits: tensor of credits -> the tensor whose slots they free.
    left_out: clauses of tensors that need none.
    """

    program: Program
    steps: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    credits: Mapping[str, str] = field(default_factory=dict[str, str])
    left_out: tuple[LeftOut, ...] = ()


def with_slots(program: Program, schedule: Schedule, numbers: Numbers, ranks: int) -> Slotted:
    """Return the program in which tensors have the slots that the schedule says. Raises what cannot have them."""
    made = Slotted(program=program)
    for part in schedule.tensors:
        for key, slots in part[SLOTS]:
            tensor = made.program.tensor(part.name)
            dims = dims_called(made.program, tensor, key)
            if not dims:  # with the other direction an index may run along no dimension
                message = f"slots({key}={slots}): {tensor.name} has no dimension {key!r}"
                hint = "name a dimension, or an index that runs along one"
                raise TileSizeError(message, location=part.at(f"slots.{key}"), hint=hint)
            if number_of(tensor.shape[dims[0]], numbers, ranks) <= slots:
                reason = "there are no more steps than slots"
                unneeded = LeftOut(clause=SLOTS.name, part=tensor.name, reason=reason)
                made = replace(made, left_out=(*made.left_out, unneeded))
                continue
            adding = _Adding(
                program=made.program, tensor=tensor, dim=dims[0], slots=slots,
                typing=infer(made.program), numbers=numbers, ranks=ranks,
                said=f"slots({key}={slots}) of {tensor.name}", location=part.at("slots"),
            )  # fmt: skip
            result, credits = adding.result()
            _check_types(result, adding)
            made = replace(
                made,
                program=result,
                steps={**made.steps, tensor.name: (dims[0], slots)},
                credits={**made.credits, **dict.fromkeys(credits, tensor.name)},
            )
    return made


ELEMENTWISE = (Read, Local, Literal, FromScalar, Apply, Cast, Full)
"""Values whose meaning depends on no axis by its position."""


def _check_types(program: Program, adding: _Adding) -> None:
    """Raise ScheduleError if a stage needs tiles of several steps."""
    try:
        infer(program)
    except TileLinkError as error:
        message = f"{adding.said}, of which a tile has one step: {error.message}"
        hint = "let the stages that access it have an index for the step alone, `by 1`"
        raise ScheduleError(message, location=adding.location, related=error.location, hint=hint) from None


Key = tuple[Scalar | None, tuple[Scalar | Whole, ...]]
"""The rank of a region (None for the own one), and its coordinates in the dimensions of credits."""


@dataclass(frozen=True, kw_only=True)
class _Writer:
    """The relation of the rank that writes a memory to the rank whose memory it is.

    axis: the dimension whose coordinate is the writer's rank, or None. distance: otherwise the rank whose memory it is
    less that of the writer.
    """

    axis: int | None = None
    distance: int = 0


@dataclass(kw_only=True)
class _Credits:
    """The tensor of the credits of a kind of writers. dims: the dimensions that it has of the tensor with slots."""

    writer: _Writer
    name: str
    dims: tuple[int, ...]


@dataclass(kw_only=True)
class _Adding:
    """Gives one tensor slots."""

    program: Program
    tensor: Tensor
    dim: int
    slots: int
    typing: Typing
    numbers: Numbers
    ranks: int
    said: str
    location: Location | None
    credits: list[_Credits] = field(default_factory=list[_Credits])

    def result(self) -> tuple[Program, list[str]]:
        """Return the program with credits, and the names of their tensors."""
        written = [region for stage in self.program.stages for region in self._written(stage)]
        read = [region for stage in self.program.stages for s in statements(stage.body) for region in self._read(s)]
        for region in (*written, *read):
            self._check_step(region)
        taken = {t.name for t in self.program.tensors} | {s.name for s in self.program.stages}
        taken |= {p.name for p in self.program.params}
        taken |= {d.name for stage in self.program.stages for d in all_indices(stage)}
        for writer in dict.fromkeys(self._writer(region) for region in written if not self._first(region)):
            name = free_name(f"{self.tensor.name}_free", taken)
            taken.add(name)
            dims = tuple(d for d in range(len(self.tensor.shape)) if self._counted(d, writer, (*written, *read)))
            self.credits.append(_Credits(writer=writer, name=name, dims=dims))
        stages = tuple(self._stage(stage) for stage in self.program.stages)
        tensors = (*self.program.tensors, *(self._tensor(one) for one in self.credits))
        return replace(self.program, stages=stages, tensors=tensors), [one.name for one in self.credits]

    # What is accessed --------------------------------------------------------------------------------------------

    def _written(self, stage: Stage) -> Iterator[Region]:
        for statement in statements(stage.body):
            yield from self._targets(statement)

    def _targets(self, statement: Statement) -> list[Region]:
        match statement:
            case Store(region=region) | Transfer(target=region) if region.tensor == self.tensor.name:
                return [region]
            case _:
                return []

    def _read(self, statement: Statement) -> list[Region]:
        value = value_of(statement)
        return [region for region in reads(value) if region.tensor == self.tensor.name] if value is not None else []

    def _check_step(self, region: Region) -> None:
        step = region.coords[self.dim]
        if not isinstance(step, Scalar) or is_gather(step) or at_launch(step):
            what = (
                "several steps at a time" if not isinstance(step, Scalar) or is_gather(step) else "a step of a launch"
            )
            hint = "a slot holds one step: name it with an index, a number or an expression of them"
            message = f"{self.said}, of which a statement accesses {what}"
            raise ScheduleError(message, location=self.location, related=region.location, hint=hint)

    def _first(self, region: Region) -> bool:
        """True if a region is of a step that is surely the first one in its slot."""
        step = region.coords[self.dim]
        return isinstance(step, Int) and step.value < self.slots

    def _writer(self, region: Region) -> _Writer:
        """Return how ranks write a region. Raises ScheduleError if a reader could not tell which rank it was."""
        rank = region.rank
        if rank is None or isinstance(rank, Rank):
            return _Writer()
        over_ranks = [d for d, n in enumerate(self.tensor.shape) if isinstance(n, Ranks) and d != self.dim]
        axis = next((d for d in over_ranks if isinstance(region.coords[d], Rank)), None)
        if axis is not None:
            return _Writer(axis=axis)
        distance = self._distance(rank)
        if distance is None:
            hint = "write `[..., rank, ...] @ p`, with the writer's rank as a coordinate, or `@ (rank + 1)`"
            message = f"{self.said}: who reads a step cannot tell which rank has written it"
            raise ScheduleError(message, location=self.location, related=region.location, hint=hint)
        return _Writer(distance=distance)

    def _distance(self, rank: Scalar) -> int | None:
        """Return how far an expression is from the own rank, if it is as far on all ranks."""
        if any(not isinstance(e, Rank | Ranks | Int | Param | Binary) for e in walk(rank)):
            return None
        env = Env(rank=0, ranks=self.ranks, params=self.numbers, indices={})
        found = {(int(evaluate(rank, replace(env, rank=r))) - r) % self.ranks for r in range(self.ranks)}
        return found.pop() if len(found) == 1 else None

    def _counted(self, dim: int, writer: _Writer, regions: Sequence[Region]) -> bool:
        """True if credits are counted apart along a dimension: of steps, and of ranks if accesses name one each."""
        if dim in (self.dim, writer.axis):
            return True
        coords = [region.coords[dim] for region in regions]
        single = all(isinstance(c, Scalar) and not is_gather(c) and not at_launch(c) for c in coords)
        return single and isinstance(self.tensor.shape[dim], Ranks)

    def _tensor(self, credits: _Credits) -> Tensor:
        return Tensor(
            name=credits.name,
            space=self.tensor.space,
            symmetric=self.tensor.symmetric,
            shape=tuple(self.tensor.shape[d] for d in credits.dims),
            dtype="i32",
            location=self.tensor.location,
        )

    # What is added -----------------------------------------------------------------------------------------------

    def _stage(self, stage: Stage) -> Stage:
        regions = [region for region in stage_regions(stage) if region.tensor == self.tensor.name]
        if not regions:
            return stage
        steps = [region.coords[self.dim] for region in regions]
        numbers = indices_in(*steps)
        self._check_axes(stage, numbers - self.typing.scalar_indices(stage.name))

        def marked(decl: IndexDecl) -> IndexDecl:
            return replace(decl, number=decl.number or decl.name in numbers)

        body = self._block(stage, map_loops(stage.body, marked), ())
        return replace(stage, indices=tuple(map(marked, stage.indices)), body=body)

    def _check_axes(self, stage: Stage, tiles: set[str]) -> None:
        """Raise ScheduleError if one element of each of these indices might change which axes a value has."""
        named = [value_of(statement) for statement in statements(stage.body)]
        for value in (node for one in named if one is not None for node in values(one)):
            if tiles and not isinstance(value, ELEMENTWISE):
                hint = f"say in the program that its tiles have one element: {min(tiles)}: ... by 1"
                message = f"{self.said}: {min(tiles)} of stage {stage.name} is a tile of several steps"
                raise ScheduleError(message, location=self.location, related=value.location, hint=hint)

    def _block(
        self, stage: Stage, body: tuple[Statement, ...], around: tuple[frozenset[str], ...]
    ) -> tuple[Statement, ...]:
        """Return a block with waits before what it writes and notifies after what it has read last.

        around: the indices of the loops that it is in.
        """
        last: dict[tuple[int, Key], int] = {}
        for number, statement in enumerate(body):
            for at, credits in enumerate(self.credits):
                for region in self._read_here(statement, around):
                    last[at, _key(region, credits.dims)] = number
        waited: set[tuple[int, Key]] = set()
        new: list[Statement] = []
        for number, statement in enumerate(body):
            for region in self._targets(statement):
                new += self._wait(region, waited)
            new.append(self._inside(stage, statement, around))
            for (at, key), place in last.items():
                if place == number:
                    new += self._notifies(stage, self.credits[at], key, statement.location)
        return tuple(new)

    def _inside(self, stage: Stage, statement: Statement, around: tuple[frozenset[str], ...]) -> Statement:
        match statement:
            case If(then=then, orelse=orelse):
                return replace(
                    statement, then=self._block(stage, then, around), orelse=self._block(stage, orelse, around)
                )
            case For(indices=indices, body=body):
                names = frozenset(d.name for d in indices)
                return replace(statement, body=self._block(stage, body, (*around, names)))
            case _:
                return statement

    def _read_here(self, statement: Statement, around: tuple[frozenset[str], ...]) -> Iterator[Region]:
        """Yield the regions of whose reads this statement is one, for a notify in the block that it stands in.

        What is read in a loop that has nothing to do with the step is read when the loop has ended.
        """
        if isinstance(statement, If):
            return
        for region, loops in self._reads_inside(statement, ()):
            kept = self._indices(region)
            outside = not around or bool(around[-1] & kept)
            if outside and not any(loop & kept for loop in loops):
                yield region

    def _reads_inside(
        self, statement: Statement, loops: tuple[frozenset[str], ...]
    ) -> Iterator[tuple[Region, tuple[frozenset[str], ...]]]:
        """Yield the regions that a statement reads, each with the indices of the loops in it."""
        match statement:
            case If(then=then, orelse=orelse):
                for one in (*then, *orelse):
                    yield from self._reads_inside(one, loops)
            case For(indices=indices, body=body):
                for one in body:
                    yield from self._reads_inside(one, (*loops, frozenset(d.name for d in indices)))
            case _:
                yield from ((region, loops) for region in self._read(statement))

    def _indices(self, region: Region) -> frozenset[str]:
        """Return the indices that the credits of a region name."""
        keys = [_key(region, credits.dims) for credits in self.credits]
        return frozenset(indices_in(*(one for rank, coords in keys for one in (rank, *coords))))

    def _wait(self, region: Region, waited: set[tuple[int, Key]]) -> list[Statement]:
        """Return the wait for the credits of the step that a region's slot held before."""
        if self._first(region):
            return []
        at = next(n for n, one in enumerate(self.credits) if one.writer == self._writer(region))
        credits = self.credits[at]
        key = _key(region, credits.dims)
        if (at, key) in waited:
            return []
        step = region.coords[self.dim]
        assert isinstance(step, Scalar)
        waited.add((at, key))
        coords = list(region.coords)
        coords[self.dim] = binary("-", step, const(self.slots))
        if credits.writer.axis is not None and region.rank is not None:
            coords[credits.writer.axis] = region.rank
        location = self._place(credits, coords, None, region.location)
        wait = Wait(kind="tile", region=location, location=region.location)
        if isinstance(step, Int):
            return [wait]
        free = Compare(op=">=", left=step, right=const(self.slots), location=region.location)
        return [If(condition=free, then=(wait,), location=region.location)]

    def _notifies(self, stage: Stage, credits: _Credits, key: Key, location: Location | None) -> list[Statement]:
        """Return the notifies of the ranks that wrote what a stage has read."""
        rank, kept = key
        memory = RANK if rank is None else rank
        coords: list[Scalar | Whole] = [Whole() for _ in self.tensor.shape]
        for dim, coord in zip(credits.dims, kept, strict=True):
            coords[dim] = coord
        axis = credits.writer.axis
        if axis is None:
            distance = credits.writer.distance
            to = rank if distance == 0 else add(memory, const(self.ranks - distance))
            return [Notify(kind="tile", region=self._place(credits, coords, to, location), location=location)]
        writer = coords[axis]
        loop: IndexDecl | None = None
        if isinstance(writer, Whole):
            taken = {d.name for d in all_indices(stage)} | {t.name for t in self.program.tensors}
            loop = IndexDecl(name=free_name("writer", taken), extent=Ranks())
            writer = Index(name=loop.name)
        elif is_gather(writer) or at_launch(writer):
            message = f"{self.said}: which ranks have written what is read here is not known before"
            hint = "read what one rank has written, or all of it: an index over the ranks, or `:`"
            raise ScheduleError(message, location=self.location, related=location, hint=hint)
        coords[axis] = memory
        notify = Notify(kind="tile", region=self._place(credits, coords, writer, location), location=location)
        return [notify if loop is None else For(indices=(loop,), body=(notify,), location=location)]

    def _place(
        self, credits: _Credits, coords: Sequence[Scalar | Whole], rank: Scalar | None, location: Location | None
    ) -> Region:
        return Region(
            tensor=credits.name,
            coords=tuple(coords[d] for d in credits.dims),
            rank=rank if self.tensor.symmetric else None,
            location=location,
        )


def _key(region: Region, dims: tuple[int, ...]) -> Key:
    return region.rank, tuple(region.coords[d] for d in dims)
