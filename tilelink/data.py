"""JSON files, and conversion of JSON values to typed values with checks. Reading executes nothing from the file."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from tilelink import files
from tilelink.errors import DataError, OutputError

MADE = "it is not as TileLink writes it; remove it to have it made again"
WHICH = "is"
"""The JSON field that holds the name of the class of a `Variant`."""
DEEPEST = 64
"""Maximum nesting of lists and objects in a JSON text."""

T = TypeVar("T")


class Variant:
    """A data class that a field may have instead of others. In JSON it says by the name of its class which it is."""


# JSON --------------------------------------------------------------------------------------------------------


def read_json(path: str | Path) -> Any:
    """Return the JSON value in a file. Raises DataError, which names the file, if it cannot be read or is not JSON."""
    try:
        raw = files.read(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {files.reason(error)}", hint="name a file with JSON text") from None
    return parse_json(raw, str(path))


def parse_json(raw: bytes, where: str) -> Any:
    """Return the value of a JSON text in UTF-8. Raises DataError if it is not one. where: names the text in errors."""
    hint = "it must be JSON, as TileLink writes it"
    try:
        text = raw.decode("utf-8")
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate can be neither shown nor stored
    except UnicodeDecodeError:
        raise DataError(f"{where} cannot be read: it is not UTF-8 text", hint=hint) from None
    except UnicodeEncodeError:
        raise DataError(f"{where} cannot be read: it has half a character", hint=hint) from None
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:
        raise DataError(f"{where} cannot be read: {error}", hint=hint) from None
    if _depth(value) > DEEPEST:
        raise _too_deep(where)
    return value


def save_output(path: str | Path, content: str | bytes) -> None:
    """Write a file that the user named. Raises OutputError if that fails."""
    try:
        files.write(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        hint = "name a file in a folder that exists"
        raise OutputError(f"{path} cannot be written: {files.reason(error)}", hint=hint) from None


def _too_deep(where: str) -> DataError:
    hint = f"it may have {DEEPEST} levels of lists and objects"
    return DataError(f"{where} cannot be read: its lists are too deep inside one another", hint=hint)


def _depth(value: Any) -> int:
    deepest, stack = 0, [(value, 1)]
    while stack and deepest <= DEEPEST:
        node, depth = stack.pop()
        if isinstance(node, dict | list):
            deepest = max(deepest, depth)
            children = node.values() if isinstance(node, dict) else node
            stack += [(child, depth + 1) for child in children if isinstance(child, dict | list)]
    return deepest


# Types -------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a value as a JSON value, from which `checked` makes an equal value.

    The value may consist of data classes, enumeration members, collections, paths and int arrays.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {WHICH: type(value).__name__, **fields} if isinstance(value, Variant) else fields
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "values": value.ravel().tolist()}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(plain, value))
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.name
    return str(value) if isinstance(value, Path) else value


def checked(kind: type[T], raw: Any, where: str) -> T:
    """Convert a JSON value to a type, for example a data class; every field must have a value.

    Raises DataError if the value does not fit. where: names the value in errors.
    """
    return _checked(kind, raw, where)


def _checked(kind: Any, raw: Any, where: str) -> Any:
    origin = typing.get_origin(kind) or kind
    if (alias := getattr(origin, "__value__", None)) is not None:  # a type alias, as NDArray is in NumPy 2.4
        origin = typing.get_origin(alias) or alias
    if origin in (typing.Union, types.UnionType):
        return _one_of(typing.get_args(kind), raw, where)
    if dataclasses.is_dataclass(origin) and isinstance(origin, type):
        return _data_class(origin, raw, where)
    if isinstance(origin, type) and issubclass(origin, Enum):
        return _member(origin, raw, where)
    if origin in _READERS:
        return _READERS[origin](typing.get_args(kind), raw, where)
    if origin is Literal:
        if raw not in typing.get_args(kind):
            raise _unfit(raw, f"one of {', '.join(map(str, typing.get_args(kind)))}", where)
        return raw
    if origin is Any:
        return raw
    raise TypeError(f"{kind} cannot be read")


def _one_of(kinds: tuple[Any, ...], raw: Any, where: str) -> Any:
    if raw is None and type(None) in kinds:
        return None
    if all(isinstance(kind, type) and issubclass(kind, Variant) for kind in kinds):
        return _variant({kind.__name__: kind for kind in kinds}, raw, where)
    (kind,) = (member for member in kinds if member is not type(None))
    return _checked(kind, raw, where)


def _variant(kinds: Mapping[str, type[Any]], raw: Any, where: str) -> Any:
    items = dict(_object(raw, where))
    which = items.pop(WHICH, None)
    if not isinstance(which, str) or which not in kinds:
        raise _unfit(which, f"one of {', '.join(kinds)}", f"{WHICH!r} of {where}")
    return _data_class(kinds[which], items, where)


def _data_class(kind: type[Any], raw: Any, where: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    items = _object(raw, where)
    for name in sorted(items.keys() - fields.keys()):
        raise DataError(f"{where} has a {name!r}, which is no field of it", hint=MADE)
    for name in fields.keys() - items.keys():
        raise DataError(f"{where} has no {name!r}", hint=MADE)
    hints = typing.get_type_hints(kind)
    return kind(**{name: _checked(hints[name], item, f"{name} of {where}") for name, item in items.items()})


def _member(kind: type[Enum], raw: Any, where: str) -> Enum:
    names = [member.name for member in kind]
    if raw not in names:
        raise _unfit(raw, f"one of {', '.join(names)}", where)
    return kind[raw]


def _object(raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise _unfit(raw, "an object", where)
    return raw


def _list(raw: Any, where: str) -> list[Any]:
    if not isinstance(raw, list):
        raise _unfit(raw, "a list", where)
    return raw


def _unfit(raw: Any, wanted: str, where: str) -> DataError:
    shown = repr(raw)
    return DataError(f"{where} is {shown if len(shown) <= 40 else shown[:40] + '...'}, not {wanted}", hint=MADE)


def _text(_: Any, raw: Any, where: str) -> str:
    if not isinstance(raw, str):
        raise _unfit(raw, "a text", where)
    return raw


def _flag(_: Any, raw: Any, where: str) -> bool:
    if not isinstance(raw, bool):
        raise _unfit(raw, "true or false", where)
    return raw


def _whole(_: Any, raw: Any, where: str) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or abs(raw) >= 2**63:
        raise _unfit(raw, "a whole number", where)
    return raw


def _number(_: Any, raw: Any, where: str) -> float:
    whole = isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) < 2**63
    if not whole and not (isinstance(raw, float) and math.isfinite(raw)):
        raise _unfit(raw, "a number", where)
    return float(raw)


def _tuple(kinds: tuple[Any, ...], raw: Any, where: str) -> tuple[Any, ...]:
    items = _list(raw, where)
    if kinds[1:] == (...,):
        return tuple(_checked(kinds[0], item, f"{n} of {where}") for n, item in enumerate(items))
    if len(items) != len(kinds):
        raise _unfit(raw, f"a list of {len(kinds)}", where)
    return tuple(_checked(kind, item, where) for kind, item in zip(kinds, items, strict=True))


def _set(kinds: tuple[Any, ...], raw: Any, where: str) -> frozenset[Any]:
    return frozenset(_checked(kinds[0], item, where) for item in _list(raw, where))


def _mapping(kinds: tuple[Any, ...], raw: Any, where: str) -> dict[str, Any]:
    return {name: _checked(kinds[1], item, f"{name} of {where}") for name, item in _object(raw, where).items()}


def _array(_: Any, raw: Any, where: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    items = _object(raw, where)
    shape = [_whole((), size, where) for size in _list(items.get("shape"), where)]
    values = [_whole((), number, where) for number in _list(items.get("values"), where)]
    if math.prod(shape) != len(values) or any(size < 0 for size in shape):
        raise _unfit(shape, f"a shape of {len(values)} numbers", where)
    return np.array(values, dtype=np.int64).reshape(shape)


_READERS: dict[Any, Callable[[tuple[Any, ...], Any, str], Any]] = {
    str: _text, bool: _flag, int: _whole, float: _number, tuple: _tuple, frozenset: _set, Mapping: _mapping,
    np.ndarray: _array, Path: lambda kinds, raw, where: Path(_text(kinds, raw, where)),
}  # fmt: skip
