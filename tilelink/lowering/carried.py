"""Loops inside a tile that carry a state and multiply twice: what is kept times what streams, then the result times it.

Attention is such a loop, and so are linear attention and attention to a window. An iteration of the loop multiplies an
operand that all iterations have in common (the queries) and a tile of the *leading* operand (the keys), computes with
the product, and adds to a carried name the product of the result and a tile of the *trailing* operand (the values). A
condition such as `if t <= n:` around all of an iteration leaves out iterations at the start or the end, and so does a
part of a dimension that a launch decides. What is computed may read vectors: of rows, once a tile or in an iteration,
and of columns in an iteration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilelink.ir.products import operand_region, products_of
from tilelink.ir.program import (
    Apply,
    Assign,
    Cast,
    Dot,
    Expand,
    For,
    FromScalar,
    Full,
    If,
    Literal,
    Local,
    Notify,
    Positions,
    Read,
    Reduce,
    Region,
    Statement,
    Store,
    Transpose,
    Value,
    Wait,
)
from tilelink.ir.scalar import Compare, Index, Logic, Scalar, walk
from tilelink.ir.visitor import local_names, reads, statements, value_of, values
from tilelink.lowering.reason import reason_at

ROWS = (True, False)
"""The pattern of an expansion that gives each row of a tile the number of that row."""


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A tile whose loop carries a state, in parts.

    waits: before the loop. begin: the numbers that names have before it. vectors: what is computed before it, of rows.
    guard: the condition under which there is an iteration, or None. awaited: waits of an iteration. compute: statements
    between the products of an iteration, where `scores` is the name of the first one. name: the carried name to which
    the second one is added. rescaled: what it is added to. weights: its left operand. after: statements between the
    loop and the notifies, of which the last one stores the tile, and others may store a number for each row.
    """

    waits: tuple[Wait, ...]
    begin: tuple[Assign, ...]
    vectors: tuple[Assign, ...]
    loop: For
    guard: Scalar | None
    awaited: tuple[Wait, ...]
    scores: str
    product: Dot
    compute: tuple[Assign, ...]
    name: str
    rescaled: Value
    weights: Value
    sums: Dot
    after: tuple[Statement, ...]

    @property
    def first(self) -> Statement:
        """Return the statement of the first product."""
        body = self.loop.body
        iteration = body[0].then if self.guard is not None and isinstance(body[0], If) else body
        return iteration[len(self.awaited)]

    @property
    def stored(self) -> tuple[Store, ...]:
        """Return the stores of a number for each row, such as the log of a sum that attention backward needs."""
        return tuple(s for s in self.after[:-1] if isinstance(s, Store))

    @property
    def computed(self) -> tuple[Value, ...]:
        """Return what an iteration computes besides its products."""
        return (*(s.value for s in self.compute), self.weights, self.rescaled)

    @property
    def reads(self) -> tuple[Region, ...]:
        """Return the regions that an iteration computes with, besides the operands of its products."""
        return tuple(dict.fromkeys(region for value in self.computed for region in reads(value)))

    @property
    def loaded(self) -> tuple[Region, ...]:
        """Return the regions that consumers load to compute with, before the loop too."""
        before = (region for s in self.vectors for region in reads(s.value))
        return tuple(dict.fromkeys((*before, *self.reads)))

    @property
    def kept(self) -> Region:
        return operand_region(self.product.left)

    @property
    def leading(self) -> Region:
        return operand_region(self.product.right)

    @property
    def trailing(self) -> Region:
        return operand_region(self.sums.right)


@dataclass(frozen=True, kw_only=True)
class Mask:
    """When consumers make a choice by positions: where it may not take its first value for all of a consumer's rows.

    statement: its number among the statements between the products of an iteration. first, further: in the first
    iteration of a tile, and in others: always (True), never (False), or where an expression holds, of indices and of
    PART, the number of the consumer.
    """

    statement: int
    first: Scalar | bool
    further: Scalar | bool


def computes_with_iterations(tile: Carried) -> bool:
    """True if what an iteration computes depends on its place."""
    own = {decl.name for decl in tile.loop.indices}
    return bool(own & _indices_of(tile)) or any(_uses(region, own) for region in tile.reads)


def computes_with_places(tile: Carried) -> bool:
    """True if what is computed depends on the place of the tile."""
    moved = tile.guard is not None or any(decl.counted for decl in tile.loop.indices)
    return moved or bool(tile.stored or tile.vectors or tile.reads or _indices_of(tile))


def _indices_of(tile: Carried) -> set[str]:
    """Return the indices whose numbers or positions a tile computes with."""
    after = [value for s in (*tile.vectors, *tile.after) if (value := value_of(s)) is not None]
    every = [one for value in (*tile.computed, *after) for one in values(value)]
    found: set[str] = {one.index for one in every if isinstance(one, Positions)}
    numbers = [e for one in every if isinstance(one, FromScalar) for e in walk(one.scalar)]
    return found | {e.name for e in numbers if isinstance(e, Index)}


