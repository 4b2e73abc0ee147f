"""Type inference of tile values: the indices that are plain numbers, and the dtype and axes of every expression."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tilelink.errors import ConsequenceError, DtypeError, Mistakes, ShapeError
from tilelink.ir.depth import deep
from tilelink.ir.identity import ByIdentity
from tilelink.ir.mapping import listed, selects_many, tile_index
from tilelink.ir.numbers import batch_indices, carried_along, outliving, place_of_number, used_as_numbers
from tilelink.ir.printer import print_region, print_scalar
from tilelink.ir.program import (
    BITWISE,
    INTEGER_OPS,
    INTEGERS,
    Apply,
    Assign,
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
    Notify,
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
    Transfer,
    Transpose,
    UserCall,
    Value,
    Wait,
    WholePositions,
)
from tilelink.ir.scalar import Block, Index, Scalar, Whole, is_gather
from tilelink.ir.scalar import Param as ParamRef
from tilelink.ir.visitor import all_indices, counters, statements

ELEMENT = "T"
"""The dtype of a tensor declared without one; it is chosen when the program is compiled."""
SYMBOLS = {
    "floordiv": "//", "mod": "%", "bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip
"""Operation of integers -> its operator."""
OF_INTEGERS = ("add", "sub", "mul", "neg", "maximum", "minimum", "where", "abs")
"""Elementwise operations that give an integer for integers."""
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not"}


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of a value. kind: "tile" runs along the tile of an index, "whole" along a dimension, "one" has size 1."""

    kind: str
    index: str | None = None
    dim: Scalar | None = None

    def __str__(self) -> str:
        if self.kind == "tile":
            return str(self.index)
        return ":" + print_scalar(self.dim) if self.dim is not None else "1"


ONE = Axis(kind="one")


@dataclass(frozen=True, kw_only=True)
class Type:
    """The type of a value: its dtype and its axes.

    dtype: T, one of DTYPES, or "state" (online softmax; its axes are those of the attention output).
    """

    dtype: str
    axes: tuple[Axis, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.axes))}]"


