"""The command line."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from tests.odd_files import ODD
from tests.tiers import thorough
from tilelink import cli, compiler
from tilelink.cli import app, doctor
from tilelink.reference import trial
from tilelink.reference.run import Outputs
from tilelink.runtime.job import RunResult

TEXT = """
program twice(M, N):
    x : in  [M, N]
    y : out [M, N]

    compute double(i: M, j: N):
        y[i, j] = x[i, j] + x[i, j]

schedule small for twice:
    double tile(i=16, j=32)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "twice.tl"
    path.write_text(TEXT)
    return str(path)


def tilelink(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def test_check_says_one_line(file: str) -> None:
    done = tilelink("check", file, "--ranks", "2", "--set", "M=33")
    assert done.exit_code == 0
    assert done.stdout == "twice: safe on 2 ranks (cpu, bf16), M=33, N=96: default (4 tiles), small (18 tiles)\n"


@thorough(unless=lambda command: command in ("check", "simulate"))
@pytest.mark.parametrize("command", ["check", "simulate", "run", "tune"])
def test_the_last_dimension_of_a_grid_is_a_node(command: str) -> None:
    plain = [command, "two_level_all_gather", "-n", "6", "--set", "Ms=16", "--set", "K=16"]
    plain += ["--trials", "2"] if command == "tune" else []
    said = tilelink(*plain, "--nodes", "2")
    assert said.exit_code == 0 and "g=3" in said.output and "ranks of a node" not in said.output
    other = tilelink(*plain, "--nodes", "2", "--set", "g=2")
    assert other.exit_code == 0 and "g=2 is not the 3 ranks of a node: --set g=3" in other.stderr
    assert "g=1" in tilelink(*plain).output


def test_check_as_json(file: str) -> None:
    report = json.loads(tilelink("check", file, "--schedule", "small", "--json").stdout)
    assert report["ok"] is True
    assert report["programs"][0]["tasks"].keys() == {"small"}


def test_check_refuses_what_is_unsafe(tmp_path: Path) -> None:
    path = tmp_path / "wrong.tl"
    path.write_text(TEXT.replace("y[i, j] = x[i, j] + x[i, j]", "if i != 0:\n            y[i, j] = x[i, j]"))
    done = tilelink("check", str(path), "--schedule", "default")
    assert done.exit_code == 1
    assert "Error: " in done.stderr
    assert "wrong.tl:" in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("check", "no_such_thing"), "UnknownNameError"),
        (("check", "agg_gemm"), "did you mean ag_gemm"),
        (("check", "tests"), "tests is a folder"),
        (("check", "examples/01_neighbour_sum.py"), "is Python, not a text of programs"),
        (("check", "FILE", "--set", "M=1e20"), "below 2**31"),
        (("check", "FILE", "--set", "M=200000000"), "a plan holds 8,388,608 tiles"),
        (("check", "FILE", "--set", "M"), "--set M sets nothing"),
        (("check", "FILE", "--set", "M=yes"), "true or false for a bool"),
        (("check", "FILE", "--set", "Q=3"), "no parameter 'Q'"),
        (("check", "FILE", "--program", "thrice"), "no program 'thrice'"),
        (("check", "FILE", "--target", "sm_1"), "UnknownTargetError"),
        (("run", "FILE", "--schedule", "large"), "no schedule 'large'"),
        (("run", "FILE", "--device", "cuda", "--ranks", "99"), "99 ranks need 99 GPUs"),
        (("show", "FILE", "--stage", "ptx", "--target", "cpu"), "interpreted on the CPU"),
    ],
)
def test_mistakes_have_designed_errors(args: tuple[str, ...], says: str, file: str) -> None:
    done = tilelink(*(file if arg == "FILE" else arg for arg in args))
    assert done.exit_code == 1
    assert says in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.output


def test_a_syntax_error_has_its_place(tmp_path: Path) -> None:
    path = tmp_path / "odd.tl"
    path.write_text("program p(M):\n    x :: in [M]\n")
    done = tilelink("check", str(path))
    assert done.exit_code == 1
    assert "odd.tl:2:" in done.stderr
    assert "^" in done.stderr


