"""Tensors that a group of ranks has alone: what is proved of them, who gets memory, who takes and returns them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tests.lowered import parse_lowered
from tests.tiers import thorough
from tilelink import artifact, compiler
from tilelink.errors import BindingError, CoverageError, DataError, ParseError, ShapeError, TileLinkError
from tilelink.ir.printer import print_program
from tilelink.ir.program import Program
from tilelink.language import (
    Dim,
    Index,
    consumer_tile_wait,
    dot,
    let,
    producer_tile_notify,
    rank,
    ranks,
    tile_push_data,
)
from tilelink.lowering.listing import listing
from tilelink.reference.trial import compared, random_inputs, relative_error
from tilelink.runtime.cpu.memory import Memory

TEXT = """program exchange(A, C, K, N) over attention = ranks[0 : A], experts = ranks[A :]:
    x    : in        [experts, C, K] on attention
    w    : in        [N, K] on experts
    got  : symmetric [attention, C, K] on experts
    back : symmetric [experts, C, N] on attention
    y    : out       [experts, C, N] on attention

    comm dispatch(e: experts, c: C) on attention:
        let there = got[rank.attention, c, :] @ experts[e]
        tile_push_data(there, x[e, c, :])
        producer_tile_notify(there)

    compute expert(s: attention, c: C, j: N) on experts:
        consumer_tile_wait(got[s, c, :])
        let there = back[rank.experts, c, j] @ attention[s]
        tile_push_data(there, dot(got[s, c, :], w[j, :].T))
        producer_tile_notify(there)

    compute combine(e: experts, c: C, j: N) on attention:
        consumer_tile_wait(back[e, c, j])
        y[e, c, j] = back[e, c, j]
