# pyright: basic
"""Every generated kernel compiles for every GPU, none of which need be there."""

from __future__ import annotations

import pytest

from tests.backend import samples
from tests.backend.samples import emitted
from tilelink import compiler
from tilelink.backend import store
from tilelink.backend.context import Emitted, signature
from tilelink.runtime.compile_offline import compile_source
from tilelink.schedule.bind import Bound, bind
from tilelink.target import target as named_target

TARGETS = ["sm_80", "sm_89", "sm_90", "gfx942"]


def compile_all(bound: Bound, result: Emitted) -> list[str]:
    """The assembly of each tile kernel."""
    module = store.load(store.save(result.text))
    texts: list[str] = []
    for kernel in result.kernels:
        if kernel.kernel.on_copy_engine:
            continue
        function = getattr(module, kernel.name)
        types, warps, stages = signature(kernel, bound), kernel.kernel.warps, kernel.kernel.stages
        compiled = compile_source(
            function, types, {"watch": None}, bound.target, num_warps=warps, num_stages=stages
        )
        texts.append(compiled.asm["amdgcn" if bound.target.kind == "hip" else "ptx"])
    return texts


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
        sizes = {p.name: {"K": 200}.get(p.name, 136) for p in program.params}
        bound = bind(program, schedule, sizes, 4, named_target(target), "bf16")
        compile_all(bound, emitted(bound))


def test_waits_poll_with_acquire_and_products_use_tensor_cores() -> None:
    bound = samples.ATTENTION.bound(ranks=2, target="sm_80", dtype="bf16")
    (attn,) = compile_all(bound, emitted(bound))
    assert "ld.acquire.sys" in attn and "mma.sync" in attn
    assert attn.index("ld.acquire.sys") < attn.index("mma.sync")
