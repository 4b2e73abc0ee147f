"""What the command line chooses where nothing is said, and what it says of it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.cli.test_cli import TEXT
from tilelink import compiler
from tilelink.cli import app, notices
from tilelink.cli.options import dims_of

LAYERS = """\
program layers(L, M, H, D):
    x : in  [L, H, M, D]
    w : in  [H, D, D]
    y : out [L, H, M, D]

    compute heads(l: L, i: M, h: H, j: D):
        y[l, h, i, j] = dot(x[l, h, i, :], w[h, :, j])
"""

SCALED = """\
program scaled(M, s: f32):
    x : in  [M]
    y : out [M]

    compute times(i: M):
        y[i] = x[i] * s
"""


def tilelink(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "twice.tl"
    path.write_text(TEXT)
    return str(path)


# Schedules of several programs -------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> str:
    path = tmp_path / "two.tl"
    path.write_text(TEXT + TEXT.replace("twice", "again").replace("small", "large"))
    return str(path)


def test_a_schedule_called_default_has_the_place_of_the_built_in_one(tmp_path: Path) -> None:
    path = tmp_path / "own.tl"
    path.write_text(TEXT.replace("schedule small", "schedule default"))
    own = tilelink("check", str(path), "--ranks", "2", "--json").stdout
    named = tilelink("check", str(path), "--ranks", "2", "-s", "default", "--json").stdout
    assert json.loads(own) == json.loads(named)
    assert "the built-in schedule is taken" not in tilelink("simulate", str(path), "--ranks", "2").output
    assert json.loads(tilelink("run", str(path), "--ranks", "1", "--all", "--json").stdout)["runs"][1:] == []


def test_programs_without_the_schedule_are_skipped_with_a_word(two: str) -> None:
    done = tilelink("check", two, "--ranks", "2", "--schedule", "small")
    assert done.exit_code == 0, done.output
    assert "twice: safe on 2 ranks" in done.stdout and "again: safe" not in done.stdout
    assert "skipped, no schedule 'small' for again: again has large" in done.stdout
    report = json.loads(tilelink("check", two, "--ranks", "2", "--schedule", "small", "--json").stdout)
    assert report["ok"] and report["skipped"] == ["again"]


def test_a_schedule_that_no_program_has_is_refused(two: str) -> None:
    done = tilelink("check", two, "--schedule", "smal")
    assert done.exit_code == 1 and "no schedule 'smal' for twice, again" in done.stderr
    assert "did you mean small?" in done.stderr
    assert "twice has small; again has large" in tilelink("check", two, "--schedule", "xyz").stderr
    assert tilelink("check", two, "--program", "again", "--schedule", "small").exit_code == 1


# Sizes -------------------------------------------------------------------------------------------------------


def test_dimensions_that_only_count_are_small() -> None:
    program = compiler.parse(LAYERS).programs[0]
    dims = dims_of(program, None)
    assert dims["L"] <= 6 and dims["H"] <= 6 and (dims["M"], dims["D"]) == (80, 96)
    assert dims_of(program, ["L=9"], (1024, 512)) == {"L": 9, "M": 1024, "H": 2, "D": 512}


def test_sizes_and_what_was_chosen_of_them_are_said_first(file: str) -> None:
    for command in ("run", "simulate"):
        done = tilelink(command, file, "--ranks", "1", "--set", "M=40")
        first, second = done.stderr.splitlines()[:2]
        assert first.startswith("the built-in schedule is taken; twice has small: --schedule NAME takes one")
        assert "N chosen for you: --set N=" in second
        said = "twice with default on 1 ranks"
        if command == "run":
            assert second.startswith(f"{said}, M=40, N=") and second.endswith(" tiles")
        else:  # its result has the sizes
            assert said not in done.stderr and done.stdout.startswith(said) and ", M=40, N=" in done.stdout
        assert "chosen" not in tilelink(command, file, "--ranks", "1", "--set", "M=40", "--set", "N=4").stderr
        assert not tilelink(command, file, "--ranks", "1", "--set", "M=40", "--json").stderr


def test_a_value_is_printed_as_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "scaled.tl"
    path.write_text(SCALED)
    for command in ("check", "run", "simulate"):
        done = tilelink(command, str(path), "--ranks", "1", "--set", "M=40", "--set", "s=0.1")
        assert "M=40, s=0.1: " in done.output and "0.100" not in done.output


def test_a_bound_of_nanoseconds_is_not_printed_as_zero(tmp_path: Path) -> None:
    path = tmp_path / "scaled.tl"
    path.write_text(SCALED)
    done = tilelink("simulate", str(path), "--ranks", "1", "--set", "M=4000")
    line = next(line for line in done.stdout.splitlines() if line.startswith("bound "))
    assert 0.0 < float(line.split()[1]) < 0.1 and line.endswith("transfer 0.0)")


def test_a_long_run_says_what_it_does_and_how_long_that_takes(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PATIENCE_S", 0.0)
    done = tilelink("run", file, "--ranks", "1", "--set", "M=160")
    assert "still running (" in done.stderr and "--set gives smaller sizes" in done.stderr
    assert "still planning and simulating (" in tilelink("simulate", file, "--ranks", "2", "--set", "M=4096").stderr


def test_a_long_search_says_how_to_do_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PATIENCE_S", 0.0)
    path = tmp_path / "scaled.tl"
    path.write_text(SCALED)
    said = tilelink("simulate", str(path), "--ranks", "1", "--set", "M=4000").stderr
    assert "still searching a schedule (" in said and "--schedule default takes the built-in one" in said


def test_estimates_grow_with_what_is_contracted() -> None:
    program = compiler.load("ag_gemm").program()
    short, long = (
        compiler.bound(program, ranks=2, dims={"Ms": 64, "N": 64, "K": size}, dtype="f32") for size in (64, 6400)
    )
    assert notices.interpreted_seconds(long, 1) > 5 * notices.interpreted_seconds(short, 1)
    assert notices.interpreted_seconds(short, 4) == 4 * notices.interpreted_seconds(short, 1)


# Schedules of a run ------------------------------------------------------------------------------------------


def test_all_schedules_of_a_file_may_be_run(file: str) -> None:
    done = tilelink("run", file, "--ranks", "1", "--all", "--set", "M=40", "--set", "N=40")
    assert done.exit_code == 0 and [line.split(" with ")[1].split()[0] for line in done.stdout.splitlines()] == [
        "default", "small",
    ]  # fmt: skip
    report = json.loads(tilelink("run", file, "--ranks", "1", "--all", "--json").stdout)
    assert report["ok"] and [one["schedule"] for one in report["runs"]] == ["default", "small"]
    refused = tilelink("run", file, "--all", "--schedule", "small")
    assert refused.exit_code == 1 and "--all and --schedule together" in refused.stderr


def test_a_schedule_that_was_asked_for_needs_no_word(file: str) -> None:
    assert "built-in" not in tilelink("run", file, "--ranks", "1", "--schedule", "default").stderr


# What is no number -------------------------------------------------------------------------------------------


def test_an_output_that_is_no_number_says_where_and_on_which_side(tmp_path: Path) -> None:
    path = tmp_path / "roots.tl"
    path.write_text(TEXT.replace("x[i, j] + x[i, j]", "log(0.0 * x[i, j] - 1.0)"))
    done = tilelink("run", str(path), "--ranks", "2", "--set", "M=3", "--set", "N=4")
    assert done.exit_code == 1 and "inf wrong" in done.stdout
    assert (
        "y[0, 0] of rank 0 is nan in the output and nan in the reference, the first of 12 such elements" in done.stderr
    )
    assert "hint: if both sides have it, random inputs may make no sense here" in done.stderr
    (where,) = json.loads(tilelink("run", str(path), "--ranks", "1", "--json").stdout)["no_numbers"].values()
    assert where.startswith("[0, 0] of rank 0 is nan")


# Values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"), [("inf", "s=inf"), ("-inf", "s=-inf"), ("nan", "s=nan"), ("1e-3", "s=0.001")]
)
def test_a_parameter_may_be_infinite_or_nan(value: str, shown: str, tmp_path: Path) -> None:
    (file := tmp_path / "scaled.tl").write_text(SCALED)
    done = tilelink("check", str(file), "--ranks", "1", "--set", f"s={value}")
    assert done.exit_code == 0 and shown in done.stdout, done.output


@pytest.mark.parametrize("setting", ["M=inf", "M=nan", "s=1e400", "s=infinite"])
def test_what_is_no_value_is_refused(setting: str, tmp_path: Path) -> None:
    (file := tmp_path / "scaled.tl").write_text(SCALED)
    done = tilelink("check", str(file), "--ranks", "1", "--set", setting)
    assert done.exit_code == 1 and "BindingError" in done.stderr and "hint: " in done.stderr


# Functions, element types and inputs -------------------------------------------------------------------------

OPEN = """\
program product(M, N, K, activation: function, sums: dtype):
    x    : in    [M, K]
    w    : in    [N, K]
    bias : in    [N] = 0
    y    : out   [M, N] sums

    compute gemm(i: M, j: N):
        y[i, j] = activation(dot(x[i, :], w[j, :].T) + bias[j])

