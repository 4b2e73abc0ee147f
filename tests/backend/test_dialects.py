# pyright: basic
"""The dialect of Triton-distributed: its text, and that it compiles and computes the same over a stand-in of it."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.backend.samples import unbroken
from tests.compiler import library
from tests.conftest import Golden
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.artifact import Descriptor
from tilelink.backend import store
from tilelink.backend.context import signature
from tilelink.backend.emit import emit
from tilelink.compiler.cpu import Kernel
from tilelink.errors import EmitError
from tilelink.reference.trial import compared, random_inputs, relative_error
from tilelink.runtime.cuda.compile_offline import compile_source

SHIM = Path(__file__).with_name("shim")


def expressible(cases: list[library.Case]) -> list[library.Case]:
    """Return those that are not refused, see below: with the reuse wait, and with nothing that a launch decides."""
    known = [case for case in cases if all(tensor.bound is None for tensor in case[0].tensors)]
    return [case for case in known if case[1] is None or case[1].reuse_wait]


CASES = library.covering(expressible(library.cases()))
NAMES = [str(library.name(case)) for case in CASES]
DIFFERENT = (
    "gemm_rs_ring_carried-copy_sms", "two_level_all_reduce-default", "all_reduce_two_shot_pushed-large",
    "ag_gemm_ring-copy_sms", "gemm_rs_reduce_last-copy_engine", "m2n-copy_sms", "all_reduce_two_shot_kept-small",
    "ag_gemm_ring-h200_slices", "ag_gemm_f8_rows-copy_sms", "all_gather-pull", "all_reduce_two_shot-large",
    "fsdp-default", "gemm_ar_bias_pulled-h200_roles", "gemm_rs_ring-ring", "gemm_rs_slots-default",
    "two_level_ag_gemm-default", "gemm_ar_one_shot_norm-small", "all_reduce_one_shot_norm-default",
    "zigzag_attention-gpu_roles_deep", "zigzag_attention_gradients-default",
)  # fmt: skip
"""What is run: these have every form of a call of the language that the library has, which a test here holds."""
RUN = [case for case, name in zip(CASES, NAMES, strict=True) if name in DIFFERENT]
MOST = ("all_gather-pull", "gemm_rs_slots-default", "m2n-copy_sms", "two_level_all_reduce-default")
"""The default tier: signals of each kind, pulls, tables, groups and steps in slots."""
GOLDEN = [("ag_gemm", "slices"), ("gemm_rs_ring", "ring"), ("gemm_ar", "after"), ("all_reduce_two_shot", "default")]
DIMS = {"Ms": 100, "N": 136, "K": 200}
WAITS = """
program waits(M):
    x : in [M]
    h : symmetric [M]
    y : out [M]

    comm send(i: M):
        tile_push_data(h[i] @ (rank + 1), x[i])
        producer_tile_notify(h[i] @ (rank + 1))

    compute own(i: M):
        {body}
"""
"""A stage that waits, and loads nothing of what it waited for."""


@pytest.mark.parametrize(("name", "schedule"), GOLDEN)
def test_golden(name: str, schedule: str, golden: Golden) -> None:
    module = compiler.load(name)
    program = module.program(name)
    dims = {p.name: DIMS.get(p.name, 96) for p in program.params}
    chosen = None if schedule == "default" else module.schedule(schedule, program)
    text = compiler.source(program, chosen, ranks=4, dims=dims, dtype="bf16", dialect="triton_dist")
    golden(f"triton_dist_{name}", text)


@thorough(unless=lambda case: library.name(case) in MOST)
@pytest.mark.parametrize(("case", "ranks"), library.spread(RUN, 3, 4), ids=library.name)
def test_it_computes_the_same(case: library.Case, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SHIM))
    program, schedule = case
    dims = library.sizes(case, ranks)
    plan = compiler.plan(program, schedule, ranks=ranks, dims=dims, dialect="triton_dist")
    kernel = Kernel(plan=plan, emitted=emit(plan.bound, plan.thresholds), tables={})
    assert "from tilelink import device" not in kernel.source
    inputs = random_inputs(program, ranks=ranks, dims=dims, dtype="f32", launches=4, seed=1)
    result = kernel.run(inputs, seed=1, max_delay_s=0.001, deadline_s=20)
    expected: Any = None
    for given, outputs in zip(inputs, result.outputs, strict=True):
        expected = kernel.reference(given, expected and [one.kept for one in expected])
        for tensor in outputs[0]:
            assert relative_error(*compared(outputs, expected, tensor)) <= 1e-5


@cache
def source(number: int) -> str:
    """Return the kernels of a case in this dialect, made once for all tests of its text."""
    program, schedule = CASES[number]
    return unbroken(compiler.source(program, schedule, ranks=3, dims=library.dims(program, 3), dialect="triton_dist"))


@thorough(unless=lambda number: one_in(2, NAMES[number]))
@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_it_uses_nothing_but_that_language(number: int) -> None:
    text = source(number)
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    offered = {"rank", "num_ranks", "symm_at", "wait", "consume_token", "notify"}
    assert set(re.findall(r"\bdl\.(\w+)", code)) <= offered
    assert not re.search(r"\b(debug_block|signal_table|\w+_peers)\b", code)


def forms(text: str) -> set[str]:
    """The calls of the language in a text, without what names and integers they are of."""
    calls = re.findall(r"(?m)^[^#\n]*?\b(dl\.\w+\(.*)", text)
    plain = (re.sub(r"\b(?!(dl|rank|num_ranks|symm_at|wait|consume_token|notify|signal)\b)\w+", "_", c) for c in calls)
    return {re.sub(r"_(\W+_\b)*", "_", one) for one in plain}


def test_what_is_run_has_every_form() -> None:
    every = {form: name for number, name in enumerate(NAMES) for form in forms(source(number))}
    told = {form for name in DIFFERENT for form in forms(source(NAMES.index(name)))}
    assert len(told) > 30
    assert not {every[form]: form for form in every.keys() - told}, "run one of these too"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library to import, and compiled kernels of their own: Triton's cache does not know who stands in."""
    monkeypatch.syspath_prepend(str(SHIM))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(text: str, kernels: Any, bound: Any) -> list[str]:
    """The PTX of each tile kernel, with every operation of the language as a comment."""
    module: ModuleType = store.load(store.save(text))
    result: list[str] = []
    for one in kernels:
        types = {**signature(one, bound), "signals": "*i64"}
        types = {a.name: types[a.name] for a in one.parameters}
        knobs = {"num_warps": one.num_warps, "num_stages": one.num_stages}
        result.append(compile_source(getattr(module, one.name), types, {}, bound.target, **knobs).asm["ptx"])
    return result


