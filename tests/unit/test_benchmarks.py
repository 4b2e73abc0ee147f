# pyright: basic
"""Benchmarks: their arithmetic, and whole runs on CPU ranks with a clock that stands in for the GPU's."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks import measure, tables, tp
from tests.unit.two_ranks import run_on_two_ranks
from tilelink.runtime.cuda import timing


def row(name: str, kind: str, us: float | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "us": us, "failure": None if us else "boom | twice\nand more", **more}


ROWS = [
    row("cuBLAS", "gemm", 100.0),
    row("NCCL", "transfer", 60.0),
    row("copy engine, push", "transfer", 50.0),
    row("cuBLAS+NCCL, graph", "pair", 155.0),
    row("cuBLAS+NCCL", "pair", 160.0),
    row("a:one", "ours", 110.0, error=1e-3, host_us=20.0, build_s=1.0),
    row("a:two", "ours", 105.0),
    row("a:one, preset", "preset", 104.0),
    row("broken", "library", None),
]


def test_overlap_counts_what_is_hidden_of_the_shorter() -> None:
    assert measure.overlap(100, 50, 100) == 1.0
    assert measure.overlap(100, 50, 125) == 0.5
    assert measure.overlap(50, 100, 150) == 0.0
    assert measure.overlap(100, 50, 175) == -0.5


def test_the_bound_is_the_product_or_the_fastest_transfer() -> None:
    summary = measure.summarize(ROWS, 385_000 * 40, 385.0)
    assert (summary["gemm_us"], summary["transfer_us"], summary["transfer_by"]) == (100.0, 50.0, "copy engine, push")
    assert summary["bound_us"] == 100.0
    assert summary["floor_us"] == pytest.approx(40.0)
    assert summary["pair_us"] == 160.0
    one = summary["ratios"]["a:one"]
    assert one == pytest.approx({"bound": 1.1, "floor": 2.75, "speedup": 160 / 110, "overlap": 0.8})
    assert summary["gemm_quality"] == {"a:one, preset": pytest.approx(100 / 104)}
    linked = measure.summarize([row("cuBLAS", "gemm", 40.0), *ROWS[1:]], 1, 1.0)
    assert linked["bound_us"] == 50.0


@pytest.mark.parametrize("missing", ["gemm", "transfer", "pair"])
def test_what_failed_leaves_out_only_what_needs_it(missing: str) -> None:
    rows = [row(r["name"], r["kind"], None if r["kind"] == missing else r["us"]) for r in ROWS]
    summary = measure.summarize(rows, 1000, 385.0)
    assert (summary["bound_us"] is None) == (missing != "pair")
    assert ("speedup" in summary["ratios"]["a:one"]) == (missing != "pair")
    assert "floor" in summary["ratios"]["a:one"]


def test_problems_divide_the_intermediate_size_by_the_ranks() -> None:
    one, few = tp.problems("ag_gemm", "mlp-1, mlp-5@512", 4)
    assert (one.M, one.N, one.K, one.shard) == (8192, 11008 // 4, 4096, 2048)
    assert one.received_bytes == 3 * 2048 * 4096 * 2
    assert (few.shape, few.S, few.dims["Ms"]) == ("mlp-5@512", 512, 128)
    (scatter,) = tp.problems("gemm_rs", "mlp-7", 8)
    assert (scatter.M, scatter.N, scatter.K) == (8192, 16384, 53248 // 8)
    (reduce,) = tp.problems("gemm_ar", "mlp-7", 8)
    assert reduce.received_bytes == 2 * scatter.received_bytes == 2 * 7 * 1024 * 16384 * 2


def test_groups_of_shapes() -> None:
    (sized,) = tp.problems("ag_gemm", "4096x1536@14336", 2)
    assert (sized.M, sized.N, sized.K) == (14336, 768, 4096)
    assert len(tp.problems("ag_gemm", "all", 8)) == 7
    assert len(tp.problems("ag_gemm", "small", 8)) == 14
    with pytest.raises(ValueError, match="mlp-9"):
        tp.problems("ag_gemm", "mlp-9", 8)
    with pytest.raises(ValueError, match="no shape '4096x0'"):
        tp.problems("ag_gemm", "4096x0", 8)


def test_operators_that_there_are_not_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert tp.arguments(["--op", "ag_gemm,gemm_rs"]).op == "ag_gemm,gemm_rs"
    with pytest.raises(SystemExit):
        tp.arguments(["--op", "ag_gemm,gemm"])
    assert "no operator gemm\n" in capsys.readouterr().err


def test_schedules_are_chosen_by_name(tmp_path: Path) -> None:
    extra = tmp_path / "more.tl"
    extra.write_text("schedule fresh for gemm_rs_ring:\n    gemm on sm, tile(i=16, j=16, k=16)\n")
    replacing = tmp_path / "other.tl"
    replacing.write_text("schedule h200 for gemm_rs_slots:\n    gemm on sm, tile(i=16, j=16, k=16)\n")
    usual, others = (tp.choices("gemm_rs", None, files) for files in ([], [str(replacing)]))
    assert [s.name for _, s in usual if s] == [s.name for _, s in others if s]
    assert "i=16, j=16" in "".join(str(s) for _, s in others)
    found = tp.choices("gemm_rs", "fresh,gemm_rs_scatter:epilogue,gemm_rs_ring:default", [str(extra)])
    names = [(program.name, schedule and schedule.name) for program, schedule in found]
    assert names == [("gemm_rs_ring", "fresh"), ("gemm_rs_scatter", "epilogue"), ("gemm_rs_ring", None)]
    assert "fresh" in [s.name for _, s in tp.choices("gemm_rs", None, [str(extra)]) if s]
    assert "fresh" not in [s.name for _, s in tp.choices("all_gather", None, [str(extra)]) if s]
    assert tp.choices("gemm_rs", "none", [str(extra)]) == []
    with pytest.raises(ValueError, match="gemm_rs_ring:ring"):
        tp.choices("gemm_rs", "nonsense")


def test_errors_of_results() -> None:
    expected = torch.tensor([3.0, 4.0])
    assert float(measure.relative_error(expected, expected)) == 0
    assert float(measure.relative_error(torch.tensor([3.0, 4.5]), expected)) == pytest.approx(0.1)
    assert float(measure.relative_error(torch.tensor([3.0, float("nan")]), expected)) > 1e9


def test_a_step_that_hangs_ends_the_process() -> None:
    ended, messages = threading.Event(), list[str]()
    statuses: list[int] = []

    def leave(status: int) -> None:
        statuses.append(status)
        ended.set()

    watchdog = measure.Watchdog(1.0, rank=3, on_end=messages.append, exit=leave)
    watchdog.context("mlp-1")
    with watchdog.step("quick"):
        pass
    time.sleep(1.5)
    assert not ended.is_set()
    with watchdog.step("timing"):
        watchdog.note("slow")
        assert ended.wait(10)
    assert statuses == [124]
    assert messages == ["rank 3: no end after 1 s: mlp-1 / timing / slow"]


def test_tables_show_the_best_and_what_failed() -> None:
    shape = {
        "op": "ag_gemm", "shape": "mlp-1", "ranks": 8, "dtype": "bf16", "M": 1, "N": 2, "K": 3, "rows": ROWS,
        "summary": measure.summarize(ROWS, 385_000 * 40, 385.0), "wall_s": 1.0, "build_s": 0.5,
    }  # fmt: skip
    report = {
        "op": "ag_gemm", "ranks": 8, "dtype": "bf16", "samples": 20, "commit": "abc", "shapes": [shape],
        "ended_early": None, "machine": {"gpu": "G", "driver": "1", "torch": "2", "triton": "3", "nccl": "4"},
    }  # fmt: skip
    text = tables.render(report, rows=True)
    (line,) = [line for line in text.splitlines() if line.startswith("| mlp-1")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[2:8] == ["100", "50.0 (copy engine, push)", "160", "-", "105", "a:two"]
    assert cells[8:] == ["1.05", "2.62", "1.52x", "90 %", "-"]
    assert "1.52x over 1 shapes" in text
    (failed,) = [line for line in text.splitlines() if line.startswith("| broken")]
    assert "failed: boom / twice |" in failed
    assert len({line.count("|") for line in text.splitlines() if line.startswith("| a:")}) == 1


# Whole runs ---------------------------------------------------------------------------------------------------


class Clock:
    """Stands in for torch.cuda.Event."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: Clock) -> float:
        return (other.at - self.at) * 1e3


