"""Products that communicate, as functions on torch tensors: every rank of a group calls them on its own tensors.

    y = tilelink.ops.ag_gemm(x, w)              # [Ms, K], [N, K] -> [ranks * Ms, N]

x, w and the result are 2-D, weights lie as torch.nn.Linear has them ([N, K]). bf16 and f16 run by generated kernels or
unfused, other dtypes unfused. Calls are asynchronous on the current stream, ordered, and differentiable: gradients are
those of the sum of all ranks' losses. torch.compile sees one operator without a break in the graph.

group: a process group of torch.distributed, its name, a DeviceMesh of one dimension, or None for all ranks.
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
rows on. On GPUs the first call with so many rows compares them between the ranks, except while a CUDA graph is
captured; with TILELINK_CHECK=1, and on CPUs, each call does.
Where `rows` is given, one kernel, and one CUDA graph, is for any number of rows up to those of x: an integer of the
host, or a torch.int32 without dimensions on the GPU, which may be written before a replay. All ranks give the same
number. The result has as many rows where the host knows it, else room for all. Rows beyond have any value. There are no
gradients, and torch.compile does not see into such a call.
out: a tensor for the result, or one for each result, contiguous and apart from all operands. Generated kernels write
straight into it if they have as many rows as the call (`kernel_rows`) and nothing follows them; other results are
copied into it. It is what is returned. There are no gradients.
scale_a, scale_b: x and w are torch.float8_e4m3fn, with f32 scales as torch._scaled_mm has them: one for each row of x
[M, 1] and each row of w [1, N], or one of each. torch._scaled_mm multiplies, on CPUs a product in f32, into bf16, and
what communicates is as without scales; `schedule` is that of the collective. There are no gradients.
activation: None, "silu" or "gelu" (the exact one). Where a gradient is needed it is taken outside of the kernel.
DTensors: products and collectives take them, all operands of one mesh of one dimension, and give one: x and w of
ag_gemm are Shard(0), and its result is Shard(1); of gemm_rs Shard(1), and Shard(0); of gemm_ar Shard(1), and
Replicate(). What is Replicate() and should be spread is divided, others raise BindingError. Gradients are those of
DTensors, so of one loss.

All raise ShapeError, DtypeError and BindingError for tensors that do not fit and UnknownNameError for a schedule that
there is not.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

import torch

from tilelink.errors import BindingError, UnknownNameError
from tilelink.ops import batch, registered, scaled, unfused
from tilelink.ops.calls import Implementation, run
from tilelink.ops.choice import choose
from tilelink.ops.context_parallel import attention, from_zigzag, zigzag
from tilelink.ops.custom import is_differentiated, is_direct
from tilelink.ops.decode import decode_attention
from tilelink.ops.dtensors import SUMMED, WHOLE, spread
from tilelink.ops.experts import check_capacity, expert_parallel, moe
from tilelink.ops.groups import Group, clear, members_of, size_of
from tilelink.ops.operators import OPERATORS, UNFUSED
from tilelink.ops.prepare import Prepared, prepare
from tilelink.ops.rows import kernel_rows as _kernel_rows
from tilelink.ops.sms import use_sms
from tilelink.ops.torch_experts import quantise_blocks
from tilelink.ops.validate import check_epilogue, check_followed, check_out, check_out_apart

__all__ = [
    "ag_gemm", "ag_gemm_gated", "gemm_rs", "gemm_ar", "all_gather", "reduce_scatter", "all_reduce", "attention",
    "check_capacity", "choose", "clear", "decode_attention", "expert_parallel", "from_zigzag", "kernel_rows", "moe",
    "prepare", "Prepared", "quantise_blocks", "use_sms", "UNFUSED", "zigzag",
]  # fmt: skip


@spread(1, x=0, w=0)
def ag_gemm(
    x: torch.Tensor, w: torch.Tensor, *, bias: torch.Tensor | None = None, activation: str | None = None,
    group: Group = None, schedule: Implementation = None, rows: torch.Tensor | SupportsIndex | None = None,
    scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """All ranks' rows times the own weight: x [Ms, K], w [N, K] -> activation(x w^T + bias) [ranks Ms, N]; bias [N].

    rows: only the first so many rows of each rank's x are there -> [ranks, rows, N]: an integer, or a GPU tensor.
    """
    if scales := scaled.scales_of("ag_gemm", x, w, scale_a, scale_b, bias, activation, rows=rows):
        rows_a, rows_b = scaled.of_rows(x, w, *scales)
        bytes_of_all = all_gather(x.view(torch.uint8), group=group, schedule=schedule)  # there is none for such floats
        of_all = all_gather(rows_a, group=group, schedule=UNFUSED)
        y = scaled.product(bytes_of_all.view(x.dtype), w, of_all, rows_b)
        return _written("ag_gemm", unfused.follow(y, bias, activation or ""), out)
    if rows is not None:
        return _of_rows("ag_gemm", x, w, rows, bias, activation, group, schedule, out)
    return _product("ag_gemm", x, w, bias, activation, group, schedule, out)


@spread(0, x=1, w=1)
def gemm_rs(
    x: torch.Tensor, w: torch.Tensor, *, bias: torch.Tensor | None = None, activation: str | None = None,
    group: Group = None, schedule: Implementation = None, f32_sums: bool = False,
    rows: torch.Tensor | SupportsIndex | None = None, scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The own rows of the ranks' summed products: x [ranks Ms, K], w [N, K] -> activation(sum of x w^T + bias) [Ms, N].

    bias [N] is added once, to the sum. An activation runs after the kernel. f32_sums: what ranks send each other is f32
    and twice as long; else it has x's dtype, as that of the collectives. Generated kernels add in f32, in one order.
    rows: only the first so many of the Ms rows for each rank are there -> [rows, N].
    """
    if scales := scaled.scales_of("gemm_rs", x, w, scale_a, scale_b, bias, activation, f32_sums=f32_sums, rows=rows):
        y = reduce_scatter(scaled.product(x, w, *scales), group=group, schedule=schedule)
        return _written("gemm_rs", unfused.follow(y, bias, activation or ""), out)
    if rows is not None:
        if f32_sums:
            raise BindingError("gemm_rs of a number of rows has no sums in f32", hint="leave f32_sums or rows out")
        return _of_rows("gemm_rs", x, w, rows, bias, activation, group, schedule, out)
    return _product("gemm_rs", x, w, bias, activation, group, schedule, out, f32_sums)


