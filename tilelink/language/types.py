"""The types of the words of programs that are written as Python functions (tilelink/language).

They are for editors and type checkers: a program is parsed, and what is executed outside of one raises StageError.
"""

from __future__ import annotations

import builtins
from types import EllipsisType
from typing import Any, NoReturn, TypedDict, overload

from tilelink.errors import StageError


def outside(word: str) -> NoReturn:
    """Raise StageError for a word that is executed."""
    hint = "write it inside a function decorated with @tilelink.program"
    raise StageError(f"{word} is a word of programs", hint=hint)


def _missing(name: str) -> None:
    """Raise AttributeError for a name of Python's protocols, which tools look for in every object."""
    if name.startswith("__"):
        raise AttributeError(name)


class Int:
    """An integer: `rank`, `ranks`, an index, a dimension, an entry of a table, or an expression of them.

    With a floating-point number it is a value.
    """

    @overload
    def __add__(self, other: Int | int) -> Int: ...
    @overload
    def __add__(self, other: float) -> Tile: ...
    def __add__(self, other: Any) -> Any:
        outside("rank, an index or a dimension")

    def __eq__(self, other: object) -> builtins.bool:
        outside("rank, an index or a dimension")

    def __lt__(self, other: Int | int) -> builtins.bool:
        outside("rank, an index or a dimension")

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = __xor__ = __add__
    __le__ = __gt__ = __ge__ = __lt__
    __hash__ = object.__hash__


class Index(Int):
    """An index of a stage or a loop: `def add(i: Index = M)` iterates over the tiles of M."""


class Dim(Index):
    """The extent of an index: a dimension parameter of a program, or `ranks`."""

    def __getitem__(self, part: slice) -> Dim:
        """Return the part of the dimension that there is in a launch: `i: Index = M[:m]`, `tiles(T[a[e] : a[e + 1]])`.

        The ends come from index tensors. Where they depend on another index of the stage, the part is assigned at the
        start of the stage: `i = M[: n[s]]`.
        """
        outside("a part of a dimension")


class Coordinate(Dim):
    """A coordinate of the grid of ranks: the place of this rank; in shapes and extents, how many places there are."""


