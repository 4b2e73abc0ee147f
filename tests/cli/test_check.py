"""What `tilelink check` says of mistakes: each once, with the schedules that show it."""

import json
import re
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.compiler.test_compiler import TEXT
from tests.tiers import thorough
from tilelink.cli import app, notices, options
from tilelink.compiler import samples
from tilelink.compiler.modules import PROGRAMS
from tilelink.verifier import cutoff

UNSAFE = TEXT.replace("        consumer_tile_wait(left[i, :])\n", "")


def check(*args: str) -> Result:
    return CliRunner().invoke(app, ["check", *args])


@pytest.fixture
def unsafe(tmp_path: Path) -> str:
    path = tmp_path / "shift.tl"
    path.write_text(UNSAFE)
    return str(path)


def test_a_mistake_that_all_schedules_show_is_said_once(unsafe: str) -> None:
    done = check(unsafe)
    assert done.exit_code == 1
    assert done.stderr.count("OrderingError") == 1
    assert "  seen in: shift with default, fine\n" in done.stderr
    assert done.stderr.endswith("\n  sizes: M=80, N=96 (M, N chosen for you: --set M=NUMBER)\n")
    assert done.stderr.count("sizes:") == 1
    assert check(unsafe, "--set", "M=80").stderr.endswith("sizes: M=80, N=96 (N chosen for you: --set N=NUMBER)\n")
    assert check(unsafe, "--set", "M=80", "--set", "N=96").stderr.endswith("  seen in: shift with default, fine\n")


def test_a_mistake_of_one_schedule_names_it(tmp_path: Path) -> None:
    path = tmp_path / "shift.tl"
    path.write_text(TEXT.replace("send on sm(1), tile(i=8)", "send on sm(1), tile(i=8), num_warps 3"))
    done = check(str(path))
    assert "shift: safe on 4 ranks (cpu, bf16), M=80, N=96: default" in done.stdout
    assert "\n  seen in: shift with fine\n" in done.stderr, done.stderr


def test_a_mistake_of_the_program_itself_names_no_schedule(tmp_path: Path) -> None:
    path = tmp_path / "shift.tl"
    path.write_text(TEXT.replace("x[i, j] + left", "x[i] + left"))
    assert "seen in" not in check(str(path)).stderr
    (mistake,) = json.loads(check(str(path), "--json").stdout)["mistakes"]
    assert (mistake["program"], mistake["schedules"]) == ("shift", [])


def test_a_size_of_another_program_of_the_file_says_whose_it_is(unsafe: str) -> None:
    Path(unsafe).write_text(f"""{TEXT}
program other(M, K):
    x : in  [M, K]
    y : out [M, K]
    compute go(i: M, j: K):
        y[i, j] = x[i, j]
""")
    done = check(unsafe, "--set", "K=8")
    assert done.exit_code == 1 and done.stderr.splitlines() == [
        "BindingError: shift has no parameter 'K'",
        "  hint: other of the same file has it: --program takes one program",
    ]
    assert "other: safe" in check(unsafe, "--program", "other", "--set", "K=8").stdout
    assert "hint: it has M, N" in check(unsafe, "--set", "Z=8").stderr


ROLES = """program two(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]
    z : out [2, M, N]

    compute gemm(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

    compute more(q: 2 by 1, i: M, j: N):
        z[q, i, j] = dot(x[i, :], w[j, :].T)

schedule one for two:
    gemm on sm, tile(i=128, j=128, k=64), roles(consumers=2, buffers=4)
    more in gemm epilogue, tile(i=128, j=128, k=64)

schedule other for two like one:
    more roles(consumers=2, buffers=3)
"""


def test_two_mistakes_at_one_clause_are_two(tmp_path: Path) -> None:
    path = tmp_path / "two.tl"
    path.write_text(ROLES)
    sizes = ("--set", "M=256", "--set", "N=256", "--set", "K=128")
    said = check(str(path), "--target", "sm_90", *sizes).stderr
    assert "gemm cannot have roles: more runs in its kernel without roles" in said and "seen in: two with one\n" in said
    assert "the roles of gemm, more in one kernel do not fit together" in said and "seen in: two with other\n" in said
    assert re.search(r"see .*two\.tl:10", said)


