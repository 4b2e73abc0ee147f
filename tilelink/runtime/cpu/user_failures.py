"""Failures of functions that a program calls, extracted from the errors of Triton's interpreter."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from tilelink.errors import Location
from tilelink.generated import GENERATED

_OWN = frozenset({"triton", "tilelink"})
_CALL = re.compile(r"\bcall ([\w.]+)\(")
_PLACED = re.compile(r"# (?P<place>.+?:\d+): (?P<text>.*)")


@dataclass(frozen=True, kw_only=True)
class UserCallFailure:
    """The failure of a user's function. summary: the exception in a line. function: as the program calls it.

    statement, place: the program's statement with the call, and its file and line; "" if unknown. location: the user's
    line that failed; None for a call that did not begin, or whose value does not fit.
    """

    summary: str
    function: str
    statement: str
    place: str
    location: Location | None

    @property
    def message(self) -> str:
        at = f" ({self.place})" if self.place else ""
        return f"{self.function}, called in `{self.statement}`{at}: {self.summary}"

    @property
    def hint(self) -> str:
        if self.location is None:
            return "see that it takes these values, which are tiles, and returns a tile of the first one's shape"
        return "mend the function: it may do what a @triton.jit function may, with tiles of these shapes"


def called(error: BaseException) -> UserCallFailure | None:
    """Return the failure of a user's function, or None for an error that does not come from one."""
    chain = list(_chain(error))
    frames = [found for one in chain for found in _frames(one)]
    at = max((n for n, (frame, _) in enumerate(frames) if _module(frame).startswith(GENERATED)), default=None)
    if at is None:
        return None
    place, statement = _statement(frames[at][1])
    functions: list[str] = _CALL.findall(statement)
    if not functions:
        return None
    theirs = [(frame, where) for frame, where in frames[at + 1 :] if _package(frame) not in _OWN]
    first = theirs[0][0].f_code.co_name if theirs else ""
    inner = [where for frame, where in theirs if _package(frame) == _package(theirs[0][0])]
    return UserCallFailure(
        summary="".join(traceback.format_exception_only(chain[-1])).strip(),
        function=next((f for f in functions if f.rpartition(".")[2] == first), functions[0]),
        statement=statement,
        place=place,
        location=_location(inner[-1]) if inner else None,
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors that it wraps, down to the first that is not one of the interpreter's own."""
    found: BaseException | None = error
    while found is not None:
        yield found
        wraps = type(found).__name__ == "InterpreterError" and type(found).__module__.startswith("triton.")
        found = found.__cause__ if wraps else None


def _frames(error: BaseException) -> Iterator[tuple[FrameType, traceback.FrameSummary]]:
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return zip(frames, traceback.extract_tb(error.__traceback__), strict=True)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _package(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]


def _statement(where: traceback.FrameSummary) -> tuple[str, str]:
    """Return (place, text) of the program's statement that a generated line belongs to; "" if unknown.

    A generated line comes below a comment that has both, and is indented at least as deep.
    """
    lines = linecache.getlines(where.filename)[: where.lineno or 0]
    deep = _depth(lines[-1]) if lines else 0
    comments = (line for line in reversed(lines) if line.lstrip().startswith("# ") and 0 < _depth(line) <= deep)
    comment = next(comments, "").strip()
    match = _PLACED.fullmatch(comment)
    return (match["place"], match["text"]) if match else ("", comment.removeprefix("# "))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _location(where: traceback.FrameSummary) -> Location:
    column, end = where.colno or 0, where.end_colno or 0
    one_line = where.end_lineno in (None, where.lineno)
    length = end - column if one_line else 1
    return Location(file=where.filename, line=where.lineno or 1, column=column + 1, length=max(1, length))
