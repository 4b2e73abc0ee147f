"""Prediction of a program's launch in one call: plan, verify, simulate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilelink import compiler
from tilelink.ir.program import Program
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator import CostModel, Simulated
from tilelink.simulator import simulate as simulate_plan
from tilelink.simulator.machine import Machine, load_machine


def simulate(
    program: Program,
    schedule: Schedule | None = None,
    *,
    ranks: int,
    dims: compiler.Dims,
    machine: str | Path | Machine = "8xH200",
    dtype: str = "bf16",
    tables: Mapping[str, Any] | None = None,
    cost: CostModel | None = None,
    offsets: Sequence[float] | None = None,
    nodes: int = 1,
) -> Simulated:
    """Return the predicted times of one launch, in seconds, on a machine that need not be present.

    The plan is made for that machine and verified first.

    machine: name of a built-in description, a JSON file, or a description.
    tables: name -> int array [ranks, *shape] of the dynamic mappings.
    cost: cost model (None: the roofline model).
    nodes: how many nodes the ranks fill; more than one takes the place of the machine's ranks of a node.
    offsets: seconds after the first rank's launch at which each rank launches (None: all at once).

    Raise what `tilelink.plan` raises, and MachineError for an unknown machine or offsets that do not fit.
    """
    described = machine if isinstance(machine, Machine) else load_machine(machine)
    where: dict[str, Any] = {"ranks": ranks, "nodes": nodes, "target": described.processor}
    plan = compiler.plan(program, schedule, **where, dims=dims, dtype=dtype, tables=tables)
    if nodes > 1:
        described = replace(described, node_ranks=ranks // nodes)
    return simulate_plan(plan, described, cost=cost, tables=tables, offsets=offsets)
