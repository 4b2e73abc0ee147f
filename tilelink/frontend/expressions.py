"""Conversion of expressions from Python syntax trees to tile values, with name resolution."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from tilelink.errors import Location, ParseError, UnknownNameError
from tilelink.frontend.scope import CALLED, COMPARES, FUNCTIONS, SCALAR_OPS, IntegerScope
from tilelink.frontend.variants import IDENTITY
from tilelink.ir.printer import RECEIVED, WAIT
from tilelink.ir.program import (
    DTYPES,
    ELEMENTWISE,
    INTEGERS,
    REDUCTIONS,
    SCANS,
    Apply,
    Attend,
    Cast,
    Dot,
    Expand,
    Finish,
    FromScalar,
    Full,
    Literal,
    Local,
    Positions,
    Read,
    Reduce,
    Scan,
    SoftmaxInit,
    Transpose,
    UserCall,
    Value,
    WholePositions,
)
from tilelink.ir.scalar import Binary, Index, Int, Rank, Ranks, Scalar, walk
from tilelink.ir.scalar import Param as ParamRef

ELSEWHERE = {
    "topk": "argmax in a loop `by 1`; or argsort(-v, axis=1) in a local tensor, the first of which a later stage reads",
    "softmax": "e = exp(v - max(v, axis=1)[:, None]), divided by sum(e, axis=1)[:, None]; online_softmax for attention",
    "mean": "sum(v, axis=1) / N",
    "matmul": "dot(a, b)",
}
"""Functions of other libraries -> how the language says them."""
_VALUE_OPS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.BitAnd: "bitand",
    ast.BitOr: "bitor",
    ast.BitXor: "bitxor",
    ast.LShift: "shl",
    ast.RShift: "shr",
}

_WAITED = {word: kind for kind, word in WAIT.items()}


@dataclass(kw_only=True)
class Scope(IntegerScope):
    """The names that an expression may use, and the tile values that are made of them."""

    def value(self, node: ast.expr) -> Value:
        """Convert a tile value."""
        location = self.location(node)
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                return Literal(value=number, location=location)
            case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)) if name in self.choices.left_out:
                return self._left_out(node, name)
            case ast.Name(id=name):
                return self._value_name(node, name)
            case ast.BinOp(op=ast.MatMult()):
                return Read(region=self.region(node), location=location)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(node, left, op, right)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return Literal(value=-number, location=location)
            case ast.UnaryOp(op=op, operand=operand) if isinstance(op, ast.USub | ast.Not):
                name = "neg" if isinstance(op, ast.USub) else "not"
                return Apply(op=name, args=(self.value(operand),), location=location)
            case ast.BoolOp(op=op, values=parts):
                return self._chain("and" if isinstance(op, ast.And) else "or", [self.value(p) for p in parts], location)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARES:
                name = COMPARES[type(op)][1]
                return Apply(op=name, args=(self.value(left), self.value(right)), location=location)
            case _ if self.is_place(node):
                return FromScalar(scalar=self._place(node), location=location)
            case ast.Attribute(value=inner, attr="T"):
                return Transpose(value=self.value(inner), location=location)
            case ast.Subscript(value=ast.Name(id=name)) if name in self.tensors:
                return Read(region=self.region(node), location=self.location(node))
            case ast.Subscript(value=inner, slice=index):
                value, pattern = self.value(inner), self._pattern(node, index)
                return value if self._is_constant(value) else Expand(value=value, pattern=pattern, location=location)
            case ast.Call():
                return self._call(node)
            case _:
                hint = "regions, names, numbers, + - * / // %, comparisons and functions of them are values"
                raise ParseError("not a tile value", location=location, hint=hint)

    def _left_out(self, node: ast.expr, name: str) -> Value:
        """Return the number that stands for a region of an input that is left out; the region must be a valid one."""
        self.region(node)
        constant = Literal(value=self.choices.left_out[name], location=self.location(node))
        self.constants.append(constant)
        return constant

    def _is_constant(self, value: Value) -> bool:
        return any(value is one for one in self.constants)

    def _without(self, op: ast.operator, left: Value, right: Value) -> Value | None:
        """Return what is left of an operation with the number of an input that is left out, if that changes nothing."""
        neutral = 0 if isinstance(op, ast.Add | ast.Sub) else 1 if isinstance(op, ast.Mult | ast.Div) else None
        if self._is_constant(right) and isinstance(right, Literal) and right.value == neutral:
            return left
        if isinstance(op, ast.Add | ast.Mult) and self._is_constant(left):
            return right if isinstance(left, Literal) and left.value == neutral else None
        return None

    def _chain(self, op: str, parts: list[Value], location: Location) -> Value:
        result = parts[0]
        for part in parts[1:]:
            result = Apply(op=op, args=(result, part), location=location)
        return result

    def _value_name(self, node: ast.expr, name: str) -> Value:
        location = self.location(node)
        if name in self.locals:
            return Local(name=name, location=location)
        if name in self.tensors:
            return Read(region=self.region(node), location=location)
        return FromScalar(scalar=self._scalar_name(node, name), location=location)

    def _binary(self, node: ast.expr, left: ast.expr, op: ast.operator, right: ast.expr) -> Value:
        location = self.location(node)
        if type(op) in (ast.FloorDiv, ast.Mod, ast.BitXor) and self._is_integer(node):
            return FromScalar(scalar=self.scalar(node), location=location)
        a, b = self.value(left), self.value(right)
        if (rest := self._without(op, a, b)) is not None:
            return rest
        if isinstance(a, FromScalar | Literal) and isinstance(b, FromScalar) and type(op) in SCALAR_OPS:
            if not isinstance(a, Literal) or isinstance(a.value, int):
                return self._numbers(node, op, a, b)
        elif isinstance(a, FromScalar) and _integer(b) and type(op) in SCALAR_OPS:
            return self._numbers(node, op, a, b)
        if type(op) not in _VALUE_OPS:
            hint = "tiles have + - * / // % & | ^ << >> and functions"
            raise ParseError("no such operation on tiles", location=location, hint=hint)
        return Apply(op=_VALUE_OPS[type(op)], args=(a, b), location=location)

    def _is_integer(self, node: ast.expr) -> bool:
        """True if nothing in an expression is a tile, a function of tiles or a number with a point."""
        for part in ast.walk(node):
            match part:
                case ast.Call(func=ast.Name(id=name), keywords=named):
                    if named or (name in FUNCTIONS and name not in ("min", "max")):
                        return False
                case ast.Constant(value=value) if type(value) is not int:
                    return False
                case ast.expr() if self.is_tile(part):
                    return False
                case _:
                    pass
        return True

    def _numbers(self, node: ast.expr, op: ast.operator, left: Value, right: Value) -> Value:
        """Convert arithmetic of integers: an integer expression, unless an operand is an f32 or bool parameter."""
        location = self.location(node)
        scalar = Binary(op=SCALAR_OPS[type(op)], left=_whole(left), right=_whole(right), location=location)
        floats = {p.name for p in self.params.values() if p.kind in ("f32", "bool")}
        names = {e.scalar.name for e in (left, right) if isinstance(e, FromScalar) and isinstance(e.scalar, ParamRef)}
        if names & floats:
            return Apply(op=_VALUE_OPS.get(type(op), "mul"), args=(left, right), location=location)
        return FromScalar(scalar=scalar, location=location)

    def _pattern(self, node: ast.AST, index: ast.expr) -> tuple[bool, ...]:
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        for part in parts:
            new = isinstance(part, ast.Constant) and part.value is None
            if not (new or self._is_whole(part)):
                raise ParseError("a value is viewed with : and None", location=self.location(node), hint="v[:, None]")
        return tuple(isinstance(p, ast.Slice) for p in parts)

    # Calls ---------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Value:
        location = self.location(node)
        called = ast.unparse(node.func)
        if called in ELSEWHERE and called not in (*self.choices.functions, *self.called.functions):
            raise UnknownNameError(f"unknown function {called!r}", location=location, hint=ELSEWHERE[called])
        self.named_arguments(node, *(("axis",) if called in (*REDUCTIONS, *SCANS) else ()))
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func)
        if not isinstance(node.func, ast.Name):
            hint = "a function is called by its name: exp(v), sum(v, axis=0), dot(a, b)"
            raise ParseError("not a function", location=location, hint=hint)
        name = node.func.id
        if name in self.choices.functions:
            return self._chosen(node, self.choices.functions[name])
        if name in DTYPES or name in self.choices.dtypes:
            self._arity(node, 1)
            value, dtype = self.value(node.args[0]), self._dtype(node.func)
            return value if self._is_constant(value) else Cast(value=value, dtype=dtype, location=location)
        if name in REDUCTIONS or name in SCANS:
            return self._reduce(node, name)
        if name in CALLED:
            return self._elementwise(node, name)
        builders = {
            "dot": self._dot,
            "zeros": self._zeros,
            "full": self._full,
            "pos": self._pos,
            "online_softmax": self._softmax,
            "attend": self._attend,
            "finish": self._finish,
            "call": self._user_call,
            RECEIVED: self._received,
        }
        if name not in builders:
            raise self.unknown(node, name, "function", [*FUNCTIONS, *self.called.functions])
        return builders[name](node)

    def _arity(self, node: ast.Call, *counts: int) -> None:
        if len(node.args) not in counts:
            wanted = " or ".join(map(str, counts))
            plural = "" if wanted == "1" else "s"
            message = f"{ast.unparse(node.func)} takes {wanted} argument{plural}, not {len(node.args)}"
            forms = (", ".join("abcdefgh"[:count]) for count in counts)
            hint = " or ".join(f"{ast.unparse(node.func)}({form})" for form in forms)
            raise ParseError(message, location=self.location(node), hint=hint)

    def _method(self, node: ast.Call, function: ast.Attribute) -> Value:
        if function.attr != "to":
            name = function.attr
            along = name in (*REDUCTIONS, *SCANS)
            written = f"{name}(v, axis=0)" if along else f"{name}(v)"
            known = along or name in (*CALLED, *DTYPES)
            hint = f"it is a function: {written}" if known else "a tile has .T and .to(f32); all else are functions"
            raise UnknownNameError(f"unknown method {function.attr!r}", location=self.location(node), hint=hint)
        self._arity(node, 1)
        dtype = self._dtype(node.args[0])
        return Cast(value=self.value(function.value), dtype=dtype, location=self.location(node))

    def _dtype(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name) and node.id in DTYPES:
            return node.id
        if isinstance(node, ast.Name) and node.id in self.choices.dtypes:
            if (chosen := self.choices.dtypes[node.id]) is not None:
                return chosen
            message = f"{node.id} is the program's element type, which values are not told"
            hint = f"give {node.id} a default: {node.id}: dtype = f32"
            raise ParseError(message, location=self.location(node), hint=hint)
        raise self.unknown(node, ast.unparse(node), "dtype", list(DTYPES))

    def _chosen(self, node: ast.Call, function: str) -> Value:
        """Return the call of a function that was chosen."""
        if function == IDENTITY:
            self._arity(node, 1)
            return self.value(node.args[0])
        if "." in function:
            args = tuple(self.value(a) for a in node.args)
            return UserCall(function=function, args=args, location=self.location(node))
        if len(node.args) != ELEMENTWISE[function]:
            name = ast.unparse(node.func)
            message = f"{name} is {function}, which takes {ELEMENTWISE[function]} arguments, not {len(node.args)}"
            raise ParseError(message, location=self.location(node), hint=f"choose another function for {name}")
        return self._elementwise(node, function)

    def _elementwise(self, node: ast.Call, name: str) -> Value:
        self._arity(node, ELEMENTWISE[name])
        return Apply(op=name, args=tuple(self.value(a) for a in node.args), location=self.location(node))

    def _reduce(self, node: ast.Call, name: str) -> Value:
        axes = [k.value for k in node.keywords if k.arg == "axis"] + node.args[1:]
        if name in ("max", "min") and len(node.args) == 2 and not node.keywords:
            args = (self.value(node.args[0]), self.value(node.args[1]))
            return Apply(op="maximum" if name == "max" else "minimum", args=args, location=self.location(node))
        if len(axes) != 1 or not node.args:
            raise ParseError(f"{name} of which axis?", location=self.location(node), hint=f"{name}(v, axis=0)")
        axis = self.scalar(axes[0])
        if not isinstance(axis, Int):
            raise ParseError("an axis is a number", location=self.location(axes[0]), hint=f"{name}(v, axis=0)")
        kind = Scan if name in SCANS else Reduce
        return kind(op=name, value=self.value(node.args[0]), axis=axis.value, location=self.location(node))

    def _dot(self, node: ast.Call) -> Value:
        self._arity(node, 2)
        left, right = (self.value(a) for a in node.args)
        return Dot(left=left, right=right, location=self.location(node))

    def _zeros(self, node: ast.Call) -> Value:
        self._arity(node, 1)
        return Full(value=0.0, dtype=self._dtype(node.args[0]), location=self.location(node))

    def _full(self, node: ast.Call) -> Value:
        self._arity(node, 2)
        number = self.value(node.args[0])
        if not isinstance(number, Literal):
            raise ParseError("full takes a number", location=self.location(node), hint="full(1.0, f32)")
        dtype = self._dtype(node.args[1])
        if dtype in INTEGERS and isinstance(number.value, int) and int(float(number.value)) != number.value:
            hint = "put it together: (full(1, i64) << 60) + 3"
            raise ParseError(
                f"{number.value} is no constant: those end at 2**53", location=self.location(node), hint=hint
            )
        return Full(value=float(number.value), dtype=dtype, location=self.location(node))

    def _pos(self, node: ast.Call) -> Value:
        self._arity(node, 1)
        index = node.args[0]
        if isinstance(index, ast.Name) and (index.id in self.params or index.id == "ranks"):
            return WholePositions(dim=self.scalar(index), location=self.location(node))
        if isinstance(index, ast.Name) and index.id in self.axes:
            return WholePositions(dim=self.axes[index.id].size, location=self.location(node))
        if isinstance(index, ast.BinOp):  # as of `let W = N + 1`
            size = self.scalar(index)
            if all(isinstance(part, Binary | Int | ParamRef | Ranks) for part in walk(size)):
                return WholePositions(dim=size, location=self.location(node))
            hint = (
                "pos(i) is of the tile of an index, pos(N + 1) of numbers and parameters; a shift is added: pos(i) + n"
            )
            raise ParseError(f"{ast.unparse(index)} is no size", location=self.location(node), hint=hint)
        if not (isinstance(index, ast.Name) and index.id in self.indices):
            dims = [name for name, param in self.params.items() if param.kind == "dim"]
            raise self.unknown(index, ast.unparse(index), "index or dimension", [*self.indices, *dims])
        own = Positions(index=index.id, location=self.location(node))
        begin = self.begins.get(index.id, Int(value=0))
        if begin == Int(value=0):
            return own
        first = Literal(value=begin.value) if isinstance(begin, Int) else FromScalar(scalar=begin)
        return Apply(op="add", args=(own, first), location=self.location(node))

    def _softmax(self, node: ast.Call) -> Value:
        self._arity(node, 1)
        return SoftmaxInit(dtype=self._dtype(node.args[0]), location=self.location(node))

    def _attend(self, node: ast.Call) -> Value:
        self._arity(node, 5, 6)
        state, q, k, v, scale = (self.value(a) for a in node.args[:5])
        mask = self._mask(node.args[5], q, k) if len(node.args) == 6 else None
        return Attend(state=state, q=q, k=k, v=v, scale=scale, mask=mask, location=self.location(node))

    def _mask(self, node: ast.expr, q: Value, k: Value) -> Value:
        """Convert a mask: a tile as it is; a flag selects a causal mask from the row positions of q and k."""
        mask = self.value(node)
        flag = isinstance(mask, Literal) and isinstance(mask.value, bool)
        named = isinstance(mask, FromScalar) and isinstance(mask.scalar, ParamRef)
        if not (flag or named):
            return mask
        rows = Expand(value=self._row_positions(node, q), pattern=(True, False))
        causal = Apply(op="ge", args=(rows, self._row_positions(node, k)), location=self.location(node))
        free = Apply(op="not", args=(mask,), location=self.location(node))
        return Apply(op="or", args=(free, causal), location=self.location(node))

    def _row_positions(self, node: ast.expr, value: Value) -> Value:
        region = value.region if isinstance(value, Read) else None
        row = region.coords[-2] if region is not None and len(region.coords) >= 2 else None
        if region is None or not isinstance(row, Index):
            hint = "give the mask itself: pos(i)[:, None] >= pos(j)"
            raise ParseError("causality needs q[.., i, :] and k[.., j, :]", location=self.location(node), hint=hint)
        shape = self.tensors[region.tensor].shape
        pairs = zip(region.coords, shape, strict=True)
        shards = [c for c, n in pairs if isinstance(n, Ranks) and isinstance(c, Scalar)]
        shard = shards[0] if shards else Rank()
        first = FromScalar(scalar=Binary(op="*", left=shard, right=shape[-2]))
        return Apply(op="add", args=(Positions(index=row.name), first))

    def _finish(self, node: ast.Call) -> Value:
        self._arity(node, 1)
        return Finish(state=self.value(node.args[0]), location=self.location(node))

    def _received(self, node: ast.Call) -> Value:
        """Convert a read by words, which only lowered programs have. The checker refuses it in other programs."""
        match node.args:
            case [region, ast.Name(id=word)] if word in _WAITED:
                return Read(region=self.region(region), signal=_WAITED[word], location=self.location(node))
            case _:
                hint = f"{RECEIVED}(region, {WAIT['tile']})"
                raise ParseError(f"not a {RECEIVED} of a lowered program", location=self.location(node), hint=hint)

    def _user_call(self, node: ast.Call) -> Value:
        if not node.args:
            raise ParseError("call of what?", location=self.location(node), hint="call module.function(a, b)")
        args = tuple(self.value(a) for a in node.args[1:])
        return UserCall(function=ast.unparse(node.args[0]), args=args, location=self.location(node))


def _integer(value: Value) -> bool:
    return isinstance(value, Literal) and isinstance(value.value, int)


def _whole(value: Value) -> Scalar:
    """The integer expression of an integer value."""
    if isinstance(value, FromScalar):
        return value.scalar
    return Int(value=int(value.value) if isinstance(value, Literal) else 0, location=value.location)
