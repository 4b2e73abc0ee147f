"""`tilelink run`: run programs on random inputs, on CPU ranks or GPUs, and compare outputs with the reference."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tilelink import compiler, stragglers
from tilelink.cli import gpus
from tilelink.cli.notices import (
    SEARCHED_S,
    UNSEARCHED,
    bound_of,
    ineffective_texts,
    interpreted_seconds,
    introduce,
    patience,
    say,
    say_built_in,
    suggested,
)
from tilelink.cli.options import (
    DEFAULT,
    DTYPE,
    AsJson,
    Element,
    File,
    Nodes,
    ProgramName,
    Ranks,
    ScheduleName,
    Sets,
    check_routing,
    check_writable,
    choices_of,
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
from tilelink.data import save_output
from tilelink.errors import BindingError
from tilelink.ir.program import Program
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator.html import save_page
from tilelink.simulator.machine import load_machine
from tilelink.simulator.measured import Measured, measured_events, measured_text
from tilelink.simulator.trace import Event
from tilelink.stragglers import of_spans

if TYPE_CHECKING:
    from tilelink.reference.run import Outputs
    from tilelink.runtime.cuda.timing import Timing

CPU_CLOCK = {"clock": "time.perf_counter_ns"}
DELAY_S = 0.002
MACHINE = "8xH200"
ODD = "if both sides have it, random inputs may make no sense here: run it from Python with inputs of your own"
TOLERANCE = {"f32": 1e-4, "f16": 1e-2, "bf16": 3e-2}


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


Delay = Annotated[
    float | None,
    typer.Option(
        "--delay",
        min=0.0,
        help="longest random delay of waits, notifies and transfers, in seconds; "
        f"{DELAY_S} if a seed is given, else none",
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        "--deadline", min=0.001, help="seconds a wait may take  [default: TILELINK_DEADLINE, or 60 on CPU ranks]"
    ),
]


Routing = Annotated[
    str,
    typer.Option("--routing", help="how index tensors are drawn: uniform, zipf:1.2, one, empty, full or zeros"),
]


def run(
    file: File,
    program: ProgramName = None,
    schedule: ScheduleName = None,
    ranks: Ranks = 4,
    nodes: Nodes = 1,
    sets: Sets = None,
    device: Annotated[Device, typer.Option("--device", help="the kind of ranks")] = Device.cpu,
    seed: Annotated[
        int | None, typer.Option("--seed", min=-(2**63), max=2**63 - 1, help="seed of the inputs and of random delays")
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="launches, back to back")] = 1,
    dtype: Element = DTYPE,
    delay: Delay = None,
    deadline: Deadline = None,
    routing: Routing = "uniform",
    trace: Annotated[str | None, typer.Option("--trace", help="write the measured timeline, for Perfetto")] = None,
    traces: Annotated[
        Path | None, typer.Option("--traces", help="add what each launch leaves to a folder, for `tilelink diagnose`")
    ] = None,
    html: Annotated[
        str | None, typer.Option("--html", help="write the timeline of the last launch below the predicted one")
    ] = None,
    bench: Annotated[bool, typer.Option("--bench", help="time launches too, on GPUs")] = False,
    every: Annotated[bool, typer.Option("--all", help="run the built-in schedule and each of the file's")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a program on random inputs, fresh for every launch, and compare all outputs with the reference."""
    with designed_errors(as_json):
        check_writable(trace, html)
        check_routing(routing)
        module = compiler.load(file)
        written = module.program(program)
        choices = choices_of(written, sets)
        chosen = with_choices(written, choices)
        files = {"--trace": trace, "--html": html, "--traces": traces}
        _check_together(schedule, device, files, nodes, every=every, bench=bench)
        found = None
        if device is Device.cuda and not every and not chosen.schedules:
            machine, dims = gpus.machine_here(ranks), dims_of(chosen, sets)
            tables = random_tables(chosen, dims, ranks, seed or 0)
            sizes = {"dims": dims, "ranks": ranks, "dtype": dtype.value, "tables": tables}
            with patience("searching a schedule", SEARCHED_S, as_json, UNSEARCHED):
                found = suggested(chosen, schedule, machine, sizes, quiet=as_json)
        todo = [found.schedule] if found else schedules_named(module, chosen, None if every else schedule or DEFAULT)
        if schedule is None and not every and not as_json:
            say_built_in(module, chosen, ", --all each of them")
        if routing != "uniform" and not any(t.bound is not None and t.space == "in" for t in chosen.tensors):
            say(f"--routing {routing} has no effect: {chosen.name} has no index tensor that a launch brings")
        how = _How(
            file=file, seed=seed or 0, deadline=deadline, trace=trace, traces=traces, html=html, quiet=as_json,
            bench=bench, routing=routing, delay=DELAY_S if delay is None and seed is not None else delay,
        )  # fmt: skip
        reports: list[dict[str, Any]] = []
        for scheduled in todo:
            report: dict[str, Any] = {
                "program": chosen.name, "schedule": schedule_name(scheduled), **ranks_of(ranks, nodes),
                "dims": dims_of(chosen, sets, node_ranks=of_a_node(ranks, nodes)), "choices": choices,
                "dtype": dtype.value, "launches": repeat, "device": device.value,
                "within": {t.name: t.within for t in chosen.tensors if t.within is not None},
                **({"found": str(found.schedule)} if found else {}),
            }  # fmt: skip
            bound = bound_of(chosen, scheduled, report)
            if not as_json:
                introduce(bound, sets or [], scheduled)
            if not as_json and device is Device.cpu:
                for text in ineffective_texts(bound):
                    say(text)
            if device is Device.cuda:
                compared = _run_on_gpus(chosen, scheduled, report, how)
            else:
                with patience("running", interpreted_seconds(bound, repeat), as_json):
                    compared = _run_on_cpus(chosen, scheduled, report, how)
            reports.append(_judged(report, compared, as_json))
        if as_json:
            good = all(one["ok"] for one in reports)
            write(json.dumps({"ok": good, "runs": reports} if every else reports[0]))
    if not all(one["ok"] for one in reports):
        raise typer.Exit(1)


