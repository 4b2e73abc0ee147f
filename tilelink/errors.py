"""Errors for users: one class per kind of mistake, each with a message, a source location and a hint."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import wraps
from types import FunctionType
from typing import ParamSpec, TypeVar

from tilelink import files

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


@dataclass(frozen=True, kw_only=True)
class Location:
    """A location in a source file. Lines and columns count from one; columns and length are in characters."""

    file: str
    line: int
    column: int = 1
    length: int = 1
    text: str | None = field(default=None, repr=False)

    def source_line(self) -> str | None:
        """Return the source line, from `text` or from the file; None if there is none."""
        if self.text is not None:
            return self.text
        try:
            lines = files.lines_of(files.read(self.file).decode("utf-8-sig", "replace"))
        except OSError:
            return None
        return lines[self.line - 1] if 0 < self.line <= len(lines) else None

    def render(self) -> str:
        """Return `file:line:column`, the source line, and carets under the location."""
        head = f"{self.file}:{self.line}:{self.column}"
        line = self.source_line()
        if line is None:
            return head
        before = "".join("\t" if c == "\t" else " " for c in line[: self.column - 1]).ljust(self.column - 1)
        return f"{head}\n    {line.rstrip()}\n    {before}{'^' * max(1, self.length)}"


def did_you_mean(name: str, known: Iterable[str], then: str = "") -> str:
    """Return the hint `did you mean X?` if a known name is similar, followed by the text `then` in any case."""
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}? {then}".rstrip() if near else then


class TileLinkError(Exception):
    """Base class of all errors for users: a message, locations in the source, and a hint."""

    def __init__(
        self,
        message: str,
        *,
        location: Location | None = None,
        related: Location | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.location = location
        self.related = related
        self.hint = hint

    def __str__(self) -> str:
        parts = [f"{type(self).__name__}: {self.message}"]
        if self.location:
            parts.append("  at " + self.location.render())
        if self.related:
            parts.append("  see " + self.related.render())
        if self.hint:
            parts.append(f"  hint: {self.hint}")
        return files.shown("\n".join(parts))

    def __reduce__(self) -> tuple[object, tuple[object, ...], dict[str, object]]:
        return (_rebuild, (type(self), self.message), self.__dict__)


def _rebuild(cls: type[TileLinkError], message: str) -> TileLinkError:
    """Unpickle an error without calling its constructor, whose signature varies; errors cross processes."""
    error = cls.__new__(cls, message)
    Exception.__init__(error, message)
    return error


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that users call: the traceback of what it refuses ends with their call.

    The frames inside are of no use to who made the mistake, which the message shows. `python -X dev` keeps them.
    """

    @wraps(function)
    def outermost(*args: P.args, **named: P.kwargs) -> R:
        try:
            return function(*args, **named)
        except TileLinkError as error:
            if not sys.flags.dev_mode:
                error.__traceback__ = None  # it grows again from the caller on
            raise

    return outermost


def public_methods(kind: type[C]) -> type[C]:
    """Decorate a class whose methods users call: each without a leading underscore, and calls, are `public`."""
    for name, one in [*vars(kind).items()]:
        if isinstance(one, FunctionType) and (name == "__call__" or not name.startswith("_")):
            setattr(kind, name, public(one))
    return kind


class SeveralErrors(TileLinkError):
    """Several mistakes in one file or program. errors: all of them, in the order of their locations."""

    def __init__(self, errors: Sequence[TileLinkError]) -> None:
        ordered = sorted(errors, key=lambda e: (e.location.line, e.location.column) if e.location else (0, 0))
        super().__init__(f"{len(ordered)} mistakes", location=ordered[0].location, hint=ordered[0].hint)
        self.errors = tuple(ordered)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.errors)) + f"\n\n{self.message}"


class ConsequenceError(TileLinkError):
    """An error that only follows from another mistake. `Mistakes` drops it, so no user sees it."""


