"""Rewrites of programs: those that a schedule asks for, and the one that puts numbers in place of parameters.

Each preserves the meaning: valid program in, valid program out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import TypeGuard

from tilelink.errors import BindingError, Location, ScheduleError, TileSizeError, did_you_mean
from tilelink.ir.mapping import tile_index
from tilelink.ir.parameters import Numbers
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import (
    Assign,
    Dot,
    FromScalar,
    IndexDecl,
    Literal,
    Program,
    Read,
    Region,
    Stage,
    Statement,
    Store,
    Tensor,
    Transfer,
    UserCall,
    Value,
    Wait,
)
from tilelink.ir.reach import reach_error
from tilelink.ir.scalar import (
    RANK,
    Binary,
    Block,
    Compare,
    Env,
    Index,
    Int,
    Lookup,
    Param,
    Rank,
    Ranks,
    Scalar,
    Whole,
    binary,
    const,
    evaluate,
    is_gather,
    mentions_rank,
    rewrite,
    walk,
)
from tilelink.ir.typing import Typing
from tilelink.ir.visitor import (
    all_indices,
    map_index,
    map_loops,
    map_regions,
    map_scalars,
    map_statements,
    map_values,
    reads,
    stage_regions,
    stage_scalars,
    statements,
    value_of,
    values,
    written,
)
from tilelink.lowering.bound import Bound, BoundStage


def split_whole(program: Program, stage: Stage, key: str, location: Location | None) -> tuple[Stage, str]:
    """Apply `tile(k=...)` of a comm stage: add an index over a dimension that the stage moves as a whole.

    before: `push(xs[rank, i, :] @ p, x[i, :])` over (p, i)
    after:  `push(xs[rank, i, k] @ p, x[i, k])` over (p, i, k)
    """
    dim = whole_dim(program, stage, key)
    if dim is None:
        raise not_tiled(program, stage, key, location)
    if any(d.name == key for d in stage.indices):
        return stage, key
    for region in stage_regions(stage):
        shape = program.tensor(region.tensor).shape
        if sum(_slice_size(c, n) == dim for c, n in zip(region.coords, shape, strict=True)) > 1:
            hint = f"take tile({key}=...) away: slices of {region.tensor} along both would be its diagonal alone"
            message = f"stage {stage.name} moves two dimensions of {region.tensor} that are called {key!r}"
            raise TileSizeError(message, location=location, related=region.location, hint=hint)
    computed = [v for s in statements(stage.body) if (v := value_of(s)) is not None]
    if any(isinstance(node, UserCall) for value in computed for node in values(value)):
        hint = f"take tile({key}=...) away: the function takes all of the dimension"
        raise TileSizeError(f"stage {stage.name} calls a function of {key!r}", location=location, hint=hint)

    def sliced(coord: Scalar | Whole, size: Scalar) -> Scalar | Whole:
        if isinstance(coord, Block):
            return Binary(op="+", left=coord.start, right=Index(name=key)) if coord.size == dim else coord
        return Index(name=key) if isinstance(coord, Whole) and size == dim else coord

    def on_region(region: Region) -> Region:
        shape = program.tensor(region.tensor).shape
        return replace(region, coords=tuple(sliced(c, n) for c, n in zip(region.coords, shape, strict=True)))

    body = map_regions(stage.body, on_region)
    return replace(stage, indices=(*stage.indices, IndexDecl(name=key, extent=dim)), body=body), key


def _slice_size(coord: Scalar | Whole, dim: Scalar) -> Scalar | None:
    """Return the size of what a coordinate without an index selects, `:` or a slice of fixed length, else None."""
    if isinstance(coord, Block):
        return coord.size
    return dim if isinstance(coord, Whole) else None


CONTRACTED = "k"
"""The name, in `tile`, of what the products of a stage contract, if nothing else is called so."""


def not_tiled(program: Program, stage: Stage, key: str, location: Location | None) -> TileSizeError:
    """Return the error of a tile size for what a stage does not have."""
    indices = list(dict.fromkeys(d.name for d in all_indices(stage)))
    whole = list(dict.fromkeys(size.name.lower() for size in _whole_dims(program, stage)))
    there = f"its indices are {', '.join(indices)}" if indices else "it has no index"
    there += f", and {', '.join(whole)} {'is' if len(whole) == 1 else 'are'} whole in it" if whole else ""
    unnamed = CONTRACTED not in [*indices, *whole] and contracts_whole(program, stage)
    there += f"; {CONTRACTED} is what its product contracts" if unnamed else ""
    hint = did_you_mean(key, [*indices, *whole], there)
    return TileSizeError(f"stage {stage.name} has nothing named {key!r} to tile", location=location, hint=hint)


def _whole_dims(program: Program, stage: Stage) -> Iterator[Param]:
    """Yield the dimensions that a stage addresses with `:` or as a slice."""
    for region in stage_regions(stage):
        for coord, dim in zip(region.coords, program.tensor(region.tensor).shape, strict=True):
            if isinstance(size := _slice_size(coord, dim), Param):
                yield size


def whole_dim(program: Program, stage: Stage, key: str) -> Scalar | None:
    """Return the dimension called `key` (ignoring case) that the stage addresses with `:` or as a slice, or None."""
    return next((size for size in _whole_dims(program, stage) if size.name.lower() == key.lower()), None)


def contracts_whole(program: Program, stage: Stage) -> bool:
    """True if a stage multiplies along what it addresses with `:` or as a slice, whatever that is called."""
    computed = [v for s in statements(stage.body) if (v := value_of(s)) is not None]
    operands = [o for v in computed for node in values(v) if isinstance(node, Dot) for o in (node.left, node.right)]
    regions = [region for operand in operands for region in reads(operand)]
    dims = ((c, n) for r in regions for c, n in zip(r.coords, program.tensor(r.tensor).shape, strict=True))
    return any(_slice_size(coord, dim) is not None for coord, dim in dims)


def remote_reads(stage: Stage) -> list[Region]:
    """Return the regions that a stage reads on a named rank."""
    computed = [value_of(s) for s in statements(stage.body)]
    return [r for value in computed if value is not None for r in reads(value) if r.rank is not None]


def stage_writes(stage: Stage) -> list[Region]:
    """Return the regions that a stage writes."""
    return [region for one in statements(stage.body) if (region := written(one)) is not None]


def flip_direction(program: Program, stage: Stage, direction: str, location: Location | None) -> Stage:
    """Turn a pushing comm stage into a pulling one, or the reverse, by exchanging the roles of the two ranks.

    before: every rank, for each p: push(xs[rank, i] @ p, x[i]);       notify(xs[rank, i] @ p)
    after:  every rank, for each p: pull(xs[p, i], x[i] @ p);          notify(xs[p, i])
    """
    transfers = [s for s in statements(stage.body) if isinstance(s, Transfer)]
    if all(t.mode == direction for t in transfers):
        return stage
    peers = {d.name for d in stage.indices if isinstance(d.extent, Ranks)}
    peer = _common_peer(transfers, direction)
    if peer is None or peer not in peers:
        hint = "every transfer must be between the own rank and one index over the ranks"
        raise ScheduleError(f"stage {stage.name} cannot {direction}", location=location, hint=hint)
    if (reason := _bound_to_rank(stage)) is not None:
        hint = f"let the program itself {direction}, or take `{direction}` away"
        message = f"stage {stage.name} cannot change to {direction}: {reason[0]}"
        raise ScheduleError(message, location=location, related=reason[1], hint=hint)
    if any(isinstance(s, Wait) for s in statements(stage.body)):
        hint = "a wait is on the own rank's signals, so the side that waits must move the data"
        raise ScheduleError(f"stage {stage.name} waits and cannot change to {direction}", location=location, hint=hint)
    # Every region names its rank while the ranks are exchanged: a local region is at the peer afterwards.
    body = map_regions(stage.body, lambda r: r if r.rank is not None else replace(r, rank=RANK))
    body = map_regions(map_scalars(body, _swap(peer)), _local_form)
    body = map_statements(body, lambda s: replace(s, mode=direction) if isinstance(s, Transfer) else s)
    _check_flipped(program, stage, body, direction, location)
    return replace(stage, body=body)


def _common_peer(transfers: list[Transfer], direction: str) -> str | None:
    peers: set[str | None] = set()
    for transfer in transfers:
        source = transfer.source.region if isinstance(transfer.source, Read) else None
        end = transfer.target if direction == "pull" else source
        peers.add(end.rank.name if end is not None and isinstance(end.rank, Index) else None)
    return peers.pop() if len(peers) == 1 else None


def _swap(peer: str) -> Callable[[Scalar], Scalar | None]:
    def change(expr: Scalar) -> Scalar | None:
        if isinstance(expr, Rank):
            return Index(name=peer)
        if isinstance(expr, Index) and expr.name == peer:
            return RANK
        return None

    return change


def _local_form(region: Region) -> Region:
    return replace(region, rank=None) if region.rank == RANK else region


def _bound_to_rank(stage: Stage) -> tuple[str, Location | None] | None:
    """Return what in a stage only this rank can do, and its location; None if it only moves data and notifies."""
    for statement in statements(stage.body):
        if isinstance(statement, Assign | Store):
            return "it also computes", statement.location
    tables = (e for expr in stage_scalars(stage) for e in walk(expr) if isinstance(e, Lookup))
    for lookup in tables:
        return f"a rank looks up its own {lookup.table} alone", lookup.location
    return None


def _check_flipped(
    program: Program, stage: Stage, body: tuple[Statement, ...], direction: str, location: Location | None
) -> None:
    for statement in statements(body):
        if isinstance(statement, Transfer):
            source = statement.source.region if isinstance(statement.source, Read) else None
            if source is None:
                hint = f"only regions can be fetched; take `{direction}` away"
                raise ScheduleError(f"stage {stage.name} cannot pull a computed value", location=location, hint=hint)
    for region in stage_regions(replace(stage, body=body)):
        tensor = program.tensor(region.tensor)
        if not tensor.symmetric:  # a region that is local now was at the peer before
            hint = f"declare {tensor.name} symmetric so that peers can reach it"
            message = f"stage {stage.name} cannot {direction} {tensor.name}"
            raise ScheduleError(message, location=location, related=tensor.location, hint=hint)


def concretize(program: Program, typing: Typing, numbers: Numbers, ranks: int) -> Program:
    """Substitute numbers for parameters and make arithmetic modulo ranks explicit. `@ rank` is the local tensor.

    typing: of the program. The typing of the result is the same, whatever arithmetic is folded: tensor shapes and index
    extents stay symbolic, scalar indices are declared as such, and a shifted tile stays one if it is moved by 0.
    """
    scalars = typing.scalar_indices
    stages = tuple(_concrete_stage(program, s, scalars(s.name), numbers, ranks) for s in program.stages)
    return replace(program, stages=stages)


def _concrete_stage(program: Program, stage: Stage, scalars: frozenset[str], numbers: Numbers, ranks: int) -> Stage:
    over_ranks = frozenset(d.name for d in all_indices(stage) if d.over_ranks)

    def change(expr: Scalar) -> Scalar | None:
        if isinstance(expr, Ranks):
            return const(ranks)
        if isinstance(expr, Param):
            return const(int(numbers[expr.name]))
        if isinstance(expr, Binary) and (tile := tile_index(expr, scalars)) is not None:
            return Binary(op="+", left=rewrite(tile[0], change), right=Index(name=tile[1]), location=expr.location)
        if isinstance(expr, Compare) and expr.op in ("==", "!="):
            left, right = rewrite(expr.left, change), rewrite(expr.right, change)
            if mentions_rank(expr.left, over_ranks) or mentions_rank(expr.right, over_ranks):
                left, right = modulo(left, ranks, over_ranks), modulo(right, ranks, over_ranks)
            return replace(expr, left=left, right=right)
        if isinstance(expr, Lookup):
            inner = (rewrite(c, change) if isinstance(c, Scalar) else c for c in expr.coords)
            return replace(expr, coords=among_ranks(expr.table, inner))
        return None

    def among_ranks(tensor: str, coords: Iterable[Scalar | Whole]) -> tuple[Scalar | Whole, ...]:
        """Return coordinates of a tensor or a table, those of a dimension of size `ranks` modulo ranks."""
        pairs = zip(coords, program.tensor(tensor).shape, strict=True)
        return tuple(modulo(c, ranks, over_ranks) if isinstance(n, Ranks) and _is_number(c) else c for c, n in pairs)

    def on_region(region: Region) -> Region:
        coords = among_ranks(region.tensor, region.coords)
        rank = modulo(region.rank, ranks, over_ranks) if region.rank is not None else None
        concrete = replace(region, coords=coords, rank=None if rank == RANK else rank)
        if (error := reach_error(program, concrete)) is not None:
            raise error
        return concrete

    def on_value(value: Value) -> Value | None:
        if isinstance(value, FromScalar) and isinstance(value.scalar, Param):
            return Literal(value=numbers[value.scalar.name])
        return None

    def on_folded(value: Value) -> Value | None:
        # What sizes fold to a number prints as one, and is read back as one.
        if isinstance(value, FromScalar) and isinstance(value.scalar, Int):
            return Literal(value=value.scalar.value, location=value.location)
        return None

    body = map_values(stage.body, on_value)
    ends = {d.name: (map_index(d, change).start, map_index(d, change).stop) for d in all_indices(stage)}
    kept = {
        d.name: replace(d, number=d.number or d.name in scalars, start=ends[d.name][0], stop=ends[d.name][1])
        for d in all_indices(stage)
    }
    body = map_loops(map_regions(map_scalars(body, change), on_region), lambda d: kept[d.name])
    body = map_values(body, on_folded)
    return replace(stage, indices=tuple(kept[d.name] for d in stage.indices), body=body)


def _is_number(coord: Scalar | Whole) -> TypeGuard[Scalar]:
    """True if a coordinate is a scalar: neither a slice nor a row of a table."""
    return isinstance(coord, Scalar) and not isinstance(coord, Block) and not is_gather(coord)


def modulo(expr: Scalar, ranks: int, over_ranks: frozenset[str]) -> Scalar:
    """Return expr modulo ranks, or expr itself if it is certainly in range."""
    if isinstance(expr, Rank) or (isinstance(expr, Index) and expr.name in over_ranks):
        return expr
    return binary("%", expr, const(ranks))


def shape_of(tensor: Tensor, numbers: Numbers, ranks: int) -> tuple[int, ...]:
    """Return a tensor's shape in elements. Raises BindingError if a dimension is negative."""
    shape = tuple(number_of(n, numbers, ranks) for n in tensor.shape)
    for size, dim in zip(shape, tensor.shape, strict=True):
        if size < 0:
            message = f"{tensor.name} has {size} elements along {print_scalar(dim)}"
            raise BindingError(message, location=tensor.location, hint="give it other sizes: 0 or more")
    return shape


def number_of(expr: Scalar, numbers: Numbers, ranks: int) -> int:
    """Return the value of an expression of parameters and ranks."""
    try:
        return int(evaluate(expr, Env(rank=0, ranks=ranks, params=numbers, indices={})))
    except ZeroDivisionError:
        hint = "the divisor must not be 0 with these numbers"
        raise BindingError("a size divides by zero", location=expr.location, hint=hint) from None


def new_name(bound: Bound, stage: BoundStage, wanted: str, names: set[str]) -> str:
    """Return a name for something new of a stage, which is like `wanted` and added to `names`: those that are new."""
    taken = {*bound.tensors, *bound.stages, *stage.extents, *(p.name for p in bound.program.params), *names}
    taken |= {s.name for s in statements(stage.stage.body) if isinstance(s, Assign)}
    names.add(name := free_name(wanted, taken))
    return name


def free_name(wanted: str, taken: Collection[str]) -> str:
    """Return the name, or a similar one that is not taken."""
    while wanted in taken:
        wanted += "_"
    return wanted
