"""What a hunt rates: the directions of sizes, launches in graphs, the critical path, and what it finds in programs."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.runtime.test_order import case_of
from tilelink import compiler
from tilelink.cli import app
from tilelink.cli.hunt import base_of, tables_of
from tilelink.hunt import hunt
from tilelink.hunt.operators import Choices
from tilelink.hunt.programs import Schedules, Vary
from tilelink.hunt.report import when
from tilelink.hunt.sizes import Direction
from tilelink.hunt.targets import Target, subjects_of
from tilelink.lowering.bound import Bound
from tilelink.runtime.cuda.offline import helper_options, recorded
from tilelink.search import strategy
from tilelink.simulator import simulate
from tilelink.simulator.around import helper_kernels, launch_of, replays_in_turn
from tilelink.simulator.critical_path import critical_path
from tilelink.simulator.machine import load_machine

KINDS = str(Path(__file__).with_name("kinds.tl"))
SIZES = (
    "H=4", "S=1024", "D=128", "scale=0.1", "NB=16", "T=32", "B=128", "Ms=64", "k=2", "E=8", "C=64", "F=512", "N=2048",
    "K=2048",
)  # fmt: skip

MACHINE = load_machine("8xH200")


def subjects(*, ranks: tuple[int, ...] = (2, 4), programs: tuple[str, ...] = (), exact: bool = False) -> list[Any]:
    vary = Vary(ranks=ranks, dtypes=("bf16",), exact=exact)
    return subjects_of(Target(names=(KINDS,), programs=programs, sets=SIZES, vary=vary), base_of, tables_of)


# What it finds ------------------------------------------------------------------------------------------------


def test_what_was_slow_once_is_found_first() -> None:
    """Copies of one block each, a sum on two SMs and helper kernels around few rows: the hunt is told of none."""
    found = hunt(subjects(), strategy("evolution"), points=12, top=0)
    first = [(case.subject.name, case.anomaly.cause.key) for case in found.cases[:5]]
    assert ("causal_attention", ("copies", "gather")) in first
    assert ("moe_reduce_scatter", ("sms", "combine")) in first
    assert ("gemm_ar", ("around", "")) in first


def test_a_sum_on_few_sms_is_explained() -> None:
    given = subjects(ranks=(2,), programs=("moe_reduce_scatter",), exact=True)  # test_document.py has it of all sizes
    case = hunt(given, strategy("evolution"), points=2, top=1).cases[0]
    assert "`combine` has 2 of 132 SMs and is" in case.anomaly.cause.text
    assert "schedule beside" in when(case).split("; ")[0] and "--schedule beside" in case.subject.command(case.choices)
    assert "launch" in when(case).partition("whatever ")[2]


# Sizes --------------------------------------------------------------------------------------------------------


def test_dimensions_that_agree_change_together() -> None:
    """Keys of all ranks are T = ranks * NB blocks, which nothing declares."""
    (one,) = subjects(programs=("causal_attention",))
    assert isinstance(one, Schedules)
    assert Direction(driver="NB", along=("T",)) in one.directions
    assert [feature.name for feature in one.features if feature.name in ("H", "NB", "T", "D")] == ["H", "NB"]
    ranks = [feature.name for feature in one.features].index("ranks")
    plain = [feature.plain for feature in one.features]
    more = one.workload([*plain[:ranks], 1, *plain[ranks + 1 :]])
    assert (more.ranks, more.sizes["NB"], more.sizes["T"]) == (4, 16, 64)


def test_sizes_that_are_given_stay() -> None:
    vary = Vary(ranks=(2,), dtypes=("bf16",), exact=True)
    target = Target(names=(KINDS,), programs=("gemm_ar",), sets=("Ms=64", "N=2048", "K=2048"), vary=vary)
    (one,) = subjects_of(target, base_of, tables_of)
    assert [feature.name for feature in one.features] == ["schedule", "ranks", "dtype", "routing", "launch", "late"]


# Around the kernels -------------------------------------------------------------------------------------------


def bound_of(case: str) -> Bound:
    program, schedule = case.rsplit("-", 1)
    module = compiler.library_module(program)
    one = module.program(program)
    sizes = {param.name: 64 for param in one.params}
    return compiler.bound(one, module.schedule(schedule, one), ranks=3, dims=sizes, dtype="bf16", target="sm_90")


@pytest.mark.parametrize(
    "case",
    ["ag_gemm-copy_sms", "all_reduce_one_shot-small", "all_reduce_one_shot-large", "all_reduce_two_shot-small",
     "gemm_rs_local_last-copy_engine", "gemm_ar-h200"],
)  # fmt: skip
def test_helper_kernels_are_those_of_the_runtime(case: str) -> None:
    artifact, bound = case_of(case), bound_of(case)
    options = helper_options(artifact, recorded(artifact, 0), artifact.protocol.releases_copies)
    captured = helper_kernels(bound, captured=True)
    skips = not artifact.replays_in_turn
    assert replays_in_turn(bound) is not skips and ("skip_launches" in captured) is bool(options.skips)
    asked = skips or not artifact.protocol.in_kernels  # LaunchDriver.issue, end_launch
    assert ("close_launch" in captured) is asked
    assert ("open_launch" in captured) is (asked and artifact.needs_entry)
    assert ("await_outputs" in captured) is (asked and options.awaiting is not None)
    assert ("close_launch" in helper_kernels(bound, captured=False)) is not artifact.protocol.in_kernels


def test_few_rows_in_a_graph_have_much_around_them() -> None:
    (one,) = subjects(ranks=(2,), programs=("gemm_ar",))
    assert isinstance(one, Schedules)
    plain = [feature.plain for feature in one.features]
    launch = launch_of(one.simulated(one.workload(plain)), captured=True)
    assert (launch.helpers, launch.copies) == (3, 1) and launch.around > 0.25 * launch.seconds
    eager = launch_of(one.simulated(one.workload(plain)))
    assert eager.helpers == 2 and eager.seconds < launch.seconds


# The critical path --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["attention", "gemm_ar", "moe_reduce_scatter"])
def test_a_critical_path_is_as_long_as_the_launch(program: str) -> None:
    (one,) = subjects(ranks=(2,), programs=(program,))
    assert isinstance(one, Schedules)
    result = one.simulated(one.workload([feature.plain for feature in one.features]))
    path = critical_path(result)
    assert sum(part.seconds for part in path.values()) == pytest.approx(max(result.rank_seconds), rel=1e-6)
    assert {stage for stage, _ in path} - {""} <= {stage.name for stage in one.program.stages}


def test_a_path_leads_over_a_wait_to_what_it_waits_for() -> None:
    """With large products and hardly anything to send, what is waited for at the end is the product."""
    module = compiler.library_module("gemm_ar")
    program = module.program("gemm_ar")
    plan = compiler.plan(
        program, module.schedule("h200", program), ranks=2, dims={"Ms": 128, "N": 1024, "K": 8192}, dtype="bf16",
        target=MACHINE.processor,
    )  # fmt: skip
    path = critical_path(simulate(plan, MACHINE))
    assert max(path, key=lambda key: path[key].seconds) == ("gemm", "computes")


# Operators ----------------------------------------------------------------------------------------------------


def test_a_choice_is_beside_all_else_that_a_call_could_take() -> None:
    one = Choices(name="gemm_ar", machine=MACHINE, vary=Vary(ranks=(2,), dtypes=("bf16",), launches=("eager",)))
    names = [feature.name for feature in one.features]
    at = {"M": one.features[0].labels.index("64"), "N": 0, "K": 0}
    choices = [at.get(name, 0) for name in names]
    request = one.request(choices)
    ways = {way.name: way.seconds for way in one.ways(request)}
    chosen = one.chosen(request)
    assert {"unfused", chosen, "gemm_ar_batch:h200_64x32", "all_reduce_one_shot_pushed:few"} <= ways.keys()
    regret = next(found for found in one.rated(choices).anomalies if found.kind == "regret")
    assert regret.seconds == ways[chosen] and regret.against == min(ways.values())


# Jumps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "matters"),
    [
        (
            Target(names=("ag_gemm",), programs=("ag_gemm",), schedules=("h200_fewer",),
                   sets=("Ms=1024", "N=1000", "K=4096")),
            {"Ms", "N", "K"},
        ),
        (Target(names=("all_reduce_residual",), sets=("M=128,129", "N=5120")), {"M"}),
    ],
    ids=["program", "operator"],
)  # fmt: skip
def test_a_jump_does_not_depend_on_what_is_sampled(target: Target, matters: set[str]) -> None:
    """One more row gives the program a second wave of tiles, and the call another implementation: in graphs as well,
    and whenever ranks launch, though a hunt looks for jumps elsewhere there. The command of the case shows it."""
    vary = Vary(ranks=(2,), dtypes=("bf16",), late=(0.0, 20e-6))
    given = subjects_of(replace(target, vary=vary), base_of, tables_of)
    found = hunt(given, strategy("evolution"), points=2, top=9)
    (case,) = (one for one in found.cases if one.anomaly.kind == "jump")
    assert {one.feature for one in case.conditions if not one.every} <= matters, when(case)
    said = CliRunner().invoke(app, shlex.split(case.subject.command(case.choices))[1:])
    assert said.exit_code == 0 and f"{case.anomaly.ratio:.2f} x, a small change of size" in said.stdout, said.output
