"""Shared parts of the commands: options, defaults, errors and output."""

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

import numpy as np
import typer

from tilelink import compiler
from tilelink.compiler.modules import DEFAULT
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
    no_schedule,
)
from tilelink.frontend.variants import open_names, variant
from tilelink.ir.depth import deep
from tilelink.ir.program import Program
from tilelink.ir.scalar import Param, Scalar, Whole, walk
from tilelink.ir.typing import infer
from tilelink.ir.visitor import stage_regions
from tilelink.scheduling.schedule import Schedule

FOLDER = "name a file in a folder that exists"
DEFAULT_DIMS = (80, 96, 48, 40, 56, 24)
"""Default sizes of tiled dimensions: small, and not multiples of the usual tiles."""
DIMS_ON_GPU = (1024, 2048, 512, 256, 128, 64)
"""The same for kernels of a GPU: tiles of the library's schedules for GPUs divide them."""
LARGE_DIMS = (1024, 1024, 4096, 1024, 128, 64)
"""Default sizes of dimensions where times are predicted or measured."""
COUNTS = (4, 2, 3, 6)
"""Default sizes of dimensions without tiles of more than one element: numbers of layers, heads, experts, steps."""
_BOOLS = {"true": True, "false": False}
DEFAULT_VALUES: dict[str, float | bool] = {"f32": 0.5, "i32": 1, "bool": True}


class Dtype(StrEnum):
    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"


DTYPE = Dtype.bf16
"""The element type where none is given: what models have, and what products of GPUs take. It is the same whether a
program is proved, shown, run or timed, so that all of that is of one program."""

