"""What a compiled program is, as plain data: it comes back from its text equal, and says how its module is called."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.compiler import library
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.artifact import FORMAT, Artifact, Boxes, PeersPointer, TensorPointer, from_json
from tilelink.backend.emit import emit
from tilelink.compiler.artifact import artifact_of
from tilelink.errors import DataError, TileSizeError
from tilelink.generated import stem
from tilelink.ir.program import F8
from tilelink.reference import trial

RANKS = 4


def made(case: library.Case, target: str = "sm_90", dialect: str = "triton") -> tuple[Artifact, str]:
    """The artifact of a case and the text of its module."""
    program, schedule = case
    dims = library.sizes(case, RANKS)
    tables = trial.random_tables(program, ranks=RANKS, dims=dims, seed=0)
    dtype = "f32" if target == "cpu" else "bf16"
    where: dict[str, Any] = {"ranks": RANKS, "target": target, "dialect": dialect}
    plan = compiler.plan(program, schedule, **where, dims=dims, dtype=dtype, tables=tables)
    emitted = emit(plan.bound, plan.thresholds)
    return artifact_of(plan, emitted, tables), emitted.text


CHOICES = ("sm_90 triton", "cpu triton", "sm_90 traced", "gfx942 triton")
COVERING = library.covering(library.cases())


@thorough(unless=lambda case, choice: one_in(6, library.name(case), choice))
@pytest.mark.parametrize(("case", "choice"), library.spread(COVERING, *CHOICES), ids=library.name)
def test_an_artifact_comes_back_equal_and_says_how_its_module_is_called(case: library.Case, choice: str) -> None:
    if choice.startswith("gfx942") and any(tensor.dtype in F8 for tensor in case[0].tensors):
        pytest.skip("gfx942 has no floats of 8 bits")
    try:
        artifact, text = made(case, *choice.split())
    except TileSizeError as error:
        if choice.startswith("gfx942"):
            pytest.skip(f"a schedule for another processor: {error.message}")
        raise
    again = from_json(artifact.to_json().encode(), "the text")
    assert again.to_json() == artifact.to_json() and again.fingerprint == artifact.fingerprint
    assert again.launched == artifact.launched and again.tensors == artifact.tensors
    assert artifact.source == stem(text)
    functions = {one.name: one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)}
    for kernel in artifact.kernels:
        assert [one.arg for one in functions[kernel.name].args.args] == [one.name for one in kernel.parameters]
    for copies in artifact.copy_programs:
        assert [one.arg for one in functions[copies.name].args.args] == ["queue", "rank", "epoch"]


@thorough(unless=lambda case: one_in(8, case[0].name))
@pytest.mark.parametrize("case", library.in_turn(library.cases()), ids=library.name)
def test_all_that_a_program_launches_is_counted_once_after_one_another(case: library.Case) -> None:
    artifact, _ = made(case)
    first = 0
    for one in artifact.launched:
        assert one.track == first
        first += one.programs


WRONG: dict[str, tuple[Any, str]] = {
    "another class": (("kernels", 0, "parameters", 0, "is", "Number"), "'is' of 0 of parameters .* not one of "),
    "unknown tensor": (("kernels", 0, "parameters", 0, "tensor", "q"), "takes 'q', which is no tensor of it"),
    "unknown signal": (("kernels", 0, "awaits", [["q", "tile"]]), "names the signal .* which there is not"),
    "counters outside": (("grids", 0, "base", 10**6), "lie outside of the pad"),
    "thresholds": (("grids", 0, "thresholds", {"shape": [1], "values": [1]}), r"thresholds of .* are \[1\]"),
    "pad": (("pad_size", 1), "the pad has another size"),
    "programs": (("kernels", 0, "programs", 0), "the grid of gemm"),
    "buffers": (("tensors", 0, "buffers", 0), "has 0 buffers"),
    "more": (("more", 1), "has a 'more', which is no field of it"),
    "a file elsewhere": (("source", "/tmp/tilelink_" + 32 * "0"), "is no name of a generated module"),
    "a file above": (("source", "../tilelink_" + 32 * "0"), "is no name of a generated module"),
    "a shared number": (("tensors", 1, "number", 0), "two tensors have one number"),
    "a shape": (("tensors", 0, "shape", [-1, 4]), r"has the shape \[-1, 4\]"),
    "programs of a block": (("kernels", 0, "programs_per_cta", 0), "the grid of gemm"),
    "buffers of counters": (("grids", 0, "buffers", 0), "have 0 buffers"),
    "protocol": (("protocol", "HOPE"), "not one of HELPER_KERNELS, IN_KERNEL"),
}  # fmt: skip


@pytest.mark.parametrize("which", WRONG)
def test_what_does_not_fit_together_is_refused(which: str) -> None:
    (*where, key, value), said = WRONG[which]
    module = compiler.load("ag_gemm")
    artifact, _ = made((module.program(), module.schedule("h200", module.program())))
    raw = json.loads(artifact.to_json())
    inner = raw["artifact"]
    for step in where:
        inner = inner[step]
    inner[key] = value
    with pytest.raises(DataError, match=said):
        from_json(json.dumps(raw).encode(), "the text")


def test_counters_of_two_signals_are_apart() -> None:
    module = compiler.load("gemm_ar")
    artifact, _ = made((module.program(), None))
    first, second, *rest = artifact.grids
    wrong = replace(artifact, grids=(first, replace(second, base=first.base), *rest))
    with pytest.raises(DataError, match="two signals share counters"):
        from_json(wrong.to_json().encode(), "the text")
    with pytest.raises(DataError, match="two grids of counters are of one signal"):
        from_json(replace(artifact, grids=(first, first)).to_json().encode(), "the text")


def test_another_format_is_told_from_no_artifact() -> None:
    artifact, _ = made(library.cases()[0])
    with pytest.raises(DataError, match=f"has format 7, not {FORMAT}") as caught:
        from_json(artifact.to_json().replace(f'"format": {FORMAT}', '"format": 7').encode(), "the text")
    assert caught.value.hint == "compile the program again"
    with pytest.raises(DataError, match="the text is no artifact"):
        from_json(b"[1]", "the text")


def test_pointers_to_peers_are_of_symmetric_tensors_and_boxes_of_ranks_that_there_are() -> None:
    module = compiler.load("ag_gemm")
    artifact, _ = made((module.program(), module.schedule("h200", module.program())))
    kernel = artifact.kernels[0]
    own = next(one.tensor for one in kernel.parameters if isinstance(one, TensorPointer))
    assert not artifact.tensor(own).symmetric
    for parameter, said in (
        (PeersPointer(tensor=own), "and it is not symmetric"),
        (Boxes(tensor=own, box=(8, 8), owner=RANKS), f"boxes of rank {RANKS}, of {RANKS}"),
    ):
        wrong = replace(artifact, kernels=(replace(kernel, parameters=(parameter,)),))
        with pytest.raises(DataError, match=said):
            from_json(wrong.to_json().encode(), "the text")
