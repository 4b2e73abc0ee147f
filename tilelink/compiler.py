"""The pipeline, top to bottom: text -> program -> bound -> plan -> verified -> source -> run.

This is the one module that knows every layer. Nothing runs that the verifier has not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilelink.backend import store
from tilelink.backend.emit import Emitted, emit
from tilelink.errors import BindingError, ShapeError, UnknownNameError, UnknownTargetError
from tilelink.frontend.parser import parse_text
from tilelink.ir.program import Program, Statement, Transfer
from tilelink.ir.typing import infer
from tilelink.ir.visitor import statements
from tilelink.schedule.bind import bind
from tilelink.schedule.bound import Bound
from tilelink.schedule.plan import Plan, make_plan
from tilelink.schedule.values import Schedule
from tilelink.schedule.verify import verify
from tilelink.settings import settings
from tilelink.target import Target
from tilelink.target import target as named_target

if TYPE_CHECKING:
    import torch

    from tilelink.runtime.job import Job, RunResult

PROGRAMS = Path(__file__).with_name("programs")
DEADLINE_S = 60.0

Dims = Mapping[str, int | float | bool]
Tables = Mapping[str, Any]
Tensors = Mapping[str, "torch.Tensor"]


# Programs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Module:
    """What a `.tl` file declares."""

    file: str
    programs: tuple[Program, ...]
    schedules: tuple[Schedule, ...]

    def program(self, name: str | None = None) -> Program:
        """The program of that name; None: the only one. Raises UnknownNameError with the names that there are."""
        names = ", ".join(p.name for p in self.programs)
        found = [p for p in self.programs if name in (None, p.name)]
        if not found:
            what = f"no program {name!r} in {self.file}" if name else f"no program in {self.file}"
            raise UnknownNameError(what, hint=f"its programs are {names}" if names else "program NAME(...):")
        if len(found) > 1:
            raise UnknownNameError(f"{self.file} has several programs", hint=f"choose one of {names}")
        return found[0]

    def schedules_of(self, program: Program) -> tuple[Schedule, ...]:
        """The schedules that the file has for a program."""
        return tuple(s for s in self.schedules if s.program == program.name)

    def schedule(self, name: str, program: Program) -> Schedule:
        """The schedule of that name for a program. Raises UnknownNameError with the names that there are."""
        of_program = self.schedules_of(program)
        for schedule in of_program:
            if schedule.name == name:
                return schedule
        names = ", ".join(s.name for s in of_program) or "none"
        raise UnknownNameError(f"no schedule {name!r} for {program.name}", hint=f"{self.file} has {names}")


def load(name: str | Path) -> Module:
    """The programs and schedules of a `.tl` file, or of the operator library by file or program name.

    A program of the library found by its own name comes alone. Raises UnknownNameError for neither a file nor a name
    of the library, ParseError and its kin for a file that is not in the language.
    """
    path = Path(name)
    if path.is_file():
        return parse(path.read_text(encoding="utf-8"), str(path))
    known = library()
    for module in known:
        if str(name) == Path(module.file).stem:
            return module
    for module in known:
        for program in module.programs:
            if program.name == str(name):
                return Module(file=module.file, programs=(program,), schedules=module.schedules_of(program))
    names = ", ".join(sorted({p.name for m in known for p in m.programs}))
    raise UnknownNameError(f"no file {str(name)!r}", hint=f"write a path, or a name of the library: {names}")


def library() -> tuple[Module, ...]:
    """The operator library."""
    return tuple(parse(p.read_text(encoding="utf-8"), str(p)) for p in sorted(PROGRAMS.glob("*.tl")))


def parse(text: str, file: str = "<text>") -> Module:
    """The programs and schedules of a text; `file` names it in errors."""
    found = parse_text(text, file)
    return Module(file=file, programs=tuple(found.programs), schedules=tuple(found.schedules))


def check(program: Program) -> Program:
    """Checks names, shapes and types, and returns the program. Raises the error of the first mistake."""
    infer(program)
    return program


def reference(
    program: Program, inputs: Sequence[Tensors], *, dims: Dims, dtype: str = "f32"
) -> list[dict[str, torch.Tensor]]:
    """What a program means: inputs[rank][name] -> outputs[rank][name], on torch tensors and without any schedule."""
    from tilelink.reference.run import run

    return [dict(own) for own in run(program, inputs, dims, dtype=dtype)]


# Plans -------------------------------------------------------------------------------------------------------


def bound(
    program: Program,
    schedule: Schedule | None = None,
    *,
    ranks: int,
    dims: Dims,
    dtype: str = "f32",
    target: str | Target = "cpu",
) -> Bound:
    """A program with a schedule (None: the defaults), its dimensions and parameters, ranks, element type and target.

    Raises BindingError for dimensions without a value, ScheduleError for a schedule that does not fit.
    """
    machine = named_target(target) if isinstance(target, str) else target
    return bind(check(program), schedule, dims, ranks, machine, dtype)


def plan(
    program: Program,
    schedule: Schedule | None = None,
    *,
    ranks: int,
    dims: Dims,
    dtype: str = "f32",
    target: str | Target = "cpu",
    tables: Tables | None = None,
) -> Plan:
    """Every tile task of every rank, verified. tables: name -> int array [ranks, *shape] of the dynamic mappings.

    Raises what `bound` raises, and VerificationError for a plan that is not safe.
    """
    result = make_plan(bound(program, schedule, ranks=ranks, dims=dims, dtype=dtype, target=target), tables)
    verify(result)
    return result


def source(
    program: Program,
    schedule: Schedule | None = None,
    *,
    ranks: int,
    dims: Dims,
    dtype: str = "f32",
    target: str | Target = "cpu",
    tables: Tables | None = None,
    dialect: str = "triton",
) -> str:
    """The generated module of a verified plan. dialect: "triton" or "triton_dist"."""
    verified = plan(program, schedule, ranks=ranks, dims=dims, dtype=dtype, target=target, tables=tables)
    return emit(verified.bound, verified.thresholds, dialect=dialect).text


def compile(
    program: Program,
    schedule: Schedule | None = None,
    *,
    ranks: int,
    dims: Dims,
    dtype: str = "f32",
    device: str = "cpu",
    target: str | Target | None = None,
    tables: Tables | None = None,
) -> Kernel:
    """A verified program that runs: on `ranks` processes of this machine's CPU.

    tables: the values of the program's tables, int [ranks, *shape]; they hold for every launch of the kernel, whose
    counters are laid out by them. Raises what `plan` raises, and BindingError for a device that there is not.
    """
    if device != "cpu":
        hint = "device cpu runs the same generated kernels, in Triton's interpreter"
        raise BindingError(f"there is no runtime for device {device!r} yet", hint=hint)
    verified = plan(program, schedule, ranks=ranks, dims=dims, dtype=dtype, target=target or "cpu", tables=tables)
    return Kernel(plan=verified, emitted=emit(verified.bound, verified.thresholds), tables=dict(tables or {}))


def assembly(
    program: Program,
    schedule: Schedule | None = None,
    *,
    ranks: int,
    dims: Dims,
    dtype: str = "bf16",
    target: str | Target = "sm_90",
    tables: Tables | None = None,
) -> str:
    """The generated kernels compiled for a GPU, which need not be there: PTX, or AMD's assembly for an AMD target.

    Raises what `plan` raises, UnknownTargetError for the CPU, SettingsError where TRITON_INTERPRET is set.
    """
    from tilelink.runtime.assembly import KernelSource, assemble

    machine = named_target(target) if isinstance(target, str) else target
    if machine.kind == "cpu":
        raise UnknownTargetError("kernels are interpreted on the CPU, not compiled", hint="compile for sm_90, say")
    verified = plan(program, schedule, ranks=ranks, dims=dims, dtype=dtype, target=machine, tables=tables)
    emitted = emit(verified.bound, verified.thresholds)
    dtypes = {name: tensor.dtype for name, tensor in verified.bound.tensors.items()}
    kernels = [
        KernelSource(
            name=one.name,
            args=tuple((arg.kind, dtypes.get(arg.name, "")) for arg in one.args),
            warps=one.kernel.warps,
            stages=one.kernel.stages,
        )
        for one in emitted.kernels
        if not one.kernel.on_copy_engine
    ]
    return assemble(store.save(emitted.text), kernels, machine)


# Running -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A compiled program: `kernel([{"x": ...}, ...])` takes and returns a dict of tensors for each rank."""

    plan: Plan
    emitted: Emitted
    tables: Mapping[str, Any]

    @property
    def bound(self) -> Bound:
        return self.plan.bound

    @property
    def source(self) -> str:
        """The generated module."""
        return self.emitted.text

    @cached_property
    def path(self) -> Path:
        """The file of the generated module, in the store."""
        return store.save(self.emitted.text)

    def __call__(self, inputs: Sequence[Tensors]) -> list[dict[str, torch.Tensor]]:
        """One launch: inputs[rank][name] -> outputs[rank][name]. Raises as `run` does."""
        return [dict(own) for own in self.run([inputs]).outputs[0]]

    def reference(self, inputs: Sequence[Tensors]) -> list[dict[str, torch.Tensor]]:
        """What one launch means: inputs[rank][name] -> outputs[rank][name]. Tables may be left out."""
        complete = [self._inputs(rank, own) for rank, own in enumerate(inputs)]
        return reference(self.bound.source, complete, dims=self.bound.numbers, dtype=self.bound.dtype)

    def run(
        self,
        launches: Sequence[Sequence[Tensors]],
        *,
        seed: int | None = None,
        max_delay_s: float = 0.0,
        trace: bool = False,
        deadline_s: float | None = None,
    ) -> RunResult:
        """Launches back to back, without resets between them: launches[k][rank][name] -> outputs[k][rank][name].

        seed, max_delay_s: random delays before waits, notifies and transfers, to provoke other interleavings.
        trace: keep the events of every lane. deadline_s: seconds that one wait may take.
        Raises BindingError, ShapeError or DtypeError for inputs that do not fit, RankError for a rank that failed,
        DeadlineError for a wait that outlived its deadline.
        """
        from tilelink.runtime.cpu import run_cpu

        inputs = tuple(tuple(self._inputs(rank, own) for rank, own in enumerate(one)) for one in launches)
        for one in inputs:
            if len(one) != self.bound.ranks:
                raise BindingError(f"inputs of {len(one)} ranks for a kernel of {self.bound.ranks}")
        deadline = deadline_s or settings().deadline or DEADLINE_S
        return run_cpu(self._job(inputs, deadline_s=deadline, seed=seed, max_delay_s=max_delay_s, trace=trace))

    def _job(self, inputs: tuple[tuple[Tensors, ...], ...], **options: Any) -> Job:
        from tilelink.runtime.job import CpuKernel, Job

        kernels = tuple(
            CpuKernel(
                name=one.name,
                stream=one.kernel.stream,
                position=one.kernel.position,
                programs=one.kernel.programs,
                copy_engine=one.kernel.on_copy_engine,
                args=tuple((arg.kind, arg.name) for arg in one.args),
            )
            for one in self.emitted.kernels
        )
        return Job(source=self.path, kernels=kernels, layout=layout(self.plan), inputs=inputs, **options)

    def _inputs(self, rank: int, given: Tensors) -> dict[str, torch.Tensor]:
        """The inputs of one rank, checked, with the tables of the kernel."""
        import torch

        from tilelink.runtime.job import TORCH_DTYPES

        tables = {name: torch.as_tensor(np.asarray(value)[rank]).int() for name, value in self.tables.items()}
        wanted = [t for t in self.bound.tensors.values() if t.decl.space in ("in", "table")]
        if unknown := sorted(given.keys() - {t.name for t in wanted}):
            hint = f"the inputs are {', '.join(t.name for t in wanted)}"
            raise BindingError(f"there is no input {unknown[0]!r}", hint=hint)
        result: dict[str, torch.Tensor] = {}
        for tensor in wanted:
            value = given.get(tensor.name, tables.get(tensor.name))
            if value is None:
                raise BindingError(f"rank {rank} has no input {tensor.name!r}", location=tensor.decl.location)
            if tuple(value.shape) != tensor.shape or value.dtype != TORCH_DTYPES[tensor.dtype]:
                got = f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
                message = f"input {tensor.name!r} of rank {rank} is {got}"
                hint = f"it takes {list(tensor.shape)} {tensor.dtype}"
                raise ShapeError(message, location=tensor.decl.location, hint=hint)
            if tensor.name in tables and not torch.equal(value, tables[tensor.name]):
                hint = "compile with the tables of the launch: its counters are laid out by them"
                raise BindingError(f"table {tensor.name!r} of rank {rank} is not what was compiled", hint=hint)
            result[tensor.name] = value.detach().cpu().contiguous()
        return result


