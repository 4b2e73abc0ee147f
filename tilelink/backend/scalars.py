"""Integer expressions as source: Triton's dialect of Python, or plain Python for host queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilelink.backend.words import integer
from tilelink.errors import EmitError
from tilelink.ir.intervals import Bounds
from tilelink.ir.scalar import (
    Binary,
    Choose,
    Compare,
    Index,
    Int,
    Logic,
    Lookup,
    Rank,
    Scalar,
    Whole,
)
from tilelink.ir.simplify import simplify

_LEVEL = {"+": 5, "-": 5, "*": 6, "//": 6, "%": 6, "^": 4}


@dataclass(frozen=True, kw_only=True)
class ScalarPrinter:
    """Renders scalars, simplified.

    triton: chooses the dialect. strides: the row-major strides of every table. bounds: of what scalars are made of.
    """

    triton: bool
    strides: Mapping[str, tuple[int, ...]]
    bounds: Bounds

    def __call__(self, expr: Scalar, level: int = 0) -> str:
        """Source of the expression, in parentheses where it binds looser than `level`."""
        return self._print(simplify(expr, self.bounds), level)

    def _print(self, expr: Scalar, level: int = 0) -> str:
        match expr:
            case Int(value=value):
                return integer(value)
            case Index(name=name):
                return name
            case Rank():
                return "rank"
            case Binary(op="min" | "max" as op, left=a, right=b):
                return self._extreme(op, a, b)
            case Binary(op=op, left=a, right=b):
                return self._binary(op, a, b, level)
            case Compare(op=op, left=a, right=b):
                return _wrap(f"{self._print(a, 4)} {op} {self._print(b, 4)}", 3, level)
            case Logic(op="not", args=args):
                return _wrap(f"not {self._print(args[0], 3)}", 2, level)
            case Logic(op=op, args=args):
                return "(" + f" {op} ".join(self._print(a, 3) for a in args) + ")"
            case Lookup(table=table, coords=coords):
                return self.lookup(table, coords)
            case Choose(selector=selector, values=values):
                return self._choose(selector, values)
            case _:
                raise EmitError(f"cannot render {type(expr).__name__}", location=expr.location)

    def _extreme(self, op: str, a: Scalar, b: Scalar) -> str:
        name = {"min": "tl.minimum", "max": "tl.maximum"}[op] if self.triton else op
        return f"{name}({self._print(a)}, {self._print(b)})"

    def _binary(self, op: str, a: Scalar, b: Scalar, level: int) -> str:
        if self.triton and op in ("%", "//") and not (self._nonnegative(a) and self._nonnegative(b)):
            return f"tiles.{'mod' if op == '%' else 'floordiv'}({self._print(a)}, {self._print(b)})"
        own = _LEVEL[op]
        return _wrap(f"{self._print(a, own)} {op} {self._print(b, own + 1)}", own, level)

    def _choose(self, selector: Scalar, values: tuple[int, ...]) -> str:
        if not self.triton:
            return f"({', '.join(map(integer, values))},)[{self._print(selector)}]"
        text = integer(values[-1])
        for position in range(len(values) - 2, -1, -1):
            text = f"tl.where({self._print(selector)} == {position}, {integer(values[position])}, {text})"
        return text

    def _nonnegative(self, expr: Scalar) -> bool:
        """True if the expression is never negative."""
        return self.bounds.of(expr)[0] >= 0

    def lookup(self, table: str, coords: tuple[Scalar | Whole, ...]) -> str:
        """An entry of a table."""
        terms = [
            f"{self(c, 6)} * {n}" for c, n in zip(coords, self.strides[table], strict=True) if isinstance(c, Scalar)
        ]
        offset = " + ".join(terms) or "0"
        return f"tl.load({table} + {offset})" if self.triton else f"queue.entry({table!r}, {offset})"


def _wrap(text: str, own: int, level: int) -> str:
    return f"({text})" if own < level else text
