"""`stream_k`: the steps of the products of the last tiles are divided evenly among all CTAs.

P CTAs execute T tiles in ceil(T / P) waves, and in the last wave only R = T % P of them have a tile. With `stream_k`
the last R + P tiles (or all, if there are fewer than P) are one line of steps of the contracted dimension, tile after
tile. CTA p executes the steps from p * I // P to (p + 1) * I // P of all I, wherever tiles begin and end in it. All
tiles before are whole ones, in full waves. It is the hybrid of two tiles in Osama et al., "Stream-K" (PPoPP 2023).

before: gemm(i: M, j: N):              y[i, j] = f(dot(a[i, :], b[j, :].T))
after:  gemm, its first T - R - P tiles; and then, in the same kernel, for each CTA and each tile of which it has steps
        gemm_streamed(share: P, wave: X):
            part = zeros(f32)
            for (k: the steps of the tile that the CTA has):
                part = part + dot(a[i, k], b[j, k].T)
            if the steps do not begin with the tile:     # always the first tile of a CTA
                split[share] = part; notify(split[share])
            else:
                for (next: the CTAs that have the rest of the tile):
                    wait(split[share + next]); part = part + split[share + next]
                y[i, j] = f(part)

`split_k_tail` divides each of the last R tiles into equally many parts. Here CTAs have the same number of steps, but
for one, whatever R is, and the CTA that begins a tile keeps its part in registers. The sums have one order, that of the
CTAs, so results are the same in every launch: nothing is added in memory.

The result is an ordinary stage with waits and notifies. Loops over some of the tiles of a dimension, `tiles(K, begin,
end)`, are words of lowered programs. That all steps of a tile come together exactly once is proved of the lowered
program (verifier/iterations.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.errors import ScheduleError
from tilelink.ir.mapping import ChannelGrid
from tilelink.ir.program import (
    Apply,
    Assign,
    Dot,
    For,
    Full,
    If,
    IndexDecl,
    Local,
    Notify,
    Read,
    Region,
    Statement,
    Store,
    Tensor,
    Value,
    Wait,
)
from tilelink.ir.scalar import Compare, Index, Logic, Scalar, Whole, add, binary, const, mul
from tilelink.ir.visitor import map_values, stage_regions
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor, Kernel, Loop, with_channels
from tilelink.lowering.clauses.backfill import BACKFILL
from tilelink.lowering.clauses.clause import Choices, Clause, Known, Phase, Ties, switch
from tilelink.lowering.clauses.halve_tail import HALVE_TAIL
from tilelink.lowering.clauses.split_k_tail import (
    CUT_BY_INDEX,
    MIN_STEPS,
    PART_STEPS,
    SEARCHED_PARTS,
    SPLIT_K_TAIL,
    Running,
    Split,
    ends_kernel,
    split_reason,
    tail_reason,
)
from tilelink.lowering.orders import TILE

_OTHERS = (SPLIT_K_TAIL.name, HALVE_TAIL.name, BACKFILL.name)
"""Clauses that change the last wave too."""


def _apply(bound: Bound) -> Bound:
    """Return the bound program with the steps of the last tiles divided where the schedule says so.

    Raises ScheduleError if they cannot be.
    """
    for part in bound.schedule.stages:
        if not part[STREAM_K]:
            continue
        stage, kernel = bound.stages[part.name], bound.kernel_of[part.name]
        reason = tail_reason(bound, kernel, stage)
        if others := [one.name for one in part.said if one.name in _OTHERS]:
            reason = f"it has `{others[0]}`"
        if reason is not None:
            message = f"the steps of {part.name} cannot be divided evenly: {reason}"
            raise ScheduleError(message, location=part.at("stream_k"), hint="take `stream_k` away")
        streamed = _Stream(bound, stage)
        share = streamed.share(kernel)
        if isinstance(share, str):
            bound = bound.leaving_out(STREAM_K.name, part.name, share)
        else:
            bound = streamed.applied(kernel, share)
    return bound


@dataclass(frozen=True, kw_only=True)
class _Share:
    """A division: of the `steps` of each of the last `tiles` of a stage, among `programs` of a kernel's.

    waves: largest number of tiles of which a program has steps. helpers: largest number of programs that have steps of
    a tile which they do not begin.
    """

    tiles: int
    steps: int
    programs: int
    waves: int
    helpers: int


def _shared(tiles: int, steps: int, programs: int) -> _Share:
    """Return the division of the steps of tiles among programs."""
    begin = [number * tiles * steps // programs for number in range(programs + 1)]
    waves = max(-(-begin[n + 1] // steps) - begin[n] // steps for n in range(programs))
    helpers = [0] * tiles
    for start in begin[1:-1]:
        if start % steps:
            helpers[start // steps] += 1
    return _Share(tiles=tiles, steps=steps, programs=programs, waves=waves, helpers=max(helpers))


class _Stream(Split):
    """The rewrite of the last tiles of a stage into one that divides their steps evenly."""

    def __init__(self, bound: Bound, stage: BoundStage) -> None:
        super().__init__(bound, stage)
        self.number, self.wave, self.helper = (self._name(name) for name in ("share", "wave", "helper"))
        self.sums = [self._name("acc") for _ in self.products]
        self.block = bound.contraction_block(stage.name)

    def share(self, kernel: Kernel) -> _Share | str:
        """Return how the steps are divided, or why they are not."""
        if not all(map(self._ends_with_its_index, stage_regions(self.stage.stage))):
            return CUT_BY_INDEX
        steps, total, programs = -(-self.length // self.block), self.stage.total, kernel.programs
        left = (kernel.loops[-1].first + total) % programs
        tiles = min(left + programs, total) if left else 0
        # Programs that have a tile of another loop in the wave in which these begin execute that tile.
        free = programs - (kernel.loops[-1].first + total - tiles) % programs
        sharing = min(free, tiles * steps // MIN_STEPS)
        if not sharing or steps < 2:
            return "it saves no time: " + ("the last wave is full" if not tiles else "its tiles have too few steps")
        waves = -(-(programs - free + tiles) // programs)
        divided = -(-tiles * steps // sharing) + PART_STEPS
        full = "it saves no time: the last wave is nearly full"
        return _shared(tiles, steps, sharing) if divided < waves * steps else full

    def applied(self, kernel: Kernel, share: _Share) -> Bound:
        """Return the bound program with the stage that divides the steps in the kernel, its memory and its counters."""
        bound = self.bound
        head = replace(self.stage, tasks=self.stage.total - share.tiles)
        memory, streamed = self._sums_memory(share), self._streamed(kernel, share)
        counts = (share.programs, *(1 for _ in memory.shape[1:]))
        grid = ChannelGrid(tensor=self.memory, kind="tile", sizes=(1, *memory.shape[1:]), counts=counts, base=0)
        loop = Loop(stages=(streamed.name,), first=kernel.loops[-1].first + head.total)
        program = bound.program
        made = replace(
            bound,
            program=replace(
                program, tensors=(*program.tensors, memory.decl), stages=(*program.stages, streamed.stage)
            ),
            tensors={**bound.tensors, self.memory: memory},
            stages={**bound.stages, head.name: head, streamed.name: streamed},
            kernels=tuple(
                replace(k, loops=(*k.loops, loop)) if k.name == kernel.name else k for k in bound.kernels
            ),
        )  # fmt: skip
        return with_channels(made, {**bound.channels, (self.memory, "tile"): grid})

    def _sums_memory(self, share: _Share) -> BoundTensor:
        """Return the tensor of the sums that programs hand on, f32 or i32: [programs, products, rows, columns]."""
        sizes = [self.stage.tiles[name] for name in (self.rows, self.columns)]
        shape = (share.programs, len(self.products), *sizes)
        dtype = self.typing.type_of(self.products[0]).dtype
        location = self.stage.stage.location
        decl = Tensor(name=self.memory, space="local", shape=tuple(map(const, shape)), dtype=dtype, location=location)
        return BoundTensor(decl=decl, number=len(self.bound.tensors), shape=shape, dtype=dtype, buffers=1)

    def _streamed(self, kernel: Kernel, share: _Share) -> BoundStage:
        """Return the stage of a kernel whose tiles are the steps that a program has of a tile."""
        number = binary("%", TILE, const(kernel.programs))
        wave = binary("//", TILE, const(kernel.programs))
        place = add(self._first_tile(share, number), wave)
        tail = binary("min", place, const(share.tiles - 1))
        names = ((self.number, kernel.programs, number), (self.wave, share.waves, wave))
        running = [
            Running(decl=IndexDecl(name=name, extent=const(size), number=True), tile=1, extent=size, order=order)
            for name, size, order in names
        ]
        running += self._running(share.tiles, tail, piece=const(0), rows=self.stage.tiles[self.rows])
        made = self._stage("streamed", self._body(kernel, share), running, kernel.programs * share.waves)
        return replace(
            made,
            tiles={**made.tiles, self.inner: self.block, self.helper: 1},
            extents={**made.extents, self.inner: self.length, self.helper: max(1, share.helpers)},
            scalar_indices=made.scalar_indices | {self.helper},
            slices=frozenset({self.inner}),
        )

    # Which steps --------------------------------------------------------------------------------------------

    def _begin(self, share: _Share, program: Scalar) -> Scalar:
        """Return the number of the first step that a program has."""
        return binary("//", mul(program, const(share.tiles * share.steps)), const(share.programs))

    def _first_tile(self, share: _Share, program: Scalar) -> Scalar:
        return binary("//", self._begin(share, program), const(share.steps))

    def _body(self, kernel: Kernel, share: _Share) -> list[Statement]:
        """Return the statements of the steps that a program has of a tile, if it has any."""
        location = self.stage.stage.location
        program, tail = Index(name=self.number), Index(name=self.tail)
        before = mul(tail, const(share.steps))  # the steps of the tiles before this one
        after = add(program, const(1))
        begin = binary("max", binary("-", self._begin(share, program), before), const(0))
        end = binary("min", binary("-", self._begin(share, after), before), const(share.steps))
        body = [self._placed(s) for s in self.leading if isinstance(s, Wait)]
        for name, product in zip(self.sums, self.products, strict=True):
            body += self._partial(name, product, begin, end)
        mine = Compare(op="<=", left=self._begin(share, program), right=before)
        handed = [self._handed(program, number) for number in range(len(self.sums))]
        given = [Store(region=region, value=Local(name=name)) for name, region in zip(self.sums, handed, strict=True)]
        told = Notify(kind="tile", region=self._all_of(program), location=location)
        rest = [s for s in self.stage.stage.body if not (isinstance(s, Wait) and any(s is one for one in self.leading))]
        finished = [self._placed(s) for s in map_values(tuple(rest), self._summed)]
        helped = self._helped(share, program, before) if share.helpers else []
        body.append(If(condition=mine, then=(*helped, *finished), orelse=(*given, told), location=location))
        place = mul(add(self._first_tile(share, program), Index(name=self.wave)), const(share.steps))
        has: Scalar = Compare(op="<", left=place, right=self._begin(share, after))
        if share.programs < kernel.programs:
            has = Logic(op="and", args=(Compare(op="<", left=program, right=const(share.programs)), has))
        return [If(condition=has, then=tuple(body), location=location)]

    def _partial(self, name: str, product: Dot, begin: Scalar, end: Scalar) -> list[Statement]:
        """Return the statements that multiply the steps of a tile from `begin` to `end`."""
        location, sliced = product.location, self._part_of(product)
        dtype = self.typing.type_of(product).dtype
        added = Apply(op="add", args=(Local(name=name, location=location), sliced), location=location)
        decl = IndexDecl(name=self.inner, extent=self.contracted, begin=begin, end=end, location=location)
        more = Assign(name=name, value=added, location=location)
        zeros = Assign(name=name, value=Full(value=0.0, dtype=dtype, location=location), location=location)
        return [zeros, For(indices=(decl,), body=(more,), location=location)]

    def _helped(self, share: _Share, program: Scalar, before: Scalar) -> list[Statement]:
        """Return the statements that wait for the rest of a tile and add it, program after program."""
        location = self.stage.stage.location
        other = add(add(program, Index(name=self.helper)), const(1))
        stop = add(before, const(share.steps))
        body: list[Statement] = [Wait(kind="tile", region=self._all_of(other), location=location)]
        for number, name in enumerate(self.sums):
            read = Read(region=self._handed(other, number))
            value = Apply(op="add", args=(Local(name=name), read), location=location)
            body.append(Assign(name=name, value=value, location=location))
        condition = Compare(op="<", left=self._begin(share, other), right=stop)
        decl = IndexDecl(name=self.helper, extent=const(share.helpers), number=True)
        return [For(indices=(decl,), body=(If(condition=condition, then=tuple(body), location=location),))]

    # Statements ---------------------------------------------------------------------------------------------

    def _handed(self, program: Scalar, number: int) -> Region:
        """Return the place of the part that a program hands on, of one of the products."""
        inside = (Index(name=self.within[name]) for name in (self.rows, self.columns))
        return Region(tensor=self.memory, coords=(program, const(number), *inside), location=self.stage.stage.location)

    def _all_of(self, program: Scalar) -> Region:
        """Return the place of all that a program hands on."""
        return replace(self._handed(program, 0), coords=(program, Whole(), Whole(), Whole()))

    def _summed(self, value: Value) -> Value | None:
        """Return the name of the sum of a product."""
        number = next((n for n, product in enumerate(self.products) if product is value), None)
        return None if number is None else Local(name=self.sums[number], location=value.location)


def _most_parts(_: bool) -> int:
    """Return a number of CTAs that may have steps of one tile: as many as a search tries for `split_k_tail`."""
    return SEARCHED_PARTS


STREAM_K: Clause[bool] = switch(
    "stream_k",
    apply=_apply,
    phase=Phase.TILES,  # before backfill, as it changes the last wave, too
    needs=Known(
        why="only a launch knows how many tiles there are, and their steps are divided when a kernel is compiled",
        instead="take stream_k away: with dynamic, programs take tiles by a counter",
    ),
    ties=Ties.SHOWN,
    without_roles=True,
    parts=_most_parts,
    choices=Choices(
        name="tail",
        labels={"of even shares": True},
        reason=split_reason,
        together=True,
        fits=ends_kernel,
        joins="split_k_tail",
    ),
    manual=(
        "the steps of the contracted dimension of the last tiles, of which a CTA has one or two, are divided evenly "
        "among all CTAs, wherever tiles begin and end (stream-K); all tiles before are in full waves. The CTA that "
        "begins a tile adds up the parts of those that have the rest, in their order, so that results are the same in "
        "every launch. For the stage whose tiles come last in a kernel; not with `split_k_tail`, `halve_tail` and "
        "`backfill`; no effect if the last wave is full or nearly, or if the end of an index and not that of the "
        "tensor cuts the tiles"
    ),
)