File = Annotated[str, typer.Argument(metavar="FILE", help="a .tl file, or a name of the operator library")]
ProgramName = Annotated[str | None, typer.Option("--program", "-p", help="a program of the file")]
ScheduleName = Annotated[
    str | None, typer.Option("--schedule", "-s", help='a schedule of the file; "default" is the built-in')
]
Ranks = Annotated[int, typer.Option("--ranks", "-n", min=1, help="number of ranks")]
Nodes = Annotated[
    int, typer.Option("--nodes", min=1, help="nodes that the ranks fill; between them the network's rules hold")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="a dimension or parameter, as in Ms=256; also a function, an element type or an input that may be left "
        "out, as in activation=silu, sums=f32, bias=true; several, as in --set M=256 N=64",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object instead of text")]
Element = Annotated[Dtype, typer.Option("--dtype", help="the element type of tensors that have none of their own")]
MachineName = Annotated[str, typer.Option("--machine", "-m", help="a shipped machine or a JSON file")]
RoutingName = Annotated[
    str, typer.Option("--routing", help="how index tensors are drawn: uniform, zipf:1.2, one, empty, full, or a file")
]
DrawsCount = Annotated[int, typer.Option("--draws", min=1, help="launches with other index tensors; times are means")]
CostName = Annotated[str | None, typer.Option("--cost", help="your cost model, as module:class")]


# Choices -----------------------------------------------------------------------------------------------------


def schedules_named(module: compiler.Module, program: Program, name: str | None) -> list[Schedule | None]:
    """Return the schedule of a name (None: the built-in defaults), or, without a name, all schedules."""
    declared = module.schedules_of(program)
    own = any(s.name == DEFAULT for s in declared)  # replaces the built-in schedule
    if name is None:
        return [*declared] if own else [None, *declared]
    if name == DEFAULT and not own:
        return [None]
    return [module.schedule(name, program)]


def programs_with(
    module: compiler.Module, programs: Sequence[Program], name: str | None
) -> tuple[list[Program], list[Program]]:
    """Return the programs with a schedule of a name, and the other programs. Raises UnknownNameError if none has it."""
    if name in (None, DEFAULT):
        return list(programs), []
    able = [one for one in programs if any(s.name == name for s in module.schedules_of(one))]
    if not able:
        raise no_schedule(str(name), {one.name: [s.name for s in module.schedules_of(one)] for one in programs})
    return able, [one for one in programs if one not in able]


def schedule_name(schedule: Schedule | None) -> str:
    return schedule.name if schedule else DEFAULT


def choices_of(program: Program, sets: list[str] | None) -> dict[str, str | bool]:
    """Return what --set chooses of what the program leaves open: functions, element types, optional inputs."""
    kinds, found = open_names(program), dict[str, str | bool]()
    for text in sets or []:
        name, _, value = (part.strip() for part in text.partition("="))
        if kinds.get(name) == "input" and value.lower() not in _BOOLS:
            hint = f"--set {name}=true takes it, --set {name}=false leaves it out"
            raise BindingError(f"--set {text}: {name} is an input of {program.name}", hint=hint)
        if name in kinds:
            found[name] = _BOOLS[value.lower()] if kinds[name] == "input" else value
    return found


def with_choices(program: Program, choices: Mapping[str, str | bool]) -> Program:
    """Return the variant of a program with these choices, under its own name, to which its schedules belong."""
    return variant(program, program.name, **choices) if choices else program


def default_dims(target: str) -> tuple[int, ...]:
    """Return the default sizes of dimensions for a target."""
    return DEFAULT_DIMS if target == "cpu" else DIMS_ON_GPU


def dims_of(
    program: Program,
    sets: list[str] | None,
    sizes: tuple[int, ...] = DEFAULT_DIMS,
    *,
    node_ranks: int | None = None,
    others: Sequence[Program] = (),
) -> dict[str, Any]:
    """Return a value for every parameter of the program: the given one, else a default.

    node_ranks: the ranks of a node, the default of the grid's last dimension; None on one node.
    others: programs that are taken besides, and of which a name may be.
    """
    kinds = open_names(program)
    given = dict(setting(text) for text in sets or [] if text.partition("=")[0].strip() not in kinds)
    names = {p.name: p.kind for p in program.params}
    if unknown := sorted(given.keys() - names.keys()):
        hint = did_you_mean(unknown[0], [*names, *kinds], f"it has {', '.join([*names, *kinds])}")
        if able := [one.name for one in others if any(unknown[0] == own.name for own in one.params)]:
            hint = f"{', '.join(able)} of the same file has it: --program takes one program"
        raise BindingError(f"{program.name} has no parameter {unknown[0]!r}", hint=hint)
    tiled = _tiled(program)
    spare = [name for name, kind in names.items() if kind == "dim"]
    large, small = [name for name in spare if name in tiled], [name for name in spare if name not in tiled]
    defaults: dict[str, Any] = {name: sizes[k % len(sizes)] for k, name in enumerate(large)}
    defaults |= {name: COUNTS[k % len(COUNTS)] for k, name in enumerate(small)}
    defaults |= {p.name: p.example for p in program.params if p.example is not None}
    usual = {name: DEFAULT_VALUES.get(kind, 1) for name, kind in names.items()}
    if node_ranks and (last := last_dimension(program)):
        usual[last] = node_ranks
    values = {**usual, **defaults, **given}
    whole = {name for name, value in values.items() if isinstance(value, float) and value.is_integer()}
    return {name: int(v) if name in whole and names[name] in ("dim", "i32") else v for name, v in values.items()}


def last_dimension(program: Program) -> str | None:
    """Return the parameter that is the size of the last dimension of a program's grid, or None."""
    size = program.grid[-1].size if program.grid else None
    return size.name if isinstance(size, Param) else None


def of_a_node(ranks: int, nodes: int) -> int | None:
    """Return the ranks of a node, None on one node."""
    return ranks // nodes if nodes > 1 else None


def _tiled(program: Program) -> set[str]:
    """Return the parameters along which a program has tiles or whole dimensions; the rest are only counts."""
    sizes: list[Scalar] = []
    for known in infer(program, Mistakes()).stages.values():
        sizes += [decl.extent for name, decl in known.indices.items() if name not in known.scalar_indices]
        for region in stage_regions(known.stage):
            shape = program.tensor(region.tensor).shape
            sizes += [n for coord, n in zip(region.coords, shape, strict=False) if isinstance(coord, Whole)]
    return {part.name for size in sizes for part in walk(size) if isinstance(part, Param)}


def setting(text: str) -> tuple[str, int | float | bool]:
    name, equals, value = text.partition("=")
    if equals and value.lower() in _BOOLS:
        return name.strip(), _BOOLS[value.lower()]
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
    """Return the object `module:name`, also of a module in the current folder. Raises UnknownNameError if it fails."""
    module, _, attribute = name.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    hint = "write module:name, as in mine:Model"
    with foreign(f"cannot import {name}", UnknownNameError, hint=hint if not module or not attribute else "mend it"):
        found = importlib.import_module(module)
    if not hasattr(found, attribute):
        own = [one for one in vars(found) if not one.startswith("_")]
        hint = did_you_mean(attribute, own, f"define {attribute} in {module}") if attribute else hint
        raise UnknownNameError(f"cannot import {name}: module {module} has no {attribute!r}", hint=hint)
    return getattr(found, attribute)


def random_tables(program: Program, dims: Mapping[str, Any], ranks: int, seed: int = 0) -> dict[str, Any]:
    if all(tensor.space != "table" for tensor in program.tensors):
        return {}  # without torch, whose import takes longer than most programs
    from tilelink.reference import trial

    tables = trial.random_tables(program, ranks=ranks, dims=dims, seed=seed)
    return {name: values.numpy() for name, values in tables.items()}


def check_routing(routing: str) -> None:
    """Raise BindingError if a text names no routing. Called before a program is compiled for it."""
    from tilelink.reference.routing import Routing

    Routing.parse(routing)


# Output ------------------------------------------------------------------------------------------------------


def cost_model(name: str | None) -> Any:
    """Return the cost model `module:class` (or object), or None. Raises UnknownNameError, or CostError if it fails."""
    found = imported(name) if name else None
    if not isinstance(found, type):
        return found
    with foreign(f"{name}() failed", CostError):
        return found()


def check_writable(*paths: str | Path | None) -> None:
    """Raise OutputError if a file cannot be written. Called before a run, whose result would otherwise be lost."""
    for path in (Path(one).absolute() for one in paths if one is not None):
        if not path.parent.is_dir():
            raise OutputError(f"{path} cannot be written: there is no folder {path.parent}", hint=FOLDER)
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise OutputError(f"{path} cannot be written", hint=FOLDER)


@contextmanager
def designed_errors(as_json: bool = False) -> Generator[None]:
    """Turn an error into its text and exit status 1, with a stack for programs of any nesting depth."""
    try:
        with deep():
            yield
    except TileLinkError as error:
        fail(error, as_json)
    except MemoryError as error:
        hint = "take smaller sizes, larger tiles or fewer ranks"
        fail(TileLinkError(f"not enough memory on this machine: {error}", hint=hint), as_json)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # The reader has closed the pipe: nothing may be flushed to it at exit.
        sys.stdout = None
        raise typer.Exit(0) from None


def fail(error: TileLinkError, as_json: bool) -> NoReturn:
    if as_json:
        write(json.dumps({"ok": False, "mistakes": mistakes_of(error)}))
    else:
        typer.echo(str(error), err=True)
    raise typer.Exit(1) from None


def mistakes_of(error: TileLinkError) -> list[dict[str, Any]]:
    """Return an error as JSON values: its class, message, locations and hint, and its complete text."""
    if isinstance(error, SeveralErrors):
        return [one for each in error.errors for one in mistakes_of(each)]
    places = {name: _place(value) for name, value in (("location", error.location), ("related", error.related))}
    return [{"error": type(error).__name__, "message": error.message, **places, "hint": error.hint, "text": str(error)}]


def _place(location: Location | None) -> dict[str, Any] | None:
    """Return a location as JSON values; lines and columns count from 1."""
    return location and {
        "file": location.file,
        "line": location.line,
        "column": location.column,
        "length": location.length,
    }


def write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)  # names of files in it need not be valid text
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def values_text(dims: Mapping[str, Any]) -> str:
    """Return names and values as text. A float is printed as the shortest text of its f32."""
    with np.errstate(over="ignore"):
        texts = {name: str(np.float32(v) if isinstance(v, float) else v) for name, v in dims.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def ranks_of(ranks: int, nodes: int) -> dict[str, int]:
    """Return the ranks of a report, and its nodes if there are several."""
    return {"ranks": ranks, "nodes": nodes} if nodes > 1 else {"ranks": ranks}


def ranks_text(report: Mapping[str, Any]) -> str:
    """Return the ranks of a report in words."""
    nodes = f" on {report['nodes']} nodes" if report.get("nodes", 1) > 1 else ""
    return f"{report['ranks']} ranks{nodes}"
