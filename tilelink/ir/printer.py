"""Programs as text; parsing the text gives an equal program."""

from __future__ import annotations

from collections.abc import Callable

from tilelink.ir.depth import deep
from tilelink.ir.program import (
    Apply,
    Assign,
    Attend,
    Barrier,
    Cast,
    Dot,
    Expand,
    Finish,
    For,
    FromScalar,
    Full,
    If,
    IndexDecl,
    Literal,
    Local,
    NetworkFence,
    NetworkQuiet,
    Notify,
    Param,
    Positions,
    Program,
    Read,
    Reduce,
    Region,
    Scan,
    SoftmaxInit,
    Stage,
    Statement,
    Store,
    Tensor,
    Transfer,
    Transpose,
    UserCall,
    Value,
    Wait,
    WholePositions,
)
from tilelink.ir.scalar import (
    Binary,
    Block,
    Choose,
    Compare,
    Coordinate,
    Index,
    Int,
    Logic,
    Lookup,
    Rank,
    Ranks,
    Scalar,
    Whole,
    add,
)
from tilelink.ir.scalar import Param as ParamRef

# Python's precedences, loosest first.
OR, AND, NOT, COMPARE, BIT_OR, XOR, BIT_AND, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(12)
_BINARY = {"+": SUM, "-": SUM, "*": PRODUCT, "//": PRODUCT, "%": PRODUCT, "^": XOR}
_APPLY = {
    "add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT),
    "eq": ("==", COMPARE), "ne": ("!=", COMPARE), "lt": ("<", COMPARE), "le": ("<=", COMPARE),
    "gt": (">", COMPARE), "ge": (">=", COMPARE), "and": ("and", AND), "or": ("or", OR),
    "floordiv": ("//", PRODUCT), "mod": ("%", PRODUCT), "bitand": ("&", BIT_AND), "bitor": ("|", BIT_OR),
    "bitxor": ("^", XOR), "shl": ("<<", SHIFT), "shr": (">>", SHIFT),
}  # fmt: skip
NOTIFY = {"tile": "producer_tile_notify", "peer": "peer_tile_notify", "rank": "rank_notify"}
WAIT = {"tile": "consumer_tile_wait", "peer": "peer_tile_wait", "rank": "rank_wait"}
BARRIER = "program_barrier"
FENCE, QUIET = "network_fence", "network_quiet"
BY_NETWORK = "by_network"
MOVE = {"push": "tile_push_data", "pull": "tile_pull_data", "copy": "rank_copy_data"}
BY_PASSES = {"put": "tile_put_data", "get": "tile_get_data", "send": "tile_send_data"}
"""Words that only lowered programs have."""
RECEIVED = "received"


Note = Callable[[Stage, Statement], str]
"""What a comment beside a statement of a stage says; "" for no comment."""


def _no_note(stage: Stage, statement: Statement) -> str:
    return ""


@deep()
def print_program(program: Program, note: Note = _no_note) -> str:
    """Return the text form of a program, with a comment beside each statement of which `note` says something."""
    params = ", ".join(map(_param, program.params))
    lines = [f"program {program.name}({params}){_over(program)}:"]
    width = max((len(t.name) for t in program.tensors), default=0)
    lines += [f"    {_tensor(t, width)}" for t in program.tensors]
    for stage in program.stages:
        lines += ["", *(f"    {line}" for line in _stage(stage, note))]
    return "\n".join(lines) + "\n"


def _over(program: Program) -> str:
    """Return the grid and the groups of ranks that the program declares."""
    sides = [d.name if d.size is None else f"{d.name} = {print_scalar(d.size)}" for d in program.grid]
    grid = [f"({', '.join(sides)})"] if sides else []
    parts = [*grid, *(f"{g.name} = ranks[{_part(g.start, g.stop)}]" for g in program.groups)]
    return f" over {', '.join(parts)}" if parts else ""


def _part(start: Scalar, stop: Scalar) -> str:
    return f"{print_scalar(start)} :" + ("" if stop == Ranks() else f" {print_scalar(stop)}")


def _param(param: Param) -> str:
    text = param.name if param.kind == "dim" else f"{param.name}: {param.kind}"
    return text if param.example is None else f"{text} = {param.example!r}"


def _tensor(tensor: Tensor, width: int) -> str:
    space = tensor.space + (" symmetric" if tensor.symmetric and tensor.space != "symmetric" else "")
    dims = ", ".join(_dim(tensor, d) for d in range(len(tensor.shape)))
    text = f"{tensor.name:<{width}} : {space} [{dims}]"
    if tensor.dtype and tensor.bound is None:
        text += f" {tensor.dtype}"
    text += " sum" * tensor.sums
    if tensor.bound is not None:
        text += "".join((_bound(tensor.bound), *(f" {word}" for word in tensor.properties)))
    if tensor.low is not None and tensor.high is not None:
        text += f" from {_end(tensor.low)} to {_end(tensor.high)}"
    text += "" if tensor.within is None else f" within {tensor.within!r}"
    return text if tensor.on is None else f"{text} on {tensor.on}"


