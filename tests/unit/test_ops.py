# pyright: basic
"""Operators on torch tensors, on CPU ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiers import one_in, thorough
from tests.unit.two_ranks import run_on_two_ranks
from tilelink.compiler.cuda import gpu_artifact
from tilelink.errors import RankError, UnknownNameError
from tilelink.ops import choice, operators, rows

SCENARIOS = {
    "torch": (
        "unfused",
        "mistakes",
        "into_mistakes",
        "into_compiled",
        "scaled",
        "scaled_compiled",
        "scaled_mistakes",
        "followed_mistakes",
        "uneven",
        "uneven_later",
        "absent",
        "alone",
        "unlike",
        "unlike_weights",
        "no_tensors",
        "batches",
        "gradients",
        "partial_gradients",
        "tangents",
        "checks",
        "layers",
        "regrouped",
    ),
    "kernels": (
        "fused",
        "into",
        "paired",
        "rounded_once",
        "between_nodes",
        "chosen",
    ),  # the last stands in for more than the others
    "compiled": ("compiled",),
    "more kernels": ("any_rows", "added"),
    "many calls": ("prepared", "rooms", "apart"),
}
"""Those in which torch's own operators compute, and those in which something stands in for kernels.

The last of the first makes another group.
"""


@thorough(unless=lambda kind: kind in ("torch", "kernels", "many calls"))  # tests of tilelink.op compile operators too
@pytest.mark.parametrize("kind", SCENARIOS)
def test_on_two_ranks(kind: str) -> None:
    run_on_two_ranks("tests.unit.ops_scenarios", SCENARIOS[kind])


def test_few_rows_are_not_fused() -> None:
    assert choice.choose("ag_gemm", 8192, 1376, 4096, 8) == "h200"
    assert choice.choose("gemm_rs", 2048, 4096, 1376, 8) == "h200"
    assert choice.choose("ag_gemm", 2040, 1376, 4096, 8) == "all_gather_kept:more"
    assert choice.choose("ag_gemm", 1024, 3584, 4096, 4) == "h200"
    assert choice.choose("ag_gemm", 1022, 3584, 4096, 2) == "all_gather_kept:more"
    assert choice.choose("gemm_rs", 1024, 4096, 3584, 4) == "reduce_scatter_pushed:more"
    assert choice.choose("gemm_rs", 1024, 8192, 3584, 16) == "reduce_scatter_pushed:more"
    assert choice.choose("gemm_rs", 1024, 8200, 3584, 16) == "unfused"


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        ("ag_gemm", (8192, 1376, 4096, 1)),
        ("ag_gemm", (8192, 1377, 4096, 8)),
        ("ag_gemm", (8192, 1376, 4097, 8)),
        ("gemm_ar", (8192, 4096, 1376, 8)),
        ("all_reduce", (8192, 4096, 4096, 8)),
    ],
)
def test_what_kernels_do_not_do_well_stays_unfused(op: str, sizes: tuple[int, int, int, int]) -> None:
    assert choice.choose(op, *sizes) == "unfused"


@pytest.mark.parametrize(
    ("op", "sizes", "expected"),
    [
        ("all_reduce", (4, 4096, 4096, 2), "all_reduce_one_shot_pushed:words"),
        ("all_reduce", (8, 4096, 4096, 2), "all_reduce_one_shot_pushed:few"),
        ("all_reduce", (4, 4096, 4096, 4), "all_reduce_one_shot_pushed:few"),  # three peers send as much as 12 rows
        ("all_reduce", (128, 4096, 4096, 2), "all_reduce_one_shot_pushed:few"),
        ("all_reduce", (128, 4096, 4096, 4), "all_reduce_two_shot_pushed:more"),
        ("all_reduce_residual", (4, 4096, 4096, 2), "all_reduce_one_shot_residual:h200_words"),
        ("all_reduce_residual", (64, 4096, 4096, 2), "all_reduce_one_shot_residual:h200"),
        ("all_reduce_norm", (16, 4096, 4096, 2), "all_reduce_one_shot_norm:h200_words"),
        ("all_reduce_norm", (32, 4096, 4096, 2), "all_reduce_one_shot_norm:h200"),
        ("all_reduce_norm", (128, 4096, 4096, 4), "unfused"),
        ("all_reduce", (4, 4097, 4097, 2), "unfused"),
        ("all_reduce", (1, 4096, 4096, 4), "all_reduce_one_shot_pushed:words"),
        ("gemm_ar", (4, 12288, 64, 2), "all_reduce_one_shot_pushed:few"),
    ],
)
def test_sums_of_few_rows_are_taken_in_one_step(op: str, sizes: tuple[int, int, int, int], expected: str) -> None:
    assert choice.choose(op, *sizes) == expected


def test_every_program_of_an_operator_has_the_schedule_that_is_chosen() -> None:
    from tilelink import compiler

    for name in (name for one in operators.RECORDS for name in one.programs.values()):
        module = compiler.load(name)
        assert module.schedule(operators.SCHEDULE, module.program(name)).name == operators.SCHEDULE


@pytest.mark.parametrize(
    ("thresholds", "op", "sizes", "before", "after"),
    [
        ({"fused_gather_rows": 4096}, "ag_gemm", (2048, 3584, 4096, 4), "h200", "all_gather_kept:more"),
        ({"fused_scatter_rows": 1024}, "gemm_rs", (1024, 4096, 3584, 4), "reduce_scatter_pushed:more", "h200"),
        ({"fused_rank_rows": 1024}, "gemm_rs", (2048, 8192, 3584, 4), "h200", "unfused"),
        ({"small_gather_bytes": 1}, "ag_gemm", (512, 3584, 4096, 4), "all_gather_kept:more", "unfused"),
        ({"small_scatter_bytes": 1}, "gemm_rs", (512, 4096, 64, 4), "reduce_scatter_pushed:more", "unfused"),
        ({"small_reduce_bytes": 1}, "gemm_ar", (512, 4096, 64, 4), "all_reduce_two_shot_pushed:more", "unfused"),
        ({"one_shot_bytes": 1}, "gemm_ar", (8, 12288, 64, 4), "all_reduce_one_shot_pushed:few",
         "all_reduce_two_shot_pushed:more"),
        ({"small_tiles": 1}, "gemm_ar", (8, 12288, 64, 4), "all_reduce_one_shot_pushed:few", "unfused"),
    ],
)  # fmt: skip
def test_the_rule_has_its_thresholds_from_the_machine(
    thresholds: dict[str, int], op: str, sizes: tuple[int, int, int, int], before: str, after: str
) -> None:
    assert choice.choose(op, *sizes) == before
    assert choice.choose(op, *sizes, machine=replace(choice.DEFAULTS, **thresholds)) == after


@pytest.mark.parametrize("asked", [{"modelled_rows": 2048}, {"modelled_rank_rows": 512}])
def test_the_model_is_asked_from_so_many_rows_on_as_the_machine_says(asked: dict[str, int]) -> None:
    assert choice.worth_asking("gemm_rs", 1024, 4096, 4096, 4)
    assert not choice.worth_asking("gemm_rs", 1024, 4096, 4096, 4, replace(choice.DEFAULTS, **asked))


def test_rows_of_sums_are_rounded_up_to_few_numbers() -> None:
    for ranks in (2, 3, 8):
        found = [choice.rounded_rows(M, ranks) for M in range(1, 2049)]
        assert all(rows >= M and rows % ranks == 0 for M, rows in enumerate(found, start=1))
        assert all(rows - M < max(8 * ranks, M / 8 * ranks) for M, rows in enumerate(found, start=1))
        assert found == sorted(found)
    found = [choice.rounded_rows(M, 4) for M in range(1, 2049)]
    assert all(rows - M <= max(7, M / 8) for M, rows in enumerate(found, start=1))
    assert found[:5] == [4, 4, 4, 4, 8] and [choice.rounded_rows(M) for M in range(1, 6)] == [1, 2, 4, 4, 8]
    assert len(set(found)) == 1 + 8 + 8 * 5
    assert choice.rounded_rows(512, 4) == 512 and choice.rounded_rows(513, 4) == 576


def test_few_numbers_of_rows_have_kernels() -> None:
    for op, ranks in (("ag_gemm", 4), ("gemm_rs", 4), ("gemm_ar", 3)):
        operator, parts = operators.OPERATORS[op], 4 if op == "gemm_rs" else 1
        there = rows.kernel_rows(operator, 4096 * parts, ranks)
        assert there == sorted(set(there)) and there[-1] >= 4096 * parts and len(there) < 80
        for count in (1, 2, 3, 5, 60, 63, 65, 1000, 2049, 4096):
            found = rows.rows_of(operator, count * parts, ranks)
            assert found.parts * found.kernel in there and found.kernel >= count
            assert found.kernel - count <= max(23, count / (8 if count < 2048 else 16) * (3 if ranks == 3 else 1))
            assert rows.rows_of(operator, count * parts, ranks, exact=True).fit
    assert rows.kernel_rows(operators.OPERATORS["ag_gemm"], 100, 4)[:9] == [1, 2, 4, 8, 16, 24, 32, 40, 48]


FEW = [way for one in operators.RECORDS if one.few is not None for way in one.few.tiles]


@thorough(unless=lambda way: one_in(4, way))
@pytest.mark.parametrize("way", FEW)
def test_kernels_for_few_rows_are_captured_as_they_are_launched(way: str) -> None:
    from tilelink import compiler

    name, _, schedule = way.partition(":")
    program = compiler.load(name).program(name)
    numbers = {p.name: {"M": 64, "eps": 1e-5}.get(p.name, 512) for p in program.params}
    found = compiler.load(name).schedule(schedule, program)
    plan = compiler.plan(program, found, ranks=2, dims=numbers, dtype="bf16", target="sm_90")
    assert gpu_artifact(plan).replays_in_turn


SMALL = [(way, one.small) for one in operators.RECORDS if one.small is not None for way in one.small.schedules]


@pytest.mark.parametrize(("way", "small"), SMALL, ids=[way for way, _ in SMALL])
def test_kernels_that_only_communicate_are_there_and_safe(way: str, small: operators.SmallMessage) -> None:
    from tilelink import compiler

    name, _, schedule = way.partition(":")
    program = compiler.load(name).program(name)
    numbers = {p.name: 128 if p.name in ("M", "Ms") else 512 for p in program.params}
    found = compiler.load(name).schedule(schedule, program)
    plan = compiler.plan(program, found, ranks=8, dims=numbers, dtype="bf16", target="sm_90")  # or it raises
    assert [kernel.reuse_lag for kernel in plan.bound.kernels] == [0], "one kernel that waits for no earlier launch"
    assert gpu_artifact(plan).replays_in_turn, "it is captured as it is launched, without helper kernels"
    if way == small.schedule:
        tiles = next(iter(plan.bound.stages.values())).tiles
        assert tuple(tiles.values())[1:] == small.tile, "the rule counts what moves by these"


def test_a_program_that_there_is_not() -> None:
    with pytest.raises(UnknownNameError, match="gemm_rs with gated"):
        operators.program_of("gemm_rs", "gated")


def test_calls_on_gpus_are_compared_each_time_where_that_is_asked_for() -> None:
    import torch

    from tilelink.ops.consensus import compares_each
    from tilelink.settings import override

    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert compares_each(cpu) and not compares_each(gpu)
    with override(check=True):
        assert compares_each(gpu)


def test_a_process_that_is_no_rank_is_told_so() -> None:
    import torch

    from tilelink import ops

    with pytest.raises(RankError, match="no rank"):
        ops.all_gather(torch.ones(2))


def test_files_of_the_current_folder_are_not_taken_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilelink.ops import calls, predict

    expected = predict.gpu_schedules("ag_gemm", "")
    for name in {"ag_gemm", *(program.name for program, _ in expected)}:
        (tmp_path / name).write_text("not a program")
    monkeypatch.chdir(tmp_path)
    predict.programs_for.cache_clear()
    predict.gpu_schedules.cache_clear()
    assert predict.gpu_schedules("ag_gemm", "") == expected
    assert calls._resolve("h200", "ag_gemm", "")[0].name == "ag_gemm_in_place"
    for way in ("ag_gemm:copy_sms", expected[0][1]):
        assert calls._resolve(way, "ag_gemm", "")[0].name in {program.name for program, _ in expected}
    with pytest.raises(UnknownNameError, match="no program 'mine' in the library"):
        calls._resolve("mine:h200", "ag_gemm", "")
