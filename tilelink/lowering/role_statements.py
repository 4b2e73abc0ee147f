"""Statements of a tile that roles of warps divide among them: which tiles have such statements, and which these are.

A tile waits, multiplies, waits again, computes, stores and notifies, in this order. The loader executes the waits
before the product, consumers those after it and what is computed, and the storer the stores and the notifies (see
lowering/clauses/roles.py, which gives a stage its roles). A tile next to those of a product may have none, and computes
with tiles that the loader loads after all of its waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import takewhile

from tilelink.ir.products import is_n_major, products, products_of
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
    Read,
    Region,
    Stage,
    Statement,
    Store,
    Transfer,
    Transpose,
    Value,
    Wait,
)
from tilelink.ir.reach import elsewhere
from tilelink.ir.scalar import Lookup, Scalar, Whole, at_launch, children, indices_in, walk
from tilelink.ir.visitor import map_value, reads, scalars_of, stage_scalars, statements, value_of, values
from tilelink.lowering.bound import Bound, BoundStage, Kernel, once_a_stage
from tilelink.lowering.carried import Carried, stored_at
from tilelink.lowering.reason import reason_at
from tilelink.lowering.sink_waits import sliced_product
from tilelink.lowering.straight_epilogue import UNROLLED, after_product, is_elementwise
from tilelink.lowering.summed import summed_of, summed_product
from tilelink.lowering.transform import stage_writes

PRODUCTS = (1, 2)
"""Numbers of products of a tile that multiplies. Two are side by side in registers, as one product of twice the
columns."""


@once_a_stage
def divided_reason(stage: BoundStage) -> str | None:
    """Return why the statements of a stage's tiles cannot be divided among roles, or None."""
    if not stage.has_loop:
        return roles_reason(stage_body(stage))
    if is_elementwise(stage.stage.body):
        loop = next(s for s in stage.stage.body if isinstance(s, For))
        return reason_at(loop, f"a loop without a product is over tiles, or over more than {UNROLLED} numbers")
    after = after_product(stage.stage.body, stage.products)
    if after is not None:
        loop = next(s for s in stage.stage.body[after:] if isinstance(s, For))
        text = f"a loop after its product is over tiles, or over more than {UNROLLED} numbers or a part of them"
        return reason_at(loop, text)
    return stage.carried if isinstance(stage.carried, str) else None


def roles_reason(body: tuple[Statement, ...]) -> str | None:
    """Return why the statements of a tile cannot be divided among roles, or None."""
    for n, s in enumerate(body):
        if isinstance(s, Assign) and isinstance(s.value, Full) and not _starts_sums(body[n:]):
            return reason_at(s, "it gives a name a constant, and another value in a loop or a branch")
    body = tuple(s for s in body if not (isinstance(s, Assign) and isinstance(s.value, Full)))
    waits = next((n for n, s in enumerate(body) if not isinstance(s, Wait)), len(body))
    notifies = next((n for n, s in enumerate(reversed(body)) if not isinstance(s, Notify)), len(body))
    middle = body[waits : len(body) - notifies]
    late = _late_waits(middle[1:]) if middle and isinstance(middle[0], Assign) else ()
    if late and products(middle[middle.index(late[0]) :]):
        return reason_at(late[0], "it waits between its products, whose operands are loaded together")
    middle = tuple(s for s in middle if not any(s is wait for wait in late))
    more = "its tiles do more than to wait, multiply, wait, compute, store and notify, in this order"
    other = next((s for s in middle if not isinstance(s, Assign | Store | Transfer)), None)
    if not middle or other is not None:
        return more if other is None else reason_at(other, more)
    dots = products(statements(middle))
    if dots and not products(middle[:1]):
        return reason_at(middle[0], "its tiles do not begin with a product")
    if dots and (len(dots) not in PRODUCTS or any(dot.left != dots[0].left for dot in dots)):
        text = f"its tiles multiply {len(dots)} times, not once or twice the same left operand"
        return reason_at(dots[-1], text)
    if reason := _stores_reason(middle):
        return reason
    for statement in middle:
        if (value := value_of(statement)) is not None and (reason := _computed(value)):
            return reason
    if len(dots) > 1 and (other := next((dot for dot in dots if is_n_major(dot)), None)) is not None:
        return reason_at(other, "it multiplies twice, and a right operand is N-major")
    operands = [(dot.left, "left") for dot in dots[:1]] + [(dot.right, "right") for dot in dots]
    return next(filter(None, (_operand_reason(*one) for one in operands)), None)


