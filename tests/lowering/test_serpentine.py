"""`serpentine`: which tiles follow one another, with and without groups, and where a stage has no such order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import tilelink
from tilelink import compiler
from tilelink.errors import ScheduleError
from tilelink.ir.scalar import Env, evaluate
from tilelink.lowering.orders import TILE
from tilelink.verifier import verify

TEXT = """program product(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]

    compute gemm(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

schedule s for product:
    gemm on sm, tile(i=16, j=16){order}, serpentine{more}
"""
Tiles = list[tuple[int, int]]


def tiles(order: str = "", more: str = "", rows: int = 3, columns: int = 3) -> Tiles:
    """(i, j) of the tiles of a verified program, in their order."""
    program = compiler.parse(TEXT.format(order=order, more=more)).programs[0]
    plan = compiler.plan(program, "s", ranks=1, dims={"M": 16 * rows, "N": 16 * columns, "K": 16})
    verify(plan)
    stage = plan.bound.stages["gemm"]
    env = Env(rank=0, ranks=1, params={}, indices={TILE.name: np.arange(stage.total)})
    found = [np.broadcast_to(np.asarray(evaluate(stage.order[name], env)), (stage.total,)) for name in ("i", "j")]
    return list(zip(*(column.tolist() for column in found), strict=True))


def test_each_second_row_runs_backwards() -> None:
    assert tiles() == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert tiles(", order(j, i)")[:6] == [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)]


def test_each_second_group_runs_backwards() -> None:
    found = tiles(", order(group(i, 2))", rows=4)
    assert found[:6] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert found[6:] == [(2, 2), (3, 2), (2, 1), (3, 1), (2, 0), (3, 0)]


@pytest.mark.parametrize("order", ["", ", order(j, i)", ", order(group(i, 2))", ", order(j, group(j, 3))"])
@pytest.mark.parametrize(("rows", "columns"), [(5, 4), (4, 7), (1, 3), (3, 1)])
def test_all_tiles_are_there_and_neighbours_have_an_index_in_common(order: str, rows: int, columns: int) -> None:
    found = tiles(order, rows=rows, columns=columns)
    assert sorted(found) == [(i, j) for i in range(rows) for j in range(columns)]
    if "group" not in order:
        assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(found))


def test_the_tail_is_that_of_the_order() -> None:
    """The last tiles of this order are halved."""
    program = compiler.parse(TEXT.format(order="", more=", halve_tail").replace("j=16", "j=64")).programs[0]
    kernel = tilelink.compile(program, "s", ranks=1, dims={"M": 48, "N": 130, "K": 16})
    x, w = torch.randn(48, 16), torch.randn(130, 16)
    torch.testing.assert_close(kernel([{"x": x, "w": w}])[0]["y"], x @ w.T, rtol=1e-4, atol=1e-4)


ONE = """program one(M):
    x : in  [M]
    y : out [M]

    compute f(i: M):
        y[i] = x[i]

schedule s for one:
    f on sm, tile(i=16), serpentine
"""
SHARED = """program two(M, N):
    x : in    [M, N]
    h : local [M, N]
    y : out   [M, N]

    compute f(i: M, j: N):
        h[i, j] = x[i, j]
        producer_tile_notify(h[i, j])

    compute g(i: M, j: N):
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j]

schedule s for two:
    f on sm, tile(i=16, j=16), serpentine
    g in f epilogue
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ONE, "f cannot run in a serpentine: its tiles have one index"),
        (SHARED, "f cannot run in a serpentine: another stage shares its tiles"),
        (
            TEXT.format(order=", order(i, j = 1 step +1)", more=""),
            "gemm cannot run in a serpentine: its order says where j begins, or in which steps it goes on",
        ),
    ],
)
def test_where_there_is_no_such_order_it_is_refused(text: str, reason: str) -> None:
    program = compiler.parse(text).programs[0]
    dims = {param.name: 64 for param in program.params}
    with pytest.raises(ScheduleError, match=reason) as caught:
        compiler.plan(program, "s", ranks=1, dims=dims)
    assert caught.value.location is not None and caught.value.hint == "take `serpentine` away"


def test_tiles_that_a_launch_decides_have_none() -> None:
    text = TEXT.replace("    x : in  [M, K]", "    m : in [] <= M\n    x : in  [M[: m], K]")
    text = text.replace("y : out [M, N]", "y : out [M[: m], N]").replace("gemm(i: M,", "gemm(i: M[: m],")
    program = compiler.parse(text.format(order="", more="")).programs[0]
    with pytest.raises(ScheduleError, match="serpentine"):
        compiler.plan(program, "s", ranks=1, dims={"M": 64, "N": 64, "K": 16})
