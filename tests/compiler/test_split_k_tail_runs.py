"""Programs whose last tiles are computed in parts, on CPU ranks: numbers and events."""

from __future__ import annotations

import pytest

import tilelink
from tests.compiler.test_library_runs import run
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.ir.program import Program
from tilelink.scheduling.schedule import Schedule

SIZES = {"Ms": 30, "N": 60, "K": 520, "M": 120}
LIBRARY = [
    ("ag_gemm", "ag_gemm_in_place", "copy_engine", "gemm", 3),
    ("ag_gemm", "ag_gemm", "copy_sms", "gemm", 3),
    ("ag_gemm_gated", "ag_gemm_gated", "small", "gemm", 3),
    ("ag_gemm_epilogues", "ag_gemm_bias_gelu", "small", "gemm", 4),
    ("gemm_rs", "gemm_rs_local_last", "copy_engine", "own", 3),
    ("gemm_rs", "gemm_rs_slots", "copy_sms", "gemm", 3),
]
OWN = """\
program own(M, N, K):
    x : in    [M + 3, K]
    w : in    [K, N]
    b : in    [N]
    z : local [M, N]
    y : out   [M, N]

    compute make(i: M, j: N):
        a = dot(x[3 + i, :], w[:, j])
        z[i, j] = a * pos(i)[:, None] + b[j]
        for (p: ranks):
            z[i, j] = z[i, j] + 1.0
        if rank == 1:
            a = a + 2.0 * pos(j)
        y[i, j] = a + z[i, j]

schedule one for own:
    make on sm, tile(i=48, j=64, k=16), split_k_tail 3
"""


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes with one tile more than two programs have in whole waves, and many steps in each product."""
    monkeypatch.setattr(
        "tests.compiler.library.dims", lambda program, ranks: {p.name: SIZES[p.name] for p in program.params}
    )


def parts(program: Program, schedule: Schedule, ranks: int) -> int:
    """How many parts there are in a launch."""
    dims = {p.name: SIZES[p.name] for p in program.params}
    stages = compiler.bound(program, schedule, ranks=ranks, dims=dims, dtype="f32", target="cpu").stages
    return sum(stage.total for name, stage in stages.items() if name.endswith("_parts"))


@thorough(unless=lambda file, schedule, ranks: one_in(3, file, schedule, ranks))
@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize(("file", "name", "schedule", "stage", "ranks"), LIBRARY, ids=lambda one: str(one))
def test_library_programs_run_as_planned(file: str, name: str, schedule: str, stage: str, ranks: int) -> None:
    program = tilelink.load(file).program(name)
    cut = tilelink.load(file).schedule(schedule, program).split_k_tail(stage, 2)
    assert parts(program, cut, ranks) == 2
    assert run(program, cut, ranks, launches=3) == []


@pytest.mark.usefixtures("sizes")
def test_what_follows_a_product_follows_its_sum() -> None:
    """Positions, shifted rows, loops, conditions and own scratch behind the product, at tiles that the end cuts."""
    module = tilelink.parse(OWN)
    assert parts(module.programs[0], module.schedules[0], 2) == 2
    assert run(module.programs[0], module.schedules[0], 2, launches=2) == []


@pytest.mark.usefixtures("sizes")
def test_what_needs_whole_columns_gets_them() -> None:
    head, _ = OWN.split("        z[i, j] = a")
    text = f"{head}        y[i, j] = a - max(a, axis=0)[None, :]\n"
    text += "\nschedule one for own:\n    make on sm, tile(i=128, j=20, k=16), split_k_tail 3\n"
    module = tilelink.parse(text.replace("    z : local [M, N]\n", "").replace("    b : in    [N]\n", ""))
    assert parts(module.programs[0], module.schedules[0], 2) == 2
    assert run(module.programs[0], module.schedules[0], 2, launches=2) == []


SHIFTED = """\
program own(M, N, K):
    x : in    [M, K]
    w : in    [N, K]
    z : local [M + {0}, N]
    y : out   [M + {0}, N]

    compute rest(r: {0} - 1, j: N):
        z[1 + M + r, j] = zeros(f32) + 7.0
    compute first(j: N):
        z[0, j] = zeros(f32) + 5.0
    compute make(i: M, j: N):
        z[1 + i, j] = dot(x[i, :], w[j, :].T) + 100.0
    compute last(i: M + {0}, j: N):
        y[i, j] = z[i, j]

schedule one for own:
    make on sm, tile(i={1}, j=20, k=16), split_k_tail 3
"""


@thorough(unless=lambda rows: rows == 40)
@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize(("more", "rows", "divided"), [(31, 48, 0), (31, 40, 2), (31, 120, 2)])
def test_tiles_that_end_before_their_tensor_write_no_further(more: int, rows: int, divided: int) -> None:
    """Where the end of 120 rows cuts a tile, and other rows follow, the tile stays whole."""
    module = tilelink.parse(SHIFTED.format(more, rows))
    assert parts(module.programs[0], module.schedules[0], 1) == divided
    assert run(module.programs[0], module.schedules[0], 1, launches=2) == []


@pytest.mark.usefixtures("sizes")
def test_what_does_not_go_by_rows_is_written_once() -> None:
    head, _ = OWN.split("        a = dot")
    text = f"{head}        a = dot(x[3 + i, :], w[:, j])\n        s[j] = b[j] * 2.0\n        y[i, j] = a + s[j]\n"
    text = text.replace("    z : local [M, N]\n", "    s : local [N]\n")
    text += "\nschedule one for own:\n    make on sm, tile(i=128, j=20, k=16), split_k_tail 3\n"
    module = tilelink.parse(text)
    assert parts(module.programs[0], module.schedules[0], 1) == 2
    assert run(module.programs[0], module.schedules[0], 1, launches=2) == []
