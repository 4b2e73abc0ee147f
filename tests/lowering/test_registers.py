"""Sums of products that do not fit into registers are known before a kernel is compiled."""

import pytest

from tilelink import compiler
from tilelink.lowering.registers import most_sums, spills

HEAD = """
program p(M, N, K):
    x : in [M, K]
    w : in [N, K]
    v : in [N, K]
    y : out [M, N]

    compute mul(i: M, j: N):
"""
ONE = "y[i, j] = silu(dot(x[i, :], w[j, :].T))"
TWO = "y[i, j] = silu(dot(x[i, :], w[j, :].T)) * dot(x[i, :], v[j, :].T)"
THREE = """
        gate = full(1.0, f32)
        if rank > 0:
            gate = silu(dot(x[i, :], w[j, :].T))
        value = dot(x[i, :], v[j, :].T)
        y[i, j] = gate * value + dot(x[i, :], v[j, :].T)"""
NARROW = """
        gate = bf16(silu(dot(x[i, :], w[j, :].T)))
        y[i, j] = gate * dot(x[i, :], v[j, :].T)"""
IN_TURN = """
        y[i, j] = dot(x[i, :], w[j, :].T)
        z[i, j] = dot(x[i, :], v[j, :].T)"""
LOOP = """
        acc = zeros(f32)
        for (t: ranks):
            acc = acc + dot(x[i, :], w[j, :].T)
        y[i, j] = acc"""
CARRIED = """
        acc = zeros(f32)
        for (t: ranks):
            part = silu(dot(x[i, :], w[j, :].T))
            acc = acc * 0.5 + part
        y[i, j] = acc"""
ATTENTION = """
program p(M, N, K):
    x : in [M, K]
    w : in [N, K]
    v : in [N, K]
    y : out [M, K]

    compute mul(i: M):
        state = online_softmax(f32)
        for (j: N):
            state = attend(state, x[i, :], w[j, :], v[j, :], 0.1)
        y[i, :] = finish(state)
"""


def bound_of(body: str, parts: str, target: str = "sm_90", **dims: int):
    head = HEAD.replace("    y :", "    z : out [M, N]\n    y :") if "z[" in body else HEAD
    text = body if body.startswith("\nprogram") else f"{head}        {body.strip()}\n"
    module = compiler.parse(f"{text}\nschedule s for p:\n    mul {parts}, num_stages 2\n", "p.tl")
    sizes = {"M": 4096, "N": 4096, "K": 4096, **dims}
    return compiler.bound(module.programs[0], module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target=target)


@pytest.mark.parametrize(
    ("body", "sums"),
    [(ONE, 64), (TWO, 128), (THREE, 192), (NARROW, 96), (IN_TURN, 64), (LOOP, 64), (CARRIED, 128)],
    ids=["one", "two", "three", "narrow", "in turn", "loop", "carried"],
)
def test_sums_that_are_live_together_are_counted(body: str, sums: int) -> None:
    """In tiles of 128 x 128 elements of 256 threads, an f32 value takes 64 registers of each."""
    (found,) = most_sums(bound_of(body, "tile(i=128, j=128, k=64), num_warps 8"))
    assert found.registers == sums


@pytest.mark.parametrize(("keys", "depth", "sums"), [(64, 128, 192), (128, 128, 256), (64, 256, 320)])
def test_attention_holds_its_scores_and_its_state(keys: int, depth: int, sums: int) -> None:
    (found,) = most_sums(bound_of(ATTENTION, f"tile(i=128, j={keys}), num_warps 4", K=depth))
    assert found.registers == sums


@pytest.mark.parametrize(
    ("body", "parts", "fits"),
    [
        (ONE, "tile(i=128, j=256, k=64), num_warps 8", True),
        (ONE, "tile(i=128, j=256, k=32), num_warps 4", False),
        (TWO, "tile(i=128, j=256, k=64), num_warps 8", False),
        (TWO, "tile(i=128, j=100, k=64), num_warps 4", False),  # rounded up to 128
        (TWO, "tile(i=128, j=128, k=64), num_warps 8", True),
        (THREE, "tile(i=128, j=128, k=64), num_warps 8", True),
        (ONE, "tile(i=128, j=256, k=32), num_warps 16", True),  # 64 of the 128 registers of so many threads
        (TWO, "tile(i=128, j=256, k=32), num_warps 16", False),
        (TWO, "tile(i=128, j=128, k=64), roles(consumers=2, buffers=3)", True),
    ],
)
def test_what_fits_depends_on_tiles_and_warps(body: str, parts: str, fits: bool) -> None:
    assert (spills(bound_of(body, parts)) is None) == fits


def test_what_spills_is_said_with_its_place_and_a_remedy() -> None:
    error = spills(bound_of(TWO, "tile(i=128, j=256, k=64), num_warps 8"))
    assert error is not None and error.location is not None and error.location.line == 12
    assert "a tile of stage mul holds together take 256 registers of a thread with num_warps 8" in error.message
    assert "and 224 fit" in error.message and "smaller tiles than i=128, j=256" in str(error.hint)


def test_an_interpreter_has_no_registers() -> None:
    assert spills(bound_of(TWO, "tile(i=128, j=256, k=64), num_warps 8", target="cpu")) is None