def test_errors_as_json() -> None:
    done = tilelink("run", "no_such_thing", "--json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    (mistake,) = report["mistakes"]
    assert (report["ok"], mistake["error"], mistake["location"]) == (False, "UnknownNameError", None)
    assert mistake["message"] == "no file 'no_such_thing'" and mistake["hint"].startswith("write a path")
    assert mistake["text"].startswith("UnknownNameError: no file")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TEXT.replace("double tile(i=16, j=32)", "double on copy_engine"), "the copy engine cannot compute"),
        (
            TEXT.replace("x : in  [M, N]", "x : in  [M, N] f16")
            .replace("x[i, j] + x[i, j]", "x[i, j]")
            .replace("double tile(i=16, j=32)", "double on copy_engine"),
            "the copy engine cannot turn f16 into bf16",
        ),
        (TEXT.replace("double(i: M", "double(pid: M").replace("[i, j]", "[pid, j]").replace("i=16", "pid=16"), "'pid'"),
    ],
)
def test_check_refuses_what_no_kernel_can_be_generated_for(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.tl"
    path.write_text(text)
    done = tilelink("check", str(path), "--schedule", "small")
    assert done.exit_code == 1
    assert says in done.stderr
    assert "wrong.tl:" in done.stderr


def test_a_called_module_says_itself_what_its_functions_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = "import triton\nimport triton.language as tl\nimport tilelink\n"
    functions += "\n@triton.jit\ndef add_one(a):\n    return a + 1.0\n"
    meaning = "\ntilelink.reference.oracle('functions_with_meaning.add_one', lambda a: a + 1.0)\n"
    (tmp_path / "functions_with_meaning.py").write_text(functions + meaning)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "called.tl"
    path.write_text(TEXT.replace("x[i, j] + x[i, j]", "call functions_with_meaning.add_one(x[i, j])"))
    done = tilelink("run", str(path), "--ranks", "2", "--set", "M=5", "N=3")
    assert done.exit_code == 0, done.output


def test_show_program_and_schedule_are_the_language(file: str) -> None:
    program = tilelink("show", file).stdout
    assert compiler.parse(program).program() == compiler.load(file).program()
    schedule = tilelink("show", file, "--stage", "schedule", "--schedule", "small").stdout
    assert schedule.startswith("schedule small for twice:\n")


def test_show_plan(file: str) -> None:
    shown = tilelink("show", file, "--stage", "plan", "--ranks", "2").stdout
    assert "double" in shown
    assert "8 tiles, 0 notifies, 0 waits, 0 transfers of 0 elements on 2 ranks" in shown


def test_show_source(file: str) -> None:
    shown = tilelink("show", file, "--stage", "source", "--dialect", "triton").stdout
    compile(shown, "source", "exec")
    assert "@triton.jit" in shown


def test_show_ptx(file: str) -> None:
    shown = tilelink("show", file, "--stage", "ptx", "--target", "sm_90").stdout
    assert ".target sm_90" in shown
    kernel = r"// \w+: 128 threads of \d+ registers, [\d,]+ bytes of shared memory, compiled in [\d.]+ s\n//"
    assert re.search(kernel, shown) and "warning" not in shown


SPILLING = """
program two(M, N, K):
    x : in [M, K]
    w : in [N, K]
    v : in [N, K]
    y : out [M, N]

    compute mul(i: M, j: N):
        y[i, j] = silu(dot(x[i, :], w[j, :].T)) * dot(x[i, :], v[j, :].T)

schedule s for two:
    mul tile(i=128, j=256, k=64), num_warps 8, num_stages 3
"""


def test_show_ptx_warns_of_spilled_registers_and_names_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "two.tl").write_text(SPILLING)
    shown = tilelink("show", str(tmp_path / "two.tl"), "-n", "1", "--schedule", "s", "--stage", "ptx").stdout
    lines = shown.splitlines()[1:3]
    assert re.fullmatch(r"// warning: mul keeps \d+ bytes of a thread's registers in memory, which is slow", lines[0])
    assert "smaller tiles, more warps (num_warps 8), or warps with roles" in lines[1]


def test_tune_says_why_points_are_refused(tmp_path: Path) -> None:
    (tmp_path / "two.tl").write_text(SPILLING)
    sets = [part for name in "MNK" for part in ("--set", f"{name}=2048")]
    shown = tilelink("tune", str(tmp_path / "two.tl"), "-n", "1", *sets, "--trials", "12").stdout
    assert re.search(r"refused: .*\d+ registers", shown)
    assert re.search(r"\n  registers, the first: .*two.tl:\d+: the sums of products that a tile of stage mul", shown)


