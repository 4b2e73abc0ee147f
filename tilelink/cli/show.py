"""`tilelink show`: print a program, its schedule, its plan, the generated source or the compiled PTX."""

from __future__ import annotations

import sys
from difflib import unified_diff
from enum import StrEnum
from itertools import islice, pairwise
from typing import Annotated, Any

import typer
from rich import box as rich_box
from rich.console import Console
from rich.table import Table

from tilelink import compiler
from tilelink.cli.notices import ineffective_texts, say
from tilelink.cli.options import (
    DEFAULT,
    DTYPE,
    Element,
    File,
    Nodes,
    ProgramName,
    Ranks,
    ScheduleName,
    Sets,
    choices_of,
    default_dims,
    designed_errors,
    dims_of,
    of_a_node,
    random_tables,
    schedules_named,
    with_choices,
    write,
)
from tilelink.errors import UnknownNameError, did_you_mean
from tilelink.ir.program import Program
from tilelink.lowering.events import NOTIFY
from tilelink.lowering.listing import listing
from tilelink.lowering.passes import passes
from tilelink.planning.plan import Plan, make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.scheduling.schedule import Schedule

TARGET = "cpu, sm_80, sm_89, sm_90 or gfx942 (default: cpu; sm_90 with --stage ptx)"


class Stage(StrEnum):
    """The forms of a program that can be shown."""

    program = "program"
    schedule = "schedule"
    plan = "plan"
    source = "source"
    ptx = "ptx"


class Dialect(StrEnum):
    """Dialects of the kernels (tilelink/capabilities.py)."""

    triton = "triton"
    traced = "traced"
    triton_dist = "triton_dist"


def show(
    file: File,
    stage: Annotated[Stage, typer.Option("--stage", help="the form to print")] = Stage.program,
    program: ProgramName = None,
    schedule: ScheduleName = None,
    ranks: Ranks = 4,
    nodes: Nodes = 1,
    sets: Sets = None,
    after: Annotated[str | None, typer.Option("--after", help="the bound program after a pass, or after all")] = None,
    dialect: Annotated[Dialect, typer.Option("--dialect", help="dialect of the kernels")] = Dialect.triton,
    target: Annotated[str | None, typer.Option("--target", help=TARGET)] = None,
    dtype: Element = DTYPE,
) -> None:
    """Print a program, its schedule, its plan, the generated source or the compiled PTX."""
    with designed_errors():
        module = compiler.load(file)
        written = module.program(program)
        chosen = with_choices(written, choices_of(written, sets))
        scheduled = schedules_named(module, chosen, schedule or DEFAULT)[0]
        gpu = stage is Stage.ptx
        on = target or (scheduled and scheduled.target) or ("sm_90" if gpu else "cpu")
        options: dict[str, Any] = {
            "ranks": ranks,
            "nodes": nodes,
            "dims": dims_of(chosen, sets, default_dims(on), node_ranks=of_a_node(ranks, nodes)),
            "dtype": dtype.value,
            "target": on,
        }
        spoken: dict[str, Any] = {"dialect": dialect.value}
        lowers = after is not None or stage in (Stage.plan, Stage.source, Stage.ptx)
        for text in ineffective_texts(compiler.bound(chosen, scheduled, **options, **spoken)) if lowers else ():
            say(text)
        if after is not None:
            write(_passes(chosen, scheduled, after, options | spoken))
            return
        options["tables"] = random_tables(chosen, options["dims"], ranks)
        match stage:
            case Stage.program:
                write(str(chosen))
            case Stage.schedule:
                write(str(scheduled or Schedule(name=DEFAULT, program=chosen.name)))
            case Stage.plan:
                _show_plan(compiler.plan(chosen, scheduled, **options, **spoken))
            case Stage.source:
                write(compiler.source(chosen, scheduled, **options, **spoken))
            case Stage.ptx:
                write(compiler.assembly(chosen, scheduled, **options))


