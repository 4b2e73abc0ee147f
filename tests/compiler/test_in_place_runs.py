"""Tensors that are read and written in place, on CPU ranks: one launch, launches that go on, and a step of decoding."""

from __future__ import annotations

import re

import pytest
import torch

import tilelink
from tests.exact_programs import ADDED_TO, added, added_inputs, differences
from tests.lowered import parse_lowered
from tests.lowering.interpreter import run_lowered
from tests.tiers import thorough
from tests.verifier.test_in_place import SAFE, SIZES, plan
from tilelink.compiler import assembly
from tilelink.errors import BindingError, OrderingError
from tilelink.lowering.listing import listing
from tilelink.reference import trial
from tilelink.reference.run import Outputs, run

Tensors = dict[str, torch.Tensor]
DECODE = {"B": 3, "P": 3, "T": 8, "H": 2, "G": 16, "D": 16, "scale": 0.25}


def drawn(program: tilelink.Program, ranks: int, dims: dict[str, int] | dict[str, float]) -> list[Tensors]:
    return trial.random_inputs(program, ranks=ranks, dims=dims, dtype="f32", launches=1, seed=ranks)[0]


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@thorough(unless=lambda name: name in ("before and after", "added rows", "segments", "averaged", "sums"))
@pytest.mark.parametrize("name", SAFE)
def test_launches_go_on_where_the_previous_one_ended(name: str) -> None:
    program = tilelink.parse(SAFE[name]).program("p")
    dims = {one.name: SIZES[one.name] for one in program.params}
    kernel = tilelink.compile(program, ranks=2, dims=dims)
    first = drawn(program, 2, dims)
    before = [one["x"].clone() for one in first]
    later = [{key: value for key, value in one.items() if key != "x"} for one in first]
    done = kernel.run([first, later, first], seed=1, max_delay_s=0.001)
    assert all(torch.equal(one["x"], kept) for one, kept in zip(first, before, strict=True)), "a run takes copies"
    expected = kernel.reference(first)
    second = kernel.reference([{**one, "x": found["x"]} for one, found in zip(first, expected, strict=True)])
    for launch, wanted in zip(done.outputs, (expected, second, expected), strict=True):
        for rank, outputs in enumerate(launch):
            assert outputs.keys() == wanted[rank].keys()
            for key, value in outputs.items():
                near(value, wanted[rank][key])


@pytest.mark.parametrize("name", [name for name in SAFE if "<" not in SAFE[name]])
def test_lowered_programs_read_back_and_mean_the_same(name: str) -> None:
    """Tile by tile, in sizes that cut the dimensions. The interpreter takes no integers of a launch."""
    bound = plan(SAFE[name]).bound
    assert listing(parse_lowered(listing(bound), "lowered.tl")) == listing(bound)
    dims = {one.name: SIZES[one.name] for one in bound.program.params}
    inputs = drawn(bound.source, 2, dims)
    for found, wanted in zip(run_lowered(bound, inputs), run(bound.source, inputs, dims), strict=True):
        for key, value in wanted.items():
            near(found[key], value)


def test_a_call_changes_the_tensors_that_it_is_given() -> None:
    program = tilelink.parse(SAFE["before and after"]).program("p")
    kernel = tilelink.compile(program, ranks=2, dims={"M": 12, "N": 8})
    given = drawn(program, 2, {"M": 12, "N": 8})
    before = [one["x"].clone() for one in given]
    outputs = kernel(given)
    for rank in range(2):
        assert outputs[rank]["x"] is given[rank]["x"]
        near(given[rank]["x"], before[rank] * 2)
        near(outputs[rank]["y"], before[rank])
    outputs = kernel(given)
    near(outputs[1]["y"], before[1] * 2)
    near(given[1]["x"], before[1] * 4)


def test_tensors_that_cannot_be_changed_are_refused() -> None:
    program = tilelink.parse(SAFE["rows"]).program("p")
    kernel = tilelink.compile(program, ranks=1, dims={"M": 5, "N": 5, "T": 5})
    slot, x = torch.arange(5, dtype=torch.int32), torch.zeros(5, 5)
    for wrong, text in (
        ({"x": torch.zeros(5, 10)[:, ::2]}, "written in place, and is not contiguous"),
        ({"x": x.clone().requires_grad_()}, "requires a gradient"),
        ({"x": x, "v": x}, "shares memory with 'v'"),
        ({"v": x}, "has no input 'x'"),
    ):
        given = {"slot": slot, "v": torch.ones(5, 5), **wrong}
        with pytest.raises(BindingError, match=text):
            kernel([given])
    with pytest.raises(BindingError, match="has no input 'x'"):
        kernel.run([[{"slot": slot, "v": x}]])
    assert torch.equal(kernel([{"slot": slot, "v": torch.ones(5, 5), "x": x}])[0]["x"], torch.ones(5, 5))


