# pyright: basic
"""Loops over tiles that are one software pipeline: where they are written so, and what Triton makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.backend.samples import numbered
from tests.runtime.ptx import depths, guarded_loads, text, tokens
from tests.tiers import thorough
from tilelink import compiler
from tilelink.backend import store
from tilelink.backend.context import signature
from tilelink.backend.emit import emit
from tilelink.runtime.cuda.compile_offline import compile_source, resources
from tilelink.scheduling.schedule import Schedule

DIMS = {"Ms": 1024, "N": 3584, "K": 8192}
TILES = 4 * (1024 // 128) * (3584 // 256)
Change = Callable[[Schedule], Schedule]


def as_it_is(schedule: Schedule) -> Schedule:
    return schedule


def small(schedule: Schedule) -> Schedule:
    """Tiles that processors without a bulk-copy unit can hold."""
    return schedule.tile("gemm", i=64, j=128, k=32).knobs("gemm", num_warps=4, num_stages=3)


def sliced(schedule: Schedule) -> Schedule:
    """Waits inside of the product."""
    return schedule.channel("xs", i=1024, k=1024)


def heads(
    program: str = "ag_gemm", change: Change = as_it_is, dims: dict[str, int] = DIMS, target: str = "sm_90",
    dialect: str = "triton",
) -> list[str]:  # fmt: skip
    """The heads of the loops over tiles that programs on SMs run, for the schedule `h200`, with a change and whole
    tiles."""
    one = compiler.load("ag_gemm").program(program)
    schedule = change(compiler.load("ag_gemm").schedule("h200", one)).split_k_tail("gemm", None)
    source = compiler.source(one, schedule, ranks=4, dims=dims, dtype="bf16", target=target, dialect=dialect)
    return re.findall(r"for tile in tl\.range\((.*)\):", numbered(source))


FLAT, NESTED = "flatten=True", "num_stages=1"


def test_a_loop_is_flat_where_the_schedule_says_so() -> None:
    assert heads() == [f"pid, {TILES}, num_programs, {FLAT}"]
    assert heads(change=lambda s: s.flatten("gemm", False)) == [f"pid, {TILES}, num_programs, {NESTED}"]


def test_each_loop_of_a_kernel_is_flat_by_itself() -> None:
    """132 programs share 112 tiles of the first loop and 336 of the second."""
    second = "(pid + 20) % num_programs, 336, num_programs"
    assert heads("ag_gemm_in_place") == [f"pid, 112, num_programs, {NESTED}", f"{second}, {FLAT}"]
    rows = {**DIMS, "Ms": 2048}
    second = "(pid + 40) % num_programs, 672, num_programs"
    assert heads("ag_gemm_in_place", dims=rows) == [f"pid, 224, num_programs, {FLAT}", f"{second}, {FLAT}"]
    first = heads("ag_gemm_in_place", lambda s: s.flatten("gemm", False), rows)
    assert first == [f"pid, 224, num_programs, {FLAT}", f"{second}, {NESTED}"]


@pytest.mark.parametrize(("columns", "end"), [(33 * 256, NESTED), (34 * 256, FLAT)])
def test_programs_of_one_tile_have_no_next_tile(columns: int, end: str) -> None:
    (head,) = heads(dims={**DIMS, "Ms": 128, "N": columns})
    assert head == f"pid, {4 * columns // 256}, num_programs, {end}"


@pytest.mark.parametrize(
    ("target", "dialect"), [("sm_90", "traced"), ("sm_90", "triton_dist"), ("gfx942", "triton")], ids=str
)
def test_loops_stay_nested_where_nobody_may_look_ahead(target: str, dialect: str) -> None:
    (head,) = heads(change=small, target=target, dialect=dialect)
    assert head.endswith(NESTED)


@cache
def kernel(target: str, change: Change) -> Any:
    """The compiled product of the schedule `h200`, with a change and whole tiles."""
    module = compiler.load("ag_gemm")
    program = module.program("ag_gemm")
    schedule = change(module.schedule("h200", program)).split_k_tail("gemm", None)
    plan = compiler.plan(program, schedule, ranks=4, dims=DIMS, dtype="bf16", target=target)
    result = emit(plan.bound, plan.thresholds)
    one = next(k for k in result.kernels if k.name == "gemm")
    return compile_source(
        store.load(store.save(result.text)).gemm, signature(one, plan.bound), {"debug_block": None}, plan.bound.target,
        num_warps=one.num_warps, num_stages=one.num_stages,
    )  # fmt: skip


COMPILED = {"sm_80": small, "sm_89": small, "sm_90": as_it_is, "sm_90 in slices": sliced}
COPIES = {"sm_80": "async_copy_global_to_local", "sm_90": "async_tma_copy_global_to_local"}


def compiled(name: str) -> tuple[Any, str]:
    """A kernel, and what its copies into shared memory are called."""
    target = name.split()[0]
    return kernel(target, COMPILED[name]), COPIES["sm_90" if target == "sm_90" else "sm_80"]


@thorough(unless=lambda name: name != "sm_89")  # as sm_80
@pytest.mark.parametrize("name", COMPILED)
def test_a_flat_loop_is_one_pipelined_loop(name: str) -> None:
    found, copies = compiled(name)
    products = [body for body in found.asm["ttgir"].split("scf.for")[1:] if "dot" in body]
    assert len(products) == 1
    assert set(depths(found, r"warp_group_dot |tt\.dot ")) == {1}
    inside = depths(found, copies)
    assert inside.count(1) == 2 and inside.count(0) == 2 * (found.metadata.num_stages - 1), "a and b, ahead of the loop"
    used = resources(found)
    assert used["STACK"] == used["LOCAL"] == 0 < used["REG"], "registers were spilled"


@thorough(unless=lambda name: name != "sm_89")  # as sm_80
@pytest.mark.parametrize("name", COMPILED)
def test_the_next_tile_is_waited_for_before_it_is_loaded(name: str) -> None:
    """Once ahead of the loop and once in it: in front of the copies, whose coordinates depend on it, and of the store
    of the tile before."""
    found, copies = compiled(name)
    assert depths(found, "POLL") == [0, 1]
    body = found.asm["ttgir"].rsplit("scf.for", 1)[1]
    order = [re.search(rf"POLL|{copies}|tt\.store", line) for line in body.splitlines()]
    assert [one.group() for one in order if one] == ["POLL", copies, copies, "tt.store"]
    ptx = text(found)
    assert len(tokens(ptx)) == 2
    guarded = guarded_loads(ptx)
    if name.startswith("sm_90"):
        assert guarded == [True, False] * found.metadata.num_stages, "rows of peers, and the own columns"
    else:
        assert guarded.count(True) * 2 == guarded.count(False) > 0, "64 rows of peers, and 128 columns"


def test_without_it_the_pipeline_ends_with_each_tile() -> None:
    nested = kernel("sm_90", lambda s: s.flatten("gemm", False))
    assert set(depths(nested, "warp_group_dot ")) == {2}
    assert depths(nested, "POLL") == [1]
