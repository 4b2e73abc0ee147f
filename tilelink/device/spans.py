"""Measured spans: when a program or a queue began and ended a tile, a wait, a notify or a transfer.

Kernels that were compiled for it write them (device/tracing.py); on a GPU into a track for each program of the rank's
kernels: HEAD words, then records of RECORD words, all int64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

KINDS = ("tile", "wait", "notify", "transfer")
"""By the numbers that they have in records."""
COUNT, CAPACITY, BEGUN = 0, 1, 2
"""Words of a track's head: records so far, records that there is room for, and when each kind was begun."""
HEAD = 8
RECORD = 4
"""Words of a record: tile << 32 | stage << 8 | kind, b << 32 | a, begin, end."""


class Span(NamedTuple):
    """Something that program `track` of `rank` did in launch `epoch`, from `begin` to `end` (ns of one clock).

    track: counted over the programs of all kernels of a rank. (a, b) is (0, 0) of a tile, (channel, 0) of a wait,
    (rank, channel) of a notify and (rank, tensor) of a transfer; a stage beyond the program's is the runtime's own.
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
    """The words of tracks without records, [tracks, HEAD + RECORD * capacity]."""
    words = np.zeros((tracks, HEAD + RECORD * capacity), np.int64)
    words[:, CAPACITY] = capacity
    return words


def decoded(words: NDArray[Any], rank: int, epoch: int) -> tuple[list[Span], int]:
    """The spans in the tracks of a rank after launch `epoch`, and how many found no room."""
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
