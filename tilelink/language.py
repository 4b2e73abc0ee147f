"""Typed names of the language for programs written as Python functions: `from tilelink.language import dot, rank`.

A program is parsed and never called (`tilelink.program`), so it may use the names without importing them. Imported,
they are known to editors and type checkers. Used outside of a program, they raise StageError.

```python
import tilelink
from tilelink.language import Dim, Index, notify, rank, tile_push_data, wait


@tilelink.program
def neighbour_sum(M: Dim, N: Dim) -> None:
    x = tilelink.input(M, N)
    left = tilelink.symmetric(M, N)
    y = tilelink.output(M, N)

    @tilelink.comm
    def send(i: Index = M) -> None:
        tile_push_data(left[i, :] @ (rank + 1), x[i, :])
        notify(left[i, :] @ (rank + 1))  # this and the wait may be left out

    @tilelink.compute
    def add(i: Index = M, j: Index = N) -> None:
        wait(left[i, j])
        y[i, j] = x[i, j] + left[i, j]
```
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from types import EllipsisType
from typing import Any, NoReturn, TypedDict, TypeVar, Unpack, overload

from tilelink.errors import StageError
from tilelink.frontend.python import program

__all__ = [
    "Coordinate", "DType", "Dim", "Entry", "Function", "Group", "Index", "IndexTensor", "Int", "Rank", "Ranks", "Table",
    "Tensor", "Tile", "abs", "all", "any", "argmax", "argmin", "argsort", "attend", "bf16", "by", "call", "comm",
    "compute", "consumer_tile_wait", "cumsum", "dot", "exp", "exp2", "f16", "f32", "f8e4m3", "f8e5m2", "finish", "full",
    "gelu", "grid", "i32", "i64", "i8", "identity", "inout", "input", "kept", "let", "local", "log", "max", "maximum",
    "min", "minimum", "notify", "online_softmax", "output", "peer_tile_notify", "peer_tile_wait", "pos",
    "producer_tile_notify", "program", "program_barrier", "rank", "rank_copy_data", "rank_notify", "rank_wait", "ranks",
    "relu", "rsqrt", "sigmoid", "silu", "sort", "sqrt", "sum", "symmetric", "table", "tanh", "tile_pull_data",
    "tile_push_data", "tiles", "u8", "wait", "where", "zeros",
]  # fmt: skip


def _outside(word: str) -> NoReturn:
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
        _outside("rank, an index or a dimension")

    def __eq__(self, other: object) -> builtins.bool:
        _outside("rank, an index or a dimension")

    def __lt__(self, other: Int | int) -> builtins.bool:
        _outside("rank, an index or a dimension")

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
        _outside("a part of a dimension")


class Coordinate(Dim):
    """A coordinate of the grid of ranks: the place of this rank; in shapes and extents, how many places there are."""


class Group(Dim):
    """Consecutive ranks, `experts = ranks[A:]`: in shapes and extents how many there are."""

    def __getitem__(self, place: Int | int) -> Int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return a rank of the group, its place modulo how many there are."""
        _outside("a group of ranks")


class Rank(Int):
    """The number of this rank. `rank.NAME` is its place along a coordinate of the grid, or in a group."""

    def __getattr__(self, name: str) -> Int:
        _missing(name)
        _outside("rank")

    def __call__(self, **places: Int | int) -> Int:
        """Return the rank at other places of the grid: `x[i, :] @ rank(tp=tp + 1)`."""
        _outside("rank")


class Ranks(Dim):
    """The number of ranks. `ranks.NAME` is how many there are along a coordinate of the grid, or in a group."""

    def __getattr__(self, name: str) -> Dim:
        _missing(name)
        _outside("ranks")

    def __getitem__(self, part: slice) -> Group:
        """Declare a group of consecutive ranks: `experts = ranks[A:]`."""
        _outside("a part of the ranks")


