"""The clauses of the schedule language, one module each, with the passes that apply them.

`register(CLAUSE)` adds a user-defined clause to the language.
"""

from __future__ import annotations

from typing import Any

from tilelink.lowering.clauses.backfill import BACKFILL
from tilelink.lowering.clauses.buffers import BUFFERS
from tilelink.lowering.clauses.channel import CHANNEL
from tilelink.lowering.clauses.clause import (
    Choices,
    Clause,
    Known,
    Phase,
    TensorChoices,
    Ties,
    clauses,
    count,
    lacking,
    switch,
)
from tilelink.lowering.clauses.defer_notify import DEFER_NOTIFY
from tilelink.lowering.clauses.direction import DIRECTION
from tilelink.lowering.clauses.dynamic import DYNAMIC
from tilelink.lowering.clauses.flatten import FLATTEN
from tilelink.lowering.clauses.halve_tail import HALVE_TAIL
from tilelink.lowering.clauses.kernel_order import KERNEL_ORDER
from tilelink.lowering.clauses.lockstep import LOCKSTEP
from tilelink.lowering.clauses.low_latency import LOW_LATENCY
from tilelink.lowering.clauses.order import ORDER
from tilelink.lowering.clauses.pipeline import NUM_STAGES, NUM_WARPS
from tilelink.lowering.clauses.program_per_tile import PROGRAM_PER_TILE
from tilelink.lowering.clauses.resource import RESOURCE
from tilelink.lowering.clauses.roles import ROLES
from tilelink.lowering.clauses.serpentine import SERPENTINE
from tilelink.lowering.clauses.slots import SLOTS
from tilelink.lowering.clauses.split_k_tail import SPLIT_K_TAIL
from tilelink.lowering.clauses.tile import TILE
from tilelink.lowering.clauses.tma_copy import TMA_COPY
from tilelink.scheduling import words as language

__all__ = [
    "CLAUSES", "Choices", "Clause", "Known", "Phase", "TensorChoices", "Ties", "clauses", "count", "forget",
    "register", "switch", "lacking",
]  # fmt: skip

CLAUSES: tuple[Clause[Any], ...] = (
    RESOURCE, DIRECTION, TILE, ORDER, LOCKSTEP, SERPENTINE, NUM_WARPS, NUM_STAGES, FLATTEN, SPLIT_K_TAIL, HALVE_TAIL,
    BACKFILL, DEFER_NOTIFY, TMA_COPY, ROLES, PROGRAM_PER_TILE, DYNAMIC, CHANNEL, BUFFERS, SLOTS, LOW_LATENCY,
    KERNEL_ORDER,
)  # fmt: skip
"""Built-in clauses, in the order in which schedules are printed, and in which the passes of one phase are applied."""


def register(clause: Clause[Any]) -> None:
    """Add a clause to the language. Raises ScheduleError if its name or its keyword is already in use."""
    language.register(clause)


def forget(clause: Clause[Any]) -> None:
    """Remove a registered clause from the language."""
    language.forget(clause)


for _clause in CLAUSES:
    language.register(_clause)
