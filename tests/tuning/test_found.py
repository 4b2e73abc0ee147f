"""Schedules of programs that have none: found by the model, remembered, and never in the place of a refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tiers import thorough
from tilelink import compiler, op, settings
from tilelink.cli import app, notices
from tilelink.ir.program import Program
from tilelink.scheduling.schedule import Schedule
from tilelink.search import Candidate, Space
from tilelink.simulator.machine import load_machine, machine_with
from tilelink.target import target
from tilelink.tuning import Database, rank
from tilelink.tuning import found as module
from tilelink.tuning.found import Suggestion, found

TEXT = """\
program product(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]

    compute multiply(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)
"""
RACE = """\
program race(M):
    x : symmetric [M]
    y : out       [M]

    comm send(i: M):
        tile_push_data(x[i] @ (rank + 1), x[i])

    compute use(i: M):
        y[i] = x[i]
"""
DIMS = {"M": 1000, "N": 512, "K": 512}
MACHINE = load_machine("8xH200")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "POINTS", 24)
    with settings.override(cache=tmp_path / "cache"):
        yield tmp_path / "cache"


def program_of(text: str = TEXT) -> Program:
    return compiler.parse(text).programs[0]


def search(program: Program, dims: dict[str, int] = DIMS, **options: Any) -> Suggestion | None:
    return found(program, ranks=2, dims=dims, machine=MACHINE, **options)


def test_what_is_found_is_safe_faster_and_remembered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = search(program_of())
    assert first is not None and first.seconds < first.built_in < 1.0 and first.schedule.name == "found"
    plan = compiler.plan(program_of(), first.schedule, ranks=2, dims=DIMS, dtype="bf16", target=MACHINE.processor)
    assert plan.tasks
    (record,) = Database(cache / "found.jsonl").records()
    monkeypatch.setattr(module, "rank", None)  # a further search would fail
    assert search(program_of()) == first
    assert search(program_of(), {**DIMS, "M": 700}) == first, "sizes of one class share what was found"
    assert str(first) == (
        f"found a schedule for product on 8xH200: {first.seconds * 1e6:.1f} us predicted, "
        f"{first.built_in * 1e6:.1f} us with the built-in one"
    )
    assert record.schedule == str(first.schedule)
    assert first.text == record.schedule.replace("schedule found for product", "schedule default for product")
    assert first.text.startswith("schedule default for product on sm_90:\n")


def test_all_find_the_same(tmp_path: Path) -> None:
    """Ranks of other hosts have other caches."""
    first = search(program_of())
    with settings.override(cache=tmp_path / "other"):
        assert search(program_of()) == first


def test_what_is_remembered_and_does_not_fit_is_searched_for_these_sizes(cache: Path) -> None:
    search(program_of())
    database = Database(cache / "found.jsonl")
    (record,) = database.records()
    database.store(replace(record, schedule="schedule found for product:\n    nobody tile(i=2)\n"))
    again = search(program_of(), {**DIMS, "M": 900})
    assert again is not None and again.schedule.name == "found"
    assert database.records()[-1].key.dims == "just {'M': 900, 'N': 512, 'K': 512}"


@thorough(unless=lambda changed: changed.get("evidence", [{}]) == [{}] or len(changed["evidence"]) == 2)
@pytest.mark.parametrize(
    "changed",
    [
        {"schedule": "no schedule"}, {"schedule": TEXT},
        *({"evidence": [one]} for one in ({}, {"built_in": None}, {"built_in": "1"}, {"built_in": -1.0}, {"us": 1.0})),
        {"evidence": [{"built_in": 1.0}, {"built_in": 1.0}]},
    ],
    ids=str,
)  # fmt: skip
def test_what_somebody_changed_to_no_record_is_searched_again(cache: Path, changed: dict[str, Any]) -> None:
    first = search(program_of())
    database = Database(cache / "found.jsonl")
    (record,) = database.records()
    database.store(replace(record, **changed))
    assert search(program_of()) == first
    assert database.records()[-1] == record and len(database.records()) == 3


def test_that_nothing_better_was_found_is_remembered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in schedule is the best of what is tried, or all that is tried is refused."""
    built_in, tried = Schedule(name="found", program="product"), module.rank
    for name, refused in {"the best": False, "refused": True}.items():

        def searched(*args: Any, refused: bool = refused, **options: Any) -> Any:
            result = tried(*args, **{**options, "declared": [built_in], "trials": 0})
            return replace(result, tried=()) if refused else result

        with settings.override(cache=cache / name):
            monkeypatch.setattr(module, "rank", searched)
            assert search(program_of()) is None
            monkeypatch.setattr(module, "rank", None)  # a further search would fail
            assert search(program_of()) is None


def test_nothing_is_searched_for_who_has_a_schedule_or_no_gpu_or_no_proof() -> None:
    own = compiler.parse(f"{TEXT}\nschedule mine for product:\n    multiply tile(i=32, j=64)\n").programs[0]
    assert search(own) is None
    assert search(program_of(), target="cpu") is None
    assert search(program_of(RACE), {"M": 64}) is None


def test_without_a_folder_it_is_searched_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with settings.override(cache=tmp_path / "file" / "cache"):
        assert search(program_of()) is not None


