"""Progress where tiles are in turn: an order of all tiles in which each wait comes after all that it waits for.

It is that of kernels, in which one comes after those that it waits for and after earlier ones of its stream, and in a
kernel that of the places of tiles. A tile then comes after those before it in its program, whichever that is, and after
all of earlier kernels of its stream. So the first wait of it that lasts for ever would wait for what has come, if all
programs that wait fit on a rank. Words of data and flag are signals like others: a launch that does not send some does
not wait for them either (coverage). Most programs have such an order, and it is read off columns; of others the rule
`progress` runs all programs.
"""

from __future__ import annotations

import numpy as np

from tilelink.lowering.columns import Ints, distinct_rows, expand
from tilelink.lowering.events import NOTIFY, WAIT
from tilelink.planning.plan import Plan

MOST_PAIRS = 1 << 22
"""Pairs of a wait and a notify that are looked at one by one, at most."""


def in_turn(plan: Plan) -> bool:
    """True if no wait of a plan lasts for ever, as tiles are in turn. It has the columns of its bound program."""
    bound = plan.bound
    return (
        plan.as_enumerated
        and bound.nodes == 1
        and bound.coresident_throughout <= bound.resident_programs
        and waits_in_turn(plan)
    )


def waits_in_turn(plan: Plan) -> bool:
    """True if each wait comes after all notifies that it is for, kernel by kernel and by the places of tiles."""
    bound, s = plan.bound, plan.signals
    if not (s.kind == WAIT).any():
        return True
    number, nowhere = len(bound.kernels), np.iinfo(np.int64).max
    place, kernel = _places(plan)[s.task], plan.task_kernels[s.task]
    notifies, waits = np.flatnonzero(s.kind == NOTIFY), np.flatnonzero(s.kind == WAIT)
    counters = bound.ranks * plan.channels
    last, first = np.full(number * counters, -1), np.full(number * counters, nowhere)
    deferred = np.where(s.later[notifies] > 0, nowhere - 1, place[notifies])
    np.maximum.at(last, kernel[notifies] * counters + plan.counters[notifies], deferred)
    waits = waits[np.argsort(place[waits], kind="stable")]
    waits = waits[distinct_rows([kernel[waits], plan.counters[waits], s.box[waits]])[0]]  # the first ones
    rows, channels = plan.each_channel(waits)
    np.minimum.at(first, kernel[rows] * counters + s.peer[rows] * plan.channels + channels, place[rows])
    last, first = last.reshape(number, -1), first.reshape(number, -1)
    before = [(one, other) for one, a in enumerate(bound.kernels) for other, b in enumerate(bound.kernels)
              if a.stream == b.stream and a.position < b.position]  # fmt: skip
    for giver in range(number):
        for taker in range(number):
            both = (last[giver] >= 0) & (first[taker] < nowhere)
            if giver != taker and both.any():
                before.append((giver, taker))
            elif giver == taker and (last[giver][both] >= first[taker][both]).any():
                return False
    one, other = np.array(before, np.int64).reshape(-1, 2).T
    return ends(number, one, other)


def waits_at_places(plan: Plan, place: Ints) -> bool:
    """True if no wait lasts for ever of a program that is turned by one rank (planning/rotation.py), as it waits for
    earlier kernels, or for what is at the same place on other ranks. plan: of rank 0. place: that of each task.

    The order of all tiles is that of kernels, in a kernel that of places, and at a place that of a graph without circle
    in which tiles that are turned into one another are one. Tiles at one place are turned to one place, so what is true
    of the waits of the plan is true of all.
    """
    s, kernels, ranks = plan.signals, plan.bound.kernels, plan.bound.ranks
    notifies, waits = np.flatnonzero(s.kind == NOTIFY), np.flatnonzero(s.kind == WAIT)
    notifies = notifies[np.argsort(plan.counters[notifies], kind="stable")]
    given, wanted = plan.counters[notifies], plan.counters[waits]
    begin, end = (np.searchsorted(given, wanted, side=side) for side in ("left", "right"))
    if (s.later > 0).any() or s.box.any() or int((end - begin).sum()) > MOST_PAIRS:
        return False
    source, at = expand(begin[:, None], end[:, None], (len(notifies),))
    one, other = s.task[notifies[at]], s.task[waits[source]]
    stage, tile = np.zeros(plan.tasks, np.int64), np.zeros(plan.tasks, np.int64)
    for number, (name, first) in enumerate(plan.first_task.items()):
        total = plan.bound.stages[name].total
        stage[first : first + ranks * total] = number
        tile[first : first + ranks * total] = first // ranks + np.tile(np.arange(total), ranks)
    apart = plan.task_kernels[one] != plan.task_kernels[other]
    before = [(a, b) for a, one_ in enumerate(kernels) for b, other_ in enumerate(kernels)
              if one_.stream == other_.stream and one_.position < other_.position]  # fmt: skip
    earlier = np.array(before, np.int64).reshape(-1, 2).T
    first, last = (np.concatenate([column, plan.task_kernels[task[apart]]])
                   for column, task in zip(earlier, (one, other), strict=True))  # fmt: skip
    one, other = one[~apart], other[~apart]
    alike = (stage[one] == stage[other]) & (place[one] == place[other])
    return bool(alike.all()) and ends(len(kernels), first, last) and ends(plan.tasks // ranks, tile[one], tile[other])


def _places(plan: Plan) -> Ints:
    """Return the place of each task in its kernel: programs take tiles, and the stages of a tile, in that order, and
    go step by step where loops take turns."""
    places = np.zeros(plan.tasks, np.int64)
    for kernel in plan.bound.kernels:
        totals = [plan.bound.stages[loop.stages[0]].total for loop in kernel.loops]
        sizes = [(loop.each or total) * len(loop.stages) for loop, total in zip(kernel.loops, totals, strict=True)]
        for at_loop, (loop, total) in enumerate(zip(kernel.loops, totals, strict=True)):
            step, tile = np.divmod(np.arange(total), loop.each or max(1, total))
            begin = step * sum(sizes) + sum(sizes[:at_loop])
            for number, name in enumerate(loop.stages):
                at, own = plan.first_task[name], begin + tile * len(loop.stages) + number
                places[at : at + plan.bound.ranks * total] = np.tile(own, plan.bound.ranks)
    return places


def ends(nodes: int, one: Ints, other: Ints) -> bool:
    """True if a graph has no circle. Its edges lead from `one` to `other`."""
    edges = np.unique(one * nodes + other)
    one, other = np.divmod(edges, nodes)
    left = np.bincount(other, minlength=nodes).tolist()
    begins = np.searchsorted(one, np.arange(nodes + 1)).tolist()
    after = other.tolist()
    ready = [node for node in range(nodes) if not left[node]]
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        for at in after[begins[node] : begins[node + 1]]:
            left[at] -= 1
            if not left[at]:
                ready.append(at)
    return done == nodes