@spread(WHOLE, x=1, w=1)
def gemm_ar(
    x: torch.Tensor, w: torch.Tensor, *, bias: torch.Tensor | None = None, activation: str | None = None,
    group: Group = None, schedule: Implementation = None, f32_sums: bool = False,
    residual: torch.Tensor | None = None, norm: torch.Tensor | None = None, eps: float = 1e-6,
    scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None,
    out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
) -> Any:  # fmt: skip
    """The ranks' summed products, on every rank: x [M, K], w [N, K] -> activation(sum of x w^T + bias) [M, N].

    bias [N], the same on all ranks, is added once, to the sum. An activation runs after the kernel. f32_sums: as of
    `gemm_rs`.
    residual [M, N]: is added once, last -> the total y [M, N].
    norm [N]: weights of an RMS norm -> (y / sqrt(mean(y^2) + eps) * norm, y), both [M, N].
    With few rows both are part of the kernel that multiplies and sums, and y is rounded after its norm was taken.
    """
    if scales := scaled.scales_of("gemm_ar", x, w, scale_a, scale_b, bias, activation, f32_sums=f32_sums):
        y = scaled.product(x, w, *scales)
        if bias is None and not activation:
            return all_reduce(y, residual=residual, norm=norm, eps=eps, group=group, schedule=schedule, out=out)
        check_followed("gemm_ar", y, y.shape, residual, norm, eps)
        y = unfused.follow(all_reduce(y, group=group, schedule=schedule), bias, activation or "")
        return _after("gemm_ar", y, residual, norm, eps, group, out)
    if residual is None and norm is None:
        return _product("gemm_ar", x, w, bias, activation, group, schedule, out, f32_sums)
    check_followed("gemm_ar", x, (*x.shape[:1], *w.shape[:1]), residual, norm, eps)
    plain = bias is None and not activation and not f32_sums and x.dim() == w.dim() == 2
    if plain and residual is not None and not is_differentiated((x, w, residual, norm)):
        return _followed("gemm_ar", (x, w), residual, norm, eps, group, schedule, out)
    y = _product("gemm_ar", x, w, bias, activation, group, schedule, None, f32_sums)
    return _after("gemm_ar", y, residual, norm, eps, group, out)


