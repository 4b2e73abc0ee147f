# pyright: basic
"""Layers of experts on CPU ranks, beside plain torch, and where their choices go."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tests.tiers import thorough
from tests.unit.two_ranks import run_on_ranks
from tilelink import compiler
from tilelink.errors import BindingError, DtypeError

SCENARIOS = {
    "results": (2, ("results", "unequal", "frozen", "repeated")),
    "checks": (2, ("capacity", "mistakes")),
    "compiled": (2, ("traced",)),
    "three ranks": (3, ("results", "unequal", "capacity")),
    "one rank": (1, ("results", "capacity")),
}
"""Numbers of ranks, and what they do."""


@thorough(unless=lambda kind: kind != "one rank")
@pytest.mark.parametrize("kind", SCENARIOS)
def test_on_ranks(kind: str) -> None:
    ranks, scenarios = SCENARIOS[kind]
    run_on_ranks("tests.unit.experts_scenarios", scenarios, ranks)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", ["drawn", "one", "none"])
def test_choices_lie_by_expert(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    ids = {
        "drawn": torch.randint(-1, 8, (40, 2)), "one": torch.full((40, 2), 4), "none": torch.full((40, 2), -1),
    }[kind].to(dtype)  # fmt: skip
    counts, starts, order, place = tilelink.routing.by_expert(ids, 5, first=2)
    flat = ids.flatten()
    wanted = [i for e in range(2, 7) for i in range(flat.numel()) if flat[i] == e]
    wanted += [i for i in range(flat.numel()) if not 2 <= flat[i] < 7]
    assert order.tolist() == wanted
    assert place.shape == ids.shape
    assert all(place.flatten()[i] == spot for spot, i in enumerate(wanted))
    assert counts.tolist() == [int((flat == e).sum()) for e in range(2, 7)]
    assert starts.tolist() == [sum(counts.tolist()[:e]) for e in range(6)]
    assert {one.dtype for one in (counts, starts, order, place)} == {torch.int32}


def test_places_are_those_of_the_program() -> None:
    """The library's program for kernels gives the same places."""
    torch.manual_seed(4)
    ids = torch.randint(-1, 6, (5, 16), dtype=torch.int32)
    kernel = compiler.compile(tilelink.load("sort_by_expert").program(), ranks=1, dims={"NB": 5, "B": 16, "E": 6})
    (found,) = kernel([{"expert": ids}])
    routing = tilelink.routing.by_expert(ids, 6)
    assert torch.equal(found["count"], routing.counts)
    assert torch.equal(found["source"], routing.order)
    assert torch.equal(found["place"], routing.place)


def test_ids_are_integers_and_experts_are_there() -> None:
    with pytest.raises(DtypeError, match=r"ids of experts are torch\.float32"):
        tilelink.routing.by_expert(torch.zeros(3), 2)
    with pytest.raises(BindingError, match="sorted by 0 experts"):
        tilelink.routing.by_expert(torch.zeros(3, dtype=torch.int32), 0)


def test_many_experts_are_sorted_too() -> None:
    ids = torch.arange(700, dtype=torch.int32).flip(0)
    assert tilelink.routing.by_expert(ids, 600).order[:600].tolist() == list(range(699, 99, -1))
