"""A layer of experts for many tokens, beside torch: the order of choices, and the sums of what experts return."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink

M, H, I, E, K, B = 12, 32, 16, 3, 4, 16  # noqa: E741
Layer = list[dict[str, torch.Tensor]]


def drawn(ranks: int, kind: str, first: int) -> Layer:
    """Return what each rank has: rows, their experts and weights, and the weights of its experts."""
    torch.manual_seed(ranks)
    every = ranks * E if first else E
    given: Layer = []
    for rank in range(ranks):
        ids = torch.rand(M, every).argsort(1)[:, :K] if every >= K else torch.randint(0, every, (M, K))
        if kind == "one":
            ids = torch.full((M, K), 1)
        if kind == "padded":  # other numbers of rows on each rank, none on the last one, and choices of no expert
            ids[torch.rand(M, K) < 0.3] = -1
            ids[M - 3 * rank :] = -1
            ids = torch.full((M, K), -1) if rank == ranks - 1 else ids
        given.append({
            "x": torch.randn(M, H), "ids": ids.int(), "weight": torch.rand(M, K),
            "w13": torch.randn(E, 2, I, H) * H**-0.5, "w2": torch.randn(E, H, I) * I**-0.5,
        })  # fmt: skip
    return given


def wanted(given: Layer, first: int) -> list[torch.Tensor]:
    """Return what a loop over ranks, rows and choices gives, each with all of the experts that it names."""
    results = [torch.zeros(M, H) for _ in given]
    for rank, own in enumerate(given):
        for i in range(M):
            for q in range(K):
                number = int(own["ids"][i, q])
                for holder, other in enumerate(given):
                    e = number - holder * first
                    if 0 <= e < E:
                        gate, up = other["w13"][e] @ own["x"][i]
                        y = other["w2"][e] @ (torch.nn.functional.silu(gate) * up)
                        results[rank][i] += own["weight"][i, q] * y
    return results


def layer(given: Layer, first: int, room: int | None = None, times: int = 1) -> list[list[dict[str, Any]]]:
    """Return what both launches give, as often as they are made."""
    ranks = len(given)
    room = room or ranks * M * K + 1
    blocks = M * K // B
    dispatch = tilelink.compile(
        tilelink.load("moe_dispatch").program("moe_dispatch"), "moe_dispatch:gpu", ranks=ranks,
        dims={"M": M, "H": H, "E": E, "k": K, "B": B, "T": room, "first": first},
    )  # fmt: skip
    experts = tilelink.compile(
        tilelink.load("moe_experts").program("moe_experts"), "moe_experts:gpu", ranks=ranks,
        dims={"M": M, "H": H, "I": I, "E": E, "k": K, "T": room},
    )  # fmt: skip
    each = [
        {"x": own["x"], "ids": own["ids"].view(blocks, B), "weight": own["weight"].view(blocks, B)} for own in given
    ]
    runs: list[list[dict[str, Any]]] = []
    for _ in range(times):
        told = dispatch(each)
        shown = [
            {
                "xs": one["xs"].view(ranks * M, H), "starts": one["starts"], "rows": one["rows"][:room],
                "place": one["place"].view(ranks, M, K), "scale": one["scale"].view(ranks, M, K),
                "w13": own["w13"], "w2": own["w2"],
            }
            for one, own in zip(told, given, strict=True)
        ]  # fmt: skip
        runs.append([{**one, **more} for one, more in zip(told, experts(shown), strict=True)])
    return runs


@pytest.mark.parametrize(("ranks", "kind"), [(2, "drawn"), (3, "one"), (3, "padded"), (5, "drawn")])
def test_experts_of_a_rank_each_get_the_rows_that_chose_them(ranks: int, kind: str) -> None:
    given = drawn(ranks, kind, E)
    (found,) = layer(given, E)
    for rank, (one, want) in enumerate(zip(found, wanted(given, E), strict=True)):
        torch.testing.assert_close(one["y"], want)
        local = torch.stack([own["ids"] for own in given]).flatten().long() - rank * E
        local = torch.where((local < 0) | (local >= E), E, local)
        order = local.argsort(stable=True)
        count = local.bincount(minlength=E + 1)[:E]
        n = int(count.sum())
        assert one["starts"].tolist() == [0, *count.cumsum(0).tolist(), n + 1] and one["found"].tolist() == [n]
        assert (one["rows"][: len(order)].long() == order // K).all()
        place = one["place"].flatten().long()[order]
        assert (place[:n] == torch.arange(n)).all() and (place[n:] == n).all()


def test_slices_of_experts_are_summed_over_the_ranks() -> None:
    given = drawn(4, "drawn", 0)
    (found,) = layer(given, 0)
    for one, want in zip(found, wanted(given, 0), strict=True):
        torch.testing.assert_close(one["y"], want)


def test_equal_launches_give_equal_bits() -> None:
    first, *others = layer(drawn(3, "drawn", E), E, times=3)
    for other in others:
        assert all(torch.equal(a["y"], b["y"]) for a, b in zip(first, other, strict=True))


def test_choices_beyond_the_room_are_left_out_and_counted() -> None:
    given = drawn(2, "drawn", E)
    (found,) = layer(given, E, room=20)
    for rank, one in enumerate(found):
        assert one["starts"].tolist()[-2:] == [19, 20] and int(one["found"][0]) > 20
        kept = [own["ids"].clone() for own in given]
        for p, ids in enumerate(kept):
            ids[(one["place"].view(2, M, K)[p] == 19) & (ids // E == rank)] = -1
        for own, ids in zip(given, kept, strict=True):
            own["ids"] = ids
    for one, want in zip(found, wanted(given, E), strict=True):
        torch.testing.assert_close(one["y"], want)
