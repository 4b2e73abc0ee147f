# pyright: basic
"""`call module.function(...)`: Triton functions of the user's inside generated kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.backend.offline import compile_all
from tests.backend.samples import Sample, emitted
from tilelink import compiler
from tilelink.reference import oracle
from tilelink.reference.trial import random_inputs, relative_error

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def gate(x, y):
    return x * tl.sigmoid(x) + y
"""
FRAME = """
program gated(M, N, K, scale: f32):
    x : in [M, K]
    w : in [N, K]
    b : in [M, N]
    y : out [M, N]
    compute f(i: M, j: N):
        y[i, j] = VALUE
schedule s for gated:
    f on sm, tile(i=16, j=16, k=32)
"""
MODULE = "gates_of_a_user.functions"
VALUES = {
    "of a product": f"call {MODULE}.gate(dot(x[i, :], w[j, :].T), b[i, j])",
    "with a number": f"call {MODULE}.gate(b[i, j] * scale, 1.0) + dot(x[i, :], w[j, :].T)",
    "in a product": f"dot(call {MODULE}.gate(x[i, :], 0.5), w[j, :].T)",
    "in a sum": f"dot(x[i, :], w[j, :].T) + sum(call {MODULE}.gate(x[i, :], 0.5), axis=1)[:, None]",
}


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / MODULE.partition(".")[0]
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "functions.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    oracle(f"{MODULE}.gate", lambda x, y: x * torch.sigmoid(x) + y)


def sample(name: str) -> Sample:
    return Sample(text=FRAME.replace("VALUE", VALUES[name]), numbers={"M": 20, "N": 24, "K": 72, "scale": 0.5})


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", VALUES)
def test_they_compute_what_they_say(name: str, dtype: str) -> None:
    module, numbers = sample(name).module(), sample(name).numbers
    program = module.programs[0]
    kernel = compiler.compile(program, module.schedules[0], ranks=2, dims=numbers, dtype=dtype)
    (inputs,) = random_inputs(program, ranks=2, dims=numbers, dtype=dtype, launches=1, seed=1)
    outputs, expected = kernel(inputs), kernel.reference(inputs)
    error = relative_error([own["y"] for own in outputs], [own["y"] for own in expected])
    assert error < (1e-5 if dtype == "f32" else 3e-3)


@pytest.mark.parametrize("name", VALUES)
def test_they_compile(name: str) -> None:
    bound = sample(name).bound(ranks=2, target="sm_90", dtype="f16")
    assert "ex2.approx" in compile_all(bound, emitted(bound))[0].asm["ptx"]