schedule small for product:
    gemm tile(i=16, j=16)
"""
SET = ("--set", "activation=relu", "--set", "sums=f32", "--set", "bias=true", "--set", "M=20")


@pytest.fixture
def product(tmp_path: Path) -> str:
    path = tmp_path / "product.tl"
    path.write_text(OPEN)
    return str(path)


def test_set_chooses_what_a_program_leaves_open(product: str) -> None:
    """In every command; its schedules stay its own."""
    shown = tilelink("show", product, *SET).stdout
    assert "bias : in [N]\n" in shown and "y    : out [M, N] f32" in shown and "relu(dot(" in shown
    assert "relu" not in tilelink("show", product, "--set", "bias=false").stdout
    found = json.loads(tilelink("check", product, *SET, "--ranks", "2", "--json").stdout)
    (one,) = found["programs"]
    assert list(one["tasks"]) == ["default", "small"]
    assert one["choices"] == {"activation": "relu", "sums": "f32", "bias": True} and one["dims"]["M"] == 20
    said = tilelink("check", product, *SET, "--ranks", "2").stdout
    assert "M=20, N=96, K=48, activation=relu, sums=f32, bias=True: default" in said
    report = json.loads(tilelink("simulate", product, *SET, "--schedule", "small", "--json").stdout)
    assert report["choices"]["activation"] == "relu" and report["seconds"] > 0
    tuned = json.loads(tilelink("tune", product, *SET, "--trials", "2", "--ranks", "2", "--json").stdout)
    assert tuned["choices"]["bias"] is True and tuned["candidates"]


def test_a_run_compares_the_program_that_was_chosen(product: str) -> None:
    done = tilelink("run", product, *SET, "--ranks", "1", "--schedule", "small", "--dtype", "bf16")
    assert done.exit_code == 0, done.output
    assert "product with small on 1 ranks, M=20, N=96, K=48, activation=relu, sums=f32, bias=true (N, K" in done.stderr
    error = float(done.stdout.split("|ref| ")[1].split()[0])
    assert 0 < error < 1e-5, "in bf16 both sides are rounded to the same"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("activation=rel", "activation is a function, not rel"),
        ("sums=f8", "sums is an element type, not f8"),
        ("bias=3", "--set bias=true takes it, --set bias=false leaves it out"),
        ("sum=f32", "--set sum=f32 sets nothing"),
        ("sum=3", "did you mean sums? it has M, N, K, activation, sums, bias"),
    ],
)
def test_what_cannot_be_chosen(product: str, given: str, said: str) -> None:
    for command in ("check", "run", "show", "simulate", "tune"):
        done = tilelink(command, product, "--set", given)
        assert done.exit_code == 1 and said in done.stderr, (command, done.output)


def test_ranks_on_gpus_take_the_choices(product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request has them, and a rank makes the same variant of them."""
    from tilelink.cli import gpus, rank

    asked: list[dict[str, object]] = []
    monkeypatch.setattr(gpus, "on_gpus", lambda request, *_, **__: asked.append(dict(request)) or ANSWER)
    done = tilelink("run", product, *SET, "--ranks", "2", "--device", "cuda")
    assert done.exit_code == 0, done.output
    assert asked[0]["choices"] == {"activation": "relu", "sums": "f32", "bias": True}
    made = rank.with_choices(compiler.load(product).program(), {"activation": "relu", "bias": True})
    assert "relu(dot(" in str(made) and made.name == "product"