def _starts_sums(body: tuple[Statement, ...]) -> bool:
    """True if a constant is the start of the sums of a product of slices, which follows it."""
    start, following = body[0], next((s for s in body[1:] if not isinstance(s, Wait)), None)
    match following:
        case Assign(name=name, value=Apply(op="add", args=(Local(name=begun), added))) if products_of(added):
            return isinstance(start, Assign) and start.name == name == begun
        case _:
            return False


def _stores_reason(middle: tuple[Statement, ...]) -> str | None:
    """Return why a storer cannot execute the stores of a tile, or None."""
    stores = tuple(s for s in middle if isinstance(s, Store | Transfer))
    if not stores or middle[-len(stores) :] != stores:
        return reason_at(middle[-1], "its tiles do not end with their only stores")
    for one in stores:
        if isinstance(one, Transfer) and one.mode != "push":
            return reason_at(one, "it does not store what it computes alone")
        if isinstance(one, Store) and one.adds:
            return reason_at(one, "it adds to memory where others may add, too")
    if len({value_of(s) for s in stores}) > 1:
        return reason_at(stores[-1], "it stores several values, and consumers hand one to the storer")
    if len(stores) > 1 and products(stores):
        text = "it stores a product at several places: assign the product to a name before"
        return reason_at(stores[-1], text)
    return None


def _computed(value: Value) -> str | None:
    """Return why consumers cannot compute a value, or None."""
    match value:
        case Dot() | Local() | Literal() | FromScalar() | Full():
            return None
        case Read(region=region):
            return None if region.rank is None else reason_at(region, "it computes with what a peer has")
        case Cast(value=inner) | Expand(value=inner):
            return _computed(inner)
        case Apply(args=args):
            return next(filter(None, map(_computed, args)), None)
        case _:
            text = "what it computes is not elementwise in products, numbers, vectors and tiles"
            return reason_at(value, text)


def _operand_reason(value: Value, side: str) -> str | None:
    inner = value.value if isinstance(value, Transpose) else value
    if not isinstance(inner, Read):
        text = f"the {side} operand of its product is computed, and the loader loads operands as they are"
        return reason_at(inner, text)
    if inner.region.rank is not None:
        return reason_at(inner.region, f"the {side} operand of its product is not a region of its own rank")
    if side == "left" and isinstance(value, Transpose):
        text = f"the contracted dimension of the {side} operand is not its last one in memory"
        return reason_at(inner.region, text)
    return None


def decided_reason(stage: Stage) -> str | None:
    """Return why roles cannot have what only a launch decides, for any sizes, or None."""
    moved = {decl.name for decl in stage.indices if decl.start is not None}
    in_loops = {id(s) for loop in statements(stage.body) if isinstance(loop, For) for s in statements(loop.body)}
    for statement in statements(stage.body):
        match statement:
            case Wait() if any(_decided(expr, moved) for expr in scalars_of(statement)):
                return reason_at(statement, "only a launch decides for which channels its tiles wait")
            case Notify() if any(_decided(expr, moved) for expr in scalars_of(statement)):
                return reason_at(statement, "only a launch decides which tiles notify")
            case If(condition=condition) if at_launch(condition) and id(statement) not in in_loops:
                return reason_at(statement, "only a launch decides which statements of a tile are executed")
            case _:
                pass
    return None


def _decided(expr: Scalar, decided: Collection[str]) -> bool:
    """True if a launch decides the value of an expression. decided: indices of which it does."""
    return at_launch(expr) or not indices_in(expr).isdisjoint(decided)


def launch_reason(bound: Bound, stage: BoundStage) -> str | None:
    """Return why roles cannot have what only a launch decides of a stage, or None."""
    late, own = late_waits(stage), _loop_indices(stage)
    for table in sorted(written_tables(bound, stage)):
        if stage.has_loop:
            return f"its loop carries a state, and its roles would read {table} at different times, while it is written"
        if any(one.table == table and not indices_in(one).isdisjoint(own) for one in _lookups(stage)):
            return f"its loop looks up entries of {table}, which is written while programs run"
        if (wait := next((s for s in late if s.region.tensor == table), None)) is not None:
            return reason_at(wait, f"it waits for {table} after its product, and its loader reads {table} before")
    if late and any(decl.counted for decl in stage.stage.indices):
        return reason_at(late[0], "it waits after its product, also for tiles that are not there")
    return decided_reason(stage.stage)


