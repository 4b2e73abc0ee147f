"""Signals that are there and miss: a task waits for another part of a tensor than it reads, or notifies another part
than it writes. To be told to notify and to wait would help nobody who does both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilelink.lowering.columns import Ints
from tilelink.lowering.enumerate import NOTIFY, WAIT
from tilelink.lowering.places import box
from tilelink.planning.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Signal:
    """One execution of a wait or a notify: its statement, the rank whose counters it is about, the elements they guard.

    lo, hi: the box around its channels.
    """

    statement: int
    rank: int
    lo: Ints
    hi: Ints

    def __str__(self) -> str:
        return box(self.lo, self.hi, len(self.lo))


@dataclass(frozen=True, kw_only=True)
class Astray:
    """The wait of a reader, and the notify of a writer, that miss what is read and written; None: not known to miss."""

    wait: Signal | None
    notify: Signal | None


def astray(plan: Plan, name: str, rank: int, write: int, read: int) -> Astray:
    """Whether signals of the tensor, before the read and after the write, are about other elements than both access."""
    a, shape = plan.accesses, plan.bound.tensors[name].shape
    dims = len(shape)
    lo = np.maximum(a.lo[write, :dims], a.lo[read, :dims])
    hi = np.minimum(a.hi[write, :dims], a.hi[read, :dims])
    s = plan.signals
    before = (s.task == a.task[read]) & (s.kind == WAIT) & (s.position < a.position[read])
    after = (s.task == a.task[write]) & (s.kind == NOTIFY) & (s.position > a.position[write])
    waits = _signals(plan, name, np.flatnonzero(before))
    notifies = _signals(plan, name, np.flatnonzero(after))
    # What a task waits for says nothing of a peer's tensor: such a read is ordered in another way, or not at all.
    at_home = all(wait.rank == rank for wait in waits)
    wait = waits[-1] if waits and at_home and not any(_meets(one, rank, lo, hi) for one in waits) else None
    notify = notifies[0] if notifies and not any(_meets(one, rank, lo, hi) for one in notifies) else None
    return Astray(wait=wait, notify=notify)


def _signals(plan: Plan, name: str, rows: Ints) -> list[Signal]:
    """The signals of a tensor among rows of plan.signals, in the order in which their task comes to them."""
    s, shape = plan.signals, np.array(plan.bound.tensors[name].shape)
    found: dict[int, Signal] = {}
    for row in rows[np.argsort(s.position[rows], kind="stable")]:
        tensor, kind, cell = plan.channel_name(int(s.channel[row]))
        if tensor != name:
            continue
        sizes = np.array(plan.bound.channels[tensor, kind].sizes)
        lo = np.array(cell) * sizes
        hi = np.minimum(lo + sizes, shape)
        known = found.get(int(s.position[row]))
        if known is not None:
            lo, hi = np.minimum(lo, known.lo), np.maximum(hi, known.hi)
        found[int(s.position[row])] = Signal(statement=int(s.statement[row]), rank=int(s.peer[row]), lo=lo, hi=hi)
    return list(found.values())


def _meets(signal: Signal, rank: int, lo: Ints, hi: Ints) -> bool:
    return signal.rank == rank and bool(((signal.lo < hi) & (lo < signal.hi)).all())
