"""Launches that hang: the diagnosis of injected faults, simulated and on CPU ranks, the dumps, and the command."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.compiler import library
from tests.tiers import thorough
from tests.unit import hangs
from tests.unit.faulty import spoiled
from tilelink import compiler, dump
from tilelink.cli import app
from tilelink.cli.options import dims_of
from tilelink.compiler.postmortem import STALE_S, explain, report_of
from tilelink.diagnose import Report, Root, diagnose
from tilelink.dump import Dump, Seen
from tilelink.errors import DeadlineError, RankError
from tilelink.ir.program import Program
from tilelink.lowering.recipe import Recipe
from tilelink.planning.plan import Plan
from tilelink.reference.trial import random_inputs
from tilelink.settings import environment, override
from tilelink.target import CPU

FAULTS = 100
FALSE = {"lost", "beyond", "circle", "died", "differs", "promise"}
"""Kinds of roots that a launch which merely runs does not have."""


# Simulated ---------------------------------------------------------------------------------------------------


@thorough(unless=lambda times: times == 1)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(("states", "share"), [(True, 1.0), (False, 0.95)])
def test_drawn_faults_are_named_first(states: bool, share: float, times: int) -> None:
    """Of library programs, in simulated launches. Without states of programs, words say nothing of who is late."""
    found = hangs.campaign(times * FAULTS, 11, states=states)
    wrong = [f"{one.name}: {one.fault}\n{one.report}" for one in found if not one.exact]
    assert len(found) == times * FAULTS and {one.fault.kind for one in found} == {*hangs.KINDS}
    assert len(wrong) <= (1 - share) * len(found), "\n".join(wrong)


COPIES = ["gemm_rs_scatter", "gemm_rs_reduce_last", "gemm_ar_pulled", "all_gather_ring", "reduce_scatter"]
"""Programs with schedules in which copy engines wait."""


@pytest.mark.parametrize(("states", "most"), [(True, 0), (False, 3)])
def test_counters_that_copy_engines_reset(states: bool, most: int) -> None:
    """Such a counter is 0 before and after its wait: the notifies after it say which."""
    found = hangs.campaign(60, 4, states=states, resets=True, names=COPIES)
    wrong = [f"{one.name}: {one.fault}\n{one.report}" for one in found if not one.exact]
    assert len(wrong) <= most, "\n".join(wrong)


def test_launches_without_a_fault_have_no_root() -> None:
    """None when they have ended; on the way some program computes, but nothing is lost, and nothing waits in vain."""
    draw = random.Random(3)
    for name, plan in hangs.plans(draw):
        whole = hangs.Execution(plan, None, draw.randrange(1 << 30))
        assert whole.run(), name
        ranks = range(plan.bound.ranks)
        for states in (True, False):
            report = diagnose(plan, [whole.seen(rank, states=states) for rank in ranks])
            assert report.root is None and "nothing is missing" in str(report), (name, str(report))
            for _ in range(3):
                run = hangs.Execution(plan, None, draw.randrange(1 << 30))
                assert run.run(draw.randrange(400)), name
                report = diagnose(plan, [run.seen(rank, states=states) for rank in ranks])
                kinds = {root.kind for root in report.roots}
                assert not kinds & FALSE, (name, str(report))
        if draw.random() < 0.1:
            break


# CPU ranks ---------------------------------------------------------------------------------------------------


def program_named(name: str) -> tuple[Program, compiler.Module]:
    return next((p, m) for m in compiler.library() for p in m.programs if p.name == name)


def hung(name: str, schedule: str, fault: str, folder: Path) -> tuple[DeadlineError | RankError, Report]:
    """Run three launches of a program of the library with a fault; return the error, and the report of its dumps."""
    (program, module), ranks = program_named(name), 3
    dims = dims_of(program, None, library.SIZES)
    chosen = module.schedule(schedule, program) if schedule != "default" else None
    kernel = compiler.compile(program, chosen, ranks=ranks, dims=dims, dtype="f32")
    given = random_inputs(program, ranks=ranks, dims=dims, dtype="f32", launches=3, seed=0)
    text = spoiled(kernel.source)
    with (
        environment(TEST_FAULT=fault, TILELINK_DUMP=str(folder)),
        pytest.raises((DeadlineError, RankError)) as caught,
    ):
        replace(kernel, emitted=replace(kernel.emitted, text=text)).run(given, deadline_s=1.5)
    report, left = report_of([folder])
    assert left == []
    return caught.value, report


def root_of(report: Report) -> Root:
    assert report.root is not None, str(report)
    return report.root


CASES = {
    "a program of a ring sleeps": ("all_gather_ring", "default", "sleep:1:2:0:1", "late", 1, "ring", "launch 2"),
    "a notify of a ring is lost": ("all_gather_ring", "default", "lose:2:1:0:0", "lost", 2, "ring", "y[2, 0:24, 0:40]"),
    "a rank of an all-to-all dies": ("expert_parallel", "default", "kill:2:2:1:1", "died", 2, "dispatch", "SIGKILL"),
    "an expert's notify is lost": ("expert_parallel", "default", "lose:0:1:2:1", "lost", 0, "work", "back[0,"),
    "a part of a sum is lost": ("gemm_rs_reduce_last", "default", "lose:2:1:1:0", "lost", 2, "scatter", "parts[2,"),
    "a wait for one notify too many": (
        "gemm_rs_reduce_last", "default", "more:1:2:3:0", "beyond", 1, "sums", "waits for 3 notifies, of 2"
    ),
    "a copy queue stops": ("ag_gemm", "copy_engine", "sleep:1:2:0:1", "late", 1, "gather", "its copy queue"),
    "a copy queue loses a flag": ("ag_gemm", "copy_engine", "lose:1:3:0:1", "lost", 1, "gather", "xs[1, 0:24, 0:36]"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_faults_on_cpu_ranks(case: str, tmp_path: Path) -> None:
    name, schedule, fault, kind, rank, kernel, text = CASES[case]
    error, report = hung(name, schedule, fault, tmp_path)
    root = root_of(report)
    assert (root.kind, root.rank, root.kernel) == (kind, rank, kernel), str(report)
    assert text in root.text and str(report).startswith(root.text)
    assert [line.partition(":")[0] for line in report.ranks] == ["rank 0", "rank 1", "rank 2"]
    assert f"more: tilelink diagnose {tmp_path}" in str(error)
    assert kind == "died" or f"because: {root.text}" in str(error), "the error says it too"


def test_a_broken_promise_is_the_root(tmp_path: Path) -> None:
    """Its own check is left out here, as on GPUs: what follows is undefined, and here a rank sleeps."""
    program, _ = program_named("expert_parallel")
    dims = dims_of(program, None, library.SIZES)
    kernel = compiler.compile(program, ranks=3, dims=dims, dtype="f32")
    given = random_inputs(program, ranks=3, dims=dims, dtype="f32", launches=1, seed=0)
    promise = kernel.artifact.promises[0]
    given[0][2][promise.tensor].view(-1)[0] = -1
    unchecked = replace(kernel, emitted=replace(kernel.emitted, text=spoiled(kernel.source)))
    unchecked.__dict__["_promises"] = ()
    with (
        environment(TEST_FAULT="lose:0:1:0:1", TILELINK_DUMP=str(tmp_path)),
        pytest.raises((DeadlineError, RankError)) as caught,
    ):
        unchecked.run(given, deadline_s=1.5)
    assert isinstance(caught.value, DeadlineError), str(caught.value)
    root = root_of(report_of([tmp_path])[0])
    assert (root.kind, root.rank) == ("promise", 2) and promise.tensor in root.text and "is -1" in root.text


# Dumps and the command ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Dump]:
    """Dumps of three ranks: a copy of rank 1 sleeps."""
    folder = tmp_path_factory.mktemp("dumps")
    hung("ag_gemm", "copy_engine", "sleep:1:2:0:1", folder)
    found = {one.seen.rank: one for one in map(dump.read, dump.newest(folder))}
    assert [*found] == [0, 1, 2]
    return found


def written(folder: Path, *dumps: Dump) -> list[Path]:
    with override(dumps=folder):
        return dump.write(dumps)


def copied() -> Plan:
    """The plan of the program in `dumps`."""
    program, _ = program_named("ag_gemm")
    return compiler.plan(program, "copy_engine", ranks=3, dims=dims_of(program, None, library.SIZES), dtype="f32")


def but(one: Dump, **changes: Any) -> Dump:
    """A dump with other fields of what its rank has seen."""
    return replace(one, seen=replace(one.seen, **changes))


def test_a_dump_is_read_back(dumps: Mapping[int, Dump], tmp_path: Path) -> None:
    (path,) = written(tmp_path, dumps[1])
    again = dump.read(path)
    assert (again.seen, again.recipe, again.fingerprint) == (dumps[1].seen, dumps[1].recipe, dumps[1].fingerprint)


def test_a_rank_without_a_dump_is_the_root(dumps: Mapping[int, Dump], tmp_path: Path) -> None:
    report, _ = report_of(written(tmp_path, dumps[0], dumps[2]))
    root = root_of(report)
    assert (root.kind, root.rank) == ("silent", 1) and "rank 1 has written no dump" in str(report)
    assert report.ranks[1] == "rank 1: no dump"


def test_ranks_in_other_launches(dumps: Mapping[int, Dump], tmp_path: Path) -> None:
    """A rank whose host has not issued the launch: its programs have ended the one before, and its peers wait."""
    run = hangs.Execution(copied(), hangs.Fault(kind="launch not begun", launch=3, rank=1), 5)
    assert not run.run()
    for states in (True, False):
        some = [replace(dumps[rank], seen=run.seen(rank, states=states)) for rank in range(3)]
        root = root_of(report_of(written(tmp_path / str(states), *some))[0])
        assert (root.kind, root.rank) == ("not begun", 1) and "has ended its launch 2, and never began 3" in root.text
        host = report_of(written(tmp_path / f"host {states}", some[0], but(some[1], issued=2), some[2]))[0]
        assert "its host has issued 2 launches" in root_of(host).text


def test_another_program_on_a_rank(dumps: Mapping[int, Dump], tmp_path: Path) -> None:
    program, _ = program_named("ag_gemm")
    other = compiler.plan(program, ranks=3, dims=dims_of(program, None, library.SIZES), dtype="f32")
    odd = replace(dumps[2], recipe=asdict(Recipe.of(other.bound)))
    report, _ = report_of(written(tmp_path, dumps[0], dumps[1], odd))
    assert (root_of(report).kind, root_of(report).rank) == ("differs", 2)
    assert str(report).startswith(f"rank 2 runs another program than the others: ag_gemm {odd.fingerprint}")


def test_dumps_of_earlier_hangs_are_left_out(dumps: Mapping[int, Dump], tmp_path: Path) -> None:
    early = but(dumps[1], time=dumps[1].seen.time - 2 * dumps[1].deadline_s - STALE_S - 60)
    report, left = report_of([path for one in (dumps[0], early, dumps[2]) for path in written(tmp_path, one)])
    assert root_of(report).kind == "silent" and [dump.read(path).seen.rank for path in left] == [1]


def test_a_folder_keeps_the_newest(dumps: Mapping[int, Dump], tmp_path: Path) -> None:
    for k in range(dump.KEPT + 3):
        written(tmp_path, but(dumps[0], time=1e9 + k), but(dumps[1], time=1e9))
    assert len(list(tmp_path.glob("*-rank0.json"))) == dump.KEPT and len(list(tmp_path.glob("*-rank1.json"))) == 1
    assert {dump.read(path).seen.rank: dump.read(path).seen.time for path in dump.newest(tmp_path)} == {
        0: 1e9 + dump.KEPT + 2, 1: 1e9
    }  # fmt: skip


def test_dumps_can_be_switched_off(dumps: Mapping[int, Dump], tmp_path: Path) -> None:
    with environment(TILELINK_DUMP="0"):
        assert dump.write(dumps.values()) == []
    assert written(tmp_path / "file" / "x", *dumps.values())
    (tmp_path / "plain").write_text("")
    assert written(tmp_path / "plain", *dumps.values()) == [], "a folder that cannot be made hides no error"


def diagnosed(*args: object) -> Result:
    return CliRunner().invoke(app, ["diagnose", *map(str, args)])


def test_the_command(dumps: Mapping[int, Dump], tmp_path: Path) -> None:
    files = written(tmp_path, *dumps.values())
    result = diagnosed(*files)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("rank 1 waits for nothing, and computes or is dead: program 0 of its copy queue")
    assert lines[-3].startswith("rank 0: launch 2: 1 programs wait: ") and "0 of 1 notifies are there" in lines[1]
    assert diagnosed(tmp_path).output == result.output
    with environment(TILELINK_DUMP=str(tmp_path)):
        assert diagnosed().output == result.output
    found = json.loads(diagnosed(tmp_path, "--json").output)
    assert found["roots"][0]["rank"] == 1 and found["roots"][0]["kernel"] == "gather" and len(found["ranks"]) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "is no dump of a rank"),
        ('{"format": 99, "dump": {}}', "has format 99"),
        ("no json", "cannot be read"),
        (None, "some.json"),
    ],
)
def test_files_that_are_no_dumps(text: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    if text is not None:
        path.write_text(text)
    result = diagnosed(path)
    assert result.exit_code == 1 and says in result.output and "hint: " in result.output


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"program": "no program"}, "did not expect 'no' here"),
        ({"program": ""}, "it is not one program with one schedule"),
        ({"schedule": "schedule s for ag_gemm:\n    no such clause\n"}, "did not expect 'such' here"),
        ({"numbers": {}}, "has no value"),
        ({"numbers": {"Ms": "x", "N": 8, "K": 8}}, "Ms"),
        ({"ranks": True}, "ranks of its recipe is True"),
        ({"target": {**asdict(CPU), "sms": -1}}, "sms of its processor is -1"),
        ({"target": {**asdict(CPU), "kind": "abacus"}}, "not one of cpu, cuda, hip"),
        ({"listing": "0" * 16}, "this version of TileLink lowers it to another program"),
    ],
)
def test_a_program_that_cannot_be_read(
    changes: Mapping[str, Any], says: str, dumps: Mapping[int, Dump], tmp_path: Path
) -> None:
    result = diagnosed(*written(tmp_path, replace(dumps[0], recipe={**dumps[0].recipe, **changes})))
    assert result.exit_code == 1 and "the program in the dump of rank 0 cannot be read" in result.output
    assert says in " ".join(result.output.split()), result.output


def test_a_failing_diagnosis_hides_no_error(dumps: Mapping[int, Dump], tmp_path: Path) -> None:
    plan = copied()
    error = DeadlineError("a wait was late")
    odd: Seen = replace(dumps[0].seen, pads=(dump.Pad(rank=0, counters=(1,)),))
    error.witnesses = (odd,)
    with override(dumps=tmp_path):
        explain(error, plan, {}, 1.0)
    assert "because: not known: the post-mortem failed with" in str(error)
