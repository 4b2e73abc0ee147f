"""Schedules as frozen values: all decisions that change the speed of a program and not its result.

A schedule is built by a chain of methods, each of which returns a new schedule. It prints as the text language.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tilelink.errors import Location, ScheduleError, public, public_methods
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import Program
from tilelink.ir.scalar import Scalar
from tilelink.scheduling.call_site import call_site
from tilelink.scheduling.words import StageSchedule, TensorSchedule, Word, check_names, word_called

T = TypeVar("T")
AnyPart = TypeVar("AnyPart", StageSchedule, TensorSchedule)


@dataclass(frozen=True, kw_only=True)
class CopyEngine:
    """Copies issued by the host to the copy engine, on one stream per rank."""

    def __str__(self) -> str:
        return "on copy_engine"


@dataclass(frozen=True, kw_only=True)
class Sm:
    """CTAs on the SMs. programs: a number of CTAs on reserved SMs, in parallel with the other kernels; or None."""

    programs: int | None = None

    def __str__(self) -> str:
        return "on sm" if self.programs is None else f"on sm({self.programs})"


@dataclass(frozen=True, kw_only=True)
class Fused:
    """Execution inside another stage's kernel: before its tiles (prologue), or after (each of) them (epilogue)."""

    stage: str
    place: str = "epilogue"

    def __str__(self) -> str:
        return f"in {self.stage} {self.place}"


Resource = CopyEngine | Sm | Fused
_RESOURCE = re.compile(r"(?:on )?(?:(copy_engine)|sm(?:\(([0-9]+)\))?)|in (\w+)(?: (prologue|epilogue))?")


def resource_of(text: str) -> Resource:
    """Parse a resource as a schedule writes it: "copy_engine", "sm", "sm(4)" or "in gemm prologue".

    Raises ScheduleError for any other text.
    """
    found = _RESOURCE.fullmatch(text.strip())
    if found is None:
        raise ScheduleError(f"no resource {text!r}", hint="one of copy_engine, sm, sm(n), in STAGE prologue|epilogue")
    engine, programs, stage, place = found.groups()
    if engine:
        return CopyEngine()
    if stage:
        return Fused(stage=stage, place=place or "epilogue")
    return Sm(programs=int(programs) if programs else None)


@dataclass(frozen=True, kw_only=True)
class IndexOrder:
    """The sequence of values of one index.

    kind: "natural" is 0, 1, ...; "sequence" is (start + step * t) modulo the extent; "xor" is start ^ t, which pairs
    ranks; "permutation" is `values`; "hierarchical" visits the start's group of `group` consecutive ranks first, then
    the other groups.
    """

    index: str
    kind: str = "natural"
    start: Scalar | None = None
    step: int = 1
    values: tuple[int, ...] = ()
    group: int = 1

    def __str__(self) -> str:
        start = print_scalar(self.start) if self.start is not None else "0"
        match self.kind:
            case "sequence":
                return f"{self.index} = {start} step {self.step:+d}"
            case "xor":
                return f"{self.index} = {start} xor"
            case "permutation":
                return f"{self.index} = [{', '.join(map(str, self.values))}]"
            case "hierarchical":
                return f"{self.index} = {start} hier({self.group})"
            case _:
                return self.index


@dataclass(frozen=True, kw_only=True)
class RolesChoice:
    """Roles of the warps of a stage.

    consumers: groups of warps that multiply. buffers: for operands. in_flight: products of a consumer, 1 or 2; with 2
    it starts one before the last one has ended.
    """

    consumers: int
    buffers: int
    in_flight: int = 2

    def __str__(self) -> str:
        more = f", in_flight={self.in_flight}" if self.in_flight != RolesChoice.in_flight else ""
        return f"roles(consumers={self.consumers}, buffers={self.buffers}{more})"


@dataclass(frozen=True, kw_only=True)
class Order:
    """A loop nest, outermost index first. group: (index, n) walks the two innermost indices in bands, for L2 reuse."""

    nest: tuple[IndexOrder, ...] = ()
    group: tuple[str, int] | None = None

    def renamed(self, names: Mapping[str, str]) -> Order:
        """Return the order with other names of indices. names: old -> new; others stay."""
        nest = tuple(replace(term, index=names.get(term.index, term.index)) for term in self.nest)
        return Order(nest=nest, group=self.group and (names.get(self.group[0], self.group[0]), self.group[1]))

    def __str__(self) -> str:
        parts = [str(term) for term in self.nest]
        if self.group:
            parts.append(f"group({self.group[0]}, {self.group[1]})")
        return f"order({', '.join(parts)})"


