"""The clauses of the schedule language, and the values that a line of a schedule gives them for a stage or a tensor.

A `Word` is the form of a clause: its grammar, reader, checks and printer. Its effect on a program is defined by the
subclass `tilelink.lowering.clauses.clause.Clause`. A part of a schedule stores the values under the names of their
words, so that it can be pickled and compared; the names are looked up in the registered words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Self, TypeVar

from tilelink.errors import Location, ParseError, ScheduleError, TileLinkError, did_you_mean
from tilelink.ir.intervals import MAX_INT32
from tilelink.ir.program import Program
from tilelink.scheduling import built_in

T = TypeVar("T")
Owner = Literal["stage", "tensor"]
Sizes = tuple[tuple[str, int], ...]
"""(name of an index or a dimension, number of elements) pairs."""
TOO_LARGE = f"integers have 32 bits: {MAX_INT32:,} at most"


def _anything(_: str, __: Any) -> None:
    """Accept every value."""


def _named_rightly(_: Program, __: SchedulePart) -> None:
    """Accept every part: the value of the word contains no names of the program."""


def _no_parts(_: Any) -> tuple[tuple[str, str], ...]:
    return ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Word(Generic[T]):
    """The form of a clause of the schedule language.

    name: the name of its value, in chains of methods and in `SchedulePart.locations`.
    default: the value if a line omits the clause.
    rules: grammar rule -> its definition, of quoted words and the rules and terminals of schedule.lark. Rule names are
    unique among all words.
    read(rule, children): returns the value of a parsed clause. show(value): returns its text.
    syntax: a short description of the syntax. written: an example. formerly: the former spelling of its first word.
    called: its name in errors, with {name} for the stage or the tensor.
    valid(owner, value): raises ScheduleError if the value is not valid.
    check(program, part): raises ScheduleError for names that the program lacks.
    inner(value): names within a value that have locations of their own, each with the word at that location.
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
    check: Callable[[Program, SchedulePart], None] = _named_rightly
    inner: Callable[[T], Sequence[tuple[str, str]]] = _no_parts

    @property
    def first_words(self) -> Iterator[str]:
        """Yield the words that the clause may begin with."""
        for definition in self.rules.values():
            if (match := re.match(r'\s*"(\w+)"', definition)) is not None:
                yield match[1]


def number(text: str) -> int:
    """Parse a decimal number. Raises ParseError if it does not fit into 32 bits."""
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(MAX_INT32)) or int(digits) > MAX_INT32:  # int() refuses more than 4300 digits
        raise ParseError("a number that is too large", hint=TOO_LARGE)
    return int(digits)


def positive(text: str) -> int:
    """Parse a positive decimal number. Raises ParseError for zero, or if it does not fit into 32 bits."""
    value = number(text)
    if value < 1:
        raise ParseError(f"{value} is not a size", hint="sizes and counts are at least one")
    return value


