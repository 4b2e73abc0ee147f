"""Rule 6: a later launch cannot overwrite what an earlier one still reads, or count its signals for it.

Launch e + B uses the buffer of launch e again. A kernel that waits until every peer has finished launch e - lag is
safe for tensors with at least lag buffers. Without that wait the program's own signals must keep ranks together: if
the end of every launch on r happens after the start of that launch on q, r is at most one launch ahead of q.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.errors import ReuseError, VerificationError
from tilelink.schedule.plan import NOTIFY, READ, WAIT, Plan
from tilelink.schedule.verify.happens_before import HappensBefore
from tilelink.schedule.verify.refusal import refuse


def reuse(plan: Plan) -> Iterator[VerificationError]:
    """Refusals of accesses to a peer that can run into an earlier launch of it."""
    reached: dict[int, np.ndarray] = {}
    together = _together(plan) if any(k.reuse_lag == 0 for k in plan.bound.kernels) else None
    for kernel, rank, peer, tensor, task, statement in _meetings(plan):
        bound = plan.bound.kernels[kernel]
        slots = plan.bound.tensor_numbered(tensor)
        if 1 <= bound.reuse_lag <= slots.slots:
            continue
        if bound.reuse_lag == 0 and together is not None:
            if slots.slots not in reached:
                reached[slots.slots] = np.linalg.matrix_power(together, slots.slots - 1) > 0
            if reached[slots.slots][rank, peer]:
                continue
        message = f"touches {slots.name} of rank {peer}, which may still be {slots.slots} launches behind"
        hint = f"drop `reuse_wait off`, or give {slots.name} more buffers"
        yield refuse(ReuseError, plan, message, task=task, statement=statement, hint=hint)
        return


def _meetings(plan: Plan) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(kernel, rank, peer, tensor, task, statement): who touches whose memory, once each."""
    a, s = plan.accesses, plan.signals
    kernel = np.array([n for n, _, _ in plan.lanes])
    rank = np.array([r for _, r, _ in plan.lanes])
    numbers = np.full(max(plan.channels, 1), -1)
    for (tensor, kind), grid in plan.bound.channels.items():
        base = plan.channel_base[tensor, kind]
        numbers[base : base + grid.count] = plan.bound.tensors[tensor].number
    notify = s.kind == NOTIFY
    task = np.concatenate([a.task, s.task[notify]])
    peer = np.concatenate([a.peer, s.peer[notify]])
    tensor = np.concatenate([a.tensor, numbers[s.channel[notify]]])
    statement = np.concatenate([a.statement, s.statement[notify]])
    own = rank[plan.lane[task]]
    rows = np.stack([kernel[plan.lane[task]], own, peer, tensor], axis=1)
    far = np.flatnonzero(own != peer)
    _, first = np.unique(rows[far], axis=0, return_index=True)
    for row in far[first]:
        yield (*map(int, rows[row]), int(task[row]), int(statement[row]))  # type: ignore[misc]
    yield from _pulled_from(plan, kernel, rank)


def _pulled_from(plan: Plan, kernel: np.ndarray, rank: np.ndarray) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Writes of an own tensor that a peer reads: the peer may still read the buffer's last launch."""
    a = plan.accesses
    own = rank[plan.lane[a.task]]
    inputs = [t.number for t in plan.bound.tensors.values() if t.decl.space == "in"]
    far = (a.kind == READ) & (own != a.peer) & ~np.isin(a.tensor, inputs)
    readers = {(int(t), int(p), int(o)) for t, p, o in zip(a.tensor[far], a.peer[far], own[far], strict=True)}
    for tensor, owner, reader in sorted(readers):
        rows = np.flatnonzero((a.kind != READ) & (a.tensor == tensor) & (own == owner) & (a.peer == owner))
        for row in rows[:1]:
            yield int(kernel[plan.lane[a.task[row]]]), owner, reader, tensor, int(a.task[row]), int(a.statement[row])


def _together(plan: Plan) -> np.ndarray:
    """[r, q]: the start of a launch on q happens before its end on r."""
    order = HappensBefore(plan=plan)
    ranks = plan.bound.ranks
    result = np.eye(ranks, dtype=np.int64)
    waits = plan.signals.kind == WAIT
    if not waits.any():
        return result
    for lane, (_, q, _) in enumerate(plan.lanes):
        for other in order.reach(lane, -1):
            result[plan.lanes[other][1], q] = 1
    return result
