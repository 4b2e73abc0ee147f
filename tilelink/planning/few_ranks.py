"""Few ranks represent any number of them, where a program does the same on each and tells others apart by order alone.

A *number of a rank* is `rank`, an index p over all ranks, or what an index q counts from the own rank on, around the
ring: `(rank + q) % ranks`, `(rank + 1 + q) % ranks` or one of these with minus, of all ranks or of all others. Ranks of
a program are alike if

* what follows `@` is a number of a rank. A dimension of a tensor that has one as a coordinate has nothing else but `:`,
  and as many elements as there are ranks; its counters are one for each of them, or one for all;
* an index that counts ranks is nothing else, in one way where it is declared. It is in no range; conditions compare a
  number of a rank with another one. What is notified under one is so for the own rank, or for others. Of values of
  elements come no places;
* entries of index tensors are no numbers of ranks, nor is what is said of them. What is promised of a tensor does not
  depend on a dimension with places for ranks. There are no tables, groups of ranks, credits of slots, or further nodes;
* the queue of a copy engine with an index that counts ranks has copies in the order of ranks, up or down, from the
  first, the own or the next one on. It begins with a copy and waits for nothing, or no copy overtakes another one.

**Theorem.** A rising map f of ranks, from those of the small program to those of the whole one, takes events to events:
that of rank r with p, and with a q that counts rank s, to that of f(r) with f(p), and with the q that counts f(s). It
keeps which number is larger, and so which rank comes first around the ring from another one on: elements, counters,
iterations of loops, and the order of a queue. So it is as good as a map of blocks (cutoff.py): a chain of events that
shows an order in the small program shows it in the whole one. An event is of one rank, and has m - 1 indices that count
ranks around it, at most; an element is on one rank and has m - 1 coordinates that are ranks, at most. So two events and
one more rank are images of those of a program on 2 m + 1 ranks, which stand for all.

Not kept is which rank is the next one: of a program with `(rank + 1) % ranks` one rank is asked (rotation.py). Nor is
how tiles of two ranks follow one another: if the order of a stage's tiles depends on ranks, all of them, on all ranks,
come in one round of `in_rounds` (verifier/cutoff.py), where all ranks have the same rounds.

A threshold may be the number of ranks, or of others. It is the sum over all statements that notify a counter: each one
does so once for each value of the own rank, and of those its indices count, that the place of the counter does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np

from tilelink.ir.mapping import ChannelGrid
from tilelink.ir.program import For, FromScalar, If, IndexDecl, Region, Statement, Store, Tensor, Transfer, Wait
from tilelink.ir.scalar import (
    RANK,
    Binary,
    Compare,
    Env,
    Index,
    Int,
    Logic,
    Lookup,
    Rank,
    Ranks,
    Scalar,
    Whole,
    add,
    binary,
    children,
    const,
    evaluate,
    substitute,
    walk,
)
from tilelink.ir.visitor import all_indices, map_scalars, notified, stage_scalars, statements
from tilelink.lowering.bound import Bound, BoundStage, with_bodies, with_channels
from tilelink.lowering.columns import Ints
from tilelink.lowering.orders import TILE
from tilelink.lowering.places import partial
from tilelink.planning.plan import Plan

MANY_RANKS = 16
"""Ranks from which on it pays to look for few that stand for all; of fewer, where these are half of them at most."""
Under = tuple[Scalar, bool]
"""A condition, and whether it is to hold."""
OWN = ""
"""The name of the own rank among those of indices that count ranks."""
LARGEST = 1 << 25
"""Values of a number of a rank, and tiles of a queue on all ranks, that are compared, at most."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """How an index counts ranks: as their numbers if step is 0, or as `(rank + first + step * index) % ranks`.

    others: it counts all ranks but the own one.
    """

    step: int = 0
    first: int = 0
    others: bool = False

    def number(self, index: Scalar, ranks: int) -> Scalar:
        """Return the number of the rank that an index counts. It has no negative intermediate results."""
        if not self.step:
            return index
        first = const(self.first % ranks or (ranks if self.step < 0 else 0))
        return binary("%", binary("+" if self.step > 0 else "-", add(RANK, first), index), const(ranks))

    def count(self, ranks: int) -> int:
        """Return how many ranks it counts."""
        return ranks - self.others


_TURNS = [Turn()] + [
    Turn(step=step, first=first, others=others)
    for step in (1, -1)
    for first, others in ((0, False), (step, False), (step, True))
]


@dataclass(frozen=True, kw_only=True)
class FewRanks:
    """A bound program, and the one on few ranks that stand for all of its own.

    dims: dimensions with a place for each rank. indices: those that count ranks, and how each does where it is declared
    first. mixed: stages whose order of tiles depends on ranks.
    """

    whole: Bound
    small: Bound
    dims: frozenset[tuple[str, int]]
    indices: Mapping[tuple[str, str], Turn]
    mixed: frozenset[str]

    def __str__(self) -> str:
        return f"{self.small.ranks} of {self.whole.ranks} ranks"

    @property
    def statement(self) -> str:
        """The part of the whole program of which the proof by few ranks is made, in words."""
        turns = sorted((name, str(turn)) for name, turn in self.indices.items())
        return f"alike on ranks: {sorted(self.dims)}, {turns}, mixed {sorted(self.mixed)}"

    def keeps_queues(self, plan: Plan) -> bool:
        """True if a copy overtakes others on all ranks if it does so in the plan of the small program.

        Which copies come before all waits of a queue is not kept where it has an index that counts ranks: none may. An
        own copy of the whole program that overtakes another one, and that one, are images of two that do so.
        """
        engines = _on_engines(self.small)
        counting = any((stage.name, name) in self.indices for stage in engines for name in stage.extents)
        return not counting or not _wait(engines) or not len(plan.overtaking)

    def thresholds(
        self, found: Ints, grid: ChannelGrid, region: Region, stage: str, around: frozenset[str], under: Iterable[Under]
    ) -> Ints | None:
        """Return how often a statement notifies each counter in the whole program; None if its ranks differ.

        found: the same in the small program, [ranks, *counters], of counters as in the whole one. around: the indices
        around the statement. under: the conditions on which it is executed.
        """
        names = {name: turn for name in around if (turn := self.indices.get((stage, name))) is not None}
        compared = [(name, equal is holds) for one, holds in under if (name := _with_own(one)) in names
                    for equal in [isinstance(one, Compare) and one.op == "=="]]  # fmt: skip
        own = {name for name, same in compared if same}
        names = {name: replace(turn, others=turn.others or (name, False) in compared) for name, turn in names.items()}
        if any(names.pop(name).others for name in own):
            return None
        named: list[str | None] = [OWN if region.rank is None else _counted_by(region.rank)]
        axes = [0]
        for dim, coord in enumerate(region.coords):
            if (region.tensor, dim) in self.dims and grid.counts[dim] > 1:
                named.append(_counted_by(coord) if isinstance(coord, Scalar) else None)
                axes.append(dim + 1)
        named = [OWN if name in own else name for name in named]
        few = _ways(named, axes, names, self.small.ranks, found.ndim)
        many = _ways(named, axes, names, self.whole.ranks, found.ndim)
        if few is None or many is None:
            return None
        each = (found // np.maximum(few, 1)).max(axis=tuple(axes), keepdims=True)
        return each * many if (each * few == found).all() else None


def _on_engines(bound: Bound) -> list[BoundStage]:
    """Return the stages on copy engines."""
    return [bound.stages[name] for kernel in bound.kernels if kernel.on_copy_engine for name in kernel.stage_names]


def _wait(stages: list[BoundStage]) -> bool:
    return any(isinstance(one, Wait) for stage in stages for one in statements(stage.stage.body))


def _counted_by(expr: Scalar) -> str:
    """Return the index that counts the ranks of a number, or OWN."""
    return next((one.name for one in walk(expr) if isinstance(one, Index)), OWN)


def _with_own(condition: Scalar) -> str:
    """Return the index whose rank a condition compares with the own one, `rank == p` or not; OWN for another one."""
    match condition:
        case Compare(op="==" | "!=", left=Rank(), right=other) | Compare(op="==" | "!=", left=other, right=Rank()):
            return _counted_by(other)
        case _:
            return OWN


def _ways(named: list[str | None], axes: list[int], names: Mapping[str, Turn], ranks: int, dims: int) -> Ints | None:
    """Return the number of values of the own rank and of all indices that reach each counter, None if it is not known.

    named: what is the place of a counter along each of some axes, None where all are notified.
    """
    places: dict[str, Ints] = {}
    ways = np.ones([1] * dims, np.int64)
    for name, axis in zip(named, axes, strict=True):
        place = np.arange(ranks).reshape([ranks if at == axis else 1 for at in range(dims)])
        ways = ways * np.ones_like(place) if name is None else ways * (place == places.setdefault(name, place))
    others = [name for name, turn in names.items() if turn.others and name in places]
    if OWN in places:
        for name in others:
            ways = ways * (places[name] != places[OWN])
    elif len(others) > 1:
        return None
    else:
        ways = ways * (ranks - len(others))
    for name, turn in names.items():
        ways = ways * (1 if name in places else turn.count(ranks))
    return ways


def few_ranks(bound: Bound) -> FewRanks | None:
    """Return a program on few ranks that stand for all of a bound one's; None if these are not known to be alike."""
    search = _Search(bound)
    if not search.alike:
        return None
    kept = 2 * search.most + 1
    mixed = frozenset(name for name, stage in bound.stages.items() if search.mixes(stage))
    if kept >= bound.ranks or any(bound.stages[name].tasks is not None for name in mixed):
        return None
    stages: dict[str, BoundStage] = {}
    for name, stage in bound.stages.items():
        counted = {index: turn for (owner, index), turn in search.indices.items() if owner == name}
        extents = {index: counted[index].count(kept) if index in counted else n for index, n in stage.extents.items()}
        small = replace(stage, extents=extents)
        order = _order(bound, stage, small, counted) if name in mixed else stage.order
        if order is None:
            return None
        stages[name] = replace(small, order=order)
    shapes = {
        name: tuple(kept if (name, dim) in search.dims else extent for dim, extent in enumerate(tensor.shape))
        for name, tensor in bound.tensors.items()
    }
    tensors = {name: replace(tensor, shape=shapes[name]) for name, tensor in bound.tensors.items()}
    small = replace(bound, ranks=kept, stages=stages, tensors=tensors)
    bodies = {name: map_scalars(stage.stage.body, search.fewer(name, kept)) for name, stage in stages.items()}
    grids = {key: _fewer(grid, key[0], search.dims, kept) for key, grid in bound.channels.items()}
    return FewRanks(
        whole=bound, small=with_channels(with_bodies(small, bodies), grids), dims=frozenset(search.dims),
        indices=search.indices, mixed=mixed,
    )  # fmt: skip


