"""`tilelink simulate`, as a user calls it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.simulator.cases import H200S, SHIFT
from tilelink.cli import app
from tilelink.simulator.machine import save_machine


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "shift.tl").write_text(SHIFT)
    return str(tmp_path / "shift.tl")


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["simulate", *words])
    return result.exit_code, result.stdout or result.output


def test_it_prints_time_bound_and_a_row_for_each_rank(file: str) -> None:
    code, text = call(file, "-s", "copy_sms", "-n", "3", "--set", "M=512", "--set", "N=256")
    assert code == 0
    lines = text.splitlines()
    assert lines[0].startswith("shift with copy_sms on 3 ranks of 8xH200, bf16, M=512, N=256:")
    assert lines[1].startswith("predicted ")
    assert lines[2].startswith("bound ")
    assert lines[3].split() == ["rank", "us", "start-up", "work", "epilogue", "waiting", "copy", "tail"]
    assert [line.split()[0] for line in lines[4:-1]] == ["0", "1", "2"]
    assert re.fullmatch(r"critical path: (\w+ \d+ %( \(\w+ \d+(, \w+ \d+)*\))?(, )?)+", lines[-1]), lines[-1]
    assert {"send", "add"} & set(re.findall(r"(\w+) \d+ %", lines[-1]))
    total, *parts = (float(cell) for cell in lines[4].split()[1:])
    assert sum(parts) == pytest.approx(total, abs=0.4)


def test_json_has_the_same(file: str) -> None:
    code, text = call(file, "-s", "engine", "-n", "2", "--json")
    values = json.loads(text)
    assert code == 0
    assert values["seconds"] == max(values["rank_seconds"])
    assert sum(values["breakdown"][0].values()) == pytest.approx(values["rank_seconds"][0])
    assert values["bound"]["seconds"] <= values["seconds"]
    assert (values["schedule"], values["machine"], values["dims"]) == ("engine", "8xH200", {"M": 1024, "N": 1024})


def test_it_remarks_that_a_copy_engine_has_small_copies(file: str) -> None:
    Path(file).write_text(SHIFT.replace("send on copy_engine, tile(i=64)", "send on copy_engine, tile(i=1)"))
    sizes = "-s", "engine", "-n", "2", "--set", "M=1024"
    (found,) = (line for line in call(file, *sizes, "--set", "N=256")[1].splitlines() if line.startswith("send: "))
    assert found.startswith("send: 1024 copies of 512 bytes and 1024 flags take 5161 us of the copy engine of rank 0")
    assert found.endswith("its channels, h channel(M=1): make them larger, or take send on sm(n)")
    assert json.loads(call(file, *sizes, "--set", "N=256", "--json")[1])["remarks"] == [found]
    Path(file).write_text(SHIFT.replace("send on copy_engine, tile(i=64)", "send on copy_engine, tile(i=256)"))
    assert json.loads(call(file, *sizes, "--set", "N=8192", "--json")[1])["remarks"] == []


def test_it_writes_what_is_asked_for(file: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace, plot = tmp_path / "out.json", tmp_path / "out.svg"
    code, _ = call(file, "-n", "2", "--trace", str(trace), "--plot", str(plot))
    assert code == 0
    assert json.loads(trace.read_text())["otherData"]["machine"] == "8xH200"
    assert "<svg" in plot.read_text()


def test_machines_come_from_files_too(file: str, tmp_path: Path) -> None:
    save_machine(H200S, tmp_path / "mine.json")
    assert call(file, "-m", str(tmp_path / "mine.json"))[1] == call(file)[1]
    code, text = call(file, "-m", "8xNothing")
    assert code == 1
    assert "no machine '8xNothing'" in text
    code, text = call(file, "-m", "8xNothing", "--json")
    assert json.loads(text)["mistakes"][0]["error"] == "MachineError"


def test_a_trace_that_cannot_be_written_is_refused(file: str, tmp_path: Path) -> None:
    code, text = call(file, "-n", "2", "--trace", str(tmp_path / "nowhere" / "out.json"))
    assert code == 1
    assert text.startswith("OutputError:")


def test_the_network_slows_a_cluster_down(file: str) -> None:
    times = [
        json.loads(call(file, "-n", n, "-m", "h100-cluster", "--json", "--set", "M=4096", "--set", "N=4096")[1])
        for n in ("8", "16")
    ]
    assert times[1]["seconds"] > 3 * times[0]["seconds"]


def test_somebodys_cost_model_is_asked(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from tilelink.simulator.cost import Roofline, TileTime\n\n\nclass Slow(Roofline):\n"
    code += "    def tile(self, work, machine):\n        return TileTime(main=1.0)\n\n\nslow = Slow()\n"
    (tmp_path / "slow_tiles.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    for name in ("Slow", "slow"):
        status, text = call(file, "-n", "2", "--cost", f"slow_tiles:{name}", "--json")
        assert status == 0 and json.loads(text)["seconds"] > 1


@pytest.mark.parametrize("schedule", ["beside", "gpu"])
def test_a_stage_with_few_sms_that_is_most_of_a_launch_is_said(schedule: str) -> None:
    file = Path(__file__).parents[1] / "hunt" / "kinds.tl"
    sets = [f"--set={one}" for one in ("Ms=64", "k=2", "E=8", "C=64", "F=512", "N=2048")]
    code, text = call(str(file), "-p", "moe_reduce_scatter", "-s", schedule, "-n", "2", *sets)
    assert code == 0, text
    remark = re.search(r"^`combine` has 2 of 132 SMs and is \d+ % of the time: try `on sm`$", text, re.M)
    assert bool(remark) == (schedule == "beside")
