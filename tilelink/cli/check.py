"""`tilelink check`: report the mistakes of programs and their schedules, each mistake once."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from tilelink import compiler
from tilelink.cli.notices import ineffective_texts, progress, say, say_grid, spilling_text, suggested
from tilelink.cli.options import (
    DTYPE,
    AsJson,
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
    mistakes_of,
    of_a_node,
    programs_with,
    random_tables,
    ranks_of,
    ranks_text,
    schedule_name,
    schedules_named,
    values_text,
    with_choices,
    write,
)
from tilelink.compiler import proofs
from tilelink.compiler.other_sizes import Multiples, dimensions, other_ranks, other_sizes
from tilelink.data import plain
from tilelink.errors import Location, ScheduleError, TileLinkError, UnknownNameError, no_schedule
from tilelink.ir.program import Program
from tilelink.lowering.bound import Bound
from tilelink.lowering.walk import executions
from tilelink.planning.plan import Plan, Representatives
from tilelink.scheduling.schedule import Schedule
from tilelink.target import CPU

Strict = Annotated[bool, typer.Option("--strict", help="exit 1 if a schedule alone orders a read after a write")]
Sizes = Annotated[bool, typer.Option("--sizes", help="say for which other sizes and numbers of ranks the proof holds")]
TargetName = Annotated[
    str | None,
    typer.Option("--target", help="cpu, sm_80, sm_89, sm_90 or gfx942  [default: each schedule's own, or cpu]"),
]


MANY, MANY_DRAWN = 1 << 16, 1 << 12
"""Executions of statements up to which a launch is simulated in a third of a second, and one whose index tensors are
drawn: that imports torch, which takes longer than most proofs."""


@dataclass(frozen=True, kw_only=True)
class _Safe:
    """A schedule with which a program is safe: the number of its tiles, and what is said of it, in words.

    memory: bytes that a rank holds, symmetric and local. scheduled: what it alone orders. ineffective: its clauses
    without effect on the target. spilling: the sums that exceed the registers of a thread, or None. idle: why a launch
    leaves SMs idle. representatives: what was asked in place of all. sizes: those that dimensions may have, or why
    not; None if that was not asked.
    """

    tasks: int
    memory: Mapping[str, int]
    representatives: Representatives
    scheduled: list[str]
    spilling: str | None
    ineffective: list[str]
    idle: list[str]
    sizes: Mapping[str, Multiples | str] | None


@dataclass(kw_only=True)
class _Mistake:
    """One mistake of a program; `schedules` names those that show it, empty if it does not depend on the schedule."""

    error: TileLinkError
    program: str
    schedules: list[str] = field(default_factory=list[str])


class _Mistakes:
    """The mistakes so far. The same mistake under several schedules, perhaps on different tiles, counts once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, type[TileLinkError], str, Location | None, Location | None], _Mistake] = {}

    def add(self, error: TileLinkError, program: str, schedule: str | None = None) -> None:
        same_anywhere = error.location is None or isinstance(error, ScheduleError)  # no tile is in its message
        what = error.message if same_anywhere else ""
        key = (program, type(error), what, error.location, error.related)
        mistake = self._known.setdefault(key, _Mistake(error=error, program=program))
        if schedule is not None:
            mistake.schedules.append(schedule)

    def __iter__(self) -> Iterator[_Mistake]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)


def check(
    file: File,
    program: ProgramName = None,
    schedule: ScheduleName = None,
    ranks: Ranks = 4,
    nodes: Nodes = 1,
    sets: Sets = None,
    dtype: Element = DTYPE,
    target: TargetName = None,
    strict: Strict = False,
    sizes: Sizes = False,
    as_json: AsJson = False,
) -> None:
    """Prove programs safe with each of their schedules; exit 1 otherwise, with every mistake of the programs."""
    with designed_errors(as_json), _seldom_collected():
        module = compiler.load(file)
        programs = module.programs if program is None else (module.program(program),)
        if not programs:
            raise UnknownNameError(f"no program in {file}", hint="program NAME(...):")
        wrong = _Mistakes()
        report: list[dict[str, Any]] = []
        chosen: dict[tuple[str, str], str] = {}
        programs, without = programs_with(module, programs, schedule)
        with progress(quiet=as_json) as doing:
            for written in programs:
                choices = choices_of(written, sets)
                one = with_choices(written, choices)
                named = schedules_named(module, one, schedule)
                for on in dict.fromkeys(target or _target_of(scheduled) for scheduled in named):
                    node_ranks = of_a_node(ranks, nodes)
                    dims = dims_of(written, sets, default_dims(on), node_ranks=node_ranks, others=module.programs)
                    if not as_json:
                        say_grid(one, dims, ranks, nodes)
                    options = {"ranks": ranks, "nodes": nodes, "dims": dims, "dtype": dtype.value, "target": on}
                    own = [scheduled for scheduled in named if on == (target or _target_of(scheduled))]
                    asked = {"sizes": sizes, "sized": _given(sets or []) >= {*dimensions(one)}}
                    plans = _safe(one, own, options, wrong, doing, **asked)
                    found = None
                    if plans and on != CPU.name:
                        doing(f"{one.name}: searching a schedule")
                        tables = random_tables(one, dims, ranks)
                        found = suggested(one, schedule, on, {**options, "tables": tables}, quiet=as_json)
                    if found:
                        plans |= _safe(one, [found.schedule], options, wrong, doing, **asked)
                    if text := _sizes(one, dims, sets or []):
                        chosen |= {(one.name, schedule_name(scheduled)): text for scheduled in own}
                    given = {**ranks_of(ranks, nodes), "dims": dims, "choices": choices, "dtype": dtype.value}
                    given |= {"target": on, **({"found": found.text} if found else {})}
                    report.append({"program": one.name, **given, **_said(one, dtype.value, plans)})
        unordered = strict and any(one["scheduled"] for one in report)
        _print(report, list(wrong), as_json, [one.name for one in without], chosen, ok=not wrong and not unordered)
        if not as_json:
            for one in without:
                error = no_schedule(str(schedule), {one.name: [s.name for s in module.schedules_of(one)]})
                write(f"skipped, {error.message}: {error.hint}")
            if unordered:
                say("--strict: where a schedule alone orders the two, notify the write and wait before the read")
    if wrong or unordered:
        raise typer.Exit(1)