def test_run_says_what_cpu_ranks_leave_out(tmp_path: Path) -> None:
    path = tmp_path / "two.tl"
    path.write_text(ROLES)
    sizes = ("--set", "M=8", "--set", "N=8", "--set", "K=8")
    done = CliRunner().invoke(app, ["run", str(path), "--ranks", "1", "--schedule", "other", *sizes])
    assert done.exit_code == 0
    assert "without effect on cpu, and not fully checked: roles of gemm, more" in done.stderr


def test_two_mistakes_are_two(unsafe: str) -> None:
    Path(unsafe).write_text(UNSAFE + UNSAFE.replace("shift", "other"))
    assert check(unsafe).stderr.count("OrderingError") == 2
    said = check(unsafe, "--target", "sm_1").stderr
    assert said.count("UnknownTargetError") == 2 and "seen in: other with default, fine" in said


def test_mistakes_for_programs_to_read(unsafe: str) -> None:
    report = json.loads(check(unsafe, "--json").stdout)
    (mistake,) = report["mistakes"]
    line = UNSAFE.splitlines().index("        y[i, j] = x[i, j] + left[i, j]") + 1
    assert (report["ok"], report["programs"][0]["tasks"]) == (False, {})
    assert (mistake["error"], mistake["program"], mistake["schedules"]) == (
        "OrderingError",
        "shift",
        ["default", "fine"],
    )
    assert (mistake["location"]["file"], mistake["location"]["line"]) == (unsafe, line)
    assert set(mistake["location"]) == {"file", "line", "column", "length"}
    assert "OrderingError" not in mistake["message"] and mistake["text"].startswith(
        "OrderingError: " + mistake["message"]
    )


def test_what_the_schedule_alone_orders_is_said(unsafe: str) -> None:
    text = TEXT.replace("left : symmetric [M, N]", "left : symmetric [M, N]\n    h : local [M, N]")
    text = text.replace(
        "    compute ",
        "    compute half(i: M):\n        h[i, :] = x[i, :] * 0.5\n        notify(h[i, :])\n\n    compute ",
        1,
    )
    Path(unsafe).write_text(text.replace("x[i, j] + left", "h[i, j] + left"))
    done = check(unsafe, "--schedule", "default")
    assert done.exit_code == 0, done.output
    line = done.stdout.splitlines()[1]
    assert line.startswith("  with default, add reads h after half has written it, because their kernels run one after")
    (report,) = json.loads(check(unsafe, "--schedule", "default", "--json").stdout)["programs"]
    assert line == f"  with default, {report['scheduled']['default'][0]}"
    strict = check(unsafe, "--schedule", "default", "--strict")
    assert strict.exit_code == 1 and line in strict.stdout and "wait before the read" in strict.stderr
    strict = check(unsafe, "--schedule", "default", "--strict", "--json")
    assert strict.exit_code == 1 and json.loads(strict.stdout)["ok"] is False
    Path(unsafe).write_text(TEXT)
    assert "with default, " not in check(unsafe).stdout
    assert check(unsafe, "--strict").exit_code == 0


