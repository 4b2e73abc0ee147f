"""Tensors that are kept between launches, on CPU ranks: runs, calls, the host's view, and lowered programs."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tests.kept_programs import OF_ITS_RANK, SHARED, SIZES
from tests.lowered import parse_lowered
from tests.lowering.interpreter import run_lowered
from tests.tiers import thorough
from tilelink.artifact import from_json
from tilelink.compiler import assembly
from tilelink.errors import BindingError
from tilelink.lowering.listing import listing
from tilelink.reference import trial
from tilelink.reference.run import Outputs, run

PROGRAMS = {**OF_ITS_RANK, **SHARED}
Inputs = list[list[dict[str, torch.Tensor]]]


def compiled(name: str, ranks: int, nodes: int = 1) -> tilelink.Kernel:
    program = tilelink.parse(PROGRAMS[name]).program("p")
    dims = {one.name: SIZES[one.name] for one in program.params}
    return tilelink.compile(program, ranks=ranks, dims=dims, nodes=nodes)


def drawn(kernel: tilelink.Kernel, launches: int) -> Inputs:
    bound = kernel.bound
    return trial.random_inputs(
        bound.source, ranks=bound.ranks, dims=bound.numbers, dtype="f32", launches=launches, seed=bound.ranks
    )


def expected(kernel: tilelink.Kernel, inputs: Inputs) -> list[list[Outputs]]:
    """What the reference returns for launches one after the other."""
    found: list[list[Outputs]] = []
    for launch in inputs:
        found.append(kernel.reference(launch, [one.kept for one in found[-1]] if found else None))
    return found


def near(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)


@thorough(unless=lambda name, ranks: name in ("appended", "added", "pulled") or (name, ranks) == ("told", 3))
@pytest.mark.parametrize(
    ("name", "ranks"), [*((name, 2) for name in OF_ITS_RANK), *((name, 3) for name in SHARED), ("told", 4)]
)
def test_launches_go_on_where_the_one_before_ended(name: str, ranks: int) -> None:
    kernel = compiled(name, ranks)
    inputs = drawn(kernel, 3)
    wanted = expected(kernel, inputs)
    done = kernel.run(inputs, seed=ranks, max_delay_s=0.001)
    for launch, outputs in zip(wanted, done.outputs, strict=True):
        for own, other in zip(outputs, launch, strict=True):
            near(own, dict(other))
    for own, left, other in zip(kernel.state(), done.kept, wanted[2], strict=True):
        near(own, other.kept)
        near(left, other.kept)


def test_between_nodes_too() -> None:
    kernel = compiled("last", 4, nodes=2)
    inputs = drawn(kernel, 3)
    done = kernel.run(inputs, seed=5, max_delay_s=0.001)
    for launch, outputs in zip(expected(kernel, inputs), done.outputs, strict=True):
        for own, other in zip(outputs, launch, strict=True):
            near(own, dict(other))


def test_the_host_reads_copies_and_resets() -> None:
    kernel = compiled("running", 2)
    assert [own.keys() for own in kernel.state()] == [{"mean", "n"}] * 2
    first, second = drawn(kernel, 2)
    wanted = expected(kernel, [first, second])
    outputs = kernel(first)
    assert [int(own["n"]) for own in kernel.state()] == [1, 1]
    kernel.state()[0]["n"].fill_(7)
    for own, other in zip(kernel(second), wanted[1], strict=True):
        near(own, dict(other))
    assert [int(own["n"]) for own in kernel.state()] == [2, 2]
    kernel.reset_state()
    assert not any(bool(tensor.any()) for own in kernel.state() for tensor in own.values())
    for own, before in zip(kernel(first), outputs, strict=True):
        near(own, before)
    other = compiled("running", 2)
    assert not any(bool(tensor.any()) for own in other.state() for tensor in own.values()), "each kernel has its own"


def test_a_launch_is_not_given_one() -> None:
    kernel = compiled("running", 1)
    ((given,),) = drawn(kernel, 1)
    with pytest.raises(BindingError, match="there is no input 'n'"):
        kernel([{**given, "n": torch.zeros((), dtype=torch.int32)}])
    with pytest.raises(BindingError, match="kept tensors of 2 ranks for 1 ranks"):
        kernel.reference([given], [{}, {}])


@pytest.mark.parametrize("name", PROGRAMS)
def test_lowered_programs_and_artifacts_read_back(name: str) -> None:
    kernel = compiled(name, 2)
    bound = kernel.bound
    assert listing(parse_lowered(listing(bound), "lowered.tl")) == listing(bound)
    again = from_json(kernel.artifact.to_json().encode(), "the text")
    assert [(t.name, t.space, t.symmetric, t.buffers) for t in again.tensors if t.in_place] == [
        (t.name, "kept", name in SHARED and t.name != "mine", 1) for t in bound.source.tensors if t.in_place
    ]
    if "<" not in PROGRAMS[name]:  # the interpreter takes no integers of a launch
        (inputs,) = drawn(kernel, 1)
        for found, wanted in zip(run_lowered(bound, inputs), run(bound.source, inputs, bound.numbers), strict=True):
            near(found, dict(wanted))


@pytest.mark.parametrize("name", ["appended", "told"])
def test_compiled_for_gpus(name: str) -> None:
    program = tilelink.parse(PROGRAMS[name]).program("p")
    dims = {one.name: SIZES[one.name] for one in program.params}
    text = assembly(program, None, ranks=4, dims=dims, target="sm_90", dtype="bf16")
    assert all(stage.name in text for stage in program.stages)
