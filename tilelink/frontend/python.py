"""The Python front end: a decorator that parses the source of a function as a program.

The function is never called; its statements are those of the text language. A declaration is an assignment of
`tilelink.input(...)` or a similar call. A stage is a nested function whose parameters have extents, as defaults or
annotations (`i: Index = M`, or `i: M`). A loop over tiles is written `for s, j in tiles(ranks, S):`. Where the part of
a dimension depends on another index, it is assigned at the start of the stage: `i = M[: n[s]]`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilelink.errors import ParseError, StageError, public
from tilelink.files import lines_of
from tilelink.frontend.build import parsed_program
from tilelink.frontend.declare import last_word
from tilelink.frontend.syntax import (
    DefSyntax,
    GridSyntax,
    GroupSyntax,
    IndexSyntax,
    LetSyntax,
    ParamSyntax,
    ProgramSyntax,
    Source,
    StageSyntax,
    TensorSyntax,
)
from tilelink.frontend.variants import OPEN
from tilelink.ir.depth import deep
from tilelink.ir.program import PROPERTIES, SUM, Program

DECLARATIONS = {
    "input": "in",
    "output": "out",
    "inout": "inout",
    "kept": "kept",
    "local": "local",
    "symmetric": "symmetric",
    "table": "table",
}
STAGES = ("comm", "compute")
OPTIONS = ("symmetric", SUM, "dtype", "bound", "at_most", "default", "low", "high", "within", "on")


@public
@deep()
def program(function: Callable[..., Any]) -> Program:
    """Convert a function to a program: `@tilelink.program`. Raises ParseError and the errors of `build_program`."""
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or "<python>"
    except (OSError, TypeError):
        hint = "define the program as a function in a file, or write it as text"
        name = getattr(function, "__name__", repr(function))
        raise ParseError(f"the source of {name} cannot be read", hint=hint) from None
    text = textwrap.dedent("".join(lines))
    indent = len(lines[0]) - len(lines[0].lstrip())
    source = Source(file=file, lines=tuple(lines_of(text)), first_line=first, indent=indent)
    node = ast.parse(text).body[0]
    if not isinstance(node, ast.FunctionDef):
        raise ParseError("a program is a function", location=source.location(node), hint="def name(M, N): ...")
    return parsed_program(_program(node, source))


def _program(node: ast.FunctionDef, source: Source) -> ProgramSyntax:
    tensors: list[TensorSyntax] = []
    stages: list[StageSyntax] = []
    names: list[LetSyntax | DefSyntax] = []
    over: list[GridSyntax | GroupSyntax] = []
    hint = f"def {node.name}(M, N): values are given when the program is compiled"
    _plain_arguments(node, source, hint)
    own = node.args.args
    defaults: list[ast.expr | None] = [None] * (len(own) - len(node.args.defaults)) + [*node.args.defaults]
    for statement in node.body:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())):
                continue
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function, args=[value], keywords=[])) if (
                last_word(function) == "let"
            ):
                names.append(LetSyntax(name=name, value=value, node=statement))
            case ast.Assign(targets=[ast.Name(id=name) as named], value=ast.Subscript() as part):
                over.append(GroupSyntax(name=name, part=part, node=named))
            case ast.Assign(targets=[target], value=ast.Call(func=function) as call) if last_word(function) == "grid":
                over += _grid(target, call, source)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                tensors.append(_tensor(name, call, statement, source))
            case ast.FunctionDef(decorator_list=[], body=[ast.Return(value=ast.expr() as value)]):
                _plain_arguments(statement, source, f"def {statement.name}(a, b): return a + b")
                parameters = tuple(statement.args.args)
                names.append(DefSyntax(name=statement.name, parameters=parameters, value=value, node=statement))
            case ast.FunctionDef():
                stages.append(_stage(statement, source))
            case _:
                hint = "a program declares tensors and defines stages"
                raise ParseError("neither a declaration nor a stage", location=source.location(statement), hint=hint)
    return ProgramSyntax(
        name=node.name,
        params=tuple(
            ParamSyntax(
                name=arg.arg,
                kind=_kind(arg),
                node=arg,
                default=_word(default) if default is not None and _kind(arg) in OPEN else None,
                example=default if _kind(arg) not in OPEN else None,
            )
            for arg, default in zip(own, defaults, strict=True)
        ),
        tensors=tuple(tensors),
        stages=tuple(stages),
        names=tuple(names),
        over=tuple(over),
        node=node,
        source=source,
    )


def _grid(target: ast.expr, call: ast.Call, source: Source) -> list[GridSyntax]:
    """Return the dimensions of `dp, tp = tilelink.grid(None, 4)`."""
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    if len(names) != len(call.args) or call.keywords or not all(isinstance(one, ast.Name) for one in names):
        hint = "dp, tp = tilelink.grid(None, 4): a size for each name, None for the ranks that the others leave"
        raise ParseError("not a grid of ranks", location=source.location(call), hint=hint)
    sizes = [None if isinstance(one, ast.Constant) and one.value is None else one for one in call.args]
    pairs = zip(names, sizes, strict=True)
    return [GridSyntax(name=ast.unparse(name), size=size, node=name) for name, size in pairs]


def _plain_arguments(node: ast.FunctionDef, source: Source, way_out: str) -> None:
    own = node.args
    odd = [*own.posonlyargs, *own.kwonlyargs, *(a for a in (own.vararg, own.kwarg) if a)]
    if odd:
        raise ParseError("parameters are plain names", location=source.location(odd[0]), hint=way_out)


def _kind(arg: ast.arg) -> str:
    if arg.annotation is None:
        return "dim"
    word = ast.unparse(arg.annotation).strip("'\"")
    kinds = {"float": "f32", "int": "i32", "Dim": "dim", "DType": "dtype", "Function": "function"}
    return kinds.get(word.rpartition(".")[2], word)


def _tensor(name: str, call: ast.Call, node: ast.stmt, source: Source) -> TensorSyntax:
    location = source.location(node)
    word = last_word(call.func)
    if word not in DECLARATIONS:
        hint = f"{name} = tilelink.input(M, K); also {', '.join(DECLARATIONS)}"
        raise ParseError(f"{ast.unparse(call.func)} declares nothing", location=location, hint=hint)
    options = {k.arg: k.value for k in call.keywords}
    unknown = set(options) - {*OPTIONS, *PROPERTIES}
    if unknown:
        hint = (
            "symmetric=True, dtype='f32', bound=M, at_most=M, distinct=True, replicated=True, default=0, low=1, high=M"
        )
        hint += ", within=0.01, sum=True, on=experts"
        raise ParseError(f"unknown option {sorted(map(str, unknown))[0]}", location=location, hint=hint)
    for option in ("symmetric", SUM, *PROPERTIES):
        flag = options.get(option)
        if flag is not None and not (isinstance(flag, ast.Constant) and isinstance(flag.value, bool)):
            raise ParseError(f"{option} is True or False", location=source.location(flag), hint=f"{option}=True")
    dtype, symmetric, at_most = options.get("dtype"), options.get("symmetric"), options.get("at_most")
    if at_most is not None and "bound" in options:
        hint = "bound=M, or at_most=M where M may occur"
        raise ParseError("two bounds", location=source.location(at_most), hint=hint)
    return TensorSyntax(
        name=name,
        space=DECLARATIONS[word],
        symmetric=isinstance(symmetric, ast.Constant) and bool(symmetric.value),
        shape=tuple(call.args),
        dtype=ast.unparse(dtype).strip("'\"") if dtype is not None else None,
        bound=at_most if at_most is not None else options.get("bound"),
        inclusive=at_most is not None,
        properties=tuple(p for p in PROPERTIES if isinstance(one := options.get(p), ast.Constant) and one.value),
        sums=isinstance(sums := options.get(SUM), ast.Constant) and bool(sums.value),
        node=node,
        dtype_node=dtype,
        default=options.get("default"),
        low=options.get("low"),
        high=options.get("high"),
        within=options.get("within"),
        on=options.get("on"),
    )


def _stage(node: ast.FunctionDef, source: Source) -> StageSyntax:
    match node.decorator_list:
        case [ast.Call(func=decorator, args=[], keywords=[ast.keyword(arg="on", value=on)])]:
            kind = last_word(decorator)
        case [decorator]:
            kind, on = last_word(decorator), None
        case _:
            kind, on = "", None
    if kind not in STAGES:
        hint = "put @tilelink.comm or @tilelink.compute above it, one of them and without brackets"
        hint += "; @tilelink.compute(on=experts) for a group of ranks"
        raise StageError(f"{node.name} is no stage", location=source.location(node), hint=hint)
    _plain_arguments(node, source, f"def {node.name}(i: Index = M, s: Index = ranks): its indices, by name")
    indices: list[IndexSyntax] = []
    own = node.args
    defaults: list[ast.expr | None] = [None] * (len(own.args) - len(own.defaults)) + [*own.defaults]
    for arg, default in zip(own.args, defaults, strict=True):
        extent = default or arg.annotation
        if extent is None:
            hint = f"{arg.arg}: ranks, or {arg.arg}: Index = M"
            raise ParseError(f"index {arg.arg} has no extent", location=source.location(arg), hint=hint)
        if default is not None and arg.annotation is not None and _word(arg.annotation) not in ("Index", "int"):
            hint = f"{arg.arg}: {ast.unparse(default)}, or {arg.arg}: Index = {ast.unparse(default)}"
            raise ParseError(f"index {arg.arg} has two extents", location=source.location(arg), hint=hint)
        indices.append(IndexSyntax(name=arg.arg, extent=extent, node=arg))
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    while body and (part := _part_of(indices, body[0])) is not None:
        indices[indices.index(part[0])] = _in_part(*part, body[0], source)
        body = body[1:]
    return StageSyntax(kind=kind, name=node.name, indices=tuple(indices), body=tuple(body), node=node, on=on)


def _part_of(indices: list[IndexSyntax], statement: ast.stmt) -> tuple[IndexSyntax, ast.Subscript] | None:
    """Return the index and the part of its dimension of `i = M[: n[s]]` at the start of a stage, None for another one.

    In the default of a parameter, where such a part could stand too, Python does not know the other parameters.
    """
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(slice=ast.Slice()) as part):
            return next(((one, part) for one in indices if one.name == name), None)
        case _:
            return None


def _in_part(index: IndexSyntax, part: ast.Subscript, statement: ast.stmt, source: Source) -> IndexSyntax:
    """Return an index that runs over a part of its dimension."""
    by_one = isinstance(index.extent, ast.Call) and last_word(index.extent.func) == "by" and bool(index.extent.args)
    size = index.extent.args[0] if by_one and isinstance(index.extent, ast.Call) else index.extent
    if ast.unparse(part.value) != ast.unparse(size):
        hint = f"{index.name} = {ast.unparse(size)}[...], once"
        message = f"{index.name} runs over {ast.unparse(size)}, and this is a part of {ast.unparse(part.value)}"
        raise ParseError(message, location=source.location(statement), hint=hint)
    if not (by_one and isinstance(index.extent, ast.Call)):
        return replace(index, extent=part)
    call = ast.Call(func=index.extent.func, args=[part, *index.extent.args[1:]], keywords=index.extent.keywords)
    return replace(index, extent=ast.copy_location(call, index.extent))


def _word(annotation: ast.expr) -> str:
    """The last component of an annotation, which may be quoted."""
    return last_word(annotation).strip("'\"")
