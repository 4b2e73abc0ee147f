"""Kernels whose warps have roles, in Gluon (lowering/clauses/roles.py): the statements of loaders and consumers.

The loader executes the waits of a tile, the consumers what is computed, and the storer the stores and the notifies
(backend/storer.py). The steps at the rings between them are those of the lowered program (lowering/rings.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import ClassVar, Self

from tilelink.backend import nodes
from tilelink.backend.constants import LEVEL, total
from tilelink.backend.consumer_values import ConsumerValueEmitter, Prefetch
from tilelink.backend.roles_shared import Shared, part_of
from tilelink.backend.statements import StatementEmitter
from tilelink.backend.tiles import TRITON, Tile
from tilelink.backend.tma_copy import corner
from tilelink.backend.values import ValueEmitter
from tilelink.backend.words import statement_comment
from tilelink.backend.writer import Writer
from tilelink.ir.products import operand_region
from tilelink.ir.program import (
    ITEM_BYTES,
    Assign,
    FromScalar,
    Notify,
    Region,
    Statement,
    Store,
    Transfer,
    Wait,
)
from tilelink.ir.scalar import indices_in
from tilelink.ir.visitor import value_of, values
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.carried import computes_with_places
from tilelink.lowering.iterations import loop_of
from tilelink.lowering.rings import (
    ADDEND,
    AWAIT,
    CONSUMER,
    EXPECT,
    LEFT,
    NUMBERS,
    OPERANDS,
    RESULTS,
    SUM,
    Role,
    Step,
    parts_of,
    right_operand,
)
from tilelink.lowering.role_bodies import Executed, LoadTiles, RoleBody, loaded_tiles, read_by_consumers, role_bodies
from tilelink.lowering.role_statements import entries_of, results_of, written_tables
from tilelink.lowering.sink_waits import SlicedProduct, sliced_product
from tilelink.lowering.summed import SummedProduct, summed_of, summed_product

Thresholds = Mapping[tuple[str, str], int | None]
Signals = frozenset[tuple[str, str]]
Boxes = Mapping[str, tuple[str, str, str]]
"""Operand -> the descriptor, row and column of the boxes that are loaded."""


@dataclass(frozen=True)
class RingPosition:
    """A position of a ring in source: its buffer, its phase, and the buffer of the position before."""

    buffer: str = ""
    phase: str = ""
    previous: str = ""


NO_POSITION = RingPosition()
KEPT_PHASE = "kept_phase"
"""Name of the phase of the only position of what a loop keeps: no name of the program is like it."""


@dataclass(frozen=True, kw_only=True)
class RingPositions:
    """The positions of a role in the rings of operands, of results, and of the integers of tiles."""

    operands: RingPosition = NO_POSITION
    results: RingPosition = NO_POSITION
    numbers: RingPosition = NO_POSITION

    @property
    def start(self) -> tuple[nodes.Node, ...]:
        """Return the statements before the first tile."""
        names = [
            name
            for position in (self.operands, self.results, self.numbers)
            for name in (position.buffer, position.phase, position.previous)
        ]
        return tuple(nodes.Let(name=name, value="0") for name in names if name)


def uses_indices(bound: Bound, stage: BoundStage) -> bool:
    """True if what consumers of a stage compute depends on the position of the tile."""
    if stage.has_loop:
        return computes_with_places(loop_of(stage))
    body, summed = role_bodies(bound, stage)[CONSUMER], summed_of(stage)
    if (summed is not None and summed.scaled) or any(isinstance(s, Wait) for s in body):
        return True
    found = [value for s in body if not isinstance(s, LoadTiles) and (value := value_of(s)) is not None]
    numbers = [one.scalar for value in found for one in values(value) if isinstance(one, FromScalar)]
    placed = bool(indices_in(*numbers))
    return placed or stage.is_direct or bool(read_by_consumers(bound, stage) or stage.parts)


@dataclass(kw_only=True)
class RoleEmitter(StatementEmitter):
    """The statements of a stage that one of its roles executes.

    operands, results: names of the buffer, its phase and the buffer before in each of its rings; () for no such ring.
    """

    operands: ClassVar[tuple[str, ...]] = ()
    results: ClassVar[tuple[str, ...]] = ()
    shared: Shared
    positions: RingPositions
    at: Mapping[str, Role]
    """What the role does at each of its rings."""

    @classmethod
    def of(
        cls, shared: Shared, positions: RingPositions, at: Mapping[str, Role], thresholds: Thresholds, awaited: Signals
    ) -> Self:
        """Return the statements of a role. thresholds, awaited: as of all statements."""
        return cls(
            values=cls.values_of(shared), thresholds=thresholds, awaited_by_copy_engine=awaited, shared=shared,
            positions=positions, at=at,
        )  # fmt: skip

    @classmethod
    def values_of(cls, shared: Shared) -> ValueEmitter:
        """Return what lowers the values of the role."""
        return ValueEmitter(addresses=shared.addresses)

    @classmethod
    def begin(cls, writer: Writer, *, numbers: bool) -> RingPositions:
        """Return the positions of the role in its rings. numbers: True if there is a ring of integers."""
        third = ("number_buffer", "number_phase") if numbers else ()
        operands, results, handed = (
            RingPosition(*(stem if stem == KEPT_PHASE else writer.name(stem) for stem in stems))
            for stems in (cls.operands, cls.results, third)
        )
        return RingPositions(operands=operands, results=results, numbers=handed)

    @property
    def position(self) -> RingPosition:
        """Return the position of the role in the ring where it mostly is."""
        return self.positions.operands

    def body(self, body: RoleBody) -> None:
        """Lower the body of the role: its signals also if a launch has no such tile."""
        addresses, handed = self.values.addresses, self.at.get(NUMBERS)
        counted = [decl.name for decl in addresses.stage.stage.indices if decl.counted]
        waits = [*takewhile(lambda s: isinstance(s, Wait), body)][: addresses.bound.first_waits(addresses.stage.name)]
        before = len(waits) if counted or handed is not None else 0
        end = len(body) - (sum(isinstance(s, Notify) for s in body) if counted else 0)
        self._each(body[:before])
        if handed is not None:
            self._numbers(handed)
        with ExitStack() as there:
            if counted:
                there.enter_context(self.writer.block(nodes.Branch(condition=self.is_there(counted))))
            self.tile(body[before:end])
        self._each(body[end:])

    def _numbers(self, role: Role) -> None:
        """Hand on the entries that the tile looks up, or take them: the loader reads them after the tile's waits."""
        shared, writer, position, addresses = self.shared, self.writer, self.positions.numbers, self.values.addresses
        entries = entries_of(addresses.stage)
        names = [writer.name(f"{one.table}_entry") for one in entries]
        places = [shared.number_place(position.buffer, number) for number in range(len(entries))]

        def send(_: Step) -> None:
            for name, place, one in zip(names, places, entries, strict=True):
                value = writer.let(name, addresses.scalar.lookup(one))
                writer.call("roles.send", "number_ring", place, value)

        def receive(_: Step) -> None:
            for name, place in zip(names, places, strict=True):
                writer.call("roles.receive", "number_ring", place, to=name)
            writer.call("roles.meet")

        self.steps(role.steps, position, go_on=True, fill=send, take=receive)
        for one, name in zip(entries, names, strict=True):  # by what is received of the entries in it
            scalar = addresses.scalar
            addresses.scalar = replace(scalar, received={**scalar.received, scalar.entry(one): name})
        if not isinstance(self, Loader):
            unreadable = frozenset(written_tables(addresses.bound, addresses.stage))
            addresses.scalar = replace(addresses.scalar, unreadable=unreadable)

    def tile(self, body: RoleBody) -> None:
        """Lower what the role executes of a tile that is there, or of all tiles."""
        self._each(body)

    def _each(self, body: RoleBody) -> None:
        for statement in body:
            self.statement(statement)

    def steps(
        self, steps: Iterable[Step], position: RingPosition, *, go_on: bool = False, **acts: Callable[[Step], None]
    ) -> None:
        """Lower steps at a position of a ring. acts: word -> what lowers a step of it that is at no barrier.

        go_on: True to go on to the next position then, of a ring with as many buffers as that of operands.
        """
        for step in steps:
            barriers = f"{step.what}_barriers"
            match step.word:
                case word if word in acts:
                    acts[word](step)
                case "await":
                    phase = f"{position.phase} ^ 1" if step.number & 1 else position.phase
                    self.writer.call("roles.wait", barriers, position.buffer, phase)
                case "expect":
                    self.writer.call("roles.expect", barriers, position.buffer, BYTES=step.number)
                case "arrive":
                    self.writer.call("roles.arrive", barriers, position.previous if step.number else position.buffer)
                case "fence":
                    self.writer.call("roles.fence")
                case _:
                    raise AssertionError(step)
        if go_on:
            self.follow(position, position, self.shared.buffers)

    def follow(self, one: RingPosition, other: RingPosition, buffers: str) -> None:
        """Let a position be the one after another, in a ring of so many buffers."""
        after = f"{other.buffer}, {other.phase}"
        self.writer.call("roles.following", one.buffer, one.phase, buffers, to=after)

    def statement(self, statement: Executed) -> None:
        """Lower a statement of the role's body."""
        raise NotImplementedError

    def over(self, summed: SummedProduct) -> list[nodes.Loop]:
        """Return the loops over the iterations of a sum of products, after the indices of one value."""
        stage, constants = self.values.addresses.stage, self.values.addresses.constants
        names = [decl.name for decl in summed.loop.indices]
        for name in names:
            if stage.count(name) == 1:
                self.writer.let(name, "0")
        several = (name for name in names if stage.count(name) > 1)
        return [nodes.Loop(index=name, over=f"range(0, {constants.count(stage, name)})") for name in several]

    def comment(self, statement: Statement) -> None:
        self.writer.add(nodes.Comment(text=statement_comment(statement)))

    def whole(self) -> str | None:
        """Emit whether all rows of the tile are there, and return its name; None if a launch cuts no tile."""
        addresses = self.values.addresses
        if not self.shared.cut:
            return None
        rows = addresses.bound.memory_map(addresses.stage.name, results_of(addresses.stage)[0]).spans[-2]
        stop = total([addresses.start(rows, LEVEL["+"]), addresses.constants.tile(addresses.stage, str(rows.index))])
        return self.writer.shared("whole", f"{stop} <= {addresses.end(rows)}")


