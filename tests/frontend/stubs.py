"""Writes `tilelink/language/__init__.py`, the words of programs in Python, from their signatures and meanings.

`make test ARGS="--update-golden -k stubs"` writes it anew. The types of the words are in `tilelink/language/types.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilelink.frontend.declare import NOTIFIES, WAITS
from tilelink.ir.program import ELEMENTWISE, REDUCTIONS, SCANS

HEAD = '''\
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
'''
TYPES = ("Coordinate", "DType", "Dim", "Entry", "Function", "Group", "Index", "IndexTensor", "Int", "Rank", "Ranks",
         "Table", "Tensor", "Tile")  # fmt: skip
"""Types that programs name."""
VALUES = '''identity = Function()
"""The function that returns its argument."""
f16, bf16, f32, f8e4m3, f8e5m2 = (DType(name) for name in ("f16", "bf16", "f32", "f8e4m3", "f8e5m2"))
i8, u8, i32, i64 = (DType(name) for name in ("i8", "u8", "i32", "i64"))
rank: Rank = Rank()
"""The number of this rank, from 0."""
ranks: Ranks = Ranks()
"""The number of ranks."""
Stage = Callable[..., None]
Named = TypeVar("Named", Int, int, Tile)
'''
NAMES = ("bf16", "f16", "f32", "f8e4m3", "f8e5m2", "i32", "i64", "i8", "identity", "program", "rank", "ranks", "u8")

OPTIONS = {
    "symmetric": "builtins.bool = False", "dtype": "DType | str | None = None", "default": "float | None = None",
    "low": "Int | float | None = None", "high": "Int | float | None = None", "within": "float | None = None",
    "sum": "builtins.bool = False", "on": "Group | None = None",
}  # fmt: skip
DECLARATIONS = """
input(symmetric dtype default low high on) GivenEntries
    Declare a tensor that the caller passes, one on every rank.

    A dimension `M[:m]` is given up to m in each launch. symmetric: peers may read it. default: the number in its place
    where a variant of the program leaves it out. low, high: the smallest and the largest of the random values that
    commands draw for it.

    bound, at_most: make it an index tensor, whose entries are integers in [0, bound), or in [0, at_most]. distinct: no
    two entries are alike. rising: none is below the one before. offsets: rising, from 0 on.
    replicated: all ranks are given the same entries. The proof assumes these.

    on: the group whose ranks alone have it.
output(symmetric dtype within on)
    Declare a tensor that the launch writes, each element exactly once.

    symmetric: peers may write it. within: max |out - ref| / max |ref| up to which commands call it right. A dimension
    `M[:m]` is defined up to m in each launch. on: the group whose ranks alone have it.
inout(dtype low high within sum)
    Declare a tensor that the caller passes and the launch changes in place; elements that no stage writes stay.

    A stage reads what was there before the launch, or what a write before it has stored: signals order every read and
    every write of an element. sum: `x[i] += v` adds to floats, in any order among other such additions. low,
    high: of the random values that commands draw for it. within: max |out - ref| / max |ref| up to which commands call
    it right.
kept(symmetric dtype within sum on)
    Declare a tensor of the kernel itself, which launches change in place: zeros at first, then what each has left.

    A stage reads what the launch before has left, or what a write before it has stored: signals order every read and
    every write of an element, as of `inout`. symmetric: peers may read and write it. The host reads it by
    `kernel.state()`. sum, within: as of `inout`. on: the group whose ranks alone have it.
local(dtype on) Entries
    Declare memory of the rank for the duration of a launch.

    bound, at_most: make it an index tensor, as of `input`. on: the group whose ranks alone have it.
symmetric(dtype on) Entries
    Declare memory of the rank for the duration of a launch, which peers may read and write.

    bound, at_most: make it an index tensor, as of `input`. on: the group whose ranks alone have it.
"""
"""Declarations of tensors: the options of each, and of those that may be index tensors the options of such ones."""

WORDS = """
table(*shape: Int | int, bound: Int | int) -> Table
    Declare a table of integers in [0, bound) that the caller passes, a different one on every rank.
comm(*stage: Any, **group: Any) -> Any
  (stage: Stage, /) -> Stage
  (*, on: Group) -> Callable[[Stage], Stage]
    Declare a stage that moves tiles between ranks: `@tilelink.comm`.

    on: the group whose ranks execute it, `@tilelink.comm(on=experts)`; without it all do.
compute(*stage: Any, **group: Any) -> Any
  (stage: Stage, /) -> Stage
  (*, on: Group) -> Callable[[Stage], Stage]
    Declare a stage that computes tiles: `@tilelink.compute`.

    on: the group whose ranks execute it, `@tilelink.compute(on=experts)`; without it all do.