def _fewer(grid: ChannelGrid, tensor: str, dims: set[tuple[str, int]], kept: int) -> ChannelGrid:
    own = [(tensor, dim) in dims for dim in range(len(grid.counts))]
    counts = tuple(kept if among and n > 1 else n for among, n in zip(own, grid.counts, strict=True))
    whole = zip(own, grid.counts, grid.sizes, strict=True)
    return replace(grid, counts=counts, sizes=tuple(kept if among and n == 1 else size for among, n, size in whole))


class _Search:
    """Finds what has a place for each rank in a bound program. alike: False if its ranks may differ."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self.dims: set[tuple[str, int]] = set()
        self.indices: dict[tuple[str, str], Turn] = {}
        self._turns: dict[tuple[str, int, str], Turn] = {}
        """(stage, number of the loop that declares it or 0, index) -> how it counts ranks."""
        self._declared: dict[str, int] = {}
        """Index in scope -> the number of the loop that declares it."""
        self._loops = 0
        self._numbers: dict[tuple[str, Scalar], tuple[str, Turn] | None] = {}
        self.alike = bound.nodes == 1 and bound.ranks**2 <= LARGEST
        for tensor in bound.tensors.values():
            self.alike &= tensor.decl.space != "table" and tensor.members is None and tensor.credits is None
            self.alike &= not any(isinstance(part, Rank | Ranks) for part in _said_of(tensor.decl))
        self._written = any(writes_entries(bound, stage) for stage in bound.stages.values())
        while self.alike:
            known = len(self.dims), len(self.indices)
            for stage in bound.stages.values():
                self._loops, self._declared = 0, {}
                self._visit((stage.stage.indices, stage.stage.body), stage)
            if known == (len(self.dims), len(self.indices)):
                break
        said = {
            part.table
            for tensor in bound.tensors.values()
            for part in _said_of(tensor.decl)
            if isinstance(part, Lookup)
        }
        self.alike &= not any(name in said for name, _ in self.dims)
        self.alike = self.alike and all(map(self._is_cut, self.dims)) and self._has_queues()

    @property
    def most(self) -> int:
        """On how many ranks an event, or an element, is at most."""
        stages = [(name, stage.stage.indices, stage.stage.body) for name, stage in self._bound.stages.items()]
        events = [self._counting(name, indices) + self._deepest(name, body) for name, indices, body in stages]
        elements = [sum(owner == name for owner, _ in self.dims) for name in self._bound.tensors]
        return 1 + max((*events, *elements), default=0)

    def mixes(self, stage: BoundStage) -> bool:
        """True if the order of a stage's tiles depends on ranks."""
        ranks = any(isinstance(part, Rank) for expr in stage.order.values() for part in walk(expr))
        return ranks or any((stage.name, name) in self.indices for name in stage.order)

    def fewer(self, stage: str, ranks: int) -> Callable[[Scalar], Scalar | None]:
        """Return what numbers of ranks are in a stage on fewer ranks."""

        def change(expr: Scalar) -> Scalar | None:
            found = self._numbers.get((stage, expr))
            return None if found is None or not found[1].step else found[1].number(Index(name=found[0]), ranks)

        return change

    def _counting(self, stage: str, indices: tuple[IndexDecl, ...]) -> int:
        return sum((stage, decl.name) in self.indices for decl in indices)

    def _deepest(self, stage: str, body: tuple[Statement, ...]) -> int:
        """Return how many indices that count ranks are around a statement of a body in it, at most."""
        found = [0]
        for one in body:
            match one:
                case If(then=then, orelse=orelse):
                    found.append(self._deepest(stage, (*then, *orelse)))
                case For(indices=indices, body=inner):
                    found.append(self._counting(stage, indices) + self._deepest(stage, inner))
                case _:
                    pass
        return max(found)

    def _is_cut(self, place: tuple[str, int]) -> bool:
        """True if each rank has a place along a dimension, with counters of its own unless all have one."""
        name, dim = place
        tensor, ranks = self._bound.tensors[name], self._bound.ranks
        grids = [(grid.counts[dim], grid.sizes[dim]) for key, grid in self._bound.channels.items() if key[0] == name]
        own = tensor.steps is not None and tensor.steps[0] == dim
        shares = tensor.packed > 1 and dim == len(tensor.shape) - 1  # elements along it share words
        promised = {*tensor.decl.properties} - {"replicated"}  # of all entries along the dimension
        return tensor.shape[dim] == ranks and not (own or shares or promised or tensor.fragments) and all(
            count == 1 or (count, size) == (ranks, 1) for count, size in grids
        )  # fmt: skip

    def _has_queues(self) -> bool:
        """True if copy engines begin with copies where an index counts ranks, unless they wait (`keeps_queues`)."""
        counting = [stage for stage in _on_engines(self._bound) if self._counting(stage.name, all_indices(stage.stage))]
        begin = all(isinstance((*stage.stage.body, None)[0], Store | Transfer) for stage in counting)
        return begin or _wait(_on_engines(self._bound))

    def _visit(self, node: object, stage: BoundStage) -> None:
        """Note what numbers of ranks are, and where they are."""
        match node:
            case Region(tensor=name, coords=coords, rank=rank):
                if rank is not None:
                    self._number(rank, stage)
                for dim, coord in enumerate(coords):
                    self._coordinate((name, dim), coord, stage)
            case If(condition=condition, then=then, orelse=orelse):
                inner = (*then, *orelse)
                if self._compares(condition, stage) and _with_own(condition) == OWN:
                    self.alike &= not any(notified(one) for one in statements(inner))
                self._visit(inner, stage)
            case For(indices=indices, body=inner):
                self._loops, around = self._loops + 1, self._declared
                self._visit(indices, stage)
                self._declared = around | {decl.name: self._loops for decl in indices}
                self._visit(inner, stage)
                self._declared = around
            case IndexDecl(start=start, stop=stop):
                self._visit((start, stop), stage)
            case FromScalar(scalar=scalar) if not self._written and not names_places(self._bound, stage):
                self._visit(tuple(partial((scalar,))), stage)  # a value of elements otherwise, as of `pos`
            case Rank() | Ranks():
                self.alike = False
            case Lookup(table=name, coords=coords):
                for dim, coord in enumerate(coords):
                    if name in self._bound.tensors:
                        self._coordinate((name, dim), coord, stage)
                    else:
                        self._visit(coord, stage)  # the value of a name
            case Index(name=name):
                self.alike &= (stage.name, name) not in self.indices
            case Scalar():
                self._visit(children(node), stage)
            case tuple():
                for one in node:
                    self._visit(one, stage)
            case _ if is_dataclass(node):
                self._visit(tuple(getattr(node, one.name) for one in fields(node) if one.name != "location"), stage)
            case _:
                pass

    def _coordinate(self, place: tuple[str, int], coord: Scalar | Whole, stage: BoundStage) -> None:
        if isinstance(coord, Scalar) and (place in self.dims or self._mentions(coord, stage)):
            self.dims.add(place)
            self._number(coord, stage)
        else:
            self._visit(coord, stage)

    def _compares(self, condition: Scalar, stage: BoundStage) -> bool:
        """Note how a condition uses numbers of ranks, and return whether it compares some."""
        match condition:
            case Logic(args=args):
                return any([self._compares(one, stage) for one in args])
            case Compare(left=left, right=right) if self._mentions(left, stage) or self._mentions(right, stage):
                self._number(left, stage)
                self._number(right, stage)
                return True
            case _:
                self._visit(condition, stage)
                return False

    def _mentions(self, expr: Scalar, stage: BoundStage) -> bool:
        """True if an expression is made of ranks. An entry is not, wherever it is."""
        match expr:
            case Rank():
                return True
            case Index(name=name):
                return (stage.name, name) in self.indices
            case Lookup():
                return False
            case _:
                return any(self._mentions(one, stage) for one in children(expr))

    def _number(self, expr: Scalar, stage: BoundStage) -> None:
        """Note the number of a rank."""
        key = stage.name, expr
        if key not in self._numbers:
            self._numbers[key] = self._read(expr, stage)
        found = self._numbers[key]
        if found is None:
            self.alike = False
        elif found[0] != OWN:
            loop = self._declared.get(found[0], 0)
            self.alike &= self._turns.setdefault((stage.name, loop, found[0]), found[1]) == found[1]
            self.indices[stage.name, found[0]] = self._turns.get((stage.name, 0, found[0]), found[1])

    def _read(self, expr: Scalar, stage: BoundStage) -> tuple[str, Turn] | None:
        """Return the index that counts the ranks of which an expression is the number, and how; OWN if it is `rank`.

        However a sum is spelled: it is compared for all ranks and all values of the index.
        """
        parts, ranks = walk(expr), self._bound.ranks
        if not _is_sum(parts, ranks):
            return None
        own, names = np.arange(ranks)[:, None], {part.name for part in parts if isinstance(part, Index)}
        if not names:
            return (OWN, Turn()) if (np.asarray(self._valued(expr, own, {})) == own).all() else None
        (name, *more) = names
        decls = [decl for decl in all_indices(stage.stage) if decl.name == name]
        if more or name not in stage.scalar_indices or any(decl.counted for decl in decls):
            return None
        indices = {name: np.arange(stage.extents[name])[None, :]}
        values = self._valued(expr, own, indices)
        for turn in _TURNS if stage.tiles[name] == 1 else ():
            counts = turn.count(ranks) == stage.extents[name]
            if counts and (values == self._valued(turn.number(Index(name=name), ranks), own, indices)).all():
                return name, turn
        return None

    def _valued(self, expr: Scalar, own: Ints, indices: Mapping[str, Ints]) -> Ints:
        return np.asarray(evaluate(expr, Env(rank=own, ranks=self._bound.ranks, params={}, indices=indices)))


