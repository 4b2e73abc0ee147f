"""Schedules as frozen values: everything that changes speed and not the result.

Built by a chain of methods, each returning a new schedule; printed as the text language.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tilelink.errors import Location, ScheduleError
from tilelink.ir.printer import print_scalar
from tilelink.ir.scalar import Scalar

Sizes = tuple[tuple[str, int], ...]
Part = TypeVar("Part", "StageSchedule", "TensorSchedule")

NOTIFY_STEP = 2
"""The step of a product in which the tile before is notified (`defer_notify`). That saved 0.5 us of each 128x256 tile,
and step 1 or 4 saved 0.4 (measured on an H200)."""


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
class Placed:
    """What has its place in a text: `location` is the line, `places` are parts of it, by `name`, the name of a field,
    and for sizes and terms of an order by `tiles.i`."""

    location: Location | None = field(default=None, compare=False, repr=False)
    places: Mapping[str, Location] = field(default_factory=dict[str, Location], compare=False, repr=False)

    def at(self, part: str) -> Location | None:
        """Where a part stands, else the whole line."""
        return self.places.get(part, self.location)


@dataclass(frozen=True, kw_only=True)
class StageSchedule(Placed):
    name: str
    resource: Resource | None = None
    direction: str | None = None
    tiles: Sizes = ()
    order: Order | None = None
    warps: int | None = None
    stages: int | None = None
    flat: bool = False
    """One software pipeline through all tiles of a program, instead of one for each tile (see schedule/flat.py)."""
    split_tail: int | None = None
    """In how many parts at most the products of tiles beyond whole rounds are divided (see schedule/split.py)."""
    fill: int | None = None
    """How many tiles at most programs without a tile in the round before do in it (see schedule/fill.py)."""
    defer_notify: bool = False
    """A tile is notified while the program's next one is multiplied already (see schedule/deferred.py)."""
    bulk: int | None = None
    """Programs of one warp on each of its SMs, which copy by the tensor memory accelerator (see schedule/bulk.py)."""

    def __str__(self) -> str:
        parts: list[str] = []
        if self.resource is not None:
            parts.append(str(self.resource))
        if self.direction:
            parts.append(self.direction)
        if self.tiles:
            parts.append(f"tile({_sizes(self.tiles)})")
        if self.order:
            parts.append(str(self.order))
        if self.warps:
            parts.append(f"warps {self.warps}")
        if self.stages:
            parts.append(f"stages {self.stages}")
        if self.flat:
            parts.append("flat")
        if self.split_tail:
            parts.append(f"split_tail {self.split_tail}")
        if self.fill:
            parts.append(f"fill {self.fill}")
        if self.defer_notify:
            parts.append("defer_notify")
        if self.bulk:
            parts.append(f"bulk {self.bulk}")
        return f"{self.name} {', '.join(parts)}"


@dataclass(frozen=True, kw_only=True)
class TensorSchedule(Placed):
    name: str
    channel: Sizes = ()
    buffers: int | None = None

    def __str__(self) -> str:
        parts: list[str] = []
        if self.channel:
            parts.append(f"channel({_sizes(self.channel)})")
        if self.buffers is not None:
            parts.append(f"buffers {self.buffers}")
        return f"{self.name} {', '.join(parts)}"


