"""Programs that fill a wave with tiles of what comes behind, on CPU ranks: numbers and events."""

from __future__ import annotations

import pytest

import tilelink
from tests.compiler.test_library_runs import run
from tests.tiers import thorough
from tilelink import compiler

RANKS = 3


@thorough(unless=lambda columns: columns == 150)
@pytest.mark.parametrize("columns", [150, 300])
def test_sums_fill_the_last_round_of_products(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 or 5 tiles for each rank: an odd number for two programs."""
    sizes = {"Ms": 60, "N": columns, "K": 40}
    monkeypatch.setattr("tests.compiler.library.dims", lambda program, ranks: sizes)
    module = tilelink.load("gemm_rs")
    program = module.program("gemm_rs_reduce_last")
    schedule = module.schedule("copy_engine", program).tile("sums", i=16, j=64)
    stages = compiler.bound(program, schedule, ranks=RANKS, dims=sizes, dtype="f32", target="cpu").stages
    assert stages["sums"].total and stages["sums_rest"].total
    assert run(program, schedule, RANKS, launches=3) == []
