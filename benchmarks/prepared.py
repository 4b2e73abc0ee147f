# pyright: basic
"""Points of the benchmarks, which name their program and give their schedule as text, for the package's pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tilelink import compiler
from tilelink.artifact import Artifact
from tilelink.ir.program import Program
from tilelink.planning.plan import Plan
from tilelink.scheduling.schedule import Schedule
from tilelink.target import Target
from tilelink.tuning import prepare

Point = Mapping[str, Any]
"""program: a name of the library; schedule: its text, "" for the built-in one; dims, ranks, dtype."""


def parsed(point: Point) -> tuple[Program, Schedule | None]:
    """The program and the schedule of a point."""
    program, text = _program(point["program"]), point["schedule"]
    return program, compiler.parse(f"{program}\n{text}").schedules[-1] if text else None


@cache
def _program(name: str) -> Program:
    return compiler.load(name).program(name)


def plan_of(point: Point, machine: Target | str = "sm_90") -> Plan:
    """The verified plan of a point."""
    program, schedule = parsed(point)
    return compiler.plan(
        program, schedule, ranks=point["ranks"], dims=point["dims"], dtype=point["dtype"], target=machine
    )


def _known(point: Point, machine: Target) -> prepare.Point:
    """The point as the package has it; no benchmark runs with a deadline."""
    program, schedule = parsed(point)
    return prepare.Point(
        program=program, schedule=schedule, dims=point["dims"], dtype=point["dtype"], ranks=point["ranks"],
        target=machine, deadlines=(False,),
    )  # fmt: skip


def program_of(point: Point, machine: Target) -> Artifact:
    """What GPU ranks run of a point: from its file if it was prepared, else made now."""
    return prepare.program_of(_known(point, machine))


def prepared_file(point: Point, machine: Target) -> Path:
    """Where a point is kept once it is prepared."""
    return _known(point, machine).file


def prepare_all(points: Sequence[Point], machine: Target, *, workers: int, seconds: float) -> list[str]:
    """Prepares points by a pool of processes. Returns for each "" or why it is not ready.

    What is not ready in so many seconds is left: the ranks make it. Raises ParseError for what is no schedule.
    """
    return prepare.prepare_all([_known(point, machine) for point in points], workers=workers, seconds=seconds)
