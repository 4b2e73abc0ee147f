"""Normal forms have the same values, equal polynomials have one form, and what is said to be at most something is."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilelink
from tests.ir.test_simplify import BOUNDS, COLUMN, ROW, TILE, conditions, every_value, integers, steps_fit
from tilelink.facts.questions import Facts
from tilelink.frontend.parser import parse_text
from tilelink.ir.intervals import Bounds
from tilelink.ir.normal import MAX_SIZE, normal
from tilelink.ir.scalar import Binary, Int, Lookup, Scalar, binary, const, walk

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
    if steps_fit(left) and steps_fit(right) and Facts(bounds=BOUNDS).at_most(left, right):
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


def test_numbers_beyond_64_bits_are_folded_exactly() -> None:
    large = const(2**63)
    assert binary("min", const(0), large) == const(0) and binary("max", const(0), large) == large


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
    assert Facts(bounds=ENTRIES).at_most(expression(left), expression(right))


@pytest.mark.parametrize(("left", "right"), NOT_BELOW)
def test_comparisons_that_do_not_hold_are_not(left: str, right: str) -> None:
    assert not Facts(bounds=ENTRIES).at_most(expression(left), expression(right))


def test_a_product_of_long_sums_stays_as_it_is() -> None:
    total: Scalar = Lookup(table="n", coords=(), launch=True)
    for _ in range(12):
        total = Binary(
            op="*", left=total, right=Binary(op="+", left=Binary(op="+", left=ROW, right=TILE), right=COLUMN)
        )
    form = normal(Binary(op="-", left=total, right=total), ENTRIES)
    assert form == Int(value=0) == const(0)


def product(levels: int) -> str:
    return " * ".join(f"(n[{i % 16}] + n[{(i + 1) % 16}])" for i in range(levels))


def extremes(levels: int) -> str:
    text = "n[0]"
    for i in range(levels):
        text = f"{'min' if i % 2 else 'max'}({text} + n[{(i * 5 + 1) % 16}], n[{i % 16}] * {i % 5 + 1})"
    return text


@pytest.mark.parametrize("text", [product(18), extremes(48)])
def test_a_form_that_would_be_large_stays_as_it_is(text: str) -> None:
    """The time for a level more is not a multiple. What is left as it is has equal forms all the same."""
    program = parse_text(f"""
program p(M):
    n : in  [16] < 2
    y : out [M[: {text}]]
    compute f(i: M[: {text}]):
        y[i] = 1.0
""").programs[0]
    end = program.tensor("y").defined[0]
    assert end is not None
    bounds = Bounds(ranks=1, tables={"n": (0, 1)})
    with stopped_after(30):
        form = normal(end, bounds)
        assert normal(form, bounds) == form
        assert Facts(bounds=bounds).at_most(form, Binary(op="+", left=form, right=const(1)))
        Facts(bounds=bounds).at_most(end, form)  # which may be too large to be proved
    assert sum(1 for _ in walk(form)) < 8 * MAX_SIZE


def test_entries_of_entries_are_not_written_out_without_end() -> None:
    """a = min(a, b + c) and b = max(a, b) of the stage before: written out, each stage doubles them."""
    stages = 16
    text = "program p(M = 64):\n    a0 : in [] <= M\n    b0 : in [] <= M\n    c : in [] <= M\n    x : in [M]\n"
    text += "".join(f"    {name}{i} : local [] <= M\n" for i in range(1, stages + 1) for name in "ab")
    text += f"    y : out [M[: a{stages}]]\n"
    for i in range(1, stages + 1):
        text += f"    compute s{i}():\n"
        text += "".join(f"        consumer_tile_wait({name}{i - 1})\n" for name in "ab" if i > 1)
        text += f"        a{i}[] = minimum(a{i - 1}, b{i - 1} + c)\n        b{i}[] = maximum(a{i - 1}, b{i - 1})\n"
        text += "".join(f"        producer_tile_notify({name}{i})\n" for name in "ab")
    text += f"    compute f(i: M[: a{stages}]):\n        consumer_tile_wait(a{stages})\n        y[i] = x[i]\n"
    with stopped_after(30):
        tilelink.plan(tilelink.parse(text).program(), ranks=1, dims={"M": 64})


@contextmanager
def stopped_after(seconds: int) -> Generator[None]:
    """Raise TimeoutError in what takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
