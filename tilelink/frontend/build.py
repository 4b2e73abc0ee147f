"""Builder of the IR from the common syntax of the text and the Python front end."""

from __future__ import annotations

import ast
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from keyword import iskeyword
from typing import Any

from tilelink.errors import (
    DtypeError,
    DuplicateNameError,
    Location,
    ParseError,
    StageError,
    UnknownNameError,
    did_you_mean,
)
from tilelink.frontend.expressions import Scope
from tilelink.frontend.groups import axes_of_grid, axis_of_group, grid_of, group_of, membership
from tilelink.frontend.limits import require_flat, require_shallow
from tilelink.frontend.names import Function
from tilelink.frontend.scope import FUNCTIONS, UNKNOWN
from tilelink.frontend.syntax import (
    DefSyntax,
    GridSyntax,
    GroupSyntax,
    IndexSyntax,
    LetSyntax,
    ParamSyntax,
    ProgramSyntax,
    StageSyntax,
    TensorSyntax,
)
from tilelink.frontend.variants import Choices, Template, choices_of, is_open
from tilelink.ir.printer import BARRIER, BY_NETWORK, BY_PASSES, FENCE, QUIET, TILES
from tilelink.ir.program import (
    DTYPES,
    INTEGERS,
    Apply,
    Assign,
    Barrier,
    For,
    GridDim,
    Group,
    If,
    IndexDecl,
    Local,
    NetworkFence,
    NetworkQuiet,
    Notify,
    Param,
    Program,
    Read,
    Region,
    Stage,
    Statement,
    Store,
    Tensor,
    Transfer,
    Value,
    Wait,
)
from tilelink.ir.scalar import Binary, Index, Int, Scalar, walk
from tilelink.ir.sums import shortened
from tilelink.ir.visitor import map_scalars
from tilelink.ir.words import KINDS

NOTIFIES = {"producer_tile_notify": "tile", "peer_tile_notify": "peer", "rank_notify": "rank"}
WAITS = {"consumer_tile_wait": "tile", "peer_tile_wait": "peer", "rank_wait": "rank"}
MOVES = {"tile_push_data": "push", "tile_pull_data": "pull", "rank_copy_data": "copy"}
PRIMITIVES = [*NOTIFIES, *WAITS, *MOVES, BARRIER]
WORDS = (
    "program", "comm", "compute", "let", "def", "return", "by", "if", "elif", "else", "for", "not", "and", "or", "None",
    "True", "False",
)  # fmt: skip
RESERVED = {"rank", "ranks", "call", *WORDS, *PRIMITIVES}
NETWORK = {word: mode for mode, word in BY_PASSES.items()}
"""Transfers that only lowered programs have. The checker refuses them in other programs."""


def parsed_program(syntax: ProgramSyntax) -> Program:
    """Return a program with the defaults of all that it leaves open. Raises what `build_program` raises."""
    return build_program(syntax, choices_of(syntax, {}, None))


def build_program(syntax: ProgramSyntax, choices: Choices) -> Program:
    """Resolve names and build the IR. Raises the error of a mistake, or SeveralErrors."""
    scope = Scope(source=syntax.source, params={}, tensors={}, choices=choices)
    scope.broken |= set(syntax.broken)
    for param in syntax.params:
        with _declaring(scope, param.name):
            _declare(scope, param.name, param.node)
            if is_open(param):
                scope.open.add(param.name)
                continue
            if param.kind not in KINDS:
                raise scope.unknown(param.node, param.kind, "kind of parameter", [*KINDS, "dtype", "function"])
            scope.params[param.name] = Param(
                name=param.name, kind=param.kind, example=_example(scope, param), location=scope.location(param.node)
            )
    grid, groups = _over(scope, syntax.over)
    for declared in sorted((*syntax.tensors, *syntax.names), key=_place):
        with _declaring(scope, declared.name):
            _declare(scope, declared.name, declared.node)
            match declared:
                case TensorSyntax():
                    scope.tensors[declared.name] = _tensor(scope, declared, groups)
                case LetSyntax():
                    _let(scope, declared.name, declared.value)
                case DefSyntax():
                    _define(scope, declared)
    stages: list[Stage] = []
    for stage in syntax.stages:
        if iskeyword(stage.name):
            message = f"a stage cannot be called {stage.name!r}, a word of Python"
            hint = "generated source is Python, and has functions of the stages' names: choose another"
            scope.mistakes.add(ParseError(message, location=scope.location(stage.node), hint=hint))
        if any(s.name == stage.name for s in stages):
            error = DuplicateNameError(
                f"stage {stage.name} twice", location=scope.location(stage.node), hint="give each stage its own name"
            )
            scope.mistakes.add(error)
        stages.append(_stage(scope, stage, groups))
    scope.mistakes.raise_any()
    return Program(
        name=syntax.name,
        params=tuple(scope.params.values()),
        tensors=tuple(one for one in scope.tensors.values() if one.name not in choices.left_out),
        stages=tuple(stages),
        grid=grid,
        groups=tuple(groups.values()),
        location=scope.location(syntax.node),
        template=Template(syntax=syntax, build=build_program, choices=choices),
    )


