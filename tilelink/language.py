"""The words of programs that are written as Python functions, typed: `from tilelink.language import dot, rank`.

A program is read and never called (`tilelink.program`), so it also may use the words without importing them. Imported
they are known to editors and to type checkers; used outside of a program they raise StageError.

```python
import tilelink
from tilelink.language import Dim, Index, consumer_tile_wait, producer_tile_notify, rank, tile_push_data


@tilelink.program
def neighbour_sum(M: Dim, N: Dim) -> None:
    x = tilelink.input(M, N)
    left = tilelink.symmetric(M, N)
    y = tilelink.output(M, N)

    @tilelink.comm
    def send(i: Index = M) -> None:
        tile_push_data(left[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(left[i, :] @ (rank + 1))

    @tilelink.compute
    def add(i: Index = M, j: Index = N) -> None:
        consumer_tile_wait(left[i, j])
        y[i, j] = x[i, j] + left[i, j]
```
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from types import EllipsisType
from typing import Any, NoReturn, overload

from tilelink.errors import StageError
from tilelink.frontend.python import program

__all__ = [
    "DType",
    "Dim",
    "Index",
    "Int",
    "Table",
    "Tensor",
    "Tile",
    "abs",
    "attend",
    "bf16",
    "call",
    "comm",
    "compute",
    "consumer_tile_wait",
    "dot",
    "exp",
    "f16",
    "f32",
    "finish",
    "full",
    "gelu",
    "i32",
    "input",
    "local",
    "log",
    "max",
    "maximum",
    "min",
    "minimum",
    "online_softmax",
    "output",
    "peer_tile_notify",
    "peer_tile_wait",
    "pos",
    "producer_tile_notify",
    "program",
    "program_barrier",
    "rank",
    "rank_copy_data",
    "rank_notify",
    "rank_wait",
    "ranks",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "sqrt",
    "sum",
    "symmetric",
    "table",
    "tanh",
    "tile_pull_data",
    "tile_push_data",
    "tiles",
    "where",
    "zeros",
]


def _outside(word: str) -> NoReturn:
    hint = "write it inside a function decorated with @tilelink.program"
    raise StageError(f"{word} is a word of programs", hint=hint)


class Int:
    """An integer: `rank`, `ranks`, an index, a dimension, an entry of a table, and what is made of them."""

    def __add__(self, other: Int | int) -> Int:
        _outside("rank, an index or a dimension")

    def __eq__(self, other: object) -> builtins.bool:
        _outside("rank, an index or a dimension")

    def __lt__(self, other: Int | int) -> builtins.bool:
        _outside("rank, an index or a dimension")

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = __xor__ = __add__
    __le__ = __gt__ = __ge__ = __lt__
    __hash__ = object.__hash__


class Index(Int):
    """An index of a stage or a loop: `def add(i: Index = M)` runs over the tiles of M."""


class Dim(Index):
    """A dimension, which is a parameter of a program, or the ranks; the extent of an index."""


class Tile:
    """A tile of numbers, [rows, columns] or of other shapes; operations broadcast as in NumPy."""

    def __add__(self, other: Tile | Int | float) -> Tile:
        _outside("a tile")

    def __getitem__(self, pattern: slice | tuple[slice | None, ...] | None) -> Tile:
        """`v[:, None]` has another axis of one element."""
        _outside("a tile")

    def __matmul__(self, rank: Int | int) -> Tile:
        """`region @ r` is the same region on rank r."""
        _outside("a tile")

    def __neg__(self) -> Tile:
        _outside("a tile")

    def __eq__(self, other: Tile | Int | float) -> Tile:  # pyright: ignore[reportIncompatibleMethodOverride] - as in NumPy
        _outside("a tile")

    @property
    def T(self) -> Tile:
        """The last two axes swapped."""
        _outside("a tile")

    def to(self, dtype: DType) -> Tile:
        """The tile in another element type."""
        _outside("a tile")

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__
    __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __eq__  # pyright: ignore[reportAssignmentType] - as in NumPy
    __hash__ = object.__hash__


Coordinate = Int | int | slice | Tile
"""Of a region: an index (its tile), a number, `:` (the whole dimension), or a row of a table."""


class Tensor(Tile):
    """A tensor that a program declares; `h[i, :]` is a region of it, `h` all of it."""

    def __getitem__(self, at: Coordinate | EllipsisType | tuple[Coordinate, ...]) -> Tile:  # pyright: ignore[reportIncompatibleMethodOverride]
        _outside("a tensor")

    def __setitem__(self, at: Coordinate | tuple[Coordinate, ...], value: Tile | Int | float) -> None:
        _outside("a tensor")


class Table:
    """A tensor of integers that is known before a launch; its entries are coordinates, ranks, or numbers."""

    def __getitem__(self, at: Int | int | slice | tuple[Int | int | slice, ...]) -> Int:
        _outside("a table")


class DType:
    """An element type; called it is a cast, `f32(v)`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, value: Tile | Int | float) -> Tile:
        _outside(self.name)


