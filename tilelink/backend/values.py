"""Lowering of tile values to Triton expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tilelink.backend import nodes
from tilelink.backend.addresses import Addresses, Block, Slice, Slices, along, both
from tilelink.backend.constants import scaled, total
from tilelink.backend.deferred_notifies import Deferred
from tilelink.backend.descriptors import Descriptors, box_of
from tilelink.backend.shapes import strides
from tilelink.backend.tiles import TRITON, Tile, aligned, as_operands, in_kernel, nests, truth
from tilelink.backend.words import literal
from tilelink.errors import EmitError
from tilelink.ir.products import divisible, has_steps, outside
from tilelink.ir.program import (
    COMPUTED,
    F8,
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
    Region,
    Scan,
    Transpose,
    UserCall,
    Value,
    WholePositions,
)
from tilelink.ir.scalar import Ranks, Scalar, binary, const
from tilelink.ir.typing import COMPARISONS, ELEMENT, ONE, Axis, arithmetic_dtype, is_zero, product_dtype

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&", "or": "|",
    "bitand": "&", "bitor": "|", "bitxor": "^",
}  # fmt: skip
FUNCTIONS = {
    "maximum": "tiles.maximum", "minimum": "tiles.minimum", "where": "tl.where", "exp": "tl.exp", "exp2": "tl.exp2",
    "log": "tl.log", "sqrt": "tl.sqrt", "abs": "tl.abs", "rsqrt": "tiles.rsqrt", "silu": "tiles.silu",
    "gelu": "tiles.gelu", "relu": "tiles.relu", "sigmoid": "tiles.sigmoid", "tanh": "tiles.tanh",
    "floordiv": "tiles.quotient", "mod": "tiles.remainder", "shl": "tiles.shift_left", "shr": "tiles.shift_right",
}  # fmt: skip
NEUTRAL = {"sum": "0.0", "max": 'float("-inf")', "min": 'float("inf")'}
NEUTRAL_INTEGER = {
    "i32": {"sum": "0", "max": "-2147483648", "min": "2147483647"},
    "i64": {"sum": "0", "max": "(-9223372036854775807 - 1)", "min": "9223372036854775807"},
}
OF_DTYPE = {"i32": int, "i64": int, "bool": bool, "f32": float}
CONSTANT = Literal | Full | FromScalar | Local
"""Kinds of values that Python may evaluate if they have no axes."""
_LAST = "9223372036854775807"
"""After all integers of 64 bits that are sorted."""
NEUTRAL_CONDITION = {"any": "False", "all": "True"}
REDUCE = {
    "sum": "tl.sum({}, axis={})", "max": "tiles.reduce_max({}, {})", "min": "tiles.reduce_min({}, {})",
    "any": "tiles.reduce_any({}, {})", "all": "tiles.reduce_all({}, {})",
}  # fmt: skip
COMBINE = {
    "sum": "{0} + {1}", "max": "tiles.maximum({0}, {1})", "min": "tiles.minimum({0}, {1})", "any": "{0} | {1}",
    "all": "{0} & {1}",
}  # fmt: skip


def neutral_of(op: str, dtype: str) -> str:
    """Return the value that a reduction to a dtype leaves out of account, in source."""
    if dtype == "bool":
        return NEUTRAL_CONDITION[op]
    return NEUTRAL_INTEGER.get(dtype, NEUTRAL)[op]


def _parts(state: str) -> str:
    """Return the variables of an online softmax: the largest score, the sum of weights and the weighted sum of rows."""
    return f"{state}_m, {state}_l, {state}_acc"


def _kept(slices: Slices, pattern: tuple[bool, ...]) -> Slices:
    """Return the slices of `v[pattern]` as slices of v."""
    kept = {p: part for p, part in slices.items() if pattern[p]}
    return {p + pattern[p:].count(False): part for p, part in kept.items()}


def _with(slices: Slices, moved: Mapping[int, int], position: int, part: Slice | None) -> Slices:
    """Return the slices at their positions in an operand, with a part of one more axis."""
    inner = {moved[p]: s for p, s in slices.items() if p in moved}
    return {**inner, position: part} if part else inner


@dataclass(kw_only=True)
class ValueEmitter:
    """Lowers the values of one stage. Temporaries go to the addresses' writer."""

    addresses: Addresses
    descriptors: Descriptors = field(default_factory=Descriptors)
    deferred: Deferred | None = None
    """Notifies of the previous tile that the product of this one issues."""
    modules: set[str] = field(default_factory=set[str])
    """Modules of user functions that the source must import."""

    def lower(self, value: Value, slices: Slices, raw: bool = False) -> Tile:
        """Lower a value. Reads of narrow types are widened unless `raw`. Deeply nested parts get names."""
        tile = self._lowered(value, slices, raw)
        return self.named(tile) if nests(tile.text) else tile

    def _lowered(self, value: Value, slices: Slices, raw: bool) -> Tile:
        match value:
            case Read():
                return self._read(value, slices, raw)
            case Local(name=name):
                kind = self.addresses.typing.type_of(value)
                return self._named_value(name, self.dtype(kind.dtype), kind.axes, raw)
            case Literal(value=number):
                return Tile(text=literal(number), dtype=self.addresses.typing.type_of(value).dtype)
            case FromScalar(scalar=scalar):
                return Tile(text=self.addresses.scalar(scalar, 9), dtype="i32")
            case Full(value=number, dtype=dtype):
                kind = COMPUTED.get(dtype, dtype)
                return Tile(text=literal(OF_DTYPE[kind](number)), dtype=kind)
            case Apply(op=op, args=args):
                return self._apply(value, op, args, slices, raw)
            case Dot():
                return self._dot(value, slices)
            case Reduce(op="argmax" | "argmin"):
                return self._place_of_best(value, slices)
            case Reduce():
                return self._reduce(value, slices)
            case Scan():
                return self._scan(value, slices)
            case _:
                return self._shaped(value, slices, raw)

    def dtype(self, dtype: str) -> str:
        """Return the concrete element type of a type."""
        return self.addresses.bound.dtype if dtype == ELEMENT else dtype

    def _named_value(self, name: str, dtype: str, axes: tuple[Axis, ...], raw: bool) -> Tile:
        """Return a name's tile, wide if its type is narrow. `divisible` keeps it out of loops that slice its axes."""
        if dtype not in COMPUTED:
            return Tile(text=name, dtype=dtype, axes=axes)
        tile = Tile(text=name, dtype=COMPUTED[dtype], axes=axes)
        return self._cast(tile, dtype) if raw and axes else tile

    def _shaped(self, value: Value, slices: Slices, raw: bool) -> Tile:
        match value:
            case Transpose(value=inner):
                swapped = {{-1: -2, -2: -1}.get(p, p): part for p, part in slices.items()}
                tile = self.lower(inner, swapped, raw)
                axes = (*tile.axes[:-2], tile.axes[-1], tile.axes[-2])
                return Tile(text=f"tl.trans({tile.text})", dtype=tile.dtype, axes=axes)
            case Expand(value=inner, pattern=pattern):
                tile = self.lower(inner, _kept(slices, pattern), raw)
                rest = iter(tile.axes)
                view = ", ".join(":" if kept else "None" for kept in pattern)
                axes = tuple(next(rest) if kept else ONE for kept in pattern)
                return Tile(text=f"({tile.text})[{view}]" if tile.axes else tile.text, dtype=tile.dtype, axes=axes)
            case Cast(value=inner, dtype=dtype):
                tile = self.lower(inner, slices)
                if not tile.axes:  # Python may evaluate it, but `tiles.cast` takes a value of the kernel
                    wide = COMPUTED.get(dtype, dtype)
                    wide = arithmetic_dtype(tile.dtype) if wide == "i32" != dtype else wide
                    tile = Tile(text=f"tl.cast({tile.text}, {TRITON[wide]})", dtype=wide)
                    if wide == dtype:
                        return tile
                tile = self._cast(tile, dtype)
                return tile if raw or dtype not in COMPUTED else self._cast(tile, COMPUTED[dtype])
            case Positions(index=index):
                axis = Axis(kind="tile", index=index)
                part = slices.get(-1)
                start = self._first_position(index)
                steps = along(part, self.addresses.size(axis, part))
                return Tile(text=f"({start} + {steps})", dtype="i32", axes=(axis,))
            case WholePositions(dim=dim):
                axis, part = Axis(kind="whole", dim=dim), slices.get(-1)
                return Tile(text=f"({along(part, self.addresses.size(axis, part))})", dtype="i32", axes=(axis,))
            case Finish(state=state):
                kind = self.addresses.typing.type_of(value)
                name = self._state(state)
                return Tile(text=f"tiles.attend_finish({_parts(name)})", dtype="f32", axes=kind.axes)
            case UserCall(function=function, args=args):
                return self._user_call(function, args, slices)
            case _:
                hint = "assign it to a name first, and use the name"
                raise EmitError(f"cannot render {type(value).__name__} here", location=value.location, hint=hint)

    def _first_position(self, index: str) -> str:
        """Return the first element of an index's tile."""
        stage = self.addresses.stage
        part = stage.parts.get(index)
        own = scaled(index, self.addresses.constants.tile(stage, index))
        if part is None or part.start is None or index in stage.scalar_indices:
            return own
        return total([self.addresses.shared_number(f"start_{index}", binary("max", part.start, const(0))), own])

    def _end(self, index: str) -> str:
        """Return the end (exclusive) of a counted index."""
        stage, part = self.addresses.stage, self.addresses.stage.parts[index]
        stop: Scalar = const(stage.extents[index])
        stop = stop if part.stop is None else binary("min", part.stop, stop)
        return self.addresses.shared_number(f"end_{index}", stop)

    def _state(self, value: Value) -> str:
        if isinstance(value, Local):
            return value.name
        raise EmitError("a softmax state is used by its name", location=value.location, hint="state = attend(...)")

    def _read(self, value: Read, slices: Slices, raw: bool) -> Tile:
        return self._read_where(value, slices, raw, None)

    def _read_where(self, value: Read, slices: Slices, raw: bool, where: str | None) -> Tile:
        """where: a condition of the elements that are read, all if it is None. Others are 0."""
        block = self.addresses.region(value.region, slices, load=True)
        if where is not None:
            block = replace(block, mask=both([one for one in (block.mask, where) if one]))
        name = self.addresses.writer.name(value.region.tensor + "_tile")
        tensor = self.addresses.bound.tensors[value.region.tensor]
        other = "0.0" if tensor.dtype in F8 else "0"
        if value.signal is not None:
            self.addresses.writer.add(self._receive(value.region, value.signal, name, block))
        else:
            self.addresses.writer.load(name, block.pointers, block.mask, other)
        if raw or tensor.dtype not in COMPUTED:
            return Tile(text=name, dtype=tensor.dtype, axes=block.axes)
        wide = COMPUTED[tensor.dtype]
        return Tile(text=f"tiles.cast({name}, {TRITON[wide]})", dtype=wide, axes=block.axes)

    def _receive(self, region: Region, kind: str, name: str, block: Block) -> nodes.Receive:
        """Return the load of a block that waits for its words."""
        addresses = self.addresses
        tensor, grid = addresses.bound.tensors[region.tensor], addresses.bound.channels[region.tensor, kind]
        constants, lows = addresses.constants, addresses.bound.tile_map(addresses.stage.name, region)
        first = [addresses.scalar(one.low, 6) for one in lows.channel_range(grid)]
        buffer = [scaled(f"{grid.tensor}_buffer", constants.channels(grid))] if grid.buffers > 1 else []
        places = map(scaled, first, map(str, strides(grid.counts)))
        return nodes.Receive(
            name=name,
            pointers=block.pointers,
            mask=block.mask,
            dtype=TRITON[tensor.dtype],
            packed=tensor.packed,
            half=tensor.shape[-1] if tensor.halves else 0,
            channel=total([constants.signals(grid), *buffer, *places]),
            stage=addresses.stage.number,
        )

    def named(self, tile: Tile, stem: str = "v") -> Tile:
        """Return the tile under a name, which is assigned if it has none yet."""
        if tile.text.isidentifier():
            return tile
        name = self.addresses.writer.let(self.addresses.writer.name(stem), tile.text)
        return Tile(text=name, dtype=tile.dtype, axes=tile.axes)

    def _apply(self, value: Value, op: str, args: tuple[Value, ...], slices: Slices, raw: bool) -> Tile:
        kind = self.addresses.typing.type_of(value)
        if raw and (read := self._masked_read(value)) is not None:  # a load leaves out what a product does not take
            where = truth(self.lower(args[0], self.of_operand(args[0], slices)))
            return self._read_where(read, slices, raw, aligned(where, len(kind.axes)))
        tiles = [self.lower(a, self.of_operand(a, slices)) for a in args]
        if op not in COMPARISONS and not any(t.axes for t in tiles):  # Python's arithmetic differs
            tiles = [in_kernel(t) if isinstance(a, CONSTANT) else t for a, t in zip(args, tiles, strict=True)]
        narrow = self.dtype(kind.dtype)
        dtype = COMPUTED.get(narrow, narrow)
        tiles = as_operands(op, dtype, tiles)
        size = max(len(t.axes) for t in tiles)
        axes = max((t.axes for t in tiles), key=len)
        for tile in tiles:
            padded = (ONE,) * (size - len(tile.axes)) + tile.axes
            axes = tuple(p if a == ONE else a for a, p in zip(axes, padded, strict=True))
        texts = [aligned(t, size) for t in tiles]
        if op == "neg":
            return Tile(text=f"(-{texts[0]})", dtype=dtype, axes=axes)
        if op == "not":
            text = f"(not {texts[0]})" if not axes else f"({texts[0]} == 0)"
            return Tile(text=text, dtype=dtype, axes=axes)
        if op in INFIX:
            return Tile(text=f"({texts[0]} {INFIX[op]} {texts[1]})", dtype=dtype, axes=axes)
        tile = Tile(text=f"{FUNCTIONS[op]}({', '.join(texts)})", dtype=dtype, axes=axes)
        return self._cast(tile, narrow) if raw and narrow != dtype else tile

    def _masked_read(self, value: Value) -> Read | None:
        """Return the read of `where(condition, region, 0)`, whose condition says which elements are needed, or None."""
        if not isinstance(value, Apply) or value.op != "where":
            return None
        _, read, other = value.args
        if not isinstance(read, Read) or read.signal is not None or not is_zero(other):
            return None
        typing = self.addresses.typing
        return read if typing.type_of(read) == typing.type_of(value) else None

    def of_operand(self, value: Value, slices: Slices) -> Slices:
        """Return the slices of a broadcast value that apply to its operand."""
        axes = self.addresses.typing.type_of(value).axes
        return {p: part for p, part in slices.items() if -p <= len(axes) and axes[p] != ONE}

    # Contractions and reductions -----------------------------------------------------------------------------

    def _loop(self, axis: Axis, divisible: bool, body: Callable[[Slice | None], None]) -> None:
        """Run `body` once, or in a loop over blocks if the axis is longer than the stage's block."""
        extent = self.addresses.extent(axis)
        over_ranks = axis.kind == "whole" and isinstance(axis.dim, Ranks)
        block = 1 if over_ranks else self.contraction_block
        if not divisible or extent <= block:
            body(None)
            return
        name = self.addresses.writer.name("k")
        size = "1" if over_ranks else self.addresses.constants.step(self.addresses.stage, block)
        steps = ["0", self.addresses.constants.elements_of(self.addresses.stage, axis), *([size] if block > 1 else [])]
        with self.addresses.writer.block(nodes.Loop(index=name, over=f"range({', '.join(steps)})")):
            body(Slice(start=name, block=block, size=size))

    @property
    def contraction_block(self) -> int:
        """Return the elements of a contracted axis in one step of its loop."""
        return self.addresses.bound.contraction_block(self.addresses.stage.name)

    def _dot(self, value: Dot, slices: Slices) -> Tile:
        typing = self.addresses.typing
        kind = typing.type_of(value)
        if len(kind.axes) != 2:
            raise EmitError(f"dot of {kind}", location=value.location, hint="dot multiplies tiles of two axes")
        writer = self.addresses.writer
        acc = writer.name("acc")
        writer.call("tl.zeros", self.addresses.dims(kind.axes, slices), to=acc, dtype=TRITON[kind.dtype])
        self.product(value, acc, slices)
        return Tile(text=acc, dtype=kind.dtype, axes=kind.axes)

    def product(
        self,
        value: Dot,
        acc: str,
        slices: Slices,
        before: Callable[[Slice | None], None] | None = None,
    ) -> None:
        """Emit the addition of a product to an accumulator.

        before: renders what precedes a step of its loop, or all of it (None).
        """
        typing = self.addresses.typing
        axis = typing.type_of(value.left).axes[-1]
        if before is None:
            self._look_up(value, slices)

        def body(part: Slice | None) -> None:
            if part is not None and self.deferred is not None and value is self.deferred.product:
                self.deferred.in_product(part)
            if before is not None:
                before(part)
            a = self._operand(value.left, -1, _with(slices, {-2: -2}, -1, part))
            b = self._operand(value.right, -2, _with(slices, {-1: -1}, -2, part))
            a, b = self._same_dtype(a, b)
            self.addresses.writer.call("tiles.dot", a.text, b.text, acc, to=acc)

        self._loop(axis, has_steps(typing, value), body)

    def _look_up(self, product: Dot, slices: Slices) -> None:
        """Read, before the loop of a product, the entries of index tensors that say where its operands lie."""
        for operand, kept, contracted in ((product.left, -2, -1), (product.right, -1, -2)):
            own = _with(slices, {kept: kept}, contracted, None)
            if isinstance(operand, Transpose):
                operand, contracted = operand.value, kept
                own = {-3 - position: part for position, part in own.items()}
            if isinstance(operand, Read):
                self.addresses.look_up(operand.region, own, {contracted})

    def _operand(self, value: Value, position: int, slices: Slices) -> Tile:
        """Lower an operand of a product. A computed operand is zero beyond the end of the contracted axis."""
        if (box := self._box(value, position, slices)) is not None:
            return box
        return self._zero_beyond(value, position, slices)

    def _zero_beyond(self, value: Value, position: int, slices: Slices) -> Tile:
        """Lower a value that is zero beyond the end of an axis. A read is zero there already."""
        tile = self.lower(value, slices, raw=True)
        inner = value.value if isinstance(value, Transpose) else value
        there = isinstance(inner, Read) or self._masked_read(inner) is not None
        return tile if there else self._masked(tile, position, slices, "0.0")

    def _box(self, value: Value, position: int, slices: Slices) -> Tile | None:
        """Return a read operand, transposed or not, that a descriptor can load, or None. A product asks for no axes."""
        if isinstance(value, Transpose):
            swapped = {-3 - p: part for p, part in slices.items()}
            box = self._box(value.value, -3 - position, swapped)
            return box and replace(box, text=f"tl.trans({box.text})")
        if not isinstance(value, Read):
            return None
        box = box_of(self.descriptors, self.addresses, value, position, slices)
        if box is None:
            return None
        name = self.addresses.writer.name(value.region.tensor + "_tile")
        self.addresses.writer.call(f"{box.descriptor}.load", f"[{box.row}, {box.column}]", to=name)
        return Tile(text=name, dtype=self.addresses.bound.tensors[value.region.tensor].dtype)

    def _masked(self, tile: Tile, position: int, slices: Slices, neutral: str) -> Tile:
        """Return the tile with a neutral value beyond the end of an axis. position: counted from the last axis."""
        axis, part = tile.axes[position], slices.get(position)
        extent, block = self.addresses.extent(axis), self.addresses.block(axis, part)
        limits: list[str] = []
        constants, stage = self.addresses.constants, self.addresses.stage
        steps, elements = along(part, self.addresses.size(axis, part)), constants.elements_of(stage, axis)
        if block > extent or (part and extent % block):
            limits.append(f"{steps} < {elements}")
        if axis.kind == "tile" and str(axis.index) in stage.parts:
            limits.append(f"{self._first_position(str(axis.index))} + {steps} < {self._end(str(axis.index))}")
        elif axis.kind == "tile" and stage.extents[str(axis.index)] % extent:
            start = scaled(str(axis.index), elements)
            limits.append(f"{start} + {steps} < {constants.extent(stage, str(axis.index))}")
        mask = both(limits)
        if mask is None:
            return tile
        view = ", ".join(":" if p - len(tile.axes) == position else "None" for p in range(len(tile.axes)))
        mask = f"({mask})[{view}]" if len(tile.axes) > 1 else mask
        text = f"tl.where({mask}, {tile.text}, {neutral})"
        if tile.dtype in (*F8, "i8"):  # an operand of a product
            text = f"tiles.zero_beyond({self.named(tile).text}, {mask})"
        return Tile(text=text, dtype=tile.dtype, axes=tile.axes)

    def _same_dtype(self, a: Tile, b: Tile) -> tuple[Tile, Tile]:
        """Return the operands of a product with a common element type."""
        dtype = product_dtype(a.dtype, b.dtype)
        return tuple(t if t.dtype == dtype else self._cast(t, dtype) for t in (a, b))  # type: ignore[return-value]

    def _cast(self, tile: Tile, dtype: str) -> Tile:
        named = self.named(tile)
        return Tile(text=f"tiles.cast({named.text}, {TRITON[dtype]})", dtype=dtype, axes=tile.axes)

    def _reduce(self, value: Reduce, slices: Slices) -> Tile:
        typing = self.addresses.typing
        kind = typing.type_of(value.value)
        position = value.axis % len(kind.axes)
        axis = kind.axes[position]
        result = typing.type_of(value)
        writer = self.addresses.writer
        total = writer.name("total")
        neutral = neutral_of(value.op, result.dtype)
        dims = self.addresses.dims(result.axes, slices)
        writer.let(total, f"tl.full({dims}, {neutral}, {TRITON[result.dtype]})")
        from_last = position - len(kind.axes)
        moved = {p: outside(p, position, len(result.axes)) for p in slices}

        def body(part: Slice | None) -> None:
            inner = _with(slices, moved, from_last, part)
            (tile,) = as_operands(value.op, result.dtype, [self.lower(value.value, inner)])
            tile = self.named(self._masked(tile, from_last, inner, neutral))
            text = REDUCE[value.op].format(tile.text, position)
            writer.let(total, COMBINE[value.op].format(total, text))

        self._loop(axis, divisible(typing, value.value, from_last), body)
        return Tile(text=total, dtype=result.dtype, axes=result.axes)

    def _place_of_best(self, value: Reduce, slices: Slices) -> Tile:
        """Lower `argmax` or `argmin`: of the blocks of the axis, the first one with the best element counts."""
        typing, writer = self.addresses.typing, self.addresses.writer
        kind, result = typing.type_of(value.value), typing.type_of(value)
        position = value.axis % len(kind.axes)
        from_last, op = position - len(kind.axes), value.op.removeprefix("arg")
        dtype = arithmetic_dtype(kind.dtype)
        neutral = neutral_of(op, dtype)
        best, place = writer.name("best"), writer.name("place")
        dims = self.addresses.dims(result.axes, slices)
        writer.let(best, f"tl.full({dims}, {neutral}, {TRITON[dtype]})")
        writer.let(place, f"tl.full({dims}, 0, tl.int32)")
        moved = {p: outside(p, position, len(result.axes)) for p in slices}
        better = ">" if op == "max" else "<"

        def body(part: Slice | None) -> None:
            inner = _with(slices, moved, from_last, part)
            (tile,) = as_operands(op, dtype, [self.lower(value.value, inner)])
            tile = self.named(self._masked(tile, from_last, inner, neutral))
            top = writer.let(writer.name("top"), REDUCE[op].format(tile.text, position))
            start = f"{part.start} + " if part else ""
            here = f"{start}tiles.first_of({tile.text}, {top}, {position})"
            writer.let(place, f"tl.where({top} {better} {best}, {here}, {place})")
            writer.let(best, COMBINE[op].format(best, top))

        self._loop(kind.axes[position], divisible(typing, value.value, from_last), body)
        return Tile(text=place, dtype="i32", axes=result.axes)

    def _scan(self, value: Scan, slices: Slices) -> Tile:
        """Lower `cumsum`, `sort` or `argsort`. Its axis is never divided into blocks (ir/products.py)."""
        if value.op != "cumsum":
            return self._sorted(value, slices)
        kind = self.addresses.typing.type_of(value)
        (tile,) = as_operands(value.op, kind.dtype, [self.lower(value.value, slices)])
        text = f"tl.cumsum({tile.text}, axis={value.axis % len(kind.axes)})"
        return self.named(Tile(text=text, dtype=kind.dtype, axes=kind.axes), "sums")

    def _sorted(self, value: Scan, slices: Slices) -> Tile:
        """Lower `sort` or `argsort`: the axis becomes the last one, and what is beyond its end comes last."""
        typing, writer = self.addresses.typing, self.addresses.writer
        kind, result = typing.type_of(value.value), typing.type_of(value)
        dtype, rank = arithmetic_dtype(kind.dtype), len(kind.axes)
        position = value.axis % rank
        (tile,) = as_operands(value.op, dtype, [self.lower(value.value, slices)])
        order = [*(n for n in range(rank) if n != position), position]
        back = [order.index(n) for n in range(rank)]
        text, moved = tile.text, position != rank - 1
        if moved:
            text = f"tl.permute({text}, {order})"
        axes = tuple(kind.axes[n] for n in order)
        if dtype != "i64":
            text = f"tiles.sort_keys({self.named(Tile(text=text, dtype=dtype, axes=axes)).text})"
        at = {order.index(p + rank) - rank: part for p, part in slices.items() if -rank <= p}
        keys = self._masked(Tile(text=text, dtype="i64", axes=axes), -1, at, _LAST)
        sizes = [self.addresses.block(axis, at.get(n - rank)).bit_length() - 1 for n, axis in enumerate(axes)]
        text = keys.text if not sizes[-1] else f"tiles.sorted_keys({keys.text}, {sum(sizes)}, {sizes[-1]})"
        found = writer.let(writer.name("rising"), text)
        if value.op == "argsort":
            found = f"tiles.keyed_places({found})"
        elif dtype != "i64":
            found = f"tiles.keyed_numbers({found}, {TRITON[dtype]})"
        text = f"tl.permute({found}, {back})" if moved else found
        return self.named(Tile(text=text, dtype=result.dtype, axes=result.axes), "rising")

    # Attention and users' functions --------------------------------------------------------------------------

    def begin_state(self, name: str) -> None:
        """Emit `name = online_softmax(f32)`: three variables."""
        axes = self.addresses.typing.locals[name].axes
        if not axes:
            return  # unused
        rows, columns = (self.addresses.size(axis, None) for axis in axes)
        self.addresses.writer.call("tiles.attend_begin", rows, columns, to=_parts(name))

    def copy_state(self, name: str, other: str) -> None:
        """Emit `name = other` for a softmax state."""
        self.addresses.writer.let(_parts(name), _parts(other))

    def attend(self, name: str, value: Attend) -> None:
        """Emit `name = attend(state, q, k, v, scale, mask)`."""
        writer = self.addresses.writer
        scores = self.named(self.lower(Dot(left=value.q, right=Transpose(value=value.k)), {}), "scores")
        scale = self.lower(value.scale, {})
        writer.let(scores.text, f"{scores.text} * {scale.text}")
        if value.mask is not None:
            mask = truth(self.lower(value.mask, {}))
            writer.let(scores.text, f'tl.where({aligned(mask, 2)}, {scores.text}, float("-inf"))')
        masked = self._masked(scores, -1, {}, 'float("-inf")')
        if masked.text != scores.text:
            writer.let(scores.text, masked.text)
        v = self.named(self._zero_beyond(value.v, -2, {}))  # a weight of 0 does not remove an infinite value
        old = self._state(value.state)
        writer.call("tiles.attend_step", _parts(old), scores.text, v.text, to=_parts(name))

    def _user_call(self, function: str, args: tuple[Value, ...], slices: Slices) -> Tile:
        if "." in function:
            self.modules.add(function.rpartition(".")[0])
        if slices:
            raise EmitError(f"{function} cannot be cut into slices", hint="assign its value to a name first")
        tiles = [self.lower(a, {}) for a in args]
        axes = tiles[0].axes if tiles else ()
        call = f"{function}({', '.join(t.text for t in tiles)})"
        return Tile(text=f"tiles.cast({call}, tl.float32)", dtype="f32", axes=axes)  # for any type that it returns
