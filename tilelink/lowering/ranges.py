"""Value ranges of integer expressions: kernels compute them in 32 bits, the plan in 64 bits.

Intervals are derived from those of ranks, indices and tables. So an expression may be refused although it never gets
that large.
"""

from __future__ import annotations

from tilelink.errors import BindingError, Location
from tilelink.ir.intervals import MAX_INT32, MIN_INT32, Bounds, Range, combined
from tilelink.ir.printer import print_scalar
from tilelink.ir.scalar import Binary, Coordinate, Index, Param, Ranks, Scalar, children, rewrite, walk
from tilelink.ir.visitor import stage_scalars
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor
from tilelink.lowering.transform import number_of


def check_ranges(bound: Bound) -> None:
    """Raise BindingError for an expression that may overflow 32 bits, and for a division by zero.

    In a declaration also for one that may divide by zero: of those in stages, `coverage` knows where they are executed.
    """
    for tensor in bound.tensors.values():
        _check_declared(bound, tensor)
    for stage in bound.stages.values():
        for expr in (*stage_scalars(stage.stage), *(stage.order.values() if stage.total else ())):
            _interval(expr, bound, stage, bound.bounds(stage.name))


def _check_declared(bound: Bound, tensor: BoundTensor) -> None:
    """Raise BindingError for a declared end or bound that may divide by zero."""
    indices = {str(dim): (0, max(0, size - 1)) for dim, size in enumerate(tensor.shape)}
    bounds = Bounds(ranks=bound.ranks, indices=indices, tables=bound.entries)

    def change(expr: Scalar) -> Scalar | None:
        return Index(name=str(expr.dim)) if isinstance(expr, Coordinate) else bound.number(expr)

    for expr in (tensor.decl.bound, *tensor.decl.defined):
        for part in walk(expr) if expr is not None else ():
            if isinstance(part, Binary) and part.op in ("//", "%"):
                low, high = bounds.of(rewrite(part.right, change))
                if low <= 0 <= high:
                    message = f"{print_scalar(part)} of {tensor.name} may divide by zero"
                    location = part.location or tensor.decl.location
                    raise BindingError(message, location=location, hint="max(n, 1) is at least 1")


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
