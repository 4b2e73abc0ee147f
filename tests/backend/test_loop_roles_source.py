# pyright: basic
"""Kernels whose warps have roles in a loop that carries a state: their source, and what Triton makes of it."""

from __future__ import annotations

import re

import pytest

from tests.backend.offline import compile_all
from tests.backend.test_roles_source import functions
from tests.gpu.loop_forms import FORMS
from tests.lowering import test_loop_products as products
from tests.runtime.ptx import text
from tests.tiers import thorough
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.lowering.bound import Bound
from tilelink.lowering.rings import Role, Step, parts_of
from tilelink.planning.plan import make_plan
from tilelink.runtime.cuda.compile_offline import resources

STEPS = {
    "await empty": r"roles\.wait\(empty", "expect full": r"roles\.expect\(full", "load leading": r"roles\.load\(ks",
    "load trailing": r"roles\.load\(vs", "await full": r"roles\.wait\(full",
    "multiply leading": r"scores = roles\.multiply\(kept_ring", "multiply trailing": r"state = roles\.multiply_rows",
    "retire": r"\w+ = roles\.retire", "arrive empty": r"roles\.arrive\(empty", "compute": r"state_new = ",
    "carry": r"operand = roles\.operand",
    "await vacant": r"roles\.wait\(vacant", "expect ready": r"roles\.expect\(ready", "load kept": r"roles\.load_parts",
    "await ready": r"roles\.wait\(ready", "arrive vacant": r"roles\.arrive\(vacant",
}  # fmt: skip
"""Step, without its number -> the line of source that it is."""


def bound(name: str = "online softmax") -> Bound:
    form = FORMS[name]
    module = compiler.parse(form.text, "loops.tl")
    sizes = {"H": 8, "D": form.D, "N": form.N, "B": form.B}
    return compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")


def source(made: Bound) -> dict[str, list[str]]:
    return functions(emit(made, make_plan(made).thresholds).text)


def events(lines: list[str]) -> list[str]:
    return [step for line in lines for step, pattern in STEPS.items() if re.match(pattern, line)]


def named(steps: tuple[Step, ...] | list[Step]) -> list[str]:
    return [" ".join(filter(None, (step.word, step.what))) for step in steps]


def written(role: Role) -> list[str]:
    """The steps of a role as in source: those of the first iteration, of each further one, and after the last one."""
    parts = parts_of(role)
    return named([*(parts.first if role.first is not None else ()), *parts.each, *parts.last])


@pytest.mark.parametrize("name", ["online softmax", "one product in flight", "causal", "three consumers"])
def test_each_role_has_the_steps_of_the_lowered_program_in_order(name: str) -> None:
    made = bound(name)
    roles = made.stages["gemm"].roles
    assert roles is not None and roles.kept is not None
    found = source(made)
    ready, vacant = named(roles.kept.reader.steps)[:1], named(roles.kept.reader.steps)[-1:]
    last = named(parts_of(roles.operands.reader).last)
    wanted = written(roles.operands.reader)
    end = len(wanted) - len(last)
    assert events(found["_gemm_consumer"]) == [*ready, *wanted[:end], *vacant, *last]
    loader = parts_of(roles.operands.writer)
    each = [*named(roles.kept.writer.steps), *named([*loader.each, *loader.last])]
    assert events(found["_gemm_loader"]) == each


LIKE_OTHERS = {
    "online softmax", "one product in flight", "two buffers", "three buffers", "heads of 64", "short iterations",
    "causal", "causal, one product in flight", "documents", "documents, one product in flight", "groups of heads",
    "long results",
}  # fmt: skip
"""Each line of the source of these is in that of another form, but for numbers, what they are computed of, and lists
of parameters."""


@thorough(unless=lambda name: name not in LIKE_OTHERS)
@pytest.mark.parametrize("name", FORMS)
def test_a_form_compiles_to_products_of_groups_of_warps(name: str) -> None:
    made = bound(name)
    emitted = emit(made, make_plan(made).thresholds)
    kernels = dict(zip([one.name for one in emitted.kernels], compile_all(made, emitted), strict=True))
    ptx = text(kernels["gemm"])
    assert "wgmma.mma_async" in ptx and "setmaxnreg.inc" in ptx
    found = resources(kernels["gemm"])
    assert found["LOCAL"] == 0 and found["STACK"] <= 96
    assert kernels["gemm"].metadata.shared <= 227 * 1024
    # A barrier of all threads of the block would wait for other roles for ever.
    assert not re.search(r"bar\.sync\s+0;", ptx)


@pytest.mark.parametrize(("name", "depth"), [("rows", 64), ("rows", 128), ("columns", 64), ("columns", 128)])
def test_gradients_compile_and_what_threads_hold_fits_their_registers(name: str, depth: int) -> None:
    made = products.bound(name, D=depth)
    emitted = emit(made, make_plan(made).thresholds)
    kernels = dict(zip([one.name for one in emitted.kernels], compile_all(made, emitted), strict=True))
    found = resources(kernels[name])
    assert found["LOCAL"] == 0 and found["STACK"] <= 128  # places of rings and vectors; sums take more
    ptx = text(kernels[name])
    assert ptx.count("wgmma.wait_group") >= 2 and kernels[name].metadata.shared <= 227 * 1024
    # vectors of columns go through shared memory, in which the threads of a role alone meet
    assert not re.search(r"bar(rier)?\.sync\s+0;", ptx)


def test_masks_are_applied_only_where_a_tile_needs_them() -> None:
    lines = source(bound("causal"))["_gemm_consumer"]
    at = [n for n, line in enumerate(lines) if line == "masked = scores"]
    assert len(at) == 2  # in the first iteration, and in further ones
    for n in at:
        assert lines[n + 1].startswith("if ") and lines[n + 2].startswith("masked = tl.where(")


@pytest.mark.parametrize("name", ["causal, from the diagonal down", "causal, from the diagonal and then up"])
def test_iterations_after_the_diagonal_have_no_masks(name: str) -> None:
    lines = source(bound(name))["_gemm_consumer"]
    masked = [line for line in lines if line.startswith("masked = ")]
    assert len(masked) == 2 and masked[0].startswith("masked = tl.where(") and masked[1] == "masked = scores"
    assert not any(line.startswith("if ") for line in lines)


def test_iterations_that_a_condition_leaves_out_are_not_loaded() -> None:
    loader = source(bound("a window"))["_gemm_loader"]
    (loop,) = (line for line in loader if line.startswith("for t in range("))
    assert loop == "for t in range(tl.maximum(0, n - 1), n + 1):"


def test_keys_of_a_channel_are_waited_for_once() -> None:
    loader = source(bound("short iterations"))["_gemm_loader"]
    at = next(n for n, line in enumerate(loader) if "dl.wait(" in line)
    assert loader[at - 2 : at] == ["if channel != ks_awaited:", "ks_awaited = channel"]
    assert sum("dl.wait(" in line for line in loader) == 2
