"""Validation and conversion of the values given to the parameters of a program.

Every user of the parameters takes the converted values, so all of them see the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import numpy as np

from tilelink.errors import BindingError
from tilelink.ir.program import Param
from tilelink.ir.scalar import Binary, Int, Ranks, Scalar
from tilelink.ir.scalar import Param as ParamRef

Numbers = Mapping[str, int | float | bool]


def check_numbers(params: tuple[Param, ...], numbers: Numbers) -> dict[str, int | float | bool]:
    """Return a Python number of the declared kind for every parameter; f32 values are rounded to f32.

    Raises BindingError if a value is missing or does not fit its kind, or if a name is not a parameter.
    """
    if not isinstance(numbers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers need not be typed
        raise BindingError(f"parameters are a {type(numbers).__name__}", hint="a mapping: dims={'M': 64}")
    names = [p.name for p in params]
    for name in numbers:
        if name not in names:
            raise BindingError(f"no parameter {name!r}", hint=f"parameters: {', '.join(names)}")
    for param in params:
        if numbers.get(param.name) is None:
            hint = f"give {param.name} a value (--set {param.name}=...)"
            raise BindingError(f"parameter {param.name!r} has no value", location=param.location, hint=hint)
    return {p.name: _number(p, numbers[p.name]) for p in params}


def check_number(param: Param, number: Any) -> None:
    """Raise BindingError if a number does not fit the kind of a parameter."""
    _number(param, number)


def _number(param: Param, given: Any) -> int | float | bool:
    takes, fits, made = _KINDS[param.kind]
    value = bool(given) if isinstance(given, np.bool_) else given
    if not isinstance(value, Real) or not fits(value):
        shown = value if isinstance(value, Real) else repr(value)
        raise BindingError(f"{param.name} = {shown}", location=param.location, hint=takes)
    return made(value)


def to_f32(number: float) -> float:
    """Return the nearest f32, infinity for a number beyond the largest one."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(number))


def _whole(value: Any) -> bool:
    return math.isfinite(value) and value % 1 == 0


def rounded(number: float, dtype: str) -> float:
    """Return the nearest element of a floating-point type. Types of 8 bits saturate, others become infinite.

    For f32 it is the number itself, which is rounded where a value of it is made.
    """
    if dtype == "f32":
        return float(number)
    if dtype in _F8:
        return _rounded_f8(float(number), *_F8[dtype])
    with np.errstate(over="ignore", under="ignore"):
        if dtype == "f16":
            return float(np.float16(number))
        bits = int(np.float32(number).view(np.uint32))
        return float(np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32))


_F8 = {"f8e4m3": (3, -6, 448.0), "f8e5m2": (2, -14, 57344.0)}
"""Type of 8 bits -> bits after the point of its normal numbers, their least exponent, the largest number."""


def _rounded_f8(number: float, bits: int, least: int, largest: float) -> float:
    """Return the nearest number of such a type, of two the even one."""
    if not math.isfinite(number):
        return number if math.isnan(number) else math.copysign(largest, number)
    step = 2.0 ** (max(math.frexp(number)[1] - 1, least) - bits)
    return math.copysign(min(abs(round(number / step) * step), largest), number)


def holds_f32(number: Any) -> bool:
    """True if rounding the number to f32 does not turn a finite number into infinity."""
    try:
        return math.isinf(to_f32(number)) == math.isinf(number)
    except OverflowError:  # an int beyond all floats
        return False


_KINDS: dict[str, tuple[str, Callable[[Any], bool], Callable[[Any], int | float | bool]]] = {
    "dim": (
        "a dimension is a positive integer, below 2**31",
        lambda v: not isinstance(v, bool) and 1 <= v < 2**31 and _whole(v),
        int,
    ),
    "i32": ("an i32 is an integer of 32 bits", lambda v: -(2**31) <= v < 2**31 and _whole(v), int),
    "f32": (
        "its value is a number of at most 3.4028235e38, or an infinity, or nan",
        lambda v: not isinstance(v, bool) and holds_f32(v),
        to_f32,
    ),
    "bool": ("a bool is True or False", lambda v: v in (0, 1), bool),
}
"""Parameter kind -> (description of its values for hints, predicate that accepts a number, conversion)."""


def least(expr: Scalar, kinds: Mapping[str, str]) -> int | None:
    """Return a lower bound of an expression of parameters and ranks, or None if none is known.

    kinds: the kind of each parameter. Dimensions and the number of ranks are at least one.
    """
    match expr:
        case Int(value=value):
            return value
        case Ranks():
            return 1
        case ParamRef(name=name):
            return 1 if kinds.get(name) == "dim" else None
        case Binary(op="-", left=left, right=Int(value=value)):
            low = least(left, kinds)
            return None if low is None else low - value
        case Binary(op=op, left=left, right=right):
            return _least(op, least(left, kinds), least(right, kinds), right)
        case _:
            return None


def _least(op: str, a: int | None, b: int | None, right: Scalar) -> int | None:
    if op == "max":
        return max((n for n in (a, b) if n is not None), default=None)
    if op == "%" and b is not None and b > 0:
        return 0
    if a is None or b is None:
        return None
    if op == "//" and b > 0 and (isinstance(right, Int) or a >= 0):
        return a // b if isinstance(right, Int) else 0
    match op:
        case "+":
            return a + b
        case "*":
            return a * b if min(a, b) >= 0 else None
        case "min":
            return min(a, b)
        case _:
            return None
