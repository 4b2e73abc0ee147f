"""Dumps of ranks: what a rank knows of a launch that hangs, with the program's recipe, as plain data and as JSON text.

A runtime makes a `Seen` when a wait has exceeded its deadline, or when a rank has died; nothing is recorded before. The
compiler adds the program (`Dump`), because a runtime does not know it, and `tilelink diagnose` joins the dumps of all
ranks (diagnose/). Reading a dump executes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink import files
from tilelink.data import checked, plain, read_json
from tilelink.errors import DataError
from tilelink.settings import settings

FORMAT = 2
KEPT = 16
"""Dumps of one rank that a folder keeps: the newest."""
NAME = "*-rank*.json"

BEGIN, FINISH, END = -1, -2, -3
"""Steps of a program besides the kernels of its stream: what its rank does before them and after them, and the end."""


@dataclass(frozen=True, kw_only=True)
class WaitSeen:
    """A wait that has not passed: a tile of a stage, by their numbers, saw `seen` in a counter and needs `expected`.

    channel: the counter's place in the signal pad of the rank.
    """

    stage: int
    tile: int
    channel: int
    seen: int
    expected: int


@dataclass(frozen=True, kw_only=True)
class ProgramSeen:
    """A program of one stream: in the launch `launch`, in the stream's kernel number `step` (or BEGIN, FINISH, END).

    wait: for what it waits. ended: True if its part of the step is done, and it waits for other programs of the rank.
    With neither it computes, or is dead. died: how it ended before its time, or "".
    """

    stream: str
    program: int
    launch: int
    step: int
    wait: WaitSeen | None = None
    ended: bool = False
    died: str = ""


@dataclass(frozen=True, kw_only=True)
class Pad:
    """The counters in the signal pad of a rank."""

    rank: int
    counters: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a rank knows when a launch hangs.

    time: in seconds since 1970. launch: number of the launch that it is in, by its own memory; issued: launches that
    its host has issued, None if it does not count them. pads: its own signal pad, and those of peers that it can read.
    programs: what is known of its programs; empty if nothing is. late: the wait by which it learned of the hang.
    broken: the promise of its index tensors that the launch breaks, or "".
    spoiled: True if some rank's wait was late before it looked: then counters may have more than was notified in time.
    resets: True if the wait of a copy engine sets its counter back to 0. ends: True if a rank announces the end of a
    launch when it comes to it, and not with the next launch or never.
    """

    rank: int
    time: float
    launch: int
    pads: tuple[Pad, ...]
    issued: int | None = None
    programs: tuple[ProgramSeen, ...] = ()
    late: WaitSeen | None = None
    broken: str = ""
    spoiled: bool = False
    resets: bool = False
    ends: bool = True


@dataclass(frozen=True, kw_only=True)
class Dump:
    """A dump, as one rank writes it: the program that it runs, as a recipe with its tables, and what it knows.

    recipe: fields of a lowering.recipe.Recipe. tables: name -> int [ranks, *shape]. deadline_s: seconds that a wait may
    take.
    """

    program: str
    recipe: Mapping[str, Any]
    tables: Mapping[str, NDArray[np.int64]]
    deadline_s: float
    seen: Seen

    @property
    def fingerprint(self) -> str:
        """Return a text that is equal for dumps of one lowered program with the same tables."""
        of = json.dumps(plain([self.recipe, dict(sorted(self.tables.items()))]), sort_keys=True)
        return hashlib.blake2b(of.encode(), digest_size=6).hexdigest()


def write(dumps: Iterable[Dump]) -> list[Path]:
    """Write dumps to the folder of the settings and return their files, none if that is switched off.

    Of each rank the newest `KEPT` are kept. A hang is what users are told of, so no error is raised here.
    """
    written: list[Path] = []
    if (folder := settings().dumps) is None:
        return written
    for dump in dumps:
        at = time.strftime("%Y%m%dT%H%M%S", time.gmtime(dump.seen.time))
        path = folder / f"{at}-{os.getpid()}-{dump.program}-rank{dump.seen.rank}.json"
        try:
            files.make_folder(folder)
            files.replace(path, json.dumps({"format": FORMAT, "dump": plain(dump)}).encode())
            for old in sorted(folder.glob(f"*-rank{dump.seen.rank}.json"))[:-KEPT]:
                old.unlink(missing_ok=True)
        except OSError:
            continue
        written.append(path)
    return written


def read(path: Path) -> Dump:
    """Return the dump in a file. Raises DataError for any other file."""
    found = read_json(path)
    if not isinstance(found, dict) or set(found) != {"format", "dump"}:
        raise DataError(f"{path} is no dump of a rank", hint="name files that TILELINK_DUMP's folder has")
    if found["format"] != FORMAT:
        raise DataError(f"{path} has format {found['format']!r}, not {FORMAT}", hint="use the version that wrote it")
    return checked(Dump, found["dump"], str(path))


def newest(folder: Path) -> list[Path]:
    """Return the files of a folder's last hang: for each rank its newest dump, of the program that hung last."""
    found: dict[tuple[str, int], Path] = {}
    for path in sorted(folder.glob(NAME)):
        if named := re.fullmatch(r"\d{8}T\d{6}-\d+-(\w+)-rank(\d+)", path.stem):
            found[named[1], int(named[2])] = path
    last = max(found.values(), default=None)
    program = next((program for (program, _), path in found.items() if path == last), "")
    return [path for (own, _), path in sorted(found.items()) if own == program]