@dataclass(kw_only=True)
class Loader(RoleEmitter):
    """The warp that waits for signals and loads operands. loaded: True once those of the tile are."""

    operands: ClassVar[tuple[str, ...]] = ("buffer", "phase")
    loaded: bool = False

    def statement(self, statement: Executed) -> None:
        stage = self.values.addresses.stage
        if isinstance(statement, LoadTiles):
            self._load_tiles(statement.regions)
        elif isinstance(statement, Wait):
            self._ordered(statement)
        elif (sliced := sliced_product(stage, statement)) is not None:
            self._loads(sliced)
        elif (summed := summed_product(stage, statement)) is not None:
            self.comment(statement)
            with ExitStack() as loops:
                for over in self.over(summed):
                    loops.enter_context(self.writer.block(over))
                for wait in summed.waits:
                    self._ordered(wait)
                self.comment(summed.statement)
                self._loads(None)
        else:
            self.comment(statement)
            if not self.loaded:  # the operands of all products are loaded together
                self._loads(None)

    def _loads(self, sliced: SlicedProduct | None) -> None:
        """Load the operands of a product, each slice after its waits."""
        shared, addresses, self.loaded = self.shared, self.values.addresses, True
        corners = {} if sliced else self._corners()
        ahead = self._slices()
        k = self.writer.name("k")

        def place(what: str, row: str, column: str) -> tuple[str, str]:
            return (f"{row} + {k}", column) if column else (row, f"{ahead[what]}{k}")

        over = f"range(0, {shared.inner}, {shared.block})"
        with self.writer.block(nodes.Loop(index=k, over=over)):
            if sliced is not None:
                size = addresses.constants.tile(addresses.stage, sliced.index)
                with self.writer.block(nodes.Branch(condition=f"{k} % {size} == 0")):
                    self._slice_waits(sliced, f"{k} // {size}")
                corners = self._corners()
            boxes = {what: (shared.boxes_of(what), *place(what, *at)) for what, at in corners.items()}
            self.load(self.at[OPERANDS].steps, boxes, self.position, go_on=True)

    def _load_tiles(self, regions: Sequence[Region]) -> None:
        """Load the tiles that are computed with next to the product, piece by piece."""
        shared, writer, addresses = self.shared, self.writer, self.values.addresses
        corners = [corner(addresses, region, load=True) for region in regions]
        descriptors = [shared.addend(region) for region in regions]
        piece = writer.name("piece")
        with writer.block(nodes.Loop(index=piece, over=f"range({shared.pieces})")):
            for (row, column), one in zip(corners, descriptors, strict=True):
                boxes = {ADDEND: (one, row, f"{column} + {piece} * {shared.piece}")}
                self.load(self.at[OPERANDS].after, boxes, self.position, go_on=True)

    def _slice_waits(self, sliced: SlicedProduct, number: str) -> None:
        for wait in sliced.waits:
            whole = sliced.of_all(wait.region)
            dim = next(d for d, c in enumerate(wait.region.coords) if c != whole.coords[d])
            self._begin(wait)
            self._wait(wait.kind, whole, True, {dim: number})

    def _corners(self) -> dict[str, tuple[str, str]]:
        """Return operand -> names of the first row and column of its tile, "" for a column along which it contracts."""
        addresses, operands, n_major = self.values.addresses, self._operands, self.shared.n_major
        return {
            what: corner(addresses, region, load=True, column=n_major and what != LEFT)
            for what, region in operands.items()
        }

    @property
    def _operands(self) -> dict[str, Region]:
        """Return the operands of the products, by their names."""
        rights = {right_operand(number): operand_region(one.right) for number, one in enumerate(self.shared.dots)}
        return {LEFT: operand_region(self.shared.dot.left), **rights}

    def _slices(self) -> dict[str, str]:
        """Emit where the slice of each operand begins that is multiplied, and return what to add to it, or ""."""
        addresses, found, known = self.values.addresses, dict[str, str](), dict[str, str]()
        for what, region in self._operands.items():
            if self.shared.n_major and what != LEFT:
                continue
            inner = addresses.bound.memory_map(addresses.stage.name, region).spans[-1]
            first = addresses.start(inner, LEVEL["+"]) if inner.kind in ("tile", "block") else ""
            if first and first not in known:
                known[first] = self.writer.let(self.writer.name("slice"), first) + " + "
            found[what] = known.get(first, "")
        return found

    def load(self, steps: Sequence[Step], boxes: Boxes, position: RingPosition, *, go_on: bool = False) -> None:
        """Lower steps that load boxes. position, go_on: as of `steps`."""
        full = next(step.what for step in steps if step.word == EXPECT) + "_barriers"

        def load(step: Step) -> None:
            memory, parts = self.shared.memory_of(step.what, position.buffer)
            where = (full, position.buffer) if parts else (f"{full}.index({position.buffer})",)
            name = "roles.load_parts" if parts else "roles.load"
            self.writer.call(name, *boxes[step.what], *where, memory, **parts)

        self.steps(steps, position, go_on=go_on, load=load)


