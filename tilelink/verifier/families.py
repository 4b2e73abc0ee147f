"""Order of reads after writes, asked once for each pair of statements: for all of their tiles, iterations and ranks.

A family is a statement of the lowered program with the rank, the tile and the iterations of its loops as symbols. Each
side of a question has its own. An element x that both name is in both boxes, on one rank. The reasons are

* *signals*: the writer's task notifies a channel after the write, and the reader's task waits for that channel before
  the read. The wait lasts until all notifies of the channel have arrived (accounting), so that of the writer has. Asked
  first is the channel of x, of each side alone; then whether any channel is one that both sides signal. Signals order
  accesses under every schedule.
* *place*: as signals, where entries of index tensors say what the reader names, and it has waited for the channels of
  what the same entries name (awaited.py). Such a wait is no meeting of threads, so this is no reason in one kernel.
* *word*: the tensor travels by words of data and flag, the write is a send of them, and the read lasts until the words
  of what it reads have come (words.py).
* *own task*: one task makes both, the write before the read, and its threads meet in between. Of a tensor that is
  written in place the read may be before the write, or load what its own statement stores.
* *earlier kernel*: both tasks are of one rank, and the writer's kernel is before the reader's one on a stream. That is
  a reason for reads of tensors that are not written in place, in the schedule at hand.
* *same tile*: both stages are in one loop of a kernel, so that one program executes them for the tiles of one number,
  the writer's stage first, and both tiles have the same number; its threads meet in between. It is a reason as the last
  one is, and not where a launch or roles decide who executes what.
* *apart*: no tile of the one statement names an element that a tile of the other one names.

A task may notify, or wait for, the channel in a loop of its own. Which iteration that is, is then said by a witness:
the iteration with the number that the access has in a loop of that name, the one in whose tile x is, or the one in
which the rank of the notify is that of the wait. Any number is a witness: that there is such an iteration is asked too.

Two accesses of one program need its threads to meet in between as well (threads.py). They do where signals are the
reason: the reader's wait is between them, for a program that waits before it has notified does so for ever (progress).
Kernels that come one after the other have different programs.

An entry of an index tensor is read by the statement that names it: as a coordinate, in a condition, or as the end of a
range.

A question is refuted by `tilelink/facts`, or it is not decided: then the pairs of accesses are asked one by one. It has
no entries of index tensors, since nothing is taken to be known of them here: what they give of an access only makes its
box smaller. A wait that they decide about is a reason for what has the same coordinates, no matter what entries are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilelink.facts.encode import Encoder
from tilelink.facts.linear import ONE, All, Formula, Sum, at_least, either, equal, less, negated, refuted
from tilelink.ir.intervals import Bounds, Range
from tilelink.ir.mapping import ChannelGrid, Span, TileMap
from tilelink.ir.program import Barrier, For, If, IndexDecl, Notify, Read, Region, Statement, Store, Transfer, Wait
from tilelink.ir.scalar import (
    Binary,
    Index,
    Int,
    Lookup,
    Rank,
    Scalar,
    Whole,
    add,
    at_launch,
    binary,
    const,
    indices_in,
    mul,
    rewrite,
    walk,
)
from tilelink.ir.visitor import leading_waits, mixes, on_ranks, own_scalars, range_ends, reads, value_of, values
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor, KernelKind
from tilelink.lowering.events import READ, WRITE
from tilelink.lowering.orders import TILE
from tilelink.planning.any_program import assigns_in_launch
from tilelink.planning.plan import Plan

APART, SIGNALS, WORD, PLACE, OWN = "apart", "signals", "word", "place", "own task"
EARLIER, SAME_TILE = "earlier kernel", "same tile"
BY_PROGRAM = (APART, SIGNALS, WORD, PLACE, OWN)
"""The reasons that are true under every schedule, the strongest one first."""
REASONS = (*BY_PROGRAM, EARLIER, SAME_TILE)
MAX_WITNESSES = 4
"""Iterations of other loops that are tried for a signal, at most."""
MAX_TURNS = 3
"""Values of a quotient that are told apart, at most."""


class Pair(NamedTuple):
    """A statement that writes a tensor and one that reads it, by their numbers in the plan."""

    tensor: str
    write: int
    read: int


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """A loop around a statement. number: of the loop among the statements of the plan."""

    number: int
    indices: tuple[IndexDecl, ...]


@dataclass(frozen=True, kw_only=True)
class _Branch:
    """A branch around a statement. number: of its `if`."""

    number: int
    condition: Scalar
    holds: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class _Place:
    """A statement in the body of a stage.

    address: its place in each block around it, outermost first. around: the loops and branches between these blocks.
    """

    stage: BoundStage
    number: int
    statement: Statement
    address: tuple[int, ...]
    around: tuple[_Loop | _Branch, ...]

    def before(self, other: _Place) -> bool:
        """True if it comes before another statement of its stage in each iteration of the loops around both."""
        shared = self.shared(other)
        own, theirs = self.around[shared:], other.around[shared:]
        if own and theirs and isinstance(own[0], _Branch) and own[0].number == theirs[0].number:
            return False  # two branches of one condition
        return self.address[shared] < other.address[shared]

    def shared(self, other: _Place) -> int:
        """Return how many of the outermost loops and branches are around both."""
        pairs = enumerate(zip(self.around, other.around, strict=False))
        return next((n for n, (one, two) in pairs if one != two), min(len(self.around), len(other.around)))


class Families:
    """The answers about the pairs of statements of a plan that write and read one tensor.

    without: the numbers of waits that are taken for none. whole: the program that is asked, if that of the plan has
    some blocks of it, or there is no plan.
    """

    def __init__(self, plan: Plan | None, without: Collection[int] = (), whole: Bound | None = None) -> None:
        if whole is None:
            assert plan is not None
            whole = plan.bound
        self._plan, self._bound, self._without = plan, whole, frozenset(without)
        self._kernels = self._bound.kernel_of

    def after(self, reasons: Iterable[str]) -> NDArray[np.bool_]:
        """Mask of the accesses that are reads which come after all writes of their elements, for some of the reasons.

        It is True only of reads of statements of which every pair has an answer.
        """
        assert self._plan is not None
        a, allowed = self._plan.accesses, frozenset(reasons)
        good: dict[tuple[str, int], bool] = {}
        for pair, reason in self.answers.items():
            key = pair.tensor, pair.read
            good[key] = good.get(key, True) and reason in allowed
        proved = np.zeros((len(self._plan.statements), len(self._bound.tensors)), bool)
        for (tensor, read), holds in good.items():
            proved[read, self._bound.tensors[tensor].number] = holds
        return proved[a.statement, a.tensor] & (a.kind == READ)

    @cached_property
    def settled(self) -> NDArray[np.bool_]:
        """Mask of the accesses that are reads after all writes of their elements, for any of the reasons."""
        return self.after(REASONS)

    @cached_property
    def answers(self) -> Mapping[Pair, str | None]:
        """Pair -> the reason why each read comes after each write of its elements; None if that is not decided."""
        result: dict[Pair, str | None] = {}
        for tensor in self._bound.tensors.values():
            if tensor.decl.space not in ("in", "table"):
                writes, read = (self._of(tensor.name, kind) for kind in (WRITE, READ))
                for one, other in product(writes, read):
                    key = Pair(tensor=tensor.name, write=one.place.number, read=other.place.number)
                    result[key] = self._weaker(result.get(key, APART), self._reason(tensor, one, other))
        return result

    @staticmethod
    def _weaker(one: str | None, other: str | None) -> str | None:
        """Return the reason for both of two accesses of a statement to one tensor."""
        return max(one, other, key=(*REASONS, None).index)

    def _reason(self, tensor: BoundTensor, write: _Access, read: _Access) -> str | None:
        if self._bound.nodes > 1:
            return None
        if tensor.packed:
            return WORD if self._by_word(write, read) else None
        if self._meet_nowhere(tensor, write, read):
            return APART
        grids = [(key, grid) for key, grid in self._bound.channels.items() if not self._bound.tensors[key[0]].packed]
        if any(key[0] == tensor.name and self._notifies(tensor, grid, write, read) for key, grid in grids):
            return SIGNALS
        if any(self._common(tensor, grid, write, read) for _, grid in grids):
            return SIGNALS
        if any(key[0] == tensor.name and self._at_place(tensor, grid, write, read) for key, grid in grids):
            return PLACE
        if self._in_task(tensor, write, read):
            return OWN
        if not tensor.decl.in_place and self._in_line(tensor, write, read):
            return EARLIER
        if not tensor.decl.in_place and self._in_tile(tensor, write, read):
            return SAME_TILE
        return None

    @staticmethod
    def _by_word(write: _Access, read: _Access) -> bool:
        """True if words carry what is written, and the read lasts until those of what it reads have come."""
        match write.place.statement:
            case Transfer(mode="send", signal=str(signal)):
                return read.region.rank is None and read.signal == signal
            case _:
                return False

    def _meet_nowhere(self, tensor: BoundTensor, write: _Access, read: _Access) -> bool:
        question = _Question(self._bound, tensor)
        return question.refutes([*question.domain(write), *question.domain(read)])

    def _in_line(self, tensor: BoundTensor, write: _Access, read: _Access) -> bool:
        """True if kernels that run one after the other make both accesses, on one rank."""
        one, other = (self._kernels[access.place.stage.name] for access in (write, read))
        if one.stream != other.stream or one.position >= other.position or one.own_copies_first:
            return False
        question = _Question(self._bound, tensor)
        known = [*question.domain(write), *question.domain(read)]
        return question.refutes([*known, negated(question.same_rank())])

    def _in_task(self, tensor: BoundTensor, write: _Access, read: _Access) -> bool:
        """True if one task makes both accesses, in this order or, in place, in any, and its threads meet in between."""
        one, other = write.place, read.place
        if one.stage is not other.stage or self._kernels[one.stage.name].on_copy_engine:
            return False
        orders = [(write, read), (read, write)] if tensor.decl.in_place else [(write, read)]
        if any(self._met(*pair) and self._ordered(tensor, *pair) for pair in orders):
            return True
        value = value_of(one.statement)
        # one execution of a statement loads and stores an element in one thread
        if one is not other or not tensor.decl.in_place or tensor.decl.bound is not None:
            return False
        if value is None or mixes(value):
            return False
        question = _Question(self._bound, tensor, by_tile=True)
        known = [*question.domain(write), *question.domain(read)]
        same = [question.same_tile(), *(equal(*ends) for ends in question.iterations(write, read))]
        return question.refutes([*known, negated(All(tuple(same)))])

    def _ordered(self, tensor: BoundTensor, first: _Access, second: _Access) -> bool:
        """True if one task makes two accesses to an element, the first one before the second."""
        question = _Question(self._bound, tensor, by_tile=True)
        known, ends = [*question.domain(first), *question.domain(second)], question.iterations(first, second)
        # in the same iteration, or in an earlier one of the loops around both
        before = [All((*(equal(a, b) for a, b in ends[:n]), less(*ends[n]))) for n in range(len(ends))]
        if first.place.before(second.place):
            before.append(All(tuple(equal(a, b) for a, b in ends)))
        return question.refutes([*known, negated(All((question.same_tile(), either(before))))])

    def _met(self, first: _Access, second: _Access) -> bool:
        """True if the threads of a program meet between two accesses of it, if it makes the first one before the
        second: at a statement of the same iteration as the one or as the other."""
        one, other = first.place, second.place
        if not self._bound.many_threads:
            return True

        def around(meeting: _Place, access: _Place) -> bool:
            return meeting.shared(access) == len(meeting.around)

        if one.stage is not other.stage:
            after = any(around(at, one) and one.before(at) for at in self._meetings(one.stage))
            return after or any(around(at, other) and at.before(other) for at in self._meetings(other.stage))
        return any(
            one.before(at) and at.before(other) and (around(at, one) or around(at, other))
            for at in self._meetings(one.stage)
        )

    def _meetings(self, stage: BoundStage) -> Iterator[_Place]:
        """Yield the statements of a stage at which the threads of a program meet."""
        for place in self._places[stage.name]:
            match place.statement:
                case Barrier():
                    yield place
                case Wait() if place.number not in self._without and stage.name not in self._bound.compact_stages:
                    if not self._bound.is_placed(stage.name, place.statement):
                        yield place
                case _:
                    pass

    def _in_tile(self, tensor: BoundTensor, write: _Access, read: _Access) -> bool:
        """True if one program makes both accesses, in tiles of one number of two stages, the first one's first."""
        one, other = write.place.stage, read.place.stage
        kernel = self._kernels[one.name]
        loop = next((loop for loop in kernel.loops if {one.name, other.name} <= {*loop.stages}), None)
        if loop is None or kernel.on_copy_engine or assigns_in_launch(kernel) or not self._met(write, read):
            return False
        if KernelKind.ROLES in (one.kind, other.kind):
            return False
        question = _Question(self._bound, tensor, by_tile=True)
        known = [*question.domain(write), *question.domain(read)]
        in_order = loop.stages.index(one.name) < loop.stages.index(other.name)
        return in_order and question.refutes([*known, negated(question.same_tile())])

    def _notifies(self, tensor: BoundTensor, grid: ChannelGrid, write: _Access, read: _Access) -> bool:
        """True if the channel of each element that both access is notified after the write, and awaited before the
        read."""
        return all(
            self._known(tensor, grid, access, (access,)) or self._known(tensor, grid, access, (write, read))
            for access in (write, read)
        )

    def _at_place(self, tensor: BoundTensor, grid: ChannelGrid, write: _Access, read: _Access) -> bool:
        """True if the channel of each element is notified after the write, and the reader has waited at its place."""
        one, other = (self._kernels[access.place.stage.name] for access in (write, read))
        if one is other or not self._known(tensor, grid, write, (write,)):
            return False
        question = _Question(self._bound, tensor)
        domain = question.domain(read)
        missing = [
            negated(All(tuple(there)))
            for wait in self._placed(grid, read)
            for there in question.of_place(read, wait, grid)
        ]
        return bool(missing) and question.refutes([*domain, *missing])

    def _placed(self, grid: ChannelGrid, read: _Access) -> Iterator[_Place]:
        """Yield the waits at places before a read in its task, wherever the read is there."""
        own = read.place
        for place in self._places[own.stage.name]:
            match place.statement:
                case Wait(kind=kind, region=region) if (region.tensor, kind) == (grid.tensor, grid.kind):
                    always = place.shared(own) == len(place.around) and place.number not in self._without
                    if always and place.before(own) and self._bound.is_placed(own.stage.name, place.statement):
                        yield place
                case _:
                    pass

    def _known(self, tensor: BoundTensor, grid: ChannelGrid, access: _Access, known: tuple[_Access, ...]) -> bool:
        """True if a task has a signal for the channel of each element of an access. known: accesses of the element."""
        key = (grid, access, known)
        if key not in self._answers:
            question = _Question(self._bound, tensor)
            domain = [one for part in known for one in question.domain(part)]
            missing = [
                negated(All(tuple(there)))
                for signal in self._signals(grid, access)
                for there in question.of_channel(access, signal, grid)
            ]
            self._answers[key] = bool(missing) and question.refutes([*domain, *missing])
        return self._answers[key]

    def _common(self, tensor: BoundTensor, grid: ChannelGrid, write: _Access, read: _Access) -> bool:
        """True if the writer's task notifies a channel after the write for which the reader's waits before the read."""
        notifies, waits = [*self._signals(grid, write)], [*self._signals(grid, read)]
        if not notifies or not waits:
            return False
        question = _Question(self._bound, tensor)
        domain = [*question.domain(write), *question.domain(read)]
        missing = [
            negated(All(tuple(there)))
            for notify, wait in product(notifies, waits)
            for there in question.of_both((write, notify), (read, wait), grid)
        ]
        return bool(missing) and question.refutes([*domain, *missing])

    @cached_property
    def _answers(self) -> dict[tuple[ChannelGrid, _Access, tuple[_Access, ...]], bool]:
        return {}

    def _signals(self, grid: ChannelGrid, access: _Access) -> Iterator[_Place]:
        """Yield the notifies of a grid after a write, or the waits before a read, in its task."""
        own = access.place
        for place in self._places[own.stage.name]:
            if place.number in self._without:
                continue
            match place.statement:
                case Notify(kind=notified, region=region) if access.kind == WRITE:
                    good = own.before(place) and self._in_queue(own, place)
                case Wait(kind=notified, region=region) if access.kind == READ:
                    good = place.before(own) and not self._bound.is_placed(own.stage.name, place.statement)
                case _:
                    continue
            if good and (region.tensor, notified) == (grid.tensor, grid.kind):
                yield place

    def _in_queue(self, write: _Place, notify: _Place) -> bool:
        """True if a copy engine has a notify after a write, whatever copies overtake others in its queue.

        A notify overtakes them with the copy before it. So a copy in between has to overtake where the write does.
        """
        if not self._kernels[write.stage.name].own_copies_first:
            return True
        if write.around != notify.around:
            return False
        between = [
            place
            for place in self._places[write.stage.name]
            if place.around[: len(write.around)] == write.around
            and write.address[:-1] == place.address[: len(write.around)]
            and write.address[-1] < place.address[len(write.around)] < notify.address[-1]
        ]
        copies = [place.statement for place in between if isinstance(place.statement, Store | Transfer)]
        own = write.statement
        return isinstance(own, Store | Transfer) and all(_ranks(one) == _ranks(own) for one in copies)

    def _of(self, tensor: str, kind: int) -> list[_Access]:
        """Return the accesses of a kind to a tensor in the program."""
        return self._accesses.get((tensor, kind), [])

    @cached_property
    def _accesses(self) -> Mapping[tuple[str, int], list[_Access]]:
        found: dict[tuple[str, int], list[_Access]] = {}
        for place in (place for places in self._places.values() for place in places):
            for access in self._of_statement(place):
                found.setdefault((access.region.tensor, access.kind), []).append(access)
        return found

    def _of_statement(self, place: _Place) -> Iterator[_Access]:
        """Yield the accesses of a statement, and of what is looked up there."""
        statement = place.statement
        if isinstance(statement, Store | Transfer):
            region = statement.region if isinstance(statement, Store) else statement.target
            yield _Access(kind=WRITE, place=place, region=region)
        value = value_of(statement)
        for part in values(value) if value is not None else ():
            if isinstance(part, Read):
                yield _Access(kind=READ, place=place, region=part.region, signal=part.signal)
        exprs = own_scalars(statement)
        if place is self._entered.get(place.stage.name):
            exprs = [*exprs, *range_ends(place.stage.stage.indices)]
        for part in dict.fromkeys(part for expr in exprs for part in walk(expr)):
            if isinstance(part, Lookup) and part.table in self._bound.tensors:
                signal = next((kind for name, kind in self._bound.channels if name == part.table), None)
                region = Region(tensor=part.table, coords=part.coords, location=part.location)
                yield _Access(kind=READ, place=place, region=region, signal=signal)

    @cached_property
    def _entered(self) -> Mapping[str, _Place]:
        """stage -> the statement at which the ends of its own ranges are read (lowering/walk.py)."""
        found: dict[str, _Place] = {}
        for name, places in self._places.items():
            stage = self._bound.stages[name].stage
            first = (on_ranks(stage)[0] is not None) + leading_waits(stage)
            if places:
                found[name] = places[min(first, len(places) - 1)]
        return found

    @cached_property
    def _places(self) -> Mapping[str, Sequence[_Place]]:
        """stage -> its statements, in the order of their numbers."""
        found: dict[str, list[_Place]] = {}
        number = 0
        for stage in self._bound.stages.values():
            own = found.setdefault(stage.name, [])
            for address, around, statement in _walk(stage.stage.body, number):
                if self._plan is not None:
                    stated = self._plan.statements[number]
                    assert stated[0] == stage.name and type(stated[1]) is type(statement)
                place = _Place(stage=stage, number=number, statement=statement, address=address, around=around)
                own.append(place)
                number += 1
        return found


