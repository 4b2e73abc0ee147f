"""For which other sizes a proof holds: a dimension of which a few blocks stood for all may have any number of them.

That is proved of the lowered program (planning/cutoff.py), and which program a size gives is up to the passes. So a
dimension is named if twice its size, and few blocks of it, give the small program that was proved, so that they differ
in nothing but the number of blocks. Two sizes do not show what passes fold by quotients, remainders or minima of a
size, which may be alike for those two alone: such a dimension is not named. The numbers of a size, as those of 32 bits,
counters and resident programs, are looked at when it is compiled; so is every size that is not named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import lcm

from tilelink.errors import TileLinkError
from tilelink.ir.program import Program
from tilelink.ir.scalar import Binary, Param, Ranks, Scalar, Whole, walk
from tilelink.ir.visitor import all_indices, stage_regions, stage_scalars
from tilelink.lowering.bound import Bound
from tilelink.planning.cutoff import Cutoff, cutoff
from tilelink.planning.few_ranks import MANY_RANKS
from tilelink.planning.plan import Plan
from tilelink.planning.repetitions import Repetition
from tilelink.verifier.cutoff import by_small, said

LARGER = 9
"""Times a size: of such a one few blocks stand for all if only the one at hand is too small. It is odd, so that blocks
which end within tiles still do."""
WHOLE_TILES = 8
"""Tiles of a size that is named in the place of one that ends within a tile: so many that a few stand for all."""


@dataclass(frozen=True, kw_only=True)
class Multiples:
    """Sizes of a dimension: the multiples of a number, from the least one on."""

    of: int
    least: int

    def __str__(self) -> str:
        return f"any multiple of {self.of} from {self.least} on" if self.of > 1 else f"any number from {self.least} on"


def other_sizes(plan: Plan, bound_with: Callable[[Mapping[str, int]], Bound]) -> dict[str, Multiples | str]:
    """Return for each dimension of a verified plan's program the sizes that it may have, the others being as they are.

    Or why its size alone was asked, in words. bound_with: binds the program, which has no tables, with other values of
    some dimensions, in all else as it was.
    """
    names, bound = dimensions(plan.bound.source), bound_with({})
    part = cutoff(bound)
    if part is not None and not plan.representatives and by_small(part) is None:
        return dict.fromkeys(names, "a few blocks of it do not prove the program, so that all of its tiles were asked")
    return {name: _sizes(part, bound, name, bound_with) for name in names}


def other_ranks(plan: Plan, bound_on: Callable[[int], Bound]) -> Multiples | str:
    """Return the numbers of ranks that a verified plan's program may be on, or why its own alone was asked, in words.

    bound_on: binds the program, which has no tables, for a number of ranks, in all else as it was.
    """
    part = cutoff(plan.bound) if plan.representatives else None
    if part is not None and part.rotation is not None:
        return "rank 0 was asked, which does as many steps as there are ranks"
    if part is None or part.ranks is None:
        return "each rank was asked"
    if _is_folded(plan.bound.source, lambda one: isinstance(one, Ranks)):
        return "a quotient, a remainder, a minimum or the like of it decides something"
    held = all(_is_said(part, partial(bound_on, ranks)) for ranks in {2 * plan.bound.ranks, MANY_RANKS, MANY_RANKS + 1})
    return Multiples(of=1, least=MANY_RANKS) if held else "another number gives kernels, channels or tiles that differ"


def _is_said(part: Cutoff, bind: Callable[[], Bound]) -> bool:
    """True if another program is proved by what was proved."""
    with suppress(TileLinkError):
        other = cutoff(bind())
        return other is not None and said(part) == said(other)
    return False


def _sizes(
    part: Cutoff | None, bound: Bound, name: str, bound_with: Callable[[Mapping[str, int]], Bound]
) -> Multiples | str:
    value = int(bound.numbers[name])
    if _is_folded(bound.source, lambda one: isinstance(one, Param) and one.name == name):
        return "a quotient, a remainder, a minimum or the like of it decides something"
    every = [] if part is None else [(part, sizes) for one in _with(part, name) for sizes in _multiples(one, value)]
    held = next((sizes for of, sizes in every if _hold(of, name, value, sizes, bound_with)), None)
    if held is not None or _as_a_whole(bound.source, name):
        return held or "a tile takes all of it"
    if every:
        return "another size gives kernels, channels or an order of tiles that differ in more than their number"
    tile = _tile(bound, name)
    with suppress(TileLinkError):
        whole = cutoff(bound_with({name: WHOLE_TILES * tile})) if value % tile else None
        if whole is not None and any(_with(whole, name)):
            return f"it ends within a tile of {tile}: --set {name}={WHOLE_TILES * tile} asks a multiple of that"
    with suppress(TileLinkError):
        many = bound_with({name: LARGER * value})
        larger, tile = cutoff(many), _tile(many, name)
        if larger is not None and any(_with(larger, name)):
            return "it has so few blocks that all of them were asked"
        whole = cutoff(bound_with({name: WHOLE_TILES * tile})) if value < tile else None
        if whole is not None and any(_with(whole, name)):
            return f"it is less than a tile of {tile}: --set {name}={WHOLE_TILES * tile} asks a multiple of that"
    return "its blocks are not alike, or end within tiles: see `cutoffs` in docs/verification.md"


def _with(part: Cutoff, name: str) -> Iterator[Repetition]:
    """Yield the repetitions with a dimension, or an index, whose extent a dimension of the program says."""
    program = part.whole.source
    named = {(tensor.name, dim) for tensor in program.tensors for dim, extent in enumerate(tensor.shape)
             if _says(extent, name)}  # fmt: skip
    named |= {(stage.name, decl.name) for stage in program.stages for decl in all_indices(stage)
              if _says(decl.extent, name)}  # fmt: skip
    yield from (one for one in part.repetitions if named & {*one.sizes})


def _tile(bound: Bound, name: str) -> int:
    """Return the least number of a dimension's elements that all tiles along it fit."""
    stages = bound.stages.values()
    tiled = ((stage, decl) for stage in stages for decl in all_indices(stage.stage) if _says(decl.extent, name))
    return lcm(*(stage.tiles[decl.name] for stage, decl in tiled if decl.name not in stage.scalar_indices))


