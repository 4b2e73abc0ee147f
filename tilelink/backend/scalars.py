"""Integer expressions as source: Triton's dialect of Python, or plain Python for host queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilelink.backend.words import integer
from tilelink.errors import EmitError
from tilelink.ir.scalar import (
    Binary,
    Choose,
    Compare,
    Env,
    Index,
    Int,
    Logic,
    Lookup,
    Rank,
    Scalar,
    Whole,
    evaluate,
    walk,
)

_LEVEL = {"+": 5, "-": 5, "*": 6, "//": 6, "%": 6, "^": 4}


@dataclass(frozen=True, kw_only=True)
class ScalarPrinter:
    """Renders scalars. `triton` chooses the dialect; `strides` gives the row-major strides of every table."""

    triton: bool
    strides: Mapping[str, tuple[int, ...]]

    def __call__(self, expr: Scalar, level: int = 0) -> str:
        """Source of the expression, in parentheses where it binds looser than `level`."""
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
                return _wrap(f"{self(a, 4)} {op} {self(b, 4)}", 3, level)
            case Logic(op="not", args=args):
                return _wrap(f"not {self(args[0], 3)}", 2, level)
            case Logic(op=op, args=args):
                return "(" + f" {op} ".join(self(a, 3) for a in args) + ")"
            case Lookup(table=table, coords=coords):
                return self.lookup(table, coords)
            case Choose(selector=selector, values=values):
                return self._choose(selector, values)
            case _:
                raise EmitError(f"cannot render {type(expr).__name__}", location=expr.location)

    def _extreme(self, op: str, a: Scalar, b: Scalar) -> str:
        name = {"min": "tl.minimum", "max": "tl.maximum"}[op] if self.triton else op
        return f"{name}({self(a)}, {self(b)})"

    def _binary(self, op: str, a: Scalar, b: Scalar, level: int) -> str:
        if self.triton and op in ("%", "//") and not (natural(a) and natural(b)):
            return f"tiles.{'mod' if op == '%' else 'floordiv'}({self(a)}, {self(b)})"
        own = _LEVEL[op]
        return _wrap(f"{self(a, own)} {op} {self(b, own + 1)}", own, level)

    def _choose(self, selector: Scalar, values: tuple[int, ...]) -> str:
        if not self.triton:
            return f"({', '.join(map(integer, values))},)[{self(selector)}]"
        text = integer(values[-1])
        for position in range(len(values) - 2, -1, -1):
            text = f"tl.where({self(selector)} == {position}, {integer(values[position])}, {text})"
        return text

    def lookup(self, table: str, coords: tuple[Scalar | Whole, ...]) -> str:
        """An entry of a table."""
        terms = [
            f"{self(c, 6)} * {n}" for c, n in zip(coords, self.strides[table], strict=True) if isinstance(c, Scalar)
        ]
        offset = " + ".join(terms) or "0"
        return f"tl.load({table} + {offset})" if self.triton else f"queue.entry({table!r}, {offset})"


def _wrap(text: str, own: int, level: int) -> str:
    return f"({text})" if own < level else text


def natural(expr: Scalar) -> bool:
    """Whether the expression can never be negative."""
    match expr:
        case Int(value=value):
            return value >= 0
        case Index() | Rank() | Lookup():
            return True
        case Binary(op="%", right=Int(value=value)):
            return value > 0
        case Binary(op="max", left=a, right=b):
            return natural(a) or natural(b)
        case Binary(op="-"):
            return False
        case Binary(left=a, right=b):
            return natural(a) and natural(b)
        case Choose(values=values):
            return min(values) >= 0
        case _:
            return False


def on_all_ranks(expr: Scalar, ranks: int) -> int | None:
    """The value that an expression has on every rank, None unless it is the same wherever and whenever it is asked."""
    if any(isinstance(e, Index | Lookup) for e in walk(expr)):
        return None
    found = {int(evaluate(expr, Env(rank=rank, ranks=ranks, params={}, indices={}))) for rank in range(ranks)}
    return found.pop() if len(found) == 1 else None
