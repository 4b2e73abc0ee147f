"""Registers of a kernel's matrix products: an estimate of the sums that a thread holds at the same time.

A product adds up in registers. All products of a statement are computed before what is computed with them, and a name
that has the result of one is in registers until it was read for the last time. So a tile whose statement multiplies by
two weights holds two sums of its size. What does not fit is spilled to memory, and the tile runs at a fraction of its
speed.

The estimate counts nothing but sums, and one that is added to a name as part of that name. Roles count their own sums
(lowering/role_sizes.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilelink.errors import Location, TileSizeError
from tilelink.ir.depth import deep
from tilelink.ir.program import ITEM_BYTES, Apply, Assign, Attend, Dot, For, If, Local, Reduce, Statement, Value
from tilelink.ir.sizes import power_of_two
from tilelink.ir.typing import ELEMENT, Axis, StageTyping, Type
from tilelink.ir.visitor import local_names, operands, statements, value_of, values
from tilelink.lowering.bound import Bound, BoundStage, KernelKind
from tilelink.lowering.limits import length

OF_THREAD, OF_PROCESSOR = 255, 65536
"""Registers that a thread has at most, and that the threads of an SM have together (CUDA, compute capabilities)."""
FASTEST = 8
"""Warps with which each thread has the most registers and a program the most."""
SPARE = 31
"""Registers for addresses and operands. With ptxas 12.8, products with 192 sums a thread spill nothing or 8 bytes,
those with 224 spill 80 bytes, and those with 256 spill 288 to 1064."""


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The most sums, in registers of a thread, that a stage holds together, and where: at a statement."""

    stage: BoundStage
    warps: int
    registers: int
    location: Location | None = None


def spills(bound: Bound) -> TileSizeError | None:
    """Return the error of a stage whose sums exceed the registers of its threads, or None.

    Such a schedule is right, and slow: a search refuses it. Known of processors of NVIDIA.
    """
    if bound.target.kind != "cuda":
        return None
    for sums in most_sums(bound):
        room = registers_of(bound, sums.warps) - SPARE
        if sums.registers <= room:
            continue
        stage = sums.stage
        tiles = ", ".join(f"{name}={size}" for name, size in stage.tiles.items() if name not in stage.scalar_indices)
        message = f"the sums of products that a tile of stage {stage.name} holds together take {sums.registers:,} "
        message += f"registers of a thread with num_warps {sums.warps}, and {room} fit besides addresses"
        warps = f", num_warps {FASTEST}" if sums.warps < FASTEST else ""
        hint = f"smaller tiles than {tiles}{warps}, or warps with roles where a stage can have them"
        where = bound.schedule.stage(stage.name).at("tile") or sums.location or stage.stage.location
        return TileSizeError(message, location=where, hint=hint)
    return None


def registers_of(bound: Bound, warps: int) -> int:
    """Return the registers of a thread of a program with so many warps."""
    return min(OF_THREAD, OF_PROCESSOR // (warps * bound.target.warp_size))


@deep()
def most_sums(bound: Bound) -> list[Sums]:
    """Return the most sums of each stage that multiplies, without those whose warps have roles."""
    found: list[Sums] = []
    for kernel in bound.on_sms:
        for stage in (bound.stages[name] for name in kernel.stage_names):
            computed = (value for s in statements(stage.stage.body) if (value := value_of(s)) is not None)
            if stage.kind is KernelKind.ROLES or not any(map(_multiplies, computed)):
                continue
            walk = _Walk(bound, stage, kernel.num_warps)
            walk.body(stage.stage.body, frozenset())
            found.append(Sums(stage=stage, warps=kernel.num_warps, registers=walk.most, location=walk.location))
    return found


def _multiplies(value: Value) -> bool:
    return any(isinstance(part, Dot | Attend) for part in values(value))


class _Walk:
    """Passes over the statements of a stage from the last to the first, with the names that are read later.

    most: the most registers of a thread for sums so far. location: of the statement that needs them.
    """

    def __init__(self, bound: Bound, stage: BoundStage, warps: int) -> None:
        self.most, self.location = 0, None
        self._bound, self._stage = bound, stage
        self._typing: StageTyping = bound.typing.stage(stage.name)
        self._threads = warps * bound.target.warp_size
        self._of_products = _of_products(stage.stage.body)

    def body(self, body: tuple[Statement, ...], later: frozenset[str]) -> frozenset[str]:
        """Return the names that are read in a body or later, before they are assigned. later: those read after it."""
        for statement in reversed(body):
            match statement:
                case If(then=then, orelse=orelse):
                    later = self.body(then, later) | self.body(orelse, later)
                case For(body=inner):  # what an iteration reads first, the iteration before has to keep
                    later |= self.body(inner, later)
                    later |= self.body(inner, later)
                case _:
                    later = self._statement(statement, later)
        return later

    def _statement(self, statement: Statement, later: frozenset[str]) -> frozenset[str]:
        value = value_of(statement)
        if value is None:
            return later
        kept = (later - {statement.name} if isinstance(statement, Assign) else later) | local_names(value)
        if _multiplies(value):
            names = sum(self._registers(self._typing.locals[name]) for name in kept & self._of_products)
            if names + (own := self._needed(value)[0]) > self.most:
                self.most, self.location = names + own, statement.location
        return kept

    def _needed(self, value: Value) -> tuple[int, int]:
        """Return the registers for the sums of a value: while it is computed, and until it is used."""
        match value:
            case Dot(left=left, right=right):
                own = self._registers(self._typing.type_of(value))
                return max(own, self._one_by_one(left, right)[0]), own
            case Attend(state=state, q=q, k=k):
                rows, columns = self._typing.axes_of(q), self._typing.axes_of(k)
                scores = self._registers(Type(dtype="f32", axes=(*rows[:-1], columns[-2])))
                held = 0 if isinstance(state, Local) else self._registers(self._typing.type_of(value))
                return scores + held, held
            case (
                Apply(op="add", args=(Local() as name, Dot(left=left, right=right) as dot))
                | Apply(op="add", args=(Dot(left=left, right=right) as dot, Local() as name))
            ) if self._typing.axes_of(name) == self._typing.axes_of(dot):
                return self._one_by_one(left, right)[0], 0
            case Reduce(value=inner):
                peak, held = self._needed(inner)
                return peak, min(held, self._registers(self._typing.type_of(value)))
            case _:
                return self._one_by_one(*operands(value))

    def _one_by_one(self, *parts: Value) -> tuple[int, int]:
        peak = held = 0
        for part in parts:
            most, own = self._needed(part)
            peak, held = max(peak, held + most), held + own
        return peak, held

    def _registers(self, kind: Type) -> int:
        """Return the registers of a thread for a value of a type, with its sizes rounded up as Triton needs them."""
        elements = prod(power_of_two(self._length(axis)) for axis in kind.axes)
        dtype = {"state": "f32", ELEMENT: self._bound.dtype}.get(kind.dtype, kind.dtype)
        return -(-elements * ITEM_BYTES[dtype] // (4 * self._threads))

    def _length(self, axis: Axis) -> int:
        return length(self._bound, self._stage, axis)


def _of_products(body: tuple[Statement, ...]) -> frozenset[str]:
    """Return the names whose values are computed from products."""
    assigned = [s for s in statements(body) if isinstance(s, Assign)]
    found: frozenset[str] = frozenset()
    while True:
        more = {s.name for s in assigned if _multiplies(s.value) or local_names(s.value) & found}
        if more <= found:
            return found
        found |= more
