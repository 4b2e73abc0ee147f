"""Traversal and rewriting of statements and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache

from tilelink.ir.program import (
    Apply,
    Assign,
    Barrier,
    Cast,
    For,
    FromScalar,
    If,
    IndexDecl,
    Literal,
    Local,
    NetworkFence,
    NetworkQuiet,
    Notify,
    Read,
    Region,
    Stage,
    Statement,
    Store,
    Transfer,
    Value,
    Wait,
)
from tilelink.ir.scalar import Index, Lookup, Scalar, indices_in, rewrite, walk


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Yield every statement, outer ones first."""
    for statement in body:
        yield statement
        match statement:
            case If(then=then, orelse=orelse):
                yield from statements(then)
                yield from statements(orelse)
            case For(body=inner):
                yield from statements(inner)
            case _:
                pass


def value_of(statement: Statement) -> Value | None:
    """Return the value that a statement computes, or None."""
    match statement:
        case Assign(value=value) | Store(value=value) | Transfer(source=value):
            return value
        case _:
            return None


def copied(statement: Statement) -> tuple[Region, Region] | None:
    """Return (target, source) of a statement that is a copy, or None."""
    match statement:
        case Store(adds=True):
            return None
        case Transfer(target=target, source=Read(region=source)) | Store(region=target, value=Read(region=source)):
            return target, source
        case _:
            return None


def values(value: Value) -> Iterator[Value]:
    """Yield the value and all values inside it, in preorder."""
    stack = [value]
    while stack:
        yield (node := stack.pop())
        stack.extend(reversed(operands(node)))


def operands(value: Value) -> list[Value]:
    """Return the direct operands of a value, in order."""
    found: list[Value] = []
    for name in _field_names(type(value)):
        child = getattr(value, name)
        if isinstance(child, Value):
            found.append(child)
        elif isinstance(child, tuple):
            found += [one for one in child if isinstance(one, Value)]
    return found


_WITHOUT_VALUES = {
    "str", "int", "float", "float | int | bool", "tuple[bool, ...]", "Scalar", "Region", "str | None",
    "Location | None",
}  # fmt: skip
"""Types, as they are written, of fields that are no operands: those of all values of a program are asked for often."""


@cache
def _field_names(kind: type[Value]) -> tuple[str, ...]:
    """Return the fields of a kind of value that may have values. `dataclasses.fields` makes them anew each time."""
    return tuple(field.name for field in fields(kind) if field.type not in _WITHOUT_VALUES)


def local_names(value: Value) -> set[str]:
    """Return the names that a value reads."""
    return {node.name for node in values(value) if isinstance(node, Local)}


def read_unassigned(body: tuple[Statement, ...], *, iterations: bool) -> set[str]:
    """Return the names that a body may read before it assigns them.

    iterations: assume that every loop has at least one iteration.
    """
    unassigned: set[str] = set()

    def go_through(body: tuple[Statement, ...], assigned: set[str]) -> set[str]:
        for statement in body:
            value = value_of(statement)
            unassigned.update(local_names(value) - assigned if value is not None else ())
            match statement:
                case Assign(name=name):
                    assigned = assigned | {name}
                case If(then=then, orelse=orelse):
                    assigned = go_through(then, assigned) & go_through(orelse, assigned)
                case For(body=inner):
                    after = go_through(inner, assigned)
                    assigned = after if iterations else assigned
                case _:
                    pass
        return assigned

    go_through(body, set())
    return unassigned


def mixes(value: Value) -> bool:
    """True if an element of the value may depend on elements at other positions of its operands."""
    return not all(isinstance(node, Read | Local | Literal | FromScalar | Apply | Cast) for node in values(value))


def reads(value: Value) -> list[Region]:
    """Return the regions that a value reads, in evaluation order."""
    return [v.region for v in values(value) if isinstance(v, Read)]


def received(value: Value) -> list[Read]:
    """Return the reads in a value that wait for the words of what they read."""
    return [v for v in values(value) if isinstance(v, Read) and v.signal is not None]


def awaited(statement: Statement) -> list[tuple[str, str]]:
    """Return the signals (tensor, kind) that a statement waits for: by itself, or where it reads words."""
    if isinstance(statement, Wait):
        return [(statement.region.tensor, statement.kind)]
    value = value_of(statement)
    reads_of = received(value) if value is not None else []
    return [(read.region.tensor, read.signal) for read in reads_of if read.signal is not None]


