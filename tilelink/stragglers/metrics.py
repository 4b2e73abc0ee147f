"""What launches leave behind: a few seconds of each, by rank, link and SM, and the folder of files that holds them.

All are durations on the clock of one rank, so the clocks of ranks need not agree. A folder has `program.json`, the
program's recipe with its tables and the machine, `norm.npz`, what a launch of it is predicted to leave, if the machine
is known, and any number of `launches-*.npz`, each of a range of launches and of any columns. Reading executes nothing.
"""

from __future__ import annotations

import io
import json
import secrets
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilelink import files
from tilelink.data import plain, read_json
from tilelink.errors import DataError, OutputError
from tilelink.lowering.columns import Ints
from tilelink.lowering.recipe import Recipe
from tilelink.simulator.machine import machine_of

Floats = NDArray[np.float64]
Values = NDArray[np.float32]
FORMAT = 2
METRICS = (
    "work", "sm_out", "sm_in", "engine_out", "engine_in", "call", "notify", "wait", "gap", "took", "signal", "start",
)  # fmt: skip
"""Seconds, all of a rank in a launch:

work: mean of a tile of `stage` on `sm`, without its waits, notifies and transfers.
sm_out, sm_in: mean of a transfer of `stage` to or from `peer` that SMs execute; engine_out, engine_in: by copy engines.
call: mean of an operation of the copy engine, without bytes and waits; `stage` is the kind of call, if it is known.
notify: mean of a notify by a program.
wait: all waits for notifies of `peer`, and for its launch, of the program that waits longest for it.
gap: between the end of its launch before and this one, without waits for peers. took: the launch, from there on.
signal: the fastest notify from `rank` to `peer` and the fastest one back, together; of simulated launches.
start: from the first span of the launch until the last program of its first kernels begins; of traced launches.
"""
NUMBER = {name: number for number, name in enumerate(METRICS)}
MOVES = ("sm_out", "sm_in", "engine_out", "engine_in")
# Of stage + 1, rank, peer + 1 and sm + 1: a launch may have a program for each of a million tiles.
_BITS = (12, 13, 13, 21)
MAX_RANKS = 4096
MAX_LAUNCHES = 10_000_000
"""Launches between the first and the last of a folder."""


class Column(NamedTuple):
    """What a number is about. sm: on GPUs and CPU ranks the number of the program, over all kernels of the rank."""

    metric: str
    rank: int
    stage: int = -1
    peer: int = -1
    sm: int = -1


def keys_of(metric: Ints | int, rank: Ints, stage: Ints | int = -1, peer: Ints | int = -1, sm: Ints | int = -1) -> Ints:
    """Return numbers that stand for columns. metric: its place in METRICS. Raises OutputError for too large ones."""
    keys = np.zeros(len(rank), np.int64) + metric
    for part, bits in zip((np.asarray(stage) + 1, rank, np.asarray(peer) + 1, np.asarray(sm) + 1), _BITS, strict=True):
        if part.size and int(part.max()) >> bits:
            most = [2**one - 2 for one in _BITS]
            hint = f"stages up to {most[0]}, ranks up to {most[2]}, programs up to {most[3]}"
            raise OutputError(f"what launches leave has no column for {int(part.max())}", hint=hint)
        keys = keys << bits | part
    return keys


