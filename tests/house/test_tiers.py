"""The default run leaves out thorough tests, says so, and `--thorough` and ids bring them back."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import cost
from tests.tiers import one_in

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

from tests.tiers import thorough


@thorough(unless=lambda a, b: a == b)
@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize("b", [1, 2])
def test_pairs(a, b):
    pass


@pytest.mark.thorough
def test_whole():
    pass


@pytest.mark.parametrize("a", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_one(a):
    pass


class TestClass:
    @thorough(unless=lambda a: False)
    @pytest.mark.parametrize("a", [1, 2])
    def test_none_kept(self, a):
        pass
"""
DEFAULT = {"test_pairs[1-1]", "test_pairs[2-2]", "test_one[1]", "test_none_kept[1]", "test_none_kept[2]"}
OTHERS = {"test_pairs[1-2]", "test_pairs[2-1]", "test_one[2]", "test_whole"}


BUSY = """
import subprocess
import sys
import time

USE = "import time\\nwhile time.process_time() < 1: pass\\nprint(flush=True)\\ninput()"
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}


def test_busy():
    subprocess.Popen([sys.executable, "-c", USE], **PIPES).stdout.readline()
"""
COMMAND = (
    *(sys.executable, "-m", "pytest", "-p", "tests.conftest"),
    *("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."),
)