def _over(scope: Scope, syntax: tuple[GridSyntax | GroupSyntax, ...]) -> tuple[tuple[GridDim, ...], dict[str, Group]]:
    """Declare the grid and the groups of ranks, and return them."""
    groups: dict[str, Group] = {}
    sides = tuple(one for one in syntax if isinstance(one, GridSyntax))
    grid: tuple[GridDim, ...] = ()
    with scope.mistakes.noted():
        scope.broken |= {one.name for one in sides}
        grid = grid_of(sides, lambda node: _number(scope, node), scope.source)
        scope.broken -= {one.name for one in sides}
    for one in syntax:
        with _declaring(scope, one.name):
            _declare(scope, one.name, one.node)
            if isinstance(one, GroupSyntax):
                groups[one.name] = group_of(one, lambda node: _number(scope, node), scope.source)
                scope.axes[one.name] = axis_of_group(groups[one.name])
            elif one.name not in scope.broken:
                scope.axes |= {one.name: axes_of_grid(grid)[one.name]}
    return grid, groups


@contextmanager
def _declaring(scope: Scope, name: str) -> Generator[None]:
    """Collect the errors of a declaration, and mark its name as broken so that its uses are not reported again."""
    count, declared = len(scope.mistakes.errors), False
    with scope.mistakes.noted():
        yield
        declared = True
    if not declared or len(scope.mistakes.errors) > count:
        scope.broken.add(name)


def _declare(scope: Scope, name: str, node: ast.AST) -> None:
    if name in RESERVED:
        raise DuplicateNameError(f"{name} is a word of the language", location=scope.location(node), hint="rename it")
    declared = (scope.params, scope.tensors, scope.indices, scope.locals, scope.called, scope.open, scope.axes)
    if any(name in one for one in declared):
        here = scope.location(node)
        first = next((one[name].location for one in (scope.params, scope.tensors, scope.indices) if name in one), None)
        raise DuplicateNameError(f"{name} is declared twice", location=here, related=first, hint="rename one of them")


def _example(scope: Scope, param: ParamSyntax) -> int | float | bool | None:
    """Return the value that commands take for a parameter. Raises ParseError for one that does not fit its kind."""
    if param.example is None:
        return None
    number = _constant(param.example)
    fits = {"dim": (int,), "i32": (int,), "bool": (bool,), "f32": (int, float)}[param.kind]
    if number is None or type(number) not in fits:
        hint = "M = 256, n: i32 = 3, scale: f32 = 0.5 or causal: bool = True"
        raise ParseError(f"no value of {param.name}", location=scope.location(param.example), hint=hint)
    if param.kind == "dim" and number < 1:
        hint = "a dimension has one element at least"
        raise ParseError(f"no size of {param.name}", location=scope.location(param.example), hint=hint)
    return number


def _constant(node: ast.expr) -> int | float | bool | None:
    """Return the number or truth value that an expression is, None for another expression."""
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case _:
            return None


