"""Programs compiled ahead: the pool and its end, what ranks share, and what measuring does with it."""

import json
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from typer.testing import CliRunner

from tests.odd_files import FOREIGN, ODD, room_for
from tests.tiers import thorough
from tilelink import compiler, generated, settings
from tilelink.cli import app, gpus, tune
from tilelink.errors import DeadlineError, OutputError
from tilelink.target import target
from tilelink.tuning import measure, prepare
from tilelink.tuning.prepare import DIED, LATE, Point, kept, program_of

ROOT = Path(__file__).parents[2]
MODULE = compiler.load("all_gather")
DIMS = {"Ms": 16, "K": 64}


def point(name: str = "h200", **more: Any) -> Point:
    program = MODULE.program()
    options: dict[str, Any] = {"dims": DIMS, "dtype": "bf16", "ranks": 2, "target": target("sm_90"), **more}
    return Point(program=program, schedule=MODULE.schedule(name, program), **options)


# The pool ----------------------------------------------------------------------------------------------------

SCRIPT = """
import json, sys
from pathlib import Path
from tilelink import compiler
from tilelink.target import target
from tilelink.tuning.prepare import Point, prepare, prepare_all, program_of

if __name__ == "__main__":
    module = compiler.load("ag_gemm")
    program = module.program()
    options = {"dims": {"Ms": 16, "N": 48, "K": 64}, "dtype": "bf16", "ranks": 2, "target": target("sm_90")}
    one = Point(program=program, schedule=module.schedule("h200", program), **options)
    (wrong,) = compiler.parse(f"{program}\\nschedule no for ag_gemm:\\n    nothing on sm\\n").schedules
    reasons = prepare_all([one, Point(program=program, schedule=wrong, **options)], workers=1, seconds=60)
    found = one.file.is_file() and program_of(one)
    cubins = lambda: sorted(p.parent.name + p.name for p in Path(sys.argv[1]).rglob("*.cubin"))
    before = cubins()
    prepare(one)  # another process, with arguments of its own, finds everything
    again = cubins() == before
    one.file.write_bytes(b"half")
    made = program_of(one)
    same = [found.source, found.kernels, found.lag] == [made.source, made.kernels, made.lag]
    print(json.dumps([reasons, same, again, before]))
"""


@pytest.mark.slow
def test_a_pool_compiles_all_that_ranks_launch(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SCRIPT)
    variables = {**os.environ, "TILELINK_CACHE": str(tmp_path / "tl"), "TRITON_CACHE_DIR": str(tmp_path / "tr")}
    variables = {k: v for k, v in variables.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "one.py"), str(tmp_path / "tr")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    reasons, same, again, cubins = json.loads(done.stdout.splitlines()[-1])
    assert reasons[0] == "" and "nothing" in reasons[1] and same and again
    kinds = {kind: sum(c.endswith(f"{kind}.cubin") for c in cubins) for kind in ("gemm", "open_launch", "close_launch")}
    assert kinds == {"gemm": 2, "open_launch": 2, "close_launch": 4}  # without and with a deadline; captured or not


def test_what_is_prepared_for_something_else_is_not_found() -> None:
    points = [
        point(), point("direct"), point(ranks=4), point(dtype="f16"), point(deadlines=(False,)),
        point(dims={"Ms": 32, "K": 64}), point(target=replace(target("sm_90"), sms=100)),
        point(trace=True),
    ]  # fmt: skip
    assert len({one.file for one in points}) == len(points) and point().file == points[0].file


# What is kept ------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path) -> Generator[Path]:
    (tmp_path / "cache").mkdir()
    with settings.environment(TILELINK_CACHE=str(tmp_path / "cache")):
        yield tmp_path / "cache"


