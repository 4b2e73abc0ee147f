"""Schedules as frozen values: everything that changes speed and not the result.

Built by a chain of methods, each returning a new schedule; printed as the text language.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tilelink.errors import Location, ScheduleError
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import Program
from tilelink.ir.scalar import Scalar
from tilelink.scheduling.call_site import call_site
from tilelink.scheduling.words import StageSchedule, TensorSchedule, Word, check_names, word_called

T = TypeVar("T")
AnyPart = TypeVar("AnyPart", StageSchedule, TensorSchedule)


@dataclass(frozen=True, kw_only=True)
class CopyEngine:
    """Copies issued from the host to the copy engine, one stream a rank."""

    def __str__(self) -> str:
        return "on copy_engine"


@dataclass(frozen=True, kw_only=True)
class Sm:
    """Programs on the SMs; with a number, programs on SMs of their own beside the other kernels."""

    programs: int | None = None

    def __str__(self) -> str:
        return "on sm" if self.programs is None else f"on sm({self.programs})"


@dataclass(frozen=True, kw_only=True)
class Fused:
    """Inside another stage's kernel: before its tiles (prologue) or after (each of) them (epilogue)."""

    stage: str
    place: str = "epilogue"

    def __str__(self) -> str:
        return f"in {self.stage} {self.place}"


Resource = CopyEngine | Sm | Fused
_RESOURCE = re.compile(r"(?:on )?(?:(copy_engine)|sm(?:\(([0-9]+)\))?)|in (\w+)(?: (prologue|epilogue))?")


