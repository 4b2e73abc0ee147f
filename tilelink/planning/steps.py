"""Accesses as places in memory: tensors with slots hold some of their steps at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilelink.planning.plan import Plan


def in_memory(plan: Plan) -> Plan:
    """Return the plan whose accesses name places in memory: a step is in slot `step % slots` of its dimension.

    Only accesses change: their boxes have one step each (the rule `steps` refuses others).
    """
    stepped = [tensor for tensor in plan.bound.tensors.values() if tensor.steps is not None]
    if not stepped:
        return plan
    a = plan.accesses
    lo, hi = a.lo.copy(), a.hi.copy()
    for tensor in stepped:
        assert tensor.steps is not None
        dim, slots = tensor.steps
        rows = np.flatnonzero(a.tensor == tensor.number)
        lo[rows, dim] %= slots
        hi[rows, dim] = lo[rows, dim] + 1
    return replace(plan, accesses=replace(a, lo=lo, hi=hi))
