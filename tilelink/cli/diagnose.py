"""`tilelink diagnose`: what holds up a launch that hangs, from the dumps of its ranks, and what makes launches slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tilelink.cli.options import AsJson, check_writable, designed_errors, write
from tilelink.compiler.postmortem import predicted, report_of
from tilelink.errors import BindingError, DataError
from tilelink.settings import settings
from tilelink.simulator.machine import load_machine
from tilelink.stragglers.metrics import is_traces, read_traces
from tilelink.stragglers.report import save_plot, verdict

Dumps = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[DUMP|TRACES]...", help="dumps of ranks, or folders of them, else TILELINK_DUMP; or a folder of traces"
    ),
]


def diagnose(
    dumps: Dumps = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="draw traces, ranks x time, as PNG, SVG or PDF")] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help="of traced launches: the machine by which they are judged")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Name what holds up a launch that hangs, from its dumps, or makes launches slow, from their traces."""
    with designed_errors(as_json):
        check_writable(plot)
        if missing := [path for path in dumps or [] if not path.exists()]:
            hint = "`tilelink run --traces FOLDER` makes traces; a launch that hangs writes dumps (docs/diagnose.md)"
            raise DataError(f"there is no {missing[0]}", hint=hint)
        if dumps and any(map(is_traces, dumps)):
            if len(dumps) > 1:
                raise BindingError(f"{len(dumps)} folders at once", hint="name one folder of traces")
            return _stragglers(dumps[0], plot, machine, as_json)
        if plot is not None or machine is not None:
            raise BindingError("--plot and --machine are for traces of launches", hint="name a folder of them")
        folder = settings().dumps
        report, left = report_of(dumps or ([folder] if folder is not None else []))
        if as_json:
            return write(json.dumps({"ok": True, **report.as_json(), "left_out": list(map(str, left))}))
        write(str(report))
        for path in left:
            write(f"left out: {path}, of an earlier hang")


def _stragglers(folder: Path, plot: Path | None, machine: str | None, as_json: bool) -> None:
    traces = read_traces(folder)
    found = verdict(traces if machine is None else predicted(traces, load_machine(machine)))
    if plot is not None:
        save_plot(found, plot)
    write(json.dumps({"ok": True, **found.as_json()}) if as_json else str(found))