def _range(scope: Scope, syntax: TensorSyntax) -> tuple[Scalar | float | None, Scalar | float | None]:
    """Return the ends of the random values of an input. Raises ParseError for what is no input of numbers."""
    if syntax.low is None or syntax.high is None:
        return None, None
    if syntax.space not in ("in", "inout") or syntax.dtype == "bool":
        hint = "random values are drawn for inputs of numbers: lengths : in [B] i32 from 1 to S"
        raise ParseError(f"{syntax.name} has no range", location=scope.location(syntax.low), hint=hint)
    return _end(scope, syntax, syntax.low), _end(scope, syntax, syntax.high)


def _end(scope: Scope, syntax: TensorSyntax, node: ast.expr) -> Scalar | float:
    number = _constant(node)
    if isinstance(number, float):
        if syntax.dtype in INTEGERS:
            hint = f"{syntax.name} holds integers"
            raise ParseError(f"{number} is no {syntax.dtype}", location=scope.location(node), hint=hint)
        return number
    return _size(scope, node)


def _within(scope: Scope, syntax: TensorSyntax) -> float | None:
    """Return the relative error up to which an output is right. Raises ParseError for what is none, or no output."""
    if syntax.within is None:
        return None
    number = _constant(syntax.within)
    if (
        syntax.space not in ("out", "inout", "kept")
        or number is None
        or isinstance(number, bool)
        or not 0 <= number < 1
    ):
        hint = "y : out [M, N] within 0.01, the largest error over the largest value"
        raise ParseError("not the tolerance of an output", location=scope.location(syntax.within), hint=hint)
    return float(number)


def _place(declared: TensorSyntax | LetSyntax | DefSyntax) -> tuple[int, int]:
    return getattr(declared.node, "lineno", 0), getattr(declared.node, "col_offset", 0)


def _let(scope: Scope, name: str, value: ast.expr) -> None:
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


def _define(scope: Scope, syntax: DefSyntax) -> None:
    """Define an integer function. Raises the error of an invalid one."""
    if syntax.name in (*FUNCTIONS, "min", "max"):
        message = f"{syntax.name} is a function of the language"
        raise DuplicateNameError(message, location=scope.location(syntax.node), hint="rename it")
    require_shallow(scope.source, syntax.value)
    inner = replace(scope, indices={}, called=scope.called.inner())
    names = tuple(one.arg for one in syntax.parameters)
    for one in syntax.parameters:
        _declare(inner, one.arg, one)
        inner.indices[one.arg] = IndexDecl(name=one.arg, extent=Int(value=1), location=scope.location(one))
    body = scope.replaced(syntax.value)
    require_shallow(scope.source, body)
    inner.scalar(body)
    scope.called.functions[syntax.name] = Function(name=syntax.name, parameters=names, body=body, node=syntax.node)