class Tile:
    """A tile of numbers, [rows, columns] or of another shape; operations broadcast as in NumPy."""

    def __add__(self, other: Tile | Int | float) -> Tile:
        _outside("a tile")

    def __getitem__(self, pattern: slice | tuple[slice | None, ...] | None) -> Tile:
        """Insert an axis of size 1: `v[:, None]`."""
        _outside("a tile")

    def __matmul__(self, rank: Int | int) -> Tile:
        """Return the same region on rank r: `region @ r`."""
        _outside("a tile")

    def __neg__(self) -> Tile:
        _outside("a tile")

    def __eq__(self, other: Tile | Int | float) -> Tile:  # pyright: ignore[reportIncompatibleMethodOverride] - as in NumPy
        _outside("a tile")

    @property
    def T(self) -> Tile:
        """The tile with its last two axes swapped."""
        _outside("a tile")

    def to(self, dtype: DType) -> Tile:
        """Return the tile converted to another element type."""
        _outside("a tile")

    def __floordiv__(self, other: Tile | Int | int) -> Tile:
        """Return the floor of the quotient of integers, 0 where the divisor is 0."""
        _outside("a tile")

    def __mod__(self, other: Tile | Int | int) -> Tile:
        """Return integers modulo others, with the sign of those, 0 where they are 0."""
        _outside("a tile")

    def __lshift__(self, other: Tile | Int | int) -> Tile:
        """Return integers times powers of two, modulo 2**32. The last five bits of the right operand count."""
        _outside("a tile")

    def __rshift__(self, other: Tile | Int | int) -> Tile:
        """Return the floor of integers divided by powers of two. The last five bits of the right operand count."""
        _outside("a tile")

    def __and__(self, other: Tile | Int | int) -> Tile:
        """Combine the bits of integers, or conditions."""
        _outside("a tile")

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
        _outside("a tensor")

    def __setitem__(self, at: Place | tuple[Place, ...], value: Tile | Int | float) -> None:
        _outside("a tensor")


class Entry(Int, Tile):  # pyright: ignore[reportIncompatibleMethodOverride] - an integer first
    """An entry of an index tensor: an integer that serves as coordinate, rank or end of a range, and a value."""

    @overload
    def __add__(self, other: Int | int) -> Entry: ...
    @overload
    def __add__(self, other: Tile | float) -> Tile: ...
    def __add__(self, other: Any) -> Any:
        _outside("an entry of an index tensor")

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __add__  # pyright: ignore[reportAssignmentType]
    __hash__ = object.__hash__


class IndexTensor(Entry):
    """A tensor of integers within a bound, known when a kernel runs: `rows = input(T, bound=M)`, `x[rows[i], :]`.

    One without dimensions is its only entry: `m = input(at_most=M)`, `i: Index = M[:m]`. In a declaration a tensor
    stands for its entry at the same place: `bound=count[owner]`, `output(ranks, M[:ms], N)`.
    """

    def __getitem__(self, at: Place | EllipsisType | tuple[Place, ...]) -> Entry:  # pyright: ignore[reportIncompatibleMethodOverride]
        _outside("an index tensor")

    def __setitem__(self, at: Place | tuple[Place, ...], value: Tile | Int | int) -> None:
        _outside("an index tensor")


class Table:
    """A tensor of integers, known before the launch; its entries serve as coordinates, ranks or numbers."""

    def __getitem__(self, at: Int | int | slice | tuple[Int | int | slice, ...]) -> Int:
        _outside("a table")