@thorough(unless=lambda case: library.name(case) in (*MOST, "ag_gemm_ring-copy_sms"))
@pytest.mark.parametrize("case", RUN[::2], ids=library.name)
@pytest.mark.usefixtures("stand_in")
def test_it_compiles(case: library.Case) -> None:
    dims = library.fitted(case, library.wide(case[0], 4))
    where: dict[str, Any] = {"ranks": 4, "dims": dims, "target": "sm_90", "dialect": "triton_dist"}
    plan = compiler.plan(*case, **where, dtype="bf16")
    emitted = emit(plan.bound, plan.thresholds)
    assert not any(isinstance(arg, Descriptor) for one in emitted.kernels for arg in one.parameters)
    sources = re.split(r"(?m)^def ", emitted.text)[1:]
    tiles = [source for source in sources if "tl.program_id" in source]
    for source, ptx in zip(tiles, compiled(emitted.text, emitted.kernels, plan.bound), strict=True):
        for operation in ("wait", "notify"):
            assert (f"dl.{operation}(" in source) == (f"// dl.{operation} " in ptx)


@pytest.mark.parametrize(
    ("body", "operation"),
    [
        ("consumer_tile_wait(h[i]); y[i] = x[i]", "wait"),
        ("y[i] = x[i]; consumer_tile_wait(h[i])", "signal_wait_until"),
        ("y[i] = x[i]; if rank == 0: consumer_tile_wait(h[i])", "signal_wait_until"),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_no_wait_is_optimised_away(body: str, operation: str) -> None:
    lines = body.replace(": c", ":\n            c").split("; ")
    program = compiler.parse(WAITS.format(body="\n        ".join(lines))).program()
    plan = compiler.plan(program, ranks=2, dims={"M": 256}, target="sm_90", dialect="triton_dist")
    emitted = emit(plan.bound, plan.thresholds)
    own = next(ptx for ptx in compiled(emitted.text, emitted.kernels, plan.bound) if ".entry own" in ptx)
    assert f"// dl.{operation} " in own


@thorough(unless=lambda number: one_in(2, NAMES[number]))
@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_threads_meet_before_signals(number: int) -> None:
    met = False
    for line in map(str.strip, source(number).splitlines()):
        if line.startswith("dl.notify("):
            assert met, line
        elif not line.startswith(("#", "for channel")):
            met = line == "tl.debug_barrier()"


def test_counters_that_may_run_ahead_are_refused() -> None:
    module = compiler.load("ag_gemm")
    program = module.program()
    schedule = replace(module.schedules_of(program)[0], reuse_wait=False)
    with pytest.raises(EmitError, match="need the reuse wait"):
        compiler.bound(program, schedule, ranks=2, dims=DIMS, dialect="triton_dist")
    with pytest.raises(EmitError, match=r"unknown dialect 'cuda'[\s\S]*one of triton, triton_dist"):
        compiler.bound(program, ranks=2, dims=DIMS, dialect="cuda")


def test_processors_without_nvshmem_are_refused() -> None:
    program = compiler.load("ag_gemm").program()
    with pytest.raises(EmitError, match=r"calls NVSHMEM, which gfx942 has not[\s\S]*dialect triton"):
        compiler.source(program, ranks=2, dims=DIMS, dtype="bf16", target="gfx942", dialect="triton_dist")


def test_several_nodes_are_for_kernels_that_put() -> None:
    module = compiler.load("all_gather")
    program = module.program()
    options = {"ranks": 4, "nodes": 2, "dims": {"Ms": 32, "K": 16}}
    assert "dl.put_signal(" in compiler.source(program, **options)
    with pytest.raises(EmitError, match=r"dialect triton_dist is for one node, not for 2[\s\S]*dialect triton"):
        compiler.source(program, dialect="triton_dist", **options)
