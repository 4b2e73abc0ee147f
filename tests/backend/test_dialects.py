"""The dialect of Triton-distributed: its text, and that it computes the same over a stand-in of that library."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.compiler import library
from tests.conftest import Golden
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.errors import EmitError
from tilelink.ir.program import Program
from tilelink.reference.trial import random_inputs, relative_error
from tilelink.schedule.values import Schedule

SHIM = Path(__file__).with_name("shim")
CASES = library.cases()
DIMS = {"Ms": 100, "N": 136, "K": 200}


@pytest.mark.parametrize(("name", "schedule"), [("ag_gemm", "slices"), ("gemm_rs_ring", "ring"), ("gemm_ar", "after")])
def test_golden(name: str, schedule: str, golden: Golden) -> None:
    module = compiler.load(name)
    program = module.program(name)
    dims = {p.name: DIMS.get(p.name, 96) for p in program.params}
    chosen = module.schedule(schedule, program)
    text = compiler.source(program, chosen, ranks=4, dims=dims, dtype="bf16", dialect="triton_dist")
    golden(f"triton_dist_{name}", text)


@pytest.mark.parametrize("case", CASES, ids=library.name)
def test_it_computes_the_same(case: tuple[Program, Schedule | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SHIM))
    program, schedule = case
    dims = library.dims(program)
    kernel = compiler.compile(program, schedule, ranks=3, dims=dims)
    kernel = replace(kernel, emitted=emit(kernel.bound, kernel.plan.thresholds, dialect="triton_dist"))
    assert "tilelink.runtime import device" not in kernel.source
    inputs = random_inputs(program, ranks=3, dims=dims, dtype="f32", launches=4, seed=1)
    result = kernel.run(inputs, seed=1, max_delay_s=0.001, deadline_s=20)
    for given, outputs in zip(inputs, result.outputs, strict=True):
        expected = kernel.reference(given)
        for tensor in outputs[0]:
            assert relative_error([own[tensor] for own in outputs], [own[tensor] for own in expected]) <= 1e-5


@pytest.mark.parametrize("case", CASES, ids=library.name)
def test_it_uses_nothing_but_that_language(case: tuple[Program, Schedule | None]) -> None:
    text = compiler.source(case[0], case[1], ranks=3, dims=library.dims(case[0]), dialect="triton_dist")
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    offered = {"rank", "num_ranks", "symm_at", "wait", "consume_token", "notify"}
    assert set(re.findall(r"\bdl\.(\w+)", code)) <= offered
    assert not re.search(r"\b(watch|signal_table|\w+_peers)\b", code)


def test_counters_that_may_run_ahead_are_refused() -> None:
    module = compiler.load("ag_gemm")
    program = module.program()
    bound = compiler.bound(program, module.schedules_of(program)[0], ranks=2, dims=DIMS)
    free = replace(bound, schedule=replace(bound.schedule, reuse_wait=False))
    with pytest.raises(EmitError, match="need the reuse wait"):
        emit(free, {}, dialect="triton_dist")
    with pytest.raises(EmitError, match=r"unknown dialect 'cuda'[\s\S]*one of triton, triton_dist"):
        emit(bound, {}, dialect="cuda")
