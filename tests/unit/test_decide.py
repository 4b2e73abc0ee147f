"""Which way an operator takes where nothing is said: measured, ruled, or predicted."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.compiler import library_module
from tilelink.errors import VerificationError
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.resource import RESOURCE
from tilelink.ops import predict
from tilelink.ops.choice import choose, rounded_rows
from tilelink.ops.decide import _usual, decide
from tilelink.ops.operators import OPERATORS, RECORDS, SCHEDULE, program_of
from tilelink.ops.predict import (
    Candidate,
    Request,
    feasible,
    fused_candidates,
    machine_of,
    pushed_seconds,
    unfused_seconds,
)
from tilelink.planning.plan import make_plan
from tilelink.scheduling.schedule import CopyEngine, Schedule
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine
from tilelink.target import target
from tilelink.tuning import Record, algorithms, key_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
GPU, VERSIONS = "NVIDIA H200", "torch 2, triton 3"
REGRET = 0.03
"""Of a measured time that a choice may be slower than the best of the ways measured beside it."""
UNFUSED_ERROR = 0.12
"""Of the measured time of the unfused pair, for products of 2048 rows and more; a long product slows its GPUs down."""
PUSHED_ERROR = 0.08
"""Of the measured time of a product beside a kernel that pushes, for 512 rows and more."""
RULE_ERROR = 0.12
"""Of the measured time of the schedule that the rule takes; the same goes for it."""


CHANGED = {
    ("gemm_rs", "mlp-2@2048", "9783c7429abc32fbded05d80ef055e49790da197"):
        "measured before gemm_rs_local_last had its parts loaded ahead and deferred its notifies",
    ("ag_gemm", "mlp-2@2048", "9783c7429abc32fbded05d80ef055e49790da197"):
        "measured before ag_gemm_in_place had a schedule with slices of K",
    ("gemm_ar", "mlp-2@64", "9783c7429abc32fbded05d80ef055e49790da197"):
        "measured before there were kernels that multiply few rows and sum them",
}  # fmt: skip
"""Times that do not say which way is best, and of which commit they are: the way that is chosen has become faster
since, or is new."""


def shapes() -> list[dict[str, Any]]:
    """What was measured last of every shape."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name in ("tp_4xH200", "tp_few_4xH200", "gemm_ar_4xH200"):
        report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for shape in report["shapes"]:
            found[shape["op"], shape["shape"]] = shape | {"commit": report["commit"], "gpu": report["machine"]["gpu"]}
    return list(found.values())


def with_roles() -> list[dict[str, Any]]:
    """What two and four H100s measured of products whose warps have roles."""
    names = ("ag_gemm_2xH100", "gemm_rs_2xH100", "gemm_ar_2xH100", "gemm_ar_few_2xH100", "gemm_ar_4xH100")
    reports = [json.loads((RESULTS / f"tp_roles_{name}.json").read_text(encoding="utf-8")) for name in names]
    return [s | {"commit": r["commit"], "gpu": r["machine"]["gpu"]} for r in reports for s in r["shapes"]]


