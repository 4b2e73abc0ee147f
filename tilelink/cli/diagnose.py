"""`tilelink diagnose`: what holds up a launch that hangs, from the dumps of its ranks, and what makes launches slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tilelink.cli.options import AsJson, check_writable, designed_errors, write
from tilelink.compiler.postmortem import report_of
from tilelink.errors import BindingError
from tilelink.settings import settings
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
    as_json: AsJson = False,
) -> None:
    """Name what holds up a launch that hangs, from dumps of its ranks, or what makes launches slow, from their traces."""
    with designed_errors(as_json):
        check_writable(plot)
        if dumps and any(map(is_traces, dumps)):
            if len(dumps) > 1:
                raise BindingError(f"{len(dumps)} folders at once", hint="name one folder of traces")
            return _stragglers(dumps[0], plot, as_json)
        if plot is not None:
            raise BindingError("--plot draws traces of launches", hint="name a folder of them")
        folder = settings().dumps
        report, left = report_of(dumps or ([folder] if folder is not None else []))
        if as_json:
            return write(json.dumps({"ok": True, **report.as_json(), "left_out": list(map(str, left))}))
        write(str(report))
        for path in left:
            write(f"left out: {path}, of an earlier hang")


def _stragglers(folder: Path, plot: Path | None, as_json: bool) -> None:
    found = verdict(read_traces(folder))
    if plot is not None:
        save_plot(found, plot)
    write(json.dumps({"ok": True, **found.as_json()}) if as_json else str(found))
