"""What drives the tests on GPUs, tested without any: the lock-step of ranks, the campaign's table, verdicts."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.compiler.library import Case, cases, sizes
from tests.gpu import campaign, sanitizer
from tests.gpu.campaign import LIMITS_S, Outcome
from tests.gpu.cases import remembers
from tests.gpu.ranks import ROOT
from tilelink import compiler

# Ranks in lock-step ------------------------------------------------------------------------------------------

RANK = """
import os, sys
import torch.distributed as dist
from tests.gpu.lockstep import CasesFailed, Checks, on_all, together

dist.init_process_group("gloo")
rank, began = dist.get_rank(), []

def unlike(case):
    if case == "two" and rank == 0:
        raise ValueError("no kernel")
    return case

def body(case, checks):
    began.append(case)
    on_all(lambda: unlike(case))
    checks.expect(case != "one" or rank == 0, "off by 3")
    checks.expect(case != "three", "both are wrong")
    checks.raises(ValueError, lambda: int("x" if case != "four" else "4"), "a number")
    if case == sys.argv[1]:
        raise RuntimeError("CUDA")
    dist.barrier()

try:
    together(["one", "two", "three", "four", "five"], body, str)
except CasesFailed as error:
    print(began[-1], error, flush=True)
except RuntimeError as error:
    print(began[-1], "ended by", error, flush=True)
os._exit(0)
"""


def ranks_say(argument: str) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    command = ["timeout", "-s", "KILL", "60", sys.executable, "-c", RANK, argument]
    ranks = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    return [rank.communicate()[0] for rank in ranks]


def test_a_case_that_fails_on_one_rank_fails_on_all_and_does_not_hide_the_next() -> None:
    first, second = ranks_say("")
    expected = [
        "five 4 failed:",
        "one: off by 3, on rank 1",
        "two: ValueError: no kernel, on rank 0",
        "three: both are wrong, on ranks 0, 1",
        "four: a number: no ValueError, on ranks 0, 1",
    ]
    assert second.splitlines() == expected
    assert first.splitlines() == ["case 0: one", *(f"failed: {line}" for line in expected[1:]), *expected]


@pytest.mark.thorough
def test_an_error_that_is_no_failed_check_ends_the_scenario() -> None:
    assert [said.splitlines()[-1] for said in ranks_say("three")] == ["three ended by CUDA"] * 2


# The campaign ------------------------------------------------------------------------------------------------

LOG = """W1121 10:00:00 torch/distributed/run.py] Setting OMP_NUM_THREADS
failed: ag_gemm-h200: launch 4: y is off by 3.1e-01, on rank 2
Traceback (most recent call last):
  File "/x/scenarios.py", line 3, in f
    raise DeadlineError(message)
tests.gpu.lockstep.CasesFailed: 1 failed:
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (LOG, "failed: ag_gemm-h200: launch 4: y is off by 3.1e-01, on rank 2"),
        (LOG.replace("failed: ", "passed: "), "passed: ag_gemm-h200: launch 4: y is off by 3.1e-01, on rank 2"),
        (LOG.replace("off by", "near").replace("failed:", ""), "tests.gpu.lockstep.CasesFailed: 1"),
        ("a\n\nb\n", "b"),
        ("", "it said nothing"),
    ],
)
def test_the_first_line_that_tells_what_is_wrong(said: str, error: str) -> None:
    assert campaign.first_error(said) == error


def test_outcomes() -> None:
    good = campaign.outcome("a", 10, 0, 1.24, "an Error: that did not matter")
    assert (good.error, good.tail, good.seconds) == ("", "", 1.2)
    assert campaign.outcome("a", 10, 1, 1.0, LOG).tail == LOG
    for late in (
        campaign.outcome("a", 10, -9, 55.0, "b"),
        campaign.outcome("a", 10, 1, 11.0, "Signal 14 (SIGALRM)\nb"),
    ):
        assert late.error.startswith("it outlived its 10 s; ")


def test_a_campaign_goes_on_and_writes_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, found = tmp_path / "out.json", []

    def run(name: str) -> Outcome:
        found.append(json.loads(out.read_text())["good"] if out.exists() else None)
        return campaign.outcome(name, 10, int(name == "skew"), 2.0, LOG)

    campaign.run_all(["programs", "skew", "graphs"], run, out)
    assert found == [None, 1, 1]
    written = json.loads(out.read_text())
    assert (written["planned"], written["good"], written["seconds"]) == (3, 2, 6.0)
    assert [one["rc"] for one in written["scenarios"]] == [0, 1, 0]
    assert capsys.readouterr().out.splitlines() == [
        "scenario               rc       s",
        "programs                0     2.0",
        "skew                    1     2.0  failed: ag_gemm-h200: launch 4: y is off by 3.1e-01, on rank 2",
        "graphs                  0     2.0",
        "2 of 3 scenarios are good, 6 s",
    ]


def test_scenarios_are_chosen_by_name() -> None:
    assert campaign.chosen([]) == list(LIMITS_S)
    assert campaign.chosen(["graphs", "programs"]) == ["programs", "graphs"]
    with pytest.raises(ValueError, match="no scenario 'graph'"):
        campaign.chosen(["graph"])


def test_every_scenario_is_there() -> None:
    from tests.gpu.worker import functions

    known = functions()
    assert all(callable(known[name]) for name in LIMITS_S)


