"""The text of generated functions: no statement whose value nothing reads, and no long line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from textwrap import dedent, wrap

WIDTH = 140
"""Most characters of a line, where it has a place to break."""
HEADS = re.compile(r"(if|elif|else|for|while|with|try|except|finally|def|class)\b")
"""Words that begin a line to which all of its statements belong."""
NAMED = re.compile(r"\w+=(?!=)")
"""How an argument begins that is given by its name."""
PURE = ("to", "minimum", "maximum", "program_id", "told", "load")
"""Functions and methods that only compute a value."""


def needed(text: str) -> str:
    """Return the statements of a function without those that give a name a value which nothing reads."""
    while unread := _unread(ast.parse(dedent(text))):
        text = "".join(line for number, line in enumerate(text.splitlines(keepends=True), 1) if number not in unread)
    return text


def used(names: Iterable[str], text: str) -> list[str]:
    """Return the names that the code of a function has in it."""
    code = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    words = frozenset(re.findall(r"\w+", code))
    return [name for name in names if name in words]


def _unread(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines of statements that nothing needs, and that are not all of a block."""
    nodes = list(ast.walk(tree))
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    read |= {node.target.id for node in nodes if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)}
    found: set[int] = set()
    for node in nodes:
        block: list[ast.stmt] = getattr(node, "body", [])
        some = [one for one in block if _is_pure(one, read)]
        for one in some if len(some) < len(block) else ():
            found |= set(range(one.lineno, (one.end_lineno or one.lineno) + 1))
    return found


def _is_pure(statement: ast.stmt, read: set[str]) -> bool:
    """True if a statement only gives names a value that are not read."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            calls = (node.func for node in ast.walk(value) if isinstance(node, ast.Call))
            return name not in read and all(isinstance(one, ast.Attribute) and one.attr in PURE for one in calls)
        case _:
            return False


def wrapped(text: str) -> str:
    """Return source whose lines are no longer than WIDTH, as far as they have places to break."""
    return "".join(f"{part}\n" for line in text.split("\n")[:-1] for part in _parts(line))


def _parts(line: str) -> Iterator[str]:
    body = line.lstrip()
    indent = line[: len(line) - len(body)]
    if len(line) > WIDTH and (mark := re.match(r"#\s*", body)) is not None:
        head = indent + mark[0]
        body = body[mark.end() :]
        yield from wrap(
            body, WIDTH, initial_indent=head, subsequent_indent=f"{head}    ", break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        return
    start, head, places = 0, indent, list(_breaks(body))
    for end in _ends(body, places) if len(line) > WIDTH else (len(body),):
        while len(head) + end - start > WIDTH and (ahead := [one for one in places if start < one[0] < end]):
            fitting = [one for one in ahead if one[0] <= start + WIDTH - len(head)]
            place, depth, _ = max(fitting, key=lambda one: (-one[1], one[2], one[0])) if fitting else ahead[0]
            yield f"{head}{body[start:place]}".rstrip(" " if depth else "; ")
            start, head = place, f"{indent}        " if depth else indent
        yield f"{head}{body[start:end]}".rstrip(" ")
        start, head = end, f"{indent}        "


def _ends(code: str, places: list[tuple[int, int, bool]]) -> Iterator[int]:
    """Yield where the parts of a long statement end: its arguments by place, and those by name, begin a line each."""
    if places and min(depth for _, depth, _ in places) == 1 and not NAMED.match(code, code.index("(") + 1):
        yield from [place for place, depth, _ in places if depth == 1 and NAMED.match(code, place)][:1]
    yield len(code)


def _breaks(code: str) -> Iterator[tuple[int, int, bool]]:
    """Yield the places at which a line may end: the number of brackets around each, and if it is after an argument.

    Others are before operators in brackets. There are none in a comment, nor between the statements of an `if x: a; b`.
    """
    depth, quote, alike = 0, "", HEADS.match(code) is None
    for place, one in enumerate(code):
        if quote or one in "\"'":
            quote = "" if one == quote else quote or one
            continue
        if one == "#":
            return
        depth += (one in "([") - (one in ")]")
        if (depth or alike) and code[place : place + 2] == (", " if depth else "; "):
            yield place + 2, depth, True
        elif depth and re.match(r" (?:[-+*&|<>]|>=|<=|//|%) ", code[place : place + 4]):
            yield place + 1, depth, False
