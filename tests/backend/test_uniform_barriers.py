# pyright: basic, reportArgumentType=false
"""No barrier of a block depends on what its warps may decide differently."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton
import triton.language as tl

from tests.backend import test_tma_copy_source
from tests.backend.samples import emitted, in_dialect
from tests.backend.uniform_barriers import faults
from tests.compiler import library
from tests.runtime.ptx import text
from tests.runtime.test_device_ptx import PORTABLE
from tests.tiers import thorough
from tilelink import device as dl
from tilelink.backend import store
from tilelink.backend.context import signature
from tilelink.lowering.bind import bind
from tilelink.runtime.cuda import helper_kernels
from tilelink.runtime.cuda.compile_offline import compile_source
from tilelink.runtime.nvshmem import helper_kernels as nodes
from tilelink.target import target as named_target

pytestmark = pytest.mark.skipif(bool(dl.INTERPRETED), reason="kernels are interpreted here")

ALIKE = "epoch_pointer"
"""Programs are counted there while others begin; the quotient by their number is the launch's all the same."""


def found(kernel: Any, types: dict[str, str], values: dict[str, Any], target: Any, **options: Any) -> list[str]:
    ptx = text(compile_source(kernel, types, values, target, **options))
    places, at = dict[str, int](), 0
    for name in kernel.arg_names:
        if name in types:
            places[name] = at
            box = re.search(r"\[([\d, ]+)\]", types[name])
            at += 1 + 2 * (box[1].count(",") + 1 if box else 0)  # a descriptor comes with sizes and strides
    assert len(re.findall(r"^\s*\.param [^\n]*_param_\d+", ptx, re.M)) == at + 2, "scratch memory follows"
    return [str(fault) for fault in faults(ptx, alike={places[ALIKE]} if ALIKE in places else ())]


def with_deadline(types: dict[str, str], values: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    return types | {"debug_block": "*i64"}, {name: value for name, value in values.items() if name != "debug_block"}


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    "name", ["await_each", "await_all", "tell_each", "launch", "counted_launch", "copying_launch", "low_level"]
)
def test_the_device_library(name: str, target: str) -> None:
    kernel, types, values = PORTABLE[name]
    assert not found(kernel, types, values, target)
    if "debug_block" in kernel.arg_names:
        assert not found(kernel, *with_deadline(types, values), target)


HELPERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "open_launch": (helper_kernels.open_launch, {"RANKS": 4, "BLOCK": 4, "ENTERED": 0, "WAIT": True, "STAGE": 1}),
    "await_outputs": (helper_kernels.await_outputs, {"EXITS": 3, "STAGE": 1}),
    "close_launch": (
        helper_kernels.close_launch,
        {"RANKS": 4, "BLOCK": 4, "ENTERED": 0, "FINISHED": 4, "EXITS": 3, "COUNTERS": 9, "FLAGS": 2, "LAG": 1,
         "ENTRY": True, "STAGE": 1, "PROGRAMS": 0, "CYCLE": 2},
    ),
    "skip_launches": (
        helper_kernels.skip_launches,
        {"RANKS": 40, "BLOCK": 64, "ENTERED": 0, "FINISHED": 40, "COUNTERS": 9, "FLAGS": 2, "LAG": 1,
         "ENTRY": True, "STAGE": 1, "PROGRAMS": 6, "CYCLE": 2, "SLOT": 1},
    ),
    "close_launch of nodes": (nodes.close_launch, {"RANKS": 4, "BLOCK": 4, "NODE": 4, "STAGE": 1}),
}  # fmt: skip
POINTERS = {"signal_table": "*i64", "epoch_pointer": "*i64"}
NUMBERS = ("rank", "count", "finished", "lag")


@pytest.mark.parametrize("name", HELPERS)
def test_helper_kernels(name: str) -> None:
    kernel, values = HELPERS[name]
    names = [one for one in kernel.arg_names if one not in values]
    types = {one: "i32" if one in NUMBERS else POINTERS.get(one, "*i32") for one in names}
    assert not found(kernel, types | {"debug_block": "*i64"}, values, "sm_90")
    del types["debug_block"]
    assert not found(kernel, types, values | {"debug_block": None}, "sm_90")


