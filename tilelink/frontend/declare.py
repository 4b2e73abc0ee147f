"""Declaration of names, and the sizes and indices that declarations have: for programs and for the bodies of stages."""

from __future__ import annotations

import ast
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from tilelink.errors import DuplicateNameError, ParseError, UnknownNameError
from tilelink.frontend.expressions import Scope
from tilelink.frontend.limits import require_shallow
from tilelink.frontend.syntax import IndexSyntax
from tilelink.ir.printer import BARRIER, NOTIFY, WAIT
from tilelink.ir.program import Group, IndexDecl
from tilelink.ir.scalar import Binary, Int, Param, Ranks, Scalar, walk
from tilelink.ir.sums import shortened

NOTIFIES = {"notify": "tile", **{word: kind for kind, word in NOTIFY.items()}}
WAITS = {"wait": "tile", **{word: kind for kind, word in WAIT.items()}}
"""word -> kind of its counters. The plain words have those of tiles, and are printed by the names of that pair."""
MOVES = {"tile_push_data": "push", "tile_pull_data": "pull", "rank_copy_data": "copy"}
PRIMITIVES = [*NOTIFIES, *WAITS, *MOVES, BARRIER]
WORDS = (
    "program", "comm", "compute", "let", "def", "return", "by", "if", "elif", "else", "for", "not", "and", "or", "None",
    "True", "False",
)  # fmt: skip
RESERVED = {"rank", "ranks", "call", *WORDS, *PRIMITIVES} - {"notify", "wait"}
"""Words that nothing else is called. The plain words of signals stand where no other name does."""


@contextmanager
def declaring(scope: Scope, name: str) -> Generator[None]:
    """Collect the errors of a declaration, and mark its name as broken so that its uses are not reported again."""
    count, declared = len(scope.mistakes.errors), False
    with scope.mistakes.noted():
        yield
        declared = True
    if not declared or len(scope.mistakes.errors) > count:
        scope.broken.add(name)


def declare(scope: Scope, name: str, node: ast.AST) -> None:
    """Raise DuplicateNameError if a name is a word of the language, or declared already."""
    if name in RESERVED:
        raise DuplicateNameError(f"{name} is a word of the language", location=scope.location(node), hint="rename it")
    declared = (scope.params, scope.tensors, scope.indices, scope.locals, scope.called, scope.open, scope.axes)
    if any(name in one for one in declared):
        here = scope.location(node)
        first = next((one[name].location for one in (scope.params, scope.tensors, scope.indices) if name in one), None)
        raise DuplicateNameError(f"{name} is declared twice", location=here, related=first, hint="rename one of them")


def declare_let(scope: Scope, name: str, value: ast.expr) -> None:
    """Give an integer expression, a condition or a region a name. Raises the error of an invalid one."""
    require_shallow(scope.source, value)
    node = scope.replaced(value)
    require_shallow(scope.source, node)
    if scope.is_region(node):
        scope.region(node)
    elif any(isinstance(part, ast.expr) and scope.is_tile(part) for part in ast.walk(node)):
        hint = f"{name} = value gives a tile a name"
        raise ParseError("let names an integer or a region", location=scope.location(value), hint=hint)
    else:
        scope.scalar(node)
    scope.called.values[name] = node


def part_of(scope: Scope, node: ast.expr) -> tuple[ast.expr, ast.expr | None, ast.expr | None]:
    """Return (dimension, start, stop) of `M[start : stop]`, and of another expression (expression, None, None)."""
    match node:
        case ast.Subscript(value=size, slice=ast.Slice(lower=start, upper=stop, step=step)):
            if step is not None or (start is None and stop is None):
                hint = "M[a : b], M[a :] or M[: b]"
                raise ParseError("not a part of a dimension", location=scope.location(node), hint=hint)
            return size, start, stop
        case _:
            return node, None, None