def resource_of(text: str) -> Resource:
    """The resource that a text means, as a schedule says it: "copy_engine", "sm", "sm(4)", "in gemm prologue".

    Raises ScheduleError for another text.
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
    """In which sequence one index runs.

    kind "sequence": start + step * t modulo the extent; "xor": rank-pairwise, start ^ t; "permutation":
    `values`; "hierarchical": inside groups of `group` consecutive ranks first, then across; "natural": 0, 1, ...
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
class Order:
    """A loop nest, outermost index first; `group` walks the two innermost indices in bands (L2 reuse)."""

    nest: tuple[IndexOrder, ...] = ()
    group: tuple[str, int] | None = None

    def __str__(self) -> str:
        parts = [str(term) for term in self.nest]
        if self.group:
            parts.append(f"group({self.group[0]}, {self.group[1]})")
        return f"order({', '.join(parts)})"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule for a program; `reuse_wait` off leaves out the wait for peers' earlier launches (checked).

    source: the program, where it is known: a method refuses a name that it lacks. Without it that is left to binding.
    """

    name: str
    program: str
    stages: tuple[StageSchedule, ...] = ()
    tensors: tuple[TensorSchedule, ...] = ()
    reuse_wait: bool = True
    location: Location | None = field(default=None, compare=False, repr=False)
    source: Program | None = field(default=None, compare=False, repr=False)

    def stage(self, name: str) -> StageSchedule:
        """The stage's part of the schedule, empty when it has none."""
        return next((s for s in self.stages if s.name == name), StageSchedule(name=name))

    def tensor(self, name: str) -> TensorSchedule:
        """The tensor's part of the schedule, empty when it has none."""
        return next((t for t in self.tensors if t.name == name), TensorSchedule(name=name))

    def say(self, owner: str, clause: Word[T], value: T) -> Schedule:
        """The schedule with a value for a clause of the stage or tensor `owner`; the methods below are short for it.

        Raises ScheduleError for a value that means nothing.
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
        """What runs a stage: a resource, or its text such as "copy_engine", "sm", "sm(4)" or "in gemm epilogue"."""
        return self._say(stage, "resource", resource_of(resource) if isinstance(resource, str) else resource)

    def direction(self, stage: str, direction: str) -> Schedule:
        """Who moves the data of a stage: "push" for its source, "pull" for its target."""
        return self._say(stage, "direction", direction)

    def tile(self, stage: str, **sizes: int) -> Schedule:
        """The elements of a tile along its indices, and along `k` of what a product contracts."""
        return self._say(stage, "tile", tuple(sizes.items()))

    def order(self, stage: str, *nest: IndexOrder | str, group: tuple[str, int] | None = None) -> Schedule:
        """The order of tiles: indices from the outermost on, by name or with a sequence; bands of the last two."""
        terms = tuple(IndexOrder(index=term) if isinstance(term, str) else term for term in nest)
        return self._say(stage, "order", Order(nest=terms, group=group) if terms or group else None)

    def knobs(self, stage: str, *, num_warps: int | None = None, num_stages: int | None = None) -> Schedule:
        """Warps of the stage's kernel, and stages of the pipelines of its products."""
        return self._say(stage, "num_warps", num_warps)._say(stage, "num_stages", num_stages)

    def flatten(self, stage: str, on: bool = True) -> Schedule:
        """One software pipeline through all tiles of a program of this stage."""
        return self._say(stage, "flatten", on)

    def split_k_tail(self, stage: str, parts: int | None) -> Schedule:
        """Tiles beyond whole rounds of the programs are computed in up to so many parts; None: by one program each."""
        return self._say(stage, "split_k_tail", parts)

    def backfill(self, stage: str, tiles: int | None) -> Schedule:
        """Programs without a tile in the round before this stage do up to so many of its tiles in it; None: none."""
        return self._say(stage, "backfill", tiles)

    def defer_notify(self, stage: str, on: bool = True) -> Schedule:
        """A tile of this stage is notified while the program's next one is multiplied already."""
        return self._say(stage, "defer_notify", on)

    def tma_copy(self, stage: str, programs: int | None) -> Schedule:
        """So many programs of one warp on each SM of this stage copy by the tensor memory accelerator; None: none."""
        return self._say(stage, "tma_copy", programs)

    def channel(self, tensor: str, **sizes: int) -> Schedule:
        """The elements of a tensor that share a signal, by dimensions or by indices that run along them."""
        return self._say(tensor, "channel", tuple(sizes.items()))

    def buffers(self, tensor: str, count: int) -> Schedule:
        """How many launches may use a symmetric tensor before its memory is used again."""
        return self._say(tensor, "buffers", count)

    def without_reuse_wait(self) -> Schedule:
        """Without the wait for peers' earlier launches, where the verifier finds that it is safe."""
        return replace(self, reuse_wait=False)

    def _with(self, parts: tuple[AnyPart, ...], old: AnyPart, clause: Word[T], value: T) -> tuple[AnyPart, ...]:
        """The parts with a value for a clause of one; a part that says nothing has no line, and is none."""
        new = old.saying(clause, value)
        if new.said != old.said:
            new = new.given_at(clause, call_site() if self.source else None)
        if self.source is not None:
            check_names(self.source, new)
        parts = tuple(new if part is old else part for part in parts) if old in parts else (*parts, new)
        return tuple(part for part in parts if part.said)

    def __str__(self) -> str:
        lines = [f"schedule {self.name} for {self.program}:"]
        lines += [f"    {part}" for part in (*self.stages, *self.tensors)]
        if not self.reuse_wait:
            lines.append("    reuse_wait off")
        if len(lines) == 1:
            lines.append("    default")
        return "\n".join(lines) + "\n"


def schedule(program: Program | str, name: str = "custom", like: Schedule | None = None) -> Schedule:
    """A schedule for a program, built on by a chain: `schedule(p).tile("gemm", i=128).buffers("xs", 2)`.

    like: a schedule, of any program, that it begins with; None: it says nothing. Its methods refuse names that the
    program lacks; of a program given by its name, that is left to compiling. Raises ScheduleError for what `like` names
    and the program lacks.
    """
    if isinstance(program, str):
        return replace(like or Schedule(name=name, program=program), name=name, program=program, source=None)
    empty = Schedule(name=name, program=program.name, source=program)
    if like is None:
        return empty
    for part in (*like.stages, *like.tensors):
        check_names(program, part)
    return replace(empty, stages=like.stages, tensors=like.tensors, reuse_wait=like.reuse_wait)