class DType:
    """An element type; a call is a cast, `f32(v)`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, value: Tile | Int | float) -> Tile:
        _outside(self.name)


class Function:
    """A function that is chosen before the program is built: `activation: Function = identity` (tilelink.variant)."""

    def __call__(self, *values: Tile | Int | float) -> Tile:
        _outside("a function parameter")


identity = Function()
"""The function that returns its argument."""
f16, bf16, f32, f8e4m3, f8e5m2 = (DType(name) for name in ("f16", "bf16", "f32", "f8e4m3", "f8e5m2"))
i8, u8, i32, i64 = (DType(name) for name in ("i8", "u8", "i32", "i64"))
rank: Rank = Rank()
"""The number of this rank, from 0."""
ranks: Ranks = Ranks()
"""The number of ranks."""


# Declarations ------------------------------------------------------------------------------------------------


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


@overload
def input(
    *shape: Int | int,
    symmetric: builtins.bool = False,
    dtype: DType | str | None = None,
    default: float | None = None,
    low: Int | float | None = None,
    high: Int | float | None = None,
    on: Group | None = None,
) -> Tensor: ...
@overload
def input(*shape: Int | int, bound: Int | int, **options: Unpack[GivenEntries]) -> IndexTensor: ...
@overload
def input(*shape: Int | int, at_most: Int | int, **options: Unpack[GivenEntries]) -> IndexTensor: ...
def input(*shape: Int | int, **options: Any) -> Any:
    """Declare a tensor that the caller passes, one on every rank.

    A dimension `M[:m]` is given up to m in each launch. symmetric: peers may read it. default: the number in its place
    where a variant of the program leaves it out. low, high: the smallest and the largest of the random values that
    commands draw for it.

    bound, at_most: make it an index tensor, whose entries are integers in [0, bound), or in [0, at_most]. distinct: no
    two entries are alike. rising: none is below the one before. offsets: rising, from 0 on.
    replicated: all ranks are given the same entries. The proof assumes these.

    on: the group whose ranks alone have it.
    """
    _outside("input")


def output(
    *shape: Int | int,
    symmetric: builtins.bool = False,
    dtype: DType | str | None = None,
    within: float | None = None,
    on: Group | None = None,
) -> Tensor:
    """Declare a tensor that the launch writes, each element exactly once.

    symmetric: peers may write it. within: max |out - ref| / max |ref| up to which commands call it right. A dimension
    `M[:m]` is defined up to m in each launch. on: the group whose ranks alone have it.
    """
    _outside("output")


def inout(
    *shape: Int | int,
    dtype: DType | str | None = None,
    low: Int | float | None = None,
    high: Int | float | None = None,
    within: float | None = None,
    sum: builtins.bool = False,
) -> Tensor:
    """Declare a tensor that the caller passes and the launch changes in place; elements that no stage writes stay.

    A stage reads what was there before the launch, or what a write before it has stored: signals order every read and
    every write of an element. sum: `x[i] += v` adds to floats, in any order among other such additions. low,
    high: of the random values that commands draw for it. within: max |out - ref| / max |ref| up to which commands call
    it right.
    """
    _outside("inout")


def kept(
    *shape: Int | int,
    symmetric: builtins.bool = False,
    dtype: DType | str | None = None,
    within: float | None = None,
    sum: builtins.bool = False,
    on: Group | None = None,
) -> Tensor:
    """Declare a tensor of the kernel itself, which launches change in place: zeros at first, then what each has left.

    A stage reads what the launch before has left, or what a write before it has stored: signals order every read and
    every write of an element, as of `inout`. symmetric: peers may read and write it. The host reads it by
    `kernel.state()`. sum, within: as of `inout`. on: the group whose ranks alone have it.
    """
    _outside("kept")


@overload
def local(*shape: Int | int, dtype: DType | str | None = None, on: Group | None = None) -> Tensor: ...
@overload
def local(*shape: Int | int, bound: Int | int, **options: Unpack[Entries]) -> IndexTensor: ...
@overload
def local(*shape: Int | int, at_most: Int | int, **options: Unpack[Entries]) -> IndexTensor: ...
def local(*shape: Int | int, **options: Any) -> Any:
    """Declare memory of the rank for the duration of a launch.

    bound, at_most: make it an index tensor, as of `input`. on: the group whose ranks alone have it.
    """
    _outside("local")


@overload
def symmetric(*shape: Int | int, dtype: DType | str | None = None, on: Group | None = None) -> Tensor: ...
@overload
def symmetric(*shape: Int | int, bound: Int | int, **options: Unpack[Entries]) -> IndexTensor: ...
@overload
def symmetric(*shape: Int | int, at_most: Int | int, **options: Unpack[Entries]) -> IndexTensor: ...
def symmetric(*shape: Int | int, **options: Any) -> Any:
    """Declare memory of the rank for the duration of a launch, which peers may read and write.

    bound, at_most: make it an index tensor, as of `input`. on: the group whose ranks alone have it.
    """
    _outside("symmetric")


def table(*shape: Int | int, bound: Int | int) -> Table:
    """Declare a table of integers in [0, bound) that the caller passes, a different one on every rank."""
    _outside("table")


Stage = Callable[..., None]


@overload
def comm(stage: Stage, /) -> Stage: ...
@overload
def comm(*, on: Group) -> Callable[[Stage], Stage]: ...
def comm(*stage: Any, **group: Any) -> Any:
    """Declare a stage that moves tiles between ranks: `@tilelink.comm`.

    on: the group whose ranks execute it, `@tilelink.comm(on=experts)`; without it all do.
    """
    _outside("comm")


@overload
def compute(stage: Stage, /) -> Stage: ...
@overload
def compute(*, on: Group) -> Callable[[Stage], Stage]: ...
def compute(*stage: Any, **group: Any) -> Any:
    """Declare a stage that computes tiles: `@tilelink.compute`.

    on: the group whose ranks execute it, `@tilelink.compute(on=experts)`; without it all do.
    """
    _outside("compute")


@overload
def grid(size: Int | int | None, /) -> Coordinate: ...
@overload
def grid(first: Int | int | None, second: Int | int, /) -> tuple[Coordinate, Coordinate]: ...
@overload
def grid(
    first: Int | int | None, second: Int | int, third: Int | int, /
) -> tuple[Coordinate, Coordinate, Coordinate]: ...
def grid(*sizes: Any) -> Any:
    """Declare the grid that the ranks form, the last coordinate fastest: `dp, tp = tilelink.grid(None, 4)`.

    The first size may be None: as many as the others leave.
    """
    _outside("grid")


@overload
def tiles(extent: Int | int, /) -> Iterator[Index]: ...
@overload
def tiles(first: Int | int, second: Int | int, /) -> Iterator[tuple[Index, Index]]: ...
@overload
def tiles(first: Int | int, second: Int | int, third: Int | int, /) -> Iterator[tuple[Index, Index, Index]]: ...
def tiles(*extents: Any) -> Any:
    """Iterate over tiles, the last index fastest: `for s, j in tiles(ranks, N):`."""
    _outside("tiles")


# Names -------------------------------------------------------------------------------------------------------


Named = TypeVar("Named", Int, int, Tile)


def let(value: Named, /) -> Named:
    """Give an integer expression or a region a name: `peer = let((rank + 1) % ranks)`, `row = let(x[i, :])`.

    The expression is put in where the name stands, in the rest of its block or, in a program's body, in all stages.
    """
    _outside("let")


def by(extent: Int | int, size: int, /) -> Dim:
    """Make an index a number, with tiles of one element: `e: Index = by(E, 1)`, `for e in tiles(by(E, 1)):`.

    size: 1; other sizes are chosen by the schedule's clause `tile`.
    """
    _outside("by")


# Primitives --------------------------------------------------------------------------------------------------


def tile_push_data(target: Tile, value: Tile) -> None:
    """Write a tile, either a region or a computed value, to `region @ r`."""
    _outside("tile_push_data")


def tile_pull_data(target: Tile, source: Tile) -> None:
    """Read `region @ r` into a region of this rank."""
    _outside("tile_pull_data")


def rank_copy_data(target: Tile, source: Tile) -> None:
    """Copy a large region, by the copy engine unless the schedule says otherwise."""
    _outside("rank_copy_data")


def notify(region: Tile) -> None:
    """Signal that a region is ready, on this rank or for `region @ r` on rank r."""
    _outside("notify")


def wait(region: Tile) -> None:
    """Wait until a whole region of this rank is ready."""
    _outside("wait")


def producer_tile_notify(region: Tile) -> None:
    """`notify`, as the paper calls it."""
    _outside("producer_tile_notify")


def consumer_tile_wait(region: Tile) -> None:
    """`wait`, as the paper calls it."""
    _outside("consumer_tile_wait")


def peer_tile_notify(region: Tile) -> None:
    """Signal that a region is ready to tiles of the same stage on another rank."""
    _outside("peer_tile_notify")


def peer_tile_wait(region: Tile) -> None:
    """Wait for `peer_tile_notify`."""
    _outside("peer_tile_wait")


def rank_notify(region: Tile) -> None:
    """Signal that a whole shard is ready."""
    _outside("rank_notify")


def rank_wait(region: Tile) -> None:
    """Wait for `rank_notify`."""
    _outside("rank_wait")


def program_barrier() -> None:
    """Synchronise the threads of a program; the compiler inserts the barriers that are needed."""
    _outside("program_barrier")


# Values ------------------------------------------------------------------------------------------------------


def dot(left: Tile, right: Tile) -> Tile:
    """Return the matrix product of [..., m, k] and [..., k, n] as f32 [..., m, n]."""
    _outside("dot")


def sum(value: Tile, axis: int) -> Tile:
    """Return the sum along an axis, which is removed."""
    _outside("sum")


def argmax(value: Tile, axis: int) -> Tile:
    """Return the positions, i32, of the first elements that are the largest along an axis, which is removed."""
    _outside("argmax")


def argmin(value: Tile, axis: int) -> Tile:
    """Return the positions, i32, of the first elements that are the smallest along an axis, which is removed."""
    _outside("argmin")


def any(value: Tile, axis: int) -> Tile:
    """Return a condition: True where some element along an axis, which is removed, is true or not 0."""
    _outside("any")


def all(value: Tile, axis: int) -> Tile:
    """Return a condition: True where all elements along an axis, which is removed, are true or not 0."""
    _outside("all")


def cumsum(value: Tile, axis: int) -> Tile:
    """Return the sums of the elements along an axis up to each of them, itself included."""
    _outside("cumsum")


def sort(value: Tile, axis: int) -> Tile:
    """Return the elements in rising order along an axis, NaN last."""
    _outside("sort")


def argsort(value: Tile, axis: int) -> Tile:
    """Return the positions, i32, of the elements in rising order along an axis; of equal ones the first comes first."""
    _outside("argsort")


@overload
def max(value: Tile, axis: int) -> Tile: ...
@overload
def max(value: Tile, axis: Tile) -> Tile: ...
def max(value: Tile, axis: Any) -> Tile:
    """Return the maximum along an axis, which is removed; of two tiles, the same as `maximum`."""
    _outside("max")


@overload
def min(value: Tile, axis: int) -> Tile: ...
@overload
def min(value: Tile, axis: Tile) -> Tile: ...
def min(value: Tile, axis: Any) -> Tile:
    """Return the minimum along an axis, which is removed; of two tiles, the same as `minimum`."""
    _outside("min")


def where(condition: Tile | builtins.bool, chosen: Tile | Int | float, other: Tile | Int | float) -> Tile:
    """Select elements of `chosen` if the condition holds, else of `other`."""
    _outside("where")


def maximum(left: Tile | Int | float, right: Tile | Int | float) -> Tile:
    """Return the elementwise maximum; nan if either element is nan."""
    _outside("maximum")


def minimum(left: Tile | Int | float, right: Tile | Int | float) -> Tile:
    """Return the elementwise minimum; nan if either element is nan."""
    _outside("minimum")


def exp(value: Tile) -> Tile:
    """Return e to the power of each element."""
    _outside("exp")


def exp2(value: Tile) -> Tile:
    """Return 2 to the power of each element."""
    _outside("exp2")


def log(value: Tile) -> Tile:
    """Return the natural logarithm of each element."""
    _outside("log")


def sqrt(value: Tile) -> Tile:
    """Return the square root of each element."""
    _outside("sqrt")


def rsqrt(value: Tile) -> Tile:
    """Return 1 / sqrt(x) of each element."""
    _outside("rsqrt")


def abs(value: Tile) -> Tile:
    """Return the absolute value of each element."""
    _outside("abs")


def relu(value: Tile) -> Tile:
    """Return max(x, 0) of each element."""
    _outside("relu")


def sigmoid(value: Tile) -> Tile:
    """Return 1 / (1 + exp(-x)) of each element."""
    _outside("sigmoid")


def silu(value: Tile) -> Tile:
    """Return x * sigmoid(x) of each element."""
    _outside("silu")


def gelu(value: Tile) -> Tile:
    """Return x * Phi(x) of each element, computed with the error function."""
    _outside("gelu")


def tanh(value: Tile) -> Tile:
    """Return the hyperbolic tangent of each element."""
    _outside("tanh")


def zeros(dtype: DType) -> Tile:
    """Return zeros in the shape of the values they are combined with."""
    _outside("zeros")


def full(value: float, dtype: DType) -> Tile:
    """Return a constant in the shape of the values it is combined with."""
    _outside("full")


def pos(index: Int) -> Tile:
    """Return the element positions of an index's tile, of a whole dimension, or along a size, `pos(N + 1)`, i32."""
    _outside("pos")


def online_softmax(dtype: DType) -> Tile:
    """Return an empty online-softmax state."""
    _outside("online_softmax")


def attend(
    state: Tile, q: Tile, k: Tile, v: Tile, scale: Tile | Int | float, mask: Tile | builtins.bool | None = None
) -> Tile:
    """Return the state after more keys: q [m, d], k [n, d], v [n, e]. mask: bool [m, n], or True for a causal one."""
    _outside("attend")


def finish(state: Tile) -> Tile:
    """Return the attention output of a state, f32 [m, e]."""
    _outside("finish")


def call(function: Any, *args: Tile) -> Tile:
    """Return the result of a `@triton.jit` function of a module on tiles: `call(module.function, a, b)`."""
    _outside("call")