def _walk(
    body: tuple[Statement, ...],
    first: int,
    at: tuple[int, ...] = (),
    around: tuple[_Loop | _Branch, ...] = (),
) -> Iterator[tuple[tuple[int, ...], tuple[_Loop | _Branch, ...], Statement]]:
    """Yield the statements of a body with their addresses and what is around them. first: number of the first one."""
    for place, statement in enumerate(body):
        yield (*at, place), around, statement
        own, inner = first, list[tuple[tuple[Statement, ...], _Loop | _Branch]]()
        match statement:
            case If(condition=condition, then=then, orelse=orelse):
                for one, holds in ((then, True), (orelse, False)):
                    inner.append((one, _Branch(number=own, condition=condition, holds=holds)))
            case For(indices=indices, body=one):
                inner.append((one, _Loop(number=own, indices=indices)))
            case _:
                pass
        first += 1
        for one, frame in inner:
            for found in _walk(one, first, (*at, place), (*around, frame)):
                yield found
                first += 1


def _ranks(copy: Store | Transfer) -> set[Scalar | None]:
    """Return the ranks that a copy reads and writes: with the same ones, another copy is within a rank where it is."""
    target, source = (copy.region, copy.value) if isinstance(copy, Store) else (copy.target, copy.source)
    return {target.rank, *(region.rank for region in reads(source))}


