"""Accesses to tensors that are written in place: whether signals order those of different tasks to one element.

Each access has a bit. A task has seen its own accesses and, from a wait on, all that had been seen at the notifies that
it waits for. Signals decide what is seen, and the order in which tasks happen to run does not. So if one of two
accesses to an element is a write, and the later one has not seen the earlier one, they could have come in the other
order too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Signal = tuple[int, str, str]
"""(rank, tensor, signal kind)"""
Where = tuple[Any, ...]
"""Index of elements of a tensor."""


@dataclass(kw_only=True)
class Seen:
    """The accesses that come before what a task does next, as bits."""

    bits: int = 0


class Races:
    """The accesses so far, and what waiters for signals will have seen."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], in_place: bool) -> None:
        """in_place: False for a program without such tensors, of which nothing is noted."""
        self._shapes, self._in_place = shapes, in_place
        self._reads: dict[tuple[int, str], np.ndarray] = {}
        self._writes: dict[tuple[int, str], np.ndarray] = {}
        self._signals: dict[Signal, np.ndarray] = {}
        self._count = self._additions = 0

    def read(self, seen: Seen, rank: int, name: str, where: Where) -> bool:
        """Note a read. False if a write of one of its elements is not ordered before it."""
        writes, reads = self._of(self._writes, rank, name), self._of(self._reads, rank, name)
        ordered = not _all(writes[where]) & ~seen.bits
        self._note(seen, reads, where)
        return ordered

    def write(self, seen: Seen, rank: int, name: str, where: Where) -> bool:
        """Note a write. False if another access to one of its elements is not ordered before it."""
        writes, reads = self._of(self._writes, rank, name), self._of(self._reads, rank, name)
        ordered = not (_all(writes[where]) | _all(reads[where])) & ~seen.bits
        self._note(seen, writes, where)
        return ordered

    def add(self, seen: Seen, rank: int, name: str, where: Where) -> bool:
        """Note an addition. False if an access to one of its elements that is no addition is not ordered before it."""
        writes, reads = self._of(self._writes, rank, name), self._of(self._reads, rank, name)
        others = (_all(writes[where]) | _all(reads[where])) & ~self._additions
        ordered = not others & ~seen.bits
        self._additions |= 1 << self._count
        self._note(seen, writes, where)
        return ordered

    def told(self, seen: Seen, signal: Signal, where: Where) -> None:
        """Note a notify of elements."""
        if self._in_place:
            if signal not in self._signals:
                self._signals[signal] = self._nothing(signal[1])
            self._signals[signal][where] |= seen.bits

    def awaited(self, seen: Seen, signal: Signal, where: Where) -> None:
        """Note that a task has waited for all notifies of elements."""
        if signal in self._signals:
            seen.bits |= _all(self._signals[signal][where])

    def _note(self, seen: Seen, accesses: np.ndarray, where: Where) -> None:
        bit = 1 << self._count
        self._count += 1
        accesses[where] |= bit
        seen.bits |= bit

    def _of(self, table: dict[tuple[int, str], np.ndarray], rank: int, name: str) -> np.ndarray:
        if (rank, name) not in table:
            table[rank, name] = self._nothing(name)
        return table[rank, name]

    def _nothing(self, name: str) -> np.ndarray:
        return np.zeros(self._shapes[name], object)


def _all(bits: Any) -> int:
    """Return the bits of all elements together; a single element is an int itself."""
    return int(np.bitwise_or.reduce(np.asarray(bits, object), axis=None, initial=0))
