"""A wait for a place counts where it is made for what is read, in every launch: its iteration is there, and its end."""

from __future__ import annotations

from textwrap import indent

import pytest

import tilelink
from tilelink.errors import OrderingError

TEXT = """
program p(M = 8, T = 6, N = 4):
    n : in        [] <= T
    m : in        [] <= T
    a : in        [] < M - 1
    r : in        [T] < M
    x : in        [M, N]
    h : symmetric [M, N]
    y : out       [N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute f(j: N):
        acc = zeros(f32)
{body}
        y[j] = acc
"""
ROW, ROWS = "acc += h[r[k], j]", "acc += sum(h[r[k], j], axis=0)"
UNLIKE = [
    (waited, "r[q]", read) for waited in ("T[: n]", "T[n :]", "T[: min(n, m)]") for read in ("T", "T[: m]", "T[m :]")
]
PART = "acc += sum(h[a : a + 2, j], axis=0)"


def plan(body: str) -> None:
    program = tilelink.parse(TEXT.format(body=indent(body, " " * 8))).program()
    schedule = tilelink.schedule(program).tile("send", i=2)
    tiles = {name: 4 for name in "qk" if f"({name}:" in body and "by 1" not in body}
    tilelink.plan(program, schedule.tile("f", **tiles) if tiles else schedule, ranks=2, dims={"M": 8, "T": 6, "N": 4})


def waiting(waited: str, place: str = "r[q]", read: str = "", by: str = "") -> str:
    """Return a loop over a range that waits for a place, and what reads: a loop over a range, or a statement."""
    after = read if "+=" in read else f"for (k: {read}{by}):\n    {ROW if by else ROWS}"
    return f"for (q: {waited}{by}):\n    consumer_tile_wait(h[{place}, :])\n{after}\n"


@pytest.mark.parametrize(
    "body",
    [
        waiting("T[: n]", "r[q]", "acc += h[r[0], j]", " by 1"),
        waiting("T[n :]", "r[q]", "acc += h[r[T - 1], j]", " by 1"),
        waiting("T[: n]", "a : a + 2", PART, " by 1"),
        *(waiting(*pair, by=by) for pair in UNLIKE for by in ("", " by 1")),
        waiting("T - 1", "r[0 + q]", "T"),
    ],
)  # fmt: skip
def test_a_wait_that_some_launch_leaves_out_orders_no_read(body: str) -> None:
    with pytest.raises(OrderingError, match="nothing orders the two"):
        plan(body)


@pytest.mark.parametrize(
    "body",
    [
        waiting("T", read="T[: n]"),
        waiting("T", read="T[: n]", by=" by 1"),
        *(waiting(part, read=part, by=by) for part in ("T[: n]", "T[n :]", "T[n : m]") for by in ("", " by 1")),
        *(waiting("T[: n]", read="T[: min(n, m)]", by=by) for by in ("", " by 1")),
        f"for (q: T[: n] by 1):\n    consumer_tile_wait(h[a : a + 2, :])\n    {PART}",
        "for (q: T[: n]):\n    consumer_tile_wait(h[r[q], :])\n    acc += sum(h[r[q], j], axis=0)",
    ],
)  # fmt: skip
def test_a_wait_in_the_same_iterations_orders_a_read(body: str) -> None:
    plan(body)
