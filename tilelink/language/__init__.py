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

Generated from a table by tests/frontend/stubs.py. Its types are in types.py.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, Unpack, overload

from tilelink.frontend.python import program
from tilelink.language.types import (
    Coordinate,
    Dim,
    DType,
    Entries,
    Entry,
    Function,
    GivenEntries,
    Group,
    Index,
    IndexTensor,
    Int,
    Rank,
    Ranks,
    Table,
    Tensor,
    Tile,
    outside,
)

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

identity = Function()
"""The function that returns its argument."""
f16, bf16, f32, f8e4m3, f8e5m2 = (DType(name) for name in ("f16", "bf16", "f32", "f8e4m3", "f8e5m2"))
i8, u8, i32, i64 = (DType(name) for name in ("i8", "u8", "i32", "i64"))
rank: Rank = Rank()
"""The number of this rank, from 0."""
ranks: Ranks = Ranks()
"""The number of ranks."""
Stage = Callable[..., None]
Named = TypeVar("Named", Int, int, Tile)


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
    outside("input")


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
    outside("output")


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
    outside("inout")


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
    outside("kept")


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
    outside("local")


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
    outside("symmetric")


def table(*shape: Int | int, bound: Int | int) -> Table:
    """Declare a table of integers in [0, bound) that the caller passes, a different one on every rank."""
    outside("table")


@overload
def comm(stage: Stage, /) -> Stage: ...
@overload
def comm(*, on: Group) -> Callable[[Stage], Stage]: ...
def comm(*stage: Any, **group: Any) -> Any:
    """Declare a stage that moves tiles between ranks: `@tilelink.comm`.

    on: the group whose ranks execute it, `@tilelink.comm(on=experts)`; without it all do.
    """
    outside("comm")


@overload
def compute(stage: Stage, /) -> Stage: ...
@overload
def compute(*, on: Group) -> Callable[[Stage], Stage]: ...
def compute(*stage: Any, **group: Any) -> Any:
    """Declare a stage that computes tiles: `@tilelink.compute`.

    on: the group whose ranks execute it, `@tilelink.compute(on=experts)`; without it all do.
    """
    outside("compute")


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
    outside("grid")


@overload
def tiles(extent: Int | int, /) -> Iterator[Index]: ...
@overload
def tiles(first: Int | int, second: Int | int, /) -> Iterator[tuple[Index, Index]]: ...
@overload
def tiles(first: Int | int, second: Int | int, third: Int | int, /) -> Iterator[tuple[Index, Index, Index]]: ...
def tiles(*extents: Any) -> Any:
    """Iterate over tiles, the last index fastest: `for s, j in tiles(ranks, N):`."""
    outside("tiles")


def let(value: Named, /) -> Named:
    """Give an integer expression or a region a name: `peer = let((rank + 1) % ranks)`, `row = let(x[i, :])`.

    The expression is put in where the name stands, in the rest of its block or, in a program's body, in all stages.
    """
    outside("let")


def by(extent: Int | int, size: int, /) -> Dim:
    """Make an index a number, with tiles of one element: `e: Index = by(E, 1)`, `for e in tiles(by(E, 1)):`.

    size: 1; other sizes are chosen by the schedule's clause `tile`.
    """
    outside("by")


def tile_push_data(target: Tile, value: Tile) -> None:
    """Write a tile, either a region or a computed value, to `region @ r`."""
    outside("tile_push_data")


def tile_pull_data(target: Tile, source: Tile) -> None:
    """Read `region @ r` into a region of this rank."""
    outside("tile_pull_data")


def rank_copy_data(target: Tile, source: Tile) -> None:
    """Copy a large region, by the copy engine unless the schedule says otherwise."""
    outside("rank_copy_data")


def notify(region: Tile) -> None:
    """Signal that a region is ready, on this rank or for `region @ r` on rank r."""
    outside("notify")


def wait(region: Tile) -> None:
    """Wait until a whole region of this rank is ready."""
    outside("wait")


def producer_tile_notify(region: Tile) -> None:
    """`notify`, as the paper calls it."""
    outside("producer_tile_notify")


def consumer_tile_wait(region: Tile) -> None:
    """`wait`, as the paper calls it."""
    outside("consumer_tile_wait")


def peer_tile_notify(region: Tile) -> None:
    """Signal that a region is ready to tiles of the same stage on another rank."""
    outside("peer_tile_notify")


def peer_tile_wait(region: Tile) -> None:
    """Wait for `peer_tile_notify`."""
    outside("peer_tile_wait")


def rank_notify(region: Tile) -> None:
    """Signal that a whole shard is ready."""
    outside("rank_notify")


def rank_wait(region: Tile) -> None:
    """Wait for `rank_notify`."""
    outside("rank_wait")


def program_barrier() -> None:
    """Synchronise the threads of a program; the compiler inserts the barriers that are needed."""
    outside("program_barrier")


