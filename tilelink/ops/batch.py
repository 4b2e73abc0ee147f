"""Products of any number of rows that all ranks have alike: one kernel, and one CUDA graph, for all of them.

A call gives tensors with room for the largest number of rows, and says how many there are. Kernels of the library for
that are the programs below, as `tilelink.op` makes them functions. Where none is worth while, all rows are computed
unfused, those that are not there too: no rank reads them.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from functools import cache
from typing import SupportsIndex

import torch
from torch.distributed import ProcessGroup

from tilelink import compiler
from tilelink.compiler import library_module
from tilelink.errors import BindingError, TileLinkError
from tilelink.ops.calls import DTYPES, Implementation, able, gpu_of, run
from tilelink.ops.choice import DEFAULTS, choose
from tilelink.ops.consensus import consensus
from tilelink.ops.custom import is_differentiated, refuse_tangents, schedule_text
from tilelink.ops.decide import WITH_ROLES
from tilelink.ops.groups import group_named
from tilelink.ops.nodes import nodes_of
from tilelink.ops.operators import OPERATORS, SCHEDULE, UNFUSED
from tilelink.ops.own import of_library
from tilelink.ops.predict import machine_of
from tilelink.ops.sms import target_of
from tilelink.ops.validate import check_operands, check_scattered
from tilelink.runtime.cuda.device import current_target
from tilelink.target import Target

PROGRAMS = {"ag_gemm": "ag_gemm_batch", "gemm_rs": "gemm_rs_batch"}
"""Operator -> the program of the library for any number of rows."""


def product(
    op: str, x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor | SupportsIndex, group: ProcessGroup | str,
    implementation: Implementation,
) -> torch.Tensor:  # fmt: skip
    """Return the product of an operator for the first `rows` rows of each rank's part.

    The result is [ranks, n, N] of gathered rows, or [n, N] of scattered ones: n is `rows` where it is an integer, else
    all that there is room for. Raises BindingError for a call that needs gradients, and for rows that do not fit.
    """
    if is_differentiated((x, w)):
        hint = "call it in torch.no_grad(), or without rows"
        raise BindingError(f"{op} of a number of rows has no gradients", hint=hint)
    refuse_tangents(op, (x, w))
    if torch.compiler.is_compiling():
        hint = f"make a function of it before: tilelink.op of the library's {PROGRAMS[op]}, which torch.compile may see"
        raise BindingError(f"torch.compile does not see into {op} of a number of rows", hint=hint)
    members = group_named(group) if isinstance(group, str) else group
    ranks, record = members.size(), OPERATORS[op]
    check_operands(record, {"x": x, "w": w})
    check_scattered(record, x, ranks)
    room = x.shape[0] if record.gathers else x.shape[0] // ranks
    rows = _checked(op, rows, room, x)
    way = _way(op, x, w, members) if implementation is None else implementation
    if way == UNFUSED:
        y = run(op, (x, w, None), "", members, UNFUSED)
        y = y.view(ranks, room, -1) if record.gathers else y
        return y.narrow(-2, 0, rows) if isinstance(rows, int) else y
    with gpu_of(x):
        given = x if record.gathers else x.view(ranks, room, -1)
        return of_library(PROGRAMS[op], schedule_text(way), Ms=room)(given, w, rows, group=members)


def _checked(op: str, rows: torch.Tensor | SupportsIndex, room: int, x: torch.Tensor) -> torch.Tensor | int:
    """Return a number of rows as kernels take it. Raise BindingError for another one, or what is none."""
    hint = f"an integer, or a torch.int32 without dimensions on {x.device}"
    if isinstance(rows, torch.Tensor):
        if rows.dtype != torch.int32 or rows.dim() or rows.device != x.device:
            raise BindingError(f"rows of {op} is {list(rows.shape)} {rows.dtype} on {rows.device}", hint=hint)
        return rows
    if isinstance(rows, bool) or not hasattr(rows, "__index__"):
        raise BindingError(f"rows of {op} is {rows!r}, no integer", hint=hint)
    number = operator.index(rows)
    if not 0 <= number <= room:
        raise BindingError(f"rows of {op} is {number}", hint=f"from 0 to {room}, the rows of a part of x")
    return number


def _way(op: str, x: torch.Tensor, w: torch.Tensor, group: ProcessGroup) -> str:
    """Return the schedule for so large tensors, or UNFUSED."""
    ranks = group.size()
    if not able(x) or ranks == 1 or nodes_of(group) > 1:
        return UNFUSED
    parts = ranks if OPERATORS[op].gathers else 1
    N, K = w.shape
    return _chosen(op, parts * x.shape[0], N, K, ranks, DTYPES[x.dtype], consensus(group).gpu, target_of(group))


@cache
def _chosen(
    op: str, M: int, N: int, K: int, ranks: int, dtype: str, gpu: str, processor: Target | None
) -> str:  # fmt: skip
    """Return UNFUSED, or the first of the schedules that fits the processor; None: the current GPU."""
    if choose(op, M, N, K, ranks, machine=machine_of(gpu) or DEFAULTS) != SCHEDULE:
        return UNFUSED
    module = library_module(PROGRAMS[op])
    program, dims = module.program(PROGRAMS[op]), {"Ms": M // ranks, "N": N, "K": K}
    named = {one.name: one for one in module.schedules_of(program)}
    for name in (WITH_ROLES, SCHEDULE):
        if name in named:
            with suppress(TileLinkError):
                fits = processor or current_target()
                compiler.plan(program, named[name], ranks=ranks, dims=dims, dtype=dtype, target=fits)
                return name
    return UNFUSED