def split(keys: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return (metric, rank, stage, peer, sm) of columns, -1 for what a metric has not."""
    parts: list[Ints] = []
    for bits in reversed(_BITS):
        parts.append(keys & ((1 << bits) - 1))
        keys = keys >> bits
    sm, peer, rank, stage = parts
    return keys, rank, stage - 1, peer - 1, sm - 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one launch left. keys: the columns, rising. values: seconds of each. counts: of what they are means."""

    keys: Ints
    values: Floats
    counts: Floats


@dataclass(frozen=True, kw_only=True)
class Table:
    """What some launches left. values: [launches, columns], NaN for nothing. first: the number of the first launch.

    counts: of how many tiles, transfers or calls of a launch a column is the mean.
    """

    keys: Ints
    values: Values
    counts: Values
    first: int = 0

    @property
    def columns(self) -> list[Column]:
        parts = zip(*(part.tolist() for part in split(self.keys)), strict=True)
        return [Column(METRICS[metric], *place) for metric, *place in parts]


Means = tuple[Ints, Floats, Floats]
"""Columns, the means of their seconds, and of how many they are."""


def row_of(parts: Sequence[Means]) -> Row:
    """Return the row of some columns."""
    keys, values, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(keys, kind="stable")
    return Row(keys=keys[order], values=values[order], counts=counts[order])


def means(keys: Ints, seconds: Floats, counts: Ints | int = 1) -> Means:
    """Return each distinct column with the sum of its seconds by the sum of its counts."""
    found, at = np.unique(keys, return_inverse=True)
    every = np.broadcast_to(np.asarray(counts, np.float64), keys.shape)
    total: Floats = np.bincount(at, weights=every, minlength=len(found)).astype(np.float64)
    return found, np.bincount(at, weights=seconds, minlength=len(found)) / np.maximum(total, 1e-300), total


def table_of(rows: Sequence[Row], first: int = 0) -> Table:
    """Return the table of launches that follow each other."""
    every = np.unique(np.concatenate([row.keys for row in rows])) if rows else np.zeros(0, np.int64)
    values = np.full((len(rows), len(every)), np.nan, np.float32)
    counts = np.zeros(len(every), np.float32)
    for number, row in enumerate(rows):
        at = np.searchsorted(every, row.keys)
        values[number, at] = row.values
        counts[at] = np.maximum(counts[at], row.counts)
    return Table(keys=every, values=values, counts=counts, first=first)


def joined(tables: Sequence[Table]) -> Table:
    """Return all launches of some tables, which may have other columns, such as those of one rank each."""
    if len(tables) == 1:
        return tables[0]
    every = np.unique(np.concatenate([table.keys for table in tables]))
    first = min(table.first for table in tables)
    count = max(table.first + len(table.values) for table in tables) - first
    values = np.full((count, len(every)), np.nan, np.float32)
    counts = np.zeros(len(every), np.float32)
    for table in tables:
        at = np.searchsorted(every, table.keys)
        counts[at] = np.maximum(counts[at], table.counts)
        values[table.first - first : table.first - first + len(table.values), at] = table.values
    return Table(keys=every, values=values, counts=counts, first=first)


# Files ---------------------------------------------------------------------------------------------------------

PROGRAM, NORM, LAUNCHES = "program.json", "norm.npz", "launches-*.npz"


@dataclass(frozen=True, kw_only=True)
class Traces:
    """A folder of what launches left. stages: their names by number. norm: a predicted launch, if there is one.

    machine: as `simulator.machine.description` makes it, or None. recipe, tables: as in dump.Dump.
    """

    program: str
    ranks: int
    stages: tuple[str, ...]
    recipe: Mapping[str, Any]
    tables: Mapping[str, Any]
    machine: Mapping[str, Any] | None
    table: Table
    norm: Table | None = None
    """Of one launch."""
    programs: bool = False
    """True if columns name programs, as of traced launches, where others name SMs."""


def save_program(
    folder: Path, *, program: str, ranks: int, stages: Sequence[str], recipe: Recipe, tables: Mapping[str, Any],
    machine: Mapping[str, Any] | None, norm: Row | None, programs: bool,
) -> None:  # fmt: skip
    """Write what a folder's launches are of. Raises OutputError if it cannot be written, or is of another program."""
    head: dict[str, Any] = {"format": FORMAT, "program": program, "ranks": ranks, "programs": programs}
    head |= {"stages": list(stages), "recipe": plain(recipe), "tables": plain(dict(tables)), "machine": machine}
    text = json.dumps(head)
    path = folder / PROGRAM
    if files.is_file(path) and (own := json.loads(text)) != (there := read_json(path)):
        alike = isinstance(there, dict) and {**own, "machine": None} == {**there, "machine": None}
        what = "judged by another machine" if alike else "of another program"
        raise OutputError(f"{folder} has launches {what}", hint="name an empty folder")
    _replace(path, text.encode())
    if norm is not None:
        _replace(folder / NORM, _packed(table_of([norm])))


def save_launches(folder: Path, table: Table) -> Path:
    """Add launches to a folder, in a file of their own. Raises OutputError if it cannot be written."""
    path = folder / f"launches-{table.first:09d}-{secrets.token_hex(4)}.npz"
    _replace(path, _packed(table))
    return path


def _replace(path: Path, data: bytes) -> None:
    try:
        files.make_folder(path.parent)
        files.replace(path, data)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {files.reason(error)}", hint="name another folder") from None


def _packed(table: Table) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, keys=table.keys, values=table.values, counts=table.counts, first=np.int64(table.first))
    return buffer.getvalue()


