"""Copies that are too small for a copy engine: what they cost it, and the clause of the schedule that helps."""

from __future__ import annotations

import numpy as np

from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.channel import dim_name
from tilelink.lowering.merge_copies import small_channels
from tilelink.simulator.result import Simulated
from tilelink.simulator.script import MOVE, SIGNAL

SHARE = 0.25
"""Share of a launch from which on the calls of a copy engine are worth a remark."""


def small_copies(result: Simulated) -> list[str]:
    """Return a remark for each stage whose copies and flags cost a copy engine more than their bytes do, and a large
    part of the launch."""
    script, machine, bound = result.timeline.script, result.machine, result.plan.bound
    first, found = result.plan.first_task, list[str]()
    for kernel in (one for one in bound.kernels if one.on_copy_engine):
        for name in kernel.stage_names:
            own = (script.task >= first[name]) & (script.task < first[name] + bound.ranks * bound.stages[name].total)
            moves = np.flatnonzero(own & (script.kind == MOVE))
            flags = np.flatnonzero(own & (script.kind == SIGNAL) & ~script.early)
            copies, signals = (np.bincount(script.rank[rows], minlength=bound.ranks) for rows in (moves, flags))
            size = np.bincount(script.rank[moves], weights=script.moves.size[script.what[moves]], minlength=bound.ranks)
            calls = copies * machine.copy_call + signals * machine.copy_signal
            rank = int(calls.argmax())
            moving = float(size[rank]) / machine.link_bandwidth
            if calls[rank] > max(moving, SHARE * result.seconds):
                mean = _bytes(float(size[rank]) / max(1, int(copies[rank])))
                taken = f"{copies[rank]} copies of {mean} and {signals[rank]} flags take {calls[rank] * 1e6:.0f} us of"
                place = f"the copy engine of rank {rank}, and their bytes {moving * 1e6:.0f} us"
                found.append(f"{name}: {taken} {place}; {_remedy(bound, name)}")
    return found


def _remedy(bound: Bound, name: str) -> str:
    """Return what a schedule may say instead."""
    sizes: dict[str, list[str]] = {}
    for tensor, dim in small_channels(bound, name):
        called = dim_name(bound.program, bound.tensors[tensor].decl, dim)
        least = min(grid.sizes[dim] for grid in bound.channels.values() if grid.tensor == tensor)
        if called:
            sizes.setdefault(tensor, []).append(f"{called}={least}")
    if not sizes:
        return f"{name} on sm(n) copies small regions faster"
    held = ", ".join(f"{tensor} channel({', '.join(parts)})" for tensor, parts in sizes.items())
    return f"a region is no larger than its channels, {held}: make them larger, or take {name} on sm(n)"


def _bytes(size: float) -> str:
    """Return a number of bytes in its unit."""
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:.4g} bytes"
