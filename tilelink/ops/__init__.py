"""Products that communicate, as functions on torch tensors: every rank of a group calls them on its own tensors.

    y = tilelink.ops.ag_gemm(x, w)              # [Ms, K], [N, K] -> [ranks * Ms, N]

x, w and the result are 2-D, weights lie as torch.nn.Linear has them ([N, K]). bf16 and f16 run by generated kernels or
unfused, other dtypes unfused. Calls are asynchronous on the current stream, ordered, and differentiable: gradients are
those of the sum of all ranks' losses. torch.compile sees one operator without a break in the graph.

group: a process group of torch.distributed, its name, or None for all ranks.
schedule: None: the fastest that `tilelink tune --measure` found, else what `decide` says; "unfused": the group's
collective and torch's product; else the name of a schedule of the library's program ("h200"), "program:name", or a
Schedule. A program that only communicates ("all_reduce_one_shot:few") runs next to torch's product. The first call with
new sizes, dtype, group or schedule compiles a kernel and allocates symmetric memory, so all ranks must make their
first calls in the same order, and before a CUDA graph is captured; `clear` gives back that of one node. The first call
of a group without a schedule waits for rank 0, which tells the others what was measured. As with other collectives, all
ranks issue their calls in one order; kernels of operators wait for peers on all SMs, so those on several streams must
not be issued in different orders either. `use_sms` leaves SMs to collectives of other groups.
rows: calls with any number of rows share the kernels of some numbers, `kernel_rows`; after calls with each of these,
none compiles. A call with another number leaves out up to an eighth of what its kernel computes, a sixteenth from 2048
rows on. The first call with so many rows compares them between the ranks, except while a CUDA graph is captured.
Where `rows` is given, one kernel, and one CUDA graph, is for any number of rows up to those of x: an integer of the
host, or a torch.int32 without dimensions on the GPU, which may be written before a replay. All ranks give the same
number. The result has as many rows where the host knows it, else room for all. Rows beyond have any value. There are no
gradients, and torch.compile does not see into such a call.
activation: None, "silu" or "gelu" (the exact one). Where a gradient is needed it is taken outside of the kernel.

All raise ShapeError and DtypeError for tensors that do not fit and UnknownNameError for a schedule that there is not.
"""

from __future__ import annotations

from functools import cache
from typing import Any, SupportsIndex

import torch

from tilelink.errors import BindingError, UnknownNameError
from tilelink.ops import batch, registered, unfused
from tilelink.ops.calls import Implementation, able, run
from tilelink.ops.choice import choose
from tilelink.ops.custom import is_differentiated, is_direct, schedule_text
from tilelink.ops.groups import Group, clear, members_of, name_of, size_of
from tilelink.ops.operators import OPERATORS, SCHEDULE, UNFUSED
from tilelink.ops.prepare import Prepared, prepare
from tilelink.ops.rows import kernel_rows as _kernel_rows
from tilelink.ops.sms import use_sms
from tilelink.ops.validate import check_epilogue

__all__ = [
    "ag_gemm", "ag_gemm_gated", "gemm_rs", "gemm_ar", "all_gather", "reduce_scatter", "all_reduce", "choose", "clear",
    "kernel_rows", "prepare", "Prepared", "use_sms", "UNFUSED",
]  # fmt: skip


def ag_gemm(
    x: torch.Tensor, w: torch.Tensor, *, bias: torch.Tensor | None = None, activation: str | None = None,
    group: Group = None, schedule: Implementation = None, rows: torch.Tensor | SupportsIndex | None = None,
) -> torch.Tensor:  # fmt: skip
    """All ranks' rows times the own weight: x [Ms, K], w [N, K] -> activation(x w^T + bias) [ranks Ms, N]; bias [N].

    rows: only the first so many rows of each rank's x are there -> [ranks, rows, N] (see below).
    """
    if rows is not None:
        return _of_rows("ag_gemm", x, w, rows, bias, activation, group, schedule)
    return _product("ag_gemm", x, w, bias, activation, group, schedule)


def gemm_rs(
    x: torch.Tensor, w: torch.Tensor, *, bias: torch.Tensor | None = None, activation: str | None = None,
    group: Group = None, schedule: Implementation = None, f32_sums: bool = False,
    rows: torch.Tensor | SupportsIndex | None = None,
) -> torch.Tensor:  # fmt: skip
    """The own rows of the ranks' summed products: x [ranks Ms, K], w [N, K] -> activation(sum of x w^T + bias) [Ms, N].

    bias [N] is added once, to the sum. An activation runs after the kernel. f32_sums: what ranks send each other is f32
    and twice as long; else it has x's dtype, as that of the collectives. Generated kernels add in f32, in one order.
    rows: only the first so many of the Ms rows for each rank are there -> [rows, N].
    """
    if rows is not None:
        if f32_sums:
            raise BindingError("gemm_rs of a number of rows has no sums in f32", hint="leave f32_sums or rows out")
        return _of_rows("gemm_rs", x, w, rows, bias, activation, group, schedule)
    if f32_sums:
        return _summed_f32("gemm_rs_f32", x, w, bias, activation, group, schedule)
    return _product("gemm_rs", x, w, bias, activation, group, schedule)