def notified(statement: Statement) -> list[tuple[str, str]]:
    """Return the signals (tensor, kind) that a statement notifies: by itself, or with the data that it moves."""
    match statement:
        case Notify(region=region, kind=kind):
            return [(region.tensor, kind)]
        case Transfer(target=target, signal=str(kind)):
            return [(target.tensor, kind)]
        case _:
            return []


def map_value(value: Value, change: Callable[[Value], Value | None]) -> Value:
    """Replace, top down, each value for which `change` does not return None."""
    new = change(value)
    if new is not None:
        return new
    updates: dict[str, object] = {}
    for name in _field_names(type(value)):
        child = getattr(value, name)
        if isinstance(child, Value):
            updates[name] = map_value(child, change)
        elif isinstance(child, tuple) and any(isinstance(c, Value) for c in child):
            updates[name] = tuple(map_value(c, change) for c in child)
    return replace(value, **updates) if updates else value


ScalarChange = Callable[[Scalar], Scalar | None]


def map_scalars(body: tuple[Statement, ...], change: ScalarChange) -> tuple[Statement, ...]:
    """Rewrite every integer expression of a body (conditions, coordinates, ranks, extents, values)."""
    return tuple(_map_statement(s, change) for s in body)


_ENDS = ("start", "stop")
"""The ends of the part of a dimension that an index runs over."""


def map_index(decl: IndexDecl, change: ScalarChange) -> IndexDecl:
    """Rewrite the integer expressions of an index declaration."""
    ends = {name: rewrite(end, change) for name in _ENDS if (end := getattr(decl, name)) is not None}
    return replace(decl, extent=rewrite(decl.extent, change), **ends)


def map_region_scalars(region: Region, change: ScalarChange) -> Region:
    """Rewrite the coordinates and the rank of a region."""
    coords = tuple(rewrite(c, change) if isinstance(c, Scalar) else c for c in region.coords)
    rank = rewrite(region.rank, change) if region.rank is not None else None
    return replace(region, coords=coords, rank=rank)


def _map_value_scalars(value: Value, change: ScalarChange) -> Value:
    def on_value(v: Value) -> Value | None:
        if isinstance(v, Read):
            return replace(v, region=map_region_scalars(v.region, change))
        if isinstance(v, FromScalar):
            return replace(v, scalar=rewrite(v.scalar, change))
        return None

    return map_value(value, on_value)


def _map_statement(statement: Statement, change: ScalarChange) -> Statement:
    match statement:
        case Assign(value=value):
            return replace(statement, value=_map_value_scalars(value, change))
        case Store(region=region, value=value):
            new = map_region_scalars(region, change)
            return replace(statement, region=new, value=_map_value_scalars(value, change))
        case Transfer(target=target, source=source):
            new = map_region_scalars(target, change)
            return replace(statement, target=new, source=_map_value_scalars(source, change))
        case Notify(region=region) | Wait(region=region):
            return replace(statement, region=map_region_scalars(region, change))
        case Barrier() | NetworkFence() | NetworkQuiet():
            return statement
        case If(condition=condition, then=then, orelse=orelse):
            then, orelse = map_scalars(then, change), map_scalars(orelse, change)
            return replace(statement, condition=rewrite(condition, change), then=then, orelse=orelse)
        case For(indices=indices, body=inner):
            new_indices = tuple(map_index(d, change) for d in indices)
            return replace(statement, indices=new_indices, body=map_scalars(inner, change))
        case _:
            raise TypeError(f"unknown statement {type(statement).__name__}")


def map_values(body: tuple[Statement, ...], change: Callable[[Value], Value | None]) -> tuple[Statement, ...]:
    """Rewrite every value of a body, top down like `map_value`."""

    def on_statement(statement: Statement) -> Statement:
        match statement:
            case Assign(value=value) | Store(value=value):
                return replace(statement, value=map_value(value, change))
            case Transfer(source=source):
                return replace(statement, source=map_value(source, change))
            case _:
                return statement

    return map_statements(body, on_statement)