def test_run_compares_all_outputs(file: str) -> None:
    done = tilelink("run", file, "--ranks", "2", "--repeat", "3", "--seed", "5", "--set", "N=40")
    assert done.exit_code == 0, done.output
    said = "y: max |out-ref|/|ref| 0.00e+00 ok (twice with default on 2 ranks, 3 launches, bf16)"
    assert done.stdout.startswith(said)
    each = [line for line in done.stderr.splitlines() if line.startswith("launch ")]
    assert each == [f"launch {number} of 3: max |out-ref|/|ref| 0.00e+00" for number in (1, 2, 3)]


def test_run_compares_what_is_changed_in_place() -> None:
    done = tilelink("run", "kv_append", "--ranks", "2", "--repeat", "2")
    assert done.exit_code == 0, done.output
    assert {line.partition(":")[0] for line in done.stdout.splitlines() if " ok (" in line} == {"keys", "vals", "y"}


@pytest.mark.parametrize(
    ("args", "late"),
    [
        ((), (None, 0.0)), (("--seed", "3"), (3, 0.002)), (("--delay", "0.5"), (0, 0.5)),
        (("--seed", "3", "--delay", "0"), (3, 0.0)),
    ],
)  # fmt: skip
def test_a_delay_needs_no_seed(
    args: tuple[str, ...], late: tuple[int | None, float], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    run = compiler.Kernel.run

    def noted(self: compiler.Kernel, inputs: Any, **how: Any) -> RunResult:
        seen.append((how["seed"], how["max_delay_s"] if how["seed"] is not None else 0.0))
        how["max_delay_s"] = 0.0
        return run(self, inputs, **how)

    monkeypatch.setattr(compiler.Kernel, "run", noted)
    assert tilelink("run", file, "--ranks", "1", *args).exit_code == 0
    assert seen == [late]


@pytest.mark.parametrize("name", ["nowhere/out.json", "."])
def test_where_the_timeline_cannot_go_nothing_is_run(
    name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "compile", lambda *_, **__: pytest.fail("it was compiled"))
    done = tilelink("run", file, "--trace", str(tmp_path / name))
    assert done.exit_code == 1 and "cannot be written" in done.output, done.output


def test_run_as_json(file: str) -> None:
    done = tilelink("run", file, "--ranks", "1", "--dtype", "bf16", "--schedule", "small", "--json")
    report = json.loads(done.stdout)
    assert (report["ok"], report["errors"], report["dtype"], report["schedule"]) == (True, {"y": 0.0}, "bf16", "small")


def test_a_mismatch_is_reported_and_exits_with_1(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_: object, inputs: list[dict[str, torch.Tensor]], kept: object) -> list[Outputs]:
        return [Outputs({"y": own["x"]}, {}) for own in inputs]

    monkeypatch.setattr(compiler.Kernel, "reference", wrong)
    done = tilelink("run", file, "--ranks", "1")
    assert done.exit_code == 1
    assert "wrong, 3e-02 allowed" in done.stdout


def test_an_output_that_is_no_number_is_wrong(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "relative_error", lambda *_: float("inf"))
    done = tilelink("run", file, "--ranks", "1", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["errors"] == {"y": None}


def test_the_module_runs_as_a_process_and_in_a_pipe(file: str) -> None:
    command = f"{sys.executable} -m tilelink show {file} --stage source | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_a_library_program_by_its_name() -> None:
    done = tilelink("check", "ag_gemm", "--ranks", "4")
    assert done.exit_code == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("  ")]
    assert [line.partition(" on 4 ranks")[0] for line in lines] == [
        "ag_gemm: safe", "ag_gemm_in_place: safe", "ag_gemm_ring: safe",
    ]  # fmt: skip


def test_doctor_says_what_works() -> None:
    done = tilelink("doctor")
    assert done.exit_code == 0, done.output
    assert "works  CPU ranks: two ranks exchanged data" in done.stdout
    assert re.search(r"GPUs?( \d+)?: ", done.stdout)
    found = {one["name"]: one["good"] for one in json.loads(tilelink("doctor", "--json").stdout)}
    assert found["CPU ranks"] is True and found["torch"] is True


def test_doctor_says_what_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("no_such_package",))
    done = tilelink("doctor")
    assert done.exit_code == 1
    assert "FAILS  no_such_package: is not installed\n         pip install no_such_package" in done.stdout
    assert "CPU ranks" not in done.stdout


