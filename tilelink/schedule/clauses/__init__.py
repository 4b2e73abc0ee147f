"""The clauses of the schedule language, one module each, and the passes that do what they say.

A clause of one's own is registered, and then it is one of the language: `register(CLAUSE)`.
"""

from __future__ import annotations

from typing import Any

from tilelink.errors import ScheduleError, did_you_mean
from tilelink.ir.program import Program
from tilelink.schedule import clause as language
from tilelink.schedule.clause import Part, StageSchedule
from tilelink.schedule.clauses.buffers import BUFFERS
from tilelink.schedule.clauses.bulk import BULK
from tilelink.schedule.clauses.channel import CHANNEL
from tilelink.schedule.clauses.clause import Choices, Clause, count, switch
from tilelink.schedule.clauses.defer_notify import DEFER_NOTIFY
from tilelink.schedule.clauses.direction import DIRECTION
from tilelink.schedule.clauses.fill import FILL
from tilelink.schedule.clauses.flat import FLAT
from tilelink.schedule.clauses.order import ORDER
from tilelink.schedule.clauses.pipeline import STAGES, WARPS
from tilelink.schedule.clauses.resource import RESOURCE
from tilelink.schedule.clauses.split_tail import SPLIT_TAIL
from tilelink.schedule.clauses.tile import TILE

__all__ = [
    "CLAUSES", "Choices", "Clause", "check_names", "check_values", "clauses", "count", "forget", "register", "switch",
]  # fmt: skip

CLAUSES: tuple[Clause[Any], ...] = (
    RESOURCE, DIRECTION, TILE, ORDER, WARPS, STAGES, FLAT, SPLIT_TAIL, FILL, DEFER_NOTIFY, BULK, CHANNEL, BUFFERS,
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


def check_values(part: Part) -> None:
    """Raises ScheduleError for values that mean nothing, which no text has."""
    for said in part.said:
        language.word_called(said.name).valid(part.name, said.what)


def check_names(program: Program, part: Part) -> None:
    """Raises ScheduleError for a stage, a tensor or whatever else a part names and a program lacks."""
    kind, known = "tensor", [t.name for t in program.tensors]
    if isinstance(part, StageSchedule):
        kind, known = "stage", [s.name for s in program.stages]
    if part.name not in known:
        hint = did_you_mean(part.name, known, f"{kind}s: {', '.join(known)}")
        raise ScheduleError(f"no {kind} {part.name!r}", location=part.at("name"), hint=hint)
    said = {one.name for one in part.said}
    for clause in clauses():
        if clause.name in said:
            clause.check(program, part)


for _clause in CLAUSES:
    language.register(_clause)