def without_names(body: tuple[Statement, ...], chosen: Callable[[int, Assign], bool]) -> tuple[Statement, ...]:
    """Return a body without the names that are chosen: statements after them have their values instead.

    chosen: called with the number of a statement that gives a name a value, and with the statement.
    """
    known: dict[str, Value] = {}
    done: list[Statement] = []
    for number, given in enumerate(body):
        (one,) = map_values((given,), lambda v: known.get(v.name) if isinstance(v, Local) else None)
        if isinstance(one, Assign) and chosen(number, one):
            known[one.name] = one.value
        else:
            done.append(one)
    return tuple(done)


def map_regions(body: tuple[Statement, ...], change: Callable[[Region], Region]) -> tuple[Statement, ...]:
    """Rewrite every region of a body."""

    def on_value(value: Value) -> Value | None:
        return replace(value, region=change(value.region)) if isinstance(value, Read) else None

    def on_statement(statement: Statement) -> Statement:
        match statement:
            case Store(region=region) | Notify(region=region) | Wait(region=region):
                return replace(statement, region=change(region))
            case Transfer(target=target):
                return replace(statement, target=change(target))
            case _:
                return statement

    return map_statements(map_values(body, on_value), on_statement)


def map_loops(body: tuple[Statement, ...], change: Callable[[IndexDecl], IndexDecl]) -> tuple[Statement, ...]:
    """Rewrite the index declarations of every loop."""

    def on_statement(statement: Statement) -> Statement:
        if isinstance(statement, For):
            return replace(statement, indices=tuple(change(d) for d in statement.indices))
        return statement

    return map_statements(body, on_statement)


def map_statements(body: tuple[Statement, ...], change: Callable[[Statement], Statement]) -> tuple[Statement, ...]:
    """Rewrite every statement, inner ones first."""
    return tuple(change(_map_inner(s, change)) for s in body)


def _map_inner(statement: Statement, change: Callable[[Statement], Statement]) -> Statement:
    match statement:
        case If(then=then, orelse=orelse):
            return replace(statement, then=map_statements(then, change), orelse=map_statements(orelse, change))
        case For(body=body):
            return replace(statement, body=map_statements(body, change))
        case _:
            return statement


def written(statement: Statement) -> Region | None:
    """Return the region that a statement writes, if it does."""
    match statement:
        case Store(region=region) | Transfer(target=region):
            return region
        case _:
            return None


def named(statement: Statement) -> Region | None:
    """Return the region that a statement writes or signals, if it does."""
    return statement.region if isinstance(statement, Notify | Wait) else written(statement)


def stage_regions(stage: Stage) -> list[Region]:
    """Return every region in a stage's body: those that are read, then those that are written or signalled."""
    every = list(statements(stage.body))
    regions = [region for s in every if (value := value_of(s)) is not None for region in reads(value)]
    return [*regions, *(region for s in every if (region := named(s)) is not None)]


def stage_scalars(stage: Stage) -> list[Scalar]:
    """Return every integer expression in a stage, without the expressions inside it and the extents of its domain."""
    return [*range_ends(stage.indices), *scalars(stage.body)]


def scalars(body: tuple[Statement, ...]) -> Iterator[Scalar]:
    """Yield every integer expression of a body, without the expressions inside it."""
    for statement in body:
        match statement:
            case Store(region=region) | Notify(region=region) | Wait(region=region) | Transfer(target=region):
                yield from _region_scalars(region)
            case If(condition=condition, then=then, orelse=orelse):
                yield from scalars((*then, *orelse))
                yield condition
            case For(indices=indices, body=inner):
                yield from (decl.extent for decl in indices)
                yield from range_ends(indices)
                yield from scalars(inner)
            case _:
                pass
        value = value_of(statement)
        for node in values(value) if value is not None else ():
            match node:
                case Read(region=region):
                    yield from _region_scalars(region)
                case FromScalar(scalar=scalar):
                    yield scalar
                case _:
                    pass


def _region_scalars(region: Region) -> Iterator[Scalar]:
    yield from (coord for coord in region.coords if isinstance(coord, Scalar))
    if region.rank is not None:
        yield region.rank


def range_ends(indices: tuple[IndexDecl, ...]) -> Iterator[Scalar]:
    """Yield the ends of the counted ranges that indices run over."""
    yield from (end for decl in indices for name in _ENDS if (end := getattr(decl, name)) is not None)


def scalars_of(statement: Statement) -> list[Scalar]:
    """Return every integer expression in a statement, and in the statements inside it."""
    return list(scalars((statement,)))