def run(arguments: list[str]) -> None:
    """One rank of a small run of each operator: NCCL is gloo, and what needs a GPU fails and is recorded."""
    torch.cuda.Event = Clock  # type: ignore[assignment,misc]
    torch.cuda.synchronize = lambda *_: None
    torch.cuda._sleep = lambda *_: None
    timing.FLUSH_BYTES = 1 << 10
    tp.SHAPES["tiny"] = (64, 96)
    dist.init_process_group("gloo")
    assert dist.group.WORLD
    session = measure.Session(dist.group.WORLD, measure.Watchdog(60, dist.get_rank()), torch.device("cpu"))
    found: dict[str, Any] = {}
    for op in tp.OPERATORS:
        args = tp.arguments(["--op", op, "--samples", "3", "--warmups", "1", "--schedules", "none", "--operator"])
        (problem,) = tp.problems(op, "tiny@32", session.ranks)
        found[op] = tp.measure(problem, session, args)
    wrong = measure.Variant(
        name="wrong", kind="ours", run=lambda: torch.ones(4), expected=lambda: torch.full((4,), 2.0)
    )
    found["wrong"] = session.time([wrong], lambda: None, samples=2, warmups=0)[0]
    if session.rank == 0:
        Path(arguments[0]).write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)


def test_a_run_measures_checks_and_records_failures(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run_on_two_ranks("tests.unit.test_benchmarks", [str(out)])
    found = json.loads(out.read_text())
    assert (found["wrong"]["us"], found["wrong"]["error"]) == (None, 0.5)
    assert "off by 5.00e-01" in found.pop("wrong")["failure"]
    assert tuple(found) == tp.OPERATORS
    for op, result in found.items():
        rows = {r["name"]: r for r in result["rows"]}
        for name in ("cuBLAS", "NCCL", "cuBLAS+NCCL", "operator"):
            assert rows[name]["us"] > 0, (op, rows[name])
            assert rows[name]["error"] < measure.ALLOWED
            assert len(rows[name]["samples_us"]) == 3
        assert "rank 0: " in rows["cuBLAS+NCCL, graph"]["failure"]
        assert rows["cuBLAS+NCCL, graph"]["us"] is None
        assert result["summary"]["bound_us"] == max(rows["cuBLAS"]["us"], rows["NCCL"]["us"])
        assert (result["I"], result["N" if op == "ag_gemm" else "K"]) == (96, 48)


def test_results_do_not_say_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["tp.py", "--op", "ag_gemm", "--out", "somewhere.json", "--operator"])
    assert tp.command() == "--op ag_gemm --operator"
    monkeypatch.setattr("sys.argv", ["tp.py", "--op", "ag_gemm"])
    assert tp.command() == "--op ag_gemm"


def test_no_variant_always_follows_the_same_one() -> None:
    names = ["alone", "exchange", "NCCL", "ours", "backward"]
    turns = [measure.shuffled(names, number) for number in range(40)]
    assert all(sorted(turn) == sorted(names) for turn in turns)
    assert turns == [measure.shuffled(names, number) for number in range(40)]  # on each rank
    before = Counter(turn[turn.index("ours") - 1] for turn in turns if turn[0] != "ours")
    assert set(before) == {*names} - {"ours"} and max(before.values()) < 20
