"""Programs over several ranks, compared with formulas in torch."""

from typing import Any

import pytest
import torch

from tests.reference import texts
from tilelink.reference import trial

RANKS = [1, 2, 3, 5]


@pytest.mark.parametrize("ranks", RANKS)
def test_all_gather(ranks: int) -> None:
    given, out = texts.outputs(texts.ALL_GATHER, ranks, {"M": 7, "N": 5}, torch.bfloat16)
    for own in out:
        assert own["xs"].dtype == torch.bfloat16
        assert torch.equal(own["xs"], torch.stack([g["x"] for g in given]))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("text", [texts.RING, texts.SCATTER], ids=["ring", "scatter"])
def test_gemm_reduce_scatter(text: str, ranks: int) -> None:
    """The consumer comes first in the scatter form: stages are no order of execution."""
    given, out = texts.outputs(text, ranks, {"Ms": 7, "N": 5, "K": 11})
    for rank, own in enumerate(out):
        expected = sum(g["x"][rank].double() @ g["w"].double().T for g in given)
        assert torch.allclose(own["y"].double(), torch.as_tensor(expected), atol=1e-5)


def test_partial_sums_are_rounded_to_the_dtype_of_their_tensor() -> None:
    """A chain adds 1, 2**-9 and 2**-9, ending on rank 2: 1 + 2**-9 is no bf16."""
    weights = [1.0, 2.0**-9, 2.0**-9]
    given = [{"x": torch.ones(3, 1, 1), "w": torch.tensor([[w]])} for w in weights]
    dims = {"Ms": 1, "N": 1, "K": 1}
    wide = texts.RING.replace("h : symmetric [ranks, Ms, N]", "h : symmetric [ranks, Ms, N] f32")
    wide = wide.replace("y : out       [Ms, N]", "y : out [Ms, N] f32")
    narrow = wide.replace("h : symmetric [ranks, Ms, N] f32", "h : symmetric [ranks, Ms, N] bf16")
    exact = texts.run(texts.program(wide), given, dims, dtype="bf16")
    rounded = texts.run(texts.program(narrow), given, dims, dtype="bf16")
    assert [float(o["y"]) for o in exact] == [1 + 2.0**-8] * 3
    assert float(rounded[2]["y"]) == 1 + 2.0**-9


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_attention(ranks: int, causal: bool) -> None:
    size = 6
    given, out = texts.outputs(texts.ATTENTION, ranks, {"H": 2, "S": size, "D": 4, "scale": 0.5, "causal": causal})
    k, v = (torch.cat([g[n].double() for g in given], dim=1) for n in "kv")
    for rank, own in enumerate(out):
        scores = given[rank]["q"].double() @ k.transpose(1, 2) * 0.5
        if causal:
            allowed = rank * size + torch.arange(size)[:, None] >= torch.arange(k.shape[1])
            scores = scores.masked_fill(~allowed, -torch.inf)
        assert torch.allclose(own["o"].double(), torch.softmax(scores, -1) @ v, atol=1e-6)


def test_inputs_differ_by_rank_and_are_scaled_for_products() -> None:
    text = "program p(B, K):\n    t : table [B] < K\n    x : in [K, K]\n    y : out [K, K]\n"
    text += "    b : in [K]\n    n : in [K, K] i32\n    compute f(i: K):\n        y[i, :] = x[i, :]\n"
    first, second = texts.random_inputs(texts.program(text), {"B": 50, "K": 256}, 2, torch.float16, seed=3)
    assert first["x"].dtype == torch.float16
    assert not torch.equal(first["x"], second["x"])
    assert not torch.equal(first["t"], second["t"])
    assert 0 <= int(first["t"].min()) <= int(first["t"].max()) < 256
    assert 0.9 < float((first["x"].float() @ second["x"].float().T).std()) < 1.1
    assert 0.8 < float(first["b"].float().std()) < 1.2
    assert first["n"].dtype == torch.int32


INTEGERS = "program p(M):\n    x : in [M] i32\n    y : out [M] i32\n    compute f(i: M):\n        y[i] = x[i]\n"


def test_integers_are_small_and_of_both_signs() -> None:
    (inputs,) = texts.random_inputs(texts.program(INTEGERS), {"M": 2000}, 1, torch.float32, seed=1)
    assert set(inputs["x"].tolist()) == set(range(-8, 9))


def test_the_default_seed_of_inputs_is_0() -> None:
    program, dims = texts.program(INTEGERS), {"M": 50}
    one: dict[str, Any] = {"program": program, "dims": dims, "ranks": 1, "dtype": "f32"}
    draws: tuple[Any, ...] = (texts.random_inputs, lambda **how: trial.random_inputs(launches=1, **how)[0])
    for draw in draws:
        default, same, other = (draw(**one, **seed)[0]["x"] for seed in ({}, {"seed": 0}, {"seed": 1}))
        assert torch.equal(default, same) and not torch.equal(default, other)


ATTENTION = """
program p(M = 8, K = 4, S = 12):
    q : in    [M, K]
    k : in    [S, K] bf16
    t : local [S, K]{local}
    y : out   [M, K]{result}
    compute copy(s: S, d: K):
        t[s, d] = k[s, d] * 2.0
        producer_tile_notify(t[s, d])
    compute f(i: M):
        consumer_tile_wait(t[:, :])
        state = online_softmax(f32)
        for (s: S):
            state = attend(state, q[i, :], k[s, :], {v}[s, :], 0.5)
        y[i, :] = finish(state)
"""


@pytest.mark.parametrize(
    ("local", "result", "v", "dtype", "unit"),
    [
        ("", "", "t", "f32", 0.0),
        ("", "", "k", "f32", torch.finfo(torch.bfloat16).eps),  # the weights have the type of the values
        (" f16", "", "t", "f32", torch.finfo(torch.float16).eps),
        ("", " f8e4m3", "t", "f32", torch.finfo(torch.float8_e4m3fn).eps),
        ("", " f32", "k", "bf16", 0.0),  # nothing is rounded to less than bf16, whose tolerance holds
    ],
)
def test_results_may_be_apart_by_what_is_rounded_on_the_way(
    local: str, result: str, v: str, dtype: str, unit: float
) -> None:
    program = texts.program(ATTENTION.format(local=local, result=result, v=v))
    assert trial.rounding_error(program, dtype, []) == unit


CONVERTED = """
program p(M, K):
    x : in  [M, K]
    w : in  [M, K]
    y : out [M, M]
    compute f(i: M, j: M):
        y[i, j] = {}
"""


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        ("f32(bf16(dot(x[i, :], w[j, :].T)))", torch.finfo(torch.bfloat16).eps),
        ("f32(i32(dot(x[i, :], w[j, :].T)))", 0.0),
        ("dot(x[i, :], w[j, :].T)", 0.0),
    ],
)
def test_results_may_be_apart_by_a_conversion(value: str, unit: float) -> None:
    assert trial.rounding_error(texts.program(CONVERTED.format(value)), "f32", []) == unit
