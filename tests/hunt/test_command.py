"""`tilelink hunt` as a command: what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilelink.cli import app, notices
from tilelink.hunt.programs import Vary
from tilelink.hunt.targets import Target

KINDS = str(Path(__file__).with_name("kinds.tl"))
AT = ["--program", "gemm_ar", "--exact", "--ranks", "2", "--set", "Ms=64", "N=2048", "K=2048", "--dtype", "bf16"]


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["hunt", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_one_launch_is_rated(tmp_path: Path) -> None:
    report = tmp_path / "found.md"
    code, out, _ = run(KINDS, *AT, "--launch", "graph", "--late", "0", "--json", "--markdown", str(report))
    found = json.loads(out)
    assert code == 0 and found["rated"] == 1 and found["ended"] == "points"
    case = next(one for one in found["cases"] if one["kind"] == "around")
    assert case["cause"].startswith("3 helper kernels and 1 copy of inputs and outputs are ")
    assert f"tilelink hunt {KINDS} --program gemm_ar --schedule h200 --exact --ranks 2" in case["command"]
    assert case["command"].split(" --program ")[1] in report.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.tl"], "nowhere.tl"),
        ([KINDS, "--schedule", "none*"], "no schedule 'none*' for"),
        ([KINDS, "--ranks", "0"], "'0' is no number of ranks"),
        ([KINDS, "--dtype", "f33"], "'f33' is no element type"),
        ([KINDS, "--launch", "later"], "'later' is no way to launch"),
        ([KINDS, "--late", "-1"], "is no delay of a launch"),
        ([KINDS, "--late", ","], "--late has no value"),
        ([KINDS, "--strategy", "best"], "no strategy 'best'"),
        ([KINDS, "--least", "0.5", "--points", "1"], "an anomaly of 0.5 times"),
        ([KINDS, "--measure"], "a hunt on GPUs has one number of ranks"),
        ([KINDS, "--program", "gemm_ar", "--set", "Ms=0"], "has no schedule that is valid on 2 ranks with Ms=0"),
        (["gemm_ar", "--set", "L=3"], "gemm_ar has no size 'L'"),
        (["gemm_ar", "--set", "M=few"], "M=few"),
        (["ops.attend"], "no operator 'ops.attend'"),
        (["ops.moe", "--points", "1"], "no model predicts calls of ops.moe"),
        (["gemm_ar", "--dtype", "f32"], "operators have kernels for bf16 and f16"),
    ],
)
def test_senseless_hunts_are_refused(arguments: list[str], said: str) -> None:
    code, _, error = run(*arguments)
    assert code == 1 and said in error and "Traceback" not in error


def test_a_long_hunt_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PATIENCE_S", 0.01)
    monkeypatch.setattr(notices, "MOST_S", 0.05)
    code, _, said = run(KINDS, *AT, "--launch", "graph", "--late", "0", "--points", "5")
    assert code == 0 and "--points and --budget say when it ends" in said
    assert re.search(r"^after \d+ s: 0 of 5 points rated, 0 refused, 0 anomalies met$", said, re.MULTILINE), said


def test_what_ranks_are_asked_is_what_was_given() -> None:
    target = Target(names=("gemm_ar", KINDS), sets=("M=64",), vary=Vary(ranks=(2,), late=(0.0, 1e-5)))
    assert Target.of_json(json.loads(json.dumps(target.as_json()))) == target
