"""A reduction over tiles would depend on the schedule: it is refused, unless one tile is all there is."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tilelink.errors import TileLinkError, TileSizeError
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


LEFT_OUT = """
program p(M = 32, K = 200):
    x    : in  [M, K]
    b    : in  [K] = 2
    y    : out [M]
    compute f(i: M):
        {body}
schedule one for p:
    f tile(k=256)
"""
LOOP = "acc = zeros(f32)\n        for (k: K):\n            {}\n        y[i] = acc"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("y[i] = sum(x[i, :], axis=1) + sum(b[:], axis=0)", "needs 1 axes"),
        ("y[i] = sum(x[i, :], axis=1) + sum(b[:][None, :], axis=1)", "needs 2 axes"),
        (LOOP.format("acc += sum(x[i, k], axis=1) + b[k]"), "combines them in acc in a way that depends on it"),
    ],
)
def test_a_sum_over_an_input_that_is_left_out_is_refused(body: str, said: str) -> None:
    """It is a number without axes there: its sum would be another one than that of the input."""
    program = tilelink.parse(LEFT_OUT.format(body=body)).program()
    with pytest.raises(TileLinkError, match=said):
        tilelink.plan(program, ranks=1, dims={"M": 32, "K": 200})


@pytest.mark.parametrize(
    "body",
    [
        "y[i] = sum(b[:][None, :] + x[i, :], axis=1)",
        LOOP.format("acc += sum(x[i, k] + b[k][None, :], axis=1)"),
    ],
)
def test_a_sum_of_what_is_added_to_it_is_that_of_the_input(body: str) -> None:
    module = tilelink.parse(LEFT_OUT.format(body=body))
    x = torch.randn(32, 200)
    for schedule in (None, module.schedules[0]):
        kernel = tilelink.compile(module.program(), schedule, ranks=1, dims={"M": 32, "K": 200})
        (outputs,) = kernel.run([[{"x": x}]]).outputs
        torch.testing.assert_close(outputs[0]["y"], (x + 2).sum(1), rtol=1e-4, atol=1e-3)


CARRIED = """
program p(M = 8, K = 256):
    x : in  [M, K]
    y : out [M]
    compute f(i: M):
        t = {start}
        for (k: K):
            {step}
        y[i] = t
schedule parts for p:
    f tile(k=16)
schedule one for p:
    f tile(k=256)
"""
SUMS, LARGEST = ("zeros(f32)", "sum(x[i, k], axis=1)"), ("full(-1e9, f32)", "max(x[i, k], axis=1)")


@pytest.mark.parametrize(
    ("start", "step"),
    [
        (SUMS[0], f"t = f32(f8e4m3(t)) + {SUMS[1]}"),
        (SUMS[0], f"t = f32(f16(t)) + {SUMS[1]}"),
        (SUMS[0], f"t = f32(bf16(t + {SUMS[1]}))"),
        (SUMS[0], f"t += f32(f8e5m2({SUMS[1]}))"),
        (SUMS[0], f"s = f32(bf16(t))\n            t = s + {SUMS[1]}"),
        (SUMS[0], f"if rank == 0:\n                t = f32(f16(t))\n            t += {SUMS[1]}"),
    ],
)
def test_a_sum_that_each_iteration_rounds_is_refused(start: str, step: str) -> None:
    module = tilelink.parse(CARRIED.format(start=start, step=step))
    with pytest.raises(TileSizeError, match="combines them in t in a way that depends on it"):
        tilelink.plan(module.program(), module.schedules[0], ranks=1, dims={"M": 8, "K": 256})
    tilelink.plan(module.program(), module.schedules[1], ranks=1, dims={"M": 8, "K": 256})


@pytest.mark.parametrize(
    ("start", "step"),
    [
        (SUMS[0], f"t += f32(bf16({SUMS[1]}))"),  # what is rounded once is a sum of values of that type
        (SUMS[0], f"t += f32(f32({SUMS[1]}))"),
        (LARGEST[0], f"t = maximum(f32(f8e4m3(t)), f32(f8e4m3({LARGEST[1]})))"),
        (LARGEST[0], f"t = f32(bf16(maximum(t, {LARGEST[1]})))"),
    ],
)
def test_a_value_that_is_rounded_once_or_in_order_is_not(start: str, step: str) -> None:
    module = tilelink.parse(CARRIED.format(start=start, step=step))
    for schedule in module.schedules:
        tilelink.plan(module.program(), schedule, ranks=1, dims={"M": 8, "K": 256})
