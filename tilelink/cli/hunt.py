"""`tilelink hunt FILE|OPERATOR`: search for launches that are slower than they should be, and explain each case."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from tilelink import files
from tilelink.cli import gpus
from tilelink.cli.notices import progress
from tilelink.cli.options import (
    LARGE_DIMS,
    AsJson,
    Dtype,
    MachineName,
    Sets,
    check_writable,
    designed_errors,
    dims_of,
    imported,
    random_tables,
    write,
)
from tilelink.errors import BindingError
from tilelink.hunt import as_json as report_of
from tilelink.hunt import hunt as search_cases
from tilelink.hunt import markdown, text
from tilelink.hunt.anomaly import LEAST, US
from tilelink.hunt.cases import TOP, Hunted
from tilelink.hunt.functions import Functions
from tilelink.hunt.programs import LAUNCHES, Vary
from tilelink.hunt.targets import Target, subjects_of
from tilelink.ir.program import Program
from tilelink.search import STRATEGIES, Strategy, strategy

POINTS = 100
BUDGET = f"seconds of the whole hunt; without --points and --budget {POINTS} points are rated"
T = TypeVar("T")


def hunt(
    names: Annotated[
        list[str], typer.Argument(metavar="FILE|OPERATOR...", help=".tl files, names of the library, or operators")
    ],
    program: Annotated[
        list[str] | None, typer.Option("--program", "-p", help="a program of the file; several, with -p each")
    ] = None,
    schedule: Annotated[
        list[str] | None, typer.Option("--schedule", "-s", help="schedules of the file, as in 'h200*'  [default: all]")
    ] = None,
    ranks: Annotated[str, typer.Option("--ranks", "-n", help="numbers of ranks")] = "2,4,8",
    sets: Sets = None,
    dtype: Annotated[str, typer.Option("--dtype", help="element types")] = "bf16,f32",
    routing: Annotated[str, typer.Option("--routing", help="how index tensors are drawn")] = "uniform,zipf:1.2,one",
    launch: Annotated[str, typer.Option("--launch", help="how launches are issued")] = ",".join(LAUNCHES),
    late: Annotated[str, typer.Option("--late", help="microseconds by which the first rank is late")] = "0,20,200",
    exact: Annotated[bool, typer.Option("--exact", help="leave the sizes as --set gives them")] = False,
    machine: MachineName = "8xH200",
    by: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            help=f"one of {', '.join(STRATEGIES)}, or yours as module:function  [default: evolution; with --measure "
            "random, whose kernels are compiled ahead]",
        ),
    ] = None,
    points: Annotated[int | None, typer.Option("--points", min=1, help="launches to rate")] = None,
    budget: Annotated[float | None, typer.Option("--budget", min=0.0, help=BUDGET)] = None,
    least: Annotated[float, typer.Option("--least", help="how many times too long a launch is that counts")] = LEAST,
    top: Annotated[int, typer.Option("--top", min=0, help="cases to explain, the worst first")] = TOP,
    measured: Annotated[
        bool, typer.Option("--measure", help="time launches on GPUs, and compare with predictions too")
    ] = False,
    compile_budget: Annotated[
        float, typer.Option("--compile-budget", min=0.0, max=300.0, help="seconds of compiling ahead with all cores")
    ] = 60.0,
    seed: Annotated[int, typer.Option("--seed", help="seed of the search")] = 0,
    report: Annotated[Path | None, typer.Option("--markdown", help="write the report as Markdown")] = None,
    as_json: AsJson = False,
) -> None:
    """Search for launches that are slower than they should be, and say when each is and why."""
    with designed_errors(as_json):
        check_writable(report)
        vary = Vary(
            ranks=_values("--ranks", ranks, _count), dtypes=_values("--dtype", dtype, _dtype),
            routings=_values("--routing", routing, str), launches=_values("--launch", launch, _launch),
            late=_values("--late", late, _late), exact=exact,
        )  # fmt: skip
        target = Target(
            names=tuple(names), programs=tuple(program or ()), schedules=tuple(schedule or ()), sets=tuple(sets or ()),
            machine=machine, vary=vary,
        )  # fmt: skip
        chosen = by or ("random" if measured else "evolution")
        options = {
            "points": POINTS if points is None and budget is None else points, "budget_s": budget, "seed": seed,
            "least": least, "top": top,
        }  # fmt: skip
        strategy_named(chosen)
        if measured:
            write(_measured(target, chosen, options, compile_budget, as_json, report))
            return
        found = _searched(target, strategy_named(chosen), options, quiet=as_json)
        write(_shown(found, as_json, report))
    if found.ended == "interrupt":
        raise typer.Exit(130)


def strategy_named(name: str) -> Strategy:
    """Return a strategy by its name. Raises UnknownNameError."""
    return imported(name) if ":" in name else strategy(name)


def base_of(program: Program, sets: list[str]) -> dict[str, Any]:
    """Return the sizes with which a hunt in a program begins: those given, else its examples, else defaults."""
    return dims_of(program, sets, LARGE_DIMS)


def tables_of(program: Program, sizes: Any, ranks: int) -> dict[str, Any]:
    return random_tables(program, sizes, ranks)


def _searched(target: Target, by: Strategy, options: dict[str, Any], quiet: bool) -> Hunted:
    subjects = subjects_of(target, base_of, tables_of)
    if unknown := [one.name for one in subjects if isinstance(one, Functions)]:
        hint = "give --measure, where there are GPUs"
        raise BindingError(f"no model predicts calls of {', '.join(unknown)}", hint=hint)
    with progress(quiet, hint="--points and --budget say when it ends") as doing:
        return search_cases(subjects, by, progress=doing, **options)


def _shown(found: Hunted, as_json: bool, report: Path | None) -> str:
    if report is not None:
        files.replace(report, markdown(found, "What a hunt found").encode())
    return json.dumps(report_of(found), indent=2) if as_json else text(found)


def _measured(
    target: Target, by: str, options: dict[str, Any], compile_budget: float, as_json: bool, report: Path | None
) -> str:
    """Return the report of a hunt on GPUs, one for each rank."""
    if len(target.vary.ranks) != 1:
        raise BindingError("a hunt on GPUs has one number of ranks", hint="give that of the GPUs: --ranks 2")
    gpus.require_gpus(target.vary.ranks[0], hint="without --measure the model alone rates launches")
    for one in subjects_of(target, base_of, tables_of):  # what is wrong with them is said before GPUs are taken
        assert one.features
    asked = {
        "what": "hunt", "target": target.as_json(), "strategy": by, "options": options, "compile_budget": compile_budget
    }  # fmt: skip
    work_s = compile_budget + (options["budget_s"] or 5.0 * (options["points"] or 0))
    answer = gpus.on_gpus(asked, target.vary.ranks[0], work_s=work_s, hint="give it fewer --points")
    if report is not None:
        files.replace(report, answer["markdown"].encode())
    return json.dumps(answer["report"], indent=2) if as_json else answer["text"]


def _values(option: str, given: str, make: Callable[[str], T]) -> tuple[T, ...]:
    """Return the values of an option, which commas separate. Raises BindingError for one that is none."""
    parts = [part.strip() for part in given.split(",")]
    try:
        made = [make(part) for part in parts if part]
    except ValueError as error:
        raise BindingError(f"{option} {given}: {error}", hint="values are separated by commas") from None
    if not made:
        raise BindingError(f"{option} has no value", hint="give one, or several separated by commas")
    return tuple(dict.fromkeys(made))


def _count(value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise ValueError(f"{value!r} is no number of ranks")
    return int(value)


def _late(value: str) -> float:
    try:
        seconds = float(value) / US
    except ValueError:
        raise ValueError(f"{value!r} is no number of microseconds") from None
    if not 0 <= seconds < 1:
        raise ValueError(f"{value} us is no delay of a launch; give 0 to 1,000,000")
    return seconds


def _dtype(value: str) -> str:
    if value not in tuple(Dtype):
        raise ValueError(f"{value!r} is no element type; one of {', '.join(Dtype)}")
    return value


def _launch(value: str) -> str:
    if value not in LAUNCHES:
        raise ValueError(f"{value!r} is no way to launch; one of {', '.join(LAUNCHES)}")
    return value
