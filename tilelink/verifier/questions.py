"""Questions about two statements that name one element of a tensor: for all of their tiles, iterations and ranks.

A family is a statement of the lowered program with the rank, the tile and the iterations of its loops as symbols. Each
side of a question has its own. An element x that both name is in both boxes, on one rank.

A task may notify, or wait for, the channel in a loop of its own. Which iteration that is, is then said by a witness:
the iteration with the number that the access has in a loop of that name, the one in whose tile x is, or the one in
which the rank of the notify is that of the wait. Any number is a witness: that there is such an iteration is asked too.

A question is refuted by `tilelink/facts`, or it is not decided: then the pairs of accesses are asked one by one. It has
no entries of index tensors, since nothing is taken to be known of them here: what they give of an access only makes its
box smaller. A wait that they decide about is a reason for what has the same coordinates, no matter what entries are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from tilelink.facts.encode import Encoder
from tilelink.facts.linear import ONE, All, Formula, Sum, at_least, either, equal, less, negated, refuted
from tilelink.ir.intervals import Bounds, Range
from tilelink.ir.mapping import ChannelGrid, Span, TileMap
from tilelink.ir.program import IndexDecl, Notify, Region, Statement, Wait
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
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor
from tilelink.lowering.events import WRITE
from tilelink.lowering.orders import TILE

MAX_WITNESSES = 4
"""Iterations of other loops that are tried for a signal, at most."""
MAX_TURNS = 3
"""Values of a quotient that are told apart, at most."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop around a statement. number: of the loop among the statements of the plan."""

    number: int
    indices: tuple[IndexDecl, ...]


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A branch around a statement. number: of its `if`."""

    number: int
    condition: Scalar
    holds: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """A statement in the body of a stage.

    address: its place in each block around it, outermost first. around: the loops and branches between these blocks.
    """

    stage: BoundStage
    number: int
    statement: Statement
    address: tuple[int, ...]
    around: tuple[Loop | Branch, ...]

    def before(self, other: Place) -> bool:
        """True if it comes before another statement of its stage in each iteration of the loops around both."""
        shared = self.shared(other)
        own, theirs = self.around[shared:], other.around[shared:]
        if own and theirs and isinstance(own[0], Branch) and own[0].number == theirs[0].number:
            return False  # two branches of one condition
        return self.address[shared] < other.address[shared]

    def shared(self, other: Place) -> int:
        """Return how many of the outermost loops and branches are around both."""
        pairs = enumerate(zip(self.around, other.around, strict=False))
        return next((n for n, (one, two) in pairs if one != two), min(len(self.around), len(other.around)))


@dataclass(frozen=True, eq=False)
class Access:
    """A region that a statement reads or writes. signal: of a read of words, the kind of signals that it waits for."""

    kind: int
    place: Place
    region: Region
    signal: str | None = None

    @property
    def side(self) -> str:
        return "writer" if self.kind == WRITE else "reader"


Names = Mapping[str, Scalar]
"""Index -> the symbol, or the witness, that stands for it."""


class Question:
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

    def domain(self, access: Access) -> list[Formula]:
        """Return that an access names x: as far as no entry of an index tensor decides it."""
        names = self._names(access)
        tile_map = self._bound.tile_map(access.place.stage.name, access.region)
        found = [self._equal(tile_map.rank, names, Index(name=_on()))]
        for frame in access.place.around:
            if isinstance(frame, Branch):
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

    def iterations(self, one: Access, other: Access) -> list[tuple[Sum, Sum]]:
        """Return the numbers of the iterations of the loops around two accesses of one stage, outermost first."""
        around = one.place.around[: one.place.shared(other.place)]
        names = [decl.name for frame in around if isinstance(frame, Loop) for decl in frame.indices]
        return [(self._sum(self._names(one)[name]), self._sum(self._names(other)[name])) for name in names]

    def of_channel(self, access: Access, signal: Place, grid: ChannelGrid) -> Iterator[list[Formula]]:
        """Yield what makes a signal one for the channel of x, for each witness that is tried."""
        tile_map = self._map(signal)
        for names, there in self._witnesses(access, signal):
            wanted: list[Formula | None] = [*there, self._equal(tile_map.rank, names, Index(name=_on()))]
            for dim, (span, size) in enumerate(zip(tile_map.channel_range(grid), grid.sizes, strict=True)):
                if grid.counts[dim] > 1:
                    channel = binary("//", Index(name=_along(dim)), const(size))
                    wanted += [self._most(span.low, channel, names), self._below(channel, span.high, names)]
            yield from _complete(wanted)

    def of_place(self, read: Access, wait: Place, grid: ChannelGrid) -> Iterator[list[Formula]]:
        """Yield what makes a wait one for the channel of x, which both name by the same entries."""
        tile_map, names = self._map(wait), self._names(read, wait.around)
        assert isinstance(wait.statement, Wait)
        region = wait.statement.region
        inner = {d.name for one in read.place.around[len(wait.around) :] if isinstance(one, Loop) for d in one.indices}
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
        self, write: tuple[Access, Place], read: tuple[Access, Place], grid: ChannelGrid
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

    def _map(self, place: Place) -> TileMap:
        assert isinstance(place.statement, Notify | Wait)
        return self._bound.tile_map(place.stage.name, place.statement.region)

    def _witnesses(
        self, access: Access, signal: Place, rank: Scalar | None = None
    ) -> Iterator[tuple[Names, list[Formula | None]]]:
        """Yield symbols and witnesses for a signal of an access's task, with what has to be true of them.

        rank: that which the signal is to have.
        """
        shared = access.place.shared(signal)
        own, names = self._names(access), self._names(access, access.place.around[:shared])
        free = [decl for frame in signal.around[shared:] if isinstance(frame, Loop) for decl in frame.indices]
        if any(decl.counted for decl in free):
            return  # iterations that there need not be
        choices = [[*dict.fromkeys(self._candidates(decl.name, signal, own, names, rank))] for decl in free]
        for chosen in list(product(*choices))[:MAX_WITNESSES]:
            every = {**names, **{decl.name: one for decl, one in zip(free, chosen, strict=True)}}
            there: list[Formula | None] = []
            for decl, one in zip(free, chosen, strict=True):
                value, count = self._sum(one), signal.stage.count(decl.name)
                there += [at_least(value, {}), less(value, {ONE: count})]
            there += [self._truth(frame, every) for frame in signal.around[shared:] if isinstance(frame, Branch)]
            yield every, there

    def _candidates(self, name: str, signal: Place, own: Names, names: Names, rank: Scalar | None) -> Iterator[Scalar]:
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

    def _names(self, access: Access, around: Sequence[Loop | Branch] | None = None) -> Names:
        """Return the symbols of the side of an access: of its rank, its tile and the iterations of loops around it."""
        stage, side = access.place.stage, access.side
        found: dict[str, Scalar] = {"": self._symbol(f"{side} rank", self._bound.ranks)}
        numbered = {**found, TILE.name: self._symbol(f"{side} tile", stage.total)} if self._by_tile else found
        for decl in stage.stage.indices:
            known = _named(stage.order[decl.name], numbered) if self._by_tile else None
            symbol = self._symbol(f"{side} tile {decl.name}", stage.count(decl.name))
            found[decl.name] = symbol if known is None else known
        for frame in access.place.around if around is None else around:
            if isinstance(frame, Loop):
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

    def _truth(self, branch: Branch, names: Names) -> Formula | None:
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