@dataclass(frozen=True, kw_only=True)
class StageTyping:
    """The typing of one stage. scalar_indices: indices that are plain numbers; locals: the final types of names.

    mistyped: names whose values are ill-typed.
    loose: a value with too many leading axes is accepted instead of refused.
    lowered: an index may run over a part of a dimension, from its beginning, without `0 +` before it: a pass that gives
    a coordinate its number leaves no zero. That the part is within the dimension is for the rule on bounds.
    """

    program: Program
    stage: Stage
    indices: Mapping[str, IndexDecl]
    scalar_indices: frozenset[str]
    locals: dict[str, Type] = field(default_factory=dict[str, Type])
    mistyped: set[str] = field(default_factory=set[str])
    loose: bool = False
    lowered: bool = False
    made: dict[int, tuple[Value, Type]] = field(
        default_factory=dict[int, tuple[Value, Type]], init=False, compare=False
    )
    """Cache: id of an operation -> the operation and its type. Cleared when the type of a name may have changed."""

    @cached_property
    def over_ranks(self) -> frozenset[str]:
        """The indices that run over the ranks."""
        return frozenset(name for name, index in self.indices.items() if index.over_ranks)

    def region_type(self, region: Region) -> Type:
        """Return the type of a region: its tensor's dtype, and an axis for each coordinate that is not a number.

        Raises ShapeError if the number of coordinates or the extent of an index does not match the tensor.
        """
        tensor = self.program.tensor(region.tensor)
        axes: list[Axis] = []
        if len(region.coords) != len(tensor.shape):
            message = f"{tensor.name} has {len(tensor.shape)} dimensions, not {len(region.coords)}"
            raise ShapeError(message, location=region.location, related=tensor.location, hint="one coordinate each")
        for coord, dim in zip(region.coords, tensor.shape, strict=True):
            axis = self._axis(region, coord, dim)
            if axis is not None:
                axes.append(axis)
        dtype = "i32" if tensor.space == "table" else (tensor.dtype or ELEMENT)
        return Type(dtype=dtype, axes=tuple(axes))

    def has_axis(self, coord: Scalar | Whole) -> bool:
        """True if a coordinate selects an axis and not a single element."""
        if isinstance(coord, Whole | Block) or selects_many(coord, self.scalar_indices):
            return True
        return tile_index(coord, self.scalar_indices) is not None

    def _axis(self, region: Region, coord: Scalar | Whole, dim: Scalar) -> Axis | None:
        if isinstance(coord, Whole):
            return Axis(kind="whole", dim=dim)
        if isinstance(coord, Block):
            return Axis(kind="whole", dim=coord.size)
        if is_gather(coord):
            shape = self.program.tensor(coord.table).shape
            return next(
                Axis(kind="whole", dim=n) for c, n in zip(coord.coords, shape, strict=True) if isinstance(c, Whole)
            )
        if (entries := listed(coord, self.scalar_indices)) is not None:
            return Axis(kind="tile", index=entries.index)
        tile = tile_index(coord, self.scalar_indices)
        if tile is None:
            return None
        name = tile[1]
        if isinstance(coord, Index) and self.indices[name].extent != dim and not self.lowered:
            extent = print_scalar(self.indices[name].extent)
            message = f"index {name} runs over {extent}, but that dimension of {region.tensor} is {print_scalar(dim)}"
            hint = f"use an index over {print_scalar(dim)}, or 0 + {name}, which may be in a dimension of any size"
            raise ShapeError(message, location=region.location, hint=hint)
        return Axis(kind="tile", index=name)

    def type_of(self, value: Value) -> Type:
        """Return the type of an expression, from the types of the names in it.

        Raises ShapeError or DtypeError if it is ill-typed, ConsequenceError if a name in it is.
        """
        match value:
            case Read(region=region):
                return self.region_type(region)
            case Local(name=name) if name in self.mistyped:
                raise ConsequenceError(f"{name} has no type", location=value.location)
            case Local(name=name):
                return self.locals.get(name, Type(dtype="f32"))
            case Literal(value=number):
                return Type(dtype=_literal_dtype(number))
            case FromScalar(scalar=scalar):
                return Type(dtype=self._scalar_dtype(scalar))
            case Full(dtype=dtype):
                return Type(dtype=dtype)
            case Positions(index=index):
                return Type(dtype="i32", axes=(Axis(kind="tile", index=index),))
            case WholePositions(dim=dim):
                return Type(dtype="i32", axes=(Axis(kind="whole", dim=dim),))
            case Cast(value=inner, dtype=dtype):
                return Type(dtype=dtype, axes=self.type_of(inner).axes)
            case _:
                cached = self.made.get(id(value))
                if cached is None or cached[0] is not value:
                    made = self._apply(value, value.op, value.args) if isinstance(value, Apply) else self._shaped(value)
                    cached = self.made[id(value)] = value, made
                return cached[1]

    def axes_of(self, value: Value) -> tuple[Axis, ...]:
        return self.type_of(value).axes

    def _shaped(self, value: Value) -> Type:
        match value:
            case Dot(left=left, right=right):
                return self._dot(value, left, right)
            case Transpose(value=inner):
                kind = self.type_of(inner)
                _need_axes(value, kind, 2, ".T")
                return Type(dtype=kind.dtype, axes=(*kind.axes[:-2], kind.axes[-1], kind.axes[-2]))
            case Reduce(op=op, value=inner, axis=axis):
                kind = self.type_of(inner)
                _need_axes(value, kind, (axis if axis >= 0 else -axis - 1) + 1, "a reduction over that axis")
                kept = list(kind.axes)
                del kept[axis]
                return Type(dtype=_reduced_dtype(op, kind.dtype), axes=tuple(kept))
            case Scan(op=op, value=inner, axis=axis):
                kind = self.type_of(inner)
                _need_axes(value, kind, (axis if axis >= 0 else -axis - 1) + 1, f"{op} along that axis")
                if op == "argsort" and kind.dtype == "i64":
                    hint = "i32(v) if its values fit"
                    raise DtypeError("argsort of i64", location=value.location, hint=hint)
                return Type(dtype="i32" if op == "argsort" else arithmetic_dtype(kind.dtype), axes=kind.axes)
            case Expand(value=inner, pattern=pattern):
                kind = self.type_of(inner)
                spare = len(kind.axes) - sum(pattern)
                if spare < 0 or (spare and not self.loose):
                    hint = "one : each" + self._numbers_in(inner)
                    raise ShapeError(f"{kind} has {len(kind.axes)} axes", location=value.location, hint=hint)
                rest = iter(kind.axes[spare:])
                shown = (next(rest) if kept else ONE for kept in pattern)
                return Type(dtype=kind.dtype, axes=(*kind.axes[:spare], *shown))
            case SoftmaxInit():
                return Type(dtype="state")
            case Attend(q=q, v=v):
                rows, columns = self.type_of(q).axes, self.type_of(v).axes
                if len(rows) < 2 or len(columns) < 2:
                    raise ShapeError("attend needs tiles of two axes", location=value.location, hint="q[h, i, :]")
                return Type(dtype="state", axes=(*rows[:-1], columns[-1]))
            case Finish(state=state):
                return Type(dtype="f32", axes=self.type_of(state).axes)
            case UserCall(args=args):
                return Type(dtype="f32", axes=self.type_of(args[0]).axes if args else ())
            case _:
                raise TypeError(f"unknown value {type(value).__name__}")

    def _scalar_dtype(self, scalar: Scalar) -> str:
        if isinstance(scalar, ParamRef):
            kinds = {p.name: p.kind for p in self.program.params}
            return {"f32": "f32", "bool": "bool"}.get(kinds.get(scalar.name, "dim"), "i32")
        return "i32"

    def _apply(self, value: Value, op: str, args: tuple[Value, ...]) -> Type:
        kinds = [self.type_of(a) for a in args]
        if any(k.dtype == "state" for k in kinds):
            raise DtypeError(f"{op} of a softmax state", location=value.location, hint="finish(state) gives a tile")
        axes: tuple[Axis, ...] = ()
        for kind in kinds:
            axes = self._broadcast(axes, kind.axes, value)
        if op in COMPARISONS:
            return Type(dtype="bool", axes=axes)
        if op in INTEGER_OPS:
            return Type(dtype=_integer_dtype(value, op, kinds), axes=axes)
        if op == "where":
            return Type(dtype=_chosen_dtype(args[1:], [kind.dtype for kind in kinds[1:]]), axes=axes)
        return Type(dtype=arithmetic_dtype(*(k.dtype for k in kinds)) if op in OF_INTEGERS else "f32", axes=axes)

    def _broadcast(self, left: tuple[Axis, ...], right: tuple[Axis, ...], value: Value) -> tuple[Axis, ...]:
        try:
            return broadcast(left, right, value)
        except ShapeError:
            if not self.loose:
                raise
            return max(left, right, key=len)

    def _numbers_in(self, value: Value) -> str:
        """A clause for hints that lists the coordinates of a region without an axis."""
        coords = value.region.coords if isinstance(value, Read) else ()
        names = {n: None for c in coords if isinstance(c, Index) and (n := c.name) in self.scalar_indices}
        return f"; {' and '.join(names)} is used as a number in this stage, and has no axis" if names else ""

    def _dot(self, value: Value, left: Value, right: Value) -> Type:
        a, b = self.type_of(left), self.type_of(right)
        for kind in (a, b):
            _need_axes(value, kind, 2, "dot")
        if a.axes[-1] != b.axes[-2]:
            message = f"dot contracts {a.axes[-1]} of {a} with {b.axes[-2]} of {b}"
            hint = "the last axis of the left goes with the last but one of the right"
            if a.axes[-1] == b.axes[-1]:
                hint = f"did you forget .T? {hint}"
            raise ShapeError(message, location=value.location, hint=hint)
        batch = broadcast(a.axes[:-2], b.axes[:-2], value)
        return Type(dtype=sum_dtype(a.dtype, b.dtype), axes=(*batch, a.axes[-2], b.axes[-1]))


