"""Which types of elements go together: of 8-bit floats, of integers of several sizes, and of products of them."""

from __future__ import annotations

import pytest

import tilelink
from tilelink import compiler
from tilelink.errors import TileLinkError
from tilelink.ir.printer import print_program
from tilelink.ir.typing import infer
from tilelink.language import (
    Dim,
    Index,
    consumer_tile_wait,
    dot,
    f8e4m3,
    i64,
    producer_tile_notify,
    rank,
    tile_push_data,
)

TEXT = """
program typed(M, N, K):
    x : in [M, K]
    h : in [M, K] bf16
    a : in [M, K] f8e4m3
    b : in [N, K] f8e4m3
    e : in [N, K] f8e5m2
    c : in [M, K] i8
    d : in [N, K] i8
    u : in [M, K] u8
    n : in [M, K] i32
    l : in [M, K] i64
    v : in [N, K]
    y : out [M, {}] {}
    compute f({}):
        {}
"""
ALONG = "y[i, :] = "


def built(dtype: str, value: str, columns: str = "K") -> str:
    """The type of a value that a stage stores."""
    lines = f"value = {value}\n        " + (ALONG if columns == "K" else "y[i, j] = ") + "value"
    indices = "i: M" if columns == "K" else "i: M, j: N"
    program = tilelink.parse(TEXT.format(columns, dtype, indices, lines)).program()
    compiler.check(program)
    return infer(program).stage("f").locals["value"].dtype


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ("c[i, :] + c[i, :]", "i32"),
        ("u[i, :] * c[i, :]", "i32"),
        ("l[i, :] + c[i, :]", "i64"),
        ("l[i, :] // n[i, :]", "i64"),
        ("l[i, :] << 40", "i64"),
        ("u[i, :] & 15", "i32"),
        ("where(c[i, :] > 0, l[i, :], n[i, :])", "i64"),
        ("cumsum(l[i, :], axis=1)", "i64"),
        ("cumsum(u[i, :], axis=1)", "i32"),
        ("f32(a[i, :]) * 2.0", "f32"),
        ("l[i, :] * 0.5", "f32"),
        ("i8(n[i, :])", "i8"),
        ("a[i, :]", "f8e4m3"),
    ],
)
def test_arithmetic_has_a_type(value: str, dtype: str) -> None:
    assert built(dtype if dtype != "f8e4m3" else "f32", value) == dtype


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ("dot(a[i, :], b[j, :].T)", "f32"),
        ("dot(f8e5m2(x[i, :]), e[j, :].T)", "f32"),
        ("dot(c[i, :], d[j, :].T)", "i32"),
        ("dot(i8(u[i, :] - 128), d[j, :].T)", "i32"),
        ("dot(bf16(a[i, :]), bf16(b[j, :]).T)", "f32"),
        ("dot(f32(a[i, :]), v[j, :].T)", "f32"),
    ],
)
def test_products_have_the_type_of_their_sums(value: str, dtype: str) -> None:
    assert built(dtype, value, "N") == dtype


HINTS = [
    ("a[i, :] + 1.0", "a[i, :] is f8e4m3, with which nothing is computed but products", "f32(a[i, :]) holds the same"),
    ("sum(a[i, :], axis=1)[:, None] + x[i, :]", "a[i, :] is f8e4m3", "f32(a[i, :])"),
    ("where(c[i, :] > 0, a[i, :], a[i, :])", "a[i, :] is f8e4m3", "f32(a[i, :])"),
    ("maximum(a[i, :], x[i, :])", "a[i, :] is f8e4m3", "f32(a[i, :])"),
    ("a[i, :] & 1", "& is for integers, not for f8e4m3", "i32(v)"),
]


