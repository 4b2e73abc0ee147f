"""Rendered values, and Triton's names for their types."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.ir.typing import Axis

TRITON = {
    "f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32", "f8e4m3": "tl.float8e4nv", "f8e5m2": "tl.float8e5",
    "i8": "tl.int8", "u8": "tl.uint8", "i32": "tl.int32", "i64": "tl.int64", "bool": "tl.int1",
}  # fmt: skip
MAX_BRACKETS = 30
"""Deepest nesting of brackets in one line. CPython allows 200, Triton's compiler fewer."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A rendered value: its source, its dtype as rendered, its axes."""

    text: str
    dtype: str
    axes: tuple[Axis, ...] = ()


def aligned(tile: Tile, size: int) -> str:
    """Return the tile with `size` axes, for broadcasting. A scalar stays one."""
    missing = size - len(tile.axes)
    if not tile.axes or not missing:
        return tile.text
    view = ", ".join(["None"] * missing + [":"] * len(tile.axes))
    return f"({tile.text})[{view}]"


FLOAT_ONLY = ("exp", "exp2", "log", "sqrt")
"""Triton's functions that take no integers."""


def as_operands(op: str, dtype: str, tiles: list[Tile]) -> list[Tile]:
    """Return the operands of an operation in the types with which Triton computes what the language means.

    dtype: of the result. A nonzero integer is a true condition, and conditions are the numbers 0 and 1.
    """
    if op in ("and", "or", "any", "all"):
        return [truth(t) for t in tiles]
    if op == "where":
        return [truth(tiles[0]), *(_number(t, dtype) for t in tiles[1:])]
    if op in FLOAT_ONLY:
        return [t if t.dtype == "f32" else _cast(t, "f32") for t in tiles]
    return [_number(t, dtype) for t in tiles]


def truth(tile: Tile) -> Tile:
    """Return a tile as a condition: nonzero integers are true."""
    return tile if tile.dtype == "bool" else replace(tile, text=f"({tile.text} != 0)", dtype="bool")


def _number(tile: Tile, dtype: str) -> Tile:
    """Return an operand of an operation that gives a number of a type."""
    wider = tile.dtype == "bool" and dtype != "bool"
    return _cast(tile, dtype) if wider or (dtype == "i64" and tile.dtype == "i32") else tile


def _cast(tile: Tile, dtype: str) -> Tile:
    return replace(tile, text=f"tl.cast({tile.text}, {TRITON[dtype]})", dtype=dtype)


def in_kernel(tile: Tile) -> Tile:
    """Return a number that Python may evaluate as a value of the kernel, so that it has the kernel's arithmetic."""
    return replace(tile, text=f"tl.full((), {tile.text}, {TRITON[tile.dtype]})")


def nests(text: str) -> bool:
    """True if the parentheses of a text are nested deeper than a line should have them."""
    if text.count("(") <= MAX_BRACKETS:
        return False
    most = depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        most = max(most, depth)
    return most > MAX_BRACKETS
