"""The text language of schedules: a `schedule NAME for PROGRAM:` block, one stage or tensor a line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from lark import Lark, Token, Transformer, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken, VisitError
from lark.lexer import PatternStr

from tilelink.errors import Location, ParseError, TileLinkError, did_you_mean
from tilelink.files import lines_of
from tilelink.ir.scalar import RANK, RANKS, Int, Param, Scalar, binary
from tilelink.scheduling.schedule import IndexOrder, Schedule
from tilelink.scheduling.words import Part, StageSchedule, TensorSchedule, Word, number, positive, words

AnyPart = TypeVar("AnyPart", bound=Part)
_HEADER = re.compile(r"^\s*schedule\s+(?P<name>\w+)\s+for\s+(?P<program>\w+)\s*:\s*(#.*)?$")


def parse_schedule(text: str, file: str = "<text>", first_line: int = 1) -> Schedule:
    """Parse one block; `first_line` is the line of its header in the file, for locations."""
    lines = lines_of(text)
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
    return _entry(schedule, entry, place, places)


def _entry(schedule: Schedule, entry: Tree[Any], place: Location, places: dict[str, Location]) -> Schedule:
    name, parts = str(entry.children[0]), entry.children[1:]
    first = next((part for part in (*schedule.stages, *schedule.tensors) if part.name == name), None)
    if first is not None:
        hint = "put everything on one line"
        raise ParseError(f"{name} is scheduled twice", location=places["name"], related=first.at("name"), hint=hint)
    owners = {_word_of(part.data).of for part in parts}
    if len(owners) > 1:
        tensors = [word.name for word in words() if word.of == "tensor"]
        hint = f"{' and '.join(tensors)} belong to a tensor, everything else to a stage"
        raise ParseError(f"{name} is scheduled as a stage and as a tensor", location=place, hint=hint)
    if owners == {"tensor"}:
        tensor = TensorSchedule(name=name, location=place, places=places)
        return replace(schedule, tensors=(*schedule.tensors, _said(tensor, parts, places)))
    stage = StageSchedule(name=name, location=place, places=places)
    return replace(schedule, stages=(*schedule.stages, _said(stage, parts, places)))


def _said(owner: AnyPart, parts: Sequence[Tree[Any]], places: Mapping[str, Location]) -> AnyPart:
    for part in parts:
        word = _word_of(part.data)
        try:
            owner = owner.saying(word, word.read(part.data, part.children))
        except TileLinkError as error:
            error.location = places[word.name]
            raise
    return owner


def _word_of(rule: str) -> Word[Any]:
    return next(word for word in words() if rule in word.rules)


def _places(tree: Tree[Token], line: Location) -> dict[str, Location]:
    """Where the parts of a line stand, named as in `Part`. Raises ParseError for a part that is given twice."""
    if tree.data != "entry":
        return {}
    places = {"name": _span(tree.children[0], line)}
    for part in tree.children[1:]:
        assert isinstance(part, Tree)
        word, place = _word_of(part.data), _span(part, line)
        if word.name in places:
            what = (word.called or word.name).format(name=tree.children[0])
            hint, related = "give each part once", places[word.name]
            raise ParseError(f"{what} is given twice", location=place, related=related, hint=hint)
        places[word.name] = place
        for inner in part.children:
            if isinstance(inner, Tree):
                name = "group" if inner.data == "group" else str(inner.children[0])
                places[f"{word.name}.{name}"] = _span(inner, line)
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
    stages, tensors = (", ".join(word.syntax for word in words() if word.of == of) for of in ("stage", "tensor"))
    hint = f"NAME followed by: {stages}; or for a tensor {tensors}; or `reuse_wait off`"
    if renamed := next((one for one in words() if word and word == one.formerly), None):
        return ParseError(f"unknown {word!r}", location=where, hint=f"it is called {renamed.name}: {renamed.syntax}")
    if near := word and word not in _words(None) and did_you_mean(word, known):
        return ParseError(f"unknown {word!r}", location=where, hint=f"{near} {hint}")
    found = word or line[column - 1 :].split("#")[0].strip().split(" ")[0] or "the end of the line"
    begins = any(word in one.first_words for one in words())
    if isinstance(error, UnexpectedToken) and "COMMA" in error.expected and begins:
        hint = f"parts are separated by commas: put one before {word}"
    elif (opened := _opened(line[: start - 1])) is not None:
        hint = f"it is written like {opened.written}"
    return ParseError(f"did not expect {found!r} here", location=where, hint=hint)


def _opened(before: str) -> Word[Any] | None:
    """The clause whose brackets are open after the first characters of a line."""
    for clause in words():
        for found in re.finditer(rf"\b({'|'.join(clause.first_words)})\s*\(", before):
            inside = before[found.start() :]
            if inside.count("(") > inside.count(")"):
                return clause
    return None


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


def _grammar() -> Lark:
    return _grammar_of(words())


@cache
def _grammar_of(clauses: tuple[Word[Any], ...]) -> Lark:
    text = Path(__file__).with_name("schedule.lark").read_text(encoding="utf-8")
    rules = {rule: matched for word in clauses for rule, matched in word.rules.items()}
    text += "\n?part: " + " | ".join(rules) + "\n"
    text += "".join(f"{rule}: {matched}\n" for rule, matched in rules.items())
    return Lark(text, parser="lalr", propagate_positions=True)


class _Build(Transformer[Token, Any]):
    """What clauses are made of; the clauses themselves stay trees."""

    def INT(self, token: Token) -> Token:
        number(token)
        return token

    def switch(self, _: list[Any]) -> str:
        return "reuse_wait off"

    def default(self, _: list[Any]) -> str:
        return "default"

    def size(self, items: list[Any]) -> tuple[str, int]:
        return str(items[0]), positive(items[1])

    def group(self, items: list[Any]) -> tuple[str, int]:
        return str(items[0]), positive(items[1])

    def natural(self, items: list[Any]) -> IndexOrder:
        return IndexOrder(index=str(items[0]))

    def sequence(self, items: list[Any]) -> IndexOrder:
        return IndexOrder(index=str(items[0]), kind="sequence", start=items[1], step=items[2])

    def xor(self, items: list[Any]) -> IndexOrder:
        return IndexOrder(index=str(items[0]), kind="xor", start=items[1])

    def hierarchical(self, items: list[Any]) -> IndexOrder:
        return IndexOrder(index=str(items[0]), kind="hierarchical", start=items[1], group=positive(items[2]))

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
