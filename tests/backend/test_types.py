"""The types of rendered values: of 16 bits are what is loaded, stored and multiplied, all else is computed in f32."""

from __future__ import annotations

import re

import pytest

from tests.backend.samples import Sample, emitted, numbered

TEXT = """
program typed(M, K):
    x : in [M, K]
    w : in [K, K]
    y : out [M, K]
    n : out [M, K] i32
    compute f(i: M):
        {}
schedule s for typed:
    f on sm, tile(i=16)
"""


def source(dtype: str, *body: str) -> str:
    sample = Sample(text=TEXT.format("\n        ".join(body)), numbers={"M": 64, "K": 64})
    return numbered(emitted(sample.bound(ranks=1, target="sm_90", dtype=dtype)).text).split("dl.tile_begin(")[1]


@pytest.mark.parametrize(
    ("dtype", "loaded", "operand"),
    [
        ("bf16", "tiles.cast(x_tile, tl.float32)", "tiles.cast(a, tl.bfloat16)"),
        ("f16", "tiles.cast(x_tile, tl.float32)", "tiles.cast(a, tl.float16)"),
        ("f32", "x_tile", "a"),
    ],
)
def test_a_name_holds_f32_and_is_multiplied_in_the_type_of_its_value(dtype: str, loaded: str, operand: str) -> None:
    text = source(dtype, "a = x[i, :]", "y[i, :] = dot(a, w[:, :])")
    assert f" a = {loaded}\n" in text
    assert f"tiles.dot({operand}, w_tile, acc)" in text


def test_what_is_rounded_is_computed_with_in_f32() -> None:
    text = source("bf16", "y[i, :] = bf16(x[i, :] * 2.0) * 3.0")
    assert "v_1 = tiles.cast(v, tl.bfloat16)" in text
    assert "(tiles.cast(v_1, tl.float32) * 3.0)" in text


def test_names_are_multiplied_in_their_type_and_added_in_f32() -> None:
    text = source("bf16", "a = x[i, :]", "b = w[:, :]", "y[i, :] = dot(a, b) + (a + a)")
    assert "tiles.dot(tiles.cast(a, tl.bfloat16), tiles.cast(b, tl.bfloat16), acc)" in text
    assert "(acc + (a + a))" in text


def test_integers_are_not_rounded_to_what_they_are_stored_as() -> None:
    assert "float32" not in source("f32", "n[i, :] = i32(x[i, :]) + 1")


def test_what_is_rounded_is_multiplied_as_it_is() -> None:
    text = source("bf16", "y[i, :] = dot(bf16(x[i, :] * 2.0), w[:, :])")
    assert "tiles.dot(tiles.cast(v, tl.bfloat16), w_tile, acc)" in text


@pytest.mark.parametrize(
    ("value", "one", "text"),
    [
        ("full(1.5, f32)", "1.0", "tl.cast(1.5, tl.float32)"),
        ("full(1.5, bf16)", "1.0", "tl.cast(1.5, tl.float32)"),
        ("full(2, i32)", "1", "tl.cast(2, tl.int32)"),
        ("zeros(f32)", "x[i, :]", "tl.full((16, 64), 0.0, tl.float32)"),
    ],
)
def test_a_number_that_a_loop_changes_has_a_type_before_it(value: str, one: str, text: str) -> None:
    """Loops of Triton carry no numbers of Python, and no name whose type changes."""
    lines = f"a = {value}", "for (s: 3):", f"    a = a + {one}", "y[i, :] = x[i, :] * a"
    assert f" a = {text}\n" in source("bf16", *lines)


@pytest.mark.parametrize("value", ["0.5", "f32(rank)"])
def test_a_number_is_a_block_of_f32_before_it_is_rounded_and_stored(value: str) -> None:
    """A cast takes a value of the kernel, and no number of Python."""
    text = source("bf16", f"y[i, :] = {value}")
    assert re.search(r" v = tl\.full\(\(16, 64\), .*, tl\.float32\)\n", text)
    assert "tiles.cast(v, tl.bfloat16)" in text
