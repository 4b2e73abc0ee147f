# pyright: basic
"""The benchmark of searches: a small run, and what its report makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import search_progress, search_report

ROOT = Path(__file__).parents[2]


def run(strategy: str, seed: int, *progress: tuple[int, float]) -> dict[str, Any]:
    steps = [[trial, trial / 10, us] for trial, us in progress]
    return {"op": "p", "strategy": strategy, "seed": seed, "points": 9, "refused": 2, "cpu_s": 3.0, "progress": steps}


REPORT = {
    "shape": "small", "ranks": 2, "machine": "8xH200", "dtype": "bf16", "trials": 50,
    "shapes": [{"op": "p", "declared": {"p:one": 7.0, "p:two": 6.5}}],
    "runs": [run("random", 0, (2, 9.0), (40, 8.0)), run("random", 1, (1, 8.5)), run("other", 0, (3, 5.0))],
}  # fmt: skip


def test_the_best_so_far_is_read_off_a_curve() -> None:
    one = REPORT["runs"][0]
    assert [search_report.best_after(one, trials) for trials in (1, 2, 39, 40)] == [None, 9.0, 9.0, 8.0]
    assert [search_report.trials_until(one, us) for us in (9.0, 8.2, 7.9)] == [2, 40, None]


def test_the_table_has_medians_and_the_worst() -> None:
    lines = search_report.render(REPORT, "name").splitlines()
    assert "| p | 30 trials | 50 trials | until close | refused | CPU s |" in lines
    assert "| random | 8.8 (9.0) | 8.2 (8.5) | - | 2 | 3 |" in lines
    assert "| other | 5.0 | 5.0 | 3 | 2 | 3 |" in lines
    assert "9 points; declared: p:two, 6.5 us." in lines


def test_curves_are_drawn(tmp_path: Path) -> None:
    search_report.plot(REPORT, "p", tmp_path / "deep" / "p.svg")
    assert "<svg" in (tmp_path / "deep" / "p.svg").read_text()


def test_a_search_is_written_down() -> None:
    dims = {"Ms": 64, "N": 256, "K": 256}
    found = search_progress.search(("ag_gemm", "random", 1), trials=6, dims=dims)
    assert found["strategy"] == "random" and found["best"].startswith("schedule found for ag_gemm")
    assert 1 <= found["progress"][0][0] <= found["progress"][-1][0] <= 6 < found["points"]
    assert found["progress"][-1][2] == pytest.approx(min(us for _, _, us in found["progress"]))
    assert "ag_gemm:h200" in search_progress.declared("ag_gemm", dims)


def test_what_is_committed_is_a_whole_run() -> None:
    report = json.loads((ROOT / "benchmarks" / "results" / "search_progress.json").read_text(encoding="utf-8"))
    seeds = {op: {(r["strategy"], r["seed"]) for r in report["runs"] if r["op"] == op} for op in search_progress.DIMS}
    assert all(len(found) == 1 + 3 * search_progress.SEEDS for found in seeds.values())
    assert all(r["progress"] for r in report["runs"])
