"""Names for integers, regions and integer functions: `let` and `def`, put in where their names stand.

A `let` or a `def` is no part of a program: what it stands for replaces its name before an expression is converted. So
nothing has to be proved of it, and a region that is named once is the same in a wait, a read and a notify.
"""

from __future__ import annotations

import ast
from copy import copy
from dataclasses import dataclass, field

from tilelink.errors import ParseError
from tilelink.frontend.syntax import Source

MAX_PARTS = 4096
"""Maximum number of syntax nodes of an expression after all names have been replaced."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """An integer function: `def chunk(s, h): return s * 2 + h`. body: with the names in it replaced."""

    name: str
    parameters: tuple[str, ...]
    body: ast.expr
    node: ast.AST


@dataclass(kw_only=True)
class Names:
    """The names of `let` and `def` that are visible in a block."""

    values: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    functions: dict[str, Function] = field(default_factory=dict[str, Function])

    def __contains__(self, name: str) -> bool:
        return name in self.values or name in self.functions

    def inner(self) -> Names:
        """Return the names for a block, which may add to them."""
        return Names(values=dict(self.values), functions=dict(self.functions))

    def replaced(self, node: ast.expr, source: Source) -> ast.expr:
        """Return an expression in which names are replaced by what they stand for, at the places of the names.

        Raises ParseError for a call of a function with a wrong number of arguments, for a function without a call, and
        for an expression that becomes too large.
        """
        if not self.values and not self.functions:
            return node
        return _Replacing(names=self, source=source).replaced(node, {})


@dataclass(kw_only=True)
class _Replacing:
    """The replacement of the names in one expression."""

    names: Names
    source: Source
    parts: int = 0

    def replaced(self, node: ast.expr, arguments: dict[str, ast.expr]) -> ast.expr:
        """arguments: of the function whose body this is."""
        self._count(node)
        match node:
            case ast.Name(id=name) if name in arguments:
                return self._moved(arguments[name], node)
            case ast.Name(id=name) if name in self.names.values:
                return self._moved(self.names.values[name], node)
            case ast.Name(id=name) if name in self.names.functions:
                function = self.names.functions[name]
                hint = f"{name}({', '.join(function.parameters)})"
                raise ParseError(f"{name} is a function", location=self.source.location(node), hint=hint)
            case ast.Call(func=ast.Name(id=name)) if name in self.names.functions:
                return self._called(node, self.names.functions[name], arguments)
            case ast.Call(func=ast.Name(id="call"), args=[function, *values]):
                result = copy(node)  # the module of the function may have any name
                result.args = [function, *(self.replaced(one, arguments) for one in values)]
                return result
            case _:
                return self._rebuilt(node, arguments)

    def _called(self, node: ast.Call, function: Function, arguments: dict[str, ast.expr]) -> ast.expr:
        if node.keywords or len(node.args) != len(function.parameters):
            given = len(node.args) + len(node.keywords)
            plural = "" if len(function.parameters) == 1 else "s"
            message = f"{function.name} takes {len(function.parameters)} argument{plural}, not {given}"
            if node.keywords:
                message = f"{function.name} takes its arguments by their places"
            hint = f"{function.name}({', '.join(function.parameters)})"
            raise ParseError(message, location=self.source.location(node), hint=hint)
        own = [self.replaced(one, arguments) for one in node.args]
        body = _Replacing(names=Names(), source=self.source, parts=self.parts)
        result = body.replaced(function.body, dict(zip(function.parameters, own, strict=True)))
        self.parts = body.parts
        return self._moved(result, node)

    def _rebuilt(self, node: ast.expr, arguments: dict[str, ast.expr]) -> ast.expr:
        result = copy(node)
        for name, value in ast.iter_fields(node):
            if isinstance(node, ast.Call) and name == "func" and isinstance(value, ast.Name):
                continue  # a function of the language
            if isinstance(value, ast.expr):
                setattr(result, name, self.replaced(value, arguments))
            elif isinstance(value, list):
                setattr(result, name, [self._part(one, arguments) for one in value])
        return result

    def _part(self, node: ast.AST, arguments: dict[str, ast.expr]) -> ast.AST:
        if isinstance(node, ast.expr):
            return self.replaced(node, arguments)
        if isinstance(node, ast.keyword):
            result = copy(node)
            result.value = self.replaced(node.value, arguments)
            return result
        return node

    def _moved(self, node: ast.expr, place: ast.AST) -> ast.expr:
        """Return a copy of an expression, all of it at a place."""
        result = copy(node)
        ast.copy_location(result, place)
        for part in ast.iter_child_nodes(node):
            self._count(part, place)
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(result, name, self._moved(value, place))
            elif isinstance(value, list):
                setattr(result, name, [self._moved(v, place) if isinstance(v, ast.expr) else v for v in value])
        return result

    def _count(self, node: ast.AST, place: ast.AST | None = None) -> None:
        self.parts += 1
        if self.parts > MAX_PARTS:
            where = self.source.location(place or node)
            hint = "give a parameter or a stage of its own to a part of it"
            message = f"an expression of more than {MAX_PARTS} parts, with all names put in"
            raise ParseError(message, location=where, hint=hint)