def own_scalars(statement: Statement) -> list[Scalar]:
    """Return every integer expression of a statement itself, without those of its branches and iterations."""
    match statement:
        case If(condition=condition):
            return [condition]
        case For(indices=indices):
            return list(range_ends(indices))
        case _:
            return scalars_of(statement)


def all_indices(stage: Stage) -> tuple[IndexDecl, ...]:
    """Return the stage's own indices and those of its loops."""
    inner = [d for s in statements(stage.body) if isinstance(s, For) for d in s.indices]
    return (*stage.indices, *inner)


def two_ranges(stage: Stage) -> Iterator[tuple[IndexDecl, IndexDecl]]:
    """Yield each index that runs over another range than where the stage declares it first, after that declaration.

    What belongs to an index is known by its name in its whole stage: its range, the size of its tiles, its kind.
    """
    seen: dict[str, IndexDecl] = {}
    for decl in all_indices(stage):
        first = seen.setdefault(decl.name, decl)
        if (first.extent, first.start, first.stop) != (decl.extent, decl.start, decl.stop):
            yield first, decl


def counters(stage: Stage) -> frozenset[str]:
    """Return the loop indices that a stage never uses: they only count iterations, so their tiles have one element."""
    named = indices_in(*stage_scalars(stage))
    loops = (s for s in statements(stage.body) if isinstance(s, For))
    return frozenset(d.name for loop in loops for d in loop.indices) - named


def on_ranks(stage: Stage) -> tuple[If | None, tuple[Statement, ...]]:
    """Return the condition that is around all of a stage's body, if the rank alone decides it, and what is in it.

    A stage `on GROUP` has one. Ranks on which it does not hold execute nothing of the stage, and read no ends of its
    ranges.
    """
    match stage.body:
        case (If(condition=condition, then=then, orelse=()) as branch,) if then and not any(
            isinstance(part, Index | Lookup) for part in walk(condition)
        ):
            return branch, then
        case _:
            return None, stage.body


def with_body_on_ranks(stage: Stage, body: tuple[Statement, ...]) -> Stage:
    """Return a stage with another body, on the ranks that execute the one that it has."""
    branch, _ = on_ranks(stage)
    return replace(stage, body=body if branch is None else (replace(branch, then=body),))


def leading_waits(stage: Stage) -> int:
    """Return the number of waits and barriers at the start of a stage's body that name no counted index of its domain.

    Every tile makes them before the ends of counted ranges are read. Those of a stage that some ranks execute are in
    its condition (`on_ranks`).
    """
    counted = {decl.name for decl in stage.indices if decl.counted}
    number = 0
    for statement in on_ranks(stage)[1]:
        if isinstance(statement, Barrier):
            number += 1
            continue
        if not isinstance(statement, Wait):
            break
        if indices_in(*statement.region.coords) & counted:
            break
        number += 1
    return number


def only_signals(body: tuple[Statement, ...], left_out: Callable[[Wait], bool]) -> tuple[Statement, ...]:
    """Return the waits, notifies and network orders of a body, with the loops and branches that they are in.

    Of a put with a signal the signal is left, which the network carries alone, and of words that are sent nothing.
    left_out: True for a wait that is left out too.
    """
    kept: list[Statement] = []
    for statement in body:
        match statement:
            case Wait() if left_out(statement):
                pass
            case Wait() | Notify() | NetworkFence() | NetworkQuiet():
                kept.append(statement)
            case Transfer(signal=kind) if kind is not None and statement.mode != "send":
                kept.append(Notify(kind=kind, region=statement.target, by_network=True, location=statement.location))
            case If(then=then, orelse=orelse):
                branches = only_signals(then, left_out), only_signals(orelse, left_out)
                if any(branches):
                    kept.append(replace(statement, then=branches[0], orelse=branches[1]))
            case For(body=inner) if signals := only_signals(inner, left_out):
                kept.append(replace(statement, body=signals))
            case _:
                pass
    return tuple(kept)


def closing_notifies(body: tuple[Statement, ...]) -> tuple[Notify, ...]:
    """Return the notifies at the end of a body."""
    notifies: list[Notify] = []
    for statement in reversed(body):
        if not isinstance(statement, Notify):
            break
        notifies.insert(0, statement)
    return tuple(notifies)
