"""Statements: the bodies of stages, from Python syntax trees to the IR."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from tilelink.errors import DuplicateNameError, Location, ParseError, StageError
from tilelink.frontend.declare import (
    MOVES,
    NOTIFIES,
    PRIMITIVES,
    RESERVED,
    WAITS,
    declare,
    declare_let,
    declaring,
    group_on,
    indices_of,
    last_word,
)
from tilelink.frontend.expressions import Scope
from tilelink.frontend.groups import membership
from tilelink.frontend.limits import require_flat, require_shallow
from tilelink.frontend.scope import UNKNOWN
from tilelink.frontend.syntax import IndexSyntax, StageSyntax
from tilelink.ir.printer import BARRIER, BY_NETWORK, BY_PASSES, FENCE, QUIET
from tilelink.ir.program import (
    Apply,
    Assign,
    Barrier,
    For,
    Group,
    If,
    IndexDecl,
    Local,
    NetworkFence,
    NetworkQuiet,
    Notify,
    Read,
    Region,
    Stage,
    Statement,
    Store,
    Transfer,
    Value,
    Wait,
)
from tilelink.ir.scalar import Index, Int, Scalar, walk
from tilelink.ir.sums import shortened
from tilelink.ir.visitor import map_scalars

NETWORK = {word: mode for mode, word in BY_PASSES.items()}
"""Transfers that only lowered programs have. The checker refuses them in other programs."""


def stage_of(scope: Scope, syntax: StageSyntax, groups: Mapping[str, Group]) -> Stage:
    """Return a stage with its body. Mistakes are added to those of the scope."""
    own = scope.called.inner()
    inner = replace(scope, indices={}, locals=set(), broken=set(scope.broken), called=own, over={}, begins={})
    group: Group | None = None
    if syntax.on is not None:
        inner.on = UNKNOWN
        with scope.mistakes.noted():
            group = group_on(scope, syntax.on, groups)
            inner.on = group.name
    indices = indices_of(inner, syntax.indices)
    body: tuple[Statement, ...] = ()
    with scope.mistakes.noted():
        require_flat(scope.source, syntax.body)
        body = map_scalars(_body(inner, syntax.body), shortened)
    if group is not None and (condition := membership(group, scope.location(syntax.node))) is not None:
        body = (If(condition=condition, then=body, location=scope.location(syntax.node)),)
    return Stage(
        kind=syntax.kind,
        name=syntax.name,
        indices=indices,
        body=body,
        location=scope.location(syntax.node),
    )


def _body(scope: Scope, body: tuple[ast.stmt, ...] | list[ast.stmt]) -> tuple[Statement, ...]:
    found: list[Statement] = []
    outside, scope.called = scope.called, scope.called.inner()
    for node in body:
        if (named := _named(node)) is not None:
            with declaring(scope, named[0]):
                declare(scope, named[0], node)
                declare_let(scope, *named)
            continue
        with scope.mistakes.noted():
            statement = _statement(scope, node)
            if statement != _unchanged(statement):
                found.append(statement)
        if isinstance(node, ast.Assign | ast.AugAssign):
            _assigned(scope, node.targets[0] if isinstance(node, ast.Assign) else node.target)
    scope.called = outside
    return tuple(found)


def _unchanged(statement: Statement) -> Statement | None:
    """Return the assignment of a name to itself, which `acc += bias[j]` is where the bias is left out."""
    if not isinstance(statement, Assign):
        return None
    return replace(statement, value=Local(name=statement.name))


def _named(node: ast.stmt) -> tuple[str, ast.expr] | None:
    """Return the name and the value of a `let`, else None."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function, args=[value], keywords=[])):
            return (name, value) if last_word(function) == "let" else None
        case _:
            return None


def _assigned(scope: Scope, target: ast.expr) -> None:
    """Declare the target of an invalid assignment too, so that its uses are not reported again."""
    if isinstance(target, ast.Name) and target.id.isidentifier():
        known = (*scope.tensors, *scope.indices, *scope.params, *RESERVED)
        scope.locals |= {target.id} - set(known)


