"""Calls of operators that choose by themselves, on drawn tensors, and how GPUs would rate them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tilelink import ops
from tilelink.errors import SearchError
from tilelink.hunt.functions import CHOICE, Functions
from tilelink.hunt.measured import Measured
from tilelink.hunt.operators import Choices
from tilelink.hunt.programs import Vary
from tilelink.hunt.targets import Target, subjects_of
from tilelink.ops import calls, experts, own
from tilelink.ops.calls import made_for
from tilelink.ops.drawn import DRAWN, Draw
from tilelink.ops.drawn import _experts as drawn_experts  # pyright: ignore[reportPrivateUsage]
from tilelink.ops.operators import UNFUSED
from tilelink.simulator.machine import load_machine
from tilelink.tuning.prepare import Point

H200 = load_machine("8xH200").processor
SMALL = {"B": 2, "H": 2, "G": 2, "S": 32, "D": 16, "T": 16, "chunks": 2, "M": 4, "I": 16, "E": 3, "k": 2}
VARY = Vary(ranks=(1,), dtypes=("f32",), launches=("eager",))


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
    yield
    ops.clear()
    dist.destroy_process_group()


def small(name: str) -> Functions:
    return Functions(function=name, vary=VARY, sizes={one: (SMALL[one],) for one in DRAWN[name].sizes})


def meta_of(draw: Draw) -> Draw:
    """Draw tensors without memory, which are no CPU tensors."""

    def drawn(sizes: Any, number: int, like: Any) -> Any:
        operands, options = draw(sizes, number, like)
        return tuple(one.to("meta") for one in operands), options

    return drawn


class Sampler:
    """Times calls by a table, in place of GPUs."""

    group, device = None, torch.device("cpu")

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def agree(self, well: bool) -> bool:
        return well


@pytest.mark.parametrize("name", DRAWN)
def test_every_way_computes_the_same(name: str, group: None) -> None:
    """Each call of a point has the same tensors: the operator's own choice, and unfused."""
    subject = small(name)
    point = [0] * len(subject.features)
    calls = subject.calls(point, {"device": "cpu", "dtype": torch.float32})
    assert list(calls)[:2] == [CHOICE, UNFUSED]
    torch.testing.assert_close(calls[CHOICE](), calls[UNFUSED](), rtol=1e-4, atol=1e-4)
    again = [f"{one}={SMALL[one]}" for one in DRAWN[name].sizes]
    assert subject.command(point) == (
        f"tilelink hunt ops.{name} --exact --ranks 1 --set {' '.join(again)} --dtype f32 --launch eager"
    )


def test_a_choice_that_is_slower_than_another_way_is_an_anomaly(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {CHOICE: 3e-5, UNFUSED: 2e-5, "moe:gpu": 1e-5}
    measured = Measured(of=small("moe"), sampler=Sampler(seconds))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    host = dict.fromkeys(seconds, 5e-6)
    monkeypatch.setattr(Measured, "_timed", lambda self, runs, captured: ({name: seconds[name] for name in runs}, host))
    found = {one.kind: one for one in measured.rated([0] * len(measured.features)).worst(1.1)}
    assert found["regret"].reference == "moe:gpu" and found["regret"].ratio == pytest.approx(3.0)
    assert found["unfused"].ratio == pytest.approx(1.5) and "residual" not in found


def test_a_way_that_is_not_for_a_call_is_left_out(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(of=small("moe"), sampler=Sampler({}))  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    timed: list[str] = []

    def noted(self: Measured, runs: dict[str, Any], captured: bool) -> Any:
        timed.extend(runs)
        return dict.fromkeys(runs, 1e-5), dict.fromkeys(runs, 1e-6)

    monkeypatch.setattr(Measured, "_timed", noted)
    refused = replace(DRAWN["moe"], ways=(UNFUSED, "moe:nothing"))
    monkeypatch.setattr("tilelink.hunt.functions.DRAWN", {"moe": refused})
    measured.rated([0] * len(measured.features))
    assert timed == [CHOICE, UNFUSED]


def test_kernels_of_several_programs_are_collected_before_one_is_compiled(
    group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second program of a layer of experts takes what the first one returns, which is not made yet."""
    monkeypatch.setattr(own.Op, "_check_devices", lambda *_: None)
    for module in (own, experts):
        monkeypatch.setattr(module, "gpu_of", lambda x: nullcontext())
    monkeypatch.setattr(calls, "current_target", lambda *_: H200)
    made = made_for(dist.group.WORLD)  # pyright: ignore[reportArgumentType]
    sizes = {**SMALL, "M": 64, "H": 64, "I": 64}
    subject = Functions(function="moe", vary=VARY, sizes={one: (sizes[one],) for one in DRAWN["moe"].sizes})
    monkeypatch.setattr("tilelink.ops.drawn._experts", meta_of(drawn_experts))
    call = subject.calls([0] * len(subject.features), {"device": "cpu", "dtype": torch.bfloat16})["moe:gpu"]
    made.wanted = wanted = dict[Any, Point]()
    try:
        assert call().shape == (64, 64)
        assert call().shape == (64, 64) and len(wanted) == 2, "what stands for a kernel is not kept"
    finally:
        made.wanted = None
    assert [one.program.name for one in wanted.values()] == ["moe_dispatch", "moe_experts"]
    assert all(str(one.schedule).startswith("schedule gpu") for one in wanted.values()) and not made.kernels


def test_names_with_ops_are_operators_and_others_files() -> None:
    target = Target(names=("ops.moe", "ops.gemm_ar"), sets=("M=4,8", "k=2"), vary=VARY)
    moe, product = subjects_of(target, lambda program, sets: {})
    assert isinstance(moe, Functions) and moe.sizes == {"M": (4, 8), "k": (2,)}
    assert isinstance(product, Choices) and product.sizes == {"M": (4, 8)}
    (one,) = subjects_of(Target(names=("ops.moe",), sets=("Q=1",), vary=VARY), lambda program, sets: {})
    with pytest.raises(SearchError, match=r"ops\.moe has no size 'Q'"):
        assert one.features
