"""A layer of experts whose tokens travel only where they are needed, beside torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tests.unit.test_moe import E, H, I, K, Layer, M, drawn, wanted

BLOCK = 4


def layer(given: Layer, schedule: str | None = None) -> list[dict[str, Any]]:
    """Return what both launches give."""
    ranks, module = len(given), tilelink.load("moe_rows")
    sizes = {"H": H, "E": E, "k": K, "T": ranks * M * K + 1}

    def compiled(name: str, **dims: int) -> Any:
        program = module.program(name)
        chosen = module.schedule(schedule, program) if schedule else None
        return tilelink.compile(program, chosen, ranks=ranks, dims={**sizes, **dims})

    each = [
        {"x": own["x"], "ids": own["ids"].view(-1, BLOCK, K), "weight": own["weight"].view(-1, BLOCK, K)}
        for own in given
    ]
    told = compiled("moe_rows_dispatch", NB=M // BLOCK, B=BLOCK)(each)
    shown: list[dict[str, torch.Tensor]] = []
    for one, own in zip(told, given, strict=True):
        shown.append({
            "xs": one["xs"].view(ranks * M, H), "starts": one["starts"], "rows": one["rows"][: sizes["T"]],
            "place": one["place"].view(ranks, M, K), "scale": one["scale"].view(ranks, M, K), "sent": one["sent"],
            "origin": one["origin"].clamp(0, M - 1), "goes": one["goes"].view(ranks, M),
            "slot": one["slot"].view(ranks, M), "w13": own["w13"], "w2": own["w2"],
        })  # fmt: skip
    made = compiled("moe_rows_experts", M=M, I=I)(shown)
    return [{**one, **more} for one, more in zip(told, made, strict=True)]


@pytest.mark.parametrize(("ranks", "kind"), [(2, "drawn"), (3, "one"), (4, "padded"), (5, "drawn")])
def test_tokens_go_where_an_expert_is_for_them_and_come_back_as_sums(ranks: int, kind: str) -> None:
    given = drawn(ranks, kind, E)
    for one, own, want in zip(layer(given), given, wanted(given, E), strict=True):
        torch.testing.assert_close(one["y"], want)
        for p in range(ranks):
            here = ((own["ids"] >= p * E) & (own["ids"] < p * E + E)).any(1)
            assert int(one["sent"][p]) == max(1, int(here.sum()))
            assert one["goes"].view(ranks, M)[p].tolist() == here.int().tolist()
            assert one["slot"].view(ranks, M)[p].tolist() == (here.cumsum(0) - 1).clamp_min(0).tolist()


def test_the_schedule_for_gpus_gives_the_same() -> None:
    given = drawn(3, "padded", E)
    for one, want in zip(layer(given, "gpu"), wanted(given, E), strict=True):
        torch.testing.assert_close(one["y"], want)
