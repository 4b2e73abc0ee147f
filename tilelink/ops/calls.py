"""Calls of operators: the kernel for tensors of given shapes, compiled at the first call and then looked up.

A call is cached by the operator, its activation, the shapes, dtypes and devices, the group and the schedule. The first
call of its kind checks everything, and for a fused one compiles a kernel, unless one is there: some numbers of rows
share one (`rows`). That is collective, so all ranks of the group must make their first calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ProcessGroup

from tilelink import compiler
from tilelink.capabilities import has_warpgroups
from tilelink.compiler import library_module
from tilelink.errors import DtypeError, TileLinkError, UnknownNameError, UnknownTargetError
from tilelink.ops import unfused
from tilelink.ops.choice import room_for, rounded_rows
from tilelink.ops.consensus import CallKind, agree, compared, consensus, refuse
from tilelink.ops.decide import decide, measured
from tilelink.ops.groups import OfGroups, close_kernels, refuse_capture
from tilelink.ops.nodes import nodes_of
from tilelink.ops.operators import OPERATORS, UNFUSED, Operator, program_of
from tilelink.ops.pairs import Direct, Pair
from tilelink.ops.partial_inputs import PartialInputs
from tilelink.ops.predict import Request
from tilelink.ops.rows import Rows, rows_of
from tilelink.ops.sms import target_of
from tilelink.ops.validate import check_activation, check_operands, check_out, check_out_apart, check_scattered
from tilelink.runtime.cuda.device import current_target
from tilelink.scheduling.schedule import Schedule
from tilelink.settings import settings
from tilelink.tuning.prepare import Point

if TYPE_CHECKING:
    from tilelink.ir.program import Program

Implementation = Schedule | str | None
"""A schedule, its name, `program:name`, its text, or UNFUSED; None: the operator chooses."""

Operands = tuple[torch.Tensor | None, ...]


DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}


@dataclass(kw_only=True)
class Made:
    """Objects made for the calls of a group.

    calls: what runs calls of each kind, by their operator and all that tells kinds apart. kernels: of operators and of
    programs of one's own, by program, schedule, sizes and dtype; calls with other rows take them too. decided:
    implementations of calls that name none. ways: the programs and schedules that names mean. partial: what programs
    have of inputs that are given in part, by name. wanted: kernels that calls lack, by the keys of `kernels`, while
    `prepare` collects them; else None.
    """

    group: ProcessGroup
    calls: dict[Any, Any] = field(default_factory=dict[Any, Any])
    kernels: dict[Any, Callable[..., dict[str, torch.Tensor]]] = field(default_factory=dict[Any, Any])
    decided: dict[Request, Schedule | str] = field(default_factory=dict[Request, Any])
    ways: dict[Any, tuple[Program, Schedule]] = field(default_factory=dict[Any, Any])
    partial: dict[str, PartialInputs] = field(default_factory=dict[str, PartialInputs])
    wanted: dict[Any, Point] | None = None

    def way(self, implementation: Schedule | str, op: str, variant: str) -> tuple[Program, Schedule]:
        """Return the program and the schedule that an implementation means for an operator."""
        if not isinstance(implementation, str):
            return _resolve(implementation, op, variant)
        key = (implementation, op, variant)
        if key not in self.ways:
            self.ways[key] = _resolve(*key)
        return self.ways[key]

    def kernel(
        self, name: str, program: Program, schedule: Schedule | None, dims: compiler.Dims, dtype: str,
        tables: compiler.Tables | None = None,
    ) -> Any:  # fmt: skip
        """Return a kernel. name: tells the program's tables from those of others.

        Collective where it is not made yet. Raises NotMade for one that is wanted, RankError in the capture of a graph.
        """
        target = target_of(self.group)
        key = (name, program, str(schedule), *dims.items(), dtype, target)  # variants of a program share its name
        if key not in self.kernels:
            refuse_capture(
                f"{program.name} is compiled at its first call, which no CUDA graph holds",
                "call it once before the capture, on all ranks, with tensors of these sizes",
            )
            ranks, nodes = self.group.size(), nodes_of(self.group)
            if self.wanted is not None and not tables:  # a point has no tables
                self.wanted[key] = Point(
                    program=program, schedule=schedule, dims=dims, dtype=dtype, ranks=ranks, nodes=nodes,
                    target=target or current_target(self.group), deadlines=(settings().deadline is not None,),
                )  # fmt: skip
                raise NotMade
            self.kernels[key] = compiler.compile(
                program, schedule, ranks=ranks, dims=dims, dtype=dtype, device="cuda", group=self.group, nodes=nodes,
                tables=tables, target=target,
            )  # fmt: skip
        return self.kernels[key]

    def partial_inputs(self, program: Program) -> PartialInputs:
        """Return the inputs of which calls of a program give a part."""
        if program.name not in self.partial:
            self.partial[program.name] = PartialInputs(program)
        return self.partial[program.name]

    def free(self, captured: bool) -> int:
        """Close the kernels and forget the rest. Return the number of kernels that are kept (`close_kernels`)."""
        held = close_kernels(self.kernels, captured)
        self.calls.clear()
        self.decided.clear()
        return held


_made = OfGroups(lambda group: Made(group=group), Made.free)


def made_for(group: ProcessGroup | str) -> Made:
    """Return what was made for the calls of a group, or of the group that has a name."""
    return _made.of(group)


class NotMade(Exception):
    """Raised for a call whose kernel is not made, but wanted."""


def run(
    op: str, operands: Operands, activation: str, group: ProcessGroup | str, implementation: Implementation,
    numbers: tuple[float, ...] = (), out: tuple[torch.Tensor, ...] = (),
) -> Any:  # fmt: skip
    """Run an operator; its kernel is compiled at the first call of its kind. numbers: those that the operator takes.

    out: tensors for all its results, or none.
    Raise ShapeError or DtypeError for operands that do not fit, and BindingError too for such an `out`,
    UnknownNameError for a schedule that there is not, RankError for a group that there is not any more, and what
    `compile` raises.
    """
    made = _made.of(group)
    key = (
        op, activation, numbers,
        implementation if implementation is None or type(implementation) is str else id(implementation),
        *[None if t is None else (t.shape, t.dtype, t.device) for t in operands],
    )  # fmt: skip
    found = made.calls.get(key)
    if found is None:
        try:
            with gpu_of(operands[0]):
                call = _prepared(op, operands, activation, made, implementation, numbers)
        except NotMade:
            return _one(out) if out else OPERATORS[op].empty(_given(OPERATORS[op], operands), made.group.size())
        found = made.calls[key] = (call, implementation)  # keeps the implementation's id its own
    if not out:
        return found[0](*operands)
    _check_out(OPERATORS[op], operands, out, made.group.size())
    results = found[0](*operands, out=out)
    for into, result in zip(out, results if len(out) > 1 else (results,), strict=True):
        if into.data_ptr() != result.data_ptr():
            into.copy_(result)
    return _one(out)


def _given(operator: Operator, operands: Operands) -> dict[str, torch.Tensor]:
    return {one.name: t for one, t in zip(operator.operands, operands, strict=True) if t is not None}


def _one(results: Sequence[torch.Tensor]) -> Any:
    return tuple(results) if len(results) > 1 else results[0]


def _check_out(operator: Operator, operands: Operands, out: tuple[torch.Tensor, ...], ranks: int) -> None:
    given = _given(operator, operands)
    named = dict(zip((one.name for one in operator.outputs), out, strict=True))
    check_out(operator.name, named, operator.shapes(given, ranks), given["x"])
    check_out_apart(operator.name, named, given)


# Building a call ---------------------------------------------------------------------------------------------


def _prepared(
    op: str, operands: Operands, activation: str, made: Made, implementation: Implementation,
    numbers: tuple[float, ...],
) -> Callable[..., Any]:  # fmt: skip
    """Return what makes a call, after ranks have agreed on it: then compared each time, if calls on its device are."""
    operator = OPERATORS[op]
    given = _given(operator, operands)
    try:
        check_activation(activation)
        check_operands(operator, given)
    except TileLinkError as error:
        refuse(op, made.group, operands[0], error)
    same, device = _call_of(operator, given), given["x"].device
    agree(same, made.group, device)
    call = _built(operator, given, activation, made, implementation, numbers)
    return compared(call, same, made.group, device)


def _built(
    operator: Operator, given: dict[str, torch.Tensor], activation: str, made: Made, implementation: Implementation,
    numbers: tuple[float, ...],
) -> Callable[..., Any]:  # fmt: skip
    members, x, op = made.group, given["x"], operator.name
    columns, ranks = x.shape[1:].numel(), members.size()
    check_scattered(operator, x, ranks)
    rows = rows_of(operator, x.shape[0], ranks)
    N = given[operator.weights[0]].shape[0] if operator.weights else columns
    variant, left = operator.epilogue("bias" in given, activation)
    asked = implementation
    if implementation is None and able(x) and ranks > 1:
        exact = rows_of(operator, x.shape[0], ranks, exact=True)
        M = rows.total if operator.rows != "kept" else rounded_rows(x.shape[0])
        shared = Request(op=operator.rule, variant=variant, M=M, N=N, K=columns, ranks=ranks, dtype=DTYPES[x.dtype])
        implementation, is_exact = _decided(replace(shared, M=exact.total), shared, made)
        rows = exact if is_exact else rows
    if operator.summed and asked != UNFUSED and not _is_of(implementation, operator):
        return partial(_apart, operator, numbers, members, asked)
    if implementation is None or implementation == UNFUSED:
        after = (activation, *numbers) if operator.activation else numbers
        return partial(_unfused, operator.unfused, after, members)
    program, schedule = made.way(implementation, operator.rule, variant)
    if operator.rows == "kept" and not any(one.name == "Ms" for one in program.params):
        rows = rows_of(operator, x.shape[0], 1, exact=rows.fit)  # ranks need not divide them
    parts = made.partial_inputs(program)
    if operator.rows == "kept" and parts.counts:
        rows = Rows(parts=1, results=1, call=x.shape[0], kernel=room_for(x.shape[0]))
    taken = {t.name for t in program.tensors if t.space == "in"}
    taken -= {*parts.counts} if operator.rows == "kept" else set()
    if operator.weights and operator.small is not None and taken == {"x"}:
        moved = columns if operator.gathers else N
        kernel = _kernel(program, schedule, x, {"M": rows.total, "N": moved, "K": moved}, made)
        shape = (rows.total if operator.rows != "scattered" else rows.kernel, moved)
        direct = direct_launch(kernel, {"x": 0}, [("y", shape)]) if rows.fit else None
        return Pair(kernel, operator.gathers, activation, rows, direct)
    if taken != set(given):
        raise UnknownNameError(f"{program.name} does not compute {op}", hint=f"it takes {', '.join(sorted(taken))}")
    sizes = {"M": rows.total, "N": N, "K": columns, **dict(zip(operator.numbers, numbers, strict=True))}
    kernel = _kernel(program, schedule, x, sizes, made)
    counts = {name: parts.scalar(rows.call, rows.kernel, x.device) for name in parts.counts}
    return Launch(kernel, program, operator, given, ranks, left, rows, counts)


def _call_of(operator: Operator, given: Mapping[str, torch.Tensor]) -> CallKind:
    """Return what all ranks give alike: not the sizes of a product's operands that may differ, as its columns."""
    x, columns = given["x"], ()
    if operator.weights and not operator.gathers:
        columns = (f"{given[operator.weights[0]].shape[0]} columns",)
    return CallKind(operator.name, (x.dtype, *columns), tuple(x.shape[:1] if operator.weights else x.shape))


