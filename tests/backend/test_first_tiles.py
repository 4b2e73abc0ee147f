# pyright: basic
"""Where the programs of a kernel begin each of its loops: generated heads give each tile to its planned program."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backend.samples import numbered
from tests.compiler import library
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.backend.loops import tile_range, tiles_text
from tilelink.lowering.bound import Kernel, Loop
from tilelink.planning.plan import Plan
from tilelink.scheduling.schedule import Sm

TEXT = """
program loops(A, M, B):
    x : in    [A]
    u : in    [M]
    v : in    [B]
    c : local [M]
    p : out   [A]
    y : out   [M]
    q : out   [B]

    compute before(a: A):
        p[a] = x[a]

    compute host(i: M):
        c[i] = u[i] * 2.0

    compute same(i: M):
        y[i] = c[i]

    compute after(b: B, s: 1):
        q[b] = v[b]

schedule one for loops:
    before in host prologue, tile(a=1)
    host on sm, tile(i=1)
    same in host epilogue, tile(i=1)
    after in host epilogue, tile(b=1)
"""
MODULE = compiler.parse(TEXT)
PLAIN = Kernel(
    name="f", stream="main", position=0, programs=1, loops=(), num_warps=4, num_stages=1, reuse_lag=0, needs_entry=False
)
Ran = list[tuple[str, int]]


def planned(plan: Plan, kernel: Kernel) -> dict[int, Ran]:
    """program -> (stage, tile) in the order in which it runs them, on rank 0."""
    number = plan.bound.kernels.index(kernel)
    found: dict[int, list[tuple[int, str, int]]] = {}
    for task in range(plan.tasks):
        of, rank, program = plan.workers[int(plan.worker[task])]
        if (of, rank) == (number, 0):
            stage, _, tile = plan.task_name(task)
            found.setdefault(program, []).append((int(plan.sequence[task]), stage, tile))
    return {program: [(stage, tile) for _, stage, tile in sorted(rows)] for program, rows in found.items()}


def generated(source: str, kernel: Kernel) -> dict[int, Ran]:
    """The same as the heads of the loops in the kernel's source say it."""
    of_warps = f"\ndef _{kernel.name}("  # of each of several programs in a block of threads
    text = source.split(of_warps if of_warps in source else f"\ndef {kernel.name}(", 1)[1].split("\n@", 1)[0]
    heads = re.findall(r"\n    for tile in (?:tl\.)?range\((.+), ([^,]+), num_programs[,)]", text)
    assert len(heads) == len(kernel.loops)
    found: dict[int, Ran] = {}
    for pid in range(kernel.programs):
        for loop, (first, total) in zip(kernel.loops, heads, strict=True):
            begin = eval(first, {"pid": pid, "num_programs": kernel.programs})
            for tile in range(begin, eval(total), kernel.programs):
                found.setdefault(pid, []).extend((stage, tile) for stage in loop.stages)
    return found


def both(plan: Plan, source: str) -> None:
    kernels = [kernel for kernel in plan.bound.kernels if not kernel.on_copy_engine]
    assert kernels
    for kernel in kernels:
        found = generated(source, kernel)
        assert found == planned(plan, kernel)
        assert any(found.values())


@settings(max_examples=30, deadline=None)
@given(programs=st.integers(1, 14), a=st.integers(1, 15), m=st.integers(1, 15), b=st.integers(1, 15))
def test_loops_begin_behind_those_before_them(programs: int, a: int, m: int, b: int) -> None:
    schedule = MODULE.schedules[0].on("host", Sm(programs=programs))
    dims = {"A": a, "M": m, "B": b}
    plan = compiler.plan(MODULE.programs[0], schedule, ranks=1, dims=dims, target="sm_90")
    source = numbered(emit(plan.bound, plan.thresholds).text)
    both(plan, source)
    (kernel,) = plan.bound.kernels
    assert [loop.stages for loop in kernel.loops] == [("before",), ("host", "same"), ("after",)]
    own = generated(source, kernel)
    tiles = Counter(program for program, ran in own.items() for stage, _ in ran if stage != "same")
    counts = [tiles[program] for program in range(kernel.programs)]
    assert sum(counts) == a + m + b
    assert max(counts) - min(counts) <= 1, "nobody has two tiles more than another"


@pytest.mark.parametrize("width", [None, 1, 2, 3])
@pytest.mark.parametrize("first", [0, 1, 5, 12])
def test_every_tile_is_begun_by_its_program(first: int, width: int | None) -> None:
    programs, total = 5, 13
    loop = Loop(stages=("f",), first=first, begin=programs - width if width else 0, width=width)
    begin, step = tile_range(replace(PLAIN, programs=programs, loops=(loop,)), loop, str(total))
    found: list[tuple[int, int]] = []
    for pid in range(programs):
        names = {"pid": pid, "num_programs": programs, "tl": SimpleNamespace(where=lambda c, a, b: a if c else b)}
        found += [(tile, pid) for tile in range(eval(begin, names), total, eval(step, names))]
    assert sorted(found) == list(enumerate(loop.program(np.arange(total), programs)))


CASES = [
    case
    for case in library.unlike()
    if case[1] and any(" in " in str(stage) for stage in case[1].stages) and not library.has_roles(case)
]
assert len(CASES) > 20


@thorough(unless=lambda case: one_in(3, library.name(case)))
@pytest.mark.parametrize("case", CASES[::2], ids=library.name)
def test_the_library_is_generated_as_planned(case: library.Case) -> None:
    dims = library.sizes(case, 4)
    plan = compiler.plan(*case, ranks=4, dims=dims, dtype="bf16", target="sm_90")
    both(plan, numbered(emit(plan.bound, plan.thresholds).text))


def test_a_comment_names_the_tiles_of_each_loop() -> None:
    kernel = replace(PLAIN, programs=8)
    assert tiles_text(kernel, Loop(stages=("host", "same"))) == "tiles of host, same"
    full, later = Loop(stages=("after",), first=16), Loop(stages=("after",), first=11)
    assert tiles_text(kernel, full) == "tiles of after"
    assert tiles_text(kernel, later) == "tiles of after, from the program after that of the last tile above"
    filling = Loop(stages=("after",), first=11, begin=3, width=5)
    idle = "tiles of after, by programs 3 to 7, which are idle in the last wave of the loops above"
    assert tiles_text(kernel, filling) == idle
