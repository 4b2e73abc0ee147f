"""Machines and plans that the tests of the simulator share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.frontend.parser import parse_text
from tilelink.lowering.bind import bind
from tilelink.planning.plan import Plan, make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.simulator.cost import Move, MoveTime, TileTime
from tilelink.simulator.machine import Machine, load_machine
from tilelink.simulator.work import TileWork
from tilelink.target import H200

H200S = load_machine("8xH200")
IDEAL = replace(
    H200S, kernel_start=0.0, kernel_gap=0.0, load_latency=0.0, tile_overhead=0.0, link_latency=0.0, signal_latency=0.0,
    local_signal_latency=0.0, fence=0.0, wait=0.0, bare_wait=0.0, tile_counter=0.0, copies_slow_compute=1.0,
    copy_start=0.0, copy_call=0.0, copy_signal=0.0, copy_wait=0.0, network_latency=0.0, link_bandwidth=1e9,
    network_bandwidth=1e8, memory_bandwidth=1e12,
)  # fmt: skip
"""A machine on which only work takes time: links of 1 GB/s, a network of a tenth of that."""


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Each computation takes as long as the test says, and transfers only what the links make of them."""

    seconds: float = 1.0
    rate: float = float("inf")

    def tile(self, work: TileWork, machine: Machine) -> TileTime:
        return TileTime(main=self.seconds)

    def move(self, move: Move, machine: Machine) -> MoveTime:
        return MoveTime(rate=self.rate)


def planned(
    text: str,
    ranks: int = 2,
    program: str | None = None,
    schedule: str | None = None,
    sms: int = 132,
    dtype: str = "f32",
    **dims: int,
) -> Plan:
    """The plan of a program and a schedule of a text: the first ones, or those of the given names."""
    module = parse_text(text, "test.tl")
    chosen = next(p for p in module.programs if program in (None, p.name))
    schedules = [s for s in module.schedules if s.program == chosen.name and schedule in (None, s.name)]
    target = replace(H200, sms=sms)
    return with_queue_order(make_plan(bind(chosen, schedules[0] if schedules else None, dims, ranks, target, dtype)))


SCALE = """\
program scale(M, N):
    x : in  [M, N]
    y : out [M, N]

    compute scale(i: M, j: N):
        y[i, j] = x[i, j] * 2.0

schedule tiles for scale:
    scale on sm, tile(i=16, j=16)
"""

SHIFT = """\
program shift(M, N):
    x : in            [M, N]
    h : symmetric     [M, N]
    y : out           [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute add(i: M, j: N):
        consumer_tile_wait(h[i, :])
        y[i, j] = x[i, j] + h[i, j]

schedule engine for shift:
    send on copy_engine, tile(i=64)
    add on sm, tile(i=64, j=64)

schedule copy_sms for shift:
    send on sm(4), tile(i=16)
    add on sm, tile(i=64, j=64)
"""

COLLECT = """\
program collect(M, N):
    x : in        [M, N]
    h : symmetric [ranks, M, N]
    y : out       [ranks, M, N]

    comm send(i: M):
        tile_push_data(h[rank, i, :] @ 0, x[i, :])
        producer_tile_notify(h[rank, i, :] @ 0)

    compute take(s: ranks, i: M):
        if rank == 0:
            consumer_tile_wait(h[s, i, :])
            y[s, i, :] = h[s, i, :]
        else:
            y[s, i, :] = x[i, :]

schedule engine for collect:
    send on copy_engine, tile(i=256)
    take on sm, tile(i=256)
"""