def gpu_of(x: torch.Tensor | None) -> AbstractContextManager[Any]:
    """Make x's GPU the current one: a thread's is the first one until the thread says otherwise."""
    return torch.cuda.device(x.device) if x is not None and x.is_cuda else nullcontext()


def able(x: torch.Tensor) -> bool:
    """True if generated kernels can take what is on x's device and has its dtype."""
    return x.dtype in DTYPES and x.is_cuda


@cache
def has_roles(device: torch.device) -> bool:
    """True if warps of kernels have roles on a GPU."""
    with suppress(UnknownTargetError), torch.cuda.device(device):
        return has_warpgroups(current_target())
    return False


def _decided(exact: Request, shared: Request, made: Made) -> tuple[Schedule | str, bool]:
    """The implementation of a call that names none, and whether its kernel has just as many rows as the call.

    exact: with the rows of the call, and shared: with those of a kernel for several numbers of rows. The fastest that
    was measured with the call's own rows has a kernel for them. The first call of a group is collective.
    """
    known = consensus(made.group)
    if not known.one_node:
        return UNFUSED, False
    try:
        processor = target_of(made.group) or current_target()
    except UnknownTargetError:
        return UNFUSED, False
    if exact != shared and known.records:
        found = measured(exact, known.gpu, known.versions, known.records, processor)
        if found is not None:
            return found, True
    if shared not in made.decided:
        made.decided[shared] = decide(
            shared, gpu=known.gpu, versions=known.versions, records=known.records, processor=processor,
            speaks=made.group.rank() == 0,
        )  # fmt: skip
    return made.decided[shared], False


