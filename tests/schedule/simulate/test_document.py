"""The code and the tables of docs/simulation.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilelink.cli import app

TEXT = (Path(__file__).parents[3] / "docs" / "simulation.md").read_text()


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), "simulation.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 2


def shape(lines: list[str]) -> list[str]:
    """Lines without their numbers, which follow the library's schedules."""
    return [re.sub(r" *[0-9.]+", " #", line) for line in lines]


def test_the_command_prints_what_it_says() -> None:
    (block,) = re.findall(r"```\n\$ tilelink (.*?)```", TEXT, re.S)
    command, *expected = block.rstrip().splitlines()
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0
    assert shape(result.output.splitlines())[: len(expected) - 1] == shape(expected[:-1])