f16, bf16, f32, i32 = (DType(name) for name in ("f16", "bf16", "f32", "i32"))
rank: Int = Int()
"""The number of the own rank, from 0 on."""
ranks: Dim = Dim()
"""How many ranks there are."""


# Declarations ------------------------------------------------------------------------------------------------


def input(*shape: Int | int, symmetric: builtins.bool = False, dtype: DType | str | None = None) -> Tensor:
    """A tensor that the caller gives, on every rank one. symmetric: peers may read it."""
    _outside("input")


def output(*shape: Int | int, symmetric: builtins.bool = False, dtype: DType | str | None = None) -> Tensor:
    """A tensor that the launch fills, each element once. symmetric: peers may write it."""
    _outside("output")


def local(*shape: Int | int, dtype: DType | str | None = None) -> Tensor:
    """Memory of the rank during a launch."""
    _outside("local")


def symmetric(*shape: Int | int, dtype: DType | str | None = None) -> Tensor:
    """Memory of the rank during a launch that peers may read and write."""
    _outside("symmetric")


def table(*shape: Int | int, bound: Int | int) -> Table:
    """Integers in [0, bound) that the caller gives, on every rank their own."""
    _outside("table")


def comm(stage: Callable[..., None]) -> Callable[..., None]:
    """A stage that moves tiles between ranks: `@tilelink.comm`."""
    _outside("comm")


def compute(stage: Callable[..., None]) -> Callable[..., None]:
    """A stage that computes tiles: `@tilelink.compute`."""
    _outside("compute")


@overload
def tiles(extent: Int | int, /) -> Iterator[Index]: ...
@overload
def tiles(first: Int | int, second: Int | int, /) -> Iterator[tuple[Index, Index]]: ...
@overload
def tiles(first: Int | int, second: Int | int, third: Int | int, /) -> Iterator[tuple[Index, Index, Index]]: ...
def tiles(*extents: Any) -> Any:
    """A loop over tiles, of which the last index runs fastest: `for s, j in tiles(ranks, N):`."""
    _outside("tiles")


# Primitives --------------------------------------------------------------------------------------------------


def tile_push_data(target: Tile, value: Tile) -> None:
    """Writes a tile, a region or what is computed, to `region @ r`."""
    _outside("tile_push_data")


def tile_pull_data(target: Tile, source: Tile) -> None:
    """Fetches `region @ r`."""
    _outside("tile_pull_data")


def rank_copy_data(target: Tile, source: Tile) -> None:
    """Copies a large region, by the copy engine unless scheduled otherwise."""
    _outside("rank_copy_data")


def producer_tile_notify(region: Tile) -> None:
    """Says that a region is ready; `region @ r` on rank r."""
    _outside("producer_tile_notify")


def consumer_tile_wait(region: Tile) -> None:
    """Waits until all of a region of the own rank is ready."""
    _outside("consumer_tile_wait")


def peer_tile_notify(region: Tile) -> None:
    """Says so between tiles of one stage on different ranks."""
    _outside("peer_tile_notify")


