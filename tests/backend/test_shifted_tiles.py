# pyright: basic
"""Tiles moved by an offset end where their index ends, also where the tensor goes on."""

from __future__ import annotations

import pytest

from tests.backend.offline import compile_all
from tests.backend.samples import Sample, emitted, numbered
from tilelink import compiler
from tilelink.reference.trial import random_inputs, relative_error

FRAME = """
program shifted(M, N, K, H, L):
    x : in  [M, L]
    w : in  [N, L]
    y : out [M, N]
    z : out [M, N]
    compute product(i: M, j: N):
        acc = zeros(f32)
        for (k: K):
            acc += dot(x[i, 8 + k], w[j, 8 + k].T)
        y[i, j] = acc
    compute halves(s: 2, i: H, j: N):
        z[s * 20 + i, j] = sum(x[s * 20 + i, :], axis=1)[:, None] + zeros(f32)
schedule s for shifted:
    product on sm, tile(i=16, j=16, k=16)
    halves on RESOURCE, tile(i=16, j=16)
"""
NUMBERS = {"M": 40, "N": 16, "K": 40, "H": 20, "L": 64}


def sample(resource: str = "sm") -> Sample:
    return Sample(text=FRAME.replace("RESOURCE", resource), numbers=dict(NUMBERS))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_they_touch_nothing_behind_their_index(dtype: str) -> None:
    module = sample().module()
    kernel = compiler.compile(module.programs[0], module.schedules[0], ranks=2, dims=NUMBERS, dtype=dtype)
    (inputs,) = random_inputs(module.programs[0], ranks=2, dims=NUMBERS, dtype=dtype, launches=1, seed=1)
    outputs, expected = kernel(inputs), kernel.reference(inputs)
    for name in ("y", "z"):
        error = relative_error([own[name] for own in outputs], [own[name] for own in expected])
        assert error < (1e-5 if dtype == "f32" else 2e-2), name


def test_a_contracted_tile_that_ends_inside_its_tensor_takes_pointers() -> None:
    bound = sample().bound(ranks=2, target="sm_90", dtype="bf16")
    result = emitted(bound)
    assert "_boxes_" not in result.text
    assert compile_all(bound, result)
    whole = Sample(text=sample().text, numbers={**NUMBERS, "K": 48})
    assert "x_boxes_16x16.load([i * 16, k * 16 + 8])" in numbered(
        emitted(whole.bound(ranks=2, target="sm_90", dtype="bf16")).text
    )


COPIES = """
program copies(M, N, H):
    x : in [M, N]
    y : out [M, N]
    comm halves(s: 2, i: H):
        tile_push_data(y[s * 20 + i, :], x[s * 20 + i, :])
schedule s for copies:
    halves on copy_engine, tile(i=16), order(group(s, 2), i)
"""


def test_copy_engines_move_no_more() -> None:
    numbers: dict[str, int | float | bool] = {"M": 40, "N": 16, "H": 20}
    module = Sample(text=COPIES, numbers=numbers).module()
    kernel = compiler.compile(module.programs[0], module.schedules[0], ranks=2, dims=numbers)
    (inputs,) = random_inputs(module.programs[0], ranks=2, dims=numbers, dtype="f32", launches=1, seed=1)
    assert relative_error([own["y"] for own in kernel(inputs)], [own["x"] for own in inputs]) == 0
    plan = kernel.plan.accesses
    assert plan.hi[:, 0].max() == 40
    assert (plan.hi[:, 0] - plan.lo[:, 0]).min() == 4


SUBTRACTED = """
program window(M = 20, N = 6, K = 24):
    x : in  [K, N]
    y : out [M, N]
    s : out [M]
    compute f(i: M, j: N):
        y[i, j] = x[SHIFTED, j] * 2.0
    compute sums(i: M):
        s[i] = sum(x[SHIFTED, :], axis=1)
schedule t for window:
    f    on sm, tile(i=8, j=4)
    sums on sm, tile(i=8)
"""
DIMS = {"M": 20, "N": 6, "K": 24}


@pytest.mark.parametrize(
    ("shifted", "first"),
    [("i - (M - K)", 4), ("M - M - (M - K) + i", 4), ("i - (0 - 3)", 3), ("i - rank", 0), ("i + 2", 2)],
)
def test_what_is_subtracted_from_an_index_is_an_offset_like_what_is_added(shifted: str, first: int) -> None:
    """The tile stays a tile: of a sum along the other axis one axis is left."""
    module = compiler.parse(SUBTRACTED.replace("SHIFTED", shifted))
    kernel = compiler.compile(module.programs[0], module.schedules[0], ranks=1, dims=DIMS)
    (inputs,) = random_inputs(module.programs[0], ranks=1, dims=DIMS, dtype="f32", launches=1, seed=1)
    outputs, expected = kernel(inputs), kernel.reference(inputs)
    assert expected[0]["y"].equal(inputs[0]["x"][first : first + 20] * 2.0)
    for name in ("y", "s"):
        assert relative_error([outputs[0][name]], [expected[0][name]]) < 1e-5, name
