"""User text in generated source: comments that stay comments, and literals with their exact value.

All text in generated source passes through this module, or is a name of the language (ir/words.py).
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from pathlib import PurePath

import numpy as np

from tilelink.errors import EmitError
from tilelink.ir.printer import print_statement
from tilelink.ir.program import Statement

ENCODING = "# -*- coding: utf-8 -*-"
"""First line of a generated file. Python looks no further, so no later comment can declare another encoding."""
SMALLEST, LARGEST = 2.0**-126, (2 - 2**-23) * 2.0**127
"""Bounds of the normal f32 numbers. Triton types a Python float as f32 if it is between them or zero, else as f64."""


def comment(text: str) -> str:
    """Return a one-line comment.

    Characters that are not printable, such as newlines of any kind and lone surrogates, are escaped.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _escaped(c) for c in text)
    return f"# {text}".rstrip()


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def statement_comment(statement: Statement) -> str:
    """Return the comment above the lines of a statement: its file, line and text."""
    location = statement.location
    where = f"{PurePath(location.file).name}:{location.line}: " if location else ""
    return comment(where + print_statement(statement)[0])


def integer(value: object) -> str:
    """Return an integer as an operand, in Triton's dialect of Python and in Python.

    Raises EmitError for anything else.
    """
    if not isinstance(value, Integral):
        raise EmitError(f"{value!r} is no integer", hint="programs hold Python's int, as parsed ones do")
    whole = int(value)
    return str(whole) if whole >= 0 else f"({whole})"


def literal(value: object) -> str:
    """Return a bool, an i32 or an f32 as an operand in a kernel, for any target and for the interpreter.

    A float is rounded to the nearest f32. Triton makes zeros lose their sign in constants, and makes numbers below the
    normal ones f64. So these are written by their bits. Raises EmitError for anything that is not a number.
    """
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, Integral):
        return integer(value)
    if not isinstance(value, Real):
        raise EmitError(f"{value!r} is no number", hint="programs hold Python's numbers, as parsed ones do")
    number = float(value)
    if (number == 0.0 and math.copysign(1.0, number) > 0) or SMALLEST <= abs(number) <= LARGEST:
        return repr(number) if number >= 0 else f"({number!r})"
    with np.errstate(over="ignore", under="ignore"):
        nearest = np.float32(number)
    if np.isfinite(nearest):
        return f"tiles.from_bits({int(nearest.view(np.int32))})"
    return f'float("{float(nearest)}")'