def row_sums(tile: Carried) -> dict[str, tuple[Value | None, Value]]:
    """Return the names that only sum up rows: name -> what an iteration multiplies it with, and the tile whose rows it
    adds.

    Such a name may be kept as several sums of each row, which are added up after the loop.
    """
    begun = {s.name for s in tile.begin if isinstance(s.value, Full) and s.value.value == 0}
    found: dict[str, tuple[Value | None, Value]] = {}
    for statement in tile.compute:
        match statement.value:
            case Apply(op="add", args=(old, Reduce(op="sum", value=added))):
                match old:
                    case Local(name=name):
                        factor = None
                    case Apply(op="mul", args=(Local(name=name), factor)):
                        pass
                    case _:
                        continue
                if name == statement.name and name in begun:
                    found[name] = factor, added
            case _:
                pass
    read = [v.name for one in tile.computed for v in values(one) if isinstance(v, Local)]
    return {name: one for name, one in found.items() if read.count(name) == 1}


# The parts of a tile -----------------------------------------------------------------------------------------


def carried(body: tuple[Statement, ...]) -> Carried | str:
    """Return the parts of a tile whose only loop carries a state, or why it has none."""
    loops = [n for n, s in enumerate(body) if isinstance(s, For)]
    if len(loops) != 1:
        text = "its tiles have more loops than one"
        return reason_at(body[loops[1]], text) if loops else text
    loop = body[loops[0]]
    assert isinstance(loop, For)
    before, after = body[: loops[0]], body[loops[0] + 1 :]
    notifies = next((n for n, s in enumerate(reversed(after)) if not isinstance(s, Notify)), len(after))
    after = after[: len(after) - notifies]
    waits = tuple(s for s in before if isinstance(s, Wait))
    begin = tuple(s for s in before if isinstance(s, Assign) and _is_number(s))
    vectors = tuple(s for s in before if isinstance(s, Assign) and not _is_number(s))
    inside = {s.name for s in statements((loop,)) if isinstance(s, Assign)}
    if other := [s for s in before if not isinstance(s, Wait | Assign) or (s in vectors and s.name in inside)]:
        text = "before its loop its tiles do more than to wait, to begin names with numbers, and to compute vectors"
        return reason_at(other[0], text)
    if not after or not isinstance(after[-1], Store) or not all(isinstance(s, Assign | Store) for s in after):
        text = "after its loop its tiles do not compute, store once and notify"
        return reason_at(after[-1] if after else loop, text)
    if adding := [s for s in after if isinstance(s, Store) and s.adds]:
        return reason_at(adding[0], "it adds to memory where others may add, too")
    if multiplied := [s for s in after if products_of(value_of(s))]:
        return reason_at(multiplied[0], "its tiles multiply after their loop")
    guard, inner = None, loop.body
    match inner:
        case (If(condition=guard, then=inner, orelse=()),):
            if len(conditions(guard)) == 0:
                text = "its loop leaves out iterations by another condition than the first and the last of an index"
                return reason_at(loop.body[0], text)
        case _:
            pass
    iteration = _iteration(inner)
    if isinstance(iteration, str):
        return iteration
    awaited, first, compute, last = iteration
    assert isinstance(first.value, Dot) and isinstance(last.value, Apply)
    (sums,) = products_of(last.value)
    rescaled = next(a for a in last.value.args if a is not sums)
    found = Carried(
        waits=waits, begin=begin, vectors=vectors, loop=loop, guard=guard, awaited=awaited, scores=first.name,
        product=first.value, compute=compute, name=last.name, rescaled=rescaled, weights=sums.left, sums=sums,
        after=after,
    )  # fmt: skip
    return _wrong(found, inner) or found


def number_of(value: Value) -> float | None:
    """Return the number that a value is whatever the inputs are, or None."""
    match value:
        case Literal(value=number) | Full(value=number) if not isinstance(number, bool):
            return float(number)
        case Apply(op="log", args=(inner,)) if (number := number_of(inner)) is not None and number >= 0:
            return math.log(number) if number else -math.inf
        case Apply(op="neg", args=(inner,)) if (number := number_of(inner)) is not None:
            return -number
        case _:
            return None


def _is_number(statement: Statement) -> bool:
    """True if a statement gives a name a number."""
    return isinstance(statement, Assign) and number_of(statement.value) is not None


Iteration = tuple[tuple[Wait, ...], Assign, tuple[Assign, ...], Assign]


