"""Named constants of a kernel: sizes, tiles and counts that its source uses by name, declared at its head.

    Ms  K  RANKS        dimensions of the program by their own names, and the number of ranks
    BLOCK_I             elements of a tile along index i; BLOCK_K: elements of a step of a contracted dimension
    TILE_I              elements of a tile that are no power of two; BLOCK_I is then the padded size
    TILES_I             number of tiles along index i
    GROUP_I             tiles in a group of an order
    XS_BUFFERS          buffers of tensor xs
    XS_SIGNALS          the first of its counters; XS_CHANNELS: counters of one buffer
    ENTERED, FINISHED   the first of the runtime's counters of launches

If stages of a kernel use a name for different numbers, the stage becomes its prefix, as in GATHER_BLOCK_I. A number for
which no name is left stays a literal, so nothing depends on the names.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from tilelink.backend.source import used
from tilelink.backend.words import integer
from tilelink.ir.mapping import ChannelGrid
from tilelink.ir.program import IndexDecl
from tilelink.ir.scalar import Binary, Env, Param, Ranks, Scalar, evaluate
from tilelink.ir.sizes import power_of_two
from tilelink.ir.typing import Axis
from tilelink.ir.visitor import all_indices
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor

TEMPORARY = re.compile(r".*_[0-9]+|.*_boxes_[0-9]+x.*")
"""Names of temporaries and of descriptors. Constants must not match it."""
SIZES, BLOCKS, COUNTS, SIGNALS = LINES = range(4)
"""Lines of a kernel's head, each with constants of one kind."""
LEVEL = {"+": 5, "-": 5, "*": 6, "//": 6, "%": 6, "^": 4}
"""Precedence of operators in Python. A higher number binds tighter."""
FACTOR = 7
"""Precedence that the right operand of a product needs."""


def wrap(text: str, own: int, level: int) -> str:
    """Return an expression, in parentheses if it binds looser than `level`."""
    return f"({text})" if own < level else text


def enclosed(text: str) -> bool:
    """True if one pair of parentheses encloses all of an expression."""
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if not depth:
            return position == len(text) - 1 and char == ")"
    return False


def times(factors: Iterable[str]) -> str:
    """Return a product, without factors of one."""
    return " * ".join(one for one in factors if one != "1") or "1"


def total(terms: Iterable[str]) -> str:
    """Return a sum, without zeros."""
    return " + ".join(one for one in terms if one != "0") or "0"


def scaled(term: str, factor: str) -> str:
    """Return a term of a sum: `term * factor`, or 0 if the term is 0."""
    return "0" if term == "0" else times((term, factor)) if factor != "1" else term