def _reduced_dtype(op: str, dtype: str) -> str:
    """Return the dtype of a reduction of values of a dtype."""
    if op in ("any", "all"):
        return "bool"
    return "i32" if op in ("argmax", "argmin") else "f32" if dtype == "bool" else arithmetic_dtype(dtype)


def arithmetic_dtype(*dtypes: str) -> str:
    """Return the dtype of arithmetic with values: i32 of integers and conditions, i64 if one is that, else f32."""
    if not all(dtype in INTEGERS for dtype in dtypes):
        return "f32"
    return "i64" if "i64" in dtypes else "i32"


def _chosen_dtype(values: Iterable[Value], dtypes: Iterable[str]) -> str:
    """Return the dtype of one of some values: that of 16 bits that they have, of which 0 is a number too."""
    found = [kind for one, kind in zip(values, dtypes, strict=True) if not is_zero(one)]
    return found[0] if len(set(found)) == 1 and found[0] in (ELEMENT, "f16", "bf16") else arithmetic_dtype(*dtypes)


def is_zero(value: Value) -> bool:
    """True if a value is the number 0."""
    return isinstance(value, Literal) and value.value == 0


def sum_dtype(left: str, right: str) -> str:
    """Return the dtype in which the products of two operands' elements are added up."""
    return "i32" if left == right == "i8" else "f32"


