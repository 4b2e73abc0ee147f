"""What one line of a schedule says of a stage or a tensor: the words of the language, and the values they give.

A `Word` is the form of a clause: how it is written, read, checked and printed. What it does to a program is a
`tilelink.lowering.clauses.clause.Clause`, which is a word too. A part of a schedule keeps the values by the names of
their words, so that it can be pickled and compared; words are looked up among those that are registered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Generic, Literal, Self, TypeVar

from tilelink.errors import Location, ParseError, ScheduleError, did_you_mean
from tilelink.ir.intervals import MAX_INT32
from tilelink.ir.program import Program

T = TypeVar("T")
Owner = Literal["stage", "tensor"]
Sizes = tuple[tuple[str, int], ...]
"""Names of indices or dimensions, with numbers of elements."""
TOO_LARGE = f"integers have 32 bits: {MAX_INT32:,} at most"


def _anything(_: str, __: Any) -> None:
    """Every value will do."""


def _named_rightly(_: Program, __: Part) -> None:
    """A word whose value names nothing has nothing to check."""


def _no_places(_: Any) -> tuple[tuple[str, str], ...]:
    return ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Word(Generic[T]):
    """A clause of the schedule language, as it is written.

    name: the name of its value, in chains of methods and for places. default: the value of a line that does not say it.
    rules: rule of the grammar -> what it matches, made of quoted words and the rules and terminals of schedule.lark;
    no two words have rules of the same name. read(rule, children): the value. show: the text of a value.
    syntax: how it is written, in short. written: an example of it. formerly: the word that it once had.
    called: what an error calls it, where {name} is the stage or the tensor.
    valid(owner, value): raises ScheduleError for a value that means nothing. check(program, part): raises ScheduleError
    for names that a program lacks. inner: names within a value that have places of their own, each with the word that
    stands there.
    """

    name: str
    of: Owner = "stage"
    default: T
    rules: Mapping[str, str]
    syntax: str
    read: Callable[[str, Sequence[Any]], T]
    show: Callable[[T], str]
    written: str = ""
    formerly: str = ""
    called: str = ""
    valid: Callable[[str, T], None] = _anything
    check: Callable[[Program, Part], None] = _named_rightly
    inner: Callable[[T], Sequence[tuple[str, str]]] = _no_places

    @property
    def first_words(self) -> Iterator[str]:
        """The words that it may begin with."""
        for matched in self.rules.values():
            if (found := re.match(r'\s*"(\w+)"', matched)) is not None:
                yield found[1]


def number(text: str) -> int:
    """A number of a text. Raises ParseError for one that has more than 32 bits."""
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(MAX_INT32)) or int(digits) > MAX_INT32:  # Python itself reads no more than 4300 digits
        raise ParseError("a number that is too large", hint=TOO_LARGE)
    return int(digits)


def positive(text: str) -> int:
    """A number of a text. Raises ParseError for zero, and for one that has more than 32 bits."""
    value = number(text)
    if value < 1:
        raise ParseError(f"{value} is not a size", hint="sizes and counts are at least one")
    return value


def check_count(word: str, owner: str, value: object, least: str) -> None:
    """Raises ScheduleError for what is no whole number from one on; least: what there is at least one of."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ScheduleError(f"{word} {value!r} of {owner}", hint=least)
    if value > MAX_INT32:
        raise ScheduleError(f"{word} of {owner} is too large", hint=TOO_LARGE)


def check_sizes(owner: str, sizes: Sizes) -> None:
    """Raises ScheduleError for sizes that are no whole numbers from one on."""
    for key, size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ScheduleError(f"size {key}={size!r} of {owner}", hint="sizes are whole numbers, at least one")
        check_count(f"size {key}", owner, size, "")


def show_sizes(sizes: Sizes) -> str:
    """`i=128, k=64`."""
    return ", ".join(f"{key}={size}" for key, size in sizes)


# Registered words ----------------------------------------------------------------------------------------------

