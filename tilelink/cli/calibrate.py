"""`tilelink calibrate`: measures this machine's GPUs and writes a machine for the simulator and the search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tilelink.calibration import Timings, fit
from tilelink.cli import gpus
from tilelink.cli.options import AsJson, check_writable, designed_errors, write
from tilelink.data import save_output
from tilelink.simulator.machine import UNITS, Machine, description, load_machine, save_machine


def calibrate(
    ranks: Annotated[int | None, typer.Option("--ranks", "-n", min=1, help="GPUs to measure; default: all")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="file for the machine")] = Path("machine.json"),
    machine: Annotated[
        str, typer.Option("--machine", "-m", help="machine that supplies what is not measured")
    ] = "8xH200",
    name: Annotated[str | None, typer.Option("--name", help="name of the machine; default: ranks and GPU")] = None,
    budget: Annotated[float, typer.Option("--budget", min=1.0, help="seconds in which measurements begin")] = 50.0,
    raw: Annotated[Path | None, typer.Option("--timings", help="file for the measured times")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this machine's GPUs, and write a machine that simulate and tune take."""
    with designed_errors(as_json):
        base = load_machine(machine)
        check_writable(out, raw)
        wanted = ranks or _gpus()
        gpus.require_gpus(wanted, hint="run this on the machine with the GPUs to measure")
        answer = gpus.on_gpus({"what": "calibrate", "budget": budget}, wanted)
        timings = Timings(**answer)
        if raw:
            save_output(raw, json.dumps(timings, indent=1) + "\n")
        found = fit(timings, base, name=name or f"{wanted}x{timings['gpu'].removeprefix('NVIDIA ')}".replace(" ", "-"))
        save_machine(found, out)
        _show(found, base, timings, out, as_json)


def _gpus() -> int:
    import torch

    return max(1, torch.cuda.device_count())


def _show(found: Machine, base: Machine, timings: Timings, out: Path, as_json: bool) -> None:
    if as_json:
        write(json.dumps({"machine": description(found), "timings": timings, "file": str(out)}))
        return
    table = Table("", "measured", base.name, "unit", "source", box=None)
    for field, unit in UNITS.items():
        table.add_row(field, _text(getattr(found, field)), _text(getattr(base, field)), unit, found.sources.get(field))
    Console(soft_wrap=True).print(table)
    write(f"\n{timings['ranks']} x {timings['gpu']}, {timings['versions']}: written to {out}")


def _text(value: Any) -> str:
    if isinstance(value, (int, float)):
        return f"{value:.4g}"
    return ", ".join(f"{tile} {rate:.3g}" for tile, rate in value.items()) or "-"
