"""Checks of the grid and the groups of ranks that a program declares, with the numbers of a launch."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tilelink.errors import BindingError
from tilelink.ir.program import Program
from tilelink.ir.scalar import Scalar


def check_groups(program: Program, ranks: int, value: Callable[[Scalar], int]) -> None:
    """Raise BindingError if the ranks do not form the grid of a program, or if a group of them is not there.

    value: of an expression of parameters and ranks.
    """
    if program.grid:
        _check_grid(program, ranks, value)
    for group in program.groups:
        start, stop = value(group.start), value(group.stop)
        if not 0 <= start < stop <= ranks:
            what = f"{group.name} = ranks[{start} : {stop}]"
            message = f"{what} has no ranks" if start >= stop else f"{what} is no part of {ranks} ranks"
            hint = "a group has one rank at least, and all of them are there: 0 <= start < stop <= ranks"
            raise BindingError(message, location=group.location, hint=hint)


def _check_grid(program: Program, ranks: int, value: Callable[[Scalar], int]) -> None:
    sizes = [(dim, 1 if dim.size is None else value(dim.size)) for dim in program.grid]
    for dim, size in sizes:
        if size < 1:
            hint = "a dimension of the grid has one rank at least"
            raise BindingError(f"{dim.name} = {size}", location=dim.location, hint=hint)
    known = prod(size for _, size in sizes)
    first, last = program.grid[0], program.grid[-1]
    if ranks % known or (first.size is not None and ranks != known):
        shown = " x ".join(dim.name if dim.size is None else str(size) for dim, size in sizes)
        hint = f"take a number of ranks that {known} divides" if first.size is None else f"take {known} ranks"
        hint += ", or another size"
        raise BindingError(f"{ranks} ranks do not form a grid {shown}", location=last.location, hint=hint)
