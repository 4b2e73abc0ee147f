"""The choices that a program leaves open, read off its stages: what each knob may be and what it does to a schedule.

Nothing here knows an operator. A stage that multiplies gets tiles of a product; one that only moves data gets
resources and sizes of what it moves; an index over the ranks gets orders that begin at one's own rank or beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tilelink.ir.program import Dot, IndexDecl, Program, Stage, Store, Transfer, Wait
from tilelink.ir.scalar import RANK, Env, Ranks, Scalar, binary, const, evaluate, walk
from tilelink.ir.typing import StageTyping, infer
from tilelink.ir.visitor import statements, value_of, values
from tilelink.schedule.flat import flat_reason
from tilelink.schedule.values import CopyEngine, Fused, IndexOrder, Schedule, Sm
from tilelink.target import Target

PRODUCTS = (
    (128, 256, 64, 8, 4), (128, 256, 64, 8, 3), (256, 128, 64, 8, 4), (128, 128, 64, 8, 4), (128, 128, 64, 4, 3),
    (64, 256, 64, 4, 4), (64, 128, 64, 4, 4), (32, 128, 64, 4, 4), (16, 128, 128, 4, 4),
)  # fmt: skip
"""Rows, columns, contracted elements, warps and stages of a product's tile, on a GPU."""
SMALL_PRODUCTS = ((16, 16, 16, 4, 2), (32, 32, 32, 4, 2), (64, 64, 32, 4, 2))
"""The same in the interpreter, where a tile costs by its number of operations."""
GROUPS = (0, 4, 8, 16)
"""Bands of rows in which a product's tiles are walked; 0: row by row."""
ELEMENTWISE = ((32, 64), (64, 128), (32, 256), (16, 512))
"""Rows and columns of a tile that is computed without a product."""
MOVED_ROWS = (64, 128, 256, 512, 1024, 2048, 65536)
"""Rows that one transfer moves; the last is all of them."""
MOVERS = (4, 8, 16)
"""Programs on SMs of their own for a stage that moves data."""
BUFFERS = (2, 1)

