# pyright: basic
"""Tensors that are kept between launches, in the memory of a GPU rank: on the host, with launches that are noted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tests.kept_programs import LAST, RUNNING, SIZES
from tests.runtime.fake_gpu import FakeGpu
from tilelink import compiler
from tilelink.compiler.cuda import gpu_artifact
from tilelink.errors import BindingError
from tilelink.runtime.cuda import kept, measured_kernel

GIVEN = {"x": torch.zeros(SIZES["M"], SIZES["N"])}


def built(patch: pytest.MonkeyPatch, text: str) -> Any:
    gpu = FakeGpu(patch)
    plan = compiler.plan(tilelink.parse(text).program(), ranks=2, dims={"M": 12, "N": 8}, target="sm_90")
    return gpu.built(gpu_artifact(plan), 1)


def test_the_host_reads_copies_and_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = built(monkeypatch, RUNNING)
    monkeypatch.setattr(kept.dist, "barrier", lambda *_, **__: pytest.fail("no peer reaches these"))
    state = kernel.state()
    assert {name: (tuple(t.shape), t.dtype) for name, t in state.items()} == {
        "mean": ((12, 8), torch.float32), "n": ((), torch.int32)
    }  # fmt: skip
    assert not any(bool(tensor.any()) for tensor in state.values())
    kernel._memory.own["n"].fill_(3)
    assert int(state["n"]) == 0 and int(kernel.state()["n"]) == 3
    assert list(kernel(GIVEN)) == ["y", "z"] and list(kernel.empty_outputs()) == ["y", "z"]
    kernel.reset_state()
    assert int(kernel.state()["n"]) == 0


def test_all_ranks_meet_before_and_after_where_peers_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = built(monkeypatch, LAST)
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: events.append("end of launches"))
    monkeypatch.setattr(kept.dist, "barrier", lambda *_, **__: events.append("all ranks"))
    assert list(kernel.state()) == ["last"] and events == ["end of launches", "all ranks"] * 2
    events.clear()
    kernel.reset_state()
    assert events == ["end of launches", "all ranks"] * 2


def test_what_is_measured_is_afterwards_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = built(monkeypatch, RUNNING)
    number = kernel._memory.own["n"]
    number.fill_(3)

    def timings(runs: Any, *_: int) -> Any:
        number.fill_(20)
        return {"p": "the time"}

    monkeypatch.setattr(measured_kernel, "Sampler", lambda *_: type("", (), {"timings": staticmethod(timings)}))
    assert kernel.bench(GIVEN) == "the time" and int(number) == 3
    monkeypatch.setattr(kernel._driver, "preset", lambda *_: number.fill_(20))
    kernel.preset(GIVEN)
    assert int(number) == 3


def test_not_while_a_launch_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = built(monkeypatch, RUNNING)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for call in (kernel.state, kernel.reset_state):
        with pytest.raises(BindingError, match="while a launch is captured"):
            call()