def _is_sum(parts: list[Scalar], ranks: int) -> bool:
    """True if the parts of an expression are those of a sum modulo ranks, of numbers so small that it is not by chance
    that of another one on these ranks: `rank % 300` is `rank` on 300 ranks, and `rank + 64` on 32."""
    moduli = [part.right for part in parts if isinstance(part, Binary) and part.op == "%"]
    sums = all(
        isinstance(part, Int | Rank | Index) or (isinstance(part, Binary) and part.op in "+-%") for part in parts
    )
    numbers = sum(abs(part.value) for part in parts if isinstance(part, Int)) - ranks * len(moduli)
    return sums and all(one == const(ranks) for one in moduli) and numbers < 2 * ranks - 1


def _order(bound: Bound, stage: BoundStage, small: BoundStage, counted: Mapping[str, Turn]) -> dict[str, Scalar] | None:
    """Return the order of a stage's tiles in the small program: any one on SMs, and that of the queue of a copy engine;
    None if that is not an order of ranks. counted: its indices that count ranks."""
    if not bound.kernel_of[stage.name].on_copy_engine:
        return in_turn(small)
    names = [name for name in stage.order if name in counted]
    if len(names) != 1 or not stage.total or bound.ranks * stage.total > LARGEST:
        return None
    (name,) = names
    many, few = stage.count(name), small.count(name)
    env = Env(
        rank=np.arange(bound.ranks)[:, None], ranks=bound.ranks, params={}, indices={TILE.name: np.arange(stage.total)}
    )
    shape = (bound.ranks, stage.total)
    columns = {one: np.broadcast_to(np.asarray(evaluate(expr, env)), shape) for one, expr in stage.order.items()}
    values = columns.pop(name)
    steps = np.flatnonzero(values[0] != values[0, 0])
    width = int(steps[0]) if len(steps) else stage.total
    if stage.total % (width * many):
        return None
    for column in columns.values():
        parts = column.reshape(bound.ranks, -1, many, width)
        if (parts != parts[:1, :, :1]).any():
            return None
    turn, digit = counted[name], binary("%", binary("//", TILE, const(width)), const(many))
    for at, spelled in enumerate(_spelled(digit, bound.ranks, many, turn)):
        if (np.asarray(evaluate(spelled, env)) == values).all():
            digit = binary("%", binary("//", TILE, const(width)), const(few))
            above = binary("*", binary("//", TILE, const(width * few)), const(width * many))
            number = add(above, binary("%", TILE, const(width)))
            others = {one: substitute(expr, {TILE.name: number}) for one, expr in stage.order.items()}
            return {**others, name: _spelled(digit, few + turn.others, few, turn)[at]}
    return None