"""
DIMS = {"A": 2, "C": 8, "K": 16, "N": 16}


@tilelink.program
def exchange(A: Dim, C: Dim, K: Dim, N: Dim) -> None:
    attention = ranks[0:A]
    experts = ranks[A:]
    x = tilelink.input(experts, C, K, on=attention)
    w = tilelink.input(N, K, on=experts)
    got = tilelink.symmetric(attention, C, K, on=experts)
    back = tilelink.symmetric(experts, C, N, on=attention)
    y = tilelink.output(experts, C, N, on=attention)

    @tilelink.comm(on=attention)
    def dispatch(e: Index = experts, c: Index = C) -> None:
        there = let(got[rank.attention, c, :] @ experts[e])
        tile_push_data(there, x[e, c, :])
        producer_tile_notify(there)

    @tilelink.compute(on=experts)
    def expert(s: Index = attention, c: Index = C, j: Index = N) -> None:
        consumer_tile_wait(got[s, c, :])
        there = let(back[rank.experts, c, j] @ attention[s])
        tile_push_data(there, dot(got[s, c, :], w[j, :].T))
        producer_tile_notify(there)

    @tilelink.compute(on=attention)
    def combine(e: Index = experts, c: Index = C, j: Index = N) -> None:
        consumer_tile_wait(back[e, c, j])
        y[e, c, j] = back[e, c, j]


def parsed(text: str = TEXT) -> Program:
    return compiler.check(compiler.parse(text, "exchange.tl").program())


def drawn(number: int, dims: dict[str, int]) -> list[dict[str, torch.Tensor]]:
    return random_inputs(exchange, ranks=number, dims=dims, dtype="f32", launches=1)[0]


def test_both_front_ends_and_the_printed_form_are_one_program() -> None:
    program = parsed()
    assert exchange == program and program.tensor("x").on == "attention"
    assert parsed(print_program(program)) == program


@thorough(unless=lambda number, attention: (number, attention) == (3, 1))
@pytest.mark.parametrize(("number", "attention"), [(3, 1), (3, 2), (4, 2)])
def test_only_members_take_and_return_their_tensors(number: int, attention: int) -> None:
    dims = {**DIMS, "A": attention}
    kernel = tilelink.compile(exchange, dims=dims, ranks=number)
    inputs = drawn(number, dims)
    assert [set(own) for own in inputs] == [{"x"}] * attention + [{"w"}] * (number - attention)
    outputs, expected = kernel(inputs), kernel.reference(inputs)
    assert [set(own) for own in outputs] == [set(own) for own in expected]
    assert [set(own) for own in outputs] == [{"y"}] * attention + [set[str]()] * (number - attention)
    assert relative_error(*compared(outputs, expected, "y")) < 1e-5
    for s in range(attention):
        for e in range(number - attention):
            wanted = inputs[s]["x"][e] @ inputs[attention + e]["w"].T
            torch.testing.assert_close(outputs[s]["y"][e], wanted, rtol=1e-4, atol=1e-4)


def test_other_ranks_have_no_memory_for_them() -> None:
    made = tilelink.compile(exchange, dims=DIMS, ranks=4).artifact
    memory = Memory(made, 1)
    for tensor in made.tensors:
        held = [memory.tensors[one][tensor.name].nbytes > 0 for one in range(4)]
        members = [tensor.on(one) for one in range(4)]
        assert any(members) and not all(members)
        assert held == ([True] * 4 if tensor.symmetric else members)
    assert [list(own) for own in memory.results] == [["y"], ["y"], [], []]


def test_an_input_of_others_is_refused() -> None:
    kernel = tilelink.compile(exchange, dims=DIMS, ranks=4)
    inputs = drawn(4, DIMS)
    inputs[3]["x"] = inputs[0]["x"]
    with pytest.raises(BindingError, match="rank 3 has no x, which the ranks of attention alone take"):
        kernel(inputs)
    inputs[3] = {}
    with pytest.raises(BindingError, match="rank 3 has no input 'w'"):
        kernel(inputs)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dispatch(e: experts, c: C) on attention", "dispatch(e: experts, c: C)", "attention alone has x"),
        ("@ experts[e]", "@ e", "experts alone has got"),
        ("c, j] @ attention[s]", "c, j] @ experts[s]", "attention alone has back"),
        ("N) on experts", "N)", "experts alone has got"),
        ("y    : out       [experts, C, N] on attention", "y    : out       [experts, C, N]", "y of rank 2"),
        ("y    : out       [experts, C, N] on attention", "y    : out       [experts, C, N] on experts", "alone has y"),
        ("        y[e, c, j]", "        if rank == 0:\n            y[e, c, j]", "y of rank 1 is never written"),
    ],
)
def test_what_is_not_there_is_refused_by_the_verifier_and_the_reference(old: str, new: str, message: str) -> None:
    text = TEXT.replace("rank.attention, c", "0, c") if new == "dispatch(e: experts, c: C)" else TEXT
    text = text.replace("rank.experts, c", "0, c") if new == "N)" else text
    assert old in text
    program = parsed(text.replace(old, new, 1))
    with pytest.raises(CoverageError, match=message) as refused:
        tilelink.compile(program, dims=DIMS, ranks=4)
    assert refused.value.location is not None and refused.value.hint
    inputs = random_inputs(program, ranks=4, dims=DIMS, dtype="f32", launches=1)[0]
    with pytest.raises(CoverageError, match=r"alone has|never written"):
        tilelink.reference.run(program, inputs, DIMS)


def test_a_signal_of_a_tensor_that_is_not_there_is_refused() -> None:
    text = TEXT.replace("        producer_tile_notify(there)\n\n    compute expert",
                        "        producer_tile_notify(got[0, c, :])\n\n    compute expert")  # fmt: skip
    with pytest.raises(CoverageError, match="experts alone has got"):
        tilelink.compile(parsed(text), dims=DIMS, ranks=4)


def test_a_missing_wait_is_refused() -> None:
    for wait in ("        consumer_tile_wait(got[s, c, :])\n", "        consumer_tile_wait(back[e, c, j])\n"):
        assert wait in TEXT
        with pytest.raises(TileLinkError, match="nothing orders the two"):
            tilelink.compile(parsed(TEXT.replace(wait, "")), dims=DIMS, ranks=4)


def test_members_are_in_the_lowered_program_and_its_text() -> None:
    bound = tilelink.plan(exchange, dims=DIMS, ranks=4).bound
    text = listing(bound)
    assert "members[0, 2]" in text and "members[2, 4]" in text
    again = parse_lowered(text)
    assert listing(again) == text and again.tensors == bound.tensors
    for wrong in ("members[0, 5]", "members[2, 2]", "members[0]"):
        with pytest.raises(ParseError, match="has no such members"):
            parse_lowered(text.replace("members[0, 2]", wrong))


def test_a_group_of_all_ranks_leaves_nothing_out() -> None:
    text = TEXT.replace("experts = ranks[A :]", "experts = ranks[A :], all = ranks[0 : ranks]")
    program = parsed(text.replace("w    : in        [N, K] on experts", "w    : in        [N, K] on all"))
    bound = tilelink.plan(program, dims=DIMS, ranks=4).bound
    assert bound.tensors["w"].members is None


def test_members_are_in_the_artifact() -> None:
    made = tilelink.compile(exchange, dims=DIMS, ranks=4).artifact
    again = artifact.from_json(made.to_json().encode(), "here")
    assert again.tensors == made.tensors and {t.members for t in again.tensors} == {(0, 2), (2, 4)}
    with pytest.raises(DataError, match="is on ranks 2 to 4"):
        artifact.from_json(made.to_json().replace("[2, 4]", "[2, 5]").encode(), "here")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("t : table [C] < ranks on experts", "a table of experts alone"),
        ("n : in [] <= C on experts\n    z : in [C[: n], K] on attention", "z depends on n, which experts alone has"),
        (
            "o : in [C] < ranks on experts\n    m : in [ranks] <= C\n    z : in [C] < m[o]",
            "z depends on o, which experts alone has",
        ),
    ],
)
def test_declarations_that_need_what_is_not_there_are_refused(declared: str, message: str) -> None:
    text = TEXT.replace("    w    : in", f"    {declared}\n    w    : in")
    with pytest.raises(ShapeError, match=message):
        parsed(text)


def test_an_operator_takes_the_same_tensors_on_all_ranks() -> None:
    with pytest.raises(BindingError, match="only the ranks of attention have x"):
        tilelink.op(exchange)


def test_the_commands_compare_the_outputs_of_members(tmp_path: Any) -> None:
    from typer.testing import CliRunner

    from tilelink.cli import app

    file = tmp_path / "exchange.tl"
    file.write_text(TEXT)
    done = CliRunner().invoke(app, ["run", str(file), "-n", "3", "--set", "A=1", "--set", "C=16"])
    assert done.exit_code == 0 and "y: max |out-ref|/|ref|" in done.output
