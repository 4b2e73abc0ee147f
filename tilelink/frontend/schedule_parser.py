"""The text language of schedules: a `schedule NAME for PROGRAM:` block, one stage or tensor a line."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput, VisitError

from tilelink.errors import Location, ParseError, TileLinkError
from tilelink.ir.scalar import RANK, RANKS, Int, Param, Scalar, binary
from tilelink.schedule.values import (
    CopyEngine,
    Fused,
    IndexOrder,
    Order,
    Schedule,
    Sm,
    StageSchedule,
    TensorSchedule,
)

_HEADER = re.compile(r"^\s*schedule\s+(?P<name>\w+)\s+for\s+(?P<program>\w+)\s*:\s*(#.*)?$")
_TENSOR_PARTS = {"channel", "buffers"}


def parse_schedule(text: str, file: str = "<text>", first_line: int = 1) -> Schedule:
    """Parse one block; `first_line` is the line of its header in the file, for locations."""
    lines = text.splitlines()
    header = _HEADER.match(lines[0]) if lines else None
    if header is None:
        where = Location(file=file, line=first_line, text=lines[0] if lines else "")
        raise ParseError("not the head of a schedule", location=where, hint="schedule NAME for PROGRAM:")
    place = Location(file=file, line=first_line, text=lines[0])
    schedule = Schedule(name=header["name"], program=header["program"], location=place)
    for offset, line in enumerate(lines[1:], start=1):
        if line.split("#")[0].strip():
            schedule = _add(schedule, line, Location(file=file, line=first_line + offset, text=line))
    return schedule


def _add(schedule: Schedule, line: str, place: Location) -> Schedule:
    indent = len(line) - len(line.lstrip())
    place = replace(place, column=indent + 1, length=max(1, len(line.split("#")[0].strip())))
    try:
        entry = _Build().transform(_grammar().parse(line))
    except UnexpectedInput as error:
        raise _unexpected(error, line, place) from None
    except VisitError as error:
        if isinstance(error.orig_exc, TileLinkError):
            error.orig_exc.location = place
            raise error.orig_exc from None
        raise
    if entry == "reuse_wait off":
        return replace(schedule, reuse_wait=False)
    if entry == "default":
        return schedule
    name, parts = entry
    return _entry(schedule, name, parts, place)


def _entry(schedule: Schedule, name: str, parts: dict[str, Any], place: Location) -> Schedule:
    if any(part.name == name for part in (*schedule.stages, *schedule.tensors)):
        raise ParseError(f"{name} is scheduled twice", location=place, hint="put everything on one line")
    if set(parts) <= _TENSOR_PARTS:
        return replace(schedule, tensors=(*schedule.tensors, TensorSchedule(name=name, location=place, **parts)))
    if set(parts) & _TENSOR_PARTS:
        hint = "channel and buffers belong to a tensor, everything else to a stage"
        raise ParseError(f"{name} is scheduled as a stage and as a tensor", location=place, hint=hint)
    return replace(schedule, stages=(*schedule.stages, StageSchedule(name=name, location=place, **parts)))


def _unexpected(error: UnexpectedInput, line: str, place: Location) -> ParseError:
    column = error.column if error.column and error.column > 0 else len(line.rstrip()) + 1
    found = line[column - 1 :].split("#")[0].strip().split(" ")[0] or "the end of the line"
    hint = "NAME followed by: on sm, on sm(n), on copy_engine, in STAGE, push, pull, tile(..), order(..), warps n,"
    hint += " stages n, flat, split_tail n, fill n, defer_notify, bulk n; or for a tensor channel(..), buffers n"
    where = replace(place, column=column, length=1)
    return ParseError(f"did not expect {found!r} here", location=where, hint=hint)


@cache
def _grammar() -> Lark:
    return Lark(Path(__file__).with_name("schedule.lark").read_text(encoding="utf-8"), parser="lalr")


class _Build(Transformer[Token, Any]):
    """Parse tree -> (name, parts) with parts named as the fields of StageSchedule or TensorSchedule."""

    def entry(self, items: list[Any]) -> tuple[str, dict[str, Any]]:
        parts: dict[str, Any] = {}
        for key, value in items[1:]:
            if key in parts:
                raise ParseError(f"{key} is given twice", hint="give each part once")
            parts[key] = value
        return str(items[0]), parts

    def switch(self, _: list[Any]) -> str:
        return "reuse_wait off"

    def default(self, _: list[Any]) -> str:
        return "default"

    def copy_engine(self, _: list[Any]) -> tuple[str, Any]:
        return "resource", CopyEngine()

    def sm(self, items: list[Any]) -> tuple[str, Any]:
        return "resource", Sm(programs=int(items[0]) if items and items[0] is not None else None)

    def fused(self, items: list[Any]) -> tuple[str, Any]:
        place = items[1] if len(items) > 1 else None
        return "resource", Fused(stage=str(items[0]), place=str(place or "epilogue"))

    def direction(self, items: list[Any]) -> tuple[str, Any]:
        return "direction", str(items[0])

    def tile(self, items: list[Any]) -> tuple[str, Any]:
        return "tiles", tuple(items)

    def channel(self, items: list[Any]) -> tuple[str, Any]:
        return "channel", tuple(items)

    def warps(self, items: list[Any]) -> tuple[str, Any]:
        return "warps", _positive(items[0])

    def stages(self, items: list[Any]) -> tuple[str, Any]:
        return "stages", _positive(items[0])

    def flat(self, _: list[Any]) -> tuple[str, Any]:
        return "flat", True

    def split_tail(self, items: list[Any]) -> tuple[str, Any]:
        return "split_tail", _positive(items[0])

    def fill(self, items: list[Any]) -> tuple[str, Any]:
        return "fill", _positive(items[0])

    def defer_notify(self, _: list[Any]) -> tuple[str, Any]:
        return "defer_notify", True

    def bulk(self, items: list[Any]) -> tuple[str, Any]:
        return "bulk", _positive(items[0])

    def buffers(self, items: list[Any]) -> tuple[str, Any]:
        return "buffers", _positive(items[0])

    def size(self, items: list[Any]) -> tuple[str, int]:
        return str(items[0]), _positive(items[1])

    def order(self, items: list[Any]) -> tuple[str, Order]:
        groups = [i for i in items if isinstance(i, tuple)]
        if len(groups) > 1:
            raise ParseError("more than one group in an order", hint="one group walks the two innermost indices")
        nest = tuple(i for i in items if isinstance(i, IndexOrder))
        return "order", Order(nest=nest, group=groups[0] if groups else None)

    def group(self, items: list[Any]) -> tuple[str, int]:
        return str(items[0]), _positive(items[1])

    def natural(self, items: list[Any]) -> IndexOrder:
        return IndexOrder(index=str(items[0]))

    def sequence(self, items: list[Any]) -> IndexOrder:
        return IndexOrder(index=str(items[0]), kind="sequence", start=items[1], step=items[2])

    def xor(self, items: list[Any]) -> IndexOrder:
        return IndexOrder(index=str(items[0]), kind="xor", start=items[1])

    def hierarchical(self, items: list[Any]) -> IndexOrder:
        return IndexOrder(index=str(items[0]), kind="hierarchical", start=items[1], group=_positive(items[2]))

    def permutation(self, items: list[Any]) -> IndexOrder:
        return IndexOrder(index=str(items[0]), kind="permutation", values=tuple(int(i) for i in items[1:]))

    def signed(self, items: list[Any]) -> int:
        return -int(items[1]) if items[0] == "-" else int(items[-1])

    def arithmetic(self, items: list[Any]) -> Scalar:
        return binary(str(items[1]), items[0], items[2])

    def integer(self, items: list[Any]) -> Scalar:
        return Int(value=int(items[0]))

    def own_rank(self, _: list[Any]) -> Scalar:
        return RANK

    def rank_count(self, _: list[Any]) -> Scalar:
        return RANKS

    def parameter(self, items: list[Any]) -> Scalar:
        return Param(name=str(items[0]))


def _positive(token: Token) -> int:
    value = int(token)
    if value < 1:
        raise ParseError(f"{value} is not a size", hint="sizes and counts are at least one")
    return value
