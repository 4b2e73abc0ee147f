"""The pipeline, top to bottom: program -> bound -> plan -> verified -> source -> run. Only verified programs run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from tilelink.backend import store
from tilelink.compiler.cpu import Kernel, Tensors
from tilelink.compiler.modules import schedule_of
from tilelink.compiler.proofs import proved
from tilelink.errors import AccountingError, BindingError, ProgressError, ShapeError, UnknownTargetError, public
from tilelink.frontend.checker import check
from tilelink.ir.depth import deep
from tilelink.ir.program import Program, require_program
from tilelink.ir.scalar import Int
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.lowering.shared_memory import check_memory
from tilelink.lowering.transform import number_of
from tilelink.planning.plan import Plan
from tilelink.scheduling.schedule import Schedule
from tilelink.settings import settings
from tilelink.target import Target
from tilelink.target import target as named_target

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tilelink.backend.context import Emitted
    from tilelink.reference.run import Outputs
    from tilelink.runtime.cuda.kernel import GpuKernel
    from tilelink.runtime.nvshmem.kernel import NvshmemKernel

Dims = Mapping[str, int | float | bool]
Tables = Mapping[str, Any]


def reference(
    program: Program,
    inputs: Sequence[Tensors],
    *,
    dims: Dims,
    dtype: str = "f32",
    kept: Sequence[Tensors] | None = None,
) -> list[Outputs]:
    """Return the reference result: inputs[rank][name] -> outputs[rank][name], on torch tensors, without a schedule.

    `outputs[rank].defined` has the masks of outputs that are defined in part, and `outputs[rank].kept` what the launch
    leaves in the tensors that are kept between launches. kept: [rank][name], what the launch before has left there;
    None for zeros.

    Every index is one tile, except for scalar indices. Raises the errors of such a schedule: a program may be safe only
    with smaller tiles, for example if a step waits for the previous one along such an index.
    """
    from tilelink.reference.run import run

    require_program(program)
    try:
        return run(program, inputs, dims, dtype=dtype, kept=kept)
    except (AccountingError, ProgressError) as error:
        hint = "a schedule with smaller tiles may be safe for all that: compare its results with your own reference"
        message = f"the reference, in which every index is one tile, cannot follow: {error.message}"
        raise type(error)(message, location=error.location, hint=hint) from None


# Plans -------------------------------------------------------------------------------------------------------


@public
def bound(
    program: Program,
    schedule: Schedule | str | None = None,
    *,
    ranks: int,
    dims: Dims,
    dtype: str = "f32",
    target: str | Target = "cpu",
    on_step: Callable[[str, Bound], None] | None = None,
    nodes: int = 1,
    dialect: str = "triton",
) -> Bound:
    """Return a bound program.

    schedule: or its name (`schedule_of`); None for the defaults. dims: dimensions and parameters. dtype: element type.
    nodes: how many nodes the ranks fill one after the other; between nodes the rules of the network hold.
    on_step: called with the name of each pass and the program after it (tilelink/lowering/passes.py).
    dialect: of the kernels to be generated (`source`). Passes leave out what it lacks (tilelink/capabilities.py).

    Raises EmitError for a program that the dialect cannot express, BindingError for dimensions without a value,
    ScheduleError for a schedule that does not fit, TileSizeError for tiles that a processor cannot hold.
    """
    machine = named_target(target) if isinstance(target, str) else target
    checked = check(program)
    result = bind(checked, schedule_of(checked, schedule), dims, ranks, machine, dtype, on_step, nodes, dialect)
    check_memory(result)
    return result


@public
@deep()
def plan(
    program: Program,
    schedule: Schedule | str | None = None,
    *,
    ranks: int,
    dims: Dims,
    dtype: str = "f32",
    target: str | Target = "cpu",
    tables: Tables | None = None,
    nodes: int = 1,
    dialect: str = "triton",
    on_stage: Callable[[str], None] | None = None,
) -> Plan:
    """Return the verified plan: every tile task of every rank.

    tables: name -> int array [ranks, *shape] of the dynamic mappings. nodes, dialect: as for `bound`.
    on_stage: called with what is done next, in words, for those who wait for it.

    Raises what `bound` raises, BindingError and ShapeError for tables that do not fit, and VerificationError for a plan
    that is not safe.
    """
    where: dict[str, Any] = {"ranks": ranks, "nodes": nodes, "target": target, "dialect": dialect}

    def say(stage: str) -> None:
        if on_stage is not None:
            on_stage(stage)

    say("binding")
    numbers = bound(program, schedule, **where, dims=dims, dtype=dtype)
    say(f"planning {numbers.total:,} tiles")
    values = checked_tables(numbers, tables or {})
    return proved(numbers, values, lambda rule: say(f"the rule {rule} for {numbers.total:,} tiles"))


def checked_tables(numbers: Bound, tables: Tables) -> dict[str, Any]:
    """Return the tables as arrays. Integers, shape and bound are checked, because kernels read the tables unchecked.

    Raises BindingError and ShapeError.
    """
    if not isinstance(tables, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers need not be typed
        raise BindingError(f"tables are a {type(tables).__name__}", hint="tables={name: integers}")
    arrays: dict[str, Any] = {}
    wanted = {t.decl.name: t for t in numbers.tensors.values() if t.decl.space == "table"}
    if unknown := sorted(tables.keys() - wanted.keys()):
        raise BindingError(f"there is no table {unknown[0]!r}", hint=f"its tables are {', '.join(wanted) or 'none'}")
    for name, table in wanted.items():
        shape = (numbers.ranks, *table.shape)
        where, hint = table.decl.location, f"tables={{{name!r}: integers, shape {list(shape)}}}"
        if name not in tables:
            raise BindingError(f"table {name!r} has no value", location=where, hint=hint)
        try:
            values = arrays[name] = np.asarray(tables[name])
        except (ValueError, TypeError, RuntimeError) as error:  # rows of several lengths, tensors without data
            raise BindingError(f"table {name!r} is no array: {error}", location=where, hint=hint) from error
        if values.shape != shape:
            raise ShapeError(f"table {name!r} is {list(values.shape)}", location=where, hint=hint)
        if values.dtype.kind not in "iu":
            raise BindingError(f"table {name!r} is {values.dtype}", location=where, hint=hint)
        limit = number_of(table.decl.bound or Int(value=1), numbers.numbers, numbers.ranks)
        wrong = values[(values < 0) | (values >= limit)]
        if wrong.size:
            raise BindingError(f"table {name!r} has {wrong[0]}", location=where, hint=f"its values are in [0, {limit})")
    return arrays


@public
def source(
    program: Program,
    schedule: Schedule | str | None = None,
    *,
    ranks: int,
    dims: Dims,
    dtype: str = "f32",
    target: str | Target = "cpu",
    tables: Tables | None = None,
    dialect: str = "triton",
    nodes: int = 1,
) -> str:
    """Return the source of the generated module of a verified plan.

    nodes: as for `bound`.

    dialect: "triton" is stock Triton with this package's device library, which `compile` runs. "triton_dist" is the
        same kernels for Triton-distributed's compiler and language, for NVIDIA GPUs. The caller launches those, with
        tensors and a zeroed int64 signal pad in NVSHMEM's symmetric memory, and signals entries and ends of launches.

    Raises what `plan` raises, and EmitError for a program that the dialect cannot express.
    """
    where: dict[str, Any] = {"ranks": ranks, "nodes": nodes, "target": target, "dialect": dialect}
    return source_of(plan(program, schedule, **where, dims=dims, dtype=dtype, tables=tables))


def source_of(verified: Plan) -> str:
    """Return the generated module of a verified plan. Raises EmitError for a program that kernels cannot express."""
    return _emitted(verified).text


def _emitted(verified: Plan) -> Emitted:
    # Imported here: it is a fifth of the time of an import of tilelink.compiler, and plans do without it.
    from tilelink.backend.emit import emit

    return emit(verified.bound, verified.thresholds)


@overload
def compile(
    program: Program,
    schedule: Schedule | str | None = None,
    *,
    ranks: int,
    dims: Dims,
    dtype: str = "f32",
    device: Literal["cpu"] = "cpu",
    target: str | Target | None = None,
    tables: Tables | None = None,
    trace: bool = False,
    nodes: int = 1,
) -> Kernel: ...


@overload
def compile(
    program: Program,
    schedule: Schedule | str | None = None,
    *,
    dims: Dims,
    dtype: str = "f32",
    device: Literal["cuda"],
    group: ProcessGroup | None = None,
    ranks: int | None = None,
    target: str | Target | None = None,
    tables: Tables | None = None,
    deadline_s: float | None = None,
    trace: bool = False,
    nodes: Literal[1] = 1,
) -> GpuKernel: ...


@overload
def compile(
    program: Program,
    schedule: Schedule | None = None,
    *,
    dims: Dims,
    dtype: str = "f32",
    device: Literal["cuda"],
    group: ProcessGroup | None = None,
    ranks: int | None = None,
    target: str | Target | None = None,
    tables: Tables | None = None,
    deadline_s: float | None = None,
    nodes: int,
) -> GpuKernel | NvshmemKernel: ...


@public
def compile(
    program: Program,
    schedule: Schedule | str | None = None,
    *,
    dims: Dims,
    ranks: int | None = None,
    dtype: str = "f32",
    device: str = "cpu",
    target: str | Target | None = None,
    tables: Tables | None = None,
    group: ProcessGroup | None = None,
    deadline_s: float | None = None,
    trace: bool = False,
    nodes: int = 1,
) -> Kernel | GpuKernel | NvshmemKernel:
    """Compile a verified program into a callable.

    schedule: a Schedule, the name of one in the program's file ("h200"), or "program:name" of the library.
    device: "cpu" runs it on `ranks` processes of this machine, "cuda" on this rank of a group of GPUs.
    nodes: as for `bound`. CPU ranks of different nodes send through a network that delivers late and in any order, GPUs
        through NVSHMEM.
    tables: values of the program's tables, int [ranks, *shape]. They apply to every launch of the kernel, because its
        counters are laid out with them.
    group: of torch.distributed, None for all ranks. Every rank of it must make this call, in the same order.
    deadline_s: on GPUs, seconds that one wait may take (None: TILELINK_DEADLINE, or no limit). With a deadline the host
        waits for each launch.
    trace: True to measure launches inside the kernels, which differ then (`spans` of the result of `run`; on GPUs
        `timeline`, and there is always a deadline).

    Raises what `plan` raises, BindingError for an unknown device, RankError for ranks that differ.
    """
    dialect = "traced" if trace else "triton"
    if device == "cuda":
        from tilelink.compiler.cuda import gpu_kernel, nodes_kernel
        from tilelink.runtime.cuda.device import current_target, group_of

        members = group_of(group, ranks)
        gpu = target or current_target(members)
        here: dict[str, Any] = {"ranks": members.size(), "nodes": nodes, "target": gpu}
        verified = plan(program, schedule, **here, dims=dims, dtype=dtype, tables=tables, dialect=dialect)
        deadline = deadline_s or settings().deadline
        if nodes > 1:
            return nodes_kernel(verified, members, tables or {}, deadline)
        return gpu_kernel(verified, members, tables or {}, deadline)
    if device != "cpu" or ranks is None:
        hint = "device cpu needs ranks, and runs the same generated kernels in Triton's interpreter; the other is cuda"
        raise BindingError(f"there is no runtime for device {device!r} with {ranks} ranks", hint=hint)
    where: dict[str, Any] = {"ranks": ranks, "nodes": nodes, "target": target or "cpu"}
    verified = plan(program, schedule, **where, dims=dims, dtype=dtype, tables=tables, dialect=dialect)
    return Kernel(plan=verified, emitted=_emitted(verified), tables=dict(tables or {}))


@public
def assembly(
    program: Program,
    schedule: Schedule | str | None = None,
    *,
    ranks: int,
    dims: Dims,
    dtype: str = "bf16",
    target: str | Target = "sm_90",
    tables: Tables | None = None,
    nodes: int = 1,
) -> str:
    """Return the generated kernels compiled for a GPU, which need not be present. nodes: as for `bound`.

    It is PTX, or AMD's assembly for an AMD target. Raises what `plan` raises, UnknownTargetError for the CPU,
    SettingsError if TRITON_INTERPRET is set.
    """
    from tilelink.backend.context import signature
    from tilelink.runtime.cuda.assembly import KernelSource, assemble

    machine = named_target(target) if isinstance(target, str) else target
    if machine.kind == "cpu":
        raise UnknownTargetError("kernels are interpreted on the CPU, not compiled", hint="compile for sm_90, say")
    verified = plan(program, schedule, ranks=ranks, dims=dims, dtype=dtype, target=machine, tables=tables, nodes=nodes)
    emitted = _emitted(verified)
    kernels = [
        KernelSource(
            name=one.name,
            types=signature(one, verified.bound),
            warps=one.num_warps,
            stages=one.num_stages,
            libraries=_linked(machine) if one.uses_network else {},
        )
        for one in emitted.kernels
    ]
    return assemble(store.save(emitted.text), kernels, machine)


def _linked(machine: Target) -> dict[str, str]:
    """Return the bitcode of kernels that use the network. Raises BindingError if it is not there."""
    from tilelink.runtime.nvshmem.bitcode import libraries

    return libraries(int(machine.architecture))