MEMBERS = """
program p(M = 4, N = 8) over writers = ranks[0 : 1], readers = ranks[1 :]:
    v : in    [M, N]
    x : inout [M, N] on writers
    y : out   [M, N]
    compute add(i: M, j: N) on writers:
        x[i, j] = x[i, j] + v[i, j]
    compute copy(i: M, j: N):
        y[i, j] = v[i, j]
"""


def test_a_call_changes_what_ranks_of_a_group_have_alone() -> None:
    kernel = tilelink.compile(tilelink.parse(MEMBERS).program(), ranks=2, dims={"M": 4, "N": 8})
    v, x = torch.ones(4, 8), torch.zeros(4, 8)
    outputs = kernel([{"v": v, "x": x}, {"v": v}])
    assert outputs[0]["x"] is x and torch.equal(x, v) and "x" not in outputs[1]
    with pytest.raises(BindingError, match="'x' of rank 0 is written in place, and shares memory with 'v' of rank 1"):
        kernel([{"v": v, "x": x}, {"v": x}])


def test_two_ranks_do_not_change_one_tensor() -> None:
    program = tilelink.parse(SAFE["before and after"]).program("p")
    kernel = tilelink.compile(program, ranks=2, dims={"M": 12, "N": 8})
    one = drawn(program, 2, {"M": 12, "N": 8})[0]
    with pytest.raises(BindingError, match="'x' of rank 0 is written in place, and shares memory with 'x' of rank 1"):
        kernel([one, one])


def test_a_tile_of_one_row_adds_all_of_its_columns() -> None:
    """Its mask is that of the row, broadcast: a view of one element."""
    text = """
program p(M = 4, N = 8, T = 6):
    n   : in    [] <= T
    row : in    [T] < M
    v   : in    [T, N]
    x   : inout [M, N] f32 sum
    compute add(t: T[: n], j: N):
        x[row[t], j] += v[t, j]
schedule ones for p:
    add tile(t=1, j=8)
"""
    module = tilelink.parse(text)
    kernel = tilelink.compile(module.program(), module.schedules[0], ranks=1, dims={"M": 4, "N": 8, "T": 6})
    row = torch.tensor([1, 2, 1, 0, 3, 3], dtype=torch.int32)
    given = {"n": torch.tensor(5, dtype=torch.int32), "row": row, "v": torch.randn(6, 8), "x": torch.randn(4, 8)}
    near(kernel.run([[given]]).outputs[0][0]["x"], given["x"].index_add(0, row[:5].long(), given["v"][:5]))


@thorough(unless=lambda dtype: dtype == "bf16")
@pytest.mark.parametrize("dtype", ["bf16", "f16", ""])
def test_no_addition_of_16_bits_is_lost(dtype: str) -> None:
    """Programs of a rank add small integers to the same elements at the same time: their sums are exact."""
    module = tilelink.parse(ADDED_TO.replace(" f32 sum", f" {dtype} sum"))
    program = module.program()
    assert tilelink.parse(str(program)).program() == program
    kernel = tilelink.compile(program, module.schedules[0], ranks=3, dims={"M": 8, "N": 32, "T": 24}, dtype="bf16")
    kind = torch.float16 if dtype == "f16" else torch.bfloat16
    given = [added_inputs(24, 8, 32, kind, seed=rank) for rank in range(3)]
    done = kernel.run([given] * 2, seed=1, max_delay_s=0.0005)
    for rank, own in enumerate(given):
        for launch in done.outputs:
            assert not list(differences(launch[rank], added(own)))
        assert torch.equal(done.kept[rank]["total"].float(), own["v"].sum(0))


@pytest.mark.parametrize(
    ("dtype", "target", "instruction"),
    [
        ("bf16", "sm_90", r"(atom|red)\.global\.gpu\.relaxed\.add\.noftz\.v8\.bf16"),
        ("f16", "sm_90", r"(atom|red)\.global\.gpu\.relaxed\.add\.noftz\.v8\.f16"),
        ("f16", "sm_80", r"(atom|red)\.global\.gpu\.relaxed\.add\.noftz\.f16x2"),
        ("bf16", "sm_80", r"atom\.relaxed\.gpu\.global\.cas\.b32"),
        ("bf16", "gfx942", "global_atomic_pk_add_bf16"),
        ("f16", "gfx942", "global_atomic_pk_add_f16"),
    ],
)
def test_additions_of_16_bits_compile_to_the_widest_atomics(dtype: str, target: str, instruction: str) -> None:
    """Before sm_90 there is no addition of bf16, and a word of two is exchanged if it is still what was added to."""
    module = tilelink.parse(ADDED_TO.replace(" f32 sum", f" {dtype} sum"))
    schedule = module.schedules[0].tile("add", i=8, j=128)
    text = assembly(module.program(), schedule, ranks=2, dims={"M": 8, "N": 128, "T": 4}, target=target)
    assert re.search(instruction, text)


