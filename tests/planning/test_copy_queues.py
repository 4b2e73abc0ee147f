"""What a graph may make of the waits of copy engines: branches beside the copies, where no flag comes of a wait."""

from __future__ import annotations

import pytest

from tilelink import compiler
from tilelink.planning.copy_queues import waits_are_free

RELAYED = """    compute work(i: M):
        if rank != 0:
            consumer_tile_wait(u[i, :])
        c[i, :] = x[i, :]
        producer_tile_notify(c[i, :])

    comm send(i: M):
        consumer_tile_wait(c[i, :])
        if rank != ranks - 1:
            tile_push_data(u[i, :] @ (rank + 1), c[i, :])
            producer_tile_notify(u[i, :] @ (rank + 1))
"""


@pytest.mark.parametrize("relayed", [False, True])
def test_waits_for_what_kernels_make_of_a_copy_engines_flags_are_not_free(relayed: bool) -> None:
    """From the second tile on, a wait for a kernel may stand before the flag without which a peer makes nothing."""
    text = f"""program relayed(M, N):
    x : in        [M, N]
    c : local     [M, N]
    u : symmetric [M, N]
    y : out       [M, N]

{RELAYED if relayed else RELAYED.replace("rank != 0:", "rank > ranks:")}
    compute take(i: M):
        if rank != 0:
            consumer_tile_wait(u[i, :])
        y[i, :] = x[i, :]

schedule engine for relayed:
    work on sm, tile(i=64)
    send on copy_engine, tile(i=64)
    take on sm, tile(i=64)
"""
    module = compiler.parse(text, "relayed.tl")
    sizes, schedule = {"M": 128, "N": 256}, module.schedules[0]
    plan = compiler.plan(module.program(), schedule, ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    assert waits_are_free(plan) is not relayed