def layout(plan: Plan) -> Any:
    """The memory of a plan's ranks, as the CPU runtime takes it."""
    from tilelink.runtime.job import GridLayout, Layout, TensorLayout

    bound = plan.bound
    tensors = tuple(
        TensorLayout(
            name=t.name,
            number=t.number,
            space=t.decl.space,
            symmetric=t.decl.symmetric,
            shape=t.shape,
            dtype=t.dtype,
            slots=t.slots,
        )
        for t in bound.tensors.values()
    )
    grids = tuple(
        GridLayout(
            tensor=g.tensor,
            kind=g.kind,
            base=g.base,
            counts=g.counts,
            slots=g.slots,
            thresholds=plan.thresholds[key].reshape(bound.ranks, -1),
        )
        for key, g in bound.channels.items()
    )
    return Layout(
        ranks=bound.ranks,
        tensors=tensors,
        grids=grids,
        pad_size=bound.pad_size,
        entered_base=bound.entered_base,
        finished_base=bound.finished_base,
        stages=tuple(bound.stages),
        pulls=frozenset(s.number for s in bound.stages.values() if any(map(_pulls, statements(s.stage.body)))),
    )


def _pulls(statement: Statement) -> bool:
    """Whether a statement fetches a region to the own rank."""
    return isinstance(statement, Transfer) and statement.mode != "push" and statement.target.rank is None