@contextmanager
def foreign(what: str, kind: type[TileLinkError], hint: str = "mend it, or leave it out") -> Generator[None]:
    """Convert an exception of user code that the block calls to an error of class `kind`, located at the failed line.

    what: the beginning of the message. TileLinkError, StopIteration and MemoryError pass unchanged.
    """
    try:
        yield
    except (TileLinkError, StopIteration, MemoryError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[2:]  # without the frames of `yield` and of the block
        inner = [frame for frame in frames if not frame.filename.startswith("<") and "importlib" not in frame.filename]
        location = None
        if inner:
            location = Location(file=inner[-1].filename, line=inner[-1].lineno or 1, column=(inner[-1].colno or 0) + 1)
        summary = "".join(traceback.format_exception_only(error)).strip()
        raise kind(f"{what}: {summary}", location=location, hint=hint) from error


class Mistakes:
    """A collection of errors, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self.errors: list[TileLinkError] = []
        self._seen: set[tuple[type[TileLinkError], str, Location | None]] = set()

    @contextmanager
    def noted(self) -> Generator[None]:
        """Add the error that the block raises; execution continues after the block."""
        try:
            yield
        except TileLinkError as error:
            self.add(error)

    def add(self, error: TileLinkError) -> None:
        """Add an error, or each of SeveralErrors. Duplicates and ConsequenceErrors are dropped."""
        if isinstance(error, SeveralErrors):
            for member in error.errors:
                self.add(member)
            return
        key = (type(error), error.message, error.location)
        if key not in self._seen and not isinstance(error, ConsequenceError):
            self._seen.add(key)
            self.errors.append(error)

    def raise_any(self) -> None:
        """Raise the error if there is exactly one, SeveralErrors if there are more."""
        if len(self.errors) > 1:
            raise SeveralErrors(self.errors)
        if self.errors:
            raise self.errors[0]


class SettingsError(TileLinkError):
    """An environment variable or a setting has an invalid value."""


class UnknownTargetError(TileLinkError):
    """There is no compilation target of that name."""


class MachineError(TileLinkError):
    """The description of a machine is missing or invalid."""


class DataError(TileLinkError):
    """A data file cannot be read or has invalid content."""


class CostError(TileLinkError):
    """A cost model returned something other than a time."""


class SearchError(TileLinkError):
    """The arguments of a search are invalid, or its strategy proposed something other than a point of the space."""


class OutputError(TileLinkError):
    """A requested file cannot be written, or the package that draws it is missing."""


class ParseError(TileLinkError):
    """The text is not in the language."""


class UnknownNameError(TileLinkError):
    """A name that is not declared or has no value yet."""


def no_schedule(
    name: str, known: Mapping[str, Sequence[str]], *, hint: str = "", location: Location | None = None
) -> UnknownNameError:
    """Return the error of a name that is no schedule of some programs.

    known: program -> the names that its schedules have. hint: in place of these.
    """
    there = "; ".join(f"{program} has {', '.join(names) or 'no schedule'}" for program, names in known.items())
    hint = hint or did_you_mean(name, sorted({one for names in known.values() for one in names}), there)
    return UnknownNameError(f"no schedule {name!r} for {', '.join(known)}", location=location, hint=hint)


class DuplicateNameError(TileLinkError):
    """A name declared twice."""


class ShapeError(TileLinkError):
    """Shapes that do not match."""


class DtypeError(TileLinkError):
    """A value whose dtype is not valid in its context."""


class RemoteAccessError(TileLinkError):
    """An access to another rank's tensor that is not symmetric, or in the wrong direction."""


class WriteError(TileLinkError):
    """A write to a tensor that cannot be written."""


class StageError(TileLinkError):
    """A statement that is not allowed in this kind of stage, or outside of a program."""


class ScheduleError(TileLinkError):
    """A schedule that does not fit its program."""


class OrderError(ScheduleError):
    """An order that is not a permutation of the index's values."""


class TileSizeError(ScheduleError):
    """A tile size for something that cannot have one."""


class BindingError(TileLinkError):
    """A dimension, a parameter or another argument of a program without a valid value."""


class CapacityError(TileLinkError):
    """An earlier launch had more data than there was room for, and has left the rest out."""


class VerificationError(TileLinkError):
    """The plan is not safe. rule: the name of the violated rule, one of eleven."""

    rule = "verification"


class CoverageError(VerificationError):
    """Rule `coverage`: an element of an output is not written exactly once, or what is read is never written."""

    rule = "coverage"


class PromiseError(CoverageError):
    """An entry that a stage has stored in an index tensor is beyond its bound, or breaks a promise."""


class OrderingError(VerificationError):
    """Rule `ordering`: a read is not ordered after the write it depends on."""

    rule = "ordering"


class AccountingError(VerificationError):
    """Rule `accounting`: the number of notifies of a channel does not match the threshold of a wait."""

    rule = "accounting"


class ProgressError(VerificationError):
    """Rule `progress`: tiles wait for each other in a cycle, or for a tile that can never start."""

    rule = "progress"


class ExclusiveWriteError(VerificationError):
    """Rule `exclusive_writes`: two unordered writes to one element."""

    rule = "exclusive writes"


class ReuseError(VerificationError):
    """Rule `reuse`: a later launch can overwrite data that an earlier one still reads."""

    rule = "reuse"


class NetworkError(VerificationError):
    """Rule `network`: an access or a signal reaches another node in a way that the network does not have."""

    rule = "network"


class RolesError(VerificationError):
    """Rule `roles`: roles of warps change the order of their program, or use a buffer too early."""

    rule = "roles"


class TilesError(VerificationError):
    """Rule `tiles`: a kernel that walks the tiles of a launch leaves one out, or its tiles depend on their program."""

    rule = "tiles"


class StepsError(VerificationError):
    """Rule `steps`: a slot of a tensor is used for a step before the step that it holds has been read."""

    rule = "steps"


class WordsError(VerificationError):
    """Rule `words`: a tensor that travels by words of data and flag is accessed in another way."""

    rule = "words"


class EmitError(TileLinkError):
    """The backend cannot generate code for this construct and target, or generated code was changed."""


class LaunchFailure(TileLinkError):
    """A launch that hangs, or whose rank died.

    witnesses: what ranks know of it (tilelink/dump.py). diagnosis: what holds it up, or "". dumps: the files of those.
    """

    witnesses: tuple[object, ...] = ()
    diagnosis: str = ""
    dumps: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [super().__str__()]
        if self.diagnosis:
            parts.append(files.shown(f"  because: {self.diagnosis}"))
        if self.dumps:
            parts.append(files.shown(f"  more: tilelink diagnose {os.path.dirname(self.dumps[0])}"))
        return "\n".join(parts)


class RankError(LaunchFailure):
    """A rank failed during a run; the message includes the traceback of its process.

    rank, stream, program: identify the failed process; stream and program are None if a rank has one process.
    details: the text of the traceback, empty if a signal killed the process.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        stream: str | None = None,
        program: int | None = None,
        details: str = "",
        hint: str | None = None,
    ) -> None:
        super().__init__(f"{message}\n{details.rstrip()}" if details else message, hint=hint)
        self.rank = rank
        self.stream = stream
        self.program = program
        self.details = details


class OverlapError(RankError):
    """Two launches of a kernel overlapped on a GPU rank. The GPU stopped before results could be mistaken for good."""


class LaunchOrderError(RankError):
    """Ranks launch a kernel in different orders, eagerly or by replays. TILELINK_CHECK=1 compares them."""


class CallError(RankError):
    """A function that a program calls (`call module.function(...)`) failed on a rank.

    location: the failed line of the function, None if the call did not match its signature.
    rank, stream, program: identify the process. details: the whole traceback, which is not part of the message; on CPU
    ranks it is the error's `__cause__` too.
    """

    def __init__(
        self,
        message: str,
        *,
        location: Location | None = None,
        rank: int | None = None,
        stream: str | None = None,
        program: int | None = None,
        details: str = "",
        hint: str | None = None,
    ) -> None:
        super().__init__(message, rank=rank, stream=stream, program=program, hint=hint)
        self.location = location
        self.details = details


class DeadlineError(LaunchFailure):
    """A wait exceeded its deadline.

    `tile` of `stage` on `rank` waited `seconds` for `channel` to reach `expected`; its last value was `seen`.
    stage_name, channel_name: the names in the program, None if unknown.
    waiting: one line for each other process, which states what it was waiting for at that time.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        stage: int | None = None,
        tile: int | None = None,
        channel: int | None = None,
        seen: int | None = None,
        expected: int | None = None,
        seconds: float | None = None,
        stage_name: str | None = None,
        channel_name: str | None = None,
        waiting: tuple[str, ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.rank = rank
        self.stage = stage
        self.tile = tile
        self.channel = channel
        self.seen = seen
        self.expected = expected
        self.seconds = seconds
        self.stage_name = stage_name
        self.channel_name = channel_name
        self.waiting = waiting

    def __str__(self) -> str:
        if not self.waiting:
            return super().__str__()
        return "\n    ".join([f"{super().__str__()}\n  then:", *self.waiting])