@dataclass(frozen=True, eq=False)
class _Access:
    """A region that a statement reads or writes. signal: of a read of words, the kind of signals that it waits for."""

    kind: int
    place: _Place
    region: Region
    signal: str | None = None

    @property
    def side(self) -> str:
        return "writer" if self.kind == WRITE else "reader"


Names = Mapping[str, Scalar]
"""Index -> the symbol, or the witness, that stands for it."""


class _Question:
    """The formulas of one question: about an element x of a tensor, on one rank, that accesses name.

    by_tile: the indices of a tile are what the order of its stage makes of its number, which is then a symbol.
    """

    def __init__(self, bound: Bound, tensor: BoundTensor, *, by_tile: bool = False) -> None:
        self._bound, self._by_tile = bound, by_tile
        self._ranges: dict[str, Range] = {_on(): (0, bound.ranks - 1)}
        self._ranges |= {_along(dim): (0, max(0, extent - 1)) for dim, extent in enumerate(tensor.shape)}
        self._bounds = Bounds(ranks=bound.ranks, indices=self._ranges)
        self._encoder = Encoder(self._bounds, {})
        self._turns: dict[Scalar, Formula] = {}
        """Quotient with few values -> that it has one of them. A rank modulo their number has such a quotient."""

    def refutes(self, formulas: Iterable[Formula]) -> bool:
        """True if no integers satisfy some formulas."""
        every = (*formulas, *self._encoder.axioms)
        return refuted(All(every)) or (bool(self._turns) and refuted(All((*every, *self._turns.values()))))

    def domain(self, access: _Access) -> list[Formula]:
        """Return that an access names x: as far as no entry of an index tensor decides it."""
        names = self._names(access)
        tile_map = self._bound.tile_map(access.place.stage.name, access.region)
        found = [self._equal(tile_map.rank, names, Index(name=_on()))]
        for frame in access.place.around:
            if isinstance(frame, _Branch):
                found.append(self._truth(frame, names))
            elif not all(access.place.stage.count(decl.name) for decl in frame.indices):
                found.append(at_least({ONE: -1}, {}))  # a loop without iterations makes no access
        for dim, span in enumerate(tile_map.spans):
            found += self._inside(span, Index(name=_along(dim)), names)
        return [one for one in found if one is not None]

    def same_rank(self) -> Formula:
        """Return that both accesses are made by one rank."""
        return equal(*(self._sum(self._symbol(f"{side} rank")) for side in ("writer", "reader")))

    def same_tile(self) -> Formula:
        """Return that the tasks of both accesses, which are in their domains, are of one rank and have one number."""
        numbers = (self._sum(self._symbol(f"{side} tile")) for side in ("writer", "reader"))
        return All((self.same_rank(), equal(*numbers)))

    def iterations(self, one: _Access, other: _Access) -> list[tuple[Sum, Sum]]:
        """Return the numbers of the iterations of the loops around two accesses of one stage, outermost first."""
        around = one.place.around[: one.place.shared(other.place)]
        names = [decl.name for frame in around if isinstance(frame, _Loop) for decl in frame.indices]
        return [(self._sum(self._names(one)[name]), self._sum(self._names(other)[name])) for name in names]

    def of_channel(self, access: _Access, signal: _Place, grid: ChannelGrid) -> Iterator[list[Formula]]:
        """Yield what makes a signal one for the channel of x, for each witness that is tried."""
        tile_map = self._map(signal)
        for names, there in self._witnesses(access, signal):
            wanted: list[Formula | None] = [*there, self._equal(tile_map.rank, names, Index(name=_on()))]
            for dim, (span, size) in enumerate(zip(tile_map.channel_range(grid), grid.sizes, strict=True)):
                if grid.counts[dim] > 1:
                    channel = binary("//", Index(name=_along(dim)), const(size))
                    wanted += [self._most(span.low, channel, names), self._below(channel, span.high, names)]
            yield from _complete(wanted)

    def of_place(self, read: _Access, wait: _Place, grid: ChannelGrid) -> Iterator[list[Formula]]:
        """Yield what makes a wait one for the channel of x, which both name by the same entries."""
        tile_map, names = self._map(wait), self._names(read, wait.around)
        assert isinstance(wait.statement, Wait)
        region = wait.statement.region
        inner = {d.name for one in read.place.around[len(wait.around) :] if isinstance(one, _Loop) for d in one.indices}
        rank = self._equal(tile_map.rank, names, Index(name=_on()))
        wanted: list[Formula | None] = [rank if region.rank != read.region.rank or inner else All(())]
        for dim, (span, size) in enumerate(zip(tile_map.channel_range(grid), grid.sizes, strict=True)):
            coord, wanted_there = region.coords[dim], read.region.coords[dim]
            if coord == wanted_there and (isinstance(coord, Whole) or not inner & indices_in(coord)):
                continue  # what is named along this dimension is what was waited for
            if any(isinstance(one, Scalar) and at_launch(one) for one in (coord, wanted_there)):
                return  # of other entries nothing is known, whether or not they are of one channel
            if grid.counts[dim] > 1:
                channel = binary("//", Index(name=_along(dim)), const(size))
                wanted += [self._most(span.low, channel, names), self._below(channel, span.high, names)]
        yield from _complete(wanted)

    def of_both(
        self, write: tuple[_Access, _Place], read: tuple[_Access, _Place], grid: ChannelGrid
    ) -> Iterator[list[Formula]]:
        """Yield what makes a notify and a wait signals for one channel, for each pair of witnesses that is tried."""
        notified, awaited = self._map(write[1]), self._map(read[1])
        for own, there in self._witnesses(*read):
            rank = _named(awaited.rank, own)
            for names, here in self._witnesses(*write, rank) if rank is not None else ():
                assert rank is not None
                wanted: list[Formula | None] = [*there, *here, self._equal(notified.rank, names, rank)]
                ranges = zip(notified.channel_range(grid), awaited.channel_range(grid), grid.counts, strict=True)
                for one, other, count in ranges:
                    if count > 1:  # each range has a channel, and they overlap
                        ends = [(one.low, names, other.high, own), (other.low, own, one.high, names)]
                        ends += [(one.low, names, one.high, names), (other.low, own, other.high, own)]
                        wanted += [self._less(*pair) for pair in ends]
                yield from _complete(wanted)

    def _map(self, place: _Place) -> TileMap:
        assert isinstance(place.statement, Notify | Wait)
        return self._bound.tile_map(place.stage.name, place.statement.region)

    def _witnesses(
        self, access: _Access, signal: _Place, rank: Scalar | None = None
    ) -> Iterator[tuple[Names, list[Formula | None]]]:
        """Yield symbols and witnesses for a signal of an access's task, with what has to be true of them.

        rank: that which the signal is to have.
        """
        shared = access.place.shared(signal)
        own, names = self._names(access), self._names(access, access.place.around[:shared])
        free = [decl for frame in signal.around[shared:] if isinstance(frame, _Loop) for decl in frame.indices]
        if any(decl.counted for decl in free):
            return  # iterations that there need not be
        choices = [[*dict.fromkeys(self._candidates(decl.name, signal, own, names, rank))] for decl in free]
        for chosen in list(product(*choices))[:MAX_WITNESSES]:
            every = {**names, **{decl.name: one for decl, one in zip(free, chosen, strict=True)}}
            there: list[Formula | None] = []
            for decl, one in zip(free, chosen, strict=True):
                value, count = self._sum(one), signal.stage.count(decl.name)
                there += [at_least(value, {}), less(value, {ONE: count})]
            there += [self._truth(frame, every) for frame in signal.around[shared:] if isinstance(frame, _Branch)]
            yield every, there

    def _candidates(self, name: str, signal: _Place, own: Names, names: Names, rank: Scalar | None) -> Iterator[Scalar]:
        """Yield numbers of the iteration of a loop of a signal."""
        tile_map = self._map(signal)
        if name in own:
            yield own[name]
        if signal.stage.count(name) == 1:
            yield const(0)  # places do not name the index of the only iteration
        for dim, span in enumerate(tile_map.spans):
            step = signal.stage.tiles[name] if span.kind == "tile" else 1
            offset = _offset(span.start if span.kind == "tile" else span.named, name, step)
            if offset is not None and (begin := _named(offset, names)) is not None:
                yield binary("//", binary("-", Index(name=_along(dim)), begin), const(step))
        if rank is not None and Index(name=name) in walk(tile_map.rank):
            first = _named(tile_map.rank, {**names, name: const(0)})
            if first is not None:
                yield binary("%", binary("-", rank, first), const(self._bound.ranks))

    # Symbols -------------------------------------------------------------------------------------------------

    def _names(self, access: _Access, around: Sequence[_Loop | _Branch] | None = None) -> Names:
        """Return the symbols of the side of an access: of its rank, its tile and the iterations of loops around it."""
        stage, side = access.place.stage, access.side
        found: dict[str, Scalar] = {"": self._symbol(f"{side} rank", self._bound.ranks)}
        numbered = {**found, TILE.name: self._symbol(f"{side} tile", stage.total)} if self._by_tile else found
        for decl in stage.stage.indices:
            known = _named(stage.order[decl.name], numbered) if self._by_tile else None
            symbol = self._symbol(f"{side} tile {decl.name}", stage.count(decl.name))
            found[decl.name] = symbol if known is None else known
        for frame in access.place.around if around is None else around:
            if isinstance(frame, _Loop):
                for decl in frame.indices:
                    symbol = f"{side} loop {frame.number} {decl.name}"
                    found[decl.name] = self._symbol(symbol, stage.count(decl.name))
        return found

    def _sum(self, expr: Scalar) -> Sum:
        return self._encoder.sum(self._noted(expr))

    def _noted(self, expr: Scalar) -> Scalar:
        """Return an expression, after a note of its quotients with few values."""
        for part in walk(expr):
            match part:
                case Binary(op="//" | "%", left=left, right=Int(value=by) as right) if by > 0:
                    quotient = Binary(op="//", left=left, right=right)
                    low, high = self._bounds.of(quotient)
                    if 0 < high - low < MAX_TURNS and quotient not in self._turns:
                        value = self._encoder.sum(quotient)
                        self._turns[quotient] = either(equal(value, {ONE: one}) for one in range(low, high + 1))
                case _:
                    pass
        return expr

    def _symbol(self, name: str, count: int | None = None) -> Scalar:
        """Return a symbol, which is 0 or more and less than `count`."""
        if count is not None:
            self._ranges[name] = (0, max(0, count - 1))
        return Index(name=name)

    # Formulas; None for what an entry of an index tensor decides -----------------------------------------------

    def _inside(self, span: Span, x: Scalar, names: Names) -> list[Formula | None]:
        if span.kind in ("whole", "gather"):
            return []
        if span.kind == "point":
            return [self._equal(span.start, names, x)]
        ends = [add(span.start, const(span.size)), *([] if span.limit is None else [span.limit])]
        return [self._most(span.start, x, names), *(self._below(x, end, names) for end in ends)]

    def _truth(self, branch: _Branch, names: Names) -> Formula | None:
        condition = _named(branch.condition, names)
        if condition is None:
            return None
        truth = self._encoder.truth(self._noted(condition))
        return truth if branch.holds else negated(truth)

    def _equal(self, expr: Scalar, names: Names, value: Scalar) -> Formula | None:
        own = _named(expr, names)
        return None if own is None else equal(self._sum(own), self._sum(value))

    def _less(self, one: Scalar, names: Names, other: Scalar, others: Names) -> Formula | None:
        left, right = _named(one, names), _named(other, others)
        return None if left is None or right is None else less(self._sum(left), self._sum(right))

    def _most(self, least: Scalar, value: Scalar, names: Names) -> Formula | None:
        """Return that a value is no less than an expression."""
        own = _named(least, names)
        return None if own is None else at_least(self._sum(value), self._sum(own))

    def _below(self, value: Scalar, end: Scalar, names: Names) -> Formula | None:
        own = _named(end, names)
        return None if own is None else less(self._sum(value), self._sum(own))