class Evil:
    """Makes a folder in the process that unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.usefixtures("cache")
def test_nothing_in_the_cache_folder_is_unpickled(tmp_path: Path) -> None:
    point().file.parent.mkdir()
    for suffix in (".json", ".pickle"):
        point().file.with_suffix(suffix).write_bytes(pickle.dumps(Evil(tmp_path / "made")))
    made = program_of(point())
    assert made.launched and not (tmp_path / "made").exists()


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", ["h200", "direct", "pull", "h200_bulk"])
def test_what_is_kept_comes_back_equal(name: str) -> None:
    made = program_of(point(name))
    assert kept(point(name)) is None
    prepare._keep(point(name), made)
    again = kept(point(name))
    assert again is not None and (again.source, again.kernels) == (made.source, made.kernels)
    assert again.to_json() == made.to_json() and again.fingerprint == made.fingerprint
    generated.file_of(made.source).unlink()
    assert kept(point(name)) is None


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("kind", FOREIGN)
def test_what_others_may_have_kept_is_passed_over_with_a_word(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    made = program_of(point())
    prepare._keep(point(), made)
    make, said = FOREIGN[kind]
    make(point().file)
    assert kept(point()) is None and said in caplog.text and str(point().file) in caplog.text
    assert program_of(point()).to_json() == made.to_json()


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("lag",), "1", "lag of .* is '1', not a whole number"),
        (("lag",), True, "lag of .* is True, not a whole number"),
        (("kernels",), 5, "kernels of .* is 5, not a list"),
        (("copy_programs", 0), [], r"0 of copy_programs of .* is \[\], not an object"),
        (("tensors", 0, "shape"), [1.5], "is 1.5, not a whole number"),
        (("copy_programs", 0, "notifies"), [["y"]], r"is \['y'\], not a list of 2"),
        (("grids", 0, "thresholds", "shape"), [7], "not a shape of"),
        (("more",), 1, "has a 'more', which is no field of it"),
        (("copy_programs", 0, "notifies"), [["q", "tile"]], "names the signal .* which there is not"),
        (("grids", 0, "base"), 10**6, "lie outside of the pad"),
        (("source",), "../../evil.py", None),
    ],
)
def test_each_field_of_what_is_kept_is_checked(
    where: tuple[str | int, ...], value: Any, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    prepare._keep(point(), program_of(point()))
    raw = json.loads(point().file.read_text())
    inner = raw["artifact"]
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = value
    point().file.write_text(json.dumps(raw))
    assert kept(point()) is None
    assert said is None or re.search(said, caplog.text)


@pytest.mark.usefixtures("cache")
def test_a_disk_that_fills_at_any_byte_keeps_nothing() -> None:
    made = program_of(point())
    prepare._keep(point(), made)
    size = point().file.stat().st_size
    point().file.unlink()
    for room in (*range(0, size, 97), size - 1):
        with room_for(room), pytest.raises(OutputError, match="cannot be written"):
            prepare._keep(point(), made)
        assert list(point().file.parent.iterdir()) == [] and kept(point()) is None
    prepare._keep(point(), made)
    assert kept(point()) is not None


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("kind", ODD)
def test_what_lies_in_the_place_of_what_is_kept_is_not_waited_for(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    point().file.parent.mkdir()
    ODD[kind](point().file)
    made = program_of(point())
    if kind != "a loop of links":
        assert "cannot be read" in caplog.text or "not used" in caplog.text
    if kind == "a folder":
        with pytest.raises(OutputError) as caught:
            prepare._keep(point(), made)
        assert caught.value.hint == "remove it: it is a folder"
    else:
        prepare._keep(point(), made)
        assert kept(point()) is not None


# The end of the pool -----------------------------------------------------------------------------------------


class Stuck:
    """Takes the process that unpickles it a minute."""

    def __reduce__(self) -> tuple[Any, ...]:
        return time.sleep, (60,)


def test_a_pool_that_is_late_is_ended() -> None:
    begin = time.monotonic()
    reasons = prepare.prepare_all([Stuck(), point()], workers=1, seconds=1.0)  # type: ignore[list-item]
    assert reasons == [LATE, LATE] and time.monotonic() - begin < 10
    _until(lambda: not multiprocessing.active_children(), 3.0)  # before they would end themselves
    assert prepare.prepare_all([point()], workers=1, seconds=0.0) == [LATE]


class Dying:
    """Ends the process that unpickles it, as a system that is out of memory does."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (9,)


def test_a_process_that_dies_takes_no_other_point_with_it() -> None:
    """The first pool dies of it, with two processes, and the second too, with one: the third prepares what is left."""
    good = [point(ranks=9), point(ranks=10)]
    reasons = prepare.prepare_all([Dying(), *good], workers=2, seconds=120)  # type: ignore[list-item]
    assert reasons == [DIED, "", ""] and all(kept(one) is not None for one in good)