def _check_together(
    schedule: str | None, device: Device, files: Mapping[str, str | Path | None], nodes: int, *, every: bool,
    bench: bool,
) -> None:
    """Raise BindingError for options of which one excludes another."""
    timeline = next((option for option, file in files.items() if file is not None), None)
    if every and (schedule is not None or timeline is not None):
        other = "--schedule" if schedule is not None else timeline
        raise BindingError(f"--all and {other} together", hint=f"{other} goes with one schedule: leave --all out")
    if bench and (device is not Device.cuda or timeline is not None):
        what = timeline or "--device cpu"
        hint = "launches are timed on GPUs, without a trace: --device cuda --bench; `tilelink simulate` predicts them"
        raise BindingError(f"--bench and {what} together", hint=hint)
    if device is Device.cuda and nodes > 1:
        hint = "CPU ranks run it with late and reordered puts: leave --device out"
        raise BindingError(f"{nodes} nodes of GPUs are started by torchrun on each of them", hint=hint)


@dataclass(frozen=True, kw_only=True)
class _How:
    """Options of a run. delay: maximum random delay in seconds, None for no delays. trace, html: files for timelines.
    traces: folder for what launches leave.

    bench: True to time launches. routing: the kind of the entries of index tensors (reference/routing.py).
    """

    file: str
    seed: int
    delay: float | None
    deadline: float | None
    trace: str | None
    traces: Path | None
    html: str | None
    quiet: bool
    bench: bool = False
    routing: str = "uniform"

    @property
    def traced(self) -> bool:
        return any(one is not None for one in (self.trace, self.traces, self.html))


Compared = tuple[dict[str, float], dict[str, str], float]
"""(output -> its error, output -> description of its first element that is not finite, error by orders of sums)."""


def _run_on_cpus(program: Program, schedule: Schedule | None, report: dict[str, Any], how: _How) -> Compared:
    """Run the program of the report on CPU ranks, and record the seconds in it."""
    from tilelink.reference import trial

    options: dict[str, Any] = {name: report[name] for name in ("ranks", "dims", "dtype")}
    nodes = report.get("nodes", 1)
    launches, errors, odd = report["launches"], dict[str, float](), dict[str, str]()
    with _progress(2 + launches, quiet=how.quiet) as advance:
        tables = random_tables(program, options["dims"], options["ranks"], how.seed)
        kernel = compiler.compile(program, schedule, **options, tables=tables, trace=how.traced, nodes=nodes)
        kernel.require_memory(launches)
        advance("running")
        inputs = trial.random_inputs(program, **options, launches=launches, seed=how.seed, routing=how.routing)
        result = kernel.run(
            inputs, seed=None if how.delay is None else how.seed, max_delay_s=how.delay or 0.0, deadline_s=how.deadline
        )
        measured = Measured(plan=kernel.plan, raw=result.spans, clock=CPU_CLOCK)
        if how.trace is not None:
            save_output(how.trace, measured_text(measured))
        if how.traces is not None:
            left = of_spans(how.traces, kernel.plan, result.spans)
            stragglers.save(how.traces, kernel.plan, left, tables=tables, programs=True)
        if how.html is not None:
            _save_page(how.html, program, schedule, report, how, tables, measured_events(measured.last))
        advance("comparing")
        kept: list[Mapping[str, Any]] | None = None
        every: list[Sequence[Outputs]] = []
        for number, (given, outputs) in enumerate(zip(inputs, result.outputs, strict=True), 1):
            expected = kernel.reference(given, kept)
            kept = [one.kept for one in expected]
            every.append(expected)
            pairs = [(t.name, outputs, expected) for t in program.tensors if t.is_result]
            if number == launches:
                pairs += [(t.name, result.kept, kept) for t in program.tensors if t.space == "kept"]
            worst = 0.0
            for name, own, wanted in pairs:
                sides = trial.compared(own, wanted, name)
                error = trial.relative_error(*sides)
                errors[name], worst = max(errors.get(name, 0.0), error), max(worst, error)
                if name not in odd and (found := trial.no_number(*sides)):
                    odd[name] = found
            _say_launch(number, launches, worst, how)
            advance("comparing")
    report["seconds"] = round(result.seconds, 3)
    return errors, odd, trial.rounding_error(program, report["dtype"], every)


