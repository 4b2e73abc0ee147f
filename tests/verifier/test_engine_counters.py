"""Counters of copy engines: where they cannot add, nobody else uses one, and what nobody else uses is accepted."""

from __future__ import annotations

import pytest

from tilelink import compiler
from tilelink.errors import AccountingError
from tilelink.planning.plan import make_plan
from tilelink.target import target
from tilelink.verifier import refusals

GATHER = """program p(M, N):
    x : in [M, N]
    h : symmetric [ranks, M, N]
    y : out [M, N]
    comm send(p: ranks, i: M):
        tile_push_data(h[rank, i, :] @ p, x[i, :])
        producer_tile_notify(h[rank, i, :] @ p)
    compute add(i: M, j: N):
        consumer_tile_wait(h[:, i, j])
        y[i, j] = sum(h[:, i, j], axis=0)
schedule s for p:
    send on copy_engine, tile(i=8)
    h channel(ranks=4, i=64)
"""
TWO = """program p(M, N):
    x : in [M, N]
    h : symmetric [2 * M, N]
    y : out [M, N]
    comm send(i: M):
        tile_push_data(h[0 + i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[0 + i, :] @ (rank + 1))
    comm tell(i: M):
        tile_push_data(h[M + i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[M + i, :] @ (rank + 1))
    compute add(i: M, j: N):
        consumer_tile_wait(h[0 + i, j])
        consumer_tile_wait(h[M + i, j])
        y[i, j] = h[0 + i, j] + h[M + i, j]
schedule s for p:
    send on sm(1), tile(i=8)
    tell on copy_engine, tile(i=8)
    h channel(i=64)
"""
QUEUES = TWO.replace("send on sm(1)", "send on copy_engine")
RELAY = """program p(M, N):
    x : in [M, N]
    h : symmetric [M, N]
    g : symmetric [M, N]
    y : out [M, N]
    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))
    comm relay(i: M):
        consumer_tile_wait(h[i, :])
        tile_push_data(g[i, :] @ (rank + 1), h[i, :])
        producer_tile_notify(g[i, :] @ (rank + 1))
    compute add(i: M, j: N):
        consumer_tile_wait(h[i, j])
        consumer_tile_wait(g[i, j])
        y[i, j] = g[i, j] + h[i, j]
schedule s for p:
    send on sm(1), tile(i=8)
    relay on copy_engine, tile(i=8)
    h channel(i=64)
"""
PARTS = """program p(M, N):
    x : in [2 * M, N]
    h : symmetric [2 * M, N]
    y : out [2 * M, N]
    comm send(i: 2 * M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))
    comm keep(i: M):
        consumer_tile_wait(h[0 + i, :])
        y[0 + i, :] = h[0 + i, :]
    compute rest(i: M, j: N):
        consumer_tile_wait(h[M + i, j])
        y[M + i, j] = h[M + i, j]
schedule s for p:
    send on sm(1), tile(i=8)
    keep on copy_engine, tile(i=8)
    h channel(i=8)
"""


def found(text: str, name: str) -> list[str]:
    module = compiler.parse(text)
    plan = compiler.bound(module.program(), module.schedules[0], ranks=3, dims={"M": 16, "N": 8}, target=target(name))
    return [str(one) for one in refusals(make_plan(plan))]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (GATHER, "rank 0, send tile (p=0, i=0): the copy engine cannot add to h channel [0, 0, 0] (tile signals) of "
                 "rank 0, which rank 1, send, notifies too"),
        (TWO, "tell tile (i=0): the copy engine cannot add to h channel [0, 0] (tile signals) of rank 0, which rank 2, "
              "send, notifies too"),
        (QUEUES, "send tile (i=0): the copy engine cannot add to h channel [0, 0] (tile signals) of rank 0, which rank "
                 "2, tell, notifies too"),
        (RELAY, "relay tile (i=0): the copy engine resets h channel [0, 0] (tile signals) of rank 0, for which add "
                "waits too"),
    ],
    ids=["ranks", "a program", "kernels", "waits"],
)  # fmt: skip
def test_a_counter_of_a_copy_engine_is_refused_to_others(text: str, what: str) -> None:
    refused = found(text, "sm_90")
    assert what in refused[0] and "a channel of its own" in refused[0]
    assert found(text, "cpu") == []


@pytest.mark.parametrize(
    "text",
    [
        GATHER.replace("channel(ranks=4, i=64)", "channel(ranks=1, i=64)"),
        TWO.replace("h channel(i=64)", "h channel(i=16)"),
        QUEUES.replace("h channel(i=64)", "h channel(i=16)"),
        RELAY.replace("relay on copy_engine", "relay on sm(1)"),
        PARTS,
    ],
    ids=["ranks", "a program", "kernels", "waits", "other channels of a tensor"],
)
def test_counters_that_nobody_else_uses_are_accepted(text: str) -> None:
    assert found(text, "sm_90") == []


def test_the_refusal_is_a_mistake_of_accounting() -> None:
    module = compiler.parse(RELAY)
    with pytest.raises(AccountingError, match="resets h"):
        compiler.plan(module.program(), module.schedules[0], ranks=2, dims={"M": 16, "N": 8}, target=target("sm_90"))
