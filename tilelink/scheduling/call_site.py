"""The location of the user's call into the package, for errors."""

from __future__ import annotations

import inspect
import linecache
from types import FrameType

from tilelink.errors import Location


def call_site() -> Location | None:
    """Return the location of the innermost call from outside the package, or None if there is none.

    A call that spans several lines is located at its first line. In a chain of calls, the location ends at the end of
    this call.
    """
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("tilelink."):
        frame = frame.f_back
    if frame is None:
        return None
    file = frame.f_code.co_filename
    first, last, begin, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    number = first or frame.f_lineno
    line = linecache.getline(file, number).rstrip("\n")
    if begin is None or end is None or not line:  # Python records no columns (-X no_debug_ranges), or no source exists
        begin, end = len(line) - len(line.lstrip()), len(line)
    else:  # columns count bytes of UTF-8
        code = line.encode()
        begin = len(code[:begin].decode(errors="ignore"))
        end = len(code[:end].decode(errors="ignore")) if last == number else len(line)
    return Location(file=file, line=number, column=begin + 1, length=max(1, end - begin), text=line or None)
