# pyright: basic
"""Names that are first assigned inside `if` and `for` keep their values behind them, as in Python."""

from __future__ import annotations

import pytest

from tests.backend.offline import compile_all
from tests.backend.samples import Sample, emitted
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.backend.scopes import undeclared
from tilelink.lowering.listing import listing
from tilelink.reference.trial import random_inputs, relative_error

FRAME = """
program names(M, N, K):
    x : in [ranks, M, K]
    w : in [N, K]
    y : out [ranks, M, N]
    compute f(s: ranks, i: M, j: N):
"""
IF = "if s == rank:"
STORE = "y[s, i, j] = v"
BODIES = {
    "both branches": [IF, "    v = dot(x[s, i, :], w[j, :].T)", "else:", "    v = zeros(f32)", STORE],
    "a number or a tile": [IF, "    v = 2.0", "else:", "    v = dot(x[s, i, :], w[j, :].T)", STORE],
    "one axis or two": [IF, "    v = sum(w[j, :], axis=1)", "else:", "    v = dot(x[s, i, :], w[j, :].T)", STORE],
    "whole or not": [IF, "    v = 2", "else:", "    v = 3.5", "y[s, i, j] = v * dot(x[s, i, :], w[j, :].T)"],
    "true or a number": [IF, "    v = dot(x[s, i, :], w[j, :].T) > 0.0", "else:", "    v = 3.5", STORE],
    "a later if": [
        IF, "    v = dot(x[s, i, :], w[j, :].T)", IF, "    " + STORE, "else:", "    y[s, i, j] = zeros(f32)",
    ],
    "behind a loop": ["for (p: ranks):", "    v = dot(x[p, i, :], w[j, :].T) * (s + 1)", STORE],
    "the iteration before": [
        "u = zeros(f32)", "for (p: ranks):", "    if p == 0:", "        v = dot(x[p, i, :], w[j, :].T)", "    u += v",
        "y[s, i, j] = u",
    ],
    "an if in a loop": [
        "for (p: ranks):", "    if p == s:", "        v = dot(x[p, i, :], w[j, :].T)", STORE,
    ],
}  # fmt: skip


def sample(body: str) -> Sample:
    lines = "\n".join("        " + line for line in BODIES[body])
    return Sample(text=FRAME + lines + "\n", numbers={"M": 20, "N": 24, "K": 72})


@thorough(unless=lambda dtype: dtype == "f32")
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("body", BODIES)
def test_they_keep_their_values(body: str, dtype: str) -> None:
    program, numbers = sample(body).module().programs[0], sample(body).numbers
    kernel = compiler.compile(program, None, ranks=2, dims=numbers, dtype=dtype)
    (inputs,) = random_inputs(program, ranks=2, dims=numbers, dtype=dtype, launches=1, seed=1)
    outputs, expected = kernel(inputs), kernel.reference(inputs)
    error = relative_error([own["y"] for own in outputs], [own["y"] for own in expected])
    assert error < (1e-5 if dtype == "f32" else 2e-3)


@thorough(unless=lambda body, target: target == "sm_90" or one_in(3, body))
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("body", BODIES)
def test_they_compile(body: str, target: str) -> None:
    bound = sample(body).bound(ranks=2, target=target, dtype="f16")
    (kernel,) = compile_all(bound, emitted(bound))
    assert "mma" in kernel.asm["ptx"]


STATE = """
program late_state(S, D, scale: f32):
    q : in [S, D]
    k : in [ranks, S, D]
    o : out [S, D]
    compute f(i: S):
        if rank == 0:
            state = online_softmax(f32)
        else:
            state = online_softmax(f32)
        for (s: ranks, j: S):
            if s <= rank:
                state = attend(state, q[i, :], k[s, j, :], k[s, j, :], scale, s < rank)
        o[i, :] = finish(state)
"""


def test_softmax_states_are_names_too() -> None:
    one = Sample(text=STATE.replace("s < rank", "False"), numbers={"S": 40, "D": 24, "scale": 0.25})
    program = one.module().programs[0]
    kernel = compiler.compile(program, None, ranks=2, dims=one.numbers)
    (inputs,) = random_inputs(program, ranks=2, dims=one.numbers, dtype="f32", launches=1, seed=1)
    outputs, expected = kernel(inputs), kernel.reference(inputs)
    assert relative_error([own["o"] for own in outputs], [own["o"] for own in expected]) < 1e-5
    bound = one.bound(ranks=2, target="sm_90", dtype="f16")
    assert compile_all(bound, emitted(bound))


def declared(body: str) -> dict[int, tuple[str, ...]]:
    found = undeclared(sample(body).module().programs[0].stages[0].body)
    return {number: names for number, names in found.items() if names}


def test_only_hidden_names_are_declared() -> None:
    assert declared("both branches") == {}
    assert declared("a later if") == {0: ("v",)}
    assert declared("the iteration before") == {1: ("v",)}


JOINED = """
program two(M, N):
    x : in  [M, N]
    y : out [M, N]
    z : out [M, N]

    compute one(i: M):
        part = x[i, :] + 1.0
        y[i, :] = part

    compute other(i: M):
        if rank == 0:
            part = sum(x[i, :], axis=1)
            for (q: 2 by 1):
                part = part + q
            z[i, :] = part[:, None] + x[i, :]
        else:
            z[i, :] = x[i, :]

schedule joined for two:
    other in one epilogue
"""


def test_names_of_two_stages_in_a_loop_have_shapes_of_their_own() -> None:
    one = Sample(text=JOINED, numbers={"M": 32, "N": 32})
    bound = one.bound(ranks=2, target="sm_90")
    assert [loop.stages for loop in bound.kernels[0].loops] == [("one", "other")]
    assert compile_all(bound, emitted(bound))
    assert "part_1 = sum(x[i, :], axis=1)" in listing(bound)
