"""`tilelink list`: the programs of the library or of a file, with their sizes and schedules and a line on each."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from tilelink import compiler, files
from tilelink.cli.options import AsJson, designed_errors, schedule_name, schedules_named, write
from tilelink.frontend.variants import open_names
from tilelink.ir.printer import print_program
from tilelink.ir.program import Program

_PROGRAM = re.compile(r"^program\s+(\w+)")
_SENTENCE = re.compile(r"(?<=[.!?])\s")
FileOrNone = Annotated[
    str | None, typer.Argument(metavar="FILE", help="a .tl file, or a name of the library; else all of the library")
]


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """A program: its name with its parameters, what it leaves open, and the first sentence of its own comment."""

    name: str
    head: str
    open: tuple[str, ...]
    about: str
    schedules: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file with its programs, and the first sentence of the comment at its beginning."""

    name: str
    file: str
    about: str
    programs: tuple[_Listed, ...]


def list(file: FileOrNone = None, as_json: AsJson = False) -> None:
    """List the programs of the operator library, or of a file: what they are, their sizes and their schedules."""
    with designed_errors(as_json):
        found = [_of_file(module) for module in (compiler.library() if file is None else (compiler.load(file),))]
        if as_json:
            return write(json.dumps({"files": [asdict(one) for one in found]}))
        for one in found:
            write(f"{one.name}: {one.about}" if one.about else one.name)
            for program in one.programs:
                left = f", --set also {', '.join(program.open)}" if program.open else ""
                write(f"  {program.head}{left}: {', '.join(program.schedules)}")
                if program.about:
                    write(f"    {program.about}")
        if file is None:
            write("`tilelink check NAME` proves one, `show` prints it, `run` runs it: NAME is of a file or a program")


def _of_file(module: compiler.Module) -> _File:
    lines = files.read(Path(module.file)).decode("utf-8-sig").splitlines()
    first = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    heads = {found[1]: n for n, line in enumerate(lines) if (found := _PROGRAM.match(line))}
    return _File(
        name=Path(module.file).stem,
        file=module.file,
        about=_sentence(lines[:first]),
        programs=tuple(
            _listed(module, program, _above(lines, heads.get(program.name, 0), first)) for program in module.programs
        ),
    )


def _listed(module: compiler.Module, program: Program, comment: Sequence[str]) -> _Listed:
    head = print_program(program).partition("\n")[0].removeprefix("program ").removesuffix(":")
    schedules = tuple(schedule_name(one) for one in schedules_named(module, program, None))
    left = tuple(open_names(program))
    return _Listed(name=program.name, head=head, open=left, about=_sentence(comment), schedules=schedules)


def _above(lines: Sequence[str], at: int, first: int) -> Sequence[str]:
    """Return the comment right above a line, without that of the file, which ends before line `first`."""
    begin = at
    while begin > first and lines[begin - 1].startswith("#"):
        begin -= 1
    return lines[begin:at]


def _sentence(comment: Sequence[str]) -> str:
    """Return the first sentence of a comment."""
    return _SENTENCE.split(" ".join(line.removeprefix("#").strip() for line in comment), maxsplit=1)[0]
