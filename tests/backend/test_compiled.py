# pyright: basic
"""Every generated kernel compiles for every GPU, none of which need be there."""

from __future__ import annotations

import pytest

from tests.backend import samples
from tests.backend.offline import compile_all
from tests.backend.samples import emitted
from tests.compiler.library import groups
from tests.runtime.ptx import text
from tilelink import compiler
from tilelink.schedule.bind import bind
from tilelink.target import target as named_target

TARGETS = ["sm_80", "sm_89", "sm_90", "gfx942"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", samples.ALL)
def test_samples(name: str, target: str) -> None:
    bound = samples.ALL[name].bound(ranks=2, target=target, dtype="bf16")
    assert all(compile_all(bound, emitted(bound)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("module", compiler.library(), ids=lambda m: m.file.rpartition("/")[2])
def test_library(module: compiler.Module, target: str) -> None:
    for schedule in module.schedules:
        program = next(p for p in module.programs if p.name == schedule.program)
        sizes = {p.name: {"K": 200}.get(p.name, 136) for p in program.params} | groups(program, 4)
        bound = bind(program, schedule, sizes, 4, named_target(target), "bf16")
        assert all(k.asm for k in compile_all(bound, emitted(bound)))


def test_waits_poll_with_acquire_and_products_use_tensor_cores() -> None:
    bound = samples.ATTENTION.bound(ranks=2, target="sm_80", dtype="bf16")
    attn = text(*compile_all(bound, emitted(bound)))
    assert "ld.acquire.sys" in attn and "mma.sync" in attn
    assert attn.index("ld.acquire.sys") < attn.index("mma.sync")
