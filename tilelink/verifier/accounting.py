"""Rule `accounting`: for every wait, the notifies that reach its channel add up to its threshold, no more and no fewer.

The end of a launch is a wait too, for all channels of the outputs that peers may write.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.errors import AccountingError, VerificationError
from tilelink.lowering.columns import Ints
from tilelink.lowering.events import WAIT, WRITE
from tilelink.planning.plan import Plan, count_thresholds
from tilelink.verifier.refusal import refuse, where


def accounting(plan: Plan) -> Iterator[VerificationError]:
    """Yield refusals of waits for channels that no stage notifies, and of thresholds that differ from the notifies
    that arrive: first for the waits of stages, then for the end of a launch."""
    s, bound = plan.signals, plan.bound
    if not plan.channels:
        return
    recount = count_thresholds(bound, s, plan.channel_base, plan.channels)
    arrive = np.concatenate([recount[k].reshape(bound.ranks, -1) for k in bound.channels], axis=1)
    needed = np.concatenate([plan.thresholds[k].reshape(bound.ranks, -1) for k in bound.channels], axis=1)
    wrong = (arrive != needed) | (needed == 0)
    failing = np.flatnonzero(plan.with_channel(wrong) & (s.kind == WAIT))
    for row, number in zip(*(column.tolist() for column in plan.each_channel(failing)), strict=True):
        if not wrong[s.peer[row], number]:
            continue
        tensor, kind, cell = plan.channel_name(number)
        count = int(arrive[s.peer[row], number])
        wanted = int(needed[s.peer[row], number])
        channel = f"{tensor} channel {list(cell)} ({kind} signals)"
        writer = None
        if count == 0:
            message = f"waits for {channel}, which no stage notifies"
            writer, hint = _silent(plan, (tensor, kind), cell, int(s.peer[row]))
            if (freed := bound.tensors[tensor].credits) is not None:
                hint = f"a slot of {freed} is free when its step has been read: read what each rank writes of each step"
        else:
            message = f"waits for {wanted} notifies of {channel}, but {count} arrive"
            hint = "the threshold must be the number of notifies of one launch"
        yield refuse(
            AccountingError, plan, message, task=int(s.task[row]), statement=int(s.statement[row]), related=writer,
            hint=hint,
        )  # fmt: skip
    yield from _ends(plan, arrive, needed)


def _silent(plan: Plan, signal: tuple[str, str], cell: tuple[int, ...], rank: int) -> tuple[int | None, str]:
    """Return a statement that writes what a channel of a rank guards, or None, and a hint to notify it."""
    a, (tensor, _) = plan.accesses, signal
    sizes = np.array(plan.bound.channels[signal].sizes)
    low, high = (place * sizes for place in (np.array(cell), np.array(cell) + 1))
    writes = (a.tensor == plan.bound.tensors[tensor].number) & (a.kind == WRITE) & (a.peer == rank)
    meets = ((a.lo[:, : len(cell)] < high) & (a.hi[:, : len(cell)] > low)).all(axis=1)
    found = np.flatnonzero(writes & meets)
    how = "with the matching primitive"
    if not len(found):
        return None, f"notify the region of {tensor} on this rank after writing it, {how}"
    whom = where(plan, int(a.task[found[0]]))
    put_in = f"signals are put in for tensors of which the text has none, and it has one of {tensor}"
    return int(a.statement[found[0]]), f"{whom} writes it: notify it there after the write, {how} ({put_in})"


def _ends(plan: Plan, arrive: Ints, needed: Ints) -> Iterator[AccountingError]:
    for (tensor, kind), grid in plan.bound.channels.items():
        decl = plan.bound.tensors[tensor].decl
        if decl.space != "out" or not decl.symmetric:
            continue
        base = plan.channel_base[tensor, kind]
        here = slice(base, base + grid.count)
        for rank, place in np.argwhere(arrive[:, here] != needed[:, here]):
            cell = list(plan.channel_name(base + int(place))[2])
            counts = f"{needed[rank, base + place]} notifies of {tensor} channel {cell} ({kind} signals)"
            message = f"the end of a launch on rank {rank} waits for {counts}, but {arrive[rank, base + place]} arrive"
            hint = "the threshold must be the number of notifies of one launch"
            yield AccountingError(message, location=decl.location, hint=hint)