def test_each_knob_may_leave_a_schedule_as_it_is() -> None:
    """So the built-in schedule is a point."""
    program, plain = program_of(), Schedule(name="found", program="product")
    space = Space.of([program], dims=DIMS, ranks=2, target=target("sm_90"), declared=[plain])
    choices = [knob.labels.index("built in") if "built in" in knob.labels else 0 for knob in space.knobs[0]]
    assert space.schedule(Candidate(program=0, choices=tuple(choices))) == plain
    other = Space.of(
        [program], dims=DIMS, ranks=2, target=target("sm_90"), declared=[plain.tile("multiply", i=32, j=64)]
    )
    assert other.size < space.size


def test_descent_begins_at_the_seeds_and_tries_their_neighbours() -> None:
    program, plain = program_of(), Schedule(name="found", program="product")
    near = Space.of([program], dims=DIMS, ranks=2, target=MACHINE.processor, declared=[plain])
    way = near.schedule(near.seeds[0])
    result = rank([program], dims=DIMS, ranks=2, machine=MACHINE, declared=[way], by="descent", trials=8)
    seed = result.space.seeds[0]
    apart = [sum(a != b for a, b in zip(one.candidate.choices, seed.choices, strict=True)) for one in result.tried[:4]]
    assert apart[:2] == [0, 1] and 0 not in apart[1:], "a declared schedule that is a point is not rated again"


def test_the_commands_find_one_on_gpus_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "product.tl"
    path.write_text(TEXT)
    sizes = ["-n", "2", "--set", "M=1000", "N=512", "K=512"]

    monkeypatch.setattr(notices, "PATIENCE_S", 1e3)

    def said(*words: str) -> Any:
        return CliRunner().invoke(app, [words[0], str(path), *sizes, *words[1:]])

    done = said("simulate")
    line, *text = done.stderr.splitlines()
    assert line.startswith("found a schedule for product on 8xH200: ")
    assert line.endswith("(--schedule default); pasted into the file it takes the place of that:")
    assert text[0] == "schedule default for product on sm_90:"
    assert done.stdout.startswith("product with found on 2 ranks")
    values = json.loads(said("simulate", "--json").stdout)
    assert values["found"].splitlines() == text and values["schedule"] == "found"
    built_in = said("simulate", "-s", "default")
    assert built_in.stdout.startswith("product with default on 2 ranks") and "found" not in built_in.stderr
    checked = said("check", "--target", "sm_90", "--dtype", "bf16")
    assert ": default (" in checked.stdout and ", found (" in checked.stdout and checked.exit_code == 0
    assert "found" not in said("check").output
    path.write_text(TEXT + "\n" + "\n".join(text))
    pasted = said("simulate")
    assert "found" not in pasted.stderr and pasted.stdout == done.stdout.replace("with found on", "with default on")
    assert said("run", "-s", "default").exit_code == said("check").exit_code == 0


def test_what_is_pasted_is_taken_where_none_is_named() -> None:
    """By whoever compiles the program too, and so by an operator."""
    way = "schedule default for product on sm_90:\n    multiply tile(i=32, j=64)\n"
    pasted = compiler.parse(f"{TEXT}\n{way}").programs[0]
    for name in (None, "default"):
        assert str(compiler.schedule_of(pasted, name)) == way and compiler.schedule_of(program_of(), name) is None
    assert compiler.bound(pasted, ranks=2, dims=DIMS).stages["multiply"].tiles["i"] == 32
    assert op(pasted).schedule == way and op(program_of()).schedule == ""


def test_a_wrong_program_is_refused_as_without_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PATIENCE_S", 1e3)
    path = tmp_path / "race.tl"
    path.write_text(RACE)
    for words in (["simulate"], ["check", "--target", "sm_90"]):
        found_, built_in = (
            CliRunner().invoke(app, [words[0], str(path), "-n", "2", *words[1:], *more])
            for more in ([], ["-s", "default"])
        )
        assert found_.exit_code == 1 and found_.stderr == built_in.stderr and "x" in found_.stderr


def test_a_run_on_gpus_hands_its_ranks_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilelink.cli import gpus

    asked: list[dict[str, Any]] = []

    def answer(request: dict[str, Any], *_: Any) -> dict[str, Any]:
        asked.append(request)
        return {"errors": {"y": 0.0}, "odd": {}, "rounding_error": 0.0, "seconds": 1.0, "launches": [0.0]}

    monkeypatch.setattr(gpus, "machine_here", lambda _: MACHINE)
    monkeypatch.setattr(gpus, "on_gpus", answer)
    path = tmp_path / "product.tl"
    path.write_text(TEXT)
    done = CliRunner().invoke(app, ["run", str(path), "-n", "2", "--device", "cuda", "--dtype", "bf16"])
    assert done.exit_code == 0, done.output
    assert compiler.parse(asked[0]["found"]).schedules[0].program == "product"
    CliRunner().invoke(app, ["run", str(path), "-n", "2", "--device", "cuda", "-s", "default"])
    assert "found" not in asked[1]


def test_the_machine_of_a_target_is_the_fastest_one() -> None:
    names = [one and one.name for one in map(machine_with, ("sm_90", "sm_80", "gfx942", "cpu"))]
    assert names == ["8xH200", "8xA100", None, None]
