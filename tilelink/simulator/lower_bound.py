"""Lower bound for the time of a program on a machine, over all schedules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.program import ITEM_BYTES
from tilelink.lowering.columns import Ints
from tilelink.planning.plan import Plan
from tilelink.simulator.machine import Machine
from tilelink.simulator.sampled import elements_of, shares_of
from tilelink.simulator.script import FAR, Moves, Script


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Seconds that no schedule of this program with these sizes can beat on this machine, under any cost model.

    compute: seconds of the busiest rank, with its work spread evenly over all SMs and without edges: its products, its
    elementwise work, or moving every byte of its inputs and outputs through memory once, whichever takes longest.
    transfer: seconds of the busiest link at its full rate.
    """

    compute: float
    transfer: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.transfer)


def bound_of(script: Script) -> Bound:
    """Return the bound of a plan, from the operations and the bytes that its script counts."""
    machine, least = script.machine, script.least
    peak = max([machine.matmul_flops, *machine.tile_flops.values()])
    rates = np.array([peak, machine.vector_flops, machine.special_rate])
    compute = max(float((least / rates).max(initial=0.0)), _memory(script.plan, machine))
    return Bound(compute=compute, transfer=_transfer(script.moves, machine, script.plan.bound.ranks))


def _memory(plan: Plan, machine: Machine) -> float:
    """Return the seconds to move every accessed byte of what is given, returned or kept once, on the rank with most."""
    a, tensors = plan.accesses, plan.bound.tensors.values()
    size = np.zeros(len(tensors))
    for tensor in tensors:
        if tensor.decl.is_given or tensor.decl.is_result or tensor.decl.in_place:
            size[tensor.number] = tensor.size * ITEM_BYTES[tensor.dtype]
    rows = np.flatnonzero(size[a.tensor] > 0)
    place = a.peer[rows] * len(tensors) + a.tensor[rows]
    columns = np.concatenate([place[:, None], a.lo[rows], a.hi[rows]], axis=1)
    _, first = np.unique(_mixed(columns), return_index=True)
    items = np.array([ITEM_BYTES[t.dtype] for t in sorted(tensors, key=lambda t: t.number)])
    volume = elements_of(plan)[rows][first].astype(np.float64) * items[a.tensor[rows][first]]
    touched = np.bincount(place[first], weights=volume, minlength=plan.bound.ranks * len(tensors))
    once = np.minimum(touched.reshape(plan.bound.ranks, -1), size * shares_of(plan))
    return float(once.sum(axis=1).max(initial=0.0)) / machine.memory_bandwidth


def _mixed(columns: Ints) -> NDArray[np.uint64]:
    """Return a hash of each row. A collision of two different rows is rare, and only lowers the bound a little."""
    mixed = np.zeros(len(columns), np.uint64)
    for column in columns.T.astype(np.uint64):
        mixed = (mixed ^ column) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _transfer(moves: Moves, machine: Machine, ranks: int) -> float:
    busiest = 0.0
    for reach, bandwidth in ((FAR - 1, machine.link_bandwidth), (FAR, machine.network_bandwidth)):
        rows = moves.reach == reach
        for end in (moves.source, moves.target):
            port = machine.adapters(end[rows]) if reach == FAR else end[rows]
            sizes = np.bincount(port, weights=moves.data[rows], minlength=ranks)
            busiest = max(busiest, float(sizes.max(initial=0.0)) / bandwidth)
    return busiest
