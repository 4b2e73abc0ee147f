# pyright: basic
"""Generated products on tensor cores: software-pipelined, behind their waits, signalled after their stores."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.ptx import depths, events, guarded_loads, text, tokens
from tests.tiers import thorough
from tilelink import compiler
from tilelink.backend import store
from tilelink.backend.context import signature
from tilelink.backend.emit import emit
from tilelink.runtime.cuda.compile_offline import compile_source, resources

BYTES = 2
LARGE = {"i": 128, "j": 256, "k": 64}
SMALL = {"i": 64, "j": 128, "k": 32}
TARGETS = {"sm_80": (SMALL, 4), "sm_89": (SMALL, 4), "sm_90": (LARGE, 8)}
BUFFERS = {"sm_80": 2, "sm_89": 2, "sm_90": 3}
"""Of a loop in three stages: without the bulk-copy unit, the step that is multiplied was just waited for."""
SHAPES = {"sm_90": 4}
"""Descriptors bring the shape of their tensor, a number for each axis."""
DIMS = {"Ms": 1024, "N": 2048, "K": 4096}
GEMMS = {
    "ag_gemm": "gather on copy_engine, tile(i=1024)",
    "gemm_rs_ring": "",
    "gemm_rs_scatter": "scatter in gemm epilogue",
    "gemm_rs_slots": "scatter on copy_engine, tile(i=1024, j=2048)",
    "gemm_ar": "",
}
"""Programs of the library with a stage `gemm`, and what their schedules need beside it."""
SEEN = {"ag_gemm": "sm_80", "gemm_rs_ring": "sm_89", "gemm_rs_slots": "sm_80"}
"""What the default tier compiles for the older processors, whose copies and products are alike."""
ORDERS = {"ag_gemm": "rank step +1", "gemm_rs_ring": "rank - 1 step -1"}


def kernel(name: str, target: str, stages: int, channels: str = "", dims: dict[str, int] | None = None) -> Any:
    """The compiled `gemm` of a library program."""
    module = compiler.load(name)
    program = module.program(name)
    tile, warps = TARGETS[target]
    order = f", order(s = {ORDERS.get(name, 'rank + 1 step +1')})" if name != "gemm_ar" else ""
    lines = [f"schedule here for {name}:", *([f"    {GEMMS[name]}"] if GEMMS[name] else [])]
    sizes = ", ".join(f"{k}={v}" for k, v in tile.items())
    lines.append(f"    gemm on sm, tile({sizes}){order}, num_warps {warps}, num_stages {stages}")
    lines += [f"    {channels}"] if channels else []
    schedule = compiler.parse(f"{program}\n\n" + "\n".join(lines)).schedules[0]
    sizes = {p.name: (dims or DIMS).get(p.name, 2048) for p in program.params}
    plan = compiler.plan(program, schedule, ranks=4, dims=sizes, dtype="bf16", target=target)
    result = emit(plan.bound, plan.thresholds)
    module_of = store.load(store.save(result.text))
    one = next(k for k in result.kernels if k.name == "gemm")
    return compile_source(
        module_of.gemm, signature(one, plan.bound), {"debug_block": None}, plan.bound.target,
        num_warps=one.num_warps, num_stages=one.num_stages,
    )  # fmt: skip


@thorough(unless=lambda name, target: target == "sm_90" or SEEN.get(name) == target)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GEMMS)
def test_products_are_software_pipelined(name: str, target: str) -> None:
    compiled = kernel(name, target, 3)
    ptx = text(compiled)
    tile, _ = TARGETS[target]
    assert compiled.metadata.shared >= BUFFERS[target] * (tile["i"] + tile["j"]) * tile["k"] * BYTES
    used = resources(compiled)
    assert used["STACK"] == used["LOCAL"] == 0 < used["REG"], "registers were spilled"
    if target == "sm_90":
        assert "wgmma.mma_async" in ptx and "cp.async.bulk.tensor" in ptx
    else:
        assert "mma.sync" in ptx and "cp.async.cg.shared.global" in ptx


@thorough(unless=lambda target: target != "sm_89")
@pytest.mark.parametrize("k", ["", ", k=1024"], ids=["whole", "slices"])
@pytest.mark.parametrize("target", TARGETS)
def test_only_what_others_write_is_loaded_behind_the_waits(target: str, k: str) -> None:
    compiled = kernel("ag_gemm", target, 3, f"xs channel(i=1024{k}), buffers 2")
    ptx = text(compiled)
    tile, _ = TARGETS[target]
    assert compiled.metadata.shared >= BUFFERS[target] * (tile["i"] + tile["j"]) * tile["k"] * BYTES
    found = guarded_loads(ptx)
    # an operand takes one load through a descriptor, or loads by its rows
    share = len(found) // 2 if target == "sm_90" else len(found) * tile["i"] // (tile["i"] + tile["j"])
    assert found.count(True) == share > 0
    assert len(tokens(ptx)) == (2 if k else 1), "before the loop, or in its prologue and in the loop"


@thorough(unless=lambda target: target != "sm_89")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("name", "channels"), [("ag_gemm", "xs channel(i=1024, k=1024), buffers 2"), ("gemm_rs_ring", "")]
)
def test_waits_are_barriers_and_fences(name: str, channels: str, target: str) -> None:
    found = events(text(kernel(name, target, 3, channels)), "poll", "less", "barrier", "proxy", "load")
    polls = [at for at, kind in enumerate(found) if kind == "poll"]
    assert polls
    for at in polls:
        assert found[at : at + 3] == ["poll", "less", "barrier"]
        assert (found[at + 3 : at + 4] == ["proxy"]) == (target == "sm_90")


@thorough(unless=lambda name, target: target != "sm_89" and (target != "sm_80" or name == "gemm_rs_slots"))
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["gemm_rs_ring", "gemm_rs_scatter", "gemm_rs_slots"])
def test_a_tile_is_notified_before_the_next_one_waits(name: str, target: str) -> None:
    compiled = kernel(name, target, 3)
    assert set(depths(compiled, r"warp_group_dot |tt\.dot ")) == {2}, "the loops over tiles and steps were fused"
    assert set(depths(compiled, "red.release")) == {1}
    assert 2 not in depths(compiled, "POLL") or name == "gemm_rs_slots", "only the sum over ranks waits in a loop"


@pytest.mark.parametrize("name", ["gemm_rs_ring", "gemm_rs_scatter", "gemm_rs_slots"])
def test_signals_follow_a_barrier_behind_the_stores(name: str) -> None:
    ptx = text(kernel(name, "sm_90", 3))
    found = events(ptx, "store", "barrier", "thread 0", "release", "poll")
    releases = [at for at, kind in enumerate(found) if kind == "release"]
    assert releases
    for at in releases:
        assert found[at - 2 : at] == ["barrier", "thread 0"]
        assert "store" in found[: at - 2]


@pytest.mark.parametrize("target", TARGETS)
def test_one_binary_serves_every_rank_and_launch(target: str) -> None:
    ptx = text(kernel("ag_gemm", target, 3))
    entry = ptx[ptx.index(".entry") : ptx.index("{")]
    assert entry.count(".param .u32") - SHAPES.get(target, 0) == 3, "rank, first_program and num_programs"
    assert "%late bra POLL" in ptx, "a wait is for at least its target, so that counters need no reset"
