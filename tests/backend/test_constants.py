"""Named constants of generated kernels: one meaning for each name, and none of a user's."""

from __future__ import annotations

import re

import pytest

from tests.backend.samples import Sample, emitted

TEXT = """
program p({dim}):
    {x} : in [{dim}]
    c : local [{dim}]
    y : out [{dim}]
    compute first({i}: {dim}):
        c[{i}] = {x}[{i}]
        producer_tile_notify(c[{i}])
    compute then({i}: {dim}):
        consumer_tile_wait(c[{i}])
        y[{i}] = c[{i}]
schedule s for p:
    first in then prologue, tile({i}=16)
    then on sm, tile({i}={size})
"""


def heads(size: int = 32, dim: str = "M", x: str = "x", i: str = "i") -> dict[str, int]:
    """The constants of a kernel of two stages."""
    sample = Sample(text=TEXT.format(size=size, dim=dim, x=x, i=i), numbers={dim: 100})
    text = emitted(sample.bound(ranks=1, target="cpu")).text
    return {name: int(value) for name, value in re.findall(r"(\w+): tl\.constexpr = (\d+)", text)}


def test_stages_that_agree_share_a_name() -> None:
    assert heads(16) == {"M": 100, "BLOCK_I": 16, "TILES_I": 7}


def test_names_of_stages_that_differ_begin_with_the_stage() -> None:
    expected = {"FIRST_BLOCK_I": 16, "THEN_BLOCK_I": 32, "FIRST_TILES_I": 7, "THEN_TILES_I": 4}
    assert heads(32).items() >= expected.items()


def test_a_tile_that_is_no_power_of_two_has_a_block_that_is_one() -> None:
    assert heads(24).items() >= {"TILE_I": 24, "THEN_BLOCK_I": 32}.items()


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"x": "BLOCK_I"}, "BLOCK_I_"), ({"dim": "tile"}, "tile_"), ({"dim": "c_0"}, "c_0_"), ({"dim": "acc"}, "acc")],
)
def test_a_constant_has_no_name_of_a_user_or_of_the_kernel(given: dict[str, str], expected: str) -> None:
    assert expected in heads(16, **given)
