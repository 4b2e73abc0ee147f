"""Parser of the text language of schedules: a `schedule NAME for PROGRAM:` block with a line for each part."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from lark import Lark, Token, Transformer, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken, VisitError
from lark.lexer import PatternStr

from tilelink.errors import Location, ParseError, TileLinkError, did_you_mean
from tilelink.files import lines_of
from tilelink.frontend.grammar import lalr
from tilelink.ir.scalar import RANK, RANKS, Int, Param, Scalar, binary
from tilelink.scheduling.schedule import IndexOrder, Schedule
from tilelink.scheduling.words import SchedulePart, StageSchedule, TensorSchedule, Word, number, positive, words
from tilelink.target import TARGETS

AnyPart = TypeVar("AnyPart", bound=SchedulePart)
OFF = "off_"
"""Prefix of the grammar rule that resets a word."""
_HEADER = re.compile(
    r"^\s*schedule\s+(?P<name>\w+)\s+for\s+(?P<program>\w+)"
    r"(?:\s+like\s+(?P<like>(?:(?P<of>\w+)\s*:\s*)?(?P<base>\w+)))?(?:\s+on\s+(?P<target>\w+))?\s*:\s*(#.*)?$"
)


@dataclass(frozen=True, kw_only=True)
class Head:
    """The header of a schedule: `schedule NAME for PROGRAM like OTHER on TARGET:`.

    like: (program, name) of the schedule that it extends, or None; like_at: the location of that clause.
    target: the name of the processor that it is for, or None; target_at: its location.
    """

    name: str
    program: str
    location: Location
    like: tuple[str, str] | None = None
    like_at: Location | None = None
    target: str | None = None
    target_at: Location | None = None


@dataclass(frozen=True, kw_only=True)
class _Line(Generic[AnyPart]):
    """A parsed line.

    part: the part with its values. words: the words that the line sets or resets; off: the names of those it resets.
    """

    part: AnyPart
    words: tuple[Word[Any], ...]
    off: frozenset[str]


def parse_head(line: str, file: str = "<text>", number: int = 1) -> Head:
    """Parse the header line of a schedule. Raises ParseError if it is not one."""
    location = Location(file=file, line=number, text=line)
    found = _HEADER.match(line)
    if found is None:
        hint = "schedule NAME for PROGRAM:, or schedule NAME for PROGRAM like OTHER on sm_90:"
        raise ParseError("not the head of a schedule", location=location, hint=hint)
    like = (found["of"] or found["program"], found["base"]) if found["like"] else None
    begin, end = found.span("like")
    like_at = replace(location, column=begin + 1, length=end - begin) if like else None
    begin, end = found.span("target")
    target_at = replace(location, column=begin + 1, length=end - begin) if found["target"] else None
    return Head(
        name=found["name"],
        program=found["program"],
        location=location,
        like=like,
        like_at=like_at,
        target=found["target"],
        target_at=target_at,
    )


def parse_schedule(text: str, file: str = "<text>", first_line: int = 1, base: Schedule | None = None) -> Schedule:
    """Parse one block. first_line: the line number of its header in the file, for locations.

    base: the schedule that it extends, or None. Raises ParseError, or ScheduleError for an invalid value.
    """
    lines = lines_of(text)
    head = parse_head(lines[0] if lines else "", file, first_line)
    if head.like is not None and base is None:
        what = f"schedule {head.name} extends {':'.join(head.like)}, which is not here"
        raise ParseError(what, location=head.like_at, hint="parse the text that has both")
    schedule = base or Schedule(name=head.name, program=head.program)
    target = head.target or schedule.target
    if target is not None and target not in (known := [one.name for one in TARGETS]):
        hint = did_you_mean(target, known, f"the targets are {', '.join(known)}")
        raise ParseError(f"there is no target {target!r}", location=head.target_at, hint=hint)
    own = {"name": head.name, "program": head.program, "target": target, "location": head.location, "source": None}
    schedule = replace(schedule, **own)
    first: dict[str, SchedulePart] = {}
    for offset, line in enumerate(lines[1:], start=1):
        if line.split("#")[0].strip():
            location = Location(file=file, line=first_line + offset, text=line)
            schedule = _add(schedule, line, location, first, base)
    return schedule


def _add(
    schedule: Schedule, line: str, location: Location, first: dict[str, SchedulePart], base: Schedule | None
) -> Schedule:
    """first: what lines before said. base: the schedule that this one extends."""
    indent = len(line) - len(line.lstrip())
    location = replace(location, column=indent + 1, length=max(1, len(line.split("#")[0].strip())))
    try:
        tree = _grammar().parse(line)
        locations = _locations(tree, location)
        entry = _Build().transform(tree)
    except UnexpectedInput as error:
        raise _unexpected(error, line, location) from None
    except VisitError as error:
        if isinstance(error.orig_exc, TileLinkError):
            error.orig_exc.location = _span(error.obj, location)
            raise error.orig_exc from None
        raise
    if entry == "reuse_wait off":
        return replace(schedule, reuse_wait=False)
    if entry == "reuse_wait on":
        if base is None or base.reuse_wait:
            raise _not_said("reuse_wait on", "reuse_wait off", base, location)
        return replace(schedule, reuse_wait=True)
    if entry == "default":
        return schedule
    names, *parts = entry.children
    for token in names.children:
        own = {**locations, "name": _span(token, location)}
        schedule = _entry(schedule, str(token), parts, location, own, first, base)
    return schedule


def _entry(
    schedule: Schedule, name: str, parts: Sequence[Tree[Any]], location: Location, locations: dict[str, Location],
    first: dict[str, SchedulePart], base: Schedule | None,
) -> Schedule:  # fmt: skip
    if name in first:
        hint, related = "put everything on one line", first[name].at("name")
        raise ParseError(f"{name} is scheduled twice", location=locations["name"], related=related, hint=hint)
    owners = {_word_of(part.data).of for part in parts}
    if len(owners) > 1:
        tensors = [word.name for word in words() if word.of == "tensor"]
        hint = f"{' and '.join(tensors)} belong to a tensor, everything else to a stage"
        raise ParseError(f"{name} is scheduled as a stage and as a tensor", location=location, hint=hint)
    if owners == {"tensor"}:
        tensor = _said(TensorSchedule(name=name, location=location, locations=locations), parts, locations)
        _check_taken_back(tensor, base and base.tensor(name), base)
        first[name] = tensor.part
        return replace(schedule, tensors=_with(schedule.tensors, tensor))
    stage = _said(StageSchedule(name=name, location=location, locations=locations), parts, locations)
    _check_taken_back(stage, base and base.stage(name), base)
    first[name] = stage.part
    return replace(schedule, stages=_with(schedule.stages, stage))


def _said(owner: AnyPart, parts: Sequence[Tree[Any]], locations: Mapping[str, Location]) -> _Line[AnyPart]:
    off: set[str] = set()
    for part in parts:
        word = _word_of(part.data)
        if part.data.startswith(OFF):
            off.add(word.name)
            continue
        try:
            owner = owner.saying(word, word.read(part.data, part.children))
        except TileLinkError as error:
            error.location = locations[word.name]
            raise
    return _Line(part=owner, words=tuple(_word_of(part.data) for part in parts), off=frozenset(off))


def _with(parts: tuple[AnyPart, ...], line: _Line[AnyPart]) -> tuple[AnyPart, ...]:
    """The parts with what a line says: the words that it names have its values, others keep theirs."""
    old = next((part for part in parts if part.name == line.part.name), None)
    if old is None:
        return (*parts, line.part) if line.part.said else parts
    new = old
    for word in line.words:
        new = new.saying(word, line.part[word])
    given = {word.name for word in line.words}
    kept = {key: at for key, at in old.locations.items() if key.partition(".")[0] not in given}
    new = replace(new, location=line.part.location, locations={**kept, **line.part.locations})
    return tuple(new if part is old else part for part in parts if part is not old or new.said)


def _check_taken_back(line: _Line[AnyPart], old: SchedulePart | None, base: Schedule | None) -> None:
    """Raise ParseError for a word that is taken back and was not said."""
    for name in line.off:
        if old is None or all(one.name != name for one in old.said):
            raise _not_said(f"{name} off", f"{name} of {line.part.name}", base, line.part.at(name))


def _not_said(taken: str, what: str, base: Schedule | None, location: Location | None) -> ParseError:
    if base is None:
        hint = "leave it out; in a schedule like another one it takes back what that one says"
        return ParseError(f"{taken} takes nothing back", location=location, hint=hint)
    message = f"{taken} takes nothing back: {base.name} does not say {what}"
    return ParseError(message, location=location, related=base.location, hint="leave it out")


def _word_of(rule: str) -> Word[Any]:
    return next(word for word in words() if rule in word.rules or rule == OFF + word.name)


def _locations(tree: Tree[Token], line: Location) -> dict[str, Location]:
    """The locations of the parts of a line, by keys of `SchedulePart.locations`. Raises ParseError for a repetition."""
    if tree.data != "entry":
        return {}
    names, *parts = tree.children
    locations: dict[str, Location] = {}
    for part in parts:
        assert isinstance(part, Tree)
        word, location = _word_of(part.data), _span(part, line)
        if word.name in locations:
            assert isinstance(names, Tree)
            what = (word.called or word.name).format(name=", ".join(map(str, names.children)))
            hint, related = "give each part once", locations[word.name]
            raise ParseError(f"{what} is given twice", location=location, related=related, hint=hint)
        locations[word.name] = location
        for inner in part.children:
            if isinstance(inner, Tree):
                name = "group" if inner.data == "group" else str(inner.children[0])
                locations[f"{word.name}.{name}"] = _span(inner, line)
    return locations


def _span(node: Any, line: Location) -> Location:
    """The location of a token or of a tree."""
    found = node.meta if isinstance(node, Tree) else node
    return replace(line, column=found.column, length=max(1, found.end_column - found.column))


def _unexpected(error: UnexpectedInput, line: str, location: Location) -> ParseError:
    ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    column = error.column if error.column and error.column > 0 and not ended else len(_code(line)) + 1
    start = column
    # A word may have a keyword of the language as a prefix. The parser then stopped inside the word.
    while start > 1 and not ended and re.match(r"\w\w", line[start - 2 : start]):
        start -= 1
    known = _words(error) if start == column else _words(None)
    word = re.match(r"[A-Za-z_]\w*|", _code(line)[start - 1 :])[0]  # type: ignore[index] - the pattern matches the empty string too
    where = replace(location, column=start, length=max(1, len(word)))
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
        hint = f"it is written like {opened.written if '`' in opened.written else f'`{opened.written}`'}"
    return ParseError(f"did not expect {found!r} here", location=where, hint=hint)


def _opened(before: str) -> Word[Any] | None:
    """The clause whose bracket is still open at the end of a prefix of a line, or is due there, or None."""
    for clause in words():
        for found in re.finditer(rf"\b({'|'.join(clause.first_words)})\s*(\(|$)", before):
            if clause.written and _is_open(before[found.start(2) :]):
                return clause
    return None


def _is_open(text: str) -> bool:
    """True if the bracket that a text begins with is not closed in it; also for an empty text."""
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return False
    return True


def _code(line: str) -> str:
    return line.partition("#")[0].rstrip()


def _words(error: UnexpectedInput | None) -> list[str]:
    """The keywords that are valid at the position of an error; all keywords if `error` is None."""
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
    rules |= {OFF + word.name: f'"{word.name}" "off"' for word in clauses if word.name in word.first_words}
    text += "\n?part: " + " | ".join(rules) + "\n"
    text += "".join(f"{rule}: {matched}\n" for rule, matched in rules.items())
    return lalr(text)


class _Build(Transformer[Token, Any]):
    """Transformer of the parts of clauses to values; the clauses themselves stay trees."""

    def INT(self, token: Token) -> Token:
        number(token)
        return token

    def without_reuse_wait(self, _: list[Any]) -> str:
        return "reuse_wait off"

    def with_reuse_wait(self, _: list[Any]) -> str:
        return "reuse_wait on"

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
