"""Kinds of random routing, and the comparison of outputs that are defined in part."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.cli.test_choices import tilelink as command
from tests.reference import texts
from tests.reference.launch_texts import EXPERTS, ROWS
from tilelink.errors import BindingError
from tilelink.reference import random_inputs, run, trial
from tilelink.reference.routing import Routing

TEXT = """
program p(C, T, E, M):
    m      : in  [] <= C
    count  : in  [E] <= C
    starts : in  [E + 1] <= T offsets
    rows   : in  [T] < M
    place  : in  [T] < M distinct
    order  : in  [E] < M distinct rising
    cuts   : in  [E + 1] <= M distinct offsets
    climb  : in  [T] < M rising
    y      : out [T]

    compute f(i: T):
        y[i] = 1.0
"""
DIMS = {"C": 20, "T": 24, "E": 6, "M": 48}


def drawn(routing: str, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    return random_inputs(texts.program(TEXT), DIMS, 4, "f32", seed=seed, routing=routing)


def sizes(own: dict[str, torch.Tensor]) -> torch.Tensor:
    return own["starts"].diff()


def test_all_to_one_segment_and_one_place() -> None:
    ranks = drawn("one")
    assert [int(own["m"]) for own in ranks] == [20, 0, 0, 0]
    assert len({int(own["rows"].unique()) for own in ranks}) == 1
    for own in ranks:
        assert sorted(own["count"].tolist()) == [0] * 5 + [20]
        assert sorted(sizes(own).tolist()) == [0] * 5 + [24]


def test_empty_segments_and_empty_ranks() -> None:
    ranks = drawn("empty")
    for own in (ranks[1], ranks[3]):
        assert not own["count"].any() and not own["starts"].any() and not own["m"].any()
    for own in (ranks[0], ranks[2]):
        assert (sizes(own) == 0).sum() >= 3 and own["starts"][-1] > 0
        assert (own["count"] == 0).sum() >= 3 and own["count"].any()
    assert all((own["rows"] % 2 == 0).all() for own in ranks)


def test_capacities_that_are_reached() -> None:
    for own in drawn("full"):
        assert int(own["m"]) == 20 and (own["count"] == 20).all() and own["starts"][-1] == 24
        assert own["rows"].unique().numel() == 24
    assert not any(own[name].any() for own in drawn("zeros") for name in ("m", "count", "starts", "rows", "climb"))


def test_some_are_more_frequent_than_others() -> None:
    own = drawn("zipf:3")[0]
    assert int(own["count"].max()) == 20 and int(own["count"].median()) < 4
    assert int(sizes(own).max()) > 12 and (own["rows"] == 0).sum() > 12
    assert drawn("zipf")[0]["rows"].unique().numel() > own["rows"].unique().numel()


@pytest.mark.parametrize("routing", ["uniform", "zipf:1.2", "one", "empty", "full", "zeros"])
def test_promises_are_kept(routing: str) -> None:
    """The reference checks them all."""
    for seed in range(5):
        given = drawn(routing, seed)
        run(texts.program(TEXT), given, DIMS)
        for own in given:
            assert own["place"].unique().numel() == 24 and (own["order"].diff() > 0).all()
            assert own["cuts"][0] == 0 and (own["cuts"].diff() > 0).all()


def test_two_draws_differ_and_one_seed_is_one_draw() -> None:
    options: dict[str, Any] = {"ranks": 2, "dims": DIMS, "dtype": "f32", "launches": 2}
    first, second = trial.random_inputs(texts.program(TEXT), **options, seed=3)
    assert not torch.equal(first[0]["rows"], second[0]["rows"]) and not torch.equal(first[0]["rows"], first[1]["rows"])
    again = trial.random_inputs(texts.program(TEXT), **options, seed=3)
    assert all(torch.equal(again[1][1][name], value) for name, value in second[1].items())


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(BindingError, match="place has 24 entries, and there are 9 distinct ones"):
        random_inputs(texts.program(TEXT), {**DIMS, "M": 9}, 1, "f32")
    with pytest.raises(BindingError, match=r"no entry of slot is below count\[owner\] on rank 0") as caught:
        random_inputs(texts.program(EXPERTS), {"M": 2, "H": 1, "C": 3, "k": 2}, 2, "f32", routing="zeros")
    assert caught.value.location is not None and "zeros" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["none", "zipf:", "zipf:x", "zipf:-1", "zipf:inf", "one:2", ""])
def test_a_routing_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(BindingError, match="no routing") as caught:
        Routing.parse(text)
    assert "zipf:1.2" in str(caught.value.hint)


def test_the_command_refuses_it_before_it_compiles() -> None:
    done = command("run", "ag_gemm", "--routing", "nowhere")
    assert done.exit_code and "no routing 'nowhere'" in done.stderr


def test_undefined_elements_are_not_compared() -> None:
    dims = {"Ms": 6, "N": 2, "K": 3}
    given = random_inputs(texts.program(ROWS), dims, 2, "f32", seed=1)
    expected = run(texts.program(ROWS), given, dims)
    assert not all(own.defined["y"].all() for own in expected)
    outputs = [{"y": torch.where(own.defined["y"], own["y"], 1e9)} for own in expected]
    sides = trial.compared(outputs, expected, "y")
    assert trial.relative_error(*sides) == 0.0 and trial.no_number(*sides) is None
    rank, at = next((r, tuple(own.defined["y"].nonzero()[0].tolist())) for r, own in enumerate(expected))
    outputs[rank]["y"][at] += 100.0
    assert trial.relative_error(*trial.compared(outputs, expected, "y")) > 1.0
    outputs[rank]["y"][at] = torch.nan
    assert "of rank 0 is nan" in str(trial.no_number(*trial.compared(outputs, expected, "y")))


@pytest.mark.parametrize("routing", ["one", "empty"])
def test_counts_that_entries_need_are_not_0(routing: str) -> None:
    """Of each of three micro-batches rows go somewhere, on each rank, though few counts of all are positive."""
    text = "program p(T):\n    n : in [3, 4] <= 5\n    owner : in [3, T] < 4\n    a : in [u: 3, T] < n[u, owner]\n"
    text += "    y : out [T]\n    compute f(i: T):\n        y[i] = 1.0\n"
    given = random_inputs(texts.program(text), {"T": 2}, 2, "f32", routing=routing)
    run(texts.program(text), given, {"T": 2})
    for own in given:
        assert all(own["n"][u, own["owner"][u, i]] > 0 for u in range(3) for i in range(2))


def test_a_tensor_that_chooses_two_bounds_suits_both() -> None:
    text = "program p(T):\n    n : in [8] <= 3\n    owner : in [T] < 8\n    a : in [T] < n[owner]\n"
    text += "    b : in [T] < n[(owner + 1) % 8]\n    y : out [T]\n    compute f(i: T):\n        y[i] = 1.0\n"
    program, zeros = texts.program(text), 0
    for seed in range(8):
        (own,) = given = random_inputs(program, {"T": 9}, 1, "f32", seed=seed)
        run(program, given, {"T": 9})
        zeros += int((own["n"] == 0).sum())
    assert zeros > 8
