"""Back end for CPU ranks: a verified program as a callable, and the memory that a plan's ranks need."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilelink.artifact import Artifact, Promise
from tilelink.backend import store
from tilelink.compiler.artifact import artifact_of
from tilelink.compiler.promises import promises_of
from tilelink.errors import BindingError, DeadlineError, DtypeError, RankError, ShapeError, public_methods
from tilelink.ir.program import ITEM_BYTES
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import Plan
from tilelink.settings import settings

if TYPE_CHECKING:
    import torch

    from tilelink.backend.context import Emitted
    from tilelink.reference.run import Outputs
    from tilelink.runtime.job import RunResult

DEADLINE_S = 60.0
"""Default limit of a wait of a CPU rank, in seconds."""
MAX_SECONDS = 7 * 24 * 3600
"""Largest limit of a wait, in seconds."""
MAX_PROCESSES = 1024
"""Programs of all ranks of a run, at most: each is a process."""
SIGNAL_BYTES = 4
"""Bytes of a counter."""

Tensors = Mapping[str, "torch.Tensor"]


@public_methods
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
        """Return the source of the generated module."""
        return self.emitted.text

    @property
    def path(self) -> Path:
        """Return the file of the generated module, in the store. It is written again if the store was cleared."""
        return store.save(self.emitted.text)

    def __call__(self, inputs: Sequence[Tensors]) -> list[dict[str, torch.Tensor]]:
        """Launch once: inputs[rank][name] -> outputs[rank][name]. Raises as `run` does.

        Tensors that the program is given and writes in place are changed, and are among the outputs themselves.
        """
        if not self._in_place:
            return [dict(outputs) for outputs in self.run([inputs]).outputs[0]]
        self._all_inputs(inputs)  # what does not fit is refused before anything is asked of the tensors
        _require_writable(self._in_place, inputs)
        outputs = [dict(outputs) for outputs in self.run([inputs]).outputs[0]]
        for given, found in zip(inputs, outputs, strict=True):
            for name in found.keys() & {*self._in_place}:  # a group of ranks alone may have it
                given[name].detach().copy_(found[name])
                found[name] = given[name]
        return outputs

    def state(self) -> list[dict[str, torch.Tensor]]:
        """Return copies of the tensors that are kept between launches, as the last one has left them: [rank][name]."""
        return [{name: tensor.clone() for name, tensor in own.items()} for own in self._left]

    def reset_state(self) -> None:
        """Fill the tensors that are kept between launches with zeros, as before the first launch."""
        for own in self._left:
            for tensor in own.values():
                tensor.zero_()

    def reference(self, inputs: Sequence[Tensors], kept: Sequence[Tensors] | None = None) -> list[Outputs]:
        """Return the reference result of one launch: inputs[rank][name] -> outputs[rank][name].

        kept: [rank][name], the tensors that are kept between launches, as `state` returns them; None for zeros. What
        the launch has left there is `outputs[rank].kept`. Tables may be left out. `outputs[rank].defined` has masks of
        outputs that are defined in part.
        """
        complete = self._all_inputs(inputs)
        from tilelink.reference.run import run

        return run(self.bound.source, complete, self.bound.numbers, dtype=self.bound.dtype, kept=kept)

    def run(
        self,
        launches: Sequence[Sequence[Tensors]],
        *,
        seed: int | None = None,
        max_delay_s: float = 0.0,
        trace: bool = False,
        deadline_s: float | None = None,
    ) -> RunResult:
        """Launch back to back, without resets in between: launches[k][rank][name] -> outputs[k][rank][name].

        Given tensors are copied. One that the program writes in place stays as it is; its outcome is among the outputs.
        A launch that is not given it goes on with what the previous launch has left. What is kept between launches goes
        on from the run, or the call, before; after a run that fails it is as before it.

        seed, max_delay_s: random delays before waits, notifies and transfers, to provoke other interleavings.
        trace: True to keep the events of every process. deadline_s: seconds that one wait may take.

        Raises BindingError, ShapeError or DtypeError for inputs that do not fit, and BindingError if they do not fit
        into memory, or if there are too many programs. Raises RankError for a rank that failed, DeadlineError for a
        wait that exceeded its deadline.
        """
        from tilelink.runtime.cpu.client import run_cpu
        from tilelink.runtime.job import Job

        inputs = tuple(self._all_inputs(launch, goes_on=n > 0) for n, launch in enumerate(launches))
        self.require_memory(len(inputs))
        self._require_processes()
        deadline = _seconds("deadline_s", deadline_s) or settings().deadline or DEADLINE_S
        _seconds("max_delay_s", max_delay_s)
        options: dict[str, Any] = {"seed": seed, "max_delay_s": max_delay_s, "trace": trace}
        kept = tuple(self._left)
        job = Job(
            artifact=self.artifact, source=self.path, inputs=inputs, deadline_s=deadline, kept=kept, **options
        )  # fmt: skip
        try:
            result = run_cpu(job)
        except (DeadlineError, RankError) as error:
            # Imported here, with the simulator that predicts: only a launch that hangs is explained.
            from tilelink.compiler.postmortem import explain

            explain(error, self.plan, self.tables, deadline)
            raise
        self._left[:] = [dict(own) for own in result.kept]
        return replace(result, kept=tuple(self.state()))

    def _require_processes(self) -> None:
        """Raise BindingError if the programs of all ranks are more processes than a run may have."""
        streams = len({one.stream for one in self.bound.kernels if one.on_copy_engine})
        wanted = self.bound.ranks * (self.bound.together + streams)
        if wanted > MAX_PROCESSES:
            message = f"{wanted:,} programs of {self.bound.ranks} CPU ranks are as many processes"
            hint = "take fewer ranks, larger tiles, or fewer SMs in the schedule: on sm(4)"
            raise BindingError(f"{message}, and a run has {MAX_PROCESSES:,} at most", hint=hint)

    def require_memory(self, launches: int = 1) -> None:
        """Raise BindingError if a run of `launches` launches takes more memory than this machine has."""
        wanted, there = self.bound.ranks * self.bound.pad_size * SIGNAL_BYTES, machine_memory()
        for tensor in self.bound.tensors.values():
            members = sum(map(tensor.on, range(self.bound.ranks)))
            held = (self.bound.ranks if tensor.decl.symmetric else members) * tensor.buffers
            passed = members * launches * (tensor.decl.is_given + tensor.decl.is_result)
            passed += 2 * members * (tensor.decl.space == "kept")
            wanted += tensor.size * ITEM_BYTES[tensor.stored] * (held + passed)
        if wanted > there:
            message = f"{launches:,} launches on {self.bound.ranks} CPU ranks take {wanted:,} bytes"
            hint = "take smaller sizes, or fewer ranks, launches or buffers"
            raise BindingError(f"{message} of memory, and this machine has {there:,}", hint=hint)

    @cached_property
    def artifact(self) -> Artifact:
        """Return the artifact that CPU ranks run."""
        return artifact_of(self.plan, self.emitted, self.tables)

    @cached_property
    def _left(self) -> list[dict[str, torch.Tensor]]:
        """The tensors that are kept, as the last launch has left them, [rank][name]. Runs put other ones there."""
        import torch

        from tilelink.dtypes import DTYPES

        kept = [t for t in self.bound.tensors.values() if t.decl.space == "kept"]
        return [
            {t.name: torch.zeros(t.shape, dtype=DTYPES[t.dtype]) for t in kept if t.on(rank)}
            for rank in range(self.bound.ranks)
        ]

    @cached_property
    def _in_place(self) -> tuple[str, ...]:
        """The tensors that a launch is given and writes in place."""
        return tuple(t.name for t in self.bound.tensors.values() if t.decl.space == "inout")

    def _all_inputs(self, launch: Sequence[Tensors], *, goes_on: bool = False) -> tuple[dict[str, torch.Tensor], ...]:
        """Return the inputs of all ranks for one launch, checked. goes_on: as `_inputs` takes it."""
        hint = "one mapping of names to tensors for each rank: inputs[rank][name]"
        if not isinstance(launch, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers need not be typed
            raise BindingError(f"inputs of a launch are a {type(launch).__name__}", hint=hint)
        given = tuple(launch)
        for rank_inputs in given:
            if not isinstance(rank_inputs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise BindingError(f"inputs of a rank are a {type(rank_inputs).__name__}", hint=hint)
        if len(given) != self.bound.ranks:
            raise BindingError(f"inputs of {len(given)} ranks for a kernel of {self.bound.ranks}", hint=hint)
        complete = tuple(self._inputs(rank, one, goes_on=goes_on) for rank, one in enumerate(given))
        if promises := self._promises:
            from tilelink.runtime.promises import broken_promise, broken_replication

            each = (broken_promise(promises, tensors, rank) for rank, tensors in enumerate(complete))
            broken = next((one for one in each if one is not None), None) or broken_replication(promises, complete)
            if broken is not None:
                raise broken.error(self.bound.tensors[broken.tensor].decl.location)
        return complete

    @cached_property
    def _promises(self) -> tuple[Promise, ...]:
        return promises_of(self.bound)

    def _inputs(self, rank: int, given: Tensors, *, goes_on: bool) -> dict[str, torch.Tensor]:
        """Return the inputs of one rank, checked, with the tables of the kernel.

        goes_on: True if tensors that are written in place may be left out, as the previous launch has left them.
        """
        import torch

        from tilelink.dtypes import DTYPES

        tables = {name: torch.as_tensor(np.asarray(value)[rank]).int() for name, value in self.tables.items()}
        inputs = [t for t in self.bound.tensors.values() if t.decl.is_given or t.decl.known_early]
        wanted = [t for t in inputs if t.on(rank)]
        if foreign := sorted(given.keys() & {t.name for t in inputs if not t.on(rank)}):
            tensor = self.bound.tensors[foreign[0]]
            message = f"rank {rank} has no {tensor.name}, which the ranks of {tensor.decl.on} alone take"
            raise BindingError(message, location=tensor.decl.location, hint="leave it out on other ranks")
        if unknown := sorted(given.keys() - {t.name for t in wanted}):
            hint = f"the inputs are {', '.join(t.name for t in wanted)}"
            raise BindingError(f"there is no input {unknown[0]!r}", hint=hint)
        result: dict[str, torch.Tensor] = {}
        for tensor in wanted:
            value = given.get(tensor.name, tables.get(tensor.name))
            if value is None and goes_on and tensor.decl.space == "inout":
                continue
            if value is None:
                hint = f"give it for this rank too: {list(tensor.shape)} {tensor.dtype}"
                message = f"rank {rank} has no input {tensor.name!r}"
                raise BindingError(message, location=tensor.decl.location, hint=hint)
            if not isinstance(value, torch.Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
                what = f"input {tensor.name!r} of rank {rank} is a {type(value).__name__}"
                raise BindingError(what, location=tensor.decl.location, hint="inputs are torch tensors")
            if value.layout != torch.strided or value.is_nested or value.is_meta:
                what = f"input {tensor.name!r} of rank {rank} is sparse, nested or without data"
                raise BindingError(what, location=tensor.decl.location, hint="inputs are plain tensors: x.to_dense()")
            if tuple(value.shape) != tensor.shape or value.dtype != DTYPES[tensor.dtype]:
                got = f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
                message = f"input {tensor.name!r} of rank {rank} is {got}"
                hint = f"it takes {list(tensor.shape)} {tensor.dtype}"
                kind = DtypeError if tuple(value.shape) == tensor.shape else ShapeError
                raise kind(message, location=tensor.decl.location, hint=hint)
            if tensor.name in tables and not torch.equal(value, tables[tensor.name]):
                hint = "compile with the tables of the launch: its counters are laid out by them"
                raise BindingError(f"table {tensor.name!r} of rank {rank} is not what was compiled", hint=hint)
            result[tensor.name] = _alone(value.detach().cpu().contiguous())
        return result


def _require_writable(names: Iterable[str], launch: Sequence[Tensors]) -> None:
    """Raise BindingError for a tensor that cannot be written in place, or shares memory with another one of a launch.

    launch: the tensors of each rank, some of which may have none of a name.
    """
    import torch

    spans = {(rank, name): _span(tensor) for rank, given in enumerate(launch) for name, tensor in given.items()}
    for name, rank in ((name, rank) for name in names for rank, given in enumerate(launch) if name in given):
        tensor = launch[rank][name]
        if not tensor.is_contiguous():
            hint = "give it contiguous: its elements are changed where they are"
            raise BindingError(f"{name!r} of rank {rank} is written in place, and is not contiguous", hint=hint)
        if tensor.requires_grad and torch.is_grad_enabled():
            hint = "pass `.detach()` of it, or call the kernel in torch.no_grad()"
            raise BindingError(f"{name!r} of rank {rank} requires a gradient, and kernels have none", hint=hint)
        first, last = spans[rank, name]
        for (owner, other), (begin, end) in spans.items():
            if (owner, other) != (rank, name) and first < end and begin < last:
                whose = "" if owner == rank else f" of rank {owner}"
                message = f"{name!r} of rank {rank} is written in place, and shares memory with {other!r}{whose}"
                raise BindingError(message, hint=f"give one of them memory of its own: {name}.clone()")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first address of a tensor's elements, and the one after the last."""
    if not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def machine_memory() -> int:
    """Return the bytes of memory of this machine, used or not."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _seconds(name: str, given: float | None) -> float | None:
    """Raise BindingError for a value that is not a number of seconds that a wait can last."""
    if given is None or (isinstance(given, Real) and 0 <= given <= MAX_SECONDS):
        return given
    raise BindingError(f"{name} is {given!r}", hint=f"a number of seconds, from 0 to {MAX_SECONDS}")


def _alone(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor in memory of its own size. A view would be sent to the ranks with all of its base."""
    return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()
