"""Ranking by the model, what is remembered, and the command."""

import importlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.odd_files import FOREIGN, ODD, room_for
from tests.tiers import thorough
from tilelink import compiler
from tilelink.cli import app, notices, tune
from tilelink.errors import BindingError, OutputError, SearchError
from tilelink.ir.program import Program
from tilelink.scheduling.schedule import Schedule
from tilelink.search import Candidate, Tried
from tilelink.search.run import SLOWER
from tilelink.simulator import seconds_within, simulate
from tilelink.simulator.machine import load_machine
from tilelink.target import target
from tilelink.tuning import Database, Key, Record, algorithms, key_of, rank

DIMS = {"Ms": 256, "N": 512, "K": 512}
KEY = Key(programs="abc", dims="M=64", dtype="bf16", ranks=4, gpu="a GPU", versions="torch 1")
RECORD = Record(
    key=KEY, program="p", schedule="schedule s for p:\n    default\n", seconds=1e-4, evidence=({"us": 100.0},)
)


def test_algorithms_are_programs_that_callers_cannot_tell_apart() -> None:
    module = compiler.load("gemm_rs")
    names = [p.name for p in algorithms(module.programs, module.program("gemm_rs_scatter"))]
    assert names[0] == "gemm_rs_scatter" and set(names) == {p.name for p in module.programs}
    module = compiler.load("ag_gemm_epilogues")  # silu and gelu take and give the same tensors
    assert algorithms(module.programs, module.program("ag_gemm_silu")) == (module.program("ag_gemm_silu"),)
    module = compiler.load("all_gather")
    others = compiler.parse(
        "program copy(M):\n    x : in [M]\n    y : out [M]\n    compute c(i: M):\n        y[i] = x[i]\n"
    )
    assert algorithms(others.programs, module.program()) == (module.program(),)


def test_the_model_ranks_schedules_that_are_safe() -> None:
    program = compiler.load("ag_gemm").program()
    options: dict[str, Any] = {"dims": DIMS, "ranks": 4, "machine": load_machine("8xH200"), "target": target("sm_90")}
    found = rank([program], **options, budget_s=None, trials=40)
    times = [one.seconds for one in found.ranking]
    assert times == sorted(times) and 0 < times[0] < times[-1]
    best = found.ranking[0]
    plan = compiler.plan(program, best.schedule, ranks=4, dims=DIMS, dtype="bf16", target="sm_90")
    assert plan.tasks > 0
    assert [one.seconds for one in rank([program], **options, budget_s=None, trials=40).ranking] == times


def test_records_come_back_and_later_ones_win(tmp_path: Path) -> None:
    database = Database(tmp_path / "deep" / "tuning.jsonl")
    assert database.find(KEY) is None
    database.store(RECORD)
    better = replace(RECORD, seconds=5e-5)
    database.store(better)
    with database.path.open("ab") as file:
        file.write(b'{"key": 3}\n\xff\xfe\nhalf a li')
    assert database.find(KEY) == better and database.records() == [RECORD, better]
    assert database.find(replace(KEY, ranks=8)) is None