def test_a_long_check_says_what_it_does(unsafe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error, and not for programs that read the report."""
    Path(unsafe).write_text(TEXT)
    assert not check(unsafe).stderr
    done = Event()
    verify = cutoff.verify

    def said(text: str) -> None:
        print(text, file=sys.stderr)
        if "the rule ordering" in text:
            done.set()

    def waits_at_a_rule(plan: Any, on_rule: Any) -> None:
        def at(rule: str) -> None:
            on_rule(rule)
            if rule == "ordering":
                assert done.wait(20)

        verify(plan, at)

    monkeypatch.setattr(notices, "PATIENCE_S", 0.01)
    monkeypatch.setattr(notices, "say", said)
    monkeypatch.setattr(cutoff, "verify", waits_at_a_rule)
    found = check(unsafe, "--schedule", "default")
    lines = found.stderr.splitlines()
    assert found.exit_code == 0 and "safe on 4 ranks" in found.stdout
    assert lines[0].startswith("after 0 s: ") and "--set gives smaller sizes" in lines[0]
    said_at = re.compile(r"after \d+ s: shift with default: the rule ordering for \d+ tiles")
    assert any(map(said_at.match, lines)), "a slow machine says what comes after it too"
    done.set()
    assert not check(unsafe, "--json").stderr


def test_several_mistakes_of_a_text_are_a_list(tmp_path: Path) -> None:
    path = tmp_path / "shift.tl"
    path.write_text(TEXT.replace("x[i, j] + left", "z[i, j] + left").replace(", x[i, :]", ", v[i, :]"))
    report = json.loads(check(str(path), "--json").stdout)
    assert [one["error"] for one in report["mistakes"]] == ["UnknownNameError"] * 2


def test_a_whole_number_may_be_written_as_a_float(tmp_path: Path) -> None:
    path = tmp_path / "shift.tl"
    path.write_text(TEXT)
    report = json.loads(check(str(path), "--set", "M=1e2", "--json").stdout)
    assert report["ok"] and repr(report["programs"][0]["dims"]["M"]) == "100"


def test_too_little_memory_is_said_as_such(unsafe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 233. GiB")

    monkeypatch.setattr(options.compiler, "load", full)
    done = check(unsafe)
    assert done.exit_code == 1
    assert done.stderr.startswith(
        "TileLinkError: not enough memory on this machine: Unable to allocate 233. GiB\n  hint: "
    )


def test_what_was_proved_names_the_processor_and_the_element_type(tmp_path: Path) -> None:
    path = tmp_path / "shift.tl"
    path.write_text(TEXT)
    said = check(str(path), "--target", "sm_90", "--dtype", "f32").stdout
    assert "shift: safe on 4 ranks (sm_90, f32), M=1024" in said
    (one,) = json.loads(check(str(path), "--json").stdout)["programs"]
    assert (one["target"], one["dtype"]) == ("cpu", "bf16")


def test_default_sizes_are_those_of_the_processor() -> None:
    """Schedules of the library for GPUs have tiles that the small sizes of CPU ranks do not fit."""
    done = check("gemm_rs", "-p", "gemm_rs_local_last", "-s", "h200_roles", "--target", "sm_90")
    assert done.exit_code == 0 and "gemm_rs_local_last: safe on 4 ranks (sm_90, bf16), Ms=1024" in done.stdout


def test_sizes_that_a_program_names_are_not_said_to_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "shift.tl"
    path.write_text(UNSAFE.replace("(M, N)", "(M, N = 48)"))
    done = check(str(path))
    assert done.exit_code == 1 and "  sizes: M=80, N=48 (M chosen for you: --set M=NUMBER)" in done.stderr


def test_other_sizes_are_said_dimension_by_dimension() -> None:
    sizes = [word for one in ("B=3", "M=512", "K=256") for word in ("--set", one)]
    chosen = ["benchmarks/check_cost.tl", "--program", "pipeline", "--schedule", "gpu", "--ranks", "2", *sizes]
    given = ["--target", "sm_90"]
    done = check(*chosen, *given, "--sizes")
    assert done.exit_code == 0
    assert done.stdout.partition("  gpu with other sizes:\n")[2].splitlines()[:5] == [
        "    B: 3 alone was asked: a quotient, a remainder, a minimum or the like of it decides something",
        "    M: any multiple of 128 from 384 on, with the others as they are",
        "    K: 256 alone was asked: a tile takes all of it",
        "    ranks: 2 alone was asked: each rank was asked",
        "    what was not asked is proved when it is compiled: nothing runs without a proof",
    ]
    (program,) = json.loads(check(*chosen, *given, "--sizes", "--json").stdout)["programs"]
    assert program["sizes"] == {"gpu": {"B": None, "M": {"of": 128, "least": 384}, "K": None, "ranks": None}}
    assert program["alone"]["gpu"].keys() == {"B", "K", "ranks"}
    assert "other sizes" not in check(*chosen, *given).stdout


def test_of_sizes_that_end_within_tiles_it_is_said_which_to_ask(tmp_path: Path) -> None:
    """Those that are chosen for CPU ranks do, so that tiles that are cut are tried."""
    path = tmp_path / "double.tl"
    path.write_text("""program double(M, N):
    x : in  [M, N]
    y : out [M, N]

    compute go(i: M, j: N):
        y[i, j] = x[i, j] * 2.0
""")
    said = check(str(path), "--sizes").stdout.splitlines()
    assert "    M: 80 alone was asked: it ends within a tile of 64: --set M=512 asks a multiple of that" in said
    said = check(str(path), "--sizes", "--set", "M=512").stdout.splitlines()
    assert "    M: any multiple of 64 from 192 on, with the others as they are" in said


def test_roles_of_small_sizes_say_which_tiles_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "product.tl"
    path.write_text("""program product(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]

    compute gemm(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

schedule gpu for product on sm_90:
    gemm on sm, tile(i=128, j=256, k=64), roles(consumers=2, buffers=4)
""")
    sizes = ["--set", "M=64", "--set", "N=256", "--set", "K=128"]
    done = check(str(path), "--schedule", "gpu", *sizes)
    assert done.exit_code == 1
    hint = "the tile i=128 is cut to 64, as M is 64: give larger sizes (--set), smaller tiles, or take `roles` away"
    assert f"hint: {hint}\n" in done.stderr


def test_show_says_its_defaults() -> None:
    lines = CliRunner().invoke(app, ["show", "--help"]).stdout.replace("│", " ").split()
    said = " ".join(lines)
    assert "(default: cpu; sm_90 with --stage ptx)" in said


def test_commands_have_one_element_type_by_default() -> None:
    """What is proved, shown, run, predicted and tuned is the same program."""
    for command in ("check", "show", "run", "simulate", "tune"):
        lines = CliRunner().invoke(app, [command, "--help"]).stdout.replace("│", " ").split()
        assert "[default: bf16]" in " ".join(lines), command


SPILLING = """program big(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    u : in  [N, K]
    y : out [M, N]

    compute gemm(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T) * dot(x[i, :], u[j, :].T)

schedule large for big:
    gemm on sm, tile(i=128, j=256, k=64), num_warps 8

schedule small for big:
    gemm on sm, tile(i=128, j=128, k=64), num_warps 8
"""


def test_sums_that_spill_are_safe_and_said_to_be_slow(tmp_path: Path) -> None:
    path = tmp_path / "big.tl"
    path.write_text(SPILLING)
    on_gpu = ("--target", "sm_90")
    done = check(str(path), *on_gpu)
    assert done.exit_code == 0 and done.stdout.count("slow with") == 1
    text = "slow with large: the sums of products that a tile of stage gemm holds together take 256 registers"
    assert text in done.stdout and "they spill to memory; take smaller tiles than i=128, j=256" in done.stdout
    (report,) = json.loads(check(str(path), *on_gpu, "--json").stdout)["programs"]
    assert list(report["spilling"]) == ["large"]
    assert "slow" not in check(str(path)).stdout, "CPU ranks have no such registers"
    simulated = CliRunner().invoke(app, ["simulate", str(path), "-s", "large", "-n", "2"])
    assert simulated.exit_code == 0 and simulated.stderr.count("slow: the sums of products") == 1


@thorough(unless=lambda file: file in ("ag_gemm_rows", "gemm_rs", "moe"))  # files with roles, of which tiles are whole
@pytest.mark.parametrize("file", sorted(path.stem for path in PROGRAMS.glob("*.tl")))
def test_every_file_of_the_library_is_safe_on_a_gpu_with_the_sizes_that_the_command_chooses(file: str) -> None:
    done = check(file, "--target", "sm_90")
    assert done.exit_code == 0, done.stderr
    assert "slow with" not in done.stdout


def test_roles_are_said_to_be_without_effect_where_there_are_none() -> None:
    text = "without effect on {}, and not fully checked: roles of gemm, own (--target sm_90)"
    where = ("gemm_rs", "-p", "gemm_rs_local_last", "-s", "h200_roles")
    for target in ("cpu", "sm_80"):
        done = check(*where, "--target", target)
        assert done.exit_code == 0 and f"  with h200_roles, {text.format(target)}\n" in done.stdout
    (report,) = json.loads(check(*where, "--json").stdout)["programs"]
    assert report["ineffective"]["h200_roles"][0] == text.format("cpu")
    assert "fully checked" not in check(*where, "--target", "sm_90").stdout
    assert "fully checked" not in check("gemm_rs", "-p", "gemm_rs_local_last", "-s", "h200").stdout


def test_show_says_so_on_standard_error() -> None:
    where = ["show", "gemm_rs", "-p", "gemm_rs_local_last", "-s", "h200_roles", "--stage", "source"]
    done = CliRunner().invoke(app, where)
    assert done.stderr.startswith("without effect on cpu, and not fully checked: roles of gemm, own (--target sm_90")
    on_gpu = [*where, "--target", "sm_90"]
    assert "fully checked" not in CliRunner().invoke(app, on_gpu).stderr
    traced = CliRunner().invoke(app, [*on_gpu, "--dialect", "traced"])
    assert (
        "in dialect traced, and not fully checked: roles of gemm, own (dialect triton has it on sm_90)" in traced.stderr
    )


WITHOUT_EFFECT = """program p(M = 264, N = 64, K = 64, L = 2):
    x : in [M, K]
    w : in [N, K]
    s : symmetric [ranks, M, K]
    l : local [L, M, K]
    y : out [M, N]
    z : out [M, K]
    comm send(q: ranks, i: M):
        tile_push_data(s[rank, i, :] @ q, x[i, :])
        producer_tile_notify(s[rank, i, :] @ q)
    compute gemm(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)
    compute own(i: M):
        consumer_tile_wait(s[rank, i, :])
        z[i, :] = s[rank, i, :]
schedule named for p:
    CLAUSE
"""
LEFT_OUT = {
    "gemm flatten": "flatten of gemm, because no program has a second tile",
    "gemm dynamic": "dynamic of gemm, because no program has a second tile",
    "gemm program_per_tile": "program_per_tile of gemm, because no program has a second tile",
    "gemm tile(i=64, j=32), split_k_tail 2": "split_k_tail of gemm, because it saves no time: the last wave of 10",
    "gemm tile(i=2, j=32), halve_tail": "halve_tail of gemm, because it saves no time",
    "own tile(i=2)\n    gemm in own epilogue, backfill 1": "backfill of gemm, because every program has a tile",
    "send on sm(2), tile(i=96), tma_copy 4": "tma_copy of send, because the end of i cuts a tile in s[rank, i, :] @ q",
    "s low_latency, channel(m=1)": "channel of s, because each of its words carries a signal of its own",
}


@pytest.mark.parametrize("clause", LEFT_OUT)
def test_a_clause_that_is_left_out_is_said_with_the_reason(clause: str, tmp_path: Path) -> None:
    file = tmp_path / "p.tl"
    file.write_text(WITHOUT_EFFECT.replace("CLAUSE", clause))
    done = check(str(file), "-s", "named", "--target", "sm_90")
    assert done.exit_code == 0, done.stderr
    assert f"  with named, without effect on sm_90 with these sizes: {LEFT_OUT[clause]}" in done.stdout


HELD = """program held(M, N):
    x   : in        [M, N]
    got : symmetric [ranks, M, N]
    sums : local    [2, M, N] f32
    y   : out       [M, N]

    comm send(p: ranks, i: M):
        tile_push_data(got[rank, i, :] @ p, x[i, :])

    compute add(i: M, j: N):
        sums[0, i, j] = sum(f32(got[:, i, j]), axis=0)
        y[i, j] = sums[0, i, j]

schedule two for held:
    send tile(i=16)
    add tile(i=16, j=32)
    got buffers 2

schedule three for held like two:
    got buffers 3
"""


def test_the_memory_of_a_rank_is_said(tmp_path: Path) -> None:
    """Buffers of what peers write, the counters, and local tensors: not what the caller gives and takes."""
    path = tmp_path / "held.tl"
    path.write_text(HELD)
    sizes = ("--ranks", "3", "--dtype", "bf16", "--set", "M=16", "N=32", "--json")
    (report,) = json.loads(check(str(path), *sizes).stdout)["programs"]
    two, three = report["memory"]["two"], report["memory"]["three"]
    assert two["local"] == three["local"] == 2 * 16 * 32 * 4
    one, counters = 3 * 16 * 32 * 2, two["symmetric"] - 2 * 3 * 16 * 32 * 2
    assert 0 < counters < 200 and counters % 4 == 0
    assert one < three["symmetric"] - two["symmetric"] < one + counters  # a buffer, with the counters of its own


def test_a_schedule_that_leaves_sms_idle_is_said_on_gpus() -> None:
    """The stage that takes most of a small launch, and the way to make it faster; not of schedules without such one."""
    sets = [f"--set={one}" for one in ("Ms=64", "k=2", "E=8", "C=64", "F=512", "N=2048")]
    where = ["tests/hunt/kinds.tl", "-p", "moe_reduce_scatter", "-n", "2", "--dtype", "bf16", *sets]
    text = r"^  with beside, `combine` has 2 of 132 SMs and is \d+ % of the time: try `on sm`$"
    done = check(*where, "--target", "sm_90")
    assert done.exit_code == 0 and re.search(text, done.stdout, re.M), done.output
    assert "with gpu, `" not in done.stdout
    (report,) = json.loads(check(*where, "--target", "sm_90", "--json").stdout)["programs"]
    assert [*report["idle"]] == ["beside"]
    assert "132 SMs" not in check(*where, "--target", "cpu").stdout


def test_no_launch_is_drawn_that_takes_longer_than_its_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, drawn = samples.draw, list[Any]()

    def noted(program: Any, **given: Any) -> Any:
        drawn.append(given["dims"])
        return draw(program, **given)

    monkeypatch.setattr(samples, "draw", noted)
    where = ["expert_parallel", "-p", "expert_parallel", "-s", "default", "-n", "8", "--dtype=bf16", "--target=sm_90"]
    for rows, number in ((4, 1), (512, 0)):
        drawn.clear()
        done = check(*where, *(f"--set={one}" for one in (f"M={rows}", f"C={rows}", "H=128", "k=2")))
        assert done.exit_code == 0 and len(drawn) == number, (rows, done.output)


def test_ranks_that_do_as_one_are_no_number_of_blocks() -> None:
    """Of few blocks it is said that they represent any number of them, and of a rank that others do as it does."""
    ring, turned = ("ag_gemm", "-p", "ag_gemm_ring", "-s", "default", "-n", "512"), "each of 512 ranks does as rank 0"
    few = "2 of 64 blocks of 128 i of gemm"
    for rows, ends, held in (
        ("Ms=64", turned, {"rotation": turned, "few": ""}),
        ("Ms=8192", f"{turned}; {few} represent any number of them", {"rotation": turned, "few": few}),
    ):
        sizes = ("--set", rows, "N=96", "K=48")
        assert f"  default: {ends}\n" in check(*ring, *sizes).stdout
        assert json.loads(check(*ring, *sizes, "--json").stdout)["programs"][0]["representatives"] == {"default": held}
