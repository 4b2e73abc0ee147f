"""Online softmax as the elementwise steps, the reductions and the products that it consists of.

Warps with roles execute it so (lowering/carried.py), and each product of two regions is a statement of its own. An
iteration begins with the first of them: what it multiplies is in memory. A vector or a number of an input that is the
same in all iterations is read before the loop.

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

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from tilelink.ir.products import products_of
from tilelink.ir.program import (
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
    Transfer,
    Transpose,
    Value,
    Wait,
)
from tilelink.ir.scalar import Index, Scalar, walk
from tilelink.ir.typing import COMPARISONS
from tilelink.ir.visitor import local_names, map_values, statements, value_of, values, without_names
from tilelink.lowering.bound import Bound, with_bodies
from tilelink.lowering.carried import ROWS
from tilelink.lowering.transform import free_name

CONDITIONS = COMPARISONS | {"bitand", "bitor"}

# Online softmax, and products in statements of their own ------------------------------------------------------


def unfolded(bound: Bound, name: str) -> Bound:
    """Return the bound program with a stage whose loops have no online softmax, and products that have names."""
    stage = bound.stages[name]
    taken = {*bound.tensors, *bound.stages, *stage.extents, *(p.name for p in bound.program.params)}
    bound = with_bodies(bound, {name: unfolded_body(stage.stage.body, taken)})
    return with_bodies(bound, {name: _read_once(bound, name, taken)})


def _read_once(bound: Bound, name: str, taken: set[str]) -> tuple[Statement, ...]:
    """Return the statements of a stage that read vectors of inputs before its loop, if no iteration changes them."""
    body, typing = bound.stages[name].stage.body, bound.typing.stage(name)
    at = next((n for n, s in enumerate(body) if isinstance(s, For)), len(body))
    inside = {decl.name for s in statements(body[at:]) if isinstance(s, For) for decl in s.indices}
    taken = taken | {s.name for s in statements(body) if isinstance(s, Assign)}
    named: dict[Region, Assign] = {}

    def change(value: Value) -> Value | None:
        match value:
            case Dot():
                return value
            case Read(region=region, signal=None) if region.rank is None and bound.tensors[region.tensor].constant:
                axes = typing.region_type(region).axes
                exprs = [e for c in region.coords if isinstance(c, Scalar) for e in walk(c)]
                moved = any(isinstance(e, Index) and e.name in inside for e in exprs)
                if moved or len(axes) > 1 or any(axis.kind != "tile" for axis in axes):
                    return None
                if region not in named:
                    wanted = free_name(f"{region.tensor}_once", taken)
                    taken.add(wanted)
                    named[region] = Assign(name=wanted, value=value, location=value.location)
                return Local(name=named[region].name, location=value.location)
            case _:
                return None

    after = map_values(body[at:], change)
    return (*body[:at], *named.values(), *after)


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
        return _vectors_first(_notifies_last(_without_places(tuple(done))))

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
        return _product_first(_propagated(_waits_first(tuple(done)), outside))

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


def _waits_first(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return the statements of an iteration with its waits before what is computed: the loader executes them.

    Nothing that another rank could wait for is between. A wait stays behind what reads its tensor: such a program lacks
    an order, and has to be refused with roles as without them.
    """
    if not all(isinstance(s, Wait | Assign) for s in body):
        return body
    read: set[str] = set()
    for statement in body:
        if isinstance(statement, Wait) and statement.region.tensor in read:
            return body
        value = value_of(statement)
        read |= {one.region.tensor for one in values(value) if isinstance(one, Read)} if value is not None else set()
    return tuple(sorted(body, key=lambda s: not isinstance(s, Wait)))


def _product_first(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return the statements of an iteration with its first product before what is computed without it."""
    waits = next((n for n, s in enumerate(body) if not isinstance(s, Wait)), len(body))
    for number, statement in enumerate(body[waits:], waits):
        if isinstance(statement, Assign) and isinstance(statement.value, Dot) and _of_regions(statement.value):
            before = body[waits:number]
            apart = all(isinstance(s, Assign) and statement.name not in {s.name, *_names(s)} for s in before)
            return (*body[:waits], statement, *before, *body[number + 1 :]) if apart else body
    return body


def _without_places(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return a body without names before its loop of what depends on positions alone: uses compute it."""
    assigned = [s.name for s in statements(body) if isinstance(s, Assign)]
    loop = next((n for n, s in enumerate(body) if isinstance(s, For)), 0)

    def chosen(number: int, one: Assign) -> bool:
        once = number < loop and assigned.count(one.name) == 1
        return once and _of_places(one.value) and any(map(_is_place, values(one.value)))

    return without_names(body, chosen)


def _is_place(value: Value) -> bool:
    return isinstance(value, Positions | FromScalar)


def _notifies_last(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return a body whose notifies after its loop come after all that it computes and stores there: the storer notifies
    when it has stored all results of a tile. Nothing between waits."""
    loop = next((n for n, s in enumerate(body) if isinstance(s, For)), len(body))
    after = body[loop + 1 :]
    if not all(isinstance(s, Assign | Store | Transfer | Notify) for s in after):
        return body
    return (*body[: loop + 1], *sorted(after, key=lambda s: isinstance(s, Notify)))


def _vectors_first(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return a body in which the store of what the loop's products are added to comes after all other stores.

    Consumers store numbers of rows before they hand the tile to the storer, piece by piece.
    """
    loop = next((n for n, s in enumerate(body) if isinstance(s, For)), len(body))
    made = {s.name for s in statements(body[loop : loop + 1]) if isinstance(s, Assign) and products_of(s.value)}
    stored: list[int] = []
    for number, statement in enumerate(body[loop + 1 :], loop + 1):
        if isinstance(statement, Assign) and _names(statement) & made:
            made.add(statement.name)
        if isinstance(statement, Store):
            stored.append(number)
    tiles = [number for number in stored if _names(body[number]) & made]
    if len(tiles) != 1 or tiles == stored[-1:]:
        return body
    (tile,), last = tiles, stored[-1] + 1
    if any(isinstance(s, Assign) and s.name in _names(body[tile]) for s in body[tile:last]):
        return body
    return (*body[:tile], *body[tile + 1 : last], body[tile], *body[last:])


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
    """Return a body without names of a product times a number, or of what depends on positions alone, or of conditions.

    They are computed where they are used: such a product takes no instruction of its own there, and a choice by a
    condition may need none (lowering/masks.py).

    Only names are replaced that the body assigns once and does not use before, that are not read outside of it, and
    whose products it assigns once. outside: names that are read there.
    """
    products = {s.name for s in body if isinstance(s, Assign) and isinstance(s.value, Dot)}
    assigned = [s.name for s in statements(body) if isinstance(s, Assign)]

    def chosen(number: int, one: Assign) -> bool:
        if assigned.count(one.name) > 1 or one.name in {*outside, *(n for s in body[:number] for n in _names(s))}:
            return False
        plain = all(assigned.count(name) == 1 for name in _names(one))
        return (plain and _simple(one.value, products)) or _is_condition(one.value, assigned)

    return without_names(body, chosen)


def _simple(value: Value, products: set[str]) -> bool:
    return _scaled(value, products) or _of_places(value)


def _is_condition(value: Value, assigned: Collection[str]) -> bool:
    """True for a condition on what is the same wherever an iteration computes it. assigned: names that it changes."""
    kinds = Positions | FromScalar | Literal | Apply | Expand | Read
    same = all(isinstance(v, kinds) or (isinstance(v, Local) and v.name not in assigned) for v in values(value))
    return same and isinstance(value, Apply) and value.op in CONDITIONS


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