def test_a_record_for_which_there_is_no_room_is_an_error_and_hides_no_other(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.jsonl")
    database.store(RECORD)
    with (
        room_for(database.path.stat().st_size + 60),
        pytest.raises(OutputError, match=r"tuning\.jsonl cannot be written"),
    ):
        database.store(RECORD)
    other = replace(RECORD, seconds=5e-5)
    database.store(other)
    assert database.records() == [RECORD, other]


def test_a_disk_that_fills_at_any_byte_loses_no_other_record(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.jsonl")
    stored = [replace(RECORD, seconds=1.0)]
    database.store(stored[0])
    for more in range(0, len(json.dumps(asdict(RECORD))), 5):
        with room_for(database.path.stat().st_size + more), pytest.raises(OutputError):
            database.store(RECORD)
        stored.append(replace(RECORD, seconds=float(more)))
        database.store(stored[-1])
    assert database.records() == stored


def changed(**fields: Any) -> str:
    return json.dumps({**asdict(RECORD), **fields})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[" * 200_000, "line 2 cannot be read: its lists are too deep inside one another"),
        ("[" * 900 + "]" * 900, "line 2 cannot be read: its lists are too deep inside one another"),
        (changed(schedule=5), "schedule of line 2 is 5, not a text"),
        (changed(seconds="fast"), "seconds of line 2 is 'fast', not a number"),
        (changed(seconds=float("nan")), "seconds of line 2 is nan, not a number"),
        (changed(seconds=10**400), "not a number"),
        (changed(seconds=-1.0), "seconds of line 2 is -1.0"),
        (changed(key={**asdict(KEY), "ranks": "4"}), "ranks of key of line 2 is '4', not a whole number"),
        (changed(key={**asdict(KEY), "ranks": True}), "ranks of key of line 2 is True, not a whole number"),
        (changed(key={}), "key of line 2 has no"),
        (changed(evidence={}), "evidence of line 2 is {}, not a list"),
        (changed(evidence=[1]), "0 of evidence of line 2 is 1, not an object"),
        (changed(more=1), "line 2 has a 'more', which is no field of it"),
        (changed(program="\udcff"), "line 2 cannot be read: it has half a character"),
        ("3", "line 2 is 3, not an object"),
        ("", "line 2 cannot be read: Expecting value"),
    ],
)
def test_a_line_that_is_no_record_is_passed_over_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str, said: str
) -> None:
    database = Database(tmp_path / "tuning.jsonl")
    good = json.dumps(asdict(RECORD))
    database.path.write_text(f"{good}\n{line}\n{good}\n")
    assert database.records() == [RECORD, RECORD] == database.records()
    (word,) = caplog.messages  # once
    assert f"{database.path}: 1 of 3 lines are no records and are passed over; " in word and said in word


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_database_that_others_may_write_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    (tmp_path / "cache").mkdir()
    database = Database(tmp_path / "cache" / "tuning.jsonl")
    database.store(RECORD)
    make, said = FOREIGN[kind]
    make(database.path)
    before = database.path.read_bytes()
    assert database.records() == [] and said in caplog.text and "is not used" in caplog.text
    with pytest.raises(OutputError, match=said) as caught:
        database.store(RECORD)
    assert caught.value.hint is not None and "no other user may write" in caught.value.hint
    assert database.path.read_bytes() == before


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ODD)
def test_what_lies_in_the_place_of_a_database_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    database = Database(tmp_path / "tuning.jsonl")
    ODD[kind](database.path)
    assert database.records() == [] and f"{database.path} is not used" in caplog.text
    with pytest.raises(OutputError, match="cannot be written") as caught:
        database.store(RECORD)
    if kind in ("a folder", "a FIFO", "a socket"):
        assert caught.value.hint == f"remove it: it is {kind}"


def test_keys_round_the_first_dimension_up_and_know_their_programs() -> None:
    module = compiler.load("gemm_rs")
    options: dict[str, Any] = {"dtype": "bf16", "ranks": 4, "gpu": "g", "versions": "v"}
    one = key_of(module.programs, dims={"Ms": 900, "N": 100, "K": 70}, **options)
    same = key_of(module.programs[::-1], dims={"Ms": 1024, "N": 100, "K": 70}, **options)
    assert one == same and one.dims == "Ms=1024, N=100, K=70"
    assert key_of(module.programs[:1], dims={"Ms": 900, "N": 100, "K": 70}, **options) != one
    assert key_of(module.programs, dims={"Ms": 1025, "N": 100, "K": 70}, **options) != one


