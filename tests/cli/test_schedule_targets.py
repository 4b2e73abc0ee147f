"""Schedules that say for which processor they are: `schedule gpu for p on sm_90:`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tilelink
from tilelink.cli import app
from tilelink.errors import ParseError

TEXT = """\
program p(M, N):
    x : in        [M, N]
    h : symmetric [M, N]
    c : local     [M, N]
    y : out       [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])

    compute make(i: M, j: N):
        c[i, j] = h[i, j] + 1.0

    compute use(i: M, j: N):
        y[i, j] = c[i, j] * 2.0

schedule gpu for p on sm_90:
    send on sm(16), tile(i=64)
    make on sm(8), tile(i=64, j=64)
    use on sm(32), tile(i=64, j=64)

schedule more for p like gpu:
    use tile(i=32)

schedule other for p like gpu on sm_80:
    use tile(i=32)

schedule here for p:
    send on sm(2), tile(i=8)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "p.tl"
    path.write_text(TEXT)
    return str(path)


def test_each_schedule_is_proved_for_its_own_target(file: str) -> None:
    done = CliRunner().invoke(app, ["check", file, "--ranks", "2", "--set", "M=256", "N=128", "--json"])
    rows = json.loads(done.stdout)["programs"]
    assert {row["target"]: [*row["tasks"]] for row in rows} == {
        "cpu": ["default", "here"],
        "sm_90": ["gpu", "more"],
        "sm_80": ["other"],
    }
    assert done.exit_code == 0


def test_an_option_names_one_for_all(file: str) -> None:
    options = ["--ranks", "2", "--set", "M=256", "N=128", "--target", "sm_90", "--json"]
    (row,) = json.loads(CliRunner().invoke(app, ["check", file, *options]).stdout)["programs"]
    assert row["target"] == "sm_90" and [*row["tasks"]] == ["default", "gpu", "more", "other", "here"]


def test_other_commands_take_it_too(file: str) -> None:
    options = ["--ranks", "2", "--set", "M=256", "N=128", "--after", "bind"]
    assert "target sm_90" in CliRunner().invoke(app, ["show", file, "--schedule", "gpu", *options]).output
    assert "target cpu" in CliRunner().invoke(app, ["show", file, "--schedule", "here", *options]).output


def test_sizes_in_refusals_are_those_of_the_target(file: str) -> None:
    unwritten = TEXT.replace("    compute use(i: M, j: N)", "    compute use(i: M[: M - 8], j: N)")
    Path(file).write_text(unwritten)
    done = CliRunner().invoke(app, ["check", file, "--ranks", "2", "--schedule", "gpu"])
    assert done.exit_code == 1 and "seen in: p with gpu" in done.output
    (large,) = {line for line in done.output.splitlines() if "sizes:" in line}
    done = CliRunner().invoke(app, ["check", file, "--ranks", "2", "--schedule", "here"])
    assert large not in done.output and "sizes:" in done.output


def test_it_is_printed_and_kept() -> None:
    gpu, more, other, here = tilelink.parse(TEXT).schedules
    assert [one.target for one in (gpu, more, other, here)] == ["sm_90", "sm_90", "sm_80", None]
    assert str(gpu).startswith("schedule gpu for p on sm_90:\n")
    assert tilelink.parse(TEXT[: TEXT.index("schedule")] + str(gpu)).schedules[0] == gpu
    assert tilelink.schedule(tilelink.parse(TEXT).program(), "mine", like=gpu).target == "sm_90"


def test_a_target_that_there_is_not() -> None:
    with pytest.raises(ParseError) as caught:
        tilelink.parse(TEXT.replace("for p on sm_90", "for p on sm_91"), "p.tl")
    assert str(caught.value).splitlines()[:4] == [
        "ParseError: there is no target 'sm_91'",
        "  at p.tl:16:23",
        "    schedule gpu for p on sm_91:",
        "                          ^^^^^",
    ]