def _spelled(digit: Scalar, ranks: int, count: int, counted: Turn) -> list[Scalar]:
    """Return the orders of an index that counts ranks which a rising map of ranks keeps, by its place in the order."""
    ends = [digit, binary("-", const(count - 1), digit)]
    return ends + [turn.number(digit, ranks) for turn in _TURNS if turn.step and not turn.others and not counted.step]


def _said_of(decl: Tensor) -> Iterator[Scalar]:
    """Yield the parts of what is said of a tensor's entries, and of the ends up to which elements are defined."""
    yield from (part for said in (decl.bound, *decl.defined) if said is not None for part in walk(said))


def names_places(bound: Bound, stage: BoundStage) -> bool:
    """True if a stage has names among the entries that its expressions read."""
    read = (part for expr in stage_scalars(stage.stage) for part in walk(expr) if isinstance(part, Lookup))
    return any(part.table not in bound.tensors for part in read)


def writes_entries(bound: Bound, stage: BoundStage) -> bool:
    """True if a stage writes index tensors."""
    written = (s.region if isinstance(s, Store) else s.target
               for s in statements(stage.stage.body) if isinstance(s, Store | Transfer))  # fmt: skip
    return any(bound.tensors[region.tensor].decl.bound is not None for region in written)


def in_turn(stage: BoundStage) -> dict[str, Scalar]:
    """Return the order of a stage's tiles in which its last index comes first."""
    order, width = dict[str, Scalar](), 1
    for name in reversed([decl.name for decl in stage.stage.indices]):
        count = stage.count(name)
        order[name] = binary("%", binary("//", TILE, const(width)), const(count))
        width *= count
    return order
