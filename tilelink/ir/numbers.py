"""Indices that are numbers, as told by where a stage writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from tilelink.errors import Mistakes
from tilelink.ir.mapping import tile_index
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
from tilelink.ir.scalar import Index, Ranks, Scalar, Whole, walk
from tilelink.ir.visitor import read_unassigned, statements, value_of, values


class Axis(Protocol):
    """An axis of a value: along the tile of an index, or none."""

    @property
    def index(self) -> str | None: ...


def used_as_numbers(program: Program, stage: Stage, scalars: frozenset[str]) -> set[str]:
    """Indices of a stage in conditions, ranks, values, or coordinates that are no tiles."""
    found: set[str] = set()
    for statement in statements(stage.body):
        if isinstance(statement, If):
            found |= _names(statement.condition)
        for region in _regions(statement):
            found |= _numbers_in_region(program, region, scalars)
        value = value_of(statement)
        for part in values(value) if value is not None else ():
            if isinstance(part, FromScalar):
                found |= _names(part.scalar)
    return found


def _regions(statement: Statement) -> list[Region]:
    value = value_of(statement)
    found = [v.region for v in values(value) if isinstance(v, Read)] if value is not None else []
    match statement:
        case Store(region=region) | Notify(region=region) | Wait(region=region):
            return [*found, region]
        case Transfer(target=target):
            return [*found, target]
        case _:
            return found


def _numbers_in_region(program: Program, region: Region, scalars: frozenset[str]) -> set[str]:
    found = _names(region.rank) if region.rank is not None else set[str]()
    for coord, dim in zip(region.coords, program.tensor(region.tensor).shape, strict=False):
        if isinstance(coord, Whole):
            continue
        tile = None if isinstance(dim, Ranks) else tile_index(coord, scalars)
        found |= _names(coord) if tile is None else _names(tile[0])
    return found


def _names(expr: Scalar) -> set[str]:
    return {e.name for e in walk(expr) if isinstance(e, Index)}


def batch_indices(stage: Stage, axes_of: Callable[[Value], Sequence[Axis]]) -> frozenset[str]:
    """Indices along axes before the last two of a product's operands. axes_of: raises what is wrong with a value."""
    found: set[str] = set()
    for statement in statements(stage.body):
        value = value_of(statement)
        for part in values(value) if value is not None else ():
            operands: tuple[Value, ...] = ()
            if isinstance(part, Dot):
                operands = (part.left, part.right)
            elif isinstance(part, Attend):
                operands = (part.q, part.k, part.v)
            for operand in operands:
                with Mistakes().noted():  # a wrong operand is reported with its statement
                    found |= {a.index for a in axes_of(operand)[:-2] if a.index is not None}
    return frozenset(found)


def carried_along(stage: Stage, axes: Mapping[str, Iterable[Axis]]) -> frozenset[str]:
    """Indices of loops along which a value has an axis that one iteration hands to the next. axes: of the names.

    The elements of a tile do not meet those of the next one: an iteration has one element.
    """
    found: set[str] = set()
    for statement in statements(stage.body):
        if isinstance(statement, For):
            handed = {s.name for s in statements(statement.body) if isinstance(s, Assign)}
            handed &= read_unassigned(statement.body, iterations=True)
            along = {a.index for name in handed for a in axes.get(name, ()) if a.index is not None}
            found |= along & {decl.name for decl in statement.indices}
    return frozenset(found)


def outliving(
    body: tuple[Statement, ...],
    axes: Mapping[str, Iterable[Axis]],
    before: frozenset[str] = frozenset(),
    behind: tuple[Statement, ...] = (),
) -> frozenset[str]:
    """Indices of loops along which a value has an axis that it has from before the loop, and that is read after it.

    axes: of the names. before: names with a value when the body begins; behind: what comes after the body.
    """
    found: frozenset[str] = frozenset()
    for number, statement in enumerate(body):
        rest = (*body[number + 1 :], *behind)
        match statement:
            case Assign(name=name):
                before |= {name}
            case If(then=then, orelse=orelse):
                found |= outliving(then, axes, before, rest) | outliving(orelse, axes, before, rest)
            case For(indices=indices, body=inner):
                own = {decl.name for decl in indices}
                kept = {s.name for s in statements(inner) if isinstance(s, Assign)} & before & _read_first(rest)
                found |= {a.index for name in kept for a in axes.get(name, ()) if a.index is not None} & own
                found |= outliving(inner, axes, before, rest)
            case _:
                pass
    return found


def _read_first(body: Iterable[Statement]) -> frozenset[str]:
    """Names that are read before they are surely assigned."""
    found: set[str] = set()
    assigned: set[str] = set()
    for statement in body:
        for part in statements((statement,)):
            value = value_of(part)
            read = {v.name for v in values(value) if isinstance(v, Local)} if value is not None else set[str]()
            found |= read - assigned
        if isinstance(statement, Assign):
            assigned.add(statement.name)
    return frozenset(found)