def _tensor(scope: Scope, syntax: TensorSyntax, groups: Mapping[str, Group]) -> Tensor:
    place = scope.location(syntax.node)
    word = scope.location(syntax.dtype_node) if syntax.dtype_node is not None else place
    dtypes = scope.choices.dtypes
    if syntax.dtype is not None and syntax.dtype in dtypes:
        syntax = replace(syntax, dtype=dtypes[syntax.dtype])
    if syntax.dtype is not None and syntax.dtype not in DTYPES:
        hint = did_you_mean(syntax.dtype, DTYPES, f"one of {', '.join(DTYPES)}")
        raise DtypeError(f"unknown dtype {syntax.dtype!r}", location=word, hint=hint)
    if syntax.space == "table" and syntax.bound is None:
        raise ParseError(f"table {syntax.name} has no bound", location=place, hint="rows : table [B] < M")
    if syntax.bound is not None and syntax.dtype not in (None, "i32"):
        what = "a table" if syntax.space == "table" else "an index tensor"
        hint = f"leave the dtype out: {what} holds i32 values"
        raise DtypeError(f"{what} of {syntax.dtype}", location=word, hint=hint)
    if syntax.space == "out" and syntax.bound is not None:
        hint = f"{syntax.name} : out [...] i32; peers and stages read integers from local and symmetric tensors"
        raise ParseError(f"the output {syntax.name} has a bound", location=place, hint=hint)
    _check_properties(scope, syntax)
    in_place = syntax.space in ("inout", "kept")
    if syntax.sums and (not in_place or syntax.dtype != "f32"):
        hint = f"{syntax.name} : {syntax.space if in_place else 'inout'} [...] f32 sum, "
        hint += f"and {syntax.name}[...] += value in any order"
        raise ParseError(f"{syntax.name} cannot be added to in any order", location=place, hint=hint)
    if in_place and syntax.bound is not None:
        hint = f"{syntax.name} : {syntax.space} [...] i32 holds numbers; "
        hint += "coordinates and counts come from in, local and symmetric"
        message = f"{syntax.name} has a bound, and entries of index tensors stay as they are for a launch"
        raise ParseError(message, location=place, hint=hint)
    if syntax.symmetric and syntax.space in ("inout", "local", "table"):
        hint = f"{syntax.name} : symmetric [...] is scratch that peers reach; in and out may be symmetric too"
        raise ParseError(
            f"a{'n' * (syntax.space == 'inout')} {syntax.space} tensor is never symmetric", location=place, hint=hint
        )
    low, high = _range(scope, syntax)
    shape, defined = _shape(scope, syntax)
    scope.sides[syntax.name] = tuple(_side(scope, node) for node in syntax.shape)
    integers = syntax.bound is not None and syntax.space != "table"
    return Tensor(
        name=syntax.name,
        low=low,
        high=high,
        within=_within(scope, syntax),
        space=syntax.space,
        symmetric=syntax.symmetric or syntax.space == "symmetric",
        shape=shape,
        dtype="i32" if integers else syntax.dtype if syntax.space != "table" else None,
        bound=_bound(scope, syntax),
        sums=syntax.sums,
        properties=syntax.properties,
        defined=defined,
        on=None if syntax.on is None else _group(scope, syntax.on, groups).name,
        location=place,
    )


def _check_properties(scope: Scope, syntax: TensorSyntax) -> None:
    """Raise ParseError for a promise that makes no sense."""
    place = scope.location(syntax.node)
    if syntax.properties and (syntax.bound is None or syntax.space == "table"):
        hint = f"{syntax.name} : in [T] < M {' '.join(syntax.properties)}"
        if syntax.space == "table":
            hint = f"take {syntax.properties[0]} away: all of a table is known when the program is compiled"
        raise ParseError(f"{syntax.name} cannot be {syntax.properties[0]}", location=place, hint=hint)
    if len(set(syntax.properties)) < len(syntax.properties):
        raise ParseError("one property twice", location=place, hint="name each once")
    if {"rising", "offsets"} & {*syntax.properties} and not syntax.shape:
        hint = "a tensor without dimensions has one entry"
        raise ParseError(f"{syntax.name} cannot rise", location=place, hint=hint)


def _shape(scope: Scope, syntax: TensorSyntax) -> tuple[tuple[Scalar, ...], tuple[Scalar | None, ...]]:
    """Return the shape of a tensor, and for each dimension the end of what is defined of an output or input."""
    shape: list[Scalar] = []
    defined: list[Scalar | None] = []
    for number, node in enumerate(syntax.shape):
        size, start, stop = _part(scope, node)
        if start is not None or (stop is not None and (syntax.space not in ("in", "out") or syntax.bound is not None)):
            hint = "y : out [M[:m], N] is defined, and x : in [M[:m], N] given, from the first element up to m"
            raise ParseError("a part of a dimension", location=scope.location(node), hint=hint)
        if stop is not None and syntax.space == "in" and syntax.symmetric:
            hint = f"{syntax.name} : in [...], which a stage sends to peers as far as it is given"
            raise ParseError("a part of an input that peers read", location=scope.location(node), hint=hint)
        shape.append(_size(scope, size))
        defined.append(None if stop is None else _number(replace(scope, implicit=number), stop))
    return tuple(shape), tuple(defined) if any(end is not None for end in defined) else ()


def _bound(scope: Scope, syntax: TensorSyntax) -> Scalar | None:
    """Return the bound of an index tensor, exclusive."""
    if syntax.bound is None:
        return None
    bound = _size(replace(scope, implicit=len(syntax.shape)), syntax.bound)
    return Binary(op="+", left=bound, right=Int(value=1)) if syntax.inclusive else bound


