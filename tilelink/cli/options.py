"""What the commands share: their options, what is chosen where nothing is said, errors and output."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from tilelink import compiler
from tilelink.errors import (
    BindingError,
    CostError,
    Location,
    Mistakes,
    OutputError,
    SeveralErrors,
    TileLinkError,
    UnknownNameError,
    did_you_mean,
    foreign,
)
from tilelink.ir.depth import deep
from tilelink.ir.program import Program
from tilelink.ir.scalar import Param, Scalar, Whole, walk
from tilelink.ir.typing import infer
from tilelink.ir.visitor import stage_regions
from tilelink.scheduling.schedule import Schedule

DEFAULT = "default"
FOLDER = "name a file in a folder that exists"
DEFAULT_DIMS = (80, 96, 48, 40, 56, 24)
"""Sizes of tiled dimensions that nobody set: small, and no multiple of the usual tiles."""
COUNTS = (4, 2, 3, 6)
"""Sizes of dimensions that are never cut into tiles of more than one element: of layers, heads, experts, steps."""
DEFAULT_VALUES: dict[str, float | bool] = {"f32": 0.5, "i32": 1, "bool": True}


class Dtype(StrEnum):
    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"


File = Annotated[str, typer.Argument(metavar="FILE", help="a .tl file, or a name of the operator library")]
ProgramName = Annotated[str | None, typer.Option("--program", "-p", help="which program of the file")]
ScheduleName = Annotated[str | None, typer.Option("--schedule", "-s", help='which schedule; "default" is the built-in')]
Ranks = Annotated[int, typer.Option("--ranks", "-n", min=1, help="how many ranks")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="a dimension or parameter, as in Ms=256; repeatable")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object instead of text")]
Element = Annotated[Dtype, typer.Option("--dtype", help="the element type of tensors that have none of their own")]
MachineName = Annotated[str, typer.Option("--machine", "-m", help="a shipped machine or a JSON file")]
CostName = Annotated[str | None, typer.Option("--cost", help="your cost model, as module:class")]


# Choices -----------------------------------------------------------------------------------------------------


def schedules_named(module: compiler.Module, program: Program, name: str | None) -> list[Schedule | None]:
    """The schedule of that name (None: the built-in defaults), or without a name all that there are."""
    declared = module.schedules_of(program)
    own = any(s.name == DEFAULT for s in declared)  # it takes the place of the built-in one
    if name is None:
        return [*declared] if own else [None, *declared]
    if name == DEFAULT and not own:
        return [None]
    return [module.schedule(name, program)]


def programs_with(
    module: compiler.Module, programs: Sequence[Program], name: str | None
) -> tuple[list[Program], list[Program]]:
    """Those programs that have a schedule of that name, and the others. Raises UnknownNameError if none has it."""
    if name in (None, DEFAULT):
        return list(programs), []
    able = [one for one in programs if any(s.name == name for s in module.schedules_of(one))]
    if not able:
        own = {one.name: [s.name for s in module.schedules_of(one)] for one in programs}
        there = "; ".join(f"{program} has {', '.join(names) or 'none'}" for program, names in own.items())
        hint = did_you_mean(str(name), sorted({n for names in own.values() for n in names})) or there
        raise UnknownNameError(f"no schedule {name!r} for {', '.join(own)}", hint=hint)
    return able, [one for one in programs if one not in able]


def schedule_name(schedule: Schedule | None) -> str:
    return schedule.name if schedule else DEFAULT


def dims_of(program: Program, sets: list[str] | None, sizes: tuple[int, ...] = DEFAULT_DIMS) -> dict[str, Any]:
    """A value for every parameter of the program: what was set, else a default."""
    given = dict(setting(text) for text in sets or [])
    names = {p.name: p.kind for p in program.params}
    if unknown := sorted(given.keys() - names.keys()):
        raise BindingError(f"{program.name} has no parameter {unknown[0]!r}", hint=f"it has {', '.join(names)}")
    tiled = _tiled(program)
    spare = [name for name, kind in names.items() if kind == "dim"]
    large, small = [name for name in spare if name in tiled], [name for name in spare if name not in tiled]
    defaults = {name: sizes[k % len(sizes)] for k, name in enumerate(large)}
    defaults |= {name: COUNTS[k % len(COUNTS)] for k, name in enumerate(small)}
    values = {name: given.get(name, defaults.get(name, DEFAULT_VALUES.get(kind, 1))) for name, kind in names.items()}
    whole = {name for name, value in values.items() if isinstance(value, float) and value.is_integer()}
    return {name: int(v) if name in whole and names[name] in ("dim", "i32") else v for name, v in values.items()}


def _tiled(program: Program) -> set[str]:
    """The parameters along which a program has tiles or whole dimensions; others only count things."""
    sizes: list[Scalar] = []
    for known in infer(program, Mistakes()).stages.values():
        sizes += [decl.extent for name, decl in known.indices.items() if name not in known.scalar_indices]
        for region in stage_regions(known.stage):
            shape = program.tensor(region.tensor).shape
            sizes += [n for coord, n in zip(region.coords, shape, strict=False) if isinstance(coord, Whole)]
    return {part.name for size in sizes for part in walk(size) if isinstance(part, Param)}


def setting(text: str) -> tuple[str, int | float | bool]:
    name, equals, value = text.partition("=")
    words = {"true": True, "false": False}
    if equals and value.lower() in words:
        return name.strip(), words[value.lower()]
    for kind in (int, float):
        try:
            number = kind(value)
            if isfinite(number) or not any(map(str.isdigit, value)):  # inf and nan by name; 1e400 is neither
                return name.strip(), number
        except ValueError:
            continue
    hint = "write NAME=NUMBER, as in --set Ms=256 --set N=64, and true or false for a bool"
    raise BindingError(f"--set {text} sets nothing", hint=hint)


def imported(name: str) -> Any:
    """What `module:name` names; modules of the current folder are found. Raises UnknownNameError."""
    module, _, attribute = name.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    with foreign(f"cannot import {name}", UnknownNameError, hint="write module:name, as in mine:Model"):
        return getattr(importlib.import_module(module), attribute)


def random_tables(program: Program, dims: Mapping[str, Any], ranks: int, seed: int = 0) -> dict[str, Any]:
    if all(tensor.space != "table" for tensor in program.tensors):
        return {}  # without torch, whose import takes longer than most programs
    from tilelink.reference import trial

    tables = trial.random_tables(program, ranks=ranks, dims=dims, seed=seed)
    return {name: values.numpy() for name, values in tables.items()}


# Output ------------------------------------------------------------------------------------------------------


def cost_model(name: str | None) -> Any:
    """The cost model that `module:class` (or an object) names; None for no name. Raises UnknownNameError."""
    found = imported(name) if name else None
    if not isinstance(found, type):
        return found
    with foreign(f"{name}() failed", CostError):
        return found()


def check_writable(*paths: str | Path | None) -> None:
    """Raises OutputError for a file that cannot be written: before a run, whose result would be lost, not after it."""
    for path in (Path(one).absolute() for one in paths if one is not None):
        if not path.parent.is_dir():
            raise OutputError(f"{path} cannot be written: there is no folder {path.parent}", hint=FOLDER)
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise OutputError(f"{path} cannot be written", hint=FOLDER)


@contextmanager
def designed_errors(as_json: bool = False) -> Generator[None]:
    """Turns an error into its text and exit status 1; programs may be as deep as they may be."""
    try:
        with deep():
            yield
    except TileLinkError as error:
        fail(error, as_json)
    except MemoryError as error:
        hint = "take smaller sizes, larger tiles or fewer ranks"
        fail(TileLinkError(f"this machine has not enough memory: {error}", hint=hint), as_json)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing may be flushed to it at exit.
        sys.stdout = None
        raise typer.Exit(0) from None


def fail(error: TileLinkError, as_json: bool) -> NoReturn:
    if as_json:
        write(json.dumps({"ok": False, "mistakes": mistakes_of(error)}))
    else:
        typer.echo(str(error), err=True)
    raise typer.Exit(1) from None


def mistakes_of(error: TileLinkError) -> list[dict[str, Any]]:
    """An error for programs to read: its class, message, places and hint, and the text that people see."""
    if isinstance(error, SeveralErrors):
        return [one for each in error.errors for one in mistakes_of(each)]
    places = {name: _place(value) for name, value in (("location", error.location), ("related", error.related))}
    return [{"error": type(error).__name__, "message": error.message, **places, "hint": error.hint, "text": str(error)}]


def _place(place: Location | None) -> dict[str, Any] | None:
    """Lines and columns count from one."""
    return place and {"file": place.file, "line": place.line, "column": place.column, "length": place.length}


def write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)  # it may name files by names that are no text
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def values_text(dims: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in dims.items())
