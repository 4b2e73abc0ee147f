"""Rows of several ranks by their number among all: the rank and the place there are entries that a stage computes, and
the place is below the count which that rank told."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tilelink.errors import CoverageError

TEXT = """program told(M, K):
    let R = ranks * M
    x      : in        [M, K]
    count  : in        [ranks] <= M
    n      : symmetric [ranks] <= M
    got    : symmetric [ranks, M, K]
    total  : local     [] <= R
    ends   : local     [ranks] i32
    source : local     [R] < ranks
    place  : local     [R] < n[source]
    y      : out       [R, K]

    comm tell(p: ranks):
        tile_push_data(n[rank] @ p, count[p])

    comm send(p: ranks, c: M[: count[p]]):
        tile_push_data(got[rank, c, :] @ p, x[c, :])
        notify(got[rank, c, :] @ p)

    compute add():
        total = sum(n[:], axis=0)
        ends[:] = cumsum(n[:], axis=0)

    compute seek(r: R[: total]):
        past = i32(pos(r)[:, None] >= ends[:][None, :])
        source[r] = sum(past, axis=1)
        place[r] = pos(r) - max(past * ends[:][None, :], axis=1)

    compute take(r: R by 1):
        wait(got[:, :, :])
        if r < total:
            v = f32(got[source[r], place[r], :])
        else:
            v = zeros(f32)
        y[r, :] = v
"""
M, K = 5, 16


@pytest.mark.parametrize("ranks", [1, 3])
def test_rows_of_all_ranks_come_in_order(ranks: int) -> None:
    chance = torch.Generator().manual_seed(ranks)
    counts = torch.randint(0, M + 1, (ranks, ranks), generator=chance, dtype=torch.int32)
    inputs = [{"x": torch.randn(M, K, generator=chance), "count": counts[rank]} for rank in range(ranks)]
    outputs = tilelink.compile(tilelink.parse(TEXT).program(), ranks=ranks, dims={"M": M, "K": K})(inputs)
    for rank, made in enumerate(outputs):
        rows = torch.cat([one["x"][: int(one["count"][rank])] for one in inputs])
        assert torch.equal(made["y"], torch.cat([rows, torch.zeros(ranks * M - len(rows), K)]))


@pytest.mark.parametrize(("old", "new"), [
    ("place  : local     [R] < n[source]", "place  : local     [R] < M"),
    ("place  : local     [R] < n[source]", "place  : local     [R] < count[source]"),
    ("tile_push_data(n[rank] @ p, count[p])", "tile_push_data(n[rank] @ p, M)"),
    ("got[source[r], place[r], :]", "got[(rank + 1) % ranks, place[r], :]"),
])  # fmt: skip
def test_a_place_that_is_not_below_what_its_rank_told_is_refused(old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(CoverageError, match="got of rank"):
        tilelink.plan(tilelink.parse(TEXT.replace(old, new)).program(), ranks=3, dims={"M": M, "K": K})