def _is_folded(program: Program, is_one: Callable[[Scalar], bool]) -> bool:
    """True if a quotient, a remainder, a minimum or the like of a number decides something of a program."""
    extents = [extent for tensor in program.tensors for extent in tensor.shape]
    extents += [decl.extent for stage in program.stages for decl in all_indices(stage)]
    every = [*extents, *(one for stage in program.stages for one in stage_scalars(stage))]
    nodes = (node for one in every for node in walk(one))
    return any(isinstance(node, Binary) and node.op not in "+-*" and any(map(is_one, walk(node))) for node in nodes)


def _as_a_whole(program: Program, name: str) -> bool:
    """True if a region has all of a dimension."""
    tensors = {tensor.name: tensor.shape for tensor in program.tensors}
    regions = (region for stage in program.stages for region in stage_regions(stage))
    return any(
        isinstance(coord, Whole) and _says(extent, name)
        for region in regions
        for coord, extent in zip(region.coords, tensors[region.tensor], strict=True)
    )


def _says(extent: Scalar, name: str) -> bool:
    return any(isinstance(one, Param) and one.name == name for one in walk(extent))


def _multiples(one: Repetition, value: int) -> Iterator[Multiples]:
    """Yield the sizes that have whole blocks, and those that have whole parts of one block."""
    many, few = one.parts
    if one.count > one.kept and value % one.count == 0:
        yield Multiples(of=value // one.count, least=value // one.count * (one.kept + 1))
    if many > few and value % (one.count * many) == 0:
        part = value // (one.count * many)
        yield Multiples(of=part, least=part * one.kept * (few + 1))


def _hold(
    part: Cutoff, name: str, value: int, sizes: Multiples, bound_with: Callable[[Mapping[str, int]], Bound]
) -> bool:
    """True if the small program of some sizes is the one that was proved."""
    return all(_is_said(part, partial(bound_with, {name: size})) for size in {2 * value, sizes.least} - {value})


def dimensions(program: Program) -> list[str]:
    """Return the dimensions of a program's tensors and indices, in its order."""
    extents = [extent for tensor in program.tensors for extent in tensor.shape]
    extents += [decl.extent for stage in program.stages for decl in all_indices(stage)]
    named = {one.name for extent in extents for one in walk(extent) if isinstance(one, Param)}
    return [param.name for param in program.params if param.name in named]
