# pyright: basic
"""The benchmark of what searching loses: chance by enumeration, cut-short runs, the choice of points, the report."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks import prepared, search_quality
from benchmarks import report as benchmark_report
from benchmarks import search_quality_figures as figures
from benchmarks.search_quality import Sweep
from tilelink import compiler
from tilelink.simulator.machine import load_machine
from tilelink.tuning import kernels_of

ROOT = Path(__file__).parents[2]
VALUES = [40.0, 10.0, 20.0, 20.0, 30.0, 15.0]


# Figures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_chance_is_as_counted_over_all_choices(count: int) -> None:
    best = sorted(min(chosen) for chosen in combinations(VALUES, count))
    assert figures.expected_best(VALUES, count) == pytest.approx(mean(best))
    for share in (0.5, 0.9, 1.0):
        enough = next(v for n, v in enumerate(best, 1) if sum(b <= v for b in best) >= share * len(best))
        assert figures.unlucky_best(VALUES, count, share) == enough


def test_chance_needs_as_many_values() -> None:
    assert [figures.expected_best(VALUES, n) for n in (0, 7)] == [figures.unlucky_best(VALUES, n) for n in (0, 7)]
    assert figures.expected_best(VALUES, 7) is None


def point(number: int, sources: str, us: float | str | None, chosen: float, **more: Any) -> dict[str, Any]:
    """us: measured; None: failed; "": not measured."""
    seconds = us if isinstance(us, float) else 0.0
    known = {} if us == "" else {"measured_us": us, "build_s": 0.5, "samples_us": [seconds, seconds * 1.1]}
    return {
        "id": number, "op": "p", "shape": "s@1", "program": "p", "schedule": f"schedule one for p:\n    k{number}\n",
        "sources": sources.split(), "chosen_us": chosen, **known, **more,
    }  # fmt: skip


POINTS = [
    point(0, "search", 110.0, 90.0), point(1, "search random", 104.0, 95.0), point(2, "next", 102.0, 99.0),
    point(3, "random", 200.0, 180.0), point(4, "random", None, 190.0), point(5, "near", 100.0, 98.0),
    point(6, "declared", 105.0, 97.0, declared=["p:h200"]), point(7, "near", "", 99.0),
]  # fmt: skip
ABOUT = {"op": "p", "shape": "s@1", "space": 999, "trials": 9, "refused": 1, "search_s": 8.0, "drawn": {}}
CHOSEN = {"machine": "m", "groups": [ABOUT], "points": POINTS, "too_slow": [point(0, "random", "", 900.0)]}
MEASURED = {"benchmark": "agreement", "points": POINTS, "spent_s": 14.0, "ended_early": "the budget is spent"}


def group_of(points: list[dict[str, Any]]) -> dict[str, Any]:
    return figures.evaluated({**MEASURED, "points": points}, CHOSEN | {"points": points})["figures"]["groups"][0]


def test_figures_of_the_search_and_of_chance() -> None:
    group = group_of(POINTS)
    assert [group[name] for name in ("asked", "measured", "failed", "missing", "too_slow")] == [8, 6, 1, 1, 1]
    assert group["best"]["us"] == 100.0 and group["best"]["sources"] == ["near"]
    search, chance = group["search"], group["random"]
    assert search["regret"] == pytest.approx(0.04) and search["first_regret"] == pytest.approx(0.1)
    assert search["apart_regret"] == pytest.approx(0.02)  # of the search's first and of another prediction
    assert search["either_regret"] == pytest.approx(0.04)  # of 0 and 1; the declared one is the third by the model
    assert search["curve"] == [110.0, 104.0, 102.0]
    # 104 and 200 were measured; one failed and one was left out: both as slow as the slowest
    assert (chance["draws"], chance["worthless"], chance["count"]) == (4, 2, 2)
    assert chance["regret"] == pytest.approx((3 * 1.04 + 3 * 2.0) / 6 - 1) and chance["unlucky_regret"] == 1.0
    assert chance["until_close"] is None
    assert group["declared"] == [{"name": "p:h200", "us": 105.0, "chosen_us": 97.0}]
    assert group["build_s"] == {"own": 1.0, "all": 3.5} and group["same_time"] == 2 + 4  # 2 s a point, 8 s of search


def test_a_declared_schedule_may_be_the_better_choice() -> None:
    points = [*POINTS[:6], point(6, "declared", 101.0, 92.0, declared=["p:h200"])]
    assert group_of(points)["search"]["either_regret"] == pytest.approx(0.01)


def test_random_search_is_close_with_enough_points() -> None:
    points = [*POINTS[:5], point(5, "random", 100.0, 98.0)]
    # 100, 104 and thrice 200: three choices expect 0.6 x 100 + 0.3 x 104 + 0.1 x 200, four 0.8 x 100 + 0.2 x 104
    assert group_of(points)["random"]["until_close"] == 4


def test_a_cut_short_run_says_what_is_missing() -> None:
    points = [POINTS[0], point(1, "search random", "", 95.0), point(2, "random", 300.0, 99.0)]
    group = group_of(points)
    assert group["missing"] == 1 and group["search"]["measured"] == 1 and group["search"]["curve"] == [110.0]
    assert group["random"]["draws"] == 1  # half of the random points are there, and so none of the one left out
    assert "110 (1 of 2)" in "\n".join(figures.table_of(figures.evaluated({**MEASURED, "points": points},
                                                                          CHOSEN | {"points": points})))  # fmt: skip
    nothing = group_of([point(0, "search", "", 90.0)])
    assert nothing["best"] is None and (nothing["missing"], nothing["same_time"]) == (1, None)


def test_points_of_another_file_are_refused() -> None:
    with pytest.raises(ValueError, match="others than the chosen"):
        figures.evaluated({**MEASURED, "points": POINTS[1:]}, CHOSEN)


def test_the_report_has_tables_schedules_and_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    docs.mkdir()
    monkeypatch.setattr(benchmark_report, "RESULTS", results)
    monkeypatch.setattr(benchmark_report, "DOCS", docs)
    (tmp_path / "points.json").write_text(json.dumps(CHOSEN))
    (results / "quality.json").write_text(json.dumps(MEASURED))
    asked = ["--report", str(results / "quality.json"), "--points", str(tmp_path / "points.json")]
    assert [search_quality.main(asked) for _ in range(2)] == [0, 0]
    assert benchmark_report.main() == 0
    text = (docs / "results.md").read_text()
    line = (
        "| p | s@1 | 6 of 8 | 1 | 1 | 100 | 4.8 % | 104 | 4.0 % | 10.0 % | 2.0 % | 4.0 % | 4 (2) | 52.0 % | 100.0 % |"
    )
    assert f"{line} > 4 |" in text
    assert "* declared p:h200: 105 us, 5.0 % slower; predicted 97.0" in text and "    k5" in text
    assert "The run ended early: the budget is spent" in text and "(plots/quality_p_s_1.svg)" in text
    assert "<svg" in (docs / "plots" / "quality_p_s_1.svg").read_text()
    assert search_quality.main([*asked[:3], str(tmp_path / "no.json")]) == 1


# Points ------------------------------------------------------------------------------------------------------


def test_schedules_with_equal_kernels_are_one_point() -> None:
    own, program = Sweep("ag_gemm", "mlp-1@512", load_machine("8xH200")), compiler.load("ag_gemm").program()
    text = compiler.load("ag_gemm").schedule("h200", program)
    first = own.find("ag_gemm", text)
    larger = own.find("ag_gemm", text.tile("gather", i=1 << 16))  # rows there are not
    largest = own.find("ag_gemm", text.tile("gather", i=1 << 17))
    assert first is not None and larger is largest and len(own.points) <= 2
    assert own.find("ag_gemm", text.knobs("gemm", num_warps=16)) not in (None, first)
    assert own.find("ag_gemm", text.knobs("gemm", num_stages=9)) is None  # more than a processor holds


@pytest.mark.thorough
def test_points_come_from_all_sources_and_the_searchs_are_first(tmp_path: Path) -> None:
    file, groups = tmp_path / "points.json", (("ag_gemm", "mlp-1@512"), ("reduce_scatter", "mlp-1@512"))
    assert search_quality.choose(file, "8xH200", 12, (2, 4, 2, 3), groups, workers=1) == 0
    found = json.loads(file.read_text())
    points, slow = found["points"], found["too_slow"]
    assert [p["id"] for p in points] == list(range(len(points)))
    assert [(p["op"], "search" in p["sources"]) for p in points[:4]] == [
        *[("ag_gemm", True)] * 2, *[("reduce_scatter", True)] * 2
    ]  # fmt: skip
    assert not any("search" in p["sources"] for p in points[4:])
    for about, (op, _) in zip(found["groups"], groups, strict=True):
        own, left = ([p for p in some if p["op"] == op] for some in (points, slow))
        count = {s: sum(s in p["sources"] for p in (*own, *left)) for s in ("search", "random", "declared", "next")}
        assert (count["search"], count["random"]) == (2, about["drawn"]["taken"])
        assert count["random"] == 4 and count["declared"] >= 1 and count["next"] == 2
        times = [p["chosen_us"] for p in own if "next" in p["sources"]]
        assert times[0] != times[1] and not any(p["chosen_us"] in times for p in own if "search" in p["sources"])
        best = min(p["chosen_us"] for p in own if "search" in p["sources"])
        assert all(p["chosen_us"] > search_quality.SLOWEST * best and p["sources"] == ["random"] for p in left)
        hashes = [kernels_of(prepared.plan_of(p)) for p in (*own, *left)]
        assert len(set(hashes)) == len(hashes)


@pytest.mark.thorough
def test_choices_made_again_are_looked_up_by_their_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group, trials = ("ag_gemm", "mlp-1@512"), 12
    chosen = Sweep(*group, load_machine("8xH200")).chosen(trials, 3)
    renamed = [p | {"schedule": p["schedule"].replace("schedule one", "schedule other")} for p in chosen]
    times = (120.0, 100.0)  # the third is not among the measured
    measured = [p | {"measured_us": us} for p, us in zip(renamed, times, strict=False)]
    file = tmp_path / "measured.json"
    file.write_text(json.dumps({"points": measured}))
    assert search_quality.again(file, "8xH200", trials, [group]) == 0
    assert capsys.readouterr().out.strip().endswith("over the best: 1: 20.0 %, 2: 0.0 %")


def test_the_committed_points_are_sweeps_of_the_library() -> None:
    file = ROOT / "benchmarks" / "results" / "search_quality_points.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    assert file.stat().st_size < 1 << 20 and len(found["groups"]) == len(search_quality.GROUPS)
    first = search_quality.SEARCH * len(found["groups"])
    assert all(("search" in p["sources"]) == (n < first) for n, p in enumerate(found["points"]))
    for op, shape in search_quality.GROUPS:
        own, left = (
            [p for p in some if (p["op"], p["shape"]) == (op, shape)] for some in (found["points"], found["too_slow"])
        )
        assert sum("random" in p["sources"] for p in (*own, *left)) == search_quality.RANDOM
        assert len(own) + len(left) >= 18 * search_quality.SEARCH
    for one in found["points"][::40]:
        program, schedule = prepared.parsed(one)
        assert schedule and schedule.program == program.name
        compiler.bound(program, schedule, ranks=one["ranks"], dims=one["dims"], dtype="bf16", target="sm_90")
