"""`split_k_tail n`: the tiles of the last, partial wave are divided among all CTAs by split-K.

P CTAs execute T tiles in ceil(T / P) waves. In the last wave only R = T % P of them have a tile. With `split_k_tail n`
each of these R tiles becomes S <= n products over parts of the contracted dimension. Their results are added up in the
order of the parts (the hybrid of whole tiles and split-K in Osama et al., "Stream-K", PPoPP 2023). The parts take one
wave if R * S <= P, or else two short ones: 80 tiles on 132 CTAs are 240 parts, two waves of a third of a tile each.

before: gemm(i: M, j: N):                    y[i, j] = f(dot(a[i, :], b[j, :].T))
after:  gemm, its first T - R tiles;         and then, in the same kernel
        gemm_parts(t: R, p: S):              split[t, p] = dot(a[i, k], b[j, k].T); notify(split[t, p])
        gemm_sums(t: R, some rows of i):     wait(split[t, :]); y[i, j] = f(split[t, 0] + split[t, 1] + ...)

With the clause `roles` (lowering/clauses/roles.py), the last part of a tile stays in registers, and the others are
added to it there:

after, with roles: gemm, its first T - R tiles; and then, in the same kernel
        gemm_parts(t: R, p: S - 1):          split[t, p] = dot(a[i, k], b[j, k].T); notify(split[t, p])
        gemm_sums(t: R):                     own = dot(a[i, last k], b[j, last k].T)
                                             wait(split[t, :]); own += split[t, 0] ...; y[i, j] = f(own)

The result is ordinary stages with tiles, waits and notifies: no later pass knows that they were one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilelink.errors import ScheduleError
from tilelink.ir.mapping import ChannelGrid, tile_index
from tilelink.ir.products import operands, products
from tilelink.ir.program import (
    Apply,
    Assign,
    Dot,
    FromScalar,
    IndexDecl,
    Local,
    Notify,
    Positions,
    Program,
    Read,
    Reduce,
    Region,
    Scan,
    Stage,
    Statement,
    Store,
    Tensor,
    UserCall,
    Value,
    Wait,
)
from tilelink.ir.scalar import Binary, Index, Scalar, Whole, add, binary, const, mul, substitute
from tilelink.ir.typing import StageTyping
from tilelink.ir.visitor import map_regions, map_value, map_values, reads, stage_regions, statements, value_of, values
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor, Kernel, Loop, with_channels
from tilelink.lowering.clauses.clause import Choices, Clause, Known, Phase, Ties, count, without
from tilelink.lowering.clauses.resource import RESOURCE
from tilelink.lowering.orders import TILE
from tilelink.lowering.transform import new_name, number_of, stage_writes
from tilelink.scheduling.schedule import Fused, Schedule

CUT_BY_INDEX = "the end of an index cuts its tiles where no tensor ends"
MIN_STEPS = 4
"""Least number of loop steps of a part. With fewer, the added work exceeds the work of the part."""
WAVES = 2
"""Largest number of waves of parts. All parts are in memory together, and each is stored and loaded once more."""
PART_STEPS = 8
"""Additional loop steps that a part costs, to fill the pipeline and to store its result."""
ROLES_PART_STEPS = 16
"""The same with roles. Chosen so that parts are taken where they gained on one H100, and two waves of them are not
where they lost: 12.6 waves of 256 steps took 0.98 of the time of halved tiles, and 10.7 waves of 64 steps 1.02. The
parts were in rows and columns then, not in fragment order."""
ROLES_SUM_STEPS = 4
"""Loop steps that each stored part costs where it is added. On one H100 it takes 1.2 to 2.2 us, and a step of 128 x 256
x 64 elements 0.5 to 0.65 us."""
MIN_ROWS = 8
"""Least number of rows of a tile that one program sums."""
SEARCHED_PARTS = 32
"""Largest number of parts that a search tries."""


_without_roles = without("roles")


def _apply(bound: Bound) -> Bound:
    """Return the bound program with every tail split that the schedule names.

    Raises ScheduleError if a tail cannot be split.
    """
    for part in bound.schedule.stages:
        parts = part[SPLIT_K_TAIL]
        if parts is None:
            continue
        stage = bound.stages[part.name]
        kernel = next(k for k in bound.kernels if part.name in k.stage_names)
        if reason := tail_reason(bound, kernel, stage) or _roles_reason(bound, stage):
            message = f"the tail of {part.name} cannot be split: {reason}"
            raise ScheduleError(message, location=part.at("split_k_tail"), hint="take `split_k_tail` away")
        split = Split(bound, stage)
        cut = split.cut(kernel, parts)
        if isinstance(cut, str):
            bound = bound.leaving_out(SPLIT_K_TAIL.name, part.name, cut)
        else:
            bound = split.apply(kernel, cut)
    return bound


def tail_reason(bound: Bound, kernel: Kernel, stage: BoundStage) -> str | None:
    if kernel.on_copy_engine:
        return "it has no tiles of its own on SMs"
    if kernel.loops[-1].stages != (stage.name,):
        return "its kernel executes other tiles with its own, or after them"
    return split_reason(stage.stage, bound.typing.stage(stage.name))


def _roles_reason(bound: Bound, stage: BoundStage) -> str | None:
    """Return why consumers of a stage cannot store parts of its products, or None."""
    if _without_roles(bound.program, bound.schedule, stage.name) or _multiplies_once(stage.stage):
        return None
    return "it has `roles` and several products, and consumers hand one result to the storer"


def _multiplies_once(stage: Stage) -> bool:
    """True if the tiles of a stage have one product."""
    return len(products(statements(stage.body))) == 1


def split_reason(stage: Stage, typing: StageTyping) -> str | None:
    """Return why the statements of a tile do not allow it to be split along its contracted dimension, or None."""
    leading = _leading(stage)
    dots = products(leading)
    if not dots:
        return "its tiles have no product outside of loops and conditions"
    if len(dots) < len(products(statements(stage.body))):
        return "some of its products are in a loop or under a condition"
    if not all(isinstance(s, Wait | Assign) for s in leading[:-1]):
        return "its tiles do more than wait before their products"
    axes = {typing.type_of(p).axes for p in dots}
    tiled = {d.name for d in stage.indices if d.name not in typing.scalar_indices}
    names = [axis.index for axis in next(iter(axes))]
    if len(axes) > 1 or len(tiled) != 2 or set(names) != tiled:  # rows and columns are distinguished by their names
        return "its products are not the tile that its indices make"
    multiplied = [value for product in dots for value in operands(product)]
    if not all(isinstance(v, Read) and sum(isinstance(c, Whole) for c in v.region.coords) == 1 for v in multiplied):
        return "its products are not of two regions, each with `:` for what is contracted"
    contracted = {typing.type_of(p.left).axes[-1] for p in dots}
    if len(contracted) > 1 or next(iter(contracted)).kind != "whole":
        return "its products do not contract one `:`"
    if len({typing.type_of(p).dtype for p in dots}) > 1:
        return "it has products of integers and of floating-point numbers"
    return None


def _leading(stage: Stage) -> tuple[Statement, ...]:
    """Return the statements up to the last one with a product, without those inside loops and conditions."""
    last = max((n for n, s in enumerate(stage.body) if products((s,))), default=-1)
    return stage.body[: last + 1]


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """A split: the last `tiles` of a stage become products over `inner` elements of K each.

    stored: number of these parts of a tile that are stored, from the first on: all, or all but the last one where the
    tile is summed by the program that computes it. rows: number of rows of a tile that one program sums.
    """

    tiles: int
    stored: int
    inner: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Running:
    """An index of a stage with its properties in the bound stage."""

    decl: IndexDecl
    tile: int
    extent: int
    order: Scalar


def _inner(most: int, steps: int, left: int, free: int, programs: int, *, roles: bool) -> int:
    """Return the number of steps of a part with which the `left` tiles take the least time.

    If splitting does not pay off, return `steps`, all steps of a tile. most: largest number of parts of a tile. free:
    number of programs with no other tile in the first wave. roles: True if warps have roles.
    """

    def waves(inner: int) -> int:
        return 1 + -(-max(0, left * -(-steps // inner) - free) // programs)

    def cost(inner: int) -> tuple[int, int]:
        summed = ROLES_SUM_STEPS * (-(-steps // inner) - 1) if roles else 0
        return waves(inner) * (inner + (ROLES_PART_STEPS if roles else PART_STEPS)) + summed, inner

    lengths = {-(-steps // parts) for parts in range(2, most + 1)} if left else set[int]()
    worth = [n for n in lengths if (waves(n) == 1 and not roles) or (waves(n) <= WAVES and cost(n)[0] < steps)]
    return min(worth, key=cost, default=steps)


class Split:
    """The rewrite of the last tiles of a stage into stages that compute parts of their products and sum them."""

    def __init__(self, bound: Bound, stage: BoundStage) -> None:
        self.bound, self.stage = bound, stage
        # As the schedule says, also where a processor has no roles: a program has the same parts on all of them.
        self.keeps = not _without_roles(bound.program, bound.schedule, stage.name)
        self.typing = bound.typing.stage(stage.name)
        self.leading = _leading(stage.stage)
        self.products = products(self.leading)
        self.rows, self.columns = (str(axis.index) for axis in self.typing.type_of(self.products[0]).axes)
        self.contracted = self.typing.type_of(self.products[0].left).axes[-1].dim or const(1)
        self.length = number_of(self.contracted, bound.numbers, bound.ranks)
        self.names = set[str]()
        self.within = {name: self._name(f"{name}_in") for name in (self.rows, self.columns)}
        self.tail, self.part, self.inner = (self._name(end) for end in ("tail", "part", "inner"))
        self.memory = self._name(f"{stage.name}_split")
        self.own = self._name(f"{stage.name}_own") if self.keeps else ""  # the sum of the only product with roles

    def _name(self, wanted: str) -> str:
        return new_name(self.bound, self.stage, wanted, self.names)

    def cut(self, kernel: Kernel, most: int) -> _Cut | str:
        """Return how the last wave is split, or why it is not."""
        if not all(map(self._ends_with_its_index, stage_regions(self.stage.stage))):
            return CUT_BY_INDEX
        total = self.stage.total
        busy = (kernel.loops[-1].first + total) % kernel.programs
        left = min(busy, total)
        steps = -(-self.length // self.stage.block)
        # programs that have a tile of another loop in the last wave execute that tile
        free = kernel.programs - (busy - left)
        inner = _inner(min(most, steps // MIN_STEPS), steps, left, free, kernel.programs, roles=self.keeps)
        if inner == steps:
            last = f"of {left} tiles of {steps} steps for {kernel.programs} programs" if left else "is full"
            return f"it saves no time: the last wave {last}"
        rows, pieces = self.stage.tiles[self.rows], 1
        while (
            not self.keeps and self._by_rows() and rows % 2 == 0 and rows >= 2 * MIN_ROWS and 2 * pieces * left <= free
        ):
            rows, pieces = rows // 2, 2 * pieces
        stored = -(-steps // inner) - self.keeps
        return _Cut(tiles=left, stored=stored, inner=inner * self.stage.block, rows=rows)

    def _ends_with_its_index(self, region: Region) -> bool:
        """True if the end of a tensor cuts the same tiles as the end of an index.

        Inside a tile the end of the index is unknown.
        """
        for coord, size in zip(region.coords, self.bound.tensors[region.tensor].shape, strict=True):
            tile = self._tile(coord)
            if tile is None or tile[1] not in self.within:
                continue
            extent = self.stage.extents[tile[1]]
            if extent % self.stage.tiles[tile[1]] and add(tile[0], const(extent)) != const(size):
                return False
        return True

    def _by_rows(self) -> bool:
        """True if the statements after the products can be executed for a few rows at a time, and once for each."""
        stage = self.stage.stage
        computed = [v for s in statements(stage.body) if (v := value_of(s)) is not None]
        if any(isinstance(node, Reduce | Scan | UserCall) for value in computed for node in values(value)):
            return False
        changed = [*stage_writes(stage), *(s.region for s in statements(stage.body) if isinstance(s, Notify))]
        tiles = ([self._tile(coord) for coord in region.coords] for region in changed)
        return all(self.rows in [tile[1] for tile in region_tiles if tile] for region_tiles in tiles)

    def _tile(self, coord: Scalar | Whole) -> tuple[Scalar, str] | None:
        """Return the offset and the index of a coordinate that is a tile, or None."""
        return tile_index(coord, self.stage.scalar_indices)

    def apply(self, kernel: Kernel, cut: _Cut) -> Bound:
        """Return the bound program with the tail's stages in the kernel.

        It has the memory and the counters that these stages share.
        """
        bound = self.bound
        head = replace(self.stage, tasks=self.stage.total - cut.tiles)
        parts, sums = self._parts(cut), self._sums(cut)
        whole = kernel.loops[-1]
        parts_loop = Loop(stages=(parts.name,), first=whole.first + head.total)
        sums_loop = Loop(stages=(sums.name,), first=parts_loop.first + parts.total)
        memory, grid = self._memory(cut), self._grid(cut)
        program = bound.program
        made = replace(
            bound,
            program=replace(
                program,
                tensors=(*program.tensors, memory.decl),
                stages=(*program.stages, parts.stage, sums.stage),
            ),
            tensors={**bound.tensors, self.memory: memory},
            stages={**bound.stages, head.name: head, parts.name: parts, sums.name: sums},
            kernels=tuple(
                replace(k, loops=(*k.loops, parts_loop, sums_loop)) if k.name == kernel.name else k
                for k in bound.kernels
            ),
        )
        return with_channels(made, {**bound.channels, (self.memory, "tile"): grid})

    def _memory(self, cut: _Cut) -> BoundTensor:
        """Return the tensor of partial results, f32 or i32: [tiles, parts, products of a tile, rows, columns]."""
        sizes = [self.stage.tiles[name] for name in (self.rows, self.columns)]
        shape = (cut.tiles, cut.stored, len(self.products), *sizes)
        location = self.stage.stage.location
        dtype = self.bound.typing.stage(self.stage.name).type_of(self.products[0]).dtype
        decl = Tensor(name=self.memory, space="local", shape=tuple(map(const, shape)), dtype=dtype, location=location)
        return BoundTensor(decl=decl, number=len(self.bound.tensors), shape=shape, dtype=dtype, buffers=1)

    def _grid(self, cut: _Cut) -> ChannelGrid:
        """Return the counters: one for all parts of a tile. The pad gives them their place."""
        sizes = (1, *self._memory(cut).shape[1:])
        counts = (cut.tiles, 1, 1, 1, 1)
        return ChannelGrid(tensor=self.memory, kind="tile", sizes=sizes, counts=counts, base=0)

    # Stages --------------------------------------------------------------------------------------------------

    def _parts(self, cut: _Cut) -> BoundStage:
        """Return the stage that executes the tile's waits, computes a part of each of its products, and notifies."""
        body = [self._placed(s) for s in self.leading if isinstance(s, Wait)]
        index = Index(name=self.part)
        for number, product in enumerate(self.products):
            region = self._region(index, const(number), product)
            body.append(Store(region=region, value=self._part_of(product), location=product.location))
        body.append(Notify(kind="tile", region=self._region(index, Whole()), location=self.stage.stage.location))
        tail, position = binary("%", TILE, const(cut.tiles)), binary("//", TILE, const(cut.tiles))
        numbered = IndexDecl(name=self.part, extent=const(cut.stored), number=True)
        running = [
            *self._running(cut.tiles, tail, piece=const(0), rows=self.stage.tiles[self.rows]),
            Running(decl=numbered, tile=1, extent=cut.stored, order=position),
            self._slice(cut, position),
        ]
        return self._stage("parts", body, running, cut.tiles * cut.stored)

    def _slice(self, cut: _Cut, number: Scalar) -> Running:
        """Return the index of the contracted elements of a part, by the number of the part."""
        decl = IndexDecl(name=self.inner, extent=self.contracted)
        return Running(decl=decl, tile=cut.inner, extent=self.length, order=number)

    def _sums(self, cut: _Cut) -> BoundStage:
        """Return the stage that waits for all parts of a tile and applies the tile's epilogue to their sums."""
        wait = Wait(kind="tile", region=self._region(Whole(), Whole()), location=self.stage.stage.location)
        tail, piece = binary("%", TILE, const(cut.tiles)), binary("//", TILE, const(cut.tiles))
        if self.keeps:
            (product,) = self.products
            own = Assign(name=self.own, value=self._part_of(product), location=product.location)
            waits = [s for s in self.leading if isinstance(s, Wait)]
            rest = [s for s in self.stage.stage.body if not any(s is one for one in waits)]
            kept = map_values(tuple(rest), lambda v: Local(name=self.own) if v is product else None)
            added = self._added(product, cut.stored)
            body = [*map(self._placed, (*waits, own)), wait, *added, *map(self._placed, kept)]
            running = self._running(cut.tiles, tail, const(0), cut.rows)
            return self._stage("sums", body, [*running, self._slice(cut, const(cut.stored))], cut.tiles, 1)
        rest = [s for s in self.stage.stage.body if not (isinstance(s, Wait) and self._ended(s))]
        body = [wait, *map(self._placed, map_values(tuple(rest), lambda v: self._sum_of(v, cut.stored)))]
        pieces = self.stage.tiles[self.rows] // cut.rows
        return self._stage("sums", body, self._running(cut.tiles, tail, piece, cut.rows), cut.tiles * pieces, 1)

    def _stage(
        self, ending: str, body: list[Statement], running: list[Running], tasks: int, before: int = 0
    ) -> BoundStage:
        """Return a stage of the last tiles. before: the number of stages that were added before it."""
        old = self.stage
        name = self._name(f"{old.name}_{ending}")
        indices = tuple(one.decl for one in running)
        numbers = {d.name for d in indices if d.number} | old.scalar_indices
        return replace(
            old,
            number=len(self.bound.stages) + before,
            stage=replace(old.stage, name=name, indices=indices, body=tuple(body)),
            scalar_indices=frozenset(numbers),
            tiles={**old.tiles, **{one.decl.name: one.tile for one in running}},
            extents={**old.extents, **{one.decl.name: one.extent for one in running}},
            order={one.decl.name: one.order for one in running},
            nest=None,
            flatten=False,
            ends_with_tensor=frozenset(
                inside for name, inside in self.within.items() if old.extents[name] % old.tiles[name]
            ),
            tasks=tasks,
        )

    def _running(self, tiles: int, tail: Scalar, piece: Scalar, rows: int) -> list[Running]:
        """Return the indices of a stage of the last tiles: which of these, its place in the domain, rows and columns.

        tiles: number of these tiles. tail: which of them, as an expression of the number of the tile.
        """
        old = self.stage
        numbered = IndexDecl(name=self.tail, extent=const(tiles), number=True)
        running = [Running(decl=numbered, tile=1, extent=tiles, order=tail)]
        shifted = {TILE.name: add(const(old.total - tiles), tail)}
        for decl in old.stage.indices:
            order = substitute(old.order[decl.name], shifted)
            if decl.name in self.within:
                count = old.count(decl.name)
                decl = replace(decl, extent=const(count), number=True)
                running.append(Running(decl=decl, tile=1, extent=count, order=order))
            else:  # scalar also if only the products, which not all of the stages contain, use it as a scalar
                name = decl.name
                decl = replace(decl, number=decl.number or name in old.scalar_indices)
                running.append(Running(decl=decl, tile=old.tiles[name], extent=old.extents[name], order=order))
        for name, tile, order in ((self.rows, rows, piece), (self.columns, old.tiles[self.columns], const(0))):
            size = old.tiles[name]
            decl = IndexDecl(name=self.within[name], extent=const(size))
            running.append(Running(decl=decl, tile=tile, extent=size, order=order))
        return running

    # Statements ----------------------------------------------------------------------------------------------

    def _region(self, part: Scalar | Whole, product: Scalar | Whole, origin: Value | None = None) -> Region:
        """Return the current rows and columns of partial results of a tile."""
        inside = (Index(name=self.within[name]) for name in (self.rows, self.columns))
        coords = (Index(name=self.tail), part, product, *inside)
        return Region(tensor=self.memory, coords=coords, location=origin.location if origin else None)

    def _part_of(self, product: Dot) -> Value:
        def cut(value: Value) -> Value | None:
            if not isinstance(value, Read):
                return None
            coords = (Index(name=self.inner) if isinstance(c, Whole) else c for c in value.region.coords)
            return replace(value, region=self._at(replace(value.region, coords=tuple(coords))))

        return map_value(product, cut)

    def _sum_of(self, value: Value, parts: int) -> Value | None:
        """Return the sum of the parts of a product, added from the first to the last."""
        number = next((n for n, product in enumerate(self.products) if product is value), None)
        if number is None:
            return None
        terms = [Read(region=self._region(const(part), const(number), value)) for part in range(parts)]
        total: Value = terms[0]
        for term in terms[1:]:
            total = Apply(op="add", args=(total, term), location=value.location)
        return total

    def _added(self, product: Dot, parts: int) -> Iterator[Statement]:
        """Yield the additions of the stored parts of the product to the kept one, from the first to the last.

        They are statements of their own: then one part at a time is in registers.
        """
        for part in range(parts):
            stored = Read(region=self._region(const(part), const(0), product))
            total = Apply(op="add", args=(Local(name=self.own), stored), location=product.location)
            yield Assign(name=self.own, value=total, location=product.location)

    def _ended(self, wait: Wait) -> bool:
        """True if a wait before the products guards no later statement."""
        others = [v for s in statements(self.stage.stage.body) if (v := value_of(s)) is not None]
        read = {r.tensor for v in others for r in reads(map_value(v, lambda p: self._sum_of(p, 1)))}
        return any(wait is s for s in self.leading) and wait.region.tensor not in read

    def _placed(self, statement: Statement) -> Statement:
        """Return the statement for the current rows and columns of the tile at a position in the domain."""
        (placed,) = map_values(map_regions((statement,), self._at), self._position)
        return placed

    def _at(self, region: Region) -> Region:
        return replace(region, coords=tuple(map(self._coordinate, region.coords)))

    def _coordinate(self, coord: Scalar | Whole) -> Scalar | Whole:
        tile = self._tile(coord)
        if isinstance(coord, Whole) or tile is None or tile[1] not in self.within:
            return coord
        offset, name = tile
        start = add(offset, mul(Index(name=name), const(self.stage.tiles[name])))
        return Binary(op="+", left=start, right=Index(name=self.within[name]), location=coord.location)

    def _position(self, value: Value) -> Value | None:
        if not isinstance(value, Positions) or value.index not in self.within:
            return None
        start = FromScalar(scalar=mul(Index(name=value.index), const(self.stage.tiles[value.index])))
        inside = replace(value, index=self.within[value.index])
        return Apply(op="add", args=(start, inside), location=value.location)