LIBRARY = {
    "grouped_gemm-default": "triton",  # wait_each
    "ag_gemm-copy_engine": "triton",  # begin_copies
    "ag_gemm-h200_few": "triton",  # tiles by a counter
    "ag_gemm-h200_roles": "triton",
    "moe_experts-gpu_roles": "triton",  # consumers without rows
    "all_reduce_one_shot_pushed-words": "triton",
    "gated_expert_parallel-fine": "triton",
    "gemm_rs_ring-ring": "traced",  # always with a debug block, by which tracks are found
}


WITHOUT = ("grouped_gemm-default", "ag_gemm-copy_engine", "ag_gemm-h200_roles", "all_reduce_one_shot_pushed-words")
"""What is compiled without a deadline too."""


@thorough(unless=lambda name, deadline: deadline or name == "grouped_gemm-default")
@pytest.mark.parametrize(
    ("name", "deadline"), [*((name, True) for name in LIBRARY), *((name, False) for name in WITHOUT)]
)
def test_programs(name: str, deadline: bool) -> None:
    (case,) = (case for case in library.cases() if library.name(case) == name)
    target = named_target("sm_90")
    bound = bind(*case, library.fitted(case, library.wide(case[0], 4)), 4, target, "bf16")
    if LIBRARY[name] != "triton":
        bound = in_dialect(bound, LIBRARY[name])
    result = emitted(bound)
    module = store.load(store.save(result.text))
    for kernel in result.kernels:
        types, values = dict(signature(kernel, bound)), {"debug_block": None}
        if deadline:
            types, values = with_deadline(types, values)
        options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
        assert not found(getattr(module, kernel.name), types, values, target, **options), kernel.name


@pytest.mark.parametrize(("pull", "dialect", "deadline"), [(False, "triton", False), (True, "triton", True)])
def test_programs_of_one_warp(pull: bool, dialect: str, deadline: bool) -> None:
    ptx = text(test_tma_copy_source.compiled(test_tma_copy_source.bound(pull=pull), dialect, deadline))
    assert "mbarrier.init" in ptx and not faults(ptx)
    barrier = "bar.warp.sync 0xffffffff;"
    assert faults(ptx.replace(barrier, "bar.sync 0;")), "a barrier of the block in one of its programs"


READ = tl.constexpr("ld.acquire.sys.global.b32 $0, [$1];")


@triton.jit
def _latest(signals, channels, mask, aim):
    seen = tl.inline_asm_elementwise(READ, "=r,l", [signals + channels], dtype=tl.int32, is_pure=False, pack=1)
    return tl.max(tl.where(mask & (seen - aim < 0), channels, -1), axis=0)


@triton.jit
def _each_alone(signals, out, first, target, COUNT: tl.constexpr):
    """Waits for counters as `wait_each` once did, which was wrong: warps branch on counters that each reads itself."""
    channels = first + tl.arange(0, COUNT)
    mask = channels % 3 != 2
    late = _latest(signals, channels, mask, target)
    token = tl.cast(0, tl.int32)
    waits = tl.cast(0, tl.int32)
    while (late >= 0) & (waits < COUNT):
        token += dl.wait(signals, late, target, None, 2, 0)
        late = _latest(signals, channels, mask, target)
        waits += 1
    dl.publish()
    tl.store(out, dl.consume_token(tl.load(out) + 1, token))


@triton.jit
def _by_the_clock(signals, out, debug_block, COUNT: tl.constexpr):
    """Waits for counters until a deadline, which each thread sees by itself, with a barrier in the maximum of them."""
    at = tl.arange(0, COUNT)
    late = tl.load(debug_block + 1, volatile=True) != 0
    missing = tl.max(1 - tl.load(signals + at, volatile=True), axis=0)
    while (missing > 0) & (late == 0):
        missing = tl.max(1 - tl.load(signals + at, volatile=True), axis=0)
        late = tl.load(debug_block + 1, volatile=True) != 0
    tl.store(out, missing)


