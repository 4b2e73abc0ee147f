# pyright: basic
"""`@ rank` is the own tensor, which need not be symmetric; so is what comes to that with the numbers that are bound."""

from __future__ import annotations

import pytest
import torch

from tests.tiers import thorough
from tilelink import compiler
from tilelink.errors import RemoteAccessError, ScheduleError

HEAD = """
program own(M):
    x : in [M]
    h : symmetric [M]
    y : out [M]
"""
BODIES = {
    "an input": "compute f(i: M):\n        y[i] = x[i] @ rank",
    "a push": "comm f(i: M):\n        tile_push_data(y[i] @ rank, x[i] @ rank)",
    "a pull": "comm f(i: M):\n        tile_pull_data(y[i], x[i] @ rank)",
    "a copy": "comm f(i: M):\n        rank_copy_data(y[i] @ rank, x[i] @ rank)",
    "signals": (
        "comm f(i: M):\n        tile_push_data(h[i] @ rank, x[i])\n        producer_tile_notify(h[i] @ rank)\n"
        "    compute g(i: M):\n        consumer_tile_wait(h[i] @ rank)\n        y[i] = h[i] @ rank"
    ),
}


@thorough(unless=lambda ranks: ranks == 2)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("body", BODIES)
def test_it_is_read_and_written(body: str, ranks: int) -> None:
    program = compiler.parse(f"{HEAD}    {BODIES[body]}\n").programs[0]
    kernel = compiler.compile(program, None, ranks=ranks, dims={"M": 24})
    inputs = [{"x": torch.arange(24.0) + 100 * rank} for rank in range(ranks)]
    for found, given, expected in zip(kernel(inputs), inputs, kernel.reference(inputs), strict=True):
        assert torch.equal(found["y"], given["x"]) and torch.equal(expected["y"].float(), given["x"])


@pytest.mark.parametrize("rank", ["rank + 0", "rank * ranks", "rank + ranks"])
def test_nothing_else_is(rank: str) -> None:
    program = compiler.parse(f"{HEAD}    compute f(i: M):\n        y[i] = x[i] @ ({rank})\n").programs[0]
    with pytest.raises(RemoteAccessError, match="peers cannot reach x, which is in and not symmetric"):
        compiler.bound(program, ranks=1, dims={"M": 24})


@pytest.mark.parametrize("rank", ["rank + 0", "rank * ranks", "rank + ranks", "0"])
def test_another_name_of_the_own_rank_reaches_a_symmetric_tensor(rank: str) -> None:
    text = HEAD.replace("x : in [M]", "x : in symmetric [M]")
    program = compiler.parse(f"{text}    compute f(i: M):\n        y[i] = x[i] @ ({rank})\n").programs[0]
    (found,) = compiler.compile(program, None, ranks=1, dims={"M": 24})([{"x": torch.arange(24.0)}])
    assert torch.equal(found["y"], torch.arange(24.0))


def test_a_schedule_pushes_to_no_tensor_that_is_not_symmetric() -> None:
    text = """
program pulled(M):
    x : in symmetric [M]
    h : local [ranks, M]
    y : out [ranks, M]
    comm f(p: ranks, i: M):
        tile_pull_data(h[p, i], x[i] @ p)
        producer_tile_notify(h[p, i])
    compute g(p: ranks, i: M):
        consumer_tile_wait(h[p, i])
        y[p, i] = h[p, i]
schedule s for pulled:
    f push
"""
    module = compiler.parse(text)
    with pytest.raises(ScheduleError, match="stage f cannot push h"):
        compiler.bound(module.programs[0], module.schedules[0], ranks=2, dims={"M": 24})
