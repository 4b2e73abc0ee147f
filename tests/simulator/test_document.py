"""The code and the tables of docs/simulation.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilelink import compiler
from tilelink.cli import app
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "simulation.md").read_text()


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), "simulation.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 2


def shape(lines: list[str]) -> list[str]:
    """Lines without their numbers, which follow the library's schedules."""
    return [re.sub(r" *[0-9.]+", " #", line) for line in lines]


def test_the_command_prints_what_it_says() -> None:
    block, *_ = re.findall(r"```\n\$ tilelink (.*?)```", TEXT, re.S)
    command, *expected = block.rstrip().splitlines()
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0
    assert shape(result.stdout.splitlines())[: len(expected) - 1] == shape(expected[:-1])


def test_the_figures_are_those_of_the_results() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "agreement_4xH200.json").read_text())["figures"]
    correlations = [group["spearman"] for group in found["groups"]]
    told = " ".join(TEXT.split())
    whole, halves = found["all"], found["halves"]
    for text in (
        f"Of {found['points']} points on four H200s the median error is {100 * whole['median_error']:.1f} %",
        f"the largest {100 * whole['largest_error']:.1f} %",
        f"Spearman {min(correlations):.2f} to {max(correlations):.2f}",
        f"has a median error of {100 * halves['fitted']:.1f} %, the other one of {100 * halves['held_out']:.1f} %",
    ):
        assert text in told


def test_the_table_of_the_librarys_schedules_is_what_was_measured_and_is_predicted() -> None:
    """Both columns; the products of 13312 columns and rows take too long to simulate here."""
    rows = re.findall(r"^\| (\w+) \| (\d+) x (\d+) \| (\d+) \| (\d+) \| ([+-]\d+) % \|$", TEXT, re.M)
    shapes = json.loads((ROOT / "benchmarks" / "results" / "tp_4xH200.json").read_text())["shapes"]
    machine = load_machine("8xH200")
    assert len(rows) == 8
    for name, inner, columns, measured, predicted, error in rows:
        module = compiler.load(name)
        program = module.program(name)
        shape = next(s for s in shapes if (s["K"], s["N"]) == (int(inner), int(columns)) and s["op"] in name)
        (us,) = (row["us"] for row in shape["rows"] if row["name"] == f"{name}:h200")
        assert f"{us:.0f}" == measured
        assert 100 * (int(predicted) / us - 1) == pytest.approx(int(error), abs=0.7)
        if "13312" not in (inner, columns):
            dims = {"Ms": 2048, "N": int(columns), "K": int(inner)}
            chosen = module.schedule("h200", program)
            plan = compiler.plan(program, chosen, ranks=4, dims=dims, dtype="bf16", target=machine.processor)
            assert f"{simulate(plan, machine).seconds * 1e6:.0f}" == predicted
