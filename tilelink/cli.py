"""The command line: `tilelink check|show|run FILE`, FILE being a `.tl` file or a name of the operator library."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich import box as rich_box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tilelink import cli_calibrate, cli_check, cli_gpu, cli_simulate, cli_tune, compiler, doctor
from tilelink.cli_common import (
    DEFAULT,
    DEFAULT_DIMS,
    AsJson,
    Dtype,
    Element,
    File,
    ProgramName,
    Ranks,
    ScheduleName,
    Sets,
    check_writable,
    designed_errors,
    dims_of,
    random_tables,
    schedule_name,
    schedules_named,
    values_text,
    write,
)
from tilelink.ir.program import Program
from tilelink.schedule.plan import NOTIFY, Plan
from tilelink.schedule.simulate.measured import Measured, measured_text
from tilelink.schedule.simulate.trace import save_text
from tilelink.schedule.values import Schedule

CPU_CLOCK = {"clock": "time.perf_counter_ns"}
DELAY_S = 0.002
TOLERANCE = {"f32": 1e-4, "f16": 1e-2, "bf16": 3e-2}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Kernels that compute and communicate at the same time: check, show and run TileLink programs.",
)


class Stage(StrEnum):
    """The forms of a program that can be shown."""

    program = "program"
    schedule = "schedule"
    plan = "plan"
    source = "source"
    ptx = "ptx"


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


class Dialect(StrEnum):
    triton = "triton"
    triton_dist = "triton_dist"


app.command("check")(cli_check.check)


@app.command()
def show(
    file: File,
    stage: Annotated[Stage, typer.Option("--stage", help="which form")] = Stage.program,
    program: ProgramName = None,
    schedule: ScheduleName = None,
    ranks: Ranks = 4,
    sets: Sets = None,
    dialect: Annotated[Dialect, typer.Option("--dialect", help="of the source")] = Dialect.triton,
    target: Annotated[str | None, typer.Option("--target", help="cpu, sm_80, sm_89, sm_90 or gfx942")] = None,
    dtype: Annotated[Dtype | None, typer.Option("--dtype", help="the element type")] = None,
) -> None:
    """Print a program, its schedule, its plan, the generated source or the compiled PTX."""
    with designed_errors():
        module = compiler.load(file)
        chosen = module.program(program)
        scheduled = schedules_named(module, chosen, schedule or DEFAULT)[0]
        gpu = stage is Stage.ptx
        options: dict[str, Any] = {
            "ranks": ranks,
            "dims": dims_of(chosen, sets, DIMS_ON_GPU if gpu else DEFAULT_DIMS),
            "dtype": (dtype or (Dtype.bf16 if gpu else Dtype.f32)).value,
            "target": target or ("sm_90" if gpu else "cpu"),
        }
        options["tables"] = random_tables(chosen, options["dims"], ranks)
        match stage:
            case Stage.program:
                write(str(chosen))
            case Stage.schedule:
                write(str(scheduled or Schedule(name=DEFAULT, program=chosen.name)))
            case Stage.plan:
                _show_plan(compiler.plan(chosen, scheduled, **options))
            case Stage.source:
                write(compiler.source(chosen, scheduled, dialect=dialect.value, **options))
            case Stage.ptx:
                write(compiler.assembly(chosen, scheduled, **options))


@app.command()
def run(
    file: File,
    program: ProgramName = None,
    schedule: ScheduleName = None,
    ranks: Ranks = 4,
    sets: Sets = None,
    device: Annotated[Device, typer.Option("--device", help="what the ranks are")] = Device.cpu,
    seed: Annotated[int | None, typer.Option("--seed", help="of the inputs and of random delays")] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="launches, back to back")] = 1,
    dtype: Element = Dtype.f32,
    delay: Annotated[
        float | None,
        typer.Option(
            "--delay",
            min=0.0,
            help="longest random delay of waits, notifies and transfers, in seconds; "
            f"{DELAY_S} if a seed is given, else none",
        ),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--deadline",
            min=0.001,
            help="seconds a wait may take  [default: TILELINK_DEADLINE, or 60 on CPU ranks]",
        ),
    ] = None,
    trace: Annotated[str | None, typer.Option("--trace", help="write the measured timeline, for Perfetto")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a program on random inputs, fresh for every launch, and compare all outputs with what it means."""
    with designed_errors(as_json):
        check_writable(trace)
        module = compiler.load(file)
        chosen = module.program(program)
        scheduled = schedules_named(module, chosen, schedule or DEFAULT)[0]
        dims, kind = dims_of(chosen, sets), dtype.value
        report: dict[str, Any] = {
            "program": chosen.name, "schedule": schedule_name(scheduled), "ranks": ranks, "dims": dims, "dtype": kind,
            "launches": repeat, "device": device.value,
        }  # fmt: skip
        if device is Device.cuda:
            errors = _run_on_gpus(file, report, scheduled is not None, seed or 0, deadline, trace)
        else:
            if delay is None and seed is not None:
                delay = DELAY_S
            errors = _run_on_cpus(chosen, scheduled, report, seed or 0, delay, deadline, trace, as_json)
        good = _print_errors(report, errors, TOLERANCE[kind], as_json)
    if not good:
        raise typer.Exit(1)


