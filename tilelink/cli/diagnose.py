"""`tilelink diagnose`: what holds up a launch that hangs, from the dumps of its ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tilelink.cli.options import AsJson, designed_errors, write
from tilelink.compiler.postmortem import report_of
from tilelink.settings import settings

Dumps = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[DUMP]...", help="dumps of ranks, or folders of them; else TILELINK_DUMP"),
]


def diagnose(dumps: Dumps = None, as_json: AsJson = False) -> None:
    """Name what holds up a launch that hangs, from the dumps of its ranks: the root, the chain, each rank."""
    with designed_errors(as_json):
        folder = settings().dumps
        report, left = report_of(dumps or ([folder] if folder is not None else []))
        if as_json:
            return write(json.dumps({"ok": True, **report.as_json(), "left_out": list(map(str, left))}))
        write(str(report))
        for path in left:
            write(f"left out: {path}, of an earlier hang")
