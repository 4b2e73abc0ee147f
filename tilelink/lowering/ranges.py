"""Value ranges of integer expressions: kernels compute them in 32 bits, the plan in 64 bits.

And of the coordinates of entries that declarations look up, and their divisors. (Those of stages the plan knows.)
Intervals are derived from those of ranks, indices and tables. So an expression may be refused although it never gets
that large.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.errors import BindingError, CoverageError, Location
from tilelink.ir.intervals import MAX_INT32, MIN_INT32, Bounds, Range, combined
from tilelink.ir.printer import print_scalar
from tilelink.ir.scalar import (
    Binary,
    Coordinate,
    Index,
    Lookup,
    Param,
    Rank,
    Ranks,
    Scalar,
    Whole,
    children,
    const,
    rewrite,
    walk,
)
from tilelink.ir.visitor import stage_scalars
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor
from tilelink.lowering.transform import number_of


def check_ranges(bound: Bound) -> None:
    """Raise BindingError for an expression of a stage that may overflow 32 bits, and for a division by zero."""
    for stage in bound.stages.values():
        for expr in (*stage_scalars(stage.stage), *(stage.order.values() if stage.total else ())):
            _interval(expr, bound, stage, bound.bounds(stage.name))


def _interval(expr: Scalar, bound: Bound, stage: BoundStage, bounds: Bounds, location: Location | None = None) -> Range:
    """Return the interval of an expression. Raises BindingError if it, or a part of it, may overflow 32 bits."""
    location = expr.location or location
    below = [_interval(child, bound, stage, bounds, location) for child in children(expr)]
    match expr:
        case Ranks() | Param():  # only in an extent
            number = number_of(expr, bound.numbers, bound.ranks)
            interval = (number, number)
        case Binary(op="//" | "%") if below[1] == (0, 0):
            message = f"{print_scalar(expr)} in stage {stage.name} divides by zero"
            raise BindingError(message, location=location, hint="the divisor must not be 0 with these numbers")
        case Binary(op=op):
            interval = combined(op, below[0], below[1])
        case _:
            interval = bounds.of(expr)
    if interval[0] < MIN_INT32 or interval[1] > MAX_INT32:
        message = f"{print_scalar(expr)} in stage {stage.name} may be {max(interval, key=abs)}"
        raise BindingError(message, location=location, hint="integers have 32 bits")
    return interval


def check_declarations(bound: Bound) -> None:
    """Raise CoverageError for a declaration that looks up an entry outside of its index tensor.

    Raise BindingError for one that may divide by zero. (Of stages, `coverage` knows where expressions are executed.)
    """
    for tensor in bound.tensors.values():
        decl, given = tensor.decl, "given" if tensor.decl.space == "in" else "defined"
        named = [(f"the bound of {decl.name}", decl.bound)]
        named += [(f"the end of what is {given} of {decl.name}", end) for end in decl.defined]
        for what, expr in named:
            for part in reversed([*walk(expr)]) if expr is not None else ():  # inner ones first
                match part:
                    case Lookup():
                        _check_lookup(bound, tensor, what, part)
                    case Binary(op="//" | "%", right=divisor):
                        if any(low <= 0 <= high for low, high in _of_declaration(divisor, bound, tensor)):
                            message = f"{print_scalar(part)} of {decl.name} may divide by zero"
                            location = part.location or decl.location
                            raise BindingError(message, location=location, hint="max(n, 1) is at least 1")
                    case _:
                        pass


def _check_lookup(bound: Bound, tensor: BoundTensor, what: str, lookup: Lookup) -> None:
    """Raise CoverageError for a look-up of a declaration outside of its index tensor, on a rank that has it."""
    table = bound.tensors[lookup.table]
    for dim, coord in enumerate(lookup.coords):
        if isinstance(coord, Whole) or isinstance(table.decl.shape[dim], Ranks):
            continue  # a coordinate along the ranks counts modulo their number
        for low, high in _of_declaration(coord, bound, tensor):
            size = table.shape[dim]
            if low >= 0 and high < size:
                continue
            name = print_scalar(coord)
            most = high if high >= size else low
            message = f"{what} looks up {print_scalar(lookup)}, where {name} {'is' if low == high else 'may be'} {most}"
            hint = f"{lookup.table} has {size} entries along dimension {dim}, which are counted from 0"
            location = lookup.location or tensor.decl.location
            raise CoverageError(message, location=location, related=table.decl.location, hint=hint)


def _of_declaration(expr: Scalar, bound: Bound, tensor: BoundTensor) -> Iterator[Range]:
    """Yield the interval of an integer of a declaration on each rank that has the tensor."""
    elements = {f"coordinate {dim}": (0, size - 1) for dim, size in enumerate(tensor.shape)}
    bounds = Bounds(ranks=bound.ranks, indices=elements, tables=bound.entries)
    own = any(isinstance(part, Rank) for part in walk(expr))
    for rank in range(*(tensor.members or (0, bound.ranks if own else 1))):

        def number(part: Scalar, rank: int = rank) -> Scalar | None:
            match part:
                case Rank():
                    return const(rank)
                case Coordinate(dim=dim):
                    return Index(name=f"coordinate {dim}")
                case _:
                    return bound.number(part)

        yield bounds.of(rewrite(expr, number))