def peer_tile_wait(region: Tile) -> None:
    """Waits for `peer_tile_notify`."""
    _outside("peer_tile_wait")


def rank_notify(region: Tile) -> None:
    """Says so of whole shards."""
    _outside("rank_notify")


def rank_wait(region: Tile) -> None:
    """Waits for `rank_notify`."""
    _outside("rank_wait")


def program_barrier() -> None:
    """Makes the threads of a program meet; compiling places those that are needed."""
    _outside("program_barrier")


# Values ------------------------------------------------------------------------------------------------------


def dot(left: Tile, right: Tile) -> Tile:
    """The product [.., m, k] x [.., k, n], f32."""
    _outside("dot")


def sum(value: Tile, axis: int) -> Tile:
    """The sum along an axis."""
    _outside("sum")


@overload
def max(value: Tile, axis: int) -> Tile: ...
@overload
def max(value: Tile, axis: Tile) -> Tile: ...
def max(value: Tile, axis: Any) -> Tile:
    """The largest along an axis; of two tiles, as `maximum`."""
    _outside("max")


@overload
def min(value: Tile, axis: int) -> Tile: ...
@overload
def min(value: Tile, axis: Tile) -> Tile: ...
def min(value: Tile, axis: Any) -> Tile:
    """The smallest along an axis; of two tiles, as `minimum`."""
    _outside("min")


def where(condition: Tile | builtins.bool, chosen: Tile | Int | float, other: Tile | Int | float) -> Tile:
    """`chosen` where the condition holds, else `other`."""
    _outside("where")


def maximum(left: Tile | Int | float, right: Tile | Int | float) -> Tile:
    """The larger one of each two elements; nan where one is."""
    _outside("maximum")


def minimum(left: Tile | Int | float, right: Tile | Int | float) -> Tile:
    """The smaller one of each two elements; nan where one is."""
    _outside("minimum")


def exp(value: Tile) -> Tile:
    """e to the power of each element."""
    _outside("exp")


def log(value: Tile) -> Tile:
    """The natural logarithm."""
    _outside("log")


def sqrt(value: Tile) -> Tile:
    """The square root."""
    _outside("sqrt")


def rsqrt(value: Tile) -> Tile:
    """1 / sqrt."""
    _outside("rsqrt")


def abs(value: Tile) -> Tile:
    """The absolute value."""
    _outside("abs")


def relu(value: Tile) -> Tile:
    """max(x, 0)."""
    _outside("relu")


def sigmoid(value: Tile) -> Tile:
    """1 / (1 + exp(-x))."""
    _outside("sigmoid")


def silu(value: Tile) -> Tile:
    """x * sigmoid(x)."""
    _outside("silu")


def gelu(value: Tile) -> Tile:
    """x * Phi(x), by the error function."""
    _outside("gelu")


def tanh(value: Tile) -> Tile:
    """The hyperbolic tangent."""
    _outside("tanh")


def zeros(dtype: DType) -> Tile:
    """Zeros of the shape of what they are combined with."""
    _outside("zeros")


def full(value: float, dtype: DType) -> Tile:
    """A number, of the shape of what it is combined with."""
    _outside("full")


def pos(index: Index) -> Tile:
    """The element positions of an index's tile, i32."""
    _outside("pos")


def online_softmax(dtype: DType) -> Tile:
    """The state of a streaming attention that has attended to nothing."""
    _outside("online_softmax")


def attend(
    state: Tile, q: Tile, k: Tile, v: Tile, scale: Tile | Int | float, mask: Tile | builtins.bool | None = None
) -> Tile:
    """The state after more keys: q [m, d], k [n, d], v [n, e], mask [m, n] or whether it is causal."""
    _outside("attend")


def finish(state: Tile) -> Tile:
    """What a state has attended to, [m, e] f32."""
    _outside("finish")


def call(function: Any, *args: Tile) -> Tile:
    """What a `@triton.jit` function of a module makes of tiles: `call(module.function, a, b)`."""
    _outside("call")