def _statement(scope: Scope, node: ast.stmt) -> Statement:
    location = scope.location(node)
    require_shallow(
        scope.source, node.test if isinstance(node, ast.If) else node.iter if isinstance(node, ast.For) else node
    )
    node = _replaced(scope, node)
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call):
            return _primitive(scope, call, name)
        case ast.Assign(targets=[target], value=value):
            return _assign(scope, node, target, scope.value(value))
        case ast.AugAssign(target=ast.Subscript() as target, op=ast.Add(), value=value) if _is_sum(scope, target):
            stored = _assign(scope, node, target, scope.value(value))
            return replace(stored, adds=True) if isinstance(stored, Store) else stored
        case ast.AugAssign(target=target, op=op, value=value):
            current = scope.value(_load(target))
            new = scope.value(ast.copy_location(ast.BinOp(left=_load(target), op=op, right=value), node))
            if isinstance(new, Apply):
                new = replace(new, args=(current, *new.args[1:]))
            return _assign(scope, node, target, new)
        case ast.If(test=test, body=then, orelse=orelse):
            condition: Scalar = Int(value=1)
            with scope.mistakes.noted():
                condition = scope.scalar(test)
            return If(condition=condition, then=_body(scope, then), orelse=_body(scope, orelse), location=location)
        case ast.For():
            return _loop(scope, node)
        case _:
            hint = "a statement is an assignment, a primitive, if, or for"
            raise ParseError("not a statement of the language", location=location, hint=hint)


def _is_sum(scope: Scope, target: ast.Subscript) -> bool:
    """True if a region is of a tensor that is declared `sum`."""
    tensor = scope.tensors.get(target.value.id) if isinstance(target.value, ast.Name) else None
    return tensor is not None and tensor.sums


def _replaced(scope: Scope, node: ast.stmt) -> ast.stmt:
    """Return a statement in which the names of `let` and `def` are replaced, but for those of its blocks.

    Raises DuplicateNameError for an assignment to such a name, ParseError for one that is misused.
    """
    result = copy(node)
    match result:
        case ast.Expr(value=value):
            result.value = scope.replaced(value)
        case ast.Assign(targets=[target], value=value):
            result.targets = [_target(scope, target)]
            result.value = scope.replaced(value)
        case ast.AugAssign(target=target, value=value):
            result.target = _target(scope, target)
            result.value = scope.replaced(value)
        case ast.If(test=test):
            result.test = scope.replaced(test)
        case _:
            return node
    require_shallow(scope.source, result.test if isinstance(result, ast.If) else result)
    return result


def _target(scope: Scope, target: Any) -> Any:
    if isinstance(target, ast.Name) and target.id in scope.called:
        hint = "assign to a new name; a region is stored to as it is written: y[i, :] = value"
        raise DuplicateNameError(f"{target.id} cannot be assigned", location=scope.location(target), hint=hint)
    return target if isinstance(target, ast.Name) else scope.replaced(target)


def _load(target: ast.expr) -> ast.expr:
    match target:
        case ast.Name(id=name):
            return ast.copy_location(ast.Name(id=name, ctx=ast.Load()), target)
        case ast.Subscript(value=value, slice=index):
            return ast.copy_location(ast.Subscript(value=value, slice=index, ctx=ast.Load()), target)
        case _:
            return target


def _assign(scope: Scope, node: ast.stmt, target: ast.expr, value: Value) -> Statement:
    location = scope.location(node)
    match target:
        case ast.Name(id=name) if name not in scope.tensors:
            if name in scope.indices or name in scope.params or name in RESERVED:
                hint = "assign to a new name"
                raise DuplicateNameError(f"{name} cannot be assigned", location=location, hint=hint)
            scope.locals.add(name)
            return Assign(name=name, value=value, location=location)
        case _:
            region = scope.region(target)
            _require_there(scope, region)
            if region.rank is not None:
                hint = "tile_push_data(region @ rank, value) writes to another rank"
                raise StageError("a store is on the own rank", location=location, hint=hint)
            return Store(region=region, value=value, location=location)


def _require_there(scope: Scope, region: Region) -> None:
    """Raise StageError for an input that is left out where only a tensor can be."""
    if region.tensor in scope.choices.left_out:
        hint = f"values read it: v + {region.tensor}[...]; or declare it without `= number`"
        raise StageError(f"{region.tensor} may be left out", location=region.location, hint=hint)


