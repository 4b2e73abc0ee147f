"""Measured spans: start and end of a tile, a wait, a notify or a transfer of a program or a queue.

Traced kernels write them (device/tracing.py). On a GPU each program of the rank's kernels has a track: HEAD words, then
records of RECORD words, all int64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

KINDS = ("tile", "wait", "notify", "transfer")
"""Kinds of spans. Their positions are their numbers in records."""
COUNT, CAPACITY, BEGUN = 0, 1, 2
"""Words of a track's head: number of records, capacity in records, and the time at which each kind was begun."""
HEAD = 8
RECORD = 4
"""Words of a record: tile << 32 | stage << 8 | kind, b << 32 | a, begin, end."""


class Span(NamedTuple):
    """An operation of program `track` of `rank` in launch `epoch`, from `begin` to `end` (ns of one clock).

    track: counted over the programs of all kernels of a rank. (a, b) is (0, 0) for a tile, (channel, 0) for a wait,
    (rank, channel) for a notify and (rank, tensor) for a transfer. A stage beyond the program's is the runtime itself.
    """

    rank: int
    track: int
    kind: str
    stage: int
    tile: int
    a: int
    b: int
    epoch: int
    begin: int
    end: int


def empty(tracks: int, capacity: int) -> NDArray[np.int64]:
    """Return the words of tracks without records, int64 [tracks, HEAD + RECORD * capacity]."""
    words = np.zeros((tracks, HEAD + RECORD * capacity), np.int64)
    words[:, CAPACITY] = capacity
    return words


def decoded(words: NDArray[Any], rank: int, epoch: int) -> tuple[list[Span], int]:
    """Return the spans in the tracks of a rank after launch `epoch`, and the number of spans that did not fit."""
    spans: list[Span] = []
    dropped = 0
    for track, own in enumerate(words):
        kept = min(int(own[COUNT]), int(own[CAPACITY]))
        dropped += int(own[COUNT]) - kept
        for what, details, begin, end in own[HEAD : HEAD + RECORD * kept].reshape(kept, RECORD).tolist():
            kind, stage = KINDS[what & 0xFF], what >> 8 & 0xFFFFFF
            a, b = details & 0xFFFFFFFF, details >> 32
            spans.append(Span(rank, track, kind, stage, what >> 32, a, b, epoch, begin, end))
    return spans, dropped