@thorough(unless=lambda as_json: as_json)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_shows_the_best(as_json: bool) -> None:
    command = ["tune", "gemm_rs", "--program", "gemm_rs_slots", "--ranks", "2", "--trials", "30", "--top", "3"]
    command += ["--shape", "256,512,512"] if as_json else [f"--set={name}={size}" for name, size in DIMS.items()]
    done = CliRunner().invoke(app, [*command, *(["--json"] if as_json else [])])
    assert done.exit_code == 0, done.output
    if as_json:
        answer = json.loads(done.stdout)
        times = [one["predicted_us"] for one in answer["candidates"]]
        declared = compiler.load("gemm_rs").schedules
        assert 3 < len(times) <= 3 + len(declared) and times == sorted(times)
        assert answer["tried"] + sum(answer["refused"].values()) <= 30 < answer["points"]
        names = [one["schedule"].split()[1] for one in answer["candidates"]]
        curve = answer["progress"]
        assert curve[-1]["us"] == times[0]
        assert all(a["trial"] < b["trial"] and a["us"] > b["us"] for a, b in pairwise(curve))
        assert 0 < curve[0]["at_s"] <= curve[-1]["at_s"] <= answer["seconds"]["search"] and curve[-1]["trial"] <= 30
        assert names.count("found") + sum(c["origin"] == "declared" for c in answer["candidates"][:3]) >= 3
        assert {s.name for s in declared} >= {name for name in names if name != "found"} >= {"h200", "ring", "copy_sms"}
    else:
        assert " rated; refused: " in done.stdout
        assert re.search(r"^schedule \w+ for gemm_rs_\w+ on sm_90:$", done.stdout, re.MULTILINE), done.stdout


@thorough(unless=lambda options: "8xA100" in options)
@pytest.mark.parametrize(
    ("options", "fits"), [(["-m", "8xH200"], True), (["-m", "8xA100"], False), (["--target", "sm_80"], False)]
)
def test_kernels_are_for_the_machine_unless_said_otherwise(options: list[str], fits: bool) -> None:
    """Schedules declared for an H200 need more shared memory than an A100 has, where programs have several tiles."""
    command = ["tune", "gemm_rs", "-p", "gemm_rs_local_last", "-n", "2", "--shape", "8192,512,512", "--budget", "0"]
    answer = json.loads(CliRunner().invoke(app, [*command, "--json", *options]).stdout)
    assert ("shared memory" not in answer["refused"]) == fits


@pytest.mark.parametrize("shape", ["256,512", "256,512,x", "256,512,-512", ""])
def test_shapes_that_are_none(shape: str) -> None:
    done = CliRunner().invoke(app, ["tune", "gemm_rs", "-p", "gemm_rs_slots", "--trials", "1", "--shape", shape])
    assert done.exit_code == 1 and "write Ms,N,K as numbers" in done.stderr


def test_measuring_needs_gpus() -> None:
    done = CliRunner().invoke(app, ["tune", "ag_gemm", "--ranks", "99", "--measure"])  # says so before it searches
    assert done.exit_code == 1 and "99 ranks need 99 GPUs" in done.stderr


MINE = """
from tilelink.simulator.cost import Roofline, TileTime


class Slow(Roofline):
    def tile(self, work, machine):
        return TileTime(main=1.0)


def one(space, chance):
    yield space.random(chance)

class Broken:
    def __init__(self):
        self.rate = 1 / 0
"""


def test_a_search_between_nodes_keeps_to_the_rules_of_the_network() -> None:
    sizes = ["--set", "Ms=512", "--set", "N=512", "--set", "K=512", "--set", "g=2", "--machine", "h100-cluster"]
    command = ["tune", "two_level_ag_gemm", "-n", "4", *sizes, "--trials", "24", "--json"]
    several, one = (
        json.loads(CliRunner().invoke(app, [*command, *more]).stdout) for more in (["--nodes", "2"], [])
    )  # fmt: skip
    assert (several["nodes"], several["ranks"], "nodes" in one) == (2, 4, False)
    own, other = ({c["schedule"]: c["predicted_us"] for c in found["candidates"]} for found in (several, one))
    assert own and not any("copy_engine" in schedule for schedule in own)
    assert several["refused"]["ScheduleError"] > one["refused"].get("ScheduleError", 0)
    shared = own.keys() & other.keys()  # the declared one at least
    assert shared and all(own[schedule] > other[schedule] for schedule in shared)