def _part(scope: Scope, node: ast.expr) -> tuple[ast.expr, ast.expr | None, ast.expr | None]:
    """Return (dimension, start, stop) of `M[start : stop]`, and of another expression (expression, None, None)."""
    match node:
        case ast.Subscript(value=size, slice=ast.Slice(lower=start, upper=stop, step=step)):
            if step is not None or (start is None and stop is None):
                hint = "M[a : b], M[a :] or M[: b]"
                raise ParseError("not a part of a dimension", location=scope.location(node), hint=hint)
            return size, start, stop
        case _:
            return node, None, None


def _stage(scope: Scope, syntax: StageSyntax, groups: Mapping[str, Group]) -> Stage:
    inner = replace(scope, indices={}, locals=set(), broken=set(scope.broken), called=scope.called.inner(), over={})
    group: Group | None = None
    if syntax.on is not None:
        inner.on = UNKNOWN
        with scope.mistakes.noted():
            group = _group(scope, syntax.on, groups)
            inner.on = group.name
    indices = _indices(inner, syntax.indices)
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


def _group(scope: Scope, node: ast.expr, groups: Mapping[str, Group]) -> Group:
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


def _number(scope: Scope, node: ast.expr) -> Scalar:
    require_shallow(scope.source, node)
    node = scope.replaced(node)
    require_shallow(scope.source, node)
    return shortened(scope.scalar(node))


def _size(scope: Scope, node: ast.expr) -> Scalar:
    """Convert an integer that is the same on all ranks, in which a coordinate or a group stands for its size."""
    return _number(replace(scope, sizes=True), node)


def _side(scope: Scope, node: ast.expr) -> str | None:
    """Return the coordinate or group whose size an extent is, None for another extent."""
    match scope.replaced(node):
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="ranks"), attr=name) if name in scope.axes:
            return name
        case _:
            return None


def _indices(scope: Scope, syntax: tuple[IndexSyntax, ...]) -> tuple[IndexDecl, ...]:
    found: list[IndexDecl] = []
    for index in syntax:
        with _declaring(scope, index.name):
            _declare(scope, index.name, index.node)
            extent, number = _by_one(scope, index.extent)
            extent, *tiles = _tiles(extent)
            size, start, stop = _part(scope, extent)
            named = zip(("start", "stop", "begin", "end"), (start, stop, *tiles), strict=False)
            ends = {name: None if end is None else _number(scope, end) for name, end in named}
            place = scope.location(index.node)
            scope.over.pop(index.name, None)
            if (side := _side(scope, size)) is not None:
                scope.over[index.name], number = side, True
            decl = IndexDecl(name=index.name, extent=_size(scope, size), number=number, location=place, **ends)
            scope.indices[index.name] = decl
            found.append(decl)
    return tuple(found)


def _tiles(extent: ast.expr) -> list[ast.expr]:
    """Return [dimension, begin, end] of `tiles(K, begin, end)`, of lowered programs, and [extent] of another one."""
    match extent:
        case ast.Call(func=ast.Name(id=name), args=[_, _, _] as parts, keywords=[]) if name == TILES:
            return parts
        case _:
            return [extent]


def _by_one(scope: Scope, extent: ast.expr) -> tuple[ast.expr, bool]:
    """Return the extent of `E by 1` and True, or another extent and False."""
    match extent:
        case ast.Call(func=function, args=[inner, ast.Constant(value=1)], keywords=[]) if _last(function) == "by":
            return inner, True
        case ast.Call(func=function) if _last(function) == "by":
            hint = "e: E by 1 makes e a number, with tiles of one element; other sizes are a schedule's: tile(e=2)"
            raise ParseError("tiles of another size than 1", location=scope.location(extent), hint=hint)
        case _:
            return extent, False


def _last(node: ast.expr) -> str:
    """Return the last component of a dotted name."""
    return ast.unparse(node).rpartition(".")[2]


def _body(scope: Scope, body: tuple[ast.stmt, ...] | list[ast.stmt]) -> tuple[Statement, ...]:
    found: list[Statement] = []
    outside, scope.called = scope.called, scope.called.inner()
    for node in body:
        if (named := _named(node)) is not None:
            with _declaring(scope, named[0]):
                _declare(scope, named[0], node)
                _let(scope, *named)
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
            return (name, value) if _last(function) == "let" else None
        case _:
            return None