def _along(dim: int) -> str:
    """The symbol of the coordinate of x along a dimension."""
    return f"x {dim}"


def _on() -> str:
    """The symbol of the rank that holds x."""
    return "x rank"


def _complete(wanted: Sequence[Formula | None]) -> Iterator[list[Formula]]:
    """Yield formulas if all of them are known."""
    known = [one for one in wanted if one is not None]
    if len(known) == len(wanted):
        yield known


def _named(expr: Scalar, names: Names) -> Scalar | None:
    """Return an expression in terms of symbols; None if entries decide its value, or an index without a symbol."""
    if any(isinstance(e, Lookup) or (isinstance(e, Index) and e.name not in names) for e in walk(expr)):
        return None

    def change(part: Scalar) -> Scalar | None:
        match part:
            case Rank():
                return names[""]
            case Index(name=name):
                return names[name]
            case _:
                return None

    return rewrite(expr, change)


def _offset(start: Scalar | None, name: str, step: int) -> Scalar | None:
    """Return `offset` of a start `offset + name * step`; None for another start."""
    term = mul(Index(name=name), const(step))
    match start:
        case None:
            return None
        case _ if start == term:
            return const(0)
        case Binary(op="+", left=left, right=right):
            if right == term or left == term:
                other = left if right == term else right
                return None if Index(name=name) in walk(other) else other
        case _:
            pass
    return None
