"""Loops inside a tile that carry a state and multiply: what is kept times what streams, then results times it.

Attention is such a loop, and so are its gradients, linear attention and attention to a window. An iteration multiplies
operands that all iterations have in common (the queries), each with a tile of a *streamed* operand (the keys): these
are its *leading* products. It computes with them, and adds to carried names the products of results and of tiles of
streamed operands (the values, or the keys again): its *trailing* products, one or several. A condition such as
`if t <= n:` around all of an iteration leaves out iterations at the start or the end, and so does a part of a dimension
that a launch decides. What is computed may read vectors: of rows, once a tile or in an iteration, and of columns in an
iteration.

All leading products of an iteration start before what is computed, which is divided into *levels*: level n needs the
leading products up to number n. A trailing product starts after the level of its operand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
    Transfer,
    Transpose,
    Value,
    Wait,
)
from tilelink.ir.scalar import Compare, Index, Logic, Scalar, Whole, indices_in, walk
from tilelink.ir.visitor import local_names, reads, statements, value_of, values
from tilelink.lowering.reason import reason_at
from tilelink.lowering.rings import LoopOrder

ROWS = (True, False)
"""The pattern of an expansion that gives each row of a tile the number of that row."""


@dataclass(frozen=True, kw_only=True)
class LoopProduct:
    """A product of an iteration, of the statement that gives its name a value.

    added_to: what it is added to, None for a leading product. level: of what a trailing one needs.
    """

    statement: Assign
    dot: Dot
    added_to: Value | None = None
    level: int = 0

    @property
    def name(self) -> str:
        return self.statement.name

    @property
    def streamed(self) -> Region:
        return operand_region(self.dot.right)


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A tile whose loop carries a state, in parts.

    waits: before the loop. begin: the numbers that names have before it. vectors: what is computed before it, of rows.
    guard: the condition under which there is an iteration, or None. awaited: waits of an iteration. leading, trailing:
    its products, in their order. compute: its other statements, and levels: of each of them. after: statements between
    the loop and the notifies, which store tiles, and may store a number for each row.
    """

    waits: tuple[Wait, ...]
    begin: tuple[Assign, ...]
    vectors: tuple[Assign, ...]
    loop: For
    guard: Scalar | None
    awaited: tuple[Wait, ...]
    leading: tuple[LoopProduct, ...]
    trailing: tuple[LoopProduct, ...]
    compute: tuple[Assign, ...]
    levels: tuple[int, ...]
    after: tuple[Statement, ...]

    @property
    def products(self) -> tuple[LoopProduct, ...]:
        return *self.leading, *self.trailing

    @property
    def results(self) -> tuple[Store | Transfer, ...]:
        """Return the stores of tiles, of whole rows, also in a peer's memory; the last store counts as one anyway."""
        stores = [s for s in self.after if isinstance(s, Store | Transfer)]
        return tuple(s for s in stores if s is stores[-1] or isinstance(stored_at(s).coords[-1], Whole))

    @property
    def stored(self) -> tuple[Store, ...]:
        """Return the stores of a number for each row, such as the log of a sum that attention backward needs."""
        return tuple(s for s in self.after if isinstance(s, Store) and not any(s is one for one in self.results))

    @property
    def computed(self) -> tuple[Value, ...]:
        """Return what an iteration computes besides its products."""
        operands = (value for one in self.trailing for value in (one.dot.left, one.added_to) if value is not None)
        return (*(s.value for s in self.compute), *operands)

    @property
    def reads(self) -> tuple[Region, ...]:
        """Return the regions that an iteration computes with, besides the operands of its products."""
        return tuple(dict.fromkeys(region for value in self.computed for region in reads(value)))

    def reads_at(self, level: int) -> tuple[Region, ...]:
        """Return those that it reads at a level for the first time."""
        leveled = [*zip(self.levels, (s.value for s in self.compute), strict=True)]
        leveled += [(one.level, value) for one in self.trailing for value in (one.dot.left, one.added_to) if value]
        first = {region: own for own, value in sorted(leveled, key=lambda one: -one[0]) for region in reads(value)}
        return tuple(region for region in self.reads if first[region] == level)

    @property
    def loaded(self) -> tuple[Region, ...]:
        """Return the regions that consumers load to compute with, before the loop too."""
        before = (region for s in self.vectors for region in reads(s.value))
        return tuple(dict.fromkeys((*before, *self.reads)))

    @property
    def kept(self) -> tuple[Region, ...]:
        """Return the regions that all iterations have in common."""
        return tuple(dict.fromkeys(operand_region(one.dot.left) for one in self.leading))

    @property
    def streamed(self) -> tuple[Region, ...]:
        """Return the regions of an iteration that products multiply, in the order in which they are needed."""
        return tuple(dict.fromkeys(one.streamed for one in self.products))

    @property
    def order(self) -> LoopOrder:
        number = {region: number for number, region in enumerate(self.streamed)}
        return LoopOrder(
            leading=tuple(number[one.streamed] for one in self.leading),
            trailing=tuple((number[one.streamed], one.level) for one in self.trailing),
        )


