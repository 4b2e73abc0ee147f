"""Normal forms have the same values, equal polynomials have one form, and what is said to be at most something is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.test_simplify import BOUNDS, COLUMN, ROW, TILE, conditions, every_value, integers, steps_fit
from tilelink.frontend.parser import parse_text
from tilelink.ir.intervals import Bounds
from tilelink.ir.normal import at_most, normal
from tilelink.ir.scalar import Binary, Int, Lookup, Scalar, const

ENTRIES = Bounds(ranks=1, tables={"n": (0, 9), "m": (0, 5)})


def expression(text: str) -> Scalar:
    """Return the expression of entries that a text stands for."""
    program = parse_text(f"""
program p(M):
    n : in  [] <= 9
    m : in  [] <= 5
    y : out [M[: {text}]]
    compute f(i: M[: {text}]):
        y[i] = 1.0
""").programs[0]
    end = program.tensor("y").defined[0]
    assert end is not None
    return end


@settings(max_examples=400, deadline=None)
@given(st.one_of(integers, conditions))
def test_a_normal_form_has_the_same_values_and_is_its_own_normal_form(expr: Scalar) -> None:
    if not steps_fit(expr):  # which no program has
        return
    form = normal(expr, BOUNDS)
    assert every_value(form) == every_value(expr)
    assert normal(form, BOUNDS) == form


@settings(max_examples=400, deadline=None)
@given(integers, integers)
def test_what_is_said_to_be_at_most_something_is(left: Scalar, right: Scalar) -> None:
    if steps_fit(left) and steps_fit(right) and at_most(left, right, BOUNDS):
        assert all(a <= b for a, b in zip(every_value(left), every_value(right), strict=True))


SAME = [
    ("2 * n", "n * 2"),
    ("n + n", "n * 2"),
    ("(n + 1) - 1", "n"),
    ("n * m + n", "n * (1 + m)"),
    ("n * m", "m * n"),
    ("min(n, m)", "min(m, n)"),
    ("min(n, 9)", "n"),
    ("max(n, 0)", "n"),
    ("min(min(n, 4), 3) + 1", "min(4, n + 1)"),
    ("n * 2 // 2", "n"),
    ("(n + 4) // 2", "n // 2 + 2"),
    ("n - n // 3 * 3", "n % 3"),
    ("n % 10", "n"),
    ("n // 10", "0"),
    ("(n + m) % 4", "(m + n) % 4"),
    ("n // m", "(n + 0) // m"),
]
APART = [("n", "m"), ("n * 2", "n * 2 + 1"), ("n // 2", "(n + 1) // 2"), ("min(n, 4)", "min(n, 3)"), ("n % 3", "n % 4")]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_equal_expressions_have_one_form(left: str, right: str) -> None:
    assert normal(expression(left), ENTRIES) == normal(expression(right), ENTRIES)


@pytest.mark.parametrize(("left", "right"), APART)
def test_others_have_not(left: str, right: str) -> None:
    assert normal(expression(left), ENTRIES) != normal(expression(right), ENTRIES)


BELOW = [
    ("n", "n + 1"),
    ("n // 2", "n"),
    ("n // 2 * 2", "n"),
    ("n", "n // 2 * 2 + 1"),
    ("(n + m) // 3", "n + m"),
    ("min(n, m)", "n"),
    ("n", "max(m, n)"),
    ("max(n, m)", "n + m"),
    ("min(n, 3)", "min(n + 1, 3)"),
    ("0", "n * m"),
    ("max(min(n - 4, 3), 0)", "min(max(n - 4, 0), 3)"),
    ("min(max(n - 4, 0), 3)", "max(min(n - 4, 3), 0)"),
    ("min(max(n, m), max(n, 3))", "max(n, min(m, 3))"),
    ("min(max(n - 4, 0), m)", "min(max(n, 0), m)"),
]
NOT_BELOW = [("n + 1", "n"), ("n", "n // 2"), ("n", "n // 2 * 2"), ("max(n, m)", "n"), ("n", "min(n, m)"), ("n", "m"),
             ("min(max(n, 3), m)", "min(n, m)"), ("max(n, min(m, 3))", "min(max(n, 3), m)")]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), BELOW)
def test_comparisons_that_hold_are_proved(left: str, right: str) -> None:
    assert at_most(expression(left), expression(right), ENTRIES)


@pytest.mark.parametrize(("left", "right"), NOT_BELOW)
def test_comparisons_that_do_not_hold_are_not(left: str, right: str) -> None:
    assert not at_most(expression(left), expression(right), ENTRIES)


def test_a_product_of_long_sums_stays_as_it_is() -> None:
    total: Scalar = Lookup(table="n", coords=(), launch=True)
    for _ in range(12):
        total = Binary(
            op="*", left=total, right=Binary(op="+", left=Binary(op="+", left=ROW, right=TILE), right=COLUMN)
        )
    form = normal(Binary(op="-", left=total, right=total), ENTRIES)
    assert form == Int(value=0) == const(0)
