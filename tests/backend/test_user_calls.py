# pyright: basic
"""`call module.function(...)`: Triton functions of the user's inside generated kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.backend.offline import compile_all
from tests.backend.samples import Sample, emitted
from tests.tiers import thorough
from tilelink import compiler
from tilelink.errors import CallError, RankError
from tilelink.reference import oracle
from tilelink.reference.trial import random_inputs, relative_error

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def gate(x, y):
    return x * tl.sigmoid(x) + y


@triton.jit
def many(x):
    return (x * 0 + 70000).to(tl.int32)


@triton.jit
def half(x):
    return x.to(tl.float16)


@triton.jit
def small(x):
    return x * x < 4.0


@triton.jit
def seven(x):
    return x + tl.arange(0, 7)


@triton.jit
def through_another(x, y):
    return seven(x * 2) + y


@triton.jit
def raises(x, y):
    try:
        return {}[1]
    except KeyError as error:
        raise LookupError("no such gate") from error


@triton.jit
def flat(x, y):
    return tl.sum(x, axis=0)[:, None, None]
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
GATE = f"call {MODULE}.gate(dot(x[i, :], w[j, :].T), 1.0)"
VALUES = {
    "of a product": f"call {MODULE}.gate(dot(x[i, :], w[j, :].T), b[i, j])",
    "with a number": f"call {MODULE}.gate(b[i, j] * scale, 1.0) + dot(x[i, :], w[j, :].T)",
    "in a product": f"dot(call {MODULE}.gate(x[i, :], 0.5), w[j, :].T)",
    "of integers": f"call {MODULE}.many(b[i, j]) * call {MODULE}.many(b[i, j]) * 0.0000001 + {GATE}",
    "of conditions": f"(call {MODULE}.small(b[i, j]) + call {MODULE}.small(b[i, j])) * {GATE}",
    "of 16 bits": f"call {MODULE}.half(b[i, j]) * 50000.0 * 3.0 * 0.00001 + {GATE}",
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
    oracle(f"{MODULE}.many", lambda x: torch.full_like(x, 70000))
    oracle(f"{MODULE}.half", lambda x: x.half())
    oracle(f"{MODULE}.small", lambda x: x * x < 4.0)


def sample(name: str) -> Sample:
    return Sample(text=FRAME.replace("VALUE", VALUES[name]), numbers={"M": 20, "N": 24, "K": 72, "scale": 0.5})


@thorough(unless=lambda dtype: dtype == "f32")
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


# Failures ----------------------------------------------------------------------------------------------------

FAILING = {
    "through_another": ("b[i, j], b[i, j]", "ValueError: arange's range must be a power of 2", "tl.arange(0, 7)"),
    "raises": ("b[i, j], b[i, j]", "LookupError: no such gate", 'raise LookupError("no such gate") from error'),
    "gate": ("b[i, j]", "missing 1 required positional argument: 'y'", None),
    "flat": ("b[i, j], b[i, j]", "hape", None),
}
"""Function -> arguments, what is said, and what the caret points at; None where no line of the user's fails."""


def fails(statements: str, old: str = "", new: str = "") -> RankError:
    """How a program with these statements ends, with `new` instead of `old` in its generated text."""
    text = FRAME.partition("schedule")[0].replace("y[i, j] = VALUE", statements.replace("\n", f"\n{8 * ' '}"))
    program, numbers = compiler.parse(text, "calls.tl").program(), {"M": 16, "N": 16, "K": 16, "scale": 0.5}
    kernel = compiler.compile(program, ranks=1, dims=numbers, dtype="f32")
    (inputs,) = random_inputs(program, ranks=1, dims=numbers, dtype="f32", launches=1, seed=1)
    assert old in kernel.source
    changed = replace(kernel, emitted=replace(kernel.emitted, text=kernel.source.replace(old, new)))
    with pytest.raises(RankError) as caught:
        changed.run([inputs])
    return caught.value


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_names_the_call_and_the_line(name: str) -> None:
    arguments, said, marked = FAILING[name]
    statement = f"y[i, j] = call {MODULE}.{name}({arguments})"
    error = fails(statement)
    assert isinstance(error, CallError)
    assert (error.rank, error.stream, error.program) == (0, "main", 0)
    head = f"rank 0 (main program 0) failed in {MODULE}.{name}, called in `{statement}` (calls.tl:8): "
    assert error.message.startswith(head) and said in error.message
    assert len(str(error).splitlines()) <= 5 and "Traceback" not in str(error)
    assert error.details.startswith("Traceback") and error.details in str(error.__cause__)
    if marked is None:
        assert error.location is None and "takes these values" in str(error.hint)
        return
    where = error.location
    assert where is not None and Path(where.file).name == "functions.py"
    assert SOURCE.splitlines()[where.line - 1][where.column - 1 :][: where.length] == marked


ELSEWHERE = {"before": "dl.tile_begin", "in the next statement": "tl.exp"}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_what_fails_elsewhere_is_no_failure_of_a_function(where: str) -> None:
    call = f"call {MODULE}.gate(b[i, j], 1.0)"
    statements = f"t = {call}\ny[i, j] = exp(t)" if where == "in the next statement" else f"y[i, j] = {call}"
    error = fails(statements, ELSEWHERE[where], "no_such_function")
    assert type(error) is RankError and "no_such_function" in error.message
    assert error.details.rstrip() in str(error) and error.__cause__ is None
