"""Lowering of the statements of a stage to Triton source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod

from tilelink.backend import nodes
from tilelink.backend.addresses import Block, Slice, Slices
from tilelink.backend.constants import LEVEL, scaled, total
from tilelink.backend.last_waits import last_waits
from tilelink.backend.loops import index_is_reused
from tilelink.backend.scopes import undeclared
from tilelink.backend.shapes import strides
from tilelink.backend.tiles import TRITON, Tile, aligned
from tilelink.backend.values import ValueEmitter
from tilelink.backend.words import statement_comment
from tilelink.backend.writer import Writer
from tilelink.errors import EmitError
from tilelink.ir.mapping import ChannelGrid, ChannelRange, Span, TileMap
from tilelink.ir.program import (
    COMPUTED,
    Assign,
    Attend,
    Barrier,
    For,
    Full,
    If,
    Local,
    NetworkFence,
    NetworkQuiet,
    Notify,
    Read,
    Region,
    SoftmaxInit,
    Statement,
    Store,
    Transfer,
    Value,
    Wait,
)
from tilelink.ir.reach import on_all_ranks
from tilelink.ir.scalar import Index, Int, Ranks, Scalar, add, at_launch, binary, const, mul, substitute
from tilelink.ir.sizes import power_of_two
from tilelink.ir.typing import Axis
from tilelink.ir.visitor import closing_notifies, on_ranks, only_signals
from tilelink.lowering.loop_forms import (
    AHEAD,
    IN_ORDER,
    TOGETHER,
    UNROLLED,
    TileLoop,
    forms_of,
    is_sequential,
    may_notify_together,
    notified_together,
)
from tilelink.lowering.messages import axes, message_axes
from tilelink.lowering.sink_waits import SlicedProduct, sliced_product

COPY_ROWS, COPY_COLUMNS = 32, 256
"""Rows and columns of a copied block, in elements."""
COPY_ROWS_OF_A_WARP = 4
"""Least number of rows per warp: a thread then has 64 bytes in flight.