# Output ------------------------------------------------------------------------------------------------------

QUEUE_ORDER = "queue_order"
"""The last step, which is taken with the plan."""
INDENT = 4
"""Spaces by which a line of a listing is indented below its header."""


def _passes(program: Program, schedule: Schedule | None, after: str, options: dict[str, Any]) -> str:
    """Return the bound program after a pass. "all": before the passes, what each of them changed, and after them."""
    names = ["bind", *(one.name for one in passes()), QUEUE_ORDER]
    if after not in (*names, "all"):
        hint = did_you_mean(after, [*names, "all"], f"one of {', '.join(names)}, or all")
        raise UnknownNameError(f"no pass {after!r}", hint=hint)
    found: dict[str, str] = {}
    bound = compiler.bound(
        program, schedule, **options, on_step=lambda name, bound: found.update({name: listing(bound)})
    )
    if after in (QUEUE_ORDER, "all"):
        tables = random_tables(program, options["dims"], options["ranks"])
        found[QUEUE_ORDER] = listing(with_queue_order(make_plan(bound, tables)).bound)
    if after != "all":
        return found[after]
    texts = [f"# after {names[0]}\n{found[names[0]]}"]
    for before, name in pairwise(names):
        changes = _changes(found[before], found[name])
        texts.append(f"# after {name}\n{changes}" if changes else f"# after {name}: unchanged\n")
    return "\n".join([*texts, f"# after all\n{found[names[-1]]}"])


def _changes(before: str, after: str) -> str:
    """Return the lines that differ, marked - and +, each below the headers that it has."""
    lines: list[str] = []
    headers: dict[str, list[str]] = {"-": [], "+": []}
    printed: list[str] = []
    every = unified_diff(before.splitlines(), after.splitlines(), n=len(before), lineterm="")
    for line in islice(every, 3, None):  # without the names of two files and the range
        mark, text = line[:1], line[1:]
        if not text.strip():
            continue
        depth = (len(text) - len(text.lstrip())) // INDENT
        if mark in headers:
            above = headers[mark][:depth]
            lines += [f"  {header}" for n, header in enumerate(above) if printed[n : n + 1] != [header]]
            lines.append(f"{mark} {text}")
            printed = [*above, text]
        for side in headers if mark == " " else mark:
            headers[side][depth:] = [text]
    return "".join(f"{line}\n" for line in lines)


def _show_plan(plan: Plan) -> None:
    """Print the kernels, the channels and the numbers of tiles, signals and transfers of a plan."""
    bound = plan.bound
    console = Console(soft_wrap=not sys.stdout.isatty())
    box = rich_box.HEAVY_HEAD if console.is_terminal else None
    kernels = Table("kernel", "stages", "stream", "programs", "tiles a rank", box=box)
    for kernel in bound.kernels:
        names = [name for loop in kernel.loops for name in loop.stages]
        tiles = sum(bound.stages[name].total for name in names)
        kernels.add_row(kernel.name, ", ".join(names), kernel.stream, str(kernel.programs), str(tiles))
    channels = Table("signal", "channels", "elements each", "notifies each", "buffers", box=box)
    for (tensor, kind), grid in bound.channels.items():
        counts = sorted({int(n) for n in plan.thresholds[tensor, kind].flat})
        sizes = " x ".join(map(str, grid.sizes))
        channels.add_row(f"{tensor} {kind}", str(grid.count), sizes, _range(counts), str(grid.buffers))
    console.print(kernels)
    if bound.channels:
        console.print(channels)
    signals, moves = plan.signals, plan.transfers
    notifies = int((signals.kind == NOTIFY).sum())
    away = int(moves.elements.sum())
    console.print(
        f"{plan.tasks} tiles, {notifies} notifies, {len(signals.kind) - notifies} waits, "
        f"{len(moves.task)} transfers of {away} elements on {bound.ranks} ranks",
        highlight=False,
    )


def _range(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]}..{values[-1]}"
