"""What commands say before and while they work: what was chosen for you, and how long it may take."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from threading import Timer
from typing import Any

import typer

from tilelink import compiler
from tilelink.cli.options import DEFAULT, schedule_name, values_text
from tilelink.ir.program import Assign, Dot, For, If, Program, Read, Statement, Store, Transfer
from tilelink.ir.scalar import Whole
from tilelink.ir.visitor import value_of, values
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.scheduling.schedule import Schedule

PATIENCE_S = 5.0
"""After so long without a word a command says what it is doing."""
STEP_S = 4e-3
"""What one step of an interpreted tile takes a core, roughly: a load, a product of blocks, a store, a signal."""
PLANNED_S = 4e-5
"""What planning, proving and simulating take for a tile, roughly."""


def say(text: str) -> None:
    """Beside the results, which alone are on the standard output."""
    typer.echo(text, err=True)


def introduce(bound: Bound, sets: Sequence[str], schedule: Schedule | None) -> None:
    """The sizes, with a word about those that nobody gave; how many tiles they make."""
    names = {text.partition("=")[0].strip() for text in sets}
    chosen = [name for name in bound.numbers if name not in names]
    what = f"{bound.source.name} with {schedule_name(schedule)} on {bound.ranks} ranks"
    also = f" ({', '.join(chosen)} chosen for you: --set {chosen[0]}=NUMBER)" if chosen else ""
    sizes = f", {values_text(bound.numbers)}" if bound.numbers else ""
    say(f"{what}{sizes}{also}: {tiles_of(bound):,} tiles")


def say_built_in(module: compiler.Module, program: Program, more: str = "") -> None:
    """That a program's own schedules are left aside, if it has any. more: another way to take them."""
    names = [one.name for one in module.schedules_of(program)]
    if names and DEFAULT not in names:
        say(f"the built-in schedule is taken; {program.name} has {', '.join(names)}: --schedule NAME takes one{more}")


@contextmanager
def patience(what: str, seconds: float, quiet: bool = False) -> Generator[None]:
    """After a while of silence says what is being done, and about how long that takes."""
    about = f"about {round(seconds):,} s on a machine that is free" if seconds >= 2 * PATIENCE_S else "soon done"
    text = f"still {what} ({about}); --set gives smaller sizes, --schedule other tiles"
    timer = Timer(PATIENCE_S, say, [text])
    timer.daemon = True
    if not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


# Estimates ---------------------------------------------------------------------------------------------------


def tiles_of(bound: Bound) -> int:
    """Tiles of all ranks."""
    return bound.ranks * sum(stage.total for stage in bound.stages.values())


def interpreted_seconds(bound: Bound, launches: int) -> float:
    """What launches take on CPU ranks, roughly."""
    steps = sum(stage.total * _steps(bound, stage, stage.stage.body) for stage in bound.stages.values())
    programs = bound.ranks * sum(kernel.programs for kernel in bound.kernels)
    return STEP_S * launches * steps * bound.ranks / max(1, min(os.cpu_count() or 1, programs))


def _steps(bound: Bound, stage: BoundStage, body: tuple[Statement, ...]) -> int:
    """How often the interpreter does something for one tile."""
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
    """Blocks of the whole dimensions that a statement's products contract."""
    value, total = value_of(statement), 0
    for part in values(value) if value is not None else ():
        if isinstance(part, Dot) and isinstance(part.left, Read) and isinstance(part.left.region.coords[-1], Whole):
            total += -(-bound.tensors[part.left.region.tensor].shape[-1] // stage.block)
    return total


def bound_of(program: Program, schedule: Schedule | None, options: Mapping[str, Any]) -> Bound:
    """A program bound as a command is about to plan it."""
    return compiler.bound(program, schedule, **{name: options[name] for name in ("ranks", "dims", "dtype")})