@contextmanager
def _seldom_collected() -> Generator[None]:
    """Look for garbage in cycles seldom: the objects of a proof are many, and stay until it is made."""
    before = gc.get_threshold()
    gc.set_threshold(20_000, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _said(program: Program, dtype: str, plans: Mapping[str, _Safe]) -> dict[str, Any]:
    """Return what is said of a program with each of its schedules, by their names, as JSON values."""
    others = {name: safe.sizes for name, safe in plans.items() if safe.sizes is not None}
    return {
        "tasks": {name: safe.tasks for name, safe in plans.items()},
        "memory": {name: safe.memory for name, safe in plans.items()},
        "sums": {tensor.name: tensor.dtype or dtype for tensor in program.tensors if tensor.sums},
        "scheduled": {name: safe.scheduled for name, safe in plans.items() if safe.scheduled},
        "representatives": {name: plain(safe.representatives) for name, safe in plans.items() if safe.representatives},
        "sizes": {
            name: {of: plain(held) if isinstance(held, Multiples) else None for of, held in sizes.items()}
            for name, sizes in others.items()
        },
        "alone": {
            name: {of: held for of, held in sizes.items() if isinstance(held, str)} for name, sizes in others.items()
        },
        "ineffective": {name: safe.ineffective for name, safe in plans.items() if safe.ineffective},
        "idle": {name: safe.idle for name, safe in plans.items() if safe.idle},
        "spilling": {name: safe.spilling for name, safe in plans.items() if safe.spilling},
    }


def _target_of(schedule: Schedule | None) -> str:
    """Return the target that a schedule is for: CPU ranks, if it does not say."""
    return (schedule.target if schedule is not None else None) or CPU.name


def _safe(
    program: Program,
    schedules: Sequence[Schedule | None],
    options: Mapping[str, Any],
    wrong: _Mistakes,
    doing: Callable[[str], None],
    *,
    sizes: bool,
    sized: bool,
) -> dict[str, _Safe]:
    """Return schedule name -> what is said of it, for those of some schedules with which a program is safe.

    doing: called with what is done next. sizes: True to ask for which others the proof holds. sized: True if all sizes
    were given, so that it may be said how well they are scheduled.
    """
    found: dict[str, _Safe] = {}
    try:
        compiler.check(program)
    except TileLinkError as error:
        wrong.add(error, program.name)
        return found
    for scheduled in schedules:
        try:
            found[schedule_name(scheduled)] = _proved(program, scheduled, options, doing, sizes=sizes, sized=sized)
        except TileLinkError as error:
            wrong.add(error, program.name, schedule_name(scheduled))
    return found


def _proved(
    program: Program,
    schedule: Schedule | None,
    options: Mapping[str, Any],
    doing: Callable[[str], None],
    *,
    sizes: bool,
    sized: bool,
) -> _Safe:
    """Prove a program with a schedule, and generate its source. Raises TileLinkError if either fails."""

    def stage(text: str) -> None:
        doing(f"{program.name} with {schedule_name(schedule)}: {text}")

    tables = random_tables(program, options["dims"], options["ranks"])
    plan = compiler.plan(program, schedule, **options, tables=tables, on_stage=stage)
    stage("generating its source")
    compiler.source_of(plan)
    stage("what its schedule alone orders")
    ordered = [str(one) for one in proofs.scheduled(plan, tables)]
    others: Mapping[str, Multiples | str] | None = None
    if sizes:
        stage("for which other sizes it holds")

        def bound_with(changed: Mapping[str, int]) -> Bound:
            given: dict[str, Any] = {**options, "dims": {**options["dims"], **changed}}
            return compiler.bound(program, schedule, **given)

        def bound_on(ranks: int) -> Bound:
            given: dict[str, Any] = {**options, "ranks": ranks}
            return compiler.bound(program, schedule, **given)

        others = dict.fromkeys(dimensions(program), "tables are of these sizes")
        others = {**others, "ranks": "tables are of these ranks"}
        if not tables:
            others = {**other_sizes(plan, bound_with), "ranks": other_ranks(plan, bound_on)}
    return _Safe(
        tasks=plan.tasks,
        memory=plan.bound.memory,
        representatives=plan.representatives,
        scheduled=ordered,
        spilling=spilling_text(plan.bound),
        ineffective=ineffective_texts(plan.bound),
        idle=_idle(plan, tables) if sized else [],
        sizes=others,
    )


def _idle(plan: Plan, tables: Mapping[str, Any]) -> list[str]:
    """Return what the model says of SMs that a launch on a GPU leaves idle, if that takes it no time.

    A launch of many tiles or iterations takes longer than its proof.
    """
    bound = plan.bound
    if bound.target.kind == "cpu" or executions(bound) > MANY:
        return []
    from tilelink.compiler.samples import completed, draw
    from tilelink.simulator import simulate
    from tilelink.simulator.causes import idle_sms
    from tilelink.simulator.machine import machine_with
    from tilelink.simulator.sampled import launch_tensors

    machine, drawn = machine_with(bound.target.name), bool(launch_tensors(bound))
    if machine is None or (drawn and executions(bound) > MANY_DRAWN):
        return []
    with suppress(TileLinkError):  # no index tensors may be drawn that keep all promises
        given = draw(bound.source, ranks=bound.ranks, dims=bound.numbers, draws=1) if drawn else []
        samples = completed(plan, given, routing="uniform") if drawn else ()
        return idle_sms(simulate(plan, machine.of_nodes(bound.ranks, bound.nodes), tables=tables, samples=samples))
    return []


def _sizes_texts(report: Mapping[str, Any], schedule: str) -> Iterator[str]:
    """Yield what is said of other sizes, dimension by dimension."""
    numbers = {**report["dims"], "ranks": report["ranks"]}
    for name, held in report["sizes"][schedule].items():
        if held is None:
            yield f"{name}: {numbers[name]} alone was asked: {report['alone'][schedule][name]}"
        else:
            yield f"{name}: {Multiples(**held)}, with the others as they are"
    yield "what was not asked is proved when it is compiled: nothing runs without a proof"


def _given(sets: Sequence[str]) -> set[str]:
    return {text.partition("=")[0].strip() for text in sets}


def _sizes(program: Program, dims: Mapping[str, Any], sets: Sequence[str]) -> str:
    """Return the values of a program's parameters, and which of them were chosen here; an empty text if none was."""
    given = _given(sets) | {p.name for p in program.params if p.example is not None}
    own = [name for name in dims if name not in given]
    return f"{values_text(dims)} ({', '.join(own)} chosen for you: --set {own[0]}=NUMBER)" if own else ""


def _print(
    report: Sequence[Mapping[str, Any]],
    wrong: Sequence[_Mistake],
    as_json: bool,
    skipped: Sequence[str],
    chosen: Mapping[tuple[str, str], str],
    *,
    ok: bool,
) -> None:
    """Print what was proved and the mistakes.

    chosen: (program, schedule) -> the sizes of the proof, if the command chose some of them.
    """
    if as_json:
        mistakes = [
            {**one, "program": mistake.program, "schedules": mistake.schedules}
            for mistake in wrong
            for one in mistakes_of(mistake.error)
        ]
        return write(json.dumps({"ok": ok, "programs": report, "skipped": skipped, "mistakes": mistakes}))
    for one in report:
        if one["tasks"]:
            schedules = ", ".join(f"{name} ({tasks} tiles)" for name, tasks in one["tasks"].items())
            values = values_text({**one["dims"], **one["choices"]})
            proved = f"safe on {ranks_text(one)} ({one['target']}, {one['dtype']})"
            write(f"{one['program']}: {proved}{', ' if values else ''}{values}: {schedules}")
            if one["sums"]:
                added = ", ".join(f"{name} ({dtype})" for name, dtype in one["sums"].items())
                differ = "each addition rounds, so that launches differ in the last bits of sums"
                write(f"  {added}: added to in any order; {differ}")
            for name, held in one["representatives"].items():
                ending = " represent any number of them" if held["few"] else ""
                write(f"  {name}: {Representatives(**held)}{ending}")
            for name in one["sizes"]:
                write(f"  {name} with other sizes:")
                for text in _sizes_texts(one, name):
                    write(f"    {text}")
            for said in (one["scheduled"], one["ineffective"], one["idle"]):
                for text in dict.fromkeys(text for texts in said.values() for text in texts):
                    names = ", ".join(name for name, texts in said.items() if text in texts)
                    write(f"  with {names}, {text}")
            for name, text in one["spilling"].items():
                write(f"  slow with {name}: {text}")
    for mistake in wrong:
        typer.echo(str(mistake.error), err=True)
        if mistake.schedules:
            typer.echo(f"  seen in: {mistake.program} with {', '.join(mistake.schedules)}", err=True)
            if (sizes := chosen.get((mistake.program, mistake.schedules[0]))) is not None:
                typer.echo(f"  sizes: {sizes}", err=True)