def _run_on_cpus(
    program: Program, schedule: Schedule | None, report: dict[str, Any], seed: int, delay: float | None,
    deadline: float | None, trace: str | None, quiet: bool,
) -> dict[str, float]:  # fmt: skip
    """Runs what the report says on CPU ranks, notes the seconds in it, and returns the error of every output.

    delay: seconds of the longest random delay, None for none. trace: where the measured timeline goes.
    """
    from tilelink.reference import trial

    options: dict[str, Any] = {name: report[name] for name in ("ranks", "dims", "dtype")}
    launches, errors = report["launches"], dict[str, float]()
    with _progress(2 + launches, quiet=quiet) as advance:
        tables = random_tables(program, options["dims"], options["ranks"], seed)
        kernel = compiler.compile(program, schedule, **options, tables=tables, trace=trace is not None)
        advance("running")
        inputs = trial.random_inputs(program, **options, launches=launches, seed=seed)
        result = kernel.run(
            inputs, seed=None if delay is None else seed, max_delay_s=delay or 0.0, deadline_s=deadline
        )  # fmt: skip
        if trace is not None:
            save_text(measured_text(Measured(plan=kernel.plan, raw=result.spans, clock=CPU_CLOCK)), trace)
        advance("comparing")
        for given, outputs in zip(inputs, result.outputs, strict=True):
            for name, error in _errors(kernel, given, outputs).items():
                errors[name] = max(errors.get(name, 0.0), error)
            advance("comparing")
    report["seconds"] = round(result.seconds, 3)
    return errors


def _run_on_gpus(
    file: str, report: dict[str, Any], scheduled: bool, seed: int, deadline: float | None, trace: str | None
) -> dict[str, float]:
    """Runs what the report says on GPUs, notes the seconds in it, and returns the error of every output.

    trace: where the measured timeline goes.
    """
    request = {
        **report, "what": "run", "file": file, "schedule": report["schedule"] if scheduled else None, "seed": seed,
        "deadline": deadline, "trace": trace is not None,
    }  # fmt: skip
    answer = cli_gpu.on_gpus(request, report["ranks"], deadline or 0.0)
    report["seconds"] = round(answer["seconds"], 6)
    if trace is not None:
        save_text(answer["trace"], trace)
    return answer["errors"]


app.command("simulate")(cli_simulate.simulate)
app.command("tune")(cli_tune.tune)
app.command("calibrate")(cli_calibrate.calibrate)


@app.command("doctor")
def examine(as_json: AsJson = False) -> None:
    """Look at what of this machine can be used, and say what to do about the rest."""
    if not doctor.report(write, as_json=as_json):
        raise typer.Exit(1)


# Choices -----------------------------------------------------------------------------------------------------

DIMS_ON_GPU = (1024, 2048, 512, 256, 128, 64)
"""Sizes of dimensions that nobody set, where kernels are compiled for a GPU."""


def _errors(kernel: compiler.Kernel, inputs: Sequence[Any], outputs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """output -> max |out - ref| / max |ref| of one launch, over all ranks."""
    from tilelink.reference import trial

    expected = kernel.reference(inputs)
    return {
        name: trial.relative_error([own[name] for own in outputs], [own[name] for own in expected])
        for name in outputs[0]
    }


# Output ------------------------------------------------------------------------------------------------------


def _print_errors(report: dict[str, Any], errors: dict[str, float], tolerance: float, as_json: bool) -> bool:
    """Prints the comparison; returns whether all outputs are right. An error that is no number is wrong."""
    right = {name: error <= tolerance for name, error in errors.items()}
    good = all(right.values())
    if as_json:
        finite = {name: error if error < float("inf") else None for name, error in errors.items()}
        write(json.dumps({**report, "ok": good, "tolerance": tolerance, "errors": finite}))
        return good
    title = "{program} with {schedule} on {ranks} ranks, {launches} launches, {dtype}".format_map(report)
    console = Console()
    if console.is_terminal:
        table = Table("output", "max |out-ref|/|ref|", "allowed", "", title=f"{title}, {values_text(report['dims'])}")
        for name, error in errors.items():
            verdict = "[green]ok[/]" if right[name] else "[red]wrong[/]"
            table.add_row(name, f"{error:.2e}", f"{tolerance:.0e}", verdict)
        console.print(table)
        return good
    for name, error in errors.items():
        verdict = "ok" if right[name] else f"wrong, {tolerance:.0e} allowed"
        write(f"{name}: max |out-ref|/|ref| {error:.2e} {verdict} ({title})")
    return good


@contextmanager
def _progress(steps: int, quiet: bool) -> Generator[Callable[[str], None]]:
    """A function that reports the next step: as a bar on a terminal, else not at all."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield _silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("compiling", total=steps)

        def advance(what: str) -> None:
            progress.update(task, advance=1, description=what)

        yield advance


def _silent(what: str) -> None:
    """Reports nothing."""


def _show_plan(plan: Plan) -> None:
    """The plan in numbers, and the tiles of the first rank's first programs."""
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
        channels.add_row(f"{tensor} {kind}", str(grid.count), sizes, _range(counts), str(grid.slots))
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


if __name__ == "__main__":
    app()