def _is_last(program: Program, schedule: Schedule, stage: str) -> bool:
    """True if no stage runs with or after the tiles of this one in its kernel."""
    resource = schedule.stage(stage)[RESOURCE]
    host = resource.stage if isinstance(resource, Fused) else stage
    last = Fused(stage=host, place="epilogue")
    after = [s.name for s in program.stages if schedule.stage(s.name)[RESOURCE] == last]
    return [host, *after][-1] == stage


def _fits(program: Program, schedule: Schedule, stage: str) -> bool:
    """True if the last tiles of a kernel are those of a stage, and its warps can store parts of them.

    Warps with roles store parts of one product.
    """
    one = _multiplies_once(next(s for s in program.stages if s.name == stage))
    return _is_last(program, schedule, stage) and (one or _without_roles(program, schedule, stage))


def _most_parts(parts: int | None) -> int:
    return parts or 1


SPLIT_K_TAIL: Clause[int | None] = count(
    "split_k_tail",
    "a tile has at least one part",
    formerly="split_tail",
    apply=_apply,
    phase=Phase.TILES,  # before backfill: it changes how many tiles the last wave has
    needs=Known(
        why="only a launch knows which tiles its last wave has, and parts name whole tiles of operands",
        instead="take split_k_tail away: smaller tiles leave less of the last wave idle",
    ),
    ties=Ties.SHOWN,
    parts=_most_parts,
    choices=Choices(
        name="tail",
        labels={"of whole tiles": None, "of parts": SEARCHED_PARTS},
        reason=split_reason,
        together=True,
        fits=_fits,
        instead_of=("halve_tail",),
    ),
    manual=(
        "tiles of the last, partial wave of the kernel are computed by split-K, in up to n parts, by CTAs that would "
        "have no tile, and summed in a fixed order. The parts take one wave, or two that together are shorter than "
        "it. For the stage whose tiles come last in a kernel; no effect if nothing is left over, or too much, or if "
        "the end of an index and not that of the tensor cuts the tiles. With `roles` the stage multiplies once, parts "
        "are f32 in memory, and the last part of a tile stays in registers, where the others are added: a part takes "
        "16 steps of its loop more and each stored one 4, so tiles have at least 38 steps. There are as many parts as "
        "take the least time"
    ),
)
