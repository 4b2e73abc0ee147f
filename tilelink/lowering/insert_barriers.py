"""Barriers between the threads of a program, where a store must be complete before the statements after it.

The tiles that a program executes are ordered by the program itself, and so are the statements of a tile. But a program
has many threads: one thread may load too early what another one stores, or overwrite what another one still loads,
unless there is a barrier between the two. A wait that every launch makes contains a barrier. This pass inserts the
others. The rule of ordering checks the result (verifier/threads.py).

before: c[i, :] = x[i, :] * 2.0
        y[i, :] = dot(c[i, :], w[:, :].T)
after:  c[i, :] = x[i, :] * 2.0
        program_barrier()
        y[i, :] = dot(c[i, :], w[:, :].T)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from tilelink.ir.program import (
    Assign,
    Barrier,
    For,
    If,
    Local,
    NetworkQuiet,
    Read,
    Region,
    Statement,
    Store,
    Transfer,
    Value,
    Wait,
)
from tilelink.ir.reach import elsewhere, on_all_ranks
from tilelink.ir.scalar import RANK, Block, Env, Index, Lookup, Scalar, Whole, evaluate, indices_in, walk
from tilelink.ir.visitor import (
    leading_waits,
    mixes,
    on_ranks,
    own_scalars,
    range_ends,
    reads,
    statements,
    value_of,
    values,
    with_body_on_ranks,
)
from tilelink.lowering.bound import Bound, BoundStage, KernelKind, with_bodies
from tilelink.lowering.compact_tiles import obstacle
from tilelink.lowering.transform import new_name


def place_barriers(bound: Bound) -> Bound:
    """Return the bound program with all barriers that its programs on SMs need.

    After this pass these programs have many threads. Warps with roles need no barrier: no tile loads what a tile of the
    kernel stores, one thread stores for all of them, and all stores of a tile are of the same result.
    """
    scratch = scratch_memories(bound)
    bodies = {
        name: _Placing(bound=bound, stage=stage, scratch=scratch).all_of(stage)
        for name, stage in bound.stages.items()
        if stage.kind not in (KernelKind.ROLES, KernelKind.COPY_QUEUE)
    }
    return replace(with_bodies(bound, bodies), many_threads=True)


@dataclass(kw_only=True)
class _Placing:
    """Inserts the barriers of one stage."""

    bound: Bound
    stage: BoundStage
    scratch: frozenset[str]
    pending: Pending = field(init=False)
    names: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.pending = pending_at(self.bound, self.stage.name, self.scratch)

    def all_of(self, stage: BoundStage) -> tuple[Statement, ...]:
        """Return the body of a stage with its barriers, one of them before the ends of its ranges are read."""
        ends = looked_up(range_ends(stage.stage.indices))
        read = {memory for region in ends for memory in _memories(region, self.bound.ranks)}
        _, body = on_ranks(stage.stage)
        first: tuple[Statement, ...] = ()
        if read & self.pending.stored and not any(map(self.pending.meets, body[: leading_waits(stage.stage)])):
            self.pending.barrier(Barrier())
            first = (Barrier(location=stage.stage.location),)
        else:
            self.pending.loaded |= read
        return with_body_on_ranks(stage.stage, (*first, *self.body(body))).body

    def body(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        done: list[Statement] = []
        for statement in body:
            if self.pending.barrier(statement):
                done.append(Barrier(location=statement.location))
            done += self._inside(statement)
        return tuple(done)

    def _inside(self, statement: Statement) -> list[Statement]:
        match statement:
            case If():
                return [self._branches(statement)]
            case For(indices=indices):
                before = replace(self.pending)
                inner = self.body(statement.body)
                if any(decl.counted or self.stage.count(decl.name) == 0 for decl in indices):  # no barrier was met
                    self.pending.join(before)
                return [replace(statement, body=inner)]
            case Store(region=region) | Transfer(target=region):
                return self._in_place(statement, region)
            case _:
                return [statement]

    def _branches(self, branch: If) -> If:
        taken = on_all_ranks(branch.condition, self.bound.ranks)
        if taken is not None:  # the other branch is never executed
            return (
                replace(branch, then=self.body(branch.then))
                if taken
                else replace(branch, orelse=self.body(branch.orelse))
            )
        before = replace(self.pending)
        then = self.body(branch.then)
        self.pending, after_then = before, self.pending
        orelse = self.body(branch.orelse)
        self.pending.join(after_then)
        return replace(branch, then=then, orelse=orelse)

    def _in_place(self, statement: Store | Transfer, region: Region) -> list[Statement]:
        """Return a statement, split in three if it overwrites what it reads and mixes elements of different threads."""
        value = value_of(statement)
        if value is None or not mixes(value) or all(one.tensor != region.tensor for one in reads(value)):
            return [statement]
        location = statement.location
        name = new_name(self.bound, self.stage, "loaded", self.names)
        loaded = Assign(name=name, value=value, location=location)
        result = Local(name=name, location=location)
        last = replace(statement, value=result) if isinstance(statement, Store) else replace(statement, source=result)
        return [loaded, Barrier(location=location), last]


@dataclass(kw_only=True)
class Pending:
    """The memories that a program may have accessed since its last barrier, as a tile is rendered.

    A memory is the local copy of a tensor, or the copies of all peers together. counts: number of tiles of every index
    of the stage. scratch: memories whose elements may be written more than once. left_out: True for a wait that some
    launch leaves out. stored, loaded: memories with pending stores and loads.
    """

    ranks: int
    counts: Mapping[str, int]
    scratch: frozenset[str]
    left_out: Callable[[Wait], bool]
    stored: frozenset[str] = frozenset()
    loaded: frozenset[str] = frozenset()
    loops: dict[_Key, _Passed] = field(default_factory=dict["_Key", "_Passed"])
    """Effect of loops on what was pending before them. Copies share it, so nested loops are analyzed only once."""

    def barrier(self, statement: Statement) -> bool:
        """True if a barrier is needed before a statement. Updates the state; an `if` is asked for its statements.

        After the answer for a loop, the state covers everything that may be pending at the start of any iteration.
        """
        match statement:
            case If():
                return False
            case For():
                return self._loop(statement)
            case Wait() | Barrier() | NetworkQuiet() if self.meets(statement):
                self._clear()
                return False
            case _:
                return self._plain(statement)

    def meets(self, statement: Statement) -> bool:
        """True if all threads of a program are at a statement together, in every launch."""
        if isinstance(statement, Wait):
            return not self.left_out(statement)
        return isinstance(statement, Barrier | NetworkQuiet)

    def barriers(self, body: tuple[Statement, ...]) -> int:
        """Return the number of barriers that the statements of a body need. Updates the state."""
        count = 0
        for statement in body:
            count += self.barrier(statement)
            if isinstance(statement, If):
                other = replace(self)
                count += self.barriers(statement.then) + other.barriers(statement.orelse)
                self.join(other)
        return count

    def join(self, other: Pending) -> None:
        """Merge the state of another branch into this one."""
        self.stored |= other.stored
        self.loaded |= other.loaded

    def _loop(self, loop: For) -> bool:
        key = (id(loop), self.stored, self.loaded)
        if key not in self.loops:
            self.loops[key] = self._passed(loop)
        passed = self.loops[key]
        self.stored, self.loaded = passed.stored, passed.loaded
        return passed.needed

    def _passed(self, loop: For) -> _Passed:
        """Analyze a loop. A barrier before it saves one in each iteration if only earlier accesses require it."""
        before, alone = replace(self), replace(self)
        alone._clear()
        needed = before.barriers(loop.body) > alone.barriers(loop.body)
        end = alone if needed else before
        parts = _RepeatedRegions(ranks=self.ranks)
        parts.note(loop.body, {decl.name: self.counts[decl.name] for decl in loop.indices})
        stored, loaded = end.stored - parts.apart, end.loaded - parts.apart
        if not needed:
            stored, loaded = stored | self.stored, loaded | self.loaded
        return _Passed(loop=loop, needed=needed, stored=stored, loaded=loaded)

    def _clear(self) -> None:
        self.stored = self.loaded = frozenset()

    def _plain(self, statement: Statement) -> bool:
        touched = [(one, stores) for region, stores in accesses((statement,)) for one in _memories(region, self.ranks)]
        stored, loaded = (frozenset(one for one, stores in touched if stores == kind) for kind in (True, False))
        needed = bool(loaded & self.stored or stored & self.scratch & (self.stored | self.loaded))
        if needed:
            self._clear()
        self.stored |= stored
        self.loaded |= loaded
        return needed


_Key = tuple[int, frozenset[str], frozenset[str]]
"""Identity of a loop, and the stored and loaded memories pending before it."""


@dataclass(frozen=True, kw_only=True)
class _Passed:
    """The result for a loop: whether it needs a barrier before it, and what is pending after it.

    It holds the loop, so that the identity in its key stays valid.
    """

    loop: For
    needed: bool
    stored: frozenset[str]
    loaded: frozenset[str]


@dataclass(kw_only=True)
class _RepeatedRegions:
    """Regions of its memories that a program accesses repeatedly."""

    ranks: int
    stored: set[str] = field(default_factory=set[str])
    loaded: set[str] = field(default_factory=set[str])
    places: dict[str, set[object]] = field(default_factory=dict[str, set[object]])

    def note(self, body: tuple[Statement, ...], counts: Mapping[str, int], number: int = 0) -> None:
        """Note a body that is executed for all values of some indices.

        Bodies with different numbers have different tiles.
        """
        for region, stores in accesses(body):
            names = {_moves_with(c, counts, self.ranks) for c in (*region.coords, region.rank)}
            key = (number, region.coords, region.rank) if names >= counts.keys() else None
            for memory in _memories(region, self.ranks):
                (self.stored if stores else self.loaded).add(memory)
                self.places.setdefault(memory, set()).add(key)

    @property
    def apart(self) -> set[str]:
        """Return the memories of which every execution accesses a separate part."""
        return {memory for memory, parts in self.places.items() if len(parts) == 1 and None not in parts}


def scratch_memories(bound: Bound) -> frozenset[str]:
    """Return the memories whose elements may be written more than once."""
    tensors = [t.name for t in bound.tensors.values() if t.decl.space in ("inout", "kept", "local", "symmetric")]
    return frozenset(memory for name in tensors for memory in (name, f"{name} @"))


def pending_at(bound: Bound, stage: str, scratch: frozenset[str]) -> Pending:
    """Return the accesses that may be pending at the start of a tile: all that its kernel can have done before.

    The first stage of a tile ignores memories of which every tile accesses a separate part.

    scratch: memories whose elements may be written more than once.
    """
    kernel = bound.kernel_of[stage]
    last = next(n for n, loop in enumerate(kernel.loops) if stage in loop.stages)
    parts = _RepeatedRegions(ranks=bound.ranks)
    before = kernel.loops if kernel.steps > 1 else kernel.loops[: last + 1]  # all loops come before a further step
    for number, loop in enumerate(before):
        for earlier in (bound.stages[name] for name in loop.stages):
            parts.note(
                earlier.stage.body, {decl.name: earlier.count(decl.name) for decl in earlier.stage.indices}, number
            )
    apart = parts.apart if kernel.loops[last].stages[0] == stage else set[str]()
    return Pending(
        ranks=bound.ranks,
        counts={name: bound.stages[stage].count(name) for name in bound.stages[stage].extents},
        scratch=scratch,
        left_out=_left_out(bound, stage),
        # if two tiles write the same elements, the later one waits for the earlier one, and a wait is a barrier
        stored=frozenset((parts.stored & parts.loaded) - apart),
        loaded=frozenset(parts.loaded - apart),
    )


def _left_out(bound: Bound, stage: str) -> Callable[[Wait], bool]:
    """Return what says of a wait of a stage whether a launch may leave it out: for places, or with a tile."""
    counted = any(decl.counted for decl in bound.stages[stage].stage.indices)
    if counted and obstacle(bound, bound.kernel_of[stage]) is None:  # its tiles may get compact numbers
        return lambda _: True
    return lambda wait: bound.is_placed(stage, wait)


def accesses(body: tuple[Statement, ...]) -> Iterator[tuple[Region, bool]]:
    """Yield every region that statements load from (False) or store to (True)."""
    for statement in statements(body):
        value = value_of(statement)
        yield from ((region, False) for region in looked_up(own_scalars(statement)))
        yield from ((region, False) for region in (_loaded(value) if value is not None else ()))
        if isinstance(statement, Store):
            yield statement.region, True
        elif isinstance(statement, Transfer) and statement.mode != "send":
            yield statement.target, True


def _loaded(value: Value) -> Iterator[Region]:
    """Yield the regions that a value reads. A word orders its store and its loads itself, of any thread."""
    yield from (one.region for one in values(value) if isinstance(one, Read) and one.signal is None)


def looked_up(expressions: Iterable[Scalar]) -> Iterator[Region]:
    """Yield the entries of index tensors that expressions read, unless they are inputs, as regions."""
    for expr in expressions:
        for part in walk(expr):
            if isinstance(part, Lookup) and part.launch:
                yield Region(tensor=part.table, coords=part.coords)


def _moves_with(coordinate: Scalar | Whole | None, counts: Mapping[str, int], ranks: int) -> str | None:
    """Return the one index whose values all give a coordinate different values, on all ranks; None if there is none."""
    if not isinstance(coordinate, Scalar) or isinstance(coordinate, Block):  # slices from two places may overlap
        return None
    if isinstance(coordinate, Index):
        return coordinate.name
    names = indices_in(coordinate)
    if len(names) != 1 or not names <= counts.keys() or any(isinstance(e, Lookup) for e in walk(coordinate)):
        return None
    (name,) = names
    return name if _differs(coordinate, name, counts[name], ranks) else None


@lru_cache(maxsize=1024)
def _differs(coordinate: Scalar, name: str, count: int, ranks: int) -> bool:
    """True if the values of an index give a coordinate different values, on all ranks. Many stages ask the same."""
    numbers = np.arange(count)
    for rank in range(ranks if RANK in walk(coordinate) else 1):
        with np.errstate(divide="ignore"):  # divisors may be 0 for index values at which nothing is accessed
            coordinates = evaluate(coordinate, Env(rank=rank, ranks=ranks, params={}, indices={name: numbers}))
        if len(np.unique(coordinates)) < count:
            return False
    return True


def _memories(region: Region, ranks: int) -> tuple[str, ...]:
    """Return the memories that may contain a region: the local copy of its tensor, the peers' copies, or both."""
    if region.rank is None:
        return (region.tensor,)
    far = f"{region.tensor} @"
    return (far,) if elsewhere(region.rank, ranks) else (region.tensor, far)