@pytest.mark.parametrize(("value", "message", "hint"), HINTS)
def test_an_8_bit_float_is_cast_before_arithmetic(value: str, message: str, hint: str) -> None:
    with pytest.raises(TileLinkError) as raised:
        built("f32", value)
    assert message in str(raised.value)
    assert hint in str(raised.value)


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ("dot(a[i, :], e[j, :].T)", "dot of f8e4m3 and f8e5m2", "f16(a[i, :]) and f16(e[j, :].T) hold the same"),
        ("dot(h[i, :], b[j, :].T)", "dot of bf16 and f8e4m3", "bf16(b[j, :].T) holds the same"),
        ("dot(a[i, :], v[j, :].T)", "dot of f8e4m3 and the element type", "f32(a[i, :]) holds the same"),
        ("dot(c[i, :], v[j, :].T)", "dot of i8 and the element type", "two of i8 give i32; or f32(c[i, :])"),
        ("dot(u[i, :], d[j, :].T)", "dot of u8 and i8", "two of i8 give i32"),
        ("dot(n[i, :], v[j, :].T)", "dot multiplies floating-point tiles, and n[i, :] is i32", "f32(n[i, :])"),
        ("dot(a[i, :], d[j, :].T)", "dot of i8 and f8e4m3", "f32(d[j, :].T)"),
    ],
)
def test_operands_of_a_product_go_together(value: str, message: str, hint: str) -> None:
    with pytest.raises(TileLinkError) as raised:
        built("f32", value, "N")
    assert message in str(raised.value)
    assert hint in str(raised.value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("i8", "n[i, :]"),
        ("u8", "c[i, :]"),
        ("i8", "u[i, :]"),
        ("i32", "l[i, :]"),
        ("i8", "x[i, :]"),
        ("bool", "c[i, :]"),
    ],
)
def test_what_an_integer_does_not_hold_is_cast_before_it_is_stored(dtype: str, value: str) -> None:
    with pytest.raises(TileLinkError) as raised:
        built(dtype, value)
    assert f"{dtype}(value) says that it is meant" in str(raised.value)


@pytest.mark.parametrize(
    ("dtype", "value"), [("i64", "n[i, :]"), ("i32", "u[i, :]"), ("i64", "c[i, :]"), ("f32", "l[i, :]")]
)
def test_what_a_type_holds_is_stored_as_it_is(dtype: str, value: str) -> None:
    assert built(dtype, value)


@pytest.mark.parametrize(
    ("dtype", "number", "right"),
    [("u8", -1, False), ("u8", 255, True), ("i8", 128, False), ("i64", 2**40, True), ("i64", 2**53 + 1, False)],
)
def test_constants_fit_their_types(dtype: str, number: int, right: bool) -> None:
    value = f"n[i, :] * 0 + full({number}, {dtype})"
    if right:
        assert built("i64", value)
    else:
        message = f"{float(number)} is no {dtype}" if number < 2**53 else f"{number} is no constant"
        with pytest.raises(TileLinkError, match=message):
            built("i64", value)


def test_a_range_of_an_input_of_integers_has_integers() -> None:
    with pytest.raises(TileLinkError, match=r"0\.5 is no u8"):
        tilelink.parse("program p(M):\n    x : in [M] u8 from 0.5 to 3\n    y : out [M] u8\n")


@tilelink.program
def from_python(M: Dim, N: Dim, K: Dim) -> None:
    x = tilelink.input(M, K)
    w = tilelink.input(N, K, dtype="f8e4m3")
    n = tilelink.input(M, dtype="i64")
    q = tilelink.symmetric(M, K, dtype="f8e4m3")
    y = tilelink.output(M, N)
    k = tilelink.output(M, dtype="i64")

    @tilelink.comm
    def quantise(i: Index = M) -> None:
        tile_push_data(q[i, :] @ (rank + 1), f8e4m3(x[i, :] * 4.0))
        producer_tile_notify(q[i, :] @ (rank + 1))

    @tilelink.compute
    def gemm(i: Index = M, j: Index = N) -> None:
        consumer_tile_wait(q[i, :])
        y[i, j] = dot(q[i, :], w[j, :].T)

    @tilelink.compute
    def count(i: Index = M) -> None:
        k[i] = n[i] + i64(1)


def test_python_has_the_types_and_printing_keeps_them() -> None:
    text = print_program(from_python)
    assert "w : in [N, K] f8e4m3" in text
    assert "q : symmetric [M, K] f8e4m3" in text
    assert "k : out [M] i64" in text
    assert tilelink.parse(text).program() == from_python
