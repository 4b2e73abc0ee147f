"""Where the rows of a mixture of experts go, beside torch's stable sort."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tilelink import compiler

NB, B, E = 5, 16, 6


@pytest.mark.parametrize("kind", ["drawn", "one", "none"])
def test_places_are_those_of_a_stable_sort(kind: str) -> None:
    torch.manual_seed(3)
    drawn = {
        "drawn": torch.randint(-1, E, (NB, B)), "one": torch.full((NB, B), 4), "none": torch.full((NB, B), -1),
    }[kind].int()  # fmt: skip
    program = tilelink.load("sort_by_expert").program()
    kernel = compiler.compile(program, ranks=1, dims={"NB": NB, "B": B, "E": E})
    (found,) = kernel([{"expert": drawn}])
    bucket = torch.where(drawn < 0, E, drawn).flatten()
    order = bucket.argsort(stable=True)
    assert (found["source"].long() == order).all()
    assert (found["place"].flatten()[order].long() == torch.arange(NB * B)).all()
    assert (found["count"].long() == bucket.bincount(minlength=E + 1)[:E]).all()