def _say_launch(number: int, launches: int, error: float, how: _How) -> None:
    """Say how far the outputs of a launch are from the reference at most, if there are several."""
    if launches > 1 and not how.quiet:
        say(f"launch {number} of {launches}: max |out-ref|/|ref| {error:.2e}")


def _save_page(
    path: str, program: Program, schedule: Schedule | None, report: Mapping[str, Any], how: _How,
    tables: Mapping[str, Any], measured: Iterable[Event],
) -> None:  # fmt: skip
    """Write the timeline of the last launch below the predicted one: on CPU ranks, that of the same plan on GPUs."""
    on_cpu = report["device"] == Device.cpu.value
    machine = load_machine(MACHINE)
    predicted = simulation.simulate(
        program, schedule, ranks=report["ranks"], nodes=report.get("nodes", 1), dims=report["dims"],
        dtype=report["dtype"], tables=tables, routing=how.routing, draws=1, seed=how.seed,
        machine=replace(machine, target="cpu") if on_cpu else machine,
    )  # fmt: skip
    where = "CPU ranks, whose times are those of Triton's interpreter" if on_cpu else "GPUs"
    save_page(predicted, path, {f"measured on {where}: the last launch": measured}, one_clock=not on_cpu)


def _run_on_gpus(program: Program, schedule: Schedule | None, report: dict[str, Any], how: _How) -> Compared:
    """Run the program of the report on GPUs, and record the seconds in it."""
    request = {
        **report, "what": "run", "file": how.file, "schedule": report["schedule"] if schedule else None,
        "seed": how.seed, "deadline": how.deadline, "trace": how.traced, "bench": how.bench,
        "routing": how.routing, "traces": None if how.traces is None else str(how.traces.absolute()),
    }  # fmt: skip
    answer = gpus.on_gpus(request, report["ranks"], how.deadline or 0.0)
    report["seconds"] = round(answer["seconds"], 6)
    for number, error in enumerate(answer["launches"], 1):
        _say_launch(number, report["launches"], error, how)
    if how.bench:
        report["time"] = {"median_us": _timing(answer["time"]).median_us, **answer["time"]}
    if how.trace is not None:
        save_output(how.trace, answer["trace"])
    if how.html is not None:
        tables = random_tables(program, report["dims"], report["ranks"], how.seed)
        _save_page(how.html, program, schedule, report, how, tables, answer["last"])
    return answer["errors"], answer["odd"], answer["rounding_error"]


def _judged(report: Mapping[str, Any], compared: Compared, quiet: bool) -> dict[str, Any]:
    """Return the report with the verdict, and print it unless `quiet`. An error that is not a number is wrong."""
    errors, odd, rounding_error = compared
    tolerance = TOLERANCE[report["dtype"]] + rounding_error
    allowed = {name: report["within"].get(name, tolerance) for name in errors}
    finite = {name: error if error < float("inf") else None for name, error in errors.items()}
    right = {name: error <= allowed[name] for name, error in errors.items()}
    judged = {**report, "ok": all(right.values()), "tolerance": tolerance, "errors": finite, "no_numbers": odd}
    if quiet:
        return judged
    title = "{program} with {schedule} on {where}, {launches} launches, {dtype}"
    title = title.format_map({**report, "where": ranks_text(report)})
    console = Console()
    if console.is_terminal:
        values = values_text({**report["dims"], **report["choices"]})
        table = Table("output", "max |out-ref|/|ref|", "allowed", "", title=f"{title}, {values}")
        for name, error in errors.items():
            verdict = "[green]ok[/]" if right[name] else "[red]wrong[/]"
            table.add_row(name, f"{error:.2e}", f"{allowed[name]:.0e}", verdict)
        console.print(table)
    else:
        for name, error in errors.items():
            verdict = "ok" if right[name] else f"wrong, {allowed[name]:.0e} allowed"
            write(f"{name}: max |out-ref|/|ref| {error:.2e} {verdict} ({title})")
    if "time" in report:
        write(str(_timing(report["time"])))
    for name, where in odd.items():
        say(f"{name}{where}\n  hint: {ODD}")
    return judged


def _timing(found: Mapping[str, Any]) -> Timing:
    """Return the time of a launch, which is in a report as JSON values."""
    from tilelink.runtime.cuda.timing import Timing

    return Timing(
        name=found["name"], ranks=found["ranks"], device=found["device"], samples_us=tuple(found["samples_us"]),
        host_us=found["host_us"],
    )  # fmt: skip


@contextmanager
def _progress(steps: int, quiet: bool) -> Generator[Callable[[str], None]]:
    """Yield a function that reports the next step as a bar on a terminal, and does nothing elsewhere."""
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
    """Report nothing."""
