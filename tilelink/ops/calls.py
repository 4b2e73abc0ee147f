"""What an operator does for tensors of certain shapes: found once, then a look-up.

A call is cached by the operator, its activation, the shapes and dtypes, the group and the schedule. The first call of
its kind checks everything, and for a fused one compiles a kernel; that is collective, so all ranks of the group must
make their first calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ProcessGroup

from tilelink import compiler
from tilelink.compiler import library_module
from tilelink.errors import DtypeError, ShapeError, UnknownNameError, UnknownTargetError
from tilelink.ops import unfused
from tilelink.ops.choice import rounded_rows
from tilelink.ops.consensus import check_rows, consensus
from tilelink.ops.decide import decide
from tilelink.ops.groups import OfGroups, group_named
from tilelink.ops.nodes import nodes_of
from tilelink.ops.operators import OPERATORS, UNFUSED, Operator, program_of
from tilelink.ops.pairs import Pair
from tilelink.ops.predict import Request
from tilelink.ops.validate import check_activation, check_operands
from tilelink.runtime.cuda.device import current_target
from tilelink.scheduling.schedule import Schedule

if TYPE_CHECKING:
    from tilelink.ir.program import Program

Implementation = Schedule | str | None
"""A schedule, its name, `program:name`, its text, or UNFUSED; None: the operator chooses."""

Operands = tuple[torch.Tensor | None, ...]


_DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}


@dataclass(frozen=True, kw_only=True)
class _Made:
    """Objects made for the calls of a group.

    summing: kernels that sum products, which calls with other rows take too. rows: what x has on all ranks alike, by
    operator: it was compared.
    """

    group: ProcessGroup
    calls: dict[Any, tuple[Callable[..., Any], Implementation]] = field(default_factory=dict[Any, Any])
    summing: dict[Any, Callable[..., dict[str, torch.Tensor]]] = field(default_factory=dict[Any, Any])
    rows: set[tuple[str, tuple[int, ...]]] = field(default_factory=set[tuple[str, tuple[int, ...]]])


_made = OfGroups(lambda group: _Made(group=group))


def run(op: str, operands: Operands, activation: str, group: ProcessGroup | str, implementation: Implementation) -> Any:
    """Runs an operator; its kernel is compiled at the first call of its kind.

    Raises ShapeError or DtypeError for operands that do not fit, UnknownNameError for a schedule that there is not,
    RankError for a group that there is not any more, and what `compile` raises.
    """
    members = group_named(group) if isinstance(group, str) else group
    made = _made.of(members)
    key = (
        op, activation, implementation if implementation is None or type(implementation) is str else id(implementation),
        *[None if t is None else (t.shape, t.dtype) for t in operands],
    )  # fmt: skip
    found = made.calls.get(key)
    if found is None:
        with gpu_of(operands[0]):
            call = _prepared(op, operands, activation, made, implementation)
        found = made.calls[key] = (call, implementation)  # keeps the implementation's id its own
    return found[0](*operands)


# Building a call ---------------------------------------------------------------------------------------------


def _prepared(
    op: str, operands: Operands, activation: str, made: _Made, implementation: Implementation
) -> Callable[..., Any]:  # fmt: skip
    members = made.group
    check_activation(activation)
    operator = OPERATORS[op]
    given = {one.name: t for one, t in zip(operator.operands, operands, strict=True) if t is not None}
    x = given["x"]
    _compare(operator, x, made)
    check_operands(operator, given, members.size())
    columns = x.shape[1:].numel()
    M = x.shape[0] * (members.size() if operator.gathers else 1)
    N = given[operator.weights[0]].shape[0] if operator.weights else columns
    variant, left = operator.epilogue("bias" in given, activation)
    if implementation is None:
        sizes = {"M": M, "N": N, "K": columns, "ranks": members.size()}
        able = _able(x) and members.size() > 1
        implementation = _decided(operator.rule, variant, x, sizes, members) if able else UNFUSED
    if implementation == UNFUSED:
        return partial(_unfused, operator.unfused, activation if operator.activation else None, members)
    program, schedule = _resolve(implementation, operator.rule, variant)
    taken = {t.name for t in program.tensors if t.space == "in"}
    if operator.small is not None and taken == {"x"}:
        moved = columns if operator.gathers else N
        sizes = {"M": M, "N": moved, "K": moved}
        if operator.gathers or operator.scatters:
            kernel = _compiled(program, schedule, x, sizes, members)
        else:
            kernel = _sum(program, schedule, x, sizes, made)
        return Pair(kernel, operator.gathers, activation)
    if taken != set(given):
        raise UnknownNameError(f"{program.name} does not compute {op}", hint=f"it takes {', '.join(sorted(taken))}")
    kernel = _compiled(program, schedule, x, {"M": M, "N": N, "K": columns}, members)
    return Launch(kernel, program, operator, given, members.size(), left)


def _compare(operator: Operator, x: torch.Tensor, made: _Made) -> None:
    """Sees to it that all ranks have as many rows, before any of them sends: at the first call with so many.

    Other sizes of a product's operands may differ, and so do not tell ranks apart here: all of them compare, or none.
    """
    alike = 1 if operator.weights else x.dim()
    key = (operator.name, tuple(x.shape[:alike]))
    if x.dim() and key not in made.rows:
        check_rows(operator.name, x.shape, alike, made.group)
        made.rows.add(key)


def gpu_of(x: torch.Tensor | None) -> AbstractContextManager[Any]:
    """Makes x's GPU the current one: a thread's is the first one until the thread says otherwise."""
    return torch.cuda.device(x.device) if x is not None and x.is_cuda else nullcontext()


def _able(x: torch.Tensor) -> bool:
    """True if generated kernels can take what is on x's device and has its dtype."""
    return x.dtype in _DTYPES and x.is_cuda


