"""Database of measured results: one JSON line for each record, in the cache folder. Later lines win."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tilelink import files
from tilelink.data import checked, parse_json
from tilelink.errors import DataError, OutputError
from tilelink.ir.program import Program
from tilelink.ir.sizes import power_of_two
from tilelink.settings import settings

FILE = "tuning.jsonl"
_log = logging.getLogger("tilelink.tuning")


@dataclass(frozen=True, kw_only=True)
class Key:
    """The problem that a record solves.

    programs: hash of all algorithms. dims: all dimensions, the first one rounded up to a power of two. gpu, versions:
    those of the measuring machine, such as "NVIDIA H200" and "torch 2.11.0, triton 3.6.0".
    """

    programs: str
    dims: str
    dtype: str
    ranks: int
    gpu: str
    versions: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """The best of a measurement: its schedule as text, or "unfused". evidence: all candidates with their times."""

    key: Key
    program: str
    schedule: str
    seconds: float
    evidence: tuple[Mapping[str, Any], ...] = field(default=())


def key_of(
    programs: Sequence[Program],
    *,
    dims: Mapping[str, int | float | bool],
    dtype: str,
    ranks: int,
    gpu: str,
    versions: str,
) -> Key:
    """Return the key of equivalent programs; their order does not matter."""
    texts = "\n".join(sorted(str(program) for program in programs))
    digest = hashlib.sha256(texts.encode()).hexdigest()[:16]
    first = next((p.name for p in programs[0].params if p.kind == "dim"), None)
    sizes = {name: power_of_two(int(value)) if name == first else value for name, value in dims.items()}
    text = ", ".join(f"{name}={value}" for name, value in sizes.items())
    return Key(programs=digest, dims=text, dtype=dtype, ranks=ranks, gpu=gpu, versions=versions)


def here() -> tuple[str, str]:
    """Return the GPU of this process, and the versions of the software that generates its code, as in keys."""
    import torch

    return torch.cuda.get_device_name(), f"torch {torch.__version__}, triton {metadata.version('triton')}"


class Database:
    """The records of a file; None: the file in the cache folder.

    A line that is not a record is ignored, and so is a whole file to which other users may write. The log
    (`tilelink.tuning`, WARNING) reports each once.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or settings().cache / FILE

    def store(self, record: Record) -> None:
        """Append a record. Many processes may do so at once: a line is written in one piece if the disk has room.

        Raises OutputError if the record cannot be written completely; an incomplete line is ignored later.
        """
        line = json.dumps(asdict(record), sort_keys=True) + "\n"
        self.require_own()
        try:
            files.make_folder(self.path.parent)
            _append(self.path, line.encode())
        except OSError as error:
            hint = "make room there, or set TILELINK_CACHE to a folder that can be written"
            if what := files.kind(self.path):
                hint = f"remove it: it is {what}"
            raise OutputError(f"{self.path} cannot be written: {files.reason(error)}", hint=hint) from error

    def require_own(self) -> None:
        """Raise OutputError if the file would not be read again, since other users may write to it."""
        if why := self._distrusted():
            raise OutputError(f"{self.path} cannot be written: {why}", hint=files.OWN)

    def find(self, key: Key) -> Record | None:
        """Return the last record of a key, or None."""
        return next((record for record in reversed(self.records()) if record.key == key), None)

    def records(self) -> list[Record]:
        """Return all records in the order in which they were stored."""
        if why := self._distrusted():
            _warn(f"{self.path} is not used: {why}; {files.OWN}")
            return []
        try:
            lines = files.read(self.path).splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            _warn(f"{self.path} is not used: {files.reason(error)}")
            return []
        found: list[Record] = []
        wrong: list[str] = []
        for number, line in enumerate(lines, 1):
            try:
                found.append(_record(line, f"line {number}"))
            except DataError as error:
                wrong.append(error.message)
        if wrong:
            _warn(f"{self.path}: {len(wrong)} of {len(lines)} lines are no records and are passed over; {wrong[0]}")
        return found

    def _distrusted(self) -> str:
        try:
            return files.distrusted(self.path)
        except OSError as error:
            return files.reason(error)


def _record(line: bytes, where: str) -> Record:
    record = checked(Record, parse_json(line, where), where)
    if record.seconds < 0:
        raise DataError(f"seconds of {where} is {record.seconds}", hint="a time is 0 or more: remove the line")
    return record


@cache  # so that each warning is logged once
def _warn(text: str) -> None:
    _log.warning("%s", text)


def _append(path: Path, line: bytes) -> None:
    handle = files.open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # a full disk cut off the end of the last line
        rest = b"\n" + line if torn else line
        while rest:
            rest = rest[os.write(handle, rest) :]
    finally:
        os.close(handle)
