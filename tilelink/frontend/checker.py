"""The checker: reports all mistakes of a program that do not depend on its schedule, sizes and ranks.

Names and syntax are resolved when the IR is built, and shapes are checked by `ir.typing`. This module checks accesses,
signals, sizes and outputs; `assigned` checks names and `kinds` checks dtypes. The verifier checks everything that
depends on sizes, orders or ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.errors import (
    AccountingError,
    CoverageError,
    DtypeError,
    DuplicateNameError,
    Location,
    Mistakes,
    RemoteAccessError,
    ShapeError,
    StageError,
    TileLinkError,
    UnknownNameError,
    WriteError,
    public,
)
from tilelink.frontend.assigned import check_assigned
from tilelink.frontend.integers import number_errors, regions_of
from tilelink.frontend.kinds import check_kinds
from tilelink.frontend.limits import check_depth
from tilelink.frontend.reserved import check_words
from tilelink.ir.depth import deep
from tilelink.ir.identity import ByIdentity
from tilelink.ir.printer import MOVE, NOTIFY, RECEIVED, WAIT, print_range, print_region, print_scalar, print_statement
from tilelink.ir.program import (
    For,
    GridDim,
    Group,
    If,
    IndexDecl,
    NetworkFence,
    NetworkQuiet,
    Notify,
    Program,
    Read,
    Region,
    Stage,
    Statement,
    Tensor,
    Transfer,
    Wait,
    require_program,
)
from tilelink.ir.reach import away, reach_error
from tilelink.ir.scalar import (
    Binary,
    Compare,
    Index,
    Int,
    Logic,
    Lookup,
    Rank,
    Scalar,
    at_launch,
    indices_in,
    is_gather,
    walk,
)
from tilelink.ir.scalar import Param as ParamRef
from tilelink.ir.typing import infer
from tilelink.ir.visitor import (
    all_indices,
    reads,
    stage_regions,
    stage_scalars,
    statements,
    two_ranges,
    value_of,
    values,
    written,
)

_CHECKED = ByIdentity[Program]()
"""Programs without mistakes. A search binds the same program with many schedules."""


@public
def check(program: Program) -> Program:
    """Return the program unchanged. Raises the error of its mistake, or SeveralErrors with all of them."""
    if _CHECKED.get(program) is None:
        _check(program)
        _CHECKED.put(program, program)
    return program


@deep()
def _check(program: Program) -> None:
    require_program(program)
    mistakes = Mistakes()
    check_depth(program, mistakes)
    mistakes.raise_any()  # a program that is too deep must not be walked
    check_words(program, mistakes)
    mistakes.raise_any()  # a program with foreign parts cannot be typed
    typing = infer(program, mistakes)
    _check_over(program, mistakes)
    for tensor in program.tensors:
        for size in tensor.shape:
            _check_size(program, size, f"a dimension of {tensor.name}", tensor, mistakes)
        if tensor.bound is not None:
            _check_bound(program, tensor, tensor.bound, mistakes)
        _check_defined(program, tensor, mistakes)
        _check_on(program, tensor, mistakes)
    for stage in program.stages:
        _check_indices(program, stage, mistakes)
        for statement in statements(stage.body):
            for error in (*_access_errors(program, statement), *number_errors(program, statement)):
                mistakes.add(error)
        _check_rows(stage, mistakes)
        check_assigned(stage, typing.stage(stage.name), mistakes)
        check_kinds(stage, typing.stage(stage.name), mistakes)
        _check_repeats(program, stage, mistakes)
    _check_signals(program, mistakes)
    _check_coverage(program, mistakes)
    mistakes.raise_any()


# Sizes and indices -------------------------------------------------------------------------------------------


def _check_over(program: Program, mistakes: Mistakes) -> None:
    """Check the grid and the groups of ranks."""
    for dim in program.grid:
        if dim.size is not None:
            _check_size(program, dim.size, f"the size of {dim.name}", dim, mistakes)
    if any(dim.size is None for dim in program.grid[1:]):
        hint = "each dimension but the first has a size"
        mistakes.add(ShapeError("a grid of unknown size", location=program.grid[0].location, hint=hint))
    for group in program.groups:
        if group.start != Int(value=0):
            _check_size(program, group.start, f"the first rank of {group.name}", group, mistakes)
        _check_size(program, group.stop, f"the end of {group.name}", group, mistakes)


def _check_size(
    program: Program, size: Scalar, what: str, node: Tensor | IndexDecl | GridDim | Group, mistakes: Mistakes
) -> None:
    location, known = size.location or node.location, "numbers, dimensions and ranks"
    kinds = {p.name: p.kind for p in program.params}
    for part in walk(size):
        if isinstance(part, Rank | Index | Lookup):
            message = f"{what} cannot depend on {print_scalar(part)}"
            hint = f"sizes are the same on every rank and for every tile: they are made of {known}"
            if isinstance(part, Lookup) and part.launch and isinstance(node, IndexDecl):
                hint = f"a range ends there, in a dimension that is a size: ({node.name}: M[: {print_scalar(part)}])"
            mistakes.add(ShapeError(message, location=part.location or location, hint=hint))
        elif isinstance(part, ParamRef) and kinds.get(part.name) in ("f32", "bool"):
            message = f"{what} cannot be {part.name}, which is {kinds[part.name]}"
            hint = f"declare {part.name} without a kind: it is then a dimension"
            mistakes.add(DtypeError(message, location=part.location or location, hint=hint))
        elif isinstance(part, Compare | Logic):
            message = f"{what} cannot be the truth value {print_scalar(part)}"
            mistakes.add(DtypeError(message, location=location, hint=f"sizes are made of {known}"))
    if isinstance(size, Int) and size.value < 1:
        mistakes.add(ShapeError(f"{what} is {size.value}", location=location, hint="sizes are positive"))


def _check_bound(program: Program, tensor: Tensor, bound: Scalar, mistakes: Mistakes) -> None:
    """Check a bound: a size, or the entry of an index tensor; what a rank is given has a bound that it is given."""
    lookups = [part for part in walk(bound) if isinstance(part, Lookup)]
    if not lookups:
        _check_size(program, bound, f"the bound of {tensor.name}", tensor, mistakes)
        return
    _check_integer(program, bound, f"the bound of {tensor.name}", tensor, mistakes)
    first = bound.left if isinstance(bound, Binary) else bound
    given = tensor.space == "in"
    foreign = any(not one.launch or (given and program.tensor(one.table).space != "in") for one in lookups)
    if not isinstance(first, Lookup) or foreign or tensor.space in ("kept", "inout", "table"):
        message = f"the bound of {tensor.name} cannot be {print_scalar(bound)}"
        hint = "a bound is a size or an entry; an input has that of an input: slot : in [M] < count[owner]"
        mistakes.add(ShapeError(message, location=bound.location or tensor.location, hint=hint))


def _check_integer(program: Program, expr: Scalar, what: str, node: Tensor | IndexDecl, mistakes: Mistakes) -> None:
    """Check that an expression is an integer, and no flag, number of f32 or truth value."""
    kinds = {p.name: p.kind for p in program.params}
    for part in walk(expr):
        location = part.location or expr.location or node.location
        if isinstance(part, ParamRef) and kinds.get(part.name) in ("f32", "bool"):
            message = f"{what} cannot be {part.name}, which is {kinds[part.name]}"
            mistakes.add(DtypeError(message, location=location, hint=f"declare {part.name}: i32, or take a dimension"))
        elif isinstance(part, Compare | Logic):
            message = f"{what} cannot be the truth value {print_scalar(part)}"
            mistakes.add(DtypeError(message, location=location, hint="an end is an integer; an if is about conditions"))


def _check_defined(program: Program, tensor: Tensor, mistakes: Mistakes) -> None:
    """Check the ends of what is defined of an output, or given of an input: they come from index tensors."""
    given = "given" if tensor.space == "in" else "defined"
    for size, end in zip(tensor.shape, tensor.defined, strict=False):
        if end is not None:
            _check_integer(program, end, f"the end of what is {given} of {tensor.name}", tensor, mistakes)
        if end is not None and not at_launch(end):
            message = f"{print_scalar(size)}[: {print_scalar(end)}] of {tensor.name} is the same in every launch"
            hint = f"let the dimension be {print_scalar(end)}; in a launch a part ends at an entry of an index tensor"
            mistakes.add(ShapeError(message, location=end.location or tensor.location, hint=hint))
        if end is None or tensor.space != "in":
            continue
        for entry in walk(end):
            if isinstance(entry, Lookup) and program.tensor(entry.table).space != "in":
                message = f"{tensor.name} is given up to {print_scalar(end)}, and {entry.table} is not given"
                hint = f"what says how much of an input is given is an input too: {entry.table} : in [...]"
                mistakes.add(ShapeError(message, location=end.location or tensor.location, hint=hint))


def _check_on(program: Program, tensor: Tensor, mistakes: Mistakes) -> None:
    """Check the group that has a tensor: it is declared, and has the index tensors that the declaration names."""
    if tensor.on is not None and tensor.on not in {group.name for group in program.groups}:
        hint = "declare it: over attention = ranks[0 : 2]"
        mistakes.add(UnknownNameError(f"unknown group {tensor.on!r}", location=tensor.location, hint=hint))
    if tensor.on is not None and tensor.space == "table":
        hint = "all ranks have all of a table: it is known when the program is compiled"
        mistakes.add(ShapeError(f"a table of {tensor.on} alone", location=tensor.location, hint=hint))
    for expr in (tensor.bound, *tensor.defined):
        for part in walk(expr) if expr is not None else ():
            other = program.tensor(part.table) if isinstance(part, Lookup) else tensor
            if other.on is not None and other.on != tensor.on:
                message = f"{tensor.name} depends on {other.name}, which {other.on} alone has"
                hint = f"{tensor.name} : ... on {other.on}"
                location = part.location or tensor.location
                mistakes.add(ShapeError(message, location=location, related=other.location, hint=hint))


def _check_indices(program: Program, stage: Stage, mistakes: Mistakes) -> None:
    for decl in all_indices(stage):
        _check_size(program, decl.extent, f"the extent of {decl.name}", decl, mistakes)
        _check_range(program, decl, mistakes)
    for first, decl in two_ranges(stage):
        message = f"{decl.name} runs over {print_range(first)} and over {print_range(decl)}"
        hint = "an index has one range and one tile size in a stage: give the second loop's index a name of its own"
        mistakes.add(DuplicateNameError(message, location=decl.location, related=first.location, hint=hint))


def _check_range(program: Program, decl: IndexDecl, mistakes: Mistakes) -> None:
    """Check the ends of a counted range: they come from an index tensor, and name no index of the same range."""
    ends = [end for end in (decl.start, decl.stop) if end is not None]
    for end in ends:
        _check_integer(program, end, f"an end of the range of {decl.name}", decl, mistakes)
    if ends and not any(map(at_launch, ends)):
        message = f"nothing of {decl.name}: {print_scalar(decl.extent)}[...] comes from an index tensor"
        hint = (
            "a part has ends of numbers and parameters, (i: M[: M // 2]), or of a launch: n : in [] <= M, (i: M[: n]); "
        )
        hint += "an if leaves tiles out by ranks and other indices"
        mistakes.add(ShapeError(message, location=decl.location, hint=hint))
    if decl.name in indices_in(*ends):
        hint = "its ends are made of other indices"
        mistakes.add(ShapeError(f"the range of {decl.name} depends on {decl.name}", location=decl.location, hint=hint))
    if decl.over_ranks and ends:
        hint = "loop over all ranks, with a condition on a table, or give each rank an empty range of something else"
        mistakes.add(ShapeError("a part of the ranks", location=decl.location, hint=hint))


def _check_rows(stage: Stage, mistakes: Mistakes) -> None:
    """Check that a row of a table is used only as a whole coordinate, not as an integer."""
    whole = {id(coord) for region in stage_regions(stage) for coord in region.coords}
    for expr in stage_scalars(stage):
        for part in walk(expr):
            if is_gather(part) and id(part) not in whole:
                message = f"{print_scalar(part)} is a row of {part.table}, and an integer is needed here"
                hint = f"name one entry, {part.table}[i], or take the row as it is for a coordinate"
                mistakes.add(ShapeError(message, location=part.location or stage.location, hint=hint))


# Accesses ----------------------------------------------------------------------------------------------------


def _access_errors(program: Program, statement: Statement) -> Iterator[TileLinkError]:
    match statement:
        case Transfer(mode="put" | "get") | NetworkFence() | NetworkQuiet() | Notify(by_network=True):
            hint = "write tile_push_data, tile_pull_data and notifies; with nodes=N passes choose what carries them"
            word = print_statement(statement)[0].partition("(")[0]
            message = f"{word} as it stands here is of lowered programs on several nodes"
            yield StageError(message, location=statement.location, hint=hint)
            return
        case Transfer(mode="send"):
            yield _by_words(statement.location, "tile_send_data")
            return
        case Wait(kind=kind, region=region) if away(region):
            own = print_region(region).partition(" @ ")[0]
            hint = f"{WAIT[kind]}({own}) here, and {NOTIFY[kind]} @ the waiting rank there"
            yield RemoteAccessError("a wait is on the own rank", location=region.location, hint=hint)
            return
        case Transfer():
            yield from _direction_errors(statement)
        case _:
            pass
    value = value_of(statement)
    for part in values(value) if value is not None else ():
        if isinstance(part, Read) and part.signal is not None:
            yield _by_words(part.location, RECEIVED)
    for region in regions_of(statement):
        if (error := reach_error(program, region)) is not None:
            yield error
    if (region := written(statement)) is not None:
        yield from _write_errors(program.tensor(region.tensor), region)


def _by_words(location: Location | None, word: str) -> StageError:
    hint = "write pushes, notifies, waits and reads; `low_latency` in a schedule makes words of them"
    return StageError(f"{word} as it stands here is of lowered programs", location=location, hint=hint)


def _write_errors(tensor: Tensor, region: Region) -> Iterator[TileLinkError]:
    if tensor.space in ("in", "table"):
        what = "an input" if tensor.space == "in" else "a table, filled before the launch"
        hint = f"write to an out, local or symmetric tensor instead of {tensor.name}"
        if tensor.space == "in" and tensor.bound is None and not tensor.symmetric:
            hint += f"; or declare {tensor.name} : inout [...], to change it in place"
        message = f"{tensor.name} is {what}"
        yield WriteError(message, location=region.location, related=tensor.location, hint=hint)


def _direction_errors(statement: Transfer) -> Iterator[TileLinkError]:
    source = statement.source.region if isinstance(statement.source, Read) else None
    target, word = statement.target, MOVE[statement.mode]
    if statement.mode == "pull" and away(target):
        hint = "tile_push_data(target @ r, value) writes to another rank"
        yield RemoteAccessError(f"{word} writes on the own rank", location=target.location, hint=hint)
    elif statement.mode == "push" and source is not None and away(source):
        hint = "tile_pull_data(target, source @ r) reads from another rank"
        yield RemoteAccessError(f"{word} sends what the own rank has", location=source.location, hint=hint)
    elif statement.mode == "copy" and source is not None and away(source) and away(target):
        hint = "leave the @ away on one side: one end of a copy is the own rank"
        yield RemoteAccessError(f"{word} between two other ranks", location=statement.location, hint=hint)


# Signals and outputs -----------------------------------------------------------------------------------------


def _check_signals(program: Program, mistakes: Mistakes) -> None:
    """Check that each wait has a notify that can end it. (A notify without a wait is harmless.)"""
    everything = [s for stage in program.stages for s in statements(stage.body)]
    notified = {(s.region.tensor, s.kind) for s in everything if isinstance(s, Notify)}
    for wait in everything:
        if not isinstance(wait, Wait) or (wait.region.tensor, wait.kind) in notified:
            continue
        tensor = program.tensor(wait.region.tensor)
        others = [kind for name, kind in notified if name == tensor.name]
        hint = f"{NOTIFY[wait.kind]}({tensor.name}[...]) where the data is complete, or tilelink.link(program)"
        if others:
            hint = f"it is notified by {NOTIFY[others[0]]}, which goes with {WAIT[others[0]]}"
        elif tensor.space in ("in", "table"):
            hint = "leave it out: inputs need no waits"
        message = f"{WAIT[wait.kind]} waits for {tensor.name}, which no {NOTIFY[wait.kind]} of the program names"
        mistakes.add(AccountingError(message, location=wait.location, related=tensor.location, hint=hint))


def _check_coverage(program: Program, mistakes: Mistakes) -> None:
    """Check that every output is written, and every local or symmetric tensor that is read."""
    everything = [s for stage in program.stages for s in statements(stage.body)]
    filled = {r.tensor for r in map(written, everything) if r is not None}
    for tensor in program.tensors:
        if tensor.space == "out" and tensor.name not in filled:
            hint = f"{tensor.name}[...] = value in a stage, or take the declaration out"
            message = f"nothing writes the output {tensor.name}"
            mistakes.add(CoverageError(message, location=tensor.location, hint=hint))
    for statement in everything:
        value = value_of(statement)
        for region in reads(value) if value is not None else []:
            tensor = program.tensor(region.tensor)
            if tensor.space in ("kept", "local", "symmetric") and tensor.name not in filled:
                message = f"{tensor.name} is read here, and nothing writes it"
                hint = f"write it in a stage, or declare {tensor.name} : in [...]"
                error = CoverageError(message, location=region.location, related=tensor.location, hint=hint)
                mistakes.add(error)


def _check_repeats(program: Program, stage: Stage, mistakes: Mistakes) -> None:
    """Check that a write to an output uses all indices around it; otherwise several tiles write the same elements."""
    for region, around in _writes(stage.body, stage.indices, frozenset()):
        if program.tensor(region.tensor).space != "out":
            continue
        used = indices_in(*region.coords, region.rank)
        for decl in around:  # the part that an index runs over is another one for other values of these
            if decl.name in used and decl.start is not None:
                used |= indices_in(decl.start)
        for decl in around:
            if decl.name in used or decl.extent == Int(value=1):
                continue
            message = f"every tile of {decl.name} writes the same elements of {region.tensor}"
            hint = f"use {decl.name} in {print_region(region)} or in a condition around it, or take the index out"
            hint += f"; a result of all of {decl.name} is put together in a loop and stored after it"
            error = CoverageError(message, location=region.location, related=decl.location, hint=hint)
            mistakes.add(error)


def _writes(
    body: tuple[Statement, ...], around: tuple[IndexDecl, ...], conditions: frozenset[str]
) -> Iterator[tuple[Region, tuple[IndexDecl, ...]]]:
    """Yield every written region, with the indices around it that do not occur in a condition around it."""
    for statement in body:
        region = written(statement)
        if region is not None:
            yield region, tuple(d for d in around if d.name not in conditions)
        match statement:
            case If(condition=condition, then=then, orelse=orelse):
                yield from _writes((*then, *orelse), around, conditions | indices_in(condition))
            case For(indices=indices, body=inner):
                yield from _writes(inner, (*around, *indices), conditions)
            case _:
                pass