def _integer_dtype(value: Value, op: str, kinds: list[Type]) -> str:
    """Return the dtype of an operation of integers. Raises DtypeError if an operand is none."""
    for kind in kinds:
        if kind.dtype not in INTEGERS:
            own = "numbers of the element type" if kind.dtype == ELEMENT else kind.dtype
            hint = "i32(v) makes integers of numbers, and drops what is after the point"
            raise DtypeError(f"{SYMBOLS[op]} is for integers, not for {own}", location=value.location, hint=hint)
    if op in BITWISE and all(kind.dtype == "bool" for kind in kinds):
        return "bool"
    return arithmetic_dtype(*(kind.dtype for kind in kinds))


def product_dtype(left: str, right: str) -> str:
    """Return the dtype that the operands of a product are rounded to.

    An f32 operand is rounded to the dtype of the other one; f16 with bf16 gives f32. Operands of 8 bits have one dtype.
    """
    if left == right or right == "f32":
        return left
    return right if left == "f32" else "f32"


def _literal_dtype(number: float | int | bool) -> str:
    if isinstance(number, bool):
        return "bool"
    return "i32" if isinstance(number, int) else "f32"


def _need_axes(value: Value, kind: Type, axes: int, what: str) -> None:
    if len(kind.axes) < axes:
        raise ShapeError(
            f"{what} needs {axes} axes, not {kind}", location=value.location, hint="index fewer dimensions"
        )


def broadcast(left: tuple[Axis, ...], right: tuple[Axis, ...], value: Value | Statement) -> tuple[Axis, ...]:
    """Return the axes of two values broadcast as in NumPy: aligned at the last axis, axes of size 1 stretched.

    Raises ShapeError at the location of `value` if the axes do not match.
    """
    size = max(len(left), len(right))
    a = (ONE,) * (size - len(left)) + left
    b = (ONE,) * (size - len(right)) + right
    for x, y in zip(a, b, strict=True):
        if x != y and ONE not in (x, y):
            shapes = f"[{', '.join(map(str, left))}] and [{', '.join(map(str, right))}]"
            hint = f"axis {x} meets axis {y}; v[:, None] adds an axis, .T swaps two"
            hint += ", and an index that is declared `by 1` is a number and no axis"
            raise ShapeError(f"shapes {shapes} do not fit", location=value.location, hint=hint)
    return tuple(y if x == ONE else x for x, y in zip(a, b, strict=True))