@triton.jit
def _atomic_where_late(signals, out, COUNT: tl.constexpr):
    """Counts late programs by a scalar atomic, whose result is shared at a barrier, where a warp has seen one."""
    if tl.max(1 - tl.load(signals + tl.arange(0, COUNT), volatile=True), axis=0) > 0:
        tl.store(out + 1, tl.atomic_add(out, 1, sem="relaxed", scope="gpu"))


SPOILED: dict[str, tuple[Any, dict[str, str], dict[str, Any], str]] = {
    "a wait for each that branches": (
        _each_alone, {"signals": "*i32", "out": "*i32", "first": "i32", "target": "i32"}, {"COUNT": 16},
        "ld.acquire.sys.global.b32",
    ),
    "a loop that a clock leaves": (
        _by_the_clock, {"signals": "*i32", "out": "*i32", "debug_block": "*i64"}, {"COUNT": 128},
        "ld.volatile.global.b64",
    ),
    "an atomic in a branch": (
        _atomic_where_late, {"signals": "*i32", "out": "*i32"}, {"COUNT": 8}, "ld.volatile.global.b32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", SPOILED)
def test_what_is_wrong_is_found(name: str, target: str) -> None:
    kernel, types, values, source = SPOILED[name]
    assert any(re.search(f"bar.sync 0.*time.*{source}", line) for line in found(kernel, types, values, target))
    assert not found(kernel, types, values, target, num_warps=1), "one warp meets itself"


LATE = "ld.acquire.sys.global.b32 %r1, [%rd1]; setp.lt.s32 %p1, %r1, 0;"
LANE = "mov.u32 %r1, %laneid; setp.ne.u32 %p1, %r1, 0;"
THREAD = "mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0;"
WRONG = {
    "a branch": f"{LATE} @%p1 bra END; bar.sync 0; END: ret;",
    "by lane": f"{LANE} @%p1 bra END; bar.sync 0; END: ret;",
    "by thread": f"{THREAD} @%p1 bra END; barrier.sync 0; END: ret;",
    "by clock": "mov.u64 %rd1, %globaltimer; setp.lt.s64 %p1, %rd1, %rd2; @%p1 bra END; bar.sync 0; END: ret;",
    "one that a predicate skips": f"{LATE} @%p1 bar.sync 0; ret;",
    "a reduction": f"{LATE} @%p1 bra END; bar.red.or.pred %p2, 0, %p3; END: ret;",
    "in a loop": f"LOOP: bar.sync 0; {LATE} @%p1 bra LOOP; ret;",
    "behind a branch that all decide alike": f"{LATE} @%p1 bra END; setp.eq.s32 %p2, %r2, 0; @%p2 bra END; bar.sync 0;"
    " END: ret;",
    "by what was assigned on the way": f"mov.b32 %r2, 0; {LATE} @%p1 bra JOIN; mov.b32 %r2, 1; JOIN:"
    " setp.eq.s32 %p2, %r2, 0; @%p2 bra END; bar.sync 0; END: ret;",
    "by the iterations of a loop": f"mov.b32 %r2, 0; LOOP: add.s32 %r2, %r2, 1; {LATE} @%p1 bra LOOP;"
    " setp.eq.s32 %p2, %r2, 2; @%p2 bra END; bar.sync 0; END: ret;",
    "by a table of branches": f"{LATE} brx.idx %r1, TABLE; TABLE: .branchtargets ONE, END; ONE: bar.sync 0; END: ret;",
    "after a shuffle": f"{LATE} shfl.sync.bfly.b32 %r3, %r1, 16, 31, -1; max.s32 %r4, %r1, %r3;"
    " setp.lt.s32 %p2, %r4, 0; @%p2 bra END; bar.sync 0; END: ret;",
    "by the number of the warp": "mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; setp.eq.s32 %p1, %r2, 0; @%p1 bra END;"
    " bar.sync 0; END: ret;",
    "roles by time": f"{LATE} @%p1 bra END; bar.sync 2, 128; END: ret;",
    "from a scope": "{ .reg .pred %p; ld.relaxed.sys.global.b32 %r1, [%rd1]; setp.lt.s32 %p, %r1, 0; @%p bra DONE;"
    " bar.sync 0; DONE: } ret;",
}
RIGHT = {
    "behind a poll": f"LOOP: {LATE} @%p1 bra LOOP; bar.sync 0; ret;",
    "that threads join again": f"{THREAD} @%p1 bra DONE; LOOP: {LATE} @%p1 bra LOOP; DONE: bar.sync 0; ret;",
    "after a barrier that shared it": f"{LATE} st.shared.b32 [smem], %r1; bar.sync 0; ld.shared.b32 %r2, [smem];"
    " setp.lt.s32 %p2, %r2, 0; @%p2 bra END; bar.sync 0; END: ret;",
    "after a reduction": f"LOOP: {LATE} bar.red.or.pred %p1, 0, %p1; @%p1 bra LOOP; bar.sync 0; ret;",
    "by an argument": "ld.param.b32 %r1, [f_param_0]; setp.lt.s32 %p1, %r1, 0; @%p1 bra END; bar.sync 0; END: ret;",
    "by a plain load": "ld.param.b64 %rd1, [f_param_0]; ld.global.b32 %r1, [%rd1]; setp.lt.s32 %p1, %r1, 0;"
    " @%p1 bra END; bar.sync 0; END: ret;",
    "by memory that is alike": "ld.param.b64 %rd1, [f_param_1]; add.s64 %rd2, %rd1, 8; ld.volatile.global.b32 %r1,"
    " [%rd2]; setp.lt.s32 %p1, %r1, 0; @%p1 bra END; bar.sync 0; END: ret;",
    "of one warp": f"{LANE} @%p1 bra END; bar.warp.sync 0xffffffff; END: ret;",
    "of a role": f"{THREAD} @%p1 bra END; bar.sync 2, 128; END: ret;",
    "by program": "mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra END; bar.sync 0; END: ret;",
    "names of a scope that are used twice": "{ .reg .pred %p; ld.acquire.sys.global.b32 %r1, [%rd1];"
    " setp.lt.s32 %p, %r1, 0; @%p bra DONE; DONE: } { .reg .pred %p; setp.lt.s32 %p, %r2, 0; @%p bra DONE; bar.sync 0;"
    " DONE: } ret;",
    "by a register that is assigned anew": f"{LATE} mov.b32 %r1, 1; setp.lt.s32 %p1, %r1, 0; @%p1 bra END; bar.sync 0;"
    " END: ret;",
}


def body(text: str, threads: int = 128) -> str:
    return f".visible .entry f(.param .u64 f_param_0)\n.reqntid {threads}\n{{ .reg .b32 %r<9>;\n{text}\n}}"


@pytest.mark.parametrize("name", WRONG)
def test_a_text_that_is_wrong(name: str) -> None:
    assert faults(body(WRONG[name]))
    if name not in ("by lane", "by thread"):
        return
    assert faults(body(WRONG[name], 32)), "lanes of one warp part too"


@pytest.mark.parametrize("name", RIGHT)
def test_a_text_that_is_right(name: str) -> None:
    assert not faults(body(RIGHT[name]), alike={1})
    if name == "by memory that is alike":
        assert faults(body(RIGHT[name]))


@pytest.mark.parametrize("name", ["await_all", "await_each", "launch", "copying_launch"])
def test_no_wave_of_amd_decides_by_its_own_clock(name: str) -> None:
    """Atomics of a program contain barriers there, and a loop of them may be left by what an atomic shared alone."""
    kernel, types, values = PORTABLE[name]
    lines = compile_source(kernel, *with_deadline(types, values), "gfx942").asm["ttgir"].splitlines()
    own, clocks = set[str](), 0
    for line in lines:
        defined = {found[1]} if (found := re.match(r"\s*(%[\w#]+)[:\d]* = ", line)) else set[str]()
        used = own & set(re.findall(r"%[\w#]+", line.partition(" = ")[2] if defined else line))
        assert not (used and re.search(r"scf\.(yield|condition|if|while)", line)), line
        own -= defined  # branches side by side have the same names
        if "s_memrealtime" in line or (used and "tt.atomic" not in line):
            own |= defined
            clocks += "s_memrealtime" in line
    assert clocks >= 2
