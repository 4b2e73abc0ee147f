"""Mismatched signals: a task waits for another part of a tensor than it reads, or notifies another part than it writes.

They are reported apart from missing signals: a hint to add a notify and a wait would not help a program that has both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilelink.lowering.columns import Ints
from tilelink.lowering.events import NOTIFY, WAIT
from tilelink.lowering.places import box
from tilelink.planning.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Signal:
    """One execution of a wait or a notify: its statement, the rank that holds the counters, the elements they guard.

    lo, hi: bounding box of its channels, in elements.
    """

    statement: int
    rank: int
    lo: Ints
    hi: Ints

    def __str__(self) -> str:
        return box(self.lo, self.hi, len(self.lo))


@dataclass(frozen=True, kw_only=True)
class MismatchedSignals:
    """The reader's wait and the writer's notify that do not cover the shared elements; None if no mismatch is known."""

    wait: Signal | None
    notify: Signal | None


def mismatched_signals(plan: Plan, name: str, rank: int, write: int, read: int) -> MismatchedSignals:
    """Return the last wait before the read and the first notify after the write, each if no such signal of the tensor
    covers elements that both access."""
    a, shape = plan.accesses, plan.bound.tensors[name].shape
    dims = len(shape)
    lo = np.maximum(a.lo[write, :dims], a.lo[read, :dims])
    hi = np.minimum(a.hi[write, :dims], a.hi[read, :dims])
    s = plan.signals
    before = (s.task == a.task[read]) & (s.kind == WAIT) & (s.position < a.position[read])
    after = (s.task == a.task[write]) & (s.kind == NOTIFY) & (s.position > a.position[write])
    waits = _signals(plan, name, np.flatnonzero(before))
    notifies = _signals(plan, name, np.flatnonzero(after))
    # A local wait says nothing about a peer's tensor: such a read is ordered in another way, or not at all.
    at_home = all(wait.rank == rank for wait in waits)
    wait = waits[-1] if waits and at_home and not any(_overlaps(w, rank, lo, hi) for w in waits) else None
    notify = notifies[0] if notifies and not any(_overlaps(n, rank, lo, hi) for n in notifies) else None
    return MismatchedSignals(wait=wait, notify=notify)


def _signals(plan: Plan, name: str, rows: Ints) -> list[Signal]:
    """Return the signals of a tensor among rows of plan.signals, in the order in which their task executes them."""
    s, shape = plan.signals, np.array(plan.bound.tensors[name].shape)
    signals: dict[int, Signal] = {}
    for row in rows[np.argsort(s.position[rows], kind="stable")]:
        tensor, kind, cell = plan.channel_name(int(s.channel[row]))
        if tensor != name:
            continue
        sizes = np.array(plan.bound.channels[tensor, kind].sizes)
        end = np.array(plan.boxes[s.box[row] - 1].high if s.box[row] else cell) + (s.box[row] == 0)
        lo = np.array(cell) * sizes
        hi = np.minimum(end * sizes, shape)
        known = signals.get(int(s.position[row]))
        if known is not None:
            lo, hi = np.minimum(lo, known.lo), np.maximum(hi, known.hi)
        signals[int(s.position[row])] = Signal(statement=int(s.statement[row]), rank=int(s.peer[row]), lo=lo, hi=hi)
    return list(signals.values())


def _overlaps(signal: Signal, rank: int, lo: Ints, hi: Ints) -> bool:
    return signal.rank == rank and bool(((signal.lo < hi) & (lo < signal.hi)).all())