def stored_at(store: Store | Transfer) -> Region:
    """Return the region that a statement stores."""
    return store.region if isinstance(store, Store) else store.target


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
    stores = [s for s in after if isinstance(s, Store) or (isinstance(s, Transfer) and s.mode == "push")]
    if not after or not any(after[-1] is s for s in stores) or len(stores) < sum(map(_is_no_name, after)):
        text = "after its loop its tiles do not compute, store and notify"
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
    number = next((n for n, s in enumerate(inner) if not isinstance(s, Wait)), len(inner))
    assigns = tuple(s for s in inner[number:] if isinstance(s, Assign))
    if len(assigns) < len(inner[number:]):
        other = next(s for s in inner[number:] if not isinstance(s, Assign))
        return reason_at(other, "an iteration of its loop does more than to wait and then compute")
    products = _products(assigns, {decl.name for decl in loop.indices})
    if isinstance(products, str):
        return products
    leading, trailing = products
    compute = tuple(s for s in assigns if not any(s is one.statement for one in (*leading, *trailing)))
    levels = _levels(assigns, leading)
    trailing = tuple(replace(one, level=levels[id(one.statement)]) for one in trailing)
    found = Carried(
        waits=waits, begin=begin, vectors=vectors, loop=loop, guard=guard,
        awaited=tuple(s for s in inner[:number] if isinstance(s, Wait)), leading=leading, trailing=trailing,
        compute=compute, levels=tuple(levels[id(s)] for s in compute), after=after,
    )  # fmt: skip
    return _wrong(found, assigns) or found


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


def _is_no_name(statement: Statement) -> bool:
    return not isinstance(statement, Assign)


def _is_number(statement: Statement) -> bool:
    """True if a statement gives a name a number."""
    return isinstance(statement, Assign) and number_of(statement.value) is not None


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


def _products(body: tuple[Assign, ...], own: set[str]) -> tuple[tuple[LoopProduct, ...], tuple[LoopProduct, ...]] | str:
    """Return the leading and the trailing products of an iteration, or why it has none. own: indices of the loop."""
    leading, trailing = list[LoopProduct](), list[LoopProduct]()
    for statement in body:
        match statement.value, products_of(statement.value):
            case _, []:
                continue
            case Dot() as dot, _ if not local_names(dot.left):
                leading.append(LoopProduct(statement=statement, dot=dot))
                reason = _leading_reason(dot, own)
            case Apply(op="add", args=(Dot() as dot, old) | (old, Dot() as dot)), [_]:
                trailing.append(LoopProduct(statement=statement, dot=dot, added_to=old))
                reason = _trailing_reason(trailing[-1], own)
            case _:
                text = "an iteration of its loop neither names a product of regions nor adds a product to a name"
                return reason_at(statement, text)
        if reason is not None:
            return reason
    if not leading or not trailing:
        text = "an iteration of its loop does not multiply regions and then add a product to a name"
        return reason_at(body[-1], text) if body else text
    return tuple(leading), tuple(trailing)


