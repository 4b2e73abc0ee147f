"""The signals of a plan in a line, of which none depends on a later one, to answer many questions about order at once.

Each worker and each channel has a set: those of the events asked about that happen before what it does next, an integer
with a bit for each of them. Along the line a notify adds the set of its worker to that of its channel, and a wait adds
the set of its channel to that of its worker. The end of a worker is a notify and the begin of one of the next kernel a
wait, of a channel that stands for the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilelink.lowering.columns import Ints

TOGETHER = 4096
"""Events that are followed along a line together, at most: this bounds the memory of the sets."""


AFTER_ALL = 2**63 - 1
"""The key of a worker's end."""


def topological_order(worker: Ints, key: Ints, gives: np.ndarray, channel: Ints) -> SignalOrder | None:
    """Return signals in a line, or None if some wait for each other in a circle.

    A row for each: notifies have `gives`, keys are those of `Plan.key`. Each worker has an end, at AFTER_ALL.
    """
    rows = np.lexsort((gives, key, worker))
    giving, channels = gives[rows].tolist(), channel[rows].tolist()
    missing = np.bincount(channel[gives], minlength=int(channel.max()) + 1).tolist()
    blocked: dict[int, list[int]] = {}
    line: list[int] = []
    begins = np.diff(worker[rows], prepend=-1) != 0
    todo = np.flatnonzero(begins).tolist()  # the next row of each worker
    ends = [*begins[1:].tolist(), True]
    while todo:
        row = todo.pop()
        while True:
            here = channels[row]
            if giving[row]:
                missing[here] -= 1
                if not missing[here] and here in blocked:
                    todo += blocked.pop(here)
            elif missing[here]:
                blocked.setdefault(here, []).append(row)
                break
            line.append(row)
            if ends[row]:
                break
            row += 1
    if len(line) < len(rows):
        return None
    order = rows[line]
    return SignalOrder(worker=worker[order], key=key[order], gives=gives[order], channel=channel[order])


@dataclass(frozen=True, kw_only=True)
class SignalOrder:
    """Notifies and waits in a line, see `topological_order`."""

    worker: Ints
    key: Ints
    gives: np.ndarray
    channel: Ints

    def before(self, first: tuple[Ints, Ints], group: Ints, second: tuple[Ints, Ints]) -> np.ndarray:
        """Mask of the pairs of events (first[group], second) in which the former happens before the latter.

        Events are (worker, key). A pair of one worker is not in order: else no search would be needed.
        """
        starts, stops = self._rows(*first), self._rows(*second)
        followed = np.argsort(starts, kind="stable")
        ordinal = np.empty(len(starts), np.int64)
        ordinal[followed] = np.arange(len(starts))
        pairs = np.flatnonzero(first[0][group] != second[0])
        portion = ordinal[group[pairs]] // TOGETHER
        result = np.zeros(len(group), bool)
        for number in np.unique(portion).tolist():
            begin = number * TOGETHER
            sources, asked = followed[begin : begin + TOGETHER], pairs[portion == number]
            rows = np.concatenate([starts[sources], stops[asked]])
            workers = np.concatenate([first[0][sources], second[0][asked]])
            bits = np.concatenate([np.arange(len(sources)), ordinal[group[asked]] - begin])
            order = np.argsort(rows, kind="stable")
            answers = self._follow(rows[order].tolist(), workers[order].tolist(), bits[order].tolist(),
                                   (order >= len(sources)).tolist())  # fmt: skip
            result[asked[order[order >= len(sources)] - len(sources)]] = answers
        return result

    def _follow(self, rows: list[int], workers: list[int], bits: list[int], asks: list[bool]) -> list[bool]:
        """Return the answer to each question: whether a worker has the bit of a source when it comes to a row.

        rows: in rising order, each with its worker and a bit: of a source there, or of one that is asked for.
        """
        sets, edges, here = [0] * self._nodes, self._edges, rows[0]
        answers: list[bool] = []
        for row, worker, bit, ask in zip(rows, workers, bits, asks, strict=True):
            for origin, goal in edges[here:row]:
                if sets[origin]:
                    sets[goal] |= sets[origin]
            here = row
            if ask:
                answers.append(bool(sets[worker] >> bit & 1))
            else:
                sets[worker] |= 1 << bit
        return answers

    def _rows(self, worker: Ints, key: Ints) -> Ints:
        """Return the row of the first signal that a worker has at a key or after it."""
        order, distinct, numbers = self._by_worker
        return order[np.searchsorted(numbers, worker * len(distinct) + np.searchsorted(distinct, key))]

    @cached_property
    def _by_worker(self) -> tuple[Ints, Ints, Ints]:
        """The rows by worker and key, all keys, and a number for the worker and the key of each of these rows."""
        order = np.argsort(self.worker, kind="stable")
        distinct, number = np.unique(self.key, return_inverse=True)
        return order, distinct, self.worker[order] * len(distinct) + number.ravel()[order]

    @cached_property
    def _edges(self) -> list[tuple[int, int]]:
        """For each row the node whose set is added to that of another one: workers, then channels."""
        channel = self.channel + int(self.worker.max()) + 1
        origin, goal = np.where(self.gives, self.worker, channel), np.where(self.gives, channel, self.worker)
        return list(zip(origin.tolist(), goal.tolist(), strict=True))

    @cached_property
    def _nodes(self) -> int:
        return int(self.worker.max()) + int(self.channel.max()) + 2
