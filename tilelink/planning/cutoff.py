"""Cutoffs: a few blocks of a dimension stand for all of them, where a program does the same in each (repetitions.py).

**Theorem.** A rising map f of block numbers, from those of the small program, which has `kept` of them, to those of the
whole one, takes events of the one to events of the other: tile to tile, iteration to iteration, element to element,
channel to channel. It keeps what an event accesses, waits for and notifies, the order of events in a task and in the
queue of a copy engine, and that of kernels; entries of index tensors keep their promises. So a chain of events that
shows an order in the small program shows it in the whole one. And for each two events of the whole program there is
such a map that has all of their blocks among its values, so that they are images of two events of the small one; these
share an element, or a channel, if those do. So what all events and all pairs of them have in the small program, they
have in the whole one (verifier/cutoff.py).

Words of data and flag are such events: what sends them notifies, and what reads them waits (verifier/words.py).
Elements that share a word are not cut apart, and a channel that has to be inside of an access is so in the small
program.

A small program on many ranks may have a plan of one of them that stands for all (rotation.py).

Programs are not the same: which of them executes a tile is not kept, nor how many there are. So each tile on SMs is a
program of its own in the plan of the small program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial as partial_of
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.mapping import ChannelGrid
from tilelink.ir.program import If, Region, Statement
from tilelink.ir.scalar import Index, Scalar, binary, const, substitute, walk
from tilelink.ir.visitor import map_scalars, statements
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor, with_bodies
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import NOTIFY
from tilelink.lowering.limits import MAX_TILES
from tilelink.lowering.orders import TILE
from tilelink.lowering.walk import executions
from tilelink.planning.few_ranks import MANY_RANKS, FewRanks, few_ranks, in_turn
from tilelink.planning.plan import Plan, Representatives, make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.planning.repetitions import (
    Member,
    Repetition,
    Search,
    differs_by_rank,
    digit,
    digits_of,
    in_any_order,
    notified,
    scoped,
)
from tilelink.planning.rotation import Rotation, rotation


@dataclass(frozen=True, kw_only=True)
class Cutoff:
    """A bound program, and the one in which each repetition has the blocks that stand for all.

    ranks: the program on few ranks, of which the small one has the blocks; None if it is on all of them. rotation: how
    the small program is turned, if one rank stands for all.
    """

    whole: Bound
    small: Bound
    repetitions: tuple[Repetition, ...]
    ranks: FewRanks | None = None
    rotation: Rotation | None = None

    @property
    def executions(self) -> int:
        """Executions of statements that are looked at, at most."""
        return executions(self.small) // (1 if self.rotation is None else self.small.ranks)

    def plan(self, tables: Mapping[str, NDArray[Any]] | None = None) -> Plan | None:
        """Return the plan of the small program, or of a rank that stands for all; None if it does not."""
        if self.rotation is not None:
            return self.rotation.plan()
        return with_queue_order(make_plan(self.small, tables, alone=True))

    @property
    def blocks(self) -> Bound:
        """The program with all blocks, on as many ranks as the small one."""
        return self.whole if self.ranks is None else self.ranks.small

    @property
    def representatives(self) -> Representatives:
        """What the small program has of the whole one."""
        said = [] if self.ranks is None else [str(self.ranks)]
        for one in self.repetitions:
            stage, name = min(member for member in one.sizes if isinstance(member[1], str))
            many, few = one.parts
            size = (
                f"{few} of {many} parts of {one.sizes[stage, name] // many}" if many > few else one.sizes[stage, name]
            )
            said.append(f"{one.kept} of {one.count} blocks of {size} {name} of {stage}")
        return Representatives(rotation="" if self.rotation is None else str(self.rotation), few=", ".join(said))

    def digits(self, stage: str) -> list[tuple[int, int, int]]:
        """Return (tiles of a step, count, number of the repetition) of the indices in the order of a stage that are
        in repetitions, the outermost one first."""
        own = self.blocks.stages[stage]
        if in_any_order(self.blocks, own):
            return []
        return sorted(
            ((digit(self.blocks, own, name, one.tiles(own, name)) or 0, one.tiles(own, name), number)
             for number, one in enumerate(self.repetitions) for name in one.indices(own) if name in own.order),
            reverse=True,
        )  # fmt: skip

    def mixes(self, stage: str) -> bool:
        """True if the order of a stage's tiles depends on ranks, of which there are few."""
        return self.ranks is not None and stage in self.ranks.mixed

    def rounds(self, stage: str) -> int:
        """Return the number of parts in which the tiles of a stage come, one after the other, in both programs: each
        part has all blocks of the repetitions that the stage has an index of. It is one if they come in any order, or
        if that depends on ranks."""
        own = self.blocks.stages[stage]
        if self.mixes(stage):
            return 1
        if in_any_order(self.blocks, own) and any(one.indices(own) for one in self.repetitions):
            return 1
        total = own.total
        return total // max((width * count for width, count, _ in self.digits(stage)), default=1)

    def counts(self, plan: Plan) -> tuple[Ints, ...]:
        """Return the notifies of each statement that notifies, from the plan of the small program."""
        notifies, of = plan.signals.kind == NOTIFY, plan.signals.statement
        keys = ((number, notified(one)) for number, (_, one) in enumerate(plan.statements))
        return tuple(
            self._counted(plan, key[0], np.flatnonzero(notifies & (of == number)))
            for number, key in keys
            if key is not None
        )

    def thresholds(self, counts: tuple[Ints, ...]) -> dict[tuple[str, str], Ints] | None:
        """Return the thresholds of the whole program; None if its blocks differ. counts: as `counts` returns them.

        They are sums over all statements that notify a counter. A statement in whose region the index of a repetition
        says which channels of a dimension of it are notified does so in each block; any other one does it once for each
        tile of the index, of which there are as many more as there are blocks.
        """
        ranks, channels = self.blocks.ranks if self.rotation is None else 1, self.blocks.channels
        every = self.whole.ranks if self.rotation is None else 1
        result = {key: np.zeros((every, *grid.counts), np.int64) for key, grid in self.whole.channels.items()}
        left = iter(counts)
        for stage in self.small.stages.values():
            if [*_notified_if(stage.stage.body, {name for one in self.repetitions for name in one.indices(stage)})]:
                return None
            for statement, around, under in scoped(stage.stage.body, frozenset(stage.order)):
                if (key := notified(statement)) is None:
                    continue
                found = next(left, None)
                if found is None or found.shape != (ranks, *self.small.channels[key[0]].counts):
                    return None
                found = self._of_all(found, key[0], key[1], stage.name, around)
                if found is not None and self.ranks is not None:
                    found = self.ranks.thresholds(found, channels[key[0]], key[1], stage.name, around, under)
                if found is None:
                    return None
                result[key[0]] += found
        if self.rotation is not None:
            return {key: self.rotation.of_all(key, found[0]) for key, found in result.items()}
        return result

    def _counted(self, plan: Plan, key: tuple[str, str], rows: Ints) -> Ints:
        s, grid, base = plan.signals, plan.bound.channels[key], plan.channel_base[key]
        counter = s.peer[rows] * grid.count + s.channel[rows] - base
        counts = np.bincount(counter, minlength=plan.bound.ranks * grid.count).reshape(-1, *grid.counts)
        return counts if self.rotation is None else counts[:1]

    def _of_all(
        self, found: Ints, key: tuple[str, str], region: Region, stage: str, around: frozenset[str]
    ) -> Ints | None:
        """Return the notifies of a statement in the whole program, from those in the small one."""
        grid, few = self.blocks.channels[key], self.small.channels[key]
        own, small = self.blocks.stages[stage], self.small.stages[stage]
        for one in self.repetitions:
            free = around & {*one.indices(own)}
            for dim, count in enumerate(grid.counts):
                if (region.tensor, dim) not in one.sizes or count == 1:
                    continue
                above = one.outer.get((region.tensor, dim), 1)
                times, kept = one.count, one.kept
                if one.parts != (1, 1):  # some channels are parts of blocks: all are alike
                    times, kept = count // above, few.counts[dim] // above
                before, after = found.shape[: dim + 1], found.shape[dim + 2 :]
                blocks = found.reshape(*before, above, kept, -1, *after)
                first = blocks.take([0], axis=dim + 2)
                if (blocks != first).any():
                    return None
                found = np.repeat(first, times, axis=dim + 2).reshape(*before, count, *after)
                coord = region.coords[dim]
                named = (
                    {e.name for e in walk(coord) if isinstance(e, Index)} & free if isinstance(coord, Scalar) else ()
                )
                free -= {*named}
                for name in named if one.parts != (1, 1) else ():
                    many = max(1, grid.sizes[dim] // own.tiles[name])
                    found = _as_many(found, max(1, few.sizes[dim] // small.tiles[name]), many)
            for name in free:
                found = _as_many(found, small.count(name), own.count(name))
        return found if (found >= 0).all() else None


def _as_many(found: Ints, few: int, many: int) -> Ints:
    """Return numbers of notifies where there are `many` instead of `few`; negative ones if they are no multiples."""
    return np.where((found >= 0) & (found % few == 0), found // few * many, -1)


def cutoff(bound: Bound) -> Cutoff | None:
    """Return a program with the blocks that stand for all; None if it has no repetition of more."""
    if bound.nodes > 1:
        return None  # the network orders other things than accesses
    if any(kernel.steps > 1 for kernel in bound.kernels):
        return None  # tiles of a step are counted, and a kernel has no one order of whole loops
    ranks = few_ranks(bound)
    if ranks is not None and bound.ranks < min(MANY_RANKS, 2 * ranks.small.ranks):
        ranks = None
    own = bound if ranks is None else ranks.small
    turned = ranks is None and bound.ranks >= MANY_RANKS and rotation(bound) is not None
    tiles = (stage.total * (1 if turned and not differs_by_rank(stage) else own.ranks) for stage in own.stages.values())
    if sum(tiles) > MAX_TILES:
        return None  # orders are looked at tile by tile
    high = {member for one in Search(own).repetitions() for member in one.sizes}
    search = Search(own, high)
    found = search.repetitions()
    small = _small(own, found, search.digits)
    many = own.total > MAX_TILES
    # Few blocks on all ranks may have a proof where one rank has none, so they are asked if a plan holds them.
    one = rotation(small) if turned and (many or not found) else None
    if many and one is None:
        return None
    if not found and ranks is None and one is None:
        return None
    return Cutoff(whole=bound, small=small, repetitions=tuple(found), ranks=ranks, rotation=one)


def _notified_if(body: tuple[Statement, ...], indices: set[str]) -> Iterator[Statement]:
    """Yield the statements that notify where a condition on some indices holds."""
    for one in statements(body):
        if isinstance(one, If) and indices & {e.name for e in walk(one.condition) if isinstance(e, Index)}:
            yield from (inner for inner in statements((*one.then, *one.orelse)) if notified(inner) is not None)


def _small(bound: Bound, repetitions: list[Repetition], low: Mapping[tuple[str, Scalar], Member]) -> Bound:
    """Return the program with the blocks of each repetition that stand for all. low: coordinates `x * T + t`, by their
    stage, with t a member."""
    kept = {member: extent for one in repetitions for member, extent in one.small.items()}
    blocks = {member: (size, one.parts) for one in repetitions for member, size in one.sizes.items()}
    tensors = {
        name: replace(tensor, shape=tuple(kept.get((name, dim), extent) for dim, extent in enumerate(tensor.shape)))
        for name, tensor in bound.tensors.items()
    }
    over_segments = {member for one in repetitions if one.segments is not None for member in one.sizes}
    channels = {key: _fewer(grid, bound.tensors[key[0]], kept, blocks) for key, grid in bound.channels.items()}
    stages: dict[str, BoundStage] = {}
    for stage in bound.stages.values():
        few = {name: kept[stage.name, name] // stage.tiles[name]
               for name in stage.extents if (stage.name, name) in over_segments}  # fmt: skip
        extents = {name: kept.get((stage.name, name), extent) if name not in few else extent
                   for name, extent in stage.extents.items()}  # fmt: skip
        number: Scalar = TILE
        """That of a tile of the small program in the whole one."""
        counts = {name: one.tiles(stage, name) for one in repetitions for name in one.indices(stage)}
        digits = [(digit(bound, stage, name, counts[name]) or 0, name) for name in stage.order if name in counts]
        tiles = {name: _in_small(size, blocks.get((stage.name, name))) for name, size in stage.tiles.items()}
        small = replace(stage, extents=extents, tiles=tiles, cutoff=few)
        if counts and in_any_order(bound, stage):
            stages[stage.name] = replace(small, order=in_turn(small))
            continue
        for width, name in sorted(digits):
            # The digits below are those of the whole program already.
            left = small.count(name) * counts[name] // stage.count(name)
            own, many = const(width * left), const(width * counts[name])
            above = binary("*", binary("//", number, own), many)
            number = binary("+", above, binary("%", number, own))
        order = {name: substitute(expr, {TILE.name: number}) for name, expr in stage.order.items()}
        for _, name in digits:
            if counts[name] < stage.count(name):  # as many numbers above, with fewer below each of them
                left, whole = const(small.count(name) * counts[name] // stage.count(name)), const(counts[name])
                above, below = binary("//", order[name], whole), binary("%", order[name], whole)
                order[name] = binary("+", binary("*", above, left), below)
        stages[stage.name] = replace(small, order=order)

    def fewer(stage: str, coord: Scalar) -> Scalar | None:
        if (member := low.get((stage, coord))) not in kept or (digits := digits_of(coord)) is None:
            return None
        above, _, name = digits
        return binary("+", binary("*", above, const(kept[member])), Index(name=name))

    bodies = {name: map_scalars(stage.stage.body, partial_of(fewer, name)) for name, stage in stages.items()}
    return with_bodies(replace(bound, tensors=tensors, channels=channels, stages=stages), bodies)


def _in_small(size: int, block: tuple[int, tuple[int, int]] | None) -> int:
    """Return the size of a tile or a channel in the small program. block: its size and parts in the whole one."""
    if block is None or block[0] != size:
        return size
    many, few = block[1]
    return size // many * few


def _fewer(
    grid: ChannelGrid,
    tensor: BoundTensor,
    kept: Mapping[Member, int],
    blocks: Mapping[Member, tuple[int, tuple[int, int]]],
) -> ChannelGrid:
    sizes, counts = [*grid.sizes], [*grid.counts]
    for dim, extent in enumerate(tensor.shape):
        if (size := kept.get((tensor.name, dim))) is not None:
            if counts[dim] > 1:
                sizes[dim] = _in_small(sizes[dim], blocks[tensor.name, dim])
                counts[dim] = size // sizes[dim]
            elif sizes[dim] == extent:
                sizes[dim] = size
    return replace(grid, sizes=tuple(sizes), counts=tuple(counts))
