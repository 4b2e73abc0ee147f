"""Files of programs and schedules, the operator library, and names of both."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from tilelink import files
from tilelink.errors import ParseError, UnknownNameError, did_you_mean, no_schedule, public
from tilelink.frontend.parser import parse_text
from tilelink.ir.program import Program
from tilelink.scheduling.schedule import Schedule

DEFAULT = "default"
"""Name of the built-in schedule."""
PROGRAMS = Path(__file__).parents[1] / "programs"


@dataclass(frozen=True, kw_only=True)
class Module:
    """The declarations of a `.tl` file."""

    file: str
    programs: tuple[Program, ...]
    schedules: tuple[Schedule, ...]

    @public
    def program(self, name: str | None = None) -> Program:
        """Return the program of that name. None: the program that is named like the file, or the only one.

        Raises UnknownNameError, which lists the names of the file.
        """
        names = ", ".join(p.name for p in self.programs)
        matches = [p for p in self.programs if name in (None, p.name)]
        if name is None and len(matches) > 1:
            matches = [p for p in matches if p.name == Path(self.file).stem] or matches
        if not matches:
            what = f"no program {name!r} in {self.file}" if name else f"no program in {self.file}"
            raise UnknownNameError(what, hint=f"its programs are {names}" if names else "program NAME(...):")
        if len(matches) > 1:
            hint = f"choose one, with --program or module.program(...): {names}"
            raise UnknownNameError(f"{self.file} has several programs", hint=hint)
        return matches[0]

    def schedules_of(self, program: Program) -> tuple[Schedule, ...]:
        """Return the schedules that the file has for a program."""
        return tuple(s for s in self.schedules if s.program == program.name)

    @public
    def schedule(self, name: str, program: Program | str | None = None) -> Schedule:
        """Return the schedule of that name for a program: the built-in one as "default", if the file has no such one.

        program: one, or its name in the file; None as of `program`.

        Raises UnknownNameError, with the names of the file.
        """
        program = program if isinstance(program, Program) else self.program(program)
        of_program = self.schedules_of(program)
        for schedule in of_program:
            if schedule.name == name:
                return schedule
        if name == DEFAULT:
            return Schedule(name=DEFAULT, program=program.name)
        raise no_schedule(name, {program.name: [*(s.name for s in of_program), DEFAULT]})


@public
def load(name: str | Path) -> Module:
    """Return the programs and schedules of a `.tl` file, or of the operator library by file or program name.

    A library program that the name itself refers to is returned alone. Raises UnknownNameError if the name is
    neither a file nor in the library, ParseError and related errors for a file that is not in the language.
    """
    path = _path_of(name)
    if files.is_file(path):
        if path.suffix == ".py":
            hint = "run it with Python; print(program) is the text of a program, for a file of its own"
            raise ParseError(f"{name} is Python, not a text of programs", hint=hint)
        try:
            return _parse_file(path)
        except UnicodeDecodeError:
            raise ParseError(f"{name} is not text", hint="programs are UTF-8 text; save the file as such") from None
        except OSError as error:
            hint = "see that it can be read, or write its text to another file"
            raise ParseError(f"{name} cannot be read: {files.reason(error)}", hint=hint) from None
    try:
        return library_module(str(name))
    except UnknownNameError as error:
        what = f"{name} is {kind}" if (kind := files.kind(path)) else f"no file {str(name)!r}"
        raise UnknownNameError(what, hint=error.hint) from None


def _path_of(name: object) -> Path:
    """Return the path that a name is. Raises UnknownNameError for what is none; callers need not be typed."""
    try:
        return Path(name)  # pyright: ignore[reportArgumentType]
    except TypeError:
        hint = "load takes the path of a file, or a name of the library; tilelink.parse(TEXT) takes the text itself"
        raise UnknownNameError(f"the name of a file is of type {type(name).__name__}", hint=hint) from None


def library_module(name: str) -> Module:
    """Return the library file of that name, or else only the library program of that name.

    Files in the current folder are ignored. Raises UnknownNameError for a name that is not in the library.
    """
    if (path := PROGRAMS / f"{name}.tl") in _library_files():
        return _parse_file(path)  # most names are those of files, so that not all files need to be read
    head = re.compile(rf"^program\s+{re.escape(name)}\b", re.MULTILINE)
    for path in _library_files():
        if not head.search(files.read(path).decode("utf-8-sig")):
            continue  # to parse all files takes longer than most commands
        module = _parse_file(path)
        for program in module.programs:
            if program.name == name:
                return Module(file=module.file, programs=(program,), schedules=module.schedules_of(program))
    modules = library()
    names = sorted({p.name for m in modules for p in m.programs} | {Path(m.file).stem for m in modules})
    hint = did_you_mean(name, names) or f"write a path, or a name of the library: {', '.join(names)}"
    raise UnknownNameError(f"no program {name!r} in the library", hint=hint)


def library() -> tuple[Module, ...]:
    """Return the operator library."""
    return tuple(map(_parse_file, _library_files()))


def _library_files() -> list[Path]:
    return sorted(PROGRAMS.glob("*.tl"))


def _parse_file(path: Path) -> Module:
    return parse(files.read(path).decode("utf-8-sig"), str(path))  # some editors write a byte order mark


@public
def parse(text: str, file: str = "<text>") -> Module:
    """Return the programs and schedules of a text. `file` names it in errors."""
    return _parsed(text, file)


@lru_cache(maxsize=512)  # modules are immutable, so the same text of a file is the same module
def _parsed(text: str, file: str) -> Module:
    found = parse_text(text, file, _written_in_library, _published)
    return Module(file=file, programs=tuple(found.programs), schedules=tuple(found.schedules))


def _written_in_library(name: str) -> Program | None:
    """The program of the library that a file writes out, of which other files may have variants; None if none does."""
    head = re.compile(rf"^program {re.escape(name)}\(", re.MULTILINE)
    own = (path for path in _library_files() if head.search(files.read(path).decode("utf-8-sig")))
    return next((_parse_file(path).program(name) for path in own), None)


def _published(name: str) -> tuple[Schedule, ...]:
    """The schedules that the library has for a program of that name; none if it has no such program."""
    head = re.compile(rf"^schedule\s+\w+\s+for\s+{re.escape(name)}\b", re.MULTILINE)
    own = (path for path in _library_files() if head.search(files.read(path).decode("utf-8-sig")))
    return tuple(one for path in own for one in _parse_file(path).schedules if one.program == name)


def schedule_of(program: Program, schedule: Schedule | str | None) -> Schedule | None:
    """Return the schedule of a name for a program, None for the built-in one; a Schedule as it is.

    The name is that of a schedule in the program's file, "default" (or None) for the file's own of that name or else
    the built-in one, or "program:name" for a schedule of the library for another program, whose stages, tensors and
    indices this one has. Raises UnknownNameError for any other name.
    """
    schedule = DEFAULT if schedule is None else schedule
    if not isinstance(schedule, str):
        return schedule
    own = [one for one in program.schedules if isinstance(one, Schedule)]
    of, _, name = schedule.rpartition(":")
    known = own if of in ("", program.name) else _published(of)
    for one in known:
        if one.name == name:
            return replace(one, program=program.name)
    if schedule == DEFAULT:
        return None
    own_none = "it has none of its own: give a Schedule, a 'PROGRAM:NAME' of the library, or no schedule"
    none = f"the library has no schedule for a program {of!r}" if of else own_none
    raise no_schedule(name, {of or program.name: [one.name for one in known]}, hint="" if known else none)