def variables() -> dict[str, str]:
    """The environment of a run within this one."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTEST_XDIST_WORKER", "CI")}
    return {**kept, "PYTHONPATH": str(ROOT)}


def ran(folder: Path, *arguments: str) -> tuple[set[str], str]:
    """The tests that a run of these has passed, and its last lines."""
    (folder / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [*COMMAND, "-rA", *arguments], cwd=folder, env=variables(), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"^PASSED .*::(\S+)", done.stdout, re.M)), done.stdout


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "worker"])
def test_thorough_tests_are_left_out_and_a_line_says_so(workers: list[str], tmp_path: Path) -> None:
    found, said = ran(tmp_path, *workers)
    assert found == DEFAULT
    assert "\n4 thorough tests were left out: --thorough runs them too\n" in said and "skipped" not in said
    assert re.search(r"^\d+ CPU s$", said, re.M)


def test_they_are_run_if_they_are_asked_for(tmp_path: Path) -> None:
    found, said = ran(tmp_path, "--thorough")
    assert found == DEFAULT | OTHERS and "left out" not in said


def test_what_is_named_is_run_whole(tmp_path: Path) -> None:
    found, said = ran(tmp_path, "test_it.py::test_pairs", "test_it.py::test_one[2]", "test_it.py::test_whole")
    assert found == {one for one in DEFAULT | OTHERS if "pairs" in one} | {"test_one[2]", "test_whole"}
    assert "left out" not in said


def test_processes_that_a_test_starts_are_part_of_its_cost() -> None:
    """Those that run, that have ended, and that others have started."""
    busy = "import time\nwhile time.process_time() < 0.5: pass\n"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}]); print(flush=True); input()"
    before = cost.cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        assert cost.cpu_seconds() - before > 0.45
        started.communicate(b"\n")
    assert cost.cpu_seconds() - before > 0.45


@pytest.mark.parametrize(("whole", "total", "dear", "said"), [
    (True, 100, 1, []), (False, 10_000, 1, []), (True, 10_000, 1, ["the tests took 10000 CPU s"]),
    (False, 100, 50, ["a.py::test_a took 50 CPU s"]),
])  # fmt: skip
def test_what_costs_too_much_is_named(whole: bool, total: float, dear: float, said: list[str]) -> None:
    found = [*cost.exceeded(total, cost.dearest({"a.py::test_b": 0.5, "a.py::test_a": dear}), whole)]
    assert len(found) == len(said) and all(one.startswith(start) for one, start in zip(found, said, strict=True))
    assert all("a.py::test_a" in one for one in found)


@pytest.mark.parametrize(("whole", "times", "dear", "fails"), [
    (True, 1.5, 39, False), (True, 1.7, 1, True), (False, 1.7, 1, False), (False, 0.1, 41, True),
])  # fmt: skip
def test_a_run_fails_for_what_no_difference_of_processors_explains(
    whole: bool, times: float, dear: float, fails: bool
) -> None:
    assert cost.fails(times * cost.BUDGET_S, {"a": 1.0, "b": dear}, whole) == fails


def test_a_processor_is_as_slow_as_another_measurement_says() -> None:
    """Of the loop alone: other processes of the machine take time, not CPU seconds of this one."""
    before = time.thread_time()
    found = min(cost.slowness() for _ in range(5))
    assert 0.0 < 5 * found * cost.LOOP_S <= time.thread_time() - before


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "worker"])
def test_seconds_are_divided_by_how_slow_the_processor_is(workers: list[str], tmp_path: Path) -> None:
    """Once, whoever measures it, and with what a test leaves alone: a second counts as a hundred."""
    (tmp_path / "conftest.py").write_text("from tests import cost\ncost.slowness = lambda: 0.01\n")
    (tmp_path / "test_it.py").write_text(BUSY)
    command = [*COMMAND, *workers, "--costs", "1"]
    done = subprocess.run(command, cwd=tmp_path, env=variables(), capture_output=True, text=True, timeout=100)
    (seconds,) = re.findall(r"^the tests that took most CPU s:\n +([0-9.]+)  test_it.py::test_busy$", done.stdout, re.M)
    (total,) = re.findall(r"^(\d+) CPU s$", done.stdout, re.M)
    assert 80 < float(seconds) < float(total) < 1000, done.stdout


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("arguments", [[], ["-k", "pairs"]])
def test_a_whole_run_says_what_is_too_much(continuous: bool, arguments: list[str], tmp_path: Path) -> None:
    """And fails where CI=true. Others do not: who works on something may run what he likes."""
    (tmp_path / "conftest.py").write_text("from tests import cost\ncost.BUDGET_S, cost.GPUS = 0.0, False\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    command, environment = [*COMMAND, *arguments], variables() | ({"CI": "true"} if continuous else {})
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == int(continuous and not arguments), done.stdout + done.stderr
    assert ("a default run may take 0" in done.stdout) == (not arguments)


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "worker"])
def test_a_thorough_test_that_is_named_may_take_what_it_takes(workers: list[str], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests import cost\ncost.LIMIT_S = -1.0\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [*COMMAND, *workers, "test_it.py::test_whole", "test_it.py::test_one", "test_it.py::TestClass"]
    done = subprocess.run(command, cwd=tmp_path, env=variables(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "5 passed" in done.stdout, done.stdout + done.stderr
    assert set(re.findall(r"^test_it.py::(\S+) took", done.stdout, re.M)) == {"test_one[1]"}


WHOLE = {"tests/compiler/test_odd_callers.py": "tests/compiler/test_fork_server.py"}
"""Files that are thorough as a whole, and the one whose tests of the default tier prove the same for ordinary cases."""


SCRIPTS = {
    "tests/unit/test_search_quality.py": {"test_points_come_from_all_sources_and_the_searchs_are_first",
                                          "test_choices_made_again_are_looked_up_by_their_kernels"},
    "tests/unit/test_agreement.py": {"test_points_are_declared_best_and_by_chance",
                                     "test_a_run_measures_every_point_and_records_failures"},
    "tests/unit/test_experts_benchmark.py": {"test_a_run_measures_unfused_layers_and_their_gradients"},
    "tests/gpu/test_campaign.py": {"test_callers_meet_every_manner_of_launch",
                                   "test_without_gpus_a_scenario_is_an_outcome_too",
                                   "test_an_error_that_is_no_failed_check_ends_the_scenario"},
    "tests/verifier/test_mutation.py": {"test_a_program_is_left_out_only_if_the_machine_finds_fault_with_it"},
}  # fmt: skip
"""Functions that are thorough: whole runs of benchmark scripts and of drivers of tests, whose parts the others of the
file test, and which cases campaigns need."""
MARKED = re.compile(r"^\s*@pytest\.mark\.thorough\n(?:@.*\n)*def (\w+)", re.M)


def test_every_other_function_has_a_case_in_the_default_tier() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    assert {file for file, text in texts.items() if re.search(r"^pytestmark = .*\bthorough\b", text, re.M)} == {*WHOLE}
    assert {file: set(found) for file, text in texts.items() if (found := MARKED.findall(text))} == SCRIPTS
    marks = {file: len(re.findall(r"^\s*@pytest\.mark\.thorough\b", text, re.M)) for file, text in texts.items()}
    assert {file: count for file, count in marks.items() if count} == {
        file: len(names) for file, names in SCRIPTS.items()
    }
    assert WHOLE.keys() | set(WHOLE.values()) <= texts.keys()


def test_names_alone_choose() -> None:
    """Whatever other names there are: a further program of the library moves no other one."""
    taken = [name for name in ("all_gather", "ag_gemm", "gemm_rs", "m2n", "fsdp", "all_reduce") if one_in(3, name)]
    assert taken == ["fsdp", "all_reduce"]
    assert sum(one_in(4, number) for number in range(1000)) in range(200, 300)