grid(*sizes: Any) -> Any
  (size: Int | int | None, /) -> Coordinate
  (first: Int | int | None, second: Int | int, /) -> tuple[Coordinate, Coordinate]
  (first: Int | int | None, second: Int | int, third: Int | int, /) -> tuple[Coordinate, Coordinate, Coordinate]
    Declare the grid that the ranks form, the last coordinate fastest: `dp, tp = tilelink.grid(None, 4)`.

    The first size may be None: as many as the others leave.
tiles(*extents: Any) -> Any
  (extent: Int | int, /) -> Iterator[Index]
  (first: Int | int, second: Int | int, /) -> Iterator[tuple[Index, Index]]
  (first: Int | int, second: Int | int, third: Int | int, /) -> Iterator[tuple[Index, Index, Index]]
    Iterate over tiles, the last index fastest: `for s, j in tiles(ranks, N):`.
let(value: Named, /) -> Named
    Give an integer expression or a region a name: `peer = let((rank + 1) % ranks)`, `row = let(x[i, :])`.

    The expression is put in where the name stands, in the rest of its block or, in a program's body, in all stages.
by(extent: Int | int, size: int, /) -> Dim
    Make an index a number, with tiles of one element: `e: Index = by(E, 1)`, `for e in tiles(by(E, 1)):`.

    size: 1; other sizes are chosen by the schedule's clause `tile`.
tile_push_data(target: Tile, value: Tile) -> None
    Write a tile, either a region or a computed value, to `region @ r`.
tile_pull_data(target: Tile, source: Tile) -> None
    Read `region @ r` into a region of this rank.
rank_copy_data(target: Tile, source: Tile) -> None
    Copy a large region, by the copy engine unless the schedule says otherwise.
notify
    Signal that a region is ready, on this rank or for `region @ r` on rank r.
wait
    Wait until a whole region of this rank is ready.
producer_tile_notify
    `notify`, as the paper calls it.
consumer_tile_wait
    `wait`, as the paper calls it.
peer_tile_notify
    Signal that a region is ready to tiles of the same stage on another rank.
peer_tile_wait
    Wait for `peer_tile_notify`.
rank_notify
    Signal that a whole shard is ready.
rank_wait
    Wait for `rank_notify`.
program_barrier() -> None
    Synchronise the threads of a program; the compiler inserts the barriers that are needed.
dot(left: Tile, right: Tile) -> Tile
    Return the matrix product of [..., m, k] and [..., k, n] as f32 [..., m, n].
sum
    Return the sum along an axis, which is removed.
argmax
    Return the positions, i32, of the first elements that are the largest along an axis, which is removed.
argmin
    Return the positions, i32, of the first elements that are the smallest along an axis, which is removed.
any
    Return a condition: True where some element along an axis, which is removed, is true or not 0.
all
    Return a condition: True where all elements along an axis, which is removed, are true or not 0.
cumsum
    Return the sums of the elements along an axis up to each of them, itself included.
sort
    Return the elements in rising order along an axis, NaN last.
argsort
    Return the positions, i32, of the elements in rising order along an axis; of equal ones the first comes first.
max(value: Tile, axis: Any) -> Tile
  (value: Tile, axis: int) -> Tile
  (value: Tile, axis: Tile) -> Tile
    Return the maximum along an axis, which is removed; of two tiles, the same as `maximum`.
min(value: Tile, axis: Any) -> Tile
  (value: Tile, axis: int) -> Tile
  (value: Tile, axis: Tile) -> Tile
    Return the minimum along an axis, which is removed; of two tiles, the same as `minimum`.
where(condition: Tile | builtins.bool, chosen: Tile | Int | float, other: Tile | Int | float) -> Tile
    Select elements of `chosen` if the condition holds, else of `other`.
maximum
    Return the elementwise maximum; nan if either element is nan.
minimum
    Return the elementwise minimum; nan if either element is nan.
exp
    Return e to the power of each element.
exp2
    Return 2 to the power of each element.
log
    Return the natural logarithm of each element.
sqrt
    Return the square root of each element.
rsqrt
    Return 1 / sqrt(x) of each element.
abs
    Return the absolute value of each element.
relu
    Return max(x, 0) of each element.
sigmoid
    Return 1 / (1 + exp(-x)) of each element.
silu
    Return x * sigmoid(x) of each element.
gelu
    Return x * Phi(x) of each element, computed with the error function.
tanh
    Return the hyperbolic tangent of each element.