@dataclass(kw_only=True)
class Constants:
    """The constants of one kernel. taken: names that they must not have."""

    bound: Bound
    stages: Sequence[BoundStage]
    taken: frozenset[str]
    values: dict[str, int] = field(default_factory=dict[str, int], init=False)
    lines: dict[str, int] = field(default_factory=dict[str, int], init=False)
    """Constant -> its line of the head."""
    _of_stages: dict[str, set[int]] = field(default_factory=dict[str, set[int]], init=False)
    _counts: dict[tuple[str, tuple[str, ...]], tuple[int, str]] = field(
        default_factory=dict[tuple[str, tuple[str, ...]], tuple[int, str]], init=False
    )
    """Cache of `counts`. A constant keeps its number, so a name that was right once stays right."""

    def __post_init__(self) -> None:
        for stage in self.stages:
            for index in stage.tiles:
                for stem, value in self._along(stage, index).items():
                    self._of_stages.setdefault(stem, set()).add(value)

    def number(self, line: int, value: int, *names: str) -> str:
        """Return the first of the names that stands for no other number, or else the literal."""
        for name in names:
            while name in self.taken or keyword.iskeyword(name) or TEMPORARY.fullmatch(name):
                name += "_"
            if self.values.setdefault(name, value) == value:
                self.lines.setdefault(name, line)
                return name
        return integer(value)

    # Sizes of the program ------------------------------------------------------------------------------------

    @property
    def ranks(self) -> str:
        return self.number(SIZES, self.bound.ranks, "RANKS")

    def value(self, dim: Scalar) -> int:
        """Return the value of a dimension."""
        if isinstance(dim, Param):
            return int(self.bound.numbers[dim.name])
        return int(evaluate(dim, Env(rank=0, ranks=self.bound.ranks, params=self.bound.numbers, indices={})))

    def size(self, dim: Scalar, level: int = 0) -> str:
        """Return a dimension as the program writes it."""
        match dim:
            case Ranks():
                return self.ranks
            case Param(name=name):
                return self.number(SIZES, self.value(dim), name)
            case Binary(op="+" | "-" | "*" | "//" | "%" as op, left=left, right=right):
                precedence = LEVEL[op]
                return wrap(f"{self.size(left, precedence)} {op} {self.size(right, precedence + 1)}", precedence, level)
            case _:
                return integer(self.value(dim))

    def shape(self, tensor: BoundTensor) -> tuple[str, ...]:
        """Return the dimensions of a tensor in memory, as factors."""
        pairs = zip(tensor.decl.shape, tensor.memory, strict=True)
        return tuple(self.size(dim, FACTOR) if self.value(dim) == n else integer(n) for dim, n in pairs)

    def strides(self, tensor: BoundTensor) -> tuple[str, ...]:
        """Return row-major strides of a tensor in elements, as factors."""
        shape = self.shape(tensor)
        return tuple(times(shape[d + 1 :]) for d in range(len(shape)))

    def elements(self, tensor: BoundTensor) -> str:
        """Return the elements of one buffer, as a factor."""
        return times(self.shape(tensor))

    # Tiles of stages -----------------------------------------------------------------------------------------

    def _along(self, stage: BoundStage, index: str) -> dict[str, int]:
        """Return the numbers along an index, by the name that each has if all stages agree on it."""
        tile, upper = stage.tiles[index], index.upper()
        block = max(power_of_two(tile), self.bound.smallest_block(stage.name))
        return {
            f"BLOCK_{upper}": block,
            f"TILES_{upper}": stage.count(index),
            **({f"TILE_{upper}": tile} if tile != block else {}),
        }

    def _of_stage(self, stage: BoundStage, stem: str, value: int) -> str:
        if value == 1:
            return "1"
        alone = len(self._of_stages.get(stem, {value})) == 1
        line = COUNTS if stem.startswith("TILES_") else BLOCKS
        return self.number(line, value, *([stem] if alone else []), f"{stage.name.upper()}_{stem}")

    def tile(self, stage: BoundStage, index: str) -> str:
        """Return the elements of a tile along an index."""
        named = self._along(stage, index)
        stem = f"TILE_{index.upper()}"
        return self._of_stage(stage, stem if stem in named else f"BLOCK_{index.upper()}", stage.tiles[index])

    def count(self, stage: BoundStage, index: str, level: int = 0) -> str:
        """Return the number of tiles along an index."""
        count = stage.count(index)
        extent = self._index(stage, index).extent
        if stage.tiles[index] == 1 and self.value(extent) == count > 1:
            return self.size(extent, level)
        return self._of_stage(stage, f"TILES_{index.upper()}", count)

    def counts(self, stage: BoundStage, indices: tuple[str, ...]) -> tuple[int, str]:
        """Return the number of tiles along several indices together, and its source as a factor."""
        key = stage.name, indices
        if key not in self._counts:
            self._counts[key] = self._counted(stage, indices)
        return self._counts[key]

    def _counted(self, stage: BoundStage, indices: tuple[str, ...]) -> tuple[int, str]:
        if len(indices) == 1:
            return stage.count(indices[0]), self.count(stage, indices[0], FACTOR)
        parts = [self.counts(stage, (decl.name,)) for decl in stage.stage.indices if decl.name in indices]
        return prod(value for value, _ in parts), times(text for _, text in parts)

    def extent(self, stage: BoundStage, index: str) -> str:
        """Return the end of an index, in elements."""
        extent, value = self._index(stage, index).extent, stage.extents[index]
        return self.size(extent) if self.value(extent) == value else integer(value)

    def over_ranks(self, stage: BoundStage, index: str) -> bool:
        """True if an index runs over the ranks."""
        return any(one.name == index and one.over_ranks for one in all_indices(stage.stage))

    def _index(self, stage: BoundStage, index: str) -> IndexDecl:
        return next(one for one in all_indices(stage.stage) if one.name == index)

    def total(self, stage: BoundStage) -> str:
        """Return the number of tiles of a stage."""
        names = [one.name for one in stage.stage.indices]
        if prod(stage.count(name) for name in names) != stage.total:
            return integer(stage.total)
        several = [name for name in names if stage.count(name) != 1]
        return times(self.count(stage, name, FACTOR if len(several) > 1 else 0) for name in names)

    def elements_of(self, stage: BoundStage, axis: Axis) -> str:
        """Return the elements of an axis within one tile."""
        if axis.kind == "tile":
            return self.tile(stage, str(axis.index))
        return "1" if axis.dim is None else self.size(axis.dim)

    def block(self, stage: BoundStage, axis: Axis, value: int) -> str:
        """Return the block of an axis, of `value` elements."""
        if value == 1:
            return "1"
        if axis.kind == "tile":
            return self._of_stage(stage, f"BLOCK_{str(axis.index).upper()}", value)
        match axis.dim:
            case Scalar() if self.value(axis.dim) == value:
                return self.size(axis.dim)
            case Param(name=name):
                return self.number(BLOCKS, value, f"BLOCK_{name.upper()}", f"WHOLE_{name.upper()}")
            case Ranks():
                return self.number(BLOCKS, value, "BLOCK_RANKS")
            case _:
                return integer(value)

    def copied(self, stage: BoundStage, axis: Axis, value: int) -> str:
        """Return the elements of an axis that a copy moves at a time."""
        match axis:
            case Axis(kind="tile", index=str(name)) | Axis(dim=Param(name=name)):
                named = f"STEP_{name.upper()}"
                return "1" if value == 1 else self.number(BLOCKS, value, named, f"{stage.name.upper()}_{named}")
            case _:
                return integer(value)

    def step(self, stage: BoundStage, value: int) -> str:
        """Return the elements of a contracted axis in one step."""
        return "1" if value == 1 else self.number(BLOCKS, value, "BLOCK_K", f"{stage.name.upper()}_BLOCK_K")

    # Signals and buffers -------------------------------------------------------------------------------------

    @property
    def entered(self) -> str:
        """Return the runtime's counter for "rank 0 has entered a launch". Those of other ranks follow it."""
        return self.number(SIGNALS, self.bound.entered_base, "ENTERED")

    @property
    def finished(self) -> str:
        """Return the runtime's counter for "rank 0 has finished a launch". Those of other ranks follow it."""
        return self.number(SIGNALS, self.bound.finished_base, "FINISHED")

    def buffers(self, tensor: BoundTensor) -> str:
        return self.number(SIGNALS, tensor.buffers, f"{tensor.name.upper()}_BUFFERS")

    def signals(self, grid: ChannelGrid) -> str:
        """Return the first counter of a grid, 0 for the first grid."""
        return self.number(SIGNALS, grid.base, *self._of_grid(grid, "SIGNALS")) if grid.base else "0"

    def channels(self, grid: ChannelGrid) -> str:
        """Return the counters of one buffer of a grid."""
        self.buffers(self.bound.tensors[grid.tensor])
        self.signals(grid)
        return self.number(SIGNALS, grid.count, *self._of_grid(grid, "CHANNELS"))

    def _of_grid(self, grid: ChannelGrid, what: str) -> tuple[str, ...]:
        name = grid.tensor.upper()
        kinds = [kind for tensor, kind in self.bound.channels if tensor == grid.tensor]
        return (f"{name}_{what}",) if len(kinds) == 1 else (f"{name}_{grid.kind.upper()}_{what}",)

    # The head of the kernel ----------------------------------------------------------------------------------

    def head(self, text: str) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Return the constants that a kernel of this text uses, with their values, by the line of its head."""
        names = sorted(used(self.values, text), key=self._place)
        lines = [tuple((name, self.values[name]) for name in names if self.lines[name] == line) for line in LINES]
        return tuple(line for line in lines if line)

    def _place(self, name: str) -> int:
        """Return the sort key of a constant.

        Dimensions are sorted by declaration, other constants by first use.
        """
        params = [one.name for one in self.bound.source.params]
        return params.index(name) if name in params else -1 if self.lines[name] == SIZES else len(params)
