"""`tilelink simulate FILE`: predict the time of a launch on a described machine, with a breakdown of the time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tilelink import compiler
from tilelink.cli.notices import PLANNED_S, SEARCHED_S, UNSEARCHED, introduce, patience, say_built_in, suggested
from tilelink.cli.options import (
    DEFAULT,
    DTYPE,
    LARGE_DIMS,
    AsJson,
    CostName,
    DrawsCount,
    Element,
    File,
    MachineName,
    Nodes,
    ProgramName,
    Ranks,
    RoutingName,
    ScheduleName,
    Sets,
    check_writable,
    choices_of,
    cost_model,
    designed_errors,
    dims_of,
    of_a_node,
    random_tables,
    ranks_of,
    ranks_text,
    schedule_name,
    schedules_named,
    values_text,
    with_choices,
    write,
)
from tilelink.compiler import simulation
from tilelink.compiler.samples import DRAWS
from tilelink.simulator import Simulated
from tilelink.simulator.causes import idle_sms, path_of
from tilelink.simulator.critical_path import critical_path
from tilelink.simulator.html import save_page
from tilelink.simulator.machine import load_machine
from tilelink.simulator.small_copies import small_copies
from tilelink.simulator.trace import save_trace

US = 1e6


def simulate(
    file: File,
    program: ProgramName = None,
    schedule: ScheduleName = None,
    ranks: Ranks = 8,
    nodes: Nodes = 1,
    sets: Sets = None,
    machine: MachineName = "8xH200",
    dtype: Element = DTYPE,
    cost: CostName = None,
    routing: RoutingName = "uniform",
    draws: DrawsCount = DRAWS,
    trace: Annotated[Path | None, typer.Option("--trace", help="write a timeline that Perfetto opens")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="write a timeline that a browser opens")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="draw the timeline as PNG, SVG or PDF")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict the time of a launch on a machine, its lower bound, and a breakdown of the time."""
    with designed_errors(as_json):
        check_writable(trace, html, plot)
        module = compiler.load(file)
        written = module.program(program)
        choices = choices_of(written, sets)
        chosen = with_choices(written, choices)
        scheduled = schedules_named(module, chosen, schedule or DEFAULT)[0]
        dims = dims_of(chosen, sets, LARGE_DIMS, node_ranks=of_a_node(ranks, nodes))
        described = load_machine(machine)
        sizes: dict[str, Any] = {"dims": dims, "ranks": ranks, "nodes": nodes, "dtype": dtype.value}
        where: dict[str, Any] = {**sizes, "target": described.processor}
        bound = compiler.bound(chosen, scheduled, **where)
        sizes["tables"] = random_tables(chosen, dims, ranks)
        with patience("searching a schedule", SEARCHED_S, as_json, UNSEARCHED):
            found = suggested(chosen, schedule, described, sizes, quiet=as_json)
        if found:
            scheduled = found.schedule
            bound = compiler.bound(chosen, scheduled, **where)
        if not as_json:
            if schedule is None:
                say_built_in(module, chosen)
            introduce(bound, sets or [], scheduled, only_chosen=True)
        with patience("planning and simulating", PLANNED_S * bound.total, as_json):
            result = simulation.simulate(
                chosen, scheduled, **sizes, machine=described, cost=cost_model(cost), routing=routing, draws=draws,
            )  # fmt: skip
        if trace is not None:
            save_trace(result, trace)
        if html is not None:
            save_page(result, html)
        if plot is not None:
            from tilelink.simulator.plot import save_plot

            save_plot(result, plot)
        head = {"program": chosen.name, "schedule": schedule_name(scheduled), **ranks_of(ranks, nodes), "dims": dims}
        head["choices"] = choices
        if found:
            head["found"] = found.text
        if result.draws:
            head["routing"] = routing
        _print(
            result, {**head, "dtype": dtype.value, "machine": result.machine.name, "tiles": result.plan.tasks}, as_json
        )


def _print(result: Simulated, head: dict[str, Any], as_json: bool) -> None:
    if as_json:
        return write(json.dumps({**head, **_values(result)}))
    bound = result.bound
    title = f"{head['program']} with {head['schedule']} on {ranks_text(head)} of {head['machine']}"
    write(f"{title}, {head['dtype']}, {values_text({**head['dims'], **head['choices']})}: {head['tiles']} tiles")
    times = result.seconds / bound.seconds if bound.seconds else 0.0
    ratio = f", {times:,.0f} times the bound" if times >= 100 else f", {times:.2f} times the bound" if times else ""
    write(f"predicted {result.seconds * US:.1f} us (rank {result.slowest}){ratio}")
    if result.draws:
        least, most = min(result.draws), max(result.draws)
        count = f"{len(result.draws)} launch" + ("es" if len(result.draws) > 1 else "")
        write(f"mean of {count} with routing {head['routing']}: {least * US:.1f} to {most * US:.1f} us")
    seconds = (bound.seconds, bound.compute, bound.transfer)
    whole, compute, transfer = (_us(s) if s * US >= 0.1 or not s else f"{s * US:.1g}" for s in seconds)
    write(f"bound {whole} us (compute {compute}, transfer {transfer})")
    for remark in (*small_copies(result), *idle_sms(result)):
        write(remark)
    _print_ranks(result)
    write(path_of(result))


def _print_ranks(result: Simulated) -> None:
    """Print a row for every rank."""
    names = list(result.breakdowns[0].parts())
    rows = [
        (f"{rank}", _us(seconds), *(_us(part) for part in breakdown.parts().values()))
        for rank, (seconds, breakdown) in enumerate(zip(result.rank_seconds, result.breakdowns, strict=True))
    ]
    console = Console()
    headings = ("rank", "us", *(name.replace("_", "-") for name in names))
    if console.is_terminal:
        table = Table(*headings)
        for row in rows:
            table.add_row(*row)
        return console.print(table)
    for row in (headings, *rows):
        write(" ".join(f"{cell:>9}" for cell in row))


def _us(seconds: float) -> str:
    return f"{round(seconds * US, 1) + 0.0:.1f}"  # adding 0.0 turns -0.0 into 0.0


def _values(result: Simulated) -> dict[str, Any]:
    return {
        "seconds": result.seconds,
        "rank_seconds": list(result.rank_seconds),
        "bound": {
            "seconds": result.bound.seconds,
            "compute": result.bound.compute,
            "transfer": result.bound.transfer,
        },
        "breakdown": [breakdown.parts() for breakdown in result.breakdowns],
        "critical_path": [
            {"stage": stage, "part": part, "seconds": found.seconds}
            for (stage, part), found in critical_path(result).items()
        ],
        "remarks": [*small_copies(result), *idle_sms(result)],
        **({"draws": list(result.draws)} if result.draws else {}),
    }