def written_tables(bound: Bound, stage: BoundStage) -> set[str]:
    """Return the index tensors of which a stage looks up entries, and which are written while programs run."""
    return {one.table for one in _lookups(stage) if not bound.tensors[one.table].constant}


def _lookups(stage: BoundStage) -> Iterator[Lookup]:
    every = (e for scalar in stage_scalars(stage.stage) for e in walk(scalar))
    return (e for e in every if isinstance(e, Lookup) and e.launch)


def entries_of(stage: BoundStage) -> list[Lookup]:
    """Return the entries of index tensors that a tile looks up wherever it is: those in others come first.

    An entry that is nothing but a coordinate of another one is not among them, nor is one of an iteration of a loop.
    """
    own = _loop_indices(stage)
    found = dict.fromkeys(one for scalar in stage_scalars(stage.stage) for one in _outermost(scalar, own))
    return sorted(found, key=lambda one: sum(isinstance(e, Lookup) for e in walk(one)))


def _outermost(expr: Scalar, loops: Collection[str]) -> Iterator[Lookup]:
    """Yield the entries of an expression that depend on no index of a loop, without those that are in others."""
    if isinstance(expr, Lookup) and expr.launch and indices_in(expr).isdisjoint(loops):
        yield expr
        return
    for child in children(expr):
        yield from _outermost(child, loops)


def _loop_indices(stage: BoundStage) -> set[str]:
    return {decl.name for s in statements(stage.stage.body) if isinstance(s, For) for decl in s.indices}


def hands_on(bound: Bound, stage: BoundStage) -> bool:
    """True if the loader reads what a launch decides of a tile, and hands it on to the other roles.

    Entries that are written while programs run are there after its waits alone. And a tile that is not there would
    notify before the waits that come before it, if its storer did not learn from the loader that it is not there.
    """
    if stage.has_loop:
        return False
    if written_tables(bound, stage):
        return True
    kernel = bound.kernel_of[stage.name]
    waits = any(isinstance(s, Wait) for name in kernel.stage_names for s in statements(bound.stages[name].stage.body))
    notifies = any(isinstance(s, Notify) for s in statements(stage.stage.body))
    return waits and notifies and any(decl.counted for decl in stage.stage.indices)


def conflict(bound: Bound, kernel: Kernel, stage: BoundStage) -> str | None:
    """Return why a tile may not read what its kernel writes, or None.

    It may be read before the tiles before it are stored. Another stage may write what consumers compute with next to a
    product, and not in a loop, if the tile waits for it: they read it after that.
    """
    writers = writers_of(bound, kernel)
    own = {region.tensor for region in stage_writes(stage.stage)}
    dots = products(statements(stage.stage.body)) if stage.has_loop else products(stage_body(stage))
    multiplied = [v.region for dot in dots for v in values(dot) if isinstance(v, Read)]
    computed = [one.region for one in addends(stage)]
    if stage.has_loop:
        computed = [one for s in statements(stage.stage.body) if (value := value_of(s)) for one in reads(value)]
    elif dots:
        computed = [one for one in computed if one.tensor in own or not awaits(stage, one)]
        summed = summed_of(stage)
        computed += summed.reads if summed is not None else ()
    for verb, read in (("multiplies", multiplied), ("computes with", computed)):
        for one in read:
            if (writer := writers.get(one.tensor)) is not None:
                who = "its own tiles write"
                if writer != stage.name:
                    who = f"{writer} writes in the same kernel, on its own rank too"
                    if dots and not stage.has_loop and one in computed and one.tensor not in own:
                        who += ": let it wait for that after the product"
                return reason_at(one, f"it {verb} {one.tensor}, which {who}")
    return None


def writers_of(bound: Bound, kernel: Kernel) -> dict[str, str]:
    """Return tensor -> a stage of the kernel that writes it, on the own rank or on ranks that may be the own one."""
    return {
        region.tensor: other.name
        for other in (bound.stages[name] for name in kernel.stage_names)
        for region in stage_writes(other.stage)
        if region.rank is None or not elsewhere(region.rank, bound.ranks, _numbers(other))
    }


