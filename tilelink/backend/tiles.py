"""Rendered values, and how Triton names their types."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.ir.typing import Axis

TRITON = {"f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32", "i32": "tl.int32", "bool": "tl.int1"}
LOW = ("f16", "bf16")
"""Types that are computed with in f32."""
MOST_BRACKETS = 30
"""How deep brackets stand in one line: CPython takes 200, Triton's compiler walks less."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A rendered value: its source, its dtype as rendered, its axes."""

    text: str
    dtype: str
    axes: tuple[Axis, ...] = ()


def aligned(tile: Tile, size: int) -> str:
    """The tile as one of `size` axes, for broadcasting; a scalar stays one."""
    missing = size - len(tile.axes)
    if not tile.axes or not missing:
        return tile.text
    view = ", ".join(["None"] * missing + [":"] * len(tile.axes))
    return f"({tile.text})[{view}]"


FLOAT_ONLY = ("exp", "log", "sqrt")
"""Triton's functions that take no integers."""


def as_operands(op: str, dtype: str, tiles: list[Tile]) -> list[Tile]:
    """The operands of an operation in the types that Triton needs to compute what the language means.

    dtype: of the result. Integers are conditions where they are not zero, and conditions are the numbers 0 and 1.
    """
    if op in ("and", "or"):
        return [truth(t) for t in tiles]
    if op == "where":
        return [truth(tiles[0]), *(_number(t, dtype) for t in tiles[1:])]
    if op in FLOAT_ONLY:
        return [t if t.dtype == "f32" else _cast(t, "f32") for t in tiles]
    return [_number(t, dtype) for t in tiles]


def truth(tile: Tile) -> Tile:
    """A tile as a condition: integers are true where they are not zero."""
    return tile if tile.dtype == "bool" else replace(tile, text=f"({tile.text} != 0)", dtype="bool")


def _number(tile: Tile, dtype: str) -> Tile:
    """An operand of what gives a number of a type."""
    return _cast(tile, dtype) if tile.dtype == "bool" and dtype != "bool" else tile


def _cast(tile: Tile, dtype: str) -> Tile:
    return replace(tile, text=f"tl.cast({tile.text}, {TRITON[dtype]})", dtype=dtype)


def in_kernel(tile: Tile) -> Tile:
    """A number that Python may know as one of the kernel's, in whose arithmetic it is then."""
    return replace(tile, text=f"tl.full((), {tile.text}, {TRITON[tile.dtype]})")


def nests(text: str) -> bool:
    """True if round brackets of a text stand deeper inside one another than a line should have them."""
    if text.count("(") <= MOST_BRACKETS:
        return False
    most = depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        most = max(most, depth)
    return most > MOST_BRACKETS
