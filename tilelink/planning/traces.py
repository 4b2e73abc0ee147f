"""Events that traces of a plan have: how many there are, and which channels of the plan positions in memory are."""

from __future__ import annotations

import numpy as np

from tilelink.ir.visitor import received, value_of
from tilelink.lowering.columns import Ints, distinct_rows
from tilelink.lowering.events import WAIT
from tilelink.planning.plan import Plan


def receives(plan: Plan) -> Ints:
    """Return the task of each execution of a read that waits for words: one trace event, for any number of channels.

    Entries that are looked up have no event.
    """
    of_values = (value_of(one) for _, one in plan.statements)
    reads = np.array([value is not None and bool(received(value)) for value in of_values], bool)
    rows = np.flatnonzero(plan.by_words & (plan.signals.kind == WAIT) & reads[plan.signals.statement])
    if not len(rows):
        return rows
    task, position = plan.signals.task[rows], plan.signals.position[rows]
    return task[distinct_rows([task, position, plan.signals.statement[rows]])[0]]


def most_spans(plan: Plan) -> int:
    """Return the maximum number of trace events of one program in one launch, with the waits before its tiles."""
    counted = ~plan.by_words
    each = np.bincount(np.concatenate([receives(plan), plan.transfers.task]).astype(np.int64), minlength=plan.tasks) + 1
    np.add.at(each, plan.signals.task[counted], plan.channel_counts[counted])
    programs = np.zeros(len(plan.workers), np.int64)
    np.add.at(programs, plan.worker, each)
    most = int(programs.max(initial=0))
    for kernel in plan.bound.kernels:
        for loop in kernel.loops:
            stage = plan.bound.stages[loop.stages[0]]
            own = each[plan.first_task[stage.name] :][: stage.total * plan.bound.ranks]
            if kernel.dynamic:  # one program may take all tiles
                most = max(most, int(own.reshape(plan.bound.ranks, -1).sum(axis=1).max(initial=0)))
            elif loop.compact is not None:  # any of its programs may have the tiles with the most events
                most = max(most, -(-stage.total // kernel.programs) * int(own.max(initial=0)))
    return most + 2 * plan.bound.ranks


class Pad:
    """Maps positions in the signal pad to the plan's channels."""

    def __init__(self, plan: Plan) -> None:
        self._grids = [(plan.channel_base[key], grid) for key, grid in plan.bound.channels.items()]

    def place(self, channel: int, epoch: int) -> tuple[int, int]:
        """Return (channel of the plan, launches of its buffer so far), or (-1, 1) for a counter of another buffer."""
        for base, grid in self._grids:
            if grid.base <= channel < grid.base + grid.buffers * grid.count:
                buffer, linear = divmod(channel - grid.base, grid.count)
                rounds, expected = divmod(epoch - 1, grid.buffers)
                return (base + linear, rounds + 1) if buffer == expected else (-1, 1)
        return -1, 1
