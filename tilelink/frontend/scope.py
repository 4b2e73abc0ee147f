"""Names of a program, and the conversion of expressions to integers, places of ranks and regions."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

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
from tilelink.frontend.variants import Choices
from tilelink.ir.intervals import MAX_INT32, Bounds
from tilelink.ir.normal import normal
from tilelink.ir.printer import print_scalar
from tilelink.ir.program import (
    DTYPES,
    ELEMENTWISE,
    INTEGER_OPS,
    REDUCTIONS,
    SCANS,
    IndexDecl,
    Param,
    Region,
    Tensor,
    Value,
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

SCALAR_OPS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitXor: "^",
}
COMPARES: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "eq"),
    ast.NotEq: ("!=", "ne"),
    ast.Lt: ("<", "lt"),
    ast.LtE: ("<=", "le"),
    ast.Gt: (">", "gt"),
    ast.GtE: (">=", "ge"),
}
BUILDERS = ("dot", "zeros", "full", "pos", "online_softmax", "attend", "finish", "call")
CALLED = tuple(name for name in ELEMENTWISE if name not in INTEGER_OPS)
"""Elementwise operations that are written as functions."""

FUNCTIONS = (*BUILDERS, *CALLED, *REDUCTIONS, *SCANS, *DTYPES)
"""The functions of tile values."""

UNKNOWN = ""
"""The group of a stage whose own group is not declared: what is wrong with its places is not reported again."""


@dataclass(kw_only=True)
class IntegerScope:
    """The names that an expression may use, and the integers, ranks and regions that are made of them.

    broken: names whose declarations are invalid.
    """

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
    """The values that stand for inputs that are left out."""
    implicit: int = 0
    """In a declaration, the number of dimensions whose coordinates a bare index tensor stands for."""
    coordinates: Mapping[str, int] = field(default_factory=dict[str, int])
    """In a declaration, the names of its axes, with their dimensions."""
    axes: dict[str, Axis] = field(default_factory=dict[str, Axis])
    """The coordinates of the grid of ranks, and the groups."""
    over: dict[str, str] = field(default_factory=dict[str, str])
    """The indices that run over one of those."""
    begins: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    """Where the indices begin that run over a part of a dimension which is the same in every launch."""
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
        location = self.location(node)
        match node:
            case ast.Constant(value=bool() | int() as value):
                return Int(value=int(value), location=location)
            case ast.Constant(value=None):
                raise ParseError(
                    "None is no coordinate", location=location, hint="x[i, :][:, None] adds an axis to a tile"
                )
            case ast.Name(id=name):
                return self._scalar_name(node, name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.scalar(operand)
                if isinstance(inner, Int):
                    return Int(value=-inner.value, location=location)
                return Binary(op="-", left=Int(value=0), right=inner, location=location)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Logic(op="not", args=(self.scalar(operand),), location=location)
            case ast.BinOp(left=ast.Name(id=index), op=ast.Add() | ast.Sub(), right=right) if index in self.begins:
                return self._shifted(index, self.scalar(right), isinstance(node.op, ast.Sub), node)
            case ast.BinOp(left=left, op=ast.Add(), right=ast.Name(id=index)) if index in self.begins:
                return self._shifted(index, self.scalar(left), False, node)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SCALAR_OPS:
                name = SCALAR_OPS[type(op)]
                return Binary(op=name, left=self.scalar(left), right=self.scalar(right), location=location)
            case ast.BoolOp(op=op, values=parts):
                name = "and" if isinstance(op, ast.And) else "or"
                return Logic(op=name, args=_joined(name, [self.scalar(v) for v in parts]), location=location)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARES:
                name = COMPARES[type(op)][0]
                one, other = self.scalar(left), self.scalar(right)
                if name in ("==", "!=") and (axis := self._compared(node)) is not None:
                    one, other = self.wrapped(one, axis), self.wrapped(other, axis)
                return Compare(op=name, left=one, right=other, location=location)
            case _ if self.is_place(node):
                return self._place(node)
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[first, _, *_] as given):
                self.named_arguments(node)
                least = self.scalar(first)
                for other in given[1:]:
                    least = Binary(op=name, left=least, right=self.scalar(other), location=location)
                return least
            case ast.Subscript(value=ast.Name(id=name)) if name in self.tensors:
                return self._entry(node, self.tensors[name], self._coords(node, self.tensors[name]))
            case ast.Subscript(value=ast.Name(id=name)) if name not in self.names():
                raise self.unknown(node.value, name, "index tensor", [*self.tensors])
            case ast.Subscript(value=ast.Name(id=name)) if name in self.params or name == "ranks":
                hint = f"an index runs over a part of a dimension: (i: {name}[a : b])"
                if isinstance(node.slice, ast.Slice):
                    hint += f"; a part of another size has a name for the size: let L = ranks * {name}, and L[a : b]"
                raise ParseError(f"{name} is no index tensor", location=location, hint=hint)
            case ast.Call(func=ast.Name(id=name)) if name not in FUNCTIONS:
                raise self.unknown(node, name, "function", ["min", "max", *self.called.functions])
            case _:
                hint = "numbers, parameters, rank, ranks, indices, entries of index tensors and + - * // % are integers"
                raise ParseError("not an integer expression", location=location, hint=hint)

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
            if self.implicit:
                hint = f"name the axes of the declaration: slot : in [u: U, m: M] < {tensor.name}[u, ...]"
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

    def _own_coordinate(self, node: ast.expr, name: str) -> Coordinate:
        """Return the coordinate along an axis of a declaration, for what is said of its elements."""
        dim = self.coordinates[name]
        if dim >= self.implicit:
            hint = "an end depends on the axes before it: y : out [s: ranks, M[: n[s]]]"
            raise ParseError(f"{name} is no axis before this one", location=self.location(node), hint=hint)
        return Coordinate(dim=dim, name=name, location=self.location(node))

    def _shifted(self, index: str, offset: Scalar, subtracted: bool, node: ast.expr) -> Scalar:
        """Return an index over a part of a dimension, shifted: its own first element is added to the offset."""
        begin, location = self.begins[index], self.location(node)
        if subtracted:
            offset = Binary(op="-", left=begin, right=offset, location=location)
        elif begin != Int(value=0):
            offset = Binary(op="+", left=begin, right=offset, location=location)
        return Binary(op="+", left=offset, right=Index(name=index, location=location), location=location)

    def _scalar_name(self, node: ast.expr, name: str) -> Scalar:
        location = self.location(node)
        if (entry := self._bare_entry(node, name)) is not None:
            return entry
        if name in self.coordinates:
            return self._own_coordinate(node, name)
        if name in self.axes:
            return self._axis(node, name)
        if name in self.begins:
            own = Index(name=name, location=location)
            return Binary(op="+", left=self.begins[name], right=own, location=location)
        if name in self.indices:
            return Index(name=name, location=location)
        if name in self.params:
            return ParamRef(name=name, location=location)
        if name == "rank":
            return Rank(location=location)
        if name == "ranks":
            return Ranks(location=location)
        if name in self.tensors and self.tensors[name].bound is not None:
            dims = ", ".join(":" * len(self.tensors[name].shape))
            hint = f"{name}[i] is one"
            if self.implicit:
                hint = "a name alone is the entry at the first coordinates, and axes may have names for others: "
                hint += f"slot : in [u: U, m: M] < {name}[u, ...]"
            raise ParseError(f"which entry of {name}[{dims}]?", location=location, hint=hint)
        if name in self.locals or name in self.tensors:
            hint = "where(c, a, b) chooses element by element; entries of an index tensor, [T] < M, are integers"
            if name in self.locals:
                hint = f"let {name} = ... names an integer; a stage computes one for others: {name} : local [] <= M"
            elif not self.tensors[name].shape:
                hint = f"with a bound it is an integer: {name} : {self.tensors[name].space} [] <= M"
            raise ParseError(f"{name} is a tile, and an integer is needed here", location=location, hint=hint)
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
        location = self.location(node)
        match node:
            case ast.Attribute(value=ast.Name(id=word), attr=name):
                axis = self._named_axis(node, name)
                return replace(axis.size, location=location) if word == "ranks" else self._own(node, axis)
            case ast.Subscript(value=ast.Name(id=name), slice=index) if self.axes[name].is_group:
                if self._is_whole(index) or isinstance(index, ast.Tuple):
                    hint = f"{name}[i] is one of its ranks, from 0 on"
                    raise ParseError(f"which rank of {name}?", location=location, hint=hint)
                axis, at = self.axes[name], self.inner().scalar(index)
                self._check_place(index, at, axis)
                return replace(axis.member(self.wrapped(at, axis)), location=location)
            case ast.Call(args=[], keywords=[_, *_] as named):
                return replace(self._moved(node, named), location=location)
            case ast.Subscript(value=ast.Name(id=name)):
                hint = f"({name} = place) after @, or rank({name} = place), is a rank at a place along {name}"
                raise ParseError(f"{name} is a coordinate of the grid, and no group", location=location, hint=hint)
            case _:
                hint = "rank(NAME = place) is the rank at another place of the grid: over (dp, tp = 4)"
                raise ParseError("not a rank", location=location, hint=hint)

    def inner(self) -> Self:
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
            at = self.inner().scalar(one.value)
            self._check_place(one.value, at, axis)
            places[name] = self.wrapped(at, axis)
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

    def _check_place(self, node: ast.expr, place: Scalar, axis: Axis) -> None:
        """Raise ParseError for a number of all ranks where one of a part of them is meant: modulo would hide it.

        The place of this rank is one, however it is written. Where it is the number of the rank, so are its neighbours.
        """
        written = _plain_rank(node)
        if written is None:
            return
        apart = normal(Binary(op="-", left=place, right=axis.own), _ANY)
        inside = not axis.is_group or self.on in (axis.name, UNKNOWN)
        moved = any(isinstance(part, Rank) for part in walk(apart))
        if apart == Int(value=0) or (isinstance(axis.own, Rank) and inside and not moved):
            return
        name, of = axis.name, f"the group {axis.name}" if axis.is_group else f"the coordinate {axis.name}"
        hint = f"rank.{name} is the place of this rank"
        hint += "" if inside else f", in a stage on {name}"
        hint += f"; if places repeat on purpose, write rank % ranks.{name}"
        message = f"rank counts all ranks, and this is a place of {of}"
        raise ParseError(message, location=self.location(written), hint=hint)

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
                self._refuse_product(left, right)
                inner = self.region(left)
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

    def _refuse_product(self, left: ast.expr, right: ast.expr) -> None:
        """Raise ParseError for `a @ b` of two tiles."""
        if any(isinstance(part, ast.expr) and self.is_tile(part) for part in ast.walk(right)):
            hint = f"@ names the rank of a region; dot({ast.unparse(left)}, {ast.unparse(right)}) multiplies"
            raise ParseError(f"{ast.unparse(right)} is no rank", location=self.location(right), hint=hint)

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
        added = [isinstance(part, ast.Constant) and part.value is None for part in parts]
        if any(added):
            own = ", ".join(ast.unparse(part) for part, one in zip(parts, added, strict=True) if not one)
            axes = ", ".join("None" if one else ":" for one in added)
            hint = f"the region comes first, then the axis is added to it: {tensor.name}[{own}][{axes}]"
            location = self.location(parts[added.index(True)])
            raise ParseError("None is no coordinate", location=location, related=tensor.location, hint=hint)
        if len(parts) > len(tensor.shape) or (tensor.shape and not parts):
            message = f"{tensor.name} has {len(tensor.shape)} dimensions, not {len(parts)}"
            raise ShapeError(message, location=self.location(node), related=tensor.location, hint="one coordinate each")
        coords = [self._coordinate(p, n) for p, n in zip(parts, tensor.shape, strict=False)]
        for position, side in enumerate(self.sides.get(tensor.name, ())[: len(coords)]):
            coord = coords[position]
            if side is not None and isinstance(coord, Scalar) and is_arithmetic(coord):
                self._check_place(parts[position], coord, self.axes[side])
                coords[position] = self.wrapped(coord, self.axes[side])
        return (*coords, *(Whole() for _ in range(len(tensor.shape) - len(parts))))

    def _coordinate(self, node: ast.expr, dim: Scalar) -> Scalar | Whole:
        """Convert a coordinate along a dimension. Raises ParseError for a slice whose length is not fixed."""
        if not isinstance(node, ast.Slice):
            return self.scalar(node)
        if not (node.lower or node.upper or node.step):
            return Whole()
        location = self.location(node)
        if node.step is not None:
            raise ParseError(
                "a slice with a step", location=location, hint="a slice has neighbouring elements: x[a : b]"
            )
        start = Int(value=0) if node.lower is None else self.scalar(node.lower)
        stop = dim if node.upper is None else self.scalar(node.upper)
        size = normal(Binary(op="-", left=stop, right=start), _ANY)
        decided = any(isinstance(part, Index | Lookup | Rank) for part in walk(size))
        if decided or (isinstance(size, Int) and size.value < 1):
            what = f"a slice of {print_scalar(size)} elements"
            hint = "a slice has a fixed length: x[q * D : (q + 1) * D]; an index runs over a part: (i: M[a : b])"
            raise ParseError(what, location=location, hint=hint)
        sizes = [n for one in self.tensors.values() for n in one.shape]
        size = next((n for n in sizes if normal(n, _ANY) == size), size)  # as the program writes it
        return Block(start=start, size=size, location=location)

    def _is_whole(self, node: ast.expr) -> bool:
        """True for `:`. Refuses a slice with bounds where a view has none."""
        if isinstance(node, ast.Slice) and (node.lower or node.upper or node.step):
            hint = "a part of a region is one of its coordinates: x[i, a : b]; a view has : and None"
            raise ParseError("a slice of a value", location=self.location(node), hint=hint)
        return isinstance(node, ast.Slice)

    def named_arguments(self, node: ast.Call, *known: str) -> None:
        """Refuse keyword arguments that the function does not have, so that no argument is silently ignored."""
        name = ast.unparse(node.func)
        for keyword in node.keywords:
            if keyword.arg not in known:
                given = "**" if keyword.arg is None else f"{keyword.arg}="
                hint = "take it away, or give it by its place; docs/language.md says what each function takes"
                raise ParseError(f"{name} takes no argument {given}", location=self.location(keyword), hint=hint)


def _joined(op: str, parts: list[Scalar]) -> tuple[Scalar, ...]:
    """Flatten nested operations: `(a and b) and c` becomes `a and b and c`."""
    nested = [p.args if isinstance(p, Logic) and p.op == op else (p,) for p in parts]
    return tuple(part for group in nested for part in group)


def _plain_rank(node: ast.expr) -> ast.Name | None:
    """Return a `rank` that is a term or a factor of an expression, outside of quotients and remainders; else None."""
    match node:
        case ast.Name(id="rank"):
            return node
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
            return _plain_rank(left) or _plain_rank(right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _plain_rank(operand)
        case _:
            return None