Half of that made an all-gather by 12 programs 15 % slower (H200).
"""

WORDS_TOGETHER = 8192
"""Largest number of elements that a copy from or to words moves at once."""


@dataclass(kw_only=True)
class StatementEmitter:
    """Lowers the statements of one stage.

    `thresholds`: (tensor, kind) -> the number of notifies of every awaited channel, or None if it differs between
    channels and a table is read.
    """

    values: ValueEmitter
    thresholds: Mapping[tuple[str, str], int | None]
    awaited_by_copy_engine: frozenset[tuple[str, str]] = frozenset()
    """Signals that copy engines wait for. They must be visible outside the processor, like those of peers."""
    inside: int = field(init=False, default=0)
    """Number of loops around the current statement."""
    last: frozenset[int] = field(init=False)
    """Identities of waits after which a tile has no visible effect."""

    def __post_init__(self) -> None:
        addresses = self.values.addresses
        self.last = frozenset(map(id, last_waits(addresses.stage.stage.body)))

    @cached_property
    def _forms(self) -> Mapping[TileLoop, str]:
        return forms_of(self.values.addresses.bound, self.values.addresses.stage)

    @property
    def writer(self) -> Writer:
        return self.values.addresses.writer

    def body(self, body: tuple[Statement, ...]) -> None:
        """Lower the body of the stage."""
        stage = self.values.addresses.stage
        counted = [decl.name for decl in stage.stage.indices if decl.counted]
        if counted:
            branch, inner = on_ranks(replace(stage.stage, body=body))
            if branch is None:
                self._counted_body(body, counted)
                return
            self.writer.add(nodes.Comment(text=statement_comment(branch)))
            self._on_ranks(branch.condition, lambda: self._counted_body(inner, counted))
            return
        names = undeclared(body)
        for number, statement in enumerate(body):
            for name in names[number]:
                self._declare(name)
            self._ordered(statement)

    def _counted_body(self, body: tuple[Statement, ...], counted: Sequence[str]) -> None:
        """Lower the body of a stage whose tiles need not be there. One that is not makes its signals alone."""
        before, middle, after = self.divided(body)
        self._body(before)
        with self.writer.block(nodes.Branch(condition=self.is_there(counted))):
            names = undeclared(middle)
            for number, statement in enumerate(middle):
                for name in names[number]:
                    self._declare(name)
                self._ordered(statement)
        self._signals_otherwise(middle)
        self._body(after)

    def divided(self, body: tuple[Statement, ...]) -> tuple[tuple[Statement, ...], ...]:
        """Return the waits of every tile, what only a tile executes that is there, and the notifies of every tile."""
        addresses = self.values.addresses
        waits = addresses.bound.first_waits(addresses.stage.name)
        notifies = len(closing_notifies(body[waits:]))
        return body[:waits], body[waits : len(body) - notifies], body[len(body) - notifies :]

    def is_there(self, counted: Sequence[str]) -> str:
        """Return the condition that the tile has elements of these counted indices."""
        conditions = [self._is_there(index) for index in counted]
        return conditions[0] if len(conditions) == 1 else " & ".join(f"({one})" for one in conditions)

    def _signals_otherwise(self, body: tuple[Statement, ...]) -> None:
        signals = only_signals(body, self._placed)
        if signals:
            with self.writer.block(nodes.Otherwise()):
                self._body(signals)

    def _placed(self, wait: Wait) -> bool:
        """True if a launch decides for which channels a wait is. It orders only what its own tile reads there."""
        addresses = self.values.addresses
        return addresses.bound.is_placed(addresses.stage.name, wait)

    def _is_there(self, index: str) -> str:
        """Return the condition that the tile of a counted index has elements."""
        addresses = self.values.addresses
        stage, part = addresses.stage, addresses.stage.parts[index]
        own: Scalar = mul(Index(name=index), const(stage.tiles[index]))
        number = index in stage.scalar_indices
        first = own if part.start is None or number else add(binary("max", part.start, const(0)), own)
        stop = const(stage.extents[index])
        stop = stop if part.stop is None else binary("min", part.stop, stop)
        begin = addresses.shared_number(f"first_{index}", first) if at_launch(first) else addresses.scalar(first, 5)
        text = f"{begin} < {addresses.shared_number(f'end_{index}', stop)}"
        if number and part.start is not None:
            return f"({addresses.shared_number(f'start_{index}', part.start)} <= {index}) & ({text})"
        return text

    def _counted_loop(self, loop: For, index: str, form: str) -> None:
        """Lower a loop whose iterations need not be there, over one index."""
        addresses = self.values.addresses
        stage, part = addresses.stage, addresses.stage.parts[index]
        signals = only_signals(loop.body, self._placed)
        extent = const(stage.extents[index])
        stop = extent if part.stop is None else binary("min", part.stop, extent)
        end = addresses.shared_number(f"end_{index}", stop)
        start = (
            "0"
            if part.start is None
            else addresses.shared_number(f"start_{index}", binary("max", part.start, const(0)))
        )
        if signals:
            over = f"0, {addresses.constants.count(stage, index)}"
        elif index in stage.scalar_indices:
            over = f"{start}, {end}"
        else:
            length = end if start == "0" else f"{end} - {start}"
            over = f"0, tl.cdiv({length}, {addresses.constants.tile(stage, index)})"
        with self.writer.block(nodes.Loop(index=index, over=_range(over, form))):
            if not signals:
                self._body(loop.body)
                return
            with self.writer.block(nodes.Branch(condition=self._is_there(index))):
                self._body(loop.body)
            with self.writer.block(nodes.Otherwise()):
                self._body(signals)

    def _body(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            self._ordered(statement)

    def _ordered(self, statement: Statement) -> None:
        self._begin(statement)
        self._statement(statement)

    def _begin(self, statement: Statement) -> None:
        """Emit the lines before a statement: its text as a comment, and a barrier if a signal needs one."""
        if isinstance(statement, Barrier):
            return
        self.writer.add(nodes.Comment(text=statement_comment(statement)))
        if isinstance(statement, Wait | Notify):
            self.writer.add(nodes.SignalBarrier())

    def _declare(self, name: str) -> None:
        """Declare a name before the first statement that may assign it."""
        if self.values.addresses.typing.locals[name].dtype == "state":
            self.values.begin_state(name)
            return
        zero = Tile(text="0.0", dtype="f32")  # `tl.full` and `tl.cast` make an integer of it
        self.writer.let(name, self._final(name, zero, constant=True))

    def _product(self, product: SlicedProduct) -> None:
        """Lower a product that waits for its slices one by one: a single loop, with the steps of any product."""
        addresses = self.values.addresses
        size = addresses.constants.tile(addresses.stage, product.index)

        def before(part: Slice | None) -> None:
            for wait in product.waits:
                whole = product.of_all(wait.region)
                dim = next(d for d, c in enumerate(wait.region.coords) if c != whole.coords[d])
                consumed = id(wait) not in self.last
                if part is None:
                    self._begin(wait)
                    self._wait(wait.kind, whole, consumed)
                    continue
                with self.writer.block(nodes.Branch(condition=f"{part.start} % {size} == 0")):
                    self._begin(wait)
                    self._wait(wait.kind, whole, consumed, {dim: f"{part.start} // {size}"})

        self.values.product(product.whole, product.name, {}, before)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Assign(name=name, value=value):
                self._assign(name, value)
            case Store(region=region, value=value, adds=True):
                self._store(region, self.values.lower(value, {}), {}, adds=True)
            case Store(region=region, value=value):
                self._write(region, value)
            case Transfer(mode="put" | "get"):
                self._message(statement)
            case Transfer(target=target, source=source):
                self._transfer(statement, target, source)
            case NetworkFence():
                self.writer.add(nodes.NetworkFence())
            case NetworkQuiet():
                self.writer.add(nodes.NetworkQuiet())
            case Notify():
                self._notify(statement)
            case Barrier():
                self.writer.add(nodes.Barrier())
            case Wait(kind=kind, region=region):
                self._wait(kind, region, id(statement) not in self.last)
            case If():
                self._branches(statement)
            case For() if (product := sliced_product(self.values.addresses.stage, statement)) is not None:
                self._product(product)
            case For():
                self.inside += 1
                self._loop(statement, 0, self._form(statement))
                self.inside -= 1
            case _:
                hint = "stages consist of the statements of tilelink.ir.program"
                raise EmitError(f"cannot render {type(statement).__name__}", location=statement.location, hint=hint)

    def _on_ranks(self, condition: Scalar, body: Callable[[], None]) -> None:
        """Lower a body that some ranks execute."""
        taken = on_all_ranks(condition, self.values.addresses.bound.ranks)
        if taken:
            body()
        elif taken is None:
            with self.writer.block(nodes.Branch(condition=self.values.addresses.scalar(condition))):
                body()

    def _branches(self, branch: If) -> None:
        taken = on_all_ranks(branch.condition, self.values.addresses.bound.ranks)
        if taken is not None:
            self._body(branch.then if taken else branch.orelse)
            return
        with self.writer.block(nodes.Branch(condition=self.values.addresses.scalar(branch.condition))):
            self._body(branch.then)
        if branch.orelse:
            with self.writer.block(nodes.Otherwise()):
                self._body(branch.orelse)

    def _form(self, loop: For) -> str:
        """Return the form of a loop. Raises EmitError for one that was decided for other statements."""
        form = self._forms.get(TileLoop(loop=loop, inner=self.inside > 1))
        if form is None or (is_sequential(loop) and form not in (IN_ORDER, UNROLLED, TOGETHER)):
            stage = self.values.addresses.stage.name
            hint = "emit what all passes return: the pass `loop_forms` decides in which form loops are executed"
            raise EmitError(f"a loop of {stage} has no form, or none in order", location=loop.location, hint=hint)
        return form

    def _loop(self, loop: For, depth: int, form: str) -> None:
        if depth == len(loop.indices):
            self._body(loop.body)
            return
        index, addresses = loop.indices[depth].name, self.values.addresses
        if index in addresses.stage.parts:
            inner = replace(loop, indices=loop.indices[depth + 1 :])
            self._counted_loop(replace(loop, body=(inner,)) if inner.indices else loop, index, form)
            return
        if form == TOGETHER:
            self._notify_together(loop)
            return
        with self.writer.block(nodes.Loop(index=index, over=self._over(index, form))):
            self._loop(loop, depth + 1, form)
        if form == UNROLLED and index_is_reused(index, addresses):
            # A known number stays constant after the loop, and Triton does not let a branch turn it into an unknown
            # one.
            self.writer.let(index, "tl.cast(0, tl.int32)")

    def _over(self, index: str, form: str) -> str:
        """Return the iterator of a loop over an index."""
        number = self.values.addresses.constants.count(self.values.addresses.stage, index)
        if form == UNROLLED:
            return f"tl.static_range(0, {number})"
        return _range(f"0, {number}", form)

    def _assign(self, name: str, value: Value) -> None:
        match value:
            case SoftmaxInit():
                self.values.begin_state(name)
            case Attend():
                self.values.attend(name, value)
            case Local(name=other) if self.values.addresses.typing.locals[name].dtype == "state":
                self.values.copy_state(name, other)
            case _:
                tile = self.values.lower(value, {})
                self.writer.let(name, self._final(name, tile, isinstance(value, Full)))

    def _final(self, name: str, tile: Tile, constant: bool) -> str:
        """Return the value with the final shape and dtype of its name, because branches and loops carry one type."""
        addresses = self.values.addresses
        kind = addresses.typing.locals[name]
        dims = addresses.dims(kind.axes, {})
        dtype = self.values.dtype(kind.dtype)
        dtype = TRITON[COMPUTED.get(dtype, dtype)]
        if constant:
            return f"tl.full({dims}, {tile.text}, {dtype})" if kind.axes else f"tl.cast({tile.text}, {dtype})"
        text = tile.text if TRITON[tile.dtype] == dtype else f"tl.cast({tile.text}, {dtype})"
        if tile.axes == kind.axes:
            return text
        if not tile.axes:
            return f"tl.full({dims}, {text}, {dtype})"
        return f"tl.broadcast_to({aligned(replace(tile, text=text), len(kind.axes))}, {dims})"

    # Data ----------------------------------------------------------------------------------------------------

    def _write(self, region: Region, value: Value) -> None:
        if isinstance(value, Read):
            self._copy(region, value, {}, self.values.addresses.typing.region_type(region).axes)
            return
        tile = self.values.lower(value, {})
        self._store(region, tile, {})

    def _copy(self, region: Region, value: Read, slices: Slices, axes: tuple[Axis, ...]) -> None:
        """Lower a plain copy, in blocks: long axes are traversed in slices, the last ones as blocks.

        Words are moved together if they are few: one after the other, each slice would wait for the way of its words.
        """
        if not axes or (not slices and self._few_words(region, value)):
            source = self.values.of_operand(value, slices)
            self._store(region, self.values.lower(value, source, raw=True), slices)
            return
        axis, *rest = axes
        rows = max(COPY_ROWS, COPY_ROWS_OF_A_WARP * self.values.addresses.stage.num_warps)
        limit = COPY_COLUMNS if not rest else rows if len(rest) == 1 else 1
        extent = self.values.addresses.extent(axis)
        if power_of_two(extent) <= limit:
            self._copy(region, value, slices, tuple(rest))
            return
        name, constants, stage = self.writer.name("c"), self.values.addresses.constants, self.values.addresses.stage
        size = constants.copied(stage, axis, limit)
        for moved in (region, value.region):
            self.values.addresses.look_up(moved, slices, range(-len(axes), 0))
        with self.writer.block(nodes.Loop(index=name, over=f"range(0, {constants.elements_of(stage, axis)}, {size})")):
            part = Slice(start=name, block=limit, size=size)
            self._copy(region, value, {**slices, -1 - len(rest): part}, tuple(rest))

    def _few_words(self, region: Region, value: Read) -> bool:
        """True for a copy of words that has not too many of them for registers."""
        addresses = self.values.addresses
        shape = addresses.shape(addresses.typing.region_type(region).axes, {})
        words = value.signal is not None or addresses.bound.tensors[region.tensor].packed > 0
        return words and prod(shape) <= WORDS_TOGETHER

    def _store(self, region: Region, tile: Tile, slices: Slices, *, adds: bool = False) -> None:
        addresses = self.values.addresses
        block: Block = addresses.region(region, slices, load=False)
        dtype = addresses.bound.tensors[region.tensor].dtype
        if not tile.axes:
            dims = addresses.dims(block.axes, slices)
            tile = replace(tile, text=f"tl.full({dims}, {tile.text}, {TRITON[tile.dtype]})", axes=block.axes)
        text = aligned(replace(tile, text=self._converted(tile, dtype)), len(block.axes))
        tensor = addresses.bound.tensors[region.tensor]
        if tensor.packed:
            words = {"packed": tensor.packed, "half": tensor.shape[-1] if tensor.halves else 0}
            self.writer.add(nodes.Send(pointers=block.pointers, value=text, mask=block.mask, **words))
            return
        mask = {} if block.mask is None else {"mask": block.mask}
        if adds:  # only programs of the own rank access the tensor, and notifies and waits order them
            self.writer.call("tl.atomic_add", block.pointers, text, **mask, sem='"relaxed"', scope='"gpu"')
        else:
            self.writer.call("tl.store", block.pointers, text, **mask)

    def _converted(self, tile: Tile, dtype: str) -> str:
        if tile.dtype == dtype:
            return tile.text
        return f"tiles.cast({self.values.named(tile).text}, {TRITON[dtype]})"

    def _transfer(self, statement: Transfer, target: Region, source: Value) -> None:
        self.writer.add(nodes.TransferBegin())
        self._write(target, source)
        self._transferred(statement, target, source)

    def _transferred(self, statement: Transfer, target: Region, source: Value) -> None:
        moved = target
        if statement.mode not in ("push", "put", "send") and target.rank is None and isinstance(source, Read):
            moved = source.region
        addresses = self.values.addresses
        bound, stage = addresses.bound, addresses.stage
        tile_map = bound.memory_map(stage.name, moved)
        tensor = bound.tensors[moved.tensor]
        pairs = zip(tile_map.spans, addresses.constants.strides(tensor), strict=True)
        offset = total(scaled(addresses.scalar(s.start, LEVEL["*"]), n) for s, n in pairs)
        rank = addresses.scalar(tile_map.rank)
        self.writer.add(nodes.Transfer(stage=stage.number, tensor=tensor.number, rank=rank, offset=offset))

    # The network ---------------------------------------------------------------------------------------------

    def _message(self, move: Transfer) -> None:
        """Emit a put or a get, as one message or in loops over the axes that are apart in memory."""
        addresses = self.values.addresses
        bound, stage = addresses.bound, addresses.stage
        assert isinstance(move.source, Read)
        far, near = (move.target, move.source.region) if move.mode == "put" else (move.source.region, move.target)
        together = message_axes(bound, stage, [far, near])
        spans = axes(bound, stage, far)
        outer = spans[: len(spans) - together]
        if move.signal is not None and outer:
            hint = "put it alone, then network_fence() and a notify"
            raise EmitError("a put with a signal is one message", location=move.location, hint=hint)
        count = " * ".join(self._length(span) for span in spans[len(spans) - together :]) or "1"
        rank = addresses.scalar(bound.tile_map(stage.name, far).rank)
        self.writer.add(nodes.TransferBegin())
        with ExitStack() as around:
            rows: list[str] = []
            for span in outer:
                rows.append(self.writer.name("row"))
                loop = nodes.Loop(index=rows[-1], over=f"range(0, {self._length(span)})")
                around.enter_context(self.writer.block(loop))
            buffer = [f"{far.tensor}_offset"] if bound.tensors[far.tensor].buffers > 1 else []
            offset = total([*buffer, *self._terms(far, rows)])
            own = f"{near.tensor}_local" if bound.tensors[near.tensor].buffers > 1 else near.tensor
            base = addresses.after_waits(near, own, load=move.mode == "put")
            place = total([base, *self._terms(near, rows)])
            common = {"tensor": far.tensor, "rank": rank, "offset": offset, "count": count}
            if move.mode == "get":
                self.writer.add(nodes.Get(**common, target=place))
            elif move.signal is None:
                self.writer.add(nodes.Put(**common, source=place, channel=None, stage=stage.number))
            else:
                self._transferred(move, move.target, move.source)
                tile_map = bound.tile_map(stage.name, far)
                put = partial(nodes.Put, **common, source=place, stage=stage.number)
                grid = bound.channels[far.tensor, move.signal]
                self._channels(tile_map, grid, lambda channel, _: self.writer.add(put(channel=channel)), {})
        if move.signal is None:
            self._transferred(move, move.target, move.source)

    def _length(self, span: Span) -> str:
        """Return the number of elements of a tile along an axis, as an operand of a product."""
        addresses = self.values.addresses
        if span.kind != "tile" or span.index is None:
            return str(span.size)
        if span.counted:  # of a tile that is only in part before the end, or in no part
            after = f"{addresses.end(span)} - {addresses.start(span, LEVEL['*'])}"
            size = addresses.constants.tile(addresses.stage, span.index)
            return self.writer.shared(f"length_{span.index}", f"tl.maximum(tl.minimum({after}, {size}), 0)")
        if addresses.stage.extents[span.index] % span.size == 0:
            return addresses.constants.tile(addresses.stage, span.index)
        return f"({addresses.scalar(span.stop)} - {addresses.scalar(span.start, LEVEL['*'])})"

    def _terms(self, region: Region, rows: Sequence[str]) -> list[str]:
        """Return the offset of a region's first element in a buffer of its tensor. rows: elements of its first axes."""
        addresses = self.values.addresses
        tensor, steps = addresses.bound.tensors[region.tensor], [*rows]
        terms: list[str] = []
        spans = addresses.bound.memory_map(addresses.stage.name, region).spans
        wide = tensor.size >= 2**31
        for span, stride in zip(spans, addresses.constants.strides(tensor), strict=True):
            start = addresses.scalar(span.start, LEVEL["*"])
            terms.append(scaled(f"tl.cast({start}, tl.int64)" if wide and start != "0" else start, stride))
            if span.kind != "point" and steps:
                row = steps.pop(0)
                terms.append(scaled(f"tl.cast({row}, tl.int64)" if wide else row, stride))
        return terms

    # Signals -------------------------------------------------------------------------------------------------

    def _notify(self, statement: Notify) -> None:
        kind, region = statement.kind, statement.region
        addresses, deferred = self.values.addresses, self.values.deferred
        if statement.by_network:
            self._signal(statement)
            return
        tile_map = addresses.bound.tile_map(addresses.stage.name, region)
        grid = addresses.bound.channels[region.tensor, kind]
        remote = region.rank is not None or (region.tensor, kind) in self.awaited_by_copy_engine
        rank = addresses.scalar(tile_map.rank)
        stage, pad = addresses.stage.number, None
        if region.rank is not None and addresses.dialect.passes_addresses:
            pad = self.writer.name("pad")
            self.writer.add(nodes.Pad(name=pad, rank=rank))

        def emit(channel: str, linear: str) -> None:
            if deferred is not None:
                deferred.keep(statement, channel)
                return
            self.writer.add(
                nodes.Notify(pad=pad, channel=channel, rank=rank, stage=stage, remote=remote, waited=addresses.waits)
            )

        self._channels(tile_map, grid, emit, {})

    def _signal(self, statement: Notify) -> None:
        addresses, region = self.values.addresses, statement.region
        tile_map = addresses.bound.tile_map(addresses.stage.name, region)
        rank, stage = addresses.scalar(tile_map.rank), addresses.stage.number

        def emit(channel: str, _: str) -> None:
            self.writer.add(nodes.NetworkNotify(channel=channel, rank=rank, stage=stage))

        self._channels(tile_map, addresses.bound.channels[region.tensor, statement.kind], emit, {})

    def _notify_together(self, loop: For) -> None:
        """Emit a loop as one notify of many counters, with a vector in place of its index."""
        notified, addresses = notified_together(loop), self.values.addresses
        if notified is None or not may_notify_together(addresses.bound, addresses.stage, loop):
            what = "a loop that is not one of notifies, of a counter each, that one instruction can make"
            raise EmitError(what, location=loop.location, hint="emit it in order")
        notify, condition = notified
        count = addresses.stage.count(loop.indices[0].name)
        tile_map = addresses.bound.tile_map(addresses.stage.name, notify.region)
        grid = addresses.bound.channels[notify.region.tensor, notify.kind]
        channels = tile_map.channel_range(grid)
        name = self.writer.name(loop.indices[0].name)
        each = {loop.indices[0].name: Index(name=name)}
        self.writer.let(name, f"tl.arange(0, {power_of_two(count)})")
        mask = f"{name} < {count}"
        if condition is not None:
            mask = f"({mask}) & ({addresses.scalar(substitute(condition, each))})"
        rank, stage = addresses.scalar(substitute(tile_map.rank, each)), addresses.stage.number

        def emit(channel: str, linear: str) -> None:
            self.writer.add(nodes.NotifyEach(rank=rank, channel=channel, mask=mask, stage=stage))

        fixed = {d: addresses.scalar(substitute(one.low, each), 6) for d, one in enumerate(channels)}
        self._channels(tile_map, grid, emit, fixed)

    def _wait(self, kind: str, region: Region, consumed: bool, fixed: Mapping[int, str] | None = None) -> None:
        """Emit the wait for all channels of a region, or for those with the given coordinates along some dimensions."""
        addresses = self.values.addresses
        tile_map = addresses.bound.tile_map(addresses.stage.name, region)
        grid = addresses.bound.channels[region.tensor, kind]
        threshold = self.thresholds[region.tensor, kind]
        stage = addresses.stage.number

        generation = f"{grid.tensor}_generation" if grid.buffers > 1 else "epoch"
        if any(span.gather is not None and span.gather.launch for span in tile_map.spans):
            self._wait_each(tile_map, grid, threshold, generation)
            return

        def emit(channel: str, linear: str) -> None:
            table = f"tl.load({grid.tensor}_{kind}_thresholds + {linear})"
            target = generation if threshold == 1 else f"{table if threshold is None else threshold} * {generation}"
            self.writer.add(nodes.Wait(channel=channel, target=target, stage=stage, consumed=consumed))

        fixed = fixed or {}
        together = threshold is not None and addresses.dialect.waits_together
        row = self._row(tile_map, grid, fixed) if together else None
        if row is None:
            self._channels(tile_map, grid, emit, fixed)
            return
        dim, first, number = row
        step = strides(grid.counts)[dim]
        ranks = isinstance(addresses.bound.tensors[region.tensor].decl.shape[dim], Ranks) and grid.counts[dim] == number
        count = addresses.constants.ranks if ranks else number

        def emit_all(channel: str, linear: str) -> None:
            target = generation if threshold == 1 else f"{threshold} * {generation}"
            self.writer.add(nodes.WaitAll(channel=channel, count=count, step=step, target=target, stage=stage))

        self._channels(tile_map, grid, emit_all, {**fixed, dim: str(first)})

    def channel_of(self, wait: Wait) -> str:
        """Return the number, in the grid of its tensor, of the only channel that a wait is for."""
        bound, region, numbers = self.values.addresses.bound, wait.region, list[str]()
        tile_map = bound.tile_map(self.values.addresses.stage.name, region)
        self._channels(tile_map, bound.channels[region.tensor, wait.kind], lambda _, linear: numbers.append(linear), {})
        (number,) = numbers
        return number

    def _wait_each(self, tile_map: TileMap, grid: ChannelGrid, threshold: int | None, generation: str) -> None:
        """Emit the wait for the channels of the elements that an index tensor lists along a tile."""
        addresses = self.values.addresses
        fixed: dict[int, str] = {}
        mask = ""
        for dim, span in enumerate(tile_map.spans):
            if span.gather is None or not span.gather.launch:
                continue
            if mask:
                hint = "wait for the regions of each of the two lists apart"
                raise EmitError("a wait for places along two lists", location=span.gather.location, hint=hint)
            channels, mask = addresses.listed_channels(span.gather, grid.sizes[dim])
            fixed[dim] = f"({channels})" if " " in channels else channels

        def emit(channel: str, linear: str) -> None:
            table = f"tl.load({grid.tensor}_{grid.kind}_thresholds + {linear}, mask={mask}, other=0)"
            target = generation if threshold == 1 else f"{table if threshold is None else threshold} * {generation}"
            self.writer.add(nodes.WaitEach(channels=channel, mask=mask, target=target, stage=addresses.stage.number))

        self._channels(tile_map, grid, emit, fixed)

    def _row(self, tile_map: TileMap, grid: ChannelGrid, fixed: Mapping[int, str]) -> tuple[int, int, int] | None:
        """Return (dimension, first channel, number of channels) of the dimension along which an access has several.

        Return None unless all coordinates are constants, equal for all tiles, and it is the only such dimension.
        """
        ranges = enumerate(tile_map.channel_range(grid))
        many = [(d, channels) for d, channels in ranges if d not in fixed and channels.count != 1]
        if len(many) != 1:
            return None
        dim, channels = many[0]
        if not isinstance(channels.low, Int) or channels.count is None:
            return None
        return dim, channels.low.value, channels.count

    def _channels(
        self, tile_map: TileMap, grid: ChannelGrid, emit: Callable[[str, str], None], fixed: Mapping[int, str]
    ) -> None:
        """Call `emit(pad offset, number in the grid)` for every channel of an access, in loops if there are many."""
        scalar = self.values.addresses.scalar
        constants = self.values.addresses.constants
        buffer = [scaled(f"{grid.tensor}_buffer", constants.channels(grid))] if grid.buffers > 1 else []
        base = [constants.signals(grid), *buffer]
        coords: list[str] = []

        def dimension(d: int, ranges: tuple[ChannelRange, ...]) -> None:
            if d == len(ranges):
                linear = total(map(scaled, coords, map(str, strides(grid.counts))))
                emit(total([*base, linear]), linear)
                return
            low, high = ranges[d].low, ranges[d].high
            if d in fixed or ranges[d].count == 1:
                coords.append(fixed.get(d) or scalar(low, 6))
                dimension(d + 1, ranges)
                return
            name = self.writer.name("channel")
            with self.writer.block(nodes.Loop(index=name, over=f"range({scalar(low)}, {scalar(high)})")):
                coords.append(name)
                dimension(d + 1, ranges)

        dimension(0, tile_map.channel_range(grid))


def _range(over: str, form: str) -> str:
    """Return the iterator of a loop that is not written out, over these numbers."""
    stages = "1" if form == IN_ORDER else form.removeprefix(AHEAD).strip() if form.startswith(AHEAD) else ""
    return f"tl.range({over}, num_stages={stages})" if stages else f"range({over})"
