"""Kernels of several nodes compiled for a GPU with NVSHMEM's bitcode. Skipped where the library is not installed.

The wheel nvidia-nvshmem-cu13 has it, or the folder that TILELINK_NVSHMEM names.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilelink import compiler, load
from tilelink.backend import store
from tilelink.backend.context import signature
from tilelink.backend.emit import emit
from tilelink.generated import load_module
from tilelink.runtime.cuda.compile_offline import compile_source
from tilelink.runtime.nvshmem import clock, helper_kernels
from tilelink.runtime.nvshmem.bitcode import ADVICE, find_bitcode, libraries
from tilelink.settings import environment, settings
from tilelink.target import target
from tilelink.tuning.prepare import Point, kept, prepare_all

NEEDED = pytest.mark.skipif(find_bitcode(90) is None, reason=f"no bitcode of NVSHMEM: {ADVICE}")
COMPILING = pytest.mark.skipif(settings().interpret, reason="Triton interprets in this process")


def compiled(nodes: int) -> dict[str, Any]:
    """The kernels of an all-gather in two levels for sm_90, with the bitcode for those that use the network."""
    module = load("two_level_all_gather")
    program = module.program()
    dims = {"Ms": 64, "K": 64, "g": 2}
    plan = compiler.plan(
        program, module.schedule("copy_sms", program), ranks=4, nodes=nodes, dims=dims, dtype="bf16", target="sm_90"
    )  # fmt: skip
    emitted = emit(plan.bound, plan.thresholds)
    source = load_module(store.save(emitted.text))
    found: dict[str, Any] = {}
    for one in emitted.kernels:
        function, types = getattr(source, one.name), signature(one, plan.bound)
        absent = dict.fromkeys(name for name in function.arg_names if name not in types)
        linked = libraries(90) if one.uses_network else {}
        found[one.name] = compile_source(function, types, absent, "sm_90", num_warps=4, libraries=linked)
    return found


@COMPILING
def test_kernels_of_one_node_know_nothing_of_it() -> None:
    kernels = compiled(nodes=1)
    assert all("nvshmem" not in one.asm["llir"] + one.asm["ptx"] for one in kernels.values())


@COMPILING
@NEEDED
@pytest.mark.timeout(900)
def test_kernels_that_reach_other_nodes_put_with_a_signal_and_others_are_not_linked() -> None:
    kernels = compiled(nodes=2)
    across, inside = kernels["across"], kernels["inside"]
    assert "@nvshmemx_putmem_signal_nbi_block" in across.asm["ttgir"] or "nvshmemx_putmem_signal" in across.asm["ttir"]
    assert "nvshmemi_device_state_d" in across.asm["ptx"]
    assert "nvshmem" not in inside.asm["llir"] + inside.asm["ptx"]
    # Its counters are words of 64 bits, which one wait for many of them steps over.
    assert "signals: !tt.ptr<i64>" in inside.asm["ttir"].replace("%signals", "signals")


POINTERS = {"signals": "*i64", "signal_table": "*i64", "epoch_pointer": "*i64", "debug_block": "*i64", "exits": "*i32"}
NUMBERS = {"rank": "i32", "entered": "i32", "count": "i32", "finished": "i32", "lag": "i32", "peer": "i32"}
CLOCKS = {"mail": "*i64", "answers": "*i64", "own": "*i64"}
COPIES = {"tensor": "*bf16", "buffers": "*bf16"}
TYPES = {**POINTERS, **NUMBERS, **CLOCKS, **COPIES}
VALUES = {
    "RANKS": 4, "BLOCK": 4, "NODE": 4, "STAGE": 2, "ROW": 66, "ROUNDS": 64, "COUNT": 65536, "BUFFERS": 2,
}  # fmt: skip


def helper(function: Any, linked: bool, deadline: bool) -> Any:
    """A helper kernel for sm_90. linked: with other nodes. deadline: its waits have one."""
    values = {**VALUES, "NODE": 2 if linked else 4, "BLOCK": 4 if "RANKS" in function.arg_names else 4096}
    values |= {} if deadline else {"debug_block": None}
    types = {name: TYPES[name] for name in function.arg_names if name not in values}
    constants = {name: values[name] for name in function.arg_names if name in values}
    return compile_source(function, types, constants, "sm_90", libraries=libraries(90) if linked else {})


@COMPILING
@pytest.mark.parametrize("deadline", [False, True])
@pytest.mark.parametrize("name", ["open_launch", "await_outputs", "close_launch", "fill_buffer", "empty_buffer"])
def test_helper_kernels_inside_a_node_are_compiled_without_the_library(name: str, deadline: bool) -> None:
    made = helper(getattr(helper_kernels, name), False, deadline)
    assert "nvshmemx" not in made.asm["ttir"] and "nvshmemi" not in made.asm["ptx"]
    assert ("ld.global.v4" in made.asm["ptx"]) == ("buffer" in name)  # copies are of 16 bytes a thread


@COMPILING
@NEEDED
@pytest.mark.timeout(900)
@pytest.mark.parametrize("function", [helper_kernels.open_launch, helper_kernels.close_launch, clock.ping, clock.pong])
def test_helper_kernels_that_reach_other_nodes_signal_by_the_network(function: Any) -> None:
    made = helper(function, True, function in (clock.ping, clock.pong))
    assert "nvshmemx_signal_op" in made.asm["ttir"] or "nvshmemx_putmem_signal" in made.asm["ttir"]


@COMPILING
@NEEDED
@pytest.mark.timeout(900)
def test_a_pool_compiles_what_ranks_of_several_nodes_launch(tmp_path: Path) -> None:
    module = load("two_level_all_gather")
    program = module.program()
    one = Point(
        program=program, schedule=module.schedule("copy_sms", program), dims={"Ms": 64, "K": 64, "g": 2}, dtype="bf16",
        ranks=4, nodes=2, target=target("sm_90"), deadlines=(False,),
    )  # fmt: skip
    with environment(TILELINK_CACHE=str(tmp_path), TRITON_CACHE_DIR=str(tmp_path / "triton")):
        assert prepare_all([one], workers=1, seconds=300) == [""]
        assert kept(one) is not None
        made = {file.stem for file in (tmp_path / "triton").rglob("*.cubin")}
    assert made >= {"across", "inside", "close_launch", "empty_buffer", "await_outputs"}
    assert replace(one, nodes=1).file != one.file