def test_launches_on_gpus_are_timed(product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilelink.cli import gpus

    asked: list[dict[str, object]] = []
    monkeypatch.setattr(gpus, "on_gpus", lambda request, *_, **__: asked.append(dict(request)) or ANSWER)
    gpu = ("run", product, "--ranks", "2", "--device", "cuda")
    assert "us, the median" not in tilelink(*gpu).stdout and asked[-1]["bench"] is False
    done = tilelink(*gpu, "--bench")
    assert done.exit_code == 0 and asked[-1]["bench"] is True, done.output
    assert "product on 2 x H200: 12.0 us, the median of 3 samples (10.0 to 30.5)" in done.stdout
    found = json.loads(tilelink(*gpu, "--bench", "--json").stdout)
    assert found["time"]["median_us"] == 12.0 and found["time"]["samples_us"] == [12.0, 10.0, 30.5]
    for others in (("--device", "cpu"), ("--device", "cuda", "--trace", "t.json")):
        refused = tilelink("run", product, "--bench", *others)
        assert refused.exit_code == 1 and "--bench and --" in refused.stderr and "--device cuda" in refused.stderr


TIME = {"name": "product", "ranks": 2, "device": "H200", "samples_us": [12.0, 10.0, 30.5], "host_us": 7.2}
ANSWER = {"errors": {"y": 0.0}, "odd": {}, "rounding_error": 0.0, "launches": [0.0], "seconds": 0.0, "time": TIME}


def test_a_routing_of_a_program_without_index_inputs_is_said_to_have_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "plain.tl"
    path.write_text(
        "program plain(M = 8):\n    x : in [M]\n    y : out [M]\n    compute f(i: M):\n        y[i] = x[i]\n"
    )
    said = "--routing one has no effect: plain has no index tensor that a launch brings"
    assert said in tilelink("run", str(path), "--ranks", "1", "--routing", "one").output
    assert "has no effect" not in tilelink("run", str(path), "--ranks", "1").output
