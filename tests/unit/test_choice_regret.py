# pyright: basic
"""The regret of the choice: sizes by seed, and the arithmetic of the figures."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import choice_regret as regret
from benchmarks import many_sizes


def row(name: str, us: float | None) -> dict[str, Any]:
    return {"name": name, "us": us, "steps": 4}


def test_sizes_are_drawn_by_seed_within_their_bounds() -> None:
    sizes = regret.drawn(3, 200)
    assert sizes == regret.drawn(3, 200) != regret.drawn(4, 200) and sizes[:5] == regret.drawn(3, 5)
    for at, (least, most, multiple) in enumerate((regret.ROWS, regret.COLUMNS, regret.INNER)):
        every = sorted(one[at] for one in sizes)
        assert least <= every[0] and every[-1] <= most and all(size % multiple == 0 for size in every)
        middle = every[100]
        assert 0.6 < middle / (least * most) ** 0.5 < 1.7, "as many below the geometric mean as above"


def test_the_regret_is_against_the_fastest_of_all_that_was_right() -> None:
    rows = [row("choice", 44.0), row("a:one", 42.0), row("unfused", 40.0), row("torch one-shot", 52.0), row("b", None)]
    found = regret.figures(rows, "a:one")
    assert found["regret"] == pytest.approx(0.1) and found["best"] == "unfused"
    assert found["noise"] == pytest.approx(44 / 42 - 1) and found["step_us"]["choice"] == 11.0
    best = regret.figures([row("choice", 30.0), *rows[1:]], "c")
    assert (best["regret"], best["best"], best["noise"]) == (0.0, "choice", None)
    wrong = regret.figures([row("choice", None), *rows[1:]], "a:one")
    assert wrong["regret"] is None
    told = regret.summary([found, best, wrong])
    assert (told["cases"], told["mean"], told["worst"]) == (2, pytest.approx(0.05), pytest.approx(0.1))
    assert told["over_unfused"] == pytest.approx(1.1)
    assert regret.summary([])["mean"] is None


def test_the_table_has_a_line_for_each_case_and_way_to_launch() -> None:
    rows = [row("choice", 44.0), row("a:one", 42.0), row("unfused", 40.0)]
    graph, eager = regret.figures(rows, "a:one"), regret.figures(rows[:2], "a:one")
    machine = dict.fromkeys(("gpu", "driver", "torch", "triton"), "1")
    found = {
        "machine": machine, "ranks": 2, "seed": 3, "cases": [{"name": "8 x 64 x 64", "graph": graph, "eager": eager}],
        "summary": {"graph": regret.summary([graph]), "eager": regret.summary([eager])},
    }  # fmt: skip
    said = regret.report(found, "choice")
    assert "| 8 x 64 x 64 | graph | a:one | 11.0 | unfused | 10.0 | 10.0 | 10 % |" in said
    assert "| 8 x 64 x 64 | eager | a:one | 11.0 | a:one | 10.5 | - | 5 % |" in said
    assert any("graph: mean 10.0 %, worst 10.0 % of 1 cases" in line and "1.10 of the time" in line for line in said)


def test_every_schedule_that_is_chosen_is_among_those_that_are_compared() -> None:
    names = regret.schedules()
    for sizes in regret.drawn(5, 300):
        assert regret.taken(*sizes, 2, "NVIDIA H100 80GB HBM3") in names


def test_few_kernels_serve_many_sizes() -> None:
    """35 batch sizes of two weights on two ranks: as many kernels as docs/decode.md says."""
    found = many_sizes.wanted(2, "NVIDIA H200")
    served = [rows for kernel, rows in found.items() if kernel[0] == "gemm_ar_batch"]
    assert len(found) == 31 and sorted(map(len, served)) == [4, 4, 6, 10]
    for kernel, rows in found.items():
        sizes = dict(kernel[2:])
        assert max(rows) <= sizes.get("M", 2 * sizes.get("Ms", 0))
