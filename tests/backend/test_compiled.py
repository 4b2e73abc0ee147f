# pyright: basic
"""Generated kernels compile for GPUs that need not be there: samples for every target, the library for sm_90."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backend import samples
from tests.backend.offline import compile_all
from tests.backend.samples import emitted
from tests.compiler import library
from tests.runtime.ptx import text
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.ir.program import F8
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.lowering.shared_memory import does_not_fit, least
from tilelink.target import target as named_target

TARGETS = ["sm_80", "sm_89", "sm_90", "gfx942"]
SCHEDULED = [case for case in library.cases() if case[1]]
COVERING = library.covering(library.cases())
PAIRED = {library.name(case) for case in library.paired(library.cases())}
COMPILED = [case for case in library.cases() if library.name(case) in PAIRED | {*map(library.name, COVERING)}]
OTHERS = library.in_turn(library.unlike())[::2]
"""What is compiled for other targets than sm_90, besides the samples."""


@thorough(unless=lambda name, target: target == "sm_90" or one_in(3, name, target))
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", samples.ALL)
def test_samples(name: str, target: str) -> None:
    bound = samples.ALL[name].bound(ranks=2, target=target, dtype="bf16")
    assert all(compile_all(bound, emitted(bound)))


@thorough(
    unless=lambda case, target: (
        library.name(case) in PAIRED if target == "sm_90" else one_in(6, library.name(case), target)
    )
)
@pytest.mark.parametrize(
    ("case", "target"),
    [*((case, "sm_90") for case in COMPILED), *library.spread(OTHERS, "sm_80", "sm_89", "gfx942")],
    ids=library.name,
)
def test_library(case: library.Case, target: str) -> None:
    program, schedule = case
    if target in ("sm_80", "gfx942") and any(tensor.dtype in F8 for tensor in program.tensors):
        pytest.skip(f"{target} has no floats of 8 bits")
    bound = bind(program, schedule, library.fitted(case, library.wide(program, 4)), 4, named_target(target), "bf16")
    compiled = compile_all(bound, emitted(bound))
    assert all(k.asm for k in compiled)
    assert_lower_bounds(bound, compiled)


def assert_lower_bounds(bound: Bound, compiled: list[Any]) -> None:
    """No product needs more shared memory than the kernel got that it is in."""
    kernels = [k for k in bound.kernels if not k.on_copy_engine]
    pairs = zip(kernels, compiled, strict=True)
    got = {name: k.metadata.shared for own, k in pairs for loop in own.loops for name in loop.stages}
    for need in least(bound):
        assert need.bytes <= got[need.stage.name], (need.stage.name, need.bytes, got)


PLAIN = """
program plain(M, N, K):
    x : in [M, K]
    w : in [N, K]
    y : out [M, N]

    compute mul(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

schedule s for plain:
    mul tile({}), num_stages {}, num_warps {}
"""


@thorough(unless=lambda tiles, dims, target: target == "sm_90" or one_in(6, tiles, dims, target))
@pytest.mark.parametrize(
    ("tiles", "stages", "warps", "dims", "dtype", "exact"),
    [
        ("i=128, j=256, k=64", 4, 8, (4096, 4096, 4096), "bf16", True),
        ("i=128, j=256, k=64", 4, 8, (4096, 4096, 64), "bf16", False),  # one block
        ("i=128, j=256, k=64", 4, 8, (4096, 4096, 100), "bf16", False),
        ("i=128, j=128, k=64", 1, 4, (4096, 4096, 4096), "bf16", False),
        ("i=16, j=128, k=128", 4, 4, (4096, 4096, 4096), "bf16", True),
        ("i=100, j=72, k=32", 5, 4, (4000, 4000, 4001), "bf16", False),  # rows that loads cannot take by pieces
        ("i=64, j=64, k=32", 3, 4, (4096, 4096, 4096), "f32", True),
        ("i=64, j=64, k=64", 3, 2, (4096, 4096, 4096), "f16", True),
    ],
)
@pytest.mark.parametrize("target", TARGETS)
def test_estimates_of_shared_memory_are_never_too_high(
    tiles: str, stages: int, warps: int, dims: tuple[int, ...], dtype: str, exact: bool, target: str
) -> None:
    module = compiler.parse(PLAIN.format(tiles, stages, warps))
    numbers = dict(zip("MNK", dims, strict=True))
    bound = bind(module.programs[0], module.schedules[0], numbers, 4, named_target(target), dtype)
    compiled = compile_all(bound, emitted(bound))
    assert_lower_bounds(bound, compiled)
    if exact and target != "gfx942":
        (need,) = least(bound)
        assert need.bytes > 0.7 * compiled[0].metadata.shared


@pytest.mark.parametrize("case", [c for c in SCHEDULED if c[1] and c[1].name.startswith("h200")], ids=library.name)
def test_library_schedules_for_gpus_fit_them(case: library.Case) -> None:
    """With many tiles a program, when loops are flat and results are stored beside the operands of the next."""
    program, schedule = case
    rows = 512 if schedule and "words" in schedule.name else 8192  # words are for few
    known = {"Ms": rows // 4, "M": rows}
    sizes = {p.name: known.get(p.name, 4096) for p in program.params} | library.groups(program, 4)
    assert does_not_fit(bind(program, schedule, sizes, 4, named_target("sm_90"), "bf16")) is None


def test_waits_poll_with_acquire_and_products_use_tensor_cores() -> None:
    bound = samples.ATTENTION.bound(ranks=2, target="sm_80", dtype="bf16")
    attn = text(*compile_all(bound, emitted(bound)))
    assert "ld.acquire.sys" in attn and "mma.sync" in attn
    assert attn.index("ld.acquire.sys") < attn.index("mma.sync")