class Group(Dim):
    """Consecutive ranks, `experts = ranks[A:]`: in shapes and extents how many there are."""

    def __getitem__(self, place: Int | int) -> Int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return a rank of the group, its place modulo how many there are."""
        outside("a group of ranks")


class Rank(Int):
    """The number of this rank. `rank.NAME` is its place along a coordinate of the grid, or in a group."""

    def __getattr__(self, name: str) -> Int:
        _missing(name)
        outside("rank")

    def __call__(self, **places: Int | int) -> Int:
        """Return the rank at other places of the grid: `x[i, :] @ rank(tp=tp + 1)`."""
        outside("rank")


class Ranks(Dim):
    """The number of ranks. `ranks.NAME` is how many there are along a coordinate of the grid, or in a group."""

    def __getattr__(self, name: str) -> Dim:
        _missing(name)
        outside("ranks")

    def __getitem__(self, part: slice) -> Group:
        """Declare a group of consecutive ranks: `experts = ranks[A:]`."""
        outside("a part of the ranks")


class Tile:
    """A tile of numbers, [rows, columns] or of another shape; operations broadcast as in NumPy."""

    def __add__(self, other: Tile | Int | float) -> Tile:
        outside("a tile")

    def __getitem__(self, pattern: slice | tuple[slice | None, ...] | None) -> Tile:
        """Insert an axis of size 1: `v[:, None]`."""
        outside("a tile")

    def __matmul__(self, rank: Int | int) -> Tile:
        """Return the same region on rank r: `region @ r`."""
        outside("a tile")

    def __neg__(self) -> Tile:
        outside("a tile")

    def __eq__(self, other: Tile | Int | float) -> Tile:  # pyright: ignore[reportIncompatibleMethodOverride] - as in NumPy
        outside("a tile")

    @property
    def T(self) -> Tile:
        """The tile with its last two axes swapped."""
        outside("a tile")

    def to(self, dtype: DType) -> Tile:
        """Return the tile converted to another element type."""
        outside("a tile")

    def __floordiv__(self, other: Tile | Int | int) -> Tile:
        """Return the floor of the quotient of integers, 0 where the divisor is 0."""
        outside("a tile")

    def __mod__(self, other: Tile | Int | int) -> Tile:
        """Return integers modulo others, with the sign of those, 0 where they are 0."""
        outside("a tile")

    def __lshift__(self, other: Tile | Int | int) -> Tile:
        """Return integers times powers of two, modulo 2**32. The last five bits of the right operand count."""
        outside("a tile")

    def __rshift__(self, other: Tile | Int | int) -> Tile:
        """Return the floor of integers divided by powers of two. The last five bits of the right operand count."""
        outside("a tile")

    def __and__(self, other: Tile | Int | int) -> Tile:
        """Combine the bits of integers, or conditions."""
        outside("a tile")

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__
    __rfloordiv__ = __floordiv__
    __rmod__ = __mod__
    __rlshift__ = __lshift__
    __rrshift__ = __rshift__
    __or__ = __ror__ = __xor__ = __rxor__ = __rand__ = __and__
    __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __eq__  # pyright: ignore[reportAssignmentType] - as in NumPy
    __hash__ = object.__hash__


Place = Int | int | slice | Tile
"""A coordinate of a region: an index (its tile), a number, `:` (the whole dimension), or a row of a table."""


class Tensor(Tile):
    """A tensor declared by a program; `h[i, :]` is a region of it, `h` the whole tensor."""

    def __getitem__(self, at: Place | EllipsisType | tuple[Place, ...]) -> Tile:  # pyright: ignore[reportIncompatibleMethodOverride]
        outside("a tensor")

    def __setitem__(self, at: Place | tuple[Place, ...], value: Tile | Int | float) -> None:
        outside("a tensor")


class Entry(Int, Tile):  # pyright: ignore[reportIncompatibleMethodOverride] - an integer first
    """An entry of an index tensor: an integer that serves as coordinate, rank or end of a range, and a value."""

    @overload
    def __add__(self, other: Int | int) -> Entry: ...
    @overload
    def __add__(self, other: Tile | float) -> Tile: ...
    def __add__(self, other: Any) -> Any:
        outside("an entry of an index tensor")

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __add__  # pyright: ignore[reportAssignmentType]
    __hash__ = object.__hash__


class IndexTensor(Entry):
    """A tensor of integers within a bound, known when a kernel runs: `rows = input(T, bound=M)`, `x[rows[i], :]`.

    One without dimensions is its only entry: `m = input(at_most=M)`, `i: Index = M[:m]`. In a declaration a tensor
    stands for its entry at the same place: `bound=count[owner]`, `output(ranks, M[:ms], N)`.
    """

    def __getitem__(self, at: Place | EllipsisType | tuple[Place, ...]) -> Entry:  # pyright: ignore[reportIncompatibleMethodOverride]
        outside("an index tensor")

    def __setitem__(self, at: Place | tuple[Place, ...], value: Tile | Int | int) -> None:
        outside("an index tensor")


class Table:
    """A tensor of integers, known before the launch; its entries serve as coordinates, ranks or numbers."""

    def __getitem__(self, at: Int | int | slice | tuple[Int | int | slice, ...]) -> Int:
        outside("a table")


class DType:
    """An element type; a call is a cast, `f32(v)`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, value: Tile | Int | float) -> Tile:
        outside(self.name)


class Function:
    """A function that is chosen before the program is built: `activation: Function = identity` (tilelink.variant)."""

    def __call__(self, *values: Tile | Int | float) -> Tile:
        outside("a function parameter")


class Entries(TypedDict, total=False):
    """Promises of the entries of an index tensor (`input`), and its ranks."""

    distinct: builtins.bool
    rising: builtins.bool
    offsets: builtins.bool
    on: Group | None


class GivenEntries(Entries, total=False):
    """The same of an input."""

    replicated: builtins.bool
    symmetric: builtins.bool
    low: Int | int | None
    high: Int | int | None
