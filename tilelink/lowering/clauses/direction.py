"""`push`, `pull`: which rank moves the data of a communication stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilelink.errors import ScheduleError
from tilelink.ir.program import Program, Stage
from tilelink.lowering.clauses.clause import Clause, Numbers
from tilelink.lowering.transform import flip_direction
from tilelink.scheduling.words import SchedulePart

DIRECTIONS = ("push", "pull")


def _read(rule: str, _: Sequence[Any]) -> str:
    return rule


def _show(value: str | None) -> str:
    return value or ""


def _valid(owner: str, value: str | None) -> None:
    if value is not None and value not in DIRECTIONS:
        raise ScheduleError(f"direction {value!r} of stage {owner}", hint="a direction is push or pull")


def _rewrite(program: Program, stage: Stage, part: SchedulePart) -> Stage:
    direction = part[DIRECTION]
    return flip_direction(program, stage, direction, part.at("direction")) if direction else stage


def _apart(_: str | None, __: str | None, ___: Numbers, ____: int) -> float:
    """Return 0: no search changes the direction."""
    return 0.0


DIRECTION: Clause[str | None] = Clause(
    name="direction",
    default=None,
    rules={word: f'"{word}"' for word in DIRECTIONS},
    syntax="push, pull",
    called="the direction (push / pull)",
    read=_read,
    show=_show,
    valid=_valid,
    rewrite=_rewrite,
    apart=_apart,
    written="`push`, `pull`",
    manual=(
        "which rank moves the data. For a stage that moves regions between its own rank and one index over the ranks, "
        "notifies, and contains no look-up"
    ),
)