def in_graphs() -> list[tuple[tuple[int, int, int], int, str, dict[str, float]]]:
    """Sizes, ranks, GPU, and the microseconds of each implementation in CUDA graphs (benchmarks/choice_regret.py)."""
    found: list[tuple[tuple[int, int, int], int, str, dict[str, float]]] = []
    for path in sorted(RESULTS.glob("choice_regret_*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        for case in report["cases"]:
            M, N, K = map(int, case["name"].split(" x "))
            found.append(((M, N, K), report["ranks"], report["machine"]["gpu"], case["graph"]["step_us"]))
    return found


def request(op: str, M: int, N: int, K: int, ranks: int = 4, variant: str = "") -> Request:
    return Request(op=op, variant=variant, M=M, N=N, K=K, ranks=ranks, dtype="bf16")


def small_schedule(op: str) -> str:
    small = OPERATORS[op].small
    assert small is not None and small.schedule is not None
    return small.schedule


def among(monkeypatch: pytest.MonkeyPatch, names: Collection[str]) -> None:
    """Let operators choose among schedules of which there are times, and the pairs."""
    every = predict.gpu_schedules
    monkeypatch.setattr(
        predict,
        "gpu_schedules",
        lambda *asked: tuple((p, s) for p, s in every(*asked) if f"{p.name}:{s.name}" in names),
    )


def chosen(asked: Request, *records: Record, gpu: str = GPU) -> Schedule | str:
    found = {record.key: record for record in records}
    return decide(asked, gpu=gpu, versions=VERSIONS, records=found, processor=target("sm_90"))


@thorough(unless=lambda shape: shape["M"] <= 2048 and one_in(5, shape["op"], shape["shape"], shape["ranks"]))
@pytest.mark.parametrize(
    "shape", [*shapes(), *with_roles()], ids=lambda shape: f"{shape['op']}-{shape['shape']}-{shape['ranks']}"
)
def test_the_choice_is_not_slower_than_what_was_measured(
    shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := CHANGED.get((shape["op"], shape["shape"], shape["commit"])):
        pytest.skip(why)
    ways = {row["name"]: row["us"] for row in shape["rows"] if row["kind"] == "ours" and row["us"] is not None}
    among(monkeypatch, ways.keys())
    asked = request(shape["op"], shape["M"], shape["N"], shape["K"], shape["ranks"])
    way = chosen(asked, gpu=shape["gpu"])
    ways.pop("operator", None)
    pushed = {row["way"]: row["us"] for row in shape["rows"] if str(row.get("way")).startswith("all_reduce")}
    ways |= {f"operator, {name}": us for name, us in pushed.items() if us is not None}
    ways["unfused"] = next(row["us"] for row in shape["rows"] if row["name"] == "cuBLAS+NCCL")
    name = f"{way.program}:{way.name}" if isinstance(way, Schedule) else way
    names = (name, f"operator, {name}", f"{program_of(shape['op'], '')}:{way}")
    taken = next(ways[one] for one in names if one in ways)
    assert taken <= (1 + REGRET) * min(ways.values())


def shares() -> list[dict[str, Any]]:
    """What two GPUs measured that did the share of one of eight ranks: a product of each kind."""
    files = (RESULTS / f"share_{op}_2xH200.json" for op in ("ag_gemm", "gemm_rs"))
    every = [shape for file in files for shape in json.loads(file.read_text(encoding="utf-8"))["shapes"]]
    kinds = ("mlp-2", "mlp-4", "mlp-6")  # as long as its transfer; longer; longer, with ragged columns
    return [shape for shape in every if shape["shape"] in kinds]


@thorough(unless=lambda shape: shape["shape"] == "mlp-2")
@pytest.mark.parametrize("shape", shares(), ids=lambda shape: f"{shape['op']}-{shape['shape']}")
def test_the_choice_for_eight_ranks_is_not_slower_than_what_was_measured_of_a_share(
    shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {row["name"]: row["us"] for row in shape["rows"] if row["kind"] == "ours"}
    among(monkeypatch, ways.keys())
    way = chosen(request(shape["op"], shape["M"], shape["N"], shape["K"], shape["ranks"]))
    own = program_of(shape["op"], "")
    name = f"{way.program}:{way.name}" if isinstance(way, Schedule) else f"{own}:{way}"
    assert ways[name] <= (1 + REGRET) * min(ways.values())


def test_the_unfused_time_is_predicted() -> None:
    machine = load_machine("8xH200")
    for shape in shapes():
        if shape["M"] >= 2048:
            asked = request(shape["op"], shape["M"], shape["N"], shape["K"], shape["ranks"])
            measured = next(row["us"] for row in shape["rows"] if row["name"] == "cuBLAS+NCCL")
            assert unfused_seconds(asked, machine) * 1e6 == pytest.approx(measured, rel=UNFUSED_ERROR), str(asked)


def test_the_time_of_a_pair_that_pushes_is_predicted() -> None:
    machine, compared = load_machine("8xH200"), 0
    for shape in shapes():
        row = next((r for r in shape["rows"] if r["name"] == f"operator, {small_schedule(shape['op'])}"), None)
        if row is not None and shape["M"] >= 512:
            asked = request(shape["op"], shape["M"], shape["N"], shape["K"], shape["ranks"])
            assert pushed_seconds(asked, machine) * 1e6 == pytest.approx(row["us"], rel=PUSHED_ERROR), str(asked)
            compared += 1
    assert compared >= 10


def test_the_time_of_the_rules_schedule_is_predicted() -> None:
    """As it was when it was measured: its text is beside the time. All-reduces are not predicted."""
    machine = load_machine("8xH200")
    for shape in shapes():
        rule = choose(shape["op"], shape["M"], shape["N"], shape["K"], shape["ranks"])
        if rule == SCHEDULE and OPERATORS[shape["op"]].modelled:
            row = next(r for r in shape["rows"] if r["name"] == f"{program_of(shape['op'], '')}:h200")
            asked = request(shape["op"], shape["M"], shape["N"], shape["K"], shape["ranks"])
            program = compiler.load(shape["op"]).program(row["program"])
            dims, schedule = asked.dims(program), parse_schedule(row["schedule"])
            assert dims is not None
            plan = make_plan(bind(program, schedule, dims, asked.ranks, machine.processor, asked.dtype))
            found = simulate(plan, machine).seconds * 1e6
            assert found == pytest.approx(row["us"], rel=RULE_ERROR), str(asked)


def test_the_time_of_a_product_that_sends_its_sums_is_predicted() -> None:
    """Its storer pushes while other warps multiply. The largest shape is left out: it slows its GPUs down."""
    machine = load_machine("8xH100")
    report = json.loads((RESULTS / "tp_roles_gemm_ar_2xH100.json").read_text(encoding="utf-8"))
    program = compiler.load("gemm_ar").program("gemm_ar_local_last")
    compared = [shape for shape in report["shapes"] if shape["shape"] != "mlp-7"]
    for shape in compared:
        row = next(row for row in shape["rows"] if row["name"] == f"{program.name}:h200_roles")
        dims = {"Ms": shape["M"] // shape["ranks"], "N": shape["N"], "K": shape["K"]}
        bound = bind(program, parse_schedule(row["schedule"]), dims, shape["ranks"], machine.processor, "bf16")
        found = simulate(make_plan(bound), machine).seconds * 1e6
        assert found == pytest.approx(row["us"], rel=0.04), shape["shape"]
    assert len(compared) == 6


def test_what_follows_a_product_costs_something_unfused() -> None:
    machine = load_machine("8xH200")
    plain, silu, gated = (unfused_seconds(request("ag_gemm", 8192, 3584, 4096, variant=f), machine)
                          for f in ("", "bias_silu", "gated"))  # fmt: skip
    assert plain < silu < gated < 2.5 * plain


def test_the_model_overrules_the_rule_where_a_product_is_too_small_to_hide_anything() -> None:
    assert chosen(request("gemm_rs", 2048, 256, 4096)) == "unfused"
    assert chosen(request("gemm_rs", 2048, 256, 4096), gpu="a GPU that nobody described") == "h200"
    assert chosen(request("gemm_rs", 256, 8192, 8192)) == "reduce_scatter_pushed:more"  # few rows: the rule


def test_few_rows_are_gathered_without_the_copy_engine() -> None:
    """At 1024 rows the copy engine's start is a fifth of the launch; among the measured schedules that one is best."""
    points = json.loads((RESULTS / "agreement_4xH200.json").read_text(encoding="utf-8"))["points"]
    here = [p for p in points if (p["op"], p["shape"]) == ("ag_gemm", "mlp-2@1024")]
    best = min(here, key=lambda point: point["measured_us"])
    assert "gather in gemm prologue, tile(i=64)" in best["schedule"]
    way = chosen(request("ag_gemm", 1024, 3584, 4096))
    assert isinstance(way, Schedule) and way.name == "h200_few"
    way = chosen(request("ag_gemm", 4096, 3584, 4096))
    assert isinstance(way, Schedule) and way.stage("gather")[RESOURCE] == CopyEngine()


def test_some_hundred_rows_are_fused_where_the_model_is_sure() -> None:
    way = chosen(request("gemm_rs", 1024, 8192, 7168))
    assert isinstance(way, Schedule) and (way.program, way.name) == ("gemm_rs_ring", "h200_wide")
    assert chosen(request("gemm_rs", 1024, 8192, 7168), gpu="a GPU that nobody described") == "unfused"
    assert chosen(request("gemm_rs", 1024, 4096, 3584)) == "reduce_scatter_pushed:more"  # no twentieth less
    assert chosen(request("ag_gemm", 512, 7168, 8192)) == "all_gather_kept:more"
    assert chosen(request("gemm_rs", 1024, 4096, 3580)) == "reduce_scatter_pushed:more"  # not for descriptors


def test_one_kernel_sums_where_the_rows_of_a_rank_fill_a_wave() -> None:
    for M, N, ranks in ((1536, 4096, 2), (768, 8192, 2), (1536, 8192, 4)):
        assert choose("gemm_ar", M, N, 7168, ranks) == SCHEDULE
        assert choose("gemm_ar", M - ranks, N, 7168, ranks) != SCHEDULE


def test_an_all_reduce_is_unfused_where_the_tiles_of_a_rank_leave_most_of_a_wave_empty() -> None:
    """288 tiles of two ranks are two waves and a fifth, and took 1.24 times as long as the unfused pair."""
    assert chosen(request("gemm_ar", 2048, 4608, 18432, ranks=2), gpu="NVIDIA H100") == "unfused"
    way = chosen(request("gemm_ar", 2048, 4096, 18432, ranks=2), gpu="NVIDIA H100")
    assert isinstance(way, Schedule) and way.name == "h200_roles_few"
    assert chosen(request("gemm_ar", 2048, 4608, 18432, ranks=2), gpu="a GPU that nobody described") == "h200"


def test_sums_of_few_rows_are_copied_by_programs_where_the_copy_engine_would_start_too_late() -> None:
    way = chosen(request("gemm_ar", 2048, 4096, 5504, ranks=2), gpu="NVIDIA H100")
    assert isinstance(way, Schedule) and way.name == "h200_roles_few" and way.stage("keep")[RESOURCE] != CopyEngine()
    way = chosen(request("gemm_ar", 8192, 8192, 7168, ranks=4), gpu="NVIDIA H100")
    assert isinstance(way, Schedule) and way.name == "h200_roles" and way.stage("keep")[RESOURCE] == CopyEngine()


def test_two_ranks_pull_sums_of_many_rows() -> None:
    for variant, name in (("", "gemm_ar_pulled"), ("bias", "gemm_ar_bias_pulled")):
        for rows in (4096, 8192):
            way = chosen(request("gemm_ar", rows, 4096, 5504, variant=variant, ranks=2), gpu="NVIDIA H100")
            assert isinstance(way, Schedule) and (way.program, way.name) == (name, "h200_roles")
    way = chosen(request("gemm_ar", 8192, 4096, 2752, ranks=4), gpu="NVIDIA H100")
    assert isinstance(way, Schedule) and way.program == "gemm_ar_local_last"
    way = chosen(request("gemm_ar", 8000, 4096, 5504, ranks=2), gpu="NVIDIA H100")
    assert not isinstance(way, Schedule) or way.program == "gemm_ar_local_last"  # its tiles would be cut


def test_little_is_moved_by_the_librarys_own_kernels() -> None:
    once, twice = "all_reduce_one_shot_pushed:few", "all_reduce_two_shot_pushed:more"
    assert chosen(request("gemm_ar", 8, 12288, 3584)) == once
    assert chosen(request("gemm_ar", 16, 12288, 3584)) == twice
    assert chosen(request("gemm_ar", 8, 12288, 3584, ranks=8)) == twice  # everybody would receive more
    assert chosen(request("gemm_ar", 3, 12288, 3584)) == once
    assert chosen(request("gemm_ar", 130, 4096, 3584)) == twice  # rows that the ranks do not divide
    assert chosen(request("gemm_ar", 1024, 4096, 3584)) == twice
    assert chosen(request("gemm_ar", 1025, 4096, 3584)) == "unfused"
    assert chosen(request("gemm_ar", 512, 8192, 7168), gpu="another") == "unfused"  # it may have no links
    assert chosen(request("gemm_ar", 128, 4096, 3584, ranks=16)) == "unfused"
    assert chosen(request("gemm_ar", 128, 4099, 3584)) == "unfused"
    assert chosen(request("gemm_ar", 128, 4096, 3584, ranks=1)) == "unfused"
    assert chosen(request("gemm_ar", 8, 1 << 19, 3584)) == "unfused"  # nearly empty tiles
    assert chosen(request("gemm_ar", 1 << 19, 8, 3584)) == "unfused"
    assert chosen(request("gemm_ar", 128, 4096, 3584, variant="f32")) == "unfused"
    assert chosen(request("ag_gemm", 480, 4096, 8192)) == "all_gather_kept:more"
    assert chosen(request("ag_gemm", 96, 8188, 8192)) == "all_gather_kept:more", "columns that only torch multiplies"
    assert chosen(request("ag_gemm", 96, 8192, 8188)) == "unfused"
    assert choose("ag_gemm", 512, 4096, 16384, 4) == "all_gather_kept:more"
    assert choose("ag_gemm", 520, 4096, 16384, 4) == "unfused"
    assert chosen(request("ag_gemm", 128, 4096, 3584, variant="gated")) == "unfused"
    assert chosen(request("gemm_rs", 480, 8192, 8192)) == "reduce_scatter_pushed:more"
    for op in ("all_gather", "reduce_scatter"):
        assert chosen(request(op, 64, 4096, 4096)) == "unfused"
    assert chosen(request("all_reduce", 64, 4096, 4096)) == once


def test_few_rows_have_one_kernel_where_it_multiplies_fast_enough() -> None:
    for rows, columns, name in (
        (1, 4096, "words_32x32"), (32, 4096, "words_32x32"), (32, 8192, "words_32x64"), (33, 4096, "64x32"),
        (200, 4096, "128x64"), (128, 8192, "128x64"), (4, 2816, "words_32x32"), (49, 2688, "64x32"),
    ):  # fmt: skip
        program = "gemm_ar_one_shot" if "words" in name else "gemm_ar_batch"
        assert chosen(request("gemm_ar", rows, columns, 3584, ranks=2)) == f"{program}:h200_{name}"
    assert chosen(request("gemm_ar", 64, 8192, 14336, ranks=2)) == "gemm_ar_batch:h200"
    assert ":h200" not in str(chosen(request("gemm_ar", 64, 8192, 14336))), "everybody would receive more"
    assert ":h200" not in str(chosen(request("gemm_ar", 264, 4096, 3584, ranks=2))), "more rows than were measured"
    assert ":h200" not in str(chosen(request("gemm_ar", 8, 12288, 3584))), "more tiles than SMs"
    assert ":h200" not in str(chosen(request("gemm_ar", 104, 2368, 10624, ranks=2))), "long, on 37 SMs"
    fewer, asked = replace(target("sm_90"), sms=107), request("gemm_ar", 16, 4096, 7168, ranks=2)
    assert chosen(asked) == "gemm_ar_one_shot:h200_words_32x32"
    found = decide(asked, gpu=GPU, versions=VERSIONS, records={}, processor=fewer)
    assert found == "gemm_ar_one_shot:h200_words_32x64", "128 tiles are two waves of fewer SMs, and 64 are one"
    assert choose("gemm_ar_norm", 64, 4096, 3584, 2) == "gemm_ar_batch_norm:h200_64x32"
    assert choose("gemm_ar_norm", 64, 4096, 3585, 2) == choose("gemm_ar_norm", 64, 4096, 3584, 1) == "unfused"


def test_the_choice_is_among_the_fastest_that_were_measured_in_graphs() -> None:
    """Beside other kernels of ours: torch's two shots over symmetric memory are no choice."""
    regrets: list[float] = []
    for (M, N, K), ranks, gpu, times in in_graphs():
        way = chosen(request("gemm_ar", rounded_rows(M), N, K, ranks=ranks), gpu=gpu)
        own = {name: us for name, us in times.items() if name != "choice" and not name.startswith("torch")}
        regrets.append(own[str(way)] / min(own.values()) - 1)
    assert len(regrets) >= 12 and max(regrets) < 0.08 and sum(regrets) / len(regrets) < 0.02


def test_kernels_for_few_rows_are_in_the_library() -> None:
    for operator in RECORDS:
        for name in operator.few.tiles if operator.few is not None else ():
            program, _, schedule = name.partition(":")
            module = library_module(program)
            assert (
                module.schedule(schedule, module.program(program)).name == schedule and program in operator.own_programs
            )


def test_a_processor_takes_what_it_can_hold() -> None:
    asked = request("ag_gemm", 8192, 3584, 4096)
    assert feasible(asked, target("sm_90")) and not feasible(asked, target("sm_89"))
    names = {one.schedule.name for one in feasible(asked, target("sm_80"))}
    assert names == {"h200_few", "h200_fewer", "h200_slices", "h200_copy_sms_fine"}  # not the rule's
    taken = chosen(asked, gpu="NVIDIA A100-SXM4-80GB")
    assert isinstance(taken, Schedule) and taken.name in names
    assert chosen(replace(asked, variant="bias"), gpu="NVIDIA A100-SXM4-80GB") == "h200"


def test_what_is_not_safe_is_not_the_best_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, machine = request("gemm_rs", 2048, 2048, 1024), load_machine("8xH200")
    best, *others = fused_candidates(asked, machine)

    def refuse(bound: Bound) -> None:
        if bound.source == best.program:
            raise VerificationError("not safe")

    monkeypatch.setattr(predict, "proved", refuse)
    left = [way.seconds for way in others if way.program != best.program]
    assert left and fused_candidates(asked, machine)[0].seconds == left[0]


def test_what_would_take_long_to_simulate_is_left_to_the_rule() -> None:
    asked = request("ag_gemm", 1 << 20, 3584, 4096)
    assert fused_candidates(asked, load_machine("8xH200")) == []
    assert chosen(asked) == "h200"


@pytest.mark.parametrize(
    ("gpu", "machine"),
    [
        ("NVIDIA H200", "8xH200"), ("NVIDIA H100 80GB HBM3", "8xH100"), ("NVIDIA A100-SXM4-80GB", "8xA100"),
        ("NVIDIA H100 PCIe", None), ("NVIDIA H200 NVL", None), ("NVIDIA GH200 480GB", None), ("another", None),
    ],
)  # fmt: skip
def test_descriptions_are_found_by_the_name_of_the_gpu(gpu: str, machine: str | None) -> None:
    found = machine_of(gpu)
    assert (found and found.name) == machine


# Records -----------------------------------------------------------------------------------------------------


def record(op: str, program: str, schedule: str, seconds: float, **dims: int) -> Record:
    module = compiler.load(op)
    programs = algorithms(module.programs, module.program(program))
    key = key_of(programs, dims=dims, dtype="bf16", ranks=4, gpu=GPU, versions=VERSIONS)
    text = schedule if schedule == "unfused" else str(module.schedule(schedule, module.program(program)))
    return Record(key=key, program="" if schedule == "unfused" else program, schedule=text, seconds=seconds)


def test_what_was_measured_is_taken() -> None:
    scatter = record("gemm_rs", "gemm_rs_scatter", "h200", 3e-4, Ms=256, N=512, K=512)
    way = chosen(request("gemm_rs", 1000, 512, 512), scatter)  # 250 rows of a rank are rounded up to 256
    assert isinstance(way, Schedule) and (way.program, way.name) == ("gemm_rs_scatter", "h200")
    rule = "reduce_scatter_pushed:more"
    assert chosen(request("gemm_rs", 1028, 512, 512), scatter) == rule
    assert chosen(request("gemm_rs", 1000, 512, 520), scatter) == rule
    assert chosen(request("gemm_rs", 1000, 512, 512, variant="bias"), scatter) == rule
    other = replace(scatter, key=replace(scatter.key, versions="torch 3"))
    assert chosen(request("gemm_rs", 1000, 512, 512), other) == rule
    large = record("ag_gemm", "ag_gemm", "unfused", 3e-4, Ms=2048, N=3584, K=4096)
    way = chosen(request("ag_gemm", 8192, 3584, 4096))
    assert isinstance(way, Schedule) and (way.program, way.name) == ("ag_gemm_in_place", "h200_early_roles")
    assert chosen(request("ag_gemm", 8192, 3584, 4096), large) == "unfused"


def test_the_fastest_of_several_records_is_taken() -> None:
    two = record("gemm_ar", "gemm_ar", "h200", 3e-4, Ms=32, N=512, K=512)
    one = record("gemm_ar", "gemm_ar_one_shot", "h200", 2e-4, M=128, N=512, K=512)
    for faster, slower in ((one, two), (replace(two, seconds=1e-4), one)):
        way = chosen(request("gemm_ar", 128, 512, 512), slower, faster)
        assert isinstance(way, Schedule) and way.program == faster.program
    way = chosen(request("gemm_ar", 126, 512, 512), two, one)  # rows that the ranks do not divide
    assert isinstance(way, Schedule) and way.program == "gemm_ar_one_shot"


@thorough(unless=lambda broken: broken.get("schedule") != "")
@pytest.mark.parametrize(
    "broken",
    [
        {"schedule": "schedule s for gemm_rs_slots:\n    nonsense\n"},
        {"schedule": ""},
        {"program": "gone"},
        {"schedule": "schedule s for gemm_rs_slots:\n    gemm order(s = [0, 0, 1, 2])\n"},
    ],
)
def test_records_that_cannot_be_used_are_passed_over(broken: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    good = record("gemm_rs", "gemm_rs_slots", "h200", 3e-4, Ms=256, N=512, K=512)
    bad = replace(good, **broken)  # type: ignore[arg-type]
    assert isinstance(chosen(request("gemm_rs", 1024, 512, 512), good), Schedule)
    assert chosen(request("gemm_rs", 1024, 512, 512), bad) == "reduce_scatter_pushed:more"
    assert "is passed over" in caplog.text


def test_a_choice_without_a_measurement_says_how_to_measure(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tilelink.ops"):
        chosen(request("gemm_rs", 8192, 512, 2048))
        assert "tilelink tune gemm_rs --program gemm_rs_local_last -n 4 --shape 2048,512,2048 --measure" in caplog.text
        assert "predicted" in caplog.text and "unfused" in caplog.text
        caplog.clear()
        chosen(
            request("gemm_rs", 1000, 512, 512), record("gemm_rs", "gemm_rs_slots", "h200", 1e-4, Ms=250, N=512, K=512)
        )
        assert not caplog.text


@pytest.mark.parametrize(
    ("seconds", "field", "factor"),
    [
        (unfused_seconds, "vendor_product_share", 0.5),
        (unfused_seconds, "vendor_collective_share", 0.5),
        (unfused_seconds, "vendor_collective_start", 20),
        (pushed_seconds, "vendor_product_share", 0.5),
        (pushed_seconds, "small_share", 0.5),
        (pushed_seconds, "small_start", 20),
    ],
)
def test_what_is_measured_on_a_machine_is_read_from_its_description(seconds: Any, field: str, factor: float) -> None:
    machine = load_machine("8xH200")
    slower = replace(machine, **{field: getattr(machine, field) * factor})
    asked = request("gemm_rs", 8192, 3584, 4096)
    assert seconds(asked, slower) > 1.05 * seconds(asked, machine)


@pytest.mark.parametrize(
    ("split", "wanted"), [(0.985, "h200_roles_split"), (0.995, "h200_roles"), (None, "h200_roles")]
)
def test_split_tails_are_taken_where_they_are_predicted_to_gain(split: float | None, wanted: str) -> None:
    own = predict.programs_for("gemm_rs", "")[0]
    seconds = {"h200": 4.1e-4, "h200_roles": 4e-4} | ({"h200_roles_split": 4e-4 * split} if split else {})
    ways = {name: Candidate(program=own, schedule=Schedule(name=name, program=own.name), seconds=took)
            for name, took in seconds.items()}  # fmt: skip
    found = _usual(ways, SCHEDULE)
    assert found is not None and found.schedule.name == wanted


TWO_WAYS = request("gemm_rs", 8192, 8192, 14336, ranks=2)


@cache
def ways_of_two() -> list[Candidate]:
    return fused_candidates(TWO_WAYS, load_machine("8xH100"))


@pytest.mark.parametrize(("slower", "wanted"), [(0.9, "h200_roles"), (1.01, "h200_roles"), (1.1, "h200")])
def test_the_rule_takes_roles_unless_they_are_predicted_to_be_clearly_slower(
    slower: float, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"h200": 4e-4, "h200_roles": 4e-4 * slower}
    own = predict.programs_for("gemm_rs", "")[0]
    ways = [one for one in ways_of_two() if one.program == own and one.schedule.name in seconds]
    ways = [replace(one, seconds=seconds[one.schedule.name]) for one in ways]
    assert len(ways) == 2
    ways.sort(key=lambda one: one.seconds)
    monkeypatch.setattr("tilelink.ops.decide.fused_candidates", lambda *_: ways)
    way = decide(TWO_WAYS, gpu="NVIDIA H100 80GB HBM3", versions="", records={}, speaks=False)
    assert (way if isinstance(way, str) else way.name) == wanted
