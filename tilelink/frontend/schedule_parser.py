"""The text language of schedules: a `schedule NAME for PROGRAM:` block, one stage or tensor a line."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken, VisitError
from lark.lexer import PatternStr

from tilelink.errors import Location, ParseError, TileLinkError, did_you_mean
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
_FIELDS = {"copy_engine": "resource", "sm": "resource", "fused": "resource", "tile": "tiles"}
"""The rules of the grammar that are not named as the field that they fill."""
_AS_WRITTEN = {
    "resource": "where {name} runs (on ... / in ...)",
    "direction": "the direction (push / pull)",
    "tiles": "tile(...)",
}
_PART_WORDS = (
    "on", "in", "push", "pull", "tile", "channel", "order", "warps", "stages", "flat", "split_tail", "fill",
    "defer_notify", "bulk", "buffers",
)  # fmt: skip


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
        tree = _grammar().parse(line)
        places = _places(tree, place)
        entry = _Build().transform(tree)
    except UnexpectedInput as error:
        raise _unexpected(error, line, place) from None
    except VisitError as error:
        if isinstance(error.orig_exc, TileLinkError):
            error.orig_exc.location = _span(error.obj, place)
            raise error.orig_exc from None
        raise
    if entry == "reuse_wait off":
        return replace(schedule, reuse_wait=False)
    if entry == "default":
        return schedule
    name, parts = entry
    return _entry(schedule, name, parts, place, places)


def _entry(
    schedule: Schedule, name: str, parts: dict[str, Any], place: Location, places: dict[str, Location]
) -> Schedule:
    first = next((part for part in (*schedule.stages, *schedule.tensors) if part.name == name), None)
    if first is not None:
        hint = "put everything on one line"
        raise ParseError(f"{name} is scheduled twice", location=places["name"], related=first.at("name"), hint=hint)
    parts = {**parts, "name": name, "location": place, "places": places}
    own = set(parts) - {"name", "location", "places"}
    if own <= _TENSOR_PARTS:
        return replace(schedule, tensors=(*schedule.tensors, TensorSchedule(**parts)))
    if own & _TENSOR_PARTS:
        hint = "channel and buffers belong to a tensor, everything else to a stage"
        raise ParseError(f"{name} is scheduled as a stage and as a tensor", location=place, hint=hint)
    return replace(schedule, stages=(*schedule.stages, StageSchedule(**parts)))


def _places(tree: Tree[Token], line: Location) -> dict[str, Location]:
    """Where the parts of a line stand, named as in `Placed`. Raises ParseError for a part that is given twice."""
    if tree.data != "entry":
        return {}
    places = {"name": _span(tree.children[0], line)}
    for part in tree.children[1:]:
        assert isinstance(part, Tree)
        key, place = _FIELDS.get(part.data, part.data), _span(part, line)
        if key in places:
            what = _AS_WRITTEN.get(key, key).format(name=tree.children[0])
            raise ParseError(f"{what} is given twice", location=place, related=places[key], hint="give each part once")
        places[key] = place
        if part.data in ("tile", "channel", "order"):
            for inner in part.children:
                assert isinstance(inner, Tree)
                name = "group" if inner.data == "group" else str(inner.children[0])
                places[f"{key}.{name}"] = _span(inner, line)
    return places


def _span(node: Any, line: Location) -> Location:
    """The place of a token or of what a rule matched."""
    found = node.meta if isinstance(node, Tree) else node
    return replace(line, column=found.column, length=max(1, found.end_column - found.column))


def _unexpected(error: UnexpectedInput, line: str, place: Location) -> ParseError:
    ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    column = error.column if error.column and error.column > 0 and not ended else len(_code(line)) + 1
    start = column
    # A word can begin with one of the language, and then the parser stopped within it.
    while start > 1 and not ended and re.match(r"\w\w", line[start - 2 : start]):
        start -= 1
    known = _words(error) if start == column else _words(None)
    word = re.match(r"[A-Za-z_]\w*|", _code(line)[start - 1 :])[0]  # type: ignore[index] - it matches nothing too
    where = replace(place, column=start, length=max(1, len(word)))
    hint = "NAME followed by: on sm, on sm(n), on copy_engine, in STAGE, push, pull, tile(..), order(..), warps n,"
    hint += " stages n, flat, split_tail n, fill n, defer_notify, bulk n; or for a tensor channel(..), buffers n"
    if near := word and word not in _words(None) and did_you_mean(word, known):
        return ParseError(f"unknown {word!r}", location=where, hint=f"{near} {hint}")
    found = word or line[column - 1 :].split("#")[0].strip().split(" ")[0] or "the end of the line"
    if isinstance(error, UnexpectedToken) and "COMMA" in error.expected and word in _PART_WORDS:
        hint = f"parts are separated by commas: put one before {word}"
    return ParseError(f"did not expect {found!r} here", location=where, hint=hint)


def _code(line: str) -> str:
    return line.partition("#")[0].rstrip()


def _words(error: UnexpectedInput | None) -> list[str]:
    """The words of the language that could stand where an error is; without one, all."""
    expected = error.expected if isinstance(error, UnexpectedToken) else None
    patterns = [t.pattern for t in _grammar().terminals if expected is None or t.name in expected]
    words = [
        w for p in patterns if isinstance(p, PatternStr) or "|" in p.value for w in re.findall(r"[a-z_]+", p.value)
    ]
    return words


@cache
def _grammar() -> Lark:
    text = Path(__file__).with_name("schedule.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", propagate_positions=True)


class _Build(Transformer[Token, Any]):
    """Parse tree -> (name, parts) with parts named as the fields of StageSchedule or TensorSchedule."""

    def entry(self, items: list[Any]) -> tuple[str, dict[str, Any]]:
        return str(items[0]), dict(items[1:])

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
