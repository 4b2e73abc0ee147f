# pyright: basic
"""Tensors that are read and written in place, as a GPU rank passes them: on the host, with launches that are noted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tests.runtime.fake_gpu import FakeGpu
from tilelink import compiler
from tilelink.compiler.cuda import gpu_artifact
from tilelink.errors import BindingError
from tilelink.tuning.measure import _fresh

PROGRAM = """
program p(M, N):
    v : in    [M, N]
    x : inout [M, N]
    s : inout [M]
    y : out   [M, N]
    compute f(i: M, j: N):
        y[i, j] = x[i, j]
        x[i, j] = x[i, j] + v[i, j]
"""
DIMS = {"M": 8, "N": 8}


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    gpu = FakeGpu(monkeypatch)
    plan = compiler.plan(tilelink.parse(PROGRAM).program(), ranks=2, dims=DIMS, target="sm_90")
    return gpu.built(gpu_artifact(plan), 1)


def tensors(**other: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"v": torch.zeros(8, 8), "x": torch.zeros(8, 8), "s": torch.zeros(8), **other}


def test_a_launch_returns_what_it_was_given(kernel: Any) -> None:
    given = tensors()
    found = kernel(given)
    assert list(found) == ["x", "s", "y"]
    assert found["x"] is given["x"] and found["s"] is given["s"] and list(kernel.empty_outputs()) == ["y"]
    assert kernel._arguments.keyed == ["v", "x", "s", "y"], "a graph holds each address once"


def test_none_may_share_memory_with_another(kernel: Any) -> None:
    v = torch.zeros(8, 8)
    whole = torch.zeros(9, 8)
    for wrong, out, message in (
        (tensors(v=v, x=v), None, "output 'x' shares memory with input 'v'"),
        (tensors(x=whole[:8], s=whole[4]), None, "output 's' shares memory with output 'x'"),
        (tensors(x=v), {"y": v}, "output 'y' shares memory with output 'x'"),
    ):
        with pytest.raises(BindingError, match=message):
            kernel(wrong, out=out)
    assert kernel(tensors(x=whole[:8], s=whole[8]))["s"] is not None, "next to each other"
    with pytest.raises(BindingError, match="there is no tensor 'x'"):
        kernel(tensors(), out={"x": torch.zeros(8, 8)})


def test_what_is_measured_changes_copies(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given, passed = tensors(), []
    monkeypatch.setattr(kernel._driver, "preset", lambda tensors, _: passed.append(tensors))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: type("Stream", (), {"cuda_stream": 1}))
    kernel.preset(given)
    candidates = _fresh(kernel.artifact, given)
    for own in (*passed, candidates):
        assert own["v"] is given["v"] and own["x"] is not given["x"] and own["s"] is not given["s"]
        assert own["x"].data_ptr() != given["x"].data_ptr()
