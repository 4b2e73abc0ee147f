"""How attention over ranks computes its gradients where its caller does not say: by one kernel or unfused.

Who says nothing is never to be slower for it, so the kernel is taken where it is predicted to be clearly faster. In
three cases that two H200s measured the model finds the kernel 5, 7 and 25 % slower than it is. Its three numbers of the
unfused gradients are fitted to the same cases, from which it is up to 9 % apart; there are no others yet.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cache
from math import inf, prod

from tilelink import compiler
from tilelink.errors import TileLinkError
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.ops.decide import SURE, US
from tilelink.ops.operators import UNFUSED
from tilelink.ops.own import of_library
from tilelink.ops.predict import machine_of, predicted_seconds
from tilelink.simulator import seconds_by_few
from tilelink.simulator.machine import Machine
from tilelink.target import Target

ROLES = "gpu_roles"
"""The schedule by warps with roles, of attention and of its gradients."""
FLAT = 4
"""Dimensions of queries without chunks, [H, G, M, D]; in zigzag they are [H, G, 2, N, B, D]."""
PRODUCTS = 5
"""Products of rows and keys in gradients: those of scores and weights again, and one for each of dq, dk and dv."""
VENDOR_SHARE, VENDOR_BYTES, VENDOR_PART = 0.6, 48, 55e-6
"""The vendor's gradients of one part: the fraction of a machine's rate of products that they reach, the bytes that they
and what adds parts up move for each element of its queries, and the seconds that each part adds, with what of its
transfers is not hidden. Of an H200 (benchmarks/results/context_parallel_backward_2xH200.json); others are taken to be
alike."""
_log = logging.getLogger("tilelink.ops")

Shape = tuple[int, ...]


def program_of(queries: Shape) -> str:
    """Return the name of the library's program of the gradients for queries of a shape, see FLAT."""
    return "ag_attention_gradients" if len(queries) == FLAT else "zigzag_attention_gradients"


def bound_gradients(queries: Shape, schedule: str, ranks: int, dtype: str, processor: Target) -> Bound:
    """Return the program of gradients with a schedule, as `schedule_text` has it, at the sizes of a call.

    Raises UnknownNameError for a schedule that there is not, and what `bind` raises for sizes that it does not take.
    """
    operator = of_library(program_of(queries), schedule)
    text = operator.schedule
    given = compiler.parse(text).schedules[0] if "\n" in text else compiler.schedule_of(operator.program, text or None)
    sizes = queries if len(queries) == FLAT else (*queries[:2], *queries[3:])
    dims = dict(zip((one.name for one in operator.program.params), sizes, strict=False))
    return bind(operator.program, given, {**dims, "scale": 1.0}, ranks, processor, dtype)


def unfused_seconds(queries: Shape, ranks: int, machine: Machine) -> float:
    """Return the seconds of gradients in parts by the vendor's kernels, between transfers that they hide.

    A rank has two or, with a mask, three parts with own keys, and one with those of each other rank. With a mask a part
    has three quarters of the rows, on average.
    """
    causal, elements, rows = len(queries) != FLAT, prod(queries), prod(queries[2:-1])
    computed = 2 * PRODUCTS * elements * rows * ranks / (2 if causal else 1)
    seconds = computed / (VENDOR_SHARE * machine.matmul_flops)
    moved = (0.75 if causal else 1.0) * (ranks + 1) * elements * VENDOR_BYTES
    parts = ranks + (2 if causal else 1)
    return seconds + moved / machine.memory_bandwidth + parts * VENDOR_PART


@cache
def chosen(queries: Shape, ranks: int, dtype: str, gpu: str) -> str:
    """Return `ROLES` or UNFUSED for gradients on GPUs of a name: the same on all ranks of a call.

    UNFUSED too if the GPU is not described, if ranks are on several nodes, and for sizes that the kernel does not take.
    """
    machine = machine_of(gpu)
    if machine is None or ranks > machine.node_ranks:
        return UNFUSED
    unfused = unfused_seconds(queries, ranks, machine)
    seconds, limit, bound = inf, SURE * unfused, None
    with suppress(TileLinkError):  # sizes that the kernel does not take
        bound = bound_gradients(queries, ROLES, ranks, dtype, machine.processor)
    if bound is not None:
        found = seconds_by_few(bound, machine, limit)
        found = predicted_seconds(bound, machine) if found is None else found
        seconds = inf if found is None else found
    way = ROLES if seconds < limit else UNFUSED
    kernel = f"{seconds * US:.0f} us" if seconds < inf else f"longer than {limit * US:.0f} us"
    why = f"the kernel is predicted to take {kernel}, unfused {unfused * US:.0f} us on {machine.name}"
    _log.info("gradients of attention, %s of %d ranks: takes %s; %s", list(queries), ranks, way, why)
    return way