@dataclass(frozen=True, kw_only=True)
class Typing:
    """The typing of a whole program."""

    stages: Mapping[str, StageTyping]

    def scalar_indices(self, stage: str) -> frozenset[str]:
        return self.stages[stage].scalar_indices

    def stage(self, name: str) -> StageTyping:
        return self.stages[name]


@deep()
def infer(program: Program, mistakes: Mistakes | None = None, *, lowered: bool = False) -> Typing:
    """Return the typing of every stage. lowered: True for a program that passes have changed (see StageTyping).

    Adds each ShapeError and DtypeError to `mistakes`, or raises the first one if `mistakes` is None.
    """
    collected = Mistakes()
    typing = Typing(stages={stage.name: _stage_typing(program, stage, collected, lowered) for stage in program.stages})
    for error in collected.errors:
        if mistakes is None:
            raise error
        mistakes.add(error)
    return typing


_KNOWN, _KNOWN_LOWERED = ByIdentity[StageTyping](), ByIdentity[StageTyping]()
"""Typings of stages without mistakes, as written and as lowered. Most passes change few stages, and leave the others
the same objects."""


def _stage_typing(program: Program, stage: Stage, mistakes: Mistakes, lowered: bool) -> StageTyping:
    parts, known = (program.tensors, program.params, stage), _KNOWN_LOWERED if lowered else _KNOWN
    typing = known.get(*parts)
    if typing is None and lowered and (written := _KNOWN.get(*parts)) is not None:
        typing = replace(written, locals=dict(written.locals), mistyped=set(written.mistyped), lowered=True)
        known.put(typing, *parts)
    if typing is None:
        of_stage = Mistakes()
        typing = _infer_stage(program, stage, of_stage, lowered)
        if not of_stage.errors:
            known.put(typing, *parts)
        for error in of_stage.errors:
            mistakes.add(error)
    return typing


def _infer_stage(program: Program, stage: Stage, mistakes: Mistakes, lowered: bool) -> StageTyping:
    declared = all_indices(stage)
    indices = {d.name: d for d in declared}
    scalars = frozenset(d.name for d in declared if d.over_ranks or d.number) | counters(stage)
    typing, collected = first = _typed(program, stage, indices, scalars, lowered)
    while collected.errors and (more := _supposed_numbers(typing) - typing.scalar_indices):
        typing, collected = _typed(program, stage, indices, typing.scalar_indices | more, lowered)
    typing, collected = first if collected.errors else (typing, collected)
    for error in collected.errors:
        if isinstance(error, ShapeError):
            _say_numbers(error, typing, typing.scalar_indices - scalars)
        mistakes.add(error)
    return typing


def _say_numbers(error: ShapeError, typing: StageTyping, names: Iterable[str]) -> None:
    """Add to the hint which indices are numbers, and so without axes, by the arithmetic of a coordinate."""
    for name in sorted(names):
        region = place_of_number(typing.program, typing.stage, name)
        if region is not None:
            where = f" in line {region.location.line}" if region.location is not None else ""
            error.hint = (
                f"{error.hint}; {name} is a number, and no axis, by the arithmetic of {print_region(region)}{where}"
            )


def _typed(
    program: Program, stage: Stage, indices: Mapping[str, IndexDecl], scalars: frozenset[str], lowered: bool
) -> tuple[StageTyping, Mistakes]:
    """The typing with at least these indices as numbers, and its mistakes."""
    while True:
        grown = scalars | used_as_numbers(program, stage, scalars)
        typing = StageTyping(program=program, stage=stage, indices=indices, scalar_indices=grown, lowered=lowered)
        mistakes = _settle_locals(typing)
        grown |= batch_indices(stage, typing.axes_of)
        grown |= carried_along(stage, {name: kind.axes for name, kind in typing.locals.items()})
        if grown == scalars:
            # A statement may be ill-typed while the types still grow, and well-typed in the end.
            _check_statements(typing, mistakes)
            return typing, mistakes
        scalars = grown


