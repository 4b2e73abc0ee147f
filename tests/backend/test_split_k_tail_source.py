# pyright: basic
"""What is generated for tiles in parts: loops, loads through descriptors up to the end, masks where a tile is cut."""

from __future__ import annotations

import re
from math import ceil

import pytest

from tests.backend.offline import compile_all
from tests.backend.samples import numbered
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.runtime.cuda.compile_offline import resources

DIMS = {"Ms": 2048, "N": 2752, "K": 4096}  # 704 tiles on 132 programs: 44 are left, for three parts each
PARTS, SUMS = "gemm_split + tail * 98304 + part * 32768", "gemm_split, token) + tail * 98304"


def source(dims: dict[str, int], program: str = "ag_gemm_in_place", target: str = "sm_90") -> str:
    own = compiler.load("ag_gemm").program(program)
    schedule = compiler.load("ag_gemm").schedule("h200", own)
    if target != "sm_90":
        schedule = schedule.tile("gemm", i=64, j=128, k=32).knobs("gemm", num_warps=4, num_stages=3)
        schedule = schedule.flatten("gemm", False)
    return compiler.source(own, schedule, ranks=4, dims=dims, dtype="bf16", target=target)


def loops(text: str) -> list[str]:
    """The loops over tiles, with their bodies."""
    return re.split(r"\n    for tile in ", numbered(text).split("@triton.jit")[1])[1:]


def test_its_loops_follow_those_of_whole_tiles() -> None:
    heads = [loop.split(":", 1)[0] for loop in loops(source(DIMS))]
    assert heads[2:] == [
        "tl.range(pid, 132, num_programs, num_stages=1)",
        "tl.range(pid, 88, num_programs, num_stages=1)",
    ]
    assert heads[1].startswith("tl.range((pid + 88) % num_programs, 484, ")


def test_no_loop_is_written_for_whole_tiles_that_there_are_not() -> None:
    """36 + 12 tiles in one wave of 132 programs, of which the last 36 are divided."""
    heads = [loop.split(":", 1)[0] for loop in loops(source({"Ms": 512, "N": 768, "K": 640}))]
    assert [re.findall(r", (\d+), num_programs", head)[0] for head in heads] == ["12", "72", "72"]


@pytest.mark.parametrize("k", [4096, 4104, 4160])
def test_parts_are_loaded_through_descriptors(k: int) -> None:
    """The last part ends before its last step: behind the last element there are zeros."""
    parts, sums = loops(source({**DIMS, "K": k}))[2:]
    steps = ceil(k / 64)
    inner = ceil(steps / 3) * 64
    assert f"range(0, {inner}, 64)" in parts
    assert parts.count("_boxes_") == 2 and "tl.load(" not in parts
    assert f"inner * {inner} + k" in parts and "i_in *" not in parts, "one tile of rows begins where it begins"
    assert PARTS in parts and "mask" not in parts
    assert sums.count(SUMS) == 3 and "_boxes_" not in sums


def test_masks_are_where_the_tensor_ends() -> None:
    """2752 columns are cut by the last tile, 2048 rows are not."""
    sums = loops(source(DIMS))[3]
    assert re.findall(r"mask=(.*)\)", sums) == ["(offs_j_in_1 < 2752)[None, :]"]
    whole = loops(source({**DIMS, "N": 3328}, "ag_gemm"))[-1]
    assert "gemm_split" in whole and "mask" not in whole
    cut = loops(source({**DIMS, "Ms": 2000}))[3]
    assert re.findall(r"mask=(.*)\)", cut) == ["(offs_i_in_1 < 2000)[:, None] & (offs_j_in_1 < 2752)[None, :]"]


def test_without_descriptors_parts_are_masked_at_the_end_of_the_contraction() -> None:
    parts = loops(source({"Ms": 2048, "N": 2752, "K": 4104}, "ag_gemm", "sm_80"))[-2]
    loads = [line for line in parts.splitlines() if "tl.load(" in line]
    assert len(loads) == 2 and all("< 4104" in line for line in loads)


@pytest.mark.parametrize("target", ["sm_90", "sm_80"])
def test_it_is_compiled_without_spills(target: str) -> None:
    program = compiler.load("ag_gemm").program("ag_gemm_in_place" if target == "sm_90" else "ag_gemm")
    schedule = compiler.load("ag_gemm").schedule("h200", program)
    if target == "sm_80":
        schedule = schedule.tile("gemm", i=64, j=128, k=32).knobs("gemm", num_warps=4, num_stages=3)
        schedule = schedule.flatten("gemm", False)
    plan = compiler.plan(program, schedule, ranks=4, dims=DIMS, dtype="bf16", target=target)
    assert "gemm_parts" in plan.bound.stages
    (found,) = compile_all(plan.bound, emit(plan.bound, plan.thresholds))
    used = resources(found)
    assert used["STACK"] == used["LOCAL"] == 0 < used["REG"]


LOOP = """\
program looped(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]

    compute make(i: M, j: N):
        acc = zeros(f32)
        for (h: K):
            acc += dot(x[i, h], w[j, h].T)
        y[i, j] = acc

schedule one for looped:
    make on sm, tile(i=128, j=128, h={}), num_warps 8
"""


@pytest.mark.parametrize(
    ("size", "k", "loads"), [(128, 1024, 2), (128, 1000, 2), (96, 960, 0), (96, 1000, 0), (1024, 1000, 2)]
)
def test_tiles_of_a_contraction_are_boxes_where_these_end_with_them(size: int, k: int, loads: int) -> None:
    """Steps of 64 elements: those of a tile of 96 would reach into the next one."""
    module = compiler.parse(LOOP.format(size))
    text = compiler.source(
        module.programs[0], module.schedules[0], ranks=1, dims={"M": 512, "N": 512, "K": k}, dtype="bf16",
        target="sm_90",
    )  # fmt: skip
    assert text.count("_boxes_128x64.load(") == loads
