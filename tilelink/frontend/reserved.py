"""Checks of the names in a program, whether it was parsed or built in Python."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.errors import DuplicateNameError, Mistakes, ParseError
from tilelink.frontend.declare import RESERVED
from tilelink.ir.program import Assign, For, GridDim, Group, IndexDecl, Param, Program, Tensor
from tilelink.ir.visitor import statements
from tilelink.ir.words import foreign


def check_words(program: Program, mistakes: Mistakes) -> None:
    """Add a ParseError for each part that no text can express, and a DuplicateNameError for each reserved name."""
    for found in foreign(program):
        mistakes.add(ParseError(found.message, location=found.location, hint=found.hint))
    for node in _named(program):
        if node.name in RESERVED:
            message = f"{node.name} is a word of the language"
            mistakes.add(DuplicateNameError(message, location=node.location, hint="rename it"))


def _named(program: Program) -> Iterator[Param | Tensor | GridDim | Group | IndexDecl | Assign]:
    yield from program.params
    yield from program.tensors
    yield from program.grid
    yield from program.groups
    for stage in program.stages:
        yield from stage.indices
        for statement in statements(stage.body):
            match statement:
                case Assign():
                    yield statement
                case For(indices=indices):
                    yield from indices
                case _:
                    pass
