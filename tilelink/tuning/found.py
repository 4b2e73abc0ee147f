"""Schedules for programs that have none: the best that the model finds among a fixed number of points, remembered.

A search counts points and not seconds, so that it finds the same wherever it runs. What it finds is a record in the
cache folder, of the program's text, the sizes with the first dimension rounded up to a power of two, and everything
else that decides. At other sizes of the same record it is asked again whether it is safe.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tilelink import compiler
from tilelink.compiler.modules import DEFAULT
from tilelink.compiler.proofs import package
from tilelink.data import checked
from tilelink.errors import OutputError, TileLinkError
from tilelink.ir.program import Program
from tilelink.lowering.shared_memory import does_not_fit
from tilelink.planning.plan import Plan
from tilelink.scheduling.schedule import Schedule
from tilelink.search import Found
from tilelink.search.knobs import knobs
from tilelink.search.seeds import nearest
from tilelink.settings import settings
from tilelink.simulator.machine import Machine
from tilelink.target import Target
from tilelink.tuning.database import Database, Key, Record, key_of
from tilelink.tuning.rank import rank

FOUND = "found"
"""Name of a schedule that was found."""
POINTS, PASSES = 160, 4
"""Points of a search, refused ones included: for so many passes through all choices, and no more than so many."""
FILE = "found.jsonl"
US = 1e6
_log = logging.getLogger("tilelink.tuning")


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A schedule that was found for a machine, for the machine's processor.

    seconds, built_in: of a launch with it, and with the built-in schedule, as predicted; infinity if that is far more.
    """

    machine: str
    schedule: Schedule
    seconds: float
    built_in: float

    def __str__(self) -> str:
        """Return the line that says it."""
        what = f"a schedule for {self.schedule.program} on {self.machine}: {self.seconds * US:.1f} us predicted"
        return f"found {what}, {self.built_in * US:.1f} us with the built-in one"

    @property
    def text(self) -> str:
        """The schedule as a text to be pasted: as the file's own `default`, it is taken where none is named."""
        return str(replace(self.schedule, name=DEFAULT))


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    """Evidence of a record: the seconds with the built-in schedule."""

    built_in: float


def found(
    program: Program,
    *,
    ranks: int,
    dims: Mapping[str, int | float | bool],
    machine: Machine,
    target: str | Target | None = None,
    dtype: str = "bf16",
    tables: compiler.Tables | None = None,
    nodes: int = 1,
) -> Suggestion | None:
    """Return the schedule that a search finds for a program on a machine, or found before.

    The arguments are those of `rank`. None if the program has schedules of its own, if it is for CPU ranks, if the
    search finds nothing better than the built-in schedule, and if that is refused: then it says what is wrong.
    """
    held = target if isinstance(target, Target) else replace(machine, target=target or machine.target).processor
    if program.schedules or held.kind == "cpu":
        return None
    given: dict[str, Any] = {"ranks": ranks, "dtype": dtype, "target": held, "tables": tables, "nodes": nodes}
    if _safe_plan(program, None, dims, given) is None:
        return None
    database = Database(settings().cache / FILE)
    for rounded in (True, False):  # what was found for other sizes may not be safe for these
        key = _key(program, dims, machine, given, rounded=rounded)
        known = database.find(key)
        suggestion = None if known is None else _suggestion(known)
        if suggestion is None:
            result = searched(program, dims, machine, **given)
            suggestion = _suggestion(_remembered(program, result, key, held))
        if suggestion is None or suggestion.seconds >= suggestion.built_in:  # nothing better was found
            return None
        if _safe_plan(program, suggestion.schedule, dims, given) is not None:
            return suggestion
    return None


def _suggestion(record: Record) -> Suggestion | None:
    """Return what a record says, or None if somebody changed it to what says nothing."""
    with suppress(TileLinkError):
        seconds = [checked(_Evidence, one, "evidence").built_in for one in record.evidence] or [float("inf")]
        schedules = compiler.parse(record.schedule).schedules
        if len(schedules) == len(seconds) == 1 and seconds[0] >= 0:
            return Suggestion(
                machine=record.key.gpu, schedule=schedules[0], seconds=record.seconds, built_in=seconds[0]
            )
    return None


def _safe_plan(
    program: Program, schedule: Schedule | None, dims: Mapping[str, int | float | bool], given: Mapping[str, Any]
) -> Plan | None:
    """Return the verified plan of a program, or None if it is refused, or if a schedule does not fit the processor."""
    with suppress(TileLinkError):
        plan = compiler.plan(program, schedule, dims=dims, **given)
        return plan if schedule is None or does_not_fit(plan.bound) is None else None
    return None


def _key(
    program: Program, dims: Mapping[str, int | float | bool], machine: Machine, given: Mapping[str, Any], *,
    rounded: bool,
) -> Key:  # fmt: skip
    tables = sorted(given["tables"] or {})  # by name alone: whether it is safe with their values is asked anyway
    decides = f"{package()} {machine} {sorted({**given, 'tables': tables}.items())}"
    key = key_of(
        [program], dims=dims, dtype=given["dtype"], ranks=given["ranks"], gpu=machine.name,
        versions=hashlib.sha256(decides.encode()).hexdigest()[:16],
    )  # fmt: skip
    return key if rounded else replace(key, dims=f"just {dict(dims)}")


def searched(program: Program, dims: Mapping[str, int | float | bool], machine: Machine, **given: Any) -> Found:
    """Return the search for a schedule of a program. given: arguments of `rank`, ranks and the target's value too."""
    built_in = complete = overlapping = Schedule(name=FOUND, program=program.name)
    choices = knobs(program, dims, given["ranks"], given["target"])
    points = min(POINTS, PASSES * sum(len(knob.labels) for knob in choices))
    for knob in choices:
        (choice,) = nearest([knob], built_in, dims, given["ranks"])
        complete = knob.changes[choice](complete)
        overlapping = knob.changes[knob.labels.index(knob.overlaps) if knob.overlaps else choice](overlapping)
    known = [built_in, complete, overlapping]  # the search begins near the others, which say all
    return rank([program], dims=dims, machine=machine, **given, declared=known, by="descent", trials=points, draws=1)


def built_in_seconds(result: Found) -> float | None:
    """Return what a search predicts of the built-in schedule, or None if that is refused."""
    plain = (one.seconds for one in result.tried if one.declared and not one.schedule.stages)
    return next(plain, None)


def _remembered(program: Program, result: Found, key: Key, processor: Target) -> Record:
    """Store and return the best of a search; of one in which all was refused, the built-in schedule, with no time."""
    schedule, seconds, built_in = Schedule(name=FOUND, program=program.name), 0.0, 0.0
    if result.ranking:
        schedule, seconds = result.space.without_idle(0, result.ranking[0].schedule), result.ranking[0].seconds
        built_in = built_in_seconds(result)
    record = Record(
        key=key, program=program.name, schedule=str(replace(schedule, target=processor.name)), seconds=seconds,
        evidence=() if built_in is None else ({"built_in": built_in},),
    )  # fmt: skip
    try:
        Database(settings().cache / FILE).store(record)
    except OutputError as error:
        _log.warning("%s", error)
    return record
