"""Conversion of expressions from Python syntax trees to scalars, regions and tile values, with name resolution."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace

from tilelink.errors import (
    ConsequenceError,
    Location,
    Mistakes,
    ParseError,
    ShapeError,
    StageError,
    UnknownNameError,
    did_you_mean,
)
from tilelink.frontend.groups import Axis, is_arithmetic, rank_at
from tilelink.frontend.names import Names
from tilelink.frontend.syntax import Source
from tilelink.frontend.variants import IDENTITY, Choices
from tilelink.ir.intervals import MAX_INT32, Bounds
from tilelink.ir.normal import normal
from tilelink.ir.printer import RECEIVED, WAIT, print_scalar
from tilelink.ir.program import (
    DTYPES,
    ELEMENTWISE,
    INTEGER_OPS,
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
    IndexDecl,
    Literal,
    Local,
    Param,
    Positions,
    Read,
    Reduce,
    Region,
    Scan,
    SoftmaxInit,
    Tensor,
    Transpose,
    UserCall,
    Value,
    WholePositions,
)
from tilelink.ir.scalar import (
    Binary,
    Block,
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
    walk,
)
from tilelink.ir.scalar import Param as ParamRef

_ANY = Bounds(ranks=MAX_INT32)
"""For normal forms of expressions of which no ranges are known."""

_SCALAR_OPS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitXor: "^",
}
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
_COMPARES: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "eq"),
    ast.NotEq: ("!=", "ne"),
    ast.Lt: ("<", "lt"),
    ast.LtE: ("<=", "le"),
    ast.Gt: (">", "gt"),
    ast.GtE: (">=", "ge"),
}
_BUILDERS = ("dot", "zeros", "full", "pos", "online_softmax", "attend", "finish", "call")
_CALLED = tuple(name for name in ELEMENTWISE if name not in INTEGER_OPS)
"""Elementwise operations that are written as functions."""
FUNCTIONS = (*_BUILDERS, *_CALLED, *REDUCTIONS, *SCANS, *DTYPES)
"""The functions of tile values."""

_WAITED = {word: kind for kind, word in WAIT.items()}
UNKNOWN = ""
"""The group of a stage whose own group is not declared: what is wrong with its places is not reported again."""


@dataclass(kw_only=True)
class Scope:
    """The names that an expression may use. broken: names whose declarations are invalid."""

    source: Source
    params: dict[str, Param]
    tensors: dict[str, Tensor]
    indices: dict[str, IndexDecl] = field(default_factory=dict[str, IndexDecl])
    locals: set[str] = field(default_factory=set[str])
    broken: set[str] = field(default_factory=set[str])
    called: Names = field(default_factory=Names)
    """The names of `let` and `def`."""
    choices: Choices = field(default_factory=Choices)
    open: set[str] = field(default_factory=set[str])
    """The parameters that are element types or functions."""
    constants: list[Value] = field(default_factory=list[Value])
    """What stands for inputs that are left out."""
    implicit: int = 0
    """In a declaration, the number of dimensions whose coordinates a bare index tensor stands for."""
    axes: dict[str, Axis] = field(default_factory=dict[str, Axis])
    """The coordinates of the grid of ranks, and the groups."""
    over: dict[str, str] = field(default_factory=dict[str, str])
    """The indices that run over one of those."""
    sides: dict[str, tuple[str | None, ...]] = field(default_factory=dict[str, tuple[str | None, ...]])
    """The dimensions of tensors that have the size of one."""
    on: str | None = None
    """The group that executes the stage, or UNKNOWN after a mistake."""
    sizes: bool = False
    """True where the name of a coordinate or a group stands for its size: in shapes and extents."""
    mistakes: Mistakes = field(default_factory=Mistakes)

    def location(self, node: ast.AST) -> Location:
        return self.source.location(node)

    def names(self) -> list[str]:
        called = (*self.called.values, *self.called.functions)
        return [*self.params, *self.tensors, *self.indices, *self.locals, *called, *self.axes, "rank", "ranks"]

    def replaced(self, node: ast.expr) -> ast.expr:
        """Return an expression in which the names of `let` and `def` are replaced by what they stand for."""
        return self.called.replaced(node, self.source)

    def unknown(
        self, node: ast.AST, name: str, what: str = "name", known: list[str] | None = None
    ) -> UnknownNameError | ConsequenceError:
        """Return the error for an undeclared name, with the most similar declared name as hint."""
        if name in self.broken:
            return ConsequenceError(f"{name} is not declared as it should be", location=self.location(node))
        names = known or self.names()
        hint = did_you_mean(name, names) or f"known: {', '.join(names)}"
        return UnknownNameError(f"unknown {what} {name!r}", location=self.location(node), hint=hint)

    # Scalars -------------------------------------------------------------------------------------------------

    def scalar(self, node: ast.expr) -> Scalar:
        """Convert an integer expression or a condition."""
        place = self.location(node)
        match node:
            case ast.Constant(value=bool() | int() as value):
                return Int(value=int(value), location=place)
            case ast.Constant(value=None):
                raise ParseError(
                    "None is no coordinate", location=place, hint="x[i, :][:, None] adds an axis to a tile"
                )
            case ast.Name(id=name):
                return self._scalar_name(node, name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.scalar(operand)
                if isinstance(inner, Int):
                    return Int(value=-inner.value, location=place)
                return Binary(op="-", left=Int(value=0), right=inner, location=place)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Logic(op="not", args=(self.scalar(operand),), location=place)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _SCALAR_OPS:
                name = _SCALAR_OPS[type(op)]
                return Binary(op=name, left=self.scalar(left), right=self.scalar(right), location=place)
            case ast.BoolOp(op=op, values=parts):
                name = "and" if isinstance(op, ast.And) else "or"
                return Logic(op=name, args=_joined(name, [self.scalar(v) for v in parts]), location=place)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARES:
                name = _COMPARES[type(op)][0]
                one, other = self.scalar(left), self.scalar(right)
                if name in ("==", "!=") and (axis := self._compared(node)) is not None:
                    one, other = self.wrapped(one, axis), self.wrapped(other, axis)
                return Compare(op=name, left=one, right=other, location=place)
            case _ if self.is_place(node):
                return self._place(node)
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[left, right]):
                self.named_arguments(node)
                return Binary(op=name, left=self.scalar(left), right=self.scalar(right), location=place)
            case ast.Subscript(value=ast.Name(id=name)) if name in self.tensors:
                return self._entry(node, self.tensors[name], self._coords(node, self.tensors[name]))
            case ast.Subscript(value=ast.Name(id=name)) if name not in self.names():
                raise self.unknown(node.value, name, "index tensor", [*self.tensors])
            case ast.Subscript(value=ast.Name(id=name)) if name in self.params or name == "ranks":
                hint = f"an index runs over a part of a dimension: (i: {name}[a : b])"
                raise ParseError(f"{name} is no index tensor", location=place, hint=hint)
            case ast.Call(func=ast.Name(id=name)) if name not in FUNCTIONS:
                raise self.unknown(node, name, "function", ["min", "max", *self.called.functions])
            case _:
                hint = "numbers, parameters, rank, ranks, indices, entries of index tensors and + - * // % are integers"
                raise ParseError("not an integer expression", location=place, hint=hint)

    def _entry(self, node: ast.expr, tensor: Tensor, coords: tuple[Scalar | Whole, ...]) -> Lookup:
        """Return an entry of an index tensor. Raises ParseError for another tensor."""
        if tensor.bound is None:
            name = tensor.name
            hint = f"where(c, a, b) chooses by values of {name}; entries of {name} : in [...] < M are integers"
            message = f"{name} is not an index tensor"
            raise ParseError(message, location=self.location(node), related=tensor.location, hint=hint)
        launch = not tensor.known_early
        if any(isinstance(c, Block) for c in coords):
            hint = f"one entry, {tensor.name}[i], or all of a table, {tensor.name}[:]"
            raise ParseError(f"a slice of {tensor.name} is no integer", location=self.location(node), hint=hint)
        if launch and any(isinstance(c, Whole) for c in coords):
            hint = "name an entry, or its tile by an index: x[rows[i], :]"
            raise ParseError(f"all of {tensor.name} is no integer", location=self.location(node), hint=hint)
        return Lookup(table=tensor.name, coords=coords, launch=launch, location=self.location(node))

    def _bare_entry(self, node: ast.expr, name: str) -> Lookup | None:
        """Return the entry of an index tensor that is named without coordinates, or None.

        It is the only one of a tensor without dimensions. In a declaration it is the one at the coordinates of the
        dimensions before.
        """
        tensor = self.tensors.get(name)
        if tensor is None or tensor.bound is None or len(tensor.shape) > self.implicit or tensor.known_early:
            return None
        coords = tuple(Coordinate(dim=d) for d in range(len(tensor.shape)))
        return Lookup(table=name, coords=coords, launch=True, location=self.location(node))

    def _scalar_name(self, node: ast.expr, name: str) -> Scalar:
        place = self.location(node)
        if (entry := self._bare_entry(node, name)) is not None:
            return entry
        if name in self.axes:
            return self._axis(node, name)
        if name in self.indices:
            return Index(name=name, location=place)
        if name in self.params:
            return ParamRef(name=name, location=place)
        if name == "rank":
            return Rank(location=place)
        if name == "ranks":
            return Ranks(location=place)
        if name in self.tensors and self.tensors[name].bound is not None:
            dims = ", ".join(":" * len(self.tensors[name].shape))
            hint = (
                f"{name}[i] is one; in a declaration, {name} is the entry at the coordinates of the dimensions before"
            )
            raise ParseError(f"which entry of {name}[{dims}]?", location=place, hint=hint)
        if name in self.locals or name in self.tensors:
            hint = "where(c, a, b) chooses element by element; entries of an index tensor, [T] < M, are integers"
            if name in self.locals:
                hint = f"let {name} = ... names an integer; a stage computes one for others: {name} : local [] <= M"
            elif not self.tensors[name].shape:
                hint = f"with a bound it is an integer: {name} : {self.tensors[name].space} [] <= M"
            raise ParseError(f"{name} is a tile, and an integer is needed here", location=place, hint=hint)
        raise self.unknown(node, name)

    # Grids and groups of ranks -------------------------------------------------------------------------------

    def is_place(self, node: ast.expr) -> bool:
        """True for `rank.NAME`, `ranks.NAME`, `rank(NAME = place)` and `GROUP[place]`."""
        match node:
            case ast.Attribute(value=ast.Name(id="rank" | "ranks")) | ast.Call(func=ast.Name(id="rank")):
                return True
            case ast.Subscript(value=ast.Name(id=name)):
                return name in self.axes
            case _:
                return False

    def _place(self, node: ast.expr) -> Scalar:
        """Convert what `is_place` is true for."""
        place = self.location(node)
        match node:
            case ast.Attribute(value=ast.Name(id=word), attr=name):
                axis = self._named_axis(node, name)
                return replace(axis.size, location=place) if word == "ranks" else self._own(node, axis)
            case ast.Subscript(value=ast.Name(id=name), slice=index) if self.axes[name].is_group:
                if self._is_whole(index) or isinstance(index, ast.Tuple):
                    hint = f"{name}[i] is one of its ranks, from 0 on"
                    raise ParseError(f"which rank of {name}?", location=place, hint=hint)
                axis, at = self.axes[name], self.inner().scalar(index)
                return replace(axis.member(self.wrapped(at, axis)), location=place)
            case ast.Call(args=[], keywords=[_, *_] as named):
                return replace(self._moved(node, named), location=place)
            case ast.Subscript(value=ast.Name(id=name)):
                hint = f"({name} = place) after @, or rank({name} = place), is a rank at a place along {name}"
                raise ParseError(f"{name} is a coordinate of the grid, and no group", location=place, hint=hint)
            case _:
                hint = "rank(NAME = place) is the rank at another place of the grid: over (dp, tp = 4)"
                raise ParseError("not a rank", location=place, hint=hint)

    def inner(self) -> Scope:
        """Return the scope of coordinates, where names do not stand for sizes."""
        return replace(self, sizes=False) if self.sizes else self

    def _moved(self, node: ast.expr, named: list[ast.keyword]) -> Scalar:
        places: dict[str, Scalar] = {}
        for one in named:
            name = one.arg or ""
            axis = self._named_axis(one, name)
            if axis.is_group:
                hint = f"{name}[place] is one of its ranks; a grid has coordinates: over (dp, tp = 4)"
                raise ParseError(f"{name} is a group", location=self.location(one), hint=hint)
            if name in places:
                raise ParseError(f"{name} twice", location=self.location(one), hint="give each coordinate one place")
            places[name] = self.wrapped(self.inner().scalar(one.value), axis)
        return rank_at(self.axes, places, self.location(node))

    def _named_axis(self, node: ast.AST, name: str) -> Axis:
        if name in self.axes:
            return self.axes[name]
        if not self.axes and name not in self.broken:
            hint = "declare it: program NAME(M) over (dp, tp = 4): or over attention = ranks[0 : 2]:"
            message = f"unknown coordinate or group {name!r}"
            raise UnknownNameError(message, location=self.location(node), hint=hint)
        raise self.unknown(node, name, "coordinate or group", [*self.axes])

    def _axis(self, node: ast.expr, name: str) -> Scalar:
        """Return what the name itself stands for: a size in shapes and extents, else the coordinate of this rank."""
        axis = self.axes[name]
        if not self.sizes and axis.is_group:
            hint = f"{name}[i] is one of its ranks, rank.{name} the place of this one, ranks.{name} how many there are"
            raise ParseError(
                f"{name} is a group, and an integer is needed here", location=self.location(node), hint=hint
            )
        return replace(axis.size, location=self.location(node)) if self.sizes else self._own(node, axis)

    def _own(self, node: ast.expr, axis: Axis) -> Scalar:
        if axis.is_group and self.on not in (axis.name, UNKNOWN):
            hint = f"the stage is executed by the group alone: compute NAME(...) on {axis.name}:"
            message = f"a rank outside of {axis.name} has no place in it"
            raise StageError(message, location=self.location(node), hint=hint)
        return replace(axis.own, location=self.location(node))

    def wrapped(self, place: Scalar, axis: Axis) -> Scalar:
        """Return a place along a coordinate or in a group, modulo how many there are."""
        return axis.wrapped(place, isinstance(place, Index) and self.over.get(place.name) == axis.name)

    def _compared(self, node: ast.Compare) -> Axis | None:
        """Return the coordinate or group whose places a comparison is about; None for plain integers."""
        found: set[str] = set()
        stack: list[ast.expr] = [node.left, *node.comparators]
        while stack:
            match stack.pop():
                case ast.BinOp(left=left, right=right):
                    stack += [left, right]
                case ast.UnaryOp(operand=operand):
                    stack.append(operand)
                case ast.Attribute(value=ast.Name(id="rank"), attr=name):
                    found.add(name)
                case ast.Name(id="rank"):
                    return None
                case ast.Name(id=name) if name in self.axes:
                    found.add(name)
                case ast.Name(id=name) if name in self.over:
                    found.add(self.over[name])
                case ast.Name(id=name) if name in self.indices and self.indices[name].over_ranks:
                    return None
                case _:
                    pass
        return self.axes[found.pop()] if len(found) == 1 else None

    # Regions -------------------------------------------------------------------------------------------------

    def region(self, node: ast.expr) -> Region:
        """Convert a region: `tensor[coords]` or a bare tensor, optionally followed by `@ rank`."""
        match node:
            case ast.BinOp(left=left, op=ast.MatMult(), right=right):
                inner = self.region(left)
                if self.is_tile(right):
                    message, hint = (
                        f"{ast.unparse(right)} is no rank",
                        "@ names the rank of a region; dot(a, b) multiplies",
                    )
                    raise ParseError(message, location=self.location(right), hint=hint)
                if inner.rank is not None:
                    hint = "a region lies on one rank: leave the other away"
                    raise ParseError("two ranks of one region", location=self.location(node), hint=hint)
                return replace(inner, rank=self.scalar(right), location=self.location(node))
            case ast.Subscript(value=ast.Name(id=name)):
                tensor = self._tensor(node, name)
                return Region(tensor=name, coords=self._coords(node, tensor), location=self.location(node))
            case ast.Name(id=name):
                tensor = self._tensor(node, name)
                coords = tuple(Whole() for _ in tensor.shape)
                return Region(tensor=name, coords=coords, location=self.location(node))
            case _:
                hint = "a region is tensor[coordinates], optionally @ rank"
                raise ParseError("not a region", location=self.location(node), hint=hint)

    def is_region(self, node: ast.expr) -> bool:
        """True if an expression is a region, and not an integer expression with entries of index tensors."""
        match node:
            case ast.BinOp(op=ast.MatMult()):
                return True
            case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)):
                return name in self.tensors and self.tensors[name].bound is None
            case _:
                return False

    def is_tile(self, node: ast.expr) -> bool:
        """True if an expression is a name with a tile, or a region of a tensor that holds no indices."""
        name = node.value if isinstance(node, ast.Subscript) else node
        if not isinstance(name, ast.Name):
            return False
        return name.id in self.locals or (name.id in self.tensors and self.tensors[name.id].bound is None)

    def _tensor(self, node: ast.AST, name: str) -> Tensor:
        if name not in self.tensors:
            raise self.unknown(node, name, "tensor", list(self.tensors))
        return self.tensors[name]

    def _coords(self, node: ast.Subscript, tensor: Tensor) -> tuple[Scalar | Whole, ...]:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(parts) > len(tensor.shape) or (tensor.shape and not parts):
            message = f"{tensor.name} has {len(tensor.shape)} dimensions, not {len(parts)}"
            raise ShapeError(message, location=self.location(node), related=tensor.location, hint="one coordinate each")
        coords = [self._coordinate(p, n) for p, n in zip(parts, tensor.shape, strict=False)]
        for position, side in enumerate(self.sides.get(tensor.name, ())[: len(coords)]):
            coord = coords[position]
            if side is not None and isinstance(coord, Scalar) and is_arithmetic(coord):
                coords[position] = self.wrapped(coord, self.axes[side])
        return (*coords, *(Whole() for _ in range(len(tensor.shape) - len(parts))))

    def _coordinate(self, node: ast.expr, dim: Scalar) -> Scalar | Whole:
        """Convert a coordinate along a dimension. Raises ParseError for a slice whose length is not fixed."""
        if not isinstance(node, ast.Slice):
            return self.scalar(node)
        if not (node.lower or node.upper or node.step):
            return Whole()
        place = self.location(node)
        if node.step is not None:
            raise ParseError("a slice with a step", location=place, hint="a slice has neighbouring elements: x[a : b]")
        start = Int(value=0) if node.lower is None else self.scalar(node.lower)
        stop = dim if node.upper is None else self.scalar(node.upper)
        size = normal(Binary(op="-", left=stop, right=start), _ANY)
        decided = any(isinstance(part, Index | Lookup | Rank) for part in walk(size))
        if decided or (isinstance(size, Int) and size.value < 1):
            what = f"a slice of {print_scalar(size)} elements"
            hint = "a slice has a fixed length: x[q * D : (q + 1) * D]; an index runs over a part: (i: M[a : b])"
            raise ParseError(what, location=place, hint=hint)
        sizes = [n for one in self.tensors.values() for n in one.shape]
        size = next((n for n in sizes if normal(n, _ANY) == size), size)  # as the program writes it
        return Block(start=start, size=size, location=place)

    def _is_whole(self, node: ast.expr) -> bool:
        """True for `:`. Refuses a slice with bounds where a view has none."""
        if isinstance(node, ast.Slice) and (node.lower or node.upper or node.step):
            hint = "a part of a region is one of its coordinates: x[i, a : b]; a view has : and None"
            raise ParseError("a slice of a value", location=self.location(node), hint=hint)
        return isinstance(node, ast.Slice)

    # Values --------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Value:
        """Convert a tile value."""
        place = self.location(node)
        match node:
            case ast.Constant(value=bool() | int() | float() as number):
                return Literal(value=number, location=place)
            case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)) if name in self.choices.left_out:
                return self._left_out(node, name)
            case ast.Name(id=name):
                return self._value_name(node, name)
            case ast.BinOp(op=ast.MatMult()):
                return Read(region=self.region(node), location=place)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(node, left, op, right)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return Literal(value=-number, location=place)
            case ast.UnaryOp(op=op, operand=operand) if isinstance(op, ast.USub | ast.Not):
                name = "neg" if isinstance(op, ast.USub) else "not"
                return Apply(op=name, args=(self.value(operand),), location=place)
            case ast.BoolOp(op=op, values=parts):
                return self._chain("and" if isinstance(op, ast.And) else "or", [self.value(p) for p in parts], place)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARES:
                name = _COMPARES[type(op)][1]
                return Apply(op=name, args=(self.value(left), self.value(right)), location=place)
            case _ if self.is_place(node):
                return FromScalar(scalar=self._place(node), location=place)
            case ast.Attribute(value=inner, attr="T"):
                return Transpose(value=self.value(inner), location=place)
            case ast.Subscript(value=ast.Name(id=name)) if name in self.tensors:
                return self._read(node, name)
            case ast.Subscript(value=inner, slice=index):
                value, pattern = self.value(inner), self._pattern(node, index)
                return value if self._is_constant(value) else Expand(value=value, pattern=pattern, location=place)
            case ast.Call():
                return self._call(node)
            case _:
                raise ParseError("not a tile value", location=place, hint="see the list of values in docs/language.md")

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

    def _read(self, node: ast.Subscript, name: str) -> Value:
        return Read(region=self.region(node), location=self.location(node))

    def _chain(self, op: str, parts: list[Value], place: Location) -> Value:
        result = parts[0]
        for part in parts[1:]:
            result = Apply(op=op, args=(result, part), location=place)
        return result

    def _value_name(self, node: ast.expr, name: str) -> Value:
        place = self.location(node)
        if name in self.locals:
            return Local(name=name, location=place)
        if name in self.tensors:
            return Read(region=self.region(node), location=place)
        return FromScalar(scalar=self._scalar_name(node, name), location=place)

    def _binary(self, node: ast.expr, left: ast.expr, op: ast.operator, right: ast.expr) -> Value:
        place = self.location(node)
        if type(op) in (ast.FloorDiv, ast.Mod, ast.BitXor) and self._is_integer(node):
            return FromScalar(scalar=self.scalar(node), location=place)
        a, b = self.value(left), self.value(right)
        if (rest := self._without(op, a, b)) is not None:
            return rest
        if isinstance(a, FromScalar | Literal) and isinstance(b, FromScalar) and type(op) in _SCALAR_OPS:
            if not isinstance(a, Literal) or isinstance(a.value, int):
                return self._numbers(node, op, a, b)
        elif isinstance(a, FromScalar) and _integer(b) and type(op) in _SCALAR_OPS:
            return self._numbers(node, op, a, b)
        if type(op) not in _VALUE_OPS:
            hint = "tiles have + - * / // % & | ^ << >> and functions"
            raise ParseError("no such operation on tiles", location=place, hint=hint)
        return Apply(op=_VALUE_OPS[type(op)], args=(a, b), location=place)

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
        place = self.location(node)
        scalar = Binary(op=_SCALAR_OPS[type(op)], left=_whole(left), right=_whole(right), location=place)
        floats = {p.name for p in self.params.values() if p.kind in ("f32", "bool")}
        names = {e.scalar.name for e in (left, right) if isinstance(e, FromScalar) and isinstance(e.scalar, ParamRef)}
        if names & floats:
            return Apply(op=_VALUE_OPS.get(type(op), "mul"), args=(left, right), location=place)
        return FromScalar(scalar=scalar, location=place)

    def _pattern(self, node: ast.AST, index: ast.expr) -> tuple[bool, ...]:
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        for part in parts:
            new = isinstance(part, ast.Constant) and part.value is None
            if not (new or self._is_whole(part)):
                raise ParseError("a value is viewed with : and None", location=self.location(node), hint="v[:, None]")
        return tuple(isinstance(p, ast.Slice) for p in parts)

    # Calls ---------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Value:
        place = self.location(node)
        self.named_arguments(node, *(("axis",) if ast.unparse(node.func) in (*REDUCTIONS, *SCANS) else ()))
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func)
        if not isinstance(node.func, ast.Name):
            raise ParseError("not a function", location=place, hint="see the list of values in docs/language.md")
        name = node.func.id
        if name in self.choices.functions:
            return self._chosen(node, self.choices.functions[name])
        if name in DTYPES or name in self.choices.dtypes:
            self._arity(node, 1)
            value, dtype = self.value(node.args[0]), self._dtype(node.func)
            return value if self._is_constant(value) else Cast(value=value, dtype=dtype, location=place)
        if name in REDUCTIONS or name in SCANS:
            return self._reduce(node, name)
        if name in _CALLED:
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

    def named_arguments(self, node: ast.Call, *known: str) -> None:
        """Refuse keyword arguments that the function does not have, so that no argument is silently ignored."""
        name = ast.unparse(node.func)
        for keyword in node.keywords:
            if keyword.arg not in known:
                given = "**" if keyword.arg is None else f"{keyword.arg}="
                hint = "take it away, or give it by its place; docs/language.md says what each function takes"
                raise ParseError(f"{name} takes no argument {given}", location=self.location(keyword), hint=hint)

    def _arity(self, node: ast.Call, *counts: int) -> None:
        if len(node.args) not in counts:
            wanted = " or ".join(map(str, counts))
            plural = "" if wanted == "1" else "s"
            message = f"{ast.unparse(node.func)} takes {wanted} argument{plural}, not {len(node.args)}"
            raise ParseError(message, location=self.location(node), hint="see docs/language.md")

    def _method(self, node: ast.Call, function: ast.Attribute) -> Value:
        if function.attr != "to":
            name = function.attr
            along = name in (*REDUCTIONS, *SCANS)
            written = f"{name}(v, axis=0)" if along else f"{name}(v)"
            known = along or name in (*_CALLED, *DTYPES)
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
        if not (isinstance(index, ast.Name) and index.id in self.indices):
            dims = [name for name, param in self.params.items() if param.kind == "dim"]
            raise self.unknown(index, ast.unparse(index), "index or dimension", [*self.indices, *dims])
        return Positions(index=index.id, location=self.location(node))

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


def _joined(op: str, parts: list[Scalar]) -> tuple[Scalar, ...]:
    """Flatten nested operations: `(a and b) and c` becomes `a and b and c`."""
    nested = [p.args if isinstance(p, Logic) and p.op == op else (p,) for p in parts]
    return tuple(part for group in nested for part in group)


def _integer(value: Value) -> bool:
    return isinstance(value, Literal) and isinstance(value.value, int)


def _whole(value: Value) -> Scalar:
    """The integer expression of an integer value."""
    if isinstance(value, FromScalar):
        return value.scalar
    return Int(value=int(value.value) if isinstance(value, Literal) else 0, location=value.location)