def _dim(tensor: Tensor, dim: int) -> str:
    size, end = tensor.shape[dim], tensor.defined[dim] if tensor.defined else None
    name = f"{tensor.axes[dim]}: " if tensor.axes and tensor.axes[dim] else ""
    if end is None:
        return name + print_scalar(size)
    return f"{name}{_scalar(size, ATOM)}[:{print_scalar(end)}]"


def _bound(bound: Scalar) -> str:
    match bound:
        case Binary(op="+", left=largest, right=Int(value=1)):
            return f" <= {print_scalar(largest)}"
        case _:
            return f" < {print_scalar(bound)}"


def _end(value: Scalar | float) -> str:
    return print_scalar(value) if isinstance(value, Scalar) else repr(value)


def _stage(stage: Stage, note: Note) -> list[str]:
    head = f"{stage.kind} {stage.name}({_indices(stage.indices)}):"
    return [head, *_indent(stage.body, lambda statement: note(stage, statement))]


def _indices(indices: tuple[IndexDecl, ...]) -> str:
    return ", ".join(f"{d.name}: {print_range(d)}{_by_one(d)}" for d in indices)


def print_range(index: IndexDecl) -> str:
    """Return the dimension, or the part of it, that an index runs over."""
    if not index.counted:
        return print_scalar(index.extent)
    start, stop = ("" if end is None else print_scalar(end) for end in (index.start, index.stop))
    part = f"[{start} : {stop}]".replace(" ]", "]") if start else f"[:{stop}]"
    return _scalar(index.extent, ATOM) + part


def _by_one(index: IndexDecl) -> str:
    return " by 1" if index.number and not index.over_ranks else ""


def _indent(body: tuple[Statement, ...], note: Callable[[Statement], str]) -> list[str]:
    return [f"    {line}" for statement in body for line in _noted(statement, note)]


def _noted(statement: Statement, note: Callable[[Statement], str]) -> list[str]:
    first, *rest = _statement(statement, note)
    said = note(statement)
    return [f"{first}{f'  # {said}' if said else ''}", *rest]


def print_tensor(tensor: Tensor) -> str:
    """Return the declaration of a tensor as text."""
    return _tensor(tensor, 0)


def print_statement(statement: Statement) -> list[str]:
    """Return the lines of a statement."""
    return _statement(statement, lambda _: "")


def _statement(statement: Statement, note: Callable[[Statement], str]) -> list[str]:
    """Return the lines of a statement, with comments beside those that it contains."""
    match statement:
        case Assign(name=name, value=value):
            return [f"{name} = {print_value(value)}"]
        case Store(region=region, value=value, adds=adds):
            return [f"{print_region(region)} {'+=' if adds else '='} {print_value(value)}"]
        case Transfer(mode=mode, target=target, source=source):
            signal = f", {NOTIFY[statement.signal]}" if statement.signal is not None else ""
            return [f"{(MOVE | BY_PASSES)[mode]}({print_region(target)}, {print_value(source)}{signal})"]
        case Notify(kind=kind, region=region):
            return [f"{NOTIFY[kind]}({print_region(region)}{f', {BY_NETWORK}' if statement.by_network else ''})"]
        case Wait(kind=kind, region=region):
            return [f"{WAIT[kind]}({print_region(region)})"]
        case Barrier():
            return [f"{BARRIER}()"]
        case NetworkFence():
            return [f"{FENCE}()"]
        case NetworkQuiet():
            return [f"{QUIET}()"]
        case If(condition=condition, then=then, orelse=orelse):
            lines = [f"if {print_scalar(condition)}:", *_indent(then, note)]
            match orelse:
                case ():
                    return lines
                case (If() as other,):
                    first, *rest = _noted(other, note)
                    return [*lines, f"el{first}", *rest]
                case _:
                    return [*lines, "else:", *_indent(orelse, note)]
        case For(indices=indices, body=body):
            return [f"for ({_indices(indices)}):", *_indent(body, note)]
        case _:
            raise TypeError(f"unknown statement {type(statement).__name__}")


def print_region(region: Region) -> str:
    """Return a region as source: `xs[s, i, :] @ (rank + 1)`."""
    coords = ", ".join(":" if isinstance(c, Whole) else print_scalar(c) for c in region.coords)
    text = f"{region.tensor}[{coords}]" if coords else region.tensor
    return text if region.rank is None else f"{text} @ {_scalar(region.rank, UNARY)}"


def print_scalar(expr: Scalar) -> str:
    """Return an integer expression as source."""
    return _scalar(expr, OR)


def _wrap(text: str, precedence: int, context: int) -> str:
    return f"({text})" if precedence < context else text