def _decided(
    op: str, variant: str, x: torch.Tensor, sizes: dict[str, int], group: ProcessGroup
) -> Schedule | str:  # fmt: skip
    """The implementation of a call that names none. The first of a group is collective."""
    known = consensus(group)
    if not known.one_node:
        return UNFUSED
    try:
        processor = current_target()
    except UnknownTargetError:
        return UNFUSED
    request = Request(op=op, variant=variant, dtype=_DTYPES[x.dtype], **sizes)
    return decide(
        request, gpu=known.gpu, versions=known.versions, records=known.records, processor=processor,
        speaks=group.rank() == 0,
    )  # fmt: skip


def _unfused(function: Callable[..., Any], activation: str | None, group: ProcessGroup, *operands: Any) -> Any:
    return function(*operands, group) if activation is None else function(*operands, activation, group)


# Fused -------------------------------------------------------------------------------------------------------


def _resolve(implementation: Schedule | str, op: str, variant: str) -> tuple[Program, Schedule]:
    """The program and the schedule that a implementation means for an operator."""
    if isinstance(implementation, str) and "\n" in implementation:
        implementation = compiler.parse(implementation).schedules[0]
    if isinstance(implementation, Schedule):
        return library_module(implementation.program).program(implementation.program), implementation
    name, _, schedule = implementation.rpartition(":")
    name = name or program_of(op, variant)
    module = library_module(name)
    program = module.program(name)
    return program, module.schedule(schedule, program)


def _compiled(
    program: Program, schedule: Schedule, x: torch.Tensor, sizes: dict[str, int], group: ProcessGroup
) -> Callable[..., dict[str, torch.Tensor]]:
    if x.dtype not in _DTYPES:
        raise DtypeError(f"{program.name} of {x.dtype}", hint=f"generated kernels take bf16 and f16; or {UNFUSED!r}")
    ranks, names = group.size(), [p.name for p in program.params]
    if "Ms" in names and sizes["M"] % ranks:
        hint = f"every rank has as many; use schedule={UNFUSED!r}"
        raise ShapeError(f"{program.name} of {sizes['M']} rows for {ranks} ranks", hint=hint)
    nodes = nodes_of(group)
    dims = {**sizes, "Ms": sizes["M"] // ranks, "g": ranks // nodes}  # g: ranks of a node, of programs in two levels
    return compiler.compile(
        program, schedule, ranks=ranks, dims={name: dims[name] for name in names}, dtype=_DTYPES[x.dtype],
        device="cuda", group=group, nodes=nodes,
    )  # fmt: skip


def _sum(
    program: Program, schedule: Schedule, x: torch.Tensor, sizes: dict[str, int], made: _Made
) -> Callable[..., dict[str, torch.Tensor]]:
    """The kernel for so many rows or a few more, whose sums nobody looks at: batches of any size share some kernels."""
    M = rounded_rows(sizes["M"], made.group.size())
    key = (program.name, str(schedule), M, sizes["N"], x.dtype)
    if key not in made.summing:
        made.summing[key] = _compiled(program, schedule, x, {**sizes, "M": M}, made.group)
    return made.summing[key]


class Launch:
    """A kernel that is called with an operator's tensors and returns its results as the operator has them."""

    def __init__(
        self, kernel: Callable[..., dict[str, torch.Tensor]], program: Program, operator: Operator,
        given: dict[str, torch.Tensor], ranks: int, activation: str,
    ) -> None:  # fmt: skip
        """activation: what is left to do after the kernel."""
        self._kernel, self._activation = kernel, activation
        self._inputs = [
            (place, one.name, _declared(program, one.name, given[one.name], ranks))
            for place, one in enumerate(operator.operands)
            if one.name in given
        ]
        shape = None if operator.weights else (-1, *given["x"].shape[1:])
        self._outputs: list[tuple[str, tuple[int, ...] | None]] = [(output.name, shape) for output in operator.outputs]

    def __call__(self, *operands: Any) -> Any:
        inputs = {n: operands[at] if shape is None else operands[at].reshape(shape) for at, n, shape in self._inputs}
        made = self._kernel(inputs)
        results = [self._result(made[name], shape) for name, shape in self._outputs]
        return tuple(results) if len(results) > 1 else results[0]

    def _result(self, made: torch.Tensor, shape: tuple[int, ...] | None) -> torch.Tensor:
        y = (made if made.dim() == 2 else made.flatten(0, -2)) if shape is None else made.view(shape)
        return unfused.follow(y, None, self._activation) if self._activation else y


def _declared(program: Program, name: str, tensor: torch.Tensor, ranks: int) -> tuple[int, ...] | None:
    """The shape that a program declares an operand with, ranks first or rows; None where it has it already."""
    shape, dimensions = list(tensor.shape), len(program.tensor(name).shape)
    if dimensions == 1:
        return None
    rows = (ranks, shape[0] // ranks) if dimensions == 3 else (shape[0],)
    wanted = (*rows, prod(shape[1:]))
    return None if list(wanted) == shape else wanted
