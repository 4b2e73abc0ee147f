"""Epilogues of products, and tiles without a product, without loops, branches and names of constants.

The warps that multiply (lowering/clauses/roles.py) compute the epilogue of a tile piece by piece, from registers, after
all of its waits. A loop over numbers is unrolled, and a branch that is the same on all ranks is taken or left out. A
constant stands where its name was.

The waits stay where they are. To move them before what is computed, as those warps do, orders more than the program
says: rules that saw them there would accept a load that comes too early in it.

before: acc = dot(x[rank, i, :], w[j, :].T)
        for (q: 2 by 1):
            wait(parts[(rank + 1 + q) % 3, i, j])
            acc = acc + parts[(rank + 1 + q) % 3, i, j]
        y[i, j] = acc
after:  acc = dot(x[rank, i, :], w[j, :].T)
        wait(parts[(rank + 1) % 3, i, j])
        acc = acc + parts[(rank + 1) % 3, i, j]
        wait(parts[(rank + 2) % 3, i, j])
        acc = acc + parts[(rank + 2) % 3, i, j]
        y[i, j] = acc
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod

from tilelink.ir.products import products
from tilelink.ir.program import (
    Apply,
    Assign,
    Cast,
    Expand,
    For,
    FromScalar,
    Full,
    If,
    Literal,
    Local,
    Read,
    Statement,
    Value,
    Wait,
)
from tilelink.ir.reach import on_all_ranks
from tilelink.ir.scalar import Index, Scalar, const, substitute, walk
from tilelink.ir.simplify import simplify
from tilelink.ir.visitor import map_scalars, map_values, statements, value_of, values
from tilelink.lowering.bound import Bound, BoundStage, with_bodies

UNROLLED = 16
"""Most iterations of loops that are unrolled, of all that are nested together."""

ELEMENTWISE_VALUES = (Apply, Cast, Expand, FromScalar, Full, Literal, Local, Read)
"""Values that are elementwise in what they are computed from."""

Expanded = Callable[[Statement], tuple[Statement, ...] | None]
"""Returns the statements that stand for a loop or a branch, or None if it remains."""


def straightened(bound: Bound, name: str) -> Bound:
    """Return the bound program with a stage whose epilogue is straight, as far as it can be."""
    stage = bound.stages[name]
    body = straight(stage.stage.body, partial(_expanded, bound, stage), stage.products)
    bound = with_bodies(bound, {name: body})
    left = {decl.name for s in statements(body) if isinstance(s, For) for decl in s.indices}
    left |= {decl.name for decl in stage.stage.indices}
    kept = replace(
        bound.stages[name],
        tiles={index: size for index, size in stage.tiles.items() if index in left},
        extents={index: size for index, size in stage.extents.items() if index in left},
        scalar_indices=stage.scalar_indices & left,
    )
    return replace(bound, stages={**bound.stages, name: kept})


def straight(
    body: tuple[Statement, ...], expanded: Expanded, slices: Collection[str] = frozenset()
) -> tuple[Statement, ...]:
    """Return the statements of a tile that begins with waits and a product, with a straight epilogue.

    All of a body that only computes elementwise is straight. Another body is returned as it is. slices: as of
    after_product.
    """
    first = 0 if is_elementwise(body) else after_product(body, slices)
    if first is None:
        return body
    return _without_constants((*body[:first], *_straight(body[first:], expanded)), slices)


def is_elementwise(body: tuple[Statement, ...]) -> bool:
    """True if all that a body computes is elementwise in tiles, vectors and numbers."""
    computed = [value for s in statements(body) if (value := value_of(s)) is not None]
    return all(isinstance(one, ELEMENTWISE_VALUES) for value in computed for one in values(value))


def _without_constants(body: tuple[Statement, ...], slices: Collection[str]) -> tuple[Statement, ...]:
    """Return statements in which names of constants are replaced by them: `total = zeros(f32)` takes no registers.

    The start of the sums of a product of slices stays.
    """
    sums = {s.name for loop in body if _is_sliced(loop, slices) for s in statements((loop,)) if isinstance(s, Assign)}
    inside = {s.name for one in body if isinstance(one, For | If) for s in statements((one,)) if isinstance(s, Assign)}
    known: dict[str, Full] = {}

    def change(value: Value) -> Value | None:
        return known.get(value.name) if isinstance(value, Local) else None

    found: list[Statement] = []
    for statement in body:
        match statement:
            case Assign(name=name, value=Full() as value) if name not in sums | inside:
                known[name] = value
                continue
            case _:
                found += map_values((statement,), change)
        if isinstance(statement, Assign):
            known.pop(statement.name, None)
    return tuple(found)


def _is_sliced(statement: Statement, slices: Collection[str]) -> bool:
    """True for the loop over the slices of a product."""
    return isinstance(statement, For) and statement.indices[0].name in slices


def after_product(body: tuple[Statement, ...], slices: Collection[str] = frozenset()) -> int | None:
    """Return the number of the statement after the product that a body begins with, or None if it begins otherwise.

    slices: the indices of loops over the slices of a product.
    """
    begin = next((n for n, s in enumerate(body) if not isinstance(s, Wait) and not is_zero(s)), len(body))
    first = body[begin : begin + 1]
    sliced = any(_is_sliced(s, slices) for s in first)
    return begin + 1 if sliced or products(first) else None


def _straight(body: tuple[Statement, ...], expanded: Expanded, room: int = UNROLLED) -> Iterator[Statement]:
    """Yield straight statements. room: iterations that loops may have."""
    for statement in body:
        found = expanded(statement) if isinstance(statement, For | If) else None
        times = len(found) // len(statement.body) if found and isinstance(statement, For) else 1
        if found is None or times > room:
            yield statement
        else:
            yield from _straight(found, expanded, room // times)


def _expanded(bound: Bound, stage: BoundStage, statement: Statement) -> tuple[Statement, ...] | None:
    match statement:
        case If(condition=condition, then=then, orelse=orelse):
            taken = on_all_ranks(condition, bound.ranks)
            return None if taken is None else then if taken else orelse
        case For(indices=indices, body=body) if all(one.name in stage.scalar_indices for one in indices):
            counts = [stage.count(one.name) for one in indices]
            ends = any(one.name in stage.parts for one in indices)
            if ends or prod(counts) > UNROLLED or products(statements(body)):
                return None
            each = product(*map(range, counts))
            names = [one.name for one in indices]
            return tuple(
                s
                for numbers in each
                for s in _with(bound, stage, body, dict(zip(names, map(const, numbers), strict=True)))
            )
        case _:
            return None


def _with(
    bound: Bound, stage: BoundStage, body: tuple[Statement, ...], numbers: Mapping[str, Scalar]
) -> tuple[Statement, ...]:
    """Return the statements of an iteration."""
    bounds = bound.bounds(stage.name)

    def change(expr: Scalar) -> Scalar:
        given = substitute(expr, numbers)
        tiled = any(isinstance(e, Index) and e.name not in stage.scalar_indices for e in walk(given))
        return given if tiled else simplify(given, bounds)  # the index of a tile is no number

    return map_scalars(body, change)


def once(statement: Statement) -> tuple[Statement, ...] | None:
    """Return the statements of one iteration of a loop, and those of a branch without another side.

    It is for a program without sizes, of which the form of an epilogue is asked.
    """
    match statement:
        case If(then=then, orelse=()):
            return then
        case For(body=body) if not products(statements(body)):
            return body
        case _:
            return None


def is_zero(statement: Statement) -> bool:
    """True for a constant before a product, such as the start of its sums."""
    return isinstance(statement, Assign) and isinstance(statement.value, Full)
