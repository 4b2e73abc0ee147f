# pyright: basic
"""A rendered expression has the value of the expression, in Python and in Triton's dialect, whose integers are C's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.test_simplify import BOUNDS, COLUMN, COUNTS, ROW, TABLES, conditions, integers, steps_fit
from tilelink.backend.scalars import ScalarPrinter
from tilelink.backend.tiles import MAX_BRACKETS, nests
from tilelink.errors import EmitError
from tilelink.ir.reach import on_all_ranks
from tilelink.ir.scalar import (
    RANK,
    Binary,
    Choose,
    Compare,
    Env,
    Logic,
    Lookup,
    Param,
    Scalar,
    Whole,
    binary,
    const,
    evaluate,
)


class Number(int):
    """An integer of C: a quotient is rounded to zero, and a remainder has the sign of what is divided."""

    def __floordiv__(self, other):
        quotient = abs(int(self)) // abs(int(other))
        return Number(quotient if (self < 0) == (other < 0) else -quotient)

    def __mod__(self, other):
        return Number(int(self) - int(self // other) * int(other))

    def __rfloordiv__(self, other):
        return Number(other) // self

    def __rmod__(self, other):
        return Number(other) % self


def _of_int(name):
    return lambda a, b: Number(getattr(int, name)(int(a), int(b)))


for _name in ("add", "sub", "mul", "xor"):
    for _full in (f"__{_name}__", f"__r{_name}__"):
        setattr(Number, _full, _of_int(_full))


def in_python(text: str, rank: int, **indices: int) -> object:
    queue = SimpleNamespace(entry=lambda name, offset: int(TABLES[name][rank].ravel()[offset]))
    return eval(text, {"queue": queue, "rank": rank, **indices})


def in_triton(text: str, rank: int, **indices: int) -> object:
    class Pointer:
        def __init__(self, entries):
            self.entries = entries

        def __add__(self, offset):
            return Number(self.entries[int(offset)])

    tl = SimpleNamespace(
        minimum=lambda a, b: Number(min(a, b)),
        maximum=lambda a, b: Number(max(a, b)),
        where=lambda condition, a, b: Number(a if condition else b),
        load=lambda entry: entry,
    )
    tiles = SimpleNamespace(
        mod=lambda a, b: Number(int(a) % int(b)),
        floordiv=lambda a, b: Number(int(a) // int(b)),
    )
    tables = {name: Pointer(entries[rank].ravel()) for name, entries in TABLES.items()}
    numbers = {name: Number(value) for name, value in indices.items()}
    return eval(text, {"tl": tl, "tiles": tiles, "rank": Number(rank), **tables, **numbers})


negated = st.one_of(
    conditions,
    st.builds(lambda e: Logic(op="not", args=(e,)), conditions),
    st.builds(lambda a, b: Compare(op="<", left=a, right=b), conditions, integers),
    st.builds(lambda a, b: Compare(op="!=", left=Logic(op="not", args=(a,)), right=b), conditions, integers),
)
places = st.fixed_dictionaries({name: st.integers(0, count - 1) for name, count in COUNTS.items()})


@settings(max_examples=60)
@given(st.one_of(integers, negated), st.integers(0, BOUNDS.ranks - 1), places)
def test_what_is_rendered_has_the_value_of_the_expression(expr: Scalar, rank: int, indices: dict[str, int]) -> None:
    if not steps_fit(expr):  # which no program has
        return
    wanted = evaluate(expr, Env(rank=rank, ranks=BOUNDS.ranks, params={}, indices=indices, tables=TABLES))
    for triton, run in ((False, in_python), (True, in_triton)):
        printer = ScalarPrinter(triton=triton, strides={"t": ("1",)}, bounds=BOUNDS)
        text = printer(expr)
        assert run(text, rank, **indices) == wanted, text
        assert run(f"3 * {printer(expr, 7)}", rank, **indices) == 3 * wanted, text


IN_TRITON = ScalarPrinter(triton=True, strides={"t": ("6", "1")}, bounds=BOUNDS)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (binary("%", ROW, const(3)), "i % 3"),
        (binary("//", binary("-", ROW, const(2)), binary("+", COLUMN, const(1))), "tiles.floordiv(i - 2, j + 1)"),
        (binary("%", ROW, binary("-", COLUMN, const(5))), "tiles.mod(i, j - 5)"),
        (binary("-", ROW, binary("+", COLUMN, RANK)), "i - j - rank"),
        (binary("-", binary("^", ROW, COLUMN), RANK), "(i ^ j) - rank"),
        (binary("^", binary("-", ROW, COLUMN), RANK), "i - j ^ rank"),
        (binary("%", binary("+", ROW, COLUMN), const(3)), "(i + j) % 3"),
        (binary("%", binary("-", ROW, const(1)), binary("+", COLUMN, const(1))), "tiles.mod(i - 1, j + 1)"),
        (binary("^", ROW, Binary(op="^", left=COLUMN, right=RANK)), "i ^ (j ^ rank)"),
        (binary("*", ROW, binary("%", COLUMN, const(3))), "i * (j % 3)"),
        (Lookup(table="t", coords=(ROW, COLUMN)), "tl.load(t + i * 6 + j)"),
        (Lookup(table="t", coords=(binary("+", ROW, COLUMN), Whole())), "tl.load(t + (i + j) * 6)"),
        (Lookup(table="t", coords=(Whole(), Whole())), "tl.load(t + 0)"),
        (Choose(selector=ROW, values=(5, -2, 7)), "tl.where(i == 0, 5, tl.where(i == 1, (-2), 7))"),
        (Compare(op="<", left=Compare(op="==", left=ROW, right=COLUMN), right=RANK), "(i == j) < rank"),
        (Logic(op="not", args=(Compare(op="==", left=ROW, right=COLUMN),)), "not i == j"),
    ],
)
def test_brackets_and_functions_stand_where_they_are_needed(expr: Scalar, text: str) -> None:
    assert IN_TRITON(expr) == text


def test_a_parameter_is_no_number_yet() -> None:
    with pytest.raises(EmitError, match="cannot render Param"):
        IN_TRITON(Param(name="M"))


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        (binary("//", RANK, const(4)), 0),
        (binary("*", RANK, RANK), None),
        (binary("*", ROW, const(1)), None),
        (Lookup(table="t", coords=(const(0),)), None),
        (Binary(op="//", left=const(4), right=RANK), None),
        (Compare(op="<", left=RANK, right=const(3)), 1),
    ],
)
def test_what_is_known_of_all_ranks_is_what_each_has(expr: Scalar, value: int | None) -> None:
    assert on_all_ranks(expr, 3) == value


@pytest.mark.parametrize("text", ["{}x{}", "({}x{})", "{}x{}" + "()" * 50])
def test_brackets_are_deep_where_they_stand_inside_one_another(text: str) -> None:
    for depth in range(MAX_BRACKETS - 2, MAX_BRACKETS + 3):
        own = depth + text.startswith("(")
        assert nests(text.format("(" * depth, ")" * depth)) == (own > MAX_BRACKETS)
    assert not nests("(x)" * 3 * MAX_BRACKETS)
