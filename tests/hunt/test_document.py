"""The example of docs/hunt.md is what the command prints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.hunt import report
from tilelink.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "hunt.md").read_text()


def printed(command: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    return done.stdout


def example() -> tuple[str, list[str], str]:
    """The command, what it prints of its first case, and the command that rates that alone."""
    (block,) = re.findall(r"```\n\$ (.*?)```", PAGE, re.S)
    command, _, shown = re.sub(r"\\\n\s+", "", block).partition("\n")
    first, *case, alone, rest = shown.splitlines()
    assert first.endswith(", ...") and rest == "..."
    return command, [first.removesuffix(", ..."), *case], alone.strip()


def test_the_table_is_that_of_the_results() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "hunt_8xH200.json").read_text())
    assert "\n".join(report(found)) in PAGE


def test_the_launch_of_the_example_is_as_slow_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, (_, *case, _), alone = example()
    assert "\n".join(case) in printed(alone, monkeypatch)


def test_the_example_is_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    command, (first, *case), alone = example()
    out = printed(command, monkeypatch)
    assert out.startswith(first) and "\n".join([*case, f"   {alone}"]) in out