@pytest.mark.thorough
def test_callers_meet_every_manner_of_launch() -> None:
    from tests.gpu.callers import called, manner

    def manners(chosen: Iterable[Case]) -> set[tuple[bool, ...]]:
        bounds = (compiler.bound(*case, ranks=2, dims=sizes(case, 2), dtype="bf16", target="sm_90") for case in chosen)
        return {manner(bound) for bound in bounds}

    assert manners(cases()) <= manners(called())


@pytest.mark.thorough
def test_without_gpus_a_scenario_is_an_outcome_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = campaign.launched("different_programs", 1, tmp_path)
    assert found.rc and "Error" in found.error and found.tail


# Verdicts ----------------------------------------------------------------------------------------------------

REPORTS = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at gemm+0x90
=========     by thread (0,0,0) in block (0,0,0)
=========     Access to 0x7f0000000010 is out of bounds
=========
========= Invalid __global__ read of size 2 bytes
=========     at gemm+0x70
=========     Address 0x7f0000002000 is out of bounds
=========
========= ERROR SUMMARY: 2 errors
"""
CLEAN = {
    "memcheck": "========= ERROR SUMMARY: 0 errors",
    "racecheck": "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
}
PEER = 0x7F0000000000


def verdict(
    folder: Path, *, tool: str | None = "memcheck", log: str = CLEAN["memcheck"], became: str = "good",
    peers: int = 0, ended: bool = True, status: int = 0, cases: bool = True,
) -> sanitizer.Verdict:  # fmt: skip
    every = {"a": "good", "b": became}
    said = {"became": every if cases else {}, "peers": [[PEER, PEER + peers]] if peers else [], "ended": ended}
    (folder / "said.0.json").write_text(json.dumps(said))
    (folder / f"{tool}.0.log").write_text(log)
    return sanitizer.judge(tool, 1, folder, [status])


def test_clean_runs_are_good(tmp_path: Path) -> None:
    for tool, log in CLEAN.items():
        assert str(verdict(tmp_path, tool=tool, log=log)) == "good"
    assert str(verdict(tmp_path, tool=None, log="")) == "good"


def test_reports_are_problems_but_not_those_about_memory_of_a_peer(tmp_path: Path) -> None:
    (both,) = verdict(tmp_path, log=REPORTS, status=9).problems
    assert both.startswith("rank 0: 2 reports; the first:\n") and "gemm+0x90" in both
    found = verdict(tmp_path, log=REPORTS, peers=0x100, status=9)
    assert "rank 0: 1 reports" in found.problems[0] and "gemm+0x70" in found.problems[0] and len(found.doubts) == 1
    doubtful = verdict(tmp_path, log=REPORTS, peers=0x10000, status=9)
    assert not doubtful.problems and "2 reports about memory imported" in doubtful.doubts[0]
    race = "Error: Race reported between Write\n=========\nRACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)"
    assert "1 reports" in verdict(tmp_path, tool="racecheck", log=race).problems[0]


GENERATED = """@gluon.jit
def gather(x):
    room = allocate()
    gl.warp_specialize([(work, (x,))])
"""
RACE = """========= Error: Race reported between Read access at gather+0x120 in made.py:2
=========     and Write access at gather+0x4e20 in made.py:{line} [1 hazards]
=========
========= RACECHECK SUMMARY: 1 hazards displayed (1 errors, 0 warnings)
"""


@pytest.mark.parametrize(("text", "line", "wrong"), [
    (GENERATED, 4, False), (GENERATED, 2, False), (GENERATED, 3, True), (GENERATED, 9, True),
    (GENERATED.replace("gl.warp", "warp"), 2, True), ("", 4, True),
])  # fmt: skip
def test_hazards_of_handing_work_to_warps_are_doubts(
    text: str, line: int, wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "made.py").write_text(text)
    monkeypatch.setattr(sanitizer, "settings", lambda: SimpleNamespace(cache=tmp_path))
    found = verdict(tmp_path, tool="racecheck", log=RACE.format(line=line), status=9)
    assert (bool(found.problems), bool(found.doubts)) == (wrong, not wrong)


def test_what_else_ends_a_run(tmp_path: Path) -> None:
    assert "no summary" in verdict(tmp_path, log="=== killed").problems[0]
    assert verdict(tmp_path, log="Error: Device not supported", ended=False).doubts
    assert "ended with status -9 after b" in verdict(tmp_path, ended=False, status=-9).problems[0]
    assert "status 1" in verdict(tmp_path, status=1).problems[0]
    assert verdict(tmp_path, became="wrong: y").problems == ["rank 0: b: wrong: y"]
    assert verdict(tmp_path, cases=False).problems == ["rank 0 ran no case"], "a run that tests nothing is not good"


def test_a_late_wait_is_a_doubt_under_a_tool_and_wrong_without_one(tmp_path: Path) -> None:
    assert not verdict(tmp_path, became="late: c").problems and verdict(tmp_path, became="late: c").doubts
    assert verdict(tmp_path, tool=None, became="late: c").problems


def test_ranks_that_outlive_the_first_one_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer, "GRACE_S", 0.5)
    begin = time.monotonic()
    started = [
        subprocess.Popen(command, start_new_session=True) for command in (["true"], ["sh", "-c", "sleep 60; true"])
    ]
    assert sanitizer.ended(started, 50) == [0, -9]
    assert time.monotonic() - begin < 20


def test_programs_that_remember_launches_are_known() -> None:
    """momentum alone, of the library: in other kept tensors nothing is read that a launch has not written."""
    assert {case[0].name for case in cases() if remembers(case[0])} == {"momentum"}
