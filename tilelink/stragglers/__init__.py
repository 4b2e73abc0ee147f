"""Stragglers: which rank, link, SMs, copy engine or host makes launches slow, from what each launch leaves behind.

save(folder, plan, table_of(rows), machine=machine)    # of simulated launches, or of traced ones (measured.py)
print(find(read_traces(folder)))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilelink.lowering.recipe import Recipe
from tilelink.planning.plan import Plan
from tilelink.simulator.machine import Machine, description
from tilelink.simulator.measured import RawSpan
from tilelink.stragglers.measured import table_of_spans
from tilelink.stragglers.metrics import (
    Column,
    Row,
    Table,
    Traces,
    is_traces,
    next_launch,
    read_traces,
    save_launches,
    save_program,
    table_of,
)
from tilelink.stragglers.simulated import Series

__all__ = [
    "Column", "Row", "Series", "Table", "Traces", "is_traces", "next_launch", "of_spans", "read_traces", "save",
    "table_of", "table_of_spans",
]  # fmt: skip


def of_spans(folder: Path, plan: Plan, spans: Sequence[RawSpan]) -> Table:
    """Return what traced launches left, numbered after those that a folder has."""
    return table_of_spans(plan, spans, next_launch(folder))


def save(
    folder: str | Path, plan: Plan, table: Table, *, machine: Machine | None = None,
    tables: Mapping[str, Any] | None = None, programs: bool = False,
) -> Path:  # fmt: skip
    """Add launches of a plan to a folder, which is made if it is not there, and return the new file.

    machine: of the ranks, if it is known: what a launch leaves there is simulated, as the norm.
    tables: those that the plan was made with. programs: True for traced launches, which name programs and not SMs.

    Raises OutputError for a folder of another program, or without room.
    """
    folder = Path(folder)
    norm = None if machine is None else Series(plan, machine, tables=tables, programs=programs).launch()
    save_program(
        folder,
        program=plan.bound.source.name,
        ranks=plan.bound.ranks,
        stages=tuple(plan.bound.stages),
        recipe=Recipe.of(plan.bound),
        tables={name: np.asarray(value).astype(np.int64) for name, value in (tables or {}).items()},
        machine=None if machine is None else description(machine),
        norm=norm,
        programs=programs,
    )
    return save_launches(folder, table)
