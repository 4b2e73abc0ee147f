"""Loops inside a tile that carry a state and multiply twice: what is kept times what streams, then the result times it.

Attention is such a loop, and so are linear attention and attention to a window. An iteration of the loop multiplies an
operand that all iterations have in common (the queries) and a tile of the *leading* operand (the keys), computes with
the product, and adds to a carried name the product of the result and a tile of the *trailing* operand (the values). A
condition such as `if t <= n:` around all of an iteration leaves out iterations at the start or the end.

Online softmax becomes the elementwise steps, the reductions and the products that it consists of:

before: state = online_softmax(f32)
        for (j: S):
            state = attend(state, q[i, :], k[j, :], v[j, :], scale, mask)
        o[i, :] = finish(state)
after:  state_top = log(zeros(f32))                 # minus infinity
        state_total = zeros(f32)
        state = zeros(f32)
        for (j: S):
            scores = dot(q[i, :], k[j, :].T)
            masked = where(mask, scores, log(0.0))
            state_new = maximum(state_top, max(masked * scale, axis=1))
            state_shift = where(state_new > log(0.0), state_new, 0.0)
            state_weights = exp(masked * scale - state_shift[:, None])
            state_old = exp(state_top - state_shift)
            state_total = state_total * state_old + sum(state_weights, axis=1)
            state = state * state_old[:, None] + dot(state_weights, v[j, :])
            state_top = state_new
        o[i, :] = state / where(state_total > 0.0, state_total, 1.0)[:, None]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tilelink.ir.intervals import Bounds
from tilelink.ir.products import operand_region, products_of
from tilelink.ir.program import (
    INTEGER_OPS,
    Apply,
    Assign,
    Attend,
    Cast,
    Dot,
    Expand,
    Finish,
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
    SoftmaxInit,
    Statement,
    Store,
    Transpose,
    Value,
    Wait,
)
from tilelink.ir.scalar import Compare, Index, Logic, Scalar, add, binary, const, walk
from tilelink.ir.simplify import simplify
from tilelink.ir.typing import SYMBOLS
from tilelink.ir.visitor import local_names, map_values, statements, value_of, values
from tilelink.lowering.bound import Bound, BoundStage, with_bodies
from tilelink.lowering.reason import reason_at
from tilelink.lowering.transform import free_name

ROWS = (True, False)
"""The pattern of an expansion that gives each row of a tile the number of that row."""


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A tile whose loop carries a state, in parts.

    waits: before the loop. begin: the values of names before it. guard: the condition under which there is an
    iteration, or None. awaited: waits of an iteration. compute: statements between
    the products of an iteration, where `scores` is the name of the first one. name: the carried name to which the
    second one is added. rescaled: what it is added to. weights: its left operand. after: statements between the loop
    and the notifies, of which the last one stores.
    """

    waits: tuple[Wait, ...]
    begin: tuple[Assign, ...]
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
    def kept(self) -> Region:
        return operand_region(self.product.left)

    @property
    def leading(self) -> Region:
        return operand_region(self.product.right)

    @property
    def trailing(self) -> Region:
        return operand_region(self.sums.right)


def has_loop(stage: BoundStage) -> bool:
    """True if a tile of the stage has a loop other than over the slices of one product."""
    return any(isinstance(s, For) and s.indices[0].name not in stage.slices for s in stage.stage.body)


def parts(stage: BoundStage) -> Carried:
    """Return the parts of a tile of a stage whose warps have roles in such a loop."""
    found = carried(stage.stage.body)
    assert isinstance(found, Carried), found
    return found


# Online softmax, and products in statements of their own ------------------------------------------------------


def unfolded(bound: Bound, name: str) -> Bound:
    """Return the bound program with a stage whose loops have no online softmax, and products that have names."""
    stage = bound.stages[name]
    taken = {*bound.tensors, *bound.stages, *stage.extents, *(p.name for p in bound.program.params)}
    return with_bodies(bound, {name: unfolded_body(stage.stage.body, taken)})


def unfolded_body(body: tuple[Statement, ...], taken: set[str]) -> tuple[Statement, ...]:
    """Return the statements of such a stage. New names are none of `taken`, and none that it assigns."""
    return _Unfolding(taken=taken | {s.name for s in statements(body) if isinstance(s, Assign)}).body(body)


