"""Notices of the commands on standard error: default choices, and estimates of the time left."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from threading import Event, Thread, Timer
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from tilelink import compiler
from tilelink.cli.options import DEFAULT, last_dimension, ranks_of, ranks_text, schedule_name, values_text
from tilelink.frontend.variants import open_names
from tilelink.ir.program import Assign, Dot, For, If, Program, Read, Statement, Store, Transfer
from tilelink.ir.scalar import Whole
from tilelink.ir.visitor import value_of, values
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.registers import spills
from tilelink.scheduling.schedule import Schedule

if TYPE_CHECKING:
    from tilelink.simulator.machine import Machine
    from tilelink.tuning.found import Suggestion

PATIENCE_S = 5.0
"""Seconds without output after which a command reports its activity."""
MOST_S = 60.0
"""Seconds between two such reports at most."""
STEP_S = 4e-3
"""Approximate seconds of a core for one step of an interpreted tile: a load, a product of blocks, a store, a signal."""
PLANNED_S = 4e-5
"""Approximate seconds for planning, proving and simulating one tile."""
SEARCHED_S = 20.0
"""Approximate seconds for finding a schedule; with five stages and large sizes up to three times as many."""
SMALLER = "--set gives smaller sizes, --schedule other tiles"
UNSEARCHED = f"--set gives smaller sizes, --schedule {DEFAULT} takes the built-in one"


def say(text: str) -> None:
    """Print a notice on standard error; standard output has the results alone."""
    typer.echo(text, err=True)


def introduce(bound: Bound, sets: Sequence[str], schedule: Schedule | None, *, only_chosen: bool = False) -> None:
    """Print the sizes, those that have default values, and the number of tiles; and that sums spill, if they do.

    only_chosen: print nothing but which sizes have default values, for a command that prints the rest with its result.
    """
    if text := spilling_text(bound):
        say(f"slow: {text}")
    names = {text.partition("=")[0].strip() for text in sets}
    named = {p.name for p in bound.source.params if p.example is not None}
    chosen = [name for name in bound.numbers if name not in names | named]
    what = f"{bound.source.name} with {schedule_name(schedule)} on {ranks_text(ranks_of(bound.ranks, bound.nodes))}"
    if only_chosen:
        if chosen:
            say(f"{', '.join(chosen)} chosen for you: --set {chosen[0]}=NUMBER")
        return say_grid(bound.source, bound.numbers, bound.ranks, bound.nodes)
    also = f" ({', '.join(chosen)} chosen for you: --set {chosen[0]}=NUMBER)" if chosen else ""
    choices = [text.strip() for text in sets if text.partition("=")[0].strip() in open_names(bound.source)]
    sizes = "".join(f", {text}" for text in (values_text(bound.numbers), *choices) if text)
    say(f"{what}{sizes}{also}: {bound.total:,} tiles")
    say_grid(bound.source, bound.numbers, bound.ranks, bound.nodes)


def spilling_text(bound: Bound) -> str | None:
    """Return what is said of a program whose products hold more sums than registers, which is right and slow, or None.

    Known of processors of NVIDIA.
    """
    error = spills(bound)
    return None if error is None else f"{error.message}, so that they spill to memory; take {error.hint}"


def ineffective_texts(bound: Bound) -> list[str]:
    """Return what is said of clauses of a program's schedule that have no effect there."""
    groups: dict[tuple[bool, str], dict[str, list[str]]] = {}
    for one in bound.left_out:
        groups.setdefault((one.lacking, one.reason), {}).setdefault(one.clause, []).append(one.part)
    dialect = bound.capabilities.dialect
    where, elsewhere = f"on {bound.target}", "--target sm_90"
    if dialect != "triton":
        where, elsewhere = f"in dialect {dialect}", "dialect triton has it on sm_90"
    texts: list[str] = []
    for (lacking, reason), parts in groups.items():
        named = "; ".join(f"{clause} of {', '.join(several)}" for clause, several in parts.items())
        if lacking:
            texts.append(f"without effect {where}, and not fully checked: {named} ({elsewhere})")
        else:
            texts.append(f"without effect {where} with these sizes: {named}, because {reason}")
    return texts


def say_grid(program: Program, values: Mapping[str, Any], ranks: int, nodes: int) -> None:
    """Print that the last dimension of a program's grid is not a node, where there are several nodes."""
    last, own = last_dimension(program), ranks // nodes
    if nodes > 1 and ranks % nodes == 0 and last is not None and values.get(last, own) != own:
        say(f"{program.name}: {last}={values[last]} is not the {own} ranks of a node: --set {last}={own}")


