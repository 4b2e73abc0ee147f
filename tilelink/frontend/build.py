"""Builder of programs from the common syntax of both front ends: parameters, grids, tensors and names."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from keyword import iskeyword

from tilelink.errors import DtypeError, DuplicateNameError, ParseError, did_you_mean
from tilelink.frontend.declare import declare, declare_let, declaring, group_on, integer_of, part_of, side_of, size_of
from tilelink.frontend.expressions import Scope
from tilelink.frontend.groups import axes_of_grid, axis_of_group, grid_of, group_of
from tilelink.frontend.limits import require_shallow
from tilelink.frontend.names import Function
from tilelink.frontend.scope import FUNCTIONS
from tilelink.frontend.statements import stage_of
from tilelink.frontend.syntax import (
    DefSyntax,
    GridSyntax,
    GroupSyntax,
    LetSyntax,
    ParamSyntax,
    ProgramSyntax,
    TensorSyntax,
)
from tilelink.frontend.variants import Choices, Template, choices_of, is_open
from tilelink.ir.link import implied
from tilelink.ir.program import ADDED, DTYPES, INTEGERS, GridDim, Group, IndexDecl, Param, Program, Stage, Tensor
from tilelink.ir.scalar import Binary, Int, Scalar
from tilelink.ir.words import KINDS


def parsed_program(syntax: ProgramSyntax, *, lowered: bool = False) -> Program:
    """Return a program with the defaults of all that it leaves open. Raises what `build_program` raises.

    lowered: True for a program that passes have made, which has all of its signals.
    """
    build = _build if lowered else build_program
    return build(syntax, choices_of(syntax, {}, None))


def build_program(syntax: ProgramSyntax, choices: Choices) -> Program:
    """Resolve names, build the IR, and put in the signals that are left out. Raises the error of a mistake, or
    SeveralErrors."""
    return implied(_build(syntax, choices))


def _build(syntax: ProgramSyntax, choices: Choices) -> Program:
    """Resolve names and build the IR of a program as it is written."""
    scope = Scope(source=syntax.source, params={}, tensors={}, choices=choices)
    scope.broken |= set(syntax.broken)
    for param in syntax.params:
        with declaring(scope, param.name):
            declare(scope, param.name, param.node)
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
        with declaring(scope, declared.name):
            declare(scope, declared.name, declared.node)
            match declared:
                case TensorSyntax():
                    scope.tensors[declared.name] = _tensor(scope, declared, groups)
                case LetSyntax():
                    declare_let(scope, declared.name, declared.value)
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
        stages.append(stage_of(scope, stage, groups))
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
        grid = grid_of(sides, lambda node: integer_of(scope, node), scope.source)
        scope.broken -= {one.name for one in sides}
    for one in syntax:
        with declaring(scope, one.name):
            declare(scope, one.name, one.node)
            if isinstance(one, GroupSyntax):
                groups[one.name] = group_of(one, lambda node: integer_of(scope, node), scope.source)
                scope.axes[one.name] = axis_of_group(groups[one.name])
            elif one.name not in scope.broken:
                scope.axes |= {one.name: axes_of_grid(grid)[one.name]}
    return grid, groups


def _example(scope: Scope, param: ParamSyntax) -> int | float | bool | None:
    """Return the value that commands take for a parameter. Raises ParseError for one that does not fit its kind."""
    if param.example is None:
        return None
    number = _constant(param.example)
    fits = {"dim": (int,), "i32": (int,), "bool": (bool,), "f32": (int, float)}[param.kind]
    if number is None or type(number) not in fits:
        hint = "M = 256, n: i32 = 3, scale: f32 = 0.5 or causal: bool = True"
        kinds = {"dim": "a dimension, an integer", "i32": "an integer", "bool": "True or False", "f32": "a number"}
        message = f"{ast.unparse(param.example)} is no value of {param.name}: it is {kinds[param.kind]}"
        raise ParseError(message, location=scope.location(param.example), hint=hint)
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
            hint = f"{syntax.name} holds integers, such as {round(number)}; f32 in its place holds numbers"
            raise ParseError(f"{number} is no {syntax.dtype}", location=scope.location(node), hint=hint)
        return number
    return size_of(scope, node)


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


def _define(scope: Scope, syntax: DefSyntax) -> None:
    """Define an integer function. Raises the error of an invalid one."""
    if syntax.name in (*FUNCTIONS, "min", "max"):
        message = f"{syntax.name} is a function of the language"
        raise DuplicateNameError(message, location=scope.location(syntax.node), hint="rename it")
    require_shallow(scope.source, syntax.value)
    inner = replace(scope, indices={}, called=scope.called.inner())
    names = tuple(one.arg for one in syntax.parameters)
    for one in syntax.parameters:
        declare(inner, one.arg, one)
        inner.indices[one.arg] = IndexDecl(name=one.arg, extent=Int(value=1), location=scope.location(one))
    body = scope.replaced(syntax.value)
    require_shallow(scope.source, body)
    inner.scalar(body)
    scope.called.functions[syntax.name] = Function(name=syntax.name, parameters=names, body=body, node=syntax.node)


def _tensor(scope: Scope, syntax: TensorSyntax, groups: Mapping[str, Group]) -> Tensor:
    location = scope.location(syntax.node)
    word = scope.location(syntax.dtype_node) if syntax.dtype_node is not None else location
    dtypes = scope.choices.dtypes
    if syntax.dtype is not None and syntax.dtype in dtypes:
        syntax = replace(syntax, dtype=dtypes[syntax.dtype])
    if syntax.dtype is not None and syntax.dtype not in DTYPES:
        hint = did_you_mean(syntax.dtype, DTYPES, f"one of {', '.join(DTYPES)}")
        raise DtypeError(f"unknown dtype {syntax.dtype!r}", location=word, hint=hint)
    if syntax.space == "table" and syntax.bound is None:
        raise ParseError(f"table {syntax.name} has no bound", location=location, hint="rows : table [B] < M")
    if syntax.bound is not None and syntax.dtype not in (None, "i32"):
        what = "a table" if syntax.space == "table" else "an index tensor"
        hint = f"leave the dtype out: {what} holds i32 values"
        raise DtypeError(f"{what} of {syntax.dtype}", location=word, hint=hint)
    if syntax.space == "out" and syntax.bound is not None:
        hint = f"{syntax.name} : out [...] i32; peers and stages read integers from local and symmetric tensors"
        raise ParseError(f"the output {syntax.name} has a bound", location=location, hint=hint)
    _check_properties(scope, syntax)
    in_place = syntax.space in ("inout", "kept")
    if syntax.sums and (not in_place or syntax.dtype not in (None, *ADDED)):
        hint = f"{syntax.name} : {syntax.space if in_place else 'inout'} [...] f32 sum, bf16 sum or f16 sum, "
        hint += f"and {syntax.name}[...] += value in any order"
        message = f"{syntax.name} cannot be a sum: tensors in place of f32, bf16 or f16 can"
        raise ParseError(message, location=location, hint=hint)
    if in_place and syntax.bound is not None:
        hint = f"{syntax.name} : {syntax.space} [...] i32 holds numbers; "
        hint += "coordinates and counts come from in, local and symmetric"
        message = f"{syntax.name} has a bound, and entries of index tensors stay as they are for a launch"
        raise ParseError(message, location=location, hint=hint)
    if syntax.symmetric and syntax.space in ("inout", "local", "table"):
        hint = f"{syntax.name} : symmetric [...] is scratch that peers reach; in and out may be symmetric too"
        raise ParseError(
            f"a{'n' * (syntax.space == 'inout')} {syntax.space} tensor is never symmetric", location=location, hint=hint
        )
    low, high = _range(scope, syntax)
    axes = _axes(scope, syntax)
    named = replace(scope, coordinates={name: dim for dim, name in enumerate(axes) if name})
    shape, defined = _shape(named, syntax)
    scope.sides[syntax.name] = tuple(side_of(scope, size_node(node)) for node in syntax.shape)
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
        bound=_bound(named, syntax),
        axes=axes,
        sums=syntax.sums,
        properties=syntax.properties,
        defined=defined,
        on=None if syntax.on is None else group_on(scope, syntax.on, groups).name,
        location=location,
    )


def _check_properties(scope: Scope, syntax: TensorSyntax) -> None:
    """Raise ParseError for a promise that makes no sense."""
    location = scope.location(syntax.node)
    if syntax.properties and (syntax.bound is None or syntax.space == "table"):
        hint = f"{syntax.name} : in [T] < M {' '.join(syntax.properties)}"
        if syntax.space == "table":
            hint = f"take {syntax.properties[0]} away: all of a table is known when the program is compiled"
        raise ParseError(f"{syntax.name} cannot be {syntax.properties[0]}", location=location, hint=hint)
    if "replicated" in syntax.properties and syntax.space != "in":
        hint = "it is a promise about what a launch is given: m : in [] <= M replicated"
        raise ParseError(f"{syntax.name} cannot be replicated", location=location, hint=hint)
    if syntax.properties and syntax.default is not None:
        hint = "an index tensor is always given: leave the default out"
        raise ParseError(f"{syntax.name} has a bound and a default", location=location, hint=hint)
    if len(set(syntax.properties)) < len(syntax.properties):
        raise ParseError("one property twice", location=location, hint="name each once")
    if {"rising", "offsets"} & {*syntax.properties} and not syntax.shape:
        hint = f"a tensor without dimensions has one entry: take the promise away, or {syntax.name} : in [T] < M rising"
        raise ParseError(f"{syntax.name} cannot rise", location=location, hint=hint)


def size_node(node: ast.expr) -> ast.expr:
    """Return the size of a dimension, of which the axis may have a name."""
    return node.value if isinstance(node, ast.NamedExpr) else node


def _axes(scope: Scope, syntax: TensorSyntax) -> tuple[str | None, ...]:
    """Return the names of the axes of a declaration, None for one without; () if no axis has a name."""
    inner = replace(scope, indices={})
    axes: list[str | None] = []
    for node in syntax.shape:
        if isinstance(node, ast.NamedExpr):
            name = node.target.id
            declare(inner, name, node.target)
            inner.indices[name] = IndexDecl(name=name, extent=Int(value=1), location=scope.location(node.target))
            axes.append(name)
        else:
            axes.append(None)
    return tuple(axes) if any(axes) else ()


def _shape(scope: Scope, syntax: TensorSyntax) -> tuple[tuple[Scalar, ...], tuple[Scalar | None, ...]]:
    """Return the shape of a tensor, and for each dimension the end of what is defined of an output or input."""
    shape: list[Scalar] = []
    defined: list[Scalar | None] = []
    for number, node in enumerate(map(size_node, syntax.shape)):
        size, start, stop = part_of(scope, node)
        if start is not None or (stop is not None and (syntax.space not in ("in", "out") or syntax.bound is not None)):
            hint = "y : out [M[:m], N] is defined, and x : in [M[:m], N] given, from the first element up to m"
            raise ParseError("a part of a dimension", location=scope.location(node), hint=hint)
        if stop is not None and syntax.space == "in" and syntax.symmetric:
            hint = f"{syntax.name} : in [...], which a stage sends to peers as far as it is given"
            raise ParseError("a part of an input that peers read", location=scope.location(node), hint=hint)
        shape.append(size_of(scope, size))
        defined.append(None if stop is None else integer_of(replace(scope, implicit=number), stop))
    return tuple(shape), tuple(defined) if any(end is not None for end in defined) else ()


def _bound(scope: Scope, syntax: TensorSyntax) -> Scalar | None:
    """Return the bound of an index tensor, exclusive."""
    if syntax.bound is None:
        return None
    bound = size_of(replace(scope, implicit=len(syntax.shape)), syntax.bound)
    return Binary(op="+", left=bound, right=Int(value=1)) if syntax.inclusive else bound
