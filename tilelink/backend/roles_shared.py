"""Numbers, descriptors and functions that the roles of a kernel share, by their names in the source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tilelink import artifact
from tilelink.backend.addresses import Addresses
from tilelink.backend.constants import BLOCKS, scaled, times, total
from tilelink.backend.context import FarContext, LoopContext, RingContext, RolesContext
from tilelink.ir.products import operand_region
from tilelink.ir.program import (
    ITEM_BYTES,
    Dot,
    Region,
)
from tilelink.ir.typing import Axis
from tilelink.lowering.bound import BoundStage
from tilelink.lowering.carried import Carried
from tilelink.lowering.iterations import Range, loop_of, range_of
from tilelink.lowering.rings import (
    ADDEND,
    KEPT,
    LEADING,
    LEFT,
    NUMBERS,
    OPERANDS,
    RESULTS,
    Ring,
    Roles,
    numbered,
    right_operand,
)
from tilelink.lowering.role_statements import entries_of, product_of, products_of_tile, results_of
from tilelink.lowering.summed import SummedProduct, summed_of

Size = TypeVar("Size", int, str)
MAX_SWIZZLE = 128
"""Most bytes of a row within which TMA permutes 16-byte pieces (CUDA driver API, CUtensorMapSwizzle)."""


def part_of(ring: str, buffer: str, narrow: tuple[str, str] | None) -> str:
    """Return a buffer of a ring, or the part of it that narrow tiles take: its first row and its rows."""
    return f"{ring}.index({buffer})" + (f".slice({', '.join(narrow)})" if narrow else "")


@dataclass(kw_only=True)
class Shared:
    """Numbers and descriptors that the roles of a kernel share, by their names in the source."""

    addresses: Addresses
    roles: Roles
    widest: Roles
    """Those of the stage of the kernel whose tiles have the most columns: its rings have their sizes."""
    boxes: dict[str, artifact.Boxes] = field(default_factory=dict[str, artifact.Boxes])
    """Descriptors that the kernel takes, by parameter."""
    far: dict[str, FarContext] = field(default_factory=dict[str, FarContext])
    """Functions that store in a peer's memory, by name."""

    @property
    def rings(self) -> Mapping[str, Ring]:
        return self.addresses.stage.rings

    @property
    def cut(self) -> bool:
        return self.roles.cut

    @property
    def reads_early(self) -> bool:
        return self.roles.reads_early

    @property
    def n_major(self) -> bool:
        return self.roles.n_major

    @property
    def dot(self) -> Dot:
        return product_of(self.addresses.stage)

    @property
    def dots(self) -> list[Dot]:
        return products_of_tile(self.addresses.stage)

    def boxes_of(self, what: str) -> str:
        """Return the descriptor of an operand."""
        if what == LEFT:
            return self._descriptor(operand_region(self.dot.left), self.roles.rows, self.roles.block)
        right = operand_region(self.dots[self._number_of(what)].right)
        return self._descriptor(right, *self.right_shape(self.roles.columns, self.roles.block))

    def right_shape(self, columns: Size, block: Size) -> tuple[Size, Size]:
        """Return the shape of a buffer of the right operand. block: the elements of it that are contracted."""
        return (block, columns) if self.n_major else (columns, block)

    def memory_of(self, what: str, buffer: str) -> tuple[str, dict[str, str]]:
        """Return where an operand is loaded: a ring, and how consumers divide it, or a part of a buffer and {}."""
        if what in (LEFT, ADDEND):
            return "left_ring", self.parts
        return part_of("right_ring", buffer, self.columns_of(self._number_of(what))), {}

    @property
    def parts(self) -> dict[str, str]:
        """Return how consumers divide an operand: each has a box."""
        return {"PARTS": self.consumers, "ROWS": self.rows}

    def _number_of(self, what: str) -> int:
        """Return the number of the product of a right operand."""
        return next(number for number in range(len(self.dots)) if right_operand(number) == what)

    def result(self, region: Region, owner: int | None = None) -> str:
        """Return the descriptor of pieces of results in the copy of a rank, None for the own one."""
        return self._descriptor(region, self.roles.rows, self.roles.columns // self.roles.pieces, owner)

    def addend(self, region: Region) -> str:
        """Return the descriptor of pieces of a tile that is computed with next to the product."""
        return self._descriptor(region, self.roles.rows, self.roles.columns // self.roles.pieces)

    def results_at(self, kernel: str, region: Region) -> FarContext:
        """Return the function of a kernel that stores pieces of results in the copy of any rank."""
        copies = tuple(self.result(region, rank) for rank in range(self.addresses.bound.ranks))
        name = f"_{kernel}_store_{region.tensor}"
        return self.far.setdefault(name, FarContext(name=name, what="store", copies=copies))

    @property
    def pieces(self) -> str:
        return self.number(self.piece_count, "PIECES")

    @property
    def piece_count(self) -> int:
        return self.roles.pieces

    @property
    def piece(self) -> str:
        """Return the columns of a piece."""
        return self.number(self.roles.columns // self.roles.pieces, "PIECE_COLUMNS")

    @property
    def results(self) -> str:
        return self.number(self.rings[RESULTS].buffers, "RESULTS")

    def _descriptor(self, region: Region, rows: int, columns: int, owner: int | None = None) -> str:
        item, box = ITEM_BYTES[self.addresses.bound.tensors[region.tensor].dtype], (rows, columns)
        swizzle = min(MAX_SWIZZLE, columns * item)
        one = artifact.Boxes(tensor=region.tensor, box=box, swizzle=swizzle, owner=owner)
        return self.boxes.setdefault(one.name, one).name

    def number(self, value: int, *names: str) -> str:
        return self.addresses.constants.number(BLOCKS, value, *names)

    @property
    def consumers(self) -> str:
        return self.number(self.roles.consumers, "CONSUMERS")

    @property
    def rows(self) -> str:
        return self.number(self.roles.rows, "CONSUMER_ROWS")

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Return the axes of a result: its rows and its columns."""
        return self.addresses.typing.region_type(results_of(self.addresses.stage)[0]).axes

    @property
    def column_index(self) -> str | None:
        """Return the index of the columns that are computed with."""
        return self.axes[-1].index

    @property
    def columns(self) -> str:
        axis = self.addresses.typing.type_of(self.dot).axes[-1]
        return self.addresses.constants.block(self.addresses.stage, axis, self.roles.columns)

    @property
    def all_columns(self) -> str:
        """Return the columns of all products side by side."""
        return self.columns if self.roles.products == 1 else f"{self.roles.products} * {self.columns}"

    @property
    def narrow(self) -> tuple[str, str] | None:
        """Return the first row and the rows of the part of a buffer that products multiply, or None for all of it."""
        return ("0", self.all_columns) if self.roles.columns < self.widest.columns else None

    def columns_of(self, number: int) -> tuple[str, str] | None:
        """Return the first row and the rows of the part of a buffer that a right operand takes, or None for all."""
        if self.roles.products == 1:
            return self.narrow
        return (f"{number} * {self.columns}" if number > 1 else self.columns if number else "0"), self.columns

    @property
    def block(self) -> str:
        return self.addresses.constants.step(self.addresses.stage, self.roles.block)

    @property
    def inner(self) -> str:
        """Return the contracted elements."""
        axis = self.addresses.typing.type_of(self.dot.left).axes[-1]
        return self.addresses.constants.elements_of(self.addresses.stage, axis)

    @property
    def steps(self) -> int:
        """Return the number of buffers that a tile's product takes."""
        axis = self.addresses.typing.type_of(self.dot.left).axes[-1]
        times = self.summed.count(self.addresses.stage) if self.summed is not None else 1
        return -(-self.addresses.extent(axis) // self.roles.block) * times

    @property
    def summed(self) -> SummedProduct | None:
        """Return the product that a tile adds up in a loop, if it does."""
        return summed_of(self.addresses.stage)

    @property
    def buffers(self) -> str:
        return self.number(self.rings[OPERANDS].buffers, "BUFFERS")

    def context(self, stored: Region, loops: Mapping[str, tuple[LoopContext, ...]]) -> RolesContext:
        """Return what a kernel's template reads. stored: the region of the results. loops: by the name of the role."""
        count = f"{self.consumers} * {self.results}"
        like = self.result(stored, None if stored.rank is None else 0)
        results = ring_context(self.rings[RESULTS], count, ("result_ring", like, f"{count}, {self.rows}, {self.piece}"))
        numbers = self._numbers
        every = (self.operands, results)
        if numbers is not None:
            known = ("number_ring", "", times((self.buffers, self.number_count)))
            every = (ring_context(numbers, self.buffers, known), *every)
        return RolesContext(
            loops=loops,
            count=self.roles.consumers,
            rings=every,
            registers=self.roles.registers,
            far=tuple(self.far.values()),
        )

    @property
    def _numbers(self) -> Ring | None:
        """Return the ring in which loaders of the kernel hand on integers, if there is one: all of them are alike."""
        return next((one.rings[NUMBERS] for one in self._stages if NUMBERS in one.rings), None)

    @property
    def _stages(self) -> list[BoundStage]:
        """Return the stages of the kernel."""
        bound = self.addresses.bound
        return [bound.stages[name] for name in bound.kernel_of[self.addresses.stage.name].stage_names]

    @property
    def number_count(self) -> str:
        """Return how many integers a position of that ring has."""
        most = max(len(entries_of(one)) for one in self._stages if NUMBERS in one.rings)
        return self.number(most, "NUMBERS") if most > 1 else "1"

    def number_place(self, buffer: str, number: int) -> str:
        """Return the place of one of the integers of a position."""
        return total([scaled(buffer, self.number_count), *([str(number)] if number else [])])

    @property
    def operands(self) -> RingContext:
        """Return the ring of operands."""
        left = f"{self.buffers} * {self.consumers}, {self.rows}, {self.block}"
        right = ", ".join((self.buffers, *self.right_shape(self.all_columns, self.block)))
        memory = ("left_ring", self.boxes_of(LEFT), left), ("right_ring", self.boxes_of(right_operand(0)), right)
        return ring_context(self.rings[OPERANDS], self.buffers, *memory)


@dataclass(kw_only=True)
class LoopShared(Shared):
    """Numbers and descriptors of roles in a loop that carries a state."""

    @property
    def tile(self) -> Carried:
        return loop_of(self.addresses.stage)

    def boxes_of(self, what: str) -> str:
        if (region := self.kept_operands.get(what)) is not None:
            return self._descriptor(region, self.roles.rows, self.roles.columns)
        region = self.tile.streamed[self.tile.order.operands.index(what)]
        return self._descriptor(region, self.roles.block, self.roles.columns)

    def memory_of(self, what: str, buffer: str) -> tuple[str, dict[str, str]]:
        if what not in self.kept_operands:
            return f"streamed_ring.index({buffer})", {}
        first = self.kept_before(self.kept_operands[what])
        return "kept_ring", self.parts | ({"FIRST": first} if first else {})

    def kept_before(self, region: Region) -> str:
        """Return how many parts of kept operands are before those of one, "" for none."""
        number = self.tile.kept.index(region)
        return times((*([str(number)] if number > 1 else []), self.consumers)) if number else ""

    @property
    def kept_operands(self) -> dict[str, Region]:
        """Return the operands that all iterations have in common, by their names."""
        return {numbered(KEPT, number): region for number, region in enumerate(self.tile.kept)}

    @property
    def columns(self) -> str:
        return self.number(self.roles.columns, "COLUMNS")

    @property
    def block(self) -> str:
        return self.number(self.roles.block, "ITERATION_ROWS")

    @property
    def operands(self) -> RingContext:
        several = len(self.tile.kept)
        count = self.consumers if several == 1 else times((str(several), self.consumers))
        kept = ("kept_ring", self.boxes_of(KEPT), f"{count}, {self.rows}, {self.columns}")
        streamed = ("streamed_ring", self.boxes_of(LEADING), f"{self.buffers}, {self.block}, {self.columns}")
        both = ring_context(self.rings[OPERANDS], self.buffers, kept, streamed), ring_context(self.rings[KEPT], "1")
        return RingContext(memory=both[0].memory, barriers=tuple(one for ring in both for one in ring.barriers))

    @property
    def column_index(self) -> str | None:
        return self.addresses.typing.region_type(self.tile.streamed[0]).axes[0].index

    @property
    def range(self) -> Range | None:
        """Return the iterations of a tile, None if it has all of them."""
        stage = self.addresses.stage
        found = range_of(stage, self.addresses.bound.bounds(stage.name))
        assert not isinstance(found, str)
        return found

    @property
    def iterations(self) -> int:
        stage = self.addresses.stage
        return math.prod(stage.count(decl.name) for decl in self.tile.loop.indices)


def ring_context(ring: Ring, buffers: str, *memory: tuple[str, str, str]) -> RingContext:
    """Return what a template reads of a ring. buffers: their number in source. memory: as of RingContext."""
    return RingContext(memory=memory, barriers=tuple((name, buffers, arrivals) for name, arrivals in ring.barriers))


def shared_of(
    addresses: Addresses, roles: Roles, widest: Roles, boxes: dict[str, artifact.Boxes], far: dict[str, FarContext]
) -> Shared:
    """Return the numbers of roles, of a loop that carries a state or of a product."""
    kind = LoopShared if roles.kept else Shared
    return kind(addresses=addresses, roles=roles, widest=widest, boxes=boxes, far=far)