@public_methods
@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule for a program.

    target: the name of the processor that it is for, for which commands prove it; None for any.
    reuse_wait: False omits the wait for earlier launches of the peers; the verifier checks that this is safe.
    source: the program, if known. The methods then refuse names that it lacks; otherwise binding does.
    """

    name: str
    program: str
    stages: tuple[StageSchedule, ...] = ()
    tensors: tuple[TensorSchedule, ...] = ()
    reuse_wait: bool = True
    target: str | None = None
    location: Location | None = field(default=None, compare=False, repr=False)
    source: Program | None = field(default=None, compare=False, repr=False)

    def stage(self, name: str) -> StageSchedule:
        """Return the part of the schedule for a stage, empty if there is none."""
        return next((s for s in self.stages if s.name == name), StageSchedule(name=name))

    def tensor(self, name: str) -> TensorSchedule:
        """Return the part of the schedule for a tensor, empty if there is none."""
        return next((t for t in self.tensors if t.name == name), TensorSchedule(name=name))

    def say(self, owner: str, clause: Word[T], value: T) -> Schedule:
        """Return the schedule with a value for a clause of the stage or tensor `owner`.

        The methods below are shorthands for it. Raises ScheduleError if the value is not valid for the clause.
        """
        clause.valid(owner, value)
        if clause.of == "tensor":
            part = self.tensor(owner)
            return replace(self, tensors=self._with(self.tensors, part, clause, value))
        part = self.stage(owner)
        return replace(self, stages=self._with(self.stages, part, clause, value))

    def _say(self, owner: str, clause: str, value: object) -> Schedule:
        return self.say(owner, word_called(clause), value)

    def on(self, stage: str, resource: Resource | str) -> Schedule:
        """Run a stage on a resource, given as a value or as text: "copy_engine", "sm", "sm(4)", "in gemm epilogue"."""
        return self._say(stage, "resource", resource_of(resource) if isinstance(resource, str) else resource)

    def direction(self, stage: str, direction: str) -> Schedule:
        """Select the rank that moves the data of a stage: the source ("push") or the target ("pull")."""
        return self._say(stage, "direction", direction)

    def tile(self, stage: str, **sizes: int) -> Schedule:
        """Set the tile size in elements per index; `k` is the step along the reduction dimension of a product."""
        return self._say(stage, "tile", tuple(sizes.items()))

    def order(self, stage: str, *nest: IndexOrder | str, group: tuple[str, int] | None = None) -> Schedule:
        """Set the order of tiles: indices, outermost first, as names or with a sequence. group: see `Order`."""
        terms = tuple(IndexOrder(index=term) if isinstance(term, str) else term for term in nest)
        return self._say(stage, "order", Order(nest=terms, group=group) if terms or group else None)

    def knobs(self, stage: str, *, num_warps: int | None = None, num_stages: int | None = None) -> Schedule:
        """Set the warps of the stage's kernel, and the pipeline stages of the loops of its products."""
        return self._say(stage, "num_warps", num_warps)._say(stage, "num_stages", num_stages)

    def flatten(self, stage: str, on: bool = True) -> Schedule:
        """Flatten the tile loop of a stage: one software pipeline runs through all tiles of a CTA."""
        return self._say(stage, "flatten", on)

    def split_k_tail(self, stage: str, parts: int | None) -> Schedule:
        """Split each tile of the last, partial wave along K into at most `parts` parts; None does not split them."""
        return self._say(stage, "split_k_tail", parts)

    def program_per_tile(self, stage: str, on: bool = True) -> Schedule:
        """Return the schedule with a CTA for each tile of a stage, or without."""
        return self._say(stage, "program_per_tile", on)

    def dynamic(self, stage: str, on: bool = True) -> Schedule:
        """Return the schedule with programs that take the tiles of a stage by a counter, or in turn."""
        return self._say(stage, "dynamic", on)

    def lockstep(self, stage: str, index: str | None) -> Schedule:
        """Let the stages of the stage's kernel go through an index together, step by step; None: each on its own."""
        return self._say(stage, "lockstep", index)

    def serpentine(self, stage: str, on: bool = True) -> Schedule:
        """Let each second row or group of the stage's tiles run backwards."""
        return self._say(stage, "serpentine", on)

    def halve_tail(self, stage: str, on: bool = True) -> Schedule:
        """Halve the tiles of the last, partial wave of the stage."""
        return self._say(stage, "halve_tail", on)

    def backfill(self, stage: str, tiles: int | None) -> Schedule:
        """Let CTAs that are idle in the last wave of the stage before do at most `tiles` of this stage; None: none."""
        return self._say(stage, "backfill", tiles)

    def defer_notify(self, stage: str, on: bool = True) -> Schedule:
        """Defer the notify of a tile into the product of the CTA's next tile."""
        return self._say(stage, "defer_notify", on)

    def tma_copy(self, stage: str, programs: int | None) -> Schedule:
        """Copy by the tensor memory accelerator, in `programs` one-warp programs per SM of the stage; None: do not."""
        return self._say(stage, "tma_copy", programs)

    def roles(self, stage: str, choice: RolesChoice | None) -> Schedule:
        """Give the warps of a stage roles: one loads, groups of them multiply, and one stores; None: no roles."""
        return self._say(stage, "roles", choice)

    def channel(self, tensor: str, **sizes: int) -> Schedule:
        """Set the elements of a tensor that share a signal, per dimension or per index that runs along it."""
        return self._say(tensor, "channel", tuple(sizes.items()))

    def buffers(self, tensor: str, count: int) -> Schedule:
        """Set the number of buffers of a symmetric tensor: its memory is reused after `count` launches."""
        return self._say(tensor, "buffers", count)

    def slots(self, tensor: str, **steps: int) -> Schedule:
        """Set how many steps along a dimension of a tensor memory holds at a time; nothing: all of them."""
        return self._say(tensor, "slots", tuple(steps.items()))

    def low_latency(self, tensor: str, on: bool = True) -> Schedule:
        """Let what is pushed to a tensor travel as words that have their own flags."""
        return self._say(tensor, "low_latency", on)

    def kernel_order(self, tensor: str, on: bool = True) -> Schedule:
        """Let the order of kernels on a stream stand for the signals of a tensor; refused where it does not suffice."""
        return self._say(tensor, "kernel_order", on)

    def without_reuse_wait(self) -> Schedule:
        """Omit the wait for earlier launches of the peers; verification fails if that is not safe."""
        return replace(self, reuse_wait=False)

    def _with(self, parts: tuple[AnyPart, ...], old: AnyPart, clause: Word[T], value: T) -> tuple[AnyPart, ...]:
        """Return the parts with a value for a clause of one of them; a part without clauses is dropped."""
        new = old.saying(clause, value)
        if new.said != old.said:
            new = new.given_at(clause, call_site() if self.source else None)
        if self.source is not None:
            check_names(self.source, new)
        parts = tuple(new if part is old else part for part in parts) if old in parts else (*parts, new)
        return tuple(part for part in parts if part.said)

    def __str__(self) -> str:
        on = f" on {self.target}" if self.target else ""
        lines = [f"schedule {self.name} for {self.program}{on}:"]
        lines += [f"    {part}" for part in (*self.stages, *self.tensors)]
        if not self.reuse_wait:
            lines.append("    reuse_wait off")
        if len(lines) == 1:
            lines.append("    default")
        return "\n".join(lines) + "\n"


@public
def schedule(program: Program | str, name: str = "custom", like: Schedule | None = None) -> Schedule:
    """Return a schedule for a program, to be extended: `schedule(p).tile("gemm", i=128).buffers("xs", 2)`.

    like: a schedule of any program whose clauses the new one begins with; None for an empty schedule. The methods
    refuse names that the program lacks; if the program is given by name, compiling refuses them. Raises ScheduleError
    if `like` names something that the program lacks.
    """
    if isinstance(program, str):
        return replace(like or Schedule(name=name, program=program), name=name, program=program, source=None)
    empty = Schedule(name=name, program=program.name, source=program)
    if like is None:
        return empty
    for part in (*like.stages, *like.tensors):
        check_names(program, part)
    return replace(empty, stages=like.stages, tensors=like.tensors, reuse_wait=like.reuse_wait, target=like.target)
