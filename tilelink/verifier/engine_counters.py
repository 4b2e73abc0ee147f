"""Part of rule `accounting`: counters that a copy engine writes, on processors whose copy engines cannot add.

The copy engine of a GPU writes its number of notifies into a counter, to which a program adds. What a program waits for
grows from launch to launch; after a wait of the copy engine its stream writes 0 (runtime/cuda/record_copies.py). So

* a counter that a queue of copies notifies has no other notifier, neither a program nor a queue of another kernel or
  rank;
* a counter that a queue of copies waits for has no program of its rank that waits for it, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.errors import AccountingError, VerificationError
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import NOTIFY, WAIT
from tilelink.planning.plan import Plan
from tilelink.verifier.refusal import refuse


def engine_counters(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of signals of copy engines whose counters others use, too."""
    of_engine = np.array([kernel.on_copy_engine for kernel in plan.bound.kernels], bool)
    if plan.bound.capabilities.engines_count or not of_engine.any():
        return
    s = plan.signals
    queue = plan.task_kernels[s.task] * plan.bound.ranks + plan.task_ranks[s.task]
    by_engine = of_engine[plan.task_kernels[s.task]]
    hint = "give the stage a channel of its own, or run it on sm"
    for row, other in _pairs(plan, np.flatnonzero(s.kind == NOTIFY), by_engine, queue):
        whose = f"rank {plan.task_ranks[s.task[other]]}, {plan.task_name(int(s.task[other]))[0]}, notifies"
        yield _refused(plan, row, other, f"the copy engine cannot add to {_name(plan, row)}, which {whose} too", hint)
    for row, other in _pairs(plan, np.flatnonzero(s.kind == WAIT), by_engine, by_engine):
        stage = plan.task_name(int(s.task[other]))[0]
        yield _refused(
            plan, row, other, f"the copy engine resets {_name(plan, row)}, for which {stage} waits too", hint
        )


def _pairs(plan: Plan, rows: Ints, by_engine: Ints, who: Ints) -> Iterator[tuple[int, int]]:
    """Yield, for each counter, a signal of a copy engine and one of somebody else. who: signal -> its sender."""
    s = plan.signals
    there = np.zeros((plan.bound.ranks, plan.channels), bool)
    engines, channels = plan.each_channel(rows[by_engine[rows]])
    there[s.peer[engines], channels] = True
    rows, channels = plan.each_channel(rows[plan.with_channel(there)[rows]])
    some = there[s.peer[rows], channels]
    rows, counters = rows[some], s.peer[rows[some]] * plan.channels + channels[some]
    order = np.lexsort((~by_engine[rows], counters))  # of each counter, those of an engine come first
    rows, counters = rows[order], counters[order]
    begins = np.flatnonzero(np.diff(counters, prepend=-1))
    first = np.repeat(rows[begins], np.diff(begins, append=len(rows)))
    differ = np.flatnonzero(who[first] != who[rows])
    for at in differ[np.unique(counters[differ], return_index=True)[1]]:
        yield int(first[at]), int(rows[at])


def _name(plan: Plan, row: int) -> str:
    tensor, kind, cell = plan.channel_name(int(plan.signals.channel[row]))
    return f"{tensor} channel {list(cell)} ({kind} signals) of rank {plan.signals.peer[row]}"


def _refused(plan: Plan, row: int, other: int, message: str, hint: str) -> AccountingError:
    s = plan.signals
    statement, related = int(s.statement[row]), int(s.statement[other])
    return refuse(
        AccountingError, plan, message, task=int(s.task[row]), statement=statement, related=related, hint=hint
    )
