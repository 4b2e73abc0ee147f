"""Predicting a program's launch in one call: plan, prove, simulate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
) -> Simulated:
    """What one launch takes on a machine that need not be there, in seconds; the plan is made for it and proved first.

    machine: a shipped description by its name, a JSON file, or a description. tables: name -> int array
    [ranks, *shape] of the dynamic mappings. cost: what work takes (None: the roofline model). offsets: seconds after
    the first rank's launch that each rank launches (None: all at once).
    Raises what `tilelink.plan` raises, and MachineError for a machine that there is not or offsets that do not fit.
    """
    described = machine if isinstance(machine, Machine) else load_machine(machine)
    plan = compiler.plan(
        program, schedule, ranks=ranks, dims=dims, dtype=dtype, target=described.processor, tables=tables
    )  # fmt: skip
    return simulate_plan(plan, described, cost=cost, tables=tables, offsets=offsets)
