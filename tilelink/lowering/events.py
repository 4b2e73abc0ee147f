"""Events of tasks as NumPy columns: reads, writes, waits, notifies, barriers and transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from tilelink.lowering.bound import Bound
from tilelink.lowering.columns import Columns, Ints, expand

READ, WRITE, WAIT, NOTIFY = range(4)
"""Kinds of accesses and of signals."""


class Substep(IntEnum):
    """The events of a statement in their order: a statement takes a position in its task's sequence for each."""

    READ = 0
    """Reads; also a barrier, a fence and a quiet."""
    WRITE = 1
    ARRIVED = 2
    """The data has moved: the event of a transfer, and waits for words that the statement reads itself."""
    SIGNAL = 3
    """All other waits, and notifies."""


SUBSTEPS = len(Substep)
"""Positions in a task's sequence that one statement takes."""


@dataclass(frozen=True, kw_only=True)
class Accesses(Columns):
    """Reads and writes of tensors, one row each. `lo`, `hi` are bounds in elements, [rows, dims], padded with 0, 1.

    guard: what a launch decides of the access (guards.py); its elements are some of those in the bounds. 0: all of
    them.
    """

    task: Ints
    position: Ints
    kind: Ints
    peer: Ints
    tensor: Ints
    statement: Ints
    guard: Ints
    lo: Ints
    hi: Ints


@dataclass(frozen=True, kw_only=True)
class ChannelBox:
    """Channels [low, high) of a grid with `counts` channels along its dimensions. base: number of its first channel."""

    base: int
    counts: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @cached_property
    def channels(self) -> Ints:
        """The numbers of the channels, rising."""
        low, high = (np.array([ends], np.int64).reshape(1, -1) for ends in (self.low, self.high))
        return self.base + expand(low, high, self.counts)[1]


@dataclass(frozen=True, kw_only=True)
class Signals(Columns):
    """Waits and notifies, one row per channel. `channel` is numbered across all grids, without buffers.

    guard: of a wait that a launch may leave out, or whose channels it decides (guards.py). 0: of any other signal.
    Also of a signal that words carry, of which a launch may leave out words, or all of it.

    box: of a wait whose channels a launch decides, the number of the box from which they are, one row for all of them
    (`Plan.boxes`); `channel` is the first one. 0: of any other signal, which is for `channel`. Waits for words have a
    row for each channel.

    later, at: if `later` is 1, a program issues the notify at position `at` of its next task; otherwise `later` is 0.
    """

    task: Ints
    position: Ints
    kind: Ints
    peer: Ints
    channel: Ints
    statement: Ints
    later: Ints
    at: Ints
    guard: Ints
    box: Ints


def channels_of(signals: Signals, boxes: Sequence[ChannelBox], rows: Ints) -> tuple[Ints, Ints]:
    """Return signals and channels, rising: for each of some rows its channel, or all of those of its box.

    boxes: those that `signals` number from 1 on.
    """
    box = signals.box[rows]
    sizes = np.array([1, *(len(one.channels) for one in boxes)], np.int64)
    begins, count = np.append(0, np.cumsum(sizes)[:-1]), sizes[box]
    row = np.repeat(np.arange(len(rows)), count)
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - begins[box], count)
    every = np.concatenate([np.zeros(1, np.int64), *(one.channels for one in boxes)])
    return rows[row], np.where(box[row] > 0, every[place], signals.channel[rows][row])


@dataclass(frozen=True, kw_only=True)
class Barriers(Columns):
    """Barriers of the threads of a program, one row each.

    begin, end: positions of the innermost part of the task around it that a launch may leave out; -1 if there is none.
    """

    task: Ints
    position: Ints
    begin: Ints
    end: Ints


FENCE, QUIET = range(2)
"""Kinds of orders of a network."""


@dataclass(frozen=True, kw_only=True)
class NetworkOrders(Columns):
    """Fences and quiets of programs on several nodes, one row each. kind: FENCE or QUIET."""

    task: Ints
    position: Ints
    kind: Ints


@dataclass(frozen=True, kw_only=True)
class Transfers(Columns):
    """Transfers of data between ranks' tensors: the traced events of pushes, pulls and copies.

    `tensor`, `peer`, `offset`: target tensor, its rank and linear offset for a push; those of the source for a pull.
    """

    task: Ints
    position: Ints
    tensor: Ints
    peer: Ints
    offset: Ints
    elements: Ints


def number_tasks(bound: Bound) -> tuple[dict[str, int], int]:
    """Return the first task of each stage, and the number of all tasks.

    Tasks are numbered stage by stage, rank by rank, tile by tile.
    """
    first: dict[str, int] = {}
    used = 0
    for stage in bound.stages.values():
        first[stage.name] = used
        used += stage.total * bound.ranks
    return first, used


def number_channels(bound: Bound) -> tuple[dict[tuple[str, str], int], int]:
    """Return the first channel of each (tensor, kind), and the number of all channels of a rank."""
    base: dict[tuple[str, str], int] = {}
    used = 0
    for key, grid in bound.channels.items():
        base[key] = used
        used += grid.count
    return base, used