def awaits(stage: BoundStage, region: Region) -> bool:
    """True if a tile waits for a region, or for what it is a part of.

    Rule `roles` proves that a signal orders the read after whatever writes the region in the same kernel
    (verifier/loads_ahead.py).
    """
    waits = (s.region for s in stage_body(stage) if isinstance(s, Wait))
    return any(
        one.tensor == region.tensor and one.rank == region.rank
        and all(isinstance(a, Whole) or a == b for a, b in zip(one.coords, region.coords, strict=True))
        for one in waits
    )  # fmt: skip


def _numbers(stage: BoundStage) -> dict[str, int]:
    """Return the numbers of values of a stage's indices that are numbers."""
    return {name: stage.extents[name] for name in stage.scalar_indices if name not in stage.parts}


@once_a_stage
def stage_body(stage: BoundStage) -> tuple[Statement, ...]:
    """Return the statements of a tile, with a product that waits for its slices as one statement."""
    return tuple(_joined(stage))


def _joined(stage: BoundStage) -> Iterator[Statement]:
    for statement in stage.stage.body:
        product, summed = sliced_product(stage, statement), summed_product(stage, statement)
        if summed is not None:
            yield from (*summed.waits, summed.statement)
            continue
        if product is None:
            yield statement
            continue
        yield from (replace(wait, region=product.of_all(wait.region)) for wait in product.waits)
        location = statement.location
        whole = Apply(op="add", args=(Local(name=product.name, location=location), product.whole), location=location)
        yield Assign(name=product.name, value=whole, location=location)


def product_of(stage: BoundStage) -> Dot:
    """Return the product of a stage with roles that multiplies, of all slices, or the first of several."""
    return products_of_tile(stage)[0]


@once_a_stage
def products_of_tile(stage: BoundStage) -> list[Dot]:
    """Return the products of a stage with roles, none for tiles that are computed without."""
    return products(stage_body(stage))


def multiplies(stage: BoundStage) -> bool:
    """True if the tiles of a stage multiply, in a loop or not."""
    return stage.has_loop or bool(products_of_tile(stage))


@once_a_stage
def results_of(stage: BoundStage) -> list[Region]:
    """Return the regions in which the tiles of a stage store the same result, which the storer stores: the first one
    of a loop that carries a state."""
    if isinstance(stage.carried, Carried):
        return [stored_at(store) for store in stage.carried.results[:1]]  # the storer takes one result after the other
    stores = (s for s in stage_body(stage) if isinstance(s, Store | Transfer))
    return [s.region if isinstance(s, Store) else s.target for s in stores]


@once_a_stage
def addends(stage: BoundStage) -> list[Read]:
    """Return the regions that a stage computes with next to its product."""
    found: list[Read] = []
    summed = summed_of(stage)
    for statement in stage_body(stage):
        value = value_of(statement)
        if value is not None and (summed is None or statement is not summed.statement):
            map_value(value, lambda one: _kept(one, found))
    return found


def tile_addends(bound: Bound, stage: BoundStage) -> list[Region]:
    """Return the tiles that a stage computes with next to its product, in the order of their first use."""

    def is_tile(region: Region) -> bool:
        return sum(span.kind != "point" for span in bound.tile_map(stage.name, region).spans) > 1

    return [region for region in dict.fromkeys(one.region for one in addends(stage)) if is_tile(region)]


def _kept(value: Value, found: list[Read]) -> Value | None:
    """Keep a region that is no operand of a product, and visit nothing inside a product."""
    if isinstance(value, Read):
        found.append(value)
    return value if isinstance(value, Read | Dot) else None


@once_a_stage
def late_waits(stage: BoundStage) -> tuple[Wait, ...]:
    """Return the waits after the product of a tile."""
    after = None if stage.has_loop else after_product(stage.stage.body, stage.products)
    return () if after is None else _late_waits(stage.stage.body[after:])


def _late_waits(body: tuple[Statement, ...]) -> tuple[Wait, ...]:
    """Return the waits among what follows a product, up to the first store."""
    computing = takewhile(lambda s: isinstance(s, Assign | Wait), body)
    return tuple(s for s in computing if isinstance(s, Wait))
