"""The clauses of the schedule language, one module each, and the passes that do what they say.

A clause of one's own is registered, and then it is one of the language: `register(CLAUSE)`.
"""

from __future__ import annotations

from typing import Any

from tilelink.schedule import clause as language
from tilelink.schedule.clauses.backfill import BACKFILL
from tilelink.schedule.clauses.buffers import BUFFERS
from tilelink.schedule.clauses.channel import CHANNEL
from tilelink.schedule.clauses.clause import Choices, Clause, count, switch
from tilelink.schedule.clauses.defer_notify import DEFER_NOTIFY
from tilelink.schedule.clauses.direction import DIRECTION
from tilelink.schedule.clauses.flatten import FLATTEN
from tilelink.schedule.clauses.order import ORDER
from tilelink.schedule.clauses.pipeline import NUM_STAGES, NUM_WARPS
from tilelink.schedule.clauses.resource import RESOURCE
from tilelink.schedule.clauses.split_k_tail import SPLIT_K_TAIL
from tilelink.schedule.clauses.tile import TILE
from tilelink.schedule.clauses.tma_copy import TMA_COPY

__all__ = [
    "CLAUSES", "Choices", "Clause", "clauses", "count", "forget", "register", "switch",
]  # fmt: skip

CLAUSES: tuple[Clause[Any], ...] = (
    RESOURCE, DIRECTION, TILE, ORDER, NUM_WARPS, NUM_STAGES, FLATTEN, SPLIT_K_TAIL, BACKFILL, DEFER_NOTIFY, TMA_COPY,
    CHANNEL, BUFFERS,
)  # fmt: skip
"""The clauses that the package has, in the order in which schedules are printed."""
_own: list[Clause[Any]] = []


def register(clause: Clause[Any]) -> None:
    """Makes a clause one of the language. Raises ScheduleError where another has a name or a word of it."""
    language.register(clause)
    _own.append(clause)


def forget(clause: Clause[Any]) -> None:
    """Takes a registered clause out of the language again."""
    language.forget(clause)
    _own.remove(clause)


def clauses() -> tuple[Clause[Any], ...]:
    """All clauses of the language."""
    return (*CLAUSES, *_own)


for _clause in CLAUSES:
    language.register(_clause)