def _assigned(scope: Scope, target: ast.expr) -> None:
    """Declare the target of an invalid assignment too, so that its uses are not reported again."""
    if isinstance(target, ast.Name) and target.id.isidentifier():
        known = (*scope.tensors, *scope.indices, *scope.params, *RESERVED)
        scope.locals |= {target.id} - set(known)


def _statement(scope: Scope, node: ast.stmt) -> Statement:
    place = scope.location(node)
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
            return If(condition=condition, then=_body(scope, then), orelse=_body(scope, orelse), location=place)
        case ast.For():
            return _loop(scope, node)
        case _:
            hint = "a statement is an assignment, a primitive, if, or for"
            raise ParseError("not a statement of the language", location=place, hint=hint)


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
    place = scope.location(node)
    match target:
        case ast.Name(id=name) if name not in scope.tensors:
            if name in scope.indices or name in scope.params or name in RESERVED:
                hint = "assign to a new name"
                raise DuplicateNameError(f"{name} cannot be assigned", location=place, hint=hint)
            scope.locals.add(name)
            return Assign(name=name, value=value, location=place)
        case _:
            region = scope.region(target)
            _require_there(scope, region)
            if region.rank is not None:
                hint = "tile_push_data(region @ rank, value) writes to another rank"
                raise StageError("a store is on the own rank", location=place, hint=hint)
            return Store(region=region, value=value, location=place)


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
    indices = _indices(scope, syntax)
    body = _body(scope, node.body)
    for decl in indices:
        del scope.indices[decl.name]
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
    place = scope.location(call)
    if name in (*NETWORK, FENCE, QUIET) or (len(call.args) == 2 and name in NOTIFIES):
        return _of_network(scope, call, name)
    if name not in PRIMITIVES:
        raise scope.unknown(call, name, "primitive", PRIMITIVES)
    wanted = 2 if name in MOVES else 0 if name == BARRIER else 1
    scope.named_arguments(call)
    if len(call.args) != wanted:
        message = f"{name} takes {wanted} argument{'' if wanted == 1 else 's'}, not {len(call.args)}"
        raise ParseError(message, location=place, hint="see docs/language.md")
    if name == BARRIER:
        return Barrier(location=place)
    region = scope.region(call.args[0])
    _require_there(scope, region)
    if name in NOTIFIES:
        return Notify(kind=NOTIFIES[name], region=region, location=place)
    if name in WAITS:
        return Wait(kind=WAITS[name], region=region, location=place)
    source = scope.value(call.args[1])
    if name != "tile_push_data" and not isinstance(source, Read):
        raise StageError(f"{name} copies a region", location=place, hint="only tile_push_data takes a computed value")
    return Transfer(mode=MOVES[name], target=region, source=source, location=place)


def _of_network(scope: Scope, call: ast.Call, name: str) -> Statement:
    """Return a statement that only lowered programs have: what carries data or signals is decided by passes."""
    place = scope.location(call)
    scope.named_arguments(call)
    match call.args:
        case [] if name == FENCE:
            return NetworkFence(location=place)
        case [] if name == QUIET:
            return NetworkQuiet(location=place)
        case [target, ast.Name(id=word)] if name in NOTIFIES and word == BY_NETWORK:
            return Notify(kind=NOTIFIES[name], region=scope.region(target), by_network=True, location=place)
        case [target, value, *signal] if name in NETWORK and len(signal) <= 1:
            kinds = [NOTIFIES.get(ast.unparse(one)) for one in signal]
            source = scope.value(value)
            if (isinstance(source, Read) or NETWORK[name] == "send") and None not in kinds:
                kind = next(iter(kinds), None)
                region = scope.region(target)
                return Transfer(mode=NETWORK[name], target=region, source=source, signal=kind, location=place)
        case _:
            pass
    hint = f"tile_put_data(region @ r, region[, producer_tile_notify]), tile_get_data(region, region @ r), {FENCE}()"
    if NETWORK.get(name) == "send":
        hint = f"{name}(region @ r, value, producer_tile_notify)"
    raise ParseError(f"not a {name} of a lowered program", location=place, hint=hint)