@spread(1, x=0, w_gate=0, w_up=0)
def ag_gemm_gated(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, *, group: Group = None, schedule: Implementation = None
) -> torch.Tensor:
    """The up-projection of a gated MLP: x [Ms, K], weights [N, K] -> silu(x w_gate^T) * (x w_up^T) [ranks Ms, N].

    Where a gradient is needed it is one product with both weights, and the gate outside.
    """
    members, operands = members_of(group), (x, w_gate, w_up)
    if not is_differentiated(operands):
        return registered.call("ag_gemm_gated", operands, members, schedule)
    # a schedule of another program does not fit the product without what follows it
    plain = schedule if isinstance(schedule, str) and ":" not in schedule else None
    both = registered.call("ag_gemm", (x, torch.cat((w_gate, w_up)), None), members, plain)
    gate, up = both.split(w_gate.shape[0], 1)
    return torch.nn.functional.silu(gate) * up


@spread(WHOLE, x=0)
def all_gather(x: torch.Tensor, *, group: Group = None, schedule: Implementation = None) -> torch.Tensor:
    """Return the x of all ranks, concatenated by rank: [n, ...] -> [ranks n, ...]."""
    return _collective("all_gather", x, group, schedule)


@spread(0, x=SUMMED)
def reduce_scatter(x: torch.Tensor, *, group: Group = None, schedule: Implementation = None) -> torch.Tensor:
    """Return the own part of the sum over ranks: [ranks n, ...] -> [n, ...]."""
    return _collective("reduce_scatter", x, group, schedule)


@spread(WHOLE, x=SUMMED)
def all_reduce(
    x: torch.Tensor, *, residual: torch.Tensor | None = None, norm: torch.Tensor | None = None, eps: float = 1e-6,
    group: Group = None, schedule: Implementation = None,
    out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
) -> Any:  # fmt: skip
    """Return the sum over ranks, as a new tensor of x's shape.

    residual: of x's shape [M, N], is added once -> the total y [M, N].
    norm [N]: weights of an RMS norm -> (y / sqrt(mean(y^2) + eps) * norm, y), both [M, N].
    With few rows both are part of the kernel that sums, and y is rounded after its norm was taken.
    """
    if residual is None and norm is None:
        return _collective("all_reduce", x, group, schedule, out)
    check_followed("all_reduce", x, x.shape, residual, norm, eps)
    if x.dim() == 2 and residual is not None and not is_differentiated((x, residual, norm)):
        return _followed("all_reduce", (x,), residual, norm, eps, group, schedule, out)
    return _after("all_reduce", all_reduce(x, group=group, schedule=schedule), residual, norm, eps, group, out)


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


Out = torch.Tensor | tuple[torch.Tensor, ...] | None


def _call(
    op: str, operands: tuple[torch.Tensor | None, ...], members: Any, schedule: Implementation, *,
    activation: str = "", numbers: tuple[float, ...] = (), out: Out = None,
) -> Any:  # fmt: skip
    """Call an operator. Raises BindingError for `out` with gradients."""
    into = _tensors(op, out)
    if into:
        _without_gradients(op, (*operands, *into))
    made = registered.call(op, operands, members, schedule, activation=activation, numbers=numbers, out=into)
    return made if made is not None else out


