"""Integer expressions as source: Triton's dialect of Python, or plain Python for host queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilelink.backend.constants import FACTOR, LEVEL, enclosed, scaled, total, wrap
from tilelink.backend.expression_names import Names
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
    binary,
    const,
)
from tilelink.ir.simplify import simplify


@dataclass(frozen=True, kw_only=True)
class EntryWords:
    """How a stage waits for an entry that travels as a word.

    channel: the first one of the buffer, in source. sizes, strides: of its channels along each dimension. stage: its
    number.
    """

    channel: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    stage: int

    def receive(self, pointer: str, last: str, channel: str) -> str:
        """Return the call that waits for an entry."""
        where = f"channel={channel}, debug_block=debug_block, stage={self.stage}, tile=tile"
        return f"dl.received_entry({pointer}, epoch, {last}, {where})"


@dataclass(frozen=True, kw_only=True)
class ScalarPrinter:
    """Renders scalars, simplified.

    triton: True for Triton's dialect. strides: row-major strides of every table, as factors. bounds: value ranges of
    the operands. names: names of the numbers, or None.
    bases: index tensor -> pointer to its first entry, after the waits of the tile. words: index tensor whose entries
    travel as words -> (channel of entry, other arguments), by which a kernel waits for one.
    """

    triton: bool
    strides: Mapping[str, tuple[str, ...]]
    bounds: Bounds
    names: Names | None = None
    bases: Mapping[str, str] = field(default_factory=dict[str, str])
    words: Mapping[str, EntryWords] = field(default_factory=dict[str, "EntryWords"])
    received: Mapping[Lookup, str] = field(default_factory=dict[Lookup, str])
    """Entries, with simplified coordinates -> the names that hold them already."""
    unreadable: frozenset[str] = frozenset()
    """Index tensors of which a role of warps has received entries alone: it may read none of them in memory."""

    def __call__(self, expr: Scalar, level: int = 0) -> str:
        """Return the source of an expression, in parentheses if it binds looser than `level`."""
        return self._print(simplify(expr, self.bounds), level)

    def _print(self, expr: Scalar, level: int = 0, *, of_ranks: bool = False) -> str:
        """Return the source of an expression. of_ranks: True if it is part of a sum modulo the number of ranks."""
        match expr:
            case Int(value=value) if of_ranks and self.names and (name := self.names.rank(value)) is not None:
                return wrap(name, LEVEL["-"] if " " in name else FACTOR, level)
            case Int(value=value):
                return integer(value)
            case Index(name=name):
                return name
            case Rank():
                return "rank"
            case Binary(op="min" | "max" as op, left=a, right=b):
                return self._extreme(op, a, b)
            case Binary(op=op, left=a, right=b):
                return self._binary(op, a, b, level, of_ranks)
            case Compare(op=op, left=a, right=b):
                return wrap(f"{self._print(a, 4)} {op} {self._print(b, 4)}", 3, level)
            case Logic(op="not", args=args):
                return wrap(f"not {self._print(args[0], 3)}", 2, level)
            case Logic(op=op, args=args):
                return "(" + f" {op} ".join(self._print(a, 3) for a in args) + ")"
            case Lookup():
                return self.lookup(expr)
            case Choose(selector=selector, values=values):
                return self._choose(selector, values)
            case _:
                hint = "kernels have integers for parameters and the number of ranks: emit what tilelink.compile binds"
                raise EmitError(f"cannot render {type(expr).__name__}", location=expr.location, hint=hint)

    def _extreme(self, op: str, a: Scalar, b: Scalar) -> str:
        name = {"min": "tl.minimum", "max": "tl.maximum"}[op] if self.triton else op
        return f"{name}({self._term(a)}, {self._term(b)})"

    def _binary(self, op: str, a: Scalar, b: Scalar, level: int, of_ranks: bool) -> str:
        precedence = LEVEL[op]
        ranks = op == "%" and isinstance(b, Int) and self.names is not None and self.names.counts_ranks(a, b.value)
        inner = ranks or (of_ranks and op in ("+", "-"))
        if self.triton and op in ("%", "//") and not (self._nonnegative(a) and self._nonnegative(b)):
            name = "mod" if op == "%" else "floordiv"
            return f"tiles.{name}({self._print(a, of_ranks=inner)}, {self._right(op, a, b, 0, ranks)})"
        left = self._term(a, precedence) if op == "-" and not inner else self._print(a, precedence, of_ranks=inner)
        return wrap(f"{left} {op} {self._right(op, a, b, precedence + 1, inner)}", precedence, level)

    def _right(self, op: str, a: Scalar, b: Scalar, level: int, of_ranks: bool) -> str:
        """Return the right operand, whose name depends on the operator."""
        name = None
        if isinstance(b, Int) and self.names is not None and not of_ranks:
            match op:
                case "*":
                    name = self.names.factor(a, b.value)
                case "//":
                    name = self.names.divisor(b.value)
                case "%":
                    name = self.names.modulus(b.value)
                case _:
                    name = None
        if name is None:
            return self._print(b, level, of_ranks=of_ranks)
        return wrap(name, FACTOR if " " not in name or enclosed(name) else LEVEL["*"], level)

    def _term(self, expr: Scalar, level: int = 0) -> str:
        """Return an operand of a difference or a minimum."""
        name = self.names.term(expr.value) if isinstance(expr, Int) and self.names is not None else None
        return self._print(expr, level) if name is None else name

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

    def _channel(self, table: str, coords: tuple[Scalar | Whole, ...]) -> str:
        words = self.words[table]
        places = [binary("//", c, const(n)) for c, n in zip(coords, words.sizes, strict=True) if isinstance(c, Scalar)]
        terms = [scaled(self(c, LEVEL["*"]), str(n)) for c, n in zip(places, words.strides, strict=True)]
        return total([words.channel, *(term for term in terms if term != "0")])

    def _offset(self, table: str, coords: tuple[Scalar | Whole, ...]) -> str:
        """Return the number of a table entry, in source."""
        pairs = zip(coords, self.strides[table], strict=True)
        return total(scaled(self(c, LEVEL["*"]), n) for c, n in pairs if isinstance(c, Scalar))

    def entry(self, entry: Lookup) -> Lookup:
        """Return an entry by which it is known again: with simplified coordinates."""
        coords = (simplify(c, self.bounds) if isinstance(c, Scalar) else c for c in entry.coords)
        return replace(entry, coords=tuple(coords))

    def lookup(self, entry: Lookup) -> str:
        """Return the source of a table entry."""
        table, coords = entry.table, entry.coords
        if self.received and (name := self.received.get(self.entry(entry))) is not None:
            return name
        if table in self.unreadable:
            hint = "emit the lowered program that was verified, unchanged"
            raise EmitError(f"an entry of {table} that the loader does not hand on", location=entry.location, hint=hint)
        offset = self._offset(table, coords)
        if table in self.bases:
            pointer = total([self.bases[table], *([offset] if offset != "0" else [])])
            last = f"last={self.bounds.tables[table][1]}"
            if table in self.words:
                return self.words[table].receive(pointer, last, self._channel(table, coords))
            return f"tiles.entry({pointer}, {last})"
        return f"tl.load({table} + {offset})" if self.triton else f"queue.entry({table!r}, {offset})"
