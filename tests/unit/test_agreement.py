# pyright: basic
"""Predictions beside measurements: the figures, the choice of points, and a run on CPU ranks with stand-in kernels."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks import agreement, agreement_figures, agreement_points, baselines, measure, prepared, tp
from benchmarks import report as benchmark_report
from benchmarks.agreement_figures import chance, regret, spearman
from tests.unit.test_benchmarks import Clock
from tests.unit.two_ranks import run_on_two_ranks
from tilelink import compiler, generated
from tilelink.runtime.cuda import timing
from tilelink.simulator.machine import load_machine, save_machine
from tilelink.target import target
from tilelink.tuning import prepare

ROOT = Path(__file__).parents[2]
DIMS = {"Ms": 16, "N": 48, "K": 64}
SCHEDULE = str(compiler.load("ag_gemm").schedule("h200", compiler.load("ag_gemm").program()))


def point(number: int, shape: str = "tiny@32", **more: Any) -> dict[str, Any]:
    return {
        "id": number, "op": "ag_gemm", "shape": shape, "program": "ag_gemm", "schedule": SCHEDULE, "origin": "best",
        "dims": DIMS, "ranks": 2, "dtype": "bf16", "chosen_us": 10.0, **more,
    }  # fmt: skip


# Figures -----------------------------------------------------------------------------------------------------


def test_the_correlation_of_ranks() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 300, 4000]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 3], [1, 3, 2]) == pytest.approx(0.5)
    assert spearman([1, 1, 2, 3], [5, 6, 7, 8]) == pytest.approx(0.9486833)
    assert math.isnan(spearman([1, 1], [1, 2])) and math.isnan(spearman([1], [1]))


def test_figures_of_errors_and_of_what_the_models_choice_loses() -> None:
    times = [(90.0, 100.0), (110.0, 80.0), (120.0, 120.0), (300.0, 200.0)]
    points = [point(n, predicted_us=p, measured_us=m) for n, (p, m) in enumerate(times)]
    assert [regret(points, count) for count in (1, 2, 4)] == [1.25, 1.0, 1.0]
    failed = point(4, measured_us=None, predicted_us=None)
    other = point(5, shape="other", predicted_us=50.0, measured_us=100.0)
    found = agreement_figures.figures([*points, failed, other, point(6)])
    assert (found["points"], found["failed"], found["asked"]) == (5, 1, 7)
    first, second = found["groups"]
    assert (first["shape"], first["points"], first["best_us"]) == ("tiny@32", 4, 80.0)
    assert first["median_error"] == pytest.approx((0.1 + 0.375) / 2) and first["largest_error"] == pytest.approx(0.5)
    assert first["bias"] == pytest.approx(0.375 / 2) and first["spearman"] == pytest.approx(0.8)
    assert second["spearman"] is None and second["bias"] == pytest.approx(-0.5)
    assert found["all"]["median_error"] == pytest.approx(0.375)


def test_what_chance_finds_with_as_many_measurements() -> None:
    times = [("chance", 100.0), ("chance", 200.0), ("chance", 400.0), ("best", 50.0)]
    points = [point(n, origin=origin, measured_us=us) for n, (origin, us) in enumerate(times)]
    expected = [(100 + 200 + 400) / 3 / 50, (100 + 100 + 200) / 3 / 50, 100 / 50]
    assert [chance(points, count) for count in (1, 2, 3)] == pytest.approx(expected)
    assert chance(points, 4) is None


def test_the_halves_are_judged_alone() -> None:
    points = [point(n, measured_us=10.0) for n in range(40)]
    halves = [agreement_figures.fitted(p) for p in points]
    assert 10 < sum(halves) < 30
    for own, half in zip(points, halves, strict=True):
        own["predicted_us"] = 11.0 if half else 13.0
    found = agreement_figures.figures(points)
    assert found["halves"] == pytest.approx({"fitted": 0.1, "held_out": 0.3})
    text = "".join(agreement_figures.table_of({"figures": found, "predicted_for": "m"}))
    assert "error of 10.0 %, the other half of 30.0 %." in text


def test_a_report_predicts_anew_with_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, machine = tmp_path / "measured.json", tmp_path / "m.json"
    small = str(compiler.load("ag_gemm").schedules[0])
    points = [point(0, measured_us=40.0), point(1, measured_us=50.0, schedule=small), point(2, measured_us=None)]
    broken = point(3, measured_us=9.0, dims={"Ms": 16, "N": 48})
    written = {"benchmark": "agreement", "points": [*points, broken], "ended_early": None}
    file.write_text(json.dumps(written))
    assert agreement.main(["--report", str(file)]) == 0
    before = json.loads(file.read_text())
    save_machine(replace(load_machine("8xH200"), kernel_start=1e-4), machine)
    assert agreement.main(["--report", str(file), "--machine", str(machine)]) == 0
    after = json.loads(file.read_text())
    predicted = [[p["predicted_us"] for p in one["points"]] for one in (before, after)]
    for times in predicted:
        assert times[0] > 0 and times[1] > 0 and times[2:] == [None, None]
    assert predicted[0][0] != predicted[1][0]
    assert (before["predicted_for"], after["predicted_for"]) == ("8xH200", "m.json")
    assert [p["measured_us"] for p in after["points"]] == [40.0, 50.0, None, 9.0]
    assert after["figures"]["points"] == 2
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| ag_gemm | tiny@32 | 2 |") for line in lines) == 2


def test_a_plot_is_the_same_for_the_same_points(tmp_path: Path) -> None:
    points = [point(n, predicted_us=10.0 + n, measured_us=12.0 + n) for n in range(3)]
    agreement_figures.scatter(points, tmp_path / "a.svg")
    first = (tmp_path / "a.svg").read_bytes()
    agreement_figures.scatter(points, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_bytes() == first and b"measured, us" in first


# Points ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_points_are_declared_best_and_by_chance(tmp_path: Path) -> None:
    files = tmp_path / "a.json", tmp_path / "b.json"
    for file in files:
        groups = (("ag_gemm", "mlp-1@512", (2, 2)), ("reduce_scatter", "mlp-1@512", (1, 1)))
        agreement_points.choose(file, "8xH200", 6, groups)
    points = json.loads(files[0].read_text())["points"]
    assert files[0].read_text() == files[1].read_text()
    own = [p for p in points if p["op"] == "ag_gemm"]
    counts = {origin: sum(p["origin"] == origin for p in own) for origin in ("declared", "best", "chance")}
    assert counts["declared"] >= 1 and 1 <= counts["best"] <= 2 and 1 <= counts["chance"] <= 2
    assert [p["id"] for p in points] == list(range(len(points)))
    assert {p["op"] for p in points[: len(points) // 2]} == {"ag_gemm", "reduce_scatter"}
    assert len({(p["op"], p["program"], p["schedule"]) for p in points}) == len(points)
    for one in points:
        case = agreement.problem_of(one)
        assert {name: case.dims[name] for name in one["dims"] if one["op"] == "ag_gemm"} == (
            one["dims"] if one["op"] == "ag_gemm" else {}
        )
        assert prepared.parsed(one)[1] is not None


def test_the_committed_points_are_plans_of_the_library() -> None:
    points = json.loads((ROOT / "benchmarks" / "results" / "agreement_points.json").read_text())["points"]
    assert len(points) >= 60
    for one in points[::6]:
        program, schedule = prepared.parsed(one)
        assert schedule and schedule.program == program.name
        compiler.bound(program, schedule, ranks=one["ranks"], dims=one["dims"], dtype="bf16", target="sm_90")


def test_prepared_programs_are_found_again() -> None:
    machine, one = target("sm_90"), point(0)
    made = prepared.program_of(one, machine)
    file = prepared.prepared_file(one, machine)
    assert len(made.launched) == 2 and not file.exists()
    assert file not in [prepared.prepared_file(other, machine) for other in (point(0, ranks=4), point(0, schedule=""))]
    prepare._keep(prepared._known(one, machine), replace(made, lag=7))
    assert prepared.program_of(one, machine).lag == 7
    file.unlink()


# Runs --------------------------------------------------------------------------------------------------------


def test_neighbours_are_timed_together_but_for_those_that_ended_a_run() -> None:
    points = [point(n, shape="a" if n < 5 else "b") for n in range(7)]
    assert [[p["id"] for p in b] for b in agreement.batches(points, 2, [1])] == [[0], [1], [2, 3], [4], [5, 6]]


def test_a_run_goes_on_where_the_one_before_it_ended(tmp_path: Path) -> None:
    points, out = [point(n) for n in range(4)], tmp_path / "out.json"
    state = agreement.State(points, out, 0)
    assert [p["id"] for p in state.left()] == [0, 1, 2, 3]
    state.begin(state.points[:1], 1.0)
    state.end(state.points[:1], {0: {"us": 5.0, "samples_us": [5.0], "kind": "ours"}}, 2.0)
    state.begin(state.points[1:3], 2.5)
    again = agreement.State(points, out, 0)
    assert [p["id"] for p in again.left()] == [3, 1, 2] and again.report["alone"] == [1, 2]
    assert again.report["spent_s"] == 2.5 + agreement.LIMIT_S
    again.begin(again.points[1:2], 3.0)
    third = agreement.State(points, out, 0)
    assert [p["id"] for p in third.left()] == [3, 2]
    assert third.points[0]["measured_us"] == 5.0 and "the run ended" in third.points[1]["failure"]
    assert [p["id"] for p in agreement.State(points[:2], out, 0).left()] == [0, 1]  # other points: from the beginning


class StandIn:
    """Does in torch what the kernel of a point should do; the one with two stages of loads is wrong."""

    def __init__(self, program: Any, group: Any) -> None:
        self._text, self._group = generated.file_of(program.source).read_text(), group
        if "group(i, 3)" in self._text:
            raise RuntimeError("out of resources")

    def __call__(self, inputs: dict[str, torch.Tensor], out: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        full = torch.empty(32, 64, dtype=torch.bfloat16)
        baselines.all_gather(full, inputs["x"], group=self._group)
        found = full @ inputs["w"].T if "w" in inputs else full
        out["y"].copy_((found * (2 if "num_stages 2" in self._text else 1)).view(out["y"].shape))
        return out


def run(arguments: list[str]) -> None:
    """One rank of a run: NCCL is gloo, and the clock that of the host."""
    points, out, budget = arguments
    torch.cuda.Event = Clock  # type: ignore[assignment,misc]
    torch.cuda.synchronize = torch.cuda._sleep = torch.cuda.set_device = lambda *_: None  # type: ignore[assignment]
    timing.FLUSH_BYTES = 1 << 10
    tp.SHAPES["tiny"] = (64, 96)
    tp.machine = lambda: {"gpu": "none"}
    joined = dist.init_process_group
    dist.init_process_group = lambda *_, **__: joined("gloo")
    session = measure.Session
    agreement.Session = lambda group, watchdog: session(group, watchdog, torch.device("cpu"))  # type: ignore[assignment]
    agreement.GpuKernel, agreement.current_target = StandIn, lambda: target("sm_90")  # type: ignore[assignment]
    args = agreement.arguments(
        ["--points", points, "--out", out, "--budget", budget, "--prepare", "0", "--samples", "3", "--batch", "2"]
    )
    status = agreement.run(args, time.monotonic())
    dist.barrier()
    os._exit(status)


def _ranks(points: Path, out: Path, budget: str) -> dict[str, Any]:
    run_on_two_ranks("tests.unit.test_agreement", [str(points), str(out), budget])
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.thorough
def test_a_run_measures_every_point_and_records_failures(tmp_path: Path) -> None:
    gathered = {"op": "all_gather", "program": "all_gather", "dims": {"Ms": 16, "K": 64}}
    moves = compiler.load("all_gather")
    wrong = SCHEDULE.replace("num_stages 4", "num_stages 2")
    points = [
        point(0), point(1, schedule=wrong), point(2, schedule=SCHEDULE.replace("group(i, 8)", "group(i, 3)")),
        point(3, **gathered, schedule=str(moves.schedule("h200", moves.program()))), point(4, ranks=8),
    ]  # fmt: skip
    file, out = tmp_path / "points.json", tmp_path / "out.json"
    file.write_text(json.dumps({"points": points}))
    early = _ranks(file, out, "0")
    assert "budget" in early["ended_early"] and not any("measured_us" in p for p in early["points"])
    found = _ranks(file, out, "100")
    right, bad, broken, moved, other = found["points"]
    assert right["measured_us"] > 0 and len(right["samples_us"]) == 3 and right["error"] < 1e-2
    assert bad["measured_us"] is None and "off by 1.0" in bad["failure"]
    assert broken["measured_us"] is None and "out of resources" in broken["failure"]
    assert moved["measured_us"] > 0 and "measured_us" not in other
    assert found["ended_early"] is None and found["began"] == [] and found["machine"] == {"gpu": "none"}


def test_the_report_has_its_plot_and_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    docs.mkdir()
    monkeypatch.setattr(benchmark_report, "RESULTS", results)
    monkeypatch.setattr(benchmark_report, "DOCS", docs)
    points = [point(n, predicted_us=10.0 + n, measured_us=12.0 + n) for n in range(3)]
    written = {"benchmark": "agreement", "points": points, "predicted_for": "m"}
    (results / "unpredicted.json").write_text(json.dumps(written))
    written["figures"] = agreement_figures.figures(points)
    (results / "agreement.json").write_text(json.dumps(written))
    assert benchmark_report.main() == 0
    text = (docs / "results.md").read_text()
    assert "| ag_gemm | tiny@32 | 3 | 12.0 |" in text and "(plots/agreement.svg)" in text and "unpredicted" not in text
    assert (docs / "plots" / "agreement.svg").is_file()