def say_built_in(module: compiler.Module, program: Program, more: str = "") -> None:
    """Print that the built-in schedule is used, if the program has others. more: text on another way to use those."""
    names = [one.name for one in module.schedules_of(program)]
    if names and DEFAULT not in names:
        say(f"the built-in schedule is taken; {program.name} has {', '.join(names)}: --schedule NAME takes one{more}")


def suggested(
    program: Program, name: str | None, machine: Machine | str | None, options: Mapping[str, Any], *, quiet: bool
) -> Suggestion | None:
    """Return the schedule that the model finds for a program that has none, and print it, to be pasted.

    name: --schedule, with which nothing is searched. machine: a description, or the name of a target, for the fastest
    described machine that has it. options: those of `found`.
    """
    if name is not None or program.schedules:
        return None
    from tilelink.simulator.machine import machine_with
    from tilelink.tuning.found import found

    described = machine_with(machine) if isinstance(machine, str) else machine
    if described is None:
        return None
    one = found(program, machine=described, **options)
    if one is not None and not quiet:
        say(f"{one} (--schedule {DEFAULT}); pasted into the file it takes the place of that:\n{one.text.rstrip()}")
    return one


@contextmanager
def patience(what: str, seconds: float, quiet: bool = False, hint: str = SMALLER) -> Generator[None]:
    """Print the activity, its estimated time and a hint if the block runs longer than PATIENCE_S."""
    about = f"about {round(seconds):,} s on an idle machine" if seconds >= 2 * PATIENCE_S else "soon done"
    text = f"still {what} ({about}); {hint}"
    timer = Timer(PATIENCE_S, say, [text])
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def progress(
    quiet: bool = False, hint: str = "--set gives smaller sizes, --schedule takes one schedule"
) -> Generator[Callable[[str], None]]:
    """Print what a command is doing after PATIENCE_S, and again after twice as long each time, a minute at most.

    hint: how to make it take less, which is said once. Yields the function that the block calls with what it does next.
    """
    doing, done, begin = ["beginning"], Event(), monotonic()

    def watch() -> None:
        interval, more = PATIENCE_S, f"; {hint}"
        while not done.wait(interval):
            say(f"after {monotonic() - begin:.0f} s: {doing[0]}{more}")
            interval, more = min(2 * interval, MOST_S), ""

    thread = Thread(target=watch, daemon=True)
    if not quiet:
        thread.start()
    try:
        yield lambda text: doing.__setitem__(0, text)
    finally:
        done.set()
        if not quiet:
            thread.join()  # so that no notice comes after the results


# Estimates ---------------------------------------------------------------------------------------------------


def interpreted_seconds(bound: Bound, launches: int) -> float:
    """Return the approximate seconds of launches on CPU ranks."""
    steps = sum(stage.total * _steps(bound, stage, stage.stage.body) for stage in bound.stages.values())
    programs = bound.ranks * sum(kernel.programs for kernel in bound.kernels)
    return STEP_S * launches * steps * bound.ranks / max(1, min(os.cpu_count() or 1, programs))


def _steps(bound: Bound, stage: BoundStage, body: tuple[Statement, ...]) -> int:
    """Return the approximate number of interpreter steps of one tile."""
    total = 0
    for statement in body:
        match statement:
            case For(indices=indices, body=inner):
                total += prod(stage.count(decl.name) for decl in indices) * _steps(bound, stage, inner)
            case If(then=then, orelse=orelse):
                total += max(_steps(bound, stage, then), _steps(bound, stage, orelse))
            case Assign() | Store() | Transfer():
                total += 1 + _blocks(bound, stage, statement)
            case _:
                total += 1
    return total


def _blocks(bound: Bound, stage: BoundStage, statement: Statement) -> int:
    """Return the number of K blocks of a statement's products over whole dimensions."""
    value, total = value_of(statement), 0
    for part in values(value) if value is not None else ():
        if isinstance(part, Dot) and isinstance(part.left, Read) and isinstance(part.left.region.coords[-1], Whole):
            total += -(-bound.tensors[part.left.region.tensor].shape[-1] // stage.block)
    return total


def bound_of(program: Program, schedule: Schedule | None, options: Mapping[str, Any]) -> Bound:
    """Return a program bound as the command will plan it."""
    names = ("ranks", "nodes", "dims", "dtype")
    return compiler.bound(program, schedule, **{name: options[name] for name in names if name in options})
