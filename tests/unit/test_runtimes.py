# pyright: basic
"""The report that compares runtimes: its table is the stored figures, and they keep what is promised."""

import json
from typing import Any

import pytest

from benchmarks import runtimes, tp
from benchmarks.runtimes import CUDA, EACH, ONE, PAGE, RESULTS, page, plan_of

FOUND: dict[str, Any] = json.loads((RESULTS / "runtimes_2xH100.json").read_text())


def test_the_page_has_the_stored_figures() -> None:
    text = PAGE.read_text()
    assert page(text, FOUND) == text
    assert page(text, {**FOUND, "samples": 7}) != text


def test_pointers_in_the_heap_of_the_network_are_as_fast() -> None:
    assert [(one["op"], one["shape"]) for one in FOUND["shapes"]] == [
        (op, shape) for op in ("ag_gemm", "gemm_rs") for shape in runtimes.SHAPES.split(",")
    ]
    for one in FOUND["shapes"]:
        us = {row["name"]: row["us"] for row in one["rows"]}
        assert us.keys() == {CUDA, ONE, EACH}
        assert us[ONE] < 1.05 * us[CUDA]


@pytest.mark.parametrize("op", runtimes.CHOICES)
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_plans_that_are_compared_are_proved(op: str, nodes: int) -> None:
    (problem,) = tp.problems(op, "mlp-1", 2)
    assert plan_of(problem, nodes, "sm_90").bound.nodes == nodes
