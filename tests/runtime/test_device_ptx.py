# pyright: basic
"""The rules of correct waits and notifies, looked for in the assembly that kernels compile to. Needs no GPU."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import triton.knobs

from tests.runtime import device_kernels as kernels
from tests.runtime.ptx import after_last, events, guarded_loads, text, tokens
from tests.tiers import one_in, thorough
from tilelink.errors import BindingError, UnknownTargetError
from tilelink.runtime.cuda import launch_checks
from tilelink.runtime.cuda.compile_offline import compile_source

NVIDIA = ("sm_80", "sm_89", "sm_90")
pytestmark = pytest.mark.skipif(bool(kernels.dl.INTERPRETED), reason="kernels are interpreted here")


@pytest.fixture(scope="module", autouse=True)
def own_triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = triton.knobs.cache.dir
    triton.knobs.cache.dir = str(tmp_path_factory.mktemp("triton"))
    yield
    triton.knobs.cache.dir = before


def compiled(kernel: Any, types: dict[str, str], target: str, debug: bool, values: dict[str, Any], **options: Any):
    types = {**types, **({"debug_block": "*i64"} if debug else {})}
    values = {**values, **({} if debug else {"debug_block": None})}
    return compile_source(kernel, types, values, target, **options)


def push(target: str, *, debug: bool = False, REMOTE: bool = True, TMA: bool = True) -> Any:
    types = {name: "i32" for name in ("rank", "ranks", "n")}
    types |= {"x": "*fp32", "y": "*fp32", "table": "*i64", "signal_table": "*i64", "signals": "*i32", "epoch": "*i64"}
    return compiled(kernels.push, types, target, debug, {"BLOCK": 1024, "REMOTE": REMOTE, "TMA": TMA})


def gemm(*, debug: bool = False, deferred: bool = False, stages: int = 4) -> Any:
    types = {name: "i32" for name in ("epoch", "tiles", "n_tiles", "k_tiles")} | {"signals": "*i32"}
    types |= {"a_desc": "tensordesc<bf16[128,64]>", "b_desc": "tensordesc<bf16[128,64]>"}
    types |= {"c_desc": "tensordesc<bf16[128,128]>"}
    values = {"BM": 128, "BN": 128, "BK": 64, "EVERY": 4, "DEFERRED": deferred}
    return compiled(kernels.gemm_descriptors, types, "sm_90", debug, values, num_warps=8, num_stages=stages)


def gemm_pointers(target: str, *, debug: bool = False) -> Any:
    types = {"a": "*bf16", "b": "*bf16", "c": "*bf16", "signals": "*i32", "epoch": "i32", "k_tiles": "i32"}
    values = {"K": 4096, "BM": 64, "BN": 64, "BK": 64, "EVERY": 4}
    return compiled(kernels.gemm_pointers, types, target, debug, values, num_warps=4, num_stages=3)


@pytest.mark.parametrize("target", NVIDIA)
def test_a_notify_is_one_release_behind_a_barrier(target: str) -> None:
    ptx = text(push(target))
    kinds = ("store", "barrier", "thread 0", "release")
    assert after_last(events(ptx, *kinds), "store") == ["barrier", "thread 0", "release"]
    assert "red.release.sys" in ptx
    assert "red.release.gpu" in text(push(target, REMOTE=False))


def test_a_notify_waits_for_descriptor_stores_to_be_written() -> None:
    ptx = text(gemm())
    kinds = ("store", "written", "proxy", "barrier", "release")
    assert after_last(events(ptx, *kinds), "store")[:4] == ["written", "proxy", "barrier", "release"]


@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.parametrize("kernel", [launch_checks.begin_checked, launch_checks.compare_launches])
def test_a_gpu_stops_after_its_report_is_written(kernel: Any, target: str) -> None:
    types = {"board": "*i64", "boards": "*i64", "state": "*i64", "rank": "i32"}
    given = {name: types[name] for name in kernel.arg_names if name in types}
    ptx = text(compile_source(kernel, given, {"RANKS": 3, "BLOCK": 4} if "rank" in given else {}, target))
    assert ptx.count("trap;") == 1
    report = ptx[: ptx.index("trap;")]
    words, kind, _ = report.rsplit("fence.acq_rel.sys;", 2)
    assert len(re.findall(r"st\.global\.b64", words)) >= 3, "what happened, before its kind"
    assert len(re.findall(r"st\.global\.b64", kind)) == 1, "and the kind, before the end"


@pytest.mark.parametrize("target", NVIDIA)
def test_a_kernel_without_descriptor_stores_need_not_wait_for_them(target: str) -> None:
    assert ("written" in events(text(push(target, TMA=True)))) == (target == "sm_90")
    assert "written" not in events(text(push(target, TMA=False)))


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("target", NVIDIA)
def test_a_wait_polls_with_acquire_before_a_barrier_and_the_loads(target: str, debug: bool) -> None:
    ptx = text(push(target, debug=debug))
    found = events(ptx, "poll", "barrier", "proxy", "load")
    first = found.index("load")
    assert found[:first] == ["poll", "barrier"] + ["proxy"] * (target == "sm_90")
    assert "setp.ne.u32 %others, %thread, 0;\n@%others bra DONE;" in ptx
    polled = ptx[ptx.index("POLL:") : ptx.index("bar.sync")]
    less = r"ld\.acquire\.sys\.global\.b32 (%\w+), \[%rd\d+\];\n" r"sub\.s32 %missing, \1, %r\d+;\nsetp\.lt\.s32"
    assert re.search(less, polled)


@pytest.mark.parametrize("target", NVIDIA)
def test_a_wait_for_all_polls_side_by_side_before_a_barrier(target: str) -> None:
    kernel, types, values = PORTABLE["await_all"]
    ptx = text(compile_source(kernel, types, values, target))
    found = events(ptx, "poll", "less", "barrier", "proxy", "store")
    assert found[: found.index("store")] == ["poll", "less", "barrier"] + ["proxy"] * (target == "sm_90")
    assert "setp.ge.u32 %done, %index," in ptx and "mov.u32 %threads, %ntid.x;" in ptx  # each thread its own counters
    debug = compile_source(kernel, {**types, "debug_block": "*i64"}, {"COUNT": 8, "STEP": 3}, target)
    assert {"clock", "trip"} <= set(events(text(debug)))


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("target", NVIDIA)
def test_a_wait_for_each_has_one_barrier_that_no_counter_decides(target: str, debug: bool) -> None:
    """Warps read counters at different times. If one branched to a barrier by what it read, the others would not."""
    kernel, types, values = PORTABLE["await_each"]
    types, values = dict(types), dict(values)
    if debug:
        types["debug_block"] = "*i64"
        del values["debug_block"]
    ptx = text(compile_source(kernel, types, values, target))
    assert ptx.count("bar.sync") == 1
    found = events(ptx, "poll", "barrier", "proxy", "store")
    if debug:
        found = [kind for at, kind in enumerate(found) if kind != "store" or at > found.index("barrier")]
    assert found == ["poll", "barrier"] + ["proxy"] * (target == "sm_90") + ["store"]
    barrier = ptx.index("bar.sync")
    after = set(re.findall(r"^\s*(\$?\w+):", ptx[barrier:], re.M))
    assert not after & set(re.findall(r"\bbra(?:\.uni)?\s+(\$?\w+)", ptx[:barrier])), "all threads come to the barrier"


TOGETHER = {
    "store": r"st\.global\.v4\.b32",
    "barrier": r"bar\.sync",
    "each": r"@%p\d+ (atom|red)\.(?=[\w.]*release)(?=[\w.]*\bsys)[\w.]*add",
    "leave": r"@%p\d+ atom\.(?=[\w.]*acq_rel)(?=[\w.]*\bgpu)[\w.]*add[\w.]*64",
    "look": r"(@%p\d+ )?ld\.(volatile|acquire\.sys)\.global\.b32",
    "fence": r"fence\.acq_rel\.sys",
    "launch": r"(@%p\d+ )?st\.global\.b64",
}
"""Releases of several threads at once, and what a launch does that begins and ends by itself."""


def steps(kernel: Any, *kinds: str) -> list[str]:
    """Those operations in the order of the text, of which a row of the same is one."""
    lines = text(kernel).splitlines()
    found = [kind for line in lines for kind in kinds if re.match(TOGETHER[kind], line.strip())]
    return [one for one, before in zip(found, ["", *found], strict=False) if one != before]


@pytest.mark.parametrize("target", NVIDIA)
def test_notifies_together_are_one_release_of_each_thread_behind_a_barrier(target: str) -> None:
    kernel, types, values = PORTABLE["tell_each"]
    ptx = text(compile_source(kernel, types, values, target))
    assert steps(compile_source(kernel, types, values, target), "store", "barrier", "each") == [
        "store", "barrier", "each",
    ]  # fmt: skip
    # Triton 3.9 has a barrier of its own in front of an atomic operation that releases, and no result that nobody uses.
    assert 1 <= ptx.count("bar.sync") <= 2 and len(re.findall(r"\badd\.u32 (?:%r\d+, )?\[", ptx)) == 1


@thorough(unless=lambda target, debug: debug == (target == "sm_90"))
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("target", NVIDIA)
def test_a_launch_begins_and_ends_by_itself(target: str, debug: bool) -> None:
    kernel, types, values = PORTABLE["launch"]
    found = compiled(kernel, types, target, debug, {k: v for k, v in values.items() if k != "debug_block"})
    order = steps(found, "store", "barrier", "each", "leave", "fence", "look")
    assert order[:5] == ["barrier", "each", "store", "barrier", "leave"], "entered; its stores are counted when done"
    end = order[5:]
    announced = end.index("each")
    assert end[announced - 1] == "barrier" and end.count("each") == 1
    # For outputs, and for peers to have finished. Triton 3.6 lays the loop of the one out behind the other.
    fences = [at for at, one in enumerate(end) if one == "fence"]
    assert len(fences) >= 2 and end.count("look") >= 2 and {end[at + 1] for at in fences} == {"barrier"}
    assert steps(found, "each", "launch", "store")[-1] == "launch", "the number of the next launch is its last store"


@pytest.mark.parametrize("target", NVIDIA)
def test_launches_that_others_begin_and_end_pay_nothing(target: str) -> None:
    kernel, types, values = PORTABLE["launch"]
    without = {name: kind for name, kind in types.items() if name != "handshake_block"}
    ptx = text(compile_source(kernel, without, {**values, "handshake_block": None}, target))
    assert not re.search(r"atom|red\.|bar\.sync|fence", ptx)


@pytest.mark.parametrize("target", NVIDIA)
def test_a_deadline_costs_nothing_unless_asked_for(target: str) -> None:
    assert not {"clock", "trip"} & set(events(text(push(target))))
    assert {"clock", "trip"} <= set(events(text(push(target, debug=True))))


@pytest.mark.parametrize("target", NVIDIA)
def test_loads_behind_a_token_and_stores_to_a_peer_stay_vectors(target: str) -> None:
    found = events(text(push(target)), "load", "vector load", "store", "vector store")
    assert found.count("load") == found.count("vector load") == 2
    assert found.count("store") == found.count("vector store") == 2


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("deferred", [False, True])
def test_waits_in_a_pipelined_loop_stay_before_their_loads(deferred: bool, debug: bool) -> None:
    kernel = gemm(debug=debug, deferred=deferred)
    ptx = text(kernel)
    # Blocks of the text stand in any order, dependences do not: a is loaded behind a wait at the first of the
    # prologue's three steps (the others have none) and in the loop; b never is.
    assert len(tokens(ptx)) == events(ptx, "poll").count("poll") == 2
    assert guarded_loads(ptx) == [True, False, False, False, False, False, True, False]
    assert kernel.metadata.shared >= 4 * (128 + 128) * 64 * 2


def test_a_notify_in_a_pipelined_loop_stays_there() -> None:
    ptx = text(gemm(deferred=True))
    found = events(ptx, "written", "proxy", "barrier", "thread 0", "release", "poll")
    at = found.index("release")
    assert found[at - 4 : at + 1] == ["written", "proxy", "barrier", "thread 0", "release"]
    assert ptx.count("wgmma.mma_async") == 4  # the loop's body was neither split nor peeled


@thorough(unless=lambda target, debug: debug == (target == "sm_90"))
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90"])
def test_waits_in_a_loop_over_pointers_stay_before_their_loads(target: str, debug: bool) -> None:
    kernel = gemm_pointers(target, debug=debug)
    ptx = text(kernel)
    assert "cp.async.cg.shared.global" in ptx, "not pipelined"
    assert kernel.metadata.shared >= 2 * (64 + 64) * 64 * 2
    assert len(tokens(ptx)) == events(ptx, "poll").count("poll") == 2
    guarded = guarded_loads(ptx)
    part = len(guarded) // 6
    waited, free = [True] * part, [False] * part
    # Two steps of the prologue and one of the loop, a before b.
    assert guarded == [*waited, *free, *free, *free, *waited, *free]


@pytest.mark.parametrize("target", NVIDIA)
def test_the_assembler_takes_it(target: str) -> None:
    assert len(push(target, debug=True).asm["cubin"]) > 1000


@pytest.mark.parametrize("debug", [False, True])
def test_amd_releases_every_wave_before_the_barrier(debug: bool) -> None:
    text = push("gfx942", debug=debug).asm["amdgcn"]
    stores = [found.start() for found in re.finditer("(global|buffer)_store_dwordx4", text)]
    stored = text[stores[-1] :]
    release = r"buffer_wbl2 sc0 sc1\s+s_waitcnt vmcnt\(0\).*s_barrier.*buffer_wbl2 sc0 sc1.*global_atomic_add"
    assert re.search(release, stored, re.DOTALL)
    assert re.search(r" sc0 sc1\n\ts_waitcnt vmcnt\(0\)\n\tbuffer_inv sc0 sc1", text[: stores[0]])
    assert ("s_memrealtime" in text) == debug


def test_amd_compiles_a_loop_with_waits() -> None:
    kernel = gemm_pointers("gfx942")
    assert "v_mfma" in kernel.asm["amdgcn"]
    assert len(kernel.asm["hsaco"]) > 1000


@pytest.mark.parametrize("target", NVIDIA)
def test_larger_and_smaller_ones_keep_nan(target: str) -> None:
    kernel, types, values = PORTABLE["extremes"]
    ptx = text(compile_source(kernel, types, values, target))
    assert set(re.findall(r"\b(?:max|min)\.\S*f32", ptx)) == {"max.NaN.f32", "min.NaN.f32"}


PORTABLE: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "integers": (
        kernels.integers,
        {"a": "*i32", "n": "*i32", "quotient": "*i32", "remainder": "*i32"},
        {"COUNT": 8},
    ),
    "elementwise": (kernels.elementwise, {"x": "*bf16", "out": "*fp32"}, {"N": 128}),
    "extremes": (kernels.extremes, {"x": "*fp32", "y": "*fp32", "out": "*fp32"}, {"M": 16, "N": 16}),
    "convert": (kernels.convert, {"x": "*fp32", "out": "*bf16"}, {"N": 128, "DTYPE": kernels.tl.bfloat16}),
    "attend": (
        kernels.attend,
        {"scores": "*fp32", "v": "*bf16", "out": "*fp32", "pieces": "i32"},
        {"M": 64, "N": 64, "D": 64},
    ),
    "product": (kernels.product, {"a": "*bf16", "b": "*bf16", "c": "*fp32"}, {"M": 64, "N": 64, "K": 64}),
    "await_each": (
        kernels.await_each,
        {"signals": "*i32", "out": "*i32", "first": "i32", "target": "i32"},
        {"debug_block": None, "COUNT": 16},
    ),
    "await_all": (
        kernels.await_all,
        {"signals": "*i32", "out": "*i32", "first": "i32", "target": "i32"},
        {"debug_block": None, "COUNT": 8, "STEP": 3},
    ),
    "counted_launch": (
        kernels.counted_launch,
        {"x": "*i32", "handshake_block": "*i64", "signal_table": "*i64", "epoch_pointer": "*i64", "rank": "i32"},
        {"ENTERED": 0, "FINISHED": 8, "RANKS": 4, "BLOCK": 4, "PROGRAMS": 6, "N": 1024},
    ),
    "copying_launch": (
        kernels.copying_launch,
        {
            "x": "*i32",
            "handshake_block": "*i64",
            "signals": "*i32",
            "signal_table": "*i64",
            "epoch_pointer": "*i64",
            "rank": "i32",
        },
        {"debug_block": None, "FINISHED": 8, "RANKS": 4, "BLOCK": 4, "PROGRAMS": 6, "N": 1024},
    ),
    "tell_each": (
        kernels.tell_each,
        {"x": "*i32", "signals": "*i32", "signal_table": "*i64", "first": "i32", "skipped": "i32"},
        {"debug_block": None, "COUNT": 5, "BLOCK": 8},
    ),
    "launch": (
        kernels.launch,
        {
            "x": "*i32",
            "handshake_block": "*i64",
            "signals": "*i32",
            "signal_table": "*i64",
            "epoch_pointer": "*i64",
            "rank": "i32",
        },
        {"debug_block": None, "ENTERED": 0, "FINISHED": 8, "RANKS": 4, "BLOCK": 4, "N": 1024},
    ),
    "low_level": (kernels.low_level, {"signals": "*i32", "out": "*i32"}, {}),
    "saturate": (kernels.convert, {"x": "*bf16", "out": "*u8"}, {"N": 128, "DTYPE": kernels.tl.uint8}),
}


@pytest.mark.parametrize("target", ["sm_89", "sm_90"])
@pytest.mark.parametrize(("kind", "name"), [(kernels.tl.float8e4nv, "e4m3"), (kernels.tl.float8e5, "e5m2")])
def test_an_f32_is_rounded_once_to_8_bits(kind: Any, name: str, target: str) -> None:
    """Triton's own cast goes by f16 on sm_89, rounded towards zero first."""
    types = {"x": "*fp32", "out": f"*{kind}"}
    ptx = text(compile_source(kernels.convert, types, {"N": 512, "DTYPE": kind}, target))
    assert set(re.findall(r"cvt\.\S*(?:e4m3|e5m2|f16)\S*", ptx)) == {f"cvt.rn.satfinite.{name}x2.f32"}


