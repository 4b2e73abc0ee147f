"""The names that a schedule gives, looked up in its program while the schedule is built: the line that has one wrong is
known then, and no longer when the schedule is bound. What is right so far keeps its line for later errors."""

from __future__ import annotations

import inspect
import linecache
import re
from dataclasses import dataclass, replace
from itertools import product
from types import FrameType

from tilelink.errors import Location
from tilelink.ir.program import Program
from tilelink.schedule.clause import Part, word_called
from tilelink.schedule.clauses import check_names


@dataclass(frozen=True, kw_only=True)
class NamesOf:
    """Refuses a part of a schedule that names what a program lacks, in the words of binding; else says where it is."""

    program: Program

    def __call__(self, part: Part, old: Part) -> dict[str, Location]:
        """The places of what a part has and the old one has not, named as in `Part`: in the caller's line.

        Raises ScheduleError, TileSizeError or OrderError there.
        """
        found = {"name": _caller(part.name)}
        for said in part.said:
            if said not in old.said:
                inner = word_called(said.name).inner(said.what)
                places = {said.name: said.name, **{f"{said.name}.{key}": at for key, at in inner}}
                found |= {place: _caller(at, None) for place, at in places.items()}
        new = {place: location for place, location in found.items() if location is not None}
        check_names(self.program, replace(part, places={**part.places, **new}))
        del new["name"]
        return new


def _caller(*words: str | None) -> Location | None:
    """The call from outside of the package that led here, and in it the first of the words that stands there.

    None is a word too: the name of what is called.
    """
    frame: FrameType | None = inspect.currentframe()
    called = ""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("tilelink."):
        called, frame = frame.f_code.co_name, frame.f_back
    if frame is None:
        return None
    file = frame.f_code.co_filename
    first, begin, last, end = _extent(frame)
    # Calls of a chain begin where the chain does, so of several such words the last one is this call's.
    for word, number in product([word or called for word in words], range(last, first - 1, -1)):
        line = linecache.getline(file, number).rstrip("\n")
        inside = slice(begin if number == first else 0, end if number == last else None)
        before, within = (line.encode()[part].decode(errors="ignore") for part in (slice(inside.start), inside))
        if found := list(re.finditer(rf"\b{re.escape(word)}\b", within)):
            column = len(before) + found[-1].start() + 1
            return Location(file=file, line=number, column=column, length=len(word), text=line)
    line = linecache.getline(file, frame.f_lineno).rstrip("\n")
    column = len(line) - len(line.lstrip()) + 1
    return Location(file=file, line=frame.f_lineno, column=column, length=len(line.strip()), text=line or None)


def _extent(frame: FrameType) -> tuple[int, int, int, int | None]:
    """Where the call that a frame is in begins and ends: lines, and in bytes where on them."""
    first, last, begin, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return first or frame.f_lineno, begin or 0, last or frame.f_lineno, end