Change = Callable[[Schedule], Schedule]


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One choice: `labels[k]` says what `changes[k]` does to a schedule."""

    name: str
    labels: tuple[str, ...]
    changes: tuple[Change, ...] = field(repr=False, compare=False)


def knobs(program: Program, dims: Mapping[str, int | float | bool], ranks: int, target: Target) -> tuple[Knob, ...]:
    """The knobs of a program at these sizes, in the order of its stages, then of its tensors."""
    typing = infer(program)
    found: list[Knob] = []
    for stage in program.stages:
        reader = _Reader(program=program, stage=stage, typing=typing.stage(stage.name), dims=dims, ranks=ranks)
        found += [*reader.product_knobs(target), *reader.pipeline_knobs()] if reader.product else reader.other_knobs()
        found += reader.order_knobs()
    shared = [t.name for t in program.tensors if t.symmetric]
    found += [_knob(f"{name} buffers", {str(n): _buffers(name, n) for n in BUFFERS}) for name in shared]
    return tuple(knob for knob in found if len(knob.labels) > 1)


def _knob(name: str, choices: Mapping[str, Change]) -> Knob:
    return Knob(name=name, labels=tuple(choices), changes=tuple(choices.values()))


def _buffers(tensor: str, count: int) -> Change:
    return lambda schedule: schedule.buffers(tensor, count)


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Reads the knobs off one stage."""

    program: Program
    stage: Stage
    typing: StageTyping
    dims: Mapping[str, int | float | bool]
    ranks: int

    @property
    def product(self) -> Dot | None:
        """The first product of the stage."""
        found = (value_of(s) for s in statements(self.stage.body))
        return next((v for one in found if one is not None for v in values(one) if isinstance(v, Dot)), None)

    def extent(self, size: Scalar) -> int:
        return int(evaluate(size, Env(rank=0, ranks=self.ranks, params=dict(self.dims), indices={})))

    def tiled(self) -> dict[str, int]:
        """The indices that have tiles of more than one element -> their extents."""
        scalars = self.typing.scalar_indices
        return {d.name: self.extent(d.extent) for d in self.stage.indices if d.name not in scalars}

    # Sizes ---------------------------------------------------------------------------------------------------

    def product_knobs(self, target: Target) -> Iterator[Knob]:
        tiled = self.tiled()
        axes = self.typing.type_of(self.product).axes if self.product else ()
        rows, columns = (str(a.index) if a.index in tiled else None for a in axes)
        choices: dict[str, Change] = {}
        for m, n, k, warps, stages in SMALL_PRODUCTS if target.kind == "cpu" else PRODUCTS:
            sizes = {name: size for name, size in ((rows, m), (columns, n)) if name is not None}
            if all(size < 2 * _padded(tiled[name]) for name, size in sizes.items()):
                label = f"{m}x{n}x{k}, {warps} warps, {stages} stages"
                choices[label] = self._product({**sizes, "k": k}, warps, stages)
        yield _knob(f"{self.stage.name} tile", choices)

    def _product(self, sizes: dict[str, int], warps: int, stages: int) -> Change:
        return lambda s: s.tile(self.stage.name, **sizes).knobs(self.stage.name, warps=warps, stages=stages)

    def pipeline_knobs(self) -> Iterator[Knob]:
        """Whether the next tile begins before one has ended, where a loop over tiles can be flat at all."""
        if flat_reason(self.stage.body) is None:
            choices = {"tile by tile": self._flat(False), "through all tiles": self._flat(True)}
            yield _knob(f"{self.stage.name} pipeline", choices)

    def _flat(self, on: bool) -> Change:
        return lambda schedule: schedule.flat(self.stage.name, on)

    def other_knobs(self) -> Iterator[Knob]:
        tiled = self.tiled()
        moves = all(isinstance(s, Transfer) for s in statements(self.stage.body) if isinstance(s, Store | Transfer))
        if self.stage.kind == "comm" and moves:
            yield _knob(f"{self.stage.name} on", dict(self._resources()))
            yield _knob(f"{self.stage.name} tile", dict(self._moved(tiled)))
        elif len(tiled) >= 2:
            rows, columns = list(tiled)[-2:]
            tiles = {f"{m}x{n}": self._tile({rows: m, columns: n}) for m, n in ELEMENTWISE}
            yield _knob(f"{self.stage.name} tile", tiles)

    def _tile(self, sizes: dict[str, int]) -> Change:
        return lambda schedule: schedule.tile(self.stage.name, **sizes)

    def _moved(self, tiled: dict[str, int]) -> Iterator[tuple[str, Change]]:
        """Rows of the first index; whole along the others."""
        if not tiled:
            return
        rows, *others = tiled
        for size in MOVED_ROWS:
            if size < 2 * tiled[rows] or size == MOVED_ROWS[-1]:
                sizes = {rows: size, **{name: _padded(tiled[name]) for name in others}}
                label = "all rows" if size == MOVED_ROWS[-1] else f"{size} rows"
                yield label, self._tile(sizes)

    def _resources(self) -> Iterator[tuple[str, Change]]:
        name = self.stage.name
        yield "copy engine", lambda schedule: schedule.on(name, CopyEngine())
        for count in MOVERS:
            yield f"{count} programs", self._on_programs(count)
        awaits = any(isinstance(s, Wait) for s in statements(self.stage.body))
        place = "epilogue" if awaits else "prologue"
        for host in self.program.stages:
            if host.kind == "compute":
                yield f"{place} of {host.name}", self._inside(host.name, place)

    def _on_programs(self, count: int) -> Change:
        return lambda schedule: schedule.on(self.stage.name, Sm(programs=count)).knobs(self.stage.name, warps=16)

    def _inside(self, host: str, place: str) -> Change:
        return lambda schedule: schedule.on(self.stage.name, Fused(stage=host, place=place))

    # Orders --------------------------------------------------------------------------------------------------

    def order_knobs(self) -> Iterator[Knob]:
        name = self.stage.name
        over = [d.name for d in self.stage.indices if isinstance(d.extent, Ranks)]
        tiled = list(self.tiled())
        starts: dict[str, tuple[IndexOrder, ...]] = {"as written": ()}
        if len(over) == 1:
            starts = {str(term): (term,) for term in _turns(over[0])}
        for decl in self._peers():
            backwards = IndexOrder(index=decl.name, kind="sequence", start=binary("-", decl.extent, const(1)), step=-1)
            starts[f"{decl.name} backwards"] = (backwards,)
        bands = GROUPS if self.product and len(tiled) >= 2 else (0,)
        choices: dict[str, Change] = {}
        for label, nest in starts.items():
            for band in bands:
                group = (tiled[0], band) if band else None
                choices[f"{label}, bands of {band}" if band else label] = self._ordered(nest, group)
        yield _knob(f"{name} order", choices)

    def _peers(self) -> list[IndexDecl]:
        """Indices over some of the ranks, as over all but oneself."""
        return [
            d for d in self.stage.indices
            if not isinstance(d.extent, Ranks) and any(isinstance(e, Ranks) for e in walk(d.extent))
        ]  # fmt: skip

    def _ordered(self, nest: tuple[IndexOrder, ...], group: tuple[str, int] | None) -> Change:
        return lambda schedule: schedule.order(self.stage.name, *nest, group=group)


def _turns(index: str) -> Iterator[IndexOrder]:
    """Orders over the ranks: from oneself or a neighbour, up or down."""
    after, before = binary("+", RANK, const(1)), binary("-", RANK, const(1))
    for start, step in ((RANK, 1), (RANK, -1), (after, 1), (before, -1)):
        yield IndexOrder(index=index, kind="sequence", start=start, step=step)


def _padded(extent: int) -> int:
    """The smallest power of two that holds an extent."""
    return 1 << max(0, extent - 1).bit_length()
