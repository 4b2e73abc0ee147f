"""Simplified expressions have the values of the originals, and the expected form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilelink.errors import Location
from tilelink.ir.intervals import MAX_INT32, MIN_INT32, Bounds
from tilelink.ir.printer import print_scalar
from tilelink.ir.scalar import (
    RANK,
    Binary,
    Choose,
    Compare,
    Env,
    Index,
    Int,
    Logic,
    Lookup,
    Scalar,
    add,
    binary,
    const,
    evaluate,
    mul,
    walk,
)
from tilelink.ir.simplify import simplify

RANKS = 3
COUNTS = {"i": 5, "j": 4, "k": 1, "tile": 24}
BOUNDS = Bounds(ranks=RANKS, indices={name: (0, count - 1) for name, count in COUNTS.items()}, tables={"t": (0, 6)})
TABLES = {"t": np.array([[(5 * entry + rank) % 7 for entry in range(24)] for rank in range(RANKS)])}
ROW, COLUMN, ONLY, TILE = (Index(name=name) for name in COUNTS)


def every_value(expr: Scalar) -> list[int]:
    """Return the values of an expression on all ranks, for all indices."""
    rank, *at = np.meshgrid(*map(np.arange, (RANKS, *COUNTS.values())), indexing="ij")
    env = Env(rank=rank, ranks=RANKS, params={}, indices=dict(zip(COUNTS, at, strict=True)), tables=TABLES)
    return np.broadcast_to(evaluate(expr, env), rank.shape).ravel().tolist()


def steps_fit(expr: Scalar) -> bool:
    return all(BOUNDS.of(part)[0] >= MIN_INT32 and BOUNDS.of(part)[1] <= MAX_INT32 for part in walk(expr))


numbers = st.one_of(st.integers(-9, 9), st.sampled_from([16, 24, 64, 2**15, 2**30, MAX_INT32, MIN_INT32])).map(const)
leaves = st.one_of(numbers, st.sampled_from([RANK, ROW, COLUMN, ONLY, TILE]))


def larger(inner: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
    divisors = st.one_of(st.integers(1, 12), st.sampled_from([24, 64, -3])).map(const)
    return st.one_of(
        st.builds(binary, st.sampled_from(["+", "-", "*", "min", "max", "^"]), inner, inner),
        st.builds(binary, st.sampled_from(["//", "%", "*"]), inner, divisors),
        st.builds(
            lambda op, a, b: binary(op, a, binary("max", b, const(1))), st.sampled_from(["//", "%"]), inner, inner
        ),
        st.builds(lambda e: Lookup(table="t", coords=(binary("%", e, const(24)),)), inner),
        st.builds(lambda e: Choose(selector=binary("%", e, const(3)), values=(4, -1, 7)), inner),
    )


integers = st.recursive(leaves, larger, max_leaves=12)
comparisons = st.builds(
    lambda op, a, b: Compare(op=op, left=a, right=b), st.sampled_from(["<", "=="]), integers, integers
)
conditions = st.builds(
    lambda op, *args: Logic(op=op, args=args), st.sampled_from(["and", "or"]), comparisons, comparisons
)


@settings(max_examples=300)
@given(st.one_of(integers, conditions))
def test_a_simplified_expression_has_the_values_of_the_original(expr: Scalar) -> None:
    if not steps_fit(expr):  # which no program has
        return
    simple = simplify(expr, BOUNDS)
    assert every_value(simple) == every_value(expr), f"{print_scalar(expr)} became {print_scalar(simple)}"
    assert steps_fit(simple), f"{print_scalar(expr)} became {print_scalar(simple)}"
    assert simplify(simple, BOUNDS) == simple, f"{print_scalar(simple)} is simpler still"


def of(op: str, left: Scalar, right: int) -> Scalar:
    return Binary(op=op, left=left, right=const(right))


TWICE = add(mul(ROW, const(2)), COLUMN)


@pytest.mark.parametrize(
    ("expr", "simple"),
    [
        (of("//", TILE, 24), "0"),
        (of("%", TILE, 24), "tile"),
        (ONLY, "0"),
        (of("%", of("%", TILE, 12), 4), "tile % 4"),
        (of("//", of("//", TILE, 3), 2), "tile // 6"),
        (of("//", mul(TWICE, const(6)), 3), "i * 4 + j * 2"),
        (of("//", mul(TILE, const(4)), 6), "tile * 2 // 3"),
        (of("%", mul(TILE, const(4)), 6), "tile * 2 % 3 * 2"),
        (of("//", add(mul(ROW, const(64)), mul(COLUMN, const(16))), 64), "i"),
        (of("%", add(mul(ROW, const(64)), mul(COLUMN, const(16))), 64), "j * 16"),
        (of("%", Binary(op="-", left=RANK, right=const(1)), 3), "(rank + 2) % 3"),
        (of("%", add(RANK, mul(TILE, const(-1))), 4), "(rank + 24 - tile) % 4"),
        (Binary(op="min", left=add(ROW, const(1)), right=const(5)), "i + 1"),
        (Binary(op="max", left=ROW, right=const(-1)), "i"),
        (Binary(op="-", left=add(TILE, ROW), right=TILE), "i"),
        (Binary(op="-", left=const(0), right=ROW), "0 - i"),
        (Lookup(table="t", coords=(add(const(1), add(ROW, const(1))),)), "t[i + 2]"),
        (Binary(op="%", left=ROW, right=add(COLUMN, const(5))), "i"),
        (Binary(op="//", left=ROW, right=add(COLUMN, const(5))), "0"),
        (Binary(op="//", left=ROW, right=add(COLUMN, const(4))), "i // (j + 4)"),
        (of("//", ROW, 0), "i // 0"),
    ],
)
def test_redundant_operations_are_removed(expr: Scalar, simple: str) -> None:
    assert print_scalar(simplify(expr, BOUNDS)) == simple


@pytest.mark.parametrize(
    ("tiles", "rows", "size", "simple"),
    [(448, 8, 8, "tile % 8"), (112, 8, 4, "tile // 56 * 4 + tile % 4"), (112, 8, 32, "tile % 8")],
)
def test_groups_that_divide_their_rows_need_no_height(tiles: int, rows: int, size: int, simple: str) -> None:
    """The row of a tile in groups of `size` rows, also where a group is higher than there are rows."""
    inner, columns = of("%", TILE, rows * 14), 14
    first = mul(of("//", inner, size * columns), const(size))
    height = of("min", Binary(op="-", left=const(rows), right=first), size)
    row = add(first, Binary(op="%", left=of("%", inner, size * columns), right=height))
    assert print_scalar(simplify(row, Bounds(ranks=1, indices={"tile": (0, tiles - 1)}))) == simple


def test_a_sum_keeps_its_form_if_another_one_might_overflow() -> None:
    large = Bounds(ranks=2, indices={"i": (0, 2**20)})
    expr = mul(Binary(op="-", left=ROW, right=const(2**20)), const(2**11))
    assert simplify(expr, large) == expr


def test_an_index_with_a_single_value_is_a_constant() -> None:
    assert simplify(of("%", TILE, 4), Bounds(ranks=1, indices={"tile": (0, 0)})) == const(0)


def test_locations_are_kept() -> None:
    place = Location(file="a.tl", line=3, column=4)
    compare = Compare(op="==", left=of("%", TILE, 24), right=Int(value=1), location=place)
    assert simplify(compare, BOUNDS) == Compare(op="==", left=TILE, right=Int(value=1))
    assert simplify(compare, BOUNDS).location == place
