"""Validation of the names, keywords and numbers in a program or schedule that is built in Python.

A parsed text contains only valid ones. A program or schedule built in Python may contain any object, and its names and
numbers become source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache

from tilelink.errors import Location
from tilelink.ir.program import (
    DTYPES,
    ELEMENTWISE,
    PROPERTIES,
    REDUCTIONS,
    SCANS,
    SIGNAL_KINDS,
    Apply,
    Full,
    Literal,
    Notify,
    Param,
    Read,
    Reduce,
    Scan,
    Stage,
    Tensor,
    Transfer,
    Wait,
)
from tilelink.ir.scalar import Binary, Compare, Logic

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
KINDS = ("dim", "i32", "f32", "bool")
"""Kinds of parameters."""
_WORDS: dict[tuple[type, str], tuple[str, ...]] = {
    (Param, "kind"): KINDS,
    (Tensor, "space"): ("in", "out", "inout", "kept", "local", "symmetric", "table"),
    (Notify, "kind"): SIGNAL_KINDS,
    (Wait, "kind"): SIGNAL_KINDS,
    (Transfer, "mode"): ("push", "pull", "copy", "put", "get", "send"),
    (Transfer, "signal"): SIGNAL_KINDS,
    (Read, "signal"): SIGNAL_KINDS,
    (Stage, "kind"): ("comm", "compute"),
    (Tensor, "properties"): PROPERTIES,
    (Apply, "op"): tuple(ELEMENTWISE),
    (Reduce, "op"): REDUCTIONS,
    (Scan, "op"): SCANS,
    (Binary, "op"): ("+", "-", "*", "//", "%", "^", "min", "max"),
    (Compare, "op"): ("==", "!=", "<", "<=", ">", ">="),
    (Logic, "op"): ("and", "or", "not"),
}

_WITH_FLOATS = (Literal, Full, Tensor, Param)
"""Nodes with fields that may be floating-point numbers."""
_NAMED = frozenset(
    {"name", "program", "stage", "tensor", "table", "index", "function", "tiles", "channel", "group", "kind", "place"}
    | {"what", "on", "target", "axes"}
)
"""Fields that hold names, or words that are looked up when the schedule is bound."""


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A part that no program text can contain, with the message and the hint of its error."""

    message: str
    hint: str
    location: Location | None


def foreign(node: object) -> Iterator[Foreign]:
    """Yield the parts of a program or schedule that the language cannot express."""
    yield from _foreign(node, None)


def _foreign(node: object, location: Location | None) -> Iterator[Foreign]:
    location = getattr(node, "location", None) or location
    for name in _compared(type(node)):
        yield from _in_field(node, name, getattr(node, name), location)


@cache
def _compared(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass that make two of its values equal."""
    return tuple(field.name for field in fields(kind) if field.compare)


def _in_field(node: object, field: str, part: object, location: Location | None) -> Iterator[Foreign]:
    if is_dataclass(part) and not isinstance(part, type):
        yield from _foreign(part, location)
    elif isinstance(part, tuple):
        for element in part:  # pyright: ignore[reportUnknownVariableType]
            yield from _in_field(node, field, element, location)
    elif isinstance(part, str):
        yield from _in_text(node, field, part, location)
    elif part is not None and type(part) not in (int, bool, float if isinstance(node, _WITH_FLOATS) else int):
        yield _no_number(node, field, part, location)


def _no_number(node: object, field: str, part: object, location: Location | None) -> Foreign:
    message = f"{type(node).__name__} with {field} = {part!r}"
    return Foreign(message=message, hint="numbers in programs are Python's: int(n), float(x)", location=location)


def _in_text(node: object, field: str, text: str, location: Location | None) -> Iterator[Foreign]:
    words = DTYPES if field == "dtype" else _WORDS.get((type(node), field))
    if words is not None:
        if text not in words:
            message = f"{type(node).__name__} with {field} = {text!r}"
            yield Foreign(message=message, hint=f"one of {', '.join(words)}", location=location)
    elif field not in _NAMED:
        yield _no_number(node, field, text, location)
    elif (DOTTED if field == "function" else NAME).fullmatch(text) is None:
        hint = "a name is a letter or _, then letters, digits and _, all of ASCII"
        yield Foreign(message=f"{text!r} is not a name", hint=hint, location=location)