def dot(left: Tile, right: Tile) -> Tile:
    """Return the matrix product of [..., m, k] and [..., k, n] as f32 [..., m, n]."""
    outside("dot")


def sum(value: Tile, axis: int) -> Tile:
    """Return the sum along an axis, which is removed."""
    outside("sum")


def argmax(value: Tile, axis: int) -> Tile:
    """Return the positions, i32, of the first elements that are the largest along an axis, which is removed."""
    outside("argmax")


def argmin(value: Tile, axis: int) -> Tile:
    """Return the positions, i32, of the first elements that are the smallest along an axis, which is removed."""
    outside("argmin")


def any(value: Tile, axis: int) -> Tile:
    """Return a condition: True where some element along an axis, which is removed, is true or not 0."""
    outside("any")


def all(value: Tile, axis: int) -> Tile:
    """Return a condition: True where all elements along an axis, which is removed, are true or not 0."""
    outside("all")


def cumsum(value: Tile, axis: int) -> Tile:
    """Return the sums of the elements along an axis up to each of them, itself included."""
    outside("cumsum")


def sort(value: Tile, axis: int) -> Tile:
    """Return the elements in rising order along an axis, NaN last."""
    outside("sort")


def argsort(value: Tile, axis: int) -> Tile:
    """Return the positions, i32, of the elements in rising order along an axis; of equal ones the first comes first."""
    outside("argsort")


@overload
def max(value: Tile, axis: int) -> Tile: ...
@overload
def max(value: Tile, axis: Tile) -> Tile: ...
def max(value: Tile, axis: Any) -> Tile:
    """Return the maximum along an axis, which is removed; of two tiles, the same as `maximum`."""
    outside("max")


@overload
def min(value: Tile, axis: int) -> Tile: ...
@overload
def min(value: Tile, axis: Tile) -> Tile: ...
def min(value: Tile, axis: Any) -> Tile:
    """Return the minimum along an axis, which is removed; of two tiles, the same as `minimum`."""
    outside("min")


def where(condition: Tile | builtins.bool, chosen: Tile | Int | float, other: Tile | Int | float) -> Tile:
    """Select elements of `chosen` if the condition holds, else of `other`."""
    outside("where")


def maximum(left: Tile | Int | float, right: Tile | Int | float) -> Tile:
    """Return the elementwise maximum; nan if either element is nan."""
    outside("maximum")


def minimum(left: Tile | Int | float, right: Tile | Int | float) -> Tile:
    """Return the elementwise minimum; nan if either element is nan."""
    outside("minimum")


def exp(value: Tile) -> Tile:
    """Return e to the power of each element."""
    outside("exp")


def exp2(value: Tile) -> Tile:
    """Return 2 to the power of each element."""
    outside("exp2")


def log(value: Tile) -> Tile:
    """Return the natural logarithm of each element."""
    outside("log")


def sqrt(value: Tile) -> Tile:
    """Return the square root of each element."""
    outside("sqrt")


def rsqrt(value: Tile) -> Tile:
    """Return 1 / sqrt(x) of each element."""
    outside("rsqrt")


def abs(value: Tile) -> Tile:
    """Return the absolute value of each element."""
    outside("abs")


def relu(value: Tile) -> Tile:
    """Return max(x, 0) of each element."""
    outside("relu")


def sigmoid(value: Tile) -> Tile:
    """Return 1 / (1 + exp(-x)) of each element."""
    outside("sigmoid")


def silu(value: Tile) -> Tile:
    """Return x * sigmoid(x) of each element."""
    outside("silu")


def gelu(value: Tile) -> Tile:
    """Return x * Phi(x) of each element, computed with the error function."""
    outside("gelu")


def tanh(value: Tile) -> Tile:
    """Return the hyperbolic tangent of each element."""
    outside("tanh")


def zeros(dtype: DType) -> Tile:
    """Return zeros in the shape of the values they are combined with."""
    outside("zeros")


def full(value: float, dtype: DType) -> Tile:
    """Return a constant in the shape of the values it is combined with."""
    outside("full")


def pos(index: Int) -> Tile:
    """Return the element positions of an index's tile, of a whole dimension, or along a size, `pos(N + 1)`, i32."""
    outside("pos")


def online_softmax(dtype: DType) -> Tile:
    """Return an empty online-softmax state."""
    outside("online_softmax")


def attend(
    state: Tile, q: Tile, k: Tile, v: Tile, scale: Tile | Int | float, mask: Tile | builtins.bool | None = None
) -> Tile:
    """Return the state after more keys: q [m, d], k [n, d], v [n, e]. mask: bool [m, n], or True for a causal one."""
    outside("attend")


def finish(state: Tile) -> Tile:
    """Return the attention output of a state, f32 [m, e]."""
    outside("finish")


def call(function: Any, *args: Tile) -> Tile:
    """Return the result of a `@triton.jit` function of a module on tiles: `call(module.function, a, b)`."""
    outside("call")