def gemm_ar(
    x: torch.Tensor, w: torch.Tensor, *, bias: torch.Tensor | None = None, activation: str | None = None,
    group: Group = None, schedule: Implementation = None, f32_sums: bool = False,
    residual: torch.Tensor | None = None, norm: torch.Tensor | None = None, eps: float = 1e-6,
) -> Any:  # fmt: skip
    """The ranks' summed products, on every rank: x [M, K], w [N, K] -> activation(sum of x w^T + bias) [M, N].

    bias [N], the same on all ranks, is added once, to the sum. An activation runs after the kernel. f32_sums: as above.
    residual [M, N]: is added once, last -> the total y [M, N].
    norm [N]: weights of an RMS norm -> (y / sqrt(mean(y^2) + eps) * norm, y), both [M, N].
    With few rows both are part of the kernel that multiplies and sums, and y is rounded after its norm was taken.
    """
    if residual is not None or norm is not None:
        plain = bias is None and not activation and not f32_sums
        if plain and residual is not None:
            sizes = (*x.shape[:1], *w.shape)
            followed = _followed_by("gemm_ar", (x, w), sizes, residual, norm, eps, group, schedule)
            if followed is not None:
                return followed
        y = gemm_ar(x, w, bias=bias, activation=activation, group=group, schedule=schedule, f32_sums=f32_sums)
        return _after_sum(y, residual, norm, eps, group)
    if f32_sums:
        return _summed_f32("gemm_ar_f32", x, w, bias, activation, group, schedule)
    return _product("gemm_ar", x, w, bias, activation, group, schedule)


def ag_gemm_gated(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, *, group: Group = None, schedule: Implementation = None
) -> torch.Tensor:
    """The up-projection of a gated MLP: x [Ms, K], weights [N, K] -> silu(x w_gate^T) * (x w_up^T) [ranks Ms, N].

    Where a gradient is needed it is one product with both weights, and the gate outside.
    """
    members, operands = members_of(group), (x, w_gate, w_up)
    if is_direct(operands):
        return run("ag_gemm_gated", operands, "", members, schedule)
    name = name_of(members)
    if is_differentiated(operands):
        both = registered.call("ag_gemm", x, torch.cat((w_gate, w_up)), None, "", name, _plain_text(schedule))
        gate, up = both.split(w_gate.shape[0], 1)
        return torch.nn.functional.silu(gate) * up
    return registered.call("ag_gemm_gated", x, w_gate, w_up, name, schedule_text(schedule))


def all_gather(x: torch.Tensor, *, group: Group = None, schedule: Implementation = None) -> torch.Tensor:
    """Return the x of all ranks, concatenated by rank: [n, ...] -> [ranks n, ...]."""
    return _collective("all_gather", x, group, schedule)


def reduce_scatter(x: torch.Tensor, *, group: Group = None, schedule: Implementation = None) -> torch.Tensor:
    """Return the own part of the sum over ranks: [ranks n, ...] -> [n, ...]."""
    return _collective("reduce_scatter", x, group, schedule)


def all_reduce(
    x: torch.Tensor, *, residual: torch.Tensor | None = None, norm: torch.Tensor | None = None, eps: float = 1e-6,
    group: Group = None, schedule: Implementation = None,
) -> Any:  # fmt: skip
    """Return the sum over ranks, as a new tensor of x's shape.

    residual: of x's shape [M, N], is added once -> the total y [M, N].
    norm [N]: weights of an RMS norm -> (y / sqrt(mean(y^2) + eps) * norm, y), both [M, N].
    With few rows both are part of the kernel that sums, and y is rounded after its norm was taken.
    """
    if residual is None and norm is None:
        return _collective("all_reduce", x, group, schedule)
    sizes = (x.shape[0], *x.shape[1:] * 2) if x.dim() == 2 else None
    if residual is not None and sizes is not None:
        followed = _followed_by("all_reduce", (x,), sizes, residual, norm, eps, group, schedule)
        if followed is not None:
            return followed
    return _after_sum(all_reduce(x, group=group, schedule=schedule), residual, norm, eps, group)


