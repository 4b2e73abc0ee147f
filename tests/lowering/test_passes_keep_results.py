"""Every pass keeps the meaning of a program: an interpreter of lowered programs agrees with the reference after each.

Results of floating point may differ where a pass adds in another order, by a few units in the last place.
"""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
import torch

from tests.compiler.library import Case, in_turn, name, unlike
from tests.house import sources
from tests.lowering.interpreter import run_lowered
from tests.lowering.test_passes import PARTS, SMALL, on_the_way, sizes
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.errors import AccountingError, CoverageError, ProgressError, TileLinkError
from tilelink.ir.program import Statement, Transfer, Wait
from tilelink.ir.scalar import const
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound, with_bodies
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs

READY = {"bind", "merge_copies", "tma_copy", "kernel_order"}
"""Steps before a program has kernels."""


def steps(case: Case, ranks: int, dims: dict[str, int]) -> dict[str, Bound]:
    """The lowered programs on the way of a case, by the names of passes, without those that run as the one before."""
    changed: dict[str, Bound] = {}
    for step, bound in on_the_way(case, ranks, dims, SMALL).items():
        before = [*changed.values()][-1:]
        same = [(b.program, b.kernels, b.stages) == (bound.program, bound.kernels, bound.stages) for b in before]
        if step not in READY and not all(same or [False]):
            changed[step] = bound
    return changed


def check(case: Case, ranks: int, dims: dict[str, int]) -> dict[str, Bound]:
    found = steps(case, ranks, dims)
    (given,) = random_inputs(case[0], ranks=ranks, dims=dims, dtype="f32", launches=1, seed=3)
    expected = reference(case[0], given, dims)
    for step, bound in found.items():
        for one, other in zip(run_lowered(bound, given), expected, strict=True):
            for output in other:
                torch.testing.assert_close(one[output], other[output], rtol=1e-5, atol=1e-5, msg=f"after {step}")
    return found


@thorough(unless=lambda case: one_in(4, case[0].name))
@pytest.mark.parametrize("case", in_turn(unlike()), ids=name)
def test_every_pass_keeps_the_meaning_of_the_library(case: Case) -> None:
    if any(tensor.space == "table" for tensor in case[0].tensors):
        pytest.skip("a table has entries that fit together, which tests of its programs give it")
    if any(tensor.bound is not None for tensor in case[0].tensors):
        pytest.skip("the interpreter cuts no tiles by what a launch brings; tests/compiler runs these programs")
    assert "kernels" in check(case, 2, sizes(case))


@pytest.mark.parametrize(("schedule", "step"), [("parts", "split_k_tail"), ("filled", "backfill")])
def test_divided_and_moved_tiles_mean_the_same(schedule: str, step: str) -> None:
    module = compiler.parse(PARTS)
    assert step in check(
        (module.program(), module.schedule(schedule, module.program())), 1, {"M": 64, "N": 80, "K": 512}
    )


BETWEEN_NODES = (
    ("two_level_all_reduce", "copy_sms"), ("two_level_all_to_all", "messages"), ("all_gather", "pull"),
    ("all_reduce_two_shot_pushed", "large"), ("gemm_rs_local_last", None),
)  # fmt: skip


@thorough(unless=lambda program: program in ("two_level_all_reduce", "all_gather"))
@pytest.mark.parametrize(("program", "schedule"), BETWEEN_NODES)
def test_what_the_network_carries_means_the_same(program: str, schedule: str | None) -> None:
    module = compiler.library_module(program)
    found = module.program(program)
    chosen = module.schedule(schedule, found) if schedule else None
    dims = {p.name: {"Ms": 10, "N": 12, "K": 20}.get(p.name, 2) for p in found.params}
    bound = compiler.bound(found, chosen, ranks=4, nodes=2, dims=dims)
    (given,) = random_inputs(found, ranks=4, dims=dims, dtype="f32", launches=1, seed=3)
    assert any(isinstance(s, Transfer) and s.mode in ("put", "get") for s in every_statement(bound))
    for one, other in zip(run_lowered(bound, given), reference(found, given, dims), strict=True):
        for output in other:
            torch.testing.assert_close(one[output], other[output], rtol=1e-5, atol=1e-5)


def every_statement(bound: Bound) -> list[Statement]:
    return [s for stage in bound.stages.values() for s in statements(stage.stage.body)]


def deferred() -> tuple[Case, dict[str, int]]:
    module = compiler.load("gemm_rs")
    program = module.program("gemm_rs_local_last")
    return (program, module.schedule("copy_engine", program)), {"Ms": 60, "N": 392, "K": 100}


def test_deferred_notifies_mean_the_same() -> None:
    case, dims = deferred()
    bound = check(case, 2, dims)["defer_notify"]
    assert bound.stages["gemm"].notified_in == 0


def test_waits_that_sink_mean_the_same() -> None:
    module = compiler.load("ag_gemm")
    bound = check((module.program(), module.schedule("slices", module.program())), 2, {"Ms": 80, "N": 72, "K": 192})
    assert bound["sink_waits"].stages["gemm"].slices


# What the interpreter sees -----------------------------------------------------------------------------------


def spoiled(bound: Bound, what: str) -> Bound:
    gemm = bound.stages["gemm"]
    match what:
        case "a tile twice":
            again = replace(bound.stages["sums"], order={"i": const(0)})
            return replace(bound, stages={**bound.stages, "sums": again})
        case "the next stage first":
            kernel = bound.kernel_of["gemm"]
            loops = tuple(replace(loop, first=0) for loop in reversed(kernel.loops))
            return replace(bound, kernels=(replace(kernel, loops=loops),))
        case _:
            body = tuple(s for s in gemm.stage.body if isinstance(s, Wait) or s is gemm.stage.body[0])
            return with_bodies(bound, {"gemm": body})


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("a tile twice", CoverageError, r"z\[0, 0\] of rank 0 is written 16 times"),
        ("the next stage first", ProgressError, "no task can go on"),
        ("no notify", AccountingError, "which no stage notifies"),
    ],
)
def test_a_lowered_program_that_means_something_else_is_seen(
    what: str, error: type[TileLinkError], message: str
) -> None:
    module = compiler.parse(PARTS)
    case, dims = (module.program(), module.schedule("filled", module.program())), {"M": 64, "N": 80, "K": 64}
    bound = on_the_way(case, 1, dims, replace(SMALL, sms=1, max_programs=1))["kernels"]
    (given,) = random_inputs(case[0], ranks=1, dims=dims, dtype="f32", launches=1, seed=3)
    run_lowered(bound, given)
    with pytest.raises(error, match=message):
        run_lowered(spoiled(bound, what), given)


def test_a_deferred_notify_that_is_never_issued_is_seen() -> None:
    case, dims = deferred()
    bound = steps(case, 2, dims)["defer_notify"]
    stages = {**bound.stages, "gemm": replace(bound.stages["gemm"], notified_in=9)}
    (given,) = random_inputs(case[0], ranks=2, dims=dims, dtype="f32", launches=1, seed=3)
    with pytest.raises(AssertionError, match="was not issued"):
        run_lowered(replace(bound, stages=stages), given)


def test_the_interpreter_shares_no_code_with_the_plan_or_the_emitter() -> None:
    source = sources.tree(sources.ROOT / "tests" / "lowering" / "interpreter.py")
    taken = {node.module for node in ast.walk(source) if isinstance(node, ast.ImportFrom) and node.module}
    ours = {module for module in taken if module.startswith("tilelink.")}
    assert all(
        module.startswith(("tilelink.errors", "tilelink.ir", "tilelink.reference"))
        for module in ours - {"tilelink.lowering.bound"}
    )
