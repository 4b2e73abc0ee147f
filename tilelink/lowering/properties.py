"""Properties: the fields of kernels and stages as the text of a lowered program has them.

A field of a lowered value is a property of its line, by the field's name or by the word that `spelled` gives it. So a
pass that decides something new adds a field, and the text says it (lowering/listing.py). A field with its default is
left out of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum, auto
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

_WORD = "word"
BESIDE: Mapping[str, str] = {_WORD: ""}
"""Metadata of a field that is no property: the head of the line says it, or lines below."""


def spelled(word: str) -> Mapping[str, str]:
    """Return the metadata of a field whose property has a word other than the field's name."""
    return {_WORD: word}


class Form(Enum):
    """The text of a property, by the type of its field."""

    NUMBER = auto()
    """int: `word 2`."""
    TEXT = auto()
    """str: `word text`."""
    SWITCH = auto()
    """bool: `word` for True."""
    NAMES = auto()
    """frozenset[str]: `word[name, ...]`, in rising order."""
    LIST = auto()
    """tuple[str, ...]: `word[text, ...]`, in its order."""
    SIZES = auto()
    """Mapping[str, int]: `word(name=2, ...)`."""
    CHOICE = auto()
    """A member of an Enum: `word NAME`."""
    OTHER = auto()
    """Any other type: whoever prints or reads the value has a function for it."""


@dataclass(frozen=True, kw_only=True)
class Property:
    """A field of a lowered value as a property. choices: the Enum of a CHOICE. required: True for no default."""

    name: str
    word: str
    form: Form
    choices: type[Enum] | None = None
    default: object = None
    required: bool = False

    def text(self, value: Any) -> str:
        """Return the property with a value. Its form is not OTHER."""
        match self.form:
            case Form.SWITCH:
                return self.word
            case Form.NAMES:
                return f"{self.word}[{', '.join(sorted(value))}]"
            case Form.LIST:
                return f"{self.word}[{', '.join(value)}]"
            case Form.SIZES:
                return f"{self.word}({', '.join(f'{name}={size}' for name, size in value.items())})"
            case Form.CHOICE:
                return f"{self.word} {value.name}"
            case _:
                return f"{self.word} {value}"


@cache
def properties(kind: type) -> tuple[Property, ...]:
    """Return the properties of a dataclass, in the order of its fields."""
    types = get_type_hints(kind)
    found: list[Property] = []
    for one in fields(kind):
        if word := one.metadata.get(_WORD, one.name):
            form, choices = _form(types[one.name])
            default = one.default_factory() if one.default_factory is not MISSING else one.default
            required = default is MISSING
            found.append(
                Property(name=one.name, word=word, form=form, choices=choices, default=default, required=required)
            )
    return tuple(found)


def _form(kind: Any) -> tuple[Form, type[Enum] | None]:
    """Return the form of a type, and its choices. None as a further value is a default, which is left out."""
    plain = [one for one in get_args(kind) if one is not type(None)]
    if type(None) in get_args(kind) and len(plain) == 1:
        return _form(plain[0])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Form.CHOICE, kind
    simple = {int: Form.NUMBER, str: Form.TEXT, bool: Form.SWITCH}
    if get_origin(kind) is frozenset:
        return Form.NAMES, None
    if get_args(kind) == (str, ...):
        return Form.LIST, None
    if get_origin(kind) is Mapping and get_args(kind) == (str, int):
        return Form.SIZES, None
    return simple.get(kind, Form.OTHER), None


def said(value: object, others: Mapping[str, Callable[[Any], str]] | None = None) -> Iterator[str]:
    """Yield the properties of a value that differ from their defaults. others: field of form OTHER -> its printer."""
    for one in properties(type(value)):
        own = getattr(value, one.name)
        if one.required or own != one.default:
            yield (others or {})[one.name](own) if one.form is Form.OTHER else one.text(own)
