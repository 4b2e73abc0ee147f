"""Order of reads after writes, asked once for each pair of statements: for all of their tiles, iterations and ranks.

A question names an element x that both statements name (questions.py). The reasons are

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

Two accesses of one program need its threads to meet in between as well (threads.py). They do where signals are the
reason: the reader's wait is between them, for a program that waits before it has notified does so for ever (progress).
Kernels that come one after the other have different programs.

An entry of an index tensor is read by the statement that names it: as a coordinate, in a condition, or as the end of a
range.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilelink.facts.linear import All, either, equal, less, negated
from tilelink.ir.mapping import ChannelGrid
from tilelink.ir.program import Barrier, For, If, Notify, Read, Region, Statement, Store, Transfer, Wait
from tilelink.ir.scalar import Lookup, Scalar, walk
from tilelink.ir.visitor import (
    leading_waits,
    mixes,
    on_ranks,
    own_scalars,
    range_ends,
    reads,
    value_of,
    values,
    written,
)
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor, KernelKind
from tilelink.lowering.events import READ, WRITE
from tilelink.planning.any_program import assigns_in_launch
from tilelink.planning.plan import Plan
from tilelink.verifier.questions import Access, Branch, Loop, Place, Question

APART, SIGNALS, WORD, PLACE, OWN = "apart", "signals", "word", "place", "own task"
EARLIER, SAME_TILE = "earlier kernel", "same tile"
BY_PROGRAM = (APART, SIGNALS, WORD, PLACE, OWN)
"""The reasons that are true under every schedule, the strongest one first."""
REASONS = (*BY_PROGRAM, EARLIER, SAME_TILE)


class Pair(NamedTuple):
    """A statement that writes a tensor and one that reads it, by their numbers in the plan."""

    tensor: str
    write: int
    read: int


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

    def _reason(self, tensor: BoundTensor, write: Access, read: Access) -> str | None:
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
    def _by_word(write: Access, read: Access) -> bool:
        """True if words carry what is written, and the read lasts until those of what it reads have come."""
        match write.place.statement:
            case Transfer(mode="send", signal=str(signal)):
                return read.region.rank is None and read.signal == signal
            case _:
                return False

    def _meet_nowhere(self, tensor: BoundTensor, write: Access, read: Access) -> bool:
        question = Question(self._bound, tensor)
        return question.refutes([*question.domain(write), *question.domain(read)])

    def _in_line(self, tensor: BoundTensor, write: Access, read: Access) -> bool:
        """True if kernels that run one after the other make both accesses, on one rank."""
        one, other = (self._kernels[access.place.stage.name] for access in (write, read))
        if one.stream != other.stream or one.position >= other.position or one.own_copies_first:
            return False
        question = Question(self._bound, tensor)
        known = [*question.domain(write), *question.domain(read)]
        return question.refutes([*known, negated(question.same_rank())])

    def _in_task(self, tensor: BoundTensor, write: Access, read: Access) -> bool:
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
        question = Question(self._bound, tensor, by_tile=True)
        known = [*question.domain(write), *question.domain(read)]
        same = [question.same_tile(), *(equal(*ends) for ends in question.iterations(write, read))]
        return question.refutes([*known, negated(All(tuple(same)))])

    def _ordered(self, tensor: BoundTensor, first: Access, second: Access) -> bool:
        """True if one task makes two accesses to an element, the first one before the second."""
        question = Question(self._bound, tensor, by_tile=True)
        known, ends = [*question.domain(first), *question.domain(second)], question.iterations(first, second)
        # in the same iteration, or in an earlier one of the loops around both
        before = [All((*(equal(a, b) for a, b in ends[:n]), less(*ends[n]))) for n in range(len(ends))]
        if first.place.before(second.place):
            before.append(All(tuple(equal(a, b) for a, b in ends)))
        return question.refutes([*known, negated(All((question.same_tile(), either(before))))])

    def _met(self, first: Access, second: Access) -> bool:
        """True if the threads of a program meet between two accesses of it, if it makes the first one before the
        second: at a statement of the same iteration as the one or as the other."""
        one, other = first.place, second.place
        if not self._bound.many_threads:
            return True

        def around(meeting: Place, access: Place) -> bool:
            return meeting.shared(access) == len(meeting.around)

        if one.stage is not other.stage:
            after = any(around(at, one) and one.before(at) for at in self._meetings(one.stage))
            return after or any(around(at, other) and at.before(other) for at in self._meetings(other.stage))
        return any(
            one.before(at) and at.before(other) and (around(at, one) or around(at, other))
            for at in self._meetings(one.stage)
        )

    def _meetings(self, stage: BoundStage) -> Iterator[Place]:
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

    def _in_tile(self, tensor: BoundTensor, write: Access, read: Access) -> bool:
        """True if one program makes both accesses, in tiles of one number of two stages, the first one's first."""
        one, other = write.place.stage, read.place.stage
        kernel = self._kernels[one.name]
        loop = next((loop for loop in kernel.loops if {one.name, other.name} <= {*loop.stages}), None)
        if loop is None or kernel.on_copy_engine or assigns_in_launch(kernel) or not self._met(write, read):
            return False
        if KernelKind.ROLES in (one.kind, other.kind):
            return False
        question = Question(self._bound, tensor, by_tile=True)
        known = [*question.domain(write), *question.domain(read)]
        in_order = loop.stages.index(one.name) < loop.stages.index(other.name)
        return in_order and question.refutes([*known, negated(question.same_tile())])

    def _notifies(self, tensor: BoundTensor, grid: ChannelGrid, write: Access, read: Access) -> bool:
        """True if the channel of each element that both access is notified after the write, and awaited before the
        read."""
        return all(
            self._known(tensor, grid, access, (access,)) or self._known(tensor, grid, access, (write, read))
            for access in (write, read)
        )

    def _at_place(self, tensor: BoundTensor, grid: ChannelGrid, write: Access, read: Access) -> bool:
        """True if the channel of each element is notified after the write, and the reader has waited at its place."""
        one, other = (self._kernels[access.place.stage.name] for access in (write, read))
        if one is other or not self._known(tensor, grid, write, (write,)):
            return False
        question = Question(self._bound, tensor)
        domain = question.domain(read)
        missing = [
            negated(All(tuple(there)))
            for wait in self._placed(grid, read)
            for there in question.of_place(read, wait, grid)
        ]
        return bool(missing) and question.refutes([*domain, *missing])

    def _placed(self, grid: ChannelGrid, read: Access) -> Iterator[Place]:
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

    def _known(self, tensor: BoundTensor, grid: ChannelGrid, access: Access, known: tuple[Access, ...]) -> bool:
        """True if a task has a signal for the channel of each element of an access. known: accesses of the element."""
        key = (grid, access, known)
        if key not in self._answers:
            question = Question(self._bound, tensor)
            domain = [one for part in known for one in question.domain(part)]
            missing = [
                negated(All(tuple(there)))
                for signal in self._signals(grid, access)
                for there in question.of_channel(access, signal, grid)
            ]
            self._answers[key] = bool(missing) and question.refutes([*domain, *missing])
        return self._answers[key]

    def _common(self, tensor: BoundTensor, grid: ChannelGrid, write: Access, read: Access) -> bool:
        """True if the writer's task notifies a channel after the write for which the reader's waits before the read."""
        notifies, waits = [*self._signals(grid, write)], [*self._signals(grid, read)]
        if not notifies or not waits:
            return False
        question = Question(self._bound, tensor)
        domain = [*question.domain(write), *question.domain(read)]
        missing = [
            negated(All(tuple(there)))
            for notify, wait in product(notifies, waits)
            for there in question.of_both((write, notify), (read, wait), grid)
        ]
        return bool(missing) and question.refutes([*domain, *missing])

    @cached_property
    def _answers(self) -> dict[tuple[ChannelGrid, Access, tuple[Access, ...]], bool]:
        return {}

    def _signals(self, grid: ChannelGrid, access: Access) -> Iterator[Place]:
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

    def _in_queue(self, write: Place, notify: Place) -> bool:
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

    def _of(self, tensor: str, kind: int) -> list[Access]:
        """Return the accesses of a kind to a tensor in the program."""
        return self._accesses.get((tensor, kind), [])

    @cached_property
    def _accesses(self) -> Mapping[tuple[str, int], list[Access]]:
        found: dict[tuple[str, int], list[Access]] = {}
        for place in (place for places in self._places.values() for place in places):
            for access in self._of_statement(place):
                found.setdefault((access.region.tensor, access.kind), []).append(access)
        return found

    def _of_statement(self, place: Place) -> Iterator[Access]:
        """Yield the accesses of a statement, and of what is looked up there."""
        statement = place.statement
        if (region := written(statement)) is not None:
            yield Access(kind=WRITE, place=place, region=region)
        value = value_of(statement)
        for part in values(value) if value is not None else ():
            if isinstance(part, Read):
                yield Access(kind=READ, place=place, region=part.region, signal=part.signal)
        exprs = own_scalars(statement)
        if place is self._entered.get(place.stage.name):
            exprs = [*exprs, *range_ends(place.stage.stage.indices)]
        for part in dict.fromkeys(part for expr in exprs for part in walk(expr)):
            if isinstance(part, Lookup) and part.table in self._bound.tensors:
                signal = next((kind for name, kind in self._bound.channels if name == part.table), None)
                region = Region(tensor=part.table, coords=part.coords, location=part.location)
                yield Access(kind=READ, place=place, region=region, signal=signal)

    @cached_property
    def _entered(self) -> Mapping[str, Place]:
        """stage -> the statement at which the ends of its own ranges are read (lowering/walk.py)."""
        found: dict[str, Place] = {}
        for name, places in self._places.items():
            stage = self._bound.stages[name].stage
            first = (on_ranks(stage)[0] is not None) + leading_waits(stage)
            if places:
                found[name] = places[min(first, len(places) - 1)]
        return found

    @cached_property
    def _places(self) -> Mapping[str, Sequence[Place]]:
        """stage -> its statements, in the order of their numbers."""
        found: dict[str, list[Place]] = {}
        number = 0
        for stage in self._bound.stages.values():
            own = found.setdefault(stage.name, [])
            for address, around, statement in _walk(stage.stage.body, number):
                if self._plan is not None:
                    stated = self._plan.statements[number]
                    assert stated[0] == stage.name and type(stated[1]) is type(statement)
                place = Place(stage=stage, number=number, statement=statement, address=address, around=around)
                own.append(place)
                number += 1
        return found


def _walk(
    body: tuple[Statement, ...],
    first: int,
    at: tuple[int, ...] = (),
    around: tuple[Loop | Branch, ...] = (),
) -> Iterator[tuple[tuple[int, ...], tuple[Loop | Branch, ...], Statement]]:
    """Yield the statements of a body with their addresses and what is around them. first: number of the first one."""
    for place, statement in enumerate(body):
        yield (*at, place), around, statement
        own, inner = first, list[tuple[tuple[Statement, ...], Loop | Branch]]()
        match statement:
            case If(condition=condition, then=then, orelse=orelse):
                for one, holds in ((then, True), (orelse, False)):
                    inner.append((one, Branch(number=own, condition=condition, holds=holds)))
            case For(indices=indices, body=one):
                inner.append((one, Loop(number=own, indices=indices)))
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
