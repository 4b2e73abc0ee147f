"""Launches of one small plan, simulated with deviations, and the same many times with noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from tilelink import compiler
from tilelink.planning.plan import Plan
from tilelink.simulator.machine import Deviation, load_machine
from tilelink.stragglers import Row, Series, Traces, table_of
from tilelink.stragglers.report import Verdict, verdict
from tilelink.stragglers.suspects import Found

MACHINE = load_machine("8xH200")
LAUNCHES = 600
POOL = 12


@cache
def plan(ranks: int) -> Plan:
    module = compiler.load("ag_gemm")
    program = module.program("ag_gemm")
    dims = {"Ms": 256, "N": 512, "K": 512}
    schedule = module.schedule("h200", program)
    return compiler.plan(program, schedule, ranks=ranks, dims=dims, dtype="bf16", target=MACHINE.processor)


def deviation(field: str, factor: float, rank: int, **where: object) -> Deviation:
    return Deviation(field=field, factor=factor, rank=rank, **where)  # pyright: ignore[reportArgumentType]


@cache
def pool(ranks: int, changes: tuple[Deviation, ...] = (), late: tuple[tuple[int, float], ...] = ()) -> tuple[Row, ...]:
    """Different launches on ranks that differ by some percent each time. late: (rank, seconds) of hosts."""
    rng = np.random.default_rng(7)
    series = Series(plan(ranks), MACHINE)
    rows: list[Row] = []
    for _ in range(POOL):
        jitter = tuple(deviation("clock", float(np.exp(0.01 * rng.standard_normal())), rank) for rank in range(ranks))
        hosts = rng.exponential(5e-7, ranks)
        for rank, seconds in late:
            hosts[rank] += seconds
        rows.append(series.launch(replace(MACHINE, deviations=(*jitter, *changes)), late=hosts.tolist()))
    return tuple(rows)


def traces(
    ranks: int, parts: Sequence[tuple[Sequence[Row], int]], *, noise: float = 0.05, spikes: float = 0.01
) -> Traces:
    """So many launches of each pool, one after the other. noise: of each number; spikes: part of them that is wild."""
    rng = np.random.default_rng(3)
    rows = [rows[int(rng.integers(len(rows)))] for rows, count in parts for _ in range(count)]
    table = table_of(rows)
    factor = np.exp(noise * rng.standard_normal(table.values.shape))
    factor *= np.where(rng.random(table.values.shape) < spikes, rng.uniform(2, 20, table.values.shape), 1.0)
    table = replace(table, values=(table.values * factor).astype(np.float32))
    return Traces(
        program="ag_gemm", ranks=ranks, stages=tuple(plan(ranks).bound.stages), recipe={}, tables={}, machine=None,
        table=table, norm=table_of([Series(plan(ranks), MACHINE).launch()]),
    )  # fmt: skip


def judged(
    changes: Sequence[Deviation] = (), late: Sequence[tuple[int, float]] = (), *, ranks: int = 4, since: int = 240
) -> Verdict:
    """The verdict on launches that are well at first, and not from `since` on."""
    bad = pool(ranks, tuple(changes), tuple(late))
    return verdict(traces(ranks, [(pool(ranks), since), (bad, LAUNCHES - since)]))


def place(found: Found) -> tuple[object, ...]:
    one = found.suspect
    return one.kind, one.rank, one.peer, one.sms, one.direction