Known = Callable[[StageSchedule | TensorSchedule, StageSchedule | TensorSchedule], Mapping[str, Location]]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule for a program; `reuse_wait` off leaves out the wait for peers' earlier launches (checked).

    known: given a part and what it was before, refuses it if it names what the program lacks, as soon as a method adds
    it, and says where what is new stands (see schedule/names.py); None leaves the names to binding, as for a program of
    which only the name is known.
    """

    name: str
    program: str
    stages: tuple[StageSchedule, ...] = ()
    tensors: tuple[TensorSchedule, ...] = ()
    reuse_wait: bool = True
    location: Location | None = field(default=None, compare=False, repr=False)
    known: Known | None = field(default=None, compare=False, repr=False)

    def stage(self, name: str) -> StageSchedule:
        """The stage's part of the schedule, empty when it has none."""
        return next((s for s in self.stages if s.name == name), StageSchedule(name=name))

    def tensor(self, name: str) -> TensorSchedule:
        """The tensor's part of the schedule, empty when it has none."""
        return next((t for t in self.tensors if t.name == name), TensorSchedule(name=name))

    def on(self, stage: str, resource: Resource | str) -> Schedule:
        """What runs a stage: a resource, or its text such as "copy_engine", "sm", "sm(4)" or "in gemm epilogue"."""
        found = resource_of(resource) if isinstance(resource, str) else resource
        if not isinstance(found, CopyEngine | Sm | Fused):  # pyright: ignore[reportUnnecessaryIsInstance] - nor typed
            raise ScheduleError(f"{resource!r} runs no stage", hint="one of copy_engine, sm, sm(n), in STAGE epilogue")
        return self._with_stage(replace(self.stage(stage), resource=found))

    def direction(self, stage: str, direction: str) -> Schedule:
        if direction not in ("push", "pull"):
            raise ScheduleError(f"direction {direction!r} of stage {stage}", hint="a direction is push or pull")
        return self._with_stage(replace(self.stage(stage), direction=direction))

    def tile(self, stage: str, **sizes: int) -> Schedule:
        """The elements of a tile along its indices, and along `k` of what a product contracts."""
        return self._with_stage(replace(self.stage(stage), tiles=_positive(stage, sizes)))

    def order(self, stage: str, *nest: IndexOrder | str, group: tuple[str, int] | None = None) -> Schedule:
        """The order of tiles: indices from the outermost on, by name or with a sequence; bands of the last two."""
        terms = tuple(IndexOrder(index=term) if isinstance(term, str) else term for term in nest)
        order = Order(nest=terms, group=group) if terms or group else None
        return self._with_stage(replace(self.stage(stage), order=order))

    def knobs(self, stage: str, *, warps: int | None = None, stages: int | None = None) -> Schedule:
        """Warps of the stage's kernel, and stages of the pipelines of its products."""
        return self._with_stage(replace(self.stage(stage), warps=warps, stages=stages))

    def flat(self, stage: str, on: bool = True) -> Schedule:
        """One software pipeline through all tiles of a program of this stage."""
        return self._with_stage(replace(self.stage(stage), flat=on))

    def split_tail(self, stage: str, parts: int | None) -> Schedule:
        """Tiles beyond whole rounds of the programs are computed in up to so many parts; None: by one program each."""
        if parts is not None and parts < 1:
            raise ScheduleError(f"split_tail {parts} of {stage}", hint="a tile has at least one part")
        return self._with_stage(replace(self.stage(stage), split_tail=parts))

    def fill(self, stage: str, tiles: int | None) -> Schedule:
        """Programs without a tile in the round before this stage do up to so many of its tiles in it; None: none."""
        if tiles is not None and tiles < 1:
            raise ScheduleError(f"fill {tiles} of {stage}", hint="a program does at least one tile")
        return self._with_stage(replace(self.stage(stage), fill=tiles))

    def defer_notify(self, stage: str, on: bool = True) -> Schedule:
        """A tile of this stage is notified while the program's next one is multiplied already."""
        return self._with_stage(replace(self.stage(stage), defer_notify=on))

    def bulk(self, stage: str, programs: int | None) -> Schedule:
        """So many programs of one warp on each SM of this stage copy by the tensor memory accelerator; None: none."""
        if programs is not None and programs < 1:
            raise ScheduleError(f"bulk {programs} of {stage}", hint="an SM runs at least one program")
        return self._with_stage(replace(self.stage(stage), bulk=programs))

    def channel(self, tensor: str, **sizes: int) -> Schedule:
        """The elements of a tensor that share a signal, by dimensions or by indices that run along them."""
        return self._with_tensor(replace(self.tensor(tensor), channel=_positive(tensor, sizes)))

    def buffers(self, tensor: str, count: int) -> Schedule:
        """How many launches may use a symmetric tensor before its memory is used again."""
        if count < 1:
            raise ScheduleError(f"buffers {count} of {tensor}", hint="a tensor has at least one buffer")
        return self._with_tensor(replace(self.tensor(tensor), buffers=count))

    def without_reuse_wait(self) -> Schedule:
        return replace(self, reuse_wait=False)

    def _with_stage(self, new: StageSchedule) -> Schedule:
        stand = self.known(new, self.stage(new.name)) if self.known else {}
        return replace(self, stages=_with(self.stages, new, StageSchedule(name=new.name), stand))

    def _with_tensor(self, new: TensorSchedule) -> Schedule:
        stand = self.known(new, self.tensor(new.name)) if self.known else {}
        return replace(self, tensors=_with(self.tensors, new, TensorSchedule(name=new.name), stand))

    def __str__(self) -> str:
        lines = [f"schedule {self.name} for {self.program}:"]
        lines += [f"    {part}" for part in (*self.stages, *self.tensors)]
        if not self.reuse_wait:
            lines.append("    reuse_wait off")
        if len(lines) == 1:
            lines.append("    default")
        return "\n".join(lines) + "\n"


def _with(parts: tuple[Part, ...], new: Part, silent: Part, stand: Mapping[str, Location]) -> tuple[Part, ...]:
    """The parts with a new one, in the place of the one of its name; one that says nothing has no line, and is none.

    stand: the places of what is new.
    """
    old = next((part for part in parts if part.name == new.name), silent)
    kept = {k: at for k, at in new.places.items() if _same(old, new, k.partition(".")[0])}
    new = replace(new, places={**kept, **stand})
    parts = tuple(new if part is old else part for part in parts) if old is not silent else (*parts, new)
    return tuple(part for part in parts if part != silent)


def _same(old: StageSchedule | TensorSchedule, new: StageSchedule | TensorSchedule, name: str) -> bool:
    """Whether a field is as the text says, so that its place there is one of what it holds now."""
    return getattr(old, name) == getattr(new, name)


def _sizes(sizes: Sizes) -> str:
    return ", ".join(f"{key}={size}" for key, size in sizes)


def _positive(what: str, sizes: dict[str, int]) -> Sizes:
    for key, size in sizes.items():
        if not isinstance(size, int) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance] - callers need not be typed
            raise ScheduleError(f"size {key}={size!r} of {what}", hint="sizes are whole numbers, at least one")
    return tuple(sizes.items())