def _scalar(expr: Scalar, context: int) -> str:
    match expr:
        case Int(value=value):
            return _wrap(str(value), UNARY, context)
        case ParamRef(name=name) | Index(name=name):
            return name
        case Rank():
            return "rank"
        case Ranks():
            return "ranks"
        case Binary(op="min" | "max" as op, left=a, right=b):
            return f"{op}({print_scalar(a)}, {print_scalar(b)})"
        case Binary(op=op, left=a, right=b):
            level = _BINARY[op]
            return _wrap(f"{_scalar(a, level)} {op} {_scalar(b, level + 1)}", level, context)
        case Compare(op=op, left=a, right=b):
            return _wrap(f"{_scalar(a, XOR)} {op} {_scalar(b, XOR)}", COMPARE, context)
        case Logic(op="not", args=args):
            return _wrap(f"not {_scalar(args[0], NOT)}", NOT, context)
        case Logic(op=op, args=args):
            level = AND if op == "and" else OR
            return _wrap(f" {op} ".join(_scalar(a, level + 1) for a in args), level, context)
        case Lookup(table=table, coords=coords) if coords == tuple(Coordinate(dim=d) for d in range(len(coords))):
            return table  # without dimensions, or entry by entry along those of a declaration
        case Coordinate(dim=dim, name=name):
            return name or f"coordinate {dim}"
        case Lookup(table=table, coords=coords):
            return f"{table}[{', '.join(':' if isinstance(c, Whole) else print_scalar(c) for c in coords)}]"
        case Block(start=start, size=size):
            return f"{print_scalar(start)} : {print_scalar(add(start, size))}"
        case Choose(selector=selector, values=values):
            return f"choose({print_scalar(selector)}, {', '.join(map(str, values))})"
        case _:
            raise TypeError(f"unknown scalar {type(expr).__name__}")


def print_value(value: Value) -> str:
    """Return a tile value as source."""
    return _value(value, OR)


def _value(value: Value, context: int) -> str:
    match value:
        case Read(region=region, signal=str(kind)):
            return f"{RECEIVED}({print_region(region)}, {WAIT[kind]})"
        case Read(region=region):
            return _wrap(print_region(region), ATOM if region.rank is None else PRODUCT, context)
        case Local(name=name):
            return name
        case Literal(value=number):
            return _wrap(repr(number), ATOM if isinstance(number, bool) else UNARY, context)  # `0.T` does not parse
        case FromScalar(scalar=scalar):
            return _scalar(scalar, context)
        case Apply(op="neg", args=args):
            return _wrap(f"-{_value(args[0], UNARY)}", UNARY, context)
        case Apply(op="not", args=args):
            return _wrap(f"not {_value(args[0], NOT)}", NOT, context)
        case Apply(op=op, args=args) if op in _APPLY:
            return _infix(op, args, context)
        case Transpose(value=inner):
            return f"{_value(inner, ATOM)}.T"
        case Expand(value=inner, pattern=pattern):
            return f"{_value(inner, ATOM)}[{', '.join(':' if kept else 'None' for kept in pattern)}]"
        case _:
            return _call(value)


def _infix(op: str, args: tuple[Value, ...], context: int) -> str:
    symbol, level = _APPLY[op]
    left = level + 1 if level == COMPARE else level
    return _wrap(f"{_value(args[0], left)} {symbol} {_value(args[1], level + 1)}", level, context)


def _call(value: Value) -> str:
    match value:
        case Apply(op=op, args=args):
            return f"{op}({_list(args)})"
        case Cast(value=inner, dtype=dtype):
            return f"{dtype}({print_value(inner)})"
        case Dot(left=a, right=b):
            return f"dot({print_value(a)}, {print_value(b)})"
        case Reduce(op=op, value=inner, axis=axis) | Scan(op=op, value=inner, axis=axis):
            return f"{op}({print_value(inner)}, axis={axis})"
        case Full(value=number, dtype=dtype):
            return f"zeros({dtype})" if str(number) == "0.0" else f"full({number!r}, {dtype})"
        case Positions(index=index):
            return f"pos({index})"
        case WholePositions(dim=dim):
            return f"pos({print_scalar(dim)})"
        case SoftmaxInit(dtype=dtype):
            return f"online_softmax({dtype})"
        case Attend(state=state, q=q, k=k, v=v, scale=scale, mask=mask):
            return f"attend({_list((state, q, k, v, scale, *([mask] if mask is not None else [])))})"
        case Finish(state=state):
            return f"finish({print_value(state)})"
        case UserCall(function=function, args=args):
            return f"call {function}({_list(args)})"
        case _:
            raise TypeError(f"unknown value {type(value).__name__}")


def _list(args: tuple[Value, ...]) -> str:
    return ", ".join(print_value(a) for a in args)


Program.__str__ = print_program  # pyright: ignore[reportAttributeAccessIssue]
