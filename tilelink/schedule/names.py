"""The names that a schedule gives, looked up in its program while the schedule is built: the line that has one wrong is
known then, and no longer when the schedule is bound. What is right so far keeps its line for later errors."""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import product
from types import FrameType
from typing import cast

from tilelink.errors import Location, OrderError, ScheduleError, TileSizeError, did_you_mean
from tilelink.ir.program import Program, Stage
from tilelink.ir.scalar import Param
from tilelink.schedule.bind import dims_called
from tilelink.schedule.transform import all_indices, whole_dim
from tilelink.schedule.values import Fused, Order, Sizes, StageSchedule, TensorSchedule

Part = StageSchedule | TensorSchedule


@dataclass(frozen=True, kw_only=True)
class NamesOf:
    """Refuses a part of a schedule that names what a program lacks, in the words of binding; else says where it is."""

    program: Program

    def __call__(self, part: Part, old: Part) -> dict[str, Location]:
        """The places of what a part has and the old one has not, named as in `Placed`: in the caller's line.

        Raises ScheduleError, TileSizeError or OrderError there.
        """
        if isinstance(part, StageSchedule):
            self._stage(part)
        else:
            self._tensor(part)
        changed = {f.name: getattr(part, f.name) for f in fields(part) if f.compare}
        new = [
            entry for name, value in changed.items() if value != getattr(old, name) for entry in _places(name, value)
        ]
        found = {place: _caller(word, None) for place, word in new}
        return {place: location for place, location in found.items() if location is not None}

    def _stage(self, part: StageSchedule) -> None:
        names = [s.name for s in self.program.stages]
        if part.name not in names:
            raise _unknown(ScheduleError, f"no stage {part.name!r}", part.name, "stages", names)
        if isinstance(part.resource, Fused) and (host := part.resource.stage) not in names:
            raise _unknown(ScheduleError, f"no stage {host!r} to run in", host, "stages", names)
        stage = self.program.stage(part.name)
        for key, _ in part.tiles:
            known = [d.name for d in all_indices(stage)]
            if key not in known and whole_dim(self.program, stage, key) is None:
                message = f"stage {stage.name} has nothing named {key!r} to tile"
                raise _unknown(TileSizeError, message, key, "its indices are", known)
        if part.order is not None:
            group = [part.order.group[0]] if part.order.group else []
            self._order(stage, [*(term.index for term in part.order.nest), *group])

    def _order(self, stage: Stage, named: list[str]) -> None:
        known = [d.name for d in stage.indices]
        for name in named:
            # A tile size may still make an index of what a communication stage moves as a whole.
            sliced = stage.kind == "comm" and whole_dim(self.program, stage, name) is not None
            if name not in known and not sliced:
                raise _unknown(OrderError, f"order of unknown index {name!r}", name, "indices", known)

    def _tensor(self, part: TensorSchedule) -> None:
        names = [t.name for t in self.program.tensors]
        if part.name not in names:
            raise _unknown(ScheduleError, f"no tensor {part.name!r}", part.name, "tensors", names)
        tensor = self.program.tensor(part.name)
        # In the other direction a stage addresses a tensor by its index over the ranks: binding knows which way it is.
        ranks = {d.name for stage in self.program.stages for d in all_indices(stage) if d.over_ranks}
        for key, size in part.channel:
            if key not in ranks and not dims_called(self.program, tensor, key):
                message = f"channel({key}={size}): {tensor.name} has no dimension {key!r}"
                known = [n.name if isinstance(n, Param) else "ranks" for n in tensor.shape]
                raise _unknown(TileSizeError, message, key, "its dimensions are", known)


def _places(field: str, value: object) -> list[tuple[str, str]]:
    """The places in a field of a part, with the words to look for."""
    if isinstance(value, Order):
        group = [("order.group", "group")] if value.group else []
        return [*((f"order.{term.index}", term.index) for term in value.nest), *group]
    if isinstance(value, tuple):
        return [(f"{field}.{key}", key) for key, _ in cast("Sizes", value)]
    return [(field, field)]


def _unknown(
    kind: type[ScheduleError] | type[TileSizeError], message: str, name: str, what: str, known: Iterable[str]
) -> ScheduleError:
    known = list(dict.fromkeys(known))
    listed = f"{what} {', '.join(known)}" if what.endswith("are") else f"{what}: {', '.join(known)}"
    return kind(message, location=_caller(name), hint=did_you_mean(name, known, listed))


def _caller(*words: str | None) -> Location | None:
    """The call from outside of the package that led here, and in it the first of the words that stands there.

    None is a word too: the name of what is called.
    """
    frame: FrameType | None = inspect.currentframe()
    called = ""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("tilelink."):
        called, frame = frame.f_code.co_name, frame.f_back
    if frame is None:
        return None
    file = frame.f_code.co_filename
    first, begin, last, end = _extent(frame)
    # Calls of a chain begin where the chain does, so of several such words the last one is this call's.
    for word, number in product([word or called for word in words], range(last, first - 1, -1)):
        line = linecache.getline(file, number).rstrip("\n")
        inside = slice(begin if number == first else 0, end if number == last else None)
        before, within = (line.encode()[part].decode(errors="ignore") for part in (slice(inside.start), inside))
        if found := list(re.finditer(rf"\b{re.escape(word)}\b", within)):
            column = len(before) + found[-1].start() + 1
            return Location(file=file, line=number, column=column, length=len(word), text=line)
    line = linecache.getline(file, frame.f_lineno).rstrip("\n")
    column = len(line) - len(line.lstrip()) + 1
    return Location(file=file, line=frame.f_lineno, column=column, length=len(line.strip()), text=line or None)


def _extent(frame: FrameType) -> tuple[int, int, int, int | None]:
    """Where the call that a frame is in begins and ends: lines, and in bytes where on them."""
    first, last, begin, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return first or frame.f_lineno, begin or 0, last or frame.f_lineno, end
