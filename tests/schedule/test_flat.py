"""What keeps a loop over tiles from being flat."""

from __future__ import annotations

import pytest

import tilelink
from tilelink import compiler
from tilelink.errors import ScheduleError
from tilelink.schedule.search import Space
from tilelink.target import target

DIMS = {"Ms": 256, "N": 512, "K": 512}
SCHEDULE = "schedule one for gemm_rs_{}:\n    gemm tile(i=128, j=256, k=64), warps 8, stages 4{}\n"


def bind(program: str, flat: str) -> None:
    module = tilelink.load("gemm_rs")
    text = f"{module.program(f'gemm_rs_{program}')}\n{SCHEDULE.format(program, flat)}"
    parsed = tilelink.parse(text)
    compiler.bound(parsed.programs[-1], parsed.schedules[-1], ranks=4, dims=DIMS, dtype="bf16", target="sm_90")


def test_what_uses_a_value_of_a_condition_cannot_be_flat() -> None:
    bind("ring", "")
    with pytest.raises(
        ScheduleError, match="gemm cannot be flat: it uses what a condition behind its product computes"
    ):
        bind("ring", ", flat")


def test_a_condition_that_keeps_its_values_can_be_flat() -> None:
    bind("slots", ", flat")


def test_the_search_does_not_propose_it() -> None:
    module = tilelink.load("gemm_rs")
    own = Space.of(
        [module.program(f"gemm_rs_{p}") for p in ("ring", "slots")], dims=DIMS, ranks=4, target=target("sm_90")
    )
    assert [any(knob.name == "gemm pipeline" for knob in knobs) for knobs in own.knobs] == [False, True]