def _leading_reason(dot: Dot, own: set[str]) -> str | None:
    kept, streamed = dot.left, dot.right.value if isinstance(dot.right, Transpose) else None
    if not isinstance(kept, Read) or kept.region.rank is not None or _uses(kept.region, own):
        common = "a region of its own rank that all iterations have in common"
        return reason_at(kept, f"the left operand of a first product is not {common}")
    if not isinstance(streamed, Read) or streamed.region.rank is not None:
        text = "the right operand of a first product is not a transposed region of its own rank"
        return reason_at(dot.right, text)
    return _same_reason(streamed, own)


def _trailing_reason(one: LoopProduct, own: set[str]) -> str | None:
    streamed = one.dot.right
    if not isinstance(streamed, Read) or streamed.region.rank is not None:
        text = "the right operand of a product that is added is not a region of its own rank"
        return reason_at(streamed, text)
    if not local_names(one.dot.left):
        text = "the left operand of a product that is added is not computed in an iteration"
        return reason_at(one.dot.left, text)
    if one.added_to is None or one.name not in local_names(one.added_to):
        return reason_at(one.statement, f"its loop does not add to {one.name}")
    return _same_reason(streamed, own)


def _same_reason(streamed: Read, own: set[str]) -> str | None:
    if _uses(streamed.region, own):
        return None
    return reason_at(streamed, "an operand of its loop is the same in all iterations")


def _levels(body: tuple[Assign, ...], leading: tuple[LoopProduct, ...]) -> dict[int, int]:
    """Return id of a statement -> its level. What is computed keeps its order: no level is less than one before."""
    numbers = {id(one.statement): number for number, one in enumerate(leading)}
    found, of_name, least = dict[int, int](), dict[str, int](), 0
    for statement in body:
        level = numbers.get(id(statement))
        if level is None:
            level = max((of_name.get(name, 0) for name in local_names(statement.value)), default=0)
            if not products_of(statement.value):
                level = least = max(level, least)
        found[id(statement)] = of_name[statement.name] = level
    return found


def _wrong(found: Carried, body: tuple[Assign, ...]) -> str | None:
    """Return why the parts cannot be executed in the order of roles, or None."""
    sums = {one.name for one in found.trailing}
    if len({one.name for one in found.products}) < len(found.products):
        return reason_at(found.trailing[-1].statement, "an iteration of its loop multiplies twice for one name")
    for one in found.trailing:
        if one.added_to is not None and (more := local_names(one.added_to) & sums - {one.name}):
            return reason_at(one.statement, f"an iteration of its loop computes with {min(more)}")
    for value in (*(s.value for s in found.compute), *(one.dot.left for one in found.trailing)):
        if used := local_names(value) & sums:
            return reason_at(value, f"an iteration of its loop computes with {min(used)}")
    if assigned := [s for s in found.compute if s.name in sums]:
        return reason_at(assigned[0], f"an iteration of its loop computes with {assigned[0].name}")
    for number, statement in enumerate(body):
        if any(statement is one.statement for one in found.leading):
            used = {name for s in body[:number] for name in (s.name, *local_names(s.value))}
            if statement.name in used:
                text = f"an iteration of its loop uses {statement.name} before it multiplies for it"
                return reason_at(statement, text)
        elif any(statement is one.statement for one in found.trailing):
            later = {s.name for s in body[number + 1 :]} & local_names(statement.value) - {statement.name}
            if later:
                return f"an iteration of its loop changes {min(later)} after it has added a product with it"
    after = (value for s in (*found.vectors, *found.after) if (value := value_of(s)) is not None)
    return next(filter(None, map(_computed, (*found.computed, *after))), None)


def _uses(region: Region, indices: set[str]) -> bool:
    return bool(indices_in(*region.coords) & indices)


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