def _loop(scope: Scope, node: ast.For) -> Statement:
    names = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
    match node.iter:
        case ast.Call(func=ast.Name(id="tiles"), args=extents) as call if len(extents) == len(names):
            scope.named_arguments(call)
        case _:
            hint = "for (s: ranks, j: S): in text, for s, j in tiles(ranks, S): in Python"
            raise ParseError("not a loop over tiles", location=scope.location(node), hint=hint)
    pairs = zip(names, extents, strict=True)
    syntax = tuple(IndexSyntax(name=ast.unparse(n), extent=e, node=n) for n, e in pairs)
    if node.orelse:
        hint = "write the statements after the loop below it, without an else"
        raise ParseError("a loop has no else", location=scope.location(node.orelse[0]), hint=hint)
    outside = set(scope.broken)
    indices = indices_of(scope, syntax)
    body = _body(scope, node.body)
    for decl in indices:
        del scope.indices[decl.name]
        scope.begins.pop(decl.name, None)
    scope.broken -= {i.name for i in syntax} - outside
    return _nested(indices, body, scope.location(node))


def _nested(indices: tuple[IndexDecl, ...], body: tuple[Statement, ...], location: Location) -> For:
    """Return a loop over indices. One that is counted up to a value of an earlier one has a loop of its own in it."""
    for position, decl in enumerate(indices):
        earlier = {one.name for one in indices[:position]}
        ends = (end for end in (decl.start, decl.stop) if end is not None)
        if any(isinstance(part, Index) and part.name in earlier for end in ends for part in walk(end)):
            inner = _nested(indices[position:], body, location)
            return For(indices=indices[:position], body=(inner,), location=location)
    return For(indices=indices, body=body, location=location)


def _primitive(scope: Scope, call: ast.Call, name: str) -> Statement:
    location = scope.location(call)
    if name in (*NETWORK, FENCE, QUIET) or (len(call.args) == 2 and name in NOTIFIES):
        return _of_network(scope, call, name)
    if name not in PRIMITIVES:
        raise scope.unknown(call, name, "primitive", PRIMITIVES)
    wanted = 2 if name in MOVES else 0 if name == BARRIER else 1
    scope.named_arguments(call)
    if len(call.args) != wanted:
        message = f"{name} takes {wanted} argument{'' if wanted == 1 else 's'}, not {len(call.args)}"
        given = "target, source" if name in MOVES else "" if name == BARRIER else "region"
        raise ParseError(message, location=location, hint=f"{name}({given}), see docs/language.md")
    if name == BARRIER:
        return Barrier(location=location)
    region = scope.region(call.args[0])
    _require_there(scope, region)
    if name in NOTIFIES:
        return Notify(kind=NOTIFIES[name], region=region, location=location)
    if name in WAITS:
        return Wait(kind=WAITS[name], region=region, location=location)
    source = scope.value(call.args[1])
    if name != "tile_push_data" and not isinstance(source, Read):
        raise StageError(
            f"{name} copies a region", location=location, hint="only tile_push_data takes a computed value"
        )
    return Transfer(mode=MOVES[name], target=region, source=source, location=location)


def _of_network(scope: Scope, call: ast.Call, name: str) -> Statement:
    """Return a statement that only lowered programs have: what carries data or signals is decided by passes."""
    location = scope.location(call)
    scope.named_arguments(call)
    match call.args:
        case [] if name == FENCE:
            return NetworkFence(location=location)
        case [] if name == QUIET:
            return NetworkQuiet(location=location)
        case [target, ast.Name(id=word)] if name in NOTIFIES and word == BY_NETWORK:
            return Notify(kind=NOTIFIES[name], region=scope.region(target), by_network=True, location=location)
        case [target, value, *signal] if name in NETWORK and len(signal) <= 1:
            kinds = [NOTIFIES.get(ast.unparse(one)) for one in signal]
            source = scope.value(value)
            if (isinstance(source, Read) or NETWORK[name] == "send") and None not in kinds:
                kind = next(iter(kinds), None)
                region = scope.region(target)
                return Transfer(mode=NETWORK[name], target=region, source=source, signal=kind, location=location)
        case _:
            pass
    hint = f"tile_put_data(region @ r, region[, producer_tile_notify]), tile_get_data(region, region @ r), {FENCE}()"
    if NETWORK.get(name) == "send":
        hint = f"{name}(region @ r, value, producer_tile_notify)"
    raise ParseError(f"not a {name} of a lowered program", location=location, hint=hint)