BUILT_IN = "tilelink.lowering.clauses"
"""Imported when the words are first asked for: clauses rewrite lowered programs, which are made of schedules."""
_WORDS: dict[str, Word[Any]] = {}


def _registered() -> dict[str, Word[Any]]:
    import_module(BUILT_IN)
    return _WORDS


def register(word: Word[Any]) -> None:
    """Makes a word one of the language. Raises ScheduleError where another one is written or named so."""
    for other in _registered().values():
        same = {word.name, *word.first_words} & {other.name, *other.first_words} or word.rules.keys() & other.rules
        if same:
            raise ScheduleError(f"two clauses called {min(same)}", hint="a clause has words of its own")
    _WORDS[word.name] = word


def forget(word: Word[Any]) -> None:
    """Takes a word out of the language again."""
    _WORDS.pop(word.name, None)


def words() -> tuple[Word[Any], ...]:
    """The words of the language, in the order in which schedules are printed."""
    return tuple(_registered().values())


def word_called(name: str) -> Word[Any]:
    """The word with a name. Raises ScheduleError if there is none."""
    known = _registered()
    if name not in known:
        hint = did_you_mean(name, list(known), f"one of {', '.join(known)}")
        raise ScheduleError(f"no clause {name!r}", hint=hint)
    return known[name]


# Parts of a schedule -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Said:
    """The value that a line gives a word."""

    name: str
    what: Any


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a schedule says of a stage or a tensor; `said` is in the order of the words.

    location: its line; places: those of its parts, by the names of words, and for sizes and terms by `tile.i`.
    """

    name: str
    said: tuple[Said, ...] = ()
    location: Location | None = field(default=None, compare=False, repr=False)
    places: Mapping[str, Location] = field(default_factory=dict[str, Location], compare=False, repr=False)

    def __getitem__(self, word: Word[T]) -> T:
        return next((one.what for one in self.said if one.name == word.name), word.default)

    def saying(self, word: Word[T], value: T) -> Self:
        """The same with a value for a word; its default is not said."""
        kept = {one.name: one for one in self.said if one.name != word.name}
        if value != word.default:
            kept[word.name] = Said(name=word.name, what=value)
        order = list(_WORDS)
        said = sorted(kept.values(), key=lambda one: order.index(word_called(one.name).name))
        return replace(self, said=tuple(said))

    def given_at(self, word: Word[Any], place: Location | None) -> Self:
        """The same with another place, or none, of a word's value; it names the stage too if nothing did before."""
        kept = {key: at for key, at in self.places.items() if key.partition(".")[0] != word.name}
        return replace(self, places={"name": place, **kept, word.name: place} if place else kept)

    def at(self, part: str) -> Location | None:
        """Where a part stands, such as `tile.i`; else the clause, else the whole line."""
        return self.places.get(part) or self.places.get(part.partition(".")[0], self.location)

    def __str__(self) -> str:
        shown = (word_called(one.name).show(one.what) for one in self.said)
        return f"{self.name} {', '.join(shown)}"


@dataclass(frozen=True, kw_only=True)
class StageSchedule(Part):
    """What a schedule says of a stage."""


@dataclass(frozen=True, kw_only=True)
class TensorSchedule(Part):
    """What a schedule says of a tensor."""


def check_values(part: Part) -> None:
    """Raises ScheduleError for values that mean nothing, which no text has."""
    for said in part.said:
        word_called(said.name).valid(part.name, said.what)


def check_names(program: Program, part: Part) -> None:
    """Raises ScheduleError for a stage, a tensor or whatever else a part names and a program lacks."""
    kind, known = "tensor", [t.name for t in program.tensors]
    if isinstance(part, StageSchedule):
        kind, known = "stage", [s.name for s in program.stages]
    if part.name not in known:
        hint = did_you_mean(part.name, known, f"{kind}s: {', '.join(known)}")
        raise ScheduleError(f"no {kind} {part.name!r}", location=part.at("name"), hint=hint)
    for word in words():
        if any(one.name == word.name for one in part.said):
            word.check(program, part)