@dataclass(kw_only=True)
class Consumer(RoleEmitter):
    """The warps that multiply and compute some rows of a tile."""

    operands: ClassVar[tuple[str, ...]] = ("buffer", "phase", "previous")
    results: ClassVar[tuple[str, ...]] = ("result_buffer", "result_phase")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.values, ConsumerValueEmitter):
            self.values.to_take = loaded_tiles(self.shared.addresses.bound, self.shared.addresses.stage)
            self.values.take = self.take

    @classmethod
    def values_of(cls, shared: Shared) -> ValueEmitter:
        return ConsumerValueEmitter(addresses=shared.addresses, shared=shared)

    def tile(self, body: RoleBody) -> None:
        """Lower the product of a tile, and then what is computed with it, piece by piece.

        A thread has few registers besides its part of the product, so that no piece is computed before it is needed.
        """
        shared, writer, stage = self.shared, self.writer, self.values.addresses.stage
        rest = [s for s in body if not isinstance(s, Wait | LoadTiles)]
        if not shared.dots:
            self._compute(rest)
            return
        product = sliced_product(stage, rest[0]) or summed_product(stage, rest[0])
        self.comment(rest[0])
        acc = writer.name(product.name if product else "acc")
        late = [s for s in body if isinstance(s, Wait)]
        fetched = self.multiply(acc, fetch=not late)
        for wait in late:
            self._ordered(wait)
        if late:
            fetched = self._fetch()
        accs = [acc]
        if len(shared.dots) > 1:
            accs = [writer.name("acc") for _ in shared.dots]
            writer.let(", ".join(accs), f"roles.halves({acc})")
        pieces, piece = [writer.name("pieces") for _ in accs], writer.name("piece")
        for name, one in zip(pieces, accs, strict=True):
            writer.let(name, f"roles.pieces({one}, {shared.pieces})")
        parts = [writer.name("part") for _ in accs]
        self.whole()  # before the loop over pieces, which shares it
        assert isinstance(self.values, ConsumerValueEmitter)
        with writer.block(nodes.Loop(index=piece, over=f"gl.static_range({shared.pieces})")):
            for part, name in zip(parts, pieces, strict=True):
                writer.let(part, f"{name}[{piece}]")
            if product:
                self.values.computed[product.name] = parts[0]
            self.values.piece, self.values.parts = piece, parts
            self.values.take_prefetched(fetched)
            for number, statement in enumerate(rest[1:] if product else rest):
                if number or product:
                    self.comment(statement)
                self.statement(statement)

    def _compute(self, rest: Sequence[Statement]) -> None:
        """Lower what is computed in a tile without a product, piece by piece.

        Vectors are read when the tiles of a piece are there, which the loader has loaded after the waits of the tile.
        """
        shared, writer = self.shared, self.writer
        assert isinstance(self.values, ConsumerValueEmitter)
        piece, part = writer.name("piece"), writer.name("part")
        writer.let(part, f"roles.zeros({shared.rows}, {shared.piece})")  # the layout of pieces: its zeros are not read
        self.values.piece, self.values.parts = piece, [part]
        with writer.block(nodes.Loop(index=piece, over=f"gl.static_range({shared.pieces})")):
            self.values.take_all()
            for statement in rest:
                self.comment(statement)
                self.statement(statement)

    def take(self, region: Region, part: str) -> str:
        """Take the next piece of a tile from the ring of operands, and return its name."""
        shared, writer, position = self.shared, self.writer, self.position
        name = writer.name(f"{region.tensor}_tile")
        own = f"left_ring.index({position.buffer} * {shared.consumers} + PART)"
        after = self.at[OPERANDS].after
        self.steps(after, position, go_on=True, take=lambda _: writer.call("roles.take", own, part, to=name))
        return name

    def statement(self, statement: Executed) -> None:
        match statement:
            case Assign(name=name, value=value):
                self._assign(name, value)
            case Store(region=region, value=value) | Transfer(target=region, source=value):
                self._result(region, self.values.lower(value, {}))
            case _:
                raise AssertionError(statement)

    def _fetch(self) -> Mapping[Region, Prefetch]:
        """Start to load what is computed with the product of a tile. Return the tiles of which more pieces follow."""
        shared, addresses = self.shared, self.values.addresses
        read = read_by_consumers(addresses.bound, addresses.stage)
        if not read:
            return {}
        assert isinstance(self.values, ConsumerValueEmitter)
        bits = "" if self._element_bits == 16 else f", ELEMENT_BITS={self._element_bits}"
        zeros = f"roles.zeros({shared.rows}, {shared.all_columns}{bits})"
        product = zeros if len(shared.dots) == 1 else f"roles.halves({zeros})[0]"
        like = self.writer.let(self.writer.name("like"), f"roles.pieces({product}, {shared.pieces})[0]")
        self.values.load_vectors(read, like)
        return self.values.prefetch(read, like)

    def multiply(self, acc: str, *, fetch: bool) -> Mapping[Region, Prefetch]:
        """Lower the product of a tile.

        fetch: True to load what is computed with it while its last buffer is multiplied. All signals of the tile have
        come then: the loader has loaded this buffer after it waited for them.
        """
        shared, writer = self.shared, self.writer
        parts, summed = parts_of(self.at[OPERANDS]), shared.summed
        self._zeros(acc)
        if summed is not None and summed.scaled:
            self._sum_scaled(summed, parts.each, acc)
            return self._fetch() if fetch else {}
        if any(step.word == SUM for step in parts.each):
            return self._sum_products(parts.each, acc, fetch=fetch)
        self._multiply_buffers(parts.first, acc, first=True)
        if shared.steps > 1:
            over = f"range({shared.block}, {shared.inner}, {shared.block})"
            over = over if summed is None else f"range(1, {shared.steps})"
            with writer.block(nodes.Loop(index=writer.name("k"), over=over)):
                self._multiply_buffers(parts.each, acc, first=False)
        fetched = self._fetch() if fetch else {}
        self._multiply(parts.last, acc, RingPosition(buffer=self.position.previous))
        return fetched

    def _zeros(self, name: str) -> None:
        """Emit the accumulator of a product."""
        bits = {} if self._element_bits == 16 else {"ELEMENT_BITS": self._element_bits}
        self.writer.call("roles.zeros", self.shared.rows, self.shared.all_columns, to=name, **bits)

    @property
    def _element_bits(self) -> int:
        left = operand_region(self.shared.dot.left).tensor
        return 8 * ITEM_BYTES[self.values.addresses.bound.tensors[left].dtype]

    def _sum_products(self, steps: tuple[Step, ...], acc: str, *, fetch: bool) -> Mapping[Region, Prefetch]:
        """Lower the product of a tile, of which the product of each position is added to the sums.

        fetch: as of `multiply`, after the wait for the last buffer.
        """
        shared, writer = self.shared, self.writer
        k, product = writer.name("k"), writer.name("product")
        addresses = self.values.addresses
        last = fetch and bool(read_by_consumers(addresses.bound, addresses.stage))
        if shared.steps > last:
            end = f"{shared.inner} - {shared.block}" if last else shared.inner
            over = f"range(0, {end}, {shared.block})" if shared.summed is None else f"range(0, {shared.steps - last})"
            with writer.block(nodes.Loop(index=k, over=over)):
                self._sum_product(steps, acc, product)
        if not last:
            return {}
        awaited = 1 + next(n for n, step in enumerate(steps) if step.word == AWAIT)
        self._multiply(steps[:awaited], product, self.position)
        fetched = self._fetch()
        self._sum_product(steps[awaited:], acc, product)
        return fetched

    def _sum_scaled(self, summed: SummedProduct, steps: tuple[Step, ...], acc: str) -> None:
        """Lower a sum of products that iterations scale: what they scale by is loaded while they multiply.

        If it may be read early, an iteration loads that of the next one: a product takes less time than a load. It
        first computes with its own. The registers are free then, and nothing is copied, which would wait for the load.
        """
        values, writer = self.values, self.writer
        assert isinstance(values, ConsumerValueEmitter)
        count, early = summed.count(values.addresses.stage), self.shared.reads_early
        product, number, now = writer.name("product"), writer.name("number"), dict[Region, str]()
        if early:
            with writer.apart():
                self._number(summed, "0")
                now = values.load_all(summed.reads, acc)
        with writer.block(nodes.Loop(index=number, over=f"range(0, {count})")), writer.apart():
            if not early:
                self._number(summed, number)
            self.comment(summed.statement)
            loaded = now

            def load() -> None:  # the buffer is full, so that all signals of the iteration have come
                nonlocal loaded
                values.known = {}
                if early:
                    values.parts, values.prefetched = [product], now
                    values.known = {one: values.named(values.lower(one, {})) for one in summed.factors}
                    following = writer.let(writer.name("following"), f"tl.minimum({number} + 1, {count - 1})")
                    self._number(summed, following)
                loaded = values.load_all(summed.reads, acc)

            def add(_: Step) -> None:
                values.parts, values.prefetched = [product], now or loaded
                writer.let(acc, f"{acc} + {values.lower(summed.added, {}).text}")

            self._multiply(steps, product, self.position, fresh=True, then=load, sum=add)
            for region, name in now.items():
                writer.let(name, loaded[region])
            self.follow(self.position, self.position, self.shared.buffers)
        values.prefetched, values.known = {}, {}

    def _number(self, summed: SummedProduct, number: str) -> None:
        """Emit the indices of an iteration of a sum of products, of which the last runs fastest."""
        stage, constants, rest = self.values.addresses.stage, self.values.addresses.constants, number
        several = [decl.name for decl in summed.loop.indices if number != "0" and stage.count(decl.name) > 1]
        for decl in summed.loop.indices:
            if decl.name not in several:
                self.writer.let(decl.name, "0")
        for name in reversed(several):
            size = constants.count(stage, name)
            self.writer.let(name, rest if name == several[0] else f"{rest} % {size}")
            rest = f"{rest} // {size}" if rest == number else f"({rest}) // {size}"

    def _sum_product(self, steps: tuple[Step, ...], acc: str, product: str) -> None:
        def add(_: Step) -> None:
            self.writer.let(acc, f"{acc} + {product}")

        self._multiply(steps, product, self.position, go_on=True, fresh=True, sum=add)

    def _multiply_buffers(self, steps: tuple[Step, ...], acc: str, *, first: bool) -> None:
        self._multiply(steps, acc, self.position, first=first)
        if self.at[OPERANDS].released_late:
            self.writer.let(self.position.previous, self.position.buffer)
        self.follow(self.position, self.position, self.shared.buffers)

    def _multiply(
        self,
        steps: tuple[Step, ...],
        acc: str,
        position: RingPosition,
        *,
        go_on: bool = False,
        first: bool = False,
        fresh: bool = False,
        then: Callable[[], None] | None = None,
        **acts: Callable[[Step], None],
    ) -> None:
        """Lower steps of a product. first: True if what `acc` holds is not added to. fresh: True for another product
        at each position, which begins with zeros. then: lowers what follows it. The others are as of `steps`."""

        def multiply(_: Step) -> None:
            if fresh:
                self._zeros(acc)
            left = f"left_ring.index({position.buffer} * {self.shared.consumers} + PART)"
            right = part_of("right_ring", position.buffer, self.shared.narrow)
            layout = {"N_MAJOR": True} if self.shared.n_major else {}
            self.writer.call("roles.multiply", left, right, acc, to=acc, FIRST=first or fresh, **layout)
            if then is not None:
                then()

        def retire(step: Step) -> None:
            self.writer.call("roles.retire", acc, to=acc, FLYING=step.number)

        self.steps(steps, position, go_on=go_on, multiply=multiply, retire=retire, **acts)

    def _result(self, region: Region, tile: Tile) -> None:
        """Hand a piece of a result to the storer."""
        shared, position = self.shared, self.positions.results
        dtype = TRITON[self.values.addresses.bound.tensors[region.tensor].dtype]
        value = tile.text if TRITON[tile.dtype] == dtype else f"{self.values.named(tile).text}.to({dtype})"
        buffer = f"PART * {shared.results} + {position.buffer}"
        at = replace(position, buffer=buffer)
        self.steps(self.at[RESULTS].steps, at, fill=lambda _: self._fill(buffer, value))
        self.follow(position, position, shared.results)

    def _fill(self, buffer: str, value: str) -> None:
        """Hand over a piece in shared memory, or store its elements if the rings of the kernel do not hold its type.

        The rows of a tile that is cut are stored, too: a box would have more of them.
        """
        writer, store = self.writer, f"result_ring.index({buffer}).store"
        if self.values.addresses.stage.is_direct:
            self._store_in_memory(value)
            return
        if (whole := self.whole()) is None:
            writer.call(store, value)
            return
        with writer.block(nodes.Branch(condition=whole)):
            writer.call(store, value)
        with writer.block(nodes.Otherwise()):
            self._store_in_memory(value)

    def _store_in_memory(self, value: str) -> None:
        """Store a piece in memory. The storer then only learns that it is stored."""
        assert isinstance(self.values, ConsumerValueEmitter)
        for one in results_of(self.values.addresses.stage):
            if self.values.addresses.bound.tensors[one.tensor].fragments:
                pointer = self.values.fragment(one, load=False)
                self.writer.call("roles.store_by_thread", pointer, value)
                continue
            pointers, mask = self.values.pointers(one, self.values.piece, load=False)
            self.writer.call("roles.store_rows", pointers, value, mask=mask or None)
