"""Parsers of grammars, whose tables are kept in the cache folder: to compute them takes longer than most checks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import lark
from lark import Lark
from lark.grammar import Rule
from lark.lark import PostLex
from lark.lexer import TerminalDef

from tilelink import files
from tilelink.errors import SettingsError
from tilelink.settings import settings


def lalr(text: str, postlex: PostLex | None = None) -> Lark:
    """Return the LALR parser of a grammar, whose trees have positions.

    postlex: what is between its lexer and its parser, such as an indenter.
    """
    parser = _kept(text, postlex)
    if parser is None:
        parser = Lark(text, parser="lalr", postlex=postlex, propagate_positions=True)
        _keep(text, parser)
    return parser


def _kept(text: str, postlex: PostLex | None) -> Lark | None:
    """Return the parser of kept tables, or None. Tables run no code, but they say what a program means.

    So a file that other users may have written counts as none.
    """
    try:
        path = _path(text)
        if files.distrusted(path):
            return None
        tables = json.loads(files.read(path), object_hook=_with_numbers)
        tables["data"]["options"]["postlex"] = postlex
        return Lark.load(tables)
    except Exception:  # no file, or one of another form: the tables are computed again
        return None


def _keep(text: str, parser: Lark) -> None:
    data, memo = parser.memo_serialize([TerminalDef, Rule])
    del data["options"]["postlex"]  # an object, no data
    try:
        path = _path(text)
        files.make_folder(path.parent)
        files.replace(path, json.dumps({"data": data, "memo": memo}).encode())
    except (OSError, SettingsError):  # a full disk, a folder of others, or no home: parsers need no cache
        pass


def _path(text: str) -> Path:
    """Return the file of a grammar's tables. Raises SettingsError if there is no cache folder."""
    name = sha256(f"{lark.__version__} {text}".encode()).hexdigest()[:32]
    return settings().cache / "grammars" / f"{name}.json"


def _with_numbers(table: Mapping[str, Any]) -> dict[str | int, Any]:
    """Return an object of JSON, whose keys are texts, with the numbers that they were. No name is a number."""
    return {int(key) if key.isdecimal() else key: value for key, value in table.items()}