def group_on(scope: Scope, node: ast.expr, groups: Mapping[str, Group]) -> Group:
    """Return the group after `on`. Raises UnknownNameError for another name."""
    name = ast.unparse(node)
    if name in groups:
        return groups[name]
    if name in scope.axes:
        hint = f"groups have stages and tensors: over first = ranks[0 : 1]; a stage may begin with if {name} == 0:"
        raise ParseError(f"{name} is a coordinate of the grid, and no group", location=scope.location(node), hint=hint)
    if not groups and name not in scope.broken:
        hint = "declare it: program NAME(M) over attention = ranks[0 : 2]:"
        raise UnknownNameError(f"unknown group {name!r}", location=scope.location(node), hint=hint)
    raise scope.unknown(node, name, "group", [*groups])


def integer_of(scope: Scope, node: ast.expr) -> Scalar:
    """Convert an integer expression of a declaration. Raises ParseError for one that is nested too deeply."""
    require_shallow(scope.source, node)
    node = scope.replaced(node)
    require_shallow(scope.source, node)
    return shortened(scope.scalar(node))


def size_of(scope: Scope, node: ast.expr) -> Scalar:
    """Convert an integer that is the same on all ranks, in which a coordinate or a group stands for its size."""
    return integer_of(replace(scope, sizes=True), node)


def side_of(scope: Scope, node: ast.expr) -> str | None:
    """Return the coordinate or group whose size an extent is, None for another extent."""
    match scope.replaced(node):
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="ranks"), attr=name) if name in scope.axes:
            return name
        case _:
            return None


def indices_of(scope: Scope, syntax: tuple[IndexSyntax, ...]) -> tuple[IndexDecl, ...]:
    """Declare the indices of a stage or a loop, and return them. Mistakes are added to those of the scope.

    An index over a part that is the same in every launch, `i: M[a : b]`, has its length, and stands for `a + i`.
    """
    found: list[IndexDecl] = []
    for index in syntax:
        with declaring(scope, index.name):
            declare(scope, index.name, index.node)
            extent, number = _by_one(scope, index.extent)
            size, start, stop = part_of(scope, extent)
            given = {"start": start, "stop": stop}
            ends = {name: None if end is None else integer_of(scope, end) for name, end in given.items()}
            location = scope.location(index.node)
            scope.over.pop(index.name, None)
            scope.begins.pop(index.name, None)
            if (side := side_of(scope, size)) is not None:
                scope.over[index.name], number = side, True
            whole = size_of(scope, size)
            number = number and not isinstance(whole, Ranks)  # an index over ranks is a number in any case
            if side is None and not isinstance(whole, Ranks) and _is_fixed(ends["start"], ends["stop"]):
                scope.begins[index.name] = begin = ends.pop("start") or Int(value=0)
                whole = _length(begin, ends.pop("stop") or whole)
            decl = IndexDecl(name=index.name, extent=whole, number=number, location=location, **ends)
            scope.indices[index.name] = decl
            found.append(decl)
    return tuple(found)


def _is_fixed(*ends: Scalar | None) -> bool:
    """True if the ends of a part of a dimension, of which there is one at least, are made of numbers and parameters."""
    given = [end for end in ends if end is not None]
    return bool(given) and all(isinstance(e, Int | Param | Ranks | Binary) for end in given for e in walk(end))


def _length(begin: Scalar, stop: Scalar) -> Scalar:
    return stop if begin == Int(value=0) else shortened(Binary(op="-", left=stop, right=begin))


def _by_one(scope: Scope, extent: ast.expr) -> tuple[ast.expr, bool]:
    """Return the extent of `E by 1` and True, or another extent and False."""
    match extent:
        case ast.Call(func=function, args=[inner, ast.Constant(value=1)], keywords=[]) if last_word(function) == "by":
            return inner, True
        case ast.Call(func=function) if last_word(function) == "by":
            hint = "e: E by 1 makes e a number, with tiles of one element; other sizes are a schedule's: tile(e=2)"
            raise ParseError("tiles of another size than 1", location=scope.location(extent), hint=hint)
        case _:
            return extent, False


def last_word(node: ast.expr) -> str:
    """Return the last component of a dotted name."""
    return ast.unparse(node).rpartition(".")[2]
