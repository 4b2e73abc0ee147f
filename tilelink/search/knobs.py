"""Knobs, derived from the stages of a program: the values of each choice and the change of a schedule by each value.

No operator is known by name here. Stages that multiply share one tile size: they take turns on the same SMs, and a
kernel has one number of warps. A stage that only moves data gets resources and sizes of its transfers. A small stage
may run in the kernel of the largest one. An index over the ranks gets orders that begin at the local rank or at a
neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tilelink.ir.program import Attend, Dot, IndexDecl, Notify, Program, Region, Stage, Store, Transfer, Wait
from tilelink.ir.scalar import RANK, Env, Index, Param, Ranks, Scalar, at_launch, binary, const, evaluate, walk
from tilelink.ir.sizes import power_of_two
from tilelink.ir.typing import Axis, StageTyping, Typing, infer
from tilelink.ir.visitor import stage_scalars, statements, value_of, values
from tilelink.lowering.clauses import Choices, Clause, clauses
from tilelink.lowering.clauses.order import ORDER
from tilelink.lowering.clauses.resource import RESOURCE
from tilelink.lowering.clauses.tile import TILE
from tilelink.lowering.clauses.tma_copy import bulk_reason
from tilelink.lowering.launch_decided import allows
from tilelink.scheduling.schedule import CopyEngine, Fused, IndexOrder, Order, Resource, Schedule, Sm
from tilelink.scheduling.words import word_called
from tilelink.target import Target

PRODUCTS = (
    (128, 256, 64, 8, 4), (128, 256, 64, 8, 3), (256, 128, 64, 8, 4), (128, 128, 64, 8, 4), (128, 128, 64, 4, 3),
    (64, 256, 64, 4, 4), (64, 128, 64, 4, 4), (32, 128, 64, 4, 4), (16, 128, 128, 4, 4),
)  # fmt: skip
"""Rows, columns, reduced elements (K), warps and pipeline stages of a product's tile, on a GPU."""
SMALL_PRODUCTS = ((16, 16, 16, 4, 2), (32, 32, 32, 4, 2), (64, 64, 32, 4, 2))
"""The same in the interpreter, where the cost of a tile follows its number of operations."""
ATTENTIONS = ((128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 4, 2), (64, 128, 4, 2), (64, 64, 4, 3), (32, 64, 4, 3))
"""Rows of the queries and of the keys, warps and pipeline stages of a tile of attention, on a GPU."""
SMALL_ATTENTIONS = ((16, 16, 4, 2), (32, 32, 4, 2), (64, 64, 4, 2))
"""The same in the interpreter."""
GROUPS = (0, 4, 8, 16)
"""Sizes of the groups of rows in which tiles are visited; 0: row by row."""
ELEMENTWISE = ((32, 64), (64, 128), (32, 256), (16, 512), (64, 512))
"""Rows and columns of a tile of a stage without products."""
LINES = (256, 512, 1024, 2048)
"""The same of a stage whose tiles are parts of one row, where the row has that many."""
MOVED_ROWS = (64, 128, 256, 512, 1024, 2048, 65536)
"""Rows that one transfer moves; the last value means all rows."""
COPIED, WHOLE = "copy engine", "all rows"
"""Labels of stages that move data by a copy engine, and in transfers of all rows."""
MOVERS = (4, 8, 16)
"""Programs, on dedicated SMs, for a stage that moves data."""
MOVER_WARPS = 16
TMA_PROGRAMS, TMA_SMS = 4, (8, 12, 16)
"""Programs of an SM that copies by TMA, and the numbers of such SMs."""
Change = Callable[[Schedule], Schedule]


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One choice: `changes[k]` changes a schedule as `labels[k]` says.

    overlaps: the label with which data travel while stages multiply, if all knobs agree on it. Alone it can be worse
    than every other one: copies of whole shards gain nothing where their reader does not begin with its own shard.
    """

    name: str
    labels: tuple[str, ...]
    changes: tuple[Change, ...] = field(repr=False, compare=False)
    overlaps: str | None = field(default=None, compare=False)


def knobs(program: Program, dims: Mapping[str, int | float | bool], ranks: int, target: Target) -> tuple[Knob, ...]:
    """Return the knobs of a program at these sizes, in the order of its stages, then of its tensors."""
    typing = infer(program)
    readers = [
        _Reader(program=program, stage=stage, typing=typing.stage(stage.name), dims=dims, ranks=ranks, tma=target.tma)
        for stage in program.stages
    ]
    products = [reader for reader in readers if reader.product]
    # Other stages may run in the kernel of the largest stage.
    host = max((r for r in readers if r.stage.kind == "compute"), key=_Reader.elements, default=None)
    found = [*_product_knobs(products, target), *_attention_knobs(readers, target)]
    for reader in readers:
        found += [*reader.place_knobs(host.stage if host else None), *reader.size_knobs(), *reader.order_knobs()]
    tried = [one for one in clauses() if one.choices is not None and one.of == "stage" and one.choices.on(target)]
    for clause in tried:
        assert clause.choices is not None
        if not clause.choices.joins:
            found += _clause_knobs(program, clause, clause.choices, readers, _joining(clause, tried))
    for clause in clauses():
        found += _tensor_knobs(program, clause, typing, dims, ranks) if clause.of == "tensor" else ()
    return tuple(knob for knob in found if len(knob.labels) > 1)


def with_built_in(knob: Knob, program: Program) -> Knob:
    """Return a knob with a choice that leaves a schedule as it is, unless it has one that says nothing."""
    plain = Schedule(name="plain", program=program.name)
    if any(change(plain) == plain for change in knob.changes):
        return knob
    # Last: of choices that change a schedule as little, the first one is the nearest (seeds.py).
    return Knob(name=knob.name, labels=(*knob.labels, "built in"), changes=(*knob.changes, lambda schedule: schedule))


def _tensor_knobs(
    program: Program, clause: Clause[Any], typing: Typing, dims: Mapping[str, int | float | bool], ranks: int
) -> Iterator[Knob]:
    """Yield the knob of a clause for each tensor that offers a choice."""
    choices = clause.tensor_choices
    if choices is not None:
        for tensor in program.tensors:
            labels = choices.labels(program, typing, tensor, dims, ranks)
            changes = {label: _telling(tensor.name, clause, value) for label, value in labels.items()}
            yield _knob(f"{tensor.name} {choices.name}", changes)


def _telling(tensor: str, clause: Clause[Any], value: object) -> Change:
    return lambda schedule: schedule.say(tensor, clause, value)


def _knob(name: str, choices: Mapping[str, Change], overlaps: str | None = None) -> Knob:
    return Knob(
        name=name, labels=tuple(choices), changes=tuple(choices.values()),
        overlaps=overlaps if overlaps in choices else None,
    )  # fmt: skip


def _all(changes: Sequence[Change]) -> Change:
    """Return the composition of several changes, in order."""

    def change(schedule: Schedule) -> Schedule:
        for step in changes:
            schedule = step(schedule)
        return schedule

    return change


def _product_knobs(readers: Sequence[_Reader], target: Target) -> Iterator[Knob]:
    """Yield the knobs that all stages with a product share: tile with its pipeline, and groups of rows."""
    name = readers[0].stage.name if len(readers) == 1 else "products"
    fitting = [
        p for p in (SMALL_PRODUCTS if target.kind == "cpu" else PRODUCTS) if any(r.holds(*p[:2]) for r in readers)
    ]
    tiles = {
        f"{m}x{n}x{k}, {warps} warps, {stages} stages": _all([r.multiply(m, n, k, warps, stages) for r in readers])
        for m, n, k, warps, stages in fitting
    }
    yield _knob(f"{name} tile", tiles)
    if wide := [r for r in readers if len(r.tiled()) >= 2]:
        yield _bands(name, wide)


def _attention_knobs(readers: Sequence[_Reader], target: Target) -> Iterator[Knob]:
    """Yield the tile knob that all stages with attention and no other product share."""
    able = [reader for reader in readers if reader.attention and not reader.product]
    name = able[0].stage.name if len(able) == 1 else "attentions"
    choices = SMALL_ATTENTIONS if target.kind == "cpu" else ATTENTIONS
    tiles = {
        f"{m}x{n}, {warps} warps, {stages} stages": _all([r.multiply(m, n, 0, warps, stages) for r in able])
        for m, n, warps, stages in choices
        if any(r.holds(m, n) for r in able)
    }
    yield _knob(f"{name} tile", tiles)


def _bands(name: str, readers: Sequence[_Reader]) -> Knob:
    """Return the knob for the groups of rows in which the tiles of these stages are visited."""
    labels = {f"of {rows}" if rows else "none": rows for rows in GROUPS}
    return _knob(f"{name} bands", {label: _all([r.banded(rows) for r in readers]) for label, rows in labels.items()})


def _joining(clause: Clause[Any], tried: Sequence[Clause[Any]]) -> list[Clause[Any]]:
    """Return the clauses whose values join the knob of a clause."""
    return [one for one in tried if one.choices is not None and one.choices.joins == clause.name]


def _clause_knobs(
    program: Program, clause: Clause[Any], choices: Choices[Any], readers: Sequence[_Reader], others: list[Clause[Any]]
) -> Iterator[Knob]:
    """Yield the knobs of a clause: one for all stages that multiply, or one for each stage that allows the clause.

    others: clauses whose values join that for all stages that multiply.
    """
    products = [r for r in readers if r.product or r.attention]
    if choices.together:
        name = products[0].stage.name if len(products) == 1 else "products"
        changes = _changes_of(program, [clause, *others], products)
        if len(changes) > 1:
            yield _knob(f"{name} {choices.name}", changes)
        return
    for reader in readers:
        if _able(clause, choices, reader):
            changes = {label: _saying(program, clause, value, [reader]) for label, value in choices.labels.items()}
            yield _knob(f"{reader.stage.name} {choices.name}", changes)


def _changes_of(program: Program, together: list[Clause[Any]], readers: Sequence[_Reader]) -> dict[str, Change]:
    """Return label -> change of clauses that exclude each other, of which the first has a label for none of them."""
    chosen = [(one, one.choices) for one in together if one.choices is not None]
    able = {one.name: [r for r in readers if _able(one, choices, r)] for one, choices in chosen}
    changes: dict[str, Change] = {}
    for clause, choices in chosen:
        for label, value in choices.labels.items():
            if able[clause.name] or value == clause.default:
                values = [(one, value if one is clause else one.default) for one, _ in chosen]
                changes[label] = _all([_saying(program, one, what, able[one.name]) for one, what in values])
    return changes


def _able(clause: Clause[Any], choices: Choices[Any], reader: _Reader) -> bool:
    """True if a stage may have a clause."""
    return choices.reason(reader.stage, reader.typing) is None and allows(reader.stage, clause)


def _saying(program: Program, clause: Clause[Any], value: object, readers: Sequence[_Reader]) -> Change:
    def change(schedule: Schedule) -> Schedule:
        for reader in readers:
            name = reader.stage.name
            fits = clause.choices is None or clause.choices.fits(program, schedule, name)
            schedule = schedule.say(name, clause, value if fits else clause.default)
            for other, brought in clause.choices.along if clause.choices else ():
                schedule = schedule.say(name, other, brought if fits and value != clause.default else other.default)
            for other in clause.choices.instead_of if clause.choices and fits and value != clause.default else ():
                schedule = schedule.say(name, word_called(other), word_called(other).default)
        return schedule

    return change


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Derives the knobs of one stage."""

    program: Program
    stage: Stage
    typing: StageTyping
    dims: Mapping[str, int | float | bool]
    ranks: int
    tma: bool = False

    @property
    def copies_by_tma(self) -> bool:
        """True if its copies may use the TMA unit."""
        return self.tma and not self.at_launch and bulk_reason(self.stage.body) is None

    @property
    def at_launch(self) -> bool:
        """True if a launch decides its tiles or places, which a copy engine or a rearrangement must know before."""
        return any(map(at_launch, stage_scalars(self.stage)))

    def _found(self, kind: type[Dot] | type[Attend]) -> list[Dot | Attend]:
        stored = (value_of(s) for s in statements(self.stage.body))
        return [v for value in stored if value is not None for v in values(value) if isinstance(v, kind)]

    @property
    def product(self) -> bool:
        """True if the stage has a product outside of attention."""
        return bool(self._found(Dot))

    @property
    def attention(self) -> bool:
        return bool(self._found(Attend))

    def extent(self, size: Scalar) -> int:
        return int(evaluate(size, Env(rank=0, ranks=self.ranks, params=dict(self.dims), indices={})))

    def tiled(self) -> dict[str, int]:
        """Return the indices that have tiles of more than one element -> their extents."""
        scalars = self.typing.scalar_indices
        return {d.name: self.extent(d.extent) for d in self.stage.indices if d.name not in scalars}

    def elements(self) -> int:
        """Return the number of points of the domain."""
        return prod(self.extent(d.extent) for d in self.stage.indices)

    def regions(self, kind: type[Wait] | type[Notify]) -> list[Region]:
        """Return the regions that the stage waits for, or notifies."""
        return [s.region for s in statements(self.stage.body) if isinstance(s, kind)]

    @property
    def moves(self) -> bool:
        """True if the stage only moves data."""
        moved = (isinstance(s, Transfer) for s in statements(self.stage.body) if isinstance(s, Store | Transfer))
        return self.stage.kind == "comm" and all(moved)

    # Products ------------------------------------------------------------------------------------------------

    def axes(self) -> dict[str, int]:
        """Return the axes of products and attention -> 0 for rows, 1 for columns, 2 for the reduction dimension.

        Indices of the domain and of loops have their own names. Whole dimensions have the names that schedules use for
        them. If several products share an axis, the first one decides.
        """
        axes: dict[str, int] = {}
        for part in (*self._found(Dot), *self._found(Attend)):
            ends = ((part.q, -2), (part.k, -2)) if isinstance(part, Attend) else ()
            ends = ((part.left, -2), (part.right, -1), (part.left, -1)) if isinstance(part, Dot) else ends
            for at, (value, position) in enumerate(ends):
                whole = at == 2 or isinstance(part, Attend)
                if (name := self._name(self.typing.axes_of(value)[position], whole=whole)) is not None:
                    axes.setdefault(name, at)
        return axes

    def _name(self, axis: Axis, *, whole: bool) -> str | None:
        """Return the name of an axis in a schedule, or None if a schedule cannot tile it."""
        if axis.index is not None:
            return None if axis.index in self.typing.scalar_indices else axis.index
        name = axis.dim.name.lower() if whole and isinstance(axis.dim, Param) else None
        return None if name in self.typing.indices else name  # the index has that name

    def holds(self, *sizes: int) -> bool:
        """True if tiles of `sizes` (rows, columns) are less than twice the product, rounded up to powers of two."""
        tiled = self.tiled()
        return all(
            sizes[at] < 2 * power_of_two(tiled[name]) for name, at in self.axes().items() if at < 2 and name in tiled
        )

    def multiply(self, m: int, n: int, k: int, warps: int, stages: int) -> Change:
        sizes = {name: (m, n, k)[at] for name, at in self.axes().items()}
        name = self.stage.name
        return lambda s: s.tile(name, **sizes).knobs(name, num_warps=warps, num_stages=stages)

    def banded(self, rows: int) -> Change:
        """Group `rows` tiles of the first index (0: no groups); the order of the indices stays."""
        name, group = self.stage.name, (next(iter(self.tiled())), rows) if rows else None
        return lambda schedule: schedule.order(name, *_order(schedule, name).nest, group=group)

    # Places --------------------------------------------------------------------------------------------------

    def place_knobs(self, host: Stage | None) -> Iterator[Knob]:
        """Yield the knob of its resource, or of the kernel that it joins. host: the stage with the kernel to join."""
        choices: dict[str, Change] = {}
        hosts = (
            [host] if host and self.stage.kind == "compute" else [s for s in self.program.stages if s.kind == "compute"]
        )
        if self.moves and not self.at_launch:
            choices[COPIED] = self._on(CopyEngine())
        elif self.stage.kind == "compute":
            choices["kernel of its own"] = self._on(Sm())
        if self.moves or (self.stage != host and any(isinstance(s, Transfer) for s in statements(self.stage.body))):
            choices |= {f"{count} programs": self._on(Sm(programs=count)) for count in MOVERS}
        if self.moves and self.copies_by_tma:
            choices |= {f"{count} SMs by TMA": self._on(Sm(programs=count), TMA_PROGRAMS) for count in TMA_SMS}
        place = "epilogue" if self.regions(Wait) else "prologue"
        for other in hosts:
            if other != self.stage and not (place == "epilogue" and self._needed_by(other)):
                choices[f"{place} of {other.name}"] = self._on(Fused(stage=other.name, place=place))
        if self.moves or self.stage.kind == "compute":
            yield _knob(f"{self.stage.name} on", choices, overlaps=COPIED)

    def _needed_by(self, other: Stage) -> bool:
        """True if another stage waits for a tensor that this one notifies, so that this one cannot be its epilogue."""
        awaited = {s.region.tensor for s in statements(other.body) if isinstance(s, Wait)}
        return any(region.tensor in awaited for region in self.regions(Notify))

    def _on(self, resource: Resource, tma_programs: int | None = None) -> Change:
        warps = MOVER_WARPS if self.moves and isinstance(resource, Sm) and not tma_programs else None

        def change(schedule: Schedule) -> Schedule:
            schedule = schedule.on(self.stage.name, resource).tma_copy(self.stage.name, tma_programs)
            return self._counters(schedule.knobs(self.stage.name, num_warps=warps)) if self.moves else schedule

        return change

    # Sizes ---------------------------------------------------------------------------------------------------

    def size_knobs(self) -> Iterator[Knob]:
        tiled = self.tiled()
        if self.moves:
            yield _knob(f"{self.stage.name} tile", dict(self._moved(tiled)), overlaps=WHOLE)
        elif not self.product and not self.attention and tiled:
            *_, columns = tiled
            tiles = {str(n): self._tile({columns: n}) for n in LINES if n < 2 * power_of_two(tiled[columns])}
            if len(tiled) >= 2:
                rows = list(tiled)[-2]
                tiles = {f"{m}x{n}": self._tile({rows: m, columns: n}) for m, n in ELEMENTWISE}
            yield _knob(f"{self.stage.name} tile", tiles)
            if self.regions(Wait) and len(tiled) >= 2:
                yield _bands(self.stage.name, [self])

    def _tile(self, sizes: dict[str, int]) -> Change:
        def change(schedule: Schedule) -> Schedule:
            schedule = schedule.tile(self.stage.name, **sizes)
            return self._counters(schedule) if self.moves else schedule

        return change

    def _moved(self, tiled: dict[str, int]) -> Iterator[tuple[str, Change]]:
        """Yield (label, change) for tiles of some rows of the first index, whole along the other indices."""
        if not tiled:
            return
        rows, *others = tiled
        for size in MOVED_ROWS:
            if size < 2 * tiled[rows] or size == MOVED_ROWS[-1]:
                sizes = {rows: size, **{name: power_of_two(tiled[name]) for name in others}}
                label = WHOLE if size == MOVED_ROWS[-1] else f"{size} rows"
                yield label, self._tile(sizes)

    def _counters(self, schedule: Schedule) -> Schedule:
        """Give a tensor that only this stage waits for, before it moves it, one counter for each transfer.

        With one counter for each produced tile it could not begin earlier, and would wait for all of them. Inside
        another stage's kernel this stage has the tiles of that kernel, and so one counter for each tile.
        """
        part = schedule.stage(self.stage.name)
        fused = isinstance(part[RESOURCE], Fused)
        for region in self.regions(Wait):
            others = (s for s in self.program.stages if s != self.stage)
            awaited = {w.region.tensor for s in others for w in statements(s.body) if isinstance(w, Wait)}
            if region.tensor not in awaited:
                along = {c.name for c in region.coords if isinstance(c, Index)}
                sizes = {name: size for name, size in part[TILE] if name in along and not fused}
                schedule = schedule.channel(region.tensor, **sizes)
        return schedule

    # Orders --------------------------------------------------------------------------------------------------

    def order_knobs(self) -> Iterator[Knob]:
        over = [d.name for d in self.stage.indices if isinstance(d.extent, Ranks)]
        nests: dict[str, tuple[IndexOrder, ...]] = {"as written": ()}
        overlaps = None
        if len(over) == 1:
            nests = {str(term): (term,) for term in _rotations(over[0])}
            up, down, ends_here, _ = nests  # what comes is there by the time that its reader turns to it
            overlaps = down if self.moves else up if self.regions(Wait) else ends_here
        for decl in self._peers():
            backwards = IndexOrder(index=decl.name, kind="sequence", start=binary("-", decl.extent, const(1)), step=-1)
            nests[f"{decl.name} backwards"] = (backwards,)
        changes = {label: self._ordered(nest) for label, nest in nests.items()}
        yield _knob(f"{self.stage.name} order", changes, overlaps=overlaps)

    def _peers(self) -> list[IndexDecl]:
        """Return the indices over a part of the ranks, such as all but the local one."""
        return [
            d for d in self.stage.indices
            if not isinstance(d.extent, Ranks) and any(isinstance(e, Ranks) for e in walk(d.extent))
        ]  # fmt: skip

    def _ordered(self, nest: tuple[IndexOrder, ...]) -> Change:
        name = self.stage.name
        return lambda schedule: schedule.order(name, *nest, group=_order(schedule, name).group)


def _order(schedule: Schedule, stage: str) -> Order:
    return schedule.stage(stage)[ORDER] or Order()


def _rotations(index: str) -> Iterator[IndexOrder]:
    """Yield orders over the ranks: from the local rank up, and down, from the next one up, and the one before down."""
    after, before = binary("+", RANK, const(1)), binary("-", RANK, const(1))
    for start, step in ((RANK, 1), (RANK, -1), (after, 1), (before, -1)):
        yield IndexOrder(index=index, kind="sequence", start=start, step=step)
