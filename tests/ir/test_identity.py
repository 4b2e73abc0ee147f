"""Results that are kept for the same objects."""

from __future__ import annotations

import pytest

from tilelink import compiler
from tilelink.ir import typing
from tilelink.ir.identity import ByIdentity
from tilelink.ir.program import Program, Stage


def test_a_result_is_that_of_the_same_objects_and_not_of_equal_ones() -> None:
    results = ByIdentity[str]()
    first, equal = [1], [1]
    results.put("of first", first)
    assert results.get(first) == "of first"
    assert results.get(equal) is None
    assert results.get(first, first) is None


def test_the_oldest_results_are_dropped() -> None:
    results = ByIdentity[int](entries=2)
    objects = [[number] for number in range(5)]
    for number, one in enumerate(objects):
        results.put(number, one)
    assert [results.get(one) for one in objects] == [None, None, None, 3, 4]


def test_a_kept_object_keeps_its_identity() -> None:
    results = ByIdentity[str]()
    results.put("of a list that nothing else refers to", [1])
    assert all(results.get([n]) is None for n in range(1000))


def test_types_are_inferred_once_for_a_stage_that_no_pass_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    inferred: list[str] = []
    plain = typing._infer_stage  # pyright: ignore[reportPrivateUsage]

    def counted(program: Program, stage: Stage, *rest: object) -> object:
        inferred.append(stage.name)
        return plain(program, stage, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(typing, "_infer_stage", counted)
    module = compiler.load("ag_gemm")
    program = module.program()
    dims = {"Ms": 1024, "N": 2048, "K": 1024}
    for _ in range(2):
        compiler.plan(program, module.schedule("copy_engine", program), ranks=2, dims=dims, target="sm_90")
    # at most once as it was written, and once with its numbers for each of the two plans
    assert all(inferred.count(stage.name) <= 3 for stage in program.stages)