def test_additions_compile_to_atomics_and_are_said_to_be_in_any_order() -> None:
    program = tilelink.parse(SAFE["sums"]).program("p")
    text = assembly(program, None, ranks=2, dims=SIZES, target="sm_90")
    added = [line for line in text.splitlines() if "red.global" in line or "atom.global" in line]
    assert any(".gpu." in line and ".relaxed" in line and "add" in line and "f32" in line for line in added), added
    assert "    x    : inout" not in str(program) and "f32 sum" in str(program)


def _decoded(every: list[Tensors], rank: int) -> Tensors:
    """The caches of a rank after a step, and the attention of all ranks, in plain torch."""
    after: Tensors = {"keys": every[rank]["keys"].clone(), "vals": every[rank]["vals"].clone()}
    results: list[torch.Tensor] = []
    for own in every:
        parts: list[torch.Tensor] = []
        caches = {"keys": own["keys"].clone(), "vals": own["vals"].clone()}
        for b, at in enumerate(own["at"].tolist()):
            for name, new in (("keys", "k"), ("vals", "v")):
                caches[name].flatten(1, 2)[b, at] = own[new][b]
            keys, vals = (caches[name].flatten(1, 2)[b, : at + 1].transpose(0, 1) for name in ("keys", "vals"))
            parts.append(((own["q"][b] @ keys.mT) * DECODE["scale"]).softmax(-1) @ vals)
        if own is every[rank]:
            after = caches
        results.append(torch.stack(parts))
    return {**after, "y": torch.stack(results)}


def test_decoding_appends_and_attends() -> None:
    """Steps on the caches of the step before, on the pages' borders too; places are those of each launch."""
    ranks = 3
    program = tilelink.load("kv_append").program()
    kernel = tilelink.compile(program, ranks=ranks, dims=DECODE)
    steps = [drawn(program, ranks, DECODE) for _ in range(4)]
    for number, step in enumerate(steps):
        for own in step:
            own["at"] = torch.tensor([6, 0, 20], dtype=torch.int32) + number
    later = [[{k: v for k, v in own.items() if k not in ("keys", "vals")} for own in step] for step in steps[1:]]
    done = kernel.run([steps[0], *later], seed=ranks, max_delay_s=0.001)
    caches = [{name: own[name] for name in ("keys", "vals")} for own in steps[0]]
    for step, outputs in zip(steps, done.outputs, strict=True):
        given = [{**own, **cache} for own, cache in zip(step, caches, strict=True)]
        expected = [_decoded(given, rank) for rank in range(ranks)]
        for rank in range(ranks):
            for name in ("keys", "vals", "y"):
                near(outputs[rank][name], expected[rank][name])
        caches = [{name: one[name] for name in ("keys", "vals")} for one in expected]


def test_decoding_is_refused_without_its_wait() -> None:
    lines = [
        line for line in str(tilelink.load("kv_append").program()).splitlines() if "consumer_tile_wait" not in line
    ]
    program = tilelink.parse("\n".join(lines) + "\n").program()
    with pytest.raises(OrderingError, match=r"reads keys of rank 0, .* and only the schedule orders the two"):
        tilelink.plan(program, ranks=3, dims=DECODE)


@pytest.mark.parametrize("target", ["sm_90", "sm_80", "gfx942"])
def test_decoding_compiles_for_gpus(target: str) -> None:
    program = tilelink.load("kv_append").program()
    text = assembly(program, None, ranks=4, dims=DECODE, target=target, dtype="bf16")
    assert all(stage.name in text for stage in program.stages)


def test_what_is_allowed_for_another_order_covers_it_and_little_more() -> None:
    """The same terms backwards, in one tensor that is kept and in one that each launch is given."""
    program = tilelink.parse(ADDED_TO.replace(" f32 sum", " bf16 sum")).program()
    sizes = {"M": 8, "N": 32, "T": 24}
    launches = trial.random_inputs(program, ranks=1, dims=sizes, dtype="f32", launches=2)
    every: list[list[Outputs]] = []
    for given in launches:
        kept = [one.kept for one in every[-1]] if every else None
        every.append(run(program, given, sizes, kept=kept))
    assert [one[0].added for one in every] == [{"x": 24, "total": 24}] * 2
    apart = trial.rounding_error(program, "f32", every)
    assert apart == torch.finfo(torch.bfloat16).eps * 48**0.5
    backwards = [{**one, "v": one["v"].flip(0)} for one in launches[0]]
    other = run(program, backwards, sizes)[0]
    error = trial.relative_error([other["x"]], [every[0][0]["x"]])
    assert apart / 20 < error < apart