def test_doctor_goes_on_if_the_driver_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: True)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(doctor.subprocess, "run", never)
    said = {one.name: one for one in doctor._links(2)}
    assert said["peer access"].good
    assert said["links"].good is None and "did not answer in 30 s" in said["links"].detail


@thorough(unless=lambda command: command in ("check", "simulate"))
@pytest.mark.parametrize("command", ["check", "show --stage source", "show --stage plan", "simulate"])
def test_nothing_that_runs_no_tensor_imports_torch(command: str, file: str) -> None:
    """The import of torch alone takes longer than most answers."""
    assert imported_by(*command.split(), file, "--ranks", "2") & {"torch", "triton", "z3"} == set()


def test_a_check_on_cpu_ranks_imports_no_simulator() -> None:
    unused = ("tilelink.simulator", "tilelink.stragglers", "tilelink.diagnose", "tilelink.runtime")
    assert [one for one in imported_by("check", "add_norm", "--ranks", "2") if one.startswith(unused)] == []


def test_a_list_of_the_commands_imports_none_of_them() -> None:
    assert imported_by("--help") & {"torch", "numpy", "lark", "jinja2", "tilelink.compiler"} == set()


def imported_by(*args: str) -> set[str]:
    """Return the modules that a process has imported when a command has ended."""
    code = f"""
import sys
from tilelink.cli import app
app({list(args)!r}, standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_the_list_of_the_commands_says_of_each_what_its_page_says() -> None:
    for name, text in cli._COMMANDS.items():
        assert (getattr(importlib.import_module(f"tilelink.cli.{name}"), name).__doc__ or "").startswith(text), name


def test_a_file_that_cannot_be_read_is_named() -> None:
    done = tilelink("check", "/proc/self/mem")
    assert done.exit_code == 1
    assert done.stderr.startswith("ParseError: /proc/self/mem cannot be read: Input/output error\n  hint: see that")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_no_program(tmp_path: Path, kind: str) -> None:
    ODD[kind](tmp_path / "odd.tl")
    done = tilelink("check", str(tmp_path / "odd.tl"))
    assert done.exit_code == 1 and done.stderr.startswith("UnknownNameError: ")
    assert kind not in ("a folder", "a FIFO", "a socket") or f"odd.tl is {kind}\n" in done.stderr


@thorough(unless=lambda command: command.startswith("check"))
@pytest.mark.parametrize(
    ("command", "encoding", "more", "said"),
    [
        ("check", "utf-8", "junk", "did not expect 'junk' here"),
        ("check --json", "ascii", "# nothing", '"ok": true'),
        ("show --stage source -s small", "ascii", "", "@triton.jit"),
        ("run -s small", "utf-8", "", "small"),
    ],
)
def test_a_name_of_a_file_need_not_be_text(tmp_path: Path, command: str, encoding: str, more: str, said: str) -> None:
    file = os.fsencode(tmp_path) + b"/\xff\xc3\xa4.tl"
    with open(file, "w") as text:
        text.write(f"{TEXT}{more}\n")
    variables = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict", "PYTHONUTF8": "1"}
    words = [sys.executable, "-m", "tilelink", *command.split(), file, "-n", "2"]
    done = subprocess.run(words, env=variables, capture_output=True, timeout=120)
    assert done.returncode == (more == "junk") and b"Traceback" not in done.stderr
    assert said in (done.stdout + done.stderr).decode()


def test_one_set_takes_all_sizes_that_follow_it(file: str) -> None:
    for sizes in (["--set", "M=33", "N=40"], ["--set", "M=33", "--set", "N=40"]):
        for order in ([*sizes, file], [file, *sizes, "--ranks", "2"]):
            done = tilelink("check", *order)
            assert done.exit_code == 0 and ", M=33, N=40:" in done.stdout, done.output
    wrong = tilelink("check", file, "--set", "M=33", "--ranks", "2", "N=40")
    assert wrong.exit_code == 2 and "N=40" in wrong.stderr