def _supposed_numbers(typing: StageTyping) -> frozenset[str]:
    """Candidate indices that may be numbers: if they are, an ill-typed stage may be well-typed. The caller tries them.

    If axes do not match, the leading ones are assumed to be superfluous and to exist only because their index is not
    yet known to be a number. A product whose operand has such an axis shows this. A value that a loop accumulates over
    its iterations has no axis along the loop's index either.
    """
    loose = replace(typing, loose=True, locals=dict[str, Type](), mistyped=set[str]())
    _settle_locals(loose)
    leading = batch_indices(loose.stage, loose.axes_of)
    return leading | outliving(loose.stage.body, {name: kind.axes for name, kind in loose.locals.items()})


def _settle_locals(typing: StageTyping) -> Mistakes:
    """Grow the types of names to a fixed point: a constant takes the shape of the values added to it.

    Returns the mistakes in the assigned values, from the last iteration.
    """
    mistakes = Mistakes()
    for _ in range(len(typing.stage.body) + 8):
        before, mistakes = dict(typing.locals), Mistakes()
        typing.mistyped.clear()
        for statement in statements(typing.stage.body):
            if isinstance(statement, Assign):
                count = len(mistakes.errors)
                with mistakes.noted():
                    _settle(typing, statement)
                if len(mistakes.errors) > count:
                    typing.mistyped.add(statement.name)
                typing.made.clear()
        if before == typing.locals:
            break
    return mistakes


def _settle(typing: StageTyping, statement: Assign) -> None:
    old = typing.locals.get(statement.name)
    try:
        new = typing.type_of(statement.value)
    except ConsequenceError:
        typing.mistyped.add(statement.name)
        return
    typing.locals[statement.name] = _merge(old, new, statement) if old else new


def _merge(old: Type, new: Type, statement: Assign) -> Type:
    if (old.dtype == "state") != (new.dtype == "state"):
        message = f"{statement.name} is a softmax state in one place and a tile in another"
        raise DtypeError(message, location=statement.location, hint="use two names")
    dtype = old.dtype if old.dtype == new.dtype else _wider(old.dtype, new.dtype)
    return Type(dtype=dtype, axes=broadcast(old.axes, new.axes, statement))


def _wider(left: str, right: str) -> str:
    """The dtype of a name assigned values of two dtypes; it holds both. Symmetric in its arguments."""
    return arithmetic_dtype(left, right)


def _check_statements(typing: StageTyping, mistakes: Mistakes) -> None:
    """Add a mistake for each value that does not fit the region it is written to."""
    for statement in statements(typing.stage.body):
        with mistakes.noted():
            match statement:
                case Store(region=region, value=value) | Transfer(target=region, source=value):
                    _check_fit(typing, statement, region, value)
                case Notify(region=region) | Wait(region=region):
                    typing.region_type(region)
                case _:
                    pass


def _check_fit(typing: StageTyping, statement: Statement, region: Region, value: Value) -> None:
    target, source = typing.region_type(region), typing.type_of(value)
    if source.dtype == "state":
        raise DtypeError("a softmax state cannot be stored", location=statement.location, hint="store finish(state)")
    if broadcast(target.axes, source.axes, statement) != target.axes:
        message = f"a value of shape {source} does not fit the region {target}"
        hint = "the value may only broadcast to the region"
        named = [axis.index for axis in source.axes if axis.index is not None]
        if again := [index for index in dict.fromkeys(named) if named.count(index) > 1]:
            hint = f"{again[0]} is a tile, and each entry that it names has an axis: `{again[0]}: ... by 1` is a number"
        raise ShapeError(message, location=statement.location, hint=hint)