zeros(dtype: DType) -> Tile
    Return zeros in the shape of the values they are combined with.
full(value: float, dtype: DType) -> Tile
    Return a constant in the shape of the values it is combined with.
pos(index: Int) -> Tile
    Return the element positions of an index's tile, of a whole dimension, or along a size, `pos(N + 1)`, i32.
online_softmax(dtype: DType) -> Tile
    Return an empty online-softmax state.
attend(state: Tile, q: Tile, k: Tile, v: Tile, scale: Tile | Int | float, mask: Tile | builtins.bool | None = None) -> Tile
    Return the state after more keys: q [m, d], k [n, d], v [n, e]. mask: bool [m, n], or True for a causal one.
finish(state: Tile) -> Tile
    Return the attention output of a state, f32 [m, e].
call(function: Any, *args: Tile) -> Tile
    Return the result of a `@triton.jit` function of a module on tiles: `call(module.function, a, b)`.
"""  # noqa: E501
"""Other words: the signature of each, unless the language has it in a table, its overloads, and its meaning."""
_WORD = re.compile(r"^(?P<name>\w+)(?P<signature>.*)\n(?P<overloads>(?:  \(.*\n)*)(?P<text>(?:(?:    .*)?\n)*)", re.M)


def source() -> str:
    """Return the text of the module."""
    parts = [*_declarations(), *_words()]
    names = sorted({*TYPES, *NAMES, *re.findall(r"^def (\w+)", "\n".join(parts), re.M)})
    lines = (f"    {one}," for one in (*sorted({*TYPES, "Entries", "GivenEntries"}, key=str.lower), "outside"))
    imported = "\n".join(["from tilelink.language.types import (", *lines, ")"])
    head = f"{HEAD}{imported}\n\n__all__ = [\n{_wrapped(names)}]  # fmt: skip\n\n{VALUES}".rstrip()
    return "\n\n\n".join([head, *parts]) + "\n"


def _wrapped(names: list[str]) -> str:
    text = ""
    for name in names:
        last = text.rpartition("\n")[2]
        text += f'\n    "{name}",' if not last or len(last) + len(name) + 4 > 120 else f' "{name}",'
    return f"{text.removeprefix(chr(10))}\n"


def _declarations() -> Iterator[str]:
    for found in _WORD.finditer(DECLARATIONS):
        options, _, entries = found["signature"].removeprefix("(").partition(")")
        entries, said = entries.strip(), ", ".join(f"{one}: {OPTIONS[one]}" for one in options.split())
        overloads = [f"(*shape: Int | int, {said}) -> Tensor"]
        signature = overloads.pop() if not entries else "(*shape: Int | int, **options: Any) -> Any"
        overloads += [
            f"(*shape: Int | int, {which}: Int | int, **options: Unpack[{entries}]) -> IndexTensor"
            for which in ("bound", "at_most")
            if entries
        ]
        yield _function(found["name"], signature, overloads, found["text"])


def _words() -> Iterator[str]:
    for found in _WORD.finditer(WORDS):
        overloads = [one.strip() for one in found["overloads"].splitlines()]
        yield _function(found["name"], found["signature"] or _known(found["name"]), overloads, found["text"])


def _known(name: str) -> str:
    """Return the signature of a word that the language has in a table."""
    if name in (*NOTIFIES, *WAITS):
        return "(region: Tile) -> None"
    if name in (*REDUCTIONS, *SCANS):
        return "(value: Tile, axis: int) -> Tile"
    several = "(left: Tile | Int | float, right: Tile | Int | float) -> Tile"
    return {1: "(value: Tile) -> Tile", 2: several}[ELEMENTWISE[name]]


def _function(name: str, signature: str, overloads: list[str], meaning: str) -> str:
    lines = [line for one in overloads for line in ("@overload", _head(name, one, " ..."))]
    text = meaning.strip()
    end = "\n    " if "\n" in text else ""
    return "\n".join([*lines, _head(name, signature, ""), f'    """{text}{end}"""', f'    outside("{name}")'])


def _head(name: str, signature: str, body: str) -> str:
    """Return the line of a signature, or several if it is too long for one."""
    line = f"def {name}{signature}:{body}"
    if len(line) <= 120:
        return line
    inside, _, result = signature[1:].rpartition(")")
    middle = f"def {name}(\n    {inside}\n){result}:{body}"
    if len(inside) + 4 <= 120 and ("/" in inside or ("= None" in inside and "*" not in inside)):
        return middle
    parts = re.split(r", (?![^\[]*\])", inside)
    return f"def {name}(\n" + "".join(f"    {one},\n" for one in parts) + f"){result}:{body}"
