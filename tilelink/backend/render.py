"""Rendering of nodes and kernels with the package's templates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tilelink.backend.nodes import Block, Node
from tilelink.backend.source import needed, used, wrapped


class Macros:
    """The macros of a dialect, as in `dl.wait(node, call_arguments)`.

    The first file that defines a macro takes precedence.
    """

    def __init__(self, *files: str) -> None:
        self._modules = [environment().get_template(file).module for file in files]

    def __getattr__(self, name: str) -> Any:
        for module in self._modules:
            if hasattr(module, name):
                macro = vars(self)[name] = getattr(module, name)  # found directly from now on
                return macro
        raise AttributeError(f"no template of this dialect has a macro {name}")


def body(nodes: Sequence[Node], macros: Macros, call_arguments: object) -> str:
    """Return the lines of statements, each with its newline."""
    return "".join(f"{line}\n" for line in _lines(nodes, macros, call_arguments))


def _lines(nodes: Sequence[Node], macros: Macros, call_arguments: object) -> Iterator[str]:
    for node in nodes:
        yield from filter(None, getattr(macros, node.macro)(node, call_arguments).split("\n"))
        if isinstance(node, Block):
            inner = list(_lines(node.body, macros, call_arguments))
            if all(line.lstrip().startswith("#") for line in inner):  # a comment alone is not a body in Python
                inner.append("pass")
            yield from (f"    {line}" for line in inner)


def compact(text: str) -> str:
    """Return the lines of a text, each with its newline, without empty ones: those of parts that write nothing."""
    return "".join(f"{line}\n" for line in text.split("\n") if line.strip())


def _is_using(text: str, words: str) -> bool:
    """True if source has some words in its code. A comment may have them in the name of a file."""
    return any(words in line and not line.lstrip().startswith("#") for line in text.split("\n"))


@cache
def environment() -> Environment:
    """Return the Jinja environment of the package's templates."""
    loader = PackageLoader("tilelink", "templates")
    made = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    filters: dict[str, Any] = made.filters
    names: dict[str, Any] = made.globals
    filters |= {"compact": compact, "needed": needed, "used": used, "wrapped": wrapped}
    names["body"] = body
    tests: dict[str, Any] = made.tests
    tests["using"] = _is_using
    return made
