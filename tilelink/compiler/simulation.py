"""Prediction of a program's launch in one call: plan, verify, simulate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilelink import compiler
from tilelink.compiler.samples import DRAWS, Routing, completed, draw
from tilelink.errors import public
from tilelink.ir.program import Program
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator import CostModel, Simulated
from tilelink.simulator import simulate as simulate_plan
from tilelink.simulator.machine import Machine, load_machine


@public
def simulate(
    program: Program,
    schedule: Schedule | str | None = None,
    *,
    ranks: int,
    dims: compiler.Dims,
    machine: str | Path | Machine = "8xH200",
    dtype: str = "bf16",
    tables: Mapping[str, Any] | None = None,
    cost: CostModel | None = None,
    offsets: Sequence[float] | None = None,
    nodes: int = 1,
    routing: Routing = "uniform",
    draws: int = DRAWS,
    seed: int = 0,
) -> Simulated:
    """Return the predicted times of one launch, in seconds, on a machine that need not be present.

    The plan is made for that machine and verified first.

    machine: name of a built-in description, a JSON file, or a description.
    tables: name -> int array [ranks, *shape] of the dynamic mappings.
    cost: cost model (None: the roofline model).
    nodes: how many nodes the ranks fill; more than one takes the place of the machine's ranks of a node.
    offsets: seconds after the first rank's launch at which each rank launches (None: all at once).
    routing: the index tensors of a launch: how they are drawn, such as `uniform` or `zipf:1.2`; a file of recorded ones
    (.npz or .pt); or name -> int array [ranks, *shape], or [launches, ranks, *shape].
    draws: launches of which the result is the mean, drawn with the seeds from `seed` on.

    Raises what `tilelink.plan` raises, MachineError for an unknown machine or offsets that do not fit, and BindingError
    and ShapeError for an unknown routing, or index tensors that do not fit.
    """
    described = machine if isinstance(machine, Machine) else load_machine(machine)
    launches = draw(program, ranks=ranks, dims=dims, routing=routing, draws=draws, seed=seed)
    where: dict[str, Any] = {"ranks": ranks, "nodes": nodes, "target": described.processor}
    plan = compiler.plan(program, schedule, **where, dims=dims, dtype=dtype, tables=tables)
    described = described.of_nodes(ranks, nodes)
    samples = completed(plan, launches, routing=routing, seed=seed)
    return simulate_plan(plan, described, cost=cost, tables=tables, offsets=offsets, samples=samples)