def next_launch(folder: Path) -> int:
    """Return the number of the launch after all that a folder has."""
    last = max(folder.glob(LAUNCHES), default=None)  # names begin with the number of their first launch
    return 0 if last is None else (table := _unpacked(last)).first + len(table.values)


def is_traces(folder: Path) -> bool:
    """True if a folder has what launches left."""
    return files.is_file(folder / PROGRAM)


def read_traces(folder: str | Path) -> Traces:
    """Return what a folder has. Raises DataError if a file is not as it is written here, or if there is no launch."""
    folder = Path(folder)
    head = read_json(folder / PROGRAM)
    wanted = {"format": int, "program": str, "ranks": int, "stages": list, "recipe": dict, "tables": dict}
    if not isinstance(head, dict) or any(not isinstance(head.get(name), kind) for name, kind in wanted.items()):
        raise DataError(f"{folder / PROGRAM} says of no launches", hint="name a folder that has traces of launches")
    if head["format"] != FORMAT:
        raise DataError(f"{folder} has format {head['format']!r}, not {FORMAT}", hint="use the version that wrote it")
    found = [_unpacked(path) for path in sorted(folder.glob(LAUNCHES))]
    if not found:
        raise DataError(f"{folder} has no launches", hint="they are files launches-*.npz")
    norm = _unpacked(folder / NORM) if files.is_file(folder / NORM) else None
    if isinstance(head["ranks"], bool) or not 0 < head["ranks"] <= MAX_RANKS:
        raise DataError(f"{folder / PROGRAM} is of {head['ranks']} ranks", hint=f"of 1 to {MAX_RANKS}")
    launches = max(t.first + len(t.values) for t in found) - min(t.first for t in found)
    if launches > MAX_LAUNCHES:
        hint = f"at most {MAX_LAUNCHES:,} are judged"
        raise DataError(f"{folder} has launches that are {launches:,} apart", hint=hint)
    for table in (*found, *([] if norm is None else [norm])):
        metric, rank, stage, peer, _ = split(table.keys)
        stage = np.where(metric == NUMBER["call"], -1, stage)  # theirs is the kind of the call
        if bool((rank >= head["ranks"]).any() or (peer >= head["ranks"]).any() or (stage >= len(head["stages"])).any()):
            what = f"{folder} has columns of more than {head['ranks']} ranks and {len(head['stages'])} stages"
            raise DataError(what, hint=f"they are those of {PROGRAM}")
    if norm is not None and len(norm.values) != 1:
        raise DataError(f"{folder / NORM} is not one launch", hint="it must be as TileLink writes it")
    took = np.concatenate([t.values[:, split(t.keys)[0] == NUMBER["took"]].ravel() for t in found])
    if not np.isfinite(took).any():
        raise DataError(f"{folder} has no launch that took any time", hint="they must be as TileLink writes them")
    if head.get("machine") is not None:
        machine_of(head["machine"], str(folder / PROGRAM))
    return Traces(
        program=head["program"], ranks=head["ranks"], stages=tuple(map(str, head["stages"])), recipe=head["recipe"],
        tables=head["tables"], machine=head.get("machine"), table=joined(found),
        norm=norm, programs=head.get("programs") is True,
    )  # fmt: skip


def _unpacked(path: Path) -> Table:
    hint = "it must be as TileLink writes it"
    try:
        with np.load(io.BytesIO(files.read(path)), allow_pickle=False) as found:
            keys, values, counts, first = (found[name] for name in ("keys", "values", "counts", "first"))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}", hint=hint) from None
    fits = keys.dtype == np.int64 and values.dtype == np.float32 and first.dtype == np.int64
    fits &= counts.dtype == np.float32 and counts.shape == keys.shape
    if not fits or keys.ndim != 1 or first.ndim or values.ndim != 2 or values.shape[1] != len(keys):
        raise DataError(f"{path} has no launches", hint=hint)
    if not bool((np.diff(keys) > 0).all()) or int(keys.min(initial=0)) < 0 or int(first) < 0:
        raise DataError(f"{path} has columns that are none", hint=hint)
    if bool((values < 0).any() or np.isinf(values).any()):
        raise DataError(f"{path} has times that are none", hint=hint)
    if bool((split(keys)[0] >= len(METRICS)).any()):
        raise DataError(f"{path} has columns of another version", hint="use the version that wrote it")
    return Table(keys=keys, values=values, counts=counts, first=int(first))
