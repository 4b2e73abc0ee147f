# pyright: basic
"""Generated kernels compile for GPUs that need not be there: samples for every target, the library for two each."""

from __future__ import annotations

import pytest

from tests.backend import samples
from tests.backend.offline import compile_all
from tests.backend.samples import emitted
from tests.compiler import library
from tests.runtime.ptx import text
from tilelink.schedule.bind import bind
from tilelink.schedule.search import does_not_fit
from tilelink.target import target as named_target

TARGETS = ["sm_80", "sm_89", "sm_90", "gfx942"]
SCHEDULED = [case for case in library.cases() if case[1]]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", samples.ALL)
def test_samples(name: str, target: str) -> None:
    bound = samples.ALL[name].bound(ranks=2, target=target, dtype="bf16")
    assert all(compile_all(bound, emitted(bound)))


@pytest.mark.parametrize(
    ("case", "target"),
    [*((case, "sm_90") for case in SCHEDULED), *library.spread(SCHEDULED, "sm_80", "sm_89", "gfx942")],
    ids=library.name,
)
def test_library(case: library.Case, target: str) -> None:
    program, schedule = case
    sizes = {p.name: {"K": 200}.get(p.name, 136) for p in program.params} | library.groups(program, 4)
    bound = bind(program, schedule, sizes, 4, named_target(target), "bf16")
    assert all(k.asm for k in compile_all(bound, emitted(bound)))


@pytest.mark.parametrize("case", [c for c in SCHEDULED if c[1] and c[1].name.startswith("h200")], ids=library.name)
def test_library_schedules_for_gpus_fit_them(case: library.Case) -> None:
    """With many tiles a program, when loops are flat and results are stored beside the operands of the next."""
    program, schedule = case
    sizes = {p.name: {"Ms": 2048, "M": 8192}.get(p.name, 4096) for p in program.params} | library.groups(program, 4)
    assert does_not_fit(bind(program, schedule, sizes, 4, named_target("sm_90"), "bf16")) is None


def test_waits_poll_with_acquire_and_products_use_tensor_cores() -> None:
    bound = samples.ATTENTION.bound(ranks=2, target="sm_80", dtype="bf16")
    attn = text(*compile_all(bound, emitted(bound)))
    assert "ld.acquire.sys" in attn and "mma.sync" in attn
    assert attn.index("ld.acquire.sys") < attn.index("mma.sync")
