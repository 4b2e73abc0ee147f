"""Kernels of several nodes compiled for a GPU with NVSHMEM's bitcode. Skipped where the library is not installed.

The wheel nvidia-nvshmem-cu13 has it, or the folder that TILELINK_NVSHMEM names.
"""

from __future__ import annotations

from typing import Any

import pytest

from tilelink import compiler, load
from tilelink.backend import store
from tilelink.backend.context import signature
from tilelink.backend.emit import emit
from tilelink.generated import load_module
from tilelink.runtime.cuda.compile_offline import compile_source
from tilelink.runtime.nvshmem.bitcode import ADVICE, find_bitcode, libraries
from tilelink.settings import settings

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
