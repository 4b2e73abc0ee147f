"""Programs that notify a tile while they multiply the next one, on CPU ranks: numbers and events."""

from __future__ import annotations

import pytest

import tilelink
from tests.backend.test_defer_notify_source import NESTED
from tests.compiler.test_library_runs import run
from tests.tiers import thorough
from tilelink import compiler

SIZES = {
    "gemm_rs_local_last": {"Ms": 200, "N": 130, "K": 200},
    "nested": {"M": 64, "N": 40, "K": 72, "L": 128},
}  # fmt: skip


@thorough(unless=lambda name: name == "nested")
@pytest.mark.parametrize(("name", "ranks"), [("gemm_rs_local_last", 2), ("nested", 3)])
def test_runs_as_planned(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles a program, products of more than two steps, uneven edges, launches behind one another."""
    dims = SIZES[name]
    monkeypatch.setattr("tests.compiler.library.dims", lambda program, ranks: dims)
    module = tilelink.parse(NESTED) if name == "nested" else tilelink.load("gemm_rs")
    program = module.program(name)
    schedule = module.schedule("one" if name == "nested" else "copy_engine", program)
    source = compiler.source(program, schedule, ranks=ranks, dims=dims)
    assert "& (held_tile >= 0):" in source
    assert run(program, schedule, ranks, launches=3) == []
