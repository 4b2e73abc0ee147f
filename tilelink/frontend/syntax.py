"""The common syntax of both front ends, input of the builder: declarations, and statements as Python syntax trees."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from tilelink.errors import Location


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source text for locations. first_line, indent: the position in its file, if the text is a part of one."""

    file: str
    lines: tuple[str, ...]
    first_line: int = 1
    indent: int = 0

    def location(self, node: ast.AST) -> Location:
        """Return the location of a syntax node in the file."""
        line = getattr(node, "lineno", 1)
        column = getattr(node, "col_offset", 0)
        end = getattr(node, "end_col_offset", None)
        same_line = getattr(node, "end_lineno", line) == line
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        length = (end - column) if same_line and end else max(1, len(text.rstrip()) - column)
        return Location(
            file=self.file,
            line=line + self.first_line - 1,
            column=column + self.indent + 1,
            length=max(1, length),
            text=" " * self.indent + text,
        )


@dataclass(frozen=True, kw_only=True)
class ParamSyntax:
    """A parameter. default: of one of kind dtype or function. example: of any other one."""

    name: str
    kind: str
    node: ast.AST
    default: str | None = None
    example: ast.expr | None = None


@dataclass(frozen=True, kw_only=True)
class TensorSyntax:
    name: str
    space: str
    symmetric: bool
    shape: tuple[ast.expr, ...]
    """Sizes; those of axes with names, `u: U` of a text and `u := U` in Python, as assignments."""
    dtype: str | None
    bound: ast.expr | None
    node: ast.AST
    inclusive: bool = False
    """True if the bound itself may occur: `<= M`."""
    properties: tuple[str, ...] = ()
    """A promise about the entries of an index tensor."""
    sums: bool = False
    """True if it is declared `sum`: values may be added to its elements."""
    dtype_node: ast.AST | None = None
    default: ast.expr | None = None
    """The number in place of an input that is left out."""
    low: ast.expr | None = None
    high: ast.expr | None = None
    """The smallest and the largest random value of an input."""
    within: ast.expr | None = None
    """The relative error up to which an output is right."""
    on: ast.expr | None = None
    """The group whose ranks have it; None for all."""


@dataclass(frozen=True, kw_only=True)
class IndexSyntax:
    name: str
    extent: ast.expr
    node: ast.AST


@dataclass(frozen=True, kw_only=True)
class LetSyntax:
    """`let NAME = value`, for a whole program; in a stage it is an assignment of a call of `let`."""

    name: str
    value: ast.expr
    node: ast.AST


@dataclass(frozen=True, kw_only=True)
class DefSyntax:
    """`def NAME(parameters): return value`."""

    name: str
    parameters: tuple[ast.arg, ...]
    value: ast.expr
    node: ast.AST


@dataclass(frozen=True, kw_only=True)
class GridSyntax:
    """`NAME = size`, a dimension of the grid of ranks. size: None for as many as the others leave."""

    name: str
    size: ast.expr | None
    node: ast.AST


@dataclass(frozen=True, kw_only=True)
class GroupSyntax:
    """`NAME = ranks[start : stop]`."""

    name: str
    part: ast.expr
    node: ast.AST


@dataclass(frozen=True, kw_only=True)
class StageSyntax:
    kind: str
    name: str
    indices: tuple[IndexSyntax, ...]
    body: tuple[ast.stmt, ...]
    node: ast.AST
    on: ast.expr | None = None
    """The group whose ranks execute it; None for all."""


@dataclass(frozen=True, kw_only=True)
class ProgramSyntax:
    """The syntax of a program. names: of `let` and `def`. broken: names whose declarations do not parse.

    The uses of those are not reported again.
    """

    name: str
    params: tuple[ParamSyntax, ...]
    tensors: tuple[TensorSyntax, ...]
    stages: tuple[StageSyntax, ...]
    node: ast.AST
    source: Source
    names: tuple[LetSyntax | DefSyntax, ...] = ()
    over: tuple[GridSyntax | GroupSyntax, ...] = ()
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VariantSyntax:
    """`program NAME = BASE(choices)`."""

    name: str
    base: str
    choices: tuple[tuple[str, str | bool], ...]
    node: ast.AST
    source: Source