def check_count(word: str, owner: str, value: object, least: str) -> None:
    """Raise ScheduleError unless the value is None or an integer of at least one; least: the hint of the error."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ScheduleError(f"{word} {value!r} of {owner}", hint=least)
    if value > MAX_INT32:
        raise ScheduleError(f"{word} of {owner} is too large", hint=TOO_LARGE)


def check_sizes(owner: str, sizes: Sizes) -> None:
    """Raise ScheduleError unless all sizes are integers of at least one."""
    for key, size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ScheduleError(f"size {key}={size!r} of {owner}", hint="sizes are whole numbers, at least one")
        check_count(f"size {key}", owner, size, "")


def read_sizes(_: str, children: Sequence[Any]) -> Sizes:
    """Return the sizes that a clause of sizes has in a text: the `read` of its word."""
    return tuple(children)


def inner_sizes(sizes: Sizes) -> Sequence[tuple[str, str]]:
    """Return the keys of sizes, each with the word at its location: the `inner` of a word of sizes."""
    return [(key, key) for key, _ in sizes]


def show_sizes(sizes: Sizes) -> str:
    """Return the text of sizes: `i=128, k=64`."""
    return ", ".join(f"{key}={size}" for key, size in sizes)


# Registered words ----------------------------------------------------------------------------------------------

_WORDS: dict[str, Word[Any]] = {}


def _registered() -> dict[str, Word[Any]]:
    built_in.load()
    return _WORDS


def register(word: Word[Any]) -> None:
    """Add a word to the language. Raises ScheduleError if another one has the same name, first word or grammar rule."""
    for other in _registered().values():
        same = {word.name, *word.first_words} & {other.name, *other.first_words} or word.rules.keys() & other.rules
        if same:
            raise ScheduleError(f"two clauses called {min(same)}", hint="a clause has words of its own")
    _WORDS[word.name] = word


def forget(word: Word[Any]) -> None:
    """Remove a word from the language."""
    _WORDS.pop(word.name, None)


def words() -> tuple[Word[Any], ...]:
    """Return the words of the language, in the order in which schedules print them."""
    return tuple(_registered().values())


def word_called(name: str) -> Word[Any]:
    """Return the word of a name. Raises ScheduleError if there is none."""
    registered = _registered()
    if name not in registered:
        hint = did_you_mean(name, list(registered), f"one of {', '.join(registered)}")
        raise ScheduleError(f"no clause {name!r}", hint=hint)
    return registered[name]


# Parts of a schedule -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Said:
    """The value that a line of a schedule gives a word."""

    name: str
    what: Any


@dataclass(frozen=True, kw_only=True)
class SchedulePart:
    """The clauses of a schedule for one stage or tensor.

    said: the values, in the order of the registered words. location: of the line.
    locations: locations within the line; the key is the name of a word, or for example `tile.i` for a size or a term.
    """

    name: str
    said: tuple[Said, ...] = ()
    location: Location | None = field(default=None, compare=False, repr=False)
    locations: Mapping[str, Location] = field(default_factory=dict[str, Location], compare=False, repr=False)

    def __getitem__(self, word: Word[T]) -> T:
        return next((said.what for said in self.said if said.name == word.name), word.default)

    def saying(self, word: Word[T], value: T) -> Self:
        """Return the part with a value for a word; a default value is not stored."""
        values = {said.name: said for said in self.said if said.name != word.name}
        if value != word.default:
            values[word.name] = Said(name=word.name, what=value)
        order = list(_WORDS)
        ordered = sorted(values.values(), key=lambda said: order.index(word_called(said.name).name))
        return replace(self, said=tuple(ordered))

    def given_at(self, word: Word[Any], location: Location | None) -> Self:
        """Return the part with the location of a word's value replaced, or removed if `location` is None.

        The location serves for the part's name too if that has none yet.
        """
        others = {key: at for key, at in self.locations.items() if key.partition(".")[0] != word.name}
        return replace(self, locations={"name": location, **others, word.name: location} if location else others)

    def at(self, part: str) -> Location | None:
        """Return the location of a key of `locations` such as `tile.i`, else of its clause, else of the whole line."""
        return self.locations.get(part) or self.locations.get(part.partition(".")[0], self.location)

    def __str__(self) -> str:
        shown = (word_called(said.name).show(said.what) for said in self.said)
        return f"{self.name} {', '.join(shown)}"


@dataclass(frozen=True, kw_only=True)
class StageSchedule(SchedulePart):
    """The clauses of a schedule for a stage."""


@dataclass(frozen=True, kw_only=True)
class TensorSchedule(SchedulePart):
    """The clauses of a schedule for a tensor."""


def check_values(part: SchedulePart) -> None:
    """Raise ScheduleError for invalid values; a part that was parsed from text has none."""
    for said in part.said:
        with located(part.at(said.name)):
            word_called(said.name).valid(part.name, said.what)


@contextmanager
def located(location: Location | None) -> Generator[None]:
    """Give an error that the block raises a location, if it has none."""
    try:
        yield
    except TileLinkError as error:
        error.location = error.location or location
        raise


def check_names(program: Program, part: SchedulePart) -> None:
    """Raise ScheduleError if a part names a stage, a tensor or anything else that the program lacks."""
    tensors, stages = [t.name for t in program.tensors], [s.name for s in program.stages]
    of_stage = isinstance(part, StageSchedule)
    kind, known, others = ("stage", stages, tensors) if of_stage else ("tensor", tensors, stages)
    if part.name not in known:
        hint = did_you_mean(part.name, known, f"{kind}s: {', '.join(known)}")
        if part.name in others:
            what = ", ".join(said.name for said in part.said) or "this part"
            other = "tensor" if of_stage else "stage"
            hint = f"{part.name} is a {other}, and {what} is for {kind}s: {', '.join(known)}"
        raise ScheduleError(f"no {kind} {part.name!r}", location=part.at("name"), hint=hint)
    for word in words():
        if any(said.name == word.name for said in part.said):
            word.check(program, part)
