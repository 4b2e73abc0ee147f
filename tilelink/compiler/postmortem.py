"""Post-mortem of launches that hang: the errors of runtimes explained by the plan, dumps written, and dumps read.

Also the norm of launches that are slow: what their plan, made anew from their traces, leaves on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink import dump
from tilelink.compiler.lowered import parse_lowered
from tilelink.data import checked
from tilelink.diagnose import Report, diagnose, of_dumps
from tilelink.dump import Dump, Seen
from tilelink.errors import DataError, DeadlineError, RankError, TileLinkError
from tilelink.lowering.listing import listing
from tilelink.planning.plan import Plan, make_plan
from tilelink.simulator.machine import Machine
from tilelink.stragglers import Series, Traces, table_of

STALE_S = 120.0
"""Seconds, besides twice the deadline, that the dumps of one hang may lie apart."""


def explain(error: DeadlineError | RankError, plan: Plan, tables: Mapping[str, Any], deadline_s: float) -> None:
    """Add to an error what holds the launch up, as far as this process can tell, and write the dumps of its ranks.

    An error of another kind than a hang or a death stays as it is. What fails here is said and hides no error.
    """
    seen = [one for one in error.witnesses if isinstance(one, Seen)]
    if not seen:
        return
    lowered = listing(plan.bound)
    values = {name: np.asarray(one).astype(np.int64) for name, one in tables.items()}
    dumps = [
        Dump(program=plan.bound.source.name, lowered=lowered, tables=values, deadline_s=deadline_s, seen=one)
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
        plan = make_plan(parse_lowered(traces.lowered, where), tables)
        row = Series(plan, machine, tables=tables, programs=True).launch()
    except DataError:
        raise
    except TileLinkError as error:
        raise DataError(f"{where} cannot be read: {error.message}", hint="use the version that wrote it") from error
    return replace(traces, norm=table_of([row]))


def _plan(dumps: Sequence[Dump]) -> Plan:
    """Return the plan of the program that most dumps have."""
    prints = [one.fingerprint for one in dumps]
    usual = dumps[max(range(len(dumps)), key=lambda k: (prints.count(prints[k]), -k))]
    try:
        return make_plan(parse_lowered(usual.lowered, f"the dump of rank {usual.seen.rank}"), usual.tables)
    except DataError:
        raise
    except TileLinkError as error:
        hint = "use the version of TileLink that wrote it"
        raise DataError(
            f"the program in the dump of rank {usual.seen.rank} cannot be read: {error.message}", hint=hint
        ) from error
