"""A reduction over tiles would depend on the schedule: it is refused, unless one tile is all there is."""

from __future__ import annotations

import pytest

import tilelink
from tilelink.errors import TileSizeError
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.target import CPU

PROGRAM = """\
program reduced(M, N):
    x : in  [M, N]
    y : out [M, N]

    compute make(i: M, j: N):
        a = x[i, j]
        {}

schedule one for reduced:
    make on sm, tile({})
"""


def reduced(body: str, tiles: str) -> Bound:
    module = tilelink.parse(PROGRAM.format(body, tiles))
    return bind(module.programs[0], module.schedules[0], {"M": 40, "N": 24}, 1, CPU)


@pytest.mark.parametrize(
    ("value", "tiles", "index", "whole"),
    [
        ("sum(a, axis=0)[None, :]", "i=16, j=32", "i", 64),
        ("max(a, axis=1)[:, None]", "i=64, j=16", "j", 32),
        ("max(a, axis=-1)[:, None]", "i=64, j=16", "j", 32),
        ("sum(x[i, j] * 2.0, axis=0)[None, :]", "i=32, j=32", "i", 64),
    ],
)
def test_a_part_of_what_is_reduced_is_refused(value: str, tiles: str, index: str, whole: int) -> None:
    with pytest.raises(TileSizeError, match=f"over tiles of {index}, of 16|over tiles of {index}, of 32") as refused:
        reduced(f"y[i, j] = a - {value}", tiles)
    assert refused.value.location is not None and refused.value.location.line == 7
    assert f"tile({index}={whole}) holds all of it" in str(refused.value.hint)


@pytest.mark.parametrize(
    "body",
    [
        "y[i, j] = a - sum(a, axis=0)[None, :]",  # one tile of i
        "y[i, j] = a - sum(x[:, j], axis=0)[None, :]",  # a whole dimension
        "t = zeros(f32)\n        for (h: N):\n            t += sum(x[i, h], axis=1)[:, None]\n        y[i, j] = a - t",
    ],
)
def test_all_of_what_is_reduced_is_not(body: str) -> None:
    assert reduced(body, "i=64, j=16").stages["make"].total == 2
