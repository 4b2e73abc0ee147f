"""Roles of warps in a loop that carries a state (lowering/carried.py), in Gluon: statements of loader and consumers.

The storer is that of any kernel with roles (backend/storer.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar

from tilelink.backend import nodes
from tilelink.backend.addresses import Slices
from tilelink.backend.constants import LEVEL, scaled, total
from tilelink.backend.consumer_values import ConsumerValueEmitter
from tilelink.backend.roles import KEPT_PHASE, Consumer, Loader, RingPosition
from tilelink.backend.roles_shared import LoopShared, Shared
from tilelink.backend.tiles import TRITON, Tile
from tilelink.backend.tma_copy import corner
from tilelink.backend.values import COMBINE, ValueEmitter, neutral_of
from tilelink.backend.words import literal
from tilelink.ir.products import operand_region
from tilelink.ir.program import (
    COMPUTED,
    Apply,
    Assign,
    Expand,
    Positions,
    Read,
    Reduce,
    Region,
    Statement,
    Store,
    Transfer,
    Value,
    Wait,
)
from tilelink.ir.scalar import Scalar, const, indices_in, mul
from tilelink.ir.sizes import power_of_two
from tilelink.ir.typing import Axis
from tilelink.ir.visitor import local_names, reads, value_of
from tilelink.lowering.carried import ROWS, LoopProduct, computes_with_iterations, number_of, row_sums
from tilelink.lowering.channel_waits import repeated
from tilelink.lowering.masks import expression_of, extremes_of
from tilelink.lowering.rings import ARRIVE, AWAIT, KEPT, LEADING, OPERANDS, Step, parts_of, positions_of
from tilelink.lowering.role_bodies import RoleBody

REDUCTIONS = {"sum": "roles.row_sum", "max": "roles.row_max", "min": "roles.row_min"}
PART_COLUMNS = 64
"""Most elements of a whole dimension that are reduced at once for each row: they take 32 registers of a thread."""
KEPT_POSITION = RingPosition(buffer="0", phase=KEPT_PHASE)
"""The only position of the ring of what is kept."""


@dataclass(kw_only=True)
class LoopLoader(Loader):
    """The warp that waits for signals, and loads what is kept and the operands of all iterations."""

    results: ClassVar[tuple[str, ...]] = (KEPT_PHASE,)

    @property
    def loop(self) -> LoopShared:
        assert isinstance(self.shared, LoopShared)
        return self.shared

    def tile(self, body: RoleBody) -> None:
        tile, writer, stage = self.loop.tile, self.writer, self.values.addresses.stage
        constants, addresses = self.values.addresses.constants, self.values.addresses
        for wait in (s for s in body if isinstance(s, Wait)):
            self._ordered(wait)
        iteration, before = writer.let(writer.name("iteration"), "0"), writer.let(writer.name("before"), "0")
        skipped = repeated(addresses.bound, stage, tile) if stage.skips_repeated_waits else ()
        last = {id(wait): self._awaited(wait) for wait in skipped}
        steps = parts_of(self.at[OPERANDS])
        iterations, start, stop, there = self.loop.range, "", "", ""
        counted = iterations is not None and iterations.index in stage.parts
        if iterations is not None:
            start, stop = addresses.scalar(iterations.start), addresses.scalar(iterations.stop)
        if counted:
            start, stop = writer.let(writer.name("start"), start), writer.let(writer.name("stop"), stop)
        with ExitStack() as loops:
            for decl in tile.loop.indices:
                over = f"range(0, {constants.count(stage, decl.name)})"
                if iterations is not None and iterations.index == decl.name:
                    if counted and tile.awaited:  # an iteration that is not there waits, too
                        there = f"({start} <= {decl.name}) & ({decl.name} < {stop})"
                    else:
                        over = f"range({start}, {stop})"
                elif stage.count(decl.name) == 1:
                    writer.let(decl.name, "0")
                    continue
                loops.enter_context(writer.block(nodes.Loop(index=decl.name, over=over)))
            for wait in tile.awaited:
                self._wait_for_new(wait, last.get(id(wait)))
            if there:
                loops.enter_context(writer.block(nodes.Branch(condition=there)))
            with writer.block(nodes.Branch(condition=f"{iteration} == 0")):
                self._load_kept()
            for place, region in enumerate(tile.streamed):
                row, _ = corner(addresses, region, load=True, column=False)
                own = [replace(step, ahead=0) for step in steps.each if step.ahead == place]
                if not place:
                    self.comment(tile.leading[0].statement)
                if place and steps.last:
                    with writer.block(nodes.Branch(condition=f"{iteration} > 0")):
                        self._streamed(own, before)
                    writer.let(before, row)
                else:
                    self._streamed(own, row)
            writer.let(iteration, f"{iteration} + 1")
        some = iterations is None or iterations.nonempty
        if not some:
            with writer.block(nodes.Branch(condition=f"{iteration} == 0")):
                self._load_kept()
        if steps.last:
            with ExitStack() as branch:
                if not some:
                    branch.enter_context(writer.block(nodes.Branch(condition=f"{iteration} > 0")))
                self._streamed(steps.last, before)
        writer.let(KEPT_PHASE, f"{KEPT_PHASE} ^ 1")

    def _load_kept(self) -> None:
        boxes: dict[str, tuple[str, str, str]] = {}
        for what, region in self.loop.kept_operands.items():
            row, _ = corner(self.values.addresses, region, load=True, column=False)
            boxes[what] = self.loop.boxes_of(what), row, "0"
        self.load(self.at[KEPT].steps, boxes, KEPT_POSITION)

    def _streamed(self, steps: Sequence[Step], row: str) -> None:
        """Load the operand that is the last of some steps."""
        what = steps[-1].what
        self.load(steps, {what: (self.loop.boxes_of(what), row, "0")}, self.position, go_on=True)

    def _awaited(self, wait: Wait) -> str:
        """Emit the variable for the channel that a tile has awaited last by a wait, -1 before the first time."""
        return self.writer.let(self.writer.name(f"{wait.region.tensor}_awaited"), "-1")

    def _wait_for_new(self, wait: Wait, last: str | None) -> None:
        """Emit a wait, which an iteration leaves out if the tile has waited for its channel, `last`, just before."""
        if last is None:
            self._ordered(wait)
            return
        channel = self.writer.shared("channel", self.channel_of(wait))
        with self.writer.block(nodes.Branch(condition=f"{channel} != {last}")):
            self.writer.let(last, channel)
            self._ordered(wait)


@dataclass(kw_only=True)
class _IterationValues(ValueEmitter):
    """Lowers the values of a consumer in such a loop.

    like: a tile of the rows and columns that are computed with. replaced: names that stand for a part of a tile.
    tile_like: a tile of the rows of a tile and the columns of an iteration. loaded: names of what has been loaded.
    first: the first column of a part of a whole dimension, "" for none.
    """

    shared: LoopShared
    like: str = ""
    replaced: dict[str, str]
    tile_like: str = ""
    loaded: dict[Region, str] = field(default_factory=dict[Region, str])
    first: str = ""

    def _named_value(self, name: str, dtype: str, axes: tuple[Axis, ...], raw: bool) -> Tile:
        if name in self.replaced:
            return Tile(text=self.replaced[name], dtype="f32", axes=axes)
        return super()._named_value(name, dtype, axes, raw)

    def _shaped(self, value: Value, slices: Slices, raw: bool) -> Tile:
        kind = self.addresses.typing.type_of(value)
        match value:
            case Expand(value=inner, pattern=pattern) if pattern == ROWS:
                tile = self.lower(inner, slices)
                return replace(tile, text=f"roles.across({tile.text}, {self.like})", axes=kind.axes)
            case Positions(index=index):
                return Tile(text=self._positions(index), dtype="i32", axes=kind.axes)
            case _:
                return super()._shaped(value, slices, raw)

    def _positions(self, index: str) -> str:
        shared, own = self.shared, scaled(index, self.addresses.constants.tile(self.addresses.stage, index))
        if index == self.row_index:
            return f"({total([own, scaled('PART', shared.rows)])} + roles.rows({self.like}))"
        return f"({own} + roles.columns({self.like}))"

    @property
    def row_index(self) -> str | None:
        return self.addresses.typing.region_type(self.shared.tile.kept[0]).axes[0].index

    def _read(self, value: Read, slices: Slices, raw: bool) -> Tile:
        name = self.loaded.get(value.region) or self.load(value.region)
        self.loaded[value.region] = name
        dtype = self.addresses.bound.tensors[value.region.tensor].dtype
        name = f"roles.gathered({name}, {self.like})" if self.is_spread(value.region) else name
        wide = COMPUTED.get(dtype, dtype)
        text = name if wide == dtype else f"{name}.to({TRITON[wide]})"
        return Tile(text=text, dtype=wide, axes=self.addresses.typing.region_type(value.region).axes)

    def load(self, region: Region) -> str:
        """Load what is computed with, for the tile `like`, and return its name."""
        addresses, axes = self.addresses, self.addresses.typing.region_type(region).axes
        if axes and axes[-1].kind == "whole":
            pointers = f"{total(self._places.corner(region, load=True))} + {self.whole_columns}"
            mask = f"{self.whole_columns} < {addresses.constants.elements_of(addresses.stage, axes[-1])}"
        else:
            pointers, mask = replace(self._places, spread=self.is_spread(region)).pointers(region, None)
        there = f", mask={mask}, other=0" if mask else ""
        return addresses.writer.let(addresses.writer.name(f"{region.tensor}_tile"), f"gl.load({pointers}{there})")

    def is_spread(self, region: Region) -> bool:
        """True for a vector of the columns of an iteration: it takes few registers until it is computed with."""
        axes = self.addresses.typing.region_type(region).axes
        return len(axes) == 1 and axes[0].kind == "tile" and axes[0].index == self.shared.column_index

    @property
    def whole_columns(self) -> str:
        """Return the numbers of the columns of a part of a whole dimension."""
        return total([*([self.first] if self.first else []), f"roles.columns({self.like})"])

    @property
    def _places(self) -> ConsumerValueEmitter:
        return ConsumerValueEmitter(addresses=self.addresses, shared=self.shared, parts=[self.like])

    def _reduce(self, value: Reduce, slices: Slices) -> Tile:
        kind = self.addresses.typing.type_of(value)
        dtype, axis = COMPUTED.get(kind.dtype, kind.dtype), self.addresses.typing.type_of(value.value).axes[-1]
        if axis.kind == "whole":
            return Tile(text=self._reduced(value, axis, dtype), dtype=dtype, axes=kind.axes)
        tile = self.lower(value.value, slices)
        return Tile(text=f"{REDUCTIONS[value.op]}({tile.text})", dtype=dtype, axes=kind.axes)

    def _reduced(self, value: Reduce, axis: Axis, dtype: str) -> str:
        """Reduce a whole dimension for each row, part by part, and return the name of the result."""
        writer, addresses, shared, like = self.addresses.writer, self.addresses, self.shared, self.like
        extent = addresses.extent(axis)
        size, none = min(PART_COLUMNS, max(8, power_of_two(extent))), neutral_of(value.op, dtype)
        found, some = writer.name("found"), writer.name("some")
        writer.let(found, f"roles.filled_rows_of({none}, {TRITON[dtype]}, {shared.rows}, {shared.block})")
        self.first, known, self.loaded = writer.name("k"), self.loaded, {}
        with writer.block(nodes.Loop(index=self.first, over=f"range(0, {extent}, {size})")):
            self.like = writer.let(some, f"roles.filled(0.0, {shared.rows}, {size})")
            tile = self.lower(value.value, {})
            text = tile.text
            if extent % size:
                text = f"gl.where(({self.whole_columns} < {extent})[None, :], {text}, {none})"
            part = f"roles.of_rows({REDUCTIONS[value.op]}({text}), {like})"
            writer.let(found, COMBINE[value.op].format(found, part))
            self.like, self.first, self.loaded = like, "", known
        return found

    def _apply(self, value: Value, op: str, args: tuple[Value, ...], slices: Slices, raw: bool) -> Tile:
        if (number := number_of(value)) is not None:
            return Tile(text=_literal(number), dtype="f32")
        axes = self.addresses.typing.type_of(value).axes
        if (expression := expression_of(value)) is not None:
            return Tile(text=self.addresses.scalar(expression, LEVEL["*"]), dtype="i32")
        if op == "exp2":
            return Tile(text=f"gl.exp2({self.lower(args[0], slices).text})", dtype="f32", axes=axes)
        return super()._apply(value, op, args, slices, raw)


def needed(after: tuple[Statement, ...], store: Store | Transfer, some: Sequence[Assign]) -> list[Assign]:
    """Return those of some statements before a store that its value is computed from."""
    value, found = value_of(store), list[Assign]()
    names = local_names(value) if value is not None else set[str]()
    for statement in reversed(after[: after.index(store)]):
        if isinstance(statement, Assign) and statement.name in names and any(statement is s for s in some):
            names = names - {statement.name} | local_names(statement.value)
            found.insert(0, statement)
    return found


def _literal(number: float) -> str:
    return literal(number) if math.isfinite(number) else f'float("{number}")'


@dataclass(kw_only=True)
class LoopConsumer(Consumer):
    """The warps that multiply and compute some rows of a tile, iteration by iteration.

    operands_of: names of the left operands of the next trailing products. places: the positions of an iteration, the
    current one first. sums: names that are several sums of each row until the loop has ended (lowering/carried.py).
    """

    # What is called the previous position is the phase of the only position of what is kept.
    operands: ClassVar[tuple[str, ...]] = ("buffer", "phase", KEPT_PHASE)
    operands_of: tuple[str, ...] = ()
    sums: Mapping[str, tuple[Value | None, Value]] = field(default_factory=dict[str, tuple[Value | None, Value]])
    places: tuple[RingPosition, ...] = ()

    @classmethod
    def values_of(cls, shared: Shared) -> ValueEmitter:
        assert isinstance(shared, LoopShared)
        return _IterationValues(addresses=shared.addresses, shared=shared, replaced={})

    @property
    def loop(self) -> LoopShared:
        assert isinstance(self.shared, LoopShared)
        return self.shared

    @property
    def iterations(self) -> _IterationValues:
        assert isinstance(self.values, _IterationValues)
        return self.values

    def tile(self, body: RoleBody) -> None:
        tile, writer, shared = self.loop.tile, self.writer, self.loop
        stage = self.values.addresses.stage
        self.sums = {name: one for name, one in row_sums(tile).items() if name in stage.row_sums}
        for statement in tile.begin:
            self.comment(statement)
            self._begun(statement)
        self.operands_of = tuple(writer.name("operand") for _ in tile.trailing)
        later = (RingPosition(buffer=writer.name("later"), phase=writer.name("later_phase")) for _ in tile.streamed[1:])
        self.places = (self.position, *later)
        steps = parts_of(self.at[OPERANDS])
        ready = [step for step in self.at[KEPT].steps if step.word == AWAIT]
        vacant = [step for step in self.at[KEPT].steps if step.word == ARRIVE]
        early = shared.reads_early or not any(reads(s.value) for s in tile.vectors)
        peeled, iterations, start = bool(steps.last), shared.range, "0"
        some = iterations is None or iterations.nonempty
        after = bool(tile.stored) and not (peeled and some)  # products of the loop have no names after it
        if early:
            self._vectors(after)
        self.steps(ready, KEPT_POSITION)
        if not early:  # all signals of the tile have come: the loader has loaded what is kept after them
            self._vectors(after)
        stop = shared.number(shared.iterations, "ITERATIONS") if iterations is None else ""
        if iterations is not None:
            start = self._scaled(iterations.start, iterations.inner)
            start = start if start.isdigit() else writer.let(writer.name("start"), start)
            stop = writer.let(writer.name("stop"), self._scaled(iterations.stop, iterations.inner))
        each = writer.name("number")
        with ExitStack() as branch:
            if not some and peeled:
                branch.enter_context(writer.block(nodes.Branch(condition=f"{start} < {stop}")))
            if peeled:
                self._iteration(steps.first, start, first=True)
            if not peeled or shared.iterations > 1:
                begin = start if not peeled else "1" if start == "0" else f"{start} + 1"
                with writer.block(nodes.Loop(index=each, over=f"range({begin}, {stop})")):
                    self._iteration(steps.each, each)
            self.steps(vacant, KEPT_POSITION)
            if peeled:
                self._iteration(steps.last, None)
        if not some and peeled:
            with writer.block(nodes.Otherwise()):
                self.steps(vacant, KEPT_POSITION)
        writer.let(KEPT_PHASE, f"{KEPT_PHASE} ^ 1")
        for name in self.sums:
            writer.let(name, f"roles.whole_sums({name}, {shared.block})")
        self._results(tile.after)

    def _vectors(self, like: bool) -> None:
        """Lower what is computed once a tile, and the extremes that conditions of masks name. like: what has the shape
        of products is needed in any case."""
        tile, writer, iterations, shared = self.loop.tile, self.writer, self.iterations, self.loop
        stage, bound = self.values.addresses.stage, self.values.addresses.bound
        if tile.loaded or tile.vectors or like:
            iterations.like = writer.let(writer.name("like"), f"roles.filled(0.0, {shared.rows}, {shared.block})")
        iterations.tile_like = iterations.like
        for statement in tile.vectors:
            self.comment(statement)
            self._assign(statement.name, statement.value)
        conditions = [when for mask in stage.masks for when in (mask.first, mask.further) if isinstance(when, Scalar)]
        named = indices_in(*conditions)
        for name, one in extremes_of(bound, stage).items() if named else ():
            if name in named:
                writer.let(name, f"roles.{'largest' if one.most else 'smallest'}({one.vector})")

    def _begun(self, statement: Assign) -> None:
        """Lower a name's number before the loop, as a tile of the name's shape."""
        axes = self.values.addresses.typing.locals[statement.name].axes
        number = number_of(statement.value)
        assert number is not None
        if statement.name in self.sums:
            shared = self.loop
            zeros = f"roles.filled({_literal(number)}, {shared.rows}, {shared.block})"
            self.writer.let(statement.name, f"roles.partial_sums({zeros})")
            return
        self.writer.let(statement.name, self._filled(number, axes))

    def _filled(self, number: float, axes: tuple[Axis, ...]) -> str:
        shared, text = self.loop, _literal(number)
        if not axes:
            return text
        columns = shared.columns if len(axes) > 1 and axes[-1].kind == "whole" else shared.block
        make = "roles.filled" if len(axes) > 1 else "roles.filled_rows"
        return f"{make}({text}, {shared.rows}, {columns})"

    def _iteration(self, steps: tuple[Step, ...], number: str | None, *, first: bool = False) -> None:
        """Lower the steps of an iteration. number: of it, None after the last one. first: True for a tile's first."""
        writer, tile, places = self.writer, self.loop.tile, self.places[: positions_of(steps)]
        for one, following in pairwise(places):
            self.follow(one, following, self.shared.buffers)
        if number is not None and computes_with_iterations(tile):
            self._indices(number)
        flying: list[str] = []
        for step in steps:
            at = places[step.ahead]
            match step.word:
                case "multiply":
                    flying.append(self._multiplied(step.what, at))
                    if step.what == LEADING:  # its buffer is full, so that all signals of the iteration have come
                        self._load(0)
                case "retire":
                    done, flying = (flying[: -step.number], flying[-step.number :]) if step.number else (flying, [])
                    for name in done:
                        writer.call("roles.retire", name, to=name, FLYING=step.number)
                case "compute":
                    masks = {one.statement: one for one in self.values.addresses.stage.masks}
                    for place, statement in enumerate(tile.compute):
                        if tile.levels[place] == step.number:
                            self.comment(statement)
                            mask = masks.get(place)
                            self._computed(statement, True if mask is None else mask.first if first else mask.further)
                    self._load(step.number + 1)
                case "carry":
                    self._carry(tile.trailing[step.number], self.operands_of[step.number])
                case _:
                    self.steps((step,), at)
        self.follow(places[-1], self.position, self.shared.buffers)

    def _load(self, level: int) -> None:
        """Load what an iteration computes with at a level, while the product is in flight that this needs.

        Vectors that are spread over threads are loaded for all levels at once.
        """
        iterations, tile = self.iterations, self.loop.tile
        iterations.like, known = iterations.tile_like, iterations.loaded if level else {}
        needed = [one for one in tile.reads if one not in known]
        needed = [one for one in needed if one in tile.reads_at(level) or iterations.is_spread(one)]
        with self.writer.apart():
            found = {region: iterations.load(region) for region in needed}
        iterations.loaded = {**known, **found}

    def _scaled(self, scalar: Scalar, number: int) -> str:
        return self.values.addresses.scalar(mul(scalar, const(number)) if number > 1 else scalar)

    def _indices(self, number: str) -> None:
        """Emit the indices of an iteration, of which the last runs fastest."""
        stage, constants = self.values.addresses.stage, self.values.addresses.constants
        decls, rest = self.loop.tile.loop.indices, number
        iterations = self.loop.range
        for at, decl in reversed(list(enumerate(decls))):
            count = constants.count(stage, decl.name)
            if number == "0" or stage.count(decl.name) == 1:
                self.writer.let(decl.name, "0")
                continue
            outer = at == 0 or (iterations is not None and iterations.index == decl.name)
            self.writer.let(decl.name, rest if outer else f"{rest} % {count}")
            rest = f"{rest} // {count}" if rest == number else f"({rest}) // {count}"

    def _multiplied(self, what: str, position: RingPosition) -> str:
        """Start a product, and return the name of its result."""
        shared, tile, right = self.loop, self.loop.tile, f"streamed_ring.index({position.buffer})"
        number = [name for name, _ in tile.order.products].index(what)
        product, after = tile.products[number], number - len(tile.leading)
        if after >= 0:
            self.writer.call("roles.multiply_rows", self.operands_of[after], right, product.name, to=product.name)
            return product.name
        self.comment(product.statement)
        zeros = f"roles.zeros({shared.rows}, {shared.block})"
        before = shared.kept_before(operand_region(product.dot.left))
        kept = total([*([before] if before else []), "PART"])
        self.writer.call("roles.multiply", f"kept_ring.index({kept})", right, zeros, to=product.name, FIRST=True)
        return product.name

    def _computed(self, statement: Assign, masked: Scalar | bool) -> None:
        """Lower a statement. masked: when a choice may not take its first value, True for what is no such choice."""
        self.iterations.like = self.loop.tile.leading[0].name
        if statement.name in self.sums:
            factor, added = self.sums[statement.name]
            old = statement.name
            if factor is not None:
                by = self.iterations.lower(factor, {})
                old = f"{old} * roles.across({by.text}, {old})" if by.axes else f"{old} * {by.text}"
            self.writer.let(statement.name, f"{old} + roles.partial_sums({self.iterations.lower(added, {}).text})")
            return
        if masked is True:
            self._assign(statement.name, statement.value)
            return
        assert isinstance(statement.value, Apply)
        self._assign(statement.name, statement.value.args[1])
        if masked is not False:
            with self.writer.block(nodes.Branch(condition=self.values.addresses.scalar(masked))):
                self._assign(statement.name, statement.value)

    def _carry(self, product: LoopProduct, operand: str) -> None:
        """Bring what a trailing product is added to up to an iteration, and make the product's operand."""
        iterations = self.iterations
        iterations.like = self.loop.tile.leading[0].name
        weights = iterations.lower(product.dot.left, {}).text
        iterations.like = product.name
        assert product.added_to is not None
        text = iterations.lower(product.added_to, {}).text
        if text != product.name:
            self.writer.let(product.name, text)
        dtype = TRITON[iterations.addresses.bound.tensors[product.streamed.tensor].dtype]
        self.writer.let(operand, f"roles.operand({weights}, {product.name}, {dtype})")

    def _results(self, after: tuple[Statement, ...]) -> None:
        """Lower what is computed after the loop: numbers of rows, then each result piece by piece."""
        tile, iterations, typing = self.loop.tile, self.iterations, self.values.addresses.typing
        iterations.like = tile.trailing[0].name
        later = [s for s in after if isinstance(s, Assign) and len(typing.locals[s.name].axes) > 1]
        for statement in after:
            if any(statement is s for s in tile.stored):
                self.comment(statement)
                assert isinstance(statement, Store)
                self._vector(statement)
            elif isinstance(statement, Assign) and not any(statement is s for s in later):
                self.comment(statement)
                self.statement(statement)
        for store in tile.results:
            self._pieces([*needed(after, store, later), store])

    def _pieces(self, body: Sequence[Assign | Store | Transfer]) -> None:
        """Lower what is computed for a result, the last statement, piece by piece."""
        shared, writer, iterations = self.loop, self.writer, self.iterations
        read = {name for s in body if (value := value_of(s)) is not None for name in local_names(value)}
        sums = [one.name for one in shared.tile.trailing if one.name in read]
        pieces, piece, parts = (
            [writer.name("pieces") for _ in sums], writer.name("piece"), [writer.name("part") for _ in sums]
        )  # fmt: skip
        for name, of in zip(sums, pieces, strict=True):
            writer.let(of, f"roles.pieces({name}, {shared.pieces})")
        with writer.block(nodes.Loop(index=piece, over=f"gl.static_range({shared.pieces})")):
            for part, of in zip(parts, pieces, strict=True):
                writer.let(part, f"{of}[{piece}]")
            iterations.replaced, iterations.like = dict(zip(sums, parts, strict=True)), parts[0]
            for statement in body:
                self.comment(statement)
                self.statement(statement)
        iterations.replaced = {}

    def _vector(self, store: Store) -> None:
        """Store a number for each row in memory."""
        shared, addresses, region = self.loop, self.loop.addresses, store.region
        like = self.iterations.tile_like or shared.tile.leading[0].name
        places = ConsumerValueEmitter(addresses=addresses, shared=shared, parts=[like])
        pointers, mask = places.pointers(region, None, load=False)
        tile, dtype = self.iterations.lower(store.value, {}), TRITON[addresses.bound.tensors[region.tensor].dtype]
        value = tile.text if TRITON[tile.dtype] == dtype else f"{self.values.named(tile).text}.to({dtype})"
        self.writer.call("roles.store_rows", pointers, value, mask=mask or None)
