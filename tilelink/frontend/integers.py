"""Checks that coordinates, ranks and conditions are integers, and that constants fit their dtypes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilelink.errors import DtypeError, TileLinkError
from tilelink.ir.parameters import holds_f32
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import INTEGERS, FromScalar, Full, If, Literal, Program, Region, Statement, Value
from tilelink.ir.scalar import Compare, Logic, Param, Scalar, walk
from tilelink.ir.visitor import named, reads, value_of, values


def regions_of(statement: Statement) -> list[Region]:
    """Return the regions that a statement names, without those of nested statements."""
    value = value_of(statement)
    found = reads(value) if value is not None else []
    return [*found] if (region := named(statement)) is None else [region, *found]


def number_errors(program: Program, statement: Statement) -> Iterator[TileLinkError]:
    """Yield a DtypeError for each value that should be an integer, and each constant that does not fit its dtype."""
    kinds = {p.name: p.kind for p in program.params}
    for region in regions_of(statement):
        numbers = [c for c in (*region.coords, region.rank) if isinstance(c, Scalar)]
        for part in (part for number in numbers for part in walk(number)):
            location = part.location or region.location
            if isinstance(part, Param) and kinds.get(part.name) in ("f32", "bool"):
                hint = f"coordinates and ranks are integers: declare it as {part.name}: i32"
                yield DtypeError(f"{part.name} is {kinds[part.name]}, no integer", location=location, hint=hint)
            elif isinstance(part, Compare | Logic):
                hint = "coordinates and ranks are integers; conditions belong into if or where(c, a, b)"
                yield DtypeError(f"{print_scalar(part)} is a truth value, no integer", location=location, hint=hint)
    if isinstance(statement, If):
        hint = "where(c, a, b) chooses by numbers of f32; a condition of an if is about integers and flags"
        yield from _floats(statement.condition, kinds, hint)
    value = value_of(statement)
    for part in values(value) if value is not None else ():
        if isinstance(part, FromScalar) and not isinstance(part.scalar, Param):
            yield from _floats(part.scalar, kinds, "numbers of f32 have + - * / and functions")
        yield from _beyond(part, statement)


def _floats(scalar: Scalar, kinds: dict[str, str], hint: str) -> Iterator[TileLinkError]:
    for part in walk(scalar):
        if isinstance(part, Param) and kinds.get(part.name) == "f32":
            location = part.location or scalar.location
            yield DtypeError(f"{part.name} is f32, and an integer is needed here", location=location, hint=hint)


def _beyond(value: Value, statement: Statement) -> Iterator[TileLinkError]:
    """Yield a DtypeError if a constant does not fit its dtype."""
    if not isinstance(value, Literal | Full):
        return
    number, location = value.value, value.location or statement.location
    dtype = value.dtype if isinstance(value, Full) else "f32"
    if dtype in INTEGERS:
        if not (float(number).is_integer() and int(number) in INTEGERS[dtype]):
            hint = f"full({number}, f32) is a number, whatever it is"
            yield DtypeError(f"{number} is no {dtype}", location=location, hint=hint)
    elif isinstance(number, int):
        if number not in INTEGERS["i32"]:
            yield DtypeError(f"{number} is no integer of 32 bits", location=location, hint="with a point it is an f32")
    elif not math.isfinite(number) or not holds_f32(number):
        hint = "a parameter of kind f32 may be infinite, or nan; a number in the text is 3.4028235e38 at most"
        yield DtypeError(f"{number} is no number that an f32 holds", location=location, hint=hint)