def conditions(guard: Scalar) -> list[Compare]:
    """Return the comparisons of a condition that are to be true together, or nothing for another condition."""
    match guard:
        case Compare(op="<" | "<=" | ">" | ">="):
            return [guard]
        case Logic(op="and", args=args):
            parts = [conditions(one) for one in args]
            return [one for part in parts for one in part] if all(parts) else []
        case _:
            return []


def _iteration(body: tuple[Statement, ...]) -> Iteration | str:
    """Return the waits, the first product, the statements between, and the second product, or why there are none."""
    number = next((n for n, s in enumerate(body) if not isinstance(s, Wait)), len(body))
    awaited, rest = body[:number], body[number:]
    assigns = [s for s in rest if isinstance(s, Assign)]
    if len(assigns) < len(rest):
        other = next(s for s in rest if not isinstance(s, Assign))
        return reason_at(other, "an iteration of its loop does more than to wait and then compute")
    multiplied = [s for s in assigns if products_of(s.value)]
    if len(multiplied) != 2 or any(len(products_of(s.value)) > 1 for s in multiplied):
        text = "an iteration of its loop does not multiply twice"
        return reason_at(multiplied[-1], text) if multiplied else text
    first, last = multiplied
    before = assigns[: next(n for n, s in enumerate(assigns) if s is first)]
    if not isinstance(first.value, Dot) or before:
        return reason_at(before[0] if before else first, "an iteration of its loop does not begin with a product")
    value = last.value
    if not (isinstance(value, Apply) and value.op == "add" and any(isinstance(a, Dot) for a in value.args)):
        return reason_at(last, "an iteration of its loop does not add its second product to a name")
    compute = tuple(s for s in assigns if s is not first and s is not last)
    return tuple(s for s in awaited if isinstance(s, Wait)), first, compute, last


def _wrong(found: Carried, body: tuple[Statement, ...]) -> str | None:
    """Return why the parts cannot be executed in the order of roles, or None."""
    own = {decl.name for decl in found.loop.indices}
    kept, trailing = found.product.left, found.sums.right
    leading = found.product.right.value if isinstance(found.product.right, Transpose) else None
    if not isinstance(kept, Read) or kept.region.rank is not None or _uses(kept.region, own):
        common = "a region of its own rank that all iterations have in common"
        return reason_at(kept, f"the left operand of the first product is not {common}")
    if not isinstance(leading, Read) or leading.region.rank is not None:
        text = "the right operand of the first product is not a transposed region of its own rank"
        return reason_at(found.product.right, text)
    if not isinstance(trailing, Read) or trailing.region.rank is not None:
        return reason_at(trailing, "the right operand of the second product is not a region of its own rank")
    if not _uses(leading.region, own) or not _uses(trailing.region, own):
        same = trailing if _uses(leading.region, own) else leading
        return reason_at(same, "an operand of its loop is the same in all iterations")
    if not local_names(found.weights):
        return reason_at(found.weights, "the left operand of the second product is not computed in an iteration")
    if found.name not in local_names(found.rescaled):
        return reason_at(found.rescaled, f"its loop does not add to {found.name}")
    for statement in found.compute:
        if found.name in local_names(statement.value) or statement.name == found.name:
            return reason_at(statement, f"an iteration of its loop computes with {found.name}")
    used = local_names(found.rescaled) | local_names(found.weights) - {found.name}
    at = next(n for n, s in enumerate(body) if isinstance(s, Assign) and s.name == found.name)
    later = {s.name for s in body[at + 1 :] if isinstance(s, Assign)}
    if used & later:
        return f"an iteration of its loop changes {min(used & later)} after it has added a product with it"
    after = (value for s in (*found.vectors, *found.after) if (value := value_of(s)) is not None)
    return next(filter(None, map(_computed, (*found.computed, *after))), None)


def _uses(region: Region, indices: set[str]) -> bool:
    coords = (c for c in region.coords if isinstance(c, Scalar))
    return any(isinstance(e, Index) and e.name in indices for c in coords for e in walk(c))


def _computed(value: Value) -> str | None:
    """Return why consumers cannot compute a value of an iteration, or None."""
    match value:
        case Local() | Literal() | FromScalar() | Full() | Positions():
            return None
        case Cast(value=inner):
            return _computed(inner)
        case Expand(value=inner, pattern=pattern) if pattern in ((True, False), (False, True)):
            return _computed(inner)
        case Reduce(op="sum" | "max" | "min", value=inner, axis=axis) if axis in (1, -1):
            return _computed(inner)
        case Apply(args=args):
            return next(filter(None, map(_computed, args)), None)
        case Read(region=region, signal=signal):
            if signal is not None:
                return reason_at(region, "it computes with what travels as words")
            return None if region.rank is None else reason_at(region, "it computes with what a peer has")
        case _:
            text = "what it computes is no elementwise function or reduction of rows of its products and vectors"
            return reason_at(value, text)