def test_candidates_between_nodes_are_not_measured() -> None:
    done = CliRunner().invoke(app, ["tune", "ag_gemm", "-n", "4", "--nodes", "2", "--measure"])
    assert done.exit_code and "2 nodes are not measured" in done.stderr and "leave --measure out" in done.stderr


def test_the_command_takes_somebodys_strategy_and_cost_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_ideas.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    command = ["tune", "gemm_rs", "-p", "gemm_rs_ring", "-n", "2", "--shape", "256,512,512", "--json"]
    done = CliRunner().invoke(app, [*command, "--strategy", "own_ideas:one", "--cost", "own_ideas:Slow"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    declared = [one for one in answer["candidates"] if one["origin"] == "declared"]
    assert answer["ended"] == "strategy" and answer["strategy"] == "own_ideas:one" and answer["seed"] == 0
    assert answer["dims"] == {"Ms": 256, "N": 512, "K": 512} and len(declared) < answer["tried"] + 1
    assert all(one["predicted_us"] > 1e6 for one in answer["candidates"])
    done = CliRunner().invoke(app, [*command, "--cost", "own_ideas:Other"])
    assert done.exit_code == 1 and "cannot import own_ideas:Other" in json.loads(done.stdout)["mistakes"][0]["message"]
    done = CliRunner().invoke(app, [*command, "--strategy", "own_ideas:on"])
    mistake = json.loads(done.stdout)["mistakes"][0]
    assert mistake["message"] == "cannot import own_ideas:on: module own_ideas has no 'on'"
    assert mistake["hint"].startswith("did you mean one?")
    done = CliRunner().invoke(app, [*command, "--cost", "own_ideas:Broken"])
    assert done.exit_code == 1, done.output
    mistake = json.loads(done.stdout)["mistakes"][0]
    assert mistake["message"] == "own_ideas:Broken() failed: ZeroDivisionError: division by zero"
    assert mistake["location"]["file"] == str(tmp_path / "own_ideas.py")
    done = CliRunner().invoke(app, [*command, "--strategy", ".:x"])
    assert done.exit_code == 1 and "cannot import .:x: TypeError" in done.stdout


@pytest.mark.parametrize(
    ("sets", "error"),
    [(("Ms=0",), "BindingError"), (("Ms=nan",), "BindingError"), (("Ms=inf",), "BindingError")],
)
def test_a_search_of_nothing_says_why(sets: tuple[str, ...], error: str) -> None:
    options = [word for one in sets for word in ("--set", one)]
    done = CliRunner().invoke(app, ["tune", "ag_gemm", "-n", "2", "--trials", "3", "--json", *options])
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    assert answer["ok"] is False and answer["mistakes"][0]["error"] == error


def test_where_every_point_is_refused_the_commonest_reason_is_said(tmp_path: Path) -> None:
    text = "program half(M, N):\n    x : in [M, N]\n    y : out [M, N]\n\n    compute copy(i: M, j: N):\n"
    file = tmp_path / "half.tl"
    file.write_text(text + "        if rank == 0:\n            y[i, j] = x[i, j]\n")
    done = CliRunner().invoke(app, ["tune", str(file), "-n", "2", "--trials", "9"])
    assert done.exit_code == 1 and done.stderr.splitlines()[1].startswith("CoverageError: "), done.output


@pytest.mark.parametrize("hopeless", [inf, 1.01])
def test_points_far_slower_than_the_best_have_no_time(monkeypatch: pytest.MonkeyPatch, hopeless: float) -> None:
    """Declared schedules have one all the same, and the best of the others does not change."""
    ranking = importlib.import_module("tilelink.tuning.rank")
    monkeypatch.setattr(ranking, "HOPELESS", hopeless)
    module = compiler.load("ag_gemm")
    program = module.program("ag_gemm")
    declared = [s for s in module.schedules_of(program) if s.name in ("copy_engine", "h200")]
    dims = {"Ms": 512, "N": 1024, "K": 1024}
    found = rank([program], dims=dims, ranks=2, declared=declared, by="random", trials=14, seed=2)
    assert sum(one.declared for one in found.tried) == 2
    best = found.ranking[0].seconds
    if hopeless == inf:
        assert SLOWER not in found.refused
        assert any(one.seconds > 1.01 * best for one in found.tried if not one.declared)
    else:
        assert found.refused[SLOWER] > 1
        whole = min(simulated(one.schedule, program, dims) for one in found.tried)
        assert best == pytest.approx(whole)


def simulated(schedule: Schedule, program: Program, dims: dict[str, int]) -> float:
    machine = load_machine("8xH200")
    plan = compiler.plan(program, schedule, ranks=2, dims=dims, dtype="bf16", target=machine.processor)
    return simulate(plan, machine).seconds


def test_an_interrupted_search_shows_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def interrupted(*given: Any, **options: Any) -> Any:
        calls.append(0)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return seconds_within(*given, **options)

    monkeypatch.setattr(importlib.import_module("tilelink.tuning.rank"), "seconds_within", interrupted)
    done = CliRunner().invoke(app, ["tune", "gemm_rs", "-p", "gemm_rs_ring", "-n", "2", "--shape", "256,512,512"])
    assert done.exit_code == 130 and "interrupted: the best so far" in done.output and "gemm_rs_ring" in done.output


LOOKED_UP = """
program rows(V, B):
    e : in symmetric [V, 8]
    home : table [B] < ranks
    row : table [B] < V
    y : out [B, 8]

    comm fetch(b: B):
        tile_pull_data(y[b, :], e[row[b], :] @ home[b])
"""


def test_programs_with_tables_are_searched_too(tmp_path: Path) -> None:
    (tmp_path / "rows.tl").write_text(LOOKED_UP)
    command = ["tune", str(tmp_path / "rows.tl"), "-n", "2", "--set", "V=20", "--set", "B=6", "--trials", "4", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0 and json.loads(done.stdout)["candidates"], done.output
    options: dict[str, Any] = {"dims": {"V": 20, "B": 6}, "ranks": 2, "trials": 4}
    programs = compiler.parse(LOOKED_UP).programs
    with pytest.raises(BindingError, match="table 'home' has no value"):
        rank(programs, **options)
    tables = {"home": [[0] * 6, [1] * 6], "row": [[0] * 6, [3] * 6]}
    assert rank(programs, **options, tables=tables).ranking


def test_a_long_search_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    one = Tried(candidate=Candidate(program=0, choices=()), schedule=Schedule(name="s", program="p"), seconds=2e-6,
                trial=2, at=0.0)  # fmt: skip

    def rank(_: object, *, progress: Callable[[Tried | None], None], **__: object) -> str:
        for tried, text in ((None, "1 schedules"), (one, "2 schedules")):
            progress(tried)
            until = time.monotonic() + 30
            while not any(text in line for line in said) and time.monotonic() < until:
                time.sleep(0.01)
        return "found"

    monkeypatch.setattr(tune, "rank", rank)
    monkeypatch.setattr(notices, "say", said.append)
    monkeypatch.setattr(notices, "PATIENCE_S", 0.02)
    monkeypatch.setattr(notices, "MOST_S", 0.05)
    assert tune._searched([], {}, quiet=False) == "found"  # pyright: ignore[reportPrivateUsage]
    hint = "; --budget and --trials say when it ends"
    assert said[0].endswith(hint) and not any(line.endswith(hint) for line in said[1:])
    lines = {re.sub(r"^after \d+ s: ", "", line.removesuffix(hint)) for line in said}
    assert lines >= {"1 schedules looked at, 0 rated", "2 schedules looked at, 1 rated, the best takes 2.0 us"}


@pytest.mark.parametrize("jobs", [0, -2])
def test_a_search_has_a_process(jobs: int) -> None:
    program = compiler.library_module("gemm_rs").programs[0]
    with pytest.raises(SearchError, match=f"a search by {jobs} processes"):
        rank([program], dims={}, ranks=2, jobs=jobs)