@pytest.mark.parametrize(
    ("target", "kind", "instruction"),
    [
        ("sm_89", "fp8e4nv", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"),
        ("sm_90", "fp8e4nv", "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3"),
        ("sm_90", "fp8e5", "wgmma.mma_async.sync.aligned.m64n64k32.f32.e5m2.e5m2"),
        ("sm_90", "i8", "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8"),
    ],
)
def test_elements_of_8_bits_are_multiplied_by_tensor_cores(target: str, kind: str, instruction: str) -> None:
    types = {"a": f"*{kind}", "b": f"*{kind}", "c": "*i32" if kind == "i8" else "*fp32"}
    ptx = text(compile_source(kernels.product, types, {"M": 64, "N": 64, "K": 64}, target))
    assert instruction in ptx
    if kind != "i8" and target == "sm_90":  # what tensor cores add up with fewer bits is added to sums of f32
        assert len(re.findall(r"add\.(?:rn\.)?f32", ptx)) >= 64 * 64 // 128


@thorough(unless=lambda name, target: target == "sm_90" or (target == "gfx942" and one_in(3, name)))
@pytest.mark.parametrize("target", [*NVIDIA, "gfx942"])
@pytest.mark.parametrize("name", PORTABLE)
def test_everything_compiles_everywhere(name: str, target: str) -> None:
    kernel, types, values = PORTABLE[name]
    assert compile_source(kernel, types, values, target).asm["amdgcn" if target == "gfx942" else "cubin"]


def test_both_modes_have_the_same_functions() -> None:
    from inspect import signature

    from tilelink.device import compiled as one
    from tilelink.device import interpreted as other

    for name in (
        "symm_at",
        "wait",
        "wait_all",
        "consume_token",
        "notify",
        "notify_each",
        "signal_add",
    ):
        assert list(signature(getattr(one, name).fn).parameters) == list(signature(getattr(other, name)).parameters)
    for name in ("fence", "quiet", "publish", "tile_begin", "transfer"):
        assert list(signature(getattr(one, name).fn).parameters) == list(signature(getattr(other, name)).parameters)


def test_a_kernel_from_a_file_compiles(tmp_path: Path) -> None:
    import importlib.util

    path = tmp_path / "generated.py"
    path.write_text(
        "import triton\nimport triton.language as tl\nfrom tilelink import device as dl\n"
        "@triton.jit\ndef kernel(signals):\n    dl.notify(signals, 0, 0, None, 0, 0, False)\n"
    )
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "red.release.gpu" in text(compile_source(module.kernel, {"signals": "*i32"}, {}, "sm_90"))


def test_what_cannot_be_compiled_is_refused() -> None:
    with pytest.raises(UnknownTargetError, match="not compiled"):
        push("cpu")
    with pytest.raises(BindingError, match=r"without a type or value: \['first'\]; types of no parameter: \['frist'\]"):
        kernel, types, values = PORTABLE["await_each"]
        renamed = {"frist" if name == "first" else name: kind for name, kind in types.items()}
        compile_source(kernel, renamed, values, "sm_90")