def kernel_rows(op: str, most: int, *, group: Group = None) -> list[int]:
    """The numbers of rows of x, rising, that have kernels, for calls of an operator with up to `most` rows.

        for rows in ops.kernel_rows("gemm_ar", 8192):
            ops.gemm_ar(x[:rows], w)            # from now on a batch of any size is a launch

    The last one is `most` or more. Raises UnknownNameError for an operator that there is not.
    """
    members = members_of(group)
    ranks = size_of(members)
    if op not in OPERATORS:
        raise UnknownNameError(f"no operator {op!r}", hint=f"there are {', '.join(OPERATORS)}")
    return _kernel_rows(OPERATORS[op], most, ranks)


# How a call gets to its kernel -------------------------------------------------------------------------------


def _product(
    op: str, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, activation: str | None,
    group: Group, schedule: Implementation,
) -> torch.Tensor:  # fmt: skip
    members, operands = members_of(group), (x, w, bias)
    if is_direct(operands):
        return run(op, operands, activation or "", members, schedule)
    check_epilogue(op, x, w, bias, activation or "")
    outside = activation if activation and is_differentiated(operands) else ""
    inside = "" if outside else activation or ""
    y = registered.call(op, x, w, bias, inside, name_of(members), schedule_text(schedule))
    return unfused.follow(y, None, outside) if outside else y


def _of_rows(
    op: str, x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor | SupportsIndex, bias: torch.Tensor | None,
    activation: str | None, group: Group, schedule: Implementation,
) -> torch.Tensor:  # fmt: skip
    check_epilogue(op, x, w, bias, activation or "")
    return unfused.follow(batch.product(op, x, w, rows, members_of(group), schedule), bias, activation or "")


def _summed_f32(
    op: str, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, activation: str | None,
    group: Group, schedule: Implementation,
) -> torch.Tensor:  # fmt: skip
    members = members_of(group)
    check_epilogue(OPERATORS[op].rule, x, w, bias, activation or "")
    if is_direct((x, w)):
        y = run(op, (x, w), "", members, schedule)
    else:
        y = registered.call(op, x, w, name_of(members), schedule_text(schedule))
    return unfused.follow(y, bias, activation or "")


def _followed_by(
    summed: str, given: tuple[torch.Tensor, ...], sizes: tuple[int, ...], residual: torch.Tensor,
    norm: torch.Tensor | None, eps: float, group: Group, schedule: Implementation,
) -> Any:  # fmt: skip
    """Return the result of the operator that does what follows a sum in its kernel, or None if there is none for it.

    summed: the operator of the sum, of tensors `given`. sizes: M, N and K of it.
    """
    op, operands, numbers = f"{summed}_residual", (*given, residual), ()
    if norm is not None:
        op, operands, numbers = f"{summed}_norm", (*operands, norm), (eps,)
    members = members_of(group)
    way = schedule
    if way is None:
        way = _few_kernel(op, *sizes, size_of(members))
    own = isinstance(way, str) and way.partition(":")[0] in (OPERATORS[op].programs[""], UNFUSED)
    if not own or (schedule is None and way == UNFUSED) or is_differentiated(operands):
        return None
    if is_direct(operands):
        return run(op, operands, "", members, schedule, numbers)
    return registered.call(op, *operands, *numbers, name_of(members), schedule_text(schedule))


def _after_sum(
    y: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor | None, eps: float, group: Group
) -> Any:  # fmt: skip
    if norm is None or residual is None:
        y = y if residual is None else y + residual
        return y if norm is None else (torch.nn.functional.rms_norm(y, norm.shape, norm, eps), y)
    members, operands = members_of(group), (y, residual, norm)
    own = y.shape[0] <= FEW and able(y) and size_of(members) > 1 and not is_differentiated(operands)
    schedule = SCHEDULE if own else UNFUSED
    if is_direct(operands):
        return run("add_norm", operands, "", members, schedule, (eps,))
    if is_differentiated(operands):
        return unfused.add_norm(y, residual, norm, eps, members)  # type: ignore[arg-type]
    return registered.call("add_norm", *operands, eps, name_of(members), schedule)


FEW = 512
"""Largest number of rows whose sum has a kernel for its norm: with more, starting two of torch's takes less time."""


@cache
def _few_kernel(op: str, M: int, N: int, K: int, ranks: int) -> str:
    return choose(op, M, N, K, ranks)


def _collective(op: str, x: torch.Tensor, group: Group, schedule: Implementation) -> torch.Tensor:
    members = members_of(group)
    if is_direct((x,)):
        return run(op, (x,), "", members, schedule)
    return registered.call(op, x, name_of(members), schedule_text(schedule))


def _plain_text(schedule: Implementation) -> str:
    """A schedule for the product without what follows it: schedules of another program do not fit it."""
    return schedule if isinstance(schedule, str) and ":" not in schedule else ""
