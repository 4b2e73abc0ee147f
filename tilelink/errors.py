"""Every error a user can see: one class per mistake, with the place, what is wrong and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches

from tilelink import files


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place in a source file; lines and columns count from one."""

    file: str
    line: int
    column: int = 1
    length: int = 1
    text: str | None = field(default=None, repr=False)

    def source_line(self) -> str | None:
        """The line of source it points at, from memory or from the file."""
        if self.text is not None:
            return self.text
        try:
            lines = files.lines_of(files.read(self.file).decode("utf-8-sig", "replace"))
        except OSError:
            return None
        return lines[self.line - 1] if 0 < self.line <= len(lines) else None

    def render(self) -> str:
        """`file:line:column`, the line itself, and a caret under the place."""
        head = f"{self.file}:{self.line}:{self.column}"
        line = self.source_line()
        if line is None:
            return head
        before = "".join("\t" if c == "\t" else " " for c in line[: self.column - 1]).ljust(self.column - 1)
        return f"{head}\n    {line.rstrip()}\n    {before}{'^' * max(1, self.length)}"


def did_you_mean(name: str, known: Iterable[str], then: str = "") -> str:
    """`did you mean X?` where a known name is near, and behind it what is said in any case."""
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}? {then}".rstrip() if near else then


class TileLinkError(Exception):
    """Base of all designed errors: a message, places in the source, and a hint."""

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
    """Unpickle an error without knowing its constructor (errors cross processes)."""
    error = cls.__new__(cls, message)
    Exception.__init__(error, message)
    return error


class SeveralErrors(TileLinkError):
    """Several mistakes of one file or program: `errors` has each of them, in the order of their places."""

    def __init__(self, errors: Sequence[TileLinkError]) -> None:
        ordered = sorted(errors, key=lambda e: (e.location.line, e.location.column) if e.location else (0, 0))
        super().__init__(f"{len(ordered)} mistakes", location=ordered[0].location, hint=ordered[0].hint)
        self.errors = tuple(ordered)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.errors)) + f"\n\n{self.message}"


class ConsequenceError(TileLinkError):
    """What another mistake leads to: `Mistakes` drops it, so no user sees it."""


@contextmanager
def foreign(what: str, kind: type[TileLinkError], hint: str = "mend it, or leave it out") -> Generator[None]:
    """Makes what goes wrong in somebody's code, which the block calls, an error of a kind, with the line that failed.

    what: what failed, and whose it is. Designed errors, the end of a generator and lack of memory stay what they are.
    """
    try:
        yield
    except (TileLinkError, StopIteration, MemoryError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[2:]  # after this line and that of the block
        inner = [one for one in frames if not one.filename.startswith("<") and "importlib" not in one.filename]
        place = None
        if inner:
            place = Location(file=inner[-1].filename, line=inner[-1].lineno or 1, column=(inner[-1].colno or 0) + 1)
        summary = "".join(traceback.format_exception_only(error)).strip()
        raise kind(f"{what}: {summary}", location=place, hint=hint) from error


class Mistakes:
    """Collects errors, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self.errors: list[TileLinkError] = []
        self._seen: set[tuple[type[TileLinkError], str, Location | None]] = set()

    @contextmanager
    def noted(self) -> Generator[None]:
        """Notes the error that the block raises; what comes after the block goes on."""
        try:
            yield
        except TileLinkError as error:
            self.add(error)

    def add(self, error: TileLinkError) -> None:
        """Note an error; one that was noted already, or that only follows from another, is dropped."""
        if isinstance(error, SeveralErrors):
            for one in error.errors:
                self.add(one)
            return
        key = (type(error), error.message, error.location)
        if key not in self._seen and not isinstance(error, ConsequenceError):
            self._seen.add(key)
            self.errors.append(error)

    def raise_any(self) -> None:
        """Raise the error if there is one, SeveralErrors if there are more."""
        if len(self.errors) > 1:
            raise SeveralErrors(self.errors)
        if self.errors:
            raise self.errors[0]


class SettingsError(TileLinkError):
    """An environment variable or setting has a value that means nothing."""


class UnknownTargetError(TileLinkError):
    """No such compilation target."""


class MachineError(TileLinkError):
    """A description of a machine is missing or not one."""


class DataError(TileLinkError):
    """A file with data cannot be read, or holds something else than it should."""


class CostError(TileLinkError):
    """What a cost model answers is no time."""


class SearchError(TileLinkError):
    """A search cannot begin so, or its strategy proposes what is no point."""


class OutputError(TileLinkError):
    """A file that was asked for cannot be written, or what draws it is missing."""


class ParseError(TileLinkError):
    """The text is not in the language."""


class UnknownNameError(TileLinkError):
    """A name that nothing declares, or that has no value yet."""


class DuplicateNameError(TileLinkError):
    """A name declared twice."""


class ShapeError(TileLinkError):
    """Shapes that do not fit each other."""


class DtypeError(TileLinkError):
    """A value of a type that cannot be used there."""


class RemoteAccessError(TileLinkError):
    """An access on another rank to what cannot be reached there, or in the wrong direction."""


class WriteError(TileLinkError):
    """A write to something that cannot be written."""


class StageError(TileLinkError):
    """A statement that this kind of stage cannot hold."""


class ScheduleError(TileLinkError):
    """A schedule that does not fit its program."""


class OrderError(ScheduleError):
    """An order that is no permutation of the index's values."""


class TileSizeError(ScheduleError):
    """A tile size for something that cannot have it."""


class BindingError(TileLinkError):
    """A dimension or parameter without a usable value."""


class VerificationError(TileLinkError):
    """The plan is not safe; `rule` names which of the six rules it breaks."""

    rule = "verification"


class CoverageError(VerificationError):
    """Rule 1: an element of an output is not written exactly once, or a read finds nothing written."""

    rule = "coverage"


class OrderingError(VerificationError):
    """Rule 2: nothing orders a read after the write it needs."""

    rule = "ordering"


class AccountingError(VerificationError):
    """Rule 3: the notifies of a channel do not add up to the threshold waited for."""

    rule = "accounting"


class ProgressError(VerificationError):
    """Rule 4: tiles wait for each other in a circle, or for a tile that can never start."""

    rule = "progress"


class ExclusiveWriteError(VerificationError):
    """Rule 5: two unordered writes to one element."""

    rule = "exclusive writes"


class ReuseError(VerificationError):
    """Rule 6: a later launch can overwrite what an earlier one still reads."""

    rule = "reuse"


class EmitError(TileLinkError):
    """The backend cannot render this construct for this target."""


class RankError(TileLinkError):
    """A rank failed while running; carries the rank's own traceback in the message.

    rank, stream, program: the process that failed; None where the runtime has one program a rank.
    details: the traceback's text, empty where a signal killed the process.
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


class CallError(RankError):
    """A function that a program calls (`call module.function(...)`) failed on a rank.

    location: the function's line that failed, None for a call that did not fit the function. rank, stream, program:
    the process. details: the whole traceback, no part of the message; on CPU ranks it is the error's cause too.
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


class DeadlineError(TileLinkError):
    """A wait outlived its deadline.

    The wait: `tile` of `stage` on `rank` saw `seen` on `channel` and needed `expected`; it waited `seconds`. The names
    are those of the program, None where nobody knows them. waiting: what the others did at that time, a line each.
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
