"""Checks of the kinds of values in their contexts: softmax states, truth values, integers, tables, user functions."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder

from tilelink import files
from tilelink.errors import DtypeError, Mistakes, ShapeError, TileLinkError, UnknownNameError
from tilelink.ir.printer import print_value
from tilelink.ir.program import (
    F8,
    INTEGERS,
    Apply,
    Assign,
    Attend,
    Dot,
    Expand,
    Finish,
    Local,
    Read,
    Reduce,
    Scan,
    Stage,
    Statement,
    Store,
    Transfer,
    Transpose,
    UserCall,
    Value,
)
from tilelink.ir.typing import COMPARISONS, StageTyping, Type, broadcast
from tilelink.ir.visitor import operands, statements, value_of, values

HOLDS = {
    "bool": ("bool",), "i8": ("i8", "bool"), "u8": ("u8", "bool"), "i32": ("i32", "i8", "u8", "bool"),
    "i64": ("i64", "i32", "i8", "u8", "bool"),
}  # fmt: skip
"""Type of integers -> the types of which it holds every value, so that they are stored in it without a cast."""


def check_kinds(stage: Stage, typing: StageTyping, mistakes: Mistakes) -> None:
    """Add a DtypeError or ShapeError for each misused value, and an UnknownNameError for each missing user function."""
    for statement in statements(stage.body):
        value = value_of(statement)
        for part in values(value) if value is not None else ():
            with mistakes.noted():
                for error in _errors(typing, part):
                    mistakes.add(error)
        with mistakes.noted():
            for error in _fit_errors(typing, statement):
                mistakes.add(error)


def _dtype(typing: StageTyping, value: Value) -> str:
    return typing.type_of(value).dtype


def _errors(typing: StageTyping, value: Value) -> Iterator[TileLinkError]:
    yield from _state_errors(typing, value)
    yield from _f8_errors(typing, value)
    match value:
        case Dot(left=left, right=right):
            yield from _dot_errors(typing, value, left, right)
        case Attend(q=q, k=k, v=v):
            for factor in (q, k, v):
                yield from _factor_errors("attend", factor, _dtype(typing, factor))
            yield from _attend_errors(typing, value)
        case Apply(op="where", args=(condition, *_)):
            yield from _truth_errors(typing, "where", condition)
        case Apply(op="and" | "or" | "not" as op, args=args):
            for arg in args:
                yield from _truth_errors(typing, op, arg)
        case Apply():
            yield from _table_errors(typing, value)
        case UserCall():
            yield from _call_errors(value)
        case _:
            pass


def _state_errors(typing: StageTyping, value: Value) -> Iterator[TileLinkError]:
    own = value.state if isinstance(value, Attend | Finish) else None
    if own is not None and (_dtype(typing, own) != "state" or not isinstance(own, Local)):
        word = "attend" if isinstance(value, Attend) else "finish"
        message = f"{word} needs the name of a softmax state, not {print_value(own)}"
        hint = "state = online_softmax(f32), then state = attend(state, ...), then finish(state)"
        yield DtypeError(message, location=own.location or value.location, hint=hint)
    if isinstance(value, Finish) and isinstance(own, Local) and typing.type_of(own) == Type(dtype="state"):
        message = f"{own.name} is a softmax state that has attended to nothing"
        yield DtypeError(message, location=own.location or value.location, hint=f"{own.name} = attend({own.name}, ...)")
    for operand in operands(value):
        if operand is not own and _dtype(typing, operand) == "state":
            message = f"{print_value(operand)} is a softmax state, no tile"
            yield DtypeError(message, location=operand.location or value.location, hint="finish(state) gives a tile")


def _f8_errors(typing: StageTyping, value: Value) -> Iterator[TileLinkError]:
    """Yield a DtypeError for arithmetic with each operand of 8 bits: a product alone takes them."""
    if not isinstance(value, Apply | Reduce | Scan | Attend | UserCall):
        return
    for operand in operands(value):
        if (dtype := _dtype(typing, operand)) in F8:
            text = print_value(operand)
            message = f"{text} is {dtype}, with which nothing is computed but products"
            yield DtypeError(message, location=operand.location or value.location, hint=f"f32({text}) holds the same")


def _dot_errors(typing: StageTyping, value: Value, left: Value, right: Value) -> Iterator[TileLinkError]:
    a, b = _dtype(typing, left), _dtype(typing, right)
    if a == b == "i8":
        return
    if "i8" in (a, b) or not {a, b}.intersection(F8):
        for factor, dtype, other in ((left, a, b), (right, b, a)):
            yield from _factor_errors("dot", factor, dtype, other)
    elif a != b:
        message = _dot_of(a, b)
        hint = f"f16({print_value(left)}) and f16({print_value(right)}) hold the same"
        if not {a, b}.issubset(F8):
            narrow, wide = (left, b) if a in F8 else (right, a)
            hint = f"{'f32' if wide == 'T' else wide}({print_value(narrow)}) holds the same"
        yield DtypeError(message, location=value.location, hint=hint)


def _factor_errors(word: str, factor: Value, dtype: str, other: str = "") -> Iterator[TileLinkError]:
    if dtype in INTEGERS:
        text = print_value(factor)
        message = f"{word} multiplies floating-point tiles, and {text} is {dtype}"
        hint = f"f32({text}) makes numbers of it"
        if word == "dot" and "i8" in (dtype, other):
            message, hint = _dot_of(dtype, other), f"two of i8 give i32; or {hint}"
        yield DtypeError(message, location=factor.location, hint=hint)


def _truth_errors(typing: StageTyping, word: str, value: Value) -> Iterator[TileLinkError]:
    dtype = _dtype(typing, value)
    if dtype not in (*INTEGERS, "state"):
        text = print_value(value)
        hint = f"compare it: {text} > 0, say"
        yield DtypeError(f"{word} needs a condition, and {text} is a number", location=value.location, hint=hint)


def _table_errors(typing: StageTyping, value: Apply) -> Iterator[TileLinkError]:
    """Yield a DtypeError for each table entry that is an operand of floating-point arithmetic.

    Table entries are positions: they may be compared and used in integer arithmetic.
    """
    if value.op in COMPARISONS or _dtype(typing, value) in INTEGERS:
        return
    for arg in value.args:
        entry = arg
        while isinstance(entry, Expand | Transpose):
            entry = entry.value
        if isinstance(entry, Read) and typing.program.tensor(entry.region.tensor).space == "table":
            text, table = print_value(entry), typing.program.tensor(entry.region.tensor)
            message = f"{text} is an entry of a table, used as a floating-point number"
            hint = f"f32({text}) makes a number of it; x[{text}, ...] uses it as a coordinate"
            yield DtypeError(message, location=arg.location, related=table.location, hint=hint)


def _attend_errors(typing: StageTyping, value: Attend) -> Iterator[TileLinkError]:
    q, k, v = (typing.type_of(x) for x in (value.q, value.k, value.v))
    if min(len(q.axes), len(k.axes), len(v.axes)) < 2:
        return
    if q.axes[-1] != k.axes[-1]:
        message = f"attend multiplies the rows of q {q} and of k {k}"
        hint = f"their last axes are {q.axes[-1]} and {k.axes[-1]} and must be the same"
        yield ShapeError(message, location=value.location, hint=hint)
    if k.axes[-2] != v.axes[-2]:
        message = f"attend needs a row of v {v} for every row of k {k}"
        hint = f"their rows are {v.axes[-2]} and {k.axes[-2]} and must be the same"
        yield ShapeError(message, location=value.location, hint=hint)
    if _dtype(typing, value.scale) not in ("state",) and typing.type_of(value.scale).axes:
        message = f"the scale {print_value(value.scale)} is a tile"
        yield ShapeError(message, location=value.scale.location, hint="one number: a parameter, or 1 / 8")
    if value.mask is not None:
        mask = typing.type_of(value.mask)
        if mask.dtype not in INTEGERS:
            hint = "a condition on positions: pos(i)[:, None] >= pos(j), or True for causality"
            location = value.mask.location or value.location
            yield DtypeError(f"the mask {print_value(value.mask)} is a number", location=location, hint=hint)
        scores = (q.axes[-2], k.axes[-2])
        if q.axes[-1] == k.axes[-1] and broadcast(scores, mask.axes, value.mask) != scores:
            hint = f"a mask says which rows of k each row of q sees: [{scores[0]}, {scores[1]}]"
            message = f"the mask {mask} does not fit the scores"
            yield ShapeError(message, location=value.mask.location or value.location, hint=hint)


def _fit_errors(typing: StageTyping, statement: Statement) -> Iterator[TileLinkError]:
    """Yield a DtypeError for an implicit conversion to an integer, and for an `attend` nested in another value."""
    match statement:
        case Store(region=region, value=value) | Transfer(target=region, source=value):
            tensor, dtype = typing.program.tensor(region.tensor), _dtype(typing, value)
            if tensor.dtype in INTEGERS and dtype not in (*HOLDS[tensor.dtype], "state"):
                message = f"{tensor.name} holds {tensor.dtype}, and {print_value(value)} is {_spoken(dtype)}"
                hint = f"{tensor.dtype}(value) says that it is meant"
                location = value.location or statement.location
                yield DtypeError(message, location=location, related=tensor.location, hint=hint)
        case Assign(value=value) if not isinstance(value, Attend):
            yield from (_hidden(v) for v in values(value) if isinstance(v, Attend))
        case _:
            pass


def _hidden(value: Value) -> TileLinkError:
    return DtypeError("attend gives a state", location=value.location, hint="assign it: state = attend(state, ...)")


def _dot_of(a: str, b: str) -> str:
    return f"dot of {' and '.join('the element type' if one == 'T' else one for one in (a, b))}"


def _spoken(dtype: str) -> str:
    return "of the element type" if dtype == "T" else dtype


# Users' functions --------------------------------------------------------------------------------------------


def _call_errors(value: UserCall) -> Iterator[TileLinkError]:
    module, _, function = value.function.rpartition(".")
    if not module:
        hint = f"call module.{function}(...): generated code imports the function from its module"
        yield UnknownNameError(f"call {function} of which module?", location=value.location, hint=hint)
        return
    names = _names_of(module)
    if names is None:
        hint = f"put {module.partition('.')[0]} where Python finds it (PYTHONPATH, or install it)"
        yield UnknownNameError(f"no module {module!r}", location=value.location, hint=hint)
    elif function not in names and "*" not in names:
        hint = f"define a @triton.jit function {function} in it"
        yield UnknownNameError(f"no {function!r} in module {module}", location=value.location, hint=hint)


def _names_of(module: str) -> set[str] | None:
    """The names that a module defines, {"*"} if unknown, None if there is no such module. Nothing is imported."""
    if module in sys.modules:
        return set(dir(sys.modules[module]))
    spec: ModuleSpec | None = None
    for number, _ in enumerate(parts := module.split(".")):
        path = list(spec.submodule_search_locations or []) if spec is not None else None
        spec = PathFinder.find_spec(".".join(parts[: number + 1]), path)
        if spec is None:
            return {"*"} if parts[0] in sys.builtin_module_names else None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return {"*"}
    try:
        return _bound(ast.parse(files.read(spec.origin)))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {"*"}  # importing the module will report the error


def _bound(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names |= {name, "*"} if name == "__getattr__" else {name}
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {(a.asname or a.name).partition(".")[0] for a in aliases}
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case _:
                pass
    return names