def _unfused(
    function: Callable[..., Any], after: tuple[Any, ...], group: ProcessGroup, *operands: Any, out: Any = ()
) -> Any:
    """The results, which are new tensors."""
    return function(*operands, *after, group)


def _is_of(implementation: Implementation, operator: Operator) -> bool:
    """True if an implementation says that it is by a program of the operator."""
    program = implementation.program if isinstance(implementation, Schedule) else (implementation or "").split(":")[0]
    return program in operator.own_programs


def _apart(
    operator: Operator, numbers: tuple[float, ...], group: ProcessGroup, implementation: Implementation,
    *operands: torch.Tensor, out: tuple[torch.Tensor, ...] = (),
) -> Any:  # fmt: skip
    """Return the results of an operator by that of the sum, which has the implementation, and by what follows it."""
    count = sum(not one.optional for one in OPERATORS[operator.summed].operands)
    given, (residual, *norm) = operands[:count], operands[count:]
    y = run(operator.summed, (*given, None) if count > 1 else given, "", group, implementation)
    if norm:
        return run("add_norm", (y, residual, *norm), "", group, None, numbers, out)
    return torch.add(y, residual, out=out[0] if out else None)


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


def _kernel(
    program: Program, schedule: Schedule, x: torch.Tensor, sizes: Mapping[str, float], made: Made
) -> Callable[..., dict[str, torch.Tensor]]:
    """The kernel of a program for such sizes; M: its rows over all ranks."""
    if x.dtype not in DTYPES:
        raise DtypeError(f"{program.name} of {x.dtype}", hint=f"generated kernels take bf16 and f16; or {UNFUSED!r}")
    ranks = made.group.size()
    # g: ranks of a node, of programs in two levels
    known = {**sizes, "Ms": int(sizes["M"]) // ranks, "g": ranks // nodes_of(made.group)}
    dims = {one.name: known[one.name] for one in program.params}
    return made.kernel(program.name, program, schedule, dims, DTYPES[x.dtype])


def direct_launch(
    kernel: Any, inputs: Mapping[str, int], outputs: Sequence[tuple[str, tuple[int, ...]]], *of_rows: Any
) -> Direct | None:  # fmt: skip
    """Return the launches of a kernel by place (`GpuKernel.direct`), or None where it has none, as that of nodes."""
    direct = getattr(kernel, "direct", None)
    return None if direct is None else direct(inputs, outputs, *of_rows)


class Launch:
    """A kernel that is called with an operator's tensors and returns its results as the operator has them."""

    def __init__(
        self, kernel: Callable[..., dict[str, torch.Tensor]], program: Program, operator: Operator,
        given: dict[str, torch.Tensor], ranks: int, activation: str, rows: Rows,
        counts: Mapping[str, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        """activation: what is left to do after the kernel.

        counts: inputs of the program that say how many rows of the kernel a call has.
        """
        self._counts = counts or {}
        self._kernel, self._activation, self._rows = kernel, activation, rows
        # Places of operands with rows.
        self._of_rows = {place for place, one in enumerate(operator.operands) if one.dims is None or "rows" in one.dims}
        self._inputs: list[tuple[int, str, tuple[int, ...] | None]] = []
        for place, one in enumerate(operator.operands):
            if one.name in given:
                first, *columns = given[one.name].shape
                shape = (rows.parts * rows.kernel if place in self._of_rows else first, *columns)
                self._inputs.append((place, one.name, _declared(program, one.name, shape, ranks)))
        shapes = operator.shapes(given, ranks)
        made = [(output.name, shape) for output, shape in zip(operator.outputs, shapes, strict=True)]
        self._direct = None
        if self._counts or rows.fit:
            places, own = {name: place for place, name, _ in self._inputs}, tuple[Any, ...]()
            if self._counts:
                # Results have just the rows of the call. x has those of the kernel: where descriptors ended within a
                # tile, it took 63 us for 136 x 4096 x 7168 in place of 36 (two H200s).
                own = self._counts, dict(made)
            self._direct = direct_launch(kernel, places, made, *own)
        straight = made if rows.fit and not activation else []
        self._straight = [(name, _declared(program, name, shape, ranks)) for name, shape in straight]
        """Results that kernels write into given tensors, with their shapes in kernels."""
        shape = None if operator.weights else (-1, *given["x"].shape[1:])
        self._outputs: list[tuple[str, tuple[int, ...] | None]] = [(output.name, shape) for output in operator.outputs]

    def __call__(self, *operands: Any, out: tuple[torch.Tensor, ...] = ()) -> Any:
        if not self._rows.fit:
            given, of_rows = self._rows.given, self._of_rows
            operands = tuple(given(t) if place in of_rows else t for place, t in enumerate(operands))
        if self._direct is not None and not out:
            results = self._direct(operands)
            if results is not None:
                if self._activation:
                    results = [unfused.follow(y, None, self._activation) for y in results]
                return _one(results)
        inputs = {n: operands[at] if shape is None else operands[at].reshape(shape) for at, n, shape in self._inputs}
        inputs.update(self._counts)
        if out and self._straight:
            into = {
                name: one if shape is None else one.view(shape)
                for one, (name, shape) in zip(out, self._straight, strict=True)
            }
            made = self._kernel(inputs, into)
        else:
            made = self._kernel(inputs)
        results = [self._result(made[name], shape) for name, shape in self._outputs]
        return _one(results)

    def _result(self, made: torch.Tensor, shape: tuple[int, ...] | None) -> torch.Tensor:
        if not self._rows.fit:
            y = self._rows.taken(made, made.shape[-1:] if shape is None else shape[1:])
        else:
            y = (made if made.dim() == 2 else made.flatten(0, -2)) if shape is None else made.view(shape)
        return unfused.follow(y, None, self._activation) if self._activation else y


def _declared(program: Program, name: str, shape: tuple[int, ...], ranks: int) -> tuple[int, ...] | None:
    """The shape that a program declares an operand with, ranks first or rows; None where it has it already."""
    dimensions = len(program.tensor(name).shape)
    if dimensions == 1:
        return None
    rows = (ranks, shape[0] // ranks) if dimensions == 3 else (shape[0],)
    wanted = (*rows, prod(shape[1:]))
    return None if wanted == shape else wanted