@dataclass(kw_only=True)
class _Unfolding:
    taken: set[str]

    def name(self, wanted: str) -> str:
        found = free_name(wanted, self.taken)
        self.taken.add(found)
        return found

    def body(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        begun = [s for s in body if isinstance(s, Assign) and isinstance(s.value, SoftmaxInit)]
        states = {s.name: self._state(s.name) for s in begun}
        done: list[Statement] = []
        for statement in body:
            if isinstance(statement, Assign) and any(statement is s for s in begun):
                done += _begun(statement, states)
            elif isinstance(statement, For):
                others = (one for one in body if one is not statement)
                done.append(replace(statement, body=self._iteration(statement.body, states, _read(others))))
            else:
                done += map_values((statement,), lambda v: _finished(v, states))
        return tuple(done)

    def _state(self, name: str) -> _State:
        words = ("top", "total", "new", "shift", "weights", "old")
        return _State(sums=name, **{word: self.name(f"{name}_{word}") for word in words})

    def _iteration(
        self, body: tuple[Statement, ...], states: dict[str, _State], outside: frozenset[str]
    ) -> tuple[Statement, ...]:
        """Return the statements of an iteration. outside: names that other statements of the tile read."""
        done: list[Statement] = []
        for statement in body:
            match statement:
                case If(then=then, orelse=()):
                    others = _read(one for one in body if one is not statement)
                    done.append(replace(statement, then=self._iteration(then, states, outside | others)))
                case Assign(name=name, value=Attend(state=Local(name=state)) as value) if name == state in states:
                    done += self._attended(value, states[name])
                case _:
                    done += self._product(statement)
        return _propagated(tuple(done), outside)

    def _product(self, statement: Statement) -> Iterator[Statement]:
        """Yield a statement, after one of its own for a product of two regions in it."""
        value = statement.value if isinstance(statement, Assign) else None
        dots = [dot for dot in products_of(value) if _of_regions(dot)]
        if len(dots) == 1 and value is not dots[0]:
            name = self.name("scores")
            yield Assign(name=name, value=dots[0], location=dots[0].location)
            made = Local(name=name, location=dots[0].location)
            (statement,) = map_values((statement,), lambda v: made if v is dots[0] else None)
        yield from self._added(statement)

    def _added(self, statement: Statement) -> Iterator[Statement]:
        """Yield a statement that adds a product, after statements of the numbers by which rows are multiplied there.

        So later statements may change what those numbers are made of.
        """
        value = statement.value if isinstance(statement, Assign) else None
        if not (isinstance(value, Apply) and any(isinstance(a, Dot) and not _of_regions(a) for a in value.args)):
            yield statement
            return
        named: list[Assign] = []

        def change(one: Value) -> Value | None:
            if isinstance(one, Dot):
                return one
            if not isinstance(one, Expand) or isinstance(one.value, Local):
                return None
            named.append(Assign(name=self.name("factor"), value=one.value, location=one.location))
            return replace(one, value=Local(name=named[-1].name, location=one.location))

        (changed,) = map_values((statement,), change)
        yield from (*named, changed)

    def _attended(self, value: Attend, state: _State) -> Iterator[Statement]:
        at = value.location
        scores = self.name("scores")

        def local(name: str) -> Value:
            return Local(name=name, location=at)

        def apply(op: str, *args: Value) -> Value:
            return Apply(op=op, args=args, location=at)

        def let(name: str, made: Value) -> Assign:
            return Assign(name=name, value=made, location=at)

        def column(made: Value) -> Value:
            return Expand(value=made, pattern=ROWS, location=at)

        number = Literal(value=0.0, location=at)
        nothing = apply("log", number)
        yield let(scores, Dot(left=value.q, right=Transpose(value=value.k, location=at), location=at))
        scaled = apply("mul", local(scores), value.scale)
        if value.mask is not None and isinstance(value.scale, Literal) and value.scale.value > 0:
            masked = self.name("masked")
            yield let(masked, apply("where", value.mask, local(scores), nothing))
            scaled = apply("mul", local(masked), value.scale)
        elif value.mask is not None:
            scaled = apply("where", value.mask, scaled, nothing)
        yield let(state.new, apply("maximum", local(state.top), Reduce(op="max", value=scaled, axis=1, location=at)))
        yield let(state.shift, apply("where", apply("gt", local(state.new), nothing), local(state.new), number))
        yield let(state.weights, apply("exp", apply("sub", scaled, column(local(state.shift)))))
        yield let(state.old, apply("exp", apply("sub", local(state.top), local(state.shift))))
        summed = Reduce(op="sum", value=local(state.weights), axis=1, location=at)
        yield let(state.total, apply("add", apply("mul", local(state.total), local(state.old)), summed))
        product = Dot(left=local(state.weights), right=value.v, location=at)
        yield let(state.sums, apply("add", apply("mul", local(state.sums), column(local(state.old))), product))
        yield let(state.top, local(state.new))


@dataclass(frozen=True, kw_only=True)
class _State:
    """The names of an online softmax state, and of what an iteration computes."""

    sums: str
    top: str
    total: str
    new: str
    shift: str
    weights: str
    old: str


def _begun(statement: Assign, states: dict[str, _State]) -> Iterator[Statement]:
    at, state = statement.location, states[statement.name]
    zeros = Full(value=0.0, dtype="f32", location=at)
    yield Assign(name=state.top, value=Apply(op="log", args=(zeros,), location=at), location=at)
    yield Assign(name=state.total, value=zeros, location=at)
    yield Assign(name=state.sums, value=zeros, location=at)


def _finished(value: Value, states: dict[str, _State]) -> Value | None:
    if not isinstance(value, Finish) or not isinstance(value.state, Local) or value.state.name not in states:
        return None
    at, state = value.location, states[value.state.name]
    total, zero = Local(name=state.total, location=at), Literal(value=0.0, location=at)
    some = Apply(op="gt", args=(total, zero), location=at)
    divisor = Apply(op="where", args=(some, total, Literal(value=1.0, location=at)), location=at)
    return Apply(op="div", args=(value.state, Expand(value=divisor, pattern=ROWS, location=at)), location=at)


def _of_regions(dot: Dot) -> bool:
    return all(isinstance(v.value if isinstance(v, Transpose) else v, Read) for v in (dot.left, dot.right))


def _read(body: Iterable[Statement]) -> frozenset[str]:
    """Return the names that statements read, with those inside them."""
    return frozenset[str]().union(*(_names(one) for one in statements(tuple(body))))


def _propagated(body: tuple[Statement, ...], outside: frozenset[str]) -> tuple[Statement, ...]:
    """Return a body without names of a product times a number, or of what depends on positions alone.

    They are computed where they are used: such a product takes no instruction of its own there.

    Only names are replaced that the body assigns once and does not use before, that are not read outside of it, and
    whose products it assigns once. outside: names that are read there.
    """
    products = {s.name for s in body if isinstance(s, Assign) and isinstance(s.value, Dot)}
    assigned = [s.name for s in statements(body) if isinstance(s, Assign)]
    replaced: dict[str, Value] = {}
    done: list[Statement] = []
    for number, given in enumerate(body):
        (one,) = map_values((given,), lambda v: replaced.get(v.name) if isinstance(v, Local) else None)
        once = isinstance(one, Assign) and all(assigned.count(name) == 1 for name in (*_names(one), one.name))
        if isinstance(one, Assign) and once and one.name not in outside and _simple(one.value, products):
            if any(one.name in _names(before) for before in body[:number]):
                done.append(one)
            else:
                replaced[one.name] = one.value
        else:
            done.append(one)
    return tuple(done)


def _simple(value: Value, products: set[str]) -> bool:
    return _scaled(value, products) or _of_places(value)


def _of_places(value: Value) -> bool:
    return all(isinstance(v, Positions | FromScalar | Literal | Apply | Expand | Cast) for v in values(value))


def _scaled(value: Value, products: set[str]) -> bool:
    if not isinstance(value, Apply) or value.op != "mul":
        return False
    kinds = [isinstance(a, Local) and a.name in products for a in value.args]
    return any(kinds) and all(kind or isinstance(a, Literal) for kind, a in zip(kinds, value.args, strict=True))


def _names(statement: Statement) -> set[str]:
    value = value_of(statement)
    return local_names(value) if value is not None else set()


def computes_with_iterations(tile: Carried) -> bool:
    """True if what an iteration computes depends on its place."""
    return bool({decl.name for decl in tile.loop.indices} & _indices_of(tile))


def computes_with_places(tile: Carried) -> bool:
    """True if what is computed depends on the place of the tile."""
    return tile.guard is not None or bool(_indices_of(tile))


def _indices_of(tile: Carried) -> set[str]:
    """Return the indices whose numbers or positions a tile computes with."""
    computed = [value for s in (*tile.compute, *tile.after) if (value := value_of(s)) is not None]
    every = [one for value in (*computed, tile.rescaled, tile.weights) for one in values(value)]
    found: set[str] = {one.index for one in every if isinstance(one, Positions)}
    numbers = [e for one in every if isinstance(one, FromScalar) for e in walk(one.scalar)]
    return found | {e.name for e in numbers if isinstance(e, Index)}


def summed(tile: Carried) -> dict[str, tuple[Value | None, Value]]:
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
    read = [v.name for s in tile.compute for v in values(s.value) if isinstance(v, Local)]
    read += [v.name for one in (tile.rescaled, tile.weights) for v in values(one) if isinstance(v, Local)]
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
    begin = tuple(s for s in before if isinstance(s, Assign))
    if any(decl.counted for decl in loop.indices):
        return reason_at(loop, "a launch decides how many iterations its loop has")
    if other := [s for s in before if not isinstance(s, Wait) and not _is_number(s)]:
        return reason_at(other[0], "before its loop its tiles do more than to wait and to give names numbers")
    if not after or not isinstance(after[-1], Store) or not all(isinstance(s, Assign) for s in after[:-1]):
        text = "after its loop its tiles do not compute, store once and notify"
        return reason_at(after[-1] if after else loop, text)
    if after[-1].adds:
        return reason_at(after[-1], "it adds to memory where others may add, too")
    if multiplied := [s for s in after if products_of(value_of(s))]:
        return reason_at(multiplied[0], "its tiles multiply after their loop")
    guard, inner = None, loop.body
    match inner:
        case (If(condition=guard, then=inner, orelse=()),):
            if len(_conditions(guard)) == 0:
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
        waits=waits, begin=begin, loop=loop, guard=guard, awaited=awaited, scores=first.name, product=first.value,
        compute=compute, name=last.name, rescaled=rescaled, weights=sums.left, sums=sums, after=after,
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


def _conditions(guard: Scalar) -> list[Compare]:
    """Return the comparisons of a condition that are to be true together, or nothing for another condition."""
    match guard:
        case Compare(op="<" | "<=" | ">" | ">="):
            return [guard]
        case Logic(op="and", args=args):
            parts = [_conditions(one) for one in args]
            return [one for part in parts for one in part] if all(parts) else []
        case _:
            return []


@dataclass(frozen=True, kw_only=True)
class Range:
    """The part of a loop's index that has iterations, from `start` up to `stop` (exclusive): `inner` for each."""

    index: str
    start: Scalar
    stop: Scalar
    inner: int


def range_of(stage: BoundStage, tile: Carried, bounds: Bounds) -> Range | str | None:
    """Return the iterations that a tile has, None if it has all, or why they are no range of at least one.

    bounds: of the stage.
    """
    if tile.guard is None:
        return None
    long = [decl.name for decl in tile.loop.indices if stage.count(decl.name) > 1]
    index = long[0] if long else tile.loop.indices[0].name
    starts: list[Scalar] = [const(0)]
    stops: list[Scalar] = [const(stage.count(index))]
    for one in _conditions(tile.guard):
        op, left, right = one.op, one.left, one.right
        if right == Index(name=index):
            op, left, right = FLIPPED[op], right, left
        inside = {e.name for e in walk(right) if isinstance(e, Index)}
        if left != Index(name=index) or inside & {decl.name for decl in tile.loop.indices}:
            return f"a condition of its loop does not compare {index} alone, the first index, with numbers of the tile"
        if op in (">", ">="):
            starts.append(add(right, const(1)) if op == ">" else right)
        else:
            stops.append(add(right, const(1)) if op == "<=" else right)
    for start in starts:
        for stop in stops:
            least = bounds.of(simplify(binary("-", stop, start), bounds))[0]
            if least < 1:
                return "its loop may have no iteration, which no proof rules out"
    start, stop = starts[0], stops[0]
    for other in starts[1:]:
        start = binary("max", start, other)
    for other in stops[1:]:
        stop = binary("min", stop, other)
    inner = math.prod(stage.count(name) for name in long[1:])
    return Range(index=index, start=simplify(start, bounds), stop=simplify(stop, bounds), inner=inner)


FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


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
    if any(isinstance(v, Read) for v in values(found.weights)):
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
    for statement in (*found.compute, *found.after):
        if (value := value_of(statement)) is not None and (reason := _computed(value)):
            return reason
    return _computed(found.rescaled) or _computed(found.weights)


def _uses(region: Region, indices: set[str]) -> bool:
    coords = (c for c in region.coords if isinstance(c, Scalar))
    return any(isinstance(e, Index) and e.name in indices for c in coords for e in walk(c))


def integer_reason(op: str) -> str:
    """Return that consumers do not compute with an operator of integers and conditions."""
    return f"it computes with `{SYMBOLS[op]}`, which consumers do not: `and`, `or` and `where` join conditions"


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
        case Apply(op=op, args=args) if op not in INTEGER_OPS:
            return next(filter(None, map(_computed, args)), None)
        case Apply(op=op):
            return reason_at(value, integer_reason(op))
        case _:
            text = "what it computes is no elementwise function or reduction of rows of its products and positions"
            return reason_at(value, text)
