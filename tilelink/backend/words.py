"""What users write, as text in generated source: comments that stay comments, and numbers that mean themselves.

Everything that reaches generated source comes through here, or is a name of the language (ir/words.py).
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
"""The first line of a generated file: Python looks no further, so no comment after it can name another encoding."""
SMALLEST, LARGEST = 2.0**-126, (2 - 2**-23) * 2.0**127
"""Between them, and as zero, Triton takes a float for an f32; all others it takes for an f64."""


def comment(text: str) -> str:
    """One line of comment. What is not printed, as line ends of any kind and halves of surrogates, is escaped."""
    return f"# {''.join(c if c.isprintable() else _escaped(c) for c in text)}".rstrip()


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def statement_comment(statement: Statement) -> str:
    """The comment above what a statement becomes: its file and line, and its text."""
    place = statement.location
    where = f"{PurePath(place.file).name}:{place.line}: " if place else ""
    return comment(where + print_statement(statement)[0])


def integer(value: object) -> str:
    """An integer as an operand, in Triton's dialect of Python and in Python. Raises EmitError for anything else."""
    if not isinstance(value, Integral):
        raise EmitError(f"{value!r} is no integer", hint="programs hold Python's int, as parsed ones do")
    whole = int(value)
    return str(whole) if whole >= 0 else f"({whole})"


def literal(value: object) -> str:
    """A truth value, an i32 or an f32 as an operand in a kernel, for any target and interpreted.

    A float means the f32 nearest to it. Zeros lose their signs where Triton makes a constant of them, and numbers below
    the normal ones become f64: those are given by their bits. Raises EmitError for what is no number.
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