def _tensors(op: str, out: Out) -> tuple[torch.Tensor, ...]:
    """Return the tensors for the results of an operator. Raises BindingError for others, and for too few."""
    if out is None:
        return ()
    into, names = tuple(out) if isinstance(out, tuple | list) else (out,), [one.name for one in OPERATORS[op].outputs]
    if len(into) != len(names):
        message = f"out of {op} has {len(into)} tensors for {len(names)} results"
        raise BindingError(message, hint=f"give ({', '.join(names)})" if len(names) > 1 else "give one tensor")
    for name, one in zip(names, into, strict=True):
        if not isinstance(one, torch.Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BindingError(f"out {name} of {op} is a {type(one).__name__}", hint="give a tensor for each result")
    return into


def _without_gradients(op: str, tensors: tuple[torch.Tensor | None, ...]) -> None:
    """Raise BindingError for a call with `out` of tensors that need a gradient."""
    if is_differentiated(tensors):
        hint = "call it in torch.no_grad(), or leave `out` out"
        raise BindingError(f"{op} writes into given tensors, and a gradient is needed", hint=hint)


def _written(op: str, results: Any, out: Out) -> Any:
    """Return the results of an operator, in `out` if it is given."""
    into = _tensors(op, out)
    if not into:
        return results
    made = results if isinstance(results, tuple) else (results,)
    _without_gradients(op, (*made, *into))
    named = dict(zip((one.name for one in OPERATORS[op].outputs), into, strict=True))
    check_out(op, named, [one.shape for one in made], made[0])
    if not torch.compiler.is_compiling():
        check_out_apart(op, named, {})  # operands have been read
    for one, result in zip(into, made, strict=True):
        one.copy_(result)
    return out


def _product(
    op: str, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, activation: str | None,
    group: Group, schedule: Implementation, out: Out, f32_sums: bool = False,
) -> torch.Tensor:  # fmt: skip
    members, operands, activation = members_of(group), (x, w, bias), activation or ""
    if out is None and not f32_sums and is_direct(operands):
        return run(op, operands, activation, members, schedule)
    check_epilogue(op, x, w, bias, activation)
    if f32_sums:
        after = bias is not None or activation
        y = _call(f"{op}_f32", (x, w), members, schedule, out=None if after else out)
        return _written(op, unfused.follow(y, bias, activation), out) if after else y
    outside = activation if is_differentiated(operands) else ""
    y = _call(op, operands, members, schedule, activation="" if outside else activation, out=out)
    return unfused.follow(y, None, outside)


def _of_rows(
    op: str, x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor | SupportsIndex, bias: torch.Tensor | None,
    activation: str | None, group: Group, schedule: Implementation, out: Out,
) -> torch.Tensor:  # fmt: skip
    if out is not None:
        raise BindingError(f"{op} of a number of rows has no `out`", hint="leave out or rows out")
    check_epilogue(op, x, w, bias, activation or "")
    return unfused.follow(batch.product(op, x, w, rows, members_of(group), schedule), bias, activation or "")


def _followed(
    summed: str, given: tuple[torch.Tensor, ...], residual: torch.Tensor, norm: torch.Tensor | None, eps: float,
    group: Group, schedule: Implementation, out: Out,
) -> Any:  # fmt: skip
    """Call the operator for a sum of tensors `given` with what follows it: one kernel does both where it is faster."""
    if norm is None:
        return _call(f"{summed}_residual", (*given, residual), members_of(group), schedule, out=out)
    operands = (*given, residual, norm)
    return _call(f"{summed}_norm", operands, members_of(group), schedule, numbers=(eps,), out=out)


def _after(
    summed: str, y: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor | None, eps: float, group: Group,
    out: Out,
) -> Any:  # fmt: skip
    """Return what follows a sum y of the operator `summed`."""
    if residual is not None and norm is not None and not is_differentiated((y, residual, norm)):
        return _call("add_norm", (y, residual, norm), members_of(group), None, numbers=(eps,), out=out)
    y = y if residual is None else y + residual
    if norm is None:
        return _written(summed if residual is None else f"{summed}_residual", y, out)
    return _written(f"{summed}_norm", (torch.nn.functional.rms_norm(y, norm.shape, norm, eps), y), out)


def _collective(
    op: str, x: torch.Tensor, group: Group, schedule: Implementation, out: Out = None
) -> torch.Tensor:  # fmt: skip
    return _call(op, (x,), members_of(group), schedule, out=out)
