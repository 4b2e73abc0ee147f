"""Promises of a program's index tensors, as plain data for runtimes."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.artifact import Constant, Entry, Operation, OwnCoordinate, OwnRank, Promise
from tilelink.ir.printer import print_tensor
from tilelink.ir.scalar import Binary, Coordinate, Int, Lookup, Rank, Ranks, Scalar, rewrite, walk
from tilelink.lowering.bound import Bound

Step = Constant | OwnCoordinate | OwnRank | Entry | Operation


def promises_of(bound: Bound) -> tuple[Promise, ...]:
    """Return the promises of the index tensors that are given with each launch of a bound program."""
    given = [t.decl for t in bound.tensors.values() if t.decl.space == "in"]
    entries = tuple(
        Promise(
            tensor=tensor.name,
            bound=tuple(_postfix(rewrite(tensor.bound, bound.number), bound)),
            properties=tensor.properties,
            declared=print_tensor(tensor),
        )
        for tensor in given
        if tensor.bound is not None
    )
    return entries + tuple(_parts(bound, {tensor.name for tensor in given if tensor.bound is not None}))


def _parts(bound: Bound, given: set[str]) -> Iterator[Promise]:
    """Yield the promises that dimensions have all that tensors are declared to have of them, by integers of a launch.

    given: the index tensors that a launch is given; ends that a launch computes are not known before it.
    """
    for tensor in bound.tensors.values():
        for dim, end in enumerate(tensor.decl.defined):
            if end is not None and {part.table for part in walk(end) if isinstance(part, Lookup)} <= given:
                yield Promise(
                    tensor=tensor.name,
                    bound=tuple(_postfix(rewrite(end, bound.number), bound)),
                    properties=(),
                    declared=print_tensor(tensor.decl),
                    part=tensor.shape[: dim + 1],
                )


def _postfix(expr: Scalar, bound: Bound) -> Iterator[Step]:
    match expr:
        case Int(value=value):
            yield Constant(value=value)
        case Coordinate(dim=dim):
            yield OwnCoordinate(dim=dim)
        case Rank():
            yield OwnRank()
        case Binary(op=op, left=left, right=right):
            yield from _postfix(left, bound)
            yield from _postfix(right, bound)
            yield Operation(op=op)
        case Lookup(table=table, coords=coords):
            for coord in coords:
                if isinstance(coord, Scalar):
                    yield from _postfix(coord, bound)
            shape = bound.tensors[table].decl.shape
            yield Entry(tensor=table, modulo=tuple(isinstance(n, Ranks) for n in shape))
        case _:
            raise TypeError(f"not a bound: {expr!r}")
