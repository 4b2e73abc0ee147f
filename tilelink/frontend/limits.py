"""Checks of the nesting depth, before anything walks a program recursively: of syntax trees and of programs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tilelink.errors import Location, Mistakes, ParseError
from tilelink.frontend.syntax import Source
from tilelink.ir.depth import BLOCKS, LOOPS, NUMBER_LEVELS, VALUE_LEVELS, nested_blocks, too_deep
from tilelink.ir.program import For, FromScalar, If, IndexDecl, Program, Read, Region, Statement, Value
from tilelink.ir.scalar import Scalar, children
from tilelink.ir.visitor import named, operands, value_of

Expression = Value | Scalar


def require_shallow(source: Source, node: ast.AST) -> None:
    """Raise ParseError if an expression, or a statement with its expressions, is too deep to walk."""
    if (found := too_deep(node, ast.iter_child_nodes, VALUE_LEVELS + 6)) is not None:  # 6: the statement and a region
        while not hasattr(found, "lineno"):
            found = next(iter(ast.iter_child_nodes(found)), node)
        raise _levels("an expression", VALUE_LEVELS, source.location(found))


def require_flat(source: Source, body: Iterable[ast.stmt]) -> None:
    """Raise ParseError if the blocks of a stage are nested too deep."""
    if (found := nested_blocks(body, _syntax_block)) is not None:
        raise _blocks(source.location(found.test if isinstance(found, ast.If) else found))


def check_depth(program: Program, mistakes: Mistakes) -> None:
    """Add a ParseError for each stage that is nested too deep, and for a declaration that is."""
    sizes = [size for tensor in program.tensors for size in (*tensor.shape, tensor.bound, *tensor.defined)]
    sizes += [dim.size for dim in program.grid]
    sizes += [end for group in program.groups for end in (group.start, group.stop)]
    with mistakes.noted():
        for size in (*sizes, *(end for stage in program.stages for decl in stage.indices for end in _ends(decl))):
            if size is not None:
                _require_number(size, None)
    for stage in program.stages:
        with mistakes.noted():
            if (found := nested_blocks(stage.body, _block)) is not None:
                raise _blocks(found.location)
            for statement in _statements(stage.body):
                _require_statement(statement)


def _ends(decl: IndexDecl) -> tuple[Scalar | None, ...]:
    return decl.extent, decl.start, decl.stop


def _require_statement(statement: Statement) -> None:
    if (region := named(statement)) is not None:
        _require_region(region)
    if isinstance(statement, If):
        _require_number(statement.condition, statement.location)
    if isinstance(statement, For):
        for decl in statement.indices:
            for end in _ends(decl):
                if end is not None:
                    _require_number(end, decl.location)
    value = value_of(statement)
    if value is None:
        return
    if (found := too_deep(value, operands, VALUE_LEVELS + 1)) is not None:
        raise _levels("an expression", VALUE_LEVELS, found.location or statement.location)
    stack = [value]
    while stack:
        part = stack.pop()
        stack.extend(operands(part))
        if isinstance(part, Read):
            _require_region(part.region)
        elif isinstance(part, FromScalar):
            _require_number(part.scalar, part.location or statement.location)


def _require_region(region: Region) -> None:
    for coordinate in (*region.coords, region.rank):
        if isinstance(coordinate, Scalar):
            _require_number(coordinate, region.location)


def _require_number(expr: Scalar, location: Location | None) -> None:
    if (found := too_deep(expr, children, NUMBER_LEVELS + 1)) is not None:
        raise _levels("an integer expression", NUMBER_LEVELS, found.location or expr.location or location)


def _statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    stack = [*reversed(body)]
    while stack:
        statement = stack.pop()
        yield statement
        stack.extend([*reversed(tuple(block[1]))] if (block := _block(statement)) else [])


def _block(statement: Statement) -> tuple[int, Iterable[Statement]] | None:
    match statement:
        case If(then=then, orelse=orelse):
            return 0, (*then, *orelse)
        case For(indices=indices, body=body):
            return len(indices), body
        case _:
            return None


def _syntax_block(node: ast.stmt) -> tuple[int, Iterable[ast.stmt]] | None:
    match node:
        case ast.If(body=body, orelse=orelse):
            return 0, (*body, *orelse)
        case ast.For(target=target, body=body):
            return len(target.elts) if isinstance(target, ast.Tuple) else 1, body
        case _:
            return None


def _levels(what: str, limit: int, location: Location | None) -> ParseError:
    hint = "give a part of it a name: v = ..., or a parameter for a number"
    if what == "an expression":
        hint = "give a part of it a name: v = ... on a line before"
    return ParseError(f"{what} has more than {limit} operations inside one another", location=location, hint=hint)


def _blocks(location: Location | None) -> ParseError:
    message = f"more than {BLOCKS} blocks, or {LOOPS} indices of loops, inside one another"
    return ParseError(message, location=location, hint="join conditions with and, or make a stage of a part")
