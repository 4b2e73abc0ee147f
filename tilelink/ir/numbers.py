"""Inference of the indices that are plain numbers (no tiles), from their uses in a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from tilelink.errors import Mistakes
from tilelink.ir.mapping import listed, tile_index
from tilelink.ir.program import (
    Assign,
    Attend,
    Dot,
    For,
    FromScalar,
    If,
    Local,
    Notify,
    Program,
    Read,
    Region,
    Stage,
    Statement,
    Store,
    Transfer,
    Value,
    Wait,
)
from tilelink.ir.scalar import Index, Lookup, Ranks, Whole, indices_in
from tilelink.ir.visitor import all_indices, read_unassigned, statements, value_of, values


class Axis(Protocol):
    """An axis of a value; `index` is the index whose tile it runs along, or None."""

    @property
    def index(self) -> str | None: ...


def used_as_numbers(program: Program, stage: Stage, scalars: frozenset[str]) -> set[str]:
    """Return the indices used in conditions, ranks, values, or coordinates that are not tiles."""
    numbers = indices_in(*(end for decl in all_indices(stage) for end in (decl.start, decl.stop)))
    for statement in statements(stage.body):
        if isinstance(statement, If):
            numbers |= indices_in(statement.condition)
        for region in _regions(statement):
            numbers |= _numbers_in_region(program, region, scalars)
        value = value_of(statement)
        for operand in values(value) if value is not None else ():
            if isinstance(operand, FromScalar):
                numbers |= indices_in(operand.scalar)
    return numbers


def _regions(statement: Statement) -> list[Region]:
    value = value_of(statement)
    read = [v.region for v in values(value) if isinstance(v, Read)] if value is not None else []
    match statement:
        case Store(region=region) | Notify(region=region) | Wait(region=region):
            return [*read, region]
        case Transfer(target=target):
            return [*read, target]
        case _:
            return read


def _numbers_in_region(program: Program, region: Region, scalars: frozenset[str]) -> set[str]:
    numbers = indices_in(region.rank)
    for coord, dim in zip(region.coords, program.tensor(region.tensor).shape, strict=False):
        if isinstance(coord, Whole):
            continue
        if not isinstance(dim, Ranks) and (entries := listed(coord, scalars)) is not None and isinstance(coord, Lookup):
            numbers |= indices_in(entries.offset, *(c for d, c in enumerate(coord.coords) if d != entries.dim))
            continue
        tile = None if isinstance(dim, Ranks) else tile_index(coord, scalars)
        numbers |= indices_in(coord if tile is None else tile[0])
    return numbers


def place_of_number(program: Program, stage: Stage, name: str) -> Region | None:
    """Return the first region of a stage with a coordinate that is arithmetic of an index other than a shift."""
    for statement in statements(stage.body):
        for region in _regions(statement):
            if not any(coord == Index(name=name) for coord in region.coords) and name in _numbers_in_region(
                program, region, frozenset()
            ):
                return region
    return None


def batch_indices(stage: Stage, axes_of: Callable[[Value], Sequence[Axis]]) -> frozenset[str]:
    """Return the indices along the batch axes (all but the last two) of the operands of matrix products.

    axes_of: the axes of a value; raises an error if the value is ill-typed.
    """
    batch: set[str] = set()
    for statement in statements(stage.body):
        value = value_of(statement)
        for node in values(value) if value is not None else ():
            operands: tuple[Value, ...] = ()
            if isinstance(node, Dot):
                operands = (node.left, node.right)
            elif isinstance(node, Attend):
                operands = (node.q, node.k, node.v)
            for operand in operands:
                with Mistakes().noted():  # an ill-typed operand is reported with its statement
                    batch |= {a.index for a in axes_of(operand)[:-2] if a.index is not None}
    return frozenset(batch)


def carried_along(stage: Stage, axes: Mapping[str, Iterable[Axis]]) -> frozenset[str]:
    """Return the loop indices that are an axis of a value carried from one iteration of their loop to the next.

    Such an index is a number, so that an iteration has one element: with tiles, the elements of one tile would not be
    combined with those of the next. axes: of each name.
    """
    along_loops: set[str] = set()
    for statement in statements(stage.body):
        if isinstance(statement, For):
            carried = {s.name for s in statements(statement.body) if isinstance(s, Assign)}
            carried &= read_unassigned(statement.body, iterations=True)
            along = {a.index for name in carried for a in axes.get(name, ()) if a.index is not None}
            along_loops |= along & {decl.name for decl in statement.indices}
    return frozenset(along_loops)


def outliving(
    body: tuple[Statement, ...],
    axes: Mapping[str, Iterable[Axis]],
    before: frozenset[str] = frozenset(),
    after: tuple[Statement, ...] = (),
) -> frozenset[str]:
    """Return the loop indices that are an axis of a value assigned before and in their loop, and read after it.

    axes: of each name. before: names assigned before the body; after: the statements that follow it.
    """
    indices_along: frozenset[str] = frozenset()
    for number, statement in enumerate(body):
        rest = (*body[number + 1 :], *after)
        match statement:
            case Assign(name=name):
                before |= {name}
            case If(then=then, orelse=orelse):
                indices_along |= outliving(then, axes, before, rest) | outliving(orelse, axes, before, rest)
            case For(indices=indices, body=inner):
                of_loop = {decl.name for decl in indices}
                kept = {s.name for s in statements(inner) if isinstance(s, Assign)} & before & _read_first(rest)
                indices_along |= {a.index for name in kept for a in axes.get(name, ()) if a.index is not None} & of_loop
                indices_along |= outliving(inner, axes, before, rest)
            case _:
                pass
    return indices_along


def _read_first(body: Iterable[Statement]) -> frozenset[str]:
    """Names that may be read before they are assigned."""
    read_first: set[str] = set()
    assigned: set[str] = set()
    for statement in body:
        for nested in statements((statement,)):
            value = value_of(nested)
            read = {v.name for v in values(value) if isinstance(v, Local)} if value is not None else set[str]()
            read_first |= read - assigned
        if isinstance(statement, Assign):
            assigned.add(statement.name)
    return frozenset(read_first)