def _until(true: Any, seconds: float = 20.0) -> None:
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < seconds
        time.sleep(0.05)


ABANDONED = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from tilelink.tuning.prepare import _expire

late, idle = (ProcessPoolExecutor(1, get_context("spawn"), _expire, (seconds,)) for seconds in (0.1, 60.0))
ended = late.submit(time.sleep, 60)
pid = idle.submit(os.getpid).result(60)
print(type(ended.exception(60)).__name__, pid, flush=True)
os._exit(0)
"""


def test_processes_of_a_pool_end_with_it_or_at_their_deadline() -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", ABANDONED], env=variables, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        ended, pid = rank.stdout.readline().split()
    assert ended == "BrokenProcessPool"
    _until(lambda: not _alive(int(pid)))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Ranks -------------------------------------------------------------------------------------------------------


class Meeting:
    """torch.distributed for ranks that are threads."""

    def __init__(self, hosts: list[str]) -> None:
        self.hosts, self.barrier, self.slots = hosts, threading.Barrier(len(hosts)), [None] * len(hosts)

    def all_gather_object(self, every: list[Any], own: Any, group: Any) -> None:
        self.slots[group.rank] = own
        self.barrier.wait(20)
        every[:] = self.slots
        self.barrier.wait(20)


def test_ranks_of_a_host_share_the_work_and_all_learn_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(["a", "a", "b", "a"])
    own = threading.local()
    asked: dict[int, list[Point]] = {}
    points = [point(ranks=count) for count in range(2, 8)]
    prepare._keep(points[4], program_of(points[4]))

    def prepare_all(mine: list[Point], *, workers: int, seconds: float) -> list[str]:
        assert workers >= 1 and seconds == 7.0
        asked[own.rank] = mine
        return ["too big" if one.ranks == 5 else "" for one in mine]

    monkeypatch.setattr("torch.distributed.all_gather_object", meeting.all_gather_object)
    monkeypatch.setattr("torch.distributed.get_rank", lambda group: group.rank)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: len(meeting.hosts))
    monkeypatch.setattr("socket.gethostname", lambda: meeting.hosts[own.rank])
    monkeypatch.setattr(prepare, "prepare_all", prepare_all)
    found: dict[int, list[str]] = {}

    def rank(number: int) -> None:
        own.rank = number
        group: Any = SimpleNamespace(rank=number)
        found[number] = prepare.prepare_shares(points, group, seconds=7.0)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(meeting.hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    points[4].file.unlink()
    numbers = {rank: [points.index(one) for one in mine] for rank, mine in asked.items()}
    assert numbers == {0: [0, 3], 1: [1, 5], 3: [2], 2: [0, 1, 2, 3, 5]}
    assert list(found.values()) == [["", "", "", "too big", "", ""]] * 4


class Kernel:
    """Stands for what a GPU rank runs; kernels on SMs outlive their deadline."""

    made: ClassVar[list[tuple[str, float | None]]] = []
    alive: ClassVar[weakref.WeakSet["Kernel"]] = weakref.WeakSet()

    def __init__(self, program: Any, group: Any, deadline_s: float | None) -> None:
        self.late = bool(program.kernels)
        self.deadline_s = deadline_s
        self.alive.add(self)
        self.made.append((program.source, deadline_s))

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self.late:
            raise DeadlineError("a wait was late")
        return {"y": inputs["x"]}


def test_candidates_are_planned_once_and_first_run_with_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[str] = []
    trying: list[int] = []
    plan = compiler.plan

    def worst(reason: str, group: Any) -> str:
        trying.append(sum(kernel.deadline_s is not None for kernel in Kernel.alive))
        return reason

    monkeypatch.setattr(compiler, "plan", lambda p, s, **options: plans.append(s.name) or plan(p, s, **options))
    monkeypatch.setattr(Kernel, "made", [])
    monkeypatch.setattr(measure, "GpuKernel", Kernel)
    monkeypatch.setattr(measure, "current_target", lambda: target("sm_90"))
    monkeypatch.setattr(measure, "_worst", worst)
    monkeypatch.setattr(measure, "_agreed", lambda results, group: set(results))
    monkeypatch.setattr(measure, "_timed", lambda runs, inputs, group: dict.fromkeys(runs, 2e-6))
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
    program = MODULE.program()
    (unknown,) = compiler.parse(f"{program}\nschedule no for all_gather:\n    nothing on sm\n").schedules
    candidates = [(program, MODULE.schedule(name, program)) for name in ("direct", "pull")] + [(program, unknown)]
    group: Any = None
    found = measure.measure(candidates, {"x": torch.zeros(16, 64)}, dims=DIMS, dtype="bf16", group=group)
    assert [one.seconds for one in found] == [2e-6, None, None] and plans == ["direct", "pull", "no"]
    assert [one.reason for one in found[:2]] == ["", "DeadlineError: a wait was late"]
    assert found[2].reason.startswith("ScheduleError:") and "nothing" in found[2].reason
    assert trying == [0, 1, 0, 1, 0]  # what is tried lives until all have met, and no longer
    first, again, late = Kernel.made
    assert first[0] == again[0] != late[0] and [first[1], again[1], late[1]] == [5.0, None, 5.0]


# The command -------------------------------------------------------------------------------------------------


def answered(request: Mapping[str, Any], ranks: int, **options: Any) -> dict[str, Any]:
    """What ranks would answer: the candidate that is predicted to be the second takes the least time."""
    times = [3e-5, 2e-5, *(4e-5 for _ in request["candidates"][2:])]
    return {
        "measured": [{"label": "", "seconds": us, "reason": ""} for us in times],
        "unprepared": ["", LATE, *("" for _ in times[2:])], "unfused": 5e-5,
        "seconds": {"preparation": 0.25, "measuring": 1.0}, "gpu": "g", "versions": "v",
    }  # fmt: skip


@thorough(unless=lambda as_json: as_json)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_predicted_to_be_far_slower_is_not_measured(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    asked: list[tuple[Any, Any]] = []
    monkeypatch.setattr(gpus, "require_gpus", lambda *_, **__: None)
    monkeypatch.setattr(
        gpus, "on_gpus",
        lambda request, ranks, **options: asked.append((request, options)) or answered(request, ranks),
    )  # fmt: skip
    command = ["tune", "gemm_rs", "-p", "gemm_rs_slots", "-n", "2", "--shape", "256,512,512", "--trials", "32"]
    command += ["--top", "2", "--measure", "--compile-budget", "7", *(["--json"] if as_json else [])]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "250"})
    assert done.exit_code == 0, done.output
    ((request, options),) = asked
    assert request["compile_budget"] == 7 and options["work_s"] > 7
    chosen = [(one["program"], one["schedule"]) for one in request["candidates"]]
    if not as_json:
        assert "measured us" in done.stdout and tune.NOT_MEASURED in done.stdout
        assert f"measuring {len(chosen)} candidates" in done.stderr and "3 times slower" in done.stderr
        return
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    lines = answer["candidates"]
    left = [one for one in lines if (one["program"], one["schedule"]) not in chosen]
    limit = 3 * lines[0]["predicted_us"]
    assert left == [one for one in lines if one["origin"] == "declared" and one["predicted_us"] > limit] and left
    assert all(one["measured_us"] is None and one["dropped"] == tune.NOT_MEASURED for one in left)
    assert answer["best"]["measured_us"] == pytest.approx(20) == lines[1]["measured_us"]
    assert lines[1]["unprepared"] == LATE and {one["origin"] for one in lines} == {"found", "declared"}
    seconds = answer["seconds"]
    assert list(seconds) == ["search", "preparation", "measuring"] and seconds["preparation"] == 0.25


def test_points_of_the_search_are_measured_whatever_is_predicted() -> None:
    lines = [{"origin": "found", "predicted_us": us} for us in (1.0, 9.0)]
    lines += [{"origin": "declared", "predicted_us": us} for us in (3.0, 3.1)]
    assert tune.worth_measuring(lines) == lines[:3]


def test_ranks_that_take_too_long_are_ended(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        gpus._ended(["sh", "-c", 'echo $$ > "$0"; exec sleep 60', str(file)], 1.5)
    assert time.monotonic() - begin < 15 and not _alive(int(file.read_text()))
