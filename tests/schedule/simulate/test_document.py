"""The code and the tables of docs/simulation.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilelink.cli import app

ROOT = Path(__file__).parents[3]
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
    assert shape(result.output.splitlines())[: len(expected) - 1] == shape(expected[:-1])


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
