"""Post-mortem of launches that hang: the errors of runtimes explained by the plan, dumps written, and dumps read.

Also the norm of launches that are slow: what their plan, made anew from their traces, leaves on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink import dump
from tilelink.data import checked
from tilelink.diagnose import Report, diagnose, of_dumps
from tilelink.dump import Dump, Seen
from tilelink.errors import DataError, DeadlineError, RankError, TileLinkError
from tilelink.frontend.checker import check
from tilelink.frontend.parser import parse_text
from tilelink.lowering.bind import bind
from tilelink.lowering.recipe import Recipe, hash_of
from tilelink.planning.plan import Plan, make_plan
from tilelink.planning.queue_order import in_queue_order
from tilelink.simulator.machine import Machine
from tilelink.stragglers import Series, Traces, table_of

VERSION = "use the version of TileLink that wrote it"
STALE_S = 120.0
"""Seconds, besides twice the deadline, that the dumps of one hang may lie apart."""


def explain(error: DeadlineError | RankError, plan: Plan, tables: Mapping[str, Any], deadline_s: float) -> None:
    """Add to an error what holds the launch up, as far as this process can tell, and write the dumps of its ranks.

    An error of another kind than a hang or a death stays as it is. What fails here is said and hides no error.
    """
    seen = [one for one in error.witnesses if isinstance(one, Seen)]
    if not seen:
        return
    recipe = asdict(Recipe.of(plan.bound))
    values = {name: np.asarray(one).astype(np.int64) for name, one in tables.items()}
    dumps = [
        Dump(program=plan.bound.source.name, recipe=recipe, tables=values, deadline_s=deadline_s, seen=one)
        for one in seen
    ]
    error.dumps = tuple(map(str, dump.write(dumps)))
    if all(one.spoiled for one in seen):  # other ranks' dumps may have better counters
        return
    try:
        report = diagnose(plan, seen, whole=len(seen) == plan.bound.ranks)
    except Exception as failed:
        error.diagnosis = f"not known: the post-mortem failed with {failed!r}"
        return
    if report.root is not None and report.root.kind != "died":  # of a death the error tells itself
        error.diagnosis = report.root.text


def report_of(paths: Sequence[Path]) -> tuple[Report, list[Path]]:
    """Return the diagnosis of dumps, files or folders of them, and the files that are of another, earlier hang.

    The plan is made anew from the program in the dumps. Raises DataError for files that are no dumps.
    """
    found = [file for path in paths for file in ([path] if path.is_file() else dump.newest(path))]
    if not found:
        where = ", ".join(map(str, paths))
        raise DataError(f"there is no dump in {where}", hint="a launch writes them when it exceeds its deadline")
    dumps = {path: dump.read(path) for path in found}
    last = max(one.seen.time for one in dumps.values())
    newest: dict[int, Path] = {}
    for path, one in dumps.items():
        if last - one.seen.time > 2 * one.deadline_s + STALE_S:
            continue
        known = newest.get(one.seen.rank)
        if known is None or dumps[known].seen.time < one.seen.time:
            newest[one.seen.rank] = path
    taken = [dumps[path] for _, path in sorted(newest.items())]
    return of_dumps(taken, _plan(taken)), [path for path in found if path not in newest.values()]


def predicted(traces: Traces, machine: Machine) -> Traces:
    """Return traces with what a launch leaves on such a machine as their norm.

    The plan is made anew from the program in them. Raises DataError if it cannot be read.
    """
    where = f"the program {traces.program} of the traces"
    tables: dict[str, Any] = {name: checked(NDArray[np.int64], raw, where) for name, raw in traces.tables.items()}
    try:
        row = Series(_plan_of(traces.recipe, tables, where), machine, tables=tables, programs=True).launch()
    except TileLinkError as error:
        raise _unreadable(where, error) from error
    return replace(traces, norm=table_of([row]))


def _plan(dumps: Sequence[Dump]) -> Plan:
    """Return the plan of the program that most dumps have."""
    prints = [one.fingerprint for one in dumps]
    usual = dumps[max(range(len(dumps)), key=lambda k: (prints.count(prints[k]), -k))]
    where = f"the program in the dump of rank {usual.seen.rank}"
    try:
        return _plan_of(usual.recipe, usual.tables, where)
    except TileLinkError as error:
        raise _unreadable(where, error) from error


def _plan_of(raw: Mapping[str, Any], tables: Mapping[str, NDArray[np.int64]], where: str) -> Plan:
    """Return the plan of a recipe. It executes nothing of the recipe. Raises TileLinkError if that cannot be done."""
    recipe = checked(Recipe, raw, "its recipe")
    sizes = {name: value for name, value in asdict(recipe.target).items() if isinstance(value, int)}
    if wrong := next((name for name, value in sizes.items() if value < 1 and not isinstance(value, bool)), None):
        raise DataError(f"{wrong} of its processor is {sizes[wrong]}", hint=VERSION)
    found = parse_text(f"{recipe.program}\n{recipe.schedule}", where)
    if (len(found.programs), len(found.schedules)) != (1, 1):
        raise DataError("it is not one program with one schedule", hint=VERSION)
    bound = bind(
        check(found.programs[0]), found.schedules[0], recipe.numbers, recipe.ranks, recipe.target, recipe.dtype,
        nodes=recipe.nodes, dialect=recipe.dialect,
    )  # fmt: skip
    plan = in_queue_order(make_plan(bound, tables), own_first=recipe.own_copies_first, waits_aside=recipe.waits_aside)
    if hash_of(plan.bound) != recipe.listing:
        raise DataError("this version of TileLink lowers it to another program", hint=VERSION)
    return plan


def _unreadable(where: str, error: TileLinkError) -> DataError:
    return DataError(f"{where} cannot be read: {error.message}", hint=VERSION)
